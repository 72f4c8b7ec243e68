//! Contended rounds: readers never see what was invalidated before they asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Store,
    caching::{Cache, L1, Loaded, Stampede, XFetch},
};
use redstart_testkit::{Backend, eventually, matrix, scale};

use crate::LONG;

const KEYS: usize = 4;

/// A row, and the newest value of it whose invalidation has returned.
#[derive(Default)]
struct Row {
    value: AtomicU64,
    settled: AtomicU64,
}

struct Race {
    rows: Arc<Vec<Row>>,
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    by_tag: bool,
}

impl Race {
    fn new(by_tag: bool) -> Self {
        Self {
            rows: Arc::new((0..KEYS).map(|_| Row::default()).collect()),
            stop: Arc::default(),
            reads: Arc::default(),
            by_tag,
        }
    }

    async fn read(
        rows: &Arc<Vec<Row>>,
        by_tag: bool,
        cache: &Cache<u64, u64>,
        key: usize,
    ) -> redstart::Result<u64> {
        let rows = rows.clone();
        let hit = cache
            .get_or_load(&(key as u64), move |load| async move {
                let value = rows[key].value.load(Ordering::SeqCst);
                // Between reading the row and storing it anything may happen.
                for _ in 0..rand_below(4) {
                    tokio::task::yield_now().await;
                }
                if by_tag {
                    load.tag(format!("row:{key}"))?;
                }
                Ok::<_, redstart::Error>(Loaded::Found(value))
            })
            .await?;
        Ok(hit.value.map_or(0, |value| *value))
    }

    /// Reads until the race is over; each read must be at least as new as what was settled before it began.
    fn reader(
        &self,
        cache: &Cache<u64, u64>,
        key: usize,
    ) -> tokio::task::JoinHandle<anyhow::Result<()>> {
        let (rows, stop, reads, by_tag) = (
            self.rows.clone(),
            self.stop.clone(),
            self.reads.clone(),
            self.by_tag,
        );
        let cache = cache.clone();
        tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let least = rows[key].settled.load(Ordering::SeqCst);
                let got = Self::read(&rows, by_tag, &cache, key).await?;
                anyhow::ensure!(
                    got >= least,
                    "key {key}: read {got} after {least} was settled"
                );
                reads.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
            Ok(())
        })
    }

    /// Changes rows and invalidates them, `rounds` times.
    async fn write(&self, cache: &Cache<u64, u64>, rounds: u64) -> redstart::Result<()> {
        for round in 1..=rounds {
            let key = (round % KEYS as u64) as usize;
            self.rows[key].value.store(round, Ordering::SeqCst);
            match self.by_tag {
                true => cache.invalidate_tag(&format!("row:{key}")).await?,
                false => cache.invalidate(&(key as u64)).await?,
            }
            self.rows[key].settled.store(round, Ordering::SeqCst);
            for _ in 0..rand_below(3) {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Runs the race: `readers` check every read, `late` ones only what they see in the end.
    async fn run(
        &self,
        writer: &Cache<u64, u64>,
        readers: &[&Cache<u64, u64>],
        late: &[&Cache<u64, u64>],
        rounds: u64,
    ) -> anyhow::Result<()> {
        let mut tasks = Vec::new();
        for key in 0..KEYS {
            for cache in readers {
                tasks.push(self.reader(cache, key));
            }
            for cache in late {
                let (rows, stop, by_tag, cache) = (
                    self.rows.clone(),
                    self.stop.clone(),
                    self.by_tag,
                    (*cache).clone(),
                );
                tasks.push(tokio::spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        Self::read(&rows, by_tag, &cache, key).await?;
                        tokio::task::yield_now().await;
                    }
                    Ok(())
                }));
            }
        }
        let begun = eventually(LONG, async || self.reads.load(Ordering::Relaxed) > 0);
        anyhow::ensure!(begun.await, "no reader came through");
        self.write(writer, rounds).await?;
        self.stop.store(true, Ordering::SeqCst);
        for task in tasks {
            task.await??;
        }
        // Nothing old stayed behind, at any level, in any process.
        for (key, row) in self.rows.iter().enumerate() {
            let now = row.value.load(Ordering::SeqCst);
            for cache in readers.iter().chain(late) {
                let mut last = 0;
                let caught_up = eventually(Duration::from_secs(20), async || {
                    last = Self::read(&self.rows, self.by_tag, cache, key)
                        .await
                        .unwrap_or(0);
                    last == now
                })
                .await;
                anyhow::ensure!(caught_up, "key {key}: {last} stayed, the row is {now}");
            }
        }
        Ok(())
    }
}

fn rand_below(n: u64) -> u64 {
    // Cheap and good enough to shuffle the order of things.
    static STATE: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
    let x = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33 & 0xff & (n.next_power_of_two() - 1)
}

/// Two stores on one backend, with patience: a starved machine is no lost race.
async fn two(backend: &Backend) -> redstart::Result<(Store, Store)> {
    let connect = || {
        Store::builder(backend.url())
            .deadline(Duration::from_secs(20))
            .connect()
    };
    let first = connect().await?;
    let second = match backend.is_embedded() {
        true => first.clone(),
        false => connect().await?,
    };
    Ok((first, second))
}

fn rounds() -> u64 {
    scale(400, "cache race rounds")
}

fn build(
    store: &Store,
    backend: &Backend,
    part: &str,
    l1: L1,
) -> redstart::Result<Cache<u64, u64>> {
    Cache::builder(store, &format!("{}-{part}", backend.namespace()), "rows")
        // Short, and eager to refresh: expiry and early refresh take part in the race.
        .ttl(Duration::from_millis(100))
        .early(XFetch { beta: 50.0 })
        .l1(l1)
        .build()
}

matrix! {
    async fn no_read_is_older_than_an_invalidation_that_came_before_it(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        let (a, b) = (build(&one, backend, "l2", L1::off())?, build(&other, backend, "l2", L1::off())?);
        Race::new(false).run(&a, &[&a, &b], &[], rounds()).await?;
        // Without exclusive leases a fill still needs its token.
        for stampede in [Stampede::Local, Stampede::Off] {
            let namespace = format!("{}-{stampede:?}", backend.namespace());
            let build = |store| Cache::builder(store, &namespace, "rows").ttl(LONG).stampede(stampede).build();
            let (a, b) = (build(&one)?, build(&other)?);
            Race::new(false).run(&a, &[&a, &b], &[], rounds() / 4).await?;
        }
        Ok(())
    }

    async fn no_read_is_older_than_an_invalidation_of_its_tag(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        let (a, b) = (build(&one, backend, "tag", L1::off())?, build(&other, backend, "tag", L1::off())?);
        Race::new(true).run(&a, &[&a, &b], &[], rounds() / 2).await
    }

    async fn the_first_level_keeps_nothing_that_was_invalidated(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        for (part, l1) in [("pubsub", L1::pubsub(100)), ("tracking", L1::tracking(100))] {
            if backend.is_embedded() && part == "tracking" && !tracks(&one).await {
                continue;
            }
            for by_tag in [false, true] {
                let part = format!("{part}-{by_tag}");
                let (a, b) = (build(&one, backend, &part, l1.clone())?, build(&other, backend, &part, l1.clone())?);
                assert!(eventually(LONG, async || a.l1_is_up() && b.l1_is_up()).await, "{part}");
                // In the process that invalidates every read counts; the other one hears of it by message.
                Race::new(by_tag).run(&a, &[&a], &[&b], rounds() / 2).await?;
                assert!(a.stats().l1_hits + b.stats().l1_hits > 0, "{part}: the first level took no part");
            }
        }
        Ok(())
    }
}

/// Whether the embedded engine has CLIENT TRACKING.
async fn tracks(store: &Store) -> bool {
    let mut cmd = redis::cmd("CLIENT");
    cmd.arg("TRACKING").arg("OFF");
    store.query::<redis::Value>(&cmd).await.is_ok()
}

/// Each check that closes a race is taken out, in a process of its own: the races above must be lost then.
/// Only debug builds can break a script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_checks_every_race_is_lost() -> anyhow::Result<()> {
    use redstart_testkit::Child;

    let by_key = "race::no_read_is_older_than_an_invalidation_that_came_before_it::embedded";
    let by_tag = "race::no_read_is_older_than_an_invalidation_of_its_tag::embedded";
    let near = "race::the_first_level_keeps_nothing_that_was_invalidated::embedded";
    let fill = "cache.fill=redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) \
                redis.call('UNLINK', KEYS[2]) redis.call('SPUBLISH', ARGV[4], 'filled') return 1";
    let lease = "cache.invalidate=redis.call('SPUBLISH', ARGV[1], 'invalidated') \
                 redis.call('PUBLISH', ARGV[2], ARGV[3]) return redis.call('UNLINK', KEYS[1])";
    let tag = "cache.invalidate_tag=redis.call('PUBLISH', ARGV[5], ARGV[6]) \
               return redis.status_reply('OK')";
    for (what, test, script) in [
        ("a fill without its lease", by_key, fill),
        ("an invalidation that leaves the lease", by_key, lease),
        ("a fill without its lease, over two levels", near, fill),
        ("a tag whose count stays", by_tag, tag),
    ] {
        // Whether the two meet is a matter of chance, so some rounds may go by without.
        let mut lost = false;
        for _ in 0..20 {
            let mut child = Child::of(test)
                .env("REDSTART_BREAK_SCRIPT", script)
                .env("REDSTART_SCALE_CACHE_RACE_ROUNDS", "400")
                .env("RUST_BACKTRACE", "0")
                .spawn()?;
            lost = !child.wait().await?.success();
            if lost {
                break;
            }
        }
        assert!(lost, "{what} is not noticed");
    }
    Ok(())
}
