//! A disk that fails, and how many syncs writes cost.

use std::{
    fs,
    future::Future as _,
    io,
    path::Path,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicUsize},
    },
    task::Poll,
};

use bytes::Bytes;

use super::{
    file::fault,
    folder::OsFolder,
    open::{FOLDER, open_in},
    *,
};
use crate::{
    Engine, Outcome, Reply, Session,
    client::Client,
    context::{Ctx, Origin},
    error::NOT_KEPT,
    feed, registry,
    reply::Protocol,
};

/// Failures are asked for by static switches: one such test at a time.
pub(super) static ALONE: Mutex<()> = Mutex::new(());

pub(super) fn open(dir: &Path, fsync: Fsync) -> Engine {
    Engine::builder().append_only(dir, fsync).build().unwrap()
}

/// A folder whose engine was dropped is free when the log's thread has ended, too.
fn open_when_free(dir: &Path, fsync: Fsync) -> Engine {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match Engine::builder().append_only(dir, fsync).build() {
            Err(EngineError::Io(error))
                if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
            {
                std::thread::yield_now();
            }
            opened => return opened.unwrap(),
        }
    }
}

pub(super) fn words(line: &str) -> Vec<Bytes> {
    line.split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect()
}

pub(super) fn ask(session: &mut Session, line: &str) -> Reply {
    match session.execute(&words(line)) {
        Outcome::Reply(reply) => reply,
        Outcome::Blocked(_) => panic!("{line} blocks"),
    }
}

fn eval(session: &mut Session, script: &str) -> Reply {
    let args = ["EVAL", script, "0"].map(|word| Bytes::copy_from_slice(word.as_bytes()));
    session.execute(&args).into_reply().unwrap()
}

fn is_misconf(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.contains("MISCONF"))
}

pub(super) fn log(engine: &Engine) -> Arc<Log> {
    engine.inner.log.get().unwrap()
}

fn info(session: &mut Session, field: &str) -> String {
    let text = match ask(session, "INFO persistence") {
        Reply::Bulk(text) => text,
        Reply::Verbatim { text, .. } => text,
        other => panic!("{other:?}"),
    };
    let text = String::from_utf8(text.to_vec()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.unwrap().trim_start_matches(':').trim().to_owned()
}

/// Asks until the answer is another than MISCONF.
fn ask_until_it_recovers(session: &mut Session, line: &str) -> Reply {
    for _ in 0..3000 {
        let reply = ask(session, line);
        if !is_misconf(&reply) {
            return reply;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("it did not recover");
}

#[test]
fn a_full_disk_refuses_writes_in_scripts_and_transactions_until_there_is_room() {
    let _alone = ALONE.lock();
    for fsync in [Fsync::Always, Fsync::EverySec, Fsync::No] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path(), fsync);
        let (mut session, mut queued) = (engine.session(), engine.session());
        assert_eq!(ask(&mut session, "SET kept 1"), Reply::OK);
        ask(&mut queued, "MULTI");
        ask(&mut queued, "SET queued 1");
        fault::FULL.store(true, Ordering::SeqCst);
        // The first finds out, and says that it was carried out; the others know, and are refused.
        let was_done =
            |reply: &Reply| matches!(reply, Reply::Error(text) if text.ends_with(NOT_KEPT));
        let first = ask(&mut session, "SET lost 1");
        assert!(
            is_misconf(&first) && was_done(&first),
            "{fsync:?}: {first:?}"
        );
        let second = ask(&mut session, "SET a 1");
        assert!(is_misconf(&second) && !was_done(&second), "{second:?}");
        for _ in 0..2 {
            assert!(is_misconf(&ask(&mut session, "SET a 1")));
            assert!(is_misconf(&eval(
                &mut session,
                "return redis.call('SET', 'a', 1)"
            )));
            assert!(is_misconf(&eval(&mut session, "#!lua\nreturn 1")));
        }
        let caught = "return redis.pcall('SET', 'a', 1)";
        assert!(is_misconf(&eval(&mut session, caught)));
        let aborted = ask(&mut queued, "EXEC");
        assert!(
            matches!(&aborted, Reply::Error(text) if text.starts_with("EXECABORT")),
            "{aborted:?}"
        );
        ask(&mut session, "MULTI");
        assert!(is_misconf(&ask(&mut session, "SET a 1")));
        assert!(ask(&mut session, "EXEC").is_error());
        ask(&mut session, "MULTI");
        let script = ["EVAL", "return redis.call('SET', 'a', 1)", "0"].map(Bytes::from);
        session.execute(&script);
        match ask(&mut session, "EXEC") {
            Reply::Array(replies) => assert!(is_misconf(&replies[0]), "{replies:?}"),
            other => panic!("{other:?}"),
        }
        // Reads go on, and INFO and PING tell.
        assert_eq!(ask(&mut session, "GET kept"), Reply::bulk("1"));
        assert!(is_misconf(&ask(&mut session, "PING")));
        assert_eq!(
            eval(&mut session, "return redis.call('GET', 'kept')"),
            Reply::bulk("1")
        );
        assert_eq!(info(&mut session, "aof_last_write_status"), "err");
        fault::FULL.store(false, Ordering::SeqCst);
        assert_eq!(
            ask_until_it_recovers(&mut session, "SET later 1"),
            Reply::OK
        );
        assert_eq!(info(&mut session, "aof_last_write_status"), "ok");
        // What was acknowledged is there; what was not is there or not.
        drop((session, queued, engine));
        let engine = open(dir.path(), fsync);
        let mut session = engine.session();
        for key in ["kept", "later"] {
            assert_eq!(ask(&mut session, &format!("GET {key}")), Reply::bulk("1"));
        }
        assert_eq!(ask(&mut session, "GET a"), Reply::Nil);
    }
}

#[test]
fn after_an_attempt_at_a_fresh_log_commands_have_ten_times_as_long() {
    for millis in [0, 1, 100, 500, 20_000, 600_000] {
        let took = Duration::from_millis(millis);
        let pause = pause_after(took);
        assert!(
            pause >= RETRY.max((took * 10).min(LONGEST)),
            "{took:?}: {pause:?}"
        );
        assert!(pause <= RETRY + took * 10, "{took:?}: {pause:?}");
        // The disk may have room again in a moment.
        assert!(
            (took..=took.max(LONGEST)).contains(&pause),
            "{took:?}: {pause:?}"
        );
    }
    assert_eq!(pause_after(Duration::MAX), Duration::MAX);
}

#[test]
fn a_fresh_log_is_not_tried_again_while_the_last_attempt_is_being_paid_for() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let mut session = engine.session();
    fault::NO_SYNC.store(true, Ordering::SeqCst);
    assert!(is_misconf(&ask(&mut session, "SET lost 1")));
    let mut attempts = Vec::new();
    for _ in 0..2 {
        // The file of an attempt is synced with the engine's lock held.
        fault::SLOW_SYNC.store(true, Ordering::SeqCst);
        while engine.inner.state.try_lock().is_some() {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        // A disk that needs this long until it refuses.
        std::thread::sleep(Duration::from_millis(500));
        fault::SLOW_SYNC.store(false, Ordering::SeqCst);
        drop(engine.inner.state.lock());
        attempts.push((begun, Instant::now()));
    }
    let (first, second) = (attempts[0], attempts[1]);
    let (took, pause) = (first.1 - first.0, second.0 - first.1);
    // Ten times as long, but for what this thread was late.
    assert!(pause >= took * 2, "{took:?}, and again after {pause:?}");
    fault::NO_SYNC.store(false, Ordering::SeqCst);
}

#[test]
fn with_a_full_disk_a_key_can_expire_and_be_read() {
    let _alone = ALONE.lock();
    for fsync in [Fsync::Always, Fsync::EverySec, Fsync::No] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path(), fsync);
        let mut session = engine.session();
        ask(&mut session, "SET kept 1");
        for key in ["gone", "also"] {
            ask(&mut session, &format!("SET {key} 1 PX 1"));
        }
        fault::FULL.store(true, Ordering::SeqCst);
        assert!(is_misconf(&ask(&mut session, "SET lost 1")), "{fsync:?}");
        std::thread::sleep(Duration::from_millis(5));
        // The first expires them, or a search for what is due does.
        for line in ["GET gone", "GET gone", "EXISTS also"] {
            let reply = ask(&mut session, line);
            assert!(!reply.is_error(), "{fsync:?}, {line}: {reply:?}");
        }
        engine.inner.state.lock().last_sweep = 0;
        assert_eq!(ask(&mut session, "GET kept"), Reply::bulk("1"), "{fsync:?}");
        fault::FULL.store(false, Ordering::SeqCst);
        ask_until_it_recovers(&mut session, "SET later 1");
    }
}

#[test]
fn what_is_in_the_log_is_loaded_whatever_the_limits_are_now() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::No);
    let mut session = engine.session();
    ask(&mut session, "SETRANGE range 5000 x");
    ask(&mut session, "SETBIT bit 40000 1");
    ask(&mut session, "BITFIELD field SET u8 #5000 1");
    ask(&mut session, "APPEND range tail");
    drop((session, engine));
    let folder = OsFolder::new(dir.path().join(FOLDER));
    let files = Manifest::load(&folder).unwrap().files();
    let scratch = Engine::new();
    let now = scratch.now_micros();
    let mut state = scratch.inner.state.lock();
    state.config.proto_max_bulk_len = 1024;
    let whole = (load::Tail::Whole, load::Failing::Refused);
    load::load(&folder, &files, &mut state, now, whole).unwrap();
    drop(state);
    let mut session = scratch.session();
    for (key, len) in [("range", 5005), ("bit", 5001), ("field", 5001)] {
        let reply = ask(&mut session, &format!("STRLEN {key}"));
        assert_eq!(reply, Reply::Int(len), "{key}");
    }
}

#[test]
fn a_failed_sync_is_final_until_a_fresh_log_is_written() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let mut session = engine.session();
    ask(&mut session, "SET before 1");
    let old = log(&engine).disk.lock().manifest.files();
    fault::NO_SYNC.store(true, Ordering::SeqCst);
    assert!(is_misconf(&ask(&mut session, "SET doubtful 1")));
    fault::NO_SYNC.store(false, Ordering::SeqCst);
    // A later sync of the same file would succeed, and prove nothing.
    assert!(log(&engine).sync().is_err() || log(&engine).trouble() == FINE);
    assert_eq!(
        ask_until_it_recovers(&mut session, "SET after 1"),
        Reply::OK
    );
    let new = log(&engine).disk.lock().manifest.files();
    assert!(
        old.iter().all(|file| !new.contains(file)),
        "{old:?} {new:?}"
    );
    drop((session, engine));
    let engine = open(dir.path(), Fsync::Always);
    let mut session = engine.session();
    for key in ["before", "doubtful", "after"] {
        assert_eq!(ask(&mut session, &format!("GET {key}")), Reply::bulk("1"));
    }
}

#[test]
fn a_read_of_what_is_not_on_the_disk_yet_waits_and_others_do_not() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let mut session = engine.session();
    ask(&mut session, "SET old 1");
    ask(&mut session, "SET gone 1");
    fault::SLOW_SYNC.store(true, Ordering::SeqCst);
    let writer = {
        let mut session = engine.session();
        std::thread::spawn(move || {
            let write = "redis.call('SET', 'new', 1) redis.call('DEL', 'gone')";
            eval(&mut session, write)
        })
    };
    while log(&engine).appended.load(Ordering::SeqCst) == log(&engine).synced.load(Ordering::SeqCst)
    {
        std::thread::yield_now();
    }
    assert_eq!(ask(&mut session, "GET old"), Reply::bulk("1"));
    assert_eq!(ask(&mut session, "PING"), Reply::status("PONG"));
    let told = Arc::new(AtomicBool::new(false));
    let held: Vec<_> = ["GET new", "EXISTS gone", "DBSIZE", "SETNX new 2", "SCAN 0"]
        .map(|line| {
            let (mut session, told) = (engine.session(), told.clone());
            std::thread::spawn(move || {
                let reply = ask(&mut session, line);
                assert!(!is_misconf(&reply), "{line}");
                told.store(true, Ordering::SeqCst);
            })
        })
        .into();
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(1));
        assert!(
            !told.load(Ordering::SeqCst),
            "told before it was on the disk"
        );
    }
    fault::SLOW_SYNC.store(false, Ordering::SeqCst);
    writer.join().unwrap();
    for reader in held {
        reader.join().unwrap();
    }
}

#[test]
fn writers_that_come_together_share_syncs() {
    let _alone = ALONE.lock();
    const WRITERS: usize = 50;
    const ROUNDS: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let mut lone = engine.session();
    let before = log(&engine).syncs.load(Ordering::SeqCst);
    for n in 0..10 {
        ask(&mut lone, &format!("SET lone {n}"));
    }
    assert_eq!(log(&engine).syncs.load(Ordering::SeqCst) - before, 10);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let before = log(&engine).syncs.load(Ordering::SeqCst);
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let mut session = engine.session();
            runtime.spawn(async move {
                for n in 0..ROUNDS {
                    let args = ["SET".into(), format!("{writer}:{n}"), "x".into()];
                    let reply = session.call(args.map(Bytes::from).into()).await;
                    assert_eq!(reply, Reply::OK);
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    let syncs = log(&engine).syncs.load(Ordering::SeqCst) - before;
    assert!(
        syncs as usize <= WRITERS * ROUNDS / 5,
        "{syncs} syncs for {} writes",
        WRITERS * ROUNDS
    );
}

#[test]
fn a_task_that_waits_for_the_disk_does_not_hold_up_its_worker() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    ask(&mut engine.session(), "SET old 1");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    fault::SLOW_SYNC.store(true, Ordering::SeqCst);
    let (mut writer, mut reader) = (engine.session(), engine.session());
    runtime.block_on(async {
        let write = writer.call(["SET", "new", "1"].map(Bytes::from).into());
        tokio::pin!(write);
        let polled = std::future::poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx).is_pending()));
        assert!(polled.await, "acknowledged before it was on the disk");
        let read = reader.call(["GET", "old"].map(Bytes::from).into()).await;
        assert_eq!(read, Reply::bulk("1"));
        fault::SLOW_SYNC.store(false, Ordering::SeqCst);
        assert_eq!(write.await, Reply::OK);
    });
}

#[test]
fn what_is_written_while_a_rewrite_syncs_is_synced_before_the_file_is_left() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::No);
    let mut session = engine.session();
    ask(&mut session, "SET first 1");
    let before = log(&engine).syncs.load(Ordering::SeqCst);
    let syncs = || log(&engine).syncs.load(Ordering::SeqCst) - before;
    fault::SLOW_SYNC.store(true, Ordering::SeqCst);
    let switch = {
        let log = log(&engine).clone();
        std::thread::spawn(move || log.switch_increment().map(|_| ()))
    };
    while syncs() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(ask(&mut session, "SET tail 1"), Reply::OK);
    fault::SLOW_SYNC.store(false, Ordering::SeqCst);
    switch.join().unwrap().unwrap();
    assert_eq!(syncs(), 2, "the tail of the old file was not synced");
}

#[test]
fn a_rewrite_that_fails_leaves_a_log_that_loads() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::No);
    let done = Arc::new(AtomicBool::new(false));
    let (count, start) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(2)));
    let writer = {
        let (mut session, done) = (engine.session(), done.clone());
        let (count, start) = (count.clone(), start.clone());
        std::thread::spawn(move || {
            start.wait();
            while !done.load(Ordering::SeqCst) {
                // Rewrites read all of it.
                std::thread::sleep(Duration::from_micros(100));
                let n = count.load(Ordering::SeqCst);
                if ask(&mut session, &format!("SET {n} {n}")) == Reply::OK {
                    count.store(n + 1, Ordering::SeqCst);
                }
            }
        })
    };
    start.wait();
    for round in 0..20 {
        fault::FULL.store(round % 2 == 0, Ordering::SeqCst);
        let _ = log(&engine).rewrite();
        fault::FULL.store(false, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
    }
    done.store(true, Ordering::SeqCst);
    writer.join().unwrap();
    drop(engine);
    let engine = open(dir.path(), Fsync::No);
    let mut session = engine.session();
    for n in 0..count.load(Ordering::SeqCst) {
        let value = n.to_string();
        assert_eq!(
            ask(&mut session, &format!("GET {n}")),
            Reply::bulk(value.as_str())
        );
    }
}

#[test]
fn what_a_dead_process_left_is_removed_and_data_without_a_manifest_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    ask(&mut open(dir.path(), Fsync::No).session(), "SET k v");
    let folder = dir.path().join(FOLDER);
    let orphans = [
        "temp-rewriteaof-1.aof",
        "temp-appendonly.aof.manifest",
        "appendonly.aof.9.base.aof",
        "appendonly.aof.9.incr.aof",
    ];
    for name in orphans {
        fs::write(folder.join(name), "*1\r\n$8\r\nFLUSHALL\r\n").unwrap();
    }
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    assert_eq!(
        ask(&mut open(dir.path(), Fsync::No).session(), "GET k"),
        Reply::bulk("v")
    );
    for name in orphans {
        assert!(!folder.join(name).exists(), "{name}");
    }
    assert!(folder.join("notes.txt").exists());
    fs::remove_file(folder.join("appendonly.aof.manifest")).unwrap();
    let refused = Engine::builder().append_only(dir.path(), Fsync::No).build();
    assert!(refused.unwrap_err().to_string().contains("holds data"));
    fs::write(folder.join("appendonly.aof.manifest"), "").unwrap();
    let refused = Engine::builder().append_only(dir.path(), Fsync::No).build();
    assert!(refused.unwrap_err().to_string().contains("holds data"));
    assert!(folder.join("appendonly.aof.1.incr.aof").exists());
}

#[test]
fn a_torn_end_before_an_empty_increment_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    ask(&mut open(dir.path(), Fsync::No).session(), "SET k v");
    let folder = dir.path().join(FOLDER);
    let os = OsFolder::new(folder.clone());
    let mut manifest = Manifest::load(&os).unwrap();
    let first = folder.join(manifest.current());
    let mut bytes = fs::read(&first).unwrap();
    bytes.extend_from_slice(b"*3\r\n$3\r\nSET");
    fs::write(&first, bytes).unwrap();
    manifest.add_increment(&mut Numbers::default());
    File::create(folder.join(manifest.current())).unwrap();
    manifest.save(&os).unwrap();
    assert_eq!(
        ask(&mut open(dir.path(), Fsync::No).session(), "GET k"),
        Reply::bulk("v")
    );
}

/// A folder of the operating system that can keep its readers waiting, and tells of what is created.
struct Watched {
    os: OsFolder,
    gate: Arc<Gate>,
    on_create: Box<dyn Fn(&str) + Send + Sync>,
    /// Called while the folder is synced.
    on_sync: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, shut: bool) {
        *self.shut.lock() = shut;
        self.opened.notify_all();
    }
}

struct Gated(Box<dyn folder::Source>, Arc<Gate>);

impl io::Read for Gated {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut shut = self.1.shut.lock();
        while *shut {
            self.1.opened.wait(&mut shut);
        }
        drop(shut);
        self.0.read(buffer)
    }
}

impl io::Seek for Gated {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl Folder for Watched {
    fn make(&self) -> io::Result<()> {
        self.os.make()
    }
    fn names(&self) -> Vec<(String, u64)> {
        self.os.names()
    }
    fn len(&self, name: &str) -> io::Result<u64> {
        self.os.len(name)
    }
    fn read(&self, name: &str) -> io::Result<Box<dyn folder::Source>> {
        Ok(Box::new(Gated(self.os.read(name)?, self.gate.clone())))
    }
    fn create(&self, name: &str) -> io::Result<Box<dyn folder::Handle>> {
        (self.on_create)(name);
        self.os.create(name)
    }
    fn open(&self, name: &str) -> io::Result<(Box<dyn folder::Handle>, u64)> {
        self.os.open(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.os.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.os.remove(name)
    }
    fn sync(&self) -> io::Result<()> {
        (self.on_sync)();
        self.os.sync()
    }
    fn shown(&self, name: &str) -> String {
        self.os.shown(name)
    }
}

/// An engine whose log is in this folder, and would be begun again in `dir`.
fn open_watched(dir: &Path, watched: Watched) -> Engine {
    let mut settings = crate::Settings::new();
    settings.set("dir", &dir.display().to_string()).unwrap();
    let engine = Engine::builder().settings(settings).build().unwrap();
    let log = open_in(Arc::new(watched), None, &engine).unwrap();
    log.start().unwrap();
    engine.inner.log.set(log);
    engine.inner.lock().config.append_only = true;
    engine
}

#[test]
fn the_log_is_ended_and_begun_while_a_backup_runs() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let gate: Arc<Gate> = Arc::default();
    let watched = Watched {
        os: OsFolder::new(elsewhere.path().join(FOLDER)),
        gate: gate.clone(),
        on_create: Box::new(|_| ()),
        on_sync: Box::new(|| ()),
    };
    let engine = open_watched(dir.path(), watched);
    let mut session = engine.session();
    assert_eq!(ask(&mut session, "SET k v"), Reply::OK);
    gate.set(true);
    let target = elsewhere.path().join("copy");
    let backup = format!("REDSTART BACKUP {}", target.display());
    let args: Vec<Bytes> = backup
        .split(' ')
        .map(|word| Bytes::from(word.to_owned()))
        .collect();
    let mut waiting = engine.session();
    let Outcome::Blocked(mut blocked) = waiting.execute(&args) else {
        panic!("it does not wait");
    };
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in [
            "CONFIG SET appendonly no",
            "CONFIG SET appendonly yes",
            "PING",
        ] {
            let _ = tell.send(ask(&mut session, line));
        }
    });
    for expected in [Reply::OK, Reply::OK, Reply::status("PONG")] {
        let reply = told.recv_timeout(Duration::from_secs(60));
        assert_eq!(reply.ok(), Some(expected), "nobody is answered any more");
    }
    assert!(blocked.try_take().is_none());
    gate.set(false);
    let reply = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(10));
        blocked.try_take()
    })
    .take(6000)
    .flatten()
    .next();
    assert!(matches!(reply, Some(Reply::Array(_))), "{reply:?}");
    let copy = open(&target, Fsync::No);
    assert_eq!(ask(&mut copy.session(), "GET k"), Reply::bulk("v"));
}

#[test]
fn writes_go_on_while_a_rewrite_saves_the_manifest() {
    /// As many as a rewrite needs: two for each of two manifests.
    const SYNCS: usize = 4;
    for fsync in [Fsync::EverySec, Fsync::Always] {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (ask_for, asked) = std::sync::mpsc::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let (ask_for, told) = (Arc::new(Mutex::new(ask_for)), Mutex::new(told));
        let (begun, written) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let watched = {
            let (begun, written, ask_for) = (begun.clone(), written.clone(), ask_for.clone());
            Watched {
                os: OsFolder::new(elsewhere.path().join(FOLDER)),
                gate: Arc::default(),
                on_create: Box::new(|_| ()),
                // Somebody writes, and is answered, before the sync ends.
                on_sync: Box::new(move || {
                    if begun.load(Ordering::SeqCst) {
                        let _ = ask_for.lock().send(true);
                        match told.lock().recv_timeout(Duration::from_secs(20)) {
                            Ok(()) => drop(written.fetch_add(1, Ordering::SeqCst)),
                            // One that hangs is enough.
                            Err(_) => begun.store(false, Ordering::SeqCst),
                        }
                    }
                }),
            }
        };
        let engine = open_watched(dir.path(), watched);
        {
            let mut state = engine.inner.lock();
            state.config.fsync = fsync;
            log(&engine).policy.follow(&state.config);
            state.effects.follow_sink();
        }
        let mut session = engine.session();
        ask(&mut session, "SET before 1");
        let writer = std::thread::spawn(move || {
            for (n, _) in asked.iter().take_while(|more| *more).enumerate() {
                assert_eq!(ask(&mut session, &format!("SET {n} x")), Reply::OK);
                let _ = tell.send(());
            }
        });
        begun.store(true, Ordering::SeqCst);
        let rewritten = log(&engine).rewrite();
        begun.store(false, Ordering::SeqCst);
        rewritten.unwrap();
        assert_eq!(
            written.load(Ordering::SeqCst),
            SYNCS,
            "{fsync:?}: a write waited"
        );
        assert_eq!(ask(&mut engine.session(), "SET after 1"), Reply::OK);
        let _ = ask_for.lock().send(false);
        writer.join().unwrap();
        drop(engine);
        let engine = open(elsewhere.path(), fsync);
        assert_eq!(
            ask(&mut engine.session(), "DBSIZE"),
            Reply::Int(2 + SYNCS as i64)
        );
    }
}

#[test]
fn nothing_is_added_to_the_log_of_data_that_was_replaced() {
    const ROUNDS: usize = 60;
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (round, late) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let engine: Arc<OnceLock<Weak<Log>>> = Arc::default();
    let path = elsewhere.path().join(FOLDER);
    let watched = {
        let (round, late, log, path) = (round.clone(), late.clone(), engine.clone(), path.clone());
        Watched {
            os: OsFolder::new(path.clone()),
            gate: Arc::default(),
            on_create: Box::new(move |name| {
                let Some(log) = log.get().and_then(Weak::upgrade) else {
                    return;
                };
                if !name.starts_with("temp-rewriteaof-fresh") {
                    return;
                }
                // The log of before, as it is when the new one is begun.
                let mut bytes = log.buffer.lock().bytes.clone();
                for (name, _) in OsFolder::new(path.clone()).names() {
                    bytes.extend(fs::read(path.join(name)).unwrap_or_default());
                }
                let seen = format!("seen-{}-", round.load(Ordering::SeqCst));
                let is_late = bytes
                    .windows(seen.len())
                    .any(|part| part == seen.as_bytes());
                late.fetch_add(usize::from(is_late), Ordering::SeqCst);
            }),
            on_sync: Box::new(|| ()),
        }
    };
    let kept = engine;
    let engine = open_watched(dir.path(), watched);
    let _ = kept.set(Arc::downgrade(&log(&engine)));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut session = engine.session();
            let done = &done;
            scope.spawn(move || {
                let script = "local n = redis.call('GET', 'round') \
                              if n then redis.call('SET', 'seen-' .. n .. '-', 1) end";
                while !done.load(Ordering::SeqCst) {
                    eval(&mut session, script);
                }
            });
        }
        for n in 0..ROUNDS {
            let donor = Engine::new();
            ask(&mut donor.session(), &format!("SET round {n}"));
            let mut file = Vec::new();
            donor.save_rdb(&mut file, |_| ()).unwrap();
            round.store(n, Ordering::SeqCst);
            engine.load_rdb(file.as_slice(), |_| ()).unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(late.load(Ordering::SeqCst), 0);
}

#[test]
fn what_waits_for_a_disk_that_refuses_is_bounded_by_who_waits() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let mut session = engine.session_resp3();
    let mut pushes = session.pushes();
    ask(&mut session, "SUBSCRIBE news");
    while pushes.try_recv().is_some() {}
    fault::NO_SYNC.store(true, Ordering::SeqCst);
    let mut writer = engine.session();
    let (_, position) = writer.execute_ahead(&words("SET k 1"));
    let _ = writer.execute_ahead(&words("PUBLISH news x"));
    while log(&engine).trouble() == FINE {
        std::thread::yield_now();
    }
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..1000 {
        assert!(pushes.poll_recv(&mut cx).is_pending());
    }
    assert_eq!(log(&engine).waiting(), 1);
    // Who gives up does not wait any more.
    drop(pushes);
    assert_eq!(log(&engine).waiting(), 0);
    fault::NO_SYNC.store(false, Ordering::SeqCst);
    while log(&engine).trouble() != FINE {
        std::thread::yield_now();
    }
    let kept = std::pin::pin!(engine.kept(position)).poll(&mut cx);
    assert_eq!(kept, Poll::Ready(Ok(())));
}

#[test]
fn what_a_replica_applies_while_its_disk_is_full_takes_bounded_memory() {
    const LEN: usize = 8 << 20;
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::EverySec);
    fault::FULL.store(true, Ordering::SeqCst);
    let mut client = Client::internal(0, 0, Protocol::Resp2);
    let mut most = 0;
    for n in 0..2 * write::MOST / LEN {
        let mut args = words(&format!("SET {}", n % 2));
        args.push(Bytes::from(vec![b'x'; LEN]));
        let spec = registry::resolve_any(&args).ok().unwrap();
        let mut state = engine.inner.lock();
        let mut cx = Ctx::new(&mut state, &mut client, 0, Origin::Engine);
        assert!(cx.call(spec, &args).is_ok());
        state.effects.flush();
        most = most.max(log(&engine).sizes().buffered);
    }
    assert!(most <= (write::MOST + 2 * LEN) as u64, "{most} bytes wait");
    fault::FULL.store(false, Ordering::SeqCst);
    assert_eq!(
        ask_until_it_recovers(&mut engine.session(), "SET later 1"),
        Reply::OK
    );
    drop(engine);
    let mut session = open_when_free(dir.path(), Fsync::No).session();
    assert_eq!(ask(&mut session, "STRLEN 1"), Reply::Int(LEN as i64));
    assert_eq!(ask(&mut session, "GET later"), Reply::bulk("1"));
}

#[test]
fn info_does_not_wait_for_a_write_that_takes_long() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::EverySec);
    fault::SLOW_WRITE.store(true, Ordering::SeqCst);
    let (mut writer, mut asking) = (engine.session(), engine.session());
    let writing = std::thread::spawn(move || ask(&mut writer, "SET k v"));
    while log(&engine).disk.try_lock().is_some() {
        std::thread::yield_now();
    }
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in ["INFO persistence", "INFO memory"] {
            let (outcome, _) = asking.execute_ahead(&words(line));
            let _ = tell.send(outcome.into_reply().is_some());
        }
    });
    let answers = [(); 2].map(|()| told.recv_timeout(Duration::from_secs(10)));
    fault::SLOW_WRITE.store(false, Ordering::SeqCst);
    assert_eq!(answers, [Ok(true), Ok(true)]);
    assert_eq!(writing.join().unwrap(), Reply::OK);
}

#[test]
fn a_rewrite_that_cannot_begin_is_not_tried_again_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::No);
    let mut session = engine.session();
    ask(&mut session, "SET k v");
    // No file can be made any more; the one that is open can be written.
    fs::rename(dir.path().join(FOLDER), dir.path().join("away")).unwrap();
    ask(&mut session, "CONFIG SET auto-aof-rewrite-min-size 1");
    let log = log(&engine);
    let wait_for = |count: u64| {
        for _ in 0..6000 {
            if log.rewrites.load(Ordering::SeqCst) >= count {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it is not tried");
    };
    wait_for(1);
    let begun = Instant::now();
    wait_for(4);
    // After one second, two, and four.
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(6), "{took:?}");
    // Who asks for one does not wait for that.
    let before = log.rewrites.load(Ordering::SeqCst);
    while log.rewriting.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    ask(&mut session, "BGREWRITEAOF");
    wait_for(before + 1);
}

#[test]
fn who_asks_for_a_rewrite_of_a_lost_file_does_not_wait_for_the_next_attempt() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let mut session = engine.session();
    fault::NO_SYNC.store(true, Ordering::SeqCst);
    assert!(is_misconf(&ask(&mut session, "SET lost 1")));
    // An attempt that takes long: the next one is due much later.
    fault::SLOW_SYNC.store(true, Ordering::SeqCst);
    while engine.inner.state.try_lock().is_some() {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_secs(2));
    fault::SLOW_SYNC.store(false, Ordering::SeqCst);
    drop(engine.inner.state.lock());
    fault::NO_SYNC.store(false, Ordering::SeqCst);
    let asked = Instant::now();
    ask(&mut session, "BGREWRITEAOF");
    assert_eq!(ask_until_it_recovers(&mut session, "SET k 1"), Reply::OK);
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
}

#[test]
fn a_base_that_a_full_disk_takes_no_manifest_for_is_removed() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::No);
    ask(&mut engine.session(), "SET k v");
    let log = log(&engine);
    let rewritten = log.begin_rewrite().unwrap();
    fault::FULL.store(true, Ordering::SeqCst);
    let ended = log.end_rewrite(&rewritten);
    fault::FULL.store(false, Ordering::SeqCst);
    assert!(ended.is_err());
    let names = OsFolder::new(dir.path().join(FOLDER)).names().into_iter();
    let names = names
        .map(|(name, _)| name)
        .filter(|name| name.ends_with(".aof"));
    let (mut names, mut known) = (names.collect::<Vec<_>>(), log.disk.lock().manifest.files());
    names.sort();
    known.sort();
    assert_eq!(names, known);
}

#[test]
fn a_rewrite_that_failed_is_tried_again_however_short_the_increment_is() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::No);
    ask(&mut engine.session(), "SET k v");
    let log = log(&engine);
    log.finish_rewrite(Err(EngineError::Log("it failed".into())));
    let begun = Instant::now();
    while log.rewrites.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it is not tried");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_transaction_that_begins_the_log_is_in_it_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = crate::Settings::new();
    settings
        .set("dir", &dir.path().display().to_string())
        .unwrap();
    let engine = Engine::builder().settings(settings).build().unwrap();
    // What is changed is noted, for replicas.
    feed::open(&mut engine.inner.lock());
    let mut session = engine.session();
    for line in [
        "MULTI",
        "INCR a",
        "CONFIG SET appendonly yes",
        "INCR b",
        "EXEC",
        "INCR a",
    ] {
        let reply = ask(&mut session, line);
        assert!(!reply.is_error(), "{line}: {reply:?}");
    }
    drop((session, engine));
    let engine = open(dir.path(), Fsync::No);
    let mut session = engine.session();
    assert_eq!(
        ask(&mut session, "MGET a b"),
        Reply::Array(vec![Reply::bulk("2"), Reply::bulk("1")])
    );
}

#[test]
fn nobody_waits_while_what_was_taken_for_a_client_is_written() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::No);
    let (mut waiting, mut writer) = (engine.session(), engine.session());
    let Outcome::Blocked(mut blocked) = waiting.execute(&words("BLPOP queue 0")) else {
        panic!("there is something in the queue");
    };
    fault::SLOW_WRITE.store(true, Ordering::SeqCst);
    let (pushed, _) = writer.execute_ahead(&words("RPUSH queue x"));
    assert!(pushed.into_reply().is_some());
    let polled = std::thread::spawn(move || {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let polled = std::pin::Pin::new(&mut blocked).poll(&mut cx);
        (polled.is_ready(), blocked)
    });
    let mut free = true;
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(1));
        free &= engine
            .inner
            .state
            .try_lock_for(Duration::from_secs(5))
            .is_some();
        if !free {
            break;
        }
    }
    fault::SLOW_WRITE.store(false, Ordering::SeqCst);
    let (is_ready, blocked) = polled.join().unwrap();
    assert!(free, "everybody waits for the disk");
    assert!(is_ready);
    drop(blocked);
}
