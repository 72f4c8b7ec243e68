//! Permission to make one call, and how the call ended.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Inner, policy::CallOutcome};

/// The answer to [`Breaker::try_admit`](super::Breaker::try_admit).
#[derive(Debug)]
#[must_use = "only an admitted call may be made"]
pub enum Admitted {
    /// Make the call and say how it ended.
    Yes(Admission),
    /// Do not call.
    No {
        /// When it is worth trying again.
        retry_after: Duration,
    },
}

/// Permission to make one call. Say how it ended; dropped, it counts as abandoned, and a probe's place is free.
#[must_use = "say how the call ended"]
pub struct Admission {
    pub(super) inner: Arc<Inner>,
    pub(super) generation: u64,
    pub(super) kind: AdmissionKind,
    pub(super) started: Instant,
    /// How it ended is not known yet.
    pub(super) open: bool,
}

#[derive(Clone, Debug)]
pub(super) enum AdmissionKind {
    Call,
    Probe {
        token: String,
    },
    /// While the store is down.
    LocalCall,
    LocalProbe,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("probe", &self.is_probe())
            .finish_non_exhaustive()
    }
}

impl Admission {
    /// Whether the result of this call closes or opens the circuit.
    pub fn is_probe(&self) -> bool {
        matches!(
            self.kind,
            AdmissionKind::Probe { .. } | AdmissionKind::LocalProbe
        )
    }

    /// The call succeeded. Whether it was slow is decided by the time since it was admitted.
    pub async fn succeeded(self) {
        self.finish(false).await;
    }

    /// The call failed.
    pub async fn failed(self) {
        self.finish(true).await;
    }

    /// The call was cut off by a deadline that leaves no time to tell the store: that is done in the background.
    pub(in crate::resilience) fn failed_at_the_deadline(self) {
        let store = self.inner.store.clone();
        store.defer(self.failed());
    }

    /// Says how the call ended. A probe's result is on its way whether or not the future is awaited to its end.
    pub(in crate::resilience) async fn tell(self, failed: bool) {
        if !self.is_probe() {
            return self.finish(failed).await;
        }
        let store = self.inner.store.clone();
        let (told, is_told) = tokio::sync::oneshot::channel::<()>();
        store.defer(async move {
            self.finish(failed).await;
            drop(told);
        });
        let _ = is_told.await;
    }

    async fn finish(mut self, failed: bool) {
        let inner = self.inner.clone();
        let now = inner.clock.now();
        let slow_after = inner.policy.slow_after;
        let verdict = CallOutcome {
            failed,
            slow: slow_after
                .is_some_and(|after| now.saturating_duration_since(self.started) >= after),
        };
        match &self.kind {
            AdmissionKind::Call => inner.record(self.generation, verdict, now),
            AdmissionKind::Probe { token } => {
                let letter = if verdict.is_good() { "o" } else { "f" };
                inner.probed(token, self.generation, letter).await;
            }
            AdmissionKind::LocalCall => {
                let mut local = inner.local.lock();
                if local.generation == self.generation {
                    local.record(&inner.policy, verdict, now);
                }
                drop(local);
                inner.announce();
            }
            AdmissionKind::LocalProbe => {
                let mut local = inner.local.lock();
                if local.generation == self.generation {
                    local.probed(&inner.policy, Some(verdict.is_good()), now);
                }
                drop(local);
                inner.announce();
            }
        }
        // Last: whoever is dropped while the result is on its way gives the place back.
        self.open = false;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        match &self.kind {
            AdmissionKind::Probe { token } => {
                let (inner, token) = (self.inner.clone(), token.clone());
                let generation = self.generation;
                let store = inner.store.clone();
                store.defer(async move { inner.probed(&token, generation, "a").await });
            }
            AdmissionKind::LocalProbe => {
                let mut local = self.inner.local.lock();
                if local.generation == self.generation {
                    local.probed(&self.inner.policy, None, self.inner.clock.now());
                }
            }
            AdmissionKind::Call | AdmissionKind::LocalCall => {}
        }
    }
}
