//! A Bloom filter: "certainly not" or "probably yes", in 10 to 24 bits an element.
//!
//! # Promise
//!
//! - An element whose `add` returned is found by every later `contains`: while others add, while the filter grows,
//!   and through a [rebuild](Bloom::rebuild).
//! - Every partition begins with its configuration (version, bits, hashes, seed, capacity, error rate), and each
//!   script compares it before it looks at a bit. A filter that is gone, evicted or of another configuration is an
//!   error, never a wrong "no": configuration and bits are one key and go together.
//! - Up to its capacity a filter is wrong about at most the configured share of elements that were never added.
//!   Bits are within 5 % of the theoretical minimum from a thousand elements on.
//! - A [growing](Scaling::Grow) filter keeps that error past its capacity, by layers that double in size and share
//!   the error: a half, a quarter, an eighth. A [fixed](Scaling::Fixed) one degrades; [`stats`](Bloom::stats) tells.
//!
//! # Not promised
//!
//! Removing elements, or counting them exactly. An `add` that failed may have been carried out.
//!
//! # Keys and cost
//!
//! `<ns>:bloom:{<name>}:root` says which generation is current. `<ns>:bloom:{<name>/<generation>/<partition>}:<layer>`
//! are the bits, at most 8 MB a key, each partition with a tag of its own so that a Cluster spreads them. A call is
//! one round trip to each node for any number of elements: one script for each partition and thousand elements.
//! With [`Mode::Native`] `…:0` is the header and `…:filter` the server's own filter (`BF.*`), which grows by itself.
//!
//! While the store is down every call fails. "Probably yes" is the safe answer for most uses; choose it where the
//! error is handled, not here.
//!
//! # The format, for other languages
//!
//! All numbers are little-endian. A partition is a string: `RSB`, version (1), hashes (1 byte), layer (1), partition
//! (2), bits *m* (4), capacity (4), generation (4), seed (8), error rate (8, IEEE), then state (`o`, `b`, `m`),
//! layers (1), elements added (4), next generation (4); 46 bytes, and then the bits in the order of `SETBIT`.
//! An element's partition is `xxh3_64(element, !seed) × partitions >> 64`. Its bits in a layer come from
//! `xxh3_128(element, seed + layer)` by enhanced double hashing on 64 bits: with `x` the low and `y` the high half,
//! for *i* = 0, 1, … the bit is `368 + (splitmix64(x) × m >> 64)`, then `x += y`, `y += i + 1`, all wrapping;
//! `splitmix64` is the finaliser (30, `bf58476d1ce4e5b9`, 27, `94d049bb133111eb`, 31).
//!
//! Operations: `bloom.open`, `bloom.add`, `bloom.contains`, `bloom.stats`, `bloom.rebuild`, `bloom.finish`,
//! `bloom.abandon`, `bloom.delete`. Events: `bloom.grown`, `bloom.moved`.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::Script,
    store::{Optional, Store},
};

mod config;
mod generation;
mod rebuild;

use config::Config;
use generation::{Generation, Verb};
pub use rebuild::Rebuild;

static ROOT: Script = Script::new("bloom.root", include_str!("bloom/root.lua"));

/// Who keeps the bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// What the stored filter uses; for a new one the server's own filters if it has them, bitmaps otherwise.
    #[default]
    Auto,
    /// The server's own filters, `BF.*`.
    Native,
    /// Bitmaps, on every server.
    Bitmap,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Auto | Mode::Bitmap => "bitmap",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Mode::Native, Mode::Bitmap]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

/// What happens past the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scaling {
    /// The size stays and the error grows.
    #[default]
    Fixed,
    /// The filter grows and the error stays, for 1.44 bits more an element and a look at each layer.
    Grow,
}

impl Scaling {
    fn name(self) -> &'static str {
        match self {
            Scaling::Fixed => "fixed",
            Scaling::Grow => "grow",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Scaling::Fixed, Scaling::Grow]
            .into_iter()
            .find(|scaling| scaling.name() == name)
    }
}

/// How full a filter is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Elements that were new when they were added; a few wrong "known" are missing in it.
    pub elements: u64,
    /// Bits of memory.
    pub bits: u64,
    /// The share of bits that are set.
    pub fill: f64,
    /// How often a question about an element that was never added is answered with "probably", as it stands now.
    pub estimated_error: f64,
    /// Bits of memory for each element; infinite for an empty filter.
    pub bits_per_element: f64,
    /// Partitions, each with a tag of its own.
    pub partitions: u32,
    /// Who keeps the bits.
    pub mode: Mode,
}

/// Settings of a filter. See [`Bloom::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it opens"]
pub struct Builder {
    store: Store,
    namespace: String,
    name: String,
    capacity: Option<u64>,
    error_rate: f64,
    mode: Mode,
    scaling: Scaling,
    key_bytes: u64,
}

impl Builder {
    /// How many elements the filter is for. Without it, only a filter that exists can be opened.
    pub fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = Some(capacity);
        self
    }

    /// The share of wrong "probably" at capacity; 0.01 by default.
    pub fn error_rate(mut self, error_rate: f64) -> Self {
        self.error_rate = error_rate;
        self
    }

    /// Who keeps the bits.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// What happens past the capacity.
    pub fn scaling(mut self, scaling: Scaling) -> Self {
        self.scaling = scaling;
        self
    }

    /// The largest key, 8 MB by default. Smaller ones spread over more slots of a Cluster.
    pub fn key_bytes(mut self, bytes: u64) -> Self {
        self.key_bytes = bytes;
        self
    }

    /// Opens the filter, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a capacity of 0 or over [`Bloom::MAX_CAPACITY`], an error rate outside
    /// [`Bloom::MIN_ERROR_RATE`]`..=0.5`, a bad name, a filter that was made with other settings or is not there,
    /// or `BF.*` asked of a server without it; otherwise those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the filter may be there in part; opening it again completes it.
    pub async fn open(self) -> Result<Bloom> {
        if let Some(capacity) = self.capacity {
            check_shape(capacity, self.error_rate)?;
        }
        if !(1024..=Bloom::MAX_KEY_BYTES).contains(&self.key_bytes) {
            return Err(Error::config(format!(
                "a key has 1024 to {} bytes",
                Bloom::MAX_KEY_BYTES
            )));
        }
        let keys = Keys::new(&self.namespace, "bloom")?;
        let root = keys.entity(&self.name)?;
        observe::operation("bloom.open", keys.namespace(), async {
            let mut row = read_root(&self.store, &root).await?;
            if row.current.is_empty() {
                let Some(capacity) = self.capacity else {
                    return Err(Error::config(
                        "there is no such filter, and no capacity to make one",
                    ));
                };
                let config = Config::new(
                    choose(&self.store, self.mode).await?,
                    self.scaling,
                    capacity,
                    self.error_rate,
                    self.key_bytes,
                );
                check_partitions(&config)?;
                let new = Row {
                    phase: "creating".to_owned(),
                    current: config.text(),
                    next: String::new(),
                };
                row = swap_root(&self.store, &root, &row, &new).await?;
            }
            self.check(&row)?;
            let filter = Bloom {
                state: Arc::new(RwLock::new(State::new(&keys, &self.name, &row, None)?)),
                store: self.store.clone(),
                keys: keys.clone(),
                name: self.name.as_str().into(),
                root,
            };
            if row.phase == "creating" {
                let current = filter.state.read().current.clone();
                current.create(&self.store).await?;
                let ready = Row {
                    phase: "ready".to_owned(),
                    ..row.clone()
                };
                swap_root(&self.store, &filter.root, &row, &ready).await?;
            }
            Ok(filter)
        })
        .await
    }

    /// The stored filter must be the one that was asked for: as it is now, or as a rebuild is making it.
    fn check(&self, row: &Row) -> Result<()> {
        let current = Config::parse(&row.current)?;
        let fits = |config: &Config| {
            self.capacity.is_none_or(|capacity| {
                capacity == config.capacity
                    && self.error_rate == config.error_rate
                    && self.scaling == config.scaling
            }) && (self.mode == Mode::Auto || self.mode == config.mode)
        };
        if fits(&current) || (!row.next.is_empty() && fits(&Config::parse(&row.next)?)) {
            return Ok(());
        }
        Err(Error::config(format!(
            "the filter was made with other settings: {}",
            current.text()
        )))
    }
}

/// Says what a new filter uses.
async fn choose(store: &Store, mode: Mode) -> Result<Mode> {
    let native = match mode {
        Mode::Bitmap => return Ok(Mode::Bitmap),
        _ => store.capabilities().await?.has(Optional::Bloom),
    };
    match (mode, native) {
        (_, true) => Ok(Mode::Native),
        (Mode::Native, false) => Err(Error::config("the server has no BF.* commands")),
        _ => Ok(Mode::Bitmap),
    }
}

fn check_shape(capacity: u64, error_rate: f64) -> Result<()> {
    if !(1..=Bloom::MAX_CAPACITY).contains(&capacity) {
        return Err(Error::config(format!(
            "a capacity is between 1 and {}, not {capacity}",
            Bloom::MAX_CAPACITY
        )));
    }
    if !(Bloom::MIN_ERROR_RATE..=0.5).contains(&error_rate) {
        return Err(Error::config(format!(
            "an error rate is between {:e} and 0.5, not {error_rate}",
            Bloom::MIN_ERROR_RATE
        )));
    }
    Ok(())
}

fn check_partitions(config: &Config) -> Result<()> {
    if config.partitions > Bloom::MAX_PARTITIONS {
        return Err(Error::config(format!(
            "the filter would need {} keys, more than {}: allow larger keys or fewer elements",
            config.partitions,
            Bloom::MAX_PARTITIONS
        )));
    }
    Ok(())
}

/// The root as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// `creating`, `ready`, `building` or `sealing`.
    phase: String,
    current: String,
    next: String,
}

async fn read_root(store: &Store, root: &Entity) -> Result<Row> {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(root.part("root"))
        .arg(&["phase", "current", "next"]);
    let (phase, current, next): (Option<String>, Option<String>, Option<String>) =
        store.query(&cmd).await?;
    Ok(Row {
        phase: phase.unwrap_or_default(),
        current: current.unwrap_or_default(),
        next: next.unwrap_or_default(),
    })
}

/// Replaces the root if it is as expected; returns it as it is then.
async fn swap_root(store: &Store, root: &Entity, expected: &Row, new: &Row) -> Result<Row> {
    let mut call = ROOT.on(root).part("root");
    for row in [expected, new] {
        call = call.arg(&row.phase).arg(&row.current).arg(&row.next);
    }
    // Sent twice, it finds what it wrote, and the caller compares.
    let (phase, current, next) = call.idempotent().run(store).await?;
    Ok(Row {
        phase,
        current,
        next,
    })
}

/// What this process knows of the root.
#[derive(Debug)]
struct State {
    current: Arc<Generation>,
    next: Option<Arc<Generation>>,
}

impl State {
    /// Keeps generations that are known, with what was learned of their layers.
    fn new(keys: &Keys, name: &str, row: &Row, known: Option<&State>) -> Result<Self> {
        let find = |text: &str| {
            let config = Config::parse(text)?;
            let known = known.and_then(|state| {
                [Some(&state.current), state.next.as_ref()]
                    .into_iter()
                    .flatten()
                    .find(|generation| generation.config == config)
            });
            match known {
                Some(generation) => Ok(generation.clone()),
                None => Generation::new(keys, name, config).map(Arc::new),
            }
        };
        if row.current.is_empty() {
            return Err(Error::config("the filter was deleted"));
        }
        Ok(Self {
            current: find(&row.current)?,
            next: match row.next.as_str() {
                "" => None,
                text => Some(find(text)?),
            },
        })
    }

    fn find(&self, number: u32) -> Option<Arc<Generation>> {
        [Some(&self.current), self.next.as_ref()]
            .into_iter()
            .flatten()
            .find(|generation| generation.number() == number)
            .cloned()
    }
}

/// A filter. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, membership::Bloom};
/// let store = Store::connect("memory://").await?;
/// let seen = Bloom::builder(&store, "crawler", "urls").capacity(10_000).error_rate(0.001).open().await?;
///
/// assert!(seen.add("https://example.com/").await?); // new
/// assert!(!seen.add("https://example.com/").await?); // probably known
/// assert!(seen.contains("https://example.com/").await?);
/// assert_eq!(seen.contains_many(&["https://example.com/", "https://example.org/"]).await?, [true, false]);
///
/// // Reopening with other settings is refused.
/// let other = Bloom::builder(&store, "crawler", "urls").capacity(99).open().await;
/// assert!(other.unwrap_err().is_config());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Bloom {
    store: Store,
    keys: Keys,
    name: Arc<str>,
    root: Entity,
    state: Arc<RwLock<State>>,
}

impl Bloom {
    /// The largest capacity.
    pub const MAX_CAPACITY: u64 = 4_000_000_000;
    /// The smallest error rate.
    pub const MIN_ERROR_RATE: f64 = 1e-9;
    /// The longest element in bytes.
    pub const MAX_ELEMENT: usize = 64 * 1024;
    /// The largest key in bytes.
    pub const MAX_KEY_BYTES: u64 = 8 << 20;
    /// The most partitions.
    pub const MAX_PARTITIONS: u32 = 4096;

    /// The filter `name` of a namespace.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> Builder {
        Builder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            capacity: None,
            error_rate: 0.01,
            mode: Mode::Auto,
            scaling: Scaling::Fixed,
            key_bytes: Self::MAX_KEY_BYTES,
        }
    }

    /// Adds an element; `true` if it is new, `false` if it was probably there.
    ///
    /// # Errors
    ///
    /// As [`add_many`](Self::add_many).
    ///
    /// # Cancel safety
    ///
    /// As [`add_many`](Self::add_many).
    pub async fn add(&self, element: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.add_many(&[element]).await?.pop() == Some(true))
    }

    /// Whether an element was probably added; `false` is certain.
    ///
    /// # Errors
    ///
    /// As [`contains_many`](Self::contains_many).
    pub async fn contains(&self, element: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.contains_many(&[element]).await?.pop() == Some(true))
    }

    /// Adds elements; for each, whether it is new.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or too long element, or if the filter is gone or is not the one
    /// that was opened; otherwise those of the [store](Store::query). Some elements may have been added then;
    /// adding them again is harmless.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of the elements may have been added.
    pub async fn add_many<E: AsRef<[u8]>>(&self, elements: &[E]) -> Result<Vec<bool>> {
        let elements = check_elements(elements)?;
        observe::operation("bloom.add", self.keys.namespace(), async {
            self.work(Verb::Add, &elements).await
        })
        .await
    }

    /// For each element, whether it was probably added; `false` is certain.
    ///
    /// # Errors
    ///
    /// As [`add_many`](Self::add_many).
    pub async fn contains_many<E: AsRef<[u8]>>(&self, elements: &[E]) -> Result<Vec<bool>> {
        let elements = check_elements(elements)?;
        observe::operation("bloom.contains", self.keys.namespace(), async {
            self.work(Verb::Contains, &elements).await
        })
        .await
    }

    async fn work(&self, verb: Verb, elements: &[&[u8]]) -> Result<Vec<bool>> {
        /// A filter that is rebuilt again and again still lets a call come through.
        const HOPS: usize = 8;
        let mut answers: Vec<Option<bool>> = vec![None; elements.len()];
        let all: Vec<usize> = (0..elements.len()).collect();
        let mut queue = vec![(self.state.read().current.clone(), all)];
        for _ in 0..HOPS {
            let mut later: Vec<(Arc<Generation>, Vec<usize>)> = Vec::new();
            for (generation, indices) in std::mem::take(&mut queue) {
                let visit = generation
                    .visit(&self.store, verb, elements, &indices)
                    .await?;
                for (index, answer) in visit.answers {
                    // The generation that was asked first knows whether the element is new.
                    answers[index].get_or_insert(answer);
                }
                if visit.building.is_empty() && visit.moved.is_empty() && visit.gone.is_empty() {
                    continue;
                }
                let known = visit.gone.is_empty()
                    && visit
                        .building
                        .iter()
                        .chain(&visit.moved)
                        .all(|(number, _)| self.state.read().find(*number).is_some());
                if !known {
                    self.reload().await?;
                }
                let state = self.state.read();
                for (number, index) in visit.building {
                    // Not there: that rebuild was abandoned, and nobody will miss the element in it.
                    if let Some(next) = state.find(number) {
                        push(&mut later, next, index);
                    }
                }
                for (number, index) in visit.moved {
                    // Not there: there was another rebuild since, and it has all elements too.
                    let next = state.find(number).unwrap_or_else(|| state.current.clone());
                    push(&mut later, next, index);
                }
                for index in visit.gone {
                    if state.current.number() != generation.number() {
                        // Also an abandoned generation that took adds beside the current one: the answer is
                        // there already, and then nothing is left to do.
                        if answers[index].is_none() {
                            push(&mut later, state.current.clone(), index);
                        }
                    } else {
                        return Err(Error::config(
                            "a partition of the filter is gone or has another configuration; rebuild the filter",
                        ));
                    }
                }
            }
            if later.is_empty() {
                return answers
                    .into_iter()
                    .map(|answer| answer.ok_or_else(|| Error::codec("a filter did not answer")))
                    .collect();
            }
            observe::event("bloom.moved");
            queue = later;
        }
        Err(Error::unavailable(
            "the filter moved to a new generation again and again",
        ))
    }

    /// Reads the root again.
    async fn reload(&self) -> Result<Row> {
        let row = read_root(&self.store, &self.root).await?;
        let mut state = self.state.write();
        *state = State::new(&self.keys, &self.name, &row, Some(&state))?;
        Ok(row)
    }

    /// How full the filter is. Counts the set bits on the server, about a millisecond for 8 MB.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the filter is gone; otherwise those of the [store](Store::query).
    pub async fn stats(&self) -> Result<Stats> {
        observe::operation("bloom.stats", self.keys.namespace(), async {
            for _ in 0..3 {
                self.reload().await?;
                let current = self.state.read().current.clone();
                // `None`: the filter grew or moved between two calls.
                let Some(totals) = current.totals(&self.store).await? else {
                    continue;
                };
                return Ok(Stats {
                    elements: totals.added as u64,
                    bits: totals.bits as u64,
                    fill: totals.set / totals.bits,
                    estimated_error: totals.error,
                    bits_per_element: totals.bits / totals.added,
                    partitions: current.config.partitions,
                    mode: current.config.mode,
                });
            }
            Err(Error::config("a partition of the filter is gone"))
        })
        .await
    }

    /// Deletes the filter and everything in it.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, bits without a root may stay behind.
    pub async fn delete(self) -> Result<()> {
        observe::operation("bloom.delete", self.keys.namespace(), async {
            self.reload().await?;
            // The root goes last: interrupted, the filter answers with an error and can be deleted again.
            let (current, next) = {
                let state = self.state.read();
                (state.current.clone(), state.next.clone())
            };
            current.delete(&self.store).await?;
            if let Some(next) = next {
                next.delete(&self.store).await?;
            }
            self.store
                .query::<()>(redis::cmd("DEL").arg(self.root.part("root")))
                .await
        })
        .await
    }
}

fn push(queue: &mut Vec<(Arc<Generation>, Vec<usize>)>, generation: Arc<Generation>, index: usize) {
    match queue
        .iter_mut()
        .find(|(known, _)| known.number() == generation.number())
    {
        Some((_, indices)) => indices.push(index),
        None => queue.push((generation, vec![index])),
    }
}

fn check_elements<E: AsRef<[u8]>>(elements: &[E]) -> Result<Vec<&[u8]>> {
    elements
        .iter()
        .map(|element| {
            let element = element.as_ref();
            if element.is_empty() || element.len() > Bloom::MAX_ELEMENT {
                return Err(Error::config(format!(
                    "an element has 1 to {} bytes, not {}",
                    Bloom::MAX_ELEMENT,
                    element.len()
                )));
            }
            Ok(element)
        })
        .collect()
}
