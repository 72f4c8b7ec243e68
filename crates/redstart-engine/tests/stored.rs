//! Whatever bytes a client stores, no command that reads them as something else panics.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use proptest::prelude::*;
use redstart_engine::{Engine, Outcome, Reply, Session};

fn run(session: &mut Session, args: &[Bytes]) -> Reply {
    match session.execute(args) {
        Outcome::Reply(reply) => reply,
        Outcome::Blocked(_) => panic!("{args:?} blocks"),
    }
}

fn line(session: &mut Session, line: &str) -> Reply {
    let args: Vec<Bytes> = line
        .split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    run(session, &args)
}

fn set(session: &mut Session, key: &'static str, value: &[u8]) {
    let args = [
        Bytes::from_static(b"SET"),
        Bytes::from_static(key.as_bytes()),
        Bytes::copy_from_slice(value),
    ];
    assert_eq!(run(session, &args), Reply::OK);
}

/// A string that passes for a HyperLogLog of either encoding, with anything behind its header.
fn hyperloglog() -> impl Strategy<Value = Vec<u8>> {
    let sparse = prop::collection::vec(
        prop_oneof![Just(0x7f), Just(0xff), Just(0x40), Just(0x3f), any::<u8>()],
        0..200,
    );
    let sparse = sparse.prop_map(|runs| [&b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80"[..], &runs].concat());
    let dense = prop::collection::vec(any::<u8>(), 12288..=12288);
    let dense = dense.prop_map(|bytes| [&b"HYLL\0\0\0\0\0\0\0\0\0\0\0\x80"[..], &bytes].concat());
    let header = prop::collection::vec(any::<u8>(), 0..40);
    let header = header.prop_map(|bytes| [&b"HYLL"[..], &bytes].concat());
    prop_oneof![4 => sparse, 1 => dense, 2 => header]
}

#[test]
fn a_sparse_hyperloglog_that_ends_within_a_run_is_corrupt() {
    let engine = Engine::new();
    let mut session = engine.session();
    for end in [0x7f, 0x40] {
        let header = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80";
        set(&mut session, "k", &[&header[..], &[end]].concat());
        for command in ["PFADD k a", "PFCOUNT k", "PFMERGE k k", "PFCOUNT k k"] {
            let reply = line(&mut session, command);
            assert!(
                matches!(&reply, Reply::Error(text) if text.starts_with("INVALIDOBJ")),
                "{command}: {reply:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(redstart_testkit::scale(300, "stored") as u32))]

    #[test]
    fn any_bytes_pass_for_a_hyperloglog_without_a_panic(
        first in hyperloglog(), second in hyperloglog(), element in "[a-z]{1,4}",
    ) {
        let engine = Engine::new();
        let mut session = engine.session();
        set(&mut session, "a", &first);
        set(&mut session, "b", &second);
        for _ in 0..3 {
            line(&mut session, &format!("PFADD a {element} x y z"));
            line(&mut session, "PFCOUNT a");
            line(&mut session, "PFCOUNT a b");
            line(&mut session, "PFMERGE b a");
            line(&mut session, "PFMERGE c a b");
        }
    }

    #[test]
    fn any_bytes_are_bits_and_numbers_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        from in -80i64..80, to in -80i64..80, offset in 0u64..700, width in 1u32..64,
        word in "[a-zA-Z0-9.+-]{0,9}",
    ) {
        let engine = Engine::new();
        let mut session = engine.session();
        set(&mut session, "a", &bytes);
        set(&mut session, "b", word.as_bytes());
        for command in [
            format!("BITCOUNT a {from} {to}"),
            format!("BITCOUNT a {from} {to} BIT"),
            format!("BITPOS a 0 {from} {to}"),
            format!("BITPOS a 1 {from} {to} BIT"),
            "BITPOS a 0".into(),
            format!("GETBIT a {offset}"),
            format!("BITFIELD a GET u{width} {offset} SET i{width} #{offset} {from} INCRBY u{width} {offset} {to}"),
            format!("BITFIELD a OVERFLOW SAT INCRBY i{width} {offset} {to} OVERFLOW FAIL INCRBY i{width} {offset} {to}"),
            "BITOP AND c a b".into(), "BITOP OR c a b".into(), "BITOP XOR c a b".into(),
            "BITOP NOT c a".into(),
            format!("GETRANGE a {from} {to}"), format!("SETRANGE a {offset} x"),
            format!("SETBIT a {offset} 1"), "APPEND a x".into(),
            "INCR b".into(), "INCRBYFLOAT b 1".into(), "LCS a b".into(), "LCS a b IDX WITHMATCHLEN".into(),
        ] {
            line(&mut session, &command);
        }
    }

    #[test]
    fn any_score_is_a_place_without_a_panic(
        scores in prop::collection::vec(prop_oneof![
            any::<f64>().prop_filter("a number", |score| !score.is_nan()),
            (0u64..1 << 53).prop_map(|bits| bits as f64),
            Just(f64::INFINITY), Just(-1.0), Just(4503599627370496.0),
        ], 1..12),
        radius in 0.0f64..30_000_000.0,
    ) {
        let engine = Engine::new();
        let mut session = engine.session();
        for (n, score) in scores.iter().enumerate() {
            line(&mut session, &format!("ZADD places {score:?} m{n}"));
        }
        for command in [
            "GEOPOS places m0 m1 nobody".to_owned(),
            "GEOHASH places m0 m1".into(),
            "GEODIST places m0 m1 km".into(),
            format!("GEOSEARCH places FROMMEMBER m0 BYRADIUS {radius} m ASC WITHCOORD WITHDIST WITHHASH"),
            format!("GEOSEARCH places FROMLONLAT 0 0 BYBOX {radius} {radius} m DESC COUNT 3 ANY"),
            format!("GEOSEARCHSTORE near places FROMLONLAT 179 80 BYRADIUS {radius} km STOREDIST"),
            format!("GEORADIUS places 10 10 {radius} m"),
        ] {
            line(&mut session, &command);
        }
    }

    #[test]
    fn any_bytes_are_chunks_of_a_filter_without_a_panic(
        chunks in prop::collection::vec((-2i64..200, prop::collection::vec(any::<u8>(), 0..120)), 1..5),
        cut in 0usize..200,
    ) {
        let engine = Engine::new();
        let mut session = engine.session();
        // A true filter's chunks, cut and changed, and made-up ones.
        line(&mut session, "BF.RESERVE true 0.01 20");
        line(&mut session, "BF.MADD true a b c");
        let mut cursor = 0;
        loop {
            let Reply::Array(mut parts) = line(&mut session, &format!("BF.SCANDUMP true {cursor}")) else {
                break;
            };
            let (Some(Reply::Bulk(data)), Some(Reply::Int(next))) = (parts.pop(), parts.pop()) else {
                break;
            };
            if next == 0 { break; }
            cursor = next;
            let cut = data.slice(..cut.min(data.len()));
            for data in [data, cut] {
                let args = ["BF.LOADCHUNK".into(), "made".into(), Bytes::from(next.to_string()), data];
                run(&mut session, &args);
            }
        }
        for (cursor, data) in chunks {
            let args = ["BF.LOADCHUNK".into(), "made".into(), Bytes::from(cursor.to_string()), Bytes::from(data)];
            run(&mut session, &args);
            for command in ["BF.EXISTS made a", "BF.ADD made z", "BF.INFO made", "BF.CARD made", "BF.SCANDUMP made 0", "BF.SCANDUMP made 1"] {
                line(&mut session, command);
            }
        }
    }
}
