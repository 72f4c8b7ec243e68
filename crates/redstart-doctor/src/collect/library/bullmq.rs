//! The queues of BullMQ: ids without a job, jobs without a place, active jobs without a lock.
//!
//! A busy queue moves its jobs while it is looked at. BullMQ moves each of them in one script, so that at every moment
//! a job is in one place and an id has a job; between two questions it is not so. What the first look suspects counts
//! only if the second look sees it too: the id still in the same place and still without a job, the job still there
//! and still in no place.

use std::collections::HashSet;

use redis::Value;

use super::{batch, join, length, queue_name};
use crate::{
    library::BullQueue,
    node::Node,
    observation::{Group, Kind},
    text::printable,
    wire::{Answer, Words, words},
};

/// Ids of each place that are checked. The oldest: new jobs come in at the left of a list and leave at its right, so that what
/// is stuck is there, and stays among them.
const CHECKED: u64 = 20;
/// Lists up to this length are read to the end.
const WHOLE_LIST: u64 = 2000;
/// Where a job passes, in the order in which it does.
const LISTS: [&str; 3] = ["wait", "paused", "active"];
const BEFORE: [&str; 3] = ["delayed", "prioritized", "waiting-children"];
const AFTER: [&str; 2] = ["completed", "failed"];

/// What the first look suspects of a queue.
pub(super) struct Suspects {
    /// Active jobs without a lock.
    unlocked: Vec<Vec<u8>>,
    /// Ids without a job, and where they stand.
    missing: Vec<(&'static str, Vec<u8>)>,
    /// Jobs in no place.
    orphans: Vec<Vec<u8>>,
}

pub(super) async fn look(
    node: &mut Node,
    prefix: &[u8],
    groups: &[Group],
) -> (BullQueue, Suspects) {
    let mut queue = BullQueue {
        name: queue_name(prefix),
        version: version(node, prefix).await,
        wait: length(node, "LLEN", join(prefix, b"wait")).await,
        paused: length(node, "LLEN", join(prefix, b"paused")).await,
        active: length(node, "LLEN", join(prefix, b"active")).await,
        completed: length(node, "ZCARD", join(prefix, b"completed")).await,
        failed: length(node, "ZCARD", join(prefix, b"failed")).await,
        ..BullQueue::default()
    };
    let ids = ids(node, prefix).await;
    let active = ids.iter().filter(|(place, _)| *place == "active");
    let active: Vec<&Vec<u8>> = active.map(|(_, id)| id).collect();
    let locks = batch(node, active.iter().map(|id| lock(prefix, id)).collect()).await;
    let unlocked = absent(active.into_iter().cloned(), &locks);
    let jobs = ids.iter().map(|(_, id)| words!["EXISTS", join(prefix, id)]);
    let jobs = batch(node, jobs.collect()).await;
    queue.checked = ids.len() as u64;
    let suspects = Suspects {
        unlocked,
        missing: absent(ids.into_iter(), &jobs),
        orphans: orphans(node, prefix, groups, &mut queue).await,
    };
    (queue, suspects)
}

pub(super) async fn look_again(
    node: &mut Node,
    prefix: &[u8],
    suspects: &Suspects,
    queue: &mut BullQueue,
) {
    queue.version_later = version(node, prefix).await;
    // A queue that is paused or resumed between two questions seems to have both.
    queue.wait = queue
        .wait
        .min(length(node, "LLEN", join(prefix, b"wait")).await);
    queue.paused = queue
        .paused
        .min(length(node, "LLEN", join(prefix, b"paused")).await);
    let places = |suspects: &[Vec<u8>]| -> Vec<(&'static str, Vec<u8>)> {
        suspects.iter().map(|id| ("active", id.clone())).collect()
    };
    let locks = suspects.unlocked.iter().map(|id| lock(prefix, id));
    queue.unlocked = still(node, prefix, &places(&suspects.unlocked), locks.collect()).await;
    let jobs = suspects.missing.iter();
    let jobs = jobs.map(|(_, id)| words!["EXISTS", join(prefix, id)]);
    queue.missing = still(node, prefix, &suspects.missing, jobs.collect()).await;
    for id in &suspects.orphans {
        queue.orphans += u64::from(!has_place(node, prefix, id).await);
    }
}

async fn version(node: &mut Node, prefix: &[u8]) -> Option<String> {
    let version: Answer<Option<String>> = node
        .wire
        .get(words!["HGET", join(prefix, b"meta"), "version"])
        .await;
    let version = version.ok().flatten();
    version.map(|version| printable(version.as_bytes()))
}

fn lock(prefix: &[u8], id: &[u8]) -> Words {
    words!["EXISTS", [prefix, id, b":lock"].concat()]
}

/// The oldest ids of a list.
fn oldest(prefix: &[u8], place: &str) -> Words {
    words![
        "LRANGE",
        join(prefix, place.as_bytes()),
        format!("-{CHECKED}"),
        "-1"
    ]
}

/// The oldest ids of each place.
async fn ids(node: &mut Node, prefix: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    const PLACES: [&str; 6] = ["wait", "paused", "active", "completed", "failed", "delayed"];
    let questions = PLACES.iter().map(|place| match LISTS.contains(place) {
        true => oldest(prefix, place),
        false => words![
            "ZRANGE",
            join(prefix, place.as_bytes()),
            "0",
            (CHECKED - 1).to_string()
        ],
    });
    let answers = batch(node, questions.collect()).await;
    let mut found = Vec::new();
    for (place, answer) in PLACES.iter().zip(answers) {
        let ids = strings(answer).into_iter();
        // Versions before 5 put a marker among the ids.
        found.extend(
            ids.filter(|id| !id.starts_with(b"0:"))
                .map(|id| (*place, id)),
        );
    }
    found
}

fn strings(answer: Answer) -> Vec<Vec<u8>> {
    answer
        .ok()
        .and_then(|value| redis::from_redis_value(value).ok())
        .unwrap_or_default()
}

fn is_zero(answer: &Answer) -> bool {
    matches!(answer, Ok(Value::Int(0)))
}

/// Those whose EXISTS was answered with no.
fn absent<T>(asked: impl Iterator<Item = T>, answers: &[Answer]) -> Vec<T> {
    asked
        .zip(answers)
        .filter(|(_, answer)| is_zero(answer))
        .map(|(one, _)| one)
        .collect()
}

/// How many still stand in their place and still lack what `exists` asks for. The places are asked after that: what a
/// script removes leaves its place in the same moment.
async fn still(
    node: &mut Node,
    prefix: &[u8],
    suspects: &[(&'static str, Vec<u8>)],
    exists: Vec<Words>,
) -> u64 {
    let lacking = batch(node, exists).await;
    let lacking = absent(suspects.iter(), &lacking);
    let questions = lacking
        .iter()
        .map(|(place, id)| match LISTS.contains(place) {
            true => oldest(prefix, place),
            false => words!["ZSCORE", join(prefix, place.as_bytes()), id],
        });
    let answers = batch(node, questions.collect()).await;
    let stands = |id: &Vec<u8>, answer: Answer| match answer {
        Ok(Value::Array(_)) => strings(answer).contains(id),
        Ok(Value::BulkString(_) | Value::Double(_)) => true,
        _ => false,
    };
    let both = lacking.iter().zip(answers);
    both.filter(|((_, id), answer)| stands(id, answer.clone()))
        .count() as u64
}

/// Job hashes of the sample that no place of the queue has.
async fn orphans(
    node: &mut Node,
    prefix: &[u8],
    groups: &[Group],
    queue: &mut BullQueue,
) -> Vec<Vec<u8>> {
    if queue.wait + queue.paused + queue.active > WHOLE_LIST {
        return Vec::new();
    }
    let jobs = groups
        .iter()
        .filter(|group| group.kind == Kind::Hash)
        .flat_map(|group| &group.facts)
        .filter(|fact| {
            let has = |name: &str| fact.fields.iter().any(|field| field == name);
            has("data") && has("timestamp")
        })
        .filter_map(|fact| fact.name.strip_prefix(prefix))
        .filter(|id| !id.contains(&b':') && *id != b"meta")
        .take(2 * CHECKED as usize);
    let mut open = Vec::new();
    for id in jobs {
        queue.jobs_checked += 1;
        if !has_place(node, prefix, id).await {
            open.push(id.to_vec());
        }
    }
    open
}

/// Whether a job is in one of the queue's places, or gone itself.
///
/// The places are asked in the order in which a job passes them, so that one that moves on meanwhile is met; twice,
/// because a job that is retried goes back.
async fn has_place(node: &mut Node, prefix: &[u8], id: &[u8]) -> bool {
    let sets = |places: &[&str]| -> Vec<Words> {
        let places = places.iter();
        places
            .map(|place| words!["ZSCORE", join(prefix, place.as_bytes()), id])
            .collect()
    };
    let lists = LISTS.map(|place| {
        words![
            "LRANGE",
            join(prefix, place.as_bytes()),
            "0",
            WHOLE_LIST.to_string()
        ]
    });
    let pass = [sets(&BEFORE), lists.to_vec(), sets(&AFTER)].concat();
    let exists = vec![words!["EXISTS", join(prefix, id)]];
    let mut answers = batch(node, [pass.clone(), pass, exists].concat()).await;
    let Some(exists) = answers.pop() else {
        return true;
    };
    let listed = answers.into_iter().any(|answer| match answer {
        Ok(Value::Array(_)) => {
            let ids: HashSet<Vec<u8>> = strings(answer).into_iter().collect();
            ids.contains(id)
        }
        Ok(Value::BulkString(_) | Value::Double(_)) => true,
        _ => false,
    });
    listed || !matches!(exists, Ok(Value::Int(1)))
}
