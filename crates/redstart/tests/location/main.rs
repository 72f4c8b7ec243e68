//! Places.

mod places;
