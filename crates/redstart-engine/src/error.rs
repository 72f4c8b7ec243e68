//! The errors that commands share, word for word as Redis 7.0 says them.

use std::borrow::Cow;

use crate::{blocking::Wait, reply::Reply};

pub(crate) const WRONG_TYPE: &str =
    "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(crate) const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
pub(crate) const LOG_FAILED: &str = "MISCONF Errors writing to the AOF file";
/// The end of the same message where the command was carried out, and what it wrote or read may be lost. The library looks
/// for it.
pub(crate) const NOT_KEPT: &str =
    "; the command was carried out, and what it wrote or read is not on the disk";
pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const NOT_FLOAT: &str = "ERR value is not a valid float";
pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";
pub(crate) const OUT_OF_RANGE: &str = "ERR value is out of range";
pub(crate) const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";
pub(crate) const MIN_MAX_NOT_FLOAT: &str = "ERR min or max is not a float";
pub(crate) const STRING_TOO_LONG: &str =
    "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

/// Why a handler did not answer: it failed, or it has to wait.
pub(crate) enum Stop {
    /// The text of the error reply, with its code.
    Error(Cow<'static, str>),
    /// The client must wait; made by [`crate::context::Ctx::block`].
    Block(Box<Wait>),
}

/// What every command handler returns.
pub(crate) type CommandResult = Result<Reply, Stop>;

impl Stop {
    pub(crate) fn wrong_arity(full_name: &str) -> Stop {
        Stop::Error(format!("ERR wrong number of arguments for '{full_name}' command").into())
    }
}

impl From<&'static str> for Stop {
    fn from(text: &'static str) -> Stop {
        Stop::Error(Cow::Borrowed(text))
    }
}

impl From<String> for Stop {
    fn from(text: String) -> Stop {
        Stop::Error(Cow::Owned(text))
    }
}

/// What can go wrong while an engine is built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// An invalid setting.
    #[error("invalid engine setting: {0}")]
    Setting(&'static str),
    /// The rules of the users are invalid, or their file cannot be read.
    #[error("invalid users: {0}")]
    Users(String),
    /// The data folder cannot be used.
    #[error("cannot use the data folder: {0}")]
    Io(#[from] std::io::Error),
    /// The log in the data folder cannot be read back.
    #[error("cannot load the append-only log: {0}")]
    Log(String),
    /// An RDB file cannot be read or written.
    #[error("cannot use the RDB file: {0}")]
    Rdb(String),
    /// The file that says where the data moved to names no place.
    #[error("{0} names no place: write <host>:<port> into it, or remove it if the data is here")]
    Place(String),
    /// Another server's data cannot be copied.
    #[error("cannot copy the server's data: {0}")]
    Copy(String),
}
