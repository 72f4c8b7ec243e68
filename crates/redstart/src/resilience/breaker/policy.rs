//! When a circuit opens and closes.

use std::time::Duration;

/// Which calls decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallWindow {
    /// The last calls of the whole fleet, up to this number.
    Count(u32),
    /// The calls of this last time, counted in tenths of it.
    Time(Duration),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallOutcome {
    pub(super) failed: bool,
    pub(super) slow: bool,
}

impl CallOutcome {
    pub(super) fn letter(self) -> char {
        match (self.failed, self.slow) {
            (false, false) => 'o',
            (true, false) => 'f',
            (false, true) => 's',
            (true, true) => 'b',
        }
    }

    pub(super) fn is_good(self) -> bool {
        !self.failed && !self.slow
    }
}

#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) window: CallWindow,
    pub(super) min_calls: u32,
    /// Per million.
    pub(super) failures: u64,
    pub(super) slow: u64,
    pub(super) slow_after: Option<Duration>,
    pub(super) open_for: Duration,
    pub(super) probes: u32,
    pub(super) distinct: u32,
    pub(super) lease: Duration,
}
