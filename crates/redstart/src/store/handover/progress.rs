//! Whether a hand-over gets on, and may.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, Result};

/// Without progress for so long, the server cannot reach the engine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a copy gets on. Without progress for a minute it is given up.
pub(super) struct Progress {
    /// The most bytes that were read of a copy, which is begun again if it fails.
    most: u64,
    /// The fewest bytes that the server was behind.
    least: u64,
    since: Instant,
}

impl Progress {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            most: 0,
            least: u64::MAX,
            since: now,
        }
    }

    pub(super) fn has_read(&mut self, bytes: u64, now: Instant) -> Result<()> {
        if bytes > self.most {
            (self.most, self.since) = (bytes, now);
        }
        match now.duration_since(self.since) > PATIENCE {
            true => Err(Error::unavailable(
                "the server gets no data from the engine: can it reach it under the address of the URL?",
            )),
            false => Ok(()),
        }
    }

    pub(super) fn is_behind(&mut self, bytes: u64, now: Instant) -> Result<()> {
        if bytes < self.least {
            (self.least, self.since) = (bytes, now);
        }
        match now.duration_since(self.since) > PATIENCE {
            true => Err(Error::unavailable(format!(
                "the server does not catch up with the engine: it is {bytes} bytes behind"
            ))),
            false => Ok(()),
        }
    }
}

/// Whether a server may hold so many bytes; a limit of 0 is none.
pub(super) fn fits(used: u64, limit: u64) -> Result<()> {
    if limit == 0 || used <= limit {
        return Ok(());
    }
    Err(Error::config(format!(
        "the data takes {used} bytes, and the server may use {limit}: raise its maxmemory"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_getting_nearer_is_progress() {
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let mut progress = Progress::new(began);
        assert!(progress.has_read(100, after(50)).is_ok());
        assert!(progress.is_behind(9_000_000, after(100)).is_ok());
        assert!(progress.is_behind(9_500_000, after(130)).is_ok());
        assert!(progress.is_behind(8_000_000, after(159)).is_ok());
        // Writers are as fast as the server.
        assert!(progress.is_behind(8_000_001, after(219)).is_ok());
        assert!(progress.is_behind(8_000_000, after(220)).is_err());
        assert!(progress.has_read(100, after(220)).is_err());
    }

    #[test]
    fn data_fits_into_no_limit_and_into_a_larger_one() {
        assert!(fits(5, 0).is_ok() && fits(5, 5).is_ok());
        assert!(fits(6, 5).is_err_and(|error| error.is_config()));
    }
}
