//! An append-only file, in an engine of its own that stands at the time of the file's last change: what had a TTL then still
//! has it, however old the file is.

use std::{
    fs::File,
    io::{Read, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use redstart::Store;
use redstart_engine::{Clock, Engine, Fsync};

use crate::{
    error::{Error, Result},
    progress::Progress,
    snapshot::{self, DATABASES},
};

/// What is copied at a time.
const BLOCK: usize = 1 << 20;
/// The last time stamp of a file is looked for in its end.
const TAIL: u64 = 1 << 20;

/// What was in a file.
pub(crate) struct Loaded {
    pub(crate) store: Store,
    /// Seconds since 1970 at which the engine stands.
    pub(crate) written: Option<i64>,
    /// Whether the file says when it was written. If not, it is taken to be as old as its last change.
    pub(crate) is_dated: bool,
    /// The files that the engine has open.
    _copy: tempfile::TempDir,
}

/// Loads a file or the folder of one; `None` if it was stopped. The files themselves are only read.
pub(crate) fn load(path: &Path, progress: &Progress) -> Result<Option<Loaded>> {
    let Some(copy) = copy_of(path, progress)? else {
        return Ok(None);
    };
    let written = written(&copy.files);
    let clock = match written {
        Some((seconds, _)) => Clock::manual_at(seconds.saturating_mul(1_000_000)),
        None => Clock::manual(),
    };
    progress.step("loading the file", 0, 1);
    let damaged = |error: &dyn std::fmt::Display| {
        Error::File(format!("{} cannot be loaded: {error}", path.display()))
    };
    let engine = Engine::builder()
        .databases(DATABASES)
        .clock(clock)
        .append_only(copy.folder.path(), Fsync::No)
        .build()
        .map_err(|error| damaged(&error))?;
    Ok(Some(Loaded {
        store: Store::try_from(engine).map_err(|error| damaged(&error))?,
        written: written.map(|(seconds, _)| seconds),
        is_dated: written.is_some_and(|(_, dated)| dated),
        _copy: copy.folder,
    }))
}

struct Copy {
    folder: tempfile::TempDir,
    /// Where each copy came from.
    files: Vec<PathBuf>,
}

/// A copy as the embedded engine wants it, because loading may shorten a torn file.
fn copy_of(path: &Path, progress: &Progress) -> Result<Option<Copy>> {
    let failed = |error: std::io::Error| {
        Error::File(format!("{} cannot be copied: {error}", path.display()))
    };
    let folder = tempfile::tempdir().map_err(failed)?;
    let into = folder.path().join("appendonlydir");
    std::fs::create_dir(&into).map_err(failed)?;
    if path.is_file() {
        let mut first = [0; 16];
        let read = File::open(path)
            .and_then(|mut file| file.read(&mut first))
            .map_err(failed)?;
        let (name, kind) = match snapshot::is_snapshot(&first[..read]) {
            true => ("appendonly.aof.1.base.rdb", 'b'),
            false => ("appendonly.aof.1.incr.aof", 'i'),
        };
        let whole = copy(path, &into.join(name), progress).map_err(failed)?;
        let manifest = format!("file {name} seq 1 type {kind}\n");
        std::fs::write(into.join("appendonly.aof.manifest"), manifest).map_err(failed)?;
        let files = vec![path.to_owned()];
        return Ok(whole.then_some(Copy { folder, files }));
    }
    let inner = path.join("appendonlydir");
    let from = if inner.is_dir() {
        inner
    } else {
        path.to_owned()
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if entry.path().is_file() && name.to_string_lossy().contains("aof") {
            if !copy(&entry.path(), &into.join(&name), progress).map_err(failed)? {
                return Ok(None);
            }
            files.push(entry.path());
        }
    }
    if files.is_empty() {
        return Err(Error::Usage(format!(
            "{} holds no append-only file",
            path.display()
        )));
    }
    Ok(Some(Copy { folder, files }))
}

/// Copies a file; `false` if it was stopped.
fn copy(from: &Path, to: &Path, progress: &Progress) -> std::io::Result<bool> {
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    let all = from.metadata().map_or(0, |meta| meta.len());
    let mut block = vec![0; BLOCK];
    let mut done = 0;
    loop {
        if progress.is_stopped() {
            return Ok(false);
        }
        progress.step("copying the file", done, all);
        let read = from.read(&mut block)?;
        if read == 0 {
            return Ok(true);
        }
        to.write_all(&block[..read])?;
        done += read as u64;
    }
}

/// When the newest of these files was last written to, in seconds since 1970, and whether it says so itself: a time stamp in
/// it is not changed by copying the file.
fn written(files: &[PathBuf]) -> Option<(i64, bool)> {
    let stamped = files.iter().filter_map(|file| stamp(file)).max();
    let is_data = |file: &&PathBuf| file.extension().is_none_or(|name| name != "manifest");
    let changed = files.iter().filter(is_data).filter_map(|file| {
        let modified: SystemTime = std::fs::metadata(file).ok()?.modified().ok()?;
        let since = modified.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since.as_secs()).ok()
    });
    let stamped = stamped.map(|seconds| (seconds, true));
    stamped.or_else(|| changed.max().map(|seconds| (seconds, false)))
}

/// The last `#TS:` of a file, which a server writes with `aof-timestamp-enabled yes`.
fn stamp(file: &Path) -> Option<i64> {
    const MARK: &[u8] = b"#TS:";
    let mut file = File::open(file).ok()?;
    let mut head = [0; MARK.len()];
    let at_start = file.read_exact(&mut head).is_ok() && head == MARK;
    let end = file.seek(SeekFrom::End(0)).ok()?;
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(end.saturating_sub(TAIL))).ok()?;
    file.read_to_end(&mut tail).ok()?;
    let marked = [b"\n", MARK].concat();
    let last = tail
        .windows(marked.len())
        .rposition(|part| part == marked)
        .map(|at| at + marked.len());
    let first = (at_start && end <= TAIL).then_some(MARK.len());
    let digits = &tail[last.or(first)?..];
    let length = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..length]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_time_stamp_counts() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (text, expected) in [
            (
                "#TS:1700000000\r\n*1\r\n$4\r\nPING\r\n",
                Some(1_700_000_000),
            ),
            (
                "#TS:17\r\n*1\r\n$4\r\nPING\r\n#TS:1700000000\r\n",
                Some(1_700_000_000),
            ),
            ("*1\r\n$4\r\nPING\r\n", None),
            ("#TS:", None),
            ("", None),
        ] {
            std::fs::write(file.path(), text).expect("written");
            assert_eq!(stamp(file.path()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_copy_that_is_stopped_is_none() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "*1\r\n$4\r\nPING\r\n").expect("written");
        let progress = Progress::default();
        assert!(load(file.path(), &progress).expect("loaded").is_some());
        progress.stop();
        assert!(load(file.path(), &progress).expect("stopped").is_none());
    }
}
