use std::collections::HashMap;

use anyhow::Result;
use redstart::{Store, messaging::Ring};
use redstart_testkit::{Backend, matrix, scale};

matrix! {
    async fn many_workers_visit_every_item_once_per_lap(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let ring = Ring::new(&store, backend.namespace(), "r")?;
        assert_eq!(ring.next().await?, None);
        for n in 0..10 { ring.add(&format!("item {n}")).await?; }
        let laps = scale(5, "ring laps");
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let ring = ring.clone();
            workers.spawn(async move {
                let mut visits = Vec::new();
                for _ in 0..2 * laps { visits.push(ring.next().await?.unwrap()); }
                Ok::<_, redstart::Error>(visits)
            });
        }
        let mut seen: HashMap<(u64, String), u32> = HashMap::new();
        for visits in workers.join_all().await {
            for visit in visits? { *seen.entry((visit.lap, visit.item)).or_default() += 1; }
        }
        assert_eq!(seen.len() as u64, 10 * laps);
        assert!(seen.values().all(|times| *times == 1), "{seen:?}");
        assert!(seen.keys().all(|(lap, _)| (1..=laps).contains(lap)));
        Ok(())
    }

    async fn items_added_while_many_go_round_are_visited_in_every_lap_from_then_on(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let ring = Ring::new(&store, backend.namespace(), "r")?;
        for n in 0..5 { ring.add(&format!("first {n}")).await?; }
        let laps = scale(8, "ring laps");
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let ring = ring.clone();
            workers.spawn(async move {
                let mut visits = Vec::new();
                loop {
                    let visit = ring.next().await?.unwrap();
                    // The embedded engine answers at once; let the other tasks run too.
                    tokio::task::yield_now().await;
                    if visit.lap > laps { return Ok::<_, redstart::Error>(visits); }
                    visits.push((visit.item, visit.lap));
                }
            });
        }
        for n in 0..20 {
            ring.add(&format!("later {n}")).await?;
            tokio::task::yield_now().await;
        }
        let mut seen: HashMap<String, Vec<u64>> = HashMap::new();
        for visits in workers.join_all().await {
            for (item, lap) in visits? { seen.entry(item).or_default().push(lap); }
        }
        for (item, visited) in &mut seen {
            visited.sort_unstable();
            let first = if item.starts_with("first") { 1 } else { visited[0] };
            assert!(visited.iter().copied().eq(first..=laps), "{item}: {visited:?}");
        }
        assert!(seen.len() >= 5);
        Ok(())
    }

    async fn items_come_and_go_meanwhile(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let ring = Ring::new(&store, backend.namespace(), "r")?;
        // One of them looks like the mark.
        for item in ["lap", "b", "c"] { ring.add(item).await?; }
        let next = async || -> Result<(String, u64)> { let v = ring.next().await?.unwrap(); Ok((v.item, v.lap)) };
        assert_eq!(next().await?, ("lap".into(), 1));
        assert_eq!(ring.add("d").await?, 4);
        assert_eq!(next().await?, ("b".into(), 1));
        assert_eq!(next().await?, ("c".into(), 1));
        let mut second = Vec::new();
        for _ in 0..4 { second.push(next().await?); }
        second.sort();
        assert_eq!(second, [("b", 2), ("c", 2), ("d", 2), ("lap", 2)].map(|(i, l)| (i.to_owned(), l)));
        for item in ["b", "c", "d"] { assert_eq!(ring.remove(item).await?, 1); }
        assert_eq!((ring.len().await?, next().await?), (1, ("lap".into(), 3)));
        assert_eq!(ring.remove("lap").await?, 1);
        assert_eq!(ring.next().await?, None);
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?, Vec::<String>::new());
        assert!(ring.add(&"x".repeat(70_000)).await.unwrap_err().is_config());
        Ok(())
    }
}
