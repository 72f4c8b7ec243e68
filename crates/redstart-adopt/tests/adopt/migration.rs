//! The steps of a plan, done and taken back under the load of the old clients.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::{
    Budget, Declared, Library, Migration, Outcome, Plan, StepReport,
    bullmq::{BullQueue, JobError, Taken},
    cache::SharedCache,
    lock, recognise,
    sessions::ConnectSessions,
};
use redstart_testkit::{Foreign, Kind, Language, Server, figure, scale, wait_until};
use serde_json::Value;

use crate::{library, long, served};

const HOUR: Duration = Duration::from_secs(3600);

async fn told(program: &mut Foreign, line: &str) -> Result<()> {
    program.tell(line)?;
    ensure!(program.line().await? == "ok", "{line}");
    Ok(())
}

async fn done(migration: &Migration) -> Result<StepReport> {
    match migration.step(&mut |_| ()).await? {
        Outcome::Done(report) => Ok(report),
        other => bail!("{other:?}"),
    }
}

async fn all_back(migration: &Migration, steps: usize) -> Result<()> {
    for _ in 0..steps {
        let outcome = migration.back(&mut |_| ()).await?;
        ensure!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    }
    assert_eq!(migration.back(&mut |_| ()).await?, Outcome::Nothing);
    assert_eq!(migration.done().await?, [""; 0]);
    Ok(())
}

async fn without_ttl(store: &Store) -> Result<usize> {
    let mut bare = 0;
    for key in store.scan("product:[0-9]*").await? {
        let left: i64 = store.query(cmd("PTTL").arg(key)).await?;
        bare += usize::from(left == -1);
    }
    Ok(bare)
}

async fn cache_steps(store: &Store) -> Result<()> {
    let cache = Migration::declared(store, "product:*", Declared::Cache)?.ttl(HOUR);
    done(&cache).await?;
    let before = without_ttl(store).await?;
    ensure!(before > 0, "the old clients have written nothing");
    let next = cache.next().await?.context("share")?;
    assert_eq!((next.step, next.changes.len()), ("share", 1));
    assert!(without_ttl(store).await? > 0, "looking changes nothing");
    done(&cache).await?;
    let after = without_ttl(store).await?;
    ensure!(after < before, "{after} of {before} entries have no TTL");
    assert!(cache.next().await?.is_none());
    assert_eq!(cache.step(&mut |_| ()).await?, Outcome::Nothing);
    // Both sides on the same entries.
    let products = SharedCache::<Value>::builder(store, HOUR)
        .prefix("product:")
        .build()?;
    for n in 0..80 {
        let key = format!("product:{n}");
        let load = || async { anyhow::Ok(serde_json::json!({"key": key, "name": "cup"})) };
        assert_eq!(
            products.get_or_load(&n.to_string(), load).await?["key"],
            key
        );
        if n % 3 == 0 {
            let _ = products.invalidate(&n.to_string()).await?;
        }
    }
    let touched = store.scan("redstart:adopt:*touched").await?;
    assert_eq!(touched.len(), 1);
    let noted: Vec<String> = store.query(cmd("SMEMBERS").arg(&touched[0])).await?;
    all_back(&cache, 2).await?;
    for key in noted {
        let left: i64 = store.query(cmd("PTTL").arg(&key)).await?;
        assert!(left < 0, "{key} still ends in {left} ms");
    }
    Ok(())
}

async fn lock_steps(store: &Store, old: &mut Foreign) -> Result<()> {
    let locks = Migration::declared(store, "lock:stock", Declared::Locks)?;
    done(&locks).await?;
    done(&locks).await?;
    let stock = lock::mutex(store, "lock:stock")
        .unfenced()
        .poll(Duration::from_millis(1))
        .build()?;
    for _ in 0..20 {
        let guard = stock.lock(long()).await?.context("the lock")?;
        let inside: i64 = store.query(cmd("INCR").arg("lock:stock:inside")).await?;
        assert_eq!(inside, 1, "an old client is inside");
        let _: i64 = store.query(cmd("DECR").arg("lock:stock:inside")).await?;
        let _ = guard.release().await?;
    }
    // An old client that holds the lock blocks the switch; nothing is remembered.
    told(old, "locks off").await?;
    let () = store.query(cmd("SET").arg("lock:stock").arg("old")).await?;
    let blocked = locks.step(&mut |_| ()).await?;
    let Outcome::Blocked(report) = blocked else {
        bail!("{blocked:?}")
    };
    assert!(
        report
            .found
            .iter()
            .any(|line| line.contains("without a TTL")),
        "{report:?}"
    );
    assert_eq!(locks.done().await?, ["shadow", "share"]);
    let () = store.query(cmd("DEL").arg("lock:stock")).await?;
    done(&locks).await?;
    all_back(&locks, 3).await?;
    told(old, "locks on").await
}

async fn session_steps(store: &Store, plan: &Plan) -> Result<()> {
    let item = plan
        .items
        .iter()
        .find(|item| item.library == Library::ConnectRedis);
    let sessions = Migration::of(store, item.context("the sessions are in the plan")?)?;
    let report = done(&sessions).await?;
    assert!(
        report.found[0].ends_with("sessions can be read"),
        "{report:?}"
    );
    done(&sessions).await?;
    let shared = ConnectSessions::new(store);
    for n in 0..20 {
        let id = format!("visitor{n:025}");
        let _ = shared.get(&id).await?.context("the session")?;
        assert!(shared.touch(&id).await?);
    }
    all_back(&sessions, 2).await
}

async fn queue_steps(store: &Store, plan: &Plan, old: &mut Foreign) -> Result<()> {
    let item = plan
        .items
        .iter()
        .find(|item| item.library == Library::BullMq);
    let item = item.context("the queue is in the plan")?;
    let mail = Migration::of(store, item)?.wait(Duration::from_millis(100));
    done(&mail).await?;
    done(&mail).await?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = BullQueue::new(store, "mail")?.worker().build()?;
    let handler = |_: Arc<Taken>| async { Ok::<_, JobError>("rust") };
    let ours =
        tokio::spawn(async move { worker.run(handler, async { drop(stopped.await) }).await });
    // Workers of Node are still there.
    let blocked = mail.step(&mut |_| ()).await?;
    assert!(matches!(blocked, Outcome::Blocked(_)), "{blocked:?}");
    told(old, "workers off").await?;
    let mut progress = 0;
    let patient = mail.clone().wait(long());
    let outcome = patient.step(&mut |_| progress += 1).await?;
    ensure!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    ensure!(progress > 0, "no progress was told");
    told(old, "adders off").await?;
    wait_until("the queue to be empty", long(), async || {
        match mail.step(&mut |_| ()).await.ok()? {
            Outcome::Done(report) => Some(report.step),
            _ => None,
        }
    })
    .await?;
    assert_eq!(mail.done().await?, ["shadow", "share", "drain", "switch"]);
    // The way back: Node adds and works again, and we stop.
    told(old, "adders on").await?;
    told(old, "workers on").await?;
    all_back(&mail, 4).await?;
    drop(stop);
    Ok(ours.await??)
}

async fn under_load(port: u16) -> Result<()> {
    let rounds = scale(1, "adopt migrations");
    let store = Store::connect(&format!("redis://127.0.0.1:{port}?timeout=10s")).await?;
    let at = port.to_string();
    let mut python = Foreign::start(Language::Python, &library("old_app.py"), &[&at])?;
    let mut node = Foreign::start(Language::Node, &library("old_app.js"), &[&at])?;
    assert_eq!(python.line().await?, "ready");
    assert_eq!(node.line().await?, "ready");
    let plan = wait_until(
        "the plan to have the sessions and the queue",
        long(),
        async || {
            let plan = Plan::of(&recognise(&store, &Budget::default()).await.ok()?);
            let item = |library| plan.items.iter().find(|item| item.library == library);
            let many = item(Library::ConnectRedis)?.subject.contains('*');
            (many && item(Library::BullMq).is_some()).then_some(plan)
        },
    )
    .await?;
    for _ in 0..rounds {
        cache_steps(&store).await?;
        lock_steps(&store, &mut python).await?;
        session_steps(&store, &plan).await?;
        queue_steps(&store, &plan, &mut node).await?;
    }
    assert_eq!(
        store.scan("redstart:adopt:*").await?,
        [""; 0],
        "nothing is left behind"
    );
    let mut all = 0;
    for program in [&mut python, &mut node] {
        program.tell("end")?;
        let end: Value = serde_json::from_str(&program.line().await?)?;
        ensure!(
            end["errors"] == serde_json::json!([]),
            "the old clients saw errors: {end}"
        );
        for (what, count) in end["done"].as_object().context("what was done")? {
            let count = count.as_u64().unwrap_or(0);
            ensure!(count > 0, "nothing was done for {what}");
            all += count;
        }
    }
    figure(format!(
        "{rounds} times every step of a cache, a lock, sessions and a queue and back, {all} operations of the old clients meanwhile, 0 errors"
    ));
    Ok(())
}

mod every_step_and_its_way_back_are_unseen_by_the_old_clients {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn redis() -> Result<()> {
        let server = Server::builder(Kind::Redis).start().await?;
        under_load(server.port()).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn valkey() -> Result<()> {
        let server = Server::builder(Kind::Valkey).start().await?;
        under_load(server.port()).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn engine() -> Result<()> {
        under_load(served::open()?).await
    }
}

/// A step that was interrupted after some entries is taken back, though it does not count as done.
#[tokio::test]
async fn an_interrupted_step_can_be_taken_back() -> Result<()> {
    let store = Store::connect("memory://").await?;
    for n in 0..450 {
        let () = store
            .query(cmd("SET").arg(format!("p:{n}")).arg("1"))
            .await?;
    }
    let () = store
        .query(cmd("SET").arg("p:own").arg("1").arg("EX").arg(7000))
        .await?;
    let () = store.query(cmd("RPUSH").arg("p:list").arg("1")).await?;
    let cache = Migration::declared(&store, "p:*", Declared::Cache)?;
    done(&cache).await?;
    // The first page is done, and then the caller is gone.
    let gone =
        std::panic::AssertUnwindSafe(async { cache.step(&mut |_| panic!("interrupted")).await });
    assert!(futures_util::FutureExt::catch_unwind(gone).await.is_err());
    store.settle().await;
    assert_eq!(cache.done().await?, ["shadow"]);
    let ends = async || -> Result<usize> {
        let mut ends = 0;
        for n in 0..450 {
            ends += usize::from(
                store
                    .query::<i64>(cmd("PTTL").arg(format!("p:{n}")))
                    .await?
                    > 0,
            );
        }
        Ok(ends)
    };
    let some = ends().await?;
    ensure!(some > 0 && some < 450, "{some} entries were given a TTL");
    let outcome = cache.back(&mut |_| ()).await?;
    ensure!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    assert_eq!(ends().await?, 0);
    let own: i64 = store.query(cmd("TTL").arg("p:own")).await?;
    assert!(own > 6000, "an entry with a TTL of its own keeps it");
    let left: i64 = store.query(cmd("TTL").arg("p:list")).await?;
    assert_eq!(left, -1, "only strings are entries");
    assert_eq!(store.scan("redstart:*").await?, [""; 0]);
    Ok(())
}

/// A session that is alone is its own subject.
#[tokio::test]
async fn a_single_session_is_read() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let session = r#"{"cookie":{"originalMaxAge":1000,"path":"/"}}"#;
    let set = cmd("SET")
        .arg("sess:alone")
        .arg(session)
        .arg("EX")
        .arg(60)
        .take();
    let () = store.query(&set).await?;
    let plan = Plan::of(&recognise(&store, &Budget::default()).await?);
    let sessions = Migration::of(&store, plan.items.first().context("the session")?)?;
    let report = done(&sessions).await?;
    assert_eq!(report.found, ["1 sessions can be read"]);
    let () = store.query(cmd("SET").arg("sess:alone").arg("{}")).await?;
    let outcome = sessions.step(&mut |_| ()).await?;
    assert!(matches!(outcome, Outcome::Blocked(_)), "{outcome:?}");
    Ok(())
}

#[tokio::test]
async fn what_has_no_steps_is_refused() -> Result<()> {
    let store = Store::connect("memory://").await?;
    for pattern in ["", "*", "**"] {
        let refused = Migration::declared(&store, pattern, Declared::Cache);
        assert!(refused.unwrap_err().is_invalid(), "{pattern:?}");
    }
    let () = store
        .query(cmd("HSET").arg("bull:old:1").arg("name").arg("x"))
        .await?;
    let first = Migration::declared(&store, "p:*", Declared::Cache)?;
    // One at a time.
    let () = store
        .query(cmd("SET").arg("redstart.adopt:mutex:{p:*}").arg("somebody"))
        .await?;
    assert!(first.step(&mut |_| ()).await.unwrap_err().is_invalid());
    assert!(first.back(&mut |_| ()).await.unwrap_err().is_invalid());
    Ok(())
}
