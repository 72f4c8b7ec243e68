//! Replicas answer reads that may be stale, and nothing else.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use redstart::{
    Store,
    counting::{Counter, Keep},
    limiting::{Limiter, Quota},
    locking::Mutex,
    ranking::{Leaderboard, Policy},
};
use redstart_testkit::{Cluster, Kind, Sentinel, Server, eventually};

const PATIENCE: Duration = Duration::from_secs(60);

/// How often clients called a command on these servers. What a master does comes to its replicas as single writes, never as
/// a read or a script.
async fn calls(servers: &[&Server], command: &str) -> anyhow::Result<u64> {
    let mut sum = 0;
    for server in servers {
        let stats: String = server.query(&["INFO", "commandstats"]).await?;
        let name = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&name));
        let count = line.and_then(|line| line.split(',').next());
        sum += count.map_or(Ok(0), str::parse::<u64>)?;
    }
    Ok(sum)
}

struct Patterns {
    counter: Counter,
    board: Leaderboard,
    mutex: Mutex,
    limiter: Limiter,
}

impl Patterns {
    fn new(store: &Store) -> anyhow::Result<Self> {
        Ok(Self {
            counter: Counter::new(store, "app", "views", Keep::Forever)?,
            board: Leaderboard::new(store, "app", "weekly")?,
            mutex: Mutex::new(store, "app", "order")?,
            limiter: Limiter::token_bucket(store, "app", "api", Quota::per_second(1000)).build()?,
        })
    }

    async fn read(&self) -> redstart::Result<(i64, usize)> {
        Ok((
            self.counter.get("front").await?,
            self.board.top(10).await?.len(),
        ))
    }

    /// What must never be stale.
    async fn decide(&self) -> anyhow::Result<()> {
        for _ in 0..20 {
            let guard = self.mutex.lock(PATIENCE).await?.context("not granted")?;
            ensure!(
                self.mutex.holder().await?.is_some(),
                "a lock that was just taken is held"
            );
            guard.release().await?;
            ensure!(self.mutex.holder().await?.is_none());
            let _ = self.limiter.check("user", 1).await?;
            let _ = self.limiter.peek("user").await?;
        }
        Ok(())
    }
}

/// Reads arrive at the replicas, decisions do not; without replicas the master answers.
async fn only_stale_reads_go_to(
    url: &str,
    replicas: &[&Server],
    break_replicas: impl AsyncFn(usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let deadline = Duration::from_secs(4);
    let plain = Store::builder(url).deadline(deadline).connect().await?;
    let without = Patterns::new(&plain)?;
    without.counter.add("front", 3).await?;
    without.board.submit("ann", 10.0, Policy::Last).await?;
    for _ in 0..10 {
        assert_eq!(without.read().await?, (3, 1));
    }
    without.decide().await?;
    for command in ["get", "evalsha", "eval"] {
        assert_eq!(
            calls(replicas, command).await?,
            0,
            "nobody asked for replicas"
        );
    }

    let store = Store::builder(url)
        .deadline(deadline)
        .replica_reads()
        .connect()
        .await?;
    let patterns = Patterns::new(&store)?;
    patterns.decide().await?;
    for command in ["get", "evalsha", "eval"] {
        assert_eq!(
            calls(replicas, command).await?,
            0,
            "a decision is never stale"
        );
    }
    // The connections are made in the background, and each replica has to learn the script.
    let read = eventually(PATIENCE, async || {
        let read = patterns.read().await.expect("read");
        let (gets, scripts) = (
            calls(replicas, "get").await,
            calls(replicas, "evalsha").await,
        );
        read == (3, 1) && gets.is_ok_and(|n| n > 5) && scripts.is_ok_and(|n| n > 5)
    });
    ensure!(read.await, "the replicas were not asked");
    let before = calls(replicas, "evalsha").await? + calls(replicas, "eval").await?;
    patterns.decide().await?;
    let after = calls(replicas, "evalsha").await? + calls(replicas, "eval").await?;
    assert_eq!(before, after, "a decision is never stale");

    // A write comes through sooner or later.
    patterns.counter.add("front", 1).await?;
    let come = eventually(PATIENCE, async || {
        patterns.read().await.is_ok_and(|read| read.0 == 4)
    });
    ensure!(come.await);

    // Hung, and then dead: the master answers, and no read fails.
    for how in 0..2 {
        break_replicas(how).await?;
        for _ in 0..10 {
            assert_eq!(patterns.read().await?, (4, 1));
        }
    }
    patterns.decide().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_replicas_behind_sentinels_answer_reads_that_may_be_stale() -> anyhow::Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let replicas: Vec<&Server> = group.servers()[1..].iter().collect();
    only_stale_reads_go_to(&group.url(), &replicas, async |how| {
        for replica in &replicas {
            match how {
                0 => replica.pause()?,
                _ => replica.kill9(),
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_replicas_of_a_cluster_answer_reads_that_may_be_stale() -> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Valkey, 3, 1).await?;
    let replicas: Vec<&Server> = (3..6).map(|node| cluster.node(node)).collect();
    only_stale_reads_go_to(&cluster.url(), &replicas, async |how| {
        for replica in &replicas {
            match how {
                0 => replica.pause()?,
                _ => replica.kill9(),
            }
        }
        Ok(())
    })
    .await
}

/// The numbers of the connections that have asked for keys.
async fn readers(server: &Server) -> anyhow::Result<Vec<String>> {
    let list: String = server.query(&["CLIENT", "LIST", "TYPE", "NORMAL"]).await?;
    let readers = list.lines().filter(|line| line.contains(" cmd=get "));
    let ids = readers.filter_map(|line| line.strip_prefix("id=")?.split(' ').next());
    Ok(ids.map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_replica_that_hangs_costs_the_others_no_connection() -> anyhow::Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let replicas: Vec<&Server> = group.servers()[1..].iter().collect();
    let store = Store::builder(&group.url())
        .deadline(Duration::from_secs(8))
        .replica_reads()
        .connect()
        .await?;
    let read = async || {
        let store = store.clone();
        let reads = (0..50).map(move |_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut get = redis::cmd("GET");
                store.query_stale::<Option<String>>(get.arg("k")).await
            })
        });
        for read in reads.collect::<Vec<_>>() {
            read.await??;
        }
        anyhow::Ok(())
    };
    let connected = eventually(PATIENCE, async || {
        read().await.is_ok()
            && futures_util::future::join_all(replicas.iter().map(|server| readers(server)))
                .await
                .iter()
                .all(|ids| ids.as_ref().is_ok_and(|ids| ids.len() == 1))
    });
    ensure!(connected.await, "the replicas were not asked");
    let (hung, healthy) = (replicas[0], replicas[1]);
    let before = readers(healthy).await?;
    hung.pause()?;
    for _ in 0..3 {
        read().await?;
    }
    let after = readers(healthy).await?;
    hung.resume()?;
    assert_eq!(before, after, "the connection was closed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_reads_go_on_when_a_replica_takes_the_place_of_its_master() -> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Redis, 3, 1).await?;
    let store = Store::builder(&cluster.url())
        .deadline(Duration::from_secs(4))
        .replica_reads()
        .connect()
        .await?;
    let counter = Counter::new(&store, "app", "views", Keep::Forever)?;
    for n in 0..30 {
        counter.add(&format!("page-{n}"), n).await?;
    }
    let replicas: Vec<&Server> = (3..6).map(|node| cluster.node(node)).collect();
    let all = async || {
        for n in 0..30 {
            if counter.get(&format!("page-{n}")).await.ok()? != n {
                return None;
            }
        }
        Some(())
    };
    let read = eventually(PATIENCE, async || {
        all().await.is_some() && calls(&replicas, "get").await.is_ok_and(|n| n > 60)
    });
    ensure!(read.await, "the replicas were not asked");
    cluster.node(0).kill9();
    cluster.wait_promotion(0).await?;
    ensure!(eventually(PATIENCE, async || all().await.is_some()).await);
    for n in 0..30 {
        counter.add(&format!("page-{n}"), 1).await?;
    }
    Ok(())
}

#[tokio::test]
async fn only_commands_that_change_nothing_may_be_stale() -> anyhow::Result<()> {
    // The same URL parameters work everywhere.
    Store::connect("memory://?replica_reads=1").await?;
    let store = Store::builder("memory://")
        .replica_reads()
        .connect()
        .await?;
    store
        .query::<()>(redis::cmd("SET").arg("k").arg("v"))
        .await?;
    let value: String = store.query_stale(redis::cmd("GET").arg("k")).await?;
    assert_eq!(value, "v");
    for write in ["DEL", "INCR", "EVALSHA", "GETDEL"] {
        let refused = store
            .query_stale::<redis::Value>(redis::cmd(write).arg("k"))
            .await;
        assert!(refused.unwrap_err().is_config(), "{write}");
    }
    for cursor in ["SCAN", "hscan", "SSCAN", "ZSCAN"] {
        let refused = store
            .query_stale::<redis::Value>(redis::cmd(cursor).arg("k").arg(0))
            .await;
        assert!(refused.unwrap_err().is_config(), "{cursor}");
    }
    Ok(())
}
