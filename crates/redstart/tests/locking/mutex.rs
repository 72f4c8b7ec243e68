use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Store,
    key::Layout,
    locking::{Fencing, Guard, LockedRun, Mutex, Released},
};
use redstart_testkit::{Backend, Kind, MonitorTap, Server, eventually, matrix, scale};
use tokio::{task::JoinSet, time::Instant};

use crate::{FOREVER, PATIENCE, connect, exists};

async fn must<T>(found: redstart::Result<Option<T>>) -> anyhow::Result<T> {
    found?.ok_or_else(|| anyhow::anyhow!("the lock was not granted"))
}

async fn pttl(store: &Store, key: &str) -> anyhow::Result<i64> {
    Ok(store.query(redis::cmd("PTTL").arg(key)).await?)
}

matrix! {
    async fn one_holder_at_a_time_and_tokens_rise_from_holder_to_holder(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let rounds = scale(10, "LOCK_ROUNDS");
        let key = format!("{}:witness:{{w}}", backend.namespace());
        // Two handles, so that both waiting within a handle and the race between handles are tested.
        let mut handles = Vec::new();
        for _ in 0..2 {
            handles.push(Mutex::builder(&store, backend.namespace(), "counter").build()?);
        }
        let mut tasks = JoinSet::new();
        for at in 0..8 {
            let (mutex, store, key) = (handles[at % 2].clone(), store.clone(), key.clone());
            tasks.spawn(async move {
                for _ in 0..rounds {
                    let guard = must(mutex.lock(PATIENCE).await).await?;
                    // Read and write are separate: only exclusion makes this correct.
                    let seen: Option<u64> = store.query(redis::cmd("HGET").arg(&key).arg("n")).await?;
                    let last: Option<u64> = store.query(redis::cmd("HGET").arg(&key).arg("fence")).await?;
                    let fence = guard.fence().get();
                    assert!(last.unwrap_or(0) < fence, "{last:?} came before {fence}");
                    // The embedded engine answers at once; let the others run in between there too.
                    tokio::task::yield_now().await;
                    store.query::<()>(
                        redis::cmd("HSET").arg(&key)
                            .arg("n").arg(seen.unwrap_or(0) + 1)
                            .arg("fence").arg(fence),
                    ).await?;
                    assert_eq!(guard.release().await?, Released::Released);
                }
                anyhow::Ok(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        let n: u64 = store.query(redis::cmd("HGET").arg(&key).arg("n")).await?;
        assert_eq!(n, 8 * rounds);
        Ok(())
    }

    /// Servers deliver wake-ups in an order of their own; the process that is always last must get the lock too.
    async fn no_contender_starves(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let turns = scale(1500, "LOCK_TURNS");
        let (taken, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        for _ in 0..16 {
            // One handle per task, as separate processes have.
            let mutex = Mutex::builder(&store, backend.namespace(), "crowd").build()?;
            let taken = taken.clone();
            tasks.spawn(async move {
                let mut mine = 0u64;
                while taken.load(Ordering::Relaxed) < turns {
                    let guard = must(mutex.lock(PATIENCE).await).await?;
                    taken.fetch_add(1, Ordering::Relaxed);
                    mine += 1;
                    tokio::time::sleep(Duration::from_micros(100)).await;
                    guard.release().await?;
                }
                anyhow::Ok(mine)
            });
        }
        let mut each = Vec::new();
        while let Some(task) = tasks.join_next().await {
            each.push(task??);
        }
        each.sort_unstable();
        println!("{}: turns of each: {each:?}", backend.test());
        let fair = turns / 16;
        assert!(each[0] >= fair / 4, "one had {} turns of {turns}", each[0]);
        Ok(())
    }

    async fn unfenced_is_the_same_lock(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let fenced = Mutex::builder(&store, backend.namespace(), "m").build()?;
        let bare = Mutex::builder(&store, backend.namespace(), "m").unfenced().build()?;
        let guard = must(bare.try_lock().await).await?;
        assert!(fenced.try_lock().await?.is_none());
        assert!(bare.try_lock().await?.is_none());
        assert!(bare.lock(Duration::from_millis(20)).await?.is_none());
        assert_eq!(guard.release().await?, Released::Released);
        let guard = must(fenced.try_lock().await).await?;
        assert!(bare.try_lock().await?.is_none());
        assert_eq!(guard.release().await?, Released::Released);
        let guard = must(bare.lock(PATIENCE).await).await?;
        assert!(guard.extend(Duration::from_secs(60)).await?.is_some());
        assert_eq!(guard.release().await?, Released::Released);
        Ok(())
    }

    async fn expired_lock_cannot_be_released_by_its_old_holder(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let short = Mutex::builder(&store, backend.namespace(), "m")
            .ttl(Duration::from_millis(40)).without_renewal().build()?;
        let long = Mutex::builder(&store, backend.namespace(), "m").build()?;
        // A grant that is heard of after its lease is none; then it waits for the next one.
        let old = must(short.lock(PATIENCE).await).await?;
        let new = must(long.lock(PATIENCE).await).await?;
        assert!(!old.is_valid());
        assert!(old.fence() < new.fence());
        assert_eq!(old.extend(Duration::from_secs(1)).await?, None);
        assert_eq!(old.release().await?, Released::AlreadyLost);
        assert!(short.try_lock().await?.is_none());
        assert!(new.is_valid());
        assert_eq!(new.release().await?, Released::Released);
        Ok(())
    }

    async fn a_lock_that_another_owner_has_is_neither_extended_nor_released(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let key = format!("{}:mutex:{{m}}", backend.namespace());
        for bare in [false, true] {
            let builder = || Mutex::builder(&store, backend.namespace(), "m").ttl(FOREVER).without_renewal();
            let (extended, lost) = if bare {
                let old = must(builder().unfenced().build()?.try_lock().await).await?;
                // The server loses the lock, as in a failover, and grants it to another owner; the old holder cannot know.
                store.query::<()>(redis::cmd("SET").arg(&key).arg("another").arg("PX").arg(60_000)).await?;
                assert!(old.is_valid());
                (old.extend(FOREVER * 2).await?, old.release().await?)
            } else {
                let old = must(builder().build()?.try_lock().await).await?;
                store.query::<()>(redis::cmd("SET").arg(&key).arg("another").arg("PX").arg(60_000)).await?;
                assert!(old.is_valid());
                let extended = old.extend(FOREVER * 2).await?;
                assert!(!old.is_valid());
                (extended, old.release().await?)
            };
            assert_eq!((extended, lost), (None, Released::AlreadyLost));
            let holder: String = store.query(redis::cmd("GET").arg(&key)).await?;
            assert_eq!(holder, "another");
            let left = pttl(&store, &key).await?;
            assert!((1..=60_000).contains(&left), "its lease was changed to {left} ms");
            store.query::<()>(redis::cmd("DEL").arg(&key)).await?;
        }
        Ok(())
    }

    async fn a_held_lock_is_renewed_beyond_its_ttl_and_not_after_its_release(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let ttl = Duration::from_millis(600);
        let mutex = Mutex::builder(&store, backend.namespace(), "m").ttl(ttl).build()?;
        let key = format!("{}:mutex:{{m}}", backend.namespace());
        let guard = must(mutex.try_lock().await).await?;
        let (began, first) = (Instant::now(), guard.valid_until());
        assert!(eventually(PATIENCE, async || began.elapsed() > ttl * 3 || !guard.is_valid()).await);
        // If the machine stopped this process for a whole lease, there is nothing to check.
        if guard.is_valid() {
            assert!(guard.valid_until() > first + ttl);
            assert!(mutex.try_lock().await?.is_none());
            let left = pttl(&store, &key).await?;
            assert!((1..=600).contains(&left), "{left}");
            assert_eq!(guard.release().await?, Released::Released);
        }
        store.settle().await;
        assert!(!exists(&store, &key).await);
        Ok(())
    }

    async fn valid_until_is_before_the_servers_end_of_the_lease(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let key = format!("{}:mutex:{{m}}", backend.namespace());
        let mutex = Mutex::builder(&store, backend.namespace(), "m")
            .ttl(Duration::from_secs(10)).without_renewal().build()?;
        for _ in 0..20 {
            let guard = must(mutex.try_lock().await).await?;
            let asked = Instant::now();
            let left = u64::try_from(pttl(&store, &key).await?)?;
            // The server's end is at least this late.
            assert!(guard.valid_until() < asked + Duration::from_millis(left));
            let until = guard.extend(Duration::from_secs(20)).await?.expect("it is held");
            assert!(until > Instant::now() + Duration::from_secs(5));
            let asked = Instant::now();
            let left = u64::try_from(pttl(&store, &key).await?)?;
            assert!(until < asked + Duration::from_millis(left));
            guard.release().await?;
        }
        Ok(())
    }

    async fn a_dropped_guard_is_released_in_the_background(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mutex = Mutex::builder(&store, backend.namespace(), "m").build()?;
        drop(must(mutex.try_lock().await).await?);
        store.settle().await;
        let guard = must(mutex.try_lock().await).await?;
        guard.release().await?;
        Ok(())
    }

    async fn a_lost_lease_drops_the_work_and_is_reported(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mutex = Mutex::builder(&store, backend.namespace(), "m")
            .ttl(Duration::from_millis(300)).build()?;
        let key = format!("{}:mutex:{{m}}", backend.namespace());
        let dropped = Arc::new(AtomicBool::new(false));
        struct Mark(Arc<AtomicBool>);
        impl Drop for Mark {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let mark = Mark(dropped.clone());
        let outcome: LockedRun<()> = mutex.with(PATIENCE, |_lease| async {
            let _mark = mark;
            // The server loses the lock; the next renewal finds out.
            store.query::<()>(redis::cmd("DEL").arg(&key)).await.expect("DEL is answered");
            std::future::pending().await
        }).await?;
        assert_eq!(outcome, LockedRun::Lost(None));
        assert!(dropped.load(Ordering::SeqCst));

        // Lost, but the work ended before the renewal: the release reports it.
        let outcome = mutex.with(PATIENCE, |lease| {
            let (store, key) = (store.clone(), key.clone());
            async move {
                store.query::<()>(redis::cmd("DEL").arg(&key)).await.expect("DEL is answered");
                lease.fence()
            }
        }).await?;
        assert!(matches!(outcome, LockedRun::Lost(_)), "{outcome:?}");

        let outcome = mutex.with(PATIENCE, |_| async { 7 }).await?;
        assert_eq!(outcome, LockedRun::Done(7));
        let guard = must(mutex.try_lock().await).await?;
        let outcome = mutex.with(Duration::from_millis(10), |_| async { 7 }).await?;
        assert_eq!(outcome, LockedRun::Busy);
        guard.release().await?;
        Ok(())
    }

    async fn a_release_wakes_the_waiter_long_before_the_lease_would_end(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        // A lease of an hour: only the message can be what wakes the waiter.
        let mutex = Mutex::builder(&store, backend.namespace(), "m")
            .ttl(Duration::from_secs(3600)).build()?;
        let other = Mutex::builder(&store, backend.namespace(), "m").unfenced().build()?;
        for round in 0..5 {
            let guard = must(mutex.try_lock().await).await?;
            let fenced = tokio::spawn({ let mutex = mutex.clone(); async move { mutex.lock(FOREVER).await } });
            let bare = tokio::spawn({ let other = other.clone(); async move { other.lock(FOREVER).await } });
            // In some rounds the release comes before the waiters listen, in some after.
            if round % 2 == 0 {
                tokio::time::sleep(Duration::from_millis(20 * round)).await;
            }
            assert_eq!(guard.release().await?, Released::Released);
            let release = async |task: tokio::task::JoinHandle<redstart::Result<Option<Guard<()>>>>| {
                anyhow::Ok(must(task.await?).await?.release().await?)
            };
            let fenced = async { anyhow::Ok(must(fenced.await?).await?.release().await?) };
            let (one, two) = tokio::join!(fenced, release(bare));
            assert_eq!((one?, two?), (Released::Released, Released::Released));
        }
        Ok(())
    }

    async fn a_lost_wake_up_delays_the_waiter_to_the_holders_pttl_at_most(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mutex = Mutex::builder(&store, backend.namespace(), "m")
            .ttl(Duration::from_millis(1500)).without_renewal().build()?;
        let key = format!("{}:mutex:{{m}}", backend.namespace());
        let guard = must(mutex.try_lock().await).await?;
        let waiter = tokio::spawn({ let mutex = mutex.clone(); async move { mutex.lock(FOREVER).await } });
        // By now it listens and has asked for the last time; otherwise this test checks less.
        tokio::time::sleep(Duration::from_millis(300)).await;
        // Released without a wake-up, as if the message was lost.
        store.query::<()>(redis::cmd("DEL").arg(&key)).await?;
        let next = must(waiter.await?).await?;
        assert!(next.fence() > guard.fence());
        assert_eq!(next.release().await?, Released::Released);
        assert_eq!(guard.release().await?, Released::AlreadyLost);
        Ok(())
    }

    async fn a_waiter_that_gives_up_does_not_block_the_next(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mutex = Mutex::builder(&store, backend.namespace(), "m").build()?;
        let guard = must(mutex.try_lock().await).await?;
        assert!(mutex.lock(Duration::ZERO).await?.is_none());
        let impatient = tokio::spawn({ let m = mutex.clone(); async move { m.lock(Duration::from_millis(50)).await } });
        let aborted = tokio::spawn({ let m = mutex.clone(); async move { m.lock(PATIENCE).await } });
        let patient = tokio::spawn({ let m = mutex.clone(); async move { m.lock(Duration::MAX).await } });
        assert!(impatient.await??.is_none());
        aborted.abort();
        // A task that ended before the abort keeps its guard in the handle.
        drop(aborted.await);
        guard.release().await?;
        assert_eq!(must(patient.await?).await?.release().await?, Released::Released);
        Ok(())
    }

    async fn keys_that_an_application_already_has_are_adopted(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let prefix = backend.namespace().to_owned();
        let mutex = Mutex::builder(&store, backend.namespace(), "7")
            .layout(Layout::new(move |name| format!("{prefix}-lock-{name}"))).build()?;
        let key = format!("{}-lock-7", backend.namespace());
        // Another client took it in the usual way.
        store.query::<()>(redis::cmd("SET").arg(&key).arg("theirs").arg("NX").arg("PX").arg(60_000)).await?;
        assert!(mutex.try_lock().await?.is_none());
        store.query::<()>(redis::cmd("DEL").arg(&key)).await?;
        let guard = must(mutex.try_lock().await).await?;
        let taken: Option<String> = store
            .query(redis::cmd("SET").arg(&key).arg("theirs").arg("NX").arg("PX").arg(60_000)).await?;
        assert_eq!(taken, None);
        assert_eq!(guard.release().await?, Released::Released);
        Ok(())
    }

    async fn a_fence_counter_that_was_lost_does_not_make_tokens_fall(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mutex = Mutex::builder(&store, backend.namespace(), "m").build()?;
        let counter = format!("{}:mutex:{{m}}:fence", backend.namespace());
        let mut last = None;
        for round in 0..6 {
            let guard = must(mutex.try_lock().await).await?;
            assert!(Some(guard.fence()) > last);
            last = Some(guard.fence());
            guard.release().await?;
            match round % 3 {
                0 => store.query::<()>(redis::cmd("DEL").arg(&counter)).await?,
                // A counter that is ahead of the clock goes on from where it is.
                1 => {
                    let ahead = last.map_or(0, |fence| fence.get()) + 3_000_000;
                    store.query::<()>(redis::cmd("SET").arg(&counter).arg(ahead)).await?;
                }
                _ => {
                    let kept: u64 = store.query(redis::cmd("GET").arg(&counter)).await?;
                    assert_eq!(Some(kept), last.map(|fence| fence.get()));
                    let ttl: i64 = store.query(redis::cmd("PTTL").arg(&counter)).await?;
                    assert_eq!(ttl, -1, "a token must never be issued twice");
                    break;
                }
            }
        }
        Ok(())
    }

    async fn a_key_of_another_type_is_an_error_and_stays_as_it_is(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mutex = Mutex::builder(&store, backend.namespace(), "m").build()?;
        let key = format!("{}:mutex:{{m}}", backend.namespace());
        store.query::<()>(redis::cmd("LPUSH").arg(&key).arg("x")).await?;
        let error = mutex.try_lock().await.unwrap_err();
        assert!(!error.is_config() && !error.is_unavailable(), "{error}");
        assert_eq!(error.operation(), "mutex.acquire");
        store.settle().await;
        assert_eq!(store.query::<i64>(redis::cmd("LLEN").arg(&key)).await?, 1);
        Ok(())
    }
}

matrix! {
    /// A waiter marks the token of a holder of this library, and leaves other tokens unchanged.
    async fn a_token_of_another_client_is_never_marked(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let key = format!("{}:mutex:{{m}}", backend.namespace());
        let mutex = Mutex::builder(&store, backend.namespace(), "m").build()?;
        let cheap = Mutex::builder(&store, backend.namespace(), "m").unfenced().build()?;
        let wait = Duration::from_millis(50);

        // Some begin as ours do.
        let digits = "0123456789abcdef0123456789abcde";
        let like_ours = [format!("rs-{digits}"), format!("rs-{digits}0f"), format!("rs-{digits}g")];
        let others = ["a client of another language", "rs-web-3", "rs-", "rs-web:3"].map(str::to_owned);
        for token in others.into_iter().chain(like_ours) {
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(&token).arg("PX").arg(60_000);
            store.query::<()>(&set).await?;
            assert!(mutex.lock(wait).await?.is_none() && cheap.lock(wait).await?.is_none());
            let holder: String = store.query(redis::cmd("GET").arg(&key)).await?;
            assert_eq!(holder, token);
        }

        store.query::<()>(redis::cmd("DEL").arg(&key)).await?;
        let guard = must(mutex.try_lock().await).await?;
        assert!(cheap.try_lock().await?.is_none());
        let holder: String = store.query(redis::cmd("GET").arg(&key)).await?;
        assert!(!holder.ends_with('+'), "nobody waits");
        assert!(cheap.lock(wait).await?.is_none());
        let holder: String = store.query(redis::cmd("GET").arg(&key)).await?;
        assert!(holder.ends_with('+'), "somebody waited");
        guard.release().await?;
        assert_eq!(store.query::<u64>(redis::cmd("EXISTS").arg(&key)).await?, 0);
        Ok(())
    }
}

matrix! {
    async fn the_holder_is_shown_with_its_label_and_its_waiters(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let builder = || Mutex::builder(&store, backend.namespace(), "m").ttl(FOREVER);
        let mutex = builder().label("worker-7").build()?;
        assert_eq!(mutex.holder().await?, None);
        let guard = must(mutex.try_lock().await).await?;
        let holder = must(mutex.holder().await).await?;
        assert_eq!((holder.label.as_deref(), holder.waiting), (Some("worker-7"), 0));
        assert!(holder.remaining.is_some_and(|left| left > Duration::from_secs(60)));
        let key = format!("{}:mutex:{{m}}", backend.namespace());
        let token: String = store.query(redis::cmd("GET").arg(&key)).await?;
        assert!(!format!("{holder:?}").contains(&token[..35]), "a token is a secret");

        let other = builder().unfenced().build()?;
        let waiter = tokio::spawn(async move { other.lock(FOREVER).await });
        assert!(eventually(PATIENCE, async || {
            let holder = mutex.holder().await.expect("answered").expect("held");
            holder.waiting == 1 && holder.label.as_deref() == Some("worker-7")
        }).await);
        assert!(guard.extend(FOREVER).await?.is_some());
        assert_eq!(guard.release().await?, Released::Released);
        let next = must(waiter.await?).await?;
        assert_eq!(must(mutex.holder().await).await?.label, None);
        next.release().await?;
        Ok(())
    }

    async fn a_forced_release_ends_only_the_lock_that_was_seen(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let builder = || Mutex::builder(&store, backend.namespace(), "m").ttl(FOREVER);
        let mutex = builder().label("hung").build()?;
        let hung = must(mutex.try_lock().await).await?;
        let seen = must(mutex.holder().await).await?;
        let other = builder().build()?;
        let waiter = tokio::spawn(async move { other.lock(FOREVER).await });
        assert!(eventually(PATIENCE, async || {
            mutex.holder().await.expect("answered").is_some_and(|holder| holder.waiting == 1)
        }).await);
        assert!(mutex.force_release(&seen).await?);
        let next = must(waiter.await?).await?;
        assert!(next.fence() > hung.fence());
        // The same order again must not end the lock of the next holder.
        assert!(!mutex.force_release(&seen).await?);
        assert!(mutex.try_lock().await?.is_none());
        assert_eq!(hung.extend(FOREVER).await?, None);
        assert_eq!(hung.release().await?, Released::AlreadyLost);
        assert_eq!(next.release().await?, Released::Released);
        Ok(())
    }

    async fn several_locks_are_taken_all_or_none(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mutex = |name: &str| Mutex::builder(&store, backend.namespace(), name).build();
        let (a, b, c) = (mutex("a")?, mutex("b")?, mutex("c")?);
        let held = must(b.try_lock().await).await?;
        let all = [c.clone(), a.clone(), b.clone()];
        assert!(Mutex::try_lock_all(&all).await?.is_none());
        assert!(Mutex::lock_all(&all, Duration::from_millis(50)).await?.is_none());
        // Nothing stays behind.
        for free in [&a, &c] {
            must(free.try_lock().await).await?.release().await?;
        }
        let waiter = tokio::spawn(async move { Mutex::lock_all(&all, FOREVER).await });
        held.release().await?;
        let guards = must(waiter.await?).await?;
        for taken in [&a, &b, &c] {
            assert!(taken.try_lock().await?.is_none());
        }
        assert_eq!(guards.len(), 3);
        for guard in guards {
            assert_eq!(guard.release().await?, Released::Released);
        }
        let twice = Mutex::try_lock_all(&[a.clone(), b, a]).await.unwrap_err();
        assert!(twice.is_config(), "{twice}");
        Ok(())
    }

    /// Tasks that need overlapping sets in different orders would wait for each other for ever.
    async fn overlapping_sets_of_locks_do_not_deadlock(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mut tasks = JoinSet::new();
        for at in 0..3usize {
            let names = ["a", "b", "c"];
            let mut mine = Vec::new();
            for step in 0..2 {
                let name = names[(at + step) % 3];
                mine.push(Mutex::builder(&store, backend.namespace(), name).ttl(FOREVER).build()?);
            }
            tasks.spawn(async move {
                for _ in 0..10 {
                    for guard in must(Mutex::lock_all(&mine, FOREVER).await).await? {
                        guard.release().await?;
                    }
                }
                anyhow::Ok(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        Ok(())
    }
}

/// How often the engine of a store was asked for a command.
async fn calls(store: &Store, command: &str) -> anyhow::Result<u64> {
    let stats: String = store.query(redis::cmd("INFO").arg("commandstats")).await?;
    let prefix = format!("cmdstat_{command}:calls=");
    let mut lines = stats.lines();
    let count = lines.find_map(|line| line.strip_prefix(&prefix)?.split(',').next()?.parse().ok());
    Ok(count.unwrap_or(0))
}

/// How often a release asks for the native command, and how often for a script.
async fn calls_of_a_release<F: Fencing>(
    store: &Store,
    mutex: &Mutex<F>,
) -> anyhow::Result<[u64; 2]> {
    // Scripts are known and capabilities are read.
    must(mutex.try_lock().await).await?.release().await?;
    let guard = must(mutex.try_lock().await).await?;
    let asked = async || -> anyhow::Result<[u64; 2]> {
        let native = calls(store, "delifeq").await?;
        Ok([native, calls(store, "evalsha").await?])
    };
    let before = asked().await?;
    assert_eq!(guard.release().await?, Released::Released);
    let after = asked().await?;
    must(mutex.try_lock().await).await?.release().await?;
    Ok([after[0] - before[0], after[1] - before[1]])
}

/// What is deleted by a native command on Valkey is deleted so on an engine with its commands, and by a script on one without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_valkey_releases_by_its_native_command() -> anyhow::Result<()> {
    for (url, native) in [("memory://?compat=valkey-9", 1), ("memory://", 0)] {
        let store = Store::connect(url).await?;
        let fenced = Mutex::builder(&store, "app", "m").build()?;
        let bare = Mutex::builder(&store, "app", "b").unfenced().build()?;
        let expected = [native, 1 - native];
        assert_eq!(
            calls_of_a_release(&store, &fenced).await?,
            expected,
            "{url}"
        );
        assert_eq!(calls_of_a_release(&store, &bare).await?, expected, "{url}");

        // A lock that another owner has by now is kept, as the script that is asked next says.
        let guard = must(fenced.try_lock().await).await?;
        store
            .query::<()>(redis::cmd("SET").arg("app:mutex:{m}").arg("theirs"))
            .await?;
        let before = calls(&store, "delifeq").await?;
        assert_eq!(guard.release().await?, Released::AlreadyLost);
        assert_eq!(calls(&store, "delifeq").await? - before, native, "{url}");
        assert!(exists(&store, "app:mutex:{m}").await, "{url}");
        store
            .query::<()>(redis::cmd("DEL").arg("app:mutex:{m}"))
            .await?;

        // A waiter's mark makes the native command miss; the script wakes the waiter.
        let guard = must(fenced.try_lock().await).await?;
        let waiter = tokio::spawn({
            let m = fenced.clone();
            async move { m.lock(PATIENCE).await }
        });
        let marked = eventually(PATIENCE, async || {
            let holder: redstart::Result<String> =
                store.query(redis::cmd("GET").arg("app:mutex:{m}")).await;
            holder.is_ok_and(|holder| holder.ends_with('+'))
        });
        assert!(marked.await, "a waiter leaves its mark");
        assert_eq!(guard.release().await?, Released::Released);
        must(waiter.await?).await?.release().await?;
    }
    Ok(())
}

/// The documented round trips, counted at the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trips_are_one_to_acquire_one_to_release_and_none_to_wait() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let store = Store::connect(&server.url()).await?;
        let fenced = Mutex::builder(&store, "app", "m")
            .ttl(Duration::from_secs(3600))
            .build()?;
        let bare = Mutex::builder(&store, "app", "m").unfenced().build()?;
        // Scripts are known and capabilities are read.
        must(fenced.try_lock().await).await?.release().await?;
        let guard = must(fenced.try_lock().await).await?;
        let waiter = tokio::spawn({
            let m = fenced.clone();
            async move { m.lock(PATIENCE).await }
        });
        let marked = eventually(PATIENCE, async || {
            let holder: anyhow::Result<String> = server.query(&["GET", "app:mutex:{m}"]).await;
            holder.is_ok_and(|holder| holder.ends_with('+'))
        });
        assert!(marked.await, "a waiter leaves its mark");
        guard.release().await?;
        must(waiter.await?).await?.release().await?;
        let tap = MonitorTap::start(&server).await?;
        let seen = std::cell::Cell::new(0);
        let sent = async || -> anyhow::Result<Vec<String>> {
            let all = tap.round_trips("app:mutex").await?;
            let new = all[seen.get()..].iter().map(|seen| seen.name());
            seen.set(all.len());
            // The shared connection leaves the channel when the last waiter has gone; nobody waits for that.
            Ok(new.filter(|name| name != "SUNSUBSCRIBE").collect())
        };
        let release: &[&str] = match kind {
            Kind::Redis => &["EVALSHA"],
            Kind::Valkey => &["DELIFEQ"],
        };

        must(fenced.try_lock().await).await?.release().await?;
        assert_eq!(sent().await?, [&["EVALSHA"], release].concat());
        must(bare.try_lock().await).await?.release().await?;
        assert_eq!(sent().await?, [&["SET"], release].concat());

        // A waiter asks, begins to listen, asks again, and is silent until it is woken.
        let guard = must(fenced.try_lock().await).await?;
        sent().await?;
        let waiter = tokio::spawn({
            let m = fenced.clone();
            async move { m.lock(PATIENCE).await }
        });
        let mut asked = Vec::new();
        assert!(
            eventually(PATIENCE, async || {
                asked.extend(sent().await.expect("MONITOR works"));
                asked == ["EVALSHA", "SSUBSCRIBE", "EVALSHA"]
            })
            .await,
            "{asked:?}"
        );
        tokio::time::sleep(Duration::from_millis(300)).await;
        let said = sent().await?;
        assert_eq!(said, [""; 0], "{kind:?}");
        guard.release().await?;
        let next = must(waiter.await?).await?;
        // The mark that the waiter left makes the native command miss.
        let marked: &[&str] = match kind {
            Kind::Redis => &["EVALSHA"],
            Kind::Valkey => &["DELIFEQ", "EVALSHA"],
        };
        assert_eq!(sent().await?, [marked, &["EVALSHA"]].concat());
        next.release().await?;
    }
    Ok(())
}
