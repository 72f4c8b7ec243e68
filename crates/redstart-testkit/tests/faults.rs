//! Clusters and Sentinel groups form, fail over and move slots.

use anyhow::Result;
use redstart_testkit::{Cluster, Kind, Sentinel, Server, key_slot};

async fn cluster_loses_its_first_master(kind: Kind) -> Result<()> {
    let cluster = Cluster::start(kind, 3, 1).await?;
    assert_eq!(cluster.nodes().len(), 6);
    let slot = key_slot(b"k");
    let old = cluster.owner(slot).await?;
    assert!(old < 3);
    let replicas = cluster.replicas_of(old).await?;
    assert_eq!(replicas, [3 + old]);
    let mut connection = cluster.node(old).client().await?;
    let () = redis::cmd("SET")
        .arg("k")
        .arg("v")
        .query_async(&mut connection)
        .await?;
    let copies: u64 = redis::cmd("WAIT")
        .arg(1)
        .arg(20_000)
        .query_async(&mut connection)
        .await?;
    assert_eq!(copies, 1);

    cluster.node(old).kill9();
    let new = cluster.wait_promotion(old).await?;
    assert_eq!(new, replicas[0]);
    assert_eq!(cluster.owner(slot).await?, new);
    assert_eq!(cluster.node(new).query::<String>(&["GET", "k"]).await?, "v");

    cluster.node(old).restart().await?;
    cluster.wait_replica(old).await?;
    cluster.failover(old).await?;
    assert_eq!(cluster.owner(slot).await?, old);
    assert_eq!(cluster.node(old).query::<String>(&["GET", "k"]).await?, "v");
    Ok(())
}

#[tokio::test]
async fn fault_redis_cluster_promotes_a_replica_and_takes_its_master_back() -> Result<()> {
    cluster_loses_its_first_master(Kind::Redis).await
}

#[tokio::test]
async fn fault_valkey_cluster_promotes_a_replica_and_takes_its_master_back() -> Result<()> {
    cluster_loses_its_first_master(Kind::Valkey).await
}

async fn slot_moves_with_its_keys(kind: Kind) -> Result<()> {
    let cluster = Cluster::start(kind, 3, 0).await?;
    let slot = key_slot(b"{tag}");
    let from = cluster.owner(slot).await?;
    let to = (from + 1) % 3;
    for n in 0..150 {
        cluster
            .node(from)
            .command(&["SET", &format!("{{tag}}:{n}"), "v"])
            .await?;
    }
    let migration = cluster.begin_migration(slot, to).await?;
    assert_eq!(migration.from(), from);
    assert_eq!(migration.move_keys(10).await?, 10);
    // Half-way: the old owner sends clients that ask for what it has not to the new one.
    let missing = cluster
        .node(from)
        .command(&["GET", "{tag}:none"])
        .await
        .expect_err("the slot is on its way");
    assert!(format!("{missing:#}").contains("Ask"), "{missing:#}");
    while migration.move_keys(64).await? > 0 {}
    migration.finish().await?;
    cluster.wait_whole().await?;
    assert_eq!(cluster.owner(slot).await?, to);
    let moved = cluster
        .node(from)
        .command(&["GET", "{tag}:1"])
        .await
        .expect_err("the slot is gone");
    assert!(format!("{moved:#}").contains("Moved"), "{moved:#}");
    let count = ["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()].map(str::to_owned);
    let count: Vec<&str> = count.iter().map(String::as_str).collect();
    assert_eq!(cluster.node(to).query::<u64>(&count).await?, 150);
    cluster.migrate_slot(slot, from).await?;
    assert_eq!(cluster.node(from).query::<u64>(&count).await?, 150);
    Ok(())
}

#[tokio::test]
async fn fault_redis_slot_moves_with_its_keys() -> Result<()> {
    slot_moves_with_its_keys(Kind::Redis).await
}

#[tokio::test]
async fn fault_valkey_slot_moves_with_its_keys() -> Result<()> {
    slot_moves_with_its_keys(Kind::Valkey).await
}

#[tokio::test]
async fn fault_redis_sentinels_replace_a_killed_master() -> Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    assert_eq!(group.master().await?, 0);
    assert_eq!(group.sentinels().len(), 3);
    assert!(group.url().ends_with("/mymaster/0"));
    group.server(0).kill9();
    let new = group.wait_promotion(0).await?;
    assert_ne!(new, 0);
    group.server(new).command(&["SET", "k", "v"]).await?;
    group.server(0).restart().await?;
    group.wait_replica(0).await?;
    assert_eq!(group.master().await?, new);
    let copied: String = group.server(0).query(&["GET", "k"]).await?;
    assert_eq!(copied, "v");
    Ok(())
}

#[tokio::test]
async fn fault_valkey_sentinels_replace_a_paused_master() -> Result<()> {
    let group = Sentinel::start(Kind::Valkey).await?;
    group.server(0).pause()?;
    let new = group.wait_promotion(0).await?;
    group.server(0).resume()?;
    group.wait_replica(0).await?;
    assert_eq!(group.master().await?, new);
    // And once more, while all are well.
    let newer = group.failover().await?;
    assert_ne!(newer, new);
    Ok(())
}

#[tokio::test]
async fn slots_are_those_that_the_server_computes() -> Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("cluster-enabled", "yes")
        .start()
        .await?;
    let keys = [
        "", "a", "foo", "{x}y", "a{x}y", "{}x", "{", "}{", "{{x}}", "a{b}c{d}", "ü{ö}",
    ];
    for key in keys {
        let slot: u16 = server.query(&["CLUSTER", "KEYSLOT", key]).await?;
        assert_eq!(key_slot(key.as_bytes()), slot, "{key:?}");
    }
    Ok(())
}
