//! The servers behind a URL.

use std::time::Duration;

use redis::Value;
use redstart::Store;

use crate::{
    cost::Cost,
    error::{Error, Result},
    progress::Progress,
    target::{Access, Address, Target},
    text::printable,
    trace::slot,
    wire::{Answer, Trouble, Wire, words},
};

/// One server and the connection to it.
pub(crate) struct Node {
    pub(crate) address: String,
    pub(crate) at: Option<Address>,
    pub(crate) replica: bool,
    /// The number of its master among the masters.
    pub(crate) shard: usize,
    pub(crate) wire: Wire,
}

/// All servers, and those that could not be reached.
pub(crate) struct Nodes {
    pub(crate) nodes: Vec<Node>,
    pub(crate) cluster: bool,
    pub(crate) slots: Slots,
    pub(crate) unreachable: Vec<(String, String)>,
    /// What finding them cost.
    pub(crate) spent: Cost,
}

impl Nodes {
    /// One server that answers for itself.
    pub(crate) fn one(node: Node) -> Self {
        Self {
            nodes: vec![node],
            cluster: false,
            slots: Slots::default(),
            unreachable: Vec::new(),
            spent: Cost::default(),
        }
    }
}

/// Which shard has which slots of a Cluster: first, last, shard. Empty without one.
#[derive(Default)]
pub(crate) struct Slots(Vec<(u16, u16, usize)>);

impl Slots {
    /// Those of a Cluster of one shard.
    #[cfg(test)]
    pub(crate) fn of_one(last: u16) -> Self {
        Self(vec![(0, last, 0)])
    }

    /// The shard of a key, on a Cluster.
    pub(crate) fn shard(&self, key: &[u8]) -> Option<usize> {
        let slot = slot(key);
        self.0
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot))
            .map(|(.., shard)| *shard)
    }

    /// Whether a shard has slots: not without a Cluster.
    pub(crate) fn any_of(&self, shard: usize) -> bool {
        self.0.iter().any(|(.., of)| *of == shard)
    }

    /// The slot of a shard at this part of all that it has, from 0 to 1.
    pub(crate) fn at(&self, of: usize, part: f64) -> Option<u16> {
        let own = || self.0.iter().filter(|(.., shard)| *shard == of);
        let all: u32 = own()
            .map(|(first, last, _)| u32::from(last - first) + 1)
            .sum();
        let mut at = ((f64::from(all) * part) as u32).min(all.checked_sub(1)?);
        for (first, last, _) in own() {
            let count = u32::from(last - first) + 1;
            match u16::try_from(at) {
                Ok(at) if u32::from(at) < count => return Some(first + at),
                _ => at -= count,
            }
        }
        None
    }
}

/// An address as a server or a Sentinel told it, safe to print.
fn shown(address: &Address) -> String {
    printable(address.to_string().as_bytes())
}

/// Finds and connects to the servers.
pub(crate) async fn connect(
    target: &Target,
    access: &Access,
    patience: Duration,
    progress: &Progress,
) -> Result<Nodes> {
    match target {
        Target::Embedded(url) => {
            let store = Store::connect(url)
                .await
                .map_err(|error| Error::Usage(error.to_string()))?;
            let mut wire = Wire::embedded(store);
            wire.progress = progress.clone();
            Ok(Nodes::one(Node {
                address: url.clone(),
                at: None,
                replica: false,
                shard: 0,
                wire,
            }))
        }
        Target::Single(address) => {
            let mut wire = dial(address, access, patience, progress)
                .await
                .map_err(|trouble| unavailable(address, &trouble))?;
            // A node of a Cluster stands for the whole of it.
            let mode: Result<String, Trouble> = wire.get(words!["INFO", "server"]).await;
            if mode.is_ok_and(|info| {
                info.contains("redis_mode:cluster") || info.contains("server_mode:cluster")
            }) {
                let mut nodes =
                    cluster(std::slice::from_ref(address), access, patience, progress).await?;
                nodes.spent.add(&wire.cost);
                return Ok(nodes);
            }
            Ok(Nodes::one(Node {
                address: shown(address),
                at: Some(address.clone()),
                replica: false,
                shard: 0,
                wire,
            }))
        }
        Target::Sentinel { sentinels, master } => {
            sentinel(sentinels, master, access, patience, progress).await
        }
        Target::Cluster(seeds) => cluster(seeds, access, patience, progress).await,
        Target::Log(_) | Target::Aof(_) | Target::Rdb(_) => {
            Err(Error::Usage("a file has no servers".to_owned()))
        }
    }
}

fn unavailable(address: &Address, trouble: &Trouble) -> Error {
    Error::Unavailable(format!("{} cannot be examined: {trouble}", shown(address)))
}

async fn sentinel(
    sentinels: &[Address],
    master: &str,
    access: &Access,
    patience: Duration,
    progress: &Progress,
) -> Result<Nodes> {
    let own = Access {
        user: access.sentinel_user.clone(),
        password: access.sentinel_password.clone(),
        db: 0,
        ..access.clone()
    };
    let mut last = Error::Unavailable("no sentinel was named".to_owned());
    let mut spent = Cost::default();
    for address in sentinels {
        let mut wire = match dial(address, &own, patience, progress).await {
            Ok(wire) => wire,
            Err(trouble) => {
                last = unavailable(address, &trouble);
                continue;
            }
        };
        let found: Result<Vec<String>, Trouble> = wire
            .get(words!["SENTINEL", "GET-MASTER-ADDR-BY-NAME", master])
            .await;
        let Some((host, port)) = found.ok().and_then(|pair| {
            let [host, port] = <[String; 2]>::try_from(pair).ok()?;
            Some((host, port.parse().ok()?))
        }) else {
            spent.add(&wire.cost);
            last = Error::Unavailable(format!(
                "{} does not know the master {master:?}",
                shown(address)
            ));
            continue;
        };
        let mut wanted = vec![(Address::Tcp(host, port), false, 0)];
        if let Ok(Value::Array(replicas)) = wire.call(words!["SENTINEL", "REPLICAS", master]).await
        {
            for replica in replicas {
                let fields: Vec<String> = redis::from_redis_value(replica).unwrap_or_default();
                let field = |name: &str| {
                    let at = fields.iter().step_by(2).position(|field| field == name)?;
                    fields.get(at * 2 + 1).cloned()
                };
                if let (Some(host), Some(port)) = (
                    field("ip"),
                    field("port").and_then(|port| port.parse().ok()),
                ) {
                    wanted.push((Address::Tcp(host, port), true, 0));
                }
            }
        }
        let mut nodes = open(wanted, false, access, patience, progress).await?;
        nodes.spent.add(&spent);
        nodes.spent.add(&wire.cost);
        return Ok(nodes);
    }
    Err(last)
}

async fn cluster(
    seeds: &[Address],
    access: &Access,
    patience: Duration,
    progress: &Progress,
) -> Result<Nodes> {
    let mut last = Error::Unavailable("no node was named".to_owned());
    let mut spent = Cost::default();
    for seed in seeds {
        let mut wire = match dial(seed, access, patience, progress).await {
            Ok(wire) => wire,
            Err(trouble) => {
                last = unavailable(seed, &trouble);
                continue;
            }
        };
        let slots = wire.call(words!["CLUSTER", "SLOTS"]).await;
        spent.add(&wire.cost);
        let slots = match slots {
            Ok(Value::Array(slots)) if !slots.is_empty() => slots,
            // It has left the Cluster, or has not met it yet.
            Ok(_) => {
                let shown = shown(seed);
                last = Error::Unavailable(format!("{shown} knows no slots of a Cluster"));
                continue;
            }
            Err(trouble) => {
                last = unavailable(seed, &trouble);
                continue;
            }
        };
        let mut wanted: Vec<(Address, bool, usize)> = Vec::new();
        let mut ranges = Slots::default();
        let mut shards = 0;
        for range in slots {
            let Value::Array(parts) = range else { continue };
            let bound = |at: usize| {
                let bound = parts.get(at)?.clone();
                redis::from_redis_value::<u16>(bound).ok()
            };
            let bounds = bound(0).zip(bound(1));
            let mut shard = None;
            for (i, node) in parts.into_iter().skip(2).enumerate() {
                let Some(address) = node_address(node, seed) else {
                    continue;
                };
                if let Some(known) = wanted.iter().find(|(known, ..)| *known == address) {
                    shard.get_or_insert(known.2);
                    continue;
                }
                let of = *shard.get_or_insert_with(|| {
                    shards += 1;
                    shards - 1
                });
                wanted.push((address, i > 0, of));
            }
            if let (Some((first, last)), Some(shard)) = (bounds, shard) {
                ranges.0.push((first, last, shard));
            }
        }
        let mut nodes = open(wanted, true, access, patience, progress).await?;
        nodes.slots = ranges;
        nodes.spent.add(&spent);
        return Ok(nodes);
    }
    Err(last)
}

/// Host and port of one entry of CLUSTER SLOTS; an empty host is the one that was asked.
fn node_address(node: Value, seed: &Address) -> Option<Address> {
    let Value::Array(parts) = node else {
        return None;
    };
    let mut parts = parts.into_iter();
    let host: Option<String> = redis::from_redis_value(parts.next()?).ok();
    let port: u16 = redis::from_redis_value(parts.next()?).ok()?;
    match (host.filter(|host| !host.is_empty() && host != "?"), seed) {
        (Some(host), _) => Some(Address::Tcp(host, port)),
        (None, Address::Tcp(host, _)) => Some(Address::Tcp(host.clone(), port)),
        _ => None,
    }
}

/// A connection, unless the examination is ended before there is one.
async fn dial(
    address: &Address,
    access: &Access,
    patience: Duration,
    progress: &Progress,
) -> Answer<Wire> {
    let mut wire = tokio::select! {
        wire = Wire::connect(address, access, patience) => wire?,
        () = progress.stopped() => return Err(Trouble::Ended),
    };
    wire.progress = progress.clone();
    Ok(wire)
}

async fn open(
    wanted: Vec<(Address, bool, usize)>,
    cluster: bool,
    access: &Access,
    patience: Duration,
    progress: &Progress,
) -> Result<Nodes> {
    let mut nodes = Vec::new();
    let mut unreachable = Vec::new();
    // Those that do not answer are waited for together.
    let dials = wanted
        .iter()
        .map(|(address, ..)| dial(address, access, patience, progress));
    let wires = futures_util::future::join_all(dials).await;
    for ((address, replica, shard), wire) in wanted.into_iter().zip(wires) {
        match wire {
            Ok(mut wire) => {
                if replica && cluster {
                    // Without it a replica of a Cluster sends every reader to its master.
                    let _ = wire.call(words!["READONLY"]).await;
                }
                nodes.push(Node {
                    address: shown(&address),
                    at: Some(address),
                    replica,
                    shard,
                    wire,
                });
            }
            Err(trouble) => unreachable.push((shown(&address), trouble.to_string())),
        }
    }
    if nodes.is_empty() {
        let why = unreachable
            .first()
            .map_or(String::new(), |(address, why)| format!("{address}: {why}"));
        return Err(Error::Unavailable(format!(
            "no server can be examined: {why}"
        )));
    }
    Ok(Nodes {
        nodes,
        cluster,
        slots: Slots::default(),
        unreachable,
        spent: Cost::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_server_cannot_colour_the_terminal() {
        let address = Address::Tcp("db\x1b]0;owned\x07\n".to_owned(), 6379);
        assert!(!shown(&address).chars().any(char::is_control));
        let text = unavailable(&address, &Trouble::TimedOut).to_string();
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}
