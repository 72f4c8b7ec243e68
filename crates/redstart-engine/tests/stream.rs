//! Streams where Redis has no say: dropped futures and moved clocks.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use bytes::Bytes;
use redstart_engine::{Clock, Engine, Outcome, Reply, Session};

fn args(line: &str) -> Vec<Bytes> {
    line.split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect()
}

fn call(session: &mut Session, line: &str) -> Reply {
    match session.execute(&args(line)) {
        Outcome::Reply(reply) => reply,
        Outcome::Blocked(_) => panic!("{line} blocks"),
    }
}

fn text(reply: &Reply) -> String {
    format!("{reply:?}")
}

#[test]
fn a_reader_that_gives_up_leaves_its_entries_to_the_group() {
    let engine = Engine::new();
    let (mut a, mut b) = (engine.session(), engine.session());
    call(&mut a, "XGROUP CREATE s g $ MKSTREAM");
    let Outcome::Blocked(waiting) = a.execute(&args("XREADGROUP GROUP g a BLOCK 0 STREAMS s >"))
    else {
        panic!("nothing is there to read");
    };
    call(&mut b, "XADD s 1-1 f v");
    // Served already, but the reply was not taken.
    assert!(text(&call(&mut b, "XPENDING s g")).starts_with("Array([Int(1)"));
    drop(waiting);
    assert!(text(&call(&mut b, "XPENDING s g")).starts_with("Array([Int(0)"));
    let reply = call(&mut b, "XREADGROUP GROUP g b STREAMS s >");
    assert!(text(&reply).contains("1-1"), "{reply:?}");
}

#[test]
fn an_entry_given_back_goes_to_the_next_who_waits() {
    let engine = Engine::new();
    let (mut a, mut b, mut c) = (engine.session(), engine.session(), engine.session());
    call(&mut a, "XGROUP CREATE s g $ MKSTREAM");
    let wait = |session: &mut Session, name: &str| {
        let line = format!("XREADGROUP GROUP g {name} BLOCK 0 STREAMS s >");
        match session.execute(&args(&line)) {
            Outcome::Blocked(blocked) => blocked,
            Outcome::Reply(reply) => panic!("{reply:?}"),
        }
    };
    let first = wait(&mut a, "a");
    let mut second = wait(&mut b, "b");
    call(&mut c, "XADD s 1-1 f v");
    assert_eq!(second.try_take(), None);
    drop(first);
    assert!(text(&second.try_take().unwrap()).contains("1-1"));
}

#[test]
fn an_hour_of_idleness_passes_at_once() {
    let started = Instant::now();
    let engine = Engine::builder().clock(Clock::manual()).build().unwrap();
    let mut session = engine.session();
    for line in [
        "XADD s 1-1 f v",
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g a STREAMS s >",
    ] {
        call(&mut session, line);
    }
    let claim = "XAUTOCLAIM s g b 3600000 0";
    assert!(!text(&call(&mut session, claim)).contains("1-1"));
    let Outcome::Blocked(mut waiting) = session.execute(&args("XREAD BLOCK 3600000 STREAMS s $"))
    else {
        panic!("nothing is there to read");
    };
    engine.advance(Duration::from_secs(3600));
    assert_eq!(waiting.try_take(), Some(Reply::NilArray));
    assert!(text(&call(&mut session, claim)).contains("1-1"));
    assert!(started.elapsed() < Duration::from_secs(60));
}
