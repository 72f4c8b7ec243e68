//! A login service on axum: sessions by cookie, and logout everywhere.
//!
//! The program is its own browser: it logs Ann in on two devices, lists them, logs her out everywhere, and shows
//! that a planted cookie gains nothing.
//!
//! ```text
//! cargo run -p redstart-examples --example login [redis://localhost]
//! ```

use anyhow::{Context as _, Result, ensure};
use axum::{
    Form, Json, Router,
    body::Body,
    http::{Request, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use redstart::sessions::Sessions;
use redstart_tower::{CookieLayer, CookieSession};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// A store that does not answer is no reason to let anybody in.
struct Unavailable(redstart::Error);

impl From<redstart::Error> for Unavailable {
    fn from(error: redstart::Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Unavailable {
    fn into_response(self) -> Response {
        eprintln!("{}", self.0);
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }
}

#[derive(Deserialize)]
struct Credentials {
    user: String,
    password: String,
}

#[derive(Serialize, Deserialize)]
struct Visit {
    device: String,
}

async fn login(
    session: CookieSession,
    headers: axum::http::HeaderMap,
    Form(form): Form<Credentials>,
) -> Result<StatusCode, Unavailable> {
    // Stands for a password check against the database.
    if form.password != "open sesame" {
        return Ok(StatusCode::UNAUTHORIZED);
    }
    let agent = headers
        .get(header::USER_AGENT)
        .and_then(|agent| agent.to_str().ok());
    let device = agent.unwrap_or("unknown").to_owned();
    session.login(&form.user, &Visit { device }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn me(session: CookieSession) -> Result<Json<Value>, Unavailable> {
    Ok(Json(match session.load::<Visit>().await? {
        Some(session) => json!({ "user": session.user, "device": session.data.device }),
        None => Value::Null,
    }))
}

async fn devices(session: CookieSession) -> Result<Json<Vec<Value>>, Unavailable> {
    let sessions = session.everywhere().await?;
    Ok(Json(
        sessions
            .into_iter()
            .map(|session| Value::Object(session.fields))
            .collect(),
    ))
}

async fn logout(session: CookieSession) -> Result<StatusCode, Unavailable> {
    session.logout().await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn logout_everywhere(session: CookieSession) -> Result<String, Unavailable> {
    Ok(session.logout_everywhere().await?.to_string())
}

fn service(sessions: Sessions) -> Router {
    Router::new()
        .route("/login", post(login))
        .route("/me", get(me))
        .route("/devices", get(devices))
        .route("/logout", post(logout))
        .route("/logout-everywhere", post(logout_everywhere))
        .layer(CookieLayer::new(sessions))
}

struct Browser {
    service: Router,
    device: &'static str,
    cookie: Option<String>,
}

impl Browser {
    fn new(service: &Router, device: &'static str) -> Self {
        Self {
            service: service.clone(),
            device,
            cookie: None,
        }
    }

    async fn send(&mut self, method: &str, path: &str, body: &str) -> Result<(StatusCode, String)> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::USER_AGENT, self.device)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(cookie) = &self.cookie {
            request = request.header(header::COOKIE, format!("__Host-session={cookie}"));
        }
        let response = self
            .service
            .clone()
            .oneshot(request.body(Body::from(body.to_owned()))?)
            .await?;
        if let Some(set) = response.headers().get(header::SET_COOKIE) {
            let pair = set.to_str()?.split(';').next().unwrap_or_default();
            let value = pair.split_once('=').context("a cookie")?.1;
            self.cookie = Some(value.to_owned()).filter(|value| !value.is_empty());
        }
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    async fn show(&mut self, method: &str, path: &str, body: &str) -> Result<(StatusCode, String)> {
        let (status, answer) = self.send(method, path, body).await?;
        println!(
            "  {:<7} {method:<4} {path:<18} {} {answer}",
            self.device,
            status.as_u16()
        );
        Ok((status, answer))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = redstart_examples::store().await?;
    let namespace = format!("example-login-{:08x}", rand::random::<u32>());
    let service = service(Sessions::builder(&store, &namespace).build()?);
    let (mut phone, mut laptop) = (
        Browser::new(&service, "phone"),
        Browser::new(&service, "laptop"),
    );
    let ann = "user=ann&password=open+sesame";

    println!("a wrong password, then the right one on two devices");
    let (status, _) = phone
        .show("POST", "/login", "user=ann&password=guess")
        .await?;
    ensure!(status == StatusCode::UNAUTHORIZED);
    phone.show("POST", "/login", ann).await?;
    laptop.show("POST", "/login", ann).await?;
    laptop.show("GET", "/me", "").await?;
    laptop.show("GET", "/devices", "").await?;

    println!("logout everywhere, from the laptop");
    let (_, ended) = laptop.show("POST", "/logout-everywhere", "").await?;
    ensure!(ended == "2", "both devices are logged out");
    let (_, who) = phone.show("GET", "/me", "").await?;
    ensure!(who == "null", "the phone is logged out too");

    println!("a planted cookie: the login gives a new token, and the planted one opens nothing");
    phone.show("POST", "/login", ann).await?;
    let mut victim = Browser::new(&service, "victim");
    victim.cookie = phone.cookie.clone();
    victim
        .show("POST", "/login", "user=bob&password=open+sesame")
        .await?;
    ensure!(
        victim.cookie != phone.cookie,
        "the login kept the planted token"
    );
    let (_, who) = phone.show("GET", "/me", "").await?;
    ensure!(who == "null", "the planted session is over");
    victim.show("POST", "/logout", "").await?;
    Ok(())
}
