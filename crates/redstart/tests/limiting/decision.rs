//! What is admitted, over every backend.

use std::time::Duration;

use redstart::{
    Store,
    limiting::{Algorithm, DecidedBy, Decision, Limiter, Quota},
};
use redstart_testkit::{Backend, Kind as ServerKind, MonitorTap, Server, matrix};

use crate::{LONG, Way, stored};

matrix! {
    async fn the_limit_is_admitted_and_nothing_above_it(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in Way::ALL {
            let limiter = way.limiter(&store, backend.namespace(), 5, LONG).build()?;
            for taken in 1..=5 {
                let grant = limiter.check("u", 1).await?.allowed().expect("below the limit");
                assert_eq!(grant.snapshot().remaining, 5 - taken, "{way:?}");
                assert_eq!(grant.snapshot().limit, 5);
                assert!(!grant.snapshot().reset_after.is_zero());
            }
            let decision = limiter.check("u", 1).await?;
            let Decision::Limited { retry_after, snapshot } = decision else {
                panic!("{way:?} admitted a sixth: {decision:?}");
            };
            assert!(!retry_after.is_zero() && retry_after <= LONG, "{way:?} {retry_after:?}");
            assert_eq!((snapshot.remaining, snapshot.decided_by), (0, DecidedBy::Store), "{way:?}");
            // Another subject has its own.
            assert!(limiter.check("v", 5).await?.is_allowed(), "{way:?}");
            // More than there ever is: no time to wait for.
            assert!(matches!(limiter.check("w", 6).await?, Decision::Never { max: 5 }), "{way:?}");
            let peeked = limiter.peek("u").await?;
            assert_eq!((peeked.remaining, peeked.limit), (0, 5), "{way:?}");
            assert_eq!(limiter.peek("w").await?.remaining, 5, "{way:?}");
            limiter.reset("u").await?;
            assert!(limiter.check("u", 5).await?.is_allowed(), "{way:?}");
        }
        Ok(())
    }

    async fn a_refused_check_leaves_the_stored_bytes_identical(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in Way::ALL {
            let limiter = way.limiter(&store, backend.namespace(), 5, LONG).build()?;
            assert!(limiter.check("u", 3).await?.is_allowed());
            let before = stored(&store, backend.namespace()).await?;
            assert!(!before.is_empty());
            for cost in 3..=5 {
                assert!(!limiter.check("u", cost).await?.is_allowed(), "{way:?} {cost}");
            }
            limiter.peek("u").await?;
            assert_eq!(before, stored(&store, backend.namespace()).await?, "{way:?}");
            // What is refused costs nothing: the rest is still there.
            assert!(limiter.check("u", 2).await?.is_allowed(), "{way:?}");
        }
        Ok(())
    }

    async fn every_key_has_a_ttl(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in Way::ALL {
            let limiter = way.limiter(&store, backend.namespace(), 5, Duration::from_secs(60)).build()?;
            for cost in [2, 2, 5, 1] {
                drop(limiter.check("u", cost).await?);
            }
        }
        let stored = stored(&store, backend.namespace()).await?;
        assert_eq!(stored.len(), Way::ALL.len());
        for (key, _, expires) in stored {
            assert!(expires > 0, "{key} never expires");
        }
        Ok(())
    }

    async fn waiting_retry_after_is_enough_for_every_cost(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in Way::ALL {
            let limiter = way.limiter(&store, backend.namespace(), 4, Duration::from_millis(120)).build()?;
            for cost in 1..=4 {
                let subject = format!("u{cost}");
                // However long this takes on a busy machine, at some point it is refused.
                let retry_after = loop {
                    if let Decision::Limited { retry_after, .. } = limiter.check(&subject, cost).await? {
                        break retry_after;
                    }
                };
                tokio::time::sleep(retry_after).await;
                let decision = limiter.check(&subject, cost).await?;
                assert!(decision.is_allowed(), "{way:?} cost {cost}: {decision:?} after {retry_after:?}");
            }
        }
        Ok(())
    }

    async fn several_limits_are_taken_all_or_none(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = Limiter::token_bucket(&store, backend.namespace(), "burst", Quota::per(10, LONG))
            .and("daily", Algorithm::FixedWindow, Quota::per(7, LONG))
            .and("log", Algorithm::SlidingWindow, Quota::per(8, LONG))
            .and("counter", Algorithm::SlidingCounter, Quota::per(9, LONG))
            .and("odd", Algorithm::TokenBucket, Quota::per(7, LONG).burst(20))
            .build()?;
        let remaining = async |subject: &str| -> anyhow::Result<Vec<u64>> {
            Ok(limiter.peek_all(subject).await?.iter().map(|s| s.remaining).collect())
        };
        let grant = limiter.check("u", 5).await?.allowed().expect("room in all");
        assert_eq!(grant.snapshots().iter().map(|s| s.remaining).collect::<Vec<_>>(), [5, 2, 3, 4, 15]);
        assert_eq!(grant.snapshot().name.as_ref(), "daily");
        let before = stored(&store, backend.namespace()).await?;
        // The daily limit alone refuses, and nobody is charged.
        let decision = limiter.check("u", 3).await?;
        let Decision::Limited { snapshot, .. } = decision else { panic!("{decision:?}") };
        assert_eq!(snapshot.name.as_ref(), "daily");
        assert_eq!(before, stored(&store, backend.namespace()).await?);
        assert_eq!(remaining("u").await?, [5, 2, 3, 4, 15]);
        // Each its own cost.
        assert!(limiter.check_all("u", &[5, 1, 3, 4, 15]).await?.is_allowed());
        assert_eq!(remaining("u").await?, [0, 1, 0, 0, 0]);
        assert!(matches!(limiter.check_all("v", &[1, 8, 9, 1, 1]).await?, Decision::Never { max: 7 }));
        assert!(limiter.check_all("v", &[1, 1]).await.unwrap_err().is_config());
        Ok(())
    }

    async fn concurrent_checks_admit_exactly_the_limit(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in Way::ALL {
            let limiter = way.limiter(&store, backend.namespace(), 100, LONG).build()?;
            let tasks: Vec<_> = (0..50)
                .map(|task| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        let mut admitted = 0;
                        for round in 0..6 {
                            let cost = (task + round) % 2 + 1;
                            if limiter.check("u", cost).await?.is_allowed() {
                                admitted += cost;
                            }
                        }
                        Ok::<_, redstart::Error>(admitted)
                    })
                })
                .collect();
            let mut admitted = 0;
            for task in tasks {
                admitted += task.await??;
            }
            // A cost of 2 may find one unit left; a cost of 1 takes it.
            assert_eq!(admitted, 100, "{way:?}");
        }
        Ok(())
    }

    async fn the_deny_cache_answers_until_the_servers_own_moment(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in Way::ALL {
            let limiter = way
                .limiter(&store, backend.namespace(), 4, Duration::from_millis(400))
                .deny_cache(100)
                .build()?;
            let retry_after = loop {
                if let Decision::Limited { retry_after, snapshot } = limiter.check("u", 3).await?
                    && snapshot.decided_by == DecidedBy::Store
                {
                    break retry_after;
                }
            };
            match limiter.check("u", 3).await? {
                Decision::Limited { retry_after: left, snapshot } if snapshot.decided_by == DecidedBy::DenyCache => {
                    assert!(left <= retry_after, "{way:?}");
                }
                // The machine was so slow that the moment has come.
                decision => assert!(decision.is_allowed() || decision.retry_after().is_some(), "{way:?}"),
            }
            // Who asks for less may be lucky, so the server is asked.
            if let Decision::Limited { snapshot, .. } = limiter.check("u", 2).await? {
                assert_eq!(snapshot.decided_by, DecidedBy::Store, "{way:?}");
            }
            // Asked again once the server's moment has come, the cache is not in the way.
            let other = loop {
                if let Decision::Limited { retry_after, .. } = limiter.check("w", 4).await? {
                    break retry_after;
                }
            };
            tokio::time::sleep(other).await;
            assert!(limiter.check("w", 4).await?.is_allowed(), "{way:?}");
        }
        Ok(())
    }

    async fn waiters_of_one_process_are_admitted_in_order(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let quota = Quota::per(1, Duration::from_millis(20));
        let limiter = Limiter::token_bucket(&store, backend.namespace(), "api", quota).build()?;
        let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for n in 0..8 {
            let (limiter, order) = (limiter.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let decision = limiter.acquire("u", 1, Duration::from_secs(60)).await?;
                assert!(decision.is_allowed());
                order.lock().unwrap().push(n);
                Ok::<_, redstart::Error>(())
            }));
            // Let it stand in line before the next one comes.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        for task in tasks {
            task.await??;
        }
        assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
        Ok(())
    }

    async fn a_request_that_cannot_be_admitted_in_time_is_refused_at_once(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = Way::WholeBucket.limiter(&store, backend.namespace(), 2, LONG).build()?;
        assert!(limiter.acquire("u", 2, Duration::ZERO).await?.is_allowed());
        // Days away: the call would not return within the test if it waited.
        let decision = limiter.acquire("u", 1, Duration::from_secs(3600)).await?;
        assert!(decision.retry_after().is_some_and(|wait| wait > Duration::from_secs(3600)));
        assert!(matches!(limiter.acquire("u", 3, LONG).await?, Decision::Never { max: 2 }));
        Ok(())
    }
}

#[tokio::test]
async fn a_check_is_one_round_trip_and_sends_no_time() -> anyhow::Result<()> {
    let server = Server::builder(ServerKind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    for way in Way::ALL {
        let limiter = way.limiter(&store, "quiet", 5, LONG).build()?;
        assert!(limiter.check("u", 1).await?.is_allowed());
        let tap = MonitorTap::start(&server).await?;
        assert!(limiter.check("u", 1).await?.is_allowed());
        tokio::time::sleep(Duration::from_millis(3)).await;
        assert!(limiter.check("u", 1).await?.is_allowed());
        let mut seen = tap.round_trips("quiet").await?;
        assert_eq!(seen.len(), 2, "{way:?}");
        // Whatever the client's clock says, it sends the same; only the name of the request differs.
        for command in &mut seen {
            command.words.truncate(
                command.words.len()
                    - usize::from(command.words.last().is_some_and(|w| w.len() > 24)),
            );
        }
        assert_eq!(seen[0].words, seen[1].words, "{way:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_deny_cache_makes_no_round_trip() -> anyhow::Result<()> {
    let server = Server::builder(ServerKind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let limiter = Way::WholeBucket
        .limiter(&store, "deny", 1, LONG)
        .deny_cache(10)
        .build()?;
    assert!(limiter.check("u", 1).await?.is_allowed());
    assert!(!limiter.check("u", 1).await?.is_allowed());
    let tap = MonitorTap::start(&server).await?;
    for _ in 0..100 {
        assert!(!limiter.check("u", 1).await?.is_allowed());
    }
    assert_eq!(tap.round_trips("deny").await?.len(), 0);
    // It does not grow: the rest asks the server.
    for n in 0..20 {
        let subject = format!("s{n}");
        assert!(limiter.check(&subject, 1).await?.is_allowed());
        assert!(!limiter.check(&subject, 1).await?.is_allowed());
    }
    tap.clear().await?;
    for n in 0..20 {
        assert!(!limiter.check(&format!("s{n}"), 1).await?.is_allowed());
    }
    assert!(tap.round_trips("deny").await?.len() >= 10);
    Ok(())
}
