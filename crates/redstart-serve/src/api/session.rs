//! Sessions. Tokens are in bodies, never in a URL: URLs end up in logs.

use redstart::sessions::{Login, Patched, Rotated, Session, Sessions, Token};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use http::StatusCode;

use crate::{
    call::{Call, Seconds},
    problem::{Kind, Problem},
    reply::Reply,
    route::{Route, Routes},
};

const FAMILY: &str = "Sessions";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Create {
    user: String,
    /// What the user sees in the list of devices.
    label: Option<String>,
    #[serde(default)]
    remember: bool,
    #[serde(default)]
    data: Map<String, Value>,
}

#[derive(Serialize, JsonSchema)]
struct Created {
    /// A secret for the user's cookie.
    token: String,
    /// A name for it that is no secret.
    handle: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ByToken {
    token: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Patch {
    token: String,
    /// Fields to set; null removes one.
    data: Map<String, Value>,
}

#[derive(Serialize, JsonSchema)]
struct Loaded {
    user: Option<String>,
    data: Map<String, Value>,
    remembered: bool,
    /// Seconds until it ends without a request.
    left: Seconds,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    done: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ByUser {
    user: String,
}

#[derive(Serialize, JsonSchema)]
struct Count {
    count: u64,
}

#[derive(Serialize, JsonSchema)]
struct Devices {
    sessions: Vec<Device>,
}

#[derive(Serialize, JsonSchema)]
struct Device {
    handle: String,
    label: Option<String>,
    remembered: bool,
    /// In seconds since 1970.
    created: f64,
    seen: f64,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/sessions/{name}", create)
            .doc(FAMILY, "Log a user in")
            .param("name", "web")
            .body::<Create>(
                json!({"user": "ann", "label": "Firefox on Linux", "data": {"cart": 3}}),
            )
            .reply::<Created>(201, "The session's token"),
    );
    routes.add(
        Route::post("/v1/sessions/{name}:load", load)
            .doc(FAMILY, "Load a session; it counts as used")
            .param("name", "web")
            .body::<ByToken>(json!({"token": "…"}))
            .reply::<Loaded>(200, "The session")
            .status(404, "It has ended, or never was"),
    );
    routes.add(
        Route::post("/v1/sessions/{name}:patch", patch)
            .doc(FAMILY, "Change fields of a session")
            .param("name", "web")
            .body::<Patch>(json!({"token": "…", "data": {"cart": 4}}))
            .reply::<Done>(200, "Changed")
            .status(404, "It has ended, or never was"),
    );
    routes.add(
        Route::get("/v1/sessions/{name}/users/{user}", devices)
            .doc(FAMILY, "The sessions of a user")
            .param("name", "web")
            .param("user", "ann")
            .reply::<Devices>(200, "Without their tokens"),
    );
    routes.add(
        Route::post("/v1/sessions/{name}:rotate", rotate)
            .doc(FAMILY, "Replace the token of a session")
            .param("name", "web")
            .body::<ByToken>(json!({"token": "…"}))
            .reply::<Created>(200, "The new token")
            .status(404, "It has ended, or never was"),
    );
    routes.add(
        Route::post("/v1/sessions/{name}:revoke", revoke)
            .doc(FAMILY, "End a session")
            .param("name", "web")
            .body::<ByToken>(json!({"token": "…"}))
            .reply::<Count>(200, "How many ended"),
    );
    routes.add(
        Route::post("/v1/sessions/{name}:revoke-all", revoke_all)
            .doc(FAMILY, "End all sessions of a user")
            .param("name", "web")
            .body::<ByUser>(json!({"user": "ann"}))
            .reply::<Count>(200, "How many ended"),
    );
}

fn sessions(call: &Call) -> Result<Sessions, Problem> {
    Ok(Sessions::new(
        &call.app.store,
        &call.namespace()?,
        call.param("name"),
    )?)
}

/// A text that is no token belongs to no session.
fn token(text: &str) -> Result<Token, Problem> {
    text.parse().map_err(|_| Problem::not_found("session"))
}

fn created(token: &Token) -> Created {
    Created {
        token: token.expose(),
        handle: token.handle(),
    }
}

async fn create(call: Call) -> Result<Reply, Problem> {
    let body: Create = call.json()?;
    let mut login = Login::new(body.user);
    if let Some(label) = &body.label {
        login = login.label(label);
    }
    if body.remember {
        login = login.remember();
    }
    let token = sessions(&call)?.login(login, &body.data).await?;
    Ok(Reply::json(StatusCode::CREATED, &created(&token)))
}

async fn load(call: Call) -> Result<Reply, Problem> {
    let body: ByToken = call.json()?;
    let loaded = sessions(&call)?.load(&token(&body.token)?).await?;
    let session: Session<Map<String, Value>> =
        loaded.ok_or_else(|| Problem::not_found("session"))?;
    Ok(Reply::ok(&Loaded {
        user: session.user,
        data: session.data,
        remembered: session.remembered,
        left: session.left.into(),
    }))
}

async fn patch(call: Call) -> Result<Reply, Problem> {
    let body: Patch = call.json()?;
    match sessions(&call)?
        .patch(&token(&body.token)?, &body.data)
        .await?
    {
        Patched::Done => Ok(Reply::ok(&Done { done: true })),
        Patched::Gone => Err(Problem::not_found("session")),
        Patched::Full => Err(Problem::new(Kind::Conflict).detail("the session is full")),
    }
}

async fn devices(call: Call) -> Result<Reply, Problem> {
    let list = sessions(&call)?.list(call.param("user")).await?;
    let sessions = list.into_iter().map(|info| Device {
        handle: info.handle,
        label: info.label,
        remembered: info.remembered,
        created: info.created.as_secs_f64(),
        seen: info.seen.as_secs_f64(),
    });
    Ok(Reply::ok(&Devices {
        sessions: sessions.collect(),
    }))
}

async fn rotate(call: Call) -> Result<Reply, Problem> {
    let body: ByToken = call.json()?;
    match sessions(&call)?.rotate(&token(&body.token)?).await? {
        Rotated::To(token) => Ok(Reply::ok(&created(&token))),
        Rotated::Already => {
            Err(Problem::new(Kind::Conflict).detail("another request has replaced this token"))
        }
        Rotated::Gone => Err(Problem::not_found("session")),
    }
}

async fn revoke(call: Call) -> Result<Reply, Problem> {
    let body: ByToken = call.json()?;
    let ended = sessions(&call)?.revoke(&token(&body.token)?).await?;
    Ok(Reply::ok(&Count {
        count: u64::from(ended),
    }))
}

async fn revoke_all(call: Call) -> Result<Reply, Problem> {
    let body: ByUser = call.json()?;
    let count = sessions(&call)?.revoke_all(&body.user).await?;
    Ok(Reply::ok(&Count { count }))
}
