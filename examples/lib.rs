//! What all examples share: where their store is.

use redstart::{Result, Store};

/// The store that the first argument or `REDSTART_URL` names; `memory://` if neither does.
///
/// # Errors
///
/// Those of [`Store::connect`].
pub async fn store() -> Result<Store> {
    let url = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("REDSTART_URL").ok())
        .unwrap_or_else(|| "memory://".to_owned());
    Store::connect(&url).await
}
