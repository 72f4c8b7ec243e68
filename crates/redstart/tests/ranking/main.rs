//! Leaderboards, sharded leaderboards, weighted choice.

mod calendar;
mod leaderboard;
mod mutation;
mod sharded;
mod weighted;
