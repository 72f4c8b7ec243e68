//! Reads that may be stale, answered by replicas.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{ErrorKind, ServerErrorKind, Value};
use tokio::time::Instant;

use super::Node;
use crate::{
    error::{Error, Result},
    store::{
        location::Address,
        request::{Failure, Request, elsewhere_or_later},
        retry::needs_mending,
        transport::Dial,
    },
};

/// How many replicas are asked before the master is.
const TRIES: usize = 2;
/// How old the list of replicas behind sentinels may be before it is read again.
const LIST_AGE: Duration = Duration::from_secs(10);
/// The same after replicas did not answer.
const LIST_AGE_MISSED: Duration = Duration::from_secs(1);

/// What became of a read.
pub(crate) enum ReplicaRead {
    Answered(Result<Value>),
    /// The master has to be asked. `moved` says that a replica named another place.
    Missed {
        moved: bool,
    },
}

/// Asks replicas that have an open connection. One that has none is connected in the background, for later reads: a read
/// never waits for that. Whatever a replica says but an answer leads to the master.
pub(crate) async fn read(replicas: &[Arc<Node>], request: Request<'_>) -> ReplicaRead {
    let mut moved = false;
    // Replicas that hang must leave time for the master, and one for the next.
    let now = Instant::now();
    let ends = now + request.deadline.saturating_duration_since(now) / 2;
    let first = match replicas.len() {
        0 | 1 => 0,
        count => crate::chance::range(0..count),
    };
    let mut tries = 0;
    for at in 0..replicas.len() {
        let node = &replicas[(first + at) % replicas.len()];
        if tries == TRIES {
            break;
        }
        let link = node.link();
        link.prepare();
        if node.is_troubled() {
            continue;
        }
        let now = Instant::now();
        let left = ends.saturating_duration_since(now);
        // A request that is sent too late would only cost its connection.
        if left.is_zero() {
            break;
        }
        let shares = (TRIES - tries).min(replicas.len() - at);
        let part = request.by(now + left / u32::try_from(shares).unwrap_or(1));
        match link.once(part).await {
            None => {}
            Some(Ok(value)) if !needs_mending(&request, &value) => {
                metrics::counter!("redstart_store_replica_reads_total").increment(1);
                return ReplicaRead::Answered(Ok(value));
            }
            // The caller sends the source then, to a replica too: it has to learn the script.
            Some(Err(Failure::Answer(error)))
                if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) =>
            {
                return ReplicaRead::Answered(Err(error.into()));
            }
            Some(Err(Failure::Answer(error))) => {
                moved |= elsewhere_or_later(&error);
                tries += 1;
            }
            // A part of a pipeline was refused.
            Some(Ok(_)) => {
                moved = true;
                tries += 1;
            }
            Some(Err(_)) => tries += 1,
        }
    }
    metrics::counter!("redstart_store_replica_misses_total").increment(1);
    ReplicaRead::Missed { moved }
}

/// The replicas that the sentinels name, as far as they are known.
pub(crate) struct SentinelReplicas {
    /// Knows the sentinels.
    dial: Arc<Dial>,
    nodes: ArcSwap<Vec<Arc<Node>>>,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    /// When the sentinels were asked last.
    asked: Option<Instant>,
    /// The switches of masters until then.
    switches: u64,
    /// A read found no replica since.
    missed: bool,
}

impl SentinelReplicas {
    pub(crate) fn new(dial: Arc<Dial>) -> Arc<Self> {
        Arc::new(Self {
            dial,
            nodes: ArcSwap::default(),
            list: Mutex::default(),
        })
    }

    pub(crate) async fn read(self: &Arc<Self>, request: Request<'_>) -> ReplicaRead {
        self.refresh_in_background();
        let nodes = self.nodes.load_full();
        let read = read(&nodes, request).await;
        if matches!(read, ReplicaRead::Missed { .. }) {
            self.list.lock().missed = true;
        }
        read
    }

    /// Reads the list again if it is old.
    fn refresh_in_background(self: &Arc<Self>) {
        let (now, switches) = (Instant::now(), self.dial.switches());
        {
            let mut list = self.list.lock();
            let age = if list.missed {
                LIST_AGE_MISSED
            } else {
                LIST_AGE
            };
            let is_old = list.asked.is_none_or(|asked| now >= asked + age);
            if !is_old && list.switches == switches {
                return;
            }
            *list = List {
                asked: Some(now),
                switches,
                missed: false,
            };
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (dial, replicas) = (self.dial.clone(), Arc::downgrade(self));
        crate::task::spawn_on(&runtime, async move {
            match named(&dial).await {
                Ok(addresses) => {
                    if let Some(replicas) = replicas.upgrade() {
                        replicas.install(&addresses);
                    }
                }
                Err(error) => tracing::debug!(%error, "the replicas are not known"),
            }
        });
    }

    fn install(&self, addresses: &[Address]) {
        let known = self.nodes.load();
        let node = |address: &Address| {
            let same = known.iter().find(|node| node.is_at(address));
            same.cloned().unwrap_or_else(|| {
                let dial = Dial::server(address.clone(), self.dial.settings().clone());
                Arc::new(Node::new(dial))
            })
        };
        self.nodes
            .store(Arc::new(addresses.iter().map(node).collect()));
    }
}

async fn named(dial: &Dial) -> Result<Vec<Address>> {
    tokio::time::timeout(dial.patience(), dial.replicas())
        .await
        .unwrap_or_else(|_| Err(Error::timeout("no sentinel answered")))
}
