//! How much a look may cost.

use std::time::Duration;

/// How much [`recognise`](crate::recognise) may ask of a server. All of it only reads.
///
/// ```
/// use redstart_adopt::Budget;
///
/// let small = Budget::default().keys(500).looks(100);
/// ```
#[derive(Clone, Debug)]
pub struct Budget {
    pub(crate) keys: usize,
    pub(crate) looks: usize,
    pub(crate) each: usize,
    pub(crate) matching: String,
    pub(crate) time: Duration,
}

impl Default for Budget {
    /// 5,000 keys by SCAN on each node, 1,200 keys looked at closer, at most 15 s.
    fn default() -> Self {
        Self {
            keys: 5_000,
            looks: 1_200,
            each: 4,
            matching: "*".to_owned(),
            time: Duration::from_secs(15),
        }
    }
}

impl Budget {
    /// The keys that SCAN returns on each node (default 5,000).
    #[must_use]
    pub fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// The keys that are looked at closer: type, length, first bytes, names of fields (default 1,200).
    #[must_use]
    pub fn looks(mut self, looks: usize) -> Self {
        self.looks = looks;
        self
    }

    /// Only keys that match this glob pattern are sampled (default all). Keys of a library that are found through
    /// others are looked at even if they do not match.
    #[must_use]
    pub fn matching(mut self, glob: &str) -> Self {
        self.matching = glob.to_owned();
        self
    }

    /// After this time no further look is begun (default 15 s).
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }
}
