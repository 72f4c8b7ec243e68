//! A handle in a hurry fails alone: what it could not wait for, others can.

use std::time::Duration;

use redstart::{Store, key::Keys};
use redstart_testkit::{Answer, Cluster, Kind, Proxy, Server, Stub, eventually};

const PATIENCE: Duration = Duration::from_secs(60);
const HURRY: Duration = Duration::from_millis(20);

fn set(key: &str) -> redis::Cmd {
    let mut cmd = redis::cmd("SET");
    cmd.arg(key).arg(1);
    cmd
}

/// A server that stands still fails a handle in a hurry; others, who come long after, wait until it goes on.
async fn others_wait(server: &Server, store: &Store, key: &str) -> anyhow::Result<()> {
    store.query::<()>(&set(key)).await?;
    server.pause()?;
    for _ in 0..3 {
        let late = store.within(HURRY).query::<()>(&set(key)).await;
        assert!(late.is_err(), "the server stands still");
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (other, cmd) = (store.clone(), set(key));
    let call = tokio::spawn(async move { other.query::<()>(&cmd).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!call.is_finished(), "{:?}", call.await);
    server.resume()?;
    call.await??;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_in_a_hurry_does_not_make_a_server_down_for_others() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let store = Store::builder(&server.url())
            .deadline(PATIENCE)
            .connect()
            .await?;
        others_wait(&server, &store, "k").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_handle_in_a_hurry_does_not_make_a_node_of_a_cluster_down_for_others()
-> anyhow::Result<()> {
    let cluster = Cluster::builder(Kind::Redis)
        .masters(3)
        .replicas(0)
        .node_timeout(Duration::from_secs(30))
        .start()
        .await?;
    let store = Store::builder(&cluster.url())
        .deadline(PATIENCE)
        .connect()
        .await?;
    let entity = Keys::new("app", "hurry")?.entity("x")?;
    let owner = cluster.owner(entity.slot()).await?;
    others_wait(cluster.node(owner), &store, entity.key().as_str()).await
}

/// The first caller of a store gives up while the connection is being made, and the next one gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_takes_long_is_waited_for_although_a_hurried_caller_gave_up()
-> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    proxy.stall();
    let store = Store::builder(proxy.url())
        .deadline(PATIENCE)
        .lazy()
        .connect()
        .await?;
    for _ in 0..3 {
        let late = store.within(HURRY).query::<()>(&set("k")).await;
        assert!(late.is_err(), "nothing answers");
    }
    let other = store.clone();
    let call = tokio::spawn(async move { other.query::<()>(&set("k")).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!call.is_finished(), "{:?}", call.await);
    proxy.pass().await;
    call.await??;
    Ok(())
}

/// A handle in a hurry does not put it off either: after one deadline of the store, nobody waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_one_deadline_of_the_store_nobody_waits() -> anyhow::Result<()> {
    let stub = Stub::start(|_| Answer::Never).await?;
    let deadline = Duration::from_secs(2);
    let store = Store::builder(&stub.url())
        .deadline(deadline)
        .lazy()
        .connect()
        .await?;
    assert!(store.within(HURRY).query::<()>(&set("k")).await.is_err());
    tokio::time::sleep(deadline).await;
    // Whoever waits longer than that has a handle that is patient, and not the store's.
    let patient = store.within(PATIENCE);
    let begun = std::time::Instant::now();
    for _ in 0..20 {
        assert!(patient.query::<()>(&set("k")).await.is_err());
    }
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    Ok(())
}

/// The store goes on to use a server that a handle in a hurry had given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_in_a_hurry_and_others_share_a_server_that_is_slow() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(PATIENCE)
        .connect()
        .await?;
    let before = proxy.stats().connections;
    proxy.delay_replies(Duration::from_millis(50));
    let hurried = tokio::spawn({
        let store = store.within(HURRY);
        async move {
            loop {
                let _ = store.query::<()>(&set("k")).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    for _ in 0..20 {
        let mut get = redis::cmd("GET");
        store.query::<()>(get.arg("k")).await?;
    }
    hurried.abort();
    let after = proxy.stats().connections;
    assert_eq!(after, before, "those in a hurry close no connection");
    proxy.pass().await;
    let works = eventually(PATIENCE, async || {
        store.query::<()>(&set("k")).await.is_ok()
    });
    assert!(works.await);
    Ok(())
}

/// However much of a caller's deadline connecting takes: if the rest is too short for an answer, the next caller finds the
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_took_most_of_a_deadline_is_kept() -> anyhow::Result<()> {
    const DELAY: Duration = Duration::from_millis(200);
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    proxy.delay_replies(DELAY);
    for round_trips in 1..6 {
        let store = Store::builder(proxy.url())
            .deadline(DELAY * round_trips + DELAY / 2)
            .lazy()
            .connect()
            .await?;
        let works = eventually(PATIENCE / 6, async || {
            store.query::<()>(&set("k")).await.is_ok()
        });
        assert!(works.await, "with time for {round_trips} round trips");
    }
    Ok(())
}
