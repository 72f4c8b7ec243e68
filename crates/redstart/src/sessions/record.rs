//! A session as it is stored: a hash of its own fields and the application's.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};

/// The fields of one session: a script passes them in one piece.
pub(super) const MAX_FIELDS: usize = 1000;
pub(super) const MAX_BYTES: usize = 1024 * 1024;
/// The application's fields begin with this, so that they never meet the session's own.
pub(super) const PREFIX: &str = "d:";

/// A session's hash, taken apart. Times are those of the server's clock, since the Unix epoch.
#[derive(Default)]
pub(super) struct Record {
    pub(super) user: Option<String>,
    pub(super) label: Option<String>,
    pub(super) remembered: bool,
    pub(super) created: Duration,
    /// The last use, exact to the slack.
    pub(super) seen: Duration,
    /// When this was read.
    pub(super) now: Duration,
    pub(super) left: Duration,
    /// When the elevation ends.
    pub(super) elevated: Duration,
    pub(super) fields: Map<String, Json>,
    /// Digest of the token.
    token: String,
    /// Digests of the tokens before it, each followed by the end of its grace.
    previous: String,
}

/// How a token fits a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    Current,
    /// A token that was rotated, within its grace.
    Previous,
    Not,
}

impl Record {
    /// Reads the pairs of a hash that has `left` to live.
    pub(super) fn read(
        pairs: impl IntoIterator<Item = (String, String)>,
        left: Duration,
    ) -> Result<Self> {
        let mut record = Self {
            left,
            ..Self::default()
        };
        let mut ends = Duration::ZERO;
        let micros = |text: &str| Duration::from_micros(text.parse().unwrap_or(0));
        for (field, value) in pairs {
            if let Some(field) = field.strip_prefix(PREFIX) {
                let value = serde_json::from_str(&value)
                    .map_err(|_| Error::codec("a field of the session is not valid JSON"))?;
                record.fields.insert(field.to_owned(), value);
                continue;
            }
            match field.as_str() {
                "user" => record.user = Some(value).filter(|user| !user.is_empty()),
                "label" => record.label = Some(value),
                "remembered" => record.remembered = true,
                "created" => record.created = micros(&value),
                "seen" => record.seen = micros(&value),
                "ends" => ends = micros(&value),
                "elevated" => record.elevated = micros(&value),
                "token" => record.token = value,
                "previous" => record.previous = value,
                _ => {}
            }
        }
        record.now = ends.saturating_sub(left);
        Ok(record)
    }

    pub(super) fn fit(&self, digest: &str) -> Fit {
        if self.token == digest {
            return Fit::Current;
        }
        let mut words = self.previous.split_ascii_whitespace();
        while let (Some(previous), Some(until)) = (words.next(), words.next()) {
            let until = Duration::from_micros(until.parse().unwrap_or(0));
            if previous == digest && until > self.now {
                return Fit::Previous;
            }
        }
        Fit::Not
    }
}

/// The fields of a struct or a map.
pub(super) fn fields<T: Serialize + ?Sized>(data: &T) -> Result<Map<String, Json>> {
    let fields = match serde_json::to_value(data) {
        Ok(Json::Object(fields)) => fields,
        Ok(Json::Null) => Map::new(),
        Ok(_) => return Err(Error::config("session data must be a struct or a map")),
        Err(error) => {
            return Err(Error::codec("the session data cannot be encoded").with_source(error));
        }
    };
    if !fits(&fields) {
        return Err(Error::config(format!(
            "session data must have at most {MAX_FIELDS} fields and {MAX_BYTES} bytes"
        )));
    }
    Ok(fields)
}

/// The patch that makes `after` of `before`: fields that are gone are `null`.
pub(super) fn difference(
    before: &Map<String, Json>,
    after: &Map<String, Json>,
) -> Map<String, Json> {
    let gone = before.keys().filter(|field| !after.contains_key(*field));
    let changed = after
        .iter()
        .filter(|(field, value)| before.get(*field) != Some(*value));
    gone.map(|field| (field.clone(), Json::Null))
        .chain(changed.map(|(field, value)| (field.clone(), value.clone())))
        .collect()
}

/// Whether a session has room for these fields.
pub(super) fn fits(fields: &Map<String, Json>) -> bool {
    fields.len() <= MAX_FIELDS && bytes(fields) <= MAX_BYTES
}

/// The bytes of the fields as they are stored; the script of a patch counts the same way.
pub(super) fn bytes(fields: &Map<String, Json>) -> usize {
    fields
        .iter()
        .map(|(field, value)| PREFIX.len() + field.len() + value.to_string().len())
        .sum()
}
