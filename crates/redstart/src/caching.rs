//! Caching: reads, writes, invalidation.
//!
//! | module | pattern |
//! |---|---|
//! | [`cache`] | cache-aside with leases, single flight, early refresh, negative entries, stale serving |
//! | [`invalidation`] | the first level in each process, and who tells it of changes |
//! | [`tags`] | many entries invalidated by one command |
//! | [`write_through`] | the database first, then the cache, with a fence around both |

pub mod cache;
pub mod invalidation;
pub mod tags;
pub mod write_through;

pub use cache::{
    Builder, Cache, CacheKey, Down, Hit, Load, LoadMany, Loaded, Source, Stampede, Stats, XFetch,
};
pub use invalidation::L1;
pub use tags::Tags;
pub use write_through::{Fence, Settled, WriteThrough, Written};
