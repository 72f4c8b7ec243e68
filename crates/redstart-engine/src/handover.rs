//! The move of all data to another server, while it is used.
//!
//! A server is made a replica (`feed.rs`), writes are held back until it is level, and
//! [`commit`] is the one moment at which the data is no longer here: from then on every command that
//! reads or writes is refused with `REDIRECT <host>:<port>`, the word that Valkey has for it. Nothing
//! was done then, and the client may ask there. Clients that wait are answered so, subscribers hear of
//! it on [`CHANNEL`] and are disconnected. With a data folder, the place is kept in it: an engine that
//! is started on that folder later does not go on with old data.
//!
//! `commit` asks for a token of when writes were held back, and refuses if anything was written since:
//! however long the rest took, no write is lost.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    sync::atomic::Ordering,
};

use crate::{
    blocking,
    commands::transaction,
    context::Ctx,
    engine::{Pause, State},
    error::{EngineError, Stop},
    feed, pubsub,
    registry::{Spec, flag},
    reply::Reply,
};

/// Where subscribers hear that the data has moved; the message is `<host>:<port>`.
pub(crate) const CHANNEL: &str = "__redstart__:moved";
/// The file in the data folder that names the place.
const FILE: &str = "redstart.moved";

/// Where the data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place(String);

impl Place {
    pub(crate) fn new(host: &str, port: u16) -> Place {
        Place(format!("{host}:{port}"))
    }

    /// What a client is told that would read or write here.
    fn refusal(&self) -> String {
        format!("REDIRECT {self}")
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The place that a data folder names.
pub(crate) fn read(dir: &Path) -> Result<Option<Place>, EngineError> {
    match fs::read_to_string(dir.join(FILE)) {
        Ok(text) => Ok(Some(Place(text.trim().to_owned()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Refuses what reads or writes data, or listens to channels that nobody publishes to here.
pub(crate) fn check(cx: &mut Ctx<'_>, spec: &Spec) -> Result<(), Stop> {
    let Some(place) = &cx.state.moved else {
        return Ok(());
    };
    let concerned = spec.is(flag::WRITE)
        || spec.is(flag::READONLY)
        || matches!(
            spec.name,
            "eval" | "evalsha" | "eval_ro" | "evalsha_ro" | "fcall" | "fcall_ro" | "exec" | "multi"
        )
        || matches!(
            spec.name,
            "watch" | "publish" | "spublish" | "subscribe" | "psubscribe" | "ssubscribe"
        )
        || matches!(spec.name, "hello" | "wait" | "psync" | "sync");
    if !concerned {
        return Ok(());
    }
    let refusal = place.refusal();
    if spec.name == "exec" {
        cx.client.multi = None;
        transaction::unwatch_all(cx.state, cx.client);
    }
    Err(refusal.into())
}

/// Holds writes back until then, in unix milliseconds.
pub(crate) fn pause(state: &mut State, until: i64) {
    state.pause = Some(Pause {
        until,
        writes_only: true,
    });
    state.paused.store(true, Ordering::Relaxed);
}

/// Another number after every change that a client made; what expires is not one.
pub(crate) fn token(state: &State) -> i64 {
    state.dirty.wrapping_add(state.effects.units()) as i64
}

fn end_pause(state: &mut State) {
    state.pause = None;
    state.paused.store(false, Ordering::Relaxed);
    state.pause_ended.notify_waiters();
}

/// From now on the data is elsewhere.
pub(crate) fn commit(state: &mut State, place: Place) -> io::Result<()> {
    if state.config.append_only || state.config.dir.is_some() {
        let dir = state.config.dir();
        let mut file = File::create(dir.join(FILE))?;
        writeln!(file, "{place}")?;
        file.sync_all()?;
        File::open(&dir)?.sync_all()?;
    }
    tracing::warn!(%place, "the data has moved");
    let refusal = Reply::Error(place.refusal());
    pubsub::publish(state, CHANNEL.as_bytes(), place.0.as_bytes());
    state.moved = Some(place);
    blocking::unblock_all(state, &refusal);
    feed::end(state);
    for profile in state.clients.values() {
        let activity = profile.activity.lock();
        if activity.channels + activity.patterns + activity.shards > 0 {
            profile.kill();
        }
    }
    end_pause(state);
    Ok(())
}

/// The data stays here, or is here again.
pub(crate) fn abort(state: &mut State) -> io::Result<()> {
    if state.moved.is_some() {
        match fs::remove_file(state.config.dir().join(FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => state.moved = None,
        }
    }
    if let Some(stream) = &state.feed.stream {
        stream.forget_changes();
    }
    end_pause(state);
    Ok(())
}
