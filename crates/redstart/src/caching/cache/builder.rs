//! How a cache is set up.

use std::{
    marker::PhantomData,
    sync::{Arc, Weak, atomic::AtomicBool},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::Semaphore;

use super::{
    Cache, Inner, MAX_TTL,
    early::XFetch,
    health::Health,
    key::CacheKey,
    l1::{Level1, bounded},
    single_flight::SingleFlight,
    stats::Counters,
};
use crate::{
    Down,
    caching::{
        cache_set::Set,
        fingerprint::fingerprint,
        invalidation::{Feed, L1, bus},
        tags::{TagBook, Tags},
    },
    codec::Codec,
    error::{Error, Result},
    key::{Keys, Layout},
    store::Store,
};

/// Which callers load when many miss at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stampede {
    /// One load per key over all processes.
    #[default]
    Lease,
    /// One load per key in each process.
    Local,
    /// Every caller loads. A value that was invalidated meanwhile is still not stored.
    Off,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) ttl: Duration,
    pub(crate) negative_ttl: Duration,
    pub(crate) jitter: f64,
    pub(crate) stampede: Stampede,
    pub(crate) early: Option<XFetch>,
    pub(crate) stale_for: Duration,
    pub(crate) stale_on_error: Duration,
    pub(crate) soft: Duration,
    pub(crate) hard: Duration,
    pub(crate) down: Down,
}

impl Settings {
    /// How long a value is kept after it expired.
    pub(crate) fn stale(&self) -> Duration {
        self.stale_for.max(self.stale_on_error)
    }
}

/// The settings that a cache and a set of caches have in common.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) settings: Settings,
    pub(crate) negative_ttl: Option<Duration>,
    pub(crate) l1: L1,
    pub(crate) tags: Tags,
    pub(crate) last_seen: u64,
    pub(crate) max_loads: usize,
}

impl Default for Common {
    fn default() -> Self {
        Self {
            settings: Settings {
                ttl: Duration::from_secs(300),
                negative_ttl: Duration::ZERO,
                jitter: 0.05,
                stampede: Stampede::default(),
                early: None,
                stale_for: Duration::ZERO,
                stale_on_error: Duration::ZERO,
                soft: Duration::ZERO,
                hard: Duration::from_secs(5),
                down: Down::default(),
            },
            negative_ttl: None,
            l1: L1::off(),
            tags: Tags::default(),
            last_seen: 0,
            max_loads: 64,
        }
    }
}

impl Common {
    /// The settings as they hold, if they are possible.
    pub(crate) fn checked(&self) -> Result<Settings> {
        let mut settings = self.settings.clone();
        settings.negative_ttl = self
            .negative_ttl
            .unwrap_or(settings.ttl.min(Duration::from_secs(60)));
        settings.check()?;
        if self.max_loads == 0 {
            return Err(Error::config("max_loads must be at least 1"));
        }
        Ok(settings)
    }
}

/// The setters of [`Common`], for each builder that has it.
macro_rules! setters {
    () => {
        /// How long a value is fresh (default five minutes).
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.common.settings.ttl = ttl;
            self
        }

        /// How long it is remembered that there is no value. The default is the TTL, but at most a minute.
        pub fn negative_ttl(mut self, ttl: Duration) -> Self {
            self.common.negative_ttl = Some(ttl);
            self
        }

        /// The share by which each TTL is lengthened or shortened at random, so that values stored together do
        /// not expire together. From 0 to 0.5; the default is 0.05.
        pub fn jitter(mut self, share: f64) -> Self {
            self.common.settings.jitter = share;
            self
        }

        /// Which callers load when many miss at once.
        pub fn stampede(mut self, stampede: Stampede) -> Self {
            self.common.settings.stampede = stampede;
            self
        }

        /// Refreshes popular values before they expire. Off by default.
        pub fn early(mut self, early: XFetch) -> Self {
            self.common.settings.early = Some(early);
            self
        }

        /// How long after its TTL a value is served while it is refreshed in the background (default zero).
        pub fn stale_for(mut self, stale_for: Duration) -> Self {
            self.common.settings.stale_for = stale_for;
            self
        }

        /// How long after its TTL a value is served if it cannot be loaded: the loader fails, panics or takes too long
        /// (default: as long as [`stale_for`](Self::stale_for)). After a failed load the source is left alone for a
        /// second.
        pub fn stale_on_error(mut self, stale_on_error: Duration) -> Self {
            self.common.settings.stale_on_error = stale_on_error;
            self
        }

        /// `soft`: how long a reader that has a stale value waits for the new one before it takes the stale one; the
        /// load continues in the background. Zero, the default, does not wait within `stale_for`, and waits for the end
        /// of the load within `stale_on_error`. `hard`: how long a load may take before it has failed (default 5 s).
        pub fn load_timeout(mut self, soft: Duration, hard: Duration) -> Self {
            (self.common.settings.soft, self.common.settings.hard) = (soft, hard);
            self
        }

        /// Keeps values in this process too. Off by default. The caches of a [set](crate::caching::CacheSet) share the
        /// limits of the set's first level; one that is given another has it for itself.
        pub fn l1(mut self, l1: L1) -> Self {
            self.common.l1 = l1;
            self
        }

        /// How the entries of a tag are found.
        pub fn tags(mut self, tags: Tags) -> Self {
            self.common.tags = tags;
            self
        }

        /// What a read does while the store is down. `Fail` (the default): it fails. `Refuse`: [`Cache::get`] finds
        /// nothing, everything else fails. `Allow`: it loads from the source, one load per key in this process, and at most
        /// [`max_loads`](Self::max_loads) at once; further loads wait for their turn.
        pub fn on_store_down(mut self, down: Down) -> Self {
            self.common.settings.down = down;
            self
        }

        /// Remembers the last `count` values that this process saw. While the store is down they are served, marked as
        /// stale; [`on_store_down`](Self::on_store_down) decides only for keys that are not among them. Off by default.
        pub fn last_seen(mut self, count: u64) -> Self {
            self.common.last_seen = count;
            self
        }

        /// How many loads may run at once while the store is down (default 64).
        pub fn max_loads(mut self, max: usize) -> Self {
            self.common.max_loads = max;
            self
        }
    };
}

pub(crate) use setters;

type Types<K, V, C> = PhantomData<fn(&K) -> (V, C)>;

/// Sets up a [`Cache`].
#[must_use = "a builder does nothing until it builds"]
pub struct CacheBuilder<K: ?Sized, V, C> {
    store: Store,
    namespace: String,
    name: String,
    layout: Option<Layout>,
    schema: u32,
    value_type: String,
    common: Common,
    set: Option<Arc<Set>>,
    types: Types<K, V, C>,
}

impl<K: ?Sized, V, C> CacheBuilder<K, V, C> {
    pub(super) fn new(store: &Store, namespace: &str, name: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            layout: None,
            schema: 0,
            value_type: std::any::type_name::<V>().to_owned(),
            common: Common::default(),
            set: None,
            types: PhantomData,
        }
    }

    /// A cache of a set, with the settings of the set.
    pub(crate) fn in_set(set: Arc<Set>, name: &str) -> Self {
        Self {
            common: set.common.clone(),
            set: Some(set.clone()),
            ..Self::new(&set.store, &set.namespace, name)
        }
    }

    setters!();

    /// The version of the type `V` (default 0). Two versions of a program may share a cache during a deploy: each
    /// has its own entries, and an invalidation by either removes both.
    pub fn schema(mut self, schema: u32) -> Self {
        self.schema = schema;
        self
    }

    /// The name under which values are told from those of other types. The default is the Rust path of `V`. Set it
    /// if programs in which the type has different paths should share entries.
    pub fn value_type(mut self, name: &str) -> Self {
        self.value_type = name.to_owned();
        self
    }

    /// How values become bytes. The default is [`Postcard`](crate::codec::Postcard).
    pub fn codec<D: Codec>(self, _: D) -> CacheBuilder<K, V, D> {
        CacheBuilder {
            store: self.store,
            namespace: self.namespace,
            name: self.name,
            layout: self.layout,
            schema: self.schema,
            value_type: self.value_type,
            common: self.common,
            set: self.set,
            types: PhantomData,
        }
    }

    /// Uses keys that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }
}

impl Settings {
    fn check(&self) -> Result<()> {
        let in_range = |what: &str, value: Duration| {
            if value < Duration::from_millis(1) || value > MAX_TTL {
                return Err(Error::config(format!(
                    "{what} must be from 1 ms to 10 years, not {value:?}"
                )));
            }
            Ok(())
        };
        in_range("the TTL", self.ttl)?;
        in_range("the negative TTL", self.negative_ttl)?;
        in_range("the hard load time-out", self.hard)?;
        if self.stale() > MAX_TTL {
            return Err(Error::config(
                "stale_for and stale_on_error must not exceed 10 years",
            ));
        }
        if !(0.0..=0.5).contains(&self.jitter) {
            return Err(Error::config("jitter must be from 0 to 0.5"));
        }
        if let Some(XFetch { beta }) = self.early
            && !(beta.is_finite() && beta > 0.0)
        {
            return Err(Error::config("beta must be a number above 0"));
        }
        if self.soft > self.hard {
            return Err(Error::config(
                "the soft load time-out must not exceed the hard one",
            ));
        }
        Ok(())
    }
}

impl<K, V, C> CacheBuilder<K, V, C>
where
    K: CacheKey + ?Sized,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// Makes the cache. Nothing is sent yet; with a first level, listening begins in the background.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name, a setting out of range, or a name that its
    /// [set](crate::caching::CacheSet) has for other types.
    pub fn build(self) -> Result<Cache<K, V, C>> {
        let common = self.common;
        let settings = common.checked()?;
        let fingerprint = fingerprint::<C>(self.schema, &self.value_type);
        let name = match &self.set {
            Some(set) => set.admit::<K>(&self.name, fingerprint)?,
            None => self.name.clone(),
        };
        let mut keys = Keys::named(&self.namespace, "cache", &name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        let bus = bus(&self.namespace, &name)?;
        let own_bus = bus.channel("changes").as_str().to_owned();
        let (tags, tag_bus) = match &self.set {
            Some(set) => (
                set.tags.member(&name, &self.name, common.tags)?,
                set.bus.clone(),
            ),
            None => {
                let tags = TagBook::new(&self.namespace, &name, common.tags)?;
                (tags, own_bus.clone())
            }
        };
        let feed = Feed::new(&common.l1, &keys, &tags, &bus, &tag_bus)?;
        let clock = self.store.clock();
        let shared = self.set.as_ref().and_then(|set| set.level(&common.l1));
        let inner = Arc::new(Inner {
            bus: own_bus,
            tag_bus,
            settings,
            keys,
            tags,
            fingerprint,
            beside: format!("{fingerprint:016x}"),
            l1: feed.is_some().then(|| match shared {
                Some(shared) => Level1::within(shared, &common.l1, clock),
                None => Level1::new(&common.l1, clock),
            }),
            store: self.store,
            last_seen: (common.last_seen > 0).then(|| bounded(common.last_seen, common.last_seen)),
            apart: AtomicBool::new(false),
            flights: SingleFlight::new(),
            stats: Counters::new(),
            health: Health::default(),
            bypass_loads: Semaphore::new(common.max_loads.min(Semaphore::MAX_PERMITS)),
            feed: parking_lot::Mutex::new(None),
            set: self.set,
            codec: PhantomData,
        });
        if let Some(set) = &inner.set {
            let member: Weak<Inner<V, C>> = Arc::downgrade(&inner);
            set.join(member);
        }
        if let Some(feed) = feed {
            feed.start(&inner)?;
        }
        Ok(Cache {
            inner,
            key: PhantomData,
        })
    }
}
