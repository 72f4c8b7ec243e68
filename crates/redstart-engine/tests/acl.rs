//! Users on real connections: what becomes of those that are open when a user changes.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use bytes::Bytes;
use redstart_engine::{Engine, EngineError, Outcome, Reply, server::ServerConfig};

#[path = "listener/running.rs"]
mod running;

use running::Running;

fn start(engine: Engine) -> Running {
    Running::start(engine, ServerConfig::new())
}

fn connect(running: &Running) -> Client {
    let stream = TcpStream::connect(running.addr).unwrap();
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).unwrap();
    Client(BufReader::new(stream))
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, line: &str) {
        self.0
            .get_mut()
            .write_all(format!("{line}\r\n").as_bytes())
            .unwrap();
    }

    /// The next line of what comes; empty when the connection is closed.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let _ = self.0.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// Sends a command and reads the first line of its reply.
    fn call(&mut self, line: &str) -> String {
        self.send(line);
        self.line()
    }

    fn bulk(&mut self, line: &str) -> String {
        self.call(line);
        self.line()
    }

    fn is_closed(&mut self) -> bool {
        // What was on the way may still come.
        (0..10).any(|_| self.line().is_empty())
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn connections_of_a_deleted_user_end_also_while_they_block() {
    let server = start(Engine::new());
    let mut admin = connect(&server);
    assert_eq!(admin.call("ACL SETUSER u on nopass allkeys +@all"), "+OK");
    let (mut idle, mut blocked, mut other) = (connect(&server), connect(&server), connect(&server));
    assert_eq!(idle.call("AUTH u x"), "+OK");
    assert_eq!(idle.bulk("ACL WHOAMI"), "u");
    assert_eq!(blocked.call("AUTH u x"), "+OK");
    blocked.send("BLPOP nothing 0");
    wait_for("a blocked client", || {
        let mut found = false;
        let head = admin.call("INFO clients");
        let mut left = head[1..].parse::<usize>().unwrap() as i64 + 2;
        while left > 0 {
            let mut line = String::new();
            left -= admin.0.read_line(&mut line).unwrap() as i64;
            found |= line.trim_end() == "blocked_clients:1";
        }
        found
    });
    assert_eq!(admin.call("ACL DELUSER u"), ":1");
    assert!(idle.is_closed());
    assert!(blocked.is_closed());
    assert_eq!(other.call("PING"), "+PONG");
}

#[test]
fn a_user_that_deletes_itself_has_the_reply_first() {
    let server = start(Engine::new());
    let mut client = connect(&server);
    assert_eq!(client.call("ACL SETUSER u on nopass allkeys +@all"), "+OK");
    assert_eq!(client.call("AUTH u x"), "+OK");
    assert_eq!(client.call("ACL DELUSER u"), ":1");
    assert!(client.is_closed());
}

#[test]
fn subscribers_end_when_their_channel_is_taken_away() {
    let server = start(Engine::new());
    let mut admin = connect(&server);
    admin.call("ACL SETUSER u on nopass +@all &a* &b*");
    let subscribe = |line: &str| {
        let mut client = connect(&server);
        assert_eq!(client.call("AUTH u x"), "+OK");
        assert_eq!(client.call(line), "*3");
        (0..5).for_each(|_| drop(client.line()));
        client
    };
    let (mut a, mut b, mut pattern) = (
        subscribe("SUBSCRIBE a1"),
        subscribe("SUBSCRIBE b1"),
        subscribe("PSUBSCRIBE a*"),
    );
    assert_eq!(admin.call("ACL SETUSER u resetchannels &b*"), "+OK");
    assert!(a.is_closed());
    assert!(pattern.is_closed());
    assert_eq!(admin.call("PUBLISH b1 hello"), ":1");
    assert_eq!(b.line(), "*3");
}

#[test]
fn clients_are_listed_with_their_user_and_killed_by_it() {
    let server = start(Engine::new());
    let mut admin = connect(&server);
    admin.call("ACL SETUSER u on nopass +@all");
    let mut client = connect(&server);
    assert_eq!(client.call("AUTH u x"), "+OK");
    let line = client.bulk("CLIENT INFO");
    assert!(line.contains(" user=u "), "{line}");
    assert_eq!(admin.call("CLIENT KILL USER u"), ":1");
    assert!(client.is_closed());
    assert_eq!(
        admin.call("CLIENT KILL USER nobody"),
        "-ERR No such user 'nobody'"
    );
}

fn run(session: &mut redstart_engine::Session, line: &str) -> Reply {
    let args: Vec<Bytes> = line
        .split(' ')
        .map(|word| Bytes::from(word.to_owned()))
        .collect();
    match session.execute(&args) {
        Outcome::Reply(reply) => reply,
        Outcome::Blocked(_) => panic!("{line} blocks"),
    }
}

#[test]
fn a_session_in_process_loses_its_rights_with_its_user() {
    let engine = Engine::builder()
        .user("u", ["on", "nopass", "+@all", "~*"])
        .build()
        .unwrap();
    let (mut admin, mut session) = (engine.session(), engine.session());
    assert_eq!(run(&mut session, "AUTH u x"), Reply::OK);
    assert_eq!(run(&mut session, "SET k v"), Reply::OK);
    assert_eq!(run(&mut admin, "ACL DELUSER u"), Reply::Int(1));
    assert!(run(&mut session, "GET k").is_error());
    assert_eq!(run(&mut session, "AUTH default x"), Reply::OK);
    assert_eq!(run(&mut session, "GET k"), Reply::bulk("v"));
}

#[test]
fn users_are_kept_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users.acl");
    std::fs::write(&path, "user alice on >secret ~a* +get\n\nuser bob off\n").unwrap();
    let engine = Engine::builder().acl_file(&path).build().unwrap();
    let mut session = engine.session();
    assert_eq!(run(&mut session, "ACL DELUSER bob"), Reply::Int(1));
    assert_eq!(
        run(&mut session, "ACL SETUSER carol on nopass +@all ~* &*"),
        Reply::OK
    );
    assert_eq!(run(&mut session, "ACL SAVE"), Reply::OK);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        !text.contains("secret") && text.contains("user carol"),
        "{text}"
    );
    // What was saved is what is read.
    let again = Engine::builder().acl_file(&path).build().unwrap();
    let (before, after) = (
        run(&mut session, "ACL LIST"),
        run(&mut again.session(), "ACL LIST"),
    );
    assert_eq!(before, after);

    let mut carol = engine.session();
    assert_eq!(run(&mut carol, "AUTH carol x"), Reply::OK);
    std::fs::write(&path, "user alice on\nuser alice off\nwhat\n").unwrap();
    assert!(run(&mut session, "ACL LOAD").is_error());
    assert_eq!(run(&mut session, "ACL LIST"), before);
    std::fs::write(&path, "user alice on +get\n").unwrap();
    assert_eq!(run(&mut session, "ACL LOAD"), Reply::OK);
    assert!(run(&mut carol, "PING").is_error());

    std::fs::write(&path, "user alice +nosuch\n").unwrap();
    let refused = Engine::builder().acl_file(&path).build();
    assert!(matches!(refused, Err(EngineError::Users(_))));
}

#[test]
fn a_call_with_too_few_arguments_can_be_asked_about() {
    let engine = Engine::builder()
        .user("u", ["on", "nopass", "+@all", "~a", "&a"])
        .build()
        .unwrap();
    let mut session = engine.session();
    assert_eq!(run(&mut session, "AUTH u x"), Reply::OK);
    for command in ["publish", "sort", "get", "georadius", "zunionstore", "eval"] {
        let script = format!("return redis.acl_check_cmd('{command}')");
        let args = ["EVAL", &script, "0"].map(|word| Bytes::from(word.to_owned()));
        let reply = session.execute(&args).into_reply().unwrap();
        assert!(!reply.is_error(), "{command}: {reply:?}");
    }
}

#[test]
fn the_log_keeps_the_beginning_of_a_long_key() {
    let engine = Engine::builder()
        .user("u", ["on", "nopass", "+@all"])
        .build()
        .unwrap();
    let (mut admin, mut session) = (engine.session(), engine.session());
    assert_eq!(run(&mut session, "AUTH u x"), Reply::OK);
    assert!(run(&mut session, &format!("GET {}", "k".repeat(100_000))).is_error());
    let shown = format!("{:?}", run(&mut admin, "ACL LOG"));
    assert!(
        shown.contains("kkk") && shown.len() < 2000,
        "{}",
        shown.len()
    );
}

#[test]
fn a_pattern_that_would_end_its_selector_in_a_file_is_refused() {
    let mut session = Engine::new().session();
    let args = ["ACL", "SETUSER", "u", "(~x) +get)"].map(Bytes::from);
    assert!(session.execute(&args).into_reply().unwrap().is_error());
}

#[test]
fn sessions_in_process_stop_listening_and_waiting_with_their_user() {
    let engine = Engine::builder()
        .user("u", ["on", "nopass", "+@all", "~*", "&*"])
        .build()
        .unwrap();
    let (mut admin, mut listening, mut waiting) =
        (engine.session(), engine.session(), engine.session());
    assert_eq!(run(&mut listening, "AUTH u x"), Reply::OK);
    run(&mut listening, "SUBSCRIBE c");
    assert_eq!(run(&mut admin, "PUBLISH c 1"), Reply::Int(1));
    assert_eq!(run(&mut waiting, "AUTH u x"), Reply::OK);
    let args = ["BLPOP", "l", "0"].map(Bytes::from);
    let Outcome::Blocked(mut blocked) = waiting.execute(&args) else {
        panic!("it does not wait");
    };
    assert_eq!(run(&mut admin, "ACL SETUSER u resetchannels"), Reply::OK);
    assert_eq!(run(&mut admin, "PUBLISH c 1"), Reply::Int(0));
    assert_eq!(run(&mut admin, "ACL DELUSER u"), Reply::Int(1));
    assert!(blocked.try_take().is_some_and(|reply| reply.is_error()));
    assert_eq!(run(&mut admin, "RPUSH l 1"), Reply::Int(1));
    assert_eq!(run(&mut admin, "LLEN l"), Reply::Int(1));
}

#[test]
fn a_rewritten_configuration_has_the_users_of_now() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.conf");
    std::fs::write(&path, "user bob on >pw ~* +@all\ntimeout 7\n").unwrap();
    let build = || {
        let settings = redstart_engine::Settings::read(&path).unwrap();
        Engine::builder().settings(settings).build().unwrap()
    };
    let engine = build();
    let mut session = engine.session();
    assert_eq!(run(&mut session, "AUTH bob pw"), Reply::OK);
    let mut admin = engine.session();
    assert_eq!(run(&mut admin, "ACL DELUSER bob"), Reply::Int(1));
    assert_eq!(
        run(&mut admin, "ACL SETUSER alice on >secret ~a* (+get %R~b)"),
        Reply::OK
    );
    assert_eq!(run(&mut admin, "CONFIG REWRITE"), Reply::OK);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("bob") && !text.contains("secret"), "{text}");
    let again = build();
    let mut session = again.session();
    assert!(run(&mut session, "AUTH bob pw").is_error());
    assert_eq!(run(&mut session, "ACL LIST"), run(&mut admin, "ACL LIST"));
    assert_eq!(run(&mut session, "AUTH alice secret"), Reply::OK);
}

#[test]
fn comparing_a_value_needs_the_right_to_read_it() {
    let engine = Engine::builder()
        .user("u", ["+set", "%W~secret"])
        .build()
        .unwrap();
    let mut session = engine.session();
    assert_eq!(run(&mut session, "ACL DRYRUN u SET secret x"), Reply::OK);
    for option in ["GET", "IFEQ guess"] {
        let reply = run(&mut session, &format!("ACL DRYRUN u SET secret x {option}"));
        assert!(matches!(reply, Reply::Bulk(_)), "{option}: {reply:?}");
    }
}

/// An engine with these settings, and a session that has logged in if there is a password.
fn with_file(text: &str, login: &str) -> (tempfile::TempDir, Engine, redstart_engine::Session) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.conf");
    std::fs::write(&path, text).unwrap();
    let settings = redstart_engine::Settings::read(&path).unwrap();
    let engine = Engine::builder().settings(settings).build().unwrap();
    let mut session = engine.session();
    assert_eq!(run(&mut session, login), Reply::OK);
    (dir, engine, session)
}

#[test]
fn the_default_user_of_a_file_has_only_the_rights_of_its_line() {
    let (_dir, _engine, mut session) = with_file("user default on >pw +ping\n", "AUTH default pw");
    assert_eq!(run(&mut session, "PING"), Reply::Status("PONG".into()));
    let refused = run(&mut session, "SET k v");
    assert!(
        matches!(&refused, Reply::Error(text) if text.starts_with("NOPERM")),
        "{refused:?}"
    );
    // A pattern after the one that means all keys would be an error.
    let line = "user default on >pw ~app:* -@all +get\n";
    let (_dir, _engine, mut session) = with_file(line, "AUTH default pw");
    assert_eq!(run(&mut session, "GET app:1"), Reply::Nil);
    assert!(run(&mut session, "GET other").is_error());
    // Who is off has no open door, so that other machines may connect.
    let off = "user default off\nuser app on >pw ~* &* +@all\n";
    let (_dir, engine, _session) = with_file(off, "AUTH app pw");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let anywhere = ServerConfig::new().listen("0.0.0.0:0".parse().unwrap());
    let bound = runtime.block_on(redstart_engine::server::Server::bind(engine, anywhere));
    assert!(bound.is_ok(), "{:?}", bound.err());
}

#[test]
fn a_rewritten_configuration_starts_with_a_default_user_that_was_narrowed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.conf");
    std::fs::write(&path, "timeout 7\n").unwrap();
    let build = || {
        let settings = redstart_engine::Settings::read(&path).unwrap();
        Engine::builder().settings(settings).build().unwrap()
    };
    let engine = build();
    let mut session = engine.session();
    for line in ["ACL SETUSER default resetkeys ~app:*", "CONFIG REWRITE"] {
        assert_eq!(run(&mut session, line), Reply::OK, "{line}");
    }
    let again = build();
    let mut other = again.session();
    assert!(run(&mut other, "GET k").is_error());
    assert_eq!(run(&mut other, "SET app:1 x"), Reply::OK);
    // Once more, from the file that was written.
    let list = run(&mut other, "ACL LIST");
    assert_eq!(run(&mut other, "CONFIG REWRITE"), Reply::OK);
    assert_eq!(run(&mut build().session(), "ACL LIST"), list);
}

#[test]
fn rules_with_quotes_and_odd_bytes_survive_a_rewrite() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.conf");
    std::fs::write(&path, "timeout 7\n").unwrap();
    let build = || {
        let settings = redstart_engine::Settings::read(&path).unwrap();
        Engine::builder().settings(settings).build().unwrap()
    };
    let engine = build();
    let mut session = engine.session();
    let rules: [&[u8]; 8] = [
        b"ACL",
        b"SETUSER",
        b"u'v\"w",
        b"on",
        b"~it's:*",
        b"~\"a\\b\"\xFF",
        b"+get",
        b"(~x'y +set)",
    ];
    let args = rules.map(Bytes::from_static);
    assert_eq!(session.execute(&args).into_reply(), Some(Reply::OK));
    assert_eq!(run(&mut session, "CONFIG REWRITE"), Reply::OK);
    let list = run(&mut session, "ACL LIST");
    assert_eq!(run(&mut build().session(), "ACL LIST"), list);
}

#[test]
fn a_first_argument_with_a_blank_is_refused() {
    let mut session = Engine::new().session();
    for rule in [
        "+get|a b",
        "+get|x\nuser evil on nopass ~* +@all",
        "+get|a\tb",
    ] {
        let args = ["ACL", "SETUSER", "u", rule].map(Bytes::from);
        let reply = session.execute(&args).into_reply().unwrap();
        assert!(reply.is_error(), "{rule:?}: {reply:?}");
    }
    assert_eq!(run(&mut session, "ACL SETUSER u +get|a"), Reply::OK);
}

#[test]
fn users_of_an_included_file_are_not_written_a_second_time() {
    let dir = tempfile::tempdir().unwrap();
    let (path, users) = (dir.path().join("redis.conf"), dir.path().join("users.conf"));
    std::fs::write(&users, "user bob on >pw ~* +@all\n").unwrap();
    std::fs::write(&path, format!("include {}\n", users.display())).unwrap();
    let build = || {
        let settings = redstart_engine::Settings::read(&path).unwrap();
        Engine::builder().settings(settings).build()
    };
    let engine = build().unwrap();
    let refused = run(&mut engine.session(), "CONFIG REWRITE");
    assert!(
        matches!(&refused, Reply::Error(text) if text.contains("included file")),
        "{refused:?}"
    );
    assert!(build().is_ok());
}

#[test]
fn a_monitor_hears_nothing_once_its_user_is_gone() {
    let engine = Engine::builder()
        .user("u", ["on", "nopass", "+@all", "~*", "&*"])
        .build()
        .unwrap();
    let (mut admin, mut monitor) = (engine.session(), engine.session());
    let mut heard = monitor.pushes();
    assert_eq!(run(&mut monitor, "AUTH u x"), Reply::OK);
    assert_eq!(run(&mut monitor, "MONITOR"), Reply::OK);
    run(&mut admin, "SET before 1");
    let mut lines = String::new();
    while let Some(line) = heard.try_recv() {
        lines.push_str(&format!("{line:?}"));
    }
    assert!(lines.contains("before"), "{lines}");
    assert_eq!(run(&mut admin, "ACL DELUSER u"), Reply::Int(1));
    run(&mut admin, "SET after 1");
    while let Some(line) = heard.try_recv() {
        assert!(!format!("{line:?}").contains("after"), "{line:?}");
    }
}
