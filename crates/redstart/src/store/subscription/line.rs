//! One connection that listens for all subscribers.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use redis::{Cmd, RedisResult, Value};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use super::{
    hub::{Batch, WeakHub},
    topic::{ChannelKind, Name},
};
use crate::{
    error::{Error, Result},
    store::{
        backend::Backend,
        credentials::{Rotations, rotated},
        request::BoxFuture,
        retry::Backoff,
        transport::{Dial, Duplex},
    },
    watch,
};

/// How long a connection that nobody uses stays open.
const LINGER: Duration = Duration::from_secs(10);
/// How many values are handed over in one go.
const SEVERAL: usize = 256;
/// How many channels one command names.
const NAMES: usize = 256;
/// How long a server may say nothing at all while an answer is awaited, at least: this is no request of anybody, and a
/// lost line is a gap for all its subscribers.
const SILENCE: Duration = Duration::from_secs(1);
/// How long an answer may take while the server says other things: it may have a backlog of messages to send first.
const BACKLOG: Duration = Duration::from_secs(60);
/// A connection that has served for so long is a good one.
const GOOD: Duration = Duration::from_secs(1);
/// How often the table of a Cluster is read for the sake of a line, in seconds. A node that was replaced while it is cut off
/// from the others keeps the line open and says nothing.
const LOOK_SECONDS: std::ops::RangeInclusive<f64> = 30.0..=60.0;
/// How many attempts fail before that is reported in the log.
const REPORTED: u32 = 3;
/// How long to wait after new credentials were not to be had, or were refused.
const CREDENTIALS_PAUSE: Duration = Duration::from_secs(1);

/// A command that the server has not answered.
pub(super) enum Sent {
    /// Each channel is confirmed, in order; or the whole is refused.
    Subscribe(ChannelKind, VecDeque<Name>),
    Unsubscribe(ChannelKind, VecDeque<Name>),
    Tracking,
    /// New credentials.
    Auth,
    Ping,
}

/// Keeps the connection of one line.
pub(super) struct Task {
    hub: WeakHub,
    id: u64,
    dial: Option<Arc<Dial>>,
    wake: Arc<Notify>,
    /// Dropped before its end, the task is in a runtime that has ended.
    ended: bool,
}

/// A new connection, and what it was made with.
struct Made {
    connection: Connection,
    switches: u64,
    rotations: Option<Rotations>,
}

/// Why a connection is not used any more.
enum End {
    /// The server, the network or the topology.
    Lost,
    /// Nobody wants it.
    Unused,
}

impl Task {
    pub(super) fn new(hub: WeakHub, id: u64, dial: Option<Arc<Dial>>, wake: Arc<Notify>) -> Self {
        Self {
            hub,
            id,
            dial,
            wake,
            ended: false,
        }
    }

    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new();
        let mut failures = 0;
        while self.is_wanted().await {
            let mut served_since = None;
            let ended = match self.connect().await {
                Ok(made) => self.serve(made, &mut served_since).await,
                Err(error) => Err(error),
            };
            // A connection alone proves nothing: the other side may close it or stay silent as soon as it is used.
            if served_since.is_some_and(|since: Instant| since.elapsed() >= GOOD) {
                backoff = Backoff::new();
                failures = 0;
            }
            let why = match ended {
                Ok(End::Unused) => break,
                Ok(End::Lost) => None,
                Err(error) => Some(Arc::new(error)),
            };
            if let Some(error) = &why {
                failures += 1;
                self.report(error, failures == REPORTED);
            }
            let Some(hub) = self.hub.upgrade() else {
                break;
            };
            hub.lost(self.id, why);
            hub.rehome(self.id);
            drop(hub);
            tokio::time::sleep(backoff.next()).await;
        }
        self.ended = true;
    }

    fn report(&self, error: &Error, is_lasting: bool) {
        let place = self.dial.as_ref().map(|dial| dial.place());
        if is_lasting {
            tracing::warn!(place, %error, "subscriptions cannot be established");
        } else {
            tracing::debug!(place, %error, "a subscription waits for its server");
        }
    }

    /// Waits until somebody uses the line; `false` if that does not happen.
    async fn is_wanted(&self) -> bool {
        loop {
            match self.hub.upgrade().and_then(|hub| hub.is_used(self.id)) {
                None => return false,
                Some(true) => return true,
                Some(false) => {}
            }
            if timeout(LINGER, self.wake.notified()).await.is_err() {
                match self.hub.upgrade() {
                    Some(hub) if !hub.retire(self.id) => {}
                    _ => return false,
                }
            }
        }
    }

    async fn connect(&self) -> Result<Made> {
        let Some(dial) = &self.dial else {
            let hub = self.hub.upgrade();
            let backend = hub.map(|hub| hub.backend().clone());
            return Ok(Made {
                connection: Connection::embedded(backend.as_deref()).await?,
                switches: 0,
                rotations: None,
            });
        };
        // Taken before the connection is made: what changes meanwhile is seen after it.
        let (switches, rotations) = (dial.switches(), dial.rotations());
        tokio::select! {
            biased;
            duplex = dial.duplex() => Ok(Made {
                connection: Connection::Remote(Box::new(duplex?)),
                switches,
                rotations,
            }),
            () = dial.switched(switches) => {
                Err(Error::unavailable("another server is the master now"))
            }
        }
    }

    /// Listens until the connection is lost or is not wanted any more. `served_since` is when all that was asked for had
    /// been answered for the first time.
    ///
    /// One loop, because what is planned, what is awaited and the alarm depend on each other.
    async fn serve(&self, made: Made, served_since: &mut Option<Instant>) -> Result<End> {
        let Made {
            mut connection,
            switches,
            rotations,
        } = made;
        let Some(hub) = self.hub.upgrade() else {
            return Ok(End::Unused);
        };
        let batch = Batch {
            most: if self.dial.is_some() { NAMES } else { 1 },
            by_slot: hub.backend().is_cluster(),
        };
        let patience = hub.patience();
        // A line that only listens does not notice a peer that is gone, so it asks now and then.
        let every = patience.clamp(Duration::from_millis(100), Duration::from_secs(5));
        let mut topology = hub.topology();
        let mut look_at = topology.is_some().then(next_look);
        drop(hub);
        let mut switched = std::pin::pin!(self.switched(switches));
        let mut rotation = Rotation::new(self.dial.as_deref(), rotations);
        let mut sent: VecDeque<(Sent, Instant)> = VecDeque::new();
        let mut unused_since: Option<Instant> = None;
        loop {
            let Some(hub) = self.hub.upgrade() else {
                return Ok(End::Unused);
            };
            let Some(plan) = hub.plan(self.id, batch) else {
                return Ok(End::Unused);
            };
            let now = Instant::now();
            if plan.credentials_refused {
                rotation.refused();
            }
            for (command, cmd) in plan.sends {
                sent.push_back((command, now));
                connection.send(&cmd).await;
            }
            // Here, because the alarm is not looked at while values keep coming.
            if due(plan.retry_at, now) {
                hub.retry(self.id);
                continue;
            }
            if due(look_at, now) {
                hub.backend().troubled();
                look_at = Some(next_look());
            }
            drop(hub);
            unused_since = plan.unused.then(|| unused_since.unwrap_or(now));
            let asked = sent.front().map(|(_, at)| *at);
            let given_up_at = asked.map(|asked| answer_by(asked, connection.heard(), patience));
            let ping_at = match asked {
                None if self.dial.is_some() => Some(connection.heard() + every),
                _ => None,
            };
            let retire_at = unused_since.map(|since| since + LINGER);
            let times = [given_up_at, ping_at, retire_at, plan.retry_at, look_at];
            let alarm = times.into_iter().flatten().min();
            tokio::select! {
                // What is rare comes first. A value comes before the alarm: it may be the answer that is awaited.
                biased;
                () = &mut switched => return Ok(End::Lost),
                () = changed(&mut topology) => {
                    if let Some(hub) = self.hub.upgrade() {
                        hub.rehome(self.id);
                    }
                }
                auth = rotation.next() => {
                    sent.push_back((Sent::Auth, Instant::now()));
                    connection.send(&auth).await;
                }
                () = self.wake.notified() => {}
                value = connection.next() => {
                    let mut values = vec![value?];
                    while values.len() < SEVERAL && let Some(value) = connection.received()? {
                        values.push(value);
                    }
                    if let Some(hub) = self.hub.upgrade() {
                        hub.hear(self.id, &mut sent, values.into_iter())?;
                    }
                    if sent.is_empty() {
                        served_since.get_or_insert_with(Instant::now);
                    }
                }
                () = until(alarm) => {
                    let now = Instant::now();
                    // Bytes of a value that is not whole yet may have arrived meanwhile.
                    if let Some(asked) = asked && answer_by(asked, connection.heard(), patience) <= now {
                        return Err(Error::timeout("the server did not answer a subscription in time"));
                    }
                    if due(retire_at, now) && self.hub.upgrade().is_none_or(|hub| hub.retire(self.id)) {
                        return Ok(End::Unused);
                    }
                    if due(ping_at, now) && connection.heard() + every <= now {
                        sent.push_back((Sent::Ping, now));
                        connection.send(&redis::cmd("PING")).await;
                    }
                }
            }
        }
    }

    /// Ends when the connection leads to a server that is no longer the master.
    async fn switched(&self, since: u64) {
        match &self.dial {
            Some(dial) => dial.switched(since).await,
            None => std::future::pending().await,
        }
    }
}

/// When a server that has not answered is given up.
fn answer_by(asked: Instant, heard: Instant, patience: Duration) -> Instant {
    let silent_for = patience.max(SILENCE);
    let at_most = asked + BACKLOG.max(silent_for);
    (asked.max(heard) + silent_for).min(at_most)
}

fn next_look() -> Instant {
    Instant::now() + Duration::from_secs_f64(crate::chance::range(LOOK_SECONDS))
}

fn due(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| at <= now)
}

/// New credentials for an open connection. They are fetched beside everything else that happens on it.
struct Rotation<'d> {
    dial: Option<&'d Dial>,
    rotations: Option<Rotations>,
    fetching: Option<BoxFuture<'d, Result<Option<Cmd>>>>,
    again_at: Option<Instant>,
}

impl<'d> Rotation<'d> {
    fn new(dial: Option<&'d Dial>, rotations: Option<Rotations>) -> Self {
        Self {
            dial,
            rotations,
            fetching: None,
            again_at: None,
        }
    }

    /// The command that presents new credentials, once there are some. Cancel safe.
    async fn next(&mut self) -> Cmd {
        let Some(dial) = self.dial else {
            return std::future::pending().await;
        };
        loop {
            if self.fetching.is_none() {
                tokio::select! {
                    biased;
                    () = rotated(&mut self.rotations) => {}
                    () = until(self.again_at) => {}
                }
                self.again_at = None;
            }
            let fetching = self.fetching.get_or_insert_with(|| Box::pin(dial.auth()));
            let fetched = fetching.await;
            self.fetching = None;
            match fetched {
                Ok(Some(auth)) => return auth,
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "there are no new credentials for a subscription");
                    self.refused();
                }
            }
        }
    }

    /// They are fetched and presented again after a while.
    fn refused(&mut self) {
        self.again_at = Some(Instant::now() + CREDENTIALS_PAUSE);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.ended
            && let Some(hub) = self.hub.upgrade()
        {
            hub.orphan();
        }
    }
}

async fn until(alarm: Option<Instant>) {
    match alarm {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn changed(topology: &mut Option<watch::Receiver<u64>>) {
    if let Some(topology) = topology
        && topology.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// A connection, or a session with the engine.
enum Connection {
    Remote(Box<Duplex>),
    #[cfg(feature = "engine")]
    Embedded(Box<Embedded>),
}

#[cfg(feature = "engine")]
struct Embedded {
    session: redstart_engine::Session,
    pushes: redstart_engine::PushReceiver,
    /// What the session answered.
    replies: VecDeque<Value>,
}

impl Connection {
    #[cfg(feature = "engine")]
    async fn embedded(backend: Option<&Backend>) -> Result<Self> {
        use crate::store::backend::embedded::top;
        let Some(Backend::Embedded(embedded)) = backend else {
            return Err(unreachable_server());
        };
        let mut session = embedded.session()?;
        let hello = ["HELLO", "3"].map(|word| bytes::Bytes::from_static(word.as_bytes()));
        top(session.call(hello.to_vec()).await)?;
        let pushes = session.pushes();
        Ok(Self::Embedded(Box::new(Embedded {
            session,
            pushes,
            replies: VecDeque::new(),
        })))
    }

    #[cfg(not(feature = "engine"))]
    async fn embedded(_: Option<&Backend>) -> Result<Self> {
        Err(unreachable_server())
    }

    /// Sends a command, now or with the next call of `next`.
    async fn send(&mut self, cmd: &Cmd) {
        match self {
            Self::Remote(duplex) => duplex.queue(cmd),
            #[cfg(feature = "engine")]
            Self::Embedded(embedded) => {
                let args = crate::store::backend::embedded::args(cmd);
                let reply = embedded.session.call(args).await;
                embedded.replies.push_back(value(reply));
            }
        }
    }

    /// The next value if it was received already.
    fn received(&mut self) -> RedisResult<Option<Value>> {
        match self {
            Self::Remote(duplex) => duplex.received(),
            #[cfg(feature = "engine")]
            Self::Embedded(embedded) => Ok(embedded
                .replies
                .pop_front()
                .or_else(|| embedded.pushes.try_recv().map(value))),
        }
    }

    /// When the other side spoke last.
    fn heard(&self) -> Instant {
        match self {
            Self::Remote(duplex) => duplex.heard(),
            #[cfg(feature = "engine")]
            Self::Embedded(_) => Instant::now(),
        }
    }

    /// Waits for the next value. Cancel safe.
    async fn next(&mut self) -> RedisResult<Value> {
        match self {
            Self::Remote(duplex) => duplex.next().await,
            #[cfg(feature = "engine")]
            Self::Embedded(embedded) => {
                if let Some(reply) = embedded.replies.pop_front() {
                    return Ok(reply);
                }
                match embedded.pushes.recv().await {
                    Some(push) => Ok(value(push)),
                    None => Err((redis::ErrorKind::Io, "the session has ended").into()),
                }
            }
        }
    }
}

/// What the engine says, as a server would say it.
#[cfg(feature = "engine")]
fn value(reply: redstart_engine::Reply) -> Value {
    use crate::store::{backend::embedded, transport};
    match reply {
        redstart_engine::Reply::Push(items) => {
            transport::push(items.into_iter().map(embedded::value).collect())
        }
        reply => embedded::value(reply),
    }
}

fn unreachable_server() -> Error {
    Error::unavailable("no server is known that a subscription could be made at")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_speaks_is_not_given_up_for_an_answer_that_is_late() {
        let asked = Instant::now();
        let (hasty, second) = (Duration::from_millis(20), Duration::from_secs(1));
        assert_eq!(answer_by(asked, asked - second, hasty), asked + SILENCE);
        assert_eq!(answer_by(asked, asked, 5 * second), asked + 5 * second);
        // Confirmations of other channels and messages count.
        assert_eq!(
            answer_by(asked, asked + 10 * second, hasty),
            asked + 10 * second + SILENCE
        );
        assert_eq!(
            answer_by(asked, asked + 2 * BACKLOG, hasty),
            asked + BACKLOG,
            "but not for ever"
        );
    }
}
