//! The reports of several processes as one.

use hdrhistogram::Histogram;

use crate::Report;

/// Puts the reports of processes that put load on one server at the same time together: rates add up, latencies are those of
/// all operations, and what the server spent, which each process saw whole, is divided by all operations. `None` if
/// there are none. The reports need their [histograms](Report::histogram).
pub fn merge(reports: Vec<Report>) -> Option<Report> {
    let operations: u64 = reports.iter().map(|report| report.operations).sum();
    let all = (operations as f64).max(1.0);
    let mut latency = Histogram::<u64>::new(3).ok()?;
    for (value, count) in reports.iter().flat_map(|report| &report.histogram) {
        latency.record_n(*value, *count).ok()?;
    }
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
    let mut errors = std::collections::BTreeMap::<String, u64>::new();
    for (kind, count) in reports.iter().flat_map(|report| &report.errors) {
        *errors.entry(kind.clone()).or_default() += count;
    }
    let own: f64 = reports
        .iter()
        .filter_map(|report| Some(report.client_us_per_op? * report.operations as f64))
        .sum();
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
        interval: None,
        slices: Vec::new(),
        histogram: Vec::new(),
        ..reports.into_iter().next()?
    };
    let micros = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
    report.p50_us = micros(0.5);
    report.p99_us = micros(0.99);
    report.p999_us = micros(0.999);
    report.max_us = latency.max() as f64 / 1e3;
    for (quantile, value) in &mut report.quantiles {
        *value = micros(*quantile);
    }
    report.server_us_per_op = server;
    report.network_bytes_per_op = network;
    report.messages_per_op = messages;
    report.round_trips_per_op = trips;
    report.client_us_per_op = Some(own / all);
    report.errors = errors;
    report.processes = processes;
    Some(report)
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
        assert!(merge(Vec::new()).is_none());
    }
}
