//! Which node owns which slot.

use std::{collections::HashMap, sync::Arc};

use redis::Value;

use crate::{
    error::{Error, Result},
    key::SLOTS,
    store::{location::Address, pool::Node},
};

const NOBODY: u16 = u16::MAX;

/// The slot table. Nodes outlive it: one that stays keeps its connections.
pub(super) struct Topology {
    owners: Box<[u16]>,
    masters: Vec<Arc<Node>>,
    /// Those of each master, to read from; empty if that is not wanted.
    readers: Vec<Vec<Arc<Node>>>,
    /// Where else the table can be read.
    replicas: Vec<Address>,
    epoch: Option<u64>,
    /// Rises when the owner of a slot is another one.
    pub(super) version: u64,
}

/// The table as a node sent it.
pub(super) struct Table {
    ranges: Vec<Range>,
    replicas: Vec<Address>,
    /// The greatest epoch of the cluster that the node knew, if it told. It rises when slots get another owner.
    pub(super) epoch: Option<u64>,
    /// The cluster works, as far as the node knows.
    pub(super) works: bool,
}

/// Slots, their master and its replicas.
struct Range {
    from: u16,
    to: u16,
    master: Address,
    replicas: Vec<Address>,
}

impl Topology {
    pub(super) fn empty() -> Self {
        Self {
            owners: vec![NOBODY; usize::from(SLOTS)].into(),
            masters: Vec::new(),
            readers: Vec::new(),
            replicas: Vec::new(),
            epoch: None,
            version: 0,
        }
    }

    /// The topology by this table, with the nodes that are known already. `reader` makes the node of a replica, if it is to
    /// be read from.
    pub(super) fn new(
        table: Table,
        mut node: impl FnMut(&Address) -> Arc<Node>,
        mut reader: impl FnMut(&Address) -> Option<Arc<Node>>,
    ) -> Self {
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        let mut masters: Vec<Arc<Node>> = Vec::new();
        let mut readers: Vec<Vec<Arc<Node>>> = Vec::new();
        let mut index: HashMap<Address, u16> = HashMap::new();
        for range in table.ranges {
            let at = *index.entry(range.master).or_insert_with_key(|address| {
                masters.push(node(address));
                readers.push(range.replicas.iter().filter_map(&mut reader).collect());
                (masters.len() - 1) as u16
            });
            owners[usize::from(range.from)..=usize::from(range.to)].fill(at);
        }
        Self {
            owners: owners.into(),
            masters,
            readers,
            replicas: table.replicas,
            epoch: table.epoch,
            version: 0,
        }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        match self.owners[usize::from(slot)] {
            NOBODY => None,
            at => self.masters.get(usize::from(at)),
        }
    }

    /// The replicas of the owner of a slot, to read from.
    pub(super) fn readers(&self, slot: u16) -> &[Arc<Node>] {
        match self
            .readers
            .get(usize::from(self.owners[usize::from(slot)]))
        {
            Some(readers) => readers,
            None => &[],
        }
    }

    /// The node of a replica that is read from.
    pub(super) fn find_reader(&self, address: &Address) -> Option<&Arc<Node>> {
        self.readers
            .iter()
            .flatten()
            .find(|node| node.is_at(address))
    }

    pub(super) fn masters(&self) -> &[Arc<Node>] {
        &self.masters
    }

    pub(super) fn replicas(&self) -> &[Address] {
        &self.replicas
    }

    pub(super) fn find(&self, address: &Address) -> Option<&Arc<Node>> {
        self.masters.iter().find(|node| node.is_at(address))
    }

    /// This table is of a node that does not know yet what the one of this topology knew.
    pub(super) fn is_newer_than(&self, table: &Table) -> bool {
        matches!((self.epoch, table.epoch), (Some(known), Some(told)) if told < known)
    }

    /// Every slot has the same owner in both.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let owner = |of: &Self, at: u16| of.masters.get(usize::from(at)).map(Arc::as_ptr);
        self.owners
            .iter()
            .zip(&other.owners)
            .all(|(a, b)| owner(self, *a) == owner(other, *b))
    }
}

impl Table {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Reads `CLUSTER SLOTS`: `[from, to, [host, port, id, …], replicas…]`, where an empty host means the node asked, and
    /// `CLUSTER INFO`, which is empty if the user may not ask for it.
    pub(super) fn parse(reply: Value, info: &str, asked: Option<&Address>) -> Result<Self> {
        let bad = || Error::codec("unexpected shape of the reply to CLUSTER SLOTS");
        let epoch = info
            .lines()
            .find_map(|line| line.strip_prefix("cluster_current_epoch:"));
        let mut table = Self {
            ranges: Vec::new(),
            replicas: Vec::new(),
            epoch: epoch.and_then(|epoch| epoch.trim().parse().ok()),
            works: !info.contains("cluster_state:fail"),
        };
        for range in reply.into_sequence().map_err(|_| bad())? {
            let range = range.into_sequence().map_err(|_| bad())?;
            let [Value::Int(from), Value::Int(to), master, replicas @ ..] = &range[..] else {
                return Err(bad());
            };
            let (Ok(from), Ok(to)) = (u16::try_from(*from), u16::try_from(*to)) else {
                return Err(bad());
            };
            if from > to || to >= SLOTS {
                return Err(bad());
            }
            let master = address_of(master, asked).ok_or_else(bad)?;
            let at = |node| address_of(node, asked);
            let replicas: Vec<Address> = replicas.iter().filter_map(at).collect();
            for address in &replicas {
                if !table.replicas.contains(address) {
                    table.replicas.push(address.clone());
                }
            }
            table.ranges.push(Range {
                from,
                to,
                master,
                replicas,
            });
        }
        Ok(table)
    }
}

fn address_of(node: &Value, asked: Option<&Address>) -> Option<Address> {
    let [host, Value::Int(port), ..] = node.as_sequence()? else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
        _ => host_of(asked)?,
    };
    let port = u16::try_from(*port).ok()?;
    Some(Address::Tcp { host, port })
}

/// Reads the address of a redirection: `host:port`, where an IPv6 host has no brackets, and an empty host means the
/// node asked.
pub(super) fn redirection(text: &str, asked: Option<&Address>) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let host = match host.trim_start_matches('[').trim_end_matches(']') {
        "" => host_of(asked)?,
        host => host.to_owned(),
    };
    Some(Address::Tcp { host, port })
}

fn host_of(asked: Option<&Address>) -> Option<String> {
    match asked? {
        Address::Tcp { host, .. } => Some(host.clone()),
        Address::Unix(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_may_have_an_ipv6_host_or_none() {
        let tcp = |host: &str, port| Address::Tcp {
            host: host.to_owned(),
            port,
        };
        let asked = tcp("10.0.0.7", 6379);
        let read = |text| redirection(text, Some(&asked));
        assert_eq!(read("10.0.0.8:6381"), Some(tcp("10.0.0.8", 6381)));
        assert_eq!(read("node-3.local:6381"), Some(tcp("node-3.local", 6381)));
        assert_eq!(read("2001:db8::1:6381"), Some(tcp("2001:db8::1", 6381)));
        assert_eq!(read("[2001:db8::1]:6381"), Some(tcp("2001:db8::1", 6381)));
        assert_eq!(read(":6381"), Some(tcp("10.0.0.7", 6381)));
        assert_eq!(redirection(":6381", None), None);
        for bad in ["", "host", "host:", "host:0", "host:65536"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
