//! Locks of all kinds.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU32, Ordering},
    },
    time::Duration,
};

use redstart::{
    Store,
    key::Layout,
    locking::{
        FairMutex, FencedValues, FencedWrite, Leader, LegacyLock, LegacyState, Mutex, Redlock,
        RwLock, Semaphore,
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

/// Counts the holders, and the most there were at a time.
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
    stage.claim(
        fences.len() == 40,
        "every contender got the lock five times",
    )?;
    fences.sort_unstable();
    fences.dedup();
    stage.claim(
        fences.len() == 40,
        "no two grants have the same fence token",
    )?;

    let guard = lock.try_lock().await?;
    stage.claim(
        guard.is_some() && lock.try_lock().await?.is_none(),
        "a held lock is `None`, not an error",
    )?;
    drop(guard);
    stage.store().settle().await;
    stage.claim(
        lock.try_lock().await?.is_some(),
        "a dropped guard releases the lock",
    )?;
    stage.did(43);
    stage.show("8 contenders held the lock 40 times, each woken by a release; never two at once");
    Ok(())
}

async fn fencing(stage: &mut Stage) -> anyhow::Result<()> {
    let lock = Mutex::builder(stage.store(), stage.namespace(), "order").build()?;
    let orders = FencedValues::new(stage.store(), stage.namespace(), "orders")?;
    let Some(first) = lock.try_lock().await? else {
        anyhow::bail!("the lock is held")
    };
    let stale = first.fence();
    first.release().await?;
    let Some(second) = lock.try_lock().await? else {
        anyhow::bail!("the lock is held")
    };
    stage.claim(second.fence() > stale, "tokens increase")?;
    let paid = orders.set("order", "paid", second.fence()).await?;
    stage.claim(paid == FencedWrite::Done, "the holder writes")?;
    // The first holder was stopped and believes that it still holds the lock.
    let late = orders.set("order", "cancelled", stale).await?;
    stage.claim(
        matches!(late, FencedWrite::Stale { .. }),
        "a write with an old token is refused",
    )?;
    stage.claim(
        orders.get("order").await?.as_deref() == Some(b"paid"),
        "the newer write is kept",
    )?;
    second.release().await?;
    stage.did(6);
    stage.show("a holder that was paused beyond its lease wrote with an old token and was refused");
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
    // Two of five lose everything, as servers do that were restarted empty.
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
        "five independent stores in this process: two lost the lock and no other client got it",
    );
    Ok(())
}

async fn fair_lock(stage: &mut Stage) -> anyhow::Result<()> {
    let till = FairMutex::builder(stage.store(), stage.namespace(), "till").build()?;
    let Some(first) = till.lock(WAIT).await? else {
        anyhow::bail!("the lock is held")
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
        // Each is in line before the next one arrives.
        sleep(Duration::from_millis(30)).await;
    }
    first.release().await?;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let order = order.lock().map(|order| order.clone()).unwrap_or_default();
    stage.claim(order == [0, 1, 2, 3, 4, 5], "first come, first served")?;
    stage.did(7);
    stage.show("six waiters got the lock in order of arrival");
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
    stage.claim(
        writer.is_some(),
        "the writer gets the lock after the readers",
    )?;
    stage.claim(
        lock.try_read().await?.is_none(),
        "readers wait for a writer",
    )?;
    if let Some(writer) = writer {
        writer.release().await?;
    }
    stage.claim(
        lock.try_read().await?.is_some(),
        "readers get the lock after the writer",
    )?;
    stage.did(6);
    stage.show("two readers at once, then one writer alone");
    Ok(())
}

async fn semaphore(stage: &mut Stage) -> anyhow::Result<()> {
    const PRINTERS: NonZeroU32 = NonZeroU32::new(3).unwrap();
    let printers =
        Semaphore::builder(stage.store(), stage.namespace(), "printers", PRINTERS).build()?;
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
    stage.claim(
        served.load(Ordering::SeqCst) == 12,
        "every job got a permit",
    )?;
    stage.claim(room.most() <= 3, "never more than three at once")?;
    stage.did(12);
    stage.show(format!(
        "12 jobs on 3 permits: at most {} at once, all done",
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
        "every candidate sees who leads",
    )?;
    let waiting = tokio::spawn(async move { bob.campaign(WAIT).await });
    sleep(Duration::from_millis(30)).await;
    let term = first.term();
    first.resign().await?;
    let Some(second) = waiting.await?? else {
        anyhow::bail!("nobody took over")
    };
    stage.claim(second.term() > term, "the next leader has a later term")?;
    second.resign().await?;
    stage.did(5);
    stage.show("ann led; bob waited and took over when she resigned, with a later term");
    Ok(())
}

async fn legacy_lock(stage: &mut Stage) -> anyhow::Result<()> {
    let key = format!("{}:old", stage.namespace());
    let lock = LegacyLock::builder(stage.store(), stage.namespace(), &key)
        .layout(Layout::new(str::to_owned))
        .build()?;
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
    stage.claim(guard.is_some(), "a free lock is granted")?;
    stage.claim(
        store.query::<i64>(&setnx).await? == 0,
        "an old client sees that it is held",
    )?;
    stage.claim(
        matches!(lock.state().await?, LegacyState::Held(_)),
        "both read the same value",
    )?;
    if let Some(guard) = guard {
        guard.release().await?;
    }
    stage.did(5);
    stage.show("an old SETNX client and this library excluded each other on one key");
    Ok(())
}
