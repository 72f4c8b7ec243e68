use std::time::Duration;

use anyhow::{Result, ensure};
use redstart::{
    Store,
    messaging::{PriorityQueue, Settled},
};
use redstart_testkit::{Backend, Kind, Server, eventually, matrix};

use crate::queue::LONG;

matrix! {
    async fn the_lowest_number_comes_first_and_the_oldest_among_equals(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = PriorityQueue::<u32>::new(&store, backend.namespace(), "p")?;
        for (n, priority) in [(1, 5), (2, -3), (3, 5), (4, 0), (5, i32::MIN), (6, i32::MAX)] {
            queue.push(&n, priority).await?;
        }
        let mut order = Vec::new();
        let mut consumer = queue.consumer(LONG).await?;
        for turn in 0..6 {
            if turn % 2 == 0 {
                order.extend(queue.pop(LONG).await?);
            } else if let Some(reserved) = consumer.reserve(LONG).await? {
                order.push(*reserved.item());
                assert_eq!(reserved.done().await?, Settled::Done);
            }
        }
        assert_eq!(order, [5, 2, 4, 1, 3, 6]);
        assert!(queue.pop(Duration::from_millis(1)).await?.is_none());
        // Waiting is by message.
        let waiting = tokio::spawn(async move { consumer.reserve(LONG).await.map(|r| r.map(|r| *r.item())) });
        queue.push(&7, 1).await?;
        assert_eq!(waiting.await??, Some(7));
        Ok(())
    }

    async fn a_reservation_that_runs_out_goes_back_to_its_place(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = PriorityQueue::<u32>::new(&store, backend.namespace(), "p")?;
        let lease = if backend.is_embedded() { Duration::from_secs(60) } else { Duration::from_millis(300) };
        queue.push(&1, -5).await?;
        queue.push(&2, 5).await?;
        let mut consumer = queue.consumer(lease).await?;
        let crashed = consumer.reserve(LONG).await?.unwrap();
        let kept = consumer.reserve(LONG).await?.unwrap();
        assert_eq!((*crashed.item(), *kept.item()), (1, 2));
        assert_eq!(kept.give_back().await?, Settled::Done);
        if backend.is_embedded() { store.advance(lease)?; }
        ensure!(eventually(LONG, async || {
            // Every look puts back what has run out.
            match consumer.reserve(Duration::from_millis(1)).await {
                Ok(Some(reserved)) if *reserved.item() == 1 => reserved.done().await.is_ok_and(|settled| settled == Settled::Done),
                Ok(Some(reserved)) => { let _ = reserved.give_back().await; false }
                _ => false,
            }
        }).await);
        assert_eq!(crashed.done().await?, Settled::Lost, "it went to another");
        assert_eq!(queue.pop(LONG).await?, Some(2));
        assert_eq!(queue.waiting().await?, 0);
        // An item that is not a number is reported and removed.
        PriorityQueue::<String>::new(&store, backend.namespace(), "p")?.push(&"x".into(), 0).await?;
        assert!(consumer.reserve(LONG).await.unwrap_err().is_codec());
        assert!(consumer.reserve(Duration::from_millis(1)).await?.is_none());
        assert!(queue.consumer(Duration::ZERO).await.unwrap_err().is_config());
        Ok(())
    }

    async fn an_item_whose_consumer_died_is_popped_by_another_process(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = PriorityQueue::<u32>::new(&store, backend.namespace(), "p")?;
        let lease = if backend.is_embedded() { Duration::from_secs(60) } else { Duration::from_millis(300) };
        queue.push(&1, 5).await?;
        queue.push(&2, 0).await?;
        let mut consumer = queue.consumer(lease).await?;
        for _ in 0..2 {
            drop(consumer.reserve(LONG).await?.unwrap());
        }
        drop(consumer);
        let other = PriorityQueue::<u32>::new(&Store::connect(backend.url()).await?, backend.namespace(), "p")?;
        // The embedded store's data belong to its connection.
        let other = if backend.is_embedded() { queue.clone() } else { other };
        let waiting = tokio::spawn(async move { (other.pop(LONG).await, other.pop(LONG).await) });
        if backend.is_embedded() {
            // It waits already, more often than not.
            tokio::time::sleep(Duration::from_millis(20)).await;
            store.advance(lease)?;
        }
        let (first, second) = waiting.await?;
        assert_eq!((first?, second?), (Some(2), Some(1)), "in order of their priorities");
        assert_eq!(queue.pop(Duration::from_millis(1)).await?, None);
        Ok(())
    }

    async fn a_late_reservation_neither_gives_back_nor_finishes_what_another_has(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = PriorityQueue::<u32>::new(&store, backend.namespace(), "p")?;
        let lease = if backend.is_embedded() { Duration::from_secs(60) } else { Duration::from_millis(200) };
        queue.push(&1, 0).await?;
        let mut first = queue.consumer(lease).await?;
        let late = first.reserve(LONG).await?.unwrap();
        let also_late = {
            if backend.is_embedded() { store.advance(lease)?; }
            first.reserve(LONG).await?.unwrap()
        };
        if backend.is_embedded() { store.advance(lease)?; }
        let mut second = queue.consumer(LONG).await?;
        let held = second.reserve(LONG).await?.unwrap();
        assert_eq!(late.give_back().await?, Settled::Lost);
        assert_eq!(also_late.done().await?, Settled::Lost);
        assert!(second.reserve(Duration::from_millis(1)).await?.is_none(), "one consumer has it");
        assert_eq!(held.done().await?, Settled::Done);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pops_share_their_connections() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let queue = PriorityQueue::<u32>::new(&store, "pop", "p")?;
    queue.push(&0, 0).await?;
    assert_eq!(queue.pop(LONG).await?, Some(0));
    // The first that waits opens a connection.
    assert_eq!(queue.pop(Duration::from_millis(300)).await?, None);
    let connections = async || -> Result<u64> {
        let info: String = store.query(redis::cmd("INFO").arg("stats")).await?;
        let count = info
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        Ok(count.unwrap_or_default().trim().parse()?)
    };
    let before = connections().await?;
    for n in 0..20 {
        queue.push(&n, 0).await?;
        assert_eq!(queue.clone().pop(LONG).await?, Some(n));
        assert_eq!(queue.pop(Duration::from_millis(1)).await?, None);
    }
    assert_eq!(connections().await?, before);
    Ok(())
}
