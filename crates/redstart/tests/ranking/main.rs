//! Leaderboards, sharded leaderboards, weighted choice.

mod leaderboard;
mod sharded;
mod weighted;
