//! Circuit breakers: ask before a call, report after it.

use std::time::Duration;

use redstart::resilience::{Admitted, Breaker, CircuitState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    app::App,
    call::{Call, Seconds, lost},
    problem::Problem,
    reply::Reply,
    route::{Route, Routes},
};

const FAMILY: &str = "Breakers";
/// How long a call may take to be reported.
const REPORT_TIME: Duration = Duration::from_secs(300);

#[derive(Serialize, JsonSchema)]
struct AdmittedReply {
    admitted: bool,
    /// To report how the call went. A call that is not reported counts as neither.
    admission: Option<String>,
    /// Whether it is one of the few calls that try whether the service is back.
    probe: bool,
    /// Seconds until it is worth asking again.
    retry_after: Option<Seconds>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Report {
    admission: String,
    /// Whether the call succeeded.
    ok: bool,
}

#[derive(Serialize, JsonSchema)]
struct State {
    /// closed, open or half-open.
    state: &'static str,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ForceOpen {
    /// Seconds.
    r#for: Seconds,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    done: bool,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/breakers/{name}:admit", admit)
            .doc(FAMILY, "Ask whether to call a service")
            .param("name", "payments")
            .reply::<AdmittedReply>(200, "Whether to call it"),
    );
    routes.add(
        Route::post("/v1/breakers/{name}:report", report)
            .doc(FAMILY, "Report how a call went")
            .param("name", "payments")
            .body::<Report>(json!({"admission": "5f2b…", "ok": true}))
            .reply::<Done>(200, "Counted")
            .status(410, "The admission is too old, or another instance gave it"),
    );
    routes.add(
        Route::get("/v1/breakers/{name}", state)
            .doc(FAMILY, "The state of a breaker")
            .param("name", "payments")
            .reply::<State>(200, "The state"),
    );
    routes.add(
        Route::post("/v1/breakers/{name}:force-open", force)
            .by_hand("breaker.force-open")
            .doc(FAMILY, "Refuse all calls for a time")
            .param("name", "payments")
            .body::<ForceOpen>(json!({"for": 60}))
            .reply::<Done>(200, "Open"),
    );
    routes.add(
        Route::post("/v1/breakers/{name}:reset", reset)
            .by_hand("breaker.reset")
            .doc(FAMILY, "Close a breaker and forget what it counted")
            .param("name", "payments")
            .reply::<Done>(200, "Closed"),
    );
}

/// The breaker of this process; it has a subscription, so it is kept.
pub(crate) async fn breaker(app: &App, namespace: &str, name: &str) -> Result<Breaker, Problem> {
    let key = (namespace.to_owned(), name.to_owned());
    let open = Breaker::builder(&app.store, namespace, name).open();
    Ok(app.patterns.breakers.get(key, open).await?)
}

async fn find(call: &Call) -> Result<Breaker, Problem> {
    breaker(&call.app, &call.namespace()?, call.param("name")).await
}

async fn admit(call: Call) -> Result<Reply, Problem> {
    let target = call.target()?;
    let admitted = find(&call).await?.try_admit().await;
    Ok(Reply::ok(&match admitted {
        Admitted::Yes(admission) => AdmittedReply {
            admitted: true,
            probe: admission.is_probe(),
            admission: call
                .app
                .patterns
                .admissions
                .put(&target, admission, REPORT_TIME),
            retry_after: None,
        },
        Admitted::No { retry_after } => AdmittedReply {
            admitted: false,
            probe: false,
            admission: None,
            retry_after: Some(retry_after.into()),
        },
    }))
}

async fn report(call: Call) -> Result<Reply, Problem> {
    let body: Report = call.json()?;
    let admission = call
        .app
        .patterns
        .admissions
        .take(&call.target()?, &body.admission);
    let admission = admission.ok_or_else(|| lost("admission"))?;
    match body.ok {
        true => admission.succeeded().await,
        false => admission.failed().await,
    }
    Ok(Reply::ok(&Done { done: true }))
}

pub(crate) fn state_name(state: CircuitState) -> &'static str {
    match state {
        CircuitState::Closed => "closed",
        CircuitState::Open => "open",
        CircuitState::HalfOpen => "half-open",
    }
}

async fn state(call: Call) -> Result<Reply, Problem> {
    let state = state_name(find(&call).await?.state());
    Ok(Reply::ok(&State { state }))
}

async fn force(call: Call) -> Result<Reply, Problem> {
    let body: ForceOpen = call.json()?;
    find(&call)
        .await?
        .force_open(body.r#for.duration()?)
        .await?;
    changed(&call, "breaker.force-open").await
}

async fn reset(call: Call) -> Result<Reply, Problem> {
    find(&call).await?.reset().await?;
    changed(&call, "breaker.reset").await
}

async fn changed(call: &Call, what: &str) -> Result<Reply, Problem> {
    let on = format!("{} {}", call.namespace()?, call.param("name"));
    call.app.changed(call, what, on, 1, None).await;
    Ok(Reply::ok(&Done { done: true }))
}
