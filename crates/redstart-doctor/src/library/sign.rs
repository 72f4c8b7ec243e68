//! Signs of libraries in the names of keys. A name is a hypothesis; what the keys hold decides.

use std::{
    collections::{BTreeMap, HashSet},
    sync::LazyLock,
};

use super::{Library, Owns, add};

/// Beginnings of keys that speak for one library.
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
    ("apalis:", "Apalis"),
    ("laravel_database_queues:", "Laravel"),
    ("laravel_horizon:", "Laravel Horizon"),
];

/// Names of keys to look at for one prefix, one queue, one kind of Redstart's keys.
const EXAMPLES: usize = 6;
/// Queues of BullMQ, and namespaces of Redstart.
const QUEUES: usize = 60;
const NAMESPACES: usize = 60;

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

/// A key in Redstart's form.
pub(crate) struct RedstartName<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pattern: &'a str,
    /// It is the entity's own key, not a part of it.
    pub(crate) main: bool,
}

impl<'a> RedstartName<'a> {
    /// `<namespace>:<pattern>[.<name>]:{<entity>}[:<part>]`
    pub(crate) fn parse(name: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(name).ok()?;
        let (head, rest) = text.split_once(":{")?;
        let (_, part) = rest.split_once('}')?;
        let known = |namespace: &'a str, pattern: &'a str| {
            let pattern = pattern.split(['.', ':']).next().unwrap_or_default();
            let known = REDSTART
                .iter()
                .any(|known| pattern == *known || pattern.starts_with(&format!("{known}_")));
            (known && !namespace.is_empty()).then_some(Self {
                namespace,
                pattern,
                main: part.is_empty(),
            })
        };
        // A namespace may have colons too.
        let (namespace, pattern) = head.rsplit_once(':')?;
        known(namespace, pattern).or_else(|| {
            let (namespace, pattern) = head.split_once(':')?;
            known(namespace, pattern)
        })
    }
}

/// Whether a key has Redstart's form.
pub(crate) fn is_redstart(name: &[u8]) -> bool {
    RedstartName::parse(name).is_some()
}

/// Whether a script is one of Redstart's, by its digest.
pub(crate) fn is_redstart_script(digest: &[u8]) -> bool {
    static DIGESTS: LazyLock<HashSet<Vec<u8>>> = LazyLock::new(|| {
        let all = redstart::script::all().into_iter();
        all.map(|script| script.digest().as_bytes().to_vec())
            .collect()
    });
    DIGESTS.contains(digest)
}

/// The library that a stream's name speaks for.
pub(crate) fn suspect_of_stream(name: &[u8]) -> Option<&'static str> {
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

/// Channels whose names are those of libraries, which publish whether or not somebody waits.
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

/// Collects signs of libraries from names, one at a time.
#[derive(Default)]
pub(crate) struct Signs {
    /// `<prefix>:<queue>:` → which of BullMQ's parts were seen.
    bull: BTreeMap<Vec<u8>, u8>,
    kombu: Vec<Vec<u8>>,
    /// By namespace, with its colon; empty without one.
    sidekiq: BTreeMap<Vec<u8>, u8>,
    processes: Vec<Vec<u8>>,
    /// For each prefix that was seen, some names.
    prefixes: BTreeMap<usize, Vec<Vec<u8>>>,
    flower: bool,
    /// For each namespace of keys in Redstart's form, some names of each pattern.
    redstart: BTreeMap<String, BTreeMap<String, Vec<Vec<u8>>>>,
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
/// A list of jobs. Others have such names too.
const LIST: u8 = 8;
const SIDEKIQS: usize = 1000;

/// Whether these are the signs of Sidekiq: two of its own, or one that only it has and a list.
fn is_sidekiq(bits: u8) -> bool {
    (bits & 7).count_ones() >= 2 || (bits & LIST != 0 && bits & 6 != 0)
}

/// What kombu puts between the name of a queue and a priority.
const PRIORITY: &[u8] = b"\x06\x16";

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
        if let Some(at) = name
            .windows(PRIORITY.len())
            .position(|part| part == PRIORITY)
        {
            self.kombu_of(&name[..at]);
        }
        if [&b"unacked"[..], b"unacked_index", b"unacked_mutex"].contains(&name) {
            self.kombu_of(b"");
        }
        for (own, bit) in SIDEKIQ {
            self.sidekiq_of(name.strip_suffix(*own), *bit);
        }
        let list = name.windows(6).position(|part| part == b"queue:");
        self.sidekiq_of(list.map(|at| &name[..at]), LIST);
        if let Some(process) = name.strip_suffix(b":work")
            && self.processes.len() < 100
        {
            self.processes.push(process.to_vec());
        }
        self.flower |= name == b"flower";
        for (i, (prefix, _)) in PREFIXES.iter().enumerate() {
            if name.starts_with(prefix.as_bytes()) {
                keep(self.prefixes.entry(i).or_default(), name);
            }
        }
        if let Some(own) = RedstartName::parse(name)
            && (self.redstart.len() < NAMESPACES || self.redstart.contains_key(own.namespace))
        {
            let patterns = self.redstart.entry(own.namespace.to_owned()).or_default();
            keep(patterns.entry(own.pattern.to_owned()).or_default(), name);
        }
    }

    fn kombu_of(&mut self, queue: &[u8]) {
        if self.kombu.len() < 1000 && !self.kombu.iter().any(|known| known == queue) {
            self.kombu.push(queue.to_vec());
        }
    }

    /// Notes a sign of Sidekiq behind a namespace.
    fn sidekiq_of(&mut self, namespace: Option<&[u8]>, bit: u8) {
        let Some(namespace) = namespace.filter(|own| own.is_empty() || own.ends_with(b":")) else {
            return;
        };
        if let Some(bits) = self.sidekiq.get_mut(namespace) {
            *bits |= bit;
        } else if self.sidekiq.len() < SIDEKIQS {
            self.sidekiq.insert(namespace.to_vec(), bit);
        }
    }

    fn sidekiqs(&self) -> impl Iterator<Item = &Vec<u8>> {
        let all = self.sidekiq.iter();
        all.filter(|(_, bits)| is_sidekiq(**bits))
            .map(|(namespace, _)| namespace)
    }

    /// Queues whose names are those of BullMQ: `meta` and one part that only BullMQ has, or `id` and a state.
    fn bull(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.bull
            .iter()
            .filter(|(_, bits)| {
                *bits & 1 != 0 && *bits & 0b1110 != 0 || *bits & 2 != 0 && *bits & 0b11000 != 0
            })
            .map(|(queue, _)| queue)
    }

    /// The keys that would prove or disprove what the names speak for.
    pub(crate) fn hints(&self) -> Vec<Vec<u8>> {
        let mut hints = Vec::new();
        for queue in self.bull().take(QUEUES) {
            for part in [&b"meta"[..], b"events", b"id"] {
                hints.push([queue, part].concat());
            }
        }
        for exchange in self
            .kombu
            .iter()
            .filter(|exchange| !exchange.is_empty())
            .take(20)
        {
            hints.push([b"_kombu.binding.", exchange.as_slice()].concat());
        }
        for namespace in self.sidekiqs().take(QUEUES) {
            let names = SIDEKIQ.iter().map(|(name, _)| *name);
            hints.extend(names.map(|name| [namespace.as_slice(), name].concat()));
        }
        hints.extend(self.prefixes.values().flatten().cloned());
        let redstart = self.redstart.values().flat_map(BTreeMap::values);
        hints.extend(redstart.flatten().take(200).cloned());
        hints
    }

    /// The libraries that the names speak for.
    pub(crate) fn libraries(&self) -> Vec<Library> {
        let mut libraries = Vec::new();
        for queue in self.bull() {
            add(&mut libraries, "BullMQ", Owns::Prefix(queue.clone()));
        }
        if !self.kombu.is_empty() {
            self.celery(&mut libraries);
        }
        for namespace in self.sidekiqs().take(QUEUES) {
            self.sidekiq(namespace, &mut libraries);
        }
        for i in self.prefixes.keys() {
            let (prefix, name) = PREFIXES[*i];
            add(&mut libraries, name, Owns::Prefix(prefix.into()));
        }
        if self.flower {
            add(&mut libraries, "Flower", Owns::Name(b"flower".to_vec()));
        }
        for namespace in self.redstart.keys() {
            add(
                &mut libraries,
                "Redstart",
                Owns::Redstart(namespace.clone()),
            );
        }
        libraries
    }

    fn celery(&self, libraries: &mut Vec<Library>) {
        for prefix in [
            "_kombu.",
            "celery-task-meta-",
            "celery-taskset-meta-",
            "unacked",
            "celery\u{6}",
        ] {
            add(libraries, "Celery", Owns::Prefix(prefix.into()));
        }
        add(libraries, "Celery", Owns::Name(b"celery".to_vec()));
        let mailbox = Owns::Suffix(b".reply.celery.pidbox".to_vec());
        add(libraries, "Celery", mailbox);
        for queue in self.kombu.iter().filter(|queue| !queue.is_empty()) {
            add(libraries, "Celery", Owns::Name(queue.clone()));
            let steps = [queue.as_slice(), b"\x06\x16"].concat();
            add(libraries, "Celery", Owns::Prefix(steps));
        }
    }

    fn sidekiq(&self, namespace: &[u8], libraries: &mut Vec<Library>) {
        let own = |name: &str| [namespace, name.as_bytes()].concat();
        for name in [
            "queues",
            "processes",
            "schedule",
            "retry",
            "dead",
            "cron_jobs",
            "limiters",
        ] {
            add(libraries, "Sidekiq", Owns::Name(own(name)));
        }
        for prefix in ["queue:", "stat:", "queue:sq|", "j|", "uniquejobs:"] {
            add(libraries, "Sidekiq", Owns::Prefix(own(prefix)));
        }
        for process in &self.processes {
            add(libraries, "Sidekiq", Owns::Prefix(process.clone()));
        }
    }
}

fn keep(examples: &mut Vec<Vec<u8>>, name: &[u8]) {
    if examples.len() < EXAMPLES && !examples.iter().any(|known| known == name) {
        examples.push(name.to_vec());
    }
}
