//! `cargo xtask sim`: runs worlds and explains the broken ones.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use clap::Parser;
use parking_lot::Mutex;
use redstart_sim::{
    Pattern, Plan,
    campaign::{Campaign, Report, find},
    mutation::{MUTATIONS, Mutation},
    run,
    shrink::shrink,
    timeline,
};

/// How many runs a broken world is worth.
const SHRINK: usize = 300;

/// Runs seeded worlds in which servers, processes and the network fail.
#[derive(Parser)]
#[command(bin_name = "cargo xtask sim")]
struct Args {
    /// How many worlds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed; with `--seeds 1`, its time line is printed
    #[arg(long)]
    seed: Option<u64>,
    /// Only this pattern
    #[arg(long)]
    pattern: Option<Pattern>,
    /// End after this many minutes
    #[arg(long)]
    minutes: Option<f64>,
    /// How many threads
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Run every world twice and compare the traces
    #[arg(long)]
    twice: bool,
    /// Take out the library's checks one at a time, and count the seeds until that is noticed
    #[arg(long)]
    mutations: bool,
    /// With `--mutations`: only those whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// With `--mutations`: write the table into this file, between its marks
    #[arg(long)]
    write: Option<PathBuf>,
    /// With `--seeds 1`: as it is, not made smaller
    #[arg(long)]
    whole: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let fine = match args.mutations {
        true => mutations(&args),
        false => Ok(worlds(&args)),
    };
    match fine {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn worlds(args: &Args) -> bool {
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
        twice: args.twice,
    };
    if args.seeds == 1 {
        let plan = Plan::new(campaign.first, campaign.pattern_of(campaign.first));
        return explain(&plan, args.whole);
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
    let counted = report
        .faults
        .iter()
        .map(|(name, count)| format!("{name} {count}"));
    println!("faults: {}", counted.collect::<Vec<_>>().join(", "));
    print!("{}", table(&report));
    if let Some(failure) = report.failures.first() {
        println!();
        explain(&failure.plan, false);
    }
    report.failures.is_empty()
}

/// What the clients of each pattern met, and how fast that went.
fn table(report: &Report) -> String {
    let mut text = format!(
        "{:<12} {:>7} {:>8} {:>8} {:>7} {:>8} {:>9} {:>7} {:>11} {:>6}\n",
        "pattern",
        "worlds",
        "sim s/s",
        "done",
        "failed",
        "dropped",
        "contended",
        "faults",
        "undecided",
        "lossy"
    );
    for (name, share) in &report.patterns {
        let tally = share.tally;
        text.push_str(&format!(
            "{name:<12} {:>7} {:>8.0} {:>8} {:>6.1}% {:>8} {:>9} {:>7} {:>11} {:>5.0}%\n",
            share.worlds,
            share.speed(),
            tally.succeeded,
            share.failed(),
            tally.dropped,
            tally.contended,
            share.faults,
            format!("{}/{}", tally.undecided, tally.histories),
            100.0 * tally.lossy as f64 / share.worlds.max(1) as f64
        ));
    }
    text
}

/// Prints the time line of one world, made smaller if it is broken; whether it is not.
fn explain(plan: &Plan, whole: bool) -> bool {
    let mut plan = plan.clone();
    let broken = !run(&plan, false, None).breaches.is_empty();
    if broken && !whole {
        let (smaller, runs) = shrink(&plan, None, SHRINK);
        println!(
            "made smaller in {runs} runs; the whole: --seeds 1 --seed {} --pattern {} --whole\n",
            plan.seed, plan.pattern
        );
        plan = smaller;
    }
    let outcome = run(&plan, true, None);
    let width = std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok());
    print!("{}", timeline::tell(&plan, &outcome, width.unwrap_or(160)));
    println!("trace {:016x} of {} events", outcome.hash, outcome.events);
    !broken
}

/// Counts the seeds until each missing check is noticed.
fn mutations(args: &Args) -> Result<bool> {
    let first = args.seed.unwrap_or(1);
    let most = args.seeds.max(10_000);
    let wanted: Vec<_> = MUTATIONS
        .iter()
        .filter(|mutation| {
            let pattern = args.pattern.is_none_or(|one| one == mutation.pattern);
            let only = args.only.as_deref();
            pattern && only.is_none_or(|only| mutation.name.contains(only))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let found = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutation) = wanted.get(number) else {
                return;
            };
            let seeds = find(mutation, first, most);
            match &seeds {
                Some((seeds, breach)) => println!("{seeds:>6}  {}: {breach}", mutation.name),
                None => println!("  none  {}", mutation.name),
            }
            found.lock().insert(number, seeds.map(|(seeds, _)| seeds));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(work);
        }
    });
    let found = found.into_inner();
    let mut table =
        String::from("| what is missing | judge | worlds until it was noticed |\n|---|---|---:|\n");
    for (number, seeds) in &found {
        let Mutation { name, pattern, .. } = wanted[*number];
        let seeds = match seeds {
            Some(seeds) => seeds.to_string(),
            None => format!("not within {most}"),
        };
        table.push_str(&format!("| {name} | {pattern} | {seeds} |\n"));
    }
    let noticed = found.values().flatten();
    println!(
        "{} of {} noticed, the last after {} worlds",
        noticed.clone().count(),
        found.len(),
        noticed.max().unwrap_or(&0)
    );
    if let Some(path) = &args.write {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let marks = ("<!-- mutations -->\n", "<!-- end -->");
        let (head, rest) = text
            .split_once(marks.0)
            .context("there is no mark for the table")?;
        let (_, tail) = rest
            .split_once(marks.1)
            .context("there is no end of the table")?;
        std::fs::write(path, format!("{head}{}{table}{}{tail}", marks.0, marks.1))?;
    }
    Ok(found.values().all(Option::is_some))
}
