//! A [`Sink`] on SQL: SQLite and Postgres, through sqlx.
//!
//! The table has a text column `key`, a column for each [`column`](SqlSink::column), and two of the sink's own:
//!
//! | column | type | what |
//! |---|---|---|
//! | `seq` | `BIGINT` | the place of the last applied write in the log; an older one never replaces a newer |
//! | `deleted` | `BOOLEAN` | a tombstone: the row is deleted, and knows since when |
//!
//! Epochs and checkpoints lie in the table `redstart_checkpoint`. [`create_tables`](SqlSink::create_tables)
//! makes both where they are missing.

use std::{error::Error as StdError, sync::Arc};

use sqlx::AssertSqlSafe;

use super::write_behind::{Change, Changes, Claim, EntryId, Sink, SinkError};
use crate::error::{Error, Result};

/// A value of a column.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SqlValue {
    /// NULL.
    Null,
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// A text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
    /// True or false.
    Bool(bool),
}

macro_rules! from {
    ($($from:ty => $value:ident => $into:expr;)*) => { $(
        impl From<$from> for SqlValue {
            fn from($value: $from) -> Self { $into }
        }
    )* };
}

from! {
    i64 => n => Self::Integer(n);
    i32 => n => Self::Integer(n.into());
    u32 => n => Self::Integer(n.into());
    // A database has no larger integers; what does not fit is not stored wrongly, but not at all.
    u64 => n => i64::try_from(n).map_or(Self::Null, Self::Integer);
    f64 => n => Self::Real(n);
    bool => b => Self::Bool(b);
    String => s => Self::Text(s);
    &str => s => Self::Text(s.to_owned());
    Vec<u8> => b => Self::Blob(b);
}

impl<T: Into<SqlValue>> From<Option<T>> for SqlValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

#[derive(Clone)]
enum Pool {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
}

type Get<V> = Arc<dyn Fn(&V) -> SqlValue + Send + Sync>;
type FromRow<V> = Arc<dyn Fn(&Row) -> Option<V> + Send + Sync>;

/// A row as it was read: the columns in the order in which they were added.
#[derive(Clone, Debug)]
pub struct Row(Vec<SqlValue>);

impl Row {
    /// The whole number in a column.
    pub fn integer(&self, column: usize) -> Option<i64> {
        match self.0.get(column)? {
            SqlValue::Integer(n) => Some(*n),
            _ => None,
        }
    }

    /// The number in a column.
    pub fn real(&self, column: usize) -> Option<f64> {
        match self.0.get(column)? {
            SqlValue::Real(n) => Some(*n),
            _ => None,
        }
    }

    /// The text in a column.
    pub fn text(&self, column: usize) -> Option<&str> {
        match self.0.get(column)? {
            SqlValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The bytes in a column.
    pub fn blob(&self, column: usize) -> Option<&[u8]> {
        match self.0.get(column)? {
            SqlValue::Blob(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// Takes writes into a table of SQLite or Postgres. See the [module](self).
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
    /// [`is_config`](Error::is_config) for another kind of URL or a table name that is no plain identifier;
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
        let _ = failed;
        let _ = table;
        Err(Error::config(
            "a sink's URL begins with sqlite: or postgres:, and its cargo feature must be on",
        ))
    }

    /// A sink on a pool of SQLite connections.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the table's name is no plain identifier.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(pool: sqlx::SqlitePool, table: &str) -> Result<Self> {
        Self::new(Pool::Sqlite(pool), table)
    }

    /// A sink on a pool of Postgres connections.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the table's name is no plain identifier.
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

    /// Adds a column and says how it is got from a value.
    ///
    /// # Panics
    ///
    /// If the name is no plain identifier: it comes from the program, not from its input.
    #[must_use]
    pub fn column(
        mut self,
        name: &str,
        get: impl Fn(&V) -> SqlValue + Send + Sync + 'static,
    ) -> Self {
        assert!(
            identifier(name).is_ok(),
            "a column is named by a plain identifier"
        );
        self.columns.push((name.to_owned(), Arc::new(get)));
        self
    }

    /// Says how a value is made from its row, for reads that the cache cannot answer. Without it such reads
    /// find nothing.
    #[must_use]
    pub fn reads(mut self, from_row: impl Fn(&Row) -> Option<V> + Send + Sync + 'static) -> Self {
        self.from_row = Some(Arc::new(from_row));
        self
    }

    /// Makes the table and the checkpoints' table where they are missing. Columns get no type in SQLite and
    /// the type of their first value cannot be known, so on Postgres make the table yourself unless all
    /// columns are whole numbers.
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
        for sql in [
            format!(
                "CREATE TABLE IF NOT EXISTS {} (key TEXT PRIMARY KEY, {columns}seq BIGINT NOT NULL, \
                 deleted BOOLEAN NOT NULL DEFAULT FALSE)",
                self.table
            ),
            "CREATE TABLE IF NOT EXISTS redstart_checkpoint (sink TEXT NOT NULL, part BIGINT NOT NULL, \
             epoch BIGINT NOT NULL, ms BIGINT NOT NULL, n BIGINT NOT NULL, PRIMARY KEY (sink, part))"
                .to_owned(),
        ] {
            let sql = AssertSqlSafe(sql);
            match &self.pool {
                #[cfg(feature = "sqlite")]
                Pool::Sqlite(pool) => sqlx::query(sql).execute(pool).await.map(drop),
                #[cfg(feature = "postgres")]
                Pool::Postgres(pool) => sqlx::query(sql).execute(pool).await.map(drop),
            }
            .map_err(|error| Error::user("a table cannot be made", error))?;
        }
        Ok(())
    }

    /// `INSERT … ON CONFLICT … WHERE excluded.seq > seq`, for a value or a tombstone.
    fn upsert(&self, deleted: bool) -> String {
        let table = &self.table;
        let mut columns = String::from("key, seq, deleted");
        let mut values = format!("$1, $2, {}", if deleted { "TRUE" } else { "FALSE" });
        let mut set = String::from("seq = excluded.seq, deleted = excluded.deleted");
        if !deleted {
            for (at, (name, _)) in self.columns.iter().enumerate() {
                columns.push_str(&format!(", {name}"));
                values.push_str(&format!(", ${}", at + 3));
                set.push_str(&format!(", {name} = excluded.{name}"));
            }
        }
        format!(
            "INSERT INTO {table} ({columns}) VALUES ({values}) \
             ON CONFLICT (key) DO UPDATE SET {set} WHERE excluded.seq > {table}.seq"
        )
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

const CLAIM: &str = "INSERT INTO redstart_checkpoint (sink, part, epoch, ms, n) VALUES ($1, $2, 1, 0, 0) \
     ON CONFLICT (sink, part) DO UPDATE SET epoch = redstart_checkpoint.epoch + 1 RETURNING epoch, ms, n";
const CHECKPOINT: &str =
    "UPDATE redstart_checkpoint SET ms = $1, n = $2 WHERE sink = $3 AND part = $4 AND epoch = $5";

/// The same for each database; only the types of sqlx differ.
macro_rules! on {
    ($pool:expr, $begin:expr, $self:ident, $changes:ident) => {{
        let mut transaction = $begin($pool).await.map_err(unavailable)?;
        // First the epoch, so that a worker whose time is over holds no rows.
        let moved = sqlx::query(CHECKPOINT)
            .bind(number($changes.upto.ms))
            .bind(number($changes.upto.n))
            .bind(&$self.table)
            .bind(i64::from($changes.partition))
            .bind($changes.epoch)
            .execute(&mut *transaction)
            .await
            .map_err(unavailable)?;
        if moved.rows_affected() == 0 {
            return Err(SinkError::Fenced);
        }
        let (put, bury) = ($self.upsert(false), $self.upsert(true));
        for (index, Change { key, value, id, .. }) in $changes.changes.iter().enumerate() {
            let sql = if value.is_some() { &put } else { &bury };
            let mut query = sqlx::query(AssertSqlSafe(sql.clone()))
                .bind(key)
                .bind(id.seq());
            if let Some(value) = value {
                for (_, get) in &$self.columns {
                    query = match get(value) {
                        SqlValue::Null => query.bind(None::<i64>),
                        SqlValue::Integer(n) => query.bind(n),
                        SqlValue::Real(n) => query.bind(n),
                        SqlValue::Text(text) => query.bind(text),
                        SqlValue::Blob(bytes) => query.bind(bytes),
                        SqlValue::Bool(b) => query.bind(b),
                    };
                }
            }
            if let Err(error) = query.execute(&mut *transaction).await {
                return Err(match is_the_rows_fault(&error) {
                    true => SinkError::Row {
                        index,
                        source: error.into(),
                    },
                    false => unavailable(error),
                });
            }
        }
        transaction.commit().await.map_err(unavailable)
    }};
}

impl<V: Send + Sync + 'static> Sink<V> for SqlSink<V> {
    async fn claim(&self, partition: u32) -> Result<Claim, SinkError> {
        let claimed: (i64, i64, i64) = match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => {
                sqlx::query_as(CLAIM)
                    .bind(&self.table)
                    .bind(i64::from(partition))
                    .fetch_one(pool)
                    .await
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => {
                sqlx::query_as(CLAIM)
                    .bind(&self.table)
                    .bind(i64::from(partition))
                    .fetch_one(pool)
                    .await
            }
        }
        .map_err(unavailable)?;
        let (epoch, ms, n) = claimed;
        Ok(Claim {
            epoch,
            applied: EntryId {
                ms: u64::try_from(ms).unwrap_or(0),
                n: u64::try_from(n).unwrap_or(0),
            },
        })
    }

    async fn apply(&self, changes: &Changes<V>) -> Result<(), SinkError> {
        match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => {
                // A transaction that begins by reading could not always become one that writes.
                on!(
                    pool,
                    |pool: &'_ sqlx::SqlitePool| {
                        let pool = pool.clone();
                        async move { pool.begin_with("BEGIN IMMEDIATE").await }
                    },
                    self,
                    changes
                )
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => {
                on!(
                    pool,
                    |pool: &'_ sqlx::PgPool| {
                        let pool = pool.clone();
                        async move { pool.begin().await }
                    },
                    self,
                    changes
                )
            }
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
                .map_err(unavailable)?
                .map(|row| sqlite_row(&row)),
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => sqlx::query(sql)
                .bind(key)
                .fetch_optional(pool)
                .await
                .map_err(unavailable)?
                .map(|row| postgres_row(&row)),
        };
        Ok(match row {
            Some((row, false)) => from_row(&row),
            _ => None,
        })
    }
}

#[cfg(feature = "sqlite")]
fn sqlite_row(row: &sqlx::sqlite::SqliteRow) -> (Row, bool) {
    use sqlx::{Row as _, TypeInfo as _, ValueRef as _};
    let last = row.len() - 1;
    let columns = (0..last)
        .map(|at| {
            let Ok(raw) = row.try_get_raw(at) else {
                return SqlValue::Null;
            };
            if raw.is_null() {
                return SqlValue::Null;
            }
            match raw.type_info().name() {
                "REAL" => row.try_get(at).map_or(SqlValue::Null, SqlValue::Real),
                "TEXT" => row.try_get(at).map_or(SqlValue::Null, SqlValue::Text),
                "BLOB" => row.try_get(at).map_or(SqlValue::Null, SqlValue::Blob),
                _ => row.try_get(at).map_or(SqlValue::Null, SqlValue::Integer),
            }
        })
        .collect();
    (Row(columns), row.try_get(last).unwrap_or(true))
}

#[cfg(feature = "postgres")]
fn postgres_row(row: &sqlx::postgres::PgRow) -> (Row, bool) {
    use sqlx::{Column as _, Row as _, TypeInfo as _};
    let last = row.len() - 1;
    let columns = (0..last)
        .map(|at| {
            let of = |value: Result<Option<SqlValue>, sqlx::Error>| {
                value.ok().flatten().unwrap_or(SqlValue::Null)
            };
            match row.column(at).type_info().name() {
                "INT2" => of(row
                    .try_get::<Option<i16>, _>(at)
                    .map(|n| n.map(|n| SqlValue::Integer(n.into())))),
                "INT4" => of(row.try_get::<Option<i32>, _>(at).map(|n| n.map(Into::into))),
                "INT8" => of(row.try_get::<Option<i64>, _>(at).map(|n| n.map(Into::into))),
                "FLOAT4" => of(row
                    .try_get::<Option<f32>, _>(at)
                    .map(|n| n.map(|n| SqlValue::Real(n.into())))),
                "FLOAT8" => of(row.try_get::<Option<f64>, _>(at).map(|n| n.map(Into::into))),
                "BOOL" => of(row
                    .try_get::<Option<bool>, _>(at)
                    .map(|b| b.map(Into::into))),
                "BYTEA" => of(row
                    .try_get::<Option<Vec<u8>>, _>(at)
                    .map(|b| b.map(Into::into))),
                _ => of(row
                    .try_get::<Option<String>, _>(at)
                    .map(|s| s.map(Into::into))),
            }
        })
        .collect();
    (Row(columns), row.try_get(last).unwrap_or(true))
}

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn unavailable(error: sqlx::Error) -> SinkError {
    SinkError::Unavailable(Box::<dyn StdError + Send + Sync>::from(error))
}

/// Whether the same row would be refused again: a constraint or a value out of range, not the database's state.
fn is_the_rows_fault(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Encode(_) => true,
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            match code.parse::<u32>() {
                // SQLite: TOOBIG, CONSTRAINT, MISMATCH, in the low byte of an extended code.
                Ok(number) if code.len() < 5 => matches!(number & 0xff, 18..=20),
                // Postgres: data exceptions and integrity violations, and a wrong type for a column.
                _ => code.starts_with("22") || code.starts_with("23") || code == "42804",
            }
        }
        _ => false,
    }
}

fn identifier(name: &str) -> Result<()> {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().next().is_some_and(|c| !c.is_ascii_digit())
        && name.len() <= 63;
    match plain {
        true => Ok(()),
        false => Err(Error::config(
            "a table or column is named by letters, digits and _, not beginning with a digit",
        )),
    }
}
