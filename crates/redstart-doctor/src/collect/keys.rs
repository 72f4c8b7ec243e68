//! The sampled stage: names by SCAN, some keys of every pattern looked at twice.
//!
//! The names are walked in small steps with rests in between, from random places if there are more than the budget
//! allows. Of each key pattern a few are looked at, so that a single queue is seen among a million cache entries.
//!
//! SCAN returns the names of one server in the order of their hashes: any stretch of them is a sample, if it begins at a random
//! place. Servers that keep the names of a Cluster by slot return them slot by slot, and a hash tag is in one slot only. There
//! a walk that does not have the time for all names is made of short runs that begin at slots all over the shard.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use redis::Value;

use super::Blinds;
use crate::{
    budget::Budget,
    library::Signs,
    node::{Node, Slots},
    observation::{Group, KeyFact, Kind, Later, Shape},
    pattern,
    progress::Progress,
    text,
    trace::command::fingerprint,
    wire::{Answer, KEPT, Trouble, Words, words},
};

/// Keys of one pattern that are looked at.
const PER_PATTERN: usize = 24;
/// Patterns; further ones are left out and noted.
const PATTERNS: usize = 20_000;
/// Bytes of names that are kept.
const BYTES: usize = 32 << 20;
/// Names that one SCAN step looks at: on a server, and in a file, which has nobody else to serve.
const STEP: usize = 10;
const STEP_OF_FILE: usize = 100;
/// About how long a step takes, and how long its rest is where one percent of the server's time is taken.
const PACE: Duration = Duration::from_micros(1200);
const REST: Duration = Duration::from_micros(1800);
/// Of a walk over a part of a Cluster's names: how many runs there are at least where it has steps for that, and how long one is
/// at most.
const RUNS: u64 = 32;
const LONGEST_RUN: u64 = 20;
/// Names after which the pace of a walk over all of them is known. Steps do not tell it: after deletions most of them may be empty.
const PACED: u64 = 50;
/// Ends of the names that are met before there are taken to be none.
const ENDS: u32 = 8;
/// Commands that are asked for at a time.
pub(crate) const BATCH: usize = 32;
/// What is read of a string to see its form.
const PREFIX: &str = "127";
/// Names among which libraries are recognised.
const RECOGNISED: usize = 5000;
/// Keys of live traffic that are looked at besides the sample.
const TRAFFIC: usize = 400;
/// Collections of so few elements are measured element by element.
const FEW: u64 = 64;
/// Elements are only read where they are small on average.
const SMALL_ELEMENT: u64 = 4096;

/// What the walk over the names found.
#[derive(Default)]
pub(crate) struct Names {
    patterns: BTreeMap<String, Sample>,
    pub(crate) seen: u64,
    pub(crate) keys: u64,
    pub(crate) signs: Signs,
    /// Of names that are kept.
    bytes: usize,
    /// Servers that answered SCAN.
    pub(crate) answered: usize,
}

#[derive(Default)]
struct Sample {
    seen: u64,
    /// The node and the name.
    names: Vec<(usize, Vec<u8>)>,
}

impl Sample {
    /// Every name has the same chance to be kept, while there is room. `false` if there is none. A walk may meet a name twice.
    fn see(&mut self, node: usize, name: Vec<u8>, bytes: &mut usize) -> bool {
        if self.names.iter().any(|(_, known)| *known == name) {
            return true;
        }
        self.seen += 1;
        let place = if self.names.len() < PER_PATTERN {
            None
        } else {
            let at = rand::random_range(0..self.seen) as usize;
            match self.names.get_mut(at) {
                Some(place) => Some(place),
                None => return true,
            }
        };
        let before = place.as_ref().map_or(0, |(_, name)| name.len());
        if *bytes - before + name.len() > BYTES {
            return false;
        }
        *bytes = *bytes - before + name.len();
        match place {
            Some(place) => *place = (node, name),
            None => self.names.push((node, name)),
        }
        true
    }
}

impl Names {
    pub(crate) fn see(&mut self, node: usize, name: Vec<u8>, blinds: &mut Blinds) {
        self.seen += 1;
        if name.len() >= KEPT {
            blinds.note(
                format!("names of {KEPT} bytes and more"),
                "they were cut, and their keys were not looked at",
            );
            return;
        }
        self.signs.see(&name);
        let pattern = pattern::generalise(&name);
        if self.patterns.len() >= PATTERNS && !self.patterns.contains_key(&pattern) {
            blinds.note(
                "key patterns",
                format!("more than {PATTERNS} different ones; the others were left out"),
            );
            return;
        }
        let sample = self.patterns.entry(pattern).or_default();
        if !sample.see(node, name, &mut self.bytes) {
            blinds.note(
                "keys with long names",
                format!(
                    "no more than {} of names were kept to look at their keys",
                    text::bytes(BYTES as u64)
                ),
            );
        }
    }

    /// Names that differ in one word only are one pattern. Each of its names has the same chance to be kept, whichever of the
    /// narrower patterns it is from.
    fn merge(&mut self) {
        let all: Vec<String> = self.patterns.keys().cloned().collect();
        let merged = pattern::merge(&all);
        let mut pools: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
        for (pattern, sample) in std::mem::take(&mut self.patterns) {
            let into = merged.get(&pattern).cloned().unwrap_or(pattern);
            pools.entry(into).or_default().push(sample);
        }
        let pooled = pools
            .into_iter()
            .map(|(pattern, pool)| (pattern, pooled(pool)));
        self.patterns = pooled.collect();
    }

    /// Some names of each pattern, for recognition; of very many patterns, those of some.
    pub(crate) fn some(&self) -> Vec<Vec<u8>> {
        let each = (RECOGNISED / self.patterns.len().max(1)).clamp(1, PER_PATTERN);
        let samples: Vec<&Sample> = self.patterns.values().collect();
        let few = samples.len().min(RECOGNISED);
        let mut chosen = rand::seq::index::sample(&mut rand::rng(), samples.len(), few).into_vec();
        chosen.sort_unstable();
        chosen
            .into_iter()
            .flat_map(|at| samples[at].names.iter().take(each))
            .map(|(_, name)| name.clone())
            .take(RECOGNISED)
            .collect()
    }
}

/// One sample of several: a kept name stands for as many as its sample saw for each that it kept.
fn pooled(mut pool: Vec<Sample>) -> Sample {
    if pool.len() == 1
        && let Some(only) = pool.pop()
    {
        return only;
    }
    let seen = pool.iter().map(|sample| sample.seen).sum();
    let mut drawn = Vec::new();
    for sample in pool {
        let weight = sample.seen as f64 / sample.names.len().max(1) as f64;
        // The largest of these are a random choice by weight (Efraimidis and Spirakis).
        let names = sample.names.into_iter();
        drawn.extend(names.map(|name| (rand::random::<f64>().powf(1.0 / weight), name)));
    }
    drawn.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    drawn.truncate(PER_PATTERN);
    Sample {
        seen,
        names: drawn.into_iter().map(|(_, name)| name).collect(),
    }
}

/// Walks the names of the given nodes. The time that is left is shared by those that are left.
pub(crate) async fn names(
    nodes: &mut [Node],
    which: &[usize],
    slots: &Slots,
    budget: &Budget,
    progress: &Progress,
    blinds: &mut Blinds,
) -> Names {
    let mut names = Names::default();
    let share = budget.names / which.len().max(1) as u64;
    let end = Instant::now() + budget.walk;
    for (done, &index) in which.iter().enumerate() {
        let node = &mut nodes[index];
        let keys: Answer<u64> = node.wire.get(words!["DBSIZE"]).await;
        let keys = match keys {
            Ok(keys) => keys,
            Err(trouble) => {
                blinds.note(format!("DBSIZE on {}", node.address), trouble);
                0
            }
        };
        names.keys += keys;
        let now = Instant::now();
        let nodes_left = u32::try_from(which.len() - done).unwrap_or(u32::MAX);
        let time = end.saturating_duration_since(now) / nodes_left;
        let fits = share.min(fits(node, time));
        let walk = Walk {
            index,
            keys,
            limit: share.min(keys),
            deadline: now + time,
            whole: keys <= fits,
            sparse: keys / 4 > fits,
            places: Places::new(),
        };
        walk.run(node, slots, &mut names, progress, blinds).await;
        if progress.is_stopped() {
            break;
        }
    }
    names.merge();
    names
}

/// About how many names can be walked in this time.
fn fits(node: &Node, time: Duration) -> u64 {
    match node.at {
        Some(_) => {
            let pace = PACE + REST / u32::from(node.wire.throttle.share);
            (time.as_micros() / pace.as_micros()) as u64 * STEP as u64
        }
        None => u64::MAX,
    }
}

/// The walk over the names of one node.
struct Walk {
    index: usize,
    keys: u64,
    /// Names that are walked at most.
    limit: u64,
    deadline: Instant,
    /// All names are to be walked.
    whole: bool,
    /// So few of them that each step begins at another place.
    sparse: bool,
    places: Places,
}

impl Walk {
    async fn run(
        mut self,
        node: &mut Node,
        slots: &Slots,
        names: &mut Names,
        progress: &Progress,
        blinds: &mut Blinds,
    ) {
        let size = match node.at {
            Some(_) => STEP,
            None => STEP_OF_FILE,
        };
        let step = size.to_string();
        let begun = Instant::now();
        let mut cursor = match self.whole {
            true => 0,
            false => self.places.next(node, slots),
        };
        let (mut seen, mut ends) = (0, 0);
        // Steps so far, and those until the next run begins.
        let (mut steps, mut left_of_run) = (0, 0);
        let mut answered = false;
        loop {
            let answer = node
                .wire
                .call(words!["SCAN", cursor.to_string(), "COUNT", step])
                .await;
            let (next, found) = match answer.map(scanned) {
                Ok(Some(reply)) => {
                    names.answered += usize::from(!std::mem::replace(&mut answered, true));
                    reply
                }
                Ok(None) => break,
                Err(trouble) => {
                    blinds.note(format!("SCAN on {}", node.address), trouble);
                    break;
                }
            };
            for name in found {
                seen += 1;
                names.see(self.index, name, blinds);
            }
            steps += 1;
            progress.walked(names.seen, self.limit);
            ends += u32::from(next == 0);
            // A place behind the last name is an end too; after some of those there are no names.
            if next == 0 && (self.whole || (seen == 0 && ends > ENDS)) {
                break;
            }
            if !self.whole && seen >= self.limit {
                break;
            }
            let now = Instant::now();
            if now > self.deadline || progress.is_stopped() {
                blinds.note(
                    format!("names on {}", node.address),
                    format!("{seen} of {} were walked in the time there was", self.keys),
                );
                break;
            }
            // How many more steps there is time for, at the pace so far.
            let pace = (now - begun).as_secs_f64() / steps as f64;
            let time = (self.deadline - now).as_secs_f64() / pace.max(1e-9);
            if self.whole && self.is_too_slow(seen, steps, time) {
                self.whole = false;
                self.sparse = self.keys / 4 > seen + time as u64 * size as u64;
                cursor = self.places.next(node, slots);
                continue;
            }
            left_of_run = u64::saturating_sub(left_of_run, 1);
            let jumps = self.sparse || (!self.whole && slots.any_of(node.shard));
            cursor = match jumps && left_of_run == 0 {
                true => {
                    let names = self.limit.saturating_sub(seen) / size as u64;
                    let runs = names.min(time as u64) / RUNS;
                    left_of_run = match self.sparse {
                        true => 1,
                        false => runs.clamp(1, LONGEST_RUN),
                    };
                    self.places.next(node, slots)
                }
                false => next,
            };
        }
        if !self.whole {
            blinds.note(
                format!("names on {}", node.address),
                format!(
                    "{seen} of {} were sampled; a key that exists once may not be among them",
                    self.keys
                ),
            );
        }
    }

    /// Whether a walk over all names will not come to its end, because the line or the server is slower than was expected. It
    /// begins at the first name: to go on would show the same part of the names in every examination. After half of them it goes
    /// on.
    fn is_too_slow(&self, seen: u64, steps: u64, time: f64) -> bool {
        let each = seen as f64 / steps as f64;
        seen >= PACED && seen * 2 < self.keys && time * each < (self.keys - seen) as f64
    }
}

/// Places among the names of a node that are far from one another, in an order that no two examinations share.
struct Places(f64);

impl Places {
    fn new() -> Self {
        Self(rand::random())
    }

    /// The next one. Servers that keep the names of a Cluster by slot have the slot in the lowest bits.
    fn next(&mut self, node: &Node, slots: &Slots) -> u64 {
        // The golden ratio: of any number of consecutive places no two are close together.
        self.0 = (self.0 + 0.618_033_988_749_894_9).fract();
        let place = u64::from(rand::random::<u32>());
        match slots.at(node.shard, self.0) {
            Some(slot) => place << 14 | u64::from(slot),
            None => place,
        }
    }
}

fn scanned(value: Value) -> Option<(u64, Vec<Vec<u8>>)> {
    let Value::Array(parts) = value else {
        return None;
    };
    let mut parts = parts.into_iter();
    let cursor: String = redis::from_redis_value(parts.next()?).ok()?;
    let names = redis::from_redis_value(parts.next()?).ok()?;
    Some((cursor.parse().ok()?, names))
}

/// Looks at a few keys of each pattern, from a random pattern on. The wires of the nodes say how long.
pub(crate) async fn look(
    nodes: &mut [Node],
    names: &Names,
    progress: &Progress,
    blinds: &mut Blinds,
) -> Vec<Group> {
    let per_pattern = match names.patterns.len() {
        0..800 => PER_PATTERN,
        800..4000 => 6,
        _ => 2,
    };
    let patterns: Vec<(&String, &Sample)> = names.patterns.iter().collect();
    let all = patterns.len();
    let first = rand::random_range(0..all.max(1));
    let mut facts: BTreeMap<(usize, Kind), Vec<KeyFact>> = BTreeMap::new();
    let mut done = 0;
    while done < all {
        progress.looked(done as u64, all as u64);
        if nodes.iter().any(|node| node.wire.is_ended()) {
            blinds.note(
                "keys",
                format!("{done} of {all} patterns were looked at in the time there was"),
            );
            break;
        }
        // As many patterns as are asked about at a time.
        let mut chosen = Vec::new();
        while done < all {
            let at = (first + done) % all;
            let some = patterns[at].1.names.iter().take(per_pattern);
            if !chosen.is_empty() && chosen.len() + some.len() > BATCH / 4 {
                break;
            }
            chosen.extend(some.map(|name| (at, name)));
            done += 1;
        }
        for (index, node) in nodes.iter_mut().enumerate() {
            let own = chosen.iter().filter(|(_, (at, _))| *at == index);
            let own: Vec<(usize, &[u8])> =
                own.map(|(of, (_, name))| (*of, name.as_slice())).collect();
            for chunk in own.chunks(BATCH / 4) {
                let of: HashMap<&[u8], usize> =
                    chunk.iter().map(|(of, name)| (*name, *of)).collect();
                let asked: Vec<&[u8]> = chunk.iter().map(|(_, name)| *name).collect();
                for fact in keys(node, &asked, blinds).await {
                    if let Some(of) = of.get(fact.name.as_slice()) {
                        facts.entry((*of, fact.kind)).or_default().push(fact);
                    }
                }
            }
        }
    }
    let mut looked: HashMap<usize, u64> = HashMap::new();
    for ((of, _), facts) in &facts {
        *looked.entry(*of).or_default() += facts.len() as u64;
    }
    let group = |((of, kind), facts): ((usize, Kind), Vec<KeyFact>)| Group {
        pattern: patterns[of].0.clone(),
        kind,
        seen: patterns[of].1.seen * facts.len() as u64 / looked[&of].max(1),
        facts,
        ..Group::default()
    };
    facts.into_iter().map(group).collect()
}

/// Looks at keys of live traffic that the sample did not have, because they were made meanwhile.
pub(crate) async fn look_at_traffic(
    node: &mut Node,
    trace: &crate::trace::Trace,
    db: u32,
    groups: &mut Vec<Group>,
    blinds: &mut Blinds,
) {
    let mut looked = 0;
    for (pattern, mut keys_of) in trace.patterns() {
        // A key of that name here is another one.
        keys_of.retain(|key| key.db == db);
        if looked >= TRAFFIC || groups.iter().any(|group| group.pattern == pattern) {
            continue;
        }
        let names: Vec<&[u8]> = keys_of.iter().map(|key| key.name).take(BATCH / 4).collect();
        looked += names.len();
        let mut by_kind: HashMap<Kind, Vec<KeyFact>> = HashMap::new();
        for fact in keys(node, &names, blinds).await {
            by_kind.entry(fact.kind).or_default().push(fact);
        }
        for (kind, facts) in by_kind {
            groups.push(Group {
                pattern: pattern.clone(),
                kind,
                seen: keys_of.len() as u64,
                facts,
                ..Group::default()
            });
        }
    }
}

/// The facts of some keys of one node.
async fn keys(node: &mut Node, names: &[&[u8]], blinds: &mut Blinds) -> Vec<KeyFact> {
    let mut first = Vec::new();
    for name in names {
        // Before anything touches the key.
        first.extend([
            words!["OBJECT", "IDLETIME", name],
            words!["TYPE", name],
            words!["PTTL", name],
        ]);
    }
    let Some(answers) = ask(node, first, "TYPE and PTTL", blinds).await else {
        return Vec::new();
    };
    let mut facts = Vec::new();
    for (name, answers) in names.iter().zip(answers.chunks_exact(3)) {
        let Some(kind) = words_of(&answers[1]).filter(|kind| kind != "none") else {
            continue;
        };
        let Some(ttl) = integer(&answers[2]).filter(|ttl| *ttl != -2) else {
            continue;
        };
        facts.push(KeyFact {
            name: name.to_vec(),
            kind: Kind::of(&kind),
            ttl: u64::try_from(ttl).ok(),
            idle: integer(&answers[0]).and_then(|idle| u64::try_from(idle).ok()),
            ..KeyFact::default()
        });
    }
    let second = facts
        .iter()
        .map(|fact| size_command(fact.kind, &fact.name))
        .collect();
    let Some(sizes) = ask(node, second, "sizes", blinds).await else {
        return facts;
    };
    for (fact, size) in facts.iter_mut().zip(&sizes) {
        fact.size = integer(size)
            .and_then(|size| u64::try_from(size).ok())
            .unwrap_or(0);
    }
    forms(node, &mut facts, blinds).await;
    facts
}

fn size_command(kind: Kind, name: &[u8]) -> Words {
    match kind {
        Kind::String => words!["STRLEN", name],
        Kind::List => words!["LLEN", name],
        Kind::Set => words!["SCARD", name],
        Kind::SortedSet => words!["ZCARD", name],
        Kind::Hash => words!["HLEN", name],
        Kind::Stream => words!["XLEN", name],
        Kind::Other => words!["EXISTS", name],
    }
}

/// The forms of values: a prefix of strings; memory of collections; scores and fields where elements are small.
async fn forms(node: &mut Node, facts: &mut [KeyFact], blinds: &mut Blinds) {
    let commands = facts
        .iter()
        .map(|fact| match fact.kind {
            Kind::String => words!["GETRANGE", fact.name, "0", PREFIX],
            // MEMORY USAGE of a stream walks all consumers of all its groups; the collector of streams asks where it has none.
            Kind::Other | Kind::Stream => words!["EXISTS", fact.name],
            // Of few elements one may be as large as all others together.
            _ if fact.size <= FEW => {
                words!["MEMORY", "USAGE", fact.name, "SAMPLES", FEW.to_string()]
            }
            _ => words!["MEMORY", "USAGE", fact.name, "SAMPLES", "5"],
        })
        .collect();
    let Some(answers) = ask(node, commands, "values' forms", blinds).await else {
        return;
    };
    for (fact, answer) in facts.iter_mut().zip(&answers) {
        match fact.kind {
            Kind::String => {
                if let Ok(Value::BulkString(bytes)) = answer {
                    // A key that is written and expires between the questions has no form.
                    fact.size = fact.size.max(bytes.len() as u64);
                    let gone = bytes.is_empty() && (fact.size > 0 || fact.ttl.is_some());
                    fact.shape = match gone {
                        true => Shape::Unknown,
                        false => shape(bytes, fact.size),
                    };
                    fact.fingerprint = fingerprint(bytes);
                    fact.token_age = token_age(bytes);
                }
            }
            Kind::Other | Kind::Stream => {}
            _ => fact.memory = integer(answer).and_then(|bytes| u64::try_from(bytes).ok()),
        }
    }
    let small = |fact: &KeyFact| {
        fact.size > 0
            && fact
                .memory
                .is_some_and(|memory| memory / fact.size < SMALL_ELEMENT)
    };
    let mut commands = Vec::new();
    for fact in facts.iter() {
        match fact.kind {
            Kind::SortedSet if small(fact) => {
                commands.push(words!["ZRANGE", fact.name, "0", "0", "WITHSCORES"]);
                commands.push(words!["ZRANGE", fact.name, "-1", "-1", "WITHSCORES"]);
            }
            Kind::Hash if small(fact) && fact.size <= FEW => {
                // Without the values, which HSCAN would send too.
                commands.push(words!["HKEYS", fact.name]);
            }
            _ => {}
        }
    }
    if commands.is_empty() {
        return;
    }
    let Some(answers) = ask(node, commands, "scores and fields", blinds).await else {
        return;
    };
    let mut answers = answers.into_iter();
    for fact in facts.iter_mut() {
        match fact.kind {
            Kind::SortedSet if small(fact) => {
                let low = answers.next().and_then(score);
                let high = answers.next().and_then(score);
                fact.scores = low.zip(high);
            }
            Kind::Hash if small(fact) && fact.size <= FEW => {
                if let Some(Ok(reply)) = answers.next() {
                    let fields: Vec<Vec<u8>> = redis::from_redis_value(reply).unwrap_or_default();
                    fact.fields = fields
                        .iter()
                        .take(32)
                        .map(|field| crate::text::printable(field))
                        .collect();
                }
            }
            _ => {}
        }
    }
}

fn score(answer: Answer) -> Option<f64> {
    let parts: Vec<Vec<u8>> = redis::from_redis_value(answer.ok()?).ok()?;
    std::str::from_utf8(parts.get(1)?).ok()?.parse().ok()
}

/// The second look at every key that was looked at. The wires of the nodes say how long.
pub(crate) async fn look_again(
    nodes: &mut [Node],
    groups: &mut [Group],
    of: &HashMap<Vec<u8>, usize>,
    blinds: &mut Blinds,
) {
    let mut facts: Vec<&mut KeyFact> = groups
        .iter_mut()
        .flat_map(|group| &mut group.facts)
        .collect();
    let all = facts.len();
    for (done, chunk) in facts.chunks_mut(BATCH / 2).enumerate() {
        if nodes.iter().any(|node| node.wire.is_ended()) {
            let done = done * (BATCH / 2);
            blinds.note(
                "second look",
                format!("{done} of {all} keys were looked at again in the time there was"),
            );
            return;
        }
        for (index, node) in nodes.iter_mut().enumerate() {
            let own = |fact: &KeyFact| of.get(&fact.name).copied().unwrap_or(0) == index;
            let mut commands = Vec::new();
            for fact in chunk.iter().filter(|fact| own(fact)) {
                commands.extend([
                    words!["PTTL", fact.name],
                    size_command(fact.kind, &fact.name),
                ]);
                if is_number(fact) {
                    commands.push(words!["GETRANGE", fact.name, "0", PREFIX]);
                }
            }
            if commands.is_empty() {
                continue;
            }
            let Some(answers) = ask(node, commands, "second look", blinds).await else {
                continue;
            };
            let mut answers = answers.iter();
            for fact in chunk.iter_mut().filter(|fact| own(fact)) {
                let (Some(ttl), Some(size)) = (answers.next(), answers.next()) else {
                    break;
                };
                fact.later = later(ttl, size);
                if is_number(fact)
                    && let Some(Ok(Value::BulkString(number))) = answers.next()
                    && let Some(later) = &mut fact.later
                {
                    later.changed = fingerprint(number) != fact.fingerprint;
                }
            }
        }
    }
}

/// Whether it may count something.
fn is_number(fact: &KeyFact) -> bool {
    fact.kind == Kind::String && fact.shape == Shape::Integer
}

/// What the second look says of a key. Without an answer nothing is known: it is not gone.
fn later(ttl: &Answer, size: &Answer) -> Option<Later> {
    let ttl = integer(ttl)?;
    Some(Later {
        exists: ttl != -2,
        ttl: u64::try_from(ttl).ok(),
        size: integer(size)
            .and_then(|size| u64::try_from(size).ok())
            .unwrap_or(0),
        changed: false,
    })
}

/// Which node each looked-at key was found on.
pub(crate) fn places(names: &Names) -> HashMap<Vec<u8>, usize> {
    names
        .patterns
        .values()
        .flat_map(|sample| {
            sample
                .names
                .iter()
                .map(|(node, name)| (name.clone(), *node))
        })
        .collect()
}

/// Sends a batch; `None` if nothing came back.
async fn ask(
    node: &mut Node,
    commands: Vec<Words>,
    what: &str,
    blinds: &mut Blinds,
) -> Option<Vec<Answer>> {
    if commands.is_empty() {
        return Some(Vec::new());
    }
    match node.wire.batch(commands).await {
        Ok(answers) => {
            for trouble in answers.iter().filter_map(|answer| answer.as_ref().err()) {
                if is_loss(trouble) {
                    blinds.note(format!("{what} on {}", node.address), trouble);
                }
            }
            Some(answers)
        }
        Err(trouble) => {
            blinds.note(format!("{what} on {}", node.address), trouble);
            None
        }
    }
}

/// A key of another type meanwhile is no loss, nor is the idle time of one whose uses are counted instead. A command that may
/// not be used, a slot that has moved or a server that is busy is.
fn is_loss(trouble: &Trouble) -> bool {
    let counted = matches!(trouble, Trouble::Refused(why) if why.contains("LFU maxmemory policy"));
    !counted && !trouble.is_about_the_key()
}

pub(crate) fn integer(answer: &Answer) -> Option<i64> {
    match answer {
        Ok(Value::Int(n)) => Some(*n),
        Ok(value) => redis::from_redis_value(value.clone()).ok(),
        Err(_) => None,
    }
}

pub(crate) fn words_of(answer: &Answer) -> Option<String> {
    redis::from_redis_value(answer.as_ref().ok()?.clone()).ok()
}

/// The form of a value, from its first bytes.
pub(crate) fn shape(prefix: &[u8], size: u64) -> Shape {
    if size == 0 {
        return Shape::Empty;
    }
    let Ok(text) = std::str::from_utf8(prefix) else {
        // A character may have been cut.
        return if prefix.len() as u64 == size {
            Shape::Binary
        } else {
            Shape::Text
        };
    };
    if matches!(
        text.to_ascii_lowercase().as_str(),
        "1" | "true" | "yes" | "ok" | "locked" | "lock" | "held" | "busy" | "taken" | "x" | "on"
    ) {
        return Shape::Marker;
    }
    if text.parse::<i64>().is_ok() {
        return Shape::Integer;
    }
    if text.parse::<f64>().is_ok() {
        return Shape::Decimal;
    }
    if text.starts_with(['{', '[']) {
        return Shape::Json;
    }
    if is_coordinates(text) {
        return Shape::Coordinates;
    }
    if size == 32 && token_age(prefix).is_some() {
        return Shape::PythonLock;
    }
    let digits = text.chars().filter(char::is_ascii_digit).count();
    let letters = text.chars().filter(char::is_ascii_alphabetic).count();
    let plain = text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '+' | '/' | '=' | ':' | '.'));
    if plain && size <= 128 && text.len() >= 12 && digits >= 2 && letters >= 2 {
        return Shape::Token;
    }
    if text.chars().any(|c| c.is_control() && !c.is_whitespace()) {
        return Shape::Binary;
    }
    Shape::Text
}

/// How long ago the token of redis-py's Lock was made, in seconds. One of 64 digests has the form of such a token; a time
/// between 2010 and now is what few of those have.
fn token_age(text: &[u8]) -> Option<u64> {
    const OLDEST: u64 = 1_262_304_000;
    let made = redstart_adopt::lock_token_made_at(text)?.as_secs();
    let now = u64::try_from(jiff::Timestamp::now().as_second()).ok()?;
    // The clocks of other hosts differ.
    (made >= OLDEST && made <= now + 120).then(|| now.saturating_sub(made))
}

/// `48.2082,16.3738`
fn is_coordinates(text: &str) -> bool {
    let parts: Vec<&str> = text
        .split([',', ';', ' '])
        .filter(|part| !part.is_empty())
        .collect();
    let within = |text: &str, bound: f64| {
        text.contains('.') && text.parse::<f64>().is_ok_and(|n| n.abs() <= bound)
    };
    parts.len() == 2 && within(parts[0], 180.0) && within(parts[1], 180.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_value_is_seen_from_its_first_bytes() {
        for (value, expected) in [
            ("1", Shape::Marker),
            ("locked", Shape::Marker),
            ("17", Shape::Integer),
            ("1.5", Shape::Decimal),
            ("{\"a\":1}", Shape::Json),
            ("48.2082,16.3738", Shape::Coordinates),
            ("550e8400-e29b-41d4-a716-446655440000", Shape::Token),
            ("6fa459eaee8a11ef8a3c0242ac120002", Shape::PythonLock),
            // A digest with the version and the variant of such a uuid, but of the year 5234.
            ("d41d8cd98f001ffeb9800998ecf8427e", Shape::Token),
            ("hello world", Shape::Text),
            ("", Shape::Empty),
        ] {
            assert_eq!(
                shape(value.as_bytes(), value.len() as u64),
                expected,
                "{value}"
            );
        }
        assert_eq!(shape(b"\x80\x04\x95", 3), Shape::Binary);
    }

    #[test]
    fn a_key_without_an_answer_is_not_gone() {
        let refused = || Err(Trouble::Refused("LOADING dataset in memory".to_owned()));
        assert!(later(&refused(), &refused()).is_none());
        let gone = later(&Ok(Value::Int(-2)), &Ok(Value::Int(0)));
        assert!(gone.is_some_and(|later| !later.exists));
        let there = later(&Ok(Value::Int(-1)), &Ok(Value::Int(7)));
        assert!(there.is_some_and(|later| later.exists && later.size == 7));
    }

    #[test]
    fn whatever_a_server_refuses_is_noted_unless_it_is_about_the_key() {
        for (why, loss) in [
            ("NOPERM this user has no permissions", true),
            ("ERR unknown command 'PTTL'", true),
            ("MOVED 3999 10.0.0.7:6379", true),
            ("ASK 3999 10.0.0.7:6379", true),
            ("LOADING Redis is loading the dataset in memory", true),
            ("BUSY Redis is busy running a script", true),
            ("CLUSTERDOWN Hash slot not served", true),
            ("MASTERDOWN Link with MASTER is down", true),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                false,
            ),
            ("ERR no such key", false),
            (
                "ERR An LFU maxmemory policy is selected, idle time not tracked.",
                false,
            ),
        ] {
            assert_eq!(is_loss(&Trouble::Refused(why.to_owned())), loss, "{why}");
        }
        assert!(is_loss(&Trouble::TimedOut));
    }

    #[test]
    fn the_bytes_of_kept_names_are_bounded_and_cut_names_are_not_asked_for() {
        let (mut names, mut blinds) = (Names::default(), Blinds::default());
        let long = "x".repeat(3_500);
        for i in 0..20_000 {
            let letters = |n: usize| char::from(b'a' + (n % 26) as u8);
            let word: String = [i, i / 26, i / 676, i / 17_576]
                .map(letters)
                .iter()
                .collect();
            let name = format!("{word}:{long}");
            names.see(0, name.into_bytes(), &mut blinds);
        }
        // What the wire cut.
        names.see(0, vec![b'y'; crate::wire::KEPT], &mut blinds);
        assert_eq!(names.seen, 20_001);
        let kept = names.patterns.values().flat_map(|sample| &sample.names);
        let bytes: usize = kept.clone().map(|(_, name)| name.len()).sum();
        assert!(bytes <= 32 << 20, "{bytes}");
        assert!(kept.clone().count() > 5_000);
        assert!(kept.clone().all(|(_, name)| name.len() < crate::wire::KEPT));
        let notes = blinds.finish();
        let told = |what: &str| notes.iter().any(|note| note.what.contains(what));
        assert!(told("long names") && told("4096"), "{notes:#?}");
    }

    /// A server of a Cluster that keeps its names by slot, ten in each: it answers SCAN, each time after this long, with those of
    /// one slot. Its slots are `0..count`.
    async fn by_slot(count: u64, delay: Duration) -> std::io::Result<Node> {
        use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address =
            crate::target::Address::Tcp("127.0.0.1".to_owned(), listener.local_addr()?.port());
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await?;
            let (requests, mut replies) = stream.into_split();
            let mut lines = BufReader::new(requests).lines();
            while let Some(head) = lines.next_line().await? {
                let mut words = Vec::new();
                for _ in 0..head[1..].parse::<usize>().unwrap_or(0) {
                    lines.next_line().await?;
                    words.extend(lines.next_line().await?);
                }
                let reply = match words[0].as_str() {
                    "DBSIZE" => format!(":{}\r\n", count * 10),
                    "SCAN" => {
                        tokio::time::sleep(delay).await;
                        let slot = words[1].parse::<u64>().unwrap_or(0) & 0x3fff;
                        let next = (slot + 1) % count;
                        let mut reply =
                            format!("*2\r\n${}\r\n{next}\r\n*10\r\n", next.to_string().len());
                        for i in 0..10 {
                            let name = format!("slot:{slot}:{i}");
                            reply += &format!("${}\r\n{name}\r\n", name.len());
                        }
                        reply
                    }
                    _ => "+OK\r\n".to_owned(),
                };
                replies.write_all(reply.as_bytes()).await?;
            }
            std::io::Result::Ok(())
        });
        let (access, patience) = (crate::target::Access::default(), Duration::from_secs(60));
        let wire = crate::wire::Wire::connect(&address, &access, patience).await;
        Ok(Node {
            address: address.to_string(),
            at: Some(address),
            replica: false,
            shard: 0,
            wire: wire.map_err(|trouble| std::io::Error::other(trouble.to_string()))?,
        })
    }

    /// The slots whose names a walk saw, in order.
    async fn walked(
        node: Node,
        count: u16,
        budget: &Budget,
    ) -> (Vec<u64>, Vec<super::super::Blind>) {
        let mut blinds = Blinds::default();
        let slots = Slots::of_one(count - 1);
        let progress = Progress::default();
        let found = names(&mut [node], &[0], &slots, budget, &progress, &mut blinds).await;
        let sample = &found.patterns["slot:*:*"];
        let slot = |name: &[u8]| {
            std::str::from_utf8(name)
                .ok()?
                .split(':')
                .nth(1)?
                .parse()
                .ok()
        };
        let mut seen: Vec<u64> = sample
            .names
            .iter()
            .filter_map(|(_, name)| slot(name))
            .collect();
        seen.sort_unstable();
        (seen, blinds.finish())
    }

    fn is_all_over(seen: &[u64], count: u64) -> bool {
        let third = |n: u64| {
            seen.iter()
                .any(|slot| (count * n / 3..count * (n + 1) / 3).contains(slot))
        };
        third(0) && third(1) && third(2)
    }

    #[tokio::test]
    async fn half_of_the_names_of_a_cluster_are_of_slots_all_over_the_shard() -> std::io::Result<()>
    {
        for _ in 0..3 {
            let budget = Budget {
                names: 1500,
                share: 100,
                ..Budget::default()
            };
            let (seen, _) = walked(by_slot(300, Duration::ZERO).await?, 300, &budget).await;
            assert!(is_all_over(&seen, 300), "{seen:?}");
        }
        Ok(())
    }

    /// On a line with which the walk would end after a sixth of the names, the first ones in each examination.
    #[tokio::test]
    async fn a_walk_that_is_slower_than_expected_is_of_slots_all_over_the_shard()
    -> std::io::Result<()> {
        let budget = Budget {
            walk: Duration::from_secs(2),
            share: 100,
            ..Budget::default()
        };
        let (seen, told) =
            walked(by_slot(300, Duration::from_millis(40)).await?, 300, &budget).await;
        assert!(
            told.iter()
                .any(|note| note.why.contains("of 3000 were walked")),
            "{told:?}"
        );
        assert!(is_all_over(&seen, 300), "{seen:?}");
        Ok(())
    }

    #[tokio::test]
    async fn a_walk_with_time_for_all_names_sees_each_once() -> std::io::Result<()> {
        let mut blinds = Blinds::default();
        let (slots, progress) = (Slots::of_one(299), Progress::default());
        let budget = Budget {
            share: 100,
            ..Budget::default()
        };
        let mut nodes = [by_slot(300, Duration::ZERO).await?];
        let found = names(&mut nodes, &[0], &slots, &budget, &progress, &mut blinds).await;
        assert_eq!((found.seen, found.keys), (3000, 3000));
        assert!(blinds.finish().is_empty());
        Ok(())
    }

    /// Each tenant has as many names, and one has ten times as many.
    #[test]
    fn of_merged_patterns_each_name_has_the_same_chance() {
        let tenants: Vec<String> = (b'a'..=b'm')
            .map(|c| format!("{}x", char::from(c)))
            .collect();
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        const ROUNDS: u64 = 100;
        for _ in 0..ROUNDS {
            let (mut names, mut blinds) = (Names::default(), Blinds::default());
            for (at, tenant) in tenants.iter().enumerate() {
                let own = if at == 12 { 1_000 } else { 100 };
                for i in 0..own {
                    names.see(
                        0,
                        format!("app:{tenant}:cache:{i}").into_bytes(),
                        &mut blinds,
                    );
                }
            }
            names.merge();
            let sample = &names.patterns["app:*:cache:*"];
            assert_eq!((sample.seen, sample.names.len()), (2_200, PER_PATTERN));
            for (_, name) in &sample.names {
                let name = String::from_utf8_lossy(name);
                *counts
                    .entry(name.split(':').nth(1).unwrap_or_default().to_owned())
                    .or_default() += 1;
            }
        }
        // 24 of 2,200 names in each round.
        let all = ROUNDS as f64 * PER_PATTERN as f64;
        for (at, tenant) in tenants.iter().enumerate() {
            let expected = all * if at == 12 { 1000.0 } else { 100.0 } / 2200.0;
            let count = counts.get(tenant).copied().unwrap_or(0) as f64;
            // Six times the standard deviation.
            assert!(
                (count - expected).abs() < 6.0 * expected.sqrt(),
                "{tenant}: {counts:?}"
            );
        }
    }

    #[test]
    fn a_name_that_is_met_twice_is_kept_once() {
        let (mut names, mut blinds) = (Names::default(), Blinds::default());
        for _ in 0..3 {
            names.see(0, b"jobs".to_vec(), &mut blinds);
        }
        assert_eq!(names.patterns["jobs"].names.len(), 1);
        assert_eq!(names.patterns["jobs"].seen, 1);
    }

    #[test]
    fn a_rare_pattern_is_kept_beside_a_common_one() {
        let (mut names, mut blinds) = (Names::default(), Blinds::default());
        for i in 0..100_000 {
            names.see(0, format!("cache:{i}").into_bytes(), &mut blinds);
        }
        names.see(0, b"jobs".to_vec(), &mut blinds);
        names.merge();
        assert_eq!(names.patterns["cache:*"].names.len(), PER_PATTERN);
        assert_eq!(names.patterns["cache:*"].seen, 100_000);
        assert_eq!(names.patterns["jobs"].names.len(), 1);
    }
}
