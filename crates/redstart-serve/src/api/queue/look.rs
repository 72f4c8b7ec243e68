//! Looking at a queue: counts, jobs, results and events.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use redstart::messaging::{ChildResult, JobId, JobInfo, JobState, Outcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::queue;
use crate::{
    call::{Call, Seconds},
    pretty::redacted,
    problem::{Kind, Problem},
    reply::{Event, Reply},
    scan::{Filter, Scan, Turns},
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
    /// Jobs that wait for their children.
    waiting: u64,
    dead: u64,
    done: u64,
    workers: u64,
    paused: bool,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Jobs {
    jobs: Vec<Job>,
    /// How many jobs were read, also by the requests before if this one went on from there. One request that searches reads
    /// 20,000 at most, for 2 s at most.
    scanned: u64,
    /// How many jobs of the state there are, as far as is known.
    total: u64,
    /// Where the next request goes on, as its `from`; null at the end.
    next: Option<String>,
}

/// What became of the children of a job.
#[derive(Serialize, JsonSchema)]
pub(super) struct Children {
    /// How many failed, other than those that made the job fail.
    failed: u64,
    /// How many are not over yet.
    waiting: u64,
    /// Of those whose results are kept, in the order in which they were added.
    results: Vec<Child>,
}

#[derive(Serialize, JsonSchema)]
struct Child {
    /// done, failed, or none: it failed and is ignored, or is not over.
    outcome: &'static str,
    #[schemars(with = "Option<serde_json::Value>")]
    result: Option<Box<RawValue>>,
    reason: Option<String>,
}

/// A job as it was when it was read.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) state: &'static str,
    pub(crate) attempts: u32,
    /// How many it has in all, if it says so itself.
    pub(crate) max_attempts: Option<u32>,
    pub(crate) priority: i16,
    /// When it was added, in seconds since 1970.
    pub(crate) created: f64,
    /// When it became or becomes ready, in seconds since 1970.
    pub(crate) due: f64,
    #[schemars(with = "serde_json::Value")]
    pub(crate) payload: Box<RawValue>,
    pub(crate) worker: Option<String>,
    pub(crate) progress: Option<f64>,
    pub(crate) group: Option<String>,
    /// Its unique key.
    pub(crate) unique: Option<String>,
    /// When it expires, in seconds since 1970.
    pub(crate) expires: Option<f64>,
    /// The job that waits for it.
    pub(crate) parent: Option<String>,
    /// The queue of that job, if it is another one.
    pub(crate) parent_queue: Option<QueueName>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct QueueName {
    pub(crate) namespace: String,
    pub(crate) name: String,
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
        waiting: counts.waiting,
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
        "dead" => JobState::Dead,
        _ => {
            return Err(Problem::invalid(
                "state must be ready, delayed, running, parked, waiting, done or dead",
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
        max_attempts: job.max_attempts,
        priority: job.priority,
        created: job.created.as_secs_f64(),
        due: job.due.as_secs_f64(),
        payload: without(job.payload, hidden),
        worker: job.worker,
        progress: job.progress,
        group: job.group,
        unique: job.unique,
        expires: job.expires.map(|time| time.as_secs_f64()),
        parent: job.parent.map(|id| id.to_string()),
        parent_queue: job
            .parent_queue
            .map(|(namespace, name)| QueueName { namespace, name }),
    }
}

/// The jobs that a request asks for.
pub(crate) fn filter_of(call: &Call, text: &str) -> Result<Filter, Problem> {
    let given = |name: &str| call.query.given(name).map(str::to_owned);
    let filter = Filter {
        state: parse_state(call.query.given("state").unwrap_or("ready"))?,
        kind: given("kind"),
        error: given("error"),
        group: given("group"),
        text: given(text),
        hidden: call.hidden().to_vec(),
    };
    filter.check()?;
    Ok(filter)
}

/// How many jobs one step of a search reads.
pub(crate) const BUDGET: u64 = 20_000;
/// How long it reads at most.
const TIME: Duration = Duration::from_secs(2);
/// A search stops after the page with which it has found so many.
const ENOUGH: usize = 100;

pub(super) async fn list(call: Call) -> Result<Reply, Problem> {
    let filter = filter_of(&call, "search")?;
    let is_all = filter.is_all();
    let mut scan = Scan::new(&queue(&call)?, filter, call.query.given("from")).await?;
    let jobs: Vec<JobInfo> = if is_all {
        let page = scan.step_now().await?;
        page.into_iter().filter_map(|seen| seen.job).collect()
    } else {
        let _searching = call.app.searches.begin(&call.identity)?;
        search(&mut scan, &call.app.searching, BUDGET, TIME).await?
    };
    let jobs = jobs.into_iter().map(|job| job_view(job, call.hidden()));
    Ok(Reply::ok(&Jobs {
        jobs: jobs.collect(),
        scanned: scan.scanned,
        total: scan.total(),
        next: scan.place(),
    }))
}

/// One step of a search, which ends with the page that reaches the budget of jobs or time, or has found enough.
pub(crate) async fn search(
    scan: &mut Scan,
    turns: &Turns,
    budget: u64,
    time: Duration,
) -> Result<Vec<JobInfo>, Problem> {
    let (before, begun) = (scan.scanned, tokio::time::Instant::now());
    let mut found = Vec::new();
    loop {
        let seen = scan.step(turns).await?;
        found.extend(seen.into_iter().filter_map(|seen| seen.job));
        let is_spent = scan.scanned - before >= budget || begun.elapsed() >= time;
        if scan.is_over() || is_spent || found.len() >= ENOUGH {
            return Ok(found);
        }
    }
}

/// What a search that is under way tells.
pub(crate) enum Told {
    Found(Box<JobInfo>),
    /// How far it is. What was found before was told before.
    Progress {
        scanned: u64,
        total: u64,
        found: usize,
        place: Option<String>,
    },
    /// All was read, or enough was found.
    Over {
        scanned: u64,
        total: u64,
        found: usize,
        place: Option<String>,
    },
    Failed(Problem),
}

/// How often a search says how far it is, if it finds nothing.
const EVERY: Duration = Duration::from_millis(100);

/// A search of a queue of any size, as it goes. It rests while nobody takes what it tells, and ends when it is dropped.
pub(crate) fn told(
    call: &Call,
    scan: Scan,
    most: usize,
) -> Result<impl futures_util::Stream<Item = Told> + Send + use<>, Problem> {
    let app = call.app.clone();
    let searching = app.searches.begin(&call.identity)?;
    let said = None::<tokio::time::Instant>;
    let told = stream::unfold(Some((scan, 0, said)), move |state| {
        let app = app.clone();
        let _ = &searching;
        async move {
            let (mut scan, mut found, mut said) = state?;
            let mut told = Vec::new();
            let at = |scan: &Scan, found| (scan.scanned, scan.total(), found, scan.place());
            // The first word comes at once.
            if said.is_none() {
                let (scanned, total, found, place) = at(&scan, found);
                told.push(Told::Progress {
                    scanned,
                    total,
                    found,
                    place,
                });
                said = Some(tokio::time::Instant::now());
                return Some((stream::iter(told), Some((scan, found, said))));
            }
            // In a task of its own: a turn that was taken ends even if the client reads no further and nobody polls this.
            let step = tokio::spawn(
                async move {
                    let seen = scan.step(&app.searching).await;
                    (scan, seen)
                }
                .in_current_span(),
            );
            let Ok((back, seen)) = AbortOnDropHandle::new(step).await else {
                told.push(Told::Failed(Problem::new(Kind::Failed)));
                return Some((stream::iter(told), None));
            };
            scan = back;
            match seen {
                Err(problem) => {
                    told.push(Told::Failed(problem));
                    return Some((stream::iter(told), None));
                }
                Ok(seen) => {
                    let jobs = seen.into_iter().filter_map(|seen| seen.job);
                    told.extend(jobs.map(|job| Told::Found(Box::new(job))));
                    found += told.len();
                }
            }
            let (scanned, total, found, place) = at(&scan, found);
            if scan.is_over() || found >= most {
                told.push(Told::Over {
                    scanned,
                    total,
                    found,
                    place,
                });
                return Some((stream::iter(told), None));
            }
            if !told.is_empty() || said.is_none_or(|said| said.elapsed() >= EVERY) {
                told.push(Told::Progress {
                    scanned,
                    total,
                    found,
                    place,
                });
                said = Some(tokio::time::Instant::now());
            }
            Some((stream::iter(told), Some((scan, found, said))))
        }
    });
    Ok(told.flatten())
}

/// Where a search goes on: a browser that connects again names the last place that it was told.
pub(crate) fn search_from(call: &Call) -> Option<String> {
    let last = call.headers.get("last-event-id");
    let last = last.and_then(|id| id.to_str().ok()).map(str::to_owned);
    last.or_else(|| call.query.given("from").map(str::to_owned))
}

pub(super) async fn search_stream(call: Call) -> Result<Reply, Problem> {
    let filter = filter_of(&call, "search")?;
    let most = call.query.number::<usize>("limit")?.unwrap_or(ENOUGH);
    if !(1..=10_000).contains(&most) {
        return Err(Problem::invalid("limit must be from 1 to 10000"));
    }
    let from = search_from(&call);
    let scan = Scan::new(&queue(&call)?, filter, from.as_deref()).await?;
    let hidden = call.hidden().to_vec();
    let events = told(&call, scan, most)?.map(move |told| match told {
        Told::Found(job) => Event::json("found", &job_view(*job, &hidden)),
        Told::Progress {
            scanned,
            total,
            found,
            place,
        } => progress("progress", scanned, total, found, place),
        Told::Over {
            scanned,
            total,
            found,
            place,
        } => progress("end", scanned, total, found, place),
        Told::Failed(problem) => Event::new("problem", problem.kind.name()),
    });
    call.app.stream(events)
}

fn progress(
    name: &'static str,
    scanned: u64,
    total: u64,
    found: usize,
    place: Option<String>,
) -> Event {
    let data = json!({"scanned": scanned, "total": total, "found": found, "next": place});
    let mut event = Event::json(name, &data);
    // An empty id at the end: a client that connects again would begin anew.
    event.id = Some(place.unwrap_or_default());
    event
}

pub(super) async fn children(call: Call) -> Result<Reply, Problem> {
    let found = queue(&call)?.inspect();
    let found = found.children::<Box<RawValue>>(job_id(&call)?).await?;
    let children = found.ok_or_else(|| Problem::not_found("job that is not over"))?;
    let hidden = call.hidden();
    let results = children.results.into_iter().map(|child| {
        let (outcome, result, reason) = match child {
            ChildResult::Done(result) => {
                let shown =
                    |result: Box<RawValue>| without(result.get().as_bytes().to_vec(), hidden);
                ("done", result.map(shown), None)
            }
            ChildResult::Failed { reason } => ("failed", None, Some(reason)),
            _ => ("none", None, None),
        };
        Child {
            outcome,
            result,
            reason,
        }
    });
    Ok(Reply::ok(&Children {
        failed: children.failed,
        waiting: children.waiting,
        results: results.collect(),
    }))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use redstart::{Store, messaging::Queue};

    use super::*;
    use crate::{app::App, auth::Identity, call::Query};

    /// The reader of a body decides how often it is polled.
    #[tokio::test]
    async fn a_search_that_nobody_reads_keeps_no_other_from_its_turn() {
        let store = Store::connect("memory://").await.unwrap();
        let app = Arc::new(App::new(&store, crate::Config::default()).unwrap());
        let queue = Queue::new(&store, "n", "q").unwrap();
        queue.enqueue_raw("mail", b"1").await.unwrap();
        let call = Call {
            config: app.config(),
            app: app.clone(),
            identity: Identity::nobody(),
            method: http::Method::GET,
            path: String::new(),
            query: Query::parse("text=1"),
            headers: http::HeaderMap::new(),
            params: Vec::new(),
            body: bytes::Bytes::new(),
            deadline: None,
            logged: Arc::default(),
        };
        let filter = filter_of(&call, "text").unwrap();
        let scan = async || Scan::new(&queue, filter.clone(), None).await.unwrap();
        let mut unread = Box::pin(told(&call, scan().await, 10).unwrap());
        assert!(matches!(unread.next().await, Some(Told::Progress { .. })));
        // It begins its turn, and is not polled any more.
        assert!(unread.next().now_or_never().is_none());
        let mut other = scan().await;
        let turn = other.step(&app.searching);
        let found = tokio::time::timeout(Duration::from_secs(60), turn).await;
        assert_eq!(found.expect("its turn came").unwrap().len(), 1);
        // Nor does one that is dropped in its turn.
        let mut dropped = Box::pin(told(&call, scan().await, 10).unwrap());
        dropped.next().await;
        assert!(dropped.next().now_or_never().is_none());
        drop(dropped);
        let mut other = scan().await;
        let turn = other.step(&app.searching);
        let found = tokio::time::timeout(Duration::from_secs(60), turn).await;
        assert!(found.is_ok());
    }
}
