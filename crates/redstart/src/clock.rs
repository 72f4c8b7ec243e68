//! The server's calendar: which moment and which civil day it is by the server's clock.

use std::{sync::Arc, time::Duration};

use jiff::{Timestamp, civil::Date, tz::TimeZone};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    error::{Error, Result},
    store::Store,
};

/// The server's time, asked for once a minute and carried on by the monotonic clock in between.
#[derive(Clone, Debug)]
pub(crate) struct ServerClock {
    store: Store,
    /// The server's time, and when it was that.
    known: Arc<Mutex<Option<(Timestamp, Instant)>>>,
}

impl ServerClock {
    /// How long an answer of the server is trusted.
    const TRUST: Duration = Duration::from_secs(60);
    /// How far both clocks may drift apart meanwhile. Closer than this to the end of a day or of a period, the
    /// server is asked.
    pub(crate) const MARGIN: Duration = Duration::from_secs(2);

    pub(crate) fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
            known: Arc::default(),
        }
    }

    /// The server's time to within [`MARGIN`](Self::MARGIN), if it was read recently. `None` on the embedded
    /// engine, whose clock can be moved.
    pub(crate) fn estimate(&self) -> Option<Timestamp> {
        let (server, at) = (*self.known.lock())?;
        let elapsed = at.elapsed();
        (elapsed < Self::TRUST && !self.store.is_embedded())
            .then(|| server.checked_add(elapsed).ok())
            .flatten()
    }

    /// Asks the server.
    pub(crate) async fn ask(&self) -> Result<Timestamp> {
        let asked = Instant::now();
        let micros = i64::try_from(self.store.time().await?.as_micros()).unwrap_or(i64::MAX);
        let now = Timestamp::from_microsecond(micros)
            .map_err(|error| Error::codec("server time out of range").with_source(error))?;
        *self.known.lock() = Some((now, asked));
        Ok(now)
    }

    /// The civil day in a time zone.
    pub(crate) async fn today(&self, zone: &TimeZone) -> Result<Date> {
        let day = |moment: Timestamp| moment.to_zoned(zone.clone()).date();
        if let Some(now) = self.estimate()
            && let (Ok(before), Ok(after)) =
                (now.checked_sub(Self::MARGIN), now.checked_add(Self::MARGIN))
            && day(before) == day(after)
        {
            return Ok(day(now));
        }
        Ok(day(self.ask().await?))
    }
}
