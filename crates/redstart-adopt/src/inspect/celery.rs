//! Celery on kombu's Redis transport. Messages that workers have taken belong to all queues.

use base64::Engine as _;
use redis::cmd;
use serde_json::Value;

use super::{Inspector, JobView, LARGEST, Overview, Payload, State, shorten};
use crate::{
    celery::{BINDING, BINDINGS, SEPARATOR, separators_of},
    error::Result,
};

/// Where a queue and what belongs to it stand.
struct Place {
    /// Before all keys: the transport option `global_keyprefix`.
    prefix: String,
    /// One for each priority that could have a list, the first is served first.
    lists: Vec<String>,
}

/// The settings that the queue's binding shows, or the defaults if it has no binding.
async fn place(of: &Inspector) -> Result<Place> {
    let subject = of.subject.as_str();
    // The prefix is not written down: it is what stands before the name that a binding has.
    let cuts = subject
        .match_indices([':', '.', '_', '-', '/'])
        .map(|(at, _)| at + 1);
    let cuts: Vec<usize> = std::iter::once(0).chain(cuts).take(8).collect();
    let mut pipeline = redis::pipe();
    for cut in &cuts {
        let (prefix, queue) = subject.split_at(*cut);
        pipeline
            .cmd("SRANDMEMBER")
            .arg(format!("{prefix}{BINDING}{queue}"))
            .arg(BINDINGS);
    }
    let members: Vec<Vec<Vec<u8>>> = of.store.pipeline(&pipeline).await?;
    let found = cuts.iter().zip(members).find_map(|(cut, members)| {
        let (prefix, queue) = subject.split_at(*cut);
        let separators = separators_of(&members, queue);
        (!separators.is_empty()).then_some((prefix, separators))
    });
    let (prefix, separators) =
        found.unwrap_or_else(|| ("", [SEPARATOR.to_owned()].into_iter().collect()));
    let mut lists = vec![subject.to_owned()];
    for step in 1..=9 {
        let each = separators.iter();
        lists.extend(each.map(|separator| format!("{subject}{separator}{step}")));
    }
    Ok(Place {
        prefix: prefix.to_owned(),
        lists,
    })
}

pub(super) async fn overview(of: &Inspector) -> Result<Overview> {
    let place = place(of).await?;
    let mut pipeline = redis::pipe();
    for list in &place.lists {
        pipeline.cmd("LLEN").arg(list);
    }
    let unacked = format!("{}unacked", place.prefix);
    pipeline.cmd("HLEN").arg(&unacked);
    let counts: Vec<u64> = of.store.pipeline(&pipeline).await?;
    let (taken_count, waiting) = counts.split_last().unwrap_or((&0, &[]));
    let oldest = cmd("ZRANGE")
        .arg(format!("{unacked}_index"))
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
            state("waiting", waiting.iter().sum(), false),
            state("unacked", *taken_count, true),
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
    let place = place(of).await?;
    match state {
        "waiting" => {
            // The first list is served first, whatever the numbers mean.
            let mut skip = offset;
            for list in &place.lists {
                let len: usize = of.store.query(cmd("LLEN").arg(list)).await?;
                if skip < len && messages.len() < limit {
                    messages.extend(of.list(list, skip, limit - messages.len(), true).await?);
                }
                skip = skip.saturating_sub(len);
            }
        }
        "unacked" => {
            let unacked = format!("{}unacked", place.prefix);
            let tags = of
                .sorted(&format!("{unacked}_index"), offset, limit)
                .await?;
            if !tags.is_empty() && !of.is_large(&unacked, "HLEN").await? {
                let taken: Vec<Option<Vec<u8>>> = of
                    .store
                    .query(cmd("HMGET").arg(&unacked).arg(&tags))
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
    let mut views: Vec<JobView> = messages.iter().map(|message| view(message)).collect();
    add_errors(of, &place.prefix, &mut views).await?;
    Ok(views)
}

/// A task that is tried again has left a result that says why.
async fn add_errors(of: &Inspector, prefix: &str, views: &mut [JobView]) -> Result<()> {
    // The prefix of results is a setting of its own, and mostly the same.
    let mut keys = Vec::new();
    for view in views.iter() {
        for prefix in ["", prefix] {
            keys.push(format!("{prefix}celery-task-meta-{}", view.id));
        }
    }
    if keys.is_empty() {
        return Ok(());
    }
    let mut pipeline = redis::pipe();
    for key in &keys {
        pipeline.cmd("GETRANGE").arg(key).arg(0).arg(LARGEST - 1);
    }
    let results: Vec<Vec<u8>> = of.store.pipeline(&pipeline).await?;
    for (view, results) in views.iter_mut().zip(results.chunks_exact(2)) {
        view.error = results.iter().find_map(|result| error(result));
    }
    Ok(())
}

/// Why a task failed, out of its result.
fn error(result: &[u8]) -> Option<String> {
    let known: Value = serde_json::from_slice(result).ok()?;
    if !matches!(known["status"].as_str(), Some("RETRY" | "FAILURE")) {
        return None;
    }
    let exception = &known["result"];
    let message = match &exception["exc_message"] {
        Value::String(message) => message.clone(),
        // The arguments of the exception; mostly one.
        Value::Array(parts) => {
            let text = |part: &Value| {
                part.as_str()
                    .map_or_else(|| part.to_string(), str::to_owned)
            };
            parts.iter().map(text).collect::<Vec<_>>().join(", ")
        }
        _ => String::new(),
    };
    let kind = exception["exc_type"].as_str().unwrap_or("error");
    let mut error = match message.is_empty() {
        true => kind.to_owned(),
        false => format!("{kind}: {message}"),
    };
    shorten(&mut error);
    Some(error)
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
