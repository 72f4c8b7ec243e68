//! What is evicted is as useful as what redis-server evicts: the hit ratios of a cache with a skewed
//! workload, and which deadlines go first.
//!
//! Both sides get room for the same number of keys, measured before, since a key needs more memory on one
//! than on the other. Which keys go is chance on both: shares are compared, with room for chance.

use std::time::Duration;

use bytes::Bytes;
use redstart_engine::{Engine, Reply, Session};
use redstart_testkit::figure;

use crate::{Server, Wire};

const KEYS: usize = 4000;
/// How many of them there is room for.
const ROOM: usize = 1000;
const VALUE: usize = 400;

trait Client {
    fn ask(&mut self, args: &[Bytes]) -> Reply;

    /// Asks many things at once.
    fn batch(&mut self, commands: &[Vec<Bytes>]) -> Vec<Reply>;

    fn line(&mut self, line: &str) -> Reply {
        self.ask(&words(line))
    }

    fn info(&mut self, name: &str) -> u64 {
        let text = match self.line("INFO") {
            Reply::Bulk(text) | Reply::Verbatim { text, .. } => text,
            other => panic!("{other:?}"),
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap().trim().parse().unwrap()
    }
}

fn words(line: &str) -> Vec<Bytes> {
    line.split(' ')
        .map(|word| Bytes::from(word.to_owned()))
        .collect()
}

impl Client for Session {
    fn ask(&mut self, args: &[Bytes]) -> Reply {
        self.execute(args).into_reply().unwrap()
    }

    fn batch(&mut self, commands: &[Vec<Bytes>]) -> Vec<Reply> {
        self.execute_batch(commands)
    }
}

impl Client for Wire {
    fn ask(&mut self, args: &[Bytes]) -> Reply {
        self.call(args)
    }

    fn batch(&mut self, commands: &[Vec<Bytes>]) -> Vec<Reply> {
        commands.iter().for_each(|args| self.send(args));
        commands.iter().map(|_| self.read()).collect()
    }
}

/// Numbers that are the same in each run.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Keys by Zipf's law: the n-th most popular one is asked for with a probability that falls as 1/n.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new() -> Zipf {
        let mut sum = 0.0;
        Zipf(
            (1..=KEYS)
                .map(|n| {
                    sum += 1.0 / n as f64;
                    sum
                })
                .collect(),
        )
    }

    fn draw(&self, chance: &mut Chance) -> usize {
        let at = chance.share() * self.0[KEYS - 1];
        self.0.partition_point(|sum| *sum < at).min(KEYS - 1)
    }
}

fn set(key: usize, expiry: &str) -> Vec<Bytes> {
    words(&format!("SET key:{key:05} {}{expiry}", "x".repeat(VALUE)))
}

/// Limits the memory so that there is room for [`ROOM`] keys.
fn limit(client: &mut impl Client, policy: &str, expiry: &str) {
    client.line("FLUSHALL");
    // The tables of both grow in steps: the last of them is not in the measure.
    let fill = |from: usize, to: usize| (from..to).map(|n| set(n, expiry)).collect::<Vec<_>>();
    client.batch(&fill(0, ROOM / 2));
    let half = client.info("used_memory");
    client.batch(&fill(ROOM / 2, ROOM));
    let whole = client.info("used_memory");
    client.line("FLUSHALL");
    let room = whole + (whole - half) / 50;
    client.line(&format!("CONFIG SET maxmemory-policy {policy}"));
    client.line(&format!("CONFIG SET maxmemory {room}"));
}

/// The share of hits of a cache, once it is full.
fn hit_ratio(client: &mut impl Client, expiry: &str, rounds: usize, pause: Duration) -> f64 {
    const AT_ONCE: usize = 50;
    let (zipf, mut chance) = (Zipf::new(), Chance(0x9E37_79B9_7F4A_7C15));
    let (mut hits, mut asked) = (0, 0);
    for round in 0..rounds {
        let keys: Vec<usize> = (0..AT_ONCE).map(|_| zipf.draw(&mut chance)).collect();
        let gets: Vec<Vec<Bytes>> = keys
            .iter()
            .map(|key| words(&format!("GET key:{key:05}")))
            .collect();
        let found = client.batch(&gets);
        let missed = keys
            .iter()
            .zip(&found)
            .filter(|(_, reply)| **reply == Reply::Nil);
        let sets: Vec<Vec<Bytes>> = missed.map(|(key, _)| set(*key, expiry)).collect();
        if round >= rounds / 2 {
            asked += AT_ONCE;
            hits += AT_ONCE - sets.len();
        }
        for reply in client.batch(&sets) {
            assert_eq!(reply, Reply::OK);
        }
        if round % (rounds / 8) == 0 {
            std::thread::sleep(pause);
        }
    }
    f64::from(hits as u32) / f64::from(asked as u32)
}

fn compare_hits(policy: &str, expiry: &str, pause: Duration) -> (f64, f64) {
    const ROUNDS: usize = 400;
    let server = Server::start();
    let mut theirs = server.connect();
    let engine = Engine::new();
    let mut ours = engine.session();
    limit(&mut ours, policy, expiry);
    limit(&mut theirs, policy, expiry);
    // At the same time, so that the pauses are spent once.
    let (ours, theirs) = std::thread::scope(|scope| {
        let ours = scope.spawn(|| {
            let ratio = hit_ratio(&mut ours, expiry, ROUNDS, pause);
            (ratio, ours.line("DBSIZE"), ours.info("evicted_keys"))
        });
        let ratio = hit_ratio(&mut theirs, expiry, ROUNDS, pause);
        let theirs = (ratio, theirs.line("DBSIZE"), theirs.info("evicted_keys"));
        (ours.join().unwrap(), theirs)
    });
    figure(format!(
        "{policy}: hits, keys, evictions {ours:?}, redis-server {theirs:?}"
    ));
    assert!(
        ours.2 > 500 && theirs.2 > 500,
        "{policy}: {ours:?} {theirs:?}"
    );
    // A cache of this size that keeps any keys has hits in the middle of this range.
    assert!(ours.0 > theirs.0 - 0.08, "{policy}: {ours:?} {theirs:?}");
    (ours.0, theirs.0)
}

#[test]
fn keys_that_were_used_lately_stay_as_with_the_server() {
    compare_hits("allkeys-lru", "", Duration::from_millis(400));
}

#[test]
fn keys_that_are_used_often_stay_as_with_the_server() {
    compare_hits("allkeys-lfu", "", Duration::ZERO);
    compare_hits("volatile-lfu", " EX 100000", Duration::ZERO);
}

#[test]
fn policies_that_judge_are_better_than_chance() {
    let (random, _) = compare_hits("allkeys-random", "", Duration::ZERO);
    let (often, _) = compare_hits("allkeys-lfu", "", Duration::ZERO);
    assert!(often > random, "{often} {random}");
}

#[test]
fn near_deadlines_go_first_as_with_the_server() {
    let server = Server::start();
    let engine = Engine::new();
    let mut shares = Vec::new();
    let clients: [&mut dyn FnMut() -> f64; 2] =
        [&mut || survivors(&mut engine.session()), &mut || {
            survivors(&mut server.connect())
        }];
    for measure in clients {
        shares.push(measure());
    }
    figure(format!(
        "volatile-ttl: far deadlines among those that stay {shares:?}"
    ));
    assert!(
        shares[0] > shares[1] - 0.08 && shares[0] > 0.6,
        "{shares:?}"
    );
}

/// Which share of the keys that stay are of the half with the later deadlines.
fn survivors(client: &mut impl Client) -> f64 {
    limit(client, "volatile-ttl", " EX 100000");
    let mut chance = Chance(0x2545_F491_4F6C_DD1D);
    let mut deadlines = Vec::new();
    for n in 0..2 * ROOM {
        let seconds = 1000 + chance.next() % 1_000_000;
        deadlines.push(seconds);
        client.ask(&set(n, &format!(" EX {seconds}")));
    }
    let mut sorted = deadlines.clone();
    sorted.sort_unstable();
    let (mut there, mut late) = (0, 0);
    for (n, deadline) in deadlines.iter().enumerate() {
        if client.line(&format!("EXISTS key:{n:05}")) == Reply::Int(1) {
            there += 1;
            late += u32::from(*deadline > sorted[ROOM]);
        }
    }
    f64::from(late) / f64::from(there)
}
