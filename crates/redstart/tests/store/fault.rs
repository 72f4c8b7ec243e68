//! Servers that die, hang, move and fail over under a store that goes on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use redstart::{
    Store,
    key::Keys,
    script::Script,
    store::{Event, Listen},
};
use redstart_testkit::{Cluster, Kind, Proxy, Sentinel, Server, eventually, scale};

const PATIENCE: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_millis(400);

static ADD: Script = Script::new("test.add", "return redis.call('INCRBY', KEYS[1], ARGV[1])");
static ADD_ONCE: Script = Script::new(
    "test.add_once",
    "if redis.call('SET', KEYS[2], 1, 'NX', 'PX', 60000) then redis.call('INCRBY', KEYS[1], ARGV[1]) end \
     return redis.call('GET', KEYS[1])",
);

/// A call that must fail, soon, and for a reason that says it was the store's fault.
async fn fails_in_time(store: &Store) {
    let started = Instant::now();
    let error = store
        .query::<i64>(redis::cmd("INCR").arg("n"))
        .await
        .expect_err("the store cannot answer");
    assert!(error.is_unavailable() || error.is_timeout(), "{error:?}");
    // Its deadline is 400 ms; a noisy machine gets fifty times that before it counts as a hang.
    assert!(started.elapsed() < DEADLINE * 50, "{:?}", started.elapsed());
}

async fn works_again(store: &Store) {
    let cmd = redis::cmd("PING");
    assert!(eventually(PATIENCE, async || store.query::<String>(&cmd).await.is_ok()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_killed_cut_or_hung_servers_fail_calls_in_time_and_are_used_again()
-> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let proxy = Proxy::start(&server).await?;
        let store = Store::builder(proxy.url())
            .deadline(DEADLINE)
            .connect()
            .await?;
        works_again(&store).await;

        server.kill9();
        fails_in_time(&store).await;
        fails_in_time(&store).await;
        server.restart().await?;
        works_again(&store).await;

        proxy.cut().await?;
        works_again(&store).await;

        proxy.black_hole();
        fails_in_time(&store).await;
        fails_in_time(&store).await;
        proxy.pass().await;
        works_again(&store).await;

        server.pause()?;
        fails_in_time(&store).await;
        server.resume()?;
        works_again(&store).await;

        proxy.refuse().await;
        proxy.cut().await?;
        fails_in_time(&store).await;
        proxy.pass().await;
        works_again(&store).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_no_task_is_left_behind() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    {
        let store = Store::builder(proxy.url())
            .deadline(DEADLINE)
            .pool(4)
            .connect()
            .await?;
        let channel = Keys::new("app", "x")?.entity("x")?.channel("c");
        let _subscription = store
            .subscribe([redstart::store::Listen::Sharded(channel)])
            .await?;
        proxy.black_hole();
        let calls = (0..50).map(|_| async {
            let _ = store.query::<i64>(redis::cmd("INCR").arg("n")).await;
        });
        futures_util::future::join_all(calls).await;
        proxy.cut().await?;
    }
    // The proxy's own tasks end with the connections that the store dropped.
    let ended = eventually(PATIENCE, async || metrics.num_alive_tasks() <= before).await;
    assert!(
        ended,
        "{} tasks, {before} before",
        metrics.num_alive_tasks()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_write_whose_reply_was_dropped_is_in_doubt_and_applied_once() -> anyhow::Result<()>
{
    let server = Server::builder(Kind::Redis).start().await?;
    let direct = Store::connect(&server.url()).await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_secs(5))
        .connect()
        .await?;
    let keys = Keys::new("app", "once")?;
    let rounds = scale(5, "DROPPED_REPLIES");
    for round in 0..rounds {
        let entity = keys.entity(&format!("plain-{round}"))?;
        let count = async || {
            direct
                .query::<Option<i64>>(redis::cmd("GET").arg(entity.key()))
                .await
        };

        // A plain write, and a script: reported, never repeated.
        proxy.drop_reply_to(entity.key().as_str());
        let error = store
            .query::<i64>(redis::cmd("INCR").arg(entity.key()))
            .await
            .unwrap_err();
        assert!(error.is_in_doubt(), "{error:?}");
        proxy.pass().await;
        assert_eq!(count().await?, Some(1));

        works_again(&store).await;
        ADD.on(&entity)
            .part("warm")
            .arg(0)
            .run::<i64>(&store)
            .await?;
        proxy.drop_reply_to(entity.key().as_str());
        let error = ADD
            .on(&entity)
            .key()
            .arg(10)
            .run::<i64>(&store)
            .await
            .unwrap_err();
        assert!(error.is_in_doubt(), "{error:?}");
        proxy.pass().await;
        assert_eq!(count().await?, Some(11));

        // A script with a token may be repeated, and a read always.
        works_again(&store).await;
        let entity = keys.entity(&format!("token-{round}"))?;
        proxy.drop_reply_to(entity.key().as_str());
        let sum: i64 = ADD_ONCE
            .on(&entity)
            .key()
            .part("token")
            .arg(7)
            .idempotent()
            .run(&store)
            .await?;
        assert_eq!(sum, 7);
        proxy.pass().await;
        works_again(&store).await;
        proxy.drop_reply_to(entity.key().as_str());
        assert_eq!(
            store
                .query::<i64>(redis::cmd("GET").arg(entity.key()))
                .await?,
            7
        );
        proxy.pass().await;
        works_again(&store).await;
    }
    Ok(())
}

/// Writers that count what was acknowledged, each value once.
struct Writers {
    stop: Arc<AtomicBool>,
    any_safe: Arc<AtomicBool>,
    tasks: tokio::task::JoinSet<anyhow::Result<Vec<String>>>,
}

impl Writers {
    /// Each writer adds members to a set of its own and, after each, asks the server to wait until a
    /// replica has it. A member counts as safe when the write was acknowledged AND a WAIT that was sent
    /// after it on the same store said that a replica had everything up to there.
    fn start(store: &Store, namespace: &str, count: usize) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let any_safe = Arc::new(AtomicBool::new(false));
        let mut tasks = tokio::task::JoinSet::new();
        let keys = Keys::new(namespace, "writers")?;
        for writer in 0..count {
            let (store, stop, any_safe, entity) = (
                store.clone(),
                stop.clone(),
                any_safe.clone(),
                keys.entity(&format!("w{writer}"))?,
            );
            tasks.spawn(async move {
                let mut safe = Vec::new();
                let mut n = 0u64;
                // WAIT speaks of the connection that wrote, so each writer has one of its own.
                let mut own = store.dedicated(entity.key());
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let member = format!("{writer}-{n}");
                    let mut add = redis::cmd("SADD");
                    add.arg(entity.key()).arg(&member);
                    if own.query::<i64>(&add, Duration::ZERO).await.is_err() {
                        continue;
                    }
                    let mut wait = redis::cmd("WAIT");
                    wait.arg(1).arg(300);
                    if matches!(own.query::<i64>(&wait, Duration::from_millis(300)).await, Ok(n) if n >= 1) {
                        safe.push(member);
                        any_safe.store(true, Ordering::Relaxed);
                    }
                    tokio::task::yield_now().await;
                }
                Ok(safe)
            });
        }
        Ok(Self {
            stop,
            any_safe,
            tasks,
        })
    }

    /// Waits until there is something to lose.
    async fn wait_safe(&self) {
        let safe = eventually(PATIENCE, async || self.any_safe.load(Ordering::Relaxed));
        assert!(safe.await, "no write reached a replica");
    }

    async fn check(
        mut self,
        store: &Store,
        namespace: &str,
        count: usize,
    ) -> anyhow::Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        let mut safe = Vec::new();
        while let Some(ended) = self.tasks.join_next().await {
            safe.extend(ended??);
        }
        let keys = Keys::new(namespace, "writers")?;
        let mut there = std::collections::HashSet::new();
        for writer in 0..count {
            let entity = keys.entity(&format!("w{writer}"))?;
            let members: Vec<String> = store
                .query(redis::cmd("SMEMBERS").arg(entity.key()))
                .await?;
            there.extend(members);
        }
        for member in &safe {
            assert!(
                there.contains(member),
                "{member} was acknowledged and replicated, and is gone"
            );
        }
        Ok(safe.len())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_writes_go_on_through_a_sentinel_failover() -> anyhow::Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let store = Store::connect(&group.url()).await?;
    let writers = Writers::start(&store, "sentinel", 4)?;
    let writes = async || {
        store
            .query::<i64>(redis::cmd("INCR").arg("progress"))
            .await
            .is_ok()
    };
    assert!(eventually(PATIENCE, &writes).await);
    writers.wait_safe().await;
    let old = group.master().await?;
    group.server(old).kill9();
    group.wait_promotion(old).await?;
    assert!(
        eventually(PATIENCE, &writes).await,
        "the store did not follow"
    );
    let safe = writers.check(&store, "sentinel", 4).await?;
    assert!(safe > 0);
    Ok(())
}

/// A master that is replaced although it is well takes writes for seconds more, and then forgets them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_master_that_was_replaced_and_does_not_know_it_is_left_at_once()
-> anyhow::Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let store = Store::connect(&group.url()).await?;
    let port = async || {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg("port");
        let (_, port) = store.query::<(String, u16)>(&get).await.ok()?;
        Some(port)
    };
    let old = group.master().await?;
    assert_eq!(port().await, Some(group.server(old).port()));
    let channel = Listen::Channel("news".into());
    let mut news = store.subscribe([channel]).await?;
    assert!(matches!(news.next().await, Some(Event::Subscribed)));

    let new = group.failover().await?;
    let new_port = group.server(new).port();
    assert!(eventually(PATIENCE, async || port().await == Some(new_port)).await);
    assert_eq!(
        group.server(old).role().await?,
        "master",
        "the store was faster than the sentinels"
    );
    // Subscriptions too.
    loop {
        match tokio::time::timeout(PATIENCE, news.next()).await? {
            Some(Event::Resubscribed) => break,
            event => anyhow::ensure!(matches!(event, Some(Event::Lost)), "{event:?}"),
        }
    }
    let mut publish = redis::cmd("PUBLISH");
    publish.arg("news").arg("hello");
    // Each sentinel reports the switch, so the store may reconnect once more.
    let listens = eventually(PATIENCE, async || {
        store
            .query::<u64>(&publish)
            .await
            .is_ok_and(|told| told == 1)
    });
    assert!(listens.await, "it does not listen there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_writes_go_on_when_a_cluster_master_is_killed() -> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Redis, 3, 1).await?;
    let store = Store::connect(&cluster.url()).await?;
    let writers = Writers::start(&store, "cluster", 6)?;
    let victim_key = Keys::new("cluster", "writers")?.entity("w0")?;
    let victim = cluster.owner(victim_key.slot()).await?;
    let write = async || {
        store
            .query::<i64>(redis::cmd("INCR").arg(victim_key.part("progress")))
            .await
            .is_ok()
    };
    assert!(eventually(PATIENCE, &write).await);
    writers.wait_safe().await;
    cluster.node(victim).kill9();
    cluster.wait_promotion(victim).await?;
    assert!(
        eventually(PATIENCE, &write).await,
        "the store did not follow"
    );
    let safe = writers.check(&store, "cluster", 6).await?;
    assert!(safe > 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_slot_migration_goes_unnoticed() -> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Valkey, 3, 0).await?;
    let store = Store::builder(&cluster.url())
        .deadline(Duration::from_secs(10))
        .connect()
        .await?;
    let entity = Keys::new("moving", "writers")?.entity("slot")?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4 {
        let (store, stop, entity) = (store.clone(), stop.clone(), entity.clone());
        tasks.spawn(async move {
            let mut done = 0i64;
            while !stop.load(Ordering::Relaxed) {
                // Single commands, scripts over two keys and pipelines; none of them may fail.
                store
                    .query::<i64>(redis::cmd("INCR").arg(entity.part(&format!("n{task}"))))
                    .await?;
                ADD.on(&entity)
                    .part("sum")
                    .arg(1)
                    .run::<i64>(&store)
                    .await?;
                let mut pipeline = redis::pipe();
                for n in 0..3 {
                    pipeline
                        .cmd("INCR")
                        .arg(entity.part(&format!("p{task}-{n}")))
                        .ignore();
                }
                store.pipeline::<()>(&pipeline).await?;
                done += 1;
            }
            Ok::<_, redstart::Error>((task, done))
        });
    }
    for _ in 0..scale(3, "MIGRATIONS") {
        let owner = cluster.owner(entity.slot()).await?;
        cluster.migrate_slot(entity.slot(), (owner + 1) % 3).await?;
    }
    stop.store(true, Ordering::Relaxed);
    let mut total = 0;
    while let Some(ended) = tasks.join_next().await {
        let (task, done) = ended??;
        total += done;
        for part in [
            format!("n{task}"),
            format!("p{task}-0"),
            format!("p{task}-2"),
        ] {
            let count: Option<i64> = store
                .query(redis::cmd("GET").arg(entity.part(&part)))
                .await?;
            assert_eq!(count.unwrap_or(0), done, "{part}");
        }
    }
    let sum: Option<i64> = store
        .query(redis::cmd("GET").arg(entity.part("sum")))
        .await?;
    assert_eq!(sum.unwrap_or(0), total);
    Ok(())
}

/// WAIT speaks of its own connection: on a new one, and on one that others share, it would confirm what nobody has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_wait_confirms_only_what_its_own_connection_wrote() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let cluster = Cluster::builder(kind)
            .masters(3)
            .replicas(1)
            .node_timeout(Duration::from_secs(60))
            .start()
            .await?;
        let store = Store::builder(&cluster.url())
            .deadline(Duration::from_secs(30))
            .connect()
            .await?;
        let entity = Keys::new("app", "wait")?.entity("x")?;
        let owner = cluster.owner(entity.slot()).await?;
        let replica = cluster.replicas_of(owner).await?[0];
        let mut set = redis::cmd("SET");
        set.arg(entity.key()).arg(1);
        let mut wait = redis::cmd("WAIT");
        wait.arg(1).arg(10_000);
        let refused = store.query::<u64>(&wait).await.unwrap_err();
        assert!(refused.is_config() && refused.to_string().contains("dedicated()"));
        let mut own = store.dedicated(entity.key());
        let patience = Duration::from_secs(10);
        own.query::<()>(&set, Duration::ZERO).await?;
        assert_eq!(
            own.query::<u64>(&wait, patience).await?,
            1,
            "{kind:?}: the replica answers"
        );
        cluster.node(replica).pause()?;
        let mut wait = redis::cmd("WAIT");
        wait.arg(1).arg(200);
        own.query::<()>(&set, Duration::ZERO).await?;
        assert_eq!(
            own.query::<u64>(&wait, patience).await?,
            0,
            "{kind:?}: nobody has it"
        );
        let mut both = redis::pipe();
        both.add_command(set.clone())
            .ignore()
            .add_command(wait.clone());
        let (confirmed,): (u64,) = own.pipeline(&both).await?;
        assert_eq!(confirmed, 0, "{kind:?}: in a pipeline too");
        // The connection that wrote is gone; the server has nothing to wait for on another one, and would answer 1.
        own.query::<()>(&set, Duration::ZERO).await?;
        cluster
            .node(owner)
            .command(&["CLIENT", "KILL", "TYPE", "normal"])
            .await?;
        for _ in 0..2 {
            let lost = own.query::<u64>(&wait, patience).await.unwrap_err();
            assert!(lost.is_unavailable(), "{kind:?}: {lost}");
        }
        let mut new = store.dedicated(entity.key());
        let nothing = new.query::<u64>(&wait, patience).await.unwrap_err();
        assert!(nothing.is_unavailable(), "{kind:?}: {nothing}");
        cluster.node(replica).resume()?;
    }
    Ok(())
}

/// Cursors of one process mean nothing to the next, which may end the walk at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_sample_through_a_restart_is_not_complete() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_secs(30))
        .connect()
        .await?;
    let fill = async |keys: u64| {
        let mut fill = redis::cmd("EVAL");
        fill.arg("for i = 1, ARGV[1] do redis.call('SET', i, 1) end");
        store.query::<()>(fill.arg(0).arg(keys)).await
    };
    let scans = async || {
        let stats: String = store.query(redis::cmd("INFO").arg("commandstats")).await?;
        let line = stats.lines().find(|line| line.starts_with("cmdstat_scan:"));
        anyhow::Ok(line.map(|line| line.split(',').next().unwrap_or_default().to_owned()))
    };
    for attempt in 1..=20 {
        fill(200_000 * attempt).await?;
        let whole = store.sample_for("1*", 10, Duration::MAX).await?;
        assert!(!whole.complete, "more match");
        let before = scans().await?;
        let sample = tokio::spawn({
            let store = store.clone();
            async move { store.sample_for("nothing*", 10, Duration::MAX).await }
        });
        // It has begun when the server was asked.
        while scans().await? == before && !sample.is_finished() {
            tokio::task::yield_now().await;
        }
        server.kill9();
        let in_time = !sample.is_finished();
        server.restart().await?;
        let sample = sample.await?;
        if in_time {
            assert!(sample.is_err() || !sample?.complete);
            fill(1000).await?;
            assert!(
                store
                    .sample_for("nothing*", 10, Duration::MAX)
                    .await?
                    .complete
            );
            return Ok(());
        }
    }
    anyhow::bail!("the walk was always faster than the restart")
}
