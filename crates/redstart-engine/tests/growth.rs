//! How long the longest command takes while a keyspace or a value grows from nothing.
//!
//! The time is that of the thread on the processor: what other programs do meanwhile does not count. How much work a
//! command does is counted in `src/complexity.rs`.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use nix::time::{ClockId, clock_gettime};
use redstart_engine::Engine;
use redstart_testkit::{figure, scale};

/// What this thread has spent on the processor.
fn spent() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .unwrap()
        .into()
}

/// Runs a command for each number, `{n}` being the number and `{score}` one of no order.
fn grow(command: &str) {
    /// What a machine does now and then of its own takes the time of another command in each round; what growth takes, that
    /// of the same one.
    const ROUNDS: usize = 3;
    let count = scale(20_000, "grown keys");
    let most = scale(0, "millis of the longest");
    let mut least = vec![Duration::MAX; count as usize];
    for _ in 0..ROUNDS {
        let mut session = Engine::new().session();
        for (n, least) in least.iter_mut().enumerate() {
            let score = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            let word = |word: &str| {
                let word = word.replace("{n}", &n.to_string());
                Bytes::from(word.replace("{score}", &score.to_string()))
            };
            let args: Vec<Bytes> = command.split(' ').map(word).collect();
            let before = spent();
            let reply = session.execute(&args).into_reply().unwrap();
            *least = (spent() - before).min(*least);
            assert!(!reply.is_error(), "{reply:?}");
        }
    }
    let all: Duration = least.iter().sum();
    let longest = least.iter().copied().max().unwrap_or_default();
    let at = least.iter().position(|took| *took == longest);
    let at = at.unwrap_or_default();
    figure(format!(
        "{count} times {command}: the longest took {:.2} ms, the {at}th; {:.2} \u{b5}s on average",
        longest.as_secs_f64() * 1e3,
        all.as_secs_f64() * 1e6 / count as f64
    ));
    if most > 0 && !cfg!(debug_assertions) {
        assert!(longest < Duration::from_millis(most), "{longest:?}");
    }
}

#[test]
fn no_command_takes_long_while_keys_come() {
    grow("SET key:{n} value");
}

#[test]
fn no_command_takes_long_while_keys_with_deadlines_come() {
    grow("SET key:{n} value PX 1{score}");
}

#[test]
fn no_command_takes_long_while_a_hash_grows() {
    grow("HSET hash field:{n} value");
}

#[test]
fn no_command_takes_long_while_a_set_grows() {
    grow("SADD set member:{n}");
}

#[test]
fn no_command_takes_long_while_a_sorted_set_grows() {
    grow("ZADD sorted {score} member:{n}");
}
