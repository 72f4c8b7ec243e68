//! Semaphores.

use std::{num::NonZeroU32, time::Duration};

use http::StatusCode;
use redstart::locking::Semaphore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{FAMILY, Release, ReleasedReply, Renew, Renewed, TTL, released, renewed, ticket};
use crate::{
    call::{Call, Seconds},
    problem::{Kind, Problem},
    reply::Reply,
    route::{Route, Routes},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AcquirePermit {
    /// How many may hold it at the same time.
    permits: NonZeroU32,
    ttl: Option<Seconds>,
    wait: Option<Seconds>,
}

#[derive(Serialize, JsonSchema)]
struct Permit {
    lease: String,
    ttl: Seconds,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/semaphores/{name}:acquire", permit_acquire)
            .waits()
            .doc(FAMILY, "Take one of several permits")
            .param("name", "reports")
            .body::<AcquirePermit>(json!({"permits": 3, "ttl": 30, "wait": 5}))
            .reply::<Permit>(201, "A permit is held")
            .status(409, "All are held"),
    );
    routes.add(
        Route::post("/v1/semaphores/{name}:renew", permit_renew)
            .doc(FAMILY, "Extend a permit")
            .param("name", "reports")
            .body::<Renew>(json!({"lease": "rs-5f2b…", "ttl": 30}))
            .reply::<Renewed>(200, "The permit runs for at least this long from now")
            .status(410, "The permit was lost"),
    );
    routes.add(
        Route::post("/v1/semaphores/{name}:release", permit_release)
            .doc(FAMILY, "Give a permit back")
            .param("name", "reports")
            .body::<Release>(json!({"lease": "rs-5f2b…"}))
            .reply::<ReleasedReply>(200, "The permit was held until now")
            .status(410, "The permit was lost before"),
    );
}

fn semaphore(call: &Call, permits: NonZeroU32, ttl: Duration) -> Result<Semaphore, Problem> {
    let namespace = call.namespace()?;
    let builder = Semaphore::builder(&call.app.store, &namespace, call.param("name"), permits);
    Ok(builder.ttl(ttl).without_renewal().build()?)
}

async fn permit_acquire(call: Call) -> Result<Reply, Problem> {
    let body: AcquirePermit = call.json()?;
    let (ttl, wait) = (Seconds::or(body.ttl, TTL)?, call.wait(body.wait)?);
    let semaphore = semaphore(&call, body.permits, ttl)?;
    let guard = match wait.is_zero() {
        true => semaphore.try_acquire().await?,
        false => semaphore.acquire(wait).await?,
    };
    let Some(guard) = guard else {
        return Err(Problem::new(Kind::Held));
    };
    let permit = Permit {
        lease: guard.into_ticket()?.expose().to_owned(),
        ttl: ttl.into(),
    };
    Ok(Reply::json(StatusCode::CREATED, &permit))
}

async fn permit_renew(call: Call) -> Result<Reply, Problem> {
    let body: Renew = call.json()?;
    let ttl = Seconds::or(body.ttl, TTL)?;
    // How many permits there are does not matter to anyone who has one.
    let semaphore = semaphore(&call, NonZeroU32::MIN, TTL)?;
    renewed(
        semaphore.extend_held(&ticket(&body.lease)?, ttl).await?,
        ttl,
    )
}

async fn permit_release(call: Call) -> Result<Reply, Problem> {
    let body: Release = call.json()?;
    let semaphore = semaphore(&call, NonZeroU32::MIN, TTL)?;
    released(semaphore.release_held(&ticket(&body.lease)?).await?)
}
