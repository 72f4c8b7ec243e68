//! Caching: reads, writes, invalidation.
//!
//! | type | pattern | made by |
//! |---|---|---|
//! | [`Cache`] | cache-aside with leases, single flight, early refresh, negative entries, stale serving | [`Cache::builder`] |
//! | [`CacheSet`] | caches of several types with one set of settings and tags, and one first level | [`CacheSet::builder`] |
//! | [`L1`] | the first level in each process, and how it learns of changes | [`CacheBuilder::l1`] |
//! | [`Tags`] | many entries invalidated by one command | [`Load::tag`] in the loader |
//! | [`WriteThrough`] | the database first, then the cache, with a fence around both | [`WriteThrough::new`] |
//! | [`WriteBehind`] | the store first, and the database behind it in batches | [`WriteBehind::builder`] |
//! | `SqlSink` | the database behind a write-behind: SQLite and Postgres, with the features `sqlite` and `postgres` | `SqlSink::connect` |
//! | [`SortedView`] | a cached SORT, rebuilt by one client at a time | [`SortedView::builder`] |

mod cache;
mod cache_set;
mod fingerprint;
mod invalidation;
mod sorted_view;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod sql;
mod tags;
mod write_behind;
mod write_through;

pub use cache::{
    Cache, CacheBuilder, CacheKey, CacheStats, Hit, HitSource, Load, LoadMany, Loaded, Stampede,
    XFetch,
};
pub use cache_set::{CacheSet, CacheSetBuilder};
pub use invalidation::L1;
pub use sorted_view::{SortedView, SortedViewBuilder};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use sql::{SqlRow, SqlSink, SqlValue};
pub use tags::Tags;
pub use write_behind::{
    Change, Changes, DeadWrite, EntryId, Lag, Put, RefusedChange, Sink, SinkClaim, SinkError,
    WriteBehind, WriteBehindBuilder, WriteBehindWorker,
};
pub use write_through::{CacheUpdate, Fence, WriteThrough, Written};

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[
    &cache::lease::LEASE,
    &cache::lease::FILL,
    &cache::lease::RELEASE,
    &cache::lease::INVALIDATE,
    &tags::SEED,
    &tags::BUMP,
    &tags::INDEX,
    &tags::CLEAR,
    &write_through::FENCE,
    &write_through::SETTLE,
    &write_behind::PUT,
    &write_behind::LEASE,
    &write_behind::FILL,
    &write_behind::BURY,
    &write_behind::UNBURY,
    &write_behind::CLAIM,
    &write_behind::RESIGN,
    &write_behind::ACK,
    &sorted_view::LEASE,
    &sorted_view::SORT,
    &sorted_view::KEEP,
    &sorted_view::DROP,
];
