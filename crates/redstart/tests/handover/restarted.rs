//! A server that loses its data before the engine has moved, and changes that are found only in the pause.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use redstart::store::HandoverStep;
use redstart_engine::{Engine, HELD_BACK, Outcome, Reply};
use redstart_testkit::{Kind, Server};
use tokio::runtime::Handle;

use crate::{Running, connect, get, plan, raw};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_was_restarted_after_the_comparison_is_not_moved_to() -> anyhow::Result<()> {
    let running = Running::start(Engine::new()).await?;
    let store = connect(&running.url).await?;
    store.query::<()>(redis::cmd("SET").arg("a").arg(1)).await?;
    let server = Server::builder(Kind::Redis).start().await?;
    let told = |step: &HandoverStep| {
        if *step == HandoverStep::Promoted {
            // Nothing is on its disk.
            let restarted =
                tokio::task::block_in_place(|| Handle::current().block_on(server.restart()));
            restarted.expect("it starts again");
        }
    };
    let failed = plan(&running.url, &server).run(told, pending()).await;
    let failed = failed.expect_err("the server is empty");
    assert!(!failed.is_in_doubt(), "{failed}");
    assert_eq!(raw(&running.url, "GET a").await?, "$1\r\n");
    assert_eq!(get(&store, "a").await?.as_deref(), Some("1"));
    store.query::<()>(redis::cmd("SET").arg("a").arg(2)).await?;
    Ok(())
}

fn words(line: &str) -> Vec<Bytes> {
    let word = |word: &str| Bytes::copy_from_slice(word.as_bytes());
    line.split(' ').map(word).collect()
}

/// Many keys change all the time, and one more each time, until writes are held back. That one is changed at the server
/// then, and nobody but the last comparison can know.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_that_changed_before_the_pause_is_compared_in_it() -> anyhow::Result<()> {
    let engine = Engine::new();
    let running = Running::start(engine.clone()).await?;
    let server = Server::builder(Kind::Redis)
        .config("replica-read-only", "no")
        .start()
        .await?;
    let (last, over) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    // More than are asked for at a time, and with names that come first.
    let hot: String = (0..11_000).map(|n| format!(" a{n:05} x")).collect();
    let hot = words(&format!("MSET{hot}"));
    let writes = std::thread::spawn({
        let (mut session, last, over) = (engine.session(), last.clone(), over.clone());
        move || {
            let mut n = 0_u64;
            while !over.load(Ordering::Acquire) {
                let one = words(&format!("HSET z{n} f 1"));
                let held = Reply::Error(HELD_BACK.into());
                for write in [&hot, &one] {
                    match session.execute(write) {
                        Outcome::Reply(reply) if reply == held => {}
                        Outcome::Reply(reply) if write == &one && !reply.is_error() => {
                            last.store(n, Ordering::Release);
                            n += 1;
                        }
                        _ => {}
                    }
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
    let poked = last.clone();
    let told = |step: &HandoverStep| {
        if *step == HandoverStep::Paused {
            let key = format!("z{}", poked.load(Ordering::Acquire));
            let poke = async { server.command(&["HSET", &key, "bad", "1"]).await };
            let poked = tokio::task::block_in_place(|| Handle::current().block_on(poke));
            poked.expect("the replica takes writes");
        }
    };
    let failed = plan(&running.url, &server).run(told, pending()).await;
    over.store(true, Ordering::Release);
    writes.join().expect("it does not panic");
    let failed = failed.expect_err("they differ");
    assert!(failed.to_string().contains("1 keys differ"), "{failed}");
    Ok(())
}
