//! Bounded, read-only looks at keys.
//!
//! A look never reads a whole large value: strings by GETRANGE, hashes by the names of their fields and those values that
//! are short, lists and sets by one element where the mean size of the elements is small.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use redis::{Cmd, FromRedisValue, Value, cmd};
use tokio::time::Instant;

use crate::{
    budget::Budget,
    error::Result,
    glimpse::{Glimpse, Shape},
    source::Source,
};

/// The bytes that are read of a string.
const HEAD: u64 = 1024;
/// Values of fields up to this length are read.
const SHORT: u64 = 512;
/// Elements and members are read where their mean size is at most this.
const ELEMENT: u64 = 16 * 1024;
/// Hashes up to this many fields show all of them.
const FIELDS: u64 = 64;
/// The names of a hash's fields are read where they are not longer than this altogether.
const NAMES: u64 = 64 * 1024;
/// Fields of libraries that can be large. What they hold is not counted against the names.
const LARGE: [&str; 10] = [
    "data",
    "opts",
    "returnvalue",
    "stacktrace",
    "failedReason",
    "msg",
    "result",
    "exc_info",
    "payload",
    "description",
];
/// The commands sent in one pipeline.
const BATCH: usize = 256;
/// What a budget without an end is cut to.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// What has been seen of a server so far.
pub(crate) struct Look<'a> {
    source: &'a mut dyn Source,
    /// Closer looks that are still allowed.
    left: usize,
    ends: Instant,
    known: BTreeMap<Vec<u8>, Glimpse>,
    /// The names of the sampled keys.
    pub(crate) keys: Vec<Vec<u8>>,
    /// Whether these are all keys that match, and all looks that were to be had were.
    pub(crate) is_complete: bool,
    /// The digests of known scripts that the server has.
    pub(crate) scripts: BTreeSet<&'static str>,
    /// The server's time since the Unix epoch.
    pub(crate) now: Duration,
}

impl<'a> Look<'a> {
    pub(crate) async fn begin(
        source: &'a mut dyn Source,
        budget: &Budget,
        scripts: &[&'static str],
    ) -> Result<Self> {
        let now = source.now().await?;
        let begun = Instant::now();
        let ends = begun.checked_add(budget.time).unwrap_or(begun + YEAR);
        // Half of the time is for looking closer.
        let sample = source.sample(&budget.matching, budget.keys, budget.time / 2);
        let (keys, is_complete) = sample.await?;
        let known = source.scripts(scripts).await?;
        let has = scripts.iter().zip(known).filter(|(_, known)| *known);
        let look = Self {
            source,
            left: budget.looks,
            ends,
            known: BTreeMap::new(),
            keys,
            is_complete,
            scripts: has.map(|(digest, _)| *digest).collect(),
            now,
        };
        Ok(look)
    }

    /// Keys that are looked at before the sample.
    pub(crate) fn hints(&self) -> Vec<Vec<u8>> {
        self.source.hints()
    }

    /// Everything that has been looked at.
    pub(crate) fn seen(&self) -> impl Iterator<Item = &Glimpse> {
        self.known.values().filter(|glimpse| glimpse.exists())
    }

    /// Looks at these keys, as far as the budget goes, and returns what is known of them.
    pub(crate) async fn at(&mut self, keys: Vec<Vec<u8>>) -> Result<Vec<Glimpse>> {
        let mut fresh: Vec<Vec<u8>> = keys
            .iter()
            .filter(|key| !self.known.contains_key(*key))
            .cloned()
            .collect();
        fresh.sort();
        fresh.dedup();
        let wanted = fresh.len();
        if Instant::now() >= self.ends {
            fresh.clear();
        }
        fresh.truncate(self.left);
        self.is_complete &= fresh.len() == wanted;
        self.left -= fresh.len();
        for batch in fresh.chunks(BATCH) {
            for glimpse in glimpses(self.source, batch).await? {
                self.known.insert(glimpse.key.clone(), glimpse);
            }
        }
        let known = |key: &Vec<u8>| self.known.get(key).cloned();
        Ok(keys.iter().filter_map(known).collect())
    }

    /// Looks at one key; an absent one if the budget is used up.
    pub(crate) async fn one(&mut self, key: impl AsRef<[u8]>) -> Result<Glimpse> {
        let key = key.as_ref().to_owned();
        let found = self.at(vec![key.clone()]).await?;
        Ok(found.into_iter().next().unwrap_or(Glimpse {
            key,
            ttl: None,
            shape: Shape::Absent,
        }))
    }
}

async fn ask(source: &mut dyn Source, commands: Vec<Cmd>) -> Result<Vec<Option<Value>>> {
    match commands.is_empty() {
        true => Ok(Vec::new()),
        false => source.ask(commands).await,
    }
}

fn read<T: FromRedisValue>(reply: Option<Value>) -> Option<T> {
    redis::from_redis_value(reply?).ok()
}

fn on(name: &str, key: &[u8]) -> Cmd {
    let mut cmd = cmd(name);
    cmd.arg(key);
    cmd
}

/// Three round trips for any number of keys: types, sizes, contents; a fourth and fifth for values of fields.
async fn glimpses(source: &mut dyn Source, keys: &[Vec<u8>]) -> Result<Vec<Glimpse>> {
    let questions = keys
        .iter()
        .flat_map(|key| [on("TYPE", key), on("PTTL", key)]);
    let mut replies = ask(source, questions.collect()).await?.into_iter();
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let kind: String = read(replies.next().flatten()).unwrap_or_default();
        let ttl: i64 = read(replies.next().flatten()).unwrap_or(-1);
        found.push((
            kind,
            Glimpse {
                key: key.clone(),
                ttl: u64::try_from(ttl).ok().map(Duration::from_millis),
                shape: Shape::Absent,
            },
        ));
    }
    measure(source, &mut found).await?;
    show(source, &mut found).await?;
    let mut found: Vec<Glimpse> = found.into_iter().map(|(_, glimpse)| glimpse).collect();
    fill_fields(source, &mut found).await?;
    Ok(found)
}

/// How large each is.
async fn measure(source: &mut dyn Source, found: &mut [(String, Glimpse)]) -> Result<()> {
    let mut questions = Vec::new();
    for (kind, glimpse) in found.iter() {
        let length = match kind.as_str() {
            "string" => "STRLEN",
            "hash" => "HLEN",
            "list" => "LLEN",
            "set" => "SCARD",
            "zset" => "ZCARD",
            "stream" => "XLEN",
            _ => continue,
        };
        questions.push(on(length, &glimpse.key));
    }
    let mut replies = ask(source, questions).await?.into_iter();
    for (kind, glimpse) in found.iter_mut() {
        let mut len = || read(replies.next().flatten()).unwrap_or(0);
        glimpse.shape = match kind.as_str() {
            "string" => Shape::Text {
                len: len(),
                head: Vec::new(),
            },
            "hash" => Shape::Hash {
                len: len(),
                fields: Vec::new(),
            },
            "list" => Shape::List {
                len: len(),
                first: None,
            },
            "set" => Shape::Set {
                len: len(),
                some: Vec::new(),
            },
            "zset" => Shape::Sorted {
                len: len(),
                first: None,
            },
            "stream" => Shape::Stream {
                len: len(),
                first: Vec::new(),
            },
            "none" | "" => Shape::Absent,
            _ => Shape::Other,
        };
    }
    Ok(())
}

/// Of which keys elements are read.
async fn are_small(source: &mut dyn Source, found: &[(String, Glimpse)]) -> Result<Vec<bool>> {
    // The mean size of the elements decides whether one of them is read, and the size of a hash without its large values whether its names are.
    let has_elements = |shape: &Shape| {
        matches!(
            shape,
            Shape::Hash { .. }
                | Shape::List { .. }
                | Shape::Set { .. }
                | Shape::Sorted { .. }
                | Shape::Stream { .. }
        )
    };
    let questions = found
        .iter()
        .filter(|(_, glimpse)| has_elements(&glimpse.shape))
        .map(|(_, glimpse)| {
            let mut usage = cmd("MEMORY");
            usage.arg("USAGE").arg(&glimpse.key);
            // Of a small hash every field counts.
            if matches!(glimpse.shape, Shape::Hash { len, .. } if len <= FIELDS) {
                usage.arg("SAMPLES").arg(0);
            }
            usage
        });
    let mut sizes = ask(source, questions.collect()).await?.into_iter();
    let mut small = Vec::with_capacity(found.len());
    let mut large = Vec::new();
    for (at, (_, glimpse)) in found.iter().enumerate() {
        if !has_elements(&glimpse.shape) {
            small.push(false);
            continue;
        }
        let bytes = read::<u64>(sizes.next().flatten());
        small.push(match (&glimpse.shape, bytes) {
            (Shape::Hash { len, .. }, Some(bytes)) if *len <= FIELDS && bytes > NAMES => {
                large.push((at, bytes));
                false
            }
            (Shape::Hash { len, .. }, Some(_)) if *len <= FIELDS => true,
            (_, Some(bytes)) => bytes / glimpse.len().max(1) <= ELEMENT,
            (_, None) => false,
        });
    }
    let questions = large.iter().flat_map(|(at, _)| {
        let key = &found[*at].1.key;
        LARGE.map(|field| on("HSTRLEN", key).arg(field).take())
    });
    let lengths = ask(source, questions.collect()).await?;
    for ((at, bytes), lengths) in large.iter().zip(lengths.chunks(LARGE.len())) {
        let known = lengths.iter().cloned().filter_map(read::<u64>);
        // An allocation may be an eighth larger than what is in it.
        let known = known.fold(0, |sum: u64, len| sum.saturating_add(len + len / 8));
        small[*at] = known.saturating_add(NAMES) >= *bytes;
    }
    Ok(small)
}

/// What each contains.
async fn show(source: &mut dyn Source, found: &mut [(String, Glimpse)]) -> Result<()> {
    let small = are_small(source, found).await?;
    let mut questions = Vec::new();
    for ((_, glimpse), small) in found.iter().zip(&small) {
        let key = &glimpse.key;
        let question = match &glimpse.shape {
            Shape::Text { .. } => on("GETRANGE", key).arg(0).arg(HEAD - 1).take(),
            Shape::Hash { len, .. } if *small && *len <= FIELDS => on("HKEYS", key),
            Shape::Hash { .. } if *small => on("HRANDFIELD", key).arg(16).take(),
            Shape::List { .. } if *small => on("LRANGE", key).arg(0).arg(0).take(),
            Shape::Set { .. } if *small => on("SRANDMEMBER", key).arg(8).take(),
            Shape::Sorted { .. } if *small => {
                on("ZRANGE", key).arg(0).arg(0).arg("WITHSCORES").take()
            }
            Shape::Stream { .. } if *small => on("XRANGE", key)
                .arg("-")
                .arg("+")
                .arg("COUNT")
                .arg(1)
                .take(),
            _ => on("EXISTS", key),
        };
        questions.push(question);
    }
    let replies = ask(source, questions).await?;
    for (((_, glimpse), small), reply) in found.iter_mut().zip(small).zip(replies) {
        match &mut glimpse.shape {
            Shape::Text { head, .. } => *head = read(reply).unwrap_or_default(),
            Shape::Hash { fields, .. } if small => {
                let names: Vec<Vec<u8>> = read(reply).unwrap_or_default();
                *fields = names.into_iter().map(|name| (name, None)).collect();
            }
            Shape::List { first, .. } if small => {
                *first = read::<Vec<Vec<u8>>>(reply).and_then(|all| all.into_iter().next());
            }
            Shape::Set { some, .. } if small => *some = read(reply).unwrap_or_default(),
            Shape::Sorted { first, .. } if small => {
                *first = read::<Vec<(Vec<u8>, f64)>>(reply).and_then(|all| all.into_iter().next());
            }
            Shape::Stream { first, .. } if small => *first = entry(reply),
            _ => {}
        }
    }
    Ok(())
}

/// The fields of the one entry that XRANGE returned.
fn entry(reply: Option<Value>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let entries: Vec<(Vec<u8>, Vec<Vec<u8>>)> = read(reply).unwrap_or_default();
    let fields = entries.into_iter().next().map(|(_, fields)| fields);
    let fields = fields.unwrap_or_default();
    fields
        .chunks_exact(2)
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect()
}

/// Values of fields, where they are short.
async fn fill_fields(source: &mut dyn Source, found: &mut [Glimpse]) -> Result<()> {
    let mut questions = Vec::new();
    for glimpse in found.iter() {
        for (name, _) in glimpse.fields() {
            questions.push(on("HSTRLEN", &glimpse.key).arg(name).take());
        }
    }
    let mut lengths = ask(source, questions).await?.into_iter();
    let mut questions = Vec::new();
    let mut wanted = Vec::new();
    for (at, glimpse) in found.iter().enumerate() {
        let mut short = Vec::new();
        for (n, (name, _)) in glimpse.fields().iter().enumerate() {
            if read::<u64>(lengths.next().flatten()).is_some_and(|len| len <= SHORT) {
                short.push((n, name.clone()));
            }
        }
        if !short.is_empty() {
            let mut get = on("HMGET", &glimpse.key);
            for (_, name) in &short {
                get.arg(name);
            }
            questions.push(get);
            wanted.push((at, short));
        }
    }
    let replies = ask(source, questions).await?;
    for ((at, short), reply) in wanted.into_iter().zip(replies) {
        let values: Vec<Option<Vec<u8>>> = read(reply).unwrap_or_default();
        if let Shape::Hash { fields, .. } = &mut found[at].shape {
            for ((n, _), value) in short.into_iter().zip(values) {
                fields[n].1 = value;
            }
        }
    }
    Ok(())
}
