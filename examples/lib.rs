//! What the examples share.

/// The store that the first argument names, or `REDSTART_URL`, or else the embedded engine.
pub async fn store() -> redstart::Result<redstart::Store> {
    let url = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("REDSTART_URL").ok())
        .unwrap_or_else(|| "memory://".to_owned());
    redstart::Store::connect(&url).await
}
