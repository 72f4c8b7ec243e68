//! Sidekiq. The sets of scheduled, retried and dead jobs belong to all queues.

use redis::cmd;
use serde_json::Value;

use super::{Inspector, JobView, Overview, Payload, State, text};
use crate::{error::Result, sidekiq::parts_of};

const SETS: [(&str, &str); 3] = [
    ("scheduled", "schedule"),
    ("retry", "retry"),
    ("dead", "dead"),
];

/// What stands before `queue:` where redis-namespace is used.
fn namespace(of: &Inspector) -> &str {
    parts_of(&of.subject).map_or("", |(namespace, _)| namespace)
}

pub(super) async fn overview(of: &Inspector) -> Result<Overview> {
    let mut pipeline = redis::pipe();
    pipeline.cmd("LLEN").arg(&of.subject);
    for (_, set) in SETS {
        pipeline.cmd("ZCARD").arg(format!("{}{set}", namespace(of)));
    }
    let counts: Vec<u64> = of.store.pipeline(&pipeline).await?;
    let names = [("enqueued", false)]
        .into_iter()
        .chain(SETS.map(|(name, _)| (name, true)));
    let states = names.zip(counts).map(|((name, shared), count)| State {
        name,
        count,
        shared,
    });
    let next = of.list(&of.subject, 0, 1, true).await?;
    let added = next.first().and_then(|job| view(job).added_ms);
    let running = running_since(of).await?;
    let now = of.now().await?;
    Ok(Overview {
        library: of.library,
        subject: of.subject.clone(),
        states: states.collect(),
        oldest_ms: added.map(|at| now.saturating_sub(at)),
        oldest_active_ms: running.map(|at| now.saturating_sub(at)),
        paused: false,
    })
}

/// More processes than this are not asked for what they run.
const PROCESSES: usize = 100;

/// When the job of this queue that runs for the longest began, in milliseconds since 1970. Each process writes down what its threads run.
async fn running_since(of: &Inspector) -> Result<Option<u64>> {
    let namespace = namespace(of);
    let some = cmd("SRANDMEMBER")
        .arg(format!("{namespace}processes"))
        .arg(PROCESSES)
        .take();
    let processes: Vec<String> = of.store.query(&some).await?;
    if processes.is_empty() {
        return Ok(None);
    }
    let mut pipeline = redis::pipe();
    for process in &processes {
        // Up to version 6, and since.
        for part in ["workers", "work"] {
            pipeline
                .cmd("HVALS")
                .arg(format!("{namespace}{process}:{part}"));
        }
    }
    let works: Vec<Vec<Vec<u8>>> = of.store.pipeline(&pipeline).await?;
    let queue = parts_of(&of.subject).map_or("", |(_, queue)| queue);
    let began = |work: &Vec<u8>| {
        let work: Value = serde_json::from_slice(work).ok()?;
        let here = work["queue"].as_str() == Some(queue);
        work["run_at"].as_f64().filter(|_| here).map(to_millis)
    };
    Ok(works.iter().flatten().filter_map(began).min())
}

pub(super) async fn jobs(
    of: &Inspector,
    state: &str,
    offset: usize,
    limit: usize,
) -> Result<Vec<JobView>> {
    let jobs = if state == "enqueued" {
        of.list(&of.subject, offset, limit, true).await?
    } else {
        let known = SETS.iter().find(|(name, _)| *name == state);
        let (_, set) = known.ok_or_else(|| of.unknown_state(state))?;
        of.sorted(&format!("{}{set}", namespace(of)), offset, limit)
            .await?
    };
    Ok(jobs.iter().map(|job| view(job)).collect())
}

fn view(job: &[u8]) -> JobView {
    let known: Value = serde_json::from_slice(job).unwrap_or_default();
    let string = |name: &str| known[name].as_str().map(str::to_owned);
    let payload = match known.get("args") {
        Some(args) => Payload::Json {
            text: args.to_string(),
        },
        None => Payload::of(job),
    };
    let at = known.get("enqueued_at").or(known.get("created_at"));
    JobView {
        id: string("jid").unwrap_or_default(),
        name: string("class").unwrap_or_else(|| text(&job[..job.len().min(32)])),
        payload,
        // Absent until the first failure, 0 after it.
        attempts: Some(known["retry_count"].as_u64().map_or(0, |count| count + 1)),
        error: string("error_message"),
        added_ms: at.and_then(Value::as_f64).map(to_millis),
    }
}

/// Up to version 7 times are seconds with a fraction, from version 8 on milliseconds.
fn to_millis(at: f64) -> u64 {
    if at < 1e11 {
        (at * 1000.0) as u64
    } else {
        at as u64
    }
}
