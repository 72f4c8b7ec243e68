//! Write-through: two writers, every order, and crashes in between.

use std::time::Duration;

use redstart::{
    Store,
    caching::{Cache, CacheUpdate, Fence, WriteThrough, Written},
    codec::Postcard,
};
use redstart_testkit::{Backend, Kind, Proxy, Server, eventually, matrix};

use crate::{LONG, Rows, pass};

/// A versioned row, as a database has it: each commit raises the version.
#[derive(Default)]
struct Table {
    version: u64,
    value: u64,
}

impl Table {
    fn commit(&mut self, value: u64) -> (u64, u64) {
        self.version += 1;
        self.value = value;
        (self.version, value)
    }
}

struct Writer {
    fence: Option<Fence<u64, Postcard>>,
    committed: Option<(u64, u64)>,
    steps: usize,
}

impl Writer {
    fn new() -> Self {
        Self {
            fence: None,
            committed: None,
            steps: 0,
        }
    }

    /// Fence, commit, settle: one step at each call.
    async fn step(
        &mut self,
        write: &WriteThrough<str, u64>,
        key: &str,
        table: &mut Table,
        value: u64,
        how: How,
    ) -> anyhow::Result<()> {
        self.steps += 1;
        match self.steps {
            1 => self.fence = Some(write.fence(key).await?),
            2 => self.committed = Some(table.commit(value)),
            _ => {
                let (version, value) = self.committed.take().unwrap();
                let written = match how {
                    How::Row => Written::row(value, version),
                    How::Changed => Written::changed(),
                };
                self.fence.take().unwrap().settle(written).await?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum How {
    Row,
    Changed,
}

/// All orders of two writers' three steps, and of a reader that fills at any point.
fn interleavings() -> Vec<Vec<usize>> {
    fn extend(left: [usize; 2], so_far: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
        if left == [0, 0] {
            all.push(so_far.clone());
            return;
        }
        for who in 0..2 {
            if left[who] > 0 {
                let mut left = left;
                left[who] -= 1;
                so_far.push(who);
                extend(left, so_far, all);
                so_far.pop();
            }
        }
    }
    let mut all = Vec::new();
    extend([3, 3], &mut Vec::new(), &mut all);
    all
}

matrix! {
    async fn two_writers_in_every_order_end_with_the_newer_row(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        let write = WriteThrough::new(&cache);
        let orders = interleavings();
        assert_eq!(orders.len(), 20);
        for (first, second) in [(How::Row, How::Row), (How::Row, How::Changed), (How::Changed, How::Row)] {
            for (n, order) in orders.iter().enumerate() {
                // A reader comes between each two steps, loads what the table has then, and may store it.
                for reads in [false, true] {
                    let key = format!("{n}-{reads}-{}", matches!(first, How::Row) as u8 + 2 * matches!(second, How::Row) as u8);
                    let mut table = Table::default();
                    let mut writers = [Writer::new(), Writer::new()];
                    for who in order {
                        if reads {
                            let (value, version) = (table.value, table.version);
                            cache.get_or_load(&key, move |load| async move {
                                load.version(version);
                                Ok::<_, redstart::Error>(Some(value))
                            }).await?;
                        }
                        let how = [first, second][*who];
                        writers[*who].step(&write, &key, &mut table, *who as u64 + 1, how).await?;
                    }
                    let now = table.value;
                    let hit = cache.get_or_load(&key, move |_| async move { Ok::<_, redstart::Error>(Some(now)) }).await?;
                    assert_eq!(hit.value.as_deref(), Some(&now), "order {order:?}, readers {reads}");
                    let left: u8 = store.query(redis::cmd("EXISTS").arg(
                        redstart::key::Keys::named(backend.namespace(), "cache", "rows")?.entity(&key)?.part("fence"))).await?;
                    assert_eq!(left, 0, "a fence was left, order {order:?}");
                }
            }
        }
        Ok(())
    }

    async fn a_late_older_row_is_not_stored_although_the_newer_one_was_evicted(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        let write = WriteThrough::new(&cache);
        let (older, newer) = (write.fence("k").await?, write.fence("k").await?);
        assert_eq!(newer.settle(Written::row(2, 2)).await?, CacheUpdate::Stored);
        store.query::<()>(redis::cmd("DEL").arg(redstart::key::Keys::named(backend.namespace(), "cache", "rows")?.entity("k")?.key())).await?;
        assert_eq!(older.settle(Written::row(1, 1)).await?, CacheUpdate::Older);
        assert!(cache.get("k").await?.is_none());
        Ok(())
    }

    async fn nothing_is_filled_while_a_write_is_under_way(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        let (write, rows) = (WriteThrough::new(&cache), Rows::at(1));
        let fence = write.fence("k").await?;
        assert_eq!(rows.through(&cache, "k", Duration::ZERO).await?.value.as_deref(), Some(&1));
        assert!(cache.get("k").await?.is_none(), "filled inside the fence");
        rows.set(2);
        assert_eq!(fence.settle(Written::changed()).await?, CacheUpdate::Removed);
        assert_eq!(rows.through(&cache, "k", Duration::ZERO).await?.value.as_deref(), Some(&2));
        assert!(cache.get("k").await?.is_some());

        // What is there may be served on, and a deleted row is remembered as absent.
        let fence = write.fence("k").await?;
        assert_eq!(cache.get("k").await?.unwrap().value.as_deref(), Some(&2));
        assert_eq!(fence.settle(Written::deleted(5)).await?, CacheUpdate::Stored);
        assert!(cache.get("k").await?.unwrap().value.is_none());
        Ok(())
    }

    async fn a_writer_that_dies_after_its_commit_leaves_nothing_old_beyond_its_fence(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).stale_for(LONG).build()?;
        let lasts = Duration::from_millis(500);
        let write = WriteThrough::new(&cache).fence_for(lasts)?;
        let rows = Rows::at(1);
        rows.through(&cache, "k", Duration::ZERO).await?;
        let fence = write.fence("k").await?;
        rows.set(2); // committed, and then the process is gone without a word
        std::mem::forget(fence);
        pass(&store, lasts + Duration::from_millis(50)).await;
        assert!(eventually(LONG, async || cache.get("k").await.unwrap().is_none()).await);
        assert_eq!(rows.through(&cache, "k", Duration::ZERO).await?.value.as_deref(), Some(&2));
        assert_eq!(cache.get("k").await?.unwrap().value.as_deref(), Some(&2), "and fills are welcome again");
        Ok(())
    }

    async fn a_row_whose_key_was_invalidated_while_it_was_written_is_not_stored(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        let write = WriteThrough::new(&cache);
        let fence = write.fence("k").await?;
        // Row 1 is committed under the fence. Another program commits row 2 and invalidates.
        cache.invalidate("k").await?;
        assert_eq!(fence.settle(Written::row(1, 1)).await?, CacheUpdate::Older);
        assert!(cache.get("k").await?.is_none(), "an old row after an invalidation");
        // The next write is stored again.
        let stored = write.put("k", async { Ok::<_, redstart::Error>(Written::row(3, 3)) }).await?;
        assert_eq!(stored, CacheUpdate::Stored);
        assert_eq!(cache.get("k").await?.unwrap().value.as_deref(), Some(&3));
        Ok(())
    }

    async fn what_is_stored_beside_several_writers_ends_with_the_first_of_their_fences(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        let short = WriteThrough::new(&cache).fence_for(Duration::from_secs(2))?;
        let long = WriteThrough::new(&cache).fence_for(LONG)?;
        let older = long.fence("k").await?;
        // Its writer commits row 2 and is gone without a word.
        std::mem::forget(short.fence("k").await?);
        let other = long.fence("k").await?;
        assert_eq!(older.settle(Written::row(1, 1)).await?, CacheUpdate::Stored);
        pass(&store, Duration::from_millis(2100)).await;
        assert!(eventually(LONG / 2, async || cache.get("k").await.unwrap().is_none()).await, "outlives the fence");
        other.abandon().await;
        Ok(())
    }

    async fn a_row_is_not_stored_after_the_fence_of_its_writer_has_ended(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        let short = WriteThrough::new(&cache).fence_for(Duration::from_millis(400))?;
        let long = WriteThrough::new(&cache).fence_for(LONG)?;
        let late = short.fence("k").await?;
        // Its writer commits row 2 and is gone without a word.
        std::mem::forget(short.fence("k").await?);
        // It keeps the key in which all fences are.
        let other = long.fence("k").await?;
        pass(&store, Duration::from_millis(450)).await;
        assert_eq!(late.settle(Written::row(1, 1)).await?, CacheUpdate::Removed);
        assert!(cache.get("k").await?.is_none());
        other.abandon().await;
        Ok(())
    }

    async fn a_fence_of_the_dead_does_not_outlive_its_time_because_others_write_on(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        let short = WriteThrough::new(&cache).fence_for(Duration::from_millis(200))?;
        let long = WriteThrough::new(&cache).fence_for(LONG)?;
        std::mem::forget(short.fence("k").await?);
        assert_eq!(long.put("k", async { Ok::<_, redstart::Error>(Written::row(1, 1)) }).await?, CacheUpdate::Stored);
        pass(&store, Duration::from_millis(250)).await;
        assert_eq!(long.put("k", async { Ok::<_, redstart::Error>(Written::row(2, 2)) }).await?, CacheUpdate::Stored);
        let entity = redstart::key::Keys::named(backend.namespace(), "cache", "rows")?.entity("k")?;
        let fence: u8 = store.query(redis::cmd("EXISTS").arg(entity.part("fence"))).await?;
        let ttl: i64 = store.query(redis::cmd("PTTL").arg(entity.key())).await?;
        assert_eq!(fence, 0);
        assert!(ttl > 10_000, "stored for {ttl} ms only");
        Ok(())
    }

    async fn a_commit_that_fails_is_too_slow_or_is_dropped_leaves_no_old_value(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        let write = WriteThrough::new(&cache).fence_for(Duration::from_millis(400))?;
        let rows = Rows::at(1);
        for (key, slow) in [("failed", false), ("slow", true)] {
            rows.through(&cache, key, Duration::ZERO).await?;
            let error = write.put(key, async move {
                if slow { std::future::pending::<()>().await; }
                Err::<Written<u64>, _>(std::io::Error::other("deadlock"))
            }).await.unwrap_err();
            assert_eq!((error.is_user(), error.is_timeout(), error.is_in_doubt()), (!slow, slow, slow), "{error}");
            store.settle().await;
            assert!(cache.get(key).await?.is_none(), "{key}");
        }
        // After a failed commit the fence is lifted; after one in doubt it stands until it is over.
        rows.through(&cache, "failed", Duration::ZERO).await?;
        assert!(cache.get("failed").await?.is_some());
        pass(&store, Duration::from_millis(450)).await;
        assert!(eventually(LONG, async || {
            rows.through(&cache, "slow", Duration::ZERO).await.unwrap();
            cache.get("slow").await.unwrap().is_some()
        }).await);
        assert!(WriteThrough::new(&cache).fence_for(Duration::ZERO).is_err());
        Ok(())
    }
}

/// The fence has ended at the server by the time the writer hears of it, and others have cached the old row again.
#[tokio::test]
async fn a_writer_that_hears_of_its_fence_too_late_commits_nothing() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url()).deadline(LONG).connect().await?;
    let cache = Cache::<u64, u64>::builder(&store, "shop", "price").build()?;
    let write = WriteThrough::new(&cache).fence_for(Duration::from_secs(4))?;
    // The script is known, and the connection is there.
    let first = write.put(&1, async { Ok::<_, redstart::Error>(Written::row(1, 1)) });
    assert_eq!(first.await?, CacheUpdate::Stored);
    proxy.delay_replies(Duration::from_millis(2100));
    let mut committed = false;
    let late = write.put(&1, async {
        committed = true;
        Ok::<_, redstart::Error>(Written::row(2, 2))
    });
    let error = late.await.unwrap_err();
    assert!(error.is_timeout() && !error.is_in_doubt(), "{error}");
    assert!(!committed, "it committed behind its fence");
    proxy.delay_replies(Duration::ZERO);
    // Its fence was lifted, or has ended.
    let again = write.put(&1, async { Ok::<_, redstart::Error>(Written::row(3, 3)) });
    assert_eq!(again.await?, CacheUpdate::Stored);
    Ok(())
}

#[tokio::test]
async fn a_commit_ends_with_half_of_its_fence_by_the_clock_of_the_store() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let cache = Cache::<str, u64>::builder(&store, "app", "row").build()?;
    let hour = Duration::from_secs(3600);
    let write = WriteThrough::new(&cache).fence_for(hour)?;
    let begun = tokio::sync::Notify::new();
    let commit = async {
        begun.notify_one();
        std::future::pending::<()>().await;
        Ok::<_, redstart::Error>(Written::row(7, 1))
    };
    let clock = async {
        begun.notified().await;
        store.advance(hour / 2)
    };
    let both = async { tokio::join!(write.put("k", commit), clock) };
    let (put, advanced) = tokio::time::timeout(LONG, both).await?;
    advanced?;
    let error = put.unwrap_err();
    assert!(error.is_timeout() && error.is_in_doubt(), "{error:?}");
    Ok(())
}
