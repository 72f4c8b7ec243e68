//! Sidekiq's processes: which of them died, and what they had.
//!
//! A process writes its key and the list of its work at each beat, at least every ten seconds, and both live for a
//! minute. So the time that the key has left says how long ago the last beat was, by the server's clock alone.

use redis::Value;

use super::{Blinds, length};
use crate::{
    library::Sidekiq,
    node::Node,
    wire::{Answer, words},
};

const PROCESSES: usize = 100;
/// With less time left, the last beat was 25 s ago or more.
const SILENT: i64 = 35_000;

/// A process that has not beaten for a while.
pub(super) struct Suspect {
    key: Vec<u8>,
    /// What its key had left, in milliseconds; -2 if it was gone.
    left: i64,
    work: u64,
}

pub(super) async fn look(
    node: &mut Node,
    namespace: &str,
    found: &mut Sidekiq,
    blinds: &mut Blinds,
) -> Vec<Suspect> {
    let registered = format!("{namespace}processes");
    let scan = words!["SSCAN", registered, "0", "COUNT", "100"];
    let Ok(Value::Array(parts)) = node.wire.call(scan).await else {
        return Vec::new();
    };
    let mut parts = parts.into_iter();
    let cursor: Option<String> = parts
        .next()
        .and_then(|cursor| redis::from_redis_value(cursor).ok());
    let processes: Vec<Vec<u8>> = parts
        .next()
        .and_then(|names| redis::from_redis_value(names).ok())
        .unwrap_or_default();
    if processes.len() > PROCESSES || cursor.is_some_and(|cursor| cursor != "0") {
        blinds.note(
            "processes of Sidekiq",
            format!(
                "{} of them were looked at, and there are more",
                processes.len().min(PROCESSES)
            ),
        );
    }
    let mut suspects = Vec::new();
    for process in processes.iter().take(PROCESSES) {
        found.processes += 1;
        let key = [namespace.as_bytes(), process].concat();
        let left: Answer<i64> = node.wire.get(words!["PTTL", key]).await;
        let Some(left) = left.ok().filter(|left| *left != -1 && *left < SILENT) else {
            continue;
        };
        let mut work = 0;
        for part in [&b":work"[..], b":workers"] {
            work += length(node, "HLEN", [&key, part].concat()).await;
        }
        suspects.push(Suspect { key, left, work });
    }
    suspects
}

pub(super) async fn look_again(node: &mut Node, suspects: &[Suspect], found: &mut Sidekiq) {
    for suspect in suspects {
        let left: Answer<i64> = node.wire.get(words!["PTTL", suspect.key]).await;
        // A beat would have given it a minute again.
        let Some(left) = left.ok().filter(|left| *left <= suspect.left) else {
            continue;
        };
        if suspect.work > 0 {
            found.dead_with_work += 1;
            found.work += suspect.work;
        } else if left == -2 {
            found.vanished += 1;
        }
    }
}
