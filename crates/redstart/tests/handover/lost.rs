//! Replies that are lost on the way: a hand-over is undone whichever it was, and only the request to move can be in doubt.

use std::{future::pending, time::Duration};

use redstart::{
    Store,
    store::{Handover, HandoverStep},
};
use redstart_engine::Engine;
use redstart_testkit::{Kind, Proxy, Server};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{Running, connect};

const PASSWORD: &str = "sesame";

/// An engine with a password and a server that had another master once, each behind a proxy.
struct Between {
    /// Where the engine is without the proxy.
    address: String,
    _running: Running,
    /// Its own connection to the engine.
    store: Store,
    engine: Proxy,
    server: Server,
    target: Proxy,
    _writes: AbortOnDropHandle<()>,
}

impl Between {
    async fn start() -> anyhow::Result<Self> {
        let engine = Engine::builder().password(Some(PASSWORD.to_owned()));
        let running = Running::start(engine.build()?).await?;
        let address = running.url.trim_start_matches("redis://").to_owned();
        let store = connect(&format!("redis://:{PASSWORD}@{address}")).await?;
        for n in 0..300 {
            let mut set = redis::cmd("SET");
            store.query::<()>(set.arg(format!("key{n}")).arg(n)).await?;
        }
        // The proxy passes the end of a copy on when the next bytes come, so there are always some.
        let writing = store.clone();
        let writes = tokio::spawn(async move {
            loop {
                let mut incr = redis::cmd("INCR");
                let _ = writing.query::<i64>(incr.arg("ticks")).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let server = Server::builder(Kind::Redis)
            .config("masteruser", "someone")
            .config("masterauth", "before")
            .start()
            .await?;
        Ok(Self {
            engine: Proxy::to(&address).await?,
            target: Proxy::start(&server).await?,
            address,
            _running: running,
            store,
            server,
            _writes: AbortOnDropHandle::new(writes),
        })
    }

    async fn run(
        &self,
        told: impl FnMut(&HandoverStep),
    ) -> redstart::Result<redstart::store::HandoverReport> {
        let from = format!("redis://:{PASSWORD}@{}", self.engine.addr());
        // No write gets through by waiting for the end of the pause.
        let plan = Handover::builder(&from, self.target.url())
            .overwrite(true)
            .longest_pause(Duration::from_secs(3600));
        plan.build()?.run(told, pending()).await
    }

    async fn setting(&self, name: &str) -> anyhow::Result<String> {
        let there = connect(&self.server.url()).await?;
        let mut get = redis::cmd("CONFIG");
        let pair: Vec<String> = there.query(get.arg("GET").arg(name)).await?;
        Ok(pair[1].clone())
    }

    /// The server is a master, and presents to its masters what it did before.
    async fn check_server(&self, when: &str) -> anyhow::Result<()> {
        let there = connect(&self.server.url()).await?;
        let role: Vec<redis::Value> = there.query(&redis::cmd("ROLE")).await?;
        let master = redis::Value::BulkString(b"master".to_vec());
        assert_eq!(role[0], master, "{when}");
        assert_eq!(self.setting("masteruser").await?, "someone", "{when}");
        assert_eq!(self.setting("masterauth").await?, "before", "{when}");
        Ok(())
    }

    /// What the engine itself answers; a store would follow to the server.
    async fn engine_says(&self, line: &str) -> anyhow::Result<String> {
        let mut stream = BufReader::new(TcpStream::connect(&self.address).await?);
        let lines = format!("AUTH {PASSWORD}\r\n{line}\r\n");
        stream.get_mut().write_all(lines.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        answer.clear();
        stream.read_line(&mut answer).await?;
        Ok(answer.trim_end().to_owned())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_undone_at_every_step() -> anyhow::Result<()> {
    let between = Between::start().await?;
    let (engine, target) = (&between.engine, &between.target);
    for (side, request) in [
        (target, "keyspace"),
        (target, "$3\r\nSET\r\n$10\r\nmasterauth"),
        (target, "REPLICAOF"),
        (target, "replication"),
        (target, "memory"),
        (engine, "BEGIN"),
        (engine, "replication"),
        (engine, "WATCH"),
        (engine, "SCAN"),
        (engine, "CHANGED"),
        (engine, "PAUSE"),
        (engine, "FUNCTION"),
        (target, "FUNCTION"),
        (target, "$2\r\nNO\r\n$3\r\nONE"),
        // What undoes it may be lost, too.
        (engine, "PAUSE ABORT"),
    ] {
        let when = format!("{request:?} was lost");
        let before = side.stats().sprung;
        let requests: Vec<&str> = match request {
            "PAUSE ABORT" => request.split(' ').collect(),
            _ => vec![request],
        };
        for request in &requests {
            side.drop_reply_to(request);
        }
        let mut steps = Vec::new();
        let failed = between.run(|step| steps.push(step.clone())).await;
        let failed = failed.expect_err(&when);
        let sprung = side.stats().sprung - before;
        assert_eq!(sprung, requests.len() as u64, "{when}: {failed}");
        assert!(!failed.is_in_doubt(), "{when}: {failed}");
        assert_eq!(steps.last(), Some(&HandoverStep::BackingOut), "{when}");
        between.check_server(&when).await?;
        let mut incr = redis::cmd("INCR");
        let written = between.store.query::<i64>(incr.arg("n")).await;
        assert!(written.is_ok(), "{when}: {written:?}");
        // Nothing of it is under way: another one need not wait for its minute.
        let begun = between.engine_says("REDSTART HANDOVER BEGIN other").await?;
        assert_eq!(begun, "+OK", "{when}");
        let ended = between.engine_says("REDSTART HANDOVER ABORT other").await?;
        assert_eq!(ended, "+OK", "{when}");
        side.pass().await;
    }
    let report = between.run(|_| ()).await?;
    assert_eq!(report.keys, 302);
    between.check_server("it moved").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_whose_answer_is_lost_is_asked_again() -> anyhow::Result<()> {
    let between = Between::start().await?;
    between.engine.drop_replies_to("COMMIT", 2);
    between.run(|_| ()).await?;
    assert_eq!(between.engine.stats().sprung, 2);
    let said = between.engine_says("GET key7").await?;
    assert!(said.starts_with("-REDIRECT"), "{said}");
    between.check_server("it moved").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_may_have_moved_is_in_doubt_and_nothing_is_undone() -> anyhow::Result<()> {
    let between = Between::start().await?;
    between.engine.drop_reply_to("COMMIT");
    let engine = &between.engine;
    let mut steps = Vec::new();
    let told = |step: &HandoverStep| {
        steps.push(step.clone());
        if *step == HandoverStep::Promoted {
            // The one connection goes on; asking again fails before anything is sent.
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(engine.refuse());
            });
        }
    };
    let failed = between.run(told).await.expect_err("no answer came");
    assert!(failed.is_in_doubt(), "{failed}");
    assert_eq!(steps.last(), Some(&HandoverStep::Promoted));
    let said = between.engine_says("GET key7").await?;
    assert!(said.starts_with("-REDIRECT"), "{said}");
    between.check_server("it may have moved").await
}
