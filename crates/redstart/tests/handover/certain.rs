//! What a hand-over may and may not do: one at a time, only where the data fits, and what has moved stays moved.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use redstart::{
    Store,
    store::{Handover, HandoverStep},
};
use redstart_engine::{Engine, Fsync};
use redstart_testkit::{Kind, Proxy, Server};
use tokio::runtime::Handle;

use crate::{PATIENCE, PAUSE, Running, connect, get, plan, raw, until};

async fn set(store: &Store, key: &str, value: impl redis::ToRedisArgs) -> redstart::Result<()> {
    store.query(redis::cmd("SET").arg(key).arg(value)).await
}

/// The engine does as it is told, nobody hears of it, and it cannot be reached for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_move_whose_answer_was_lost_is_not_undone() -> anyhow::Result<()> {
    let running = Running::start(Engine::new()).await?;
    let store = connect(&running.url).await?;
    set(&store, "a", 1).await?;
    let server = Server::builder(Kind::Redis).start().await?;
    // The proxy passes the copy on when there is more than it.
    raw(&running.url, "CONFIG SET repl-ping-replica-period 1").await?;
    let proxy = Arc::new(Proxy::to(running.url.trim_start_matches("redis://")).await?);
    let handover = Handover::builder(proxy.url(), &server.url())
        .longest_pause(PAUSE)
        .build()?;
    let between = proxy.clone();
    let told = move |step: &HandoverStep| {
        if *step == HandoverStep::Promoted {
            between.drop_reply_to("COMMIT");
            tokio::task::block_in_place(|| Handle::current().block_on(between.refuse()));
            let later = between.clone();
            tokio::spawn(async move {
                while later.stats().sprung == 0 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                // Some attempts find nobody.
                tokio::time::sleep(Duration::from_millis(300)).await;
                later.pass().await;
            });
        }
    };
    let report = handover.run(told, pending()).await?;
    let refusal = format!("-REDIRECT {}\r\n", report.place);
    assert_eq!(raw(&running.url, "GET a").await?, refusal);
    // Whoever undoes a hand-over now undoes nothing.
    let abort = "REDSTART HANDOVER ABORT somebody";
    assert_eq!(raw(&running.url, abort).await?, refusal);
    assert_eq!(raw(&running.url, "GET a").await?, refusal);
    assert_eq!(get(&store, "a").await?.as_deref(), Some("1"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_second_hand_over_is_refused_and_undoes_nothing_of_the_first() -> anyhow::Result<()> {
    let running = Running::start(Engine::new()).await?;
    let store = connect(&running.url).await?;
    set(&store, "a", 1).await?;
    let (first, second) = (
        Server::builder(Kind::Redis).start().await?,
        Server::builder(Kind::Valkey).start().await?,
    );
    let (reached, at) = tokio::sync::oneshot::channel();
    let (go_on, gone_on) = mpsc::channel::<()>();
    let mut reached = Some(reached);
    let told = move |step: &HandoverStep| {
        let comparing = matches!(step, HandoverStep::Comparing(..));
        if let Some(reached) = reached.take_if(|_| comparing) {
            let _ = reached.send(());
            let _ = gone_on.recv_timeout(PATIENCE);
        }
    };
    let handover = plan(&running.url, &first);
    // It stands still in the middle, with its thread.
    let moving = tokio::task::spawn_blocking(move || -> anyhow::Result<_> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        Ok(runtime.block_on(handover.run(told, pending()))?)
    });
    at.await?;
    let refused = plan(&running.url, &second).run(|_| (), pending()).await;
    let refused = refused.expect_err("there is another one");
    assert!(
        refused.to_string().contains("another hand-over"),
        "{refused}"
    );
    assert!(!refused.is_in_doubt(), "{refused}");
    go_on.send(())?;
    let report = moving.await??;
    let refusal = format!("-REDIRECT {}\r\n", report.place);
    assert_eq!(raw(&running.url, "GET a").await?, refusal);
    assert_eq!(get(&store, "a").await?.as_deref(), Some("1"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_does_not_fit_is_not_moved() -> anyhow::Result<()> {
    let running = Running::start(Engine::new()).await?;
    let store = connect(&running.url).await?;
    let value = "x".repeat(100_000);
    for n in 0..100 {
        set(&store, &format!("key{n}"), &value).await?;
    }
    let server = Server::builder(Kind::Redis)
        .config("maxmemory", "5mb")
        .config("maxmemory-policy", "allkeys-random")
        .start()
        .await?;
    let refused = plan(&running.url, &server).run(|_| (), pending()).await;
    let refused = refused.expect_err("it does not fit");
    assert!(refused.is_config(), "{refused}");
    assert!(refused.to_string().contains("maxmemory"), "{refused}");
    // It was found before anything was done.
    let there = connect(&server.url()).await?;
    let keys: u64 = there.query(&redis::cmd("DBSIZE")).await?;
    assert_eq!(keys, 0);
    set(&store, "more", 1).await?;
    // More room is enough.
    let mut raise = redis::cmd("CONFIG");
    raise.arg("SET").arg("maxmemory").arg("100mb");
    there.query::<()>(&raise).await?;
    plan(&running.url, &server).run(|_| (), pending()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_come_back_when_the_data_does() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let open = || Engine::builder().append_only(dir.path(), Fsync::No).build();
    let running = Running::start(open()?).await?;
    let store = connect(&running.url).await?;
    set(&store, "a", "here").await?;
    let server = Server::builder(Kind::Redis).start().await?;
    plan(&running.url, &server).run(|_| (), pending()).await?;
    set(&store, "a", "there").await?;
    assert_eq!(get(&store, "a").await?.as_deref(), Some("there"));
    server.kill9();
    let asked = tokio::spawn({
        let store = store.clone();
        async move { get(&store, "a").await }
    });
    // Nothing of this is the engine's to decide.
    assert!(raw(&running.url, "GET a").await?.starts_with("-REDIRECT"));
    let back = raw(&running.url, "REDSTART HANDOVER RETURN").await?;
    assert_eq!(back, "+OK\r\n");
    assert_eq!(asked.await??.as_deref(), Some("here"));
    set(&store, "b", 1).await?;
    assert_eq!(raw(&running.url, "GET b").await?, "$1\r\n");
    Ok(())
}

/// The service that has the engine writes all the time, with one command and with several.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_engine_moves_while_its_own_program_writes() -> anyhow::Result<()> {
    let engine = Engine::new();
    let own = Store::try_from(engine.clone())?;
    let running = Running::start(engine).await?;
    let server = Server::builder(Kind::Redis).start().await?;
    let written = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for several in [false, true] {
        let (own, written) = (own.clone(), written.clone());
        writers.push(tokio::spawn(async move {
            let mut pipeline = redis::pipe();
            pipeline.cmd("GET").arg("n").ignore();
            pipeline.cmd("INCR").arg("n").ignore();
            loop {
                let done = match several {
                    true => own.pipeline::<()>(&pipeline).await,
                    false => own.query::<()>(redis::cmd("INCR").arg("n")).await,
                };
                match done {
                    Ok(()) => drop(written.fetch_add(1, Ordering::Relaxed)),
                    // It cannot follow, and is told the place.
                    Err(error) if error.to_string().contains("REDIRECT") => return,
                    Err(error) => panic!("{error}"),
                }
            }
        }));
    }
    until("it writes", async || written.load(Ordering::Relaxed) > 100).await;
    plan(&running.url, &server).run(|_| (), pending()).await?;
    for writer in writers {
        writer.await?;
    }
    let there = connect(&server.url()).await?;
    let kept: u64 = there.query(redis::cmd("GET").arg("n")).await?;
    assert_eq!(kept, written.load(Ordering::Relaxed));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn more_changes_than_are_noted_are_compared_again() -> anyhow::Result<()> {
    let running = Running::start(Engine::new()).await?;
    let store = connect(&running.url).await?;
    for n in 0..500 {
        set(&store, &format!("key{n}"), n).await?;
    }
    let server = Server::builder(Kind::Redis).start().await?;
    let mut begun = false;
    let writing = store.clone();
    let told = move |step: &HandoverStep| {
        if matches!(step, HandoverStep::Comparing(..)) && !std::mem::replace(&mut begun, true) {
            let write = async {
                for n in 0..200 {
                    set(&writing, &format!("key{n}"), "changed")
                        .await
                        .expect("a write");
                }
            };
            tokio::task::block_in_place(|| Handle::current().block_on(write));
        }
    };
    let report = Handover::builder(&running.url, &server.url())
        .longest_pause(PAUSE)
        .noted(50)
        .build()?
        .run(told, pending())
        .await?;
    assert_eq!(report.keys, 500);
    assert_eq!(get(&store, "key7").await?.as_deref(), Some("changed"));
    Ok(())
}
