//! A [`Sink`] on SQL: SQLite and Postgres, through sqlx.

use std::sync::Arc;

use sqlx::AssertSqlSafe;

use super::write_behind::{Changes, EntryId, Sink, SinkClaim, SinkError};
use crate::error::{Error, Result};

mod transaction;
mod value;

pub use value::{SqlRow, SqlValue};

#[derive(Clone)]
enum Pool {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
}

type Get<V> = Arc<dyn Fn(&V) -> SqlValue + Send + Sync>;
type FromRow<V> = Arc<dyn Fn(&SqlRow) -> Option<V> + Send + Sync>;

/// Writes into a table of SQLite or Postgres.
///
/// The table has a text column `key`, one column for each [`column`](SqlSink::column), and two columns of the sink:
///
/// | column | type | content |
/// |---|---|---|
/// | `seq` | `BIGINT` | the position of the last applied write in the log; an older write never replaces a newer one |
/// | `deleted` | `BOOLEAN` | a tombstone: the row is deleted, and `seq` tells since when |
///
/// Epochs and checkpoints are in the table `redstart_checkpoint`, one row for each table, log and shard.
/// [`create_tables`](SqlSink::create_tables) makes both tables where they are missing.
///
/// A row that violates a constraint or has a value out of range is refused. Then the batch is tried once more with a
/// savepoint before each row, which finds all refused rows at once; the good ones are committed without them.
pub struct SqlSink<V> {
    pool: Pool,
    table: String,
    columns: Vec<(String, Get<V>)>,
    from_row: Option<FromRow<V>>,
}

impl<V> Clone for SqlSink<V> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            table: self.table.clone(),
            columns: self.columns.clone(),
            from_row: self.from_row.clone(),
        }
    }
}

impl<V: Send + Sync + 'static> SqlSink<V> {
    /// A sink on the database at a URL: `sqlite:…` or `postgres:…`.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for another kind of URL or a table name that is not a plain identifier;
    /// [`is_user`](Error::is_user) if the database cannot be reached.
    pub async fn connect(url: &str, table: &str) -> Result<Self> {
        let failed = |error: sqlx::Error| Error::user("the database cannot be reached", error);
        #[cfg(feature = "sqlite")]
        if url.starts_with("sqlite:") {
            // In memory each connection would be a database of its own.
            let most = if url.contains(":memory:") { 1 } else { 4 };
            let options = sqlx::sqlite::SqlitePoolOptions::new().max_connections(most);
            return Self::sqlite(options.connect(url).await.map_err(failed)?, table);
        }
        #[cfg(feature = "postgres")]
        if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            let pool = sqlx::PgPool::connect(url).await.map_err(failed)?;
            return Self::postgres(pool, table);
        }
        let _ = (failed, table);
        Err(Error::config(
            "a sink's URL must begin with sqlite: or postgres:, and the cargo feature of that name must be enabled",
        ))
    }

    /// A sink on a pool of SQLite connections.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the table's name is not a plain identifier.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(pool: sqlx::SqlitePool, table: &str) -> Result<Self> {
        Self::new(Pool::Sqlite(pool), table)
    }

    /// A sink on a pool of Postgres connections.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the table's name is not a plain identifier.
    #[cfg(feature = "postgres")]
    pub fn postgres(pool: sqlx::PgPool, table: &str) -> Result<Self> {
        Self::new(Pool::Postgres(pool), table)
    }

    fn new(pool: Pool, table: &str) -> Result<Self> {
        identifier(table)?;
        Ok(Self {
            pool,
            table: table.to_owned(),
            columns: Vec::new(),
            from_row: None,
        })
    }

    /// Adds a column and how to get it from a value.
    ///
    /// # Panics
    ///
    /// If the name is not a plain identifier: it comes from the program, not from its input.
    #[must_use]
    pub fn column(
        mut self,
        name: &str,
        get: impl Fn(&V) -> SqlValue + Send + Sync + 'static,
    ) -> Self {
        assert!(
            identifier(name).is_ok(),
            "a column's name must be a plain identifier"
        );
        self.columns.push((name.to_owned(), Arc::new(get)));
        self
    }

    /// How to make a value from its row, for reads that the cache cannot answer. Without it such reads find
    /// nothing.
    #[must_use]
    pub fn reads(
        mut self,
        from_row: impl Fn(&SqlRow) -> Option<V> + Send + Sync + 'static,
    ) -> Self {
        self.from_row = Some(Arc::new(from_row));
        self
    }

    /// Creates the table and the checkpoint table where they are missing. Columns have no type in SQLite. On
    /// Postgres they are `BIGINT`; create the table yourself if you need other types.
    ///
    /// # Errors
    ///
    /// [`is_user`](Error::is_user) if the database refuses.
    pub async fn create_tables(&self) -> Result<()> {
        let columns: String = self
            .columns
            .iter()
            .map(|(name, _)| match &self.pool {
                #[cfg(feature = "sqlite")]
                Pool::Sqlite(_) => format!("{name}, "),
                #[cfg(feature = "postgres")]
                Pool::Postgres(_) => format!("{name} BIGINT, "),
            })
            .collect();
        let rows = format!(
            "CREATE TABLE IF NOT EXISTS {} (key TEXT PRIMARY KEY, {columns}seq BIGINT NOT NULL, \
             deleted BOOLEAN NOT NULL DEFAULT FALSE)",
            self.table
        );
        for sql in [rows, transaction::CHECKPOINT_TABLE.to_owned()] {
            let sql = AssertSqlSafe(sql);
            match &self.pool {
                #[cfg(feature = "sqlite")]
                Pool::Sqlite(pool) => sqlx::query(sql).execute(pool).await.map(drop),
                #[cfg(feature = "postgres")]
                Pool::Postgres(pool) => sqlx::query(sql).execute(pool).await.map(drop),
            }
            .map_err(|error| Error::user("a table cannot be created", error))?;
        }
        Ok(())
    }

    fn select(&self) -> String {
        let columns: String = self
            .columns
            .iter()
            .map(|(name, _)| format!("{name}, "))
            .collect();
        format!("SELECT {columns}deleted FROM {} WHERE key = $1", self.table)
    }
}

impl<V: Send + Sync + 'static> Sink<V> for SqlSink<V> {
    async fn claim(&self, log: &str, shard: u32) -> Result<SinkClaim, SinkError> {
        let (epoch, ms, n): (i64, i64, i64) = match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => {
                sqlx::query_as(transaction::CLAIM)
                    .bind(&self.table)
                    .bind(log)
                    .bind(i64::from(shard))
                    .fetch_one(pool)
                    .await
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => {
                sqlx::query_as(transaction::CLAIM)
                    .bind(&self.table)
                    .bind(log)
                    .bind(i64::from(shard))
                    .fetch_one(pool)
                    .await
            }
        }
        .map_err(transaction::unavailable)?;
        Ok(SinkClaim {
            epoch,
            applied: EntryId {
                ms: u64::try_from(ms).unwrap_or(0),
                n: u64::try_from(n).unwrap_or(0),
            },
        })
    }

    async fn apply(&self, changes: &Changes<V>) -> Result<(), SinkError> {
        match self.transact(changes, transaction::Mode::Commit).await {
            Err(SinkError::Refused(_)) => self.transact(changes, transaction::Mode::Probe).await,
            result => result,
        }
    }

    async fn load(&self, key: &str) -> Result<Option<V>, SinkError> {
        let Some(from_row) = &self.from_row else {
            return Ok(None);
        };
        let sql = AssertSqlSafe(self.select());
        let row = match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => sqlx::query(sql)
                .bind(key)
                .fetch_optional(pool)
                .await
                .map_err(transaction::unavailable)?
                .map(|row| value::sqlite_row(&row)),
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => sqlx::query(sql)
                .bind(key)
                .fetch_optional(pool)
                .await
                .map_err(transaction::unavailable)?
                .map(|row| value::postgres_row(&row)),
        };
        Ok(match row {
            Some((row, false)) => from_row(&row),
            _ => None,
        })
    }
}

fn identifier(name: &str) -> Result<()> {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().next().is_some_and(|c| !c.is_ascii_digit())
        && name.len() <= 63;
    match plain {
        true => Ok(()),
        false => Err(Error::config(
            "a table or column name must have letters, digits and _ only, and not begin with a digit",
        )),
    }
}
