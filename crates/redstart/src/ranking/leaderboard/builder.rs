//! Settings of a board.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};

use super::{Leaderboard, keys_to_submit};
use crate::{
    clock::ServerClock,
    duration::millis,
    error::Result,
    key::{Keys, Layout},
    ranking::{Order, Period, Ties},
    store::Store,
};

/// Settings of [`Leaderboard`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct LeaderboardBuilder {
    store: Store,
    namespace: String,
    name: String,
    order: Order,
    ties: Ties,
    period: Period,
    zone: TimeZone,
    keep: Duration,
    layout: Option<Layout>,
}

impl LeaderboardBuilder {
    pub(super) fn new(store: &Store, namespace: &str, name: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            order: Order::default(),
            ties: Ties::default(),
            period: Period::All,
            zone: TimeZone::UTC,
            keep: Duration::ZERO,
            layout: None,
        }
    }

    /// Which score is best; the highest by default.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// How equal scores are ranked; [`Ties::Competition`] by default.
    pub fn ties(mut self, ties: Ties) -> Self {
        self.ties = ties;
        self
    }

    /// When the board starts again, in which time zone, and how long a period is kept after its end. By default
    /// the board never ends.
    pub fn period(mut self, period: Period, zone: TimeZone, keep: Duration) -> Self {
        self.period = period;
        self.zone = zone;
        self.keep = keep;
        self
    }

    /// Uses a key that the application already has. Without periods and with [`Ties::Competition`] the board is the
    /// sorted set under that very key.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Builds the board.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a bad namespace or name, or if `max_points` of
    /// [`Ties::EarliestFirst`] leaves too few of the 53 bits for the order of submissions.
    pub fn build(self) -> Result<Leaderboard> {
        let bits = self.ties.sequence_bits()?;
        let mut keys = Keys::new(&self.namespace, "leaderboard")?;
        let plain =
            self.layout.is_some() && self.period == Period::All && self.ties == Ties::Competition;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        let entity = keys.entity(&self.name)?;
        // The rules are part of the key: with others the stored numbers would mean something else.
        let rules = match (plain, self.ties) {
            (true, _) => String::new(),
            (false, Ties::EarliestFirst { max_points }) => {
                format!("{}.earliest.{max_points}", self.order.name())
            }
            (false, ties) => format!("{}.{}", self.order.name(), ties.name()),
        };
        let only = match self.period {
            Period::All => {
                let period = self.period.at(Timestamp::UNIX_EPOCH, &self.zone)?;
                Some(keys_to_submit(&entity, &rules, self.ties, &period).into())
            }
            _ => None,
        };
        Ok(Leaderboard {
            only,
            clock: ServerClock::new(&self.store),
            store: self.store,
            entity,
            rules: rules.into(),
            order: self.order,
            ties: self.ties,
            sequence_span: 1 << bits,
            period: self.period,
            zone: self.zone,
            keep_ms: millis(self.keep),
        })
    }
}
