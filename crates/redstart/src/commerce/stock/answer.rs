//! What the stock answers.

use std::time::Duration;

use redis::Value;

use crate::error::{Error, Result};

/// The state of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationState {
    /// Held.
    Held {
        /// What is left of the hold.
        left: Duration,
    },
    /// Sold.
    Sold,
    /// Cancelled, perhaps before the request arrived.
    Cancelled,
    /// The hold ended before it was confirmed.
    Expired,
    /// Sold and taken back.
    Returned,
}

impl ReservationState {
    pub(super) fn read(letter: &str, left: Duration) -> Result<Self> {
        match letter {
            "h" => Ok(Self::Held { left }),
            "s" => Ok(Self::Sold),
            "c" => Ok(Self::Cancelled),
            "x" => Ok(Self::Expired),
            "r" => Ok(Self::Returned),
            _ => Err(Error::codec("unknown reservation state in reply")),
        }
    }
}

/// The answer to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only a held unit may be sold"]
pub enum Reserve {
    /// The units are held, and the order is in the stream.
    Held {
        /// How long they are held: as long as was asked for, or until the sale ends.
        left: Duration,
    },
    /// This request was made before; nothing was changed.
    Replayed(ReservationState),
    /// There are not enough free units.
    SoldOut {
        /// How many there are in the user's shard.
        free: u64,
    },
    /// The user would have more than the cap.
    UserCap {
        /// How many the user may still have.
        left: u64,
    },
    /// This request was made before, for another quantity.
    Conflict,
    /// The sale was closed.
    Closed,
    /// The sale was not prewarmed, or is over.
    NotWarmed,
}

/// The answer to a confirmation, a cancellation or a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it may have been too late"]
pub enum Transition {
    /// Done, now.
    Done,
    /// It was done before.
    Repeated,
    /// It is not possible: the reservation is in another state.
    Refused(ReservationState),
    /// There is no such reservation.
    Unknown,
}

/// The answer to an extension of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it may have been too late"]
pub enum Extension {
    /// The units are held.
    Held {
        /// How long from now.
        left: Duration,
    },
    /// The reservation is not held any more.
    Refused(ReservationState),
    /// There is no such reservation.
    Unknown,
}

/// The answer to a prewarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a running sale keeps its own units and its own end"]
pub enum Prewarm {
    /// The units are on sale.
    Warmed,
    /// The sale is running already; nothing was changed.
    Running,
}

/// The answer to a restock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "there may be no sale to add to"]
pub enum Restock {
    /// The units are on sale.
    Added,
    /// They were added before, under the same id.
    Repeated,
    /// There is no such sale.
    NotWarmed,
}

/// The counts of a sale. They add up to what was put on sale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StockReport {
    /// Units that can be reserved.
    pub free: u64,
    /// Units that are reserved.
    pub held: u64,
    /// Units that are sold.
    pub sold: u64,
    /// Units that were put on sale: when it was opened, and by restocks since. `None` if that is not known: a part of the sale
    /// was lost and put on sale again, or a version that did not count them opened it.
    pub put_on_sale: Option<u64>,
}

impl StockReport {
    /// All units.
    pub fn total(&self) -> u64 {
        self.free + self.held + self.sold
    }

    /// Whether they are as many as were put on sale: no unit was lost, and none was sold twice. `None` if it is not known how
    /// many [were put on sale](Self::put_on_sale).
    pub fn is_conserved(&self) -> Option<bool> {
        self.put_on_sale.map(|units| units == self.total())
    }
}

/// The words of a script's answer.
pub(super) struct Words(std::vec::IntoIter<Value>);

impl Words {
    pub(super) fn new(words: Vec<Value>) -> Self {
        Self(words.into_iter())
    }

    pub(super) fn text(&mut self) -> Result<String> {
        Ok(redis::from_redis_value(
            self.0.next().unwrap_or(Value::Nil),
        )?)
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        match self.0.next() {
            None => Ok(0),
            Some(value) => {
                let number: i64 = redis::from_redis_value(value)?;
                Ok(u64::try_from(number).unwrap_or(0))
            }
        }
    }

    pub(super) fn micros(&mut self) -> Result<Duration> {
        Ok(Duration::from_micros(self.number()?))
    }

    pub(super) fn state(&mut self) -> Result<ReservationState> {
        let letter = self.text()?;
        ReservationState::read(&letter, self.micros()?)
    }
}
