//! Ranking: leaderboards for one server and for hundreds of millions of members, and weighted choice.
//!
//! | pattern | for |
//! |---|---|
//! | [`Leaderboard`] | daily, weekly, monthly or all-time boards with the tie rule of your choice |
//! | [`ShardedLeaderboard`] | one board over many slots, with exact global ranks |
//! | [`WeightedChoice`] | drawing members by weight, while weights change |

use crate::error::{Error, Result};

pub mod leaderboard;
pub mod period;
pub mod sharded;
pub mod weighted;

pub use leaderboard::{Leaderboard, Order, Policy, Ties};
pub use period::{Period, PeriodId};
pub use sharded::ShardedLeaderboard;
pub use weighted::WeightedChoice;

/// The longest member in bytes.
pub const MAX_MEMBER: usize = 512;

fn check_member(member: &str) -> Result<()> {
    if member.is_empty() || member.len() > MAX_MEMBER {
        return Err(Error::config(format!(
            "a member has 1 to {MAX_MEMBER} bytes, not {}",
            member.len()
        )));
    }
    Ok(())
}

fn check_score(score: f64) -> Result<f64> {
    if !score.is_finite() {
        return Err(Error::config(format!(
            "{score} is no score: a score is a finite number"
        )));
    }
    // Minus zero would print as another score than zero.
    Ok(if score == 0.0 { 0.0 } else { score })
}

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
