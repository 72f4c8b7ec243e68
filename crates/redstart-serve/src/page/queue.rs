//! Queues, their jobs and their dead letters.

mod dead;
mod job;
mod search;

pub(super) use dead::dead;
pub(super) use job::job;
pub(super) use search::{scanned_of, search, search_rows};

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use maud::{Markup, html};
use redstart::messaging::{JobInfo, JobState, Queue, QueueCounts};

use super::{
    Shell,
    layout::{covered, curl, empty, encode, live, span, tile},
};
use crate::{
    api::{open_queue, parse_state},
    call::Call,
    chart::{lines, shares},
    pretty::brief,
    problem::Problem,
    reply::Reply,
    scan::count_of,
};
use search::search_form;

/// Queues whose counts are asked for at the same time.
const AT_ONCE: usize = 16;
pub(super) const STATES: [&str; 7] = [
    "ready", "delayed", "running", "parked", "waiting", "done", "dead",
];

pub(super) fn queue_of(call: &Call, shell: &Shell, name: &str) -> Result<Queue, Problem> {
    Ok(open_queue(&call.app.store, &shell.namespace, name)?)
}

pub(super) async fn list(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let names = shell.inventory.names(&shell.namespace, "queue").take(200);
    let now = call.app.now().await;
    let look = |name: String, queue: Result<Queue, Problem>| async move {
        let inspect = match queue {
            Ok(queue) => queue.inspect(),
            Err(problem) => return (name, Err(problem)),
        };
        let looked = tokio::try_join!(inspect.counts(), inspect.oldest());
        (name, looked.map_err(Problem::from))
    };
    let looks = names.map(|name| look(name.to_owned(), queue_of(&call, &shell, name)));
    let looks: Vec<_> = looks.collect();
    let mut rows = Vec::new();
    let (mut failure, mut answered) = (None, false);
    let mut looked = stream::iter(looks).buffered(AT_ONCE);
    while let Some((name, look)) = looked.next().await {
        answered |= look.is_ok();
        // A queue whose part of a Cluster is down does not hide the others.
        let found = look.map_err(|problem| failure.get_or_insert(problem).kind);
        rows.push((name, found.ok()));
    }
    if let (Some(problem), false) = (failure, answered) {
        return Err(problem);
    }
    let sampler = &call.app.sampler;
    let foreign = super::foreign::card(&call, &shell).await;
    let body = html! {
        section.card {
            @if rows.is_empty() { (empty("No queues in this namespace.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Queue" } th.num { "Ready" } th.num { "Running" } th.num { "Delayed" } th.num { "Parked" } th.num { "Dead" } th.num { "Workers" } th { "Oldest ready" } th { "State" } th { span.muted { "Ready, running, dead" } } } }
                tbody { @for (name, found) in &rows { tr {
                    td { a href=(shell.link(&format!("/queues/{}", encode(name)))) { strong { (name) } } }
                    @if let Some((counts, oldest)) = found {
                    td.num { (counts.ready) } td.num { (counts.running) } td.num { (counts.delayed) } td.num { (counts.parked) }
                    td.num { @if counts.dead > 0 { a href=(shell.link(&format!("/queues/{}/dead", encode(name)))) { (counts.dead) } } @else { "0" } }
                    td.num { (counts.workers) }
                    td { (age(*oldest, now.as_ref().ok())) }
                    td { (state_tag(counts)) }
                    td { (shares(name, &[("ready", counts.ready), ("running", counts.running), ("dead", counts.dead)])) }
                    } @else { td colspan="7" { "–" } td { span.tag.bad { "has not answered" } } td {} }
                } } }
            } } }
        }
        div.grid { @for (name, _) in rows.iter().take(6) {
            section.card {
                h2 { a href=(shell.link(&format!("/queues/{}", encode(name)))) { (name) } }
                (history(sampler, &shell.namespace, name))
            }
        } }
        (foreign)
    };
    Ok(shell.page(
        "/queues",
        "Queues",
        html! { "Jobs that workers run" },
        live(&call, body),
    ))
}

/// How long the job has waited that became ready at this time.
fn age(ready: Option<Duration>, now: Option<&Duration>) -> String {
    match (ready, now) {
        (Some(ready), Some(now)) => span(now.saturating_sub(ready)),
        _ => "–".to_owned(),
    }
}

fn state_tag(counts: &QueueCounts) -> Markup {
    html! {
        @if counts.paused { span.tag.warn { "paused" } }
        @else if counts.ready > 0 && counts.workers == 0 { span.tag.bad { "no workers" } }
        @else if counts.dead > 0 { span.tag.warn { "dead letters" } }
        @else { span.tag.good { "healthy" } }
    }
}

fn history(sampler: &crate::sampler::Sampler, namespace: &str, name: &str) -> Markup {
    let of = |read: fn(&QueueCounts) -> u64| sampler.queue(namespace, name, read);
    let ready = of(|c| c.ready);
    let covered = covered(ready.len());
    lines(
        &format!("Jobs of {name}"),
        &[
            ("ready", ready),
            ("running", of(|c| c.running)),
            ("dead", of(|c| c.dead)),
        ],
        &covered,
    )
}

pub(super) fn crumb(shell: &Shell, name: &str) -> Markup {
    html! { a href=(shell.link("/queues")) { "Queues" } " / " a href=(shell.link(&format!("/queues/{}", encode(name)))) { (name) } }
}

fn jobs_table(shell: &Shell, call: &Call, queue: &str, jobs: &[JobInfo], now: Duration) -> Markup {
    html! {
        div.scroll tabindex="0" { table {
            thead { tr { th { "Job" } th { "Kind" } th { "Payload" } th.num { "Attempts" } th { "Due" } th { span.muted { "Progress" } } th { "Actions" } } }
            tbody { @for job in jobs { (job_row(shell, &call.config.redact, queue, job, now)) } }
        } }
    }
}

fn job_row(shell: &Shell, hidden: &[String], queue: &str, job: &JobInfo, now: Duration) -> Markup {
    let id = job.id.to_string();
    let waits = !job.state.is_over() && job.state != JobState::Running;
    html! {
        tr data-job=(id) {
            td { a.mono href=(shell.link(&format!("/queues/{}/jobs/{id}", encode(queue)))) { (&id[..12]) } }
            td { (job.name) @if job.priority != 0 { " " span.tag { "priority " (job.priority) } } }
            td.wide.mono { (brief(&String::from_utf8_lossy(&job.payload), hidden, 90)) }
            td.num { (job.attempts) }
            td { (due(job.due, now)) }
            td { @if let Some(progress) = job.progress { (format!("{:.0} %", progress * 100.0)) } }
            td.acts {
                @if job.state == JobState::Delayed { (shell.act("queue.run-now", "Run now", &[("queue", queue), ("job", &id)])) }
                @if waits { (shell.act("queue.delete", "Delete", &[("queue", queue), ("job", &id)])) }
            }
        }
    }
}

fn due(due: Duration, now: Duration) -> String {
    match due.checked_sub(now) {
        Some(left) => format!("in {}", span(left)),
        None => format!("{} ago", span(now.saturating_sub(due))),
    }
}

pub(super) async fn page(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let name = call.param("name").to_owned();
    let queue = queue_of(&call, &shell, &name)?;
    let counts = queue.inspect().counts().await?;
    let state = call
        .query
        .given("state")
        .unwrap_or(if counts.running > 0 {
            "running"
        } else {
            "ready"
        })
        .to_owned();
    let parsed = parse_state(&state)?;
    let mut jobs = match parsed {
        // They have a page of their own.
        JobState::Dead => Vec::new(),
        parsed => queue.inspect().list(parsed, None).await?.0,
    };
    jobs.truncate(50);
    let crons = queue.cron_entries().await?;
    let oldest = queue.inspect().oldest().await?;
    let now = call.app.now().await?;
    let at = encode(&name);
    let count = |state: &str| parse_state(state).map_or(0, |state| count_of(&counts, state));
    let body = html! {
        div.tiles {
            (tile("Ready", counts.ready, "")) (tile("Running", counts.running, "")) (tile("Delayed", counts.delayed, ""))
            (tile("Parked", counts.parked, "no worker knows them")) (tile("Dead", counts.dead, "")) (tile("Workers", counts.workers, ""))
            (tile("Oldest ready", age(oldest, Some(&now)), "has waited so long"))
        }
        div.grid {
            section.card { h2 { "Jobs over time" } (history(&call.app.sampler, &shell.namespace, &name)) }
            (throughput(&queue, now).await?)
            section.card {
                h2 { "Operate " (state_tag(&counts)) }
                p {
                    @if counts.paused { (shell.act("queue.resume", "Resume", &[("queue", &name)])) }
                    @else { (shell.act("queue.pause", "Pause", &[("queue", &name)])) }
                    (shell.act("queue.add", "Add a job", &[("queue", &name)]))
                    a.button.small href=(shell.link(&format!("/queues/{at}/dead"))) { "Dead letters (" (counts.dead) ")" }
                }
                @if crons.is_empty() { (empty("No schedules.")) }
                @else { div.scroll tabindex="0" { table {
                    thead { tr { th { "Schedule" } th { "Cron" } th { "Zone" } th { "Next" } } }
                    tbody { @for cron in &crons { tr {
                        td { (cron.id) } td.mono { (cron.expression) } td { (cron.time_zone) }
                        td { @match cron.next { Some(next) => (due(next, now)), None => "never" } }
                    } } }
                } } }
                (curl(&shell, "GET", &format!("/v1/queues/{at}"), None))
            }
        }
        section.card {
            h2 { "Jobs" }
            p { @for name in STATES.into_iter().filter(|name| *name != "dead") {
                a class=(if name == state { "button small primary" } else { "button small" })
                    href=(shell.link(&format!("/queues/{at}?state={name}"))) aria-current=[(name == state).then_some("true")] { (name) " " (count(name)) } " "
            } }
            @if jobs.is_empty() { (empty("No jobs in this state.")) } @else { (jobs_table(&shell, &call, &name, &jobs, now)) }
            @if shell.may_act() { p { a.button.small href=(shell.link(&format!("/queues/{at}/bulk?state={state}"))) { "Change many jobs" } } }
        }
    };
    let body = html! {
        (search_form(&shell, &name, None))
        (live(&call, body))
    };
    Ok(shell.page("/queues", &name, crumb(&shell, &name), body))
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What was done and what failed in each of the last 30 minutes, and how long it took.
async fn throughput(queue: &Queue, now: Duration) -> Result<Markup, Problem> {
    let shown = Duration::from_secs(30 * 60);
    let history = queue.inspect().recent_history(shown).await?;
    let this = now.as_secs() / 60;
    let (mut done, mut failed) = (vec![0.0; 30], vec![0.0; 30]);
    let (mut wait, mut run) = (
        None::<redstart::messaging::Spread>,
        None::<redstart::messaging::Spread>,
    );
    for minute in &history {
        let back = this.saturating_sub(minute.at.as_secs() / 60) as usize;
        if back < 30 {
            done[29 - back] += minute.done as f64;
            failed[29 - back] += minute.failed as f64;
            wait.get_or_insert_default().merge(&minute.wait);
            run.get_or_insert_default().merge(&minute.run);
        }
    }
    let share = |spread: &Option<redstart::messaging::Spread>, share: f64| {
        let time = spread.as_ref().and_then(|spread| spread.percentile(share));
        time.map_or("–".to_owned(), |time| format!("≤ {}", span(time)))
    };
    Ok(html! {
        section.card {
            h2 { "Runs per minute" }
            (lines("Runs per minute", &[("done", done), ("failed", failed)], "30 min"))
            div.scroll tabindex="0" { table {
                thead { tr { th { "Last 30 minutes" } th.num { "Half" } th.num { "95 %" } th.num { "99 %" } } }
                tbody {
                    tr { td { "Waited" } td.num { (share(&wait, 0.5)) } td.num { (share(&wait, 0.95)) } td.num { (share(&wait, 0.99)) } }
                    tr { td { "Ran" } td.num { (share(&run, 0.5)) } td.num { (share(&run, 0.95)) } td.num { (share(&run, 0.99)) } }
                }
            } }
        }
    })
}
