//! Libraries that are recognised by the keys they keep.
//!
//! A library's own keys get no general findings: what looks like a fault there (a list that is popped, a hash
//! without TTL) is part of a protocol that the library looks after. Rules of their own speak about them.
//!
//! Recognition by contents is `redstart-adopt`'s, over a bounded number of keys. The signs in this file are names
//! only, seen during the walk over all names, so that a queue is known even if it is one among a million keys.

use std::{collections::BTreeMap, sync::Arc};

use redstart_adopt::{Found, Library as Known, Recognition};

/// A library that was found.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub(crate) name: String,
    /// Which names are its own.
    pub(crate) owns: Vec<Owns>,
}

/// How a library's keys are told from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owns {
    Prefix(Vec<u8>),
    Name(Vec<u8>),
    Suffix(Vec<u8>),
    /// `<namespace>:<pattern>[.<name>]:{<entity>}[:<part>]`
    RedstartKeys,
}

impl Owns {
    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Prefix(prefix) => name.starts_with(prefix),
            Self::Name(own) => name == own,
            Self::Suffix(suffix) => name.ends_with(suffix),
            Self::RedstartKeys => is_redstart(name),
        }
    }
}

/// From this confidence on, a recognised library owns its keys.
const ENOUGH: f64 = 0.7;

/// A library's name in reports.
fn title(found: &Found) -> &'static str {
    match found.library {
        Known::BullMq => "BullMQ",
        Known::Bull => "Bull",
        Known::Sidekiq => "Sidekiq",
        Known::Celery => "Celery",
        Known::Rq => "RQ",
        Known::Dramatiq => "Dramatiq",
        Known::Redisson => "Redisson",
        Known::SpringSession => "Spring Session",
        Known::Redstart => "Redstart",
        other => other.name(),
    }
}

/// The libraries of one server, and what was found in their keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Libraries {
    pub(crate) found: Vec<Library>,
    pub(crate) bull: Vec<BullQueue>,
    pub(crate) sidekiq: Option<Sidekiq>,
    pub(crate) celery: Option<Celery>,
    /// What the contents of keys say.
    recognised: Option<Arc<Recognition>>,
}

/// One queue of BullMQ.
#[derive(Clone, Debug, Default)]
pub(crate) struct BullQueue {
    pub(crate) name: String,
    pub(crate) version: Option<String>,
    /// On the second look.
    pub(crate) version_later: Option<String>,
    /// Where it is: the number of the node, and the beginning of its keys.
    pub(crate) place: (usize, Vec<u8>),
    pub(crate) wait: u64,
    pub(crate) paused: u64,
    pub(crate) active: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    /// Ids in lists whose job hash is missing, of those that were checked.
    pub(crate) missing: u64,
    pub(crate) checked: u64,
    /// Job hashes that no list or set mentions, of those that were checked.
    pub(crate) orphans: u64,
    pub(crate) jobs_checked: u64,
    /// Active jobs without a lock on both looks.
    pub(crate) unlocked: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sidekiq {
    pub(crate) processes: u64,
    /// Processes that no longer beat and still have work.
    pub(crate) dead_with_work: u64,
    pub(crate) work: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Celery {
    pub(crate) unacked: u64,
    /// Seconds since the oldest unacknowledged message was delivered.
    pub(crate) oldest: f64,
    /// Messages whose ETA lies beyond the visibility time-out.
    pub(crate) far_eta: u64,
}

/// Key prefixes that belong to one library only.
const PREFIXES: &[(&str, &str)] = &[
    ("asynq:", "asynq"),
    ("rq:", "RQ"),
    ("resque:", "Resque"),
    ("dramatiq:", "Dramatiq"),
    ("arq:", "arq"),
    ("bq:", "Bee-Queue"),
    ("huey.", "Huey"),
    ("hangfire:", "Hangfire"),
    ("spring:session:", "Spring Session"),
    ("rlflx:", "rate-limiter-flexible"),
    ("socket.io#", "Socket.IO"),
    ("redisson", "Redisson"),
    ("flower", "Flower"),
    ("apalis:", "Apalis"),
    ("laravel_database_queues:", "Laravel"),
    ("laravel_horizon:", "Laravel Horizon"),
];

/// Names of the patterns that Redstart writes into its keys.
const REDSTART: &[&str] = &[
    "activity",
    "array",
    "auction",
    "behind",
    "bloom",
    "board",
    "breaker",
    "bucket",
    "cache",
    "cache-bus",
    "cache-index",
    "cache-tag",
    "cart",
    "check_ins",
    "counter",
    "cuckoo",
    "dedup",
    "event",
    "events",
    "fair",
    "feed",
    "fenced",
    "filter",
    "fixed",
    "flight",
    "follow",
    "gauge",
    "geo",
    "graph",
    "hll",
    "idempotency",
    "index",
    "inventory",
    "job",
    "jobs",
    "kv",
    "leader",
    "leaderboard",
    "limit",
    "limiter",
    "lock",
    "log",
    "mutex",
    "notice",
    "notification",
    "outbox",
    "page",
    "place",
    "places",
    "presence",
    "queue",
    "redlock",
    "rwlock",
    "schedule",
    "semaphore",
    "session",
    "sessions",
    "sharded",
    "sliding",
    "sorted",
    "stock",
    "store",
    "stream",
    "tag",
    "tags",
    "timeline",
    "timer",
    "token",
    "topic",
    "topics",
    "trail",
    "unique",
    "uniques",
    "view",
    "visitors",
    "weighted",
    "window",
    "windowed",
    "write",
    "write_behind",
    "write_through",
];

/// Whether a key has Redstart's form.
pub(crate) fn is_redstart(name: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(name) else {
        return false;
    };
    let Some((head, rest)) = text.split_once(":{") else {
        return false;
    };
    let Some((namespace, pattern)) = head.split_once(':') else {
        return false;
    };
    let pattern = pattern.split(['.', ':']).next().unwrap_or_default();
    !namespace.is_empty()
        && rest.contains('}')
        && REDSTART
            .iter()
            .any(|known| pattern == *known || pattern.starts_with(&format!("{known}_")))
}

/// The library of a stream, from its name alone.
pub(crate) fn owner_of_stream(name: &[u8]) -> Option<&'static str> {
    if is_redstart(name) {
        return Some("Redstart");
    }
    if name.starts_with(b"bull:") && name.ends_with(b":events") {
        return Some("BullMQ");
    }
    PREFIXES
        .iter()
        .find(|(prefix, _)| name.starts_with(prefix.as_bytes()))
        .map(|(_, library)| *library)
}

/// Channels that libraries publish to whether or not somebody waits.
pub(crate) fn is_channel_of_library(name: &[u8]) -> bool {
    const SIGNS: &[&[u8]] = &[
        b"redisson_",
        b"socket.io",
        b"celery",
        b"pidbox",
        b"asynq:",
        b"rq:",
        b"__key",
        b"__sentinel__",
        b"bull:",
    ];
    is_redstart(name)
        || SIGNS
            .iter()
            .any(|sign| name.windows(sign.len()).any(|part| part == *sign))
}

impl Libraries {
    /// The library that owns a key.
    pub(crate) fn owner(&self, name: &[u8]) -> Option<&str> {
        let by_contents = self.recognised.as_deref().and_then(|recognition| {
            recognition
                .found
                .iter()
                .find(|found| found.confidence >= ENOUGH && found.owns(name))
        });
        match by_contents {
            Some(found) => Some(title(found)),
            None => self
                .found
                .iter()
                .find(|library| library.owns.iter().any(|owns| owns.matches(name)))
                .map(|library| library.name.as_str()),
        }
    }

    /// Adds what other names speak for.
    pub(crate) fn add_all(&mut self, other: Self) {
        for library in other.found {
            for owns in library.owns {
                self.add(&library.name, owns);
            }
        }
    }

    /// Adds what was recognised by contents.
    pub(crate) fn recognise(&mut self, recognition: Recognition) {
        for found in recognition
            .found
            .iter()
            .filter(|found| found.confidence >= ENOUGH)
        {
            let name = title(found);
            // BullMQ's rules look at each queue by its prefix.
            let owns = match found.library {
                Known::BullMq => vec![Owns::Prefix(format!("{}:", found.subject).into_bytes())],
                _ => Vec::new(),
            };
            match self.found.iter_mut().find(|library| library.name == name) {
                Some(library) => {
                    let new = owns
                        .into_iter()
                        .filter(|owns| !library.owns.contains(owns))
                        .collect::<Vec<_>>();
                    library.owns.extend(new);
                }
                None => self.found.push(Library {
                    name: name.to_owned(),
                    owns,
                }),
            }
        }
        self.recognised = Some(Arc::new(recognition));
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.found.iter().any(|library| library.name == name)
    }

    /// Whether any of them is a queue whose jobs must not be evicted or lost.
    pub(crate) fn queue(&self) -> Option<&str> {
        const QUEUES: &[&str] = &[
            "BullMQ",
            "Bull",
            "Sidekiq",
            "Celery",
            "RQ",
            "asynq",
            "Resque",
            "Dramatiq",
            "arq",
            "Bee-Queue",
            "Huey",
            "Hangfire",
        ];
        self.found
            .iter()
            .map(|library| library.name.as_str())
            .find(|name| QUEUES.contains(name))
    }

    fn add(&mut self, name: &str, owns: Owns) {
        match self.found.iter_mut().find(|library| library.name == name) {
            Some(library) if library.owns.contains(&owns) => {}
            Some(library) => library.owns.push(owns),
            None => self.found.push(Library {
                name: name.to_owned(),
                owns: vec![owns],
            }),
        }
    }
}

/// Collects signs of libraries from names, one at a time.
#[derive(Default)]
pub(crate) struct Signs {
    /// `<prefix>:<queue>:` → which of BullMQ's parts were seen.
    bull: BTreeMap<Vec<u8>, u8>,
    kombu: Vec<Vec<u8>>,
    sidekiq: u8,
    processes: Vec<Vec<u8>>,
    prefixes: Vec<usize>,
    redstart: u64,
}

const BULL_PARTS: &[(&[u8], u8)] = &[
    (b":meta", 1),
    (b":id", 2),
    (b":events", 4),
    (b":stalled-check", 8),
    (b":marker", 8),
    (b":wait", 16),
    (b":active", 16),
    (b":completed", 16),
    (b":failed", 16),
    (b":delayed", 16),
    (b":prioritized", 16),
];

const SIDEKIQ: &[(&[u8], u8)] = &[
    (b"queues", 1),
    (b"processes", 2),
    (b"stat:processed", 4),
    (b"stat:failed", 4),
];

impl Signs {
    pub(crate) fn see(&mut self, name: &[u8]) {
        for (part, bit) in BULL_PARTS {
            if let Some(queue) = name.strip_suffix(*part)
                && queue.contains(&b':')
                && self.bull.len() < 1000
            {
                let mut queue = queue.to_vec();
                queue.push(b':');
                *self.bull.entry(queue).or_default() |= bit;
            }
        }
        if let Some(exchange) = name.strip_prefix(b"_kombu.binding.")
            && self.kombu.len() < 1000
        {
            self.kombu.push(exchange.to_vec());
        }
        if name == b"unacked" || name == b"unacked_index" {
            self.kombu.push(Vec::new());
        }
        for (own, bit) in SIDEKIQ {
            if name == *own {
                self.sidekiq |= bit;
            }
        }
        if let Some(process) = name.strip_suffix(b":work")
            && self.processes.len() < 100
        {
            self.processes.push(process.to_vec());
        }
        for (i, (prefix, _)) in PREFIXES.iter().enumerate() {
            if name.starts_with(prefix.as_bytes()) && !self.prefixes.contains(&i) {
                self.prefixes.push(i);
            }
        }
        self.redstart += u64::from(is_redstart(name));
    }

    /// The libraries that the names speak for.
    pub(crate) fn libraries(&self) -> Libraries {
        let mut libraries = Libraries::default();
        for (queue, bits) in &self.bull {
            // `meta` and one part that only BullMQ has.
            if bits & 1 != 0 && bits & 0b1110 != 0 || bits & 2 != 0 && bits & 0b11000 != 0 {
                libraries.add("BullMQ", Owns::Prefix(queue.clone()));
            }
        }
        if !self.kombu.is_empty() {
            for prefix in [
                "_kombu.",
                "celery-task-meta-",
                "celery-taskset-meta-",
                "unacked",
                "celery\u{6}",
            ] {
                libraries.add("Celery", Owns::Prefix(prefix.into()));
            }
            libraries.add("Celery", Owns::Name(b"celery".to_vec()));
            libraries.add("Celery", Owns::Suffix(b".reply.celery.pidbox".to_vec()));
            for queue in self.kombu.iter().filter(|queue| !queue.is_empty()) {
                libraries.add("Celery", Owns::Name(queue.clone()));
                let mut steps = queue.clone();
                steps.extend_from_slice(b"\x06\x16");
                libraries.add("Celery", Owns::Prefix(steps));
            }
        }
        if self.sidekiq.count_ones() >= 2 {
            for name in [
                "queues",
                "processes",
                "schedule",
                "retry",
                "dead",
                "cron_jobs",
                "limiters",
            ] {
                libraries.add("Sidekiq", Owns::Name(name.into()));
            }
            for prefix in ["queue:", "stat:", "queue:sq|", "j|", "uniquejobs:"] {
                libraries.add("Sidekiq", Owns::Prefix(prefix.into()));
            }
            for process in &self.processes {
                libraries.add("Sidekiq", Owns::Prefix(process.clone()));
            }
        }
        for i in &self.prefixes {
            let (prefix, name) = PREFIXES[*i];
            libraries.add(name, Owns::Prefix(prefix.into()));
        }
        if self.redstart > 0 {
            libraries.add("Redstart", Owns::RedstartKeys);
        }
        libraries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Libraries {
        let mut signs = Signs::default();
        for name in names {
            signs.see(name.as_bytes());
        }
        signs.libraries()
    }

    #[test]
    fn libraries_are_known_by_several_signs_together() {
        let found = of(&["bull:mail:meta", "bull:mail:id", "bull:mail:1"]);
        assert_eq!(found.owner(b"bull:mail:17"), Some("BullMQ"));
        assert_eq!(found.owner(b"cache:mail"), None);
        let found = of(&["_kombu.binding.celery", "celery"]);
        assert_eq!(found.owner(b"celery"), Some("Celery"));
        let found = of(&["queues", "stat:processed", "queue:default"]);
        assert_eq!(found.owner(b"queue:default"), Some("Sidekiq"));
        assert_eq!(
            of(&["shop:lock:{a}"]).owner(b"shop:lock:{b}:fence"),
            Some("Redstart")
        );
    }

    #[test]
    fn one_sign_that_others_use_too_is_not_enough() {
        assert_eq!(of(&["user:meta", "app:queues:meta"]).owner(b"user:1"), None);
        assert_eq!(of(&["queues"]).owner(b"queue:default"), None);
        assert_eq!(of(&["lock:{a}"]).owner(b"lock:{a}"), None);
    }
}
