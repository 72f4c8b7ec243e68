//! Reading entries from the store.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    Count, Hit, HitSource, Inner,
    entry::{self, Meta, Opened, Stamp},
    l1::{Incoming, ReadMark, Redirections},
};
use crate::{
    codec::Codec,
    error::{Error, Result},
    key::Entity,
};

/// Stands for the servers that hold the tags in [`Health`](super::health::Health).
const TAG_NODES: u64 = u64::MAX;

/// How good a found value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    Fresh,
    /// Older than its TTL, and served while it is refreshed.
    Stale,
    /// Too old for that; served only if it cannot be loaded.
    Fallback,
}

/// What the store has for a key.
pub(super) enum Seen<V> {
    Found(Found<V>),
    /// There is an entry that cannot be used: no entry of ours, or one of its tags was invalidated.
    Unusable {
        stamp: Stamp,
    },
    Nothing,
}

pub(super) struct Found<V> {
    pub(super) hit: Hit<V>,
    pub(super) freshness: Freshness,
    pub(super) meta: Meta,
    pub(super) stamp: Stamp,
    /// Its length in the store.
    pub(super) bytes: usize,
    /// How long it is still fresh, if that was asked.
    pub(super) fresh_for: Option<Duration>,
}

/// The bytes of an entry, and how long the store keeps them, if that was asked.
#[derive(Default)]
pub(super) struct Raw {
    pub(super) bytes: Option<Vec<u8>>,
    pub(super) left: Option<Duration>,
}

impl<V, C> Inner<V, C> {
    fn node(&self, entity: &Entity) -> u64 {
        self.store.node_of(entity.slot())
    }

    fn redirections(&self, slot: u16) -> Redirections {
        Redirections {
            slot,
            of_slot: self.store.redirections(Some(slot)),
            of_all: self.store.redirections(None),
        }
    }

    /// Counts the failures of the server that has this entity.
    pub(super) fn watched<T>(&self, entity: &Entity, result: Result<T>) -> Result<T> {
        self.watched_at(|| self.node(entity), result)
    }

    pub(super) fn watched_tags<T>(&self, result: Result<T>) -> Result<T> {
        self.watched_at(|| TAG_NODES, result)
    }

    fn watched_at<T>(&self, node: impl FnOnce() -> u64, result: Result<T>) -> Result<T> {
        match &result {
            Err(error) if error.is_store_down() => {
                self.stats.add(Count::Down);
                self.health.failed(node());
            }
            _ => self.health.answered(node),
        }
        result
    }

    /// An error if the server failed several times a moment ago and there is another way to answer.
    pub(super) fn awake(&self, entity: &Entity) -> Result<()> {
        self.awake_at(|| self.node(entity))
    }

    fn awake_at(&self, node: impl FnOnce() -> u64) -> Result<()> {
        if self.has_other_answers() && self.health.rests(node) {
            return Err(Error::unavailable("the store failed a moment ago"));
        }
        Ok(())
    }

    /// Groups keys by the server that has them.
    pub(super) fn by_node<T>(&self, items: Vec<T>, entity: impl Fn(&T) -> &Entity) -> Vec<Vec<T>> {
        if !self.store.is_cluster() {
            return vec![items];
        }
        // In the order in which they are named first: the number of a node is another one in every run.
        let mut places = std::collections::BTreeMap::new();
        let mut groups: Vec<Vec<T>> = Vec::new();
        for item in items {
            let node = self.node(entity(&item));
            let place = *places.entry(node).or_insert(groups.len());
            if place == groups.len() {
                groups.push(Vec::new());
            }
            groups[place].push(item);
        }
        groups
    }
}

impl<V, C> Inner<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// Whether reads have to know how long a value is still fresh.
    pub(super) fn asks_ttl(&self) -> bool {
        self.l1.is_some() || self.settings.early.is_some() || !self.settings.stale().is_zero()
    }

    /// Reads one key.
    pub(super) async fn read(&self, entity: &Entity) -> Result<Seen<V>> {
        self.awake(entity)?;
        let read = if self.asks_ttl() {
            // PTTL first: if the value is replaced in between, the old TTL is the shorter one.
            let mut pipeline = redis::Pipeline::with_capacity(2);
            pipeline.cmd("PTTL").arg(entity.key());
            pipeline.cmd("GET").arg(entity.key());
            let read = self.store.pipeline::<(i64, Option<Vec<u8>>)>(&pipeline);
            read.await.map(|(left, bytes)| Raw {
                bytes,
                left: Some(time_left(left)),
            })
        } else {
            let mut get = redis::cmd("GET");
            get.arg(entity.key());
            let read = self.store.query(&get).await;
            read.map(|bytes| Raw { bytes, left: None })
        };
        self.examine(entity, self.watched(entity, read)?).await
    }

    /// What the bytes of one key are.
    pub(super) async fn examine(&self, entity: &Entity, raw: Raw) -> Result<Seen<V>> {
        let Some(bytes) = raw.bytes else {
            return Ok(Seen::Nothing);
        };
        if let Opened::Entry { meta, value } = entry::open::<C, V>(self.fingerprint, &bytes)
            && meta.tags.is_empty()
        {
            // The usual case, without anything on the heap.
            return Ok(Seen::Found(self.found(meta, value, &bytes, raw.left)));
        }
        let raw = Raw {
            bytes: Some(bytes),
            left: raw.left,
        };
        let mut seen = self.examine_many(&[entity], vec![raw]).await?;
        Ok(seen.pop().unwrap_or(Seen::Nothing))
    }

    /// Reads keys of one server in one round trip.
    pub(super) async fn read_many(&self, entities: &[&Entity]) -> Result<Vec<Seen<V>>> {
        let Some(first) = entities.first() else {
            return Ok(Vec::new());
        };
        self.awake(first)?;
        let keys: Vec<_> = entities.iter().map(|entity| entity.key().clone()).collect();
        let read = self.read_raw(&keys).await;
        self.examine_many(entities, self.watched(first, read)?)
            .await
    }

    async fn read_raw(&self, keys: &[crate::key::Key]) -> Result<Vec<Raw>> {
        let with_ttl = self.asks_ttl();
        let mut together = !self.store.is_cluster() && !self.apart.load(Ordering::Relaxed);
        let mut read = self.query_raw(keys, with_ttl, together).await;
        if together && read.as_ref().is_err_and(crosses_slots) {
            // One server, but of a cluster.
            self.apart.store(true, Ordering::Relaxed);
            together = false;
            read = self.query_raw(keys, with_ttl, together).await;
        }
        let mut replies = read?.into_iter();
        let ttls: Vec<_> = replies
            .by_ref()
            .take(if with_ttl { keys.len() } else { 0 })
            .collect();
        let values: Vec<_> = match replies.next() {
            Some(redis::Value::Array(values)) if together => values,
            first => first.into_iter().chain(replies).collect(),
        };
        let (mut ttls, mut values) = (ttls.into_iter(), values.into_iter());
        let mut raws = Vec::with_capacity(keys.len());
        for _ in keys {
            let left = match with_ttl {
                true => Some(time_left(redis::from_redis_value(
                    ttls.next().unwrap_or_default(),
                )?)),
                false => None,
            };
            let bytes = redis::from_redis_value(values.next().unwrap_or_default())?;
            raws.push(Raw { bytes, left });
        }
        Ok(raws)
    }

    /// The TTLs, if they are asked for, and then the values: by one command where that is possible.
    async fn query_raw(
        &self,
        keys: &[crate::key::Key],
        with_ttl: bool,
        together: bool,
    ) -> Result<Vec<redis::Value>> {
        if together && !with_ttl {
            let values = self.store.query(redis::cmd("MGET").arg(keys)).await?;
            return Ok(vec![redis::Value::Array(values)]);
        }
        let mut pipeline = redis::Pipeline::with_capacity(keys.len() + 1);
        // PTTL first, as for a single key.
        for key in keys.iter().filter(|_| with_ttl) {
            pipeline.cmd("PTTL").arg(key);
        }
        if together {
            pipeline.cmd("MGET").arg(keys);
        } else {
            for key in keys {
                pipeline.cmd("GET").arg(key);
            }
        }
        self.store.pipeline(&pipeline).await
    }

    /// What the bytes of keys are. Asks for the tags of tagged entries, and for our entries beside those of another
    /// version: one more round trip each.
    async fn examine_many(&self, entities: &[&Entity], raws: Vec<Raw>) -> Result<Vec<Seen<V>>> {
        let mut seen = Vec::with_capacity(raws.len());
        // Entries of another version, by their place.
        let mut others: Vec<(usize, Raw)> = Vec::new();
        for (at, raw) in raws.into_iter().enumerate() {
            let Some(bytes) = &raw.bytes else {
                seen.push(Seen::Nothing);
                continue;
            };
            seen.push(match entry::open::<C, V>(self.fingerprint, bytes) {
                Opened::Entry { meta, value } => {
                    Seen::Found(self.found(meta, value, bytes, raw.left))
                }
                Opened::Other => {
                    others.push((at, raw));
                    Seen::Nothing
                }
                Opened::Foreign => {
                    self.stats.add(Count::Foreign);
                    Seen::Unusable {
                        stamp: entry::stamp(bytes),
                    }
                }
            });
        }
        if !others.is_empty() {
            let keys: Vec<_> = others
                .iter()
                .map(|(at, _)| entities[*at].part(&self.beside))
                .collect();
            let read = self.read_raw(&keys).await;
            let read = self.watched(entities[others[0].0], read)?;
            for ((at, other), ours) in others.into_iter().zip(read) {
                seen[at] = self.beside(&other, ours);
            }
        }
        let lists: Vec<&[entry::TagStamp]> = seen
            .iter()
            .map(|seen| match seen {
                Seen::Found(found) => &found.meta.tags[..],
                _ => &[],
            })
            .collect();
        if lists.iter().any(|tags| !tags.is_empty()) {
            self.awake_at(|| TAG_NODES)?;
            let valid = self.watched_tags(self.tags.valid(&self.store, &lists).await)?;
            for (seen, valid) in seen.iter_mut().zip(valid) {
                if let (Seen::Found(found), false) = (&seen, valid) {
                    self.stats.add(Count::DeadTag);
                    *seen = Seen::Unusable { stamp: found.stamp };
                }
            }
        }
        Ok(seen)
    }

    /// Our entry beside one of another version.
    fn beside(&self, other: &Raw, ours: Raw) -> Seen<V> {
        let (Some(theirs), Some(bytes)) = (&other.bytes, &ours.bytes) else {
            self.stats.add(Count::Foreign);
            return Seen::Nothing;
        };
        let same_group = entry::group(theirs) == entry::group(bytes);
        match entry::open::<C, V>(self.fingerprint, bytes) {
            Opened::Entry { meta, value } if same_group => {
                // It ends with the other one.
                let left = ours.left.into_iter().chain(other.left).min();
                Seen::Found(self.found(meta, value, bytes, left))
            }
            _ => {
                self.stats.add(Count::Foreign);
                Seen::Nothing
            }
        }
    }

    /// `left` is how long the store keeps it.
    fn found(
        &self,
        meta: Meta,
        value: Option<V>,
        bytes: &[u8],
        left: Option<Duration>,
    ) -> Found<V> {
        let stale_part = meta.keep.saturating_sub(meta.fresh);
        let fresh_for = left.map(|left| left.saturating_sub(stale_part));
        // Zero left means that it was stored between the two reads: it is fresh.
        let freshness = match left {
            Some(left) if !left.is_zero() && left <= stale_part => {
                match stale_part - left <= self.settings.stale_for {
                    true => Freshness::Stale,
                    false => Freshness::Fallback,
                }
            }
            _ => Freshness::Fresh,
        };
        Found {
            hit: Hit {
                value: value.map(Arc::new),
                source: HitSource::Store,
                age: left.map(|left| meta.keep.saturating_sub(left)),
                stale: freshness != Freshness::Fresh,
            },
            freshness,
            stamp: entry::stamp(bytes),
            bytes: bytes.len(),
            fresh_for,
            meta,
        }
    }

    /// The first level's mark for a key that is going to be read.
    pub(super) fn mark(&self, name: &str, entity: &Entity) -> Option<ReadMark> {
        let mut mark = self.l1.as_ref()?.mark(name);
        mark.redirections = self.redirections(entity.slot());
        Some(mark)
    }

    /// Whether the value was read from a node that the Cluster's table names for it, and its tags too.
    fn was_read_at_its_owner(&self, mark: &ReadMark, found: &Found<V>) -> bool {
        let (before, now) = (mark.redirections, self.redirections(mark.redirections.slot));
        before.of_slot == now.of_slot && (found.meta.tags.is_empty() || before == now)
    }

    /// Inserts a value into the first level, and into the values last seen.
    pub(super) fn remember(&self, name: &Arc<str>, mark: Option<&ReadMark>, found: &Found<V>) {
        if let Some(last_seen) = &self.last_seen {
            last_seen.insert(name.clone(), super::LastSeen(found.hit.value.clone()));
        }
        let (Some(level), Some(mark), Some(fresh_for)) = (&self.l1, mark, found.fresh_for) else {
            return;
        };
        if found.hit.stale || fresh_for.is_zero() {
            return;
        }
        if !self.was_read_at_its_owner(mark, found) {
            self.stats.add(Count::InsertRefused);
            return;
        }
        let tags: Vec<&str> = found.meta.tags.iter().map(|stamp| &*stamp.tag).collect();
        let inserted = level.insert(
            name,
            mark,
            Incoming {
                value: found.hit.value.clone(),
                fresh_for,
                load_time: found.meta.load_time,
                age: found.hit.age.unwrap_or_default(),
                stamp: found.stamp,
                bytes: found.bytes,
                tags: &tags,
            },
        );
        if !inserted {
            self.stats.add(Count::InsertRefused);
        }
    }

    /// Whether a fresh value should be refreshed before it expires.
    pub(super) fn draws_early(&self, found: &Found<V>) -> bool {
        match (self.settings.early, found.fresh_for) {
            (Some(early), Some(left)) if found.hit.value.is_some() => {
                early.draws(found.meta.load_time, left)
            }
            _ => false,
        }
    }

    pub(super) fn count_hits<'h>(&self, hits: impl IntoIterator<Item = &'h Hit<V>>)
    where
        V: 'h,
    {
        let (mut all, mut negative, mut stale) = (0, 0, 0);
        for hit in hits {
            all += 1;
            negative += u64::from(hit.value.is_none());
            stale += u64::from(hit.stale);
        }
        self.stats.add_many(Count::Hit, all);
        self.stats.add_many(Count::NegativeHit, negative);
        self.stats.add_many(Count::Stale, stale);
    }
}

fn time_left(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

fn crosses_slots(error: &Error) -> bool {
    let kind = error.redis().map(redis::RedisError::kind);
    kind == Some(redis::ErrorKind::Server(redis::ServerErrorKind::CrossSlot))
}
