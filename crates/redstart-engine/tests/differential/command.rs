//! COMMAND: what is told of each command is what redis-server tells.

use std::collections::BTreeSet;

use redstart_engine::{Protocol, Reply};
use redstart_testkit::Kind;

use crate::{Pair, Server, compare, sorted, split};

fn name(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        Reply::Status(text) => text.to_string(),
        other => panic!("{other:?}"),
    }
}

fn ask(pair: &mut Pair, line: &str) -> (Reply, Reply) {
    let args = split(line);
    let ours = pair.sessions[0].execute(&args).into_reply().unwrap();
    (ours, pair.wires[0].call(&args))
}

/// The names of the commands that both have.
fn common(pair: &mut Pair) -> BTreeSet<String> {
    let names = |reply: Reply| -> BTreeSet<String> {
        match reply {
            Reply::Array(names) => names.iter().map(name).collect(),
            other => panic!("{other:?}"),
        }
    };
    let (ours, theirs) = ask(pair, "COMMAND LIST");
    let (ours, theirs) = (names(ours), names(theirs));
    ours.intersection(&theirs).cloned().collect()
}

/// Without fields whose texts are the manual's.
fn without(reply: Reply, dropped: &[&str]) -> Reply {
    match reply {
        Reply::Map(pairs) => {
            let kept = pairs.into_iter().filter(|(key, _)| {
                !matches!(key, Reply::Bulk(_)) || !dropped.contains(&name(key).as_str())
            });
            Reply::Map(kept.map(|(k, v)| (k, without(v, dropped))).collect())
        }
        Reply::Array(items) => Reply::Array(
            items
                .into_iter()
                .map(|item| without(item, dropped))
                .collect(),
        ),
        Reply::Set(items) => Reply::Set(
            items
                .into_iter()
                .map(|item| without(item, dropped))
                .collect(),
        ),
        other => other,
    }
}

/// Each subcommand is asked for itself: a container may have fewer here.
fn assert_same_info(kind: Kind) {
    let server = Server::start_kind(kind);
    let mut pair = Pair::new(&server, Protocol::Resp3);
    let names = common(&mut pair);
    assert!(names.len() > 270, "{}", names.len());
    let mut differences = Vec::new();
    for name in &names {
        let (ours, theirs) = ask(&mut pair, &format!("COMMAND INFO {name}"));
        let alone = |reply: Reply| match without(reply, &["notes"]) {
            Reply::Array(mut all) => {
                if let Some(Reply::Array(fields)) = all.first_mut() {
                    fields.truncate(9);
                }
                sorted(Reply::Array(all))
            }
            other => panic!("{other:?}"),
        };
        let (ours, theirs) = (alone(ours), alone(theirs));
        if ours != theirs {
            differences.push(format!("{name}\n engine: {ours:?}\n server: {theirs:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn command_info_is_the_servers() {
    assert_same_info(Kind::Redis);
}

#[test]
fn command_info_is_valkeys() {
    assert_same_info(Kind::Valkey);
}

fn assert_same_docs(kind: Kind) {
    let server = Server::start_kind(kind);
    let mut pair = Pair::new(&server, Protocol::Resp3);
    let mut differences = Vec::new();
    for name in common(&mut pair) {
        let (ours, theirs) = ask(&mut pair, &format!("COMMAND DOCS {name}"));
        let shown = format!("{ours:?}");
        assert!(
            shown.contains("summary") && !shown.contains("\"summary\"), Bulk(b\"\")"),
            "{name}"
        );
        let texts = [
            "summary",
            "complexity",
            "history",
            "replaced_by",
            "subcommands",
        ];
        let (ours, theirs) = (
            sorted(without(ours, &texts)),
            sorted(without(theirs, &texts)),
        );
        if ours != theirs {
            differences.push(format!("{name}\n engine: {ours:?}\n server: {theirs:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn command_docs_are_the_servers_but_for_the_texts() {
    assert_same_docs(Kind::Redis);
}

#[test]
fn command_docs_are_valkeys_but_for_the_texts() {
    assert_same_docs(Kind::Valkey);
}

#[test]
fn keys_and_their_use_are_the_servers() {
    compare(
        r#"
        COMMAND GETKEYSANDFLAGS LMOVE a b left right
        COMMAND GETKEYSANDFLAGS SET a b
        COMMAND GETKEYSANDFLAGS SET a b GET
        COMMAND GETKEYSANDFLAGS GET a
        COMMAND GETKEYSANDFLAGS DEL a b c
        COMMAND GETKEYSANDFLAGS MSET a 1 b 2
        COMMAND GETKEYSANDFLAGS RENAME a b
        COMMAND GETKEYSANDFLAGS COPY a b
        COMMAND GETKEYSANDFLAGS XREAD COUNT 2 STREAMS a b 1 2
        COMMAND GETKEYSANDFLAGS XREADGROUP GROUP g c STREAMS a b 1 2
        COMMAND GETKEYSANDFLAGS EVAL x 2 k1 k2 arg
        COMMAND GETKEYSANDFLAGS EVALSHA x 1 k1
        COMMAND GETKEYSANDFLAGS SORT a STORE b
        COMMAND GETKEYSANDFLAGS SORT a
        COMMAND GETKEYSANDFLAGS BITFIELD a GET u8 0
        COMMAND GETKEYSANDFLAGS BITFIELD a SET u8 0 1
        COMMAND GETKEYSANDFLAGS ZUNIONSTORE a 2 b c
        COMMAND GETKEYSANDFLAGS ZUNION 2 b c
        COMMAND GETKEYSANDFLAGS SINTERSTORE d a b
        COMMAND GETKEYSANDFLAGS SINTERCARD 2 a b
        COMMAND GETKEYSANDFLAGS LMPOP 2 a b LEFT
        COMMAND GETKEYSANDFLAGS BLMPOP 0 2 a b LEFT
        COMMAND GETKEYSANDFLAGS BLPOP a b 0
        COMMAND GETKEYSANDFLAGS GEORADIUS a 1 2 3 m STORE b
        COMMAND GETKEYSANDFLAGS GEOSEARCHSTORE a b FROMMEMBER x BYRADIUS 1 m
        COMMAND GETKEYSANDFLAGS OBJECT ENCODING a
        COMMAND GETKEYSANDFLAGS MEMORY USAGE a
        COMMAND GETKEYSANDFLAGS XINFO STREAM a
        COMMAND GETKEYSANDFLAGS PFMERGE a b c
        COMMAND GETKEYSANDFLAGS PFCOUNT a b
        COMMAND GETKEYSANDFLAGS BITOP AND d a b
        COMMAND GETKEYSANDFLAGS LCS a b
        COMMAND GETKEYSANDFLAGS SMOVE a b m
        COMMAND GETKEYSANDFLAGS PING
        COMMAND GETKEYSANDFLAGS NOSUCH a
        COMMAND GETKEYSANDFLAGS GET
        COMMAND GETKEYS SORT a BY nosort STORE b
        COMMAND GETKEYS MSET a 1 b 2
        COMMAND GETKEYS EVAL x 0
        COMMAND GETKEYS PING
        ~COMMAND LIST FILTERBY PATTERN xg*
        ~COMMAND LIST FILTERBY PATTERN XINFO|*
        ~COMMAND LIST FILTERBY ACLCAT hyperloglogs
        ~COMMAND LIST FILTERBY ACLCAT bitmap
        ~COMMAND LIST FILTERBY ACLCAT SortedSet
        COMMAND LIST FILTERBY MODULE json
        COMMAND LIST FILTERBY FOO x
        COMMAND LIST FOO
        COMMAND INFO nosuch
        COMMAND DOCS nosuch
        COMMAND NOSUCH
        "#,
    );
}

/// Commands that a server has and the engine does not, and why.
pub(super) const ABSENT: &[(&str, &str)] = &[
    ("client|import-source", NO_CLUSTER),
    ("cluster|cancelslotmigrations", NO_CLUSTER),
    ("cluster|migrateslots", NO_CLUSTER),
    ("cluster|syncslots", NO_CLUSTER),
    (
        "clusterscan",
        "a cursor names a node and a slot: SCAN goes through the one node",
    ),
    (
        "failover",
        "a replica takes over by REPLICAOF NO ONE, and an engine hands over by REDSTART HANDOVER",
    ),
    (
        "migrate",
        "the engine connects to no other server on a client's word; DUMP and RESTORE move keys",
    ),
    ("module|load", NO_MODULES),
    ("module|loadex", NO_MODULES),
    ("module|unload", NO_MODULES),
    ("pfdebug", "looks into the server's own memory"),
    ("pfselftest", "tests the server's own code"),
];

const NO_CLUSTER: &str = "slots of a cluster of one node go nowhere";
const NO_MODULES: &str = "there are no modules";

/// Commands as if of modules.
pub(super) fn is_own(name: &str) -> bool {
    name.starts_with("bf.") || name.starts_with("redstart")
}

fn assert_same_list(kind: Kind) {
    let server = Server::start_kind(kind);
    let mut pair = Pair::new(&server, Protocol::Resp2);
    let (ours, theirs) = ask(&mut pair, "COMMAND LIST");
    let names = |reply: Reply| match reply {
        Reply::Array(items) | Reply::Set(items) => items.iter().map(name).collect(),
        other => panic!("{other:?}"),
    };
    let (ours, theirs): (BTreeSet<String>, BTreeSet<String>) = (names(ours), names(theirs));
    let more: Vec<&String> = ours
        .difference(&theirs)
        .filter(|name| !is_own(name))
        .collect();
    assert_eq!(more, Vec::<&String>::new(), "{kind:?} does not have them");
    let absent: Vec<&str> = theirs.difference(&ours).map(String::as_str).collect();
    let known = ABSENT.iter().map(|(name, _)| *name);
    let mut expected: Vec<&str> = known.filter(|name| theirs.contains(*name)).collect();
    expected.sort_unstable();
    assert_eq!(
        absent, expected,
        "{kind:?} has them, and only these are known to be absent"
    );
}

#[test]
fn no_command_is_there_that_the_server_of_this_version_does_not_have() {
    assert_same_list(Kind::Redis);
}

#[test]
fn commands_that_are_absent_are_known_with_their_reasons() {
    assert_same_list(Kind::Valkey);
}
