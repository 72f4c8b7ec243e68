use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{ToSpan as _, civil::date};
use rand::RngExt as _;
use redstart::{
    Store,
    counting::{Activity, Keep},
};
use redstart_testkit::{Backend, matrix};

matrix! {
    async fn counts_equal_sets_of_ids(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let active = Activity::new(&store, backend.namespace(), "active", 50_000, Keep::Forever)?;
        let first = date(2026, 12, 20);
        let mut model: BTreeMap<i64, BTreeSet<u32>> = BTreeMap::new();
        for day in 0..35 {
            let users: BTreeSet<u32> = {
                let mut rng = rand::rng();
                (0..200).map(|_| rng.random_range(0..50_000)).collect()
            };
            let list: Vec<u32> = users.iter().copied().collect();
            assert_eq!(active.mark("web", first + day.days(), &list).await?, list.len() as u64);
            assert_eq!(active.mark("web", first + day.days(), &list[..10]).await?, 0);
            model.insert(day, users);
        }
        let union = |range: std::ops::RangeInclusive<i64>| {
            model.range(range).flat_map(|(_, users)| users).collect::<BTreeSet<_>>().len() as u64
        };
        for day in [0, 5, 6, 29, 34] {
            let date = first + day.days();
            assert_eq!(active.daily("web", date).await?, union(day..=day));
            assert_eq!(active.weekly("web", date).await?, union((day - 6).max(0)..=day));
            assert_eq!(active.monthly("web", date).await?, union((day - 29).max(0)..=day));
        }
        for (a, b) in [(0, 1), (3, 10), (0, 34), (7, 7)] {
            let both = model[&a].intersection(&model[&b]).count() as u64;
            assert_eq!(active.retained("web", first + a.days(), first + b.days()).await?, both);
        }
        assert_eq!(active.retained("web", first, first - 1.day()).await?, 0);
        // Combinations leave nothing behind.
        let names = store.scan(&format!("{}:*", backend.namespace())).await?;
        assert_eq!(names.len(), 35, "{names:?}");
        Ok(())
    }

    async fn stray_ids_are_refused_before_the_call(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for capacity in [0, Activity::MAX_CAPACITY + 1] {
            assert!(Activity::new(&store, "a", "active", capacity, Keep::Forever).unwrap_err().is_config());
        }
        let keep = Keep::For(Duration::from_secs(86400));
        let active = Activity::new(&store, backend.namespace(), "active", 1000, keep)?;
        let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
        for ids in [&[1, 1000][..], &[u32::MAX]] {
            assert!(active.mark("web", today, ids).await.unwrap_err().is_config());
        }
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?.len(), 0);
        active.mark("web", today, &[999]).await?;
        for name in store.scan(&format!("{}:*", backend.namespace())).await? {
            assert!(store.query::<i64>(redis::cmd("PTTL").arg(name)).await? > 0);
        }
        let too_long = active.over("web", date(2020, 1, 1)..=date(2026, 1, 1)).await;
        assert!(too_long.unwrap_err().is_config());
        Ok(())
    }
}
