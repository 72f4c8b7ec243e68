//! The patterns that people build on Redis and Valkey, done right.
//!
//! # Layout
//!
//! | module | what is in it |
//! |---|---|
//! | [`store`] | the one seam: a [`Store`] from a URL, over every backend |
//! | [`key`] | every key is made here |
//! | [`script`] | Lua scripts, by digest, on the keys of one entity |
//! | [`codec`] | values to bytes, with a versioned envelope |
//! | [`observe`] | the names of spans and metrics |
//! | [`error`] | the one error type |

#![forbid(unsafe_code)]

pub mod codec;
pub mod error;
pub mod key;
pub mod observe;
pub mod script;
pub mod store;

#[cfg(feature = "caching")]
pub mod caching;
#[cfg(feature = "commerce")]
pub mod commerce;
#[cfg(feature = "counting")]
pub mod counting;
#[cfg(feature = "limiting")]
pub mod limiting;
#[cfg(feature = "location")]
pub mod location;
#[cfg(feature = "locking")]
pub mod locking;
#[cfg(feature = "membership")]
pub mod membership;
#[cfg(feature = "messaging")]
pub mod messaging;
#[cfg(feature = "ranking")]
pub mod ranking;
#[cfg(feature = "resilience")]
pub mod resilience;
#[cfg(feature = "sessions")]
pub mod sessions;
#[cfg(feature = "social")]
pub mod social;
#[cfg(feature = "storage")]
pub mod storage;

pub use error::{Error, Result};
pub use store::Store;

#[doc(no_inline)]
pub use redis;
