//! What can go wrong before there is anything to report.

/// Why there is no report at all. A part that could not be seen is no error: the report names it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid arguments, URL or file.
    #[error("{0}")]
    Usage(String),
    /// The server cannot be reached.
    #[error("{0}")]
    Unavailable(String),
    /// A file could not be read or written.
    #[error("{0}")]
    File(String),
}

/// The result of an examination.
pub type Result<T, E = Error> = std::result::Result<T, E>;
