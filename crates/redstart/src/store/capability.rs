//! What the servers can do, asked once for each connection.

use std::time::Duration;

use redis::Value;

use tokio::time::Instant;

use super::{
    backend::Backend,
    request::{Body, Request},
};
use crate::error::{Error, Result};

/// The server's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerKind {
    /// The engine inside this process.
    Embedded,
    /// redis-server.
    Redis,
    /// valkey-server.
    Valkey,
}

/// What the server is and which optional commands it has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The server's kind.
    pub server: ServerKind,
    /// Its version: major, minor, patch.
    pub version: (u32, u32, u32),
    /// Whether this is a Cluster.
    pub cluster: bool,
    commands: u32,
}

/// A command that only some servers have, so that a pattern has a fallback for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Optional {
    /// `BF.*`: Bloom filters.
    Bloom,
    /// `DELIFEQ` (Valkey 9): delete if the value is equal.
    DelIfEq,
    /// `DELEX` (Redis 8.4): delete under a condition.
    DelEx,
    /// `XACKDEL` (Redis 8.2): acknowledge and delete.
    XAckDel,
    /// `HEXPIRE` (Redis 7.4, Valkey 9): expiry of fields.
    HExpire,
    /// `SPUBLISH` (7.0): sharded channels.
    ShardedPubSub,
}

const PROBES: [(Optional, &str); 6] = [
    (Optional::Bloom, "bf.add"),
    (Optional::DelIfEq, "delifeq"),
    (Optional::DelEx, "delex"),
    (Optional::XAckDel, "xackdel"),
    (Optional::HExpire, "hexpire"),
    (Optional::ShardedPubSub, "spublish"),
];

impl Capabilities {
    /// Whether the server has an optional command.
    pub fn has(&self, command: Optional) -> bool {
        self.commands & (1 << command as u32) != 0
    }

    /// What a store's server can do; of a Cluster, what all masters can, since they may be of different versions.
    pub(super) async fn read(
        backend: &Backend,
        deadline: Instant,
        hurry: Duration,
    ) -> Result<Self> {
        let pipeline = questions();
        let request = Request::new(Body::all(&pipeline), deadline)
            .hurry(hurry)
            .idempotent(true);
        let Backend::Cluster(cluster) = backend else {
            return Self::parse(backend.request(request).await?, backend.is_embedded());
        };
        let masters = cluster.masters();
        let asked = masters.iter().map(|node| cluster.ask(node, request));
        let mut all: Option<Self> = None;
        for answer in futures_util::future::join_all(asked).await {
            // A master that is down now is asked again when it is connected.
            let known = match answer {
                Ok(answer) => Self::parse(answer, false)?,
                Err(error) if error.is_store_down() && masters.len() > 1 => continue,
                Err(error) => return Err(error),
            };
            all = Some(match all {
                None => known,
                Some(mut all) => {
                    all.version = all.version.min(known.version);
                    all.commands &= known.commands;
                    all
                }
            });
        }
        all.ok_or_else(|| Error::unavailable("no master of the cluster answered"))
    }

    fn parse(answer: Value, embedded: bool) -> Result<Self> {
        let mut replies = answer.into_sequence().unwrap_or_default();
        let probes = replies.pop().unwrap_or(Value::Nil);
        let info: String = match replies.pop() {
            Some(Value::ServerError(error)) => return Err(redis::RedisError::from(error).into()),
            Some(value) => redis::from_redis_value(value)?,
            None => String::new(),
        };
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        let (server, version) = match (field("valkey_version"), embedded) {
            (_, true) => (ServerKind::Embedded, field("redis_version")),
            (Some(version), _) => (ServerKind::Valkey, Some(version)),
            _ => (ServerKind::Redis, field("redis_version")),
        };
        let mut numbers = version
            .unwrap_or("0")
            .split('.')
            .map(|n| n.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        // A server whose rules forbid COMMAND is taken to have none of them.
        let known = probes.into_sequence().unwrap_or_default();
        let commands = PROBES
            .iter()
            .zip(known)
            .fold(0, |set, ((command, _), reply)| match reply {
                Value::Array(row) if !row.is_empty() => set | (1 << *command as u32),
                _ => set,
            });
        Ok(Self {
            server,
            version: (next(), next(), next()),
            cluster: field("redis_mode").or(field("server_mode")) == Some("cluster"),
            commands,
        })
    }
}

fn questions() -> redis::Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.cmd("INFO").arg("server");
    let mut probe = redis::cmd("COMMAND");
    probe.arg("INFO");
    for (_, name) in PROBES {
        probe.arg(name);
    }
    pipeline.add_command(probe);
    pipeline
}

#[cfg(all(test, feature = "engine"))]
mod tests {
    use super::*;
    use crate::Store;

    #[tokio::test]
    async fn an_embedded_store_has_the_commands_of_its_version() {
        for (url, newer) in [("memory://", false), ("memory://?compat=valkey-9", true)] {
            let store = Store::connect(url).await.unwrap();
            let capabilities = store.capabilities().await.unwrap();
            for command in [Optional::DelIfEq, Optional::HExpire] {
                assert_eq!(capabilities.has(command), newer, "{url}: {command:?}");
            }
            assert!(capabilities.has(Optional::Bloom), "{url}");
        }
        let error = Store::connect("memory://?compat=6.2").await.unwrap_err();
        assert!(error.is_config(), "{error}");
    }
}
