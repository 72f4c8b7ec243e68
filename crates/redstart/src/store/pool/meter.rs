//! What is measured about the connections to a server.

use std::sync::atomic::{AtomicU32, Ordering};

use metrics::{Gauge, Histogram};
use tokio::time::Instant;

/// One request in so many is timed: reading the clock costs more than all other measuring.
const TIMED: u32 = 8;

/// The meters of one connection. Without a recorder, they cost next to nothing.
pub(super) struct Meter {
    in_flight: Gauge,
    seconds: Histogram,
    turn: AtomicU32,
}

impl Meter {
    pub(super) fn new(node: &str) -> Self {
        Self {
            in_flight: metrics::gauge!("redstart_store_in_flight", "node" => node.to_owned()),
            seconds: metrics::histogram!("redstart_store_request_seconds", "node" => node.to_owned()),
            turn: AtomicU32::new(0),
        }
    }

    /// A request begins; it ends when what is returned is dropped.
    pub(super) fn begin(&self) -> Measured<'_> {
        self.in_flight.increment(1.0);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        Measured {
            meter: self,
            begun: turn.is_multiple_of(TIMED).then(Instant::now),
        }
    }
}

/// A request under way.
pub(super) struct Measured<'a> {
    meter: &'a Meter,
    begun: Option<Instant>,
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        self.meter.in_flight.decrement(1.0);
        if let Some(begun) = self.begun {
            self.meter.seconds.record(begun.elapsed().as_secs_f64());
        }
    }
}

/// A request that waits for a connection, or for room on one.
pub(crate) struct Waiting(Gauge);

impl Waiting {
    pub(crate) fn begin() -> Self {
        let gauge = metrics::gauge!("redstart_store_waiting");
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
