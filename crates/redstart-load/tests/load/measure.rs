//! Costs are measured on a server of this machine that has nothing to lose.

use std::time::Duration;

use redstart::{Store, redis};
use redstart_load::{
    capacity::{measure, measure_cost},
    elsewhere, find,
};
use redstart_testkit::{Answer, Cluster, Kind, Sentinel, Server, Stub, stub::bulk};

const SHORT: Duration = Duration::from_millis(20);

/// What a measurement of one pattern says.
async fn refused(store: &Store) -> String {
    let get = find("get").expect("a pattern");
    let measured = measure_cost(store, get, SHORT).await;
    measured
        .err()
        .map_or_else(String::new, |error| error.to_string())
}

async fn query<T: redis::FromRedisValue>(store: &Store, words: &str) -> anyhow::Result<T> {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        command.arg(word);
    });
    Ok(store.query(&command).await?)
}

/// The database of the store is empty, and another one has a key.
async fn other_databases_are_left_alone(url: &str) -> anyhow::Result<()> {
    let store = Store::connect(url).await?;
    query::<()>(&store, "SET somebody-elses 1").await?;
    assert!(refused(&store).await.contains("db0: 1"), "{url}");
    query::<()>(&store, "MOVE somebody-elses 1").await?;
    assert_eq!(query::<u64>(&store, "DBSIZE").await?, 0);
    let said = refused(&store).await;
    assert!(said.contains("db1: 1"), "{url}: {said:?}");
    let keyspace: String = query(&store, "INFO keyspace").await?;
    assert!(keyspace.contains("db1:keys=1"), "{url}: {keyspace}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_keys_in_any_database_is_neither_measured_nor_flushed() -> anyhow::Result<()>
{
    other_databases_are_left_alone("memory://").await?;
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        other_databases_are_left_alone(&format!("{}?timeout=30s", server.url())).await?;
        let said = measure(&server.url(), SHORT, &["get".to_owned()], |_| {}).await;
        assert!(said.is_err_and(|error| error.to_string().contains("db1: 1")));
        assert_eq!(server.info("db1").await?.split(',').next(), Some("keys=1"));
    }
    Ok(())
}

/// Another program begins to use the server while the costs are measured: the measurement ends, and its own keys are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_database_of_the_measurement_is_flushed() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let url = format!("{}?timeout=30s", server.url());
    let other = Store::connect(&format!("{}/1?timeout=30s", server.url())).await?;
    let note = |_: &str| {
        let set = query::<()>(&other, "SET somebody-elses 1");
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(set))
            .expect("a server that is up");
    };
    let said = measure(&url, SHORT, &["session".to_owned()], note).await;
    let said = said.expect_err("refused").to_string();
    assert!(said.contains("db1: 1"), "{said}");
    assert_eq!(query::<u64>(&other, "DBSIZE").await?, 1);
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_clusters_are_not_measured() -> anyhow::Result<()> {
    let sentinel = Sentinel::start(Kind::Redis).await?;
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    for url in [sentinel.url(), cluster.url()] {
        // Load on them needs no confirmation: all of their servers are here.
        assert_eq!(elsewhere(&url).await?, None, "{url}");
        let said = measure(&url, SHORT, &[], |_| {}).await;
        let said = said.expect_err("refused").to_string();
        assert!(said.contains("one server"), "{url}: {said}");
    }
    let said = refused(&Store::connect(&cluster.url()).await?).await;
    assert!(said.contains("one server"), "{said}");
    Ok(())
}

/// A sentinel and a seed on this machine whose servers are on another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_a_sentinel_or_a_seed_names_may_be_elsewhere() -> anyhow::Result<()> {
    let stub = |master: &'static str, replica: &'static str| {
        Stub::start(move |command| {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let node =
                |host: &str| format!("*3\r\n{}:6379\r\n{}", bulk(host), bulk(&"0".repeat(40)));
            match words[..] {
                ["SENTINEL", "REPLICAS" | "replicas", ..] => {
                    let (address, port) = (bulk(replica), bulk("6379"));
                    let fields = [bulk("ip"), address, bulk("port"), port].concat();
                    let flags = [
                        bulk("flags"),
                        bulk("slave"),
                        bulk("master-link-status"),
                        bulk("ok"),
                    ];
                    Answer::Reply(format!("*1\r\n*8\r\n{fields}{}", flags.concat()))
                }
                ["SENTINEL", ..] => {
                    Answer::Reply(format!("*2\r\n{}{}", bulk(master), bulk("6379")))
                }
                ["CLUSTER", "SLOTS"] => Answer::Reply(format!(
                    "*1\r\n*4\r\n:0\r\n:16383\r\n{}{}",
                    node(master),
                    node(replica)
                )),
                ["CLUSTER", "INFO"] => Answer::Reply(bulk("cluster_state:ok\r\n")),
                _ => Answer::ok(),
            }
        })
    };
    let (here, there) = ("127.0.0.1", "192.0.2.7");
    for (master, replica, other) in [
        (there, here, Some("192.0.2.7:6379")),
        (here, there, Some("192.0.2.7:6379")),
        (here, here, None),
    ] {
        let stub = stub(master, replica).await?;
        for url in [
            format!("redis+sentinel://{}/main", stub.addr()),
            format!("redis+cluster://{}", stub.addr()),
        ] {
            let found = elsewhere(&url).await?;
            assert_eq!(found.as_deref(), other, "{url} {master} {replica}");
        }
    }
    Ok(())
}
