//! Spans and metrics: every name in one table.
//!
//! Operations of the patterns run in a [`tracing`] span `redstart` at debug level with the fields
//! `operation` and `namespace`, and are counted through the [`metrics`] facade. Without a recorder and a
//! subscriber both cost next to nothing.
//!
//! | metric | kind | labels | meaning |
//! |---|---|---|---|
//! | `redstart_operations_total` | counter | `operation`, `outcome` (`ok`, `timeout`, `unavailable`, `config`, `error`) | operations of patterns that ended |
//! | `redstart_operation_seconds` | histogram | `operation` | how long they took |
//! | `redstart_events_total` | counter | `event` | what the patterns saw: the events below |
//! | `redstart_store_reconnects_total` | counter | | connections made anew |
//! | `redstart_store_gaps_total` | counter | | subscriptions that lost their line |
//!
//! An operation is named `<pattern>.<verb>`, as in `mutex.acquire`; an event is `<pattern>.<what>`, as in
//! `limiter.limited`. Each pattern's page lists its own.

use std::{future::Future, sync::Arc};

use tokio::time::Instant;
use tracing::Instrument;

use crate::error::{Error, Result};

/// Runs an operation of a pattern in its span, counts it, and names it in its error.
pub(crate) async fn operation<T>(
    name: &'static str,
    namespace: &Arc<str>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let started = Instant::now();
    let span = tracing::debug_span!("redstart", operation = name, namespace = &**namespace);
    let result = if span.is_disabled() {
        work.await
    } else {
        work.instrument(span).await
    };
    let outcome = match &result {
        Ok(_) => "ok",
        Err(error) => outcome(error),
    };
    metrics::counter!("redstart_operations_total", "operation" => name, "outcome" => outcome)
        .increment(1);
    metrics::histogram!("redstart_operation_seconds", "operation" => name)
        .record(started.elapsed().as_secs_f64());
    result.map_err(|error| error.during(name, namespace))
}

/// Counts something that a pattern saw and that is no failure: a refusal, a takeover, a stale answer.
pub(crate) fn event(name: &'static str) {
    events(name, 1);
}

/// Counts several of the same.
pub(crate) fn events(name: &'static str, count: u64) {
    metrics::counter!("redstart_events_total", "event" => name).increment(count);
}

fn outcome(error: &Error) -> &'static str {
    if error.is_timeout() {
        "timeout"
    } else if error.is_unavailable() {
        "unavailable"
    } else if error.is_config() {
        "config"
    } else {
        "error"
    }
}
