//! Locks, semaphores, offices and fenced values.

mod leader;
mod semaphore;

use std::time::Duration;

use http::StatusCode;
use redstart::locking::{FenceToken, FencedValues, FencedWrite, Mutex, Released, Ticket};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

use crate::{
    call::{Call, Seconds},
    problem::{Kind, Problem},
    reply::Reply,
    route::{Route, Routes},
};

const FAMILY: &str = "Locks";
const TTL: Duration = Duration::from_secs(30);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Acquire {
    /// Seconds until the lock is free again unless it is renewed (default 30).
    ttl: Option<Seconds>,
    /// Seconds to wait for the holder (default 0).
    wait: Option<Seconds>,
    /// A name that others see while the lock is held.
    owner: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Acquired {
    /// A secret: anyone who has it can renew and release the lock.
    lease: String,
    /// Rises with each holder. Give it to whatever the lock protects.
    fence: u64,
    ttl: Seconds,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Renew {
    lease: String,
    ttl: Option<Seconds>,
}

#[derive(Serialize, JsonSchema)]
struct Renewed {
    ttl: Seconds,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Release {
    lease: String,
}

#[derive(Serialize, JsonSchema)]
struct ReleasedReply {
    released: bool,
}

#[derive(Serialize, JsonSchema)]
struct LockState {
    held: bool,
    owner: Option<String>,
    /// Seconds until the lease ends.
    remaining: Option<Seconds>,
    /// How many processes wait.
    waiting: u64,
    /// The name of this lease, for `force-release`: the next lease has another.
    holder: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ForceRelease {
    /// Only this lease, as the state of the lock names it (default whichever there is).
    holder: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FencedPut {
    fence: u64,
    /// Any JSON.
    #[schemars(with = "serde_json::Value")]
    value: Box<RawValue>,
}

#[derive(Serialize, JsonSchema)]
struct Written {
    written: bool,
}

#[derive(Serialize, JsonSchema)]
struct FencedValue {
    #[schemars(with = "serde_json::Value")]
    value: Option<Box<RawValue>>,
    /// The highest fence that wrote it.
    fence: Option<u64>,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/locks/{name}:acquire", acquire)
            .waits()
            .doc(FAMILY, "Take a lock, waiting for its holder if asked to")
            .param("name", "order:5001")
            .body::<Acquire>(json!({"ttl": 30, "wait": 5, "owner": "worker-7"}))
            .reply::<Acquired>(201, "The lock is held")
            .status(409, "Another holder has it: `owner` and `remaining`"),
    );
    routes.add(
        Route::get("/v1/locks/{name}", state)
            .doc(FAMILY, "Who holds a lock")
            .param("name", "order:5001")
            .reply::<LockState>(200, "The state of the lock"),
    );
    routes.add(
        Route::post("/v1/locks/{name}:renew", renew)
            .doc(FAMILY, "Extend a lease")
            .param("name", "order:5001")
            .body::<Renew>(json!({"lease": "rs-5f2b…", "ttl": 30}))
            .reply::<Renewed>(200, "The lease runs for at least this long from now")
            .status(410, "The lock was lost"),
    );
    routes.add(
        Route::put("/v1/fenced/{name}/{key}", fenced_put)
            .doc(
                FAMILY,
                "Write a value that refuses holders which lost their lock",
            )
            .param("name", "orders")
            .param("key", "5001")
            .body::<FencedPut>(json!({"fence": 1, "value": {"state": "paid"}}))
            .reply::<Written>(200, "Written")
            .status(409, "A higher fence has written: `highest`"),
    );
    routes.add(
        Route::get("/v1/fenced/{name}/{key}", fenced_get)
            .doc(FAMILY, "Read a fenced value")
            .param("name", "orders")
            .param("key", "5001")
            .reply::<FencedValue>(200, "The value and the highest fence"),
    );
    routes.add(
        Route::post("/v1/locks/{name}:release", release)
            .doc(FAMILY, "Release a lock")
            .param("name", "order:5001")
            .body::<Release>(json!({"lease": "rs-5f2b…"}))
            .reply::<ReleasedReply>(200, "The lock was held until now")
            .status(410, "The lock was lost before"),
    );
    routes.add(
        Route::post("/v1/locks/{name}:force-release", force)
            .by_hand("lock.force-release")
            .doc(FAMILY, "Release a lock by force: of any holder, or of one")
            .param("name", "order:5001")
            .body::<ForceRelease>(json!({}))
            .reply::<ReleasedReply>(200, "Whether somebody held it")
            .status(409, "Another lease holds it by now, or none"),
    );
    semaphore::add_routes(routes);
    leader::add_routes(routes);
}

fn mutex(call: &Call, ttl: Duration, owner: Option<&str>) -> Result<Mutex, Problem> {
    let builder = Mutex::builder(&call.app.store, &call.namespace()?, call.param("name"));
    let builder = match owner {
        Some(owner) => builder.label(owner),
        None => builder,
    };
    Ok(builder.ttl(ttl).without_renewal().build()?)
}

/// A ticket that was given out by this service. Any other text was never granted.
fn ticket(text: &str) -> Result<Ticket, Problem> {
    text.parse().map_err(|_| Problem::new(Kind::Lost))
}

fn renewed(kept: bool, ttl: Duration) -> Result<Reply, Problem> {
    match kept {
        true => Ok(Reply::ok(&Renewed { ttl: ttl.into() })),
        false => Err(Problem::new(Kind::Lost)),
    }
}

fn released(released: Released) -> Result<Reply, Problem> {
    match released {
        Released::Released => Ok(Reply::ok(&ReleasedReply { released: true })),
        Released::AlreadyLost => Err(Problem::new(Kind::Lost)),
    }
}

async fn acquire(call: Call) -> Result<Reply, Problem> {
    let body: Acquire = call.json()?;
    let (ttl, wait) = (Seconds::or(body.ttl, TTL)?, call.wait(body.wait)?);
    let mutex = mutex(&call, ttl, body.owner.as_deref())?;
    let guard = match wait.is_zero() {
        true => mutex.try_lock().await?,
        false => mutex.lock(wait).await?,
    };
    let Some(guard) = guard else {
        let mut problem = Problem::new(Kind::Held);
        if let Some(holder) = mutex.holder().await? {
            problem = problem
                .with("owner", holder.label)
                .with("remaining", holder.remaining.map(|left| left.as_secs_f64()))
                .with("waiting", holder.waiting);
        }
        return Err(problem);
    };
    let fence = guard.fence().get();
    let lease = guard.into_ticket()?.expose().to_owned();
    let acquired = Acquired {
        lease,
        fence,
        ttl: ttl.into(),
    };
    Ok(Reply::json(StatusCode::CREATED, &acquired))
}

async fn state(call: Call) -> Result<Reply, Problem> {
    let holder = mutex(&call, TTL, None)?.holder().await?;
    Ok(Reply::ok(&match holder {
        None => LockState {
            held: false,
            owner: None,
            remaining: None,
            waiting: 0,
            holder: None,
        },
        Some(holder) => LockState {
            held: true,
            holder: Some(holder.id()),
            owner: holder.label,
            remaining: holder.remaining.map(Into::into),
            waiting: holder.waiting,
        },
    }))
}

async fn renew(call: Call) -> Result<Reply, Problem> {
    let body: Renew = call.json()?;
    let ttl = Seconds::or(body.ttl, TTL)?;
    let kept = mutex(&call, TTL, None)?
        .extend_held(&ticket(&body.lease)?, ttl)
        .await?;
    renewed(kept, ttl)
}

async fn release(call: Call) -> Result<Reply, Problem> {
    let body: Release = call.json()?;
    released(
        mutex(&call, TTL, None)?
            .release_held(&ticket(&body.lease)?)
            .await?,
    )
}

async fn force(call: Call) -> Result<Reply, Problem> {
    let body: ForceRelease = call.json()?;
    let mutex = mutex(&call, TTL, None)?;
    let holder = mutex.holder().await?;
    let is_another = |named: &String| holder.as_ref().is_none_or(|now| now.id() != *named);
    if body.holder.as_ref().is_some_and(is_another) {
        return Err(Problem::new(Kind::Conflict).detail("this lease has ended; look again"));
    }
    let held = match holder {
        Some(holder) => mutex.force_release(&holder).await?,
        None => false,
    };
    let on = format!("{} {}", call.namespace()?, call.param("name"));
    call.app
        .changed(&call, "lock.force-release", on, u64::from(held), None)
        .await;
    Ok(Reply::ok(&ReleasedReply { released: held }))
}

fn fenced(call: &Call) -> Result<FencedValues, Problem> {
    let namespace = call.namespace()?;
    Ok(FencedValues::new(
        &call.app.store,
        &namespace,
        call.param("name"),
    )?)
}

async fn fenced_put(call: Call) -> Result<Reply, Problem> {
    let body: FencedPut = call.json()?;
    let fence = FenceToken::new(body.fence)?;
    let value = body.value.get().as_bytes();
    match fenced(&call)?.set(call.param("key"), value, fence).await? {
        FencedWrite::Done => Ok(Reply::ok(&Written { written: true })),
        FencedWrite::Stale { highest } => {
            Err(Problem::new(Kind::StaleFence).with("highest", highest.get()))
        }
    }
}

async fn fenced_get(call: Call) -> Result<Reply, Problem> {
    let values = fenced(&call)?;
    let value = values.get(call.param("key")).await?;
    let fence = values.highest(call.param("key")).await?;
    let value = value.and_then(|bytes| {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        // Values that another program wrote need not be JSON.
        RawValue::from_string(text.clone())
            .or_else(|_| serde_json::value::to_raw_value(&text))
            .ok()
    });
    Ok(Reply::ok(&FencedValue {
        value,
        fence: fence.map(FenceToken::get),
    }))
}
