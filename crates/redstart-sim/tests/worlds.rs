//! Worlds of fresh seeds, and the same world twice.

#![allow(clippy::unwrap_used)]

use std::time::{SystemTime, UNIX_EPOCH};

use redstart_sim::{Pattern, Plan, campaign::Campaign, run};
use redstart_testkit::{figure, scale};

#[test]
fn a_seed_gives_the_same_world_every_time() {
    // Not the queue: its maps still decide the order of some arguments.
    let patterns = Pattern::ALL
        .iter()
        .filter(|pattern| **pattern != Pattern::Queue);
    for &pattern in patterns {
        for seed in 0..8 {
            let plan = Plan::new(seed, pattern);
            let (first, second) = (run(&plan, false, None), run(&plan, true, None));
            assert!(first.events > 0, "nothing happened in {plan}");
            assert_eq!(
                (first.hash, first.events, first.simulated),
                (second.hash, second.events, second.simulated),
                "another trace in the second run of {plan}"
            );
        }
    }
}

#[test]
fn other_seeds_give_other_worlds() {
    let hash = |seed| run(&Plan::new(seed, Pattern::Mutex), false, None).hash;
    assert_ne!(hash(1), hash(2));
}

#[test]
fn no_promise_is_broken_in_fresh_worlds() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let campaign = Campaign {
        first: now.as_micros() as u64 % 1_000_000_000_000,
        seeds: scale(700, "sim worlds"),
        patterns: Pattern::ALL.to_vec(),
        within: None,
        jobs: 2,
    };
    let report = campaign.run(&|_, _| {});
    for failure in &report.failures {
        let Plan { seed, pattern, .. } = failure.plan;
        println!("cargo xtask sim --seeds 1 --seed {seed} --pattern {pattern}");
        println!("  {}", failure.breaches.join("\n  "));
    }
    assert!(
        report.failures.is_empty(),
        "{} worlds are broken",
        report.failures.len()
    );
    figure(format_args!(
        "{} worlds, {:.0} simulated seconds per second of a core",
        report.worlds,
        report.speed()
    ));
}
