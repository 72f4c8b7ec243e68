//! Ranking: leaderboards for one server and for hundreds of millions of members, and weighted choice.
//!
//! | pattern | for |
//! |---|---|
//! | [`Leaderboard`] | daily, weekly, monthly or all-time boards with the tie rule of your choice |
//! | [`ShardedLeaderboard`] | one board over many slots, with exact global ranks |
//! | [`WeightedChoice`] | drawing members by weight, while weights change |

use crate::{
    error::{Error, Result},
    script::Script,
};

mod leaderboard;
mod page;
mod period;
mod rules;
mod sharded;
mod weighted;

pub use leaderboard::{Leaderboard, LeaderboardBuilder, PeriodBoard, Placed, Submitted};
pub use page::{BoardCursor, BoardEntry, BoardPage};
pub use period::{Period, PeriodId};
pub use rules::{Order, Policy, Ties};
pub use sharded::{Scored, ShardedLeaderboard, ShardedLeaderboardBuilder};
pub use weighted::{Replacement, WeightedChoice, WeightedChoiceBuilder};

/// The longest member in bytes.
pub const MAX_MEMBER: usize = 512;

fn check_member(member: &str) -> Result<()> {
    if member.is_empty() || member.len() > MAX_MEMBER {
        return Err(Error::config(format!(
            "a member must have 1 to {MAX_MEMBER} bytes, not {}",
            member.len()
        )));
    }
    Ok(())
}

fn check_score(score: f64) -> Result<f64> {
    if !score.is_finite() {
        return Err(Error::config("a score must be a finite number"));
    }
    // Minus zero would print as a different score.
    Ok(if score == 0.0 { 0.0 } else { score })
}

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&Script] = &[
    &leaderboard::PAGE,
    &leaderboard::RANK,
    &leaderboard::REMOVE,
    &leaderboard::SUBMIT,
    &sharded::LOCATE,
    &sharded::SLICE,
    &sharded::SUBMIT,
    &weighted::PICK,
    &weighted::SET,
];
