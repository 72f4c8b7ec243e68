//! Caches: a miss gives one caller the lease to load; the others wait for its value.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use parking_lot::Mutex;
use redstart::{
    caching::{Cache, Hit, HitSource, Loaded},
    codec::Json,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    app::App,
    call::{Call, Seconds, lost},
    problem::{Kind, Problem},
    reply::Reply,
    route::{Route, Routes},
};

const FAMILY: &str = "Caches";
const TTL: Duration = Duration::from_secs(3600);
/// The longest time that a client may take to load a value.
const LONGEST_LOAD: Duration = Duration::from_secs(60);

/// A cache of JSON values.
pub(crate) type JsonCache = Cache<str, Box<RawValue>, Json>;

/// A value that a client loaded, and who wants to know that it was stored.
pub(crate) struct Filled {
    value: Option<Box<RawValue>>,
    tags: Vec<String>,
    ttl: Option<Duration>,
    done: oneshot::Sender<bool>,
}

#[derive(Serialize, JsonSchema)]
struct Found {
    #[schemars(with = "serde_json::Value")]
    value: Option<Box<RawValue>>,
    /// Seconds since it was loaded.
    age: Option<Seconds>,
    /// Whether it should be loaded again.
    stale: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LeaseRequest {
    /// Seconds that this client may take to load the value (default 10).
    lease: Option<Seconds>,
}

#[derive(Serialize, JsonSchema)]
struct LeaseReply {
    /// Load the value, and put it under this lease.
    lease: String,
    ttl: Seconds,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Put {
    lease: String,
    /// Any JSON; null if the source has no such value.
    #[schemars(with = "serde_json::Value")]
    value: Box<RawValue>,
    #[serde(default)]
    tags: Vec<String>,
    /// Seconds until it must be loaded again (default 3600).
    ttl: Option<Seconds>,
}

#[derive(Serialize, JsonSchema)]
struct PutReply {
    /// The value was handed to the cache. If the key was invalidated after the lease, it is not kept.
    accepted: bool,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    done: bool,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/caches/{name}/{key}:lease", lease)
            .waits()
            .doc(FAMILY, "Get a value, or the lease to load it")
            .param("name", "product")
            .param("key", "42")
            .body::<LeaseRequest>(json!({"lease": 10}))
            .reply::<LeaseReply>(201, "A miss: load the value and put it")
            .reply::<Found>(200, "A hit"),
    );
    routes.add(
        Route::put("/v1/caches/{name}/{key}", put)
            .doc(FAMILY, "Put a value under its lease")
            .param("name", "product")
            .param("key", "42")
            .body::<Put>(
                json!({"lease": "5f2b…", "value": {"name": "Lamp"}, "tags": ["lamps"], "ttl": 600}),
            )
            .reply::<PutReply>(200, "Accepted")
            .status(410, "The lease ended, or another instance gave it"),
    );
    routes.add(
        Route::get("/v1/caches/{name}/{key}", get)
            .doc(FAMILY, "Get a value")
            .param("name", "product")
            .param("key", "42")
            .reply::<Found>(200, "A hit")
            .status(404, "A miss"),
    );
    routes.add(
        Route::post("/v1/caches/{name}/{key}:invalidate", invalidate)
            .doc(FAMILY, "Invalidate a key")
            .param("name", "product")
            .param("key", "42")
            .reply::<Done>(200, "Invalidated"),
    );
    routes.add(
        Route::post("/v1/caches/{name}/tags/{tag}:invalidate", invalidate_tag)
            .doc(FAMILY, "Invalidate all keys with a tag")
            .param("name", "product")
            .param("tag", "lamps")
            .reply::<Done>(200, "Invalidated"),
    );
    routes.add(
        Route::post("/v1/caches/{name}:clear", clear)
            .doc(FAMILY, "Invalidate everything")
            .param("name", "product")
            .reply::<Done>(200, "Cleared"),
    );
}

fn cache(call: &Call) -> Result<JsonCache, Problem> {
    json_cache(&call.app, &call.namespace()?, call.param("name"))
}

/// The cache of this process; it has counts, so it is kept.
pub(crate) fn json_cache(app: &App, namespace: &str, name: &str) -> Result<JsonCache, Problem> {
    let key = (namespace.to_owned(), name.to_owned());
    Ok(app.patterns.caches.get_or(key, || {
        Cache::<str, Box<RawValue>>::builder(&app.store, namespace, name)
            .ttl(TTL)
            .value_type("json")
            .load_timeout(LONGEST_LOAD, LONGEST_LOAD + Duration::from_secs(1))
            .codec(Json)
            .build()
    })?)
}

fn found(hit: &Hit<Box<RawValue>>) -> Found {
    Found {
        value: hit.value.as_deref().cloned(),
        age: hit.age.map(Into::into),
        stale: hit.stale,
    }
}

async fn get(call: Call) -> Result<Reply, Problem> {
    match cache(&call)?.get(call.param("key")).await? {
        Some(hit) => Ok(Reply::ok(&found(&hit))),
        None => Err(Problem::not_found("value in the cache")),
    }
}

async fn lease(call: Call) -> Result<Reply, Problem> {
    let body: LeaseRequest = call.json()?;
    let time = Seconds::or(body.lease, Duration::from_secs(10))?;
    if time.is_zero() || time > LONGEST_LOAD {
        return Err(Problem::invalid("a lease must be above 0 and at most 60 s"));
    }
    let (cache, app) = (cache(&call)?, call.app.clone());
    let (key, target) = (call.param("key").to_owned(), call.target()?);
    let (granted, lease) = oneshot::channel();
    // Tells the client that put the value how it went.
    let done: Arc<Mutex<Option<oneshot::Sender<bool>>>> = Arc::default();
    let told = done.clone();
    // A client that leaves before it has the lease takes the wait with it.
    let load = tokio::spawn(async move {
        let hit = cache
            .get_or_load(&key, move |load| async move {
                let (fill, filled) = oneshot::channel::<Filled>();
                let id = app.patterns.loads.put(&target, fill, time);
                // The client has gone: nobody will load.
                let sent = id.is_some_and(|id| granted.send(id).is_ok());
                let filled = match sent {
                    true => tokio::time::timeout(time, app.stop.run_until_cancelled(filled)).await,
                    false => return Err("no client loads the value"),
                };
                let Ok(Some(Ok(filled))) = filled else {
                    return Err("the value was not put in time");
                };
                for tag in &filled.tags {
                    load.tag(tag).map_err(|_| "invalid tag")?;
                }
                if let Some(ttl) = filled.ttl {
                    load.ttl(ttl);
                }
                *told.lock() = Some(filled.done);
                Ok(match filled.value {
                    Some(value) => Loaded::Found(value),
                    None => Loaded::Absent,
                })
            })
            .await;
        if let Some(done) = done.lock().take() {
            let _ = done.send(hit.is_ok());
        }
        hit
    });
    let mut load = AbortOnDropHandle::new(load);
    tokio::select! {
        biased;
        Ok(id) = lease => {
            // It waits for the value now.
            drop(load.detach());
            let reply = LeaseReply { lease: id, ttl: time.into() };
            Ok(Reply::json(StatusCode::CREATED, &reply))
        }
        ended = &mut load => match ended {
            Ok(Ok(hit)) if hit.source == HitSource::Loaded && hit.value.is_none() => {
                Err(Problem::not_found("value at the source"))
            }
            Ok(Ok(hit)) => Ok(Reply::ok(&found(&hit))),
            Ok(Err(error)) if error.is_user() => Err(Problem::new(Kind::Conflict)
                .detail("another client had the lease and did not put a value; ask again")),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Problem::new(Kind::Failed)),
        },
    }
}

async fn put(call: Call) -> Result<Reply, Problem> {
    let body: Put = call.json()?;
    let ttl = body.ttl.map(Seconds::duration).transpose()?;
    if ttl.is_some_and(|ttl| ttl.is_zero()) {
        return Err(Problem::invalid("a ttl must be above 0"));
    }
    if body.tags.len() > 64
        || body
            .tags
            .iter()
            .any(|tag| tag.is_empty() || tag.len() > 256)
    {
        return Err(Problem::invalid("at most 64 tags of 1 to 256 bytes"));
    }
    let load = call.app.patterns.loads.take(&call.target()?, &body.lease);
    let load = load.ok_or_else(|| lost("lease"))?;
    let (done, stored) = oneshot::channel();
    let value = (body.value.get() != "null").then_some(body.value);
    let filled = Filled {
        value,
        tags: body.tags,
        ttl,
        done,
    };
    if load.send(filled).is_err() {
        return Err(lost("lease"));
    }
    match stored.await {
        Ok(true) => Ok(Reply::ok(&PutReply { accepted: true })),
        _ => Err(lost("lease")),
    }
}

async fn invalidate(call: Call) -> Result<Reply, Problem> {
    cache(&call)?.invalidate(call.param("key")).await?;
    Ok(Reply::ok(&Done { done: true }))
}

async fn invalidate_tag(call: Call) -> Result<Reply, Problem> {
    cache(&call)?.invalidate_tag(call.param("tag")).await?;
    Ok(Reply::ok(&Done { done: true }))
}

async fn clear(call: Call) -> Result<Reply, Problem> {
    cache(&call)?.clear().await?;
    Ok(Reply::ok(&Done { done: true }))
}
