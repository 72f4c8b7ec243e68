//! A short history of the server and its queues for the charts, kept in this process.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{
    Store,
    messaging::{Queue, QueueCounts},
};

use crate::inventory::Inventory;

pub(crate) const EVERY: Duration = Duration::from_secs(3);
/// Ten minutes.
const POINTS: usize = 200;
/// Queues that are followed.
const QUEUES: usize = 50;

/// A server's own numbers, as INFO has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server(BTreeMap<String, String>);

impl Server {
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.text(name)?.parse().ok()
    }
}

/// The name of a node in its Cluster, beside what INFO has.
pub(crate) const NODE_ID: &str = "cluster_node_id";

/// The one server, or every master of a Cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Servers(pub(crate) Vec<Server>);

impl Servers {
    pub(crate) async fn read(store: &Store) -> redstart::Result<Self> {
        let told: Vec<String> = store.query_each(&redstart::redis::cmd("INFO")).await?;
        let read = |text: String| {
            let lines = text.lines().filter_map(|line| line.split_once(':'));
            let own = |(name, value): (&str, &str)| (name.to_owned(), value.trim().to_owned());
            Server(lines.map(own).collect())
        };
        let mut servers: Vec<Server> = told.into_iter().map(read).collect();
        if store.is_cluster() {
            let mut ask = redstart::redis::cmd("CLUSTER");
            ask.arg("MYID");
            // In the same order, unless the masters have changed in between.
            let ids: Vec<String> = store.query_each(&ask).await.unwrap_or_default();
            if ids.len() == servers.len() {
                for (server, id) in servers.iter_mut().zip(ids) {
                    server.0.insert(NODE_ID.to_owned(), id);
                }
            }
        }
        Ok(Self(servers))
    }

    /// Which processes these are.
    fn processes(&self) -> Vec<String> {
        let id = |server: &Server| server.text("run_id").unwrap_or_default().to_owned();
        self.0.iter().map(id).collect()
    }

    /// A number of all of them together; `None` if no server tells it.
    pub(crate) fn sum(&self, name: &str) -> Option<f64> {
        let told: Vec<f64> = self.0.iter().filter_map(|one| one.number(name)).collect();
        (!told.is_empty()).then(|| told.iter().sum())
    }

    /// The smallest of a number.
    pub(crate) fn least(&self, name: &str) -> Option<f64> {
        let told = self.0.iter().filter_map(|one| one.number(name));
        told.min_by(f64::total_cmp)
    }
}

#[derive(Default)]
struct Series {
    ops: VecDeque<f64>,
    memory: VecDeque<f64>,
    latency: VecDeque<f64>,
    queues: HashMap<(String, String), VecDeque<QueueCounts>>,
    /// When, how many commands there had been, and of which processes.
    last_commands: Option<(tokio::time::Instant, f64, Vec<String>)>,
}

/// The history.
#[derive(Default)]
pub(crate) struct Sampler(Mutex<Series>);

fn push<T>(series: &mut VecDeque<T>, value: T) {
    if series.len() >= POINTS {
        series.pop_front();
    }
    series.push_back(value);
}

impl Sampler {
    /// Takes one sample of everything.
    pub(crate) async fn sample(&self, store: &Store, inventory: &Inventory) {
        let begun = tokio::time::Instant::now();
        let servers = Servers::read(store).await;
        let latency = begun.elapsed().as_secs_f64() * 1e3;
        // Where a server does not answer, the numbers of the others alone would be a fall that never was.
        if let Ok(servers) = servers {
            let mut series = self.0.lock();
            let commands = servers.sum("total_commands_processed").unwrap_or(0.0);
            let counted = (begun, commands, servers.processes());
            // Another process counts from its own start.
            let same = |of: &[String]| *of == servers.processes()[..];
            if let Some((at, before, of)) = series.last_commands.replace(counted)
                && same(&of)
                && commands >= before
            {
                let time = (begun - at).as_secs_f64().max(0.001);
                push(&mut series.ops, (commands - before) / time);
            }
            let memory = servers.sum("used_memory").unwrap_or(0.0);
            push(&mut series.memory, memory / 1048576.0);
            push(&mut series.latency, latency);
        }
        let queues = inventory
            .found
            .keys()
            .filter(|(_, pattern, _)| pattern == "queue");
        for (namespace, _, name) in queues.take(QUEUES) {
            let Ok(queue) = Queue::new(store, namespace, name) else {
                continue;
            };
            if let Ok(counts) = queue.inspect().counts().await {
                let mut series = self.0.lock();
                if series.queues.len() >= 4 * QUEUES {
                    series.queues.clear();
                }
                let key = (namespace.clone(), name.clone());
                push(series.queues.entry(key).or_default(), counts);
            }
        }
    }

    pub(crate) fn ops(&self) -> Vec<f64> {
        self.0.lock().ops.iter().copied().collect()
    }

    pub(crate) fn memory(&self) -> Vec<f64> {
        self.0.lock().memory.iter().copied().collect()
    }

    pub(crate) fn latency(&self) -> Vec<f64> {
        self.0.lock().latency.iter().copied().collect()
    }

    /// A queue's past counts, one number for each.
    pub(crate) fn queue(
        &self,
        namespace: &str,
        name: &str,
        read: impl Fn(&QueueCounts) -> u64,
    ) -> Vec<f64> {
        let series = self.0.lock();
        let found = series.queues.get(&(namespace.to_owned(), name.to_owned()));
        found.map_or_else(Vec::new, |counts| {
            counts.iter().map(|c| read(c) as f64).collect()
        })
    }
}
