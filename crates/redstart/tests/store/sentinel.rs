//! Sentinels that disagree, do not answer, or know nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redstart::{
    Down, Store,
    limiting::{DecidedBy, Decision, Limiter, Quota},
};
use redstart_testkit::{Answer, Kind, Server, Stub, eventually, stub::bulk};

const PATIENCE: Duration = Duration::from_secs(60);

/// A sentinel's answer to "who is the master?".
fn names(server: &Server) -> String {
    let port = server.port().to_string();
    format!("*2\r\n{}{}", bulk("127.0.0.1"), bulk(&port))
}

/// Answers what every connection says first, and `master` to the question for the master.
fn sentinel(command: &[String], master: impl FnOnce() -> Answer) -> Answer {
    match command[0].as_str() {
        "SENTINEL" => master(),
        "SUBSCRIBE" => Answer::Reply(format!(
            ">3\r\n{}{}:1\r\n",
            bulk("subscribe"),
            bulk("+switch-master")
        )),
        _ => Answer::ok(),
    }
}

fn url(sentinels: &[&Stub]) -> String {
    let all: Vec<&str> = sentinels.iter().map(|stub| stub.addr()).collect();
    format!("redis+sentinel://{}/main", all.join(","))
}

fn set() -> redis::Cmd {
    let mut cmd = redis::cmd("SET");
    cmd.arg("k").arg("v");
    cmd
}

async fn has_key(server: &Server) -> anyhow::Result<bool> {
    server.query(&["EXISTS", "k"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sentinel_that_is_fast_does_not_decide_alone() -> anyhow::Result<()> {
    let old = Server::builder(Kind::Redis).start().await?;
    let new = Server::builder(Kind::Redis).start().await?;
    let answer = names(&old);
    let fast =
        Stub::start(move |command| sentinel(command, || Answer::Reply(answer.clone()))).await?;
    let slow = async || {
        let answer = names(&new);
        let late = Duration::from_millis(400);
        Stub::start(move |command| sentinel(command, || Answer::Later(late, answer.clone()))).await
    };
    let (second, third) = (slow().await?, slow().await?);
    let store = Store::builder(&url(&[&fast, &second, &third]))
        .deadline(PATIENCE)
        .connect()
        .await?;
    store.query::<()>(&set()).await?;
    assert!(
        !has_key(&old).await?,
        "written to the master that was replaced"
    );
    assert!(has_key(&new).await?);
    Ok(())
}

/// Two sentinels say that there is a new master and are too slow to repeat it; the third has not heard of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_sentinel_said_counts_while_it_does_not_answer() -> anyhow::Result<()> {
    let old = Server::builder(Kind::Redis).start().await?;
    let new = Server::builder(Kind::Redis).start().await?;
    let hung = Arc::new(AtomicBool::new(false));
    let mut stubs = Vec::new();
    for n in 0..3 {
        let (answer, hung) = (names(&old), hung.clone());
        let hangs = move || n > 0 && hung.load(Ordering::SeqCst);
        let master = move |command: &[String]| {
            sentinel(command, || match hangs() {
                true => Answer::Never,
                false => Answer::Reply(answer.clone()),
            })
        };
        stubs.push(Stub::start(master).await?);
    }
    let store = Store::builder(&url(&[&stubs[0], &stubs[1], &stubs[2]]))
        .deadline(Duration::from_secs(5))
        .connect()
        .await?;
    store.query::<()>(&set()).await?;
    assert!(has_key(&old).await?);
    // Each is listened to, and the question behind the subscription is answered.
    let asked = |stub: &Stub| {
        let heard = stub.heard();
        let subscribed = heard.iter().position(|command| command[0] == "SUBSCRIBE");
        subscribed.is_some_and(|at| heard[at..].iter().any(|command| command[0] == "SENTINEL"))
    };
    assert!(eventually(PATIENCE, async || stubs.iter().all(asked)).await);
    tokio::time::sleep(Duration::from_millis(200)).await;

    hung.store(true, Ordering::SeqCst);
    let (from, to) = (old.port(), new.port());
    let text = format!("main 127.0.0.1 {from} 127.0.0.1 {to}");
    for stub in &stubs[1..] {
        stub.push(&format!(
            ">3\r\n{}{}{}",
            bulk("message"),
            bulk("+switch-master"),
            bulk(&text)
        ));
    }
    let written = eventually(PATIENCE, async || {
        let _ = store.query::<()>(&set()).await;
        has_key(&new).await.unwrap_or(false)
    });
    assert!(written.await, "one sentinel of three decides");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_sentinels_decide_if_the_others_hang() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let answer = names(&server);
    let knows =
        Stub::start(move |command| sentinel(command, || Answer::Reply(answer.clone()))).await?;
    let (one, two) = (
        Stub::start(|_| Answer::Never).await?,
        Stub::start(|_| Answer::Never).await?,
    );
    let store = Store::builder(&url(&[&one, &knows, &two]))
        .deadline(Duration::from_secs(6))
        .lazy()
        .connect()
        .await?;
    let works = eventually(PATIENCE, async || store.query::<()>(&set()).await.is_ok());
    assert!(works.await);
    Ok(())
}

/// A sentinel that was just started knows no master yet. While the others are down, that is a store that is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_knows_no_master_yet_is_no_wrong_configuration() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let knows = Arc::new(AtomicBool::new(false));
    let new = {
        let (answer, knows) = (names(&server), knows.clone());
        Stub::start(move |command| {
            sentinel(command, || match knows.load(Ordering::SeqCst) {
                true => Answer::Reply(answer.clone()),
                false => Answer::Reply("*-1\r\n".to_owned()),
            })
        })
        .await?
    };
    let other = async || {
        let answer = names(&server);
        let stub =
            Stub::start(move |command| sentinel(command, || Answer::Reply(answer.clone()))).await?;
        stub.close();
        anyhow::Ok(stub)
    };
    let (second, third) = (other().await?, other().await?);
    let store = Store::builder(&url(&[&new, &second, &third]))
        .deadline(Duration::from_secs(1))
        .lazy()
        .connect()
        .await?;
    let limiter = |down| {
        Limiter::fixed_window(&store, "sentinel", "api", Quota::per_day(100))
            .on_store_down(down)
            .build()
    };
    let grant = limiter(Down::Allow)?.check("u", 1).await?.allowed();
    assert_eq!(grant.expect("allowed").decided_by(), DecidedBy::Policy);
    let error = limiter(Down::Fail)?.check("u", 1).await.unwrap_err();
    assert!(error.is_unavailable() || error.is_timeout(), "{error:?}");
    // Nothing has to be restarted when they are back.
    second.open();
    third.open();
    knows.store(true, Ordering::SeqCst);
    let limiter = limiter(Down::Allow)?;
    let counts = eventually(
        PATIENCE,
        async || matches!(limiter.check("u", 1).await, Ok(Decision::Allowed(grant)) if grant.decided_by() == DecidedBy::Store),
    );
    assert!(counts.await);
    drop(store);

    // If all of them answer, and none knows it, the name is wrong.
    let all = async || {
        Stub::start(|command| sentinel(command, || Answer::Reply("*-1\r\n".to_owned()))).await
    };
    let error = Store::connect(&url(&[&all().await?, &all().await?, &all().await?]))
        .await
        .unwrap_err();
    assert!(error.is_config(), "{error:?}");
    Ok(())
}
