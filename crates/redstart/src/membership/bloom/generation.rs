//! One generation of a filter: its partitions, and the calls to them.

use std::sync::atomic::{AtomicU8, Ordering};

use super::{
    BloomMode, BloomScaling,
    config::{Config, MAX_LAYERS},
};
use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::{Batch, Call, Script},
    store::Store,
};

pub(in crate::membership) static CREATE: Script =
    Script::new("bloom.create", include_str!("create.lua"));
pub(in crate::membership) static NATIVE_CREATE: Script =
    Script::new("bloom.native_create", include_str!("native_create.lua"));
pub(in crate::membership) static ADD: Script = Script::new(
    "bloom.add",
    concat!(include_str!("bits.lua"), include_str!("add.lua")),
);
pub(in crate::membership) static CONTAINS: Script = Script::new(
    "bloom.contains",
    concat!(include_str!("bits.lua"), include_str!("contains.lua")),
);
pub(in crate::membership) static NATIVE: Script =
    Script::new("bloom.native", include_str!("native.lua"));
pub(in crate::membership) static GROW: Script = Script::new("bloom.grow", include_str!("grow.lua"));
pub(in crate::membership) static MARK: Script = Script::new("bloom.mark", include_str!("mark.lua"));
pub(in crate::membership) static RETIRE: Script =
    Script::new("bloom.retire", include_str!("retire.lua"));
pub(in crate::membership) static STATS: Script =
    Script::new("bloom.stats", include_str!("stats.lua"));
pub(in crate::membership) static NATIVE_STATS: Script =
    Script::new("bloom.native_stats", include_str!("native_stats.lua"));
pub(in crate::membership) static NAMED: Script =
    Script::new("bloom.named", include_str!("named.lua"));
pub(in crate::membership) static LAYERS: Script =
    Script::new("bloom.layers", include_str!("layers.lua"));

/// Elements of one script call, and bits of all layers together; more would block the server for too long.
const CHUNK: usize = 1000;
const CHUNK_BITS: usize = 20_000;
/// Bits of one round trip.
pub(super) const ROUND_BITS: usize = 40_000;
/// How long the header of a retired partition stays.
const TOMBSTONE_MS: u64 = 30 * 24 * 3600 * 1000;

/// A generation, and what this process knows about its layers.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) config: Config,
    /// The configuration as the root spells it.
    pub(super) text: String,
    pub(super) partitions: Vec<Partition>,
}

#[derive(Debug)]
pub(super) struct Partition {
    pub(super) entity: Entity,
    pub(super) layers: AtomicU8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Contains,
}

/// How the root names a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Named {
    No,
    Next,
    Current,
}

impl Named {
    pub(super) fn by(current: &str, next: &str, generation: &Generation) -> Self {
        match &generation.text {
            text if text == current => Self::Current,
            text if text == next => Self::Next,
            _ => Self::No,
        }
    }
}

/// What the partitions of a generation answered, by the index of the element.
#[derive(Debug)]
pub(super) struct Reading {
    /// How the root named this generation, after its partitions were read; of several times, the least.
    pub(super) named: Named,
    pub(super) answers: Vec<(usize, bool)>,
    /// Elements that the named generation must get too.
    pub(super) building: Vec<(u32, usize)>,
    /// Elements that the named generation answers for now.
    pub(super) moved: Vec<(u32, usize)>,
    /// Elements whose partition does not exist, or is another filter's.
    pub(super) gone: Vec<usize>,
}

impl Reading {
    /// Notes the answers for these elements. Those for which a layer is full are returned.
    fn take(&mut self, chunk: Vec<usize>, flags: &str, building: Option<u32>) -> Vec<usize> {
        let mut full = Vec::new();
        for (index, flag) in chunk.into_iter().zip(flags.bytes()) {
            if flag == b'-' {
                full.push(index);
                continue;
            }
            self.answers.push((index, flag == b'1'));
            if let Some(number) = building {
                self.building.push((number, index));
            }
        }
        full
    }
}

/// The sums over all partitions.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) added: f64,
    pub(super) bits: f64,
    pub(super) set: f64,
    /// Of a question about an element that was never added, averaged over the partitions.
    pub(super) error: f64,
}

/// A change of the state of partitions.
#[derive(Clone, Copy)]
pub(super) struct Mark<'a> {
    /// The states that they may be in.
    pub(super) from: &'a str,
    /// The generation that they must name.
    pub(super) named: u32,
    /// The state afterwards, and the generation that they name then.
    pub(super) to: &'a str,
    pub(super) following: u32,
    /// Those that a failover left moved to a generation that nobody knows, and those that are missing, are no obstacle.
    pub(super) lost: bool,
}

impl Generation {
    pub(super) fn new(keys: &Keys, name: &str, config: Config) -> Result<Self> {
        let partitions = (0..config.partitions)
            .map(|partition| {
                Ok(Partition {
                    entity: keys.entity(&format!("{name}/{}/{partition}", config.generation))?,
                    layers: AtomicU8::new(1),
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            text: config.text(),
            config,
            partitions,
        })
    }

    pub(super) fn number(&self) -> u32 {
        self.config.generation
    }

    fn first<'a>(&self, call: Call<'a>) -> Call<'a> {
        call.part("0")
    }

    /// Creates the partitions that do not exist.
    pub(super) async fn create(&self, store: &Store) -> Result<()> {
        let shape = self.config.layer(0);
        let mut batch = Batch::new();
        for (index, partition) in self.partitions.iter().enumerate() {
            let header = self.config.header(index, 0);
            batch.push(match self.config.mode {
                BloomMode::Native => self
                    .first(NATIVE_CREATE.on(&partition.entity))
                    .part("filter")
                    .arg(&header[..])
                    .arg(shape.error_rate)
                    .arg(shape.capacity)
                    .idempotent(),
                BloomMode::Auto | BloomMode::Bitmap => self
                    .first(CREATE.on(&partition.entity))
                    .arg(&header[..])
                    .arg(shape.last_bit())
                    .idempotent(),
            });
        }
        self.all(
            batch.run::<u8>(store).await?,
            "a partition has another configuration",
        )
    }

    /// Moves every partition from one state to another.
    pub(super) async fn mark(&self, store: &Store, mark: Mark<'_>) -> Result<()> {
        self.all(
            self.marks(store, |_| mark).await?,
            "a partition is not in the state that a rebuild expects; another rebuild may have taken over",
        )
    }

    /// The state of each partition and the generation that it names; `None` for one that is missing.
    pub(super) async fn states(&self, store: &Store) -> Result<Vec<Option<(String, u32)>>> {
        let mut pipeline = redis::Pipeline::with_capacity(self.partitions.len());
        for partition in &self.partitions {
            let key = partition.entity.part("0");
            pipeline.cmd("GETRANGE").arg(key).arg(36).arg(45);
        }
        let headers: Vec<Vec<u8>> = store.pipeline(&pipeline).await?;
        let state = |header: Vec<u8>| {
            let (state, named) = (header.first()?, header.get(6..10)?);
            let named = u32::from_le_bytes(named.try_into().ok()?);
            Some((char::from(*state).to_string(), named))
        };
        Ok(headers.into_iter().map(state).collect())
    }

    /// Marks every partition as one beside which another generation is built, if it still is in the state that was read.
    /// `false` if one is not: another rebuild marks them too.
    pub(super) async fn build_beside(
        &self,
        store: &Store,
        states: &[Option<(String, u32)>],
        next: u32,
    ) -> Result<bool> {
        let mark = |index: usize| {
            let state = states.get(index).and_then(Option::as_ref);
            let (from, named) = match state {
                Some((from, named)) if from != "m" => (&from[..], *named),
                _ => ("", 0),
            };
            Mark {
                from,
                named,
                to: "b",
                following: next,
                lost: true,
            }
        };
        let answers = self.marks(store, mark).await?;
        let answers = answers.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(answers.iter().all(|answer| *answer == 1))
    }

    /// Whether a partition was marked as moved to a generation.
    pub(super) async fn any_moved(&self, store: &Store, to: u32) -> Result<bool> {
        // There is no state from which a partition may move: nothing is written.
        let mark = Mark {
            from: "",
            named: to,
            to: "m",
            following: to,
            lost: false,
        };
        let answers = self.marks(store, |_| mark).await?;
        let answers = answers.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(answers.contains(&1))
    }

    /// Marks every partition that is in one of the states; says of each whether it is marked.
    async fn marks<'a>(
        &self,
        store: &Store,
        mark: impl Fn(usize) -> Mark<'a>,
    ) -> Result<Vec<Result<u8>>> {
        let mut batch = Batch::new();
        for (index, partition) in self.partitions.iter().enumerate() {
            let mark = mark(index);
            batch.push(
                self.first(MARK.on(&partition.entity))
                    .arg(&self.config.header(index, 0)[..])
                    .arg(mark.from)
                    .arg(mark.named)
                    .arg(mark.to)
                    .arg(mark.following)
                    .arg(u8::from(mark.lost))
                    .idempotent(),
            );
        }
        batch.run::<u8>(store).await
    }

    /// Frees the memory of partitions that have moved.
    pub(super) async fn retire(&self, store: &Store) -> Result<()> {
        let mut batch = Batch::new();
        for (index, partition) in self.partitions.iter().enumerate() {
            batch.push(
                self.every_key(RETIRE.on(&partition.entity))
                    .arg(&self.config.header(index, 0)[..])
                    .arg(TOMBSTONE_MS)
                    .idempotent(),
            );
        }
        batch
            .run::<u8>(store)
            .await?
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        Ok(())
    }

    /// Deletes everything.
    pub(super) async fn delete(&self, store: &Store) -> Result<()> {
        let mut pipeline = redis::Pipeline::with_capacity(self.partitions.len());
        for partition in &self.partitions {
            let unlink = pipeline.cmd("UNLINK");
            for layer in 0..MAX_LAYERS {
                unlink.arg(partition.entity.part(&layer.to_string()));
            }
            unlink.arg(partition.entity.part("filter"));
        }
        store.pipeline::<redis::Value>(&pipeline).await?;
        Ok(())
    }

    fn every_key<'a>(&self, mut call: Call<'a>) -> Call<'a> {
        call = self.first(call);
        match (self.config.mode, self.config.scaling) {
            (BloomMode::Native, _) => call.part("filter"),
            (_, BloomScaling::Fixed) => call,
            (_, BloomScaling::Grow) => {
                for layer in 1..MAX_LAYERS {
                    call = call.part(&layer.to_string());
                }
                call
            }
        }
    }

    fn all(&self, replies: Vec<Result<u8>>, otherwise: &'static str) -> Result<()> {
        for reply in replies {
            if reply? == 0 {
                return Err(Error::config(otherwise));
            }
        }
        Ok(())
    }

    /// Adds or looks up the elements at `indices`: one call for each partition (and for each thousand), all of
    /// them together.
    pub(super) async fn visit(
        &self,
        store: &Store,
        root: &Entity,
        verb: Verb,
        elements: &[&[u8]],
        indices: &[usize],
    ) -> Result<Reading> {
        let mut groups: Vec<Vec<usize>> = vec![Vec::new(); self.partitions.len()];
        for index in indices {
            groups[self.config.partition(elements[*index])].push(*index);
        }
        let mut open: Vec<(usize, Vec<usize>)> = Vec::new();
        for (partition, group) in groups.into_iter().enumerate() {
            let chunk = (CHUNK_BITS / self.width(partition)).clamp(1, CHUNK);
            open.extend(group.chunks(chunk).map(|chunk| (partition, chunk.to_vec())));
        }
        // Chunks are taken from the end.
        open.reverse();
        let mut visit = Reading {
            named: Named::Current,
            answers: Vec::new(),
            building: Vec::new(),
            moved: Vec::new(),
            gone: Vec::new(),
        };
        if verb == Verb::Contains {
            self.look_up(store, root, elements, &mut open, &mut visit)
                .await?;
        }
        // Each round either ends a chunk or learns of a layer, and layers have a limit.
        while !open.is_empty() {
            let (mut batch, mut sent, mut bits) = (Batch::new(), Vec::new(), 0);
            while bits < ROUND_BITS
                && let Some((partition, chunk)) = open.pop()
            {
                bits += chunk.len() * self.width(partition);
                batch.push(self.call(verb, partition, elements, &chunk));
                sent.push((partition, chunk));
            }
            // Last, because a server runs a pipeline in order.
            batch.push(NAMED.on(root).part("root").idempotent());
            let mut replies = batch.run::<(String, u32, String)>(store).await?;
            let (_, _, names) = replies
                .pop()
                .unwrap_or_else(|| Err(Error::codec("no reply for the root of the filter")))?;
            let (current, next) = names.split_once('\n').unwrap_or((names.as_str(), ""));
            visit.named = visit.named.min(Named::by(current, next, self));
            for ((partition, chunk), reply) in sent.into_iter().zip(replies) {
                let (what, number, flags) = reply?;
                match what.as_str() {
                    "ok" | "building" => {
                        if flags.len() != chunk.len() {
                            return Err(Error::codec(
                                "the reply does not match the requested elements",
                            ));
                        }
                        let building = (what == "building").then_some(number);
                        let full = visit.take(chunk, &flags, building);
                        if !full.is_empty() {
                            self.grow(store, partition).await?;
                            open.push((partition, full));
                        }
                    }
                    "layers" => {
                        let layers = u8::try_from(number).unwrap_or(MAX_LAYERS);
                        self.partitions[partition]
                            .layers
                            .store(layers, Ordering::Relaxed);
                        open.push((partition, chunk));
                    }
                    "moved" => visit
                        .moved
                        .extend(chunk.into_iter().map(|index| (number, index))),
                    _ => visit.gone.extend(chunk),
                }
            }
        }
        Ok(visit)
    }

    /// The bits of one element in all layers that are known of a partition.
    fn width(&self, partition: usize) -> usize {
        match self.config.mode {
            BloomMode::Native => 1,
            BloomMode::Auto | BloomMode::Bitmap => {
                (0..self.partitions[partition].layers.load(Ordering::Relaxed))
                    .map(|layer| self.config.layer(layer).hashes as usize)
                    .sum::<usize>()
                    .max(1)
            }
        }
    }

    fn call<'a>(
        &'a self,
        verb: Verb,
        partition: usize,
        elements: &[&[u8]],
        chunk: &[usize],
    ) -> Call<'a> {
        let Partition { entity, layers } = &self.partitions[partition];
        let config = &self.config;
        if config.mode == BloomMode::Native {
            let mut call = self
                .first(NATIVE.on(entity))
                .part("filter")
                .arg(&config.header(partition, 0)[..])
                .arg(match verb {
                    Verb::Add => "BF.MADD",
                    Verb::Contains => "BF.MEXISTS",
                })
                .idempotent();
            for index in chunk {
                call = call.arg(elements[*index]);
            }
            return call;
        }
        let layers = layers.load(Ordering::Relaxed).clamp(1, MAX_LAYERS);
        let shapes: Vec<_> = (0..layers).map(|layer| config.layer(layer)).collect();
        let script = match verb {
            Verb::Add => &ADD,
            Verb::Contains => &CONTAINS,
        };
        let mut call = script.on(entity).idempotent();
        for layer in 0..layers {
            call = call.part(&layer.to_string());
        }
        call = call.arg(layers);
        for layer in 0..layers {
            call = call.arg(&config.header(partition, layer)[..]);
        }
        for shape in &shapes {
            call = call.arg(shape.hashes);
        }
        let limit = match (config.scaling, shapes.last()) {
            (BloomScaling::Grow, Some(last)) => last.capacity,
            _ => 0,
        };
        call = call.arg(limit);
        for index in chunk {
            for (layer, shape) in (0..layers).zip(&shapes) {
                for offset in shape.offsets(elements[*index], config.layer_seed(layer)) {
                    call = call.arg(offset);
                }
            }
        }
        call
    }

    async fn grow(&self, store: &Store, partition: usize) -> Result<()> {
        let Partition { entity, layers } = &self.partitions[partition];
        let now = layers.load(Ordering::Relaxed).max(1);
        if now >= MAX_LAYERS {
            return Err(Error::config(
                "the filter has grown as far as it can; rebuild it with a larger capacity",
            ));
        }
        let grown: u8 = self
            .first(GROW.on(entity))
            .part(&now.to_string())
            .arg(&self.config.header(partition, 0)[..])
            .arg(now)
            .arg(&self.config.header(partition, now)[..])
            .arg(self.config.layer(now).last_bit())
            .idempotent()
            .run(store)
            .await?;
        if grown == now + 1 {
            observe::event("bloom.grown");
        }
        // 0: the partition is gone, which the next call handles.
        layers.store(grown.max(now), Ordering::Relaxed);
        Ok(())
    }

    pub(super) async fn totals(&self, store: &Store) -> Result<Option<Totals>> {
        if self.config.mode == BloomMode::Native {
            return self.native_totals(store).await;
        }
        let mut batch = Batch::new();
        for (index, partition) in self.partitions.iter().enumerate() {
            batch.push(
                self.first(LAYERS.on(&partition.entity))
                    .arg(&self.config.header(index, 0)[..])
                    .idempotent(),
            );
        }
        for (partition, layers) in self.partitions.iter().zip(batch.run::<u8>(store).await?) {
            match layers? {
                0 => return Ok(None),
                layers => partition.layers.store(layers, Ordering::Relaxed),
            }
        }
        let mut batch = Batch::new();
        for (index, partition) in self.partitions.iter().enumerate() {
            let mut call = STATS.on(&partition.entity);
            for layer in 0..partition.layers.load(Ordering::Relaxed) {
                call = call.part(&layer.to_string());
            }
            batch.push(call.arg(&self.config.header(index, 0)[..]).idempotent());
        }
        let mut totals = Totals::default();
        for row in batch.run::<Option<Vec<u64>>>(store).await? {
            let Some(row) = row? else { return Ok(None) };
            let mut right = 1.0;
            for (layer, numbers) in (0..).zip(row.chunks_exact(2)) {
                let shape = self.config.layer(layer);
                let (added, set) = (numbers[0] as f64, numbers[1] as f64);
                totals.added += added;
                totals.bits += shape.bits as f64;
                totals.set += set;
                right *= 1.0 - (set / shape.bits as f64).powi(shape.hashes as i32);
            }
            totals.error += (1.0 - right) / self.partitions.len() as f64;
        }
        Ok(Some(totals))
    }

    async fn native_totals(&self, store: &Store) -> Result<Option<Totals>> {
        let mut batch = Batch::new();
        for (index, partition) in self.partitions.iter().enumerate() {
            batch.push(
                self.first(NATIVE_STATS.on(&partition.entity))
                    .part("filter")
                    .arg(&self.config.header(index, 0)[..])
                    .idempotent(),
            );
        }
        let hashes = (1.0 / self.config.error_rate).log2();
        let mut totals = Totals::default();
        for row in batch.run::<Option<(u64, u64, u64)>>(store).await? {
            let Some((added, bytes, capacity)) = row? else {
                return Ok(None);
            };
            // The server does not count bits: this is the expected fill for this number of elements.
            let load = added as f64 / (capacity as f64).max(1.0);
            let fill = 1.0 - (-std::f64::consts::LN_2 * load).exp();
            let bits = bytes as f64 * 8.0;
            totals.added += added as f64;
            totals.bits += bits;
            totals.set += bits * fill;
            totals.error += fill.powf(hashes) / self.partitions.len() as f64;
        }
        Ok(Some(totals))
    }
}
