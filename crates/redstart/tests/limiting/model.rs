//! Against brute force.
