//! Bloom filters: the replies and errors of Redis 8.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use redstart_engine::{Engine, Reply, Session};

fn call(session: &mut Session, line: &str) -> Reply {
    let args: Vec<Bytes> = line
        .split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    session.execute(&args).into_reply().unwrap()
}

fn error(text: &str) -> Reply {
    Reply::Error(text.into())
}

fn ints(values: &[i64]) -> Reply {
    Reply::Array(values.iter().map(|value| Reply::Int(*value)).collect())
}

#[test]
fn items_are_added_and_found() {
    let engine = Engine::new();
    let mut s = engine.session();
    assert_eq!(call(&mut s, "BF.ADD f a"), Reply::Int(1));
    assert_eq!(call(&mut s, "BF.ADD f a"), Reply::Int(0));
    assert_eq!(call(&mut s, "BF.MADD f a b c"), ints(&[0, 1, 1]));
    assert_eq!(call(&mut s, "BF.EXISTS f b"), Reply::Int(1));
    assert_eq!(call(&mut s, "BF.MEXISTS f a x c"), ints(&[1, 0, 1]));
    assert_eq!(call(&mut s, "BF.CARD f"), Reply::Int(3));
    assert_eq!(call(&mut s, "BF.EXISTS nothing b"), Reply::Int(0));
    assert_eq!(call(&mut s, "BF.MEXISTS nothing b c"), ints(&[0, 0]));
    assert_eq!(call(&mut s, "BF.CARD nothing"), Reply::Int(0));
    assert_eq!(call(&mut s, "TYPE f"), Reply::Status("MBbloom--".into()));
    let info = call(&mut s, "BF.INFO f");
    let Reply::Array(fields) = info else {
        panic!("{info:?}");
    };
    assert_eq!(fields[0], Reply::Status("Capacity".into()));
    assert_eq!(fields[1], Reply::Int(100));
    assert_eq!(fields[3], Reply::Int(240));
    assert_eq!(fields[5], Reply::Int(1));
    assert_eq!(fields[7], Reply::Int(3));
    assert_eq!(fields[9], Reply::Int(2));
    assert_eq!(call(&mut s, "BF.INFO f CAPACITY"), ints(&[100]));
    assert_eq!(call(&mut s, "BF.INFO f items"), ints(&[3]));
    assert_eq!(
        call(&mut s, "BF.INFO f nope"),
        error("ERR Invalid information value")
    );
    let mut s = engine.session_resp3();
    assert_eq!(call(&mut s, "BF.ADD f d"), Reply::Bool(true));
    assert!(matches!(call(&mut s, "BF.INFO f"), Reply::Map(_)));
}

#[test]
fn filters_are_reserved_once() {
    let engine = Engine::new();
    let mut s = engine.session();
    assert_eq!(
        call(&mut s, "BF.RESERVE f 0.001 1000 EXPANSION 4"),
        Reply::OK
    );
    assert_eq!(
        call(&mut s, "BF.RESERVE f 0.001 1000"),
        error("ERR item exists")
    );
    assert_eq!(call(&mut s, "BF.INFO f EXPANSION"), ints(&[4]));
    for (line, text) in [
        ("BF.RESERVE g x 1000", "ERR bad error rate"),
        ("BF.RESERVE g 0 1000", "ERR (0 < error rate range < 1)"),
        ("BF.RESERVE g 1 1000", "ERR (0 < error rate range < 1)"),
        ("BF.RESERVE g 0.1 x", "ERR bad capacity"),
        (
            "BF.RESERVE g 0.1 0",
            "ERR (capacity should be larger than 0)",
        ),
        ("BF.RESERVE g 0.1 5 EXPANSION", "ERR no expansion"),
        ("BF.RESERVE g 0.1 5 EXPANSION x", "ERR bad expansion"),
        ("BF.RESERVE g 0.1 5 EXPANSION -1", "ERR bad expansion"),
        (
            "BF.RESERVE g 0.1 5 NONSCALING EXPANSION 2",
            "ERR Nonscaling filters cannot expand",
        ),
        (
            "BF.RESERVE g 0.1",
            "ERR wrong number of arguments for 'bf.reserve' command",
        ),
        ("BF.INFO g", "ERR not found"),
    ] {
        assert_eq!(call(&mut s, line), error(text), "{line}");
    }
    call(&mut s, "SET s x");
    let wrong = error("WRONGTYPE Operation against a key holding the wrong kind of value");
    for line in [
        "BF.RESERVE s 0.1 5",
        "BF.ADD s a",
        "BF.MADD s a",
        "BF.INFO s",
        "BF.CARD s",
        "BF.INSERT s ITEMS a",
    ] {
        assert_eq!(call(&mut s, line), wrong, "{line}");
    }
    assert_eq!(call(&mut s, "BF.EXISTS s a"), Reply::Int(0));
}

#[test]
fn fixed_filters_fill_up_and_others_grow() {
    let engine = Engine::new();
    let mut s = engine.session();
    let full = error("ERR non scaling filter is full");
    assert_eq!(call(&mut s, "BF.RESERVE f 0.001 2 NONSCALING"), Reply::OK);
    assert_eq!(
        call(&mut s, "BF.MADD f a b c d"),
        Reply::Array(vec![Reply::Int(1), Reply::Int(1), full.clone()])
    );
    assert_eq!(call(&mut s, "BF.ADD f e"), full);
    assert_eq!(call(&mut s, "BF.ADD f a"), Reply::Int(0));
    assert_eq!(
        call(&mut s, "BF.INFO f EXPANSION"),
        Reply::Array(vec![Reply::Nil])
    );
    assert_eq!(call(&mut s, "BF.RESERVE g 0.001 2 EXPANSION 3"), Reply::OK);
    for item in 0..20 {
        call(&mut s, &format!("BF.ADD g i{item}"));
    }
    assert_eq!(call(&mut s, "BF.INFO g FILTERS"), ints(&[3]));
    assert_eq!(call(&mut s, "BF.INFO g CAPACITY"), ints(&[2 + 6 + 18]));
}

#[test]
fn insert_makes_the_filter_it_is_told_to() {
    let engine = Engine::new();
    let mut s = engine.session();
    assert_eq!(
        call(&mut s, "BF.INSERT f NOCREATE ITEMS a"),
        error("ERR not found")
    );
    assert_eq!(
        call(
            &mut s,
            "BF.INSERT f CAPACITY 500 ERROR 0.001 EXPANSION 3 ITEMS a b a"
        ),
        ints(&[1, 1, 0])
    );
    assert_eq!(call(&mut s, "BF.INFO f CAPACITY"), ints(&[500]));
    assert_eq!(call(&mut s, "BF.INFO f EXPANSION"), ints(&[3]));
    assert_eq!(call(&mut s, "BF.INSERT f NOCREATE ITEMS c"), ints(&[1]));
    for (line, text) in [
        ("BF.INSERT g CAPACITY x ITEMS a", "ERR Bad capacity"),
        ("BF.INSERT g ERROR x ITEMS a", "ERR Bad error rate"),
        ("BF.INSERT g EXPANSION x ITEMS a", "ERR Bad expansion"),
        ("BF.INSERT g ERROR 2 ITEMS a", "ERR Bad argument received"),
        (
            "BF.INSERT g WHAT 2 ITEMS a",
            "ERR Unknown argument received",
        ),
        (
            "BF.INSERT g CAPACITY 2 ITEMS",
            "ERR wrong number of arguments for 'bf.insert' command",
        ),
    ] {
        assert_eq!(call(&mut s, line), error(text), "{line}");
    }
}

#[test]
fn dumps_are_loaded_back() {
    let engine = Engine::new();
    let mut s = engine.session();
    for item in 0..500 {
        call(&mut s, &format!("BF.ADD f i{item}"));
    }
    let mut at = 0;
    loop {
        let Reply::Array(parts) = call(&mut s, &format!("BF.SCANDUMP f {at}")) else {
            panic!("no array");
        };
        let (Reply::Int(next), Reply::Bulk(data)) = (&parts[0], &parts[1]) else {
            panic!("{parts:?}");
        };
        if *next == 0 {
            break;
        }
        at = *next;
        let load = [
            Bytes::from_static(b"BF.LOADCHUNK"),
            Bytes::from_static(b"copy"),
            at.to_string().into(),
            data.clone(),
        ];
        assert_eq!(s.execute(&load).into_reply(), Some(Reply::OK));
    }
    assert_eq!(call(&mut s, "BF.INFO copy"), call(&mut s, "BF.INFO f"));
    for item in 0..500 {
        let line = format!("BF.EXISTS copy i{item}");
        assert_eq!(call(&mut s, &line), Reply::Int(1));
    }
    assert_eq!(
        call(&mut s, "BF.LOADCHUNK other 1 garbage"),
        error("ERR received bad data")
    );
}

#[test]
fn places_that_no_filter_has_are_refused() {
    let engine = Engine::new();
    let mut s = engine.session();
    call(&mut s, "BF.ADD f a");
    let nothing = Reply::Array(vec![Reply::Int(0), Reply::bulk("")]);
    for place in [i64::MIN, i64::MIN + 1, -1, i64::MAX] {
        assert_eq!(call(&mut s, &format!("BF.SCANDUMP f {place}")), nothing);
        assert!(call(&mut s, &format!("BF.LOADCHUNK f {place} data")).is_error());
    }
}
