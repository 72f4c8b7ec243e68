//! The commands of live traffic, folded into sequences per connection and key.
//!
//! MONITOR shows commands and not replies. What follows from a sequence is therefore stated in two strengths: a read
//! and a write of one key by one connection *may* race, and a write of another connection between the two *did*.
//! Whether a conditional command succeeded is derived from the key's history: after a deletion the first `SET NX`
//! takes the key until it is deleted or its TTL has passed.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    library::{RedstartName, is_redstart_script},
    pattern,
};

pub(crate) mod command;
pub(crate) mod key;
pub(crate) mod line;
mod setting;

use command::{Action, actions, fingerprint, is_whole};
pub(crate) use key::{KeyTrace, Ops};
use line::Line;
use setting::Settings;

/// Keys whose sequences are followed; further ones are only counted.
const KEYS: usize = 50_000;
const CLIENTS: usize = 50_000;
const BODIES: usize = 20_000;
const CHANNELS: usize = 10_000;
const NAMESPACES: usize = 1000;
/// Memory of reads and writes that are open beyond a few of each key, over all keys, in bytes.
const OPEN: usize = 8 << 20;
/// Of a longer name only the beginning is kept, with a hash of the whole.
const LONG: usize = 256;

/// What was seen of a channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channel {
    pub(crate) published: u64,
    pub(crate) by_scripts: u64,
    /// Subscribers, asked for after the observation.
    pub(crate) subscribers: Option<u64>,
    pub(crate) subscribed: bool,
}

/// Scripts that were sent as text.
#[derive(Default)]
pub(crate) struct Scripts {
    pub(crate) evals: u64,
    bodies: HashSet<u64>,
    /// Texts that differ only in numbers and quoted strings.
    skeletons: HashMap<u64, HashSet<u64>>,
}

impl Scripts {
    /// Texts sent, and the most of them that share a skeleton.
    pub(crate) fn interpolated(&self) -> usize {
        self.skeletons.values().map(HashSet::len).max().unwrap_or(0)
    }

    pub(crate) fn bodies(&self) -> usize {
        self.bodies.len()
    }
}

#[derive(Default)]
struct Client {
    id: u32,
    multi: bool,
    watching: bool,
    /// It has been in a transaction.
    transacts: bool,
}

/// Everything that was observed.
#[derive(Default)]
pub(crate) struct Trace {
    pub(crate) lines: u64,
    /// Commands of scripts are not among them.
    pub(crate) commands: BTreeMap<String, u64>,
    pub(crate) keys: HashMap<(u32, Vec<u8>), KeyTrace>,
    /// Commands on keys that were not followed, and commands of connections that were not.
    pub(crate) unfollowed: u64,
    pub(crate) unfollowed_clients: u64,
    /// Memory of reads and writes that are open, and commands for which there was little of it.
    held: usize,
    pub(crate) crowded: u64,
    pub(crate) channels: HashMap<Vec<u8>, Channel>,
    /// There were more channels than are followed.
    pub(crate) more_channels: bool,
    /// A client left all its channels, whichever they were.
    pub(crate) left_all: bool,
    pub(crate) scripts: Scripts,
    pub(crate) first: Option<f64>,
    pub(crate) last: f64,
    /// Whole reads of collections, by key pattern.
    pub(crate) whole: HashMap<String, u64>,
    /// Commands per slot, on a Cluster.
    pub(crate) slots: HashMap<u16, u64>,
    pub(crate) keyed: u64,
    /// What processes send along with Redstart's scripts.
    pub(crate) settings: Settings,
    /// Namespaces in which Redstart's scripts run.
    pub(crate) redstart: HashSet<String>,
    /// Beginnings of the names of keys that hold sessions of Express.
    pub(crate) sessions: HashSet<Vec<u8>>,
    clients: HashMap<String, Client>,
    sequence: u64,
}

impl Trace {
    /// Takes one whole line of MONITOR or of a log in JSON; anything else is ignored.
    #[cfg(test)]
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.feed_cut(bytes, false);
    }

    /// Takes one line, of which only the beginning may have been read. Where the cut falls between two words, the line alone
    /// does not show it.
    pub(crate) fn feed_cut(&mut self, bytes: &[u8], cut: bool) {
        if let Some(mut line) = Line::parse(bytes) {
            line.cut |= cut;
            self.take(&line);
        }
    }

    pub(crate) fn seconds(&self) -> f64 {
        (self.last - self.first.unwrap_or(self.last)).max(0.0)
    }

    pub(crate) fn connections(&self) -> usize {
        self.clients.len()
    }

    fn take(&mut self, line: &Line<'_>) {
        self.lines += 1;
        self.sequence += 1;
        self.first.get_or_insert(line.at);
        self.last = self.last.max(line.at);
        let name = String::from_utf8_lossy(&line.words[0]).to_ascii_uppercase();
        if name.len() > 32 {
            return;
        }
        let script = line.is_script();
        if !script {
            *self.commands.entry(name.clone()).or_default() += 1;
        }
        let client = match script {
            true => Who {
                id: u32::MAX,
                atomic: true,
                shared: false,
            },
            false => match self.client(line, &name) {
                Some(who) => who,
                None => {
                    self.unfollowed_clients += 1;
                    return;
                }
            },
        };
        if name == "EVALSHA" {
            self.settings.see(&line.words, client.id);
            self.redstart(&line.words);
        }
        self.beside_keys(line, &name, script);
        for (at, action) in actions(&name, &line.words, line.at, line.cut) {
            // A name that was cut is no name.
            if line.cut && at + 1 == line.words.len() {
                continue;
            }
            if matches!(action, Action::Set { .. }) {
                self.session(line, at);
            }
            self.key(line, at, &action, client);
        }
    }

    /// Notes where sessions of Express are kept: connect-redis writes them as JSON that begins with the cookie.
    fn session(&mut self, line: &Line<'_>, at: usize) {
        let mut values = line.words[at + 1..].iter().take(2);
        let name = &line.words[at];
        if values.any(|value| value.starts_with(b"{\"cookie\":"))
            && self.sessions.len() < NAMESPACES
            && let Some(end) = name.iter().rposition(|byte| *byte == b':')
        {
            self.sessions.insert(name[..=end.min(LONG)].to_vec());
        }
    }

    /// Notes the namespace of one of Redstart's scripts.
    fn redstart(&mut self, words: &[Vec<u8>]) {
        if let (Some(digest), Some(key)) = (words.get(1), words.get(3))
            && self.redstart.len() < NAMESPACES
            && let Some(name) = RedstartName::parse(key)
            && !self.redstart.contains(name.namespace)
            && is_redstart_script(digest)
        {
            self.redstart.insert(name.namespace.to_owned());
        }
    }

    /// Who sent it, and whether it is part of a transaction.
    fn client(&mut self, line: &Line<'_>, name: &str) -> Option<Who> {
        let count = self.clients.len();
        let own = match line.client.len() {
            0..=LONG => line.client.to_string(),
            _ => format!("{:016x}", fingerprint(line.client.as_bytes())),
        };
        if count >= CLIENTS && !self.clients.contains_key(&own) {
            return None;
        }
        let state = self.clients.entry(own).or_insert_with(|| Client {
            id: count as u32,
            ..Client::default()
        });
        state.transacts |= matches!(name, "MULTI" | "WATCH");
        match name {
            "MULTI" => state.multi = true,
            "WATCH" => state.watching = true,
            "UNWATCH" => state.watching = false,
            "EXEC" | "DISCARD" => {
                state.multi = false;
                state.watching = false;
            }
            _ => {}
        }
        // All clients of a unix socket have one name: whose a transaction is cannot be told, so any command may be part of one.
        let shared = line.client.starts_with("unix:");
        Some(Who {
            id: state.id,
            atomic: state.multi || state.watching || (shared && state.transacts),
            shared,
        })
    }

    /// Channels, texts of scripts, whole reads.
    fn beside_keys(&mut self, line: &Line<'_>, name: &str, script: bool) {
        let words = &line.words;
        match name {
            "PUBLISH" | "SPUBLISH" if words.len() > 1 => {
                if let Some(channel) = self.channel(&words[1]) {
                    channel.published += 1;
                    channel.by_scripts += u64::from(script);
                }
            }
            // Who leaves a channel was there.
            "UNSUBSCRIBE" | "SUNSUBSCRIBE" if words.len() == 1 => self.left_all = true,
            "SUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "SUNSUBSCRIBE" => {
                for word in &words[1..] {
                    if let Some(channel) = self.channel(word) {
                        channel.subscribed = true;
                    }
                }
            }
            "EVAL" if words.len() > 1 => {
                self.scripts.evals += 1;
                if self.scripts.bodies.len() < BODIES {
                    let body = fingerprint(&words[1]);
                    self.scripts.bodies.insert(body);
                    self.scripts
                        .skeletons
                        .entry(skeleton(&words[1]))
                        .or_default()
                        .insert(body);
                }
            }
            "SMEMBERS" | "HGETALL" | "LRANGE" | "ZRANGE" | "ZREVRANGE"
                if words.len() > 1
                    && (matches!(name, "SMEMBERS" | "HGETALL") || is_whole(words))
                    && self.whole.len() < KEYS =>
            {
                let pattern = pattern::generalise(&words[1]);
                *self.whole.entry(pattern).or_default() += 1;
            }
            _ => {}
        }
    }

    /// One that is followed, or that there is room for.
    fn channel(&mut self, name: &[u8]) -> Option<&mut Channel> {
        let name = short(name);
        if self.channels.len() >= CHANNELS && !self.channels.contains_key(&name) {
            self.more_channels = true;
            return None;
        }
        Some(self.channels.entry(name).or_default())
    }

    /// The channels in order of their names, each with its pattern.
    pub(crate) fn channel_patterns(&self) -> BTreeMap<&[u8], String> {
        let own = self.channels.keys();
        let own = own.map(|name| (name.as_slice(), pattern::generalise(name)));
        let mut patterns: BTreeMap<&[u8], String> = own.collect();
        let mut all: Vec<String> = patterns.values().cloned().collect();
        all.sort_unstable();
        all.dedup();
        let merged = pattern::merge(&all);
        for pattern in patterns.values_mut() {
            if let Some(broader) = merged.get(pattern) {
                pattern.clone_from(broader);
            }
        }
        patterns
    }

    fn key(&mut self, line: &Line<'_>, at: usize, action: &Action, who: Who) {
        let Some(word) = line.words.get(at) else {
            return;
        };
        let name = (line.db, short(word));
        if who.id != u32::MAX {
            self.keyed += 1;
            *self.slots.entry(slot(word)).or_default() += 1;
        }
        if self.keys.len() >= KEYS && !self.keys.contains_key(&name) {
            self.unfollowed += 1;
            return;
        }
        let when = When {
            at: line.at,
            sequence: self.sequence,
        };
        let key = self.keys.entry(name).or_default();
        let (before, crowded) = (key.held(), self.held >= OPEN);
        key.take(action, who, when, crowded);
        self.held = self.held + key.held() - before;
        self.crowded += u64::from(crowded);
    }

    /// Sums of the counters per key pattern, with the number of keys.
    pub(crate) fn patterns(&self) -> Vec<(String, Vec<NamedTrace<'_>>)> {
        let named: Vec<(String, NamedTrace<'_>)> = self
            .keys
            .iter()
            .map(|((db, name), trace)| {
                let key = NamedTrace {
                    db: *db,
                    name,
                    trace,
                };
                (pattern::generalise(name), key)
            })
            .collect();
        let mut distinct: Vec<String> = named.iter().map(|(pattern, ..)| pattern.clone()).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let merged = pattern::merge(&distinct);
        let mut groups: BTreeMap<String, Vec<NamedTrace<'_>>> = BTreeMap::new();
        for (pattern, key) in named {
            let pattern = merged.get(&pattern).cloned().unwrap_or(pattern);
            groups.entry(pattern).or_default().push(key);
        }
        groups.into_iter().collect()
    }
}

/// A name of which no more is kept than a report shows. Two long names of the same beginning are told apart by a hash.
fn short(name: &[u8]) -> Vec<u8> {
    match name.len() {
        0..=LONG => name.to_vec(),
        _ => {
            let hash = format!("{:016x}", fingerprint(name));
            [&name[..LONG / 2], hash.as_bytes()].concat()
        }
    }
}

/// A key and its history.
#[derive(Clone, Copy)]
pub(crate) struct NamedTrace<'a> {
    pub(crate) db: u32,
    pub(crate) name: &'a [u8],
    pub(crate) trace: &'a KeyTrace,
}

/// The sender of a command.
#[derive(Clone, Copy)]
pub(crate) struct Who {
    pub(crate) id: u32,
    /// Part of a script, a transaction, or under WATCH; or it may be.
    pub(crate) atomic: bool,
    /// Several clients may have this name.
    pub(crate) shared: bool,
}

/// The place of a command in time.
#[derive(Clone, Copy)]
pub(crate) struct When {
    pub(crate) at: f64,
    pub(crate) sequence: u64,
}

/// A script's text without its numbers and quoted strings.
fn skeleton(text: &[u8]) -> u64 {
    let mut out = Vec::with_capacity(text.len());
    let mut quote = None;
    for &byte in text {
        match quote {
            Some(end) if byte == end => quote = None,
            Some(_) => continue,
            None if matches!(byte, b'"' | b'\'') => quote = Some(byte),
            None if byte.is_ascii_digit() => continue,
            None => {}
        }
        out.push(byte);
    }
    fingerprint(&out)
}

/// The slot of a key on a Cluster.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key
        .iter()
        .position(|byte| *byte == b'{')
        .and_then(|open| {
            let length = key[open + 1..].iter().position(|byte| *byte == b'}')?;
            (length > 0).then(|| &key[open + 1..open + 1 + length])
        })
        .unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(tag) % 16384
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A trace from lines such as `a SET k v`: the client, then the command; one hundredth of a second apart.
    pub(crate) fn trace(lines: &[&str]) -> Trace {
        let mut trace = Trace::default();
        for (i, text) in lines.iter().enumerate() {
            trace.feed(line(i, text).as_bytes());
        }
        trace
    }

    /// One line as MONITOR prints it. A client named `unix` has the name that all clients of a socket have.
    pub(crate) fn line(i: usize, text: &str) -> String {
        let (client, command) = text.split_once(' ').expect("a client and a command");
        let client = match client {
            "lua" => "lua".to_owned(),
            "unix" => "unix:/run/redis.sock".to_owned(),
            client => format!("{client}:1"),
        };
        let words: Vec<String> = command.split(' ').map(|word| format!("{word:?}")).collect();
        let at = 1_700_000_000.0 + i as f64 / 100.0;
        format!("{at:.6} [0 {client}] {}", words.join(" "))
    }

    /// The same, with only the first bytes of each line.
    pub(crate) fn cut_trace(keep: usize, lines: &[&str]) -> Trace {
        let mut trace = Trace::default();
        for (i, text) in lines.iter().enumerate() {
            let line = line(i, text);
            trace.feed_cut(&line.as_bytes()[..line.len().min(keep)], line.len() > keep);
        }
        trace
    }

    fn ops(trace: &Trace, key: &str) -> Ops {
        trace.keys[&(0, key.as_bytes().to_vec())].ops
    }

    #[test]
    fn a_foreign_write_between_read_and_write_is_proof() {
        let seen = trace(&["a GET n", "b GET n", "b INCR n", "a INCR n"]);
        assert_eq!(ops(&seen, "n").get_incr, 2);
        assert_eq!(ops(&seen, "n").race_incr, 1);
        let seen = trace(&["a GET n", "a INCR n", "b GET n", "b INCR n"]);
        assert_eq!(ops(&seen, "n").race_incr, 0);
    }

    #[test]
    fn tasks_that_share_a_connection_overlap_visibly() {
        let seen = trace(&["a GET n", "a GET n", "a INCR n", "a INCR n"]);
        assert_eq!(ops(&seen, "n").overlaps, 1);
        let seen = trace(&["a GET n", "a GET n", "a INCR n", "a GET n", "a INCR n"]);
        assert_eq!(ops(&seen, "n").overlaps, 0);
        let seen = trace(&["a GET n", "a GET n", "a SET n 5", "a SET n 5"]);
        assert_eq!(ops(&seen, "n").overlaps, 1);
    }

    #[test]
    fn a_pool_of_connections_does_not_hide_an_overlap() {
        // Two threads of one program: every command takes the next free connection.
        let seen = trace(&["a GET n", "b GET n", "c INCR n", "d INCR n"]);
        assert_eq!(ops(&seen, "n").crossed, 1);
        let seen = trace(&["a GET n", "b INCR n", "c GET n", "d INCR n"]);
        assert_eq!(ops(&seen, "n").crossed, 0);
        let seen = trace(&["a GET n", "b GET n", "c SET n 6", "d SET n 6", "a SET n 7"]);
        assert_eq!((ops(&seen, "n").repeated, ops(&seen, "n").changed), (1, 1));
        let seen = trace(&["a GET p", "b DEL p", "c SET p {old} EX 60"]);
        assert_eq!(ops(&seen, "p").late_fill, 1);
        let seen = trace(&["b DEL p", "a GET p", "c SET p {new} EX 60"]);
        assert_eq!(ops(&seen, "p").late_fill, 0);
    }

    #[test]
    fn a_transaction_under_watch_is_no_race() {
        let seen = trace(&[
            "a WATCH n",
            "a GET n",
            "b SET n 5",
            "a MULTI",
            "a SET n 6",
            "a EXEC",
        ]);
        assert_eq!(ops(&seen, "n").race_counter, 0);
        assert_eq!(ops(&seen, "n").get_set, 0);
    }

    #[test]
    fn a_fill_after_an_invalidation_is_seen_and_a_fill_before_it_is_not() {
        let seen = trace(&["a GET p", "b DEL p", "a SET p old EX 60"]);
        assert_eq!(ops(&seen, "p").stale_fill, 1);
        let seen = trace(&["a GET p", "a SET p old EX 60", "b DEL p"]);
        assert_eq!(ops(&seen, "p").stale_fill, 0);
    }

    #[test]
    fn two_fills_of_the_same_value_are_a_stampede_and_of_different_ones_a_lost_update() {
        let seen = trace(&[
            "a GET p",
            "b GET p",
            "a SET p {row} EX 60",
            "b SET p {row} EX 60",
        ]);
        assert_eq!(
            (ops(&seen, "p").duplicate_fill, ops(&seen, "p").race_value),
            (1, 0)
        );
        let seen = trace(&[
            "a GET p",
            "b GET p",
            "a SET p {x} EX 60",
            "b SET p {y} EX 60",
        ]);
        assert_eq!(
            (ops(&seen, "p").duplicate_fill, ops(&seen, "p").race_value),
            (0, 1)
        );
    }

    #[test]
    fn the_release_of_another_holders_lock_is_seen() {
        let mut lines = vec!["a SET lock x NX PX 50"];
        // Half a second passes.
        lines.extend(["c PING"; 20]);
        lines.extend(["b SET lock y NX PX 5000", "a DEL lock"]);
        let seen = trace(&lines);
        assert_eq!(ops(&seen, "lock").foreign_release, 1);
        assert_eq!(ops(&seen, "lock").overrun, 1);
        let seen = trace(&[
            "a SET lock x NX PX 5000",
            "a DEL lock",
            "b SET lock y NX PX 5000",
            "b DEL lock",
        ]);
        assert_eq!(ops(&seen, "lock").foreign_release, 0);
        assert_eq!(ops(&seen, "lock").plain_release, 2);
    }

    #[test]
    fn a_release_by_script_is_not_a_plain_one() {
        let seen = trace(&[
            "a SET lock x NX PX 5000",
            "a EVALSHA abc 1 lock x",
            "lua GET lock",
            "lua DEL lock",
        ]);
        assert_eq!(ops(&seen, "lock").plain_release, 0);
        assert_eq!(ops(&seen, "lock").get_delete, 0);
        assert_eq!(ops(&seen, "lock").script_release, 1);
    }

    #[test]
    fn clients_of_one_socket_are_not_taken_for_one_another() {
        // Two clients; the transaction of one of them hides nothing of the other and proves nothing about it.
        let seen = trace(&[
            "unix WATCH n",
            "unix GET n",
            "unix GET n",
            "unix MULTI",
            "unix SET n 6",
            "unix EXEC",
            "unix INCR n",
            "unix INCR n",
            "unix EXPIRE n 60",
            "unix DEL n",
        ]);
        let seen = ops(&seen, "n");
        assert_eq!((seen.get_set, seen.get_incr, seen.overlaps), (0, 0, 0));
        assert_eq!((seen.crossed, seen.incr_then_expire), (0, 0));
        // A reader and a writer of numbers: two clients, not one that changes what it read.
        let seen = trace(&["unix GET n", "unix SET n 5", "unix GET n", "unix SET n 6"]);
        assert_eq!(ops(&seen, "n").get_set, 0);
        // A fill with NX and the deletion by another client.
        let seen = trace(&["unix SET p v NX EX 60", "unix GET p", "unix DEL p"]);
        assert_eq!(ops(&seen, "p").own_release, 0);
        assert_eq!(ops(&seen, "p").get_delete, 0);
    }

    #[test]
    fn texts_that_differ_in_their_literals_share_a_skeleton() {
        let mut seen = Trace::default();
        for i in 0..5 {
            seen.feed(
                format!(r#"1.{i} [0 a:1] "EVAL" "return redis.call('get','k{i}')" "0""#).as_bytes(),
            );
        }
        assert_eq!(seen.scripts.interpolated(), 5);
    }

    #[test]
    fn long_names_take_no_more_memory_than_short_ones() {
        let mut seen = Trace::default();
        let long = "x".repeat(3_800);
        for i in 0..20_000 {
            seen.feed(format!(r#"1.0 [0 a:1] "INCR" "url:{i}:{long}""#).as_bytes());
            seen.feed(format!(r#"1.0 [0 a:1] "PUBLISH" "room:{i}:{long}" "m""#).as_bytes());
        }
        // Two of the same beginning are told apart.
        seen.feed(format!(r#"1.0 [0 a:1] "INCR" "url:7:{long}y""#).as_bytes());
        seen.feed(format!(r#"1.0 [0 a:1] "INCR" "url:7:{long}""#).as_bytes());
        assert_eq!(seen.keys.len(), 20_001);
        let increments: u64 = seen.keys.values().map(|key| key.ops.increments).sum();
        assert_eq!(increments, 20_002);
        let names = seen.keys.keys().map(|(_, name)| name.len());
        let channels = seen.channels.keys().map(Vec::len);
        let bytes: usize = names.chain(channels).sum();
        assert!(bytes < 32 << 20, "{bytes}");
        // A log may name its clients as it likes.
        let mut seen = Trace::default();
        for i in 0..5_000 {
            let line = format!(r#"{{"time":1.5,"client":"{i}{long}","command":["GET","k"]}}"#);
            seen.feed(line.as_bytes());
        }
        assert_eq!(seen.clients.len(), 5_000);
        let bytes: usize = seen.clients.keys().map(String::len).sum();
        assert!(bytes < 4 << 20, "{bytes}");
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut seen = Trace::default();
        for i in 0..KEYS + 1000 {
            seen.feed(format!(r#"1.0 [0 a:1] "GET" "k{i}""#).as_bytes());
        }
        assert_eq!(seen.keys.len(), KEYS);
        assert_eq!(seen.unfollowed, 1000);
    }

    #[test]
    fn commands_of_connections_beyond_the_limit_are_counted() {
        let mut seen = Trace::default();
        for client in 0..CLIENTS + 10 {
            seen.feed(format!(r#"1.0 [0 c:{client}] "GET" "k""#).as_bytes());
        }
        // A race of two that are not followed is not seen.
        for (client, command) in [("x", "GET"), ("y", "INCR"), ("x", "INCR")] {
            seen.feed(format!(r#"2.0 [0 {client}:1] "{command}" "n""#).as_bytes());
        }
        assert_eq!(seen.connections(), CLIENTS);
        assert_eq!(seen.unfollowed_clients, 13);
    }

    /// Clients that read, each of them many keys, and others that write them.
    #[test]
    fn memory_of_open_reads_and_writes_is_bounded() {
        let mut seen = Trace::default();
        for key in 0..2_400 {
            for client in 0..128 {
                let command = if client < 64 {
                    format!(r#""GET" "k{key}""#)
                } else {
                    format!(r#""SET" "k{key}" "v{client}""#)
                };
                seen.feed(format!("1.0 [0 c{client}:1] {command}").as_bytes());
            }
        }
        let held: usize = seen.keys.values().map(KeyTrace::held).sum();
        assert_eq!(held, seen.held);
        assert!(held < OPEN + (64 << 10), "{held} bytes");
        assert!(seen.crowded > 0);
        // A race is seen all the same.
        for text in ["a GET n", "b INCR n", "a INCR n"] {
            seen.feed(line(3, text).as_bytes());
        }
        assert_eq!(ops(&seen, "n").race_incr, 1);
    }

    #[test]
    fn a_channel_that_is_known_is_heard_among_very_many() {
        let mut seen = Trace::default();
        seen.feed(line(0, "a PUBLISH mail:send x").as_bytes());
        for user in 0..CHANNELS + 10 {
            seen.feed(line(1, &format!("a PUBLISH user:{user} x")).as_bytes());
        }
        assert!(seen.more_channels);
        seen.feed(line(2, "a PUBLISH mail:send x").as_bytes());
        seen.feed(line(2, "b SUBSCRIBE mail:send").as_bytes());
        let mail = &seen.channels[b"mail:send".as_slice()];
        assert!(mail.subscribed && mail.published == 2, "{mail:?}");
        assert_eq!(seen.channels.len(), CHANNELS);
    }
}
