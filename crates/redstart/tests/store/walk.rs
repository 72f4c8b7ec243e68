//! Walks over all keys, and questions to every master.

use std::{collections::BTreeSet, time::Duration};

use redstart::{Store, redis};
use redstart_testkit::{Backend, Cluster, Kind, eventually, key_slot, matrix};

matrix! {
    async fn a_walk_sees_every_key_a_part_at_a_time_and_begins_again(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let key = |n: u64| format!("{}:walked:{{{n}}}", backend.namespace());
        for n in 0..500 {
            store.query::<()>(redis::cmd("SET").arg(key(n)).arg(n)).await?;
        }
        let all: BTreeSet<Vec<u8>> = (0..500).map(|n| key(n).into_bytes()).collect();
        let mut walk = store.walk(&format!("{}:walked:*", backend.namespace()));
        for round in 0..2 {
            let (mut seen, mut parts) = (BTreeSet::new(), 0);
            loop {
                let part = walk.next(100).await?;
                assert_eq!(part.is_first, parts == 0, "round {round}");
                parts += 1;
                // A table that grows while it is walked gives a page more than was asked for, not many.
                assert!(part.keys.len() <= 300, "round {round}: {}", part.keys.len());
                seen.extend(part.keys);
                if part.is_last { break; }
            }
            assert_eq!(seen, all, "round {round}");
            assert!(parts > 1, "round {round}: {parts} parts");
        }
        Ok(())
    }

    async fn every_master_is_asked(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let told: Vec<String> = store.query_each(&info).await?;
        let ids: BTreeSet<&str> = told
            .iter()
            .filter_map(|text| text.lines().find_map(|line| line.strip_prefix("run_id:")))
            .collect();
        assert_eq!(ids.len(), told.len());
        assert_eq!(told.len(), if backend.is_cluster() { 3 } else { 1 });
        let refused = store.query_each::<()>(redis::cmd("SUBSCRIBE").arg("channel")).await;
        assert!(refused.unwrap_err().is_config());
        Ok(())
    }
}

const LONG: Duration = Duration::from_secs(60);

/// Its keys go to a node that may have been read before they came, and leave one that is read after they went.
#[tokio::test]
async fn a_sample_is_not_complete_while_a_slot_moves() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let cluster = Cluster::start(kind, 3, 0).await?;
        let store = Store::connect(&cluster.url()).await?;
        let set = redis::cmd("SET").arg("{moving}").arg(1).clone();
        store.query::<()>(&set).await?;
        let slot = key_slot(b"{moving}");
        assert!(store.sample_for("*", 100, LONG).await?.complete);
        let to = (cluster.owner(slot).await? + 1) % 3;
        let migration = cluster.begin_migration(slot, to).await?;
        let sample = store.sample_for("*", 100, LONG).await?;
        assert_eq!(sample.keys, [b"{moving}"]);
        assert!(!sample.complete, "the slot is about to move");
        migration.move_keys(10).await?;
        let sample = store.sample_for("*", 100, LONG).await?;
        assert!(!sample.complete, "half of the slot has moved");
        migration.finish().await?;
        let seen = eventually(LONG, async || {
            let sample = store.sample_for("*", 100, LONG).await;
            sample.is_ok_and(|sample| sample.complete && sample.keys == [b"{moving}"])
        });
        assert!(seen.await, "not complete although no slot moves");
    }
    Ok(())
}

/// The walk has read a node that gets a slot before the node that had it is read.
#[tokio::test]
async fn a_round_does_not_end_if_a_slot_moved_to_a_node_that_was_read() -> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let store = Store::builder(&cluster.url())
        .deadline(LONG)
        .connect()
        .await?;
    // Nodes are read in the order of their slots: the key is of the last one.
    let key = (0..)
        .map(|n| format!("{{{n}}}"))
        .find(|key| key_slot(key.as_bytes()) > 16_000)
        .unwrap_or_default();
    let slot = key_slot(key.as_bytes());
    let (read, second) = (cluster.owner(0).await?, cluster.owner(8000).await?);
    store
        .query::<()>(redis::cmd("SET").arg(&key).arg(1))
        .await?;
    let migration = cluster.begin_migration(slot, read).await?;
    let mut walk = store.walk("*");
    let stats = async |node: usize, section: &str, name: &str| -> anyhow::Result<String> {
        let stats = cluster.node(node).command(&["INFO", section]).await?;
        let stats = format!("{stats:?}");
        let mut found = stats.split("\\r\\n").filter(|line| line.contains(name));
        Ok(found.next().unwrap_or_default().to_owned())
    };
    let from = migration.from();
    let redirected = async || stats(from, "errorstats", "errorstat_MOVED").await;
    cluster.node(second).pause()?;
    let moves = async {
        let read = async || stats(read, "commandstats", "cmdstat_scan").await;
        let is_read = async || read().await.is_ok_and(|calls| !calls.is_empty());
        anyhow::ensure!(eventually(LONG, is_read).await, "not read");
        while migration.move_keys(10).await? > 0 {}
        // By its two nodes: the one between them stands still.
        migration.finish().await?;
        // The store knows it when it is not redirected any more.
        let knows = async || {
            let before = redirected().await;
            let got = store.query::<u32>(redis::cmd("GET").arg(&key)).await;
            got.is_ok() && before.ok() == redirected().await.ok()
        };
        anyhow::ensure!(eventually(LONG, knows).await, "not known");
        cluster.node(second).resume()
    };
    let (part, moved) = tokio::join!(walk.next(3000), moves);
    moved?;
    let part = part?;
    assert!(part.keys.is_empty(), "the slot did not move in time");
    assert!(part.is_first && !part.is_last, "{part:?}");
    let seen = eventually(LONG, async || {
        let part = walk.next(3000).await;
        part.is_ok_and(|part| part.is_last && part.keys == [key.as_bytes()])
    });
    assert!(seen.await, "the next round misses it too");
    Ok(())
}
