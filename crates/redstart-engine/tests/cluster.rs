//! A cluster of one node: compared with a redis-server, and used by cluster clients.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use redstart_engine::{Compat, Engine, server::ServerConfig};
use redstart_testkit::{Kind, block_until, find};

#[path = "listener/running.rs"]
mod running;

use running::Running;

fn start(kind: Kind, cluster: bool) -> Running {
    let compat = match kind {
        Kind::Redis => Compat::Redis70,
        Kind::Valkey => Compat::Valkey9,
    };
    let engine = Engine::builder().compat(compat).cluster(cluster);
    Running::start(engine.build().unwrap(), ServerConfig::new())
}

/// A server as a cluster of one node, or as none.
struct Redis {
    process: Child,
    addr: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Redis {
    fn start(kind: Kind, cluster: bool) -> Redis {
        // The port of the cluster's bus is 10000 above, and somebody may take either meanwhile.
        loop {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port() % 20_000 + 20_000;
            drop(free);
            let dir = tempfile::tempdir().unwrap();
            let mut process = Command::new(find::server(kind).unwrap())
                .args(["--save", "", "--bind", "127.0.0.1", "--port"])
                .arg(port.to_string())
                .args(["--cluster-enabled", if cluster { "yes" } else { "no" }])
                .arg("--dir")
                .arg(dir.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let addr = SocketAddr::from(([127, 0, 0, 1], port));
            let ours = block_until(
                "the server to listen",
                Duration::from_secs(20),
                || match process.try_wait() {
                    Ok(Some(_)) => Some(false),
                    _ => {
                        let pid = process.id();
                        let info = Wire::open(addr).ok()?.call("INFO server");
                        Some(info.contains(&format!("process_id:{pid}\r")))
                    }
                },
            );
            if !ours.unwrap() {
                let _ = process.kill();
                let _ = process.wait();
                continue;
            }
            let redis = Redis {
                process,
                addr,
                _dir: dir,
            };
            if cluster {
                let mut wire = Wire::open(addr).unwrap();
                assert_eq!(wire.call("CLUSTER ADDSLOTSRANGE 0 16383"), "+OK\r\n");
                let whole = || {
                    wire.call("CLUSTER INFO")
                        .contains("cluster_state:ok")
                        .then_some(())
                };
                block_until("the cluster", Duration::from_secs(20), whole).unwrap();
            }
            return redis;
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A connection that shows replies as they are on the wire.
struct Wire(BufReader<TcpStream>);

impl Wire {
    fn open(addr: SocketAddr) -> std::io::Result<Wire> {
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Wire(BufReader::new(stream)))
    }

    fn call(&mut self, line: &str) -> String {
        let request = format!("{line}\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        self.read(&mut reply);
        reply
    }

    fn read(&mut self, reply: &mut String) {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        reply.push_str(&line);
        let count = || line[1..].trim().parse::<i64>().unwrap();
        match line.as_bytes().first() {
            Some(b'$' | b'=') if count() >= 0 => {
                let mut bulk = vec![0; count() as usize + 2];
                self.0.read_exact(&mut bulk).unwrap();
                reply.push_str(&String::from_utf8_lossy(&bulk));
            }
            Some(b'*' | b'~' | b'>') => (0..count()).for_each(|_| self.read(reply)),
            Some(b'%') => (0..2 * count()).for_each(|_| self.read(reply)),
            _ => {}
        }
    }
}

/// Sends the lines to both; what differs by nature is made equal first.
fn compare(kind: Kind, cluster: bool, lines: &str) {
    let (redis, engine) = (Redis::start(kind, cluster), start(kind, cluster));
    let mut theirs = Wire::open(redis.addr).unwrap();
    let mut ours = Wire::open(engine.addr).unwrap();
    let ids = [&mut theirs, &mut ours].map(|wire| {
        let reply = wire.call("CLUSTER MYID");
        reply.lines().nth(1).unwrap_or("none").to_owned()
    });
    let (theirs, ours) = (&mut theirs, &mut ours);
    let mut differences = Vec::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let ask = |wire: &mut Wire, id: &str, port: u16| {
            let reply = wire.call(&line.replace("MYSELF", id));
            let reply = reply
                .replace(id, "MYSELF")
                .replace(&format!(":{port}"), ":PORT");
            let reply = reply.replace(&format!("@{}", u32::from(port) + 10_000), "@BUS");
            // Redis does not know its address before another node has told it.
            let reply = reply
                .replace("$9\r\n127.0.0.1", "$0\r\n")
                .replace("127.0.0.1:", ":");
            let lengths = |part: &str| match part.starts_with('$') || part.starts_with('=') {
                true => part[..1].to_owned(),
                false => part.to_owned(),
            };
            reply.split("\r\n").map(lengths).collect::<Vec<_>>()
        };
        let theirs = ask(theirs, &ids[0], redis.addr.port());
        let ours = ask(ours, &ids[1], engine.addr.port());
        if ours != theirs {
            differences.push(format!("{line}\n engine: {ours:?}\n server: {theirs:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_node_that_owns_all_slots_answers_alike() {
    compare(
        Kind::Redis,
        true,
        "
        CLUSTER SLOTS
        CLUSTER SHARDS
        CLUSTER KEYSLOT somekey
        CLUSTER KEYSLOT foo{hash_tag}
        CLUSTER COUNTKEYSINSLOT 11058
        SET somekey 1
        CLUSTER COUNTKEYSINSLOT 11058
        CLUSTER GETKEYSINSLOT 11058 10
        CLUSTER GETKEYSINSLOT 11058 0
        CLUSTER GETKEYSINSLOT 11058 -1
        CLUSTER GETKEYSINSLOT 16384 1
        CLUSTER COUNTKEYSINSLOT 16384
        CLUSTER COUNTKEYSINSLOT -1
        CLUSTER COUNTKEYSINSLOT x
        CLUSTER LINKS
        CLUSTER COUNT-FAILURE-REPORTS MYSELF
        CLUSTER COUNT-FAILURE-REPORTS nobody
        CLUSTER REPLICAS MYSELF
        CLUSTER SLAVES MYSELF
        CLUSTER REPLICAS nobody
        CLUSTER FORGET nobody
        CLUSTER FORGET MYSELF
        CLUSTER REPLICATE nobody
        CLUSTER REPLICATE MYSELF
        CLUSTER FAILOVER
        CLUSTER FAILOVER FOO
        CLUSTER ADDSLOTS 5
        CLUSTER ADDSLOTS x
        CLUSTER ADDSLOTS 16384
        CLUSTER SAVECONFIG
        CLUSTER RESET
        CLUSTER RESET FOO
        CLUSTER NOSUCH
        CLUSTER
        READONLY
        READWRITE
        ASKING
        SELECT 0
        SELECT 1
        SWAPDB 0 1
        MOVE somekey 1
        MGET a b
        MGET {t}a {t}b
        MSET a 1 b 2
        SORT l BY w_*
        SORT l GET #
        MULTI
        SET a 1
        SET b 1
        EXEC
        MULTI
        SET {t}a 1
        SET {t}b 1
        EXEC
        EVAL 'return 1' 2 a b
        EVAL 'return 1' 2 {t}a {t}b
        CONFIG GET cluster-enabled
        CONFIG GET databases
        DEL somekey
        ",
    );
}

#[test]
fn a_server_that_is_no_cluster_says_so_alike() {
    compare(
        Kind::Redis,
        false,
        "
        CLUSTER SLOTS
        CLUSTER INFO
        CLUSTER MYID
        CLUSTER NODES
        CLUSTER KEYSLOT a
        CLUSTER HELP
        CLUSTER RESET
        CLUSTER ADDSLOTS 1
        CLUSTER NOSUCH
        READONLY
        READWRITE
        ASKING
        MGET a b
        CONFIG GET cluster-enabled
        ",
    );
}

#[test]
fn what_valkey_has_for_slots_answers_alike() {
    // The slots of these keys are 15891, 7629 and 15891.
    compare(
        Kind::Valkey,
        true,
        "
        SET {t}a 1
        SET {k}b 1
        SET {t}c 1
        CLUSTER KEYSLOT {t}a
        CLUSTER KEYSLOT {k}b
        CLUSTER SLOT-STATS SLOTSRANGE 15891 15891
        CLUSTER SLOT-STATS SLOTSRANGE 7629 7631
        CLUSTER SLOT-STATS SLOTSRANGE 0 16384
        CLUSTER SLOT-STATS SLOTSRANGE 5 3
        CLUSTER SLOT-STATS SLOTSRANGE x 3
        CLUSTER SLOT-STATS SLOTSRANGE 5
        CLUSTER SLOT-STATS ORDERBY KEY-COUNT
        CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 3
        CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 3 DESC
        CLUSTER SLOT-STATS orderby key-count asc limit 3
        CLUSTER SLOT-STATS ORDERBY KEY-COUNT ASC DESC
        CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 1 LIMIT 2
        CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 0
        CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT x
        CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT
        CLUSTER SLOT-STATS ORDERBY KEY-COUNT FOO
        CLUSTER SLOT-STATS ORDERBY CPU-USEC
        CLUSTER SLOT-STATS ORDERBY NOSUCH
        CLUSTER SLOT-STATS FOO BAR
        CLUSTER SLOT-STATS FOO
        CLUSTER FLUSHSLOT 99999
        CLUSTER FLUSHSLOT x
        CLUSTER FLUSHSLOT 1 FOO
        CLUSTER FLUSHSLOT 1 SYNC ASYNC
        CLUSTER FLUSHSLOT 1 ASYNC
        CLUSTER FLUSHSLOT 15891 SYNC
        EXISTS {t}a {t}c
        EXISTS {k}b
        DBSIZE
        CLUSTER GETSLOTMIGRATIONS
        ",
    );
    compare(
        Kind::Valkey,
        false,
        "
        CLUSTER MYSHARDID
        CLUSTER SLOT-STATS SLOTSRANGE 1 2
        CLUSTER FLUSHSLOT 1
        CLUSTER GETSLOTMIGRATIONS
        ",
    );
}

#[test]
fn the_shard_has_a_name_that_stays() {
    let engine = start(Kind::Valkey, true);
    let mut wire = Wire::open(engine.addr).unwrap();
    let name = wire.call("CLUSTER MYSHARDID");
    assert_eq!(name.lines().nth(1).map(str::len), Some(40), "{name}");
    assert_eq!(wire.call("CLUSTER MYSHARDID"), name);
    assert_ne!(wire.call("CLUSTER MYID"), name);
}

#[test]
fn the_node_and_the_state_have_the_servers_fields() {
    let (redis, engine) = (Redis::start(Kind::Redis, true), start(Kind::Redis, true));
    let mut theirs = Wire::open(redis.addr).unwrap();
    let mut ours = Wire::open(engine.addr).unwrap();
    let fields = |wire: &mut Wire| -> Vec<String> {
        let info = wire.call("CLUSTER INFO");
        let names = info.lines().skip(1).filter_map(|line| line.split_once(':'));
        // The kinds of messages appear once they were sent.
        let names = names.map(|(name, _)| name.to_owned());
        names
            .filter(|name| !name.starts_with("cluster_stats_messages"))
            .collect()
    };
    assert_eq!(fields(&mut ours), fields(&mut theirs));
    let node = ours.call("CLUSTER NODES");
    let words: Vec<&str> = node.lines().nth(1).unwrap().split(' ').collect();
    assert_eq!(words[0].len(), 40);
    let port = engine.addr.port();
    assert_eq!(
        words[1],
        format!("127.0.0.1:{port}@{}", u32::from(port) + 10_000)
    );
    assert_eq!(words[2..4], ["myself,master", "-"]);
    assert_eq!(words[7..], ["connected", "0-16383"]);
    let count = |wire: &mut Wire| {
        wire.call("CLUSTER NODES")
            .lines()
            .nth(1)
            .unwrap()
            .split(' ')
            .count()
    };
    assert_eq!(count(&mut ours), count(&mut theirs));
}

fn script(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(name)
}

fn is_well(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success() && text(&output.stdout).ends_with("all well\n"),
        "{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

#[test]
fn redis_py_sees_a_cluster() {
    let engine = start(Kind::Redis, true);
    let mut command = Command::new(find::redis_py().unwrap());
    let port = engine.addr.port().to_string();
    is_well(
        &command
            .arg(script("cluster.py"))
            .arg(port)
            .output()
            .unwrap(),
    );
}

#[test]
fn ioredis_sees_a_cluster() {
    let engine = start(Kind::Redis, true);
    let (node, modules) = find::ioredis().unwrap();
    let mut command = Command::new(node);
    let port = engine.addr.port().to_string();
    let command = command
        .arg(script("cluster.js"))
        .arg(port)
        .env("NODE_PATH", modules);
    is_well(&command.output().unwrap());
}
