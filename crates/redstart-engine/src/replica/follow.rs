//! Following a server: its data is copied, and then every change as it comes.
//!
//! One thread per followed server connects, asks for what it missed (all data the first time), and
//! applies the stream of commands under the engine's lock. The place in the stream is kept with the
//! data, and moves only past whole transactions, so that after a cut the stream goes on where it was
//! left. A command that cannot be applied means that the two have grown apart: all data is copied
//! again.

use std::{
    collections::VecDeque,
    io::{self, BufRead},
    net::{Shutdown, TcpStream},
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use super::link::{Answer, Link, Master, SILENCE};
use crate::{
    aof, blocking,
    client::Client,
    context::{Ctx, Origin},
    dispatch,
    engine::{Inner, State},
    error::Stop,
    feed,
    rdb::{self, Expired},
    registry,
    reply::Protocol,
    resp::{Limits, Parser},
};

/// The error for clients that waited for the data from before.
const UNBLOCKED: &str = "UNBLOCKED force unblock from blocking operation, instance state changed \
     (master -> replica?)";
/// How long after a failure the server is asked again.
const RETRY: Duration = Duration::from_secs(1);
/// The same at most, if what the server sends cannot be applied: each time it sends all of its data again.
const LONGEST_RETRY: Duration = Duration::from_secs(300);
/// After so long a time without such a failure the next one is the first.
const CALM: Duration = Duration::from_secs(600);
/// How often the server is told how far this has come.
const TOLD: Duration = Duration::from_secs(1);

/// The setting that names the followed server.
const REPLICAOF: &str = "replicaof";

/// How a followed server and this stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// There is no connection.
    Connect,
    /// The handshake is under way.
    Connecting,
    /// All data is being copied.
    Sync,
    Connected,
}

impl Status {
    /// What ROLE says.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Status::Connect => "connect",
            Status::Connecting => "connecting",
            Status::Sync => "sync",
            Status::Connected => "connected",
        }
    }
}

/// A place in the stream of a server.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    pub(crate) id: String,
    pub(crate) offset: u64,
    /// The database that the stream has selected there.
    db: usize,
}

/// What is known of the followed server. Dropping it ends the following.
pub(crate) struct Replica {
    pub(crate) master: Master,
    pub(crate) status: Status,
    /// Up to where the data is the server's.
    pub(crate) position: Option<Position>,
    /// When the server was last heard, in unix microseconds.
    pub(crate) heard: i64,
    /// Since when there is no connection, in unix microseconds.
    pub(crate) down_since: i64,
    /// What could not be applied the last time that this happened.
    pub(crate) trouble: Option<String>,
    /// Why there is no connection.
    failure: Option<String>,
    end: Arc<End>,
}

impl Replica {
    /// What is wrong, in words.
    pub(crate) fn error(&self) -> Option<&str> {
        self.failure.as_deref().or(self.trouble.as_deref())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.end.reach();
    }
}

/// How the thread is told to end.
#[derive(Default)]
struct End {
    reached: Mutex<bool>,
    wake: Condvar,
    /// The connection, to end a read that waits.
    socket: Mutex<Option<TcpStream>>,
}

impl End {
    fn reach(&self) {
        *self.reached.lock() = true;
        self.wake.notify_all();
        if let Some(socket) = self.socket.lock().take() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn is_reached(&self) -> bool {
        *self.reached.lock()
    }

    /// Whether the end came within this time.
    fn comes_within(&self, time: Duration) -> bool {
        let mut reached = self.reached.lock();
        if !*reached {
            self.wake.wait_for(&mut reached, time);
        }
        *reached
    }
}

/// Begins to follow a server; what was followed before is not any more.
pub(crate) fn follow(state: &mut State, master: Master, now_micros: i64) -> io::Result<()> {
    blocking::give_up_data(state, UNBLOCKED);
    // A replica has no replicas here.
    feed::end(state);
    let end = Arc::new(End::default());
    let (inner, copy, at) = (state.this.clone(), master.clone(), end.clone());
    std::thread::Builder::new()
        .name("redstart-replica".into())
        .spawn(move || run(&inner, &copy, &at))?;
    // CONFIG REWRITE writes it, so that the next start follows the same server.
    let place = format!("{} {}", master.host, master.port);
    state.config.remembered.insert(REPLICAOF, place.into());
    state.replica = Some(Replica {
        master,
        status: Status::Connect,
        position: None,
        heard: now_micros,
        down_since: now_micros,
        trouble: None,
        failure: None,
        end,
    });
    Ok(())
}

/// Ends the following: the data stays as it is.
pub(crate) fn end(state: &mut State) {
    state.replica = None;
    state.config.remembered.remove(REPLICAOF);
}

/// Follows the server that the settings name, if they name one.
pub(crate) fn follow_configured(state: &mut State, now_micros: i64) -> io::Result<()> {
    let place = state.config.remembered.get(REPLICAOF);
    let place = place.map(|place| String::from_utf8_lossy(place).into_owned());
    let (host, port) = match place.as_deref().and_then(|place| place.rsplit_once(' ')) {
        Some((host, port)) => (host.to_owned(), port.parse().unwrap_or(0)),
        None => return Ok(()),
    };
    follow(state, Master::configured(host, port), now_micros)
}

/// Applies a change to what is known of the server, unless another one is followed by now.
fn update(state: &mut State, end: &Arc<End>, change: impl FnOnce(&mut Replica)) -> io::Result<()> {
    match &mut state.replica {
        Some(replica) if Arc::ptr_eq(&replica.end, end) => {
            change(replica);
            Ok(())
        }
        _ => Err(io::Error::other("the server is not followed any more")),
    }
}

/// What the server sent cannot be applied here, however often it does.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Apart(String);

fn apart(why: String) -> io::Error {
    io::Error::other(Apart(why))
}

/// The life of the thread.
fn run(inner: &Weak<Inner>, master: &Master, end: &Arc<End>) {
    let mut wait = RETRY;
    while !end.is_reached() {
        let mut connected = None;
        let Err(error) = session(inner, master, end, &mut connected) else {
            return;
        };
        let trouble = error
            .get_ref()
            .and_then(|error| error.downcast_ref::<Apart>())
            .map(|apart| apart.0.clone());
        let calm = connected.is_some_and(|since: Instant| since.elapsed() > CALM);
        let pause = match trouble.is_some() {
            true => {
                let pause = if calm { RETRY } else { wait };
                wait = (pause * 2).min(LONGEST_RETRY);
                pause
            }
            false => RETRY,
        };
        let Some(inner) = inner.upgrade() else {
            return;
        };
        end.socket.lock().take();
        let now = inner.clock.now_micros();
        let down = update(&mut inner.lock(), end, |replica| {
            if replica.status == Status::Connected {
                replica.down_since = now;
            }
            replica.status = Status::Connect;
            replica.failure = Some(error.to_string());
            replica.trouble = trouble.or(replica.trouble.take());
        });
        drop(inner);
        if down.is_err() {
            return;
        }
        tracing::warn!(%error, ?master, "the followed server is asked again");
        if end.comes_within(pause) {
            return;
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the engine is gone")
}

/// One connection, until it breaks; since when the stream was applied.
fn session(
    weak: &Weak<Inner>,
    master: &Master,
    end: &Arc<End>,
    connected: &mut Option<Instant>,
) -> io::Result<()> {
    let master = {
        let inner = weak.upgrade().ok_or_else(gone)?;
        let state = inner.lock();
        master.with_settings(&state.config)
    };
    let mut link = Link::connect(&master)?;
    *end.socket.lock() = Some(link.socket()?);
    let (port, ip, position) = {
        let inner = weak.upgrade().ok_or_else(gone)?;
        let mut state = inner.lock();
        let mut position = None;
        update(&mut state, end, |replica| {
            replica.status = Status::Connecting;
            position = replica.position.clone();
        })?;
        let said = |name: &str| {
            let text = state.config.remembered.get(name)?;
            Some(String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty())
        };
        let port: Option<u16> = said("replica-announce-port").and_then(|port| port.parse().ok());
        let port = port.filter(|&port| port > 0).unwrap_or(state.config.port);
        (port, said("replica-announce-ip"), position)
    };
    if port > 0 {
        link.ask(&["REPLCONF", "listening-port", &port.to_string()])?;
    }
    if let Some(ip) = ip {
        link.ask(&["REPLCONF", "ip-address", &ip])?;
    }
    let since = position
        .as_ref()
        .map(|place| (place.id.as_str(), place.offset));
    match link.synchronize(since)? {
        Answer::Full { id, offset } => {
            let position = Position { id, offset, db: 0 };
            copy(weak, &mut link, end, position)?;
        }
        Answer::Continue { id } => {
            let inner = weak.upgrade().ok_or_else(gone)?;
            let mut state = inner.lock();
            update(&mut state, end, |replica| {
                if let (Some(position), Some(id)) = (&mut replica.position, id) {
                    position.id = id;
                }
            })?;
        }
    }
    link.wait_at_most(TOLD)?;
    let inner = weak.upgrade().ok_or_else(gone)?;
    let mut position = None;
    update(&mut inner.lock(), end, |replica| {
        replica.status = Status::Connected;
        replica.failure = None;
        position = replica.position.clone();
    })?;
    drop(inner);
    *connected = Some(Instant::now());
    let unknown = || io::Error::other("the place in the stream is not known");
    stream(weak, &mut link, end, &position.ok_or_else(unknown)?)
}

/// Takes all data of the server in the place of what is there.
fn copy(
    weak: &Weak<Inner>,
    link: &mut Link,
    end: &Arc<End>,
    mut position: Position,
) -> io::Result<()> {
    let (databases, config, now) = {
        let inner = weak.upgrade().ok_or_else(gone)?;
        let mut state = inner.lock();
        update(&mut state, end, |replica| replica.status = Status::Sync)?;
        (
            inner.databases,
            state.config.clone(),
            inner.clock.now_micros(),
        )
    };
    // The server says when a key is gone.
    let contents = link
        .receive(databases, &config, now / 1000, Expired::Kept, &mut |_| ())
        .map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => apart(error.to_string()),
            _ => error,
        })?;
    // A replica passes the stream of its own master on, in which a database is selected already.
    position.db = contents.stream_db;
    let inner = weak.upgrade().ok_or_else(gone)?;
    let mut state = inner.lock();
    update(&mut state, end, |replica| replica.position = None)?;
    rdb::replace(&mut state, contents)
        .map_err(|fault| lose(&inner, &mut state, end, &fault.to_string()))?;
    // Also if the log cannot be written: the data is the server's, and nobody is told that it is on the disk.
    update(&mut state, end, |replica| replica.position = Some(position))?;
    dispatch::finish(&mut state, now);
    aof::keep_replaced(&mut state).map_err(|error| io::Error::other(error.to_string()))
}

/// Applies the stream of commands.
fn stream(weak: &Weak<Inner>, link: &mut Link, end: &Arc<End>, from: &Position) -> io::Result<()> {
    let mut applier = Applier {
        parser: Parser::strict(),
        client: Client::internal(0, from.db, Protocol::Resp2),
        multi: None,
        received: from.offset,
        asked: false,
    };
    let (mut told, mut heard) = (Instant::now(), Instant::now());
    let mut applied = from.offset;
    let mut synced = Synced::default();
    let mut note = |applied: u64| -> io::Result<Option<u64>> {
        let inner = weak.upgrade().ok_or_else(gone)?;
        let position = inner.lock().effects.last_position();
        Ok(synced.note(&inner, applied, position))
    };
    link.tell(applied, note(applied)?)?;
    loop {
        let count = match link.reader().fill_buf() {
            Ok([]) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(data) => {
                applier.parser.buffer().extend_from_slice(data);
                applier.received += data.len() as u64;
                data.len()
            }
            Err(error) if is_timeout(&error) => 0,
            Err(error) => return Err(error),
        };
        link.reader().consume(count);
        if count > 0 {
            heard = Instant::now();
            let inner = weak.upgrade().ok_or_else(gone)?;
            applied = applier.apply(&inner, end)?;
            note(applied)?;
        } else if heard.elapsed() > SILENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if std::mem::take(&mut applier.asked) || told.elapsed() >= TOLD {
            told = Instant::now();
            link.tell(applied, note(applied)?)?;
        }
    }
}

/// Which places in the stream are on the disk.
#[derive(Default)]
struct Synced {
    /// Places that may not be yet, with the positions in the log up to which they are in it.
    pending: VecDeque<(u64, u64)>,
    last: Option<u64>,
}

impl Synced {
    /// The stream was applied up to a place, which the log has up to a position. Which place is on the disk; `None` if there
    /// is no log.
    fn note(&mut self, inner: &Inner, applied: u64, position: u64) -> Option<u64> {
        /// More places than this are not told apart.
        const APART: usize = 1024;
        let log = inner.log.get()?;
        if self.pending.len() == APART {
            self.pending.pop_back();
        }
        self.pending.push_back((applied, position));
        while let Some(&(place, _)) = self
            .pending
            .front()
            .filter(|(_, position)| log.is_synced(*position))
        {
            self.last = Some(place);
            self.pending.pop_front();
        }
        self.last
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// What is between the connection and the data.
struct Applier {
    parser: Parser,
    client: Client,
    /// A transaction that has not come whole.
    multi: Option<Vec<Vec<Bytes>>>,
    /// The place in the stream up to which bytes have come.
    received: u64,
    /// The server wants to know how far this is.
    asked: bool,
}

impl Applier {
    /// Applies all commands that have come whole; the place that was reached.
    fn apply(&mut self, inner: &Inner, end: &Arc<End>) -> io::Result<u64> {
        let limits = Limits {
            bulk: i64::MAX as usize,
            authenticated: true,
        };
        let now = inner.clock.now_micros();
        let mut state = inner.lock();
        let mut reached = 0;
        update(&mut state, end, |replica| {
            replica.heard = now;
            reached = replica.position.as_ref().map_or(0, |place| place.offset);
        })?;
        loop {
            let args = match self.parser.next(limits) {
                Ok(Some(args)) => args,
                Ok(None) => return Ok(reached),
                Err(error) => return Err(lose(inner, &mut state, end, &error.0)),
            };
            if let Err(text) = self.take(&mut state, args, now) {
                return Err(lose(inner, &mut state, end, &text));
            }
            dispatch::finish(&mut state, now);
            if self.multi.is_none() {
                reached = self.received - self.parser.len() as u64;
                update(&mut state, end, |replica| {
                    if let Some(position) = &mut replica.position {
                        position.offset = reached;
                        position.db = self.client.db;
                    }
                })?;
            }
        }
    }

    fn take(&mut self, state: &mut State, args: Vec<Bytes>, now: i64) -> Result<(), String> {
        let is = |word: &[u8]| args[0].eq_ignore_ascii_case(word);
        if is(b"REPLCONF") {
            self.asked = args
                .get(1)
                .is_some_and(|word| word.eq_ignore_ascii_case(b"getack"));
        } else if is(b"MULTI") {
            self.multi = Some(Vec::new());
        } else if is(b"EXEC") {
            for args in self.multi.take().unwrap_or_default() {
                run_one(state, &mut self.client, &args, now)?;
            }
        } else if let Some(queue) = &mut self.multi {
            queue.push(args);
        } else if !is(b"PING") {
            run_one(state, &mut self.client, &args, now)?;
        }
        Ok(())
    }
}

/// The data is not the server's any more: all of it is to be copied.
fn lose(inner: &Inner, state: &mut State, end: &Arc<End>, why: &str) -> io::Error {
    // Counted while the state is held: nobody has seen it as it is now.
    inner.divergences.fetch_add(1, Ordering::Release);
    let _ = update(state, end, |replica| replica.position = None);
    tracing::error!(why, "a change of the followed server cannot be applied");
    apart(why.to_owned())
}

fn run_one(state: &mut State, client: &mut Client, args: &[Bytes], now: i64) -> Result<(), String> {
    let name = registry::printable(&args[0]);
    let failed = |stop: Stop| match stop {
        Stop::Error(text) => format!("{name}: {text}"),
        Stop::Block(_) => format!("{name} waits"),
    };
    // Without the arguments, which the error of a client has.
    let spec = registry::resolve_any(args).map_err(|_| format!("{name} is not known here"))?;
    let mut cx = Ctx::new(state, client, now, Origin::Engine);
    cx.call(spec, args).map(drop).map_err(failed)
}
