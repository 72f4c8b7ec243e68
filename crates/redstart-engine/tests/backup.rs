//! Backups of a running engine: each is the data of one moment, here and in the real servers.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use redstart_engine::{
    Engine, Fsync, Reply, Session,
    server::{Server, ServerConfig},
};
use redstart_testkit::{Kind, block_until, scale};

#[path = "differential/wire.rs"]
mod wire;

use wire::Wire;

const WRITERS: usize = 4;

fn open(dir: &Path, fsync: Fsync) -> Engine {
    Engine::builder().append_only(dir, fsync).build().unwrap()
}

fn ask(session: &mut Session, words: &[&str]) -> Reply {
    let args: Vec<Bytes> = words
        .iter()
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    session.execute(&args).into_reply().unwrap()
}

fn number(reply: Reply) -> u64 {
    match reply {
        Reply::Bulk(text) => String::from_utf8_lossy(&text).parse().unwrap(),
        Reply::Nil => 0,
        Reply::Int(number) => number as u64,
        other => panic!("{other:?}"),
    }
}

fn text(reply: Reply) -> String {
    match reply {
        Reply::Status(text) => text.into_owned(),
        other => panic!("{other:?}"),
    }
}

/// Writes until told to stop. `first` is raised before `second` by every writer, in commands of
/// their own; `all` is the list of the numbers that `seq` had, made with it by one script.
fn write(mut session: Session, writer: usize, stop: &AtomicBool, acknowledged: &AtomicU64) {
    let own = format!("own:{writer}");
    let script = "local n = redis.call('INCR', KEYS[1]) redis.call('RPUSH', KEYS[2], n) return n";
    while !stop.load(Ordering::SeqCst) {
        ask(&mut session, &["INCR", "first"]);
        ask(&mut session, &["EVAL", script, "2", "seq", "all"]);
        ask(&mut session, &["INCR", "second"]);
        let n = number(ask(&mut session, &["INCR", &own]));
        acknowledged.store(n, Ordering::SeqCst);
    }
}

/// Checks that what a folder holds is the data of one moment at which at least `least` was written.
fn is_one_moment(session: &mut Session, least: &[u64]) {
    let mut get = |key: &str| number(ask(session, &["GET", key]));
    let (first, second, seq) = (get("first"), get("second"), get("seq"));
    for (writer, least) in least.iter().enumerate() {
        let own = get(&format!("own:{writer}"));
        assert!(own >= *least, "writer {writer}: {own} of {least}");
    }
    assert!(
        second <= first && first <= second + WRITERS as u64,
        "{first} {second}"
    );
    assert!(second <= seq && seq <= first, "{first} {seq} {second}");
    match ask(session, &["LRANGE", "all", "0", "-1"]) {
        Reply::Array(items) => {
            let items: Vec<u64> = items.into_iter().map(number).collect();
            assert_eq!(items, (1..=seq).collect::<Vec<u64>>());
        }
        other => panic!("{other:?}"),
    }
}

/// The digest of what a real server makes of a folder.
fn digest_in_server(kind: Kind, dir: &Path) -> String {
    struct Ended(Child);
    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let sockets = tempfile::tempdir().unwrap();
    let socket = sockets.path().join("s");
    let process = Command::new(redstart_testkit::find::server(kind).unwrap())
        .args(["--port", "0", "--save", "", "--appendonly", "yes"])
        .args(["--enable-debug-command", "yes", "--unixsocket"])
        .arg(&socket)
        .arg("--dir")
        .arg(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _ended = Ended(process);
    let digest = || {
        let mut wire = Wire::new(UnixStream::connect(&socket).ok()?);
        // An error while it is loading.
        if wire.call(&["DBSIZE"].map(Bytes::from)).is_error() {
            return None;
        }
        Some(text(wire.call(&["DEBUG", "DIGEST"].map(Bytes::from))))
    };
    block_until("the server to load", Duration::from_secs(60), digest).unwrap()
}

#[test]
fn backups_under_load_are_each_of_one_moment_and_the_servers_load_them() {
    let rounds = scale(4, "backups");
    for fsync in [Fsync::Always, Fsync::EverySec] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(&dir.path().join("data"), fsync);
        // A base that is more than an instant's work.
        let mut session = engine.session();
        for n in 0..2000 {
            ask(
                &mut session,
                &["SET", &format!("filler:{n}"), &"x".repeat(500)],
            );
        }
        let stop = Arc::new(AtomicBool::new(false));
        let counts: Vec<Arc<AtomicU64>> = (0..WRITERS).map(|_| Arc::default()).collect();
        let writers: Vec<_> = counts
            .iter()
            .enumerate()
            .map(|(writer, count)| {
                let (session, stop, count) = (engine.session(), stop.clone(), count.clone());
                std::thread::spawn(move || write(session, writer, &stop, &count))
            })
            .collect();
        let written = || -> Vec<u64> {
            let load = |count: &Arc<AtomicU64>| count.load(Ordering::SeqCst);
            counts.iter().map(load).collect()
        };
        for round in 0..rounds {
            // Others come meanwhile, and rewrites remove the files that are being copied.
            let before: u64 = written().iter().sum();
            let on = || (written().iter().sum::<u64>() > before + 20).then_some(());
            block_until("the writers to go on", Duration::from_secs(60), on).unwrap();
            if round % 2 == 1 {
                ask(&mut session, &["BGREWRITEAOF"]);
            }
            let least = written();
            let target = dir.path().join(format!("backup-{round}"));
            let backup = engine.backup(&target).unwrap();
            let copied: u64 = fs::read_dir(target.join("appendonlydir"))
                .unwrap()
                .map(|entry| entry.unwrap())
                .filter(|entry| !entry.file_name().to_string_lossy().ends_with("manifest"))
                .map(|entry| entry.metadata().unwrap().len())
                .sum();
            assert_eq!(backup.bytes, copied);
            let restored = open(&target, Fsync::No);
            let mut session = restored.session();
            is_one_moment(&mut session, &least);
            let digest = text(ask(&mut session, &["DEBUG", "DIGEST"]));
            drop((session, restored));
            for kind in [Kind::Redis, Kind::Valkey] {
                assert_eq!(digest_in_server(kind, &target), digest, "{kind:?}");
            }
        }
        stop.store(true, Ordering::SeqCst);
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        let names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with('.'))
            .collect();
        assert!(names.is_empty(), "{names:?}");
    }
}

#[test]
fn a_backup_that_cannot_be_made_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    assert!(Engine::new().backup(path("copy")).is_err());
    let engine = open(&path("data"), Fsync::No);
    fs::create_dir(path("used")).unwrap();
    fs::write(path("used/file"), "mine").unwrap();
    assert!(engine.backup(path("used")).is_err());
    assert!(engine.backup(path("data")).is_err());
    assert_eq!(fs::read(path("used/file")).unwrap(), b"mine");
    // One that was interrupted is not taken for a backup, nor silently replaced.
    fs::create_dir(path(".half.partial")).unwrap();
    let error = engine.backup(path("half")).unwrap_err().to_string();
    assert!(error.contains(".half.partial"), "{error}");
    fs::create_dir(path("empty")).unwrap();
    assert!(engine.backup(path("empty")).is_ok());
    assert!(!path("copy").exists() && !path("half").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_on_the_wire_waits_for_its_backup_and_others_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("data"), Fsync::EverySec);
    let socket = dir.path().join("engine.sock");
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let config = ServerConfig::new().listen(any).unix(&socket);
    let server = Server::bind(engine.clone(), config).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async move { drop(stopped.await) }));
    let target = dir.path().join("copy");
    let talk = tokio::task::spawn_blocking(move || {
        let mut wire = Wire::new(UnixStream::connect(&socket).unwrap());
        let mut call = |line: &str| {
            wire.call(
                &line
                    .split(' ')
                    .map(|w| Bytes::from(w.to_owned()))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(call("SET k v"), Reply::Status("OK".into()));
        for bad in [
            "REDSTART BACKUP relative",
            "REDSTART NOSUCH",
            "REDSTART BACKUP",
        ] {
            assert!(call(bad).is_error(), "{bad}");
        }
        let backup = format!("REDSTART BACKUP {}", target.display());
        match call(&backup) {
            Reply::Array(items) => assert_eq!(items[0], Reply::Int(1), "{items:?}"),
            other => panic!("{other:?}"),
        }
        assert!(call(&backup).is_error());
        // Inside a transaction nothing waits.
        call("MULTI");
        assert!(call("REDSTART BACKUP /tmp/x").is_error());
        call("DISCARD");
        target
    });
    let target = talk.await.unwrap();
    drop(stop);
    running.await.unwrap();
    let mut session = open(&target, Fsync::No).session();
    assert_eq!(ask(&mut session, &["GET", "k"]), Reply::Bulk("v".into()));
}
