//! Reading the log back: its commands are run again.

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    path::Path,
};

use bytes::{Bytes, BytesMut};

use crate::{
    client::Client,
    context::{Ctx, Origin},
    engine::State,
    error::{EngineError, Stop},
    registry,
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

/// Repeats the commands of all files.
pub(super) fn load(
    folder: &Path,
    files: &[String],
    state: &mut State,
    now_micros: i64,
    tail: Tail,
) -> Result<(), EngineError> {
    let is_empty =
        |name: &String| fs::metadata(folder.join(name)).is_ok_and(|file| file.len() == 0);
    // A process that died while it began a new increment may have left that empty.
    let last = files.iter().rposition(|name| !is_empty(name));
    state.loading = true;
    let mut result = Ok(());
    for (at, name) in files.iter().enumerate() {
        let torn = if Some(at) == last { tail } else { Tail::Whole };
        result = load_file(&folder.join(name), state, now_micros, torn);
        if result.is_err() {
            break;
        }
    }
    state.loading = false;
    result
}

fn load_file(
    path: &Path,
    state: &mut State,
    now_micros: i64,
    tail: Tail,
) -> Result<(), EngineError> {
    let bad = |text: String| EngineError::Log(format!("{}: {text}", path.display()));
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return Err(bad(error.to_string())),
    };
    let limits = Limits {
        bulk: i64::MAX as usize,
        authenticated: true,
    };
    let mut parser = Parser::default();
    let mut client = Client::internal(0, 0, Protocol::Resp2);
    let mut total = 0u64;
    // All before it was repeated.
    let mut good = 0u64;
    let mut multi: Option<Vec<Vec<Bytes>>> = None;
    let mut piece = vec![0; 1024 * 1024];
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            break;
        }
        if total == 0 && piece.starts_with(b"REDIS") {
            return Err(bad(
                "this base is in RDB format; let the server that wrote it rewrite it with \
                 aof-use-rdb-preamble no"
                    .into(),
            ));
        }
        total += count as u64;
        let buffer: &mut BytesMut = parser.buffer();
        buffer.extend_from_slice(&piece[..count]);
        while let Some(args) = parser
            .next(limits)
            .map_err(|error| bad(format!("{} near byte {good}", error.0)))?
        {
            let is = |word: &[u8]| args[0].eq_ignore_ascii_case(word);
            if args[0].starts_with(b"#") {
                // An annotation.
            } else if is(b"MULTI") {
                multi = Some(Vec::new());
            } else if is(b"EXEC") {
                for args in multi.take().unwrap_or_default() {
                    repeat(state, &mut client, &args, now_micros).map_err(bad)?;
                }
            } else if let Some(queue) = &mut multi {
                queue.push(args);
            } else {
                repeat(state, &mut client, &args, now_micros).map_err(bad)?;
            }
            if multi.is_none() {
                good = total - parser.len() as u64;
            }
        }
    }
    if good < total {
        if tail == Tail::Whole {
            return Err(bad(format!("ends within a command at byte {good}")));
        }
        tracing::warn!(
            file = %path.display(),
            bytes = total - good,
            "the log ends within a command: the rest is cut off"
        );
        OpenOptions::new().write(true).open(path)?.set_len(good)?;
    }
    Ok(())
}

/// Runs one command of the log.
fn repeat(
    state: &mut State,
    client: &mut Client,
    args: &[Bytes],
    now_micros: i64,
) -> Result<(), String> {
    let name = registry::printable(&args[0]);
    let spec = match registry::resolve(args) {
        Ok(spec) => spec,
        Err(Stop::Error(text)) => return Err(format!("cannot repeat {name}: {text}")),
        Err(Stop::Block(_)) => return Err(format!("cannot repeat {name}")),
    };
    let mut cx = Ctx::new(state, client, now_micros, Origin::Engine);
    if let Err(Stop::Error(text)) = cx.call(spec, args) {
        if spec.name == "select" {
            return Err(format!("{text}: the log was written with more databases"));
        }
        tracing::error!(command = %name, error = %text, "a command of the log fails and is left out");
    }
    state.ready.clear();
    Ok(())
}
