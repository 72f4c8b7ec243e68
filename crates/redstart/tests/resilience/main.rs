//! Resilience: circuits that a fleet shares.

mod breaker;
