//! Selling scarce goods.
//!
//! | pattern | purpose |
//! |---|---|
//! | [`Stock`] | flash-sale stock: no unit is sold twice, none is lost |

mod stock;

pub use stock::{
    Extension, Prewarm, Request, ReservationState, Reserve, Restock, Stock, StockBuilder,
    StockReport, Transition,
};

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[
    &stock::CLOSE,
    &stock::EXTEND,
    &stock::LEND,
    &stock::OFFER,
    &stock::PREWARM,
    &stock::RECEIVE,
    &stock::REPORT,
    &stock::RESERVE,
    &stock::RESTOCK,
    &stock::SETTLE,
    &stock::SETTLE_LOAN,
    &stock::TIME,
    &stock::WARM,
];
