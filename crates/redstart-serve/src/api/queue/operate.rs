//! Operating a queue: cancelling, pausing, and what becomes of dead letters.

use redstart::messaging::{Cancelled, normalized_error};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    look::{Job, job_id, job_view},
    queue,
};
use crate::{
    call::Call,
    problem::{Kind, Problem},
    reply::Reply,
};

#[derive(Serialize, JsonSchema)]
pub(super) struct Done {
    pub(super) done: bool,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct CancelledReply {
    /// ended: it waited and will not run. told: it runs, and its worker was told.
    cancelled: &'static str,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct DeadLetters {
    letters: Vec<DeadLetter>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct DeadLetter {
    letter: String,
    error: String,
    /// In seconds since 1970.
    at: f64,
    job: Option<Job>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Letters {
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
pub(super) struct Changed {
    count: u64,
    dry_run: bool,
}

pub(super) async fn cancel(call: Call) -> Result<Reply, Problem> {
    let cancelled = match queue(&call)?.cancel(job_id(&call)?).await? {
        Cancelled::Ended => "ended",
        Cancelled::Told => "told",
        Cancelled::NotFound => return Err(Problem::not_found("job that is not over")),
    };
    operated(&call, "queue.cancel", true).await?;
    Ok(Reply::ok(&CancelledReply { cancelled }))
}

/// Writes a change of one job, or of a queue, to the audit log.
pub(super) async fn operated(call: &Call, what: &str, done: bool) -> Result<Reply, Problem> {
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

pub(super) async fn run_now(call: Call) -> Result<Reply, Problem> {
    let done = queue(&call)?.inspect().run_now(job_id(&call)?).await?;
    operated(&call, "queue.run-now", done).await
}

pub(super) async fn delete(call: Call) -> Result<Reply, Problem> {
    let done = queue(&call)?.inspect().delete(job_id(&call)?).await?;
    operated(&call, "queue.delete", done).await
}

pub(super) async fn pause(call: Call) -> Result<Reply, Problem> {
    queue(&call)?.pause().await?;
    operated(&call, "queue.pause", true).await
}

pub(super) async fn resume(call: Call) -> Result<Reply, Problem> {
    queue(&call)?.resume().await?;
    operated(&call, "queue.resume", true).await
}

pub(super) async fn dead(call: Call) -> Result<Reply, Problem> {
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

pub(super) async fn replay(call: Call) -> Result<Reply, Problem> {
    act_on_letters(call, "queue.replay").await
}

pub(super) async fn purge(call: Call) -> Result<Reply, Problem> {
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
    // Every error contains the empty text.
    let given = [&body.error, &body.group];
    if given.into_iter().flatten().any(String::is_empty) {
        return Err(Problem::invalid(
            "`error` and `group` must not be empty; leave them out instead",
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
                .is_none_or(|group| normalized_error(&letter.reason) == *group)
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
