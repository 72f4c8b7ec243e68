//! The same program on every kind of URL.

use std::time::Duration;

use redis::AsyncTypedCommands as _;
use redstart::{
    Store,
    key::Keys,
    script::{Batch, Script},
    store::ServerKind,
};
use redstart_testkit::{Backend, Cluster, Kind, Sentinel, Server, matrix, unique_namespace};

static COUNT: Script = Script::new(
    "test.count",
    "redis.call('INCRBY', KEYS[1], ARGV[1]) redis.call('SET', KEYS[2], ARGV[2]) \
     return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])}",
);

/// Commands, pipelines, transactions, scripts, blocking commands, time and health, as a program would
/// use them.
async fn program(store: &Store, namespace: &str) -> anyhow::Result<()> {
    let keys = Keys::new(namespace, "same")?;
    let one = keys.entity("one {of} many")?;
    let two = keys.entity("two")?;

    let mut connection = store.clone();
    connection.set(one.key(), "tea").await?;
    assert_eq!(connection.get(one.key()).await?.as_deref(), Some("tea"));

    // Keys of two entities live in two slots; a pipeline reaches both and keeps its order.
    let mut pipeline = redis::pipe();
    for n in 0..20 {
        let entity = keys.entity(&format!("many-{n}"))?;
        pipeline.cmd("SET").arg(entity.key()).arg(n).ignore();
        pipeline.cmd("INCRBY").arg(entity.key()).arg(100);
    }
    let sums: Vec<i64> = store.pipeline(&pipeline).await?;
    assert_eq!(sums, (100..120).collect::<Vec<_>>());

    let mut transaction = redis::pipe();
    transaction
        .atomic()
        .cmd("SET")
        .arg(two.key())
        .arg(1)
        .ignore();
    transaction
        .cmd("INCR")
        .arg(two.key())
        .cmd("INCR")
        .arg(two.key());
    assert_eq!(store.pipeline::<(i64, i64)>(&transaction).await?, (2, 3));

    for round in 1..=2 {
        let (count, label): (i64, String) = COUNT
            .on(&two)
            .part("count")
            .part("label")
            .arg(5)
            .arg("x")
            .run(store)
            .await?;
        assert_eq!((count, label.as_str()), (5 * round, "x"));
    }

    let list = keys.entity("list")?;
    let mut own = store.dedicated(list.key());
    let mut take = redis::cmd("BLPOP");
    take.arg(list.key()).arg(20);
    let waiting = own.query::<Option<(String, String)>>(&take, Duration::from_secs(20));
    let pushing = async {
        // The shared connection is free while the other one waits.
        for _ in 0..50 {
            connection.get(one.key()).await?;
        }
        connection.lpush(list.key(), "element").await
    };
    let (taken, pushed) = tokio::join!(waiting, pushing);
    pushed?;
    assert_eq!(
        taken?.map(|(_, element)| element).as_deref(),
        Some("element")
    );

    assert!(store.time().await? > Duration::from_secs(1_700_000_000));
    assert!(store.health().await?.version >= (7, 0, 0));
    let found = store.scan(&format!("{namespace}:*")).await?;
    assert_eq!(found.len(), 24, "{found:?}");
    for key in found {
        assert_eq!(connection.unlink(&key).await?, 1);
    }
    assert_eq!(store.scan(&format!("{namespace}:*")).await?.len(), 0);
    Ok(())
}

matrix! {
    async fn the_same_program_runs_on_every_backend(backend: &Backend) -> anyhow::Result<()> {
        program(&Store::connect(backend.url()).await?, backend.namespace()).await
    }

    async fn capabilities_name_the_server(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let capabilities = store.capabilities().await?;
        let expected = match backend.kind() {
            redstart_testkit::BackendKind::Embedded => ServerKind::Embedded,
            redstart_testkit::BackendKind::Valkey => ServerKind::Valkey,
            _ => ServerKind::Redis,
        };
        assert_eq!(capabilities.server, expected);
        assert_eq!(capabilities.cluster, backend.is_cluster());
        assert!(capabilities.has(redstart::store::Optional::ShardedPubSub));
        let delifeq = capabilities.has(redstart::store::Optional::DelIfEq);
        assert_eq!(delifeq, capabilities.server == ServerKind::Valkey);
        Ok(())
    }

    async fn many_tasks_share_one_store(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Keys::new(backend.namespace(), "shared")?;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..64 {
            let (store, entity) = (store.clone(), keys.entity(&format!("counter-{}", task % 7))?);
            tasks.spawn(async move {
                for _ in 0..20 {
                    store.query::<i64>(redis::cmd("INCR").arg(entity.key())).await?;
                }
                Ok::<(), redstart::Error>(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        let mut sum = 0;
        for n in 0..7 {
            let entity = keys.entity(&format!("counter-{n}"))?;
            sum += store.query::<i64>(redis::cmd("GET").arg(entity.key())).await?;
        }
        assert_eq!(sum, 64 * 20);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_program_runs_on_all_six_kinds_of_url() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Server::builder(Kind::Redis).start().await?;
    let socket = Server::builder(Kind::Valkey).unix().start().await?;
    let tls = Server::builder(Kind::Redis)
        .tls()
        .acl("app", "s3cret")
        .start()
        .await?;
    let ca = tls
        .authority()
        .expect("a TLS server has an authority")
        .ca_file()
        .to_owned();
    let sentinel = Sentinel::start(Kind::Redis).await?;
    let cluster = Cluster::start(Kind::Valkey, 3, 0).await?;
    for url in [
        "memory://".to_owned(),
        format!("file://{}", folder.path().join("data").display()),
        format!("{}/5?pool=3", server.url()),
        socket.unix_url(),
        format!("{}?ca={}", tls.url(), ca.display()),
        sentinel.url(),
        cluster.url(),
    ] {
        let store = Store::connect(&url)
            .await
            .map_err(|e| anyhow::anyhow!("{url}: {e}"))?;
        program(&store, &unique_namespace("six"))
            .await
            .map_err(|e| e.context(url.clone()))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_application_already_has_become_stores() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let client = redis::Client::open(server.url())?;
    program(&Store::from(client.clone()), "client").await?;

    let key = Keys::new("manager", "same")?.entity("x")?;
    let manager = Store::from(client.get_connection_manager().await?);
    manager
        .query::<()>(redis::cmd("SET").arg(key.key()).arg(1))
        .await?;
    assert_eq!(
        manager
            .query::<i64>(redis::cmd("GET").arg(key.key()))
            .await?,
        1
    );
    let (count, _): (i64, String) = COUNT
        .on(&key)
        .part("count")
        .part("label")
        .arg(5)
        .arg("x")
        .run(&manager)
        .await?;
    assert_eq!(count, 5);
    // What such a store cannot do, it says before anything is sent.
    assert!(
        manager
            .subscribe([redstart::store::Listen::Channel("c".into())])
            .await
            .unwrap_err()
            .is_config()
    );
    let blocked = manager
        .dedicated(key.key())
        .query::<()>(&redis::cmd("PING"), Duration::ZERO)
        .await;
    assert!(blocked.unwrap_err().is_config());

    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let nodes = cluster.node_urls();
    let foreign = redis::cluster::ClusterClient::new(nodes)?
        .get_async_connection()
        .await?;
    let store = Store::from(foreign);
    store
        .query::<()>(redis::cmd("SET").arg(key.key()).arg(7))
        .await?;
    assert_eq!(
        store.query::<i64>(redis::cmd("GET").arg(key.key())).await?,
        7
    );
    // Such a connection sends what has no key to any node, so what is about every node would be about one.
    let refused = [
        store.scan("*").await.err(),
        store.sample("*", 10).await.err(),
        store
            .sample_for("*", 10, Duration::from_secs(1))
            .await
            .err(),
        store.walk("*").next(10).await.err(),
        store
            .query_each::<String>(redis::cmd("INFO").arg("server"))
            .await
            .err(),
        store
            .query::<redis::Value>(redis::cmd("SCAN").arg(0))
            .await
            .err(),
    ];
    for (at, error) in refused.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("{at} was sent to any node"));
        assert!(error.is_config(), "{at}: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn named_memory_is_shared_within_the_process_and_unnamed_is_not() -> anyhow::Result<()> {
    let name = unique_namespace("named");
    let url = format!("memory://{name}");
    let (a, b) = (Store::connect(&url).await?, Store::connect(&url).await?);
    a.query::<()>(redis::cmd("SET").arg("k").arg(1)).await?;
    assert_eq!(
        b.query::<Option<i64>>(redis::cmd("GET").arg("k")).await?,
        Some(1)
    );
    drop((a, b));
    let c = Store::connect(&url).await?;
    assert_eq!(
        c.query::<Option<i64>>(redis::cmd("GET").arg("k")).await?,
        None
    );
    let (d, e) = (
        Store::connect("memory://").await?,
        Store::connect("memory://").await?,
    );
    d.query::<()>(redis::cmd("SET").arg("k").arg(1)).await?;
    assert_eq!(
        e.query::<Option<i64>>(redis::cmd("GET").arg("k")).await?,
        None
    );
    Ok(())
}

static TELL: Script = Script::new("test.tell", "return ARGV[1]");

#[tokio::test]
async fn a_batch_that_a_server_does_not_know_is_sent_again_as_a_whole() -> anyhow::Result<()> {
    for clustered in [false, true] {
        let (server, cluster);
        let (url, node) = if clustered {
            cluster = Cluster::start(Kind::Redis, 3, 0).await?;
            (cluster.url(), cluster.node(0))
        } else {
            server = Server::builder(Kind::Redis).start().await?;
            (server.url(), &server)
        };
        let store = Store::builder(&url)
            .deadline(Duration::from_secs(20))
            .connect()
            .await?;
        let entities: Vec<_> = (0..48)
            .map(|n| Keys::new("app", "batch")?.entity(&n.to_string()))
            .collect::<Result<_, _>>()?;
        for _ in 0..2 {
            store.query::<()>(redis::cmd("SCRIPT").arg("FLUSH")).await?;
            node.command(&["CONFIG", "RESETSTAT"]).await?;
            let mut batch = Batch::new();
            for (n, entity) in entities.iter().enumerate() {
                batch.push(TELL.on(entity).key().arg(n));
            }
            let told: Vec<usize> = batch
                .run(&store)
                .await?
                .into_iter()
                .collect::<Result<_, _>>()?;
            assert_eq!(told, (0..48).collect::<Vec<_>>());
            let stats: String = node.query(&["INFO", "commandstats"]).await?;
            let calls = |name: &str| -> usize {
                let name = format!("cmdstat_{name}:calls=");
                let line = stats.lines().find_map(|line| line.strip_prefix(&name));
                let count = line.and_then(|line| line.split(',').next());
                count.map_or(0, |count| count.parse().expect("a number"))
            };
            // One by one, only the first would need the source.
            assert!(calls("eval") > 1, "{stats}");
            assert_eq!(calls("eval"), calls("evalsha"), "{stats}");
        }
    }
    Ok(())
}
