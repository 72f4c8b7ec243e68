//! What clients, subscribers and replicas are told while a sync takes long.

use std::{net::SocketAddr, task::Poll};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    file::fault,
    tests::{ALONE, ask, log, open, words},
    *,
};
use crate::{
    Compat, Engine, Master, Outcome, Reply, Session, feed,
    server::{Server, ServerConfig},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Syncs take until this is dropped.
struct SlowDisk;

impl SlowDisk {
    fn new() -> SlowDisk {
        fault::SLOW_SYNC.store(true, Ordering::SeqCst);
        SlowDisk
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        fault::SLOW_SYNC.store(false, Ordering::SeqCst);
    }
}

/// Executes without waiting for the disk.
fn ahead(session: &mut Session, line: &str) -> Reply {
    match session.execute_ahead(&words(line)) {
        (Outcome::Reply(reply), _) => reply,
        (Outcome::Blocked(_), _) => panic!("{line} blocks"),
    }
}

/// Waits for what is true ahead of the disk.
async fn becomes(engine: &Engine, line: &str, expected: Reply) {
    let mut session = engine.session();
    let became = async {
        while ahead(&mut session, line) != expected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, became).await.unwrap();
}

struct Wire(TcpStream);

impl Wire {
    async fn connect(addr: SocketAddr) -> Wire {
        Wire(TcpStream::connect(addr).await.unwrap())
    }

    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    async fn hears(&mut self, expected: &str) {
        let mut heard = vec![0; expected.len()];
        let read = timeout(PATIENCE, self.0.read_exact(&mut heard)).await;
        read.expect("nothing is heard").unwrap();
        assert_eq!(String::from_utf8_lossy(&heard), expected);
    }

    async fn call(&mut self, line: &str, expected: &str) {
        self.send(&format!("{line}\r\n")).await;
        self.hears(expected).await;
    }

    /// Nothing is heard for as long as is looked.
    async fn hears_nothing(&mut self) {
        let mut room = [0; 64];
        let read = timeout(Duration::from_millis(50), self.0.read(&mut room)).await;
        if let Ok(count) = read {
            let heard = String::from_utf8_lossy(&room[..count.unwrap()]).into_owned();
            panic!("told before it was on the disk: {heard}");
        }
    }
}

async fn listen(engine: &Engine) -> SocketAddr {
    let config = ServerConfig::new().listen("127.0.0.1:0".parse().unwrap());
    let server = Server::bind(engine.clone(), config).await.unwrap();
    let addr = server.local_addr().unwrap();
    tokio::spawn(server.run(std::future::pending()));
    addr
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

fn is_message(reply: &Reply, kind: &str) -> bool {
    matches!(reply, Reply::Push(parts) if parts[0] == Reply::bulk(kind))
}

#[test]
fn a_subscriber_that_leaves_while_its_message_waits_is_noticed() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let slow = SlowDisk::new();
        let mut writer = engine.session();
        ahead(&mut writer, "SET k 1");
        for round in 0..3 {
            let mut subscriber = Wire::connect(addr).await;
            subscriber.send("SUBSCRIBE news\r\n").await;
            becomes(&engine, "PUBLISH news x", Reply::Int(1)).await;
            drop(subscriber);
            let left = async {
                while ahead(&mut writer, "PUBLISH news x") != Reply::Int(0) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let left = timeout(PATIENCE, left).await;
            assert!(left.is_ok(), "round {round}: it is still there");
        }
        drop(slow);
    });
}

#[test]
fn in_process_messages_wait_for_the_disk() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let (mut writer, mut session) = (engine.session(), engine.session_resp3());
    ask(&mut writer, "CONFIG SET notify-keyspace-events KA");
    ask(&mut session, "CLIENT TRACKING ON");
    ask(&mut session, "GET k");
    let mut pushes = session.pushes();
    ask(&mut session, "PSUBSCRIBE __keyspace*");
    // Confirmations wait for nothing.
    ask(&mut session, "SUBSCRIBE news other");
    assert!(is_message(&pushes.try_recv().unwrap(), "subscribe"));
    let runtime = runtime();
    for fails in [false, true] {
        let slow = SlowDisk::new();
        fault::NO_SYNC.store(fails, Ordering::SeqCst);
        ask(&mut session, "CLIENT ID");
        for line in ["MULTI", "SET k 1", "PUBLISH news x", "EXEC"] {
            ahead(&mut writer, line);
        }
        ahead(&mut writer, "PUBLISH news y");
        let mut polled = || {
            let poll = std::future::poll_fn(|cx| Poll::Ready(pushes.poll_recv(cx).is_pending()));
            runtime.block_on(poll)
        };
        assert!(polled(), "told before it was on the disk");
        drop(slow);
        if fails {
            while log(&engine).trouble() == FINE {
                std::thread::yield_now();
            }
            assert!(polled(), "told although the sync failed");
            fault::NO_SYNC.store(false, Ordering::SeqCst);
        }
        let heard: Vec<Reply> = runtime.block_on(async {
            let mut heard = Vec::new();
            while !matches!(heard.last(), Some(Reply::Push(parts)) if parts.last() == Some(&Reply::bulk("y"))) {
                heard.extend(timeout(PATIENCE, pushes.recv()).await.unwrap());
            }
            heard
        });
        let count = |kind| heard.iter().filter(|one| is_message(one, kind)).count();
        assert_eq!((count("message"), count("pmessage")), (2, 1), "{heard:?}");
        if !fails {
            assert_eq!(count("invalidate"), 1, "{heard:?}");
        }
    }
}

#[test]
fn over_the_wire_messages_and_the_stream_of_replicas_wait_for_the_disk() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let (mut writer, mut subscriber) = (Wire::connect(addr).await, Wire::connect(addr).await);
        let confirmed = "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n";
        subscriber.call("SUBSCRIBE news", confirmed).await;
        let copy = Engine::new();
        copy.follow(Master::new("127.0.0.1", addr.port())).unwrap();
        writer.call("SET before 1", "+OK\r\n").await;
        becomes(&copy, "GET before", Reply::bulk("1")).await;
        let slow = SlowDisk::new();
        writer
            .send("MULTI\r\nSET k 1\r\nPUBLISH news x\r\nEXEC\r\n")
            .await;
        becomes(&engine, "GET k", Reply::bulk("1")).await;
        writer.hears_nothing().await;
        subscriber.hears_nothing().await;
        let told = ahead(&mut copy.session(), "GET k");
        assert_eq!(told, Reply::Nil, "a replica has what may yet be lost");
        drop(slow);
        subscriber
            .hears("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n")
            .await;
        writer
            .hears("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:1\r\n")
            .await;
        becomes(&copy, "GET k", Reply::bulk("1")).await;
    });
}

#[test]
fn over_the_wire_replies_wait_for_the_disk_and_writers_share_syncs() {
    const WRITERS: i64 = 50;
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let mut first = Wire::connect(addr).await;
        first.call("SET old 1", "+OK\r\n").await;
        let before = log(&engine).syncs.load(Ordering::SeqCst);
        let slow = SlowDisk::new();
        first.send("SET new 1\r\n").await;
        becomes(&engine, "EXISTS new", Reply::Int(1)).await;
        let mut writers = Vec::new();
        for n in 0..WRITERS {
            let mut writer = Wire::connect(addr).await;
            writer.send(&format!("SET {n} 1\r\n")).await;
            writers.push(writer);
        }
        becomes(&engine, "DBSIZE", Reply::Int(2 + WRITERS)).await;
        let (mut other, mut held) = (Wire::connect(addr).await, Wire::connect(addr).await);
        other.call("GET old", "$1\r\n1\r\n").await;
        held.send("GET new\r\n").await;
        held.hears_nothing().await;
        first.hears_nothing().await;
        other.call("GET old", "$1\r\n1\r\n").await;
        drop(slow);
        held.hears("$1\r\n1\r\n").await;
        for writer in writers.iter_mut().chain([&mut first]) {
            writer.hears("+OK\r\n").await;
        }
        let syncs = log(&engine).syncs.load(Ordering::SeqCst) - before;
        // The one that had begun, and one for all who came meanwhile.
        assert!(syncs <= 2, "{syncs} syncs");
    });
}

/// Waits for what is true of a replica, as far as its server knows.
async fn replicas_become(engine: &Engine, is: impl Fn(&feed::stream::Facts) -> bool) {
    let became = async {
        while !engine.inner.lock().feed.replicas().iter().any(&is) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, became).await.unwrap();
}

async fn becomes_online(engine: &Engine) {
    replicas_become(engine, |one| one.stage == feed::stream::Stage::Online).await;
}

#[test]
fn what_a_replica_says_while_the_disk_is_slow_is_heard() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let mut replica = Wire::connect(addr).await;
        replica.send("PSYNC ? -1\r\n").await;
        becomes_online(&engine).await;
        // The first PING of the stream is due with the next command; the second one much later.
        engine.inner.lock().last_sweep = 0;
        ahead(&mut engine.session(), "TIME");
        let slow = SlowDisk::new();
        ahead(&mut engine.session(), "SET k 1");
        let end = engine.inner.lock().feed.offset();
        // The change waits for the disk; what the replica says of itself does not.
        for place in [end - 1, end] {
            replica.send(&format!("REPLCONF ACK {place}\r\n")).await;
            replicas_become(&engine, |one| one.acked == place).await;
        }
        assert_eq!(ahead(&mut engine.session(), "WAIT 1 0"), Reply::Int(1));
        drop(slow);
    });
}

/// A server that has WAITAOF, without a log.
async fn master() -> (Engine, SocketAddr) {
    let engine = Engine::builder().compat(Compat::Valkey9).build().unwrap();
    let addr = listen(&engine).await;
    (engine, addr)
}

#[test]
fn a_replica_whose_disk_refused_the_copy_does_not_claim_to_have_it() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let builder = Engine::builder().compat(Compat::Valkey9);
    let copy = builder.append_only(dir.path(), Fsync::EverySec);
    let copy = copy.build().unwrap();
    ask(&mut copy.session(), "SET before 1");
    runtime().block_on(async {
        let (engine, addr) = master().await;
        ask(&mut engine.session(), "SET k 1");
        fault::NO_SYNC.store(true, Ordering::SeqCst);
        copy.follow(Master::new("127.0.0.1", addr.port())).unwrap();
        becomes(&copy, "GET k", Reply::bulk("1")).await;
        let mut wire = Wire::connect(addr).await;
        // It connects again, and says how far it is, and how far its disk is.
        wire.call("WAIT 1 0", ":1\r\n").await;
        wire.call("WAITAOF 0 1 1500", "*2\r\n:0\r\n:0\r\n").await;
        // Its own clients are not told that either, whatever becomes of it.
        copy.promote();
        let mut of_copy = Wire::connect(listen(&copy).await).await;
        of_copy.call("WAITAOF 1 0 50", "*2\r\n:0\r\n:0\r\n").await;
        copy.follow(Master::new("127.0.0.1", addr.port())).unwrap();
        fault::NO_SYNC.store(false, Ordering::SeqCst);
        wire.call("WAITAOF 0 1 0", "*2\r\n:0\r\n:1\r\n").await;
    });
    copy.promote();
    drop(copy);
    // The thread that followed may hold it for a moment.
    let copy = loop {
        let builder = Engine::builder().append_only(dir.path(), Fsync::No);
        match builder.build() {
            Ok(copy) => break copy,
            Err(_) => std::thread::yield_now(),
        }
    };
    assert_eq!(ask(&mut copy.session(), "GET k"), Reply::bulk("1"));
    assert_eq!(ask(&mut copy.session(), "GET before"), Reply::Nil);
}

#[test]
fn a_disk_that_has_nothing_yet_counts_for_no_waitaof() {
    let _alone = ALONE.lock();
    runtime().block_on(async {
        let (engine, addr) = master().await;
        let mut replica = Wire::connect(addr).await;
        replica.send("PSYNC ? -1\r\n").await;
        becomes_online(&engine).await;
        // Valkey says so while it writes the first log after a copy.
        replica.send("REPLCONF ACK 0 FACK 0\r\n").await;
        let mut wire = Wire::connect(addr).await;
        wire.call("WAITAOF 0 1 200", "*2\r\n:0\r\n:0\r\n").await;
        // The end of the stream ends what waits for a place in it.
        wire.send("WAITAOF 0 1 0\r\n").await;
        let waits = async {
            while engine.inner.lock().blocking.len() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, waits).await.unwrap();
        feed::end(&mut engine.inner.lock());
        wire.hears("*2\r\n:0\r\n:0\r\n").await;
    });
}

#[test]
fn who_has_a_message_of_a_slow_script_is_told_that_it_is_busy_and_may_end_it() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    ask(&mut engine.session(), "CONFIG SET busy-reply-threshold 20");
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let (mut heard, mut looping) = (Wire::connect(addr).await, Wire::connect(addr).await);
        heard.send("HELLO 3\r\nSUBSCRIBE news\r\nECHO begun\r\n").await;
        let mut before = Vec::new();
        while !before.ends_with(b"begun\r\n") {
            let byte = timeout(PATIENCE, heard.0.read_u8()).await;
            before.push(byte.expect("nothing is heard").unwrap());
        }
        let script = "redis.call('PUBLISH', 'news', 'x') while true do end";
        looping.send(&format!("EVAL \"{script}\" 0\r\n")).await;
        let runs = async {
            while !engine.inner.watchdog.is_busy() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, runs).await.unwrap();
        let busy = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN \
                    NOSAVE.\r\n";
        heard.call("PING", busy).await;
        heard.call("PING", busy).await;
        heard.call("SCRIPT KILL", "+OK\r\n").await;
        // The message comes when it is known what it depends on.
        heard
            .hears(">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n")
            .await;
        heard.call("PING", "+PONG\r\n").await;
    });
}

#[test]
fn what_was_taken_for_a_client_that_waits_is_answered_however_much_others_write_meanwhile() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let (mut waiting, mut writer) = (engine.session(), engine.session());
    let Outcome::Blocked(mut blocked) = waiting.execute(&words("BLPOP queue 0")) else {
        panic!("there is something in the queue");
    };
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let slow = SlowDisk::new();
    ahead(&mut writer, "RPUSH queue x");
    let mut poll = || std::pin::Pin::new(&mut blocked).poll(&mut cx);
    assert!(poll().is_pending(), "answered before it was on the disk");
    let taken = log(&engine).end();
    drop(slow);
    while !log(&engine).is_synced(taken) {
        std::thread::yield_now();
    }
    let _slow = SlowDisk::new();
    ahead(&mut writer, "SET other 1");
    let popped = Reply::Array(vec![Reply::bulk("queue"), Reply::bulk("x")]);
    assert_eq!(poll(), Poll::Ready(popped));
}

#[test]
fn a_replica_whose_disk_refuses_notes_no_more_keys_than_fit_its_limit() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let (engine, addr) = master().await;
        copy.follow(Master::new("127.0.0.1", addr.port())).unwrap();
        ask(&mut engine.session(), "SET before 1");
        becomes(&copy, "GET before", Reply::bulk("1")).await;
        fault::NO_SYNC.store(true, Ordering::SeqCst);
        let script = "for n = 1, 150000 do redis.call('SET', 'key:' .. n, 1) end";
        for _ in 0..3 {
            let args = ["EVAL", script, "0"].map(|word| Bytes::copy_from_slice(word.as_bytes()));
            engine.session().execute(&args).into_reply().unwrap();
        }
        ask(&mut engine.session(), "SET last 1");
        becomes(&copy, "GET last", Reply::bulk("1")).await;
        let (bytes, held) = {
            let state = copy.inner.lock();
            let effects = &state.effects;
            (effects.noted_bytes(), effects.is_undurable())
        };
        assert!(bytes <= crate::effect::MOST_NOTED, "{bytes} bytes");
        assert!(held, "reads are not held any more");
        // What was noted before is not forgotten: a read of it is held.
        for key in ["key:1", "key:150000", "last"] {
            let reply = ask(&mut copy.session(), &format!("GET {key}"));
            assert!(reply.is_error(), "{key}: {reply:?}");
        }
        fault::NO_SYNC.store(false, Ordering::SeqCst);
    });
}

#[test]
fn a_replica_forgets_which_keys_changed_when_they_are_on_its_disk() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let (engine, addr) = master().await;
        copy.follow(Master::new("127.0.0.1", addr.port())).unwrap();
        let mut session = engine.session();
        // Nobody reads the replica.
        let noted = || copy.inner.lock().effects.noted_keys();
        let applied = async |session: &mut Session, n: usize| {
            ask(session, &format!("SET key:{n} 1"));
            let there = async {
                let key = format!("key:{n}");
                while copy.inner.lock().dbs[0].find(key.as_bytes()).is_none() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let end = log(&copy).end();
                while !log(&copy).is_synced(end) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(PATIENCE, there).await.unwrap();
        };
        for n in 0..20 {
            applied(&mut session, n).await;
        }
        assert!(noted() <= 2, "{} keys", noted());
    });
}

#[test]
fn data_that_was_replaced_is_not_told_while_the_disk_refuses_it() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let (engine, addr) = master().await;
        ask(&mut engine.session(), "SET k 1");
        fault::NO_SYNC.store(true, Ordering::SeqCst);
        copy.follow(Master::new("127.0.0.1", addr.port())).unwrap();
        becomes(&copy, "GET k", Reply::bulk("1")).await;
        let reply = ask(&mut copy.session(), "GET k");
        assert!(reply.is_error(), "told what may be lost: {reply:?}");
        fault::NO_SYNC.store(false, Ordering::SeqCst);
        let told = async {
            while ask(&mut copy.session(), "GET k") != Reply::bulk("1") {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, told).await.unwrap();
    });
}

#[test]
fn a_replica_that_asks_while_the_disk_refuses_hears_that_this_is_alive_and_is_copied_later() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let addr = listen(&engine).await;
        ask(&mut engine.session(), "SET before 1");
        let slow = SlowDisk::new();
        ahead(&mut engine.session(), "SET doubtful 1");
        let mut replica = Wire::connect(addr).await;
        replica.send("PSYNC ? -1\r\n").await;
        replica.hears("\n\n").await;
        // Nothing waits in memory for the replica meanwhile.
        assert_eq!(engine.inner.lock().feed.full, 0, "the data was copied");
        assert!(engine.inner.lock().feed.replicas().is_empty());
        drop(slow);
        becomes_online(&engine).await;
        assert_eq!(engine.inner.lock().feed.full, 1);
        let mut heard = [0];
        while heard != *b"+" {
            let read = timeout(PATIENCE, replica.0.read_exact(&mut heard)).await;
            read.expect("nothing is heard").unwrap();
            assert!(matches!(&heard, b"\n" | b"+"), "{heard:?}");
        }
        replica.hears("FULLRESYNC ").await;
    });
}

/// A library of functions, as an argument.
const LIBRARY: &str = "#!lua\tname=l\nredis.register_function('f',function()return\t1\tend)";

#[test]
fn changes_of_groups_and_functions_are_not_told_before_they_are_on_the_disk() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let (mut writer, mut reader) = (engine.session(), engine.session());
    let load = format!("FUNCTION LOAD {LIBRARY}");
    let replace = format!("FUNCTION LOAD REPLACE {LIBRARY}");
    for (change, look) in [
        ("XGROUP CREATE s h $", "XGROUP CREATE s h $"),
        ("XACK s g 1-1", "XPENDING s g"),
        ("XACK s g 1-1", "XACK s g 1-1"),
        ("XGROUP SETID s g $", "XINFO GROUPS s"),
        ("XGROUP CREATECONSUMER s g d", "XGROUP CREATECONSUMER s g d"),
        ("XGROUP DELCONSUMER s g c", "XINFO CONSUMERS s g"),
        ("XGROUP DESTROY s g", "XGROUP DESTROY s g"),
        ("XCLAIM s g d 0 1-1", "XPENDING s g - + 10"),
        ("XAUTOCLAIM s g d 0 0", "XPENDING s g - + 10"),
        ("XREADGROUP GROUP g c STREAMS s >", "XPENDING s g"),
        ("XREADGROUP GROUP g c STREAMS s 0", "XPENDING s g - + 10"),
        ("XSETID s 9-1", "XINFO STREAM s"),
        (load.as_str(), load.as_str()),
        (load.as_str(), "FUNCTION LIST"),
        (load.as_str(), "FUNCTION DUMP"),
        (load.as_str(), "FCALL f 0"),
        (replace.as_str(), "FCALL_RO f 0"),
        ("FUNCTION FLUSH", "FUNCTION LIST"),
    ] {
        for line in [
            "FLUSHALL",
            "FUNCTION FLUSH",
            "SET other 1",
            "XADD s 1-1 f v",
            "XADD s 2-1 f v",
            "XGROUP CREATE s g 0",
            "XREADGROUP GROUP g c COUNT 1 STREAMS s >",
        ] {
            ask(&mut writer, line);
        }
        let slow = SlowDisk::new();
        ahead(&mut writer, change);
        let changed = log(&engine).end();
        let (_, position) = reader.execute_ahead(&words(look));
        let (_, other) = reader.execute_ahead(&words("GET other"));
        drop(slow);
        assert!(position.at() >= changed, "{look} tells of {change}");
        if change.starts_with('X') {
            assert!(other.at() < changed, "GET other waits for {change}");
        }
    }
}

#[test]
fn what_a_group_delivers_to_a_client_that_waited_is_not_told_before_it_is_on_the_disk() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let (mut waiting, mut writer, mut reader) =
        (engine.session(), engine.session(), engine.session());
    ask(&mut writer, "XGROUP CREATE s g $ MKSTREAM");
    for takes in [true, false] {
        let line = "XREADGROUP GROUP g c BLOCK 0 STREAMS s >";
        let Outcome::Blocked(blocked) = waiting.execute(&words(line)) else {
            panic!("there is something new in the stream");
        };
        let slow = SlowDisk::new();
        ahead(&mut writer, "XADD s * f v");
        let mut blocked = Some(blocked);
        if !takes {
            // What was delivered is taken back.
            blocked = None;
        }
        let (_, position) = reader.execute_ahead(&words("XPENDING s g"));
        let end = log(&engine).end();
        drop(slow);
        assert_eq!(position.at(), end, "taken: {takes}");
        if let Some(mut blocked) = blocked {
            assert!(!blocked.try_take().unwrap().is_error());
        }
    }
}

#[test]
fn who_waited_in_vain_is_answered_although_the_disk_takes_nothing() {
    let _alone = ALONE.lock();
    for fsync in [Fsync::Always, Fsync::EverySec, Fsync::No] {
        for hangs in [true, false] {
            if hangs && fsync != Fsync::Always {
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            let engine = open(dir.path(), fsync);
            let (mut waiting, mut asked, mut writer) =
                (engine.session(), engine.session(), engine.session());
            let block = |session: &mut Session, line: &str| match session.execute(&words(line)) {
                Outcome::Blocked(blocked) => blocked,
                Outcome::Reply(reply) => panic!("{line}: {reply:?}"),
            };
            let in_vain = block(&mut waiting, "XREAD BLOCK 20 STREAMS untouched $");
            let unblocked = block(&mut asked, "BLPOP untouched 0");
            let slow = hangs.then(SlowDisk::new);
            fault::FULL.store(!hangs, Ordering::SeqCst);
            if hangs {
                ahead(&mut writer, "SET other 1");
            } else {
                assert!(ask(&mut writer, "SET other 1").is_error());
            }
            ahead(&mut writer, &format!("CLIENT UNBLOCK {}", asked.id()));
            runtime().block_on(async {
                for blocked in [in_vain, unblocked] {
                    let answered = timeout(Duration::from_secs(5), blocked).await;
                    let how = format!("{fsync:?}, hangs: {hangs}");
                    assert_eq!(answered, Ok(Reply::NilArray), "{how}");
                }
            });
            drop(slow);
            fault::FULL.store(false, Ordering::SeqCst);
        }
    }
}

#[test]
fn who_waited_in_vain_for_a_key_that_others_changed_waits_for_the_disk() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let (mut waiting, mut writer) = (engine.session(), engine.session());
    ask(&mut writer, "RPUSH queue x");
    let slow = SlowDisk::new();
    ahead(&mut writer, "LPOP queue");
    let Outcome::Blocked(mut blocked) = waiting.execute(&words("BLPOP queue 0")) else {
        panic!("there is something in the queue");
    };
    ahead(&mut writer, &format!("CLIENT UNBLOCK {}", waiting.id()));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let polled = std::pin::Pin::new(&mut blocked).poll(&mut cx);
    drop(slow);
    assert!(polled.is_pending(), "told before it was on the disk");
    assert_eq!(blocked.try_take(), Some(Reply::NilArray));
}

/// Waits until so many clients of the listener are left.
async fn clients_become(engine: &Engine, count: usize) {
    let became = async {
        while engine.inner.lock().clients.len() != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let became = timeout(PATIENCE / 2, became).await;
    let left = engine.inner.lock().clients.len();
    assert!(became.is_ok(), "{left} clients are left, not {count}");
}

#[test]
fn a_client_that_leaves_or_is_killed_while_the_disk_hangs_is_let_go() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let (mut leaves, mut killed) = (Wire::connect(addr).await, Wire::connect(addr).await);
        leaves.call("PING", "+PONG\r\n").await;
        killed.call("PING", "+PONG\r\n").await;
        let slow = SlowDisk::new();
        for (wire, key) in [(&mut leaves, "a"), (&mut killed, "b")] {
            wire.send(&format!("SET {key} 1\r\n")).await;
            becomes(&engine, &format!("EXISTS {key}"), Reply::Int(1)).await;
        }
        drop(leaves);
        clients_become(&engine, 1).await;
        ahead(&mut engine.session(), "CLIENT KILL TYPE normal SKIPME no");
        clients_become(&engine, 0).await;
        drop(slow);
    });
}

#[test]
fn a_client_that_only_sends_no_more_gets_its_reply_from_a_slow_disk() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let mut wire = Wire::connect(addr).await;
        let slow = SlowDisk::new();
        wire.send("SET a 1\r\n").await;
        becomes(&engine, "EXISTS a", Reply::Int(1)).await;
        // More comes while it waits, and then the end.
        wire.send("GET a\r\nPING\r\n").await;
        wire.0.shutdown().await.unwrap();
        wire.hears_nothing().await;
        drop(slow);
        wire.hears("+OK\r\n$1\r\n1\r\n+PONG\r\n").await;
    });
}

#[test]
fn what_was_changed_before_the_log_promised_more_is_not_told_before_it_is_on_the_disk() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::EverySec);
    let (mut writer, mut reader) = (engine.session(), engine.session());
    let slow = SlowDisk::new();
    ahead(&mut writer, "SET k 1");
    let changed = log(&engine).end();
    assert_eq!(
        ahead(&mut writer, "CONFIG SET appendfsync always"),
        Reply::OK
    );
    let (_, position) = reader.execute_ahead(&words("GET k"));
    drop(slow);
    assert!(position.at() >= changed, "{position:?}");
}

#[test]
fn a_replica_gets_all_that_is_on_the_disk_whatever_is_written_meanwhile() {
    /// More than sockets hold.
    const UNITS: usize = 100;
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    // It says nothing here, however long this takes.
    ask(&mut engine.session(), "CONFIG SET repl-timeout 3600");
    let value = "v".repeat(320 * 1024);
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let mut replica = Wire::connect(addr).await;
        replica.send("PSYNC ? -1\r\n").await;
        becomes_online(&engine).await;
        let mut writer = engine.session();
        let slow = SlowDisk::new();
        ahead(&mut writer, "SET first 1");
        // It waits for that, and has looked at nothing else yet.
        while log(&engine).waiting() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for n in 0..UNITS {
            ahead(&mut writer, &format!("SET big{n} {value}"));
        }
        let end = engine.inner.lock().feed.offset();
        let all = writer.fed_position();
        drop(slow);
        timeout(PATIENCE, writer.synced(all)).await.unwrap();
        let mut heard = Vec::with_capacity(1 << 20);
        let mut hear = async |until: &str| {
            while memchr::memmem::find(&heard, until.as_bytes()).is_none() {
                // What is looked for may have begun to come.
                heard.drain(..heard.len().saturating_sub(until.len()));
                let read = timeout(PATIENCE, replica.0.read_buf(&mut heard)).await;
                let read = read.unwrap_or_else(|_| panic!("{until:?} is not heard"));
                assert!(read.unwrap() > 0, "it was let go before {until:?}");
            }
        };
        // What was on the disk by then is more than what was sent.
        hear("big10\r\n").await;
        let _slow = SlowDisk::new();
        ahead(&mut writer, "SET other 1");
        assert!(engine.inner.lock().feed.offset() > end);
        hear(&format!("big{}\r\n", UNITS - 1)).await;
    });
}

#[test]
fn subscribers_hear_where_the_data_is_although_the_disk_hangs() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let mut subscriber = Wire::connect(addr).await;
        let channel = crate::handover::CHANNEL;
        let length = channel.len();
        let confirmed = format!("*3\r\n$9\r\nsubscribe\r\n${length}\r\n{channel}\r\n:1\r\n");
        subscriber
            .call(&format!("SUBSCRIBE {channel}"), &confirmed)
            .await;
        let slow = SlowDisk::new();
        ahead(&mut engine.session(), "SET k 1");
        let place = crate::handover::Place::new("localhost", 1);
        crate::handover::commit(&mut engine.inner.lock(), place).unwrap();
        let message =
            format!("*3\r\n$7\r\nmessage\r\n${length}\r\n{channel}\r\n$11\r\nlocalhost:1\r\n");
        subscriber.hears(&message).await;
        drop(slow);
    });
}

#[test]
fn waitaof_is_woken_by_the_disk_and_by_replicas() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let builder = Engine::builder().compat(Compat::Valkey9);
    let builder = builder.append_only(dir.path(), Fsync::EverySec);
    let engine = builder.build().unwrap();
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let mut replica = Wire::connect(addr).await;
        replica.send("PSYNC ? -1\r\n").await;
        becomes_online(&engine).await;
        let (mut local, mut remote) = (Wire::connect(addr).await, Wire::connect(addr).await);
        let slow = SlowDisk::new();
        local.call("SET k 1", "+OK\r\n").await;
        local.send("WAITAOF 1 0 0\r\n").await;
        remote.send("WAITAOF 0 1 0\r\n").await;
        let wait = async {
            while engine.inner.lock().blocking.len() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, wait).await.unwrap();
        let tried = || engine.inner.lock().blocking.tries;
        let (before, begun) = (tried(), Instant::now());
        local.hears_nothing().await;
        tokio::time::sleep(Duration::from_millis(950)).await;
        // Ticks look for both, and each looks for itself once a second.
        let most = 5 + begun.elapsed().as_millis() as u64 * 3 / 100;
        let tries = tried() - before;
        assert!(tries <= most, "looked {tries} times");
        let end = engine.inner.lock().feed.offset();
        let acknowledged = format!("REPLCONF ACK {end} FACK {end}\r\n");
        replica.send(&acknowledged).await;
        remote.hears("*2\r\n:0\r\n:1\r\n").await;
        drop(slow);
        local.hears("*2\r\n:1\r\n:").await;
    });
}

#[test]
fn what_a_transaction_changed_before_it_made_the_log_promise_more_waits_for_the_disk() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::EverySec);
    let (mut writer, mut reader) = (engine.session(), engine.session());
    let slow = SlowDisk::new();
    for line in ["MULTI", "SET k 1", "CONFIG SET appendfsync always", "EXEC"] {
        ahead(&mut writer, line);
    }
    let changed = log(&engine).end();
    let (_, position) = reader.execute_ahead(&words("GET k"));
    drop(slow);
    assert!(position.at() >= changed, "{position:?}");
}

#[test]
fn a_client_that_has_sent_a_lot_and_leaves_while_the_disk_hangs_is_let_go() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let mut wire = Wire::connect(addr).await;
        let slow = SlowDisk::new();
        wire.send("SET a 1\r\n").await;
        becomes(&engine, "EXISTS a", Reply::Int(1)).await;
        let more = "GET a\r\n".repeat(200_000);
        // Sockets may not hold all of it.
        let _ = timeout(PATIENCE / 2, wire.0.write_all(more.as_bytes())).await;
        drop(wire);
        clients_become(&engine, 0).await;
        drop(slow);
    });
}

#[test]
fn a_client_that_only_sends_no_more_gets_its_message_from_a_slow_disk() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    runtime().block_on(async {
        let addr = listen(&engine).await;
        let mut wire = Wire::connect(addr).await;
        wire.send("HELLO 3\r\nSUBSCRIBE news\r\nECHO begun\r\n")
            .await;
        let mut before = Vec::new();
        while !before.ends_with(b"begun\r\n") {
            let byte = timeout(PATIENCE, wire.0.read_u8()).await;
            before.push(byte.expect("nothing is heard").unwrap());
        }
        let slow = SlowDisk::new();
        wire.send("MULTI\r\nSET k 1\r\nPUBLISH news hello\r\nEXEC\r\n")
            .await;
        becomes(&engine, "EXISTS k", Reply::Int(1)).await;
        wire.0.shutdown().await.unwrap();
        wire.hears_nothing().await;
        drop(slow);
        let mut heard = Vec::new();
        let all = timeout(PATIENCE, wire.0.read_to_end(&mut heard)).await;
        all.expect("it does not end").unwrap();
        let heard = String::from_utf8_lossy(&heard);
        assert!(
            heard.contains("hello") && heard.contains("+OK"),
            "{heard:?}"
        );
    });
}

#[test]
fn who_waits_for_replicas_is_answered_in_time_although_the_disk_hangs() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let (mut waiting, mut writer) = (engine.session(), engine.session());
    ask(&mut writer, "SET k 1");
    let slow = SlowDisk::new();
    ahead(&mut writer, "FLUSHALL");
    let Outcome::Blocked(blocked) = waiting.execute(&words("WAIT 1 20")) else {
        panic!("there are replicas");
    };
    let answered = runtime().block_on(async { timeout(Duration::from_secs(5), blocked).await });
    drop(slow);
    assert_eq!(answered, Ok(Reply::ZERO));
}

#[test]
fn who_hears_that_a_watched_key_or_the_keys_of_a_slot_changed_waits_for_the_disk() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let builder = Engine::builder().append_only(dir.path(), Fsync::Always);
    let engine = builder.cluster(true).build().unwrap();
    let (mut writer, mut reader) = (engine.session(), engine.session());
    ask(&mut writer, "SET k 1");
    ask(&mut reader, "WATCH k");
    let slow = SlowDisk::new();
    ahead(&mut writer, "SET k 2");
    let changed = log(&engine).end();
    ahead(&mut reader, "MULTI");
    let slot = crate::hash_slot::of(b"k");
    let mut positions = Vec::new();
    for line in [
        "EXEC".to_owned(),
        format!("CLUSTER COUNTKEYSINSLOT {slot}"),
        format!("CLUSTER GETKEYSINSLOT {slot} 1"),
    ] {
        let (_, position) = reader.execute_ahead(&words(&line));
        positions.push((line, position.at()));
    }
    drop(slow);
    for (line, position) in positions {
        assert!(position >= changed, "{line} does not wait");
    }
}
