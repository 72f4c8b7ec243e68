//! RQ. The data of a job is a compressed pickle, which is shown as bytes; its description says what it is.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use redis::cmd;

use super::{
    Inspector, JobView, LARGEST, Overview, PAGE, Payload, State, inflate::inflate, shorten, text,
};
use crate::error::Result;

/// Each state with what stands before the name of the queue, and whether it is a list.
const STATES: [(&str, &str, bool); 6] = [
    ("queued", "rq:queue:", true),
    ("started", "rq:wip:", false),
    ("scheduled", "rq:scheduled:", false),
    ("deferred", "rq:deferred:", false),
    ("finished", "rq:finished:", false),
    ("failed", "rq:failed:", false),
];

fn key(of: &Inspector, prefix: &str) -> String {
    let name = of.subject.strip_prefix("rq:queue:").unwrap_or(&of.subject);
    format!("{prefix}{name}")
}

pub(super) async fn overview(of: &Inspector) -> Result<Overview> {
    let mut pipeline = redis::pipe();
    for (_, prefix, list) in STATES {
        pipeline
            .cmd(if list { "LLEN" } else { "ZCARD" })
            .arg(key(of, prefix));
    }
    let counts: Vec<u64> = of.store.pipeline(&pipeline).await?;
    let states = STATES.iter().zip(counts).map(|((name, ..), count)| State {
        name,
        count,
        shared: false,
    });
    let next = cmd("LINDEX").arg(key(of, "rq:queue:")).arg(0).take();
    let next: Option<String> = of.store.query(&next).await?;
    let mut oldest_ms = None;
    if let Some(id) = next {
        let at = cmd("HGET")
            .arg(format!("rq:job:{id}"))
            .arg("enqueued_at")
            .take();
        let at: Option<String> = of.store.query(&at).await?;
        let now = of.now().await?;
        oldest_ms = at
            .and_then(|at| moment(&at))
            .map(|at| now.saturating_sub(at));
    }
    let oldest_active_ms = match running_since(of).await? {
        Some(at) => Some(of.now().await?.saturating_sub(at)),
        None => None,
    };
    // `rq suspend` stops the workers of all queues.
    let paused: bool = of.store.query(cmd("EXISTS").arg("rq:suspended")).await?;
    Ok(Overview {
        library: of.library,
        subject: of.subject.clone(),
        states: states.collect(),
        oldest_ms,
        oldest_active_ms,
        paused,
    })
}

/// When the job that runs for the longest began, in milliseconds since 1970, of those that must end first.
async fn running_since(of: &Inspector) -> Result<Option<u64>> {
    let running = of.sorted(&key(of, "rq:wip:"), 0, PAGE).await?;
    if running.is_empty() {
        return Ok(None);
    }
    let mut pipeline = redis::pipe();
    for id in &running {
        let key = format!("rq:job:{}", job_of(id));
        pipeline.cmd("HGET").arg(key).arg("started_at");
    }
    let began: Vec<Option<String>> = of.store.pipeline(&pipeline).await?;
    let began = began.iter().flatten().filter_map(|at| moment(at));
    Ok(began.min())
}

/// A job that runs has the execution behind its id.
fn job_of(id: &[u8]) -> String {
    text(id).split(':').next().unwrap_or_default().to_owned()
}

/// Why a job failed last: out of its results, each of which is a compressed text in base64, or out of the job itself before there
/// were results.
async fn error(of: &Inspector, id: &str, before: Option<&[u8]>) -> Result<Option<String>> {
    let last = cmd("XREVRANGE")
        .arg(format!("rq:results:{id}"))
        .arg("+")
        .arg("-")
        .arg("COUNT")
        .arg(1)
        .take();
    let last: Vec<(String, Vec<Vec<u8>>)> = of.store.query(&last).await?;
    let fields = last.first().map(|(_, fields)| fields.as_slice());
    let mut pairs = fields.unwrap_or_default().chunks_exact(2);
    let packed = pairs.find(|pair| pair[0] == b"exc_string");
    let packed = packed.and_then(|pair| STANDARD.decode(&pair[1]).ok());
    let Some(packed) = packed.or(before.map(<[u8]>::to_vec)) else {
        return Ok(None);
    };
    // A traceback, of which the last line says what happened.
    let trace = inflate(&packed, MOST_TRACE).unwrap_or(packed);
    let trace = text(&trace);
    let line = trace.trim_end().lines().next_back();
    Ok(line.map(|line| {
        let mut line = line.to_owned();
        shorten(&mut line);
        line
    }))
}

/// The bytes of a traceback that are unpacked at most.
const MOST_TRACE: usize = 1 << 20;

pub(super) async fn jobs(
    of: &Inspector,
    state: &str,
    offset: usize,
    limit: usize,
) -> Result<Vec<JobView>> {
    let known = STATES.iter().find(|(name, ..)| *name == state);
    let (_, prefix, list) = known.ok_or_else(|| of.unknown_state(state))?;
    let key = key(of, prefix);
    let ids = match list {
        true => of.list(&key, offset, limit, false).await?,
        false => of.sorted(&key, offset, limit).await?,
    };
    let mut views = Vec::new();
    for id in ids {
        let id = job_of(&id);
        let key = format!("rq:job:{id}");
        let len: u64 = of.store.query(cmd("HSTRLEN").arg(&key).arg("data")).await?;
        let data = if len <= LARGEST { "data" } else { "id" };
        let get = cmd("HMGET")
            .arg(&key)
            .arg(&[data, "description", "created_at", "status"])
            .arg(&["number_of_retries", "retries_left", "exc_info"])
            .take();
        let fields: Vec<Option<Vec<u8>>> = of.store.query(&get).await?;
        let field = |n: usize| fields.get(n).and_then(|field| field.as_deref());
        let number = |n: usize| field(n).and_then(|bytes| text(bytes).parse::<u64>().ok());
        let has_ended = matches!(
            field(3),
            Some(b"finished" | b"failed" | b"stopped" | b"canceled")
        );
        let attempts = match (number(4), number(5)) {
            // Retries after exceptions are not counted.
            (None, Some(_)) => None,
            (retries, _) => Some(retries.unwrap_or(0) + u64::from(has_ended)),
        };
        let error = error(of, &id, field(6)).await?;
        views.push(JobView {
            id,
            name: field(1).map(text).unwrap_or_default(),
            payload: match len > LARGEST {
                true => Payload::Large { len },
                false => Payload::of(field(0).unwrap_or_default()),
            },
            attempts,
            error,
            added_ms: field(2).and_then(|at| moment(&text(at))),
        });
    }
    Ok(views)
}

/// A time such as `2026-11-15T23:19:23.190077Z`.
fn moment(text: &str) -> Option<u64> {
    let at: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(at.as_millisecond()).ok()
}
