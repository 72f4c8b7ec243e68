//! The rules of a board: which score is best, what happens to ties, what a submission does.

use crate::error::{Error, Result};

/// Which score is best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The highest: points.
    #[default]
    HighestFirst,
    /// The lowest: times, strokes.
    LowestFirst,
}

impl Order {
    /// As the scripts and the keys spell it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Order::HighestFirst => "high",
            Order::LowestFirst => "low",
        }
    }
}

/// How members with the same score are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ties {
    /// The member that reached the score first is ahead; no two members share a rank.
    ///
    /// Scores are whole numbers from 0 to `max_points`. They share 53 bits with the number of the submission: if
    /// `max_points` takes *b* bits, 2^(53 − *b*) submissions of a period are told apart. Later ones count as
    /// simultaneous and are ordered by name.
    EarliestFirst {
        /// The highest possible score.
        max_points: u64,
    },
    /// They share a rank and the following ranks are skipped: 1, 2, 2, 4.
    #[default]
    Competition,
    /// They share a rank and no rank is skipped: 1, 2, 2, 3.
    Dense,
}

impl Ties {
    /// EarliestFirst needs at least this many bits for the numbers of submissions.
    const MIN_BITS: u32 = 16;

    /// How many bits number the submissions; 0 for the other rules.
    pub(super) fn sequence_bits(self) -> Result<u32> {
        match self {
            Ties::EarliestFirst { max_points } => {
                let bits = u64::BITS - max_points.leading_zeros();
                53u32
                    .checked_sub(bits)
                    .filter(|left| *left >= Self::MIN_BITS)
                    .ok_or_else(|| {
                        Error::config(format!(
                            "scores up to {max_points} take {bits} of 53 bits and leave too few to order ties; \
                             max_points must be at most {}",
                            (1u64 << (53 - Self::MIN_BITS)) - 1
                        ))
                    })
            }
            Ties::Competition | Ties::Dense => Ok(0),
        }
    }

    /// As the scripts spell it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Ties::EarliestFirst { .. } => "earliest",
            Ties::Competition => "competition",
            Ties::Dense => "dense",
        }
    }

    pub(super) fn max_points(self) -> u64 {
        match self {
            Ties::EarliestFirst { max_points } => max_points,
            Ties::Competition | Ties::Dense => 0,
        }
    }
}

/// What a submission does to the member's score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The better of the two stays.
    Best,
    /// The new one replaces the old one.
    Last,
    /// They are added.
    Sum,
}

impl Policy {
    /// As the scripts spell it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Policy::Best => "best",
            Policy::Last => "last",
            Policy::Sum => "sum",
        }
    }
}
