//! Adding jobs.

use std::time::SystemTime;

use http::StatusCode;
use redstart::messaging::{
    Backoff, ChildFailure, EnqueueRaw, Enqueued, Flow, FlowAdded, JobPolicy, Queue, UniqueUntil,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{open_queue, queue};
use crate::{
    call::{Call, Seconds, decode_segment},
    problem::{Kind, Problem},
    reply::Reply,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewJob {
    /// The name of its kind, which workers ask for.
    kind: String,
    /// Any JSON. Numbers are kept digit by digit.
    #[schemars(with = "serde_json::Value")]
    payload: Box<RawValue>,
    /// Seconds until it may run.
    delay: Option<Seconds>,
    /// When it may run, in seconds since 1970 by the store's clock, instead of `delay`.
    at: Option<Seconds>,
    /// From -1000 to 1000; higher runs earlier.
    #[serde(default)]
    priority: i16,
    /// Seconds that one run may take.
    timeout: Option<Seconds>,
    unique: Option<Unique>,
    debounce: Option<Debounce>,
    throttle: Option<Throttle>,
    /// How many attempts it has in all; otherwise its worker decides.
    attempts: Option<u16>,
    /// The waits between attempts; otherwise its worker decides.
    backoff: Option<Waits>,
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
    /// How long the job holds the key (default `done`).
    until: Option<Until>,
    /// Seconds for which the key is held, whatever becomes of the job, instead of `until`.
    #[serde(rename = "for")]
    period: Option<Seconds>,
    /// If the job that holds the key has not started yet, it gets this payload.
    #[serde(default)]
    replace: bool,
}

/// Runs one job for all that are added with this key, so long after the last of them, with its payload.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Debounce {
    key: String,
    /// In seconds.
    period: Seconds,
}

/// Adds the job unless one was added with this key within the period before.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Throttle {
    key: String,
    /// In seconds.
    period: Seconds,
}

/// The waits between the attempts of a job.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Waits {
    /// Always the same wait, in seconds.
    Fixed(Seconds),
    /// Doubles from `first` up to `most`, in seconds. A wait is a random time between half of that and all of it.
    Exponential { first: Seconds, most: Seconds },
    /// A function that workers of this library have under this name.
    Named(String),
}

/// A job of a flow: it runs when its children are over.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowJob {
    /// The name of its kind, which workers ask for.
    kind: String,
    /// Any JSON. Numbers are kept digit by digit.
    #[schemars(with = "serde_json::Value")]
    payload: Box<RawValue>,
    /// The queue in which it and its children run, of the same namespace (default: its parent's).
    queue: Option<String>,
    /// Jobs that must be over before this one runs.
    #[serde(default)]
    children: Vec<FlowJob>,
    /// What happens to its parent if this job fails for good.
    #[serde(default)]
    on_failure: OnFailure,
    /// From -1000 to 1000; higher runs earlier.
    #[serde(default)]
    priority: i16,
    /// Seconds that one run may take.
    timeout: Option<Seconds>,
    /// How many attempts it has in all; otherwise its worker decides.
    attempts: Option<u16>,
    /// The waits between attempts; otherwise its worker decides.
    backoff: Option<Waits>,
    /// Seconds after which it is not started any more.
    expires: Option<Seconds>,
    /// Seconds for which its result is kept when it is done (default 3600).
    keep: Option<Seconds>,
    /// Groups take turns, so that one with many jobs does not delay the others.
    group: Option<String>,
}

/// What happens to a parent whose child is dead, cancelled or expired.
#[derive(Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum OnFailure {
    /// The parent becomes a dead letter.
    #[default]
    FailParent,
    /// The parent runs, and sees that this one failed.
    Continue,
    /// The parent runs, and does not see this one.
    Ignore,
    /// The parent runs, and is told how many failed; results are not kept. For batches of any size.
    Count,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewFlow {
    job: FlowJob,
    /// Jobs that run one after the other, the first of them when `job` is over.
    #[serde(default)]
    then: Vec<FlowJob>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct AddedFlow {
    /// The job that runs last.
    id: String,
    /// How many jobs were added.
    jobs: u64,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Until {
    Done,
    Started,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Added {
    id: String,
    /// `false` if a job with this unique key was there: `id` is that job's.
    new: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewJobs {
    jobs: Vec<NewJob>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct AddedMany {
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

/// What a job says of how it is run.
struct Policy<'a> {
    priority: i16,
    attempts: Option<u16>,
    backoff: Option<&'a Waits>,
    timeout: Option<Seconds>,
    expires: Option<Seconds>,
    keep: Option<Seconds>,
}

impl Policy<'_> {
    fn make(self) -> Result<JobPolicy, Problem> {
        let mut policy = JobPolicy::new().priority(self.priority);
        if let Some(attempts) = self.attempts {
            policy = policy.attempts(attempts);
        }
        policy = match self.backoff {
            None => policy,
            Some(Waits::Fixed(wait)) => policy.backoff(Backoff::fixed(wait.duration()?)),
            Some(Waits::Exponential { first, most }) => {
                policy.backoff(Backoff::exponential(first.duration()?, most.duration()?))
            }
            Some(Waits::Named(name)) => policy.backoff_named(name),
        };
        if let Some(timeout) = self.timeout {
            policy = policy.timeout(timeout.duration()?);
        }
        if let Some(expires) = self.expires {
            policy = policy.expires_after(expires.duration()?);
        }
        if let Some(keep) = self.keep {
            policy = policy.keep(keep.duration()?);
        }
        Ok(policy)
    }
}

/// A job that can be added.
fn prepare<'a>(queue: &'a Queue, job: &'a NewJob) -> Result<EnqueueRaw<'a>, Problem> {
    let payload = job.payload.get().as_bytes();
    let policy = Policy {
        priority: job.priority,
        attempts: job.attempts,
        backoff: job.backoff.as_ref(),
        timeout: job.timeout,
        expires: job.expires,
        keep: job.keep,
    };
    let mut adding = queue.enqueue_raw(&job.kind, payload).policy(policy.make()?);
    let times = [
        job.delay.is_some(),
        job.at.is_some(),
        job.debounce.is_some(),
    ];
    if times.into_iter().filter(|given| *given).count() > 1 {
        return Err(Problem::invalid("give one of delay, at and debounce"));
    }
    let keys = [
        job.unique.is_some(),
        job.debounce.is_some(),
        job.throttle.is_some(),
    ];
    if keys.into_iter().filter(|given| *given).count() > 1 {
        return Err(Problem::invalid(
            "give one of unique, debounce and throttle",
        ));
    }
    if let Some(delay) = job.delay {
        adding = adding.delay(delay.duration()?);
    }
    if let Some(at) = job.at {
        adding = adding.at(SystemTime::UNIX_EPOCH + at.moment()?);
    }
    if let Some(group) = &job.group {
        adding = adding.group(group);
    }
    if let Some(unique) = &job.unique {
        adding = adding.unique(&unique.key, unique.until()?);
        if unique.replace {
            adding = adding.replace_waiting();
        }
    }
    if let Some(debounce) = &job.debounce {
        adding = adding.debounce(&debounce.key, debounce.period.duration()?);
    }
    if let Some(throttle) = &job.throttle {
        adding = adding.throttle(&throttle.key, throttle.period.duration()?);
    }
    adding.check()?;
    Ok(adding)
}

impl Unique {
    fn until(&self) -> Result<UniqueUntil, Problem> {
        match (self.until, self.period) {
            (None | Some(Until::Done), None) => Ok(UniqueUntil::Done),
            (Some(Until::Started), None) => Ok(UniqueUntil::Started),
            (None, Some(period)) => Ok(UniqueUntil::For(period.duration()?)),
            (Some(_), Some(_)) => Err(Problem::invalid("give `until` or `for`, not both")),
        }
    }
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

pub(super) async fn enqueue(call: Call) -> Result<Reply, Problem> {
    let job: NewJob = call.json()?;
    let added = added(prepare(&queue(&call)?, &job)?.await?)?;
    let status = if added.new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(Reply::json(status, &added))
}

/// The flow of a job, and how many jobs it has.
fn flow_of(call: &Call, namespace: &str, job: FlowJob) -> Result<(Flow, u64), Problem> {
    let policy = Policy {
        priority: job.priority,
        attempts: job.attempts,
        backoff: job.backoff.as_ref(),
        timeout: job.timeout,
        expires: job.expires,
        keep: job.keep,
    };
    let mut flow = Flow::raw(&job.kind, job.payload.get().as_bytes())?.policy(policy.make()?);
    flow = flow.on_failure(match job.on_failure {
        OnFailure::FailParent => ChildFailure::FailParent,
        OnFailure::Continue => ChildFailure::Continue,
        OnFailure::Ignore => ChildFailure::Ignore,
        OnFailure::Count => ChildFailure::Count,
    });
    if let Some(group) = &job.group {
        flow = flow.group(group);
    }
    if let Some(name) = &job.queue {
        // The same rules as for a name in a path.
        let name = decode_segment(&crate::page::encoded(name), call.config.limits.name)?;
        flow = flow.queue(&open_queue(&call.app.store, namespace, &name)?);
    }
    let mut jobs = 1;
    // As deep as JSON may be nested.
    for child in job.children {
        let (child, more) = flow_of(call, namespace, child)?;
        flow = flow.child(child);
        jobs += more;
    }
    Ok((flow, jobs))
}

pub(super) async fn add_flow(call: Call) -> Result<Reply, Problem> {
    let body: NewFlow = call.json()?;
    if body.then.len() >= 64 {
        return Err(Problem::invalid("a flow must have at most 64 levels"));
    }
    let (namespace, queue) = (call.namespace()?, queue(&call)?);
    let (mut flow, mut jobs) = flow_of(&call, &namespace, body.job)?;
    for next in body.then {
        let (next, more) = flow_of(&call, &namespace, next)?;
        flow = next.child(flow);
        jobs += more;
    }
    match queue.add_flow(flow).await? {
        FlowAdded::Full => Err(Problem::new(Kind::Conflict).detail("the queue is full")),
        FlowAdded::Added(id) => Ok(Reply::json(
            StatusCode::CREATED,
            &AddedFlow {
                id: id.to_string(),
                jobs,
            },
        )),
    }
}

pub(super) async fn enqueue_many(call: Call) -> Result<Reply, Problem> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
