//! An RDB file, in an engine of its own that stands at the time at which the file was written: what had a TTL then still
//! has it, however old the file is.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::Path,
    time::UNIX_EPOCH,
};

use redstart::Store;
use redstart_engine::{Clock, Engine, Summary};

use crate::{
    error::{Error, Result},
    progress::Progress,
};

/// The engine takes as much memory as a server with this data.
const BUFFER: usize = 1 << 20;
/// The time of a file is said at its beginning.
const HEAD: usize = 4096;
/// A server may be configured for more; the engine has none above.
pub(crate) const DATABASES: usize = 1024;

/// Whether a file that begins like this is an RDB file.
pub(crate) fn is_snapshot(first: &[u8]) -> bool {
    first.starts_with(b"REDIS") || first.starts_with(b"VALKEY")
}

/// Whether an RDB file that begins like this is the base of an append-only file.
pub(crate) fn is_log_base(first: &[u8]) -> bool {
    // The field has had two names.
    [b"\xfa\x08aof-base".as_slice(), b"\xfa\x0caof-preamble"]
        .iter()
        .any(|field| {
            let at = first.windows(field.len()).position(|part| part == *field);
            at.is_some_and(|at| {
                let value = &first[at + field.len()..];
                value.starts_with(b"\xc0\x01") || value.starts_with(b"\x011")
            })
        })
}

/// What was in a file.
pub(crate) struct Loaded {
    pub(crate) store: Store,
    pub(crate) summary: Summary,
    /// Whether the file says when it was written. If not, it is taken to be as old as its last change.
    pub(crate) is_dated: bool,
}

/// A file whose reader can be told to stop.
struct Stoppable<'a>(File, &'a Progress);

impl Read for Stoppable<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self.1.is_stopped() {
            true => Err(std::io::Error::other("it was stopped")),
            false => self.0.read(into),
        }
    }
}

/// Loads a file; `None` if it was stopped. The file itself is only read.
pub(crate) fn load(path: &Path, progress: &Progress) -> Result<Option<Loaded>> {
    let shown = path.display();
    let unreadable =
        |error: std::io::Error| Error::File(format!("{shown} cannot be read: {error}"));
    let mut head = Vec::with_capacity(HEAD);
    let file = File::open(path).map_err(unreadable)?;
    let modified = file.metadata().and_then(|meta| meta.modified());
    (&file)
        .take(HEAD as u64)
        .read_to_end(&mut head)
        .map_err(unreadable)?;
    let dated = written_at(&head);
    let written = dated.or_else(|| {
        let since = modified.ok()?.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since.as_secs()).ok()
    });
    let clock = match written {
        Some(seconds) => Clock::manual_at(seconds.saturating_mul(1_000_000)),
        None => Clock::manual(),
    };
    let damaged =
        |error: &dyn std::fmt::Display| Error::File(format!("{shown} cannot be loaded: {error}"));
    let engine = Engine::builder()
        .databases(DATABASES)
        .clock(clock)
        .build()
        .map_err(|error| damaged(&error))?;
    let file = File::open(path).map_err(unreadable)?;
    let reader = BufReader::with_capacity(BUFFER, Stoppable(file, progress));
    let summary = match engine.load_rdb(reader, |_| {}) {
        Ok(summary) => summary,
        Err(_) if progress.is_stopped() => return Ok(None),
        Err(error) => return Err(damaged(&error)),
    };
    let store = Store::try_from(engine).map_err(|error| damaged(&error))?;
    Ok(Some(Loaded {
        store,
        summary,
        is_dated: dated.is_some(),
    }))
}

/// The field `ctime`, in seconds since 1970.
fn written_at(head: &[u8]) -> Option<i64> {
    const FIELD: &[u8] = b"\xfa\x05ctime";
    let at = head.windows(FIELD.len()).position(|part| part == FIELD)?;
    let value = &head[at + FIELD.len()..];
    match value {
        // A number of 32 bits, as servers write it until 2038.
        [0xC2, a, b, c, d, ..] => Some(u32::from_le_bytes([*a, *b, *c, *d]).into()),
        // Digits, with their count in front.
        [len @ 0..64, rest @ ..] => {
            let digits = rest.get(..usize::from(*len))?;
            std::str::from_utf8(digits).ok()?.parse().ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_file_is_read_in_both_forms() {
        let number = [
            b"REDIS0011\xfa\x05ctime\xc2".as_slice(),
            &1_700_000_000_u32.to_le_bytes(),
        ];
        assert_eq!(written_at(&number.concat()), Some(1_700_000_000));
        let digits =
            b"REDIS0010\xfa\x09redis-ver\x057.0.0\xfa\x05ctime\x0a1700000000\xfa\x08used-mem";
        assert_eq!(written_at(digits), Some(1_700_000_000));
        for odd in [
            &b"REDIS0011"[..],
            b"REDIS0011\xfa\x05ctime",
            b"\xfa\x05ctime\x0a17",
        ] {
            assert_eq!(written_at(odd), None);
        }
    }
}
