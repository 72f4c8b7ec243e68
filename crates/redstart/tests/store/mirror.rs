//! A copy of a server in the process answers reads that may be stale, and never with more than their age.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use redstart::{
    Store,
    counting::{Counter, Keep},
    limiting::{Limiter, Quota},
    locking::Mutex as Lock,
    ranking::{Leaderboard, Policy},
    social::Graph,
    store::{Credentials, MirrorStatus, RotatingCredentials},
};
use redstart_testkit::{Kind, Proxy, Server, eventually, figure, scale};

const PATIENCE: Duration = Duration::from_secs(60);
/// So old an answer may be that no machine is too busy for it, where age is not what is tested.
const OLD: &str = "max_age=3600s";

fn mirrored(url: &str, query: &str) -> String {
    format!("mirror+{url}?{query}")
}

fn status(store: &Store) -> MirrorStatus {
    store.mirror().expect("it has a mirror")
}

async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    assert!(eventually(PATIENCE, condition).await, "{what}");
}

async fn until_it_answers(store: &Store) {
    let answers = eventually(PATIENCE, async || status(store).answers).await;
    assert!(answers, "{:?}", status(store));
}

async fn connect(url: &str) -> redstart::Result<Store> {
    let deadline = Duration::from_secs(10);
    Store::builder(url).deadline(deadline).connect().await
}

async fn stale(store: &Store, key: &str) -> redstart::Result<Option<String>> {
    store.query_stale(redis::cmd("GET").arg(key)).await
}

async fn set(store: &Store, key: &str, value: impl ToString) -> redstart::Result<()> {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(value.to_string());
    store.query(&set).await
}

/// How often clients called a command.
async fn calls(server: &Server, command: &str) -> anyhow::Result<u64> {
    let stats: String = server.query(&["INFO", "commandstats"]).await?;
    let name = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&name));
    let count = line.and_then(|line| line.split(',').next());
    Ok(count.map_or(Ok(0), str::parse::<u64>)?)
}

async fn asked(server: &Server) -> anyhow::Result<[u64; 3]> {
    Ok([
        calls(server, "get").await?,
        calls(server, "evalsha").await?,
        calls(server, "eval").await?,
    ])
}

async fn only_stale_reads_are_answered_here(kind: Kind) -> anyhow::Result<()> {
    let server = Server::builder(kind).start().await?;
    let store = connect(&mirrored(&server.url(), OLD)).await?;
    let counter = Counter::new(&store, "app", "views", Keep::Forever)?;
    let board = Leaderboard::new(&store, "app", "weekly")?;
    counter.add("front", 3).await?;
    board.submit("ann", 10.0, Policy::Last).await?;
    until("the copy has the writes", async || {
        // Asked first: a read before it answers is the server's, and says nothing about the copy.
        let answers = status(&store).answers;
        let read = (counter.get("front").await, board.top(10).await);
        answers && matches!(&read, (Ok(3), Ok(top)) if top.len() == 1) && status(&store).connected
    })
    .await;
    until_it_answers(&store).await;
    let before = asked(&server).await?;
    for _ in 0..50 {
        assert_eq!(counter.get("front").await?, 3);
        assert_eq!(board.top(10).await?.len(), 1);
        assert_eq!(stale(&store, "nothing").await?, None);
    }
    assert_eq!(asked(&server).await?, before, "the server was not asked");
    // What must never be stale is asked of the server.
    let lock = Lock::new(&store, "app", "order")?;
    let limiter = Limiter::token_bucket(&store, "app", "api", Quota::per_second(1000)).build()?;
    for _ in 0..20 {
        let guard = lock.lock(PATIENCE).await?.context("not granted")?;
        ensure!(lock.holder().await?.is_some(), "it was just taken");
        guard.release().await?;
        ensure!(lock.holder().await?.is_none(), "it was just released");
        let _ = limiter.check("user", 1).await?;
    }
    let mut writes = redis::cmd("GETDEL");
    writes.arg("a");
    assert!(store.query_stale::<redis::Value>(&writes).await.is_err());
    let written = counter.add("front", 1).await?;
    assert_eq!(written, 4);
    until("the copy has the last write", async || {
        counter.get("front").await.is_ok_and(|count| count == 4)
    })
    .await;
    let after = asked(&server).await?;
    assert!(after[1] + after[2] > before[1] + before[2], "{after:?}");
    let said = status(&store);
    assert!(said.connected && said.error.is_none(), "{said:?}");
    assert!(
        Store::connect(&server.url()).await?.mirror().is_none(),
        "a store without one"
    );
    Ok(())
}

#[tokio::test]
async fn only_stale_reads_are_answered_by_the_copy_of_redis() -> anyhow::Result<()> {
    only_stale_reads_are_answered_here(Kind::Redis).await
}

#[tokio::test]
async fn only_stale_reads_are_answered_by_the_copy_of_valkey() -> anyhow::Result<()> {
    only_stale_reads_are_answered_here(Kind::Valkey).await
}

#[tokio::test]
async fn the_copy_is_of_the_database_of_the_url() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("databases", "40")
        .start()
        .await?;
    let url = format!("{}/33", server.url());
    let store = connect(&mirrored(&url, OLD)).await?;
    set(&store, "a", "here").await?;
    set(&connect(&server.url()).await?, "a", "elsewhere").await?;
    until("the copy has it", async || {
        status(&store).answers && stale(&store, "a").await.is_ok_and(|a| a.is_some())
    })
    .await;
    let before = calls(&server, "get").await?;
    assert_eq!(stale(&store, "a").await?.as_deref(), Some("here"));
    assert_eq!(calls(&server, "get").await?, before);
    Ok(())
}

/// The server does not answer, with its connections open: the copy answers as long as it may, and then nobody does.
async fn a_hung_server_makes_the_copy_too_old(kind: Kind) -> anyhow::Result<()> {
    let server = Server::builder(kind).start().await?;
    let url = mirrored(&server.url(), "max_age=1s&timeout=300ms");
    let store = Store::connect(&url).await?;
    let direct = connect(&server.url()).await?;
    set(&direct, "a", 1).await?;
    until("the copy has it", async || {
        status(&store).answers
            && stale(&store, "a")
                .await
                .is_ok_and(|a| a.as_deref() == Some("1"))
    })
    .await;
    server.pause()?;
    until("the copy is too old", async || !status(&store).answers).await;
    let said = status(&store);
    assert!(
        said.age.is_some_and(|age| age > Duration::from_secs(1)),
        "{said:?}"
    );
    // Its link stands, and says nothing about that.
    let error = stale(&store, "a").await.expect_err("nobody answers");
    assert!(
        error.is_timeout() || error.is_unavailable(),
        "the server is asked: {error}"
    );
    server.resume()?;
    set(&direct, "a", 2).await?;
    until("the copy is level again", async || {
        status(&store).answers
            && stale(&store, "a")
                .await
                .is_ok_and(|a| a.as_deref() == Some("2"))
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_hung_redis_makes_the_copy_too_old_to_answer() -> anyhow::Result<()> {
    a_hung_server_makes_the_copy_too_old(Kind::Redis).await
}

#[tokio::test]
async fn a_hung_valkey_makes_the_copy_too_old_to_answer() -> anyhow::Result<()> {
    a_hung_server_makes_the_copy_too_old(Kind::Valkey).await
}

/// Numbers that were acknowledged, with the moment.
#[derive(Default)]
struct Acknowledged(Mutex<Vec<(Instant, u64)>>);

impl Acknowledged {
    fn note(&self, number: u64) {
        let mut all = self.0.lock().expect("no test panicked");
        all.push((Instant::now(), number));
    }

    /// The last one at that moment.
    fn at(&self, moment: Instant) -> u64 {
        let all = self.0.lock().expect("no test panicked");
        let count = all.partition_point(|(when, _)| *when <= moment);
        count.checked_sub(1).map_or(0, |last| all[last].1)
    }
}

/// The store reaches the server through a proxy that fails; the writer does not need it.
async fn no_answer_is_older_than_it_may_be(kind: Kind) -> anyhow::Result<()> {
    const MAX_AGE: Duration = Duration::from_millis(700);
    let rounds = scale(4, "mirror faults");
    let server = Server::builder(kind)
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start()
        .await?;
    let proxy = Proxy::start(&server).await?;
    let url = mirrored(proxy.url(), "max_age=700ms&timeout=500ms");
    let store = Store::connect(&url).await?;
    let (acknowledged, stop) = (
        Arc::new(Acknowledged::default()),
        Arc::new(AtomicBool::new(false)),
    );
    let writer = {
        let (direct, acknowledged, stop) = (
            Store::connect(&server.url()).await?,
            acknowledged.clone(),
            stop.clone(),
        );
        tokio::spawn(async move {
            for number in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if set(&direct, "n", number).await.is_ok() {
                    acknowledged.note(number);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    };
    let answered = Arc::new(AtomicU64::new(0));
    let reader = {
        let (store, acknowledged, stop, answered) = (
            store.clone(),
            acknowledged.clone(),
            stop.clone(),
            answered.clone(),
        );
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let read = stale(&store, "n").await;
                if let (Ok(read), Some(moment)) = (read, begun.checked_sub(MAX_AGE)) {
                    let read = read.map_or(0, |text| text.parse().expect("a number"));
                    let least = acknowledged.at(moment);
                    assert!(
                        read >= least,
                        "{read} was read, {least} was acknowledged before that"
                    );
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let mut too_old = 0;
    for round in 0..rounds {
        until_it_answers(&store).await;
        let read = answered.load(Ordering::Relaxed);
        until("it is read", async || {
            answered.load(Ordering::Relaxed) > read + 50
        })
        .await;
        match round % 4 {
            // Bytes are lost while the connections stay open.
            0 => {
                proxy.black_hole();
                until("the copy is too old", async || !status(&store).answers).await;
                too_old += 1;
                proxy.pass().await;
            }
            1 => {
                proxy.refuse().await;
                proxy.cut().await?;
                until("the copy is too old", async || !status(&store).answers).await;
                too_old += 1;
                proxy.pass().await;
            }
            2 => proxy.cut().await?,
            // The server has its data again, and another stream of changes.
            _ => server.restart().await?,
        }
        ensure!(!reader.is_finished(), "the reader found an old answer");
    }
    until_it_answers(&store).await;
    stop.store(true, Ordering::Relaxed);
    reader.await?;
    writer.await?;
    let last = acknowledged.at(Instant::now());
    until("the copy has the last write", async || {
        let read = stale(&store, "n").await.ok().flatten();
        let read: Option<u64> = read.and_then(|text| text.parse().ok());
        status(&store).answers && read.is_some_and(|read| read >= last)
    })
    .await;
    figure(format!(
        "{kind:?}: {} stale reads through {rounds} faults, none older than {MAX_AGE:?}; the copy was given up {too_old} times",
        answered.load(Ordering::Relaxed)
    ));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_no_answer_of_a_mirror_of_redis_is_older_than_it_may_be() -> anyhow::Result<()> {
    no_answer_is_older_than_it_may_be(Kind::Redis).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_no_answer_of_a_mirror_of_valkey_is_older_than_it_may_be() -> anyhow::Result<()> {
    no_answer_is_older_than_it_may_be(Kind::Valkey).await
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_with_tls_and_users_is_mirrored() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .tls()
        .acl("ann", "p@ss:word")
        .start()
        .await?;
    let ca = server.authority().context("it has TLS")?.ca_file();
    let url = mirrored(&server.url(), &format!("{OLD}&ca={}", ca.display()));
    let store = connect(&url).await?;
    set(&store, "a", 1).await?;
    until("the copy has it", async || {
        status(&store).answers && stale(&store, "a").await.is_ok_and(|a| a.is_some())
    })
    .await;
    let before = calls(&server, "get").await?;
    assert_eq!(stale(&store, "a").await?.as_deref(), Some("1"));
    assert_eq!(calls(&server, "get").await?, before);
    Ok(())
}

#[tokio::test]
async fn the_copy_logs_in_with_what_the_provider_gives() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .acl("ann", "first")
        .start()
        .await?;
    let credentials = RotatingCredentials::new(Credentials::new(Some("ann"), "first"));
    let url = format!("mirror+redis://{}?max_age=1s", server.addr());
    let store = Store::builder(&url)
        .credentials_provider(credentials.clone())
        .connect()
        .await?;
    until_it_answers(&store).await;
    // Both passwords are good for a while, and then all connections are closed.
    let admin = connect(&server.url()).await?;
    let acl = |rule: &str| {
        let mut cmd = redis::cmd("ACL");
        cmd.arg("SETUSER").arg("ann").arg(rule);
        cmd
    };
    admin.query::<()>(&acl(">second")).await?;
    credentials.rotate(Credentials::new(Some("ann"), "second"));
    admin.query::<()>(&acl("<first")).await?;
    let mut replicas = redis::cmd("CLIENT");
    replicas.arg("LIST").arg("TYPE").arg("replica");
    let before: String = admin.query(&replicas).await?;
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("replica");
    admin.query::<()>(&kill).await?;
    let id = |list: &str| list.split(' ').next().map(str::to_owned);
    until("the copy is connected again", async || {
        let now: String = admin.query(&replicas).await.unwrap_or_default();
        !now.is_empty() && id(&now) != id(&before) && status(&store).connected
    })
    .await;
    until_it_answers(&store).await;
    Ok(())
}

#[tokio::test]
async fn a_copy_that_cannot_be_made_leaves_reads_to_the_server_and_says_why() -> anyhow::Result<()>
{
    let server = Server::builder(Kind::Redis).start().await?;
    let admin = connect(&server.url()).await?;
    let mut user = redis::cmd("ACL");
    user.arg(&[
        "SETUSER", "app", "on", ">pw", "~*", "+@all", "-psync", "-sync",
    ]);
    admin.query::<()>(&user).await?;
    let url = format!("mirror+redis://app:pw@{}", server.addr());
    let store = connect(&url).await?;
    set(&store, "a", 1).await?;
    until("there is a reason", async || status(&store).error.is_some()).await;
    let said = status(&store);
    assert!(
        !said.answers && said.age.is_none() && !said.connected,
        "{said:?}"
    );
    let error = said.error.unwrap_or_default();
    assert!(
        error.contains("NOPERM") && !error.contains("pw@"),
        "{error}"
    );
    assert_eq!(stale(&store, "a").await?.as_deref(), Some("1"));
    Ok(())
}

#[test]
fn a_mirror_outlives_the_runtime_it_was_made_in() -> anyhow::Result<()> {
    let server_runtime = tokio::runtime::Runtime::new()?;
    let server = server_runtime.block_on(Server::builder(Kind::Redis).start())?;
    let url = mirrored(&server.url(), "max_age=2s");
    let first = tokio::runtime::Runtime::new()?;
    let store = first.block_on(connect(&url))?;
    first.block_on(until_it_answers(&store));
    drop(first);
    let second = tokio::runtime::Runtime::new()?;
    second.block_on(async {
        until("the copy is too old", async || !status(&store).answers).await;
        // A read begins the comparison anew.
        until("it answers again", async || {
            stale(&store, "a").await.is_ok() && status(&store).answers
        })
        .await;
    });
    Ok(())
}

/// The copy has fewer databases than the server, and learns of it in the middle of a transaction.
#[tokio::test]
async fn a_copy_that_has_grown_apart_answers_nothing() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("databases", "1000")
        .start()
        .await?;
    let store = connect(&mirrored(&server.url(), OLD)).await?;
    set(&store, "a", 1).await?;
    until("the copy has it", async || {
        let read = stale(&store, "a").await;
        status(&store).answers && read.is_ok_and(|a| a.as_deref() == Some("1"))
    })
    .await;
    let mut transaction = redis::pipe();
    transaction.atomic();
    transaction.cmd("SET").arg("a").arg(2).ignore();
    transaction.cmd("SELECT").arg(300).ignore();
    transaction.cmd("SET").arg("b").arg(2).ignore();
    let mut client = server.client().await?;
    transaction.query_async::<()>(&mut client).await?;
    // Long before its age would be a reason.
    until("the server answers", async || !status(&store).answers).await;
    for n in 3..10 {
        set(&store, "a", n).await?;
        let read = stale(&store, "a").await?;
        assert_eq!(read, Some(n.to_string()));
    }
    let said = status(&store);
    assert!(!said.answers && said.error.is_some(), "{said:?}");
    Ok(())
}

/// A script holds the copy; a change of the server that takes long does the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_held_leaves_reads_to_the_server() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = connect(&mirrored(&server.url(), OLD)).await?;
    set(&store, "a", 1).await?;
    until("the copy has it", async || {
        let read = stale(&store, "a").await;
        status(&store).answers && read.is_ok_and(|a| a.is_some())
    })
    .await;
    // On a busy machine, a script may be over before the next read.
    for _ in 0..10 {
        let (slow, over) = (store.clone(), Arc::new(AtomicBool::new(false)));
        let told = over.clone();
        let script = std::thread::spawn(move || -> anyhow::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let mut busy = redis::cmd("EVAL_RO");
            busy.arg("for i = 1, 30000000 do end return redis.call('GET', KEYS[1])")
                .arg(1)
                .arg("a");
            let read = runtime.block_on(slow.query_stale::<String>(&busy));
            told.store(true, Ordering::Release);
            assert_eq!(read?, "1");
            Ok(())
        });
        let before = calls(&server, "get").await?;
        while !over.load(Ordering::Acquire) {
            assert_eq!(stale(&store, "a").await?.as_deref(), Some("1"));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let asked = calls(&server, "get").await? - before;
        script.join().expect("it does not panic")?;
        if asked > 0 {
            return Ok(());
        }
    }
    panic!("no read was left to the server");
}

#[tokio::test]
async fn an_error_of_the_copy_in_a_pipeline_leads_to_the_server() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = connect(&mirrored(&server.url(), OLD)).await?;
    let graph = Graph::new(&store, "app", "people")?;
    let _ = graph.follow("ann", "bob").await?;
    // Its keys are of another type from now on: whoever counts fails.
    let keys: Vec<String> = server.query(&["KEYS", "*"]).await?;
    for key in &keys {
        set(&store, key, "text").await?;
    }
    let last = keys.last().context("there are keys")?;
    until("the copy has that", async || {
        let read = stale(&store, last).await;
        status(&store).answers && read.is_ok_and(|text| text.as_deref() == Some("text"))
    })
    .await;
    let before = calls(&server, "zcard").await?;
    assert!(graph.counts("ann").await.is_err());
    assert!(
        calls(&server, "zcard").await? > before,
        "the copy's word was enough"
    );
    Ok(())
}
