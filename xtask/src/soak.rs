//! The fault and race campaigns: the same tests as in `test`, with larger counts.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use crate::report::{Outcome, Report};
use crate::step::seconds;
use crate::{servers, suite};

mod built;
mod campaign;

use built::Built;
use campaign::{CAMPAIGNS, Campaign};

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
        list();
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
    let built = Built::new(options.release, &chosen)?;

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
            let outcome = one(campaign, options, &built, &bar, start, time)?;
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

fn list() {
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

/// How many lines of a failure are kept.
const REASON_LINES: usize = 8;

/// What the tests have printed.
#[derive(Default)]
struct Heard {
    result: String,
    figures: Vec<String>,
    tests: Vec<(String, bool)>,
    /// Tests that fail early say why long before the last lines.
    reasons: Vec<String>,
    /// How many of the next lines belong to the reason.
    follow: usize,
    last: VecDeque<String>,
}

impl Heard {
    fn line(&mut self, line: String) {
        if line.starts_with("test result:") {
            self.result.clone_from(&line);
        }
        if let Some((_, figure)) = line.split_once("figure: ") {
            self.figures.push(figure.to_owned());
        }
        if let Some(test) = ended(&line) {
            self.tests.push(test);
        }
        if line.contains(" panicked at ") || line.starts_with("Error: ") {
            self.follow = REASON_LINES;
        }
        if self.follow > 0 && self.reasons.len() < 20 * REASON_LINES {
            self.reasons.push(line.clone());
            self.follow -= 1;
        }
        self.last.push_back(line);
        if self.last.len() > 60 {
            self.last.pop_front();
        }
    }
}

/// Runs a campaign once, shows its last line as it goes, and prints the outcome.
fn one(
    campaign: &Campaign,
    options: &Options,
    built: &Built,
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
    let mut child = built
        .command(campaign)?
        .args(["--nocapture", "--include-ignored", "--test-threads=2"])
        .args(campaign.filter.split_whitespace())
        .env("REDSTART_SCALE", scale.to_string())
        // A hang still fails, but a campaign may take its time.
        .env("REDSTART_SCALE_TEST_SECONDS", "3600")
        // Backtraces would push the reason of a failure out of the lines that are kept.
        .env("RUST_BACKTRACE", "0")
        .envs(counts.iter().map(|(name, count)| {
            let name = format!("REDSTART_SCALE_{name}");
            (name, count.to_string())
        }))
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .context("could not run the tests")?;
    let mut heard = Heard::default();
    for line in BufReader::new(reader).lines() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        bar.set_message(line.clone());
        if time.is_some() {
            bar.set_position(start.elapsed().as_secs());
        }
        heard.line(line);
    }
    let fault = match child.wait()?.success() {
        false => Some("its tests failed".to_owned()),
        true => unheard(campaign.filter, &heard.tests),
    };
    let passed = fault.is_none();
    let (name, took) = (campaign.name, seconds(began.elapsed()));
    let outcome = if passed { "ok" } else { "FAILED" };
    // Not `bar.println`, which is silent where there is no terminal.
    bar.suspend(|| {
        if !passed {
            let lines = heard.last.iter().chain(&heard.reasons);
            lines.for_each(|line| println!("        {line}"));
        }
        if let Some(fault) = &fault {
            println!("        {name}: {fault}");
        }
        heard
            .figures
            .iter()
            .for_each(|figure| println!("        {figure}"));
        let result = &heard.result;
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
        figures: heard.figures,
        tests: heard.tests,
    })
}

/// Why a run without a failed test proves nothing: no test ran, or a word of the filter is in no name, as after a test was
/// renamed. The test runner calls both a success.
fn unheard(filter: &str, tests: &[(String, bool)]) -> Option<String> {
    if tests.is_empty() {
        return Some(format!(
            "no test has ended whose name contains one of {filter:?}"
        ));
    }
    let is_dead = |word: &&str| !tests.iter().any(|(name, _)| name.contains(word));
    let dead: Vec<&str> = filter.split_whitespace().filter(is_dead).collect();
    match dead.is_empty() {
        true => None,
        false => Some(format!(
            "no test has ended whose name contains {}",
            dead.join(" or ")
        )),
    }
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
    fn a_campaign_in_which_a_word_finds_no_test_fails() {
        let tests = [
            ("nonce::fault_a::redis".to_owned(), true),
            ("nonce::b::redis".to_owned(), true),
        ];
        assert_eq!(unheard("", &tests), None);
        assert_eq!(unheard("nonce::fault_ ::b", &tests), None);
        assert!(unheard("no_such_test", &[]).is_some());
        assert!(unheard("", &[]).is_some());
        let fault = unheard("nonce::fault_ renamed ::b", &tests);
        assert!(fault.is_some_and(|fault| fault.contains("renamed")));
    }

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
