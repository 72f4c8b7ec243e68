//! The same commands to the engine and to a real redis-server: every reply must be the same.
//!
//! To add a case, write a test that calls [`compare`] with lines of commands; see the `quote` rules
//! at [`split`]. Lines starting with `@2` or `@3` are sent by a second or third client. Where Redis's
//! order is not defined (members of a set), start the line with `~`: arrays are then compared sorted.
//! A line that starts with `&` must block; the line `?` with the same client reads what came of it,
//! and `!` checks that the client still waits.

#![allow(clippy::unwrap_used)]

use std::{
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use redstart_engine::{Blocked, Compat, Engine, Outcome, Protocol, Reply, Session};
use redstart_testkit::{Kind, block_until};

pub(crate) use differential::wire::Wire;

#[allow(dead_code, reason = "other tests use the address")]
#[path = "listener/running.rs"]
mod listener;

mod differential {
    mod acl;
    mod administration;
    mod bitmap;
    mod blocking;
    mod command;
    mod config;
    mod debug;
    pub(crate) mod dialect;
    mod eviction;
    mod function;
    mod generator;
    mod geo;
    mod hash;
    mod hyperloglog;
    mod info;
    mod keys;
    mod list;
    mod pubsub;
    mod random;
    mod scripting;
    mod sequence;
    mod server;
    mod set;
    mod sorted_set;
    mod stream;
    mod string;
    mod transaction;
    mod valkey;
    pub(crate) mod wire;
}

/// A server of its own, ended with the value.
pub(crate) struct Server {
    process: Child,
    dir: tempfile::TempDir,
    kind: Kind,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::start_kind(Kind::Redis)
    }

    pub(crate) fn start_kind(kind: Kind) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let process = Command::new(redstart_testkit::find::server(kind).unwrap())
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--appendonly",
                "no",
                "--enable-debug-command",
                "yes",
                "--unixsocket",
            ])
            .arg(dir.path().join("redis.sock"))
            .arg("--dir")
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server starts");
        let server = Server { process, dir, kind };
        let listens = || UnixStream::connect(server.socket()).ok();
        block_until("the server to listen", Duration::from_secs(20), listens).unwrap();
        server
    }

    /// A server with a configuration file, which says nothing of addresses.
    pub(crate) fn start_file(file: &std::path::Path) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let process = Command::new(redstart_testkit::find::server(Kind::Redis).unwrap())
            .arg(file)
            .args(["--port", "0", "--unixsocket"])
            .arg(dir.path().join("redis.sock"))
            .arg("--dir")
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server starts");
        let server = Server {
            process,
            dir,
            kind: Kind::Redis,
        };
        let listens = || UnixStream::connect(server.socket()).ok();
        block_until("the server to listen", Duration::from_secs(20), listens).unwrap();
        server
    }

    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub(crate) fn connect(&self) -> Wire {
        Wire::new(UnixStream::connect(self.socket()).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Splits a line at blanks; `"…"` quotes, with `\n`, `\r`, `\t`, `\"`, `\\` and `\xHH` in it.
/// `{a*1000}` as a word of its own is `a` a thousand times.
pub(crate) fn split(line: &str) -> Vec<Bytes> {
    let mut args = Vec::new();
    let mut chars = line.trim().chars().peekable();
    while let Some(&first) = chars.peek() {
        if first == ' ' {
            chars.next();
            continue;
        }
        let mut word = Vec::new();
        if first == '"' {
            chars.next();
            while let Some(c) = chars.next() {
                match c {
                    '"' => break,
                    '\\' => match chars.next().unwrap() {
                        'n' => word.push(b'\n'),
                        'r' => word.push(b'\r'),
                        't' => word.push(b'\t'),
                        'x' => {
                            let hex: String = chars.by_ref().take(2).collect();
                            word.push(u8::from_str_radix(&hex, 16).unwrap());
                        }
                        other => word.push(other as u8),
                    },
                    c => word.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
        } else {
            while let Some(c) = chars.next_if(|&c| c != ' ') {
                word.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
            if let Some((text, times)) = std::str::from_utf8(&word)
                .ok()
                .and_then(|word| word.strip_prefix('{')?.strip_suffix('}')?.split_once('*'))
            {
                word = text.repeat(times.parse().unwrap()).into_bytes();
            }
        }
        args.push(Bytes::from(word));
    }
    args
}

/// Whatever has no order in Redis, in one.
pub(crate) fn sorted(reply: Reply) -> Reply {
    let by_text = |items: Vec<Reply>| {
        let mut items: Vec<Reply> = items.into_iter().map(sorted).collect();
        items.sort_by_key(|item| format!("{item:?}"));
        items
    };
    match reply {
        Reply::Array(items) => Reply::Array(by_text(items)),
        Reply::Set(items) => Reply::Set(by_text(items)),
        Reply::Map(pairs) => {
            let mut pairs: Vec<_> = pairs.into_iter().map(|(k, v)| (k, sorted(v))).collect();
            pairs.sort_by_key(|pair| format!("{pair:?}"));
            Reply::Map(pairs)
        }
        other => other,
    }
}

/// The engine and a server side by side, each with three clients.
pub(crate) struct Pair {
    engine: Engine,
    sessions: Vec<Session>,
    wires: Vec<Wire>,
    protocol: Protocol,
    kind: Kind,
    /// To ask the server how many clients wait.
    monitor: Wire,
    /// What the engine's clients wait for.
    blocked: [Option<Blocked>; 3],
    /// All of them are shown when the pair is dropped.
    differences: Vec<String>,
}

impl Pair {
    pub(crate) fn new(server: &Server, protocol: Protocol) -> Pair {
        let compat = match server.kind {
            Kind::Redis => Compat::Redis70,
            Kind::Valkey => Compat::Valkey9,
        };
        let engine = Engine::builder().compat(compat).build().unwrap();
        let sessions = (0..3)
            .map(|_| match protocol {
                Protocol::Resp2 => engine.session(),
                Protocol::Resp3 => engine.session_resp3(),
            })
            .collect();
        let mut wires: Vec<Wire> = (0..3).map(|_| server.connect()).collect();
        for wire in &mut wires {
            if protocol == Protocol::Resp3 {
                wire.call(&split("HELLO 3"));
            }
        }
        wires[0].call(&split("FLUSHALL"));
        Pair {
            engine,
            sessions,
            wires,
            protocol,
            monitor: server.connect(),
            kind: server.kind,
            blocked: [None, None, None],
            differences: Vec::new(),
        }
    }

    fn block(&mut self, client: usize, args: &[Bytes]) {
        let waiting = self.waiting_on_server();
        self.wires[client].send(args);
        match self.sessions[client].execute(args) {
            Outcome::Blocked(blocked) => self.blocked[client] = Some(blocked),
            Outcome::Reply(reply) => panic!("{args:?} did not block: {reply:?}"),
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.waiting_on_server() == waiting {
            assert!(
                Instant::now() < deadline,
                "the server does not block: {args:?}"
            );
        }
    }

    fn waiting_on_server(&mut self) -> usize {
        let info = match self.monitor.call(&split("INFO clients")) {
            Reply::Bulk(text) => String::from_utf8_lossy(&text).into_owned(),
            other => panic!("{other:?}"),
        };
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("blocked_clients:"));
        line.and_then(|count| count.trim().parse().ok())
            .expect("the number of blocked clients")
    }

    /// Sends one line to both and compares.
    pub(crate) fn line(&mut self, line: &str) {
        let mut rest = line.trim();
        let mut client = 0;
        let mut unordered = false;
        while let Some(c) = rest.chars().next() {
            match c {
                '@' => {
                    client = rest[1..2].parse::<usize>().unwrap() - 1;
                    rest = rest[2..].trim_start();
                }
                '~' => {
                    unordered = true;
                    rest = rest[1..].trim_start();
                }
                '&' => return self.block(client, &split(&rest[1..])),
                '!' => {
                    let blocked = self.blocked[client].as_mut().expect("no waiting client");
                    assert_eq!(blocked.try_take(), None, "{line}");
                    return;
                }
                _ => break,
            }
        }
        let (mut ours, mut theirs);
        if rest == "?" {
            theirs = self.wires[client].read();
            let mut blocked = self.blocked[client].take().expect("no waiting client");
            ours = blocked
                .try_take()
                .unwrap_or_else(|| panic!("still blocked: {line}"));
        } else {
            let args = split(rest);
            theirs = self.wires[client].call(&args);
            ours = match self.sessions[client].execute(&args) {
                Outcome::Reply(reply) => reply,
                Outcome::Blocked(mut blocked) => {
                    // The server's timeout was short, since it has answered.
                    self.engine.advance(Duration::from_millis(100));
                    blocked
                        .try_take()
                        .unwrap_or_else(|| panic!("still blocked: {line}"))
                }
            };
        }
        if self.protocol == Protocol::Resp3 {
            // Both are `_` on the wire.
            ours = nil_array_to_nil(ours);
        }
        if unordered {
            (ours, theirs) = (sorted(ours), sorted(theirs));
        }
        let alike = match self.kind {
            Kind::Redis => same(&ours, &theirs),
            Kind::Valkey => {
                differential::dialect::alike(self.kind, &split(rest), unordered, &ours, &theirs)
            }
        };
        if !alike {
            self.differences
                .push(format!("{line}\n engine: {ours:?}\n server: {theirs:?}"));
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.differences.is_empty() && !std::thread::panicking() {
            let protocol = self.protocol;
            panic!("{protocol:?}:\n{}", self.differences.join("\n"));
        }
    }
}

fn nil_array_to_nil(reply: Reply) -> Reply {
    match reply {
        Reply::NilArray => Reply::Nil,
        Reply::Array(items) => Reply::Array(items.into_iter().map(nil_array_to_nil).collect()),
        Reply::Map(pairs) => Reply::Map(
            pairs
                .into_iter()
                .map(|(key, value)| (key, nil_array_to_nil(value)))
                .collect(),
        ),
        other => other,
    }
}

/// Equality in which a NaN equals a NaN.
fn same(a: &Reply, b: &Reply) -> bool {
    a == b || format!("{a:?}") == format!("{b:?}")
}

/// Runs the lines on both, once in RESP2 and once in RESP3. Empty lines and `#` comments are skipped.
pub(crate) fn compare(script: &str) {
    compare_with(Kind::Redis, script);
}

/// As [`compare()`], with another server; see `dialect.rs` for what may differ then.
pub(crate) fn compare_with(kind: Kind, script: &str) {
    let server = Server::start_kind(kind);
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut pair = Pair::new(&server, protocol);
        for line in script.lines().map(str::trim) {
            if !line.is_empty() && !line.starts_with('#') {
                pair.line(line);
            }
        }
        let found = std::mem::take(&mut pair.differences);
        assert!(
            found.is_empty(),
            "{protocol:?}: {} differ\n{}",
            found.len(),
            found.join("\n")
        );
    }
}
