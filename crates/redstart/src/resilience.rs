//! What keeps a service standing when others fall: circuit breakers and idempotency keys.
//!
//! | module | what it is for |
//! |---|---|
//! | [`breaker`] | a dependency that fails is left alone for a while, by the whole fleet |
//! | [`idempotency`] | a request that comes twice is carried out once and answered twice |

pub mod breaker;
pub mod idempotency;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
