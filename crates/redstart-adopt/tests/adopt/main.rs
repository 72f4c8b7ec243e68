//! redstart-adopt beside the libraries themselves.
//!
//! ```text
//! main.rs        where the scripts of other languages are
//! served.rs      the embedded engine behind a listener of its own
//! recognise.rs   every library is named, none misnamed
//! ```

#![allow(clippy::unwrap_used, reason = "tests")]

mod recognise;
mod served;

use std::path::{Path, PathBuf};

/// A script in `tests/libraries`.
fn library(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/libraries")
        .join(name)
}
