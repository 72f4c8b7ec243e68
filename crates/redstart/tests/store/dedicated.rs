//! Connections of one caller: what is watched protects what is executed.

use std::time::Duration;

use redstart::{
    Store,
    key::{Entity, Keys},
    store::Dedicated,
};
use redstart_testkit::{Backend, Cluster, Kind, Sentinel, Server, eventually, matrix};

fn word(name: &str, key: &redstart::key::Key) -> redis::Cmd {
    let mut cmd = redis::cmd(name);
    cmd.arg(key);
    cmd
}

matrix! {
    async fn a_watched_key_that_was_changed_aborts_the_transaction(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let account = Keys::new(backend.namespace(), "account")?.entity("ann")?;
        let mut own = store.dedicated(account.key());
        let mut set = redis::pipe();
        set.atomic().cmd("SET").arg(account.key()).arg(100).ignore();
        set.cmd("INCR").arg(account.key());

        own.query::<()>(&word("WATCH", account.key()), Duration::ZERO).await?;
        assert_eq!(own.pipeline::<Option<(i64,)>>(&set).await?, Some((101,)));

        own.query::<()>(&word("WATCH", account.key()), Duration::ZERO).await?;
        store.query::<i64>(redis::cmd("INCRBY").arg(account.key()).arg(7)).await?;
        assert_eq!(own.pipeline::<Option<(i64,)>>(&set).await?, None);
        assert_eq!(store.query::<i64>(&word("GET", account.key())).await?, 108);

        // Word by word too.
        own.query::<()>(&word("WATCH", account.key()), Duration::ZERO).await?;
        own.query::<()>(&redis::cmd("MULTI"), Duration::ZERO).await?;
        own.query::<redis::Value>(&word("INCR", account.key()), Duration::ZERO).await?;
        assert_eq!(own.query::<Option<(i64,)>>(&redis::cmd("EXEC"), Duration::ZERO).await?, Some((109,)));
        Ok(())
    }

    async fn watching_on_a_shared_store_is_refused(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let key = Keys::new(backend.namespace(), "account")?.entity("bob")?;
        let error = store.query::<()>(&word("WATCH", key.key())).await.unwrap_err();
        assert!(error.is_config() && error.to_string().contains("dedicated()"), "{error}");
        // The client's own helper for optimistic transactions would be unprotected on a shared connection.
        let watched = [key.key()];
        let helped = redis::aio::transaction_async(store.clone(), &watched, async |mut store: Store, mut pipeline: redis::Pipeline| {
            pipeline.cmd("INCR").arg(key.key()).query_async::<Option<(i64,)>>(&mut store).await
        });
        let error = helped.await.unwrap_err();
        assert!(error.to_string().contains("dedicated()"), "{error}");
        assert_eq!(store.query::<Option<i64>>(&word("GET", key.key())).await?, None);
        Ok(())
    }

    async fn writes_are_confirmed_over_the_connection_that_carried_them_and_no_other(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let account = Keys::new(backend.namespace(), "account")?.entity("eve")?;
        let (get, mut set) = (word("GET", account.key()), word("SET", account.key()));
        set.arg(7);
        let mut own = store.dedicated(account.key());
        // It has read, so there is nothing to confirm.
        own.query::<Option<i64>>(&get, Duration::ZERO).await?;
        refuses_to_confirm(&mut own).await;
        own.query::<()>(&word("WATCH", account.key()), Duration::ZERO).await?;
        own.query::<()>(&redis::cmd("UNWATCH"), Duration::ZERO).await?;
        refuses_to_confirm(&mut own).await;
        if backend.is_embedded() {
            // Its connections are not lost.
            return Ok(());
        }
        own.query::<()>(&set, Duration::ZERO).await?;
        assert_eq!(confirmed(&mut own).await?, 0, "there is no replica");

        lose(&mut own, &get).await?;
        own.query::<()>(&set, Duration::ZERO).await?;
        assert_eq!(confirmed(&mut own).await?, 0, "what was lost with the connection had been confirmed");

        own.query::<()>(&set, Duration::ZERO).await?;
        lose(&mut own, &get).await?;
        // It reads, over a new connection.
        refuses_to_confirm(&mut own).await;
        own.query::<()>(&set, Duration::ZERO).await?;
        assert_eq!(confirmed(&mut own).await?, 0, "the caller has heard of it, and has written again");

        own.query::<()>(&set, Duration::ZERO).await?;
        lose(&mut own, &get).await?;
        own.query::<()>(&set, Duration::ZERO).await?;
        // The second write says nothing of the first.
        refuses_to_confirm(&mut own).await;

        // A question that too few have answered confirms nothing.
        own.query::<()>(&set, Duration::ZERO).await?;
        let few: u64 = own.query(redis::cmd("WAIT").arg(9).arg(1), Duration::from_secs(1)).await?;
        assert_eq!(few, 0);
        lose(&mut own, &get).await?;
        own.query::<()>(&set, Duration::ZERO).await?;
        refuses_to_confirm(&mut own).await;

        // The same within pipelines.
        let mut read = redis::pipe();
        read.add_command(get.clone()).ignore().cmd("WAIT").arg(0).arg(0);
        let error = own.pipeline::<(u64,)>(&read).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        let mut written = redis::pipe();
        written.add_command(set.clone()).ignore().cmd("WAIT").arg(0).arg(0);
        assert_eq!(own.pipeline::<(u64,)>(&written).await?, (0,));
        assert_eq!(own.pipeline::<(u64,)>(&read).await?, (0,));

        // A transaction that was aborted wrote nothing.
        lose(&mut own, &get).await?;
        let mut transaction = redis::pipe();
        transaction.atomic().add_command(set.clone());
        own.query::<()>(&word("WATCH", account.key()), Duration::ZERO).await?;
        store.query::<()>(&set).await?;
        assert_eq!(own.pipeline::<Option<()>>(&transaction).await?, None);
        refuses_to_confirm(&mut own).await;
        assert_eq!(own.pipeline::<Option<()>>(&transaction).await?, Some(()));
        assert_eq!(confirmed(&mut own).await?, 0);

        // Word by word.
        lose(&mut own, &get).await?;
        own.query::<()>(&redis::cmd("MULTI"), Duration::ZERO).await?;
        own.query::<redis::Value>(&set, Duration::ZERO).await?;
        own.query::<()>(&redis::cmd("DISCARD"), Duration::ZERO).await?;
        refuses_to_confirm(&mut own).await;
        own.query::<()>(&redis::cmd("MULTI"), Duration::ZERO).await?;
        own.query::<redis::Value>(&set, Duration::ZERO).await?;
        own.query::<redis::Value>(&redis::cmd("EXEC"), Duration::ZERO).await?;
        assert_eq!(confirmed(&mut own).await?, 0);
        Ok(())
    }
}

/// How many replicas have what was written.
async fn confirmed(own: &mut Dedicated) -> redstart::Result<u64> {
    own.query(redis::cmd("WAIT").arg(0).arg(0), Duration::ZERO)
        .await
}

/// Asked twice: the first answer is not taken back.
async fn refuses_to_confirm(own: &mut Dedicated) {
    let mut on_disk = redis::cmd("WAITAOF");
    on_disk.arg(0).arg(0).arg(0);
    for outcome in [
        confirmed(own).await.map(drop),
        own.query::<()>(&on_disk, Duration::ZERO).await,
    ] {
        assert!(
            matches!(&outcome, Err(error) if error.is_unavailable() && !error.is_in_doubt()),
            "{outcome:?}"
        );
    }
}

/// The connection is lost, and a read makes another one.
async fn lose(own: &mut Dedicated, read: &redis::Cmd) -> anyhow::Result<()> {
    let mut id = redis::cmd("CLIENT");
    id.arg("ID");
    let old: i64 = own.query(&id, Duration::ZERO).await?;
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("ID").arg(old).arg("SKIPME").arg("no");
    own.query::<i64>(&kill, Duration::ZERO).await?;
    own.query::<redis::Value>(read, Duration::from_secs(30))
        .await?;
    let new: i64 = own.query(&id, Duration::ZERO).await?;
    assert_ne!(old, new, "the connection is still there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_pipeline_follows_its_slot() -> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Valkey, 3, 0).await?;
    let store = Store::builder(&cluster.url())
        .deadline(Duration::from_secs(10))
        .connect()
        .await?;
    let account = Keys::new("bank", "account")?.entity("ann")?;
    let mut own = store.dedicated(account.key());
    let mut twice = redis::pipe();
    twice.cmd("INCR").arg(account.key());
    twice.cmd("INCR").arg(account.key());
    for round in 0..3 {
        let sums: (i64, i64) = own.pipeline(&twice).await?;
        assert_eq!(sums, (2 * round + 1, 2 * round + 2));
        let owner = cluster.owner(account.slot()).await?;
        cluster
            .migrate_slot(account.slot(), (owner + 1) % 3)
            .await?;
    }
    Ok(())
}

/// The server closes the connection of `own`.
async fn kill_connection(store: &Store, own: &mut Dedicated) -> anyhow::Result<()> {
    let id: i64 = own
        .query(redis::cmd("CLIENT").arg("ID"), Duration::ZERO)
        .await?;
    store
        .query::<i64>(redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id))
        .await?;
    Ok(())
}

/// The watched key is changed after the connection was lost; the transaction that follows is refused, and nothing of it runs.
async fn refused_without_its_watch(
    store: &Store,
    own: &mut Dedicated,
    account: &Entity,
) -> anyhow::Result<()> {
    kill_connection(store, own).await?;
    store
        .query::<()>(redis::cmd("SET").arg(account.key()).arg(7))
        .await?;
    let mut increment = redis::pipe();
    increment.atomic().cmd("INCR").arg(account.key());
    let reply = own.pipeline::<Option<(i64,)>>(&increment).await;
    let is_refused = matches!(&reply, Err(error) if error.is_unavailable());
    assert!(is_refused, "{reply:?}");
    assert_eq!(store.query::<i64>(&word("GET", account.key())).await?, 7);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_transaction_whose_watch_was_lost_runs_nothing() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let account = Keys::new("bank", "account")?.entity("ann")?;
    let mut own = store.dedicated(account.key());
    let mut increment = redis::pipe();
    increment.atomic().cmd("INCR").arg(account.key());

    own.query::<()>(&word("WATCH", account.key()), Duration::ZERO)
        .await?;
    refused_without_its_watch(&store, &mut own, &account).await?;
    // Begun again, it works.
    own.query::<()>(&word("WATCH", account.key()), Duration::ZERO)
        .await?;
    assert_eq!(
        own.pipeline::<Option<(i64,)>>(&increment).await?,
        Some((8,))
    );
    Ok(())
}

/// Without a transaction DISCARD and EXEC are errors, and the server goes on watching.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_watch_outlives_an_end_of_no_transaction() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let account = Keys::new("bank", "account")?.entity("ann")?;
    for end in ["DISCARD", "EXEC"] {
        let mut own = store.dedicated(account.key());
        own.query::<()>(&word("WATCH", account.key()), Duration::ZERO)
            .await?;
        let refused = own.query::<()>(&redis::cmd(end), Duration::ZERO).await;
        assert!(refused.is_err(), "there is no transaction");
        refused_without_its_watch(&store, &mut own, &account).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_transaction_that_was_refused_nothing_is_watched() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let account = Keys::new("bank", "account")?.entity("ann")?;
    let mut own = store.dedicated(account.key());
    own.query::<()>(&word("WATCH", account.key()), Duration::ZERO)
        .await?;
    let mut wrong = redis::pipe();
    wrong.atomic().cmd("INCR");
    let refused = own.pipeline::<redis::Value>(&wrong).await.unwrap_err();
    assert!(!refused.is_unavailable(), "{refused:?}");
    kill_connection(&store, &mut own).await?;
    // The server has ended the transaction: there is nothing to be lost with the connection.
    let read = word("GET", account.key());
    assert_eq!(own.query::<Option<i64>>(&read, Duration::ZERO).await?, None);
    Ok(())
}

/// The old master hangs, so it neither ends the command nor learns that it was replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_command_that_is_blocked_at_a_replaced_master_goes_on_at_the_new_one()
-> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let group = Sentinel::start(Kind::Redis).await?;
    let store = Store::connect(&group.url()).await?;
    let log = Keys::new("app", "log")?.entity("x")?;
    let old = group.master().await?;
    let mut own = store.dedicated(log.key());
    let mut read = redis::cmd("XREAD");
    read.arg("BLOCK")
        .arg(0)
        .arg("STREAMS")
        .arg(log.key())
        .arg("0");
    let wait = 10 * PATIENCE;
    let reading = tokio::spawn(async move { own.query::<redis::Value>(&read, wait).await });
    let server = group.server(old);
    let blocked = eventually(PATIENCE, async || {
        let count = server.info("blocked_clients").await;
        count.is_ok_and(|count| count == "1")
    });
    assert!(blocked.await, "the command does not wait");
    server.pause()?;
    group.wait_promotion(old).await?;
    let mut add = redis::cmd("XADD");
    add.arg(log.key()).arg("*").arg("n").arg(1);
    let added = eventually(PATIENCE, async || store.query::<String>(&add).await.is_ok());
    assert!(added.await, "nothing is written at the new master");
    let found = tokio::time::timeout(PATIENCE, reading).await;
    server.resume()?;
    assert_ne!(found???, redis::Value::Nil);
    Ok(())
}
