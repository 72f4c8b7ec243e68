//! The embedded engine against a redis-server on loopback, one caller each.

use redstart::{Store, key::Keys};
use redstart_testkit::{Kind, Server};

use crate::measure::Bench;

pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    bench.note(&format!(
        "redis-server {}",
        server.info("redis_version").await?
    ));
    let remote = Store::connect(&server.url()).await?;
    let memory = Store::connect("memory://").await?;
    let key = Keys::new("bench", "engine")?.entity("k")?.key().clone();

    for name in ["SET", "GET"] {
        let call = |store: &Store| {
            let (store, key) = (store.clone(), key.clone());
            move |_| {
                let (store, key) = (store.clone(), key.clone());
                async move {
                    let mut cmd = redis::cmd(name);
                    cmd.arg(&key);
                    if name == "SET" {
                        cmd.arg("value");
                    }
                    Ok(drop(store.query::<redis::Value>(&cmd).await?))
                }
            }
        };
        bench
            .rate(
                &format!("{name}, one caller"),
                "redis-server",
                15.0,
                1,
                call(&memory),
                call(&remote),
            )
            .await?;
    }
    Ok(())
}
