//! A closer look at the keys of recognised libraries, within bounds.

use std::collections::HashSet;

use redis::Value;

use crate::{
    library::{BullQueue, Celery, Libraries, Owns, Sidekiq},
    node::Node,
    observation::{Group, Kind},
    text::printable,
    wire::{Answer, words},
};

const QUEUES: usize = 50;
const CHECKED: usize = 20;
/// Lists up to this length are read to the end, in pieces.
const WHOLE_LIST: u64 = 2000;
const PIECE: u64 = 200;
/// Celery's default visibility time-out, in seconds.
pub(crate) const VISIBILITY: f64 = 3600.0;

/// Jobs that were active without a lock on the first look: the node, the prefix of the queue, and the ids.
pub(crate) type Unlocked = Vec<(usize, Vec<u8>, Vec<Vec<u8>>)>;

/// Looks at what the libraries keep. `now` is the server's time in seconds.
pub(crate) async fn look(
    nodes: &mut [Node],
    libraries: &mut Libraries,
    groups: &[Group],
    now: f64,
) -> Unlocked {
    let mut unlocked = Vec::new();
    let queues: Vec<Vec<u8>> = libraries
        .found
        .iter()
        .filter(|library| library.name == "BullMQ")
        .flat_map(|library| &library.owns)
        .filter_map(|owns| match owns {
            Owns::Prefix(prefix) => Some(prefix.clone()),
            _ => None,
        })
        .take(QUEUES)
        .collect();
    for prefix in queues {
        for (index, node) in nodes.iter_mut().enumerate() {
            if node.replica {
                continue;
            }
            let exists: Answer<u64> = node
                .wire
                .get(words![
                    "EXISTS",
                    join(&prefix, b"meta"),
                    join(&prefix, b"id")
                ])
                .await;
            if !exists.is_ok_and(|n| n > 0) {
                continue;
            }
            let (mut queue, open) = bull(node, &prefix, groups).await;
            queue.place = (index, prefix.clone());
            if !open.is_empty() {
                unlocked.push((index, prefix.clone(), open));
            }
            libraries.bull.push(queue);
        }
    }
    if libraries.has("Sidekiq")
        && let Some(node) = nodes.iter_mut().find(|node| !node.replica)
    {
        libraries.sidekiq = Some(sidekiq(node, now).await);
    }
    if libraries.has("Celery")
        && let Some(node) = nodes.iter_mut().find(|node| !node.replica)
    {
        libraries.celery = celery(node, now).await;
    }
    unlocked
}

/// The second look at jobs without a lock: still active, still without.
pub(crate) async fn look_again(nodes: &mut [Node], libraries: &mut Libraries, unlocked: &Unlocked) {
    for queue in &mut libraries.bull {
        let (index, prefix) = &queue.place;
        let version: Answer<Option<String>> = nodes[*index]
            .wire
            .get(words!["HGET", join(prefix, b"meta"), "version"])
            .await;
        queue.version_later = version
            .ok()
            .flatten()
            .map(|version| printable(version.as_bytes()));
    }
    for (index, prefix, ids) in unlocked {
        let node = &mut nodes[*index];
        let active: HashSet<Vec<u8>> = list(node, &join(prefix, b"active"), CHECKED as u64)
            .await
            .into_iter()
            .collect();
        let mut still = 0;
        for id in ids.iter().filter(|id| active.contains(*id)) {
            let mut lock = join(prefix, id);
            lock.extend_from_slice(b":lock");
            let exists: Answer<u64> = node.wire.get(words!["EXISTS", lock]).await;
            still += u64::from(exists.is_ok_and(|n| n == 0));
        }
        let name = queue_name(prefix);
        if let Some(queue) = libraries.bull.iter_mut().find(|queue| queue.name == name) {
            queue.unlocked = still;
        }
    }
}

fn join(prefix: &[u8], part: &[u8]) -> Vec<u8> {
    [prefix, part].concat()
}

fn queue_name(prefix: &[u8]) -> String {
    printable(prefix.strip_suffix(b":").unwrap_or(prefix))
}

async fn length(node: &mut Node, command: &str, key: Vec<u8>) -> u64 {
    node.wire.get(words![command, key]).await.unwrap_or(0)
}

/// The first elements of a list.
async fn list(node: &mut Node, key: &[u8], upto: u64) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut from = 0;
    while from < upto {
        let to = (from + PIECE).min(upto) - 1;
        let piece: Answer<Vec<Vec<u8>>> = node
            .wire
            .get(words!["LRANGE", key, from.to_string(), to.to_string()])
            .await;
        let Ok(piece) = piece else { break };
        let done = (piece.len() as u64) < to - from + 1;
        all.extend(piece);
        if done {
            break;
        }
        from = to + 1;
    }
    all
}

async fn bull(node: &mut Node, prefix: &[u8], groups: &[Group]) -> (BullQueue, Vec<Vec<u8>>) {
    let version: Answer<Option<String>> = node
        .wire
        .get(words!["HGET", join(prefix, b"meta"), "version"])
        .await;
    let mut queue = BullQueue {
        name: queue_name(prefix),
        version: version
            .ok()
            .flatten()
            .map(|version| printable(version.as_bytes())),
        wait: length(node, "LLEN", join(prefix, b"wait")).await,
        paused: length(node, "LLEN", join(prefix, b"paused")).await,
        active: length(node, "LLEN", join(prefix, b"active")).await,
        completed: length(node, "ZCARD", join(prefix, b"completed")).await,
        failed: length(node, "ZCARD", join(prefix, b"failed")).await,
        ..BullQueue::default()
    };
    let is_marker = |id: &Vec<u8>| id.starts_with(b"0:");
    let mut unlocked = Vec::new();
    for id in list(node, &join(prefix, b"active"), CHECKED as u64).await {
        let mut lock = join(prefix, &id);
        lock.extend_from_slice(b":lock");
        let exists: Answer<u64> = node.wire.get(words!["EXISTS", lock]).await;
        if exists.is_ok_and(|n| n == 0) {
            unlocked.push(id);
        }
    }
    // Ids whose job is gone.
    let mut ids: Vec<Vec<u8>> = Vec::new();
    for part in ["wait", "paused", "active"] {
        ids.extend(list(node, &join(prefix, part.as_bytes()), CHECKED as u64).await);
    }
    for part in ["completed", "failed", "delayed"] {
        let some: Answer<Vec<Vec<u8>>> = node
            .wire
            .get(words![
                "ZRANGE",
                join(prefix, part.as_bytes()),
                "0",
                (CHECKED - 1).to_string()
            ])
            .await;
        ids.extend(some.unwrap_or_default());
    }
    for id in ids.iter().filter(|id| !is_marker(id)) {
        queue.checked += 1;
        let exists: Answer<u64> = node.wire.get(words!["EXISTS", join(prefix, id)]).await;
        queue.missing += u64::from(exists.is_ok_and(|n| n == 0));
    }
    orphans(node, prefix, groups, &mut queue).await;
    (queue, unlocked)
}

/// Job hashes of the sample that no state of the queue mentions.
async fn orphans(node: &mut Node, prefix: &[u8], groups: &[Group], queue: &mut BullQueue) {
    if queue.wait + queue.paused + queue.active > WHOLE_LIST {
        return;
    }
    let mut listed: HashSet<Vec<u8>> = HashSet::new();
    for part in ["wait", "paused", "active"] {
        listed.extend(list(node, &join(prefix, part.as_bytes()), WHOLE_LIST).await);
    }
    let jobs = groups
        .iter()
        .filter(|group| group.kind == Kind::Hash)
        .flat_map(|group| &group.facts)
        .filter(|fact| {
            fact.fields.iter().any(|field| field == "data")
                && fact.fields.iter().any(|field| field == "timestamp")
        })
        .filter_map(|fact| {
            fact.name
                .strip_prefix(prefix)
                .filter(|id| !id.contains(&b':'))
        })
        .filter(|id| *id != b"meta")
        .take(CHECKED * 2);
    for id in jobs {
        queue.jobs_checked += 1;
        let mut known = listed.contains(id);
        for part in [
            "completed",
            "failed",
            "delayed",
            "prioritized",
            "waiting-children",
        ] {
            if known {
                break;
            }
            known = matches!(
                node.wire
                    .call(words!["ZSCORE", join(prefix, part.as_bytes()), id])
                    .await,
                Ok(Value::BulkString(_) | Value::Double(_))
            );
        }
        if !known {
            // It may have moved between the two questions; a job that moves is listed again.
            let again: HashSet<Vec<u8>> = list(node, &join(prefix, b"active"), WHOLE_LIST)
                .await
                .into_iter()
                .collect();
            let exists: Answer<u64> = node.wire.get(words!["EXISTS", join(prefix, id)]).await;
            known = again.contains(id) || !exists.is_ok_and(|n| n > 0);
        }
        queue.orphans += u64::from(!known);
    }
}

async fn sidekiq(node: &mut Node, now: f64) -> Sidekiq {
    let mut found = Sidekiq::default();
    let Ok(Value::Array(parts)) = node
        .wire
        .call(words!["SSCAN", "processes", "0", "COUNT", "100"])
        .await
    else {
        return found;
    };
    let processes: Vec<Vec<u8>> = parts
        .into_iter()
        .nth(1)
        .and_then(|names| redis::from_redis_value(names).ok())
        .unwrap_or_default();
    for process in processes.iter().take(100) {
        found.processes += 1;
        let beat: Answer<Option<String>> = node.wire.get(words!["HGET", process, "beat"]).await;
        let beat = beat
            .ok()
            .flatten()
            .and_then(|beat| beat.parse::<f64>().ok());
        let dead = beat.is_none_or(|beat| now - beat > 60.0);
        let mut work = 0;
        for part in ["work", "workers"] {
            let key = [process.as_slice(), b":", part.as_bytes()].concat();
            work += length(node, "HLEN", key).await;
        }
        if dead && work > 0 {
            found.dead_with_work += 1;
            found.work += work;
        }
    }
    found
}

async fn celery(node: &mut Node, now: f64) -> Option<Celery> {
    let unacked = length(node, "HLEN", b"unacked".to_vec()).await;
    let mut found = Celery {
        unacked,
        ..Celery::default()
    };
    let oldest: Answer<Vec<String>> = node
        .wire
        .get(words!["ZRANGE", "unacked_index", "0", "0", "WITHSCORES"])
        .await;
    if let Some(score) = oldest
        .ok()
        .and_then(|pair| pair.get(1)?.parse::<f64>().ok())
    {
        found.oldest = (now - score).max(0.0);
    }
    let memory: Answer<u64> = node
        .wire
        .get(words!["MEMORY", "USAGE", "unacked", "SAMPLES", "5"])
        .await;
    if unacked > 0 && memory.is_ok_and(|memory| memory / unacked < 16 << 10) {
        let answer = node
            .wire
            .call(words!["HSCAN", "unacked", "0", "COUNT", "10"])
            .await;
        if let Ok(Value::Array(parts)) = answer {
            let pairs: Vec<Vec<u8>> = parts
                .into_iter()
                .nth(1)
                .and_then(|pairs| redis::from_redis_value(pairs).ok())
                .unwrap_or_default();
            found.far_eta = pairs
                .iter()
                .skip(1)
                .step_by(2)
                .filter(|message| is_far(message, now))
                .count() as u64;
        }
    }
    Some(found)
}

/// Whether a message's ETA lies beyond the visibility time-out.
fn is_far(message: &[u8], now: f64) -> bool {
    let text = String::from_utf8_lossy(message);
    let Some((_, rest)) = text.split_once("\"eta\": \"") else {
        return false;
    };
    let Some((eta, _)) = rest.split_once('"') else {
        return false;
    };
    eta.parse::<jiff::Timestamp>()
        .is_ok_and(|eta| eta.as_second() as f64 - now > VISIBILITY)
}
