//! What goes when there is too little memory, by policy.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use redstart_engine::{Clock, Engine, MemoryPolicy, Reply, Session};

const LIMIT: u64 = 2 * 1024 * 1024;

fn engine(policy: MemoryPolicy) -> Engine {
    Engine::builder()
        .maxmemory(LIMIT, policy)
        .clock(Clock::manual_at(1_700_000_000_000_000))
        .build()
        .unwrap()
}

fn ask(session: &mut Session, line: &str) -> Reply {
    let args: Vec<Bytes> = line
        .split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    session.execute(&args).into_reply().unwrap()
}

fn is_oom(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("OOM"))
}

fn value() -> String {
    "x".repeat(1000)
}

/// Which of `count` keys are there.
fn left(session: &mut Session, prefix: &str, count: usize) -> Vec<bool> {
    (0..count)
        .map(|n| ask(session, &format!("EXISTS {prefix}{n}")) == Reply::Int(1))
        .collect()
}

fn count(left: &[bool]) -> usize {
    left.iter().filter(|there| **there).count()
}

/// Writes keys until some were evicted.
fn crowd(session: &mut Session, keys: usize, options: &str) {
    for n in 0..keys {
        let line = format!("SET more{n} {}{options}", value());
        let reply = ask(session, &line);
        assert_eq!(reply, Reply::Status("OK".into()), "{n}");
    }
}

#[test]
fn without_eviction_writes_are_refused_and_reads_are_not() {
    let engine = engine(MemoryPolicy::NoEviction);
    let mut session = engine.session();
    let refused = (0..10_000).any(|n| is_oom(&ask(&mut session, &format!("SET k{n} {}", value()))));
    assert!(refused);
    assert_eq!(ask(&mut session, "STRLEN k0"), Reply::Int(1000));
    assert_eq!(ask(&mut session, "DEL k0"), Reply::Int(1));
}

#[test]
fn what_was_not_used_for_long_goes_first() {
    for policy in [MemoryPolicy::AllKeysLru, MemoryPolicy::VolatileLru] {
        let engine = engine(policy);
        let mut session = engine.session();
        for n in 0..800 {
            ask(&mut session, &format!("SET k{n} {} EX 100000", value()));
        }
        engine.advance(Duration::from_secs(100));
        for n in 0..400 {
            ask(&mut session, &format!("GET k{n}"));
        }
        engine.advance(Duration::from_secs(100));
        crowd(&mut session, 600, " EX 100000");
        let left = left(&mut session, "k", 800);
        let (used, unused) = (count(&left[..400]), count(&left[400..]));
        let gone = (400 - used, 400 - unused);
        assert!(gone.1 > 100 && gone.1 > 4 * gone.0, "{policy:?}: {gone:?}");
    }
}

#[test]
fn what_is_rarely_used_goes_first() {
    for policy in [MemoryPolicy::AllKeysLfu, MemoryPolicy::VolatileLfu] {
        let engine = engine(policy);
        let mut session = engine.session();
        for n in 0..800 {
            ask(&mut session, &format!("SET k{n} {} EX 100000", value()));
        }
        for _ in 0..30 {
            for n in 0..400 {
                ask(&mut session, &format!("GET k{n}"));
            }
        }
        crowd(&mut session, 600, " EX 100000");
        let left = left(&mut session, "k", 800);
        let (often, rarely) = (count(&left[..400]), count(&left[400..]));
        let more = count(&self::left(&mut session, "more", 600));
        // New keys and those that were never read are equals.
        let gone = (400 - often, 1000 - rarely - more);
        assert!(gone.1 > 100 && gone.1 > 10 * gone.0, "{policy:?}: {gone:?}");
    }
}

#[test]
fn keys_without_a_deadline_stay_under_the_policies_for_volatile_keys() {
    for policy in [
        MemoryPolicy::VolatileLru,
        MemoryPolicy::VolatileLfu,
        MemoryPolicy::VolatileRandom,
        MemoryPolicy::VolatileTtl,
    ] {
        let engine = engine(policy);
        let mut session = engine.session();
        for n in 0..600 {
            ask(&mut session, &format!("SET lasting{n} {}", value()));
        }
        // Few have a deadline, and they are far apart.
        for n in 0..60 {
            let seconds = 100 << (n % 20);
            ask(
                &mut session,
                &format!("SET volatile{n} {} EX {seconds}", value()),
            );
        }
        let refused = (0..10_000).find(|n| {
            is_oom(&ask(
                &mut session,
                &format!("SET lasting{} {}", 600 + n, value()),
            ))
        });
        let refused = refused.expect("writes are refused at last");
        assert_eq!(count(&left(&mut session, "volatile", 60)), 0, "{policy:?}");
        let lasting = left(&mut session, "lasting", 600 + refused);
        assert!(lasting.iter().all(|there| *there), "{policy:?}");
    }
}

#[test]
fn the_nearest_deadlines_go_first() {
    let engine = engine(MemoryPolicy::VolatileTtl);
    let mut session = engine.session();
    for n in 0..800 {
        let seconds = 10_000 + 100 * n;
        ask(&mut session, &format!("SET k{n} {} EX {seconds}", value()));
    }
    crowd(&mut session, 600, " EX 1000000");
    let left = left(&mut session, "k", 800);
    let gone = 800 - count(&left);
    assert!(gone > 100, "{gone}");
    // Some of them are never drawn.
    let wrong = left[..gone / 2].iter().filter(|there| **there).count();
    assert!(wrong < gone / 4, "{wrong} of {gone}");
}

#[test]
fn any_key_may_go() {
    let engine = engine(MemoryPolicy::AllKeysRandom);
    let mut session = engine.session();
    crowd(&mut session, 3000, "");
    let left = left(&mut session, "more", 3000);
    let parts: Vec<usize> = left.chunks(1000).map(count).collect();
    assert!(parts.iter().all(|part| *part > 0), "{parts:?}");
}

#[test]
fn streams_scripts_and_waiting_messages_count() {
    let engine = engine(MemoryPolicy::NoEviction);
    let mut session = engine.session();
    let refused =
        (0..10_000).any(|_| is_oom(&ask(&mut session, &format!("XADD stream * f {}", value()))));
    assert!(refused, "streams are not counted");
    ask(&mut session, "DEL stream");
    assert!(!is_oom(&ask(&mut session, "SET k v")));
    let used = |session: &mut Session| match ask(session, "INFO memory") {
        Reply::Bulk(text) | Reply::Verbatim { text, .. } => {
            let text = String::from_utf8_lossy(&text).into_owned();
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("used_memory:"));
            line.unwrap().trim().parse::<u64>().unwrap()
        }
        other => panic!("{other:?}"),
    };
    let before = used(&mut session);
    let script = ["EVAL", "return 1", "0"].map(Bytes::from);
    session.execute(&script);
    assert!(used(&mut session) > before, "scripts are not counted");
}

fn used_memory(session: &mut Session) -> u64 {
    let text = match ask(session, "INFO memory") {
        Reply::Bulk(text) | Reply::Verbatim { text, .. } => text,
        other => panic!("{other:?}"),
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn evicted_keys_are_deleted_in_the_log_too() {
    let dir = tempfile::tempdir().unwrap();
    let open = |limit: u64| {
        let builder = Engine::builder().maxmemory(limit, MemoryPolicy::AllKeysRandom);
        let builder = builder.append_only(dir.path(), redstart_engine::Fsync::No);
        builder.build().unwrap()
    };
    let before = {
        let engine = open(LIMIT);
        let mut session = engine.session();
        crowd(&mut session, 3000, "");
        left(&mut session, "more", 3000)
    };
    assert!(count(&before) < 3000);
    // Without a limit, so that nothing is evicted by loading.
    let engine = open(0);
    assert_eq!(left(&mut engine.session(), "more", 3000), before);
}

#[test]
fn garbage_of_scripts_evicts_nothing() {
    let engine = engine(MemoryPolicy::AllKeysLru);
    let mut session = engine.session();
    crowd(&mut session, 500, "");
    // Each call leaves more garbage than there is room.
    let script = "local t = {} for i = 1, 2000 do t[i] = 'x' .. i .. ARGV[1] end return #t";
    for n in 0..50 {
        let args = ["EVAL", script, "0", &n.to_string()].map(|word| Bytes::from(word.to_owned()));
        session.execute(&args).into_reply().unwrap();
        engine.advance(Duration::from_millis(500));
    }
    assert_eq!(count(&left(&mut session, "more", 500)), 500);
    let before = used_memory(&mut session);
    for n in 0..50 {
        let args = ["EVAL", script, "0", &n.to_string()].map(|word| Bytes::from(word.to_owned()));
        session.execute(&args).into_reply().unwrap();
    }
    let after = used_memory(&mut session);
    assert!(
        after <= before + before / 20,
        "{before} before, {after} after"
    );
}

#[test]
fn what_is_queued_and_what_waits_to_be_read_counts() {
    let engine = engine(MemoryPolicy::NoEviction);
    let (mut session, mut other) = (engine.session(), engine.session());
    let before = used_memory(&mut session);
    // Only clients that others can see are counted.
    ask(&mut other, "CLIENT ID");
    ask(&mut other, "CLIENT SETNAME queueing");
    ask(&mut other, "MULTI");
    for n in 0..200 {
        ask(&mut other, &format!("SET k{n} {}", value()));
    }
    let queued = used_memory(&mut session);
    assert!(
        queued > before + 200_000,
        "{before} before, {queued} with a queue"
    );
    ask(&mut other, "DISCARD");
    assert!(used_memory(&mut session) < before + 50_000);
    // A subscriber that reads nothing.
    let mut deaf = engine.session();
    ask(&mut deaf, "CLIENT SETNAME deaf");
    ask(&mut deaf, "SUBSCRIBE c");
    for _ in 0..200 {
        ask(&mut session, &format!("PUBLISH c {}", value()));
    }
    let waiting = used_memory(&mut session);
    assert!(
        waiting > before + 200_000,
        "{before} before, {waiting} with messages"
    );
    drop(deaf);
    assert!(used_memory(&mut session) < before + 50_000);
}

#[test]
fn a_lower_limit_is_reached_step_by_step() {
    let engine = Engine::builder()
        .clock(Clock::manual_at(1_700_000_000_000_000))
        .build()
        .unwrap();
    let mut session = engine.session();
    for n in 0..5000 {
        ask(&mut session, &format!("SET k{n} {}", value()));
    }
    ask(&mut session, "CONFIG SET maxmemory-policy allkeys-random");
    ask(&mut session, &format!("CONFIG SET maxmemory {LIMIT}"));
    let Reply::Int(at_once) = ask(&mut session, "DBSIZE") else {
        panic!("no number");
    };
    // One command does not evict thousands of keys, and none is refused meanwhile.
    assert!((3000..5000).contains(&at_once), "{at_once}");
    assert_eq!(ask(&mut session, "SET k v"), Reply::Status("OK".into()));
    for _ in 0..20 {
        engine.advance(Duration::from_millis(100));
        ask(&mut session, "PING");
    }
    assert!(used_memory(&mut session) <= LIMIT);
}

/// The resident memory of this process in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn memory_goes_back_to_the_system_after_a_large_delete() {
    let engine = Engine::builder()
        .give_back(redstart_allocator::give_back)
        .build()
        .unwrap();
    let mut session = engine.session();
    let before = resident();
    for removal in ["by itself", "MEMORY PURGE"] {
        for n in 0..100_000 {
            ask(&mut session, &format!("SET k{n} {}", "x".repeat(700)));
        }
        let full = resident();
        assert!(full > before + (50 << 20), "{before} {full}");
        // One in a hundred stays: they lie in all pages.
        for n in (0..100_000).filter(|n| n % 100 > 0) {
            ask(&mut session, &format!("DEL k{n}"));
        }
        if removal == "MEMORY PURGE" {
            ask(&mut session, removal);
        }
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while resident() > before + (full - before) / 2 {
            assert!(
                std::time::Instant::now() < deadline,
                "{removal}: {before} before, {full} full, {} after",
                resident()
            );
            ask(&mut session, "PING");
            std::thread::sleep(Duration::from_millis(20));
        }
        ask(&mut session, "FLUSHALL");
    }
}
