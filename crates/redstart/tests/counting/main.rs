//! Counters, windows, unique visitors, check-ins and activity.

mod activity;
mod check_ins;
mod counter;
mod mutation;
mod today;
mod uniques;
mod windowed;
