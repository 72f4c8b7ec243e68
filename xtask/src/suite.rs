//! The whole test suite, round after round, to find the failures that need luck.
//!
//! Nothing is retried. Every second round runs with a busy loop on each core beside it.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use anyhow::Result;

use crate::{
    step::{seconds, status},
    test::Shared,
};

/// Runs the suite `rounds` times. Whether every round passed.
pub(crate) fn run(rounds: u64) -> Result<bool> {
    let mut failed = 0;
    for round in 1..=rounds {
        let busy = round % 2 == 0;
        let load = busy.then(Load::start);
        let began = Instant::now();
        let result = Shared::start().and_then(|servers| status(&mut suite(&servers)));
        drop(load);
        let beside = if busy { "busy cores" } else { "quiet" };
        let took = seconds(began.elapsed());
        match result {
            Ok(()) => println!("round {round} of {rounds}, {beside}: passed in {took}"),
            Err(error) => {
                failed += 1;
                println!("round {round} of {rounds}, {beside}: FAILED in {took}: {error:#}");
            }
        }
    }
    let outcome = if failed == 0 { "passed" } else { "FAILED" };
    println!("suite {outcome}: {rounds} rounds, {failed} failed");
    Ok(failed == 0)
}

fn suite(servers: &Shared) -> Command {
    let mut command = crate::test::runner();
    command.envs(servers.variables());
    command
}

/// A busy loop on each core while it lives.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let threads = (0..cores)
            .map(|_| {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        Self { stop, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A loop that counts nothing cannot panic.
            let _ = thread.join();
        }
    }
}
