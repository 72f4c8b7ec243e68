//! A Bloom filter: "certainly not" or "probably yes", in 10 to 24 bits per element.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    store::Store,
};

mod builder;
mod config;
mod generation;
mod look_up;
mod rebuild;
mod root;
mod settings;

pub use builder::BloomBuilder;
pub use rebuild::BloomRebuild;
pub use settings::{BloomMode, BloomScaling, BloomStats};

use generation::{Generation, Named, Reading, Verb};
use root::{Root, State, read_root};

pub(super) static SCRIPTS: &[&crate::script::Script] = &[
    &generation::ADD,
    &generation::CONTAINS,
    &generation::CREATE,
    &generation::GROW,
    &generation::LAYERS,
    &generation::MARK,
    &generation::NAMED,
    &generation::NATIVE,
    &generation::NATIVE_CREATE,
    &generation::NATIVE_STATS,
    &generation::RETIRE,
    &generation::STATS,
    &root::ROOT,
];

/// A Bloom filter: "certainly not" or "probably yes", in 10 to 24 bits per element.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, membership::Bloom};
/// let store = Store::connect("memory://").await?;
/// let seen = Bloom::builder(&store, "crawler", "urls").capacity(10_000).error_rate(0.001).create().await?;
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
///
/// # Promises
///
/// - An element whose `add` returned is found by every later `contains`: while others add, while the filter grows,
///   and through a [rebuild](Self::rebuild).
/// - Every partition begins with its configuration (version, bits, hashes, seed, capacity, error rate), and every call
///   compares it. Every call also reads which generation is current. A filter whose
///   root or bits were evicted, or that has another configuration, is an error, never a wrong "no".
///   [`open`](BloomBuilder::open) never makes an empty filter; [`create`](BloomBuilder::create) does, and is a decision.
/// - Up to its capacity a filter is wrong about at most the configured share of elements that were never added.
///   Bits are within 5 % of the theoretical minimum from a thousand elements on.
/// - A [growing](BloomScaling::Grow) filter keeps that error beyond its capacity, by layers that double in size and
///   share the error: a half, a quarter, an eighth. A [fixed](BloomScaling::Fixed) one degrades, which
///   [`stats`](Self::stats) shows.
///
/// # Limits
///
/// The error rate is a mean over filters: one of fewer than a hundred elements has so few bits that it may be wrong several
/// times as often, above all with [`BloomMode::Native`], whose bits the server chooses. Elements cannot be removed or counted
/// exactly. An `add` that failed may have been carried out. After a crash or a failover
/// that lost the last writes, any element that was added before may be missing if a rebuild was under way, otherwise those
/// added last: rebuild the filter. What is added after the loss is found. If the loss tore a rebuild apart (in a Cluster one
/// node may forget it and another not), calls are errors ([`is_config`](Error::is_config)) until the next rebuild has ended.
/// A rebuild that ends half-way (dropped, or cut off by the store) may leave partitions that no root names and nobody frees;
/// each has the generation in its name.
///
/// # Keys
///
/// `<ns>:bloom:{<name>}:root` names the current generation. `<ns>:bloom:{<name>/<generation>/<partition>}:<layer>` are
/// the bits, at most 8 MB per key, each partition with its own hash tag so that a Cluster spreads them. With
/// [`BloomMode::Native`] `…:0` is the header and `…:filter` the server's own filter (`BF.*`), which grows on its own.
///
/// All numbers are little-endian. A partition is a string: `RSB`, version (1), hashes (1 byte), layer (1), partition
/// (2), bits *m* (4), capacity (4), generation (4), seed (8), error rate (8, IEEE), then state (`o`, `b`, `m`),
/// layers (1), elements added (4), next generation (4); 46 bytes, and then the bits in the order of `SETBIT`.
/// An element's partition is `xxh3_64(element, !seed) × partitions >> 64`. Its bits in a layer come from
/// `xxh3_128(element, seed + layer)` by enhanced double hashing on 64 bits: with `x` the low and `y` the high half,
/// for *i* = 0, 1, … the bit is `368 + (splitmix64(x) × m >> 64)`, then `x += y`, `y += i + 1`, all wrapping;
/// `splitmix64` is the finaliser (30, `bf58476d1ce4e5b9`, 27, `94d049bb133111eb`, 31).
///
/// # Round trips
///
/// One to each node for up to some thousand elements: one script per partition and thousand elements, and one small read of
/// the root. `contains` is plain reads where a partition has one layer. A script reads or sets up to 20,000 bits, about 0.6 µs
/// of the server's time for each: a thousand elements at an error rate of 1 % take 4 ms, and no script more than 12 ms. `stats`
/// reads keys of up to 8 MB, about 1 ms each.
///
/// # While the store is down
///
/// Every call fails. "Probably yes" is the safe answer for most uses; choose it where the error is handled.
///
/// # Metrics
///
/// Operations: `bloom.open`, `bloom.create`, `bloom.add`, `bloom.contains`, `bloom.stats`, `bloom.rebuild`, `bloom.finish`,
/// `bloom.abandon`, `bloom.delete`. Events: `bloom.grown`, `bloom.moved`.
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

    /// Builds the filter `name`.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> BloomBuilder {
        BloomBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            capacity: None,
            error_rate: 0.01,
            mode: BloomMode::Auto,
            scaling: BloomScaling::Fixed,
            key_bytes: Self::MAX_KEY_BYTES,
        }
    }

    /// Adds an element; `true` if it is new, `false` if it was probably there already.
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
    /// If the future is dropped, any of the elements may have been added.
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
        /// So that a filter that is rebuilt all the time does not keep a call for ever.
        const HOPS: usize = 8;
        let mut answers: Vec<Option<bool>> = vec![None; elements.len()];
        let all: Vec<usize> = (0..elements.len()).collect();
        let mut queue = vec![Asked {
            generation: self.state.read().current.clone(),
            as_current: true,
            indices: all,
        }];
        for _ in 0..HOPS {
            let mut later: Vec<Asked> = Vec::new();
            for asked in std::mem::take(&mut queue) {
                let Asked {
                    generation,
                    indices,
                    ..
                } = &asked;
                let mut visit = generation
                    .visit(&self.store, &self.root, verb, elements, indices)
                    .await?;
                if !asked.counts(visit.named) {
                    // Fails if there is no root. Otherwise the filter moved on, was created again, or is back at an older
                    // generation because the server lost its last writes.
                    self.reload().await?;
                    let current = self.state.read().current.clone();
                    for &index in indices {
                        if answers[index].is_none() {
                            push(&mut later, &current, true, index);
                        }
                    }
                    continue;
                }
                for (index, answer) in std::mem::take(&mut visit.answers) {
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
                follow(&self.state.read(), generation, visit, &answers, &mut later)?;
            }
            if later.is_empty() {
                return answers
                    .into_iter()
                    .map(|answer| {
                        answer.ok_or_else(|| Error::codec("the reply does not cover every element"))
                    })
                    .collect();
            }
            observe::event("bloom.moved");
            queue = later;
        }
        Err(Error::unavailable(
            "the filter kept moving to new generations",
        ))
    }

    /// Reads the root again.
    async fn reload(&self) -> Result<Root> {
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
    pub async fn stats(&self) -> Result<BloomStats> {
        observe::operation("bloom.stats", self.keys.namespace(), async {
            for _ in 0..3 {
                self.reload().await?;
                let current = self.state.read().current.clone();
                // `None`: the filter grew or moved between two calls.
                let Some(totals) = current.totals(&self.store).await? else {
                    continue;
                };
                return Ok(BloomStats {
                    elements: totals.added as u64,
                    bits: totals.bits as u64,
                    fill: totals.set / totals.bits,
                    estimated_error: totals.error,
                    bits_per_element: totals.bits / totals.added,
                    partitions: current.config.partitions,
                    mode: current.config.mode,
                });
            }
            Err(Error::config("a partition of the filter is missing"))
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
    /// If the future is dropped, the filter may be deleted in part; delete it again.
    pub async fn delete(self) -> Result<()> {
        observe::operation("bloom.delete", self.keys.namespace(), async {
            self.reload().await?;
            // The root goes last: if interrupted, the filter returns errors and can be deleted again.
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

/// A generation that is asked about the elements at these indices.
struct Asked {
    generation: Arc<Generation>,
    /// As the current one: the one that answers, and whose partitions name the next one. Otherwise such a partition named it.
    as_current: bool,
    indices: Vec<usize>,
}

/// Which generations have to be asked after this visit, and for which elements.
fn follow(
    state: &State,
    generation: &Generation,
    visit: Reading,
    answers: &[Option<bool>],
    later: &mut Vec<Asked>,
) -> Result<()> {
    for (number, index) in visit.building {
        // Not there: that rebuild was abandoned, so the element is not needed in it.
        if let Some(next) = state.find(number) {
            push(later, &next, false, index);
        }
    }
    for (number, index) in visit.moved {
        // A partition of a generation that the root names moves only to one that the root names then, too.
        if state.find(number).is_none() && state.find(generation.number()).is_some() {
            return Err(Error::config(
                "the server lost a rebuild to which the filter had moved; rebuild the filter",
            ));
        }
        // Not there: another rebuild followed, and it has all elements too.
        let next = state.find(number).unwrap_or_else(|| state.current.clone());
        push(later, &next, false, index);
    }
    for index in visit.gone {
        if state.current.number() != generation.number() {
            // This is also the case for an abandoned generation that took adds beside the current one;
            // the answer is known then, and nothing is left to do.
            if answers[index].is_none() {
                push(later, &state.current, true, index);
            }
        } else {
            return Err(Error::config(
                "a partition of the filter is missing or has different settings; rebuild the filter",
            ));
        }
    }
    Ok(())
}

impl Asked {
    /// Whether its answers count, by how the root names it.
    fn counts(&self, named: Named) -> bool {
        let least = match crate::mend::is_missing("the current generation is named as such") {
            false if self.as_current => Named::Current,
            _ => Named::Next,
        };
        named >= least
    }
}

fn push(queue: &mut Vec<Asked>, generation: &Arc<Generation>, as_current: bool, index: usize) {
    let same = |asked: &&mut Asked| {
        asked.generation.number() == generation.number() && asked.as_current == as_current
    };
    match queue.iter_mut().find(same) {
        Some(asked) => asked.indices.push(index),
        None => queue.push(Asked {
            generation: generation.clone(),
            as_current,
            indices: vec![index],
        }),
    }
}

fn check_elements<E: AsRef<[u8]>>(elements: &[E]) -> Result<Vec<&[u8]>> {
    elements
        .iter()
        .map(|element| {
            let element = element.as_ref();
            if element.is_empty() || element.len() > Bloom::MAX_ELEMENT {
                return Err(Error::config(format!(
                    "an element must have 1 to {} bytes, not {}",
                    Bloom::MAX_ELEMENT,
                    element.len()
                )));
            }
            Ok(element)
        })
        .collect()
}
