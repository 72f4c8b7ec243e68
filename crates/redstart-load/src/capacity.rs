//! How much a deployment needs: a table of measured costs, and plans made from it.
//!
//! ```text
//! cost.rs       the table: bytes per entity and CPU per operation, with the versions it was measured on
//! fill.rs       how to fill a store with entities of each pattern
//! measure.rs    makes the table on a real server
//! character.rs  what is hot in a pattern, how it spreads, and what limits it
//! need.rs       what is wanted: numbers with units, flags, TOML
//! plan.rs       memory, nodes, network, hot spots, failover
//! alternative.rs  what else would do, and where each stops being right
//! page.rs       the page "Scale" of the documentation
//! simulate.rs   slot balance and hot keys of a billion users on a thousand nodes
//! ```

mod alternative;
mod character;
mod cost;
mod fill;
mod measure;
mod need;
mod page;
mod plan;
mod simulate;

pub use alternative::Alternative;
pub use character::{Character, Spreading, character};
pub use cost::{CostTable, EntityCost, PatternCost, Point, ServerCosts};
pub use fill::{Filling, fillings};
pub use measure::{measure, measure_cost, measure_fill};
pub use need::{Need, Wanted, quantity};
pub use page::{naive_reports, page};
pub use plan::{Failover, InOneKey, Limits, NeedCost, Plan, Quorum, plan};
pub use simulate::{Balance, simulate};
