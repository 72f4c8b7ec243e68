//! tower layers on [`redstart`]'s patterns.
//!
//! | layer | what it does |
//! |---|---|
//! | [`LimitLayer`] | rate limits: 429, `Retry-After`, the `RateLimit` headers |
//! | [`IdempotencyLayer`] | `Idempotency-Key`: a request that comes twice is carried out once |
//! | [`CookieLayer`] | sessions by cookie: login, logout, logout everywhere |
//! | [`StoredSessions`] | a session store for `tower-sessions` |

#![forbid(unsafe_code)]

pub mod cookie;
pub mod idempotency;
pub mod limit;
pub mod session;

pub use cookie::{CookieLayer, CookieSession};
pub use idempotency::IdempotencyLayer;
pub use limit::LimitLayer;
pub use session::StoredSessions;

/// A name made of several parts, none of which can be read from it or taken for another.
fn digest(parts: &[&[u8]]) -> String {
    use sha2::Digest as _;
    let mut hash = sha2::Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let hex = |byte: &u8| format!("{byte:02x}");
    hash.finalize().iter().take(16).map(hex).collect()
}
