//! What people and programs see of a run, as it goes and at its end.

use std::{
    io::IsTerminal as _,
    sync::Arc,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use redstart_load::{Live, Report, without_credentials};

use super::{
    Args,
    details::details,
    figure::{micros, per_second, thousands},
    together::{self, Watched},
};

/// A line that follows the run at a terminal, a row for each pattern, JSON for programs.
pub(super) struct Screen {
    json: bool,
    together: bool,
    pub(super) bar: ProgressBar,
    watcher: std::sync::Mutex<Option<tokio::task::AbortHandle>>,
    single: bool,
}

impl Screen {
    pub(super) fn new(args: &Args, patterns: usize) -> Self {
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
    pub(super) fn watch(&self, pattern: &'static str, live: &Arc<Live>) {
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

    pub(super) fn unwatch(&self) {
        if let Ok(mut watcher) = self.watcher.lock()
            && let Some(task) = watcher.take()
        {
            task.abort();
        }
    }

    pub(super) fn end(&self, report: &Report) {
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

    pub(super) fn close_without(&self) {
        self.unwatch();
        self.bar.finish_and_clear();
    }

    pub(super) fn close(&self, reports: &[Report]) {
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
pub(super) fn line(
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
