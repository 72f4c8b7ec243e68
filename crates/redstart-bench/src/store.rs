//! The cost of the seam: a command through a `Store` against the same command on bare redis-rs.

use std::time::{Duration, Instant};

use redis::{Script as BareScript, aio::MultiplexedConnection};
use redstart::{Store, key::Keys, script::Script};
use redstart_testkit::{Kind, Proxy, Server};

use crate::measure::{Bench, Unit};

const SOURCE: &str = "return redis.call('GET', KEYS[1])";
static READ: Script = Script::new("bench.read", SOURCE);

pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let _watched = bench.watch(&server);
    bench.note(&format!(
        "redis-server {}, redis-rs 1.8",
        server.info("redis_version").await?
    ));
    let store = Store::connect(&server.url()).await?;
    let client = redis::Client::open(server.url())?;
    let bare: MultiplexedConnection = client.get_multiplexed_async_connection().await?;
    let entity = Keys::new("bench", "seam")?.entity("k")?;
    let key = entity.key().clone();
    store
        .query::<()>(redis::cmd("SET").arg(&key).arg("value"))
        .await?;

    for (tasks, floor) in [(1, 0.85), (64, 1.0), (512, 1.1)] {
        let (s, b, k) = (store.clone(), bare.clone(), key.clone());
        let ours = move |_| {
            let (store, key) = (s.clone(), k.clone());
            async move {
                store.query::<Vec<u8>>(redis::cmd("GET").arg(&key)).await?;
                Ok(())
            }
        };
        let k = key.clone();
        let theirs = move |_| {
            let (mut bare, key) = (b.clone(), k.clone());
            async move {
                redis::cmd("GET")
                    .arg(&key)
                    .query_async::<Vec<u8>>(&mut bare)
                    .await?;
                Ok(())
            }
        };
        bench
            .rate(
                &format!("GET, {tasks} tasks"),
                "redis-rs",
                floor,
                tasks,
                ours,
                theirs,
            )
            .await?;

        let (s, b, k) = (store.clone(), bare.clone(), key.clone());
        let ours = move |_| {
            let (store, key) = (s.clone(), k.clone());
            async move {
                Ok(store
                    .query::<()>(redis::cmd("SET").arg(&key).arg("value"))
                    .await?)
            }
        };
        let k = key.clone();
        let theirs = move |_| {
            let (mut bare, key) = (b.clone(), k.clone());
            async move {
                Ok(redis::cmd("SET")
                    .arg(&key)
                    .arg("value")
                    .query_async::<()>(&mut bare)
                    .await?)
            }
        };
        bench
            .rate(
                &format!("SET, {tasks} tasks"),
                "redis-rs",
                floor,
                tasks,
                ours,
                theirs,
            )
            .await?;

        let (s, e) = (store.clone(), entity.clone());
        let ours = move |_| {
            let (store, entity) = (s.clone(), e.clone());
            async move {
                READ.on(&entity).key().run::<Vec<u8>>(&store).await?;
                Ok(())
            }
        };
        let (b, k, script) = (
            bare.clone(),
            key.clone(),
            std::sync::Arc::new(BareScript::new(SOURCE)),
        );
        let theirs = move |_| {
            let (mut bare, key, script) = (b.clone(), k.clone(), script.clone());
            async move {
                script.key(&key).invoke_async::<Vec<u8>>(&mut bare).await?;
                Ok(())
            }
        };
        bench
            .rate(
                &format!("EVALSHA, {tasks} tasks"),
                "redis-rs",
                floor,
                tasks,
                ours,
                theirs,
            )
            .await?;
    }
    large(bench, &store, &bare).await?;
    loaded(bench, &store, &bare).await?;
    recovery(bench).await
}

/// Values of some kilobytes, where copies count.
async fn large(
    bench: &mut Bench,
    store: &Store,
    bare: &MultiplexedConnection,
) -> anyhow::Result<()> {
    for size in [1, 16, 64] {
        let key = format!("bench:large:{size}");
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(vec![b'x'; size * 1024]);
        store.query::<()>(&set).await?;
        let (s, b, k) = (store.clone(), bare.clone(), key.clone());
        let ours = move |_| {
            let (store, key) = (s.clone(), k.clone());
            async move {
                let value: Vec<u8> = store.query(redis::cmd("GET").arg(&key)).await?;
                anyhow::ensure!(value.len() == size * 1024);
                Ok(())
            }
        };
        let theirs = move |_| {
            let (mut bare, key) = (b.clone(), key.clone());
            async move {
                let value: Vec<u8> = redis::cmd("GET").arg(&key).query_async(&mut bare).await?;
                anyhow::ensure!(value.len() == size * 1024);
                Ok(())
            }
        };
        let name = format!("GET of {size} KiB, 64 tasks");
        bench.rate(&name, "redis-rs", 0.9, 64, ours, theirs).await?;
    }
    Ok(())
}

/// Latency while calls come at half of the rate that is possible.
async fn loaded(
    bench: &mut Bench,
    store: &Store,
    bare: &MultiplexedConnection,
) -> anyhow::Result<()> {
    let (s, b) = (store.clone(), bare.clone());
    let ours = move |_| {
        let store = s.clone();
        async move {
            store
                .query::<Option<Vec<u8>>>(redis::cmd("GET").arg("bench:due"))
                .await?;
            Ok(())
        }
    };
    let theirs = move |_| {
        let mut bare = b.clone();
        async move {
            let mut get = redis::cmd("GET");
            get.arg("bench:due")
                .query_async::<Option<Vec<u8>>>(&mut bare)
                .await?;
            Ok(())
        }
    };
    bench
        .open_loop("GET", "redis-rs", [0.8, 0.7, 0.6], ours, theirs)
        .await
}

const FAULTS: usize = 10;
const FAULTY: [&str; 4] = [
    "killed and restarted",
    "connections cut and refused",
    "stopped and continued",
    "black-holed",
];

/// How long after the server is back a client works again. Calls go on all the time, as an application's would.
///
/// The peer is redis-rs's ConnectionManager, which its users take for this, with the same time-out and a delay between
/// attempts that is capped at half a second; its default has no cap.
async fn recovery(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let patience = Duration::from_millis(500);
    for fault in FAULTY {
        let url = match fault {
            "connections cut and refused" | "black-holed" => proxy.url().to_owned(),
            _ => server.url(),
        };
        let store = Store::builder(&url).deadline(patience).connect().await?;
        let config = redis::aio::ConnectionManagerConfig::new()
            .set_response_timeout(Some(patience))
            .set_connection_timeout(Some(patience))
            .set_max_delay(patience);
        let manager = redis::aio::ConnectionManager::new_with_config(
            redis::Client::open(url.as_str())?,
            config,
        )
        .await?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..FAULTS {
            store.query::<redis::Value>(&redis::cmd("PING")).await?;
            redis::cmd("PING").exec_async(&mut manager.clone()).await?;
            match fault {
                "killed and restarted" => server.kill9(),
                "stopped and continued" => server.pause()?,
                "black-holed" => proxy.black_hole(),
                _ => {
                    proxy.refuse().await;
                    proxy.cut().await?;
                }
            }
            // From a moment up to some seconds, so that every pause between attempts has come.
            let away = Duration::from_millis(50 + 2_950 * round as u64 / FAULTS as u64);
            let our_calls = tokio::spawn({
                let store = store.clone();
                async move {
                    while store
                        .query::<redis::Value>(&redis::cmd("PING"))
                        .await
                        .is_err()
                    {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    Instant::now()
                }
            });
            let their_calls = tokio::spawn({
                let mut manager = manager.clone();
                async move {
                    while redis::cmd("PING").exec_async(&mut manager).await.is_err() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    Instant::now()
                }
            });
            tokio::time::sleep(away).await;
            match fault {
                "killed and restarted" => server.restart().await?,
                "stopped and continued" => server.resume()?,
                _ => proxy.pass().await,
            }
            let back = Instant::now();
            let since =
                |then: Instant| then.saturating_duration_since(back).as_secs_f64().max(1e-6) * 1e6;
            ours.push(since(our_calls.await?));
            theirs.push(since(their_calls.await?));
        }
        let worst = |times: &[f64]| times.iter().fold(0.0, |a: f64, b| a.max(*b)) / 1e3;
        bench.note(&format!(
            "{fault}: at worst {:.1} ms of {FAULTS} rounds, ConnectionManager {:.1} ms",
            worst(&ours),
            worst(&theirs)
        ));
        anyhow::ensure!(worst(&ours) < 2_000.0, "the promise is 2 s");
        let name = format!("works again, server {fault}");
        // After a deadline without an answer our store treats the server as down, and calls fail at once. The first call
        // that succeeds is then a later one, on a new connection. ConnectionManager lets each call wait for its answer.
        let floor = match fault {
            "stopped and continued" | "black-holed" => 0.1,
            _ => 0.9,
        };
        let peer = "ConnectionManager";
        bench.costs_of(&name, peer, Unit::Micros, floor, ours, theirs);
    }
    Ok(())
}
