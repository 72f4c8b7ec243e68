//! Leaderboards, sharded leaderboards, weighted choice.

mod calendar;
mod leaderboard;
// Only debug builds can break a script.
mod mutation;
mod sharded;
mod weighted;
