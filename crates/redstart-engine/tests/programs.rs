//! Programs that people run against their servers, on the listener: redis-cli's modes and redis-benchmark.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
};

use bytes::Bytes;
use redstart_engine::{Engine, MemoryPolicy, Reply, server::ServerConfig};
use redstart_testkit::find;

#[path = "listener/running.rs"]
mod running;

use running::Running;

fn call(engine: &Engine, words: &[&str]) -> Reply {
    let args: Vec<Bytes> = words
        .iter()
        .map(|word| Bytes::from((*word).to_owned()))
        .collect();
    engine.session().execute(&args).into_reply().unwrap()
}

/// An engine with a little of everything, and its listener.
fn filled() -> (Engine, Running) {
    let engine = Engine::builder()
        .maxmemory(1 << 30, MemoryPolicy::AllKeysLfu)
        .build()
        .unwrap();
    for n in 0..50 {
        call(&engine, &["SET", &format!("string:{n}"), "value"]);
    }
    call(&engine, &["SET", "string:big", &"x".repeat(10_000)]);
    call(&engine, &["RPUSH", "list", "a", "b", "c"]);
    call(&engine, &["HSET", "hash", "a", "1", "b", "2"]);
    call(&engine, &["SADD", "set", "a", "b"]);
    call(
        &engine,
        &["ZADD", "sorted", "1", "a", "2", "b", "3", "c", "4", "d"],
    );
    call(&engine, &["XADD", "stream", "*", "a", "1"]);
    let running = Running::start(engine.clone(), ServerConfig::new());
    (engine, running)
}

fn cli(running: &Running, args: &[&str]) -> Command {
    let mut command = Command::new(find::redis_cli().unwrap());
    let port = running.addr.port().to_string();
    command.args(["-p", &port]).args(args);
    command
}

/// What a program prints, which ends by itself and is content.
fn output(mut command: Command, input: &[u8]) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn redis_cli_pipes_commands_in() {
    let (engine, running) = filled();
    let mut commands = Vec::new();
    for n in 0..10_000 {
        let (key, value) = (format!("piped:{n}"), n.to_string());
        commands.extend_from_slice(
            format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}\r\n",
                key.len(),
                value.len()
            )
            .as_bytes(),
        );
    }
    let text = output(cli(&running, &["--pipe"]), &commands);
    assert!(text.contains("errors: 0, replies: 10000"), "{text}");
    assert_eq!(call(&engine, &["GET", "piped:9999"]), Reply::bulk("9999"));
}

#[test]
fn redis_cli_finds_big_keys() {
    let (_engine, running) = filled();
    let text = output(cli(&running, &["--bigkeys"]), b"");
    for found in [
        "Biggest string found '\"string:big\"' has 10000 bytes",
        "Biggest   list found '\"list\"' has 3 items",
        "Biggest   hash found '\"hash\"' has 2 fields",
        "Biggest   zset found '\"sorted\"' has 4 members",
        "Biggest stream found '\"stream\"' has 1 entries",
        "Sampled 56 keys in the keyspace!",
    ] {
        assert!(text.contains(found), "{found}: {text}");
    }
}

#[test]
fn redis_cli_finds_keys_that_take_much_memory() {
    let (_engine, running) = filled();
    let text = output(cli(&running, &["--memkeys"]), b"");
    assert!(
        text.contains("Biggest string found '\"string:big\"' has 1"),
        "{text}"
    );
    assert!(text.contains("Sampled 56 keys in the keyspace!"), "{text}");
}

#[test]
fn redis_cli_finds_hot_keys() {
    let (engine, running) = filled();
    for _ in 0..5_000 {
        call(&engine, &["GET", "string:7"]);
    }
    let text = output(cli(&running, &["--hotkeys"]), b"");
    let hottest = text
        .lines()
        .find(|line| line.starts_with("hot key found with counter"));
    assert!(
        hottest.is_some_and(|line| line.ends_with("\"string:7\"")),
        "{text}"
    );
}

#[test]
fn redis_cli_shows_statistics_and_latency() {
    let (_engine, running) = filled();
    let mut stat = cli(&running, &["-i", "0.05", "--stat"]);
    let mut child = stat.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines: Vec<String> = lines.map_while(Result::ok).take(4).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        lines[1].contains("keys") && lines[1].contains("clients"),
        "{lines:?}"
    );
    for line in &lines[2..] {
        let first = line.split_whitespace().next();
        assert_eq!(first, Some("56"), "{lines:?}");
    }
    // Least, greatest and mean time, and how many samples.
    let text = output(cli(&running, &["-i", "0.2", "--latency", "--raw"]), b"");
    let words: Vec<f64> = text
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    assert!(
        words.len() == 4 && words[0] <= words[2] && words[2] <= words[1],
        "{text}"
    );
    assert!(words[3] >= 1.0, "{text}");
}

#[test]
fn redis_benchmark_runs_all_its_tests() {
    let (engine, running) = filled();
    let program = find::on_path("redis-benchmark").expect("redis-benchmark: `cargo xtask servers`");
    let port = running.addr.port().to_string();
    let mut command = Command::new(program);
    command.args(["-p", &port, "-n", "500", "-c", "10", "-P", "5", "-q"]);
    let text = output(command, b"");
    let results = text.matches("requests per second").count();
    assert!(results >= 18, "{results}: {text}");
    assert!(!text.to_lowercase().contains("error"), "{text}");
    let Reply::Int(length) = call(&engine, &["LLEN", "mylist"]) else {
        panic!("no list");
    };
    assert!(length > 0);
}

#[test]
fn redis_cli_fetches_all_data_as_an_rdb_file() {
    let (engine, running) = filled();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("all.rdb");
    let path = file.to_str().unwrap();
    let text = output(cli(&running, &["--rdb", path]), b"");
    assert!(text.contains("Transfer finished with success"), "{text}");
    let check = Command::new("redis-check-rdb").arg(&file).output().unwrap();
    assert!(check.status.success(), "{check:?}");
    // It is all of it, and nobody is a replica afterwards.
    let copy = Engine::new();
    let bytes = std::fs::read(&file).unwrap();
    let summary = copy.load_rdb(bytes.as_slice(), |_| ()).unwrap();
    assert_eq!(summary.total(), 56);
    let digest = |engine: &Engine| call(engine, &["DEBUG", "DIGEST"]);
    assert_eq!(digest(&copy), digest(&engine));
    let info = cli(&running, &["INFO", "replication"]);
    assert!(output(info, b"").contains("connected_slaves:0"));
    // It may also be piped.
    call(&engine, &["SET", "after", "1"]);
    let mut to_stdout = cli(&running, &["--rdb", "-"]);
    let piped = to_stdout.output().unwrap();
    assert!(piped.status.success() && piped.stdout.starts_with(b"REDIS"));
}
