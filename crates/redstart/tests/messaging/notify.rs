use std::time::Duration;

use anyhow::Result;
use redstart::{Store, messaging::NotifySet};
use redstart_testkit::{Backend, figure, matrix, scale};

use crate::queue::LONG;

matrix! {
    async fn no_wake_up_is_lost(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let set = NotifySet::new(&store, backend.namespace(), "s")?;
        let rounds = scale(300, "notify rounds");
        let (heard, mut ear) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..2 {
            let (set, heard) = (set.clone(), heard.clone());
            tasks.spawn(async move {
                let mut consumer = set.consumer();
                // The wait is longer than the test: a lost wake-up is a hang, not a delay.
                while let Ok(taken) = consumer.take(10, LONG * 20).await {
                    for member in taken {
                        if heard.send(member).is_err() { return; }
                    }
                }
            });
        }
        for round in 0..rounds {
            // Each round begins with consumers that have just seen the empty set, or are about to.
            set.add(&[format!("{round}")]).await?;
            let member = tokio::time::timeout(LONG, ear.recv()).await;
            assert_eq!(member.ok().flatten(), Some(round.to_string()), "round {round}");
        }
        tasks.shutdown().await;
        figure(format!("{}: {rounds} rounds, no wake-up lost", backend.test()));
        Ok(())
    }

    async fn a_cancelled_waiter_does_not_take_the_sign(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let set = NotifySet::new(&store, backend.namespace(), "s")?;
        for round in 0..scale(30, "notify cancels") {
            let mut first = set.consumer();
            let second = { let set = set.clone(); tokio::spawn(async move { set.consumer().take(1, LONG).await }) };
            let adding = { let set = set.clone(); tokio::spawn(async move { set.add(&["x"]).await }) };
            // Dropped at a different point each time.
            let _ = tokio::time::timeout(Duration::from_micros(200 * round), first.take(1, LONG)).await;
            adding.await??;
            // Either the dropped one took the member, or the second one gets it.
            set.add(&["y"]).await?;
            assert!(!second.await??.is_empty(), "round {round}");
            while !set.consumer().take(10, Duration::from_millis(1)).await?.is_empty() {}
        }
        Ok(())
    }

    async fn equal_notices_become_one_and_bad_input_is_refused(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let set = NotifySet::new(&store, backend.namespace(), "s")?;
        let many: Vec<String> = (0..9000).map(|n| (n % 4500).to_string()).collect();
        assert_eq!(set.add(&many).await?, 4500);
        let mut consumer = set.consumer();
        let mut taken = 0;
        loop {
            let some = consumer.take(4000, Duration::from_millis(1)).await?;
            if some.is_empty() { break; }
            taken += some.len();
        }
        assert_eq!(taken, 4500);
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?, Vec::<String>::new());
        assert!(consumer.take(0, LONG).await.unwrap_err().is_config());
        assert!(consumer.take(5000, LONG).await.unwrap_err().is_config());
        assert!(NotifySet::new(&store, "", "s").unwrap_err().is_config());
        Ok(())
    }
}
