//! Spans arrive at a collector, which decodes them with OpenTelemetry's own messages.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use redstart::Store;
use redstart_serve::{Config, Spans};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::{Served, client::Client, program::Program};

/// Spans that were dropped, by the metrics.
async fn dropped(client: &mut Client) -> Result<u64> {
    let metrics = client.get("/metrics").await?.text();
    let name = r#"redstart_otlp_spans_total{outcome="dropped"} "#;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.map_or(Ok(0), str::parse)?)
}

/// The counter is one of the process: two tests that read it at the same time would count each other's spans.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Ten requests, and the end, with a collector that does not take their spans.
async fn stops_with_a_collector_that_takes_nothing(at: SocketAddr) -> Result<()> {
    let _alone = ALONE.lock().await;
    let spans = Spans::default();
    // All tasks are on this thread.
    let subscriber = tracing_subscriber::registry().with(spans.layer());
    let _guard = tracing::subscriber::set_default(subscriber);
    let config = format!("[otlp]\nendpoint = \"http://{at}\"");
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "traced", &config).await?;
    let mut client = served.client();
    let before = dropped(&mut client).await?;
    spans.start(&Config::parse(&config)?)?;
    for _ in 0..10 {
        ensure!(client.get("/healthz").await?.status == 200);
    }
    spans.stop().await;
    let lost = dropped(&mut client).await? - before;
    ensure!(lost == 10, "{lost} are counted");
    served.stop().await
}

#[tokio::test]
async fn what_a_collector_that_is_away_did_not_get_is_counted_at_the_end() -> Result<()> {
    // Nobody else gets this port, and nobody listens on it.
    let socket = TcpSocket::new_v4()?;
    socket.bind("127.0.0.1:0".parse()?)?;
    stops_with_a_collector_that_takes_nothing(socket.local_addr()?).await
}

#[tokio::test]
async fn what_a_collector_that_hangs_did_not_answer_is_counted_at_the_end() -> Result<()> {
    // Connections are established by the system, and nobody answers.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    stops_with_a_collector_that_takes_nothing(listener.local_addr()?).await
}

/// The only test that sets the subscriber of the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_of_requests_reach_a_collector() -> Result<()> {
    let mut collector = Program::collector()?;
    let port: u16 = collector.line().await?.parse()?;
    let spans = Spans::default();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(spans.layer()))?;
    let config = format!(
        "[otlp]\nendpoint = \"http://127.0.0.1:{port}/base/\"\nservice_name = \"shop-serve\"\nheaders = {{ x-key = \"sesame\" }}"
    );
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "traced", &config).await?;
    let mut client = served.client();
    ensure!(
        client.get("/v1/locks/before").await?.status == 200,
        "not started, so not sent"
    );
    spans.start(&Config::parse(&config)?)?;

    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let headers = [
        ("traceparent", parent.as_str()),
        ("content-type", "application/json"),
        ("authorization", "Bearer hidden-secret"),
    ];
    let taken = client
        .send(
            "POST",
            "/v1/locks/report:acquire?note=hidden-query",
            &headers,
            b"{\"ttl\": 30, \"owner\": \"hidden-owner\"}",
        )
        .await?;
    ensure!(taken.status == 201, "{}", taken.text());
    // The one that sent this has decided that it is not sampled.
    let unsampled = format!("00-{}-00f067aa0ba902b7-00", "a".repeat(32));
    client
        .send(
            "GET",
            "/v1/locks/unsampled",
            &[("traceparent", &unsampled)],
            b"",
        )
        .await?;
    ensure!(client.get("/v1/locks/after").await?.status == 200);

    let mut seen: Vec<Value> = Vec::new();
    let find = |seen: &[Value], path: &str| {
        seen.iter()
            .find(|span| span["attributes"]["url.path"] == path)
            .cloned()
    };
    // Children end before their parents, and all before the next request begins.
    while find(&seen, "/v1/locks/after").is_none() {
        seen.push(serde_json::from_str(&collector.line().await?)?);
    }
    spans.stop().await;
    let request = find(&seen, "/v1/locks/report:acquire").context("no span of the request")?;
    ensure!(
        request["path"] == "/base/v1/traces" && request["type"] == "application/x-protobuf",
        "{request}"
    );
    ensure!(
        request["key"] == "sesame"
            && request["service"] == "shop-serve"
            && request["scope"] == "redstart",
        "{request}"
    );
    ensure!(
        request["trace"] == trace && request["parent"] == "00f067aa0ba902b7",
        "{request}"
    );
    ensure!(
        request["name"] == "POST /v1/locks/{name}:acquire" && request["kind"] == 2,
        "{request}"
    );
    ensure!(
        request["attributes"]["http.response.status_code"] == json!("201"),
        "{request}"
    );
    ensure!(
        request["took"].as_i64() > Some(0) && request["failed"] == false,
        "{request}"
    );
    let work = seen
        .iter()
        .find(|span| span["parent"] == request["span"])
        .context("no operation below it")?;
    ensure!(work["trace"] == trace && work["kind"] == 3, "{work}");
    let operation = work["attributes"]["redstart.operation"]
        .as_str()
        .context("no operation")?;
    ensure!(
        operation.starts_with("mutex.") && work["name"] == operation,
        "{work}"
    );
    ensure!(
        work["attributes"]["redstart.namespace"] == "traced",
        "{work}"
    );
    let after = find(&seen, "/v1/locks/after").context("no span")?;
    ensure!(
        after["trace"] != trace && after["parent"] == "",
        "a trace of its own: {after}"
    );
    for (path, why) in [
        ("/v1/locks/before", "not started"),
        ("/v1/locks/unsampled", "not sampled"),
    ] {
        ensure!(find(&seen, path).is_none(), "{why}");
    }
    let requests: Vec<&Value> = seen
        .iter()
        .filter(|span| span["kind"] == 2)
        .map(|span| &span["span"])
        .collect();
    for span in &seen {
        let is_request = span["kind"] == 2;
        ensure!(
            is_request || seen.iter().any(|other| other["span"] == span["parent"]),
            "belongs to no request: {span}"
        );
    }
    ensure!(requests.len() == 2, "{seen:?}");
    ensure!(!format!("{seen:?}").contains("hidden"), "{seen:?}");
    served.stop().await
}
