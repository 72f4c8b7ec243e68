//! What clients send when they connect, and the server's own commands.

use redstart_engine::{Outcome, Protocol, Reply};

use crate::{Pair, Server, compare, split};

#[test]
fn connection_commands_answer_alike() {
    compare(
        r#"
        PING
        PING "a b"
        PING a b
        ECHO x
        SELECT 1
        SET a 1
        SELECT 0
        GET a
        SELECT 16
        SELECT -1
        SELECT x
        HELLO 4
        HELLO x
        HELLO 2 FOO
        HELLO 3 SETNAME
        HELLO 3 SETNAME "a b"
        HELLO 3 AUTH foo bar
        AUTH x
        AUTH foo x
        AUTH default x
        AUTH a b c
        CLIENT GETNAME
        CLIENT SETNAME me
        CLIENT GETNAME
        CLIENT SETNAME "a b"
        CLIENT SETNAME ""
        CLIENT GETNAME
        CLIENT SETNAME you
        CLIENT ID x
        CLIENT NOSUCH
        CLIENT
        CLIENT KILL 1.1.1.1:1
        CLIENT KILL ID 0
        CLIENT KILL ID x
        CLIENT KILL TYPE foo
        CLIENT KILL TYPE normal ID 4444
        CLIENT KILL USER foo
        CLIENT KILL USER default SKIPME foo
        CLIENT KILL ID 5 SKIPME
        CLIENT LIST TYPE foo
        CLIENT LIST ID
        CLIENT LIST ID x
        CLIENT LIST TYPE pubsub
        CLIENT UNBLOCK 44444
        CLIENT UNBLOCK x
        CLIENT UNBLOCK 44444 FOO
        CLIENT PAUSE x
        CLIENT PAUSE -1
        CLIENT PAUSE 0 FOO
        CLIENT UNPAUSE
        CLIENT REPLY FOO
        CLIENT REPLY ON
        CLIENT NO-EVICT FOO
        CLIENT NO-EVICT ON
        CLIENT GETREDIR
        CLIENT TRACKINGINFO
        CLIENT TRACKING ON PREFIX a
        CLIENT TRACKING ON BCAST OPTIN
        CLIENT TRACKING ON OPTIN OPTOUT
        CLIENT TRACKING ON REDIRECT 444444
        CLIENT TRACKING ON REDIRECT x
        CLIENT TRACKING FOO
        CLIENT TRACKING ON FOO
        CLIENT TRACKING ON BCAST PREFIX a PREFIX ab
        CLIENT CACHING YES
        CLIENT TRACKING ON
        CLIENT CACHING YES
        CLIENT GETREDIR
        CLIENT TRACKINGINFO
        CLIENT TRACKING OFF
        RESET
        CLIENT GETNAME
        "#,
    );
}

#[test]
fn server_commands_answer_alike() {
    compare(
        r#"
        DBSIZE
        SET a 1
        DBSIZE
        FLUSHDB FOO
        FLUSHALL SYNC ASYNC
        SELECT 1
        SET b 1
        FLUSHDB
        SWAPDB 0 16
        SWAPDB 0 x
        SWAPDB x 0
        SWAPDB 0 1
        GET a
        WATCH a
        @2 SWAPDB 0 1
        MULTI
        GET a
        EXEC
        SELECT 0
        WATCH a
        @2 FLUSHALL
        MULTI
        GET a
        EXEC
        WATCH a
        @2 FLUSHALL
        MULTI
        GET a
        EXEC
        DBSIZE
        LOLWUT
        ROLE
        SLOWLOG LEN
        SLOWLOG GET 10
        SLOWLOG GET -2
        SLOWLOG RESET
        LATENCY RESET
        LATENCY LATEST
        LATENCY HISTORY command
        MEMORY USAGE nothing
        MEMORY USAGE nothing SAMPLES x
        MEMORY USAGE nothing SAMPLES -1
        MEMORY USAGE nothing FOO 1
        INFO nosuch
        COMMAND NOSUCH
        COMMAND INFO nosuch
        COMMAND INFO get nosuch publish subscribe ssubscribe spublish echo
        COMMAND GETKEYS get
        COMMAND GETKEYS nosuch a
        COMMAND GETKEYS get a
        COMMAND GETKEYS get a b
        COMMAND GETKEYS publish a b
        COMMAND LIST FOO
        COMMAND LIST FILTERBY ACLCAT foo
        COMMAND LIST FILTERBY FOO foo
        COMMAND LIST FILTERBY PATTERN dbsize
        COMMAND DOCS nosuch
        CONFIG GET nosuch
        CONFIG GET maxmemory
        CONFIG SET nosuch x
        CONFIG SET maxmemory abc
        CONFIG SET maxmemory
        CONFIG SET databases 3
        CONFIG SET maxmemory 1 maxmemory 2
        CONFIG SET maxmemory 1gb hash-max-listpack-entries a
        CONFIG GET maxmemory
        CONFIG SET hash-max-listpack-entries -1
        CONFIG SET timeout -5
        CONFIG SET maxmemory 1gb
        CONFIG GET maxmemory
        CONFIG SET maxmemory 10k
        CONFIG GET maxmemory
        CONFIG SET maxmemory 0
        CONFIG GET hash-max-listpack-entries
        CONFIG GET hash-max-ziplist-value
        CONFIG GET set-max-intset-entries
        CONFIG GET zset-max-listpack-entries
        CONFIG GET proto-max-bulk-len
        CONFIG GET client-query-buffer-limit
        CONFIG GET stream-node-max-entries
        CONFIG SET notify-keyspace-events Q
        CONFIG SET notify-keyspace-events KEAnm
        CONFIG GET notify-keyspace-events
        CONFIG SET notify-keyspace-events Kgx$n
        CONFIG GET notify-keyspace-events
        CONFIG SET notify-keyspace-events ""
        CONFIG GET notify-keyspace-events
        CONFIG RESETSTAT
        CONFIG REWRITE
        CONFIG NOSUCH
        "#,
    );
}

#[test]
fn hello_greets_alike_and_changes_the_protocol() {
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    for line in [
        "HELLO",
        "HELLO 3",
        "HELLO 2",
        "HELLO 3 AUTH default x SETNAME me",
    ] {
        let args = split(line);
        let theirs = pair.wires[0].call(&args);
        let Outcome::Reply(ours) = pair.sessions[0].execute(&args) else {
            panic!("blocked");
        };
        assert_eq!(without_id(ours), without_id(theirs), "{line}");
    }
    assert_eq!(pair.sessions[0].protocol(), Protocol::Resp3);
}

fn without_id(reply: Reply) -> Reply {
    match reply {
        Reply::Map(mut pairs) => {
            pairs[3].1 = Reply::Nil;
            Reply::Map(pairs)
        }
        Reply::Array(mut items) => {
            items[7] = Reply::Nil;
            Reply::Array(items)
        }
        other => other,
    }
}

#[test]
fn a_client_describes_itself_in_the_same_fields() {
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    let fields = |reply: Reply| match reply {
        Reply::Bulk(text) => String::from_utf8(text.to_vec())
            .unwrap()
            .split_whitespace()
            .map(|field| field.split('=').next().unwrap().to_owned())
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let args = split("CLIENT INFO");
    let theirs = pair.wires[0].call(&args);
    let ours = pair.sessions[0].execute(&args).into_reply().unwrap();
    assert_eq!(fields(ours), fields(theirs));
}

#[test]
fn a_wrong_password_is_refused_and_a_right_one_opens() {
    let engine = redstart_engine::Engine::builder()
        .password(Some("secret".into()))
        .build()
        .unwrap();
    let mut session = engine.session();
    let mut call = |line: &str| match session.execute(&split(line)).into_reply().unwrap() {
        Reply::Error(text) => text.split(' ').next().unwrap().to_owned(),
        other => format!("{other:?}"),
    };
    assert_eq!(call("GET a"), "NOAUTH");
    assert_eq!(call("HELLO 3"), "NOAUTH");
    assert_eq!(call("AUTH nonsense"), "WRONGPASS");
    assert_eq!(call("AUTH secre"), "WRONGPASS");
    assert_eq!(call("AUTH other secret"), "WRONGPASS");
    assert_eq!(call("GET a"), "NOAUTH");
    assert_eq!(call("AUTH secret"), "Status(\"OK\")");
    assert_eq!(call("GET a"), "Nil");
    assert_eq!(call("RESET"), "Status(\"RESET\")");
    assert_eq!(call("GET a"), "NOAUTH");
}

#[test]
fn a_full_engine_refuses_what_needs_memory_alike() {
    compare(
        r#"
        SET a 1
        RPUSH l 1
        CONFIG SET maxmemory 1
        SET a 2
        GET a
        APPEND a 1
        LPUSH l 1
        LPOP l
        INCR a
        EXPIRE a 100
        DEL a
        XADD s 1-1 a b
        MULTI
        SET a 1
        GET a
        EXEC
        MULTI
        GET a
        EXEC
        PUBLISH a b
        CONFIG SET maxmemory 0
        SET a 2
        MULTI
        SET a 3
        @2 CONFIG SET maxmemory 1
        EXEC
        GET a
        CONFIG SET maxmemory-policy allkeys-lru
        SET a 1
        GET a
        DBSIZE
        CONFIG SET maxmemory 0 maxmemory-policy noeviction
        OBJECT FREQ a
        SET b 1
        OBJECT IDLETIME b
        "#,
    );
}

#[test]
fn keys_that_were_not_used_for_long_are_evicted_first() {
    use std::time::Duration;
    let engine = redstart_engine::Engine::builder()
        .clock(redstart_engine::Clock::manual())
        .maxmemory(6 * 1024 * 1024, redstart_engine::MemoryPolicy::AllKeysLru)
        .build()
        .unwrap();
    let mut session = engine.session();
    let mut call = |line: &str| session.execute(&split(line)).into_reply().unwrap();
    let value = "x".repeat(1000);
    for n in 0..2000 {
        call(&format!("SET old:{n} {value}"));
    }
    assert_eq!(call("DBSIZE"), Reply::Int(2000));
    engine.advance(Duration::from_secs(60));
    for n in 0..2000 {
        call(&format!("SET new:{n} {value}"));
    }
    engine.advance(Duration::from_secs(60));
    // More than there is room for without the old ones.
    for n in 0..4000 {
        assert_eq!(call(&format!("SET newer:{n} {value}")), Reply::OK);
    }
    let mut left = |name: &str| {
        (0..4000)
            .filter(|n| call(&format!("EXISTS {name}:{n}")) == Reply::Int(1))
            .count()
    };
    let (old, new, newer) = (left("old"), left("new"), left("newer"));
    assert!(old + new + newer < 8000, "nothing was evicted");
    assert!(old < new && new < newer, "{old} {new} {newer}");
    assert!(newer > 3800, "{newer}");
}
