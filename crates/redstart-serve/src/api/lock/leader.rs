//! Elections.

use std::time::Duration;

use http::StatusCode;
use redstart::locking::Leader;
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
struct Campaign {
    /// The candidate's name, which others see.
    id: String,
    ttl: Option<Seconds>,
    wait: Option<Seconds>,
}

#[derive(Serialize, JsonSchema)]
struct Elected {
    lease: String,
    /// Rises from leader to leader: the fence of what the leader writes.
    term: u64,
    ttl: Seconds,
}

#[derive(Serialize, JsonSchema)]
struct Office {
    leader: Option<String>,
    term: Option<u64>,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/leaders/{name}:campaign", campaign)
            .waits()
            .doc(FAMILY, "Become the leader")
            .param("name", "scheduler")
            .body::<Campaign>(json!({"id": "node-1", "ttl": 30, "wait": 5}))
            .reply::<Elected>(201, "Elected")
            .status(409, "Another candidate leads: `leader` and `term`"),
    );
    routes.add(
        Route::get("/v1/leaders/{name}", office)
            .doc(FAMILY, "Who leads")
            .param("name", "scheduler")
            .reply::<Office>(200, "The leader and its term"),
    );
    routes.add(
        Route::post("/v1/leaders/{name}:renew", office_renew)
            .doc(FAMILY, "Stay the leader")
            .param("name", "scheduler")
            .body::<Renew>(json!({"lease": "rs-5f2b…", "ttl": 30}))
            .reply::<Renewed>(200, "The term runs for at least this long from now")
            .status(410, "The office was lost"),
    );
    routes.add(
        Route::post("/v1/leaders/{name}:resign", resign)
            .doc(FAMILY, "Stop leading")
            .param("name", "scheduler")
            .body::<Release>(json!({"lease": "rs-5f2b…"}))
            .reply::<ReleasedReply>(200, "Led until now")
            .status(410, "The office was lost before"),
    );
}

fn leader(call: &Call, id: &str, ttl: Duration) -> Result<Leader, Problem> {
    let builder = Leader::builder(&call.app.store, &call.namespace()?, call.param("name"));
    Ok(builder.id(id).ttl(ttl).without_renewal().build()?)
}

async fn campaign(call: Call) -> Result<Reply, Problem> {
    let body: Campaign = call.json()?;
    let (ttl, wait) = (Seconds::or(body.ttl, TTL)?, call.wait(body.wait)?);
    let office = leader(&call, &body.id, ttl)?;
    let elected = match wait.is_zero() {
        true => office.try_campaign().await?,
        false => office.campaign(wait).await?,
    };
    let Some(leadership) = elected else {
        let mut problem = Problem::new(Kind::Held);
        if let Some(other) = office.leader().await? {
            problem = problem
                .with("leader", other.id)
                .with("term", other.term.get());
        }
        return Err(problem);
    };
    let (ticket, term) = leadership.into_ticket()?;
    let elected = Elected {
        lease: ticket.expose().to_owned(),
        term: term.get(),
        ttl: ttl.into(),
    };
    Ok(Reply::json(StatusCode::CREATED, &elected))
}

async fn office(call: Call) -> Result<Reply, Problem> {
    let leader = leader(&call, "reader", TTL)?.leader().await?;
    let (leader, term) = match leader {
        Some(elected) => (Some(elected.id), Some(elected.term.get())),
        None => (None, None),
    };
    Ok(Reply::ok(&Office { leader, term }))
}

async fn office_renew(call: Call) -> Result<Reply, Problem> {
    let body: Renew = call.json()?;
    let ttl = Seconds::or(body.ttl, TTL)?;
    let office = leader(&call, "holder", TTL)?;
    renewed(office.extend_held(&ticket(&body.lease)?, ttl).await?, ttl)
}

async fn resign(call: Call) -> Result<Reply, Problem> {
    let body: Release = call.json()?;
    let office = leader(&call, "holder", TTL)?;
    released(office.release_held(&ticket(&body.lease)?).await?)
}
