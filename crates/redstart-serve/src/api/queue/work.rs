//! Working on jobs from any language: leases, endings, progress.

use std::time::Duration;

use redstart::messaging::{
    Backoff, DispatchedJob, Dispatcher, JobFence, Settled, Settler, Verdict,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{look::raw, operate::Done, queue};
use crate::{
    call::{Call, Seconds},
    opened::HandleKey,
    problem::{Kind, Problem},
    reply::Reply,
};

const LEASE: Duration = Duration::from_secs(30);
const ATTEMPTS: u16 = 10;

/// What the dispatchers of this process are made from: what their workers ask for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct DispatcherKey {
    namespace: String,
    queue: String,
    kinds: Vec<String>,
    lease: Duration,
    attempts: u16,
}

impl HandleKey for DispatcherKey {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

fn backoff() -> Backoff {
    Backoff::exponential(Duration::from_secs(1), Duration::from_secs(600))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Lease {
    /// The kinds of job that this worker can run. Jobs of other kinds are left to other workers.
    kinds: Vec<String>,
    /// How many jobs at most (default 1).
    #[serde(default = "one")]
    max: usize,
    /// Seconds to wait for a job (default 0).
    wait: Option<Seconds>,
    /// Seconds that the worker may be silent before others take its jobs (default 30).
    lease: Option<Seconds>,
    /// How many attempts a job has in all (default 10).
    attempts: Option<u16>,
}

fn one() -> usize {
    1
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Leased {
    jobs: Vec<LeasedJob>,
    /// Seconds until the jobs are taken away unless the lease is extended. All jobs of one call share one lease.
    lease: Seconds,
}

#[derive(Serialize, JsonSchema)]
struct LeasedJob {
    id: String,
    /// A secret: what this worker settles the job with.
    fence: String,
    kind: String,
    #[schemars(with = "serde_json::Value")]
    payload: Box<RawValue>,
    attempt: u32,
    max_attempts: u32,
    /// Seconds that this run may take.
    timeout: Option<Seconds>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Ack {
    fence: String,
    /// Any JSON: the result for callers that wait for the job.
    #[schemars(with = "Option<serde_json::Value>")]
    result: Option<Box<RawValue>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fail {
    fence: String,
    /// What went wrong. It is shown to operators.
    error: String,
    /// Seconds until the next attempt, instead of the queue's backoff.
    retry_after: Option<Seconds>,
    /// No further attempt: the job becomes a dead letter.
    #[serde(default)]
    dead: bool,
    /// How many attempts the job has in all (default 10).
    attempts: Option<u16>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Extend {
    fence: String,
    /// Seconds from now (default 30).
    lease: Option<Seconds>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Extended {
    lease: Seconds,
    /// Somebody cancelled the job: stop working on it.
    cancelled: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    fence: String,
    /// From 0 to 1.
    progress: f64,
}

fn lease_time(lease: Option<Seconds>) -> Result<Duration, Problem> {
    let lease = Seconds::or(lease, LEASE)?;
    if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&lease) {
        return Err(Problem::invalid("a lease must be from 1 to 3600 s"));
    }
    Ok(Duration::from_millis(lease.as_millis() as u64))
}

/// The dispatcher for these workers. It has a subscription, so it is kept.
async fn dispatcher(call: &Call, body: &Lease) -> Result<Dispatcher, Problem> {
    let mut kinds = body.kinds.clone();
    kinds.sort_unstable();
    kinds.dedup();
    let key = DispatcherKey {
        namespace: call.namespace()?,
        queue: call.param("name").to_owned(),
        kinds,
        lease: lease_time(body.lease)?,
        attempts: body.attempts.unwrap_or(ATTEMPTS),
    };
    let queue = queue(call)?;
    let start = queue
        .dispatcher(key.kinds.clone())
        .lease(key.lease)
        .retry(backoff(), key.attempts)
        .start();
    Ok(call.app.patterns.dispatchers.get(key, start).await?)
}

/// Writes what workers say of their jobs. Nothing is opened for it.
fn settler(call: &Call, lease: Option<Seconds>, attempts: Option<u16>) -> Result<Settler, Problem> {
    let settler = queue(call)?.dispatcher(None::<String>);
    let settler = settler.lease(lease_time(lease)?);
    Ok(settler
        .retry(backoff(), attempts.unwrap_or(ATTEMPTS))
        .settler()?)
}

fn fence(text: &str) -> Result<JobFence, Problem> {
    text.parse().map_err(|_| Problem::new(Kind::StaleFence))
}

pub(super) async fn lease(call: Call) -> Result<Reply, Problem> {
    let body: Lease = call.json()?;
    if !(1..=256).contains(&body.max) {
        return Err(Problem::invalid("max must be from 1 to 256"));
    }
    let wait = call.wait(body.wait)?;
    let dispatcher = dispatcher(&call, &body).await?;
    let jobs = dispatcher.take(body.max, wait).await?;
    Ok(Reply::ok(&Leased {
        jobs: jobs.into_iter().map(leased).collect(),
        lease: dispatcher.lease().into(),
    }))
}

fn leased(job: DispatchedJob) -> LeasedJob {
    LeasedJob {
        id: job.id.to_string(),
        fence: job.fence.to_string(),
        kind: job.kind,
        payload: raw(job.payload),
        attempt: job.attempt,
        max_attempts: job.max_attempts,
        timeout: job.timeout.map(Into::into),
    }
}

async fn settle(
    call: &Call,
    fence_text: &str,
    attempts: Option<u16>,
    verdict: Verdict,
) -> Result<Reply, Problem> {
    let fence = fence(fence_text)?;
    match settler(call, None, attempts)?
        .settle(&fence, verdict)
        .await?
    {
        Settled::Done => Ok(Reply::ok(&Done { done: true })),
        Settled::Lost => Err(Problem::new(Kind::StaleFence)),
    }
}

pub(super) async fn ack(call: Call) -> Result<Reply, Problem> {
    let body: Ack = call.json()?;
    let verdict = match body.result {
        Some(result) => Verdict::DoneWith {
            result: result.get().as_bytes().to_vec(),
        },
        None => Verdict::Done,
    };
    settle(&call, &body.fence, None, verdict).await
}

pub(super) async fn fail(call: Call) -> Result<Reply, Problem> {
    let body: Fail = call.json()?;
    let error: String = body.error.chars().take(4000).collect();
    let verdict = match (body.dead, body.retry_after) {
        (true, _) => Verdict::dead(error),
        (false, Some(after)) => Verdict::retry_after(after.duration()?, error),
        (false, None) => Verdict::retry(error),
    };
    settle(&call, &body.fence, body.attempts, verdict).await
}

pub(super) async fn extend(call: Call) -> Result<Reply, Problem> {
    let body: Extend = call.json()?;
    let fence = fence(&body.fence)?;
    let settler = settler(&call, body.lease, None)?;
    match settler.extend(&fence).await? {
        true => Ok(Reply::ok(&Extended {
            lease: settler.lease().into(),
            cancelled: settler.is_cancelled(&fence).await?,
        })),
        false => Err(Problem::new(Kind::StaleFence)),
    }
}

pub(super) async fn progress(call: Call) -> Result<Reply, Problem> {
    let body: Progress = call.json()?;
    let fence = fence(&body.fence)?;
    match settler(&call, None, None)?
        .progress(&fence, body.progress)
        .await?
    {
        true => Ok(Reply::ok(&Done { done: true })),
        false => Err(Problem::new(Kind::StaleFence)),
    }
}
