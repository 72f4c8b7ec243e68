//! Sessions, and what limits, locks and breaks.

use std::{num::NonZeroU32, time::Duration};

use redstart::{
    Result, Store,
    limiting::{Algorithm, Limiter, Quota},
    locking::{FairMutex, FenceToken, FencedValues, Leader, LegacyLock, Mutex, RwLock, Semaphore},
    resilience::{Breaker, CallWindow},
    sessions::Sessions,
};

use super::{Fill, Filling, LONG, MANY, PAYLOADS, body, user};

const ONE: NonZeroU32 = NonZeroU32::MIN;

fn limiter(store: &Store, namespace: &str, algorithm: Algorithm) -> Result<Limiter> {
    let quota = Quota::per(100, Duration::from_secs(86_400));
    Limiter::builder(store, namespace, "api", algorithm, quota).build()
}

/// A limiter that keeps the same for a subject however many calls there are.
macro_rules! checked {
    ($kind:literal, $algorithm:expr) => {
        filling!(
            $kind,
            "subject",
            None,
            &[0],
            MANY,
            |store, ns, value| limiter(&store, &ns, $algorithm)?,
            |it, n| {
                let _ = it.check(&user(n), 1).await?;
            }
        )
    };
}

/// A lock that is left held: it is the lock that is weighed.
macro_rules! held {
    ($kind:literal, $entity:literal, $Lock:ident, $take:ident) => {
        filling!(
            $kind,
            $entity,
            None,
            &[0],
            MANY,
            |store, ns, value| (store, ns),
            |it, n| {
                let lock = $Lock::builder(&it.0, &it.1, &user(n))
                    .ttl(LONG)
                    .without_renewal()
                    .build()?;
                if let Some(guard) = lock.$take().await? {
                    std::mem::forget(guard);
                }
            }
        )
    };
}

/// A table with one entry per kind.
pub(super) fn fillings() -> Vec<Filling> {
    vec![
        filling!(
            "session",
            "session",
            Some("bytes of data"),
            PAYLOADS,
            MANY,
            |store, ns, value| (
                Sessions::builder(&store, &ns, "web")
                    .idle(LONG)
                    .absolute(LONG)
                    .build()?,
                serde_json::json!({ "body": "x".repeat(value as usize) })
            ),
            |it, n| {
                it.0.create(&user(n), &it.1).await?;
            }
        ),
        checked!("fixed_window", Algorithm::FixedWindow),
        filling!(
            "sliding_window",
            "subject",
            Some("calls in the window"),
            &[1, 20],
            MANY,
            |store, ns, value| (limiter(&store, &ns, Algorithm::SlidingWindow)?, value),
            |it, n| for _ in 0..it.1 {
                let _ = it.0.check(&user(n), 1).await?;
            }
        ),
        checked!("sliding_counter", Algorithm::SlidingCounter),
        checked!("token_bucket", Algorithm::TokenBucket),
        held!("mutex", "held lock", Mutex, try_lock),
        held!("fair_lock", "held lock", FairMutex, try_lock),
        held!("rw_lock", "lock that a writer holds", RwLock, try_write),
        held!("legacy_lock", "held lock", LegacyLock, try_lock),
        filling!(
            "leader",
            "election with a leader",
            None,
            &[0],
            1536,
            |store, ns, value| (store, ns),
            |it, n| {
                let election = Leader::builder(&it.0, &it.1, &user(n)).ttl(LONG).build()?;
                if let Some(leadership) = election.try_campaign().await? {
                    std::mem::forget(leadership);
                }
            }
        ),
        filling!(
            "circuit_breaker",
            "circuit with its last 100 calls",
            None,
            &[0],
            1536,
            |store, ns, value| (store, ns),
            |it, n| {
                let breaker = Breaker::builder(&it.0, &it.1, &user(n))
                    .window(CallWindow::Count(100))
                    .failure_rate(0.9)
                    .open_for(Duration::from_secs(86_400))
                    .open()
                    .await?;
                for call in 0..100 {
                    let outcome = if call % 4 == 0 { Err("down") } else { Ok(()) };
                    let _ = breaker.call(async || outcome).await;
                }
                breaker.flush().await?;
            }
        ),
        filling!(
            "semaphore",
            "semaphore with one holder",
            None,
            &[0],
            MANY,
            |store, ns, value| (store, ns),
            |it, n| {
                let semaphore = Semaphore::builder(&it.0, &it.1, &user(n), ONE)
                    .ttl(LONG)
                    .without_renewal()
                    .build()?;
                if let Some(permit) = semaphore.try_acquire().await? {
                    std::mem::forget(permit);
                }
            }
        ),
        filling!(
            "fencing",
            "value",
            Some("bytes of the value"),
            PAYLOADS,
            MANY,
            |store, ns, value| (FencedValues::new(&store, &ns, "values")?, body(value)),
            |it, n| {
                let _ = it.0.set(&user(n), &it.1, FenceToken::new(1)?).await?;
            }
        ),
    ]
}
