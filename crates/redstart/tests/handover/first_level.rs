//! What a first level of a cache keeps through a hand-over.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Error, Store,
    caching::{Cache, Hit, HitSource, L1, Loaded},
};
use redstart_engine::Engine;
use redstart_testkit::{Kind, Server};

use crate::{Running, connect, plan, until};

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(3600);

fn cache(store: &Store, l1: &L1) -> redstart::Result<Cache<str, u64>> {
    let builder = Cache::builder(store, "move", "rows").ttl(LONG);
    builder.l1(l1.clone()).build()
}

async fn read(cache: &Cache<str, u64>, row: &Arc<AtomicU64>) -> redstart::Result<Hit<u64>> {
    let row = row.clone();
    let load = async move { Ok::<_, Error>(Loaded::Found(row.load(Ordering::SeqCst))) };
    cache.get_or_load("k", move |_| load).await
}

async fn until_near(what: &str, cache: &Cache<str, u64>, row: &Arc<AtomicU64>, value: u64) {
    until(what, async || {
        let hit = read(cache, row).await;
        hit.is_ok_and(|hit| hit.source == HitSource::L1 && hit.value.as_deref() == Some(&value))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_first_level_hears_of_changes_after_a_hand_over() -> anyhow::Result<()> {
    for l1 in [L1::tracking(100), L1::pubsub(100)] {
        let l1 = l1.max_age(LONG);
        let running = Running::start(Engine::new()).await?;
        let (near, far) = (connect(&running.url).await?, connect(&running.url).await?);
        let (reader, writer) = (cache(&near, &l1)?, cache(&far, &l1)?);
        let row = Arc::new(AtomicU64::new(1));
        until_near("the first level has it", &reader, &row, 1).await;
        let server = Server::builder(Kind::Redis).start().await?;
        plan(&running.url, &server).run(|_| (), pending()).await?;
        // The reader has asked for nothing since: only its line can tell it.
        for value in 2..4 {
            row.store(value, Ordering::SeqCst);
            writer.invalidate("k").await?;
            until_near("the change is seen", &reader, &row, value).await;
        }
    }
    Ok(())
}
