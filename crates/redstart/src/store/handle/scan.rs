//! Keys of all nodes, found by SCAN.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::Store;
use crate::{
    error::{Error, Result},
    store::{backend::Backend, command::Connection, pool::Node, request::Request},
};

impl Store {
    /// All keys that match a glob pattern, found by SCAN without blocking the server, on every node.
    ///
    /// A key that exists all the time is found, unless its slot moves more than once meanwhile; one that comes or goes may or may
    /// not be. If slots of a Cluster move, all nodes are read twice.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query); [`is_config`](Error::is_config) for a store made from a `ClusterConnection` of redis-rs, which cannot
    /// ask each node.
    pub async fn scan(&self, pattern: &str) -> Result<Vec<String>> {
        let nodes = self.scanned_nodes().await?;
        let before = self.all_slots(&nodes).await;
        let mut found = self.scan_bytes(pattern, usize::MAX, None).await?.keys;
        let nodes = self.scanned_nodes().await?;
        let after = self.all_slots(&nodes).await;
        if before != after || after.1.iter().flatten().any(|own| is_moving(own)) {
            // A key may have moved to a node that was read before it came. There it is found now.
            found.extend(self.scan_bytes(pattern, usize::MAX, None).await?.keys);
            found.sort_unstable();
            found.dedup();
        }
        let text = |key| String::from_utf8(key).map_err(|_| Error::codec("a key is not UTF-8"));
        found.into_iter().map(text).collect()
    }

    /// Some keys that match a glob pattern: SCAN on every node, until a node has given `at_most` keys or all it has.
    ///
    /// The server returns keys in the order of their hashes, which has nothing to do with their names or ages, so a part
    /// of them is a fair sample. A pattern that matches little on a large server still costs at most `at_most` / 100
    /// pages on each node.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// let store = redstart::Store::connect("memory://").await?;
    /// store.query::<()>(redis::cmd("SET").arg("greeting").arg("hello")).await?;
    /// assert_eq!(store.sample("*", 100).await?, [b"greeting"]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query); [`is_config`](Error::is_config) for a store made from a `ClusterConnection` of redis-rs, which cannot
    /// ask each node.
    pub async fn sample(&self, pattern: &str, at_most: usize) -> Result<Vec<Vec<u8>>> {
        Ok(self.scan_bytes(pattern, at_most, None).await?.keys)
    }

    /// As [`sample`](Self::sample), for keys that may be rare: it goes on for as long as `time` allows, however few of the keys match, and says whether it has
    /// seen all of them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use std::time::Duration;
    /// # let store = redstart::Store::connect("memory://").await?;
    /// store.query::<()>(redis::cmd("SET").arg("greeting").arg("hello")).await?;
    /// let sample = store.sample_for("greet*", 100, Duration::from_secs(1)).await?;
    /// assert_eq!((sample.keys, sample.complete), (vec![b"greeting".to_vec()], true));
    /// # assert!(store.sample_for("greet*", 100, Duration::MAX).await?.complete);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query); [`is_config`](Error::is_config) for a store made from a `ClusterConnection` of redis-rs, which cannot
    /// ask each node.
    pub async fn sample_for(
        &self,
        pattern: &str,
        at_most: usize,
        time: Duration,
    ) -> Result<Sample> {
        let ends = Instant::now() + time.min(crate::duration::LONGEST);
        self.scan_bytes(pattern, at_most, Some(ends)).await
    }

    /// Without a time the pages are bounded by the keys that are wanted.
    async fn scan_bytes(
        &self,
        pattern: &str,
        at_most: usize,
        ends: Option<Instant>,
    ) -> Result<Sample> {
        let mut found = std::collections::BTreeSet::new();
        let mut complete = true;
        // Large pages where few keys of a page match.
        let count = if ends.is_some() && pattern != "*" {
            1000
        } else {
            at_most.clamp(10, 500)
        };
        let page = |cursor: u64| {
            let mut cmd = redis::cmd("SCAN");
            cmd.arg(cursor)
                .arg("MATCH")
                .arg(pattern)
                .arg("COUNT")
                .arg(count);
            cmd
        };
        let nodes = self.scanned_nodes().await?;
        let before = match ends {
            Some(_) => self.processes(&nodes).await,
            None => None,
        };
        for node in &nodes {
            let (mut cursor, mut here, mut pages) = (0, 0_usize, 0_usize);
            loop {
                let reply = self.ask_node(node.as_ref(), &page(cursor)).await?;
                let (next, keys): (u64, Vec<Vec<u8>>) = redis::from_redis_value(reply)?;
                let left = at_most.saturating_sub(here);
                here = here.saturating_add(keys.len());
                pages += 1;
                found.extend(keys.into_iter().take(left));
                cursor = next;
                if cursor == 0 {
                    complete &= here <= at_most;
                    break;
                }
                let is_over = match ends {
                    Some(ends) => Instant::now() >= ends,
                    None => pages > at_most / 100,
                };
                if here >= at_most || is_over {
                    complete = false;
                    break;
                }
            }
        }
        if complete && ends.is_some() {
            // A cursor means nothing to another process, and keys that move to a node that was read before are missed.
            let nodes = self.scanned_nodes().await?;
            complete = before.is_some() && self.processes(&nodes).await == before;
        }
        Ok(Sample {
            keys: found.into_iter().collect(),
            complete,
        })
    }

    /// The masters that there are now; `None` is the one server.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a Cluster whose nodes this store cannot ask one by one.
    pub(in crate::store) async fn scanned_nodes(&self) -> Result<Vec<Option<Arc<Node>>>> {
        match &*self.shared.backend {
            Backend::Cluster(cluster) => {
                let masters = cluster.current_masters(self.ends()).await;
                Ok(masters.into_iter().map(Some).collect())
            }
            other if other.is_cluster() => Err(Error::config(
                "a store made from a ClusterConnection cannot ask every node of the Cluster: make it from a \
                 redis+cluster:// URL",
            )),
            _ => Ok(vec![None]),
        }
    }

    /// As [`scanned_nodes`](Self::scanned_nodes), with the number of the slot table that names them.
    pub(in crate::store) async fn numbered_nodes(&self) -> Result<(Vec<Option<Arc<Node>>>, u64)> {
        match &*self.shared.backend {
            Backend::Cluster(cluster) => {
                let (masters, version) = cluster.numbered_masters(self.ends()).await;
                Ok((masters.into_iter().map(Some).collect(), version))
            }
            _ => Ok((self.scanned_nodes().await?, 0)),
        }
    }

    pub(in crate::store) async fn ask_node(
        &self,
        node: Option<&Arc<Node>>,
        cmd: &Cmd,
    ) -> Result<Value> {
        let request = Request::one(cmd, self.ends()).hurry(self.hurry());
        request.body.check(Connection::Shared)?;
        match (&*self.shared.backend, node) {
            (Backend::Cluster(cluster), Some(node)) => cluster.ask(node, request).await,
            _ => self.request(request).await,
        }
    }

    /// Which processes have which slots, by their own word; `None` if a server does not say who it is, or while a slot moves: its
    /// keys are at two nodes, and go from one to the other.
    async fn processes(&self, nodes: &[Option<Arc<Node>>]) -> Option<(u64, Vec<(String, String)>)> {
        let version = self.slots_version();
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let mut processes = Vec::with_capacity(nodes.len());
        for node in nodes {
            let reply = self.ask_node(node.as_ref(), &info).await.ok()?;
            let text: String = redis::from_redis_value(reply).ok()?;
            let mut lines = text.lines();
            let id = lines.find_map(|line| line.strip_prefix("run_id:"))?;
            let slots = self.own_slots(node.as_ref()).await;
            let slots = slots.filter(|own| !is_moving(own))?;
            processes.push((id.to_owned(), slots));
        }
        Some((version, processes))
    }

    /// The slots of a node by its own word, as CLUSTER NODES shows them; `None` if it does not say. Both ends of a move know of
    /// its end at once, and the node that gives the slot table may hear of it later. Without a Cluster there are none.
    pub(in crate::store) async fn own_slots(&self, node: Option<&Arc<Node>>) -> Option<String> {
        if node.is_none() {
            return Some(String::new());
        }
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("NODES");
        let reply = self.ask_node(node, &cmd).await.ok()?;
        let text: String = redis::from_redis_value(reply).ok()?;
        // Id, address, flags, master, two times, epoch, state of the link, slots.
        let mut rows = text.lines().map(|line| line.splitn(9, ' '));
        let mut own = rows.find(|row| {
            let flags = row.clone().nth(2);
            flags.is_some_and(|flags| flags.split(',').any(|flag| flag == "myself"))
        })?;
        Some(own.nth(8).unwrap_or_default().to_owned())
    }

    /// Which slots the nodes have, by the table and by their own word.
    async fn all_slots(&self, nodes: &[Option<Arc<Node>>]) -> (u64, Vec<Option<String>>) {
        let own = nodes.iter().map(|node| self.own_slots(node.as_ref()));
        let own = futures_util::future::join_all(own).await;
        (self.slots_version(), own)
    }
}

/// What [`Store::sample_for`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// The keys, in no order that means anything.
    pub keys: Vec<Vec<u8>>,
    /// Whether these are all keys that match: every node was asked to its end, no other server took its place meanwhile, and no
    /// slot moved or was being moved. `false` also if a server does not answer `INFO` or `CLUSTER NODES`, which tell that.
    pub complete: bool,
}

/// A node shows the moves of its own slots among them: `[slot->-node]` or `[slot-<-node]`.
fn is_moving(own_slots: &str) -> bool {
    own_slots.contains('[')
}
