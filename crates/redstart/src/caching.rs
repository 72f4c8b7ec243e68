//! Caching: reads, writes, invalidation.
//!
//! | module | pattern |
//! |---|---|
//! | [`cache`] | cache-aside with leases, single flight, early refresh, negative entries, stale serving |
//! | [`invalidation`] | the first level in each process, and who tells it of changes |
//! | [`tags`] | many entries invalidated by one command |
//! | [`write_through`] | the database first, then the cache, with a fence around both |
//! | [`write_behind`] | the store first, and the database behind it in batches |
//! | [`sorted_view`] | a cached SORT, rebuilt by one client at a time |
//! | `sql` | the database behind it: SQLite and Postgres, with the features `sqlite` and `postgres` |

pub mod cache;
pub mod invalidation;
pub mod sorted_view;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub mod sql;
pub mod tags;
pub mod write_behind;
pub mod write_through;

pub use cache::{
    Builder, Cache, CacheKey, Down, Hit, Load, LoadMany, Loaded, Source, Stampede, Stats, XFetch,
};
pub use invalidation::L1;
pub use sorted_view::SortedView;
pub use tags::Tags;
pub use write_behind::{Lag, Put, Sink, Worker, WriteBehind};
pub use write_through::{Fence, Settled, WriteThrough, Written};

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
