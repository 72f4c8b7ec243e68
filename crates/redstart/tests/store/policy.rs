//! A server that answers and cannot write is down for every pattern, whatever it calls that.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use redstart::{
    Down, Error, Store,
    caching::{Cache, HitSource, Loaded},
    limiting::{DecidedBy, Decision, Limiter, Quota},
    resilience::{Idempotency, Run, WorkError},
    sessions::Sessions,
};
use redstart_testkit::{Answer, Kind, Server, Stub, eventually};

const PATIENCE: Duration = Duration::from_secs(60);

fn is_down(error: &Error) -> bool {
    error.is_unavailable() || error.is_timeout()
}

/// Each pattern does what was chosen for a store that is down.
async fn policies_decide(store: &Store, what: &str) -> anyhow::Result<()> {
    let limiter = |down| {
        Limiter::token_bucket(store, "policy", "api", Quota::per_day(1))
            .on_store_down(down)
            .build()
    };
    let grant = limiter(Down::Allow)?.check("u", 1).await?.allowed();
    let grant = grant.expect("allowed by the policy");
    assert_eq!(grant.decided_by(), DecidedBy::Policy, "{what}");
    let Decision::Limited { snapshot, .. } = limiter(Down::Refuse)?.check("u", 1).await? else {
        panic!("{what}: not refused")
    };
    assert_eq!(snapshot.decided_by, DecidedBy::Policy, "{what}");
    let error = limiter(Down::Fail)?
        .check("u", 1)
        .await
        .err()
        .context("a failure")?;
    assert!(is_down(&error), "{what}: {error:?}");

    let cache = |down| {
        let cache = Cache::<str, u64>::builder(store, "policy", "rows");
        cache.ttl(PATIENCE).on_store_down(down).build()
    };
    let load = |_| async { Ok::<_, Error>(Loaded::Found(7)) };
    let hit = cache(Down::Allow)?.get_or_load("k", load).await?;
    assert_eq!(
        (hit.value.as_deref(), hit.source),
        (Some(&7), HitSource::Loaded),
        "{what}"
    );
    let error = cache(Down::Fail)?
        .get_or_load("k", load)
        .await
        .err()
        .context("a failure")?;
    assert!(is_down(&error), "{what}: {error:?}");

    let started = Arc::new(AtomicU64::new(0));
    let run = async |down| {
        let keys = Idempotency::builder(store, "policy", "pay");
        let keys = keys.on_store_down(down).build()?;
        let started = started.clone();
        let work = async move {
            started.fetch_add(1, Ordering::SeqCst);
            Ok::<u32, WorkError<String>>(1)
        };
        keys.run("a", b"5", work).await
    };
    let error = run(Down::Fail).await.err().context("a failure")?;
    assert!(is_down(&error) && !error.is_in_doubt(), "{what}: {error:?}");
    let refused = run(Down::Refuse).await?;
    assert!(matches!(refused, Run::Busy { .. }), "{what}: {refused:?}");
    assert_eq!(started.load(Ordering::SeqCst), 0, "{what}");
    assert_eq!(run(Down::Allow).await?, Run::Done(1), "{what}");
    assert_eq!(started.load(Ordering::SeqCst), 1, "{what}");

    // Sessions have no such policy: they fail, and the error says why.
    let sessions = Sessions::new(store, "policy", "web")?;
    let data = std::collections::BTreeMap::from([("theme", "dark")]);
    let error = sessions
        .create("ann", &data)
        .await
        .err()
        .context("a failure")?;
    assert!(is_down(&error), "{what}: {error:?}");
    Ok(())
}

async fn hasty(url: &str) -> redstart::Result<Store> {
    let store = Store::builder(url).deadline(Duration::from_millis(300));
    store.lazy().connect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_decide_whatever_a_server_says_that_cannot_write() -> anyhow::Result<()> {
    for refusal in [
        "MISCONF Errors writing to the AOF file: No space left on device",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "READONLY You can't write against a read only replica.",
        "NOREPLICAS Not enough good replicas to write.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "LOADING Redis is loading the dataset in memory",
    ] {
        let stub = Stub::start(move |command| match command[0].as_str() {
            "CLIENT" => Answer::ok(),
            _ => Answer::Reply(format!("-{refusal}\r\n")),
        })
        .await?;
        policies_decide(&hasty(&stub.url()).await?, refusal).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_decide_on_a_replica_and_behind_a_script_without_end() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("busy-reply-threshold", "20")
        .start()
        .await?;
    let store = hasty(&server.url()).await?;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await?;
    policies_decide(&store, "a replica").await?;
    server.command(&["REPLICAOF", "NO", "ONE"]).await?;

    let mut client = server.client().await?;
    let busy = tokio::spawn(async move {
        let mut script = redis::cmd("EVAL");
        script.arg("while true do end").arg(0);
        script.query_async::<()>(&mut client).await
    });
    let is_busy = eventually(PATIENCE, async || {
        let asked = store.query::<()>(redis::cmd("GET").arg("k")).await;
        asked.is_err_and(|error| error.server_code() == Some("BUSY"))
    });
    assert!(is_busy.await, "the script does not run");
    policies_decide(&store, "a script without end").await?;
    server.command(&["SCRIPT", "KILL"]).await?;
    assert!(busy.await?.is_err());
    Ok(())
}
