//! Whether two servers hold the same, by reading it.

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

/// What a key holds, in a form that is the same on all servers.
#[derive(PartialEq)]
struct Content {
    kind: String,
    /// Unix milliseconds.
    deadline: i64,
    parts: Vec<Vec<u8>>,
}

/// Those of the keys whose contents differ.
pub(super) async fn differing(
    from: &mut Server,
    to: &mut Server,
    db: i64,
    keys: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>> {
    let (from, to) = (from.reads(db).await?, to.reads(db).await?);
    let batches = stream::iter(keys.chunks(BATCH)).map(|keys| batch(&from, &to, keys));
    batches.buffer_unordered(AT_ONCE).try_concat().await
}

async fn batch(from: &Reads, to: &Reads, keys: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let (here, there) = tokio::join!(contents(from, keys), contents(to, keys));
    let pairs = here?.into_iter().zip(there?).zip(keys);
    let different = pairs.filter(|((here, there), _)| here != there);
    Ok(different.map(|(_, key)| key.clone()).collect())
}

async fn contents(server: &Reads, keys: &[Vec<u8>]) -> Result<Vec<Content>> {
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
        let parts = canonical(&kind, replies);
        contents.push(Content {
            kind,
            deadline,
            parts,
        });
    }
    add_deadlines(server, keys, &mut contents).await?;
    Ok(contents)
}

/// Adds when the fields of hashes expire. On a server that does not know such deadlines there are none.
async fn add_deadlines(server: &Reads, keys: &[Vec<u8>], contents: &mut [Content]) -> Result<()> {
    let mut reads = Pipeline::new();
    let mut places = Vec::new();
    for (at, (key, content)) in keys.iter().zip(contents.iter()).enumerate() {
        if content.kind != "hash" {
            continue;
        }
        for pairs in content.parts.chunks(2 * FIELDS) {
            let read = reads.cmd("HPEXPIRETIME").arg(key).arg("FIELDS");
            read.arg(pairs.len() / 2);
            for pair in pairs.chunks_exact(2) {
                read.arg(&pair[0]);
            }
            places.push((at, pairs.len() / 2));
        }
    }
    let mut replies = match server.expires_fields {
        true => server.all_or_gone(&reads).await?.into_iter(),
        false => Vec::new().into_iter(),
    };
    for (at, count) in places {
        let reply = replies.next().unwrap_or(Value::Nil);
        let mut deadlines: Vec<i64> = redis::from_redis_value(reply).unwrap_or_default();
        deadlines.resize(count, NO_DEADLINE);
        let deadlines = deadlines.iter().map(|deadline| deadline.to_string());
        contents[at].parts.extend(deadlines.map(String::into_bytes));
    }
    Ok(())
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
fn canonical(kind: &str, replies: Vec<Value>) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    for reply in replies {
        match (kind, reply) {
            ("stream", reply) => stream_parts(reply, &mut parts),
            (_, Value::Array(items)) => {
                items.into_iter().for_each(|item| flatten(item, &mut parts));
            }
            (_, other) => flatten(other, &mut parts),
        }
    }
    match kind {
        "set" => parts.sort_unstable(),
        "hash" => {
            let mut pairs: Vec<Vec<Vec<u8>>> = parts.chunks(2).map(<[_]>::to_vec).collect();
            pairs.sort_unstable();
            parts = pairs.concat();
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
    parts
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
fn stream_parts(info: Value, into: &mut Vec<Vec<u8>>) {
    let whole = [
        "length",
        "last-generated-id",
        "max-deleted-entry-id",
        "entries-added",
        "entries",
    ];
    fields(&info, &whole, into);
    let mut groups: Vec<Vec<Vec<u8>>> = Vec::new();
    for group in field(&info, "groups").into_iter().flat_map(items) {
        let mut parts = Vec::new();
        let known = ["name", "last-delivered-id", "pel-count", "pel", "pending"];
        fields(group, &known, &mut parts);
        groups.push(parts);
    }
    groups.sort_unstable();
    into.extend(groups.concat());
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

    #[test]
    fn the_order_of_members_does_not_matter_where_there_is_none() {
        let same = |kind: &str, a: &[&str], b: &[&str]| {
            canonical(kind, vec![bulks(a)]) == canonical(kind, vec![bulks(b)])
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
