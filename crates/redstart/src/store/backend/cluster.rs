//! A Cluster: the slot table, connections to each node, and the redirections.
//!
//! redis-rs has a cluster connection, and a [`Store`](crate::Store) can be made from one. It is not what
//! `redis+cluster://` uses, because it repeats a write whose reply was lost; here such a write is reported.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::time::{Instant, timeout_at};

use crate::{
    error::{Error, Result},
    store::{
        location::{Address, Settings},
        pool::{Node, ReplicaRead, read_replica},
        request::{Body, BoxFuture, Request},
        retry::persist,
        transport::Dial,
    },
    watch,
};

mod owner;
mod pipeline;
mod refresh;
mod route;
mod topology;

use owner::{Owner, Redirect, redirect};
use refresh::{Readings, Refreshing};
use route::{Gather, Route, route};
pub(in crate::store) use route::{Touched, touched};
use topology::Topology;

pub(crate) struct Cluster {
    seeds: Vec<Address>,
    settings: Settings,
    topology: ArcSwap<Topology>,
    /// Tables are compared and installed one at a time.
    installing: Mutex<()>,
    /// Readings of the table for those who ask every master.
    readings: Readings,
    /// Nodes that own no slot in the table: named by a redirection, or asked only for the table.
    others: Mutex<Vec<Arc<Node>>>,
    /// Rises when the owner of a slot is another one.
    version: watch::Sender<u64>,
    /// The background task that reads the table: its number while it runs, and when it has to have reported.
    refreshing: Mutex<Refreshing>,
    turn: AtomicUsize,
    /// When the table was last read because no replica answered.
    missed: Mutex<Option<Instant>>,
    /// How often a redirection was followed, by slot; slots share counters. The last counter is for all slots.
    redirections: [AtomicU32; COUNTERS + 1],
}

/// How often the table is read because no replica answers.
const REFRESH_MISSED: Duration = Duration::from_secs(10);
const COUNTERS: usize = 256;

impl Cluster {
    /// Nothing is asked yet.
    fn new(seeds: Vec<Address>, settings: Settings) -> Self {
        Self {
            seeds,
            topology: ArcSwap::from_pointee(Topology::empty()),
            installing: Mutex::default(),
            readings: Readings::default(),
            others: Mutex::default(),
            version: watch::Sender::new(0),
            refreshing: Mutex::default(),
            turn: AtomicUsize::new(0),
            missed: Mutex::new(None),
            redirections: [const { AtomicU32::new(0) }; COUNTERS + 1],
            settings,
        }
    }

    pub(crate) async fn connect(seeds: Vec<Address>, settings: Settings) -> Result<Arc<Self>> {
        let cluster = Arc::new(Self::new(seeds, settings));
        let within = cluster.settings.deadline.max(Duration::from_secs(1));
        tokio::time::timeout(within, cluster.refresh(None, within))
            .await
            .map_err(|_| Error::timeout("no node of the cluster answered in time"))??;
        Ok(cluster)
    }

    /// Rises when another node owns a slot.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        self.topology.load().masters().to_vec()
    }

    /// Masters and replicas by the table that was read last.
    pub(crate) fn servers(&self) -> Vec<Address> {
        let topology = self.topology.load();
        let masters = topology.masters().iter();
        let masters = masters.filter_map(|node| node.dial().address().cloned());
        masters.chain(topology.replicas().iter().cloned()).collect()
    }

    /// Changes when a request for this slot, or for any slot, was answered by a node that the table does not name for it.
    /// Nobody may listen for changes there yet.
    #[cfg(feature = "caching")]
    pub(crate) fn redirections(&self, slot: Option<u16>) -> u32 {
        let at = slot.map_or(COUNTERS, |slot| usize::from(slot) % COUNTERS);
        self.redirections[at].load(Ordering::Acquire)
    }

    fn count_redirection(&self, slot: u16) {
        for at in [usize::from(slot) % COUNTERS, COUNTERS] {
            self.redirections[at].fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.topology.load().owner(slot).cloned()
    }

    /// A master, in turn; one that answers if there is one.
    pub(crate) fn any(&self) -> Option<Arc<Node>> {
        let topology = self.topology.load();
        let masters = topology.masters();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let at = |step: usize| &masters[(turn + step) % masters.len()];
        (0..masters.len())
            .map(at)
            .find(|node| !node.is_troubled())
            .or_else(|| (!masters.is_empty()).then(|| at(0)))
            .cloned()
    }

    /// The node at an address, with the connections that it has already.
    fn node(&self, address: &Address) -> Arc<Node> {
        if let Some(node) = self.topology.load().find(address) {
            return node.clone();
        }
        let mut others = self.others.lock();
        if let Some(node) = others.iter().find(|node| node.is_at(address)) {
            return node.clone();
        }
        let dial = Dial::server(address.clone(), self.settings.clone());
        let node = Arc::new(Node::new(dial));
        others.push(node.clone());
        node
    }

    /// The node of a replica to read from, with the connections that it has already; `None` if replicas are not asked.
    fn reader(&self, address: &Address) -> Option<Arc<Node>> {
        if !self.settings.replica_reads {
            return None;
        }
        if let Some(node) = self.topology.load().find_reader(address) {
            return Some(node.clone());
        }
        let mut settings = self.settings.clone();
        settings.read_only = true;
        Some(Arc::new(Node::new(Dial::server(address.clone(), settings))))
    }

    /// Asks the replicas of the owner of a slot; `None` if the owner has to be asked.
    async fn read_replica(
        self: &Arc<Self>,
        slot: u16,
        request: Request<'_>,
    ) -> Option<Result<Value>> {
        let readers = self.topology.load().readers(slot).to_vec();
        match read_replica(&readers, request).await {
            ReplicaRead::Answered(result) => Some(result),
            ReplicaRead::Missed { moved } => {
                let now = Instant::now();
                let mut missed = self.missed.lock();
                // There may be other replicas by now, and nothing else says so.
                if moved || missed.is_none_or(|missed| now >= missed + REFRESH_MISSED) {
                    *missed = Some(now);
                    drop(missed);
                    self.refresh_in_background(None);
                }
                None
            }
        }
    }

    pub(crate) async fn request(self: &Arc<Self>, request: Request<'_>) -> Result<Value> {
        let slot = match (request.slot, request.body) {
            (Some(slot), _) => Some(slot),
            (None, Body::One(cmd)) => match route(cmd) {
                Route::Slot(slot) => Some(slot),
                Route::Any => None,
                Route::AllMasters(gather) => {
                    let all: BoxFuture<'_, _> = Box::pin(self.everywhere(request, cmd, gather));
                    return all.await;
                }
                Route::Split(parts, gather) => {
                    let all: BoxFuture<'_, _> = Box::pin(self.split(request, parts, gather));
                    return all.await;
                }
                Route::Nowhere(error) => return Err(error),
            },
            (None, Body::Many { pipeline, .. }) if pipeline.is_transaction() => one_slot(pipeline)?,
            (None, Body::Many { .. }) => {
                let all: BoxFuture<'_, _> = Box::pin(self.spread(request));
                return all.await;
            }
        };
        self.at(slot, request).await
    }

    /// Sends to the owner of the slot and follows where it leads.
    async fn at(self: &Arc<Self>, slot: Option<u16>, request: Request<'_>) -> Result<Value> {
        if request.stale
            && self.settings.replica_reads
            && let Some(slot) = slot
        {
            let read: BoxFuture<'_, _> = Box::pin(self.read_replica(slot, request));
            if let Some(result) = read.await {
                return result;
            }
        }
        let node = match slot {
            Some(slot) => self.owner(slot),
            None => self.any(),
        };
        let mut first = None;
        if let Some(node) = &node {
            match node.link().once(request).await {
                Some(Ok(value)) => return Ok(value),
                Some(Err(failure)) => first = Some(failure),
                None => {}
            }
        }
        let follow: BoxFuture<'_, _> = Box::pin(async move {
            let mut owner = Owner {
                cluster: self,
                slot,
                last: node,
                next: None,
            };
            persist(&mut owner, request, first).await
        });
        follow.await
    }

    /// Where MOVED leads, after having the table read again. Who is asked for by ASK alone is not the owner yet.
    pub(crate) fn redirected(
        self: &Arc<Self>,
        error: &RedisError,
        asked: Option<&Address>,
    ) -> Option<Arc<Node>> {
        let node = match redirect(error, asked) {
            Some(Redirect::Moved(to)) => to.map(|to| self.node(&to)),
            _ => None,
        };
        self.refresh_in_background(node.clone());
        node
    }

    pub(crate) async fn ensure(&self, deadline: Instant) -> Result<()> {
        for node in self.masters() {
            node.link().ensure(deadline).await?;
        }
        Ok(())
    }

    /// Connections made so far, over all nodes, and changes of the table.
    pub(crate) fn generation(&self) -> u64 {
        let topology = self.topology.load();
        let masters = topology.masters().iter();
        masters
            .map(|node| node.generation())
            .fold(*self.version.borrow(), u64::wrapping_add)
    }

    /// Sends to one node, by all the rules. If it is down, another one may have taken its place, so the table is read
    /// again for the next call.
    pub(crate) async fn ask(self: &Arc<Self>, node: &Node, request: Request<'_>) -> Result<Value> {
        let reply = node.link().persist(request, None).await;
        if reply.as_ref().is_err_and(Error::is_store_down)
            && !crate::mend::is_missing("the map is read after a time-out")
        {
            self.refresh_in_background(None);
        }
        reply
    }

    /// Changes with the table of slots.
    pub(crate) fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// The masters by a table that is read now, for requests that no redirection corrects. If it cannot be read, those
    /// that are known.
    pub(crate) async fn current_masters(&self, deadline: Instant) -> Vec<Arc<Node>> {
        let read = timeout_at(deadline, self.read_after_now(deadline)).await;
        if let Ok(Err(error)) = read {
            tracing::debug!(%error, "the slot table cannot be read");
        }
        self.masters()
    }

    /// As [`current_masters`](Self::current_masters), with a number that is another one in a table where a slot has another owner.
    pub(crate) async fn numbered_masters(&self, deadline: Instant) -> (Vec<Arc<Node>>, u64) {
        self.current_masters(deadline).await;
        let topology = self.topology.load();
        (topology.masters().to_vec(), topology.version)
    }

    async fn everywhere(
        self: &Arc<Self>,
        request: Request<'_>,
        cmd: &Cmd,
        gather: Gather,
    ) -> Result<Value> {
        let masters = self.current_masters(request.deadline).await;
        let part = request.with(Body::One(cmd), None);
        let replies = join_all(masters.iter().map(|node| self.ask(node, part))).await;
        gather.all(whole(&request, replies)?)
    }

    async fn split(
        self: &Arc<Self>,
        request: Request<'_>,
        parts: Vec<route::Part>,
        gather: Gather,
    ) -> Result<Value> {
        let replies = join_all(parts.iter().map(|part| {
            self.at(
                Some(part.slot),
                request.with(Body::One(&part.cmd), Some(part.slot)),
            )
        }))
        .await;
        let replies = whole(&request, replies)?;
        gather.split(parts.iter().map(|part| &part.positions[..]), replies)
    }
}

/// All replies, or the first error. If a part was or may have been carried out, the whole is in doubt.
fn whole(request: &Request<'_>, replies: Vec<Result<Value>>) -> Result<Vec<Value>> {
    let any_done = replies.iter().any(|reply| match reply {
        Ok(_) => true,
        Err(error) => error.is_in_doubt(),
    });
    let replies: Result<Vec<Value>> = replies.into_iter().collect();
    replies.map_err(|error| {
        let in_doubt = any_done && !request.is_harmless();
        error.doubt(in_doubt)
    })
}

/// The slot of all commands of a transaction.
fn one_slot(pipeline: &Pipeline) -> Result<Option<u16>> {
    let several = || Error::config("a transaction over several slots cannot be atomic");
    let mut slot = None;
    for cmd in pipeline.cmd_iter() {
        match (route(cmd), slot) {
            (Route::Slot(new), Some(old)) if new != old => return Err(several()),
            (Route::Slot(new), _) => slot = Some(new),
            (Route::Any, _) => {}
            (Route::Nowhere(error), _) => return Err(error),
            (Route::AllMasters(_) | Route::Split(..), _) => return Err(several()),
        }
    }
    Ok(slot)
}

#[cfg(test)]
mod tests {
    use super::{topology::Table, *};

    const INFO: &str = "cluster_state:ok\r\ncluster_current_epoch:";

    /// A table in which one node has all slots.
    fn table(port: i64, epoch: u64) -> Table {
        let host = Value::BulkString(b"127.0.0.1".to_vec());
        let node = Value::Array(vec![host, Value::Int(port)]);
        let all = Value::Array(vec![Value::Int(0), Value::Int(16_383), node]);
        Table::parse(Value::Array(vec![all]), &format!("{INFO}{epoch}"), None).unwrap()
    }

    fn cluster(seeds: Vec<Address>) -> Cluster {
        Cluster::new(seeds, Settings::default())
    }

    fn owner(cluster: &Cluster) -> String {
        cluster.owner(0).unwrap().dial().place()
    }

    #[test]
    fn an_older_table_does_not_replace_one_that_was_installed_meanwhile() {
        let cluster = cluster(Vec::new());
        assert!(cluster.install_newer(table(7001, 1)).is_none());
        let known = cluster.topology.load_full();
        // Created again: an older table, and nobody else has a newer one.
        cluster.install_unless_changed(table(7002, 0), &known);
        assert!(owner(&cluster).contains("7002"));
        let known = cluster.topology.load_full();
        assert!(cluster.install_newer(table(7003, 5)).is_none());
        cluster.install_unless_changed(table(7004, 0), &known);
        assert!(owner(&cluster).contains("7003"));
    }

    #[test]
    fn a_table_has_another_number_if_a_slot_has_another_owner() {
        let cluster = cluster(Vec::new());
        let number = || cluster.topology.load().version;
        assert!(cluster.install_newer(table(7001, 1)).is_none());
        let first = number();
        assert!(cluster.install_newer(table(7001, 2)).is_none());
        assert_eq!(number(), first);
        assert!(cluster.install_newer(table(7002, 3)).is_none());
        assert_eq!((number(), cluster.version()), (first + 1, first + 1));
    }

    /// A node that answers every question for the table with this one.
    async fn node(owner: i64, epoch: u64) -> u16 {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let table = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:{owner}\r\n");
        let info = format!("{INFO}{epoch}");
        let info = format!("${}\r\n{info}\r\n", info.len());
        let answer = move |words: &str| match words {
            words if words.contains("SLOTS") => table.clone(),
            words if words.contains("INFO") => info.clone(),
            _ => "+OK\r\n".to_owned(),
        };
        tokio::spawn(async move {
            while let Ok((mut peer, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(read @ 1..) = peer.read(&mut buffer).await {
                        let text = String::from_utf8_lossy(&buffer[..read]);
                        // A request begins with the number of its words, and comes in one piece.
                        let answers: String = text.split('*').skip(1).map(&answer).collect();
                        peer.write_all(answers.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        port
    }

    #[tokio::test]
    async fn the_older_table_of_a_hint_is_not_taken_before_others_were_asked() {
        let at = |port: u16| Address::Tcp {
            host: "127.0.0.1".to_owned(),
            port,
        };
        let (hint, seed) = (node(7002, 1).await, node(7009, 9).await);
        // The master that is known does not answer.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dead = listener.local_addr().unwrap().port();
        drop(listener);
        let cluster = cluster(vec![at(seed)]);
        assert!(cluster.install_newer(table(dead.into(), 5)).is_none());
        let hint = cluster.node(&at(hint));
        let within = Duration::from_secs(20);
        cluster.refresh(Some(hint.clone()), within).await.unwrap();
        assert!(owner(&cluster).contains("7009"), "{}", owner(&cluster));

        // Nobody else answers: it decides.
        let alone = self::cluster(Vec::new());
        assert!(alone.install_newer(table(dead.into(), 5)).is_none());
        alone.refresh(Some(hint), within).await.unwrap();
        assert!(owner(&alone).contains("7002"), "{}", owner(&alone));
    }
}
