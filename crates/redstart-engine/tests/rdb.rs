//! RDB: what one of the engine, Redis and Valkey dumps or saves, the others restore and load, and
//! damage is an error.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use redstart_engine::{Clock, Engine, Master, Reply, Session};
use redstart_testkit::{Kind, block_until, find, scale};

#[path = "rdb/contents.rs"]
mod contents;
#[path = "listener/running.rs"]
mod listener;
#[path = "rdb/old.rs"]
mod old;
#[path = "rdb/random.rs"]
mod random;
#[path = "differential/wire.rs"]
mod wire;

use contents::{Client, assert_same, bulk, command, describe, everything, unseen, words};
use random::{Chance, KINDS, value};
use wire::Wire;

/// A real server on a folder, whose `dump.rdb` it loads; ended with the value.
struct Server {
    process: Child,
    dir: std::path::PathBuf,
}

impl Server {
    fn start(kind: Kind, dir: &Path) -> Server {
        Server::start_with(kind, dir, &["--appendonly", "no"])
    }

    fn start_with(kind: Kind, dir: &Path, more: &[&str]) -> Server {
        let program = find::server(kind).expect("a server, see `cargo xtask servers`");
        let process = Command::new(program)
            .args(["--port", "0", "--save", "", "--unixsocket", "s.sock"])
            .args(more)
            .arg("--dir")
            .arg(dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Server {
            process,
            dir: dir.into(),
        }
    }

    fn connect(&mut self) -> Wire {
        self.connect_with(|_| true)
    }

    fn connect_with(&mut self, log_in: impl Fn(&mut Wire) -> bool) -> Wire {
        let socket = self.dir.join("s.sock");
        let answers = || {
            if let Some(status) = self.process.try_wait().unwrap() {
                panic!("the server ended: {status}");
            }
            let mut wire = Wire::new(UnixStream::connect(&socket).ok()?);
            (log_in(&mut wire) && wire.line("PING") == Reply::Status("PONG".into())).then_some(wire)
        };
        block_until("the server to answer", Duration::from_secs(60), answers).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A seed that is new each time, and is told when a test fails.
fn seed() -> u64 {
    let seed = match std::env::var("REDSTART_RDB_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64,
    };
    println!("REDSTART_RDB_SEED={seed}");
    seed
}

fn run(client: &mut impl Client, commands: &[Vec<Bytes>]) {
    for args in commands {
        let reply = client.ask(args);
        assert!(!reply.is_error(), "{args:?}: {reply:?}");
    }
}

fn dump(client: &mut impl Client, key: &Bytes) -> Bytes {
    bulk(client.ask(&command("DUMP", key, &[])))
}

fn restore(client: &mut impl Client, key: &Bytes, payload: &[u8]) -> Reply {
    let mut args = command("RESTORE", key, &["0"]);
    args.push(Bytes::copy_from_slice(payload));
    args.push(Bytes::from_static(b"REPLACE"));
    client.ask(&args)
}

/// Makes a value on one, dumps it there and restores it on the other: both must show the same.
fn carry(from: &mut impl Client, to: &mut impl Client, key: &Bytes, what: &str) {
    let payload = dump(from, key);
    assert_eq!(restore(to, key, &payload), Reply::OK, "{what}");
    assert_eq!(describe(to, key), describe(from, key), "{what}");
}

#[test]
fn what_one_dumps_the_others_restore() {
    let rounds = scale(5, "dumps") * KINDS;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut servers = [
        Server::start(Kind::Redis, dirs[0].path()),
        Server::start(Kind::Valkey, dirs[1].path()),
    ];
    let [mut redis, mut valkey] = [servers[0].connect(), servers[1].connect()];
    let engine = Engine::new();
    let mut session = engine.session();
    let mut chance = Chance::new(seed());
    let (mut exact, mut equal) = (0, 0);
    for round in 0..rounds {
        let key = Bytes::from(format!("key:{}", chance.below(1 << 40)));
        let recipe = value(&mut chance, round, &key);
        let what = format!("round {round}");
        for client in [&mut redis as &mut dyn Client, &mut valkey, &mut session] {
            for args in &recipe.commands {
                let reply = client.ask(args);
                assert!(!reply.is_error(), "{what}: {args:?}: {reply:?}");
            }
        }
        if recipe.exact {
            exact += 1;
            let (ours, theirs) = (dump(&mut session, &key), dump(&mut redis, &key));
            equal += u64::from(ours == theirs);
            assert_eq!(
                ours.escape_ascii().to_string(),
                theirs.escape_ascii().to_string(),
                "{what}"
            );
        }
        // Each direction with the value that the origin made itself.
        for (kind, wire) in [("redis", &mut redis), ("valkey", &mut valkey)] {
            let copy = engine.clone();
            let mut other = copy.session();
            other.line("SELECT 1");
            carry(wire, &mut other, &key, &format!("{what}: {kind} to engine"));
            carry(
                &mut other,
                wire,
                &key,
                &format!("{what}: {kind} to engine and back"),
            );
            carry(
                &mut session,
                wire,
                &key,
                &format!("{what}: engine to {kind}"),
            );
        }
        for client in [&mut redis as &mut dyn Client, &mut valkey, &mut session] {
            client.line("FLUSHALL");
        }
    }
    redstart_testkit::figure(format!(
        "{rounds} values, {equal} of {exact} dumps equal to Redis's byte by byte"
    ));
}

#[test]
fn encodings_of_older_servers_are_restored_alike() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut servers = [
        Server::start(Kind::Redis, dirs[0].path()),
        Server::start(Kind::Valkey, dirs[1].path()),
    ];
    let mut session = Engine::new().session();
    for wire in &mut servers.each_mut().map(|server| server.connect()) {
        for (name, version, payload) in old::payloads() {
            let key = Bytes::from_static(name.as_bytes());
            let payload = old::with_footer(payload, version);
            assert_eq!(
                restore(wire, &key, &payload),
                Reply::OK,
                "{name} on the server"
            );
            assert_eq!(restore(&mut session, &key, &payload), Reply::OK, "{name}");
            assert_eq!(describe(&mut session, &key), describe(wire, &key), "{name}");
        }
    }
}

#[test]
fn restore_answers_as_the_servers_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(Kind::Redis, dir.path());
    let mut wire = server.connect();
    let mut session = Engine::new().session();
    let key = Bytes::from_static(b"k");
    session.line("SET k value");
    let good = dump(&mut session, &key);
    let mut wrong = good.to_vec();
    wrong[2] ^= 1;
    let empty = old::with_footer(vec![2, 0], 10);
    let unknown = old::with_footer(vec![99, 0], 10);
    let newer = old::with_footer(vec![0, 0], 79);
    let cases: [(&[u8], &str); 21] = [
        (&good, "0"),
        (&good, "0 REPLACE"),
        (&good, "-1 REPLACE"),
        (&good, "x REPLACE"),
        (&good, "0 NOSUCH"),
        (&good, "0 IDLETIME"),
        (&good, "0 REPLACE IDLETIME -1"),
        (&good, "0 REPLACE IDLETIME x"),
        (&good, "0 REPLACE FREQ 256"),
        (&good, "0 REPLACE FREQ 3 IDLETIME 3"),
        (&good, "0 REPLACE FREQ 3"),
        (&good, "0 REPLACE IDLETIME 1000"),
        (&good, "99999999999999 REPLACE ABSTTL"),
        (&good, "5 REPLACE ABSTTL"),
        (&good, "5 ABSTTL"),
        (&wrong, "0 REPLACE"),
        (b"", "0 REPLACE"),
        (&good[..9], "0 REPLACE"),
        (&empty, "0 REPLACE"),
        (&unknown, "0 REPLACE"),
        (&newer, "0 REPLACE"),
    ];
    wire.line("SET k value");
    for (payload, rest) in cases {
        let mut args = words("RESTORE k");
        let mut rest = words(rest).into_iter();
        args.extend(rest.next());
        args.push(Bytes::copy_from_slice(payload));
        args.extend(rest);
        assert_eq!(session.ask(&args), wire.ask(&args), "{args:?}");
        for line in ["PEXPIRETIME k", "GET k", "DUMP nosuch"] {
            assert_eq!(session.line(line), wire.line(line), "{args:?} {line}");
        }
        let idle = (
            session.line("OBJECT IDLETIME k"),
            wire.line("OBJECT IDLETIME k"),
        );
        match idle {
            // A second may have begun in between.
            (Reply::Int(ours), Reply::Int(theirs)) => {
                assert!(ours.abs_diff(theirs) <= 1, "{args:?} {ours} {theirs}");
            }
            (ours, theirs) => assert_eq!(ours, theirs, "{args:?}"),
        }
    }
}

/// Fills databases with values of all kinds, some of which expire some day.
fn fill(client: &mut impl Client, chance: &mut Chance, count: u64) {
    for n in 0..count {
        if n % 10 == 0 {
            client.line(&format!("SELECT {}", chance.below(16)));
        }
        let mut key = format!("key:{n}:").into_bytes();
        key.extend((0..chance.below(4)).map(|_| chance.next() as u8));
        let key = Bytes::from(key);
        run(client, &value(chance, n, &key).commands);
        if chance.below(3) == 0 {
            let seconds = (1000 + chance.below(1 << 30)).to_string();
            client.ask(&command("EXPIRE", &key, &[&seconds]));
        }
    }
    client.line("SELECT 0");
}

fn check_rdb(file: &Path) {
    let check = Command::new("redis-check-rdb").arg(file).output().unwrap();
    let text = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success(), "{text}");
    assert!(text.contains("RDB looks OK"), "{text}");
}

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
fn a_restored_value_is_logged_with_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        Engine::builder()
            .append_only(dir.path(), redstart_engine::Fsync::No)
            .build()
            .unwrap()
    };
    let engine = open();
    let mut session = engine.session();
    session.line("SET a value");
    let payload = dump(&mut session, &Bytes::from_static(b"a"));
    for (key, ttl) in [("plain", "0"), ("volatile", "100000")] {
        let mut args = words(&format!("RESTORE {key} {ttl}"));
        args.push(payload.clone());
        assert_eq!(session.ask(&args), Reply::OK);
    }
    let expected = everything(&mut session);
    drop((session, engine));
    assert_same(
        &everything(&mut open().session()),
        &expected,
        "after a restart",
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
fn damaged_logs_are_refused_or_cut() {
    let rounds = scale(40, "damaged logs");
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(Kind::Redis, dir.path(), &["--appendonly", "yes"]);
    let mut wire = server.connect();
    let mut chance = Chance::new(seed());
    fill(&mut wire, &mut chance, 12);
    drop((wire, server));
    let folder = dir.path().join("appendonlydir");
    let files: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("appendonly.aof.manifest"))
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    let before = peak();
    let (mut refused, mut cut) = (0, 0);
    for round in 0..rounds {
        let (path, whole) = &files[chance.below(files.len() as u64) as usize];
        let mut data = whole.clone();
        damage(&mut chance, &mut data);
        fs::write(path, &data).unwrap();
        let engine = Engine::builder()
            .append_only(dir.path(), redstart_engine::Fsync::No)
            .build();
        let is_base = path.extension().is_some_and(|end| end == "rdb");
        match engine {
            Err(_) => refused += 1,
            Ok(engine) => {
                assert!(
                    !is_base || data == *whole,
                    "round {round}: a damaged base is loaded"
                );
                cut += 1;
                everything(&mut engine.session());
            }
        }
        for (path, whole) in &files {
            fs::write(path, whole).unwrap();
        }
    }
    assert!(peak() < before + (512 << 20), "{} bytes", peak());
    redstart_testkit::figure(format!(
        "{rounds} damaged logs: {refused} refused, {cut} cut or other data"
    ));
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The same payload with some bytes in the place of others.
fn with_bytes(payload: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = payload
        .windows(from.len())
        .position(|part| part == from)
        .expect("the bytes");
    let changed = [&payload[..at], to, &payload[at + from.len()..]].concat();
    old::with_new_checksum(changed)
}

#[test]
fn a_bloom_filter_that_would_look_at_billions_of_bits_is_refused() {
    let mut session = Engine::new().session();
    session.line("BF.RESERVE k 0.01 100");
    let key = Bytes::from_static(b"k");
    let good = dump(&mut session, &key);
    let bits = |value: f64| value.to_le_bytes();
    let usual = bits((0.005f64.ln() / 0.480_453_013_918_201).abs());
    let hashes = [&[2, 8, 4][..], &usual].concat();
    for (value, count) in [
        (1e10, &[0x80, 0xFF, 0xFF, 0xFF, 0xFF][..]),
        (f64::NAN, &[0]),
    ] {
        let bad = [&[2][..], count, &[4], &bits(value)].concat();
        let reply = restore(&mut session, &key, &with_bytes(&good, &hashes, &bad));
        assert!(old::is_refused(&reply), "{value}: {reply:?}");
    }
    assert_eq!(restore(&mut session, &key, &good), Reply::OK);
}

#[test]
fn two_nodes_of_a_stream_with_one_id_are_refused() {
    let node = |ms: u8| {
        let items: [&[u8]; 11] = [
            &[1],
            &[0],
            &[1],
            &[0x81, b'a'],
            &[0],
            &[2],
            &[ms],
            &[0],
            &[0x81, b'b'],
            &[4],
            &[],
        ];
        let body: Vec<u8> = items
            .iter()
            .filter(|item| !item.is_empty())
            .flat_map(|item| [*item, &[item.len() as u8]].concat())
            .collect();
        let len = body.len() as u8 + 7;
        let pack = [&[len, 0, 0, 0, 10, 0][..], &body, &[0xFF]].concat();
        [&[len][..], &pack].concat()
    };
    let id = |ms: u8| [&[16, 0, 0, 0, 0, 0, 0, 0, ms][..], &[0; 8]].concat();
    let payload = |second: u8, at: u8| {
        let end = [2, 2, 0, 1, 0, 0, 0, 2, 0];
        let all = [&[19, 2][..], &id(1), &node(0), &id(second), &node(at), &end].concat();
        old::with_footer(all, 10)
    };
    let mut session = Engine::new().session();
    let key = Bytes::from_static(b"k");
    assert_eq!(restore(&mut session, &key, &payload(2, 0)), Reply::OK);
    assert_eq!(session.line("XLEN k"), Reply::Int(2));
    assert!(old::is_refused(&restore(
        &mut session,
        &key,
        &payload(1, 1)
    )));
}

#[test]
fn times_of_a_restored_stream_can_be_reckoned_with() {
    let engine = Engine::builder()
        .clock(Clock::manual_at(1_700_000_000_000_000))
        .build()
        .unwrap();
    let mut session = engine.session();
    for line in [
        "XADD k 1-1 f v",
        "XGROUP CREATE k g 0",
        "XREADGROUP GROUP g c STREAMS k >",
    ] {
        assert!(!session.line(line).is_error(), "{line}");
    }
    let key = Bytes::from_static(b"k");
    let now = match session.line("TIME") {
        Reply::Array(parts) => String::from_utf8(bulk(parts[0].clone()).to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    let now = (now.parse::<i64>().unwrap() * 1000).to_le_bytes();
    let payload = dump(&mut session, &key);
    let once = with_bytes(&payload, &now, &i64::MIN.to_le_bytes());
    let twice = with_bytes(&once, &now, &i64::MIN.to_le_bytes());
    assert_eq!(restore(&mut session, &key, &twice), Reply::OK);
    for line in [
        "XPENDING k g - + 10",
        "XPENDING k g IDLE 5 - + 10",
        "XINFO STREAM k FULL",
        "XINFO CONSUMERS k g",
        "XAUTOCLAIM k g d 0 0",
        "XCLAIM k g e 0 1-1",
    ] {
        assert!(!session.line(line).is_error(), "{line}");
    }
}

#[test]
fn code_of_a_file_that_never_ends_is_refused() {
    let code = b"#!lua name=x\nwhile true do end";
    let mut file = [&b"REDIS0010\xf5"[..], &[code.len() as u8], code, &[0xFF]].concat();
    let checksum = old::crc64(&file);
    file.extend(checksum.to_le_bytes());
    let engine = Engine::new();
    engine.session().line("SET a 1");
    assert!(engine.load_rdb(&file[..], |_| ()).is_err());
    assert_eq!(engine.session().line("GET a"), Reply::bulk("1"));
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
fn a_field_that_was_kept_survives_the_deadline_it_was_restored_with() {
    let dir = tempfile::tempdir().unwrap();
    let open = |seconds: i64| {
        Engine::builder()
            .compat(redstart_engine::Compat::Redis74)
            .clock(Clock::manual_at(seconds * 1_000_000))
            .append_only(dir.path(), redstart_engine::Fsync::No)
            .build()
            .unwrap()
    };
    let engine = open(1_700_000_000);
    let mut session = engine.session();
    session.line("HSET h f v g w");
    assert!(!session.line("HPEXPIRE h 10000 FIELDS 1 f").is_error());
    let key = Bytes::from_static(b"h");
    let payload = dump(&mut session, &key);
    session.line("DEL h");
    assert_eq!(restore(&mut session, &key, &payload), Reply::OK);
    assert!(!session.line("HPERSIST h FIELDS 1 f").is_error());
    drop((session, engine));
    assert_eq!(
        open(1_700_100_000).session().line("HGET h f"),
        Reply::bulk("v")
    );
}

/// The most memory that this process ever had, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

/// One to three bits, or the length.
fn damage(chance: &mut Chance, data: &mut Vec<u8>) {
    if chance.below(4) == 0 {
        data.truncate(chance.below(data.len() as u64) as usize);
        return;
    }
    for _ in 0..=chance.below(3) {
        let at = chance.below(data.len() as u64) as usize;
        data[at] ^= 1 << chance.below(8);
    }
}

#[test]
fn damaged_payloads_are_refused() {
    let rounds = scale(4000, "damaged payloads");
    let engine = Engine::builder().clock(Clock::manual()).build().unwrap();
    let mut session = engine.session();
    let mut chance = Chance::new(seed());
    let key = Bytes::from_static(b"k");
    let mut samples: Vec<Vec<u8>> = Vec::new();
    for kind in 0..6 * KINDS {
        session.line("DEL k");
        let recipe = value(&mut chance, kind, &key);
        run(
            &mut session,
            &recipe.commands[..recipe.commands.len().min(120)],
        );
        samples.push(dump(&mut session, &key).to_vec());
    }
    // Large ones only cost time.
    samples.retain(|sample| sample.len() < 20_000);
    let old = old::payloads().into_iter();
    samples.extend(old.map(|(_, version, payload)| old::with_footer(payload, version)));
    session.line("FLUSHALL");
    session.line("BF.ADD k item");
    samples.push(dump(&mut session, &key).to_vec());
    // The most that a value of these sizes can honestly need, many times over.
    let (before, allowed) = (peak(), 512 << 20);
    let (mut refused, mut taken) = (0, 0);
    for round in 0..rounds {
        let sample = &samples[chance.below(samples.len() as u64) as usize];
        let mut data = sample.clone();
        damage(&mut chance, &mut data);
        if data == *sample {
            continue;
        }
        let reply = restore(&mut session, &key, &data);
        assert!(old::is_refused(&reply), "round {round}: {reply:?}");
        // With a checksum that fits, damage may be another value; nothing worse.
        if data.len() < 10 {
            continue;
        }
        let reply = restore(&mut session, &key, &old::with_new_checksum(data));
        if reply == Reply::OK {
            taken += 1;
            describe(&mut session, &key);
            let payload = dump(&mut session, &key);
            assert_eq!(
                restore(&mut session, &key, &payload),
                Reply::OK,
                "round {round}"
            );
        } else {
            refused += 1;
            assert!(old::is_refused(&reply), "round {round}: {reply:?}");
        }
    }
    assert!(peak() < before + allowed, "{} bytes", peak());
    assert!(
        refused > rounds / 10 && taken > 0,
        "{refused} refused, {taken} taken"
    );
    redstart_testkit::figure(format!(
        "{rounds} damaged payloads refused by their checksum; with a new one {refused} refused, {taken} other values"
    ));
}

#[test]
fn damaged_files_are_refused() {
    let rounds = scale(80, "damaged files");
    let engine = Engine::new();
    let mut session = engine.session();
    let mut chance = Chance::new(seed());
    for n in 0..3 * KINDS {
        let key = Bytes::from(format!("k{n}"));
        let recipe = value(&mut chance, n, &key);
        run(
            &mut session,
            &recipe.commands[..recipe.commands.len().min(40)],
        );
    }
    let mut file = Vec::new();
    engine.save_rdb(&mut file, |_| ()).unwrap();
    let (before, allowed) = (peak(), 512 << 20);
    let (checked, unchecked) = (Engine::new(), Engine::new());
    let mut checked_session = checked.session();
    checked_session.line("SET before 1");
    for round in 0..rounds {
        let mut data = file.clone();
        damage(&mut chance, &mut data);
        if data == file {
            continue;
        }
        assert!(
            checked.load_rdb(&data[..], |_| ()).is_err(),
            "round {round}"
        );
        assert_eq!(
            checked_session.line("GET before"),
            Reply::bulk("1"),
            "nothing changes"
        );
        // Without a checksum the contents themselves are all there is to go by.
        if let Some(end) = data.len().checked_sub(8) {
            data[end..].fill(0);
            if unchecked.load_rdb(&data[..], |_| ()).is_ok() {
                everything(&mut unchecked.session());
            }
        }
    }
    assert!(peak() < before + allowed, "{} bytes", peak());
    redstart_testkit::figure(format!("{rounds} damaged files refused"));
}

/// Rewrites the log and waits until that was done.
fn rewrite_log(session: &mut Session) {
    let info = |session: &mut Session, name: &str| {
        let text = String::from_utf8(bulk(session.line("INFO persistence")).to_vec()).unwrap();
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap().to_owned()
    };
    let before = info(session, "aof_rewrites");
    session.line("BGREWRITEAOF");
    let done = || {
        (info(session, "aof_rewrites") != before && info(session, "aof_rewrite_in_progress") == "0")
            .then(|| info(session, "aof_last_bgrewrite_status"))
    };
    let status = block_until("the rewritten log", Duration::from_secs(60), done).unwrap();
    assert_eq!(status, "ok");
}

#[test]
fn fields_that_had_expired_when_a_hash_was_restored_do_not_come_back() {
    const NOW: i64 = 1_700_000_000_000;
    // Values of two fields, of which the first has a deadline.
    let pair = |name: u8, value: u8| [1, name, 1, value];
    let valkey = |deadline: i64| {
        let none = (-1i64).to_le_bytes();
        let first = [&pair(b'f', b'v')[..], &deadline.to_le_bytes()].concat();
        let second = [&pair(b'g', b'w')[..], &none].concat();
        old::with_footer([&[22, 2][..], &first, &second].concat(), 80)
    };
    let redis = |deadline: i64| {
        let first = [&[1][..], &pair(b'f', b'v')].concat();
        let second = [&[0][..], &pair(b'g', b'w')].concat();
        let all = [&[24][..], &deadline.to_le_bytes(), &[2], &first, &second].concat();
        old::with_footer(all, 12)
    };
    let payloads = [
        ("long ago", valkey(NOW - 5000)),
        ("0", valkey(0)),
        ("negative", redis(-5)),
        ("long ago, from Redis", redis(NOW - 5000)),
    ];
    for (what, payload) in payloads {
        for ttl in ["0", "1000000"] {
            let dir = tempfile::tempdir().unwrap();
            let open = || {
                Engine::builder()
                    .compat(redstart_engine::Compat::Redis74)
                    .clock(Clock::manual_at(NOW * 1000))
                    .append_only(dir.path(), redstart_engine::Fsync::No)
                    .build()
                    .unwrap()
            };
            let engine = open();
            let mut session = engine.session();
            for key in ["set", "emptied", "left"] {
                let mut args = words(&format!("RESTORE {key} {ttl}"));
                args.push(payload.clone().into());
                assert_eq!(session.ask(&args), Reply::OK, "{what}");
                assert_eq!(session.line(&format!("HGET {key} f")), Reply::Nil, "{what}");
            }
            assert_eq!(session.line("HSETNX set f new"), Reply::Int(1));
            assert_eq!(session.line("HDEL emptied g"), Reply::Int(1));
            assert_eq!(session.line("LPUSH emptied x"), Reply::Int(1));
            let expected = everything(&mut session);
            drop((session, engine));
            let engine = open();
            let mut session = engine.session();
            assert_same(&everything(&mut session), &expected, what);
            for _ in 0..2 {
                rewrite_log(&mut session);
                assert_same(&everything(&mut session), &expected, what);
            }
            drop((session, engine));
            let what = format!("{what}, rewritten");
            assert_same(&everything(&mut open().session()), &expected, &what);
        }
    }
}

#[test]
fn a_restored_string_that_is_too_long_by_now_is_loaded_and_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let open = |longest: &str| {
        let mut settings = redstart_engine::Settings::new();
        settings.set("proto-max-bulk-len", longest).unwrap();
        Engine::builder()
            .settings(settings)
            .append_only(dir.path(), redstart_engine::Fsync::No)
            .build()
            .unwrap()
    };
    let mut donor = Engine::new().session();
    let long = "x".repeat(2 << 20);
    donor.line(&format!("SET k {long}"));
    let payload = dump(&mut donor, &Bytes::from_static(b"k"));
    let engine = open("1mb");
    let mut session = engine.session();
    let key = Bytes::from_static(b"k");
    assert!(old::is_refused(&restore(&mut session, &key, &payload)));
    assert_eq!(session.line("CONFIG SET proto-max-bulk-len 4mb"), Reply::OK);
    assert_eq!(restore(&mut session, &key, &payload), Reply::OK);
    drop((session, engine));
    let engine = open("1mb");
    let mut session = engine.session();
    assert_eq!(session.line("STRLEN k"), Reply::Int(2 << 20));
    rewrite_log(&mut session);
    assert_eq!(session.line("STRLEN k"), Reply::Int(2 << 20));
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
