//! Changes by hand: a page says what will happen and to how many, a form does it, the audit log remembers it.

use std::time::Duration;

use maud::html;
use redstart::{
    locking::Mutex,
    messaging::{Cancelled, DeadLetter, JobId, JobState, Queue, normalized_error},
    sessions::Sessions,
};

use super::{
    Shell,
    command::command,
    layout::{copyable, curl, encode},
};
use crate::{
    api::{breaker, count_letters, forget, json_cache, limiter_of, open_queue},
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
    api: Option<(&'static str, String, Option<String>)>,
    /// The lease that it is about, if it is about one.
    holder: Option<String>,
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

async fn plan(call: &Call, shell: &Shell, action: &str, form: &Query) -> Result<Plan, Problem> {
    let ns = &shell.namespace;
    let queue = |rest: &str| {
        form.given("queue")
            .map(|name| format!("/queues/{}{rest}", encode(name)))
            .unwrap_or("/queues".to_owned())
    };
    let v1 = |rest: String| {
        format!(
            "/v1/queues/{}{rest}",
            encode(form.given("queue").unwrap_or_default())
        )
    };
    let plan = |title, text: String, count, back: String, api| Plan {
        title,
        text,
        count,
        back,
        api,
        holder: None,
    };
    Ok(match action {
        "queue.pause" => {
            let name = given(form, "queue")?;
            plan(
                "Pause the queue",
                format!("Workers of {name} get no more jobs. Running jobs finish."),
                1,
                queue(""),
                Some(("POST", v1(":pause".into()), None)),
            )
        }
        "queue.resume" => {
            let name = given(form, "queue")?;
            plan(
                "Resume the queue",
                format!("Workers of {name} get jobs again."),
                1,
                queue(""),
                Some(("POST", v1(":resume".into()), None)),
            )
        }
        "queue.run-now" => {
            let job = given(form, "job")?;
            plan(
                "Run the job now",
                format!("The delayed job {job} becomes ready now."),
                1,
                queue("?state=ready"),
                Some(("POST", v1(format!("/jobs/{job}:run-now")), None)),
            )
        }
        "queue.delete" => {
            let job = given(form, "job")?;
            plan(
                "Delete the job",
                format!(
                    "The job {job} is deleted and its unique key is free. This cannot be undone."
                ),
                1,
                queue(""),
                Some(("DELETE", v1(format!("/jobs/{job}")), None)),
            )
        }
        "queue.cancel" => {
            let job = given(form, "job")?;
            plan(
                "Cancel the job",
                format!(
                    "The job {job} will not be tried again. If it runs, its worker is told to stop."
                ),
                1,
                queue(""),
                Some(("POST", v1(format!("/jobs/{job}:cancel")), None)),
            )
        }
        "queue.add" => {
            let name = given(form, "queue")?;
            plan(
                "Add a job",
                format!("A job is added to {name}."),
                1,
                queue("?state=ready"),
                Some(("POST", v1("/jobs".into()), None)),
            )
        }
        "queue.replay" | "queue.purge" => {
            let queue_of_letters = open_queue(&call.app.store, ns, given(form, "queue")?)?;
            let count = how_many(&queue_of_letters, form).await?;
            let body = match (form.given("letter"), form.given("group")) {
                (Some(letter), _) => serde_json::json!({"letters": [letter]}),
                (None, group) => serde_json::json!({"group": group}),
            };
            let body = Some(body.to_string());
            match action {
                "queue.replay" => plan(
                    "Retry dead letters",
                    format!("{count} dead letters are enqueued again, with all their attempts."),
                    count,
                    queue("/dead"),
                    Some(("POST", v1("/dead:replay".into()), body)),
                ),
                _ => plan(
                    "Delete dead letters",
                    format!("{count} dead letters are deleted. This cannot be undone."),
                    count,
                    queue("/dead"),
                    Some(("POST", v1("/dead:purge".into()), body)),
                ),
            }
        }
        "lock.force-release" => {
            let name = given(form, "name")?;
            let holder = Mutex::new(&call.app.store, ns, name)?.holder().await?;
            let id = holder.as_ref().map(|holder| holder.id());
            let who = holder
                .and_then(|holder| holder.label)
                .unwrap_or("unnamed".to_owned());
            let body = id
                .as_ref()
                .map(|id| serde_json::json!({"holder": id}).to_string());
            let mut plan = plan(
                "Force the lock open",
                format!(
                    "The lock {name} of {who} ends now. Its holder learns of it when it renews, and may still work until then: only fenced writes are safe."
                ),
                1,
                "/locks".into(),
                Some((
                    "POST",
                    format!("/v1/locks/{}:force-release", encode(name)),
                    body,
                )),
            );
            plan.holder = id;
            plan
        }
        "breaker.force-open" => {
            let name = given(form, "name")?;
            plan(
                "Force the breaker open",
                format!("All calls through {name} are refused for 60 s."),
                1,
                "/breakers".into(),
                Some((
                    "POST",
                    format!("/v1/breakers/{}:force-open", encode(name)),
                    Some(r#"{"for": 60}"#.into()),
                )),
            )
        }
        "breaker.reset" => {
            let name = given(form, "name")?;
            plan(
                "Reset the breaker",
                format!("{name} is closed, and what it counted is forgotten."),
                1,
                "/breakers".into(),
                Some(("POST", format!("/v1/breakers/{}:reset", encode(name)), None)),
            )
        }
        "cache.invalidate" => {
            let name = given(form, "name")?;
            match (form.given("key"), form.given("tag")) {
                (Some(key), None) => plan(
                    "Invalidate the key",
                    format!("The next request for {key} of the cache {name} loads it again."),
                    1,
                    "/caches".into(),
                    Some((
                        "POST",
                        format!("/v1/caches/{}/{}:invalidate", encode(name), encode(key)),
                        None,
                    )),
                ),
                (None, Some(tag)) => plan(
                    "Invalidate the tag",
                    format!(
                        "Entries of the cache {name} with the tag {tag} are loaded again when they are next requested."
                    ),
                    1,
                    "/caches".into(),
                    Some((
                        "POST",
                        format!(
                            "/v1/caches/{}/tags/{}:invalidate",
                            encode(name),
                            encode(tag)
                        ),
                        None,
                    )),
                ),
                _ => return Err(Problem::invalid("give a key or a tag")),
            }
        }
        "session.revoke" | "session.revoke-all" => {
            let (name, user) = (given(form, "name")?, given(form, "user")?);
            let sessions = Sessions::new(&call.app.store, ns, name)?
                .list(user)
                .await?
                .len() as u64;
            let (count, text, api) = match action {
                // The API ends one session by its token, which nobody else has.
                "session.revoke" => (
                    1,
                    format!("One session of {user} ends; the device must log in again."),
                    None,
                ),
                _ => (
                    sessions,
                    format!("{sessions} sessions of {user} end; all devices must log in again."),
                    Some((
                        "POST",
                        format!("/v1/sessions/{}:revoke-all", encode(name)),
                        Some(serde_json::json!({"user": user}).to_string()),
                    )),
                ),
            };
            plan(
                "End sessions",
                text,
                count,
                format!("/sessions?name={}&user={}", encode(name), encode(user)),
                api,
            )
        }
        "limiter.check" => {
            let (name, subject) = (given(form, "name")?, given(form, "subject")?);
            plan(
                "Try a check",
                format!(
                    "{subject} is checked against {name} as by a request: if it is allowed, it takes one of the limit."
                ),
                1,
                format!(
                    "/limiters?name={}&subject={}",
                    encode(name),
                    encode(subject)
                ),
                Some((
                    "POST",
                    format!("/v1/limiters/{}:check", encode(name)),
                    Some(serde_json::json!({"subject": subject}).to_string()),
                )),
            )
        }
        "limiter.reset" => {
            let (name, subject) = (given(form, "name")?, given(form, "subject")?);
            plan(
                "Forget what was taken",
                format!("{subject} has the whole limit of {name} again."),
                1,
                "/limiters".into(),
                Some((
                    "POST",
                    format!("/v1/limiters/{}:reset", encode(name)),
                    Some(serde_json::json!({"subject": subject}).to_string()),
                )),
            )
        }
        _ => return Err(Problem::not_found("action")),
    })
}

async fn perform(call: &Call, shell: &Shell, action: &str, form: &Query) -> Result<u64, Problem> {
    let (store, ns) = (&call.app.store, &shell.namespace);
    let queue = || Ok::<_, Problem>(open_queue(store, ns, given(form, "queue")?)?);
    let one = |done: bool| match done {
        true => Ok(1),
        false => Err(Problem::new(Kind::Conflict).detail("it is no longer in a state for this")),
    };
    match action {
        "queue.pause" => queue()?.pause().await?,
        "queue.resume" => queue()?.resume().await?,
        "queue.run-now" => {
            return one(queue()?
                .inspect()
                .run_now(given(form, "job")?.parse::<JobId>()?)
                .await?);
        }
        "queue.cancel" => {
            let cancelled = queue()?
                .cancel(given(form, "job")?.parse::<JobId>()?)
                .await?;
            return one(cancelled != Cancelled::NotFound);
        }
        "queue.delete" => {
            return one(queue()?
                .inspect()
                .delete(given(form, "job")?.parse::<JobId>()?)
                .await?);
        }
        "queue.add" => {
            let queue = queue()?;
            let payload = given(form, "payload")?.as_bytes();
            return one(queue
                .enqueue_raw(given(form, "kind")?, payload)
                .await?
                .is_new());
        }
        "queue.replay" | "queue.purge" => {
            let queue = queue()?;
            let letter = one_letter(form)?;
            if let Some(letter) = &letter
                && !letter.is_there(&queue).await?
            {
                return one(false);
            }
            let letters = queue.inspect().dead_letters();
            let done = match (action, letter) {
                ("queue.replay", Some(letter)) => letters.replay_many(&[letter.job]).await?,
                ("queue.replay", None) => letters.replay(wanted(form)?).await?,
                (_, Some(letter)) => letters.purge_many(&[letter.job]).await?,
                (_, None) => letters.purge(wanted(form)?).await?,
            };
            return Ok(done);
        }
        "lock.force-release" => {
            let mutex = Mutex::new(store, ns, given(form, "name")?)?;
            // The lease that the page named, and no later one: its holder may be healthy.
            return match (mutex.holder().await?, form.given(HOLDER)) {
                (Some(holder), Some(named)) if holder.id() == named => {
                    one(mutex.force_release(&holder).await?)
                }
                _ => one(false),
            };
        }
        "breaker.force-open" => {
            breaker(&call.app, ns, given(form, "name")?)
                .await?
                .force_open(Duration::from_secs(60))
                .await?
        }
        "breaker.reset" => {
            breaker(&call.app, ns, given(form, "name")?)
                .await?
                .reset()
                .await?
        }
        "cache.invalidate" => {
            let cache = json_cache(&call.app, ns, given(form, "name")?)?;
            match form.given("key") {
                Some(key) => cache.invalidate(key).await?,
                None => cache.invalidate_tag(given(form, "tag")?).await?,
            }
        }
        "session.revoke" => {
            let sessions = Sessions::new(store, ns, given(form, "name")?)?;
            return one(sessions
                .revoke_one(given(form, "user")?, given(form, "handle")?)
                .await?);
        }
        "session.revoke-all" => {
            return Ok(Sessions::new(store, ns, given(form, "name")?)?
                .revoke_all(given(form, "user")?)
                .await?);
        }
        "limiter.check" => {
            let (name, subject) = (given(form, "name")?, given(form, "subject")?);
            let limiter = limiter_of(&call.app, &call.config, ns, name)?.limiter;
            let allowed = limiter.check(subject, 1).await?.is_allowed();
            call.app.hot.note(ns, name, subject, allowed);
            // What a refusal took: nothing.
            return Ok(u64::from(allowed));
        }
        "limiter.reset" => {
            let (name, subject) = (given(form, "name")?, given(form, "subject")?);
            forget(&call.app, &call.config, ns, name, subject).await?;
        }
        _ => return Err(Problem::not_found("action")),
    }
    Ok(1)
}
