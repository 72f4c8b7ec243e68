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
    Ok(contents)
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
            pipeline.cmd("XRANGE").arg(key).arg("-").arg("+");
            pipeline.cmd("XINFO").arg("GROUPS").arg(key);
            pipeline.cmd("XINFO").arg("STREAM").arg(key);
        }
        _ => {}
    }
}

/// What was read, without what may differ between equal values.
fn canonical(kind: &str, replies: Vec<Value>) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    for (at, reply) in replies.into_iter().enumerate() {
        match (kind, at) {
            ("stream", 1) => groups(reply, &mut parts),
            ("stream", 2) => fields(&reply, &["length", "last-generated-id"], &mut parts),
            (_, _) => match reply {
                Value::Array(items) => {
                    items.into_iter().for_each(|item| flatten(item, &mut parts));
                }
                other => flatten(other, &mut parts),
            },
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

/// The groups of a stream by name, with what replicas know of them.
fn groups(reply: Value, into: &mut Vec<Vec<u8>>) {
    let mut groups: Vec<Vec<Vec<u8>>> = Vec::new();
    for group in reply.into_sequence().unwrap_or_default() {
        let mut parts = Vec::new();
        fields(
            &group,
            &["name", "pending", "last-delivered-id"],
            &mut parts,
        );
        groups.push(parts);
    }
    groups.sort_unstable();
    into.extend(groups.concat());
}

/// Some fields of a flat reply of names and values.
fn fields(reply: &Value, names: &[&str], into: &mut Vec<Vec<u8>>) {
    let items = reply.as_sequence().unwrap_or_default();
    for pair in items.chunks_exact(2) {
        if names.contains(&word(&pair[0]).as_str()) {
            flatten(pair[1].clone(), into);
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
