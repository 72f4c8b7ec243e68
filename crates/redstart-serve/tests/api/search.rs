//! Searches of queues of any size: in steps, as a stream, and in the page.

use anyhow::{Context as _, Result, ensure};
use redstart::{Store, messaging::Queue};
use redstart_serve::hash_token;
use redstart_testkit::{Backend, Kind, MonitorTap, Server, eventually, matrix};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Served,
    client::{Client, Events, PATIENCE},
};

#[derive(Serialize, Deserialize)]
pub(crate) struct Mail {
    n: u64,
    to: String,
}

impl redstart::messaging::Job for Mail {
    const NAME: &'static str = "mail";
}

/// Adds so many jobs; every thousandth one is Ann's.
pub(crate) async fn fill(queue: &Queue, count: u64) -> Result<()> {
    let mails = (0..count).map(|n| Mail {
        n,
        to: if n % 1000 == 999 { "ann" } else { "bob" }.to_owned(),
    });
    ensure!(queue.enqueue_many(mails).await?.refused == 0);
    Ok(())
}

/// What a stream of a search told: the jobs' numbers, and the last progress.
async fn rest(events: &mut Events) -> Result<(Vec<u64>, Vec<Value>, String)> {
    let (mut found, mut progress) = (Vec::new(), Vec::new());
    loop {
        let name = events.line().await?.context("the stream broke off")?;
        let data = events.line().await?.context("no data")?;
        let data: Value = serde_json::from_str(data.trim_start_matches("data: "))?;
        match name.as_str() {
            "event: found" => found.push(data["payload"]["n"].as_u64().context("no number")?),
            "event: progress" => progress.push(data),
            _ => {
                progress.push(data);
                return Ok((found, progress, name));
            }
        }
    }
}

async fn steps(client: &mut Client, query: &str) -> Result<(Vec<u64>, Vec<Value>)> {
    let (mut found, mut answers, mut from) = (Vec::new(), Vec::new(), String::new());
    loop {
        let answer = client
            .get(&format!("/v1/queues/q/jobs?{query}{from}"))
            .await?;
        ensure!(answer.status == 200, "{}", answer.text());
        let answer = answer.json();
        let jobs = answer["jobs"].as_array().context("no jobs")?;
        found.extend(jobs.iter().filter_map(|job| job["payload"]["n"].as_u64()));
        let next = answer["next"].as_str().map(str::to_owned);
        answers.push(answer);
        match next {
            Some(next) => from = format!("&from={next}"),
            None => return Ok((found, answers)),
        }
    }
}

matrix! {
    async fn a_search_goes_through_a_queue_of_any_size_in_steps_and_as_a_stream(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let queue = Queue::new(&served.store, backend.namespace(), "q")?;
        // More than one step reads.
        let count = 26_000;
        fill(&queue, count).await?;
        let expected: Vec<u64> = (0..26).map(|n| n * 1000 + 999).collect();
        let (mut found, answers) = steps(&mut client, "state=ready&search=ann").await?;
        found.sort_unstable();
        assert_eq!(found, expected);
        ensure!(answers.len() > 1, "one step is bounded");
        let last = answers.last().context("none")?;
        assert_eq!((&last["scanned"], &last["total"]), (&count.into(), &count.into()));
        // All of a state, page by page, and by kind.
        let (all, _) = steps(&mut client, "state=ready&kind=mail&search=bob").await?;
        assert_eq!(all.len(), 25_974);
        ensure!(steps(&mut client, "state=ready&kind=other").await?.0.is_empty());

        let mut events = client.events("/v1/queues/q/jobs:search?state=ready&search=ann").await?;
        let (mut found, progress, end) = rest(&mut events).await?;
        found.sort_unstable();
        assert_eq!((found, end.as_str()), (expected, "event: end"));
        assert_eq!((&progress[0]["scanned"], &progress[0]["total"]), (&0.into(), &count.into()));
        ensure!(progress.len() > 3, "it says how far it is: {progress:?}");
        let last = progress.last().context("none")?;
        assert_eq!((&last["scanned"], &last["found"], &last["next"]), (&count.into(), &26.into(), &Value::Null));

        // It ends when it has found enough, and goes on from there, also for a browser that lost its connection.
        let mut events = client.events("/v1/queues/q/jobs:search?state=ready&search=ann&limit=5").await?;
        let (mut found, progress, _) = rest(&mut events).await?;
        let next = progress.last().context("none")?["next"].as_str().context("no next")?.to_owned();
        ensure!((5..26).contains(&found.len()), "{found:?}");
        let mut again = served.client().header("last-event-id", &next);
        let mut events = again.events("/v1/queues/q/jobs:search?state=ready&search=ann&limit=1000").await?;
        let (more, ..) = rest(&mut events).await?;
        found.extend(more);
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 26);
        for bad in ["x", "5_", "5_zz", "-1_l0", "5_l-3", "5_x1.7d7d", "_"] {
            let refused = client.get(&format!("/v1/queues/q/jobs?state=ready&search=x&from={bad}")).await?;
            ensure!(refused.status == 400 || bad == "5_", "{bad}: {}", refused.text());
        }
        ensure!(client.get("/v1/queues/q/jobs:search?state=ready&error=x").await?.status == 400);
        served.stop().await
    }

    async fn dead_letters_are_searched_by_their_error_and_payload(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, "").await?;
        let mut client = served.client();
        let queue = Queue::new(&served.store, backend.namespace(), "q")?;
        fill(&queue, 6).await?;
        for n in 0..6 {
            let leased = client.post("/v1/queues/q:lease", serde_json::json!({"kinds": ["mail"], "wait": 30})).await?.json();
            let fence = &leased["jobs"][0]["fence"];
            let failed = serde_json::json!({"fence": fence, "error": format!("code {} at {n}", n % 2), "dead": true});
            ensure!(client.post("/v1/queues/q:fail", failed).await?.status == 200);
        }
        let (found, answers) = steps(&mut client, "state=dead&error=code%201").await?;
        assert_eq!((found.len(), &answers[0]["total"]), (3, &6.into()));
        assert_eq!(answers[0]["jobs"][0]["state"], "dead");
        assert_eq!(steps(&mut client, "state=dead&search=%22n%22:5").await?.0, [5]);
        let path = format!("/queues/q/search?namespace={}&state=dead&text=bob", backend.namespace());
        let page = client.send("GET", &path, &[("accept", "text/html")], b"").await?;
        ensure!(page.text().contains("Scanned 6 of 6 dead jobs; 6 shown"), "{}", page.text());
        served.stop().await
    }
}

/// Only what reaches the server counts: a search whose client has left sends nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_ends_with_its_connection_and_all_take_turns() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let served = Served::on(&store, "n", "").await?;
    let queue = Queue::new(&store, "n", "q")?;
    fill(&queue, 40_000).await?;
    let path = "/v1/queues/q/jobs:search?state=ready&search=nobody";
    let mut client = served.client();
    let mut all = Vec::new();
    for _ in 0..8 {
        let mut events = client.events(path).await?;
        ensure!(events.line().await?.as_deref() == Some("event: progress"));
        all.push(events);
    }
    let tap = MonitorTap::start(&server).await?;
    // Every one of them comes along.
    for events in &mut all {
        for _ in 0..6 {
            ensure!(
                events
                    .line()
                    .await?
                    .is_some_and(|line| !line.contains("end"))
            );
        }
    }
    // Pages never overlap: each is a range of the list and the records of it.
    let seen = tap.round_trips("n:queue:{q}").await?;
    let names: Vec<String> = seen
        .iter()
        .map(redstart_testkit::monitor::Seen::name)
        .collect();
    let pages: Vec<&String> = names
        .iter()
        .filter(|name| ["LRANGE", "HMGET"].contains(&name.as_str()))
        .collect();
    ensure!(pages.len() > 40, "{} commands", pages.len());
    let alternate = pages.windows(2).all(|pair| pair[0] != pair[1]);
    ensure!(
        alternate,
        "pages of several searches were read at once: {pages:?}"
    );
    let largest = seen.iter().map(|command| command.words.len()).max();
    ensure!(largest <= Some(210), "a page has 200 jobs: {largest:?}");
    drop(all);
    let ended = eventually(PATIENCE, async || {
        let mut client = served.client();
        matches!(client.get("/metrics").await, Ok(metrics) if metrics.text().contains("redstart_http_streams 0"))
    });
    ensure!(ended.await, "streams are left");
    tap.clear().await?;
    let mut other = served.client();
    for _ in 0..20 {
        ensure!(other.get("/v1/queues/empty").await?.status == 200);
    }
    let later = tap.round_trips("n:queue:{q}:ready").await?;
    let reads = later.iter().filter(|command| command.name() == "LRANGE");
    assert_eq!(reads.count(), 0, "the searches went on");
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_says_how_far_it_is_and_goes_on_without_javascript() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let queue = Queue::new(&store, "n", "q")?;
    fill(&queue, 12_000).await?;
    let mut client = served.client();
    let (mut path, mut pages, mut found) = (
        "/queues/q/search?namespace=n&state=ready&text=ann".to_owned(),
        0,
        0,
    );
    loop {
        let page = client
            .send("GET", &path, &[("accept", "text/html")], b"")
            .await?
            .text();
        pages += 1;
        found += page.matches("<tr data-job=").count();
        ensure!(
            page.contains("Scanned ") && page.contains(" of 12,000 ready jobs"),
            "{page}"
        );
        let Some((_, rest)) = page.split_once("id=\"more\" href=\"") else {
            ensure!(page.contains("Scanned 12,000 of 12,000"), "{page}");
            break;
        };
        path = rest
            .split('"')
            .next()
            .context("no link")?
            .replace("&amp;", "&");
    }
    assert_eq!(found, 12);
    ensure!(pages > 2, "one page is bounded");
    // What is not shown to a reader is not found either, also not in a stream.
    let config = format!(
        "redact = [\"to\"]\n[[token]]\nname = \"eve\"\nsha256 = {:?}\nrole = \"read\"",
        hash_token("eve")
    );
    let confined = Served::on(&store, "n", &config).await?;
    let mut eve = confined.client().header("authorization", "Bearer eve");
    let (found, _) = steps(&mut eve, "state=ready&search=ann").await?;
    ensure!(found.is_empty());
    let mut events = eve
        .events("/v1/queues/q/jobs:search?state=ready&search=ann")
        .await?;
    ensure!(rest(&mut events).await?.0.is_empty());
    let mut events = eve
        .events("/queues/q/search/rows?namespace=n&state=ready&text=999")
        .await?;
    let row = loop {
        let line = events.line().await?.context("the stream broke off")?;
        if line.contains("<tr") {
            break line;
        }
    };
    ensure!(!row.contains("ann") && !row.contains("/act/"), "{row}");
    confined.stop().await?;
    served.stop().await
}

/// One reader cannot take all turns: those of a caller have a bounded number of searches, and others have their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_reader_cannot_hold_up_the_others() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let token = |name: &str| {
        let hash = hash_token(name);
        format!("[[token]]\nname = {name:?}\nsha256 = {hash:?}\nrole = \"read\"\n")
    };
    let served = Served::on(&store, "n", &(token("eve") + &token("ann"))).await?;
    let queue = Queue::new(&store, "n", "q")?;
    fill(&queue, 40_000).await?;
    let mut eve = served.client().header("authorization", "Bearer eve");
    let mut ann = served.client().header("authorization", "Bearer ann");
    let search = "/v1/queues/q/jobs:search?state=ready&search=nobody";
    let mut open = Vec::new();
    for _ in 0..16 {
        open.push(eve.events(search).await?);
    }
    for path in [
        search,
        "/v1/queues/q/jobs?state=ready&search=nobody",
        "/queues/q/search?namespace=n&state=ready&text=nobody",
        "/queues/q/search/rows?namespace=n&state=ready&text=nobody",
    ] {
        let refused = eve.get(path).await?;
        assert_eq!(refused.status, 429, "{path}: {}", refused.text());
    }
    ann.events(search).await?;
    let page = ann.get("/v1/queues/q/jobs?state=ready").await?;
    ensure!(page.status == 200, "{}", page.text());
    // A search that ends makes room.
    open.pop();
    let again = eventually(PATIENCE, async || eve.events(search).await.is_ok());
    ensure!(again.await);
    served.stop().await
}
