//! Every change by hand is in the audit log: the one that was refused too late, the one whose reply was lost. None hits another
//! than the page named.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    locking::Mutex,
    messaging::Queue,
    sessions::{Login, Sessions},
};
use redstart_testkit::{Kind, MonitorTap, Proxy, Server, eventually};
use serde_json::json;

use crate::{
    Served,
    client::{Answer, Client, PATIENCE},
};

const FORM: [(&str, &str); 2] = [
    ("content-type", "application/x-www-form-urlencoded"),
    ("sec-fetch-site", "same-origin"),
];

async fn post(client: &mut Client, action: &str, form: &str) -> Result<Answer> {
    let path = format!("/act/{action}?namespace=n");
    client.send("POST", &path, &FORM, form.as_bytes()).await
}

/// What the log has: what was done, and on what.
async fn log(client: &mut Client) -> Result<Vec<(String, String)>> {
    let audit = client.get("/v1/audit").await?.json();
    let entries = audit["changes"].as_array().context("no log")?.iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    Ok(entries
        .map(|entry| (text(&entry["what"]), text(&entry["on"])))
        .collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_that_is_refused_has_changed_nothing() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "[limiter.api]\nquota = \"1/h\"").await?;
    let mut client = served.client();
    let queue = Queue::new(&store, "n", "q")?;
    let hour = Duration::from_secs(3600);
    let job = queue.enqueue_raw("mail", b"1").delay(hour).await?;
    let job = job.id().context("no id")?;
    queue.enqueue_raw("bad", b"1").await?;
    let leased = client
        .post("/v1/queues/q:lease", json!({"kinds": ["bad"], "wait": 30}))
        .await?
        .json();
    let fence = &leased["jobs"][0]["fence"];
    let fail = json!({"fence": fence, "error": "g", "dead": true});
    client.post("/v1/queues/q:fail", fail).await?;
    let mutex = Mutex::builder(&store, "n", "m").without_renewal().build()?;
    let ticket = mutex
        .try_lock()
        .await?
        .context("not granted")?
        .into_ticket()?;
    let holder = mutex.holder().await?.context("not held")?.id();
    let sessions = Sessions::new(&store, "n", "web")?;
    sessions.login(Login::new("ann"), &json!({})).await?;
    for (action, fields) in [
        ("queue.pause", "queue=q".to_owned()),
        ("queue.purge", "queue=q&group=g".to_owned()),
        ("queue.delete", format!("queue=q&job={job}")),
        ("queue.cancel", format!("queue=q&job={job}")),
        ("queue.run-now", format!("queue=q&job={job}")),
        ("queue.add", "queue=q&kind=k&payload=1".to_owned()),
        ("lock.force-release", format!("name=m&holder={holder}")),
        ("session.revoke-all", "name=web&user=ann".to_owned()),
        ("breaker.force-open", "name=b".to_owned()),
    ] {
        for expected in ["x", "-1", "1180591620717411303424", "1.5"] {
            let form = format!("{fields}&expected={expected}");
            let refused = post(&mut client, action, &form).await?;
            assert_eq!(
                refused.status,
                400,
                "{action} {expected}: {}",
                refused.text()
            );
        }
    }
    let counts = queue.inspect().counts().await?;
    assert_eq!(
        (counts.dead, counts.delayed, counts.ready, counts.paused),
        (1, 1, 0, false)
    );
    ensure!(mutex.extend_held(&ticket, hour).await?);
    assert_eq!(sessions.list("ann").await?.len(), 1);
    let state = client.get("/v1/breakers/b").await?.json();
    assert_eq!(state["state"], "closed");
    assert_eq!(log(&mut client).await?, []);
    served.stop().await
}

/// The node did it, and its reply was lost: nobody knows, and the log says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_in_doubt_is_in_the_audit_log() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::connect(proxy.url()).await?;
    let direct = Store::connect(&server.url()).await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    let hour = Duration::from_secs(3600);
    let mut in_doubt = 0;
    let verbs = ["run-now", "cancel", "delete", "pause", "resume"];
    // A look of the service at the new queue may come first, and its reply is lost instead: then all of it once more.
    for (n, verb) in verbs.iter().cycle().enumerate().take(verbs.len() * 10) {
        if in_doubt > 0 && n >= verbs.len() {
            break;
        }
        // A name that no other command has.
        let name = format!("doubtful-{n}");
        let queue = Queue::new(&direct, "n", &name)?;
        let job = queue.enqueue_raw("mail", b"1").delay(hour).await?;
        let job = job.id().context("no id")?;
        let (method, path, on) = match *verb {
            "pause" | "resume" => ("POST", format!(":{verb}"), format!("n {name}")),
            "delete" => ("DELETE", format!("/jobs/{job}"), format!("n {name} {job}")),
            _ => (
                "POST",
                format!("/jobs/{job}:{verb}"),
                format!("n {name} {job}"),
            ),
        };
        proxy.drop_reply_to(&name);
        let path = format!("/v1/queues/{name}{path}");
        let answer = client.json(method, &path, json!({})).await?;
        // What may be repeated was repeated by the store.
        let on = match (answer.status, answer.problem().as_str()) {
            (200, _) => on,
            (503, "in-doubt") => {
                in_doubt += 1;
                format!("{on} (failed)")
            }
            _ => anyhow::bail!("{verb}: {} {}", answer.status, answer.text()),
        };
        let what = (format!("queue.{verb}"), on);
        let mut seen = Vec::new();
        let is_logged = eventually(PATIENCE, async || {
            seen = log(&mut client).await.unwrap_or_default();
            seen.contains(&what)
        });
        ensure!(is_logged.await, "{what:?} is not in {seen:?}");
        // And once.
        assert_eq!(seen.iter().filter(|(_, on)| on.contains(&name)).count(), 1);
    }
    ensure!(in_doubt > 0, "the store repeats everything");
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_the_page_did_not_name_is_left_alone() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    let hour = Duration::from_secs(3600);
    let worker = |label: &str| {
        let mutex = Mutex::builder(&store, "n", "pay").label(label).ttl(hour);
        mutex.without_renewal().build()
    };
    let (seven, nine) = (worker("worker-7")?, worker("worker-9")?);
    let first = seven.try_lock().await?.context("not granted")?;
    let page = client
        .get("/act/lock.force-release?name=pay&namespace=n")
        .await?
        .text();
    ensure!(page.contains("worker-7"), "{page}");
    let field = page.split("name=\"holder\" value=\"").nth(1);
    let holder = field.and_then(|rest| rest.split('"').next());
    let holder = holder
        .context("the page does not say whose lease it is")?
        .to_owned();
    ensure!(page.contains(&format!("--holder='{holder}'")), "{page}");
    // The lock changes hands while the operator reads.
    let _ = first.release().await?;
    let ticket = nine
        .try_lock()
        .await?
        .context("not granted")?
        .into_ticket()?;
    for form in [
        format!("name=pay&expected=1&holder={holder}"),
        "name=pay&expected=1".to_owned(),
    ] {
        let refused = post(&mut client, "lock.force-release", &form).await?;
        assert_eq!(refused.status, 409, "{}", refused.text());
    }
    let body = json!({"holder": holder});
    let refused = client.post("/v1/locks/pay:force-release", body).await?;
    assert_eq!(refused.status, 409, "{}", refused.text());
    ensure!(
        nine.extend_held(&ticket, hour).await?,
        "its lease was ended"
    );
    assert_eq!(log(&mut client).await?, []);
    // Of the lease that the API names now, it is ended.
    let now = client.get("/v1/locks/pay").await?.json()["holder"].clone();
    let done = client
        .post("/v1/locks/pay:force-release", json!({"holder": now}))
        .await?;
    assert_eq!(done.json()["released"], true, "{}", done.text());
    ensure!(!nine.extend_held(&ticket, hour).await?);
    served.stop().await
}

/// A script that changes a million jobs one by one leaves a million entries; the newest are read from the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_the_log_reads_its_end_only() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    ensure!(client.post("/v1/queues/q:pause", json!({})).await?.status == 200);
    let fill = "local one = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][2] \
        for i = 1, 5000 do redis.call('XADD', KEYS[1], '*', unpack(one)) end";
    let key = "redstart-serve:stream:{audit}";
    server.command(&["EVAL", fill, "1", key]).await?;
    ensure!(client.post("/v1/queues/q:resume", json!({})).await?.status == 200);
    for (path, kind) in [("/v1/audit", "application/json"), ("/audit", "text/html")] {
        let tap = MonitorTap::start(&server).await?;
        let look = client.send("GET", path, &[("accept", kind)], b"").await?;
        ensure!(look.status == 200, "{}", look.text());
        let seen = tap.round_trips(key).await?;
        assert_eq!(seen.len(), 1, "{path}: {seen:?}");
        let text = look.text();
        assert_eq!(text.matches("queue.pause").count(), 199, "{path}");
        ensure!(
            text.find("queue.resume") < text.find("queue.pause"),
            "newest first"
        );
    }
    served.stop().await
}
