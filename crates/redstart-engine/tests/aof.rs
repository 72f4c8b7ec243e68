//! The append-only log: what is written is there again, here and in the real servers.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use redstart_engine::{Compat, Engine, Fsync, Reply, Session, server::ServerConfig};
use redstart_testkit::{Kind, block_until};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "rdb/contents.rs"]
mod contents;
#[path = "differential/wire.rs"]
mod wire;

use contents::{Client, words};
use wire::Wire;

/// Where a real server is, as `cargo xtask servers` put it there.
fn program(kind: Kind) -> PathBuf {
    redstart_testkit::find::server(kind).expect("a server, see `cargo xtask servers`")
}

/// A real server on a folder, ended with the value.
struct Server {
    process: Child,
    socket: PathBuf,
}

impl Server {
    fn start(program: &Path, dir: &Path) -> Server {
        let socket = dir.join("server.sock");
        let process = Command::new(program)
            .args(["--port", "0", "--save", "", "--appendonly", "yes"])
            .args(["--aof-use-rdb-preamble", "no", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{} is needed: {error}", program.display()));
        Server { process, socket }
    }

    fn connect(&self) -> Wire {
        let answers = || {
            let mut wire = Wire::new(UnixStream::connect(&self.socket).ok()?);
            (wire.line("PING") == Reply::Status("PONG".into())).then_some(wire)
        };
        block_until("the server to answer", Duration::from_secs(30), answers).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn texts(reply: Reply) -> Vec<Bytes> {
    match reply {
        Reply::Array(items) => items
            .into_iter()
            .map(|item| match item {
                Reply::Bulk(text) => text,
                other => panic!("{other:?}"),
            })
            .collect(),
        other => panic!("{other:?}"),
    }
}

fn sorted_pairs(reply: Reply) -> Vec<Vec<Bytes>> {
    let mut pairs: Vec<Vec<Bytes>> = texts(reply).chunks(2).map(<[Bytes]>::to_vec).collect();
    pairs.sort();
    pairs
}

/// Everything that can be read, in an order that does not depend on who tells it.
fn everything(client: &mut impl Client) -> String {
    let mut all = String::new();
    for db in 0..16 {
        client.line(&format!("SELECT {db}"));
        let mut cursor = "0".to_owned();
        let mut keys = BTreeSet::new();
        loop {
            let Reply::Array(mut page) = client.line(&format!("SCAN {cursor} COUNT 1000")) else {
                panic!("no page");
            };
            keys.extend(texts(page.pop().unwrap()));
            let Reply::Bulk(next) = page.pop().unwrap() else {
                panic!("no cursor");
            };
            cursor = String::from_utf8_lossy(&next).into_owned();
            if cursor == "0" {
                break;
            }
        }
        for key in keys {
            let mut ask = |words: &[&str]| {
                let mut args: Vec<Bytes> = words
                    .iter()
                    .map(|w| Bytes::copy_from_slice(w.as_bytes()))
                    .collect();
                for arg in &mut args {
                    if arg.as_ref() == b"KEY" {
                        *arg = key.clone();
                    }
                }
                client.ask(&args)
            };
            let kind = format!("{:?}", ask(&["TYPE", "KEY"]));
            let value = match kind.as_str() {
                "Status(\"string\")" => format!("{:?}", ask(&["GET", "KEY"])),
                "Status(\"list\")" => format!("{:?}", ask(&["LRANGE", "KEY", "0", "-1"])),
                "Status(\"set\")" => {
                    format!(
                        "{:?}",
                        texts(ask(&["SMEMBERS", "KEY"]))
                            .into_iter()
                            .collect::<BTreeSet<_>>()
                    )
                }
                "Status(\"hash\")" => format!("{:?}", sorted_pairs(ask(&["HGETALL", "KEY"]))),
                "Status(\"zset\")" => {
                    // Valkey writes doubles with fewer digits.
                    let words = texts(ask(&["ZRANGE", "KEY", "0", "-1", "WITHSCORES"]));
                    let pairs = words.chunks(2).map(|pair| {
                        let score = std::str::from_utf8(&pair[1]).unwrap();
                        (pair[0].clone(), score.parse::<f64>().unwrap())
                    });
                    format!("{:?}", pairs.collect::<Vec<_>>())
                }
                "Status(\"stream\")" => format!(
                    "{:?} {:?} {:?}",
                    ask(&["XRANGE", "KEY", "-", "+"]),
                    ask(&["XINFO", "GROUPS", "KEY"]),
                    ask(&["XPENDING", "KEY", "g", "-", "+", "100"]).is_error(),
                ),
                other => other.to_owned(),
            };
            let deadline = ask(&["PEXPIRETIME", "KEY"]);
            all.push_str(&format!("{db} {key:?} {kind} {deadline:?} {value}\n"));
        }
    }
    let Reply::Array(libraries) = client.line("FUNCTION LIST WITHCODE") else {
        panic!("no libraries");
    };
    // The name of a library and its code; the order is that of a hash table.
    let told = |library: Reply| match library {
        Reply::Array(fields) => format!("{:?} {:?}\n", fields[1], fields.last()),
        other => panic!("{other:?}"),
    };
    let libraries: BTreeSet<String> = libraries.into_iter().map(told).collect();
    all.extend(libraries);
    all
}

/// Code of a library whose function of the same name answers a number.
fn library(name: &str, answer: usize) -> Bytes {
    let register = format!("redis.register_function('{name}', function() return {answer} end)");
    format!("#!lua name={name}\n{register}").into()
}

fn fill(session: &mut Session, round: usize) {
    let lines = [
        "SET s{r} hello",
        "SET s{r}:expiring x EX 1000",
        "SET s{r}:gone x PX 1",
        "APPEND s{r} world",
        "INCR n{r}",
        "INCRBYFLOAT n{r} 0.1",
        "SETRANGE s{r} 3 ___",
        "SETBIT bits{r} 77 1",
        "PFADD hll{r} a b c d",
        "GEOADD geo{r} 13.361389 38.115556 Palermo 15.087269 37.502669 Catania",
        "RPUSH l{r} a b c d e",
        "LPOP l{r}",
        "LMOVE l{r} m{r} LEFT RIGHT",
        "SADD set{r} 1 2 3 x y z",
        "SADD ints{r} 3 1 2",
        "SPOP set{r} 2",
        "SMOVE set{r} other{r} nothing",
        "HSET h{r} a 1 b 2 c 3",
        "HINCRBYFLOAT h{r} a 1.5",
        "HDEL h{r} b",
        "ZADD z{r} 1 a 2.5 b inf c -inf d",
        "ZINCRBY z{r} 0.1 a",
        "ZPOPMAX z{r}",
        "XADD x{r} * a 1",
        "XADD x{r} * a 2 b 3",
        "XADD x{r} MAXLEN ~ 10 * c 4",
        "XGROUP CREATE x{r} g 0",
        "XREADGROUP GROUP g c COUNT 2 STREAMS x{r} >",
        "XAUTOCLAIM x{r} g d 0 0 COUNT 1",
        "XGROUP CREATE e{r} g $ MKSTREAM",
        "MULTI",
        "SET t{r} 1",
        "INCR t{r}",
        "EXPIRE t{r} 500",
        "EXEC",
        "SELECT 3",
        "SET elsewhere{r} 1",
        "COPY elsewhere{r} copied{r}",
        "SELECT 0",
        "MOVE t{r} 3",
        "RENAME n{r} renamed{r}",
        "GETEX s{r} EX 700",
        "GETDEL other{r}",
    ];
    for line in lines {
        let reply = session.line(&line.replace("{r}", &round.to_string()));
        assert!(!reply.is_error(), "{line}: {reply:?}");
    }
    let script = "redis.call('SET', KEYS[1], ARGV[1]) redis.call('EXPIRE', KEYS[1], 900) \
                  return redis.call('INCR', KEYS[1])";
    let eval = ["EVAL", script, "1", &format!("script{round}"), "41"]
        .map(|word| Bytes::copy_from_slice(word.as_bytes()));
    assert_eq!(session.ask(&eval), Reply::Int(42));
    for (name, answer) in [("kept", 1), ("kept", 2), ("dropped", 3)] {
        let words = ["FUNCTION", "LOAD", "REPLACE"].map(Bytes::from);
        let code = library(&format!("{name}{round}"), answer);
        let reply = session.ask(&[&words[..], &[code]].concat());
        assert!(!reply.is_error(), "{reply:?}");
    }
    let reply = session.line(&format!("FUNCTION DELETE dropped{round}"));
    assert_eq!(reply, Reply::OK);
    let binary: Vec<u8> = (0..=255).collect();
    let set = [
        Bytes::from_static(b"SET"),
        Bytes::from(format!("bin{round}\r\n\0")),
        Bytes::from(binary.repeat(20)),
    ];
    assert_eq!(session.ask(&set), Reply::OK);
    for n in 0..300 {
        session.line(&format!("ZADD big{round} {n}.5 member:{n}"));
        session.line(&format!("HSET bigh{round} field:{n} {n}"));
        session.line(&format!("RPUSH bigl{round} {n}"));
    }
}

fn open(dir: &Path, fsync: Fsync) -> Engine {
    Engine::builder().append_only(dir, fsync).build().unwrap()
}

fn wait_for_keys_to_expire(session: &mut Session) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while session.line("EXISTS s0:gone s1:gone") != Reply::Int(0) {
        assert!(Instant::now() < deadline);
    }
}

fn check_aof(dir: &Path) {
    let manifest = dir.join("appendonlydir/appendonly.aof.manifest");
    let output = Command::new("redis-check-aof")
        .arg(&manifest)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("All AOF files and manifest are valid"),
        "{text}"
    );
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("appendonlydir")).unwrap();
    for file in fs::read_dir(from.join("appendonlydir")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join("appendonlydir").join(file.file_name())).unwrap();
    }
}

fn servers_agree(dir: &Path, expected: &str) {
    check_aof(dir);
    for program in [program(Kind::Redis), program(Kind::Valkey)] {
        let theirs = tempfile::tempdir().unwrap();
        copy(dir, theirs.path());
        let server = Server::start(&program, theirs.path());
        let loaded = everything(&mut server.connect());
        for (ours, theirs) in expected.lines().zip(loaded.lines()) {
            assert_eq!(ours, theirs, "{}", program.display());
        }
        assert_eq!(
            expected.lines().count(),
            loaded.lines().count(),
            "{}",
            program.display()
        );
    }
}

#[test]
fn the_real_servers_load_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::EverySec);
    let mut session = engine.session();
    fill(&mut session, 0);
    wait_for_keys_to_expire(&mut session);
    let expected = everything(&mut session);
    drop((session, engine));
    servers_agree(dir.path(), &expected);
    let again = open(dir.path(), Fsync::No);
    assert_eq!(everything(&mut again.session()), expected);
}

/// Starts to rewrite the log for the first time.
fn start_rewrite(session: &mut Session) {
    let started = Reply::Status("Background append only file rewriting started".into());
    assert_eq!(session.line("BGREWRITEAOF"), started);
}

fn wait_for_rewrite(dir: &Path) {
    let base = dir.join("appendonlydir/appendonly.aof.1.base.aof");
    let old = dir.join("appendonlydir/appendonly.aof.1.incr.aof");
    let rewritten = || (base.exists() && !old.exists()).then_some(());
    block_until("the new log", Duration::from_secs(60), rewritten).unwrap();
}

#[test]
fn a_rewritten_log_holds_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::EverySec);
    let mut session = engine.session();
    fill(&mut session, 0);
    start_rewrite(&mut session);
    // Callers go on meanwhile.
    fill(&mut session, 1);
    wait_for_rewrite(dir.path());
    wait_for_keys_to_expire(&mut session);
    let expected = everything(&mut session);
    drop((session, engine));
    servers_agree(dir.path(), &expected);
    let again = open(dir.path(), Fsync::No);
    assert_eq!(everything(&mut again.session()), expected);
}

/// No command sets a negative count, so such a one is written as unknown.
#[test]
fn a_count_of_read_entries_that_wrapped_around_is_unknown_after_a_restart() {
    for rewrite in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path(), Fsync::EverySec);
        let mut session = engine.session();
        for line in [
            "XGROUP CREATE x g 0 MKSTREAM ENTRIESREAD 9223372036854775807",
            "XADD x 1-1 a b",
            "XREADGROUP GROUP g c STREAMS x >",
        ] {
            let reply = session.line(line);
            assert!(!reply.is_error(), "{line}: {reply:?}");
        }
        let groups = |session: &mut Session| format!("{:?}", session.line("XINFO GROUPS x"));
        let live = groups(&mut session);
        assert!(live.contains(&format!("Int({})", i64::MIN)), "{live}");
        if rewrite {
            start_rewrite(&mut session);
            wait_for_rewrite(dir.path());
        }
        drop((session, engine));
        let again = open(dir.path(), Fsync::No);
        let loaded = groups(&mut again.session());
        let unknown = r#"Bulk(b"entries-read"), Nil, Bulk(b"lag"), Int(0)"#;
        assert!(loaded.contains(unknown), "{loaded}");
        let expected = everything(&mut again.session());
        drop(again);
        servers_agree(dir.path(), &expected);
    }
}

#[test]
fn what_redis_wrote_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&program(Kind::Redis), dir.path());
    let mut wire = server.connect();
    for line in [
        "SET a 1",
        "RPUSH l a b c",
        "XADD x 5-1 f v",
        "XGROUP CREATE x g 0",
        "XREADGROUP GROUP g c STREAMS x >",
        "ZADD z 1.5 a",
        "EXPIRE a 1000",
    ] {
        assert!(!wire.line(line).is_error(), "{line}");
    }
    let load = |code: Bytes| ["FUNCTION".into(), "LOAD".into(), code];
    assert!(!wire.ask(&load(library("early", 1))).is_error());
    wire.line("BGREWRITEAOF");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let Reply::Bulk(info) = wire.line("INFO persistence") else {
            panic!("no text");
        };
        let info = String::from_utf8_lossy(&info).into_owned();
        if info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrites:1") {
            break;
        }
        assert!(Instant::now() < deadline, "{info}");
    }
    for line in [
        "MULTI",
        "INCR a",
        "SADD s x y",
        "EXEC",
        "SELECT 2",
        "SET b 2",
        "SELECT 0",
    ] {
        assert!(!wire.line(line).is_error(), "{line}");
    }
    assert!(!wire.ask(&load(library("late", 2))).is_error());
    let expected = everything(&mut wire);
    wire.send(&words("SHUTDOWN NOSAVE"));
    let mut server = server;
    server.process.wait().unwrap();
    let engine = open(dir.path(), Fsync::EverySec);
    let mut session = engine.session();
    assert_eq!(everything(&mut session), expected);
    assert_eq!(session.line("FCALL early 0"), Reply::Int(1));
    assert_eq!(session.line("FCALL late 0"), Reply::Int(2));
}

#[test]
fn a_torn_end_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::Always);
    let mut session = engine.session();
    session.line("SET a 1");
    session.line("SET b 2");
    drop((session, engine));
    let file = dir.path().join("appendonlydir/appendonly.aof.1.incr.aof");
    let whole = fs::read(&file).unwrap();
    let multi = b"*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n9\r\n";
    for torn in [
        &b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhal"[..],
        b"*",
        multi,
        b"\0\0\0\0",
    ] {
        fs::write(&file, [&whole[..], torn].concat()).unwrap();
        let engine = open(dir.path(), Fsync::Always);
        let mut session = engine.session();
        assert_eq!(session.line("GET a"), Reply::bulk("1"));
        assert_eq!(session.line("GET b"), Reply::bulk("2"));
        drop((session, engine));
        assert_eq!(fs::read(&file).unwrap(), whole);
    }
    // Damage elsewhere is not passed over.
    let mut damaged = whole.clone();
    damaged[1] = b'x';
    fs::write(&file, damaged).unwrap();
    assert!(
        Engine::builder()
            .append_only(dir.path(), Fsync::No)
            .build()
            .is_err()
    );
}

#[test]
fn one_engine_per_folder() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path(), Fsync::No);
    assert!(
        Engine::builder()
            .append_only(dir.path(), Fsync::No)
            .build()
            .is_err()
    );
    drop(first);
    open(dir.path(), Fsync::No);
}

/// Not a test of its own: the process that the next test kills.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Ok(dir) = std::env::var("REDSTART_AOF_CHILD") else {
        return;
    };
    // A killed process loses nothing either way: the kernel has what was acknowledged.
    let fsync = match std::env::var("REDSTART_AOF_FSYNC").as_deref() {
        Ok("everysec") => Fsync::EverySec,
        _ => Fsync::Always,
    };
    let engine = open(Path::new(&dir), fsync);
    let mut workers = Vec::new();
    for worker in 0..4 {
        let mut session = engine.session();
        workers.push(std::thread::spawn(move || {
            let script = "redis.call('SET', KEYS[1], ARGV[1]) redis.call('RPUSH', 'all', ARGV[1])";
            for n in 0.. {
                let key = format!("{worker}:{n}");
                match n % 4 {
                    0 => {
                        session.line("MULTI");
                        session.line(&format!("HSET last {worker} {n}"));
                        session.line(&format!("SET {key} {n}"));
                        assert!(!session.line("EXEC").is_error());
                    }
                    1 => {
                        let words = ["EVAL", script, "1", &key, &n.to_string()];
                        let args = words.map(|word| Bytes::copy_from_slice(word.as_bytes()));
                        assert!(!session.ask(&args).is_error());
                    }
                    _ => assert_eq!(session.line(&format!("SET {key} {n}")), Reply::OK),
                }
                // Also while the log is being rewritten, by the first of them.
                if n % 23 == 7 {
                    session.line("BGREWRITEAOF");
                }
                // One write per line, so that lines of workers do not mix.
                std::io::stdout()
                    .write_all(format!("acked {worker}:{n}\n").as_bytes())
                    .unwrap();
            }
        }));
    }
    for worker in workers {
        worker.join().unwrap();
    }
}

#[test]
fn no_acknowledged_write_is_lost_when_the_process_is_killed() {
    let rounds = redstart_testkit::scale(4, "kills");
    let dir = tempfile::tempdir().unwrap();
    let mut acked = BTreeSet::new();
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child_that_writes_until_it_is_killed",
                "--nocapture",
            ])
            .env("REDSTART_AOF_CHILD", dir.path())
            .env(
                "REDSTART_AOF_FSYNC",
                if round % 2 == 0 { "always" } else { "everysec" },
            )
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let mut seen = 0;
        // A different moment each time.
        let enough = 20 + round * 37 % 211;
        while lines.read_line(&mut line).unwrap() > 0 {
            if let Some(at) = line.find("acked ") {
                acked.insert(line[at + 6..].trim().to_owned());
                seen += 1;
            }
            line.clear();
            if seen == enough {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= enough, "the child wrote only {seen}");
        let engine = open(dir.path(), Fsync::Always);
        let mut session = engine.session();
        for key in &acked {
            let value = key.split(':').nth(1).unwrap();
            assert_eq!(
                session.line(&format!("GET {key}")),
                Reply::bulk(value),
                "{key}"
            );
        }
    }
    // What is left after all the kills is a log like any other.
    let engine = open(dir.path(), Fsync::Always);
    let expected = everything(&mut engine.session());
    drop(engine);
    servers_agree(dir.path(), &expected);
}

/// Not a test of its own: a listener whose files may not grow for long.
#[test]
fn child_that_listens_on_a_small_disk() {
    let Ok(dir) = std::env::var("REDSTART_SMALL_DISK") else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let engine = open(Path::new(&dir), Fsync::EverySec);
        let config = ServerConfig::new().unix(Path::new(&dir).join("engine.sock"));
        let server = redstart_engine::server::Server::bind(engine, config)
            .await
            .unwrap();
        std::io::stdout().write_all(b"listening\n").unwrap();
        server.run(std::future::pending()).await;
    });
}

#[test]
fn no_script_is_acknowledged_on_a_full_disk_and_then_lost() {
    let dir = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    // A limit on the size of files stands for a full disk; without the trap it would be a signal.
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact child_that_listens_on_a_small_disk --nocapture";
    let mut child = Command::new("sh")
        .args(["-c", limited])
        .arg(&this)
        .env("REDSTART_SMALL_DISK", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("listening")));
    let connect = || Wire::new(UnixStream::connect(dir.path().join("engine.sock")).unwrap());
    let mut wire = connect();
    let script = "return redis.call('SET', KEYS[1], ARGV[1])";
    let filler = "x".repeat(1000);
    let mut acked = 0;
    loop {
        let words = ["EVAL", script, "1", &format!("k{acked}"), &filler];
        let args = words.map(|word| Bytes::copy_from_slice(word.as_bytes()));
        match wire.call(&args) {
            Reply::Error(text) if text.contains("MISCONF") => break,
            reply => assert_eq!(reply, Reply::OK),
        }
        acked += 1;
        assert!(acked < 10_000, "the disk is never full");
    }
    assert!(acked > 10);
    // The connection that was told so is closed; others are refused before anything happens.
    let mut wire = connect();
    for _ in 0..10 {
        let words = ["EVAL", script, "1", "never", &filler];
        let args = words.map(|word| Bytes::copy_from_slice(word.as_bytes()));
        let reply = wire.call(&args);
        assert!(
            matches!(&reply, Reply::Error(text) if text.contains("MISCONF")),
            "{reply:?}"
        );
    }
    assert_eq!(wire.line("GET k0"), Reply::bulk(filler.as_str()));
    child.kill().unwrap();
    child.wait().unwrap();
    let engine = open(dir.path(), Fsync::EverySec);
    let mut session = engine.session();
    for n in 0..acked {
        assert_eq!(
            session.line(&format!("GET k{n}")),
            Reply::bulk(filler.as_str())
        );
    }
    assert_eq!(session.line("GET never"), Reply::Nil);
}

#[test]
fn a_stream_that_an_approximate_trim_emptied_is_empty_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), Fsync::No);
    let mut session = engine.session();
    for key in ["trimmed", "added", "capped"] {
        for n in 1..=300 {
            session.line(&format!("XADD {key} {n}-1 f v"));
        }
    }
    assert_eq!(
        session.line("XTRIM trimmed MINID ~ 1000 LIMIT 0"),
        Reply::Int(300)
    );
    session.line("XADD added MINID ~ 1000 LIMIT 0 301-1 f v");
    session.line("XADD capped MAXLEN ~ 0 LIMIT 0 301-1 f v");
    let lens = |session: &mut Session| {
        ["trimmed", "added", "capped"].map(|key| session.line(&format!("XLEN {key}")))
    };
    let expected = lens(&mut session);
    assert_eq!(expected[0], Reply::Int(0));
    drop((session, engine));
    let engine = open(dir.path(), Fsync::No);
    assert_eq!(lens(&mut engine.session()), expected);
    let expected = everything(&mut engine.session());
    drop(engine);
    servers_agree(dir.path(), &expected);
}

#[test]
fn the_log_begins_and_ends_while_the_engine_runs() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = redstart_engine::Settings::new();
    settings
        .set("dir", &dir.path().display().to_string())
        .unwrap();
    let engine = Engine::builder().settings(settings).build().unwrap();
    let mut session = engine.session();
    session.line("SET before 1");
    // Others write all the while: none of them waits for a log that has ended.
    struct AtEnd<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for AtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = AtEnd(&stop);
        for _ in 0..2 {
            let mut writer = engine.session();
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let reply = writer.line("INCR others");
                    assert!(matches!(reply, Reply::Int(_)), "{reply:?}");
                }
            });
        }
        for round in 0..3 {
            for line in [
                "CONFIG SET appendonly yes".to_owned(),
                format!("SET kept{round} 1"),
                "CONFIG SET appendfsync always".to_owned(),
                format!("SET synced{round} 1"),
                "CONFIG SET appendfsync everysec".to_owned(),
                "CONFIG SET appendonly no".to_owned(),
                format!("SET between{round} 1"),
            ] {
                assert_eq!(session.line(&line), Reply::OK, "{line}");
            }
        }
        assert_eq!(session.line("CONFIG SET appendonly yes"), Reply::OK);
        assert_eq!(session.line("SET last 1"), Reply::OK);
    });
    let size = session.line("DBSIZE");
    assert_eq!(size, Reply::Int(12));
    let others = session.line("GET others");
    // Nobody else gets the folder while it is written.
    assert!(
        Engine::builder()
            .append_only(dir.path(), Fsync::No)
            .build()
            .is_err()
    );
    drop((session, engine));
    let again = Engine::builder()
        .append_only(dir.path(), Fsync::No)
        .build()
        .unwrap();
    let mut session = again.session();
    assert_eq!(session.line("DBSIZE"), size);
    assert_eq!(session.line("GET others"), others);
}

/// What HPEXPIRETIME says of fields that expire.
fn field_deadlines(client: &mut impl Client) -> String {
    client.line("SELECT 0");
    let mut all = String::new();
    for key in ["h", "copy", "float", "kept"] {
        let hash = sorted_pairs(client.line(&format!("HGETALL {key}")));
        let deadlines = client.line(&format!("HPEXPIRETIME {key} FIELDS 5 a b c d e"));
        all.push_str(&format!("{key} {hash:?} {deadlines:?}\n"));
    }
    all
}

#[test]
fn deadlines_of_fields_are_kept_and_valkey_loads_them() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let builder = Engine::builder().append_only(dir.path(), Fsync::No);
        builder.compat(Compat::Valkey9).build().unwrap()
    };
    let engine = open();
    let mut session = engine.session();
    for line in [
        "HSET h a 1 b 2 c 3 d 4 e 5",
        "HEXPIRE h 1000 FIELDS 2 a b",
        "HPEXPIRE h 2000000 FIELDS 1 c",
        "HPEXPIRE h 1 FIELDS 1 d",
        "HPEXPIREAT h 1 FIELDS 1 e",
        "COPY h copy",
        "HPERSIST copy FIELDS 1 a",
        "HGETDEL copy FIELDS 1 b",
        "HSET float a 1",
        "HEXPIRE float 1000 FIELDS 1 a",
        "HINCRBYFLOAT float a 1.5",
        "HSETEX kept EX 1000 FIELDS 2 a 1 b 2",
        "HSETEX kept KEEPTTL FIELDS 2 a 3 c 4",
        "HGETEX kept PERSIST FIELDS 1 b",
        "HSETEX kept PXAT 1 FIELDS 1 d 5",
        "MSETEX 2 m1 1 m2 2 EX 1000",
        "SET cond a",
        "SET cond b IFEQ a EX 1000",
        "SET gone a",
        "DELIFEQ gone a",
    ] {
        assert!(!session.line(line).is_error(), "{line}");
    }
    // A library that only Valkey can load.
    let code =
        "#!lua name=of_valkey\nserver.register_function('of_valkey', function() return 1 end)";
    let load = ["FUNCTION", "LOAD", code].map(Bytes::from);
    assert_eq!(session.ask(&load), Reply::bulk("of_valkey"));
    let deadline = Instant::now() + Duration::from_secs(20);
    while session.line("HEXISTS h d") != Reply::Int(0) {
        assert!(Instant::now() < deadline);
    }
    let expected = (everything(&mut session), field_deadlines(&mut session));
    drop((session, engine));
    let again = open();
    let mut session = again.session();
    let loaded = (everything(&mut session), field_deadlines(&mut session));
    assert_eq!(loaded, expected);
    // By the effects, and by the rewritten log.
    for rewrite in [false, true] {
        if rewrite {
            start_rewrite(&mut session);
            wait_for_rewrite(dir.path());
        }
        let theirs = tempfile::tempdir().unwrap();
        copy(dir.path(), theirs.path());
        let server = Server::start(&program(Kind::Valkey), theirs.path());
        let mut wire = server.connect();
        let loaded = (everything(&mut wire), field_deadlines(&mut wire));
        assert_eq!(loaded, expected);
    }
    drop((session, again));
    let mut session = open().session();
    let loaded = (everything(&mut session), field_deadlines(&mut session));
    assert_eq!(loaded, expected);
}

#[test]
fn a_rewrite_that_cannot_repeat_a_command_keeps_the_old_log() {
    let dir = tempfile::tempdir().unwrap();
    let open = |compat| {
        let builder = Engine::builder().append_only(dir.path(), Fsync::No);
        builder.compat(compat).build().unwrap()
    };
    let engine = open(Compat::Valkey9);
    let code = "#!lua name=l\nserver.register_function('answer', function() return 42 end)";
    let load = ["FUNCTION", "LOAD", code].map(Bytes::from);
    assert_eq!(engine.session().ask(&load), Reply::bulk("l"));
    drop(engine);
    // To Redis 7.0 the library means nothing.
    let engine = open(Compat::Redis70);
    let mut session = engine.session();
    assert!(session.line("FCALL answer 0").is_error());
    start_rewrite(&mut session);
    let failed = || {
        let info = format!("{:?}", session.line("INFO persistence"));
        info.contains("aof_last_bgrewrite_status:err").then_some(())
    };
    block_until("the rewrite to fail", Duration::from_secs(60), failed).unwrap();
    drop((session, engine));
    let engine = open(Compat::Valkey9);
    assert_eq!(engine.session().line("FCALL answer 0"), Reply::Int(42));
}
