//! A connection for one caller, for commands that block and for transactions that watch keys.

mod memory;

use std::{sync::Arc, time::Duration};

use redis::{Cmd, FromRedisValue, Pipeline, RedisError, RedisFuture, Value, aio::ConnectionLike};
use tokio::time::{Instant, timeout_at};

use super::{
    backend::Backend,
    command::{self, Connection},
    credentials::Rotations,
    request::{
        Body, Failure, Request, array, compose, convert, count_doubt, is_refusal, refused_whole,
    },
    retry::{Destination, persist},
    transport::{Dial, Wire},
};
use crate::{
    error::{Error, Result},
    key::Key,
};
use memory::{Transaction, Writes};

/// A connection that is not shared, so that a command may wait on it and keys may be watched.
///
/// It is made when it is first used and re-established after a failure; on a Cluster it leads to the owner of the
/// key it was asked for, wherever that slot goes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// let store = redstart::Store::connect("memory://").await?;
/// let jobs = redstart::key::Keys::new("app", "jobs")?.entity("mail")?;
///
/// store.query::<()>(redis::cmd("LPUSH").arg(jobs.key()).arg("hello")).await?;
///
/// let mut own = store.dedicated(jobs.key());
/// let mut take = redis::cmd("BLMOVE");
/// take.arg(jobs.key()).arg(jobs.part("taken")).arg("RIGHT").arg("LEFT").arg(5);
/// let job: Option<String> = own.query(&take, Duration::from_secs(5)).await?;
/// assert_eq!(job.as_deref(), Some("hello"));
/// # Ok(()) }
/// ```
///
/// # Replication
///
/// `WAIT` and `WAITAOF` speak of what was written over their connection, so they are sent here, after the write. If the
/// connection was lost in between, they are errors and not an answer about nothing, also if something else was written
/// since: write again what has to be confirmed. The same if nothing was written.
///
/// # Transactions
///
/// `WATCH`, `MULTI`, `EXEC` and atomic pipelines run on this connection, so that what is watched protects what is
/// executed. If the connection is lost in between, the next call is an error and runs nothing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// # let store = redstart::Store::connect("memory://").await?;
/// let account = redstart::key::Keys::new("bank", "account")?.entity("ann")?;
/// let mut own = store.dedicated(account.key());
///
/// own.query::<()>(redis::cmd("WATCH").arg(account.key()), Duration::ZERO).await?;
/// let balance: Option<i64> = own.query(redis::cmd("GET").arg(account.key()), Duration::ZERO).await?;
/// let mut pipeline = redis::pipe();
/// pipeline.atomic().cmd("SET").arg(account.key()).arg(balance.unwrap_or(0) + 10).ignore();
/// // `None` if the key was changed meanwhile: read it again and repeat.
/// let done: Option<()> = own.pipeline(&pipeline).await?;
/// assert!(done.is_some());
/// # Ok(()) }
/// ```
pub struct Dedicated {
    backend: Arc<Backend>,
    deadline: Duration,
    slot: u16,
    connection: State,
    /// Who refused last, and where its redirection leads.
    asked: Option<Arc<Dial>>,
    next: Option<Arc<Dial>>,
    transaction: Transaction,
    writes: Writes,
    greeting: Option<Arc<Cmd>>,
}

enum State {
    Closed,
    Open(Open),
    #[cfg(feature = "engine")]
    Embedded(Box<redstart_engine::Session>),
}

struct Open {
    wire: Wire,
    dial: Arc<Dial>,
    /// The dial's count when the connection was made.
    switches: u64,
    /// Changes when there are new credentials.
    rotations: Option<Rotations>,
    /// Not carried out yet on this connection.
    greeting: Option<Arc<Cmd>>,
}

impl Open {
    /// Sends a request, and waits for the reply no longer than the server is the master: one that was replaced may be
    /// alive and keep a command blocked, or hand out what is thrown away with its data.
    async fn send(&self, request: Request<'_>) -> Result<Value, Failure> {
        tokio::select! {
            biased;
            outcome = self.wire.send(request) => outcome,
            () = self.dial.switched(self.switches) => {
                let replaced = (redis::ErrorKind::Io, "another server is the master now");
                Err(Failure::Lost(replaced.into()))
            }
        }
    }

    /// Sends what comes before the first request. If that fails, the request was not sent.
    async fn greet(&mut self, deadline: Instant) -> Result<(), Failure> {
        let Some(greeting) = self.greeting.clone() else {
            return Ok(());
        };
        match self.send(Request::one(&greeting, deadline)).await {
            Ok(Value::ServerError(error)) => return Err(Failure::Answer(error.into())),
            Ok(_) => {}
            Err(failure @ (Failure::Lost(_) | Failure::TimedOut)) => {
                let place = self.dial.place();
                return Err(Failure::NotSent(failure.into_error(|| place, true)));
            }
            Err(failure) => return Err(failure),
        }
        self.greeting = None;
        Ok(())
    }

    /// There are new credentials since it was made.
    fn is_outdated(&self) -> bool {
        let rotations = self.rotations.as_ref();
        rotations.is_some_and(|rotations| rotations.has_changed().unwrap_or(false))
    }
}

impl Dedicated {
    pub(super) fn new(backend: Arc<Backend>, deadline: Duration, key: &Key) -> Self {
        Self {
            backend,
            deadline,
            slot: key.slot(),
            connection: State::Closed,
            asked: None,
            next: None,
            transaction: Transaction::default(),
            writes: Writes::default(),
            greeting: None,
        }
    }

    /// Carries a command out on every new connection before anything else. What it writes is there for as long as the
    /// connection serves: a server that lost its data has lost its connections too.
    ///
    /// The embedded engine does not lose its data, and is not greeted.
    #[cfg(feature = "messaging")]
    pub(crate) fn greet(mut self, greeting: Cmd) -> Self {
        self.greeting = Some(Arc::new(greeting));
        self
    }

    /// Sends a command that may block for `wait` and reads its reply.
    ///
    /// The deadline is `wait` plus the store's own. A command that was refused because the server moved or
    /// is loading is sent again within it; one whose reply was lost is not. With Sentinel, a command that waits at a
    /// master that was replaced is ended at once: one that only reads (`XREAD`) waits on at the new master, any other
    /// (`BLMOVE`, `XREADGROUP`) is an error that is [in doubt](Error::is_in_doubt).
    ///
    /// # Errors
    ///
    /// Those of [`Store::query`](crate::Store::query). After the connection was lost while keys were watched or a
    /// transaction was open, [`is_unavailable`](Error::is_unavailable), once; nothing was sent. The same for `WAIT` and
    /// `WAITAOF` after a connection was lost that had carried a write, and where none was carried yet.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, the connection is closed, so the server stops waiting too. An element that the
    /// server handed out at that very moment is lost with commands that remove (`BLPOP`) and safe with those
    /// that move or lend (`BLMOVE`, `XREADGROUP`).
    ///
    /// On the embedded engine a command that still waits for an element loses nothing. One that finds an element at once takes
    /// it at the first poll. With `fsync=always` the reply then waits for the disk, and what `BLPOP` has taken is lost if the
    /// future is dropped meanwhile.
    pub async fn query<T: FromRedisValue>(&mut self, cmd: &Cmd, wait: Duration) -> Result<T> {
        let value = self.request(Body::One(cmd), wait).await?;
        // An EXEC that was aborted has carried nothing out.
        let aborted = Transaction::is_end(cmd) && value == Value::Nil;
        convert(value, aborted || command::only_reads(cmd))
    }

    /// Sends a pipeline on this connection and reads its replies. All its keys belong to the slot of the key that
    /// the connection was made for.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query); also if any command of the pipeline failed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the connection is closed, and any of the commands may have been carried out.
    pub async fn pipeline<T: FromRedisValue>(&mut self, pipeline: &Pipeline) -> Result<T> {
        let reply = self.request(Body::all(pipeline), Duration::ZERO).await?;
        compose(pipeline, reply).await
    }

    async fn request(&mut self, body: Body<'_>, wait: Duration) -> Result<Value> {
        body.check(Connection::Own)?;
        if body.replies() == 0 {
            return Ok(Value::Array(Vec::new()));
        }
        #[cfg(feature = "engine")]
        if self.backend.is_embedded() {
            // As on the shared store. The session is not taken out yet: dropped here, nothing is lost.
            tokio::task::coop::consume_budget().await;
        }
        let within = wait.saturating_add(self.deadline);
        let now = Instant::now();
        // A century is as good as for ever, and an instant has an end.
        let deadline = now.checked_add(within.min(crate::duration::LONGEST));
        let request = Request::new(body, deadline.unwrap_or(now));
        let reply = persist(self, request, None).await;
        // The caller has heard that it failed, and begins again.
        let is_lost = reply.is_err() && matches!(self.connection, State::Closed);
        let is_end = match &request.body {
            Body::One(cmd) => Transaction::is_end(cmd),
            Body::Many { pipeline, .. } => pipeline.is_transaction(),
        };
        if is_lost && is_end {
            self.transaction = Transaction::default();
        }
        reply.inspect_err(count_doubt)
    }

    /// The server carried this out, as far as it did not answer with errors.
    fn note(&mut self, body: &Body<'_>, reply: &Value) {
        match body {
            Body::One(cmd) => self.note_one(cmd, reply),
            Body::Many { pipeline, .. } if pipeline.is_transaction() => {
                self.transaction = Transaction::default();
                let aborted =
                    matches!(reply, Value::Array(replies) if replies.last() == Some(&Value::Nil));
                if !aborted && pipeline.cmd_iter().any(command::may_write) {
                    self.writes.note();
                }
            }
            Body::Many {
                pipeline, offset, ..
            } => {
                let replies = match reply {
                    Value::Array(replies) => &replies[..],
                    _ => &[],
                };
                for (at, cmd) in pipeline.cmd_iter().enumerate() {
                    // Of a reply that was not wanted it is not known what it says.
                    let reply = at.checked_sub(*offset).and_then(|at| replies.get(at));
                    self.note_one(cmd, reply.unwrap_or(&Value::Okay));
                }
            }
        }
    }

    fn note_one(&mut self, cmd: &Cmd, reply: &Value) {
        if let Value::ServerError(error) = reply {
            let body = Body::One(cmd);
            self.transaction.note_error(&body, Some(error.code()));
            return;
        }
        let is_over = self.transaction.multi && Transaction::is_end(cmd);
        let wrote = match is_over {
            true => self.transaction.writes && command::was_executed(cmd, reply),
            false => command::may_write(cmd) && !self.transaction.multi,
        };
        self.transaction.note(cmd);
        if wrote {
            self.writes.note();
        } else if command::asks_for_writes(cmd)
            && !self.transaction.multi
            && command::is_confirmed(cmd, reply)
        {
            self.writes.confirm();
        }
    }

    async fn open(&mut self, deadline: Instant) -> Result<State, Failure> {
        #[cfg(feature = "engine")]
        if let Backend::Embedded(embedded) = &*self.backend {
            let session = embedded.session().map_err(Failure::NotSent)?;
            return Ok(State::Embedded(Box::new(session)));
        }
        let dial = match self.next.take() {
            Some(dial) => dial,
            None => self.backend.dial_for(self.slot).map_err(Failure::NotSent)?,
        };
        let (switches, rotations) = (dial.switches(), dial.rotations());
        let wire = match timeout_at(deadline, dial.wire()).await {
            Ok(wire) => wire.map_err(Failure::NotSent)?,
            Err(_) => {
                return Err(Failure::NotSent(Error::timeout(format!(
                    "{} did not answer while connecting",
                    dial.place()
                ))));
            }
        };
        Ok(State::Open(Open {
            wire,
            dial,
            switches,
            rotations,
            greeting: self.greeting.clone(),
        }))
    }
}

impl Dedicated {
    /// A connection that this request may go over.
    async fn take(&mut self, request: &Request<'_>) -> Result<State, Failure> {
        // Taken out while it is in use: a dropped future takes the connection with it.
        let state = match std::mem::replace(&mut self.connection, State::Closed) {
            // It leads to a server that is no longer the master.
            State::Open(open) if open.dial.switches() != open.switches => State::Closed,
            State::Open(open) if open.is_outdated() && !self.transaction.is_open() => State::Closed,
            state => state,
        };
        match state {
            State::Closed if self.transaction.is_open() => {
                self.transaction = Transaction::default();
                Err(Failure::Down(Error::unavailable(
                    "the connection was lost while keys were watched or a transaction was open: begin again",
                )))
            }
            state => {
                if matches!(state, State::Closed) {
                    self.writes.begin();
                }
                if self.writes.refuse(&request.body) {
                    self.connection = state;
                    return Err(Failure::Down(Error::unavailable(
                        "WAIT has no write to confirm: nothing was written on this connection, or it was re-established since",
                    )));
                }
                match state {
                    State::Closed => self.open(request.deadline).await,
                    state => Ok(state),
                }
            }
        }
    }

    /// Sends a request to the server, and keeps the connection unless it leads elsewhere.
    async fn ask(&mut self, mut open: Open, request: Request<'_>) -> Result<Value, Failure> {
        let outcome = match open.greet(request.deadline).await {
            Ok(()) => open.send(request).await,
            Err(failure) => Err(failure),
        };
        let outcome = match outcome {
            Ok(Value::ServerError(error)) => Err(Failure::Answer(error.into())),
            outcome => outcome,
        };
        if let Err(Failure::Answer(error)) = &outcome {
            open.dial.note_refusal(error);
        }
        let refused = outcome
            .as_ref()
            .ok()
            .and_then(|reply| refusal(&request.body, reply));
        if let Some((error, _)) = &refused {
            open.dial.note_refusal(error);
        }
        match &outcome {
            Ok(reply) => match refused {
                None => self.note(&request.body, reply),
                // Nothing happened, so all of it is sent again.
                Some((error, true)) => {
                    self.asked = Some(open.dial);
                    return Err(Failure::Answer(error));
                }
                // The caller gets the replies; the next call goes where they lead.
                Some((error, false)) => {
                    self.note(&request.body, reply);
                    self.next = self.backend.redirected(&error, Some(&open.dial));
                    return outcome;
                }
            },
            // The server is the right one and keeps serving.
            Err(Failure::Answer(error)) if !refused_whole(error) && !is_elsewhere(error) => {
                self.transaction.note_error(&request.body, error.code());
            }
            Err(_) => {
                self.asked = Some(open.dial);
                return outcome;
            }
        }
        self.connection = State::Open(open);
        outcome
    }

    #[cfg(feature = "engine")]
    async fn ask_embedded(
        &mut self,
        mut session: Box<redstart_engine::Session>,
        request: Request<'_>,
    ) -> Result<Value, Failure> {
        let Backend::Embedded(embedded) = &*self.backend else {
            unreachable!("a session of the engine belongs to an embedded store");
        };
        let outcome = match request.body {
            Body::One(cmd) => embedded.dedicated(&mut session, cmd, request).await,
            Body::Many { .. } => embedded.pipeline(&mut session, request).await,
        };
        // What it has done to the session is not known: it is left behind.
        if outcome.as_ref().is_err_and(Error::is_timeout) {
            return outcome.map_err(Failure::Down);
        }
        match &outcome {
            Ok(reply) => self.note(&request.body, reply),
            Err(error) => {
                let code = error.server_code();
                self.transaction.note_error(&request.body, code);
            }
        }
        self.connection = State::Embedded(session);
        outcome.map_err(Failure::Down)
    }
}

impl Destination for Dedicated {
    async fn attempt<'a>(&'a mut self, request: Request<'a>) -> Result<Value, Failure> {
        match self.take(&request).await? {
            State::Closed => Err(Failure::NotSent(Error::unavailable("not connected"))),
            State::Open(open) => self.ask(open, request).await,
            #[cfg(feature = "engine")]
            State::Embedded(session) => self.ask_embedded(session, request).await,
        }
    }

    fn redirected(&mut self, _: &Request<'_>, error: &RedisError) -> bool {
        if !is_elsewhere(error) {
            return false;
        }
        self.next = self.backend.redirected(error, self.asked.as_deref());
        true
    }

    fn troubled(&mut self) {
        self.backend.troubled();
    }

    fn place(&self) -> String {
        match self.backend.dial_for(self.slot) {
            Ok(dial) => dial.place(),
            Err(_) => self.backend.place(),
        }
    }
}

/// The slot moved away, or a blocked command was ended because it did.
fn is_elsewhere(error: &RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK" | "UNBLOCKED"))
}

/// The first reply of a pipeline that is no transaction by which a command was refused for now or here, and whether
/// all of its commands were.
fn refusal(body: &Body<'_>, reply: &Value) -> Option<(RedisError, bool)> {
    let (Body::Many { pipeline, .. }, Value::Array(replies)) = (body, reply) else {
        return None;
    };
    if pipeline.is_transaction() {
        return None;
    }
    let first = replies.iter().find(|reply| is_refusal(reply))?.clone();
    let error = first.extract_error().err()?;
    let whole = replies.len() == pipeline.len() && replies.iter().all(is_refusal);
    Some((error, whole))
}

/// Commands and pipelines run one at a time with the store's deadline and no time to block.
impl ConnectionLike for Dedicated {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            self.request(Body::One(cmd), Duration::ZERO)
                .await
                .map_err(Error::into_redis)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let body = Body::Many {
                pipeline,
                offset,
                count,
            };
            let reply = self.request(body, Duration::ZERO).await;
            reply.and_then(array).map_err(Error::into_redis)
        })
    }

    fn get_db(&self) -> i64 {
        self.backend.db()
    }
}

impl std::fmt::Debug for Dedicated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dedicated")
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}
