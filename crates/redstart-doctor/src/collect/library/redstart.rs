//! Redstart's job queues and write-behind shards: what waits, for how long, and whether a worker is there.

use std::collections::BTreeMap;

use redis::Value;

use super::{Blinds, length};
use crate::{
    library::{RedstartName, Waiting},
    node::{Node, Slots},
    observation::Group,
    text::printable,
    wire::{Answer, words},
};

/// Queues and shards that are looked at.
const ENTITIES: usize = 50;
/// Records of jobs hold the payload too; only small ones are read, in bytes.
const SMALL: u64 = 4096;

/// Looks at the queues and shards among the keys of the sample. `now` is the server's time in milliseconds.
pub(super) async fn look(
    nodes: &mut [Node],
    slots: &Slots,
    groups: &[Group],
    now: u64,
    blinds: &mut Blinds,
) -> Vec<Waiting> {
    let mut known: BTreeMap<Vec<u8>, &str> = BTreeMap::new();
    let own = groups
        .iter()
        .filter(|group| group.keeper() == Some("Redstart"));
    let mut more = false;
    for (group, fact) in own.flat_map(|group| group.facts.iter().map(move |fact| (group, fact))) {
        let Some(name) = RedstartName::parse(&fact.name) else {
            continue;
        };
        let pattern = match name.pattern {
            "queue" => "queue",
            "behind" => "behind",
            _ => continue,
        };
        let Some(end) = fact.name.iter().rposition(|byte| *byte == b'}') else {
            continue;
        };
        let entity = fact.name[..=end].to_vec();
        known.insert(entity, pattern);
        // Of names that differ in an id only, some are in the sample.
        more |= group.seen > group.facts.len() as u64;
    }
    if known.len() > ENTITIES || more {
        blinds.note(
            "queues and write-behind shards of Redstart",
            format!(
                "{} of them were looked at, and there are more",
                known.len().min(ENTITIES)
            ),
        );
    }
    let mut found = Vec::new();
    for (entity, pattern) in known.into_iter().take(ENTITIES) {
        let shard = slots.shard(&entity).unwrap_or(0);
        let master = nodes
            .iter_mut()
            .find(|node| !node.replica && node.shard == shard);
        let Some(node) = master else { continue };
        found.push(match pattern {
            "queue" => queue(node, &entity, now).await,
            _ => behind(node, &entity, now).await,
        });
    }
    found
}

fn part(entity: &[u8], part: &str) -> Vec<u8> {
    [entity, b":", part.as_bytes()].concat()
}

async fn queue(node: &mut Node, entity: &[u8], now: u64) -> Waiting {
    let mut found = Waiting {
        name: printable(entity),
        count: length(node, "LLEN", part(entity, "ready")).await,
        ..Waiting::default()
    };
    let paused: Answer<Option<String>> = node
        .wire
        .get(words!["HGET", part(entity, "meta"), "paused"])
        .await;
    found.paused = !matches!(paused, Ok(None));
    // By the end of its lease, in microseconds.
    let last: Answer<Vec<String>> = node
        .wire
        .get(words![
            "ZRANGE",
            part(entity, "workers"),
            "-1",
            "-1",
            "WITHSCORES"
        ])
        .await;
    found.served = match last.as_deref() {
        Ok([_, end]) => end
            .parse::<f64>()
            .is_ok_and(|end| end / 1000.0 > now as f64),
        Ok(_) => false,
        // What cannot be seen is no fault.
        Err(_) => true,
    };
    let first: Answer<Vec<Vec<u8>>> = node
        .wire
        .get(words!["LRANGE", part(entity, "ready"), "0", "0"])
        .await;
    let Some(id) = first.ok().and_then(|ids| ids.into_iter().next()) else {
        return found;
    };
    let jobs = part(entity, "jobs");
    let size: Answer<u64> = node.wire.get(words!["HSTRLEN", jobs, id]).await;
    if size.is_ok_and(|size| size <= SMALL) {
        let record: Answer<Vec<u8>> = node.wire.get(words!["HGET", jobs, id]).await;
        found.oldest = record
            .ok()
            .and_then(|record| ready_since(&record))
            .map(|since| now.saturating_sub(since));
    }
    found
}

/// Bytes 3 to 18 of a record that is ready: since when, in microseconds.
fn ready_since(record: &[u8]) -> Option<u64> {
    let digits = record.strip_prefix(b"Jr")?.get(..16)?;
    let micros: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(micros / 1000)
}

async fn behind(node: &mut Node, entity: &[u8], now: u64) -> Waiting {
    let log = part(entity, "log");
    let mut found = Waiting {
        name: printable(entity),
        count: length(node, "XLEN", log.clone()).await,
        ..Waiting::default()
    };
    let owner: Answer<u64> = node.wire.get(words!["EXISTS", part(entity, "owner")]).await;
    found.served = owner.map_or(true, |owners| owners > 0);
    let memory: Answer<u64> = node
        .wire
        .get(words!["MEMORY", "USAGE", log, "SAMPLES", "5"])
        .await;
    if found.count > 0 && memory.is_ok_and(|memory| memory / found.count < SMALL) {
        let first = node
            .wire
            .call(words!["XRANGE", log, "-", "+", "COUNT", "1"])
            .await;
        found.oldest = first
            .ok()
            .and_then(first_time)
            .map(|since| now.saturating_sub(since));
    }
    found
}

/// The time in the id of the first entry.
fn first_time(entries: Value) -> Option<u64> {
    let Value::Array(entries) = entries else {
        return None;
    };
    let Some(Value::Array(parts)) = entries.into_iter().next() else {
        return None;
    };
    let id: String = redis::from_redis_value(parts.into_iter().next()?).ok()?;
    id.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_ready_job_is_in_its_record() {
        let record = b"Jr17672688002500001767268800250000rest";
        assert_eq!(ready_since(record), Some(1_767_268_800_250));
        assert_eq!(ready_since(b"Jx1767268800250000"), None);
        assert_eq!(ready_since(b"Jr17"), None);
        assert_eq!(ready_since(b"{}"), None);
    }
}
