//! What every example begins with.

#![forbid(unsafe_code)]

/// The store that the example runs on: the first argument, else `REDSTART_URL`, else `memory://`.
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
