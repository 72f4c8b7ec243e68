//! The breaker of this process alone, for as long as the store is down.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{Outcome, Policy, Window};

/// How many outcomes are remembered for a window of time.
const MOST: usize = 4096;

#[derive(Debug)]
pub(super) enum State {
    Closed,
    Open { until: Instant },
    HalfOpen { out: u32, ok: u32 },
}

/// The same policy on what this process saw itself. Distinct instances cannot be told, so one is enough.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) state: State,
    seen: VecDeque<(Instant, Outcome)>,
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
            state: State::Closed,
            seen: VecDeque::new(),
            generation: 0,
        }
    }

    pub(super) fn turn(&mut self, state: State) {
        self.state = state;
        self.generation += 1;
        self.seen.clear();
    }

    pub(super) fn admit(&mut self, policy: &Policy, now: Instant) -> Admit {
        if let State::Open { until } = self.state {
            if now < until {
                return Admit::Refused(until - now);
            }
            self.turn(State::HalfOpen { out: 0, ok: 0 });
        }
        match &mut self.state {
            State::HalfOpen { out, .. } if *out < policy.probes => {
                *out += 1;
                Admit::Probe
            }
            State::HalfOpen { .. } => Admit::Refused(Duration::from_millis(10)),
            _ => Admit::Call,
        }
    }

    /// Feeds the window while closed, and opens if that is too much. Whether it opened.
    pub(super) fn record(&mut self, policy: &Policy, outcome: Outcome, now: Instant) -> bool {
        if !matches!(self.state, State::Closed) {
            return false;
        }
        self.seen.push_back((now, outcome));
        match policy.window {
            Window::Count(calls) => {
                while self.seen.len() > calls as usize {
                    self.seen.pop_front();
                }
            }
            Window::Time(span) => {
                while self.seen.len() > MOST
                    || self.seen.front().is_some_and(|(at, _)| now - *at >= span)
                {
                    self.seen.pop_front();
                }
            }
        }
        let total = self.seen.len() as u64;
        let share = |of: fn(&Outcome) -> bool| {
            self.seen.iter().filter(|(_, outcome)| of(outcome)).count() as u64 * 1_000_000
        };
        let bad = policy.failures > 0 && share(|o| o.failed) >= policy.failures * total
            || policy.slow > 0 && share(|o| o.slow) >= policy.slow * total;
        if !bad || total < u64::from(policy.min_calls) {
            return false;
        }
        self.turn(State::Open {
            until: now + policy.open_for,
        });
        true
    }

    /// Takes a probe's result; `None` if it was abandoned.
    pub(super) fn probed(&mut self, policy: &Policy, good: Option<bool>, now: Instant) {
        let State::HalfOpen { out, ok } = &mut self.state else {
            return;
        };
        *out = out.saturating_sub(1);
        match good {
            None => {}
            Some(false) => self.turn(State::Open {
                until: now + policy.open_for,
            }),
            Some(true) => {
                *ok += 1;
                if *ok >= policy.probes {
                    self.turn(State::Closed);
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
            window: Window::Count(10),
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
    fn it_opens_probes_and_closes_by_itself() {
        let (policy, start) = (policy(), Instant::now());
        let mut local = Local::new();
        let failed = Outcome {
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
