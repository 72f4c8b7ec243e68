//! Sessions by cookie, and the layers that need them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::{
    Json, Router,
    body::Body,
    http::{Request, Response, StatusCode, header},
    routing::{get, post},
};
use redstart::{
    Store,
    sessions::{Login, Sessions},
};
use redstart_testkit::{Backend, matrix};
use redstart_tower::{
    CookieLayer, CookieLayerBuilder, CookieSession, CsrfLayer, LoggedIn, LoginLayer, Problem,
    SameSite,
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const COOKIE: &str = "__Host-session";

async fn app(backend: &Backend) -> Result<(Router, Sessions)> {
    let store = Store::connect(backend.url()).await?;
    let sessions = Sessions::new(&store, backend.namespace(), "web")?;
    let layer = CookieLayer::new(sessions.clone());
    Ok((routes().layer(layer), sessions))
}

#[derive(serde::Deserialize)]
struct Cart {
    cart: Vec<u32>,
}

type Answer<T> = Result<T, Problem>;

fn routes() -> Router {
    let me = |session: CookieSession| async move {
        Answer::Ok(Json(match session.load::<Value>().await? {
            Some(session) => json!({ "user": session.user, "data": session.data }),
            None => Value::Null,
        }))
    };
    let cart = |session: CookieSession| async move {
        Answer::Ok(format!(
            "{:?}",
            session.patch(&json!({ "cart": [7] })).await?
        ))
    };
    let items = |ann: Option<LoggedIn<Cart>>| async move {
        match ann {
            Some(ann) => format!("{} {:?}", ann.user, ann.session.data.cart),
            None => "nobody".to_owned(),
        }
    };
    let login = |session: CookieSession, user: String| async move {
        let login = match user.strip_suffix(" remembered") {
            Some(user) => Login::new(user).remember(),
            None => Login::new(&user).label("test"),
        };
        Answer::Ok(session.login(login, &()).await?)
    };
    let elevate = |session: CookieSession| async move {
        let elevated = session.elevate(Duration::from_secs(300)).await?;
        Answer::Ok(elevated.to_string())
    };
    let devices = |session: CookieSession| async move {
        let devices = session.devices().await?;
        let list: Vec<_> = devices
            .iter()
            .map(|d| json!({ "label": d.label, "this": Some(&d.handle) == session.handle().as_ref(), "handle": d.handle }))
            .collect();
        Answer::Ok(Json(list))
    };
    Router::new()
        .route("/plain", get(|| async { "no session asked for" }))
        .route("/me", get(me))
        .route("/cart", post(cart))
        .route("/items", get(items))
        .route("/must", get(|ann: LoggedIn<Value>| async { ann.user }))
        .route("/login", post(login))
        .route(
            "/rotate",
            post(|session: CookieSession| async move {
                Answer::Ok(session.rotate().await?.to_string())
            }),
        )
        .route("/elevate", post(elevate))
        .route("/devices", get(devices))
        .route(
            "/csrf",
            get(|session: CookieSession| async move { session.csrf().unwrap_or_default() }),
        )
        .route(
            "/logout",
            post(|session: CookieSession| async move { Answer::Ok(session.logout().await?) }),
        )
        .route(
            "/everywhere",
            post(|session: CookieSession| async move {
                Answer::Ok(session.logout_everywhere().await?.to_string())
            }),
        )
        .route(
            "/device",
            post(|session: CookieSession, handle: String| async move {
                Answer::Ok(session.logout_device(&handle).await?.to_string())
            }),
        )
}

/// A browser that keeps its one cookie.
struct Browser {
    app: Router,
    cookie: Option<String>,
}

impl Browser {
    fn new(app: &Router) -> Self {
        Self {
            app: app.clone(),
            cookie: None,
        }
    }

    async fn send(&mut self, method: &str, path: &str, body: &str) -> Result<Response<Body>> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(cookie) = &self.cookie {
            request = request.header(
                header::COOKIE,
                format!("other=1; {COOKIE}={cookie}; more=2"),
            );
        }
        let response = self
            .app
            .clone()
            .oneshot(request.body(Body::from(body.to_owned()))?)
            .await?;
        if let Some(set) = response.headers().get(header::SET_COOKIE) {
            let set = set.to_str()?;
            let value = set
                .split(';')
                .next()
                .and_then(|pair| pair.split_once('='))
                .context("a pair")?
                .1;
            self.cookie = (!set.contains("Max-Age=0")).then(|| value.to_owned());
        }
        Ok(response)
    }

    async fn me(&mut self) -> Result<Value> {
        Ok(serde_json::from_str(&self.text("GET", "/me", "").await?)?)
    }

    async fn text(&mut self, method: &str, path: &str, body: &str) -> Result<String> {
        let response = self.send(method, path, body).await?;
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await?;
        Ok(String::from_utf8(bytes.to_vec())?)
    }
}

fn set_cookie(response: &Response<Body>) -> Option<&str> {
    response.headers().get(header::SET_COOKIE)?.to_str().ok()
}

matrix! {
    async fn the_cookie_is_http_only_secure_and_lax(backend: &Backend) -> Result<()> {
        let (app, _) = app(backend).await?;
        let mut browser = Browser::new(&app);
        let plain = browser.send("GET", "/plain", "").await?;
        assert!(set_cookie(&plain).is_none(), "no session, no cookie");
        let login = browser.send("POST", "/login", "ann").await?;
        let set = set_cookie(&login).context("a cookie")?;
        assert!(set.starts_with("__Host-session="));
        for attribute in ["HttpOnly", "Secure", "SameSite=Lax", "Path=/"] {
            assert!(set.contains(attribute), "{attribute} is missing");
        }
        assert!(!set.contains("Domain"));
        assert_eq!(login.headers()[header::CACHE_CONTROL], "no-store");
        assert_eq!(browser.me().await?["user"], "ann");
        let logout = browser.send("POST", "/logout", "").await?;
        assert!(set_cookie(&logout).context("a cookie")?.contains("Max-Age=0"));
        assert_eq!(browser.me().await?, Value::Null);
        Ok(())
    }

    async fn a_planted_cookie_is_worth_nothing_after_the_login(backend: &Backend) -> Result<()> {
        let (app, _) = app(backend).await?;
        // The attacker opens a session of their own and plants its cookie in the victim's browser.
        let mut attacker = Browser::new(&app);
        attacker.send("POST", "/cart", "").await?;
        let planted = attacker.cookie.clone().context("an anonymous session")?;
        let mut victim = Browser { app: app.clone(), cookie: Some(planted.clone()) };
        victim.send("POST", "/login", "ann").await?;
        assert_ne!(victim.cookie.as_ref(), Some(&planted), "the login kept the planted token");
        assert_eq!(victim.me().await?, json!({ "user": "ann", "data": { "cart": [7] } }));
        assert_eq!(attacker.me().await?, Value::Null, "the attacker shares the victim's session");

        // A token that the store never knew does not become a session either.
        let mut victim = Browser { app: app.clone(), cookie: Some("A".repeat(86)) };
        assert_eq!(victim.text("POST", "/cart", "").await?, "Gone");
        assert_eq!(victim.me().await?, Value::Null);
        victim.send("POST", "/login", "bob").await?;
        assert_ne!(victim.cookie, Some("A".repeat(86)));

        // A change of privileges gives a new token.
        let before = victim.cookie.clone();
        assert_eq!(victim.text("POST", "/rotate", "").await?, "true");
        assert_ne!(victim.cookie, before);
        assert_eq!(victim.me().await?["user"], "bob");
        Ok(())
    }

    async fn a_request_with_a_replaced_token_leaves_the_new_cookie_alone(backend: &Backend) -> Result<()> {
        let (app, sessions) = app(backend).await?;
        let mut browser = Browser::new(&app);
        browser.send("POST", "/login", "ann").await?;
        let sent_before = Browser { app: app.clone(), cookie: browser.cookie.clone() };
        let late = || Browser { app: app.clone(), cookie: sent_before.cookie.clone() };

        // One request rotates; those that were sent before with the old token arrive after it.
        browser.send("POST", "/rotate", "").await?;
        assert_eq!(late().me().await?["user"], "ann", "a parallel request is logged out");
        for (method, path) in [("GET", "/me"), ("POST", "/cart"), ("POST", "/rotate"), ("GET", "/items"), ("GET", "/plain")] {
            let response = late().send(method, path, "").await?;
            assert_eq!(response.status(), 200, "{path}");
            assert_eq!(set_cookie(&response), None, "{path} replaces the new cookie");
        }
        // One request logs in again; the old session is over at once.
        browser.send("POST", "/login", "ann").await?;
        for (method, path, answer) in [("GET", "/me", "null"), ("POST", "/cart", "Gone"), ("POST", "/rotate", "false"), ("GET", "/items", "nobody")] {
            let mut late = late();
            assert_eq!(late.text(method, path, "").await?, answer);
            assert_eq!(late.cookie, sent_before.cookie, "{path} replaces the new cookie");
        }
        assert_eq!(browser.me().await?["user"], "ann");
        assert_eq!(sessions.list("ann").await?.len(), 1);
        // Only a logout removes the cookie, also if the session was gone.
        let response = late().send("POST", "/logout", "").await?;
        assert!(set_cookie(&response).is_some_and(|set| set.contains("Max-Age=0")));
        assert_eq!(browser.me().await?["user"], "ann");
        Ok(())
    }

    async fn tampered_and_truncated_cookies_open_nothing(backend: &Backend) -> Result<()> {
        let (app, _) = app(backend).await?;
        let mut browser = Browser::new(&app);
        browser.send("POST", "/login", "ann").await?;
        let good = browser.cookie.clone().context("a cookie")?;
        let mut flipped = good.clone().into_bytes();
        flipped[60] = if flipped[60] == b'A' { b'B' } else { b'A' };
        for bad in ["", "%00", &good[..40], &format!("{good}{good}"), &String::from_utf8(flipped)?] {
            let mut browser = Browser { app: app.clone(), cookie: Some(bad.to_owned()) };
            assert_eq!(browser.me().await?, Value::Null);
        }
        assert_eq!(browser.me().await?["user"], "ann");
        Ok(())
    }

    async fn a_session_is_found_in_any_cookie_header(backend: &Backend) -> Result<()> {
        let (app, _) = app(backend).await?;
        let mut browser = Browser::new(&app);
        browser.send("POST", "/login", "ann").await?;
        let session = format!("{COOKIE}={}", browser.cookie.clone().context("a cookie")?);
        let headers: [Vec<Vec<u8>>; 6] = [
            vec![format!("a=1;{session}").into()],
            // Another application's cookie is not ASCII.
            vec![[b"name=M\xfcller; ", session.as_bytes(), b"; b=\xff"].concat()],
            vec!["name=Müller; x".into(), session.clone().into()],
            vec![format!("a={}; {session}", "x".repeat(20_000)).into()],
            vec![format!("{COOKIE}=stale; {session}").into()],
            vec![b"=; ;;".to_vec(), format!("  {session}  ").into()],
        ];
        for headers in headers {
            let mut request = Request::get("/me").body(Body::empty())?;
            for value in &headers {
                request.headers_mut().append(header::COOKIE, http::HeaderValue::from_bytes(value)?);
            }
            let response = app.clone().oneshot(request).await?;
            let body = axum::body::to_bytes(response.into_body(), 1 << 20).await?;
            assert!(body.starts_with(b"{"), "{:?}", headers.iter().map(|h| String::from_utf8_lossy(h)).collect::<Vec<_>>());
        }
        Ok(())
    }

    async fn cookies_have_the_settings_of_their_layer(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let sessions = Sessions::builder(&store, backend.namespace(), "web").remember(Duration::from_secs(86_400)).build()?;
        let of = async |set: fn(CookieLayerBuilder) -> CookieLayerBuilder, user: &str| -> Result<String> {
            let app = routes().layer(set(CookieLayer::builder(sessions.clone())).build()?);
            let request = Request::post("/login").body(Body::from(user.to_owned()))?;
            Ok(set_cookie(&app.oneshot(request).await?).context("a cookie")?.to_owned())
        };
        let cookie = of(|layer| layer.name("sid").same_site(SameSite::Strict), "ann").await?;
        assert!(cookie.starts_with("__Host-sid=") && cookie.contains("SameSite=Strict") && !cookie.contains("Max-Age"), "{cookie}");
        let cookie = of(|layer| layer.domain("example.com"), "ann").await?;
        assert!(cookie.starts_with("__Secure-session=") && cookie.contains("Domain=example.com"), "{cookie}");
        let cookie = of(|layer| layer.path("/app"), "ann").await?;
        assert!(cookie.starts_with("__Secure-session=") && cookie.contains("Path=/app"), "{cookie}");
        let cookie = of(|layer| layer.insecure(), "ann").await?;
        assert!(cookie.starts_with("session=") && !cookie.contains("Secure"), "{cookie}");
        // "Remember me" outlives the browser, also after a rotation.
        let cookie = of(|layer| layer, "ann remembered").await?;
        assert!(cookie.ends_with("; Max-Age=86400"), "{cookie}");
        let app = routes().layer(CookieLayer::new(sessions.clone()));
        let pair = cookie.split(';').next().unwrap();
        let rotate = Request::post("/rotate").header("cookie", pair).body(Body::empty())?;
        let response = app.oneshot(rotate).await?;
        let rotated = set_cookie(&response).context("a cookie")?;
        let age: u64 = rotated.rsplit("Max-Age=").next().unwrap().parse()?;
        assert!((86_000..=86_400).contains(&age), "{rotated}");

        let builder = || CookieLayer::builder(sessions.clone());
        assert!(builder().name("a b").build().is_err());
        assert!(builder().path("app").build().is_err());
        assert!(builder().domain("a;b").build().is_err());
        assert!(builder().same_site(SameSite::None).insecure().build().is_err());
        Ok(())
    }

    async fn layers_ask_for_a_login_a_step_up_and_a_csrf_token(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let sessions = Sessions::new(&store, backend.namespace(), "web")?;
        let ok = || async { "ok" };
        let app = Router::new()
            .route("/account", get(ok))
            .layer(LoginLayer::new())
            .merge(Router::new().route("/danger", get(ok)).layer(LoginLayer::builder().elevated().build()))
            .merge(Router::new().route("/page", get(ok)).layer(LoginLayer::builder().redirect(http::HeaderValue::from_static("/login")).build()))
            .merge(Router::new().route("/change", post(ok).get(ok)).layer(CsrfLayer::new()))
            .merge(routes())
            .layer(CookieLayer::new(sessions));
        let mut browser = Browser::new(&app);
        let page = browser.send("GET", "/page", "").await?;
        assert_eq!((page.status(), &page.headers()["location"]), (StatusCode::SEE_OTHER, &"/login".parse()?));
        for path in ["/account", "/danger", "/must"] {
            let refused = browser.send("GET", path, "").await?;
            assert_eq!(refused.status(), 401, "{path}");
            assert_eq!(refused.headers()["content-type"], "application/problem+json");
        }
        // An anonymous session is no login.
        browser.send("POST", "/cart", "").await?;
        assert_eq!(browser.send("GET", "/account", "").await?.status(), 401);
        assert_eq!(browser.text("GET", "/items", "").await?, "nobody");
        browser.send("POST", "/login", "ann").await?;
        assert_eq!(browser.text("GET", "/items", "").await?, "ann [7]");
        assert_eq!(browser.text("GET", "/must", "").await?, "ann");
        assert_eq!(browser.send("GET", "/account", "").await?.status(), 200);
        assert_eq!(browser.send("GET", "/page", "").await?.status(), 200);
        // Step-up, and its end.
        assert_eq!(browser.send("GET", "/danger", "").await?.status(), 403);
        let before = Browser { app: app.clone(), cookie: browser.cookie.clone() };
        assert_eq!(browser.text("POST", "/elevate", "").await?, "true");
        assert_eq!(browser.send("GET", "/danger", "").await?.status(), 200);
        let mut stolen = before;
        assert_ne!(stolen.send("GET", "/danger", "").await?.status(), 200, "the old token is elevated");
        assert_eq!(stolen.text("POST", "/elevate", "").await?, "false");
        if backend.is_embedded() {
            store.advance(Duration::from_secs(301))?;
            assert_eq!(browser.send("GET", "/danger", "").await?.status(), 403);
        }
        // A change needs the token of this session.
        let csrf = browser.text("GET", "/csrf", "").await?;
        let again = browser.text("GET", "/csrf", "").await?;
        assert_ne!(csrf, again, "two responses have the same token under the same mask");
        let mut other = Browser::new(&app);
        assert_eq!(other.send("POST", "/change", "").await?.status(), 200, "without a session there is nothing to forge");
        other.send("POST", "/login", "ann").await?;
        let foreign = other.text("GET", "/csrf", "").await?;
        let change = async |token: Option<&str>| -> Result<StatusCode> {
            let mut request = Request::post("/change").header("cookie", format!("{COOKIE}={}", browser.cookie.as_ref().unwrap()));
            if let Some(token) = token {
                request = request.header("x-csrf-token", token);
            }
            Ok(app.clone().oneshot(request.body(Body::empty())?).await?.status())
        };
        assert_eq!(change(None).await?, 403);
        assert_eq!(change(Some(&foreign)).await?, 403);
        assert_eq!(change(Some(&csrf)).await?, 200);
        assert_eq!(change(Some(&again)).await?, 200);
        assert_eq!(browser.send("GET", "/change", "").await?.status(), 200);
        Ok(())
    }

    async fn a_user_sees_the_devices_and_logs_one_out(backend: &Backend) -> Result<()> {
        let (app, _) = app(backend).await?;
        let (mut phone, mut laptop) = (Browser::new(&app), Browser::new(&app));
        phone.send("POST", "/login", "ann").await?;
        laptop.send("POST", "/login", "ann").await?;
        let devices: Value = serde_json::from_str(&laptop.text("GET", "/devices", "").await?)?;
        let devices = devices.as_array().unwrap();
        assert_eq!(devices.len(), 2);
        assert!(devices.iter().all(|device| device["label"] == "test"));
        assert_eq!(devices.iter().filter(|device| device["this"] == true).count(), 1);
        let other = devices.iter().find(|device| device["this"] == false).unwrap();
        let handle = other["handle"].as_str().unwrap();
        let mut stranger = Browser::new(&app);
        stranger.send("POST", "/login", "bob").await?;
        assert_eq!(stranger.text("POST", "/device", handle).await?, "false");
        assert_eq!(laptop.text("POST", "/device", handle).await?, "true");
        assert_eq!(phone.me().await?, Value::Null);
        assert_eq!(laptop.me().await?["user"], "ann");
        Ok(())
    }

    async fn logout_everywhere_ends_every_session_of_the_user_and_no_other(backend: &Backend) -> Result<()> {
        let (app, sessions) = app(backend).await?;
        let (mut phone, mut laptop, mut other) = (Browser::new(&app), Browser::new(&app), Browser::new(&app));
        phone.send("POST", "/login", "ann").await?;
        laptop.send("POST", "/login", "ann").await?;
        other.send("POST", "/login", "bob").await?;
        assert_eq!(sessions.list("ann").await?.len(), 2);
        let response = phone.send("POST", "/everywhere", "").await?;
        assert_eq!(axum::body::to_bytes(response.into_body(), 100).await?, "2");
        assert_eq!(phone.cookie, None);
        assert_eq!(laptop.me().await?, Value::Null);
        assert_eq!(other.me().await?["user"], "bob");
        Ok(())
    }

}
