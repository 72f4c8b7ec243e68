//! Limits that this process keeps by itself while the store is down: its share of the quota.

use std::{hash::BuildHasher as _, num::NonZeroU32, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::limit::{Limit, Limits};

const WAYS: usize = 8;
const SETS: usize = 1024;

/// A token bucket for each subject and limit, for a bounded number of subjects.
pub(super) struct Share {
    fleet: NonZeroU32,
    begun: Instant,
    sets: Box<[Mutex<Vec<Kept>>]>,
    hasher: foldhash::fast::RandomState,
}

struct Kept {
    subject: Box<str>,
    limits: u64,
    /// For each limit, when all that was taken will have come back: nanoseconds since `begun`.
    free_at: Box<[u128]>,
}

impl Share {
    pub(super) fn new(fleet: NonZeroU32, now: Instant) -> Self {
        Self {
            fleet,
            begun: now,
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
            hasher: foldhash::fast::RandomState::default(),
        }
    }

    /// Takes the costs from this process's share of all limits, or says how long to wait.
    pub(super) fn take(
        &self,
        limits: &Limits,
        subject: &str,
        costs: &[u64],
        now: Instant,
    ) -> Result<(), Duration> {
        let now = now.saturating_duration_since(self.begun).as_nanos();
        let hash = self.hasher.hash_one(subject) as usize;
        let mut set = self.sets[hash % self.sets.len()].lock();
        let known = set
            .iter()
            .position(|kept| kept.limits == limits.id && *kept.subject == *subject);
        let free_at = |at: usize| known.map_or(0, |known| set[known].free_at[at]);
        let mut after = Vec::with_capacity(limits.list.len());
        let mut wait = 0;
        for (at, (limit, cost)) in limits.list.iter().zip(costs).enumerate() {
            let (unit, room) = self.share(limit, *cost);
            let free_at = free_at(at).max(now) + unit * u128::from(*cost);
            wait = wait.max(free_at.saturating_sub(now + room));
            after.push(free_at);
        }
        if wait > 0 {
            return Err(Duration::from_nanos(
                u64::try_from(wait).unwrap_or(u64::MAX),
            ));
        }
        let kept = Kept {
            subject: subject.into(),
            limits: limits.id,
            free_at: after.into(),
        };
        match known {
            Some(known) => set[known] = kept,
            None if set.len() < WAYS => set.push(kept),
            None => {
                // The one that owes least loses least.
                let owes = |kept: &Kept| kept.free_at.iter().max().copied();
                if let Some(least) = set.iter_mut().min_by_key(|kept| owes(kept)) {
                    *least = kept;
                }
            }
        }
        Ok(())
    }

    /// How many nanoseconds one unit of the share takes, and for how long units may be taken in advance. One request is
    /// always admitted if nothing was taken before, also if it costs more than the share.
    fn share(&self, limit: &Limit, cost: u64) -> (u128, u128) {
        let fleet = u128::from(self.fleet.get());
        let quota = limit.quota;
        let unit = (quota.period().as_nanos() * fleet).div_ceil(u128::from(quota.units()));
        let burst = (u128::from(limit.rule.capacity()) / fleet)
            .max(u128::from(cost))
            .max(1);
        (unit, unit * burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::{Algorithm, Quota};

    #[test]
    fn the_shares_of_a_fleet_admit_the_quota_together() {
        let limit = |quota| {
            let limit = Limit::new(&"x".into(), false, Algorithm::TokenBucket, quota, false);
            Limits::new(vec![limit.unwrap()])
        };
        let limits = limit(Quota::per_second(100).burst(40));
        let begun = Instant::now();
        let fleet: Vec<Share> = (0..4)
            .map(|_| Share::new(NonZeroU32::new(4).unwrap(), begun))
            .collect();
        let mut admitted = 0;
        for ms in 0..=2000 {
            let now = begun + Duration::from_millis(ms);
            for share in &fleet {
                while share.take(&limits, "s", &[1], now).is_ok() {
                    admitted += 1;
                }
            }
        }
        // The burst, and two seconds of the rate.
        assert!((230..=240).contains(&admitted), "{admitted}");
        let wait = fleet[0].take(&limits, "s", &[1], begun + Duration::from_secs(2));
        let wait = wait.unwrap_err();
        assert!(
            wait > Duration::ZERO && wait <= Duration::from_millis(40),
            "{wait:?}"
        );
        let later = begun + Duration::from_secs(2) + wait;
        assert!(
            fleet[0].take(&limits, "s", &[1], later).is_ok(),
            "the wait is enough"
        );
        assert!(
            fleet[0].take(&limits, "other", &[40], later).is_ok(),
            "one large request passes"
        );
        assert!(fleet[0].take(&limits, "other", &[1], later).is_err());
    }
}
