//! DUMP and RESTORE between the engine, Redis and Valkey.

use bytes::Bytes;
use redstart_engine::{Compat, Engine, Reply};
use redstart_testkit::{Kind, scale};

use super::{
    Server,
    contents::{Client, describe, words},
    dump, old,
    random::{Chance, KINDS, expiring_hash, value},
    restore, run, seed,
};

/// Makes a value on one, dumps it there and restores it on the other: both must show the same.
fn carry(from: &mut impl Client, to: &mut impl Client, key: &Bytes, what: &str) {
    let payload = dump(from, key);
    assert_eq!(restore(to, key, &payload), Reply::OK, "{what}");
    assert_eq!(describe(to, key), describe(from, key), "{what}");
}

#[test]
fn what_one_dumps_the_others_restore() {
    let rounds = scale(5, "dumps") * KINDS;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut servers = [
        Server::start(Kind::Redis, dirs[0].path()),
        Server::start(Kind::Valkey, dirs[1].path()),
    ];
    let [mut redis, mut valkey] = [servers[0].connect(), servers[1].connect()];
    let engine = Engine::new();
    let mut session = engine.session();
    let mut chance = Chance::new(seed());
    let (mut exact, mut equal) = (0, 0);
    for round in 0..rounds {
        let key = Bytes::from(format!("key:{}", chance.below(1 << 40)));
        let recipe = value(&mut chance, round, &key);
        let what = format!("round {round}");
        for client in [&mut redis as &mut dyn Client, &mut valkey, &mut session] {
            for args in &recipe.commands {
                let reply = client.ask(args);
                assert!(!reply.is_error(), "{what}: {args:?}: {reply:?}");
            }
        }
        if recipe.exact {
            exact += 1;
            let (ours, theirs) = (dump(&mut session, &key), dump(&mut redis, &key));
            equal += u64::from(ours == theirs);
            assert_eq!(
                ours.escape_ascii().to_string(),
                theirs.escape_ascii().to_string(),
                "{what}"
            );
        }
        // Each direction with the value that the origin made itself.
        for (kind, wire) in [("redis", &mut redis), ("valkey", &mut valkey)] {
            let copy = engine.clone();
            let mut other = copy.session();
            other.line("SELECT 1");
            carry(wire, &mut other, &key, &format!("{what}: {kind} to engine"));
            carry(
                &mut other,
                wire,
                &key,
                &format!("{what}: {kind} to engine and back"),
            );
            carry(
                &mut session,
                wire,
                &key,
                &format!("{what}: engine to {kind}"),
            );
        }
        for client in [&mut redis as &mut dyn Client, &mut valkey, &mut session] {
            client.line("FLUSHALL");
        }
    }
    redstart_testkit::figure(format!(
        "{rounds} values, {equal} of {exact} dumps equal to Redis's byte by byte"
    ));
}

#[test]
fn hashes_whose_fields_expire_are_restored_alike() {
    let dir = tempfile::tempdir().unwrap();
    let mut valkey = Server::start(Kind::Valkey, dir.path());
    let mut valkey = valkey.connect();
    // The engine of Redis 7.0 has no word for them, but holds what it is given.
    let engines = [Compat::Valkey9, Compat::Redis70]
        .map(|compat| Engine::builder().compat(compat).build().unwrap());
    let mut session = engines[0].session();
    let mut chance = Chance::new(seed());
    let key = Bytes::from_static(b"k");
    for round in 0..scale(40, "dumps of hashes whose fields expire") {
        let recipe = expiring_hash(&mut chance, &key);
        run(&mut valkey, &recipe.commands);
        run(&mut session, &recipe.commands);
        let made = describe(&mut session, &key);
        assert_eq!(made, describe(&mut valkey, &key), "round {round}");
        let mut other = engines[0].session();
        other.line("SELECT 1");
        for what in ["valkey to engine", "and back"] {
            let what = format!("round {round}: {what}");
            match what.ends_with("engine") {
                true => carry(&mut valkey, &mut other, &key, &what),
                false => carry(&mut other, &mut valkey, &key, &what),
            }
        }
        let what = format!("round {round}: engine to valkey");
        carry(&mut session, &mut valkey, &key, &what);
        // Through the engine that cannot tell them.
        let payload = dump(&mut valkey, &key);
        let mut old = engines[1].session();
        assert_eq!(restore(&mut old, &key, &payload), Reply::OK, "{what}");
        let payload = dump(&mut old, &key);
        assert_eq!(restore(&mut valkey, &key, &payload), Reply::OK, "{what}");
        assert_eq!(describe(&mut valkey, &key), made, "{what}");
        for client in [&mut valkey as &mut dyn Client, &mut session] {
            client.line("FLUSHALL");
        }
    }
}

#[test]
fn encodings_of_older_servers_are_restored_alike() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut servers = [
        Server::start(Kind::Redis, dirs[0].path()),
        Server::start(Kind::Valkey, dirs[1].path()),
    ];
    let mut session = Engine::new().session();
    for wire in &mut servers.each_mut().map(|server| server.connect()) {
        for (name, version, payload) in old::payloads() {
            let key = Bytes::from_static(name.as_bytes());
            let payload = old::with_footer(payload, version);
            assert_eq!(
                restore(wire, &key, &payload),
                Reply::OK,
                "{name} on the server"
            );
            assert_eq!(restore(&mut session, &key, &payload), Reply::OK, "{name}");
            assert_eq!(describe(&mut session, &key), describe(wire, &key), "{name}");
        }
    }
}

#[test]
fn restore_answers_as_the_servers_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(Kind::Redis, dir.path());
    let mut wire = server.connect();
    let mut session = Engine::new().session();
    let key = Bytes::from_static(b"k");
    session.line("SET k value");
    let good = dump(&mut session, &key);
    let mut wrong = good.to_vec();
    wrong[2] ^= 1;
    let empty = old::with_footer(vec![2, 0], 10);
    let unknown = old::with_footer(vec![99, 0], 10);
    let newer = old::with_footer(vec![0, 0], 79);
    let cases: [(&[u8], &str); 21] = [
        (&good, "0"),
        (&good, "0 REPLACE"),
        (&good, "-1 REPLACE"),
        (&good, "x REPLACE"),
        (&good, "0 NOSUCH"),
        (&good, "0 IDLETIME"),
        (&good, "0 REPLACE IDLETIME -1"),
        (&good, "0 REPLACE IDLETIME x"),
        (&good, "0 REPLACE FREQ 256"),
        (&good, "0 REPLACE FREQ 3 IDLETIME 3"),
        (&good, "0 REPLACE FREQ 3"),
        (&good, "0 REPLACE IDLETIME 1000"),
        (&good, "99999999999999 REPLACE ABSTTL"),
        (&good, "5 REPLACE ABSTTL"),
        (&good, "5 ABSTTL"),
        (&wrong, "0 REPLACE"),
        (b"", "0 REPLACE"),
        (&good[..9], "0 REPLACE"),
        (&empty, "0 REPLACE"),
        (&unknown, "0 REPLACE"),
        (&newer, "0 REPLACE"),
    ];
    wire.line("SET k value");
    for (payload, rest) in cases {
        let mut args = words("RESTORE k");
        let mut rest = words(rest).into_iter();
        args.extend(rest.next());
        args.push(Bytes::copy_from_slice(payload));
        args.extend(rest);
        assert_eq!(session.ask(&args), wire.ask(&args), "{args:?}");
        for line in ["PEXPIRETIME k", "GET k", "DUMP nosuch"] {
            assert_eq!(session.line(line), wire.line(line), "{args:?} {line}");
        }
        let idle = (
            session.line("OBJECT IDLETIME k"),
            wire.line("OBJECT IDLETIME k"),
        );
        match idle {
            // A second may have begun in between.
            (Reply::Int(ours), Reply::Int(theirs)) => {
                assert!(ours.abs_diff(theirs) <= 1, "{args:?} {ours} {theirs}");
            }
            (ours, theirs) => assert_eq!(ours, theirs, "{args:?}"),
        }
    }
}
