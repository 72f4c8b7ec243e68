//! Servers that many tests share, each test in a namespace of its own.
//!
//! Starting a server for every test would take most of the time. Tests that only need a namespace
//! share one server of each kind; tests that break a server start their own.
//!
//! `cargo xtask test` starts the shared ones once and names them in `REDSTART_TEST_REDIS_URL`,
//! `REDSTART_TEST_VALKEY_URL` and `REDSTART_TEST_CLUSTER_URL`. Where a variable is not set, each
//! test process starts that server when it first needs it.
//!
//! On a shared server a test touches only keys of its namespace: no FLUSHALL, no CONFIG SET.

use anyhow::Result;
use std::time::Duration;
use tokio::sync::OnceCell;

use crate::{Cluster, Kind, Server};

/// Names the shared redis-server.
pub const REDIS_URL: &str = "REDSTART_TEST_REDIS_URL";
/// Names the shared valkey-server.
pub const VALKEY_URL: &str = "REDSTART_TEST_VALKEY_URL";
/// Names the shared Cluster.
pub const CLUSTER_URL: &str = "REDSTART_TEST_CLUSTER_URL";
/// Names the embedded engine behind its listener.
pub const ENGINE_URL: &str = "REDSTART_TEST_ENGINE_URL";

/// A server, or a Cluster, that outlives the test.
#[derive(Debug)]
pub struct SharedServer {
    url: String,
    // Owned by the static that holds this, and killed with the process. `None` if another process
    // started it.
    _own: Option<Box<dyn std::any::Any + Send + Sync>>,
}

impl SharedServer {
    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }
}

static REDIS: OnceCell<SharedServer> = OnceCell::const_new();
static VALKEY: OnceCell<SharedServer> = OnceCell::const_new();
static CLUSTER: OnceCell<SharedServer> = OnceCell::const_new();
static ENGINE: OnceCell<SharedServer> = OnceCell::const_new();

/// The shared server of this kind.
///
/// # Errors
///
/// If it has to be started and cannot be.
pub async fn shared(kind: Kind) -> Result<&'static SharedServer> {
    let (cell, variable) = match kind {
        Kind::Redis => (&REDIS, REDIS_URL),
        Kind::Valkey => (&VALKEY, VALKEY_URL),
    };
    cell.get_or_try_init(async || {
        if let Some(given) = given(variable) {
            return Ok(given);
        }
        let server = Server::builder(kind).start().await?;
        Ok(SharedServer {
            url: server.url(),
            _own: Some(Box::new(server)),
        })
    })
    .await
}

/// The shared Cluster of three masters.
///
/// # Errors
///
/// If it has to be started and cannot be.
pub async fn shared_cluster() -> Result<&'static SharedServer> {
    CLUSTER
        .get_or_try_init(async || {
            if let Some(given) = given(CLUSTER_URL) {
                return Ok(given);
            }
            let cluster = start_shared_cluster().await?;
            Ok(SharedServer {
                url: cluster.url(),
                _own: Some(Box::new(cluster)),
            })
        })
        .await
}

/// The embedded engine behind a listener, which `serve` starts if there is none yet. It lives as long as the process
/// that started it.
pub(crate) async fn shared_engine(
    serve: impl FnOnce() -> Result<String>,
) -> Result<&'static SharedServer> {
    ENGINE
        .get_or_try_init(async || {
            if let Some(given) = given(ENGINE_URL) {
                return Ok(given);
            }
            let url = serve()?;
            Ok(SharedServer { url, _own: None })
        })
        .await
}

/// Starts a Cluster to be shared: a busy machine is not mistaken for a dead node.
///
/// # Errors
///
/// If the server program is missing or the Cluster does not form.
pub async fn start_shared_cluster() -> Result<Cluster> {
    Cluster::builder(Kind::Redis)
        .node_timeout(Duration::from_secs(30))
        .start()
        .await
}

/// The variables that make another process use the same servers as this one.
pub(crate) fn variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    [
        (REDIS_URL, &REDIS),
        (VALKEY_URL, &VALKEY),
        (CLUSTER_URL, &CLUSTER),
        (ENGINE_URL, &ENGINE),
    ]
    .into_iter()
    .filter_map(|(variable, cell)| Some((variable, cell.get()?.url())))
}

fn given(variable: &str) -> Option<SharedServer> {
    let url = std::env::var(variable).ok().filter(|url| !url.is_empty())?;
    Some(SharedServer { url, _own: None })
}
