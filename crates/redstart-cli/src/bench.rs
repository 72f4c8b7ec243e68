//! `redstart bench`: patterns under load, and whether their promises held.

mod args;
mod details;
mod figure;
mod screen;
mod signals;
mod together;

pub(crate) use args::Args;

use std::{
    io::{IsTerminal as _, Write as _},
    sync::Arc,
    time::Instant,
};

use redstart::Store;
use redstart_load::{
    Baseline, Live, Pattern, Report, Settings, Verdict, elsewhere, without_credentials,
};

use crate::Failure;
use screen::{Screen, line};
use signals::{INTERRUPTED, Signals};
use together::{Obedience, Watched, together};

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
