//! Celery on kombu's Redis transport. Messages that workers have taken belong to all queues.

use base64::Engine as _;
use redis::cmd;
use serde_json::Value;

use super::{Inspector, JobView, Overview, Payload, State};
use crate::error::Result;

/// The lists of a queue: one for each step of priorities.
fn lists(of: &Inspector) -> [String; 4] {
    ["", "\u{6}\u{16}3", "\u{6}\u{16}6", "\u{6}\u{16}9"].map(|step| format!("{}{step}", of.subject))
}

pub(super) async fn overview(of: &Inspector) -> Result<Overview> {
    let mut pipeline = redis::pipe();
    for list in lists(of) {
        pipeline.cmd("LLEN").arg(list);
    }
    pipeline.cmd("HLEN").arg("unacked");
    let counts: Vec<u64> = of.store.pipeline(&pipeline).await?;
    let oldest = cmd("ZRANGE")
        .arg("unacked_index")
        .arg(0)
        .arg(0)
        .arg("WITHSCORES")
        .take();
    let oldest: Vec<(String, f64)> = of.store.query(&oldest).await?;
    let now = of.now().await?;
    let taken = oldest.first().map(|(_, at)| (at * 1000.0) as u64);
    let state = |name, count, shared| State {
        name,
        count,
        shared,
    };
    Ok(Overview {
        library: of.library,
        subject: of.subject.clone(),
        states: vec![
            state("waiting", counts[..4].iter().sum(), false),
            state("unacked", counts[4], true),
        ],
        // Messages do not say when they were sent.
        oldest_ms: None,
        oldest_active_ms: taken.map(|at| now.saturating_sub(at)),
        paused: false,
    })
}

pub(super) async fn jobs(
    of: &Inspector,
    state: &str,
    offset: usize,
    limit: usize,
) -> Result<Vec<JobView>> {
    let mut messages = Vec::new();
    match state {
        "waiting" => {
            // The first list is served first, whatever the numbers mean.
            let mut skip = offset;
            for list in lists(of) {
                let len: usize = of.store.query(cmd("LLEN").arg(&list)).await?;
                if skip < len && messages.len() < limit {
                    messages.extend(of.list(&list, skip, limit - messages.len(), true).await?);
                }
                skip = skip.saturating_sub(len);
            }
        }
        "unacked" => {
            let tags = of.sorted("unacked_index", offset, limit).await?;
            if !tags.is_empty() && !of.is_large("unacked", "HLEN").await? {
                let taken: Vec<Option<Vec<u8>>> = of
                    .store
                    .query(cmd("HMGET").arg("unacked").arg(&tags))
                    .await?;
                // Each is a JSON array: the message, the exchange, the routing key.
                messages.extend(taken.into_iter().flatten().filter_map(|entry| {
                    let entry: Value = serde_json::from_slice(&entry).ok()?;
                    Some(entry.get(0)?.to_string().into_bytes())
                }));
            }
        }
        _ => return Err(of.unknown_state(state)),
    }
    Ok(messages.iter().map(|message| view(message)).collect())
}

fn view(message: &[u8]) -> JobView {
    let known: Value = serde_json::from_slice(message).unwrap_or_default();
    let headers = &known["headers"];
    let body = known["body"].as_str().unwrap_or_default();
    let decoded = match known["properties"]["body_encoding"].as_str() {
        Some("base64") => base64::engine::general_purpose::STANDARD.decode(body).ok(),
        _ => Some(body.as_bytes().to_vec()),
    };
    let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    JobView {
        id: string(&headers["id"]),
        name: string(&headers["task"]),
        payload: Payload::of(decoded.as_deref().unwrap_or_default()),
        attempts: headers["retries"].as_u64(),
        error: None,
        added_ms: None,
    }
}
