//! Crashes at every call of the disk: what was acknowledged is there, and every start succeeds.
//!
//! A world is a history of commands, rewrites and rounds of the log's thread on a disk that fails as
//! planned. The digest of all data after each change is noted. What a start finds must be one of
//! these states: not an earlier one than was acknowledged, and never something between two.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use redstart_testkit::scale;

use super::{
    open::open_in,
    storm::{Disk, Fault},
    tests::ALONE,
    *,
};
use crate::{
    Engine, Reply, Session,
    digest::{self, Digest},
    random::Random,
};

const CRASHES: [Fault; 2] = [Fault::Kill, Fault::Power];

/// What the data was after each change, and how much of that is certain.
struct Model {
    fsync: Fsync,
    states: Vec<Digest>,
    /// The state that survives the end of the process.
    handed_over: usize,
    /// The state that survives a loss of power.
    on_disk: usize,
    /// The state that the last push to the list made.
    pushed: usize,
}

impl Model {
    fn new(fsync: Fsync) -> Model {
        Model {
            fsync,
            states: vec![Digest::default()],
            handed_over: 0,
            on_disk: 0,
            pushed: 0,
        }
    }

    fn now(&self) -> usize {
        self.states.len() - 1
    }

    fn keep_all(&mut self) {
        self.handed_over = self.now();
        self.on_disk = self.now();
    }

    fn acknowledged(&mut self, state: usize) {
        self.handed_over = self.handed_over.max(state);
        if self.fsync == Fsync::Always {
            self.on_disk = self.on_disk.max(state);
        }
    }

    /// Checks what a start has found.
    fn found(&mut self, digest: Digest, crash: Fault) -> Result<(), String> {
        let least = match crash {
            Fault::Power => self.on_disk,
            _ => self.handed_over,
        };
        let at = self.states.iter().rposition(|state| *state == digest);
        match at {
            Some(at) if at >= least => {
                // The rest never happened, and what was found is told to readers.
                self.states.truncate(at + 1);
                self.keep_all();
                self.pushed = self.pushed.min(at);
                Ok(())
            }
            Some(at) => Err(format!(
                "state {at} of {} was found, but {least} was acknowledged",
                self.now()
            )),
            None => Err("a state was found that never was".into()),
        }
    }
}

fn start(disk: &Disk, fsync: Fsync) -> Result<Engine, EngineError> {
    let engine = Engine::new();
    engine.inner.state.lock().config.fsync = fsync;
    let log = open_in(Arc::new(disk.clone()), None, &engine)?;
    engine.inner.log.set(log);
    Ok(engine)
}

fn all(engine: &Engine) -> Digest {
    digest::of_all(&engine.inner.state.lock())
}

fn ask(session: &mut Session, words: &[&str]) -> Reply {
    let args: Vec<Bytes> = words
        .iter()
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    session.execute(&args).into_reply().unwrap()
}

/// One client's next command.
fn act(session: &mut Session, number: usize, random: &mut Random) -> Reply {
    let n = number.to_string();
    match random.below(12) {
        0 => ask(session, &["SET", &format!("k{}", random.below(3)), &n]),
        1 => ask(session, &["INCR", "counter"]),
        2 => ask(session, &["RPUSH", "other", &n]),
        3 => ask(
            session,
            &["ZADD", "z", &n, &format!("m{}", random.below(3))],
        ),
        4 => ask(session, &["XADD", "x", "*", "n", &n]),
        5 => ask(session, &["LPOP", "other"]),
        6 => ask(session, &["SET", "volatile", &n, "EX", "10000"]),
        7 => ask(session, &["RENAME", "k0", "k1"]),
        8 => {
            ask(session, &["MULTI"]);
            ask(session, &["INCR", "twin"]);
            ask(session, &["RPUSH", "twins", &n]);
            ask(session, &["EXEC"])
        }
        9 => {
            let script = "redis.call('INCR', 'a') redis.call('HSET', 'h', 'f', ARGV[1]) return 1";
            ask(session, &["EVAL", script, "0", &n])
        }
        10 => {
            let db = random.below(2).to_string();
            ask(session, &["SELECT", &db]);
            ask(session, &["APPEND", "text", &n])
        }
        _ => ask(session, &["SADD", "s", &n]),
    }
}

/// What the log's thread does in a round.
fn round(log: &Arc<Log>, model: &mut Model) {
    let kept = if log.trouble() == FILE_LOST {
        log.start_over().is_ok()
    } else {
        log.sync().is_ok()
    };
    if kept {
        model.keep_all();
    }
}

/// Works until the disk is dead or `steps` are done.
fn live(disk: &Disk, engine: &Engine, model: &mut Model, steps: usize, random: &mut Random) {
    let log = engine.inner.log.get().unwrap().clone();
    let mut session = engine.session();
    let concurrent = random.below(4) == 0;
    let mut rewrites = Vec::new();
    // A rewrite whose base is written and becomes part of the log later.
    let mut begun = None;
    for number in 0..steps {
        if disk.crashed() {
            break;
        }
        match random.below(16) {
            0 => round(&log, model),
            1 if concurrent => {
                let log = log.clone();
                rewrites.push(std::thread::spawn(move || {
                    // One at a time, as when it is asked for.
                    if !log.rewriting.swap(true, Ordering::SeqCst) {
                        log.finish_rewrite(log.rewrite());
                    }
                }));
            }
            // One at a time, as when it is asked for.
            1 => match begun.take() {
                Some(rewritten) => {
                    let _ = log.end_rewrite(&rewritten);
                }
                None if random.below(2) == 0 => {
                    begun = log.begin_rewrite().ok();
                    if begun.is_some() {
                        model.keep_all();
                    }
                }
                None => {
                    if log.rewrite().is_ok() {
                        model.keep_all();
                    }
                }
            },
            2 => {
                ask(&mut session, &["SELECT", "0"]);
                let dirty = engine.inner.state.lock().dirty;
                let reply = ask(&mut session, &["RPUSH", "list", &number.to_string()]);
                if engine.inner.state.lock().dirty > dirty {
                    model.states.push(all(engine));
                    model.pushed = model.now();
                }
                if !reply.is_error() {
                    model.acknowledged(model.now());
                }
            }
            // A read that was answered.
            3 if model.fsync == Fsync::Always => {
                // What is told is on the disk.
                ask(&mut session, &["SELECT", "0"]);
                let reply = ask(&mut session, &["LRANGE", "list", "0", "-1"]);
                if !reply.is_error() {
                    model.acknowledged(model.pushed);
                }
            }
            _ => {
                let dirty = engine.inner.state.lock().dirty;
                let reply = act(&mut session, number, random);
                let changed = engine.inner.state.lock().dirty > dirty;
                if changed {
                    model.states.push(all(engine));
                    if !reply.is_error() {
                        model.acknowledged(model.now());
                    }
                }
            }
        }
    }
    drop((session, log));
    for rewrite in rewrites {
        rewrite.join().unwrap();
    }
}

/// A disk with its plan, and a process on it, from its start to its end.
fn life(
    disk: &Disk,
    model: &mut Model,
    before: &mut Fault,
    steps: usize,
    random: &mut Random,
) -> Result<(), String> {
    match start(disk, model.fsync) {
        Ok(engine) => {
            model.found(all(&engine), *before)?;
            *before = Fault::Kill;
            live(disk, &engine, model, steps, random);
            if random.below(4) == 0 && !disk.crashed() {
                // An orderly end.
                drop(engine);
                disk.crash(Fault::Kill);
            } else {
                disk.crash(CRASHES[random.below(2)]);
                drop(engine);
            }
            Ok(())
        }
        Err(error) if disk.has_failed() => {
            // It may refuse to start on a disk that fails.
            disk.crash(CRASHES[random.below(2)]);
            drop(error);
            Ok(())
        }
        Err(error) => Err(format!("it does not start: {error}")),
    }
}

/// Lives one after the other, the last one on a disk without faults.
fn world(fsync: Fsync, seed: u64, steps: usize, plans: &[Vec<(u64, Fault)>]) -> Result<(), String> {
    let mut random = Random::seeded(seed);
    let mut model = Model::new(fsync);
    let mut disk = Disk::new(seed);
    let mut before = Fault::Kill;
    let mut journals = String::new();
    for plan in plans.iter().chain([&Vec::new()]) {
        for (at, fault) in plan {
            disk.plan(*at, *fault);
        }
        let lived = life(&disk, &mut model, &mut before, steps, &mut random);
        journals += &format!("--- {plan:?}\n{}", disk.journal());
        lived.map_err(|error| format!("{fsync:?}, seed {seed}: {error}\n{journals}"))?;
        // A start that did not succeed checked nothing.
        if disk.how_it_ended() == Fault::Power {
            before = Fault::Power;
        }
        disk = disk.after_crash(random.next());
    }
    // The last life left what it acknowledged as well.
    let engine = start(&disk, fsync).map_err(|error| format!("{seed}: {error}\n{journals}"))?;
    model
        .found(all(&engine), before)
        .map_err(|error| format!("{fsync:?}, seed {seed}: at the end, {error}\n{journals}"))
}

const FAULTS: [Fault; 5] = [
    Fault::Kill,
    Fault::Power,
    Fault::Full,
    Fault::Device,
    Fault::Short,
];

#[test]
fn crashes_at_every_call_of_a_short_history_lose_nothing_acknowledged() {
    let _alone = ALONE.lock();
    const STEPS: usize = 24;
    let mut points = 0;
    for fsync in [Fsync::Always, Fsync::EverySec] {
        // A history with a rewrite, and how many calls it makes without a fault.
        let quiet = |seed: u64| {
            let disk = Disk::new(seed);
            let mut random = Random::seeded(seed);
            let (mut model, mut before) = (Model::new(fsync), Fault::Kill);
            life(&disk, &mut model, &mut before, STEPS, &mut random).unwrap();
            let rewrites = disk.journal().matches("rename temp-rewriteaof").count();
            (rewrites == 1).then(|| (seed, disk.calls()))
        };
        let (seed, calls) = (42..).find_map(quiet).unwrap();
        for at in 1..=calls {
            for fault in FAULTS {
                // A second crash while it starts again.
                let again = (1 + at % 12, CRASHES[at as usize % 2]);
                world(fsync, seed, STEPS, &[vec![(at, fault)], vec![again]]).unwrap();
                points += 1;
            }
        }
    }
    redstart_testkit::figure(format!("{points} crash points"));
}

#[test]
fn crashes_at_random_calls_of_random_histories_lose_nothing_acknowledged() {
    let _alone = ALONE.lock();
    let worlds = scale(150, "crash_points");
    let first = std::env::var("REDSTART_CRASH_SEED").ok();
    let first: u64 = first.map_or(1, |seed| seed.parse().unwrap());
    for seed in first..first + worlds {
        let mut random = Random::seeded(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let fsync = [Fsync::Always, Fsync::EverySec, Fsync::No][random.below(3)];
        let plan = |random: &mut Random| -> Vec<(u64, Fault)> {
            (0..1 + random.below(3))
                .map(|_| {
                    let span = if random.below(3) == 0 { 16 } else { 120 };
                    let at = 1 + random.below(span);
                    (at as u64, FAULTS[random.below(FAULTS.len())])
                })
                .collect()
        };
        let plans: Vec<_> = (0..1 + random.below(3))
            .map(|_| plan(&mut random))
            .collect();
        let steps = 10 + random.below(60);
        if let Err(error) = world(fsync, seed, steps, &plans) {
            panic!("REDSTART_CRASH_SEED={seed}: {error}");
        }
    }
}

/// A log with one change that is acknowledged and in its first increment, one in the second, and one that the disk did not
/// take: a rewrite of the first increment is under way, and a fresh base is wanted.
fn lost_during_a_rewrite(disk: &Disk) -> (Engine, super::rewrite::Rewritten) {
    let engine = start(disk, Fsync::Always).unwrap();
    let log = engine.inner.log.get().unwrap();
    let mut session = engine.session();
    assert_eq!(ask(&mut session, &["RPUSH", "list", "1"]), Reply::Int(1));
    let rewritten = log.begin_rewrite().unwrap();
    assert_eq!(ask(&mut session, &["RPUSH", "list", "2"]), Reply::Int(2));
    (engine, rewritten)
}

fn lose_a_sync(disk: &Disk, engine: &Engine) {
    disk.plan(2, Fault::Device);
    let refused = ask(&mut engine.session(), &["RPUSH", "list", "3"]);
    assert!(refused.is_error(), "{refused:?}");
}

/// The acknowledged changes are there once, and perhaps the one that was not acknowledged.
fn check_list(disk: &Disk, how: &str) {
    disk.crash(Fault::Kill);
    let engine = start(&disk.after_crash(1), Fsync::Always);
    let engine = engine.unwrap_or_else(|error| panic!("{how}: {error}\n{}", disk.journal()));
    let list = ask(&mut engine.session(), &["LRANGE", "list", "0", "-1"]);
    let item = |text: &str| Reply::bulk(text);
    let (without, with) = (
        Reply::Array(vec![item("1"), item("2")]),
        Reply::Array(vec![item("1"), item("2"), item("3")]),
    );
    let journal = disk.journal();
    assert!(
        list == without || list == with,
        "{how}: {list:?}\n{journal}"
    );
}

#[test]
fn a_rewrite_that_ends_after_a_fresh_base_failed_takes_the_place_of_nothing() {
    let _alone = ALONE.lock();
    let mut worlds = 0;
    for fails in 1..24 {
        for killed in 1..16 {
            let disk = Disk::new(killed);
            let (engine, rewritten) = lost_during_a_rewrite(&disk);
            lose_a_sync(&disk, &engine);
            let log = engine.inner.log.get().unwrap();
            disk.plan(fails, Fault::Device);
            if log.start_over().is_ok() {
                break;
            }
            disk.plan(killed, Fault::Kill);
            let _ = log.end_rewrite(&rewritten);
            check_list(
                &disk,
                &format!("call {fails} failed, call {killed} was the last"),
            );
            worlds += 1;
        }
    }
    redstart_testkit::figure(format!("{worlds} crash points"));
    assert!(worlds > 60, "{worlds}");
}

#[test]
fn a_fresh_base_after_a_rewrite_that_failed_takes_the_place_of_nothing() {
    let _alone = ALONE.lock();
    let mut worlds = 0;
    for first in 1..10 {
        for second in 1..6 {
            for killed in 1..24 {
                let disk = Disk::new(killed);
                let (engine, rewritten) = lost_during_a_rewrite(&disk);
                let log = engine.inner.log.get().unwrap();
                disk.plan(first, Fault::Device);
                disk.plan(first + second, Fault::Device);
                if log.end_rewrite(&rewritten).is_ok() {
                    break;
                }
                lose_a_sync(&disk, &engine);
                disk.plan(killed, Fault::Kill);
                let _ = log.start_over();
                let how = format!("calls {first} and {second} later failed, {killed} was the last");
                check_list(&disk, &how);
                worlds += 1;
            }
        }
    }
    redstart_testkit::figure(format!("{worlds} crash points"));
    assert!(worlds > 200, "{worlds}");
}

#[test]
fn a_fresh_base_is_not_written_again_when_all_data_was_replaced_meanwhile() {
    let _alone = ALONE.lock();
    let disk = Disk::new(1);
    let engine = start(&disk, Fsync::Always).unwrap();
    lose_a_sync(&disk, &engine);
    let log = engine.inner.log.get().unwrap();
    assert_eq!(log.trouble(), FILE_LOST);
    let mut state = engine.inner.state.lock();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| log.start_over());
        // Long enough for it to wait for the state, most times.
        std::thread::sleep(ROUND);
        keep_replaced(&mut state).unwrap();
        drop(state);
        waits.join().unwrap().unwrap();
    });
    assert_eq!(log.trouble(), FINE);
    assert_eq!(log.disk.lock().fresh_starts, 1);
}

#[test]
fn what_is_acknowledged_after_a_fresh_base_failed_is_there() {
    let _alone = ALONE.lock();
    let mut worlds = 0;
    for first in 1..24 {
        for second in 1..8 {
            let disk = Disk::new(first);
            let engine = start(&disk, Fsync::Always).unwrap();
            let log = engine.inner.log.get().unwrap();
            let mut session = engine.session();
            assert_eq!(ask(&mut session, &["RPUSH", "list", "1"]), Reply::Int(1));
            disk.plan(first, Fault::Device);
            disk.plan(first + second, Fault::Device);
            if log.write_fresh(&engine.inner.state.lock()).is_ok() {
                break;
            }
            let refused = ask(&mut session, &["RPUSH", "list", "2"]).is_error();
            disk.crash(Fault::Kill);
            let engine = start(&disk.after_crash(1), Fsync::Always);
            let how = format!("calls {first} and {second} later failed");
            let engine = engine.unwrap_or_else(|error| panic!("{how}: {error}"));
            let len = ask(&mut engine.session(), &["LLEN", "list"]);
            let fine = len == Reply::Int(2) || (refused && len == Reply::Int(1));
            assert!(fine, "{how}: {len:?}\n{}", disk.journal());
            worlds += 1;
        }
    }
    redstart_testkit::figure(format!("{worlds} crash points"));
    assert!(worlds > 40, "{worlds}");
}

/// The log's files are those that its manifest names.
fn check_files(disk: &Disk, log: &Log, how: &str) {
    let mut known = log.disk.lock().manifest.files();
    known.sort();
    let names = folder::Folder::names(disk).into_iter();
    let names = names
        .map(|(name, _)| name)
        .filter(|name| name.ends_with(".aof"));
    assert_eq!(
        names.collect::<Vec<_>>(),
        known,
        "{how}\n{}",
        disk.journal()
    );
}

#[test]
fn what_a_rewrite_that_failed_left_is_removed_by_the_next_one() {
    let _alone = ALONE.lock();
    let mut worlds = 0;
    for first in 1..12 {
        for second in 1..8 {
            let disk = Disk::new(first);
            let (engine, rewritten) = lost_during_a_rewrite(&disk);
            let log = engine.inner.log.get().unwrap();
            disk.plan(first, Fault::Device);
            disk.plan(first + second, Fault::Device);
            if log.end_rewrite(&rewritten).is_ok() {
                break;
            }
            // The second fault may be met by the next one.
            if log.rewrite().is_err() {
                log.rewrite().unwrap();
            }
            check_files(
                &disk,
                &log,
                &format!("calls {first} and {second} later failed"),
            );
            worlds += 1;
        }
    }
    assert!(worlds > 20, "{worlds}");
}

#[test]
fn rewrites_that_fail_one_after_the_other_begin_one_increment() {
    let _alone = ALONE.lock();
    let mut worlds = 0;
    for at in 1..40 {
        let disk = Disk::new(at);
        let engine = start(&disk, Fsync::Always).unwrap();
        let log = engine.inner.log.get().unwrap();
        for item in ["1", "2"] {
            ask(&mut engine.session(), &["RPUSH", "list", item]);
        }
        for _ in 0..3 {
            disk.plan(at, Fault::Device);
            worlds += u32::from(log.rewrite().is_err());
            let increments = log.disk.lock().manifest.increments.len();
            let journal = disk.journal();
            assert!(increments <= 2, "{increments} with call {at}\n{journal}");
        }
        // What is left of the plan may be met by the next ones.
        let rewritten = (0..4).any(|_| log.rewrite().is_ok());
        assert!(rewritten, "call {at}\n{}", disk.journal());
        check_files(&disk, &log, &format!("call {at}"));
        check_list(&disk, &format!("call {at}"));
    }
    assert!(worlds > 20, "{worlds}");
}
