//! Storage: arrays of fixed-size records in one string.

pub mod array;

pub use array::FixedArray;
