//! GET and SET beside the other clients, over TLS and on a Cluster.
//!
//! Each client is used as its own page says: one multiplexed connection (rustis, redis-rs), one client that pipelines by itself
//! (fred), a time-out of a second as ours has. Our `Store` has one connection per node too, unless its page is told otherwise.

use std::time::Duration;

use fred::{
    interfaces::{ClientLike as _, KeysInterface as _},
    types::{Builder, config::Config},
};
use redis::{TlsCertificates, aio::MultiplexedConnection, cluster_async::ClusterConnection};
use redstart::Store;
use redstart_testkit::{Cluster, Kind, Server};
use rustis::commands::StringCommands as _;

use crate::measure::Bench;

const TASKS: usize = 64;
const VALUE: &str = "a value of some thirty-two bytes";

pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let _watched = bench.watch(&server);
    let version = server.info("redis_version").await?;
    bench.note(&format!(
        "redis-server {version}, fred 10.1, rustis 0.27, redis-rs 1.8, {TASKS} tasks"
    ));
    let store = Store::connect(&server.url()).await?;
    plain(bench, &store, &server).await?;
    tls(bench).await?;
    cluster(bench).await
}

/// One key per task, so that on a Cluster all nodes have something to do.
fn key(task: usize) -> String {
    format!("bench:client:{task}")
}

/// GET and SET of ours, as they stand in every comparison of this family.
fn get_of(store: &Store) -> impl Fn(usize) -> Call + Clone + Send + Sync + 'static {
    let store = store.clone();
    move |task| {
        let store = store.clone();
        Box::pin(async move {
            let value: String = store.query(redis::cmd("GET").arg(key(task))).await?;
            anyhow::ensure!(value == VALUE);
            Ok(())
        })
    }
}

fn set_of(store: &Store) -> impl Fn(usize) -> Call + Clone + Send + Sync + 'static {
    let store = store.clone();
    move |task| {
        let store = store.clone();
        Box::pin(async move {
            let mut set = redis::cmd("SET");
            set.arg(key(task)).arg(VALUE);
            Ok(store.query::<()>(&set).await?)
        })
    }
}

/// Every contestant's future is boxed, so that the boxes are on both sides.
type Call = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

async fn fill(store: &Store) -> anyhow::Result<()> {
    for task in 0..TASKS {
        set_of(store)(task).await?;
    }
    Ok(())
}

async fn plain(bench: &mut Bench, store: &Store, server: &Server) -> anyhow::Result<()> {
    fill(store).await?;
    let rustis = rustis::client::Client::connect(server.addr()).await?;
    let client = rustis.clone();
    let get = move |task| -> Call {
        let client = client.clone();
        Box::pin(async move {
            let value: String = client.get(key(task)).await?;
            anyhow::ensure!(value == VALUE);
            Ok(())
        })
    };
    let set = move |task| -> Call {
        let client = rustis.clone();
        Box::pin(async move { Ok(client.set(key(task), VALUE).await?) })
    };
    let name = |command: &str| format!("{command}, {TASKS} tasks");
    bench
        .rate(&name("GET"), "rustis", 1.0, TASKS, get_of(store), get)
        .await?;
    bench
        .rate(&name("SET"), "rustis", 1.0, TASKS, set_of(store), set)
        .await?;

    let fred = Builder::from_config(Config::from_url(&server.url())?)
        .with_performance_config(|settings| {
            settings.default_command_timeout = Duration::from_secs(1);
        })
        .build()?;
    fred.init().await?;
    let client = fred.clone();
    let get = move |task| -> Call {
        let client = client.clone();
        Box::pin(async move {
            let value: String = client.get(key(task)).await?;
            anyhow::ensure!(value == VALUE);
            Ok(())
        })
    };
    let client = fred.clone();
    let set = move |task| -> Call {
        let client = client.clone();
        Box::pin(async move { Ok(client.set(key(task), VALUE, None, None, false).await?) })
    };
    bench
        .rate(&name("GET"), "fred", 1.0, TASKS, get_of(store), get)
        .await?;
    bench
        .rate(&name("SET"), "fred", 1.0, TASKS, set_of(store), set)
        .await?;
    fred.quit().await?;
    Ok(())
}

/// Both over rustls, with the same authority.
async fn tls(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).tls().start().await?;
    let _watched = bench.watch(&server);
    let Some(authority) = server.authority() else {
        anyhow::bail!("a server with TLS has an authority");
    };
    let url = format!("{}?ca={}", server.url(), authority.ca_file().display());
    let store = Store::connect(&url).await?;
    fill(&store).await?;
    let certificates = TlsCertificates {
        client_tls: None,
        root_cert: Some(authority.ca_pem().as_bytes().to_vec()),
    };
    let client = redis::Client::build_with_tls(server.url(), certificates)?;
    let config =
        redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(1)));
    let bare = client
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    let (get, set) = redis_rs(bare);
    let name = |command: &str| format!("{command} over TLS, {TASKS} tasks");
    bench
        .rate(&name("GET"), "redis-rs", 0.9, TASKS, get_of(&store), get)
        .await?;
    bench
        .rate(&name("SET"), "redis-rs", 0.9, TASKS, set_of(&store), set)
        .await
}

fn redis_rs(
    bare: MultiplexedConnection,
) -> (
    impl Fn(usize) -> Call + Clone + Send + Sync + 'static,
    impl Fn(usize) -> Call + Clone + Send + Sync + 'static,
) {
    let connection = bare.clone();
    let get = move |task| -> Call {
        let mut bare = connection.clone();
        Box::pin(async move {
            let value: String = redis::cmd("GET")
                .arg(key(task))
                .query_async(&mut bare)
                .await?;
            anyhow::ensure!(value == VALUE);
            Ok(())
        })
    };
    let set = move |task| -> Call {
        let mut bare = bare.clone();
        Box::pin(async move {
            let mut set = redis::cmd("SET");
            set.arg(key(task)).arg(VALUE);
            Ok(set.exec_async(&mut bare).await?)
        })
    };
    (get, set)
}

/// Three masters, and keys of all of them.
async fn cluster(bench: &mut Bench) -> anyhow::Result<()> {
    let cluster = Cluster::builder(Kind::Redis)
        .masters(3)
        .replicas(0)
        .start()
        .await?;
    let nodes = cluster.nodes().iter();
    let _watched: Vec<_> = nodes.map(|node| bench.watch(node)).collect();
    let store = Store::connect(&cluster.url()).await?;
    fill(&store).await?;
    let client = redis::cluster::ClusterClientBuilder::new(cluster.node_urls())
        .response_timeout(Duration::from_secs(1))
        .build()?;
    let bare: ClusterConnection = client.get_async_connection().await?;
    let connection = bare.clone();
    let get = move |task| -> Call {
        let mut bare = connection.clone();
        Box::pin(async move {
            let value: String = redis::cmd("GET")
                .arg(key(task))
                .query_async(&mut bare)
                .await?;
            anyhow::ensure!(value == VALUE);
            Ok(())
        })
    };
    let set = move |task| -> Call {
        let mut bare = bare.clone();
        Box::pin(async move {
            let mut set = redis::cmd("SET");
            set.arg(key(task)).arg(VALUE);
            Ok(set.exec_async(&mut bare).await?)
        })
    };
    let name = |command: &str| format!("{command} on a Cluster, {TASKS} tasks");
    let peer = "redis-rs's cluster client";
    bench
        .rate(&name("GET"), peer, 0.9, TASKS, get_of(&store), get)
        .await?;
    bench
        .rate(&name("SET"), peer, 0.9, TASKS, set_of(&store), set)
        .await
}
