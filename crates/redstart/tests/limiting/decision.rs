//! What is admitted, over every backend.

use std::time::Duration;

use redstart::{
    Store,
    limiting::{Algorithm, DecidedBy, Decision, Limiter, Quota, Together},
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

    /// Somebody took the TTL of the counter away, or the clock was set back since the window began.
    async fn a_counter_of_a_window_has_the_end_of_the_window(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = Way::FixedWindow.limiter(&store, backend.namespace(), 10, LONG).build()?;
        let longest = u64::try_from(LONG.as_millis())?;
        let mut late = redis::cmd("PEXPIRE");
        for (command, left) in [(&mut redis::cmd("PERSIST"), None), (&mut late, Some(3 * longest))] {
            assert!(limiter.check("u", 4).await?.is_allowed());
            let (key, ..) = stored(&store, backend.namespace()).await?.pop().unwrap();
            store.query::<()>(command.arg(&key).arg(left)).await?;
            let grant = limiter.check("u", 10).await?.allowed().expect("another window has begun");
            assert!(grant.snapshot().reset_after <= LONG);
            let left: u64 = store.query(redis::cmd("PTTL").arg(&key)).await?;
            assert!(left <= longest, "{left}");
            assert!(!limiter.check("u", 1).await?.is_allowed());
            assert_eq!(limiter.refund(grant).await?, 10);
            limiter.reset("u").await?;
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
            // A smaller cost may be admitted, so the server is asked.
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
        // Long enough that a task notes its admission before the next one is admitted, also on a busy machine.
        let quota = Quota::per(1, Duration::from_millis(150));
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

    async fn limiters_that_differ_share_no_state_and_a_shortened_quota_locks_nobody_out(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let algorithms = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingCounter];
        let mut limiters = Vec::new();
        for name in ["api", "web"] {
            for algorithm in algorithms {
                for quota in [Quota::per(100, LONG), Quota::per(5, LONG), Quota::per(5, LONG / 2)] {
                    limiters.push(Limiter::builder(&store, backend.namespace(), name, algorithm, quota).build()?);
                }
            }
            let bucket = Limiter::token_bucket(&store, backend.namespace(), name, Quota::per(5, LONG).burst(3));
            limiters.push(bucket.clone().build()?);
            limiters.push(bucket.refundable().build()?);
        }
        // All of it is taken from each, and the next one is as full as if it were alone.
        for limiter in &limiters {
            let (_, quota) = limiter.limits().next().unwrap();
            assert!(limiter.check("u", quota.capacity()).await?.is_allowed(), "{limiter:?}");
            assert!(!limiter.check("u", 1).await?.is_allowed(), "{limiter:?}");
        }
        // The same settings are the same limiter, in whatever process.
        let same = Limiter::builder(&store, backend.namespace(), "api", Algorithm::FixedWindow, Quota::per(100, LONG)).build()?;
        assert!(!same.check("u", 1).await?.is_allowed());
        Ok(())
    }

    async fn a_subject_may_have_a_quota_of_its_own(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in Way::ALL {
            let limiter = way.limiter(&store, backend.namespace(), 2, LONG)
                .and("daily", Algorithm::FixedWindow, Quota::per(50, LONG)).deny_cache(100).build()?;
            let premium = Quota::per(20, LONG);
            assert!(limiter.check("u", 2).await?.is_allowed(), "{way:?}");
            assert!(!limiter.check("u", 1).await?.is_allowed(), "{way:?}");
            // Neither the state of the other quota nor its refusal counts; the further limit does.
            let grant = limiter.check_quota("u", 20, premium).await?.allowed().expect("premium");
            assert_eq!(grant.snapshots()[1].remaining, 28, "{way:?}");
            assert!(matches!(limiter.check_quota("u", 21, premium).await?, Decision::Never { max: 20 }));
            assert!(!limiter.check_quota("u", 1, premium).await?.is_allowed(), "{way:?}");
            if way.is_refundable() {
                assert!(limiter.refund(grant).await? >= 19, "{way:?}");
                assert!(limiter.check_quota("u", 19, premium).await?.is_allowed(), "{way:?}");
            }
            assert!(limiter.check_quota("u", 1, Quota::per_day(0)).await.unwrap_err().is_config());
        }
        Ok(())
    }

    async fn a_reset_forgets_what_was_taken_under_every_quota(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in Way::ALL {
            let limiter = way.limiter(&store, backend.namespace(), 2, LONG)
                .and("daily", Algorithm::FixedWindow, Quota::per(50, LONG)).deny_cache(100).build()?;
            let (premium, gold) = (Quota::per(20, LONG), Quota::per(30, LONG));
            assert!(limiter.check("ann", 2).await?.is_allowed(), "{way:?}");
            for quota in [premium, gold] {
                assert!(limiter.check_quota("ann", 10, quota).await?.is_allowed(), "{way:?}");
                assert!(limiter.check_quota("bob", 10, quota).await?.is_allowed(), "{way:?}");
            }
            limiter.reset("ann").await?;
            assert!(limiter.check("ann", 2).await?.is_allowed(), "{way:?}");
            assert!(limiter.check_quota("ann", 20, premium).await?.is_allowed(), "{way:?}");
            assert!(limiter.check_quota("ann", 28, gold).await?.is_allowed(), "{way:?}");
            assert!(!limiter.check_quota("bob", 11, premium).await?.is_allowed(), "another subject, {way:?}");
        }
        Ok(())
    }

    async fn a_limiter_with_another_quota_does_all_that_a_limiter_does(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in Way::ALL {
            let builder = way.limiter(&store, backend.namespace(), 2, LONG)
                .and("daily", Algorithm::FixedWindow, Quota::per(50, LONG)).deny_cache(100);
            let limiter = builder.clone().build()?;
            let premium = limiter.with_quota(Quota::per(20, LONG))?;
            assert_eq!(premium.limits().map(|(_, quota)| quota.units()).collect::<Vec<_>>(), [20, 50]);
            let left = async |limiter: &Limiter, subject: &str| -> anyhow::Result<u64> {
                Ok(limiter.peek_all(subject).await?[0].remaining)
            };
            assert!(premium.check("ann", 5).await?.is_allowed(), "{way:?}");
            assert_eq!((left(&premium, "ann").await?, left(&limiter, "ann").await?), (15, 2), "{way:?}");
            assert!(premium.check_all("ann", &[4, 1]).await?.is_allowed(), "{way:?}");
            assert!(premium.acquire("ann", 1, Duration::ZERO).await?.is_allowed(), "{way:?}");
            assert!(!premium.acquire("ann", 11, Duration::ZERO).await?.is_allowed(), "{way:?}");
            assert_eq!(left(&premium, "ann").await?, 10, "{way:?}");
            let many = premium.check_many(&[("ann", 10), ("eve", 21), ("zoe", 20)]).await;
            let mut many = many.into_iter().map(|decision| decision.unwrap());
            assert!(many.next().unwrap().is_allowed(), "{way:?}");
            assert!(matches!(many.next(), Some(Decision::Never { max: 20 })), "{way:?}");
            assert!(many.next().unwrap().is_allowed(), "{way:?}");
            if way.is_refundable() {
                let together = [(&premium, "tom", 3), (&limiter, "tim", 3)];
                assert!(matches!(Limiter::check_together(&together).await?, Together::Never { at: 1, max: 2 }));
                assert!(limiter.check("tim", 1).await?.is_allowed());
                let together = [(&premium, "tom", 3), (&limiter, "tim", 2)];
                assert!(!Limiter::check_together(&together).await?.is_allowed(), "{way:?}");
                assert_eq!(left(&premium, "tom").await?, 20, "{way:?}: refunded");
                let grant = premium.check("tom", 3).await?.allowed().unwrap();
                // A part of it may have come back by itself.
                assert!(limiter.refund(grant).await? >= 2, "{way:?}: a grant knows its quota");
                assert_eq!(left(&premium, "tom").await?, 20, "{way:?}");
            }
            // Somebody waits under the limiter's own quota for days, and holds up nobody under another.
            assert!(limiter.check("joe", 2).await?.is_allowed());
            let waiting = tokio::spawn({
                let limiter = limiter.clone();
                async move { limiter.acquire("joe", 1, LONG * 2).await }
            });
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert!(premium.acquire("joe", 20, Duration::from_secs(60)).await?.is_allowed(), "{way:?}");
            waiting.abort();
            assert!(waiting.await.is_err(), "{way:?}: it waits");
            // The limiter's own quota is the limiter.
            let (_, own) = limiter.limits().next().unwrap();
            assert!(!premium.with_quota(own)?.check("joe", 1).await?.is_allowed(), "{way:?}");
            assert!(limiter.with_quota(Quota::per_day(0)).unwrap_err().is_config());
            // Another process has not used the quota, and names it.
            builder.build()?.with_quota(Quota::per(20, LONG))?.reset("joe").await?;
            assert_eq!((left(&premium, "joe").await?, left(&limiter, "joe").await?), (20, 2), "{way:?}");
        }
        Ok(())
    }

    async fn many_checks_are_decided_like_single_ones(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for way in Way::ALL {
            let limiter = way.limiter(&store, backend.namespace(), 3, LONG).build()?;
            let names: Vec<String> = (0..40).map(|n| format!("u{n}")).collect();
            let mut requests: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 2)).collect();
            // Twice in one call, above the capacity, nothing, and no name.
            requests.extend([("u0", 2), ("u1", 1), ("u2", 4), ("u3", 0), ("", 1)]);
            let answers = limiter.check_many(&requests).await;
            assert_eq!(answers.len(), requests.len());
            assert!(answers[..40].iter().all(|answer| answer.as_ref().unwrap().is_allowed()), "{way:?}");
            assert!(answers[40].as_ref().unwrap().retry_after().is_some(), "{way:?}");
            assert!(answers[41].as_ref().unwrap().is_allowed(), "{way:?}");
            assert!(matches!(answers[42], Ok(Decision::Never { max: 3 })), "{way:?}");
            assert!(answers[43].as_ref().unwrap_err().is_config() && answers[44].as_ref().unwrap_err().is_config());
            assert_eq!(limiter.peek("u1").await?.remaining, 0, "{way:?}");
            assert_eq!(limiter.peek("u2").await?.remaining, 1, "{way:?}");
            assert!(limiter.check_many(&[]).await.is_empty());
        }
        Ok(())
    }

    async fn limits_of_different_subjects_are_taken_together_or_not_at_all(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let other_store = Store::connect(backend.url()).await?;
        for way in Way::ALL {
            let users = way.limiter(&store, backend.namespace(), 10, LONG).build()?;
            let tenants = Limiter::sliding_window(&other_store, backend.namespace(), &format!("tenant{way:?}"), Quota::per(4, LONG)).build()?;
            let ask = async |user: &str, cost| Limiter::check_together(&[(&users, user, cost), (&tenants, "acme", cost)]).await;
            if !way.is_refundable() {
                assert!(ask("ann", 1).await.unwrap_err().is_config(), "{way:?}");
                continue;
            }
            let Together::Allowed(grants) = ask("ann", 3).await? else { panic!("{way:?}") };
            assert_eq!(grants.len(), 2);
            let Together::Limited { at, retry_after, .. } = ask("ann", 2).await? else { panic!("{way:?}") };
            assert!(at == 1 && !retry_after.is_zero(), "{way:?}");
            assert!(matches!(ask("ann", 5).await?, Together::Never { at: 1, max: 4 }), "{way:?}");
            assert!(Limiter::check_together(&[(&users, "", 1), (&tenants, "acme", 1)]).await.unwrap_err().is_config());
            // Nobody was charged for what was refused.
            assert_eq!(users.peek("ann").await?.remaining, 7, "{way:?}");
            assert_eq!(tenants.peek("acme").await?.remaining, 1, "{way:?}");
            // Many at once: never more than the tighter one allows.
            tenants.reset("acme").await?;
            let users: Vec<String> = (0..12).map(|n| format!("v{n}")).collect();
            let asked = futures_util::future::join_all(users.iter().map(|user| ask(user, 1))).await;
            let allowed = asked.into_iter().filter(|answer| answer.as_ref().unwrap().is_allowed()).count();
            assert_eq!(allowed, 4, "{way:?}");
        }
        Ok(())
    }

    async fn a_cost_above_the_capacity_is_never_admitted_however_long_the_line(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = Way::WholeBucket.limiter(&store, backend.namespace(), 2, LONG).build()?;
        assert!(limiter.check("u", 2).await?.is_allowed());
        // Somebody waits at the head of the line for days.
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire("u", 1, Duration::MAX).await }
        });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(limiter.acquire("u", 3, Duration::ZERO).await?, Decision::Never { max: 2 }));
        assert!(limiter.acquire("u", 1, Duration::ZERO).await?.retry_after().is_some());
        waiting.abort();
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

#[tokio::test]
async fn many_checks_are_one_round_trip() -> anyhow::Result<()> {
    let server = Server::builder(ServerKind::Redis).start().await?;
    let proxy = redstart_testkit::Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_secs(60))
        .connect()
        .await?;
    let limiter = Way::ExactBucket.limiter(&store, "many", 5, LONG).build()?;
    let names: Vec<String> = (0..64).map(|n| format!("u{n}")).collect();
    let requests: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    // The script is known to the server after this.
    limiter.check_many(&requests).await;
    let trip = Duration::from_millis(300);
    proxy.delay_replies(trip);
    let began = tokio::time::Instant::now();
    let answers = limiter.check_many(&requests).await;
    assert!(
        answers
            .into_iter()
            .all(|answer| answer.unwrap().is_allowed())
    );
    // One after the other they would take 64 trips.
    assert!(began.elapsed() < trip * 10, "{:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn the_deny_cache_and_waiters_follow_the_stores_clock() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let limiter = Way::WholeBucket
        .limiter(&store, "clock", 1, LONG)
        .deny_cache(10)
        .build()?;
    assert!(limiter.check("u", 1).await?.is_allowed());
    assert!(!limiter.check("u", 1).await?.is_allowed());
    store.advance(LONG)?;
    assert!(limiter.check("u", 1).await?.is_allowed());
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("u", 1, LONG * 2).await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    store.advance(LONG)?;
    assert!(waiting.await??.is_allowed());
    Ok(())
}
