//! What the limits by window have in common: a number of units in a number of ticks, and scripts that count them.

use std::time::Duration;

use super::rule::Rule;
use crate::script::Script;

/// A limit of a number of units per window.
#[derive(Debug)]
pub(super) struct WindowRule {
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
    /// Whether each request needs a unique id.
    pub(super) needs_id: bool,
}

impl WindowRule {
    fn ticks(&self, ticks: u64) -> Duration {
        let nanos = u64::try_from(self.tick.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(ticks.saturating_mul(nanos))
    }
}

impl Rule for WindowRule {
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn check_script(&self) -> &'static Script {
        self.check
    }

    fn refund_script(&self) -> Option<&'static Script> {
        Some(self.refund)
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn needs_id(&self) -> bool {
        self.needs_id
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
