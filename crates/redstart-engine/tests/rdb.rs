//! RDB: what one of the engine, Redis and Valkey dumps or saves, the others restore and load, and
//! damage is an error.

#![allow(clippy::unwrap_used)]

#[path = "rdb/contents.rs"]
mod contents;
#[path = "rdb/damage.rs"]
mod damage;
#[path = "rdb/folder.rs"]
mod folder;
#[path = "listener/running.rs"]
mod listener;
#[path = "rdb/module.rs"]
mod module;
#[path = "rdb/old.rs"]
mod old;
#[path = "rdb/payload.rs"]
mod payload;
#[path = "rdb/random.rs"]
mod random;
#[path = "rdb/restored.rs"]
mod restored;
#[path = "rdb/snapshot.rs"]
mod snapshot;
#[path = "differential/wire.rs"]
mod wire;

use std::{
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use redstart_engine::Reply;
use redstart_testkit::{Kind, block_until, find};

use contents::{Client, bulk, command};
use random::{Chance, value};
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

/// The same payload with some bytes in the place of others.
fn with_bytes(payload: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = payload
        .windows(from.len())
        .position(|part| part == from)
        .expect("the bytes");
    let changed = [&payload[..at], to, &payload[at + from.len()..]].concat();
    old::with_new_checksum(changed)
}
