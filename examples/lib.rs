//! The store that the examples run on.
//!
//! Each example is one small program, listed in the README. It runs on the embedded engine, or on the URL in its first
//! argument or in `REDSTART_URL`, and ends on its own.

#![forbid(unsafe_code)]

/// The store of the first argument, else of `REDSTART_URL`, else the embedded engine.
///
/// # Errors
///
/// Those of [`Store::connect`](redstart::Store::connect).
pub async fn store() -> redstart::Result<redstart::Store> {
    let url = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("REDSTART_URL").ok())
        .unwrap_or_else(|| "memory://".to_owned());
    redstart::Store::connect(&url).await
}
