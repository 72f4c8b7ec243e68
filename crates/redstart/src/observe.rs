//! Spans and metrics: every name in one table.
//!
//! Operations of the patterns run in a [`tracing`] span `redstart` at debug level with the fields
//! `operation` and `namespace`, and are counted through the [`metrics`] facade. Without a recorder and a
//! subscriber both cost next to nothing.
//!
//! | metric | kind | labels | meaning |
//! |---|---|---|---|
//! | `redstart_operations_total` | counter | `operation`, `outcome` (`ok`, `timeout`, `unavailable`, `config`, `error`, `cancelled`) | operations of patterns that ended, or whose future was dropped before |
//! | `redstart_operation_seconds` | histogram | `operation` | how long they took |
//! | `redstart_events_total` | counter | `event` | what the patterns saw: the events below |
//! | `redstart_store_in_flight` | gauge | `node` | requests that were sent or are being sent and have no reply yet |
//! | `redstart_store_waiting` | gauge | | requests that wait for a connection, or for room on one |
//! | `redstart_store_request_seconds` | histogram | `node` | how long a server took to answer, of one request in eight |
//! | `redstart_store_retries_total` | counter | | requests that were sent again because that was safe |
//! | `redstart_store_redirects_total` | counter | | of these, because a Cluster node named another one |
//! | `redstart_store_doubts_total` | counter | | errors that are [in doubt](crate::Error::is_in_doubt) |
//! | `redstart_store_cancelled_total` | counter | | requests whose caller stopped waiting before the deadline |
//! | `redstart_store_reconnects_total` | counter | | connections re-established |
//! | `redstart_store_replica_reads_total` | counter | | reads that a replica, or the copy of a mirror, answered |
//! | `redstart_store_replica_misses_total` | counter | | reads that a replica might have answered and the master did |
//! | `redstart_store_mirror_age_seconds` | gauge | `node` | how old the copy of a mirror is; before it is complete, how long it has been made |
//! | `redstart_store_mirror_behind_bytes` | gauge | `node` | the bytes of changes that it lacked when it was compared last |
//! | `redstart_store_moves_total` | counter | | hand-overs that a store followed |
//! | `redstart_store_gaps_total` | counter | | gaps of subscriptions, for any reason |
//! | `redstart_store_overflows_total` | counter | | gaps of subscriptions whose reader was too slow |
//!
//! The meters of a connection are made when it is, so install the recorder before connecting. A `node` is an address, or
//! the name of the master behind sentinels.
//!
//! An operation is named `<pattern>.<verb>`, as in `mutex.acquire`; an event is `<pattern>.<what>`, as in
//! `limiter.limited`. Each pattern's page lists its own.

use std::{
    cell::RefCell,
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use metrics::{Key, Label, Level, Metadata};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tracing::Span;

use crate::error::{Error, Result};

/// Runs an operation of a pattern in its span, counts it, and names it in its error.
pub(crate) fn operation<'a, T, F>(
    name: &'static str,
    namespace: &'a Arc<str>,
    work: F,
) -> Operation<'a, F>
where
    F: Future<Output = Result<T>>,
{
    Operation {
        name,
        namespace,
        begun: None,
        work,
    }
}

pin_project! {
    /// An operation under way. A future written by hand holds its work once; an `async fn` that takes work
    /// holds it two or three times, and all of that is copied when a future is moved.
    pub(crate) struct Operation<'a, F> {
        name: &'static str,
        namespace: &'a Arc<str>,
        begun: Option<(Instant, Span)>,
        #[pin]
        work: F,
    }

    impl<F> PinnedDrop for Operation<'_, F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            // One that was never polled has done nothing.
            if this.begun.take().is_some() {
                metrics::counter!(OPERATIONS, "operation" => *this.name, "outcome" => "cancelled")
                    .increment(1);
            }
        }
    }
}

impl<T, F: Future<Output = Result<T>>> Future for Operation<'_, F> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.project();
        let (name, namespace) = (*this.name, *this.namespace);
        let (started, span) = this.begun.get_or_insert_with(|| {
            let span = tracing::debug_span!("redstart", operation = name, namespace = &**namespace);
            (Instant::now(), span)
        });
        let result = {
            let _entered = (!span.is_disabled()).then(|| span.enter());
            ready!(this.work.poll(cx))
        };
        let took = started.elapsed();
        *this.begun = None;
        Poll::Ready(match result {
            Ok(value) => {
                succeeded(name, took);
                Ok(value)
            }
            Err(error) => {
                metrics::counter!(OPERATIONS, "operation" => name, "outcome" => outcome(&error))
                    .increment(1);
                metrics::histogram!(SECONDS, "operation" => name).record(took.as_secs_f64());
                Err(error.during(name, namespace))
            }
        })
    }
}

const OPERATIONS: &str = "redstart_operations_total";
const SECONDS: &str = "redstart_operation_seconds";
static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// The names under which an operation that went well is counted and timed.
struct Labels {
    ok: Key,
    seconds: Key,
}

impl Labels {
    fn new(name: &'static str) -> Self {
        let operation = Label::from_static_parts("operation", name);
        let ok = Label::from_static_parts("outcome", "ok");
        Self {
            ok: Key::from_parts(OPERATIONS, vec![operation.clone(), ok]),
            seconds: Key::from_parts(SECONDS, vec![operation]),
        }
    }
}

thread_local! {
    /// Labels are made once for each operation and thread: making them costs more than counting.
    static LABELS: RefCell<HashMap<&'static str, Labels, foldhash::fast::RandomState>> = RefCell::default();
}

fn succeeded(name: &'static str, took: Duration) {
    LABELS.with_borrow_mut(|labels| {
        let labels = labels.entry(name).or_insert_with(|| Labels::new(name));
        metrics::with_recorder(|recorder| {
            recorder
                .register_counter(&labels.ok, &METADATA)
                .increment(1);
            recorder
                .register_histogram(&labels.seconds, &METADATA)
                .record(took.as_secs_f64());
        });
    });
}

/// Counts something that a pattern saw and that is not a failure: a refusal, a takeover, a stale answer.
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
