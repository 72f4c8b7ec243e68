//! `/metrics`: what the patterns, the store and this process count.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// The recorder of this process, installed on first use; `None` if the program has another one.
pub(crate) fn recorder() -> Option<&'static PrometheusHandle> {
    static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        let buckets = [
            0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0,
        ];
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &buckets);
        let recorder = builder.ok()?.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).ok()?;
        Some(handle)
    });
    handle.as_ref()
}

/// Collects the metrics of this process from now on, for `/metrics`. To be called before a [`Store`](redstart::Store) connects:
/// what a store measures of a connection that was made earlier is counted from its next reconnect on. [`Service::new`](crate::Service::new)
/// calls it too. It does nothing if the program has a recorder of its own.
pub fn record_metrics() {
    recorder();
}

/// The text that Prometheus reads.
pub(crate) fn render() -> String {
    if let Some(memory) = resident_bytes() {
        metrics::gauge!("process_resident_memory_bytes").set(memory);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        metrics::gauge!("process_open_fds").set(open.count() as f64);
    }
    match recorder() {
        Some(handle) => handle.render(),
        None => String::new(),
    }
}

/// The memory of this process, in bytes.
pub(crate) fn resident_bytes() -> Option<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = statm.split(' ').nth(1)?.parse().ok()?;
    // Pages are 4 KiB wherever /proc is.
    Some(pages * 4096.0)
}

pub(crate) fn upkeep() {
    if let Some(handle) = recorder() {
        handle.run_upkeep();
    }
}
