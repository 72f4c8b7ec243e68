//! Celery's unacknowledged messages.

use redis::Value;

use super::length;
use crate::{
    library::Celery,
    node::Node,
    observation::NodeFacts,
    wire::{Answer, words},
};

/// Messages up to this size are read.
const SMALL: u64 = 16 << 10;

pub(super) async fn look(node: &mut Node, servers: &[NodeFacts], now: f64) -> Celery {
    let unacked = length(node, "HLEN", b"unacked".to_vec()).await;
    let mut found = Celery {
        unacked,
        worker: worker(servers),
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
    if unacked > 0 && memory.is_ok_and(|memory| memory / unacked < SMALL) {
        etas(node, now, &mut found).await;
    }
    found
}

/// Whether a worker is connected: kombu waits for messages in BRPOP.
fn worker(servers: &[NodeFacts]) -> Option<bool> {
    let mut masters = servers.iter().filter(|server| !server.replica);
    let waits = masters.clone().any(|server| {
        let mut clients = server.clients.iter();
        clients.any(|client| client.command == "brpop")
    });
    match waits {
        true => Some(true),
        false => masters.all(|server| server.clients_seen).then_some(false),
    }
}

/// Messages that are held for longer than the default visibility time-out.
async fn etas(node: &mut Node, now: f64, found: &mut Celery) {
    let answer = node
        .wire
        .call(words!["HSCAN", "unacked", "0", "COUNT", "10"])
        .await;
    let Ok(Value::Array(parts)) = answer else {
        return;
    };
    let pairs: Vec<Vec<u8>> = parts
        .into_iter()
        .nth(1)
        .and_then(|pairs| redis::from_redis_value(pairs).ok())
        .unwrap_or_default();
    for pair in pairs.chunks_exact(2) {
        let Some(eta) = eta(&pair[1]) else { continue };
        // What counts is the time from its delivery on, not from now.
        let delivered: Answer<Option<String>> = node
            .wire
            .get(words!["ZSCORE", "unacked_index", pair[0]])
            .await;
        let delivered = delivered.ok().flatten();
        let delivered = delivered.and_then(|score| score.parse::<f64>().ok());
        if eta - delivered.unwrap_or(now) > found.visibility() {
            found.far_eta += 1;
        }
    }
}

/// When a message is due, in seconds.
fn eta(message: &[u8]) -> Option<f64> {
    let text = String::from_utf8_lossy(message);
    let (_, rest) = text.split_once("\"eta\": \"")?;
    let (eta, _) = rest.split_once('"')?;
    let eta = eta.parse::<jiff::Timestamp>().ok()?;
    Some(eta.as_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::ClientFacts;

    #[test]
    fn a_worker_is_known_by_the_command_it_waits_in() {
        let with = |commands: &[&str], clients_seen| {
            let client = |command: &&str| ClientFacts {
                command: (*command).to_owned(),
                ..ClientFacts::default()
            };
            worker(&[NodeFacts {
                clients: commands.iter().map(client).collect(),
                clients_seen,
                ..NodeFacts::default()
            }])
        };
        assert_eq!(with(&["brpop", "get"], true), Some(true));
        assert_eq!(with(&["get"], true), Some(false));
        assert_eq!(with(&[], true), Some(false));
        assert_eq!(with(&[], false), None);
    }

    #[test]
    fn the_time_of_a_message_is_read() {
        let message = br#"[{"headers": {"eta": "2026-01-01T12:00:00+00:00"}}, "x", "y"]"#;
        assert_eq!(eta(message), Some(1_767_268_800.0));
        assert_eq!(eta(br#"{"eta": null}"#), None);
    }
}
