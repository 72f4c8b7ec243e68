//! How a pattern is put under load.

use std::time::Duration;

use crate::{Spread, error::Error};

/// How operations follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Pace {
    /// Closed loop: this many clients, each of which begins its next operation when the last one has ended. Finds how
    /// much a store can do. Says little about latency, since a slow store slows its clients down.
    Closed {
        /// How many.
        clients: usize,
    },
    /// Open loop: this many operations per second, whether earlier ones have ended or not, as users do. Latency
    /// is counted from the moment at which an operation was due.
    Open {
        /// Operations per second.
        rate: f64,
        /// How many operations may be under way; those beyond are late, and their latency says so.
        in_flight: usize,
    },
}

impl Pace {
    /// How many operations run at a time, at most.
    pub fn clients(&self) -> usize {
        match *self {
            Self::Closed { clients } => clients,
            Self::Open { in_flight, .. } => in_flight,
        }
    }
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Length {
    /// After this time.
    Time(Duration),
    /// After this many operations.
    Operations(u64),
}

/// How a pattern is put under load.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Closed or open loop.
    pub pace: Pace,
    /// When the run ends.
    pub length: Length,
    /// How many entities operations choose from.
    pub keys: u64,
    /// How they are chosen.
    pub spread: Spread,
    /// Bytes of a value, where the pattern has values.
    pub payload: usize,
    /// The share of writes; the pattern's own if `None`.
    pub writes: Option<f64>,
    /// The most operations per second, whatever the pace, the writes that prepare a run included. What was due during a stall
    /// is not sent on top of it.
    pub max_rate: Option<f64>,
    /// How long the server is watched without load before the run. What it spends then, on itself and on being watched, is
    /// subtracted from what the operations cost. Zero subtracts nothing.
    pub idle: Duration,
    /// The run stops when the server's memory has grown by this many bytes, or when its preparation has written as many.
    pub max_memory: u64,
    /// How many bytes the preparation may write, if fewer than that: for one of several runs on a server.
    pub max_written: Option<u64>,
    /// The same seed draws the same keys.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pace: Pace::Closed { clients: 64 },
            length: Length::Time(Duration::from_secs(5)),
            keys: 1000,
            spread: Spread::Uniform,
            payload: 100,
            writes: None,
            max_rate: None,
            idle: Duration::from_secs(1),
            max_memory: 256 << 20,
            max_written: None,
            seed: 1,
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let no = |text: &str| Err(Error::config(text));
        match self.pace {
            Pace::Closed { clients } if !(1..=10_000).contains(&clients) => {
                return no("there must be 1 to 10,000 clients");
            }
            Pace::Open { rate, in_flight } => {
                if !(rate.is_finite() && rate > 0.0 && rate <= 10_000_000.0) {
                    return no("the rate must be above 0 and at most 10,000,000 per second");
                }
                if !(1..=100_000).contains(&in_flight) {
                    return no("1 to 100,000 operations may be in flight");
                }
            }
            Pace::Closed { .. } => {}
        }
        if self
            .max_rate
            .is_some_and(|rate| !(rate.is_finite() && rate > 0.0))
        {
            return no("the highest rate must be above 0");
        }
        if let (Pace::Open { rate, .. }, Some(most)) = (self.pace, self.max_rate)
            && rate > most
        {
            return Err(Error::config(format!(
                "the rate of {rate} per second is above the highest rate of {most} (--max-rate)"
            )));
        }
        if self.idle > Duration::from_secs(60) {
            return no("a server is watched without load for at most a minute");
        }
        if self
            .writes
            .is_some_and(|share| !(0.0..=1.0).contains(&share))
        {
            return no("the share of writes must be from 0 to 1");
        }
        if !(1..=1_000_000_000).contains(&self.keys) {
            return no("there must be 1 to 1,000,000,000 keys");
        }
        if self.payload > 1 << 20 {
            return no("a payload has at most 1 MiB");
        }
        match self.length {
            Length::Time(time) if time.is_zero() || time > Duration::from_secs(86_400) => {
                no("a run lasts more than 0 seconds and at most a day")
            }
            Length::Operations(0) => no("a run has at least one operation"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_above_the_cap_is_refused_instead_of_lowered() {
        let settings = |rate| Settings {
            pace: Pace::Open {
                rate,
                in_flight: 10,
            },
            max_rate: Some(10_000.0),
            ..Settings::default()
        };
        assert!(settings(10_000.0).check().is_ok());
        let refused = settings(50_000.0).check().unwrap_err().to_string();
        assert!(refused.contains("--max-rate"), "{refused}");
    }
}
