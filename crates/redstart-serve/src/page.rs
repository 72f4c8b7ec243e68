//! The dashboard: server-rendered pages that read without JavaScript. Every change is asked for on a page of its own,
//! which says what will happen, and is made by a form.

mod action;
mod api;
mod bulk;
mod command;
mod data;
mod foreign;
mod home;
mod layout;
mod limiter;
mod lock;
mod queue;

use http::{HeaderName, HeaderValue, StatusCode, header};
use maud::html;

use crate::{
    auth,
    call::Call,
    config::Config,
    problem::{Kind, Problem},
    reply::{Event, Reply},
    route::{Route, Routes},
};
use layout::Shell;
pub(crate) use layout::encode as encoded;

pub(crate) fn add_routes(routes: &mut Routes) {
    let mut page = |route: Route| {
        // Forms are not repeated by programs, and their bodies are not JSON.
        routes.add(Route {
            repeatable: false,
            ..route
        });
    };
    page(Route::get("/", home::page));
    page(Route::get("/queues", queue::list));
    page(Route::get("/queues/{name}", queue::page));
    page(Route::get("/queues/{name}/dead", queue::dead));
    page(Route::get("/queues/{name}/search", queue::search));
    page(Route::get("/queues/{name}/search/rows", queue::search_rows));
    page(Route::get("/queues/{name}/bulk", bulk::form).role(auth::Role::Admin));
    page(Route::post("/queues/{name}/bulk", bulk::begin).by_hand("queue.bulk"));
    page(Route::get("/queues/{name}/bulk/{id}", bulk::page).role(auth::Role::Admin));
    page(Route::post("/queues/{name}/bulk/{id}/confirm", bulk::confirm).by_hand("queue.bulk"));
    page(Route::post("/queues/{name}/bulk/{id}/stop", bulk::stop).by_hand("queue.bulk"));
    page(Route::get("/queues/{name}/jobs/{id}", queue::job));
    page(Route::get("/foreign", foreign::page));
    page(Route::get("/findings", home::findings));
    page(Route::get("/locks", lock::page));
    page(Route::get("/limiters", limiter::page));
    page(Route::get("/caches", data::caches));
    page(Route::get("/breakers", data::breakers));
    page(Route::get("/stock", data::stock));
    page(Route::get("/boards", data::boards));
    page(Route::get("/sessions", data::sessions));
    page(Route::get("/streams", data::streams));
    page(Route::get("/counting", data::counting));
    page(Route::get("/filters", data::filters));
    page(Route::get("/places", data::places));
    page(Route::get("/audit", home::audit).role(auth::Role::Admin));
    page(Route::get("/api", api::page));
    page(Route::get("/act/{action}", action::ask).role(auth::Role::Admin));
    page(Route::post("/act/{action}", action::act).role(auth::Role::Admin));
    page(Route::get("/live", live));
    page(Route::get("/login", login));
    page(Route::post("/login", log_in).role(auth::Role::Read));
    page(Route::get("/assets/{file}", asset));
}

/// A tick every two seconds: pages fetch their live part again.
async fn live(call: Call) -> Result<Reply, Problem> {
    let ticks = futures_util::stream::unfold(0_u64, |n| async move {
        if n > 0 {
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        }
        Some((Event::new("tick", n.to_string()), n + 1))
    });
    call.app.stream(ticks)
}

async fn asset(call: Call) -> Result<Reply, Problem> {
    let (kind, text) = match call.param("file") {
        "style.css" => (
            "text/css; charset=utf-8",
            include_str!("../asset/style.css"),
        ),
        "app.js" => (
            "text/javascript; charset=utf-8",
            include_str!("../asset/app.js"),
        ),
        "htmx.js" => (
            "text/javascript; charset=utf-8",
            include_str!("../asset/htmx.min.js"),
        ),
        "icon.svg" => return Ok(Reply::whole(StatusCode::OK, "image/svg+xml", icon())),
        _ => return Err(Problem::not_found("asset")),
    };
    let kept = HeaderValue::from_static("public, max-age=3600");
    Ok(Reply::whole(StatusCode::OK, kind, text).with(header::CACHE_CONTROL, kept))
}

fn icon() -> String {
    let logo = crate::chart::logo().into_string();
    logo.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1)
}

async fn login(call: Call) -> Result<Reply, Problem> {
    Ok(login_page(&call.config, None))
}

fn login_page(config: &Config, error: Option<&str>) -> Reply {
    let base = &config.base_path.0;
    let body = html! {
        section.card {
            h2 { "Log in" }
            @if let Some(error) = error { p.note.bad { (error) } }
            form.row method="post" action=(format!("{base}/login")) {
                label { "Token" input type="password" name="token" autocomplete="current-password" required autofocus; }
                button.primary type="submit" { "Log in" }
            }
            p.muted { "A token of the service's configuration. It is kept in a cookie until the browser closes." }
        }
    };
    Reply::html(layout::plain(config, "Log in", body))
}

async fn log_in(call: Call) -> Result<Reply, Problem> {
    let token = call.form().get("token").unwrap_or_default().to_owned();
    let mut headers = http::HeaderMap::new();
    if let Ok(value) = HeaderValue::try_from(format!("Bearer {token}")) {
        headers.insert(header::AUTHORIZATION, value);
    }
    let plain = token
        .chars()
        .all(|c| c.is_ascii_graphic() && c != ';' && c != ',' && c != '"');
    if !plain || auth::identify(&call.config, &headers, None).is_err() {
        return Ok(login_page(&call.config, Some("This token is not known.")));
    }
    let base = &call.config.base_path.0;
    let secure = if call.config.has_tls() {
        "; Secure"
    } else {
        ""
    };
    let cookie = format!(
        "{}={token}; Path={base}/; HttpOnly; SameSite=Strict{secure}",
        auth::COOKIE
    );
    let mut reply = Reply::see_other(&format!("{base}/"));
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        reply.set(header::SET_COOKIE, cookie);
    }
    Ok(reply)
}

/// A refusal as a page.
pub(crate) fn refusal(config: &Config, problem: Problem, _path: &str) -> Reply {
    if problem.kind == Kind::Unauthorized {
        let mut reply = login_page(config, None);
        reply.status = StatusCode::UNAUTHORIZED;
        return reply;
    }
    let status = problem.status;
    let body = html! {
        section.card {
            p.note.bad { (problem.text()) }
            p { a href=(format!("{}/", config.base_path.0)) { "Back to the overview" } }
        }
    };
    let mut reply = Reply::html(layout::plain(config, problem.kind.title(), body));
    reply.status = status;
    reply.set(
        HeaderName::from_static("x-problem"),
        HeaderValue::from_static(problem.kind.name()),
    );
    reply
}
