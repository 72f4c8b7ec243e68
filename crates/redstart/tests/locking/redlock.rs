//! Five real servers, each behind a proxy of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex as Cell;
use redstart::{
    Store,
    locking::{FenceToken, Redlock, Released, ServerHolder},
};
use redstart_testkit::{Kind, Proxy, Server, eventually, figure, scale, wait_until};
use tokio::{task::JoinSet, time::Instant};

use crate::PATIENCE;

struct Five {
    servers: Vec<Server>,
    proxies: Vec<Proxy>,
}

impl Five {
    async fn start() -> anyhow::Result<Self> {
        let (mut servers, mut proxies) = (Vec::new(), Vec::new());
        for at in 0..5 {
            let kind = [Kind::Redis, Kind::Valkey][at % 2];
            let server = Server::builder(kind).start().await?;
            proxies.push(Proxy::start(&server).await?);
            servers.push(server);
        }
        Ok(Self { servers, proxies })
    }

    async fn stores(&self) -> anyhow::Result<Vec<Store>> {
        let mut stores = Vec::new();
        for proxy in &self.proxies {
            let store = Store::builder(proxy.url())
                .deadline(Duration::from_secs(5))
                .lazy();
            stores.push(store.connect().await?);
        }
        Ok(stores)
    }

    async fn break_server(&self, fault: Fault, at: usize) -> anyhow::Result<()> {
        match fault {
            Fault::Hung => self.servers[at].pause()?,
            Fault::Killed => self.servers[at].kill9(),
            Fault::BlackHoled => self.proxies[at].black_hole(),
            Fault::Delayed => self.proxies[at].delay(Duration::from_secs(2)),
            Fault::Emptied => {
                self.servers[at].kill9();
                self.servers[at].restart().await?;
            }
        }
        Ok(())
    }

    async fn mend_server(&self, fault: Fault, at: usize) -> anyhow::Result<()> {
        match fault {
            Fault::Hung => self.servers[at].resume()?,
            Fault::Killed => self.servers[at].restart().await?,
            Fault::BlackHoled | Fault::Delayed => self.proxies[at].pass().await,
            Fault::Emptied => {}
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Hung,
    Killed,
    BlackHoled,
    Delayed,
    Emptied,
}

const FAULTS: [Fault; 5] = [
    Fault::Hung,
    Fault::Killed,
    Fault::BlackHoled,
    Fault::Delayed,
    Fault::Emptied,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_of_five_may_fail_without_delaying_the_others() -> anyhow::Result<()> {
    let five = Five::start().await?;
    let server_timeout = Duration::from_secs(1);
    let lock = |stores: Vec<Store>| {
        Redlock::builder(stores, "app", "r")
            .ttl(Duration::from_secs(20))
            .server_timeout(server_timeout)
            .durable()
            .build()
    };
    let (one, two) = (lock(five.stores().await?)?, lock(five.stores().await?)?);
    one.lock(PATIENCE)
        .await?
        .context("not granted")?
        .release()
        .await?;
    let mut last = None;
    for (round, fault) in FAULTS.into_iter().enumerate() {
        let (a, b) = (round, (round + 2) % 5);
        five.break_server(fault, a).await?;
        five.break_server(fault, b).await?;
        let began = Instant::now();
        let guard = one
            .try_lock()
            .await?
            .with_context(|| format!("{fault:?} on {a} and {b}"))?;
        // Two rounds, each within a node's timeout; without that it would be the store's deadline of 5 s.
        assert!(
            began.elapsed() < server_timeout * 5,
            "{fault:?} took {:?}",
            began.elapsed()
        );
        assert!(Some(guard.fence()) > last, "{fault:?}");
        last = Some(guard.fence());
        let began = Instant::now();
        assert!(two.try_lock().await?.is_none(), "{fault:?}");
        assert!(
            began.elapsed() < server_timeout * 5,
            "{fault:?} took {:?}",
            began.elapsed()
        );
        assert!(
            guard.extend(Duration::from_secs(20)).await?.is_some(),
            "{fault:?}"
        );
        assert_eq!(guard.release().await?, Released::Released, "{fault:?}");
        let next = two
            .lock(PATIENCE)
            .await?
            .with_context(|| format!("{fault:?} on {a} and {b}"))?;
        assert!(Some(next.fence()) > last, "{fault:?}");
        last = Some(next.fence());
        next.release().await?;
        five.mend_server(fault, a).await?;
        five.mend_server(fault, b).await?;
        // All servers must be up again before the next pair fails.
        let up_again = five.stores().await?;
        ensure!(
            eventually(PATIENCE, async || {
                for store in &up_again {
                    if store.health().await.is_err() {
                        return false;
                    }
                }
                true
            })
            .await
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_it_fails_in_time_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let five = Five::start().await?;
    let stores = five.stores().await?;
    let lock = Redlock::builder(stores.clone(), "app", "r")
        .ttl(Duration::from_secs(20))
        .server_timeout(Duration::from_millis(300))
        .durable()
        .build()?;
    lock.lock(PATIENCE)
        .await?
        .context("not granted")?
        .release()
        .await?;
    for at in [0, 2, 4] {
        five.break_server(Fault::BlackHoled, at).await?;
    }
    let began = Instant::now();
    let error = lock.try_lock().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(error.to_string().contains("2 of 5"), "{error}");
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    // What the two granted is released, while the others still hang.
    for at in [1, 3] {
        let key = ["EXISTS", "app:redlock:{r}"];
        let gone = async || {
            five.servers[at]
                .query::<i64>(&key)
                .await
                .is_ok_and(|n| n == 0)
        };
        ensure!(eventually(PATIENCE, gone).await);
    }
    for at in [0, 2, 4] {
        five.mend_server(Fault::BlackHoled, at).await?;
    }
    lock.lock(PATIENCE)
        .await?
        .context("not granted")?
        .release()
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_lost_its_quorum_is_told() -> anyhow::Result<()> {
    let five = Five::start().await?;
    let lock = Redlock::builder(five.stores().await?, "app", "r")
        .ttl(Duration::from_millis(1500))
        .durable()
        .build()?;
    let guard = lock.lock(PATIENCE).await?.context("not granted")?;
    // Two lose it: it is renewed on the other three.
    for server in &five.servers[..2] {
        server.command(&["FLUSHALL"]).await?;
    }
    let until = guard.valid_until() + Duration::from_millis(100);
    ensure!(
        eventually(PATIENCE, async || guard.valid_until() > until
            || !guard.is_valid())
        .await
    );
    assert!(guard.is_valid(), "a quorum is enough");
    five.servers[2].command(&["FLUSHALL"]).await?;
    guard.lost().await;
    assert!(!guard.is_valid());
    Ok(())
}

/// The weakness of quorum locks: a server that restarts empty grants again what it had granted before. Here three of
/// five do so at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_restarted_empty_do_not_vote_until_the_lease_has_ended() -> anyhow::Result<()>
{
    let five = Five::start().await?;
    let ttl = Duration::from_millis(2500);
    let lock = |stores| {
        Redlock::builder(stores, "app", "r")
            .ttl(ttl)
            .longest_lease(ttl)
            .without_renewal()
            .build()
    };
    let (one, two) = (lock(five.stores().await?)?, lock(five.stores().await?)?);
    // Fresh servers do not vote either.
    let refused = wait_until("an answer of a quorum", PATIENCE, async || {
        one.try_lock().await.ok()
    });
    assert!(refused.await?.is_none());
    one.lock(PATIENCE)
        .await?
        .context("not granted")?
        .release()
        .await?;
    let guard = one.lock(PATIENCE).await?.context("not granted")?;
    let (fence, until) = (guard.fence(), guard.valid_until());
    for at in [1, 2, 4] {
        five.break_server(Fault::Emptied, at).await?;
    }
    let next = two.lock(PATIENCE).await?.context("not granted")?;
    assert!(Instant::now() >= until, "two held it at the same time");
    assert!(next.fence() > fence);
    assert!(!guard.is_valid());
    next.release().await?;
    Ok(())
}

/// The grace after a restart is that of the longest lease that a server could have lost, not of the one that is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_lease_does_not_shorten_the_grace_of_restarted_servers() -> anyhow::Result<()> {
    let five = Five::start().await?;
    let longest = Duration::from_secs(4);
    let lock = |stores, ttl| {
        Redlock::builder(stores, "app", "r")
            .ttl(ttl)
            .longest_lease(longest)
            .without_renewal()
            .build()
    };
    let long = lock(five.stores().await?, longest)?;
    let short = lock(five.stores().await?, Duration::from_millis(500))?;
    let guard = long.lock(PATIENCE).await?.context("not granted")?;
    let until = guard.valid_until();
    for at in [1, 2, 4] {
        five.break_server(Fault::Emptied, at).await?;
    }
    let next = short.lock(PATIENCE).await?.context("not granted")?;
    assert!(Instant::now() >= until, "two held it at the same time");
    let error = next.extend(longest * 2).await.unwrap_err();
    assert!(error.is_config(), "{error}");
    assert!(
        lock(five.stores().await?, longest * 2)
            .unwrap_err()
            .is_config()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validities_never_overlap_and_tokens_rise_while_two_of_five_misbehave() -> anyhow::Result<()>
{
    let five = Arc::new(Five::start().await?);
    let ttl = Duration::from_millis(900);
    let held: Arc<Cell<Vec<(Instant, Instant, FenceToken)>>> = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let mut contenders = JoinSet::new();
    for _ in 0..3 {
        let lock = Redlock::builder(five.stores().await?, "app", "r")
            .ttl(ttl)
            .longest_lease(ttl)
            .server_timeout(Duration::from_millis(100))
            .retry_delay(Duration::from_millis(40))
            .build()?;
        let (held, stop) = (held.clone(), stop.clone());
        contenders.spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                // A quorum may be missing for a moment on a busy machine.
                let Ok(Some(guard)) = lock.lock(Duration::from_secs(1)).await else {
                    continue;
                };
                let begin = Instant::now();
                tokio::time::sleep(Duration::from_millis(15)).await;
                let end = Instant::now().min(guard.valid_until());
                if begin < end {
                    held.lock().push((begin, end, guard.fence()));
                }
                // What cannot be released ends with its lease.
                let _ = guard.release().await;
            }
        });
    }
    let grants = || held.lock().len();
    ensure!(eventually(PATIENCE, async || grants() > 3).await);
    for round in 0..scale(5, "REDLOCK_FAULTS") as usize {
        let (fault, a) = (FAULTS[round % FAULTS.len()], rand::random_range(0..5));
        let b = (a + rand::random_range(1..5)) % 5;
        let before = grants();
        five.break_server(fault, a).await?;
        five.break_server(fault, b).await?;
        ensure!(
            eventually(PATIENCE, async || grants() > before + 3).await,
            "{fault:?} on {a} and {b} stopped all contenders"
        );
        five.mend_server(fault, a).await?;
        five.mend_server(fault, b).await?;
        // Two faults at a time are covered by the promise: all servers are up, and those that were restarted vote again,
        // before the next two fail.
        for at in [a, b] {
            let old_enough = async || {
                let up = five.servers[at].info("uptime_in_seconds").await;
                up.is_ok_and(|up| up.parse::<u64>().is_ok_and(|up| up >= 2))
            };
            ensure!(eventually(PATIENCE, old_enough).await);
        }
        tokio::time::sleep(ttl).await;
    }
    stop.store(true, Ordering::SeqCst);
    while let Some(ended) = contenders.join_next().await {
        ended?;
    }
    let mut held = std::mem::take(&mut *held.lock());
    held.sort();
    for pair in held.windows(2) {
        let ((_, end, old), (begin, _, new)) = (pair[0], pair[1]);
        assert!(end <= begin, "two held it for {:?}", end - begin);
        assert!(old < new, "{new} came after {old}");
    }
    figure(format!(
        "two of five broken {} times, {} times held, no two at once, tokens rise",
        scale(5, "REDLOCK_FAULTS"),
        held.len()
    ));
    Ok(())
}

/// Between the hand-over and the redemption two servers fail, and the reply of a third is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_handed_over_is_redeemed_while_any_two_of_five_fail() -> anyhow::Result<()>
{
    let five = Five::start().await?;
    let minute = Duration::from_secs(60);
    let lock = |stores: Vec<Store>| {
        Redlock::builder(stores, "app", "r")
            .ttl(minute)
            .server_timeout(minute / 4)
            .durable()
            .build()
    };
    let (one, two) = (lock(five.stores().await?)?, lock(five.stores().await?)?);
    for (round, fault) in FAULTS.into_iter().enumerate() {
        // On all five; a server that is late may be left out.
        let held = wait_until("a lock on all servers", PATIENCE, async || {
            let guard = one.lock(PATIENCE).await.ok()??;
            let seen = one.holders().await.ok()?;
            let all = |server: &ServerHolder| matches!(server, ServerHolder::Held(_));
            seen.servers.iter().all(all).then_some(guard)
        });
        let guard = held.await?;
        let fence = guard.fence();
        let given = guard.hand_over(minute).await?.context("it was lost")?;
        let (a, b) = (round, (round + 2) % 5);
        five.break_server(fault, a).await?;
        five.break_server(fault, b).await?;
        five.proxies[(round + 1) % 5].drop_reply_to("EVALSHA");
        let taken = two.redeem(&given).await?;
        let taken = taken.with_context(|| format!("{fault:?} on {a} and {b}"))?;
        ensure!(taken.fence() > fence, "{fault:?}");
        ensure!(
            two.redeem(&given).await?.is_none(),
            "{fault:?}: it is redeemed once"
        );
        ensure!(taken.is_valid());
        assert_eq!(taken.release().await?, Released::Released, "{fault:?}");
        five.mend_server(fault, a).await?;
        five.mend_server(fault, b).await?;
        // What the broken servers kept for the giver, or for a release that they did not hear.
        let free = eventually(PATIENCE, async || {
            let Ok(seen) = two.holders().await else {
                return false;
            };
            for server in &seen.servers {
                if let ServerHolder::Held(left) = server {
                    let _ = two.force_release(left).await;
                }
            }
            seen.servers
                .iter()
                .all(|server| *server == ServerHolder::Free)
        });
        ensure!(free.await, "{fault:?}: something is left behind");
    }
    Ok(())
}
