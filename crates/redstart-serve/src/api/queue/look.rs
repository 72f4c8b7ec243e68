//! Looking at a queue: counts, jobs, results and events.

use std::time::Duration;

use futures_util::StreamExt as _;
use redstart::messaging::{JobId, JobInfo, JobState, Outcome, Queue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

use super::queue;
use crate::{
    call::{Call, Seconds},
    pretty::redacted,
    problem::Problem,
    reply::{Event, Reply},
    watch::Seen,
};

/// Any job, to wait for its end.
#[derive(Serialize, Deserialize)]
struct Any;

impl redstart::messaging::Job for Any {
    const NAME: &'static str = "any";
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Counts {
    ready: u64,
    delayed: u64,
    running: u64,
    parked: u64,
    dead: u64,
    done: u64,
    workers: u64,
    paused: bool,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Jobs {
    jobs: Vec<Job>,
    /// How many jobs were read. A search reads 20,000 at most, for 2 s at most.
    scanned: usize,
}

/// A job as it was when it was read.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) state: &'static str,
    pub(crate) attempts: u32,
    pub(crate) priority: i16,
    /// When it became or becomes ready, in seconds since 1970.
    pub(crate) due: f64,
    #[schemars(with = "serde_json::Value")]
    pub(crate) payload: Box<RawValue>,
    pub(crate) worker: Option<String>,
    pub(crate) progress: Option<f64>,
    pub(crate) group: Option<String>,
}

/// A job and all that is known of it.
#[derive(Serialize, JsonSchema)]
pub(super) struct Details {
    job: Job,
    attempts: Vec<Attempt>,
    log: Vec<String>,
    #[schemars(with = "Option<serde_json::Value>")]
    result: Option<Box<RawValue>>,
    /// Why it died or was parked.
    reason: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Attempt {
    /// In seconds since 1970.
    started: f64,
    ended: f64,
    worker: String,
    error: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Ended {
    /// done, dead, cancelled, expired, or pending if it was not over in time.
    outcome: &'static str,
    #[schemars(with = "Option<serde_json::Value>")]
    result: Option<Box<RawValue>>,
    reason: Option<String>,
}

/// JSON as it is; a payload that is none, as text.
pub(crate) fn raw(payload: Vec<u8>) -> Box<RawValue> {
    let text = String::from_utf8_lossy(&payload).into_owned();
    RawValue::from_string(text.clone())
        .or_else(|_| serde_json::value::to_raw_value(&text))
        .unwrap_or_default()
}

pub(super) async fn counts(call: Call) -> Result<Reply, Problem> {
    let counts = queue(&call)?.inspect().counts().await?;
    Ok(Reply::ok(&Counts {
        ready: counts.ready,
        delayed: counts.delayed,
        running: counts.running,
        parked: counts.parked,
        dead: counts.dead,
        done: counts.done,
        workers: counts.workers,
        paused: counts.paused,
    }))
}

pub(crate) fn parse_state(text: &str) -> Result<JobState, Problem> {
    Ok(match text {
        "ready" => JobState::Ready,
        "delayed" => JobState::Delayed,
        "running" => JobState::Running,
        "parked" => JobState::Parked,
        "waiting" => JobState::Waiting,
        "done" => JobState::Done,
        _ => {
            return Err(Problem::invalid(
                "state must be ready, delayed, running, parked, waiting or done",
            ));
        }
    })
}

pub(crate) fn state_name(state: JobState) -> &'static str {
    match state {
        JobState::Ready => "ready",
        JobState::Delayed => "delayed",
        JobState::Running => "running",
        JobState::Parked => "parked",
        JobState::Done => "done",
        JobState::Dead => "dead",
        JobState::Waiting => "waiting",
        JobState::Cancelled => "cancelled",
        JobState::Expired => "expired",
        _ => "other",
    }
}

/// JSON without the values of these fields.
fn without(payload: Vec<u8>, hidden: &[String]) -> Box<RawValue> {
    let payload = raw(payload);
    match hidden {
        [] => payload,
        hidden => raw(redacted(payload.get(), hidden).into_bytes()),
    }
}

pub(crate) fn job_view(job: JobInfo, hidden: &[String]) -> Job {
    Job {
        id: job.id.to_string(),
        kind: job.name,
        state: state_name(job.state),
        attempts: job.attempts,
        priority: job.priority,
        due: job.due.as_secs_f64(),
        payload: without(job.payload, hidden),
        worker: job.worker,
        progress: job.progress,
        group: job.group,
    }
}

pub(super) async fn list(call: Call) -> Result<Reply, Problem> {
    let state = parse_state(call.query.given("state").unwrap_or("ready"))?;
    let queue = queue(&call)?;
    let hidden = call.hidden();
    let (mut jobs, scanned) = match call.query.given("search") {
        Some(text) => search_jobs(&queue, state, text, hidden).await?,
        None => {
            let (jobs, _) = queue.inspect().list(state, None).await?;
            let count = jobs.len();
            (jobs, count)
        }
    };
    jobs.truncate(100);
    let jobs = jobs.into_iter().map(|job| job_view(job, hidden)).collect();
    Ok(Reply::ok(&Jobs { jobs, scanned }))
}

/// How many jobs a search reads.
const BUDGET: usize = 20_000;

/// The first jobs whose payload contains a text, and how many were read: in pages with a pause after each, within a budget
/// of jobs and time. What is hidden is not found either.
pub(crate) async fn search_jobs(
    queue: &Queue,
    state: JobState,
    text: &str,
    hidden: &[String],
) -> Result<(Vec<JobInfo>, usize), Problem> {
    let contains = |job: &JobInfo| {
        let payload = String::from_utf8_lossy(&job.payload);
        match hidden {
            [] => payload.contains(text),
            hidden => redacted(&payload, hidden).contains(text),
        }
    };
    let (mut found, mut scanned, mut from) = (Vec::new(), 0_usize, None);
    let ends = tokio::time::Instant::now() + Duration::from_secs(2);
    loop {
        let (jobs, next) = queue.inspect().list(state, from).await?;
        scanned += jobs.len();
        found.extend(jobs.into_iter().filter(contains));
        from = next;
        let is_over = scanned >= BUDGET || tokio::time::Instant::now() > ends;
        if from.is_none() || found.len() >= 100 || is_over {
            return Ok((found, scanned));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(super) fn job_id(call: &Call) -> Result<JobId, Problem> {
    Ok(call.param("id").parse::<JobId>()?)
}

pub(super) async fn find(call: Call) -> Result<Reply, Problem> {
    let found = queue(&call)?.job(job_id(&call)?).await?;
    let details = found.ok_or_else(|| Problem::not_found("job"))?;
    let hidden = call.hidden();
    let result = details.result.filter(|result| !result.is_empty());
    let attempts = details.attempts.into_iter().map(|attempt| Attempt {
        started: attempt.started.as_secs_f64(),
        ended: attempt.ended.as_secs_f64(),
        worker: attempt.worker,
        error: attempt.error,
    });
    Ok(Reply::ok(&Details {
        job: job_view(details.job, hidden),
        attempts: attempts.collect(),
        log: details.log,
        result: result.map(|result| without(result, hidden)),
        reason: details.reason,
    }))
}

pub(super) async fn result(call: Call) -> Result<Reply, Problem> {
    let wait = call.wait(call.query.number::<f64>("wait")?.map(Seconds))?;
    let (queue, id) = (queue(&call)?, job_id(&call)?);
    let handle = queue.handle::<Any>(id);
    let ended = tokio::time::timeout(wait.max(Duration::from_millis(1)), handle.ended()).await;
    let (outcome, reason) = match ended {
        Err(_) => ("pending", None),
        Ok(ended) => match ended? {
            Outcome::Done(()) => ("done", None),
            Outcome::Dead { reason } => ("dead", Some(reason)),
            Outcome::Cancelled => ("cancelled", None),
            Outcome::Expired => ("expired", None),
            Outcome::Unknown => return Err(Problem::not_found("job")),
        },
    };
    let result = match outcome {
        "done" => queue.job(id).await?.and_then(|details| details.result),
        _ => None,
    };
    Ok(Reply::ok(&Ended {
        outcome,
        result: result
            .filter(|result| !result.is_empty())
            .map(|result| without(result, call.hidden())),
        reason,
    }))
}

pub(super) async fn events(call: Call) -> Result<Reply, Problem> {
    // A browser that connects again names the last event that it got.
    let last = call.headers.get("last-event-id");
    let last = last.and_then(|id| id.to_str().ok());
    let after = call.query.given("after").or(last);
    if after.is_some_and(|after| !is_event_id(after)) {
        return Err(Problem::invalid("after must be the id of an event"));
    }
    let (namespace, queue) = (call.namespace()?, queue(&call)?);
    let watches = &call.app.watches;
    let seen = watches.follow(&namespace, call.param("name"), queue, after);
    call.app.stream(seen.map(|seen| match seen {
        Seen::Listening => Event::new("listening", ""),
        Seen::Event(seen) => event(&seen),
    }))
}

fn is_event_id(text: &str) -> bool {
    let number = |text: &str| text.len() <= 19 && text.parse::<u64>().is_ok();
    match text.split_once('-') {
        Some((time, rest)) => number(time) && number(rest),
        None => number(text),
    }
}

fn event(event: &redstart::messaging::QueueEvent) -> Event {
    let jobs: Vec<String> = event.jobs.iter().map(ToString::to_string).collect();
    let data = json!({"jobs": jobs, "text": event.text, "at": event.at.as_secs_f64()});
    let mut sent = Event::json(event.kind.name(), &data);
    sent.id = Some(event.id.clone());
    sent
}
