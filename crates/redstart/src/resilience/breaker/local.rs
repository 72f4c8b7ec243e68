//! The breaker of this process alone, while the store is down.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{
    CircuitState,
    policy::{CallOutcome, CallWindow, Policy},
};

/// How many verdicts are remembered for a window of time.
const MOST: usize = 4096;

#[derive(Debug)]
pub(super) enum Phase {
    Closed,
    Open { until: Instant },
    HalfOpen { out: u32, ok: u32 },
}

/// The same policy on what this process saw itself. Other instances cannot be heard, so one is enough.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) phase: Phase,
    seen: VecDeque<(Instant, CallOutcome)>,
    /// Results of an earlier state are dropped.
    pub(super) generation: u64,
}

/// What the local breaker says to a call.
pub(super) enum Admit {
    Call,
    Probe,
    Refused(Duration),
}

impl Local {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Closed,
            seen: VecDeque::new(),
            generation: 0,
        }
    }

    pub(super) fn change_to(&mut self, phase: Phase) {
        self.phase = phase;
        self.generation += 1;
        self.seen.clear();
    }

    pub(super) fn state(&self) -> CircuitState {
        match self.phase {
            Phase::Closed => CircuitState::Closed,
            Phase::Open { .. } => CircuitState::Open,
            Phase::HalfOpen { .. } => CircuitState::HalfOpen,
        }
    }

    pub(super) fn admit(&mut self, policy: &Policy, now: Instant) -> Admit {
        if let Phase::Open { until } = self.phase {
            if now < until {
                return Admit::Refused(until - now);
            }
            self.change_to(Phase::HalfOpen { out: 0, ok: 0 });
        }
        match &mut self.phase {
            Phase::HalfOpen { out, .. } if *out < policy.probes => {
                *out += 1;
                Admit::Probe
            }
            Phase::HalfOpen { .. } => Admit::Refused(Duration::from_millis(10)),
            _ => Admit::Call,
        }
    }

    /// Feeds the window while closed, and opens if that is too much. Whether it opened.
    pub(super) fn record(&mut self, policy: &Policy, verdict: CallOutcome, now: Instant) -> bool {
        if !matches!(self.phase, Phase::Closed) {
            return false;
        }
        self.watch(policy, verdict, now);
        self.judge(policy, now)
    }

    /// Feeds the window and decides nothing.
    pub(super) fn watch(&mut self, policy: &Policy, verdict: CallOutcome, now: Instant) {
        self.seen.push_back((now, verdict));
        self.forget_old(policy, now);
    }

    fn forget_old(&mut self, policy: &Policy, now: Instant) {
        match policy.window {
            CallWindow::Count(calls) => {
                while self.seen.len() > calls as usize {
                    self.seen.pop_front();
                }
            }
            CallWindow::Time(span) => {
                while self.seen.len() > MOST
                    || self
                        .seen
                        .front()
                        .is_some_and(|(at, _)| now.saturating_duration_since(*at) >= span)
                {
                    self.seen.pop_front();
                }
            }
        }
    }

    /// Opens if the window has too much. Whether it opened.
    pub(super) fn judge(&mut self, policy: &Policy, now: Instant) -> bool {
        self.forget_old(policy, now);
        let total = self.seen.len() as u64;
        let share = |of: fn(&CallOutcome) -> bool| {
            self.seen.iter().filter(|(_, verdict)| of(verdict)).count() as u64 * 1_000_000
        };
        let bad = policy.failures > 0 && share(|o| o.failed) >= policy.failures * total
            || policy.slow > 0 && share(|o| o.slow) >= policy.slow * total;
        if !bad || total < u64::from(policy.min_calls) {
            return false;
        }
        self.change_to(Phase::Open {
            until: now + policy.open_for,
        });
        true
    }

    /// Takes a probe's result; `None` if it was abandoned.
    pub(super) fn probed(&mut self, policy: &Policy, good: Option<bool>, now: Instant) {
        let Phase::HalfOpen { out, ok } = &mut self.phase else {
            return;
        };
        *out = out.saturating_sub(1);
        match good {
            None => {}
            Some(false) => self.change_to(Phase::Open {
                until: now + policy.open_for,
            }),
            Some(true) => {
                *ok += 1;
                if *ok >= policy.probes {
                    self.change_to(Phase::Closed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy {
            window: CallWindow::Count(10),
            min_calls: 4,
            failures: 500_000,
            slow: 0,
            slow_after: None,
            open_for: Duration::from_secs(30),
            probes: 2,
            distinct: 1,
            lease: Duration::from_secs(10),
        }
    }

    #[test]
    fn it_opens_probes_and_closes_without_the_store() {
        let (policy, start) = (policy(), Instant::now());
        let mut local = Local::new();
        let failed = CallOutcome {
            failed: true,
            slow: false,
        };
        for n in 0..4 {
            assert_eq!(local.record(&policy, failed, start), n == 3);
        }
        assert!(
            matches!(local.admit(&policy, start), Admit::Refused(left) if left == policy.open_for)
        );
        let later = start + policy.open_for;
        assert!(matches!(local.admit(&policy, later), Admit::Probe));
        assert!(matches!(local.admit(&policy, later), Admit::Probe));
        assert!(matches!(local.admit(&policy, later), Admit::Refused(_)));
        local.probed(&policy, Some(true), later);
        assert!(matches!(local.admit(&policy, later), Admit::Probe));
        local.probed(&policy, Some(true), later);
        assert!(matches!(local.admit(&policy, later), Admit::Call));
        // Old trouble is forgotten.
        assert!(!local.record(&policy, failed, later));
    }
}
