use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Store,
    membership::{Bloom, BloomMode, BloomScaling},
    store::Optional,
};
use redstart_testkit::{Backend, Kind, MonitorTap, Server, eventually, matrix, scale};

fn names(prefix: &str, range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|n| format!("{prefix}-{n}")).collect()
}

/// Debug builds on a busy machine take their time for thousands of elements.
async fn connect(url: &str) -> redstart::Result<Store> {
    let builder = Store::builder(url).deadline(Duration::from_secs(30));
    builder.connect().await
}

/// The modes that this backend has.
async fn modes(store: &Store) -> anyhow::Result<Vec<BloomMode>> {
    let mut modes = vec![BloomMode::Bitmap];
    if store.capabilities().await?.has(Optional::Bloom) {
        modes.push(BloomMode::Native);
    }
    Ok(modes)
}

async fn add_all(filter: &Bloom, elements: &[String]) -> anyhow::Result<()> {
    for chunk in elements.chunks(5000) {
        filter.add_many(chunk).await?;
    }
    Ok(())
}

async fn missing(filter: &Bloom, elements: &[String]) -> anyhow::Result<usize> {
    let mut missing = 0;
    for chunk in elements.chunks(5000) {
        let found = filter.contains_many(chunk).await?;
        missing += found.iter().filter(|found| !**found).count();
    }
    Ok(missing)
}

/// How many of so many questions may get a wrong "yes": six standard deviations above what is expected, because the seed
/// of a filter is random.
fn most_wrong(questions: u64, p: f64) -> f64 {
    let expected = questions as f64 * p;
    1.1 * expected + 6.0 * expected.sqrt() + 1.0
}

/// The keys of a filter of bitmaps at one moment.
struct Kept {
    strings: Vec<(String, Vec<u8>)>,
    hashes: Vec<(String, BTreeMap<String, String>)>,
}

impl Kept {
    async fn keys(store: &Store, backend: &Backend) -> anyhow::Result<Vec<String>> {
        Ok(store
            .scan(&format!("{}:bloom:*", backend.namespace()))
            .await?)
    }

    async fn read(store: &Store, backend: &Backend) -> anyhow::Result<Self> {
        let (mut strings, mut hashes) = (Vec::new(), Vec::new());
        for key in Self::keys(store, backend).await? {
            match key.ends_with(":root") {
                true => {
                    let fields = store.query(redis::cmd("HGETALL").arg(&key)).await?;
                    hashes.push((key, fields));
                }
                false => {
                    let bytes = store.query(redis::cmd("GET").arg(&key)).await?;
                    strings.push((key, bytes));
                }
            }
        }
        Ok(Self { strings, hashes })
    }

    async fn restore(self, store: &Store, backend: &Backend) -> anyhow::Result<()> {
        for key in Self::keys(store, backend).await? {
            store.query::<()>(redis::cmd("DEL").arg(key)).await?;
        }
        for (key, bytes) in self.strings {
            store
                .query::<()>(redis::cmd("SET").arg(key).arg(bytes))
                .await?;
        }
        for (key, fields) in self.hashes {
            store
                .query::<()>(redis::cmd("HSET").arg(key).arg(fields))
                .await?;
        }
        Ok(())
    }
}

matrix! {
    async fn the_observed_error_is_the_configured_one(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        let (n, questions) = (scale(1000, "BLOOM_STORED"), scale(4_000, "BLOOM_ASKED"));
        for mode in modes(&store).await? {
            for (p, scaling) in [(1e-2, BloomScaling::Fixed), (1e-3, BloomScaling::Fixed), (1e-2, BloomScaling::Grow)] {
                let name = format!("{mode:?}-{p}-{scaling:?}");
                let filter = Bloom::builder(&store, backend.namespace(), &name)
                    .capacity(n).error_rate(p).mode(mode).scaling(scaling).create().await?;
                let elements = names("in", 0..n);
                add_all(&filter, &elements).await?;
                assert_eq!(missing(&filter, &elements).await?, 0);
                let strangers = names("out", 0..questions);
                let wrong = (strangers.len() - missing(&filter, &strangers).await?) as f64;
                assert!(wrong <= most_wrong(questions, p), "{name}: {wrong} wrong of {questions}");

                let stats = filter.stats().await?;
                assert_eq!(stats.mode, mode);
                assert!(stats.elements as f64 >= n as f64 * (1.0 - 2.0 * p) && stats.elements <= n, "{stats:?}");
                assert!(stats.fill > 0.2 && stats.fill < 0.56, "{stats:?}");
                let theory = (1.0 / p).ln() / std::f64::consts::LN_2.powi(2);
                // The seed of a filter is random. Of m bits, about half are set, give or take 0.28·√m; the estimate is
                // that share to the power of the hashes. Six such deviations are never seen.
                let deviation = 0.56 * (1.0 / p).log2() / (theory * n as f64).sqrt();
                assert!(stats.estimated_error <= 1.1 * p * (1.0 + 6.0 * deviation), "{stats:?}");
                if mode == BloomMode::Bitmap && scaling == BloomScaling::Fixed {
                    assert!(stats.bits_per_element <= 1.05 * theory, "{stats:?}");
                }
            }
        }
        Ok(())
    }

    async fn new_elements_are_told_from_known_ones(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        for mode in modes(&store).await? {
            let filter = Bloom::builder(&store, backend.namespace(), &format!("{mode:?}"))
                .capacity(1000).error_rate(1e-6).mode(mode).create().await?;
            assert_eq!(filter.contains_many(&["a", "b"]).await?, [false, false]);
            assert_eq!(filter.add_many(&["a", "b", "a"]).await?, [true, true, false]);
            assert!(!filter.add("a").await? && filter.add(b"\0\xff").await?);
            assert_eq!(filter.contains_many(&["a", "b", "c"]).await?, [true, true, false]);
            assert!(filter.add_many(&Vec::<String>::new()).await?.is_empty());
            filter.delete().await?;
        }
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?.len(), 0);
        Ok(())
    }

    async fn a_large_filter_is_spread_over_keys_and_slots(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        let n = scale(6_000, "BLOOM_SPREAD");
        let filter = Bloom::builder(&store, backend.namespace(), "f")
            .capacity(n).error_rate(0.01).mode(BloomMode::Bitmap).key_bytes(1024).create().await?;
        let elements = names("in", 0..n);
        add_all(&filter, &elements).await?;
        assert_eq!(missing(&filter, &elements).await?, 0);
        let strangers = names("out", 0..n);
        let wrong = strangers.len() - missing(&filter, &strangers).await?;
        // Partitions are not equally full, which costs a little.
        assert!(wrong as f64 <= 1.1 * most_wrong(n, 0.01), "{wrong} of {n}");
        let stats = filter.stats().await?;
        let keys: Vec<String> = store.scan(&format!("{}:bloom:*:0", backend.namespace())).await?;
        assert_eq!(keys.len(), stats.partitions as usize);
        assert!(stats.partitions >= 7, "{stats:?}");
        let slots: std::collections::HashSet<u16> = keys.iter().map(|key| redstart::key::slot(key.as_bytes())).collect();
        assert!(slots.len() > keys.len() / 2);
        for key in keys {
            assert!(store.query::<u64>(redis::cmd("STRLEN").arg(key)).await? <= 1024);
        }
        Ok(())
    }

    async fn a_growing_filter_keeps_its_error_far_past_its_capacity(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        let n = scale(1500, "BLOOM_GROWN");
        for mode in modes(&store).await? {
            let open = || Bloom::builder(&store, backend.namespace(), &format!("{mode:?}"))
                .capacity(100).error_rate(0.02).mode(mode).scaling(BloomScaling::Grow).create();
            let filter = open().await?;
            let elements = names("in", 0..n);
            add_all(&filter, &elements).await?;
            assert_eq!(missing(&filter, &elements).await?, 0);
            // Another process does not know of the layers yet.
            let fresh = open().await?;
            assert_eq!(missing(&fresh, &elements).await?, 0);
            let strangers = names("out", 0..n);
            let wrong = strangers.len() - missing(&fresh, &strangers).await?;
            assert!((wrong as f64) <= 0.022 * n as f64 + 4.0 * (0.02 * n as f64).sqrt(), "{wrong} of {n}");
            assert!(fresh.stats().await?.estimated_error <= 0.022);
        }
        Ok(())
    }

    async fn concurrent_adds_growth_and_rebuilds_lose_no_element(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        for mode in modes(&store).await? {
            let name = format!("{mode:?}");
            let open = || Bloom::builder(&store, backend.namespace(), &name)
                .capacity(300).error_rate(0.01).mode(mode).scaling(BloomScaling::Grow).key_bytes(4096).create();
            open().await?;
            // The application's database, written first, and what is known to be in the filter.
            let (source, known): (Arc<added::Log>, Arc<added::Log>) = Default::default();
            let stop = Arc::new(AtomicBool::new(false));
            let asked = Arc::new(AtomicU64::new(0));
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..3u64 {
                let (filter, source, known, stop, asked) = (
                    Bloom::builder(&store, backend.namespace(), &name).open().await?,
                    source.clone(), known.clone(), stop.clone(), asked.clone(),
                );
                tasks.spawn(async move {
                    let mut n = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let new: Vec<String> = (0..5).map(|i| format!("{task}-{n}-{i}")).collect();
                        source.extend(new.clone());
                        filter.add_many(&new).await?;
                        known.extend(new);
                        n += 1;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        let sample = known.sample(20);
                        let found = filter.contains_many(&sample).await?;
                        asked.fetch_add(found.len() as u64, Ordering::Relaxed);
                        for (element, found) in sample.iter().zip(found) {
                            anyhow::ensure!(found, "{element} was added and is not found");
                        }
                    }
                    anyhow::Ok(())
                });
            }
            let filter = Bloom::builder(&store, backend.namespace(), &name).open().await?;
            for round in 0..scale(4, "BLOOM_REBUILDS") {
                let rebuild = filter.rebuild(4000 + 1000 * round, 0.01).await?;
                rebuild.add_many(&source.all()).await?;
                match round % 4 {
                    2 => rebuild.abandon().await?,
                    // Its process died: the next one takes over.
                    3 => drop(rebuild),
                    _ => rebuild.finish().await?,
                }
                let before = asked.load(Ordering::Relaxed);
                anyhow::ensure!(eventually(Duration::from_secs(30), async || {
                    asked.load(Ordering::Relaxed) > before + 100
                }).await);
            }
            let rebuild = filter.rebuild(9000, 0.01).await?;
            rebuild.add_many(&source.all()).await?;
            rebuild.finish().await?;
            stop.store(true, Ordering::Relaxed);
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            assert!(asked.load(Ordering::Relaxed) > 100);
            assert_eq!(missing(&filter, &known.all()).await?, 0);
            assert_eq!(missing(&open_any(&store, backend, &name).await?, &known.all()).await?, 0);
        }
        Ok(())
    }

    async fn a_rebuild_forgets_what_its_source_does_not_have(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        for mode in modes(&store).await? {
            let filter = Bloom::builder(&store, backend.namespace(), &format!("{mode:?}"))
                .capacity(1000).error_rate(1e-6).mode(mode).create().await?;
            filter.add_many(&["stays", "leaves"]).await?;
            let first = filter.rebuild(2000, 1e-6).await?;
            filter.add("later").await?;
            // A second rebuild takes over, and the first cannot finish any more.
            let second = filter.rebuild(3000, 1e-6).await?;
            assert!(first.add_many(&["x"]).await.unwrap_err().is_config());
            assert!(first.finish().await.unwrap_err().is_config());
            second.add_many(&["stays", "later"]).await?;
            assert_eq!(filter.contains_many(&["stays", "leaves", "later"]).await?, [true, true, true]);
            second.finish().await?;
            assert_eq!(filter.contains_many(&["stays", "leaves", "later"]).await?, [true, false, true]);
            // The old generation left nothing but a small note with an end.
            let mut freed = 0;
            for key in store.scan(&format!("{}:bloom:{{{mode:?}/*", backend.namespace())).await? {
                let ttl: i64 = store.query(redis::cmd("PTTL").arg(&key)).await?;
                if ttl > 0 {
                    freed += 1;
                    assert_eq!(store.query::<u64>(redis::cmd("STRLEN").arg(&key)).await?, 46);
                }
            }
            assert_eq!(freed, 1);
            // A caller that opens with the old capacity is refused, with the new one or none it opens.
            let reopen = |capacity| Bloom::builder(&store, backend.namespace(), &format!("{mode:?}"))
                .capacity(capacity).error_rate(1e-6).create();
            assert!(reopen(1000).await.unwrap_err().is_config());
            assert!(reopen(3000).await?.contains("later").await?);
        }
        Ok(())
    }

    async fn a_filter_of_another_configuration_is_an_error_never_a_no(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        let builder = |capacity| Bloom::builder(&store, backend.namespace(), "f").capacity(capacity);
        for mode in modes(&store).await? {
            let filter = builder(1000).error_rate(0.01).mode(mode).create().await?;
            filter.add("a").await?;
            assert!(builder(1000).error_rate(0.01).create().await?.contains("a").await?);
            for other in [
                builder(1001).error_rate(0.01),
                builder(1000).error_rate(0.02),
                builder(1000).error_rate(0.01).scaling(BloomScaling::Grow),
            ] {
                assert!(other.create().await.unwrap_err().is_config());
            }
            let flipped = if mode == BloomMode::Bitmap { BloomMode::Native } else { BloomMode::Bitmap };
            assert!(builder(1000).error_rate(0.01).mode(flipped).create().await.unwrap_err().is_config());

            // Created again by another process: with another seed, the bits of the one mean nothing to the other.
            let stale = filter.clone();
            filter.delete().await?;
            assert!(stale.contains("a").await.unwrap_err().is_config());
            let anew = builder(1000).error_rate(0.01).mode(mode).create().await?;
            anew.add("b").await?;
            assert_eq!(stale.contains_many(&["a", "b"]).await?, [false, true]);

            // A partition that was evicted or overwritten.
            let names = store.scan(&format!("{}:bloom:{{f/*", backend.namespace())).await?;
            for name in &names {
                store.query::<()>(redis::cmd("DEL").arg(name)).await?;
                assert!(anew.contains("b").await.unwrap_err().is_config());
            }
            store.query::<()>(redis::cmd("SET").arg(&names[0]).arg("x".repeat(2000))).await?;
            assert!(anew.contains("b").await.unwrap_err().is_config());
            assert!(anew.add("b").await.unwrap_err().is_config());
            anew.delete().await?;
        }
        Ok(())
    }

    async fn a_partition_that_lost_its_header_is_not_taken_for_a_new_one(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        if !modes(&store).await?.contains(&BloomMode::Native) {
            return Ok(());
        }
        let builder = || Bloom::builder(&store, backend.namespace(), "f").capacity(100).mode(BloomMode::Native);
        builder().create().await?;
        // Its maker died before it said that the filter is ready, and the header was evicted.
        let root = format!("{}:bloom:{{f}}:root", backend.namespace());
        store.query::<()>(redis::cmd("HSET").arg(root).arg("phase").arg("creating")).await?;
        for name in store.scan(&format!("{}:bloom:{{f/*:0", backend.namespace())).await? {
            store.query::<()>(redis::cmd("DEL").arg(name)).await?;
        }
        assert!(builder().create().await.unwrap_err().is_config());
        Ok(())
    }

    async fn a_rebuild_frees_a_partition_that_lost_its_header(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        if !modes(&store).await?.contains(&BloomMode::Native) {
            return Ok(());
        }
        let filter = Bloom::builder(&store, backend.namespace(), "f").capacity(100).mode(BloomMode::Native).create().await?;
        filter.add("a").await?;
        let old = store.scan(&format!("{}:bloom:{{f/*", backend.namespace())).await?;
        for name in old.iter().filter(|name| name.ends_with(":0")) {
            store.query::<()>(redis::cmd("DEL").arg(name)).await?;
        }
        let rebuild = filter.rebuild(200, 0.001).await?;
        rebuild.add_many(&["a"]).await?;
        rebuild.finish().await?;
        for name in old {
            assert_eq!(store.query::<u64>(redis::cmd("EXISTS").arg(&name)).await?, 0, "{name}");
        }
        Ok(())
    }

    async fn an_evicted_root_is_an_error_never_a_no(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        for (mode, key_bytes) in modes(&store).await?.into_iter().flat_map(|mode| [(mode, 1 << 20), (mode, 1024)]) {
            let name = format!("{mode:?}-{key_bytes}");
            let builder = || Bloom::builder(&store, backend.namespace(), &name)
                .capacity(3000).mode(mode).key_bytes(key_bytes);
            let filter = builder().create().await?;
            let elements = names("in", 0..500);
            add_all(&filter, &elements).await?;
            let root = store.scan(&format!("{}:bloom:{{{name}}}:root", backend.namespace())).await?;
            assert_eq!(root.len(), 1);
            store.query::<()>(redis::cmd("DEL").arg(&root[0])).await?;
            // Neither a new process nor the one that has it open takes the filter for an empty one.
            assert!(builder().open().await.unwrap_err().is_config());
            assert!(filter.contains("in-1").await.unwrap_err().is_config());
            assert!(filter.add("in-501").await.unwrap_err().is_config());
            // Created again by a decision, and filled: the old handle follows, and does not answer from the old bits.
            let again = builder().create().await?;
            again.add("new").await?;
            assert!(filter.contains("new").await?);
            filter.add("by the old handle").await?;
            assert!(again.contains("by the old handle").await?);
            again.delete().await?;
        }
        Ok(())
    }

    async fn what_is_added_after_the_server_forgot_the_end_of_a_rebuild_is_found(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        let builder = || Bloom::builder(&store, backend.namespace(), "f").capacity(100).mode(BloomMode::Bitmap);
        let filter = builder().create().await?;
        filter.add("old").await?;
        let rebuild = filter.rebuild(200, 0.001).await?;
        rebuild.add_many(&["old"]).await?;
        let before = Kept::read(&store, backend).await?;
        rebuild.finish().await?;
        assert!(filter.contains("old").await?);
        // A replica takes over that had not received the last writes.
        before.restore(&store, backend).await?;
        assert!(filter.add("new").await?);
        let other = builder().open().await?;
        for filter in [&other, &filter] {
            assert_eq!(filter.contains_many(&["old", "new"]).await?, [true, true]);
        }
        Ok(())
    }

    async fn a_rebuild_whose_seal_was_lost_is_completed_by_the_next(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        let builder = || Bloom::builder(&store, backend.namespace(), "f");
        let filter = builder().capacity(100).mode(BloomMode::Bitmap).create().await?;
        filter.add("old").await?;
        let rebuild = filter.rebuild(200, 0.001).await?;
        rebuild.add_many(&["old"]).await?;
        let root = Kept::read(&store, backend).await?.hashes;
        rebuild.finish().await?;
        // The node of the root forgot the last writes, those of the partitions did not.
        for (key, fields) in root {
            store.query::<()>(redis::cmd("HSET").arg(key).arg(fields)).await?;
        }
        filter.add("new").await?;
        let rebuild = builder().open().await?.rebuild(300, 0.001).await?;
        let other = builder().open().await?;
        for filter in [&other, &filter] {
            assert_eq!(filter.contains_many(&["old", "new"]).await?, [true, true]);
        }
        rebuild.add_many(&["old", "new"]).await?;
        rebuild.finish().await?;
        for filter in [&other, &filter] {
            assert_eq!(filter.contains_many(&["old", "new"]).await?, [true, true]);
        }
        Ok(())
    }

    async fn a_filter_that_lost_a_rebuild_or_a_partition_is_whole_after_the_next(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        let filter = Bloom::builder(&store, backend.namespace(), "f").capacity(100).mode(BloomMode::Bitmap).create().await?;
        filter.add("old").await?;
        let heal = async |filter: &Bloom| {
            let rebuild = filter.rebuild(200, 0.001).await?;
            assert!(filter.contains("old").await.unwrap_err().is_config(), "not yet");
            assert!(filter.add("new").await.unwrap_err().is_config(), "not yet");
            rebuild.add_many(&["old"]).await?;
            rebuild.finish().await?;
            filter.add("new").await?;
            assert_eq!(filter.contains_many(&["old", "new", "other"]).await?, [true, true, false]);
            anyhow::Ok(())
        };
        // The node of the root forgot all of a rebuild, those of the partitions did not.
        let root = Kept::read(&store, backend).await?.hashes;
        let rebuild = filter.rebuild(300, 0.001).await?;
        rebuild.add_many(&["old"]).await?;
        rebuild.finish().await?;
        for (key, fields) in root {
            store.query::<()>(redis::cmd("HSET").arg(key).arg(fields)).await?;
        }
        let other = Bloom::builder(&store, backend.namespace(), "f").open().await?;
        assert!(other.contains("old").await.unwrap_err().is_config());
        heal(&other).await?;
        // A partition was evicted.
        let partitions = store.scan(&format!("{}:bloom:{{f/*", backend.namespace())).await?;
        for key in partitions {
            store.query::<()>(redis::cmd("DEL").arg(key)).await?;
        }
        heal(&filter).await
    }

    async fn a_lost_layer_is_an_error_never_a_no(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        let open = || Bloom::builder(&store, backend.namespace(), "f")
            .capacity(50).mode(BloomMode::Bitmap).scaling(BloomScaling::Grow).create();
        let filter = open().await?;
        add_all(&filter, &names("in", 0..400)).await?;
        let mut layers = store.scan(&format!("{}:bloom:{{f/*", backend.namespace())).await?;
        assert!(layers.len() >= 3, "{layers:?}");
        layers.sort();
        let last = layers.pop().expect("a layer");
        store.query::<()>(redis::cmd("DEL").arg(last)).await?;
        assert!(filter.contains("in-399").await.unwrap_err().is_config());
        assert!(open().await?.contains("in-399").await.unwrap_err().is_config());
        Ok(())
    }

    async fn bad_input_is_refused_before_the_network(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend.url()).await?;
        let builder = || Bloom::builder(&store, backend.namespace(), "f");
        for capacity in [0, Bloom::MAX_CAPACITY + 1] {
            assert!(builder().capacity(capacity).create().await.unwrap_err().is_config());
        }
        for rate in [0.0, 1.0, 1.5, -0.1, 1e-12, f64::NAN, f64::INFINITY] {
            assert!(builder().capacity(10).error_rate(rate).create().await.unwrap_err().is_config(), "{rate}");
        }
        assert!(builder().capacity(10).key_bytes(10).create().await.unwrap_err().is_config());
        assert!(builder().capacity(4_000_000_000).key_bytes(1024).create().await.unwrap_err().is_config());
        assert!(builder().create().await.unwrap_err().is_config());
        assert!(builder().open().await.unwrap_err().is_config());
        assert!(Bloom::builder(&store, "a b", "f").capacity(10).create().await.unwrap_err().is_config());
        if !store.capabilities().await?.has(Optional::Bloom) {
            assert!(builder().capacity(10).mode(BloomMode::Native).create().await.unwrap_err().is_config());
        }
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?.len(), 0);
        let filter = builder().capacity(10).create().await?;
        assert!(filter.add("").await.unwrap_err().is_config());
        assert!(filter.contains(vec![0; Bloom::MAX_ELEMENT + 1]).await.unwrap_err().is_config());
        assert!(filter.add_many(&["a", ""]).await.unwrap_err().is_config());
        assert!(!filter.contains("a").await?);
        assert!(filter.rebuild(0, 0.1).await.unwrap_err().is_config());
        Ok(())
    }
}

async fn open_any(store: &Store, backend: &Backend, name: &str) -> anyhow::Result<Bloom> {
    Ok(Bloom::builder(store, backend.namespace(), name)
        .open()
        .await?)
}

/// What all tasks know to have been added.
mod added {
    use std::sync::Mutex;

    use rand::RngExt as _;

    #[derive(Default)]
    pub(crate) struct Log(Mutex<Vec<String>>);

    impl Log {
        pub(crate) fn extend(&self, elements: Vec<String>) {
            self.0.lock().expect("no panic").extend(elements);
        }

        pub(crate) fn all(&self) -> Vec<String> {
            self.0.lock().expect("no panic").clone()
        }

        pub(crate) fn sample(&self, n: usize) -> Vec<String> {
            let all = self.0.lock().expect("no panic");
            let mut rng = rand::rng();
            (0..n)
                .map(|_| all[rng.random_range(0..all.len())].clone())
                .collect()
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_valkey_has_native_filters() -> anyhow::Result<()> {
    let store = connect("memory://?compat=valkey-9").await?;
    for mode in [BloomMode::Native, BloomMode::Bitmap] {
        let filter = Bloom::builder(&store, "app", &format!("{mode:?}"))
            .capacity(1000)
            .mode(mode)
            .create()
            .await?;
        let native = async || -> anyhow::Result<u64> {
            let stats: String = store.query(redis::cmd("INFO").arg("commandstats")).await?;
            let calls = stats.lines().filter_map(|line| {
                let (_, calls) = line.strip_prefix("cmdstat_bf.")?.split_once("calls=")?;
                calls.split(',').next()?.parse::<u64>().ok()
            });
            Ok(calls.sum())
        };
        let before = native().await?;
        let elements = names("in", 0..100);
        add_all(&filter, &elements).await?;
        assert_eq!(missing(&filter, &elements).await?, 0);
        assert_eq!(filter.stats().await?.mode, mode);
        let asked = native().await? - before;
        assert_eq!(asked > 0, mode == BloomMode::Native, "{mode:?}: {asked}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_elements_are_added_by_one_script_and_found_by_plain_reads() -> anyhow::Result<()>
{
    let server = Server::builder(Kind::Redis).start().await?;
    let store = connect(&server.url()).await?;
    let filter = Bloom::builder(&store, "app", "f")
        .capacity(1000)
        .mode(BloomMode::Bitmap)
        .create()
        .await?;
    let elements = names("in", 0..1000);
    filter.add_many(&elements).await?;
    filter.contains_many(&elements).await?;
    let tap = MonitorTap::start(&server).await?;
    filter.add_many(&elements).await?;
    let calls = tap.round_trips("app:bloom").await?;
    assert_eq!(calls.len(), 2, "the partition and the root");
    tap.clear().await?;
    filter.contains_many(&elements).await?;
    let calls = tap.round_trips("app:bloom").await?;
    let names: Vec<String> = calls.iter().map(|call| call.name()).collect();
    let bits = ["BITFIELD_RO"; 4];
    assert_eq!(names, [&bits[..], &["GETRANGE", "HMGET"]].concat());
    Ok(())
}
