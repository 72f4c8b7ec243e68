//! The listener: real clients on real sockets, and what bad ones may not do.

#![allow(clippy::unwrap_used)]

#[path = "server/held.rs"]
mod held;

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use redstart_engine::{
    Compat, Engine,
    server::{Server, ServerConfig, ServerError},
};
use redstart_testkit::redis_cli;
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
    task::JoinHandle,
};

/// A server in this process with a runtime of its own, stopped with the value.
struct Running {
    runtime: Runtime,
    addr: SocketAddr,
    dir: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<()>>,
}

impl Running {
    fn start(engine: Engine) -> Running {
        Running::with(engine, ServerConfig::new())
    }

    fn with(engine: Engine, config: ServerConfig) -> Running {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        Running::on(runtime.worker_threads(2), engine, config)
    }

    fn on(runtime: &mut Builder, engine: Engine, config: ServerConfig) -> Running {
        let runtime = runtime.enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let config = config
            .listen("127.0.0.1:0".parse().unwrap())
            .unix(dir.path().join("engine.sock"));
        let server = runtime.block_on(Server::bind(engine, config)).unwrap();
        let addr = server.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = runtime.spawn(server.run(async {
            let _ = stopped.await;
        }));
        Running {
            runtime,
            addr,
            dir,
            stop: Some(stop),
            task: Some(task),
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
            .set_write_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("engine.sock")
    }

    fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.runtime.block_on(self.task.take().unwrap()).unwrap();
    }

    /// Other clients are still served.
    fn is_well(&self) {
        let mut other = self.connect();
        assert_eq!(exchange(&mut other, b"PING\r\n", 7), b"+PONG\r\n");
    }
}

/// Sends a request and reads exactly the given number of bytes.
fn exchange(stream: &mut TcpStream, request: &[u8], len: usize) -> Vec<u8> {
    stream.write_all(request).unwrap();
    let mut reply = vec![0; len];
    stream.read_exact(&mut reply).unwrap();
    reply
}

/// Reads until the other side closes.
fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    all
}

#[test]
fn redis_cli_works_with_it() {
    let server = Running::start(Engine::new());
    let socket = server.socket();
    let run = |args: &[&str], input: &str| {
        let args = [&["-s", socket.to_str().unwrap()], args].concat();
        redis_cli(&args, input).unwrap()
    };
    let cli = |args: &[&str]| run(args, "");
    assert_eq!(cli(&["SET", "a", "hello world"]), "OK\n");
    assert_eq!(cli(&["GET", "a"]), "hello world\n");
    assert_eq!(cli(&["-3", "HSET", "h", "f", "v"]), "1\n");
    assert_eq!(cli(&["-3", "--json", "HGETALL", "h"]), "{\"f\":\"v\"}\n");
    assert_eq!(
        cli(&["--no-raw", "LPUSH", "a", "x"]),
        "(error) WRONGTYPE Operation against a key holding the wrong kind of value\n"
    );
    assert_eq!(
        cli(&["--no-raw", "NOSUCH"]),
        "(error) ERR unknown command 'NOSUCH', with args beginning with: \n"
    );
    assert!(cli(&["INFO", "server"]).contains("redis_version:7.0.15"));
    assert!(cli(&["--bigkeys"]).contains("Biggest string found"));
    assert!(cli(&["--scan"]).lines().count() == 2);
    let typed = run(&[], "MULTI\nINCR n\nINCR n\nEXEC\n");
    assert!(typed.contains("QUEUED\nQUEUED\n1\n2\n"), "{typed}");
    let mut batch = String::new();
    for n in 0..1000 {
        batch.push_str(&format!("SET key:{n} {n}\r\n"));
    }
    let piped = run(&["--pipe"], &batch);
    assert!(piped.contains("errors: 0, replies: 1000"), "{piped}");
    assert_eq!(cli(&["DBSIZE"]), "1003\n");
}

#[test]
fn pipelined_commands_are_answered_in_order() {
    let server = Running::start(Engine::new());
    let mut client = server.connect();
    let mut request = Vec::new();
    let mut expected = Vec::new();
    for n in 1..=5000 {
        request.extend_from_slice(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n");
        expected.extend_from_slice(format!(":{n}\r\n").as_bytes());
    }
    assert_eq!(exchange(&mut client, &request, expected.len()), expected);
}

/// Sends inline commands and reads all that they are answered with.
fn said(stream: &mut TcpStream, request: &str) -> String {
    const MARK: &str = "$9\r\nend-of-it\r\n";
    let request = format!("{request}\r\nECHO end-of-it\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while !answer.ends_with(MARK.as_bytes()) {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the connection ended: {request}");
        answer.extend_from_slice(&piece[..count]);
    }
    answer.truncate(answer.len() - MARK.len());
    String::from_utf8(answer).unwrap()
}

/// Commands that read much write their replies as bytes; in a transaction they make values of them.
#[test]
fn replies_are_the_same_whether_they_are_written_at_once_or_collected() {
    let server = Running::start(Engine::new());
    let mut client = server.connect();
    let long = "x".repeat(3000);
    for line in [
        "MSET text hello number -12 empty \"\"".to_owned(),
        format!("SET long {long}"),
        "APPEND edited abc".to_owned(),
        format!("RPUSH list a \"\" {} {long}", "y".repeat(40)),
        format!("HSET hash f 1 g {long}"),
        "SADD numbers 1 2 3".to_owned(),
        "SADD words one".to_owned(),
        "ZADD board 1 a 2.5 b inf c".to_owned(),
    ] {
        assert!(!said(&mut client, &line).starts_with('-'), "{line}");
    }
    let lines = [
        "GET text",
        "GET number",
        "GET empty",
        "GET long",
        "GET edited",
        "GET absent",
        "GET list",
        "MGET text absent number list long",
        "LRANGE list 0 -1",
        "LRANGE list 1 1",
        "LRANGE list 9 12",
        "LRANGE absent 0 -1",
        "LRANGE list x y",
        "HGET hash f",
        "HGET hash absent",
        "HGET absent f",
        "HMGET hash f absent g",
        "HMGET absent f g",
        "HGETALL hash",
        "HGETALL absent",
        "HKEYS hash",
        "HVALS hash",
        "HVALS list",
        "SMEMBERS numbers",
        "SMEMBERS words",
        "SMEMBERS absent",
        "ZRANGE board 0 -1",
        "ZRANGE board 0 -1 REV WITHSCORES",
        "ZRANGEBYSCORE board 1 (2.5 WITHSCORES",
        "ZREVRANGE board 0 0",
        "ZRANGE absent 0 -1 WITHSCORES",
    ];
    for protocol in ["HELLO 2", "HELLO 3"] {
        said(&mut client, protocol);
        for line in lines {
            let at_once = said(&mut client, line);
            let collected = said(&mut client, &format!("MULTI\r\n{line}\r\nEXEC"));
            let collected = collected.strip_prefix("+OK\r\n+QUEUED\r\n*1\r\n");
            assert_eq!(Some(at_once.as_str()), collected, "{protocol}: {line}");
        }
        let all = said(&mut client, &lines.join("\r\n"));
        let one_by_one = lines.map(|line| said(&mut client, line)).concat();
        assert_eq!(all, one_by_one, "{protocol}");
    }
}

/// They read as GET does, and go on.
#[test]
fn commands_that_read_and_then_write_answer_once() {
    let server = Running::start(Engine::builder().compat(Compat::Valkey9).build().unwrap());
    let mut client = server.connect();
    for (line, answer) in [
        ("SET key a", "+OK\r\n"),
        ("SET key b GET", "$1\r\na\r\n"),
        ("SET key c IFEQ x GET", "$1\r\nb\r\n"),
        ("GETSET key d", "$1\r\nb\r\n"),
        ("GETEX key EX 100", "$1\r\nd\r\n"),
        ("GETDEL key", "$1\r\nd\r\n"),
        ("GETDEL key", "$-1\r\n"),
        ("EVAL \"return redis.call('GET', 'key')\" 0", "$-1\r\n"),
        ("CLIENT REPLY SKIP\r\nGET key\r\nPING", "+PONG\r\n"),
    ] {
        assert_eq!(said(&mut client, line), answer, "{line}");
    }
}

/// What others see of a client is brought up to date once per batch, and for commands that look at it.
#[test]
fn a_client_sees_itself_as_it_is_in_the_middle_of_a_pipeline() {
    let server = Running::start(Engine::new());
    let mut client = server.connect();
    let seen = said(
        &mut client,
        "SELECT 3\r\nSET key a\r\nCLIENT LIST\r\nSUBSCRIBE news\r\nUNSUBSCRIBE\r\nSELECT 4\r\nCLIENT INFO",
    );
    let lines: Vec<&str> = seen.lines().filter(|line| line.contains("addr=")).collect();
    assert_eq!(lines.len(), 2, "{seen}");
    assert!(lines[0].contains(" db=3 ") && lines[0].contains(" cmd=client|list "));
    assert!(lines[1].contains(" db=4 ") && lines[1].contains(" sub=0 "));
    let queued = b"+OK\r\n+QUEUED\r\n";
    let request = b"MULTI\r\nGET key\r\n";
    assert_eq!(exchange(&mut client, request, queued.len()), queued);
    let mut other = server.connect();
    let seen = said(&mut other, "CLIENT LIST");
    assert!(seen.contains(" db=4 "), "{seen}");
    assert!(seen.contains(" multi=1 "), "{seen}");
    // The last command that there is counts.
    let answer = b"+OK\r\n$-1\r\n-ERR unknown command 'NONSENSE', with args beginning with: \r\n";
    let request = b"DISCARD\r\nGET key\r\nNONSENSE\r\n";
    assert_eq!(exchange(&mut client, request, answer.len()), answer);
    let seen = said(&mut other, "CLIENT LIST");
    assert!(seen.contains(" cmd=get "), "{seen}");
}

#[test]
fn pushes_stand_where_redis_puts_them() {
    let server = Running::start(Engine::new());
    let mut client = server.connect();
    let hello = b"HELLO 3\r\n";
    client.write_all(hello).unwrap();
    let mut seen = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !seen.ends_with(b"modules\r\n*0\r\n") {
        let mut piece = [0; 512];
        let count = client.read(&mut piece).unwrap();
        seen.extend_from_slice(&piece[..count]);
        assert!(Instant::now() < deadline);
    }
    assert!(seen.starts_with(b"%7\r\n$6\r\nserver\r\n"));
    let expected =
        b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n\
        >3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n:1\r\n+OK\r\n$-1\r\n";
    let expected = String::from_utf8_lossy(expected).replace("$-1", "_");
    let got = exchange(
        &mut client,
        b"SUBSCRIBE a b\r\nPUBLISH a x\r\nCLIENT TRACKING ON\r\nGET k\r\n",
        expected.len(),
    );
    assert_eq!(String::from_utf8_lossy(&got), expected);
    // A client's own change: the reply first.
    let expected = "+OK\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
    let got = exchange(&mut client, b"SET k v\r\n", expected.len());
    assert_eq!(String::from_utf8_lossy(&got), expected);
}

#[test]
fn replies_can_be_switched_off() {
    let server = Running::start(Engine::new());
    let mut client = server.connect();
    let got = exchange(
        &mut client,
        b"CLIENT REPLY OFF\r\nSET a 1\r\nCLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\nGET a\r\nGET a\r\n",
        5 + 7,
    );
    assert_eq!(String::from_utf8_lossy(&got), "+OK\r\n$1\r\n1\r\n");
    server.is_well();
}

#[test]
fn a_blocked_client_is_served_and_a_gone_one_takes_nothing() {
    let server = Running::start(Engine::new());
    let (mut waiting, mut gone, mut pusher) =
        (server.connect(), server.connect(), server.connect());
    let blocked = |pusher: &mut TcpStream, count: usize| {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            pusher.write_all(b"INFO clients\r\n").unwrap();
            let mut piece = [0; 4096];
            let read = pusher.read(&mut piece).unwrap();
            let text = String::from_utf8_lossy(&piece[..read]).into_owned();
            if text.contains(&format!("blocked_clients:{count}\r\n")) {
                return;
            }
            assert!(Instant::now() < deadline, "{text}");
        }
    };
    gone.write_all(b"BLPOP l 0\r\n").unwrap();
    blocked(&mut pusher, 1);
    waiting.write_all(b"BLPOP l 0\r\nPING\r\n").unwrap();
    blocked(&mut pusher, 2);
    drop(gone);
    blocked(&mut pusher, 1);
    assert_eq!(exchange(&mut pusher, b"RPUSH l x\r\n", 4), b":1\r\n");
    let mut reply = [0; 18 + 7];
    waiting.read_exact(&mut reply).unwrap();
    assert_eq!(&reply[..], b"*2\r\n$1\r\nl\r\n$1\r\nx\r\n+PONG\r\n");
}

#[test]
fn a_client_can_be_killed_and_can_quit() {
    let server = Running::start(Engine::new());
    let (mut victim, mut killer) = (server.connect(), server.connect());
    let id = exchange(&mut victim, b"CLIENT ID\r\n", 4);
    let id = String::from_utf8_lossy(&id[1..2]).into_owned();
    let got = exchange(
        &mut killer,
        format!("CLIENT KILL ID {id}\r\n").as_bytes(),
        4,
    );
    assert_eq!(got, b":1\r\n");
    assert_eq!(read_all(&mut victim), b"");
    killer.write_all(b"QUIT\r\nPING\r\n").unwrap();
    assert_eq!(read_all(&mut killer), b"+OK\r\n");
}

#[test]
fn a_pause_holds_commands_back() {
    let server = Running::start(Engine::new());
    let (mut client, mut boss) = (server.connect(), server.connect());
    assert_eq!(
        exchange(&mut boss, b"CLIENT PAUSE 100000 WRITE\r\n", 5),
        b"+OK\r\n"
    );
    assert_eq!(exchange(&mut client, b"GET a\r\n", 5), b"$-1\r\n");
    client.write_all(b"SET a 1\r\n").unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let mut reply = [0; 5];
    assert!(client.read_exact(&mut reply).is_err(), "not held back");
    assert_eq!(exchange(&mut boss, b"GET a\r\n", 5), b"$-1\r\n");
    assert_eq!(exchange(&mut boss, b"CLIENT UNPAUSE\r\n", 5), b"+OK\r\n");
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+OK\r\n");
}

#[test]
fn an_open_address_needs_a_password() {
    let runtime = Runtime::new().unwrap();
    let config = || ServerConfig::new().listen("0.0.0.0:0".parse().unwrap());
    let refused = runtime.block_on(Server::bind(Engine::new(), config()));
    assert!(matches!(refused, Err(ServerError::Unprotected(_))));
    let guarded = Engine::builder()
        .password(Some("secret".into()))
        .build()
        .unwrap();
    assert!(runtime.block_on(Server::bind(guarded, config())).is_ok());
}

#[test]
fn a_password_is_asked_for() {
    let engine = Engine::builder()
        .password(Some("secret".into()))
        .build()
        .unwrap();
    let server = Running::start(engine);
    let mut client = server.connect();
    let noauth = b"-NOAUTH Authentication required.\r\n";
    assert_eq!(exchange(&mut client, b"GET a\r\n", noauth.len()), noauth);
    assert_eq!(
        exchange(&mut client, b"AUTH secret\r\nGET a\r\n", 10),
        b"+OK\r\n$-1\r\n"
    );
    // A guest may not make the server hold much.
    let mut guest = server.connect();
    guest.write_all(b"*100000\r\n").unwrap();
    assert_eq!(
        read_all(&mut guest),
        b"-ERR Protocol error: unauthenticated multibulk length\r\n"
    );
}

#[test]
fn a_stopping_server_answers_what_it_has_received() {
    let mut server = Running::start(Engine::new());
    let mut client = server.connect();
    let mut idle = server.connect();
    assert_eq!(exchange(&mut client, b"SET a 1\r\n", 5), b"+OK\r\n");
    server.stop();
    assert_eq!(read_all(&mut client), b"");
    assert_eq!(read_all(&mut idle), b"");
    assert!(!server.socket().exists());
    assert!(TcpStream::connect(server.addr).is_err());
}

#[test]
fn too_many_clients_are_turned_away() {
    let server = Running::start(Engine::new());
    let mut first = server.connect();
    assert_eq!(
        exchange(&mut first, b"CONFIG SET maxclients 2\r\n", 5),
        b"+OK\r\n"
    );
    let mut second = server.connect();
    assert_eq!(exchange(&mut second, b"PING\r\n", 7), b"+PONG\r\n");
    let mut third = server.connect();
    assert_eq!(
        read_all(&mut third),
        b"-ERR max number of clients reached\r\n"
    );
    drop(second);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut fourth = server.connect();
        fourth.write_all(b"PING\r\n").unwrap();
        let mut reply = [0; 1];
        fourth.read_exact(&mut reply).unwrap();
        if reply == *b"+" {
            break;
        }
        assert!(Instant::now() < deadline);
    }
}

// ---- bad input ----

#[test]
fn protocol_errors_are_told_and_end_the_connection() {
    let server = Running::start(Engine::new());
    for (request, error) in [
        (&b"*x\r\n"[..], "invalid multibulk length"),
        (b"*2147483648\r\n", "invalid multibulk length"),
        (b"*1\r\n!3\r\nfoo\r\n", "expected '$', got '!'"),
        (b"*1\r\n*1\r\n$1\r\na\r\n", "expected '$', got '*'"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
        (b"*1\r\n$-5\r\n", "invalid bulk length"),
        (b"*1\r\n$999999999999999999999\r\n", "invalid bulk length"),
        (b"SET \"a b\r\n", "unbalanced quotes in request"),
    ] {
        let mut client = server.connect();
        client.write_all(b"PING\r\n").unwrap();
        client.write_all(request).unwrap();
        let all = String::from_utf8_lossy(&read_all(&mut client)).into_owned();
        assert_eq!(all, format!("+PONG\r\n-ERR Protocol error: {error}\r\n"));
    }
    server.is_well();
}

#[test]
fn lines_without_end_are_cut_off() {
    let server = Running::start(Engine::new());
    for start in ["", "*", "*1\r\n$"] {
        let mut client = server.connect();
        client.write_all(start.as_bytes()).unwrap();
        // The server may close before it has taken everything.
        for _ in 0..200 {
            if client.write_all(&[b'1'; 1024]).is_err() {
                break;
            }
        }
        let all = String::from_utf8_lossy(&read_all(&mut client)).into_owned();
        assert!(
            all.is_empty() || all.starts_with("-ERR Protocol error: too big"),
            "{all}"
        );
    }
    server.is_well();
}

#[test]
fn giant_announcements_take_no_memory() {
    let server = Running::start(Engine::new());
    let before = resident();
    let mut clients = Vec::new();
    for n in 0..50 {
        let mut client = server.connect();
        let request: &[u8] = if n % 2 == 0 {
            b"*2147483647\r\n$3\r\nDEL\r\n"
        } else {
            b"*2\r\n$3\r\nGET\r\n$536870912\r\nabc"
        };
        client.write_all(request).unwrap();
        clients.push(client);
    }
    server.is_well();
    let grown = resident().saturating_sub(before);
    assert!(grown < 256 * 1024 * 1024, "{grown} bytes for announcements");
}

/// The resident memory of this process in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_slow_sender_is_served_and_holds_nobody_up() {
    let server = Running::start(Engine::new());
    let mut slow = server.connect();
    let request = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhello\r\n";
    for byte in request {
        slow.write_all(&[*byte]).unwrap();
        server.is_well();
    }
    let mut reply = [0; 5];
    slow.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+OK\r\n");
}

#[test]
fn half_commands_are_dropped_with_their_sender() {
    let server = Running::start(Engine::new());
    for request in [
        &b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhel"[..],
        b"*3\r\n",
        b"SET a hel",
        b"*",
    ] {
        let mut client = server.connect();
        client.write_all(request).unwrap();
        drop(client);
    }
    let mut client = server.connect();
    assert_eq!(exchange(&mut client, b"GET a\r\n", 5), b"$-1\r\n");
}

#[test]
fn a_subscriber_that_does_not_read_is_disconnected() {
    let server = Running::with(Engine::new(), ServerConfig::new().output_limit(1024 * 1024));
    let mut slow = server.connect();
    let expected = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
    assert_eq!(
        exchange(&mut slow, b"SUBSCRIBE c\r\n", expected.len()),
        expected
    );
    let mut publisher = server.connect();
    let message = vec![b'x'; 100_000];
    let mut request =
        format!("*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n${}\r\n", message.len()).into_bytes();
    request.extend_from_slice(&message);
    request.extend_from_slice(b"\r\n");
    let deadline = Instant::now() + Duration::from_secs(30);
    while exchange(&mut publisher, &request, 4) == b":1\r\n" {
        assert!(Instant::now() < deadline, "never disconnected");
    }
    server.is_well();
}

#[test]
fn a_client_that_does_not_read_its_replies_is_held_back() {
    let server = Running::start(Engine::new());
    let mut client = server.connect();
    let mut set = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1000000\r\n".to_vec();
    set.extend(std::iter::repeat_n(b'x', 1_000_000));
    set.extend_from_slice(b"\r\n");
    assert_eq!(exchange(&mut client, &set, 5), b"+OK\r\n");
    let before = resident();
    // Replies of 2 GB in all, none of which is read.
    let gets = b"GET a\r\n".repeat(2000);
    client.write_all(&gets).unwrap();
    for _ in 0..20 {
        server.is_well();
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 256 * 1024 * 1024, "{grown} bytes wait for a client");
}

#[test]
fn garbage_harms_nobody() {
    let server = Running::start(Engine::new());
    let mut seed = 0x2545_F491_4F6C_DD1Du64;
    for _ in 0..200 {
        let mut client = server.connect();
        let mut garbage = Vec::new();
        for _ in 0..200 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            // Bytes that the protocol knows come up more often.
            garbage.push(match seed % 12 {
                0 => b'*',
                1 => b'$',
                2 => b'\r',
                3 | 4 => b'\n',
                5 => b'1',
                6 => b'"',
                _ => (seed >> 32) as u8,
            });
        }
        let _ = client.write_all(&garbage);
        let _ = client.shutdown(std::net::Shutdown::Write);
        read_all(&mut client);
    }
    server.is_well();
}

/// Not a test of its own: the process whose connections the next test counts. A process of its own,
/// because both ends of so many connections are more than one process may have open.
#[test]
fn child_that_listens() {
    if std::env::var_os("REDSTART_LISTEN_CHILD").is_none() {
        return;
    }
    let server = Running::start(Engine::new());
    println!("listening on {}", server.addr);
    // Until the parent closes the pipe, or is gone.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn many_connections_are_held_at_once() {
    let count = redstart_testkit::scale(1_000, "connections") as usize;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_listens", "--nocapture"])
        .env("REDSTART_LISTEN_CHILD", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let addr: SocketAddr = lines
        .find_map(|line| {
            Some(
                line.unwrap()
                    .split_once("listening on ")?
                    .1
                    .parse()
                    .unwrap(),
            )
        })
        .expect("the child listens");
    let mut clients: Vec<TcpStream> = (0..count)
        .map(|_| {
            let client = TcpStream::connect(addr).unwrap();
            client
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            client
        })
        .collect();
    for client in &mut clients {
        client.write_all(b"INCR n\r\n").unwrap();
    }
    let mut sum = 0;
    for client in &mut clients {
        let mut text = Vec::new();
        let mut byte = [0];
        while !text.ends_with(b"\r\n") {
            client.read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
        let number = std::str::from_utf8(&text[1..text.len() - 2]).unwrap();
        sum += number.parse::<usize>().unwrap();
    }
    assert_eq!(sum, count * (count + 1) / 2);
    drop(clients);
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// A command as an array of bulk strings.
fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// Sends a command and reads the first line of its reply.
fn ask(stream: &TcpStream, words: &[&str]) -> String {
    let mut writer = stream;
    writer.write_all(&command(words)).unwrap();
    read_line(stream)
}

fn read_line(mut stream: &TcpStream) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

/// An engine whose scripts count as slow soon, and are ended only much later.
fn impatient() -> Engine {
    Engine::builder()
        .script_time(Duration::from_millis(50), Duration::from_secs(300))
        .build()
        .unwrap()
}

/// Asks until the answer is BUSY; whatever comes before must be an ordinary answer.
fn ask_until_busy(stream: &TcpStream) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let line = ask(stream, &["PING"]);
        if line.starts_with("-BUSY ") {
            return;
        }
        assert_eq!(line, "+PONG");
        assert!(Instant::now() < deadline, "never busy");
    }
}

fn a_slow_script_is_reported_and_killed(server: &mut Running) {
    let connect = || {
        let stream = server.connect();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    };
    let (runner, old, blocked, leaving) = (connect(), connect(), connect(), connect());
    assert_eq!(ask(&old, &["SET", "k", "v"]), "+OK");
    // One waits for an element, one for a moment, and one leaves while it waits.
    (&blocked)
        .write_all(&command(&["BLPOP", "list", "0"]))
        .unwrap();
    let timed = connect();
    (&timed)
        .write_all(&command(&["BLPOP", "other", "0.2"]))
        .unwrap();
    (&leaving)
        .write_all(&command(&["BLPOP", "left", "0"]))
        .unwrap();
    while !ask(&old, &["CLIENT", "LIST"]).is_empty() {
        // The list's body follows its first line.
        let mut rest = Vec::new();
        (&old).write_all(&command(&["PING"])).unwrap();
        while !rest.ends_with(b"+PONG\r\n") {
            let mut byte = [0];
            (&old).read_exact(&mut byte).unwrap();
            rest.push(byte[0]);
        }
        if String::from_utf8_lossy(&rest).matches("cmd=blpop").count() == 3 {
            break;
        }
    }
    let endless = "while true do pcall(function() while true do end end) end";
    for in_transaction in [false, true] {
        if in_transaction {
            assert_eq!(ask(&runner, &["MULTI"]), "+OK");
            assert_eq!(ask(&runner, &["SET", "in", "exec"]), "+QUEUED");
            assert_eq!(ask(&runner, &["EVAL", endless, "0"]), "+QUEUED");
            (&runner).write_all(&command(&["EXEC"])).unwrap();
        } else {
            (&runner)
                .write_all(&command(&["EVAL", endless, "0"]))
                .unwrap();
        }
        // Clients from before and new ones are told, as often as they ask.
        ask_until_busy(&old);
        let new = connect();
        ask_until_busy(&new);
        assert!(ask(&new, &["SET", "k", "other"]).starts_with("-BUSY "));
        assert!(ask(&new, &["NOSUCH"]).starts_with("-ERR unknown command"));
        assert_eq!(ask(&new, &["MULTI"]), "+OK");
        assert!(ask(&new, &["GET", "k"]).starts_with("-BUSY "));
        if !in_transaction {
            drop(
                leaving
                    .try_clone()
                    .map(|stream| stream.shutdown(std::net::Shutdown::Both)),
            );
        }
        let many: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
        for stream in &many {
            assert!(ask(stream, &["GET", "k"]).starts_with("-BUSY "));
        }
        drop(many);
        assert_eq!(ask(&connect(), &["SCRIPT", "KILL"]), "+OK");
        if in_transaction {
            assert_eq!(read_line(&runner), "*2");
            assert_eq!(read_line(&runner), "+OK");
        }
        let killed = read_line(&runner);
        assert!(killed.starts_with("-ERR Script killed by user"), "{killed}");
        assert!(ask(&new, &["EXEC"]).starts_with("-EXECABORT"));
        assert_eq!(ask(&old, &["EXISTS", "k"]), ":1");
        assert!(ask(&old, &["SCRIPT", "KILL"]).starts_with("-NOTBUSY"));
    }
    // Clients that waited are served; clients that left take nothing.
    assert_eq!(read_line(&timed), "*-1");
    assert_eq!(ask(&old, &["RPUSH", "list", "x"]), ":1");
    assert_eq!(read_line(&blocked), "*2");
    let deadline = Instant::now() + Duration::from_secs(30);
    while ask(&old, &["LLEN", "left"]) != ":1" {
        ask(&old, &["DEL", "left"]);
        assert_eq!(ask(&old, &["RPUSH", "left", "x"]), ":1");
        assert!(
            Instant::now() < deadline,
            "a client that left took an element"
        );
    }
    server.stop();
}

#[test]
fn slow_scripts_are_reported_and_killed_with_one_network_thread() {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1);
    let mut server = Running::on(runtime, impatient(), ServerConfig::new());
    a_slow_script_is_reported_and_killed(&mut server);
}

#[test]
fn slow_scripts_are_reported_and_killed_with_many_network_threads() {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4);
    let mut server = Running::on(runtime, impatient(), ServerConfig::new());
    a_slow_script_is_reported_and_killed(&mut server);
}

#[test]
fn slow_scripts_are_reported_and_killed_on_a_current_thread_runtime() {
    let (addr, address) = std::sync::mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let config = ServerConfig::new().listen("127.0.0.1:0".parse().unwrap());
            let server = Server::bind(impatient(), config).await.unwrap();
            addr.send(server.local_addr().unwrap()).unwrap();
            server.run(async { drop(stopped.await) }).await;
        });
    });
    let address = address.recv().unwrap();
    let connect = || TcpStream::connect(address).unwrap();
    let (runner, other) = (connect(), connect());
    assert_eq!(ask(&other, &["PING"]), "+PONG");
    (&runner)
        .write_all(&command(&["EVAL", "while true do end", "0"]))
        .unwrap();
    ask_until_busy(&other);
    ask_until_busy(&connect());
    assert_eq!(ask(&connect(), &["SCRIPT", "KILL"]), "+OK");
    assert!(read_line(&runner).starts_with("-ERR Script killed"));
    assert_eq!(ask(&other, &["PING"]), "+PONG");
    stop.send(()).unwrap();
    thread.join().unwrap();
}

#[test]
fn a_refused_command_uses_up_a_skipped_reply_while_a_script_is_slow() {
    let server = Running::start(impatient());
    let (runner, other, mut quiet) = (server.connect(), server.connect(), server.connect());
    // Both are run as one batch.
    let mut skip = command(&["SET", "k", "v"]);
    skip.extend(command(&["CLIENT", "REPLY", "SKIP"]));
    assert_eq!(exchange(&mut quiet, &skip, 5), b"+OK\r\n");
    (&runner)
        .write_all(&command(&["EVAL", "while true do end", "0"]))
        .unwrap();
    ask_until_busy(&other);
    (&quiet).write_all(&command(&["GET", "k"])).unwrap();
    assert!(ask(&quiet, &["NOSUCH"]).starts_with("-ERR unknown command"));
    assert_eq!(ask(&other, &["SCRIPT", "KILL"]), "+OK");
}

#[test]
fn a_password_is_asked_for_while_a_script_is_slow() {
    let engine = Engine::builder()
        .password(Some("secret".into()))
        .script_time(Duration::from_millis(50), Duration::from_secs(300))
        .build()
        .unwrap();
    let mut runtime = Builder::new_multi_thread();
    let server = Running::on(runtime.worker_threads(1), engine, ServerConfig::new());
    let (runner, other) = (server.connect(), server.connect());
    for stream in [&runner, &other] {
        assert_eq!(ask(stream, &["AUTH", "secret"]), "+OK");
    }
    (&runner)
        .write_all(&command(&["EVAL", "while true do end", "0"]))
        .unwrap();
    ask_until_busy(&other);
    let new = server.connect();
    assert!(ask(&new, &["SCRIPT", "KILL"]).starts_with("-NOAUTH"));
    assert!(ask(&new, &["AUTH", "wrong"]).starts_with("-WRONGPASS"));
    assert_eq!(ask(&new, &["AUTH", "secret"]), "+OK");
    assert_eq!(ask(&new, &["SCRIPT", "KILL"]), "+OK");
    assert!(read_line(&runner).starts_with("-ERR Script killed"));
}
