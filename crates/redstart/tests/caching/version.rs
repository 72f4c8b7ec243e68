//! Two versions of a program on one cache, and two types under one name.

use redstart::{
    Store,
    caching::{Cache, CacheUpdate, HitSource, L1, Loaded, WriteThrough, Written},
};
use redstart_testkit::{Backend, eventually, matrix};
use tokio::sync::oneshot;

use crate::{LONG, two};

type Old = Cache<str, u64>;
type New = Cache<str, (u64, String)>;

fn versions(one: &Store, other: &Store, namespace: &str, l1: L1) -> redstart::Result<(Old, New)> {
    Ok((
        Cache::builder(one, namespace, "rows")
            .ttl(LONG)
            .schema(1)
            .l1(l1.clone())
            .build()?,
        Cache::builder(other, namespace, "rows")
            .ttl(LONG)
            .schema(2)
            .l1(l1)
            .build()?,
    ))
}

async fn read_old(cache: &Old, value: u64) -> redstart::Result<(u64, HitSource)> {
    let hit = cache
        .get_or_load("k", move |load| async move {
            load.tag("row")?;
            Ok::<_, redstart::Error>(Loaded::Found(value))
        })
        .await?;
    Ok((hit.value.as_deref().copied().unwrap_or(0), hit.source))
}

async fn read_new(cache: &New, value: u64) -> redstart::Result<(u64, HitSource)> {
    let hit = cache
        .get_or_load("k", move |load| async move {
            load.tag("row")?;
            Ok::<_, redstart::Error>(Loaded::Found((value, value.to_string())))
        })
        .await?;
    let (number, text) = hit.value.as_deref().cloned().unwrap_or_default();
    assert_eq!(number.to_string(), text);
    Ok((number, hit.source))
}

matrix! {
    async fn two_versions_have_their_entries_side_by_side(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        let (old, new) = versions(&one, &other, backend.namespace(), L1::off())?;
        assert_eq!(read_old(&old, 1).await?, (1, HitSource::Loaded));
        assert_eq!(read_new(&new, 1).await?, (1, HitSource::Loaded));
        for _ in 0..10 {
            assert_eq!(read_old(&old, 9).await?, (1, HitSource::Store));
            assert_eq!(read_new(&new, 9).await?, (1, HitSource::Store));
        }
        assert_eq!((old.stats().loads, new.stats().loads), (1, 1));
        Ok(())
    }

    async fn an_invalidation_by_either_version_reaches_both(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        let (old, new) = versions(&one, &other, backend.namespace(), L1::off())?;
        let write = WriteThrough::new(&old);
        for round in 1..=6 {
            assert_eq!(read_old(&old, round).await?, (round, HitSource::Loaded), "round {round}");
            assert_eq!(read_new(&new, round).await?, (round, HitSource::Loaded), "round {round}");
            match round {
                1 | 2 => old.invalidate("k").await?,
                3 | 4 => new.invalidate("k").await?,
                5 => {
                    old.invalidate_tag("row").await?;
                }
                _ => {
                    let row = async { Ok::<_, redstart::Error>(Written::row(70, 7)) };
                    assert_eq!(write.put("k", row).await?, CacheUpdate::Stored);
                    assert_eq!(read_old(&old, 0).await?, (70, HitSource::Store));
                    assert!(new.get("k").await?.is_none(), "a write left the other version's row");
                    continue;
                }
            }
            assert!(old.get("k").await?.is_none() && new.get("k").await?.is_none(), "round {round}");
        }
        Ok(())
    }

    async fn a_load_of_one_version_is_refused_after_an_invalidation_by_the_other(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        let (old, new) = versions(&one, &other, backend.namespace(), L1::off())?;
        read_old(&old, 1).await?;
        let (loading, begun) = oneshot::channel();
        let (go, wait) = oneshot::channel::<()>();
        let call = tokio::spawn({
            let new = new.clone();
            async move {
                new.get_or_load("k", |_| async move {
                    loading.send(()).unwrap();
                    wait.await?;
                    Ok::<_, oneshot::error::RecvError>(Some((1, "1".to_owned())))
                })
                .await
            }
        });
        begun.await?;
        old.invalidate("k").await?; // the row is 2 by now
        go.send(()).unwrap();
        call.await??;
        assert!(new.get("k").await?.is_none());
        assert_eq!(new.stats().refused_fills, 1);
        assert_eq!(read_new(&new, 2).await?, (2, HitSource::Loaded));
        Ok(())
    }

    async fn first_levels_of_both_versions_hear_of_an_invalidation(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        for (part, l1) in [("pubsub", L1::pubsub(100)), ("tracking", L1::tracking(100))] {
            let namespace = format!("{}-{part}", backend.namespace());
            let (old, new) = versions(&one, &other, &namespace, l1)?;
            assert!(eventually(LONG, async || old.l1_is_up() && new.l1_is_up()).await, "{part}");
            let near = async || read_new(&new, 1).await.is_ok_and(|(_, source)| source == HitSource::L1);
            read_old(&old, 1).await?;
            assert!(eventually(LONG, near).await, "{part}");
            old.invalidate("k").await?;
            let fresh = async || read_new(&new, 2).await.is_ok_and(|(value, _)| value == 2);
            assert!(eventually(LONG, fresh).await, "{part}");
        }
        Ok(())
    }

    async fn another_type_under_the_same_name_is_a_miss(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let builder = || Cache::<str, u32>::builder(&store, backend.namespace(), "rows").ttl(LONG);
        let prices: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        let users: Cache<str, u32> = builder().build()?;
        prices.get_or_load("7", |_| async { Ok::<_, redstart::Error>(Some(20)) }).await?;
        // The bytes of both are the same.
        assert!(users.get("7").await?.is_none());
        let hit = users.get_or_load("7", |_| async { Ok::<_, redstart::Error>(Some(1)) }).await?;
        assert_eq!(hit.value.as_deref(), Some(&1));
        assert_eq!(prices.get("7").await?.unwrap().value.as_deref(), Some(&20));
        // Two programs that agree on a name share entries although the types have other paths.
        let (a, b): (Cache<str, u32>, Cache<str, u64>) = (
            builder().value_type("price").build()?,
            Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).value_type("price").build()?,
        );
        a.get_or_load("8", |_| async { Ok::<_, redstart::Error>(Some(5)) }).await?;
        assert_eq!(b.get("8").await?.unwrap().value.as_deref(), Some(&5));
        // Caches of other names share nothing.
        let other: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "others").build()?;
        assert!(other.get("7").await?.is_none());
        Ok(())
    }
}
