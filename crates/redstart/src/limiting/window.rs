//! What the limits by window have in common: so many units in so many ticks, and scripts that count them.

use std::time::Duration;

use super::{limiter::Kind, rule::Rule};
use crate::script::Script;

/// A limit of so many units a window.
#[derive(Debug)]
pub(super) struct Windowed {
    pub(super) kind: Kind,
    /// The rule's name in the script that asks several.
    pub(super) name: &'static str,
    pub(super) check: &'static Script,
    pub(super) refund: &'static Script,
    pub(super) limit: u64,
    /// In ticks.
    pub(super) window: u64,
    pub(super) tick: Duration,
    /// What one unit adds to the state.
    pub(super) unit: u64,
    /// Whether what is admitted needs a name of its own.
    pub(super) names_requests: bool,
}

impl Windowed {
    fn ticks(&self, ticks: u64) -> Duration {
        let nanos = u64::try_from(self.tick.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(ticks.saturating_mul(nanos))
    }
}

impl Rule for Windowed {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn check(&self) -> &'static Script {
        self.check
    }

    fn refund(&self) -> Option<&'static Script> {
        Some(self.refund)
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn names_requests(&self) -> bool {
        self.names_requests
    }

    fn args(&self, cost: u64) -> [u64; 3] {
        [cost, self.limit, self.window]
    }

    fn refund_args(&self, cost: u64, receipt: &str) -> Vec<String> {
        vec![
            cost.to_string(),
            self.window.to_string(),
            receipt.to_owned(),
        ]
    }

    fn wait(&self, ticks: u64) -> Duration {
        self.ticks(ticks)
    }

    fn remaining(&self, state: u64) -> u64 {
        (self.limit * self.unit).saturating_sub(state) / self.unit
    }

    fn reset(&self, _state: u64, reset: u64) -> Duration {
        self.ticks(reset)
    }
}
