//! How much memory the interpreters need: what is garbage does not count.
//!
//! Lua lets garbage grow to about the size of what is alive before it collects it. Counting that would
//! evict keys, or refuse writes, for memory that is free; collecting it at each count would cost a
//! millisecond per command. So what was alive after the last collection counts, and a collection is
//! due when more is in use than garbage explains.

use super::Scripts;

/// How often (in microseconds) garbage is collected only to count what is left.
const EVERY: i64 = 1_000_000;
/// As much garbage is allowed besides as much as is alive.
const SLACK: usize = 1024 * 1024;
/// How often a collection is repeated while it still frees something: the stack of an interpreter
/// shrinks by half each time.
const ROUNDS: usize = 8;

/// What is known of the memory of both interpreters.
#[derive(Default)]
pub(super) struct Counted {
    /// Bytes that were alive after the last collection, of scripts and of functions.
    alive: [usize; 2],
    /// When that was, in unix microseconds.
    at: i64,
}

impl Scripts {
    fn in_use(&self) -> [usize; 2] {
        let (scripts, functions) = self.memory();
        [scripts, functions]
    }

    /// Bytes of the Lua states that are no garbage, as of the last count.
    pub(crate) fn counted(&self) -> usize {
        let both = self.in_use().into_iter().zip(self.counted.alive);
        both.map(|(used, alive)| match used > 2 * alive + SLACK {
            true => used,
            false => used.min(alive),
        })
        .sum()
    }

    /// Collects garbage and counts again what is left, unless little has changed.
    pub(crate) fn recount(&mut self) {
        let grown = |(used, alive): (usize, usize)| used.abs_diff(alive) > alive / 64;
        if self.in_use().into_iter().zip(self.counted.alive).any(grown) {
            self.collect();
        }
    }

    /// As [`Scripts::recount`], not more often than is cheap.
    pub(crate) fn recount_now_and_then(&mut self, now_micros: i64) {
        if (now_micros - self.counted.at).abs() >= EVERY {
            self.counted.at = now_micros;
            self.recount();
        }
    }

    /// Frees all garbage of both interpreters.
    pub(crate) fn collect(&mut self) {
        let runtimes = [&self.runtime, &self.functions.runtime];
        for (runtime, alive) in runtimes.into_iter().zip(&mut self.counted.alive) {
            let Some(runtime) = runtime else {
                *alive = 0;
                continue;
            };
            *alive = runtime.lua.used_memory();
            for _ in 0..ROUNDS {
                let before = std::mem::replace(alive, {
                    // It cannot fail: nothing of the sandbox has a finalizer.
                    let _ = runtime.lua.gc_collect();
                    runtime.lua.used_memory()
                });
                if before.saturating_sub(*alive) <= before / 64 {
                    break;
                }
            }
        }
    }
}
