//! Jobs that are enqueued by a transaction of a database: both happen, or neither.
//!
//! The job is a row of a table, written by the same transaction as the change it belongs to. A relay moves rows to the
//! queue: it enqueues the job under the row's own unique key, and deletes the row. Wherever it dies, the next relay does
//! the rest: a row that was enqueued before is recognised by its key.

use std::{
    collections::HashSet, fmt, future::Future, marker::PhantomData, sync::Arc, time::Duration,
};

use sqlx::{AssertSqlSafe, Pool, Transaction};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    Enqueued, Job, JobPolicy, Queue, UniqueUntil,
    record::{Body, Duplicate, Options, Unique},
};
use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    observe,
    token::token,
};

/// Rows that are read at once.
const PAGE: i64 = 100;
/// A relay begins at the oldest row again after this many pages at the latest, so that rows that stayed are tried again.
const PAGES: usize = 100;

/// A database that an [`Outbox`] can be in: SQLite or Postgres, by the cargo features of those names.
pub trait OutboxDatabase: sqlx::Database + sealed::Outbox {}

mod sealed {
    use super::*;

    /// What differs between databases is only the types of sqlx.
    pub trait Outbox: sqlx::Database {
        const ID: &'static str;

        fn run(pool: &Pool<Self>, sql: String) -> impl Future<Output = sqlx::Result<()>> + Send;

        fn insert(
            connection: &mut Self::Connection,
            sql: String,
            row: &Row,
        ) -> impl Future<Output = sqlx::Result<()>> + Send;

        fn oldest(
            pool: &Pool<Self>,
            sql: String,
            after: i64,
        ) -> impl Future<Output = sqlx::Result<Vec<Row>>> + Send;

        fn delete(
            pool: &Pool<Self>,
            sql: String,
            id: i64,
        ) -> impl Future<Output = sqlx::Result<()>> + Send;
    }

    /// A job in the table.
    pub struct Row {
        pub id: i64,
        pub uid: String,
        pub kind: String,
        pub payload: String,
        pub policy: String,
        pub job_group: Option<String>,
    }
}

use sealed::Row;

macro_rules! database {
    ($database:ty, $id:literal) => {
        impl OutboxDatabase for $database {}

        impl sealed::Outbox for $database {
            const ID: &'static str = $id;

            async fn run(pool: &Pool<Self>, sql: String) -> sqlx::Result<()> {
                sqlx::query(AssertSqlSafe(sql))
                    .execute(pool)
                    .await
                    .map(drop)
            }

            async fn insert(
                connection: &mut Self::Connection,
                sql: String,
                row: &Row,
            ) -> sqlx::Result<()> {
                sqlx::query(AssertSqlSafe(sql))
                    .bind(&row.uid)
                    .bind(&row.kind)
                    .bind(&row.payload)
                    .bind(&row.policy)
                    .bind(&row.job_group)
                    .execute(connection)
                    .await
                    .map(drop)
            }

            async fn oldest(pool: &Pool<Self>, sql: String, after: i64) -> sqlx::Result<Vec<Row>> {
                type Columns = (i64, String, String, String, String, Option<String>);
                let rows: Vec<Columns> = sqlx::query_as(AssertSqlSafe(sql))
                    .bind(PAGE)
                    .bind(after)
                    .fetch_all(pool)
                    .await?;
                let rows = rows.into_iter();
                Ok(rows
                    .map(|(id, uid, kind, payload, policy, job_group)| Row {
                        id,
                        uid,
                        kind,
                        payload,
                        policy,
                        job_group,
                    })
                    .collect())
            }

            async fn delete(pool: &Pool<Self>, sql: String, id: i64) -> sqlx::Result<()> {
                sqlx::query(AssertSqlSafe(sql))
                    .bind(id)
                    .execute(pool)
                    .await
                    .map(drop)
            }
        }
    };
}

#[cfg(feature = "sqlite")]
database!(sqlx::Sqlite, "INTEGER PRIMARY KEY AUTOINCREMENT");
#[cfg(feature = "postgres")]
database!(sqlx::Postgres, "BIGSERIAL PRIMARY KEY");

/// Enqueues jobs together with a transaction of a database. Cheap to clone.
///
/// # Promises
///
/// No job without its commit, and no commit without its job: the job is a row that the transaction writes. A
/// [relay](Self::start_relay) moves rows to the queue, each once: a row that was enqueued by a relay which died before
/// it could delete the row is recognised, for [a time](Self::remember), even if its job is done, dead, cancelled or expired
/// by then.
///
/// # Limits
///
/// A row that cannot be moved, because its job is too large for the store's deadline or was written by another version,
/// stays in the table and is tried again at each look. It blocks the later rows of its group, whose jobs run in order, and no
/// others, unless there are ten thousand such rows. One that is too large for the deadline takes that long at each look.
///
/// A row is deleted as soon as the store has acknowledged its job. If a failover then loses the job because no replica had
/// it, the job is lost, as one that was enqueued without an outbox: see the limits of [`Queue`].
///
/// The relay asks the database when it is [notified](OutboxRelay::notify), and otherwise every second, or every 30 seconds if
/// it can move none of the rows. Several relays may
/// run; they do the same work twice, not different work. The unique key of a job is the row's, so such a job has no other.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redstart::{Store, messaging::{Job, Outbox, Queue}};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct SendMail { to: String }
/// # impl Job for SendMail { const NAME: &'static str = "send_mail"; }
/// let queue = Queue::new(&Store::connect("memory://").await?, "shop", "mail")?;
/// let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
/// let outbox = Outbox::<sqlx::Sqlite>::new(&queue, "outbox")?;
/// outbox.create_table(&pool).await?;
///
/// let mut tx = pool.begin().await?;
/// // … the order itself …
/// outbox.enqueue(&mut tx, &SendMail { to: "ann@example.com".into() }).await?;
/// tx.commit().await?;
/// assert_eq!(outbox.relay_once(&pool).await?, 1);
/// assert_eq!(queue.inspect().counts().await?.ready, 1);
/// # Ok(()) }
/// ```
pub struct Outbox<D> {
    queue: Queue,
    table: Arc<str>,
    remember: Duration,
    database: PhantomData<fn() -> D>,
}

impl<D> Clone for Outbox<D> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            table: self.table.clone(),
            remember: self.remember,
            database: PhantomData,
        }
    }
}

impl<D> fmt::Debug for Outbox<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("queue", &self.queue)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

fn failed(error: sqlx::Error) -> Error {
    Error::user("the outbox cannot be reached", error)
}

impl<D: OutboxDatabase> Outbox<D> {
    /// An outbox in a table, for one queue.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the table's name is not a plain identifier.
    pub fn new(queue: &Queue, table: &str) -> Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if table.is_empty()
            || table.len() > 60
            || !table.chars().all(plain)
            || table.starts_with(|c: char| c.is_ascii_digit())
        {
            return Err(Error::config("a table's name must be a plain identifier"));
        }
        Ok(Self {
            queue: queue.clone(),
            table: table.into(),
            remember: Duration::from_secs(86_400),
            database: PhantomData,
        })
    }

    /// For how long a row that was enqueued is recognised, should it still be there (default: a day).
    pub fn remember(mut self, period: Duration) -> Self {
        self.remember = period;
        self
    }

    /// Makes the table where it is missing.
    ///
    /// # Errors
    ///
    /// [`is_user`](Error::is_user) if the database refuses.
    pub async fn create_table(&self, pool: &Pool<D>) -> Result<()> {
        let sql = format!(
            "CREATE TABLE IF NOT EXISTS {} (id {}, uid TEXT NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL, \
             policy TEXT NOT NULL, job_group TEXT)",
            self.table,
            D::ID
        );
        D::run(pool, sql).await.map_err(failed)
    }

    /// Adds a job to the transaction: it is enqueued if and only if the transaction is committed. It is run as its kind's
    /// [policy](Job::policy) says.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a payload over the queue's limit; [`is_user`](Error::is_user) if the database
    /// refuses.
    pub async fn enqueue<J: Job>(&self, tx: &mut Transaction<'_, D>, job: &J) -> Result<()> {
        self.insert(tx, job, None).await
    }

    /// The same, for a job of a [group](super::Enqueue::group).
    ///
    /// # Errors
    ///
    /// As for [`enqueue`](Self::enqueue), and [`is_config`](Error::is_config) for an invalid group.
    pub async fn enqueue_in_group<J: Job>(
        &self,
        tx: &mut Transaction<'_, D>,
        job: &J,
        group: &str,
    ) -> Result<()> {
        self.insert(tx, job, Some(group.to_owned())).await
    }

    async fn insert<J: Job>(
        &self,
        tx: &mut Transaction<'_, D>,
        job: &J,
        job_group: Option<String>,
    ) -> Result<()> {
        let mut options = self.queue.options_of(J::NAME, J::policy());
        options.group = job_group.clone();
        options.check()?;
        Body::new(job, &options, self.queue.0.max_payload)?;
        let text = |bytes: Vec<u8>| {
            String::from_utf8(bytes).map_err(|_| Error::codec("the value cannot be encoded"))
        };
        let row = Row {
            id: 0,
            uid: token(),
            kind: J::NAME.to_owned(),
            payload: text(Json::encode(job)?)?,
            policy: text(Json::encode(&J::policy())?)?,
            job_group,
        };
        let sql = format!(
            "INSERT INTO {} (uid, kind, payload, policy, job_group) VALUES ($1, $2, $3, $4, $5)",
            self.table
        );
        D::insert(&mut **tx, sql, &row).await.map_err(failed)
    }

    /// Moves up to a hundred rows to the queue, oldest first; how many. A row that cannot be moved stays, with the later rows
    /// of its group, and the others are moved.
    ///
    /// # Errors
    ///
    /// [`is_user`](Error::is_user) if the database refuses; otherwise, if no row could be moved, those of the store, or
    /// [`is_codec`](Error::is_codec) for rows that another version wrote.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, some rows were moved. None is lost, and none is enqueued twice.
    pub async fn relay_once(&self, pool: &Pool<D>) -> Result<u64> {
        let mut pass = Pass::default();
        let mut failure = None;
        loop {
            let page = self.relay_page(pool, &mut pass).await?;
            failure = failure.or(page.failure);
            match failure {
                _ if page.moved > 0 => return Ok(page.moved),
                Some(error) if !page.goes_on => return Err(error),
                None if !page.goes_on => return Ok(0),
                _ => {}
            }
        }
    }

    /// Moves what it can of the next page.
    async fn relay_page(&self, pool: &Pool<D>, pass: &mut Pass) -> Result<Page> {
        let work = async {
            let sql = format!(
                "SELECT id, uid, kind, payload, policy, job_group FROM {} WHERE id > $2 ORDER BY id LIMIT $1",
                self.table
            );
            let rows = D::oldest(pool, sql, pass.after).await.map_err(failed)?;
            pass.pages += 1;
            let at_end = rows.len() < PAGE as usize;
            let begins_again = at_end || pass.pages >= PAGES;
            let (mut moved, mut failure) = (0, None);
            for row in rows {
                pass.after = row.id;
                if row
                    .job_group
                    .as_ref()
                    .is_some_and(|group| pass.held.contains(group))
                {
                    continue;
                }
                match self.send(&row).await {
                    // The rows stay until there is room.
                    Ok(Enqueued::Full) => {
                        *pass = Pass::default();
                        return Ok(Page {
                            moved,
                            failure,
                            goes_on: false,
                        });
                    }
                    Ok(Enqueued::New(_) | Enqueued::Duplicate(_)) => moved += 1,
                    Err(error) => {
                        tracing::warn!(%error, row = row.id, "a job of an outbox stays in its table");
                        pass.held.extend(row.job_group);
                        // It is the row, whose job cannot be read or is too large, unless the store does not answer at all. A
                        // row must not block the others.
                        let is_row = error.is_codec() || error.is_config() || self.answers().await;
                        failure = Some(error);
                        if !is_row {
                            // The next page begins behind this one: its request may be what the store does not survive.
                            return Ok(Page {
                                moved,
                                failure,
                                goes_on: false,
                            });
                        }
                        continue;
                    }
                }
                let sql = format!("DELETE FROM {} WHERE id = $1", self.table);
                D::delete(pool, sql, row.id).await.map_err(failed)?;
            }
            if begins_again {
                *pass = Pass::default();
            }
            Ok(Page {
                moved,
                failure,
                goes_on: !at_end && (moved > 0 || !begins_again),
            })
        };
        observe::operation("queue.relay", self.queue.namespace(), work).await
    }

    /// Whether the store carries out a small request. After a request that it refused it may have to be connected to again.
    async fn answers(&self) -> bool {
        for tries_left in (0..3).rev() {
            match self.queue.time().await {
                Ok(_) => return true,
                Err(_) if tries_left == 0 => {}
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        false
    }

    async fn send(&self, row: &Row) -> Result<Enqueued> {
        let policy: JobPolicy = Json::decode(row.policy.as_bytes())?;
        let mut options: Options = self.queue.options_of(&row.kind, policy);
        options.group = row.job_group.clone();
        options.unique = Some(Unique {
            key: format!("outbox:{}", row.uid),
            until: UniqueUntil::For(self.remember),
            duplicate: Duplicate::Keep,
        });
        let body = Body::raw(&row.kind, row.payload.as_bytes(), &options);
        self.queue.add(body, &options).await
    }

    /// Starts a relay on the current runtime. It runs until it is dropped or shut down.
    pub fn start_relay(&self, pool: &Pool<D>) -> OutboxRelay {
        let notify = Arc::new(Notify::new());
        let stop = CancellationToken::new();
        let task = crate::task::spawn(relay(
            self.clone(),
            pool.clone(),
            notify.clone(),
            stop.clone(),
        ));
        OutboxRelay {
            notify,
            stop,
            task: Some(task),
        }
    }
}

/// How far a relay is in the table, from the oldest row to the newest.
struct Pass {
    /// The last row that was looked at.
    after: i64,
    pages: usize,
    /// Groups with a row that stays. Their later rows stay too, so that their jobs are enqueued in order.
    held: HashSet<String>,
}

impl Default for Pass {
    fn default() -> Self {
        Self {
            after: i64::MIN,
            pages: 0,
            held: HashSet::new(),
        }
    }
}

/// What became of the rows of a page.
struct Page {
    moved: u64,
    /// Why one of them stays.
    failure: Option<Error>,
    /// There may be more rows to move now.
    goes_on: bool,
}

async fn relay<D: OutboxDatabase>(
    outbox: Outbox<D>,
    pool: Pool<D>,
    notify: Arc<Notify>,
    stop: CancellationToken,
) {
    let mut pause = Duration::from_secs(1);
    let mut pass = Pass::default();
    loop {
        let begins = pass.pages == 0;
        let page = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            page = outbox.relay_page(&pool, &mut pass) => page,
        };
        let failure = match page {
            Ok(page) if page.goes_on => continue,
            Ok(page) if page.moved > 0 => {
                pause = Duration::from_secs(1);
                None
            }
            Ok(page) => page.failure,
            Err(error) => Some(error),
        };
        if let Some(error) = failure {
            tracing::warn!(%error, "jobs of an outbox could not be moved to their queue");
            pause = (pause * 2).min(Duration::from_secs(30));
        } else if begins {
            pause = Duration::from_secs(1);
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = notify.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// A running relay; made by [`Outbox::start_relay`]. Dropping it stops it.
#[must_use = "a relay stops when it is dropped"]
#[derive(Debug)]
pub struct OutboxRelay {
    notify: Arc<Notify>,
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl OutboxRelay {
    /// There are new rows: call it after a commit, so that the relay does not wait for its next look.
    pub fn notify(&self) {
        self.notify.notify_one();
    }

    /// Stops the relay and waits for its end. A row that it was moving is moved by the next relay.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, the relay stops in the background.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }
}

impl Drop for OutboxRelay {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
