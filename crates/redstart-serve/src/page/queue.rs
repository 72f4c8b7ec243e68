//! Queues, their jobs and their dead letters.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use maud::{Markup, html};
use redstart::messaging::{JobInfo, JobState, Queue, QueueCounts, normalized_error};

use super::{
    Shell,
    layout::{covered, curl, empty, encode, live, moment, span, tile},
};
use crate::{
    api::{open_queue, parse_state, search_jobs, state_name},
    call::Call,
    chart::{lines, shares},
    pretty::{brief, pretty},
    problem::Problem,
    reply::Reply,
};

/// Queues whose counts are asked for at the same time.
const AT_ONCE: usize = 16;
const STATES: [&str; 6] = ["ready", "delayed", "running", "parked", "waiting", "done"];

pub(super) fn queue_of(call: &Call, shell: &Shell, name: &str) -> Result<Queue, Problem> {
    Ok(open_queue(&call.app.store, &shell.namespace, name)?)
}

pub(super) async fn list(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let names = shell.inventory.names(&shell.namespace, "queue").take(200);
    let count = |name: String, queue: Result<Queue, Problem>| async move {
        let counts = queue?.inspect().counts().await?;
        Ok::<_, Problem>((name, counts))
    };
    let counts = names.map(|name| count(name.to_owned(), queue_of(&call, &shell, name)));
    let counts: Vec<_> = counts.collect();
    let rows: Vec<_> = stream::iter(counts).buffered(AT_ONCE).try_collect().await?;
    let sampler = &call.app.sampler;
    let foreign = super::foreign::card(&call, &shell).await;
    let body = html! {
        section.card {
            @if rows.is_empty() { (empty("No queues in this namespace.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Queue" } th.num { "Ready" } th.num { "Running" } th.num { "Delayed" } th.num { "Parked" } th.num { "Dead" } th.num { "Workers" } th { "State" } th { span.muted { "Ready, running, dead" } } } }
                tbody { @for (name, counts) in &rows { tr {
                    td { a href=(shell.link(&format!("/queues/{}", encode(name)))) { strong { (name) } } }
                    td.num { (counts.ready) } td.num { (counts.running) } td.num { (counts.delayed) } td.num { (counts.parked) }
                    td.num { @if counts.dead > 0 { a href=(shell.link(&format!("/queues/{}/dead", encode(name)))) { (counts.dead) } } @else { "0" } }
                    td.num { (counts.workers) }
                    td { (state_tag(counts)) }
                    td { (shares(name, &[("ready", counts.ready), ("running", counts.running), ("dead", counts.dead)])) }
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

fn crumb(shell: &Shell, name: &str) -> Markup {
    html! { a href=(shell.link("/queues")) { "Queues" } " / " a href=(shell.link(&format!("/queues/{}", encode(name)))) { (name) } }
}

fn jobs_table(shell: &Shell, call: &Call, queue: &str, jobs: &[JobInfo], now: Duration) -> Markup {
    html! {
        div.scroll tabindex="0" { table {
            thead { tr { th { "Job" } th { "Kind" } th { "Payload" } th.num { "Attempts" } th { "Due" } th { span.muted { "Progress" } } th { "Actions" } } }
            tbody { @for job in jobs { @let id = job.id.to_string(); tr {
                td { a.mono href=(shell.link(&format!("/queues/{}/jobs/{id}", encode(queue)))) { (&id[..12]) } }
                td { (job.name) @if job.priority != 0 { " " span.tag { "priority " (job.priority) } } }
                td.wide.mono { (brief(&String::from_utf8_lossy(&job.payload), &call.config.redact, 90)) }
                td.num { (job.attempts) }
                td { (due(job.due, now)) }
                td { @if let Some(progress) = job.progress { (format!("{:.0} %", progress * 100.0)) } }
                td.acts {
                    @if job.state == JobState::Delayed { (shell.act("queue.run-now", "Run now", &[("queue", queue), ("job", &id)])) }
                    @if !matches!(job.state, JobState::Running | JobState::Done) { (shell.act("queue.delete", "Delete", &[("queue", queue), ("job", &id)])) }
                }
            } } }
        } }
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
    let (mut jobs, _) = queue.inspect().list(parse_state(&state)?, None).await?;
    jobs.truncate(50);
    let crons = queue.cron_entries().await?;
    let now = call.app.store.time().await?;
    let at = encode(&name);
    let count = |state: &str| match state {
        "ready" => counts.ready,
        "delayed" => counts.delayed,
        "running" => counts.running,
        "parked" => counts.parked,
        "waiting" => counts.waiting,
        _ => counts.done,
    };
    let body = html! {
        div.tiles {
            (tile("Ready", counts.ready, "")) (tile("Running", counts.running, "")) (tile("Delayed", counts.delayed, ""))
            (tile("Parked", counts.parked, "no worker knows them")) (tile("Dead", counts.dead, "")) (tile("Workers", counts.workers, ""))
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
            p { @for name in STATES {
                a class=(if name == state { "button small primary" } else { "button small" })
                    href=(shell.link(&format!("/queues/{at}?state={name}"))) aria-current=[(name == state).then_some("true")] { (name) " " (count(name)) } " "
            } }
            @if jobs.is_empty() { (empty("No jobs in this state.")) } @else { (jobs_table(&shell, &call, &name, &jobs, now)) }
        }
    };
    let body = html! {
        form.row method="get" action=(format!("{}/queues/{at}/search", shell.base)) {
            input type="hidden" name="namespace" value=(shell.namespace);
            label { "Search in payloads" input type="search" name="text" required; }
            label { "State" select name="state" { @for name in STATES { option value=(name) { (name) } } } }
            button type="submit" { "Search" }
        }
        (live(&call, body))
    };
    Ok(shell.page("/queues", &name, crumb(&shell, &name), body))
}

/// How many dead letters are read at most.
const BUDGET: usize = 20_000;

pub(super) async fn search(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let name = call.param("name").to_owned();
    let queue = queue_of(&call, &shell, &name)?;
    let text = call.query.given("text").unwrap_or_default().to_owned();
    let state_text = call.query.given("state").unwrap_or("ready").to_owned();
    let state = parse_state(&state_text)?;
    let counts = queue.inspect().counts().await?;
    let total = match state {
        JobState::Ready => counts.ready,
        JobState::Delayed => counts.delayed,
        JobState::Running => counts.running,
        JobState::Parked => counts.parked,
        JobState::Waiting => counts.waiting,
        _ => counts.done,
    };
    let hidden = call.hidden();
    let (mut found, scanned) = search_jobs(&queue, state, &text, hidden).await?;
    found.truncate(100);
    let now = call.app.store.time().await?;
    let at = encode(&name);
    let body = html! {
        form.row method="get" action=(format!("{}/queues/{at}/search", shell.base)) {
            input type="hidden" name="namespace" value=(shell.namespace);
            label { "Search in payloads" input type="search" name="text" value=(text) required; }
            label { "State" select name="state" { @for name in STATES { option value=(name) selected[name == state_text] { (name) } } } }
            button type="submit" { "Search" }
        }
        section.card {
            p.muted { "Scanned " (scanned) " of " (total.max(scanned as u64)) " " (state_text) " jobs; " (found.len()) " contain the text." }
            @if found.is_empty() { (empty("Nothing was found.")) } @else { (jobs_table(&shell, &call, &name, &found, now)) }
        }
    };
    Ok(shell.page("/queues", "Search", crumb(&shell, &name), body))
}

pub(super) async fn job(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let name = call.param("name").to_owned();
    let queue = queue_of(&call, &shell, &name)?;
    let id = call.param("id").parse::<redstart::messaging::JobId>()?;
    let found = queue.job(id).await?;
    let details = found.ok_or_else(|| Problem::not_found("job; it may have ended too long ago"))?;
    let now = call.app.store.time().await?;
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
                    @if !matches!(job.state, JobState::Running) { (shell.act("queue.delete", "Delete", &one)) }
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
                @if let Some(parent) = job.parent { tr { th { "Parent" } td.mono { a href=(shell.link(&format!("/queues/{}/jobs/{parent}", encode(&name)))) { (parent.to_string()) } } } }
            } } }
            (curl(&shell, "GET", &format!("/v1/queues/{}/jobs/{id}", encode(&name)), None))
        }
    };
    Ok(shell.page(
        "/queues",
        &format!("Job {}", &id[..12]),
        crumb(&shell, &name),
        live(&call, body),
    ))
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

pub(super) async fn dead(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let name = call.param("name").to_owned();
    let letters = queue_of(&call, &shell, &name)?.inspect().dead_letters();
    let mut groups: BTreeMap<String, (u64, Duration, String)> = BTreeMap::new();
    let (mut newest, mut after, mut read) = (Vec::new(), None::<String>, 0_usize);
    loop {
        let page = letters.list(after.as_deref()).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.letter.clone());
        read += page.len();
        for letter in page {
            let group = groups.entry(normalized_error(&letter.reason)).or_insert((
                0,
                Duration::ZERO,
                letter.reason.clone(),
            ));
            group.0 += 1;
            group.1 = group.1.max(letter.at);
            newest.push(letter);
        }
        if newest.len() > 50 {
            newest.drain(..newest.len() - 50);
        }
        if read >= BUDGET {
            break;
        }
    }
    newest.reverse();
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, (count, ..))| std::cmp::Reverse(*count));
    let body = html! {
        section.card {
            h2 { "By error" }
            @if groups.is_empty() { (empty("No dead letters.")) }
            @else { div.scroll tabindex="0" { table {
                thead { tr { th { "Error, with numbers and names replaced" } th.num { "Letters" } th { "Newest" } th { "Actions" } } }
                tbody { @for (group, (count, at, _)) in &groups { tr {
                    td.wide { code { (group) } } td.num { (count) } td { (moment(*at)) }
                    td.acts {
                        (shell.act("queue.replay", "Retry all", &[("queue", &name), ("group", group)]))
                        (shell.act("queue.purge", "Delete all", &[("queue", &name), ("group", group)]))
                    }
                } } }
            } } }
        }
        section.card {
            h2 { "Newest" }
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
