//! redstart-adopt beside the libraries themselves.
//!
//! ```text
//! main.rs        where the scripts of other languages are
//! served.rs      the embedded engine behind a listener of its own
//! dialogue.rs    a program of another language that answers lines of JSON
//! locks.rs       one lock that redis-py, redlock and we take
//! limiter.rs     rate-limiter-flexible and our limiter on the same keys
//! sessions.rs    sessions of connect-redis while Node serves them
//! caches.rs      entries of Django and of plain JSON, on both sides
//! sidekiq.rs     our consumer of Sidekiq's queues
//! bullmq.rs      BullMQ 5 and 6 beside our producer and worker
//! bullmq_beside.rs    our worker beside Node's: shared limits, leases, what Node reads of finished jobs
//! bullmq_pauses.rs    versions 5 and 6 pause a queue in a hurry
//! bullmq_outage.rs    our worker while the store does not answer
//! bullmq_cluster.rs   a queue on a Cluster
//! bullmq_parents.rs   parents that run before their children have ended
//! bullmq_odd.rs       queues with more, or other things, than one expects
//! bullmq_as_node.rs   what Node does when it takes or ends a job, done here
//! foreign_workers.rs  Sidekiq and Celery run what was sent from here
//! inspect.rs     queues through one interface, and the plan
//! left_alone.rs  keys that no step may touch
//! migration.rs   the steps of a plan, done and taken back under load
//! steps_beside.rs  the steps while the library is at work
//! recognise.rs   every library is named, none misnamed
//! ```

#![allow(clippy::unwrap_used, reason = "tests")]

mod bullmq;
mod bullmq_as_node;
mod bullmq_beside;
mod bullmq_cluster;
mod bullmq_odd;
mod bullmq_outage;
mod bullmq_parents;
mod bullmq_pauses;
mod caches;
mod dialogue;
mod foreign_workers;
mod inspect;
mod left_alone;
mod limiter;
mod locks;
mod migration;
mod recognise;
mod served;
mod sessions;
mod sidekiq;
mod steps_beside;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use redstart::Store;
use redstart_testkit::{Kind, shared};

/// A script in `tests/libraries`.
fn library(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/libraries")
        .join(name)
}

/// How long to wait for what must come: a hang fails, but a campaign may take its time.
fn long() -> Duration {
    Duration::from_secs(redstart_testkit::scale(100, "test seconds"))
}

/// A server that both sides of a test reach by its port.
struct Side {
    port: u16,
    /// The test's name, for processes that it starts.
    test: String,
}

impl Side {
    async fn store(&self) -> Result<Store> {
        let url = format!("redis://127.0.0.1:{}?timeout=10s", self.port);
        Ok(Store::connect(&url).await?)
    }

    /// A shared server.
    async fn of(kind: Kind, test: &str) -> Result<Self> {
        let url = shared(kind).await?.url().to_owned();
        let port = url.rsplit_once(':').context("a URL with a port")?.1;
        Ok(Self::at(port.trim_end_matches('/').parse()?, test))
    }

    /// The engine behind its listener, or what the parent of this process uses.
    fn engine(test: &str) -> Result<Self> {
        match std::env::var("ADOPT_PORT") {
            Ok(port) => Ok(Self::at(port.parse()?, test)),
            Err(_) => Ok(Self::at(served::open()?, test)),
        }
    }

    fn at(port: u16, test: &str) -> Self {
        // As the test runner names it.
        let test = test.split_once("::").map_or(test, |(_, rest)| rest);
        Self {
            port,
            test: test.to_owned(),
        }
    }
}

/// Turns `async fn work(side: Side)` into a test on Redis, on Valkey and on the engine's listener.
macro_rules! on {
    ($work:ident: $name:ident) => {
        mod $name {
            use super::$work;
            use $crate::Side;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis() -> anyhow::Result<()> {
                let name = concat!(module_path!(), "::redis");
                $work(Side::of(redstart_testkit::Kind::Redis, name).await?).await
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn valkey() -> anyhow::Result<()> {
                let name = concat!(module_path!(), "::valkey");
                $work(Side::of(redstart_testkit::Kind::Valkey, name).await?).await
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn engine() -> anyhow::Result<()> {
                let name = concat!(module_path!(), "::engine");
                $work(Side::engine(name)?).await
            }
        }
    };
}
use on;
