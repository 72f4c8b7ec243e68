//! The renewal of one lease, from the first time that it is due.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    kind::Operations,
    lease::{Lease, Terms, valid_until},
    owner::Ownership,
};
use crate::observe;

/// Renews a lease until it ends. A renewal gets no more time than the lease still has: what it would gain does not count
/// before the reply is there.
pub(crate) struct Renewal {
    lease: Lease<()>,
    owner: Arc<dyn Ownership>,
    terms: Terms,
    /// When to renew next.
    next: Instant,
}

impl Renewal {
    pub(crate) fn new(
        lease: Lease<()>,
        owner: Arc<dyn Ownership>,
        asked: Instant,
        terms: Terms,
    ) -> Self {
        let next = match terms.renewed {
            true => asked + terms.ttl / 3,
            false => lease.until(),
        };
        Self {
            lease,
            owner,
            terms,
            next,
        }
    }

    /// When it has to run for the first time.
    pub(crate) fn due(&self) -> Instant {
        self.next
    }

    pub(crate) fn owner(&self) -> &Arc<dyn Ownership> {
        &self.owner
    }

    pub(crate) async fn run(self) {
        let lease = self.lease.clone();
        tokio::select! {
            biased;
            () = lease.ended() => {}
            () = self.renew() => {}
        }
    }

    async fn renew(self) {
        let Self {
            lease,
            owner,
            terms,
            mut next,
        } = self;
        let clock = lease.clock().clone();
        let every = terms.ttl / 3;
        let mut pause = every / 8;
        let revives = crate::mend::is_missing("a lease that has ended stays so");
        loop {
            let until = lease.until();
            if !terms.renewed || next >= until && !revives {
                clock.sleep_until(until).await;
            } else {
                clock.sleep_until(next).await;
            }
            if !lease.is_valid() && !revives {
                lose(&lease, owner.operations());
                return;
            }
            let asked = clock.now();
            if !terms.renewed || asked < next {
                continue;
            }
            let end = match revives {
                true => asked + terms.ttl,
                false => lease.until(),
            };
            let extended = tokio::select! {
                biased;
                extended = owner.extend(terms.ttl) => extended,
                // Its time is up; the next round sees whether `Guard::extend` moved the end.
                () = clock.sleep_until(end) => continue,
            };
            match extended {
                Ok(held) if (held || revives) && lease.prolong(valid_until(asked, terms.ttl)) => {
                    next = asked + every;
                    pause = every / 8;
                    if crate::mend::is_missing("a lease is renewed again") {
                        return;
                    }
                }
                Ok(_) => {
                    lose(&lease, owner.operations());
                    return;
                }
                Err(_) if crate::mend::is_missing("a renewal that failed is tried again") => {
                    lose(&lease, owner.operations());
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "a lease could not be renewed; trying again");
                    next = clock.now() + jittered(pause);
                    pause = (pause * 2).min(every);
                }
            }
        }
    }
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(crate::chance::range(0.5..=1.0))
}

/// Ends a lease against its holder's will.
pub(crate) fn lose<F>(lease: &Lease<F>, operations: &'static Operations) {
    if lease.end() {
        observe::event(operations.lost);
        tracing::warn!(event = operations.lost, "a lease was lost");
    }
}
