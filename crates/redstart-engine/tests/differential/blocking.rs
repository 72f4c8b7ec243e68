//! Many clients that wait for overlapping keys: the same ones get the same elements.

use std::time::{Duration, Instant};

use redstart_engine::{Blocked, Engine, Outcome, Reply, Session};
use redstart_testkit::{Kind, scale};

use super::generator::Chance;
use crate::{Server, Wire, same, split};

const WAITS: &[&str] = &[
    "BLPOP a b 0",
    "BRPOP b a 0",
    "BLPOP c 0",
    "BLMOVE a c LEFT RIGHT 0",
    "BRPOPLPUSH b a 0",
    "BLMPOP 0 2 a b LEFT COUNT 2",
    "BZPOPMIN z y 0",
    "BZPOPMAX y 0",
    "BZMPOP 0 2 y z MAX COUNT 2",
    "XREAD BLOCK 0 STREAMS s $",
    "XREADGROUP GROUP g me BLOCK 0 STREAMS s >",
    "XREADGROUP GROUP g you COUNT 1 BLOCK 0 STREAMS s >",
];

/// Several lines are one push: a transaction.
const PUSHES: &[&[&str]] = &[
    &["RPUSH a 1"],
    &["RPUSH a 1 2 3"],
    &["LPUSH b 4 5"],
    &["RPUSH c 6"],
    &["ZADD z 1 one 2 two"],
    &["ZADD y 3 three"],
    &["ZADD y 1 first 2 second 3 third"],
    &["XADD s $id f v"],
    &["MULTI", "RPUSH b 7", "RPUSH a 8 9", "EXEC"],
    &["MULTI", "RPUSH a 10", "DEL a", "EXEC"],
    &[
        "MULTI",
        "RPUSH a 11",
        "ZADD z 5 five",
        "XADD s $id f v",
        "RPUSH c 12",
        "EXEC",
    ],
    &[
        "MULTI",
        "LPUSH a 13 14",
        "LPOP a",
        "SET b x",
        "DEL b",
        "EXEC",
    ],
    &["EVAL \"redis.call('RPUSH', 'b', 15, 16) redis.call('RPUSH', 'a', 17) return 1\" 0"],
    &["MULTI", "RPUSH d 18 19 20", "RENAME d a", "EXEC"],
    &[
        "MULTI",
        "ZADD w 1 x 2 y",
        "ZUNIONSTORE z 1 w",
        "DEL w",
        "EXEC",
    ],
    &["MULTI", "SADD t 3 1 2", "SORT t STORE b", "DEL t", "EXEC"],
    &["MULTI", "RPUSH d 21", "COPY d a REPLACE", "DEL d", "EXEC"],
    &["SET a string", "DEL a"],
];

/// Valkey carries out the command of a woken client again, with all of its keys, where Redis 7.0 serves
/// it from the key that woke it. With one key ready at a time that is the same.
fn also_on_valkey(line: &str) -> bool {
    !line.starts_with("BRPOPLPUSH") && !line.starts_with("BLMOVE")
}

struct Waiting {
    line: &'static str,
    wire: Wire,
    /// Kept: a client that ends is unblocked.
    _session: Session,
    blocked: Blocked,
}

fn wait_on_server(monitor: &mut Wire, count: usize, history: &[String]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let Reply::Bulk(info) = monitor.call(&split("INFO clients")) else {
            panic!("INFO is text");
        };
        let info = String::from_utf8_lossy(&info).into_owned();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("blocked_clients:"));
        let blocked: usize = line.unwrap().trim().parse().unwrap();
        if blocked == count {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{blocked} wait on the server, {count} on the engine, after {history:#?}"
        );
    }
}

/// Clients that were served on the engine must have been served alike on the server.
fn settle(waiting: &mut Vec<Waiting>, history: &[String]) {
    waiting.retain_mut(|client| {
        let Some(ours) = client.blocked.try_take() else {
            return true;
        };
        let theirs = client.wire.read_within(Duration::from_secs(20));
        assert!(
            theirs.as_ref().is_some_and(|theirs| same(&ours, theirs)),
            "{}\n engine: {ours:?}\n server: {theirs:?}\nafter {history:#?}",
            client.line
        );
        false
    });
}

fn rounds(kind: Kind) {
    let server = Server::start_kind(kind);
    let mut monitor = server.connect();
    let fresh = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    let seed = std::env::var("REDSTART_FUZZ_SEED").map_or(fresh, |seed| seed.parse().unwrap());
    println!("REDSTART_FUZZ_SEED={seed}");
    let mut chance = Chance::new(seed);
    for _ in 0..scale(30, "wake rounds") {
        let engine = Engine::new();
        let (mut pusher, mut wire) = (engine.session(), server.connect());
        let mut history = Vec::new();
        let mut both = |line: &str, history: &mut Vec<String>| {
            history.push(line.to_owned());
            let args = split(line);
            let theirs = wire.call(&args);
            let ours = pusher.execute(&args).into_reply().unwrap();
            assert!(
                same(&ours, &theirs),
                "{line}\n engine: {ours:?}\n server: {theirs:?}\nafter {history:#?}"
            );
        };
        both("FLUSHALL", &mut history);
        both("XGROUP CREATE s g $ MKSTREAM", &mut history);
        // Valkey makes a consumer when it starts to wait, Redis 7.0 when it gets something.
        both("XGROUP CREATECONSUMER s g me", &mut history);
        both("XGROUP CREATECONSUMER s g you", &mut history);
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut id = 0;
        for _ in 0..30 {
            while waiting.len() < 12 && chance.below(4) > 0 {
                let line = chance.of(WAITS);
                if kind == Kind::Valkey && !also_on_valkey(line) {
                    continue;
                }
                let mut session = engine.session();
                match session.execute(&split(line)) {
                    Outcome::Blocked(blocked) => {
                        history.push(format!("[{}] {line}", waiting.len()));
                        let mut wire = server.connect();
                        wire.send(&split(line));
                        waiting.push(Waiting {
                            line,
                            wire,
                            _session: session,
                            blocked,
                        });
                        wait_on_server(&mut monitor, waiting.len(), &history);
                    }
                    Outcome::Reply(ours) => {
                        history.push(line.to_owned());
                        let theirs = server.connect().call(&split(line));
                        assert!(
                            same(&ours, &theirs),
                            "{line}\n engine: {ours:?}\n server: {theirs:?}\nafter {history:#?}"
                        );
                        settle(&mut waiting, &history);
                    }
                }
            }
            id += 1;
            let push = PUSHES[chance.below(PUSHES.len())];
            let keys = push.concat();
            if kind == Kind::Valkey && keys.contains('b') && keys.contains('a') {
                continue;
            }
            for line in push {
                both(&line.replace("$id", &format!("{id}-*")), &mut history);
            }
            settle(&mut waiting, &history);
            wait_on_server(&mut monitor, waiting.len(), &history);
            for line in [
                "LRANGE a 0 -1",
                "LRANGE b 0 -1",
                "LRANGE c 0 -1",
                "ZRANGE y 0 -1",
                "ZRANGE z 0 -1",
                "XPENDING s g",
            ] {
                both(line, &mut history);
                history.pop();
            }
        }
        drop(waiting);
        wait_on_server(&mut monitor, 0, &[]);
    }
}

#[test]
fn waiting_clients_are_served_as_on_redis() {
    rounds(Kind::Redis);
}

#[test]
fn waiting_clients_are_served_as_on_valkey() {
    rounds(Kind::Valkey);
}
