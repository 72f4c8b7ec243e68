//! How much an examination may ask for, and from when on its rules are sure.

use std::time::Duration;

use crate::throttle;

/// Ages and sizes from which rules are sure. A server that lives shorter, or a test, has others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// A server that has run for this long has the settings that it is meant to have.
    pub(crate) settled: Duration,
    /// A client or consumer that has asked for nothing for this long is idle.
    pub(crate) idle: Duration,
    /// A replica that has acknowledged nothing for this long lags.
    pub(crate) lag: Duration,
    /// A key with this many commands a second is busy.
    pub(crate) busy: u64,
    /// The memory that the server may use, where that is less than its host has.
    pub(crate) memory: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            settled: Duration::from_secs(24 * 60 * 60),
            idle: Duration::from_secs(5 * 60),
            lag: Duration::from_secs(5),
            busy: 2_000,
            memory: None,
        }
    }
}

/// Bounds of an examination.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    /// Names that are walked, over all nodes.
    pub(crate) names: u64,
    /// How long each of these may take: the walk, the look at keys, the look at streams, the second look at keys.
    pub(crate) walk: Duration,
    /// How long libraries may be recognised.
    pub(crate) recognise: Duration,
    /// The time between the two looks.
    pub(crate) gap: Duration,
    /// How long MONITOR runs.
    pub(crate) observe: Duration,
    /// MONITOR lines, over all nodes.
    pub(crate) lines: u64,
    /// How long one command may take before the connection is given up.
    pub(crate) patience: Duration,
    /// The share of a server's time that is taken, in percent.
    pub(crate) share: u8,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            names: 1_000_000,
            walk: Duration::from_secs(60),
            recognise: Duration::from_secs(15),
            gap: Duration::from_secs(2),
            observe: Duration::from_secs(10),
            lines: 5_000_000,
            patience: Duration::from_secs(3),
            share: throttle::SHARE,
        }
    }
}
