//! The settings of a limiter.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    algorithm::Algorithm,
    deny::DenyCache,
    lease::Leases,
    limit::{Limit, Limits},
    limiter::{Inner, Limiter},
    quota::Quota,
    share::Share,
};
use crate::{
    Down,
    error::{Error, Result},
    key::{Keys, Layout},
    store::Store,
};

/// How many limits one limiter may have.
const MAX_LIMITS: usize = 16;

/// Settings of a [`Limiter`]. See [`build`](Self::build) for what is checked.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct LimiterBuilder {
    store: Store,
    namespace: String,
    name: String,
    layout: Option<Layout>,
    first: (Algorithm, Quota),
    more: Vec<(String, Algorithm, Quota)>,
    refundable: bool,
    down: Down,
    deny: Option<usize>,
    block: Option<u64>,
    shadow: bool,
}

impl LimiterBuilder {
    pub(super) fn new(
        store: &Store,
        namespace: &str,
        name: &str,
        algorithm: Algorithm,
        quota: Quota,
    ) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            layout: None,
            first: (algorithm, quota),
            more: Vec::new(),
            refundable: false,
            down: Down::Fail,
            deny: None,
            block: None,
            shadow: false,
        }
    }

    /// What a check answers while the store is down. Default: [`Down::Fail`].
    ///
    /// [`Down::Refuse`] is [`Decision::Limited`](super::Decision::Limited) for a second, [`Down::Allow`] is
    /// [`Decision::Allowed`](super::Decision::Allowed). [`Down::Local`] keeps this process's share of each quota by
    /// itself, as a token bucket, for up to 8192 subjects at a time.
    pub fn on_store_down(mut self, down: Down) -> Self {
        self.down = down;
        self
    }

    /// Adds a limit that every request must also keep, such as one per day beside one per second. All limits of a
    /// limiter are asked in one script, and a request takes from all of them or from none.
    pub fn and(mut self, name: &str, algorithm: Algorithm, quota: Quota) -> Self {
        self.more.push((name.to_owned(), algorithm, quota));
        self
    }

    /// Lets token buckets keep the account that a [refund](Limiter::refund) needs, at some cost for each check. Windows
    /// do not need it.
    pub fn refundable(mut self) -> Self {
        self.refundable = true;
        self
    }

    /// Remembers up to `subjects` refusals in this process and answers their repeats without a round trip, never longer
    /// than the server itself said. It is the fast path under attack. When it is full, refusals that end first make room.
    ///
    /// Room that a refund of another process made is seen only when the server's answer has run out.
    /// After a suspend, remembered refusals last longer by the time of the suspend, because the process's clock stopped.
    pub fn deny_cache(mut self, subjects: usize) -> Self {
        self.deny = Some(subjects);
        self
    }

    /// Takes the units of hot subjects in blocks of up to `units` and hands them out without a round trip. Blocks grow
    /// with the demand: a subject that is rarely asked for is checked as without this.
    ///
    /// The sum over all processes never exceeds the quota, also when processes die. For that, a block is spent within
    /// 100 ms or given up, and a token bucket leaves so much of its capacity untouched as comes back in that time, at most
    /// a tenth; so [`Snapshot::limit`](super::Snapshot::limit) is lower. All processes should lease alike: what those
    /// take that do not may be exceeded by that tenth. Units of a block that another process needs are refused to it until
    /// they have come back. A [refund](Limiter::refund) of what came out of a block gives nothing back.
    ///
    /// Of the callers of a hot subject, one at a time asks the store. The others wait for its block, or share its refusal
    /// ([`DecidedBy::DenyCache`](super::DecidedBy::DenyCache)), but no longer than half of the deadline of the store, nor than an
    /// [`acquire`](Limiter::acquire) may wait. Then they ask for themselves, unless the store refused the last one that asked.
    ///
    /// For one limit, by token bucket or fixed window. Decisions are [`DecidedBy::Lease`](super::DecidedBy::Lease).
    pub fn lease_blocks(mut self, units: u64) -> Self {
        self.block = Some(units);
        self
    }

    /// Admits what would be refused, and counts it as the event `limiter.shadowed`: to see what a quota would do before
    /// it does it. Such a decision is [`DecidedBy::Shadow`](super::DecidedBy::Shadow), and takes nothing.
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Makes keys from the application's own names. The limiter's parts are added to them.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Makes the limiter. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if a quota is zero, too long or too large to be counted exactly, a window has a
    /// burst or is not a whole number of milliseconds, the name of a further limit is empty, used twice or has other
    /// characters than letters, digits and `- _ .`, blocks are leased of several limits, of a window that slides, of a
    /// capacity that is too small, or of more than half of it, or the namespace or the name breaks the
    /// [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<Limiter> {
        if self.more.len() >= MAX_LIMITS {
            return Err(Error::config(format!(
                "a limiter must have at most {MAX_LIMITS} limits"
            )));
        }
        if self.deny == Some(0) {
            return Err(Error::config(
                "a deny cache of zero subjects remembers nothing",
            ));
        }
        let mut keys = Keys::named(&self.namespace, "limiter", &self.name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        let name: Arc<str> = self.name.into();
        let (algorithm, quota) = self.first;
        let mut limits = vec![Limit::new(&name, false, algorithm, quota, self.refundable)?];
        for (name, algorithm, quota) in self.more {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) {
                return Err(Error::config(
                    "the name of a limit must have 1 to 64 letters, digits and - _ .",
                ));
            }
            if limits.iter().any(|limit| *limit.name == *name) {
                return Err(Error::config(format!(
                    "two limits of one limiter have the same name {name:?}"
                )));
            }
            let name = name.into();
            limits.push(Limit::new(&name, true, algorithm, quota, self.refundable)?);
        }
        let leases = match self.block {
            None => None,
            Some(_) if limits.len() > 1 => {
                return Err(Error::config("only a single limit is leased in blocks"));
            }
            Some(block) => {
                let (leases, asked) = Leases::new(block, &limits[0], self.refundable)?;
                limits[0] = asked;
                Some(leases)
            }
        };
        let clock = self.store.clock();
        let share = match self.down {
            Down::Local(fleet) => Some(Share::new(fleet, clock.now())),
            _ => None,
        };
        let limits = Arc::new(Limits::new(limits));
        let inner = Inner {
            clock,
            leases,
            share,
            shadow: self.shadow,
            store: self.store,
            keys,
            limits: limits.clone(),
            refundable: self.refundable,
            down: self.down,
            deny: self.deny.map(DenyCache::new),
            other_quotas: Mutex::default(),
        };
        Ok(Limiter {
            inner: Arc::new(inner),
            limits,
        })
    }
}
