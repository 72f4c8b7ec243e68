//! Which subjects ask limiters the most, which are refused the most, and refusals over time.
//!
//! # Promises
//!
//! - Subjects that were checked, or refused, more often than one time in 64 since the running window of five minutes began
//!   are known.
//! - The true count of a listed subject is between `at_least` and `at_most`.
//!
//! # Limits
//!
//! Kept in the memory of this process: about 20 MB at most, for 256 limiters of which a namespace has at most 64; the one
//! that was not asked for the longest time makes room. Another instance counts for itself, and programs that use the
//! library are not seen. A subject above 200 bytes is listed by its beginning.
//!
//! # Round trips
//!
//! None: a check costs the store no more than before.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The time of one point of the history.
pub(crate) const EVERY: Duration = Duration::from_secs(3);
/// Ten minutes.
const POINTS: u64 = 200;
/// Counts are of the window that runs and of the one before it.
const WINDOW: Duration = Duration::from_secs(300);
const SUBJECTS: usize = 64;
const LONGEST_SUBJECT: usize = 200;
const LIMITERS: usize = 256;
const LIMITERS_OF_A_NAMESPACE: usize = 64;

/// The most frequent of many subjects, by the space-saving algorithm: a subject that is not known takes the place of the
/// rarest one, with its count. So no count is too low, and the places bound the error.
#[derive(Default)]
struct Frequent(HashMap<Box<str>, Count>);

#[derive(Clone, Copy, Default)]
struct Count {
    seen: u64,
    /// How many of these may be of subjects that were here before.
    inherited: u64,
}

impl Frequent {
    fn add(&mut self, subject: &str) {
        if let Some(count) = self.0.get_mut(subject) {
            count.seen += 1;
            return;
        }
        let mut inherited = 0;
        if self.0.len() >= SUBJECTS
            && let Some(rarest) = self.0.iter().min_by_key(|(_, count)| count.seen)
        {
            let name = rarest.0.clone();
            inherited = rarest.1.seen;
            self.0.remove(&name);
        }
        let count = Count {
            seen: inherited + 1,
            inherited,
        };
        self.0.insert(subject.into(), count);
    }

    /// The count of a subject; of one that is not listed, what it may have had.
    fn count(&self, subject: &str) -> Count {
        let unlisted = || match self.0.len() >= SUBJECTS {
            true => self.0.values().map(|count| count.seen).min().unwrap_or(0),
            false => 0,
        };
        self.0.get(subject).copied().unwrap_or_else(|| Count {
            seen: unlisted(),
            inherited: unlisted(),
        })
    }

    /// The subjects of two lists, most frequent first.
    fn together(&self, other: &Self, most: usize) -> Vec<Hottest> {
        let new = other.0.keys().filter(|name| !self.0.contains_key(*name));
        let mut all: Vec<Hottest> = self
            .0
            .keys()
            .chain(new)
            .map(|subject| {
                let (one, two) = (self.count(subject), other.count(subject));
                let at_most = one.seen + two.seen;
                Hottest {
                    subject: subject.to_string(),
                    at_least: at_most - one.inherited - two.inherited,
                    at_most,
                }
            })
            .collect();
        all.sort_by(|a, b| {
            let order = |hottest: &Hottest| (hottest.at_least, hottest.at_most);
            order(b)
                .cmp(&order(a))
                .then_with(|| a.subject.cmp(&b.subject))
        });
        all.truncate(most);
        all
    }
}

#[derive(Default)]
struct Window {
    checked: Frequent,
    refused: Frequent,
}

#[derive(Clone, Copy, Default)]
struct Point {
    allowed: u64,
    refused: u64,
}

/// What is known of one limiter.
#[derive(Default)]
struct Counted {
    /// Which check of the service was its last.
    used: u64,
    /// The windows since the start of the service, and the number of the newer one.
    windows: [Window; 2],
    window: u64,
    /// Oldest first; the last one is of `point`, a number since the start.
    history: VecDeque<Point>,
    point: u64,
}

impl Counted {
    fn new(now: Duration) -> Self {
        Self {
            window: number(now, WINDOW),
            point: number(now, EVERY),
            history: VecDeque::from([Point::default()]),
            ..Self::default()
        }
    }

    /// Makes place for what happens now.
    fn advance(&mut self, now: Duration) {
        let window = number(now, WINDOW);
        match window.saturating_sub(self.window) {
            0 => {}
            1 => {
                self.windows.swap(0, 1);
                self.windows[0] = Window::default();
            }
            _ => self.windows = Default::default(),
        }
        self.window = self.window.max(window);
        let point = number(now, EVERY);
        let behind = point.saturating_sub(self.point);
        for _ in 0..behind.min(POINTS) {
            if self.history.len() as u64 >= POINTS {
                self.history.pop_front();
            }
            self.history.push_back(Point::default());
        }
        self.point = self.point.max(point);
    }

    fn note(&mut self, subject: &str, allowed: bool) {
        self.windows[0].checked.add(subject);
        if !allowed {
            self.windows[0].refused.add(subject);
        }
        if let Some(point) = self.history.back_mut() {
            match allowed {
                true => point.allowed += 1,
                false => point.refused += 1,
            }
        }
    }
}

fn number(now: Duration, length: Duration) -> u64 {
    (now.as_millis() / length.as_millis()) as u64
}

/// A subject, and how often it came.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Hottest {
    pub(crate) subject: String,
    pub(crate) at_least: u64,
    pub(crate) at_most: u64,
}

impl Hottest {
    /// Whether this is the whole subject.
    pub(crate) fn is_whole(&self) -> bool {
        !self.subject.ends_with('…')
    }
}

/// What one limiter did lately.
#[derive(Debug, Default)]
pub(crate) struct Lately {
    /// The subjects that asked the most.
    pub(crate) checked: Vec<Hottest>,
    /// The subjects that were refused the most.
    pub(crate) refused: Vec<Hottest>,
    /// How many were allowed, and how many refused, in each [`EVERY`]; the newest is last.
    pub(crate) history: Vec<(u64, u64)>,
}

/// The limiters of this process.
pub(crate) struct Hot {
    begun: Instant,
    limiters: Mutex<Limiters>,
}

#[derive(Default)]
struct Limiters {
    /// By namespace, then by name.
    all: HashMap<String, HashMap<String, Counted>>,
    checks: u64,
}

impl Default for Hot {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            limiters: Mutex::default(),
        }
    }
}

impl Hot {
    /// Counts one check.
    pub(crate) fn note(&self, namespace: &str, name: &str, subject: &str, allowed: bool) {
        self.note_at(self.begun.elapsed(), namespace, name, subject, allowed);
    }

    fn note_at(&self, now: Duration, namespace: &str, name: &str, subject: &str, allowed: bool) {
        let short: String;
        let subject = match subject.len() > LONGEST_SUBJECT {
            true => {
                let end = subject.floor_char_boundary(LONGEST_SUBJECT);
                short = format!("{}…", &subject[..end]);
                &short
            }
            false => subject,
        };
        let mut limiters = self.limiters.lock();
        let limiters = &mut *limiters;
        limiters.checks += 1;
        let used = limiters.checks;
        let known = limiters.all.get_mut(namespace);
        let counted = match known.and_then(|limiters| limiters.get_mut(name)) {
            Some(counted) => counted,
            None => limiters.add(now, namespace, name),
        };
        counted.used = used;
        counted.advance(now);
        counted.note(subject, allowed);
    }

    /// The limiters of a namespace that were asked, in order.
    pub(crate) fn names(&self, namespace: &str) -> Vec<String> {
        let limiters = self.limiters.lock();
        let known = limiters.all.get(namespace).into_iter();
        let mut names: Vec<String> = known.flat_map(|of| of.keys().cloned()).collect();
        names.sort();
        names
    }

    /// What a limiter did lately, with up to `most` subjects in each list.
    pub(crate) fn lately(&self, namespace: &str, name: &str, most: usize) -> Lately {
        self.lately_at(self.begun.elapsed(), namespace, name, most)
    }

    fn lately_at(&self, now: Duration, namespace: &str, name: &str, most: usize) -> Lately {
        let mut limiters = self.limiters.lock();
        let known = limiters.all.get_mut(namespace);
        let Some(counted) = known.and_then(|of| of.get_mut(name)) else {
            return Lately::default();
        };
        counted.advance(now);
        let [new, old] = &counted.windows;
        Lately {
            checked: new.checked.together(&old.checked, most),
            refused: new.refused.together(&old.refused, most),
            history: counted
                .history
                .iter()
                .map(|point| (point.allowed, point.refused))
                .collect(),
        }
    }
}

impl Limiters {
    /// A limiter that is not known; another one makes room if there are too many.
    fn add(&mut self, now: Duration, namespace: &str, name: &str) -> &mut Counted {
        let own = self.all.get(namespace).map_or(0, HashMap::len);
        let total: usize = self.all.values().map(HashMap::len).sum();
        if own >= LIMITERS_OF_A_NAMESPACE || total >= LIMITERS {
            let full = own >= LIMITERS_OF_A_NAMESPACE;
            let some = self.all.iter().filter(|(of, _)| !full || *of == namespace);
            let oldest = some
                .flat_map(|(of, limiters)| limiters.iter().map(move |(name, c)| (c.used, of, name)))
                .min()
                .map(|(_, of, name)| (of.clone(), name.clone()));
            if let Some((of, name)) = oldest
                && let Some(limiters) = self.all.get_mut(&of)
            {
                limiters.remove(&name);
                if limiters.is_empty() {
                    self.all.remove(&of);
                }
            }
        }
        let limiters = self.all.entry(namespace.to_owned()).or_default();
        limiters
            .entry(name.to_owned())
            .or_insert_with(|| Counted::new(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::ZERO;

    fn subjects(list: &[Hottest]) -> Vec<&str> {
        list.iter().map(|one| one.subject.as_str()).collect()
    }

    #[test]
    fn hot_subjects_are_found_among_many_and_their_counts_are_bounds() {
        let hot = Hot::default();
        let mut truth: HashMap<String, u64> = HashMap::new();
        // Three hot ones in a flood of 5,000 that come once.
        for n in 0..5_000_u64 {
            let mut note = |subject: String| {
                hot.note_at(START, "n", "api", &subject, n % 2 == 0);
                *truth.entry(subject).or_default() += 1;
            };
            note(format!("once-{n}"));
            // Often enough to come back after another one took their place.
            note(format!("warm-{}", n % 97));
            for (at, every) in [2, 3, 5].into_iter().enumerate() {
                if n % every == 0 {
                    note(format!("hot-{at}"));
                }
            }
        }
        let lately = hot.lately_at(START, "n", "api", SUBJECTS);
        assert_eq!(
            subjects(&lately.checked)[..3],
            ["hot-0", "hot-1", "hot-2"],
            "{:?}",
            lately.checked
        );
        assert_eq!(lately.checked.len(), SUBJECTS);
        assert_eq!(hot.lately_at(START, "n", "api", 10).checked.len(), 10);
        for one in &lately.checked {
            let count = truth[&one.subject];
            assert!(
                (one.at_least..=one.at_most).contains(&count),
                "{one:?} came {count} times"
            );
        }
        // Refusals have a list of their own: hot-0 came only when everything was allowed.
        assert_eq!(subjects(&lately.refused)[..2], ["hot-1", "hot-2"]);
        let (allowed, refused) = lately.history[0];
        assert_eq!(allowed + refused, truth.values().sum::<u64>());
    }

    #[test]
    fn what_is_past_is_forgotten_window_by_window() {
        let hot = Hot::default();
        let note = |now, subject: &str| hot.note_at(now, "n", "api", subject, false);
        for _ in 0..3 {
            note(START, "first");
        }
        note(WINDOW, "second");
        let both = hot.lately_at(WINDOW, "n", "api", 10);
        assert_eq!(subjects(&both.refused), ["first", "second"]);
        let new = hot.lately_at(2 * WINDOW, "n", "api", 10);
        assert_eq!(subjects(&new.refused), ["second"]);
        let none = hot.lately_at(10 * WINDOW, "n", "api", 10);
        assert!(none.checked.is_empty() && none.refused.is_empty());
        assert_eq!(none.history.len() as u64, POINTS);
        assert!(none.history.iter().all(|point| *point == (0, 0)));
    }

    #[test]
    fn refusals_are_counted_in_the_time_in_which_they_came() {
        let hot = Hot::default();
        hot.note_at(START, "n", "api", "a", false);
        hot.note_at(EVERY * 2, "n", "api", "a", true);
        hot.note_at(EVERY * 2, "n", "api", "a", false);
        let lately = hot.lately_at(EVERY * 3, "n", "api", 1);
        assert_eq!(lately.history, [(0, 1), (0, 0), (1, 1), (0, 0)]);
    }

    #[test]
    fn names_and_subjects_of_a_clients_choice_fill_no_memory() {
        let hot = Hot::default();
        hot.note_at(START, "calm", "api", "ann", true);
        for n in 0..1_000 {
            hot.note_at(START, "wild", &format!("limiter-{n}"), "x", true);
            hot.note_at(START, "wild", "kept", &"é".repeat(300), true);
            for m in 0..3 {
                hot.note_at(START, &format!("n{n}"), &format!("l{m}"), "x", true);
            }
            hot.note_at(START, "calm", "api", "ann", true);
        }
        let total: usize = hot.limiters.lock().all.values().map(HashMap::len).sum();
        assert!(total <= LIMITERS, "{total}");
        assert!(hot.names("wild").len() <= LIMITERS_OF_A_NAMESPACE);
        assert_eq!(
            hot.lately_at(START, "calm", "api", 1).checked[0].at_least,
            1_001
        );
        let long = &hot.lately_at(START, "wild", "kept", 1).checked[0];
        assert!(long.subject.len() <= LONGEST_SUBJECT + 3 && !long.is_whole());
    }
}
