//! Starts real servers for Redstart's tests, and breaks them.
//!
//! ```text
//! find.rs      where redis-server, valkey-server and Postgres are
//! process.rs   child processes that never outlive the test
//! server.rs    one redis-server or valkey-server: pause, kill, restart
//! tls.rs       a certificate authority for one test
//! cluster.rs   a Cluster: promotion, failover, slot migration
//! sentinel.rs  a Sentinel group: one master, two replicas, three sentinels
//! proxy.rs     a fault proxy on loopback; resp.rs splits its streams into frames
//! stub.rs      a server that answers what a test says
//! postgres.rs  Postgres in a folder of its own
//! monitor.rs   MONITOR, to count the commands that reach a server
//! backend.rs   the matrix: one test, every backend
//! shared.rs    servers that many tests share, each in its own namespace
//! redis_cli.rs redis-cli, with arguments and input
//! foreign.rs   programs of other languages beside a test
//! child.rs     tests of several processes, by starting the test binary again
//! wait.rs      polling to a deadline
//! scale.rs     counts that the soak raises, and figures that tests measure
//! ```
//!
//! A missing server is an error that names the command that installs it, never a skip.
//!
//! The kit depends neither on `redstart` nor on the engine, since both use it in their tests.

#![forbid(unsafe_code)]

pub mod backend;
#[cfg(feature = "browser")]
pub mod browser;
pub mod child;
pub mod cluster;
pub mod find;
pub mod foreign;
pub mod monitor;
pub mod postgres;
mod process;
pub mod proxy;
mod redis_cli;
mod resp;
mod scale;
pub mod sentinel;
pub mod server;
pub mod shared;
pub mod stub;
pub mod tls;
mod wait;

pub use anyhow;

pub use backend::{Backend, BackendKind, run, run_served};
#[cfg(feature = "browser")]
pub use browser::Browser;
pub use child::Child;
pub use cluster::{Cluster, key_slot};
pub use foreign::{Foreign, Language};
pub use monitor::MonitorTap;
pub use postgres::Postgres;
pub use process::{interrupt, kill_self, terminate};
pub use proxy::Proxy;
pub use redis_cli::redis_cli;
pub use scale::{figure, scale};
pub use sentinel::Sentinel;
pub use server::{Kind, Server};
pub use shared::{SharedServer, shared, shared_cluster};
pub use stub::{Answer, Stub};
pub use wait::{block_until, eventually, wait_until};

use std::sync::atomic::{AtomicU64, Ordering};

/// A namespace that no other test, process or run uses.
///
/// It begins with the name of the test, so that a leftover key says where it came from; everything
/// but letters, digits and `-` becomes `-`.
///
/// ```
/// let a = redstart_testkit::unique_namespace("lock::redis");
/// let b = redstart_testkit::unique_namespace("lock::redis");
/// assert!(a.starts_with("lock--redis-"));
/// assert_ne!(a, b);
/// ```
pub fn unique_namespace(test: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name: String = test
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '-'
            }
        })
        .collect();
    let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    // The random part distinguishes runs when a process id is reused on a long-lived server.
    format!("{name}-{pid:x}-{n:x}-{:08x}", rand::random::<u32>())
}
