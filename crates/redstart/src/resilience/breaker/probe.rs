//! How calls are admitted, and how probes are sent.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use super::{
    ADMIT, Admission, Admitted, Inner, PROBED,
    admission::AdmissionKind,
    local::Admit,
    view::{Phase, after},
};
use crate::{duration::micros, observe, token::token};

/// When all places of probes are taken, the store is asked again after this, if no message says that it changed.
const FULL_RETRY: Duration = Duration::from_millis(100);

impl Inner {
    fn admission(self: &Arc<Self>, generation: u64, kind: AdmissionKind) -> Admission {
        Admission {
            inner: self.clone(),
            generation,
            kind,
            started: self.clock.now(),
            open: true,
        }
    }

    pub(super) async fn admit(self: &Arc<Self>) -> Admitted {
        let now = self.clock.now();
        let view = *self.view.lock();
        if view.alone {
            return self.admit_alone(now);
        }
        let wait = match view.phase {
            Phase::Closed => {
                return Admitted::Yes(self.admission(view.generation, AdmissionKind::Call));
            }
            Phase::Open { until } if now < until => Some(until),
            _ => view.full_until.filter(|until| now < *until),
        };
        match wait {
            Some(until) => Admitted::No {
                retry_after: until.saturating_duration_since(now),
            },
            None => self.admit_probe().await,
        }
    }

    fn admit_alone(self: &Arc<Self>, now: Instant) -> Admitted {
        let mut local = self.local.lock();
        let admit = local.admit(&self.policy, now);
        let generation = local.generation;
        drop(local);
        self.announce();
        match admit {
            Admit::Call => Admitted::Yes(self.admission(generation, AdmissionKind::LocalCall)),
            Admit::Probe => Admitted::Yes(self.admission(generation, AdmissionKind::LocalProbe)),
            Admit::Refused(retry_after) => Admitted::No { retry_after },
        }
    }

    /// Asks in a task of its own: if the caller goes away, the admission is dropped there, which gives the place back.
    async fn admit_probe(self: &Arc<Self>) -> Admitted {
        let (answer, answered) = oneshot::channel();
        let inner = self.clone();
        self.store.defer(async move {
            drop(answer.send(inner.ask_for_place().await));
        });
        answered.await.unwrap_or(Admitted::No {
            retry_after: FULL_RETRY,
        })
    }

    async fn ask_for_place(self: &Arc<Self>) -> Admitted {
        let asked = self.clock.now();
        let token = token();
        let call = self
            .script(&ADMIT)
            .arg(&token)
            .arg(micros(self.policy.lease));
        let call = call.idempotent().run::<Vec<String>>(&self.store);
        let said = match observe::operation("breaker.admit", self.entity.namespace(), call).await {
            Ok(said) => said,
            Err(error) => {
                self.lose(&error);
                return self.admit_alone(self.clock.now());
            }
        };
        self.learn(&said, asked);
        let view = *self.view.lock();
        if said.get(3).is_some_and(|word| word == "1") {
            // By the generation that the script named: the view may have moved on since.
            let generation = said.get(1).and_then(|word| word.parse().ok());
            let kind = AdmissionKind::Probe { token };
            return Admitted::Yes(self.admission(generation.unwrap_or(view.generation), kind));
        }
        match view.phase {
            Phase::Closed => Admitted::Yes(self.admission(view.generation, AdmissionKind::Call)),
            Phase::Open { until } => Admitted::No {
                retry_after: until.saturating_duration_since(self.clock.now()),
            },
            Phase::HalfOpen => {
                let free = said.get(4).and_then(|word| word.parse().ok()).unwrap_or(0);
                let retry_after =
                    Duration::from_micros(free).clamp(Duration::from_millis(1), FULL_RETRY);
                let until = after(asked, u64::try_from(retry_after.as_micros()).unwrap_or(0));
                self.view.lock().full_until = Some(until);
                Admitted::No { retry_after }
            }
        }
    }

    /// Tells the circuit how a probe ended.
    pub(super) async fn probed(&self, token: &str, generation: u64, letter: &str) {
        let asked = self.clock.now();
        let call = self.script(&PROBED).arg(token).arg(generation).arg(letter);
        // Sent twice, a result counts once: the first takes the token away.
        match call.idempotent().run::<Vec<String>>(&self.store).await {
            Ok(said) => self.learn(&said, asked),
            Err(error) => self.lose(&error),
        }
    }
}
