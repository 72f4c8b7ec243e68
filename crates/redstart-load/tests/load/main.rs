//! Patterns under load, on every backend.

mod fill;
mod mutant;
mod omission;
mod overhead;
mod pattern;
mod verdict;
