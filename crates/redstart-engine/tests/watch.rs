//! Watching the listener: MONITOR, its tools, and figures that a dashboard reads.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead as _, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use redstart_engine::{
    Engine,
    server::{Server, ServerConfig},
};
use redstart_testkit::{Kind, block_until, find, redis_cli};
use tokio::{runtime::Runtime, sync::oneshot};

/// A server in this process, ended with the value.
struct Running {
    addr: SocketAddr,
    _stop: oneshot::Sender<()>,
    _runtime: Runtime,
}

impl Running {
    fn start(config: ServerConfig) -> Running {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let config = config.listen("127.0.0.1:0".parse().unwrap());
        let server = runtime
            .block_on(Server::bind(Engine::new(), config))
            .unwrap();
        let addr = server.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        runtime.spawn(server.run(async {
            let _ = stopped.await;
        }));
        Running {
            addr,
            _stop: stop,
            _runtime: runtime,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream
    }

    fn cli(&self, args: &[&str]) -> String {
        let port = self.addr.port().to_string();
        redis_cli(&[&["-p", port.as_str()], args].concat(), "").unwrap()
    }
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// What a client that watches sees of these commands of another, without times and ports.
fn watched<S: Read + Write>(mut watcher: S, mut worker: S) -> Vec<String> {
    watcher.write_all(&command(&["MONITOR"])).unwrap();
    let mut watcher = BufReader::new(watcher);
    let mut line = String::new();
    watcher.read_line(&mut line).unwrap();
    assert_eq!(line, "+OK\r\n");
    for words in [
        &["SET", "a", "b \"c\"\n\t\\"][..],
        &["MULTI"],
        &["GET", "a"],
        &["LPUSH", "a", "1"],
        &["EXEC"],
        &["GET"],
        &["NOSUCH"],
        &[
            "EVAL",
            "redis.call('set','k','v') return redis.call('GET', 'k')",
            "0",
        ],
        &["AUTH", "secret"],
        &["HELLO", "2", "AUTH", "default", "secret"],
        &["CONFIG", "SET", "masterauth", "secret"],
        &["SELECT", "2"],
        &["BLPOP", "nokey", "0.001"],
        &["CLIENT", "SETNAME", "x"],
        &["INFO", "server"],
        &["EVALSHA", "x", "0"],
        &["PING", "last"],
    ] {
        worker.write_all(&command(words)).unwrap();
    }
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        watcher.read_line(&mut line).unwrap();
        let line = line.strip_prefix('+').expect("a status").trim_end();
        let (time, rest) = line.split_once(' ').unwrap();
        let (seconds, micros) = time.split_once('.').unwrap();
        assert!(seconds.len() == 10 && micros.len() == 6, "{time}");
        let (place, words) = rest.split_once("] ").unwrap();
        let (db, who) = place.split_once(' ').unwrap();
        let who = match who {
            "lua" => "lua",
            _ => "client",
        };
        lines.push(format!("{db} {who} {words}"));
        if words.contains("last") {
            return lines;
        }
    }
}

#[test]
fn a_monitor_sees_what_a_monitor_of_redis_sees() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("redis.sock");
    let mut redis = Command::new(find::server(Kind::Redis).unwrap())
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let connect = || UnixStream::connect(&socket).ok();
    let wait = Duration::from_secs(20);
    let watcher = block_until("the server to listen", wait, connect).unwrap();
    let theirs = watched(watcher, connect().unwrap());
    redis.kill().unwrap();
    redis.wait().unwrap();
    let server = Running::start(ServerConfig::new());
    let ours = watched(server.connect(), server.connect());
    assert_eq!(ours, theirs);
    assert!(!format!("{ours:?}").contains("\"secret\""));
}

#[test]
fn a_monitor_that_does_not_read_is_disconnected() {
    let server = Running::start(ServerConfig::new().output_limit(1024 * 1024));
    let mut slow = server.connect();
    slow.write_all(&command(&["MONITOR"])).unwrap();
    let monitors = || {
        let list = server.cli(&["CLIENT", "LIST"]);
        let watching = list.lines().filter(|line| line.contains("flags=O")).count();
        watching.to_string()
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while monitors() == "0" {
        assert!(Instant::now() < deadline, "no monitor");
    }
    let mut worker = server.connect();
    let long = "x".repeat(100_000);
    let mut reply = [0; 7];
    // What the kernel buffers comes on top of the limit.
    while monitors() == "1" {
        for _ in 0..50 {
            worker.write_all(&command(&["ECHO", &long])).unwrap();
            let mut echo = vec![0; long.len() + 11];
            worker.read_exact(&mut echo).unwrap();
        }
        assert!(Instant::now() < deadline, "never disconnected");
    }
    worker.write_all(b"PING\r\n").unwrap();
    worker.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn the_tools_of_redis_cli_work() {
    let server = Running::start(ServerConfig::new());
    for key in ["a", "b", "c"] {
        server.cli(&["SET", key, "some value"]);
    }
    server.cli(&["RPUSH", "list", "1", "2", "3"]);
    assert!(server.cli(&["--bigkeys"]).contains("Biggest   list found"));
    assert!(server.cli(&["--memkeys"]).contains("Biggest"));
    // What redis-cli itself needs for a report of the hottest keys.
    let hot = redis_cli(&["-p", &server.addr.port().to_string(), "--hotkeys"], "");
    let said = format!("{hot:?}");
    assert!(said.contains("LFU") || said.contains("hot"), "{said}");
    let port = server.addr.port().to_string();
    let mut stat = Command::new(find::redis_cli().unwrap())
        .args(["-p", &port, "--stat", "-i", "0.05"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(stat.stdout.take().unwrap()).lines();
    let told: Vec<String> = (0..5).map(|_| lines.next().unwrap().unwrap()).collect();
    stat.kill().unwrap();
    stat.wait().unwrap();
    let row: Vec<&str> = told[3].split_whitespace().collect();
    assert_eq!(row[0], "4", "the number of keys: {told:?}");
    let latency = server.cli(&["--latency", "--raw", "-i", "1"]);
    assert!(latency.split_whitespace().count() >= 4, "{latency}");
}

fn field(info: &str, name: &str) -> f64 {
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let text = line.unwrap_or_else(|| panic!("{name}: {info}")).trim();
    text.trim_end_matches('%').parse().unwrap()
}

#[test]
fn the_figures_of_info_are_true() {
    let server = Running::start(ServerConfig::new());
    let mut client = server.connect();
    let mut sent = 0;
    let mut got = 0;
    let deadline = Instant::now() + Duration::from_secs(30);
    // Until the rates have something to show, and the clock of the CPU has ticked.
    let info = loop {
        for _ in 0..200 {
            let request = command(&["SET", "key", "value"]);
            client.write_all(&request).unwrap();
            let mut reply = [0; 5];
            client.read_exact(&mut reply).unwrap();
            sent += request.len();
            got += reply.len();
        }
        let info = server.cli(&["INFO", "everything"]);
        let cpu = field(&info, "used_cpu_user") + field(&info, "used_cpu_sys");
        if field(&info, "instantaneous_ops_per_sec") > 0.0 && cpu > 0.0 {
            break info;
        }
        assert!(Instant::now() < deadline, "no rate: {info}");
    };
    assert!(field(&info, "total_net_input_bytes") >= sent as f64);
    assert!(field(&info, "total_net_output_bytes") >= got as f64);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident: f64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    let told = field(&info, "used_memory_rss") / 1024.0;
    assert!(
        told > resident / 4.0 && told < resident * 4.0,
        "{told} {resident}"
    );
    assert!(field(&info, "total_system_memory") > 1e8);
    assert!(field(&info, "used_memory_peak") >= field(&info, "used_memory"));
    let ratio = field(&info, "used_memory_rss") / field(&info, "used_memory");
    assert!((field(&info, "mem_fragmentation_ratio") - ratio).abs() < 0.02);
    assert!(
        info.contains("cmdstat_set:calls=") && info.contains("latency_percentiles_usec_set:p50=")
    );
    let run_id = info
        .lines()
        .find_map(|line| line.strip_prefix("run_id:"))
        .unwrap();
    assert_eq!(run_id.trim().len(), 40);
    server.cli(&["CONFIG", "RESETSTAT"]);
    let info = server.cli(&["INFO", "everything"]);
    assert!(field(&info, "total_net_input_bytes") < sent as f64);
    assert!(!info.contains("cmdstat_set:"));
}

#[test]
fn slow_commands_of_a_client_are_kept_with_its_address() {
    let server = Running::start(ServerConfig::new());
    server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    server.cli(&["CONFIG", "SET", "latency-monitor-threshold", "1"]);
    let client = server.connect();
    let addr = client.local_addr().unwrap().to_string();
    let mut client = client;
    client
        .write_all(b"SET a b\r\nDEBUG SLEEP 0.02\r\n")
        .unwrap();
    client.read_exact(&mut [0; 10]).unwrap();
    let log = server.cli(&["SLOWLOG", "GET", "-1"]);
    assert!(log.contains(&format!("SET\na\nb\n{addr}")), "{log}");
    let latest = server.cli(&["LATENCY", "LATEST"]);
    assert!(latest.starts_with("command\n"), "{latest}");
    assert!(
        server
            .cli(&["LATENCY", "GRAPH", "command"])
            .contains("all time high")
    );
    assert!(server.cli(&["LATENCY", "DOCTOR"]).contains("command: "));
    assert!(
        server
            .cli(&["LATENCY", "HISTOGRAM", "set"])
            .contains("histogram_usec")
    );
}
