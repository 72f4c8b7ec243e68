//! Job queues: adding jobs, working on them from any language, and operating the queue.

use std::time::Duration;

use futures_util::StreamExt as _;
use http::StatusCode;
use redstart::{
    Store,
    messaging::{
        Backoff, Cancelled, DispatchedJob, Dispatcher, EnqueueRaw, Enqueued, JobFence, JobId,
        JobInfo, JobPolicy, JobState, Outcome, Queue, Settled, Settler, UniqueUntil, Verdict,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

use crate::{
    auth::Role,
    call::{Call, Seconds},
    opened::HandleKey,
    pretty::redacted,
    problem::{Kind, Problem},
    reply::{Event, Reply},
    route::{Route, Routes},
};

const FAMILY: &str = "Queues";
const LEASE: Duration = Duration::from_secs(30);
const ATTEMPTS: u16 = 10;
/// How long done jobs and their results can be asked for.
const KEPT: Duration = Duration::from_secs(3600);

/// Any job, to wait for its end.
#[derive(Serialize, Deserialize)]
struct Any;

impl redstart::messaging::Job for Any {
    const NAME: &'static str = "any";
}

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
struct NewJob {
    /// The name of its kind, which workers ask for.
    kind: String,
    /// Any JSON. Numbers are kept digit by digit.
    #[schemars(with = "serde_json::Value")]
    payload: Box<RawValue>,
    /// Seconds until it may run.
    delay: Option<Seconds>,
    /// From -1000 to 1000; higher runs earlier.
    #[serde(default)]
    priority: i16,
    /// Seconds that one run may take.
    timeout: Option<Seconds>,
    unique: Option<Unique>,
    /// How many attempts it has in all; otherwise its worker decides.
    attempts: Option<u16>,
    /// Seconds after which it is not started any more.
    expires: Option<Seconds>,
    /// Seconds for which its result is kept when it is done (default 3600).
    keep: Option<Seconds>,
    /// Groups take turns, so that one with many jobs does not delay the others.
    group: Option<String>,
}

/// Adds the job only if no other job holds the key.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Unique {
    key: String,
    #[serde(default)]
    until: Until,
}

#[derive(Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Until {
    #[default]
    Done,
    Started,
}

#[derive(Serialize, JsonSchema)]
struct Added {
    id: String,
    /// `false` if a job with this unique key was there: `id` is that job's.
    new: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewJobs {
    jobs: Vec<NewJob>,
}

#[derive(Serialize, JsonSchema)]
struct AddedMany {
    jobs: Vec<AddedOne>,
}

#[derive(Serialize, JsonSchema)]
struct AddedOne {
    /// Missing if there is an error.
    id: Option<String>,
    /// `false` if a job with this unique key was there: `id` is that job's.
    new: bool,
    /// The last word of the type of the problem, such as `in-doubt` if the job may have been added.
    error: Option<&'static str>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Lease {
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
struct Leased {
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
struct Ack {
    fence: String,
    /// Any JSON: what whoever waits for the job gets.
    #[schemars(with = "Option<serde_json::Value>")]
    result: Option<Box<RawValue>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fail {
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
struct Extend {
    fence: String,
    /// Seconds from now (default 30).
    lease: Option<Seconds>,
}

#[derive(Serialize, JsonSchema)]
struct Extended {
    lease: Seconds,
    /// Somebody cancelled the job: stop working on it.
    cancelled: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Progress {
    fence: String,
    /// From 0 to 1.
    progress: f64,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    done: bool,
}

#[derive(Serialize, JsonSchema)]
struct Counts {
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
struct Jobs {
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
struct Details {
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
struct Ended {
    /// done, dead, cancelled, expired, or pending if it was not over in time.
    outcome: &'static str,
    #[schemars(with = "Option<serde_json::Value>")]
    result: Option<Box<RawValue>>,
    reason: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct CancelledReply {
    /// ended: it waited and will not run. told: it runs, and its worker was told.
    cancelled: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct DeadLetters {
    letters: Vec<DeadLetter>,
}

#[derive(Serialize, JsonSchema)]
struct DeadLetter {
    letter: String,
    error: String,
    /// In seconds since 1970.
    at: f64,
    job: Option<Job>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Letters {
    /// Only these letters.
    letters: Option<Vec<String>>,
    /// Only letters whose error contains this text.
    error: Option<String>,
    /// Only letters whose error is this one, with numbers, ids and quoted text replaced as the dashboard does.
    group: Option<String>,
    /// Every letter. Without it, at least one of the others must be given.
    #[serde(default)]
    all: bool,
    /// Count, and change nothing.
    #[serde(default)]
    dry_run: bool,
}

#[derive(Serialize, JsonSchema)]
struct Changed {
    count: u64,
    dry_run: bool,
}

pub(super) fn add_routes(routes: &mut Routes) {
    let job = json!({"kind": "send_mail", "payload": {"to": "ann@example.com", "order": 9007199254740993_u64}, "priority": 3});
    routes.add(
        Route::post("/v1/queues/{name}/jobs", enqueue)
            .doc(FAMILY, "Add a job")
            .param("name", "mail")
            .body::<NewJob>(job.clone())
            .reply::<Added>(201, "The job was added")
            .reply::<Added>(200, "Another job holds the unique key")
            .status(409, "The queue is full"),
    );
    routes.add(
        Route::post("/v1/queues/{name}/jobs:many", enqueue_many)
            .doc(FAMILY, "Add many jobs")
            .param("name", "mail")
            .body::<NewJobs>(json!({"jobs": [job, {"kind": "send_mail", "payload": {"to": "bob@example.com"}, "delay": 60, "unique": {"key": "bob"}}]}))
            .reply::<AddedMany>(200, "One result for each job, in order")
            .reply::<AddedMany>(207, "The same, and some have an `error`: these were not added, or are in doubt")
            .status(400, "One of the jobs is invalid; none was added"),
    );
    routes.add(
        Route::get("/v1/queues/{name}", counts)
            .doc(FAMILY, "How many jobs are in each state")
            .param("name", "mail")
            .reply::<Counts>(200, "The counts"),
    );
    routes.add(
        Route::get("/v1/queues/{name}/jobs", list)
            .doc(FAMILY, "List jobs, or search their payloads")
            .param("name", "mail")
            .query("state", "ready, delayed, running, parked or done", "ready")
            .query(
                "search",
                "Only jobs whose payload contains this text",
                "ann",
            )
            .reply::<Jobs>(200, "Up to 100 jobs"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:lease", lease)
            .waits()
            .doc(FAMILY, "Take jobs to work on, waiting for some if asked to")
            .param("name", "mail")
            .body::<Lease>(json!({"kinds": ["send_mail"], "max": 1, "wait": 5, "lease": 30}))
            .reply::<Leased>(200, "The jobs; none if there were none"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:progress", progress)
            .doc(FAMILY, "Record how far a job is")
            .param("name", "mail")
            .body::<Progress>(json!({"fence": "0193…", "progress": 0.5}))
            .reply::<Done>(200, "Recorded")
            .status(409, "The job is no longer this worker's"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:extend", extend)
            .doc(FAMILY, "Keep the jobs of a lease")
            .param("name", "mail")
            .body::<Extend>(json!({"fence": "0193…", "lease": 30}))
            .reply::<Extended>(200, "The lease runs for this long from now")
            .status(409, "The lease was lost"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:ack", ack)
            .doc(FAMILY, "Say that a job is done")
            .param("name", "mail")
            .body::<Ack>(json!({"fence": "0193…"}))
            .reply::<Done>(200, "Written")
            .status(409, "The job is no longer this worker's"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:fail", fail)
            .doc(
                FAMILY,
                "Say that a job failed: it is tried again, or becomes a dead letter",
            )
            .param("name", "failing")
            .body::<Fail>(
                json!({"fence": "0193…", "error": "connection refused", "retry_after": 10}),
            )
            .reply::<Done>(200, "Written")
            .status(409, "The job is no longer this worker's"),
    );
    routes.add(
        Route::get("/v1/queues/{name}/jobs/{id}", find)
            .doc(FAMILY, "Look a job up")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .reply::<Details>(200, "The job, its attempts, its log and its result")
            .status(404, "There is no such job, or it ended too long ago"),
    );
    routes.add(
        Route::get("/v1/queues/{name}/jobs/{id}:result", result)
            .waits()
            .doc(FAMILY, "Wait for the result of a job")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .query("wait", "Seconds to wait (default 0)", 1)
            .reply::<Ended>(200, "What became of it, or pending"),
    );
    routes.add(
        Route::post("/v1/queues/{name}/jobs/{id}:cancel", cancel)
            .role(Role::Admin)
            .doc(FAMILY, "Cancel a job")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .reply::<CancelledReply>(200, "Cancelled, or its worker was told")
            .status(404, "There is no such job, or it is over"),
    );
    routes.add(
        Route::get("/v1/queues/{name}/events", events)
            .doc(
                FAMILY,
                "Follow what happens: server-sent events added, started, done, failed, dead …",
            )
            .param("name", "mail")
            .query("after", "The id of the last event that was seen", "")
            .status(200, "A stream of events"),
    );
    routes.add(
        Route::post("/v1/queues/{name}/jobs/{id}:run-now", run_now)
            .role(Role::Admin)
            .doc(FAMILY, "Run a delayed job now")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .reply::<Done>(200, "Made ready")
            .status(409, "It is not delayed"),
    );
    routes.add(
        Route::delete("/v1/queues/{name}/jobs/{id}", delete)
            .role(Role::Admin)
            .doc(FAMILY, "Delete a job that waits")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .reply::<Done>(200, "Deleted")
            .status(409, "It runs, or is not there"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:pause", pause)
            .role(Role::Admin)
            .doc(FAMILY, "Hand out no more jobs")
            .param("name", "mail")
            .reply::<Done>(200, "Paused"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:resume", resume)
            .role(Role::Admin)
            .doc(FAMILY, "Hand out jobs again")
            .param("name", "mail")
            .reply::<Done>(200, "Resumed"),
    );
    routes.add(
        Route::get("/v1/queues/{name}/dead", dead)
            .doc(FAMILY, "List dead letters")
            .param("name", "mail")
            .reply::<DeadLetters>(200, "Up to 100 of them, oldest first"),
    );
    routes.add(
        Route::post("/v1/queues/{name}/dead:replay", replay)
            .role(Role::Admin)
            .doc(FAMILY, "Enqueue dead letters again")
            .param("name", "mail")
            .body::<Letters>(json!({"error": "connection refused", "dry_run": true}))
            .reply::<Changed>(200, "How many"),
    );
    routes.add(
        Route::post("/v1/queues/{name}/dead:purge", purge)
            .role(Role::Admin)
            .doc(FAMILY, "Delete dead letters")
            .param("name", "mail")
            .body::<Letters>(json!({"error": "connection refused", "dry_run": true}))
            .reply::<Changed>(200, "How many"),
    );
}

/// A queue as this service uses it: with a history for the charts, and with results that can be asked for.
pub(crate) fn open_queue(store: &Store, namespace: &str, name: &str) -> redstart::Result<Queue> {
    Queue::builder(store, namespace, name)
        .keep_done(1000, KEPT)
        .keep_events(1000)
        .history(Duration::from_secs(86_400))
        .build()
}

pub(crate) fn queue(call: &Call) -> Result<Queue, Problem> {
    Ok(open_queue(
        &call.app.store,
        &call.namespace()?,
        call.param("name"),
    )?)
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

/// A job that can be added.
fn prepare<'a>(queue: &'a Queue, job: &'a NewJob) -> Result<EnqueueRaw<'a>, Problem> {
    let payload = job.payload.get().as_bytes();
    let mut policy = JobPolicy::new().priority(job.priority);
    if let Some(attempts) = job.attempts {
        policy = policy.attempts(attempts);
    }
    if let Some(timeout) = job.timeout {
        policy = policy.timeout(timeout.duration()?);
    }
    if let Some(expires) = job.expires {
        policy = policy.expires_after(expires.duration()?);
    }
    if let Some(keep) = job.keep {
        policy = policy.keep(keep.duration()?);
    }
    let mut adding = queue.enqueue_raw(&job.kind, payload).policy(policy);
    if let Some(delay) = job.delay {
        adding = adding.delay(delay.duration()?);
    }
    if let Some(group) = &job.group {
        adding = adding.group(group);
    }
    if let Some(unique) = &job.unique {
        let until = match unique.until {
            Until::Done => UniqueUntil::Done,
            Until::Started => UniqueUntil::Started,
        };
        adding = adding.unique(&unique.key, until);
    }
    adding.check()?;
    Ok(adding)
}

fn added(outcome: Enqueued) -> Result<Added, Problem> {
    match outcome {
        Enqueued::Full => Err(Problem::new(Kind::Conflict).detail("the queue is full")),
        Enqueued::New(id) | Enqueued::Duplicate(id) => Ok(Added {
            id: id.to_string(),
            new: outcome.is_new(),
        }),
    }
}

async fn enqueue(call: Call) -> Result<Reply, Problem> {
    let job: NewJob = call.json()?;
    let added = added(prepare(&queue(&call)?, &job)?.await?)?;
    let status = if added.new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(Reply::json(status, &added))
}

async fn enqueue_many(call: Call) -> Result<Reply, Problem> {
    let body: NewJobs = call.json()?;
    if body.jobs.len() > 1000 {
        return Err(Problem::invalid("at most 1000 jobs in one call"));
    }
    let queue = queue(&call)?;
    // All are checked before the first is sent.
    let prepared = body
        .jobs
        .iter()
        .enumerate()
        .map(|(at, job)| prepare(&queue, job).map_err(|problem| problem.with("job", at)));
    let prepared = prepared.collect::<Result<Vec<_>, _>>()?;
    // Requests that meet are sent together.
    let adding = prepared.into_iter().map(IntoFuture::into_future);
    let outcomes = futures_util::future::join_all(adding).await;
    let outcomes = outcomes
        .into_iter()
        .map(|outcome| added(outcome.map_err(Problem::from)?));
    many(outcomes.collect())
}

/// The answer for many jobs: a problem only if nothing was done for any of them.
fn many(outcomes: Vec<Result<Added, Problem>>) -> Result<Reply, Problem> {
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    let is_doubtful = |outcome: &Result<_, Problem>| matches!(outcome, Err(problem) if problem.kind == Kind::InDoubt);
    if failed > 0 && failed == outcomes.len() && !outcomes.iter().any(is_doubtful) {
        let problem = outcomes.into_iter().find_map(Result::err);
        return Err(problem.unwrap_or(Problem::new(Kind::Failed)));
    }
    let jobs = outcomes.into_iter().map(|outcome| match outcome {
        Ok(added) => AddedOne {
            id: Some(added.id),
            new: added.new,
            error: None,
        },
        Err(problem) => AddedOne {
            id: None,
            new: false,
            error: Some(problem.kind.name()),
        },
    });
    let status = match failed {
        0 => StatusCode::OK,
        _ => StatusCode::MULTI_STATUS,
    };
    let jobs = jobs.collect();
    Ok(Reply::json(status, &AddedMany { jobs }))
}

async fn lease(call: Call) -> Result<Reply, Problem> {
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

/// JSON as it is; a payload that is none, as text.
pub(crate) fn raw(payload: Vec<u8>) -> Box<RawValue> {
    let text = String::from_utf8_lossy(&payload).into_owned();
    RawValue::from_string(text.clone())
        .or_else(|_| serde_json::value::to_raw_value(&text))
        .unwrap_or_default()
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

async fn ack(call: Call) -> Result<Reply, Problem> {
    let body: Ack = call.json()?;
    let verdict = match body.result {
        Some(result) => Verdict::DoneWith {
            result: result.get().as_bytes().to_vec(),
        },
        None => Verdict::Done,
    };
    settle(&call, &body.fence, None, verdict).await
}

async fn fail(call: Call) -> Result<Reply, Problem> {
    let body: Fail = call.json()?;
    let error: String = body.error.chars().take(4000).collect();
    let verdict = match (body.dead, body.retry_after) {
        (true, _) => Verdict::dead(error),
        (false, Some(after)) => Verdict::retry_after(after.duration()?, error),
        (false, None) => Verdict::retry(error),
    };
    settle(&call, &body.fence, body.attempts, verdict).await
}

async fn extend(call: Call) -> Result<Reply, Problem> {
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

async fn progress(call: Call) -> Result<Reply, Problem> {
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

async fn counts(call: Call) -> Result<Reply, Problem> {
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

async fn list(call: Call) -> Result<Reply, Problem> {
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

fn job_id(call: &Call) -> Result<JobId, Problem> {
    Ok(call.param("id").parse::<JobId>()?)
}

async fn find(call: Call) -> Result<Reply, Problem> {
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

async fn result(call: Call) -> Result<Reply, Problem> {
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

async fn cancel(call: Call) -> Result<Reply, Problem> {
    let cancelled = match queue(&call)?.cancel(job_id(&call)?).await? {
        Cancelled::Ended => "ended",
        Cancelled::Told => "told",
        Cancelled::NotFound => return Err(Problem::not_found("job that is not over")),
    };
    operated(&call, "queue.cancel", true).await?;
    Ok(Reply::ok(&CancelledReply { cancelled }))
}

async fn events(call: Call) -> Result<Reply, Problem> {
    let follower = queue(&call)?
        .inspect()
        .follow_events(call.query.given("after"));
    let events = futures_util::stream::unfold(follower, |mut follower| async move {
        // While the store is down, the stream stays open and asks again.
        let found = match follower.next(Duration::from_secs(15)).await {
            Ok(found) => found,
            Err(_) => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Vec::new()
            }
        };
        let events: Vec<Event> = found.into_iter().map(event).collect();
        Some((futures_util::stream::iter(events), follower))
    });
    let first = futures_util::stream::iter([Event::new("listening", "")]);
    call.app.stream(first.chain(events.flatten()))
}

fn event(event: redstart::messaging::QueueEvent) -> Event {
    let jobs: Vec<String> = event.jobs.iter().map(ToString::to_string).collect();
    let data = json!({"jobs": jobs, "text": event.text, "at": event.at.as_secs_f64()});
    let mut sent = Event::json(event.kind.name(), &data);
    sent.id = Some(event.id);
    sent
}

/// Writes a change of one job, or of a queue, to the audit log.
async fn operated(call: &Call, what: &str, done: bool) -> Result<Reply, Problem> {
    if !done {
        return Err(Problem::new(Kind::Conflict).detail("the job is not in a state for this"));
    }
    let on = format!(
        "{} {} {}",
        call.namespace()?,
        call.param("name"),
        call.param("id")
    );
    call.app
        .changed(call, what, on.trim_end().to_owned(), 1, None)
        .await;
    Ok(Reply::ok(&Done { done: true }))
}

async fn run_now(call: Call) -> Result<Reply, Problem> {
    let done = queue(&call)?.inspect().run_now(job_id(&call)?).await?;
    operated(&call, "queue.run-now", done).await
}

async fn delete(call: Call) -> Result<Reply, Problem> {
    let done = queue(&call)?.inspect().delete(job_id(&call)?).await?;
    operated(&call, "queue.delete", done).await
}

async fn pause(call: Call) -> Result<Reply, Problem> {
    queue(&call)?.pause().await?;
    operated(&call, "queue.pause", true).await
}

async fn resume(call: Call) -> Result<Reply, Problem> {
    queue(&call)?.resume().await?;
    operated(&call, "queue.resume", true).await
}

async fn dead(call: Call) -> Result<Reply, Problem> {
    let mut letters = queue(&call)?.inspect().dead_letters().list(None).await?;
    letters.truncate(100);
    let letters = letters.into_iter().map(|letter| DeadLetter {
        letter: letter.letter,
        error: letter.reason,
        at: letter.at.as_secs_f64(),
        job: letter.job.map(|job| job_view(job, call.hidden())),
    });
    Ok(Reply::ok(&DeadLetters {
        letters: letters.collect(),
    }))
}

async fn replay(call: Call) -> Result<Reply, Problem> {
    act_on_letters(call, "queue.replay").await
}

async fn purge(call: Call) -> Result<Reply, Problem> {
    act_on_letters(call, "queue.purge").await
}

async fn act_on_letters(call: Call, what: &str) -> Result<Reply, Problem> {
    let body: Letters = call.json()?;
    // A request that says nothing must not mean everything.
    let chosen = body.letters.is_some() || body.error.is_some() || body.group.is_some();
    if chosen == body.all {
        return Err(Problem::invalid(
            "say which letters: `letters`, `error` or `group`, or else `all`",
        ));
    }
    let wanted = |letter: &redstart::messaging::DeadLetter| {
        let (ids, error, group) = (&body.letters, &body.error, &body.group);
        ids.as_ref().is_none_or(|ids| ids.contains(&letter.letter))
            && error
                .as_ref()
                .is_none_or(|text| letter.reason.contains(text))
            && group
                .as_ref()
                .is_none_or(|group| group_of(&letter.reason) == *group)
    };
    let letters = queue(&call)?.inspect().dead_letters();
    let count = match (body.dry_run, what) {
        (true, _) => count_letters(&letters, wanted).await?,
        (false, "queue.replay") => part_way(&call, what, letters.replay(wanted).await).await?,
        (false, _) => part_way(&call, what, letters.purge(wanted).await).await?,
    };
    if !body.dry_run {
        let on = format!("{} {}", call.namespace()?, call.param("name"));
        call.app.changed(&call, what, on, count, None).await;
    }
    Ok(Reply::ok(&Changed {
        count,
        dry_run: body.dry_run,
    }))
}

/// The count of a change that is made in pages. One that failed may have changed some: that is written down, and the
/// client is told that it is in doubt.
async fn part_way(call: &Call, what: &str, count: redstart::Result<u64>) -> Result<u64, Problem> {
    let error = match count {
        Ok(count) => return Ok(count),
        Err(error) if error.is_config() => return Err(error.into()),
        Err(error) => error,
    };
    let on = format!("{} {} (failed)", call.namespace()?, call.param("name"));
    call.app.changed(call, what, on, 0, None).await;
    Err(Problem::new(Kind::InDoubt).detail(error.to_string()))
}

/// How many letters there are, read page by page.
pub(crate) async fn count_letters(
    letters: &redstart::messaging::DeadLetters,
    wanted: impl Fn(&redstart::messaging::DeadLetter) -> bool,
) -> Result<u64, Problem> {
    let (mut count, mut after) = (0, None::<String>);
    loop {
        let page = letters.list(after.as_deref()).await?;
        let Some(last) = page.last() else {
            return Ok(count);
        };
        after = Some(last.letter.clone());
        count += page.iter().filter(|letter| wanted(letter)).count() as u64;
    }
}

/// An error without what differs from one occurrence to the next: numbers, ids and quoted text.
pub(crate) fn group_of(error: &str) -> String {
    let mut out = String::new();
    let mut rest = error;
    while let Some(c) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
        if let Some(quoted) = quoted(rest) {
            out.push_str("\"…\"");
            rest = &rest[quoted..];
        } else if word(c) {
            let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
            let digits = rest[..end].chars().filter(char::is_ascii_digit).count();
            match digits {
                0 => out.push_str(&rest[..end]),
                _ => out.push('#'),
            }
            rest = &rest[end..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
        if out.len() > 300 {
            break;
        }
    }
    out
}

/// How long the quoted text is that begins here.
fn quoted(text: &str) -> Option<usize> {
    let quote = text.chars().next().filter(|c| "\"'`".contains(*c))?;
    let end = text[1..].find(quote)?;
    (end > 0).then_some(end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_differ_in_details_are_one_group() {
        let same = [
            "timeout after 3012 ms for user 'ann' (job 0193af)",
            "timeout after 17 ms for user \"bob\" (job 77)",
        ];
        assert_eq!(group_of(same[0]), group_of(same[1]));
        assert_eq!(
            group_of(same[0]),
            "timeout after # ms for user \"…\" (job #)"
        );
        assert_ne!(group_of("connection refused"), group_of("connection reset"));
        for odd in ["", "'", "''", "é'é", "\"🦊"] {
            let _ = group_of(odd);
        }
    }

    #[test]
    fn many_jobs_are_a_problem_only_if_nothing_was_done() {
        let added = || {
            Ok(Added {
                id: "x".into(),
                new: true,
            })
        };
        let failed = |kind| Err(Problem::new(kind));
        let status = |outcomes| match many(outcomes) {
            Ok(reply) => reply.status.as_u16(),
            Err(problem) => problem.status.as_u16(),
        };
        assert_eq!(status(vec![]), 200);
        assert_eq!(status(vec![added(), added()]), 200);
        assert_eq!(status(vec![added(), failed(Kind::Unavailable)]), 207);
        assert_eq!(
            status(vec![failed(Kind::Unavailable), failed(Kind::InDoubt)]),
            207
        );
        assert_eq!(
            status(vec![failed(Kind::Unavailable), failed(Kind::Unavailable)]),
            503
        );
    }
}
