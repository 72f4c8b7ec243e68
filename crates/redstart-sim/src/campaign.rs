//! Many worlds, one after the other, and what they showed.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{Outcome, Pattern, Plan, Tally, mutation::Mutation, run};

/// Which worlds to run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The first seed; the others follow.
    pub first: u64,
    /// How many seeds.
    pub seeds: u64,
    /// The patterns, in turn.
    pub patterns: Vec<Pattern>,
    /// Ends it earlier.
    pub within: Option<Duration>,
    /// How many threads run worlds.
    pub jobs: usize,
    /// Runs every world twice: the trace must be the same.
    pub twice: bool,
}

/// A world in which a promise was broken.
#[derive(Debug)]
pub struct Failure {
    /// The world.
    pub plan: Plan,
    /// What was broken.
    pub breaches: Vec<String>,
}

/// What a campaign showed.
#[derive(Debug, Default)]
pub struct Report {
    /// How many worlds were run.
    pub worlds: u64,
    /// How many events happened in them.
    pub events: u64,
    /// How much time passed in them.
    pub simulated: Duration,
    /// How long that took on a core, over all threads.
    pub took: Duration,
    /// The faults that really happened, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// What each pattern showed.
    pub patterns: BTreeMap<&'static str, Share>,
    /// The broken ones.
    pub failures: Vec<Failure>,
}

/// The worlds of one pattern.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// How many there were.
    pub worlds: u64,
    /// How much time passed in them.
    pub simulated: Duration,
    /// How long that took on a core.
    pub took: Duration,
    /// Faults that really happened.
    pub faults: u64,
    /// What the clients met.
    pub tally: Tally,
}

impl Share {
    /// Simulated seconds per second of one core.
    pub fn speed(&self) -> f64 {
        self.simulated.as_secs_f64() / self.took.as_secs_f64().max(1e-9)
    }

    /// How many of a hundred calls ended with an error.
    pub fn failed(&self) -> f64 {
        let Tally {
            succeeded, failed, ..
        } = self.tally;
        100.0 * failed as f64 / (succeeded + failed).max(1) as f64
    }
}

impl Report {
    /// Simulated seconds per second of one core.
    pub fn speed(&self) -> f64 {
        self.simulated.as_secs_f64() / self.took.as_secs_f64().max(1e-9)
    }
}

impl Campaign {
    /// Which pattern a seed is for.
    pub fn pattern_of(&self, seed: u64) -> Pattern {
        self.patterns[(seed % self.patterns.len() as u64) as usize]
    }

    /// Runs the worlds. `heard` is called after each.
    pub fn run(&self, heard: &(dyn Fn(&Plan, &Outcome) + Sync)) -> Report {
        let next = AtomicU64::new(0);
        let over = AtomicBool::new(false);
        let began = Instant::now();
        let report = Mutex::new(Report::default());
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let late = self.within.is_some_and(|within| began.elapsed() >= within);
                if number >= self.seeds || late || over.load(Ordering::Relaxed) {
                    break;
                }
                let seed = self.first.wrapping_add(number);
                let plan = Plan::new(seed, self.pattern_of(seed));
                let before = on_core();
                let mut outcome = run(&plan, false, None);
                let took = on_core().saturating_sub(before);
                if self.twice && run(&plan, false, None).hash != outcome.hash {
                    let text = "another trace in the second run";
                    outcome.breaches.push(text.to_owned());
                }
                heard(&plan, &outcome);
                let mut report = report.lock();
                for (name, count) in &outcome.faults {
                    *report.faults.entry(name).or_default() += count;
                }
                report.worlds += 1;
                report.events += outcome.events;
                report.simulated += outcome.simulated;
                report.took += took;
                let share = report.patterns.entry(plan.pattern.name()).or_default();
                share.worlds += 1;
                share.simulated += outcome.simulated;
                share.took += took;
                share.faults += outcome.faults.values().sum::<u64>();
                share.tally.add(&outcome.tally);
                if !outcome.breaches.is_empty() {
                    report.failures.push(Failure {
                        plan,
                        breaches: outcome.breaches,
                    });
                    // Enough to work on.
                    over.fetch_or(report.failures.len() >= 200, Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(work);
            }
        });
        let mut report = report.into_inner();
        report.failures.sort_by_key(|failure| failure.plan.seed);
        report
    }
}

/// How long this thread has run on a core; on other systems, the time of day.
fn on_core() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = stat
        .as_deref()
        .and_then(|stat| stat.split(' ').next()?.parse().ok());
    match nanos {
        Some(nanos) => Duration::from_nanos(nanos),
        None => {
            static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
            START.get_or_init(Instant::now).elapsed()
        }
    }
}

/// The first of these seeds whose world shows that something is missing, and what it shows. The same world must be whole
/// if nothing is missing.
pub fn find(mutation: &Mutation, first: u64, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|number| {
        let plan = Plan::new(first + number, mutation.pattern);
        let outcome = run(&plan, false, Some(mutation));
        let breach = outcome.breaches.into_iter().next()?;
        let whole = run(&plan, false, None).breaches.is_empty();
        whole.then_some((number + 1, breach))
    })
}
