//! Queues of other libraries, which are only read.

use std::time::Duration;

use futures_util::future::join_all;
use maud::{Markup, html};
use redstart_adopt::{Inspector, JobView, Library, Overview, Payload, Plan};

use super::{
    Shell,
    layout::{copyable, empty, encode, live, moment, span, tile},
};
use crate::{
    call::Call,
    pretty::brief,
    problem::{Kind, Problem},
    reply::Reply,
};

/// Jobs of one page.
const PAGE: usize = 50;
/// How long the screen of the queues waits for what they have.
const LOOK: Duration = Duration::from_secs(1);

/// Whether this caller may see what belongs to no namespace.
fn may_see(call: &Call) -> bool {
    call.identity.namespaces().is_empty()
}

fn problem(error: redstart_adopt::Error) -> Problem {
    match error.into_store() {
        Ok(error) => error.into(),
        Err(error) => Problem::invalid(error.to_string()),
    }
}

/// The card on the screen of the queues; nothing if there are none, or for a caller of some namespaces only.
pub(super) async fn card(call: &Call, shell: &Shell) -> Markup {
    if !may_see(call) {
        return html! {};
    }
    let store = &call.app.store;
    let queues = match call.app.foreign.known(store) {
        Some(queues) if !queues.is_empty() => queues,
        _ => return html! {},
    };
    let overviews = queues.iter().take(50).map(|found| async move {
        let overview = async {
            let inspector = Inspector::new(store, found.library, &found.subject).ok()?;
            inspector.overview().await.ok()
        };
        let overview = tokio::time::timeout(LOOK, overview).await;
        (found, overview.ok().flatten())
    });
    let rows = join_all(overviews).await;
    html! {
        section.card {
            h2 { "Queues of other libraries" }
            p.muted { "Recognised by their keys; they are only read." }
            div.scroll tabindex="0" { table {
                thead { tr { th { "Queue" } th { "Library" } th { "Jobs by state" } th { "Oldest" } } }
                tbody { @for (found, overview) in &rows { tr {
                    td { a href=(link(shell, found.library, &found.subject, None)) { strong { (found.subject) } } }
                    td { (found.library) @if let Some(version) = &found.version { " " span.muted { (version) } } }
                    td { @match overview {
                        Some(overview) => (states(overview)),
                        None => span.muted { "cannot be read now" },
                    } }
                    td { (oldest(overview.as_ref().and_then(|overview| overview.oldest_ms))) }
                } } }
            } }
        }
    }
}

fn states(overview: &Overview) -> Markup {
    let some = overview.states.iter().filter(|state| state.count > 0);
    let some: Vec<_> = some.collect();
    html! {
        @if overview.paused { span.tag.warn { "paused" } " " }
        @if some.is_empty() { span.muted { "empty" } }
        @for state in some {
            span class=(if is_failure(state.name) { "tag bad" } else { "tag" }) { (state.name) " " (state.count) } " "
        }
    }
}

fn is_failure(state: &str) -> bool {
    matches!(state, "failed" | "dead")
}

fn oldest(millis: Option<u64>) -> String {
    let time = millis.map(Duration::from_millis);
    time.map_or("–".to_owned(), span)
}

fn link(shell: &Shell, library: Library, subject: &str, state: Option<&str>) -> String {
    let state = state.map_or(String::new(), |state| format!("&state={}", encode(state)));
    let library = encode(&library.to_string());
    shell.link(&format!(
        "/foreign?library={library}&subject={}{state}",
        encode(subject)
    ))
}

/// One queue: its states, the jobs of one of them, and what can be done about it.
pub(super) async fn page(call: Call) -> Result<Reply, Problem> {
    if !may_see(&call) {
        return Err(Problem::new(Kind::Forbidden)
            .detail("a token of some namespaces does not see what belongs to none"));
    }
    let shell = Shell::new(&call).await?;
    let (library, subject) = (
        call.query.given("library").unwrap_or_default(),
        call.query.given("subject").unwrap_or_default(),
    );
    let library: Library = library
        .parse()
        .map_err(|_| Problem::not_found("library that is known"))?;
    // Only what was recognised: a name in the address must not choose keys to read.
    let queues = call.app.foreign.queues(&call.app.store).await;
    let queues = queues.ok_or_else(|| {
        Problem::new(Kind::Unavailable).detail("queues of other libraries could not be recognised")
    })?;
    let is_asked =
        |found: &&redstart_adopt::Found| found.library == library && found.subject == subject;
    let found = queues
        .iter()
        .find(is_asked)
        .ok_or_else(|| Problem::not_found("queue of another library"))?;
    let inspector = Inspector::new(&call.app.store, library, subject).map_err(problem)?;
    let overview = inspector.overview().await.map_err(problem)?;
    let fullest = overview.states.iter().find(|state| state.count > 0);
    let state = call
        .query
        .given("state")
        .or(fullest.map(|state| state.name));
    let from = call.query.number::<usize>("from")?.unwrap_or(0);
    let jobs = match state {
        Some(state) => inspector.jobs(state, from, PAGE).await.map_err(problem)?,
        None => Vec::new(),
    };
    let body = html! {
        div.tiles {
            (tile("Library", found.library, found.version.as_deref().unwrap_or("version unknown")))
            (tile("Recognised", format!("{:.0} %", found.confidence * 100.0), "sure"))
            (tile("Oldest job", oldest(overview.oldest_ms), "waiting"))
            (tile("Longest run", oldest(overview.oldest_active_ms), "so far"))
        }
        section.card {
            h2 { "Jobs" }
            p { @for known in &overview.states {
                a class="button small" href=(link(&shell, library, subject, Some(known.name))) aria-current=[(state == Some(known.name)).then_some("true")] {
                    (known.name) " " (known.count) @if known.shared { " (all queues)" }
                } " "
            } }
            @if jobs.is_empty() { (empty("No jobs in this state.")) } @else { (table(&call, &jobs)) }
            @if jobs.len() == PAGE {
                p { a href=(format!("{}&from={}", link(&shell, library, subject, state), from + PAGE)) { "More" } }
            }
        }
        (steps(&queues, library))
        (copyable("As a redstart command", &format!("redstart adopt list --url \"$REDSTART_URL\" --matching '{}*'", subject.replace('\'', "'\\''"))))
    };
    let crumb = html! { a href=(shell.link("/queues")) { "Queues" } " / " (subject) };
    Ok(shell.page("/queues", subject, crumb, live(&call, body)))
}

fn table(call: &Call, jobs: &[JobView]) -> Markup {
    html! {
        div.scroll tabindex="0" { table {
            thead { tr { th { "Job" } th { "Name" } th { "Payload" } th.num { "Attempts" } th { "Added" } th { "Error" } } }
            tbody { @for job in jobs { tr {
                td.mono { (redstart_adopt::printable(&job.id)) }
                td { (redstart_adopt::printable(&job.name)) }
                td.wide.mono { (payload(call, &job.payload)) }
                td.num { @if let Some(attempts) = job.attempts { (attempts) } @else { "–" } }
                td { @if let Some(added) = job.added_ms { (moment(Duration::from_millis(added))) } @else { "–" } }
                td.wide { @if let Some(error) = &job.error { (error.chars().take(200).collect::<String>()) } }
            } } }
        } }
    }
}

fn payload(call: &Call, payload: &Payload) -> String {
    match payload {
        Payload::Json { text } => brief(text, &call.config.redact, 90),
        Payload::Bytes { format, len, .. } => format!("{len} bytes ({format})"),
        Payload::Large { len } => format!("{len} bytes"),
        _ => String::new(),
    }
}

/// What the work of adopting can do for it.
fn steps(queues: &[redstart_adopt::Found], library: Library) -> Markup {
    let mut recognition = redstart_adopt::Recognition::default();
    let of_library = queues.iter().filter(|found| found.library == library);
    recognition.found = of_library.cloned().collect();
    let plan = Plan::of(&recognition);
    html! {
        @for item in plan.items.iter().take(1) {
            section.card {
                h2 { "What can be done" }
                ol { @for step in &item.steps { li { (step.what) @if !step.back.is_empty() { " " span.muted { "Back: " (step.back) } } } } }
            }
        }
    }
}
