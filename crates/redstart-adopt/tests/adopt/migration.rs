//! The steps of a plan, done and taken back under the load of the old clients.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::{
    Budget, Declared, Library, Migration, Outcome, Plan, StepReport,
    bullmq::{BullQueue, JobError, Taken},
    cache::SharedCache,
    lock, recognise,
    sessions::ConnectSessions,
    sidekiq::{Sidekiq, Times},
};
use redstart_testkit::{
    Foreign, Kind, Language, Proxy, Server, figure, scale, unique_namespace, wait_until,
};
use serde_json::Value;

use crate::{Side, library, long, on, served};

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
    let noted: HashMap<String, i64> = store.query(cmd("HGETALL").arg(&touched[0])).await?;
    assert!(!noted.is_empty());
    all_back(&cache, 2).await?;
    for (key, given) in noted {
        let ends: i64 = store.query(cmd("PEXPIRETIME").arg(&key)).await?;
        assert_ne!(ends, given, "{key} still ends when it was made to");
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
        .find(|item| item.library == Some(Library::ConnectRedis));
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
        .find(|item| item.library == Some(Library::BullMq));
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
            let item = |library| plan.items.iter().find(|item| item.library == Some(library));
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
            .query(cmd("SET").arg(format!("p:{n}")).arg("v"))
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

/// A step that stood still for longer than its lock, while another process took the steps back: after whichever page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_lost_its_lock_does_not_undo_a_way_back() -> Result<()> {
    const PAGES: u64 = 3;
    for page in 1..=PAGES {
        let store = Store::connect("memory://").await?;
        for n in 0..450 {
            let () = store
                .query(cmd("SET").arg(format!("p:{n}")).arg("v"))
                .await?;
        }
        let cache = Migration::declared(&store, "p:*", Declared::Cache)?;
        done(&cache).await?;
        let (mut told, mut taken_back) = (0, None);
        let lost = cache
            .step(&mut |_| {
                told += 1;
                if told == page {
                    let work = async {
                        for key in store.scan("redstart.adopt*").await? {
                            let _: u64 = store.query(cmd("DEL").arg(key)).await?;
                        }
                        anyhow::Ok(cache.back(&mut |_| ()).await?)
                    };
                    let work = || tokio::runtime::Handle::current().block_on(work);
                    taken_back = Some(tokio::task::block_in_place(work));
                }
            })
            .await;
        let taken_back = taken_back.context("no page was told")??;
        ensure!(matches!(taken_back, Outcome::Done(_)), "{taken_back:?}");
        ensure!(lost.is_err(), "it did not learn of it: {lost:?}");
        assert_eq!(cache.done().await?, [""; 0], "after page {page}");
        for n in 0..450 {
            let left: i64 = store.query(cmd("PTTL").arg(format!("p:{n}"))).await?;
            assert_eq!(left, -1, "p:{n} ends, after page {page}");
        }
    }
    Ok(())
}

/// The record knows what the subject is. Whoever is wrong about it would forget how to take the steps back.
#[tokio::test]
async fn what_was_begun_as_a_cache_is_not_taken_back_as_locks() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let () = store.query(cmd("SET").arg("p:1").arg("v")).await?;
    let cache = Migration::declared(&store, "p:*", Declared::Cache)?;
    done(&cache).await?;
    done(&cache).await?;
    let locks = Migration::declared(&store, "p:*", Declared::Locks)?;
    for refused in [
        locks.back(&mut |_| ()).await.map(|_| ()),
        locks.step(&mut |_| ()).await.map(|_| ()),
        locks.next().await.map(|_| ()),
        locks.done().await.map(|_| ()),
    ] {
        let error = refused.err().context("it was taken")?;
        ensure!(error.is_invalid(), "{error}");
        ensure!(error.to_string().contains("cache"), "{error}");
    }
    let left = async || store.query::<i64>(cmd("PTTL").arg("p:1")).await;
    ensure!(left().await? > 0);
    all_back(&cache, 2).await?;
    assert_eq!(left().await?, -1);
    // Now it is nothing, and may be begun as anything.
    done(&locks).await?;
    all_back(&locks, 1).await
}

/// One key that is not UTF-8 does not keep the others from their TTL.
#[tokio::test]
async fn keys_that_are_no_text_are_given_a_ttl_and_taken_back() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let odd = b"p:\xff\xfe".as_slice();
    for key in [odd, b"p:1"] {
        let () = store.query(cmd("SET").arg(key).arg("v")).await?;
    }
    let cache = Migration::declared(&store, "p:*", Declared::Cache)?;
    done(&cache).await?;
    let report = done(&cache).await?;
    assert_eq!(report.changes, ["2 entries were given a TTL"]);
    let left = async || store.query::<i64>(cmd("PTTL").arg(odd)).await;
    ensure!(left().await? > 0);
    all_back(&cache, 2).await?;
    assert_eq!(left().await?, -1);
    Ok(())
}

/// A job that killed its consumers fails when the way back gives it back: with times as its own Sidekiq writes them.
#[tokio::test]
async fn the_way_back_writes_times_as_the_job_has_them() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let now = store.time().await?;
    let seconds = now.as_secs_f64();
    for (created, factor) in [
        (seconds.to_string(), 1.0),
        ((seconds * 1e3).round().to_string(), 1e3),
    ] {
        let sidekiq = Sidekiq::new(&store, Times::Seconds);
        sidekiq.push("q", "B", &[1]).await?;
        let plan = Plan::of(&recognise(&store, &Budget::default()).await?);
        let item = plan
            .items
            .iter()
            .find(|item| item.library == Some(Library::Sidekiq));
        let queue = Migration::of(&store, item.context("the queue is in the plan")?)?;
        done(&queue).await?;
        done(&queue).await?;
        // A consumer that died with a job which had killed two before.
        let job =
            format!(r#"{{"class":"A","jid":"a","args":[],"queue":"q","created_at":{created}}}"#);
        let member = "host:1:x|q";
        let list = format!("redstart:sidekiq:working:{member}");
        let _: u64 = store.query(cmd("LPUSH").arg(&list).arg(&job)).await?;
        let beat = cmd("ZADD")
            .arg("redstart:sidekiq:consumers")
            .arg(now.as_secs())
            .arg(member)
            .take();
        let _: u64 = store.query(&beat).await?;
        let digest = cmd("EVAL")
            .arg("return redis.sha1hex(ARGV[1])")
            .arg(0)
            .arg(&job)
            .take();
        let digest: String = store.query(&digest).await?;
        let recovered = cmd("HSET")
            .arg("redstart:sidekiq:recovered")
            .arg(digest)
            .arg(2)
            .take();
        let _: u64 = store.query(&recovered).await?;
        all_back(&queue, 2).await?;
        let retries: Vec<String> = store
            .query(cmd("ZRANGE").arg("retry").arg(0).arg(-1))
            .await?;
        ensure!(retries.len() == 1, "{retries:?}");
        let failed: Value = serde_json::from_str(&retries[0])?;
        let at = failed["failed_at"].as_f64().context("no time")? / factor;
        ensure!((at - seconds).abs() < 3600.0, "{failed}");
        let _: u64 = store.query(cmd("DEL").arg("retry").arg("queue:q")).await?;
    }
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
    for pattern in ["", "*", "**", "*:*"] {
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

/// What other programs have stored since has the TTL that they want; only what is as it was given is taken back.
async fn own_ttls(side: Side) -> Result<()> {
    let store = side.store().await?;
    let app = unique_namespace("ttl");
    let key = |name: &str| format!("{app}:{name}");
    let names = ["as-it-was", "stored-again", "bare-again", "gone", "a-lock"];
    for name in names {
        let () = store.query(cmd("SET").arg(key(name)).arg("v")).await?;
    }
    let ttl =
        async |name: &str| -> Result<i64> { Ok(store.query(cmd("TTL").arg(key(name))).await?) };
    let cache = Migration::declared(&store, &format!("{app}:*"), Declared::Cache)?;
    done(&cache).await?;
    done(&cache).await?;
    for name in names {
        assert!(ttl(name).await? > 3000, "{name}");
    }
    let set = |name: &str| cmd("SET").arg(key(name)).arg("new").take();
    let () = store.query(set("stored-again").arg("EX").arg(300)).await?;
    let () = store.query(&set("bare-again")).await?;
    let () = store.query(cmd("DEL").arg(key("gone"))).await?;
    let () = store.query(cmd("DEL").arg(key("a-lock"))).await?;
    let held = set("a-lock").arg("NX").arg("PX").arg(600_000).take();
    let () = store.query(&held).await?;
    all_back(&cache, 2).await?;
    assert_eq!((ttl("as-it-was").await?, ttl("gone").await?), (-1, -2));
    assert_eq!(ttl("bare-again").await?, -1);
    assert!(ttl("stored-again").await? > 0, "the entry is eternal");
    assert!(ttl("a-lock").await? > 0, "the lock is eternal");
    let record = format!("redstart:adopt:{{{app}*");
    assert_eq!(store.scan(&record).await?, [""; 0]);
    Ok(())
}
on!(own_ttls: a_ttl_that_a_program_has_set_since_is_not_taken_away);

/// One lock among many other keys, where a sample does not see it.
async fn one_of_many(store: Store) -> Result<()> {
    for first in (0..20_000).step_by(1000) {
        let mut fill = cmd("MSET");
        for n in first..first + 1000 {
            fill.arg(format!("other:{n}")).arg(1);
        }
        let () = store.query(&fill).await?;
    }
    let mut hidden = None;
    for n in 0..200 {
        let key = format!("lock:{n}");
        let () = store.query(cmd("SET").arg(&key).arg("theirs")).await?;
        if store.sample("lock:*", 1000).await?.is_empty() {
            hidden = Some(key);
            break;
        }
        let () = store.query(cmd("DEL").arg(&key)).await?;
    }
    let hidden = hidden.context("a sample sees every key")?;
    let locks = Migration::declared(&store, "lock:*", Declared::Locks)?;
    let report = done(&locks).await?;
    ensure!(
        report.found.iter().any(|line| line.contains(&hidden)),
        "the lock without a TTL is not reported: {report:?}"
    );
    done(&locks).await?;
    let blocked = locks.step(&mut |_| ()).await?;
    ensure!(matches!(blocked, Outcome::Blocked(_)), "{blocked:?}");
    // Nor does a name that is no text hide one.
    let () = store
        .query(cmd("RENAME").arg(&hidden).arg(b"lock:\xff".as_slice()))
        .await?;
    let blocked = locks.step(&mut |_| ()).await?;
    ensure!(matches!(blocked, Outcome::Blocked(_)), "{blocked:?}");
    let () = store.query(cmd("DEL").arg(b"lock:\xff".as_slice())).await?;
    assert_eq!(done(&locks).await?.step, "switch");
    Ok(())
}

mod a_lock_that_a_sample_would_miss_blocks_the_switch {
    use super::*;

    #[tokio::test]
    async fn embedded() -> Result<()> {
        one_of_many(Store::connect("memory://").await?).await
    }

    #[tokio::test]
    async fn redis() -> Result<()> {
        let server = Server::builder(Kind::Redis).start().await?;
        one_of_many(Store::connect(&format!("{}?timeout=10s", server.url())).await?).await
    }

    #[tokio::test]
    async fn valkey() -> Result<()> {
        let server = Server::builder(Kind::Valkey).start().await?;
        one_of_many(Store::connect(&format!("{}?timeout=10s", server.url())).await?).await
    }
}

/// A limiter, as its record says.
async fn limiter(store: &Store, pattern: &str) -> Result<Migration> {
    let record = cmd("HSET")
        .arg(format!("redstart:adopt:{{{pattern}}}"))
        .arg(&["kind", "limiter", "plan", "shadow,share"])
        .take();
    let _: u64 = store.query(&record).await?;
    let begun = Migration::begun(store, pattern).await?;
    begun.context("there is a record")
}

/// Windows end at every moment, also between the look at their names and the look at their values.
async fn ending_windows(side: Side) -> Result<()> {
    let store = side.store().await?;
    let proxy = Proxy::to(&format!("127.0.0.1:{}", side.port)).await?;
    let slow = Store::connect(&format!("{}?timeout=10s", proxy.url())).await?;
    let app = unique_namespace("windows");
    let pattern = format!("{app}:*");
    let migration = limiter(&slow, &pattern).await?;
    let mut fill = redis::pipe();
    for n in 1..=200 {
        fill.cmd("SET").arg(format!("{app}:{n}")).arg(n);
        fill.arg("PX").arg(5 * n).ignore();
    }
    proxy.delay_replies(Duration::from_millis(20));
    let () = store.pipeline(&fill).await?;
    assert_eq!(done(&migration).await?.step, "shadow");
    // What is no counter still blocks, of whatever type it is.
    let odd = format!("{app}:odd");
    let text = cmd("SET").arg(&odd).arg("text").take();
    let list = cmd("RPUSH").arg(&odd).arg("1").take();
    for write in [text, list] {
        let _: redis::Value = store.query(&write).await?;
        let blocked = migration.step(&mut |_| ()).await?;
        let Outcome::Blocked(report) = blocked else {
            bail!("{blocked:?}")
        };
        assert_eq!(report.blocked.as_deref(), Some("1 keys are no counters"));
        let _: u64 = store.query(cmd("DEL").arg(&odd)).await?;
    }
    Ok(())
}
on!(ending_windows: a_window_that_ends_during_the_check_does_not_block_a_limiter);

/// A failure of the store is its error, and says nothing about the data.
#[tokio::test]
async fn a_check_that_may_not_read_fails_and_blames_no_data() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let user = [
        "ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-get",
    ];
    server.command(&user).await?;
    server.command(&["SET", "rl:a", "1", "EX", "600"]).await?;
    let url = format!("redis://blind:pw@127.0.0.1:{}", server.port());
    let migration = limiter(&Store::connect(&url).await?, "rl:*").await?;
    let refused = migration.step(&mut |_| ()).await.unwrap_err();
    let code = refused.store().and_then(redstart::Error::server_code);
    assert_eq!(code, Some("NOPERM"), "{refused}");
    Ok(())
}

/// Free locks, empty queues and ended entries cannot be recognised; what was begun with them is still known.
#[tokio::test]
async fn what_was_begun_goes_on_and_back_without_its_keys() -> Result<()> {
    let store = Store::connect("memory://").await?;
    assert!(Migration::begun(&store, "lock:*").await?.is_none());
    let () = store.query(cmd("SET").arg("lock:a").arg("x")).await?;
    done(&Migration::declared(&store, "lock:*", Declared::Locks)?).await?;
    let () = store.query(cmd("DEL").arg("lock:a")).await?;
    let locks = Migration::begun(&store, "lock:*")
        .await?
        .context("the locks")?;
    assert_eq!(locks.purpose(), redstart_adopt::Purpose::Lock);
    assert_eq!(done(&locks).await?.step, "share");
    assert_eq!(done(&locks).await?.step, "switch");
    all_back(&locks, 3).await?;
    assert!(Migration::begun(&store, "lock:*").await?.is_none());

    // A queue that Node still schedules for has only the steps that it had.
    let meta = cmd("HSET")
        .arg("bull:mail:meta")
        .arg(&["version", "bullmq:6.7.0"])
        .take();
    let _: u64 = store.query(&meta).await?;
    let mut plan = Plan::of(&recognise(&store, &Budget::default()).await?);
    plan.items[0].steps.truncate(2);
    done(&Migration::of(&store, &plan.items[0])?).await?;
    let _: u64 = store.query(cmd("DEL").arg("bull:mail:meta")).await?;
    let mail = Migration::begun(&store, "bull:mail")
        .await?
        .context("the queue")?;
    assert_eq!(done(&mail).await?.step, "share");
    assert!(mail.next().await?.is_none());
    all_back(&mail, 2).await?;
    assert_eq!(store.scan("*").await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn only_the_step_that_was_agreed_to_is_done_or_taken_back() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let () = store.query(cmd("SET").arg("p:1").arg("v")).await?;
    let theirs = Migration::declared(&store, "p:*", Declared::Cache)?;
    let next = theirs.next().await?.context("shadow")?;
    let ours = theirs.clone().expecting(next.step);
    // Somebody else is faster.
    done(&theirs).await?;
    assert!(ours.step(&mut |_| ()).await.unwrap_err().is_invalid());
    assert_eq!(theirs.done().await?, ["shadow"]);
    done(&theirs).await?;
    let ours = theirs.clone().expecting("share");
    let outcome = theirs.back(&mut |_| ()).await?;
    ensure!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    assert!(ours.back(&mut |_| ()).await.unwrap_err().is_invalid());
    assert_eq!(theirs.done().await?, ["shadow"]);
    assert_eq!(done(&ours).await?.step, "share");
    Ok(())
}

/// A consumer that was killed is not known to be dead before its lease ends: until then its jobs are in nobody's queue.
async fn killed_consumer(side: Side) -> Result<()> {
    let store = side.store().await?;
    let app = unique_namespace("killed");
    let sidekiq = Sidekiq::new(&store, Times::Seconds).namespace(&app);
    sidekiq.push("q", "Charge", &[1]).await?;
    let subject = format!("{app}:queue:q");
    let record = cmd("HSET")
        .arg(format!("redstart:adopt:{{{subject}}}"))
        .arg(&["kind", "sidekiq", "plan", "shadow,share"])
        .arg(&["steps", "shadow,share"])
        .take();
    let _: u64 = store.query(&record).await?;
    let queue = Migration::begun(&store, &subject)
        .await?
        .context("a record")?;

    let consumer = sidekiq
        .consumer("q")
        .lease(Duration::from_secs(3))
        .build()?;
    let (has_begun, begun) = tokio::sync::oneshot::channel::<()>();
    let has_begun = std::sync::Mutex::new(Some(has_begun));
    let handler = |_: redstart_adopt::sidekiq::SidekiqJob| {
        drop(has_begun.lock().unwrap().take());
        std::future::pending::<Result<(), redstart_adopt::sidekiq::JobFailure>>()
    };
    tokio::select! {
        ended = consumer.run(handler, std::future::pending()) => bail!("{ended:?}"),
        _ = begun => {}
    }
    let outcome = queue.back(&mut |_| ()).await?;
    ensure!(matches!(outcome, Outcome::Blocked(_)), "{outcome:?}");
    assert_eq!(queue.done().await?, ["shadow", "share"]);
    wait_until("the step to be taken back", long(), async || {
        let outcome = queue.back(&mut |_| ()).await.ok()?;
        matches!(outcome, Outcome::Done(_)).then_some(())
    })
    .await?;
    let jobs: u64 = store.query(cmd("LLEN").arg(&subject)).await?;
    assert_eq!(jobs, 1);
    assert_eq!(queue.done().await?, ["shadow"]);
    Ok(())
}
on!(killed_consumer: sidekiq_is_not_taken_back_while_a_killed_consumer_may_live);

/// Schedulers that came after the plan was made.
#[tokio::test]
async fn a_queue_with_schedulers_is_neither_drained_nor_switched() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let meta = cmd("HSET")
        .arg("bull:mail:meta")
        .arg(&["version", "bullmq:6.7.0"])
        .take();
    let _: u64 = store.query(&meta).await?;
    let plan = Plan::of(&recognise(&store, &Budget::default()).await?);
    let mail = Migration::of(&store, plan.items.first().context("the queue")?)?;
    assert_eq!(mail.left_out(), [""; 0]);
    done(&mail).await?;
    done(&mail).await?;
    let mail = mail.wait(Duration::from_millis(1));
    let add = cmd("ZADD")
        .arg("bull:mail:repeat")
        .arg(1)
        .arg("digest")
        .take();
    for step in ["drain", "switch"] {
        let _: u64 = store.query(&add).await?;
        let blocked = mail.step(&mut |_| ()).await?;
        let Outcome::Blocked(report) = blocked else {
            bail!("{blocked:?}")
        };
        assert_eq!(report.step, step);
        let why = report.blocked.unwrap_or_default();
        assert!(why.contains("1 job schedulers"), "{why}");
        let _: u64 = store.query(cmd("DEL").arg("bull:mail:repeat")).await?;
        assert_eq!(done(&mail).await?.step, step);
    }
    // What was planned with schedulers has fewer steps, and says so.
    let _: u64 = store.query(&add).await?;
    let plan = Plan::of(&recognise(&store, &Budget::default()).await?);
    let mail = Migration::of(&store, plan.items.first().context("the queue")?)?;
    assert_eq!(mail.left_out(), ["drain", "switch"]);
    Ok(())
}
