//! What this process was refused, and until when.

use std::{hash::BuildHasher as _, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::decision::Snapshot;

/// How many refusals one set holds: the most that a call looks at.
const WAYS: usize = 8;

/// Remembers refusals. It never denies beyond the server's own answer: the time is counted from before the request was
/// sent, so it ends no later than the server said.
///
/// A subject belongs to one of many small sets, each behind its own lock, so that a flood of distinct subjects costs the
/// same bounded work per refusal at any size.
#[derive(Debug)]
pub(super) struct DenyCache {
    sets: Box<[Mutex<Set>]>,
    ways: usize,
    hasher: foldhash::fast::RandomState,
}

#[derive(Debug, Default)]
struct Set {
    denied: Vec<Denied>,
    /// How often a subject of this set was forgotten.
    forgotten: u64,
}

/// The moment before the store is asked about a subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) at: Instant,
    /// An answer from before a subject was forgotten is not remembered.
    pub(super) forgotten: u64,
}

#[derive(Debug)]
struct Denied {
    subject: Box<str>,
    /// The limits that refused.
    limits: u64,
    until: Instant,
    /// What was asked of each limit. A caller that asks less of one of them may be admitted, so it asks the server.
    costs: Box<[u64]>,
    snapshot: Snapshot,
}

impl DenyCache {
    pub(super) fn new(subjects: usize) -> Self {
        Self {
            sets: (0..(subjects / WAYS).max(1))
                .map(|_| Mutex::default())
                .collect(),
            ways: subjects.min(WAYS),
            hasher: foldhash::fast::RandomState::default(),
        }
    }

    fn set(&self, subject: &str) -> &Mutex<Set> {
        let hash = self.hasher.hash_one(subject) as usize;
        &self.sets[hash % self.sets.len()]
    }

    /// How often the subject, or another one of its set, was forgotten.
    pub(super) fn forgotten(&self, subject: &str) -> u64 {
        self.set(subject).lock().forgotten
    }

    /// How long the subject is still denied for, if it is.
    pub(super) fn get(
        &self,
        subject: &str,
        limits: u64,
        costs: &[u64],
        now: Instant,
    ) -> Option<(Duration, Snapshot)> {
        let set = self.set(subject).lock();
        let mut denied = set.denied.iter();
        let found = denied.find(|denied| denied.limits == limits && *denied.subject == *subject)?;
        let left = found.until.checked_duration_since(now)?;
        let covered = found.costs.iter().zip(costs).all(|(was, is)| is >= was);
        (covered && !left.is_zero()).then(|| (left, found.snapshot.clone()))
    }

    pub(super) fn put(
        &self,
        subject: &str,
        limits: u64,
        costs: &[u64],
        asked: Asked,
        now: Instant,
        snapshot: &Snapshot,
    ) {
        let Some(until) = asked.at.checked_add(snapshot.retry_after) else {
            return;
        };
        if until <= now {
            return;
        }
        let denied = Denied {
            subject: subject.into(),
            limits,
            until,
            costs: costs.into(),
            snapshot: snapshot.clone(),
        };
        let mut set = self.set(subject).lock();
        if set.forgotten != asked.forgotten {
            return;
        }
        let set = &mut set.denied;
        if let Some(known) = set
            .iter_mut()
            .find(|denied| denied.limits == limits && *denied.subject == *subject)
        {
            *known = denied;
        } else if set.len() < self.ways {
            set.push(denied);
        } else if let Some(first) = set.iter_mut().min_by_key(|denied| denied.until)
            && first.until <= until
        {
            // The refusal that ends first is worth least. One that is forgotten asks the server, which is only slower.
            *first = denied;
        }
    }

    /// After a refund, or anything else that may have made room. Answers that are on their way are not remembered either.
    fn forget(&self, subject: &str) {
        let mut set = self.set(subject).lock();
        set.forgotten = set.forgotten.wrapping_add(1);
        set.denied.retain(|denied| *denied.subject != *subject);
    }
}

/// A call that may make room for a subject: what was learned before it ends is forgotten when it ends or is dropped, since
/// nobody knows when the server carried it out.
#[must_use = "it ends when it is dropped"]
pub(super) struct MakesRoom<'a> {
    pub(super) deny: Option<&'a DenyCache>,
    pub(super) subject: &'a str,
}

impl Drop for MakesRoom<'_> {
    fn drop(&mut self) {
        if let Some(deny) = self.deny {
            deny.forget(self.subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::DecidedBy;

    fn refused(seconds: u64) -> Snapshot {
        Snapshot {
            name: "x".into(),
            limit: 1,
            remaining: 0,
            reset_after: Duration::ZERO,
            retry_after: Duration::from_secs(seconds),
            decided_by: DecidedBy::Store,
        }
    }

    #[test]
    fn a_refusal_from_before_room_was_made_is_not_remembered() {
        let (cache, now) = (DenyCache::new(64), Instant::now());
        let ask = || Asked {
            at: now,
            forgotten: cache.forgotten("s"),
        };
        let denied = || cache.get("s", 0, &[1], now).is_some();
        let asked = ask();
        cache.put("s", 0, &[1], asked, now, &refused(60));
        assert!(denied());
        let call = MakesRoom {
            deny: Some(&cache),
            subject: "s",
        };
        let during = ask();
        drop(call);
        assert!(!denied());
        // Answers that were on their way.
        cache.put("s", 0, &[1], asked, now, &refused(60));
        cache.put("s", 0, &[1], during, now, &refused(60));
        assert!(!denied());
        cache.put("s", 0, &[1], ask(), now, &refused(60));
        assert!(denied());
    }

    #[test]
    fn a_flood_of_distinct_subjects_costs_bounded_work_and_memory() {
        let now = Instant::now();
        let asked = Asked {
            at: now,
            forgotten: 0,
        };
        for subjects in [1, 7, 10, 4096] {
            let cache = DenyCache::new(subjects);
            for n in 0..subjects * 10 {
                cache.put(&n.to_string(), 0, &[1], asked, now, &refused(60));
            }
            let sizes: Vec<usize> = cache
                .sets
                .iter()
                .map(|set| set.lock().denied.len())
                .collect();
            assert!(sizes.iter().all(|size| *size <= WAYS), "{sizes:?}");
            assert!(sizes.iter().sum::<usize>() <= subjects, "{sizes:?}");
            // A refusal that lasts is not pushed out by a flood of short ones.
            cache.put("long", 0, &[1], asked, now, &refused(3600));
            for n in 0..subjects * 10 {
                cache.put(&n.to_string(), 0, &[1], asked, now, &refused(60));
            }
            assert!(cache.get("long", 0, &[1], now).is_some());
            assert!(cache.get("long", 1, &[1], now).is_none());
        }
    }
}
