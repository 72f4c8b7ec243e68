//! Many watchers cost the store what one costs, and slow requests end.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use redstart::{Store, messaging::Queue};
use redstart_testkit::{Kind, Server, eventually, figure, scale};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{Served, client::PATIENCE};

/// How often the server was asked to do this.
async fn calls(server: &Server, command: &str) -> Result<u64> {
    let stats: String = server.query(&["INFO", "commandstats"]).await?;
    let line = stats.lines().find_map(|line| {
        let rest = line.strip_prefix("cmdstat_")?.strip_prefix(command)?;
        rest.strip_prefix(":calls=")
    });
    let Some(line) = line else { return Ok(0) };
    Ok(line.split(',').next().context("no count")?.parse()?)
}

async fn connections(server: &Server) -> Result<u64> {
    Ok(server.info("connected_clients").await?.parse()?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_watchers_of_a_queue_cost_one_reader() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let clients = scale(100, "WATCHERS");
    let served = Served::on(
        &store,
        "w",
        &format!("[limits]\nstreams = {}", clients + 10),
    )
    .await?;
    let queue = Queue::builder(&store, "w", "q").keep_events(1000).build()?;
    let added = |n: u64| {
        let queue = queue.clone();
        async move { queue.enqueue_raw("count", n.to_string().as_bytes()).await }
    };
    added(0).await?;
    let before = connections(&server).await?;
    let mut watchers = Vec::new();
    for _ in 0..clients {
        let mut events = served.client().events("/v1/queues/q/events").await?;
        ensure!(events.line().await?.as_deref() == Some("event: listening"));
        events.line().await?;
        watchers.push(events);
    }
    let more = connections(&server).await?.saturating_sub(before);
    ensure!(more <= 4, "{more} connections for {clients} watchers");
    let (reads, ranges) = (
        calls(&server, "xread").await?,
        calls(&server, "xrange").await?,
    );
    added(1).await?;
    added(2).await?;
    let mut first = None;
    for watcher in &mut watchers {
        for _ in 0..2 {
            ensure!(watcher.line().await?.as_deref() == Some("event: added"));
            let data = watcher.line().await?;
            first = first.or(data);
        }
    }
    let reads = calls(&server, "xread").await? - reads;
    let ranges = calls(&server, "xrange").await? - ranges;
    // At most one for each event, and those that waited in vain.
    ensure!(
        reads + ranges < 20,
        "{reads} reads and {ranges} ranges for {clients} watchers"
    );
    figure(format!(
        "{clients} watchers of a queue, 2 events: {more} connections, {} reads of the store",
        reads + ranges
    ));

    // One who comes later gets what it has missed, and each event once.
    let known = queue.inspect().events(None).await?;
    let oldest = &known.first().context("no events")?.id;
    let mut late = served
        .client()
        .events(&format!("/v1/queues/q/events?after={oldest}"))
        .await?;
    ensure!(late.line().await?.as_deref() == Some("event: listening"));
    late.line().await?;
    added(3).await?;
    let mut heard = Vec::new();
    while heard.len() < 3 {
        ensure!(late.line().await?.as_deref() == Some("event: added"));
        let line = late.line().await?.context("no data")?;
        let data: Value = serde_json::from_str(line.strip_prefix("data: ").context("no data")?)?;
        heard.push(data["jobs"][0].to_string());
    }
    let all = queue.inspect().events(None).await?;
    let expected: Vec<String> = all
        .iter()
        .skip(1)
        .map(|event| json!(event.jobs[0].to_string()).to_string())
        .collect();
    ensure!(heard == expected, "{heard:?} is not {expected:?}");
    ensure!(
        served
            .client()
            .get("/v1/queues/q/events?after=x")
            .await?
            .status
            == 400
    );

    // With the last watcher the reader goes.
    drop((watchers, late));
    let ended = eventually(
        PATIENCE,
        async || matches!(connections(&server).await, Ok(now) if now <= before),
    );
    ensure!(ended.await, "the reader has stayed");
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_pages_of_one_reader_are_rendered_once_per_tick() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let queue = Queue::new(&store, "w", "q")?;
    queue.enqueue_raw("count", b"1").await?;
    let served = Served::on(&store, "w", "").await?;
    let mut client = served.client();
    ensure!(client.get("/queues/q?namespace=w").await?.status == 200);
    let commands =
        async || -> Result<u64> { Ok(server.info("total_commands_processed").await?.parse()?) };
    let begun = commands().await?;
    let whole = client.get("/queues/q?namespace=w").await?.text();
    let one = (commands().await? - begun).max(1);
    let begun = (commands().await?, tokio::time::Instant::now());
    let pages = 50_u64;
    for _ in 0..pages {
        let part = client
            .send(
                "GET",
                "/queues/q?namespace=w",
                &[("hx-request", "true")],
                b"",
            )
            .await?;
        ensure!(
            part.status == 200 && part.text().contains("id=\"live\""),
            "{}",
            part.text()
        );
    }
    let cost = commands().await? - begun.0;
    // One page for each second that it took, and what the service does by itself.
    let renders = begun.1.elapsed().as_secs() + 2;
    let most = (renders + 2) * (one + 40);
    ensure!(
        cost <= most,
        "{cost} commands for {pages} pages of {one}, {renders} renders expected"
    );
    // Whoever loads the page sees what is, not what was.
    queue.enqueue_raw("count", b"2").await?;
    let fresh = client.get("/queues/q?namespace=w").await?.text();
    ensure!(fresh != whole);
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_requests_end_with_what_is_known_of_them() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_secs(60))
        .connect()
        .await?;
    let served = Served::on(&store, "slow", "[limits]\nrequest_time = \"300ms\"").await?;
    let mut client = served.client();
    ensure!(client.get("/v1/locks/x").await?.status == 200);
    server.pause()?;
    let read = client.get("/v1/locks/x").await?;
    let write = client
        .post("/v1/counters/a/b:add", json!({"by": 1}))
        .await?;
    let health = client.get("/healthz").await?;
    server.resume()?;
    ensure!(
        (read.status, read.problem().as_str()) == (504, "deadline"),
        "{}",
        read.text()
    );
    ensure!(
        (write.status, write.problem().as_str()) == (503, "in-doubt"),
        "{}",
        write.text()
    );
    ensure!(health.status == 200);
    let again = eventually(
        PATIENCE,
        async || matches!(client.get("/v1/locks/x").await, Ok(answer) if answer.status == 200),
    );
    ensure!(again.await);
    served.stop().await
}

/// The memory of this process, which has both ends of all connections.
fn resident() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).context("no size")?.parse()?;
    Ok(pages * 4096)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_and_long_polls_fit_into_300_mb() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let (watchers, polls) = (scale(50, "MEMORY_WATCHERS"), scale(250, "MEMORY_POLLS"));
    let limits = format!(
        "[limits]\nwait = \"1h\"\nstreams = {watchers}\nlong_polls = {polls}\nconnections = 20000"
    );
    let served = Served::on(&store, "m", &limits).await?;
    let before = resident()?;
    let mut open = Vec::new();
    for _ in 0..watchers {
        let mut stream = TcpStream::connect(served.address).await?;
        stream
            .write_all(b"GET /v1/queues/q/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await?;
        open.push(stream);
    }
    let body = r#"{"kinds": ["count"], "wait": 3600}"#;
    let poll = format!(
        "POST /v1/queues/q:lease HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..polls {
        let mut stream = TcpStream::connect(served.address).await?;
        stream.write_all(poll.as_bytes()).await?;
        open.push(stream);
    }
    let mut client = served.client();
    let wanted = [
        format!("redstart_http_waiting {polls}"),
        format!("redstart_http_streams {watchers}"),
    ];
    let full = eventually(Duration::from_secs(300), async || {
        match client.get("/metrics").await {
            Ok(answer) => wanted
                .iter()
                .all(|line| answer.text().lines().any(|known| known == line)),
            Err(_) => false,
        }
    });
    ensure!(full.await, "not all of them wait");
    let grown = resident()?.saturating_sub(before);
    figure(format!(
        "{watchers} watchers and {polls} long polls: {:.1} MB, both ends of the connections included",
        grown as f64 / 1e6
    ));
    ensure!(grown <= 300_000_000, "{grown} bytes");
    // The end of the service ends them all.
    let (mut first, mut answer) = (open.pop().context("none")?, Vec::new());
    served.stop().await?;
    tokio::time::timeout(PATIENCE, first.read_to_end(&mut answer)).await??;
    ensure!(
        String::from_utf8_lossy(&answer).contains("stopping"),
        "{answer:?}"
    );
    Ok(())
}
