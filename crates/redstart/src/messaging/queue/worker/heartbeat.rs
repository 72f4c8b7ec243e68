//! Renews the lease of a registration.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::time::Instant;

use super::{Registration, Shared};
use crate::{
    error::Result,
    messaging::queue::{JobId, script::RENEW},
    observe,
    store::valid_until,
};

/// Renews the lease until the worker unregisters or the lease is lost. It never revives a lost one.
pub(super) async fn heartbeat(
    shared: Arc<Shared>,
    registration: Arc<Registration>,
    registered: Instant,
) {
    if lease_was_lost(&shared, &registration, registered).await {
        registration.lost.cancel();
        observe::event("queue.lost");
        tracing::warn!(queue = %shared.queue.entity().key(), "a worker's lease ended before it was renewed");
    }
}

/// Returns `true` when the lease was lost, `false` when the worker has unregistered.
async fn lease_was_lost(
    shared: &Shared,
    registration: &Registration,
    mut renewed: Instant,
) -> bool {
    let clock = shared.queue.store().clock();
    let every = shared.lease / 3;
    let mut unknown_jobs = 0;
    let mut next = renewed + every;
    loop {
        let end = valid_until(renewed, shared.lease);
        tokio::select! {
            biased;
            () = registration.over.cancelled() => return false,
            () = registration.lost.cancelled() => return true,
            // It may end between two attempts to renew it.
            () = clock.sleep_until(end), if !crate::mend::is_missing("a lost lease is told at once") => {
                return !registration.over.is_cancelled();
            }
            () = clock.sleep_until(next) => {}
        }
        // Taken before the request is sent: the server's lease ends later than ours, never earlier.
        let asked = clock.now();
        let held = tokio::select! {
            biased;
            // A reply that comes after the end is too late to be sure; handlers must be told of the doubt.
            () = clock.sleep_until(end) => return !registration.over.is_cancelled(),
            held = renew(shared, registration) => held,
        };
        match held {
            // A worker that has just unregistered is not registered either.
            Ok((held, _)) if held < 0 => return !registration.over.is_cancelled(),
            Ok((held, cancelled)) => {
                // Their messages may have been lost.
                for id in cancelled {
                    registration.cancel(id);
                }
                renewed = asked;
                registration.renewed(asked, shared.lease);
                next = clock.now() + every;
                // Once may be a reply that is on its way; twice is a job that no task runs.
                let known = registration.known.lock().len() as i64;
                unknown_jobs = if held > known { unknown_jobs + 1 } else { 0 };
                if unknown_jobs >= 2 {
                    unknown_jobs = 0;
                    shared.suspect.notify_one();
                }
            }
            Err(_) if crate::mend::is_missing("a renewal that failed is no loss") => return true,
            Err(error) => {
                tracing::debug!(%error, "a worker's lease could not be renewed");
                next = clock.now() + (every / 4).max(Duration::from_millis(1));
            }
        }
    }
}

/// How many jobs the worker holds, negative if it is not registered, and which of them are to be cancelled.
pub(super) async fn renew(
    shared: &Shared,
    registration: &Registration,
) -> Result<(i64, Vec<JobId>)> {
    let reply: Vec<Value> = RENEW
        .on(shared.queue.entity())
        .part(&registration.running)
        .part("workers")
        .part("meta")
        .arg(&registration.name)
        .arg(shared.lease_micros())
        .idempotent()
        .run(shared.queue.store())
        .await?;
    let mut reply = reply.into_iter();
    let held = redis::from_redis_value(reply.next().unwrap_or(Value::Nil))?;
    let cancelled = reply.filter_map(|id| match id {
        Value::BulkString(id) => JobId::read(&id),
        _ => None,
    });
    Ok((held, cancelled.collect()))
}
