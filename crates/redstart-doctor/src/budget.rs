//! How much an examination may ask for.

use std::time::Duration;

/// Bounds of an examination.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    /// Names that are walked, over all nodes.
    pub(crate) names: u64,
    /// How long the walk may take.
    pub(crate) walk: Duration,
    /// The time between the two looks.
    pub(crate) gap: Duration,
    /// How long MONITOR runs.
    pub(crate) observe: Duration,
    /// MONITOR lines, over all nodes.
    pub(crate) lines: u64,
    /// How long one command may take before the connection is given up.
    pub(crate) patience: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            names: 1_000_000,
            walk: Duration::from_secs(20),
            gap: Duration::from_secs(2),
            observe: Duration::from_secs(10),
            lines: 5_000_000,
            patience: Duration::from_secs(3),
        }
    }
}
