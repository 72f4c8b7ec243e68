//! Envoy's rate-limit service, asked by the gRPC client of Google with the messages of Envoy.

use anyhow::{Context as _, Result, ensure};
use redstart::Store;
use redstart_serve::hash_token;
use redstart_testkit::{Backend, eventually, matrix};
use serde_json::{Value, json};

use crate::{Served, client::PATIENCE, program::Program};

/// One limiter for each algorithm, and descriptors of all kinds.
const CONFIG: &str = r#"
[limiter.bucket]
algorithm = "token-bucket"
quota = "2/h"
[limiter.fixed]
algorithm = "fixed-window"
quota = "2/h"
[limiter.sliding]
algorithm = "sliding-window"
quota = "2/h"
[limiter.counter]
algorithm = "sliding-counter"
quota = "2/h"
[limiter.ten]
algorithm = "fixed-window"
quota = "10/d"

[[domain]]
name = "edge"
[[domain.descriptor]]
key = "bucket"
limiter = "bucket"
[[domain.descriptor]]
key = "fixed"
limiter = "fixed"
[[domain.descriptor]]
key = "sliding"
limiter = "sliding"
[[domain.descriptor]]
key = "counter"
limiter = "counter"
[[domain.descriptor]]
key = "ten"
limiter = "ten"
[[domain.descriptor]]
key = "trial"
limiter = "fixed"
shadow = true
[[domain.descriptor]]
key = "path"
value = "/health*"
unlimited = true
[[domain.descriptor]]
key = "path"
value = "/login"
[[domain.descriptor.descriptor]]
key = "remote_address"
limiter = "fixed"
[[domain.descriptor.descriptor]]
key = "remote_address"
value = "10.*"
unlimited = true

[[domain]]
name = "dark"
shadow = true
[[domain.descriptor]]
key = "fixed"
limiter = "fixed"
"#;

struct Gateway(Program);

impl Gateway {
    fn start(served: &Served) -> Result<Self> {
        let address = served.address.to_string();
        Ok(Self(Program::gateway(&[&address])?))
    }

    async fn send(&mut self, asked: Value) -> Result<Value> {
        self.0.ask(&asked.to_string()).await
    }

    async fn request(&mut self, request: Value) -> Result<Value> {
        self.send(json!({"request": request})).await
    }

    async fn ask(&mut self, entries: &[(&str, &str)]) -> Result<Value> {
        let request = json!({"domain": "edge", "descriptors": [descriptor(entries)]});
        self.request(request).await
    }
}

fn descriptor(entries: &[(&str, &str)]) -> Value {
    let entry = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
    let entries: Vec<Value> = entries.iter().map(entry).collect();
    json!({ "entries": entries })
}

fn header<'a>(reply: &'a Value, name: &str) -> Option<&'a str> {
    let headers = reply["responseHeadersToAdd"].as_array()?;
    let found = headers.iter().find(|header| header["key"] == name)?;
    found["value"].as_str()
}

matrix! {
    async fn a_gateway_is_limited_by_each_algorithm(backend: &Backend) -> Result<()> {
        let served = Served::start(backend, CONFIG).await?;
        let mut gateway = Gateway::start(&served)?;
        for name in ["bucket", "fixed", "sliding", "counter"] {
            for remaining in [1_u32, 0] {
                let reply = gateway.ask(&[(name, "ann")]).await?;
                let status = &reply["statuses"][0];
                ensure!(reply["overallCode"] == "OK" && status["code"] == "OK", "{name}: {reply}");
                ensure!(status.get("limitRemaining").and_then(Value::as_u64).unwrap_or(0) == u64::from(remaining), "{name}: {reply}");
                let limit = &status["currentLimit"];
                ensure!(limit["requestsPerUnit"] == 2 && limit["unit"] == "HOUR" && limit["name"] == name, "{name}: {reply}");
            }
            let reply = gateway.ask(&[(name, "ann")]).await?;
            ensure!(reply["overallCode"] == "OVER_LIMIT" && reply["statuses"][0]["code"] == "OVER_LIMIT", "{name}: {reply}");
            let reset = reply["statuses"][0]["durationUntilReset"].as_str().context("no reset")?;
            let seconds: f64 = reset.trim_end_matches('s').parse()?;
            ensure!(seconds > 0.0 && seconds <= 2.0 * 3600.0, "{name}: {reset}");
            let wait: u64 = header(&reply, "retry-after").context("no Retry-After")?.parse()?;
            ensure!((1..=7200).contains(&wait), "{name}: {wait}");
            ensure!(header(&reply, "ratelimit").is_some_and(|v| v.contains("r=0;t=")), "{name}: {reply}");
            ensure!(header(&reply, "ratelimit-policy") == Some(&format!("\"{name}\";q=2;w=3600")), "{name}: {reply}");
            let other = gateway.ask(&[(name, "bob")]).await?;
            ensure!(other["overallCode"] == "OK", "each value has its own limit: {other}");
        }
        // The same limit is seen by the API of the limiters.
        let peek = served.client().post("/v1/limiters/fixed:peek", json!({"subject": "edge|fixed=ann"})).await?.json();
        ensure!(peek["remaining"] == 0, "{peek}");
        served.stop().await
    }
}

async fn served() -> Result<(Served, Gateway)> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "gw", CONFIG).await?;
    let gateway = Gateway::start(&served)?;
    Ok((served, gateway))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptors_are_nested_wild_unlimited_and_in_shadow() -> Result<()> {
    let (served, mut gateway) = served().await?;
    let login = |address| [("path", "/login"), ("remote_address", address)];
    for expected in ["OK", "OK", "OVER_LIMIT"] {
        let reply = gateway.ask(&login("203.0.113.9")).await?;
        ensure!(reply["overallCode"] == expected, "{reply}");
    }
    let other = gateway.ask(&login("203.0.113.8")).await?;
    ensure!(other["overallCode"] == "OK", "{other}");
    for entries in [
        &login("10.1.2.3")[..],
        &[("path", "/healthz")],
        &[("path", "/login")],
        &[("path", "/cart")],
        &[("nobody", "knows")],
        &[("fixed", "x"), ("more", "y")],
    ] {
        for _ in 0..3 {
            let reply = gateway.ask(entries).await?;
            ensure!(reply["overallCode"] == "OK", "{entries:?}: {reply}");
            ensure!(
                reply["statuses"][0].get("currentLimit").is_none(),
                "{entries:?}: {reply}"
            );
        }
    }
    let free = gateway.ask(&[("path", "/healthz")]).await?;
    ensure!(free["statuses"][0]["limitRemaining"] == u32::MAX, "{free}");
    let dark = json!({"domain": "dark", "descriptors": [descriptor(&[("fixed", "x")])]});
    for _ in 0..3 {
        gateway.ask(&[("trial", "x")]).await?;
        gateway.request(dark.clone()).await?;
    }
    for reply in [
        gateway.ask(&[("trial", "x")]).await?,
        gateway.request(dark).await?,
    ] {
        ensure!(
            reply["overallCode"] == "OK",
            "a shadow lets all pass: {reply}"
        );
        ensure!(
            reply["statuses"][0].get("limitRemaining").is_none(),
            "and counts: {reply}"
        );
    }
    let unknown = json!({"domain": "none", "descriptors": [descriptor(&[("fixed", "x")])]});
    let reply = gateway.request(unknown).await?;
    ensure!(reply["overallCode"] == "OK", "{reply}");
    let metrics = served.client().get("/metrics").await?.text();
    for line in [
        r#"redstart_ratelimit_descriptors_total{domain="dark",outcome="shadow"}"#,
        r#"redstart_ratelimit_descriptors_total{domain="unknown",outcome="no_limit"}"#,
    ] {
        ensure!(metrics.contains(line), "{line}");
    }
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_counts_all_its_descriptors_with_their_hits() -> Result<()> {
    let (served, mut gateway) = served().await?;
    let two = json!({"domain": "edge", "hitsAddend": 4, "descriptors": [
        descriptor(&[("ten", "a")]), descriptor(&[("path", "/healthz")]), descriptor(&[("ten", "b")])
    ]});
    let reply = gateway.request(two.clone()).await?;
    ensure!(
        reply["statuses"].as_array().map(Vec::len) == Some(3),
        "{reply}"
    );
    ensure!(reply["statuses"][0]["limitRemaining"] == 6, "{reply}");
    ensure!(reply["statuses"][2]["limitRemaining"] == 6, "{reply}");
    let mut own = descriptor(&[("ten", "a")]);
    own["hitsAddend"] = json!("5");
    let request =
        json!({"domain": "edge", "descriptors": [own.clone(), descriptor(&[("ten", "b")])]});
    let reply = gateway.request(request).await?;
    ensure!(reply["statuses"][0]["limitRemaining"] == 1, "{reply}");
    ensure!(reply["statuses"][1]["limitRemaining"] == 5, "{reply}");
    // One is over its limit, and the other is counted all the same.
    let reply = gateway.request(two).await?;
    ensure!(reply["overallCode"] == "OVER_LIMIT", "{reply}");
    ensure!(reply["statuses"][0]["code"] == "OVER_LIMIT", "{reply}");
    ensure!(reply["statuses"][2]["code"] == "OK", "{reply}");
    ensure!(reply["statuses"][2]["limitRemaining"] == 1, "{reply}");
    own["hitsAddend"] = json!("0");
    for _ in 0..2 {
        let look = json!({"domain": "edge", "descriptors": [own]});
        let reply = gateway.request(look).await?;
        ensure!(reply["overallCode"] == "OK", "{reply}");
        ensure!(
            reply["statuses"][0]["limitRemaining"] == 1,
            "a look takes nothing: {reply}"
        );
    }
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_descriptor_can_bring_its_own_limit() -> Result<()> {
    let (served, mut gateway) = served().await?;
    let with = |entries: &[(&str, &str)], per: u32, unit: &str| {
        let mut descriptor = descriptor(entries);
        descriptor["limit"] = json!({"requestsPerUnit": per, "unit": unit});
        json!({"domain": "edge", "descriptors": [descriptor]})
    };
    for entries in [
        &[("sliding", "a")][..],
        &[("free", "form"), ("of", "any")],
        &[("trial", "a")],
    ] {
        for expected in ["OK", "OK", "OK", "OVER_LIMIT"] {
            let reply = gateway.request(with(entries, 3, "DAY")).await?;
            ensure!(reply["overallCode"] == expected, "{entries:?}: {reply}");
            let limit = &reply["statuses"][0]["currentLimit"];
            ensure!(
                limit["requestsPerUnit"] == 3 && limit["unit"] == "DAY",
                "{reply}"
            );
        }
    }
    let mut none = with(&[("free", "b")], 0, "DAY");
    let closed = gateway.request(none.clone()).await?;
    ensure!(closed["overallCode"] == "OVER_LIMIT", "{closed}");
    none["domain"] = json!("dark");
    let shadow = gateway.request(none).await?;
    ensure!(
        shadow["overallCode"] == "OK",
        "a shadow lets all pass: {shadow}"
    );
    ensure!(
        shadow["statuses"][0]["currentLimit"]["unit"] == "DAY",
        "{shadow}"
    );
    let metrics = served.client().get("/metrics").await?.text();
    let counted = r#"redstart_ratelimit_descriptors_total{domain="dark",outcome="shadow"}"#;
    ensure!(metrics.contains(counted), "{metrics}");
    let refused = gateway
        .request(with(&[("free", "b")], 1, "UNKNOWN"))
        .await?;
    ensure!(refused["error"] == "INVALID_ARGUMENT", "{refused}");
    let mine = gateway.ask(&[("sliding", "a")]).await?;
    ensure!(
        mine["overallCode"] == "OK",
        "the configured limit is another: {mine}"
    );
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_told_by_the_status_of_grpc() -> Result<()> {
    let (served, mut gateway) = served().await?;
    for request in [
        json!({"domain": "", "descriptors": [descriptor(&[("fixed", "x")])]}),
        json!({"domain": "edge", "descriptors": []}),
        json!({"domain": "edge", "descriptors": [{"entries": []}]}),
        json!({"domain": "edge", "descriptors": [descriptor(&[("", "x")])]}),
        json!({"domain": "edge", "descriptors": vec![descriptor(&[("fixed", "x")]); 101]}),
    ] {
        let refused = gateway.request(request.clone()).await?;
        ensure!(
            refused["error"] == "INVALID_ARGUMENT",
            "{request}: {refused}"
        );
    }
    let negative = [10, 1, 100, 18, 10, 10, 6, 10, 1, 107, 18, 1, 118, 32, 1];
    let refused = gateway.send(json!({"raw": negative})).await?;
    ensure!(refused["error"] == "INVALID_ARGUMENT", "{refused}");
    let garbage = gateway.send(json!({"raw": [255, 255, 255]})).await?;
    ensure!(garbage["error"] == "INTERNAL", "{garbage}");
    let huge = gateway.send(json!({"raw": vec![0; 2 << 20]})).await?;
    ensure!(huge["error"] == "RESOURCE_EXHAUSTED", "{huge}");
    let nothing = gateway.send(json!({"raw": [], "nothing": true})).await?;
    ensure!(nothing["error"] == "UNIMPLEMENTED", "{nothing}");
    let health = gateway.send(json!({"health": ""})).await?;
    ensure!(health["health"] == json!([8, 1]), "serving: {health}");
    let health = gateway
        .send(json!({"health": "envoy.service.ratelimit.v3.RateLimitService"}))
        .await?;
    ensure!(health["health"] == json!([8, 1]), "serving: {health}");
    let health = gateway.send(json!({"health": "other"})).await?;
    ensure!(health["error"] == "NOT_FOUND", "{health}");
    let fine = gateway.ask(&[("fixed", "x")]).await?;
    ensure!(
        fine["overallCode"] == "OK",
        "the connection goes on: {fine}"
    );
    served.stop().await
}

/// What Envoy sends as `:authority`, unless it is told otherwise, is the name of its cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_may_call_the_service_by_any_name_and_a_browser_may_not() -> Result<()> {
    let (served, mut gateway) = served().await?;
    let request = json!({"domain": "edge", "descriptors": [descriptor(&[("ten", "x")])]});
    for (host, remaining) in [
        ("ratelimit", 9),
        ("rate_limit_cluster", 8),
        ("localhost", 7),
    ] {
        let reply = gateway
            .send(json!({"request": request, "host": host}))
            .await?;
        ensure!(
            reply["statuses"][0]["limitRemaining"] == remaining,
            "{host}: {reply}"
        );
    }
    // A page whose name resolves to this machine is of the same site for its browser.
    for metadata in [
        json!({"origin": "http://evil.example"}),
        json!({"origin": "null"}),
        json!({"sec-fetch-site": "same-origin"}),
    ] {
        let reply = gateway
            .send(json!({"request": request, "host": "evil.example", "metadata": metadata}))
            .await?;
        ensure!(reply["error"] == "PERMISSION_DENIED", "{metadata}: {reply}");
    }
    // Without TLS a browser speaks HTTP/1.1 only.
    for host in ["evil.example", "localhost"] {
        let headers = [
            ("host", host),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        let refused = served
            .client()
            .send(
                "POST",
                "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
                &headers,
                &[0, 0, 0, 0, 0],
            )
            .await?;
        ensure!(
            refused.header("grpc-status") == Some("7"),
            "{host}: {refused:?}"
        );
    }
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_needs_a_token_of_the_role_and_the_namespace() -> Result<()> {
    let token = |name: &str, role: &str, namespace: &str| {
        let hash = hash_token(&format!("{name}-secret"));
        format!(
            "[[token]]\nname = {name:?}\nsha256 = {hash:?}\nrole = {role:?}\nnamespaces = [{namespace:?}]\n"
        )
    };
    let tokens = token("reader", "read", "gw")
        + &token("edge", "operate", "gw")
        + &token("other", "operate", "other");
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "gw", &(CONFIG.to_owned() + &tokens)).await?;
    let mut gateway = Gateway::start(&served)?;
    let request = json!({"domain": "edge", "descriptors": [descriptor(&[("ten", "x")])]});
    for (token, expected) in [
        (None, "UNAUTHENTICATED"),
        (Some("wrong"), "UNAUTHENTICATED"),
        (Some("reader-secret"), "PERMISSION_DENIED"),
        (Some("other-secret"), "PERMISSION_DENIED"),
        (Some("edge-secret"), ""),
    ] {
        let metadata = match token {
            Some(token) => json!({"authorization": format!("Bearer {token}")}),
            None => json!({}),
        };
        let reply = gateway
            .send(json!({"request": request, "metadata": metadata}))
            .await?;
        match expected {
            "" => ensure!(
                reply["statuses"][0]["limitRemaining"] == 9,
                "nothing was counted before: {reply}"
            ),
            expected => ensure!(reply["error"] == expected, "{token:?}: {reply}"),
        }
    }
    // An unknown domain counts nothing, so no namespace is asked for.
    let metadata = json!({"authorization": "Bearer other-secret"});
    let unknown = json!({"domain": "beta", "descriptors": [descriptor(&[("ten", "x")])]});
    let reply = gateway
        .send(json!({"request": unknown, "metadata": metadata}))
        .await?;
    ensure!(reply["overallCode"] == "OK", "{reply}");
    let browser = json!({"authorization": "Bearer edge-secret", "sec-fetch-site": "cross-site"});
    let reply = gateway
        .send(json!({"request": request, "metadata": browser}))
        .await?;
    ensure!(reply["error"] == "PERMISSION_DENIED", "{reply}");
    ensure!(gateway.send(json!({"health": ""})).await?["health"] == json!([8, 1]));
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_form_as_json_answers_as_grpc_does() -> Result<()> {
    let (served, mut gateway) = served().await?;
    let mut client = served.client();
    let request = json!({"domain": "edge", "descriptors": [descriptor(&[("fixed", "ann")])]});
    let first = client.post("/json", request.clone()).await?;
    ensure!(
        first.status == 200 && first.json()["overallCode"] == "OK",
        "{}",
        first.text()
    );
    ensure!(
        first.json()["statuses"][0]["limitRemaining"] == 1,
        "{}",
        first.text()
    );
    let second = gateway.request(request.clone()).await?;
    ensure!(
        second["overallCode"] == "OK",
        "one limit for both: {second}"
    );
    let third = client.post("/json", request.clone()).await?;
    ensure!(
        third.status == 429 && third.json()["overallCode"] == "OVER_LIMIT",
        "{}",
        third.text()
    );
    ensure!(third.header("retry-after").is_some(), "{third:?}");
    ensure!(
        third.header("ratelimit").is_some_and(|v| v.contains("r=0")),
        "{third:?}"
    );
    ensure!(
        third.header("content-type") == Some("application/json"),
        "{third:?}"
    );
    let by_grpc = gateway.request(request.clone()).await?;
    let (json, grpc) = (&third.json()["statuses"][0], &by_grpc["statuses"][0]);
    ensure!(
        json["currentLimit"] == grpc["currentLimit"],
        "{json} {grpc}"
    );
    let snake = json!({"domain": "edge", "hits_addend": 3, "descriptors": [
        {"entries": [{"key": "ten", "value": "a"}], "hits_addend": "2"},
        {"entries": [{"key": "x", "value": "a"}], "limit": {"requests_per_unit": 7, "unit": "MINUTE"}},
    ]});
    let reply = client.post("/json", snake).await?.json();
    ensure!(reply["statuses"][0]["limitRemaining"] == 8, "{reply}");
    ensure!(reply["statuses"][1]["limitRemaining"] == 4, "{reply}");
    for bad in [
        json!({}),
        json!({"domain": "edge", "descriptors": [], "more": 1}),
        json!({"domain": "", "descriptors": []}),
    ] {
        let refused = client.post("/json", bad.clone()).await?;
        ensure!(refused.status == 400, "{bad}: {}", refused.text());
    }
    ensure!(client.get("/json").await?.status == 405);
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptors_change_with_the_configuration() -> Result<()> {
    let (served, mut gateway) = served().await?;
    let changed = CONFIG.replace("quota = \"10/d\"", "quota = \"20/d\"");
    served
        .service
        .reload(redstart_serve::Config::parse(&format!(
            "namespace = \"gw\"\n{changed}"
        ))?)?;
    let reply = gateway.ask(&[("ten", "x")]).await?;
    ensure!(reply["statuses"][0]["limitRemaining"] == 19, "{reply}");
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_is_told_that_the_store_is_away() -> Result<()> {
    let server = redstart_testkit::Server::builder(redstart_testkit::Kind::Redis)
        .start()
        .await?;
    let store = Store::connect(&server.url()).await?;
    let served = Served::on(&store, "gw", CONFIG).await?;
    let mut gateway = Gateway::start(&served)?;
    ensure!(gateway.ask(&[("ten", "x")]).await?["overallCode"] == "OK");
    server.kill9();
    let away = eventually(PATIENCE, async || {
        let reply = gateway.ask(&[("ten", "x")]).await;
        reply.is_ok_and(|reply| reply["error"] == "UNAVAILABLE")
    });
    ensure!(away.await);
    let health = gateway.send(json!({"health": ""})).await?;
    ensure!(health["health"] == json!([8, 2]), "not serving: {health}");
    served.stop().await
}
