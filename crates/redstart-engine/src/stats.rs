//! What the engine counts and measures: for INFO, SLOWLOG, LATENCY and MONITOR.
//!
//! Every command is counted. A command of a listener's client is timed; so is one in this process,
//! unless its work is constant, of which every sixteenth is timed and stands for the others: reading
//! the clock twice would cost more than such a command itself. Of commands that a client sent at once,
//! each begins when the one before ends, so that the clock is read once for each.
//! The time in which a reply of less than 1 MiB is encoded counts for the next of them.

pub(crate) mod commandlog;
#[cfg(test)]
mod cost;
pub(crate) mod histogram;
pub(crate) mod latency;
pub(crate) mod monitor;
pub(crate) mod process;
pub(crate) mod slowlog;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use hashbrown::HashTable;

use crate::registry::{Spec, flag};
use histogram::Histogram;

/// One in this many quick commands in this process is timed.
const SAMPLE: u64 = 16;
/// How much of a script's error is kept.
const RAISED: usize = 128;
/// How many kinds of errors are told apart.
const ERRORS: usize = 128;

/// Counters for INFO; CONFIG RESETSTAT sets them back.
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) commands: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) expired: u64,
    pub(crate) evicted: u64,
    pub(crate) connections: u64,
    /// Connections that were refused because there were too many.
    pub(crate) rejected: u64,
    pub(crate) errors: u64,
    /// Elements that commands with a limit looked at, and entries that active expiry did: a measure
    /// of work that tests can rely on.
    pub(crate) visited: u64,
    /// By the address of the command's description.
    usage: HashTable<(&'static Spec, Usage)>,
    /// By the first word of the error.
    pub(crate) kinds: BTreeMap<String, u64>,
    /// The last error of a command that a script called: the script may answer with it.
    raised: String,
    /// The most memory that was in use.
    pub(crate) peak: u64,
    rates: Rates,
    /// Microseconds that were spent on looking for expired keys.
    pub(crate) expire_micros: u64,
    /// When the last command ended, if the next one follows at once.
    ended: Option<Instant>,
}

/// How a command was used.
#[derive(Default)]
pub(crate) struct Usage {
    pub(crate) calls: u64,
    pub(crate) micros_times_1000: u64,
    /// Refused before they ran.
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
    pub(crate) latency: Histogram,
}

/// A command that is being timed.
pub(crate) struct Timer {
    began: Instant,
    /// How many commands it stands for.
    weight: u64,
    /// The next command may begin where this one ends.
    chained: bool,
}

/// How long a command took.
pub(crate) struct Took {
    pub(crate) nanos: u64,
    weight: u64,
    /// When the next command begins.
    next: Option<Instant>,
}

impl Timer {
    #[inline]
    pub(crate) fn stop(self) -> Took {
        let ended = Instant::now();
        let nanos = ended.duration_since(self.began).as_nanos();
        Took {
            nanos: u64::try_from(nanos).unwrap_or(u64::MAX / SAMPLE),
            weight: self.weight,
            next: self.chained.then_some(ended),
        }
    }
}

fn place(spec: &'static Spec) -> u64 {
    (std::ptr::from_ref(spec) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Stats {
    /// Begins to time a command, if that is worth it. Those that a client called itself are `chained`.
    #[inline]
    pub(crate) fn timer(
        &mut self,
        spec: &'static Spec,
        networked: bool,
        chained: bool,
    ) -> Option<Timer> {
        let weight = if networked || !is_quick(spec) {
            1
        } else if self.commands.is_multiple_of(SAMPLE) {
            SAMPLE
        } else {
            return None;
        };
        let chained = chained && networked;
        let before = self.ended.filter(|_| chained);
        Some(Timer {
            began: before.unwrap_or_else(Instant::now),
            weight,
            chained,
        })
    }

    /// Time passes that belongs to no command.
    #[inline]
    pub(crate) fn pause(&mut self) {
        self.ended = None;
    }

    #[inline]
    fn usage(&mut self, spec: &'static Spec) -> &mut Usage {
        let entry = self.usage.entry(
            place(spec),
            |(other, _)| std::ptr::eq(*other, spec),
            |(other, _)| place(other),
        );
        &mut entry
            .or_insert_with(|| (spec, Usage::default()))
            .into_mut()
            .1
    }

    /// A command has run, and took so long if it was timed.
    #[inline]
    pub(crate) fn ran(
        &mut self,
        spec: &'static Spec,
        failed: bool,
        took: Option<&Took>,
        tracked: bool,
    ) {
        let usage = self.usage(spec);
        usage.calls += 1;
        usage.failed += u64::from(failed);
        if let Some(took) = took {
            usage.micros_times_1000 += took.nanos * took.weight;
            if tracked {
                usage.latency.record(took.nanos, took.weight);
            }
            self.ended = took.next;
        }
    }

    pub(crate) fn refused(&mut self, spec: &'static Spec) {
        self.usage(spec).rejected += 1;
    }

    /// All commands that were used, in the order of their names.
    pub(crate) fn used(&self) -> Vec<(&'static Spec, &Usage)> {
        let mut all: Vec<_> = self
            .usage
            .iter()
            .map(|(spec, usage)| (*spec, usage))
            .collect();
        all.sort_by_key(|(spec, _)| spec.full_name);
        all
    }

    /// Counts an error reply. What a script answers with because a command in it failed was counted
    /// when that failed.
    pub(crate) fn error(&mut self, text: &str) {
        if !self.raised.is_empty() && text.starts_with(&self.raised) {
            self.raised.clear();
            return;
        }
        self.errors += 1;
        let kind = kind(text);
        let room = self.kinds.len() < ERRORS;
        match self.kinds.get_mut(kind) {
            Some(count) => *count += 1,
            None if room => {
                self.kinds.insert(kind.to_owned(), 1);
            }
            None => {}
        }
    }

    /// As [`Stats::error`], for a command that a script called.
    pub(crate) fn error_in_script(&mut self, text: &str) {
        self.raised.clear();
        self.error(text);
        // Enough to know it again: a script may make texts of any length.
        let mut end = text.len().min(RAISED);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.raised.push_str(&text[..end]);
    }

    /// A client's command is over: what its script met is of no more interest.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if !self.raised.is_empty() {
            self.raised.clear();
        }
    }

    /// Takes a sample of what rises, for the rates.
    pub(crate) fn sample(&mut self, traffic: Option<&Traffic>, used_memory: u64) {
        self.peak = self.peak.max(used_memory);
        let load = |count: fn(&Traffic) -> &AtomicU64| {
            traffic.map_or(0, |traffic| count(traffic).load(Ordering::Relaxed))
        };
        let now = [self.commands, load(|t| &t.input), load(|t| &t.output)];
        self.rates.add(Instant::now(), now);
    }

    /// Commands, bytes read and bytes written, each per second.
    pub(crate) fn rates(&self) -> [f64; 3] {
        self.rates.now()
    }
}

/// The first word of an error, as the server takes it: what has no blank within its first bytes is
/// counted as `ERR`.
fn kind(text: &str) -> &str {
    const LONGEST: usize = 32;
    match text.find(' ') {
        Some(end) if end < LONGEST && text[..end].bytes().all(|b| b.is_ascii_graphic()) => {
            &text[..end]
        }
        _ => "ERR",
    }
}

/// Whether a command's work does not grow with the data.
fn is_quick(spec: &Spec) -> bool {
    spec.is(flag::FAST) || matches!(spec.full_name, "set" | "setex" | "psetex" | "getset")
}

/// What the listener moved. Counted without the engine's lock.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) input: AtomicU64,
    pub(crate) output: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
}

impl Traffic {
    pub(crate) fn read(&self, bytes: usize) {
        self.input.fetch_add(bytes as u64, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        self.output.fetch_add(bytes as u64, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn reset(&self) {
        for count in [&self.input, &self.output, &self.reads, &self.writes] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// Three counts over the last moments: sixteen samples, about a tenth of a second apart.
#[derive(Default)]
struct Rates {
    samples: std::collections::VecDeque<(Instant, [u64; 3])>,
}

impl Rates {
    fn add(&mut self, now: Instant, counts: [u64; 3]) {
        // The counts may have been set back.
        if self
            .samples
            .back()
            .is_some_and(|(_, last)| last[0] > counts[0])
        {
            self.samples.clear();
        }
        if self.samples.len() == 16 {
            self.samples.pop_front();
        }
        self.samples.push_back((now, counts));
    }

    fn now(&self) -> [f64; 3] {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return [0.0; 3];
        };
        let seconds = last.0.duration_since(first.0).as_secs_f64();
        // Long silence is no rate: nobody sampled meanwhile.
        if seconds <= 0.0 || last.0.elapsed() > Duration::from_secs(2) {
            return [0.0; 3];
        }
        std::array::from_fn(|at| last.1[at].saturating_sub(first.1[at]) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_a_script_passes_on_is_counted_once() {
        let mut stats = Stats::default();
        stats.error_in_script("WRONGTYPE no");
        stats.error("WRONGTYPE no script: abc");
        stats.settle();
        assert_eq!(stats.errors, 1);
        stats.error_in_script("WRONGTYPE no");
        stats.error("MY own");
        stats.settle();
        assert_eq!(stats.errors, 3);
        stats.error("WRONGTYPE no");
        assert_eq!(stats.kinds["WRONGTYPE"], 3);
    }

    #[test]
    fn words_of_scripts_take_up_little() {
        let mut stats = Stats::default();
        let long = "A".repeat(1 << 20);
        for number in 0..300 {
            stats.error_in_script(&format!("{long}{number} x"));
            stats.error(&format!("K{number} x"));
            stats.settle();
        }
        assert_eq!(stats.errors, 600);
        assert_eq!(stats.kinds.len(), ERRORS);
        assert!(stats.kinds.keys().all(|kind| kind.len() <= 32));
        assert_eq!(stats.kinds["ERR"], 300);
        assert!(stats.raised.capacity() <= 2 * RAISED);
    }

    #[test]
    fn rates_are_per_second() {
        let mut rates = Rates::default();
        let start = Instant::now();
        for step in 0..40u32 {
            let counts = [u64::from(step) * 10, u64::from(step) * 1000, 0];
            rates.add(start + Duration::from_millis(100) * step, counts);
        }
        assert_eq!(rates.now().map(f64::round), [100.0, 10_000.0, 0.0]);
    }
}
