//! Dead letters that are enqueued again, or deleted.

use std::time::Duration;

use redstart::messaging::{DeadLetter, JobId, JobState, Queue, normalized_error};

use super::{
    Plan, given, one,
    queue::{back, v1},
};
use crate::{
    api::{count_letters, open_queue},
    call::{Call, Query},
    page::Shell,
    problem::{Kind, Problem},
};

/// The letters of a group.
fn wanted(form: &Query) -> Result<impl Fn(&DeadLetter) -> bool, Problem> {
    let group = form.given("group").map(str::to_owned);
    let group = group.ok_or_else(|| Problem::invalid("letter or group is missing"))?;
    Ok(move |dead: &DeadLetter| normalized_error(&dead.reason) == group)
}

/// Dead letters that one request looks through.
const MOST_LETTERS: u64 = 20_000;

async fn how_many(queue: &Queue, form: &Query) -> Result<u64, Problem> {
    if form.given("letter").is_some() {
        // What is no letter's id is none of the letters.
        let Ok(Some(letter)) = one_letter(form) else {
            return Ok(0);
        };
        return Ok(u64::from(letter.is_there(queue).await?));
    }
    let inspect = queue.inspect();
    if inspect.counts().await?.dead > MOST_LETTERS {
        return Err(Problem::new(Kind::Conflict).detail(
            "there are too many dead letters for one request; change them on the page \"Change many dead letters\"",
        ));
    }
    count_letters(&inspect.dead_letters(), wanted(form)?).await
}

/// One death of a job.
struct Letter {
    job: JobId,
    /// When it died.
    at: Duration,
}

impl Letter {
    /// Whether the job is still dead of it. A job that was retried and failed again has another letter, with another error.
    async fn is_there(&self, queue: &Queue) -> Result<bool, Problem> {
        let found = queue.job(self.job).await?;
        Ok(found
            .is_some_and(|found| found.job.state == JobState::Dead && found.ended == Some(self.at)))
    }
}

/// The letter that an action is about, if it is about one.
fn one_letter(form: &Query) -> Result<Option<Letter>, Problem> {
    let Some(letter) = form.given("letter") else {
        return Ok(None);
    };
    let parsed = letter.split_once('-').and_then(|(at, id)| {
        Some(Letter {
            job: id.parse().ok()?,
            at: Duration::from_micros(at.parse().ok()?),
        })
    });
    parsed
        .map(Some)
        .ok_or_else(|| Problem::invalid("this is not the id of a dead letter"))
}

pub(super) async fn plan(
    call: &Call,
    shell: &Shell,
    action: &str,
    form: &Query,
) -> Result<Plan, Problem> {
    let ns = &shell.namespace;
    let queue_of_letters = open_queue(&call.app.store, ns, given(form, "queue")?)?;
    let count = how_many(&queue_of_letters, form).await?;
    let body = match (form.given("letter"), form.given("group")) {
        (Some(letter), _) => serde_json::json!({"letters": [letter]}),
        (None, group) => serde_json::json!({"group": group}),
    };
    let body = Some(body.to_string());
    Ok(match action {
        "replay" => Plan::new(
            "Retry dead letters",
            format!("{count} dead letters are enqueued again, with all their attempts."),
            count,
            back(form, "/dead"),
            Some(("POST", v1(form, "/dead:replay"), body)),
        ),
        _ => Plan::new(
            "Delete dead letters",
            format!("{count} dead letters are deleted. This cannot be undone."),
            count,
            back(form, "/dead"),
            Some(("POST", v1(form, "/dead:purge"), body)),
        ),
    })
}

pub(super) async fn perform(queue: &Queue, action: &str, form: &Query) -> Result<u64, Problem> {
    let letter = one_letter(form)?;
    if let Some(letter) = &letter
        && !letter.is_there(queue).await?
    {
        return one(false);
    }
    let letters = queue.inspect().dead_letters();
    let done = match (action, letter) {
        ("replay", Some(letter)) => letters.replay_many(&[letter.job]).await?,
        ("replay", None) => letters.replay(wanted(form)?).await?,
        (_, Some(letter)) => letters.purge_many(&[letter.job]).await?,
        (_, None) => letters.purge(wanted(form)?).await?,
    };
    Ok(done)
}
