//! Many keys at once: each step is one round trip per node for all of them.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use futures_util::{
    future::join_all,
    stream::{self, StreamExt, TryStreamExt},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    CacheKey, Count, Hit, Inner, Stampede,
    entry::Stamp,
    fill::{Fresh, Work, may_bypass, store_is_down},
    l1::ReadMark,
    lease::{self, Grant},
    load::{ManyLoader, batch_of_many, single},
    miss::Purpose,
    read::{Freshness, Raw, Seen},
    single_flight::Progress,
};
use crate::{
    codec::Codec,
    error::{Error, Result},
    key::Entity,
    script::Batch,
    token::token,
};

/// How many keys that others load are waited for at one time.
const WAITS: usize = 16;

pub(super) type Answers<V> = HashMap<Arc<str>, Hit<V>, foldhash::fast::RandomState>;

/// A key of the batch that has no answer yet.
struct Open<K, V> {
    /// Its place among the keys that were asked for.
    at: usize,
    key: K,
    name: Arc<str>,
    entity: Entity,
    mark: Option<ReadMark>,
    seen: Option<Stamp>,
    /// A value that is too old, for the case that the load fails.
    fallback: Option<Hit<V>>,
}

/// What one server said to requests for leases.
struct Leased<K, V> {
    /// Ours to load, with the tokens.
    ours: Vec<(Open<K, V>, String)>,
    /// To be asked for one at a time: others load them, or something is wrong.
    others: Vec<Open<K, V>>,
    /// The server did not answer.
    failed: Option<(Vec<Open<K, V>>, Error)>,
}

impl<V, C> Inner<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// The values of many keys, in their order.
    pub(super) async fn fetch_many<K>(
        self: &Arc<Self>,
        keys: &[K],
        loader: &ManyLoader<K, V>,
    ) -> Result<Vec<Hit<V>>>
    where
        K: CacheKey + Clone + Send + Sync + 'static,
    {
        let read = match self.reads_are_plain() {
            true => Some(self.read_plainly(keys).await?),
            false => None,
        };
        let read = match read {
            Some(Ok(seen)) => match all_fresh(seen) {
                Ok(hits) => {
                    self.count_hits(&hits);
                    return Ok(hits);
                }
                Err(seen) => Some(Ok(seen)),
            },
            read => read,
        };
        let answers = self.answer_many(keys, loader, read).await?;
        keys.iter()
            .map(|key| {
                answers
                    .get(&*key.name())
                    .cloned()
                    .ok_or_else(|| Error::unavailable("no answer was returned for a key"))
            })
            .collect()
    }

    /// Whether the bytes of a key in the one server are all there is to its value.
    fn reads_are_plain(&self) -> bool {
        !self.asks_ttl() && self.last_seen.is_none() && !self.store.is_cluster()
    }

    /// Reads the keys as they are given. If the server fails, that is the inner error.
    async fn read_plainly<K: CacheKey>(&self, keys: &[K]) -> Result<Result<Vec<Seen<V>>>> {
        let entities = keys
            .iter()
            .map(|key| self.keys.entity(&key.name()))
            .collect::<Result<Vec<_>>>()?;
        let entities: Vec<&Entity> = entities.iter().collect();
        Ok(self.read_many(&entities).await)
    }

    /// Answers each key once. `read` is what the store has, if it was asked already.
    async fn answer_many<K>(
        self: &Arc<Self>,
        keys: &[K],
        loader: &ManyLoader<K, V>,
        read: Option<Result<Vec<Seen<V>>>>,
    ) -> Result<Answers<V>>
    where
        K: CacheKey + Clone + Send + Sync + 'static,
    {
        let mut answers = Answers::with_capacity_and_hasher(keys.len(), Default::default());
        let open = self.open_keys(keys, loader, &mut answers)?;
        if open.is_empty() {
            return Ok(answers);
        }
        let mut failed: Vec<(Vec<Open<K, V>>, Error)> = Vec::new();
        let read = match read {
            Some(read) => vec![read_before(open, read)],
            None => {
                let groups = self.by_node(open, |one| &one.entity);
                join_all(groups.into_iter().map(|group| async move {
                    let entities: Vec<&Entity> = group.iter().map(|one| &one.entity).collect();
                    let seen = self.read_many(&entities).await;
                    (group, seen)
                }))
                .await
            }
        };
        let mut missing = Vec::new();
        for (group, seen) in read {
            match seen {
                Ok(seen) => missing.push(self.answer_seen(group, seen, loader, &mut answers)),
                Err(error) => failed.push((group, error)),
            }
        }
        missing.retain(|group| !group.is_empty());
        let leased = join_all(missing.into_iter().map(|group| self.lease_many(group)));
        let (mut ours, mut others) = (Vec::new(), Vec::new());
        for (leased, found) in leased.await {
            ours.extend(leased.ours);
            others.extend(leased.others);
            failed.extend(leased.failed);
            answers.extend(found);
        }
        if !ours.is_empty() {
            self.load_ours(ours, loader, &mut answers).await?;
        }
        if !failed.is_empty() {
            self.without_store(failed, loader, &mut answers).await?;
        }
        let waiting = stream::iter(others.into_iter().map(|open| {
            let loader = single(loader, &open.key);
            async move {
                let hit = self.fetch(&open.name, loader).await?;
                Ok::<_, Error>((open.name, hit))
            }
        }));
        let waited: Vec<_> = waiting.buffer_unordered(WAITS).try_collect().await?;
        answers.extend(waited);
        Ok(answers)
    }

    /// Answers from the first level. Returns the keys that are left, each once.
    fn open_keys<K>(
        self: &Arc<Self>,
        keys: &[K],
        loader: &ManyLoader<K, V>,
        answers: &mut Answers<V>,
    ) -> Result<Vec<Open<K, V>>>
    where
        K: CacheKey + Clone + Send + Sync + 'static,
    {
        let mut open = Vec::with_capacity(keys.len());
        let mut known: HashSet<Arc<str>, foldhash::fast::RandomState> =
            HashSet::with_capacity_and_hasher(keys.len(), Default::default());
        for (at, key) in keys.iter().enumerate() {
            let name: Arc<str> = key.name().into();
            if !known.insert(name.clone()) {
                continue;
            }
            let entity = self.keys.entity(&name)?;
            if let Some((hit, early)) = self.near(&name) {
                if let Some(seen) = early {
                    self.refresh_early(&name, seen, single(loader, key))?;
                }
                answers.insert(name, hit);
                continue;
            }
            open.push(Open {
                at,
                key: key.clone(),
                mark: self.mark(&name, &entity),
                name,
                entity,
                seen: None,
                fallback: None,
            });
        }
        Ok(open)
    }

    /// Answers what the store has. Returns the misses.
    fn answer_seen<K>(
        self: &Arc<Self>,
        group: Vec<Open<K, V>>,
        seen: Vec<Seen<V>>,
        loader: &ManyLoader<K, V>,
        answers: &mut Answers<V>,
    ) -> Vec<Open<K, V>>
    where
        K: CacheKey + Clone + Send + Sync + 'static,
    {
        let served = seen.iter().filter_map(|seen| match seen {
            Seen::Found(found) if found.freshness != Freshness::Fallback => Some(&found.hit),
            _ => None,
        });
        self.count_hits(served);
        let mut missing = Vec::new();
        for (mut one, seen) in group.into_iter().zip(seen) {
            match seen {
                Seen::Found(found) if found.freshness == Freshness::Fallback => {
                    one.seen = Some(found.stamp);
                    one.fallback = Some(found.hit);
                    missing.push(one);
                }
                Seen::Found(found) => {
                    self.remember(&one.name, one.mark.as_ref(), &found);
                    let early = self.draws_early(&found);
                    if early {
                        self.stats.add(Count::Early);
                    }
                    if early || found.hit.stale {
                        let refresh = Purpose::Refresh { seen: found.stamp };
                        let loader = &mut Some(single(loader, &one.key));
                        // Without a runtime there is no refresh, and the value is as good as before.
                        let _ = self.join(&one.name, &one.entity, loader, refresh);
                    }
                    answers.insert(one.name, found.hit);
                }
                Seen::Unusable { stamp } => {
                    one.seen = Some(stamp);
                    missing.push(one);
                }
                Seen::Nothing => missing.push(one),
            }
        }
        self.stats.add_many(Count::Miss, missing.len() as u64);
        missing
    }

    /// Asks one server for the leases of its keys.
    async fn lease_many<K>(
        &self,
        group: Vec<Open<K, V>>,
    ) -> (Leased<K, V>, Vec<(Arc<str>, Hit<V>)>) {
        let mut leased = Leased {
            ours: Vec::new(),
            others: Vec::new(),
            failed: None,
        };
        let mut found = Vec::new();
        let (token, lasts) = (token(), self.lease_lasts());
        let shared = self.settings.stampede != Stampede::Lease;
        let mut batch = Batch::new();
        for one in &group {
            batch.push(self.ask(&one.entity, &token, lasts, shared, one.seen));
        }
        let asked = batch.run::<Grant>(&self.store).await;
        let asked = match group.first() {
            Some(first) => self.watched(&first.entity, asked),
            None => asked,
        };
        let grants = match asked {
            Ok(grants) => grants,
            Err(error) => {
                leased.failed = Some((group, error));
                return (leased, found);
            }
        };
        for (one, grant) in group.into_iter().zip(grants) {
            match grant {
                Ok(Grant::Lease { token }) => leased.ours.push((one, token)),
                Ok(Grant::Value { bytes, left }) => {
                    let bytes = Some(bytes);
                    match self.examine(&one.entity, Raw { bytes, left }).await {
                        Ok(Seen::Found(value)) if value.freshness == Freshness::Fresh => {
                            self.remember(&one.name, one.mark.as_ref(), &value);
                            found.push((one.name, value.hit));
                        }
                        _ => leased.others.push(one),
                    }
                }
                Ok(Grant::Rest(_)) if one.fallback.is_some() => {
                    found.extend(one.fallback.map(|hit| (one.name, hit)));
                }
                Ok(Grant::Wait(_) | Grant::Rest(_) | Grant::Fenced) | Err(_) => {
                    leased.others.push(one);
                }
            }
        }
        (leased, found)
    }

    /// Loads all keys under our leases at once.
    async fn load_ours<K>(
        self: &Arc<Self>,
        ours: Vec<(Open<K, V>, String)>,
        loader: &ManyLoader<K, V>,
        answers: &mut Answers<V>,
    ) -> Result<()>
    where
        K: CacheKey + Clone + Send + Sync + 'static,
    {
        let keys = ours.iter().map(|(one, _)| one.key.clone()).collect();
        let loader = batch_of_many(loader, keys);
        let mut fallbacks = Vec::new();
        let mut work = Vec::with_capacity(ours.len());
        for (one, token) in ours {
            fallbacks.push((one.name.clone(), one.fallback));
            work.push(Work {
                name: one.name,
                entity: one.entity,
                mark: one.mark,
                token: Some(token),
            });
        }
        let rest = match fallbacks.iter().all(|(_, fallback)| fallback.is_some()) {
            true => lease::REST,
            false => std::time::Duration::ZERO,
        };
        let runtime = self
            .store
            .runtime()
            .ok_or_else(|| Error::config("a load into a cache needs a tokio runtime"))?;
        // In a task of its own, so that a caller that goes away leaves no leases behind.
        let inner = self.clone();
        let task = crate::task::spawn_on(&runtime, async move {
            let progress = Progress::default();
            inner.load(work, loader, None, rest, &progress).await
        });
        let loaded = task
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the load was abandoned")));
        answer_loaded(loaded, fallbacks, answers)
    }

    /// Answers for servers that are down, as the builder says.
    async fn without_store<K>(
        self: &Arc<Self>,
        failed: Vec<(Vec<Open<K, V>>, Error)>,
        loader: &ManyLoader<K, V>,
        answers: &mut Answers<V>,
    ) -> Result<()>
    where
        K: CacheKey + Clone + Send + Sync + 'static,
    {
        let mut open = Vec::new();
        for (group, error) in failed {
            let error = Arc::new(error);
            for one in group {
                match self.last_seen(&one.name, &error) {
                    Some(hit) => drop(answers.insert(one.name, hit)),
                    None if may_bypass(&error, self.settings.down) => open.push(one),
                    None => match one.fallback {
                        Some(hit) => drop(answers.insert(one.name, hit)),
                        None => return Err(Error::shared(&error)),
                    },
                }
            }
        }
        if open.is_empty() {
            return Ok(());
        }
        let _permit = self.bypass_permit().await.ok_or_else(store_is_down)?;
        let keys = open.iter().map(|one| one.key.clone()).collect();
        let loader = batch_of_many(loader, keys);
        let mut fallbacks = Vec::new();
        let mut work = Vec::with_capacity(open.len());
        for one in open {
            fallbacks.push((one.name.clone(), one.fallback));
            work.push(Work {
                name: one.name,
                entity: one.entity,
                mark: None,
                token: None,
            });
        }
        let progress = Progress::default();
        let loaded = self
            .load(work, loader, None, std::time::Duration::ZERO, &progress)
            .await;
        answer_loaded(loaded, fallbacks, answers)
    }
}

/// The values, if all are there and fresh; otherwise what was seen.
fn all_fresh<V>(seen: Vec<Seen<V>>) -> Result<Vec<Hit<V>>, Vec<Seen<V>>> {
    let is_fresh =
        |seen: &Seen<V>| matches!(seen, Seen::Found(found) if found.freshness == Freshness::Fresh);
    if !seen.iter().all(is_fresh) {
        return Err(seen);
    }
    let found = seen.into_iter().filter_map(|seen| match seen {
        Seen::Found(found) => Some(found.hit),
        _ => None,
    });
    Ok(found.collect())
}

/// The open keys with what was read for each.
#[expect(clippy::type_complexity)]
fn read_before<K, V>(
    open: Vec<Open<K, V>>,
    read: Result<Vec<Seen<V>>>,
) -> (Vec<Open<K, V>>, Result<Vec<Seen<V>>>) {
    let read = read.map(|seen| {
        let mut seen: Vec<Option<Seen<V>>> = seen.into_iter().map(Some).collect();
        let at = |one: &Open<K, V>| seen.get_mut(one.at)?.take();
        open.iter()
            .map(at)
            .map(|seen| seen.unwrap_or(Seen::Nothing))
            .collect()
    });
    (open, read)
}

/// Answers with what was loaded; if the load failed, with the values that are too old, if each key has one.
fn answer_loaded<V>(
    loaded: Result<Vec<Fresh<V>>>,
    fallbacks: Vec<(Arc<str>, Option<Hit<V>>)>,
    answers: &mut Answers<V>,
) -> Result<()> {
    match loaded {
        Ok(loaded) => answers.extend(loaded.into_iter().map(|fresh| (fresh.name, fresh.hit))),
        Err(error) => {
            let old: Option<Vec<_>> = fallbacks
                .into_iter()
                .map(|(name, fallback)| Some((name, fallback?)))
                .collect();
            answers.extend(old.ok_or(error)?);
        }
    }
    Ok(())
}
