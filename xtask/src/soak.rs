//! The fault and race campaigns: the same tests as in `test`, with larger counts.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use crate::report::{Outcome, Report};
use crate::step::{cargo, seconds};
use crate::{servers, suite};

/// One campaign: the tests of one file whose names contain one of the words of `filter`.
struct Campaign {
    name: &'static str,
    about: &'static str,
    package: &'static str,
    /// The file in the package's `tests/`, without `.rs`; empty for the tests beside the code.
    test: &'static str,
    filter: &'static str,
    /// What `REDSTART_SCALE` is unless `--scale` says otherwise.
    scale: u64,
    /// Counts that are not multiples of the ordinary ones: `REDSTART_SCALE_<NAME>`, unless `--scale` is given.
    counts: &'static [(&'static str, u64)],
}

/// To add one, write its tests with `redstart_testkit::scale` and add an entry here.
const CAMPAIGNS: &[Campaign] = &[
    Campaign {
        name: "kit",
        about: "clusters and sentinel groups of the test kit form and fail over",
        package: "redstart-testkit",
        test: "faults",
        filter: "fault_",
        scale: 1,
        counts: &[],
    },
    Campaign {
        name: "store",
        about: "the store through killed, cut, hung, failed-over and migrating servers",
        package: "redstart",
        test: "store",
        filter: "fault_",
        scale: 10,
        counts: &[],
    },
    Campaign {
        name: "store-hung",
        about: "masters that hang without a word, on Cluster and behind sentinels",
        package: "redstart",
        test: "store",
        filter: "hung_cluster_master hung_master_behind",
        scale: 1,
        counts: &[("HUNG_MASTERS", 10), ("TEST_SECONDS", 1800)],
    },
    Campaign {
        name: "store-handover",
        about: "a running engine is moved to Redis and to Valkey under load, and everybody follows",
        package: "redstart",
        test: "handover",
        filter: "",
        scale: 1,
        counts: &[("MOVED_KEYS", 100_000), ("KEYS_OF_A_HAND_OVER", 1_000_000)],
    },
    Campaign {
        name: "store-mirror",
        about: "the copy of a mirror through cuts, black holes and restarts: no answer is older than it may be",
        package: "redstart",
        test: "store",
        filter: "mirror::",
        scale: 1,
        counts: &[("MIRROR_FAULTS", 200), ("TEST_SECONDS", 1800)],
    },
    Campaign {
        name: "store-nonce",
        about: "a million requests of all shapes on every backend and over TLS, each with its asker's nonce",
        package: "redstart",
        test: "store",
        filter: "nonce::a_reply",
        scale: 1,
        counts: &[("NONCE_REQUESTS", 1_000_000), ("TEST_SECONDS", 3600)],
    },
    Campaign {
        name: "store-cuts",
        about: "the same while connections are cut and servers stand still, also over TLS and on clusters",
        package: "redstart",
        test: "store",
        filter: "nonce::fault_",
        scale: 1,
        counts: &[("NONCE_REQUESTS", 1_000_000), ("TEST_SECONDS", 3600)],
    },
    Campaign {
        name: "subscriptions",
        about: "subscriptions that come and go, killed connections, 20,000 waiting locks",
        package: "redstart",
        test: "store",
        filter: "shared_line:: subscription::",
        scale: 1,
        counts: &[
            ("SUBSCRIPTION_ROUNDS", 1_000),
            ("WAITING_LOCKS", 20_000),
            ("TEST_SECONDS", 1800),
        ],
    },
    Campaign {
        name: "scripts",
        about: "the work of every script on keys that are filled to their limits",
        package: "redstart",
        test: "store",
        filter: "work::",
        scale: 1,
        counts: &[],
    },
    Campaign {
        name: "limiting",
        about: "limiters against brute force, and under many processes",
        package: "redstart",
        test: "limiting",
        filter: "",
        scale: 1,
        counts: &[
            ("LIMITER_CLIENTS", 50),
            ("LIMITER_LIMIT", 1_000),
            ("REFUND_ROUNDS", 12_500),
            ("LEASE_WORLDS", 1_000),
            ("LEASE_MS", 10_000),
            ("TEST_SECONDS", 900),
        ],
    },
    Campaign {
        name: "locking",
        about: "locks through stopped, cut off and contending processes",
        package: "redstart",
        test: "locking",
        filter: "",
        scale: 1,
        counts: &[
            ("LOCK_STOPS", 200),
            ("LOCK_BLACK_HOLES", 100),
            ("LOCK_PROCESSES", 32),
            ("LOCK_CONTENTION_SECONDS", 120),
            ("QUORUM_REDEEMERS", 2_000),
            ("TEST_SECONDS", 900),
        ],
    },
    Campaign {
        name: "redlock",
        about: "the quorum lock with any two of five servers broken",
        package: "redstart",
        test: "locking",
        filter: "redlock",
        scale: 1,
        counts: &[("REDLOCK_FAULTS", 60), ("TEST_SECONDS", 900)],
    },
    Campaign {
        name: "stock",
        about: "a sale with buyers that are killed",
        package: "redstart",
        test: "commerce",
        filter: "",
        scale: 1,
        counts: &[
            ("STOCK_UNITS", 1_000),
            ("STOCK_BUYERS", 20_000),
            ("STOCK_KILLS", 100),
            ("TEST_SECONDS", 900),
        ],
    },
    Campaign {
        name: "breaker",
        about: "the circuit breaker over a fleet",
        package: "redstart",
        test: "resilience",
        filter: "",
        scale: 1,
        counts: &[
            ("BREAKER_CLIENTS", 50),
            ("BREAKER_ROUNDS", 20),
            ("TEST_SECONDS", 900),
        ],
    },
    Campaign {
        name: "cache-races",
        about: "fills against invalidations, over all levels",
        package: "redstart",
        test: "caching",
        filter: "race::",
        scale: 20,
        counts: &[("CACHE_RACE_ROUNDS", 100_000)],
    },
    Campaign {
        name: "cache-crowds",
        about: "one load for thousands of callers in four processes, and a hundred expiries of a hot key",
        package: "redstart",
        test: "caching",
        filter: "process:: a_hot_key",
        scale: 1,
        counts: &[("CACHE_CROWD_ROUNDS", 30), ("CACHE_EXPIRIES", 100)],
    },
    Campaign {
        name: "cache-tags",
        about: "a million entries of one tag, and servers that evict",
        package: "redstart",
        test: "caching",
        filter: "tags::",
        scale: 1,
        counts: &[
            ("CACHE_TAGGED_ENTRIES", 1_000_000),
            ("CACHE_INDEXED_ENTRIES", 50_000),
            ("CACHE_EVICTIONS", 40),
        ],
    },
    Campaign {
        name: "write-behind",
        about: "writers and workers killed at every step, also with a database that refuses rows and fails",
        package: "redstart",
        test: "caching",
        filter: "write_behind dead_write",
        scale: 1,
        counts: &[
            ("WRITE_BEHIND_MIXTURES", 500),
            ("WRITE_BEHIND_KILLS", 100),
            ("WRITE_BEHIND_KILLED_KEYS", 1_000),
            ("WRITE_BEHIND_KILLED_WRITES", 100_000),
            ("WRITE_BEHIND_HOT_UPDATES", 60_000),
            ("TEST_SECONDS", 1800),
        ],
    },
    Campaign {
        name: "queue",
        about: "workers killed, stopped and cut off under load",
        package: "redstart",
        test: "messaging",
        filter: "queue",
        scale: 1,
        counts: &[
            ("WORKER_KILLS", 100),
            ("WORKER_KILLS_WITH_FLOWS", 100),
            ("WORKER_KILLS_WITH_FLOWS_ACROSS_QUEUES", 50),
            ("OUTBOX_KILLS", 50),
            ("STEPS_OF_A_RANDOM_HISTORY", 100_000),
            ("WORKER_STOPS", 20),
            ("QUEUE_BACKLOG", 1_000_000),
            ("JOBS_OF_A_NOISY_GROUP", 1_000_000),
            ("JOBS_OF_A_FLOW", 10_000),
            ("CLIENT_KILL_SECONDS", 30),
            ("QUEUE_FAILOVERS", 6),
            ("QUEUE_MIGRATIONS", 20),
            ("UNIQUE_ENQUEUES", 1_000),
            ("IDLE_STARTS", 5_000),
            ("TEST_SECONDS", 900),
        ],
    },
    Campaign {
        name: "messaging",
        about: "lists, rings, sets, topics and streams, consumers killed at each step",
        package: "redstart",
        test: "messaging",
        filter: "",
        scale: 1,
        counts: &[
            ("LIST_KILLS", 100),
            ("NOTIFY_ROUNDS", 100_000),
            ("NOTIFY_CANCELS", 1000),
            ("RING_LAPS", 2000),
            ("STREAM_OPERATIONS", 3_000),
            ("TEST_SECONDS", 900),
        ],
    },
    Campaign {
        name: "sessions",
        about: "patches against logouts, and the index",
        package: "redstart",
        test: "sessions",
        filter: "",
        scale: 1,
        counts: &[
            ("SESSION_OPERATIONS", 10_000),
            ("RACING_PATCHES", 1_000),
            ("LOGOUT_RACES", 100),
            ("ROTATION_ROUNDS", 500),
            ("TEST_SECONDS", 900),
        ],
    },
    Campaign {
        name: "http-sessions",
        about: "rotations, patches and logouts of the same sessions that race each other over HTTP",
        package: "redstart-tower",
        test: "http",
        filter: "race_and_none",
        scale: 1,
        counts: &[("RACING_REQUESTS", 100_000), ("TEST_SECONDS", 3600)],
    },
    Campaign {
        name: "http-hang-ups",
        about: "clients that hang up at every await of a handler behind the idempotency layer, and ask again",
        package: "redstart-tower",
        test: "http",
        filter: "hangs_up",
        scale: 1,
        counts: &[],
    },
    Campaign {
        name: "ranking",
        about: "boards against a model, a million members over shards",
        package: "redstart",
        test: "ranking",
        filter: "",
        scale: 1,
        counts: &[
            ("SHARDED_MEMBERS", 1_000_000),
            ("SHARDED_PLACES", 50),
            ("LEADERBOARD_CASES", 2_000),
            ("LEADERBOARD_CALENDAR", 8_401),
            ("LEADERBOARD_CRASHES", 20),
            ("WEIGHTED_CHANGES", 10_000),
            ("WEIGHTED_PICKS", 1_000_000),
        ],
    },
    Campaign {
        name: "counting",
        about: "estimates, drains and streaks",
        package: "redstart",
        test: "counting",
        filter: "",
        scale: 1,
        counts: &[
            ("UNIQUE_SETS", 100),
            ("UNIQUE_SIZE", 100_000),
            ("DRAINS", 1_000),
        ],
    },
    Campaign {
        name: "load",
        about: "every pattern under load, about ten seconds each, with its invariant",
        package: "redstart-load",
        test: "load",
        filter: "every_pattern",
        scale: 1,
        counts: &[("BENCH_OPERATIONS", 100_000), ("TEST_SECONDS", 3600)],
    },
    Campaign {
        name: "load-overhead",
        about: "the load test's own loop against a bare one; `--release` for the promise of a tenth",
        package: "redstart-load",
        test: "load",
        filter: "the_loop_costs",
        scale: 1,
        counts: &[("OVERHEAD_MILLIS", 1_000), ("OVERHEAD_ROUNDS", 21)],
    },
    Campaign {
        name: "capacity",
        about: "a million entities of several patterns against what the table of costs predicts",
        package: "redstart-load",
        test: "load",
        filter: "predicted",
        scale: 1,
        counts: &[("FILL_ENTITIES", 1_000_000)],
    },
    Campaign {
        name: "places",
        about: "searches against brute force",
        package: "redstart",
        test: "location",
        filter: "",
        scale: 1,
        counts: &[("PLACES", 1_000), ("PLACE_QUERIES", 1_000)],
    },
    Campaign {
        name: "membership",
        about: "filters against their error rate",
        package: "redstart",
        test: "membership",
        filter: "",
        scale: 1,
        counts: &[
            ("BLOOM_GRID_SIZE", 1_000_000),
            ("BLOOM_GRID_WRONG", 2_500),
            ("BLOOM_GRID_FILTERS", 30),
            ("BLOOM_GROWN", 100_000),
            ("BLOOM_REBUILDS", 40),
        ],
    },
    Campaign {
        name: "engine-fuzz",
        about: "a million random commands on the engine, Redis and Valkey",
        package: "redstart-engine",
        test: "differential",
        filter: "differential::random",
        scale: 10,
        counts: &[],
    },
    Campaign {
        name: "engine-waits",
        about: "100,000 waits that are cancelled, and tasks that are aborted",
        package: "redstart-engine",
        test: "blocking",
        filter: "",
        scale: 20,
        counts: &[],
    },
    Campaign {
        name: "engine-wakes",
        about: "which client a push wakes, compared with the servers",
        package: "redstart-engine",
        test: "differential",
        filter: "waiting_clients",
        scale: 20,
        counts: &[],
    },
    Campaign {
        name: "engine-kills",
        about: "the log of a process that is killed 200 times",
        package: "redstart-engine",
        test: "aof",
        filter: "killed",
        scale: 50,
        counts: &[],
    },
    Campaign {
        name: "engine-crashes",
        about: "10,000 crashes at calls to a disk that fails, tears what is written and loses power",
        package: "redstart-engine",
        test: "",
        filter: "aof::crash",
        scale: 1,
        counts: &[("CRASH_POINTS", 10_000)],
    },
    Campaign {
        name: "engine-rdb",
        about: "values and files between the engine, Redis and Valkey; 100,000 damaged ones",
        package: "redstart-engine",
        test: "rdb",
        filter: "",
        scale: 1,
        counts: &[
            ("DUMPS", 200),
            ("SNAPSHOT_KEYS", 3000),
            ("FOLDER_KEYS", 400),
            ("DAMAGED_PAYLOADS", 100_000),
            ("DAMAGED_FILES", 5000),
            ("DAMAGED_LOGS", 2000),
        ],
    },
    Campaign {
        name: "engine-replica",
        about: "the engine follows Redis and Valkey through cuts and restarts of either side",
        package: "redstart-engine",
        test: "replica",
        filter: "",
        scale: 1,
        counts: &[("FOLLOWED_WRITES", 100_000)],
    },
    Campaign {
        name: "engine-master",
        about: "Redis and Valkey follow the engine through cuts and restarts of either side",
        package: "redstart-engine",
        test: "master",
        filter: "",
        scale: 1,
        counts: &[("FED_WRITES", 100_000), ("COPIED_KEYS", 300_000)],
    },
    Campaign {
        name: "engine-listener",
        about: "10,000 connections, garbage, slow and silent clients",
        package: "redstart-engine",
        test: "server",
        filter: "",
        scale: 10,
        counts: &[],
    },
    Campaign {
        name: "doctor-corpus",
        about: "every world of the doctor's corpus and its twin, on Redis and on Valkey",
        package: "redstart-doctor",
        test: "corpus",
        filter: "",
        scale: 1,
        counts: &[("DOCTOR_CORPUS", 2)],
    },
    Campaign {
        name: "doctor-cost",
        about: "what an examination costs a server with ten million keys and a live workload",
        package: "redstart-doctor",
        test: "clinic",
        filter: "cost::",
        scale: 1,
        counts: &[
            ("DOCTOR_KEYS", 10_000_000),
            ("DOCTOR_LIVE_KEYS", 1_000_000),
            ("DOCTOR_LIVE_SECONDS", 20),
            ("DOCTOR_LIVE_ROUNDS", 5),
        ],
    },
    Campaign {
        name: "adopt",
        about: "jobs, locks, limits and caches shared with the libraries themselves, and killed workers of both sides",
        package: "redstart-adopt",
        test: "adopt",
        filter: "",
        scale: 1,
        counts: &[
            ("ADOPT_BULLMQ_JOBS", 10_000),
            ("ADOPT_KILLS", 50),
            ("ADOPT_SIDEKIQ_JOBS", 1_000),
            ("ADOPT_SIDEKIQ_KILLS", 50),
            ("ADOPT_SIDEKIQ_FREE_KILLS", 50),
            ("ADOPT_CELERY_TASKS", 1_000),
            ("ADOPT_LIMITER_REQUESTS", 100_000),
            ("ADOPT_CACHE_KEYS", 200),
            ("ADOPT_MIGRATIONS", 5),
        ],
    },
    Campaign {
        name: "adopt-locks",
        about: "100,000 contended acquisitions between redis-py, redlock 4 and 5 and Mutex",
        package: "redstart-adopt",
        test: "adopt",
        filter: "inside_together",
        scale: 1,
        counts: &[("ADOPT_LOCK_ACQUISITIONS", 100_000)],
    },
    Campaign {
        name: "serve-hostile",
        about: "100,000 generated requests to the service: none is answered with a 5xx or not at all",
        package: "redstart-serve",
        test: "api",
        filter: "hostile::",
        scale: 1,
        counts: &[("HOSTILE_REQUESTS", 100_000)],
    },
    Campaign {
        name: "serve-watchers",
        about: "1,000 event streams and 5,000 long polls: what they cost the store, and their memory",
        package: "redstart-serve",
        test: "api",
        filter: "watch::",
        scale: 1,
        counts: &[
            ("WATCHERS", 1_000),
            ("MEMORY_WATCHERS", 1_000),
            ("MEMORY_POLLS", 5_000),
        ],
    },
    Campaign {
        name: "serve-workers",
        about: "workers in Python and Node, killed 50 times each in the middle of their work",
        package: "redstart-serve",
        test: "worker",
        filter: "killed",
        scale: 1,
        counts: &[("WORKER_JOBS", 1_000), ("WORKER_KILLS", 50)],
    },
    Campaign {
        name: "serve-browser",
        about: "every screen of the dashboard in Chromium, in both themes and two widths",
        package: "redstart-serve",
        test: "browser",
        filter: "",
        scale: 1,
        counts: &[("BROWSER_LOOKS", 2)],
    },
    Campaign {
        name: "sim",
        about: "seeded worlds in virtual time, over all patterns",
        package: "redstart-sim",
        test: "worlds",
        filter: "",
        scale: 1,
        counts: &[("SIM_WORLDS", 100_000)],
    },
    Campaign {
        name: "graph",
        about: "follows that crash half-way",
        package: "redstart",
        test: "social",
        filter: "",
        scale: 1,
        counts: &[
            ("GRAPH_CELEBRITY", 1_000_000),
            ("GRAPH_KILLS", 100),
            ("GRAPH_CRASH_ROUNDS", 100),
            ("GRAPH_STEPS", 10_000),
        ],
    },
];

/// The campaign that is all tests.
const SUITE: &str = "suite";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Print the campaigns and end
    #[arg(long)]
    list: bool,
    /// Only this campaign; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Multiply the tests' counts by this, instead of by each campaign's own factor
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    scale: Option<u64>,
    /// Repeat until this much time has passed
    #[arg(long)]
    minutes: Option<u64>,
    /// How many rounds of the whole suite, with `--only suite`
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// Build with optimisations
    #[arg(long)]
    release: bool,
    /// Write docs/reliability.md from the results of this run, and of earlier runs for campaigns that it left out
    #[arg(long)]
    report: bool,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.list {
        for campaign in CAMPAIGNS {
            let counts: Vec<String> = campaign
                .counts
                .iter()
                .map(|(name, count)| format!(" {name}={count}"))
                .collect();
            println!(
                "{:<15} scale {:<5} {}{}",
                campaign.name,
                campaign.scale,
                campaign.about,
                counts.concat()
            );
        }
        println!(
            "{SUITE:<15} --rounds 20   the whole suite without retries, every second round on busy cores"
        );
        return Ok(true);
    }
    if options.only == [SUITE] {
        servers::ensure()?;
        return suite::run(options.rounds);
    }
    for name in &options.only {
        let known = CAMPAIGNS.iter().any(|campaign| campaign.name == name);
        ensure!(
            known,
            "there is no campaign {name:?}: see `cargo xtask soak --list`"
        );
    }
    let chosen: Vec<&Campaign> = CAMPAIGNS
        .iter()
        .filter(|campaign| {
            options.only.is_empty() || options.only.iter().any(|name| name == campaign.name)
        })
        .collect();
    servers::ensure()?;
    for campaign in &chosen {
        build(campaign, options)?;
    }

    let start = Instant::now();
    let time = options
        .minutes
        .map(|minutes| Duration::from_secs(60 * minutes));
    let bar = bar(time, chosen.len());
    let mut failed = 0;
    let mut report = match options.report {
        true => {
            let all = CAMPAIGNS.iter();
            Some(Report::open(
                all.map(|campaign| (campaign.name, campaign.about))
                    .collect(),
            )?)
        }
        false => None,
    };
    'rounds: for round in 1.. {
        for campaign in &chosen {
            if time.is_some_and(|time| start.elapsed() >= time) {
                break 'rounds;
            }
            bar.set_prefix(format!("{} (round {round})", campaign.name));
            let outcome = one(campaign, options, &bar, start, time)?;
            failed += u64::from(!outcome.passed);
            if let Some(report) = &mut report {
                // After each campaign, so that a run that is ended early leaves what it found.
                report.add(outcome)?;
                report.write()?;
            }
            if time.is_none() {
                bar.inc(1);
            }
        }
        if time.is_none() {
            break;
        }
    }
    bar.finish_and_clear();
    let outcome = if failed == 0 { "passed" } else { "FAILED" };
    println!(
        "soak {outcome} after {}, {failed} failed runs",
        seconds(start.elapsed())
    );
    Ok(failed == 0)
}

/// Counts seconds when there is a time to fill, campaigns otherwise.
fn bar(time: Option<Duration>, campaigns: usize) -> ProgressBar {
    let (length, unit) = match time {
        Some(time) => (time.as_secs(), "s"),
        None => (campaigns as u64, "campaigns"),
    };
    let template = format!(
        "{{prefix}} [{{bar:24}}] {{pos}}/{{len}} {unit}, {{elapsed_precise}}  {{wide_msg}}"
    );
    let style = ProgressStyle::with_template(&template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    let bar = ProgressBar::new(length).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn command(campaign: &Campaign, options: &Options) -> std::process::Command {
    let mut command = cargo(&["test", "-p", campaign.package]);
    match campaign.test {
        "" => command.arg("--lib"),
        test => command.args(["--test", test]),
    };
    if campaign.package == "redstart" && ["caching", "messaging"].contains(&campaign.test) {
        // Write-behind and the outbox are tested on real databases only.
        command.args(["--features", "sqlite,postgres"]);
    }
    if options.release {
        command.arg("--release");
    }
    command
}

fn build(campaign: &Campaign, options: &Options) -> Result<()> {
    let status = command(campaign, options).arg("--no-run").status()?;
    ensure!(
        status.success(),
        "campaign {} could not be built",
        campaign.name
    );
    Ok(())
}

/// Runs a campaign once, shows its last line as it goes, and prints the outcome.
fn one(
    campaign: &Campaign,
    options: &Options,
    bar: &ProgressBar,
    start: Instant,
    time: Option<Duration>,
) -> Result<Outcome> {
    let scale = options.scale.unwrap_or(campaign.scale);
    let counts = match options.scale {
        None => campaign.counts,
        Some(_) => &[],
    };
    let began = Instant::now();
    // Both streams into one pipe, in the order in which they were written.
    let (reader, writer) = std::io::pipe()?;
    let mut child = command(campaign, options)
        .args(["--", "--nocapture", "--include-ignored", "--test-threads=2"])
        .args(campaign.filter.split(' '))
        .env("REDSTART_SCALE", scale.to_string())
        // A hang still fails, but a campaign may take its time.
        .env("REDSTART_SCALE_TEST_SECONDS", "3600")
        .envs(counts.iter().map(|(name, count)| {
            let name = format!("REDSTART_SCALE_{name}");
            (name, count.to_string())
        }))
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .context("could not run cargo")?;
    let mut last = VecDeque::new();
    let mut result = String::new();
    let mut figures = Vec::new();
    let mut tests = Vec::new();
    for line in BufReader::new(reader).lines() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        if line.starts_with("test result:") {
            result.clone_from(&line);
        }
        if let Some((_, figure)) = line.split_once("figure: ") {
            figures.push(figure.to_owned());
        }
        if let Some(test) = ended(&line) {
            tests.push(test);
        }
        bar.set_message(line.clone());
        if time.is_some() {
            bar.set_position(start.elapsed().as_secs());
        }
        last.push_back(line);
        if last.len() > 60 {
            last.pop_front();
        }
    }
    let passed = child.wait()?.success();
    let (name, took) = (campaign.name, seconds(began.elapsed()));
    let outcome = if passed { "ok" } else { "FAILED" };
    // Not `bar.println`, which is silent where there is no terminal.
    bar.suspend(|| {
        if !passed {
            last.iter().for_each(|line| println!("        {line}"));
        }
        figures
            .iter()
            .for_each(|figure| println!("        {figure}"));
        println!("{outcome:<6}  {name:<15} {took:>9}  scale {scale}  {result}");
    });
    let counts = counts.iter().map(|(name, count)| format!("{name}={count}"));
    Ok(Outcome {
        campaign: campaign.name,
        about: campaign.about,
        counts: std::iter::once(format!("scale {scale}"))
            .chain(counts)
            .collect(),
        took: took.to_string(),
        passed,
        figures,
        tests,
    })
}

/// The name of a test that has ended, and whether it passed, from a line of the test runner.
fn ended(line: &str) -> Option<(String, bool)> {
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    match outcome {
        "ok" => Some((name.to_owned(), true)),
        "FAILED" => Some((name.to_owned(), false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_test_counts() {
        let line = "test nonce::a_reply::redis ... ok";
        assert_eq!(
            ended(line),
            Some(("nonce::a_reply::redis".to_owned(), true))
        );
        assert_eq!(ended("test x ... FAILED"), Some(("x".to_owned(), false)));
        for other in [
            "test x ... ignored",
            "test result: ok. 1 passed",
            "figure: 3",
        ] {
            assert_eq!(ended(other), None, "{other}");
        }
    }
}
