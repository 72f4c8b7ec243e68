//! Changes by hand: a page says what will happen and to how many, a form does it, the audit log remembers it.

mod breaker;
mod cache;
mod dead_letter;
mod limiter;
mod lock;
mod queue;
mod session;

use maud::html;
use redstart::messaging::JobId;

use super::{
    Shell,
    command::command,
    layout::{copyable, curl, encode},
};
use crate::{
    api::open_queue,
    call::{Call, Query},
    problem::{Kind, Problem},
    reply::Reply,
};

/// What an action will do.
struct Plan {
    title: &'static str,
    text: String,
    /// How many things it will change, as far as is known now.
    count: u64,
    /// Where to go afterwards, below the base path.
    back: String,
    /// The same by the API.
    api: Option<ApiCall>,
    /// The lease that it is about, if it is about one.
    holder: Option<String>,
}

/// A call of the API: method, path and body.
type ApiCall = (&'static str, String, Option<String>);

impl Plan {
    fn new(
        title: &'static str,
        text: String,
        count: u64,
        back: String,
        api: Option<ApiCall>,
    ) -> Self {
        Self {
            title,
            text,
            count,
            back,
            api,
            holder: None,
        }
    }
}

const FIELDS: &[&str] = &[
    "queue", "job", "group", "letter", "kind", "payload", "name", "key", "tag", "user", "handle",
    "subject",
];
/// The field for the lease that a page named.
const HOLDER: &str = "holder";

pub(super) async fn ask(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let action = call.param("action").to_owned();
    let mut plan = plan(&call, &shell, &action, &call.query).await?;
    let adds = action == "queue.add";
    let (kind, payload) = match (adds, call.query.given("job")) {
        (true, Some(job)) => copied(&call, &shell, job).await?,
        _ => (String::new(), "{}".to_owned()),
    };
    // Who adds a job changes these two.
    let example = if kind.is_empty() { "mail" } else { &kind };
    let job = (example, payload.as_str());
    let holder = plan.holder.as_deref();
    let command = command(&call, &shell.namespace, &action, &call.query, job, holder);
    // The API takes JSON only; a worker may have added anything.
    if adds && serde_json::from_str::<serde::de::IgnoredAny>(&payload).is_err() {
        plan.api = None;
    }
    if adds && let Some((_, _, body)) = &mut plan.api {
        let kind = serde_json::Value::from(example);
        *body = Some(format!("{{\"kind\": {kind}, \"payload\": {payload}}}"));
    }
    let body = html! {
        section.card {
            p { (plan.text) }
            form method="post" action=(format!("{}/act/{action}?namespace={}", shell.base, encode(&shell.namespace))) {
                @for name in FIELDS {
                    @if !(adds && ["kind", "payload"].contains(name)) && let Some(value) = call.query.given(name) {
                        input type="hidden" name=(name) value=(value);
                    }
                }
                input type="hidden" name="expected" value=(plan.count);
                @if let Some(holder) = &plan.holder { input type="hidden" name=(HOLDER) value=(holder); }
                @if adds {
                    p { label { "Kind" input name="kind" value=(kind) required; } }
                    p { label { "Payload, JSON" textarea name="payload" rows="8" required { (payload) } } }
                }
                p {
                    button.primary type="submit" { (plan.title) } " "
                    a.button href=(shell.link(&plan.back)) { "Cancel" }
                }
            }
            @if let Some((method, path, body)) = &plan.api { (curl(&shell, method, path, body.as_deref())) }
            @if let Some(command) = &command { (copyable("As a redstart command", command)) }
        }
    };
    Ok(shell.page(
        "/act",
        plan.title,
        html! { "A change by hand in " (shell.namespace) },
        body,
    ))
}

/// The kind and the payload of a job that is to be enqueued again. They are read here: a payload in a link would be in
/// the history of the browser and in the logs of proxies.
async fn copied(call: &Call, shell: &Shell, job: &str) -> Result<(String, String), Problem> {
    let queue = open_queue(
        &call.app.store,
        &shell.namespace,
        given(&call.query, "queue")?,
    )?;
    let found = queue.job(job.parse::<JobId>()?).await?;
    let job = found.ok_or_else(|| Problem::not_found("job"))?.job;
    Ok((job.name, String::from_utf8_lossy(&job.payload).into_owned()))
}

pub(super) async fn act(call: Call) -> Result<Reply, Problem> {
    let shell = Shell::new(&call).await?;
    let action = call.param("action").to_owned();
    let form = call.form();
    let plan = plan(&call, &shell, &action, &form).await?;
    // Whatever can be refused is refused before the change: from there on nothing may keep it out of the log.
    let expected = form.number("expected")?;
    let done = perform(&call, &shell, &action, &form).await;
    let on: Vec<&str> = [
        "queue", "name", "job", "group", "letter", "key", "tag", "user", "subject",
    ]
    .iter()
    .filter_map(|name| form.given(name))
    .collect();
    let mut on = format!("{} {}", shell.namespace, on.join(" "));
    // What failed on the way may have changed something; what was refused has not.
    if done
        .as_ref()
        .is_err_and(|problem| problem.status.is_server_error())
    {
        on += " (failed)";
    }
    if done.is_ok() || on.ends_with(" (failed)") {
        let count = done.as_ref().copied().unwrap_or(0);
        call.app.changed(&call, &action, on, count, expected).await;
    }
    let count = done?;
    let back = match action.as_str() {
        // The page says how it ended.
        "limiter.check" => format!("{}&allowed={count}", plan.back),
        _ => plan.back,
    };
    Ok(Reply::see_other(&shell.link(&back)))
}

fn given<'f>(form: &'f Query, name: &str) -> Result<&'f str, Problem> {
    form.given(name)
        .ok_or_else(|| Problem::invalid(format!("{name} is missing")))
}

async fn plan(call: &Call, shell: &Shell, action: &str, form: &Query) -> Result<Plan, Problem> {
    match action.split_once('.') {
        Some(("queue", action)) => queue::plan(call, shell, action, form).await,
        Some(("lock", action)) => lock::plan(call, shell, action, form).await,
        Some(("breaker", action)) => breaker::plan(action, form),
        Some(("cache", action)) => cache::plan(action, form),
        Some(("session", action)) => session::plan(call, shell, action, form).await,
        Some(("limiter", action)) => limiter::plan(action, form),
        _ => Err(Problem::not_found("action")),
    }
}

/// Makes the change; how many things were changed.
async fn perform(call: &Call, shell: &Shell, action: &str, form: &Query) -> Result<u64, Problem> {
    match action.split_once('.') {
        Some(("queue", action)) => queue::perform(call, shell, action, form).await,
        Some(("lock", action)) => lock::perform(call, shell, action, form).await,
        Some(("breaker", action)) => breaker::perform(call, shell, action, form).await,
        Some(("cache", action)) => cache::perform(call, shell, action, form).await,
        Some(("session", action)) => session::perform(call, shell, action, form).await,
        Some(("limiter", action)) => limiter::perform(call, shell, action, form).await,
        _ => Err(Problem::not_found("action")),
    }
}

/// One thing was changed, or it was too late.
fn one(done: bool) -> Result<u64, Problem> {
    match done {
        true => Ok(1),
        false => Err(Problem::new(Kind::Conflict).detail("it is no longer in a state for this")),
    }
}
