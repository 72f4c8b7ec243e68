//! Health, metrics, the document, and the audit log.

use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::{
    audit::Change,
    auth::Role,
    call::Call,
    metric, openapi,
    problem::{Kind, Problem},
    reply::Reply,
    route::{Route, Routes},
};

#[derive(Serialize, JsonSchema)]
struct Entries {
    changes: Vec<Entry>,
}

#[derive(Serialize, JsonSchema)]
struct Entry {
    id: String,
    #[serde(flatten)]
    change: Change,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(Route::get("/healthz", healthz));
    routes.add(Route::get("/readyz", readyz));
    routes.add(Route::get("/metrics", metrics));
    routes.add(Route::get("/v1/openapi.json", document));
    routes.add(
        Route::get("/v1/audit", audit)
            .role(Role::Admin)
            .doc("Operations", "The newest changes that were made by hand")
            .reply::<Entries>(200, "Up to 200, newest first"),
    );
}

async fn healthz(_: Call) -> Result<Reply, Problem> {
    Ok(Reply::ok(&json!({"alive": true})))
}

async fn readyz(call: Call) -> Result<Reply, Problem> {
    if call.app.stop.is_cancelled() {
        return Err(Problem::new(Kind::Stopping));
    }
    let health = call.app.store.health().await?;
    let (major, minor, patch) = health.version;
    Ok(Reply::ok(&json!({
        "ready": true,
        "server": format!("{:?}", health.server).to_lowercase(),
        "version": format!("{major}.{minor}.{patch}"),
        "round_trip": health.round_trip.as_secs_f64(),
    })))
}

async fn metrics(call: Call) -> Result<Reply, Problem> {
    if !call.identity.namespaces().is_empty() {
        return Err(Problem::new(Kind::Forbidden).detail("metrics are of all namespaces"));
    }
    ::metrics::gauge!("redstart_http_streams").set(call.app.open_streams() as f64);
    ::metrics::gauge!("redstart_http_waiting").set(call.app.waiting() as f64);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(Reply::whole(StatusCode::OK, kind, metric::render()))
}

async fn document(call: Call) -> Result<Reply, Problem> {
    Ok(Reply::ok(&openapi::document(
        &call.app.routes,
        &call.config,
    )))
}

async fn audit(call: Call) -> Result<Reply, Problem> {
    let changes = call.app.changes(&call.identity).await?;
    let changes = changes.into_iter().map(|(id, change)| Entry { id, change });
    Ok(Reply::ok(&Entries {
        changes: changes.collect(),
    }))
}
