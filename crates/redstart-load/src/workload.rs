//! A workload: what one operation of a pattern is, and what must be true of all of them together.
//!
//! Every pattern of the tour has one. It keeps a model beside the store (the newest committed version of each row, the
//! number of admitted calls, who is inside a lock) and compares while the load runs and once more at the end.
//! An operation whose outcome is unknown, because its reply was lost, may or may not have happened; the models allow both.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{Result, Store};

use crate::{Settings, cap::Gate};

mod caching;
mod counting;
mod limiting;
mod locking;
mod membership;
mod messaging;
mod naive;
mod probe;
mod ranking;
pub(crate) use ranking::SHARDS as BOARD_SHARDS;
mod resilience;
mod sessions;
mod source;

/// What a workload works with.
#[derive(Clone, Debug)]
pub(crate) struct Bed {
    pub(crate) store: Store,
    /// A namespace of this run's own, removed afterwards.
    pub(crate) namespace: String,
    /// The number of entities that operations choose from.
    pub(crate) keys: u64,
    /// How many operations run at a time, at most.
    pub(crate) clients: usize,
    /// Bytes of a value, where the pattern has values.
    pub(crate) payload: usize,
    /// What every write of the preparation passes.
    pub(crate) gate: Gate,
    chosen: Arc<AtomicU64>,
}

impl Bed {
    pub(crate) fn new(store: &Store, namespace: &str, settings: &Settings, gate: Gate) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            keys: settings.keys,
            clients: settings.pace.clients(),
            payload: settings.payload,
            gate,
            // A workload that has entities says how many.
            chosen: Arc::new(AtomicU64::new(1)),
        }
    }

    /// The number of entities, at most `most`, as an index: for models that keep something for each. Operations choose from
    /// that many.
    pub(crate) fn entities(&self, most: u64) -> usize {
        let entities = self.keys.clamp(1, most);
        self.chosen.store(entities, Ordering::Relaxed);
        entities as usize
    }

    /// How many entities operations choose from.
    pub(crate) fn chosen(&self) -> u64 {
        self.chosen.load(Ordering::Relaxed)
    }

    /// A value of the wanted size.
    pub(crate) fn body(&self) -> Vec<u8> {
        vec![b'x'; self.payload]
    }
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    /// Which client, below [`Bed::clients`]; a client has one operation at a time.
    pub(crate) client: usize,
    /// Counts the operations of the run.
    pub(crate) number: u64,
    /// The chosen entity, below [`Bed::chosen`].
    pub(crate) key: u64,
    /// Whether the mix of reads and writes says that this is a write.
    pub(crate) write: bool,
    /// For whatever else is drawn.
    pub(crate) random: u64,
}

impl Op {
    /// The chosen entity of `entities`.
    pub(crate) fn index(&self, entities: usize) -> usize {
        (self.key % entities.max(1) as u64) as usize
    }
}

/// A pattern under load.
pub(crate) trait Workload: Send + Sync {
    /// One operation.
    fn operate(&self, op: Op) -> impl Future<Output = Result<()>> + Send;

    /// Ends what runs beside the clients, and compares the store with the model.
    fn finish(&self) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// What was found to be broken.
    fn claims(&self) -> &Claims;

    /// How many entities the store holds now.
    fn entities(&self) -> u64;

    /// What an operation goes to, as a number: the entity, unless all operations go to the same key.
    fn target(&self, op: &Op) -> u64 {
        op.key
    }

    /// What the keys of a target have in common: their tag with its braces, or their end. Nothing where only the store knows.
    fn mark(&self, target: u64) -> Option<String> {
        Some(format!("{{e{target}}}"))
    }

    /// A figure that explains what the load did, such as "812 loads for 40,000 reads".
    fn figure(&self) -> Option<String> {
        None
    }

    /// What the latency is of, if not of the server alone.
    fn latency_of(&self) -> Option<&'static str> {
        None
    }
}

type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// A [`Workload`] of any type. Its futures are boxed here and not by `async_trait`, whose bounds on every method make the
/// compiler prove again and again that all of the store may be sent to another thread.
pub(crate) trait AnyWorkload: Send + Sync {
    fn operate(&self, op: Op) -> Running<'_>;
    fn finish(&self) -> Running<'_>;
    fn claims(&self) -> &Claims;
    fn entities(&self) -> u64;
    fn target(&self, op: &Op) -> u64;
    fn mark(&self, target: u64) -> Option<String>;
    fn figure(&self) -> Option<String>;
    fn latency_of(&self) -> Option<&'static str>;
}

impl<W: Workload> AnyWorkload for W {
    fn operate(&self, op: Op) -> Running<'_> {
        Box::pin(Workload::operate(self, op))
    }

    fn finish(&self) -> Running<'_> {
        Box::pin(Workload::finish(self))
    }

    fn claims(&self) -> &Claims {
        Workload::claims(self)
    }

    fn entities(&self) -> u64 {
        Workload::entities(self)
    }

    fn target(&self, op: &Op) -> u64 {
        Workload::target(self, op)
    }

    fn mark(&self, target: u64) -> Option<String> {
        Workload::mark(self, target)
    }

    fn figure(&self) -> Option<String> {
        Workload::figure(self)
    }

    fn latency_of(&self) -> Option<&'static str> {
        Workload::latency_of(self)
    }
}

/// The claims of a workload that did not hold.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    broken: AtomicU64,
    first: Mutex<Option<String>>,
    unchecked: Mutex<Option<String>>,
}

impl Claims {
    /// Notes a claim that does not hold.
    pub(crate) fn hold(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.broken.fetch_add(1, Ordering::Relaxed);
            self.first.lock().get_or_insert_with(what);
        }
    }

    /// Notes that something could not be compared. A promise that was not looked at did not hold.
    pub(crate) fn unchecked(&self, why: impl FnOnce() -> String) {
        self.unchecked.lock().get_or_insert_with(why);
    }

    /// Why something could not be compared.
    pub(crate) fn why_unchecked(&self) -> Option<String> {
        self.unchecked.lock().clone()
    }

    pub(crate) fn broken(&self) -> u64 {
        self.broken.load(Ordering::Relaxed)
    }

    pub(crate) fn first(&self) -> Option<String> {
        self.first.lock().clone()
    }
}

/// How many operations were acknowledged, and how many may have happened.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    done: AtomicU64,
    unknown: AtomicU64,
}

impl Tally {
    /// Adds the outcome of something that counts `amount`.
    pub(crate) fn add<T>(&self, amount: u64, outcome: &Result<T>) {
        let counter = match outcome {
            Ok(_) => &self.done,
            Err(_) => &self.unknown,
        };
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// The most that these outcomes can have led to.
    pub(crate) fn most(&self) -> u64 {
        self.done() + self.unknown.load(Ordering::Relaxed)
    }

    /// Whether `seen` is what these outcomes can have led to.
    pub(crate) fn explains(&self, seen: u64) -> bool {
        (self.done()..=self.most()).contains(&seen)
    }

    /// For messages.
    pub(crate) fn text(&self) -> String {
        match self.unknown.load(Ordering::Relaxed) {
            0 => self.done().to_string(),
            unknown => format!("{} to {}", self.done(), self.done() + unknown),
        }
    }
}

type Opening<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn AnyWorkload>>> + Send + 'a>>;

/// A pattern that can be put under load.
pub struct Pattern {
    name: &'static str,
    family: &'static str,
    invariant: &'static str,
    entity: &'static str,
    /// The share of writes if none is given.
    writes: f64,
    open: for<'a> fn(&'a Bed) -> Opening<'a>,
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pattern").field("name", &self.name).finish()
    }
}

impl Pattern {
    /// Its name, as in the tour.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its family.
    pub fn family(&self) -> &'static str {
        self.family
    }

    /// What must hold under load.
    pub fn invariant(&self) -> &'static str {
        self.invariant
    }

    /// What one entity is, for the figure of bytes per entity.
    pub fn entity(&self) -> &'static str {
        self.entity
    }

    /// The share of writes if none is given.
    pub fn default_writes(&self) -> f64 {
        self.writes
    }

    pub(crate) async fn open(&self, bed: &Bed) -> Result<Box<dyn AnyWorkload>> {
        (self.open)(bed).await
    }
}

/// Declares patterns: name, entity, share of writes, invariant, constructor.
macro_rules! patterns {
    ($family:literal: $($name:literal, $entity:literal, $writes:literal, $invariant:literal, $open:path;)*) => {
        pub(super) const PATTERNS: &[super::Pattern] = &[$(super::Pattern {
            name: $name,
            family: $family,
            invariant: $invariant,
            entity: $entity,
            writes: $writes,
            open: |bed| Box::pin(async move {
                Ok(Box::new($open(bed).await?) as Box<dyn super::AnyWorkload>)
            }),
        }),*];
    };
}
use patterns;

/// All operations of a workload go to one key, with this mark.
macro_rules! one_target {
    ($mark:literal) => {
        fn target(&self, _: &crate::workload::Op) -> u64 {
            0
        }

        fn mark(&self, _: u64) -> Option<String> {
            Some($mark.to_owned())
        }
    };
}
use one_target;

/// Every pattern, in the order of the tour.
pub fn all() -> impl Iterator<Item = &'static Pattern> {
    [
        caching::PATTERNS,
        limiting::PATTERNS,
        locking::PATTERNS,
        resilience::PATTERNS,
        messaging::PATTERNS,
        sessions::PATTERNS,
        ranking::PATTERNS,
        counting::PATTERNS,
        membership::PATTERNS,
    ]
    .into_iter()
    .flatten()
}

/// The pattern of this name. Besides those of [`all`] there is `get`: one GET, the yardstick for all others.
pub fn find(name: &str) -> Option<&'static Pattern> {
    all()
        .chain(probe::PATTERNS)
        .find(|pattern| pattern.name == name)
}

/// The form of a pattern that people write by hand, if there is one, and what its wrong outcomes are.
pub(crate) fn naive(name: &str) -> Option<(&'static Pattern, &'static str)> {
    let form = naive::PATTERNS.iter().find(|form| form.name == name)?;
    Some((form, naive::counted(name)))
}

/// The patterns of which there is a form that people write by hand.
pub fn with_naive_form() -> impl Iterator<Item = &'static Pattern> {
    all().filter(|pattern| naive(pattern.name).is_some())
}

/// Longer than any run.
const DAY: Duration = Duration::from_secs(86_400);
/// How long a caller waits for a lock or a message.
const WAIT: Duration = Duration::from_secs(20);

/// Polls until something is true, at most for [`WAIT`].
async fn until<F: Future<Output = Result<bool>>>(mut holds: impl FnMut() -> F) -> Result<bool> {
    let deadline = tokio::time::Instant::now() + WAIT;
    loop {
        if holds().await? {
            return Ok(true);
        }
        if tokio::time::Instant::now() >= deadline {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Polls while a count grows, until it is what is wanted; gives up when it has not grown for [`WAIT`].
async fn grows_to<F: Future<Output = Result<u64>>>(
    wanted: u64,
    mut count: impl FnMut() -> F,
) -> Result<()> {
    let mut last = 0;
    loop {
        let grown = until(|| {
            let counted = count();
            async move {
                let now = counted.await?;
                Ok(now >= wanted || now > last)
            }
        });
        if !grown.await? {
            return Ok(());
        }
        last = count().await?;
        if last >= wanted {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A vector of counters.
fn counters(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}
