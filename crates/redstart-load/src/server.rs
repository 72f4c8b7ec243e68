//! What the servers say about themselves: CPU, commands, memory, reads. On a Cluster every master is asked.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use redstart::{Store, key::Keys, redis, store::Dedicated};
use tokio::sync::Mutex;

use crate::error::Result;

/// The servers behind a store.
pub(crate) struct Servers {
    store: Store,
    nodes: Vec<Node>,
    embedded: bool,
}

enum Node {
    /// The only server.
    One(Store),
    /// A connection to one master of a Cluster.
    Master(Mutex<Dedicated>),
}

impl Node {
    async fn info(&self, section: &str) -> Option<String> {
        let mut info = redis::cmd("INFO");
        info.arg(section);
        match self {
            Self::One(store) => store.query(&info).await.ok(),
            Self::Master(master) => master.lock().await.query(&info, Duration::ZERO).await.ok(),
        }
    }
}

/// Figures of all servers together, since they were started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// CPU time in microseconds; `None` if the server does not tell.
    pub(crate) cpu_us: Option<f64>,
    /// The same of each server.
    pub(crate) cpu_of_nodes: Vec<f64>,
    /// Calls and microseconds of each command.
    pub(crate) commands: BTreeMap<String, (u64, u64)>,
    pub(crate) memory: Option<u64>,
    /// How often a server has read from a connection: with one caller at a time, its requests.
    pub(crate) reads: Option<u64>,
    pub(crate) net_in: u64,
    pub(crate) net_out: u64,
}

impl Servers {
    pub(crate) async fn open(store: &Store) -> Result<Self> {
        let nodes = match store.is_cluster() {
            true => masters(store).await?,
            false => vec![Node::One(store.clone())],
        };
        Ok(Self {
            store: store.clone(),
            nodes,
            embedded: store.is_embedded(),
        })
    }

    /// Whether the server is part of this process.
    pub(crate) fn are_embedded(&self) -> bool {
        self.embedded
    }

    /// How many servers there are.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What they say now. What a server does not tell, or does not let this user see, is missing.
    pub(crate) async fn figures(&self) -> Figures {
        let mut sum = Figures::default();
        for node in &self.nodes {
            for section in ["cpu", "commandstats", "memory", "stats"] {
                if let Some(text) = node.info(section).await {
                    sum.add(&text);
                }
            }
        }
        if self.embedded {
            sum.cpu_us = None;
            sum.cpu_of_nodes.clear();
            sum.reads = None;
        }
        sum
    }

    /// Memory in use.
    pub(crate) async fn memory(&self) -> Option<u64> {
        let mut sum = Figures::default();
        for node in &self.nodes {
            sum.add(&node.info("memory").await?);
        }
        sum.memory
    }

    /// Memory in use without the buffers of connections, and how many removed values are still to be freed: a server does
    /// that in the background.
    pub(crate) async fn data_memory(&self) -> Option<(u64, u64)> {
        let (mut memory, mut pending) = (0, 0);
        for node in &self.nodes {
            let text = node.info("memory").await?;
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|value| value.trim_end().parse::<u64>().ok())
            };
            let buffers = field("mem_clients_normal:").unwrap_or(0);
            memory += field("used_memory:")?.saturating_sub(buffers);
            pending += field("lazyfree_pending_objects:").unwrap_or(0);
        }
        Some((memory, pending))
    }

    /// The server's name and version.
    pub(crate) async fn version(&self) -> String {
        version(&self.store).await
    }
}

/// A server's name and version, as in `redis 7.0.15`.
pub(crate) async fn version(store: &Store) -> String {
    match store.health().await {
        Ok(health) => {
            let (major, minor, patch) = health.version;
            let name = format!("{:?}", health.server).to_lowercase();
            if store.is_embedded() {
                return format!("embedded {}", env!("CARGO_PKG_VERSION"));
            }
            format!("{name} {major}.{minor}.{patch}")
        }
        Err(_) => "unknown".to_owned(),
    }
}

impl Figures {
    /// Adds what one section of INFO says.
    fn add(&mut self, text: &str) {
        let mut cpu = None;
        for (key, value) in text
            .lines()
            .filter_map(|line| line.trim_end().split_once(':'))
        {
            let number = || value.parse::<u64>().unwrap_or(0);
            match key {
                "used_cpu_sys" | "used_cpu_user" => {
                    *cpu.get_or_insert(0.0) += value.parse::<f64>().unwrap_or(0.0) * 1e6;
                }
                "used_memory" => *self.memory.get_or_insert(0) += number(),
                "total_reads_processed" => *self.reads.get_or_insert(0) += number(),
                "total_net_input_bytes" => self.net_in += number(),
                "total_net_output_bytes" => self.net_out += number(),
                _ => {
                    if let Some(name) = key.strip_prefix("cmdstat_") {
                        let field = |name: &str| {
                            let mut fields = value.split(',').filter_map(|f| f.split_once('='));
                            let found = fields.find(|(key, _)| *key == name);
                            found.and_then(|(_, n)| n.parse::<u64>().ok()).unwrap_or(0)
                        };
                        let entry = self.commands.entry(name.to_owned()).or_default();
                        entry.0 += field("calls");
                        entry.1 += field("usec");
                    }
                }
            }
        }
        if let Some(cpu) = cpu {
            *self.cpu_us.get_or_insert(0.0) += cpu;
            self.cpu_of_nodes.push(cpu);
        }
    }

    /// What happened between two looks. A server that was restarted in between begins at zero again.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let commands = self.commands.iter().map(|(name, (calls, micros))| {
            let (old_calls, old_micros) = before.commands.get(name).copied().unwrap_or_default();
            let used = (
                calls.saturating_sub(old_calls),
                micros.saturating_sub(old_micros),
            );
            (name.clone(), used)
        });
        Self {
            cpu_us: self
                .cpu_us
                .zip(before.cpu_us)
                .map(|(now, then)| (now - then).max(0.0)),
            cpu_of_nodes: self
                .cpu_of_nodes
                .iter()
                .zip(&before.cpu_of_nodes)
                .map(|(now, then)| (now - then).max(0.0))
                .collect(),
            commands: commands.filter(|(_, (calls, _))| *calls > 0).collect(),
            memory: self.memory,
            reads: self
                .reads
                .zip(before.reads)
                .map(|(now, then)| now.saturating_sub(then)),
            net_in: self.net_in.saturating_sub(before.net_in),
            net_out: self.net_out.saturating_sub(before.net_out),
        }
    }
}

/// What servers spend per second without load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Idle {
    cpu_us: f64,
    net_in: f64,
    net_out: f64,
}

impl Idle {
    /// What was spent within a time.
    pub(crate) fn new(spent: &Figures, within: Duration) -> Self {
        let seconds = within.as_secs_f64().max(1e-9);
        Self {
            cpu_us: spent.cpu_us.unwrap_or(0.0) / seconds,
            net_in: spent.net_in as f64 / seconds,
            net_out: spent.net_out as f64 / seconds,
        }
    }
}

impl Figures {
    /// Takes away what the servers would have spent anyway.
    pub(crate) fn without(&mut self, idle: &Idle, within: Duration) {
        let seconds = within.as_secs_f64();
        self.cpu_us = self
            .cpu_us
            .map(|cpu| (cpu - idle.cpu_us * seconds).max(0.0));
        let less = |count: u64, rate: f64| count.saturating_sub((rate * seconds) as u64);
        self.net_in = less(self.net_in, idle.net_in);
        self.net_out = less(self.net_out, idle.net_out);
    }
}

/// A connection to each master of a Cluster, found by a key in one of its slots.
async fn masters(store: &Store) -> Result<Vec<Node>> {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    let reply: Vec<redis::Value> = store.query(&slots).await?;
    let keys = Keys::new("bench-probe", "info")?;
    let mut seen = BTreeSet::new();
    let mut nodes = Vec::new();
    for range in &reply {
        let Some((first, last, node)) = slot_range(range) else {
            continue;
        };
        if !seen.insert(node) {
            continue;
        }
        // A range has a key among a few thousand, unless it is tiny; then its master is not asked.
        for n in 0..100_000 {
            let entity = keys.entity(&n.to_string())?;
            if (first..=last).contains(&entity.slot()) {
                nodes.push(Node::Master(Mutex::new(store.dedicated(entity.key()))));
                break;
            }
        }
    }
    Ok(nodes)
}

/// First slot, last slot and master of an entry of CLUSTER SLOTS.
fn slot_range(entry: &redis::Value) -> Option<(u16, u16, String)> {
    let redis::Value::Array(fields) = entry else {
        return None;
    };
    let slot = |value: &redis::Value| match value {
        redis::Value::Int(slot) => u16::try_from(*slot).ok(),
        _ => None,
    };
    let redis::Value::Array(master) = fields.get(2)? else {
        return None;
    };
    let address = format!("{:?}:{:?}", master.first()?, master.get(1)?);
    Some((slot(fields.first()?)?, slot(fields.get(1)?)?, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_idle_server_spends_is_not_the_operations_cost() {
        let spent = |cpu: f64, bytes| Figures {
            cpu_us: Some(cpu),
            net_in: bytes,
            net_out: bytes,
            ..Figures::default()
        };
        let second = Duration::from_secs(1);
        let idle = Idle::new(&spent(500.0, 100), second);
        let mut load = spent(10_000.0, 1100);
        load.without(&idle, 10 * second);
        assert_eq!((load.cpu_us, load.net_in), (Some(5000.0), 100));
        // Noise does not make an operation cost less than nothing.
        let mut nothing = spent(400.0, 10);
        nothing.without(&idle, second);
        assert_eq!((nothing.cpu_us, nothing.net_out), (Some(0.0), 0));
    }

    #[test]
    fn figures_are_read_and_subtracted() {
        let mut before = Figures::default();
        before.add("used_cpu_sys:1.0\r\nused_cpu_user:2.0\r\ncmdstat_get:calls=5,usec=10,usec_per_call=2.0\r\n");
        let mut after = Figures::default();
        after.add("used_cpu_sys:1.5\r\nused_cpu_user:2.5\r\ncmdstat_get:calls=9,usec=30,usec_per_call=3.3\r\n");
        let delta = after.since(&before);
        assert_eq!((delta.cpu_us, delta.cpu_of_nodes), (Some(1e6), vec![1e6]));
        assert_eq!(delta.commands["get"], (4, 20));
        assert_eq!(delta.memory, None);
    }
}
