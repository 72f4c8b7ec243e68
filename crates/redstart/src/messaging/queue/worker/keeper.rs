//! The keeper renews the lease of the current term.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Crew, RENEW, Term};
use crate::{error::Result, observe};

/// Renews the lease while the term lasts. It never revives one.
pub(super) async fn keeper(crew: Arc<Crew>, term: Arc<Term>, mut renewed: Instant) {
    let every = crew.lease / 3;
    let mut strange = 0;
    let mut next = renewed + every;
    loop {
        tokio::select! {
            () = term.over.cancelled() => return,
            () = term.lost.cancelled() => break,
            () = tokio::time::sleep_until(next) => {}
        }
        // Taken before it is sent: the server's lease ends later than ours, never earlier.
        let asked = Instant::now();
        if asked >= renewed + crew.lease {
            // Too late to be sure; the server may know better, but handlers must hear of the doubt.
            break;
        }
        let held: Result<i64> = RENEW
            .on(crew.queue.entity())
            .part(&term.running)
            .part("workers")
            .arg(&term.name)
            .arg(crew.micros())
            .idempotent()
            .run(crew.queue.store())
            .await;
        match held {
            // A worker that has just left is not registered either.
            Ok(held) if held < 0 && term.over.is_cancelled() => return,
            Ok(held) if held < 0 => break,
            Ok(held) => {
                renewed = asked;
                next = asked + every;
                // Once may be a reply that is on its way; twice is a job that nobody runs.
                let known = term.known.lock().len() as i64;
                strange = if held > known { strange + 1 } else { 0 };
                if strange >= 2 {
                    strange = 0;
                    crew.suspect.notify_one();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the lease could not be renewed");
                next = (asked + every / 4).max(Instant::now());
            }
        }
    }
    if !term.lost.is_cancelled() {
        term.lost.cancel();
    }
    observe::event("queue.lost");
    tracing::warn!(queue = %crew.queue.entity().key(), "a worker's lease is over before it was renewed");
}
