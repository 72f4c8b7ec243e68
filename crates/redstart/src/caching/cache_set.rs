//! Several caches of one application: one namespace, one set of settings, one set of tags, one first level.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    cache::{
        Cache, CacheBuilder, CacheKey, Common, Inner, SharedLevel, Stampede, XFetch, lease, setters,
    },
    invalidation::{L1, bus},
    tags::{self, TagBook, Tags},
};
use crate::{
    Down,
    codec::{Codec, Postcard},
    error::{Error, Result},
    key::Keys,
    observe,
    script::Batch,
    store::Store,
};

/// What joins the name of a set and the name of a cache in it. Neither of them may contain it.
const JOINT: char = '/';

/// Typed caches of several kinds of entities, which belong together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, caching::{Cache, CacheSet, L1}};
///
/// let store = Store::connect("memory://").await?;
/// let catalog = CacheSet::builder(&store, "shop", "catalog")
///     .ttl(Duration::from_secs(3600))
///     .l1(L1::tracking(10_000).max_bytes(64 << 20))
///     .build()?;
/// let products: Cache<u64, String> = catalog.cache("product")?;
/// let prices: Cache<u64, u32> = catalog.builder_of("price").ttl(Duration::from_secs(60)).build()?;
///
/// products.get_or_load(&7, |load| async move {
///     load.tag("brand:acme")?;
///     Ok::<_, redstart::Error>(Some("anvil".to_owned()))
/// }).await?;
/// prices.get_or_load(&7, |load| async move {
///     load.tag("brand:acme")?;
///     Ok::<_, redstart::Error>(Some(950))
/// }).await?;
///
/// // One tag, all types.
/// catalog.invalidate_tag("brand:acme").await?;
/// assert!(products.get(&7).await?.is_none() && prices.get(&7).await?.is_none());
///
/// // A name belongs to the types that it was first used with.
/// assert!(catalog.cache::<u64, bool>("product").is_err());
/// # Ok(()) }
/// ```
///
/// It is cheap to clone; clones share everything.
///
/// # Promises
///
/// - **Caches of one set never read each other's entries.** Each has its name and its keys. In one process a name is
///   bound to one key type, value type, codec and schema; between processes the fingerprint of every entry tells them apart.
/// - **Tags are those of the set.** Invalidating a tag, by the set or by any of its caches, reaches the entries of all
///   types, in all processes, by one small script.
/// - **One first level.** The limits given to [`l1`](CacheSetBuilder::l1) are for all caches of the set together. What is
///   used most stays, whichever cache it belongs to.
/// - **One set of settings**, which every cache starts with. [`builder_of`](Self::builder_of) changes them for one cache.
///
/// # Limits
///
/// The number of [values last seen](CacheSetBuilder::last_seen) and of [loads](CacheSetBuilder::max_loads) while the store
/// is down are for each cache.
///
/// # Keys
///
/// Those of a [`Cache`] with the name `<set>/<name>`, but the tags are at `<ns>:cache-tag.<set>:{0..15}`, and the changes
/// that all caches listen to on the channel `<ns>:cache-bus.<set>:{all}:changes`.
///
/// # Round trips
///
/// Those of [`Cache`]. A first level by [`L1::pubsub`] listens to one channel more.
///
/// # Metrics
///
/// Operations: `cache.invalidate_tag`, `cache.clear`, and those of [`Cache`].
#[derive(Clone)]
pub struct CacheSet {
    set: Arc<Set>,
}

impl fmt::Debug for CacheSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSet")
            .field("namespace", &self.set.namespace)
            .field("name", &self.set.name)
            .finish_non_exhaustive()
    }
}

/// Sets up a [`CacheSet`].
#[must_use = "a builder does nothing until it builds"]
pub struct CacheSetBuilder {
    store: Store,
    namespace: String,
    name: String,
    common: Common,
}

impl fmt::Debug for CacheSetBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSetBuilder")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl CacheSetBuilder {
    setters!();

    /// Makes the set. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name, or a setting out of range.
    pub fn build(self) -> Result<CacheSet> {
        check_name(&self.name)?;
        self.common.checked()?;
        let l1 = &self.common.l1;
        let level = match l1.is_off() {
            true => None,
            false => {
                l1.check()?;
                Some(SharedLevel::new(l1))
            }
        };
        let bus = bus(&self.namespace, &self.name)?;
        Ok(CacheSet {
            set: Arc::new(Set {
                tags: TagBook::new(&self.namespace, &self.name, self.common.tags)?,
                bus: bus.channel("changes").as_str().to_owned(),
                store: self.store,
                namespace: self.namespace.into(),
                name: self.name,
                common: self.common,
                level,
                bound: Mutex::default(),
                members: Mutex::default(),
            }),
        })
    }
}

fn check_name(name: &str) -> Result<()> {
    if name.contains(JOINT) {
        return Err(Error::config(format!(
            "the names of a set of caches and of its caches must not contain {JOINT}"
        )));
    }
    Ok(())
}

impl CacheSet {
    /// Starts to set up a set of caches with this name in a namespace of the store.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> CacheSetBuilder {
        CacheSetBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            common: Common::default(),
        }
    }

    /// A set of caches with the default settings.
    ///
    /// # Errors
    ///
    /// Those of [`CacheSetBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// A cache of this set, with its settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid name, or one that the set has for other types.
    pub fn cache<K, V>(&self, name: &str) -> Result<Cache<K, V>>
    where
        K: CacheKey + ?Sized,
        V: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        self.builder_of(name).build()
    }

    /// A cache of this set, to change settings, the codec or the schema.
    pub fn builder_of<K: ?Sized, V>(&self, name: &str) -> CacheBuilder<K, V, Postcard> {
        CacheBuilder::in_set(self.set.clone(), name)
    }

    /// Makes every entry with this tag a miss, in all caches of the set: one small script, however many there are.
    ///
    /// With [`Tags::Index`] the entries of the caches that this process has are also removed, in batches; those of others
    /// go by their TTL.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid tag, and those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the tag may or may not have been invalidated.
    pub async fn invalidate_tag(&self, tag: &str) -> Result<()> {
        let set = &self.set;
        tags::check(tag)?;
        observe::operation("cache.invalidate_tag", &set.namespace, async {
            let result = set.tags.bump(&set.store, tag, &set.bus).await;
            set.tag_changed(tag);
            result?;
            for member in set.members() {
                member.remove_indexed(tag).await?;
            }
            Ok(())
        })
        .await
    }

    /// Removes every entry of all caches of the set, also of those that only other processes have, and empties their first
    /// levels. What was loaded before now will not be stored.
    ///
    /// The keys are found by a SCAN of the whole store, so this is for operators and tests. Caches with a layout of their
    /// own are not found: clear what they hold by a tag.
    ///
    /// # Errors
    ///
    /// Those of the store: then any of the entries may still be there.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of the entries may have been removed.
    pub async fn clear(&self) -> Result<()> {
        let set = &self.set;
        observe::operation("cache.clear", &set.namespace, async {
            let removed = set.remove_all().await;
            let cleared = set.tags.announce_clear(&set.store, &set.bus).await;
            for member in set.members() {
                member.forget_all();
            }
            removed.and(cleared)
        })
        .await
    }
}

/// What the caches of a set share.
pub(crate) struct Set {
    pub(crate) store: Store,
    pub(crate) namespace: Arc<str>,
    name: String,
    pub(crate) common: Common,
    pub(crate) tags: TagBook,
    /// The classic channel that tells all first levels of the set.
    pub(crate) bus: String,
    level: Option<SharedLevel>,
    /// The types that each name was first used with.
    bound: Mutex<BTreeMap<String, (u64, &'static str)>>,
    members: Mutex<Vec<Weak<dyn Member>>>,
}

impl Set {
    /// The name of the keys of a cache, if its name is not in use for other types.
    pub(crate) fn admit<K: ?Sized>(&self, name: &str, fingerprint: u64) -> Result<String> {
        check_name(name)?;
        let types = (fingerprint, std::any::type_name::<K>());
        let mut bound = self.bound.lock();
        let known = bound.entry(name.to_owned()).or_insert(types);
        if *known != types {
            return Err(Error::config(format!(
                "the set of caches {:?} has the name {name:?} for other types, or another codec or schema",
                self.name
            )));
        }
        Ok(format!("{}{JOINT}{name}", self.name))
    }

    /// The shared first level, unless the cache was given another.
    pub(crate) fn level(&self, l1: &L1) -> Option<&SharedLevel> {
        self.level.as_ref().filter(|_| *l1 == self.common.l1)
    }

    pub(crate) fn join(&self, member: Weak<dyn Member>) {
        let mut members = self.members.lock();
        members.retain(|member| member.strong_count() > 0);
        members.push(member);
    }

    fn members(&self) -> Vec<Arc<dyn Member>> {
        self.members
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// A tag was invalidated: no cache of this process has anything older in its first level.
    pub(crate) fn tag_changed(&self, tag: &str) {
        for member in self.members() {
            member.tag_changed(tag);
        }
    }

    /// Removes the entries and leases of all caches.
    async fn remove_all(&self) -> Result<()> {
        let prefix = format!("{}:cache.{}{JOINT}", self.namespace, self.name);
        // For each cache its names, and the entries beside those of another version.
        let mut found: BTreeMap<&str, BTreeMap<String, Vec<&str>>> = BTreeMap::new();
        let keys = self.store.scan(&format!("{prefix}*")).await?;
        let mut of_cache: BTreeMap<&str, Keys> = BTreeMap::new();
        for key in &keys {
            let Some((cache, rest)) = key
                .strip_prefix(&prefix)
                .and_then(|rest| rest.split_once(":{"))
            else {
                continue;
            };
            let keys = match of_cache.entry(cache) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => new.insert(self.keys_of(cache)?),
            };
            let Some(end) = rest.find('}') else { continue };
            let entry = &key[..key.len() - rest.len() + end + 1];
            let Some(name) = keys.name_of(entry.as_bytes()) else {
                continue;
            };
            let parts = found.entry(cache).or_default();
            let parts = parts.entry(name.into_owned()).or_default();
            parts.extend(rest[end + 1..].strip_prefix(':'));
        }
        for (cache, names) in &found {
            let (keys, bus) = (&of_cache[cache], self.bus_of(cache)?);
            let names: Vec<_> = names.iter().collect();
            for chunk in names.chunks(1000) {
                remove(&self.store, keys, &bus, chunk).await?;
            }
        }
        Ok(())
    }

    fn keys_of(&self, cache: &str) -> Result<Keys> {
        Keys::named(
            &self.namespace,
            "cache",
            &format!("{}{JOINT}{cache}", self.name),
        )
    }

    fn bus_of(&self, cache: &str) -> Result<String> {
        let bus = bus(&self.namespace, &format!("{}{JOINT}{cache}", self.name))?;
        Ok(bus.channel("changes").as_str().to_owned())
    }
}

/// Removes entries with all their versions.
async fn remove(
    store: &Store,
    keys: &Keys,
    bus: &str,
    names: &[(&String, &Vec<&str>)],
) -> Result<()> {
    let entities = names
        .iter()
        .map(|(name, _)| keys.entity(name))
        .collect::<Result<Vec<_>>>()?;
    let mut batch = Batch::new();
    for ((name, parts), entity) in names.iter().zip(&entities) {
        let versions = parts.iter().filter(|part| lease::is_version(part));
        let mut versions = versions.peekable();
        if versions.peek().is_none() {
            batch.push(lease::invalidation(entity, name, lease::NO_VERSION, bus));
        }
        for version in versions {
            batch.push(lease::invalidation(entity, name, version, bus));
        }
    }
    for result in batch.run::<u64>(store).await? {
        result?;
    }
    Ok(())
}

/// One cache of a set, whatever its types.
pub(crate) trait Member: Send + Sync {
    fn tag_changed(&self, tag: &str);
    fn forget_all(&self);
    /// Removes the entries that the index has for a tag.
    fn remove_indexed<'a>(
        &'a self,
        tag: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;
}

impl<V, C> Member for Inner<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    fn tag_changed(&self, tag: &str) {
        Inner::tag_changed(self, tag);
    }

    fn forget_all(&self) {
        Inner::forget_all(self);
    }

    fn remove_indexed<'a>(
        &'a self,
        tag: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>> {
        Box::pin(Inner::remove_indexed(self, tag))
    }
}
