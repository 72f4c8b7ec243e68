//! From the embedded engine to a Redis or Valkey, while everything runs.

mod compare;
mod progress;
mod server;
mod work;

use std::{fmt, future::Future, pin::pin, time::Duration};

use super::location::{Address, Location, Target};
use crate::error::{Error, Result};
use work::{Settled, Work, restore};

/// The longest pause of writes, unless another is set.
const PAUSE: Duration = Duration::from_secs(10);
/// How many changed keys the engine notes.
const NOTED: usize = 1_000_000;

/// What a hand-over is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandoverStep {
    /// The server gets all data. `0`: bytes read so far.
    Copying(u64),
    /// The server catches up. `0`: bytes that it is behind.
    CatchingUp(u64),
    /// Keys are compared. `0`: keys compared so far; `1`: all keys.
    Comparing(u64, u64),
    /// Writes are paused.
    Paused,
    /// The server is a master.
    Promoted,
    /// The engine sends everybody to the server.
    Moved,
    /// Everything is being undone.
    BackingOut,
}

impl fmt::Display for HandoverStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copying(bytes) => write!(f, "copying: {bytes} bytes"),
            Self::CatchingUp(bytes) => write!(f, "catching up: {bytes} bytes behind"),
            Self::Comparing(keys, of) => write!(f, "comparing: {keys} of {of} keys"),
            Self::Paused => f.write_str("writes are held back"),
            Self::Promoted => f.write_str("the server is a master"),
            Self::Moved => f.write_str("the engine sends everybody to the server"),
            Self::BackingOut => f.write_str("backing out"),
        }
    }
}

/// What a hand-over did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandoverReport {
    /// Where clients are sent.
    pub place: String,
    /// How many keys were moved.
    pub keys: u64,
    /// How many of them were compared while writes were held back.
    pub keys_in_pause: u64,
    /// For how long writes were held back.
    pub pause: Duration,
    /// How far the server's clock is ahead of the engine's, in microseconds, give or take a round trip.
    pub clock_ahead_micros: i64,
}

/// Settings of a [`Handover`].
#[derive(Clone, Debug)]
#[must_use]
pub struct HandoverBuilder {
    from: String,
    to: String,
    overwrite: bool,
    announce: Option<(String, u16)>,
    longest_pause: Duration,
    noted: usize,
}

impl HandoverBuilder {
    /// How many changed keys the engine notes at a time.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn noted(mut self, keys: usize) -> Self {
        self.noted = keys;
        self
    }

    /// Lets the server's data be replaced. Without this, it must have none.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Where clients reach the server, if not under the address of the URL.
    pub fn announce(mut self, host: impl Into<String>, port: u16) -> Self {
        self.announce = Some((host.into(), port));
        self
    }

    /// How long writes may be held back (default: 10 s). If that is not enough, everything is undone.
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.longest_pause = pause;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if a URL is not one of a single server on TCP, or the pause is out of range.
    pub fn build(self) -> Result<Handover> {
        let (from, to) = (Location::parse(&self.from)?, Location::parse(&self.to)?);
        let (from_host, from_port) = tcp(&from)?;
        let (to_host, to_port) = tcp(&to)?;
        if from.settings.tls {
            return Err(Error::config(
                "a hand-over needs a listener of the engine without TLS, which the server connects to",
            ));
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&self.longest_pause) {
            return Err(Error::config(
                "the longest pause must be from 1 ms to an hour",
            ));
        }
        Ok(Handover {
            from,
            to,
            source: (from_host, from_port),
            place: self.announce.unwrap_or((to_host, to_port)),
            overwrite: self.overwrite,
            longest_pause: self.longest_pause,
            noted: self.noted,
        })
    }
}

fn tcp(location: &Location) -> Result<(String, u16)> {
    match &location.target {
        Target::Single(Address::Tcp { host, port }) if location.settings.mirror.is_none() => {
            Ok((host.clone(), *port))
        }
        _ => Err(Error::config(
            "a hand-over is from one server to one server, each by a redis:// URL",
        )),
    }
}

/// Moves all data of an engine to a server, and its clients with it.
///
/// The server is made a replica of the engine and gets all data. While both are used, they are compared key by key. Then
/// writes are held back for a moment: the server takes the last changes, the keys that changed since they were compared
/// are compared again, the server becomes a master, and the engine refuses everything with `REDIRECT <host>:<port>`.
///
/// # Promises
///
/// - No acknowledged write is lost: the engine moves only if nothing was written since writes were held back, and both
///   are equal.
/// - Up to that moment everything can be undone, and is, on any failure and when it is cancelled. If the process is
///   killed, writes go on by themselves after the longest pause. Once the engine has moved, no hand-over undoes that:
///   only an operator does, by `REDSTART HANDOVER RETURN`.
/// - One hand-over of an engine is under way at a time.
/// - Stores of this library that are connected to the engine follow to the server, with the same credentials, database
///   and TLS settings. Requests, subscriptions, dedicated connections and the copy of a mirror do so without an error, unless
///   a request had been sent and not answered, which is reported as always.
/// - Other clients keep their connections and get the error `REDIRECT <host>:<port>` for everything that reads or writes, from the
///   moment of the move on. Nothing was done then, so they connect to that place and send the same again. In redis-py it is a
///   `ResponseError` with that text, in ioredis a `ReplyError`, and redis-cli prints it. Subscribers get the message `<host>:<port>` on
///   the channel `__redstart__:moved`, and are disconnected. Clients that track keys are told to forget all of them, and are
///   disconnected.
///
/// # Limits
///
/// - Bloom filters are not replicated, and a server before Redis 7.4 or Valkey 9 knows no deadlines of fields of hashes: a hand-over
///   with some of them fails.
/// - The server must reach the engine over plain TCP, under the address of the URL.
/// - A program with the engine in its own process (`memory://`, `file://`) cannot follow; its calls fail with the place
///   in the error.
/// - The data must fit into the server's `maxmemory`, or it is not moved. What a server with a policy of eviction evicts
///   later is gone.
/// - Locks and limits go by the server's clock. How far the two clocks are apart is in the report. What has expired by one of
///   the clocks only counts as expired on both, and a server whose clock is behind takes its own time for that of a delivery which
///   is in its future: when entries of consumer groups were delivered is the same to within that difference and a second.
/// - The server must know the credentials that the clients have.
/// - The server's own persistence is not checked: whether it keeps the data through a restart is up to its settings. One that is
///   restarted before the engine moves is noticed, and everything is undone.
/// - Each value is read whole for the comparison.
/// - Keys that change while others are compared are compared again, and the last of them while writes are held back. If as many keys
///   change as can be compared, which is tens of thousands in a second, the pause is as long as it takes to compare them.
///
/// # Example
///
/// ```no_run
/// # async fn example() -> redstart::Result<()> {
/// use redstart::store::Handover;
///
/// let handover = Handover::builder("redis://127.0.0.1:6380", "redis://10.0.0.7:6379").build()?;
/// let report = handover.run(|step| println!("{step}"), std::future::pending()).await?;
/// println!("writes were held back for {:?}", report.pause);
/// # Ok(()) }
/// ```
pub struct Handover {
    from: Location,
    to: Location,
    source: (String, u16),
    place: (String, u16),
    overwrite: bool,
    longest_pause: Duration,
    noted: usize,
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover")
            .field("source", &self.source)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Handover {
    /// From the engine at one URL to the server at another.
    pub fn builder(from: &str, to: &str) -> HandoverBuilder {
        HandoverBuilder {
            from: from.to_owned(),
            to: to.to_owned(),
            overwrite: false,
            announce: None,
            longest_pause: PAUSE,
            noted: NOTED,
        }
    }

    /// Does it. `told` is called with what happens, and it ends early when `cancelled` is ready.
    ///
    /// # Errors
    ///
    /// If it was cancelled, or one of the two cannot be reached, refuses, or differs from the other. Everything was
    /// undone then, unless the error is [in doubt](Error::is_in_doubt): the engine was asked to move, the server is a
    /// master, and no answer came, or the server was restarted at that moment, which the message says. What a side that cannot be reached for 10 s keeps is in the log, as a warning.
    ///
    /// # Cancel safety
    ///
    /// Do not drop the future: use `cancelled`. Dropped, it leaves the server a replica, and writes held back for up to
    /// the longest pause.
    pub async fn run(
        &self,
        mut told: impl FnMut(&HandoverStep),
        cancelled: impl Future<Output = ()>,
    ) -> Result<HandoverReport> {
        let mut work = Work::new(self, &mut told);
        let mut cancelled = pin!(cancelled);
        let prepared = tokio::select! {
            biased;
            () = &mut cancelled => Err(cancellation()),
            prepared = work.prepare() => prepared,
        };
        // It may have been cancelled while the last step was under way.
        let prepared = match prepared {
            Ok(()) => tokio::select! {
                biased;
                () = &mut cancelled => Err(cancellation()),
                () = std::future::ready(()) => Ok(()),
            },
            Err(error) => Err(error),
        };
        let done = match prepared {
            Ok(()) => work.commit().await,
            Err(error) => Err(error),
        };
        let error = match done {
            Ok(report) => return work.confirm(report).await,
            Err(error) => error,
        };
        // Only whether the engine has moved can be in doubt, and it knows.
        match work.settle(&error).await {
            Settled::Moved(report) => work.confirm(report).await,
            // Neither side is touched then: if the engine has moved, the data is at the server.
            Settled::Unknown => {
                restore(&mut work.to, work.credentials.take()).await;
                Err(error.doubt(true))
            }
            Settled::NotMoved => {
                work.back_out().await;
                Err(error.doubt(false))
            }
        }
    }
}

fn cancellation() -> Error {
    Error::unavailable("the hand-over was cancelled")
}
