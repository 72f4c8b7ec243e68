//! The move of all data to another server, by its commands.

use std::{
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use redstart_engine::{Clock, Engine, Outcome, Reply, Settings};
use redstart_testkit::block_until;

use crate::{
    Master, PATIENCE,
    contents::{Client, words},
    wire::Wire,
};

/// With a folder, and no log in it.
fn with_folder(dir: &Path) -> Result<Engine, redstart_engine::EngineError> {
    let mut settings = Settings::new();
    settings.set("dir", dir.to_str().unwrap()).unwrap();
    Engine::builder().settings(settings).build()
}

/// Something that counts as a replica.
fn attach(master: &Master) -> Wire {
    let mut wire = Wire::new(UnixStream::connect(&master.socket).unwrap());
    wire.send(&words("PSYNC ? -1"));
    assert!(matches!(wire.read(), Reply::Status(_)));
    wire
}

/// Holds writes back; the token of that.
fn hold(wire: &mut Wire) -> i64 {
    match wire.line("REDSTART HANDOVER PAUSE me 60000") {
        Reply::Array(paused) => match paused[0] {
            Reply::Int(token) => token,
            _ => panic!("no token"),
        },
        other => panic!("{other:?}"),
    }
}

const DIR: &str = "REDSTART_TEST_FULL_DISK";

/// A disk is full when people move away from it.
#[test]
fn a_move_that_the_disk_refuses_leaves_nothing_behind() {
    if let Some(dir) = std::env::var_os(DIR) {
        return on_full_disk(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    // No byte goes into a file: the process is told so, as on a full disk, because the signal is ignored.
    let child = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("handover::a_move_that_the_disk_refuses_leaves_nothing_behind")
        .env(DIR, dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    let failed = String::from_utf8_lossy(&child.stderr).into_owned();
    assert!(child.status.success(), "{said}\n{failed}");
    assert!(said.contains("refused, and undone"), "{said}");
    let engine = with_folder(dir.path()).unwrap();
    assert_eq!(engine.session().line("SET a 2"), Reply::OK);
}

fn on_full_disk(dir: &Path) {
    let place = tempfile::tempdir().unwrap();
    let master = Master::start(with_folder(dir).unwrap(), place.path());
    let mut wire = master.connect();
    assert_eq!(wire.line("SET a 1"), Reply::OK);
    let _replica = attach(&master);
    assert_eq!(wire.line("REDSTART HANDOVER BEGIN me"), Reply::OK);
    let commit = format!("REDSTART HANDOVER COMMIT me {} there 7", hold(&mut wire));
    let refused = match wire.line(&commit) {
        Reply::Error(text) => text,
        other => panic!("{other:?}"),
    };
    assert!(refused.contains("cannot be written"), "{refused}");
    assert_eq!(wire.line("REDSTART HANDOVER ABORT me"), Reply::OK);
    assert_eq!(wire.line("GET a"), Reply::bulk("1"));
    println!("refused, and undone");
}

#[test]
fn a_file_that_names_no_place_is_an_error_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    for text in ["", "\n", "somewhere", ":7", "there:0", "there:x"] {
        std::fs::write(dir.path().join("redstart.moved"), text).unwrap();
        let refused = with_folder(dir.path()).expect_err("no place");
        assert!(refused.to_string().contains("redstart.moved"), "{refused}");
    }
    std::fs::write(dir.path().join("redstart.moved"), "there:7\n").unwrap();
    let engine = with_folder(dir.path()).unwrap();
    let refused = Reply::Error("REDIRECT there:7".into());
    assert_eq!(engine.session().line("GET a"), refused);
}

#[test]
fn one_hand_over_is_under_way_until_it_ends_or_is_silent() {
    let clock = Clock::manual_at(1_700_000_000_000_000);
    let engine = Engine::builder().clock(clock).build().unwrap();
    let place = tempfile::tempdir().unwrap();
    let master = Master::start(engine.clone(), place.path());
    let mut wire = master.connect();
    let _replica = attach(&master);
    let mut say = |line: &str| wire.line(&format!("REDSTART HANDOVER {line}"));
    assert_eq!(say("BEGIN me"), Reply::OK);
    assert_eq!(say("BEGIN me"), Reply::OK);
    for line in ["WATCH you", "CHANGED you 1", "PAUSE you 1", "BEGIN you"] {
        assert!(say(line).is_error(), "{line}");
    }
    let refused = Reply::Error("NOTMOVED this hand-over is not under way".into());
    assert_eq!(say("COMMIT you 0 there 7"), refused);
    // Who ends what is not there ends nothing.
    assert_eq!(say("WATCH me"), Reply::OK);
    assert_eq!(say("ABORT you"), Reply::OK);
    assert_eq!(say("CHANGED me 1"), Reply::Array(vec![Reply::Int(0)]));
    engine.advance(Duration::from_secs(59));
    assert!(say("BEGIN you").is_error());
    engine.advance(Duration::from_secs(1));
    assert_eq!(say("BEGIN you"), Reply::OK);
    assert!(say("CHANGED me 1").is_error());
    assert_eq!(say("ABORT you"), Reply::OK);
    assert_eq!(say("BEGIN me"), Reply::OK);
}

#[test]
fn what_has_moved_is_given_back_by_an_operator_only() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let moved = Reply::Array(vec![Reply::bulk("there:7"), Reply::Nil]);
    let returned = Reply::Array(vec![Reply::Nil, Reply::bulk("there:7")]);
    {
        let master = Master::start(with_folder(dir.path()).unwrap(), place.path());
        let mut wire = master.connect();
        wire.line("REDSTART HANDOVER BEGIN me");
        let _replica = attach(&master);
        let commit = format!("REDSTART HANDOVER COMMIT me {} there 7", hold(&mut wire));
        assert_eq!(wire.line(&commit), Reply::OK);
        let refused = Reply::Error("REDIRECT there:7".into());
        for line in ["ABORT me", "ABORT you", "BEGIN you", "COMMIT you 0 here 7"] {
            assert_eq!(wire.line(&format!("REDSTART HANDOVER {line}")), refused);
        }
        assert_eq!(wire.line("REDSTART HANDOVER WHERE"), moved);
    }
    {
        let mut session = with_folder(dir.path()).unwrap().session();
        assert!(session.line("GET a").is_error());
        assert_eq!(session.line("REDSTART HANDOVER WHERE"), moved);
        assert_eq!(session.line("REDSTART HANDOVER RETURN"), Reply::OK);
        assert_eq!(session.line("REDSTART HANDOVER WHERE"), returned);
        assert_eq!(session.line("GET a"), Reply::Nil);
    }
    let mut session = with_folder(dir.path()).unwrap().session();
    assert_eq!(session.line("GET a"), Reply::Nil);
    assert_eq!(session.line("REDSTART HANDOVER WHERE"), returned);
}

#[test]
fn a_hand_over_and_client_pause_hold_on_their_own_account() {
    let place = tempfile::tempdir().unwrap();
    let engine = Engine::new();
    let master = Master::start(engine.clone(), place.path());
    let mut wire = master.connect();
    let _replica = attach(&master);
    let patience = Duration::from_millis(100);
    wire.line("REDSTART HANDOVER BEGIN me");
    hold(&mut wire);
    assert_eq!(wire.line("CLIENT PAUSE 60000 ALL"), Reply::OK);
    // Calls of this process are not paused by that.
    let mut session = engine.session();
    assert_eq!(session.line("REDSTART HANDOVER ABORT me"), Reply::OK);
    wire.send(&words("GET a"));
    assert_eq!(wire.read_within(patience), None);
    assert_eq!(session.line("REDSTART HANDOVER BEGIN me"), Reply::OK);
    assert!(!session.line("REDSTART HANDOVER PAUSE me 60000").is_error());
    assert_eq!(wire.read_within(patience), None);
    assert_eq!(session.line("CLIENT UNPAUSE"), Reply::OK);
    assert_eq!(wire.read(), Reply::Nil);
    wire.send(&words("SET a 1"));
    assert_eq!(wire.read_within(patience), None);
    assert_eq!(session.line("REDSTART HANDOVER ABORT me"), Reply::OK);
    assert_eq!(wire.read(), Reply::OK);
}

/// Moves the data; the engine has a replica and a hand-over under way.
fn commit(wire: &mut Wire, host: &str) {
    let token = hold(wire);
    let commit = format!("REDSTART HANDOVER COMMIT me {token} {host} 7");
    assert_eq!(wire.line(&commit), Reply::OK);
}

#[test]
fn clients_that_track_keys_hear_of_the_move_and_are_disconnected() {
    let place = tempfile::tempdir().unwrap();
    let master = Master::start(Engine::new(), place.path());
    let mut wire = master.connect();
    let _replica = attach(&master);
    wire.line("REDSTART HANDOVER BEGIN me");
    let mut tracking = master.connect();
    tracking.line("HELLO 3");
    assert_eq!(tracking.line("CLIENT TRACKING ON BCAST"), Reply::OK);
    let mut late = master.connect();
    late.line("HELLO 3");
    assert!(clients(&mut wire).contains("flags=tB"));
    commit(&mut wire, "there");
    let all = Reply::Push(vec![Reply::bulk("invalidate"), Reply::Nil]);
    assert_eq!(tracking.read(), all);
    let gone = || (!clients(&mut wire).contains("flags=tB")).then_some(());
    block_until("it to be disconnected", PATIENCE, gone).unwrap();
    // Nobody would tell it of changes.
    let refused = Reply::Error("REDIRECT there:7".into());
    assert_eq!(late.line("CLIENT TRACKING ON BCAST"), refused);
}

fn clients(wire: &mut Wire) -> String {
    match wire.line("CLIENT LIST") {
        Reply::Bulk(text) | Reply::Verbatim { text, .. } => {
            String::from_utf8(text.to_vec()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hand_over_that_was_killed_notes_changes_for_a_minute_only() {
    let clock = Clock::manual_at(1_700_000_000_000_000);
    let engine = Engine::builder().clock(clock).build().unwrap();
    let place = tempfile::tempdir().unwrap();
    let master = Master::start(engine.clone(), place.path());
    let mut wire = master.connect();
    let _replica = attach(&master);
    wire.line("REDSTART HANDOVER BEGIN me");
    assert_eq!(wire.line("REDSTART HANDOVER WATCH me"), Reply::OK);
    engine.advance(Duration::from_secs(59));
    wire.line("SET a 1");
    let changed = Reply::Array(vec![Reply::Int(0), Reply::bulk("a")]);
    assert_eq!(wire.line("REDSTART HANDOVER CHANGED me 10"), changed);
    engine.advance(Duration::from_secs(60));
    wire.line("SET b 1");
    let ended = Reply::Error("ERR this hand-over is not under way".into());
    assert_eq!(wire.line("REDSTART HANDOVER CHANGED me 10"), ended);
}

#[test]
fn what_a_batch_would_run_by_its_exec_is_held_back() {
    let place = tempfile::tempdir().unwrap();
    let engine = Engine::new();
    let master = Master::start(engine.clone(), place.path());
    let mut wire = master.connect();
    let _replica = attach(&master);
    let held = Reply::Error(redstart_engine::HELD_BACK.into());
    for batch in [["SET e 1", "EXEC"], ["DISCARD", "SET e 1"]] {
        let mut session = engine.session();
        assert_eq!(session.line("MULTI"), Reply::OK);
        wire.line("REDSTART HANDOVER BEGIN me");
        hold(&mut wire);
        let replies = session.execute_batch(&batch.map(words));
        assert_eq!(replies, [held.clone(), held.clone()], "{batch:?}");
        // What only reads is not.
        let reads = session.execute_batch(&["GET e", "EXEC"].map(words));
        let queued = Reply::Status("QUEUED".into());
        assert_eq!(reads, [queued, Reply::Array(vec![Reply::Nil])]);
        assert_eq!(wire.line("REDSTART HANDOVER ABORT me"), Reply::OK);
    }
}

#[test]
fn the_data_does_not_move_while_a_client_is_owed_what_was_taken_for_it() {
    let place = tempfile::tempdir().unwrap();
    let engine = Engine::new();
    let master = Master::start(engine.clone(), place.path());
    let mut wire = master.connect();
    let _replica = attach(&master);
    let mut session = engine.session();
    let Outcome::Blocked(mut waits) = session.execute(&words("BLPOP list 0")) else {
        panic!("there is something");
    };
    assert_eq!(wire.line("LPUSH list a"), Reply::Int(1));
    wire.line("REDSTART HANDOVER BEGIN me");
    let commit = format!("REDSTART HANDOVER COMMIT me {} there 7", hold(&mut wire));
    match wire.line(&commit) {
        Reply::Error(text) => assert!(text.starts_with("TRYAGAIN"), "{text}"),
        other => panic!("{other:?}"),
    }
    let got = Reply::Array(vec![Reply::bulk("list"), Reply::bulk("a")]);
    assert_eq!(waits.try_take(), Some(got));
    assert_eq!(wire.line(&commit), Reply::OK);
}

#[test]
fn wait_does_not_count_a_replica_that_has_confirmed_nothing() {
    let place = tempfile::tempdir().unwrap();
    let master = Master::start(Engine::new(), place.path());
    let mut wire = master.connect();
    wire.line("SET a 1");
    let _replica = attach(&master);
    let online = || {
        let info = match wire.line("INFO replication") {
            Reply::Bulk(text) => String::from_utf8(text.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        };
        info.contains("state=online").then_some(())
    };
    block_until("it to be online", PATIENCE, online).unwrap();
    assert_eq!(wire.line("WAIT 1 50"), Reply::Int(0));
}

#[test]
fn data_that_moved_again_is_not_back() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let moved = Reply::Array(vec![Reply::bulk("elsewhere:7"), Reply::Nil]);
    {
        let master = Master::start(with_folder(dir.path()).unwrap(), place.path());
        let mut wire = master.connect();
        for host in ["there", "elsewhere"] {
            assert_eq!(wire.line("REDSTART HANDOVER RETURN"), Reply::OK);
            wire.line("REDSTART HANDOVER BEGIN me");
            let _replica = attach(&master);
            commit(&mut wire, host);
        }
        assert_eq!(wire.line("REDSTART HANDOVER WHERE"), moved);
    }
    let mut session = with_folder(dir.path()).unwrap().session();
    assert_eq!(session.line("REDSTART HANDOVER WHERE"), moved);
}
