//! What the examples share: the store they run on.

/// The store at the URL in the first argument, or in `REDSTART_URL`, or an engine in this process.
///
/// # Errors
///
/// Those of [`redstart::Store::connect`].
pub async fn store() -> redstart::Result<redstart::Store> {
    let url = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("REDSTART_URL").ok())
        .unwrap_or_else(|| "memory://".to_owned());
    redstart::Store::connect(&url).await
}
