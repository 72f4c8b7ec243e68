//! Cached SORT.

use std::time::Duration;

use redstart::{
    Store,
    caching::{SortedView, SortedViewBuilder},
    key::Layout,
};
use redstart_testkit::{Backend, Kind, MonitorTap, Server, eventually, matrix, unique_namespace};

use crate::{LONG, pass};

async fn shop(store: &Store, tag: &str) -> anyhow::Result<()> {
    let mut pipe = redis::pipe();
    for (id, price, name) in [
        ("1", "20", "anvil"),
        ("2", "5.5", "rope"),
        ("3", "5.5", "paint"),
        ("4", "100", "rocket"),
    ] {
        pipe.cmd("SADD")
            .arg(format!("{{{tag}}}:products"))
            .arg(id)
            .ignore();
        pipe.cmd("HSET")
            .arg(format!("{{{tag}}}:product:{id}"))
            .arg("price")
            .arg(price)
            .arg("name")
            .arg(name)
            .ignore();
        pipe.cmd("SET")
            .arg(format!("{{{tag}}}:stock:{id}"))
            .arg(id)
            .ignore();
    }
    // 5 has no price and no name.
    pipe.cmd("SADD")
        .arg(format!("{{{tag}}}:products"))
        .arg("5")
        .ignore();
    store.pipeline::<()>(&pipe).await?;
    Ok(())
}

/// A view of keys that the application already has.
fn adopted(store: &Store, tag: &str, source: &str) -> SortedViewBuilder {
    let key = format!("{{{tag}}}:{source}");
    SortedView::builder(store, tag, "rows", source)
        .layout(Layout::new(move |_| key.clone()))
        .ttl(LONG)
}

matrix! {
    async fn a_view_is_sorted_by_other_keys_and_kept_for_its_ttl(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let tag = backend.namespace();
        shop(&store, tag).await?;
        let view = |ttl| adopted(&store, tag, "products").ttl(ttl)
            .by(&format!("{{{tag}}}:product:*->price"));
        let by_price = view(Duration::from_millis(400))
            .get("#").get(&format!("{{{tag}}}:product:*->name")).get(&format!("{{{tag}}}:stock:*"))
            .build()?;
        let rows = by_price.page(0..10).await?;
        assert_eq!(rows, [["5", "", ""], ["2", "rope", "2"], ["3", "paint", "3"], ["1", "anvil", "1"], ["4", "rocket", "4"]]);
        assert_eq!(by_price.page(1..3).await?, rows[1..3]);
        assert_eq!(by_price.page(4..9).await?, rows[4..]);
        assert!(by_price.page(9..12).await?.is_empty() && by_price.page(3..3).await?.is_empty());
        let dearest = view(LONG).descending().limit(0, 2).build()?;
        assert_eq!(dearest.page(0..10).await?, [["4"], ["1"]]);
        let by_name = adopted(&store, tag, "products")
            .by(&format!("{{{tag}}}:product:*->name")).alphabetic().build()?;
        assert_eq!(by_name.page(1..3).await?, [["1"], ["3"]]);

        // Changes are seen when the TTL is over, or when the view is dropped.
        store.query::<()>(redis::cmd("HSET").arg(format!("{{{tag}}}:product:4")).arg("price").arg("1")).await?;
        assert_eq!(dearest.page(0..1).await?, [["4"]]);
        dearest.invalidate().await?;
        assert_eq!(dearest.page(0..2).await?, [["1"], ["3"]]);
        pass(&store, Duration::from_millis(450)).await;
        assert!(eventually(LONG, async || by_price.page(1..2).await.unwrap()[0][0] == "4").await);
        for key in store.scan(&format!("{{{tag}}}:products*:view*")).await? {
            let ttl: i64 = store.query(redis::cmd("PTTL").arg(&key)).await?;
            assert_ne!(ttl, -1, "{key} has no TTL");
        }
        Ok(())
    }

    async fn without_a_layout_source_and_patterns_share_one_slot(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let view = SortedView::builder(&store, backend.namespace(), "rows", "products")
            .by("price:*").get("#").get("info:*->name").build()?;
        for (id, price, name) in [("1", 20, "anvil"), ("2", 5, "rope")] {
            store.query::<()>(redis::cmd("RPUSH").arg(view.source()).arg(id)).await?;
            store.query::<()>(redis::cmd("SET").arg(view.part(&format!("price:{id}"))).arg(price)).await?;
            let info = view.part(&format!("info:{id}"));
            store.query::<()>(redis::cmd("HSET").arg(info).arg("name").arg(name)).await?;
        }
        assert_eq!(view.page(0..9).await?, [["2", "rope"], ["1", "anvil"]]);
        Ok(())
    }

    async fn an_empty_view_is_built_once_too(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let view = SortedView::builder(&store, backend.namespace(), "rows", "nothing").alphabetic().build()?;
        let source = view.source();
        assert!(view.page(0..10).await?.is_empty());
        store.query::<()>(redis::cmd("RPUSH").arg(source).arg("b").arg("a")).await?;
        assert!(view.page(0..10).await?.is_empty(), "built again before its TTL");
        view.invalidate().await?;
        assert_eq!(view.page(0..10).await?, [["a"], ["b"]]);
        Ok(())
    }

    async fn bad_views_are_refused_when_they_are_built(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let builder = |ttl| adopted(&store, "shop", "products").ttl(ttl);
        assert!(builder(Duration::ZERO).build().unwrap_err().is_config());
        assert!(builder(LONG).by("no star").build().unwrap_err().is_config());
        assert!(builder(LONG).get("{shop}:a*b*").build().unwrap_err().is_config());
        let two_slots = [builder(LONG).by("price:*").build(), builder(LONG).by("{shop}:p:*").get("{other}:*").build()];
        for view in two_slots {
            match backend.is_cluster() {
                true => assert!(view.unwrap_err().is_config()),
                false => drop(view?),
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_readers_of_a_cold_view_sort_once() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let tag = unique_namespace("view");
    shop(&store, &tag).await?;
    let view = adopted(&store, &tag, "products")
        .by(&format!("{{{tag}}}:product:*->price"))
        .build()?;
    let tap = MonitorTap::start(&server).await?;
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let view = view.clone();
            tokio::spawn(async move { view.page(0..3).await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await??, [["5"], ["2"], ["3"]]);
    }
    let sorts = tap
        .commands()
        .await?
        .into_iter()
        .filter(|seen| seen.name() == "SORT")
        .count();
    assert_eq!(sorts, 1);
    Ok(())
}
