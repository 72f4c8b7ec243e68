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
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        if child::role().is_some() {
            child::say("ready");
            while let Some(_go) = child::hear() {
                crowd(&store, &cache, &counter, scale(500, "cache process callers")).await?;
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
        // Longer than a busy machine holds up a request; a lease lasts that much longer, too.
        let store = Store::builder(backend.url()).deadline(Duration::from_secs(2)).connect().await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows")
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

        // Stopped in its load for longer than its lease, it returns with an old row.
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
            Cache::<str, u64>::builder(store, &namespace, "rows")
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
            .filter(|name| name != "GET" && name != "ZMSCORE")
            .collect();
        assert!(reads <= 50, "{reads} reads for 50 callers");
        let tags = quiet.iter().filter(|seen| seen.name() == "ZMSCORE").count();
        assert!(tags <= 16, "{tags} looks at the tags, in one round trip");
        // One asks for the lease, subscribes, and asks again; nobody else does anything.
        assert_eq!(others, ["EVALSHA", "SSUBSCRIBE", "EVALSHA"], "{others:?}");
        assert_eq!(waiting.stats().loads, 1, "only the warming one");
    }
    Ok(())
}

const CROWD: &str = "process::a_crowd_in_four_processes_wakes_with_the_fill";
const CALLERS: usize = 500;

fn micros() -> u64 {
    // One clock for all processes of a machine.
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_micros() as u64
}

/// In one of four processes: asks for a key with many callers at once and says how long after the load each was answered.
async fn one_of_four(url: &str, namespace: &str) -> anyhow::Result<()> {
    let store = Store::connect(url).await?;
    let cache: Cache<str, u64> = Cache::builder(&store, namespace, "rows")
        .ttl(LONG)
        .load_timeout(Duration::ZERO, 5 * LONG)
        .build()?;
    child::say("ready");
    while let Some(key) = tokio::task::spawn_blocking(child::hear).await? {
        let calls: Vec<_> = (0..CALLERS)
            .map(|_| {
                let (store, cache, key) = (store.clone(), cache.clone(), key.clone());
                tokio::spawn(async move {
                    let gate = redstart::key::Keys::new("gate", "gate")?.entity(&key)?;
                    let load = move |_| async move {
                        let mut line = store.dedicated(gate.key());
                        let mut wait = redis::cmd("BLPOP");
                        wait.arg(gate.key()).arg(60);
                        line.query::<redis::Value>(&wait, LONG).await?;
                        Ok::<_, redstart::Error>(Loaded::Found(micros()))
                    };
                    let filled = cache.get_or_load(&key, load).await?.value;
                    Ok::<_, redstart::Error>(micros() - filled.as_deref().copied().unwrap_or(0))
                })
            })
            .collect();
        let mut took = Vec::with_capacity(CALLERS);
        for call in calls {
            took.push(call.await??.to_string());
        }
        child::say(format!("{} {}", cache.stats().loads, took.join(",")));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_in_four_processes_wakes_with_the_fill() -> anyhow::Result<()> {
    if child::role().is_some() {
        return one_of_four(&std::env::var("CROWD_URL")?, &std::env::var("CROWD_NS")?).await;
    }
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let namespace = unique_namespace("crowd");
        let mut children = Vec::new();
        for _ in 0..4 {
            let child = Child::of(CROWD)
                .env("CROWD_URL", &server.url())
                .env("CROWD_NS", &namespace);
            children.push(child.spawn()?);
        }
        for child in &mut children {
            assert_eq!(child.line().await?, "ready");
        }
        let mut best = u64::MAX;
        let rounds = scale(6, "cache crowd rounds");
        for round in 0..rounds {
            let key = format!("cold-{round}");
            let asked: u64 = calls(&server, "get").await?;
            // MONITOR slows the server down, so only the first round is looked at, and only the others are measured.
            let tap = match round {
                0 => Some(MonitorTap::start(&server).await?),
                _ => None,
            };
            for child in &mut children {
                child.tell(&key)?;
            }
            let channel = redstart::key::Keys::named(&namespace, "cache", "rows")?
                .entity(&key)?
                .channel("wake");
            let waiting = eventually(LONG, async || {
                let (_, heard): (String, u64) = server
                    .query(&["PUBSUB", "SHARDNUMSUB", channel.as_str()])
                    .await
                    .unwrap();
                // One of each caller, and one in each of the seven requests for the lease.
                let reads = calls(&server, "get").await.unwrap() - asked;
                heard == 3 && reads >= 4 * CALLERS as u64 + 7
            });
            assert!(waiting.await, "2,000 callers and three ears");
            if let Some(tap) = &tap {
                // The three ask again once they listen; after that, long enough for any poll to show, nothing.
                let asks = async || {
                    let seen = tap.round_trips(&namespace).await.unwrap();
                    seen.iter().filter(|seen| seen.name() == "EVALSHA").count()
                };
                assert!(eventually(LONG, async || asks().await >= 7).await);
                tap.clear().await?;
                tokio::time::sleep(Duration::from_millis(500)).await;
                let polls = tap.round_trips(&namespace).await?;
                assert!(polls.is_empty(), "{kind:?}: {polls:?}");
            }
            let gate = redstart::key::Keys::new("gate", "gate")?.entity(&key)?;
            server
                .command(&["LPUSH", &gate.key().to_string(), "go"])
                .await?;
            let (mut took, mut loads, mut woken) = (Vec::new(), 0, 0);
            for child in &mut children {
                let line = child.line().await?;
                let (so_far, times) = line.split_once(' ').unwrap();
                loads += so_far.parse::<u64>()?;
                let times = times.split(',').map(str::parse);
                let times = times.collect::<Result<Vec<u64>, _>>()?;
                woken = times.iter().copied().min().unwrap_or(0).max(woken);
                took.extend(times);
            }
            assert_eq!(loads, round + 1, "one load per key, over all processes");
            took.sort_unstable();
            let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
            println!(
                "{kind:?} round {round}: {} callers, p50 {p50} µs, p99 {p99} µs after the load; the last process woke after {woken} µs",
                took.len(),
            );
            if tap.is_none() {
                best = best.min(p99);
            }
        }
        // The best of some rounds: a machine that does something else can only make it longer. Unoptimised code takes
        // that much longer to answer 2,000 callers on a few cores, and a poll would still be seen.
        let bound = if cfg!(debug_assertions) {
            100_000
        } else {
            5_000
        };
        assert!(best <= bound, "{kind:?}: best p99 {best} µs");
    }
    Ok(())
}

/// How often a command was called, without disturbing anybody.
async fn calls(server: &Server, command: &str) -> anyhow::Result<u64> {
    let info: String = server.query(&["INFO", "commandstats"]).await?;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    Ok(match line.and_then(|line| line.split(',').next()) {
        Some(count) => count.parse()?,
        None => 0,
    })
}
