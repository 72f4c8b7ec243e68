//! A short history of the server and its queues for the charts, kept in this process.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use redstart::{
    Store,
    messaging::{Queue, QueueCounts},
    resilience::CircuitState,
};

use crate::{api, app::App, inventory::Inventory};

pub(crate) const EVERY: Duration = Duration::from_secs(3);
/// Ten minutes.
const POINTS: usize = 200;
/// Queues that are followed, and breakers.
const QUEUES: usize = 50;
const BREAKERS: usize = 50;
/// Queues that are asked for at the same time.
const AT_ONCE: usize = 8;

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

/// The address of a node of a Cluster, beside what INFO has.
pub(crate) const ADDRESS: &str = "cluster_node_address";

/// The one server, or every master of a Cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Servers {
    pub(crate) all: Vec<Server>,
    /// Addresses of masters that have not answered, and why.
    pub(crate) silent: Vec<(String, String)>,
}

impl Servers {
    /// Asks all of them.
    ///
    /// # Errors
    ///
    /// If none answers.
    pub(crate) async fn read(store: &Store) -> redstart::Result<Self> {
        let mut servers = Self::default();
        let mut failure = None;
        let info = redstart::redis::cmd("INFO");
        for (address, told) in store.query_nodes::<String>(&info).await? {
            match told {
                Ok(text) => {
                    let lines = text.lines().filter_map(|line| line.split_once(':'));
                    let own =
                        |(name, value): (&str, &str)| (name.to_owned(), value.trim().to_owned());
                    let mut server = Server(lines.map(own).collect());
                    server.0.insert(ADDRESS.to_owned(), address);
                    servers.all.push(server);
                }
                Err(error) => {
                    servers.silent.push((address, error.to_string()));
                    failure = failure.or(Some(error));
                }
            }
        }
        match failure {
            Some(error) if servers.all.is_empty() => Err(error),
            _ => Ok(servers),
        }
    }

    /// Which processes these are.
    fn processes(&self) -> Vec<String> {
        let id = |server: &Server| server.text("run_id").unwrap_or_default().to_owned();
        self.all.iter().map(id).collect()
    }

    /// A number of all of them together; `None` if no server tells it.
    pub(crate) fn sum(&self, name: &str) -> Option<f64> {
        let told: Vec<f64> = self.all.iter().filter_map(|one| one.number(name)).collect();
        (!told.is_empty()).then(|| told.iter().sum())
    }

    /// The smallest of a number.
    pub(crate) fn least(&self, name: &str) -> Option<f64> {
        let told = self.all.iter().filter_map(|one| one.number(name));
        told.min_by(f64::total_cmp)
    }
}

#[derive(Default)]
struct Series {
    ops: VecDeque<f64>,
    memory: VecDeque<f64>,
    latency: VecDeque<f64>,
    queues: HashMap<(String, String), VecDeque<QueueCounts>>,
    breakers: HashMap<(String, String), VecDeque<CircuitState>>,
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
        if let Ok(servers) = servers
            && servers.silent.is_empty()
        {
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
        // One whose part of the store hangs does not keep the others waiting.
        let looks = queues.take(QUEUES).map(async |(namespace, _, name)| {
            let queue = Queue::new(store, namespace, name).ok()?;
            let counts = queue.inspect().counts().await.ok()?;
            Some(((namespace.clone(), name.clone()), counts))
        });
        let looks: Vec<_> = looks.collect();
        let mut looked = stream::iter(looks).buffer_unordered(AT_ONCE);
        while let Some(found) = looked.next().await {
            let Some((key, counts)) = found else {
                continue;
            };
            let mut series = self.0.lock();
            if series.queues.len() >= 4 * QUEUES {
                series.queues.clear();
            }
            push(series.queues.entry(key).or_default(), counts);
        }
    }

    /// Notes the state of breakers, as this instance sees them.
    pub(crate) async fn sample_breakers(&self, app: &App, inventory: &Inventory) {
        let of_breakers = |(_, pattern, _): &&(String, String, String)| pattern == "breaker";
        let names = inventory.found.keys().filter(of_breakers);
        for (namespace, _, name) in names.take(BREAKERS) {
            let Ok(breaker) = api::breaker(app, namespace, name).await else {
                continue;
            };
            let mut series = self.0.lock();
            if series.breakers.len() >= 4 * BREAKERS {
                series.breakers.clear();
            }
            let key = (namespace.clone(), name.clone());
            push(series.breakers.entry(key).or_default(), breaker.state());
        }
    }

    /// A breaker's past states, oldest first.
    pub(crate) fn breaker(&self, namespace: &str, name: &str) -> Vec<CircuitState> {
        let series = self.0.lock();
        let key = (namespace.to_owned(), name.to_owned());
        let found = series.breakers.get(&key);
        found.map_or_else(Vec::new, |states| states.iter().copied().collect())
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
