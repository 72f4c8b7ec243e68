//! Every kind of lock: exclusive work, a holder that overran its lease, a line, readers and writers, permits, a leader.
//!
//! ```text
//! cargo run -p redstart-examples --example locks
//! cargo run -p redstart-examples --example locks redis://localhost
//! ```

use std::{num::NonZeroU32, time::Duration};

use redstart::{
    Store,
    locking::{
        FairMutex, FencedValues, FencedWrite, Leader, LockedRun, Mutex, Redlock, RwLock, Semaphore,
    },
    redis,
};

const WAIT: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = redstart_examples::store().await?;
    mutex(&store).await?;
    fencing(&store).await?;
    fair(&store).await?;
    readers_and_writers(&store).await?;
    semaphore(&store).await?;
    leader(&store).await?;
    quorum().await?;
    // Wait for the releases of dropped guards.
    store.settle().await;
    Ok(())
}

/// Ten clerks add to one sum, each by reading and writing it.
async fn mutex(store: &Store) -> anyhow::Result<()> {
    let mutex = Mutex::builder(store, "shop", "till").build()?;
    let mut clerks = tokio::task::JoinSet::new();
    store
        .query::<()>(redis::cmd("SET").arg("shop:sum").arg(0))
        .await?;
    for _ in 0..10 {
        let (mutex, store) = (mutex.clone(), store.clone());
        clerks.spawn(async move {
            mutex
                .with(WAIT, |_lease| async move {
                    let sum: i64 = store.query(redis::cmd("GET").arg("shop:sum")).await?;
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    store
                        .query::<()>(redis::cmd("SET").arg("shop:sum").arg(sum + 1))
                        .await
                })
                .await
        });
    }
    while let Some(clerk) = clerks.join_next().await {
        match clerk?? {
            LockedRun::Done(done) => done?,
            LockedRun::Busy => anyhow::bail!("the till was in use for {WAIT:?}"),
            LockedRun::Lost(_) => anyhow::bail!("the lock was lost during the work"),
        }
    }
    let sum: i64 = store.query(redis::cmd("GET").arg("shop:sum")).await?;
    println!("mutex      ten clerks added one each: {sum}");
    Ok(())
}

/// A holder writes after its lease has ended.
async fn fencing(store: &Store) -> anyhow::Result<()> {
    let mutex = Mutex::builder(store, "shop", "order:5001")
        .ttl(Duration::from_millis(100))
        .without_renewal()
        .build()?;
    let orders = FencedValues::new(store, "shop", "orders")?;
    let Some(sleeper) = mutex.lock(WAIT).await? else {
        anyhow::bail!("the order is locked")
    };
    // Its lease ends here, and it is told; suppose that it ignores that.
    sleeper.lost().await;
    let Some(next) = mutex.lock(WAIT).await? else {
        anyhow::bail!("the order is locked")
    };
    anyhow::ensure!(orders.set("order:5001", "shipped", next.fence()).await? == FencedWrite::Done);
    let late = orders
        .set("order:5001", "cancelled", sleeper.fence())
        .await?;
    println!(
        "fencing    token {} after {}: {late:?}",
        sleeper.fence(),
        next.fence()
    );
    anyhow::ensure!(matches!(late, FencedWrite::Stale { .. }));
    Ok(())
}

/// First come, first served, across processes.
async fn fair(store: &Store) -> anyhow::Result<()> {
    let desk = FairMutex::builder(store, "shop", "desk").build()?;
    let Some(open) = desk.lock(WAIT).await? else {
        anyhow::bail!("the desk is closed")
    };
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for name in ["ada", "bob", "cay"] {
        let (desk, served) = (desk.clone(), served.clone());
        tokio::spawn(async move {
            if let Ok(Some(guard)) = desk.lock(WAIT).await {
                let _ = served.send(name);
                let _ = guard.release().await;
            }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(served);
    open.release().await?;
    let mut names = Vec::new();
    while let Some(name) = order.recv().await {
        names.push(name);
    }
    println!("fair       in order of arrival: {}", names.join(", "));
    Ok(())
}

/// A waiting writer goes before readers that arrive later.
async fn readers_and_writers(store: &Store) -> anyhow::Result<()> {
    let catalogue = RwLock::builder(store, "shop", "catalogue").build()?;
    let one = catalogue.read(WAIT).await?;
    let two = catalogue.read(WAIT).await?;
    let writer = tokio::spawn({
        let catalogue = catalogue.clone();
        async move { catalogue.write(WAIT).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let late = catalogue.try_read().await?.is_some();
    drop((one, two));
    let writer = writer.await??;
    println!(
        "rw         reader admitted while a writer waits: {late}; writer admitted after the readers: {}",
        writer.is_some()
    );
    Ok(())
}

/// Two printers and three documents.
async fn semaphore(store: &Store) -> anyhow::Result<()> {
    const PRINTERS: NonZeroU32 = NonZeroU32::new(2).unwrap();
    let printers = Semaphore::new(store, "shop", "printers", PRINTERS)?;
    let one = printers.try_acquire().await?;
    let two = printers.try_acquire().await?;
    let three = printers.try_acquire().await?;
    println!(
        "semaphore  first {}, second {}, third {}",
        one.is_some(),
        two.is_some(),
        three.is_some()
    );
    Ok(())
}

/// One node leads; when it resigns the next one does, in a higher term.
async fn leader(store: &Store) -> anyhow::Result<()> {
    let one = Leader::builder(store, "shop", "scheduler")
        .id("node-1")
        .build()?;
    let two = Leader::builder(store, "shop", "scheduler")
        .id("node-2")
        .build()?;
    let mut observer = two.observe();
    let Some(first) = one.campaign(WAIT).await? else {
        anyhow::bail!("another node leads")
    };
    println!("leader     {:?}", observer.next().await?);
    let next = tokio::spawn(async move { two.campaign(WAIT).await });
    first.resign().await?;
    let Some(second) = next.await?? else {
        anyhow::bail!("nobody was elected")
    };
    loop {
        // Between the two there may have been no leader.
        if let Some(elected) = observer.next().await? {
            println!("leader     {elected:?}");
            break;
        }
    }
    second.resign().await?;
    Ok(())
}

/// Three engines take the place of three independent servers.
async fn quorum() -> anyhow::Result<()> {
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(Store::connect("memory://").await?);
    }
    let lock = Redlock::builder(stores, "shop", "order:5001").build()?;
    let Some(guard) = lock.try_lock().await? else {
        anyhow::bail!("it is held")
    };
    let second = lock.try_lock().await?.is_some();
    println!(
        "redlock    token {}; a second holder: {second}",
        guard.fence()
    );
    guard.release().await?;
    Ok(())
}
