//! `cargo xtask sim`: runs worlds and explains the broken ones.

use std::{
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Parser;
use redstart_sim::{Pattern, Plan, campaign::Campaign, run};

/// Runs seeded worlds in which servers, processes and the network fail.
#[derive(Parser)]
struct Args {
    /// How many worlds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed; with `--seeds 1`, its whole time line is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this pattern.
    #[arg(long)]
    pattern: Option<Pattern>,
    /// Ends after this many minutes.
    #[arg(long)]
    minutes: Option<f64>,
    /// How many threads.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let fresh = now.map_or(1, |now| now.as_micros() as u64 % 1_000_000_000_000);
    let campaign = Campaign {
        first: args.seed.unwrap_or(fresh),
        seeds: args.seeds,
        patterns: args.pattern.map_or(Pattern::ALL.to_vec(), |one| vec![one]),
        within: args
            .minutes
            .map(|minutes| Duration::from_secs_f64(minutes * 60.0)),
        jobs: args.jobs,
    };
    if args.seeds == 1 {
        return explain(campaign.first, campaign.pattern_of(campaign.first));
    }
    let report = campaign.run(&|plan, outcome| {
        for breach in outcome.breaches.iter().take(3) {
            println!("seed {} ({}): {breach}", plan.seed, plan.pattern);
        }
    });
    println!(
        "{} worlds from seed {}: {} events, {:.0} simulated s, {:.0} per second of a core; {} broken",
        report.worlds,
        campaign.first,
        report.events,
        report.simulated.as_secs_f64(),
        report.speed(),
        report.failures.len()
    );
    match report.failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Prints the time line of one world.
fn explain(seed: u64, pattern: Pattern) -> ExitCode {
    let plan = Plan::new(seed, pattern);
    println!("{plan}");
    let outcome = run(&plan, true, None);
    for line in &outcome.lines {
        println!(
            "{:>9.3} {:<10} {}",
            line.at.as_secs_f64(),
            line.who,
            line.what
        );
    }
    println!("trace {:016x} of {} events", outcome.hash, outcome.events);
    match outcome.breaches.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
