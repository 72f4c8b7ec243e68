//! What happened in a world: a hash to compare, and lines to read.

use std::{fmt, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The record of one world.
pub struct Trace {
    start: Instant,
    inner: Mutex<Inner>,
}

struct Inner {
    hash: u64,
    events: u64,
    lines: Option<Vec<Line>>,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub struct Line {
    /// When, since the world began.
    pub at: Duration,
    /// Who did it or suffered it.
    pub who: String,
    /// What happened.
    pub what: String,
}

impl Trace {
    /// A record that begins now; with lines, or only the hash.
    pub fn new(with_lines: bool) -> Self {
        Self {
            start: Instant::now(),
            inner: Mutex::new(Inner {
                hash: 0,
                events: 0,
                lines: with_lines.then(Vec::new),
            }),
        }
    }

    /// The time since the world began.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Records bytes that arrived somewhere.
    pub fn bytes(&self, place: u64, bytes: &[u8]) {
        let at = self.now().as_nanos() as u64;
        let mut inner = self.inner.lock();
        let seed = inner.hash ^ place.rotate_left(32) ^ at;
        inner.hash = xxh3_64_with_seed(bytes, seed);
        inner.events += 1;
    }

    /// Records an event.
    pub fn note(&self, who: impl fmt::Display, what: fmt::Arguments<'_>) {
        let at = self.now();
        let (who, what) = (who.to_string(), what.to_string());
        let mut inner = self.inner.lock();
        let seed = inner.hash ^ at.as_nanos() as u64;
        inner.hash = xxh3_64_with_seed(what.as_bytes(), xxh3_64_with_seed(who.as_bytes(), seed));
        inner.events += 1;
        if let Some(lines) = &mut inner.lines {
            lines.push(Line { at, who, what });
        }
    }

    /// Whether lines are kept.
    pub fn has_lines(&self) -> bool {
        self.inner.lock().lines.is_some()
    }

    /// A line for people only.
    pub fn aside(&self, who: impl fmt::Display, what: fmt::Arguments<'_>) {
        let at = self.now();
        if let Some(lines) = &mut self.inner.lock().lines {
            lines.push(Line {
                at,
                who: who.to_string(),
                what: what.to_string(),
            });
        }
    }

    /// The hash, the number of events, and the lines.
    pub fn end(&self) -> (u64, u64, Vec<Line>) {
        let mut inner = self.inner.lock();
        let lines = inner.lines.take().unwrap_or_default();
        (inner.hash, inner.events, lines)
    }
}
