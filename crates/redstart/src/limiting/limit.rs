//! One limit of a limiter: its quota, its rule, its key.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    algorithm::Algorithm,
    decision::{DecidedBy, Snapshot},
    quota::Quota,
    rule::{Answer, Rule},
    waiters::Waiters,
};
use crate::error::Result;

/// The limits of one check, in order. There is at least one.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) list: Vec<Limit>,
    /// Tells these limits from others of the same limiter.
    pub(super) id: u64,
    /// Callers that wait under these limits.
    pub(super) waiters: Waiters,
}

impl Limits {
    pub(super) fn new(list: Vec<Limit>) -> Self {
        let parts: Vec<&str> = list.iter().map(|limit| limit.part.as_str()).collect();
        let id = xxhash_rust::xxh3::xxh3_64(parts.join(" ").as_bytes());
        Self {
            list,
            id,
            waiters: Waiters::default(),
        }
    }

    /// The highest possible cost, if one of these is above its limit's capacity.
    pub(super) fn never(&self, costs: &[u64]) -> Option<u64> {
        let limits = self.list.iter().zip(costs);
        limits
            .filter(|(limit, cost)| **cost > limit.rule.capacity())
            .map(|(limit, _)| limit.rule.capacity())
            .min()
    }
}

pub(super) struct Limit {
    pub(super) name: Arc<str>,
    pub(super) algorithm: Algorithm,
    pub(super) quota: Quota,
    pub(super) rule: Box<dyn Rule>,
    /// The part of the subject's keys under which the state is kept. It names the limit and all of its settings.
    pub(super) part: String,
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.name, self.algorithm, self.quota)
    }
}

impl Limit {
    /// `extra` limits have their name in their key; the first has that of the limiter, which is in every key.
    pub(super) fn new(
        name: &Arc<str>,
        extra: bool,
        algorithm: Algorithm,
        quota: Quota,
        refundable: bool,
    ) -> Result<Self> {
        let rule = algorithm.rule(quota, refundable)?;
        let fingerprint = algorithm.fingerprint(quota, refundable);
        Ok(Self {
            name: name.clone(),
            algorithm,
            quota,
            rule,
            part: match extra {
                true => format!("{name}:{fingerprint}"),
                false => fingerprint,
            },
        })
    }

    pub(super) fn snapshot(&self, answer: &Answer) -> Snapshot {
        Snapshot {
            name: self.name.clone(),
            limit: self.rule.capacity(),
            remaining: self.rule.remaining(answer.state),
            reset_after: self.rule.reset(answer.state, answer.reset),
            retry_after: match answer.wait {
                0 => Duration::ZERO,
                wait => self.rule.wait(wait),
            },
            decided_by: DecidedBy::Store,
        }
    }

    /// The snapshot of a decision that the policy made.
    pub(super) fn unknown(&self, remaining: u64, retry_after: Duration) -> Snapshot {
        Snapshot {
            name: self.name.clone(),
            limit: self.rule.capacity(),
            remaining,
            reset_after: retry_after,
            retry_after,
            decided_by: DecidedBy::Policy,
        }
    }
}
