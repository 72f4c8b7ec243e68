//! Being the master of real servers: a Redis or Valkey that is told REPLICAOF gets all data, and
//! then every change.
//!
//! | file | what it holds |
//! |---|---|
//! | `stream.rs` | the bytes that replicas get, in one buffer for all of them, and how far each is |
//! | `snapshot.rs` | all data as of one moment, in pieces |
//! | `server/feed.rs` | the connection of a replica, once it is one |
//!
//! # The stream
//!
//! The stream is what the log is: each unit of effects as the commands that repeat it (`effect.rs`).
//! It begins when the first replica comes, so that it costs nothing before. All replicas read from
//! one buffer, which holds at least `repl-backlog-size` bytes, so that a replica whose connection was
//! cut goes on where it was, and at most what the slowest replica may lag behind
//! (`client-output-buffer-limit replica`): one that is slower is disconnected. When there has been no
//! replica for `repl-backlog-ttl` seconds, the stream ends.
//!
//! # The copy
//!
//! A replica that cannot go on gets all data as of one place in the stream. With a log, that moment is
//! noted in an instant: the files are what they are then, and a thread reads them back into an engine
//! of its own, which is written to the replica while it is encoded. That takes the memory of a second copy of the
//! data; replicas that come together are served one after the other, and the copy ends with its replica. A replica
//! that reads nothing of it for `repl-timeout` seconds is disconnected. Without a log, everybody waits while the data is
//! encoded, as with BGSAVE.
//!
//! # While the disk refuses
//!
//! With `appendfsync always` replicas get nothing that is not on the disk. One that asks for data gets an empty line each
//! second until the disk has all that there was, and its copy is taken only then. One that has its copy gets nothing, no
//! PING either, since a place in the stream follows the other: after its `repl-timeout` a Redis or Valkey disconnects,
//! asks again, and goes on where it was once the disk is back, as long as the backlog reaches.
//!
//! # What is not fed
//!
//! Bloom filters, which a server without their module does not load; messages of PUBLISH. Fields of
//! hashes that expire need a Valkey. A replica cannot have replicas: PSYNC is refused while
//! this follows another server.

pub(crate) mod snapshot;
pub(crate) mod stream;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::{Mutex, Notify};

use crate::{
    blocking::{self, Wait},
    client::Profile,
    config::Config,
    context::Ctx,
    engine::State,
    error::{CommandResult, Stop},
    random::Random,
    reply::Reply,
};

use snapshot::Snapshot;
use stream::{Follower, Limits, Stage, Stream};

/// What WAIT waits for: a key that nobody has.
pub(crate) const ACKNOWLEDGED: &[u8] = b"\0redstart.acknowledged";
/// What a replica is told that would be the replica of a replica.
const CHAINED: &str =
    "ERR this server is a replica itself and feeds no others: follow its master instead";

/// What a client is told that would write while `min-replicas-to-write` are not there.
pub(crate) const TOO_FEW_REPLICAS: &str = "NOREPLICAS Not enough good replicas to write.";

/// The engine as a master.
#[derive(Default)]
pub(crate) struct Feed {
    /// Forty hexadecimal digits that name the history of the data.
    pub(crate) id: String,
    /// Since the first replica.
    pub(crate) stream: Option<Arc<Stream>>,
    /// How often all data was copied.
    pub(crate) full: u64,
    /// How often a replica went on where it was.
    pub(crate) partial: u64,
    /// How often one could not.
    pub(crate) refused: u64,
    /// When replicas were last sent something for its own sake, in unix microseconds.
    pinged: i64,
    /// Since when there is no replica, in unix microseconds; 0 while there is one.
    alone_since: i64,
    /// Held while all data is read from the log.
    copying: Arc<Mutex<()>>,
    /// Writes need that many replicas.
    pub(crate) needed: usize,
    /// Seconds since a replica was heard, for it to count.
    max_lag: i64,
}

/// What a connection said before it became a replica.
#[derive(Default)]
pub(crate) struct Hopeful {
    pub(crate) port: u16,
    pub(crate) host: Option<String>,
    /// It can read a copy whose length is not known beforehand.
    pub(crate) eof: bool,
    /// It understands that an id has changed.
    pub(crate) psync2: bool,
    /// It wants no stream.
    pub(crate) only_copy: bool,
}

/// What a connection asks for that becomes a replica.
pub(crate) struct Request {
    hopeful: Hopeful,
    /// An id and the first byte that it lacks; `None` for SYNC.
    since: Option<(Bytes, i64)>,
    profile: Arc<Profile>,
}

/// A connection that has become a replica.
pub(crate) struct Attachment {
    /// The disk does not have all data yet: it is a replica only when it has asked again after that.
    pub(crate) later: Option<Request>,
    pub(crate) stream: Arc<Stream>,
    /// What it is answered.
    pub(crate) greeting: String,
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) eof: bool,
    pub(crate) only_copy: bool,
    /// Told when there is more in the stream.
    pub(crate) wake: Arc<Notify>,
    /// To be locked while all data is read from the log.
    pub(crate) copying: Arc<Mutex<()>>,
    /// How long it may take nothing of its copy.
    pub(crate) patience: Duration,
}

/// The number that a setting has.
pub(crate) fn number(config: &Config, name: &str, default: u64) -> u64 {
    let text = config.remembered.get(name);
    let text = text.and_then(|text| std::str::from_utf8(text).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A name that no other history has.
fn fresh_id() -> String {
    let mut random = Random::new();
    let part = |_| format!("{:08x}", random.next() as u32);
    (0..5).map(part).collect()
}

impl Feed {
    pub(crate) fn new(config: &Config) -> Feed {
        let mut feed = Feed {
            id: fresh_id(),
            ..Feed::default()
        };
        feed.follow_config(config);
        feed
    }

    pub(crate) fn follow_config(&mut self, config: &Config) {
        self.needed = number(config, "min-replicas-to-write", 0) as usize;
        self.max_lag = number(config, "min-replicas-max-lag", 10) as i64;
        if let Some(stream) = &self.stream {
            stream.set_limits(Limits::by(config));
        }
    }

    /// The place that the stream has reached.
    pub(crate) fn offset(&self) -> u64 {
        self.stream.as_ref().map_or(0, |stream| stream.end())
    }

    /// The replicas, for people.
    pub(crate) fn replicas(&self) -> Vec<stream::Facts> {
        self.stream
            .as_ref()
            .map_or_else(Vec::new, |stream| stream.facts())
    }

    /// How many replicas were heard lately.
    pub(crate) fn good(&self, now_micros: i64) -> usize {
        let oldest = match self.max_lag {
            0 => i64::MIN,
            seconds => now_micros - seconds * 1_000_000,
        };
        self.stream
            .as_ref()
            .map_or(0, |stream| stream.heard_since(oldest))
    }

    /// How many replicas have confirmed this place.
    fn reached(&self, offset: u64) -> usize {
        self.stream
            .as_ref()
            .map_or(0, |stream| stream.reached(offset))
    }
}

/// The stream, which begins now if there was none.
pub(crate) fn open(state: &mut State) -> Arc<Stream> {
    if let Some(stream) = &state.feed.stream {
        return stream.clone();
    }
    let stream = Arc::new(Stream::new(Limits::by(&state.config)));
    state.effects.set_stream(Some(stream.clone()));
    state.feed.stream = Some(stream.clone());
    state.feed.alone_since = 0;
    stream
}

/// Ends the stream: the data is about to become another's, or nobody is there. Replicas that come back
/// get all data.
pub(crate) fn end(state: &mut State) {
    let Some(stream) = state.feed.stream.take() else {
        return;
    };
    state.effects.set_stream(None);
    stream.disconnect_all();
    state.feed.id = fresh_id();
    // The place that they wait for is one of this stream.
    blocking::end_waits_for(state, ACKNOWLEDGED);
}

/// Makes the client a replica: it goes on after `since`, an id and the first byte that it lacks, or gets
/// all data.
pub(crate) fn attach(cx: &mut Ctx<'_>, since: Option<(&[u8], i64)>) -> CommandResult {
    let Some(profile) = cx.client.profile.clone().filter(|_| cx.client.networked) else {
        return Err("ERR a replica needs a connection of its own".into());
    };
    if cx.state.replica.is_some() {
        return Err(CHAINED.into());
    }
    let request = Request {
        hopeful: *cx.client.hopeful.take().unwrap_or_default(),
        since: since.map(|(id, next)| (Bytes::copy_from_slice(id), next)),
        profile,
    };
    let inner = cx.state.inner.upgrade();
    let waits = inner.is_some_and(|inner| !inner.is_synced(inner.fed_position()));
    let attachment = match waits {
        // What replicas may have only when it is on the disk is not copied before: the copy would have to wait in memory, and
        // the stream behind it, for as long as the disk refuses.
        true => {
            request.profile.activity.lock().replica = true;
            Attachment {
                later: Some(request),
                ..Attachment::empty(cx.state)
            }
        }
        false => attach_now(cx.state, request, cx.now_micros)?,
    };
    cx.client.attachment = Some(Box::new(attachment));
    Ok(Reply::OK)
}

impl Attachment {
    /// One that gets nothing yet.
    fn empty(state: &mut State) -> Attachment {
        let patience = number(&state.config, "repl-timeout", 60).max(1);
        Attachment {
            later: None,
            stream: open(state),
            greeting: String::new(),
            snapshot: None,
            eof: false,
            only_copy: false,
            wake: Arc::default(),
            copying: state.feed.copying.clone(),
            patience: Duration::from_secs(patience),
        }
    }
}

/// As [`attach`], whatever is on the disk by now: others may write all the time.
pub(crate) fn attach_now(
    state: &mut State,
    request: Request,
    now: i64,
) -> Result<Attachment, Stop> {
    if state.replica.is_some() {
        return Err(CHAINED.into());
    }
    let mut attachment = Attachment::empty(state);
    let stream = attachment.stream.clone();
    let Request {
        hopeful,
        since,
        profile,
    } = request;
    let id = state.feed.id.clone();
    let place = match &since {
        Some((name, next)) if name.eq_ignore_ascii_case(id.as_bytes()) => {
            let at = next.checked_sub(1).and_then(|at| u64::try_from(at).ok());
            at.filter(|at| stream.covers(*at))
        }
        _ => None,
    };
    let (snapshot, greeting) = match place {
        Some(_) if hopeful.psync2 => (None, format!("+CONTINUE {id}\r\n")),
        Some(_) => (None, "+CONTINUE\r\n".to_owned()),
        None => {
            let snapshot = Snapshot::take(state, now)
                .map_err(|error| format!("ERR the data cannot be copied: {error}"))?;
            let greeting = match &since {
                Some(_) => format!("+FULLRESYNC {id} {}\r\n", stream.end()),
                // SYNC is answered with the data itself.
                None => String::new(),
            };
            (Some(snapshot), greeting)
        }
    };
    match place {
        Some(_) => state.feed.partial += 1,
        None => {
            state.feed.full += 1;
            let returns = since.is_some_and(|(name, _)| name != b"?"[..]);
            state.feed.refused += u64::from(returns);
            // The copy says nothing of the database that the stream has selected.
            stream.select_again();
        }
    }
    profile.activity.lock().replica = true;
    if !hopeful.only_copy {
        let host = profile.addr.rsplit_once(':').map_or("", |(host, _)| host);
        let position = place.unwrap_or_else(|| stream.end());
        stream.add(Follower {
            host: hopeful.host.unwrap_or_else(|| host.to_owned()),
            port: hopeful.port,
            stage: Stage::Copying,
            position,
            // What a replica asks for after a cut it has got before.
            acked: place,
            synced: None,
            heard: now,
            over_since: None,
            wake: attachment.wake.clone(),
            profile,
        });
    }
    attachment.greeting = greeting;
    attachment.snapshot = snapshot;
    attachment.eof = hopeful.eof;
    attachment.only_copy = hopeful.only_copy;
    Ok(attachment)
}

/// A client is gone that may have been a replica.
pub(crate) fn forget(state: &mut State, client: u64) {
    if let Some(stream) = &state.feed.stream {
        stream.remove(client);
    }
}

/// What is due by now: replicas hear that this is alive, and those that are silent or too slow go.
pub(crate) fn tick(state: &mut State, now_micros: i64) {
    let Some(stream) = state.feed.stream.clone() else {
        return;
    };
    let seconds = |name: &str, default| number(&state.config, name, default) as i64 * 1_000_000;
    if stream.is_alone() {
        let ttl = seconds("repl-backlog-ttl", 3600);
        if state.feed.alone_since == 0 {
            state.feed.alone_since = now_micros;
        } else if ttl > 0 && now_micros - state.feed.alone_since >= ttl {
            end(state);
        }
        return;
    }
    state.feed.alone_since = 0;
    stream.check(now_micros, seconds("repl-timeout", 60));
    if (now_micros - state.feed.pinged).abs() >= seconds("repl-ping-replica-period", 10) {
        state.feed.pinged = now_micros;
        stream.tell(&[Bytes::from_static(b"PING")]);
    }
    wake_waiting(state);
}

/// Whether fewer replicas are good than writes need.
pub(crate) fn lacks_replicas(state: &State, now_micros: i64) -> bool {
    state.replica.is_none() && state.feed.good(now_micros) < state.feed.needed
}

/// Lets WAIT look again.
pub(crate) fn wake_waiting(state: &mut State) {
    for (number, db) in state.dbs.iter().enumerate() {
        if !db.blocked.is_empty() && db.blocked.contains_key(ACKNOWLEDGED) {
            let key = Bytes::from_static(ACKNOWLEDGED);
            state.ready.push((number, key));
        }
    }
}

/// WAIT: until this many replicas have confirmed all previous changes.
pub(crate) fn wait(cx: &mut Ctx<'_>, wanted: i64, deadline: Option<i64>) -> CommandResult {
    if cx.state.replica.is_some() {
        return Err(
            "ERR WAIT cannot be used with replica instances. Please also note that since \
                    Redis 4.0 if a replica is configured to be writable (which is not the default) \
                    writes to replicas are just local and are not propagated."
                .into(),
        );
    }
    let target = cx.state.feed.offset();
    let reached = cx.state.feed.reached(target) as i64;
    if reached >= wanted {
        return Ok(Reply::Int(reached));
    }
    if cx.may_block()
        && let Some(stream) = &cx.state.feed.stream
    {
        stream.ask();
    }
    cx.block(Wait {
        keys: vec![Bytes::from_static(ACKNOWLEDGED)],
        deadline,
        synced: None,
        hears_of_absence: true,
        on_timeout: Reply::Int(reached),
        serve: Box::new(move |cx, _| {
            let reached = cx.state.feed.reached(target) as i64;
            if reached >= wanted {
                return Some(Reply::Int(reached).into());
            }
            // What it is told if its time is up.
            blocking::answer_at_end(cx.state, cx.client.id, Reply::Int(reached));
            None
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;

    #[test]
    fn a_stream_that_begins_again_has_its_whole_time() {
        let engine = Engine::new();
        let mut state = engine.inner.lock();
        let hour = 3600 * 1_000_000;
        open(&mut state);
        tick(&mut state, hour);
        tick(&mut state, 2 * hour);
        assert!(state.feed.stream.is_none());
        open(&mut state);
        tick(&mut state, 5 * hour);
        assert!(state.feed.stream.is_some());
        tick(&mut state, 6 * hour);
        assert!(state.feed.stream.is_none());
    }
}
