//! What keeps a service standing when others fall: circuit breakers and idempotency keys.
//!
//! | module | what it is for |
//! |---|---|
//! | [`idempotency`] | a request that comes twice is carried out once and answered twice |

pub mod idempotency;
