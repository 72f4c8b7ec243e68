//! Clients that people use, against `redstart engine`: redis-cli, redis-py, ioredis and node-redis; also when it moves.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use redstart_testkit::{Kind, Server, find, redis_cli};

/// `redstart engine` on a free port, killed with the value.
struct Listening {
    process: Child,
    url: String,
}

impl Listening {
    fn start() -> Listening {
        let mut process = Command::new(env!("CARGO_BIN_EXE_redstart"))
            .args(["engine", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = process.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("ready: ").unwrap().to_owned();
        Listening { process, url }
    }

    fn port(&self) -> &str {
        self.url.rsplit(':').next().unwrap()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
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
fn redis_py_works() {
    let engine = Listening::start();
    let python = find::redis_py().unwrap();
    let mut command = Command::new(python);
    let output = command.arg(script("redis_py.py")).arg(&engine.url).output();
    is_well(&output.unwrap());
}

#[test]
fn ioredis_works() {
    let engine = Listening::start();
    let (node, modules) = find::ioredis().unwrap();
    let mut command = Command::new(node);
    let output = command
        .arg(script("ioredis.js"))
        .arg(&engine.url)
        .env("NODE_PATH", modules)
        .output();
    is_well(&output.unwrap());
}

#[test]
fn node_redis_works() {
    let engine = Listening::start();
    let (node, modules) = find::node_libraries().unwrap();
    let mut command = Command::new(node);
    let output = command
        .arg(script("node_redis.js"))
        .arg(&engine.url)
        .env("NODE_PATH", modules)
        .output();
    is_well(&output.unwrap());
}

#[test]
fn redis_cli_works() {
    let engine = Listening::start();
    let run = |args: &[&str], input: &str| {
        let args = [&["-p", engine.port()], args].concat();
        redis_cli(&args, input).unwrap()
    };
    assert_eq!(run(&["SET", "k", "v"], ""), "OK\n");
    assert_eq!(run(&["-3", "HSET", "h", "a", "1"], ""), "1\n");
    assert_eq!(run(&["-x", "SET", "piped"], "from stdin"), "OK\n");
    assert_eq!(run(&["GET", "piped"], ""), "from stdin\n");
    assert_eq!(run(&[], "INCR n\nINCR n\nGET nothing\n"), "1\n2\n\n");
    let piped: String = (0..1000)
        .map(|n| format!("*3\r\n$3\r\nSET\r\n$8\r\nbulk:{n:03}\r\n$1\r\nx\r\n"))
        .collect();
    let said = run(&["--pipe"], &piped);
    assert!(said.contains("errors: 0, replies: 1000"), "{said}");
    assert_eq!(
        run(&["--scan", "--pattern", "bulk:*"], "").lines().count(),
        1000
    );
    let said = run(&["--bigkeys"], "");
    assert!(said.contains("Sampled 1004 keys"), "{said}");
    assert_eq!(
        run(
            &["--eval", script("add.lua").to_str().unwrap(), "n", ",", "5"],
            ""
        ),
        "7\n"
    );
    let said = run(&["INFO", "server"], "");
    assert!(said.contains("redis_version:"), "{said}");
}

#[test]
fn a_hand_over_moves_the_data_and_tells_clients_where_it_is() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime
        .block_on(Server::builder(Kind::Redis).start())
        .unwrap();
    let listening = Listening::start();
    let ask = |port: &str, words: &[&str]| redis_cli(&[&["-p", port], words].concat(), "").unwrap();
    ask(listening.port(), &["SET", "a", "1"]);
    let (from, to) = (listening.url.as_str(), server.url());
    let handover = |rest: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redstart"));
        command.args(["engine", "handover", "--from", from, "--to", &to]);
        command.args(rest).output().unwrap()
    };
    let output = handover(&["--json"]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["keys"], 1);
    assert!(report["pause_ms"].as_f64().unwrap() > 0.0);
    let place = to.strip_prefix("redis://").unwrap();
    assert_eq!(report["place"], place);
    let answer = ask(listening.port(), &["GET", "a"]);
    assert!(answer.contains(&format!("REDIRECT {place}")), "{answer}");
    let port = place.rsplit(':').next().unwrap();
    assert_eq!(ask(port, &["GET", "a"]).trim_end(), "1");
    // Once is enough.
    let again = handover(&[]);
    assert!(!again.status.success());
    assert!(!text(&again.stderr).is_empty());
}
