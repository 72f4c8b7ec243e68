//! BullMQ and Bull.

use redis::cmd;

use super::{Inspector, JobView, LARGEST, Overview, Payload, State, text};
use crate::error::Result;

/// Each state with its key and whether that is a list.
pub(crate) const STATES: [(&str, &str, bool); 8] = [
    ("waiting", "wait", true),
    ("prioritized", "prioritized", false),
    ("delayed", "delayed", false),
    ("paused", "paused", true),
    ("active", "active", true),
    ("waiting-children", "waiting-children", false),
    ("completed", "completed", false),
    ("failed", "failed", false),
];

pub(super) async fn overview(of: &Inspector) -> Result<Overview> {
    let key = |part: &str| format!("{}:{part}", of.subject);
    let mut pipeline = redis::pipe();
    for (_, part, list) in STATES {
        pipeline
            .cmd(if list { "LLEN" } else { "ZCARD" })
            .arg(key(part));
    }
    let counts: Vec<u64> = of.store.pipeline(&pipeline).await?;
    let states = STATES.iter().zip(counts).map(|((name, ..), count)| State {
        name,
        count,
        shared: false,
    });
    let mut pipeline = redis::pipe();
    for list in ["wait", "paused", "active"] {
        pipeline.cmd("LINDEX").arg(key(list)).arg(-1);
    }
    pipeline.cmd("ZRANGE").arg(key("prioritized")).arg(0).arg(0);
    pipeline.cmd("HEXISTS").arg(key("meta")).arg("paused");
    pipeline.cmd("EXISTS").arg(key("meta-paused"));
    let (next, held_back, running, prioritized, paused, bull_paused): (
        Option<String>,
        Option<String>,
        Option<String>,
        Vec<String>,
        bool,
        bool,
    ) = of.store.pipeline(&pipeline).await?;
    let now = of.now().await?;
    let since = async |id: Option<String>, field: &str| -> Result<Option<u64>> {
        let Some(id) = id else { return Ok(None) };
        let at: Option<String> = of.store.query(cmd("HGET").arg(key(&id)).arg(field)).await?;
        let at = at.and_then(|at| at.parse::<u64>().ok());
        Ok(at.map(|at| now.saturating_sub(at)))
    };
    let mut oldest_ms = None;
    for id in [next, held_back, prioritized.into_iter().next()] {
        oldest_ms = oldest_ms.max(since(id, "timestamp").await?);
    }
    Ok(Overview {
        library: of.library,
        subject: of.subject.clone(),
        states: states.collect(),
        oldest_ms,
        oldest_active_ms: since(running, "processedOn").await?,
        paused: paused || bull_paused,
    })
}

pub(super) async fn jobs(
    of: &Inspector,
    state: &str,
    offset: usize,
    limit: usize,
) -> Result<Vec<JobView>> {
    let known = STATES.iter().find(|(name, ..)| *name == state);
    let (_, part, list) = known.ok_or_else(|| of.unknown_state(state))?;
    let key = |part: &str| format!("{}:{part}", of.subject);
    let ids = if *list {
        of.list(&key(part), offset, limit, true).await?
    } else {
        of.sorted(&key(part), offset, limit).await?
    };
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<String> = ids.iter().map(|id| text(id)).collect();
    // The data may be large, so its length comes first.
    let mut pipeline = redis::pipe();
    for id in &ids {
        pipeline.cmd("HSTRLEN").arg(key(id)).arg("data");
    }
    let lengths: Vec<u64> = of.store.pipeline(&pipeline).await?;
    let mut pipeline = redis::pipe();
    for (id, len) in ids.iter().zip(&lengths) {
        // `id` is no field: it stands for data that is not read.
        let data = if *len <= LARGEST { "data" } else { "id" };
        let get = pipeline.cmd("HMGET").arg(key(id)).arg(data);
        get.arg(&["name", "timestamp", "atm", "attemptsMade", "failedReason"]);
    }
    let found: Vec<Vec<Option<Vec<u8>>>> = of.store.pipeline(&pipeline).await?;
    let views = ids
        .into_iter()
        .zip(lengths)
        .zip(found)
        .map(|((id, len), fields)| {
            let field = |n: usize| fields.get(n).and_then(|field| field.as_deref());
            let number = |n: usize| field(n).and_then(|bytes| text(bytes).parse::<u64>().ok());
            JobView {
                id,
                name: field(1).map(text).unwrap_or_default(),
                payload: match len > LARGEST {
                    true => Payload::Large { len },
                    false => Payload::of(field(0).unwrap_or_default()),
                },
                attempts: number(3).or(number(4)),
                error: field(5).map(text),
                added_ms: number(2),
            }
        });
    Ok(views.collect())
}
