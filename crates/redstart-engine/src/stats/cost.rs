//! What statistics, the slow log and MONITOR cost while nobody looks: their own work beside whole commands,
//! both in one run. Only with `--release` are the figures those of a program. Valgrind counts instructions of the
//! same two functions: `valgrind --tool=callgrind <test program> stats::cost`.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use bytes::Bytes;
use redstart_testkit::{figure, scale};

use crate::{Engine, Session, registry, stats::Timer};

fn words(line: &str) -> Vec<Bytes> {
    let words = line.split(' ');
    words
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect()
}

/// The time of this many whole commands.
fn whole(session: &mut Session, args: &[Bytes], count: u64) -> Duration {
    let began = Instant::now();
    for _ in 0..count {
        black_box(session.execute(black_box(args)));
    }
    began.elapsed()
}

/// The time of what [`crate::context::Ctx::call`] does for them beside the command itself.
fn alone(engine: &Engine, args: &[Bytes], networked: bool, count: u64) -> Duration {
    let spec = registry::lookup(args).expect("a command");
    let mut state = engine.inner.state.lock();
    let began = Instant::now();
    for _ in 0..count {
        state.stats.commands += 1;
        let timer = state.stats.timer(black_box(spec), networked, true);
        black_box(state.monitors.is_empty());
        let took = timer.map(Timer::stop);
        let tracked = state.config.latency_tracking;
        state
            .stats
            .ran(spec, black_box(false), took.as_ref(), tracked);
        if let Some(took) = took {
            black_box(state.config.is_long(took.nanos));
        }
        black_box(state.monitors.is_empty());
    }
    began.elapsed()
}

/// The share of a command's time, and the time of one, by the medians of alternating rounds.
fn share(line: &str, networked: bool) -> (f64, f64) {
    const ROUNDS: usize = 11;
    let count = scale(20_000, "watched commands");
    let engine = Engine::new();
    let mut session = engine.session();
    for line in [
        "SET key value",
        "HSET hash a 1 b 2 c 3",
        "RPUSH list a b c d e f g h",
    ] {
        session.execute(&words(line));
    }
    session.count_as_networked(networked);
    let args = words(line);
    let mut times: Vec<(Duration, Duration)> = (0..ROUNDS)
        .map(|_| {
            let all = whole(&mut session, &args, count);
            (all, alone(&engine, &args, networked, count))
        })
        .collect();
    let middle = ROUNDS / 2;
    times.sort_by_key(|(all, _)| *all);
    let all = times[middle].0;
    times.sort_by_key(|(_, alone)| *alone);
    let alone = times[middle].1;
    (
        alone.as_secs_f64() / all.as_secs_f64(),
        all.as_nanos() as f64 / count as f64,
    )
}

#[test]
fn watching_costs_little_while_nobody_looks() {
    for (networked, place) in [
        (false, "in the process"),
        (true, "behind a listener, without its socket"),
    ] {
        let shares = [
            "GET key",
            "SET key value",
            "HGETALL hash",
            "LRANGE list 0 -1",
            "INCRBY number 7",
        ];
        for line in shares {
            let (share, nanos) = share(line, networked);
            figure(format!(
                "{line} {place}: {nanos:.0} ns, of which {:.1} % count and time it",
                share * 100.0
            ));
            // A listener's command takes microseconds with its socket.
            let most = if networked { 0.5 } else { 0.2 };
            assert!(
                cfg!(debug_assertions) || share < most,
                "{line} {place}: {share}"
            );
        }
    }
}
