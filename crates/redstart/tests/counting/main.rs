//! Counters, windows, unique visitors, check-ins and activity.

mod activity;
mod check_ins;
mod counter;
// Only debug builds can break a script.
mod mutation;
mod uniques;
mod windowed;
