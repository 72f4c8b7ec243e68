//! The limiter layer, request by request.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{net::SocketAddr, time::Duration};

use axum::{Router, body::Body, routing::get};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use redstart::{
    Down, Store,
    limiting::{Algorithm, Limiter, Quota},
};
use redstart_testkit::{Backend, Kind as ServerKind, Server, matrix};
use redstart_tower::{CookieLayer, CookieSession, LimitLayer, Problem, QuotaUnit, Subject};
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

fn by_key() -> Subject {
    Subject::header(http::HeaderName::from_static("x-api-key"))
}

async fn json(response: Response<Body>) -> serde_json::Value {
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}

fn from_ip(address: &str) -> Request<Body> {
    let mut request = Request::get("/").body(Body::empty()).unwrap();
    let address: SocketAddr = address.parse().unwrap();
    request
        .extensions_mut()
        .insert(axum::extract::ConnectInfo(address));
    request
}

/// The items of a header, as a parser of structured fields reads them. All lines of a header are one list.
fn items(response: &Response<Body>, name: &str) -> Vec<sfv::Item> {
    let lines = response.headers().get_all(name).iter();
    let lines: Vec<_> = lines.map(|value| value.as_bytes()).collect();
    let list = sfv::Parser::new(&lines.join(&b", "[..])).parse::<sfv::List>();
    let entries = list.expect("a list of structured fields").into_iter();
    entries
        .map(|entry| match entry {
            sfv::ListEntry::Item(item) => item,
            sfv::ListEntry::InnerList(list) => panic!("{list:?}"),
        })
        .collect()
}

/// Checks a header against the draft: the names of its items, and of each the parameters, which must have their types.
fn checked(response: &Response<Body>, name: &str, integers: [&str; 2]) -> Vec<(String, [i64; 2])> {
    let read = |item: sfv::Item| {
        let name = item.bare_item.as_string().expect("a String").to_string();
        let number = |key: &str| {
            let number = item.params[key].as_integer().expect("an Integer");
            i64::from(number)
        };
        let numbers = integers.map(number);
        assert!(numbers.iter().all(|number| *number >= 0));
        let partition = item.params.get("pk").map(|pk| pk.as_byte_sequence());
        assert!(partition.is_none_or(|pk| pk.is_some_and(|pk| pk.len() == 8)));
        (name, numbers)
    };
    items(response, name).into_iter().map(read).collect()
}

matrix! {
    async fn the_headers_are_the_structured_fields_of_the_draft(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        // Every name that a limit can have, and windows shorter than a second.
        let limiter = Limiter::token_bucket(&store, backend.namespace(), "ein/Stoß_1", Quota::per(1, LONG).burst(2))
            .and("per-day", Algorithm::SlidingWindow, Quota::per_day(1000))
            .and("kurz.v2", Algorithm::SlidingCounter, Quota::per(1000, Duration::from_millis(1)))
            .on_store_down(Down::Refuse)
            .build()?;
        let app = app(LimitLayer::builder(limiter.clone(), by_key()).build());
        let names = ["ein/Sto%C3%9F_1", "per-day", "kurz.v2"];
        for (status, remaining) in [(200, 1), (200, 0), (429, 0)] {
            let response = ask(&app, with_header("x-api-key", "k1")).await;
            assert_eq!(response.status(), status);
            let policies = checked(&response, "ratelimit-policy", ["q", "w"]);
            let seconds = 2 * LONG.as_secs() as i64;
            let expected = [(names[0].to_owned(), [2, seconds]), (names[1].to_owned(), [1000, 86400]), (names[2].to_owned(), [1000, 1])];
            assert_eq!(policies, expected);
            for policy in items(&response, "ratelimit-policy") {
                assert_eq!(policy.params["qu"].as_string().unwrap().as_str(), "requests");
                assert_eq!(policy.params["pk"], items(&response, "ratelimit")[0].params["pk"]);
            }
            let limits = checked(&response, "ratelimit", ["r", "t"]);
            assert_eq!((&limits[0].0[..], limits[0].1[0]), (names[0], remaining));
            if status == 429 {
                // `Retry-After` is not earlier than the end of the window.
                assert_eq!(limits.len(), 1);
                let retry_after: i64 = response.headers()["retry-after"].to_str()?.parse()?;
                assert_eq!(retry_after, limits[0].1[1]);
                assert!(retry_after <= LONG.as_secs() as i64, "waiting for one unit is enough");
                assert_eq!(json(response).await["violated-policies"], serde_json::json!([names[0]]));
            } else {
                assert_eq!(limits.len(), 3);
            }
        }
        // The unit is another, and the subject is not to be recognised.
        let layer = LimitLayer::builder(limiter, by_key()).quota_unit(QuotaUnit::ContentBytes).hide_partition_key().cost(|_| 3);
        let never = ask(&self::app(layer.build()), with_header("x-api-key", "k2")).await;
        assert_eq!(json(never).await["violated-policies"], serde_json::json!([names[0]]));
        let bytes = Limiter::fixed_window(&store, backend.namespace(), "bytes", Quota::per_day(1000)).on_store_down(Down::Fail).build()?;
        let layer = LimitLayer::builder(bytes, by_key()).quota_unit(QuotaUnit::ContentBytes).hide_partition_key().cost(|_| 3);
        let response = ask(&self::app(layer.build()), with_header("x-api-key", "k2")).await;
        assert_eq!(checked(&response, "ratelimit", ["r", "t"])[0].1[0], 997);
        let policy = items(&response, "ratelimit-policy").remove(0);
        assert_eq!(policy.params["qu"].as_string().unwrap().as_str(), "content-bytes");
        assert!(!policy.params.contains_key("pk"));
        Ok(())
    }

    async fn requests_above_the_limit_get_429_with_retry_after(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = Limiter::token_bucket(&store, backend.namespace(), "burst", Quota::per_second(1).burst(2))
            .and("daily", Algorithm::FixedWindow, Quota::per_day(1000))
            .on_store_down(Down::Refuse)
            .build()?;
        let app = app(LimitLayer::builder(limiter, by_key()).legacy_headers().build());
        let response = ask(&app, with_header("x-api-key", "k1")).await;
        assert_eq!(response.status(), StatusCode::OK);
        let headers = response.headers();
        let policy = headers["ratelimit-policy"].to_str()?;
        let partition = policy.split(":").nth(1).unwrap();
        assert_eq!(policy, format!("\"burst\";q=2;qu=\"requests\";w=2;pk=:{partition}:, \"daily\";q=1000;qu=\"requests\";w=86400;pk=:{partition}:"));
        let limit = headers["ratelimit"].to_str()?;
        assert!(limit.starts_with(&format!("\"burst\";r=1;t=1;pk=:{partition}:, \"daily\";r=999;t=")), "{limit}");
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
        let problem = json(refused).await;
        assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
        assert_eq!(problem["violated-policies"], serde_json::json!(["burst"]));
        // Another key has its own limit, and the key itself is not in the store.
        assert_eq!(ask(&app, with_header("x-api-key", "k2")).await.status(), StatusCode::OK);
        for key in store.scan(&format!("{}:*", backend.namespace())).await? {
            assert!(!key.contains("{k1}"), "{key}");
        }
        Ok(())
    }

    async fn requests_without_a_subject_share_one_limit(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = |part: &str| {
            Limiter::fixed_window(&store, backend.namespace(), part, Quota::per(1, LONG))
                .on_store_down(Down::Fail)
                .build()
        };
        let by_ip = app(LimitLayer::new(limiter("ip")?, Subject::ip()));
        assert_eq!(ask(&by_ip, from_ip("192.0.2.1:1000")).await.status(), 200);
        // Another port is the same peer, and so is another address of the same /64.
        assert_eq!(ask(&by_ip, from_ip("192.0.2.1:2000")).await.status(), 429);
        assert_eq!(ask(&by_ip, from_ip("192.0.2.2:1000")).await.status(), 200);
        assert_eq!(ask(&by_ip, from_ip("[2001:db8::1]:1")).await.status(), 200);
        assert_eq!(ask(&by_ip, from_ip("[2001:db8::2]:1")).await.status(), 429);
        // Requests without an address share one limit.
        let nameless = || Request::get("/").body(Body::empty()).unwrap();
        assert_eq!(ask(&by_ip, nameless()).await.status(), 200);
        assert_eq!(ask(&by_ip, nameless()).await.status(), 429);

        let by_path = app(LimitLayer::new(limiter("path")?, Subject::by(|parts| Some(parts.uri.query()?.to_owned()))));
        let query = |q: &str| Request::get(format!("/?{q}")).body(Body::empty()).unwrap();
        assert_eq!(ask(&by_path, query("a")).await.status(), 200);
        assert_eq!(ask(&by_path, query("a")).await.status(), 429);
        assert_eq!(ask(&by_path, query("b")).await.status(), 200);
        // A long subject is one subject too.
        let long = "x".repeat(5000);
        assert_eq!(ask(&by_path, query(&long)).await.status(), 200);
        assert_eq!(ask(&by_path, query(&long)).await.status(), 429);
        Ok(())
    }

    async fn nested_layers_add_their_items_and_keep_the_numbers_of_the_one_that_refused(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = |name: &str, quota| {
            Limiter::fixed_window(&store, backend.namespace(), name, quota).on_store_down(Down::Fail).build()
        };
        let app = Router::new()
            .route("/", get(|| async { "hello" }))
            .layer(LimitLayer::builder(limiter("key", Quota::per(1, LONG))?, by_key()).legacy_headers().build())
            .layer(LimitLayer::builder(limiter("address", Quota::per(100, LONG))?, Subject::ip()).legacy_headers().build());
        let ask = async || {
            let mut request = from_ip("192.0.2.1:1000");
            request.headers_mut().insert("x-api-key", "k1".parse().unwrap());
            ask(&app, request).await
        };
        for (status, remaining) in [(200, "99"), (429, "98")] {
            let response = ask().await;
            assert_eq!(response.status(), status);
            for name in ["ratelimit", "ratelimit-policy"] {
                let items: Vec<_> = response.headers().get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
                assert_eq!(items.len(), 2, "{items:?}");
                assert!(items[0].starts_with("\"key\";") && items[1].starts_with("\"address\";"), "{items:?}");
            }
            let limits: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
            assert!(limits[0].to_str()?.starts_with("\"key\";r=0;"), "{limits:?}");
            assert!(limits[1].to_str()?.starts_with(&format!("\"address\";r={remaining};")), "{limits:?}");
            // One number each: those of the tighter limit.
            assert_eq!(response.headers().get_all("x-ratelimit-limit").iter().count(), 1);
            assert_eq!(response.headers()["x-ratelimit-limit"], "1");
            assert_eq!(response.headers()["x-ratelimit-remaining"], "0");
        }
        assert!(ask().await.headers().contains_key("retry-after"));
        Ok(())
    }

    async fn users_of_sessions_are_subjects_and_routes_have_costs_and_bodies(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limiter = Limiter::fixed_window(&store, backend.namespace(), "user", Quota::per(10, LONG)).on_store_down(Down::Fail).build()?;
        let limit = LimitLayer::builder(limiter, Subject::user())
            .cost(|parts| match parts.uri.path() {
                "/login" => 0,
                "/export" => 5,
                "/everything" => 11,
                _ => 1,
            })
            .render_problem(|problem| {
                let text = format!("{} {:?}", problem.status().as_u16(), problem.violated_policies());
                (http::HeaderValue::from_static("text/plain"), text.into())
            })
            .build();
        let login = |session: CookieSession, user: String| async move {
            session.login(&user, &()).await.map_err(Problem::from)
        };
        let app = Router::new()
            .route("/export", get(|| async { "rows" }))
            .route("/everything", get(|| async { "rows" }))
            .route("/login", axum::routing::post(login))
            .layer(limit.clone())
            .layer(CookieLayer::new(redstart::sessions::Sessions::new(&store, backend.namespace(), "web")?));
        let cookie = async |user: &str| {
            let request = Request::post("/login").body(Body::from(user.to_owned())).unwrap();
            let response = ask(&app, request).await;
            assert!(!response.headers().contains_key("ratelimit"), "it costs nothing");
            let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
            cookie.split(';').next().unwrap().to_owned()
        };
        let export = async |path: &str, cookie: &str| {
            ask(&app, Request::get(path).header("cookie", cookie).body(Body::empty()).unwrap()).await
        };
        let (phone, laptop, bob) = (cookie("ann").await, cookie("ann").await, cookie("bob").await);
        assert_eq!(export("/export", &phone).await.status(), 200);
        // Another device is the same user.
        assert_eq!(export("/export", &laptop).await.status(), 200);
        let refused = export("/export", &phone).await;
        assert_eq!(refused.status(), 429);
        assert_eq!(refused.headers()["content-type"], "text/plain");
        let body = refused.into_body().collect().await?.to_bytes();
        assert!(body.starts_with(b"429 ["), "{body:?}");
        assert_eq!(export("/export", &bob).await.status(), 200);
        // More than the whole limit is refused without a time to wait.
        let never = export("/everything", &bob).await;
        assert_eq!(never.status(), 429);
        assert!(!never.headers().contains_key("retry-after"));
        // Without the cookie layer the mistake is the server's.
        let wrong = Router::new().route("/", get(|| async { "hello" })).layer(limit);
        assert_eq!(ask(&wrong, Request::get("/").body(Body::empty())?).await.status(), 500);
        Ok(())
    }
}

#[tokio::test]
async fn requests_get_503_or_pass_while_the_store_is_down() -> anyhow::Result<()> {
    let server = Server::builder(ServerKind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_millis(200))
        .connect()
        .await?;
    let app = |down| -> anyhow::Result<Router> {
        let limiter = Limiter::fixed_window(&store, "down", "api", Quota::per_day(5));
        Ok(app(LimitLayer::new(
            limiter.on_store_down(down).build()?,
            Subject::ip(),
        )))
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
