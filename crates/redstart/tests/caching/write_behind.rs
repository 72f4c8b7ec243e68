//! Write-behind on SQLite and Postgres: nothing lost, nothing twice.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Store,
    caching::{Changes, DeadWrite, EntryId, Put, Sink, SinkClaim, SinkError, SqlSink, WriteBehind},
};
use redstart_testkit::{
    Backend, Child, Kind, Postgres, Server, child, eventually, matrix, scale, unique_namespace,
};

use crate::{LONG, two};

type Rows = WriteBehind<str, u64, Faulty>;

/// The database in a file of its own.
struct File {
    dir: tempfile::TempDir,
}

impl File {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            dir: tempfile::tempdir()?,
        })
    }

    fn url(&self) -> String {
        format!(
            "sqlite:{}?mode=rwc",
            self.dir.path().join("rows.db").display()
        )
    }
}

async fn sql(url: &str) -> anyhow::Result<SqlSink<u64>> {
    Ok(SqlSink::connect(url, "items")
        .await?
        .column("value", |n: &u64| (*n).into())
        .reads(|row| row.integer(0).and_then(|n| u64::try_from(n).ok())))
}

/// Makes the tables, and a book of every change of a row, in which none may stand twice.
async fn prepare(url: &str, limit: u64) -> anyhow::Result<()> {
    prepare_with(url, &format!("value < {limit}")).await
}

async fn prepare_with(url: &str, check: &str) -> anyhow::Result<()> {
    let trigger = match url.starts_with("sqlite") {
        true => vec![
            "CREATE TRIGGER put AFTER INSERT ON items BEGIN INSERT INTO book VALUES (new.key, new.seq); END".to_owned(),
            "CREATE TRIGGER upd AFTER UPDATE ON items BEGIN INSERT INTO book VALUES (new.key, new.seq); END".to_owned(),
        ],
        false => vec![
            "CREATE FUNCTION note() RETURNS trigger AS $$ BEGIN INSERT INTO book VALUES (new.key, new.seq); RETURN NULL; END $$ LANGUAGE plpgsql".to_owned(),
            "CREATE TRIGGER note AFTER INSERT OR UPDATE ON items FOR EACH ROW EXECUTE FUNCTION note()".to_owned(),
        ],
    };
    let mut statements = vec![
        format!(
            "CREATE TABLE items (key TEXT PRIMARY KEY, value BIGINT CHECK ({check}), seq BIGINT NOT NULL, deleted BOOLEAN NOT NULL DEFAULT FALSE)"
        ),
        "CREATE TABLE book (key TEXT NOT NULL, seq BIGINT NOT NULL)".to_owned(),
        "CREATE TABLE tries (shard BIGINT NOT NULL, epoch BIGINT NOT NULL, upto TEXT NOT NULL)"
            .to_owned(),
    ];
    statements.extend(trigger);
    for statement in statements {
        execute(url, &statement).await?;
    }
    sql(url).await?.create_tables().await?;
    Ok(())
}

async fn execute(url: &str, statement: &str) -> anyhow::Result<()> {
    let statement = sqlx::AssertSqlSafe(statement.to_owned());
    match url.starts_with("sqlite") {
        true => {
            let pool = sqlx::SqlitePool::connect(url).await?;
            if url.contains("rows.db") {
                // Readers and the writer of a file do not wait for each other then.
                sqlx::query("PRAGMA journal_mode = WAL")
                    .execute(&pool)
                    .await?;
            }
            sqlx::query(statement).execute(&pool).await?;
            pool.close().await;
        }
        false => {
            let pool = sqlx::PgPool::connect(url).await?;
            sqlx::query(statement).execute(&pool).await?;
            pool.close().await;
        }
    }
    Ok(())
}

/// The rows that are not deleted.
async fn table(url: &str) -> anyhow::Result<HashMap<String, u64>> {
    let select = "SELECT key, value FROM items WHERE NOT deleted";
    let rows: Vec<(String, i64)> = match url.starts_with("sqlite") {
        true => {
            sqlx::query_as(select)
                .fetch_all(&sqlx::SqlitePool::connect(url).await?)
                .await?
        }
        false => {
            sqlx::query_as(select)
                .fetch_all(&sqlx::PgPool::connect(url).await?)
                .await?
        }
    };
    Ok(rows
        .into_iter()
        .map(|(key, value)| (key, value as u64))
        .collect())
}

/// How many changes the book has, and how many of them it has twice.
async fn book(url: &str) -> anyhow::Result<(i64, i64)> {
    let select = "SELECT COUNT(*), COUNT(*) - (SELECT COUNT(*) FROM (SELECT DISTINCT key, seq FROM book) AS d) FROM book";
    Ok(match url.starts_with("sqlite") {
        true => {
            sqlx::query_as(select)
                .fetch_one(&sqlx::SqlitePool::connect(url).await?)
                .await?
        }
        false => {
            sqlx::query_as(select)
                .fetch_one(&sqlx::PgPool::connect(url).await?)
                .await?
        }
    })
}

/// How often the rows of a batch had to wait for another try because some of them were refused: the most for any batch.
async fn most_tries(url: &str) -> anyhow::Result<i64> {
    let select = "SELECT COALESCE(MAX(n), 0) FROM (SELECT COUNT(*) AS n FROM tries GROUP BY shard, epoch, upto) AS t";
    let (most,) = match url.starts_with("sqlite") {
        true => {
            sqlx::query_as(select)
                .fetch_one(&sqlx::SqlitePool::connect(url).await?)
                .await?
        }
        false => {
            sqlx::query_as(select)
                .fetch_one(&sqlx::PgPool::connect(url).await?)
                .await?
        }
    };
    Ok(most)
}

/// A sink that fails on demand, and can die at any step of a batch.
#[derive(Clone)]
struct Faulty {
    sql: SqlSink<u64>,
    down: Arc<AtomicBool>,
    slow: Duration,
    /// How long a row takes.
    slow_row: Duration,
    applied: Arc<AtomicU64>,
    /// The batches that it was given.
    given: Arc<Mutex<Vec<Changes<u64>>>>,
    /// Where to die, and after how many times.
    dies: Option<(String, Arc<AtomicU64>)>,
    /// One batch in this many fails, at random; zero for none.
    fails: u64,
    /// Where tries with refused rows are written down.
    tries: Option<String>,
}

impl Faulty {
    async fn new(url: &str) -> anyhow::Result<Self> {
        Ok(Self {
            sql: sql(url).await?,
            down: Arc::default(),
            slow: Duration::ZERO,
            slow_row: Duration::ZERO,
            applied: Arc::default(),
            given: Arc::default(),
            dies: None,
            fails: 0,
            tries: None,
        })
    }

    fn at(&self, step: &str) {
        if let Some((where_, left)) = &self.dies
            && where_ == step
            && left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            redstart_testkit::kill_self();
        }
    }
}

impl Sink<u64> for Faulty {
    async fn claim(&self, log: &str, shard: u32) -> Result<SinkClaim, SinkError> {
        self.at("before claim");
        let claim = self.sql.claim(log, shard).await;
        self.at("after claim");
        claim
    }

    async fn apply(&self, changes: &Changes<u64>) -> Result<(), SinkError> {
        if self.down.load(Ordering::SeqCst) {
            return Err(SinkError::Unavailable("switched off".into()));
        }
        if self.fails > 0 && rand::random_range(0..self.fails) == 0 {
            return Err(SinkError::Unavailable("failed at random".into()));
        }
        self.given.lock().unwrap().push(changes.clone());
        tokio::time::sleep(self.slow + self.slow_row * changes.changes.len() as u32).await;
        self.at("before apply");
        let applied = self.sql.apply(changes).await;
        if let (Err(SinkError::Refused(_)), Some(url)) = (&applied, &self.tries) {
            let (shard, epoch, upto) = (changes.shard, changes.epoch, changes.upto);
            let note = format!("INSERT INTO tries VALUES ({shard}, {epoch}, '{upto}')");
            execute(url, &note).await.unwrap();
        }
        applied?;
        self.applied
            .fetch_add(changes.changes.len() as u64, Ordering::SeqCst);
        self.at("after commit");
        Ok(())
    }

    async fn load(&self, key: &str) -> Result<Option<u64>, SinkError> {
        self.sql.load(key).await
    }
}

fn rows(store: &Store, namespace: &str, sink: Faulty) -> redstart::Result<Rows> {
    WriteBehind::builder(store, namespace, "rows", sink)
        .shards(3)
        .batch(50)
        .lease(Duration::from_millis(600))
        .build()
}

/// All dead letters, in small pages.
pub(crate) async fn dead_writes<S: Sink<u64>>(
    rows: &WriteBehind<str, u64, S>,
) -> redstart::Result<Vec<DeadWrite>> {
    let mut letters: Vec<DeadWrite> = Vec::new();
    loop {
        let page = rows.dead_writes(letters.last(), 3).await?;
        if page.is_empty() {
            return Ok(letters);
        }
        letters.extend(page);
    }
}

async fn put(rows: &Rows, key: &str, value: u64) -> redstart::Result<EntryId> {
    match rows.put(key, &value).await? {
        Put::Accepted(id) => Ok(id),
        Put::Backpressure { waiting } => panic!("{waiting} writes wait"),
    }
}

matrix! {
    async fn writes_are_read_at_once_and_reach_the_database_in_order(backend: &Backend) -> anyhow::Result<()> {
        let (store, _) = two(backend).await?;
        let file = File::new()?;
        prepare(&file.url(), u64::MAX / 4).await?;
        let rows = rows(&store, backend.namespace(), Faulty::new(&file.url()).await?)?;
        let mut model = HashMap::new();
        for n in 0..scale(300, "write behind puts") {
            let key = format!("k{}", n % 17);
            put(&rows, &key, n).await?;
            model.insert(key.clone(), n);
            if n % 23 == 0 {
                assert!(matches!(rows.delete(&key).await?, Put::Accepted(_)));
                model.remove(&key);
            }
            assert_eq!(rows.get(&key).await?, model.get(&key).copied());
        }
        let lag = rows.lag().await?;
        assert!(lag.total() > 0 && lag.oldest.is_some());
        // Unapplied values do not expire.
        let values = store.scan(&format!("{}:behind.rows:*:v:*", backend.namespace())).await?;
        assert_eq!(values.len(), 17);
        for value in &values {
            assert_eq!(store.query::<i64>(redis::cmd("PTTL").arg(value)).await?, -1);
        }
        assert!(rows.flush(Duration::from_millis(50)).await.unwrap_err().is_timeout());

        let worker = rows.work()?;
        rows.flush(LONG).await?;
        assert_eq!(table(&file.url()).await?, model);
        assert_eq!(rows.lag().await?.total(), 0);
        let (changes, twice) = book(&file.url()).await?;
        assert_eq!(twice, 0);
        assert!((changes as u64) < scale(300, "write behind puts"), "nothing was coalesced");
        for value in &values {
            let ttl: i64 = store.query(redis::cmd("PTTL").arg(value)).await?;
            assert!(ttl > 0, "{value} is still pinned");
        }
        worker.stop().await;
        let owners = store.scan(&format!("{}:behind.rows:*:owner", backend.namespace())).await?;
        assert!(owners.is_empty(), "a stopped worker keeps {owners:?}");

        // What the store no longer has is read from the database.
        for value in &values {
            store.query::<()>(redis::cmd("DEL").arg(value)).await?;
        }
        for n in 0..17 {
            let key = format!("k{n}");
            assert_eq!(rows.get(&key).await?, model.get(&key).copied());
        }
        Ok(())
    }

    async fn a_newer_write_stays_pinned_when_an_older_one_is_applied(backend: &Backend) -> anyhow::Result<()> {
        let (store, _) = two(backend).await?;
        let file = File::new()?;
        prepare(&file.url(), u64::MAX / 4).await?;
        let mut sink = Faulty::new(&file.url()).await?;
        sink.slow = Duration::from_millis(400);
        let rows = rows(&store, backend.namespace(), sink.clone())?;
        put(&rows, "k", 1).await?;
        let worker = rows.work()?;
        assert!(eventually(LONG, async || sink.given.lock().unwrap().len() == 1).await);
        // The first write is on its way; the second one comes meanwhile and cannot be applied yet.
        put(&rows, "k", 2).await?;
        sink.down.store(true, Ordering::SeqCst);
        assert!(eventually(LONG, async || rows.lag().await.unwrap().total() == 1).await);
        assert_eq!(table(&file.url()).await?.get("k"), Some(&1));
        let values = store.scan(&format!("{}:behind.rows:*:v:k", backend.namespace())).await?;
        assert_eq!(store.query::<i64>(redis::cmd("PTTL").arg(&values[0])).await?, -1);
        sink.down.store(false, Ordering::SeqCst);
        rows.flush(LONG).await?;
        assert!(store.query::<i64>(redis::cmd("PTTL").arg(&values[0])).await? > 0);
        worker.stop().await;
        Ok(())
    }

    async fn the_later_of_two_writes_is_kept_while_the_clock_is_behind_the_log(backend: &Backend) -> anyhow::Result<()> {
        let (store, _) = two(backend).await?;
        let file = File::new()?;
        prepare(&file.url(), u64::MAX / 4).await?;
        let sink = Faulty::new(&file.url()).await?;
        let rows = rows(&store, backend.namespace(), sink.clone())?;
        let first = put(&rows, "k", 1).await?;
        // As after many writes by a clock that was set back: the server counts up within the last millisecond.
        let log = store.scan(&format!("{}:behind.rows:*:log", backend.namespace())).await?;
        let late = format!("{}-2000000", first.ms + 3_600_000);
        store.query::<String>(redis::cmd("XADD").arg(&log[0]).arg(late).arg("other").arg("shape")).await?;
        let worker = rows.work()?;
        rows.flush(LONG).await?;
        let mut last = first;
        for n in 2..5 {
            let id = put(&rows, "k", n).await?;
            assert!(id > last && id.n > 2_000_000, "{id}");
            last = id;
            rows.flush(LONG).await?;
            assert_eq!(table(&file.url()).await?, HashMap::from([("k".to_owned(), n)]));
        }
        // A batch that is sent again, because the reply to its commit was lost, changes no row.
        let before = book(&file.url()).await?;
        let batch = sink.given.lock().unwrap().last().unwrap().clone();
        assert_eq!(batch.changes.len(), 1);
        sink.sql.apply(&batch).await?;
        assert_eq!(book(&file.url()).await?, before);
        worker.stop().await;
        Ok(())
    }

    async fn a_row_that_cannot_be_applied_blocks_only_its_key(backend: &Backend) -> anyhow::Result<()> {
        let (store, _) = two(backend).await?;
        let file = File::new()?;
        prepare(&file.url(), 1000).await?;
        let rows = rows(&store, backend.namespace(), Faulty::new(&file.url()).await?)?;
        for n in 0..30 {
            put(&rows, &format!("k{n}"), n).await?;
        }
        put(&rows, "bad", 5000).await?;
        let worker = rows.work()?;
        rows.flush(LONG).await?;
        put(&rows, "bad", 7).await?; // fine in itself, but the write before it is dead
        put(&rows, "k1", 100).await?;
        rows.flush(LONG).await?;
        let now = table(&file.url()).await?;
        assert_eq!((now.len(), now.get("k1"), now.get("bad")), (30, Some(&100), None));
        let dead = dead_writes(&rows).await?;
        assert_eq!(dead.iter().map(|letter| &*letter.key).collect::<Vec<_>>(), ["bad", "bad"]);
        assert!(dead[0].reason.to_lowercase().contains("check"), "{}", dead[0].reason);
        assert_eq!(rows.get("bad").await?, Some(7), "readers still see what was written");

        assert_eq!(rows.retry_dead("bad").await?, 2);
        rows.flush(LONG).await?;
        assert_eq!(table(&file.url()).await?.get("bad"), Some(&7));
        assert!(dead_writes(&rows).await?.is_empty());

        put(&rows, "bad", 6000).await?;
        rows.flush(LONG).await?;
        assert_eq!(rows.discard_dead("bad").await?, 1);
        assert_eq!(rows.get("bad").await?, Some(7), "the row is what it was");
        put(&rows, "bad", 8).await?;
        rows.flush(LONG).await?;
        assert_eq!(table(&file.url()).await?.get("bad"), Some(&8));
        worker.stop().await;
        Ok(())
    }

    async fn while_the_database_is_down_writes_are_refused_at_the_bound_and_then_drain(backend: &Backend) -> anyhow::Result<()> {
        let (store, _) = two(backend).await?;
        let file = File::new()?;
        prepare(&file.url(), u64::MAX / 4).await?;
        let sink = Faulty::new(&file.url()).await?;
        sink.down.store(true, Ordering::SeqCst);
        let rows: Rows = WriteBehind::builder(&store, backend.namespace(), "rows", sink.clone()).shards(2).max_lag(40).build()?;
        let worker = rows.work()?;
        let (mut model, mut refused) = (HashMap::new(), 0);
        for n in 0..200u64 {
            let key = format!("k{}", n % 10);
            match rows.put(&key, &n).await? {
                Put::Accepted(_) => drop(model.insert(key, n)),
                Put::Backpressure { waiting } => {
                    assert_eq!(waiting, 40);
                    refused += 1;
                    assert_eq!(rows.get(&key).await?, model.get(&key).copied(), "a refused write left something");
                }
            }
        }
        assert!(refused > 0 && rows.lag().await?.total() <= 80);
        sink.down.store(false, Ordering::SeqCst);
        rows.flush(LONG).await?;
        assert_eq!(table(&file.url()).await?, model);
        assert!(matches!(rows.put("k0", &1).await?, Put::Accepted(_)));
        worker.stop().await;
        Ok(())
    }

    async fn a_slow_database_keeps_up_with_hot_keys_by_coalescing(backend: &Backend) -> anyhow::Result<()> {
        let (store, _) = two(backend).await?;
        let file = File::new()?;
        prepare(&file.url(), u64::MAX / 4).await?;
        let mut sink = Faulty::new(&file.url()).await?;
        // It takes 400 rows a second; a thousand updates come, on fifty keys.
        sink.slow_row = Duration::from_micros(2500);
        let rows: Rows = WriteBehind::builder(&store, backend.namespace(), "rows", sink.clone()).shards(1).batch(1000).max_lag(100_000).build()?;
        let worker = rows.work()?;
        let (updates, mut worst) = (scale(1500, "write behind hot updates"), 0);
        let mut every = tokio::time::interval(Duration::from_millis(10));
        for n in 0..updates {
            if n % 10 == 0 {
                every.tick().await;
            }
            put(&rows, &format!("hot{}", n % 50), n).await?;
            if n % 100 == 0 {
                worst = rows.lag().await?.total().max(worst);
            }
        }
        rows.flush(LONG).await?;
        worker.stop().await;
        let applied = sink.applied.load(Ordering::SeqCst);
        println!("{updates} updates of 50 keys, {applied} rows written, at most {worst} waited");
        // A batch takes an eighth of a second for its fifty rows, so some 125 updates wait for the next; a machine that
        // stalls adds some more. Row by row three of five updates would still wait at the end.
        assert!(worst < 2000.max(updates / 10), "{worst} writes wait after {updates} updates");
        assert!(sink.given.lock().unwrap().iter().all(|batch| batch.changes.len() <= 50));
        assert!(applied < updates, "{applied} rows for {updates} updates");
        let now = table(&file.url()).await?;
        assert_eq!(now.len(), 50);
        assert!((0..50).all(|n| now[&format!("hot{n}")] == updates - 50 + n));
        assert_eq!(book(&file.url()).await?.1, 0);
        Ok(())
    }

    async fn bad_input_is_refused_before_anything_is_written(backend: &Backend) -> anyhow::Result<()> {
        let (store, _) = two(backend).await?;
        let file = File::new()?;
        let sink = Faulty::new(&file.url()).await?;
        let builder = || WriteBehind::<str, u64>::builder(&store, backend.namespace(), "rows", sink.clone());
        assert!(builder().shards(0).build().is_err_and(|error| error.is_config()));
        assert!(builder().ttl(Duration::ZERO).build().is_err_and(|error| error.is_config()));
        assert!(builder().max_lag(0).build().is_err_and(|error| error.is_config()));
        assert!(builder().batch(0).build().is_err_and(|error| error.is_config()));
        assert!(builder().lease(Duration::ZERO).build().is_err_and(|error| error.is_config()));
        let rows = builder().build()?;
        for name in ["", &"x".repeat(1001)] {
            assert!(rows.put(name, &1).await.unwrap_err().is_config());
            assert!(rows.get(name).await.unwrap_err().is_config());
        }
        assert!(SqlSink::<u64>::connect("sqlite::memory:", "a; drop table b").await.is_err_and(|error| error.is_config()));
        assert!(SqlSink::<u64>::connect("mysql://localhost", "a").await.is_err_and(|error| error.is_config()));
        let left = store.scan(&format!("{}*", backend.namespace())).await?;
        assert!(left.is_empty(), "{left:?}");
        Ok(())
    }
}

async fn two_workers_fight(url: &str) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    prepare(url, u64::MAX / 4).await?;
    // The first is stopped in its batch for longer than its partitions are its own.
    let mut frozen = Faulty::new(url).await?;
    frozen.slow = Duration::from_millis(2500);
    let (old, new) = (
        rows(&store, "fight", frozen.clone())?,
        rows(&store, "fight", Faulty::new(url).await?)?,
    );
    put(&old, "k", 1).await?;
    let late = old.work()?;
    let owners = "fight:behind.rows:*:owner";
    assert!(eventually(LONG, async || store.scan(owners).await.unwrap().len() == 3).await);
    assert!(eventually(LONG, async || frozen.given.lock().unwrap().len() == 1).await);
    // It renews while it works, so its death is played: its ownership is taken away.
    for owner in store.scan(owners).await? {
        store
            .query::<()>(redis::cmd("SET").arg(&owner).arg("nobody").arg("PX").arg(1))
            .await?;
    }
    let worker = new.work()?;
    put(&new, "k", 2).await?;
    new.flush(LONG).await?;
    // The late one wakes up with its batch in hand: the database knows that its time is over.
    let batch = frozen.given.lock().unwrap()[0].clone();
    assert!(batch.changes.iter().any(|change| change.value == Some(1)));
    let late_apply = frozen.sql.apply(&batch).await;
    assert!(
        matches!(late_apply, Err(SinkError::Fenced)),
        "{late_apply:?}"
    );
    assert_eq!(table(url).await?, HashMap::from([("k".to_owned(), 2)]));
    assert_eq!(book(url).await?.1, 0);
    late.stop().await;
    worker.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_time_is_over_applies_nothing() -> anyhow::Result<()> {
    two_workers_fight(&File::new()?.url()).await?;
    two_workers_fight(&Postgres::start().await?.url()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_postgres_loses_nothing_and_drains_when_it_is_back() -> anyhow::Result<()> {
    let (server, postgres) = (
        Server::builder(Kind::Valkey).start().await?,
        Postgres::start().await?,
    );
    let url = postgres.url();
    prepare(&url, 1_000_000).await?;
    let store = Store::connect(&server.url()).await?;
    let rows = rows(&store, &unique_namespace("pg"), Faulty::new(&url).await?)?;
    let worker = rows.work()?;
    let mut model = HashMap::new();
    for n in 0..400u64 {
        let key = format!("k{}", n % 40);
        put(&rows, &key, n).await?;
        model.insert(key, n);
        if n == 150 {
            postgres.kill9();
        }
    }
    put(&rows, "bad", 2_000_000).await?;
    postgres.restart().await?;
    rows.flush(LONG).await?;
    assert_eq!(table(&url).await?, model);
    assert_eq!(book(&url).await?.1, 0);
    assert_eq!(dead_writes(&rows).await?.len(), 1);
    // A value that only the database has is read from it.
    assert_eq!(rows.get("k1").await?, model.get("k1").copied());
    worker.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_column_of_postgres_takes_a_value_after_a_null() -> anyhow::Result<()> {
    type Row = (Option<f64>, Option<String>, Option<bool>);
    let postgres = Postgres::start().await?;
    let table = "CREATE TABLE items (key TEXT PRIMARY KEY, price FLOAT8, note TEXT, sold BOOLEAN, \
         seq BIGINT NOT NULL, deleted BOOLEAN NOT NULL DEFAULT FALSE)";
    execute(&postgres.url(), table).await?;
    // One connection, so that all rows meet the same prepared statements.
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(1);
    let pool = options.connect(&postgres.url()).await?;
    let sink = SqlSink::postgres(pool.clone(), "items")?
        .column("price", |row: &Row| row.0.into())
        .column("note", |row: &Row| row.1.clone().into())
        .column("sold", |row: &Row| row.2.into());
    sink.create_tables().await?;
    let store = Store::connect("memory://").await?;
    let rows: WriteBehind<str, Row, _> =
        WriteBehind::builder(&store, &unique_namespace("null"), "rows", sink)
            .shards(1)
            .build()?;
    let worker = rows.work()?;
    let values: [Row; 5] = [
        (None, None, None),
        (Some(1.5), Some("twelve".to_owned()), Some(true)),
        (None, Some("a text of some length".to_owned()), None),
        (Some(-0.25), None, Some(false)),
        (None, None, None),
    ];
    for key in ["a", "b"] {
        for value in &values {
            assert!(matches!(rows.put(key, value).await?, Put::Accepted(_)));
            rows.flush(LONG).await?;
            let select = "SELECT price, note, sold FROM items WHERE key = $1";
            let stored: Row = sqlx::query_as(select).bind(key).fetch_one(&pool).await?;
            assert_eq!(&stored, value);
        }
    }
    worker.stop().await;
    Ok(())
}

/// Where a worker dies; between them lie the store's own scripts, each of which is one step.
const STEPS: [&str; 4] = [
    "before claim",
    "after claim",
    "before apply",
    "after commit",
];

/// The last writes of each key: what a writer was told had been taken, and what was begun since.
#[derive(Default)]
struct Model {
    tried: HashMap<String, Vec<Option<u64>>>,
    done: HashMap<String, Option<u64>>,
    /// Every write that was accepted, in order.
    accepted: HashMap<String, Vec<(EntryId, Option<u64>)>>,
    /// Writes of which nobody knows whether they were accepted.
    doubtful: HashMap<String, Vec<Option<u64>>>,
    operations: u64,
}

impl Model {
    fn heard(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (verb, key) = (words.next().unwrap(), words.next().unwrap().to_owned());
        let value = match words.next().unwrap() {
            "deleted" => None,
            n => Some(n.parse().unwrap()),
        };
        match verb {
            "try" => {
                self.operations += 1;
                self.doubtful.entry(key.clone()).or_default().push(value);
                self.tried.entry(key).or_default().push(value);
            }
            _ => {
                let id = words.next().unwrap().parse().unwrap();
                self.doubtful.entry(key.clone()).or_default().pop();
                let accepted = self.accepted.entry(key.clone()).or_default();
                accepted.push((id, value));
                self.tried.insert(key.clone(), vec![value]);
                self.done.insert(key, value);
            }
        }
    }
}

/// Writes to keys of its own, and says before and after each write what it is about to do and did.
async fn write_on(rows: &Rows, role: &str) -> anyhow::Result<()> {
    let mut words = role.split('/');
    let mut word = || words.next().unwrap();
    let (who, from, keys): (_, u64, u64) = (word(), word().parse()?, word().parse()?);
    for n in from.. {
        let key = format!("{who}-{}", n % keys);
        let what = match n % 11 {
            0 => format!("{key} deleted"),
            _ => format!("{key} {n}"),
        };
        child::say(format!("try {what}"));
        loop {
            let written = match n % 11 {
                0 => rows.delete(&key).await,
                _ => rows.put(&key, &n).await,
            };
            match written {
                Ok(Put::Accepted(id)) => child::say(format!("did {what} {id}")),
                Ok(Put::Backpressure { .. }) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                // It may or may not have been taken.
                Err(_) => {}
            }
            break;
        }
    }
    Ok(())
}

/// As [`rows`], but what a worker left is soon taken over, in large batches.
fn hasty(store: &Store, namespace: &str, sink: Faulty) -> redstart::Result<Rows> {
    WriteBehind::builder(store, namespace, "rows", sink)
        .shards(3)
        .batch(500)
        .lease(Duration::from_millis(300))
        .build()
}

/// The bad database fails one batch in this many, and refuses one row in this many.
const ONE_IN: u64 = 20;

/// Whether the bad database refuses a value.
fn is_refused(value: u64) -> bool {
    value % ONE_IN == 7
}

/// What must hold after the campaign with a bad database: for each key, everything from its first dead write on is a
/// dead letter, the first for a reason of the database, and the row is the newest good write before that.
async fn check_refused(
    rows: &Rows,
    model: &Model,
    now: &HashMap<String, u64>,
) -> anyhow::Result<()> {
    let mut dead: HashMap<String, Vec<DeadWrite>> = HashMap::new();
    for letter in dead_writes(rows).await? {
        dead.entry(letter.key.clone()).or_default().push(letter);
    }
    for (key, accepted) in &model.accepted {
        let letters = dead.get(key).map(Vec::as_slice).unwrap_or_default();
        let first = letters.iter().map(|letter| letter.id).min();
        if let Some(letter) = letters.iter().find(|letter| Some(letter.id) == first) {
            let reason = letter.reason.to_lowercase();
            assert!(reason.contains("check"), "{key}: {reason}");
        }
        let is_dead = |id| letters.iter().any(|letter| letter.id == id);
        // Nothing came after it that could have replaced it before it reached the database.
        let in_doubt = model
            .doubtful
            .get(key)
            .is_some_and(|tried| !tried.is_empty());
        if let Some((id, Some(value))) = accepted.last()
            && is_refused(*value)
            && !in_doubt
        {
            assert!(is_dead(*id), "{key} {id} was refused and is no dead letter");
        }
        for (id, _) in accepted {
            assert_eq!(
                is_dead(*id),
                first.is_some_and(|first| first <= *id),
                "{key} {id}"
            );
        }
        let before = accepted
            .iter()
            .filter(|(id, _)| first.is_none_or(|first| *id < first));
        let mut good = before.filter(|(_, value)| !value.is_some_and(is_refused));
        let expected = good.next_back().and_then(|(_, value)| *value);
        let got = now.get(key).copied();
        let doubtful = model
            .doubtful
            .get(key)
            .is_some_and(|tried| tried.contains(&got));
        assert!(
            got == expected || doubtful,
            "{key} is {got:?}, not {expected:?}"
        );
    }
    let letters: usize = dead.values().map(Vec::len).sum();
    println!(
        "{} keys are blocked, with {letters} dead letters",
        dead.len()
    );
    assert!(letters > 0, "nothing was refused");
    Ok(())
}

/// Writers and workers are killed at every step, over and over; in the end the table is the model.
async fn killed_at_every_step(backend: &Backend, url: Option<&str>) -> anyhow::Result<()> {
    let url = match std::env::var("WRITE_BEHIND_DB") {
        Ok(url) => url,
        Err(_) => url.map(str::to_owned).unwrap_or_default(),
    };
    let bad = backend.test().contains("refuses");
    let store = Store::connect(backend.url()).await?;
    if let Some(role) = child::role() {
        let mut sink = Faulty::new(&url).await?;
        sink.fails = if bad { ONE_IN } else { 0 };
        sink.tries = bad.then(|| url.clone());
        let Some((step, after)) = role.split_once('@') else {
            return write_on(&hasty(&store, backend.namespace(), sink)?, &role).await;
        };
        sink.dies = Some((step.to_owned(), Arc::new(AtomicU64::new(after.parse()?))));
        let _worker = hasty(&store, backend.namespace(), sink)?.work()?;
        return std::future::pending().await;
    }
    let spawn = |role: &str| {
        Child::of(backend.test())
            .namespace(backend.namespace())
            .role(role)
            .env("WRITE_BEHIND_DB", &url)
            .spawn()
    };
    // One worker after the other dies, each at another step, and the next takes over.
    let deaths = AtomicU64::new(0);
    let written = tokio::sync::watch::Sender::new(false);
    let working = async {
        for n in 0.. {
            let step = STEPS[n % STEPS.len()];
            let mut worker = spawn(&format!("{step}@{}", 1 + n / STEPS.len() % 3))?;
            // When all is written, one that finds nothing to do is killed where it is.
            let idle = async {
                let _ = written.subscribe().wait_for(|written| *written).await;
                tokio::time::sleep(Duration::from_secs(2)).await;
            };
            tokio::select! {
                ended = worker.wait() => drop(ended),
                () = idle => {}
            }
            deaths.fetch_add(1, Ordering::SeqCst);
        }
        anyhow::Ok(Model::default())
    };
    let kills = scale(4, "write behind kills");
    let keys = scale(50, "write behind killed keys");
    let writes = scale(120, "write behind killed writes");
    let writing = async {
        let mut model = Model::default();
        for round in 0..kills {
            let mut writers = Vec::new();
            for who in ["a", "b"] {
                let from = round * 1_000_000;
                writers.push(spawn(&format!("{who}/{from}/{}", keys.div_ceil(2)))?);
            }
            // Each gets a share of the operations, and is killed while it writes on.
            let goal = model.operations + writes.div_ceil(kills);
            while model.operations < goal {
                for writer in &mut writers {
                    model.heard(&writer.line().await?);
                }
            }
            for writer in &mut writers {
                writer.kill9();
                while let Ok(line) = writer.line().await {
                    model.heard(&line);
                }
            }
        }
        // In the short run writing is over before a worker has met its step.
        written.send_replace(true);
        let died = eventually(LONG, async || {
            deaths.load(Ordering::SeqCst) >= STEPS.len() as u64
        });
        anyhow::ensure!(died.await, "the workers live on");
        Ok(model)
    };
    let model = tokio::select! {
        model = writing => model?,
        broken = working => broken?,
    };
    // A starved machine is no lost write.
    let store = Store::builder(backend.url())
        .deadline(Duration::from_secs(20))
        .connect()
        .await?;
    let mut sink = Faulty::new(&url).await?;
    sink.tries = bad.then(|| url.clone());
    let rows = hasty(&store, backend.namespace(), sink)?;
    let worker = rows.work()?;
    rows.flush(LONG).await?;
    worker.stop().await;
    let now = table(&url).await?;
    assert!(!model.done.is_empty());
    if bad {
        check_refused(&rows, &model, &now).await?;
        // A refused row keeps those of other keys for at most two more tries of the batch, whatever came later.
        let most = most_tries(&url).await?;
        assert!(
            (1..=2).contains(&most),
            "a batch was tried {most} times more"
        );
        println!("no batch was tried more than {most} times again because of refused rows");
    }
    for (key, last) in model.done.iter().filter(|_| !bad) {
        // A write under way when its writer died may or may not have been taken.
        let (got, tried) = (now.get(key).copied(), &model.tried[key]);
        assert!(
            tried.contains(&got),
            "{key} is {got:?}, last done {last:?}, last tried {tried:?}"
        );
    }
    assert!(now.keys().all(|key| model.tried.contains_key(key)));
    assert!(bad || dead_writes(&rows).await?.is_empty());
    let (changes, twice) = book(&url).await?;
    assert!(
        changes > 0 && twice == 0,
        "{twice} of {changes} changes were applied twice"
    );
    println!(
        "{} operations on {} keys, {} writers and {} workers killed: {changes} changes of rows, none twice, none lost",
        model.operations,
        model.tried.len(),
        2 * kills,
        deaths.load(Ordering::SeqCst) + 1
    );
    let pinned = store
        .scan(&format!("{}:behind.rows:*:v:*", backend.namespace()))
        .await?;
    for value in pinned.into_iter().filter(|_| !bad) {
        let ttl: i64 = store.query(redis::cmd("PTTL").arg(&value)).await?;
        assert!(ttl > 0 || ttl == -2, "{value} stayed pinned");
    }
    Ok(())
}

matrix! {
    processes:
    async fn killed_at_every_step_nothing_is_lost_and_nothing_is_applied_twice(backend: &Backend) -> anyhow::Result<()> {
        let file = File::new()?;
        if child::role().is_none() {
            prepare(&file.url(), u64::MAX / 4).await?;
        }
        killed_at_every_step(backend, Some(&file.url())).await
    }

    async fn killed_at_every_step_with_a_database_that_refuses_rows_and_fails(backend: &Backend) -> anyhow::Result<()> {
        let file = File::new()?;
        if child::role().is_none() {
            prepare_with(&file.url(), "value % 20 <> 7").await?;
        }
        killed_at_every_step(backend, Some(&file.url())).await
    }
}

#[test]
fn killed_at_every_step_on_a_postgres_that_refuses_rows_and_fails() -> anyhow::Result<()> {
    redstart_testkit::run(
        redstart_testkit::BackendKind::Redis,
        "caching::write_behind::killed_at_every_step_on_a_postgres_that_refuses_rows_and_fails",
        async |backend| {
            if child::role().is_some() {
                return killed_at_every_step(backend, None).await;
            }
            let postgres = Postgres::start().await?;
            prepare_with(&postgres.url(), "value % 20 <> 7").await?;
            killed_at_every_step(backend, Some(&postgres.url())).await
        },
    )
}

#[test]
fn killed_at_every_step_on_postgres_too() -> anyhow::Result<()> {
    redstart_testkit::run(
        redstart_testkit::BackendKind::Redis,
        "caching::write_behind::killed_at_every_step_on_postgres_too",
        async |backend| {
            if child::role().is_some() {
                return killed_at_every_step(backend, None).await;
            }
            let postgres = Postgres::start().await?;
            prepare(&postgres.url(), u64::MAX / 4).await?;
            killed_at_every_step(backend, Some(&postgres.url())).await
        },
    )
}
