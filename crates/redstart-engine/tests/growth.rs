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
    let count = scale(50_000, "grown keys");
    let most = scale(0, "millis of the longest");
    let mut session = Engine::new().session();
    let (mut longest, mut at, mut all) = (Duration::ZERO, 0, Duration::ZERO);
    for n in 0..count {
        let score = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let word = |word: &str| {
            let word = word.replace("{n}", &n.to_string());
            Bytes::from(word.replace("{score}", &score.to_string()))
        };
        let args: Vec<Bytes> = command.split(' ').map(word).collect();
        let before = spent();
        let reply = session.execute(&args).into_reply().unwrap();
        let took = spent() - before;
        assert!(!reply.is_error(), "{reply:?}");
        all += took;
        if took > longest {
            (longest, at) = (took, n);
        }
    }
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
