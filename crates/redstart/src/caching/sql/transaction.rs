//! The transaction of a batch: its changes and its checkpoint.

use std::error::Error as StdError;

use sqlx::AssertSqlSafe;

use super::{Pool, SqlSink, value::SqlValue};
use crate::caching::write_behind::{Changes, RefusedChange, SinkError};

pub(super) const CHECKPOINT_TABLE: &str = "CREATE TABLE IF NOT EXISTS redstart_checkpoint (sink TEXT NOT NULL, \
     log TEXT NOT NULL, shard BIGINT NOT NULL, epoch BIGINT NOT NULL, ms BIGINT NOT NULL, n BIGINT NOT NULL, \
     PRIMARY KEY (sink, log, shard))";
pub(super) const CLAIM: &str = "INSERT INTO redstart_checkpoint (sink, log, shard, epoch, ms, n) \
     VALUES ($1, $2, $3, 1, 0, 0) \
     ON CONFLICT (sink, log, shard) DO UPDATE SET epoch = redstart_checkpoint.epoch + 1 RETURNING epoch, ms, n";
const CHECKPOINT: &str = "UPDATE redstart_checkpoint SET ms = $1, n = $2 \
     WHERE sink = $3 AND log = $4 AND shard = $5 AND epoch = $6 AND (ms, n) < ($1, $2)";
const EPOCH: &str =
    "SELECT epoch FROM redstart_checkpoint WHERE sink = $1 AND log = $2 AND shard = $3";

/// What a transaction is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Apply everything, or stop at the first refused row.
    Commit,
    /// Find all refused rows, with a savepoint before each row. Commits nothing if there are any.
    Probe,
}

/// The same for each database; only the types of sqlx differ.
macro_rules! transact {
    ($begin:expr, $sink:ident, $changes:ident, $mode:ident) => {{
        let mut transaction = $begin.await.map_err(unavailable)?;
        // The epoch first, so that a worker that lost its shard locks no rows.
        let moved = sqlx::query(CHECKPOINT)
            .bind(number($changes.upto.ms))
            .bind(number($changes.upto.n))
            .bind(&$sink.table)
            .bind(&*$changes.log)
            .bind(i64::from($changes.shard))
            .bind($changes.epoch)
            .execute(&mut *transaction)
            .await
            .map_err(unavailable)?;
        if moved.rows_affected() == 0 {
            let epoch: Option<i64> = sqlx::query_scalar(EPOCH)
                .bind(&$sink.table)
                .bind(&*$changes.log)
                .bind(i64::from($changes.shard))
                .fetch_optional(&mut *transaction)
                .await
                .map_err(unavailable)?;
            return match epoch == Some($changes.epoch) {
                // Committed before, and the reply was lost.
                true => Ok(()),
                false => Err(SinkError::Fenced),
            };
        }
        let mut refused = Vec::new();
        for (index, change) in $changes.changes.iter().enumerate() {
            // What is not to be applied itself is only looked at if the database refuses what is.
            let newest = std::iter::once((&change.id, &change.value));
            let older = change.older.iter().map(|(id, value)| (id, value));
            let mut reasons = Vec::new();
            for (id, value) in newest.chain(older) {
                if $mode == Mode::Probe {
                    let savepoint = sqlx::query("SAVEPOINT redstart_row");
                    let set = savepoint.execute(&mut *transaction).await;
                    set.map_err(unavailable)?;
                }
                let row: Option<Vec<SqlValue>> = value
                    .as_ref()
                    .map(|value| $sink.columns.iter().map(|(_, get)| get(value)).collect());
                let mut query = sqlx::query(AssertSqlSafe($sink.upsert(row.as_deref())))
                    .bind(&change.key)
                    .bind(id.seq());
                for value in row.into_iter().flatten() {
                    query = match value {
                        SqlValue::Null => query,
                        SqlValue::Integer(n) => query.bind(n),
                        SqlValue::Real(n) => query.bind(n),
                        SqlValue::Text(text) => query.bind(text),
                        SqlValue::Blob(bytes) => query.bind(bytes),
                        SqlValue::Bool(b) => query.bind(b),
                    };
                }
                let reason = match query.execute(&mut *transaction).await {
                    Ok(_) => None,
                    Err(error) if is_refusal(&error) => Some(error),
                    Err(error) => return Err(unavailable(error)),
                };
                if $mode == Mode::Probe {
                    let end = match reason {
                        None => "RELEASE SAVEPOINT redstart_row",
                        Some(_) => "ROLLBACK TO SAVEPOINT redstart_row",
                    };
                    let ended = sqlx::query(end).execute(&mut *transaction).await;
                    ended.map_err(unavailable)?;
                }
                match reason {
                    None => break,
                    Some(reason) => reasons.push(reason.into()),
                }
                if $mode == Mode::Commit {
                    break;
                }
            }
            let mut reasons = reasons.into_iter();
            if let Some(source) = reasons.next() {
                refused.push(RefusedChange {
                    index,
                    source,
                    older: reasons.collect(),
                });
                if $mode == Mode::Commit {
                    return Err(SinkError::Refused(refused));
                }
            }
        }
        if !refused.is_empty() {
            return Err(SinkError::Refused(refused));
        }
        transaction.commit().await.map_err(unavailable)
    }};
}

impl<V: Send + Sync + 'static> SqlSink<V> {
    pub(super) async fn transact(&self, changes: &Changes<V>, mode: Mode) -> Result<(), SinkError> {
        match &self.pool {
            // A transaction that begins with a read cannot always be turned into one that writes.
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => {
                transact!(pool.begin_with("BEGIN IMMEDIATE"), self, changes, mode)
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => transact!(pool.begin(), self, changes, mode),
        }
    }

    /// `INSERT … ON CONFLICT … WHERE excluded.seq >= seq`, for the columns of a value, or for a tombstone.
    ///
    /// Writes beyond the range of [`EntryId::seq`](crate::caching::EntryId::seq) have equal numbers. Epoch and
    /// checkpoint ensure that the later one is applied later, and only once.
    ///
    /// A statement that Postgres has prepared keeps the types of its first parameters, and is found by its text. So the
    /// text names the types, and NULL is no parameter: it has no type.
    fn upsert(&self, row: Option<&[SqlValue]>) -> String {
        let table = &self.table;
        let mut columns = String::from("key, seq, deleted");
        let mut values = format!("$1, $2, {}", if row.is_some() { "FALSE" } else { "TRUE" });
        let mut set = String::from("seq = excluded.seq, deleted = excluded.deleted");
        let mut parameter = 2;
        for ((name, _), value) in self.columns.iter().zip(row.unwrap_or_default()) {
            columns.push_str(&format!(", {name}"));
            set.push_str(&format!(", {name} = excluded.{name}"));
            if *value == SqlValue::Null {
                values.push_str(", NULL");
                continue;
            }
            parameter += 1;
            values.push_str(&format!(", ${parameter}{}", self.cast(value)));
        }
        format!(
            "INSERT INTO {table} ({columns}) VALUES ({values}) \
             ON CONFLICT (key) DO UPDATE SET {set} WHERE excluded.seq >= {table}.seq"
        )
    }

    /// What follows a parameter to name its type. SQLite asks for none.
    fn cast(&self, value: &SqlValue) -> &'static str {
        #[cfg(feature = "sqlite")]
        if matches!(self.pool, Pool::Sqlite(_)) {
            return "";
        }
        match value {
            SqlValue::Null => "",
            SqlValue::Integer(_) => "::int8",
            SqlValue::Real(_) => "::float8",
            SqlValue::Text(_) => "::text",
            SqlValue::Blob(_) => "::bytea",
            SqlValue::Bool(_) => "::bool",
        }
    }
}

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(super) fn unavailable(error: sqlx::Error) -> SinkError {
    SinkError::Unavailable(Box::<dyn StdError + Send + Sync>::from(error))
}

/// Whether the same row would be refused again: a constraint or a value out of range, not the database's state.
fn is_refusal(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Encode(_) => true,
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            match code.parse::<u32>() {
                // SQLite: TOOBIG, CONSTRAINT, MISMATCH, in the low byte of an extended code.
                Ok(number) if code.len() < 5 => matches!(number & 0xff, 18..=20),
                // Postgres: data exceptions, integrity violations, and a wrong type for a column.
                _ => code.starts_with("22") || code.starts_with("23") || code == "42804",
            }
        }
        _ => false,
    }
}
