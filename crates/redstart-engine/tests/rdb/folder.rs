//! A server's folder is the engine's, and the other way round.

use std::{fs, path::Path, process::Command, time::Duration};

use redstart_engine::{Engine, Master, Reply};
use redstart_testkit::{Kind, block_until, scale};

use super::{
    Server,
    contents::{Client as _, assert_same, bulk, everything, unseen},
    fill,
    random::Chance,
    seed,
};

/// All files of a log, by its manifest.
fn check_aof(dir: &Path) {
    let manifest = dir.join("appendonlydir/appendonly.aof.manifest");
    let check = Command::new("redis-check-aof")
        .arg(manifest)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success(), "{text}");
    assert!(
        text.contains("All AOF files and manifest are valid"),
        "{text}"
    );
}

#[test]
fn a_running_server_is_copied() {
    for kind in [Kind::Redis, Kind::Valkey] {
        for diskless in ["yes", "no"] {
            let dir = tempfile::tempdir().unwrap();
            let port = free_port();
            let more = [
                "--port",
                &port.to_string(),
                "--requirepass",
                "secret",
                "--repl-diskless-sync",
                diskless,
                "--repl-diskless-sync-delay",
                "0",
            ];
            let mut server = Server::start_with(kind, dir.path(), &more);
            let mut wire = server.connect_with(|wire| wire.line("AUTH secret") == Reply::OK);
            fill(&mut wire, &mut Chance::new(seed()), 30);
            let expected = everything(&mut wire);
            let engine = Engine::new();
            let master = Master::new("127.0.0.1", port);
            assert!(
                engine.copy_from(&master, |_| ()).is_err(),
                "a password is needed"
            );
            let master = master.credentials(None, Some("secret".into()));
            let summary = engine.copy_from(&master, |_| ()).unwrap();
            assert_eq!(summary.total(), expected.len() as u64);
            assert_same(
                &everything(&mut engine.session()),
                &expected,
                &format!("{kind:?} {diskless}"),
            );
        }
    }
}

/// A server's folder becomes the engine's, and the server's again.
#[test]
fn folders_move_between_the_servers_and_the_engine() {
    for kind in [Kind::Redis, Kind::Valkey] {
        for appendonly in ["yes", "no"] {
            let what = format!("{kind:?} appendonly {appendonly}");
            let dir = tempfile::tempdir().unwrap();
            let mut server = Server::start_with(kind, dir.path(), &["--appendonly", appendonly]);
            let mut wire = server.connect();
            let mut chance = Chance::new(seed());
            fill(&mut wire, &mut chance, scale(40, "folder keys"));
            if appendonly == "yes" {
                // A base in RDB format, and an increment after it.
                wire.line("BGREWRITEAOF");
                let rewritten = || {
                    let info =
                        String::from_utf8(bulk(wire.line("INFO persistence")).to_vec()).unwrap();
                    let done = info.contains("aof_rewrite_in_progress:0")
                        && info.contains("aof_rewrites:1");
                    done.then_some(())
                };
                block_until("the rewritten log", Duration::from_secs(60), rewritten).unwrap();
                wire.line("SET after-the-rewrite 1");
                wire.line("DEL key:0:");
            } else {
                assert_eq!(wire.line("SAVE"), Reply::OK);
            }
            let expected = everything(&mut wire);
            assert!(!expected.is_empty());
            drop((wire, server));
            let open = || {
                Engine::builder()
                    .append_only(dir.path(), redstart_engine::Fsync::No)
                    .build()
                    .unwrap()
            };
            let engine = open();
            assert_same(&everything(&mut engine.session()), &expected, &what);
            engine.session().line("SET from-the-engine 1");
            let expected = unseen(everything(&mut engine.session()));
            drop(engine);
            // What was taken over is in the log: the dump is not read again.
            let _ = fs::remove_file(dir.path().join("dump.rdb"));
            assert_same(
                &unseen(everything(&mut open().session())),
                &expected,
                &format!("{what}, again"),
            );
            // redis-check-aof knows no base of Valkey's own version.
            if kind == Kind::Redis || appendonly == "no" {
                check_aof(dir.path());
            }
            let mut server = Server::start_with(kind, dir.path(), &["--appendonly", "yes"]);
            assert_same(
                &unseen(everything(&mut server.connect())),
                &expected,
                &format!("{what}, back"),
            );
        }
    }
}

#[test]
fn a_dump_beside_a_log_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        Engine::builder()
            .append_only(dir.path(), redstart_engine::Fsync::No)
            .build()
            .unwrap()
    };
    let engine = open();
    let mut session = engine.session();
    session.line("SET a 1");
    assert_eq!(session.line("SAVE"), Reply::OK);
    session.line("FLUSHALL");
    session.line("BGREWRITEAOF");
    let base = dir.path().join("appendonlydir/appendonly.aof.1.base.aof");
    block_until("the base", Duration::from_secs(60), || {
        base.exists().then_some(())
    })
    .unwrap();
    drop((session, engine));
    assert_eq!(open().session().line("DBSIZE"), Reply::Int(0));
}

#[test]
fn a_log_whose_base_was_emptied_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(Kind::Redis, dir.path(), &["--appendonly", "yes"]);
    let mut wire = server.connect();
    assert_eq!(wire.line("SET a 1"), Reply::OK);
    drop((wire, server));
    let base = fs::read_dir(dir.path().join("appendonlydir")).unwrap();
    let mut base = base.map(|entry| entry.unwrap().path());
    let base = base.find(|path| path.extension().is_some_and(|end| end == "rdb"));
    let base = base.expect("a base in RDB format");
    let whole = fs::read(&base).unwrap();
    let open = || {
        let log = redstart_engine::Fsync::No;
        Engine::builder().append_only(dir.path(), log).build()
    };
    fs::write(&base, b"").unwrap();
    let error = open().map(drop).unwrap_err().to_string();
    assert!(error.contains("is empty"), "{error}");
    // Nothing was changed by the attempt.
    fs::write(&base, whole).unwrap();
    assert_eq!(open().unwrap().session().line("GET a"), Reply::bulk("1"));
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn a_log_in_one_file_as_redis_6_has_it_is_taken_over() {
    let stale = Engine::new();
    stale.session().line("SET stale 1");
    let mut dump = Vec::new();
    stale.save_rdb(&mut dump, |_| ()).unwrap();
    let preamble = Engine::new();
    preamble.session().line("SET in-the-preamble 1");
    let mut base = Vec::new();
    preamble.save_rdb(&mut base, |_| ()).unwrap();
    let commands = b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n";
    let torn = &b"*3\r\n$3\r\nSET\r\n$1\r\nb"[..];
    for (keys, log) in [
        (1, commands.to_vec()),
        (1, [&commands[..], torn].concat()),
        (2, [&base[..], commands].concat()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("appendonly.aof"), &log).unwrap();
        fs::write(dir.path().join("dump.rdb"), &dump).unwrap();
        let open = || {
            Engine::builder()
                .append_only(dir.path(), redstart_engine::Fsync::No)
                .build()
                .unwrap()
        };
        for more in 0..3 {
            let engine = open();
            let mut session = engine.session();
            assert_eq!(session.line("DBSIZE"), Reply::Int(keys + more));
            assert_eq!(session.line("GET a"), Reply::bulk("1"));
            assert_eq!(session.line("GET stale"), Reply::Nil);
            session.line(&format!("SET more{more} 1"));
        }
        // What was taken over is in the log.
        fs::remove_file(dir.path().join("appendonly.aof")).unwrap();
        assert_eq!(open().session().line("DBSIZE"), Reply::Int(keys + 3));
    }
}

#[test]
fn data_that_the_log_cannot_take_over_is_not_written_to() {
    let (dir, aside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let other = Engine::new();
    other.session().line("SET a new");
    let mut file = Vec::new();
    other.save_rdb(&mut file, |_| ()).unwrap();
    let open = || {
        let builder = Engine::builder().append_only(dir.path(), redstart_engine::Fsync::Always);
        builder.build().unwrap()
    };
    let log = dir.path().join("appendonlydir");
    let kept = aside.path().join("appendonlydir");
    {
        let engine = open();
        let mut session = engine.session();
        assert_eq!(session.line("SET a old"), Reply::OK);
        // No file can be made any more, while the one that is open can be written.
        fs::rename(&log, &kept).unwrap();
        fs::write(&log, "in the way").unwrap();
        assert!(engine.load_rdb(&file[..], |_| ()).is_err());
        // An acknowledged write would follow the old data at the next start.
        assert!(session.line("SET b 1").is_error());
        assert!(session.line("INCR c").is_error());
    }
    fs::remove_file(&log).unwrap();
    fs::rename(&kept, &log).unwrap();
    let engine = open();
    assert_eq!(engine.session().line("MGET a b"), {
        Reply::Array(vec![Reply::bulk("old"), Reply::Nil])
    });
}
