//! Redis and Valkey as replicas of the engine: equal to it after cuts and restarts of either side.

#![allow(clippy::unwrap_used)]

use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use redstart_engine::{Compat, Engine, Fsync, Reply, server::ServerConfig};
use redstart_testkit::{Kind, block_until, scale};

#[path = "replication/change.rs"]
mod change;
#[path = "rdb/contents.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod contents;
#[path = "replication/copies.rs"]
mod copies;
#[path = "replication/handover.rs"]
mod handover;
#[path = "listener/running.rs"]
mod listener;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "rdb/random.rs"]
mod random;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "replication/server.rs"]
mod server;
#[path = "differential/wire.rs"]
mod wire;

use change::{LIBRARY, Shortage, change, count, field, keep_short, pace, seeded, told, word};
use contents::{Client, assert_same, words};
use listener::Running;
use server::{PATIENCE, RealServer, assert_level, connect};
use wire::Wire;

/// The engine behind its listener, on TCP for replicas and on a unix socket for the test.
struct Master {
    running: Running,
    socket: PathBuf,
}

impl Master {
    fn start(engine: Engine, dir: &Path) -> Master {
        let socket = dir.join("m.sock");
        let config = ServerConfig::new().unix(&socket);
        let running = Running::start(engine, config);
        Master { running, socket }
    }

    fn connect(&self) -> Wire {
        connect(&self.socket, None)
    }
}

/// A client that waits is served by a push: what it takes is part of the stream.
fn serve_a_waiting_client(master: &Master, wire: &mut Wire, n: u64) {
    let mut waiting = master.connect();
    waiting.send(&words(&format!("BLMOVE wait{n} got{n} LEFT RIGHT 0")));
    let blocked = || {
        let mut other = master.connect();
        let Reply::Bulk(info) = other.line("INFO clients") else {
            panic!("no text")
        };
        let info = String::from_utf8(info.to_vec()).unwrap();
        info.contains("blocked_clients:1").then_some(())
    };
    block_until("the client to wait", PATIENCE, blocked).unwrap();
    wire.line("SELECT 0");
    wire.line(&format!("RPUSH wait{n} a b"));
    assert_eq!(waiting.read(), Reply::bulk("a"));
}

fn feeds_through_cuts_and_restarts(kind: Kind) {
    let writes = scale(900, "fed writes");
    let pace = pace(writes);
    let dir = tempfile::tempdir().unwrap();
    let data = tempfile::tempdir().unwrap();
    // The old listener's tasks may hold the engine for a moment longer.
    let open = || {
        let engine = || {
            let builder = Engine::builder().append_only(data.path(), Fsync::No);
            builder.build().ok()
        };
        let engine = block_until("the folder to be free", PATIENCE, engine).unwrap();
        keep_short(&engine);
        Master::start(engine, data.path())
    };
    let mut master = open();
    let mut replica = RealServer::new(kind, dir.path(), &[]);
    let mut wire = master.connect();
    let mut chance = seeded();
    wire.ask(&[word("FUNCTION"), word("LOAD"), word(LIBRARY)]);
    for _ in 0..100 {
        change(&mut wire, &mut chance);
    }
    let mut other = replica.follow(master.running.addr);
    let (mut cuts, mut restarts) = (0, 0);
    let mut shortage = Shortage::new(pace);
    for n in 0..writes {
        if shortage.step(&mut wire, n) {
            // A later copy of everything would hide what was not told.
            assert_level(&mut wire, &mut other, &format!("{kind:?} after evictions"));
        }
        change(&mut wire, &mut chance);
        if n % pace == pace / 2 {
            cuts += 1;
            wire.line("CLIENT KILL TYPE replica");
        }
        if n % (2 * pace) == 2 * pace / 3 {
            serve_a_waiting_client(&master, &mut wire, n);
        }
        if n % (3 * pace) == 4 * pace / 3 {
            restarts += 1;
            drop(other);
            replica.restart(if n % (6 * pace) < 3 * pace {
                "NOSAVE"
            } else {
                "SAVE"
            });
            other = replica.follow(master.running.addr);
        }
        if n % (3 * pace) == 8 * pace / 3 {
            restarts += 1;
            drop((wire, master));
            master = open();
            wire = master.connect();
            other = replica.follow(master.running.addr);
        }
    }
    assert_level(&mut wire, &mut other, &format!("{kind:?}"));
    let libraries = |wire: &mut Wire| format!("{:?}", wire.line("FUNCTION LIST WITHCODE"));
    assert_eq!(libraries(&mut wire), libraries(&mut other));
    // The replica can take over.
    assert_eq!(other.line("REPLICAOF NO ONE"), Reply::OK);
    assert_eq!(other.line("FCALL bump 1 fresh 2"), Reply::Int(2));
    redstart_testkit::figure(format!(
        "{kind:?} follows: {writes} changes, {} keys evicted, {cuts} cuts, {restarts} restarts of either side, then equal",
        shortage.evicted()
    ));
}

#[test]
fn redis_follows_through_cuts_and_restarts() {
    feeds_through_cuts_and_restarts(Kind::Redis);
}

#[test]
fn valkey_follows_through_cuts_and_restarts() {
    feeds_through_cuts_and_restarts(Kind::Valkey);
}

#[test]
fn a_short_cut_is_made_up_for_without_a_copy() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let master = Master::start(Engine::new(), place.path());
        let mut wire = master.connect();
        wire.line("SET before 1");
        let replica = RealServer::new(kind, dir.path(), &[]);
        let mut other = replica.follow(master.running.addr);
        assert_level(&mut wire, &mut other, "the copy");
        wire.line("SELECT 3");
        wire.line("SET in-three 1");
        assert_level(&mut wire, &mut other, "before the cut");
        assert_eq!(count(&mut wire, "sync_full"), 1, "{kind:?}");
        wire.line("SELECT 3");
        assert_eq!(wire.line("CLIENT KILL TYPE replica"), Reply::Int(1));
        // The database that was selected before the cut is still the stream's.
        wire.line("SET in-three 2");
        wire.line("RPUSH list a b");
        assert_level(&mut wire, &mut other, "after the cut");
        assert_eq!(count(&mut wire, "sync_full"), 1, "{kind:?}");
        assert_eq!(count(&mut wire, "sync_partial_ok"), 1, "{kind:?}");
        // A gap that is longer than the backlog is not made up for.
        wire.line("CONFIG SET repl-backlog-size 16384");
        wire.line("CLIENT KILL TYPE replica");
        for n in 0..40 {
            wire.line(&format!("SET gap{n} {}", "x".repeat(10_000)));
        }
        assert_level(&mut wire, &mut other, "after a long cut");
        assert_eq!(
            count(&mut wire, "sync_full") + count(&mut wire, "sync_partial_ok"),
            3,
            "{kind:?}"
        );
    }
}

/// Also what a server keeps to itself: how often and when an entry was read again.
#[test]
fn pending_entries_that_are_read_again_are_pending_so_on_the_replica() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let clock = redstart_engine::Clock::manual_at(1_700_000_000_000_000);
        let engine = Engine::builder().clock(clock).build().unwrap();
        let master = Master::start(engine.clone(), place.path());
        let mut wire = master.connect();
        let replica = RealServer::new(kind, dir.path(), &[]);
        let mut other = replica.follow(master.running.addr);
        for key in ["one", "two"] {
            wire.line(&format!("XADD {key} 1-1 f v"));
            wire.line(&format!("XADD {key} 1-2 f v"));
            wire.line(&format!("XGROUP CREATE {key} g 0"));
            wire.line(&format!("XREADGROUP GROUP g c COUNT 1 STREAMS {key} >"));
        }
        engine.advance(Duration::from_millis(1234));
        wire.line("XREADGROUP GROUP g c STREAMS one 0");
        engine.advance(Duration::from_millis(1234));
        // What is new in one stream, and old in another.
        wire.line("XREADGROUP GROUP g c STREAMS one two > 0");
        wire.line("XREADGROUP GROUP g new STREAMS one 0");
        assert_level(&mut wire, &mut other, &format!("{kind:?}"));
    }
}

#[test]
fn the_replica_is_told_and_shown_as_a_server_shows_its_own() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let master = Master::start(Engine::new(), place.path());
    let mut wire = master.connect();
    assert_eq!(wire.line("WAIT 0 0"), Reply::Int(0));
    assert_eq!(wire.line("WAIT 1 10"), Reply::Int(0));
    let replica = RealServer::new(Kind::Redis, dir.path(), &[]);
    let mut other = replica.follow(master.running.addr);
    assert_level(&mut wire, &mut other, "the copy");
    // What was confirmed is confirmed.
    wire.line("SET a 1");
    assert_eq!(wire.line("WAIT 1 0"), Reply::Int(1));
    assert_eq!(other.line("GET a"), Reply::bulk("1"));
    let listed = field(&mut wire, "slave0").unwrap();
    let expected = format!("ip=127.0.0.1,port={},state=online,offset=", replica.port);
    assert!(listed.starts_with(&expected), "{listed}");
    assert_eq!(field(&mut wire, "connected_slaves").as_deref(), Some("1"));
    assert_eq!(
        field(&mut wire, "master_replid"),
        field(&mut other, "master_replid")
    );
    let Reply::Array(role) = wire.line("ROLE") else {
        panic!("no role")
    };
    assert_eq!(role[0], Reply::bulk("master"));
    let Reply::Array(replicas) = &role[2] else {
        panic!("no replicas")
    };
    let Reply::Array(one) = &replicas[0] else {
        panic!("no replica")
    };
    assert_eq!(
        one[..2],
        [
            Reply::bulk("127.0.0.1"),
            Reply::bulk(replica.port.to_string())
        ]
    );
    // A replica that stands still confirms nothing, and does not count.
    wire.line("CONFIG SET min-replicas-to-write 1");
    wire.line("CONFIG SET min-replicas-max-lag 1");
    assert_eq!(wire.line("SET b 1"), Reply::OK);
    replica.signal("-STOP");
    wire.line("SET c 1");
    assert_eq!(wire.line("WAIT 1 50"), Reply::Int(0));
    let refused = Reply::Error("NOREPLICAS Not enough good replicas to write.".into());
    let lagging = || (wire.line("SET d 1") == refused).then_some(());
    block_until("writes to be refused", PATIENCE, lagging).unwrap();
    replica.signal("-CONT");
    let good = || (wire.line("SET e 1") == Reply::OK).then_some(());
    block_until("writes to be accepted", PATIENCE, good).unwrap();
    assert_eq!(wire.line("WAIT 1 0"), Reply::Int(1));
    assert_level(&mut wire, &mut other, "at the end");
}

#[test]
fn waitaof_counts_a_replica_that_has_it_on_its_disk() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = Engine::builder().compat(Compat::Valkey9).build().unwrap();
    let master = Master::start(engine, place.path());
    let mut wire = master.connect();
    let replica = RealServer::new(Kind::Valkey, dir.path(), &["--appendonly", "yes"]);
    let _other = replica.follow(master.running.addr);
    let counted = |disk, replicas| Reply::Array(vec![Reply::Int(disk), Reply::Int(replicas)]);
    for n in 0..3 {
        wire.line(&format!("SET k {n}"));
        assert_eq!(wire.line("WAITAOF 0 1 0"), counted(0, 1));
    }
    // There is no second one.
    match wire.line("WAITAOF 0 2 20") {
        Reply::Array(counts) => assert!(counts[1] != Reply::Int(2), "{counts:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_replica_that_does_not_read_is_dropped_and_comes_back() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let master = Master::start(Engine::new(), place.path());
    let mut wire = master.connect();
    let limit = "CONFIG SET client-output-buffer-limit";
    let mut args = words(limit);
    args.push(word("replica 2mb 0 0"));
    assert_eq!(wire.ask(&args), Reply::OK);
    let replica = RealServer::new(Kind::Valkey, dir.path(), &[]);
    let mut other = replica.follow(master.running.addr);
    assert_level(&mut wire, &mut other, "the copy");
    replica.signal("-STOP");
    let value = "x".repeat(100_000);
    let mut written = 0;
    let dropped = || {
        for n in 0..50 {
            wire.line(&format!("SET key{n} {value}"));
        }
        written += 50;
        (field(&mut wire, "connected_slaves").as_deref() == Some("0")).then_some(())
    };
    block_until("the replica to be dropped", PATIENCE, dropped).unwrap();
    let Reply::Bulk(info) = wire.line("INFO memory") else {
        panic!("no text")
    };
    let info = String::from_utf8(info.to_vec()).unwrap();
    let held = info
        .lines()
        .find_map(|line| line.strip_prefix("mem_total_replication_buffers:"));
    let held: u64 = held.unwrap().parse().unwrap();
    assert!(held < 3_000_000, "{held} bytes are held for nobody");
    replica.signal("-CONT");
    assert_level(&mut wire, &mut other, "after it came back");
    redstart_testkit::figure(format!(
        "a replica that stands still is dropped within {written} writes of 100 kB"
    ));
}

#[test]
fn a_replica_feeds_no_replicas() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = RealServer::new(Kind::Redis, dir.path(), &[]);
    drop(server.connect());
    let master = Master::start(Engine::new(), place.path());
    let mut wire = master.connect();
    wire.line(&format!("REPLICAOF 127.0.0.1 {}", server.port));
    let refused = match wire.line("PSYNC ? -1") {
        Reply::Error(text) => text,
        other => panic!("{other:?}"),
    };
    assert!(refused.contains("is a replica itself"), "{refused}");
    wire.line("REPLICAOF NO ONE");
    let session = Engine::new();
    let refused = session.session().line("PSYNC ? -1");
    assert!(refused.is_error(), "{refused:?}");
}

/// The data of an engine with a log is copied from the files, while callers go on.
#[test]
fn a_copy_is_read_from_the_log_while_others_write() {
    let keys = scale(30_000, "copied keys");
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = Engine::builder()
        .append_only(data.path(), Fsync::No)
        .build()
        .unwrap();
    let mut session = engine.session();
    let value = "x".repeat(500);
    for n in 0..keys {
        session.line(&format!("SET key{n} {value}"));
    }
    let master = Master::start(engine.clone(), data.path());
    let replica = RealServer::new(Kind::Redis, dir.path(), &[]);
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (engine, stop) = (engine.clone(), stop.clone());
        move || {
            let (mut session, mut longest, mut count) = (engine.session(), Duration::ZERO, 0u64);
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                session.line(&format!("INCR key-of-writer{}", count % 100));
                session.line(&format!("APPEND key{} y", count % keys));
                longest = longest.max(began.elapsed());
                count += 1;
            }
            (longest, count)
        }
    });
    let mut other = replica.follow(master.running.addr);
    let up = || (field(&mut other, "master_link_status").as_deref() == Some("up")).then_some(());
    let copied = block_until("the copy to arrive", PATIENCE, up);
    stop.store(true, Ordering::Relaxed);
    let (longest, count) = writer.join().unwrap();
    copied.unwrap();
    assert_level(&mut master.connect(), &mut other, "the copy");
    redstart_testkit::figure(format!(
        "{keys} keys of 500 bytes copied from the log while {count} pairs of writes were made, the \
         slowest in {longest:?}"
    ));
}

/// What `redis-cli --rdb` asks for.
#[test]
fn sync_sends_a_file_that_an_engine_loads() {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    let place = tempfile::tempdir().unwrap();
    let engine = Engine::new();
    let mut session = engine.session();
    for n in 0..100 {
        session.line(&format!("RPUSH list{n} a b {n}"));
    }
    let master = Master::start(engine, place.path());
    let mut stream = UnixStream::connect(&master.socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"REPLCONF rdb-only 1\r\nSYNC\r\n")
        .unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "+OK\r\n");
    line.clear();
    while line.trim().is_empty() {
        reader.read_line(&mut line).unwrap();
    }
    let len: u64 = line.trim().strip_prefix('$').unwrap().parse().unwrap();
    let copy = Engine::new();
    let summary = copy.load_rdb(reader.by_ref().take(len), |_| ()).unwrap();
    assert_eq!(summary.total(), 100);
    assert_same(&told(&mut copy.session()), &told(&mut session), "the file");
    // No stream follows.
    session.line("SET a 1");
    let mut wire = master.connect();
    assert_eq!(field(&mut wire, "connected_slaves").as_deref(), Some("0"));
}

#[test]
fn the_data_moves_only_if_nothing_was_written_meanwhile() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = Engine::new();
    let master = Master::start(engine.clone(), place.path());
    let mut wire = master.connect();
    assert_eq!(wire.line("REDSTART HANDOVER BEGIN me"), Reply::OK);
    assert!(wire.line("REDSTART HANDOVER WATCH me").is_error());
    let replica = RealServer::new(Kind::Redis, dir.path(), &[]);
    let mut other = replica.follow(master.running.addr);
    assert_level(&mut wire, &mut other, "the copy");
    assert_eq!(wire.line("REDSTART HANDOVER WATCH me"), Reply::OK);
    wire.line("SET a 1");
    let changed = Reply::Array(vec![Reply::Int(0), Reply::bulk("a")]);
    assert_eq!(wire.line("REDSTART HANDOVER CHANGED me 10"), changed);
    let pause = |wire: &mut Wire, millis: u64| match wire
        .line(&format!("REDSTART HANDOVER PAUSE me {millis}"))
    {
        Reply::Array(reply) => reply[0].clone(),
        other => panic!("{other:?}"),
    };
    let commit = |wire: &mut Wire, token: &Reply| match token {
        Reply::Int(token) => wire.line(&format!("REDSTART HANDOVER COMMIT me {token} there 7")),
        other => panic!("{other:?}"),
    };
    // A pause ends by itself, and what is written then is not lost.
    let token = pause(&mut wire, 1);
    assert_eq!(wire.line("SET b 1"), Reply::OK);
    let refused = Reply::Error("NOTMOVED something was written since writes were held back".into());
    assert_eq!(commit(&mut wire, &token), refused);
    assert_eq!(wire.line("REDSTART HANDOVER ABORT me"), Reply::OK);
    assert!(commit(&mut wire, &token).is_error());
    assert_eq!(wire.line("SET c 1"), Reply::OK);
    assert_level(&mut wire, &mut other, "before the move");
    assert_eq!(wire.line("REDSTART HANDOVER BEGIN me"), Reply::OK);

    let mut waiting = master.connect();
    waiting.send(&words("BLPOP nothing 0"));
    let mut listening = master.connect();
    listening.line("SUBSCRIBE __redstart__:moved");
    let mut queued = master.connect();
    queued.line("MULTI");
    queued.line("SET d 1");
    let token = pause(&mut wire, 60_000);
    // Nor is a call in this process carried out.
    let held_back = Reply::Error(redstart_engine::HELD_BACK.into());
    let mut session = engine.session();
    assert_eq!(session.line("SET e 1"), held_back);
    let batch = ["GET a", "SET e 1"].map(words);
    assert_eq!(
        session.execute_batch(&batch),
        [held_back.clone(), held_back]
    );
    assert_eq!(session.line("GET a"), Reply::bulk("1"));
    let mut held = master.connect();
    held.send(&words("SET e 1"));
    assert_eq!(commit(&mut wire, &token), Reply::OK);
    // A lost answer may be asked for again.
    assert_eq!(commit(&mut wire, &token), Reply::OK);
    let refused = Reply::Error("REDIRECT there:7".into());
    assert_eq!(wire.line("GET a"), refused);
    assert_eq!(held.read(), refused);
    assert_eq!(waiting.read(), refused);
    assert_eq!(queued.line("EXEC"), refused);
    let message = ["message", "__redstart__:moved", "there:7"];
    let message = message.map(Reply::bulk).to_vec();
    assert_eq!(listening.read(), Reply::Array(message));
    // People can still look.
    assert!(!wire.line("INFO replication").is_error());
    assert_eq!(wire.line("PING"), Reply::Status("PONG".into()));
    assert_eq!(other.line("GET c"), Reply::bulk("1"));
    assert_eq!(other.line("EXISTS d e"), Reply::Int(0));
}
