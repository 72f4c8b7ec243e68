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
    /// Where else the table can be read.
    replicas: Vec<Address>,
}

/// The table as a node sent it.
pub(super) struct Table {
    ranges: Vec<(u16, u16, Address)>,
    replicas: Vec<Address>,
}

impl Topology {
    pub(super) fn empty() -> Self {
        Self {
            owners: vec![NOBODY; usize::from(SLOTS)].into(),
            masters: Vec::new(),
            replicas: Vec::new(),
        }
    }

    /// The topology by this table, with the nodes that are known already.
    pub(super) fn new(table: Table, mut node: impl FnMut(&Address) -> Arc<Node>) -> Self {
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        let mut masters: Vec<Arc<Node>> = Vec::new();
        let mut index: HashMap<Address, u16> = HashMap::new();
        for (from, to, address) in table.ranges {
            let at = *index.entry(address).or_insert_with_key(|address| {
                masters.push(node(address));
                (masters.len() - 1) as u16
            });
            owners[usize::from(from)..=usize::from(to)].fill(at);
        }
        Self {
            owners: owners.into(),
            masters,
            replicas: table.replicas,
        }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        match self.owners[usize::from(slot)] {
            NOBODY => None,
            at => self.masters.get(usize::from(at)),
        }
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

    /// Reads `CLUSTER SLOTS`: `[from, to, [host, port, id, …], replicas…]`. An empty host means the node asked.
    pub(super) fn parse(reply: Value, asked: Option<&Address>) -> Result<Self> {
        let bad = || Error::codec("CLUSTER SLOTS has an unexpected shape");
        let mut table = Self {
            ranges: Vec::new(),
            replicas: Vec::new(),
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
            table.ranges.push((from, to, master));
            for replica in replicas {
                if let Some(address) = address_of(replica, asked)
                    && !table.replicas.contains(&address)
                {
                    table.replicas.push(address);
                }
            }
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
        _ => match asked? {
            Address::Tcp { host, .. } => host.clone(),
            Address::Unix(_) => return None,
        },
    };
    let port = u16::try_from(*port).ok()?;
    Some(Address::Tcp { host, port })
}
