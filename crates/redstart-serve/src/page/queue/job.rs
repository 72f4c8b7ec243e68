//! A job, and the flow that it is in.

use std::time::Duration;

use maud::{Markup, html};
use redstart::messaging::{ChildResult, Children, JobDetails, JobId, JobInfo, JobState};
use serde_json::value::RawValue;

use super::{crumb, due, queue_of};
use crate::{
    api::state_name,
    call::Call,
    page::{
        Shell,
        layout::{curl, encode, live, moment, span, tile},
    },
    pretty::{brief, pretty},
    problem::Problem,
    reply::Reply,
};

pub(in crate::page) async fn job(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let name = call.param("name").to_owned();
    let queue = queue_of(&call, &shell, &name)?;
    let id = call.param("id").parse::<JobId>()?;
    let found = queue.job(id).await?;
    let details = found.ok_or_else(|| Problem::not_found("job; it may have ended too long ago"))?;
    let now = call.app.now().await?;
    // A job may have very many children: they are read when the page is opened, and not again while it is open.
    let is_tick = call.headers.contains_key("hx-request");
    let children = match details.job.state {
        JobState::Waiting | JobState::Ready | JobState::Running if !is_tick => {
            queue.inspect().children::<Box<RawValue>>(id).await?
        }
        _ => None,
    };
    let (id, job) = (id.to_string(), &details.job);
    let payload = String::from_utf8_lossy(&job.payload).into_owned();
    let one = [("queue", name.as_str()), ("job", id.as_str())];
    let body = html! {
        div.tiles {
            (tile("State", state_name(job.state), if job.to_be_cancelled { "to be cancelled" } else { "" }))
            (tile("Kind", &job.name, ""))
            (tile("Attempts", job.attempts, "charged so far"))
            (tile("Priority", job.priority, ""))
            (tile("Due", due(job.due, now), ""))
            @if let Some(progress) = job.progress { (tile("Progress", format!("{:.0} %", progress * 100.0), "")) }
        }
        @if let Some(reason) = &details.reason { p.note.bad { (reason) } }
        div.grid {
            section.card {
                h2 { "Payload" }
                pre { (pretty(&payload, &call.config.redact)) }
                p {
                    @if job.state == JobState::Delayed { (shell.act("queue.run-now", "Run now", &one)) }
                    @if !job.state.is_over() { (shell.act("queue.cancel", "Cancel", &one)) }
                    @if !job.state.is_over() && job.state != JobState::Running { (shell.act("queue.delete", "Delete", &one)) }
                    (shell.act("queue.add", "Edit and enqueue again", &one))
                }
            }
            @if let Some(result) = details.result.as_ref().filter(|result| !result.is_empty()) {
                section.card { h2 { "Result" } pre { (pretty(&String::from_utf8_lossy(result), &call.config.redact)) } }
            }
        }
        (timeline(&details, now))
        section.card {
            h2 { "Record" }
            div.scroll tabindex="0" { table { tbody {
                tr { th { "Id" } td.mono { (id) } }
                tr { th { "Unique key" } td { (job.unique.as_deref().unwrap_or("none")) } }
                tr { th { "Group" } td { (job.group.as_deref().unwrap_or("none")) } }
                @if let Some(parent) = job.parent { tr { th { "Parent" } td.mono { (parent_link(&call, &shell, &name, job, parent)) } } }
            } } }
            (curl(&shell, "GET", &format!("/v1/queues/{}/jobs/{id}", encode(&name)), None))
        }
    };
    let body = html! {
        (live(&call, body))
        @if let Some(children) = children.filter(|children| !children.results.is_empty()) {
            (flow(&call, &shell, &name, job, &children))
        }
    };
    Ok(shell.page(
        "/queues",
        &format!("Job {}", &id[..12]),
        crumb(&shell, &name),
        body,
    ))
}

/// When the job was added, ran and ended, and what it has logged.
fn timeline(details: &JobDetails, now: Duration) -> Markup {
    let job = &details.job;
    html! {
        section.card {
            h2 { "Timeline" }
            div.scroll tabindex="0" { table {
                thead { tr { th { "When" } th { "What" } th { "Took" } th { "Worker" } } }
                tbody {
                    tr { td { (moment(job.created)) } td { "added" } td {} td {} }
                    @for attempt in &details.attempts { tr {
                        td { (moment(attempt.started)) }
                        td.wide { @match &attempt.error { Some(error) => { span.tag.bad { "failed" } " " (error) } None => { span.tag.good { "done" } } } }
                        td { (span(attempt.ended.saturating_sub(attempt.started))) }
                        td.mono { (attempt.worker.chars().take(12).collect::<String>()) }
                    } }
                    @if let Some(started) = job.started { tr { td { (moment(started)) } td { "runs" } td { (span(now.saturating_sub(started))) } td.mono { (job.worker.as_deref().unwrap_or_default().chars().take(12).collect::<String>()) } } }
                    @if let Some(ended) = details.ended { tr { td { (moment(ended)) } td { (state_name(job.state)) } td {} td {} } }
                }
            } }
            @if !details.log.is_empty() { h2 { "Log" } pre { (details.log.join("\n")) } }
        }
    }
}

/// The job that waits for this one, which may be in another queue and another namespace.
fn parent_link(call: &Call, shell: &Shell, queue: &str, job: &JobInfo, parent: JobId) -> Markup {
    let away = job.parent_queue.as_ref();
    let (namespace, queue) = match away {
        Some((namespace, queue)) => (namespace.as_str(), queue.as_str()),
        None => (shell.namespace.as_str(), queue),
    };
    let at = format!("/queues/{}/jobs/{parent}", encode(queue));
    html! {
        @if call.identity.may_use(namespace).is_ok() {
            a href=(format!("{}{at}?namespace={}", shell.base, encode(namespace))) { (parent.to_string()) }
        } @else { (parent.to_string()) }
        @if away.is_some() { " in " (queue) }
    }
}

/// The flow around a job that has children: its parent, and what became of each child.
fn flow(
    call: &Call,
    shell: &Shell,
    queue: &str,
    job: &JobInfo,
    children: &Children<Box<RawValue>>,
) -> Markup {
    let hidden = &call.config.redact;
    let shown = children.results.iter().take(200);
    let of_all = children.results.len() as u64;
    html! {
        section.card {
            h2 { "Flow" }
            p {
                @if let Some(parent) = job.parent { span.mono { (parent_link(call, shell, queue, job, parent)) } " waits for this job. " }
                "This job has " (of_all) " children: " (children.waiting) " are not over, " (children.failed) " have failed."
            }
            div.scroll tabindex="0" { table {
                thead { tr { th.num { "Child" } th { "Outcome" } th { "Result" } } }
                tbody { @for (number, child) in shown.enumerate() { tr {
                    td.num { (number + 1) }
                    @match child {
                        ChildResult::Done(result) => {
                            td { span.tag.good { "done" } }
                            td.wide.mono { @if let Some(result) = result { (brief(result.get(), hidden, 160)) } }
                        }
                        ChildResult::Failed { reason } => { td { span.tag.bad { "failed" } } td.wide { (reason) } }
                        _ => { td { span.tag { "not over, or ignored" } } td {} }
                    }
                } } }
            } }
            @if of_all > 200 { p.muted { "The first 200 are shown." } }
        }
    }
}
