//! Processes that die between the two sides of a follow.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::RngExt as _;
use redstart::{Store, social::Graph};
use redstart_testkit::{Backend, BackendKind, Child, child, scale};

use crate::graph::{followers, following};

const ACCOUNTS: usize = 24;

/// Follows, unfollows, blocks and unblocks at random with many callers at once, until it is killed.
async fn carry_on(graph: Graph) -> anyhow::Result<()> {
    let done = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (graph, done) = (graph.clone(), done.clone());
        tasks.spawn(async move {
            loop {
                let (a, b, what) = {
                    let mut rng = rand::rng();
                    let mut one = || rng.random_range(0..ACCOUNTS);
                    let (a, b) = (one(), one());
                    (a, b, rng.random_range(0..12))
                };
                if a == b {
                    continue;
                }
                let (a, b) = (format!("user-{a}"), format!("user-{b}"));
                // Others at the same two accounts may be quicker, again and again.
                match what {
                    0..6 => drop(graph.follow(&a, &b).await),
                    6..9 => drop(graph.unfollow(&a, &b).await),
                    9 => drop(graph.block(&a, &b).await),
                    _ => drop(graph.unblock(&a, &b).await),
                }
                if done.fetch_add(1, Ordering::Relaxed) == 300 {
                    child::say("under way");
                }
            }
        });
    }
    tasks.join_all().await;
    Ok(())
}

async fn agree(graph: &Graph) -> anyhow::Result<u64> {
    let accounts: Vec<String> = (0..ACCOUNTS).map(|n| format!("user-{n}")).collect();
    let mut follows = 0;
    let (mut forth, mut back) = (Vec::new(), Vec::new());
    for account in &accounts {
        forth.push(following(graph, account).await?);
        back.push(followers(graph, account).await?);
        let counts = graph.counts(account).await?;
        assert_eq!(
            counts.following as usize,
            forth.last().expect("just pushed").len()
        );
        assert_eq!(
            counts.followers as usize,
            back.last().expect("just pushed").len()
        );
    }
    for (i, a) in accounts.iter().enumerate() {
        for (j, b) in accounts.iter().enumerate().filter(|(j, _)| i != *j) {
            let (there, here) = (forth[i].contains(b), back[j].contains(a));
            assert_eq!(there, here, "{a} and {b} do not agree");
            follows += u64::from(there);
            if (there || forth[j].contains(a)) && graph.is_blocking(a, b).await? {
                panic!("{a} blocks {b}, and one of them follows the other");
            }
        }
    }
    Ok(follows)
}

async fn killed(backend: &Backend) -> anyhow::Result<()> {
    // A starved machine is no disagreement.
    let store = Store::builder(backend.url())
        .deadline(Duration::from_secs(20))
        .connect()
        .await?;
    let graph = Graph::builder(&store, backend.namespace(), "g")
        .shards(16)
        .build()?;
    if child::role().is_some() {
        return carry_on(graph).await;
    }
    let kills = scale(4, "GRAPH_KILLS");
    let (mut repaired, mut follows) = (0, 0);
    for _ in 0..kills {
        let mut child = Child::of(backend.test())
            .namespace(backend.namespace())
            .spawn()?;
        assert_eq!(child.line().await?, "under way");
        child.kill9();
        loop {
            match graph.repair(Duration::ZERO).await?.completed {
                0 => break,
                n => repaired += n,
            }
        }
        follows = agree(&graph).await?;
    }
    println!(
        "{kills} processes killed, {repaired} intents completed by repair, {follows} follows on both sides"
    );
    assert!(
        repaired >= kills && follows > 0,
        "nobody died in the middle"
    );
    Ok(())
}

#[test]
fn processes_killed_between_the_two_sides_leave_what_repair_completes() -> anyhow::Result<()> {
    let name = "social::crash::processes_killed_between_the_two_sides_leave_what_repair_completes";
    redstart_testkit::run(BackendKind::Cluster, name, killed)
}
