//! Several processes on one limit.

use redstart::Store;
use redstart_testkit::{Backend, Child, child, figure, matrix, scale};

use crate::{LONG, Way};

matrix! {
    processes:
    async fn many_clients_in_four_processes_never_exceed_the_limit(backend: &Backend) -> anyhow::Result<()> {
        let clients = scale(50, "LIMITER_CLIENTS");
        let limit = scale(200, "LIMITER_LIMIT");
        if child::role().is_some() {
            let store = Store::connect(backend.url()).await?;
            child::say("ready");
            child::hear();
            child::say(storm(&store, backend.namespace(), clients, limit).await?);
            return Ok(());
        }
        let mut children = Vec::new();
        for _ in 0..4 {
            children.push(Child::of(backend.test()).namespace(backend.namespace()).spawn()?);
        }
        for child in &mut children {
            assert_eq!(child.line().await?, "ready");
        }
        for child in &mut children {
            child.tell("go")?;
        }
        let mut sum = vec![0; Way::ALL.len()];
        for child in &mut children {
            let line = child.line().await?;
            add(&mut sum, &line);
        }
        assert_eq!(sum, vec![limit; Way::ALL.len()], "{:?}", Way::ALL);
        figure(format!("{}: {} clients in 4 processes took {sum:?} of {limit}", backend.test(), clients * 4));
        Ok(())
    }
}

fn add(sum: &mut [u64], counts: &str) {
    for (sum, count) in sum.iter_mut().zip(counts.split(' ')) {
        *sum += count.parse::<u64>().expect("a count");
    }
}

/// Every client asks until it has been refused a few times; what was admitted, for each way.
async fn storm(store: &Store, namespace: &str, clients: u64, limit: u64) -> anyhow::Result<String> {
    let mut counts = Vec::new();
    for way in Way::ALL {
        let limiter = way.limiter(store, namespace, limit, LONG).build()?;
        let clients = (0..clients).map(|client| {
            let limiter = limiter.clone();
            async move {
                let (mut admitted, mut refused) = (0, 0);
                while refused < 2 {
                    let cost = if refused == 0 { client % 3 + 1 } else { 1 };
                    if limiter.check("shared", cost).await?.is_allowed() {
                        admitted += cost;
                    } else {
                        refused += 1;
                    }
                }
                Ok::<_, redstart::Error>(admitted)
            }
        });
        let admitted = futures_util::future::try_join_all(clients).await?;
        counts.push(admitted.iter().sum::<u64>().to_string());
    }
    Ok(counts.join(" "))
}
