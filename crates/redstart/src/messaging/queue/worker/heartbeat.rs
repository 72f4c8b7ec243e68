//! Renews the lease of a registration.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Registration, Shared};
use crate::{error::Result, messaging::queue::script::RENEW, observe};

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
    // Renewals follow the store's clock, so that they are in time if that is advanced. Whether the lease may have
    // ended meanwhile is measured by our own.
    let clock = shared.queue.store().clock();
    let every = shared.lease / 3;
    let mut unknown_jobs = 0;
    let mut next = clock.now() + every;
    loop {
        tokio::select! {
            biased;
            () = registration.over.cancelled() => return false,
            () = registration.lost.cancelled() => return true,
            () = clock.sleep_until(next) => {}
        }
        // Taken before the request is sent: the server's lease ends later than ours, never earlier.
        let asked = Instant::now();
        let end = renewed + shared.lease;
        let held = tokio::select! {
            biased;
            // A reply that comes after the end is too late to be sure; handlers must be told of the doubt.
            () = tokio::time::sleep_until(end) => return !registration.over.is_cancelled(),
            held = renew(shared, registration) => held,
        };
        match held {
            // A worker that has just unregistered is not registered either.
            Ok(held) if held < 0 => return !registration.over.is_cancelled(),
            Ok(held) => {
                renewed = asked;
                next = clock.now() + every;
                // Once may be a reply that is on its way; twice is a job that no task runs.
                let known = registration.known.lock().len() as i64;
                unknown_jobs = if held > known { unknown_jobs + 1 } else { 0 };
                if unknown_jobs >= 2 {
                    unknown_jobs = 0;
                    shared.suspect.notify_one();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a worker's lease could not be renewed");
                next = clock.now() + (every / 4).max(Duration::from_millis(1));
            }
        }
    }
}

/// How many jobs the worker holds; negative if it is not registered.
pub(super) async fn renew(shared: &Shared, registration: &Registration) -> Result<i64> {
    RENEW
        .on(shared.queue.entity())
        .part(&registration.running)
        .part("workers")
        .arg(&registration.name)
        .arg(shared.lease_micros())
        .idempotent()
        .run(shared.queue.store())
        .await
}
