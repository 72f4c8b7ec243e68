//! Whatever is sent, the service answers with a refusal and goes on: never a 5xx, never a hang.

use anyhow::{Result, ensure};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use redstart::Store;
use redstart_testkit::{figure, scale};
use serde_json::{Value, json};

use crate::{Served, client::Client};

/// Values that break careless code.
fn nasty(random: &mut StdRng) -> Value {
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let all = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(0),
        json!(1e308),
        json!(-1e308),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(9007199254740993_u64),
        json!(0.1),
        json!(""),
        json!("x"),
        json!("x".repeat(5000)),
        json!("\u{0}"),
        json!("../.."),
        json!("{a}"),
        json!("%7Ba%7D"),
        json!("\r\nSET a b\r\n"),
        json!("🦊"),
        json!("NaN"),
        json!("rs-1"),
        json!("0/0"),
        json!("1/s"),
        json!("99999999999999999999/s"),
        json!([]),
        json!({}),
        json!([1, "a", null]),
        json!({"a": {"b": 1}}),
        json!("2026-02-30"),
        json!("-9999-01-01"),
        json!("9999-12-31"),
        json!("ready"),
        json!("token-bucket"),
        deep,
    ];
    all.choose(random).cloned().unwrap_or_default()
}

fn name(random: &mut StdRng) -> String {
    let all = [
        "a",
        "%00",
        "%ff%fe",
        "%2F%2F",
        "..",
        "%2e%2e",
        "a%3Ab",
        "%7Bx%7D",
        "x%0d%0aSET",
        "🦊",
        "%F0%9F%A6%8A",
        ":",
        "a:",
        "%",
        "%zz",
        "*",
        "a b",
    ];
    let long = "y".repeat(random.random_range(1..700));
    all.choose(random)
        .map_or(long.clone(), |name| match random.random_range(0..10) {
            0 => long,
            _ => (*name).to_owned(),
        })
}

/// A request made from the document: sometimes valid, mostly broken somewhere.
fn request(random: &mut StdRng, operations: &[(String, String, Value)]) -> Vec<u8> {
    let (path, method, operation) = operations.choose(random).expect("there are operations");
    let mut target = String::new();
    for (at, part) in path.split(['{', '}']).enumerate() {
        match at % 2 {
            0 => target += part,
            _ => target += &name(random),
        }
    }
    if random.random_ratio(1, 3) {
        let query = [
            "namespace=",
            "count=-1",
            "count=99999999999999",
            "from=x",
            "state=none",
            "namespace=a%20b",
            "order=up",
            "&&&==",
            "cursor=x",
            "search=%ff",
        ];
        target += &format!("?{}", query.choose(random).unwrap_or(&""));
    }
    let mut body = operation["requestBody"]["content"]["application/json"]["example"].clone();
    if let Some(fields) = body.as_object_mut() {
        let names: Vec<String> = fields.keys().cloned().collect();
        for name in names {
            match random.random_range(0..4) {
                0 => drop(fields.insert(name, nasty(random))),
                1 => drop(fields.remove(&name)),
                _ => {}
            }
        }
        // Waiting is not what this test is about.
        if fields.contains_key("wait") {
            fields.insert("wait".into(), json!(0));
        }
        if random.random_ratio(1, 8) {
            fields.insert("unknown".into(), nasty(random));
        }
    }
    let mut body = match random.random_range(0..12) {
        0 => nasty(random).to_string().into_bytes(),
        1 => (0..random.random_range(0..200))
            .map(|_| random.random::<u8>())
            .collect(),
        _ if body.is_null() => Vec::new(),
        _ => body.to_string().into_bytes(),
    };
    if random.random_ratio(1, 10) {
        body.truncate(body.len() / 2);
    }
    let method = match random.random_range(0..12) {
        0 => ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "FOO"]
            .choose(random)
            .unwrap_or(&"GET")
            .to_string(),
        _ => method.to_uppercase(),
    };
    let target = target.replace(' ', "%20");
    let mut head = format!(
        "{method} {target} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n",
        body.len()
    );
    if random.random_ratio(9, 10) {
        head += "content-type: application/json\r\n";
    }
    match random.random_range(0..20) {
        0 => head += "idempotency-key: \r\n",
        1 => head += &format!("idempotency-key: {}\r\n", "k".repeat(300)),
        2 => head += "idempotency-key: same\r\n",
        3 => head += "request-timeout: never\r\n",
        4 => head += "authorization: Bearer\r\n",
        5 => head += "cookie: redstart_token\r\n",
        6 => head += "accept: text/html\r\n",
        7 => head += "origin: null\r\n",
        _ => {}
    }
    let mut bytes = (head + "\r\n").into_bytes();
    bytes.extend(body);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_requests_are_refused_and_never_break_the_service() -> Result<()> {
    let store = Store::connect("memory://?cluster_strict=1").await?;
    let served = Served::on(&store, "hostile", "[limits]\nbody_time = \"2s\"").await?;
    let mut client = served.client();
    let document = client.get("/v1/openapi.json").await?.json();
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            // An event stream has no end to wait for.
            if !path.ends_with("/events") {
                operations.push((path.clone(), method.clone(), operation.clone()));
            }
        }
    }
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut ok, mut refused) = (0_u64, 0_u64);
    let count = scale(3000, "HOSTILE_REQUESTS");
    for _ in 0..count {
        let bytes = request(&mut random, &operations);
        let exchange = client.exchange(&bytes, false);
        let answer = tokio::time::timeout(crate::client::PATIENCE, exchange).await;
        let shown = || {
            String::from_utf8_lossy(&bytes)
                .chars()
                .take(1500)
                .collect::<String>()
        };
        let Ok(answer) = answer else {
            anyhow::bail!("no answer, seed {seed}: {}", shown())
        };
        match answer {
            Ok(answer) => {
                ensure!(
                    answer.status < 500,
                    "seed {seed}: {} {} to {}",
                    answer.status,
                    answer.text(),
                    shown()
                );
                match answer.status {
                    0..400 => ok += 1,
                    _ => refused += 1,
                }
                // A program is told why by a problem, and a reader by a page.
                let kind = match bytes.windows(17).any(|part| part == b"accept: text/html") {
                    true => "text/html",
                    false => "application/problem+json",
                };
                let told = answer.header("content-type").unwrap_or_default();
                ensure!(
                    answer.status < 400 || told.starts_with(kind),
                    "seed {seed}: {} with {told:?} to {}",
                    answer.status,
                    shown()
                );
            }
            Err(error) => anyhow::bail!("seed {seed}: {error:#} after {}", shown()),
        }
    }
    figure(format!(
        "{count} generated requests: {ok} carried out, {refused} refused, no 5xx"
    ));
    ensure!(ok > 0 && refused > 0);
    assert_eq!(served.client().get("/readyz").await?.status, 200);
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_http_is_refused() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "hostile", "").await?;
    let huge = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000));
    let long = format!(
        "GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "y".repeat(100_000)
    );
    for bytes in [
        "\r\n\r\n\u{0}\u{1}\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "G\u{0}T / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "POST /v1/counters/a/b:add HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        &huge,
        &long,
    ] {
        let mut client = Client::new(served.address);
        let exchange = client.exchange(bytes.as_bytes(), false);
        let answer = tokio::time::timeout(crate::client::PATIENCE, exchange).await?;
        // A connection that is closed without an answer is a refusal too.
        if let Ok(answer) = answer {
            ensure!(
                (400..500).contains(&answer.status),
                "{} to {bytes:.80?}",
                answer.status
            );
        }
    }
    assert_eq!(served.client().get("/healthz").await?.status, 200);
    served.stop().await
}

/// One grants no room for what it asked for by HTTP/2, one asks by HTTP/1.1 and does not read. Neither has a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_take_nothing_do_not_keep_their_places() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let config = format!(
        "[limits]\nconnections = 2\nstall = \"1s\"\n[[token]]\nname = \"t\"\nsha256 = {:?}\nrole = \"read\"",
        redstart_serve::hash_token("a-token-that-nobody-has")
    );
    let served = Served::on(&store, "hostile", &config).await?;
    let mut held = Vec::new();
    for _ in 0..2 {
        let stream = tokio::net::TcpStream::connect(served.address).await?;
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) = hyper::client::conn::http2::Builder::new(executor)
            .initial_stream_window_size(0)
            .handshake::<_, axum::body::Body>(hyper_util::rt::TokioIo::new(stream))
            .await?;
        tokio::spawn(connection);
        let request = http::Request::get(format!("http://{}/assets/htmx.js", served.address));
        let response = sender.send_request(request.body(axum::body::Body::empty())?);
        let response = tokio::time::timeout(crate::client::PATIENCE, response).await??;
        assert_eq!(response.status(), 200);
        held.push((sender, response));
    }
    // Both places are taken. Nobody else would be served until these have lost theirs.
    let answer = served.client().get("/healthz").await?;
    assert_eq!(answer.status, 200);
    drop(held);

    let mut silent = Vec::new();
    for _ in 0..2 {
        use tokio::io::AsyncWriteExt as _;
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        let mut stream = socket.connect(served.address).await?;
        // Far more replies than all buffers on the way can hold.
        let request = "GET /assets/htmx.js HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let all = request.repeat(2000);
        let write = stream.write_all(all.as_bytes());
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), write).await;
        silent.push(stream);
    }
    let answer = served.client().get("/healthz").await?;
    assert_eq!(answer.status, 200);
    drop(silent);
    served.stop().await
}

/// What anybody may send without a token is small, however many streams they open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_token_sends_no_large_bodies() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "hostile", "").await?;
    let mut client = served.client();
    let large = vec![b'x'; 5000];
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for (method, path) in [
        ("POST", "/login"),
        ("GET", "/healthz"),
        ("GET", "/assets/htmx.js"),
    ] {
        let refused = client.send(method, path, &form, &large).await?;
        assert_eq!(refused.status, 413, "{path}: {}", refused.text());
    }
    let small = client.send("POST", "/login", &form, &large[..4000]).await?;
    ensure!(
        small.status < 500 && small.status != 413,
        "{}",
        small.text()
    );
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let refused = client
        .send("POST", "/grpc.health.v1.Health/Check", &grpc, &large)
        .await?;
    let status = refused.header("grpc-status").unwrap_or_default();
    ensure!(!["", "0"].contains(&status), "{refused:?}");
    // With a token, or where everybody is an admin, as before.
    let job = json!({"kind": "a", "payload": "x".repeat(100_000)});
    assert_eq!(client.post("/v1/queues/q/jobs", job).await?.status, 201);
    served.stop().await
}
