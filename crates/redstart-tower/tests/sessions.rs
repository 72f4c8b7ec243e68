//! Sessions by cookie, and the store for tower-sessions.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::{
    Json, Router,
    body::Body,
    http::{Request, Response, StatusCode, header},
    routing::{get, post},
};
use redstart::{Store, sessions::Sessions};
use redstart_testkit::{Backend, matrix};
use redstart_tower::{CookieLayer, CookieSession, StoredSessions};
use serde_json::{Value, json};
use tower::ServiceExt as _;
use tower_sessions_core::{Session, SessionStore, session::Id};

const COOKIE: &str = "__Host-session";

async fn app(backend: &Backend) -> Result<(Router, Sessions)> {
    let store = Store::connect(backend.url()).await?;
    let sessions = Sessions::builder(&store, backend.namespace()).build()?;
    let failed = |error: redstart::Error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string());
    let router = Router::new()
        .route("/plain", get(|| async { "no session asked for" }))
        .route(
            "/me",
            get(move |session: CookieSession| async move {
                let loaded = session.load::<Value>().await.map_err(failed)?;
                Ok::<_, (StatusCode, String)>(match loaded {
                    Some(session) => Json(json!({ "user": session.user, "data": session.data })),
                    None => Json(json!(null)),
                })
            }),
        )
        .route(
            "/cart",
            post(move |session: CookieSession| async move {
                session.patch(&json!({ "cart": [7] })).await.map_err(failed)
            }),
        )
        .route(
            "/login",
            post(move |session: CookieSession, user: String| async move {
                session.login(&user, &json!({})).await.map_err(failed)
            }),
        )
        .route(
            "/sudo",
            post(move |session: CookieSession| async move {
                session
                    .rotate()
                    .await
                    .map(|r| r.to_string())
                    .map_err(failed)
            }),
        )
        .route(
            "/logout",
            post(
                move |session: CookieSession| async move { session.logout().await.map_err(failed) },
            ),
        )
        .route(
            "/everywhere",
            post(move |session: CookieSession| async move {
                session
                    .logout_everywhere()
                    .await
                    .map(|n| n.to_string())
                    .map_err(failed)
            }),
        )
        .layer(CookieLayer::new(sessions.clone()));
    Ok((router, sessions))
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
        let response = self.send("GET", "/me", "").await?;
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await?;
        Ok(serde_json::from_slice(&bytes)?)
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

        // One that the store never knew is not taken over either.
        let mut victim = Browser { app: app.clone(), cookie: Some("A".repeat(64)) };
        victim.send("POST", "/cart", "").await?;
        assert_ne!(victim.cookie, Some("A".repeat(64)));

        // A change of privileges rotates too.
        victim.send("POST", "/login", "bob").await?;
        let before = victim.cookie.clone();
        victim.send("POST", "/sudo", "").await?;
        assert_ne!(victim.cookie, before);
        assert_eq!(victim.me().await?["user"], "bob");
        let mut old = Browser { app: app.clone(), cookie: before };
        assert_eq!(old.me().await?, Value::Null);
        Ok(())
    }

    async fn tampered_and_truncated_cookies_are_removed(backend: &Backend) -> Result<()> {
        let (app, _) = app(backend).await?;
        let mut browser = Browser::new(&app);
        browser.send("POST", "/login", "ann").await?;
        let good = browser.cookie.clone().context("a cookie")?;
        let mut flipped = good.clone().into_bytes();
        flipped[40] = if flipped[40] == b'A' { b'B' } else { b'A' };
        for bad in ["", "%00", &good[..40], &format!("{good}{good}"), &String::from_utf8(flipped)?] {
            let mut browser = Browser { app: app.clone(), cookie: Some(bad.to_owned()) };
            let response = browser.send("GET", "/me", "").await?;
            assert_eq!(response.status(), StatusCode::OK);
            assert!(set_cookie(&response).is_some_and(|set| set.contains("Max-Age=0")), "{bad:?}");
        }
        assert_eq!(browser.me().await?["user"], "ann");
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

    async fn a_tower_session_is_saved_loaded_cycled_and_never_revived(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let sessions = Arc::new(StoredSessions::new(&store, backend.namespace())?);
        let session = Session::new(None, sessions.clone(), None);
        session.insert("n", 1).await?;
        session.save().await?;
        let id = session.id().context("an id")?;
        let again = Session::new(Some(id), sessions.clone(), None);
        assert_eq!(again.get::<u32>("n").await?, Some(1));
        again.insert("n", 2).await?;
        again.save().await?;

        // The key has a TTL, and nothing in the store tells the id.
        let keys = store.scan(&format!("{}:*", backend.namespace())).await?;
        assert_eq!(keys.len(), 1);
        let ttl: i64 = store.query(redstart::redis::cmd("PTTL").arg(&keys[0])).await?;
        assert!(ttl > 0);
        let value: String = store.query(redstart::redis::cmd("GET").arg(&keys[0])).await?;
        for secret in [id.to_string(), id.0.to_string()] {
            assert!(!keys[0].contains(&secret) && !value.contains(&secret));
        }

        // A login cycles the id.
        again.cycle_id().await?;
        again.save().await?;
        let new = again.id().context("an id")?;
        assert_ne!(new, id);
        assert!(sessions.load(&id).await?.is_none());
        let mut record = sessions.load(&new).await?.context("the session")?;
        assert_eq!(record.data["n"], 2);

        // A request that was under way when the session ended saves nothing.
        sessions.delete(&new).await?;
        record.data.insert("late".into(), json!(true));
        sessions.save(&record).await?;
        assert!(sessions.load(&new).await?.is_none());
        assert!(sessions.load(&Id(0)).await?.is_none());

        // An id that is taken is not overwritten.
        let mut first = record.clone();
        sessions.create(&mut first).await?;
        let mut second = record.clone();
        sessions.create(&mut second).await?;
        assert_ne!(first.id, second.id);
        assert!(StoredSessions::new(&store, "a b").is_err());
        Ok(())
    }
}
