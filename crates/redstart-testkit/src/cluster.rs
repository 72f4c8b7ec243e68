//! A Cluster on loopback, formed without redis-cli.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::task::JoinSet;

use crate::{Kind, Server, wait_until};

const SLOTS: u16 = 16384;
const PATIENCE: Duration = Duration::from_secs(60);

/// A running Cluster. Nodes are named by number: first the masters `0..masters`, then the replicas
/// of master 0, of master 1 and so on. The numbers stay when roles change.
///
/// ```no_run
/// # async fn f() -> anyhow::Result<()> {
/// use redstart_testkit::{Cluster, Kind, key_slot};
///
/// let cluster = Cluster::start(Kind::Redis, 3, 1).await?;
/// let old = cluster.owner(key_slot(b"user:1")).await?;
/// cluster.node(old).kill9();
/// let new = cluster.wait_promotion(old).await?;
/// assert_ne!(new, old);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
    masters: usize,
}

/// The settings of a Cluster; made by [`Cluster::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ClusterBuilder {
    kind: Kind,
    others: Vec<(usize, Kind)>,
    masters: usize,
    replicas: usize,
    node_timeout: Duration,
    config: Vec<(String, String)>,
}

impl ClusterBuilder {
    /// Makes one node of another kind, as in a Cluster that is being upgraded.
    pub fn node_kind(mut self, index: usize, kind: Kind) -> Self {
        self.others.push((index, kind));
        self
    }

    /// How many masters, each with an equal share of the slots (default 3).
    pub fn masters(mut self, masters: usize) -> Self {
        self.masters = masters;
        self
    }

    /// How many replicas each master has (default none).
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// After how long a silent node counts as failed (default 2 s). A Cluster that many tests share
    /// and none breaks needs a long one, so that a busy machine is not mistaken for a dead node.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Adds a line to every node's configuration file.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.config.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Starts the nodes, joins them, and waits until every node says that the Cluster is whole.
    ///
    /// # Errors
    ///
    /// If the server program is missing or the Cluster does not form.
    pub async fn start(self) -> Result<Cluster> {
        ensure!(self.masters > 0, "a cluster has at least one master");
        let count = self.masters * (1 + self.replicas);
        let mut starting = JoinSet::new();
        for index in 0..count {
            let other = self.others.iter().find(|(at, _)| *at == index);
            let kind = other.map_or(self.kind, |(_, kind)| *kind);
            let mut node = Server::builder(kind)
                .config("cluster-enabled", "yes")
                .config("cluster-config-file", "nodes.conf")
                .config("cluster-announce-ip", "127.0.0.1")
                .config(
                    "cluster-node-timeout",
                    &self.node_timeout.as_millis().to_string(),
                )
                // A replica is a candidate however old its data is: tests kill masters at any time.
                .config("cluster-replica-validity-factor", "0")
                .config("cluster-allow-replica-migration", "no");
            for (key, value) in &self.config {
                node = node.config(key, value);
            }
            starting.spawn(async move { (index, start_with_bus(node).await) });
        }
        let mut nodes: Vec<Option<Server>> = (0..count).map(|_| None).collect();
        while let Some(started) = starting.join_next().await {
            let (index, node) = started?;
            nodes[index] = Some(node?);
        }
        let nodes: Vec<Server> = nodes.into_iter().flatten().collect();

        let mut ids = Vec::with_capacity(count);
        for node in &nodes {
            ids.push(node.query::<String>(&["CLUSTER", "MYID"]).await?);
        }
        let cluster = Cluster {
            nodes,
            ids,
            masters: self.masters,
        };
        cluster.form(self.replicas).await?;
        Ok(cluster)
    }
}

/// Starts a node whose bus port is a free port too, instead of the port plus 10000.
async fn start_with_bus(node: crate::server::ServerBuilder) -> Result<Server> {
    let mut last = None;
    for _ in 0..5 {
        let bus = crate::process::free_port();
        match node
            .clone()
            .config("cluster-port", &bus.to_string())
            .start()
            .await
        {
            Ok(server) => return Ok(server),
            // The bus port may have been taken in the meantime.
            Err(error) => last = Some(error),
        }
    }
    last.map_or_else(|| bail!("no attempt was made"), Err)
}

impl Cluster {
    /// Describes a Cluster: three masters, no replicas, a node timeout of two seconds.
    pub fn builder(kind: Kind) -> ClusterBuilder {
        ClusterBuilder {
            kind,
            others: Vec::new(),
            masters: 3,
            replicas: 0,
            node_timeout: Duration::from_secs(2),
            config: Vec::new(),
        }
    }

    /// Starts a Cluster for a test that breaks it.
    ///
    /// # Errors
    ///
    /// If the server program is missing or the Cluster does not form.
    pub async fn start(kind: Kind, masters: usize, replicas_per_master: usize) -> Result<Self> {
        Self::builder(kind)
            .masters(masters)
            .replicas(replicas_per_master)
            .start()
            .await
    }

    /// `redis+cluster://` with every node that was started.
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(Server::addr).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// `redis://` URLs of the nodes, as redis-rs's cluster client wants them.
    pub fn node_urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// A node by number.
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// All nodes, in the order of their numbers.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The node that serves `slot`, according to the nodes that are up.
    ///
    /// # Errors
    ///
    /// If no node that is up knows one.
    pub async fn owner(&self, slot: u16) -> Result<usize> {
        for node in self.nodes.iter().filter(|node| node.is_up()) {
            let table = table(node).await?;
            let owner = table.iter().find(|row| row.owns(slot) && !row.failed);
            if let Some(index) = owner.and_then(|row| self.index(&row.id)) {
                return Ok(index);
            }
        }
        bail!("no node serves slot {slot}")
    }

    /// The replicas of a master, according to the first node that is up.
    ///
    /// # Errors
    ///
    /// If no node is up.
    pub async fn replicas_of(&self, master: usize) -> Result<Vec<usize>> {
        let node = self
            .nodes
            .iter()
            .find(|node| node.is_up())
            .context("no node is up")?;
        let rows = table(node).await?;
        Ok(rows
            .iter()
            .filter(|row| row.master.as_deref() == Some(&self.ids[master]))
            .filter_map(|row| self.index(&row.id))
            .collect())
    }

    /// Waits until a replica has taken the place of `dead`, a master that was killed or paused,
    /// and every node that is up sees a whole Cluster again. Returns the new master.
    ///
    /// # Errors
    ///
    /// If none does within a minute.
    pub async fn wait_promotion(&self, dead: usize) -> Result<usize> {
        let what = format!("a replica of node {dead} to be promoted");
        let new = wait_until(&what, PATIENCE, async || {
            for (index, node) in self.nodes.iter().enumerate() {
                if index == dead || !node.is_up() {
                    continue;
                }
                let rows = table(node).await.ok()?;
                let myself = rows.iter().find(|row| row.id == self.ids[index])?;
                let took_over = rows
                    .iter()
                    .find(|row| row.id == self.ids[dead])
                    .is_none_or(|row| row.slots.is_empty());
                let was_replica = index >= self.masters || dead >= self.masters;
                if took_over && was_replica && !myself.slots.is_empty() {
                    return Some(index);
                }
            }
            None
        })
        .await?;
        self.wait_whole().await?;
        Ok(new)
    }

    /// Makes `replica` the master by an orderly failover (its master must be up), and waits for it.
    ///
    /// # Errors
    ///
    /// If it is not the master within a minute.
    pub async fn failover(&self, replica: usize) -> Result<()> {
        let node = &self.nodes[replica];
        let mut asked: Option<Instant> = None;
        wait_until("an orderly failover", PATIENCE, async || {
            if node.role().await.ok()? == "master" {
                return Some(());
            }
            // The servers give up after five seconds, for example if the master was not ready yet; then it has to
            // be requested again.
            if asked.is_none_or(|at| at.elapsed() > Duration::from_secs(6)) {
                node.command(&["CLUSTER", "FAILOVER"]).await.ok()?;
                asked = Some(Instant::now());
            }
            None
        })
        .await?;
        self.wait_whole().await
    }

    /// Waits until every node that is up says `cluster_state:ok`, and all of them agree on
    /// the owner of each slot.
    ///
    /// # Errors
    ///
    /// If that does not happen within a minute.
    pub async fn wait_whole(&self) -> Result<()> {
        wait_until("the cluster to be whole", PATIENCE, async || {
            let mut agreed: Option<Vec<(String, Slots)>> = None;
            for node in self.nodes.iter().filter(|node| node.is_up()) {
                if !whole(node).await.ok()? {
                    return None;
                }
                let mut rows = table(node).await.ok()?;
                rows.retain(|row| !row.slots.is_empty());
                if rows.iter().any(|row| row.failed) {
                    return None;
                }
                let mut view: Vec<_> = rows.into_iter().map(|row| (row.id, row.slots)).collect();
                view.sort();
                match &agreed {
                    Some(first) if *first != view => return None,
                    Some(_) => {}
                    None => agreed = Some(view),
                }
            }
            agreed.map(|_| ())
        })
        .await
    }

    /// Waits until `node`, which was restarted, follows a master and is in sync with it, and every node
    /// that is up knows that.
    ///
    /// # Errors
    ///
    /// If it does not within a minute.
    pub async fn wait_replica(&self, node: usize) -> Result<()> {
        wait_until("a node to return as a replica", PATIENCE, async || {
            for other in self.nodes.iter().filter(|other| other.is_up()) {
                let rows = table(other).await.ok()?;
                let row = rows.into_iter().find(|row| row.id == self.ids[node])?;
                if row.failed || row.master.is_none() {
                    return None;
                }
            }
            Some(())
        })
        .await?;
        self.nodes[node].wait_in_step().await
    }

    /// Moves a slot with all its keys to the master `to`, while clients go on.
    ///
    /// # Errors
    ///
    /// If a node refuses a step.
    pub async fn migrate_slot(&self, slot: u16, to: usize) -> Result<()> {
        let migration = self.begin_migration(slot, to).await?;
        while migration.move_keys(64).await? > 0 {}
        migration.finish().await
    }

    /// Begins to move a slot: from now on its owner answers ASK for keys that it does not have.
    ///
    /// # Errors
    ///
    /// If a node refuses, as for a slot that `to` already has.
    pub async fn begin_migration(&self, slot: u16, to: usize) -> Result<SlotMigration<'_>> {
        let from = self.owner(slot).await?;
        ensure!(from != to, "node {to} already has slot {slot}");
        let migration = SlotMigration {
            cluster: self,
            slot,
            from,
            to,
        };
        migration.announce().await?;
        Ok(migration)
    }

    fn index(&self, id: &str) -> Option<usize> {
        self.ids.iter().position(|other| other == id)
    }

    async fn form(&self, replicas: usize) -> Result<()> {
        let masters = self.masters;
        for (index, node) in self.nodes.iter().enumerate() {
            // Different epochs from the start: otherwise the nodes must first settle a collision.
            let epoch = (index + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch])
                .await?;
            if index < masters {
                let share = |n: usize| n * usize::from(SLOTS) / masters;
                let (first, last) = (share(index).to_string(), (share(index + 1) - 1).to_string());
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])
                    .await?;
            }
        }
        // Each node is introduced to every other one, so that none waits for gossip.
        for (index, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[index + 1..] {
                let (port, bus) = (other.port().to_string(), bus_port(other)?);
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])
                    .await?;
            }
        }
        let all = self.nodes.len();
        wait_until("the nodes to know each other", PATIENCE, async || {
            for node in &self.nodes {
                let rows = table(node).await.ok()?;
                let known = rows.iter().filter(|row| !row.handshake).count();
                if known != all || rows.len() != all {
                    return None;
                }
            }
            Some(())
        })
        .await?;
        for (index, node) in self.nodes.iter().enumerate().skip(masters) {
            let master = &self.ids[(index - masters) / replicas];
            node.command(&["CLUSTER", "REPLICATE", master]).await?;
        }
        self.wait_whole().await?;
        for node in &self.nodes[masters..] {
            node.wait_in_step().await?;
        }
        // Each master must know its replicas, or they would not replace it.
        wait_until("every node to know the replicas", PATIENCE, async || {
            for node in &self.nodes {
                let rows = table(node).await.ok()?;
                if rows.iter().filter(|row| row.master.is_some()).count() != all - masters {
                    return None;
                }
            }
            Some(())
        })
        .await
    }
}

/// A slot that is being moved from one master to another; see [`Cluster::begin_migration`].
#[derive(Debug)]
pub struct SlotMigration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: usize,
    to: usize,
}

impl SlotMigration<'_> {
    /// The node that the slot leaves.
    pub fn from(&self) -> usize {
        self.from
    }

    /// Moves up to `count` keys and returns how many there were.
    ///
    /// # Errors
    ///
    /// If a node refuses.
    pub async fn move_keys(&self, count: usize) -> Result<usize> {
        let source = &self.cluster.nodes[self.from];
        let mut connection = source.client().await?;
        let keys: Vec<Vec<u8>> = redis::cmd("CLUSTER")
            .arg(&["GETKEYSINSLOT", &self.slot.to_string(), &count.to_string()])
            .query_async(&mut connection)
            .await?;
        if keys.is_empty() {
            return Ok(0);
        }
        let mut migrate = redis::cmd("MIGRATE");
        migrate
            .arg("127.0.0.1")
            .arg(self.cluster.nodes[self.to].port())
            .arg("")
            .arg(0)
            .arg(10_000)
            .arg("KEYS")
            .arg(&keys);
        // Late gossip about an earlier migration can make the target forget that it imports the slot.
        for _ in 0..10 {
            match migrate.exec_async(&mut connection).await {
                Err(error) if error.to_string().contains("MOVED") => self.announce().await?,
                result => return result.map(|()| keys.len()).map_err(Into::into),
            }
        }
        bail!("the target does not import slot {}", self.slot)
    }

    /// Tells both nodes that the slot is being moved.
    async fn announce(&self) -> Result<()> {
        let slot = self.slot.to_string();
        let (ids, nodes) = (&self.cluster.ids, &self.cluster.nodes);
        let setslot = ["CLUSTER", "SETSLOT", &slot];
        let importing = [&setslot[..], &["IMPORTING", &ids[self.from]]].concat();
        nodes[self.to].command(&importing).await?;
        let migrating = [&setslot[..], &["MIGRATING", &ids[self.to]]].concat();
        nodes[self.from].command(&migrating).await?;
        Ok(())
    }

    /// Gives the slot to its new owner. The keys must have been moved.
    ///
    /// # Errors
    ///
    /// If a node refuses.
    pub async fn finish(self) -> Result<()> {
        let (slot, id) = (self.slot.to_string(), &self.cluster.ids[self.to]);
        let command = ["CLUSTER", "SETSLOT", &slot, "NODE", id];
        // The new owner first: in the other order nobody would have the slot for a moment.
        self.cluster.nodes[self.to].command(&command).await?;
        self.cluster.nodes[self.from].command(&command).await?;
        for (index, node) in self.cluster.nodes.iter().enumerate() {
            let told = index == self.to || index == self.from;
            if !told && node.is_up() && node.role().await? == "master" {
                node.command(&command).await?;
            }
        }
        Ok(())
    }
}

/// Ranges of slots, ends included.
type Slots = Vec<(u16, u16)>;

/// One line of `CLUSTER NODES`.
#[derive(Debug)]
struct Row {
    id: String,
    master: Option<String>,
    failed: bool,
    handshake: bool,
    slots: Slots,
}

impl Row {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (id, _addr, flags) = (words.next()?, words.next()?, words.next()?);
        let master = words.next()?;
        let mut slots = Vec::new();
        // Ping, pong, epoch and link state are between the master and the slots.
        for word in words.skip(4) {
            // `[slot->-node]` is a migration, not a range.
            if word.starts_with('[') {
                continue;
            }
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            slots.push((first.parse().ok()?, last.parse().ok()?));
        }
        Some(Self {
            id: id.to_owned(),
            master: (master != "-").then(|| master.to_owned()),
            failed: flags.split(',').any(|flag| flag == "fail"),
            handshake: flags.split(',').any(|flag| flag == "handshake"),
            slots,
        })
    }

    fn owns(&self, slot: u16) -> bool {
        self.slots
            .iter()
            .any(|&(first, last)| (first..=last).contains(&slot))
    }
}

async fn table(node: &Server) -> Result<Vec<Row>> {
    let nodes: String = node.query(&["CLUSTER", "NODES"]).await?;
    nodes
        .lines()
        .map(|line| Row::parse(line).with_context(|| format!("odd line of CLUSTER NODES: {line}")))
        .collect()
}

async fn whole(node: &Server) -> Result<bool> {
    let info: String = node.query(&["CLUSTER", "INFO"]).await?;
    let has = |field: &str| info.lines().any(|line| line == field);
    Ok(has("cluster_state:ok") && has("cluster_slots_ok:16384"))
}

fn bus_port(node: &Server) -> Result<String> {
    let file = std::fs::read_to_string(node.dir().join("server.conf"))?;
    let line = file
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("cluster-port "));
    Ok(line.context("a node has no bus port")?.to_owned())
}

/// The Cluster slot of a key: of its `{tag}` when it has one that is not empty.
///
/// ```
/// use redstart_testkit::key_slot;
///
/// assert_eq!(key_slot(b"foo"), 12182);
/// assert_eq!(key_slot(b"app:lock:{foo}:fence"), 12182);
/// assert_ne!(key_slot(b"{}foo"), 12182);
/// ```
pub fn key_slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}
