//! Loading and storing: the same for one key and for many.

use std::{sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    Count, Hit, HitSource, Inner, MAX_TTL,
    entry::{self, Meta, TagStamp},
    l1::ReadMark,
    load::{self, BatchLoader, Notes},
    read::{Found, Freshness},
    single_flight::Progress,
};
use crate::{
    caching::tags::{Snapshot, Tags},
    codec::Codec,
    error::{Error, Result},
    key::Entity,
    script::Batch,
};

/// A key that is about to be loaded.
pub(super) struct Work {
    pub(super) name: Arc<str>,
    pub(super) entity: Entity,
    /// For the first level, from before the lease was asked for.
    pub(super) mark: Option<ReadMark>,
    /// The lease under which the value is stored; without one it is not.
    pub(super) token: Option<String>,
}

/// A loaded value.
pub(super) struct Fresh<V> {
    pub(super) name: Arc<str>,
    pub(super) hit: Hit<V>,
    /// It was good at some moment after this step began.
    pub(super) step: u64,
}

/// An entry ready to be stored.
pub(crate) struct Sealed {
    pub(crate) meta: Meta,
    pub(crate) bytes: Vec<u8>,
}

impl<V, C> Inner<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// Runs the loader, and stores what it returns under the leases. If the load fails, the source is left alone for
    /// `rest`.
    pub(super) async fn load(
        &self,
        work: Vec<Work>,
        loader: BatchLoader<V>,
        snapshot: Option<Result<Snapshot>>,
        rest: Duration,
        progress: &Progress,
    ) -> Result<Vec<Fresh<V>>> {
        // Before the load: a tag invalidated from here on makes the entry a miss. Without it only untagged values can
        // be stored.
        let snapshot = match snapshot {
            _ if work.iter().all(|one| one.token.is_none()) => None,
            Some(taken) => self.watched_tags(taken).ok(),
            None => self
                .watched_tags(self.tags.snapshot(&self.store).await)
                .ok(),
        };
        let loading = progress.step();
        self.stats.add(Count::Load);
        let begun = Instant::now();
        let loaded = load::guarded(self.settings.hard, loader).await;
        let load_time = begun.elapsed();
        let sealed = loaded.and_then(|loaded| {
            loaded
                .into_iter()
                .map(|(value, notes)| {
                    let sealed = self.seal(value.as_ref(), &notes, snapshot.as_ref(), load_time)?;
                    Ok((value.map(Arc::new), sealed))
                })
                .collect::<Result<Vec<_>>>()
        });
        let sealed = match sealed {
            Ok(sealed) => sealed,
            Err(error) => {
                self.stats.add(Count::LoadFailed);
                self.give_up(&work, rest).await;
                return Err(error);
            }
        };
        let storing = progress.step();
        let (values, entries): (Vec<_>, Vec<_>) = sealed.into_iter().unzip();
        let stored = self.store_entries(&work, &entries).await;
        let mut loaded = Vec::with_capacity(work.len());
        for (((one, value), sealed), stored) in
            work.into_iter().zip(values).zip(entries).zip(stored)
        {
            let hit = Hit {
                value,
                source: HitSource::Loaded,
                age: Some(Duration::ZERO),
                stale: false,
            };
            if let (Some(sealed), true) = (sealed, stored) {
                let found = Found {
                    hit: hit.clone(),
                    freshness: Freshness::Fresh,
                    stamp: entry::stamp(&sealed.bytes),
                    bytes: sealed.bytes.len(),
                    fresh_for: Some(sealed.meta.fresh.saturating_sub(load_time)),
                    meta: sealed.meta,
                };
                self.remember(&one.name, one.mark.as_ref(), &found);
            } else if let (Some(last_seen), None) = (&self.last_seen, &one.token) {
                last_seen.insert(one.name.clone(), super::LastSeen(hit.value.clone()));
            }
            loaded.push(Fresh {
                name: one.name,
                hit,
                // The lease was held until then, so a stored value is still good; a refused one may not be.
                step: if stored { storing } else { loading },
            });
        }
        Ok(loaded)
    }

    /// Stores entries under their leases, and gives up the leases of the others. Returns which of them were stored and
    /// are good now.
    async fn store_entries(&self, work: &[Work], entries: &[Option<Sealed>]) -> Vec<bool> {
        let mut stored = vec![false; work.len()];
        let mut unused = Vec::new();
        let mut fills = Vec::new();
        for (at, (one, sealed)) in work.iter().zip(entries).enumerate() {
            match (&one.token, sealed) {
                (Some(token), Some(sealed)) => fills.push((at, one, token, sealed)),
                (Some(token), None) => unused.push((one, token)),
                _ => {}
            }
        }
        if !unused.is_empty() {
            self.release_all(&unused, Duration::ZERO).await;
        }
        let groups = self.by_node(fills, |(_, one, ..)| &one.entity);
        let filled = groups.into_iter().map(|group| async move {
            let mut batch = Batch::new();
            for (_, one, token, sealed) in &group {
                let indexed = self.index_entry(&one.name, sealed).await;
                if let Err(error) = indexed {
                    return (group, Err(error));
                }
                batch.push(self.fill(&one.entity, token, &sealed.bytes, sealed.meta.keep));
            }
            let results = match &group[..] {
                [(_, one, ..), ..] => {
                    let results = batch.run::<u8>(&self.store).await;
                    self.watched(&one.entity, results)
                }
                [] => Ok(Vec::new()),
            };
            (group, results)
        });
        for (group, results) in futures_util::future::join_all(filled).await {
            let mut results = match results {
                Ok(results) => results.into_iter(),
                Err(error) => {
                    tracing::debug!(%error, "loaded values could not be stored");
                    self.stats.add_many(Count::FillLost, group.len() as u64);
                    continue;
                }
            };
            for (at, ..) in &group {
                match results.next() {
                    Some(Ok(1)) => stored[*at] = true,
                    Some(Ok(_)) => self.stats.add(Count::FillRefused),
                    _ => self.stats.add(Count::FillLost),
                }
            }
        }
        self.check_tags(entries, &mut stored).await;
        stored
    }

    /// A tag invalidated during the load has made its entry a miss; callers that came since must not get the value.
    async fn check_tags(&self, entries: &[Option<Sealed>], stored: &mut [bool]) {
        let tags = |sealed: &Option<Sealed>| match sealed {
            Some(sealed) => sealed.meta.tags.clone(),
            None => Vec::new(),
        };
        let lists: Vec<Vec<TagStamp>> = entries
            .iter()
            .zip(stored.iter())
            .map(|(sealed, stored)| if *stored { tags(sealed) } else { Vec::new() })
            .collect();
        if lists.iter().all(Vec::is_empty) {
            return;
        }
        let lists: Vec<&[TagStamp]> = lists.iter().map(|list| &list[..]).collect();
        let valid = self.tags.valid(&self.store, &lists).await;
        match self.watched_tags(valid) {
            Ok(valid) => {
                if valid.contains(&false) {
                    // The snapshot was too old for one of them.
                    self.tags.forget_snapshot();
                }
                for (stored, valid) in stored.iter_mut().zip(valid) {
                    *stored &= valid;
                }
            }
            Err(_) => {
                for (stored, list) in stored.iter_mut().zip(lists) {
                    *stored &= list.is_empty();
                }
            }
        }
    }

    /// Adds an entry to the sets of its tags, where there are such sets. Before it is stored: no entry is
    /// ever in the cache and not in its sets.
    pub(crate) async fn index_entry(&self, name: &str, sealed: &Sealed) -> Result<()> {
        if self.tags.mode() == Tags::Index && !sealed.meta.tags.is_empty() {
            let tags: Vec<Arc<str>> = sealed.meta.tags.iter().map(|t| t.tag.clone()).collect();
            let indexed = self.tags.index(&self.store, name, &tags, sealed.meta.keep);
            self.watched_tags(indexed.await)?;
        }
        Ok(())
    }

    async fn give_up(&self, work: &[Work], rest: Duration) {
        let leased = work
            .iter()
            .filter_map(|one| Some((one, one.token.as_ref()?)));
        self.release_all(&leased.collect::<Vec<_>>(), rest).await;
    }

    async fn release_all(&self, leased: &[(&Work, &String)], rest: Duration) {
        let mut batch = Batch::new();
        for (one, token) in leased {
            batch.push(Self::release(&one.entity, token, rest));
        }
        // If this fails, the leases end on their own.
        if let Err(error) = batch.run::<u8>(&self.store).await {
            tracing::debug!(%error, "leases could not be released");
        }
    }

    /// The entry for a loaded value; `None` if it must not be stored.
    pub(crate) fn seal(
        &self,
        value: Option<&V>,
        notes: &Notes,
        snapshot: Option<&Snapshot>,
        load_time: Duration,
    ) -> Result<Option<Sealed>> {
        let settings = &self.settings;
        let base = match (notes.ttl, value) {
            (Some(ttl), _) => ttl.min(MAX_TTL),
            (None, Some(_)) => settings.ttl,
            (None, None) => settings.negative_ttl,
        };
        if notes.no_store || base.is_zero() {
            return Ok(None);
        }
        let tags = match snapshot {
            Some(snapshot) => self.tags.stamps(&notes.tags, snapshot),
            None if notes.tags.is_empty() => Vec::new(),
            None => return Ok(None),
        };
        let factor = match settings.jitter {
            0.0 => 1.0,
            jitter => 1.0 + crate::chance::range(-jitter..=jitter),
        };
        let fresh = base.mul_f64(factor).max(Duration::from_millis(1));
        // That a value was absent is no help when its source fails.
        let stale = match value {
            Some(_) => settings.stale(),
            None => Duration::ZERO,
        };
        let meta = Meta {
            version: notes.version,
            load_time,
            fresh,
            keep: fresh + stale,
            tags,
        };
        let bytes = entry::seal::<C, V>(self.fingerprint, &meta, value)?;
        Ok(Some(Sealed { meta, bytes }))
    }
}

/// The error for callers without any other answer.
pub(super) fn store_is_down() -> Error {
    Error::unavailable("the store is down and no load slot became free in time")
}

/// Whether another answer may be given after this error of the store.
pub(super) fn may_bypass(error: &Error, down: crate::Down) -> bool {
    error.is_store_down() && down == crate::Down::Allow
}
