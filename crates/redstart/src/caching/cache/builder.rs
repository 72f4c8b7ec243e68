//! How a cache is set up.

use std::{
    marker::PhantomData,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::Semaphore;

use super::{
    Cache, Inner,
    early::XFetch,
    flight::Flights,
    key::CacheKey,
    l1::{Level1, bounded},
    stats::Counters,
};
use crate::{
    caching::{
        invalidation::{self, L1},
        tags::{TagBook, Tags},
    },
    codec::Codec,
    error::{Error, Result},
    key::{Keys, Layout},
    store::Store,
};

/// A TTL over ten years is a mistake in the unit.
const MAX_TTL: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Who loads when many miss at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stampede {
    /// One loader a key over all processes.
    #[default]
    Lease,
    /// One loader a key in each process.
    Local,
    /// Everybody loads. A value that was invalidated meanwhile is still not stored.
    Off,
}

/// What a read does while the store is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Down {
    /// Load from the source: one load a key in this process, and at most
    /// [`max_loads`](Builder::max_loads) at once; beyond that the read fails.
    #[default]
    Load,
    /// Serve the last value that this process saw, marked as stale; fail if it saw none.
    Stale,
    /// Fail.
    Refuse,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) schema: u32,
    pub(crate) ttl: Duration,
    pub(crate) negative_ttl: Duration,
    pub(crate) jitter: f64,
    pub(crate) stampede: Stampede,
    pub(crate) early: Option<XFetch>,
    pub(crate) stale_for: Duration,
    pub(crate) soft: Duration,
    pub(crate) hard: Duration,
    pub(crate) down: Down,
}

type Types<K, V, C> = PhantomData<fn(&K) -> (V, C)>;

/// Sets up a [`Cache`].
#[must_use = "a builder does nothing until it builds"]
pub struct Builder<K: ?Sized, V, C> {
    store: Store,
    namespace: String,
    layout: Option<Layout>,
    schema: u32,
    ttl: Option<Duration>,
    negative_ttl: Option<Duration>,
    jitter: f64,
    stampede: Stampede,
    early: Option<XFetch>,
    stale_for: Duration,
    load_timeout: (Duration, Duration),
    l1: L1,
    tags: Tags,
    down: Down,
    max_loads: usize,
    types: Types<K, V, C>,
}

impl<K: ?Sized, V, C> Builder<K, V, C> {
    pub(super) fn new(store: &Store, namespace: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            layout: None,
            schema: 0,
            ttl: None,
            negative_ttl: None,
            jitter: 0.05,
            stampede: Stampede::default(),
            early: None,
            stale_for: Duration::ZERO,
            load_timeout: (Duration::ZERO, Duration::from_secs(5)),
            l1: L1::off(),
            tags: Tags::default(),
            down: Down::default(),
            max_loads: 64,
            types: PhantomData,
        }
    }

    /// How long a value is fresh. It has no default: a cache without a TTL is a leak.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long it is remembered that there is no value. The default is the TTL, but at most a minute.
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.negative_ttl = Some(ttl);
        self
    }

    /// The share by which each TTL is lengthened or shortened at random, so that values stored together do
    /// not expire together. From 0 to 0.5; the default is 0.05.
    pub fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// The version of the type `V`. Values of another version are misses, so two versions of a program can
    /// share a store during a deploy.
    pub fn schema(mut self, schema: u32) -> Self {
        self.schema = schema;
        self
    }

    /// How values become bytes. The default is [`Postcard`](crate::codec::Postcard).
    pub fn codec<D: Codec>(self, _: D) -> Builder<K, V, D> {
        Builder {
            store: self.store,
            namespace: self.namespace,
            layout: self.layout,
            schema: self.schema,
            ttl: self.ttl,
            negative_ttl: self.negative_ttl,
            jitter: self.jitter,
            stampede: self.stampede,
            early: self.early,
            stale_for: self.stale_for,
            load_timeout: self.load_timeout,
            l1: self.l1,
            tags: self.tags,
            down: self.down,
            max_loads: self.max_loads,
            types: PhantomData,
        }
    }

    /// Uses keys that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Who loads when many miss at once.
    pub fn stampede(mut self, stampede: Stampede) -> Self {
        self.stampede = stampede;
        self
    }

    /// Refreshes popular values before they expire. Off unless asked for.
    pub fn early(mut self, early: XFetch) -> Self {
        self.early = Some(early);
        self
    }

    /// Keeps a value for so long after it expired, to serve it while it is refreshed or when the loader fails.
    pub fn stale_for(mut self, stale_for: Duration) -> Self {
        self.stale_for = stale_for;
        self
    }

    /// `soft`: how long a reader waits for the refresh of an expired value before it takes the stale one
    /// (default: not at all). `hard`: how long a load may take before it is given up (default 5 s).
    pub fn load_timeout(mut self, soft: Duration, hard: Duration) -> Self {
        self.load_timeout = (soft, hard);
        self
    }

    /// Keeps values in this process too. Off unless asked for.
    pub fn l1(mut self, l1: L1) -> Self {
        self.l1 = l1;
        self
    }

    /// How entries find their tags.
    pub fn tags(mut self, tags: Tags) -> Self {
        self.tags = tags;
        self
    }

    /// What a read does while the store is down.
    pub fn on_store_down(mut self, down: Down) -> Self {
        self.down = down;
        self
    }

    /// How many loads may run at once while the store is down (default 64).
    pub fn max_loads(mut self, max: usize) -> Self {
        self.max_loads = max;
        self
    }
}

impl<K, V, C> Builder<K, V, C>
where
    K: CacheKey + ?Sized,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// Makes the cache. Nothing is sent yet; with a first level, listening begins in the background.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if there is no TTL or a setting is out of its range.
    pub fn build(self) -> Result<Cache<K, V, C>> {
        let ttl = self
            .ttl
            .ok_or_else(|| Error::config("a cache needs a TTL"))?;
        let in_range = |what: &str, value: Duration| {
            if value < Duration::from_millis(1) || value > MAX_TTL {
                return Err(Error::config(format!(
                    "{what} is from 1 ms to 10 years, not {value:?}"
                )));
            }
            Ok(value)
        };
        in_range("a TTL", ttl)?;
        let negative_ttl = match self.negative_ttl {
            Some(ttl) => in_range("a negative TTL", ttl)?,
            None => ttl.min(Duration::from_secs(60)),
        };
        if self.stale_for > MAX_TTL {
            return Err(Error::config("stale_for is at most 10 years"));
        }
        if !(0.0..=0.5).contains(&self.jitter) {
            return Err(Error::config("jitter is a share from 0 to 0.5"));
        }
        if let Some(XFetch { beta }) = self.early
            && !(beta.is_finite() && beta > 0.0)
        {
            return Err(Error::config("beta is a number above 0"));
        }
        let (soft, hard) = self.load_timeout;
        in_range("a hard load time-out", hard)?;
        if soft > hard {
            return Err(Error::config(
                "the soft load time-out is not above the hard one",
            ));
        }
        if self.max_loads == 0 {
            return Err(Error::config("max_loads is at least 1"));
        }
        let mut keys = Keys::new(&self.namespace, "cache")?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        let tags = TagBook::new(&self.namespace, self.tags)?;
        let feed = invalidation::Feed::new(&self.l1, &keys, &tags)?;
        let level = match &feed {
            Some(_) => Some(Level1::new(self.l1.capacity, self.l1.max_age)),
            None => None,
        };
        let last_seen = (self.down == Down::Stale).then(|| bounded(self.l1.capacity.max(10_000)));
        let inner = Arc::new(Inner {
            bus: invalidation::bus(&keys)?,
            settings: Settings {
                schema: self.schema,
                ttl,
                negative_ttl,
                jitter: self.jitter,
                stampede: self.stampede,
                early: self.early,
                stale_for: self.stale_for,
                soft,
                hard,
                down: self.down,
            },
            store: self.store,
            keys,
            tags,
            l1: level,
            last_seen,
            apart: AtomicBool::new(false),
            flights: Flights::new(),
            stats: Counters::new(),
            down_until: parking_lot::Mutex::new(None),
            down_loads: Arc::new(Semaphore::new(self.max_loads)),
            ears: Arc::new(Semaphore::new(super::lease::MAX_EARS)),
            feed: parking_lot::Mutex::new(None),
            codec: PhantomData,
        });
        if let Some(feed) = feed {
            feed.start(&inner)?;
        }
        Ok(Cache {
            inner,
            key: PhantomData,
        })
    }
}
