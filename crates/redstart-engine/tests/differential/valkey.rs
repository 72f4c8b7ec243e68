//! What came after Redis 7.0, compared with Valkey.

use std::time::Duration;

use redstart_engine::{Compat, Engine, Reply, server::ServerConfig};
use redstart_testkit::Kind;

use crate::{Server, Wire, compare_with, listener::Running, sorted, split};

/// Clients of the engine and of the server, with the same names.
struct Clients {
    wires: Vec<(String, [Wire; 2], [i64; 2])>,
    // Ended after the connections.
    socket: std::path::PathBuf,
    server: Server,
    _running: Running,
    _dir: tempfile::TempDir,
}

impl Clients {
    fn new() -> Clients {
        let server = Server::start_kind(Kind::Valkey);
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("engine.sock");
        let engine = Engine::builder().compat(Compat::Valkey9).build().unwrap();
        let running = Running::start(engine, ServerConfig::new().unix(&socket));
        Clients {
            wires: Vec::new(),
            socket,
            server,
            _running: running,
            _dir: dir,
        }
    }

    fn add(&mut self, name: &str) {
        let ours = std::os::unix::net::UnixStream::connect(&self.socket).unwrap();
        let mut wires = [Wire::new(ours), self.server.connect()];
        let ids = wires
            .each_mut()
            .map(|wire| match wire.call(&split("CLIENT ID")) {
                Reply::Int(id) => id,
                other => panic!("{other:?}"),
            });
        self.wires.push((name.to_owned(), wires, ids));
    }

    /// The same command by a client of both; `{name}` is the id of another one.
    fn call(&mut self, name: &str, line: &str) -> [Reply; 2] {
        let ids: Vec<(String, [i64; 2])> = self
            .wires
            .iter()
            .map(|(name, _, ids)| (format!("{{{name}}}"), *ids))
            .collect();
        let (_, wires, _) = self.wires.iter_mut().find(|one| one.0 == name).unwrap();
        [0, 1].map(|side| {
            let line = ids.iter().fold(line.to_owned(), |line, (name, ids)| {
                line.replace(name, &ids[side].to_string())
            });
            wires[side].call(&split(&line))
        })
    }

    fn same(&mut self, name: &str, line: &str) {
        let [ours, theirs] = self.call(name, line);
        assert_eq!(ours, theirs, "{line}");
    }

    /// As [`Clients::same`]; of a list, the names count.
    fn same_clients(&mut self, name: &str, line: &str) {
        let [ours, theirs] = self.named(name, line);
        assert_eq!(ours, theirs, "{line}");
    }

    /// Waits until the lists of all clients have the same names: a connection ends a moment after its client was killed.
    fn become_same(&mut self, name: &str) {
        let mut told = Vec::new();
        let same = || {
            told = self.named(name, "CLIENT LIST").into();
            (told[0] == told[1]).then_some(())
        };
        let became = redstart_testkit::block_until("the same", Duration::from_secs(60), same);
        assert!(became.is_ok(), "{told:?}");
    }

    /// The replies of both, lists by the names of their clients.
    fn named(&mut self, name: &str, line: &str) -> [Reply; 2] {
        let ids: Vec<(String, [i64; 2])> = self
            .wires
            .iter()
            .map(|one| (one.0.clone(), one.2))
            .collect();
        let replies = self.call(name, line);
        [0, 1].map(|side| match &replies[side] {
            Reply::Bulk(text) => {
                let text = String::from_utf8_lossy(text);
                let id = |line: &str| field(line, "id").parse::<i64>().unwrap();
                let name = |id| {
                    let one = ids.iter().find(|(_, ids)| ids[side] == id);
                    Reply::bulk(one.map_or("another", |(name, _)| name.as_str()))
                };
                // The server turns its list round now and then.
                sorted(Reply::Array(
                    text.lines().map(|line| name(id(line))).collect(),
                ))
            }
            other => other.clone(),
        })
    }
}

/// The value of a field of CLIENT LIST.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let mut fields = line
        .split_whitespace()
        .filter_map(|field| field.split_once('='));
    fields.find(|field| field.0 == name).unwrap().1
}

/// A client of each kind that the filters tell apart.
fn clients() -> Clients {
    let mut all = Clients::new();
    for name in ["boss", "a", "b", "c", "d", "e", "f"] {
        all.add(name);
    }
    for (name, line) in [
        ("boss", "CLIENT SETNAME boss"),
        ("a", "CLIENT SETNAME a"),
        ("a", "CLIENT SETINFO LIB-NAME one"),
        ("a", "CLIENT SETINFO LIB-VER 1.0"),
        ("b", "CLIENT SETNAME a"),
        ("b", "CLIENT SETINFO lib-name one"),
        ("b", "CLIENT SETINFO LIB-VER 2.0"),
        ("b", "SELECT 1"),
        ("c", "CLIENT CAPA foo redirect"),
        ("c", "SUBSCRIBE news"),
        ("d", "CLIENT SETINFO lib-name two"),
        ("d", "MULTI"),
        ("e", "CLIENT NO-EVICT on"),
        ("e", "CLIENT TRACKING on"),
        ("e", "WATCH k k2"),
    ] {
        all.same(name, line);
    }
    all
}

#[test]
fn filters_of_clients_mean_the_same_clients() {
    let mut all = clients();
    for line in include_str!("valkey/filters.txt").lines() {
        all.same_clients("boss", line);
    }
    for line in [
        "CLIENT KILL ID {a} NOT-ID {a}",
        "CLIENT KILL ID {a} NAME nosuch",
        "CLIENT KILL ID {f} {boss} 12345",
        "CLIENT KILL LIB-NAME one NOT-DB 0",
        "CLIENT KILL FLAGS x",
        "CLIENT KILL NOT-NAME a",
        "CLIENT KILL NOT-NAME boss",
        "CLIENT KILL SKIPME no NAME boss",
    ] {
        all.same_clients("boss", line);
        if line != "CLIENT KILL SKIPME no NAME boss" {
            all.become_same("boss");
        }
    }
}

#[test]
fn clients_are_described_alike() {
    let mut all = clients();
    let names = |line: &str| -> Vec<String> {
        let fields = line.split_whitespace();
        fields
            .map(|field| field.split('=').next().unwrap().to_owned())
            .collect()
    };
    for name in ["a", "b", "c", "d", "e", "f"] {
        let lines =
            all.call("boss", &format!("CLIENT LIST ID {{{name}}}"))
                .map(|reply| match reply {
                    Reply::Bulk(text) => String::from_utf8_lossy(&text).into_owned(),
                    other => panic!("{other:?}"),
                });
        let [ours, theirs] = &lines;
        assert_eq!(names(ours), names(theirs));
        for told in [
            "name",
            "flags",
            "capa",
            "db",
            "sub",
            "watch",
            "cmd",
            "user",
            "resp",
            "lib-name",
            "lib-ver",
            "tot-net-in",
            "tot-cmds",
        ] {
            assert_eq!(
                field(ours, told),
                field(theirs, told),
                "{told} of {lines:?}"
            );
        }
        // The number of an id may have another length.
        if name != "f" {
            let sent = lines
                .each_ref()
                .map(|line| field(line, "tot-net-out").parse::<i64>().unwrap());
            assert!((sent[0] - sent[1]).abs() <= 2, "{lines:?}");
        }
    }
}

#[test]
fn commandlog_answers_alike() {
    compare_with(
        Kind::Valkey,
        r##"
        CONFIG SET commandlog-execution-slower-than 10000 commandlog-request-larger-than 1048576
        ~CONFIG GET commandlog*
        CONFIG SET commandlog-execution-slower-than -1
        CONFIG GET slowlog-log-slower-than
        CONFIG SET commandlog-request-larger-than -2
        COMMANDLOG
        COMMANDLOG GET
        COMMANDLOG GET 1
        COMMANDLOG GET 1 large-request
        COMMANDLOG GET -1 LARGE-REPLY
        COMMANDLOG GET -2 slow
        COMMANDLOG GET x slow
        COMMANDLOG GET 1 nosuch
        COMMANDLOG RESET slow
        COMMANDLOG RESET
        COMMANDLOG RESET nosuch
        COMMANDLOG LEN
        COMMANDLOG LEN slow
        COMMANDLOG LEN nosuch
        COMMANDLOG NOSUCH
        "##,
    );
}

#[test]
fn large_requests_and_replies_are_kept_with_the_sizes_that_valkey_tells() {
    let server = Server::start_kind(Kind::Valkey);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("engine.sock");
    let engine = Engine::builder().compat(Compat::Valkey9).build().unwrap();
    let _running = Running::start(engine, ServerConfig::new().unix(&socket));
    let ours = Wire::new(std::os::unix::net::UnixStream::connect(&socket).unwrap());
    // The time and the address are not the same.
    let entries = |wire: &mut Wire, kind: &str| match wire
        .call(&split(&format!("COMMANDLOG GET -1 {kind}")))
    {
        Reply::Array(entries) => entries
            .into_iter()
            .map(|entry| match entry {
                Reply::Array(mut parts) => {
                    parts.truncate(4);
                    parts.remove(1);
                    parts
                }
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let kept = [ours, server.connect()].map(|mut wire| {
        let lines = r#"
            CONFIG SET commandlog-request-larger-than 60 commandlog-reply-larger-than 40
            SET big {x*100}
            SET small 1
            GET big
            GET small
            MGET big big small
            LPUSH {l*9} {x*9} {x*10} {x*99} {x*100}
            LRANGE {l*9} 0 -1
            LRANGE {l*9} 0 0
            AUTH user {x*100}
            NOSUCH {x*100}
            ECHO {x*1000}
            CONFIG SET commandlog-request-larger-than -1 commandlog-reply-larger-than -1
            "#;
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            wire.call(&split(line));
        }
        let kept = ["large-request", "large-reply"].map(|kind| entries(&mut wire, kind));
        wire.call(&split("CONFIG SET commandlog-large-reply-max-len 1"));
        let length = wire.call(&split("COMMANDLOG LEN large-reply"));
        (kept, length)
    });
    assert!(
        kept[0].0.iter().all(|entries| entries.len() > 3),
        "{kept:?}"
    );
    assert_eq!(kept[0], kept[1]);
}

#[test]
fn fields_of_hashes_expire_alike() {
    compare_with(
        Kind::Valkey,
        r##"
        FLUSHALL
        HSET h a 1 b 2 c 3
        SET s x
        HEXPIRE h 100 FIELDS 1 a
        HEXPIRE h 100 FIELDS 2 a nosuch
        HEXPIRE nokey 100 FIELDS 2 a b
        HEXPIRE s 100 FIELDS 1 a
        HEXPIRE h x FIELDS 1 a
        HEXPIRE h 100 FIELDS x a
        HEXPIRE h 100 FIELDS 0 a
        HEXPIRE h 100 FIELDS 2 a
        HEXPIRE h 100 FIELDS 1 a b
        HEXPIRE h 100 FIELD 1 a
        HEXPIRE h 100 NX FIELDS 1 a
        HEXPIRE h 100 NX FIELDS 1 b
        HEXPIRE h 100 XX FIELDS 1 c
        HEXPIRE h 200 GT FIELDS 2 a c
        HEXPIRE h 50 GT FIELDS 1 a
        HEXPIRE h 50 LT FIELDS 2 a c
        HEXPIRE h 50 NX XX FIELDS 1 a
        HEXPIRE h 50 FOO FIELDS 1 a
        HEXPIRE h 50 NX FIELDS 1 a XX
        HEXPIRE h -1 FIELDS 1 a
        HEXPIRE h 0 FIELDS 1 a
        ~HGETALL h
        HSET h a 1
        HEXPIRE h 9223372036854775807 FIELDS 1 a
        HPEXPIRE h 9223372036854775807 FIELDS 1 a
        HEXPIREAT h 9223372036854775807 FIELDS 1 a
        HPEXPIREAT h 9223372036854775807 FIELDS 1 a
        HPEXPIREAT h -9223372036854775808 FIELDS 1 a
        HPEXPIREAT h 33177117420000 FIELDS 2 a b
        HPEXPIREAT h 1 FIELDS 1 a
        HPEXPIREAT h 1 FIELDS 2 a a
        HEXPIREAT h 33177117420 FIELDS 2 b b
        HTTL h FIELDS 1 nosuch
        HTTL nokey FIELDS 2 a b
        HTTL s FIELDS 1 a
        HTTL h FIELDS 0
        HTTL h FIELDS 1 a b
        HTTL h FIELDS x a
        HTTL h FOO 1 a
        HPERSIST h FIELDS 4 a b c nosuch
        HPERSIST nokey FIELDS 2 a b
        HPERSIST s FIELDS 1 a
        HPERSIST h FIELDS 2 a
        HPERSIST h FOO 1 a
        HPEXPIREAT h 33177117420000 FIELDS 1 b
        HSET h b 5
        HPEXPIRETIME h FIELDS 1 b
        HPEXPIREAT h 33177117420000 FIELDS 1 b
        HINCRBY h b 1
        HPEXPIRETIME h FIELDS 1 b
        HINCRBYFLOAT h b 1.5
        HPEXPIRETIME h FIELDS 1 b
        HSETNX h b 9
        HPEXPIRETIME h FIELDS 1 b
        HMSET h b 9
        HPEXPIRETIME h FIELDS 1 b
        HPEXPIREAT h 33177117420000 FIELDS 1 b
        HDEL h b
        HSET h b 1
        HPEXPIRETIME h FIELDS 1 b
        HGETEX h FIELDS 1 b
        HGETEX h FIELDS 2 b nosuch
        HGETEX h PXAT 33177117420000 FIELDS 2 b nosuch
        HPEXPIRETIME h FIELDS 1 b
        HGETEX h PERSIST FIELDS 2 b nosuch
        HGETEX h PERSIST FIELDS 1 b
        HPEXPIRETIME h FIELDS 1 b
        HGETEX nokey FIELDS 2 a b
        HGETEX nokey EX 10 FIELDS 2 a b
        HGETEX s FIELDS 1 a
        HGETEX h EX 0 FIELDS 1 b
        HGETEX h EX -1 FIELDS 1 b
        HGETEX h EX x FIELDS 1 b
        HGETEX h EX 9223372036854775807 FIELDS 1 b
        HGETEX h PXAT 1 FIELDS 1 b
        HGETEX h FIELDS 1 b
        HSET h b 1
        HGETEX h EX 10 PX 10 FIELDS 1 b
        HGETEX h EX 10 PERSIST FIELDS 1 b
        HGETEX h KEEPTTL FIELDS 1 b
        HGETEX h FIELDS 2 b
        HGETEX h FIELDS 0 b
        HGETEX h FIELDS 1 b EX 10
        HGETEX h EX FIELDS 1 b
        HGETEX h EX 10 FIELDS
        HSETEX h FIELDS 1 b 7
        HSETEX h PXAT 33177117420000 FIELDS 2 b 7 z 8
        HPEXPIRETIME h FIELDS 2 b z
        HSETEX h KEEPTTL FIELDS 2 b 7 y 8
        HPEXPIRETIME h FIELDS 2 b y
        HSETEX h FIELDS 1 b 7
        HPEXPIRETIME h FIELDS 1 b
        HSETEX h FNX FIELDS 2 b 8 q 9
        HSETEX h FXX FIELDS 2 b 8 q 9
        HSETEX h FXX FIELDS 1 b 8
        HSETEX h FNX FIELDS 1 q 8
        HSETEX h FNX FIELDS 2 qq 8 qq 9
        HSETEX h NX FIELDS 1 b 8
        HSETEX h XX FIELDS 1 b 8
        HSETEX nokey XX FIELDS 1 b 8
        HSETEX nokey FXX FIELDS 1 b 8
        EXISTS nokey
        HSETEX nk NX EX 100 FIELDS 1 b 8
        ~HTTL nk FIELDS 1 b
        HSETEX h NX XX FIELDS 1 b 8
        HSETEX h FNX FXX FIELDS 1 b 8
        HSETEX h NX FNX FIELDS 1 b 8
        HSETEX h EX 10 KEEPTTL FIELDS 1 b 8
        HSETEX h EX 0 FIELDS 1 b 8
        HSETEX h PXAT 1 FIELDS 1 b 8
        ~HGETALL h
        HSETEX nokey PXAT 1 FIELDS 1 b 8
        EXISTS nokey
        HSETEX s FIELDS 1 a b
        HSETEX h FIELDS 2 a b
        HSETEX h FIELDS 1 a
        HSETEX h FIELDS 1 a b c
        HSETEX h FIELDS 0 a b
        HSETEX h EX 10 FIELDS 1 a b EX 20
        HSETEX h FOO FIELDS 1 a b
        HSETEX h EX x FIELDS 1 a b
        HSETEX h PERSIST FIELDS 1 a b
        HGETDEL h FIELDS 2 a nosuch
        HGETDEL h FIELDS 2 q q
        HGETDEL nokey FIELDS 2 q q
        HGETDEL s FIELDS 1 q
        HGETDEL h FIELDS 0 q
        HGETDEL h FIELDS 2 q
        HGETDEL h FOO 2 q q
        DEL h
        HSET h a 1
        HGETDEL h FIELDS 1 a
        EXISTS h
        HSET h a 1 b 2
        HPEXPIREAT h 33177117420000 FIELDS 1 a
        COPY h h2
        HPEXPIRETIME h2 FIELDS 2 a b
        RENAME h2 h3
        HPEXPIRETIME h3 FIELDS 2 a b
        OBJECT ENCODING h3
        HSETEX small FIELDS 1 a 1
        OBJECT ENCODING small
        HPERSIST h3 FIELDS 1 a
        OBJECT ENCODING h3
        ~HGETALL h3
        ~HSCAN h3 0
        HSTRLEN h3 a
        HEXPIRE h 10 FIELDS 1 a FIELDS 1 b
        HEXPIRE h 10 FIELDS 01 a
        HEXPIRE h 10 FIELDS -1 a
        HEXPIRE h 10 FIELDS 99999999999999999999 a
        HEXPIRE h
        HTTL h
        HTTL h FIELDS 1
        FLUSHALL
        HSET h a 1 b 2 c 3
        SET s x
        HTTL s FOO 1 a
        HTTL h FIELDS 0 a
        HEXPIRE s x FIELDS 1 a
        HEXPIRE s -1 FIELDS 1 a
        HEXPIRE nokey -1 FIELDS 1 a
        HEXPIRE nokey x FIELDS 1 a
        HEXPIRE s 10 FOO FIELDS 1 a
        HEXPIRE s 10 FIELDS 2 a
        HGETEX s EX x FIELDS 1 a
        HGETEX nokey EX x FIELDS 1 a
        HSETEX s FOO FIELDS 1 a b
        HGETDEL s FOO 1 a
        HGETDEL s FIELDS 2 a
        HPERSIST s FOO 1 a
        HPERSIST s FIELDS 2 a
        HPEXPIREAT h 1 FIELDS 2 a a
        HGETEX h PXAT 1 FIELDS 2 b b
        HGETEX h PXAT 1 FIELDS 1 c
        EXISTS h
        HSET h a 1
        HEXPIRE h 0 FIELDS 2 a nosuch
        EXISTS h
        HSET h a 1
        HSETEX h PXAT 1 FIELDS 2 a 1 b 2
        EXISTS h
        HSET h a 1
        HEXPIRE h 0 NX FIELDS 1 a
        HSET h a 1
        HEXPIRE h 0 XX FIELDS 1 a
        HEXPIRE h 10 XX NX FIELDS 1 a
        HEXPIRE h 10 GT LT FIELDS 1 a
        HEXPIRE h 10 XX GT FIELDS 1 a
        HPEXPIREAT h 33177117420000 FIELDS 1 a
        HPEXPIREAT h 33177117420000 GT FIELDS 1 a
        HPEXPIREAT h 33177117420000 LT FIELDS 1 a
        HPEXPIREAT h 33177117420000 XX FIELDS 1 a
        HPEXPIREAT h 33177117420000 XX LT FIELDS 1 a
        "##,
    );
}

#[test]
fn newer_commands_answer_alike() {
    compare_with(
        Kind::Valkey,
        r##"
        HSET h a 1
        DELIFEQ s y
        DELIFEQ s x
        DELIFEQ s x
        DELIFEQ h x
        DELIFEQ s
        SET n 10
        DELIFEQ n 10
        SET s a
        SET s b IFEQ x
        SET s b IFEQ a
        GET s
        SET s c IFEQ b GET
        SET s c IFEQ zz GET
        SET none c IFEQ zz GET
        SET none c IFEQ zz
        SET h c IFEQ zz
        SET h c IFEQ zz GET
        SET s d IFEQ c EX 100
        ~TTL s
        SET s e IFEQ d KEEPTTL
        ~TTL s
        SET s e IFEQ e
        ~TTL s
        SET s e IFEQ e NX
        SET s e NX IFEQ e
        SET s e XX IFEQ e
        SET s e IFEQ
        SET s e IFEQ e IFEQ e
        MSETEX 2 a 1 b 2
        MSETEX 2 a 1 b 2 NX
        MSETEX 2 a 1 b 2 XX
        MSETEX 2 a 1 zz 2 XX
        MSETEX 2 zz 1 zy 2 NX EX 100
        ~TTL zz
        MSETEX 1 zz 1 KEEPTTL
        ~TTL zz
        MSETEX 1 zz 1
        ~TTL zz
        MSETEX 2 a 1 b
        MSETEX 0 a 1
        MSETEX x a 1
        MSETEX -1 a 1
        MSETEX 1 a 1 FOO
        MSETEX 1 a 1 NX XX
        MSETEX 1 a 1 EX 10 PX 10
        MSETEX 1 a 1 EX 0
        MSETEX 1 a 1 EX x
        MSETEX 1 a 1 PXAT 1
        EXISTS a
        MSETEX 1 h 1
        GET h
        MSETEX 2 a 1 a 2
        GET a
        MSETEX 1 a 1 EX 10 NX
        MSETEX 1 a 1 XX EX 10
        MSETEX 1 a 1 PERSIST
        MSETEX 1000000000000 a 1
        MSETEX 2 a 1
        COMMAND GETKEYS MSETEX 2 a 1 b 2
        ZADD z 1 a 2.5 b
        ZRANK z b
        ZRANK z b WITHSCORE
        ZREVRANK z b WITHSCORE
        ZRANK z q WITHSCORE
        ZRANK none q WITHSCORE
        ZRANK z b FOO
        ZRANK z b WITHSCORE x
        ZRANK s b WITHSCORE
        ZRANK s b FOO
        CLIENT CAPA redirect
        CLIENT CAPA foo bar
        CLIENT CAPA
        SCRIPT LOAD "return"
        HSET h2 a 1 b 2
        ~HSCAN h2 0 NOVALUES
        ~HSCAN h2 0 NOVALUES COUNT 10
        ~HSCAN h2 0 MATCH a NOVALUES
        SSCAN s 0 NOVALUES
        SCAN 0 NOVALUES
        ZSCAN z 0 NOVALUES
        XADD x 1-1 a 1
        XADD x 2-1 a 2
        XREAD STREAMS x +
        XREAD STREAMS x none + +
        XREAD STREAMS none +
        XREAD COUNT 5 STREAMS x +
        XDEL x 2-1
        XREAD STREAMS x +
        XDEL x 1-1
        XREAD STREAMS x +
        XGROUP CREATE x g 0
        XREADGROUP GROUP g c STREAMS x +
        XREADGROUP GROUP g c STREAMS x $
        SPOP none 1
        SCRIPT LOAD "return 7"
        SCRIPT SHOW 59b6ab2fbe0ee4b25733de0f62e6cda4899ef8e9
        SCRIPT SHOW x
        SCRIPT SHOW 0000000000000000000000000000000000000000
        SCRIPT SHOW
        CLIENT SETINFO LIB-NAME x
        CLIENT NO-TOUCH on
        EVAL "return redis.call('blpop', 'none', 0)" 0
        EVAL "return server.call('ping')" 0
        EVAL "return {redis.REDIS_VERSION, redis.REDIS_VERSION_NUM, redis.SERVER_NAME, server.VALKEY_VERSION, server.VALKEY_VERSION_NUM}" 0
        XACKDEL x g IDS 1 1-1
        XDELEX x IDS 1 1-1
        DELEX s
        COMMAND INFO nosuch xackdel
        COMMAND GETKEYS HEXPIRE h 10 FIELDS 1 a
        "##,
    );
}

#[test]
fn functions_answer_alike() {
    compare_with(
        Kind::Valkey,
        r##"
        FUNCTION FLUSH
        FUNCTION LOAD "#!lua name=l\nreturn 1"
        FUNCTION LOAD "#!lua name=l\nredis.register_function('f-x', function() end)"
        FUNCTION LOAD "#!lua name=l\nserver.register_function('f', function(k, a) return {k, a} end) redis.register_function{function_name='w', callback=function(k) return server.call('set', k[1], 1) end}"
        FCALL f 1 k a
        FCALL_RO f 1 k a
        FCALL w 1 k
        FCALL nosuch 0
        ~FUNCTION LIST WITHCODE
        FUNCTION STATS
        FUNCTION DELETE l
        FUNCTION FLUSH
        "##,
    );
}

#[test]
fn searches_in_a_polygon_answer_alike() {
    compare_with(
        Kind::Valkey,
        r##"
        GEOADD Sicily 13.361389 38.115556 Palermo 15.087269 37.502669 Catania 13.583333 37.316667 Agrigento
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16 37 14 39 WITHDIST WITHCOORD WITHHASH ASC
        GEOSEARCH Sicily FROMMEMBER Palermo BYPOLYGON 3 12 37 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16 37 14 39 FROMMEMBER Palermo
        GEOSEARCH Sicily FROMLONLAT 15 37 BYPOLYGON 3 12 37 16 37 14 39 WITHDIST
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16 37 14 39 FROMLONLAT 15 37
        GEOSEARCH Sicily BYRADIUS 10 km BYPOLYGON 3 12 37 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16 37 14 39 BYRADIUS 10 km
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16 37 14 39 BYBOX 10 10 km
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16 37 14 39 BYPOLYGON 3 12 37 16 37 14 38
        GEOSEARCH Sicily BYPOLYGON 2 12 37 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON 2 12 37 16 37
        GEOSEARCH Sicily BYPOLYGON 4 12 37 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON 4 12 37 16 37 14 39 ASC ASC
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16 37 14
        GEOSEARCH Sicily BYPOLYGON x 12 37 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON 99999999999 12 37 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON -3 12 37 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON 3 x 37 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON 3 12 99 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON 3
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16
        GEOSEARCH Sicily BYPOLYGON
        GEOSEARCH Sicily BYPOLYGON 3 1 1 2 2 3 3
        GEOSEARCH Sicily BYPOLYGON 3 1 1 1 1 1 1
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16 37 14 39 COUNT 1
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16 37 14 39 COUNT 1 ANY
        GEOSEARCH Sicily BYPOLYGON 3 12 37 16 37 14 39 ANY
        GEOSEARCH none BYPOLYGON 3 12 37 16 37 14 39
        GEOSEARCH Sicily FROMLONLAT 15 37 ASC ASC ASC
        GEOSEARCH Sicily ASC ASC ASC ASC ASC
        GEOSEARCHSTORE d Sicily BYPOLYGON 3 12 37 16 37 14 39
        ZRANGE d 0 -1 WITHSCORES
        GEOSEARCHSTORE d Sicily BYPOLYGON 3 12 37 16 37 14 39 STOREDIST
        ZRANGE d 0 -1 WITHSCORES
        GEOSEARCHSTORE d Sicily BYPOLYGON 3 12 37 16 37 14 39 WITHDIST
        GEOSEARCHSTORE d Sicily BYPOLYGON 3 -12 -37 -16 -37 -14 -39
        EXISTS d
        GEORADIUS Sicily 15 37 200 km BYPOLYGON 3 12 37 16 37 14 39
        geosearch Sicily bypolygon 4 -180 -85 180 -85 180 85 -180 85
        GEOSEARCH Sicily BYPOLYGON 1073741827 12 37 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON 2147483647 12 37 16 37 14 39
        GEOSEARCHSTORE d none BYPOLYGON 2 12 37 16 37 14 39
        GEOSEARCH Sicily BYPOLYGON 03 12 37 16 37 14 39
        GEOSEARCHSTORE d Sicily BYPOLYGON 2 12 37 16 37 14 39
        GEOSEARCHSTORE d Sicily FROMLONLAT 1 1 ASC ASC ASC
        SET str x
        GEOSEARCH str BYPOLYGON 2 12 37 16 37 14 39
        "##,
    );
}

#[test]
fn words_of_bgsave_and_shutdown_are_read_alike() {
    compare_with(
        Kind::Valkey,
        r##"
        BGSAVE CANCEL
        BGSAVE cancel
        BGSAVE CANCEL x
        BGSAVE SCHEDULE CANCEL
        BGSAVE FOO
        SHUTDOWN SAFE FOO
        SHUTDOWN SAFE ABORT
        SHUTDOWN ABORT SAFE
        SHUTDOWN FAILOVER ABORT
        SHUTDOWN ABORT
        SHUTDOWN NOSAVE SAVE SAFE
        SHUTDOWN FAILOVER NOSAVE
        SHUTDOWN NOSAVE FAILOVER FAILOVER
        SHUTDOWN SAFE FAILOVER NOW FORCE NOSAVE
        "##,
    );
}

#[test]
fn the_only_node_of_a_cluster_is_not_shut_down_safely() {
    let builder = Engine::builder().compat(Compat::Valkey9).cluster(true);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("engine.sock");
    let _running = Running::start(builder.build().unwrap(), ServerConfig::new().unix(&socket));
    let mut wire = Wire::new(std::os::unix::net::UnixStream::connect(&socket).unwrap());
    let refused = wire.call(&split("SHUTDOWN SAFE NOSAVE"));
    let text = "ERR Errors trying to SHUTDOWN. Check logs.";
    assert_eq!(refused, Reply::Error(text.into()));
    assert_eq!(wire.call(&split("PING")), Reply::Status("PONG".into()));
    // Nobody could take over: it ends as without the word.
    wire.send(&split("SHUTDOWN FAILOVER NOSAVE"));
    let ended = || {
        std::os::unix::net::UnixStream::connect(&socket)
            .is_err()
            .then_some(())
    };
    let patience = Duration::from_secs(60);
    redstart_testkit::block_until("the listener to end", patience, ended).unwrap();
}
