//! What was found: a library, what it keeps, and why we think so.

use crate::{guess::Guess, library::Library, pattern, text::printable};

/// What [`recognise`](crate::recognise) found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recognition {
    /// Each library with each of its queues or kinds of keys; the surest first.
    pub found: Vec<Found>,
    /// The keys that were sampled.
    pub sampled: usize,
    /// Whether every key that matches the [budget](crate::Budget::matching)'s pattern was among them, and the budget was enough for
    /// every closer look that followed from them.
    pub complete: bool,
    /// The patterns of the sampled keys that no library owns, the most frequent first.
    pub unowned: Vec<pattern::Group>,
    /// What some of those may be, though no library owns them.
    pub guessed: Vec<Guess>,
}

impl Recognition {
    /// What owns a key, if a library does that was found with a confidence of at least 0.5.
    pub fn owner(&self, key: &[u8]) -> Option<&Found> {
        self.found
            .iter()
            .find(|found| found.confidence >= 0.5 && found.owns(key))
    }

    /// What was found of one library.
    pub fn of(&self, library: Library) -> impl Iterator<Item = &Found> {
        self.found
            .iter()
            .filter(move |found| found.library == library)
    }
}

/// One library with one queue or one kind of keys.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Found {
    /// The library.
    pub library: Library,
    /// Its version, or as much of it as the keys tell: `5.81.5`, `8`.
    pub version: Option<String>,
    /// From 0 to 1. Above 0.7 the keys' contents can hardly come from anything else; below, another program could have
    /// written them.
    pub confidence: f64,
    /// The queue (`bull:mail`) or the pattern of the keys (`sess:*`), [printable](crate::printable): control characters are
    /// replaced, so a name that has some is not the name of a key any more.
    pub subject: String,
    /// What speaks for it, in printable words for a person. Contains names of keys and fields; of values, only declared
    /// versions.
    pub evidence: Vec<String>,
    /// The job schedulers of a queue of BullMQ, or its repeatable jobs.
    pub schedulers: u64,
    /// The keys that belong to it.
    pub keys: KeySet,
}

impl Found {
    pub(crate) fn new(library: Library, subject: impl Into<String>, confidence: f64) -> Self {
        Self {
            library,
            version: None,
            confidence,
            subject: subject.into(),
            evidence: Vec::new(),
            schedulers: 0,
            keys: KeySet::default(),
        }
    }

    pub(crate) fn version(mut self, version: Option<String>) -> Self {
        self.version = version;
        self
    }

    pub(crate) fn because(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    pub(crate) fn keys(mut self, keys: KeySet) -> Self {
        self.keys = keys;
        self
    }

    pub(crate) fn schedulers(mut self, count: u64) -> Self {
        self.schedulers = count;
        self
    }

    /// Names of keys and versions are what others wrote: they must not steer what they are printed on.
    pub(crate) fn make_printable(&mut self) {
        self.subject = printable(&self.subject);
        self.version = self.version.as_deref().map(printable);
        for evidence in &mut self.evidence {
            *evidence = printable(evidence);
        }
    }

    /// Whether a key belongs to it.
    pub fn owns(&self, key: &[u8]) -> bool {
        self.keys.contains(key)
    }
}

/// A set of keys, by their names.
///
/// ```
/// use redstart_adopt::KeySet;
///
/// let keys = KeySet::default().key("queues").prefix("queue:").pattern("lock:*:owner");
/// assert!(keys.contains(b"queues"));
/// assert!(keys.contains(b"queue:default"));
/// assert!(keys.contains(b"lock:17:owner"));
/// assert!(!keys.contains(b"queues:x"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySet {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Key(Vec<u8>),
    Prefix(Vec<u8>),
    Pattern(Vec<u8>),
}

impl KeySet {
    /// One key.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.rules.push(Rule::Key(key.as_ref().to_owned()));
        self
    }

    /// All keys that begin with this.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.rules.push(Rule::Prefix(prefix.as_ref().to_owned()));
        self
    }

    /// All keys of a pattern, in which `*` stands for any bytes.
    #[must_use]
    pub fn pattern(mut self, pattern: impl AsRef<[u8]>) -> Self {
        self.rules.push(Rule::Pattern(pattern.as_ref().to_owned()));
        self
    }

    /// Whether a key is in the set.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.rules.iter().any(|rule| match rule {
            Rule::Key(exact) => key == exact,
            Rule::Prefix(prefix) => key.starts_with(prefix),
            Rule::Pattern(pattern) => pattern::matches(pattern, key),
        })
    }

    /// Whether no key can be in the set.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}
