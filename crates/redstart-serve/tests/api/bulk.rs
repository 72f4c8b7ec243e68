//! Changes of all jobs that match a filter: counted, confirmed, made in small pieces, written down.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use redstart::{Store, messaging::Queue};
use redstart_serve::hash_token;
use redstart_testkit::{Backend, Kind, MonitorTap, Server, eventually, matrix};
use serde_json::{Value, json};

use crate::{
    Served,
    client::{Client, PATIENCE},
    search::fill,
};

/// Counts what matches.
async fn count(client: &mut Client, filter: Value) -> Result<Value> {
    let begun = client.post("/v1/queues/q/bulk", filter).await?;
    ensure!(begun.status == 202, "{} {}", begun.status, begun.text());
    settled(client, &begun.json()).await
}

async fn settled(client: &mut Client, bulk: &Value) -> Result<Value> {
    let id = bulk["id"].as_str().context("no id")?;
    let found = client
        .get(&format!("/v1/queues/q/bulk/{id}?wait=60"))
        .await?;
    ensure!(found.status == 200, "{}", found.text());
    Ok(found.json())
}

/// Confirms what was counted, and waits for the end.
async fn confirm(client: &mut Client, counted: &Value) -> Result<Value> {
    let id = counted["id"].as_str().context("no id")?;
    let confirm = json!({"count": counted["matched"]});
    let begun = client
        .post(&format!("/v1/queues/q/bulk/{id}:confirm"), confirm)
        .await?;
    ensure!(begun.status == 202, "{} {}", begun.status, begun.text());
    settled(client, &begun.json()).await
}

/// The namespace of the service is that of the test, so changes of others are not in its log.
async fn changes(
    client: &mut Client,
    namespace: &str,
) -> Result<Vec<(String, String, u64, Option<u64>)>> {
    let log = client.get("/v1/audit").await?.json();
    let changes = log["changes"].as_array().context("no log")?.iter();
    let mut of_test: Vec<_> = changes
        .filter(|change| {
            change["on"]
                .as_str()
                .is_some_and(|on| on.starts_with(namespace))
        })
        .filter_map(|change| {
            let text = |name: &str| change[name].as_str().map(str::to_owned);
            Some((
                text("what")?,
                text("on")?,
                change["count"].as_u64()?,
                change["expected"].as_u64(),
            ))
        })
        .collect();
    of_test.reverse();
    Ok(of_test)
}

async fn fail_all(client: &mut Client, jobs: u64) -> Result<()> {
    for n in 0..jobs {
        let leased = client
            .post(
                "/v1/queues/q:lease",
                json!({"kinds": ["mail", "report"], "wait": 30}),
            )
            .await?
            .json();
        let fence = &leased["jobs"][0]["fence"];
        let failed =
            json!({"fence": fence, "error": format!("code {} at {n}", n % 2), "dead": true});
        ensure!(client.post("/v1/queues/q:fail", failed).await?.status == 200);
    }
    Ok(())
}

matrix! {
    async fn each_action_changes_what_was_counted_and_nothing_else(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let queue = Queue::new(&served.store, backend.namespace(), "q")?;
        let counts = async || queue.inspect().counts().await;
        let hour = Duration::from_secs(3600);
        for n in 0..300_u64 {
            let kind = if n % 3 == 0 { "report" } else { "mail" };
            queue.enqueue_raw(kind, n.to_string().as_bytes()).delay(hour).await?;
        }
        // Counting changes nothing.
        let counted = count(&mut client, json!({"action": "promote", "state": "delayed", "kind": "report", "text": "29"})).await?;
        // 129, 229 and 290 to 299 have a 29; of them, these are reports.
        let reports = (0..300_u64).filter(|n| n % 3 == 0 && n.to_string().contains("29")).count() as u64;
        assert_eq!((&counted["stage"], &counted["matched"], &counted["scanned"]), (&json!("counted"), &reports.into(), &300.into()));
        assert_eq!((counts().await?.delayed, counts().await?.ready), (300, 0));
        // Another number is refused, and one that came later is left.
        let id = counted["id"].as_str().context("no id")?;
        let wrong = client.post(&format!("/v1/queues/q/bulk/{id}:confirm"), json!({"count": reports + 1})).await?;
        assert_eq!((wrong.status, counts().await?.ready), (409, 0), "{}", wrong.text());
        queue.enqueue_raw("report", b"29").delay(hour).await?;
        let done = confirm(&mut client, &counted).await?;
        assert_eq!((&done["stage"], &done["changed"]), (&json!("done"), &reports.into()));
        assert_eq!((counts().await?.delayed, counts().await?.ready), (301 - reports, reports));
        // A confirmation that is sent again changes nothing.
        let again = confirm(&mut client, &counted).await?;
        assert_eq!((&again["changed"], counts().await?.ready), (&reports.into(), reports));

        let cancel = count(&mut client, json!({"action": "cancel", "state": "delayed", "text": "7"})).await?;
        let sevens = cancel["matched"].as_u64().context("no number")?;
        assert_eq!(confirm(&mut client, &cancel).await?["changed"], sevens);
        assert_eq!(counts().await?.delayed, 301 - reports - sevens);
        let delete = count(&mut client, json!({"action": "delete", "state": "delayed", "all": true})).await?;
        confirm(&mut client, &delete).await?;
        assert_eq!((counts().await?.delayed, counts().await?.ready), (0, reports));
        let delete = count(&mut client, json!({"action": "delete", "state": "ready", "kind": "report"})).await?;
        confirm(&mut client, &delete).await?;
        assert_eq!(counts().await?.unfinished(), 0);

        // Dead letters, by their error and by its group.
        fill(&queue, 40).await?;
        fail_all(&mut client, 40).await?;
        let retry = count(&mut client, json!({"action": "retry", "state": "dead", "error": "code 1"})).await?;
        assert_eq!(retry["matched"], 20);
        assert_eq!(confirm(&mut client, &retry).await?["changed"], 20);
        assert_eq!((counts().await?.dead, counts().await?.ready), (20, 20));
        // One that dies again after the count is not meant.
        let purge = count(&mut client, json!({"action": "delete", "state": "dead", "group": "code # at #"})).await?;
        assert_eq!(purge["matched"], 20);
        fail_all(&mut client, 5).await?;
        assert_eq!(confirm(&mut client, &purge).await?["changed"], 20);
        assert_eq!((counts().await?.dead, counts().await?.ready), (5, 15));

        // Running jobs are told.
        let leased = client.post("/v1/queues/q:lease", json!({"kinds": ["mail"], "max": 3, "wait": 30})).await?.json();
        let held = leased["jobs"].as_array().context("no jobs")?.len();
        ensure!(held > 0);
        let cancel = count(&mut client, json!({"action": "cancel", "state": "running", "kind": "mail"})).await?;
        assert_eq!(confirm(&mut client, &cancel).await?["changed"], held);
        let extended = client.post("/v1/queues/q:extend", json!({"fence": leased["jobs"][0]["fence"]})).await?.json();
        assert_eq!(extended["cancelled"], true, "{extended}");

        // Each is in the log twice: when it began, and how it ended.
        let log = changes(&mut client, backend.namespace()).await?;
        let retries: Vec<_> = log.iter().filter(|(what, ..)| what == "queue.bulk-retry").collect();
        assert_eq!(retries.len(), 2, "{log:?}");
        ensure!(retries[0].1.ends_with("(begun)") && retries[0].1.contains("code 1"), "{retries:?}");
        assert_eq!((retries[1].2, retries[1].3), (20, Some(20)));
        for what in ["queue.bulk-promote", "queue.bulk-cancel", "queue.bulk-delete"] {
            ensure!(log.iter().any(|(known, ..)| known == what), "{what}");
        }
        served.stop().await
    }

    /// What came to match between the count and the confirmation was in no number that somebody has seen.
    async fn a_confirmed_change_leaves_what_came_to_match_after_the_count(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let queue = Queue::new(&served.store, backend.namespace(), "q")?;
        let counts = async || queue.inspect().counts().await;
        fill(&queue, 10).await?;
        let first = lease(&mut client, 3).await?;
        let cancel = count(&mut client, json!({"action": "cancel", "state": "running", "kind": "mail"})).await?;
        assert_eq!(cancel["matched"], 3);
        let later = lease(&mut client, 4).await?;
        let done = confirm(&mut client, &cancel).await?;
        assert_eq!((&done["stage"], &done["changed"]), (&json!("done"), &json!(3)), "{done}");
        for (fences, cancelled) in [(first, true), (later, false)] {
            for fence in fences {
                let extended = client.post("/v1/queues/q:extend", json!({"fence": fence})).await?.json();
                assert_eq!(extended["cancelled"], cancelled, "{extended}");
            }
        }
        // The same for every job of a state.
        let mut ids = Vec::new();
        for n in 0..30_u64 {
            let added = queue.enqueue_raw("mail", n.to_string().as_bytes()).delay(Duration::from_secs(3600)).await?;
            ids.push(added.id().context("full")?);
        }
        assert_eq!(counts().await?.ready, 3);
        let delete = count(&mut client, json!({"action": "delete", "state": "ready", "all": true})).await?;
        assert_eq!(delete["matched"], 3);
        assert_eq!(queue.inspect().run_now_many(&ids).await?, 30);
        assert_eq!(confirm(&mut client, &delete).await?["changed"], 3);
        assert_eq!(counts().await?.ready, 30);
        served.stop().await
    }
}

/// Takes so many jobs; their fences.
async fn lease(client: &mut Client, jobs: usize) -> Result<Vec<Value>> {
    let mut fences = Vec::new();
    for _ in 0..jobs {
        let ask = json!({"kinds": ["mail"], "wait": 30});
        let leased = client.post("/v1/queues/q:lease", ask).await?.json();
        let fence = leased["jobs"][0]["fence"].clone();
        ensure!(fence.is_string(), "{leased}");
        fences.push(fence);
    }
    Ok(fences)
}

/// A field that a client left empty by mistake must not stand for every job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_text_chooses_no_job() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    for (field, state) in [
        ("kind", "ready"),
        ("text", "ready"),
        ("error", "dead"),
        ("group", "dead"),
    ] {
        for all in [false, true] {
            let mut filter = json!({"action": "delete", "state": state, "all": all});
            filter[field] = "".into();
            let refused = client.post("/v1/queues/q/bulk", filter).await?;
            ensure!(
                refused.status == 400,
                "{field}: {} {}",
                refused.status,
                refused.text()
            );
        }
    }
    served.stop().await
}

/// A client that sends an `Idempotency-Key` with each change confirms and stops with one too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirmation_takes_an_idempotency_key() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let queue = Queue::new(&store, "n", "q")?;
    fill(&queue, 5).await?;
    let mut client = served.client();
    let delete = json!({"action": "delete", "state": "ready", "all": true});
    let counted = count(&mut client, delete).await?;
    let id = counted["id"].as_str().context("no id")?;
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "\"confirm-1\""),
    ];
    let path = format!("/v1/queues/q/bulk/{id}:confirm");
    let mut answers = Vec::new();
    for _ in 0..2 {
        let answer = client.send("POST", &path, &headers, b"{\"count\": 5}");
        let answer = answer.await?;
        ensure!(answer.status == 202, "{}", answer.text());
        answers.push(answer.text());
    }
    assert_eq!(answers[0], answers[1]);
    let path = format!("/v1/queues/q/bulk/{id}");
    let headers = [("idempotency-key", "\"stop-1\"")];
    let stopped = client.send("DELETE", &path, &headers, b"").await?;
    ensure!(stopped.status == 200, "{}", stopped.text());
    served.stop().await
}

/// The form of a page, sent as a browser sends it.
async fn send(client: &mut Client, path: &str, form: &str) -> Result<String> {
    let kind = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("accept", "text/html"),
        ("sec-fetch-site", "same-origin"),
    ];
    let answer = client.send("POST", path, &kind, form.as_bytes()).await?;
    ensure!(
        answer.status == 303,
        "{path}: {} {}",
        answer.status,
        answer.text()
    );
    Ok(answer.header("location").context("no location")?.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_count_ask_and_change_without_javascript() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let queue = Queue::new(&store, "n", "q")?;
    fill(&queue, 3000).await?;
    let mut client = served.client();
    let html = [("accept", "text/html")];
    let form = client
        .send("GET", "/queues/q/bulk?namespace=n&state=ready", &html, b"")
        .await?
        .text();
    ensure!(
        form.contains("Count them") && form.contains("Cancel jobs that wait or run"),
        "{form}"
    );
    let at = send(
        &mut client,
        "/queues/q/bulk?namespace=n",
        "action=delete&state=ready&kind=&error=&text=ann",
    )
    .await?;
    let mut page = String::new();
    let is_counted = eventually(PATIENCE, async || {
        page = client
            .send("GET", &at, &html, b"")
            .await
            .map(|page| page.text())
            .unwrap_or_default();
        page.contains("Yes, delete 3")
    });
    ensure!(is_counted.await, "{page}");
    ensure!(page.contains("Scanned 3,000 of 3,000 ready jobs"), "{page}");
    assert_eq!(
        queue.inspect().counts().await?.ready,
        3000,
        "nothing is changed yet"
    );
    let confirm = at.replace("?namespace", "/confirm?namespace");
    send(&mut client, &confirm, "count=3").await?;
    let is_done = eventually(
        PATIENCE,
        async || matches!(client.send("GET", &at, &html, b"").await, Ok(page) if page.text().contains("It is done: 3 of 3")),
    );
    ensure!(is_done.await);
    assert_eq!(queue.inspect().counts().await?.ready, 2997);
    // Nobody who may not change anything sees it, or may begin it.
    let config = format!(
        "[[token]]\nname = \"eve\"\nsha256 = {:?}\nrole = \"operate\"",
        hash_token("eve")
    );
    let confined = Served::on(&store, "n", &config).await?;
    let mut eve = confined.client().header("authorization", "Bearer eve");
    let begun = eve
        .post(
            "/v1/queues/q/bulk",
            json!({"action": "delete", "state": "ready", "all": true}),
        )
        .await?;
    assert_eq!(begun.status, 403);
    for path in ["/queues/q/bulk", &at, "/v1/queues/q/bulk/x"] {
        assert_eq!(eve.get(path).await?.status, 403, "{path}");
    }
    confined.stop().await?;
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_not_clear_is_refused() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    for bad in [
        json!({"action": "delete", "state": "ready"}),
        json!({"action": "delete", "state": "ready", "all": true, "kind": "x"}),
        json!({"action": "delete", "state": "running", "all": true}),
        json!({"action": "delete", "state": "done", "all": true}),
        json!({"action": "retry", "state": "ready", "all": true}),
        json!({"action": "promote", "state": "dead", "all": true}),
        json!({"action": "cancel", "state": "dead", "all": true}),
        json!({"action": "cancel", "state": "ready", "error": "x"}),
        json!({"action": "explode", "state": "ready", "all": true}),
        json!({"action": "cancel", "state": "x", "all": true}),
        json!({}),
    ] {
        let refused = client.post("/v1/queues/q/bulk", bad.clone()).await?;
        assert_eq!(refused.status, 400, "{bad}: {}", refused.text());
    }
    let counted = count(
        &mut client,
        json!({"action": "cancel", "state": "ready", "all": true}),
    )
    .await?;
    let id = counted["id"].as_str().context("no id")?;
    // It is one of this queue and this namespace.
    for path in [
        format!("/v1/queues/other/bulk/{id}"),
        format!("/v1/queues/q/bulk/{id}?namespace=m"),
        "/v1/queues/q/bulk/x".into(),
    ] {
        assert_eq!(client.get(&path).await?.status, 404, "{path}");
    }
    let stopped = client
        .send("DELETE", &format!("/v1/queues/q/bulk/{id}"), &[], b"")
        .await?;
    assert_eq!(stopped.json()["stage"], "stopped");
    let late = client
        .post(
            &format!("/v1/queues/q/bulk/{id}:confirm"),
            json!({"count": 0}),
        )
        .await?;
    assert_eq!(late.status, 409);
    served.stop().await
}

/// The work of each step is the same however many jobs there are, and one that is stopped changes nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_is_small_and_a_stop_is_heard() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let served = Served::on(&store, "n", "").await?;
    let queue = Queue::new(&store, "n", "q")?;
    fill(&queue, 20_000).await?;
    let mut client = served.client();
    let counted = count(
        &mut client,
        json!({"action": "delete", "state": "ready", "kind": "mail"}),
    )
    .await?;
    assert_eq!(counted["matched"], 20_000);
    let tap = MonitorTap::start(&server).await?;
    let id = counted["id"].as_str().context("no id")?.to_owned();
    let confirm = json!({"count": 20_000});
    ensure!(
        client
            .post(&format!("/v1/queues/q/bulk/{id}:confirm"), confirm)
            .await?
            .status
            == 202
    );
    let path = format!("/v1/queues/q/bulk/{id}");
    let begun = eventually(
        PATIENCE,
        async || matches!(client.get(&path).await, Ok(bulk) if bulk.json()["changed"].as_u64() > Some(100)),
    );
    ensure!(begun.await);
    ensure!(client.send("DELETE", &path, &[], b"").await?.status == 200);
    let end = settled(&mut client, &counted).await?;
    let changed = end["changed"].as_u64().context("no number")?;
    assert_eq!(end["stage"], "stopped", "{end}");
    ensure!((100..20_000).contains(&changed), "{end}");
    assert_eq!(
        queue.inspect().counts().await?.ready,
        20_000 - changed,
        "all that is changed is counted"
    );
    // Between two looks at records for a change, at most a piece of jobs is deleted; the scripts of the first piece are sent
    // again, because the server does not know them.
    let seen = tap.round_trips("n:queue:{q}").await?;
    let mut run = 0;
    let mut longest = 0;
    for command in &seen {
        run = if command.name().starts_with("EVAL") {
            run + 1
        } else {
            0
        };
        longest = longest.max(run);
    }
    ensure!((1..=50).contains(&longest), "{longest} scripts at once");
    let log = changes(&mut client, "n ").await?;
    let last = log
        .iter()
        .rfind(|(what, ..)| what == "queue.bulk-delete")
        .context("not written down")?;
    ensure!(
        last.1.ends_with("(stopped)") && last.2 == changed && last.3 == Some(20_000),
        "{log:?}"
    );
    served.stop().await
}

/// A service that stops in the middle of a change says how far it came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_service_ends_a_change_and_writes_it_down() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let queue = Queue::new(&store, "n", "q")?;
    fill(&queue, 20_000).await?;
    let mut client = served.client();
    let counted = count(
        &mut client,
        json!({"action": "cancel", "state": "ready", "all": true}),
    )
    .await?;
    let id = counted["id"].as_str().context("no id")?;
    let begun = client
        .post(
            &format!("/v1/queues/q/bulk/{id}:confirm"),
            json!({"count": 20_000}),
        )
        .await?;
    ensure!(begun.status == 202);
    served.stop().await?;
    let left = queue.inspect().counts().await?.ready;
    let second = Served::on(&store, "n", "").await?;
    let log = changes(&mut second.client(), "n ").await?;
    let last = log
        .iter()
        .rfind(|(what, ..)| what == "queue.bulk-cancel")
        .context("not written down")?;
    ensure!(
        last.1.ends_with("(stopped)") && last.2 == 20_000 - left,
        "{log:?}, {left} left"
    );
    second.stop().await
}
