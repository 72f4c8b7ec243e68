//! A verdict against an earlier run: relative, with an interval, so that a noisy machine does not fail a build.

use std::{fmt, path::Path};

use crate::{
    Report,
    error::{Error, Result},
};

/// How a pattern compares with an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Faster than before by more than the tolerance, and the intervals do not overlap.
    Faster,
    /// No difference that means something.
    Same,
    /// Slower than before by more than the tolerance, and the intervals do not overlap; or a larger share fails.
    Slower,
    /// The earlier run did not have it, or under another load.
    New,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Faster => "faster",
            Self::Same => "same",
            Self::Slower => "slower",
            Self::New => "new",
        })
    }
}

/// One pattern, now and then.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Comparison {
    /// The pattern.
    pub pattern: String,
    /// What follows.
    pub verdict: Verdict,
    /// The rate now, divided by the rate then; for an open loop the p99 then, divided by the p99 now. Above 1 is better.
    pub ratio: f64,
}

/// Earlier reports, one JSON object per line, as `redstart bench --json` writes them.
#[derive(Clone, Debug)]
pub struct Baseline(Vec<Report>);

impl Baseline {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or a line of it is not a report.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File {
            path: path.display().to_string(),
            source,
        })?;
        let report = |(number, line): (usize, &str)| {
            serde_json::from_str(line).map_err(|error| {
                Error::config(format!("{} line {}: {error}", path.display(), number + 1))
            })
        };
        let lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty());
        lines.map(report).collect::<Result<_>>().map(Self)
    }

    /// Compares a report with the earlier one of the same pattern under the same load. `tolerance` is the share by
    /// which it may be slower, such as 0.1.
    pub fn compare(&self, report: &Report, tolerance: f64) -> Comparison {
        let Some(old) = self.0.iter().find(|old| same_load(old, report)) else {
            return Comparison {
                pattern: report.pattern.clone(),
                verdict: Verdict::New,
                ratio: 1.0,
            };
        };
        let open = report.pace == "open";
        let ratio = match open {
            true => old.p99_us / report.p99_us.max(1e-9),
            false => report.ops_per_second / old.ops_per_second.max(1e-9),
        };
        // The rate of an open loop is given, so its slices say nothing; its p99 must differ by more.
        let (apart, tolerance) = match (open, report.interval, old.interval) {
            (false, Some([low, high]), Some([old_low, old_high])) => {
                (high < old_low || low > old_high, tolerance)
            }
            _ => (true, tolerance * 2.0),
        };
        // Fewer operations that succeed are not made up for by faster ones.
        let fails_more = share_of_errors(report) > share_of_errors(old) + 0.001;
        let verdict = match apart {
            _ if fails_more => Verdict::Slower,
            true if ratio < 1.0 - tolerance => Verdict::Slower,
            true if ratio > 1.0 + tolerance => Verdict::Faster,
            _ => Verdict::Same,
        };
        Comparison {
            pattern: report.pattern.clone(),
            verdict,
            ratio,
        }
    }
}

/// Whether two runs of a pattern can be compared: by the same load, by programs that were built alike, on the same kind of server
/// with as many masters. Its version may differ, since an upgrade is a reason to compare. What an old report does not say is taken
/// to be the same.
fn same_load(a: &Report, b: &Report) -> bool {
    let text = |report: &Report| {
        let kind = report.server.split(' ').next().unwrap_or_default();
        let Report {
            pattern,
            pace,
            spread,
            ..
        } = report;
        format!("{pattern} {pace} {spread} {kind}")
    };
    let counts = |report: &Report| {
        let keys = report.keys_wanted.unwrap_or(report.keys);
        (
            report.clients,
            keys,
            report.payload,
            report.processes.max(1),
        )
    };
    // Sums of the shares of several processes.
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
    let rates = |of: fn(&Report) -> Option<f64>| match (of(a), of(b)) {
        (Some(a), Some(b)) => near(a, b),
        (None, None) => true,
        _ => false,
    };
    let built_alike = a.build == b.build || a.build.is_empty() || b.build.is_empty();
    let as_many = a.masters == b.masters || a.masters == 0 || b.masters == 0;
    built_alike
        && as_many
        && text(a) == text(b)
        && counts(a) == counts(b)
        && near(a.writes, b.writes)
        && rates(|report| report.rate)
        && rates(|report| report.max_rate)
}

/// The share of operations that failed.
fn share_of_errors(report: &Report) -> f64 {
    let failed: u64 = report.errors.values().sum();
    failed as f64 / report.operations.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rate: f64, low: f64, high: f64) -> Report {
        Report {
            pattern: "mutex".to_owned(),
            pace: "closed".to_owned(),
            ops_per_second: rate,
            interval: Some([low, high]),
            ..Report::default()
        }
    }

    #[test]
    fn only_a_difference_beyond_tolerance_and_noise_is_a_verdict() {
        let baseline = Baseline(vec![report(1000.0, 950.0, 1050.0)]);
        let verdict = |rate, low, high| baseline.compare(&report(rate, low, high), 0.1).verdict;
        assert_eq!(verdict(1000.0, 950.0, 1050.0), Verdict::Same);
        assert_eq!(verdict(940.0, 930.0, 945.0), Verdict::Same);
        assert_eq!(verdict(800.0, 600.0, 1000.0), Verdict::Same);
        assert_eq!(verdict(800.0, 750.0, 850.0), Verdict::Slower);
        assert_eq!(verdict(1300.0, 1200.0, 1400.0), Verdict::Faster);
        let other = Report {
            clients: 7,
            ..report(1.0, 1.0, 1.0)
        };
        assert_eq!(baseline.compare(&other, 0.1).verdict, Verdict::New);
    }

    #[test]
    fn only_the_same_load_is_compared() {
        let open = |rate: f64| Report {
            pace: "open".to_owned(),
            rate: Some(rate),
            writes: 0.5,
            server: "redis 7.0.15".to_owned(),
            processes: 2,
            masters: 1,
            build: "optimised".to_owned(),
            p99_us: 100.0,
            ..report(rate, rate, rate)
        };
        let baseline = Baseline(vec![open(1000.0)]);
        let verdict = |report: &Report| baseline.compare(report, 0.1).verdict;
        let slow = Report {
            p99_us: 1e6,
            ..open(1000.0)
        };
        assert_eq!(verdict(&slow), Verdict::Slower);
        // Three processes of a third each do not add up to the last bit.
        let sum = Report {
            server: "redis 7.2.0".to_owned(),
            ..open(1000.0 / 3.0 + 1000.0 / 3.0 + 1000.0 / 3.0)
        };
        assert_eq!(verdict(&sum), Verdict::Same);
        // Neither field was written always.
        let old = Report {
            build: String::new(),
            masters: 0,
            ..slow.clone()
        };
        assert_eq!(verdict(&old), Verdict::Slower);
        let others: [fn(&mut Report); 7] = [
            |report| report.build = "without optimisation".to_owned(),
            |report| report.masters = 3,
            |report| report.rate = Some(2000.0),
            |report| report.max_rate = Some(10_000.0),
            |report| report.writes = 0.1,
            |report| report.server = "valkey 9.1.2".to_owned(),
            |report| report.processes = 1,
        ];
        for (index, change) in others.iter().enumerate() {
            let mut other = slow.clone();
            change(&mut other);
            assert_eq!(verdict(&other), Verdict::New, "{index}");
        }
    }

    #[test]
    fn a_store_that_refuses_quickly_is_not_faster() {
        let baseline = Baseline(vec![report(1000.0, 950.0, 1050.0)]);
        let refuses = Report {
            operations: 1000,
            errors: [("server OOM".to_owned(), 5)].into(),
            ..report(2000.0, 1900.0, 2100.0)
        };
        assert_eq!(baseline.compare(&refuses, 0.1).verdict, Verdict::Slower);
    }

    #[test]
    fn a_report_is_read_as_it_is_written() {
        let folder = std::env::temp_dir().join(format!("baseline-{}", std::process::id()));
        let line = serde_json::to_string(&report(5.0, 4.0, 6.0)).unwrap();
        std::fs::write(&folder, format!("{line}\n{line}\n")).unwrap();
        let read = Baseline::read(&folder);
        std::fs::write(&folder, "{\n").unwrap();
        let broken = Baseline::read(&folder);
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(read.unwrap().0.len(), 2);
        assert!(broken.is_err_and(|error| error.to_string().contains("line 1")));
    }
}
