//! Connections whose commands have to wait, are ended, or are more than the settings allow.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    time::{Duration, Instant},
};

use bytes::Bytes;
use redstart_engine::{Engine, Outcome, Reply, Session};

use crate::{Running, exchange, read_all};

const PATIENCE: Duration = Duration::from_secs(60);

/// A command of this process, which no CLIENT PAUSE holds back.
fn say(session: &mut Session, line: &str) -> Reply {
    let words: Vec<Bytes> = line
        .split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    match session.execute(&words) {
        Outcome::Reply(reply) => reply,
        Outcome::Blocked(_) => panic!("{line} blocks"),
    }
}

fn text(reply: Reply) -> String {
    match reply {
        Reply::Bulk(text) | Reply::Verbatim { text, .. } => {
            String::from_utf8(text.to_vec()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

fn number(session: &mut Session, line: &str) -> u64 {
    match say(session, line) {
        Reply::Nil => 0,
        other => text(other).parse().unwrap(),
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_was_answered_before_a_held_command_leaves_at_once() {
    let engine = Engine::new();
    let server = Running::start(engine.clone());
    let mut boss = engine.session();
    say(&mut boss, "CLIENT PAUSE 1000000 WRITE");
    let mut client = server.connect();
    assert_eq!(
        exchange(&mut client, b"GET a\r\nSET b 1\r\nGET b\r\n", 5),
        b"$-1\r\n"
    );
    say(&mut boss, "CLIENT UNPAUSE");
    assert_eq!(exchange(&mut client, b"", 12), b"+OK\r\n$1\r\n1\r\n");
    // The pause itself is answered, too.
    assert_eq!(
        exchange(&mut client, b"CLIENT PAUSE 1000000 ALL\r\nPING\r\n", 5),
        b"+OK\r\n"
    );
    say(&mut boss, "CLIENT UNPAUSE");
    assert_eq!(exchange(&mut client, b"", 7), b"+PONG\r\n");
}

#[test]
fn messages_go_on_and_a_client_that_leaves_is_noticed_while_its_command_is_held() {
    let engine = Engine::new();
    let server = Running::start(engine.clone());
    let mut boss = engine.session();
    let mut client = server.connect();
    client.write_all(b"HELLO 3\r\nSUBSCRIBE c\r\n").unwrap();
    let subscribed = b"$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
    let mut got = Vec::new();
    while !got.ends_with(subscribed) {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        got.push(byte[0]);
    }
    say(&mut boss, "CLIENT PAUSE 1000000 WRITE");
    assert_eq!(exchange(&mut client, b"GET a\r\nSET b 1\r\n", 3), b"_\r\n");
    assert_eq!(say(&mut boss, "PUBLISH c hello"), Reply::Int(1));
    let message = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n";
    assert_eq!(exchange(&mut client, b"", message.len()), message);
    drop(client);
    until("nobody listens any more", || {
        say(&mut boss, "PUBLISH c again") == Reply::Int(0)
    });
}

#[test]
fn a_killed_client_runs_nothing_more_and_keeps_nobody_from_being_served() {
    const MANY: u64 = 2_000_000;
    let engine = Engine::new();
    // One thread serves all connections.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let server = Running::on(
        runtime.worker_threads(1),
        engine.clone(),
        redstart_engine::server::ServerConfig::new(),
    );
    let (mut victim, mut other) = (server.connect(), server.connect());
    victim
        .write_all(b"CLIENT SETNAME victim\r\nCLIENT REPLY OFF\r\nBLPOP x 0\r\n")
        .unwrap();
    let sent = b"INCR n\r\n".repeat(MANY as usize);
    victim.write_all(&sent).unwrap();
    let mut boss = engine.session();
    until("it waits", || {
        text(say(&mut boss, "INFO clients")).contains("blocked_clients:1")
    });
    assert_eq!(exchange(&mut other, b"LPUSH x 1\r\n", 4), b":1\r\n");
    until("it goes on", || number(&mut boss, "GET n") > 0);
    assert_eq!(exchange(&mut other, b"PING\r\n", 7), b"+PONG\r\n");
    let meanwhile = number(&mut boss, "GET n");
    assert!(meanwhile < MANY, "the other client waited for all of it");
    let list = text(say(&mut boss, "CLIENT LIST"));
    let line = list
        .lines()
        .find(|line| line.contains("name=victim"))
        .unwrap();
    let id = line.strip_prefix("id=").unwrap().split(' ').next().unwrap();
    assert_eq!(
        say(&mut boss, &format!("CLIENT KILL ID {id}")),
        Reply::Int(1)
    );
    let last = number(&mut boss, "GET n");
    assert!(last < MANY, "all of it ran before the client was killed");
    // It is over, with or without what it had been answered before.
    let _ = read_all(&mut victim);
    assert_eq!(number(&mut boss, "GET n"), last);
}

/// Short arguments are parts of the buffer that they came in, which has 16 KiB.
#[test]
fn what_is_kept_of_a_request_keeps_no_read_buffer() {
    let engine = Engine::new();
    let mut subscriber = engine.session();
    subscriber.set_protocol(redstart_engine::Protocol::Resp3);
    say(&mut subscriber, "SSUBSCRIBE c");
    let mut client = engine.session();
    for (command, expected) in [
        (&["SPUBLISH"][..], Reply::Int(1)),
        (&["CLIENT", "SETNAME"][..], Reply::OK),
    ] {
        let buffer = Bytes::from(vec![b'c'; 16 * 1024]);
        let mut request: Vec<Bytes> = command.iter().map(|word| Bytes::from(*word)).collect();
        request.push(buffer.slice(..1));
        if command.len() == 1 {
            request.push(buffer.slice(1..11));
        }
        match client.execute(&request) {
            Outcome::Reply(reply) => assert_eq!(reply, expected),
            Outcome::Blocked(_) => panic!("{command:?} blocks"),
        }
        drop(request);
        assert!(buffer.is_unique(), "{command:?} keeps it");
    }
}

#[test]
fn the_limits_that_are_set_hold_for_the_first_command() {
    let engine = Engine::new();
    let server = Running::start(engine.clone());
    let mut boss = engine.session();
    let set = |boss: &mut Session, to: &str| {
        let line = format!("CONFIG SET proto-max-bulk-len {to}");
        assert_eq!(say(boss, &line), Reply::OK);
    };
    set(&mut boss, "1mb");
    let mut client = server.connect();
    client
        .write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000\r\n")
        .unwrap();
    assert_eq!(
        read_all(&mut client),
        b"-ERR Protocol error: invalid bulk length\r\n"
    );
    set(&mut boss, "1gb");
    let mut client = server.connect();
    client
        .write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$600000000\r\n")
        .unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let waits = client.read(&mut [0; 64]).unwrap_err();
    assert!(
        matches!(waits.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        "{waits}"
    );
}

#[test]
fn what_a_waiting_client_sends_counts_as_used_memory() {
    const SENT: usize = 20 * 1024 * 1024;
    let engine = Engine::new();
    let server = Running::start(engine.clone());
    let mut boss = engine.session();
    say(&mut boss, "CONFIG SET maxmemory 4gb");
    let used = |boss: &mut Session| -> usize {
        let info = text(say(boss, "INFO memory"));
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"));
        line.unwrap().parse().unwrap()
    };
    let before = used(&mut boss);
    let mut client = server.connect();
    client.write_all(b"BLPOP x 0\r\n").unwrap();
    client.write_all(&b"PING\r\n".repeat(SENT / 6)).unwrap();
    until("it is counted", || used(&mut boss) > before + SENT / 2);
    // And no longer, once it was executed.
    say(&mut boss, "LPUSH x 1");
    let mut answers = vec![0; 18 + SENT / 6 * 7];
    client.read_exact(&mut answers).unwrap();
    until("it is let go", || used(&mut boss) < before + SENT / 2);
}
