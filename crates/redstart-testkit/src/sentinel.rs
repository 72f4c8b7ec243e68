//! A Sentinel group on loopback.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::{Kind, Server, wait_until};

const NAME: &str = "mymaster";
const PATIENCE: Duration = Duration::from_secs(60);

/// A sentinel whose timer is 2 s late takes part in nothing for 30 s (TILT), reconnects a lost link only every 15 s, and
/// waits 10 s between elections. On a busy machine two of three can be in that state for longer than any test waits, so
/// that nobody is elected; for a test, acting late is better than not acting.
const TIMING: [&str; 16] = [
    "SENTINEL",
    "DEBUG",
    "tilt-trigger",
    "60000",
    "tilt-period",
    "100",
    "min-link-reconnect-period",
    "1000",
    "election-timeout",
    "3000",
    "publish-period",
    "500",
    "ask-period",
    "500",
    "info-period",
    "1000",
];

/// One master, two replicas and three sentinels, which agree by two votes.
///
/// Servers have numbers: 0 is the first master, 1 and 2 its replicas. The numbers stay when roles
/// change.
///
/// ```no_run
/// # async fn f() -> anyhow::Result<()> {
/// use redstart_testkit::{Kind, Sentinel};
///
/// let group = Sentinel::start(Kind::Redis).await?;
/// group.server(0).kill9();
/// let new = group.wait_promotion(0).await?;
/// group.server(0).restart().await?;
/// group.wait_replica(0).await?;
/// assert_eq!(group.master().await?, new);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Sentinel {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinel {
    /// Starts the group and waits until every sentinel knows all the others and both replicas.
    ///
    /// # Errors
    ///
    /// If the server program is missing or the group does not form.
    pub async fn start(kind: Kind) -> Result<Self> {
        let master = Server::builder(kind).start().await?;
        let port = master.port();
        let mut servers = vec![master];
        for _ in 0..2 {
            servers.push(
                Server::builder(kind)
                    .replica_of(&servers[0])
                    .start()
                    .await?,
            );
        }
        for replica in &servers[1..] {
            replica.wait_in_step().await?;
        }
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            let sentinel = Server::builder(kind)
                .sentinel()
                .config("sentinel", &format!("monitor {NAME} 127.0.0.1 {port} 2"))
                // Long while the group forms: a busy machine must not look like a dead master.
                .config("sentinel", &format!("down-after-milliseconds {NAME} 60000"))
                .config("sentinel", &format!("failover-timeout {NAME} 5000"))
                .config("sentinel", &format!("parallel-syncs {NAME} 2"));
            let sentinel = sentinel.start().await?;
            sentinel.command(&TIMING).await?;
            sentinels.push(sentinel);
        }
        let group = Self { servers, sentinels };
        wait_until("the sentinels to know each other", PATIENCE, async || {
            for sentinel in &group.sentinels {
                let state = state(sentinel).await.ok()?;
                let is = |field: &str, value: &str| {
                    state
                        .chunks(2)
                        .any(|pair| pair[0] == field && pair[1] == value)
                };
                let complete = is("num-other-sentinels", "2")
                    && is("num-slaves", "2")
                    && is("flags", "master");
                if !complete {
                    return None;
                }
            }
            Some(())
        })
        .await
        .with_context(|| group.sentinels.iter().map(tail).collect::<String>())?;
        for sentinel in &group.sentinels {
            let down_after = ["SENTINEL", "SET", NAME, "down-after-milliseconds", "2000"];
            sentinel.command(&down_after).await?;
        }
        Ok(group)
    }

    /// `redis+sentinel://h1:p,h2:p,h3:p/mymaster/0`.
    pub fn url(&self) -> String {
        let sentinels: Vec<String> = self.sentinels.iter().map(Server::addr).collect();
        format!("redis+sentinel://{}/{NAME}/0", sentinels.join(","))
    }

    /// The name under which the sentinels watch the master.
    pub fn master_name(&self) -> &'static str {
        NAME
    }

    /// A server by number.
    pub fn server(&self, index: usize) -> &Server {
        &self.servers[index]
    }

    /// The master and the replicas, in the order of their numbers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The sentinels themselves.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The current master, according to the sentinels.
    ///
    /// # Errors
    ///
    /// If no sentinel is up.
    pub async fn master(&self) -> Result<usize> {
        let sentinel = self.any_sentinel()?;
        let port = master_port(sentinel).await?;
        self.servers
            .iter()
            .position(|server| server.port() == port)
            .context("the sentinels name a master that is not of this group")
    }

    /// Waits until another server has taken the place of `old`: every sentinel that is up names it,
    /// and it says itself that it is the master. Returns the new master.
    ///
    /// # Errors
    ///
    /// If none does within a minute.
    pub async fn wait_promotion(&self, old: usize) -> Result<usize> {
        let old_port = self.servers[old].port();
        wait_until("the sentinels to promote a replica", PATIENCE, async || {
            let mut agreed = None;
            for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_up()) {
                let port = master_port(sentinel).await.ok()?;
                if port == old_port || agreed.is_some_and(|other| other != port) {
                    return None;
                }
                agreed = Some(port);
            }
            let new = self
                .servers
                .iter()
                .position(|server| Some(server.port()) == agreed)?;
            let role = self.servers[new].role().await.ok()?;
            (role == "master").then_some(new)
        })
        .await
        .with_context(|| self.sentinels.iter().map(tail).collect::<String>())
    }

    /// Makes the sentinels replace the master although it is up. Returns the new master.
    ///
    /// # Errors
    ///
    /// If they have not within a minute.
    pub async fn failover(&self) -> Result<usize> {
        let old = self.master().await?;
        self.wait_settled(old).await?;
        let sentinel = self.any_sentinel()?;
        let mut asked: Option<Instant> = None;
        wait_until("the sentinels to replace a master", PATIENCE, async || {
            if self.master().await.ok()? != old {
                return Some(());
            }
            // They refuse shortly after another failover, and give up if no replica has reported
            // recently; then the failover has to be requested again.
            if asked.is_none_or(|at| at.elapsed() > Duration::from_secs(6)) {
                let _ = sentinel.command(&["SENTINEL", "FAILOVER", NAME]).await;
                asked = Some(Instant::now());
            }
            None
        })
        .await
        .with_context(|| tail(sentinel))?;
        self.wait_promotion(old).await
    }

    /// Waits until every sentinel has heard from every other server that it is a replica. One that
    /// still remembers a server as a stray master would turn it into a replica when it is promoted.
    async fn wait_settled(&self, master: usize) -> Result<()> {
        let replicas: Vec<String> = (0..self.servers.len())
            .filter(|&index| index != master && self.servers[index].is_up())
            .map(|index| self.servers[index].port().to_string())
            .collect();
        wait_until("the sentinels to know all replicas", PATIENCE, async || {
            for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_up()) {
                let words = ["SENTINEL", "REPLICAS", NAME];
                let rows: Vec<HashMap<String, String>> = sentinel.query(&words).await.ok()?;
                let settled = |port: &String| {
                    let is = |row: &HashMap<String, String>, field: &str, value: &str| {
                        row.get(field).is_some_and(|text| text == value)
                    };
                    rows.iter().any(|row| {
                        is(row, "port", port)
                            && is(row, "flags", "slave")
                            && is(row, "role-reported", "slave")
                    })
                };
                if !replicas.iter().all(settled) {
                    return None;
                }
            }
            Some(())
        })
        .await
    }

    fn any_sentinel(&self) -> Result<&Server> {
        let up = self.sentinels.iter().find(|sentinel| sentinel.is_up());
        up.context("no sentinel is up")
    }

    /// Waits until `server`, which was restarted, follows the master and is in sync with it.
    ///
    /// # Errors
    ///
    /// If it does not within a minute.
    pub async fn wait_replica(&self, server: usize) -> Result<()> {
        wait_until("a server to return as a replica", PATIENCE, async || {
            let role = self.servers[server].role().await.ok()?;
            (role == "slave").then_some(())
        })
        .await?;
        self.servers[server].wait_in_step().await
    }
}

async fn master_port(sentinel: &Server) -> Result<u16> {
    let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
    let (_host, port): (String, u16) = sentinel.query(&words).await?;
    Ok(port)
}

/// Fields and values, alternating.
async fn state(sentinel: &Server) -> Result<Vec<String>> {
    let mut state: Vec<String> = sentinel.query(&["SENTINEL", "MASTER", NAME]).await?;
    state.truncate(state.len() / 2 * 2);
    Ok(state)
}

/// The end of a sentinel's log, for the message of a failure.
fn tail(sentinel: &Server) -> String {
    let log = sentinel.log();
    let lines: Vec<&str> = log.lines().collect();
    let last = lines[lines.len().saturating_sub(15)..].join("\n");
    format!("sentinel on port {}:\n{last}\n", sentinel.port())
}
