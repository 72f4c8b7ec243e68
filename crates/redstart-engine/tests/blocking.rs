//! Clients that wait: cancelled, timed out, served in order.

#![allow(clippy::unwrap_used)]

use std::{
    collections::HashSet,
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use redstart_engine::{Blocked, Clock, Engine, Fsync, Master, Outcome, Reply, Session};

fn args(line: &str) -> Vec<Bytes> {
    line.split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect()
}

fn run(session: &mut Session, line: &str) -> Reply {
    match session.execute(&args(line)) {
        Outcome::Reply(reply) => reply,
        Outcome::Blocked(_) => panic!("{line} blocks"),
    }
}

fn block(session: &mut Session, line: &str) -> Blocked {
    match session.execute(&args(line)) {
        Outcome::Blocked(blocked) => blocked,
        Outcome::Reply(reply) => panic!("{line} does not block: {reply:?}"),
    }
}

fn bulks(items: &[&str]) -> Reply {
    Reply::Array(items.iter().map(Reply::bulk).collect())
}

#[test]
fn an_element_taken_for_a_dropped_future_is_put_back() {
    let engine = Engine::new();
    let (mut waiting, mut other) = (engine.session(), engine.session());
    for (command, refill, check, expected) in [
        ("BLPOP l 0", "RPUSH l a b", "LRANGE l 0 -1", &["a", "b"][..]),
        ("BRPOP l 0", "RPUSH l a b", "LRANGE l 0 -1", &["a", "b"]),
        (
            "BLMPOP 0 1 l RIGHT COUNT 2",
            "RPUSH l a b c",
            "LRANGE l 0 -1",
            &["a", "b", "c"],
        ),
        (
            "BLMOVE l m LEFT RIGHT 0",
            "RPUSH l a b",
            "LRANGE l 0 -1",
            &["a", "b"],
        ),
        (
            "BRPOPLPUSH l m 0",
            "RPUSH l a b",
            "LRANGE l 0 -1",
            &["a", "b"],
        ),
        (
            "BZPOPMIN l 0",
            "ZADD l 1 a 2 b",
            "ZRANGE l 0 -1",
            &["a", "b"],
        ),
        (
            "BZPOPMAX l 0",
            "ZADD l 1 a 2 b",
            "ZRANGE l 0 -1",
            &["a", "b"],
        ),
        (
            "BZMPOP 0 1 l MIN COUNT 2",
            "ZADD l 1 a 2 b 3 c",
            "ZRANGE l 0 -1",
            &["a", "b", "c"],
        ),
    ] {
        let blocked = block(&mut waiting, command);
        run(&mut other, refill);
        assert_ne!(
            run(&mut other, check),
            bulks(expected),
            "{command} was served at once"
        );
        drop(blocked);
        assert_eq!(run(&mut other, check), bulks(expected), "{command}");
        assert_eq!(run(&mut other, "EXISTS m"), Reply::Int(0), "{command}");
        run(&mut other, "FLUSHALL");
    }
}

#[test]
fn what_a_dropped_future_gives_back_goes_to_the_next_who_waits() {
    let engine = Engine::new();
    let (mut first, mut second, mut other) = (engine.session(), engine.session(), engine.session());
    let dropped = block(&mut first, "BLPOP l 0");
    let mut next = block(&mut second, "BLPOP l 0");
    run(&mut other, "RPUSH l only");
    assert_eq!(next.try_take(), None);
    drop(dropped);
    assert_eq!(next.try_take(), Some(bulks(&["l", "only"])));
}

#[test]
fn clients_are_served_in_order_of_arrival() {
    let engine = Engine::new();
    let mut sessions: Vec<Session> = (0..50).map(|_| engine.session()).collect();
    let mut waiting: Vec<Blocked> = sessions
        .iter_mut()
        .map(|session| block(session, "BLPOP l 0"))
        .collect();
    let mut pusher = engine.session();
    for element in 0..50 {
        run(&mut pusher, &format!("RPUSH l {element}"));
    }
    for (element, blocked) in waiting.iter_mut().enumerate() {
        assert_eq!(
            blocked.try_take(),
            Some(bulks(&["l", &element.to_string()]))
        );
    }
}

/// What a blocking command has taken out; what BLMOVE has moved is still there.
fn elements(reply: Reply) -> Vec<String> {
    let text = |reply: Reply| match reply {
        Reply::Bulk(element) => String::from_utf8(element.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    match reply {
        Reply::Array(mut items) => match items.pop() {
            Some(Reply::Array(elements)) => elements.into_iter().map(text).collect(),
            Some(element) => vec![text(element)],
            None => Vec::new(),
        },
        Reply::Bulk(_) => Vec::new(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn random_cancellations_lose_no_element_and_double_none() {
    let engine = Engine::new();
    let mut pusher = engine.session();
    let mut waiting: Vec<Blocked> = Vec::new();
    let mut received = HashSet::new();
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut chance = |bound: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % bound
    };
    let collect = |reply: Reply, received: &mut HashSet<String>| {
        for element in elements(reply) {
            assert!(
                received.insert(element.clone()),
                "{element} was handed out twice"
            );
        }
    };
    let wanted = redstart_testkit::scale(20_000, "cancellations");
    let (mut pushed, mut cancelled) = (0, 0);
    while cancelled < wanted {
        match chance(8) {
            0 => {
                run(&mut pusher, &format!("RPUSH l{} e{pushed}", chance(3)));
                pushed += 1;
            }
            1..4 if waiting.len() < 20 => {
                let command = [
                    "BLPOP l0 l1 0",
                    "BRPOP l1 l2 0",
                    "BLPOP l2 0",
                    "BLMPOP 0 2 l1 l0 RIGHT",
                    "BLMOVE l0 l2 LEFT RIGHT 0",
                ][chance(5) as usize];
                match engine.session().execute(&args(command)) {
                    Outcome::Blocked(blocked) => waiting.push(blocked),
                    Outcome::Reply(reply) => collect(reply, &mut received),
                }
            }
            4..7 if !waiting.is_empty() => {
                drop(waiting.swap_remove(chance(waiting.len() as u64) as usize));
                cancelled += 1;
            }
            7 if !waiting.is_empty() => {
                let at = chance(waiting.len() as u64) as usize;
                if let Some(reply) = waiting[at].try_take() {
                    drop(waiting.swap_remove(at));
                    collect(reply, &mut received);
                }
            }
            _ => {}
        }
    }
    drop(waiting);
    for list in ["l0", "l1", "l2"] {
        while let Reply::Bulk(element) = run(&mut pusher, &format!("LPOP {list}")) {
            let element = String::from_utf8(element.to_vec()).unwrap();
            assert!(
                received.insert(element.clone()),
                "{element} was handed out twice"
            );
        }
    }
    assert_eq!(received.len(), pushed, "after {cancelled} cancellations");
}

/// Tasks on several threads are aborted while others push: whatever was pushed is received once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_tasks_lose_no_element() {
    let wanted = redstart_testkit::scale(5_000, "cancellations");
    let engine = Engine::new();
    let received = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let (mut pushed, mut aborted, mut turn) = (0u64, 0, 0u64);
    let mut pusher = engine.session();
    while aborted < wanted {
        let mut tasks = Vec::new();
        for _ in 0..16 {
            let (engine, received) = (engine.clone(), received.clone());
            tasks.push(tokio::spawn(async move {
                let reply = engine.session().call(args("BLPOP l0 l1 0")).await;
                received.lock().unwrap().extend(elements(reply));
            }));
        }
        for task in tasks {
            turn += 1;
            if turn.is_multiple_of(3) {
                let list = turn % 2;
                run(&mut pusher, &format!("RPUSH l{list} e{pushed}"));
                pushed += 1;
            }
            if turn.is_multiple_of(5) {
                tokio::task::yield_now().await;
            }
            task.abort();
            if task.await.is_err() {
                aborted += 1;
            }
        }
    }
    let mut all = std::mem::take(&mut *received.lock().unwrap());
    for list in ["l0", "l1"] {
        while let Reply::Bulk(element) = run(&mut pusher, &format!("LPOP {list}")) {
            all.push(String::from_utf8(element.to_vec()).unwrap());
        }
    }
    assert_eq!(all.len() as u64, pushed, "after {aborted} were aborted");
    let distinct: HashSet<String> = all.into_iter().collect();
    assert_eq!(distinct.len() as u64, pushed, "one was received twice");
}

#[test]
fn advancing_the_clock_ends_waits_and_expires_keys() {
    let engine = Engine::builder().clock(Clock::manual()).build().unwrap();
    let (mut session, mut waiting) = (engine.session(), engine.session());
    run(&mut session, "SET k v EX 3600");
    let mut blocked = block(&mut waiting, "BLPOP l 1800.5");
    engine.advance(Duration::from_millis(1_800_499));
    assert_eq!(blocked.try_take(), None);
    assert_eq!(run(&mut session, "PTTL k"), Reply::Int(1_799_501));
    engine.advance(Duration::from_millis(1));
    assert_eq!(blocked.try_take(), Some(Reply::NilArray));
    engine.advance(Duration::from_secs(1800));
    assert_eq!(run(&mut session, "DBSIZE"), Reply::Int(0));
}

#[test]
fn advancing_wakes_the_future() {
    let engine = Engine::builder().clock(Clock::manual()).build().unwrap();
    let mut session = engine.session();
    let mut call = pin!(session.call(args("BLPOP l 60")));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
    engine.advance(Duration::from_secs(61));
    assert_eq!(call.as_mut().poll(&mut cx), Poll::Ready(Reply::NilArray));
}

#[tokio::test(start_paused = true)]
async fn tokios_paused_time_moves_ttls_and_timeouts() {
    let engine = Engine::new();
    let mut session = engine.session();
    run(&mut session, "SET k v EX 3600");
    let before = tokio::time::Instant::now();
    let reply = session.call(args("BLPOP nothing 3000")).await;
    assert_eq!(reply, Reply::NilArray);
    let waited = before.elapsed();
    assert!(waited >= Duration::from_secs(3000) && waited < Duration::from_secs(3001));
    assert_eq!(run(&mut session, "TTL k"), Reply::Int(600));
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(run(&mut session, "EXISTS k"), Reply::Int(0));
}

#[tokio::test]
async fn a_push_wakes_a_task_that_waits() {
    let engine = Engine::new();
    let mut waiting = engine.session();
    let task = tokio::spawn(async move { waiting.call(args("BLPOP l 0")).await });
    tokio::task::yield_now().await;
    run(&mut engine.session(), "RPUSH l a");
    assert_eq!(task.await.unwrap(), bulks(&["l", "a"]));
}

#[tokio::test]
async fn a_pipeline_waits_where_a_command_blocks() {
    let engine = Engine::new();
    let mut waiting = engine.session();
    let task = tokio::spawn(async move {
        let commands = ["SET a 1", "BLPOP l 0", "GET a"].map(args);
        waiting.pipeline(&commands).await
    });
    while run(&mut engine.session(), "EXISTS a") == Reply::Int(0) {
        tokio::task::yield_now().await;
    }
    run(&mut engine.session(), "RPUSH l x");
    let expected = vec![Reply::OK, bulks(&["l", "x"]), Reply::bulk("1")];
    assert_eq!(task.await.unwrap(), expected);
}

#[test]
fn a_batch_never_waits() {
    let engine = Engine::new();
    let replies = engine
        .session()
        .execute_batch(&["BLPOP l 0", "PING"].map(args));
    assert_eq!(replies, vec![Reply::NilArray, Reply::Status("PONG".into())]);
}

#[test]
fn a_push_after_the_deadline_does_not_serve() {
    let engine = Engine::builder().clock(Clock::manual()).build().unwrap();
    let (mut waiting, mut other) = (engine.session(), engine.session());
    let mut blocked = block(&mut waiting, "BLPOP l 1");
    engine.advance(Duration::from_secs(2));
    run(&mut other, "RPUSH l a");
    assert_eq!(blocked.try_take(), Some(Reply::NilArray));
    assert_eq!(run(&mut other, "LLEN l"), Reply::Int(1));
}

#[test]
fn who_waits_is_told_when_the_data_becomes_another_servers() {
    let engine = Engine::new();
    let mut other = engine.session();
    run(&mut other, "XADD x * f v");
    run(&mut other, "XGROUP CREATE x g $");
    let (mut pops, mut moves, mut reads, mut late) = (
        engine.session(),
        engine.session(),
        engine.session(),
        engine.session(),
    );
    let mut waiting = [
        block(&mut pops, "BLPOP q 0"),
        block(&mut moves, "BLMOVE q r LEFT RIGHT 0"),
        block(&mut reads, "XREADGROUP GROUP g c BLOCK 0 STREAMS x >"),
    ];
    // This one has its element, and has not taken it over.
    let served = block(&mut late, "BLPOP taken 0");
    run(&mut other, "RPUSH taken a");
    // Nothing listens there: it counts from the moment that it was asked for.
    engine.follow(Master::new("127.0.0.1", 1)).unwrap();
    for blocked in &mut waiting {
        let reply = blocked.try_take();
        assert!(
            matches!(&reply, Some(Reply::Error(text)) if text.starts_with("UNBLOCKED ")),
            "{reply:?}"
        );
    }
    drop(served);
    assert_eq!(run(&mut other, "LLEN taken"), Reply::Int(0));
}

#[test]
fn swapdb_wakes_clients_that_wait_for_what_it_brings() {
    let engine = Engine::new();
    let (mut first, mut second, mut other) = (engine.session(), engine.session(), engine.session());
    let mut popping = block(&mut first, "BLPOP l 0");
    let mut reading = block(&mut second, "XREAD BLOCK 0 STREAMS x 0");
    run(&mut other, "SELECT 9");
    run(&mut other, "RPUSH l a b");
    run(&mut other, "XADD x 1-1 f v");
    assert_eq!(popping.try_take(), None);
    assert_eq!(run(&mut other, "SWAPDB 0 9"), Reply::OK);
    assert_eq!(popping.try_take(), Some(bulks(&["l", "a"])));
    assert!(reading.try_take().is_some_and(|reply| !reply.is_error()));
    // The waiting client is still in its database, and the other one has what was there.
    assert_eq!(run(&mut first, "LLEN l"), Reply::Int(1));
    assert_eq!(run(&mut other, "EXISTS l x"), Reply::Int(0));
}

#[tokio::test]
async fn no_wait_ends_before_its_time() {
    let engine = Engine::new();
    let waits = (0..300).map(|n| {
        let engine = engine.clone();
        tokio::spawn(async move {
            // Not all at the same phase of the timer.
            tokio::time::sleep(Duration::from_micros(137 * n)).await;
            let millis = 1 + n % 23;
            let mut session = engine.session();
            let line = match n % 3 {
                0 => format!("BLPOP nothing 0.{millis:03}"),
                1 => format!("XREAD BLOCK {millis} STREAMS nothing $"),
                _ => format!("BZPOPMIN nothing 0.{millis:03}"),
            };
            let began = std::time::Instant::now();
            assert_eq!(session.call(args(&line)).await, Reply::NilArray);
            let waited = began.elapsed();
            assert!(
                waited >= Duration::from_millis(millis),
                "{line}: {waited:?}"
            );
        })
    });
    for wait in waits.collect::<Vec<_>>() {
        wait.await.unwrap();
    }
}

#[tokio::test]
async fn a_wait_begins_when_its_command_runs() {
    let mut session = Engine::new().session();
    // The commands of a batch have one time, and the first of these takes a while.
    let began = std::time::Instant::now();
    let commands = ["DEBUG SLEEP 0.05", "BLPOP nothing 0.010"].map(args);
    let replies = session.pipeline(&commands).await;
    let waited = began.elapsed();
    assert_eq!(replies, [Reply::OK, Reply::NilArray]);
    assert!(waited >= Duration::from_millis(60), "{waited:?}");
}

#[tokio::test]
async fn waitaof_waits_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let open = |fsync: Fsync| {
        let builder = Engine::builder().compat(redstart_engine::Compat::Redis74);
        builder.append_only(dir.path(), fsync).build().unwrap()
    };
    let pair = |local, replicas| Reply::Array(vec![Reply::Int(local), Reply::Int(replicas)]);
    {
        let engine = open(Fsync::EverySec);
        let mut session = engine.session();
        run(&mut session, "SET k v");
        assert_eq!(session.call(args("WAITAOF 1 0 0")).await, pair(1, 0));
        // There are no replicas to wait for.
        assert_eq!(session.call(args("WAITAOF 1 1 20")).await, pair(1, 0));
        assert!(run(&mut session, "WAITAOF 2 0 0").is_error());
        assert!(run(&mut session, "WAITAOF 0 -1 0").is_error());
    }
    {
        // Nothing is synced by itself: the time is over before it is on the disk.
        let engine = open(Fsync::No);
        let mut session = engine.session();
        run(&mut session, "SET k v");
        assert_eq!(session.call(args("WAITAOF 1 0 50")).await, pair(0, 0));
        assert_eq!(session.call(args("WAITAOF 0 0 0")).await, pair(0, 0));
    }
    let mut session = Engine::builder()
        .compat(redstart_engine::Compat::Redis74)
        .build()
        .unwrap()
        .session();
    assert!(run(&mut session, "WAITAOF 1 0 0").is_error());
    assert_eq!(run(&mut session, "WAITAOF 0 0 0"), pair(0, 0));
    assert!(
        run(&mut Engine::new().session(), "WAITAOF 0 0 0").is_error(),
        "7.0 has none"
    );
}

/// What a wait is answered, which must not last for ever.
async fn answered(blocked: Blocked) -> Reply {
    let patience = Duration::from_secs(60);
    let answer = tokio::time::timeout(patience, blocked).await;
    answer.expect("an answer")
}

#[tokio::test]
async fn a_wait_ends_when_what_it_waits_for_is_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Engine::builder().compat(redstart_engine::Compat::Redis74);
    let engine = builder.append_only(dir.path(), Fsync::No).build().unwrap();
    let (mut session, mut other) = (engine.session(), engine.session());
    run(&mut other, "SET k v");
    let for_disk = block(&mut session, "WAITAOF 1 0 0");
    assert_eq!(run(&mut other, "CONFIG SET appendonly no"), Reply::OK);
    let refused = Reply::Error(
        "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.".into(),
    );
    assert_eq!(answered(for_disk).await, refused);

    let mut third = engine.session();
    let waits = [
        block(&mut session, "WAIT 1 0"),
        block(&mut third, "WAITAOF 0 1 0"),
    ];
    // It never answers, and is the master all the same.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let follow = format!("REPLICAOF 127.0.0.1 {port}");
    assert_eq!(run(&mut other, &follow), Reply::OK);
    for wait in waits {
        let Reply::Error(text) = answered(wait).await else {
            panic!("no error")
        };
        assert!(text.starts_with("UNBLOCKED"), "{text}");
    }
    run(&mut other, "REPLICAOF NO ONE");
}
