//! A search in the payloads of a queue.

use std::time::Duration;

use futures_util::StreamExt as _;
use maud::{Markup, html};
use redstart::messaging::JobState;

use super::{STATES, crumb, grouped, job_row, jobs_table, queue_of};
use crate::{
    api::{Told, parse_state, search as search_step, search_from, state_name, told},
    call::Call,
    page::{
        Shell,
        layout::{empty, encode},
    },
    problem::Problem,
    reply::{Event, Reply},
    scan::{Filter, Scan},
};

/// The fields of a search, with what they had.
pub(super) fn search_form(shell: &Shell, name: &str, filter: Option<&Filter>) -> Markup {
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

pub(in crate::page) fn scanned_of(scanned: u64, total: u64, state: JobState) -> String {
    let (scanned, total) = (grouped(scanned), grouped(total));
    format!("Scanned {scanned} of {total} {} jobs", state_name(state))
}

pub(in crate::page) async fn search(call: Call) -> Result<Reply, Problem> {
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
pub(in crate::page) async fn search_rows(call: Call) -> Result<Reply, Problem> {
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
