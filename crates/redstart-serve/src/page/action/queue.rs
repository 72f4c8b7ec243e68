//! Changes of queues, jobs and dead letters by hand.

use redstart::messaging::{Cancelled, JobId};

use super::{Plan, dead_letter, given, one};
use crate::{
    api::open_queue,
    call::{Call, Query},
    page::{Shell, layout::encode},
    problem::Problem,
};

/// The page of the queue, where the browser goes afterwards.
pub(super) fn back(form: &Query, rest: &str) -> String {
    form.given("queue")
        .map(|name| format!("/queues/{}{rest}", encode(name)))
        .unwrap_or("/queues".to_owned())
}

/// The queue's path in the API.
pub(super) fn v1(form: &Query, rest: &str) -> String {
    format!(
        "/v1/queues/{}{rest}",
        encode(form.given("queue").unwrap_or_default())
    )
}

/// A table with one entry per action.
pub(super) async fn plan(
    call: &Call,
    shell: &Shell,
    action: &str,
    form: &Query,
) -> Result<Plan, Problem> {
    let queue = |rest: &str| back(form, rest);
    let v1 = |rest: String| v1(form, &rest);
    Ok(match action {
        "pause" => {
            let name = given(form, "queue")?;
            Plan::new(
                "Pause the queue",
                format!("Workers of {name} get no more jobs. Running jobs finish."),
                1,
                queue(""),
                Some(("POST", v1(":pause".into()), None)),
            )
        }
        "resume" => {
            let name = given(form, "queue")?;
            Plan::new(
                "Resume the queue",
                format!("Workers of {name} get jobs again."),
                1,
                queue(""),
                Some(("POST", v1(":resume".into()), None)),
            )
        }
        "run-now" => {
            let job = given(form, "job")?;
            Plan::new(
                "Run the job now",
                format!("The delayed job {job} becomes ready now."),
                1,
                queue("?state=ready"),
                Some(("POST", v1(format!("/jobs/{job}:run-now")), None)),
            )
        }
        "delete" => {
            let job = given(form, "job")?;
            Plan::new(
                "Delete the job",
                format!(
                    "The job {job} is deleted and its unique key is free. This cannot be undone."
                ),
                1,
                queue(""),
                Some(("DELETE", v1(format!("/jobs/{job}")), None)),
            )
        }
        "cancel" => {
            let job = given(form, "job")?;
            Plan::new(
                "Cancel the job",
                format!(
                    "The job {job} will not be tried again. If it runs, its worker is told to stop."
                ),
                1,
                queue(""),
                Some(("POST", v1(format!("/jobs/{job}:cancel")), None)),
            )
        }
        "add" => {
            let name = given(form, "queue")?;
            Plan::new(
                "Add a job",
                format!("A job is added to {name}."),
                1,
                queue("?state=ready"),
                Some(("POST", v1("/jobs".into()), None)),
            )
        }
        "replay" | "purge" => return dead_letter::plan(call, shell, action, form).await,
        _ => return Err(Problem::not_found("action")),
    })
}

pub(super) async fn perform(
    call: &Call,
    shell: &Shell,
    action: &str,
    form: &Query,
) -> Result<u64, Problem> {
    let (store, ns) = (&call.app.store, &shell.namespace);
    let queue = || Ok::<_, Problem>(open_queue(store, ns, given(form, "queue")?)?);
    match action {
        "pause" => queue()?.pause().await?,
        "resume" => queue()?.resume().await?,
        "run-now" => {
            return one(queue()?
                .inspect()
                .run_now(given(form, "job")?.parse::<JobId>()?)
                .await?);
        }
        "cancel" => {
            let cancelled = queue()?
                .cancel(given(form, "job")?.parse::<JobId>()?)
                .await?;
            return one(cancelled != Cancelled::NotFound);
        }
        "delete" => {
            return one(queue()?
                .inspect()
                .delete(given(form, "job")?.parse::<JobId>()?)
                .await?);
        }
        "add" => {
            let queue = queue()?;
            let payload = given(form, "payload")?.as_bytes();
            return one(queue
                .enqueue_raw(given(form, "kind")?, payload)
                .await?
                .is_new());
        }
        "replay" | "purge" => return dead_letter::perform(&queue()?, action, form).await,
        _ => return Err(Problem::not_found("action")),
    }
    Ok(1)
}
