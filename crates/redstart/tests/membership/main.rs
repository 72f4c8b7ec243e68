//! Bloom filters.

mod bloom;
