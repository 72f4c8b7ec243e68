//! Streams and their consumer groups, by XINFO.

use std::{collections::HashMap, time::Instant};

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
/// Steps of the search, and names in each.
const STEPS: usize = 500;
const STEP: usize = 10;
/// Entries are only read where the first and the last one are smaller, in bytes.
const SMALL_ENTRY: usize = 4096;
/// XINFO GROUPS of a stream with more groups would take the server longer than a millisecond, as would XINFO CONSUMERS of a
/// group with more consumers. Neither command has a limit.
const MANY_GROUPS: u64 = 1000;
const CONSUMERS: u64 = 1000;

/// Finds streams without a walk over all names: a bounded number of small steps.
pub(crate) async fn find(node: &mut Node, blinds: &mut Blinds) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    let mut steps = 0;
    loop {
        let count = STEP.to_string();
        let answer = node
            .wire
            .call(words!["SCAN", cursor, "COUNT", count, "TYPE", "stream"])
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
        steps += 1;
        if cursor == "0" || cursor.is_empty() {
            break;
        }
        if steps >= STEPS || found.len() >= STREAMS {
            blinds.note(
                format!("streams on {}", node.address),
                format!(
                    "searched for among about {} names, and in the sample if there is one; there may be others",
                    steps * STEP
                ),
            );
            break;
        }
    }
    if found.len() > STREAMS {
        found.truncate(STREAMS);
        blinds.note(
            format!("streams on {}", node.address),
            format!("more than {STREAMS}; the others were left out"),
        );
    }
    found
}

/// What XINFO STREAM says of a stream. Its first and its last entry are in the reply, so it is asked once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info {
    length: u64,
    added: Option<u64>,
    first: Option<(u64, u64)>,
    groups: u64,
    /// The larger one of the two entries, in bytes.
    entry: usize,
}

/// Streams that were asked for already.
pub(crate) type Infos = HashMap<Vec<u8>, Info>;

impl Info {
    pub(crate) fn of(reply: &Value) -> Self {
        let first = field(reply, "first-entry");
        let last = field(reply, "last-entry");
        Self {
            length: number(reply, "length").unwrap_or(0),
            added: number(reply, "entries-added"),
            groups: number(reply, "groups").unwrap_or(0),
            entry: [&first, &last]
                .into_iter()
                .flatten()
                .map(size)
                .max()
                .unwrap_or(0),
            first: first.and_then(|entry| match entry {
                Value::Array(parts) => id(parts.first()?),
                _ => None,
            }),
        }
    }

    fn is_small(&self) -> bool {
        self.entry < SMALL_ENTRY
    }

    /// About how many bytes the stream has; `None` if its entries are large.
    pub(crate) fn estimate(&self) -> Option<u64> {
        self.is_small().then(|| self.length * self.entry as u64)
    }
}

/// The facts of one stream.
pub(crate) async fn facts(
    node: &mut Node,
    name: &[u8],
    known: Option<Info>,
    now: u64,
    blinds: &mut Blinds,
) -> Option<StreamFacts> {
    // It says how many groups there are, which decides what else may be asked.
    let info = match known {
        Some(info) => info,
        None => match node.wire.call(words!["XINFO", "STREAM", name]).await {
            Ok(reply) => Info::of(&reply),
            Err(trouble) => {
                // One that was deleted since it was found is no loss.
                if !trouble.is_about_the_key() {
                    blinds.note(format!("XINFO STREAM on {}", node.address), trouble);
                }
                return None;
            }
        },
    };
    let mut facts = StreamFacts {
        name: printable(name),
        pattern: pattern::generalise(name),
        length: info.length,
        added: info.added,
        first: info.first,
        now,
        ..StreamFacts::default()
    };
    let small = info.is_small();
    if !small {
        blinds.note_key(
            "entries of the stream",
            name,
            "not read, because they are large: which of them were deleted is not known",
        );
    }
    let count = info.groups;
    if count == 0 {
        // With groups, it would walk all consumers of all of them.
        let memory: Answer<u64> = node
            .wire
            .get(words!["MEMORY", "USAGE", name, "SAMPLES", "5"])
            .await;
        facts.memory = memory.ok();
        return Some(facts);
    }
    if count > MANY_GROUPS {
        blinds.note(
            format!("groups of streams on {}", node.address),
            format!("not asked where a list is long: one stream has {count} groups"),
        );
        return Some(facts);
    }
    let groups = match node.wire.call(words!["XINFO", "GROUPS", name]).await {
        Ok(Value::Array(groups)) => groups,
        Ok(_) => Vec::new(),
        Err(trouble) => {
            if !trouble.is_about_the_key() {
                blinds.note(format!("XINFO GROUPS on {}", node.address), trouble);
            }
            Vec::new()
        }
    };
    if groups.len() > GROUPS {
        blinds.note_key(
            "groups of the stream",
            name,
            format!("{GROUPS} of {} were looked at", groups.len()),
        );
    }
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
        } else {
            match node
                .wire
                .call(words!["XINFO", "CONSUMERS", name, own])
                .await
            {
                Ok(Value::Array(consumers)) => {
                    group.consumers = consumers.iter().map(consumer).collect();
                }
                Ok(_) => {}
                Err(trouble) if trouble.is_about_the_key() => {}
                Err(trouble) => {
                    blinds.note(format!("XINFO CONSUMERS on {}", node.address), trouble);
                }
            }
        }
        pending(node, name, &own, small, &mut group, blinds).await;
        facts.groups.push(group);
    }
    facts.looked = Some(Instant::now());
    Some(facts)
}

fn consumer(value: &Value) -> ConsumerFacts {
    ConsumerFacts {
        pending: number(value, "pending").unwrap_or(0),
        idle: number(value, "idle").unwrap_or(0),
    }
}

/// The bytes of all strings in a reply. Of a long string only the beginning was kept.
fn size(value: &Value) -> usize {
    match value {
        Value::BulkString(bytes) => bytes.len(),
        Value::SimpleString(text) => text.len(),
        Value::Array(parts) => parts.iter().map(size).sum(),
        _ => 0,
    }
}

/// The first pending entries: how often they were delivered, and whether they still exist.
async fn pending(
    node: &mut Node,
    name: &[u8],
    own: &[u8],
    small: bool,
    group: &mut GroupFacts,
    blinds: &mut Blinds,
) {
    if group.pending == 0 {
        return;
    }
    let answer = node
        .wire
        .call(words!["XPENDING", name, own, "-", "+", PENDING.to_string()])
        .await;
    let entries = match answer {
        Ok(Value::Array(entries)) => entries,
        Ok(_) => return,
        Err(trouble) => {
            if !trouble.is_about_the_key() {
                blinds.note(format!("XPENDING on {}", node.address), trouble);
            }
            return;
        }
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
    if !small || ids.is_empty() {
        return;
    }
    let questions = ids
        .iter()
        .map(|id| words!["XRANGE", name, id, id, "COUNT", "1"]);
    let answers = match node.wire.batch(questions.collect()).await {
        Ok(answers) => answers,
        Err(trouble) => {
            blinds.note(format!("XRANGE on {}", node.address), trouble);
            return;
        }
    };
    for answer in answers {
        match answer {
            Ok(Value::Array(found)) => group.vanished += u64::from(found.is_empty()),
            Ok(_) => {}
            Err(trouble) if trouble.is_about_the_key() => {}
            Err(trouble) => {
                blinds.note(format!("XRANGE on {}", node.address), trouble);
                return;
            }
        }
    }
}

/// The second look: pending entries of each group.
pub(crate) async fn look_again(node: &mut Node, name: &[u8], facts: &mut StreamFacts) {
    if facts.groups.is_empty() {
        return;
    }
    let Ok(Value::Array(groups)) = node.wire.call(words!["XINFO", "GROUPS", name]).await else {
        return;
    };
    for group in &mut facts.groups {
        let is_it = |now: &&Value| {
            field(now, "name")
                .and_then(|value| redis::from_redis_value::<Vec<u8>>(value).ok())
                .is_some_and(|name| printable(&name) == group.name)
        };
        let Some(now) = groups.iter().find(is_it) else {
            continue;
        };
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
