//! The reports of several processes as one.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::{
    Report,
    report::{CommandCost, Hottest},
};

/// Puts the reports of processes that put load on one server at the same time together: rates add up, latencies are those of
/// all operations, and what the server spent, which each process saw whole, is divided by all operations. `None` if
/// there are none. The reports need their [histograms](Report::histogram), and the runs must have been
/// [in stages](crate::Live::in_stages).
pub fn merge(reports: Vec<Report>) -> Option<Report> {
    // In one piece although it is long: each figure is put together in its own way, and they are read one after the other.
    let operations: u64 = reports.iter().map(|report| report.operations).sum();
    let all = (operations as f64).max(1.0);
    let latency = latency(&reports)?;
    let processes = reports.len();
    let whole = |of: fn(&Report) -> Option<f64>| {
        let seen: Vec<f64> = reports
            .iter()
            .filter_map(|report| Some(of(report)? * report.operations as f64))
            .collect();
        (!seen.is_empty()).then(|| seen.iter().sum::<f64>() / seen.len() as f64 / all)
    };
    let (server, network, messages) = (
        whole(|report| report.server_us_per_op),
        whole(|report| report.network_bytes_per_op),
        whole(|report| report.messages_per_op),
    );
    let trips = reports
        .iter()
        .filter_map(|report| report.round_trips_per_op);
    let trips = trips.min_by(f64::total_cmp);
    let errors = errors(&reports);
    let own: f64 = reports
        .iter()
        .filter_map(|report| Some(report.client_us_per_op? * report.operations as f64))
        .sum();
    let most = |of: fn(&Report) -> Option<f64>| reports.iter().filter_map(of).reduce(f64::max);
    let (client_busy, server_busy) = (
        most(|report| report.client_busy),
        most(|report| report.server_busy),
    );
    let (failed_p50_us, failed_p99_us, timer_p99_us) = (
        most(|report| report.failed_p50_us),
        most(|report| report.failed_p99_us),
        most(|report| report.timer_p99_us),
    );
    let commands = commands(&reports, all);
    let hottest = hottest(&reports, all);
    let largest = reports
        .iter()
        .filter_map(|report| report.largest_key.as_ref());
    let largest_key = largest.max_by_key(|key| key.bytes).cloned();
    let figures: Vec<&str> = reports
        .iter()
        .filter_map(|report| report.figure.as_deref())
        .collect();
    let figure = (!figures.is_empty()).then(|| figures.join("; "));
    let sum = |of: fn(&Report) -> f64| reports.iter().map(of).sum::<f64>();
    let mut report = Report {
        operations,
        ops_per_second: sum(|report| report.ops_per_second),
        violations: reports.iter().map(|report| report.violations).sum(),
        dropped: reports.iter().map(|report| report.dropped).sum(),
        entities: reports.iter().map(|report| report.entities).sum(),
        keys_used: reports.iter().map(|report| report.keys_used).sum(),
        clients: reports.iter().map(|report| report.clients).sum(),
        held: reports.iter().all(|report| report.held),
        broken: reports.iter().find_map(|report| report.broken.clone()),
        unchecked: reports.iter().find_map(|report| report.unchecked.clone()),
        rate: reports
            .iter()
            .filter_map(|report| report.rate)
            .reduce(|sum, rate| sum + rate),
        stopped: reports.iter().find_map(|report| report.stopped.clone()),
        memory_unwatched: reports.iter().any(|report| report.memory_unwatched),
        max_rate: reports
            .iter()
            .filter_map(|report| report.max_rate)
            .reduce(|sum, rate| sum + rate),
        seconds: reports
            .iter()
            .map(|report| report.seconds)
            .fold(0.0, f64::max),
        client_busy,
        server_busy,
        failed_p50_us,
        failed_p99_us,
        timer_p99_us,
        commands,
        hottest,
        largest_key,
        figure,
        interval: None,
        slices: Vec::new(),
        histogram: Vec::new(),
        ..reports.into_iter().next()?
    };
    show_latency(&mut report, &latency);
    report.server_us_per_op = server;
    report.network_bytes_per_op = network;
    report.messages_per_op = messages;
    report.round_trips_per_op = trips;
    report.client_us_per_op = Some(own / all);
    report.errors = errors;
    report.processes = processes;
    report.limited_by = report.limit().to_owned();
    Some(report)
}

/// The latencies of all operations.
fn latency(reports: &[Report]) -> Option<Histogram<u64>> {
    let mut latency = Histogram::<u64>::new(3).ok()?;
    for (value, count) in reports.iter().flat_map(|report| &report.histogram) {
        latency.record_n(*value, *count).ok()?;
    }
    Some(latency)
}

fn show_latency(report: &mut Report, latency: &Histogram<u64>) {
    let micros = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
    report.p50_us = micros(0.5);
    report.p99_us = micros(0.99);
    report.p999_us = micros(0.999);
    report.max_us = latency.max() as f64 / 1e3;
    for (quantile, value) in &mut report.quantiles {
        *value = micros(*quantile);
    }
}

fn errors(reports: &[Report]) -> BTreeMap<String, u64> {
    let mut errors = BTreeMap::new();
    for (kind, count) in reports.iter().flat_map(|report| &report.errors) {
        *errors.entry(kind.clone()).or_default() += count;
    }
    errors
}

/// The hottest entity of all. Each process has keys of its own, so it is that of one of them.
fn hottest(reports: &[Report], all: f64) -> Option<Hottest> {
    let load = |report: &&Report| {
        let share = report.hottest.as_ref().map_or(0.0, |hottest| hottest.share);
        share * report.operations as f64
    };
    let report = reports.iter().max_by(|a, b| load(a).total_cmp(&load(b)))?;
    let mut hottest = report.hottest.clone()?;
    hottest.share = load(&report) / all;
    Some(hottest)
}

/// What the server spent on each command. Every process saw all calls; each lists only those that cost most.
fn commands(reports: &[Report], all: f64) -> Vec<CommandCost> {
    // Calls and microseconds, and how many processes saw them.
    let mut seen = BTreeMap::<&str, (f64, f64, f64)>::new();
    for report in reports {
        for cost in &report.commands {
            let calls = cost.calls_per_op * report.operations as f64;
            let sum = seen.entry(&cost.command).or_default();
            *sum = (sum.0 + calls, sum.1 + calls * cost.us_per_call, sum.2 + 1.0);
        }
    }
    let mut costs: Vec<CommandCost> = seen
        .into_iter()
        .map(|(command, (calls, micros, processes))| CommandCost {
            command: command.to_owned(),
            calls_per_op: calls / processes / all,
            us_per_call: micros / calls.max(1e-9),
        })
        .collect();
    let spent = |cost: &CommandCost| cost.calls_per_op * cost.us_per_call;
    costs.sort_by(|a, b| spent(b).total_cmp(&spent(a)));
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_add_up_and_latencies_are_those_of_all_operations() {
        let report = |rate: f64, nanos: u64, held| Report {
            operations: 100,
            ops_per_second: rate,
            histogram: vec![(nanos, 100)],
            server_us_per_op: Some(10.0),
            // Each process saw the calls of both.
            commands: vec![CommandCost {
                command: "evalsha".to_owned(),
                calls_per_op: 2.0,
                us_per_call: 5.0,
            }],
            client_busy: Some(if held { 0.3 } else { 0.95 }),
            server_busy: Some(0.5),
            limited_by: "latency".to_owned(),
            held,
            ..Report::default()
        };
        let merged = merge(vec![
            report(1000.0, 1_000, true),
            report(3000.0, 9_000_000, false),
        ]);
        let merged = merged.unwrap();
        assert_eq!(
            (merged.operations, merged.processes, merged.held),
            (200, 2, false)
        );
        assert_eq!(merged.ops_per_second, 4000.0);
        assert!(merged.p50_us < 1.1 && merged.p99_us > 8900.0, "{merged:?}");
        // Each process saw the CPU of both: 1,000 µs for 200 operations.
        assert_eq!(merged.server_us_per_op, Some(5.0));
        let calls = &merged.commands[0];
        assert_eq!((calls.calls_per_op, calls.us_per_call), (1.0, 5.0));
        // One of the processes had nothing to spare.
        assert_eq!(merged.limited_by, "client");
        assert!(merge(Vec::new()).is_none());
    }
}
