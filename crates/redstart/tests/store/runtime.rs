//! A store is used from any runtime, also from one that did not connect it.

use std::time::{Duration, Instant};

use redstart::{Store, key::Keys};
use redstart_testkit::{Kind, Sentinel, Server, eventually};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made")
}

/// A call ends by its deadline, and after at most one lost deadline the store works.
async fn works(store: &Store) {
    let begun = Instant::now();
    let ping = redis::cmd("PING");
    let mut answered = false;
    while !answered && begun.elapsed() < Duration::from_secs(30) {
        let call = tokio::time::timeout(Duration::from_secs(20), store.query::<String>(&ping));
        answered = call.await.expect("a call ends by its deadline").is_ok();
    }
    assert!(answered, "the store works in this runtime too");
}

#[test]
fn a_call_ends_by_its_deadline_while_the_runtime_that_connected_stands_still() -> anyhow::Result<()>
{
    let (first, second) = (runtime(), runtime());
    let server = first.block_on(Server::builder(Kind::Redis).start())?;
    let url = format!("{}?timeout=500ms", server.url());
    let store = first.block_on(Store::connect(&url))?;
    // Nothing drives the first runtime from here on.
    second.block_on(works(&store));
    // And back.
    first.block_on(works(&store));
    Ok(())
}

/// Callers in a hurry do not decide that a connection is dead. Nobody else looks, and it is left all the same.
#[test]
fn callers_in_a_hurry_leave_a_connection_whose_runtime_stands_still() -> anyhow::Result<()> {
    let (first, second) = (runtime(), runtime());
    let server = first.block_on(Server::builder(Kind::Redis).start())?;
    let url = format!("{}?timeout=1s", server.url());
    let store = first.block_on(Store::connect(&url))?;
    second.block_on(async {
        let hurried = store.within(Duration::from_millis(200));
        let works = eventually(Duration::from_secs(30), async || {
            hurried.query::<()>(&redis::cmd("PING")).await.is_ok()
        });
        assert!(works.await, "every call times out");
    });
    Ok(())
}

#[test]
fn a_store_outlives_the_runtime_that_connected_it() -> anyhow::Result<()> {
    let first = runtime();
    let server = first.block_on(Server::builder(Kind::Redis).start())?;
    let store = first.block_on(Store::connect(&server.url()))?;
    drop(first);
    for _ in 0..3 {
        runtime().block_on(works(&store));
    }
    Ok(())
}

/// The tasks that listen to the sentinels ended with the first runtime; the next connection starts them again.
#[test]
fn fault_a_replaced_master_is_left_at_once_in_a_second_runtime_too() -> anyhow::Result<()> {
    let first = runtime();
    let group = first.block_on(Sentinel::start(Kind::Redis))?;
    let store = first.block_on(Store::connect(&group.url()))?;
    drop(first);
    runtime().block_on(leaves_a_replaced_master_at_once(&store, &group))
}

async fn leaves_a_replaced_master_at_once(store: &Store, group: &Sentinel) -> anyhow::Result<()> {
    works(store).await;
    let port = async || {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg("port");
        let (_, port) = store.query::<(String, u16)>(&get).await.ok()?;
        Some(port)
    };
    let old = group.master().await?;
    assert_eq!(port().await, Some(group.server(old).port()));
    let new = Some(group.server(group.failover().await?).port());
    let follows = eventually(Duration::from_secs(30), async || port().await == new);
    assert!(follows.await, "the store stays with the old master");
    assert_eq!(
        group.server(old).role().await?,
        "master",
        "the store was faster than the sentinels"
    );
    Ok(())
}

/// The runtime that has the connections keeps its own tasks, whatever other runtimes come and go.
#[test]
fn fault_a_replaced_master_is_left_at_once_after_another_runtime_has_come_and_gone()
-> anyhow::Result<()> {
    let first = runtime();
    let group = first.block_on(Sentinel::start(Kind::Redis))?;
    let store = first.block_on(Store::connect(&group.url()))?;
    first.block_on(works(&store));
    let key = Keys::new("app", "x")?.entity("x")?;
    let second = runtime();
    second.block_on(async {
        let mut own = store.dedicated(key.key());
        let ping = redis::cmd("PING");
        own.query::<String>(&ping, Duration::from_secs(30)).await
    })?;
    drop(second);
    first.block_on(leaves_a_replaced_master_at_once(&store, &group))
}

/// Without the budget, a task that awaits only the embedded engine would never let another run.
#[test]
fn awaiting_the_embedded_engine_lets_other_tasks_run() -> anyhow::Result<()> {
    runtime().block_on(async {
        let store = Store::connect("memory://").await?;
        let other = tokio::spawn(async {});
        let ping = redis::cmd("PING");
        let mut calls = 0;
        while !other.is_finished() && calls < 10_000 {
            store.query::<String>(&ping).await?;
            calls += 1;
        }
        assert!(
            other.is_finished(),
            "no other task ran during {calls} calls"
        );
        Ok(())
    })
}

#[test]
fn awaiting_a_connection_to_the_embedded_engine_lets_other_tasks_run() -> anyhow::Result<()> {
    runtime().block_on(async {
        let store = Store::connect("memory://").await?;
        let key = Keys::new("app", "x")?.entity("x")?;
        let mut own = store.dedicated(key.key());
        let ping = redis::cmd("PING");
        let mut two = redis::pipe();
        two.cmd("PING").cmd("PING");
        for in_pipelines in [false, true] {
            let other = tokio::spawn(async {});
            let mut calls = 0;
            while !other.is_finished() && calls < 10_000 {
                match in_pipelines {
                    false => drop(own.query::<String>(&ping, Duration::ZERO).await?),
                    true => own.pipeline::<()>(&two).await?,
                }
                calls += 1;
            }
            assert!(
                other.is_finished(),
                "no other task ran during {calls} calls"
            );
        }
        Ok(())
    })
}
