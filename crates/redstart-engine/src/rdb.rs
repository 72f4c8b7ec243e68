//! RDB: the binary form of values (DUMP, RESTORE) and of all data (snapshots, bases of logs).
//!
//! | file | what it holds |
//! |---|---|
//! | `source.rs` | reading: bytes, lengths, strings; the running checksum |
//! | `read.rs`, `write.rs` | values of every type and encoding; as Redis 7.0 writes them |
//! | `listpack.rs`, `ziplist.rs`, `intset.rs`, `lzf.rs`, `stream.rs`, `module.rs` | the encodings |
//! | `payload.rs` | one value with its footer: what DUMP returns |
//! | `file.rs` | whole files |
//! | `save.rs` | SAVE and BGSAVE |
//!
//! # What is read and written
//!
//! Versions 6 to 12 of Redis and 80 of Valkey are read, in every encoding. What is written is
//! version 10, that of Redis 7.0, which Valkey loads as well; an engine that emulates a newer
//! server writes that one's version, and one that holds fields that expire Valkey's at least.
//!
//! # Hostile input
//!
//! Nothing that is read is believed: a length takes no memory before the bytes are there, a
//! compressed string cannot claim to be longer than its bytes allow, packed strings are checked
//! element by element. Damage is an error.

mod file;
mod intset;
mod listpack;
mod lzf;
mod module;
mod payload;
mod read;
mod save;
mod source;
mod stream;
mod write;
mod ziplist;

use std::io::{self, Read, Write};

use crate::{Engine, aof, engine::State, error::EngineError};

pub use file::Summary;
pub(crate) use file::{Contents, Expired, load, replace};
pub(crate) use payload::{Refused, dump, dump_functions, restore, restore_functions};
pub(crate) use save::{
    NOT_SAVED, Saves, has_save_points, load_snapshot, log_ended, refuses_writes, save, save_at_end,
    save_if_due, save_later, snapshot_path, uses_folder,
};

use file::Values;

/// The first and the last version of Redis that is read.
const REDIS: std::ops::RangeInclusive<u32> = 6..=12;
/// The versions that are Valkey's.
const VALKEY_FROM: u32 = 80;
const VALKEY: std::ops::RangeInclusive<u32> = VALKEY_FROM..=80;

/// Whether files and payloads of a version can be read.
fn is_known(version: u32) -> bool {
    REDIS.contains(&version) || VALKEY.contains(&version)
}

/// Whether a file begins as RDB files do.
pub(crate) fn is_file(start: &[u8]) -> bool {
    start.starts_with(b"REDIS") || start.starts_with(b"VALKEY")
}

/// Why something cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Io(io::Error),
    #[error("it ends too early")]
    Ended,
    #[error("{0} is damaged")]
    Damaged(&'static str),
    #[error("{0}")]
    Refused(String),
    /// A collection without members, which no server has.
    #[error("an empty value")]
    Empty,
}

/// All data as a file for a server without modules.
pub(crate) fn encode(state: &State, now_micros: i64) -> io::Result<Vec<u8>> {
    let mut encoded = Vec::new();
    file::write(state, now_micros, Values::Plain, &mut encoded, &mut |_| ())?;
    Ok(encoded)
}

/// Puts what was loaded in the place of all that is there, also in the data folder.
pub(crate) fn replace_and_keep(
    engine: &Engine,
    contents: Contents,
) -> Result<Summary, EngineError> {
    let summary = contents.summary.clone();
    let mut state = engine.inner.lock();
    if state.replica.is_some() {
        return Err(EngineError::Copy(
            "all data is that of the server that is followed; promote this engine first".into(),
        ));
    }
    replace(&mut state, contents).map_err(|fault| EngineError::Rdb(fault.to_string()))?;
    crate::dispatch::finish(&mut state, engine.now_micros());
    aof::keep_replaced(&mut state)?;
    Ok(summary)
}

impl Engine {
    /// Puts what an RDB file holds in the place of all data. Others go on with the old data while
    /// the file is read, and nothing changes if it is damaged.
    ///
    /// `progress` is called from time to time with what was read so far.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is damaged, the data folder cannot be written, or a server is
    /// followed.
    pub fn load_rdb(
        &self,
        from: impl Read,
        mut progress: impl FnMut(&Summary),
    ) -> Result<Summary, EngineError> {
        let now = self.now_micros();
        let config = self.inner.lock().config.clone();
        let contents = load(
            from,
            self.inner.databases,
            &config,
            now / 1000,
            Expired::LeftOut,
            &mut progress,
        )
        .map_err(|fault| EngineError::Rdb(fault.to_string()))?;
        replace_and_keep(self, contents)
    }

    /// Writes all data as an RDB file that Redis 7.0 and Valkey load. Everybody waits meanwhile.
    ///
    /// Bloom filters are left out and counted in [`Summary::left_out`]: a server without their
    /// module would refuse the whole file.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn save_rdb(
        &self,
        mut to: impl Write,
        mut progress: impl FnMut(&Summary),
    ) -> Result<Summary, EngineError> {
        let state = self.inner.lock();
        file::write(
            &state,
            self.now_micros(),
            Values::Plain,
            &mut to,
            &mut progress,
        )
        .and_then(|summary| to.flush().map(|()| summary))
        .map_err(|error| EngineError::Rdb(error.to_string()))
    }
}
