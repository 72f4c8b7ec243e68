//! What was restored is kept by the log, with its deadlines.

use std::time::Duration;

use bytes::Bytes;
use redstart_engine::{Clock, Engine, Reply, Session};
use redstart_testkit::block_until;

use super::{
    contents::{Client as _, assert_same, bulk, everything, words},
    dump, old, restore, with_bytes,
};

#[test]
fn a_restored_value_is_logged_with_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        Engine::builder()
            .append_only(dir.path(), redstart_engine::Fsync::No)
            .build()
            .unwrap()
    };
    let engine = open();
    let mut session = engine.session();
    session.line("SET a value");
    let payload = dump(&mut session, &Bytes::from_static(b"a"));
    for (key, ttl) in [("plain", "0"), ("volatile", "100000")] {
        let mut args = words(&format!("RESTORE {key} {ttl}"));
        args.push(payload.clone());
        assert_eq!(session.ask(&args), Reply::OK);
    }
    let expected = everything(&mut session);
    drop((session, engine));
    assert_same(
        &everything(&mut open().session()),
        &expected,
        "after a restart",
    );
}

#[test]
fn times_of_a_restored_stream_can_be_reckoned_with() {
    let engine = Engine::builder()
        .clock(Clock::manual_at(1_700_000_000_000_000))
        .build()
        .unwrap();
    let mut session = engine.session();
    for line in [
        "XADD k 1-1 f v",
        "XGROUP CREATE k g 0",
        "XREADGROUP GROUP g c STREAMS k >",
    ] {
        assert!(!session.line(line).is_error(), "{line}");
    }
    let key = Bytes::from_static(b"k");
    let now = match session.line("TIME") {
        Reply::Array(parts) => String::from_utf8(bulk(parts[0].clone()).to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    let now = (now.parse::<i64>().unwrap() * 1000).to_le_bytes();
    let payload = dump(&mut session, &key);
    let once = with_bytes(&payload, &now, &i64::MIN.to_le_bytes());
    let twice = with_bytes(&once, &now, &i64::MIN.to_le_bytes());
    assert_eq!(restore(&mut session, &key, &twice), Reply::OK);
    for line in [
        "XPENDING k g - + 10",
        "XPENDING k g IDLE 5 - + 10",
        "XINFO STREAM k FULL",
        "XINFO CONSUMERS k g",
        "XAUTOCLAIM k g d 0 0",
        "XCLAIM k g e 0 1-1",
    ] {
        assert!(!session.line(line).is_error(), "{line}");
    }
}

#[test]
fn a_field_that_was_kept_survives_the_deadline_it_was_restored_with() {
    let dir = tempfile::tempdir().unwrap();
    let open = |seconds: i64| {
        Engine::builder()
            .compat(redstart_engine::Compat::Redis74)
            .clock(Clock::manual_at(seconds * 1_000_000))
            .append_only(dir.path(), redstart_engine::Fsync::No)
            .build()
            .unwrap()
    };
    let engine = open(1_700_000_000);
    let mut session = engine.session();
    session.line("HSET h f v g w");
    assert!(!session.line("HPEXPIRE h 10000 FIELDS 1 f").is_error());
    let key = Bytes::from_static(b"h");
    let payload = dump(&mut session, &key);
    session.line("DEL h");
    assert_eq!(restore(&mut session, &key, &payload), Reply::OK);
    assert!(!session.line("HPERSIST h FIELDS 1 f").is_error());
    drop((session, engine));
    assert_eq!(
        open(1_700_100_000).session().line("HGET h f"),
        Reply::bulk("v")
    );
}

/// Rewrites the log and waits until that was done.
fn rewrite_log(session: &mut Session) {
    let info = |session: &mut Session, name: &str| {
        let text = String::from_utf8(bulk(session.line("INFO persistence")).to_vec()).unwrap();
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap().to_owned()
    };
    let before = info(session, "aof_rewrites");
    session.line("BGREWRITEAOF");
    let done = || {
        (info(session, "aof_rewrites") != before && info(session, "aof_rewrite_in_progress") == "0")
            .then(|| info(session, "aof_last_bgrewrite_status"))
    };
    let status = block_until("the rewritten log", Duration::from_secs(60), done).unwrap();
    assert_eq!(status, "ok");
}

#[test]
fn fields_that_had_expired_when_a_hash_was_restored_do_not_come_back() {
    const NOW: i64 = 1_700_000_000_000;
    // Values of two fields, of which the first has a deadline.
    let pair = |name: u8, value: u8| [1, name, 1, value];
    let valkey = |deadline: i64| {
        let none = (-1i64).to_le_bytes();
        let first = [&pair(b'f', b'v')[..], &deadline.to_le_bytes()].concat();
        let second = [&pair(b'g', b'w')[..], &none].concat();
        old::with_footer([&[22, 2][..], &first, &second].concat(), 80)
    };
    let redis = |deadline: i64| {
        let first = [&[1][..], &pair(b'f', b'v')].concat();
        let second = [&[0][..], &pair(b'g', b'w')].concat();
        let all = [&[24][..], &deadline.to_le_bytes(), &[2], &first, &second].concat();
        old::with_footer(all, 12)
    };
    let payloads = [
        ("long ago", valkey(NOW - 5000)),
        ("0", valkey(0)),
        ("negative", redis(-5)),
        ("long ago, from Redis", redis(NOW - 5000)),
    ];
    for (what, payload) in payloads {
        for ttl in ["0", "1000000"] {
            let dir = tempfile::tempdir().unwrap();
            let open = || {
                Engine::builder()
                    .compat(redstart_engine::Compat::Redis74)
                    .clock(Clock::manual_at(NOW * 1000))
                    .append_only(dir.path(), redstart_engine::Fsync::No)
                    .build()
                    .unwrap()
            };
            let engine = open();
            let mut session = engine.session();
            for key in ["set", "emptied", "left"] {
                let mut args = words(&format!("RESTORE {key} {ttl}"));
                args.push(payload.clone().into());
                assert_eq!(session.ask(&args), Reply::OK, "{what}");
                assert_eq!(session.line(&format!("HGET {key} f")), Reply::Nil, "{what}");
            }
            assert_eq!(session.line("HSETNX set f new"), Reply::Int(1));
            assert_eq!(session.line("HDEL emptied g"), Reply::Int(1));
            assert_eq!(session.line("LPUSH emptied x"), Reply::Int(1));
            let expected = everything(&mut session);
            drop((session, engine));
            let engine = open();
            let mut session = engine.session();
            assert_same(&everything(&mut session), &expected, what);
            for _ in 0..2 {
                rewrite_log(&mut session);
                assert_same(&everything(&mut session), &expected, what);
            }
            drop((session, engine));
            let what = format!("{what}, rewritten");
            assert_same(&everything(&mut open().session()), &expected, &what);
        }
    }
}

#[test]
fn a_restored_string_that_is_too_long_by_now_is_loaded_and_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let open = |longest: &str| {
        let mut settings = redstart_engine::Settings::new();
        settings.set("proto-max-bulk-len", longest).unwrap();
        Engine::builder()
            .settings(settings)
            .append_only(dir.path(), redstart_engine::Fsync::No)
            .build()
            .unwrap()
    };
    let mut donor = Engine::new().session();
    let long = "x".repeat(2 << 20);
    donor.line(&format!("SET k {long}"));
    let payload = dump(&mut donor, &Bytes::from_static(b"k"));
    let engine = open("1mb");
    let mut session = engine.session();
    let key = Bytes::from_static(b"k");
    assert!(old::is_refused(&restore(&mut session, &key, &payload)));
    assert_eq!(session.line("CONFIG SET proto-max-bulk-len 4mb"), Reply::OK);
    assert_eq!(restore(&mut session, &key, &payload), Reply::OK);
    drop((session, engine));
    let engine = open("1mb");
    let mut session = engine.session();
    assert_eq!(session.line("STRLEN k"), Reply::Int(2 << 20));
    rewrite_log(&mut session);
    assert_eq!(session.line("STRLEN k"), Reply::Int(2 << 20));
}
