//! Snapshots: what one saves the others load, and when one is written.

use std::{fs, path::Path, process::Command, time::Duration};

use bytes::Bytes;
use redstart_engine::{Clock, Compat, Engine, Master, Reply, Session};
use redstart_testkit::{Kind, block_until, scale};

use super::{
    Server,
    contents::{Client, assert_same, bulk, everything},
    fill, listener,
    random::{Chance, expiring_hash},
    run, seed,
};

fn check_rdb(file: &Path) {
    let check = Command::new("redis-check-rdb").arg(file).output().unwrap();
    let text = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success(), "{text}");
    assert!(text.contains("RDB looks OK"), "{text}");
}

#[test]
fn the_servers_load_what_the_engine_saves() {
    let engine = Engine::new();
    let mut session = engine.session();
    fill(
        &mut session,
        &mut Chance::new(seed()),
        scale(80, "snapshot keys"),
    );
    let expected = everything(&mut session);
    let total = expected.len() as u64;
    for kind in [Kind::Redis, Kind::Valkey] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dump.rdb");
        let mut told = 0;
        let summary = engine
            .save_rdb(fs::File::create(&file).unwrap(), |_| told += 1)
            .unwrap();
        assert_eq!((summary.total(), summary.version), (total, 10));
        assert_eq!(summary.bytes, fs::metadata(&file).unwrap().len());
        assert!(told > 0);
        check_rdb(&file);
        let mut server = Server::start(kind, dir.path());
        let loaded = everything(&mut server.connect());
        assert_same(&loaded, &expected, &format!("{kind:?}"));
        // And the engine itself.
        let again = Engine::new();
        assert_eq!(
            again
                .load_rdb(fs::File::open(&file).unwrap(), |_| ())
                .unwrap()
                .keys,
            summary.keys
        );
        assert_same(&everything(&mut again.session()), &expected, "the engine");
    }
}

#[test]
fn the_engine_loads_what_the_servers_save() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::start(kind, dir.path());
        let mut wire = server.connect();
        fill(
            &mut wire,
            &mut Chance::new(seed()),
            scale(80, "snapshot keys"),
        );
        assert_eq!(wire.line("SAVE"), Reply::OK);
        let expected = everything(&mut wire);
        let engine = Engine::new();
        engine.session().line("SET before 1");
        let file = fs::File::open(dir.path().join("dump.rdb")).unwrap();
        let summary = engine.load_rdb(file, |_| ()).unwrap();
        assert_eq!(summary.total(), expected.len() as u64, "{summary:?}");
        assert_same(
            &everything(&mut engine.session()),
            &expected,
            &format!("{kind:?}"),
        );
    }
}

#[test]
fn fields_that_expire_travel_with_the_data() {
    let open = |compat| Engine::builder().compat(compat).build().unwrap();
    let engine = open(Compat::Valkey9);
    let mut session = engine.session();
    let mut chance = Chance::new(seed());
    fill(&mut session, &mut chance, scale(30, "snapshot keys"));
    for n in 0..scale(30, "hashes whose fields expire") {
        let key = Bytes::from(format!("expiring:{n}"));
        run(&mut session, &expiring_hash(&mut chance, &key).commands);
    }
    let expected = everything(&mut session);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dump.rdb");
    let from = engine
        .save_rdb(fs::File::create(&file).unwrap(), |_| ())
        .unwrap();
    assert_eq!(from.version, 80);
    let mut server = Server::start(Kind::Valkey, dir.path());
    let mut wire = server.connect();
    assert_same(&everything(&mut wire), &expected, "from the engine");
    assert_eq!(wire.line("SAVE"), Reply::OK);
    // One that has no such commands keeps what it is given, too.
    let old = open(Compat::Redis70);
    let mut passed = Vec::new();
    old.load_rdb(fs::File::open(&file).unwrap(), |_| ())
        .unwrap();
    old.save_rdb(&mut passed, |_| ()).unwrap();
    for (what, bytes) in [
        ("from Valkey", fs::read(&file).unwrap()),
        ("passed on", passed),
    ] {
        let again = open(Compat::Valkey9);
        again.load_rdb(&bytes[..], |_| ()).unwrap();
        assert_same(&everything(&mut again.session()), &expected, what);
    }
}

#[test]
fn functions_travel_with_the_data() {
    let code = "#!lua name=mine\nredis.register_function('twice', function(keys, args) return args[1] * 2 end)";
    let load = [&b"FUNCTION"[..], b"LOAD", code.as_bytes()].map(Bytes::copy_from_slice);
    let call = |client: &mut dyn Client| client.line("FCALL twice 0 21");
    for kind in [Kind::Redis, Kind::Valkey] {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::new();
        let mut session = engine.session();
        assert_eq!(session.ask(&load), Reply::bulk("mine"));
        let file = dir.path().join("dump.rdb");
        let summary = engine
            .save_rdb(fs::File::create(&file).unwrap(), |_| ())
            .unwrap();
        assert_eq!(summary.libraries, 1);
        let mut server = Server::start(kind, dir.path());
        let mut wire = server.connect();
        assert_eq!(call(&mut wire), Reply::Int(42));
        assert_eq!(wire.line("SAVE"), Reply::OK);
        let other = Engine::new();
        other
            .load_rdb(fs::File::open(&file).unwrap(), |_| ())
            .unwrap();
        assert_eq!(call(&mut other.session()), Reply::Int(42));
    }
}

#[test]
fn save_and_bgsave_write_a_file_that_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::builder()
        .append_only(dir.path(), redstart_engine::Fsync::No)
        .build()
        .unwrap();
    let mut session = engine.session();
    fill(&mut session, &mut Chance::new(seed()), 40);
    session.line("BF.RESERVE filter 0.01 100");
    session.line("BF.ADD filter x");
    let file = dir.path().join("dump.rdb");
    let field = |session: &mut Session, name: &str| {
        let info = match session.line("INFO persistence") {
            Reply::Bulk(text) | Reply::Verbatim { text, .. } => text,
            other => panic!("{other:?}"),
        };
        let info = String::from_utf8(info.to_vec()).unwrap();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().to_owned()
    };
    assert_ne!(field(&mut session, "rdb_changes_since_last_save"), "0");
    assert_eq!(session.line("SAVE"), Reply::OK);
    assert_eq!(field(&mut session, "rdb_changes_since_last_save"), "0");
    let expected = everything(&mut session);
    let load = || {
        let engine = Engine::new();
        engine
            .load_rdb(fs::File::open(&file).unwrap(), |_| ())
            .unwrap();
        engine.session()
    };
    let mut loaded = load();
    assert_same(&everything(&mut loaded), &expected, "SAVE");
    assert_eq!(loaded.line("BF.EXISTS filter x"), Reply::Int(1));
    assert_eq!(loaded.line("BF.EXISTS filter y"), Reply::Int(0));
    session.line("SET later 1");
    assert_eq!(
        session.line("BGSAVE x"),
        Reply::Error("ERR syntax error".into())
    );
    let started = Reply::Status("Background saving started".into());
    assert_eq!(session.line("BGSAVE SCHEDULE"), started);
    let written = || (field(&mut session, "rdb_bgsave_in_progress") == "0").then_some(());
    block_until("the file", Duration::from_secs(60), written).unwrap();
    assert_eq!(field(&mut session, "rdb_last_bgsave_status"), "ok");
    assert_eq!(
        Reply::Int(field(&mut session, "rdb_last_save_time").parse().unwrap()),
        session.line("LASTSAVE")
    );
    assert_eq!(load().line("GET later"), Reply::bulk("1"));
}

#[test]
fn a_snapshot_is_loaded_and_one_that_was_not_is_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other.rdb");
    let settings = || {
        let mut settings = redstart_engine::Settings::new();
        settings.set("dir", dir.path().to_str().unwrap()).unwrap();
        settings.set("dbfilename", "other.rdb").unwrap();
        settings
    };
    let open = || Engine::builder().settings(settings()).build();
    let engine = open().unwrap();
    engine.session().line("SET a 1");
    // Another left a file meanwhile.
    fs::write(&file, "precious").unwrap();
    assert!(engine.session().line("SAVE").is_error());
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert!(open().is_err(), "what cannot be read is not passed over");
    fs::remove_file(&file).unwrap();
    assert_eq!(engine.session().line("SAVE"), Reply::OK);
    assert_eq!(engine.session().line("SAVE"), Reply::OK);
    let again = open().unwrap();
    assert_eq!(again.session().line("GET a"), Reply::bulk("1"));
    assert_eq!(again.session().line("SAVE"), Reply::OK);
}

#[test]
fn a_snapshot_that_the_log_superseded_is_replaced_when_the_log_is_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dump.rdb");
    let open = |log: bool| {
        let mut settings = redstart_engine::Settings::new();
        settings.set("dir", dir.path().to_str().unwrap()).unwrap();
        settings.set("save", "60 1").unwrap();
        if log {
            settings.set("appendonly", "yes").unwrap();
        }
        let clock = Clock::manual_at(1_700_000_000_000_000);
        let builder = Engine::builder().settings(settings).clock(clock);
        builder.build().unwrap()
    };
    let first = open(true);
    assert_eq!(first.session().line("SET stale 1"), Reply::OK);
    assert_eq!(first.session().line("SAVE"), Reply::OK);
    assert_eq!(first.session().line("DEL stale"), Reply::Int(1));
    drop(first);
    let stale = fs::read(&file).unwrap();
    let engine = open(true);
    let mut session = engine.session();
    assert_eq!(session.line("GET stale"), Reply::Nil);
    assert_eq!(session.line("CONFIG SET appendonly no"), Reply::OK);
    assert_eq!(session.line("SET a 1"), Reply::OK);
    engine.advance(Duration::from_secs(61));
    let replaced = || {
        assert_eq!(session.line("SET a 2"), Reply::OK);
        (fs::read(&file).unwrap() != stale).then_some(())
    };
    block_until("the file", Duration::from_secs(60), replaced).unwrap();
    drop((session, engine));
    fs::remove_dir_all(dir.path().join("appendonlydir")).unwrap();
    let mut again = open(false).session();
    assert!(matches!(again.line("GET a"), Reply::Bulk(_)));
    assert_eq!(again.line("GET stale"), Reply::Nil);
}

#[test]
fn data_of_a_followed_server_is_not_replaced_by_a_file() {
    let donor = Engine::new();
    donor.session().line("SET from-the-file 1");
    let mut file = Vec::new();
    donor.save_rdb(&mut file, |_| ()).unwrap();
    let engine = Engine::new();
    let mut session = engine.session();
    session.line("SET k 1");
    engine.follow(Master::new("127.0.0.1", 1)).unwrap();
    let refused = engine.load_rdb(file.as_slice(), |_| ()).unwrap_err();
    assert!(refused.to_string().contains("promote"), "{refused}");
    assert_eq!(session.line("GET k"), Reply::bulk("1"));
    engine.promote();
    engine.load_rdb(file.as_slice(), |_| ()).unwrap();
    assert_eq!(session.line("GET from-the-file"), Reply::bulk("1"));
}

#[test]
fn engines_that_save_in_one_folder_at_once_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let settings = |name: &str| {
        let mut settings = redstart_engine::Settings::new();
        settings.set("dir", dir.path().to_str().unwrap()).unwrap();
        settings.set("dbfilename", name).unwrap();
        settings
    };
    let names = ["a.rdb", "b.rdb", "c.rdb", "d.rdb"];
    std::thread::scope(|scope| {
        for name in names {
            let engine = Engine::builder().settings(settings(name)).build().unwrap();
            scope.spawn(move || {
                let mut session = engine.session();
                let value = name.repeat(50_000);
                for _ in 0..20 {
                    let args = ["SET", "name", &value].map(|word| Bytes::from(word.to_owned()));
                    session.execute(&args);
                    assert_eq!(session.line("SAVE"), Reply::OK, "{name}");
                }
            });
        }
    });
    for name in names {
        let engine = Engine::builder().settings(settings(name)).build().unwrap();
        let mut session = engine.session();
        assert_eq!(
            session.line("GET name"),
            Reply::bulk(name.repeat(50_000)),
            "{name}"
        );
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), names.len(), "{left:?}");
}

#[test]
fn save_points_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = redstart_engine::Settings::new();
    settings.set("dir", dir.path().to_str().unwrap()).unwrap();
    settings.set("save", "60 3 600 1").unwrap();
    let engine = Engine::builder()
        .settings(settings)
        .clock(Clock::manual_at(1_700_000_000_000_000))
        .build()
        .unwrap();
    let mut session = engine.session();
    let saved = |session: &mut Session, after: u64| {
        engine.advance(Duration::from_secs(after));
        // What is due is done with the next command.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let info = bulk(session.line("INFO persistence"));
            let text = String::from_utf8_lossy(&info).into_owned();
            if text.contains("rdb_bgsave_in_progress:0") {
                return text.contains("rdb_changes_since_last_save:0");
            }
            assert!(std::time::Instant::now() < deadline);
        }
    };
    session.line("SET a 1");
    session.line("SET b 2");
    assert!(!saved(&mut session, 61), "two changes in a minute");
    session.line("SET c 3");
    assert!(saved(&mut session, 1), "three changes in a minute");
    session.line("SET d 4");
    assert!(!saved(&mut session, 599), "one change in ten minutes");
    assert!(
        saved(&mut session, 2),
        "one change in more than ten minutes"
    );
    session.execute(&["CONFIG", "SET", "save", ""].map(Bytes::from));
    session.line("SET e 5");
    engine.advance(Duration::from_secs(10_000));
    drop((session, engine));
    let mut again = redstart_engine::Settings::new();
    again.set("dir", dir.path().to_str().unwrap()).unwrap();
    let again = Engine::builder().settings(again).build().unwrap();
    assert_eq!(again.session().line("DBSIZE"), Reply::Int(4));
}

/// Counts up until the connection ends: the last number that was acknowledged.
fn count_up(addr: std::net::SocketAddr, key: &str, seen: &std::sync::atomic::AtomicU64) {
    use std::io::{BufRead as _, BufReader, Write as _};
    let mut stream = std::net::TcpStream::connect(addr).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while stream
        .write_all(format!("INCR {key}\r\n").as_bytes())
        .is_ok()
    {
        line.clear();
        match reader.read_line(&mut line) {
            Ok(count) if count > 0 => {
                let number = line.trim().strip_prefix(':').unwrap().parse().unwrap();
                seen.store(number, std::sync::atomic::Ordering::Relaxed);
            }
            _ => return,
        }
    }
}

#[test]
fn what_is_acknowledged_during_a_shutdown_is_in_the_file() {
    use std::{
        io::Write as _,
        net::TcpStream,
        sync::atomic::{AtomicU64, Ordering},
    };
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let mut settings = redstart_engine::Settings::new();
        settings.set("dir", dir.path().to_str().unwrap()).unwrap();
        settings.set("save", "3600 1000000000").unwrap();
        Engine::builder().settings(settings).build().unwrap()
    };
    let running = listener::Running::start(open(), redstart_engine::server::ServerConfig::new());
    let addr = running.addr;
    let seen: [AtomicU64; 8] = Default::default();
    let patience = Duration::from_secs(60);
    std::thread::scope(|scope| {
        for (n, seen) in seen.iter().enumerate() {
            scope.spawn(move || count_up(addr, &format!("n{n}"), seen));
        }
        let all = || {
            let begun = seen.iter().all(|seen| seen.load(Ordering::Relaxed) > 10);
            begun.then_some(())
        };
        block_until("all to write", patience, all).unwrap();
        let mut last = TcpStream::connect(addr).unwrap();
        last.write_all(b"SHUTDOWN\r\n").unwrap();
    });
    // The socket is closed at the very end.
    let closed = || TcpStream::connect(addr).is_err().then_some(());
    block_until("the listener to end", patience, closed).unwrap();
    let mut session = open().session();
    for (n, seen) in seen.iter().enumerate() {
        let acknowledged = seen.load(Ordering::Relaxed);
        let kept = bulk(session.line(&format!("GET n{n}")));
        let kept: u64 = std::str::from_utf8(&kept).unwrap().parse().unwrap();
        assert!(kept >= acknowledged, "n{n}: {kept} of {acknowledged}");
    }
}

/// A file that nobody has loaded is in the way of one that is due.
#[test]
fn a_file_that_was_not_loaded_is_not_replaced_and_refuses_no_writes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dump.rdb");
    let mut settings = redstart_engine::Settings::new();
    settings.set("dir", dir.path().to_str().unwrap()).unwrap();
    settings.set("save", "10 1").unwrap();
    let engine = Engine::builder()
        .settings(settings)
        .clock(Clock::manual_at(1_700_000_000_000_000))
        .build()
        .unwrap();
    fs::write(&file, "of somebody else").unwrap();
    let mut session = engine.session();
    let status = |session: &mut Session| {
        let info = bulk(session.line("INFO persistence"));
        let text = String::from_utf8_lossy(&info).into_owned();
        let line = text
            .lines()
            .find(|line| line.starts_with("rdb_last_bgsave_status"));
        line.unwrap().trim().to_owned()
    };
    for n in 0..3 {
        assert_eq!(session.line(&format!("SET k {n}")), Reply::OK);
        engine.advance(Duration::from_secs(11));
        assert_eq!(session.line("PING"), Reply::Status("PONG".into()));
        assert_eq!(status(&mut session), "rdb_last_bgsave_status:err");
    }
    assert_eq!(fs::read(&file).unwrap(), b"of somebody else");
    // Once it is gone, the next one that is due is written.
    fs::remove_file(&file).unwrap();
    engine.advance(Duration::from_secs(11));
    session.line("PING");
    block_until("the file", Duration::from_secs(60), || {
        file.exists().then_some(())
    })
    .unwrap();
    assert_eq!(status(&mut session), "rdb_last_bgsave_status:ok");
}

/// What [`an_engine_that_saves_into_the_current_folder_goes_on_there`] does in a process of its own.
#[test]
#[ignore = "called by another test in a folder of its own"]
fn saving_into_the_current_folder() {
    let open = || {
        let mut settings = redstart_engine::Settings::new();
        settings.set("save", "3600 1").unwrap();
        Engine::builder().settings(settings).build().unwrap()
    };
    let engine = open();
    assert_eq!(engine.session().line("SET k 1"), Reply::OK);
    assert_eq!(engine.session().line("SAVE"), Reply::OK);
    drop(engine);
    let mut session = open().session();
    assert_eq!(session.line("GET k"), Reply::bulk("1"));
    assert_eq!(session.line("SET k 2"), Reply::OK);
    assert_eq!(session.line("SAVE"), Reply::OK);
    // Without points nothing is kept, and nothing of others is read.
    assert_eq!(Engine::new().session().line("GET k"), Reply::Nil);
}

#[test]
fn an_engine_that_saves_into_the_current_folder_goes_on_there() {
    let dir = tempfile::tempdir().unwrap();
    let test = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "snapshot::saving_into_the_current_folder",
        ])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&test.stdout);
    assert!(test.status.success(), "{told}");
    assert!(told.contains("1 passed"), "{told}");
}

#[test]
fn a_snapshot_that_is_cancelled_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = redstart_engine::Settings::new();
    settings.set("dir", dir.path().to_str().unwrap()).unwrap();
    settings.set("rdbcompression", "no").unwrap();
    let builder = Engine::builder().settings(settings);
    let engine = builder.compat(Compat::Valkey9).build().unwrap();
    let mut session = engine.session();
    for n in 0..8 {
        let key = format!("SETRANGE k{n} 4000000 x");
        assert!(!session.line(&key).is_error());
    }
    let info = |session: &mut Session| {
        let info = bulk(session.line("INFO persistence"));
        String::from_utf8_lossy(&info).into_owned()
    };
    // It may be written before it is cancelled.
    let cancelled = || {
        let _ = fs::remove_file(dir.path().join("dump.rdb"));
        session.line("INCR changes");
        let started = session.line("BGSAVE");
        assert_eq!(started, Reply::Status("Background saving started".into()));
        let reply = session.line("BGSAVE CANCEL");
        let ended = || {
            info(&mut session)
                .contains("rdb_bgsave_in_progress:0")
                .then_some(())
        };
        block_until("the end", Duration::from_secs(60), ended).unwrap();
        assert!(info(&mut session).contains("rdb_last_bgsave_status:ok"));
        let left = fs::read_dir(dir.path()).unwrap().count();
        (reply == Reply::Status("Background saving cancelled".into()) && left == 0).then_some(())
    };
    block_until("a cancelled snapshot", Duration::from_secs(60), cancelled).unwrap();
    // What is not in a file is still to be saved.
    assert!(!info(&mut session).contains("rdb_changes_since_last_save:0"));
}
