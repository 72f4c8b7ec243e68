//! Who may ask, what they may do, and how the service ends.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use redstart::Store;
use redstart_serve::{Config, Service, hash_token};
use redstart_testkit::{Kind, Server, eventually};
use serde_json::{Value, json};

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
async fn a_reload_never_switches_authentication_off() -> Result<()> {
    let served = served(&tokens()).await?;
    let mut nobody = served.client();
    for cut_short in [
        "",
        "namespace = \"safe\"",
        "read_only = false\n[limits]\nwait = \"1s\"",
    ] {
        let refused = served.service.reload(Config::parse(cut_short)?);
        ensure!(refused.is_err(), "{cut_short:?} was taken");
        for headers in [&[("host", "localhost")][..], &[("host", "")], &[]] {
            let answer = nobody
                .send("POST", "/v1/queues/q:pause", headers, b"")
                .await?;
            assert_eq!(answer.status, 401, "{cut_short:?} {headers:?}");
        }
    }
    let other = tokens().replace(&hash_token("boss-secret"), &hash_token("chief-secret"));
    served.service.reload(Config::parse(&other)?)?;
    let mut boss = served
        .client()
        .header("authorization", "Bearer boss-secret");
    assert_eq!(
        boss.get("/v1/locks/x").await?.status,
        401,
        "a token that was taken away"
    );
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_proxy_may_say_who_asks() -> Result<()> {
    let header = |proxies: &str| {
        format!(
            "{}[trusted_header]\nname = \"x-user\"\nrole = \"admin\"\nproxies = [{proxies:?}]",
            tokens()
        )
    };
    let elsewhere = served(&header("10.0.0.2/32")).await?;
    let mut stranger = elsewhere.client().header("x-user", "ann");
    assert_eq!(stranger.get("/v1/audit").await?.status, 401);
    let mut reader = elsewhere
        .client()
        .header("x-user", "ann")
        .header("authorization", "Bearer reader-secret");
    assert_eq!(reader.get("/v1/locks/x").await?.status, 200);
    assert_eq!(
        reader.get("/v1/audit").await?.status,
        403,
        "the token's own role"
    );
    elsewhere.stop().await?;

    let here = served(&header("127.0.0.0/8")).await?;
    let mut user = here.client().header("x-user", "boss");
    assert_eq!(user.get("/v1/audit").await?.status, 200);
    assert_eq!(here.client().get("/v1/audit").await?.status, 401);
    // A user with the name of a token is another caller: their keys differ.
    let mut token = here.client().header("authorization", "Bearer boss-secret");
    for (client, replayed) in [(&mut user, None), (&mut token, None)] {
        let headers = [
            ("content-type", "application/json"),
            ("idempotency-key", "k"),
        ];
        let added = client
            .send("POST", "/v1/counters/c/x:add", &headers, b"{\"by\":1}")
            .await?;
        assert_eq!(
            (added.status, added.header("idempotency-replayed")),
            (200, replayed)
        );
    }
    assert_eq!(user.get("/v1/counters/c/x").await?.json()["value"], 2);
    here.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_health_check_needs_no_host_and_everything_else_does() -> Result<()> {
    let served = served("").await?;
    let mut client = served.client();
    let mut ask = async |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\ncontent-length: 0\r\n\r\n");
        anyhow::Ok(client.exchange(request.as_bytes(), false).await?.status)
    };
    assert_eq!(ask("/healthz").await?, 200);
    assert_eq!(ask("/v1/locks/x").await?, 403);
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
async fn only_so_many_requests_wait_at_a_time() -> Result<()> {
    let served = served("[limits]\nlong_polls = 1").await?;
    let (mut first, mut second, mut look) = (served.client(), served.client(), served.client());
    let poll = json!({"kinds": ["a"], "wait": 30});
    let body = poll.clone();
    let waiting = tokio::spawn(async move { first.post("/v1/queues/q:lease", body).await });
    let waits = eventually(
        PATIENCE,
        async || matches!(look.get("/v1/queues/q").await, Ok(counts) if counts.json()["workers"] == 1),
    );
    ensure!(
        waits.await,
        "the first poll does not wait: {:?}",
        waiting.is_finished()
    );
    let refused = second.post("/v1/queues/q:lease", poll.clone()).await?;
    let is_over = waiting.is_finished();
    if (refused.status, refused.problem().as_str()) != (429, "too-many-waiting") {
        let ended = if is_over { Some(waiting.await??) } else { None };
        anyhow::bail!(
            "{} {}, the first: {ended:?}",
            refused.status,
            refused.text()
        );
    }
    ensure!(refused.header("retry-after").is_some());
    // A job ends the first poll, and its place is free.
    let job = json!({"kind": "a", "payload": 1});
    assert_eq!(second.post("/v1/queues/q/jobs", job).await?.status, 201);
    let leased = waiting.await??;
    assert_eq!(
        leased.json()["jobs"].as_array().map(Vec::len),
        Some(1),
        "{}",
        leased.text()
    );
    let free = second
        .post("/v1/queues/q:lease", json!({"kinds": ["a"]}))
        .await?;
    assert_eq!(free.status, 200);
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_by_itself_is_not_granted_again_under_a_key() -> Result<()> {
    let served = served("").await?;
    let mut client = served.client();
    let document = client.get("/v1/openapi.json").await?.json();
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "k"),
    ];
    for (path, operation) in [
        ("/v1/locks/{name}:acquire", "{\"ttl\":1}"),
        ("/v1/semaphores/{name}:acquire", "{\"permits\":1}"),
        ("/v1/leaders/{name}:campaign", "{\"id\":\"a\"}"),
        ("/v1/queues/{name}:lease", "{\"kinds\":[\"a\"],\"wait\":60}"),
        ("/v1/caches/{name}/{key}:lease", "{}"),
        (
            "/v1/idempotency/{name}/{key}:begin",
            "{\"fingerprint\":\"x\"}",
        ),
    ] {
        let target = path.replace("{name}", "x").replace("{key}", "x");
        let refused = client
            .send("POST", &target, &headers, operation.as_bytes())
            .await?;
        assert_eq!(
            (refused.status, refused.problem().as_str()),
            (400, "invalid-request"),
            "{path}"
        );
        let parameters = document["paths"][path]["post"]["parameters"].to_string();
        ensure!(
            parameters.contains("Request-Timeout"),
            "{path}: {parameters}"
        );
        ensure!(
            !parameters.contains("Idempotency-Key"),
            "{path}: {parameters}"
        );
    }
    assert_eq!(client.get("/v1/locks/x").await?.json()["held"], false);
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_jobs_are_added_only_if_all_are_valid() -> Result<()> {
    let served = served("").await?;
    let mut client = served.client();
    let good = json!({"kind": "a", "payload": 1});
    for bad in [
        json!({"kind": "a", "payload": 2, "delay": -1}),
        json!({"kind": "", "payload": 2}),
        json!({"kind": "a", "payload": 2, "priority": 2000}),
        json!({"kind": "a", "payload": 2, "attempts": 0}),
    ] {
        let jobs = json!({"jobs": [good, bad, good]});
        let refused = client.post("/v1/queues/q/jobs:many", jobs).await?;
        assert_eq!(
            (refused.status, &refused.json()["job"]),
            (400, &json!(1)),
            "{}",
            refused.text()
        );
        assert_eq!(client.get("/v1/queues/q").await?.json()["ready"], 0);
    }
    let added = client
        .post("/v1/queues/q/jobs:many", json!({"jobs": [good, good]}))
        .await?;
    assert_eq!(added.status, 200);
    assert_eq!(client.get("/v1/queues/q").await?.json()["ready"], 2);
    // The same for checks: a subject that is none charges nobody.
    let limit = json!({"quota": "5/h"});
    let checks = json!({"checks": [{"subject": "ann"}, {"subject": ""}], "limit": limit});
    assert_eq!(
        client
            .post("/v1/limiters/l:check-many", checks)
            .await?
            .status,
        400
    );
    let peek = client
        .post(
            "/v1/limiters/l:peek",
            json!({"subject": "ann", "limit": limit}),
        )
        .await?;
    assert_eq!(peek.json()["remaining"], 5, "{}", peek.text());
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

/// The expressions of the dashboard for Grafana.
fn expressions(of: &Value, found: &mut Vec<String>) {
    match of {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "expr" => found.push(text.clone()),
                    value => expressions(value, found),
                }
            }
        }
        Value::Array(parts) => parts.iter().for_each(|part| expressions(part, found)),
        _ => {}
    }
}

/// The metrics that an expression names, and the labels.
fn names(expression: &str) -> (Vec<&str>, Vec<&str>) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expression.split(|c: char| !is_word(c));
    let metrics =
        words.filter(|word| word.starts_with("redstart_") || word.starts_with("process_"));
    let grouped = expression
        .split("by (")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let grouped = grouped.flat_map(|list| list.split(", "));
    let chosen = expression
        .split('{')
        .skip(1)
        .filter_map(|rest| rest.split(['=', '!']).next());
    // The exporter adds the bounds of buckets.
    let labels = grouped.chain(chosen).filter(|label| *label != "le");
    (metrics.collect(), labels.collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_of_grafana_names_metrics_that_exist() -> Result<()> {
    // Before the store connects.
    redstart_serve::record_metrics();
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let served = Served::on(&store, "grafana", "").await?;
    let mut client = served.client();
    client.post("/v1/locks/x:acquire", json!({})).await?;
    client
        .post("/v1/queues/q/jobs", json!({"kind": "a", "payload": 1}))
        .await?;
    // A breaker that trips is an event.
    client
        .post("/v1/breakers/b:force-open", json!({"for": 60}))
        .await?;
    let lease = json!({"kinds": ["a"], "wait": 30});
    let leased = client.post("/v1/queues/q:lease", lease).await?;
    ensure!(leased.status == 200, "{}", leased.text());
    // Connections, and with them subscriptions, are lost and come back.
    for kind in ["pubsub", "normal"] {
        server
            .command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"])
            .await?;
    }
    let dashboard = include_str!("../../../../deploy/grafana.json");
    let mut found = Vec::new();
    expressions(&serde_json::from_str(dashboard)?, &mut found);
    ensure!(found.len() > 8, "{found:?}");
    let documented = [
        include_str!("../../../redstart/src/observe.rs"),
        include_str!("../../src/lib.rs"),
    ];
    let mut metrics = String::new();
    for expression in &found {
        let (named, labels) = names(expression);
        ensure!(!named.is_empty(), "{expression}");
        for metric in named {
            let family = metric.strip_suffix("_bucket").unwrap_or(metric);
            let in_docs = documented
                .iter()
                .any(|text| text.contains(&format!("`{family}`")));
            ensure!(in_docs, "{family} is in no table of the documentation");
            let exists = eventually(PATIENCE, async || {
                client.post("/v1/locks/x:acquire", json!({})).await.ok();
                metrics = client
                    .get("/metrics")
                    .await
                    .map(|it| it.text())
                    .unwrap_or_default();
                let mut samples = metrics.lines().filter(|line| {
                    let rest = line.strip_prefix(metric);
                    rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
                });
                samples.any(|line| {
                    labels
                        .iter()
                        .all(|label| line.contains(&format!("{label}=\"")))
                })
            });
            ensure!(
                exists.await,
                "{metric} with {labels:?} is not in\n{metrics}"
            );
        }
    }
    served.stop().await
}
