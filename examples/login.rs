//! A login service on axum: sessions by cookie, "remember me", devices, step-up, CSRF tokens, logout everywhere.
//!
//! The program is its own browser. It logs Ann in on two devices, lists them, changes her password after a step-up, logs
//! her out everywhere, and shows that a planted cookie is worth nothing.
//!
//! ```text
//! cargo run -p redstart-examples --example login [redis://localhost]
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use axum::{
    Form, Json, Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode, header},
    routing::{get, post},
};
use redstart::sessions::{Login, Sessions};
use redstart_tower::{CookieLayer, CookieSession, CsrfLayer, LoggedIn, LoginLayer, Problem};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// How long a password entered again is good for.
const STEP_UP: Duration = Duration::from_secs(300);

#[derive(Deserialize)]
struct Credentials {
    user: String,
    password: String,
    #[serde(default)]
    remember: bool,
}

/// What the application keeps in a session.
#[derive(Serialize, Deserialize)]
struct Visit {
    theme: String,
}

/// Stands for a password check against the database.
fn check_password(password: &str) -> Result<(), Problem> {
    match password {
        "open sesame" => Ok(()),
        _ => Err(Problem::new(
            StatusCode::UNAUTHORIZED,
            "urn:example:wrong-password",
            "Wrong user or password",
        )),
    }
}

async fn login(
    session: CookieSession,
    headers: HeaderMap,
    Form(form): Form<Credentials>,
) -> Result<StatusCode, Problem> {
    check_password(&form.password)?;
    let agent = headers
        .get(header::USER_AGENT)
        .and_then(|agent| agent.to_str().ok());
    let mut login = Login::new(form.user).label(agent.unwrap_or("unknown device"));
    if form.remember {
        login = login.remember();
    }
    let theme = "dark".to_owned();
    session.login(login, &Visit { theme }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A store that does not answer is 503: nobody is let in without it.
async fn me(who: Option<LoggedIn<Visit>>) -> Json<Value> {
    Json(match who {
        Some(who) => json!({ "user": who.user, "theme": who.session.data.theme }),
        None => Value::Null,
    })
}

async fn devices(session: CookieSession) -> Result<Json<Vec<Value>>, Problem> {
    let this = session.handle();
    let devices = session.devices().await?;
    let row = |device: redstart::sessions::SessionInfo| {
        json!({
            "device": device.label,
            "idle_seconds": (device.seen.saturating_sub(device.created)).as_secs(),
            "remembered": device.remembered,
            "this": this.as_ref() == Some(&device.handle),
        })
    };
    Ok(Json(devices.into_iter().map(row).collect()))
}

/// What a page puts into its forms, or into a header of its scripts.
async fn csrf(session: CookieSession) -> String {
    session.csrf().unwrap_or_default()
}

/// The user enters the password again before something dangerous.
async fn step_up(session: CookieSession, password: String) -> Result<StatusCode, Problem> {
    check_password(&password)?;
    Ok(match session.elevate(STEP_UP).await? {
        true => StatusCode::NO_CONTENT,
        false => StatusCode::CONFLICT,
    })
}

async fn change_password() -> &'static str {
    "changed"
}

async fn logout(session: CookieSession) -> Result<StatusCode, Problem> {
    session.logout().await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn logout_everywhere(session: CookieSession) -> Result<String, Problem> {
    Ok(session.logout_everywhere().await?.to_string())
}

fn service(sessions: Sessions) -> Router {
    let dangerous = Router::new()
        .route("/password", post(change_password))
        .layer(LoginLayer::builder().elevated().build());
    let account = Router::new()
        .route("/devices", get(devices))
        .route("/csrf", get(csrf))
        .route("/step-up", post(step_up))
        .route("/logout", post(logout))
        .route("/logout-everywhere", post(logout_everywhere))
        .layer(LoginLayer::new());
    // A layer that is added later sees the request earlier: the cookie layer is the last.
    Router::new()
        .merge(dangerous)
        .merge(account)
        .layer(CsrfLayer::new())
        .route("/login", post(login))
        .route("/me", get(me))
        .layer(CookieLayer::new(sessions))
}

struct Browser {
    service: Router,
    device: &'static str,
    cookie: Option<String>,
    csrf: Option<String>,
}

impl Browser {
    fn new(service: &Router, device: &'static str) -> Self {
        Self {
            service: service.clone(),
            device,
            cookie: None,
            csrf: None,
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
        if let Some(csrf) = &self.csrf {
            request = request.header("x-csrf-token", csrf);
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
    let service = service(Sessions::new(&store, &namespace, "web")?);
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
    phone
        .show("POST", "/login", &format!("{ann}&remember=true"))
        .await?;
    laptop.show("POST", "/login", ann).await?;
    laptop.show("GET", "/me", "").await?;
    laptop.show("GET", "/devices", "").await?;

    println!("a change needs the session's CSRF token, and a password that was entered again");
    let (status, _) = laptop.show("POST", "/password", "").await?;
    ensure!(status == StatusCode::FORBIDDEN, "no CSRF token");
    laptop.csrf = Some(laptop.send("GET", "/csrf", "").await?.1);
    let (status, _) = laptop.show("POST", "/password", "").await?;
    ensure!(status == StatusCode::FORBIDDEN, "no step-up");
    laptop.show("POST", "/step-up", "open sesame").await?;
    let (status, _) = laptop.show("POST", "/password", "").await?;
    ensure!(status == StatusCode::OK);

    println!("logout everywhere, from the laptop");
    let (_, ended) = laptop.show("POST", "/logout-everywhere", "").await?;
    ensure!(ended == "2", "both devices are logged out");
    let (_, who) = phone.show("GET", "/me", "").await?;
    ensure!(who == "null", "the phone is logged out too");

    println!("a planted cookie: the login makes a new token, and the planted one opens nothing");
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
    Ok(())
}
