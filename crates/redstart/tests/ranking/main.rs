//! Leaderboards, sharded leaderboards, weighted choice.

mod calendar;
mod leaderboard;
mod sharded;
mod weighted;
