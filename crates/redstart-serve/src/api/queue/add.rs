//! Adding jobs.

use http::StatusCode;
use redstart::messaging::{EnqueueRaw, Enqueued, JobPolicy, Queue, UniqueUntil};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::queue;
use crate::{
    call::{Call, Seconds},
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
