//! Selling what is scarce.
//!
//! | module | what it is for |
//! |---|---|
//! | [`stock`] | flash-sale stock: never sold twice, never lost |

pub mod stock;
