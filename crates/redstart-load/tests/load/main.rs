//! Patterns under load, on every backend.

mod measure;
mod mutant;
mod naive;
mod omission;
mod overhead;
mod pattern;
mod prediction;
mod ramp;
mod verdict;
