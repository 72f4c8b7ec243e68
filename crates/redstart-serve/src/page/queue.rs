//! Queues, their jobs and their dead letters.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{StreamExt as _, stream};
use maud::{Markup, html};
use redstart::messaging::{
    ChildResult, Children, DeadLetter, JobId, JobInfo, JobState, Queue, QueueCounts,
    normalized_error,
};
use serde_json::value::RawValue;

use super::{
    Shell,
    layout::{covered, curl, empty, encode, live, moment, span, tile},
};
use crate::{
    api::{Told, open_queue, parse_state, search as search_step, search_from, state_name, told},
    call::Call,
    chart::{lines, shares},
    pretty::{brief, pretty},
    problem::Problem,
    reply::{Event, Reply},
    scan::{Filter, Scan, count_of},
};

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

/// The fields of a search, with what they had.
fn search_form(shell: &Shell, name: &str, filter: Option<&Filter>) -> Markup {
    let value = |read: fn(&Filter) -> &Option<String>| {
        filter
            .and_then(|filter| read(filter).clone())
            .unwrap_or_default()
    };
    let state = filter.map_or("ready", |filter| state_name(filter.state));
    html! {
        form.row method="get" action=(format!("{}/queues/{}/search", shell.base, encode(name))) {
            input type="hidden" name="namespace" value=(shell.namespace);
            label { "Search in payloads" input type="search" name="text" value=(value(|f| &f.text)) required; }
            label { "State" select name="state" { @for name in STATES { option value=(name) selected[name == state] { (name) } } } }
            label { "Kind" input name="kind" value=(value(|f| &f.kind)); }
            button type="submit" { "Search" }
        }
    }
}

/// What a page of a search reads before it is sent. A browser with JavaScript goes on from there by itself.
const FIRST: u64 = 2000;
const FIRST_TIME: Duration = Duration::from_millis(150);
/// A search in the page stops when it has found so many.
const SHOWN: usize = 100;

fn filter_of(call: &Call) -> Result<Filter, Problem> {
    let given = |name: &str| call.query.given(name).map(str::to_owned);
    let filter = Filter {
        state: parse_state(call.query.given("state").unwrap_or("ready"))?,
        kind: given("kind"),
        error: given("error"),
        group: None,
        text: given("text"),
        hidden: call.hidden().to_vec(),
    };
    filter.check()?;
    Ok(filter)
}

/// The query of a search that goes on from a place.
fn search_query(filter: &Filter, from: &str) -> String {
    let mut query = format!("state={}&from={}", state_name(filter.state), encode(from));
    let parts = [
        ("text", &filter.text),
        ("kind", &filter.kind),
        ("error", &filter.error),
    ];
    for (name, value) in parts {
        if let Some(value) = value {
            query += &format!("&{name}={}", encode(value));
        }
    }
    query
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

pub(super) fn scanned_of(scanned: u64, total: u64, state: JobState) -> String {
    let (scanned, total) = (grouped(scanned), grouped(total));
    format!("Scanned {scanned} of {total} {} jobs", state_name(state))
}

pub(super) async fn search(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let name = call.param("name").to_owned();
    let queue = queue_of(&call, &shell, &name)?;
    let filter = filter_of(&call)?;
    let state = filter.state;
    let mut scan = Scan::new(&queue, filter.clone(), call.query.given("from")).await?;
    let searching = call.app.searches.begin(&call.identity)?;
    let found = search_step(&mut scan, &call.app.searching, FIRST, FIRST_TIME).await?;
    drop(searching);
    let now = call.app.now().await?;
    let at = encode(&name);
    let place = scan.place();
    let rest = place.as_deref().map(|place| search_query(&filter, place));
    let body = html! {
        (search_form(&shell, &name, Some(&filter)))
        @if shell.may_act() { p { a.button.small href=(shell.link(&format!("/queues/{at}/bulk?state={}&kind={}", state_name(state), encode(filter.kind.as_deref().unwrap_or_default())))) { "Change many jobs" } } }
        section.card #search data-rest=[rest.as_ref().filter(|_| found.len() < SHOWN).map(|rest| shell.link(&format!("/queues/{at}/search/rows?{rest}")))] {
            p.muted role="status" id="scanned" { (scanned_of(scan.scanned, scan.total(), state)) "; " (found.len()) " shown." }
            (jobs_table(&shell, &call, &name, &found, now))
            @if let Some(rest) = &rest { p {
                a.button.small id="more" href=(shell.link(&format!("/queues/{at}/search?{rest}"))) { "Go on from here" } " "
                button.small type="button" id="stop" hidden { "Stop" }
            } }
            @else if found.is_empty() { (empty("Nothing was found.")) }
        }
    };
    Ok(shell.page("/queues", "Search", crumb(&shell, &name), body))
}

/// The rest of a search, as rows of its table and words that say how far it is.
pub(super) async fn search_rows(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let name = call.param("name").to_owned();
    let queue = queue_of(&call, &shell, &name)?;
    let filter = filter_of(&call)?;
    let state = filter.state;
    let from = search_from(&call);
    let scan = Scan::new(&queue, filter, from.as_deref()).await?;
    let now = call.app.now().await?;
    let hidden = call.config.redact.clone();
    let events = told(&call, scan, SHOWN)?.map(move |told| {
        let (event, scanned, total, place) = match told {
            Told::Found(job) => {
                let row = job_row(&shell, &hidden, &name, &job, now);
                return Event::new("row", row.into_string());
            }
            Told::Failed(problem) => return Event::new("problem", problem.text()),
            Told::Progress {
                scanned,
                total,
                place,
                ..
            } => ("progress", scanned, total, place),
            Told::Over {
                scanned,
                total,
                place,
                ..
            } => ("end", scanned, total, place),
        };
        let mut event = Event::new(event, scanned_of(scanned, total, state));
        event.id = Some(place.unwrap_or_default());
        event
    });
    call.app.stream(events)
}

pub(super) async fn job(call: Call) -> Result<Reply, Problem> {
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

/// How many dead letters are grouped by their error: the newest.
const GROUPED: usize = 2000;

pub(super) async fn dead(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let name = call.param("name").to_owned();
    let inspect = queue_of(&call, &shell, &name)?.inspect();
    let total = inspect.counts().await?.dead;
    let letters = inspect.dead_letters();
    let mut groups: BTreeMap<String, (u64, Duration)> = BTreeMap::new();
    let mut newest: Vec<DeadLetter> = Vec::new();
    let mut read = 0;
    while read < GROUPED {
        let page = letters.newest(read).await?;
        if page.is_empty() {
            break;
        }
        read += page.len();
        for letter in page {
            let group = groups.entry(normalized_error(&letter.reason)).or_default();
            group.0 += 1;
            group.1 = group.1.max(letter.at);
            if newest.len() < 50 {
                newest.push(letter);
            }
        }
    }
    // What one request can change is changed by one; the rest by a change of many jobs.
    let is_partial = total > read as u64;
    let at = encode(&name);
    let bulk = |action: &str, title: &str, group: &str| {
        html! {
            @if shell.may_act() {
                a class=(if action == "delete" { "button small danger" } else { "button small" })
                    href=(shell.link(&format!("/queues/{at}/bulk?state=dead&action={action}&group={}", encode(group)))) { (title) } " "
            }
        }
    };
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
    let body = html! {
        section.card {
            h2 { "By error" }
            @if is_partial { p.muted { "Of the newest " (grouped(read as u64)) " of " (grouped(total)) " dead letters." } }
            @if groups.is_empty() { (empty("No dead letters.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Error, with numbers and names replaced" } th.num { "Letters" } th { "Newest" } th { "Actions" } } }
                tbody { @for (group, (count, at)) in &groups { tr {
                    td.wide { code { (group) } } td.num { (count) } td { (moment(*at)) }
                    td.acts { @if is_partial {
                        (bulk("retry", "Retry all", group)) (bulk("delete", "Delete all", group))
                    } @else {
                        (shell.act("queue.replay", "Retry all", &[("queue", &name), ("group", group)]))
                        (shell.act("queue.purge", "Delete all", &[("queue", &name), ("group", group)]))
                    } }
                } } }
            } } }
        }
        section.card {
            h2 { "Newest" }
            @if shell.may_act() && !newest.is_empty() { p { a.button.small href=(shell.link(&format!("/queues/{at}/bulk?state=dead"))) { "Change many dead letters" } } }
            @if newest.is_empty() { (empty("Nothing here.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "When" } th { "Kind" } th { "Error" } th { "Payload" } th { "Actions" } } }
                tbody { @for letter in &newest { tr {
                    td { (moment(letter.at)) }
                    td { (letter.job.as_ref().map_or("unknown", |job| job.name.as_str())) }
                    td.wide { (letter.reason) }
                    td.wide.mono { @if let Some(job) = &letter.job { (brief(&String::from_utf8_lossy(&job.payload), &call.config.redact, 70)) } }
                    td.acts {
                        (shell.act("queue.replay", "Retry", &[("queue", &name), ("letter", &letter.letter)]))
                        (shell.act("queue.purge", "Delete", &[("queue", &name), ("letter", &letter.letter)]))
                    }
                } } }
            } } }
        }
        (curl(&shell, "POST", &format!("/v1/queues/{}/dead:replay", encode(&name)), Some(r#"{"error": "timeout", "dry_run": true}"#)))
    };
    Ok(shell.page(
        "/queues",
        "Dead letters",
        crumb(&shell, &name),
        live(&call, body),
    ))
}
