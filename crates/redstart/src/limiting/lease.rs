//! Units of hot subjects that this process has taken from the store in a block and hands out by itself.
//!
//! # Why the sum never exceeds the quota
//!
//! What is handed out was taken from the store before, so over all time no more is admitted than was taken. What is left
//! is that a unit is spent later than it was taken. A block of a fixed window is spent only within the window that it
//! was taken from. A block of a token bucket is spent within `keep` of the request that took it, and all leasing
//! processes leave `rate * keep` of the capacity untouched. So in any interval from `a` to `b`
//!
//! ```text
//! spent in [a, b]  <=  taken in [a - keep, b]
//!                  <=  (capacity - rate * keep) + rate * (b - a + keep)
//!                   =  capacity + rate * (b - a)
//! ```
//!
//! which is what a token bucket without leases admits. Time is counted from before the request was sent, so a clock that
//! runs at the right speed is enough. A process that dies takes its units with it: less is admitted, never more.

use std::{hash::BuildHasher as _, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    algorithm::Algorithm,
    decision::{DecidedBy, Snapshot},
    deny::Asked,
    limit::Limit,
    quota::Quota,
};
use crate::error::{Error, Result};

/// How long a block may be spent at most.
const KEEP: Duration = Duration::from_millis(100);
/// What is left untouched for the sake of late spending: one in so many of the capacity.
const RESERVE: u64 = 10;
/// How many subjects one set holds: the most that a call looks at.
const WAYS: usize = 8;
const SETS: usize = 512;

/// The blocks of this process, for a bounded number of subjects.
pub(super) struct Leases {
    block: u64,
    keep: Duration,
    sets: Box<[Mutex<Set>]>,
    hasher: foldhash::fast::RandomState,
}

#[derive(Default)]
struct Set {
    leases: Vec<Lease>,
    /// How often a subject of this set was forgotten.
    forgotten: u64,
}

struct Lease {
    subject: Box<str>,
    units: u64,
    /// When what is left of the block is void.
    until: Instant,
    /// Units that were asked for since the block was taken, and when that was.
    wanted: u64,
    since: Instant,
    snapshot: Snapshot,
    turn: Arc<Turn>,
}

/// Whose turn it is to ask the store for a subject. The others wait for what that one brings.
#[derive(Default)]
pub(super) struct Turn {
    line: tokio::sync::Mutex<()>,
    heard: Mutex<Told>,
}

/// What the store told those whose turn it was.
#[derive(Default)]
struct Told {
    /// How often it has told something.
    times: u64,
    last: Option<Answered>,
    refused: Option<(u64, Answered)>,
}

#[derive(Clone)]
struct Answered {
    cost: u64,
    /// When the wait that it named ends.
    until: Instant,
    snapshot: Snapshot,
}

/// The shortest wait that is named where the moment to ask again has come: zero would be no refusal.
const TICK: Duration = Duration::from_millis(1);

impl Answered {
    /// A refusal of a request of this cost, which the store was not asked for.
    fn refusal(&self, cost: u64, now: Instant) -> Snapshot {
        let left = match cost < self.cost {
            // There may be room for less.
            true => Duration::ZERO,
            false => self.until.saturating_duration_since(now),
        };
        let mut snapshot = self.snapshot.clone();
        snapshot.decided_by = DecidedBy::DenyCache;
        snapshot.retry_after = if left.is_zero() { TICK } else { left };
        snapshot
    }
}

impl Turn {
    /// Waits until those in front have been answered.
    pub(super) async fn take(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.line.lock().await
    }

    /// How often the store has told something.
    pub(super) fn heard(&self) -> u64 {
        self.heard.lock().times
    }

    /// The store has told this. The wait is counted from now, as by the caller that asked: from before it asked, those who share
    /// the refusal would come back too early.
    pub(super) fn hear(&self, cost: u64, now: Instant, snapshot: Snapshot) {
        let mut heard = self.heard.lock();
        heard.times += 1;
        let answered = Answered {
            cost,
            until: now.checked_add(snapshot.retry_after).unwrap_or(now),
            snapshot,
        };
        if !answered.snapshot.retry_after.is_zero() {
            heard.refused = Some((heard.times, answered.clone()));
        }
        heard.last = Some(answered);
    }

    /// The refusal of what does not cost more, if the store told it while the caller waited. The caller shares it even if
    /// the moment that it named has come: those in line would otherwise ask one after the other, whatever the store says.
    pub(super) fn refused_since(&self, times: u64, cost: u64, now: Instant) -> Option<Snapshot> {
        let heard = self.heard.lock();
        let (at, refused) = heard.refused.as_ref()?;
        (*at > times && cost >= refused.cost).then(|| refused.refusal(cost, now))
    }

    /// What a caller is told that has waited for as long as it may, if the store has refused meanwhile: it is not down, and the
    /// caller was not asked for. After another answer there may be room.
    pub(super) fn too_late(&self, times: u64, cost: u64, now: Instant) -> Option<Snapshot> {
        let heard = self.heard.lock();
        let last = heard.last.as_ref().filter(|_| heard.times > times)?;
        (!last.snapshot.retry_after.is_zero()).then(|| last.refusal(cost, now))
    }
}

impl Leases {
    /// The leases, and the limit as it is asked for: of a token bucket, a part of the capacity is left untouched.
    pub(super) fn new(block: u64, limit: &Limit, refundable: bool) -> Result<(Self, Limit)> {
        let quota = limit.quota;
        let (keep, asked) = match limit.algorithm {
            Algorithm::FixedWindow => (KEEP.min(quota.period() / 2), quota),
            Algorithm::TokenBucket if !refundable => {
                let reserve = quota.capacity() / RESERVE;
                // As long as the reserve takes to come back, and not a nanosecond longer.
                let nanos =
                    u128::from(reserve) * quota.period().as_nanos() / u128::from(quota.units());
                let keep = u64::try_from(nanos)
                    .map_or(KEEP, Duration::from_nanos)
                    .min(KEEP);
                if keep < Duration::from_millis(1) {
                    return Err(Error::config(
                        "the capacity of this token bucket is too small to be leased in blocks",
                    ));
                }
                let reserve = late(quota, keep);
                (keep, quota.burst(quota.capacity() - reserve))
            }
            _ => {
                return Err(Error::config(
                    "only fixed windows and token buckets without refunds are leased in blocks",
                ));
            }
        };
        if block < 2 || block > asked.capacity() / 2 {
            return Err(Error::config(format!(
                "a block must have from 2 units to half of the capacity, {}",
                asked.capacity() / 2
            )));
        }
        let mut asked = Limit::new(&limit.name, false, limit.algorithm, asked, refundable)?;
        // The state is that of the limit itself.
        asked.part.clone_from(&limit.part);
        asked.quota = quota;
        let leases = Self {
            block,
            keep,
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
            hasher: foldhash::fast::RandomState::default(),
        };
        Ok((leases, asked))
    }

    fn set(&self, subject: &str) -> &Mutex<Set> {
        let hash = self.hasher.hash_one(subject) as usize;
        &self.sets[hash % self.sets.len()]
    }

    /// Takes from the block that is here.
    pub(super) fn spend(&self, subject: &str, cost: u64, now: Instant) -> Option<Snapshot> {
        let mut set = self.set(subject).lock();
        let lease = set
            .leases
            .iter_mut()
            .find(|lease| *lease.subject == *subject)?;
        lease.wanted = lease.wanted.saturating_add(cost);
        if now >= lease.until || lease.units < cost {
            return None;
        }
        lease.units -= cost;
        Some(lease.snapshot.clone())
    }

    /// Whose turn it is to ask the store for this subject. `None` for one that is not known, or not hot.
    pub(super) fn turn(&self, subject: &str) -> Option<Arc<Turn>> {
        let set = self.set(subject).lock();
        let lease = set.leases.iter().find(|lease| *lease.subject == *subject)?;
        Some(lease.turn.clone())
    }

    /// A line that does not move: the one whose turn it is may never be polled again. Those who come later begin another one.
    pub(super) fn leave_line(&self, subject: &str, turn: &Arc<Turn>) {
        let mut set = self.set(subject).lock();
        if let Some(lease) = set
            .leases
            .iter_mut()
            .find(|lease| *lease.subject == *subject)
            && Arc::ptr_eq(&lease.turn, turn)
        {
            lease.turn = Arc::default();
        }
    }

    /// How many units to take for a request of this cost: as many as will be asked for while they may be spent.
    pub(super) fn units(&self, subject: &str, cost: u64, now: Instant) -> u64 {
        let set = self.set(subject).lock();
        let Some(lease) = set.leases.iter().find(|lease| *lease.subject == *subject) else {
            return cost;
        };
        let elapsed = now.saturating_duration_since(lease.since).as_nanos().max(1);
        let expected = u128::from(lease.wanted) * self.keep.as_nanos() / elapsed;
        // At most twice of what was seen, so that one burst does not take the block of a day.
        let expected = expected.min(2 * u128::from(lease.wanted));
        u64::try_from(expected)
            .unwrap_or(self.block)
            .clamp(cost, self.block.max(cost))
    }

    /// Keeps what a block has beyond the request that took it, unless the subject was forgotten since the store was asked.
    pub(super) fn put(
        &self,
        subject: &str,
        units: u64,
        limit: &Limit,
        asked: Asked,
        now: Instant,
        mut snapshot: Snapshot,
    ) {
        let keep = match limit.algorithm {
            // The end of the window is told in whole milliseconds, rounded up.
            Algorithm::FixedWindow => {
                let window = snapshot
                    .reset_after
                    .saturating_sub(Duration::from_millis(1));
                self.keep.min(window)
            }
            _ => self.keep,
        };
        let until = asked.at.checked_add(keep).unwrap_or(asked.at);
        snapshot.decided_by = DecidedBy::Lease;
        let mut set = self.set(subject).lock();
        if set.forgotten != asked.forgotten {
            return;
        }
        if let Some(lease) = set
            .leases
            .iter_mut()
            .find(|lease| *lease.subject == *subject)
        {
            lease.units = units;
            lease.until = until;
            lease.wanted = 0;
            lease.since = now;
            lease.snapshot = snapshot;
            return;
        }
        let lease = Lease {
            subject: subject.into(),
            units,
            until,
            wanted: 0,
            since: now,
            snapshot,
            turn: Arc::default(),
        };
        if set.leases.len() < WAYS {
            set.leases.push(lease);
        } else if let Some(oldest) = set.leases.iter_mut().min_by_key(|lease| lease.until) {
            // Its units are lost: less is admitted, never more.
            *oldest = lease;
        }
    }

    /// How often the subject, or another one of its set, was forgotten.
    pub(super) fn forgotten(&self, subject: &str) -> u64 {
        self.set(subject).lock().forgotten
    }

    /// For a call that forgets at the store what the subject has taken: its block is void now, and one that is taken while
    /// the call runs when it ends or is dropped.
    pub(super) fn void<'a>(&'a self, subject: &'a str) -> Void<'a> {
        self.forget(subject);
        Void {
            leases: self,
            subject,
        }
    }

    fn forget(&self, subject: &str) {
        let mut set = self.set(subject).lock();
        set.forgotten = set.forgotten.wrapping_add(1);
        set.leases.retain(|lease| *lease.subject != *subject);
    }
}

/// A call that makes blocks void is under way.
#[must_use = "it ends when it is dropped"]
pub(super) struct Void<'a> {
    leases: &'a Leases,
    subject: &'a str,
}

impl Drop for Void<'_> {
    fn drop(&mut self) {
        self.leases.forget(self.subject);
    }
}

/// Units that come back within `keep`, rounded up.
fn late(quota: Quota, keep: Duration) -> u64 {
    let units = (u128::from(quota.units()) * keep.as_nanos()).div_ceil(quota.period().as_nanos());
    u64::try_from(units).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(algorithm: Algorithm, quota: Quota) -> Limit {
        Limit::new(&"x".into(), false, algorithm, quota, false).unwrap()
    }

    /// Otherwise those in line ask one after the other where the store is further away than the wait is long.
    #[test]
    fn a_refusal_that_ended_on_its_way_is_shared_by_those_who_waited_for_it() {
        let limit = limit(Algorithm::TokenBucket, Quota::per_second(1000));
        let (turn, heard) = (Turn::default(), Instant::now());
        let before = turn.heard();
        let now = heard + Duration::from_millis(50);
        assert!(turn.refused_since(before, 5, now).is_none());
        assert!(
            turn.too_late(before, 5, now).is_none(),
            "the store has said nothing"
        );
        turn.hear(5, heard, limit.unknown(0, Duration::from_millis(2)));
        for cost in [5, 6] {
            let refusal = turn.refused_since(before, cost, now).unwrap();
            assert_eq!(refusal.decided_by, DecidedBy::DenyCache);
            assert_eq!(refusal.retry_after, TICK);
        }
        assert!(
            turn.refused_since(before, 4, now).is_none(),
            "there may be room for less"
        );
        assert!(
            turn.refused_since(turn.heard(), 5, now).is_none(),
            "it came before the caller"
        );
        // A caller that has waited for as long as it may is refused, whatever it costs: the store is there.
        assert!(turn.too_late(before, 1, now).is_some());
        // A block was refused: how long a smaller request has to wait was not said.
        turn.hear(100, now, limit.unknown(0, Duration::from_secs(9)));
        assert_eq!(turn.too_late(before, 1, now).unwrap().retry_after, TICK);
        let same = turn.too_late(before, 100, now).unwrap();
        assert_eq!(same.retry_after, Duration::from_secs(9));
        // The last that was heard was no refusal.
        turn.hear(1, now, limit.unknown(3, Duration::ZERO));
        assert!(turn.too_late(before, 1, now).is_none());
    }

    /// The one that asked begins to wait when it hears the answer, and so do those who share it.
    #[test]
    fn the_wait_of_a_shared_refusal_is_counted_from_when_it_was_heard() {
        let limit = limit(Algorithm::TokenBucket, Quota::per_second(1000));
        let (turn, heard) = (Turn::default(), Instant::now());
        let told = Duration::from_secs(2);
        turn.hear(5, heard, limit.unknown(0, told));
        let at_once = turn.refused_since(0, 5, heard).unwrap();
        assert_eq!(at_once.retry_after, told);
        assert_eq!(
            at_once.decided_by,
            DecidedBy::DenyCache,
            "the store was not asked for this request"
        );
        let later = turn.refused_since(0, 5, heard + Duration::from_secs(1));
        assert_eq!(later.unwrap().retry_after, Duration::from_secs(1));
    }

    #[test]
    fn a_block_from_before_a_reset_is_not_kept() {
        let limit = limit(Algorithm::FixedWindow, Quota::per_day(1000));
        let (leases, _) = Leases::new(100, &limit, false).unwrap();
        let now = Instant::now();
        let ask = || Asked {
            at: now,
            forgotten: leases.forgotten("s"),
        };
        let put = |asked| {
            let mut snapshot = limit.unknown(500, Duration::ZERO);
            snapshot.reset_after = Duration::from_secs(60);
            leases.put("s", 10, &limit, asked, now, snapshot);
        };
        let before = ask();
        let reset = leases.void("s");
        let during = ask();
        put(during);
        assert!(leases.spend("s", 1, now).is_some());
        drop(reset);
        assert!(leases.spend("s", 1, now).is_none());
        for late in [before, during] {
            put(late);
            assert!(leases.spend("s", 1, now).is_none());
        }
        put(ask());
        assert!(leases.spend("s", 1, now).is_some());
    }

    #[test]
    fn what_is_spent_late_is_taken_off_the_capacity() {
        for (quota, block) in [
            (Quota::per_second(1000), 100),
            (Quota::per_second(10).burst(1000), 50),
            (Quota::per_minute(7).burst(70), 5),
            (Quota::per_second(100_000), 1000),
        ] {
            let limit = limit(Algorithm::TokenBucket, quota);
            let (leases, asked) = Leases::new(block, &limit, false).unwrap();
            let reserve = quota.capacity() - asked.rule.capacity();
            let late = late(quota, leases.keep);
            assert!(
                reserve >= late && reserve <= quota.capacity() / RESERVE + 1,
                "{quota:?}"
            );
            assert_eq!(asked.part, limit.part, "the state is shared");
        }
    }

    #[test]
    fn what_cannot_be_leased_is_refused() {
        let new =
            |algorithm, quota, block| Leases::new(block, &limit(algorithm, quota), false).err();
        let wide = Quota::per_second(1000);
        for (algorithm, quota, block) in [
            (Algorithm::TokenBucket, Quota::per_second(5), 2),
            (Algorithm::TokenBucket, wide, 1),
            (Algorithm::TokenBucket, wide, 451),
            (Algorithm::FixedWindow, wide, 501),
            (Algorithm::SlidingWindow, wide, 10),
            (Algorithm::SlidingCounter, wide, 10),
        ] {
            let error = new(algorithm, quota, block);
            assert!(
                error.is_some_and(|error| error.is_config()),
                "{algorithm} {block}"
            );
        }
        assert!(new(Algorithm::TokenBucket, wide, 450).is_none());
        assert!(new(Algorithm::FixedWindow, wide, 500).is_none());
    }
}
