//! A reply reaches the caller that asked, and no other, whatever the callers send, drop or lose.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use redis::Cmd;
use redstart::{
    Error, Store,
    key::{Entity, Keys},
    script::Script,
};
use redstart_testkit::{Backend, Cluster, Kind, Proxy, Server, eventually, figure, matrix, scale};

static GIVE_BACK: Script = Script::new("test.give_back", "return ARGV[1]");
const TASKS: u64 = 16;
const PATIENCE: Duration = Duration::from_secs(30);

/// A random number generator that a failing seed can be read off.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// Polls a future a few times and then drops it.
async fn drop_after<F: Future>(polls: u64, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => {
                if left == 0 {
                    return Poll::Ready(None);
                }
                Poll::Pending
            }
        }
    })
    .await
}

/// A failure that a broken connection explains; anything else is a bug.
fn excused(error: Error) {
    assert!(error.is_timeout() || error.is_unavailable(), "{error:?}");
}

/// What a task saw.
#[derive(Default)]
struct Seen {
    /// Replies that came and were its own.
    own: u64,
    /// Requests that failed.
    failed: u64,
}

fn same<T: PartialEq + std::fmt::Debug>(seen: &mut Seen, result: Result<T, Error>, expected: T) {
    match result {
        Ok(value) => {
            assert_eq!(value, expected, "another caller's reply");
            seen.own += 1;
        }
        Err(error) => {
            excused(error);
            seen.failed += 1;
        }
    }
}

fn refused(result: Result<redis::Value, Error>) {
    match result {
        Ok(value) => panic!("it was sent and answered by {value:?}"),
        Err(error) => assert!(error.is_config(), "{error:?}"),
    }
}

fn echo(nonce: &str) -> Cmd {
    let mut cmd = redis::cmd("ECHO");
    cmd.arg(nonce);
    cmd
}

async fn one_step(
    store: &Store,
    entity: &Entity,
    random: &mut Random,
    nonce: String,
    seen: &mut Seen,
) {
    match random.below(12) {
        0..=2 => same(seen, store.query(&echo(&nonce)).await, nonce),
        3 => {
            let mut pipeline = redis::pipe();
            let count = random.below(6);
            for n in 0..count {
                pipeline.add_command(echo(&format!("{nonce}/{n}")));
                if n % 3 == 1 {
                    pipeline.ignore();
                }
            }
            let wanted = (0..count).filter(|n| n % 3 != 1);
            let wanted: Vec<String> = wanted.map(|n| format!("{nonce}/{n}")).collect();
            same(seen, store.pipeline(&pipeline).await, wanted);
        }
        4 => {
            let mut pipeline = redis::pipe();
            pipeline
                .atomic()
                .cmd("SET")
                .arg(entity.key())
                .arg(&nonce)
                .ignore();
            pipeline.cmd("GET").arg(entity.key());
            same(seen, store.pipeline(&pipeline).await, (nonce,));
        }
        5 => same(
            seen,
            GIVE_BACK.on(entity).key().arg(&nonce).run(store).await,
            nonce,
        ),
        6 => {
            // Errors of the server, alone and within a pipeline.
            let mut wrong = redis::cmd("HGET");
            wrong.arg(entity.part("string")).arg(&nonce);
            let mut pipeline = redis::pipe();
            pipeline
                .add_command(echo(&nonce))
                .add_command(wrong.clone());
            let error = store.pipeline::<redis::Value>(&pipeline).await;
            let error = error.expect_err("a string is not a hash");
            assert!(
                error.is_unavailable()
                    || error.is_timeout()
                    || error.to_string().contains("WRONGTYPE"),
                "{error}"
            );
            let error = store.query::<redis::Value>(&wrong).await;
            let error = error.expect_err("a string is not a hash");
            if error.server_code() != Some("WRONGTYPE") {
                excused(error);
            }
        }
        7 => {
            refused(store.query(&Cmd::new()).await);
            for words in [
                &["SUBSCRIBE", "a", "b"][..],
                &["CLIENT", "REPLY", "OFF"],
                &["MULTI"],
                &["WATCH", "k"],
                &["MONITOR"],
                &["SELECT", "1"],
                &["EXEC"],
            ] {
                let mut cmd = redis::cmd(words[0]);
                cmd.arg(&words[1..]);
                refused(store.query(&cmd).await);
                let mut pipeline = redis::pipe();
                pipeline.add_command(echo(&nonce)).add_command(cmd);
                refused(store.pipeline(&pipeline).await);
            }
            // Nothing is sent, so it is no reply.
            let nothing = store.pipeline(&redis::pipe()).await;
            same(&mut Seen::default(), nothing, Vec::<String>::new());
        }
        8 | 9 => {
            let polls = random.below(4);
            if let Some(result) = drop_after(polls, store.query(&echo(&nonce))).await {
                same(seen, result, nonce);
            }
        }
        10 => {
            let polls = random.below(4);
            let mut pipeline = redis::pipe();
            pipeline
                .atomic()
                .cmd("SET")
                .arg(entity.key())
                .arg(&nonce)
                .ignore();
            pipeline.cmd("GET").arg(entity.key());
            if let Some(result) = drop_after(polls, store.pipeline(&pipeline)).await {
                same(seen, result, (nonce,));
            }
        }
        _ => {
            let long = nonce.repeat(1 + random.below(2_000) as usize);
            same(seen, store.query(&echo(&long)).await, long);
        }
    }
}

/// Many tasks on one store, while `disturb` breaks connections.
async fn each_gets_its_own(
    store: &Store,
    namespace: &str,
    seed: u64,
    disturb: impl AsyncFn(u64),
) -> anyhow::Result<()> {
    let requests = scale(8_000, "NONCE_REQUESTS");
    let keys = Keys::new(namespace, "nonce")?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let store = store.clone();
        let entity = keys.entity(&format!("task-{task}"))?;
        let mut set = redis::cmd("SET");
        set.arg(entity.part("string")).arg("x");
        // Deadlines are short where connections are broken, and machines are slow.
        let is_set = eventually(PATIENCE, async || store.query::<()>(&set).await.is_ok());
        anyhow::ensure!(is_set.await, "the store does not work");
        let mut random = Random(seed ^ (task << 32));
        tasks.spawn(async move {
            let mut seen = Seen::default();
            for turn in 0..requests / TASKS {
                let nonce = format!("{task}:{turn}:{}", random.below(u64::MAX));
                let before = seen.failed;
                one_step(&store, &entity, &mut random, nonce, &mut seen).await;
                if seen.failed > before {
                    // While a server is known to be down, calls fail at once: the steps would be over before it is back.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            seen
        });
    }
    let disturbing = async {
        let mut round = 0;
        while !stop.load(Ordering::Relaxed) {
            disturb(round).await;
            round += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waiting = async {
        let mut all = Seen::default();
        while let Some(ended) = tasks.join_next().await {
            let seen = ended?;
            all.own += seen.own;
            all.failed += seen.failed;
        }
        stop.store(true, Ordering::Relaxed);
        anyhow::Ok(all)
    };
    let (seen, ()) = tokio::join!(waiting, disturbing);
    let Seen { own, failed } = seen?;
    // Requests that fail prove nothing. About a tenth of the steps expect an error, and a sixth is dropped early.
    anyhow::ensure!(
        own > requests / 4,
        "only {own} of {requests} steps were answered"
    );
    figure(format!(
        "{requests} steps, {own} with a reply of their own, {failed} failed, seed {seed}"
    ));
    Ok(())
}

matrix! {
    async fn a_reply_never_reaches_another_caller(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::builder(backend.url()).deadline(Duration::from_secs(20)).connect().await?;
        each_gets_its_own(&store, backend.namespace(), 1, async |_| {}).await
    }
}

/// Cuts connections, delays replies and stalls, in turn.
async fn disturb(proxy: &Proxy, round: u64) {
    match round % 8 {
        1 | 5 => drop(proxy.cut().await),
        3 => {
            proxy.delay_replies(Duration::from_millis(100));
            tokio::time::sleep(Duration::from_millis(60)).await;
            proxy.pass().await;
        }
        7 => {
            proxy.stall();
            tokio::time::sleep(Duration::from_millis(250)).await;
            proxy.pass().await;
        }
        _ => {}
    }
}

/// A server behind a proxy that cuts and delays.
async fn each_gets_its_own_through_cuts(proxy: &Proxy, seed: u64) -> anyhow::Result<()> {
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_millis(150))
        .lazy()
        .connect()
        .await?;
    each_gets_its_own(&store, "cuts", seed, async |round| {
        disturb(proxy, round).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_reply_never_reaches_another_caller_through_cuts_and_timeouts() -> anyhow::Result<()>
{
    let server = Server::builder(Kind::Redis).start().await?;
    each_gets_its_own_through_cuts(&Proxy::start(&server).await?, 2).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_reply_never_reaches_another_caller_of_valkey_through_cuts_and_timeouts()
-> anyhow::Result<()> {
    let server = Server::builder(Kind::Valkey).start().await?;
    each_gets_its_own_through_cuts(&Proxy::start(&server).await?, 6).await
}

/// The embedded engine behind its listener.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_reply_never_reaches_another_caller_of_the_engine_through_cuts_and_timeouts()
-> anyhow::Result<()> {
    let url = crate::served::engine()?;
    let address = url.trim_start_matches("redis://");
    each_gets_its_own_through_cuts(&Proxy::to(address).await?, 7).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_reply_never_reaches_another_caller_with_tls_through_cuts_and_timeouts()
-> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).tls().start().await?;
    let proxy = Proxy::to(&server.addr()).await?;
    let ca = server.authority().expect("a TLS server has an authority");
    let url = format!("rediss://{}?ca={}", proxy.addr(), ca.ca_file().display());
    let store = Store::builder(&url)
        .deadline(Duration::from_millis(400))
        .connect_timeout(Duration::from_secs(20))
        .connect()
        .await?;
    each_gets_its_own(&store, "tls-cuts", 4, async |round| {
        disturb(&proxy, round).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_never_reaches_another_caller_with_tls() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).tls().start().await?;
    let ca = server.authority().expect("a TLS server has an authority");
    let url = format!("{}?ca={}", server.url(), ca.ca_file().display());
    let store = Store::builder(&url)
        .deadline(Duration::from_secs(20))
        .connect()
        .await?;
    each_gets_its_own(&store, "tls", 3, async |_| {}).await
}

/// Connections to all nodes are killed, and one node at a time stands still for longer than a deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_reply_never_reaches_another_caller_of_a_cluster_through_cuts_and_timeouts()
-> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let cluster = Cluster::start(kind, 3, 0).await?;
        let store = Store::builder(&cluster.url())
            .deadline(Duration::from_millis(200))
            .connect_timeout(Duration::from_secs(20))
            .connect()
            .await?;
        let disturb = async |round: u64| {
            let node = cluster.node((round / 2 % 3) as usize);
            match round % 6 {
                1 | 3 => {
                    let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
                    drop(node.command(&kill).await);
                }
                5 => {
                    drop(node.pause());
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    drop(node.resume());
                }
                _ => {}
            }
        };
        each_gets_its_own(&store, "cluster-cuts", 5, disturb).await?;
    }
    Ok(())
}
