//! The connections to one server, and whether it is known to be down.
//!
//! A [`Node`] is one server, or the master behind the sentinels, by one or more [`Link`]s.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::{location::Address, transport::Dial};

mod link;
mod meter;
mod replica;
mod trouble;

pub(crate) use link::Link;
pub(crate) use meter::Waiting;
pub(crate) use replica::{ReplicaRead, SentinelReplicas, read as read_replica};
use trouble::Trouble;

pub(crate) struct Node {
    dial: Arc<Dial>,
    links: Box<[Arc<Link>]>,
    turn: AtomicUsize,
    trouble: Arc<Trouble>,
}

impl Node {
    pub(crate) fn new(dial: Dial) -> Self {
        let dial = Arc::new(dial);
        let trouble = Arc::new(Trouble::default());
        let links = (0..dial.settings().pool.max(1))
            .map(|_| Arc::new(Link::new(dial.clone(), trouble.clone())))
            .collect();
        Self {
            dial,
            links,
            turn: AtomicUsize::new(0),
            trouble,
        }
    }

    /// Where it is, for messages.
    pub(crate) fn place(&self) -> String {
        self.dial.place()
    }

    /// One of the connections, in turn.
    pub(crate) fn link(&self) -> &Arc<Link> {
        if self.links.len() == 1 {
            return &self.links[0];
        }
        &self.links[self.turn.fetch_add(1, Ordering::Relaxed) % self.links.len()]
    }

    pub(crate) fn dial(&self) -> &Arc<Dial> {
        &self.dial
    }

    pub(crate) fn is_at(&self, address: &Address) -> bool {
        self.dial.address() == Some(address)
    }

    /// How often connections were made; changes when the server may have changed.
    pub(crate) fn generation(&self) -> u64 {
        self.links.iter().map(|link| link.generation()).sum()
    }

    /// Connecting failed, or a request was not answered, and there was no success since.
    pub(crate) fn is_troubled(&self) -> bool {
        self.trouble.is_present()
    }
}
