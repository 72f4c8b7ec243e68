//! `redstart engine` with a configuration file, and what can be done with an engine's data.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use redstart_testkit::{Kind, Server, redis_cli};

/// `redstart engine`, killed with the value.
struct Listening {
    process: Child,
    url: String,
}

impl Listening {
    fn start(args: &[&str]) -> Listening {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redstart"));
        command.arg("engine").args(args);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let out = process.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("ready: ").unwrap().to_owned();
        Listening { process, url }
    }

    /// On a free port, with its data in a folder.
    fn on(data: &Path) -> Listening {
        Listening::start(&["--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()])
    }

    fn ask(&self, words: &[&str]) -> String {
        let port = self.url.rsplit(':').next().unwrap();
        let answer = redis_cli(&[&["-p", port], words].concat(), "").unwrap();
        answer.trim_end().to_owned()
    }

    fn wait(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redstart"));
    command.arg("engine").args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> serde_json::Value {
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{error}");
    serde_json::from_str(&out).unwrap()
}

fn refused(output: &Output, why: &str) {
    let error = text(&output.stderr);
    assert!(
        !output.status.success() && error.contains(why),
        "{}{error}",
        text(&output.stdout)
    );
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_backup_of_a_running_engine_can_be_started_on() {
    let dir = tempfile::tempdir().unwrap();
    let (data, copy) = (dir.path().join("data"), dir.path().join("new/copy"));
    let engine = Listening::on(&data);
    engine.ask(&["SET", "k", "before"]);
    let backup = || {
        run(&[
            "backup",
            "--json",
            "--url",
            &engine.url,
            copy.to_str().unwrap(),
        ])
    };
    let result = json(&backup());
    assert!(result["bytes"].as_u64().unwrap() > 0, "{result}");
    engine.ask(&["SET", "k", "after"]);
    let copied = Listening::on(&copy);
    assert_eq!(copied.ask(&["GET", "k"]), "before");
    // A folder that is in use is not written to.
    refused(&backup(), "is not empty");
}

#[test]
fn without_a_log_there_is_nothing_to_copy() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Listening::start(&["--listen", "127.0.0.1:0"]);
    let copy = dir.path().join("copy");
    let output = run(&["backup", "--url", &engine.url, copy.to_str().unwrap()]);
    refused(&output, "no append only file");
    assert!(!copy.exists());
}

/// The settings that people have in their files, with comments, quotes and sizes.
const CONFIGURATION: &str = r#"
# A file as redis-server takes it.
bind 127.0.0.1
port 0
protected-mode yes
tcp-backlog 511
timeout 0
tcp-keepalive 300
daemonize no
loglevel notice
logfile ""
databases 4
always-show-logo no
set-proc-title yes
stop-writes-on-bgsave-error yes
rdbcompression yes
rdbchecksum yes
dbfilename "kept data.rdb"
save 1 2
appendonly no
requirepass "pass word"
maxmemory 64mb
maxmemory-policy allkeys-lfu
lfu-log-factor 5
hash-max-listpack-entries 7
slowlog-log-slower-than 5000
client-output-buffer-limit pubsub 16mb 4mb 30
notify-keyspace-events Ex
user reader on >secret ~cache:* +@read
"#;

/// Writes the file with its folder, and a port that is free by then.
fn configured(dir: &Path) -> String {
    let file = dir.join("redis.conf");
    let text = CONFIGURATION.replace(
        "port 0",
        &format!("port 0\nunixsocket {}/s.sock", dir.display()),
    );
    fs::write(&file, format!("{text}dir {}\n", dir.display())).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Asks over the unix socket of [`configured`].
fn ask(dir: &Path, words: &[&str]) -> String {
    let socket = dir.join("s.sock");
    let login = [
        "-s",
        socket.to_str().unwrap(),
        "-a",
        "pass word",
        "--no-auth-warning",
    ];
    let answer = redis_cli(&[&login, words].concat(), "").unwrap();
    answer.trim_end().to_owned()
}

#[test]
fn a_persons_configuration_file_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let file = configured(dir.path());
    let ask = |words: &[&str]| ask(dir.path(), words);
    let mut engine = Listening::start(&[&file]);
    for (name, value) in [
        ("databases", "4"),
        ("maxmemory", "67108864"),
        ("maxmemory-policy", "allkeys-lfu"),
        ("lfu-log-factor", "5"),
        ("hash-max-listpack-entries", "7"),
        ("save", "1 2"),
        ("dbfilename", "kept data.rdb"),
        ("slowlog-log-slower-than", "5000"),
    ] {
        assert_eq!(ask(&["CONFIG", "GET", name]), format!("{name}\n{value}"));
    }
    assert_eq!(ask(&["SELECT", "4"]), "ERR DB index is out of range");
    let socket = dir.path().join("s.sock");
    let reader = [
        "-s",
        socket.to_str().unwrap(),
        "--user",
        "reader",
        "--pass",
        "secret",
        "--no-auth-warning",
    ];
    let as_reader = |words: &[&str]| redis_cli(&[&reader, words].concat(), "").unwrap();
    assert_eq!(as_reader(&["GET", "cache:a"]).trim(), "");
    assert!(as_reader(&["SET", "cache:a", "1"]).contains("NOPERM"));
    // `save 1 2`: after a second with two changes, the file is written without being asked.
    ask(&["SET", "a", "1"]);
    ask(&["SET", "b", "2"]);
    let saved = dir.path().join("kept data.rdb");
    wait_until("a save by itself", || saved.exists());
    wait_until("all changes saved", || {
        ask(&["INFO", "persistence"]).contains("rdb_changes_since_last_save:0\r")
    });
    // What was changed since is saved when it ends, because there are save points.
    ask(&["SET", "c", "3"]);
    assert_eq!(ask(&["SHUTDOWN"]), "");
    assert!(engine.wait().success());
    drop(engine);
    let _engine = Listening::start(&[&file]);
    assert_eq!(ask(&["MGET", "a", "b", "c"]), "1\n2\n3");
}

#[test]
fn a_mistake_in_a_configuration_file_is_told_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("redis.conf");
    fs::write(&file, "databases 4\nmaxmemory-policy sometimes\n").unwrap();
    refused(&run(&[file.to_str().unwrap()]), "redis.conf");
    let output = run(&[file.to_str().unwrap()]);
    assert!(
        text(&output.stderr).contains('2'),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn shutdown_without_a_save_ends_the_program_and_keeps_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut engine = Listening::on(&data);
    engine.ask(&["SET", "k", "v"]);
    engine.ask(&["SHUTDOWN", "NOSAVE"]);
    assert!(engine.wait().success());
    assert!(!data.join("dump.rdb").exists());
    let engine = Listening::on(&data);
    assert_eq!(engine.ask(&["GET", "k"]), "v");
}

/// One key of each type, and one with a deadline.
const DATA: &[&[&str]] = &[
    &["SET", "s", "value"],
    &["SET", "timed", "value", "EX", "100000"],
    &["RPUSH", "l", "a", "b"],
    &["HSET", "h", "f", "v"],
    &["SADD", "set", "m"],
    &["ZADD", "z", "1", "m"],
    &["XADD", "x", "1-1", "f", "v"],
];

#[tokio::test]
async fn a_servers_data_is_imported_and_exported() {
    let server = Server::builder(Kind::Redis).start().await.unwrap();
    let url = server.url();
    let port = url.trim_end_matches('/').rsplit(':').next().unwrap();
    for words in DATA {
        redis_cli(&[&["-p", port], *words].concat(), "").unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (data, file) = (path("data"), path("all.rdb"));
    // From the running server into a folder,
    let imported = json(&run(&["import", &url, "--data", &data, "--json"]));
    assert_eq!(imported["keys"], 7);
    assert_eq!(imported["types"]["string"], 2);
    assert_eq!(imported["volatile"], 1);
    refused(&run(&["import", &url, "--data", &data]), "--replace");
    // from the folder into a file,
    let exported = json(&run(&["export", &file, "--data", &data, "--json"]));
    assert_eq!(exported["types"], imported["types"]);
    assert_ne!(exported["crc64"], "0000000000000000");
    refused(&run(&["export", &file, "--data", &data]), "--replace");
    // from the file into another folder,
    let again = path("again");
    let output = run(&["import", &file, "--data", &again]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        table.contains("zset") && table.contains(exported["crc64"].as_str().unwrap()),
        "{table}"
    );
    let engine = Listening::on(Path::new(&again));
    assert_eq!(engine.ask(&["DBSIZE"]), "7");
    assert_eq!(engine.ask(&["XRANGE", "x", "-", "+"]), "1-1\nf\nv");
    assert!(engine.ask(&["TTL", "timed"]).parse::<i64>().unwrap() > 99_000);
    // and straight from the server into a file.
    let direct = json(&run(&[
        "export",
        &path("direct.rdb"),
        "--url",
        &url,
        "--json",
    ]));
    assert_eq!(direct["types"], imported["types"]);
}

#[tokio::test]
async fn a_servers_data_is_imported_over_tls() {
    let server = Server::builder(Kind::Redis)
        .tls()
        .acl("ann", "p@ss")
        .start()
        .await
        .unwrap();
    server.command(&["SET", "k", "v"]).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").to_str().unwrap().to_owned();
    let import = |url: &str| run(&["import", url, "--data", &data, "--json"]);
    let ca = server.authority().unwrap().ca_file().display().to_string();
    // The system does not know the authority.
    refused(&import(&server.url()), "certificate");
    refused(&import(&format!("{}?cert=/x", server.url())), "together");
    refused(&import(&format!("{}?cacert=/x", server.url())), "cacert");
    let plain = server.url().replace("rediss://", "redis://");
    refused(&import(&format!("{plain}?ca={ca}")), "rediss://");
    let imported = json(&import(&format!("{}?ca={ca}", server.url())));
    assert_eq!(imported["keys"], 1);
    let engine = Listening::on(Path::new(&data));
    assert_eq!(engine.ask(&["GET", "k"]), "v");
}

#[test]
fn a_damaged_file_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let data = path("data");
    {
        let mut engine = Listening::on(Path::new(&data));
        engine.ask(&["SET", "k", "kept"]);
        engine.ask(&["SHUTDOWN", "NOSAVE"]);
        engine.wait();
    }
    let file = path("good.rdb");
    json(&run(&["export", &file, "--data", &data, "--json"]));
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() - 12;
    bytes[middle] ^= 1;
    fs::write(path("bad.rdb"), bytes).unwrap();
    let output = run(&["import", &path("bad.rdb"), "--data", &data, "--replace"]);
    refused(&output, "bad.rdb");
    refused(
        &run(&["import", &path("none.rdb"), "--data", &data]),
        "none.rdb",
    );
    let engine = Listening::on(Path::new(&data));
    assert_eq!(engine.ask(&["GET", "k"]), "kept");
}
