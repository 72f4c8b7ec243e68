use std::time::Duration;

use redstart::{
    Store,
    counting::{WindowSize, Windowed},
    key::Keys,
};
use redstart_testkit::{Backend, matrix};

matrix! {
    async fn every_count_is_in_some_window(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let hits = Windowed::new(&store, backend.namespace(), "hits", WindowSize::Second, 600)?;
        for n in 0..50 {
            hits.add("home", n).await?;
        }
        let series = hits.series("home", 600).await?;
        assert_eq!(series.len(), 600);
        let starts: Vec<i64> = series.iter().map(|point| point.start.as_second()).collect();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == 1));
        assert_eq!(series.iter().map(|point| point.count).sum::<i64>(), 1225);
        let entity = Keys::named(backend.namespace(), "windowed", "hits")?.entity("home")?;
        let ttl: i64 = store.query(redis::cmd("TTL").arg(entity.key())).await?;
        assert!((1..=600).contains(&ttl));
        Ok(())
    }

    async fn windows_of_another_length_are_an_error_and_nothing_is_written(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let open = |size, retain| Windowed::new(&store, backend.namespace(), "hits", size, retain);
        let minutes = open(WindowSize::Minute, 60)?;
        minutes.add("home", 3).await?;
        let hours = open(WindowSize::Hour, 24)?;
        assert!(hours.add("home", 5).await.unwrap_err().is_config());
        assert!(hours.series("home", 2).await.unwrap_err().is_config());
        assert_eq!(minutes.series("home", 60).await?.iter().map(|window| window.count).sum::<i64>(), 3);
        // A smaller number of windows does not remove what a larger one keeps.
        open(WindowSize::Minute, 1)?.add("home", 1).await?;
        let entity = Keys::named(backend.namespace(), "windowed", "hits")?.entity("home")?;
        assert!(store.query::<i64>(redis::cmd("TTL").arg(entity.key())).await? > 600);
        Ok(())
    }

    async fn bad_input_is_refused_before_the_network(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for retain in [0, Windowed::MAX_WINDOWS + 1] {
            assert!(Windowed::new(&store, "w", "hits", WindowSize::Day, retain).unwrap_err().is_config());
        }
        let hits = Windowed::new(&store, backend.namespace(), "hits", WindowSize::Minute, 5)?;
        assert!(hits.series("x", 6).await.unwrap_err().is_config());
        assert!(hits.series("x", 0).await.unwrap_err().is_config());
        Ok(())
    }
}

#[tokio::test]
async fn old_windows_are_removed_and_the_rest_expires() -> anyhow::Result<()> {
    let store = Store::connect("memory://?cluster_strict=1").await?;
    let hits = Windowed::new(&store, "w", "hits", WindowSize::Minute, 10)?;
    let entity = Keys::named("w", "windowed", "hits")?.entity("home")?;
    for minute in 0..100i64 {
        hits.add("home", minute).await?;
        let expected: Vec<i64> = (minute - 9..=minute).map(|m| m.max(0)).collect();
        let counts: Vec<i64> = hits
            .series("home", 10)
            .await?
            .iter()
            .map(|p| p.count)
            .collect();
        assert_eq!(counts, expected);
        assert!(
            store
                .query::<u32>(redis::cmd("HLEN").arg(entity.key()))
                .await?
                <= 12
        );
        store.advance(Duration::from_secs(60))?;
    }
    store.advance(hits.retention())?;
    assert_eq!(store.scan("w:*").await?.len(), 0);
    Ok(())
}

#[tokio::test]
async fn the_largest_number_of_windows_applies_whoever_counts_first_in_a_window()
-> anyhow::Result<()> {
    let store = Store::connect("memory://?cluster_strict=1").await?;
    let open = |retain| Windowed::new(&store, "w", "hits", WindowSize::Minute, retain);
    let (short, long) = (open(2)?, open(5)?);
    short.add("home", 1).await?;
    long.add("home", 1).await?;
    for _ in 0..3 {
        store.advance(Duration::from_secs(60))?;
        short.add("home", 1).await?;
    }
    let series = long.series("home", 5).await?;
    let counts: Vec<i64> = series.iter().map(|window| window.count).collect();
    assert_eq!(counts, [0, 2, 1, 1, 1]);
    Ok(())
}
