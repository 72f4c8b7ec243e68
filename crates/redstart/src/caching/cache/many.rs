//! Many keys at once: each step is one round trip a node for all of them.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    Cache, CacheKey, Count, Down, Found, Hit, Inner, Purpose, Seen, Source, Stampede,
    envelope::{self, millis},
    is_down,
    l1::Ticket,
    lease::{self, Grant},
    load::{self, BoxError, Loaded, Loader, Notes},
};
use crate::{
    caching::tags,
    codec::Codec,
    error::{Error, Result},
    key::Entity,
    observe,
    script::Batch,
};

fn crosses_slots(error: &Error) -> bool {
    let kind = error.redis().map(redis::RedisError::kind);
    kind == Some(redis::ErrorKind::Server(redis::ServerErrorKind::CrossSlot))
}

/// How many keys that others load are waited for at one time.
const WAITS: usize = 16;

/// Handed to a loader of many keys, to say more about each value than its bytes.
#[derive(Clone)]
pub struct LoadMany<K> {
    notes: Arc<Mutex<HashMap<String, Notes>>>,
    key: std::marker::PhantomData<fn(&K)>,
}

impl<K: CacheKey> LoadMany<K> {
    fn new() -> Self {
        Self {
            notes: Arc::default(),
            key: std::marker::PhantomData,
        }
    }

    /// Adds a tag to the value of a key.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the tag is empty, over 512 bytes, or has control characters.
    pub fn tag(&self, key: &K, tag: impl AsRef<str>) -> Result<()> {
        tags::check(tag.as_ref())?;
        let mut notes = self.notes.lock();
        let notes = notes.entry(key.name().into_owned()).or_default();
        if !notes.tags.iter().any(|known| **known == *tag.as_ref()) {
            notes.tags.push(tag.as_ref().into());
        }
        Ok(())
    }

    /// Gives the value of a key a TTL of its own.
    pub fn ttl(&self, key: &K, ttl: Duration) {
        let mut notes = self.notes.lock();
        notes.entry(key.name().into_owned()).or_default().ttl = Some(ttl);
    }

    /// Says which version of its row the value of a key is.
    pub fn version(&self, key: &K, version: u64) {
        let mut notes = self.notes.lock();
        notes.entry(key.name().into_owned()).or_default().version = version;
    }
}

type Answers<V> = HashMap<Arc<str>, Hit<V>, foldhash::fast::RandomState>;
type Values<V> = HashMap<String, V>;
type ManyFuture<V> = Pin<Box<dyn Future<Output = Result<Values<V>, BoxError>> + Send>>;
type ManyLoader<K, V> = Arc<dyn Fn(LoadMany<K>, Vec<K>) -> ManyFuture<V> + Send + Sync>;

/// One key of the batch, where it is not answered yet.
struct Open<K> {
    key: K,
    name: Arc<str>,
    entity: Entity,
    ticket: Option<Ticket>,
    seen: Vec<u8>,
}

impl<K, V, C> Cache<K, V, C>
where
    K: CacheKey + Clone + Send + Sync + 'static,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// The values of many keys, in their order; each step is one round trip a node for all of them.
    ///
    /// The loader is called with the keys that nobody has, and returns pairs of key and value; a key that it
    /// does not return is remembered as absent. Keys that another process is loading are waited for, one load
    /// each.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use std::time::Duration;
    /// use redstart::{Store, caching::Cache};
    ///
    /// let store = Store::connect("memory://").await?;
    /// let squares = Cache::<u64, u64>::builder(&store, "squares").ttl(Duration::from_secs(60)).build()?;
    /// let hits = squares.get_or_load_many(&[1, 2, 3], |_, keys| async move {
    ///     Ok::<_, redstart::Error>(keys.into_iter().map(|n| (n, n * n)).collect::<Vec<_>>())
    /// }).await?;
    /// assert_eq!(hits.iter().map(|hit| hit.value.as_deref()).collect::<Vec<_>>(), [Some(&1), Some(&4), Some(&9)]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`get_or_load`](Self::get_or_load).
    ///
    /// # Cancel safety
    ///
    /// Safe: a load that was begun goes on, and what it brings is stored.
    pub async fn get_or_load_many<F, Fut, R, E>(&self, keys: &[K], loader: F) -> Result<Vec<Hit<V>>>
    where
        F: Fn(LoadMany<K>, Vec<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: IntoIterator<Item = (K, V)>,
        E: Into<BoxError>,
    {
        let loader: ManyLoader<K, V> = Arc::new(move |context, keys| {
            let future = loader(context, keys);
            Box::pin(async move {
                let values = future.await.map_err(Into::into)?;
                Ok(values
                    .into_iter()
                    .map(|(key, value)| (key.name().into_owned(), value))
                    .collect())
            })
        });
        let inner = &self.inner;
        observe::operation("cache.get_or_load_many", inner.keys.namespace(), async {
            let answers = inner.fetch_many(keys, &loader).await?;
            keys.iter()
                .map(|key| {
                    answers
                        .get(&*key.name())
                        .cloned()
                        .ok_or_else(|| Error::unavailable("a key was left without an answer"))
                })
                .collect()
        })
        .await
    }
}

impl<V, C> Inner<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    async fn fetch_many<K>(
        self: &Arc<Self>,
        keys: &[K],
        loader: &ManyLoader<K, V>,
    ) -> Result<Answers<V>>
    where
        K: CacheKey + Clone + Send + Sync + 'static,
    {
        let mut answers = Answers::with_capacity_and_hasher(keys.len(), Default::default());
        let mut open = Vec::with_capacity(keys.len());
        let mut known: HashSet<Arc<str>, foldhash::fast::RandomState> =
            HashSet::with_capacity_and_hasher(keys.len(), Default::default());
        for key in keys {
            let name: Arc<str> = key.name().into();
            if !known.insert(name.clone()) {
                continue;
            }
            let entity = self.keys.entity(&name)?;
            if let Some((hit, early)) = self.near(&name) {
                if let Some(stamp) = early {
                    self.refresh_early(&name, stamp, single(loader, key))?;
                }
                answers.insert(name, hit);
                continue;
            }
            open.push(Open {
                key: key.clone(),
                ticket: self.l1.as_ref().map(|level| level.ticket(&name)),
                name,
                entity,
                seen: Vec::new(),
            });
        }
        if open.is_empty() {
            return Ok(answers);
        }
        let open = match self.read_many(open, loader, &mut answers).await {
            Ok(open) => open,
            Err((open, error)) => return self.without_store(open, loader, answers, error).await,
        };
        if open.is_empty() {
            return Ok(answers);
        }
        self.stats.add_many(Count::Miss, open.len() as u64);
        let (mine, others) = match self.lease_many(open, &mut answers).await {
            Ok(parted) => parted,
            Err((open, error)) => return self.without_store(open, loader, answers, error).await,
        };
        if !mine.is_empty() {
            // In a task of its own, so that a caller that goes away leaves no leases behind.
            let (inner, loader) = (self.clone(), loader.clone());
            let runtime = self
                .store
                .runtime()
                .ok_or_else(|| Error::config("a cache loads within a tokio runtime"))?;
            let loaded = runtime
                .spawn(async move { inner.load_many(mine, &loader).await })
                .await
                .map_err(|_| Error::unavailable("the load was abandoned"))??;
            answers.extend(loaded);
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

    /// Answers what the store has. Returns the rest; with the store down, all of it.
    async fn read_many<K>(
        self: &Arc<Self>,
        open: Vec<Open<K>>,
        loader: &ManyLoader<K, V>,
        answers: &mut Answers<V>,
    ) -> Result<Vec<Open<K>>, (Vec<Open<K>>, Error)>
    where
        K: CacheKey + Clone + Send + Sync + 'static,
    {
        if self.resting() {
            return Err((open, Error::unavailable("the store failed a moment ago")));
        }
        let with_ttl = self.asks_ttl();
        let mut together = !self.store.is_cluster() && !self.apart.load(Ordering::Relaxed);
        let mut read = self.ask_many(&open, with_ttl, together).await;
        if together && read.as_ref().is_err_and(crosses_slots) {
            // One server, but of a cluster.
            self.apart.store(true, Ordering::Relaxed);
            together = false;
            read = self.ask_many(&open, with_ttl, together).await;
        }
        let replies = match self.watched(read) {
            Ok(replies) => replies,
            Err(error) => return Err((open, error)),
        };
        let mut replies = replies.into_iter();
        let ttls: Vec<_> = replies
            .by_ref()
            .take(if with_ttl { open.len() } else { 0 })
            .collect();
        let values: Vec<_> = match replies.next() {
            Some(redis::Value::Array(values)) if together => values,
            first => first.into_iter().chain(replies).collect(),
        };
        let (mut ttls, mut values) = (ttls.into_iter(), values.into_iter());
        let mut seen = Vec::with_capacity(open.len());
        for _ in &open {
            let left = if with_ttl {
                let left = redis::from_redis_value::<i64>(ttls.next().unwrap_or_default());
                Some(Duration::from_millis(
                    u64::try_from(left.unwrap_or(0)).unwrap_or(0),
                ))
            } else {
                None
            };
            let bytes =
                redis::from_redis_value::<Option<Vec<u8>>>(values.next().unwrap_or_default());
            seen.push(match bytes {
                Ok(Some(bytes)) => self.open(bytes, left),
                Ok(None) => Seen::Nothing,
                Err(error) => return Err((open, error.into())),
            });
        }
        let stamps: Vec<&[envelope::TagStamp]> = seen
            .iter()
            .map(|seen| match seen {
                Seen::Found(found) => &found.meta.tags[..],
                _ => &[],
            })
            .collect();
        let valid = match self.watched(self.tags.valid(&self.store, &stamps).await) {
            Ok(valid) => valid,
            Err(error) => return Err((open, error)),
        };
        let hits = seen
            .iter()
            .zip(&valid)
            .filter_map(|(seen, valid)| match seen {
                Seen::Found(found) if *valid => Some(&found.hit),
                _ => None,
            });
        self.count_hits(hits);
        let mut rest = Vec::new();
        for ((mut one, seen), valid) in open.into_iter().zip(seen).zip(valid) {
            match seen {
                Seen::Found(found) if valid => {
                    self.remember(&one.name, one.ticket.as_ref(), &found);
                    let early = match (self.settings.early, found.fresh_for) {
                        (Some(early), Some(left)) if found.hit.value.is_some() => {
                            early.draws(found.meta.load_time, left)
                        }
                        _ => false,
                    };
                    if early || found.hit.stale {
                        let purpose = Purpose::Refresh { seen: found.stamp };
                        let loader = &mut Some(single(loader, &one.key));
                        // Without a runtime there is no refresh, and the value is as good as before.
                        let _ = self.board(&one.name, &one.entity, loader, purpose);
                    }
                    answers.insert(one.name, found.hit);
                }
                Seen::Found(Found { stamp, .. }) => {
                    self.stats.add(Count::DeadTag);
                    one.seen = stamp;
                    rest.push(one);
                }
                Seen::Unusable { stamp } => {
                    one.seen = stamp;
                    rest.push(one);
                }
                Seen::Nothing => rest.push(one),
            }
        }
        Ok(rest)
    }

    /// The TTLs, if they are asked for, and then the values: by one command where that may be.
    async fn ask_many<K>(
        &self,
        open: &[Open<K>],
        with_ttl: bool,
        together: bool,
    ) -> Result<Vec<redis::Value>> {
        let mut pipeline = redis::Pipeline::with_capacity(open.len() + 1);
        // PTTL first, as for a single key.
        for one in open.iter().filter(|_| with_ttl) {
            pipeline.cmd("PTTL").arg(one.entity.key());
        }
        if together {
            let mut values = redis::cmd("MGET");
            for one in open {
                values.arg(one.entity.key());
            }
            pipeline.add_command(values);
        } else {
            for one in open {
                pipeline.cmd("GET").arg(one.entity.key());
            }
        }
        self.store.pipeline(&pipeline).await
    }

    /// Asks for all leases: those that are mine with their tokens, and those that others have.
    #[allow(clippy::type_complexity)]
    async fn lease_many<K>(
        &self,
        open: Vec<Open<K>>,
        answers: &mut Answers<V>,
    ) -> Result<(Vec<(Open<K>, String)>, Vec<Open<K>>), (Vec<Open<K>>, Error)> {
        let token = lease::token();
        let shared = self.settings.stampede != Stampede::Lease;
        let mut batch = Batch::new();
        for one in &open {
            batch.push(lease::ask(
                &one.entity,
                &token,
                self.lease_lasts(),
                shared,
                &one.seen,
            ));
        }
        let asked = batch.run::<Grant>(&self.store).await;
        let grants = match self.watched(asked) {
            Ok(grants) => grants,
            Err(error) => return Err((open, error)),
        };
        let (mut mine, mut others) = (Vec::new(), Vec::new());
        for (one, grant) in open.into_iter().zip(grants) {
            match grant {
                Ok(Grant::Lease { token }) => mine.push((one, token)),
                Ok(Grant::Value { bytes, left }) => match self.examine(bytes, left).await {
                    Ok(Seen::Found(found)) if !found.hit.stale => {
                        self.remember(&one.name, one.ticket.as_ref(), &found);
                        answers.insert(one.name, found.hit);
                    }
                    _ => others.push(one),
                },
                // One at a time these will say what is wrong, or wait.
                Ok(Grant::Wait(_) | Grant::Fenced) | Err(_) => others.push(one),
            }
        }
        Ok((mine, others))
    }

    /// Loads all at once and stores what came.
    async fn load_many<K>(
        &self,
        mine: Vec<(Open<K>, String)>,
        loader: &ManyLoader<K, V>,
    ) -> Result<Vec<(Arc<str>, Hit<V>)>>
    where
        K: CacheKey + Clone + Send + Sync + 'static,
    {
        let snapshot = match self.watched(self.tags.snapshot(&self.store).await) {
            Ok(snapshot) => Some(snapshot),
            Err(error) if is_down(&error) => None,
            Err(error) => {
                self.give_up_many(&mine).await;
                return Err(error);
            }
        };
        self.stats.add(Count::Load);
        let context = LoadMany::new();
        let notes = context.notes.clone();
        let keys = mine.iter().map(|(one, _)| one.key.clone()).collect();
        let begun = Instant::now();
        let loaded = load::guarded(self.settings.hard, || loader(context, keys)).await;
        let load_time = begun.elapsed();
        let mut notes = std::mem::take(&mut *notes.lock());
        let sealed = loaded.and_then(|mut values| {
            mine.iter()
                .map(|(one, _)| {
                    let value = values.remove(&*one.name);
                    let notes = notes.remove(&*one.name).unwrap_or_default();
                    let sealed = self.seal(value.as_ref(), &notes, snapshot.as_ref(), load_time)?;
                    Ok((value, sealed))
                })
                .collect::<Result<Vec<_>>>()
        });
        let sealed = match sealed {
            Ok(sealed) => sealed,
            Err(error) => {
                self.stats.add(Count::LoadFailed);
                self.give_up_many(&mine).await;
                return Err(error);
            }
        };
        let mut stored = vec![false; mine.len()];
        if snapshot.is_some() {
            match self.fill_many(&mine, &sealed).await {
                Ok(filled) => stored = filled,
                Err(error) => {
                    tracing::debug!(%error, "loaded values could not be stored");
                    self.stats.add(Count::FillLost);
                }
            }
        }
        let mut answers = Vec::with_capacity(mine.len());
        for (((one, _), (value, sealed)), stored) in mine.into_iter().zip(sealed).zip(stored) {
            let found = Found {
                hit: Hit {
                    value: value.map(Arc::new),
                    source: Source::Loaded,
                    age: Some(Duration::ZERO),
                    stale: false,
                },
                stamp: envelope::stamp(&sealed.bytes).to_vec(),
                fresh_for: Some(sealed.meta.fresh.saturating_sub(load_time)),
                meta: sealed.meta,
            };
            if stored {
                self.remember(&one.name, one.ticket.as_ref(), &found);
            }
            answers.push((one.name, found.hit));
        }
        Ok(answers)
    }

    async fn fill_many<K>(
        &self,
        mine: &[(Open<K>, String)],
        sealed: &[(Option<V>, super::miss::Sealed)],
    ) -> Result<Vec<bool>> {
        let mut batch = Batch::new();
        for ((one, token), (_, sealed)) in mine.iter().zip(sealed) {
            self.index_entry(&one.name, sealed).await?;
            let keep_ms = millis(sealed.meta.keep);
            batch.push(lease::fill(&one.entity, token, &sealed.bytes, keep_ms));
        }
        let filled = batch.run::<u8>(&self.store).await;
        let mut stored = Vec::with_capacity(mine.len());
        for result in self.watched(filled)? {
            stored.push(match result {
                Ok(1) => true,
                Ok(_) => {
                    self.stats.add(Count::FillRefused);
                    false
                }
                Err(_) => {
                    self.stats.add(Count::FillLost);
                    false
                }
            });
        }
        Ok(stored)
    }

    async fn give_up_many<K>(&self, mine: &[(Open<K>, String)]) {
        let mut batch = Batch::new();
        for (one, token) in mine {
            batch.push(lease::release(&one.entity, token, Duration::ZERO));
        }
        // If this fails, the leases end by themselves.
        let _ = self.watched(batch.run::<u8>(&self.store).await);
    }

    async fn without_store<K>(
        &self,
        open: Vec<Open<K>>,
        loader: &ManyLoader<K, V>,
        mut answers: Answers<V>,
        error: Error,
    ) -> Result<Answers<V>>
    where
        K: CacheKey + Clone + Send + Sync + 'static,
    {
        if !is_down(&error) || self.settings.down != Down::Load {
            let error = Arc::new(error);
            for one in open {
                let hit = self.last_word(&one.name, Error::shared(&error))?;
                answers.insert(one.name, hit);
            }
            return Ok(answers);
        }
        let Ok(_place) = self.down_loads.try_acquire() else {
            return Err(Error::unavailable(
                "the store is down, and as many loads as are allowed are under way",
            ));
        };
        self.stats.add(Count::Bypass);
        self.stats.add(Count::Load);
        let keys = open.iter().map(|one| one.key.clone()).collect();
        let loaded = load::guarded(self.settings.hard, || loader(LoadMany::new(), keys)).await;
        let mut values = loaded.inspect_err(|_| self.stats.add(Count::LoadFailed))?;
        for one in open {
            let hit = Hit {
                value: values.remove(&*one.name).map(Arc::new),
                source: Source::Loaded,
                age: Some(Duration::ZERO),
                stale: false,
            };
            answers.insert(one.name, hit);
        }
        Ok(answers)
    }
}

/// The loader of many, for one.
fn single<K, V>(loader: &ManyLoader<K, V>, key: &K) -> Loader<V>
where
    K: CacheKey + Clone + Send + Sync + 'static,
    V: Send + 'static,
{
    let (loader, key) = (loader.clone(), key.clone());
    Box::new(move |load| {
        Box::pin(async move {
            let context = LoadMany::new();
            let notes = context.notes.clone();
            let mut values = loader(context, vec![key.clone()]).await?;
            if let Some(said) = notes.lock().remove(&*key.name()) {
                *load.notes.lock() = said;
            }
            Ok(Loaded::from(values.remove(&*key.name())))
        })
    })
}
