//! Leave to make one call, and how it ended.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Inner, Outcome};

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

/// Leave to make one call. Say how it ended; dropped, it counts as abandoned, and a probe's place is free.
#[must_use = "say how the call ended"]
pub struct Admission {
    pub(super) inner: Arc<Inner>,
    pub(super) generation: u64,
    pub(super) kind: AdmissionKind,
    pub(super) started: Instant,
    /// Nobody has said yet how it ended.
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
    /// Whether this call decides over the circuit.
    pub fn is_probe(&self) -> bool {
        matches!(
            self.kind,
            AdmissionKind::Probe { .. } | AdmissionKind::LocalProbe
        )
    }

    /// The call succeeded; slow or not is told by the time since it was admitted.
    pub async fn succeeded(self) {
        self.finish(false).await;
    }

    /// The call failed.
    pub async fn failed(self) {
        self.finish(true).await;
    }

    async fn finish(mut self, failed: bool) {
        self.open = false;
        let inner = self.inner.clone();
        let now = Instant::now();
        let slow_after = inner.policy.slow_after;
        let outcome = Outcome {
            failed,
            slow: slow_after.is_some_and(|after| now - self.started >= after),
        };
        match &self.kind {
            AdmissionKind::Call => inner.record(self.generation, outcome, now),
            AdmissionKind::Probe { token } => {
                let letter = if outcome.is_good() { "o" } else { "f" };
                inner.probed(token, self.generation, letter).await;
            }
            AdmissionKind::LocalCall => {
                let mut local = inner.local.lock();
                if local.generation == self.generation {
                    local.record(&inner.policy, outcome, now);
                }
            }
            AdmissionKind::LocalProbe => {
                let mut local = inner.local.lock();
                if local.generation == self.generation {
                    local.probed(&inner.policy, Some(outcome.is_good()), now);
                }
            }
        }
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
                    local.probed(&self.inner.policy, None, Instant::now());
                }
            }
            AdmissionKind::Call | AdmissionKind::LocalCall => {}
        }
    }
}
