//! Several processes on one store.

use std::time::Duration;

use redstart::{
    Store,
    caching::{Cache, Loaded},
};
use redstart_testkit::{
    Backend, Child, Kind, MonitorTap, Server, child, eventually, matrix, scale, unique_namespace,
};

use crate::LONG;

/// A loader that counts in the store itself how often it ran, over all processes.
async fn counted(store: Store, counter: String, takes: Duration) -> redstart::Result<Loaded<u64>> {
    store.query::<()>(redis::cmd("INCR").arg(&counter)).await?;
    tokio::time::sleep(takes).await;
    Ok(Loaded::Found(7))
}

async fn crowd(
    store: &Store,
    cache: &Cache<str, u64>,
    counter: &str,
    callers: u64,
) -> anyhow::Result<()> {
    let calls: Vec<_> = (0..callers)
        .map(|_| {
            let (store, cache, counter) = (store.clone(), cache.clone(), counter.to_owned());
            tokio::spawn(async move {
                let load = |_| counted(store, counter, Duration::from_millis(300));
                cache.get_or_load("cold", load).await
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await??.value.as_deref(), Some(&7));
    }
    Ok(())
}

matrix! {
    processes:
    async fn four_processes_with_many_callers_each_load_a_cold_key_once(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let counter = format!("{}:loads", backend.namespace());
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace()).ttl(LONG).build()?;
        if child::role().is_some() {
            child::say("ready");
            while let Some(_go) = child::hear() {
                crowd(&store, &cache, &counter, scale(100, "cache process callers")).await?;
                child::say(cache.stats().waits);
            }
            return Ok(());
        }
        let mut children = Vec::new();
        for _ in 0..4 {
            children.push(Child::of(backend.test()).namespace(backend.namespace()).spawn()?);
        }
        for child in &mut children {
            assert_eq!(child.line().await?, "ready");
        }
        for child in &mut children {
            child.tell("go")?;
        }
        let mut waits = 0;
        for child in &mut children {
            waits += child.line().await?.parse::<u64>()?;
        }
        let loads: u64 = store.query(redis::cmd("GET").arg(&counter)).await?;
        assert_eq!(loads, 1);
        assert!(waits <= 3, "{waits} waits in three processes");
        Ok(())
    }

    async fn a_loader_killed_with_its_process_is_replaced_and_a_late_fill_is_refused(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::builder(backend.url()).deadline(Duration::from_millis(250)).connect().await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace())
            .ttl(LONG)
            .load_timeout(Duration::ZERO, Duration::from_millis(500))
            .build()?;
        if let Some(role) = child::role() {
            let hit = cache.get_or_load(&role, |_| async {
                child::say("loading");
                tokio::task::spawn_blocking(child::hear).await?;
                Ok::<_, tokio::task::JoinError>(Some(1))
            }).await;
            child::say(format!("{} {}", hit.is_ok(), cache.stats().refused_fills));
            return Ok(());
        }
        let child = |role: &str| Child::of(backend.test()).namespace(backend.namespace()).role(role).spawn();
        let mut killed = child("killed")?;
        assert_eq!(killed.line().await?, "loading");
        killed.kill9();
        let hit = cache.get_or_load("killed", |_| async { Ok::<_, redstart::Error>(Some(2)) }).await?;
        assert_eq!(hit.value.as_deref(), Some(&2));
        assert_eq!(cache.stats().waits, 1);

        // Stopped in its load for longer than its lease, it comes back with an old row.
        let mut frozen = child("frozen")?;
        assert_eq!(frozen.line().await?, "loading");
        frozen.pause()?;
        let hit = cache.get_or_load("frozen", |_| async { Ok::<_, redstart::Error>(Some(2)) }).await?;
        assert_eq!(hit.value.as_deref(), Some(&2));
        frozen.tell("done")?;
        frozen.resume()?;
        let said = frozen.line().await?;
        // Its load was over its hard limit, or its fill was refused: either way the new row stays.
        assert!(said == "false 0" || said == "true 1", "{said}");
        assert_eq!(cache.get("frozen").await?.unwrap().value.as_deref(), Some(&2));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_are_woken_and_do_not_poll() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let namespace = unique_namespace("poll");
        let (one, other) = (
            Store::connect(&server.url()).await?,
            Store::connect(&server.url()).await?,
        );
        let build = |store| {
            Cache::<str, u64>::builder(store, &namespace)
                .ttl(LONG)
                .load_timeout(Duration::ZERO, 5 * LONG)
                .build()
        };
        let (loading, waiting) = (build(&one)?, build(&other)?);
        // Scripts are known before we look.
        waiting
            .get_or_load("warm", |_| async { Ok::<_, redstart::Error>(Some(1)) })
            .await?;

        let go = std::sync::Arc::new(tokio::sync::Notify::new());
        let load = tokio::spawn({
            let (loading, go) = (loading.clone(), go.clone());
            async move {
                loading
                    .get_or_load("k", |_| async move {
                        go.notified().await;
                        Ok::<_, redstart::Error>(Some(1))
                    })
                    .await
            }
        });
        assert!(eventually(LONG, async || loading.stats().loads == 1).await);
        let tap = MonitorTap::start(&server).await?;
        let calls: Vec<_> = (0..50)
            .map(|_| {
                let waiting = waiting.clone();
                tokio::spawn(async move {
                    waiting
                        .get_or_load("k", |_| async { Ok::<_, redstart::Error>(Some(2)) })
                        .await
                })
            })
            .collect();
        assert!(
            eventually(LONG, async || {
                tap.round_trips(&namespace)
                    .await
                    .unwrap()
                    .iter()
                    .any(|seen| seen.name() == "SSUBSCRIBE")
            })
            .await
        );
        // Long enough for any poll to show.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let quiet = tap.round_trips(&namespace).await?;
        go.notify_one();
        for call in calls {
            let woken = tokio::time::timeout(LONG, call)
                .await
                .expect("nobody woke them");
            assert_eq!(woken??.value.as_deref(), Some(&1));
        }
        load.await??;
        let reads = quiet.iter().filter(|seen| seen.name() == "GET").count();
        let others: Vec<_> = quiet
            .iter()
            .map(|seen| seen.name())
            .filter(|name| name != "GET" && name != "HMGET")
            .collect();
        assert!(reads <= 50, "{reads} reads for 50 callers");
        let tags = quiet.iter().filter(|seen| seen.name() == "HMGET").count();
        assert!(tags <= 16, "{tags} looks at the tags, in one round trip");
        // One asks for the lease, subscribes, and asks again; nobody else does anything.
        assert_eq!(others, ["EVALSHA", "SSUBSCRIBE", "EVALSHA"], "{others:?}");
        assert_eq!(waiting.stats().loads, 1, "only the warming one");
    }
    Ok(())
}
