//! A change of many jobs: the form, the count, the confirmation, and how far it is.

use maud::{Markup, html};

use super::{
    Shell,
    layout::{curl, encode, live, tile},
    queue::{STATES, crumb, scanned_of},
};
use crate::{
    api::{Bulk, BulkAction, Stage, parse_state, state_name},
    call::{Call, Query},
    problem::Problem,
    reply::Reply,
    scan::Filter,
};

fn action_of(form: &Query) -> Result<BulkAction, Problem> {
    let given = form.given("action").unwrap_or_default();
    let found = BulkAction::ALL
        .into_iter()
        .find(|action| action.name() == given);
    found.ok_or_else(|| Problem::invalid("action must be retry, promote, cancel or delete"))
}

/// What an action means, for the list of actions.
fn meaning(action: BulkAction) -> &'static str {
    match action {
        BulkAction::Retry => "Retry dead letters",
        BulkAction::Promote => "Run delayed jobs now",
        BulkAction::Cancel => "Cancel jobs that wait or run",
        BulkAction::Delete => "Delete jobs that wait, or dead letters",
    }
}

pub(super) async fn form(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let name = call.param("name").to_owned();
    let given = |name: &str| call.query.given(name).unwrap_or_default();
    let state = call.query.given("state").unwrap_or("dead");
    // The first action that fits what the reader came from.
    let action = match call.query.given("action") {
        Some(_) => action_of(&call.query)?,
        None => {
            let state = parse_state(state)?;
            let fits = BulkAction::ALL
                .into_iter()
                .find(|action| action.fits(state));
            fits.unwrap_or(BulkAction::Retry)
        }
    };
    let at = encode(&name);
    let body = html! {
        section.card {
            p { "The jobs that match all of these are counted first. Nothing is changed before you have seen how many they are." }
            form method="post" action=(format!("{}/queues/{at}/bulk?namespace={}", shell.base, encode(&shell.namespace))) {
                p { label { "What to do" select name="action" {
                    @for known in BulkAction::ALL { option value=(known.name()) selected[known == action] { (meaning(known)) } }
                } } }
                p { label { "State" select name="state" {
                    @for known in STATES.into_iter().filter(|known| *known != "done") { option value=(known) selected[known == state] { (known) } }
                } } }
                p { label { "Kind" input name="kind" value=(given("kind")); } }
                p { label { "Error of a dead letter contains" input name="error" value=(given("error")); } }
                @if !given("group").is_empty() {
                    p { label { "Error, with numbers and names replaced" input name="group" value=(given("group")); } }
                }
                p { label { "Payload contains" input name="text" value=(given("text")); } }
                p { label { span { input type="checkbox" name="all" value="1"; " All jobs of the state: none of the above is given" } } }
                p { button.primary type="submit" { "Count them" } " " a.button href=(shell.link(&format!("/queues/{at}"))) { "Back" } }
            }
            (curl(&shell, "POST", &format!("/v1/queues/{at}/bulk"), Some(r#"{"action": "retry", "state": "dead", "error": "timeout"}"#)))
        }
    };
    Ok(shell.page("/queues", "Change many jobs", crumb(&shell, &name), body))
}

pub(super) async fn begin(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let (name, form) = (call.param("name").to_owned(), call.form());
    let given = |name: &str| form.given(name).map(str::to_owned);
    let filter = Filter {
        state: parse_state(form.given("state").unwrap_or_default())?,
        kind: given("kind"),
        error: given("error"),
        group: given("group"),
        text: given("text"),
        hidden: call.hidden().to_vec(),
    };
    let (action, all) = (action_of(&form)?, form.flag("all"));
    let bulks = &call.app.bulks;
    let bulk = bulks
        .begin(&call, &shell.namespace, &name, action, filter, all)
        .await?;
    let page = format!("/queues/{}/bulk/{}", encode(&name), bulk.id);
    Ok(Reply::see_other(&shell.link(&page)))
}

pub(super) async fn page(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let name = call.param("name").to_owned();
    let bulk = call
        .app
        .bulks
        .find(&shell.namespace, &name, call.param("id"))?;
    let body = status(&shell, &name, &bulk);
    Ok(shell.page(
        "/queues",
        meaning(bulk.action),
        crumb(&shell, &name),
        live(&call, body),
    ))
}

fn status(shell: &Shell, name: &str, bulk: &Bulk) -> Markup {
    let progress = bulk.progress();
    let state = bulk.filter.state;
    let scanned = scanned_of(progress.scanned, progress.total, state);
    let at = encode(name);
    let form = |verb: &str, title: &str, class: &str, count: Option<u64>| {
        html! {
            form.inline method="post" action=(format!("{}/queues/{at}/bulk/{}/{verb}?namespace={}", shell.base, bulk.id, encode(&shell.namespace))) {
                @if let Some(count) = count { input type="hidden" name="count" value=(count); }
                button class=(class) type="submit" { (title) }
            }
        }
    };
    let what = bulk.action.name();
    html! {
        div.tiles {
            (tile("Match", progress.matched, "as counted"))
            (tile("Changed", progress.changed, ""))
        }
        section.card {
            p { "Jobs with " code { (bulk.words()) } }
            @match progress.stage {
                Stage::Counting => {
                    p { (scanned) "; " (progress.matched) " match so far. Nothing is changed." }
                    (form("stop", "Stop", "small", None))
                }
                Stage::Counted if progress.matched == 0 => { p { (scanned) ". No job matches." } }
                Stage::Counted => {
                    p { (scanned) ". " strong { (progress.matched) } " match. Only these are changed; jobs that came to match since then are left as they are." }
                    @if bulk.action == BulkAction::Delete { p.note.bad { "What is deleted cannot be brought back." } }
                    (form("confirm", &format!("Yes, {what} {}", progress.matched), "primary", Some(progress.matched)))
                    " " (form("stop", "No", "", None))
                }
                Stage::TooMany => { p.note.bad { "Too many match to keep in mind which. Nothing is changed. Narrow the filter, or change them in parts." } }
                Stage::NoRoom => { p.note.bad { "Other changes that were counted and wait for a confirmation take the room for these jobs. Nothing is changed. Confirm or stop those, or count again in some minutes." } }
                Stage::Expired => { p { "It was counted and nobody confirmed it for some minutes. Nothing is changed. Count again to see what matches now." } }
                Stage::Running => {
                    p { (scanned) "; " (progress.changed) " of " (progress.matched) " changed." }
                    (form("stop", "Stop", "small", None))
                }
                Stage::Done => { p { "It is done: " (progress.changed) " of " (progress.matched) " " (state_name(state)) " jobs were changed. The others had changed their state meanwhile." } }
                Stage::Stopped => { p { "It was stopped. " (progress.changed) " jobs are changed and stay so." } }
                Stage::Failed => { p.note.bad { "The store failed. " (progress.changed) " jobs are changed and stay so; others may be. Count again to see what is left." } }
            }
            @if !progress.stage.is_under_way() { p { a.button.small href=(shell.link(&format!("/queues/{at}"))) { "To the queue" } } }
        }
        (curl(shell, "GET", &format!("/v1/queues/{at}/bulk/{}?wait=5", bulk.id), None))
    }
}

/// The page of the change that a form is about.
fn back(call: &Call, shell: &Shell) -> Reply {
    let page = format!(
        "/queues/{}/bulk/{}",
        encode(call.param("name")),
        call.param("id")
    );
    Reply::see_other(&shell.link(&page))
}

pub(super) async fn confirm(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let bulk = call
        .app
        .bulks
        .find(&shell.namespace, call.param("name"), call.param("id"))?;
    let count = call.form().number("count")?;
    let count = count.ok_or_else(|| Problem::invalid("count is missing"))?;
    call.app.bulks.confirm(&call, &bulk, count).await?;
    Ok(back(&call, &shell))
}

pub(super) async fn stop(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let bulk = call
        .app
        .bulks
        .find(&shell.namespace, call.param("name"), call.param("id"))?;
    call.app.bulks.stop(&bulk);
    Ok(back(&call, &shell))
}
