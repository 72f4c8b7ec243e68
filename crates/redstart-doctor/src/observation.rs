//! The facts, gathered once. Rules only read them.

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use crate::{
    budget::Limits,
    library::{Libraries, Signs},
    pattern::{self, Role, has_role, says_locked},
    trace::{Ops, Trace},
};

/// The stages of an examination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// What the server keeps anyway: INFO, CONFIG, SLOWLOG, LATENCY, CLIENT LIST, XINFO.
    Free,
    /// Random keys, looked at twice.
    Sampled,
    /// The commands of live traffic, by MONITOR.
    Observed,
}

impl Stage {
    /// Its name in reports and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Sampled => "sampled",
            Self::Observed => "observed",
        }
    }
}

/// Everything that is known of the server and its use.
#[derive(Default)]
pub(crate) struct Observations {
    pub(crate) nodes: Vec<NodeFacts>,
    pub(crate) cluster: bool,
    pub(crate) groups: Vec<Group>,
    pub(crate) streams: Vec<StreamFacts>,
    pub(crate) libraries: Libraries,
    pub(crate) trace: Option<Trace>,
    /// The trace, summed per key pattern.
    pub(crate) sequences: Vec<Sequence>,
    /// Names seen, and keys there are.
    pub(crate) seen: u64,
    pub(crate) keys: u64,
    /// The time between the two looks, in seconds.
    pub(crate) gap: f64,
    pub(crate) limits: Limits,
    /// The database of the sample.
    pub(crate) sampled: Option<u32>,
    /// A server could not be asked to the end.
    pub(crate) partial: bool,
}

/// One server.
#[derive(Default)]
pub(crate) struct NodeFacts {
    pub(crate) address: String,
    pub(crate) replica: bool,
    pub(crate) info: HashMap<String, String>,
    pub(crate) config: HashMap<String, String>,
    pub(crate) commands: BTreeMap<String, CommandStat>,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) later_errors: BTreeMap<String, u64>,
    pub(crate) slow: Vec<SlowEntry>,
    /// Events that the latency monitor has noted: the longest of each kind.
    pub(crate) latency: Vec<LatencyEvent>,
    pub(crate) clients: Vec<ClientFacts>,
    /// The list of clients was answered.
    pub(crate) clients_seen: bool,
    /// When it was asked for.
    pub(crate) clients_listed: Option<Instant>,
    pub(crate) acl: Option<AclFacts>,
    pub(crate) clock: Option<ClockFacts>,
    pub(crate) channels: Option<u64>,
    pub(crate) patterns: Option<u64>,
    /// The second look at INFO, for what grew meanwhile.
    pub(crate) later: HashMap<String, String>,
    pub(crate) later_commands: BTreeMap<String, CommandStat>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandStat {
    pub(crate) calls: u64,
    pub(crate) micros: u64,
}

impl CommandStat {
    pub(crate) fn mean_micros(self) -> f64 {
        self.micros as f64 / self.calls.max(1) as f64
    }
}

/// One entry of SLOWLOG, without its values.
#[derive(Clone, Debug)]
pub(crate) struct SlowEntry {
    pub(crate) micros: u64,
    pub(crate) command: String,
    /// The pattern of its first key, where the command has one.
    pub(crate) key: Option<String>,
    /// Whether it reads a whole collection: `LRANGE k 0 -1`, `SMEMBERS k`.
    pub(crate) whole: bool,
}

/// A server's clock beside ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockFacts {
    /// How far it is ahead of ours, in seconds.
    pub(crate) ahead: f64,
    /// It may be as much more or less: half of the round trip.
    pub(crate) doubt: f64,
}

/// One kind of event in LATENCY LATEST.
#[derive(Clone, Debug)]
pub(crate) struct LatencyEvent {
    pub(crate) event: String,
    /// The longest, in milliseconds.
    pub(crate) longest: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ClientFacts {
    pub(crate) host: String,
    pub(crate) name: String,
    pub(crate) idle: u64,
    /// Seconds since it connected.
    pub(crate) age: u64,
    pub(crate) flags: String,
    pub(crate) command: String,
    pub(crate) subscriptions: u64,
    pub(crate) output: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct AclFacts {
    /// The default user needs no password.
    pub(crate) default_open: bool,
    /// The default user may run everything.
    pub(crate) default_all: bool,
}

impl NodeFacts {
    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.info.get(field)?.parse().ok()
    }

    pub(crate) fn setting(&self, name: &str) -> Option<&str> {
        self.config.get(name).map(String::as_str)
    }

    pub(crate) fn uptime(&self) -> u64 {
        self.number("uptime_in_seconds").unwrap_or(0)
    }

    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.commands.get(command).map_or(0, |stat| stat.calls)
    }

    /// Whether it has counted errors of which a rule wants to know whether they go on.
    pub(crate) fn counts_errors(&self) -> bool {
        ["OOM", "CROSSSLOT"]
            .iter()
            .any(|error| self.errors.contains_key(*error))
    }

    /// Whether this error is more than something that happened once: it came again between the looks, or with one of a thousand
    /// commands.
    pub(crate) fn errs(&self, error: &str) -> bool {
        let count = self.errors.get(error).copied().unwrap_or(0);
        let later = self.later_errors.get(error).copied().unwrap_or(0);
        let calls: u64 = self.commands.values().map(|stat| stat.calls).sum();
        (count > 0 && later > count) || count * 1000 >= (calls + count).max(1)
    }

    /// Whether its memory is used up and nothing is evicted, so that it refuses writes now.
    pub(crate) fn is_full(&self) -> bool {
        let limit = self.maxmemory().unwrap_or(0);
        let used = self.number("used_memory").unwrap_or(0);
        // A write that was refused has freed what it had read, so the server is seldom at the limit to the byte.
        limit > 0
            && self.policy().is_none_or(|policy| policy == "noeviction")
            && used.saturating_mul(100) >= limit.saturating_mul(98)
    }

    /// Memory limit in bytes; 0 is none.
    pub(crate) fn maxmemory(&self) -> Option<u64> {
        self.number("maxmemory")
            .or_else(|| self.setting("maxmemory")?.parse().ok())
    }

    pub(crate) fn policy(&self) -> Option<&str> {
        self.info
            .get("maxmemory_policy")
            .map(String::as_str)
            .or_else(|| self.setting("maxmemory-policy"))
    }

    /// Whether keys that have a TTL, and no others, are evicted under pressure.
    pub(crate) fn evicts_expiring(&self) -> bool {
        self.policy()
            .is_some_and(|policy| policy.starts_with("volatile"))
    }

    /// Whether keys without TTL are evicted under pressure.
    pub(crate) fn evicts_all(&self) -> bool {
        self.policy()
            .is_some_and(|policy| policy.starts_with("allkeys"))
    }

    /// How much the server's settings say about its use: a server of a few minutes has those of a test.
    pub(crate) fn maturity(&self, limits: &Limits) -> f64 {
        let settled = limits.settled.as_secs();
        match self.uptime() {
            up if up >= settled => 1.0,
            up if up >= settled / 24 => 0.8,
            _ => 0.6,
        }
    }
}

/// Types of Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    #[default]
    String,
    List,
    Set,
    SortedSet,
    Hash,
    Stream,
    Other,
}

impl Kind {
    pub(crate) fn of(name: &str) -> Self {
        match name {
            "string" => Self::String,
            "list" => Self::List,
            "set" => Self::Set,
            "zset" => Self::SortedSet,
            "hash" => Self::Hash,
            "stream" => Self::Stream,
            _ => Self::Other,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::List => "list",
            Self::Set => "set",
            Self::SortedSet => "sorted set",
            Self::Hash => "hash",
            Self::Stream => "stream",
            Self::Other => "other type",
        }
    }
}

/// The form of a value. The value itself is not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    #[default]
    Unknown,
    Empty,
    Integer,
    Decimal,
    /// `1`, `true`, `locked`, `held`, … : a value that names nobody.
    Marker,
    /// A random id: uuid, hex, base64.
    Token,
    /// A version 1 uuid in hex, as redis-py's Lock writes.
    PythonLock,
    Json,
    /// `48.2,16.4`
    Coordinates,
    Text,
    Binary,
}

/// One key, looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyFact {
    /// The name as the server has it. It is shown only by its pattern.
    pub(crate) name: Vec<u8>,
    pub(crate) kind: Kind,
    /// Milliseconds; `None` without TTL.
    pub(crate) ttl: Option<u64>,
    /// Elements, or bytes of a string.
    pub(crate) size: u64,
    pub(crate) memory: Option<u64>,
    pub(crate) shape: Shape,
    /// A hash of the first bytes of a small string, to see whether values repeat.
    pub(crate) fingerprint: u64,
    /// Seconds since the token of a lock of redis-py was made.
    pub(crate) token_age: Option<u64>,
    /// Seconds since it was last used.
    pub(crate) idle: Option<u64>,
    /// Lowest and highest score.
    pub(crate) scores: Option<(f64, f64)>,
    pub(crate) fields: Vec<String>,
    /// The second look; `None` if there was none.
    pub(crate) later: Option<Later>,
}

/// The second look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Later {
    pub(crate) exists: bool,
    pub(crate) ttl: Option<u64>,
    pub(crate) size: u64,
    /// A number that is another one by now.
    pub(crate) changed: bool,
}

impl KeyFact {
    /// Without TTL on every look.
    pub(crate) fn is_permanent(&self) -> bool {
        self.ttl.is_none()
            && self
                .later
                .is_none_or(|later| later.exists && later.ttl.is_none())
    }

    /// A number that changed between the looks.
    pub(crate) fn changed(&self) -> bool {
        self.later
            .is_some_and(|later| later.exists && later.changed)
    }

    pub(crate) fn grew(&self) -> bool {
        self.later
            .is_some_and(|later| later.exists && later.size > self.size)
    }
}

/// Keys of one pattern and type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    pub(crate) pattern: String,
    pub(crate) kind: Kind,
    /// Names of this pattern that were seen.
    pub(crate) seen: u64,
    /// Those that were looked at.
    pub(crate) facts: Vec<KeyFact>,
    /// The library whose keys these are.
    pub(crate) library: Option<String>,
    /// The library that their names speak for, without a proof.
    pub(crate) suspect: Option<String>,
}

impl Group {
    /// The library whose keys these are, or seem to be.
    pub(crate) fn keeper(&self) -> Option<&str> {
        self.library.as_deref().or(self.suspect.as_deref())
    }

    pub(crate) fn is(&self, role: Role) -> bool {
        let token = |fact: &KeyFact| matches!(fact.shape, Shape::Token | Shape::PythonLock);
        has_role(&self.pattern, role)
            // A client that was refused is `locked` too.
            || (role == Role::Lock
                && says_locked(&self.pattern)
                && self.facts.iter().any(token))
    }

    /// The share of keys that have no TTL.
    pub(crate) fn permanent(&self) -> f64 {
        share(&self.facts, KeyFact::is_permanent)
    }

    /// The share of keys whose value has this shape.
    pub(crate) fn shaped(&self, shapes: &[Shape]) -> f64 {
        share(&self.facts, |fact| shapes.contains(&fact.shape))
    }

    pub(crate) fn largest(&self) -> u64 {
        self.facts.iter().map(|fact| fact.size).max().unwrap_or(0)
    }
}

fn share(facts: &[KeyFact], is: impl Fn(&KeyFact) -> bool) -> f64 {
    if facts.is_empty() {
        return 0.0;
    }
    facts.iter().filter(|fact| is(fact)).count() as f64 / facts.len() as f64
}

/// One stream and its groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamFacts {
    pub(crate) name: String,
    pub(crate) pattern: String,
    pub(crate) length: u64,
    /// Bytes, of a stream without groups.
    pub(crate) memory: Option<u64>,
    pub(crate) added: Option<u64>,
    pub(crate) first: Option<(u64, u64)>,
    pub(crate) groups: Vec<GroupFacts>,
    pub(crate) library: Option<String>,
    /// The library that its name speaks for, without a proof.
    pub(crate) suspect: Option<String>,
    /// The server's time, in milliseconds.
    pub(crate) now: u64,
    /// When the last answer about its groups came.
    pub(crate) looked: Option<Instant>,
}

impl StreamFacts {
    /// The library whose stream it is, or seems to be.
    pub(crate) fn keeper(&self) -> Option<&str> {
        self.library.as_deref().or(self.suspect.as_deref())
    }
}

/// One consumer group.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupFacts {
    pub(crate) name: String,
    pub(crate) pending: u64,
    pub(crate) pending_later: Option<u64>,
    pub(crate) delivered: (u64, u64),
    pub(crate) read: Option<u64>,
    pub(crate) lag: Option<u64>,
    pub(crate) consumers: Vec<ConsumerFacts>,
    /// Of the first pending entries: the most deliveries, the longest idle time, and how many no longer exist.
    pub(crate) deliveries: u64,
    pub(crate) oldest_idle: u64,
    pub(crate) vanished: u64,
    /// Acknowledgements between the looks: entries that were pending and are not.
    pub(crate) acked_later: Option<bool>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ConsumerFacts {
    pub(crate) pending: u64,
    /// Milliseconds since it last asked.
    pub(crate) idle: u64,
}

/// What was observed of the keys of one pattern.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    pub(crate) pattern: String,
    pub(crate) keys: u64,
    pub(crate) ops: Ops,
    /// The most commands on one key.
    pub(crate) busiest: u64,
    pub(crate) library: Option<String>,
    /// The library that the names speak for, without a proof.
    pub(crate) suspect: Option<String>,
    /// The keys are of a database that the sample is not of.
    pub(crate) elsewhere: bool,
    /// Most names have a random part: each is used for one thing, once.
    pub(crate) random: bool,
}

/// Races that are no coincidence.
const RACES: u64 = 3;

impl Sequence {
    pub(crate) fn is(&self, role: Role) -> bool {
        has_role(&self.pattern, role)
            // A client that was refused is `locked` too.
            || (role == Role::Lock && says_locked(&self.pattern) && self.ops.takes > 0)
    }

    /// Whether those who took it with SET NX gave it back. A value that one fills and another deletes is a cache or an index.
    pub(crate) fn is_given_back(&self) -> bool {
        self.ops.takes > 0 && self.ops.own_release + self.ops.own_script_release > 0
    }

    /// Whether it is used as a lock, whatever its name says: others want it while it is held, its holder gives it back, and its
    /// value tells nothing but who that is. What one connection sets with NX and deletes may be an index or a cache.
    pub(crate) fn acts_as_lock(&self) -> bool {
        self.is_given_back()
            && self.ops.contended > 0
            && self.ops.takes_of_data * 2 <= self.ops.takes
    }

    /// Whether it is used as a lock: by its name, or by what is done with it.
    pub(crate) fn is_lock(&self) -> bool {
        let released = self.ops.plain_release + self.ops.script_release;
        self.acts_as_lock() || (self.is(Role::Lock) && released > 0)
    }

    /// Whether most writes followed a read by their connection, often enough that the two are one piece of work: on a connection
    /// that many requests share, a read and a write may be of two of them.
    pub(crate) fn reads_before_it_writes(&self, pairs: u64, writes: u64, races: u64) -> bool {
        races >= RACES && pairs * 10 >= writes * 8
    }
}

impl Observations {
    /// Takes what the traffic says of libraries.
    pub(crate) fn suspect_traffic(&mut self) {
        let Some(trace) = &self.trace else { return };
        let mut signs = Signs::default();
        for (_, name) in trace.keys.keys() {
            signs.see(name);
        }
        self.libraries.suspect_all(signs.libraries());
        self.libraries.suspect_sessions(&trace.sessions);
        for namespace in &trace.redstart {
            self.libraries.prove_redstart(namespace);
        }
    }

    /// Says whose the groups are.
    pub(crate) fn assign(&mut self) {
        for group in &mut self.groups {
            let of = |fact| self.libraries.of(fact);
            (group.library, group.suspect) = group.facts.first().map(of).unwrap_or_default();
        }
    }

    /// Sums the trace per key pattern, and says whose everything is.
    pub(crate) fn fold(&mut self) {
        self.suspect_traffic();
        self.assign();
        let Some(trace) = &self.trace else { return };
        let mut sequences = Vec::new();
        for (pattern, keys) in trace.patterns() {
            let (here, elsewhere): (Vec<_>, Vec<_>) = keys
                .into_iter()
                .partition(|key| self.sampled.is_none_or(|db| db == key.db));
            for (keys, elsewhere) in [(here, false), (elsewhere, true)] {
                if keys.is_empty() {
                    continue;
                }
                let name = keys[0].name;
                let handmade = self.groups.iter().any(|group| {
                    group.pattern == pattern
                        && group.keeper().is_none()
                        && self.libraries.owner(name).or(self.libraries.suspect(name))
                            == Some("Redstart")
                });
                let random = keys.iter().filter(|key| pattern::has_random_part(key.name));
                let mut sequence = Sequence {
                    keys: keys.len() as u64,
                    random: random.count() * 2 > keys.len(),
                    pattern: pattern.clone(),
                    elsewhere,
                    ..Sequence::default()
                };
                if !handmade {
                    sequence.library = self.libraries.owner(name).map(str::to_owned);
                    sequence.suspect = self.libraries.suspect(name).map(str::to_owned);
                }
                for key in keys {
                    sequence.busiest = sequence.busiest.max(key.trace.ops.all);
                    sequence.ops.add(&key.trace.ops);
                }
                sequences.push(sequence);
            }
        }
        sequences.sort_by_key(|sequence| sequence.elsewhere);
        self.sequences = sequences;
    }

    /// The library that the names of a finding's subject speak for, without a proof.
    pub(crate) fn suspect(&self, subject: &str) -> Option<&str> {
        let groups = self.groups.iter();
        let sequences = self.sequences.iter();
        let streams = self.streams.iter();
        groups
            .filter(|group| group.pattern == subject)
            .find_map(|group| group.suspect.as_deref())
            .or_else(|| {
                sequences
                    .filter(|sequence| sequence.pattern == subject)
                    .find_map(|sequence| sequence.suspect.as_deref())
            })
            .or_else(|| {
                streams
                    .filter(|stream| {
                        subject
                            .strip_prefix(&stream.name)
                            .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
                    })
                    .find_map(|stream| stream.suspect.as_deref())
            })
    }

    /// Whether what is known of a subject is only what was observed in a database that was not sampled.
    pub(crate) fn is_elsewhere(&self, subject: &str) -> bool {
        let mut of = self.sequences.iter().filter(|seen| seen.pattern == subject);
        of.clone().any(|seen| seen.elsewhere)
            && of.all(|seen| seen.elsewhere)
            && self.group(subject).is_none()
    }

    /// What was observed of keys that no library owns.
    pub(crate) fn own_sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences
            .iter()
            .filter(|sequence| sequence.library.is_none())
    }

    /// What was observed of the keys of a pattern.
    pub(crate) fn sequence(&self, pattern: &str) -> Option<&Sequence> {
        self.sequences
            .iter()
            .find(|sequence| sequence.pattern == pattern)
    }

    /// Whether nobody is connected any more who was this many milliseconds before a moment. The clients were listed earlier, so
    /// those of the list are older by now, and others may have come since.
    pub(crate) fn has_left(&self, since: u64, moment: Option<Instant>) -> bool {
        // Ages are in whole seconds.
        const ROUNDED: u64 = 1000;
        let mut masters = self.masters().peekable();
        masters.peek().is_some()
            && masters.all(|node| {
                let replica = |flags: &str| flags.contains(['S', 'M']);
                let passed = moment
                    .zip(node.clients_listed)
                    .map(|(moment, listed)| moment.saturating_duration_since(listed));
                let passed = passed.map_or(0, |passed| passed.as_millis() as u64) + ROUNDED;
                let ages = node
                    .clients
                    .iter()
                    .filter(|client| !replica(&client.flags))
                    .map(|client| client.age.saturating_mul(1000));
                node.clients_seen && since > ages.max().unwrap_or(0).saturating_add(passed)
            })
    }

    /// Servers that take writes.
    pub(crate) fn masters(&self) -> impl Iterator<Item = &NodeFacts> {
        self.nodes.iter().filter(|node| !node.replica)
    }

    /// Groups that no library owns.
    pub(crate) fn own_groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|group| group.library.is_none())
    }

    /// Streams that no library owns.
    pub(crate) fn own_streams(&self) -> impl Iterator<Item = &StreamFacts> {
        self.streams
            .iter()
            .filter(|stream| stream.library.is_none())
    }

    /// The group of a pattern, whatever its type.
    pub(crate) fn group(&self, pattern: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.pattern == pattern)
    }

    /// Calls of a command on all masters.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.masters().map(|node| node.calls(command)).sum()
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::world::World;

    #[test]
    fn a_library_that_only_traffic_shows_is_not_accused() {
        World::new()
            .rounds(
                5,
                &[
                    "a SADD queues default",
                    "a LPUSH queue:default j#",
                    "w BRPOP queue:default 2",
                    "w INCRBY stat:processed 1",
                ],
            )
            .must_be_quiet();
        World::new()
            .rounds(
                5,
                &[
                    "a SADD _kombu.binding.celery x",
                    "a LPUSH celery j#",
                    "w BRPOP celery 1",
                    "w ZADD unacked_index 1700000000 t#",
                ],
            )
            .must_be_quiet();
    }
}
