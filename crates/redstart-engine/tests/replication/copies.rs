//! Copies of all data for replicas that hang, go, or come together.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::Mutex,
};

use redstart_engine::{Engine, Fsync, Reply};
use redstart_testkit::block_until;

use crate::{
    Master, change::field, contents::Client, random::Chance, server::PATIENCE, wire::Wire,
};

/// Its data is copied from its log, and is more than sockets hold.
fn large(data: &Path) -> Engine {
    let engine = Engine::builder()
        .append_only(data, Fsync::No)
        .build()
        .unwrap();
    let (mut session, mut chance) = (engine.session(), Chance::new(7));
    for n in 0..3000 {
        let value: String = (0..256)
            .map(|_| format!("{:016x}", chance.next()))
            .collect();
        session.line(&format!("SET key{n} {value}"));
    }
    engine
}

/// A connection that sent this and read as many lines.
fn attach(master: &Master, request: &str, lines: usize) -> (BufReader<UnixStream>, String) {
    let mut stream = UnixStream::connect(&master.socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    for _ in 0..lines {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    (reader, line)
}

const AS_REPLICA: &str = "REPLCONF capa eof capa psync2\r\nPSYNC ? -1\r\n";
const AS_FILE: &str = "REPLCONF rdb-only 1\r\nSYNC\r\n";

/// Tests that count threads, if they share a process.
static COUNTING: Mutex<()> = Mutex::new(());

/// How many threads of this process make a copy. One that has ended may be seen for a moment longer.
fn copies() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| {
        let task = task.ok()?;
        std::fs::read_to_string(task.path().join("comm")).ok()
    });
    // The kernel cuts names.
    names
        .filter(|name| name.starts_with("redstart-snap"))
        .count()
}

fn replicas(wire: &mut Wire) -> String {
    field(wire, "connected_slaves").unwrap()
}

#[test]
fn a_replica_that_hangs_during_its_copy_is_let_go() {
    let _counting = COUNTING.lock().unwrap();
    let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let master = Master::start(large(data.path()), place.path());
    let mut wire = master.connect();
    assert_eq!(wire.line("CONFIG SET repl-timeout 1"), Reply::OK);
    for request in [AS_REPLICA, AS_FILE] {
        // It reads nothing, and nothing is written that it could be too slow for.
        let _hung = attach(&master, request, 1);
        let begun = || (copies() > 0).then_some(());
        block_until("the copy to begin", PATIENCE, begun).unwrap();
        let gone = || (copies() == 0 && replicas(&mut wire) == "0").then_some(());
        block_until("the replica to be let go", PATIENCE, gone).unwrap();
    }
}

#[test]
fn copies_are_made_one_at_a_time_and_end_with_their_replicas() {
    let _counting = COUNTING.lock().unwrap();
    let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let master = Master::start(large(data.path()), place.path());
    let mut most = 0;
    for _ in 0..20 {
        let (_gone, line) = attach(&master, AS_REPLICA, 2);
        assert!(line.starts_with("+FULLRESYNC"), "{line}");
        most = most.max(copies());
    }
    assert!(most <= 2, "{most} copies at once");
    let ended = || (copies() == 0).then_some(());
    block_until("the copies to end", PATIENCE, ended).unwrap();
    // Each of several replicas gets its own.
    let all: Vec<_> = (0..3)
        .map(|_| {
            let (mut reader, _) = attach(&master, AS_REPLICA, 2);
            std::thread::spawn(move || {
                let mut piece = vec![0; 64 * 1024];
                let mut bytes = 0;
                // The file is a little smaller than the data.
                while bytes < 6_000_000 {
                    match reader.read(&mut piece).unwrap() {
                        0 => break,
                        count => bytes += count,
                    }
                }
                bytes
            })
        })
        .collect();
    while !all.iter().all(|one| one.is_finished()) {
        most = most.max(copies());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    for one in all {
        assert!(one.join().unwrap() >= 6_000_000);
    }
    assert!(most <= 2, "{most} copies at once");
}

#[test]
fn a_place_before_the_first_is_answered_with_a_copy() {
    let place = tempfile::tempdir().unwrap();
    let master = Master::start(Engine::new(), place.path());
    let id = field(&mut master.connect(), "master_replid").unwrap();
    let request = format!("PSYNC {id} {}\r\n", i64::MIN);
    let (_reader, line) = attach(&master, &request, 1);
    assert!(line.starts_with("+FULLRESYNC"), "{line:?}");
}

#[test]
fn what_is_refused_costs_no_replica_its_place() {
    let place = tempfile::tempdir().unwrap();
    let master = Master::start(Engine::new(), place.path());
    let mut wire = master.connect();
    let _replica = attach(&master, AS_REPLICA, 2);
    let id = field(&mut wire, "master_replid");
    assert!(wire.line("DEBUG LOADAOF").is_error());
    assert_eq!(field(&mut wire, "master_replid"), id);
    assert_eq!(replicas(&mut wire), "1");
}

#[test]
fn wait_ends_when_the_stream_that_it_waits_for_ends() {
    let place = tempfile::tempdir().unwrap();
    let master = Master::start(Engine::new(), place.path());
    let mut wire = master.connect();
    let _replica = attach(&master, AS_REPLICA, 2);
    wire.line("SET a 1");
    let mut waiting = master.connect();
    waiting.send(&crate::words("WAIT 1 0"));
    let waits = || {
        let Reply::Bulk(info) = wire.line("INFO clients") else {
            panic!("no text")
        };
        let info = String::from_utf8(info.to_vec()).unwrap();
        info.contains("blocked_clients:1").then_some(())
    };
    block_until("the client to wait", PATIENCE, waits).unwrap();
    assert_eq!(wire.line("DEBUG CHANGE-REPL-ID"), Reply::OK);
    assert_eq!(waiting.read_within(PATIENCE), Some(Reply::Int(0)));
}
