//! The idempotency-key layer, request by request.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, routing::post};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use redstart::{Down, Store, resilience::Idempotency};
use redstart_testkit::{Backend, Kind, Server, eventually, matrix};
use redstart_tower::{
    CookieLayer, CookieSession, IdempotencyKey, IdempotencyLayer, IdempotencyLayerBuilder, Problem,
    Subject,
};
use tokio::sync::Notify;
use tower::ServiceExt as _;

/// A service that counts what it carries out.
#[derive(Clone, Default)]
struct Counter {
    done: Arc<AtomicU64>,
    open: Arc<Notify>,
}

impl Counter {
    fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    fn app(&self, layer: IdempotencyLayerBuilder) -> Router {
        let layer = layer
            .keep_header(http::HeaderName::from_static("x-n"))
            .build();
        let handle = {
            let counter = self.clone();
            move |body: String| async move {
                let n = counter.done.fetch_add(1, Ordering::SeqCst) + 1;
                match body.as_str() {
                    "wait" => counter.open.notified().await,
                    "fail" => return Err(StatusCode::INTERNAL_SERVER_ERROR),
                    "bad" => return Err(StatusCode::BAD_REQUEST),
                    "panic" => panic!("the handler panics after its effect"),
                    "big" => return Ok(([("x-n", n.to_string())], "x".repeat(5000))),
                    _ => {}
                }
                Ok(([("x-n", n.to_string())], format!("{body} {n}")))
            }
        };
        Router::new()
            .route(
                "/pay",
                post(handle.clone()).patch(handle.clone()).put(handle),
            )
            .layer(layer)
    }
}

/// The tenant, or `acme`.
fn by_tenant() -> Subject {
    Subject::by(|parts| match parts.headers.get("x-tenant") {
        None => Some("acme".to_owned()),
        Some(tenant) => Some(tenant.to_str().ok()?.to_owned()).filter(|tenant| !tenant.is_empty()),
    })
}

async fn problem(response: Response<Body>, status: u16, kind: &str) {
    assert_eq!(response.status(), status);
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let text = text(response).await;
    let problem: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(problem["type"], format!("urn:redstart:{kind}"), "{text}");
    assert_eq!(problem["status"], status);
}

fn request(method: Method, key: Option<&str>, body: &str) -> Request<Body> {
    let mut request = Request::builder().method(method).uri("/pay");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

async fn pay(app: &Router, key: &str, body: &str) -> Response<Body> {
    send(app, request(Method::POST, Some(key), body)).await
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

matrix! {
    async fn a_repeat_gets_the_first_answer_and_is_not_carried_out(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let counter = Counter::default();
        let app = counter.app(IdempotencyLayer::builder(keys, by_tenant()).max_body(1000));

        let first = pay(&app, "a", "tea").await;
        assert!(!first.headers().contains_key("idempotency-replayed"));
        assert_eq!(text(first).await, "tea 1");
        // With the quotes that the draft asks for it is the same key.
        for key in ["a", "\"a\""] {
            let again = pay(&app, key, "tea").await;
            assert_eq!(again.status(), 200);
            assert_eq!(again.headers()["idempotency-replayed"], "true");
            assert_eq!(again.headers()["x-n"], "1");
            assert_eq!(text(again).await, "tea 1");
        }
        assert_eq!(counter.done(), 1);
        // Another body, another method, another owner.
        problem(pay(&app, "a", "coffee").await, 422, "idempotency-key-reused").await;
        assert_eq!(send(&app, request(Method::PATCH, Some("a"), "tea")).await.status(), 422);
        let mut other = request(Method::POST, Some("a"), "tea");
        other.headers_mut().insert("x-tenant", "other".parse()?);
        assert_eq!(text(send(&app, other).await).await, "tea 2");
        let mut nobody = request(Method::POST, Some("a"), "tea");
        nobody.headers_mut().insert("x-tenant", "".parse()?);
        problem(send(&app, nobody).await, 401, "login-required").await;
        // A refreshed access token or a cookie of a load balancer makes it no other request.
        for (name, value) in [("authorization", "Bearer refreshed"), ("cookie", "lb=7"), ("cookie", "lb=8")] {
            let mut same = request(Method::POST, Some("a"), "tea");
            same.headers_mut().insert(name, value.parse()?);
            assert_eq!(text(send(&app, same).await).await, "tea 1");
        }
        // Methods that are idempotent anyway, and requests without a key, pass.
        send(&app, request(Method::PUT, Some("a"), "tea")).await;
        send(&app, request(Method::POST, None, "tea")).await;
        assert_eq!(counter.done(), 4);
        // A refusal of the service is an answer; a failure is not.
        assert_eq!(pay(&app, "bad", "bad").await.status(), 400);
        assert_eq!(pay(&app, "bad", "bad").await.headers()["idempotency-replayed"], "true");
        assert_eq!(counter.done(), 5);
        assert_eq!(pay(&app, "fail", "fail").await.status(), 500);
        assert_eq!(pay(&app, "fail", "fail").await.status(), 500);
        assert_eq!(counter.done(), 7);
        // Bounds.
        assert_eq!(pay(&app, "large", &"x".repeat(1001)).await.status(), 413);
        assert_eq!(pay(&app, &"k".repeat(256), "tea").await.status(), 400);
        problem(pay(&app, "\"\"", "tea").await, 400, "idempotency-key-malformed").await;
        assert_eq!(text(pay(&app, "big", "big").await).await.len(), 5000);
        problem(pay(&app, "big", "big").await, 409, "idempotency-answer-not-kept").await;
        assert_eq!(counter.done(), 8);
        Ok(())
    }

    async fn a_key_of_one_nested_router_is_refused_in_another(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let counter = Counter::default();
        let inner = counter.app(IdempotencyLayer::builder(keys, by_tenant()));
        let app = Router::new().nest("/payments", inner.clone()).nest("/refunds", inner);
        let to = |uri: &str| {
            let mut request = request(Method::POST, Some("a"), "tea");
            *request.uri_mut() = uri.parse().unwrap();
            request
        };
        assert_eq!(text(send(&app, to("/payments/pay?n=1")).await).await, "tea 1");
        problem(send(&app, to("/refunds/pay?n=1")).await, 422, "idempotency-key-reused").await;
        problem(send(&app, to("/payments/pay?n=2")).await, 422, "idempotency-key-reused").await;
        // Over HTTP/2 a request has a scheme and a host; it is the same request.
        assert_eq!(text(send(&app, to("https://shop.example/payments/pay?n=1")).await).await, "tea 1");
        assert_eq!(counter.done(), 1);
        Ok(())
    }

    async fn a_repeat_while_the_first_is_carried_out_gets_409(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let counter = Counter::default();
        let app = counter.app(IdempotencyLayer::builder(keys, by_tenant()).required());
        problem(send(&app, request(Method::POST, None, "tea")).await, 400, "idempotency-key-missing").await;
        let first = {
            let app = app.clone();
            tokio::spawn(async move { text(pay(&app, "w", "wait").await).await })
        };
        assert!(eventually(Duration::from_secs(30), async || counter.done() == 1).await);
        for _ in 0..5 {
            let busy = pay(&app, "w", "wait").await;
            assert_eq!(busy.status(), StatusCode::CONFLICT);
            assert!(busy.headers()["retry-after"].to_str()?.parse::<u64>()? >= 1);
            problem(busy, 409, "idempotency-in-flight").await;
        }
        counter.open.notify_one();
        assert_eq!(first.await?, "wait 1");
        assert_eq!(text(pay(&app, "w", "wait").await).await, "wait 1");

        // A client that hangs up neither stops the work nor frees the key.
        let gone = {
            let app = app.clone();
            tokio::spawn(async move { pay(&app, "gone", "wait").await })
        };
        assert!(eventually(Duration::from_secs(30), async || counter.done() == 2).await);
        gone.abort();
        let _ = gone.await;
        problem(pay(&app, "gone", "wait").await, 409, "idempotency-in-flight").await;
        counter.open.notify_one();
        let answered = eventually(Duration::from_secs(30), async || {
            let again = pay(&app, "gone", "wait").await;
            again.status() == 200 && again.headers().contains_key("idempotency-replayed")
        });
        assert!(answered.await, "the work was stopped");
        assert_eq!(counter.done(), 2);
        Ok(())
    }

    async fn a_repeat_right_after_a_5xx_is_carried_out(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let counter = Counter::default();
        let app = counter.app(IdempotencyLayer::builder(keys, Subject::everyone()));
        for n in 1..=100 {
            assert_eq!(pay(&app, "k", "fail").await.status(), 500, "request {n}");
            assert_eq!(counter.done(), n);
        }
        Ok(())
    }

    async fn after_a_panic_the_outcome_is_unknown_and_the_key_is_not_free(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let counter = Counter::default();
        let app = counter.app(IdempotencyLayer::builder(keys, Subject::everyone()));
        assert_eq!(pay(&app, "k", "panic").await.status(), 500);
        for _ in 0..3 {
            problem(pay(&app, "k", "panic").await, 409, "idempotency-outcome-unknown").await;
        }
        assert_eq!(counter.done(), 1);
        Ok(())
    }

    async fn credentials_are_neither_kept_nor_replayed(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let sessions = redstart::sessions::Sessions::new(&store, backend.namespace(), "web")?;
        let handler = |session: CookieSession, key: IdempotencyKey| async move {
            session.login("ann", &()).await?;
            Ok::<_, Problem>(([("set-cookie", "extra=needle"), ("location", "/orders/7")], key.as_str().to_owned()))
        };
        let app = Router::new()
            .route("/pay", post(handler))
            .layer(IdempotencyLayer::builder(keys, Subject::everyone()).keep_header(http::header::SET_COOKIE).build())
            .layer(CookieLayer::new(sessions));
        let first = pay(&app, "\"k\"", "").await;
        let secrets: Vec<_> = first.headers().get_all("set-cookie").iter().map(|value| value.to_str().unwrap().to_owned()).collect();
        assert_eq!(secrets.len(), 2);
        let token = secrets.iter().find_map(|secret| secret.strip_prefix("__Host-session=")).unwrap();
        assert_eq!(text(first).await, "k");
        let again = pay(&app, "k", "").await;
        assert_eq!(again.headers()["idempotency-replayed"], "true");
        assert_eq!(again.headers()["location"], "/orders/7");
        assert!(!again.headers().contains_key("set-cookie"), "a repeat gets the session of the first");
        for key in store.scan(&format!("{}*", backend.namespace())).await? {
            if store.query::<String>(redstart::redis::cmd("TYPE").arg(&key)).await? != "hash" { continue; }
            let values: Vec<Vec<u8>> = store.query(redstart::redis::cmd("HVALS").arg(&key)).await?;
            for value in values {
                let has = |text: &str| value.windows(text.len()).any(|window| window == text.as_bytes());
                assert!(!has("needle") && !has(&token[44..86]), "a credential is in {key}");
            }
        }
        Ok(())
    }
}

#[tokio::test]
async fn requests_get_503_or_go_unprotected_while_the_store_is_down() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_millis(200))
        .connect()
        .await?;
    let keys = |down| {
        Idempotency::builder(&store, "down", "pay")
            .on_store_down(down)
            .build()
    };
    let counter = Counter::default();
    let refuse = counter.app(IdempotencyLayer::builder(keys(Down::Fail)?, by_tenant()));
    let allow = counter.app(IdempotencyLayer::builder(keys(Down::Allow)?, by_tenant()));
    server.kill9();
    assert_eq!(pay(&refuse, "a", "tea").await.status(), 503);
    assert_eq!(counter.done(), 0);
    assert_eq!(text(pay(&allow, "a", "tea").await).await, "tea 1");
    Ok(())
}
