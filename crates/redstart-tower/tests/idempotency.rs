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
use redstart_tower::IdempotencyLayer;
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

    fn app(&self, layer: IdempotencyLayer) -> Router {
        let handle = {
            let counter = self.clone();
            move |body: String| async move {
                let n = counter.done.fetch_add(1, Ordering::SeqCst) + 1;
                match body.as_str() {
                    "wait" => counter.open.notified().await,
                    "fail" => return Err(StatusCode::INTERNAL_SERVER_ERROR),
                    "bad" => return Err(StatusCode::BAD_REQUEST),
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
        let app = counter.app(IdempotencyLayer::new(keys).max_body(1000));

        let first = pay(&app, "a", "tea").await;
        assert!(!first.headers().contains_key("idempotency-replayed"));
        assert_eq!(text(first).await, "tea 1");
        // Quoted as the draft asks for, it is the same key.
        for key in ["a", "\"a\""] {
            let again = pay(&app, key, "tea").await;
            assert_eq!(again.status(), 200);
            assert_eq!(again.headers()["idempotency-replayed"], "true");
            assert_eq!(again.headers()["x-n"], "1");
            assert_eq!(text(again).await, "tea 1");
        }
        assert_eq!(counter.done(), 1);
        // Another body, another method, another owner.
        assert_eq!(pay(&app, "a", "coffee").await.status(), 422);
        assert_eq!(send(&app, request(Method::PATCH, Some("a"), "tea")).await.status(), 422);
        let mut other = request(Method::POST, Some("a"), "tea");
        other.headers_mut().insert("authorization", "Bearer other".parse()?);
        assert_eq!(text(send(&app, other).await).await, "tea 2");
        // What is idempotent by itself, or has no key, passes.
        send(&app, request(Method::PUT, Some("a"), "tea")).await;
        send(&app, request(Method::POST, None, "tea")).await;
        assert_eq!(counter.done(), 4);
        // A refusal of the service is an answer; a failure is not.
        assert_eq!(pay(&app, "bad", "bad").await.status(), 400);
        assert_eq!(pay(&app, "bad", "bad").await.headers()["idempotency-replayed"], "true");
        assert_eq!(counter.done(), 5);
        assert_eq!(pay(&app, "fail", "fail").await.status(), 500);
        store.settle().await;
        assert_eq!(pay(&app, "fail", "fail").await.status(), 500);
        assert_eq!(counter.done(), 7);
        // Bounds.
        assert_eq!(pay(&app, "large", &"x".repeat(1001)).await.status(), 413);
        assert_eq!(pay(&app, &"k".repeat(256), "tea").await.status(), 400);
        assert_eq!(pay(&app, "\"\"", "tea").await.status(), 400);
        assert_eq!(text(pay(&app, "big", "big").await).await.len(), 5000);
        assert_eq!(pay(&app, "big", "big").await.status(), 409);
        assert_eq!(counter.done(), 8);
        Ok(())
    }

    async fn a_repeat_while_the_first_is_at_work_gets_409(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Idempotency::new(&store, backend.namespace(), "pay")?;
        let counter = Counter::default();
        let app = counter.app(IdempotencyLayer::new(keys).required());
        assert_eq!(send(&app, request(Method::POST, None, "tea")).await.status(), 400);
        let first = {
            let app = app.clone();
            tokio::spawn(async move { text(pay(&app, "w", "wait").await).await })
        };
        assert!(eventually(Duration::from_secs(30), async || counter.done() == 1).await);
        for _ in 0..5 {
            let busy = pay(&app, "w", "wait").await;
            assert_eq!(busy.status(), StatusCode::CONFLICT);
            assert!(busy.headers()["retry-after"].to_str()?.parse::<u64>()? >= 1);
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
        assert_eq!(pay(&app, "gone", "wait").await.status(), StatusCode::CONFLICT);
        counter.open.notify_one();
        store.settle().await;
        let again = pay(&app, "gone", "wait").await;
        assert_eq!(again.headers()["idempotency-replayed"], "true");
        assert_eq!(text(again).await, "wait 2");
        assert_eq!(counter.done(), 2);
        Ok(())
    }
}

#[tokio::test]
async fn a_store_that_is_down_is_503_or_unprotected_as_chosen() -> anyhow::Result<()> {
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
    let refuse = counter.app(IdempotencyLayer::new(keys(Down::Fail)?));
    let allow = counter.app(IdempotencyLayer::new(keys(Down::Allow)?));
    server.kill9();
    assert_eq!(pay(&refuse, "a", "tea").await.status(), 503);
    assert_eq!(counter.done(), 0);
    assert_eq!(text(pay(&allow, "a", "tea").await).await, "tea 1");
    Ok(())
}
