//! `redstart bench`: patterns under load, and whether their promises held.

use std::{
    io::{IsTerminal as _, Write as _},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use redstart::Store;
use redstart_load::{
    Baseline, Length, Live, Pace, Pattern, Report, Settings, Spread, Verdict, elsewhere,
    without_credentials,
};

use crate::Failure;

mod together;

use together::{Obedience, Watched, together};

/// Arguments of `redstart bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The patterns, by their names in the tour; all of them if none is given. `get` is one GET, as a yardstick
    patterns: Vec<String>,
    /// The store: memory://, redis://host, redis+sentinel://…, redis+cluster://…
    #[arg(
        long,
        default_value = "memory://",
        env = "REDSTART_URL",
        hide_env_values = true
    )]
    url: String,
    /// Closed loop: number of clients, each with one operation at a time
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Open loop: operations per second, with latency counted from when each was due
    #[arg(long)]
    rate: Option<f64>,
    /// How many operations of an open loop may be under way
    #[arg(long, default_value_t = 1000, requires = "rate")]
    in_flight: usize,
    /// How long each pattern runs
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Number of operations to run, instead of a time
    #[arg(long, conflicts_with = "seconds")]
    operations: Option<u64>,
    /// How many entities operations choose from; patterns that keep a model of each have a highest number
    #[arg(long, default_value_t = 1000)]
    keys: u64,
    /// How they are chosen: uniform, zipf, zipf:<exponent>, hot, hot:<share>
    #[arg(long, default_value = "uniform")]
    spread: Spread,
    /// Bytes of a value, where the pattern has values
    #[arg(long, default_value_t = 100)]
    payload: usize,
    /// The share of writes from 0 to 1; by default the pattern's own
    #[arg(long)]
    writes: Option<f64>,
    /// Double the load step by step and find where more brings little more; --seconds is the length of a step
    #[arg(long)]
    ramp: bool,
    /// Run each pattern on this store too, and compare
    #[arg(long, value_name = "URL", conflicts_with = "ramp")]
    against: Option<String>,
    /// Number of processes that put load on the server, each with --clients and a namespace of its own
    #[arg(long, default_value_t = 1, conflicts_with_all = ["ramp", "against", "naive"])]
    processes: usize,
    /// Add the histogram to the JSON
    #[arg(long, hide = true, requires = "json")]
    histogram: bool,
    /// Be one of several processes: wait for a line at the end of each stage, and tell how the load goes on
    #[arg(long, hide = true, requires = "json")]
    together: bool,
    /// How many bytes the preparation may write, for one of several processes
    #[arg(long, hide = true, requires = "json")]
    max_written: Option<u64>,
    /// The namespace of the keys, for one of several processes
    #[arg(long, hide = true, requires = "json")]
    namespace: Option<String>,
    /// Run the form that people write by hand beside ours, and count what goes wrong; without names, all that have one
    #[arg(long, conflicts_with_all = ["ramp", "against"])]
    naive: bool,
    /// Compare with earlier results, as --json wrote them; exit code 1 if a pattern is slower
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// The share in percent by which a pattern may be slower than the baseline
    #[arg(long, default_value_t = 10.0, requires = "baseline")]
    tolerance: f64,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The most operations per second; 10,000 on a server that is not this machine. What an open loop could not send during a
    /// stall is not sent on top of it, so a cap somewhat above --rate lets it catch up
    #[arg(long)]
    max_rate: Option<f64>,
    /// Stop a run when the server's memory has grown by this many MiB, or its preparation has written as many
    #[arg(long, default_value_t = 256)]
    max_memory: u64,
    /// Do not ask before putting load on a server that is not this machine
    #[arg(long)]
    yes: bool,
    /// The same seed draws the same keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON object per pattern and line, for programs
    #[arg(long)]
    json: bool,
}

impl Args {
    fn settings(&self) -> Result<Settings, Failure> {
        let seconds = Duration::try_from_secs_f64(self.seconds)
            .map_err(|_| Failure::Usage("--seconds must be a positive number".to_owned()))?;
        Ok(Settings {
            pace: match self.rate {
                Some(rate) => Pace::Open {
                    rate,
                    in_flight: self.in_flight,
                },
                None => Pace::Closed {
                    clients: self.clients,
                },
            },
            length: match self.operations {
                Some(operations) => Length::Operations(operations),
                None => Length::Time(seconds),
            },
            keys: self.keys,
            spread: self.spread,
            payload: self.payload,
            writes: self.writes,
            max_rate: self.max_rate,
            idle: Duration::from_secs(1),
            max_memory: self.max_memory.saturating_mul(1 << 20),
            max_written: self.max_written,
            seed: self.seed,
        })
    }

    /// The arguments of one of several processes: its share of a rate, and keys of its own.
    fn repeated(&self, settings: &Settings, process: usize) -> Vec<String> {
        let share = |rate: f64| (rate / self.processes as f64).to_string();
        let mut args: Vec<String> = Vec::new();
        let mut add = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
        add("--clients", self.clients.to_string());
        if let Some(rate) = self.rate {
            add("--rate", share(rate));
            add("--in-flight", self.in_flight.to_string());
        }
        match self.operations {
            // The first ones take what does not divide.
            Some(operations) => {
                let processes = self.processes as u64;
                let rest = u64::from((process as u64) < operations % processes);
                add("--operations", (operations / processes + rest).to_string());
            }
            None => add("--seconds", self.seconds.to_string()),
        }
        add("--keys", self.keys.to_string());
        add("--spread", self.spread.to_string());
        add("--payload", self.payload.to_string());
        if let Some(writes) = self.writes {
            add("--writes", writes.to_string());
        }
        if let Some(rate) = settings.max_rate {
            add("--max-rate", share(rate));
        }
        add("--max-memory", self.max_memory.to_string());
        // Each sees the memory of the whole server, but only what it writes itself.
        let written = settings.max_memory / self.processes as u64;
        add("--max-written", written.to_string());
        add("--seed", (self.seed + process as u64).to_string());
        args
    }

    fn urls(&self) -> impl Iterator<Item = &str> {
        [self.url.as_str()]
            .into_iter()
            .chain(self.against.as_deref())
    }
}

impl From<redstart_load::Error> for Failure {
    fn from(error: redstart_load::Error) -> Self {
        match error {
            redstart_load::Error::Config(line) => Self::Usage(line),
            redstart_load::Error::Store(error) => error.into(),
            other => Self::Other(other.to_string()),
        }
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let patterns = choose(&args)?;
    let mut settings = args.settings()?;
    // A baseline that cannot be read is better known before a long run.
    if let Some(path) = &args.baseline {
        Baseline::read(path)?;
    }
    for url in args.urls() {
        if let Some(other) = elsewhere(url).await? {
            settings.max_rate = settings.max_rate.or(Some(MAX_RATE_ELSEWHERE));
            confirm(&args, url, &other, &settings)?;
        }
    }
    if args.processes > 1 {
        return several(&args, &settings, &patterns).await;
    }
    let store = Store::connect(&args.url).await?;
    let other = match &args.against {
        Some(url) => Some(Store::connect(url).await?),
        None => None,
    };
    let signals = Signals::listen();
    let bench = Bench {
        args: &args,
        settings,
        namespace: args
            .namespace
            .clone()
            .unwrap_or_else(redstart_load::namespace),
        screen: Screen::new(&args, patterns.len()),
        signals: signals.clone(),
    };
    // Outside of what a second signal drops.
    let mut reports = Vec::new();
    let outcome = tokio::select! {
        outcome = Box::pin(bench.all(&store, other.as_ref(), &patterns, &mut reports)) => outcome,
        () = signals.came(2) => Err(Failure::Interrupted),
    };
    if outcome.is_err() {
        // What was under way has not removed its keys.
        for store in std::iter::once(&store).chain(&other) {
            let swept = redstart_load::sweep(store, &bench.namespace).await;
            left(&bench.namespace, &signals, swept)?;
        }
    }
    conclude(&args, &bench.screen, &signals, &reports, outcome)
}

/// Why a run ended early.
const INTERRUPTED: &str = "it was interrupted";

/// How often somebody asked this process to end: by Ctrl-C, or as `timeout`, CI and service managers do. The first time, the
/// pattern that runs is stopped and what was measured is kept; the second time, everything is dropped.
#[derive(Clone)]
struct Signals(tokio::sync::watch::Receiver<u32>);

impl Signals {
    fn listen() -> Self {
        let (came, heard) = tokio::sync::watch::channel(0);
        tokio::spawn(async move {
            #[cfg(unix)]
            let mut term =
                tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok();
            loop {
                #[cfg(unix)]
                let terminated = async {
                    match &mut term {
                        Some(term) => drop(term.recv().await),
                        None => std::future::pending().await,
                    }
                };
                #[cfg(not(unix))]
                let terminated = std::future::pending::<()>();
                tokio::select! {
                    heard = tokio::signal::ctrl_c() => if heard.is_err() { return },
                    () = terminated => {}
                }
                came.send_modify(|times| *times += 1);
            }
        });
        Self(heard)
    }

    /// Waits until there were that many.
    async fn came(&self, times: u32) {
        let mut heard = self.0.clone();
        // Without signals there is nothing to wait for.
        if heard.wait_for(|came| *came >= times).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn any(&self) -> bool {
        *self.0.borrow() > 0
    }
}

/// What it means that keys could not be removed. After a signal it must not hide the results, nor that there was a signal.
fn left(
    namespace: &str,
    signals: &Signals,
    swept: Result<(), redstart_load::Error>,
) -> Result<(), Failure> {
    match swept {
        Err(error) if signals.any() => {
            anstream::eprintln!("keys that begin with {namespace} may be left: {error}");
            Ok(())
        }
        swept => Ok(swept?),
    }
}

/// Writes what there is, and says how the run ended.
fn conclude(
    args: &Args,
    screen: &Screen,
    signals: &Signals,
    reports: &[Report],
    outcome: Result<(), Failure>,
) -> Result<(), Failure> {
    let ended = match outcome {
        _ if signals.any() => Err(Failure::Interrupted),
        ended => ended,
    };
    if ended.is_err() && reports.is_empty() {
        screen.close_without();
        return ended;
    }
    let finished = finish(args, screen, reports);
    // That a comparison with too few patterns fails says nothing new.
    ended.and(finished)
}

/// The end of the output, the page and the verdict.
fn finish(args: &Args, screen: &Screen, reports: &[Report]) -> Result<(), Failure> {
    screen.close(reports);
    if let Some(path) = &args.html {
        let title = format!("Load on {}", without_credentials(&args.url));
        std::fs::write(path, redstart_load::html(&title, reports))
            .map_err(|error| Failure::Other(format!("{}: {error}", path.display())))?;
    }
    let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?;
    let slower = match baseline {
        Some(baseline) => compare(args, &baseline, reports)?,
        None => false,
    };
    if reports.iter().all(held) && !slower {
        Ok(())
    } else {
        Err(Failure::Claim)
    }
}

/// Starts this program several times for each pattern, and puts their reports together.
async fn several(
    args: &Args,
    settings: &Settings,
    patterns: &[&'static Pattern],
) -> Result<(), Failure> {
    if args.url.starts_with("memory:") || args.url.starts_with("file:") {
        return Err(Failure::Usage(
            "an engine inside a process cannot be shared by --processes".to_owned(),
        ));
    }
    if args.processes > 64 {
        return Err(Failure::Usage("at most 64 processes".to_owned()));
    }
    if args
        .operations
        .is_some_and(|operations| operations < args.processes as u64)
    {
        return Err(Failure::Usage(
            "--operations must be at least --processes: each has its share of them".to_owned(),
        ));
    }
    let screen = Screen::new(args, patterns.len());
    let namespace = redstart_load::namespace();
    let signals = Signals::listen();
    let mut reports = Vec::new();
    let all = children(
        args,
        settings,
        patterns,
        &namespace,
        &screen,
        &signals,
        &mut reports,
    );
    let outcome = tokio::select! {
        outcome = Box::pin(all) => outcome,
        () = signals.came(2) => Err(Failure::Interrupted),
    };
    if outcome.is_err() {
        // The others were ended in the middle of their load. Their namespaces begin with this one's name.
        let swept = async {
            let store = Store::connect(&args.url).await?;
            redstart_load::sweep(&store, &namespace).await
        };
        left(&namespace, &signals, swept.await)?;
    }
    conclude(args, &screen, &signals, &reports, outcome)
}

/// The reports of all patterns, each by several processes, which end with this.
async fn children(
    args: &Args,
    settings: &Settings,
    patterns: &[&'static Pattern],
    namespace: &str,
    screen: &Screen,
    signals: &Signals,
    reports: &mut Vec<Report>,
) -> Result<(), Failure> {
    let program = std::env::current_exe()?;
    for pattern in patterns {
        if signals.any() {
            break;
        }
        let command = |process: usize| {
            let mut command = tokio::process::Command::new(&program);
            command
                .args(["bench", pattern.name(), "--json", "--histogram", "--yes"])
                .arg("--together")
                .args(args.repeated(settings, process))
                .args(["--namespace", &format!("{namespace}-{process}")])
                // Not an argument: it may have a password in it, and arguments can be seen by others.
                .env("REDSTART_URL", &args.url);
            command
        };
        let started = Instant::now();
        let mut last = (0, started);
        let show = |watched: &Watched| {
            let now = Instant::now();
            screen
                .bar
                .set_message(line(pattern.name(), started, last, now, watched));
            last = (watched.operations, now);
        };
        let commands = (0..args.processes).map(command).collect();
        let parts = together(commands, show, signals).await?.ok_or_else(|| {
            Failure::Other(format!(
                "a process of {} ended without a report",
                pattern.name()
            ))
        })?;
        if let Some(report) = redstart_load::merge(parts).filter(has_run) {
            screen.end(&report);
            reports.push(report);
        }
    }
    Ok(())
}

/// Whether a run that was interrupted had come to its load.
fn has_run(report: &Report) -> bool {
    report.operations > 0 || report.stopped.as_deref() != Some(INTERRUPTED)
}

/// Prints how the patterns compare with an earlier run; true if one is slower. A baseline that has none of them says nothing, which
/// must not look like success.
fn compare(args: &Args, baseline: &Baseline, reports: &[Report]) -> Result<bool, Failure> {
    let (mut slower, mut compared) = (false, false);
    for report in reports {
        let comparison = baseline.compare(report, args.tolerance / 100.0);
        slower |= comparison.verdict == Verdict::Slower;
        compared |= comparison.verdict != Verdict::New;
        // JSON has one object per pattern, and these lines are for people.
        anstream::eprintln!(
            "  {:<20} {:<6} {:.2}×",
            comparison.pattern,
            comparison.verdict,
            comparison.ratio
        );
    }
    if !compared {
        return Err(Failure::Usage(
            "nothing was compared: the baseline has no run of these patterns with the same load, server and build".to_owned(),
        ));
    }
    Ok(slower)
}

fn held(report: &Report) -> bool {
    report.held && report.against.as_ref().is_none_or(|against| against.held)
}

fn choose(args: &Args) -> Result<Vec<&'static Pattern>, Failure> {
    let names = &args.patterns;
    if args.naive {
        let all = || redstart_load::with_naive_form();
        if let Some(name) = names.iter().find(|name| !all().any(|p| p.name() == *name)) {
            let names: Vec<_> = all().map(Pattern::name).collect();
            return Err(Failure::Usage(format!(
                "there is no naive form of {name:?}; there is one of {}",
                names.join(", ")
            )));
        }
        if names.is_empty() {
            return Ok(all().collect());
        }
    }
    if names.is_empty() {
        return Ok(redstart_load::all().collect());
    }
    let find = |name: &String| {
        redstart_load::find(name).ok_or_else(|| {
            let names: Vec<_> = redstart_load::all().map(Pattern::name).collect();
            Failure::Usage(format!(
                "there is no pattern {name:?}; there are {} and get",
                names.join(", ")
            ))
        })
    };
    names.iter().map(find).collect()
}

/// The most operations per second on a server that is not this machine, unless `--max-rate` says otherwise.
const MAX_RATE_ELSEWHERE: f64 = 10_000.0;

/// Asks before load is put on a server that may be somebody else's.
fn confirm(args: &Args, url: &str, other: &str, settings: &Settings) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    let shown = format!("{} (at {other})", without_credentials(url));
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(format!(
            "{shown} is not this machine: give --yes to put load on it"
        )));
    }
    let rate = settings.max_rate.unwrap_or(f64::INFINITY);
    anstream::eprint!(
        "This puts up to {rate} operations per second and {} MiB on {shown}. Continue? [y/N] ",
        args.max_memory
    );
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::Usage("nothing was done".to_owned())),
    }
}

struct Bench<'a> {
    args: &'a Args,
    settings: Settings,
    namespace: String,
    screen: Screen,
    signals: Signals,
}

impl Bench<'_> {
    async fn all(
        &self,
        store: &Store,
        other: Option<&Store>,
        patterns: &[&'static Pattern],
        reports: &mut Vec<Report>,
    ) -> Result<(), Failure> {
        for pattern in patterns {
            if self.signals.any() {
                break;
            }
            let mut report = self.one(store, pattern).await?;
            // The process that started this one waits for a report, whatever is in it.
            if !has_run(&report) && !self.args.together {
                break;
            }
            if let Some(other) = other
                && !self.signals.any()
            {
                let against = self.one(other, pattern).await?;
                report.against = Some(Box::new(against)).filter(|against| has_run(against));
            }
            if self.args.naive && !self.signals.any() {
                let live = self.live(Live::new());
                let (settings, namespace) = (&self.settings, &self.namespace);
                redstart_load::compare_naive(store, namespace, &mut report, settings, &live)
                    .await?;
                if self.signals.any() {
                    // The two did not have the same load.
                    report.naive = None;
                }
            }
            self.screen.end(&report);
            reports.push(report);
        }
        Ok(())
    }

    /// A run that ends early when a signal comes.
    fn live(&self, live: Live) -> Arc<Live> {
        let live = Arc::new(live);
        let (signals, run) = (self.signals.clone(), Arc::downgrade(&live));
        tokio::spawn(async move {
            signals.came(1).await;
            if let Some(run) = run.upgrade() {
                run.stop(INTERRUPTED);
            }
        });
        live
    }

    async fn one(&self, store: &Store, pattern: &'static Pattern) -> Result<Report, Failure> {
        let (settings, namespace) = (&self.settings, &self.namespace);
        let watch = || {
            let live = self.live(Live::new());
            self.screen.watch(pattern.name(), &live);
            live
        };
        let mut report = if self.args.ramp {
            redstart_load::ramp(store, namespace, pattern, settings, watch).await?
        } else if self.args.together {
            let live = self.live(Live::in_stages());
            let _obedience = Obedience::new(&live);
            redstart_load::run_on(store, namespace, pattern, settings, &live).await?
        } else {
            redstart_load::run_on(store, namespace, pattern, settings, &watch()).await?
        };
        self.screen.unwatch();
        if !self.args.histogram {
            report.histogram.clear();
        }
        Ok(report)
    }
}

/// A line that follows the run at a terminal, a row for each pattern, JSON for programs.
struct Screen {
    json: bool,
    together: bool,
    bar: ProgressBar,
    watcher: std::sync::Mutex<Option<tokio::task::AbortHandle>>,
    single: bool,
}

impl Screen {
    fn new(args: &Args, patterns: usize) -> Self {
        let bar = ProgressBar::new(patterns as u64);
        if args.json || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        if let Ok(style) = ProgressStyle::with_template("  {pos}/{len} {wide_msg}") {
            bar.set_style(style);
        }
        if !args.json {
            say!(
                "Load on {}{}\n",
                without_credentials(&args.url),
                args.against.as_ref().map_or(String::new(), |url| format!(
                    " and {}",
                    without_credentials(url)
                ))
            );
            say!("{}", header());
        }
        Self {
            json: args.json,
            together: args.together,
            bar,
            watcher: std::sync::Mutex::new(None),
            single: patterns == 1,
        }
    }

    /// Follows a run until the next one begins.
    fn watch(&self, pattern: &'static str, live: &Arc<Live>) {
        self.unwatch();
        let (bar, live) = (self.bar.clone(), live.clone());
        let task = tokio::spawn(async move {
            let started = Instant::now();
            let mut last = (0, started);
            loop {
                tokio::time::sleep(Duration::from_millis(250)).await;
                let (watched, now) = (Watched::of(&live), Instant::now());
                bar.set_message(line(pattern, started, last, now, &watched));
                last = (watched.operations, now);
            }
        });
        if let Ok(mut watcher) = self.watcher.lock() {
            *watcher = Some(task.abort_handle());
        }
    }

    fn unwatch(&self) {
        if let Ok(mut watcher) = self.watcher.lock()
            && let Some(task) = watcher.take()
        {
            task.abort();
        }
    }

    fn end(&self, report: &Report) {
        self.bar.inc(1);
        if self.together {
            together::tell_report(report);
            return;
        }
        if self.json {
            if let Ok(line) = serde_json::to_string(report) {
                say!("{line}");
            }
            return;
        }
        self.bar.suspend(|| {
            say!("{}", row(report));
            if let Some(against) = &report.against {
                say!("{}", compared(report, against));
            }
            if let Some(naive) = &report.naive {
                let red = anstyle::AnsiColor::Red.on_default();
                say!("  by hand ({}): {red}{}{red:#}", naive.form, naive.harm);
            }
            if let Some(of) = &report.latency_of {
                say!("  latency and rate are those of {of}");
            }
            if report.memory_unwatched {
                say!("  the server does not tell its memory: --max-memory held for the preparation only");
            }
            let red = anstyle::AnsiColor::Red.on_default();
            if let Some(broken) = &report.broken {
                say!("  {red}✗ {}: {broken}{red:#}", report.invariant);
            } else if let Some(why) = &report.unchecked {
                say!("  {red}✗ {}: not checked, {why}{red:#}", report.invariant);
            }
        });
    }

    fn close_without(&self) {
        self.unwatch();
        self.bar.finish_and_clear();
    }

    fn close(&self, reports: &[Report]) {
        self.close_without();
        if self.json {
            return;
        }
        if self.single
            && let [report] = reports
        {
            details(report);
        }
        let held = reports.iter().filter(|report| report.held).count();
        say!("\n{held} of {} invariants held", reports.len());
        if reports.iter().any(|report| report.limited_by == "client")
            && reports
                .iter()
                .any(|report| report.server_us_per_op.is_some())
        {
            say!(
                "where the client was the limit, a server can do more than the figures say: try --processes"
            );
        }
    }
}

/// How a run goes on: what it did since the last look.
fn line(
    pattern: &str,
    started: Instant,
    last: (u64, Instant),
    now: Instant,
    watched: &Watched,
) -> String {
    let done = watched.operations.saturating_sub(last.0) as f64;
    format!(
        "{pattern}  {:.0} s  {}  p50 {}  p99 {}  {} errors",
        (now - started).as_secs_f64(),
        per_second(done / (now - last.1).as_secs_f64().max(1e-9)),
        micros(watched.p50_us),
        micros(watched.p99_us),
        watched.errors,
    )
}

fn header() -> String {
    let bold = anstyle::Style::new().bold();
    format!(
        "{bold}  {:<20} {:>11} {:>9} {:>9} {:>9} {:>9} {:>8}{bold:#}",
        "pattern", "op/s", "p50", "p99", "p99.9", "CPU/op", "errors"
    )
}

fn row(report: &Report) -> String {
    let (mark, colour) = match report.held {
        true => ("✓", anstyle::AnsiColor::Green),
        false => ("✗", anstyle::AnsiColor::Red),
    };
    let paint = colour.on_default();
    let errors: u64 = report.errors.values().sum();
    format!(
        "{paint}{mark}{paint:#} {:<20} {:>11} {:>9} {:>9} {:>9} {:>9} {errors:>8}",
        report.pattern,
        thousands(report.ops_per_second),
        micros(report.p50_us),
        micros(report.p99_us),
        micros(report.p999_us),
        report.server_us_per_op.map_or("–".to_owned(), micros),
    )
}

fn compared(report: &Report, against: &Report) -> String {
    let ratio = match report.latency_of.is_some() || against.latency_of.is_some() {
        true => String::new(),
        false => {
            let ratio = report.ops_per_second / against.ops_per_second.max(1e-9);
            format!("{ratio:.2}×")
        }
    };
    let faint = anstyle::Style::new().dimmed();
    format!(
        "{faint}  {:<20} {:>11} {:>9} {:>9} {:>9} {:>9}  {ratio}{faint:#}",
        format!("on {}", against.server),
        thousands(against.ops_per_second),
        micros(against.p50_us),
        micros(against.p99_us),
        micros(against.p999_us),
        against.server_us_per_op.map_or("–".to_owned(), micros),
    )
}

/// Everything about one pattern.
fn details(report: &Report) {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    let width = table.width().unwrap_or(100);
    table.set_width(width.clamp(40, 120));
    let mut add = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    let held = match (&report.broken, &report.unchecked) {
        (Some(_), _) => "BROKEN",
        (None, Some(_)) => "NOT CHECKED",
        (None, None) => "held",
    };
    add("invariant", format!("{}: {held}", report.invariant));
    if let Some(figure) = &report.figure {
        add("figure", figure.clone());
    }
    add(
        "operations",
        format!("{} in {:.2} s", report.operations, report.seconds),
    );
    if let Some(wanted) = report.keys_wanted {
        let text = match report.keys {
            1 => "all operations go to the same".to_owned(),
            keys => {
                format!("{keys}, not {wanted}: it keeps a model of each and has no more of them")
            }
        };
        add("entities", text);
    }
    if let Some([low, high]) = report.interval {
        let text = format!("{} to {} per second", thousands(low), thousands(high));
        add("95 % interval", text);
    }
    add("slowest", micros(report.max_us));
    if let Some(late) = report.timer_p99_us {
        let text = format!(
            "{} late at the 99th percentile, which is counted",
            micros(late)
        );
        add("own timer", text);
    }
    if let (Some(p50), Some(p99)) = (report.failed_p50_us, report.failed_p99_us) {
        add(
            "failures",
            format!("p50 {}, p99 {}", micros(p50), micros(p99)),
        );
    }
    for (kind, count) in &report.errors {
        add("errors", format!("{count} {kind}"));
    }
    if report.dropped > 0 {
        add(
            "never begun",
            format!(
                "{} operations were due and found no free client",
                report.dropped
            ),
        );
    }
    if let Some(stopped) = &report.stopped {
        add("ended early", stopped.clone());
    }
    add(
        "limited by",
        match &*report.limited_by {
            "cap" => "the highest rate that is allowed (--max-rate)".to_owned(),
            other => other.to_owned(),
        },
    );
    for (name, busy) in [
        ("busiest thread", report.client_busy),
        ("busiest server", report.server_busy),
    ] {
        if let Some(busy) = busy {
            add(name, format!("{:.0} % of a core", busy * 100.0));
        }
    }
    if let Some(trips) = report.round_trips_per_op {
        add("round trips", format!("{trips:.2} per operation"));
    }
    if let Some(bytes) = report.network_bytes_per_op {
        add("network", format!("{bytes:.0} bytes per operation"));
    }
    for cost in &report.commands {
        let text = format!(
            "{:.2} per operation, {:.2} µs each",
            cost.calls_per_op, cost.us_per_call
        );
        add(&format!("  {}", cost.command), text);
    }
    if let Some(bytes) = report.bytes_per_entity {
        add("memory", format!("{bytes:.0} bytes per {}", report.entity));
    }
    if let Some(hottest) = &report.hottest {
        let key = match (&hottest.key, hottest.slot) {
            (Some(key), Some(slot)) => format!("{key} in slot {slot}"),
            _ => format!("entity {}", hottest.entity),
        };
        let share = hottest.share * 100.0;
        add(
            "hottest",
            format!("{key} with {share:.1} % of the operations"),
        );
    }
    if let Some(largest) = &report.largest_key {
        add(
            "largest key",
            format!(
                "{}: {} bytes in slot {}",
                largest.key, largest.bytes, largest.slot
            ),
        );
    }
    for step in &report.ramp {
        let text = format!(
            "{} per second, p99 {}",
            thousands(step.ops_per_second),
            micros(step.p99_us)
        );
        add(&format!("at {:.0}", step.load), text);
    }
    if let Some(knee) = &report.knee {
        add(
            "knee",
            format!("at {:.0}: more load brings little more", knee.load),
        );
    }
    say!("\n{table}");
}

fn micros(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 10_000.0 => format!("{:.0} ms", us / 1e3),
        us if us >= 1000.0 => format!("{:.2} ms", us / 1e3),
        us if us >= 100.0 => format!("{us:.0} µs"),
        us => format!("{us:.1} µs"),
    }
}

fn per_second(rate: f64) -> String {
    format!("{} op/s", thousands(rate))
}

fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
