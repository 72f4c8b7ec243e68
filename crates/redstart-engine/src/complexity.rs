//! How much work commands do, counted and not timed.

use std::time::Duration;

use bytes::Bytes;

use crate::{Clock, Engine, Outcome, Reply, Session, free};

fn run(session: &mut Session, line: &str) -> Outcome {
    let args: Vec<Bytes> = line
        .split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    session.execute(&args)
}

fn ask(session: &mut Session, line: &str) -> Reply {
    run(session, line).into_reply().unwrap()
}

/// Adds `count` numbered elements by one command.
fn fill(session: &mut Session, command: &str, count: usize) {
    let words = command.split(' ').map(str::to_owned);
    let scored = command.starts_with('Z');
    let elements = (0..count).flat_map(|n| match scored {
        true => vec![n.to_string(), format!("m{n}")],
        false => vec![format!("m{n}")],
    });
    let args: Vec<Bytes> = words.chain(elements).map(Bytes::from).collect();
    assert!(!session.execute(&args).into_reply().unwrap().is_error());
}

fn visited(engine: &Engine) -> u64 {
    engine.inner.lock().stats.visited
}

#[test]
fn a_push_tries_to_serve_only_clients_that_it_has_elements_for() {
    let engine = Engine::new();
    let mut pusher = engine.session();
    for wait in ["BLPOP k 0", "BZPOPMIN k 0", "BLMOVE k target LEFT RIGHT 0"] {
        let mut waiting: Vec<(Session, Outcome)> = (0..1000)
            .map(|_| {
                let mut session = engine.session();
                let outcome = run(&mut session, wait);
                (session, outcome)
            })
            .collect();
        let before = engine.inner.lock().blocking.tries;
        let push = if wait.starts_with("BZ") {
            "ZADD k 1 a 2 b"
        } else {
            "RPUSH k a b"
        };
        ask(&mut pusher, push);
        let tries = engine.inner.lock().blocking.tries - before;
        assert!(tries <= 4, "{wait}: {tries} tries for two elements");
        // In order of arrival.
        for (number, (_, outcome)) in waiting.iter_mut().enumerate() {
            let Outcome::Blocked(blocked) = outcome else {
                panic!("{wait} did not block");
            };
            assert_eq!(blocked.try_take().is_some(), number < 2, "{wait}: {number}");
        }
        drop(waiting);
        ask(&mut pusher, "FLUSHALL");
    }
}

#[test]
fn a_limited_count_of_an_intersection_stops_at_its_limit() {
    let engine = Engine::new();
    let mut session = engine.session();
    fill(&mut session, "ZADD a", 10_000);
    fill(&mut session, "ZADD b", 10_000);
    let before = visited(&engine);
    assert_eq!(ask(&mut session, "ZINTERCARD 2 a b LIMIT 3"), Reply::Int(3));
    assert_eq!(visited(&engine) - before, 3);
    assert_eq!(ask(&mut session, "ZINTERCARD 2 a b"), Reply::Int(10_000));
    assert_eq!(
        ask(&mut session, "ZINTERCARD 2 a b LIMIT 0"),
        Reply::Int(10_000)
    );
}

#[test]
fn expiry_looks_only_at_keys_that_may_be_due() {
    let engine = Engine::builder()
        .clock(Clock::manual_at(1_700_000_000_000_000))
        .build()
        .unwrap();
    let mut session = engine.session();
    for n in 0..20_000 {
        ask(&mut session, &format!("SET lasting:{n} v"));
        ask(&mut session, &format!("SET later:{n} v EX 100000"));
    }
    for n in 0..50 {
        ask(&mut session, &format!("SET soon:{n} v PX {}", 1 + n * 10));
    }
    // Once around, so that everything has its place.
    engine.advance(Duration::from_millis(0));
    let before = visited(&engine);
    engine.advance(Duration::from_millis(1000));
    assert_eq!(ask(&mut session, "DBSIZE"), Reply::Int(40_000));
    let looked = visited(&engine) - before;
    assert!(
        looked <= 100,
        "{looked} keys were looked at for 50 that expired"
    );
    // A later deadline is kept, an earlier one is seen, none is forgotten.
    ask(&mut session, "EXPIRE later:0 200000");
    ask(&mut session, "PEXPIRE later:1 5");
    ask(&mut session, "PERSIST later:2");
    engine.advance(Duration::from_millis(6));
    assert_eq!(
        ask(&mut session, "EXISTS later:0 later:1 later:2"),
        Reply::Int(2)
    );
    engine.advance(Duration::from_secs(100_001));
    assert_eq!(ask(&mut session, "DBSIZE"), Reply::Int(20_002));
    engine.advance(Duration::from_secs(100_001));
    assert_eq!(ask(&mut session, "DBSIZE"), Reply::Int(20_001));
}

#[test]
fn large_values_are_freed_elsewhere() {
    let engine = Engine::new();
    let mut session = engine.session();
    for removal in [
        "UNLINK k",
        "DEL k",
        "SET k v",
        "FLUSHALL ASYNC",
        "PEXPIRE k 1",
    ] {
        fill(&mut session, "SADD k", 1000);
        let before = free::sent();
        ask(&mut session, removal);
        engine.advance(Duration::from_millis(5));
        assert!(free::sent() > before, "{removal}");
        ask(&mut session, "FLUSHALL");
    }
    while free::pending() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn queued_commands_do_not_pin_what_was_read_from_a_socket() {
    let engine = Engine::new();
    let mut session = engine.session();
    ask(&mut session, "MULTI");
    let read = Bytes::from(vec![b'x'; 16 * 1024]);
    let args = [
        Bytes::from_static(b"SET"),
        read.slice(..1),
        read.slice(1..2),
    ];
    session.execute(&args);
    drop(args);
    assert!(read.is_unique(), "the queue holds on to a read buffer");
}
