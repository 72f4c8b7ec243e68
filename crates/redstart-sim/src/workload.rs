//! What clients do, and what must hold meanwhile. One module per pattern, written against the public API.

use std::{fmt, future::Future, pin::Pin, str::FromStr, sync::Arc, time::Duration};

use redstart::Store;

use crate::{client::Client, dice::Dice, world::World};

mod activity;
mod bloom;
mod breaker;
mod cache;
mod check_ins;
mod counting;
mod cron;
mod fenced;
mod first_level;
mod graph;
mod idempotency;
mod job_limit;
mod leaderboard;
mod limiter;
mod locks;
mod mutex;
mod places;
mod priority;
mod queue;
mod redlock;
mod reliable_list;
mod sessions;
mod sorted_view;
mod stock;
mod store;
mod stream;
mod survivor;
mod tags;
mod topic;
mod windowed;
mod write_behind;
mod write_through;

/// A future of a workload.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An operation that may fail for now.
pub type Attempt = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// The clients of one world and their judge.
pub trait Workload: Send + Sync {
    /// The life of one incarnation of a client.
    fn client(self: Arc<Self>, client: Client) -> Work;

    /// After all faults have ended: is everything live again, and is nothing left behind?
    fn settle(self: Arc<Self>, client: Client) -> Work;

    /// One operation of a client that lived through the faults, over the store that it has. Called again for a while if it
    /// fails.
    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt;

    /// How many connections a process needs besides those of its store.
    fn own_connections(&self) -> usize {
        0
    }

    /// Drops what is left of the library in processes that go on.
    fn let_go(&self) {}

    /// A client process was killed.
    fn killed(&self, client: usize) {
        let _ = client;
    }
}

/// How long the holder of a lock waits each time before it looks whether it still has it. Where no fault is planned, some hold it
/// for several of its leases.
fn pauses(client: &mut Client, ttl: Duration, most: u64) -> Vec<Duration> {
    let plan = &client.world.plan;
    let asked = client.world.now().as_nanos() as u64;
    let mut dice = Dice::of(plan.seed, &[60, client.index as u64, asked]);
    if plan.faults.is_empty() && dice.per_mille(300) {
        let count = dice.between(5, 12) as u32;
        return (0..count).map(|_| ttl / 4).collect();
    }
    let count = client.dice.between(0, most);
    (0..count).map(|_| client.dice.millis(0, 800)).collect()
}

/// A pattern that is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Pattern {
    Store,
    Mutex,
    Limiter,
    Stock,
    Idempotency,
    Queue,
    Cron,
    Priority,
    Cache,
    WriteBehind,
    Sessions,
    Locks,
    FirstLevel,
    Counting,
    Leaderboard,
    Bloom,
    Stream,
    Topic,
    Breaker,
    Redlock,
    WriteThrough,
    CacheTags,
    ReliableList,
    QueueLimits,
    Fenced,
    CheckIns,
    Activity,
    Windowed,
    Places,
    SortedView,
    Graph,
}

impl Pattern {
    /// All of them.
    pub const ALL: &'static [Pattern] = &[
        Self::Store,
        Self::Mutex,
        Self::Limiter,
        Self::Stock,
        Self::Idempotency,
        Self::Queue,
        Self::Cron,
        Self::Priority,
        Self::Cache,
        Self::WriteBehind,
        Self::Sessions,
        Self::Locks,
        Self::FirstLevel,
        Self::Counting,
        Self::Leaderboard,
        Self::Bloom,
        Self::Stream,
        Self::Topic,
        Self::Breaker,
        Self::Redlock,
        Self::WriteThrough,
        Self::CacheTags,
        Self::ReliableList,
        Self::QueueLimits,
        Self::Fenced,
        Self::CheckIns,
        Self::Activity,
        Self::Windowed,
        Self::Places,
        Self::SortedView,
        Self::Graph,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Mutex => "mutex",
            Self::Limiter => "limiter",
            Self::Stock => "stock",
            Self::Idempotency => "idempotency",
            Self::Queue => "queue",
            Self::Cron => "cron",
            Self::Priority => "priority",
            Self::Cache => "cache",
            Self::WriteBehind => "write-behind",
            Self::Sessions => "sessions",
            Self::Locks => "locks",
            Self::FirstLevel => "first-level",
            Self::Counting => "counting",
            Self::Leaderboard => "leaderboard",
            Self::Bloom => "bloom",
            Self::Stream => "stream",
            Self::Topic => "topic",
            Self::Breaker => "breaker",
            Self::Redlock => "redlock",
            Self::WriteThrough => "write-through",
            Self::CacheTags => "cache-tags",
            Self::ReliableList => "reliable-list",
            Self::QueueLimits => "queue-limits",
            Self::Fenced => "fenced-values",
            Self::CheckIns => "check-ins",
            Self::Activity => "activity",
            Self::Windowed => "windowed",
            Self::Places => "places",
            Self::SortedView => "sorted-view",
            Self::Graph => "graph",
        }
    }

    /// How long an operation of a client takes, about, in milliseconds.
    pub fn pace(self) -> u64 {
        match self {
            Self::Store => 300,
            Self::Mutex => 1800,
            Self::Limiter => 500,
            Self::Stock => 2000,
            Self::Idempotency => 1200,
            Self::Queue => 600,
            Self::Cron => 500,
            Self::Priority => 900,
            Self::Cache => 700,
            Self::WriteBehind => 450,
            Self::Sessions => 350,
            Self::Locks => 1300,
            Self::FirstLevel => 700,
            Self::Counting => 350,
            Self::Leaderboard => 350,
            Self::Bloom => 400,
            Self::Stream => 600,
            Self::Topic => 400,
            Self::Breaker => 700,
            Self::Redlock => 1500,
            Self::WriteThrough => 600,
            Self::CacheTags => 700,
            Self::ReliableList => 500,
            Self::QueueLimits => 700,
            Self::Fenced => 300,
            Self::CheckIns => 300,
            Self::Activity => 300,
            Self::Windowed => 600,
            Self::Places => 500,
            Self::SortedView => 600,
            Self::Graph => 450,
        }
    }

    /// Whether the servers of its worlds may drop keys. What is data is not for a server that evicts.
    pub fn may_be_evicted(self) -> bool {
        matches!(
            self,
            Self::Mutex
                | Self::Locks
                | Self::Limiter
                | Self::Idempotency
                | Self::Cache
                | Self::FirstLevel
                | Self::Bloom
                | Self::Breaker
                | Self::CacheTags
                | Self::WriteThrough
        )
    }

    /// Whether some of its worlds [provoke](crate::Plan::provokes) what is rare otherwise.
    pub fn can_be_provoked(self) -> bool {
        matches!(
            self,
            Self::Queue
                | Self::Idempotency
                | Self::Bloom
                | Self::WriteThrough
                | Self::CacheTags
                | Self::Graph
        )
    }

    /// The clients and the judge of a world.
    pub fn workload(self, world: &World) -> Arc<dyn Workload> {
        match self {
            Self::Store => Arc::new(store::Counting::new(world)),
            Self::Mutex => Arc::new(mutex::Locking::new(world)),
            Self::Limiter => Arc::new(limiter::Limiting::new(world)),
            Self::Stock => Arc::new(stock::Selling::new(world)),
            Self::Idempotency => Arc::new(idempotency::Executing::new(world)),
            Self::Queue => Arc::new(queue::Queueing::new(world)),
            Self::Cron => Arc::new(cron::Ticking::new(world)),
            Self::Priority => Arc::new(priority::Ranking::new(world)),
            Self::Cache => Arc::new(cache::Reading::new(world)),
            Self::WriteBehind => Arc::new(write_behind::Writing::new(world)),
            Self::Sessions => Arc::new(sessions::Browsing::new(world)),
            Self::Locks => Arc::new(locks::Holding::new(world)),
            Self::FirstLevel => Arc::new(first_level::Glancing::new(world)),
            Self::Counting => Arc::new(counting::Tallying::new(world)),
            Self::Leaderboard => Arc::new(leaderboard::Placing::new(world)),
            Self::Bloom => Arc::new(bloom::Filtering::new(world)),
            Self::Stream => Arc::new(stream::Consuming::new(world)),
            Self::Topic => Arc::new(topic::Listening::new(world)),
            Self::Breaker => Arc::new(breaker::Breaking::new(world)),
            Self::Redlock => Arc::new(redlock::Voting::new(world)),
            Self::WriteThrough => Arc::new(write_through::Committing::new(world)),
            Self::CacheTags => Arc::new(tags::Tagging::new(world)),
            Self::ReliableList => Arc::new(reliable_list::Handling::new(world)),
            Self::QueueLimits => Arc::new(job_limit::Limiting::new(world)),
            Self::Fenced => Arc::new(fenced::Fencing::new(world)),
            Self::CheckIns => Arc::new(check_ins::Checking::new(world)),
            Self::Activity => Arc::new(activity::Attending::new(world)),
            Self::Windowed => Arc::new(windowed::Metering::new(world)),
            Self::Places => Arc::new(places::Locating::new(world)),
            Self::SortedView => Arc::new(sorted_view::Sorting::new(world)),
            Self::Graph => Arc::new(graph::Following::new(world)),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|pattern| pattern.name() == text);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|pattern| pattern.name()).collect();
            format!("no pattern {text:?}; there are {}", names.join(", "))
        })
    }
}
