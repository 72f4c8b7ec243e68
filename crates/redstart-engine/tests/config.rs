//! Settings: files in Redis's format, and what their errors say.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use redstart_engine::{Engine, Reply, Session, Settings, server::Server};

fn ask(session: &mut Session, line: &str) -> Reply {
    let args: Vec<Bytes> = line
        .split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    session.execute(&args).into_reply().unwrap()
}

fn get(session: &mut Session, name: &str) -> String {
    match ask(session, &format!("CONFIG GET {name}")) {
        Reply::Array(pair) => match &pair[1] {
            Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_is_read_with_its_quotes_and_the_files_it_includes() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("b1.inc"), "timeout 5\nsave 10 20\n").unwrap();
    std::fs::write(path("b2.inc"), "maxclients 77\n").unwrap();
    let main = format!(
        "# a comment\n\n  MAXMEMORY   3mb \nrequirepass \"p \\x41\\\"\"\nsave 1 2\ninclude {}/b*.inc\n\
         save 30 40\ndatabases 4\nslave-read-only no\nport 0\n",
        dir.path().display()
    );
    std::fs::write(path("redis.conf"), main).unwrap();
    let settings = Settings::read(path("redis.conf")).unwrap();
    let engine = Engine::builder().settings(settings).build().unwrap();
    let mut session = engine.session();
    assert!(
        ask(&mut session, "CONFIG GET save").is_error(),
        "a password is set"
    );
    let login = ["AUTH", "p A\""].map(Bytes::from);
    assert_eq!(session.execute(&login).into_reply(), Some(Reply::OK));
    for (name, value) in [
        ("maxmemory", "3145728"),
        ("save", "1 2 10 20 30 40"),
        ("timeout", "5"),
        ("maxclients", "77"),
        ("databases", "4"),
        ("replica-read-only", "no"),
    ] {
        assert_eq!(get(&mut session, name), value, "{name}");
    }
    assert!(ask(&mut session, "SELECT 4").is_error());
    assert_eq!(ask(&mut session, "SELECT 3"), Reply::OK);
}

#[test]
fn an_error_names_the_file_the_line_and_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    for (text, line, cause) in [
        (
            "timeout 5\nmaxmemory lots\n",
            2,
            "argument must be a memory value",
        ),
        ("nosuch 5\n", 1, "Bad directive"),
        ("\n\n\ntimeout 1 2\n", 4, "wrong number of arguments"),
        ("requirepass \"hush\n", 1, "Unbalanced quotes"),
        ("masterauth hush hush\n", 1, "wrong number of arguments"),
        (
            "tls-key-file-pass hush hush\n",
            1,
            "wrong number of arguments",
        ),
        (
            "user bob on >hush\nuser bob on >hush\n",
            2,
            "Duplicate user",
        ),
        ("replicaof 127.0.0.1\n", 1, "wrong number of arguments"),
        ("replicaof 127.0.0.1 65536\n", 1, "Invalid master port"),
        (
            "cluster-enabled yes\ntls-port 0\ntls-port 6380\n",
            3,
            "tls-port cannot be set",
        ),
        (
            "appenddirname appendonlydir\nappenddirname other\n",
            2,
            "appenddirname cannot be set",
        ),
        ("save 1\n", 1, "Invalid save parameters"),
        ("loadmodule x.so\n", 1, "modules cannot be loaded"),
    ] {
        let path = dir.path().join("bad.conf");
        std::fs::write(&path, text).unwrap();
        let error = Settings::read(&path).unwrap_err().to_string();
        assert!(!error.contains("hush"), "a secret is shown: {error}");
        assert!(
            error.contains(&format!("bad.conf, line {line}: ")),
            "{error}"
        );
        assert!(error.contains(cause), "{error}");
    }
    let outer = dir.path().join("outer.conf");
    std::fs::write(
        &outer,
        format!("include {}/bad.conf\n", dir.path().display()),
    )
    .unwrap();
    let error = Settings::read(&outer).unwrap_err().to_string();
    assert!(error.contains("bad.conf, line 1"), "{error}");
    std::fs::write(&outer, format!("include {}\n", outer.display())).unwrap();
    assert!(
        Settings::read(&outer).is_err(),
        "a file that includes itself"
    );
    assert!(Settings::read(dir.path().join("absent.conf")).is_err());
}

#[test]
fn a_rewritten_file_keeps_whom_an_engine_follows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.conf");
    // Nobody answers there.
    std::fs::write(&path, "replicaof 127.0.0.1 1\n").unwrap();
    let start = || {
        let settings = Settings::read(&path).unwrap();
        Engine::builder().settings(settings).build().unwrap()
    };
    let followed = |engine: &Engine| engine.following().map(|one| (one.host, one.port));
    let engine = start();
    let mut session = engine.session();
    assert_eq!(followed(&engine), Some(("127.0.0.1".into(), 1)));
    assert_eq!(get(&mut session, "replicaof"), "127.0.0.1 1");
    assert!(
        ask(&mut session, "SET k v").is_error(),
        "a master is started"
    );
    assert_eq!(ask(&mut session, "REPLICAOF NO ONE"), Reply::OK);
    assert_eq!(get(&mut session, "replicaof"), "");
    assert_eq!(ask(&mut session, "CONFIG REWRITE"), Reply::OK);
    drop((session, engine));
    let engine = start();
    let mut session = engine.session();
    assert_eq!(followed(&engine), None);
    assert_eq!(ask(&mut session, "REPLICAOF 127.0.0.1 2"), Reply::OK);
    assert_eq!(get(&mut session, "replicaof"), "127.0.0.1 2");
    assert_eq!(ask(&mut session, "CONFIG REWRITE"), Reply::OK);
    drop((session, engine));
    let engine = start();
    assert_eq!(followed(&engine), Some(("127.0.0.1".into(), 2)));
    engine.promote();
    assert_eq!(get(&mut engine.session(), "replicaof"), "");
}

#[test]
fn a_file_makes_a_cluster_of_one_node_which_follows_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.conf");
    std::fs::write(&path, "\n").unwrap();
    let settings = Settings::read(&path).unwrap();
    let engine = Engine::builder().settings(settings).cluster(true);
    let engine = engine.build().unwrap();
    let mut session = engine.session();
    assert_eq!(ask(&mut session, "CONFIG REWRITE"), Reply::OK);
    drop((session, engine));
    // As it was started before, and by the file alone.
    for flag in [true, false] {
        let settings = Settings::read(&path).unwrap();
        let mut builder = Engine::builder().settings(settings);
        if flag {
            builder = builder.cluster(true);
        }
        let engine = builder.build().unwrap();
        let mut session = engine.session();
        assert_eq!(get(&mut session, "cluster-enabled"), "yes");
        assert_eq!(
            ask(&mut session, "REPLICAOF 127.0.0.1 1"),
            Reply::Error("ERR REPLICAOF not allowed in cluster mode.".into())
        );
    }
    std::fs::write(&path, "cluster-enabled yes\nreplicaof 127.0.0.1 1\n").unwrap();
    let settings = Settings::read(&path).unwrap();
    assert!(Engine::builder().settings(settings).build().is_err());
}

#[tokio::test]
async fn the_listener_is_where_the_file_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.conf");
    let socket = dir.path().join("s.sock");
    // A port that was free may be taken by another in the meantime: then another is tried.
    let mut tries = 0;
    let (engine, server, port) = loop {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        // Documentation's addresses are nowhere.
        let text = format!(
            "bind 127.0.0.1 -192.0.2.1\nport {port}\nunixsocket {}\nunixsocketperm 700\nrequirepass x\n",
            socket.display()
        );
        std::fs::write(&path, text).unwrap();
        let settings = Settings::read(&path).unwrap();
        let listener = settings.listener().unwrap();
        let engine = Engine::builder().settings(settings).build().unwrap();
        match Server::bind(engine.clone(), listener).await {
            Ok(server) => break (engine, server, port),
            Err(error) if tries == 20 => panic!("{error}"),
            Err(_) => tries += 1,
        }
    };
    assert_eq!(server.local_addr().unwrap().port(), port);
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let mut session = engine.session();
    assert_eq!(ask(&mut session, "AUTH x"), Reply::OK);
    assert_eq!(get(&mut session, "port"), port.to_string());
    assert_eq!(get(&mut session, "bind"), "127.0.0.1");
    assert_eq!(
        get(&mut session, "unixsocket"),
        socket.display().to_string()
    );
}

#[test]
fn debug_is_refused_where_the_file_says_so() {
    for (word, refused) in [("no", true), ("yes", false), ("local", false)] {
        let mut settings = Settings::new();
        settings.set("enable-debug-command", word).unwrap();
        let engine = Engine::builder().settings(settings).build().unwrap();
        let reply = ask(&mut engine.session(), "DEBUG SLEEP 0");
        assert_eq!(reply.is_error(), refused, "{word}: {reply:?}");
    }
}

#[test]
fn a_rewritten_file_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.conf");
    std::fs::write(&path, "requirepass x\n").unwrap();
    let settings = Settings::read(&path).unwrap();
    // Its permissions are kept, and a file that is gone comes back readable by its owner only.
    for (mode, gone) in [(0o640, false), (0o600, true)] {
        if gone {
            std::fs::remove_file(&path).unwrap();
        } else {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let engine = Engine::builder()
            .settings(settings.clone())
            .build()
            .unwrap();
        let mut session = engine.session();
        assert_eq!(ask(&mut session, "AUTH x"), Reply::OK);
        assert_eq!(ask(&mut session, "CONFIG REWRITE"), Reply::OK);
        let now = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(now, mode, "{now:o}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

/// The length of a value, and of its binary form.
fn lengths(session: &mut Session, key: &str) -> (usize, usize) {
    let length = |reply: Reply| match reply {
        Reply::Bulk(text) => text.len(),
        other => panic!("{other:?}"),
    };
    let value = length(ask(session, &format!("GET {key}")));
    (value, length(ask(session, &format!("DUMP {key}"))))
}

#[test]
fn long_strings_are_compressed_unless_a_setting_says_otherwise() {
    let mut session = Engine::new().session();
    ask(&mut session, &format!("SET key {}", "x".repeat(1000)));
    assert!(lengths(&mut session, "key").1 < 100);
    ask(&mut session, "CONFIG SET rdbcompression no");
    assert!(lengths(&mut session, "key").1 > 1000);
}

#[test]
fn an_estimate_becomes_dense_at_the_size_that_is_set() {
    let mut session = Engine::new().session();
    ask(&mut session, "CONFIG SET hll-sparse-max-bytes 30");
    ask(&mut session, "PFADD small a");
    ask(&mut session, "PFADD large a b c d e f g h");
    assert!(lengths(&mut session, "small").0 < 100);
    assert!(lengths(&mut session, "large").0 > 10_000);
    ask(&mut session, "CONFIG SET hll-sparse-max-bytes 3000");
    ask(&mut session, "PFADD other a b c d e f g h");
    assert!(lengths(&mut session, "other").0 < 100);
}

#[test]
fn writes_are_refused_after_a_snapshot_that_is_due_failed() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = Settings::new();
    settings.set("dir", dir.path().to_str().unwrap()).unwrap();
    settings.set("save", "60 1").unwrap();
    let clock = redstart_engine::Clock::manual_at(1_700_000_000_000_000);
    let builder = Engine::builder().settings(settings).clock(clock);
    let engine = builder.build().unwrap();
    let mut session = engine.session();
    // A folder is where the file would be.
    std::fs::create_dir(dir.path().join("dump.rdb")).unwrap();
    let library = "#!lua name=l\nredis.register_function('write', \
                   function() return redis.call('SET', 'a', 2) end)";
    let load = ["FUNCTION", "LOAD", library].map(Bytes::from);
    assert!(!session.execute(&load).into_reply().unwrap().is_error());
    assert_eq!(ask(&mut session, "SET a 1"), Reply::OK);
    engine.advance(std::time::Duration::from_secs(61));
    let refused = |reply: Reply| matches!(reply, Reply::Error(text) if text.starts_with("MISCONF"));
    assert!(refused(ask(&mut session, "SET a 2")));
    assert_eq!(ask(&mut session, "GET a"), Reply::bulk("1"));
    // Scripts and functions write no more than commands do.
    let eval = |session: &mut Session, text: &str| {
        let args = ["EVAL", text, "0"].map(|word| Bytes::copy_from_slice(word.as_bytes()));
        session.execute(&args).into_reply().unwrap()
    };
    let writes = "return redis.call('SET', 'a', 2)";
    assert!(refused(eval(&mut session, writes)));
    let caught = "return redis.pcall('SET', 'a', 2)";
    assert!(refused(eval(&mut session, caught)));
    assert!(refused(eval(&mut session, "#!lua\nreturn 1")));
    let reads = "return redis.call('GET', 'a')";
    assert_eq!(eval(&mut session, reads), Reply::bulk("1"));
    assert_eq!(
        eval(&mut session, &format!("#!lua flags=no-writes\n{reads}")),
        Reply::bulk("1")
    );
    assert!(refused(ask(&mut session, "FCALL write 0")));
    ask(&mut session, "MULTI");
    eval(&mut session, writes);
    match ask(&mut session, "EXEC") {
        Reply::Array(replies) => assert!(refused(replies[0].clone()), "{replies:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(ask(&mut session, "GET a"), Reply::bulk("1"));
    ask(&mut session, "CONFIG SET stop-writes-on-bgsave-error no");
    assert_eq!(eval(&mut session, writes), Reply::OK);
    assert_eq!(ask(&mut session, "SET a 2"), Reply::OK);
    ask(&mut session, "CONFIG SET stop-writes-on-bgsave-error yes");
    assert!(refused(ask(&mut session, "SET a 3")));
    std::fs::remove_dir(dir.path().join("dump.rdb")).unwrap();
    assert_eq!(ask(&mut session, "SAVE"), Reply::OK);
    assert_eq!(ask(&mut session, "SET a 3"), Reply::OK);
}

#[test]
fn a_log_that_ends_within_a_command_is_an_error_if_a_setting_says_so() {
    let dir = tempfile::tempdir().unwrap();
    {
        let builder = Engine::builder().append_only(dir.path(), redstart_engine::Fsync::No);
        let mut session = builder.build().unwrap().session();
        ask(&mut session, "SET a 1");
        ask(&mut session, "SET b 1");
    }
    let log = dir.path().join("appendonlydir/appendonly.aof.1.incr.aof");
    let bytes = std::fs::read(&log).unwrap();
    std::fs::write(&log, &bytes[..bytes.len() - 3]).unwrap();
    let open = |truncated: &str| {
        let mut settings = Settings::new();
        settings.set("aof-load-truncated", truncated).unwrap();
        let builder = Engine::builder().settings(settings);
        builder
            .append_only(dir.path(), redstart_engine::Fsync::No)
            .build()
    };
    let refused = open("no").expect_err("it is torn").to_string();
    assert!(refused.contains("ends within a command"), "{refused}");
    let mut session = open("yes").unwrap().session();
    assert_eq!(ask(&mut session, "GET a"), Reply::bulk("1"));
    assert_eq!(ask(&mut session, "GET b"), Reply::Nil);
}
