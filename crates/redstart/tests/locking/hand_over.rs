//! A held lock given from process to process.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use redstart::locking::{
    FairMutex, FencedValues, FencedWrite, HandOver, Leader, LegacyLock, LockHolder, Mutex, Redlock,
    Released, RwLock, Semaphore, ServerHolder, Ticket,
};
use redstart_testkit::{Backend, Child, Kind, Proxy, Server, child, eventually, matrix};

use crate::{FOREVER, PATIENCE, connect, exists, permits, polled};

const LONG: Duration = Duration::from_secs(600);

/// The text on its way to another process.
fn sent(given: Option<HandOver>) -> anyhow::Result<HandOver> {
    Ok(given.context("it was lost")?.expose().parse()?)
}

matrix! {
    async fn a_lock_that_is_handed_over_is_redeemed_once_with_a_higher_fence(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let mutex = Mutex::builder(&store, namespace, "m").ttl(FOREVER).build()?;
        let guard = mutex.try_lock().await?.context("not granted")?;
        let (fence, lease) = (guard.fence(), guard.lease());
        // A waiter marks the lock; the mark has to survive.
        let other = Mutex::builder(&store, namespace, "m").build()?;
        let waiting = tokio::spawn(async move { other.lock(FOREVER).await });
        assert!(eventually(PATIENCE, async || {
            matches!(mutex.holder().await, Ok(Some(holder)) if holder.waiting > 0)
        }).await);
        let given = sent(guard.hand_over(LONG).await?)?;
        assert!(!lease.is_valid(), "the giver has no lease any more");
        store.settle().await;
        assert!(mutex.try_lock().await?.is_none(), "it is never free in between");
        let elsewhere = Mutex::builder(&store, namespace, "m").label("second").build()?;
        let taken = elsewhere.redeem(&given).await?.context("not redeemed")?;
        let second = taken.fence();
        assert!(second > fence, "what the giver still sends is older");
        assert!(elsewhere.redeem(&given).await?.is_none(), "it is redeemed once");
        let holder = elsewhere.holder().await?.context("it is held")?;
        assert_eq!(holder.label.as_deref(), Some("second"));
        assert!(holder.remaining > Some(Duration::from_secs(60)), "a lease is never shortened");
        // What the giver had is of no use any more.
        let token = given.expose().splitn(3, '-').nth(2).context("a token")?.to_owned();
        let old: Ticket = token.parse()?;
        assert!(!mutex.extend_held(&old, LONG).await?);
        assert_eq!(mutex.release_held(&old).await?, Released::AlreadyLost);
        assert!(taken.extend(LONG).await?.is_some());
        assert!(!waiting.is_finished());
        assert_eq!(taken.release().await?, Released::Released);
        let next = waiting.await??.context("a release wakes the waiter")?;
        assert!(next.fence() > second);
        next.release().await?;
        Ok(())
    }

    async fn a_write_that_the_giver_sent_arrives_too_late(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let mutex = Mutex::builder(&store, namespace, "m").build()?;
        let values = FencedValues::new(&store, namespace, "values")?;
        let guard = mutex.try_lock().await?.context("not granted")?;
        let old = guard.fence();
        assert_eq!(values.set("x", "by the giver", old).await?, FencedWrite::Done);
        let taken = mutex.redeem(&sent(guard.hand_over(LONG).await?)?).await?.context("not redeemed")?;
        assert_eq!(values.set("x", "by the taker", taken.fence()).await?, FencedWrite::Done);
        let late = values.set("x", "by the giver, late", old).await?;
        assert_eq!(late, FencedWrite::Stale { highest: taken.fence() });
        assert_eq!(taken.release().await?, Released::Released);
        Ok(())
    }

    async fn every_kind_of_lock_is_handed_over(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let fair = FairMutex::builder(&store, namespace, "f").build()?;
        let guard = fair.try_lock().await?.context("not granted")?;
        let fence = guard.fence();
        let given = sent(guard.hand_over(LONG).await?)?;
        let taken = fair.redeem(&given).await?.context("not redeemed")?;
        assert!(taken.fence() > fence && fair.redeem(&given).await?.is_none());
        assert_eq!(taken.release().await?, Released::Released);

        let semaphore = Semaphore::builder(&store, namespace, "s", permits(1)).build()?;
        let guard = semaphore.try_acquire().await?.context("not granted")?;
        let given = sent(guard.hand_over(LONG).await?)?;
        assert!(semaphore.try_acquire().await?.is_none());
        let taken = semaphore.redeem(&given).await?.context("not redeemed")?;
        assert!(semaphore.redeem(&given).await?.is_none());
        assert_eq!(semaphore.holders().await?.count, 1);
        assert!(taken.extend(LONG).await?.is_some());
        assert_eq!(taken.release().await?, Released::Released);

        let rw = RwLock::builder(&store, namespace, "rw").build()?;
        let (one, two) = (rw.try_read().await?.context("not granted")?, rw.try_read().await?.context("not granted")?);
        let given = sent(one.hand_over(LONG).await?)?;
        two.release().await?;
        assert!(rw.try_write().await?.is_none());
        let taken = rw.redeem_read(&given).await?.context("not redeemed")?;
        assert!(rw.redeem_read(&given).await?.is_none());
        assert_eq!(taken.release().await?, Released::Released);
        let writer = rw.try_write().await?.context("not granted")?;
        let fence = writer.fence();
        let given = sent(writer.hand_over(LONG).await?)?;
        assert!(rw.redeem_read(&given).await?.is_none(), "a writer is no reader");
        let taken = rw.redeem_write(&given).await?.context("not redeemed")?;
        assert!(taken.fence() > fence && rw.redeem_write(&given).await?.is_none());
        assert_eq!(taken.release().await?, Released::Released);

        let first = Leader::builder(&store, namespace, "l").id("first").build()?;
        let second = Leader::builder(&store, namespace, "l").id("second").build()?;
        let leading = first.try_campaign().await?.context("not elected")?;
        let (term, mut observer) = (leading.term(), second.observe());
        assert_eq!(observer.next().await?.context("a leader")?.id, "first");
        let given = sent(leading.hand_over(LONG).await?)?;
        let leading = second.redeem(&given).await?.context("not redeemed")?;
        assert_eq!(observer.next().await?.context("a leader")?.id, "second");
        assert!(leading.term() > term && first.redeem(&given).await?.is_none());
        assert_eq!(second.leader().await?.context("a leader")?.term, leading.term());
        assert_eq!(leading.resign().await?, Released::Released);

        let legacy = LegacyLock::builder(&store, namespace, "old").build()?;
        let guard = legacy.try_lock().await?.context("not granted")?;
        let fence = guard.fence();
        let given = sent(guard.hand_over(LONG).await?)?;
        assert!(legacy.try_lock().await?.is_none());
        let taken = legacy.redeem(&given).await?.context("not redeemed")?;
        assert!(taken.fence() > fence && legacy.redeem(&given).await?.is_none());
        assert!(taken.extend(LONG).await?.is_some());
        assert_eq!(taken.release().await?, Released::Released);
        assert!(legacy.redeem(&given).await?.is_none(), "a free lock is not redeemed");
        Ok(())
    }

    async fn of_many_who_redeem_at_once_one_gets_the_lock(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let mutex = Mutex::builder(&store, namespace, "m").build()?;
        for _ in 0..5 {
            let guard = mutex.lock(PATIENCE).await?.context("not granted")?;
            let text = guard.hand_over(LONG).await?.context("it was lost")?.expose();
            let mut all = tokio::task::JoinSet::new();
            for _ in 0..16 {
                let (mutex, text) = (mutex.clone(), text.clone());
                all.spawn(async move { mutex.redeem(&text.parse()?).await });
            }
            let mut taken = Vec::new();
            for redeemed in all.join_all().await {
                taken.extend(redeemed?);
            }
            assert_eq!(taken.len(), 1);
            for guard in taken {
                assert_eq!(guard.release().await?, Released::Released);
            }
        }
        Ok(())
    }

    async fn a_lock_that_nobody_redeems_is_free_when_its_lease_ends(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let mutex = Mutex::builder(&store, namespace, "m").ttl(Duration::from_millis(300)).build()?;
        // A machine that stood still for a lease has lost the lock.
        let given = loop {
            let guard = mutex.lock(PATIENCE).await?.context("not granted")?;
            if let Some(given) = guard.hand_over(Duration::from_millis(300)).await? {
                break sent(Some(given))?;
            }
        };
        let next = mutex.lock(PATIENCE).await?.context("nothing renews it")?;
        assert!(mutex.redeem(&given).await?.is_none());
        assert_eq!(next.release().await?, Released::Released);
        assert!(mutex.redeem(&given).await?.is_none(), "a free lock is not redeemed");
        Ok(())
    }

    async fn a_redemption_dropped_at_any_await_loses_no_lock(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let mutex = Mutex::builder(&store, namespace, "m").ttl(FOREVER).build()?;
        for times in 0..200 {
            let guard = mutex.try_lock().await?.context("something was left behind")?;
            let given = sent(guard.hand_over(FOREVER).await?)?;
            let ended = polled(mutex.redeem(&given), times).await;
            let done = ended.is_some();
            drop(ended);
            store.settle().await;
            // Either it was not redeemed, or what was is released.
            if let Some(guard) = mutex.redeem(&given).await? {
                assert!(!done, "it was redeemed twice");
                guard.release().await?;
            }
            // A request under way may arrive after the release that was to undo it.
            store.settle().await;
            if done {
                return Ok(());
            }
        }
        anyhow::bail!("it does not end in 200 polls")
    }

    async fn a_fence_that_is_missing_is_not_made_up(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let fenced = Mutex::builder(&store, namespace, "m").build()?;
        let bare = Mutex::builder(&store, namespace, "m").unfenced().build()?;
        let given = sent(bare.try_lock().await?.context("not granted")?.hand_over(LONG).await?)?;
        assert!(fenced.redeem(&given).await.unwrap_err().is_config());
        let guard = bare.redeem(&given).await?.context("a refusal changes nothing")?;
        assert_eq!(guard.release().await?, Released::Released);
        Ok(())
    }

    async fn what_cannot_be_handed_over_is_released(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let mutex = Mutex::builder(&store, namespace, "m").build()?;
        let guard = mutex.try_lock().await?.context("not granted")?;
        assert!(guard.hand_over(Duration::ZERO).await.unwrap_err().is_config());
        let mut servers = Vec::new();
        for _ in 0..3 {
            servers.push(redstart::Store::connect("memory://").await?);
        }
        let quorum = Redlock::builder(servers.clone(), namespace, "q").build()?;
        let guard = quorum.try_lock().await?.context("not granted")?;
        assert!(guard.hand_over(LONG).await.unwrap_err().is_config(), "longer than its longest lease");
        store.settle().await;
        for server in &servers {
            server.settle().await;
        }
        assert!(mutex.try_lock().await?.is_some());
        assert!(quorum.try_lock().await?.is_some());
        store.settle().await;
        Ok(())
    }
}

matrix! {
    processes:
    async fn a_lock_goes_from_a_process_that_dies_to_another_without_being_free(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let mutex = Mutex::builder(&store, namespace, "m").ttl(Duration::from_secs(30)).build()?;
        if child::role().is_some() {
            let text = tokio::task::spawn_blocking(child::hear).await?.context("the parent is gone")?;
            let guard = mutex.redeem(&text.parse()?).await?.context("not redeemed")?;
            child::say(guard.fence());
            child::say(guard.hand_over(LONG).await?.context("it was lost")?.expose());
            let _ = tokio::task::spawn_blocking(child::hear).await?;
            return Ok(());
        }
        let guard = mutex.try_lock().await?.context("not granted")?;
        let mut fence = guard.fence().get();
        let mut text = guard.hand_over(LONG).await?.context("it was lost")?.expose();
        let rival = Mutex::builder(&store, namespace, "m").build()?;
        let waiting = tokio::spawn(async move { rival.lock(FOREVER).await });
        for _ in 0..2 {
            let mut process = Child::of(backend.test()).namespace(namespace).spawn()?;
            process.tell(&text)?;
            let next = process.line().await?.parse()?;
            ensure!(next > fence, "{next} came after {fence}");
            fence = next;
            text = process.line().await?;
            process.kill9();
        }
        ensure!(!waiting.is_finished(), "it was free in between");
        let guard = mutex.redeem(&text.parse()?).await?.context("not redeemed")?;
        ensure!(guard.fence().get() > fence);
        guard.release().await?;
        waiting.await??.context("not granted")?.release().await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_redemption_whose_reply_was_lost_is_asked_for_again() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let proxy = Proxy::start(&server).await?;
        let store = redstart::Store::builder(proxy.url())
            .deadline(Duration::from_secs(10))
            .connect()
            .await?;
        let mutex = Mutex::builder(&store, "app", "m").build()?;
        for round in 0..2 {
            let guard = mutex.lock(PATIENCE).await?.context("not granted")?;
            let given = sent(guard.hand_over(LONG).await?)?;
            if round == 1 {
                // The first round has made the script known.
                proxy.drop_reply_to("EVALSHA");
            }
            let guard = mutex.redeem(&given).await?.context("it is ours")?;
            assert_eq!(proxy.stats().sprung, round);
            let issued: u64 = server.query(&["GET", "app:mutex:{m}:fence"]).await?;
            assert_eq!(guard.fence().get(), issued, "asked twice, it has one token");
            assert_eq!(guard.release().await?, Released::Released);
        }
        assert!(!exists(&store, "app:mutex:{m}").await);
    }
    Ok(())
}

/// The redemption is lost with the old master, the hand-over is not: the text is good once more. That two guards are valid
/// then is the limit of every lock on replicated servers; the second has the higher token, and the first is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_failover_that_loses_a_redemption_gives_the_second_taker_a_higher_token()
-> anyhow::Result<()> {
    let master = Server::builder(Kind::Redis).start().await?;
    let replica = Server::builder(Kind::Redis).start().await?;
    let port = master.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).await?;
    let proxy = Proxy::start(&master).await?;
    let store = redstart::Store::builder(proxy.url())
        .deadline(Duration::from_secs(10))
        .connect()
        .await?;
    let mutex = Mutex::builder(&store, "app", "m").ttl(FOREVER).build()?;
    let guard = mutex.try_lock().await?.context("not granted")?;
    let (old, given) = (guard.fence(), sent(guard.hand_over(FOREVER).await?)?);
    let token = async |server: &Server| server.query::<String>(&["GET", "app:mutex:{m}"]).await;
    let before = token(&master).await?;
    ensure!(
        eventually(PATIENCE, async || {
            token(&replica).await.is_ok_and(|token| token == before)
        })
        .await
    );
    // From here on nothing is replicated.
    replica.command(&["REPLICAOF", "NO", "ONE"]).await?;
    let first = mutex.redeem(&given).await?.context("not redeemed")?;
    proxy.set_upstream(&format!("127.0.0.1:{}", replica.port()));
    proxy.cut().await?;
    proxy.pass().await;
    let second = {
        let again = async || mutex.redeem(&given).await.ok().flatten();
        redstart_testkit::wait_until("a redemption on the new master", PATIENCE, again).await?
    };
    ensure!(second.fence() > first.fence() && first.fence() > old);
    assert_eq!(first.extend(LONG).await?, None, "the first is told");
    assert_eq!(first.release().await?, Released::AlreadyLost);
    assert_eq!(second.release().await?, Released::Released);
    Ok(())
}

/// Servers of a quorum lock without a network between them and the test.
async fn engines(n: usize) -> anyhow::Result<Vec<redstart::Store>> {
    let mut stores = Vec::new();
    for _ in 0..n {
        stores.push(redstart::Store::connect("memory://").await?);
    }
    Ok(stores)
}

async fn settle(stores: &[redstart::Store]) {
    for store in stores {
        store.settle().await;
    }
}

fn quorum(stores: &[redstart::Store]) -> redstart::Result<Redlock> {
    Redlock::builder(stores.to_vec(), "app", "q")
        .ttl(LONG)
        .longest_lease(FOREVER)
        .server_timeout(PATIENCE)
        .build()
}

#[tokio::test]
async fn a_quorum_lock_is_handed_over_once_and_is_never_free_in_between() -> anyhow::Result<()> {
    let stores = engines(5).await?;
    let lock = quorum(&stores)?;
    let guard = lock.try_lock().await?.context("not granted")?;
    let (old, lease) = (guard.fence(), guard.lease());
    let given = sent(guard.hand_over(LONG).await?)?;
    ensure!(!lease.is_valid(), "the giver has no lease any more");
    settle(&stores).await;
    ensure!(
        lock.try_lock().await?.is_none(),
        "it is never free in between"
    );
    settle(&stores).await;
    let taken = lock.redeem(&given).await?.context("not redeemed")?;
    let second = taken.fence();
    ensure!(second > old);
    for _ in 0..3 {
        ensure!(lock.redeem(&given).await?.is_none(), "it is redeemed once");
        settle(&stores).await;
    }
    ensure!(taken.extend(LONG).await?.is_some());
    assert_eq!(taken.release().await?, Released::Released);
    let next = lock.try_lock().await?.context("not granted")?;
    ensure!(next.fence() > second);
    ensure!(lock.redeem(&given).await?.is_none());
    settle(&stores).await;
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_redeem_a_quorum_lock_at_once_at_most_one_gets_it() -> anyhow::Result<()> {
    let stores = engines(5).await?;
    let mut redeemed = 0;
    for _ in 0..redstart_testkit::scale(40, "QUORUM_REDEEMERS") {
        let lock = quorum(&stores)?;
        let guard = lock.lock(PATIENCE).await?.context("not granted")?;
        let text = guard
            .hand_over(LONG)
            .await?
            .context("it was lost")?
            .expose();
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..8 {
            // Their requests reach the servers in orders of their own.
            let mut shuffled = stores.clone();
            shuffled.rotate_left(rand::random_range(0..5));
            let (lock, text) = (quorum(&shuffled)?, text.clone());
            all.spawn(async move { lock.redeem(&text.parse()?).await });
        }
        let mut taken = Vec::new();
        for one in all.join_all().await {
            taken.extend(one?);
        }
        ensure!(taken.len() <= 1, "{} have it", taken.len());
        redeemed += taken.len();
        for guard in taken {
            assert_eq!(guard.release().await?, Released::Released);
        }
        settle(&stores).await;
        // Nobody has it, or it was released: what the others got is given up, so that it is free at once.
        ensure!(lock.holders().await?.is_free());
    }
    ensure!(redeemed > 0, "nobody ever got it");
    Ok(())
}

#[tokio::test]
async fn a_quorum_lock_is_redeemed_while_servers_that_have_it_are_a_quorum() -> anyhow::Result<()> {
    for (lost, redeemed) in [(2, true), (3, false)] {
        let stores = engines(5).await?;
        let lock = quorum(&stores)?;
        let guard = lock.try_lock().await?.context("not granted")?;
        let given = sent(guard.hand_over(LONG).await?)?;
        // Their clocks were set forward: the lease has ended there.
        for store in &stores[5 - lost..] {
            store.advance(FOREVER)?;
        }
        let taken = lock.redeem(&given).await?;
        assert_eq!(taken.is_some(), redeemed, "{lost} of 5 have lost it");
        drop(taken);
        settle(&stores).await;
        ensure!(lock.holders().await?.is_free(), "nothing is left behind");
    }
    Ok(())
}

#[tokio::test]
async fn a_redemption_of_a_quorum_lock_dropped_at_any_await_leaves_nothing_behind()
-> anyhow::Result<()> {
    let stores = engines(3).await?;
    let lock = quorum(&stores)?;
    for times in 0..500 {
        let guard = lock
            .try_lock()
            .await?
            .context("something was left behind")?;
        let given = sent(guard.hand_over(LONG).await?)?;
        let ended = polled(lock.redeem(&given), times).await;
        let done = ended.is_some();
        drop(ended);
        settle(&stores).await;
        // Either it was not redeemed at all, or what was is released.
        if let Some(guard) = lock.redeem(&given).await? {
            ensure!(!done, "it was redeemed twice");
            guard.release().await?;
        }
        settle(&stores).await;
        // A part that was redeemed and released makes the rest useless: it would end with its lease.
        if let Some(rest) = lock.holders().await?.servers.iter().find_map(held) {
            lock.force_release(rest).await?;
        }
        if done {
            return Ok(());
        }
    }
    anyhow::bail!("it does not end in 500 polls")
}

fn held(server: &ServerHolder) -> Option<&LockHolder> {
    match server {
        ServerHolder::Held(holder) => Some(holder),
        ServerHolder::Free | ServerHolder::Unknown => None,
    }
}
