//! The answer to a check.

use std::{fmt, sync::Arc, time::Duration};

use super::limiter::Limiter;

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecidedBy {
    /// The store.
    Store,
    /// This process, which remembers a refusal of the store.
    DenyCache,
    /// This process, out of a [block](super::LimiterBuilder::lease_blocks) that it took from the store.
    Lease,
    /// The [`Down`](crate::Down) policy, because the store is down.
    Policy,
    /// [Shadow mode](super::LimiterBuilder::shadow): without it, the request would have been refused.
    Shadow,
}

/// One limit of a subject, at the moment of the check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The limit's name; that of the first limit is the limiter's.
    pub name: Arc<str>,
    /// The most that can be taken at once.
    pub limit: u64,
    /// What is left now.
    pub remaining: u64,
    /// How long until all of it is available again, if nothing more is taken.
    pub reset_after: Duration,
    /// How long the request has to wait; zero if it does not. For a [peek](Limiter::peek): a request of cost 1.
    pub retry_after: Duration,
    /// Who decided.
    pub decided_by: DecidedBy,
}

/// The answer to a check.
#[derive(Debug)]
#[must_use = "a limiter whose decision is ignored limits nothing"]
pub enum Decision {
    /// Go ahead.
    Allowed(Grant),
    /// Not now.
    Limited {
        /// Exact: without other traffic, waiting this long is enough, and one tick less is not.
        retry_after: Duration,
        /// The limit with the longest wait.
        snapshot: Snapshot,
    },
    /// Never: the cost is above the capacity. Waiting does not help; splitting the request does.
    Never {
        /// The highest cost that can be admitted.
        max: u64,
    },
}

impl Decision {
    /// Whether the request may go ahead.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// The grant, if the request may go ahead.
    pub fn allowed(self) -> Option<Grant> {
        match self {
            Self::Allowed(grant) => Some(grant),
            _ => None,
        }
    }

    /// How long to wait; `None` if the request was allowed, or never will be.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }
}

/// What was taken. Keep it to [refund](Limiter::refund) it; otherwise drop it.
pub struct Grant {
    pub(super) limiter: Limiter,
    pub(super) subject: Box<str>,
    pub(super) costs: Box<[u64]>,
    pub(super) receipts: Vec<String>,
    pub(super) snapshots: Vec<Snapshot>,
}

impl Grant {
    /// The tightest of the limits, after this request was admitted.
    pub fn snapshot(&self) -> &Snapshot {
        tightest(&self.snapshots)
    }

    /// All limits, in the order in which the limiter was given them.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// What the request cost in each limit.
    pub fn costs(&self) -> &[u64] {
        &self.costs
    }

    /// Who decided.
    pub fn decided_by(&self) -> DecidedBy {
        self.snapshots[0].decided_by
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("costs", &self.costs)
            .field("snapshots", &self.snapshots)
            .finish_non_exhaustive()
    }
}

/// The limit with the longest wait, or the least left in proportion. A limiter has at least one limit.
pub(super) fn tightest(snapshots: &[Snapshot]) -> &Snapshot {
    let share = |s: &Snapshot| u128::from(s.remaining) * 1_000_000 / u128::from(s.limit.max(1));
    snapshots
        .iter()
        .min_by_key(|s| (std::cmp::Reverse(s.retry_after), share(s)))
        .unwrap_or(&snapshots[0])
}
