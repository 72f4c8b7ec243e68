//! An HTTP service with rate limits and idempotency keys, which calls itself.
//!
//! ```text
//! cargo run -p redstart-examples --example rate_limited_api
//! cargo run -p redstart-examples --example rate_limited_api redis://localhost
//! ```

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderName, Request},
    routing::{get, post},
};
use http_body_util::BodyExt as _;
use redstart::{
    Down,
    limiting::{Algorithm, Limiter, Quota},
    resilience::Idempotency,
};
use redstart_tower::{IdempotencyLayer, LimitLayer, Subject};
use tower::ServiceExt as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = redstart_examples::store().await?;

    // Two per second in bursts of three, and a thousand per day: all or nothing, in one round trip.
    let limiter = Limiter::token_bucket(&store, "example", "burst", Quota::per_second(2).burst(3))
        .and("daily", Algorithm::SlidingCounter, Quota::per_day(1000))
        .on_store_down(Down::Refuse)
        .deny_cache(10_000)
        .build()?;
    let keys = Idempotency::new(&store, "example", "payments")?;

    let payments = Arc::new(AtomicU64::new(0));
    let counter = payments.clone();
    let pay = move |amount: String| async move {
        let number = counter.fetch_add(1, Ordering::Relaxed) + 1;
        format!("payment {number} of {amount}")
    };
    // Limits and idempotency keys belong to the client's API key.
    let by_key = Subject::header(HeaderName::from_static("x-api-key"));
    let app = Router::new()
        .route("/greeting", get(|| async { "hello" }))
        .layer(LimitLayer::new(limiter, by_key.clone()))
        .merge(
            Router::new()
                .route("/pay", post(pay))
                .layer(IdempotencyLayer::new(keys, by_key)),
        );

    println!("five requests at once; the limit is three:");
    for _ in 0..5 {
        let request = Request::get("/greeting")
            .header("x-api-key", "k1")
            .body(Body::empty())?;
        let response = app.clone().oneshot(request).await?;
        let header = |name: &str| match response.headers().get(name) {
            Some(value) => value.to_str().unwrap_or("?").to_owned(),
            None => "-".to_owned(),
        };
        println!(
            "  {}  RateLimit: {}  Retry-After: {}",
            response.status(),
            header("ratelimit"),
            header("retry-after"),
        );
    }

    println!(
        "a payment, sent three times because its answer was lost; the third time with another amount:"
    );
    // Unique, so that the example can run again on the same store.
    let key = format!("{:x}", rand::random::<u64>());
    for amount in ["5", "5", "500"] {
        let request = Request::post("/pay")
            .header("x-api-key", "k1")
            .header("idempotency-key", &key)
            .body(Body::from(amount))?;
        let response = app.clone().oneshot(request).await?;
        let (status, replayed) = (
            response.status(),
            response.headers().contains_key("idempotency-replayed"),
        );
        let body = response.into_body().collect().await?.to_bytes();
        let body = String::from_utf8_lossy(&body);
        println!("  {amount}: {status}, replayed: {replayed}, {body:?}");
    }
    assert_eq!(payments.load(Ordering::Relaxed), 1);
    println!("the payment was carried out once");
    Ok(())
}
