//! Runs every pattern and checks its promises.
//!
//! A step does more than call a pattern: it sets up the situation that the pattern is made for (two contenders, a
//! thousand callers on a cold key, a worker that dies) and claims what must then be true. A claim that does not
//! hold fails the tour.

use std::{
    future::Future,
    io::IsTerminal as _,
    pin::Pin,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use redstart::Store;

use crate::Failure;

mod caching;
mod coordination;
mod counting;
mod limiting;
mod locking;
mod membership;
mod messaging;
mod ranking;

/// Arguments of `redstart tour`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The store to run on: memory://, redis://host, redis+sentinel://…, redis+cluster://…
    #[arg(
        long,
        default_value = "memory://",
        env = "REDSTART_URL",
        hide_env_values = true
    )]
    url: String,
    /// Only this pattern; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// One JSON object per line, for programs
    #[arg(long)]
    json: bool,
}

/// One stop of the tour.
pub(crate) struct Step {
    pub(crate) pattern: &'static str,
    pub(crate) run: Run,
}

type Run =
    for<'a> fn(&'a mut Stage) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send + 'a>>;

/// Patterns that belong together, in the order in which they are shown.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) steps: &'static [Step],
}

const FAMILIES: &[Family] = &[
    caching::FAMILY,
    limiting::FAMILY,
    locking::FAMILY,
    coordination::FAMILY,
    messaging::FAMILY,
    ranking::FAMILY,
    counting::FAMILY,
    membership::FAMILY,
];

/// The longest that a step may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a step works with, and where it records what it saw.
pub(crate) struct Stage {
    store: Store,
    namespace: String,
    claims: u32,
    operations: u64,
    shown: String,
}

impl Stage {
    /// The store of the tour.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// A namespace of this step's own, removed after the tour.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Checks a claim; `what` names it if it does not hold.
    pub(crate) fn claim(&mut self, holds: bool, what: &str) -> anyhow::Result<()> {
        self.claims += 1;
        anyhow::ensure!(holds, "does not hold: {what}");
        Ok(())
    }

    /// Counts operations of the pattern, for the rate.
    pub(crate) fn did(&mut self, operations: u64) {
        self.operations += operations;
    }

    /// The one line that a person should remember from this step.
    pub(crate) fn show(&mut self, line: impl Into<String>) {
        self.shown = line.into();
    }
}

struct Outcome {
    claims: u32,
    operations: u64,
    took: Duration,
    shown: String,
    failure: Option<String>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let chosen = choose(&args.only)?;
    let store = Store::connect(&args.url)
        .await
        .map_err(|error| match Failure::from(error) {
            Failure::Unavailable(line) => {
                Failure::Unavailable(format!("the tour cannot start: {line}"))
            }
            other => other,
        })?;
    let namespace = format!("tour-{:08x}", rand::random::<u32>());
    let walked = tokio::select! {
        walked = walk(&args, &store, &namespace, &chosen) => walked,
        _ = tokio::signal::ctrl_c() => Err(Failure::Interrupted),
    };
    let swept = sweep(&store, &namespace, walked.is_err()).await;
    walked?;
    swept
}

/// The names of all patterns, in the order of the tour.
#[cfg(test)]
pub(crate) fn patterns() -> impl Iterator<Item = &'static str> {
    FAMILIES
        .iter()
        .flat_map(|family| family.steps)
        .map(|step| step.pattern)
}

/// The chosen steps by family.
fn choose(only: &[String]) -> Result<Vec<(&'static str, Vec<&'static Step>)>, Failure> {
    let all = || FAMILIES.iter().flat_map(|family| family.steps);
    if let Some(unknown) = only
        .iter()
        .find(|name| !all().any(|step| step.pattern == name.as_str()))
    {
        let names: Vec<_> = all().map(|step| step.pattern).collect();
        return Err(Failure::Usage(format!(
            "the tour has no pattern {unknown:?}; it has {}",
            names.join(", ")
        )));
    }
    let wanted = |step: &&Step| only.is_empty() || only.iter().any(|name| name == step.pattern);
    Ok(FAMILIES
        .iter()
        .map(|family| {
            (
                family.name,
                family.steps.iter().filter(wanted).collect::<Vec<_>>(),
            )
        })
        .filter(|(_, steps)| !steps.is_empty())
        .collect())
}

async fn walk(
    args: &Args,
    store: &Store,
    namespace: &str,
    chosen: &[(&'static str, Vec<&'static Step>)],
) -> Result<(), Failure> {
    let mut screen = Screen::new(args.json, chosen.iter().map(|(_, steps)| steps.len()).sum());
    screen.open(&args.url);
    for (family, steps) in chosen {
        screen.family(family);
        for step in steps {
            screen.begin(step.pattern);
            let outcome = take(step, store, namespace).await;
            screen.end(family, step.pattern, &outcome);
        }
    }
    if screen.close() {
        Ok(())
    } else {
        Err(Failure::Claim)
    }
}

async fn take(step: &'static Step, store: &Store, namespace: &str) -> Outcome {
    let mut stage = Stage {
        store: store.clone(),
        namespace: format!("{namespace}-{}", step.pattern),
        claims: 0,
        operations: 0,
        shown: String::new(),
    };
    let started = Instant::now();
    // A task of its own, so that a panic is a failed claim and not the end of the tour.
    let mut task = tokio::task::JoinSet::new();
    task.spawn(async move {
        let result = tokio::time::timeout(PATIENCE, (step.run)(&mut stage)).await;
        (stage, result)
    });
    // Dropped with this future, the set ends the step.
    let Some(ended) = task.join_next().await else {
        unreachable!("one task was spawned")
    };
    let took = started.elapsed();
    let (stage, failure) = match ended {
        Ok((stage, Ok(Ok(())))) if stage.claims == 0 => {
            (Some(stage), Some("the step checked nothing".to_owned()))
        }
        Ok((stage, Ok(Ok(())))) => (Some(stage), None),
        Ok((stage, Ok(Err(error)))) => (Some(stage), Some(error.to_string())),
        Ok((stage, Err(_))) => (
            Some(stage),
            Some(format!("did not end within {PATIENCE:?}")),
        ),
        Err(error) => (None, Some(format!("panicked: {error}"))),
    };
    let (claims, operations, shown) = stage
        .map(|stage| (stage.claims, stage.operations, stage.shown))
        .unwrap_or_default();
    Outcome {
        claims,
        operations,
        took,
        shown,
        failure,
    }
}

/// Removes every key of the tour, after dropped guards have been released.
async fn sweep(store: &Store, namespace: &str, interrupted: bool) -> Result<(), Failure> {
    // Requests of an interrupted step may still be in flight, so the keys must stay away for a while.
    let mut quiet = if interrupted { 3 } else { 1 };
    for _ in 0..20 {
        store.settle().await;
        let keys = store.scan(&format!("*{namespace}*")).await?;
        if keys.is_empty() {
            quiet -= 1;
            if quiet == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
            continue;
        }
        for chunk in keys.chunks(500) {
            let mut pipeline = redis_pipeline(chunk);
            store.pipeline::<()>(pipeline.ignore_errors()).await?;
        }
    }
    Err(Failure::Other(format!(
        "keys of {namespace} could not be removed"
    )))
}

fn redis_pipeline(keys: &[String]) -> redstart::redis::Pipeline {
    let mut pipeline = redstart::redis::pipe();
    for key in keys {
        pipeline.cmd("UNLINK").arg(key).ignore();
    }
    pipeline
}

/// The output: a growing list under family headings and a bar at a terminal, plain lines in a pipe, JSON for
/// programs.
struct Screen {
    json: bool,
    bar: ProgressBar,
    started: Instant,
    held: usize,
    failed: Vec<(&'static str, String)>,
    claims: u32,
    operations: u64,
}

impl Screen {
    fn new(json: bool, steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        if json || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        if let Ok(style) = ProgressStyle::with_template("  {bar:30.green} {pos}/{len}  {msg}") {
            bar.set_style(style);
        }
        Self {
            json,
            bar,
            started: Instant::now(),
            held: 0,
            failed: Vec::new(),
            claims: 0,
            operations: 0,
        }
    }

    fn line(&self, line: String) {
        self.bar.suspend(|| say!("{line}"));
    }

    fn open(&self, url: &str) {
        if !self.json {
            self.line(format!(
                "A tour of Redstart on {}\n",
                without_credentials(url)
            ));
        }
    }

    fn family(&self, name: &str) {
        if !self.json {
            let bold = anstyle::Style::new().bold();
            self.line(format!("{bold}{name}{bold:#}"));
        }
    }

    fn begin(&self, pattern: &str) {
        self.bar.set_message(pattern.to_owned());
    }

    fn end(&mut self, family: &str, pattern: &'static str, outcome: &Outcome) {
        self.bar.inc(1);
        self.claims += outcome.claims;
        self.operations += outcome.operations;
        let seconds = outcome.took.as_secs_f64();
        let rate = outcome.operations as f64 / seconds.max(1e-6);
        if self.json {
            let mut object = serde_json::json!({
                "pattern": pattern,
                "family": family,
                "ok": outcome.failure.is_none(),
                "claims": outcome.claims,
                "ms": (seconds * 1e6).round() / 1e3,
                "ops_per_second": rate.round(),
                "shown": outcome.shown,
            });
            if let (Some(failure), Some(object)) = (&outcome.failure, object.as_object_mut()) {
                object.insert("failure".to_owned(), failure.clone().into());
            }
            say!("{object}");
        } else {
            let (mark, colour, text) = match &outcome.failure {
                None => ("✓", anstyle::AnsiColor::Green, &outcome.shown),
                Some(failure) => ("✗", anstyle::AnsiColor::Red, failure),
            };
            let (paint, faint) = (colour.on_default(), anstyle::Style::new().dimmed());
            let facts = format!("{} claims, {}", outcome.claims, per_second(rate));
            self.line(format!("  {paint}{mark}{paint:#} {pattern:<20} {text}"));
            self.line(format!("    {:<20} {faint}{facts}{faint:#}", ""));
        }
        match &outcome.failure {
            None => self.held += 1,
            Some(failure) => self.failed.push((pattern, failure.clone())),
        }
    }

    /// Prints the summary; true if everything held.
    fn close(self) -> bool {
        self.bar.finish_and_clear();
        let all = self.held + self.failed.len();
        let held = self.failed.is_empty() && all > 0;
        if !self.json {
            let seconds = self.started.elapsed().as_secs_f64();
            say!(
                "\n{} of {all} patterns held: {} claims checked with {} operations in {seconds:.1} s",
                self.held,
                self.claims,
                self.operations,
            );
            for (pattern, failure) in &self.failed {
                let red = anstyle::AnsiColor::Red.on_default();
                say!("{red}✗{red:#} {pattern}: {failure}");
            }
            if held {
                say!(
                    "\nNext: `redstart guide` finds the pattern for your need, `examples/` has a small \
                     program for each use case, and `--url redis://…` runs this tour on your server."
                );
            }
        }
        held
    }
}

/// The URL without what precedes an `@`.
fn without_credentials(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
        _ => url.to_owned(),
    }
}

fn per_second(rate: f64) -> String {
    match rate {
        r if r >= 1e6 => format!("{:.1} M op/s", r / 1e6),
        r if r >= 1e3 => format!("{:.1} k op/s", r / 1e3),
        r => format!("{r:.0} op/s"),
    }
}
