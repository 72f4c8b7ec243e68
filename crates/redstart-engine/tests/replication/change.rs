//! What a master does to its data, and what of it its replicas have.

use bytes::Bytes;
use redstart_engine::Reply;

use crate::{
    contents::{Client, everything, unseen},
    random::{Chance, value},
    wire::Wire,
};

/// A field of a section of INFO.
fn info(client: &mut impl Client, section: &str, name: &str) -> Option<String> {
    let info = match client.line(&format!("INFO {section}")) {
        Reply::Bulk(text) | Reply::Verbatim { text, .. } => {
            String::from_utf8(text.to_vec()).unwrap()
        }
        other => panic!("{other:?}"),
    };
    let mut lines = info.lines();
    lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.to_owned()))
}

/// A field of INFO replication.
pub(crate) fn field(client: &mut impl Client, name: &str) -> Option<String> {
    info(client, "replication", name)
}

/// A field of INFO stats.
pub(crate) fn count(client: &mut impl Client, name: &str) -> u64 {
    info(client, "stats", name).unwrap().parse().unwrap()
}

/// A master whose memory is short now and then: what grows then evicts keys of any kind, and its replicas have to hear of
/// each.
pub(crate) struct Shortage {
    /// Where in each period of this many changes it begins, and where it is over.
    period: u64,
    begins: u64,
    ends: u64,
    before: u64,
    evicted: u64,
}

impl Shortage {
    /// One between every second cut and the next, with a cut in its middle.
    pub(crate) fn new(pace: u64) -> Shortage {
        Shortage {
            period: 2 * pace,
            begins: 4 * pace / 3,
            ends: 5 * pace / 3,
            before: 0,
            evicted: 0,
        }
    }

    /// Before the `n`th change. True at the end of a shortage: the replica should have all that happened.
    pub(crate) fn step(&mut self, master: &mut impl Client, n: u64) -> bool {
        /// The limit is measured again after this many changes, since buffers of replicas count as well.
        const OFTEN: u64 = 50;
        let at = n % self.period;
        if at == self.ends + 1 {
            // A server that was started again meanwhile has begun to count again.
            let evicted = count(master, "evicted_keys");
            self.evicted += evicted.saturating_sub(self.before);
            assert_eq!(master.line("CONFIG SET maxmemory 0"), Reply::OK);
            return true;
        }
        if at > self.begins && at < self.ends && (at - self.begins) % OFTEN == 1 {
            // Sizes are exact only while there is a limit.
            let any = "CONFIG SET maxmemory-policy allkeys-random maxmemory 4gb";
            assert_eq!(master.line(any), Reply::OK);
            let used = info(master, "memory", "used_memory").unwrap();
            let most = used.parse::<u64>().unwrap() + 4096;
            let set = master.line(&format!("CONFIG SET maxmemory {most}"));
            assert_eq!(set, Reply::OK);
            if at == self.begins + 1 {
                self.before = count(master, "evicted_keys");
            }
        }
        false
    }

    /// How many keys were evicted, which is some.
    pub(crate) fn evicted(&self) -> u64 {
        assert!(self.evicted > 0, "no key was evicted");
        self.evicted
    }
}

/// Chance by a seed that is new each time, and is told when a test fails.
pub(crate) fn seeded() -> Chance {
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    println!("seed {seed}");
    Chance::new(seed)
}

/// How many writes there are between two cuts: a cut takes as long as thousands of writes.
pub(crate) fn pace(writes: u64) -> u64 {
    (writes / 400).max(150)
}

/// Lets the log be rewritten long before it is as large as it usually would be: each restart reads it.
pub(crate) fn keep_short(engine: &redstart_engine::Engine) {
    let set = engine
        .session()
        .line("CONFIG SET auto-aof-rewrite-min-size 2mb");
    assert_eq!(set, Reply::OK);
}

/// What a server tells its replicas: not when a consumer was seen, nor how many entries a group has read.
pub(crate) fn told(client: &mut impl Client) -> Vec<String> {
    let without_count = |line: String| {
        let mut parts = line.split("Bulk(b\"entries-read\"), ");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            text + part.split_once(", ").map_or(part, |(_, rest)| rest)
        })
    };
    let lines = unseen(everything(client));
    lines.into_iter().map(without_count).collect()
}

pub(crate) fn word(text: impl Into<Vec<u8>>) -> Bytes {
    Bytes::from(text.into())
}

const SCRIPT: &str = "redis.call('SET', KEYS[1], math.random()) redis.call('RPUSH', KEYS[2], redis.call('TIME')[2]) \
                      return redis.call('SPOP', KEYS[3])";
pub(crate) const LIBRARY: &str = "#!lua name=mine\nredis.register_function('bump', function(keys, args) \
                       return redis.call('INCRBY', keys[1], args[1]) end)";

/// One change of some kind.
pub(crate) fn change(wire: &mut Wire, chance: &mut Chance) {
    let n = chance.below(30);
    let lines = match chance.below(23) {
        0 => vec![format!(
            "SET s{n} {} PX {}",
            chance.next(),
            20 + chance.below(3000)
        )],
        1 => vec![format!("INCRBYFLOAT f{n} 0.1"), format!("EXPIRE f{n} 1")],
        2 => vec![
            format!("SADD set{n} a b c {}", chance.next()),
            format!("SPOP set{n} 2"),
        ],
        3 => vec![
            "MULTI".into(),
            format!("INCR n{n}"),
            format!("RPUSH l{n} x"),
            format!("SELECT {}", n % 3),
            format!("SET m{n} 1"),
            "EXEC".into(),
        ],
        4 => vec![
            format!("XADD x{n} * f v"),
            format!("XADD x{n} MAXLEN ~ 50 * f {n}"),
        ],
        // A server does not tell its replicas of a consumer that has read nothing.
        5 => [
            "XADD x{n} * f v",
            "XGROUP CREATE x{n} g 0",
            "XGROUP CREATECONSUMER x{n} g c",
            "XGROUP CREATECONSUMER x{n} g d",
            "XREADGROUP GROUP g c COUNT 3 STREAMS x{n} >",
            "XAUTOCLAIM x{n} g d 0 0 COUNT 1",
        ]
        .map(|line| line.replace("{n}", &n.to_string()))
        .into(),
        6 => vec![format!("GETEX s{n} PERSIST"), format!("GETDEL s{}", n + 1)],
        7 => vec![format!("LMPOP 2 l{n} l{} LEFT COUNT 3", n + 1)],
        8 => vec![
            format!("ZADD z{n} {} m{} 1.5 x", chance.below(99), chance.below(9)),
            format!("ZPOPMIN z{n}"),
        ],
        9 => vec![
            format!("HSET h{n} f{} {}", chance.below(9), chance.next()),
            format!("HINCRBYFLOAT h{n} f0 1.5"),
        ],
        10 => vec![
            format!("RENAME n{n} r{n}"),
            format!("COPY r{n} c{n} REPLACE"),
        ],
        11 => vec![
            format!("SELECT {}", chance.below(3)),
            format!("SET other{n} 1"),
        ],
        12 => vec![
            format!("PFADD p{n} {}", chance.next()),
            format!("PFCOUNT p{n}"),
        ],
        13 => vec![
            format!("SETRANGE raw{n} 10 abc"),
            format!("SETBIT raw{n} 7 1"),
            format!("APPEND raw{n} x"),
        ],
        14 => vec![format!("FCALL bump 1 count{n} 3")],
        15 => vec![format!("MOVE s{n} 2"), format!("DEL l{n}")],
        16 => vec![format!("PUBLISH channel {n}")],
        17 => vec![format!("BLPOP l{n} 0.01")],
        18 if n == 0 => vec!["FLUSHDB".into()],
        19 if n < 3 => vec!["SWAPDB 0 1".into()],
        20 => vec![format!("SET large{n} {}", "x".repeat(8000))],
        21 => {
            wire.ask(&[
                word("EVAL"),
                word(SCRIPT),
                word("3"),
                word(format!("e{n}")),
                word(format!("l{n}")),
                word(format!("set{n}")),
            ]);
            return;
        }
        _ => {
            let key = word(format!("v{n}"));
            wire.ask(&[word("DEL"), key.clone()]);
            let kind = chance.next();
            for args in value(chance, kind, &key).commands.iter().take(30) {
                wire.ask(args);
            }
            return;
        }
    };
    for line in lines {
        // An error changes nothing on either side.
        wire.line(&line);
    }
}
