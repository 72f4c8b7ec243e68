//! Idempotency keys for work that a client does elsewhere.

use std::time::Duration;

use http::StatusCode;
use redstart::resilience::{Idempotency, Run, WorkError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};
use tokio::sync::oneshot;

use crate::{
    call::{Call, Seconds, lost},
    problem::{Kind, Problem},
    reply::Reply,
    route::{Route, Routes},
};

const FAMILY: &str = "Idempotency";

/// How a client's work ended.
pub(crate) struct Finished {
    /// The result as JSON; `None` if nothing was done.
    result: Option<String>,
    done: oneshot::Sender<()>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Begin {
    /// What tells one request from another, such as its body.
    fingerprint: String,
    /// Seconds that the work may take (default 30). After that its outcome counts as unknown.
    lease: Option<Seconds>,
}

#[derive(Serialize, JsonSchema)]
struct Begun {
    /// Do the work, and finish with this.
    claim: String,
    lease: Seconds,
}

#[derive(Serialize, JsonSchema)]
struct Replayed {
    #[schemars(with = "serde_json::Value")]
    result: Box<RawValue>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Finish {
    claim: String,
    /// Any JSON: what every repeat gets.
    #[schemars(with = "serde_json::Value")]
    result: Box<RawValue>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Abandon {
    claim: String,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    done: bool,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/idempotency/{name}/{key}:begin", begin)
            .grants()
            .doc(
                FAMILY,
                "Claim a key, or get the result of the run that completed it",
            )
            .param("name", "payments")
            .param("key", "7c1d")
            .body::<Begin>(json!({"fingerprint": "pay 500 to ann", "lease": 30}))
            .reply::<Begun>(201, "The work is this client's to do")
            .reply::<Replayed>(200, "It was done: its result")
            .status(409, "It is being done, or its outcome is unknown")
            .status(422, "The key belongs to another request"),
    );
    routes.add(
        Route::post("/v1/idempotency/{name}/{key}:finish", finish)
            .doc(FAMILY, "Record the result")
            .param("name", "payments")
            .param("key", "7c1d")
            .body::<Finish>(json!({"claim": "5f2b…", "result": {"receipt": 17}}))
            .reply::<Done>(200, "Repeats get this result")
            .status(410, "The claim ended, or another instance gave it"),
    );
    routes.add(
        Route::post("/v1/idempotency/{name}/{key}:abandon", abandon)
            .doc(FAMILY, "Say that nothing was done: the key is free")
            .param("name", "payments")
            .param("key", "8d2e")
            .body::<Abandon>(json!({"claim": "5f2b…"}))
            .reply::<Done>(200, "The key is free")
            .status(410, "The claim ended, or another instance gave it"),
    );
    routes.add(
        Route::delete("/v1/idempotency/{name}/{key}", forget)
            .by_hand("idempotency.forget")
            .doc(FAMILY, "Forget a key whose outcome was unknown")
            .param("name", "payments")
            .param("key", "7c1d")
            .reply::<Done>(
                200,
                "Forgotten, or `done` is false: a run has the key and its lease goes on",
            ),
    );
}

fn keys(call: &Call, lease: Duration) -> Result<Idempotency, Problem> {
    let builder = Idempotency::builder(&call.app.store, &call.namespace()?, call.param("name"));
    Ok(builder.lease(lease).build()?)
}

async fn begin(call: Call) -> Result<Reply, Problem> {
    let body: Begin = call.json()?;
    let lease = Seconds::or(body.lease, Duration::from_secs(30))?;
    if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&lease) {
        return Err(Problem::invalid("a lease must be from 1 to 3600 s"));
    }
    let (keys, app) = (keys(&call, lease)?, call.app.clone());
    let (key, target) = (call.param("key").to_owned(), call.target()?);
    let (claimed, claim) = oneshot::channel();
    let mut run = tokio::spawn(async move {
        let (told, result) = oneshot::channel::<oneshot::Sender<()>>();
        let work = async move {
            let (finish, finished) = oneshot::channel::<Finished>();
            let id = app.patterns.claims.put(&target, finish, lease);
            if id.is_none_or(|id| claimed.send(id).is_err()) {
                // The client has gone before it could begin.
                return Err(WorkError::NotDone("nobody does the work"));
            }
            // Nobody can finish it once the service has stopped.
            let finished = app.stop.run_until_cancelled(finished);
            match tokio::time::timeout(lease, finished).await {
                Ok(Some(Ok(finished))) => {
                    let _ = told.send(finished.done);
                    finished
                        .result
                        .ok_or(WorkError::NotDone("nothing was done"))
                }
                _ => Err(WorkError::Unknown("the work did not finish in time")),
            }
        };
        let run = keys
            .run::<String, _, _>(&key, body.fingerprint.as_bytes(), work)
            .await;
        // The result is recorded now.
        if let Ok(done) = result.await {
            let _ = done.send(());
        }
        run
    });
    tokio::select! {
        biased;
        Ok(id) = claim => {
            let begun = Begun { claim: id, lease: lease.into() };
            Ok(Reply::json(StatusCode::CREATED, &begun))
        }
        ended = &mut run => match ended {
            Ok(Ok(Run::Replayed(result) | Run::Done(result))) => {
                Ok(Reply::ok(&Replayed { result: super::queue::raw(result.into_bytes()) }))
            }
            Ok(Ok(Run::Busy { retry_after })) => {
                Err(Problem::new(Kind::Repeating).retry_after(retry_after))
            }
            Ok(Ok(Run::Mismatch)) => Err(Problem::new(Kind::KeyReused)),
            Ok(Ok(Run::Unknown(_))) => Err(Problem::new(Kind::Unknown)),
            Ok(Ok(Run::NotDone(_))) => Err(Problem::new(Kind::TooManyWaiting)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Problem::new(Kind::Failed)),
        },
    }
}

async fn end(call: &Call, claim: &str, result: Option<String>) -> Result<Reply, Problem> {
    let claim = call.app.patterns.claims.take(&call.target()?, claim);
    let claim = claim.ok_or_else(|| lost("claim"))?;
    let (done, recorded) = oneshot::channel();
    if claim.send(Finished { result, done }).is_err() || recorded.await.is_err() {
        return Err(lost("claim"));
    }
    Ok(Reply::ok(&Done { done: true }))
}

async fn finish(call: Call) -> Result<Reply, Problem> {
    let body: Finish = call.json()?;
    end(&call, &body.claim, Some(body.result.get().to_owned())).await
}

async fn abandon(call: Call) -> Result<Reply, Problem> {
    let body: Abandon = call.json()?;
    end(&call, &body.claim, None).await
}

async fn forget(call: Call) -> Result<Reply, Problem> {
    let done = keys(&call, Duration::from_secs(30))?
        .forget(call.param("key"))
        .await?;
    if !done {
        return Ok(Reply::ok(&Done { done }));
    }
    let on = format!(
        "{} {} {}",
        call.namespace()?,
        call.param("name"),
        call.param("key")
    );
    call.app
        .changed(&call, "idempotency.forget", on, 1, None)
        .await;
    Ok(Reply::ok(&Done { done }))
}
