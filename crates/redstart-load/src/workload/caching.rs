//! Caches: what a reader may see after a row has changed, and how often the source is asked.

mod sorted_view;
mod write_behind;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redstart::{
    Error, Result,
    caching::{Cache, Hit, L1, Loaded, WriteThrough, Written, XFetch},
};

use super::{
    Bed, Claims, DAY, Op, Workload, counters,
    source::{Row, Source, read, version},
    until,
};
use sorted_view::Sorted;
use write_behind::Behind;

super::patterns! { "caching":
    "cache_aside", "row", 0.1,
    "no read returns a row older than an invalidation that has returned", Aside::open;
    "stampede_lease", "row", 0.02,
    "each invalidation costs at most one load, over two instances", Stampede::open;
    "early_refresh", "row", 0.0,
    "no read returns a row older than its TTL", Early::open;
    "negative_cache", "missing row", 0.0,
    "the source is asked at most once for each missing row", Negative::open;
    "cache_tags", "row", 0.02,
    "no read returns a row older than the invalidation of its tag", Tagged::open;
    "cache_invalidation", "row", 0.1,
    "the instance that invalidates reads the new row at once, the other one soon", TwoLevels::open;
    "write_through", "row", 0.3,
    "no read returns a row older than a write that has returned", Through::open;
    "write_behind", "row", 0.5,
    "no read returns a value that was overwritten before, and the sink ends with the last write of each key", Behind::open;
    "sorted_view", "member", 0.05,
    "every page is sorted, complete, and not older than an invalidation that has returned", Sorted::open;
}

/// Rows that a model of a cache keeps, at most.
const MOST: u64 = 1_000_000;

fn cache(bed: &Bed) -> redstart::caching::CacheBuilder<u64, Row, redstart::codec::Postcard> {
    Cache::builder(&bed.store, &bed.namespace, "row").ttl(DAY)
}

/// Notes a read that is older than it may be.
fn fresh(claims: &Claims, what: &str, row: usize, seen: u64, floor: u64) {
    claims.hold(seen >= floor, || {
        format!("{what} {row} was read as version {seen} after version {floor} had been announced")
    });
}

struct Aside {
    cache: Cache<u64, Row>,
    source: Arc<Source>,
    claims: Claims,
}

impl Aside {
    async fn open(bed: &Bed) -> Result<Self> {
        Ok(Self {
            cache: cache(bed).build()?,
            source: Source::new(bed.entities(MOST), bed.body()),
            claims: Claims::default(),
        })
    }
}

impl Workload for Aside {
    async fn operate(&self, op: Op) -> Result<()> {
        let row = op.index(self.source.len());
        if op.write {
            let version = self.source.commit(row);
            self.cache.invalidate(&(row as u64)).await?;
            self.source.raise(row, version);
            return Ok(());
        }
        let floor = self.source.floor(row);
        let hit = read(&self.cache, &self.source, row).await?;
        fresh(&self.claims, "row", row, version(&hit), floor);
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn mark(&self, target: u64) -> Option<String> {
        Some(format!("{{{target}}}"))
    }

    fn entities(&self) -> u64 {
        self.source.len() as u64
    }

    fn figure(&self) -> Option<String> {
        Some(format!("{} loads of the source", self.source.loads()))
    }
}

struct Stampede {
    caches: [Cache<u64, Row>; 2],
    source: Arc<Source>,
    invalidations: AtomicU64,
    failures: AtomicU64,
    claims: Claims,
}

impl Stampede {
    async fn open(bed: &Bed) -> Result<Self> {
        Ok(Self {
            caches: [cache(bed).build()?, cache(bed).build()?],
            source: Source::slow(bed.entities(MOST), bed.body()),
            invalidations: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            claims: Claims::default(),
        })
    }
}

impl Workload for Stampede {
    async fn operate(&self, op: Op) -> Result<()> {
        let row = op.index(self.source.len());
        let cache = &self.caches[op.client % 2];
        let result = if op.write {
            self.invalidations.fetch_add(1, Ordering::Relaxed);
            self.source.commit(row);
            cache.invalidate(&(row as u64)).await
        } else {
            read(cache, &self.source, row).await.map(|_| ())
        };
        if result.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    async fn finish(&self) -> Result<()> {
        let most = self.source.len() as u64
            + self.invalidations.load(Ordering::Relaxed)
            + self.failures.load(Ordering::Relaxed);
        let loads = self.source.loads();
        self.claims.hold(loads <= most, || {
            format!("{loads} loads, although cold rows and invalidations explain only {most}")
        });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn mark(&self, target: u64) -> Option<String> {
        Some(format!("{{{target}}}"))
    }

    fn entities(&self) -> u64 {
        self.source.len() as u64
    }

    fn figure(&self) -> Option<String> {
        Some(format!(
            "{} loads of the source for {} cold rows and {} invalidations",
            self.source.loads(),
            self.source.len(),
            self.invalidations.load(Ordering::Relaxed)
        ))
    }
}

/// Each row has the millisecond of its load as its version.
struct Early {
    cache: Cache<u64, Row>,
    source: Arc<Source>,
    epoch: Instant,
    claims: Claims,
}

const EARLY_TTL: Duration = Duration::from_secs(2);

impl Early {
    async fn open(bed: &Bed) -> Result<Self> {
        Ok(Self {
            cache: cache(bed)
                .ttl(EARLY_TTL)
                .jitter(0.0)
                .early(XFetch::default())
                .build()?,
            source: Source::new(bed.entities(MOST), bed.body()),
            epoch: Instant::now(),
            claims: Claims::default(),
        })
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    async fn read(&self, row: usize) -> Result<Hit<Row>> {
        let (source, epoch) = (self.source.clone(), self.epoch);
        let load = move |_| {
            let source = source.clone();
            async move {
                let mut loaded = source.load(row).await?;
                if let Loaded::Found(row) = &mut loaded {
                    row.version = epoch.elapsed().as_millis() as u64;
                }
                Ok::<_, Error>(loaded)
            }
        };
        self.cache.get_or_load(&(row as u64), load).await
    }
}

impl Workload for Early {
    async fn operate(&self, op: Op) -> Result<()> {
        let row = op.index(self.source.len());
        let hit = self.read(row).await?;
        let age = hit.age.unwrap_or_default();
        self.claims
            .hold(hit.value.is_some() && age <= EARLY_TTL, || {
                format!("row {row} was read at an age of {age:?}, with a TTL of {EARLY_TTL:?}")
            });
        Ok(())
    }

    /// Once the TTL has passed, no row is one that was loaded before.
    async fn finish(&self) -> Result<()> {
        let ended = self.now();
        tokio::time::sleep(EARLY_TTL + Duration::from_millis(50)).await;
        for row in 0..self.source.len().min(1000) {
            let loaded = version(&self.read(row).await?);
            // A refresh ahead of time may have been under way when the load ended.
            self.claims.hold(loaded + 50 >= ended, || {
                let age = self.now() - loaded;
                format!(
                    "row {row} was read {age} ms after it was loaded, with a TTL of {EARLY_TTL:?}"
                )
            });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn mark(&self, target: u64) -> Option<String> {
        Some(format!("{{{target}}}"))
    }

    fn entities(&self) -> u64 {
        self.source.len() as u64
    }

    fn figure(&self) -> Option<String> {
        let stats = self.cache.stats();
        Some(format!(
            "{} loads, {} of them before the value had expired",
            self.source.loads(),
            stats.early_refreshes
        ))
    }
}

struct Negative {
    cache: Cache<u64, Row>,
    asked: Arc<Vec<AtomicU64>>,
    failures: AtomicU64,
    claims: Claims,
}

impl Negative {
    async fn open(bed: &Bed) -> Result<Self> {
        Ok(Self {
            cache: cache(bed).negative_ttl(DAY).build()?,
            asked: Arc::new(counters(bed.entities(MOST))),
            failures: AtomicU64::new(0),
            claims: Claims::default(),
        })
    }
}

impl Workload for Negative {
    async fn operate(&self, op: Op) -> Result<()> {
        let row = op.index(self.asked.len());
        let asked = self.asked.clone();
        let load = move |_| {
            asked[row].fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Error>(Loaded::<Row>::Absent) }
        };
        let hit = self.cache.get_or_load(&(row as u64), load).await;
        if hit.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        self.claims.hold(hit?.value.is_none(), || {
            format!("row {row} does not exist, and a value was read")
        });
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        let failures = self.failures.load(Ordering::Relaxed);
        for (row, asked) in self.asked.iter().enumerate() {
            let asked = asked.load(Ordering::Relaxed);
            self.claims.hold(asked <= 1 + failures, || {
                format!("the source was asked {asked} times for the missing row {row}")
            });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn mark(&self, target: u64) -> Option<String> {
        Some(format!("{{{target}}}"))
    }

    fn entities(&self) -> u64 {
        self.asked.len() as u64
    }

    fn figure(&self) -> Option<String> {
        let asked: u64 = self.asked.iter().map(|n| n.load(Ordering::Relaxed)).sum();
        Some(format!("the source was asked {asked} times"))
    }
}

/// Rows of which each has one of 16 tags.
struct Tagged {
    cache: Cache<u64, Row>,
    /// Its rows are the tags.
    tags: Arc<Source>,
    rows: usize,
    claims: Claims,
}

impl Tagged {
    async fn open(bed: &Bed) -> Result<Self> {
        Ok(Self {
            cache: cache(bed).build()?,
            tags: Source::new(16, bed.body()),
            rows: bed.entities(MOST),
            claims: Claims::default(),
        })
    }
}

impl Workload for Tagged {
    async fn operate(&self, op: Op) -> Result<()> {
        let row = op.index(self.rows);
        let tag = row % self.tags.len();
        if op.write {
            let version = self.tags.commit(tag);
            self.cache.invalidate_tag(&format!("tag-{tag}")).await?;
            self.tags.raise(tag, version);
            return Ok(());
        }
        let floor = self.tags.floor(tag);
        let tags = self.tags.clone();
        let load = move |load: redstart::caching::Load| {
            let tags = tags.clone();
            async move {
                load.tag(format!("tag-{tag}"))?;
                tags.load(tag).await
            }
        };
        let hit = self.cache.get_or_load(&(row as u64), load).await?;
        fresh(&self.claims, "a row of tag", tag, version(&hit), floor);
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn mark(&self, target: u64) -> Option<String> {
        Some(format!("{{{target}}}"))
    }

    fn entities(&self) -> u64 {
        self.rows as u64
    }
}

/// Two instances, each with a first level in its process.
struct TwoLevels {
    caches: [Cache<u64, Row>; 2],
    source: Arc<Source>,
    claims: Claims,
}

impl TwoLevels {
    async fn open(bed: &Bed) -> Result<Self> {
        let level = || L1::pubsub(bed.keys.clamp(100, 100_000));
        let caches = [
            cache(bed).l1(level()).build()?,
            cache(bed).l1(level()).build()?,
        ];
        until(|| async { Ok(caches.iter().all(Cache::l1_is_up)) }).await?;
        Ok(Self {
            caches,
            source: Source::new(bed.entities(MOST), bed.body()),
            claims: Claims::default(),
        })
    }
}

impl Workload for TwoLevels {
    async fn operate(&self, op: Op) -> Result<()> {
        let row = op.index(self.source.len());
        // The first instance writes; both read.
        if op.write {
            let version = self.source.commit(row);
            self.caches[0].invalidate(&(row as u64)).await?;
            self.source.raise(row, version);
            return Ok(());
        }
        let floor = self.source.floor(row);
        let instance = op.client % 2;
        let hit = read(&self.caches[instance], &self.source, row).await?;
        if instance == 0 {
            fresh(&self.claims, "row", row, version(&hit), floor);
        }
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        for row in 0..self.source.len().min(1000) {
            let floor = self.source.floor(row);
            let caught_up = until(|| async move {
                let hit = read(&self.caches[1], &self.source, row).await?;
                Ok(version(&hit) >= floor)
            })
            .await?;
            self.claims.hold(caught_up, || {
                format!("the other instance still reads an old row {row}")
            });
            if !caught_up {
                break;
            }
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn mark(&self, target: u64) -> Option<String> {
        Some(format!("{{{target}}}"))
    }

    fn entities(&self) -> u64 {
        self.source.len() as u64
    }

    fn figure(&self) -> Option<String> {
        let hits: u64 = self.caches.iter().map(|cache| cache.stats().l1_hits).sum();
        Some(format!("{hits} reads were answered in the process"))
    }
}

struct Through {
    cache: Cache<u64, Row>,
    write: WriteThrough<u64, Row, redstart::codec::Postcard>,
    source: Arc<Source>,
    claims: Claims,
}

impl Through {
    async fn open(bed: &Bed) -> Result<Self> {
        let cache = cache(bed).build()?;
        Ok(Self {
            write: WriteThrough::new(&cache),
            cache,
            source: Source::new(bed.entities(MOST), bed.body()),
            claims: Claims::default(),
        })
    }
}

impl Workload for Through {
    async fn operate(&self, op: Op) -> Result<()> {
        let row = op.index(self.source.len());
        if op.write {
            let committed = AtomicU64::new(0);
            let commit = async {
                let mut new = self.source.row(row);
                new.version = self.source.commit(row);
                committed.store(new.version, Ordering::SeqCst);
                let version = new.version;
                // Its reply takes time, in which other writers commit and return.
                tokio::task::yield_now().await;
                Ok::<_, Error>(Written::row(new, version))
            };
            let _ = self.write.put(&(row as u64), commit).await?;
            self.source.raise(row, committed.load(Ordering::SeqCst));
            return Ok(());
        }
        let floor = self.source.floor(row);
        let hit = read(&self.cache, &self.source, row).await?;
        fresh(&self.claims, "row", row, version(&hit), floor);
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn mark(&self, target: u64) -> Option<String> {
        Some(format!("{{{target}}}"))
    }

    fn entities(&self) -> u64 {
        self.source.len() as u64
    }
}
