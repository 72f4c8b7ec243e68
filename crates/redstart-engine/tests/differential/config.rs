//! CONFIG: the names, defaults, checks and values of redis-server.

use std::collections::BTreeMap;

use bytes::Bytes;
use redstart_engine::{Outcome, Protocol, Reply};

use crate::{Pair, Server, compare, split};

fn pairs(reply: Reply) -> BTreeMap<String, String> {
    let text = |reply: &Reply| match reply {
        Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("{other:?}"),
    };
    match reply {
        Reply::Map(pairs) => pairs.iter().map(|(k, v)| (text(k), text(v))).collect(),
        Reply::Array(flat) => flat
            .chunks_exact(2)
            .map(|pair| (text(&pair[0]), text(&pair[1])))
            .collect(),
        other => panic!("{other:?}"),
    }
}

/// What says where the server runs, and what differs on purpose: nothing is saved by itself, and
/// the listener's address is chosen where the engine is made.
const OF_THE_PLACE: [&str; 8] = [
    "enable-debug-command",
    "bind",
    "dir",
    "pidfile",
    "port",
    "tls-port",
    "unixsocket",
    "save",
];

#[test]
fn every_setting_has_the_servers_names_and_defaults() {
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    let all = split("CONFIG GET *");
    let mut theirs = pairs(pair.wires[0].call(&all));
    let mut ours = pairs(pair.sessions[0].execute(&all).into_reply().unwrap());
    for name in OF_THE_PLACE {
        assert!(ours.contains_key(name), "{name}");
        theirs.remove(name);
        ours.remove(name);
    }
    assert_eq!(ours, theirs);
    assert!(ours.len() > 180);
}

#[test]
fn every_setting_accepts_and_refuses_what_the_server_does() {
    let values = [
        "@bogus@",
        "-5",
        "0",
        "-1",
        "1",
        "7",
        "101",
        "1001",
        "70000",
        "3000000000",
        "1000000000000000000000",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
        "YES",
        "no",
        "",
        "1kb",
        "3MB",
        "-1kb",
        "50%",
        "150%",
        "1 2 3",
        "a b",
        "3.5",
        "a.b-c",
        "local",
    ];
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    let mut names: Vec<String> = pairs(pair.wires[0].call(&split("CONFIG GET *")))
        .into_keys()
        .collect();
    // These have tests of their own: the log would lie in the current folder, a server can be
    // moved to another address, and the largest number of clients is the machine's.
    names.retain(|name| !OF_THE_PLACE[..7].contains(&name.as_str()));
    // TLS with replicas and a cluster needs certificates there.
    let own = ["appendonly", "maxclients", "tls-cluster", "tls-replication"];
    names.retain(|name| !own.contains(&name.as_str()));
    let mut tried = 0;
    for name in &names {
        for value in values {
            let word = |text: &str| Bytes::copy_from_slice(text.as_bytes());
            let args = [word("CONFIG"), word("SET"), word(name), word(value)];
            let theirs = pair.wires[0].call(&args);
            let ours = pair.sessions[0].execute(&args).into_reply().unwrap();
            assert_eq!(ours, theirs, "CONFIG SET {name} {value:?}");
            let get = split(&format!("CONFIG GET {name}"));
            let theirs = pair.wires[0].call(&get);
            let ours = pair.sessions[0].execute(&get).into_reply().unwrap();
            assert_eq!(ours, theirs, "{name} after {value:?}");
            tried += 1;
        }
    }
    assert!(tried > 4500, "{tried}");
}

#[test]
fn settings_of_several_words_are_checked_alike() {
    compare(
        r#"
        CONFIG GET MaxMemory
        ~CONFIG GET maxmemory "maxmemory-s*" maxmemory
        ~CONFIG GET hash-max-* HASH-MAX-ZIPLIST-VALUE
        CONFIG GET nosuch
        CONFIG GET
        CONFIG SET list-max-ziplist-size 4 list-max-listpack-size 5
        CONFIG GET list-max-ziplist-size
        CONFIG SET list-max-ziplist-size 4
        CONFIG GET list-max-listpack-size
        CONFIG SET maxmemory 1gb nosuch 2
        CONFIG SET nosuch 2 databases x
        CONFIG SET databases 2 nosuch x
        CONFIG SET maxmemory 1gb maxclients x
        CONFIG GET maxmemory
        CONFIG SET MAXMEMORY x
        CONFIG SET NoSuch x
        CONFIG SET maxmemory 1 maxmemory 2
        CONFIG SET maxmemory
        CONFIG SET maxmemory 1 x
        CONFIG SET maxclients 0
        CONFIG SET maxclients 4294967296
        CONFIG SET maxclients 50
        CONFIG GET maxclients
        CONFIG SET hz 0
        CONFIG GET hz
        CONFIG SET hz 1000
        CONFIG GET hz
        CONFIG SET save "900 1"
        CONFIG GET save
        CONFIG SET save "900 1 300 10"
        CONFIG GET save
        CONFIG SET save "900 1 300"
        CONFIG SET save " 900 1"
        CONFIG SET save "900 0"
        CONFIG SET save "0 1"
        CONFIG SET save "900 -1"
        CONFIG SET save "900 x"
        CONFIG GET save
        CONFIG SET save ""
        CONFIG GET save
        CONFIG SET client-output-buffer-limit "pubsub 1 2 3"
        CONFIG GET client-output-buffer-limit
        CONFIG SET client-output-buffer-limit "PUBSUB 32mb 8mb 60 replica 1 2 3"
        CONFIG GET client-output-buffer-limit
        CONFIG SET client-output-buffer-limit "foo 1 2 3"
        CONFIG SET client-output-buffer-limit "normal x 1 1"
        CONFIG SET client-output-buffer-limit "normal 1 1 -1"
        CONFIG SET client-output-buffer-limit "normal 1 2"
        CONFIG SET client-output-buffer-limit "slave 256mb 64mb 60 normal 0 0 0"
        CONFIG GET client-output-buffer-limit
        CONFIG SET oom-score-adj-values "1 2 -3"
        CONFIG SET oom-score-adj-values "3000 1 1"
        CONFIG SET oom-score-adj-values "1 2"
        CONFIG GET oom-score-adj-values
        CONFIG SET oom-score-adj-values "0 200 800"
        CONFIG SET latency-tracking-info-percentiles "1e1 0.0 100.00 33.33333333333"
        CONFIG GET latency-tracking-info-percentiles
        CONFIG SET latency-tracking-info-percentiles "100.1"
        CONFIG SET latency-tracking-info-percentiles "50 x"
        CONFIG SET latency-tracking-info-percentiles nan
        CONFIG SET latency-tracking-info-percentiles "50 99 99.9"
        CONFIG SET proc-title-template "{title} x"
        CONFIG SET proc-title-template "{foo}"
        CONFIG SET proc-title-template "{"
        CONFIG SET proc-title-template "{{title}"
        CONFIG SET proc-title-template "{title} {listen-addr} {server-mode}"
        CONFIG SET shutdown-on-sigterm "save now"
        CONFIG GET shutdown-on-sigterm
        CONFIG SET shutdown-on-sigterm "save nosave"
        CONFIG SET shutdown-on-sigterm "default now"
        CONFIG GET shutdown-on-sigterm
        CONFIG SET shutdown-on-sigterm default
        CONFIG SET appendfsync ALWAYS
        CONFIG GET appendfsync
        CONFIG SET appendfsync everysec
        CONFIG SET maxmemory 99999999999gb
        CONFIG GET maxmemory
        CONFIG SET maxmemory 1.5gb
        CONFIG SET maxmemory " 1"
        CONFIG SET maxmemory 0
        CONFIG SET notify-keyspace-events KEA
        CONFIG GET notify-keyspace-events
        CONFIG SET notify-keyspace-events Exm
        CONFIG GET notify-keyspace-events
        CONFIG SET notify-keyspace-events ""
        CONFIG SET dir /tmp
        CONFIG SET dbfilename x
        CONFIG RESETSTAT x
        CONFIG RESETSTAT
        CONFIG REWRITE
        CONFIG REWRITE x
        "#,
    );
}

#[test]
fn several_settings_change_together_or_not_at_all() {
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    pair.line("CONFIG SET timeout 7 hash-max-listpack-entries 2 loglevel nosuch");
    pair.line("CONFIG GET timeout");
    pair.line("HSET h a 1 b 2 c 3");
    pair.line("OBJECT ENCODING h");
    pair.line("CONFIG SET timeout 7 hash-max-ziplist-entries 2 loglevel debug");
    pair.line("CONFIG GET timeout");
    pair.line("HSET i a 1 b 2 c 3");
    pair.line("OBJECT ENCODING i");
}

/// A file that CONFIG REWRITE wrote is read by redis-server, and means the same there.
#[test]
fn a_rewritten_file_means_the_same_to_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.conf");
    std::fs::write(
        &path,
        "# mine\nmaxmemory 100mb\nsave 60 1\nsave 30 2\nhash-max-ziplist-entries 7\n\
         client-output-buffer-limit pubsub 1mb 2mb 3\nmasterauth \"a \\\"b\\\" \\x01\"\n",
    )
    .unwrap();
    let settings = redstart_engine::Settings::read(&path).unwrap();
    let engine = redstart_engine::Engine::builder()
        .settings(settings)
        .build()
        .unwrap();
    let mut session = engine.session();
    let mut ask = |line: &str| match session.execute(&split(line)) {
        Outcome::Reply(reply) => reply,
        other => panic!("{other:?}"),
    };
    for line in [
        "CONFIG SET timeout 9 appendfsync no latency-tracking-info-percentiles \"1 2.5\"",
        "CONFIG SET notify-keyspace-events Kx maxmemory-clients 5% save \"60 1 5 6\"",
        "CONFIG SET proto-max-bulk-len 3mb oom-score-adj-values \"1 2 3\" syslog-ident x",
    ] {
        let reply = ask(line);
        // The last one is immutable, and none of them is changed.
        assert_eq!(reply.is_error(), line.contains("syslog"), "{reply:?}");
    }
    assert_eq!(ask("CONFIG REWRITE"), Reply::OK);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("# mine\nmaxmemory 100mb\n"), "{text}");
    let mut ours = pairs(ask("CONFIG GET *"));
    let server = Server::start_file(&path);
    let mut theirs = pairs(server.connect().call(&split("CONFIG GET *")));
    for name in &OF_THE_PLACE[..7] {
        ours.remove(*name);
        theirs.remove(*name);
    }
    assert_eq!(ours, theirs);
    // And back.
    let again = redstart_engine::Settings::read(&path).unwrap();
    for (name, value) in &ours {
        assert_eq!(again.get(name).as_ref(), Some(value), "{name}");
    }
}
