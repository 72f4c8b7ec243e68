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

    for tasks in [1, 64, 512] {
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
                0.95,
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
                0.95,
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
                0.95,
                tasks,
                ours,
                theirs,
            )
            .await?;
    }
    recovery(bench).await
}

const FAULTS: usize = 10;

/// How long after the server is back the store works again, at worst, against the 2 s that it promises. Calls go on
/// all the time, as an application's would.
async fn recovery(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    for fault in [
        "killed and restarted",
        "connections cut and refused",
        "stopped and continued",
        "black-holed",
    ] {
        let url = match fault {
            "connections cut and refused" | "black-holed" => proxy.url().to_owned(),
            _ => server.url(),
        };
        let store = Store::builder(&url)
            .deadline(Duration::from_millis(500))
            .connect()
            .await?;
        let mut worst = Duration::ZERO;
        for round in 0..FAULTS {
            store.query::<redis::Value>(&redis::cmd("PING")).await?;
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
            let calls = tokio::spawn({
                let store = store.clone();
                async move {
                    loop {
                        let answer = store.query::<redis::Value>(&redis::cmd("PING")).await;
                        if answer.is_ok() {
                            return Instant::now();
                        }
                    }
                }
            });
            tokio::time::sleep(away).await;
            match fault {
                "killed and restarted" => server.restart().await?,
                "stopped and continued" => server.resume()?,
                _ => proxy.pass().await,
            }
            let back = Instant::now();
            worst = worst.max(calls.await?.saturating_duration_since(back));
        }
        bench.note(&format!("{fault}: at worst {worst:?} of {FAULTS} rounds"));
        let worst = worst.as_secs_f64().max(1e-6) * 1e6;
        let name = format!("works again, server {fault}");
        bench.cost(&name, "the promised 2 s", Unit::Micros, worst, 2e6, 1.0);
    }
    Ok(())
}
