use std::time::Duration;

use redstart::{
    Store,
    counting::{Counter, Keep},
    key::Keys,
};
use redstart_testkit::{Backend, Kind, Proxy, Server, matrix, scale};

matrix! {
    async fn concurrent_adds_and_takes_lose_nothing(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let counter = Counter::new(&store, backend.namespace(), "c", Keep::For(Duration::from_secs(60)))?;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let counter = counter.clone();
            tasks.spawn(async move {
                let mut taken = 0;
                for n in 0..100 {
                    counter.add("hits", 1).await?;
                    if (n + task) % 10 == 0 {
                        taken += counter.take("hits").await?;
                    }
                }
                Ok::<i64, redstart::Error>(taken)
            });
        }
        let mut taken = 0;
        while let Some(ended) = tasks.join_next().await {
            taken += ended??;
        }
        assert_eq!(taken + counter.take("hits").await?, 800);
        assert_eq!(counter.get("hits").await?, 0);
        Ok(())
    }

    async fn taking_keeps_the_lifetime_and_adding_renews_it(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let counter = Counter::new(&store, backend.namespace(), "c", Keep::For(Duration::from_secs(60)))?;
        counter.add("n", 5).await?;
        let entity = Keys::named(backend.namespace(), "counter", "c")?.entity("n")?;
        let ttl = async || store.query::<i64>(redis::cmd("PTTL").arg(entity.key())).await;
        assert!((1..=60_000).contains(&ttl().await?));
        assert_eq!(counter.take("n").await?, 5);
        assert!((1..=60_000).contains(&ttl().await?));
        if backend.is_embedded() {
            store.advance(Duration::from_secs(59))?;
            assert!(ttl().await? <= 1000);
            counter.add("n", 1).await?;
            assert!(ttl().await? > 50_000);
            store.advance(Duration::from_secs(61))?;
            assert_eq!(counter.get("n").await?, 0);
        }
        Ok(())
    }

    async fn a_batch_is_handed_out_until_it_is_acknowledged(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let counter = Counter::new(&store, backend.namespace(), "c", Keep::Forever)?;
        assert_eq!(counter.drain("n").await?, None);
        counter.add("n", 3).await?;
        let first = counter.drain("n").await?.expect("a batch");
        counter.add("n", 4).await?;
        assert_eq!(counter.drain("n").await?.as_ref(), Some(&first));
        assert!(!counter.ack("n", "another").await?);
        assert!(counter.ack("n", &first.id).await?);
        assert!(!counter.ack("n", &first.id).await?);
        let second = counter.drain("n").await?.expect("a batch");
        assert_eq!((first.count, second.count), (3, 4));
        assert_ne!(first.id, second.id);
        Ok(())
    }

    async fn bad_input_is_refused_before_the_network(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        assert!(Counter::new(&store, "a b", "c", Keep::Forever).unwrap_err().is_config());
        assert!(Counter::new(&store, "a", "c", Keep::For(Duration::ZERO)).unwrap_err().is_config());
        let counter = Counter::new(&store, backend.namespace(), "c", Keep::Forever)?;
        assert!(counter.add("", 1).await.unwrap_err().is_config());
        assert!(counter.ack("n", "").await.unwrap_err().is_config());
        counter.add("max", i64::MAX).await?;
        assert!(counter.add("max", 1).await.is_err());
        assert_eq!(counter.get("max").await?, i64::MAX);
        Ok(())
    }

    async fn counters_of_another_name_are_others(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let clicks = Counter::new(&store, backend.namespace(), "clicks", Keep::Forever)?;
        let views = Counter::new(&store, backend.namespace(), "views", Keep::Forever)?;
        clicks.add("home", 3).await?;
        assert_eq!(views.get("home").await?, 0);
        assert!(Counter::new(&store, backend.namespace(), "a:b", Keep::Forever).unwrap_err().is_config());
        Ok(())
    }

    async fn a_shorter_lifetime_does_not_cut_a_longer_one(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let open = |keep| Counter::new(&store, backend.namespace(), "c", keep);
        let (minute, hour) = (Keep::For(Duration::from_secs(60)), Keep::For(Duration::from_secs(3600)));
        let entity = Keys::named(backend.namespace(), "counter", "c")?.entity("n")?;
        let ttl = async || store.query::<i64>(redis::cmd("PTTL").arg(entity.key())).await;
        open(hour)?.add("n", 1).await?;
        open(minute)?.add("n", 1).await?;
        assert!(ttl().await? > 600_000);
        open(Keep::Forever)?.add("n", 1).await?;
        open(hour)?.add("n", 1).await?;
        assert_eq!(ttl().await?, -1);
        Ok(())
    }
}

/// The sum of what arrived and what is left is the sum of what was added, whichever replies are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_draining_under_dropped_replies_conserves_the_sum() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let direct = Store::connect(&server.url()).await?;
        let proxy = Proxy::start(&server).await?;
        let store = Store::builder(proxy.url())
            .deadline(Duration::from_millis(300))
            .connect_timeout(Duration::from_secs(10))
            .connect()
            .await?;
        let adder = Counter::new(&direct, "app", "c", Keep::Forever)?;
        let drainer = Counter::new(&store, "app", "c", Keep::Forever)?;
        let rounds = scale(20, "DRAINS");
        let (mut added, mut arrived) = (0, std::collections::HashMap::new());
        for round in 0..rounds {
            adder.add("n", round as i64 + 1).await?;
            added += round as i64 + 1;
            if round % 2 == 0 {
                proxy.drop_reply_to("{n}");
            }
            // A receiver that stores each id once, as the docs ask for.
            if let Ok(Some(batch)) = drainer.drain("n").await {
                arrived.insert(batch.id.clone(), batch.count);
                if round % 3 == 0 {
                    proxy.drop_reply_to("{n}");
                }
                let _ = drainer.ack("n", &batch.id).await;
            }
            proxy.pass().await;
        }
        for _ in 0..2 {
            if let Some(batch) = adder.drain("n").await? {
                adder.ack("n", &batch.id).await?;
                arrived.insert(batch.id, batch.count);
            }
        }
        assert_eq!(arrived.values().sum::<i64>(), added);
        assert_eq!(adder.get("n").await?, 0);
    }
    Ok(())
}
