//! The outbox: no job without its commit, no commit without its job.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    messaging::{Cancelled, Job, JobContext, JobPolicy, JobState, Outbox, Queue, Worker},
};
use redstart_testkit::{Backend, Child, Kind, Server, child, eventually, matrix, scale};
use serde::{Deserialize, Serialize};
use sqlx::{
    Sqlite, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};

use crate::queue::{LONG, Log, empty};

#[derive(Serialize, Deserialize)]
struct Confirm {
    order: u64,
}

impl Job for Confirm {
    const NAME: &'static str = "confirm";

    fn policy() -> JobPolicy {
        JobPolicy::new().attempts(7)
    }
}

async fn database(path: &str) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .busy_timeout(Duration::from_secs(20));
    let pool = SqlitePoolOptions::new()
        .max_connections(2)
        .connect_with(options)
        .await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
        .execute(&pool)
        .await?;
    Ok(pool)
}

async fn confirming(queue: &Queue, log: &Log) -> Result<Worker> {
    let log = log.clone();
    Ok(queue
        .worker(move |job: Confirm, _: JobContext| {
            let log = log.clone();
            async move { log.push(job.order) }
        })
        .start()
        .await?)
}

async fn order(pool: &SqlitePool, outbox: &Outbox<Sqlite>, order: u64, commit: bool) -> Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders (id) VALUES ($1)")
        .bind(order as i64)
        .execute(&mut *tx)
        .await?;
    outbox.enqueue(&mut tx, &Confirm { order }).await?;
    match commit {
        true => tx.commit().await?,
        false => tx.rollback().await?,
    }
    Ok(())
}

matrix! {
    async fn a_job_is_enqueued_exactly_if_its_transaction_is_committed(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let folder = tempfile::tempdir()?;
        let pool = database(folder.path().join("db").to_str().context("a path")?).await?;
        assert!(Outbox::<Sqlite>::new(&queue, "out; drop table orders").unwrap_err().is_config());
        let outbox = Outbox::<Sqlite>::new(&queue, "outbox")?;
        outbox.create_table(&pool).await?;
        for n in 0..20 {
            order(&pool, &outbox, n, n % 3 != 0).await?;
        }
        assert_eq!(queue.inspect().counts().await?.ready, 0);
        // As after a relay that died between the two steps: the rows are still there.
        let rows: Vec<(i64, String, String, String, String)> =
            sqlx::query_as("SELECT id, uid, kind, payload, policy FROM outbox").fetch_all(&pool).await?;
        assert_eq!(outbox.relay_once(&pool).await?, 13);
        for (id, uid, kind, payload, policy) in rows {
            sqlx::query("INSERT INTO outbox (id, uid, kind, payload, policy) VALUES ($1, $2, $3, $4, $5)")
                .bind(id).bind(uid).bind(kind).bind(payload).bind(policy)
                .execute(&pool).await?;
        }
        let log = Log::default();
        let worker = confirming(&queue, &log).await?;
        log.reaches(13).await?;
        empty(&queue).await?;
        // Even after the jobs have run.
        assert_eq!(outbox.relay_once(&pool).await?, 13);
        assert_eq!(outbox.relay_once(&pool).await?, 0);
        let relay = outbox.start_relay(&pool);
        order(&pool, &outbox, 100, true).await?;
        relay.notify();
        log.reaches(14).await?;
        empty(&queue).await?;
        let mut ran = log.all();
        ran.sort_unstable();
        let expected: Vec<u64> = (0..20).filter(|n| n % 3 != 0).chain([100]).collect();
        assert_eq!(ran, expected);
        relay.shutdown().await;
        worker.shutdown(LONG).await?;
        Ok(())
    }
}

matrix! {
    async fn a_row_whose_job_was_cancelled_is_not_enqueued_again_and_a_bad_row_blocks_no_other(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let folder = tempfile::tempdir()?;
        let pool = database(folder.path().join("db").to_str().context("a path")?).await?;
        let outbox = Outbox::<Sqlite>::new(&queue, "outbox")?;
        outbox.create_table(&pool).await?;
        order(&pool, &outbox, 1, true).await?;
        let row: (String, String, String, String) =
            sqlx::query_as("SELECT uid, kind, payload, policy FROM outbox").fetch_one(&pool).await?;
        assert_eq!(outbox.relay_once(&pool).await?, 1);
        let look = queue.inspect();
        let (jobs, _) = look.list(JobState::Ready, None).await?;
        assert_eq!(queue.cancel(jobs[0].id).await?, Cancelled::Ended);
        // As after a relay that died between the two steps, and beside a row that nobody can read.
        let insert = "INSERT INTO outbox (uid, kind, payload, policy) VALUES ($1, $2, $3, $4)";
        sqlx::query(insert).bind("bad").bind("confirm").bind("{}").bind("?").execute(&pool).await?;
        sqlx::query(insert).bind(row.0).bind(row.1).bind(row.2).bind(row.3).execute(&pool).await?;
        assert_eq!(outbox.relay_once(&pool).await?, 1);
        assert_eq!(look.counts().await?.unfinished(), 0, "the cancelled job is there again");
        order(&pool, &outbox, 2, true).await?;
        assert_eq!(outbox.relay_once(&pool).await?, 1);
        assert_eq!(look.counts().await?.ready, 1);
        assert!(outbox.relay_once(&pool).await.unwrap_err().is_codec(), "the bad row stays");
        Ok(())
    }
}

/// The rows that are left, by their ids.
async fn rows(pool: &SqlitePool) -> Result<Vec<(i64, String)>> {
    Ok(sqlx::query_as("SELECT id, policy FROM outbox ORDER BY id")
        .fetch_all(pool)
        .await?)
}

matrix! {
    async fn a_row_that_stays_holds_the_later_ones_of_its_group_and_no_others(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let folder = tempfile::tempdir()?;
        let pool = database(folder.path().join("db").to_str().context("a path")?).await?;
        let outbox = Outbox::<Sqlite>::new(&queue, "outbox")?;
        outbox.create_table(&pool).await?;
        let mut tx = pool.begin().await?;
        // More of the group than one look reads.
        for order in 0..150 {
            outbox.enqueue_in_group(&mut tx, &Confirm { order }, "g").await?;
        }
        for order in 150..300 {
            outbox.enqueue_in_group(&mut tx, &Confirm { order }, "h").await?;
        }
        tx.commit().await?;
        let policy = rows(&pool).await?[0].1.clone();
        let set = async |policy: &str| {
            let spoil = sqlx::query("UPDATE outbox SET policy = $1 WHERE id = (SELECT MIN(id) FROM outbox)");
            spoil.bind(policy).execute(&pool).await.map(drop)
        };
        set("?").await?;
        let mut moved = 0;
        loop {
            match outbox.relay_once(&pool).await {
                Ok(more) => moved += more,
                Err(error) => break assert!(error.is_codec(), "{error}"),
            }
        }
        assert_eq!((moved, rows(&pool).await?.len()), (150, 150), "the other group moves, this one waits");
        set(&policy).await?;
        while outbox.relay_once(&pool).await? > 0 {}
        assert_eq!(rows(&pool).await?.len(), 0);
        let log = Log::default();
        let worker = {
            let log = log.clone();
            let run = move |job: Confirm, _: JobContext| { let log = log.clone(); async move { log.push(job.order) } };
            queue.worker(run).concurrency(1).start().await?
        };
        log.reaches(300).await?;
        let (ours, others): (Vec<u64>, Vec<u64>) = log.all().into_iter().partition(|order| *order < 150);
        assert!(ours.iter().copied().eq(0..150), "out of order: {ours:?}");
        assert!(others.iter().copied().eq(150..300), "out of order: {others:?}");
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn any_number_of_bad_rows_blocks_no_other(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let folder = tempfile::tempdir()?;
        let pool = database(folder.path().join("db").to_str().context("a path")?).await?;
        let outbox = Outbox::<Sqlite>::new(&queue, "outbox")?;
        outbox.create_table(&pool).await?;
        let mut tx = pool.begin().await?;
        for order in 0..500 {
            outbox.enqueue(&mut tx, &Confirm { order }).await?;
        }
        sqlx::query("UPDATE outbox SET policy = '?' WHERE id % 2 = 0 OR id <= 250").execute(&mut *tx).await?;
        tx.commit().await?;
        let relay = outbox.start_relay(&pool);
        let left = eventually(LONG, async || rows(&pool).await.is_ok_and(|rows| rows.len() == 375));
        ensure!(left.await, "{} rows are left", rows(&pool).await?.len());
        relay.shutdown().await;
        assert_eq!(queue.inspect().counts().await?.ready, 125);
        Ok(())
    }
}

/// Requests of more than a megabyte are refused by the server: it closes the connection.
#[tokio::test]
async fn rows_that_the_store_refuses_block_no_others() -> Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("client-query-buffer-limit", "1mb")
        .start()
        .await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_millis(500))
        .connect()
        .await?;
    let queue = Queue::builder(&store, "refused", "q")
        .max_payload(8 << 20)
        .build()?;
    let folder = tempfile::tempdir()?;
    let pool = database(folder.path().join("db").to_str().context("a path")?).await?;
    let outbox = Outbox::<Sqlite>::new(&queue, "outbox")?;
    outbox.create_table(&pool).await?;
    let spoil = async |from: i64, to: i64| {
        let spoil = sqlx::query("UPDATE outbox SET payload = $1 WHERE id BETWEEN $2 AND $3");
        let payload = format!("{:?}", "x".repeat(2 << 20));
        spoil
            .bind(payload)
            .bind(from)
            .bind(to)
            .execute(&pool)
            .await
            .map(drop)
    };
    for n in 1..=10 {
        order(&pool, &outbox, n, true).await?;
    }
    spoil(1, 4).await?;
    assert_eq!(outbox.relay_once(&pool).await?, 6);
    assert_eq!(rows(&pool).await?.len(), 4);
    outbox.relay_once(&pool).await.unwrap_err();
    // Nor do they slow the relay down: it reaches what is behind them before it pauses.
    for n in 11..=20 {
        order(&pool, &outbox, n, true).await?;
    }
    spoil(11, 16).await?;
    let relay = outbox.start_relay(&pool);
    let moved = eventually(LONG, async || {
        queue
            .inspect()
            .counts()
            .await
            .is_ok_and(|counts| counts.ready == 10)
    });
    ensure!(moved.await, "{} rows are left", rows(&pool).await?.len());
    // A row is deleted after its job was added.
    let deleted = eventually(LONG, async || {
        rows(&pool).await.is_ok_and(|rows| rows.len() == 10)
    });
    ensure!(deleted.await, "{} rows are left", rows(&pool).await?.len());
    relay.shutdown().await;
    Ok(())
}

matrix! {
    processes:
    async fn a_process_killed_between_any_two_steps_loses_no_job_and_adds_none(backend: &Backend) -> Result<()> {
        let path = std::env::temp_dir().join(format!("redstart-outbox-{}", backend.namespace().replace([':', '{', '}'], "_")));
        let path = path.to_str().context("a path")?;
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let outbox = Outbox::<Sqlite>::new(&queue, "outbox")?;
        let pool = database(path).await?;
        outbox.create_table(&pool).await?;
        if child::role().is_some() {
            // Orders come in while a relay moves them; the process dies at no particular point.
            let _relay = outbox.start_relay(&pool);
            child::say("ready");
            loop {
                order(&pool, &outbox, rand::random_range(1..1 << 40), rand::random_bool(0.8)).await?;
                _relay.notify();
            }
        }
        for _ in 0..scale(4, "outbox kills") {
            let mut child = Child::of(backend.test()).role("shop").namespace(backend.namespace()).spawn()?;
            assert_eq!(child.line().await?, "ready");
            tokio::time::sleep(Duration::from_millis(rand::random_range(20..200))).await;
            child.kill9();
        }
        while outbox.relay_once(&pool).await? > 0 {}
        let log = Log::default();
        let worker = confirming(&queue, &log).await?;
        let orders: Vec<(i64,)> = sqlx::query_as("SELECT id FROM orders ORDER BY id").fetch_all(&pool).await?;
        ensure!(eventually(LONG, async || log.len() >= orders.len()).await, "{} of {} ran", log.len(), orders.len());
        empty(&queue).await?;
        let mut ran = log.all();
        ran.sort_unstable();
        let expected: BTreeSet<u64> = orders.into_iter().map(|(id,)| id as u64).collect();
        assert!(ran.iter().copied().eq(expected), "each order has one job");
        worker.shutdown(LONG).await?;
        pool.close().await;
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let _ = std::fs::remove_file(format!("{path}{suffix}"));
        }
        Ok(())
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use redstart_testkit::{BackendKind, Postgres as Server};
    use sqlx::{PgPool, Postgres, postgres::PgPoolOptions};

    use super::*;

    /// Where a child finds the database.
    const URL: &str = "REDSTART_TEST_OUTBOX";

    async fn connect(url: &str) -> Result<PgPool> {
        let options = PgPoolOptions::new().max_connections(3);
        Ok(options.connect(url).await?)
    }

    async fn order(
        pool: &PgPool,
        outbox: &Outbox<Postgres>,
        order: u64,
        commit: bool,
    ) -> Result<()> {
        let mut tx = pool.begin().await?;
        sqlx::query("INSERT INTO orders (id) VALUES ($1)")
            .bind(order as i64)
            .execute(&mut *tx)
            .await?;
        outbox.enqueue(&mut tx, &Confirm { order }).await?;
        match commit {
            true => tx.commit().await?,
            false => tx.rollback().await?,
        }
        Ok(())
    }

    /// Orders come in while a relay moves them, until the process or its database dies.
    async fn shop(outbox: &Outbox<Postgres>) -> Result<()> {
        let pool = connect(&std::env::var(URL)?).await?;
        let relay = outbox.start_relay(&pool);
        child::say("ready");
        loop {
            let (number, commit) = (rand::random_range(1..1 << 40), rand::random_bool(0.8));
            order(&pool, outbox, number, commit).await?;
            relay.notify();
        }
    }

    async fn kills(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let outbox = Outbox::<Postgres>::new(&queue, "outbox")?;
        if child::role().is_some() {
            return shop(&outbox).await;
        }
        let server = Server::start().await?;
        let url = server.url();
        server.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY)")?;
        outbox.create_table(&connect(&url).await?).await?;
        let rounds = scale(4, "outbox kills");
        for round in 0..rounds {
            let child = Child::of(backend.test()).role("shop").env(URL, &url);
            let mut child = child.namespace(backend.namespace()).spawn()?;
            assert_eq!(child.line().await?, "ready");
            tokio::time::sleep(Duration::from_millis(rand::random_range(20..200))).await;
            // Now and then it is the database that dies first.
            if round % 4 == 3 {
                server.kill9();
            }
            child.kill9();
            if round % 4 == 3 {
                server.restart().await?;
            }
        }
        let pool = connect(&url).await?;
        while outbox.relay_once(&pool).await? > 0 {}
        let log = Log::default();
        let worker = confirming(&queue, &log).await?;
        let orders: Vec<(i64,)> = sqlx::query_as("SELECT id FROM orders ORDER BY id")
            .fetch_all(&pool)
            .await?;
        ensure!(!orders.is_empty(), "no order was committed");
        let ran = eventually(LONG, async || log.len() >= orders.len()).await;
        ensure!(ran, "{} of {} ran", log.len(), orders.len());
        empty(&queue).await?;
        let mut ran = log.all();
        ran.sort_unstable();
        let expected: BTreeSet<u64> = orders.into_iter().map(|(id,)| id as u64).collect();
        assert!(ran.iter().copied().eq(expected), "each order has one job");
        worker.shutdown(LONG).await?;
        Ok(())
    }

    #[test]
    fn a_process_or_its_database_killed_between_any_two_steps_loses_no_job() -> Result<()> {
        redstart_testkit::run(
            BackendKind::Redis,
            "messaging::queue_outbox::postgres::a_process_or_its_database_killed_between_any_two_steps_loses_no_job",
            async |backend| kills(backend).await,
        )
    }
}
