//! One connection that listens for all subscribers.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use redis::{Cmd, RedisResult, Value};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use super::{
    hub::{Batch, WeakHub},
    topic::{Kind, Name},
};
use crate::{
    error::{Error, Result},
    store::{
        backend::Backend,
        credentials::{Rotations, rotated},
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

/// A command that the server has not answered.
pub(super) enum Sent {
    /// Each channel is confirmed, in order; or the whole is refused.
    Subscribe(Kind, VecDeque<Name>),
    Unsubscribe(Kind, VecDeque<Name>),
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
        while self.is_wanted().await {
            let ended = match self.connect().await {
                Ok(made) => {
                    // It was reached, so the next try may come at once.
                    backoff = Backoff::new();
                    self.serve(made).await
                }
                Err(error) => Err(error),
            };
            match ended {
                Ok(End::Unused) => break,
                Ok(End::Lost) => {}
                Err(error) => tracing::debug!(%error, "a subscription waits for its server"),
            }
            let Some(hub) = self.hub.upgrade() else {
                break;
            };
            hub.lost(self.id);
            hub.rehome(self.id);
            drop(hub);
            tokio::time::sleep(backoff.next()).await;
        }
        self.ended = true;
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

    /// Listens until the connection is lost or is not wanted any more.
    async fn serve(&self, made: Made) -> Result<End> {
        let Made {
            mut connection,
            switches,
            mut rotations,
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
        drop(hub);
        let mut switched = std::pin::pin!(self.switched(switches));
        let mut sent: VecDeque<(Sent, Instant)> = VecDeque::new();
        let mut heard = Instant::now();
        let mut unused_since: Option<Instant> = None;
        loop {
            let Some(plan) = self.hub.upgrade().and_then(|hub| hub.plan(self.id, batch)) else {
                return Ok(End::Unused);
            };
            for (command, cmd) in plan.sends {
                sent.push_back((command, Instant::now()));
                connection.send(&cmd).await;
            }
            let now = Instant::now();
            unused_since = plan.unused.then(|| unused_since.unwrap_or(now));
            let answer_by = sent.front().map(|(_, at)| *at + patience);
            let ping_at = match answer_by {
                None if self.dial.is_some() => Some(heard + every),
                _ => None,
            };
            let retire_at = unused_since.map(|since| since + LINGER);
            let times = [answer_by, ping_at, retire_at, plan.retry_at];
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
                () = rotated(&mut rotations) => {
                    if let Some(auth) = self.auth().await {
                        sent.push_back((Sent::Auth, Instant::now()));
                        connection.send(&auth).await;
                    }
                }
                () = self.wake.notified() => {}
                value = connection.next() => {
                    let mut values = vec![value?];
                    while values.len() < SEVERAL && let Some(value) = connection.received()? {
                        values.push(value);
                    }
                    heard = Instant::now();
                    if let Some(hub) = self.hub.upgrade() {
                        hub.hear(self.id, &mut sent, values.into_iter())?;
                    }
                }
                () = until(alarm) => {
                    let now = Instant::now();
                    let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
                    let Some(hub) = self.hub.upgrade() else {
                        return Ok(End::Unused);
                    };
                    if due(answer_by) {
                        return Err(Error::timeout("the server did not answer a subscription in time"));
                    }
                    if due(retire_at) && hub.retire(self.id) {
                        return Ok(End::Unused);
                    }
                    if due(plan.retry_at) {
                        hub.retry(self.id);
                    }
                    if due(ping_at) {
                        sent.push_back((Sent::Ping, now));
                        connection.send(&redis::cmd("PING")).await;
                    }
                }
            }
        }
    }

    /// The command that presents new credentials.
    async fn auth(&self) -> Option<Cmd> {
        match self.dial.as_ref()?.auth().await {
            Ok(auth) => auth,
            Err(error) => {
                tracing::warn!(%error, "there are no new credentials for a subscription");
                None
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
