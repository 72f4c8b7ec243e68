//! Expiry, scans and transactions as seen from inside the process.

#![allow(clippy::unwrap_used)]

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use proptest::prelude::*;
use redstart_engine::{Clock, Compat, Engine, Outcome, Reply, Session};

fn run(session: &mut Session, line: &str) -> Reply {
    let args: Vec<Bytes> = line
        .split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    session.execute(&args).into_reply().unwrap()
}

fn scan_step(session: &mut Session, command: &str) -> (u64, Vec<String>) {
    let text = |reply: &Reply| match reply {
        Reply::Bulk(text) => String::from_utf8(text.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    match run(session, command) {
        Reply::Array(parts) => match &parts[..] {
            [cursor, Reply::Array(items)] => (
                text(cursor).parse().unwrap(),
                items.iter().map(text).collect(),
            ),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_scan_returns_whatever_is_there_all_the_time(
        stable in 1usize..300,
        volatile in 0usize..300,
        changes in proptest::collection::vec((any::<bool>(), 0usize..600), 0..200),
        count in 1usize..40,
        family in 0usize..4,
    ) {
        let engine = Engine::new();
        let mut session = engine.session();
        // One table each for SCAN, HSCAN, SSCAN and ZSCAN.
        let (add, remove, scan, stride) = [
            ("SET {} v", "DEL {}", "SCAN", 1),
            ("HSET h {} v", "HDEL h {}", "HSCAN h", 2),
            ("SADD s {}", "SREM s {}", "SSCAN s", 1),
            ("ZADD z 1 {}", "ZREM z {}", "ZSCAN z", 2),
        ][family];
        // Long enough that none of them is a listpack.
        let pad = "x".repeat(70);
        let stable_name = |at: usize| format!("stable{at}-{pad}");
        let volatile_name = |at: usize| format!("volatile{at}-{pad}");
        for at in 0..stable.max(volatile) {
            if at < stable {
                run(&mut session, &add.replace("{}", &stable_name(at)));
            }
            if at < volatile {
                run(&mut session, &add.replace("{}", &volatile_name(at)));
            }
        }
        let mut seen: HashMap<String, usize> = HashMap::new();
        let mut changes = changes.into_iter();
        let mut cursor = 0;
        loop {
            let (next, items) =
                scan_step(&mut session, &format!("{scan} {cursor} COUNT {count}"));
            for item in items.iter().step_by(stride) {
                *seen.entry(item.clone()).or_default() += 1;
            }
            if next == 0 {
                break;
            }
            cursor = next;
            for (adds, at) in changes.by_ref().take(5) {
                let command = if adds { add } else { remove };
                run(&mut session, &command.replace("{}", &volatile_name(at)));
            }
        }
        for at in 0..stable {
            prop_assert_eq!(seen.get(&stable_name(at)), Some(&1));
        }
    }
}

#[test]
fn a_key_lives_through_its_last_millisecond() {
    let engine = Engine::builder()
        .clock(Clock::manual_at(1_000_000_000))
        .build()
        .unwrap();
    let mut session = engine.session();
    run(&mut session, "SET k v PX 10");
    engine.advance(Duration::from_millis(10));
    assert_eq!(run(&mut session, "PTTL k"), Reply::Int(0));
    assert_eq!(run(&mut session, "GET k"), Reply::bulk("v"));
    engine.advance(Duration::from_millis(1));
    assert_eq!(run(&mut session, "GET k"), Reply::Nil);
}

#[test]
fn time_stands_still_within_a_transaction() {
    let engine = Engine::new();
    let mut session = engine.session();
    run(&mut session, "MULTI");
    for _ in 0..100 {
        run(&mut session, "TIME");
    }
    let Reply::Array(times) = run(&mut session, "EXEC") else {
        panic!("no replies")
    };
    assert!(times.iter().all(|time| *time == times[0]));
}

#[test]
fn a_watched_key_that_expires_breaks_the_transaction() {
    let engine = Engine::builder().clock(Clock::manual()).build().unwrap();
    let mut session = engine.session();
    run(&mut session, "SET k v PX 100");
    run(&mut session, "WATCH k");
    engine.advance(Duration::from_secs(1));
    run(&mut session, "MULTI");
    run(&mut session, "PING");
    assert_eq!(run(&mut session, "EXEC"), Reply::NilArray);
}

#[test]
fn expired_keys_go_without_being_asked_for() {
    let engine = Engine::builder().clock(Clock::manual()).build().unwrap();
    let mut session = engine.session();
    for at in 0..1000 {
        run(&mut session, &format!("SET k{at} v PX 100"));
        run(&mut session, &format!("SET stay{at} v"));
    }
    engine.advance(Duration::from_secs(1));
    assert_eq!(run(&mut session, "DBSIZE"), Reply::Int(1000));
}

fn expired(key: &str) -> Reply {
    let words = ["pmessage", "__keyevent*", "__keyevent@0__:expired", key];
    Reply::Push(words.map(Reply::bulk).into())
}

#[test]
fn an_advanced_clock_tells_of_what_expired() {
    let engine = Engine::builder().clock(Clock::manual()).build().unwrap();
    let (mut session, mut listener) = (engine.session(), engine.session());
    let mut pushes = listener.pushes();
    run(&mut session, "CONFIG SET notify-keyspace-events Ex");
    run(&mut listener, "PSUBSCRIBE __keyevent*");
    run(&mut session, "SET k v EX 3600");
    engine.advance(Duration::from_secs(3600));
    assert_eq!(pushes.try_recv(), None);
    engine.advance(Duration::from_millis(1));
    assert_eq!(pushes.try_recv(), Some(expired("k")));
}

/// Nobody sends a command after the key was set.
#[tokio::test]
async fn a_listener_hears_of_an_expired_key_without_traffic() {
    let engine = Engine::new();
    let (mut session, mut listener) = (engine.session(), engine.session());
    let mut pushes = listener.pushes();
    run(&mut session, "CONFIG SET notify-keyspace-events Ex");
    run(&mut listener, "PSUBSCRIBE __keyevent*");
    run(&mut session, "SET k v PX 50");
    let heard = tokio::time::timeout(Duration::from_secs(20), pushes.recv());
    assert_eq!(heard.await.unwrap(), Some(expired("k")));
}

/// The best of some attempts, because others use this machine, too.
#[test]
fn hours_of_virtual_time_pass_in_milliseconds() {
    let attempt = || {
        let engine = Engine::builder().clock(Clock::manual()).build().unwrap();
        let (mut session, mut waiting) = (engine.session(), engine.session());
        let start = std::time::Instant::now();
        run(&mut session, "SET k v EX 3600");
        run(&mut session, "XADD s 1-1 a b");
        run(&mut session, "XGROUP CREATE s g 0");
        run(&mut session, "XREADGROUP GROUP g me STREAMS s >");
        let args: Vec<Bytes> = ["BLPOP", "l", "3600"].map(Bytes::from).into();
        let Outcome::Blocked(mut blocked) = waiting.execute(&args) else {
            panic!("there is nothing to take");
        };
        let claim = "XAUTOCLAIM s g you 3600000 0 JUSTID";
        let Reply::Array(early) = run(&mut session, claim) else {
            panic!("a claim has three parts");
        };
        assert_eq!(early[1], Reply::Array(Vec::new()));
        engine.advance(Duration::from_millis(3_600_001));
        assert_eq!(run(&mut session, "GET k"), Reply::Nil);
        assert_eq!(blocked.try_take(), Some(Reply::NilArray));
        let Reply::Array(late) = run(&mut session, claim) else {
            panic!("a claim has three parts");
        };
        assert_eq!(late[1], Reply::Array(vec![Reply::bulk("1-1")]));
        start.elapsed()
    };
    let best = (0..50).map(|_| attempt()).min().unwrap();
    assert!(best < Duration::from_millis(10), "{best:?}");
}

#[test]
fn cluster_strict_mode_refuses_keys_of_different_slots() {
    let engine = Engine::builder().cluster_strict(true).build().unwrap();
    let mut session = engine.session();
    let crossed = Reply::Error("CROSSSLOT Keys in request don't hash to the same slot".into());
    assert_eq!(run(&mut session, "MSET a 1 b 2"), crossed);
    assert_eq!(run(&mut session, "MSET {t}a 1 {t}b 2"), Reply::OK);
    assert_eq!(run(&mut session, "ZUNIONSTORE d 2 {t}a {t}b"), crossed);
    assert_eq!(run(&mut session, "BLPOP {t}x u 1"), crossed);
    assert_eq!(run(&mut session, "SORT {t}l STORE other"), crossed);
    run(&mut session, "MULTI");
    run(&mut session, "SET a 1");
    run(&mut session, "SET b 1");
    assert_eq!(run(&mut session, "EXEC"), crossed);
    assert_eq!(run(&mut session, "EXISTS a"), Reply::Int(0));
}

#[test]
fn a_session_that_ends_takes_its_watches_along() {
    let engine = Engine::new();
    let mut other = engine.session();
    {
        let mut session = engine.session();
        run(&mut session, "WATCH k");
    }
    run(&mut other, "SET k v");
    let mut session = engine.session();
    run(&mut session, "WATCH k");
    run(&mut session, "MULTI");
    run(&mut session, "GET k");
    assert_eq!(
        run(&mut session, "EXEC"),
        Reply::Array(vec![Reply::bulk("v")])
    );
}

#[test]
fn a_password_is_asked_for_before_anything_else() {
    let engine = Engine::builder()
        .password(Some("secret".into()))
        .build()
        .unwrap();
    let reply = run(&mut engine.session(), "GET k");
    assert_eq!(
        reply,
        Reply::Error("NOAUTH Authentication required.".into())
    );
}

#[test]
fn scans_miss_nothing_while_tables_shrink() {
    for (add, remove, scan, stride) in [
        ("SET {} v", "DEL {}", "SCAN", 1),
        ("HSET h {} v", "HDEL h {}", "HSCAN h", 2),
        ("SADD s {}", "SREM s {}", "SSCAN s", 1),
        ("ZADD z 1 {}", "ZREM z {}", "ZSCAN z", 2),
    ] {
        let engine = Engine::builder().clock(Clock::manual()).build().unwrap();
        let mut session = engine.session();
        let mut run_all = |command: &str, names: std::ops::Range<usize>| {
            for at in names {
                run(&mut session, &command.replace("{}", &format!("member{at}")));
            }
        };
        run_all(add, 0..5000);
        let mut other = engine.session();
        let (mut cursor, items) = scan_step(&mut other, &format!("{scan} 0 COUNT 4500"));
        let mut seen: Vec<String> = items.into_iter().step_by(stride).collect();
        run_all(remove, 0..4700);
        // Time passes, so that the next command finds the table sparse and compacts it.
        engine.advance(Duration::from_secs(1));
        run_all(add, 6000..6010);
        while cursor != 0 {
            let (next, items) = scan_step(&mut other, &format!("{scan} {cursor} COUNT 100"));
            seen.extend(items.into_iter().step_by(stride));
            cursor = next;
        }
        for at in 4700..5000 {
            assert!(
                seen.contains(&format!("member{at}")),
                "{scan} misses member{at}"
            );
        }
        let mut fresh = Vec::new();
        loop {
            let (next, items) = scan_step(&mut other, &format!("{scan} {cursor} COUNT 100"));
            fresh.extend(items.into_iter().step_by(stride));
            cursor = next;
            if next == 0 {
                break;
            }
        }
        assert_eq!(fresh.len(), 310, "{scan}");
    }
}

#[test]
fn what_a_script_reads_is_tracked_for_its_caller() {
    let engine = Engine::new();
    let (mut reader, mut writer) = (engine.session_resp3(), engine.session());
    let mut pushes = reader.pushes();
    let call = |session: &mut Session, words: &[&str]| {
        let args: Vec<Bytes> = words
            .iter()
            .map(|word| Bytes::copy_from_slice(word.as_bytes()))
            .collect();
        session.execute(&args).into_reply().unwrap()
    };
    call(&mut reader, &["CLIENT", "TRACKING", "ON"]);
    for eval in ["EVAL", "EVAL_RO"] {
        let script = "return redis.call('GET', KEYS[1])";
        call(&mut reader, &[eval, script, "1", "k"]);
        assert_eq!(pushes.try_recv(), None);
        call(&mut writer, &["SET", "k", "v"]);
        let invalidate = Reply::Push(vec![
            Reply::bulk("invalidate"),
            Reply::Array(vec![Reply::bulk("k")]),
        ]);
        assert_eq!(pushes.try_recv(), Some(invalidate), "{eval}");
    }
    // Once only, and not for what another client's script reads.
    call(&mut writer, &["EVAL", "return redis.call('GET', 'k')", "0"]);
    call(&mut writer, &["SET", "k", "w"]);
    assert_eq!(pushes.try_recv(), None);
}

fn ints(reply: Reply) -> Vec<i64> {
    match reply {
        Reply::Array(items) => items
            .into_iter()
            .map(|item| match item {
                Reply::Int(value) => value,
                other => panic!("{other:?}"),
            })
            .collect(),
        other => panic!("{other:?}"),
    }
}

/// Its clock stands still but for `advance`.
fn newer(compat: Compat) -> Engine {
    let builder = Engine::builder().compat(compat);
    builder.clock(Clock::manual()).build().unwrap()
}

#[test]
fn a_version_has_its_commands_and_no_later_ones() {
    let newest = [
        ("HEXPIRE h 10 FIELDS 1 a", "7.4 8.0 8.2 valkey-9"),
        ("CLIENT SETINFO LIB-NAME x", "7.4 8.0 8.2 valkey-9"),
        ("CLIENT NO-TOUCH on", "7.4 8.0 8.2 valkey-9"),
        ("ZRANK z m WITHSCORE", "7.4 8.0 8.2 valkey-9"),
        ("HGETDEL h FIELDS 1 a", "8.0 8.2 valkey-9"),
        ("HSETEX h FIELDS 1 a b", "8.0 8.2 valkey-9"),
        ("XACKDEL x g IDS 1 1-1", "8.2"),
        ("DELIFEQ k v", "valkey-9"),
        ("SET k v IFEQ w", "valkey-9"),
        ("MSETEX 1 k v", "valkey-9"),
        ("CLIENT CAPA redirect", "valkey-9"),
        ("CLIENT LIST NAME me NOT-DB 3", "valkey-9"),
        ("CLIENT KILL MAXAGE 1000 NAME nobody", "valkey-9"),
        ("GEOSEARCH g BYPOLYGON 3 0 0 0 1 1 1", "valkey-9"),
        ("SPUBLISH c m", "7.0 7.4 8.0 8.2 valkey-9"),
        ("BF.ADD b x", "7.0 7.4 8.0 8.2 valkey-9"),
    ];
    for compat in Compat::ALL {
        let engine = newer(compat);
        let mut session = engine.session();
        for (command, versions) in newest {
            let has = versions.split(' ').any(|name| name == compat.name());
            let reply = run(&mut session, command);
            assert_eq!(!reply.is_error(), has, "{command} on {compat}: {reply:?}");
            let name = command.split(' ').next().unwrap();
            let whole = !matches!(name, "CLIENT" | "SET" | "ZRANK" | "GEOSEARCH");
            if whole {
                let told = run(&mut session, &format!("COMMAND INFO {name}"));
                let told = !matches!(&told, Reply::Array(items) if items[0] == Reply::Nil);
                assert_eq!(told, has, "{name} on {compat}");
            }
        }
        let line = match run(&mut session, "CLIENT INFO") {
            Reply::Bulk(line) => String::from_utf8_lossy(&line).into_owned(),
            other => panic!("{other:?}"),
        };
        for (field, versions) in [
            (" watch=0 ", "7.4 8.0 8.2 valkey-9"),
            (" lib-name=x lib-ver=", "7.4 8.0 8.2 valkey-9"),
            (" capa=r ", "valkey-9"),
            (" tot-cmds=", "valkey-9"),
        ] {
            let has = versions.split(' ').any(|name| name == compat.name());
            assert_eq!(line.contains(field), has, "{field} on {compat}: {line}");
        }
        let hello = format!("{:?}", run(&mut session, "HELLO"));
        let valkey = compat == Compat::Valkey9;
        assert_eq!(hello.contains("valkey"), valkey, "{hello}");
        let info = format!("{:?}", run(&mut session, "INFO server"));
        assert_eq!(info.contains("valkey_version:9."), valkey, "{info}");
        if !valkey {
            let version = format!("redis_version:{}.", compat.name());
            assert!(info.contains(&version), "{info}");
            assert!(hello.contains(&format!("{}.", compat.name())), "{hello}");
        }
    }
}

#[test]
fn fields_expire_by_themselves_and_take_an_empty_hash_along() {
    let engine = newer(Compat::Valkey9);
    let mut session = engine.session();
    let mut listener = engine.session();
    let mut pushes = listener.pushes();
    run(&mut session, "CONFIG SET notify-keyspace-events EA");
    run(&mut listener, "PSUBSCRIBE __keyevent*");
    while pushes.try_recv().is_some() {}
    run(&mut session, "HSET h a 1 b 2 c 3");
    assert_eq!(ints(run(&mut session, "HPEXPIRE h 1000 FIELDS 1 a")), [1]);
    assert_eq!(
        ints(run(&mut session, "HPEXPIRE h 3000 FIELDS 2 b c")),
        [1, 1]
    );
    engine.advance(Duration::from_millis(999));
    assert_eq!(run(&mut session, "HLEN h"), Reply::Int(3));
    // Nobody looks at the hash when the time comes.
    engine.advance(Duration::from_millis(500));
    let mut heard = Vec::new();
    let mut hear = || {
        while let Some(push) = pushes.try_recv() {
            heard.push(format!("{push:?}"));
        }
        std::mem::take(&mut heard).join(" ")
    };
    let told = hear();
    assert!(
        told.contains(":hexpired") && !told.contains(":del"),
        "{told}"
    );
    assert_eq!(run(&mut session, "HLEN h"), Reply::Int(2));
    assert_eq!(run(&mut session, "HGET h a"), Reply::Nil);
    // A deadline that was moved is kept.
    assert_eq!(ints(run(&mut session, "HPEXPIRE h 90000 FIELDS 1 c")), [1]);
    engine.advance(Duration::from_secs(3));
    assert_eq!(run(&mut session, "HGETALL h"), {
        Reply::Array(vec![Reply::bulk("c"), Reply::bulk("3")])
    });
    run(&mut session, "COPY h copy");
    run(&mut session, "RENAME h moved");
    hear();
    engine.advance(Duration::from_secs(90));
    assert_eq!(run(&mut session, "DBSIZE"), Reply::Int(0));
    let told = hear();
    assert!(
        told.contains(":hexpired") && told.contains(":del"),
        "{told}"
    );
}

#[test]
fn a_watched_hash_changes_when_its_field_expires() {
    let engine = newer(Compat::Redis74);
    let mut session = engine.session();
    run(&mut session, "HSET h a 1 b 2");
    run(&mut session, "HPEXPIRE h 100 FIELDS 1 a");
    run(&mut session, "WATCH h");
    engine.advance(Duration::from_millis(200));
    run(&mut session, "MULTI");
    run(&mut session, "HLEN h");
    assert_eq!(run(&mut session, "EXEC"), Reply::NilArray);
}

#[test]
fn stream_entries_are_deleted_with_regard_to_their_groups() {
    let engine = newer(Compat::Redis82);
    let mut session = engine.session();
    for line in [
        "XADD x 1-1 a 1",
        "XADD x 2-1 a 2",
        "XADD x 3-1 a 3",
        "XGROUP CREATE x g 0",
        "XGROUP CREATE x h 0",
        "XREADGROUP GROUP g c STREAMS x >",
        "XREADGROUP GROUP h c COUNT 2 STREAMS x >",
    ] {
        assert!(!run(&mut session, line).is_error(), "{line}");
    }
    let mut codes = |line: &str| ints(run(&mut session, line));
    // The other group has it pending.
    assert_eq!(codes("XACKDEL x g ACKED IDS 2 1-1 9-9"), [2, -1]);
    assert_eq!(codes("XACKDEL x h ACKED IDS 1 1-1"), [1]);
    // The other group has not read it.
    assert_eq!(codes("XACKDEL x g ACKED IDS 1 3-1"), [2]);
    assert_eq!(codes("XDELEX x ACKED IDS 1 2-1"), [2]);
    assert_eq!(codes("XDELEX x DELREF IDS 2 2-1 2-1"), [1, -1]);
    assert_eq!(codes("XDELEX x IDS 1 3-1"), [1]);
    assert_eq!(codes("XDELEX none KEEPREF IDS 2 1-1 2-2"), [-1, -1]);
    assert_eq!(codes("XACKDEL x none IDS 1 1-1"), [-1]);
    for group in ["g", "h"] {
        let pending = run(&mut session, &format!("XPENDING x {group} - + 10"));
        assert_eq!(pending, Reply::Array(Vec::new()), "{group}");
    }
    for line in [
        "XDELEX x IDS 2 1-1",
        "XDELEX x IDS 0 1-1",
        "XDELEX x FOO IDS 1 1-1",
        "XDELEX x KEEPREF ACKED IDS 1 1-1",
        "XDELEX x IDS 1 x",
    ] {
        assert!(run(&mut session, line).is_error(), "{line}");
    }
}
