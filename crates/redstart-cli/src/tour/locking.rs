//! Locks of all kinds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU32, Ordering},
    },
    time::Duration,
};

use redstart::{
    Store,
    locking::{
        FairMutex, Leader, LegacyLock, Mutex, Redlock, RwLock, Semaphore,
        fence::{FencedStore, Write},
        legacy::LegacyState,
    },
};
use tokio::time::sleep;

use super::{Family, Stage, Step};

pub(crate) const FAMILY: Family = Family {
    name: "locking",
    steps: &[
        Step {
            pattern: "mutex",
            run: |stage| Box::pin(mutex(stage)),
        },
        Step {
            pattern: "fencing",
            run: |stage| Box::pin(fencing(stage)),
        },
        Step {
            pattern: "redlock",
            run: |stage| Box::pin(redlock(stage)),
        },
        Step {
            pattern: "fair_lock",
            run: |stage| Box::pin(fair_lock(stage)),
        },
        Step {
            pattern: "rw_lock",
            run: |stage| Box::pin(rw_lock(stage)),
        },
        Step {
            pattern: "semaphore",
            run: |stage| Box::pin(semaphore(stage)),
        },
        Step {
            pattern: "leader",
            run: |stage| Box::pin(leader(stage)),
        },
        Step {
            pattern: "legacy_lock",
            run: |stage| Box::pin(legacy_lock(stage)),
        },
    ],
};

const WAIT: Duration = Duration::from_secs(20);

/// Counts who is inside, and the most there ever were.
#[derive(Clone, Default)]
struct Room {
    inside: Arc<AtomicI64>,
    most: Arc<AtomicI64>,
}

impl Room {
    async fn visit(&self) {
        let now = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        sleep(Duration::from_millis(1)).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> i64 {
        self.most.load(Ordering::SeqCst)
    }
}

async fn mutex(stage: &mut Stage) -> anyhow::Result<()> {
    let lock = Mutex::builder(stage.store(), stage.namespace(), "order")
        .ttl(Duration::from_secs(5))
        .build()?;
    let room = Room::default();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (lock, room) = (lock.clone(), room.clone());
        tasks.spawn(async move {
            let mut fences = Vec::new();
            for _ in 0..5 {
                let Some(guard) = lock.lock(WAIT).await? else {
                    continue;
                };
                room.visit().await;
                fences.push(guard.fence().get());
                guard.release().await?;
            }
            Ok::<_, redstart::Error>(fences)
        });
    }
    let mut fences = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        fences.extend(ended??);
    }
    stage.claim(room.most() == 1, "never two holders")?;
    stage.claim(fences.len() == 40, "everybody had their turn")?;
    fences.sort_unstable();
    fences.dedup();
    stage.claim(fences.len() == 40, "no two turns have the same fence token")?;

    let guard = lock.try_lock().await?;
    stage.claim(
        guard.is_some() && lock.try_lock().await?.is_none(),
        "a taken lock is an ordinary no",
    )?;
    drop(guard);
    stage.store().settle().await;
    stage.claim(lock.try_lock().await?.is_some(), "a dropped guard lets go")?;
    stage.did(43);
    stage.show("8 contenders took turns 40 times, woken by each other's release; never two inside");
    Ok(())
}

async fn fencing(stage: &mut Stage) -> anyhow::Result<()> {
    let lock = Mutex::builder(stage.store(), stage.namespace(), "order").build()?;
    let orders = FencedStore::new(stage.store(), stage.namespace())?;
    let Some(first) = lock.try_lock().await? else {
        anyhow::bail!("the lock is taken")
    };
    let stale = first.fence();
    first.release().await?;
    let Some(second) = lock.try_lock().await? else {
        anyhow::bail!("the lock is taken")
    };
    stage.claim(second.fence() > stale, "tokens grow")?;
    let paid = orders.set("order", "paid", second.fence()).await?;
    stage.claim(paid == Write::Done, "the holder writes")?;
    // The first holder was asleep and believes that it still has the lock.
    let late = orders.set("order", "cancelled", stale).await?;
    stage.claim(
        matches!(late, Write::Stale { .. }),
        "who lost the lock writes nothing",
    )?;
    stage.claim(
        orders.get("order").await?.as_deref() == Some(b"paid"),
        "the newer write stands",
    )?;
    second.release().await?;
    stage.did(6);
    stage.show("a holder that slept through its lease came back with an old token and was refused");
    Ok(())
}

async fn redlock(stage: &mut Stage) -> anyhow::Result<()> {
    let mut stores = Vec::new();
    for _ in 0..5 {
        stores.push(Store::connect("memory://").await?);
    }
    let lock = Redlock::builder(stores.clone(), stage.namespace(), "order")
        .ttl(Duration::from_secs(5))
        .build()?;
    let room = Room::default();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (lock, room) = (lock.clone(), room.clone());
        tasks.spawn(async move {
            let mut turns = 0;
            for _ in 0..3 {
                let Some(guard) = lock.lock(WAIT).await? else {
                    continue;
                };
                room.visit().await;
                guard.release().await?;
                turns += 1;
            }
            Ok::<_, redstart::Error>(turns)
        });
    }
    let mut turns = 0;
    while let Some(ended) = tasks.join_next().await {
        turns += ended??;
    }
    stage.claim(
        room.most() == 1 && turns == 12,
        "never two holders over five stores",
    )?;
    // Two of five forget everything, as servers that were restarted empty do.
    let guard = lock.lock(WAIT).await?;
    for store in &stores[..2] {
        store.query::<()>(&redstart::redis::cmd("FLUSHALL")).await?;
    }
    stage.claim(
        guard.is_some() && lock.try_lock().await?.is_none(),
        "three of five still hold it",
    )?;
    let even = Redlock::builder(stores[..2].to_vec(), stage.namespace(), "order").build();
    stage.claim(even.is_err(), "a quorum of two stores is refused")?;
    stage.did(14);
    stage.show(
        "five independent stores in this process: two forgot the lock and nobody else got in",
    );
    Ok(())
}

async fn fair_lock(stage: &mut Stage) -> anyhow::Result<()> {
    let till = FairMutex::builder(stage.store(), stage.namespace(), "till").build()?;
    let Some(first) = till.lock(WAIT).await? else {
        anyhow::bail!("the lock is taken")
    };
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..6 {
        let (till, order) = (till.clone(), order.clone());
        tasks.spawn(async move {
            if let Some(guard) = till.lock(WAIT).await? {
                if let Ok(mut order) = order.lock() {
                    order.push(n);
                }
                guard.release().await?;
            }
            Ok::<_, redstart::Error>(())
        });
        // Each stands in the queue before the next one comes.
        sleep(Duration::from_millis(30)).await;
    }
    first.release().await?;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let order = order.lock().map(|order| order.clone()).unwrap_or_default();
    stage.claim(
        order == [0, 1, 2, 3, 4, 5],
        "whoever came first is served first",
    )?;
    stage.did(7);
    stage.show("six waited in a queue and were served in the order in which they came");
    Ok(())
}

async fn rw_lock(stage: &mut Stage) -> anyhow::Result<()> {
    let lock = RwLock::builder(stage.store(), stage.namespace(), "catalogue").build()?;
    let (one, two) = (lock.try_read().await?, lock.try_read().await?);
    stage.claim(one.is_some() && two.is_some(), "readers share")?;
    stage.claim(
        lock.try_write().await?.is_none(),
        "a writer waits for readers",
    )?;
    for guard in [one, two].into_iter().flatten() {
        guard.release().await?;
    }
    let writer = lock.write(WAIT).await?;
    stage.claim(writer.is_some(), "then it writes")?;
    stage.claim(
        lock.try_read().await?.is_none(),
        "readers wait for a writer",
    )?;
    if let Some(writer) = writer {
        writer.release().await?;
    }
    stage.claim(lock.try_read().await?.is_some(), "and read again")?;
    stage.did(6);
    stage.show("two readers at once, a writer alone, each kept out the other");
    Ok(())
}

async fn semaphore(stage: &mut Stage) -> anyhow::Result<()> {
    let printers = Semaphore::builder(stage.store(), stage.namespace(), "printers", 3).build()?;
    let (room, served) = (Room::default(), Arc::new(AtomicU32::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let (printers, room, served) = (printers.clone(), room.clone(), served.clone());
        tasks.spawn(async move {
            if let Some(permit) = printers.acquire(WAIT).await? {
                room.visit().await;
                permit.release().await?;
                served.fetch_add(1, Ordering::SeqCst);
            }
            Ok::<_, redstart::Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    stage.claim(served.load(Ordering::SeqCst) == 12, "everybody was served")?;
    stage.claim(room.most() <= 3, "never more than three at once")?;
    stage.did(12);
    stage.show(format!(
        "12 jobs on 3 permits: at most {} at once, all served",
        room.most()
    ));
    Ok(())
}

async fn leader(stage: &mut Stage) -> anyhow::Result<()> {
    let candidate = |id: &str| {
        Leader::builder(stage.store(), stage.namespace(), "scheduler")
            .id(id)
            .build()
    };
    let (ann, bob) = (candidate("ann")?, candidate("bob")?);
    let Some(first) = ann.campaign(WAIT).await? else {
        anyhow::bail!("nobody was elected")
    };
    stage.claim(bob.try_campaign().await?.is_none(), "there is one leader")?;
    stage.claim(
        bob.leader()
            .await?
            .is_some_and(|elected| elected.id == "ann"),
        "everybody knows who",
    )?;
    let waiting = tokio::spawn(async move { bob.campaign(WAIT).await });
    sleep(Duration::from_millis(30)).await;
    let term = first.term();
    first.resign().await?;
    let Some(second) = waiting.await?? else {
        anyhow::bail!("nobody followed")
    };
    stage.claim(second.term() > term, "the next leader has a later term")?;
    second.resign().await?;
    stage.did(5);
    stage.show("ann led, bob stood by and took over when she resigned, with a later term");
    Ok(())
}

async fn legacy_lock(stage: &mut Stage) -> anyhow::Result<()> {
    let key = format!("{}:old", stage.namespace());
    let lock = LegacyLock::builder(stage.store(), &key).build()?;
    let store = stage.store().clone();
    let setnx = {
        let mut cmd = redstart::redis::cmd("SETNX");
        cmd.arg(&key).arg(4_102_444_800u64);
        cmd
    };
    store.query::<()>(&setnx).await?;
    stage.claim(
        lock.try_lock().await?.is_none(),
        "an old client's lock is honoured",
    )?;
    store
        .query::<()>(redstart::redis::cmd("DEL").arg(&key))
        .await?;
    let guard = lock.try_lock().await?;
    stage.claim(guard.is_some(), "it is taken when it is free")?;
    stage.claim(
        store.query::<i64>(&setnx).await? == 0,
        "an old client sees that it is taken",
    )?;
    stage.claim(
        matches!(lock.state().await?, LegacyState::Held(_)),
        "in a form that both understand",
    )?;
    if let Some(guard) = guard {
        guard.release().await?;
    }
    stage.did(5);
    stage.show("a SETNX client of old and this library kept each other out of one key");
    Ok(())
}
