//! The limiter layer, request by request.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{net::SocketAddr, time::Duration};

use axum::{Router, body::Body, routing::get};
use http::{Request, Response, StatusCode};
use redstart::{
    Down, Store,
    limiting::{Algorithm, Limiter, Quota},
};
use redstart_testkit::{Backend, Kind as ServerKind, Server, matrix};
use redstart_tower::LimitLayer;
use tower::ServiceExt as _;

const LONG: Duration = Duration::from_secs(20 * 24 * 3600);

fn app(layer: LimitLayer) -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(layer)
}

async fn ask(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

fn with_header(name: &str, value: &str) -> Request<Body> {
    Request::get("/")
        .header(name, value)
        .body(Body::empty())
        .unwrap()
}

fn from_ip(address: &str) -> Request<Body> {
    let mut request = Request::get("/").body(Body::empty()).unwrap();
    let address: SocketAddr = address.parse().unwrap();
    request
        .extensions_mut()
        .insert(axum::extract::ConnectInfo(address));
    request
}

matrix! {
    async fn requests_above_the_limit_get_429_and_when_to_come_back(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = Limiter::token_bucket(&store, backend.namespace(), "burst", Quota::per_second(1).burst(2))
            .and("daily", Algorithm::FixedWindow, Quota::per_day(1000))
            .on_store_down(Down::Refuse)
            .build()?;
        let app = app(LimitLayer::new(limiter).by_header("x-api-key")?.legacy_headers());
        let response = ask(&app, with_header("x-api-key", "k1")).await;
        assert_eq!(response.status(), StatusCode::OK);
        let headers = response.headers();
        assert_eq!(headers["ratelimit-policy"], "\"burst\";q=2;w=2, \"daily\";q=1000;w=86400");
        let limit = headers["ratelimit"].to_str()?;
        assert!(limit.starts_with("\"burst\";r=1;t=1, \"daily\";r=999;t="), "{limit}");
        assert_eq!(headers["x-ratelimit-limit"], "2");
        assert_eq!(headers["x-ratelimit-remaining"], "1");
        assert_eq!(headers["x-ratelimit-reset"], "1");
        let mut refused = None;
        for _ in 0..1000 {
            let response = ask(&app, with_header("x-api-key", "k1")).await;
            if response.status() == StatusCode::TOO_MANY_REQUESTS {
                refused = Some(response);
                break;
            }
        }
        let refused = refused.expect("a refusal");
        assert_eq!(refused.headers()["retry-after"], "1");
        assert!(refused.headers()["ratelimit"].to_str()?.starts_with("\"burst\";r=0;t="));
        assert!(refused.headers().contains_key("ratelimit-policy"));
        // Another key has its own limit, and the key itself is not in the store.
        assert_eq!(ask(&app, with_header("x-api-key", "k2")).await.status(), StatusCode::OK);
        for key in store.scan(&format!("{}:*", backend.namespace())).await? {
            assert!(!key.contains("{k1}"), "{key}");
        }
        Ok(())
    }

    async fn subjects_are_peers_closures_or_one_for_all_the_nameless(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = |part: &str| {
            Limiter::fixed_window(&store, backend.namespace(), part, Quota::per(1, LONG))
                .on_store_down(Down::Fail)
                .build()
        };
        let by_ip = app(LimitLayer::new(limiter("ip")?));
        assert_eq!(ask(&by_ip, from_ip("192.0.2.1:1000")).await.status(), 200);
        // Another port is no other peer, and neither is another address of the same /64.
        assert_eq!(ask(&by_ip, from_ip("192.0.2.1:2000")).await.status(), 429);
        assert_eq!(ask(&by_ip, from_ip("192.0.2.2:1000")).await.status(), 200);
        assert_eq!(ask(&by_ip, from_ip("[2001:db8::1]:1")).await.status(), 200);
        assert_eq!(ask(&by_ip, from_ip("[2001:db8::2]:1")).await.status(), 429);
        // Who has no address shares one limit with all who have none.
        let nameless = || Request::get("/").body(Body::empty()).unwrap();
        assert_eq!(ask(&by_ip, nameless()).await.status(), 200);
        assert_eq!(ask(&by_ip, nameless()).await.status(), 429);

        let by_path = app(LimitLayer::new(limiter("path")?).by(|parts| Some(parts.uri.query()?.to_owned())));
        let query = |q: &str| Request::get(format!("/?{q}")).body(Body::empty()).unwrap();
        assert_eq!(ask(&by_path, query("a")).await.status(), 200);
        assert_eq!(ask(&by_path, query("a")).await.status(), 429);
        assert_eq!(ask(&by_path, query("b")).await.status(), 200);
        // However long a subject is, it is one.
        let long = "x".repeat(5000);
        assert_eq!(ask(&by_path, query(&long)).await.status(), 200);
        assert_eq!(ask(&by_path, query(&long)).await.status(), 429);
        assert!(LimitLayer::new(limiter("bad")?).by_header("not a name").is_err());
        Ok(())
    }
}

#[tokio::test]
async fn a_store_that_is_down_is_503_or_let_through_as_chosen() -> anyhow::Result<()> {
    let server = Server::builder(ServerKind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_millis(200))
        .connect()
        .await?;
    let app = |down| -> anyhow::Result<Router> {
        let limiter = Limiter::fixed_window(&store, "down", "api", Quota::per_day(5));
        Ok(app(LimitLayer::new(limiter.on_store_down(down).build()?)))
    };
    let (refuse, fail, allow) = (app(Down::Refuse)?, app(Down::Fail)?, app(Down::Allow)?);
    server.kill9();
    for app in [refuse, fail] {
        let response = ask(&app, from_ip("192.0.2.1:1")).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()["retry-after"], "1");
        assert!(!response.headers().contains_key("ratelimit"));
    }
    let response = ask(&allow, from_ip("192.0.2.1:1")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!response.headers().contains_key("ratelimit"));
    Ok(())
}
