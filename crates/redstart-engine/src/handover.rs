//! The move of all data to another server, while it is used.
//!
//! A server is made a replica (`feed.rs`), writes are held back until it is level, and
//! [`commit`] is the one moment at which the data is no longer here: from then on every command that
//! reads or writes is refused with `REDIRECT <host>:<port>`, the word that Valkey has for it. Nothing
//! was done then, and the client may ask there. Clients that wait are answered so, subscribers hear of
//! it on [`CHANNEL`] and are disconnected, and so are clients that track keys. With a data folder, the place is kept in it: an engine that
//! is started on that folder later does not go on with old data.
//!
//! `commit` asks for a token of when writes were held back, and refuses if anything was written since:
//! however long the rest took, no write is lost.
//!
//! # Who moves it
//!
//! One hand-over is under way at a time. Who begins one gives it a name, and says that name with every
//! request; another one is refused until the first has ended, or was silent for [`LEASE`]. What a
//! hand-over began it can undo, until the data has moved: only [`give_back`], which no hand-over
//! asks for, brings the data back, and the folder remembers that it is back, for those who followed.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    sync::atomic::Ordering,
};

use bytes::Bytes;

use crate::{
    blocking,
    commands::transaction,
    context::Ctx,
    engine::State,
    error::{EngineError, Stop},
    feed, pubsub, rdb,
    registry::{Spec, flag},
    reply::Reply,
    tracking,
};

/// Where subscribers hear that the data has moved; the message is `<host>:<port>`.
pub(crate) const CHANNEL: &str = "__redstart__:moved";
/// The file in the data folder that names the place.
const MOVED: &str = "redstart.moved";
/// The file that names the place from which the data came back.
const RETURNED: &str = "redstart.returned";
/// After a silence of this many milliseconds, another hand-over may begin.
pub(crate) const LEASE: i64 = 60_000;

/// Where the data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place(String);

impl Place {
    pub(crate) fn new(host: &str, port: u16) -> Place {
        Place(format!("{host}:{port}"))
    }

    /// `<host>:<port>`; `None` if it is not that.
    fn parse(text: &str) -> Option<Place> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let fits = !host.is_empty() && !host.contains(char::is_whitespace);
        fits.then(|| Place::new(host, port))
    }

    /// What a client is told that would read or write here.
    pub(crate) fn refusal(&self) -> String {
        format!("REDIRECT {self}")
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is known of moves.
#[derive(Default)]
pub(crate) struct Moves {
    /// Where the data has moved to: nothing is read or written here any more.
    pub(crate) to: Option<Place>,
    /// Where it came back from.
    pub(crate) back_from: Option<Place>,
    under_way: Option<UnderWay>,
}

/// A hand-over that has begun.
struct UnderWay {
    name: Bytes,
    /// When this was last looked at, in unix milliseconds.
    looked: i64,
    /// When it was last heard of, in unix milliseconds.
    heard: i64,
    /// Until when it holds writes back, in unix milliseconds.
    holds_until: Option<i64>,
}

impl UnderWay {
    /// Times are the system's, whose clock may be set back: what was to last for a minute must not last for
    /// an hour then.
    fn look(&mut self, now_ms: i64) {
        let back = self.looked.saturating_sub(now_ms);
        self.looked = now_ms;
        if back > 0 {
            self.heard = self.heard.saturating_sub(back);
            self.holds_until = self.holds_until.map(|until| until.saturating_sub(back));
        }
    }

    /// For how many milliseconds more others are refused.
    fn lease_left(&self, now_ms: i64) -> i64 {
        self.heard.saturating_add(LEASE).saturating_sub(now_ms)
    }
}

impl Moves {
    /// What a data folder says.
    pub(crate) fn read(dir: &Path) -> Result<Moves, EngineError> {
        Ok(Moves {
            to: read(&dir.join(MOVED))?,
            back_from: read(&dir.join(RETURNED))?,
            under_way: None,
        })
    }

    /// Writes resume on their own when the time is up.
    pub(crate) fn end_hold(&mut self, now_ms: i64) {
        let Some(under_way) = &mut self.under_way else {
            return;
        };
        under_way.look(now_ms);
        if under_way.holds_until.is_some_and(|until| until <= now_ms) {
            under_way.holds_until = None;
        }
    }

    /// Until when writes are held back, in unix milliseconds; also those of calls in this process.
    #[inline]
    pub(crate) fn holds_until(&self) -> Option<i64> {
        self.under_way.as_ref()?.holds_until
    }
}

fn read(path: &Path) -> Result<Option<Place>, EngineError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match Place::parse(text.trim()) {
        Some(place) => Ok(Some(place)),
        None => Err(EngineError::Place(path.display().to_string())),
    }
}

/// Replaces a file at once: what is there afterwards is what was there before, or all of this.
fn write(dir: &Path, name: &str, place: &Place) -> io::Result<()> {
    let (path, temporary) = (dir.join(name), dir.join(format!("{name}.new")));
    let written = File::create(&temporary).and_then(|mut file| {
        writeln!(file, "{place}")?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        sync(dir)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
        // If it is there, nobody knows whether it would be after a crash: it was not written, then.
        remove(dir, name)?;
    }
    written
}

fn remove(dir: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(dir.join(name)) {
        Ok(()) => sync(dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Refuses what reads or writes data, or listens to channels that nobody publishes to here.
pub(crate) fn check(cx: &mut Ctx<'_>, spec: &Spec) -> Result<(), Stop> {
    let Some(place) = &cx.state.moves.to else {
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
        || matches!(spec.name, "hello" | "wait" | "psync" | "sync")
        || spec.full_name == "client|tracking";
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

/// Begins a hand-over of this name, or hears that it goes on.
pub(crate) fn begin(state: &mut State, name: &Bytes, now_ms: i64) -> Result<(), Stop> {
    if let Some(place) = &state.moves.to {
        return Err(place.refusal().into());
    }
    if let Some(other) = &mut state.moves.under_way
        && other.name != name
    {
        other.look(now_ms);
        if other.lease_left(now_ms) > 0 {
            return Err(format!(
                "ERR another hand-over is under way: it ends by itself {} s after its last request",
                LEASE / 1000
            )
            .into());
        }
        undo(state);
    }
    let under_way = state.moves.under_way.get_or_insert_with(|| UnderWay {
        // A copy: an argument is a part of a read buffer.
        name: Bytes::copy_from_slice(name),
        looked: now_ms,
        heard: now_ms,
        holds_until: None,
    });
    under_way.look(now_ms);
    under_way.heard = now_ms;
    Ok(())
}

/// Hears from the hand-over of this name, which must be the one under way.
pub(crate) fn hear(state: &mut State, name: &[u8], now_ms: i64) -> Result<(), Stop> {
    match &mut state.moves.under_way {
        Some(under_way) if under_way.name == name => {
            under_way.look(now_ms);
            under_way.heard = now_ms;
            Ok(())
        }
        _ => Err("ERR this hand-over is not under way".into()),
    }
}

/// A hand-over that is silent for too long has ended: what it began is not kept up for nobody.
pub(crate) fn tick(state: &mut State, now_ms: i64) {
    state.moves.end_hold(now_ms);
    let is_silent =
        |under_way: &UnderWay| under_way.holds_until.is_none() && under_way.lease_left(now_ms) <= 0;
    if state.moves.under_way.as_ref().is_some_and(is_silent) {
        tracing::warn!("a hand-over is silent, and is undone");
        undo(state);
    }
}

/// Holds writes back until then, in unix milliseconds.
pub(crate) fn hold(state: &mut State, until: i64) {
    if let Some(under_way) = &mut state.moves.under_way {
        under_way.holds_until = Some(until);
        state.paused.store(true, Ordering::Relaxed);
    }
}

/// Another number after every change that a client made; what expires is not one.
pub(crate) fn token(state: &State) -> i64 {
    state.dirty.wrapping_add(state.effects.units()) as i64
}

/// Nothing is under way any more: changes are not noted, and writes go on unless CLIENT PAUSE holds them back.
fn undo(state: &mut State) {
    state.moves.under_way = None;
    if let Some(stream) = &state.feed.stream {
        stream.forget_changes();
    }
    state.paused.store(state.pause.is_some(), Ordering::Relaxed);
    state.pause_ended.notify_waiters();
}

/// From now on the data is elsewhere. On failure it is still here.
pub(crate) fn commit(state: &mut State, place: Place) -> io::Result<()> {
    if rdb::uses_folder(&state.config) {
        let dir = state.config.dir();
        write(&dir, MOVED, &place)?;
        // It does not come back. Callers are told where it is anyway.
        if let Err(error) = remove(&dir, RETURNED) {
            tracing::warn!(%error, "the data folder still says from where the data was back");
        }
    }
    tracing::warn!(%place, "the data has moved");
    let refusal = Reply::Error(place.refusal());
    pubsub::publish_free(state, CHANNEL.as_bytes(), place.0.as_bytes());
    state.moves.to = Some(place);
    state.moves.back_from = None;
    blocking::unblock_all(state, &refusal);
    undo(state);
    feed::end(state);
    tracking::end(state);
    for profile in state.clients.values() {
        let activity = profile.activity.lock();
        if activity.channels + activity.patterns + activity.shards > 0 {
            profile.kill();
        }
    }
    Ok(())
}

/// Ends the hand-over of this name, if it is under way. The data is where it was.
pub(crate) fn abort(state: &mut State, name: &[u8]) -> Result<(), Stop> {
    // It has done its work: a caller that asks must not believe otherwise.
    if let Some(place) = &state.moves.to {
        return Err(place.refusal().into());
    }
    let is_it = |under_way: &UnderWay| under_way.name == name;
    if state.moves.under_way.as_ref().is_some_and(is_it) {
        undo(state);
    }
    Ok(())
}

/// The data is here again, as it was when it moved.
pub(crate) fn give_back(state: &mut State) -> io::Result<()> {
    let Some(place) = state.moves.to.clone() else {
        return Ok(());
    };
    if rdb::uses_folder(&state.config) {
        let dir = state.config.dir();
        write(&dir, RETURNED, &place)?;
        remove(&dir, MOVED)?;
    }
    tracing::warn!(%place, "the data is here again");
    state.moves.to = None;
    state.moves.back_from = Some(place);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;

    #[test]
    fn a_clock_that_is_set_back_makes_nothing_last_longer() {
        let engine = Engine::new();
        let mut state = engine.inner.lock();
        let (me, you) = (Bytes::from_static(b"me"), Bytes::from_static(b"you"));
        let noon = 12 * 3_600_000;
        assert!(begin(&mut state, &me, noon).is_ok());
        hold(&mut state, noon + 10_000);
        let back = noon - 3_600_000;
        tick(&mut state, back);
        assert!(state.moves.holds_until().is_some());
        tick(&mut state, back + 9_999);
        assert!(state.moves.holds_until().is_some());
        tick(&mut state, back + 10_000);
        assert_eq!(state.moves.holds_until(), None);
        assert!(begin(&mut state, &you, back + LEASE - 1).is_err());
        assert!(begin(&mut state, &you, back + LEASE).is_ok());
    }

    #[test]
    fn a_silent_hand_over_ends_unless_it_holds_writes_back() {
        let engine = Engine::new();
        let mut state = engine.inner.lock();
        let me = Bytes::from_static(b"me");
        assert!(begin(&mut state, &me, 0).is_ok());
        hold(&mut state, 2 * LEASE);
        tick(&mut state, 2 * LEASE - 1);
        assert!(state.moves.holds_until().is_some());
        assert!(hear(&mut state, &me, 2 * LEASE - 1).is_ok());
        tick(&mut state, 3 * LEASE - 2);
        assert!(hear(&mut state, &me, 3 * LEASE - 2).is_ok());
        tick(&mut state, 4 * LEASE - 2);
        assert!(hear(&mut state, &me, 4 * LEASE - 2).is_err());
    }
}
