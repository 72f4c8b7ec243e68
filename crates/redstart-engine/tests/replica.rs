//! The engine as a replica of Redis and of Valkey: equal to them after cuts and restarts of either side.

#![allow(clippy::unwrap_used)]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use redstart_engine::{Engine, Reply, Session};
use redstart_testkit::{Kind, block_until, scale};

#[path = "replication/change.rs"]
mod change;
#[path = "rdb/contents.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod contents;
// How exactly a value is dumped is for the other tests.
#[allow(dead_code)]
#[path = "rdb/random.rs"]
mod random;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "replication/server.rs"]
mod server;
#[path = "differential/wire.rs"]
mod wire;

use change::{LIBRARY, Shortage, change, count, field, keep_short, pace, seeded, word};
use contents::{Client, assert_same, everything, unseen};
use server::{PATIENCE, RealServer, assert_level, is_level};
use wire::Wire;

/// A server to be followed; `diskless` is its way to send all data.
fn master(kind: Kind, dir: &Path, diskless: &str) -> RealServer {
    let settings = [
        ["--repl-diskless-sync", diskless],
        ["--repl-diskless-sync-delay", "0"],
        ["--enable-debug-command", "yes"],
    ];
    RealServer::with_password(kind, dir, "secret", &settings.concat())
}

fn follow(session: &mut Session, master: &RealServer) {
    assert_eq!(session.line("CONFIG SET masterauth secret"), Reply::OK);
    assert_eq!(
        session.line(&format!("REPLICAOF 127.0.0.1 {}", master.port)),
        Reply::OK
    );
}

fn follows_through_cuts_and_restarts(kind: Kind) {
    let writes = scale(900, "followed writes");
    let pace = pace(writes);
    let dir = tempfile::tempdir().unwrap();
    let mut master = master(kind, dir.path(), "yes");
    let data = tempfile::tempdir().unwrap();
    // The thread that follows may hold the engine for a moment longer.
    let open = || {
        let engine = || {
            let builder = Engine::builder().append_only(data.path(), redstart_engine::Fsync::No);
            builder.build().ok()
        };
        let engine = block_until("the folder to be free", PATIENCE, engine).unwrap();
        keep_short(&engine);
        engine
    };
    let mut engine = open();
    let mut session = engine.session();
    let mut wire = master.connect();
    let mut chance = seeded();
    let load = [word("FUNCTION"), word("LOAD"), word(LIBRARY)];
    wire.ask(&load);
    for _ in 0..100 {
        change(&mut wire, &mut chance);
    }
    follow(&mut session, &master);
    let (mut cuts, mut restarts) = (0, 0);
    let mut shortage = Shortage::new(pace);
    for n in 0..writes {
        if shortage.step(&mut wire, n) {
            // A later copy of everything would hide what was not told.
            assert_level(
                &mut wire,
                &mut session,
                &format!("{kind:?} after evictions"),
            );
        }
        change(&mut wire, &mut chance);
        if n % pace == pace / 2 {
            cuts += 1;
            wire.line("CLIENT KILL TYPE replica");
        }
        if n % (3 * pace) == 4 * pace / 3 {
            restarts += 1;
            drop(wire);
            master.restart("SAVE");
            wire = master.connect();
        }
        if n % (3 * pace) == 8 * pace / 3 {
            drop(session);
            drop(engine);
            engine = open();
            session = engine.session();
            follow(&mut session, &master);
        }
    }
    assert_level(&mut wire, &mut session, &format!("{kind:?}"));
    // Only the server changes its data.
    let refused = Reply::Error("READONLY You can't write against a read only replica.".into());
    assert_eq!(session.line("SET a 1"), refused);
    assert_eq!(
        session.line("ROLE"),
        role(&master, &field(&mut session, "slave_repl_offset").unwrap())
    );
    assert!(session.line("FCALL bump 1 a 1").is_error());
    assert_eq!(session.line("REPLICAOF NO ONE"), Reply::OK);
    assert_eq!(session.line("SET a 1"), Reply::OK);
    assert_eq!(session.line("FCALL bump 1 a 1"), Reply::Int(2));
    // What it has is in its own log; what expires may go meanwhile.
    let lasting = |session: &mut Session| {
        let mut lines = unseen(everything(session));
        lines.retain(|line| line.contains(" Int(-1) "));
        lines
    };
    let expected = lasting(&mut session);
    drop((session, engine));
    assert_same(
        &lasting(&mut open().session()),
        &expected,
        "after a restart",
    );
    redstart_testkit::figure(format!(
        "{kind:?}: {writes} changes, {} keys evicted, {cuts} cuts, {restarts} restarts of the server, then equal",
        shortage.evicted()
    ));
}

fn role(master: &RealServer, offset: &str) -> Reply {
    Reply::Array(vec![
        Reply::bulk("slave"),
        Reply::bulk("127.0.0.1"),
        Reply::Int(master.port.into()),
        Reply::bulk("connected"),
        Reply::Int(offset.parse().unwrap()),
    ])
}

#[test]
fn a_master_counts_the_engine_once_it_has_it_on_its_disk() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let master = master(Kind::Valkey, dir.path(), "yes");
    let builder = Engine::builder().append_only(data.path(), redstart_engine::Fsync::EverySec);
    let engine = builder.build().unwrap();
    follow(&mut engine.session(), &master);
    let mut wire = master.connect();
    for n in 0..3 {
        wire.line(&format!("SET k {n}"));
        match wire.line("WAITAOF 0 1 0") {
            Reply::Array(counts) => assert_eq!(counts[1], Reply::Int(1), "{counts:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn redis_is_followed_through_cuts_and_restarts() {
    follows_through_cuts_and_restarts(Kind::Redis);
}

#[test]
fn valkey_is_followed_through_cuts_and_restarts() {
    follows_through_cuts_and_restarts(Kind::Valkey);
}

#[test]
fn a_short_cut_is_made_up_for_without_a_copy() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let dir = tempfile::tempdir().unwrap();
        let master = master(kind, dir.path(), "no");
        let mut wire = master.connect();
        wire.line("SET before 1");
        wire.line("SELECT 3");
        let engine = Engine::new();
        let mut session = engine.session();
        follow(&mut session, &master);
        assert_level(&mut wire, &mut session, "the copy");
        wire.line("SELECT 3");
        wire.line("SET in-three 1");
        assert_level(&mut wire, &mut session, "before the cut");
        let full = count(&mut wire, "sync_full");
        wire.line("SELECT 3");
        wire.line("CLIENT KILL TYPE replica");
        // The database that was selected before the cut is still the stream's.
        wire.line("SET in-three 2");
        wire.line("RPUSH list a b");
        assert_level(&mut wire, &mut session, "after the cut");
        assert_eq!(count(&mut wire, "sync_full"), full, "{kind:?}");
        assert!(count(&mut wire, "sync_partial_ok") > 0, "{kind:?}");
    }
}

#[test]
fn expired_keys_are_hidden_until_the_server_removes_them() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(Kind::Redis, dir.path(), "yes");
    let mut wire = master.connect();
    let engine = Engine::new();
    let mut session = engine.session();
    follow(&mut session, &master);
    assert_level(&mut wire, &mut session, "the copy");
    wire.line("DEBUG SET-ACTIVE-EXPIRE 0");
    wire.line("SET short 1 PX 300");
    wire.line("SET long 1");
    let gone = || {
        (session.line("GET long") != Reply::Nil && session.line("GET short") == Reply::Nil)
            .then_some(())
    };
    block_until("the key to be hidden", PATIENCE, gone).unwrap();
    assert_eq!(session.line("EXISTS short"), Reply::Int(0));
    // The server still has it, until somebody asks there.
    assert_eq!(wire.line("DBSIZE"), Reply::Int(2));
    assert_eq!(wire.line("GET short"), Reply::Nil);
    let removed = || (session.line("DBSIZE") == Reply::Int(1)).then_some(());
    block_until("the key to be removed", PATIENCE, removed).unwrap();
}

/// An engine that counts as a replica; nothing listens where its server should be.
fn replica_of_nobody() -> Engine {
    let engine = Engine::new();
    let mut session = engine.session();
    for n in 0..200 {
        session.line(&format!("SET k{n} {}", "x".repeat(10_000)));
    }
    engine
        .follow(redstart_engine::Master::new("127.0.0.1", 1))
        .unwrap();
    engine
}

#[test]
fn settings_of_a_replica_evict_nothing() {
    let mut session = replica_of_nobody().session();
    for line in [
        "CONFIG SET maxmemory 1mb maxmemory-policy allkeys-lru",
        "CONFIG SET slowlog-max-len 10",
    ] {
        assert_eq!(session.line(line), Reply::OK);
        assert_eq!(session.line("DBSIZE"), Reply::Int(200), "{line}");
    }
}

#[test]
fn hello_names_a_replica_as_one() {
    let engine = replica_of_nobody();
    let role = |session: &mut Session| {
        let Reply::Array(words) = session.line("HELLO 2") else {
            panic!("no array");
        };
        let at = words.iter().position(|word| *word == Reply::bulk("role"));
        words[at.unwrap() + 1].clone()
    };
    let mut session = engine.session();
    assert_eq!(role(&mut session), Reply::bulk("replica"));
    engine.promote();
    assert_eq!(role(&mut session), Reply::bulk("master"));
}

#[test]
fn fields_live_as_long_as_the_server_says_whatever_the_clock_is_here() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(Kind::Valkey, dir.path(), "yes");
    let mut wire = master.connect();
    wire.line("HSET copied f v g w");
    wire.line("HEXPIRE copied 3600 FIELDS 1 f");
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_micros() as i64;
    // Two hours ahead.
    let clock = redstart_engine::Clock::manual_at(now + 7_200_000_000);
    let engine = Engine::builder().clock(clock).build().unwrap();
    let mut session = engine.session();
    follow(&mut session, &master);
    assert_level_at(&mut session, &mut wire);
    wire.line("HSET streamed f v g w");
    wire.line("HEXPIRE streamed 3600 FIELDS 1 f");
    wire.line("HSET alone f v");
    wire.line("HEXPIRE alone 3600 FIELDS 1 f");
    wire.line("HSETEX set EX 3600 FIELDS 1 f v");
    assert_level_at(&mut session, &mut wire);
    // By the clock here they have expired: clients do not see them.
    for _ in 0..2 {
        for key in ["copied", "streamed", "alone", "set"] {
            let get = format!("HGET {key} f");
            assert_eq!(session.line(&get), Reply::Nil, "{get}");
        }
        assert_eq!(session.line("HLEN streamed"), Reply::Int(1));
        assert_eq!(session.line("EXISTS alone"), Reply::Int(0));
        let script = [
            word("EVAL"),
            word("return redis.call('HGET', 'streamed', 'f')"),
            word("0"),
        ];
        assert_eq!(session.ask(&script), Reply::Nil);
    }
    // The server keeps them.
    for key in ["copied", "streamed", "alone", "set"] {
        let reply = wire.line(&format!("HPERSIST {key} FIELDS 1 f"));
        assert_eq!(reply, Reply::Array(vec![Reply::Int(1)]), "{key}");
    }
    assert_level_at(&mut session, &mut wire);
    for key in ["copied", "streamed", "alone", "set"] {
        let get = format!("HGET {key} f");
        assert_eq!(session.line(&get), Reply::bulk("v"), "{get}");
    }
}

/// Waits until the engine has all that the server sent.
fn assert_level_at(session: &mut Session, wire: &mut Wire) {
    let level = || is_level(wire, session).then_some(());
    let reached = block_until("the same offset", PATIENCE, level);
    assert!(reached.is_ok(), "{:?}", session.line("INFO replication"));
}

#[test]
fn a_replica_of_a_replica_writes_to_the_database_that_the_first_server_selected() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let (dir, between) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = master(kind, dir.path(), "yes");
        let mut wire = first.connect();
        wire.line("SELECT 3");
        let second = master(kind, between.path(), "yes");
        let mut passing = second.connect();
        passing.line("CONFIG SET masterauth secret");
        passing.line(&format!("REPLICAOF 127.0.0.1 {}", first.port));
        let reached = |wire: &mut Wire, passing: &mut Wire| {
            let level = || {
                (field(passing, "master_link_status").as_deref() == Some("up")
                    && field(passing, "slave_repl_offset") == field(wire, "master_repl_offset"))
                .then_some(())
            };
            block_until("the replica between", PATIENCE, level).unwrap();
        };
        reached(&mut wire, &mut passing);
        // From here on the stream has a database selected, and says so no more.
        wire.line("SET before 1");
        reached(&mut wire, &mut passing);
        let engine = Engine::new();
        let mut session = engine.session();
        follow(&mut session, &second);
        assert_level_at(&mut session, &mut passing);
        wire.line("SET after 1");
        reached(&mut wire, &mut passing);
        assert_level_at(&mut session, &mut passing);
        assert_eq!(session.line("DBSIZE"), Reply::Int(0), "{kind:?}");
        session.line("SELECT 3");
        assert_eq!(session.line("GET after"), Reply::bulk("1"), "{kind:?}");
    }
}

#[test]
fn a_changed_password_of_the_server_is_used_for_the_next_connection() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(Kind::Redis, dir.path(), "yes");
    let mut wire = master.connect();
    wire.line("SET before 1");
    let engine = Engine::new();
    let mut session = engine.session();
    follow(&mut session, &master);
    assert_level(&mut wire, &mut session, "the copy");
    let full = |wire: &mut Wire| {
        let Reply::Bulk(info) = wire.line("INFO stats") else {
            panic!("no text")
        };
        let info = String::from_utf8(info.to_vec()).unwrap();
        info.lines()
            .find(|line| line.starts_with("sync_full"))
            .unwrap()
            .to_owned()
    };
    let copies = full(&mut wire);
    assert_eq!(wire.line("CONFIG SET requirepass other"), Reply::OK);
    assert_eq!(session.line("CONFIG SET masterauth other"), Reply::OK);
    wire.line("CLIENT KILL TYPE replica");
    wire.line("SET after 1");
    assert_level(&mut wire, &mut session, "after the cut");
    assert_eq!(full(&mut wire), copies);
}

/// Plays a server that sends a copy and then a command that nobody here knows; tells of each PSYNC.
fn stranger() -> (u16, std::sync::mpsc::Receiver<Instant>) {
    use std::io::{BufRead as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = std::sync::mpsc::channel();
    let mut file = Vec::new();
    Engine::new().save_rdb(&mut file, |_| ()).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut lines = std::io::BufReader::new(stream.unwrap());
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|count| count > 0) {
                let stream = lines.get_mut();
                match line.trim() {
                    "PING" => drop(stream.write_all(b"+PONG\r\n")),
                    "REPLCONF" => drop(stream.write_all(b"+OK\r\n")),
                    "PSYNC" => {
                        if tell.send(Instant::now()).is_err() {
                            return;
                        }
                        let id = "a".repeat(40);
                        let head = format!("+FULLRESYNC {id} 0\r\n${}\r\n", file.len());
                        let change =
                            b"*4\r\n$8\r\nJSON.SET\r\n$6\r\nsecret\r\n$1\r\n.\r\n$1\r\n1\r\n";
                        let all = [head.as_bytes(), &file, change].concat();
                        drop(stream.write_all(&all));
                    }
                    _ => {}
                }
                line.clear();
            }
        }
    });
    (port, told)
}

#[test]
fn a_server_whose_changes_are_not_known_is_copied_less_and_less_often() {
    let (port, told) = stranger();
    let engine = Engine::new();
    let mut session = engine.session();
    engine
        .follow(redstart_engine::Master::new("127.0.0.1", port))
        .unwrap();
    let times: Vec<Instant> = told.iter().take(4).collect();
    // One second, two, four, and what else takes its time.
    assert!(
        times[2] - times[1] >= Duration::from_millis(1900),
        "{times:?}"
    );
    assert!(
        times[3] - times[2] >= Duration::from_millis(3900),
        "{times:?}"
    );
    let named = || field(&mut session, "master_link_error");
    let error = block_until("the reason", PATIENCE, named).unwrap();
    assert!(
        error.contains("JSON.SET") && !error.contains("secret"),
        "{error}"
    );
}
