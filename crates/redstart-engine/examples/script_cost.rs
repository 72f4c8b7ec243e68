//! What a script costs: runs one of the named scripts again and again, for a counter of instructions.
//!
//! ```text
//! cargo build --release -p redstart-engine --example script_cost
//! for n in 2000 4000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/script_cost bucket $n
//! done
//! ```
//!
//! The difference of the two counts, divided by 2000, is the number of instructions per call: the same on a busy
//! machine as on an idle one. Without valgrind the program prints the time per call.

use std::time::Instant;

use bytes::Bytes;
use redstart_engine::{Engine, Reply};

/// The name of a script, its text, and its keys and arguments.
type Case = (&'static str, &'static str, usize, &'static [&'static str]);

const CASES: &[Case] = &[
    ("return", "return 1", 0, &[]),
    (
        // The token bucket that most people write by hand.
        "bucket",
        "local t = redis.call('TIME')
         local now = t[1] * 1000000 + t[2]
         local s = redis.call('HMGET', KEYS[1], 'n', 't')
         local n = math.min(1000000, (tonumber(s[1]) or 1000000) + (now - (tonumber(s[2]) or now)) / 10)
         local ok = n >= 1
         if ok then n = n - 1 end
         redis.call('HSET', KEYS[1], 'n', string.format('%.3f', n), 't', string.format('%.0f', now))
         redis.call('PEXPIRE', KEYS[1], 60000)
         return ok and 1 or 0",
        1,
        &["bench:{k}:bucket"],
    ),
    (
        "calls",
        "redis.call('SET', KEYS[1], ARGV[1])
         redis.call('HSET', KEYS[2], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
         redis.call('HINCRBY', KEYS[2], ARGV[6], ARGV[7])
         redis.call('EXPIRE', KEYS[1], ARGV[8])
         return {redis.call('GET', KEYS[1]), ARGV[9], ARGV[10]}",
        2,
        &[
            "{k}:one", "{k}:two", "value", "a", "alpha", "b", "beta", "count", "7", "60", "nine",
            "ten",
        ],
    ),
    (
        "refused",
        "return redis.pcall('HSET', KEYS[1])",
        1,
        &["{k}:one"],
    ),
];

fn main() {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_else(|| "bucket".into());
    let count: u32 = words.next().and_then(|n| n.parse().ok()).unwrap_or(200_000);
    let Some((_, text, keys, args)) = CASES.iter().find(|case| case.0 == name) else {
        let names: Vec<_> = CASES.iter().map(|case| case.0).collect();
        eprintln!("one of {}", names.join(", "));
        std::process::exit(2);
    };
    let mut session = Engine::new().session();
    let load = ["SCRIPT", "LOAD", text].map(Bytes::from);
    let digest = match session.execute(&load).into_reply() {
        Some(Reply::Bulk(digest)) => digest,
        other => panic!("cannot load the script: {other:?}"),
    };
    let mut call = vec![
        Bytes::from("EVALSHA"),
        digest,
        Bytes::from(keys.to_string()),
    ];
    call.extend(args.iter().copied().map(Bytes::from));
    let started = Instant::now();
    for _ in 0..count {
        let reply = session.execute(&call);
        std::hint::black_box(&reply);
    }
    println!("{name}: {:?} per call", started.elapsed() / count);
}
