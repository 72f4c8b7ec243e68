//! RQ. The data of a job is a compressed pickle, which is shown as bytes; its description says what it is.

use redis::cmd;

use super::{Inspector, JobView, LARGEST, Overview, Payload, State, text};
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
    Ok(Overview {
        library: of.library,
        subject: of.subject.clone(),
        states: states.collect(),
        oldest_ms,
        oldest_active_ms: None,
        paused: false,
    })
}

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
        // A job that runs has the execution behind its id.
        let id = text(&id).split(':').next().unwrap_or_default().to_owned();
        let key = format!("rq:job:{id}");
        let len: u64 = of.store.query(cmd("HSTRLEN").arg(&key).arg("data")).await?;
        let data = if len <= LARGEST { "data" } else { "id" };
        let get = cmd("HMGET")
            .arg(&key)
            .arg(&[data, "description", "created_at"])
            .take();
        let fields: Vec<Option<Vec<u8>>> = of.store.query(&get).await?;
        let field = |n: usize| fields.get(n).and_then(|field| field.as_deref());
        views.push(JobView {
            id,
            name: field(1).map(text).unwrap_or_default(),
            payload: match len > LARGEST {
                true => Payload::Large { len },
                false => Payload::of(field(0).unwrap_or_default()),
            },
            attempts: None,
            error: None,
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
