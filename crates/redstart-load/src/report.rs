//! What a run found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a run of one pattern found. As JSON it is one object; the first ten fields are always there and keep their
/// meaning.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// The pattern.
    pub pattern: String,
    /// Operations that ended, failed ones included.
    pub operations: u64,
    /// Operations per second that succeeded.
    pub ops_per_second: f64,
    /// The median latency in microseconds of those that succeeded, as all latencies here.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p999_us: f64,
    /// CPU time of the servers per operation in microseconds. On the embedded engine it is the CPU time of this
    /// process, which is client and server at once. `null` if the server does not tell.
    pub server_us_per_op: Option<f64>,
    /// Bytes on the server per entity of the pattern; `null` if it has no entities.
    pub bytes_per_entity: Option<f64>,
    /// What must hold.
    pub invariant: String,
    /// Whether it held, and could be checked.
    pub held: bool,

    /// Why the promise could not be checked, or not in full. It did not hold then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchecked: Option<String>,
    /// The first thing that was broken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// How often something was broken.
    #[serde(default)]
    pub violations: u64,
    /// A figure of the pattern's own, such as loads of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<String>,
    /// The longest latency.
    #[serde(default)]
    pub max_us: f64,
    /// How long the run took.
    #[serde(default)]
    pub seconds: f64,
    /// The 95 % interval of the rate, from slices of the run.
    #[serde(default)]
    pub interval: Option<[f64; 2]>,
    /// Failed operations by kind.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
    /// The median latency in microseconds of operations that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_p50_us: Option<f64>,
    /// The 99th percentile of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_p99_us: Option<f64>,
    /// By how much the timer of this process was late, in microseconds, at the 99th percentile of the operations of an
    /// open loop that waited for their time. It is part of their latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer_p99_us: Option<f64>,
    /// What the latency and the rate are of, if not of the server alone. Such figures do not compare servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_of: Option<String>,
    /// Operations of an open loop that were due and never began.
    #[serde(default)]
    pub dropped: u64,
    /// Why the run ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Whether the server did not tell its memory, so that the cap on it held for the preparation of the run only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_unwatched: bool,
    /// `closed` or `open`.
    #[serde(default)]
    pub pace: String,
    /// Operations at a time, at most.
    #[serde(default)]
    pub clients: usize,
    /// The wanted rate of an open loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// The most operations per second that the settings allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<f64>,
    /// Entities that operations chose from; 1 if all go to the same.
    #[serde(default)]
    pub keys: u64,
    /// How many were asked for, if that is another number: a pattern that keeps a model of each entity has a highest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_wanted: Option<u64>,
    /// How they were chosen.
    #[serde(default)]
    pub spread: String,
    /// Bytes of a value.
    #[serde(default)]
    pub payload: usize,
    /// The share of writes.
    #[serde(default)]
    pub writes: f64,
    /// Round trips per operation, measured with one client before the load, on a few keys that were used before; `null`
    /// where there is no network.
    #[serde(default)]
    pub round_trips_per_op: Option<f64>,
    /// Bytes on the network per operation, both directions together, as the server counts them.
    #[serde(default)]
    pub network_bytes_per_op: Option<f64>,
    /// Messages that were published per operation; each goes to every process that listens. `null` if the server does not
    /// tell.
    #[serde(default)]
    pub messages_per_op: Option<f64>,
    /// CPU time of this process per operation in microseconds.
    #[serde(default)]
    pub client_us_per_op: Option<f64>,
    /// What the server spent on each command, most expensive first. Commands that a script calls are listed beside it.
    #[serde(default)]
    pub commands: Vec<CommandCost>,
    /// What one entity is.
    #[serde(default)]
    pub entity: String,
    /// How many entities there were at the end.
    #[serde(default)]
    pub entities: u64,
    /// Keys of the run at its end.
    #[serde(default)]
    pub keys_used: u64,
    /// What most operations went to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hottest: Option<Hottest>,
    /// The largest key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_key: Option<LargestKey>,
    /// Cluster slots that had keys.
    #[serde(default)]
    pub slots_used: u64,
    /// The share of the time in which the busiest thread of this process ran or waited for a core; of several processes,
    /// that of the busiest. `null` if the system does not tell.
    #[serde(default)]
    pub client_busy: Option<f64>,
    /// The CPU time of the busiest server as a share of one core, with which it carries out commands. `null` if it does not
    /// tell.
    #[serde(default)]
    pub server_busy: Option<f64>,
    /// What limits the rate: `client`, `server`, `rate`, `cap` (the highest rate of the settings) or `latency`.
    #[serde(default)]
    pub limited_by: String,
    /// The server and its version.
    #[serde(default)]
    pub server: String,
    /// How many servers carried the load: the masters of a Cluster, or one.
    #[serde(default)]
    pub masters: usize,
    /// The day of the run.
    #[serde(default)]
    pub measured: String,
    /// How this program was built: `optimised`, or `without optimisation`.
    #[serde(default)]
    pub build: String,
    /// Processes that applied the load.
    #[serde(default)]
    pub processes: usize,
    /// Latencies in microseconds at growing quantiles, for charts.
    #[serde(default)]
    pub quantiles: Vec<(f64, f64)>,
    /// Operations per second in each slice of the run, for charts.
    #[serde(default)]
    pub slices: Vec<f64>,
    /// Latencies in nanoseconds and how many operations had them, if wanted: for merging the reports of processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histogram: Vec<(u64, u64)>,
    /// The same on another store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<Box<Report>>,
    /// The form that people write by hand, under the same load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub naive: Option<NaiveReport>,
    /// The steps of a ramp.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ramp: Vec<RampStep>,
    /// The step of the ramp beyond which more load brings little more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knee: Option<RampStep>,
}

/// What the server spent on one command.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CommandCost {
    /// Its name, in lower case.
    pub command: String,
    /// Calls per operation of the pattern.
    pub calls_per_op: f64,
    /// Microseconds per call.
    pub us_per_call: f64,
}

/// What most operations went to: an entity, or the one key of a pattern whose operations all go to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Hottest {
    /// Its number; 0 if all operations go to the same.
    pub entity: u64,
    /// Its share of the operations.
    pub share: f64,
    /// Its key without the namespace of the run; only the tag of its slot if it has no key at the end, as a queue that was
    /// drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The slot of that key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u16>,
}

/// The largest key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LargestKey {
    /// Its name without the namespace of the run.
    pub key: String,
    /// Its size.
    pub bytes: u64,
    /// Its slot.
    pub slot: u16,
}

/// The wrong form of a pattern beside ours.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NaiveReport {
    /// What it does.
    pub form: String,
    /// What goes wrong, counted.
    pub harm: String,
    /// How often it went wrong.
    pub wrong: u64,
    /// How often the same went wrong in our form.
    pub ours_wrong: u64,
    /// What the two numbers count.
    pub counted: String,
    /// Its operations per second.
    pub ops_per_second: f64,
    /// Its operations.
    pub operations: u64,
    /// Its memory per entity, where that is the point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_entity: Option<f64>,
}

/// One step of a ramp.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RampStep {
    /// Clients of a closed loop, or operations per second of an open one.
    pub load: f64,
    /// What the store did.
    pub ops_per_second: f64,
    /// The 99th percentile in microseconds.
    pub p99_us: f64,
}

/// Today.
pub(crate) fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

/// How this program was built.
pub(crate) fn build() -> String {
    match cfg!(debug_assertions) {
        true => "without optimisation",
        false => "optimised",
    }
    .to_owned()
}

/// From this share on a thread or a server has nothing to spare.
const BUSY: f64 = 0.8;

impl Report {
    /// What keeps the rate from being higher: what was asked for, or whichever of the busiest thread of the client and
    /// the busiest server has nothing to spare.
    pub(crate) fn limit(&self) -> &'static str {
        let reached =
            |rate: Option<f64>| rate.is_some_and(|rate| self.ops_per_second >= 0.95 * rate);
        let (client, server) = (
            self.client_busy.unwrap_or(0.0),
            self.server_busy.unwrap_or(0.0),
        );
        // Of an open loop the cap is no lower than its rate.
        if self.rate.is_none() && reached(self.max_rate) {
            "cap"
        } else if reached(self.rate) {
            "rate"
        } else if self.server.starts_with("embedded") || (client > BUSY && client >= server) {
            "client"
        } else if server > BUSY {
            "server"
        } else {
            "latency"
        }
    }
}

/// The 95 % interval of the median of slices, from their order.
pub(crate) fn interval(slices: &[f64]) -> Option<[f64; 2]> {
    if slices.len() < 5 {
        return None;
    }
    let mut sorted = slices.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let reach = 0.98 * n.sqrt();
    let low = (n / 2.0 - reach).floor().max(0.0) as usize;
    let high = ((n / 2.0 + reach).ceil() as usize).min(sorted.len() - 1);
    Some([sorted[low], sorted[high]])
}

/// The step beyond which more load brings little more: the last that gained at least a tenth of what its load grew by,
/// with a latency that is not yet ten times that of the first.
pub fn knee(steps: &[RampStep]) -> Option<RampStep> {
    let first = steps.first()?;
    let mut best = first;
    for step in &steps[1..] {
        let grown = step.load / best.load - 1.0;
        let gained = step.ops_per_second / best.ops_per_second.max(1e-9) - 1.0;
        if gained < 0.1 * grown.max(0.1) || step.p99_us > first.p99_us * 10.0 {
            break;
        }
        best = step;
    }
    Some(best.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_where_more_clients_stop_paying() {
        let step = |load: f64, rate: f64, p99: f64| RampStep {
            load,
            ops_per_second: rate,
            p99_us: p99,
        };
        let steps = [
            step(1.0, 10_000.0, 100.0),
            step(2.0, 19_000.0, 110.0),
            step(4.0, 36_000.0, 130.0),
            step(8.0, 60_000.0, 200.0),
            step(16.0, 62_000.0, 400.0),
            step(32.0, 62_500.0, 900.0),
        ];
        assert_eq!(knee(&steps).map(|step| step.load), Some(8.0));
        assert!(knee(&[]).is_none());
    }

    #[test]
    fn the_limit_is_whatever_has_nothing_to_spare() {
        let limit = |client, server| {
            let report = Report {
                server: "redis 7.0.15".to_owned(),
                ops_per_second: 1000.0,
                client_busy: Some(client),
                server_busy: Some(server),
                ..Report::default()
            };
            report.limit()
        };
        assert_eq!(limit(0.95, 0.4), "client");
        assert_eq!(limit(0.5, 0.9), "server");
        assert_eq!(limit(0.5, 0.4), "latency");
        let asked = |rate, max_rate| {
            let report = Report {
                ops_per_second: 1000.0,
                client_busy: Some(1.0),
                rate,
                max_rate,
                ..Report::default()
            };
            report.limit()
        };
        assert_eq!(asked(Some(1000.0), Some(1000.0)), "rate");
        assert_eq!(asked(Some(5000.0), Some(5000.0)), "client");
        assert_eq!(asked(None, Some(1000.0)), "cap");
    }

    #[test]
    fn an_interval_needs_slices_and_contains_the_median() {
        assert_eq!(interval(&[1.0, 2.0]), None);
        let slices: Vec<f64> = (0..20).map(f64::from).collect();
        let [low, high] = interval(&slices).unwrap();
        assert!(low < 9.5 && high > 9.5 && low > 2.0 && high < 17.0);
    }
}
