//! INFO, SLOWLOG, LATENCY, MEMORY and the counters behind them.

use std::collections::{BTreeMap, BTreeSet};

use redstart_engine::{Engine, Protocol, Reply, Settings};

use crate::{Pair, Server, compare, split};

fn text(reply: Reply) -> String {
    match reply {
        Reply::Bulk(text) | Reply::Verbatim { text, .. } => {
            String::from_utf8_lossy(&text).into_owned()
        }
        other => panic!("{other:?}"),
    }
}

/// The names of the fields, by section.
fn fields(info: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut sections: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut section = String::new();
    for line in info.split("\r\n").filter(|line| !line.is_empty()) {
        match line.strip_prefix("# ") {
            Some(title) => {
                section = title.to_owned();
                sections.entry(section.clone()).or_default();
            }
            None => {
                let name = line.split(':').next().unwrap().to_owned();
                sections.get_mut(&section).unwrap().insert(name);
            }
        }
    }
    sections
}

/// The page as the engine and as the server write it.
fn both(pair: &mut Pair, line: &str) -> (String, String) {
    let args = split(line);
    let ours = pair.sessions[0].execute(&args).into_reply().unwrap();
    (text(ours), text(pair.wires[0].call(&args)))
}

#[test]
fn every_section_has_the_servers_fields() {
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    pair.line("SET a 1");
    pair.line("LPUSH a 1");
    pair.line("SELECT 3");
    pair.line("SET b 1 EX 1000");
    for line in [
        "INFO",
        "INFO all",
        "INFO everything",
        "INFO default",
        "INFO server KEYSPACE nosuch",
    ] {
        let (ours, theirs) = both(&mut pair, line);
        let (mut ours, theirs) = (fields(&ours), fields(&theirs));
        if let Some(server) = ours.get_mut("Server") {
            assert!(server.remove("redstart_version"));
        }
        // Commands that only one of them was sent: how the harness begins and asks.
        let known = |sections: &BTreeMap<String, BTreeSet<String>>| {
            let mut sections = sections.clone();
            for set in sections.values_mut() {
                set.retain(|name| !name.ends_with("flushall"));
                // In this process the quickest commands are timed now and then only.
                set.retain(|name| !name.starts_with("latency_percentiles"));
            }
            sections
        };
        assert_eq!(known(&ours), known(&theirs), "{line}");
    }
    let (ours, theirs) = both(&mut pair, "INFO nosuch");
    assert_eq!((ours.as_str(), theirs.as_str()), ("", ""));
}

#[test]
fn the_log_has_the_servers_fields() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = Settings::new();
    settings
        .set("dir", &dir.path().display().to_string())
        .unwrap();
    settings.set("appendonly", "yes").unwrap();
    let engine = Engine::builder().settings(settings).build().unwrap();
    let server = Server::start();
    let mut wire = server.connect();
    wire.call(&split("CONFIG SET appendonly yes"));
    let ask = split("INFO persistence");
    let ours = fields(&text(engine.session().execute(&ask).into_reply().unwrap()));
    assert_eq!(ours, fields(&text(wire.call(&ask))));
}

/// `name calls rejected failed` of each command.
fn counts(info: &str) -> BTreeSet<String> {
    info.lines()
        .filter_map(|line| line.strip_prefix("cmdstat_"))
        .filter(|line| !line.starts_with("flushall") && !line.starts_with("hello"))
        .map(|line| {
            let (name, facts) = line.trim().split_once(':').unwrap();
            let kept: Vec<&str> = facts
                .split(',')
                .filter(|fact| !fact.starts_with("usec"))
                .collect();
            format!("{name} {}", kept.join(" "))
        })
        .collect()
}

#[test]
fn commands_and_errors_are_counted_as_the_server_does() {
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    pair.line("CONFIG RESETSTAT");
    for line in [
        "SET a 1",
        "LPUSH a 1",
        "GET",
        "NOSUCH x",
        "MULTI",
        "LPUSH a 1",
        "GET b",
        "EXEC",
        "MULTI",
        "GET",
        "EXEC",
        "EVAL \"return redis.call('lpush','a','1')\" 0",
        "EVAL \"return redis.pcall('lpush','a','1')\" 0",
        "EVAL \"redis.pcall('lpush','a','1') return 1\" 0",
        "EVAL \"return redis.error_reply('MY own')\" 0",
        "EVAL \"redis.call('set','x','1') return redis.call('get','x')\" 0",
        "EVALSHA ffffffffffffffffffffffffffffffffffffffff 0",
        "CONFIG SET maxmemory x",
        "CONFIG NOSUCH",
        "BLPOP nokey 0.001",
        "CLIENT SETNAME x",
        "AUTH x",
        "SELECT 99",
    ] {
        pair.line(line);
    }
    let (ours, theirs) = both(&mut pair, "INFO commandstats");
    assert_eq!(counts(&ours), counts(&theirs));
    let (ours, theirs) = both(&mut pair, "INFO errorstats");
    assert_eq!(ours, theirs);
    let total = |info: &str| {
        let line = info.lines().find(|line| line.starts_with("total_error"));
        line.unwrap().to_owned()
    };
    let (ours, theirs) = both(&mut pair, "INFO stats");
    assert_eq!(total(&ours), total(&theirs));
}

/// The slow log without times and addresses: numbers, arguments and names.
fn entries(reply: Reply) -> Vec<(Reply, Reply, Reply)> {
    let Reply::Array(entries) = reply else {
        panic!("{reply:?}")
    };
    let entry = |entry: Reply| match entry {
        Reply::Array(fields) => (fields[0].clone(), fields[3].clone(), fields[5].clone()),
        other => panic!("{other:?}"),
    };
    entries.into_iter().map(entry).collect()
}

#[test]
fn slow_commands_are_kept_as_the_server_keeps_them() {
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    // In this process the quickest commands are timed now and then only: a slow one is a slow one.
    for line in [
        "CLIENT SETNAME me",
        "CONFIG SET slowlog-log-slower-than 0",
        "SLOWLOG RESET",
        "RPUSH {l*200} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32",
        "LRANGE l 0 -1",
        "EVAL \"return redis.call('keys','*')\" 0",
        "CONFIG SET requirepass \"\" masterauth x",
        "CONFIG GET timeout",
        "BLPOP nokey 0.001",
        "SORT nokey",
        "SLOWLOG NOSUCH",
        "SLOWLOG GET -2",
        "SLOWLOG GET x",
    ] {
        pair.line(line);
    }
    let args = split("SLOWLOG GET -1");
    let quick = |entry: &(Reply, Reply, Reply)| {
        let shown = format!("{:?}", entry.1).to_lowercase();
        // Both are quick, and an embedded client may have been lucky.
        !shown.contains("rpush") && !shown.contains("client")
    };
    let mut ours = entries(pair.sessions[0].execute(&args).into_reply().unwrap());
    let mut theirs = entries(pair.wires[0].call(&args));
    assert!(!ours.is_empty() && ours.len() >= 6, "{ours:?}");
    ours.retain(quick);
    theirs.retain(quick);
    // The numbers depend on how many were timed.
    let facts = |entries: Vec<(Reply, Reply, Reply)>| -> Vec<(Reply, Reply)> {
        entries
            .into_iter()
            .map(|(_, args, name)| (args, name))
            .collect()
    };
    assert_eq!(facts(ours), facts(theirs));
    for line in [
        "CONFIG SET slowlog-max-len 2",
        "SLOWLOG LEN",
        "SLOWLOG GET 0",
        "CONFIG SET slowlog-log-slower-than -1",
        "SLOWLOG RESET",
        "KEYS *",
        "SLOWLOG LEN",
    ] {
        pair.line(line);
    }
}

#[test]
fn what_watches_the_server_answers_alike() {
    compare(
        r#"
        LATENCY LATEST
        LATENCY HISTORY nosuch
        LATENCY GRAPH nosuch
        LATENCY RESET
        LATENCY RESET nosuch
        LATENCY HISTORY
        LATENCY HISTOGRAM nosuch
        LATENCY NOSUCH
        SLOWLOG RESET
        SLOWLOG LEN
        SLOWLOG
        MEMORY USAGE nosuch
        MEMORY USAGE a SAMPLES x
        MEMORY USAGE a SAMPLES -1
        MEMORY USAGE a FOO 1
        MEMORY USAGE a SAMPLES
        MEMORY PURGE
        MEMORY NOSUCH
        MODULE LIST
        MODULE
        MULTI
        MONITOR
        EXEC
        MONITOR x
        "#,
    );
}

#[test]
fn memory_stats_has_the_servers_fields() {
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    pair.line("SET a 1");
    let args = split("MEMORY STATS");
    let names = |reply: Reply| -> Vec<Reply> {
        match reply {
            Reply::Array(flat) => flat.into_iter().step_by(2).collect(),
            other => panic!("{other:?}"),
        }
    };
    let ours = pair.sessions[0].execute(&args).into_reply().unwrap();
    assert_eq!(names(ours), names(pair.wires[0].call(&args)));
}

/// Each container has the server's subcommands in its HELP, in words of our own.
#[test]
fn help_names_the_servers_subcommands() {
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    for container in [
        "CLIENT", "COMMAND", "CONFIG", "LATENCY", "MEMORY", "PUBSUB", "SLOWLOG", "XGROUP", "XINFO",
        "OBJECT", "SCRIPT", "FUNCTION",
    ] {
        let args = split(&format!("{container} HELP"));
        let forms = |reply: Reply| -> BTreeSet<String> {
            let Reply::Array(lines) = reply else {
                panic!("{reply:?}")
            };
            lines
                .iter()
                .skip(1)
                .map(|line| match line {
                    Reply::Status(line) => line.to_string(),
                    other => panic!("{other:?}"),
                })
                .filter(|line| !line.starts_with(' '))
                .map(|line| line.split(' ').next().unwrap().to_owned())
                .collect()
        };
        let ours = forms(pair.sessions[0].execute(&args).into_reply().unwrap());
        let theirs = forms(pair.wires[0].call(&args));
        assert_eq!(ours, theirs, "{container}");
    }
}
