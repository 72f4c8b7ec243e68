//! Reading the log back: its commands are run again.

use std::io::{self, BufRead, BufReader, Read, SeekFrom};

use bytes::{Bytes, BytesMut};

use super::folder::{Folder, Source};
use crate::{
    client::Client,
    context::{Ctx, Origin},
    engine::State,
    error::{EngineError, Stop},
    rdb, registry,
    reply::Protocol,
    resp::{Limits, Parser},
};

/// What the end of the last file that holds anything may look like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// The process that wrote it may have died while it did.
    MayBeTorn,
    Whole,
}

/// What a command that fails means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Failing {
    /// It is reported and left out: what can be read is served.
    LeftOut,
    /// Nothing was loaded: what is made of this must not have less than the log.
    Refused,
}

/// Repeats the commands of all files.
pub(super) fn load(
    folder: &dyn Folder,
    files: &[String],
    state: &mut State,
    now_micros: i64,
    (tail, failing): (Tail, Failing),
) -> Result<(), EngineError> {
    let is_empty = |name: &String| folder.len(name).is_ok_and(|len| len == 0);
    // A process that died while it began a new increment may have left that empty.
    let last = files.iter().rposition(|name| !is_empty(name));
    state.loading = true;
    let mut result = Ok(());
    for (at, name) in files.iter().enumerate() {
        let torn = if Some(at) == last { tail } else { Tail::Whole };
        result = load_file(folder, name, state, now_micros, (torn, failing));
        if result.is_err() {
            break;
        }
    }
    state.loading = false;
    result
}

/// Repeats the commands of a copy in memory.
pub(super) fn load_bytes(
    bytes: Vec<u8>,
    state: &mut State,
    now_micros: i64,
) -> Result<(), EngineError> {
    state.loading = true;
    let loaded = repeat_all(&mut bytes.as_slice(), state, now_micros, Failing::LeftOut);
    state.loading = false;
    loaded.map(|_| ()).map_err(EngineError::Log)
}

fn load_file(
    folder: &dyn Folder,
    name: &str,
    state: &mut State,
    now_micros: i64,
    (tail, failing): (Tail, Failing),
) -> Result<(), EngineError> {
    let bad = |text: String| EngineError::Log(format!("{}: {text}", folder.shown(name)));
    let mut file = match folder.read(name) {
        Ok(file) => file,
        Err(error) => return Err(bad(error.to_string())),
    };
    let len = folder.len(name)?;
    if len == 0 && name.ends_with(".base.rdb") {
        // Even one without keys has a header: what was in it is lost.
        return Err(bad(
            "is empty, which a base in RDB format never is".to_owned()
        ));
    }
    let end = match tail {
        // A base in RDB format may end in zeros, and knows its own end.
        Tail::MayBeTorn if !begins_as_rdb(&mut *file)? => end_of_data(&mut *file, len)?,
        _ => len,
    };
    let good = repeat_all(&mut file.take(end), state, now_micros, failing).map_err(bad)?;
    if good < len {
        let cuts = state.config.remembered.get("aof-load-truncated");
        if tail == Tail::Whole || cuts.is_some_and(|word| word.as_ref() == b"no") {
            return Err(bad(format!("ends within a command at byte {good}")));
        }
        tracing::warn!(
            file = folder.shown(name),
            bytes = len - good,
            "the log ends within a command: the rest is cut off"
        );
        let (file, _) = folder.open(name)?;
        file.cut(good)?;
        // More is written behind it, or in later files: this must not come back.
        file.sync()?;
    }
    Ok(())
}

/// Repeats the commands that are read; how many bytes whole commands make up.
fn repeat_all(
    source: &mut dyn Read,
    state: &mut State,
    now_micros: i64,
    failing: Failing,
) -> Result<u64, String> {
    let limits = Limits {
        bulk: i64::MAX as usize,
        authenticated: true,
    };
    let mut parser = Parser::strict();
    let mut client = Client::internal(0, 0, Protocol::Resp2);
    let mut total = 0u64;
    // All before it was repeated.
    let mut good = 0u64;
    let mut multi: Option<Vec<Vec<Bytes>>> = None;
    let text = |error: io::Error| error.to_string();
    let mut source = BufReader::with_capacity(64 * 1024, source);
    if rdb::is_file(source.fill_buf().map_err(text)?) {
        total = load_rdb(&mut source, state, now_micros)?;
        good = total;
    }
    let mut piece = vec![0; 1024 * 1024];
    loop {
        let count = source.read(&mut piece).map_err(text)?;
        if count == 0 {
            return Ok(good);
        }
        total += count as u64;
        let buffer: &mut BytesMut = parser.buffer();
        buffer.extend_from_slice(&piece[..count]);
        while let Some(args) = parser
            .next(limits)
            .map_err(|error| format!("{} near byte {good}", error.0))?
        {
            let is = |word: &[u8]| args[0].eq_ignore_ascii_case(word);
            if args[0].starts_with(b"#") {
                // An annotation.
            } else if is(b"MULTI") {
                multi = Some(Vec::new());
            } else if is(b"EXEC") {
                for args in multi.take().unwrap_or_default() {
                    repeat(state, &mut client, &args, now_micros, failing)?;
                }
            } else if let Some(queue) = &mut multi {
                queue.push(args);
            } else {
                repeat(state, &mut client, &args, now_micros, failing)?;
            }
            if multi.is_none() {
                good = total - parser.len() as u64;
            }
        }
    }
}

/// Where the data of a file ends: when power is lost, a file may have become longer without having
/// got what was written there, and reads as zeros. No command ends in one.
fn end_of_data(file: &mut dyn Source, len: u64) -> io::Result<u64> {
    const PIECE: u64 = 64 * 1024;
    let mut piece = Vec::new();
    let mut end = len;
    while end > 0 {
        let start = end.saturating_sub(PIECE);
        file.seek(SeekFrom::Start(start))?;
        piece.clear();
        (&mut *file).take(end - start).read_to_end(&mut piece)?;
        if let Some(last) = piece.iter().rposition(|byte| *byte != 0) {
            end = start + last as u64 + 1;
            break;
        }
        end = start;
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(end)
}

fn begins_as_rdb(file: &mut dyn Source) -> io::Result<bool> {
    let mut start = Vec::new();
    (&mut *file).take(8).read_to_end(&mut start)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(rdb::is_file(&start))
}

/// Loads a base in RDB format, which commands may follow; its length.
pub(super) fn load_rdb(
    source: impl Read,
    state: &mut State,
    now_micros: i64,
) -> Result<u64, String> {
    let contents = rdb::load(
        source,
        state.dbs.len(),
        &state.config,
        now_micros / 1000,
        // The commands that follow may speak of them.
        rdb::Expired::Kept,
        &mut |_| (),
    )
    .map_err(|fault| fault.to_string())?;
    contents.summary.refuse_modules()?;
    let len = contents.summary.bytes;
    rdb::replace(state, contents).map_err(|fault| fault.to_string())?;
    state.ready.clear();
    Ok(len)
}

/// Runs one command of the log.
fn repeat(
    state: &mut State,
    client: &mut Client,
    args: &[Bytes],
    now_micros: i64,
    failing: Failing,
) -> Result<(), String> {
    let name = registry::printable(&args[0]);
    let spec = match registry::resolve_any(args) {
        Ok(spec) => spec,
        Err(Stop::Error(text)) => return Err(format!("cannot repeat {name}: {text}")),
        Err(Stop::Block(_)) => return Err(format!("cannot repeat {name}")),
    };
    let mut cx = Ctx::new(state, client, now_micros, Origin::Engine);
    if let Err(Stop::Error(text)) = cx.call(spec, args) {
        if spec.name == "select" {
            return Err(format!("{text}: the log was written with more databases"));
        }
        if failing == Failing::Refused {
            return Err(format!("cannot repeat {name}: {text}"));
        }
        tracing::error!(command = %name, error = %text, "a command of the log fails and is left out");
    }
    state.ready.clear();
    Ok(())
}
