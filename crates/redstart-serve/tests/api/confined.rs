//! What a caller sees and touches: its own namespaces, no hidden fields, nothing under another name; and every change by hand
//! leaves a trace.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    messaging::{Queue, Settled, Verdict},
};
use redstart_serve::hash_token;
use redstart_testkit::eventually;
use serde_json::json;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{
    Served,
    client::{Client, PATIENCE},
};

fn token(name: &str, role: &str, namespaces: &[&str]) -> String {
    let hash = hash_token(&format!("{name}-secret"));
    format!(
        "[[token]]\nname = {name:?}\nsha256 = {hash:?}\nrole = {role:?}\nnamespaces = {namespaces:?}\n"
    )
}

fn as_token(served: &Served, name: &str) -> Client {
    let client = served.client();
    client.header("authorization", &format!("Bearer {name}-secret"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_one_namespace_sees_nothing_of_the_others() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let config = token("shop", "admin", &["shop"]) + &token("boss", "admin", &[]);
    let served = Served::on(&store, "shop", &config).await?;
    let (mut shop, mut boss) = (as_token(&served, "shop"), as_token(&served, "boss"));
    for namespace in ["shop", "elsewhere"] {
        let queue = Queue::new(&store, namespace, &format!("{namespace}-mail"))?;
        queue.enqueue_raw("mail", b"1").await?;
        let path = format!("/v1/queues/{namespace}-mail:pause?namespace={namespace}");
        assert_eq!(boss.post(&path, json!({})).await?.status, 200);
    }
    let seen = eventually(
        PATIENCE,
        async || matches!(boss.get("/").await, Ok(page) if page.text().contains("elsewhere-mail")),
    );
    ensure!(seen.await, "the boss does not see it either");
    for path in ["/", "/audit", "/v1/audit", "/queues"] {
        let page = shop.get(path).await?;
        assert_eq!(page.status, 200, "{path}");
        ensure!(page.text().contains("shop-mail"), "{path}: {}", page.text());
        ensure!(
            !page.text().contains("elsewhere"),
            "{path}: {}",
            page.text()
        );
    }
    assert_eq!(shop.get("/metrics").await?.status, 403);
    assert_eq!(boss.get("/metrics").await?.status, 200);
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_fields_are_hidden_from_readers_and_in_no_link() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let config = token("eve", "read", &[]) + &token("boss", "admin", &[]);
    let served = Served::on(&store, "n", &config).await?;
    let (mut eve, mut boss) = (as_token(&served, "eve"), as_token(&served, "boss"));
    let queue = Queue::new(&store, "n", "q")?;
    let secret = br#"{"user":"ann","pass\u0077ord":"hunter2"}"#;
    let id = queue.enqueue_raw("k", secret).await?.id().context("full")?;
    let paths = [
        "/v1/queues/q/jobs".to_owned(),
        format!("/v1/queues/q/jobs/{id}"),
        "/queues/q?namespace=n&state=ready".to_owned(),
        format!("/queues/q/jobs/{id}?namespace=n"),
    ];
    for path in &paths {
        for (client, whole) in [(&mut eve, false), (&mut boss, path.starts_with("/v1"))] {
            let seen = client.get(path).await?.text();
            ensure!(seen.contains("ann"), "{path}: {seen}");
            ensure!(seen.contains("hunter2") == whole, "{path}: {seen}");
        }
    }
    // What is hidden cannot be found out by searching either.
    for (text, count) in [("hunter2", 0), ("ann", 1)] {
        let found = eve.get(&format!("/v1/queues/q/jobs?search={text}")).await?;
        let found = found.json();
        assert_eq!(
            found["jobs"].as_array().map(Vec::len),
            Some(count),
            "{found}"
        );
        assert_eq!(found["scanned"], 1);
    }
    // Who may enqueue it again reads it where it is asked for.
    let ask = format!("/act/queue.add?namespace=n&queue=q&job={id}");
    let page = boss
        .get(&format!("/queues/q/jobs/{id}?namespace=n"))
        .await?;
    ensure!(
        page.text().contains(&ask.replace('&', "&amp;")),
        "{}",
        page.text()
    );
    ensure!(boss.get(&ask).await?.text().contains("hunter2"));
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_granted_for_one_name_is_of_no_use_for_another() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let config = "[limiter.a]\nquota = \"9/h\"\nrefundable = true\n[limiter.b]\nquota = \"9/h\"\nrefundable = true";
    let served = Served::on(&store, "n", config).await?;
    let mut client = served.client();
    let lease = client.post("/v1/caches/p/1:lease", json!({})).await?.json();
    let put = json!({"lease": lease["lease"], "value": "one"});
    for wrong in [
        "/v1/caches/p/2",
        "/v1/caches/o/1",
        "/v1/caches/p/1?namespace=m",
    ] {
        assert_eq!(
            client.json("PUT", wrong, put.clone()).await?.status,
            410,
            "{wrong}"
        );
    }
    assert_eq!(
        client.json("PUT", "/v1/caches/p/1", put).await?.status,
        200,
        "it was not used up"
    );
    assert_eq!(client.get("/v1/caches/p/1").await?.json()["value"], "one");
    assert_eq!(client.get("/v1/caches/p/2").await?.status, 404);

    let begun = client
        .post("/v1/idempotency/p/k:begin", json!({"fingerprint": "x"}))
        .await?;
    let finish = json!({"claim": begun.json()["claim"], "result": 1});
    assert_eq!(
        client
            .post("/v1/idempotency/p/l:finish", finish.clone())
            .await?
            .status,
        410
    );
    assert_eq!(
        client
            .post("/v1/idempotency/p/k:finish", finish)
            .await?
            .status,
        200
    );

    let grant = client
        .post("/v1/limiters/a:check", json!({"subject": "ann"}))
        .await?
        .json();
    let refund = json!({"grant": grant["grant"]});
    assert_eq!(
        client
            .post("/v1/limiters/b:refund", refund.clone())
            .await?
            .status,
        410
    );
    assert_eq!(
        client.post("/v1/limiters/a:refund", refund).await?.status,
        200
    );

    let admitted = client.post("/v1/breakers/a:admit", json!({})).await?.json();
    let report = json!({"admission": admitted["admission"], "ok": true});
    assert_eq!(
        client
            .post("/v1/breakers/b:report", report.clone())
            .await?
            .status,
        410
    );
    assert_eq!(
        client.post("/v1/breakers/a:report", report).await?.status,
        200
    );
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_by_hand_is_written_down_when_its_client_leaves() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "").await?;
    let queue = Queue::new(&store, "n", "q")?;
    const LETTERS: u64 = 600;
    for n in 0..LETTERS {
        queue.enqueue_raw("bad", n.to_string().as_bytes()).await?;
    }
    let dispatcher = queue.dispatcher(["bad"]).start().await?;
    let mut buried = 0;
    while buried < LETTERS {
        for job in dispatcher.take(256, PATIENCE).await? {
            let settled = dispatcher.settle(&job.fence, Verdict::dead("no")).await?;
            assert_eq!(settled, Settled::Done);
            buried += 1;
        }
    }
    let mut socket = TcpStream::connect(served.address).await?;
    let request = "POST /v1/queues/q/dead:purge HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{\"all\":true}";
    socket.write_all(request.as_bytes()).await?;
    let begun = eventually(
        PATIENCE,
        async || matches!(queue.inspect().counts().await, Ok(counts) if counts.dead < LETTERS),
    );
    ensure!(begun.await, "nothing was deleted");
    drop(socket);
    let mut client = served.client();
    let written = eventually(PATIENCE, async || {
        let Ok(log) = client.get("/v1/audit").await else {
            return false;
        };
        let change = log.json()["changes"][0].clone();
        (change["what"] == "queue.purge") && (change["count"] == LETTERS)
    });
    ensure!(written.await, "{}", client.get("/v1/audit").await?.text());
    assert_eq!(queue.inspect().counts().await?.dead, 0);
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_past_its_deadline_is_in_doubt_and_named_by_its_key() -> Result<()> {
    // A store that takes connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let store = Store::builder(&format!("redis://{}", silent.local_addr()?))
        .lazy()
        .deadline(Duration::from_secs(5))
        .connect()
        .await?;
    let served = Served::on(&store, "down", "").await?;
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "\"k-7\""),
        ("request-timeout", "0.05"),
    ];
    let mut client = served.client();
    let late = client
        .send("POST", "/v1/counters/c/x:add", &headers, b"{}")
        .await?;
    assert_eq!((late.status, late.problem().as_str()), (503, "in-doubt"));
    assert_eq!(late.json()["id"], "k-7");
    let late = client
        .send("GET", "/v1/counters/c/x", &headers[2..], b"")
        .await?;
    assert_eq!((late.status, late.problem().as_str()), (504, "deadline"));
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_belongs_to_its_query_too() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let served = Served::on(&store, "n", "[limiter.a]\nquota = \"1/h\"").await?;
    let mut client = served.client();
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "k"),
    ];
    let body = br#"{"subject":"ann"}"#;
    let first = client
        .send("POST", "/v1/limiters/a:check", &headers, body)
        .await?;
    assert_eq!(
        (first.status, &first.json()["allowed"]),
        (200, &json!(true))
    );
    let other = client
        .send("POST", "/v1/limiters/a:check?enforce=1", &headers, body)
        .await?;
    assert_eq!(
        (other.status, other.problem().as_str()),
        (422, "key-reused")
    );
    served.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_whose_run_is_dropped_ends_its_connections() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let mut served = Served::on(&store, "n", "").await?;
    let mut events = served.client().events("/v1/topics/t/events").await?;
    ensure!(events.line().await?.is_some());
    served.task.abort();
    let _ = (&mut served.task).await;
    while events.line().await?.is_some() {}
    Ok(())
}
