//! A Cluster: the slot table, a link to each node, and the redirections.
//!
//! redis-rs has a cluster connection, and a [`Store`](crate::Store) can be made from one. It is not what
//! `redis+cluster://` uses, because it repeats a write whose reply was lost; here such a write is reported.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::{
    sync::{Mutex, watch},
    time::Instant,
};

use super::{
    dial::Dial,
    link::{BoxFuture, Failure, Link, Once, Request, refused_whole, timed_out},
    retry,
    route::{Gather, Route, route},
    url::{Address, Settings, address},
};
use crate::{
    error::{Error, Result},
    key::SLOTS,
};

pub(crate) struct Cluster {
    seeds: Vec<Address>,
    settings: Settings,
    topology: ArcSwap<Topology>,
    refreshing: Mutex<Instant>,
    version: watch::Sender<u64>,
    turn: AtomicUsize,
}

/// Who owns which slot. Links outlive topologies: a node that stays keeps its connection.
pub(crate) struct Topology {
    owners: Box<[u16]>,
    nodes: Vec<Arc<Node>>,
}

pub(crate) struct Node {
    pub(crate) address: Address,
    links: Vec<Link>,
    turn: AtomicUsize,
}

const NOBODY: u16 = u16::MAX;
/// A refresh is asked for by every redirected request; one in this time is enough.
const REFRESH_AT_MOST: Duration = Duration::from_millis(50);

impl Node {
    pub(crate) fn link(&self) -> &Link {
        if self.links.len() == 1 {
            return &self.links[0];
        }
        &self.links[self.turn.fetch_add(1, Ordering::Relaxed) % self.links.len()]
    }

    pub(crate) fn dial(&self) -> &Arc<Dial> {
        self.links[0].dial()
    }
}

impl Cluster {
    pub(crate) async fn connect(seeds: Vec<Address>, settings: Settings) -> Result<Self> {
        let cluster = Self {
            seeds,
            topology: ArcSwap::from_pointee(Topology {
                owners: vec![NOBODY; usize::from(SLOTS)].into(),
                nodes: Vec::new(),
            }),
            refreshing: Mutex::new(Instant::now() - Duration::from_secs(1)),
            version: watch::Sender::new(0),
            turn: AtomicUsize::new(0),
            settings,
        };
        let within = cluster.settings.deadline.max(Duration::from_secs(1));
        tokio::time::timeout(within, cluster.refresh())
            .await
            .map_err(|_| Error::timeout("no node of the cluster answered in time"))??;
        Ok(cluster)
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes whenever another node owns a slot.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        let topology = self.topology.load();
        let mut owned = vec![false; topology.nodes.len()];
        for owner in topology.owners.iter().filter(|owner| **owner != NOBODY) {
            owned[usize::from(*owner)] = true;
        }
        topology
            .nodes
            .iter()
            .zip(owned)
            .filter(|(_, owned)| *owned)
            .map(|(node, _)| node.clone())
            .collect()
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let topology = self.topology.load();
        let owner = topology.owners[usize::from(slot)];
        (owner != NOBODY).then(|| topology.nodes[usize::from(owner)].clone())
    }

    fn any(&self) -> Option<Arc<Node>> {
        let masters = self.masters();
        if masters.is_empty() {
            return None;
        }
        Some(masters[self.turn.fetch_add(1, Ordering::Relaxed) % masters.len()].clone())
    }

    fn node(&self, topology: &Topology, address: &Address) -> Arc<Node> {
        if let Some(node) = topology.nodes.iter().find(|node| node.address == *address) {
            return node.clone();
        }
        let dial = Arc::new(Dial::server(address.clone(), self.settings.clone()));
        let links = (0..self.settings.pool)
            .map(|_| Link::new(dial.clone()))
            .collect();
        Arc::new(Node {
            address: address.clone(),
            links,
            turn: AtomicUsize::new(0),
        })
    }

    /// Reads the slot table from any node that answers: those known, then the seeds.
    pub(crate) async fn refresh(&self) -> Result<()> {
        let mut last = self.refreshing.lock().await;
        if last.elapsed() < REFRESH_AT_MOST {
            return Ok(());
        }
        let known = self.topology.load_full();
        let mut candidates: Vec<Arc<Node>> = known.nodes.clone();
        for seed in &self.seeds {
            if !candidates.iter().any(|node| node.address == *seed) {
                candidates.push(self.node(&known, seed));
            }
        }
        let cmd = {
            let mut cmd = redis::cmd("CLUSTER");
            cmd.arg("SLOTS");
            cmd
        };
        // All at once: a node that hangs must not hold up the others.
        let share = (self.settings.deadline / 2).max(Duration::from_millis(50));
        let mut asking: futures_util::stream::FuturesUnordered<_> = candidates
            .into_iter()
            .map(|node| {
                let cmd = &cmd;
                async move {
                    let answer = node.link().request(Request::One(cmd), true, share).await;
                    (node, answer)
                }
            })
            .collect();
        let mut failure = None;
        while let Some((node, answer)) = futures_util::StreamExt::next(&mut asking).await {
            match answer.and_then(|table| parse_slots(table, &node.address)) {
                Ok(table) if table.is_empty() => {
                    failure.get_or_insert_with(|| {
                        Error::unavailable(format!(
                            "{} is in a cluster that serves no slots",
                            node.address
                        ))
                    });
                }
                Ok(table) => {
                    self.install(&known, table);
                    *last = Instant::now();
                    return Ok(());
                }
                Err(error) => {
                    let plain = error
                        .redis()
                        .is_some_and(|e| e.to_string().contains("cluster support disabled"));
                    let error = if plain {
                        Error::config(format!(
                            "{} is no cluster node: use redis:// for it",
                            node.address
                        ))
                    } else {
                        error
                    };
                    // A wrong password or a wrong kind of server explains more than a node that is down.
                    if failure.as_ref().is_none_or(|_| error.is_config()) {
                        failure = Some(error);
                    }
                }
            }
        }
        Err(failure.unwrap_or_else(|| Error::unavailable("no node of the cluster answered")))
    }

    fn install(&self, known: &Topology, table: Vec<(u16, u16, Address)>) {
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut index: HashMap<Address, u16> = HashMap::new();
        for (from, to, address) in table {
            let at = *index.entry(address.clone()).or_insert_with(|| {
                nodes.push(self.node(known, &address));
                (nodes.len() - 1) as u16
            });
            owners[usize::from(from)..=usize::from(to)].fill(at);
        }
        let same = known.nodes.len() == nodes.len()
            && known
                .owners
                .iter()
                .zip(&owners)
                .all(|(old, new)| match (*old, *new) {
                    (NOBODY, NOBODY) => true,
                    (NOBODY, _) | (_, NOBODY) => false,
                    (old, new) => {
                        known.nodes[usize::from(old)].address == nodes[usize::from(new)].address
                    }
                });
        self.topology.store(Arc::new(Topology {
            owners: owners.into(),
            nodes,
        }));
        if !same {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// MOVED names the new owner: use it at once, without waiting for the whole table.
    fn moved(&self, slot: u16, to: &Address) {
        self.topology.rcu(|known| {
            let node = self.node(known, to);
            let mut nodes = known.nodes.clone();
            let at = nodes
                .iter()
                .position(|n| n.address == *to)
                .unwrap_or_else(|| {
                    nodes.push(node);
                    nodes.len() - 1
                });
            let mut owners = known.owners.clone();
            owners[usize::from(slot)] = at as u16;
            Topology { owners, nodes }
        });
        self.version.send_modify(|version| *version += 1);
    }

    pub(crate) async fn request(
        &self,
        request: Request<'_>,
        idempotent: bool,
        within: Duration,
    ) -> Result<Value> {
        let slot = match request {
            Request::One(cmd) => match route(cmd) {
                Route::Slot(slot) => Some(slot),
                Route::Any => None,
                Route::AllMasters(gather) => {
                    let all: BoxFuture<'_, _> = Box::pin(self.everywhere(cmd, gather, within));
                    return all.await;
                }
                Route::Split(parts, gather) => {
                    let all: BoxFuture<'_, _> = Box::pin(async move {
                        let replies = join_all(parts.iter().map(|part| async {
                            self.at(Some(part.slot), Request::One(&part.cmd), idempotent, within)
                                .await
                        }))
                        .await
                        .into_iter()
                        .collect::<Result<Vec<_>>>()?;
                        gather.split(parts.iter().map(|part| &part.positions[..]), replies)
                    });
                    return all.await;
                }
            },
            Request::Many { pipeline, .. } if pipeline.is_transaction() => {
                let mut slot = None;
                for cmd in pipeline.cmd_iter() {
                    match (route(cmd), slot) {
                        (Route::Slot(new), Some(old)) if new != old => {
                            return Err(Error::config(
                                "a transaction over two slots cannot be atomic",
                            ));
                        }
                        (Route::Slot(new), _) => slot = Some(new),
                        (Route::Any, _) => {}
                        _ => {
                            return Err(Error::config(
                                "a transaction over two slots cannot be atomic",
                            ));
                        }
                    }
                }
                slot
            }
            Request::Many { pipeline, .. } => {
                return self.spread(pipeline, idempotent, within).await;
            }
        };
        self.at(slot, request, idempotent, within).await
    }

    /// One round trip a node: each node gets its part of the pipeline, all at the same time.
    fn spread<'a>(
        &'a self,
        pipeline: &'a Pipeline,
        idempotent: bool,
        within: Duration,
    ) -> BoxFuture<'a, Result<Value>> {
        struct Part {
            slot: Option<u16>,
            pipeline: Pipeline,
            positions: Vec<usize>,
        }
        Box::pin(async move {
            let commands: Vec<&Cmd> = pipeline.cmd_iter().collect();
            let mut parts: HashMap<Option<Address>, Part> = HashMap::new();
            let mut single: Vec<usize> = Vec::new();
            for (at, cmd) in commands.iter().enumerate() {
                let slot = match route(cmd) {
                    Route::Slot(slot) => Some(slot),
                    Route::Any => None,
                    Route::AllMasters(_) | Route::Split(..) => {
                        single.push(at);
                        continue;
                    }
                };
                let owner = slot
                    .and_then(|slot| self.owner(slot))
                    .map(|node| node.address.clone());
                let part = parts.entry(owner).or_insert_with(|| Part {
                    slot,
                    pipeline: Pipeline::new(),
                    positions: Vec::new(),
                });
                part.pipeline.add_command((*cmd).clone());
                part.positions.push(at);
            }
            let sent = Instant::now();
            let mut replies = vec![Value::Nil; commands.len()];
            let answers =
                join_all(parts.values().map(|part| {
                    self.at(part.slot, Request::all(&part.pipeline), idempotent, within)
                }))
                .await;
            for (part, answer) in parts.values().zip(answers) {
                let Value::Array(values) = answer? else {
                    return Err(Error::codec("a pipeline was not answered by an array"));
                };
                for (at, value) in part.positions.iter().zip(values) {
                    replies[*at] = value;
                }
            }
            // What was redirected, and what fans out, goes alone; the order within a slot is kept.
            for (at, cmd) in commands.iter().enumerate() {
                let redirected = retry::first_refusal(std::slice::from_ref(&replies[at])).is_some();
                if redirected || single.contains(&at) {
                    let left = within.saturating_sub(sent.elapsed());
                    replies[at] =
                        Box::pin(self.request(Request::One(cmd), idempotent, left)).await?;
                }
            }
            Ok(Value::Array(replies))
        })
    }

    async fn everywhere(&self, cmd: &Cmd, gather: Gather, within: Duration) -> Result<Value> {
        let replies = join_all(self.masters().iter().map(|node| async move {
            node.link().request(Request::One(cmd), false, within).await
        }))
        .await
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
        gather.all(replies)
    }

    /// Sends to the owner of the slot and follows where it leads.
    async fn at(
        &self,
        slot: Option<u16>,
        request: Request<'_>,
        idempotent: bool,
        within: Duration,
    ) -> Result<Value> {
        let deadline = Instant::now() + within;
        let owner = match slot {
            Some(slot) => self.owner(slot),
            None => self.any(),
        };
        let mut first = None;
        if let Some(node) = owner {
            match node.link().once(request, deadline).await {
                Once::Done(Ok(value)) => return Ok(value),
                Once::Done(Err(failure)) => first = Some((node, failure)),
                Once::TimedOut => {
                    let in_doubt = !idempotent && !request.only_reads();
                    return Err(timed_out(&node.address.to_string(), in_doubt));
                }
                Once::NotConnected => {}
            }
        }
        self.follow(slot, request, idempotent, deadline, first)
            .await
    }

    /// What is left to do when the first attempt, if there was one, did not do it; boxed as in
    /// [`Link::request`].
    fn follow<'a>(
        &'a self,
        slot: Option<u16>,
        request: Request<'a>,
        idempotent: bool,
        deadline: Instant,
        mut first: Option<(Arc<Node>, Failure)>,
    ) -> BoxFuture<'a, Result<Value>> {
        Box::pin(async move {
            let sent = AtomicBool::new(first.is_some());
            let last_dial = parking_lot::Mutex::new(None::<Arc<Node>>);
            let harmless = || idempotent || request.only_reads();
            let work = async {
                let mut backoff = retry::Backoff::new();
                let mut ask: Option<Arc<Node>> = None;
                loop {
                    let asking = ask.take();
                    let node = match (&asking, slot) {
                        (Some(node), _) => Some(node.clone()),
                        (None, Some(slot)) => self.owner(slot),
                        (None, None) => self.any(),
                    };
                    let failure = match (first.take(), node) {
                        (Some((node, failure)), _) => {
                            *last_dial.lock() = Some(node);
                            failure
                        }
                        (None, None) => Failure::NotSent(Error::unavailable(
                            "no node of the cluster owns this slot",
                        )),
                        (None, Some(node)) => {
                            *last_dial.lock() = Some(node.clone());
                            let result = if asking.is_some() {
                                ask_node(&node, request, &sent, deadline).await
                            } else {
                                node.link().attempt(request, &sent, deadline).await
                            };
                            match result {
                                Ok(value) => return Ok(value),
                                Err(failure) => failure,
                            }
                        }
                    };
                    let mut at_once = false;
                    let again = match &failure {
                        Failure::NotSent(error) => {
                            self.refresh_quietly().await;
                            !error.is_config()
                        }
                        Failure::Lost(_) => {
                            self.refresh_quietly().await;
                            harmless()
                        }
                        Failure::Answer(error) => match redirect(error) {
                            Some(Redirect::Moved(slot, to)) => {
                                self.moved(slot, &to);
                                at_once = true;
                                true
                            }
                            // A transaction cannot be asked for as a whole; it waits until the slot has moved.
                            Some(Redirect::Ask(_)) if matches!(request, Request::Many { .. }) => {
                                true
                            }
                            Some(Redirect::Ask(to)) => {
                                ask = Some(self.node(&self.topology.load(), &to));
                                at_once = true;
                                true
                            }
                            None => {
                                let again = refused_whole(error);
                                if again {
                                    self.refresh_quietly().await;
                                }
                                again
                            }
                        },
                    };
                    if !again {
                        return Err(failure.into_error(harmless()));
                    }
                    if !matches!(failure, Failure::Lost(_)) {
                        sent.store(false, Ordering::Relaxed);
                    }
                    if at_once {
                        continue;
                    }
                    let pause = backoff.next();
                    if Instant::now() + pause >= deadline {
                        return Err(failure.into_error(harmless()));
                    }
                    tokio::time::sleep(pause).await;
                }
            };
            match tokio::time::timeout_at(deadline, work).await {
                Ok(result) => result,
                Err(_) => {
                    let place = last_dial
                        .lock()
                        .as_ref()
                        .map_or_else(|| "the cluster".to_owned(), |node| node.address.to_string());
                    let in_doubt = sent.load(Ordering::Relaxed) && !harmless();
                    Err(timed_out(&place, in_doubt))
                }
            }
        })
    }

    async fn refresh_quietly(&self) {
        if let Err(error) = self.refresh().await {
            tracing::debug!(%error, "the slot table could not be read");
        }
    }

    pub(crate) async fn ensure(&self) -> Result<()> {
        for node in self.masters() {
            node.link().ensure().await?;
        }
        Ok(())
    }

    /// Connections made so far, over all nodes.
    pub(crate) fn generation(&self) -> u64 {
        let topology = self.topology.load();
        topology
            .nodes
            .iter()
            .flat_map(|node| &node.links)
            .map(Link::generation)
            .fold(*self.version.borrow(), u64::wrapping_add)
    }
}

/// ASKING holds for the one command behind it, so both go in one write.
async fn ask_node(
    node: &Node,
    request: Request<'_>,
    sent: &AtomicBool,
    deadline: Instant,
) -> Result<Value, Failure> {
    let Request::One(cmd) = request else {
        return node.link().attempt(request, sent, deadline).await;
    };
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline
        .add_command(redis::cmd("ASKING"))
        .add_command(cmd.clone());
    match node
        .link()
        .attempt(Request::all(&pipeline), sent, deadline)
        .await?
    {
        Value::Array(mut replies) => match replies.pop() {
            Some(Value::ServerError(error)) => Err(Failure::Answer(error.into())),
            Some(value) => Ok(value),
            None => Ok(Value::Nil),
        },
        value => Ok(value),
    }
}

enum Redirect {
    Moved(u16, Address),
    Ask(Address),
}

fn redirect(error: &RedisError) -> Option<Redirect> {
    let direct = |error: &RedisError| {
        let (to, slot) = error.redirect_node()?;
        let to = address(to, 6379).ok()?;
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) if slot < SLOTS => {
                Some(Redirect::Moved(slot, to))
            }
            ErrorKind::Server(ServerErrorKind::Ask) => Some(Redirect::Ask(to)),
            _ => None,
        }
    };
    if error.kind() == ErrorKind::Server(ServerErrorKind::ExecAbort) {
        let inner = error.clone().into_server_errors()?;
        return inner
            .iter()
            .find_map(|(_, error)| direct(&error.clone().into()));
    }
    direct(error)
}

/// `CLUSTER SLOTS`: `[from, to, [host, port, id, …], replicas…]`. An empty host means the node asked.
fn parse_slots(table: Value, asked: &Address) -> Result<Vec<(u16, u16, Address)>> {
    let bad = || Error::codec("CLUSTER SLOTS has an unexpected shape");
    let ranges = table.into_sequence().map_err(|_| bad())?;
    ranges
        .into_iter()
        .map(|range| {
            let range = range.into_sequence().map_err(|_| bad())?;
            let [from, to, master, ..] = &range[..] else {
                return Err(bad());
            };
            let (Value::Int(from), Value::Int(to)) = (from, to) else {
                return Err(bad());
            };
            let (from, to) = (u16::try_from(*from), u16::try_from(*to));
            let (Ok(from), Ok(to)) = (from, to) else {
                return Err(bad());
            };
            if from > to || to >= SLOTS {
                return Err(bad());
            }
            let [host, Value::Int(port), ..] = master.as_sequence().ok_or_else(bad)? else {
                return Err(bad());
            };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() => {
                    String::from_utf8(host.clone()).map_err(|_| bad())?
                }
                _ => match asked {
                    Address::Tcp { host, .. } => host.clone(),
                    Address::Unix(_) => return Err(bad()),
                },
            };
            let port = u16::try_from(*port).map_err(|_| bad())?;
            Ok((from, to, Address::Tcp { host, port }))
        })
        .collect()
}
