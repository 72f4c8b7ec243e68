//! What every example begins with: the store it runs on.
//!
//! Each example is one small program, named in the README. It runs on the embedded engine unless the first
//! argument or `REDSTART_URL` says otherwise, and ends by itself.

#![forbid(unsafe_code)]

/// The store that the first argument names, else `REDSTART_URL`, else the embedded engine.
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
