//! How much work commands do: counted, or how the time grows with the size.

use std::time::Duration;

use bytes::Bytes;

use crate::{Clock, Engine, Outcome, Reply, Session, free, types::dict};

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
fn a_command_does_no_more_for_a_large_keyspace_or_value_than_for_a_small_one() {
    /// As many entries as a table may have that grows at once.
    const MOST: usize = 4096;
    const COUNT: usize = 150_000;
    for command in [
        "SET key:{n} v",
        "SET key:{n} v EX 1{n}",
        "HSET hash f{n} v",
        "SADD set m{n}",
        "ZADD sorted {n} m{n}",
    ] {
        let mut session = Engine::new().session();
        let mut most = 0;
        for n in 0..COUNT {
            let before = dict::hashed_again();
            ask(&mut session, &command.replace("{n}", &n.to_string()));
            most = most.max(dict::hashed_again() - before);
        }
        assert!(
            most <= MOST,
            "{command}: {most} entries were hashed again at once"
        );
        assert!(most > 0, "{command}: nothing was counted");
    }
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

/// How many times as much work the second is than the first.
fn growth(mut small: impl FnMut(), mut large: impl FnMut()) -> f64 {
    work(&mut large) / work(&mut small)
}

/// The processor's time that something takes, in nanoseconds; what others do meanwhile does not count.
fn work(something: &mut dyn FnMut()) -> f64 {
    /// The system counts in steps of some milliseconds.
    const LONG: u64 = 100_000_000;
    let spent = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let began = spent();
    for times in 1u32.. {
        something();
        let took = spent() - began;
        if took >= LONG {
            return took as f64 / f64::from(times);
        }
    }
    unreachable!("it takes no time")
}

#[test]
fn the_list_of_clients_is_made_in_time_proportional_to_their_number() {
    // All of them wait for something.
    let crowd = |count: usize| {
        let engine = Engine::new();
        let clients: Vec<(Session, Outcome)> = (0..count)
            .map(|_| {
                let mut session = engine.session();
                ask(&mut session, "CLIENT ID");
                ask(&mut session, "CLIENT SETNAME waiting");
                let outcome = run(&mut session, "BLPOP k 0");
                (session, outcome)
            })
            .collect();
        (engine.session(), clients)
    };
    let ((mut few, _waiting), (mut many, _more)) = (crowd(200), crowd(6400));
    let grown = growth(
        || drop(ask(&mut few, "CLIENT LIST")),
        || drop(ask(&mut many, "CLIENT LIST")),
    );
    // 32 times as many; the product of clients and waiters is 1024 times as large.
    assert!(grown < 200.0, "{grown}");
}

#[test]
fn a_write_does_not_look_at_all_prefixes_that_are_tracked() {
    let tracked = |count: usize| {
        let engine = Engine::new();
        let mut session = engine.session_resp3();
        let mut words = vec![
            "CLIENT".to_owned(),
            "TRACKING".into(),
            "ON".into(),
            "BCAST".into(),
        ];
        for n in 0..count {
            words.extend(["PREFIX".to_owned(), format!("prefix:{n:06}:")]);
        }
        let args: Vec<Bytes> = words.into_iter().map(Bytes::from).collect();
        assert_eq!(session.execute(&args).into_reply(), Some(Reply::OK));
        (session, engine.session())
    };
    let ((_few, mut few), (_many, mut many)) = (tracked(10), tracked(2000));
    let write = |session: &mut Session| {
        for n in 0..100 {
            ask(session, &format!("SET other:{n} v"));
        }
    };
    let grown = growth(|| write(&mut few), || write(&mut many));
    assert!(
        grown < 20.0,
        "{grown} times as long with 200 times as many prefixes"
    );
}

#[test]
fn xinfo_stream_does_not_visit_the_stream() {
    let stream = |entries: usize| {
        let mut session = Engine::new().session();
        for n in 1..=entries {
            ask(&mut session, &format!("XADD x {n}-1 f v"));
        }
        session
    };
    let (mut short, mut long) = (stream(200), stream(40_000));
    let look = |session: &mut Session| {
        for _ in 0..20 {
            ask(session, "XINFO STREAM x");
        }
    };
    let grown = growth(|| look(&mut short), || look(&mut long));
    assert!(
        grown < 20.0,
        "{grown} times as long with 200 times as many entries"
    );
}

#[test]
fn bitpos_takes_no_longer_than_a_few_counts_of_bits() {
    let engine = Engine::new();
    let (mut session, mut other) = (engine.session(), engine.session());
    ask(&mut session, "SETBIT zeros 80000000 1");
    let ratio = growth(
        || drop(ask(&mut other, "BITCOUNT zeros")),
        || drop(ask(&mut session, "BITPOS zeros 1")),
    );
    assert!(ratio < 10.0, "{ratio}");
}

#[test]
fn bitop_takes_the_memory_of_its_result_only() {
    const SIZE: usize = 8 << 20;
    let mut session = Engine::new().session();
    for n in 0..16 {
        let value = vec![b'a' + n; SIZE];
        let args = [
            Bytes::from("SET"),
            format!("source:{n}").into(),
            value.into(),
        ];
        session.execute(&args).into_reply().unwrap();
    }
    let sources: Vec<String> = (0..16).map(|n| format!("source:{n}")).collect();
    let line = format!("BITOP OR target {}", sources.join(" "));
    // From here on the system notes the peak again.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak();
    assert_eq!(ask(&mut session, &line), Reply::Int(SIZE as i64));
    let grown = peak().saturating_sub(before);
    assert!(
        grown < 4 * SIZE as u64,
        "{grown} bytes for a result of {SIZE}"
    );
}

/// The most memory that was resident, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    kilobytes.unwrap().parse::<u64>().unwrap() * 1024
}
