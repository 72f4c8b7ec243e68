//! Patterns under load, on every backend.

mod omission;
mod pattern;
