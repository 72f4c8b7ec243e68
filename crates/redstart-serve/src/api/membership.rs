//! Bloom filters.

use redstart::membership::Bloom;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    call::Call,
    problem::Problem,
    reply::Reply,
    route::{Route, Routes},
};

const FAMILY: &str = "Bloom filters";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Create {
    /// How many elements it is made for.
    capacity: u64,
    /// How often it may say yes to an element that it does not have (default 0.01).
    error_rate: Option<f64>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Elements {
    elements: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
struct Answers {
    /// One for each element. Adding: whether it was certainly new. Asking: whether it may be there.
    answers: Vec<bool>,
}

#[derive(Serialize, JsonSchema)]
struct Stats {
    elements: u64,
    bits: u64,
    /// The share of bits that are set.
    fill: f64,
    /// How often it says yes to an element that it does not have.
    estimated_error: f64,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::put("/v1/blooms/{name}", create)
            .doc(FAMILY, "Create a filter, or open it if it exists")
            .param("name", "sent")
            .body::<Create>(json!({"capacity": 10000, "error_rate": 0.01}))
            .reply::<Stats>(200, "The filter"),
    );
    routes.add(
        Route::post("/v1/blooms/{name}:add", add)
            .doc(FAMILY, "Add elements")
            .param("name", "sent")
            .body::<Elements>(json!({"elements": ["ann@example.com", "bob@example.com"]}))
            .reply::<Answers>(200, "Which were certainly new"),
    );
    routes.add(
        Route::post("/v1/blooms/{name}:contains", contains)
            .reads()
            .doc(FAMILY, "Ask for elements")
            .param("name", "sent")
            .body::<Elements>(json!({"elements": ["ann@example.com", "eve@example.com"]}))
            .reply::<Answers>(200, "Which may be there; a no is certain"),
    );
    routes.add(
        Route::get("/v1/blooms/{name}", stats)
            .doc(FAMILY, "How full a filter is")
            .param("name", "sent")
            .reply::<Stats>(200, "The filter"),
    );
}

async fn bloom(call: &Call) -> Result<Bloom, Problem> {
    let key = (call.namespace()?, call.param("name").to_owned());
    let kept = &call.app.patterns.blooms;
    if let Some(known) = kept.get(&key) {
        return Ok(known);
    }
    let bloom = Bloom::builder(&call.app.store, &key.0, &key.1)
        .open()
        .await?;
    kept.put(key, bloom.clone());
    Ok(bloom)
}

async fn describe(bloom: &Bloom) -> Result<Reply, Problem> {
    let stats = bloom.stats().await?;
    Ok(Reply::ok(&Stats {
        elements: stats.elements,
        bits: stats.bits,
        fill: stats.fill,
        estimated_error: stats.estimated_error,
    }))
}

async fn create(call: Call) -> Result<Reply, Problem> {
    let body: Create = call.json()?;
    let key = (call.namespace()?, call.param("name").to_owned());
    // A client must not fill the server with one request.
    if body.capacity > 100_000_000 {
        return Err(Problem::invalid("a capacity must be at most 100000000"));
    }
    let builder = Bloom::builder(&call.app.store, &key.0, &key.1).capacity(body.capacity);
    let builder = match body.error_rate {
        Some(rate) => builder.error_rate(rate),
        None => builder,
    };
    let bloom = builder.create().await?;
    call.app.patterns.blooms.remove(&key);
    describe(&bloom).await
}

fn elements(call: &Call) -> Result<Vec<String>, Problem> {
    let body: Elements = call.json()?;
    if body.elements.len() > 1000 {
        return Err(Problem::invalid("at most 1000 elements in one call"));
    }
    Ok(body.elements)
}

async fn add(call: Call) -> Result<Reply, Problem> {
    let elements = elements(&call)?;
    let answers = bloom(&call).await?.add_many(&elements).await?;
    Ok(Reply::ok(&Answers { answers }))
}

async fn contains(call: Call) -> Result<Reply, Problem> {
    let elements = elements(&call)?;
    let answers = bloom(&call).await?.contains_many(&elements).await?;
    Ok(Reply::ok(&Answers { answers }))
}

async fn stats(call: Call) -> Result<Reply, Problem> {
    describe(&bloom(&call).await?).await
}
