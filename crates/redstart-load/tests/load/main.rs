//! Patterns under load, on every backend.

mod fill;
mod mutant;
mod naive;
mod omission;
mod overhead;
mod pattern;
mod ramp;
mod verdict;
