//! Streams and their consumer groups, by XINFO.

use redis::Value;

use super::{Blinds, keys::integer};
use crate::{
    node::Node,
    observation::{ConsumerFacts, GroupFacts, StreamFacts},
    pattern,
    text::printable,
    wire::{Answer, words},
};

/// Streams that are looked at, and groups and pending entries of each.
const STREAMS: usize = 100;
const GROUPS: usize = 16;
const PENDING: usize = 10;
/// Entries are only read where they are small on average, in bytes.
const SMALL_ENTRY: u64 = 4096;
/// XINFO CONSUMERS of a group with more consumers would take the server longer than a millisecond.
const CONSUMERS: u64 = 1000;

/// Finds streams without a walk over all names: a bounded number of small steps.
pub(crate) async fn find(node: &mut Node, blinds: &mut Blinds) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    for _ in 0..100 {
        let answer = node
            .wire
            .call(words!["SCAN", cursor, "COUNT", "100", "TYPE", "stream"])
            .await;
        let parts = match answer {
            Ok(Value::Array(parts)) => parts,
            Ok(_) => break,
            Err(trouble) => {
                blinds.note(format!("streams on {}", node.address), trouble);
                break;
            }
        };
        let mut parts = parts.into_iter();
        cursor = parts
            .next()
            .and_then(|next| redis::from_redis_value(next).ok())
            .unwrap_or_default();
        let names: Vec<Vec<u8>> = parts
            .next()
            .and_then(|names| redis::from_redis_value(names).ok())
            .unwrap_or_default();
        found.extend(names);
        if cursor == "0" || cursor.is_empty() || found.len() >= STREAMS {
            break;
        }
    }
    found.truncate(STREAMS);
    found
}

/// The facts of one stream.
pub(crate) async fn facts(
    node: &mut Node,
    name: &[u8],
    now: u64,
    blinds: &mut Blinds,
) -> Option<StreamFacts> {
    let length: u64 = node.wire.get(words!["XLEN", name]).await.ok()?;
    let mut facts = StreamFacts {
        name: printable(name),
        pattern: pattern::generalise(name),
        length,
        now,
        ..StreamFacts::default()
    };
    // XINFO STREAM has the first and the last entry in its reply.
    let memory: Answer<u64> = node
        .wire
        .get(words!["MEMORY", "USAGE", name, "SAMPLES", "5"])
        .await;
    let small = memory.is_ok_and(|memory| memory / length.max(1) < SMALL_ENTRY) || length == 0;
    if small {
        let info = node.wire.call(words!["XINFO", "STREAM", name]).await.ok()?;
        facts.added = number(&info, "entries-added");
        facts.first = field(&info, "first-entry").and_then(|entry| match entry {
            Value::Array(parts) => id(parts.first()?),
            _ => None,
        });
    } else {
        blinds.note(
            format!("entries of the stream {}", facts.name),
            "not read, because they are large: which of them were trimmed or deleted is not known",
        );
    }
    let Ok(Value::Array(groups)) = node.wire.call(words!["XINFO", "GROUPS", name]).await else {
        return Some(facts);
    };
    for group in groups.iter().take(GROUPS) {
        let Some(own) =
            field(group, "name").and_then(|value| redis::from_redis_value::<Vec<u8>>(value).ok())
        else {
            continue;
        };
        let count = number(group, "consumers").unwrap_or(0);
        let mut group = GroupFacts {
            name: printable(&own),
            pending: number(group, "pending").unwrap_or(0),
            delivered: field(group, "last-delivered-id")
                .and_then(|value| id(&value))
                .unwrap_or_default(),
            read: number(group, "entries-read"),
            lag: number(group, "lag"),
            ..GroupFacts::default()
        };
        if count > CONSUMERS {
            blinds.note(
                format!("consumers of groups on {}", node.address),
                format!("not asked where a list is long: one group has {count} consumers"),
            );
        } else if let Ok(Value::Array(consumers)) = node
            .wire
            .call(words!["XINFO", "CONSUMERS", name, own])
            .await
        {
            group.consumers = consumers
                .iter()
                .map(|consumer| ConsumerFacts {
                    pending: number(consumer, "pending").unwrap_or(0),
                    idle: number(consumer, "idle").unwrap_or(0),
                })
                .collect();
        }
        pending(node, name, &own, small, &mut group).await;
        facts.groups.push(group);
    }
    Some(facts)
}

/// The first pending entries: how often they were delivered, and whether they still exist.
async fn pending(node: &mut Node, name: &[u8], own: &[u8], small: bool, group: &mut GroupFacts) {
    if group.pending == 0 {
        return;
    }
    let answer = node
        .wire
        .call(words!["XPENDING", name, own, "-", "+", PENDING.to_string()])
        .await;
    let Ok(Value::Array(entries)) = answer else {
        return;
    };
    let mut ids = Vec::new();
    for entry in entries {
        let Value::Array(parts) = entry else { continue };
        let part = |i: usize| {
            parts
                .get(i)
                .and_then(|part| redis::from_redis_value::<u64>(part.clone()).ok())
                .unwrap_or(0)
        };
        group.oldest_idle = group.oldest_idle.max(part(2));
        group.deliveries = group.deliveries.max(part(3));
        if let Some(id) = parts
            .first()
            .and_then(|id| redis::from_redis_value::<String>(id.clone()).ok())
        {
            ids.push(id);
        }
    }
    for id in ids.into_iter().filter(|_| small) {
        if let Ok(Value::Array(found)) = node
            .wire
            .call(words!["XRANGE", name, id, id, "COUNT", "1"])
            .await
            && found.is_empty()
        {
            group.vanished += 1;
        }
    }
}

/// The second look: pending entries of each group.
pub(crate) async fn look_again(node: &mut Node, name: &[u8], facts: &mut StreamFacts) {
    let Ok(Value::Array(groups)) = node.wire.call(words!["XINFO", "GROUPS", name]).await else {
        return;
    };
    for (group, now) in facts.groups.iter_mut().zip(&groups) {
        group.pending_later = number(now, "pending");
        let read_more = number(now, "entries-read")
            .zip(group.read)
            .map(|(now, before)| now.saturating_sub(before));
        group.acked_later = group
            .pending_later
            .zip(read_more)
            .map(|(later, read)| later < group.pending + read);
    }
}

/// A field of a reply that alternates names and values.
fn field(value: &Value, name: &str) -> Option<Value> {
    match value {
        Value::Array(parts) => parts.chunks_exact(2).find_map(|pair| {
            let key: String = redis::from_redis_value(pair[0].clone()).ok()?;
            (key == name).then(|| pair[1].clone())
        }),
        Value::Map(pairs) => pairs.iter().find_map(|(key, value)| {
            let key: String = redis::from_redis_value(key.clone()).ok()?;
            (key == name).then(|| value.clone())
        }),
        _ => None,
    }
}

fn number(value: &Value, name: &str) -> Option<u64> {
    let answer: Answer = Ok(field(value, name)?);
    integer(&answer).and_then(|n| u64::try_from(n).ok())
}

fn id(value: &Value) -> Option<(u64, u64)> {
    let text: String = redis::from_redis_value(value.clone()).ok()?;
    let (ms, sequence) = text.split_once('-')?;
    Some((ms.parse().ok()?, sequence.parse().ok()?))
}
