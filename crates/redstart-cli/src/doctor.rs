//! `redstart doctor`: finds the faults of programs that use Redis or Valkey.

mod rules;
mod terminal;

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use redstart_doctor::{
    Baseline, Comparison, Doctor, Error, Progress, Report, Severity, Suppressions,
};

use crate::Failure;
use rules::{explain, list};
use terminal::terminal;

/// Arguments of `redstart doctor`.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Stages:\n  \
      free      INFO, CONFIG, SLOWLOG, LATENCY, CLIENT LIST, XINFO; always runs\n  \
      sampled   --sample: names by SCAN in small steps, some keys of each pattern looked at twice\n  \
      observed  --observe 10s: MONITOR for that long; proves races between clients\n  \
      --all runs the three of them. Nothing is ever written.\n\n\
      Examples:\n  \
      redstart doctor --url redis://localhost --all\n  \
      redstart doctor --url redis+cluster://node1,node2 --sample --html report.html\n  \
      redstart doctor --url redis://localhost --all --json --fail-on high\n  \
      redstart doctor --rdb dump.rdb\n  \
      redstart doctor monitor.log\n  \
      redstart doctor commands.jsonl\n\n\
      A log in JSON has a line like {\"time\":1767268800.25,\"client\":\"api-1\",\"command\":[\"GET\",\"k\"]} for each command.\n\n\
      Exit status: 0 nothing at --fail-on or above, 1 a finding at it, 2 wrong arguments, 3 server unavailable,\n\
      5 nothing at --fail-on, but not all that was asked for was seen: a server or a stage is missing."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Sub>,
    /// What to examine: a URL (redis://, rediss://, redis+sentinel://, redis+cluster://, redis+unix://, memory://), host:port, an
    /// RDB file, an append-only file or its folder, or a log of commands: of MONITOR, or in JSON
    #[arg(value_name = "TARGET", conflicts_with = "url")]
    target: Option<String>,
    /// The same, as an option
    #[arg(long, env = "REDSTART_URL", hide_env_values = true)]
    url: Option<String>,
    /// An RDB file to examine, as it was when it was written. What needs a live server is left out, and the report says so
    #[arg(long, value_name = "FILE", conflicts_with = "target")]
    rdb: Option<PathBuf>,
    /// Run all stages: free, sampled and observed
    #[arg(long)]
    all: bool,
    /// Look at a sample of the keys, twice; the most names to walk [default: 1000000]
    #[arg(long, visible_alias = "sampled", value_name = "NAMES", num_args = 0..=1, require_equals = true)]
    sample: Option<Option<u64>>,
    /// Observe live traffic by MONITOR for this long [default: 10s]
    #[arg(long, visible_alias = "monitor", value_name = "TIME", num_args = 0..=1, value_parser = time)]
    observe: Option<Option<Duration>>,
    /// The stages to run, as a list: free,sampled,observed
    #[arg(long, value_delimiter = ',', value_enum)]
    stages: Vec<StageArg>,
    /// The time between the two looks at the sample
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "2s")]
    gap: Duration,
    /// How long the walk over the names may take, and as long again each of the look at keys, at streams and the second look
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60s")]
    walk: Duration,
    /// The share of a server's time that the examination may take, in percent: with more the walk is faster, and clients wait more often
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100), default_value_t = 1)]
    share: u8,
    /// How long one command may take before its connection is given up
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "3s")]
    patience: Duration,
    /// One JSON object per line, for programs
    #[arg(long, group = "form")]
    json: bool,
    /// SARIF 2.1.0, for code scanning
    #[arg(long, group = "form")]
    sarif: bool,
    /// Markdown, for a pull request or a wiki
    #[arg(long, visible_alias = "md", group = "form")]
    markdown: bool,
    /// Write a report with charts to this file too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show only findings of at least this confidence; --fail-on and --baseline count all of them
    #[arg(long, value_name = "0-1", default_value_t = 0.0)]
    min_confidence: f64,
    /// Exit with 1 if a finding of confidence 0.7 and more is at least this severe, and with 5 if there is none but not all that
    /// was asked for was seen
    #[arg(long, value_enum, value_name = "SEVERITY")]
    fail_on: Option<SeverityArg>,
    /// A file of accepted findings, each with a reason and an end
    #[arg(long, value_name = "FILE")]
    suppressions: Option<PathBuf>,
    /// Show only what is new since this earlier output of --json
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Look again and again, this far apart, and show what changed [default: 60s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, value_parser = time)]
    watch: Option<Option<Duration>>,
    /// Hide the names of keys, streams and channels
    #[arg(long)]
    redact: bool,
    /// No progress bar
    #[arg(long, short)]
    quiet: bool,
}

#[derive(clap::Subcommand)]
enum Sub {
    /// List the rules
    Rules {
        /// One JSON object per line, for programs
        #[arg(long)]
        json: bool,
    },
    /// Teach a rule: what it finds, how the damage happens, and the way out
    Explain {
        /// The rule's id
        rule: String,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum StageArg {
    /// What the server keeps anyway
    Free,
    /// Keys, looked at twice
    #[value(alias = "sample")]
    Sampled,
    /// Live traffic
    #[value(alias = "monitor", alias = "observe")]
    Observed,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum SeverityArg {
    Low,
    Medium,
    High,
}

impl From<SeverityArg> for Severity {
    fn from(arg: SeverityArg) -> Self {
        match arg {
            SeverityArg::Low => Self::Low,
            SeverityArg::Medium => Self::Medium,
            SeverityArg::High => Self::High,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Usage(line) => Self::Usage(line),
            Error::Unavailable(line) => Self::Unavailable(line),
            error => Self::Other(error.to_string()),
        }
    }
}

/// `10s`, `500ms`, `2m`; a bare number is seconds.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let number: f64 = number
        .trim()
        .parse()
        .map_err(|_| "write a time such as 10s, 500ms or 2m".to_owned())?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "s" | "sec" | "seconds" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err("write a time such as 10s, 500ms or 2m".to_owned()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| "the time must be positive".to_owned())
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match &args.command {
        Some(Sub::Rules { json }) => {
            list(*json);
            return Ok(());
        }
        Some(Sub::Explain { rule }) => return explain(rule),
        None => {}
    }
    let rdb = args.rdb.as_deref().map(snapshot).transpose()?;
    let url = rdb
        .as_deref()
        .or(args.target.as_deref())
        .or(args.url.as_deref())
        .ok_or_else(|| {
            Failure::Usage(
                "name what to examine: redstart doctor --url redis://localhost".to_owned(),
            )
        })?;
    let doctor = doctor(url, &args)?;
    let suppressions = match &args.suppressions {
        Some(path) => Suppressions::parse(&read(path)?)?,
        None => Suppressions::default(),
    };
    let mut baseline = match &args.baseline {
        Some(path) => Some(Baseline::parse(&read(path)?)?),
        None => None,
    };
    let mut failed = false;
    // One listener for all of it: a signal between two looks is not missed.
    let mut interrupts = interrupts()?;
    loop {
        let (mut report, stopped) = match examine(&doctor, &args, &mut interrupts).await {
            Ok(seen) => seen,
            // A server that is away for a while is what one watches for.
            Err(Failure::Unavailable(line)) if args.watch.is_some() => {
                anstream::eprintln!("redstart doctor: {line}; looking again");
                match pause(&args, &mut interrupts).await {
                    true => continue,
                    false if failed => return Err(Failure::Claim),
                    false => return Ok(()),
                }
            }
            Err(failure) => return Err(failure),
        };
        suppressions.apply(&mut report, jiff::Zoned::now().date());
        // Before the comparison: the baseline may have been written without names.
        if args.redact {
            report.redact();
        }
        let known = report.json();
        let mut comparison = baseline
            .as_ref()
            .map(|baseline| baseline.compare(&mut report));
        failed |= args
            .fail_on
            .is_some_and(|severity| report.fails(severity.into()));
        // After all decisions: what is not shown is still there.
        report
            .findings
            .retain(|finding| finding.confidence >= args.min_confidence);
        if let Some(comparison) = &mut comparison {
            comparison.new = report.findings.len();
        }
        print(&report, comparison.as_ref(), &args)?;
        if args.watch.is_none() || stopped {
            return verdict(&args, &report, failed, stopped);
        }
        // What a part of the servers shows would make the rest look new in the next round.
        if !report.partial || baseline.is_none() {
            baseline = Some(Baseline::parse(&known)?);
        }
        if !pause(&args, &mut interrupts).await {
            return if failed { Err(Failure::Claim) } else { Ok(()) };
        }
    }
}

/// How the program ends after the last look.
fn verdict(args: &Args, report: &Report, failed: bool, stopped: bool) -> Result<(), Failure> {
    match (failed, stopped) {
        (true, _) => Err(Failure::Claim),
        (false, true) => Err(Failure::Interrupted),
        (false, false) if args.fail_on.is_some() && !report.is_complete() => {
            Err(Failure::Incomplete(
                "not all that was asked for was seen, so nothing is ruled out".to_owned(),
            ))
        }
        (false, false) => Ok(()),
    }
}

#[cfg(unix)]
type Interrupts = tokio::signal::unix::Signal;
#[cfg(windows)]
type Interrupts = tokio::signal::windows::CtrlC;

/// Every Ctrl-C from now on.
fn interrupts() -> std::io::Result<Interrupts> {
    #[cfg(unix)]
    return tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt());
    #[cfg(windows)]
    return tokio::signal::windows::ctrl_c();
}

/// Waits for the next look; `false` if Ctrl-C ended the wait.
async fn pause(args: &Args, interrupts: &mut Interrupts) -> bool {
    let time = args.watch.flatten().unwrap_or(Duration::from_secs(60));
    tokio::select! {
        biased;
        _ = interrupts.recv() => false,
        () = tokio::time::sleep(time) => true,
    }
}

/// The path of an RDB file; another file would be examined as what it is.
fn snapshot(path: &Path) -> Result<String, Failure> {
    let unusable = |why: &str| Failure::Usage(format!("{} {why}", path.display()));
    let mut first = [0; 6];
    let read = std::fs::File::open(path)
        .and_then(|mut file| std::io::Read::read(&mut file, &mut first))
        .map_err(|error| unusable(&format!("cannot be read: {error}")))?;
    let first = &first[..read];
    if !first.starts_with(b"REDIS") && !first.starts_with(b"VALKEY") {
        return Err(unusable("is no RDB file"));
    }
    let path = std::path::absolute(path)?;
    let path = path.to_str().map(str::to_owned);
    path.ok_or_else(|| unusable("has a path that is not UTF-8"))
}

fn doctor(url: &str, args: &Args) -> Result<Doctor, Failure> {
    let mut builder = Doctor::builder(url)
        .gap(args.gap)
        .walk(args.walk)
        .share(args.share)
        .patience(args.patience);
    if args.all || args.sample.is_some() || args.stages.contains(&StageArg::Sampled) {
        builder = builder.sampled();
    }
    if let Some(Some(names)) = args.sample {
        builder = builder.names(names);
    }
    if args.all || args.observe.is_some() || args.stages.contains(&StageArg::Observed) {
        builder = builder.observed(args.observe.flatten().unwrap_or(Duration::from_secs(10)));
    }
    Ok(builder.build()?)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("{} cannot be read: {error}", path.display())))
}

/// Runs an examination with a progress bar. Ctrl-C ends it with what is known; a second one ends the program at once.
async fn examine(
    doctor: &Doctor,
    args: &Args,
    interrupts: &mut Interrupts,
) -> Result<(Report, bool), Failure> {
    let bar = match args.quiet || !std::io::stderr().is_terminal() {
        true => ProgressBar::hidden(),
        false => ProgressBar::new(0),
    };
    if let Ok(style) = ProgressStyle::with_template("{msg:<28} {wide_bar} {percent:>3} %") {
        bar.set_style(style);
    }
    let progress = Progress::new({
        let bar = bar.clone();
        move |step| {
            bar.set_message(step.what);
            bar.set_length(step.of.max(1));
            bar.set_position(step.done.min(step.of.max(1)));
        }
    });
    let work = doctor.examine(&progress);
    tokio::pin!(work);
    let mut stopped = false;
    let report = loop {
        tokio::select! {
            // Signals are listened to before anything is asked.
            biased;
            _ = interrupts.recv() => {
                if stopped {
                    bar.finish_and_clear();
                    std::process::exit(130);
                }
                stopped = true;
                progress.stop();
            }
            report = &mut work => break report,
        }
    };
    bar.finish_and_clear();
    match report {
        Err(_) if stopped => Err(Failure::Interrupted),
        report => Ok((report?, stopped)),
    }
}

fn print(report: &Report, comparison: Option<&Comparison>, args: &Args) -> Result<(), Failure> {
    if let Some(path) = &args.html {
        std::fs::write(path, report.html()).map_err(|error| {
            Failure::Other(format!("{} cannot be written: {error}", path.display()))
        })?;
    }
    if args.json {
        say!("{}", report.json().trim_end());
    } else if args.sarif {
        say!("{}", report.sarif());
    } else if args.markdown {
        say!("{}", report.markdown());
    } else {
        terminal(report, comparison, args.html.as_deref());
    }
    if args.json || args.sarif || args.markdown {
        // A program reads the findings; a person wants to know what was not looked at.
        for stage in report.stages.iter().filter(|stage| !stage.ran) {
            anstream::eprintln!(
                "redstart doctor: stage {} {}",
                stage.stage.name(),
                stage.note
            );
        }
        for stage in &report.stages {
            if let Some(cost) = stage.cost() {
                anstream::eprintln!("redstart doctor: stage {}: {cost}", stage.stage.name());
            }
        }
        for blind in &report.blinds {
            anstream::eprintln!("redstart doctor: not seen: {}: {}", blind.what, blind.why);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(time("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(time("10"), Ok(Duration::from_secs(10)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        assert!(time("soon").is_err());
        assert!(time("-1s").is_err());
    }
}
