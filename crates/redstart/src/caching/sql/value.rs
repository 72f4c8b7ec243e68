//! Values of columns, and rows of them.

/// A value of a column.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SqlValue {
    /// NULL.
    Null,
    /// An integer.
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
    // Databases have no larger integers. What does not fit becomes NULL, not a wrong number.
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

/// A row as it was read: the columns in the order in which they were added.
#[derive(Clone, Debug)]
pub struct SqlRow(Vec<SqlValue>);

impl SqlRow {
    /// The integer in a column.
    pub fn integer(&self, column: usize) -> Option<i64> {
        match self.0.get(column)? {
            SqlValue::Integer(n) => Some(*n),
            _ => None,
        }
    }

    /// The floating-point number in a column.
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

#[cfg(feature = "sqlite")]
pub(super) fn sqlite_row(row: &sqlx::sqlite::SqliteRow) -> (SqlRow, bool) {
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
    (SqlRow(columns), row.try_get(last).unwrap_or(true))
}

#[cfg(feature = "postgres")]
pub(super) fn postgres_row(row: &sqlx::postgres::PgRow) -> (SqlRow, bool) {
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
    (SqlRow(columns), row.try_get(last).unwrap_or(true))
}
