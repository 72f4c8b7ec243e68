//! Whether two servers hold the same, by reading it.
//!
//! Their clocks may be apart. What has expired by the clock of one side is gone there, and may still be there on the other: that
//! is no difference. Times of delivery may differ by as much as the clocks do: a server whose clock is behind takes none that is
//! in its future.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use redis::{Pipeline, Value};

use super::server::{Reads, Server};
use crate::error::Result;

/// How many keys are read by one request.
const BATCH: usize = 256;
/// How many requests are under way at a time, so that no side waits for the other ones.
const AT_ONCE: usize = 4;
/// How many keys are worth comparing at a time.
pub(super) const PAGE: usize = BATCH * AT_ONCE;
/// How many fields one command asks of.
const FIELDS: usize = 10_000;
/// What HPEXPIRETIME says of a field that does not expire.
const NO_DEADLINE: i64 = -1;

/// More than the measured difference of two clocks, in milliseconds: it takes a round trip to measure, and clocks are set.
const CLOCKS: i64 = 1000;
/// What TYPE says of a key that is not there.
const NONE: &str = "none";

/// What a key holds, in a form that is the same on all servers.
#[derive(Default)]
struct Content {
    kind: String,
    /// Unix milliseconds; not positive if there is none.
    deadline: i64,
    parts: Vec<Vec<u8>>,
    /// Of a hash: its fields, with their values and deadlines.
    fields: BTreeMap<Vec<u8>, (Vec<u8>, i64)>,
    /// Of a stream: when its pending entries were delivered, in unix milliseconds.
    delivered: Vec<i64>,
}

/// Contents as a server shows them when its clock says this, in unix milliseconds.
struct Shown<'a> {
    content: &'a Content,
    now: i64,
}

impl Shown<'_> {
    /// Whether the server does not show any more what has this deadline. A replica shows what has expired by its own clock as gone
    /// before its master says so.
    fn hides(&self, deadline: i64) -> bool {
        deadline > 0 && deadline <= self.now
    }

    /// Whether another server's key is one that is gone here.
    fn lacks_only(&self, other: &Content) -> bool {
        let has_expired = |(_, deadline): &(Vec<u8>, i64)| self.hides(*deadline);
        self.content.kind == NONE
            && (self.hides(other.deadline)
                || (!other.fields.is_empty() && other.fields.values().all(has_expired)))
    }

    /// Whether all fields of another server's hash are here, or have expired.
    fn has_fields_of(&self, other: &Content) -> bool {
        other.fields.iter().all(|(name, field)| {
            let own = self.content.fields.get(name);
            own == Some(field) || (own.is_none() && self.hides(field.1))
        })
    }

    /// Whether both are the same, for two clocks that are at most this many milliseconds apart.
    fn is_same(&self, other: &Shown<'_>, apart: i64) -> bool {
        let (here, there) = (self.content, other.content);
        if self.lacks_only(there) || other.lacks_only(here) {
            return true;
        }
        // A server takes no time of delivery that is in its future, but its own time instead.
        let is_close = |(a, b): (&i64, &i64)| a.abs_diff(*b) <= apart.unsigned_abs();
        here.kind == there.kind
            && here.deadline == there.deadline
            && here.parts == there.parts
            && self.has_fields_of(there)
            && other.has_fields_of(here)
            && here.delivered.len() == there.delivered.len()
            && here.delivered.iter().zip(&there.delivered).all(is_close)
    }
}

/// Those of the keys whose contents differ, on servers whose clocks are so far apart.
pub(super) async fn differing(
    from: &mut Server,
    to: &mut Server,
    clock_ahead_micros: i64,
    db: i64,
    keys: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>> {
    let apart = clock_ahead_micros.abs() / 1000 + CLOCKS;
    let (from, to) = (from.reads(db).await?, to.reads(db).await?);
    let batches = stream::iter(keys.chunks(BATCH)).map(|keys| batch(&from, &to, apart, keys));
    batches.buffer_unordered(AT_ONCE).try_concat().await
}

async fn batch(from: &Reads, to: &Reads, apart: i64, keys: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let (here, there) = tokio::join!(contents(from, keys), contents(to, keys));
    let ((here, now_here), (there, now_there)) = (here?, there?);
    let pairs = here.iter().zip(&there).zip(keys);
    let different = pairs.filter(|((here, there), _)| {
        let shown = |content, now| Shown { content, now };
        !shown(here, now_here).is_same(&shown(there, now_there), apart)
    });
    Ok(different.map(|(_, key)| key.clone()).collect())
}

/// What the keys hold, and what the server's clock said after they were read, in unix milliseconds.
async fn contents(server: &Reads, keys: &[Vec<u8>]) -> Result<(Vec<Content>, i64)> {
    let mut kinds = Pipeline::new();
    for key in keys {
        kinds.cmd("TYPE").arg(key);
        kinds.cmd("PEXPIRETIME").arg(key);
    }
    let kinds: Vec<(String, i64)> = server
        .all(&kinds)
        .await?
        .chunks_exact(2)
        .map(|pair| Ok((word(&pair[0]), redis::from_redis_value(pair[1].clone())?)))
        .collect::<Result<_>>()?;
    let mut reads = Pipeline::new();
    let mut counts = Vec::new();
    for (key, (kind, _)) in keys.iter().zip(&kinds) {
        let before = reads.len();
        read(&mut reads, kind, key);
        counts.push(reads.len() - before);
    }
    let mut replies = server.all_or_gone(&reads).await?.into_iter();
    let mut contents = Vec::new();
    for ((kind, deadline), count) in kinds.into_iter().zip(counts) {
        let replies: Vec<Value> = replies.by_ref().take(count).collect();
        contents.push(Content {
            deadline,
            ..canonical(&kind, replies)
        });
    }
    let now = add_deadlines(server, keys, &mut contents).await?;
    Ok((contents, now))
}

/// Adds when the fields of hashes expire. On a server that does not know such deadlines there are none. What its clock says
/// after that, in unix milliseconds.
async fn add_deadlines(server: &Reads, keys: &[Vec<u8>], contents: &mut [Content]) -> Result<i64> {
    let mut reads = Pipeline::new();
    let mut places = Vec::new();
    let hashes = keys.iter().zip(contents.iter()).enumerate();
    for (at, (key, content)) in hashes.filter(|_| server.expires_fields) {
        let names: Vec<&Vec<u8>> = content.fields.keys().collect();
        for names in names.chunks(FIELDS) {
            let read = reads.cmd("HPEXPIRETIME").arg(key).arg("FIELDS");
            read.arg(names.len()).arg(names);
            places.push((at, names.len()));
        }
    }
    reads.cmd("TIME");
    let mut replies = server.all_or_gone(&reads).await?.into_iter();
    let mut read_of: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    for (at, count) in places {
        let reply = replies.next().unwrap_or(Value::Nil);
        let mut deadlines: Vec<i64> = redis::from_redis_value(reply).unwrap_or_default();
        deadlines.resize(count, NO_DEADLINE);
        read_of.entry(at).or_default().extend(deadlines);
    }
    for (at, deadlines) in read_of {
        let fields = contents[at].fields.values_mut();
        fields.zip(deadlines).for_each(|(field, at)| field.1 = at);
    }
    let time = replies.next().unwrap_or(Value::Nil).extract_error()?;
    let (seconds, micros): (i64, i64) = redis::from_redis_value(time)?;
    Ok(seconds * 1000 + micros / 1000)
}

fn word(value: &Value) -> String {
    redis::from_redis_value(value.clone()).unwrap_or_default()
}

/// The commands that read a value whole.
fn read(pipeline: &mut Pipeline, kind: &str, key: &[u8]) {
    match kind {
        "string" => drop(pipeline.cmd("GET").arg(key)),
        "list" => drop(pipeline.cmd("LRANGE").arg(key).arg(0).arg(-1)),
        "set" => drop(pipeline.cmd("SMEMBERS").arg(key)),
        "hash" => drop(pipeline.cmd("HGETALL").arg(key)),
        "zset" => {
            let range = pipeline.cmd("ZRANGE").arg(key);
            range.arg(0).arg(-1).arg("WITHSCORES");
        }
        "stream" => {
            let info = pipeline.cmd("XINFO").arg("STREAM").arg(key);
            info.arg("FULL").arg("COUNT").arg(0);
        }
        _ => {}
    }
}

/// What was read, without what may differ between equal values.
fn canonical(kind: &str, replies: Vec<Value>) -> Content {
    let mut content = Content {
        kind: kind.to_owned(),
        ..Content::default()
    };
    let mut parts = Vec::new();
    for reply in replies {
        match (kind, reply) {
            ("stream", reply) => stream_parts(&reply, &mut parts, &mut content.delivered),
            (_, Value::Array(items)) => {
                items.into_iter().for_each(|item| flatten(item, &mut parts));
            }
            (_, other) => flatten(other, &mut parts),
        }
    }
    match kind {
        "set" => parts.sort_unstable(),
        "hash" => {
            let mut parts = std::mem::take(&mut parts).into_iter();
            while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
                content.fields.insert(name, (value, NO_DEADLINE));
            }
        }
        // Servers write the same score with different digits.
        "zset" => {
            for score in parts.iter_mut().skip(1).step_by(2) {
                let text = String::from_utf8_lossy(score);
                if let Ok(number) = text.parse::<f64>() {
                    *score = number.to_bits().to_be_bytes().to_vec();
                }
            }
        }
        _ => {}
    }
    content.parts = parts;
    content
}

fn flatten(value: Value, into: &mut Vec<Vec<u8>>) {
    match value {
        Value::BulkString(bytes) => into.push(bytes),
        Value::SimpleString(text) => into.push(text.into_bytes()),
        Value::Int(number) => into.push(number.to_string().into_bytes()),
        Value::Nil => into.push(b"nil".to_vec()),
        Value::Array(items) => {
            // Lists of lists with the same leaves may differ.
            into.push(format!("[{}", items.len()).into_bytes());
            items.into_iter().for_each(|item| flatten(item, into));
        }
        other => into.push(format!("{other:?}").into_bytes()),
    }
}

/// What a replica knows of a stream: its entries, and its groups by name with all that is pending, for whom, since when
/// and how often. Not when consumers were seen, nor those that have nothing.
fn stream_parts(info: &Value, into: &mut Vec<Vec<u8>>, delivered: &mut Vec<i64>) {
    let whole = [
        "length",
        "last-generated-id",
        "max-deleted-entry-id",
        "entries-added",
        "entries",
    ];
    fields(info, &whole, into);
    let mut groups: Vec<(Vec<Vec<u8>>, Vec<i64>)> = Vec::new();
    for group in field(info, "groups").into_iter().flat_map(items) {
        let (mut parts, mut times) = (Vec::new(), Vec::new());
        fields(
            group,
            &["name", "last-delivered-id", "pel-count"],
            &mut parts,
        );
        let pending = ["pel", "pending"].iter();
        for entry in pending
            .filter_map(|name| field(group, name))
            .flat_map(items)
        {
            // The id, the consumer, when it was delivered, and how often.
            for (at, part) in items(entry).iter().enumerate() {
                match (at, part) {
                    (2, Value::Int(time)) => times.push(*time),
                    _ => flatten(part.clone(), &mut parts),
                }
            }
        }
        groups.push((parts, times));
    }
    groups.sort_unstable();
    for (parts, times) in groups {
        into.extend(parts);
        delivered.extend(times);
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_sequence().unwrap_or_default()
}

/// The value of a name in a reply of names and values.
fn field<'a>(reply: &'a Value, name: &str) -> Option<&'a Value> {
    match reply {
        Value::Map(pairs) => {
            let pair = pairs.iter().find(|(key, _)| word(key) == name)?;
            Some(&pair.1)
        }
        other => {
            let mut pairs = items(other).chunks_exact(2);
            Some(&pairs.find(|pair| word(&pair[0]) == name)?[1])
        }
    }
}

/// Those of some names that are there.
fn fields(reply: &Value, names: &[&str], into: &mut Vec<Vec<u8>>) {
    for name in names {
        if let Some(value) = field(reply, name) {
            flatten(value.clone(), into);
        }
    }
}

/// The items of a list, in an order of their own.
pub(super) fn sorted(list: Value) -> Vec<Vec<Vec<u8>>> {
    let flat = |item: Value| {
        let mut parts = Vec::new();
        flatten(item, &mut parts);
        // A library's functions come in any order, too.
        parts.sort_unstable();
        parts
    };
    let items = list.into_sequence().unwrap_or_default().into_iter();
    let mut items: Vec<_> = items.map(flat).collect();
    items.sort_unstable();
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulks(words: &[&str]) -> Value {
        let bulk = |word: &&str| Value::BulkString(word.as_bytes().to_vec());
        Value::Array(words.iter().map(bulk).collect())
    }

    fn are_same(here: &Content, now_here: i64, there: &Content, now_there: i64) -> bool {
        let shown = |content, now| Shown { content, now };
        shown(here, now_here).is_same(&shown(there, now_there), CLOCKS)
    }

    #[test]
    fn what_has_expired_by_the_clock_of_one_side_is_no_difference() {
        let none = canonical(NONE, Vec::new());
        let mut key = canonical("string", vec![Value::BulkString(b"v".to_vec())]);
        assert!(!are_same(&none, 500, &key, 500), "it does not expire");
        key.deadline = 500;
        for (a, b) in [(&none, &key), (&key, &none)] {
            assert!(are_same(a, 500, b, 500));
            assert!(!are_same(a, 499, b, 499), "it is to be there");
        }
        assert!(are_same(&none, 500, &key, 400), "its clock is ahead");
        assert!(!are_same(&none, 400, &key, 500), "its clock is behind");
        // A field as a key, and a hash of such fields as a key that is gone.
        let whole = canonical("hash", vec![bulks(&["f", "1", "g", "2"])]);
        let mut short = canonical("hash", vec![bulks(&["f", "1", "g", "2"])]);
        short.fields.insert(b"g".to_vec(), (b"2".to_vec(), 500));
        let part = canonical("hash", vec![bulks(&["f", "1"])]);
        assert!(!are_same(&whole, 500, &part, 500));
        assert!(!are_same(&whole, 500, &short, 500), "a deadline is lost");
        for (a, b) in [(&short, &part), (&part, &short)] {
            assert!(are_same(a, 500, b, 500));
            assert!(!are_same(a, 499, b, 499));
        }
        assert!(!are_same(&none, 500, &short, 500));
        short.fields.insert(b"f".to_vec(), (b"1".to_vec(), 400));
        assert!(are_same(&none, 500, &short, 500));
        assert!(!are_same(&none, 450, &short, 500));
    }

    #[test]
    fn the_order_of_members_does_not_matter_where_there_is_none() {
        let same = |kind: &str, a: &[&str], b: &[&str]| {
            let of = |words| canonical(kind, vec![bulks(words)]);
            are_same(&of(a), 0, &of(b), 0)
        };
        assert!(same("set", &["a", "b"], &["b", "a"]));
        assert!(!same("set", &["a", "b"], &["a", "c"]));
        assert!(same("hash", &["f", "1", "g", "2"], &["g", "2", "f", "1"]));
        assert!(!same("hash", &["f", "1", "g", "2"], &["f", "2", "g", "1"]));
        assert!(!same("list", &["a", "b"], &["b", "a"]));
        assert!(same("zset", &["a", "1e2"], &["a", "100"]));
        assert!(!same("zset", &["a", "1"], &["a", "2"]));
    }
}
