//! What can go wrong before, during and after a run.

/// A load test or a plan that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid settings, files or parameters.
    #[error("{0}")]
    Config(String),
    /// The store failed outside the load itself; errors of operations are part of the report.
    #[error("{0}")]
    Store(#[from] redstart::Error),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn config(text: impl Into<String>) -> Self {
        Self::Config(text.into())
    }
}
