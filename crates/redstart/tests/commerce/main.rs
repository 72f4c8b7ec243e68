//! Commerce: stock that is never sold twice and never lost.

mod stock;
