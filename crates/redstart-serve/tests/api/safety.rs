//! Who may ask, what they may do, and how the service ends.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use redstart::Store;
use redstart_serve::{Config, Service, hash_token};
use redstart_testkit::eventually;
use serde_json::json;

use crate::{Served, client::PATIENCE};

async fn served(config: &str) -> Result<Served> {
    Served::on(&Store::connect("memory://").await?, "safe", config).await
}

fn tokens() -> String {
    let token = |name: &str, role: &str, more: &str| {
        let hash = hash_token(&format!("{name}-secret"));
        format!("[[token]]\nname = {name:?}\nsha256 = {hash:?}\nrole = {role:?}\n{more}\n")
    };
    token("reader", "read", "")
        + &token("worker", "operate", "namespaces = [\"safe\"]")
        + &token("boss", "admin", "")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_others_can_reach_needs_authentication() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let open = Service::new(&store, Config::default())?;
    let refused = open.bind("0.0.0.0:0".parse()?).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(refused.to_string().contains("[[token]]"), "{refused}");
    let closed = Service::new(&store, Config::parse(&tokens())?)?;
    assert!(closed.bind("0.0.0.0:0".parse()?).await.is_ok());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_allows_what_its_role_and_namespaces_allow() -> Result<()> {
    let served = served(&tokens()).await?;
    let mut nobody = served.client();
    let refused = nobody.get("/v1/locks/x").await?;
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (401, "unauthorized")
    );
    assert!(refused.header("www-authenticate").is_some());
    assert_eq!(nobody.get("/healthz").await?.status, 200);
    assert_eq!(nobody.get("/readyz").await?.status, 200);
    assert_eq!(nobody.get("/metrics").await?.status, 401);
    let with = |token: &str| {
        served
            .client()
            .header("authorization", &format!("Bearer {token}"))
    };
    assert_eq!(with("reader-secre").get("/v1/locks/x").await?.status, 401);
    let (mut reader, mut worker, mut boss) = (
        with("reader-secret"),
        with("worker-secret"),
        with("boss-secret"),
    );
    assert_eq!(reader.get("/v1/locks/x").await?.status, 200);
    let refused = reader.post("/v1/locks/x:acquire", json!({})).await?;
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (403, "forbidden")
    );
    assert_eq!(
        worker.post("/v1/locks/x:acquire", json!({})).await?.status,
        201
    );
    assert_eq!(
        worker
            .post("/v1/locks/x:acquire?namespace=other", json!({}))
            .await?
            .status,
        403
    );
    assert_eq!(
        worker
            .post("/v1/locks/x:force-release", json!({}))
            .await?
            .status,
        403
    );
    assert_eq!(
        boss.post("/v1/locks/x:force-release", json!({}))
            .await?
            .status,
        200
    );
    assert_eq!(
        boss.get("/v1/locks/x?namespace=redstart-serve")
            .await?
            .status,
        400,
        "the service's own keys"
    );
    let audit = boss.get("/v1/audit").await?.json();
    assert_eq!(
        (&audit["changes"][0]["who"], &audit["changes"][0]["what"]),
        (&json!("boss"), &json!("lock.force-release"))
    );
    assert_eq!(worker.get("/v1/audit").await?.status, 403);
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_another_site_changes_nothing() -> Result<()> {
    let served = served("").await?;
    let mut client = served.client();
    let json = ("content-type", "application/json");
    for header in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
    ] {
        let refused = client
            .send("POST", "/v1/counters/c/x:add", &[json, header], b"{}")
            .await?;
        assert_eq!(
            (refused.status, refused.problem().as_str()),
            (403, "cross-site"),
            "{header:?}"
        );
    }
    let refused = client
        .send(
            "POST",
            "/v1/counters/c/x:add",
            &[("content-type", "text/plain")],
            b"{}",
        )
        .await?;
    assert_eq!(refused.status, 415, "what a form can send is no JSON");
    let refused = client
        .send("GET", "/v1/counters/c/x", &[("host", "evil.example")], b"")
        .await?;
    assert_eq!(
        refused.status, 403,
        "a name of another site that leads here"
    );
    assert_eq!(client.get("/v1/counters/c/x").await?.json()["value"], 0);
    let same = client
        .send(
            "POST",
            "/v1/counters/c/x:add",
            &[json, ("sec-fetch-site", "same-origin")],
            b"{}",
        )
        .await?;
    assert_eq!(same.status, 200);
    for header in [
        "content-security-policy",
        "x-frame-options",
        "x-content-type-options",
    ] {
        assert!(same.header(header).is_some(), "{header}");
    }
    assert!(
        !same
            .header("content-security-policy")
            .context("no policy")?
            .contains("unsafe")
    );
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_service_changes_nothing() -> Result<()> {
    let served = served("read_only = true").await?;
    let mut client = served.client();
    let refused = client.post("/v1/counters/c/x:add", json!({})).await?;
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (403, "read-only")
    );
    assert_eq!(client.get("/v1/counters/c/x").await?.status, 200);
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_for_bodies_names_waits_and_streams() -> Result<()> {
    let served = served("[limits]\nbody = 1000\nname = 20\nwait = \"10s\"\nlong_polls = 1\nstreams = 1\nbody_time = \"300ms\"").await?;
    let mut client = served.client();
    let large = client
        .post(
            "/v1/counters/c/x:add",
            json!({"by": 1, "x": "y".repeat(2000)}),
        )
        .await?;
    assert_eq!(
        (large.status, large.problem().as_str()),
        (413, "body-too-large")
    );
    let long = client
        .get(&format!("/v1/counters/c/{}", "x".repeat(21)))
        .await?;
    assert_eq!(long.status, 400);
    let wait = client
        .post("/v1/queues/q:lease", json!({"kinds": ["a"], "wait": 11}))
        .await?;
    assert_eq!(wait.status, 400);
    let _events = client.events("/v1/topics/t/events").await?;
    assert_eq!(client.get("/v1/topics/t/events").await?.status, 429);
    let slow = client.exchange(
        format!("POST /v1/counters/c/x:add HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{{", served.address).as_bytes(),
        false,
    ).await?;
    assert_eq!(
        (slow.status, slow.problem().as_str()),
        (408, "slow-request")
    );
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_service_ends_long_polls() -> Result<()> {
    let served = served("").await?;
    let mut client = served.client();
    let mut look = served.client();
    let waiting = tokio::spawn(async move {
        client
            .post("/v1/queues/q:lease", json!({"kinds": ["a"], "wait": 60}))
            .await
    });
    assert!(
        eventually(PATIENCE, async || {
            matches!(look.get("/v1/queues/q").await, Ok(counts) if counts.json()["workers"] == 1)
        })
        .await
    );
    let store = served.store.clone();
    tokio::time::timeout(Duration::from_secs(9), served.stop())
        .await
        .context("it waited for the long poll")??;
    let ended = waiting.await??;
    assert_eq!((ended.status, ended.problem().as_str()), (503, "stopping"));
    store.settle().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_a_wait_and_leaves_a_change_in_doubt() -> Result<()> {
    let served = served("").await?;
    let mut client = served.client();
    let headers = [
        ("content-type", "application/json"),
        ("request-timeout", "0.05"),
    ];
    let late = client
        .send(
            "POST",
            "/v1/queues/q:lease",
            &headers,
            br#"{"kinds":["a"],"wait":30}"#,
        )
        .await?;
    assert_eq!((late.status, late.problem().as_str()), (503, "in-doubt"));
    for bad in ["soon", "-1", "1e9", ""] {
        let headers = [("request-timeout", bad)];
        assert_eq!(
            client
                .send("GET", "/v1/queues/q", &headers, b"")
                .await?
                .status,
            400,
            "{bad}"
        );
    }
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_down_is_503_and_says_so() -> Result<()> {
    let store = Store::builder("redis://127.0.0.1:1")
        .lazy()
        .deadline(Duration::from_millis(300))
        .connect()
        .await?;
    let served = Served::on(&store, "down", "").await?;
    let mut client = served.client();
    assert_eq!(client.get("/healthz").await?.status, 200);
    let ready = client.get("/readyz").await?;
    assert_eq!(
        (ready.status, ready.problem().as_str()),
        (503, "store-unavailable")
    );
    let refused = client.post("/v1/locks/x:acquire", json!({})).await?;
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (503, "store-unavailable")
    );
    ensure!(refused.header("retry-after").is_some());
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_path_moves_everything() -> Result<()> {
    let served = served("base_path = \"/tools/redstart/\"").await?;
    let mut client = served.client();
    assert_eq!(
        client.get("/tools/redstart/v1/counters/c/x").await?.status,
        200
    );
    assert_eq!(client.get("/v1/counters/c/x").await?.status, 404);
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_what_prometheus_reads() -> Result<()> {
    let served = served("").await?;
    let mut client = served.client();
    client.post("/v1/counters/c/x:add", json!({})).await?;
    let metrics = client.get("/metrics").await?;
    assert!(
        metrics
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("text/plain"))
    );
    let text = metrics.text();
    for name in [
        "redstart_http_requests_total",
        "redstart_operations_total",
        "process_resident_memory_bytes",
    ] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    served.stop().await
}
