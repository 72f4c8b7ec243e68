//! One multiplexed connection that comes back by itself.
//!
//! No task watches it: whoever needs it next makes it anew, one at a time, while the others wait for that one
//! within their own deadlines. So an idle store does nothing, and a dropped store leaves nothing running.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use redis::{
    Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};
use tokio::{sync::Mutex, time::Instant};

use super::{
    dial::Dial,
    retry,
    wire::{Fault, Wire},
};
use crate::error::{Error, Result};

/// What is sent: one command, or several in one write.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    One(&'a Cmd),
    Many {
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    },
}

impl<'a> Request<'a> {
    pub(crate) fn all(pipeline: &'a Pipeline) -> Self {
        if pipeline.is_transaction() {
            Self::Many {
                pipeline,
                offset: pipeline.len() + 1,
                count: 1,
            }
        } else {
            Self::Many {
                pipeline,
                offset: 0,
                count: pipeline.len(),
            }
        }
    }

    pub(crate) fn only_reads(&self) -> bool {
        match self {
            Self::One(cmd) => retry::only_reads(cmd),
            Self::Many { pipeline, .. } => retry::pipeline_only_reads(pipeline),
        }
    }
}

/// What requests are sent over.
pub(crate) enum Line {
    /// A connection of our own.
    Plain(Wire),
    /// One of the client's, where it knows how to make it and we do not: with TLS, or from a client that the
    /// application gave us.
    Client(MultiplexedConnection),
}

impl Line {
    /// Sends and waits for the reply, at least until the deadline.
    pub(crate) async fn send(
        &self,
        request: Request<'_>,
        deadline: Instant,
    ) -> Result<Value, Fault> {
        match self {
            Self::Plain(wire) => wire.send(request, deadline).await,
            Self::Client(connection) => {
                let sending = send_by_client(connection.clone(), request);
                match tokio::time::timeout_at(deadline, sending).await {
                    Ok(Ok(value)) => Ok(value),
                    Ok(Err(error)) => match retry::answered(&error) {
                        true => Err(Fault::Answer(error)),
                        false => Err(Fault::Lost(error)),
                    },
                    Err(_) => Err(Fault::TimedOut),
                }
            }
        }
    }
}

/// Boxed: the futures of all patterns would have to have room for the client's otherwise.
fn send_by_client<'a>(
    mut connection: MultiplexedConnection,
    request: Request<'a>,
) -> BoxFuture<'a, RedisResult<Value>> {
    Box::pin(async move {
        match request {
            Request::One(cmd) => connection.send_packed_command(cmd).await,
            Request::Many {
                pipeline,
                offset,
                count,
            } => connection
                .send_packed_commands(pipeline, offset, count)
                .await
                .map(Value::Array),
        }
    })
}

/// Why an attempt gave no value.
pub(crate) enum Failure {
    /// Nothing left this process.
    NotSent(Error),
    /// It was sent, and the connection was lost before the reply.
    Lost(RedisError),
    /// The server answered with an error.
    Answer(RedisError),
}

impl Failure {
    /// The error for the caller. `reads` says that repeating is harmless, so there is no doubt to report.
    pub(crate) fn into_error(self, reads: bool) -> Error {
        match self {
            Self::NotSent(error) => error,
            Self::Lost(error) => Error::unavailable("the connection was lost before the reply")
                .with_source(error)
                .doubt(!reads),
            Self::Answer(error) => error.into(),
        }
    }
}

/// What became of one attempt over a connection that stood.
pub(crate) enum Once {
    Done(Result<Value, Failure>),
    /// It was sent and not answered.
    TimedOut,
    /// There was no connection, so nothing was sent.
    NotConnected,
}

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

struct Live {
    line: Line,
    generation: u64,
    /// The dial's count when the line was made.
    switches: u64,
}

pub(crate) struct Link {
    dial: Arc<Dial>,
    live: ArcSwapOption<Live>,
    connecting: Mutex<()>,
    generation: AtomicU64,
}

impl Link {
    pub(crate) fn new(dial: Arc<Dial>) -> Self {
        Self {
            dial,
            live: ArcSwapOption::empty(),
            connecting: Mutex::new(()),
            generation: AtomicU64::new(0),
        }
    }

    pub(crate) fn dial(&self) -> &Arc<Dial> {
        &self.dial
    }

    /// How often a connection was made; changes when the server may have changed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The connection that stands, if it leads to a server that is still the one to ask.
    fn standing(&self) -> Option<Arc<Live>> {
        let live = self.live.load_full()?;
        if live.switches == self.dial.switches() {
            return Some(live);
        }
        self.forget(live.generation);
        None
    }

    async fn connection(&self) -> Result<Arc<Live>> {
        if let Some(live) = self.standing() {
            return Ok(live);
        }
        let _turn = self.connecting.lock().await;
        if let Some(live) = self.standing() {
            return Ok(live);
        }
        // Counted before it is made: a switch meanwhile means another try.
        let switches = self.dial.switches();
        let line = self.dial.line().await?;
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        let live = Arc::new(Live {
            line,
            generation,
            switches,
        });
        self.live.store(Some(live.clone()));
        if generation > 1 {
            metrics::counter!("redstart_store_reconnects_total").increment(1);
            tracing::debug!(server = %self.dial.describe(), "connected again");
        }
        Ok(live)
    }

    /// Connects if there is no connection.
    pub(crate) async fn ensure(&self) -> Result<()> {
        self.connection().await.map(drop)
    }

    /// Lets go of the connection, if it is still the one of that generation. Requests under way keep it.
    fn forget(&self, generation: u64) {
        if self
            .live
            .load()
            .as_ref()
            .is_some_and(|live| live.generation == generation)
        {
            self.live.store(None);
        }
    }

    /// Sends once. `sent` becomes true before anything can reach the server. The caller keeps the deadline.
    pub(crate) async fn attempt(
        &self,
        request: Request<'_>,
        sent: &AtomicBool,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let live = self.connection().await.map_err(Failure::NotSent)?;
        sent.store(true, Ordering::Relaxed);
        match self.over(&live, request, deadline).await {
            Once::Done(outcome) => outcome,
            // The caller's own timer is about to say so too.
            Once::TimedOut | Once::NotConnected => std::future::pending().await,
        }
    }

    /// Sends once over the connection that stands, if one does, and waits until the deadline.
    pub(crate) async fn once(&self, request: Request<'_>, deadline: Instant) -> Once {
        match self.standing() {
            Some(live) => self.over(&live, request, deadline).await,
            None => Once::NotConnected,
        }
    }

    async fn over(&self, live: &Live, request: Request<'_>, deadline: Instant) -> Once {
        let generation = live.generation;
        let mut watch = Watch::new(self, generation, deadline);
        let outcome = live.line.send(request, deadline).await;
        watch.done = true;
        let failure = match outcome {
            Ok(Value::ServerError(error)) => self.refused(error.into(), generation),
            Ok(value) => return Once::Done(Ok(value)),
            Err(Fault::Answer(error)) => self.refused(error, generation),
            Err(Fault::Lost(error)) => {
                self.forget(generation);
                Failure::Lost(error)
            }
            Err(Fault::NotSent(error)) => {
                self.forget(generation);
                Failure::NotSent(Error::unavailable("the connection was lost").with_source(error))
            }
            Err(Fault::TimedOut) => {
                self.forget(generation);
                return Once::TimedOut;
            }
        };
        Once::Done(Err(failure))
    }

    fn refused(&self, error: RedisError, generation: u64) -> Failure {
        if retry::wrong_server(&error) {
            self.forget(generation);
        }
        Failure::Answer(error)
    }

    /// Sends, and sends again where that is safe, until the deadline.
    pub(crate) async fn request(
        &self,
        request: Request<'_>,
        idempotent: bool,
        within: Duration,
    ) -> Result<Value> {
        let deadline = Instant::now() + within;
        let first = match self.once(request, deadline).await {
            Once::Done(Ok(value)) if !needs_mending(request, &value) => return Ok(value),
            Once::Done(outcome) => Some(outcome),
            Once::TimedOut => {
                return Err(timed_out(
                    &self.dial.describe(),
                    !idempotent && !request.only_reads(),
                ));
            }
            Once::NotConnected => None,
        };
        self.persist(request, idempotent, deadline, first).await
    }

    /// What is left to do when the first attempt, if there was one, did not do it. It is boxed because that is
    /// rare, and the futures of all patterns need no room for it then.
    fn persist<'a>(
        &'a self,
        request: Request<'a>,
        idempotent: bool,
        deadline: Instant,
        mut first: Option<Result<Value, Failure>>,
    ) -> BoxFuture<'a, Result<Value>> {
        let sent = AtomicBool::new(first.is_some());
        Box::pin(async move {
            let work = async {
                let mut backoff = retry::Backoff::new();
                loop {
                    let outcome = match first.take() {
                        Some(outcome) => outcome,
                        None => self.attempt(request, &sent, deadline).await,
                    };
                    let failure = match outcome {
                        Ok(Value::Array(replies)) if matches!(request, Request::Many { .. }) => {
                            return self.mend(request, replies, deadline).await;
                        }
                        Ok(value) => return Ok(value),
                        Err(failure) => failure,
                    };
                    let again = match &failure {
                        Failure::NotSent(error) => !error.is_config(),
                        Failure::Lost(_) => idempotent || request.only_reads(),
                        Failure::Answer(error) => refused_whole(error),
                    };
                    if !again {
                        return Err(failure.into_error(idempotent || request.only_reads()));
                    }
                    if matches!(failure, Failure::NotSent(_) | Failure::Answer(_)) {
                        // Nothing of it has happened, whatever was sent.
                        sent.store(false, Ordering::Relaxed);
                    }
                    let pause = backoff.next();
                    if Instant::now() + pause >= deadline {
                        return Err(failure.into_error(idempotent || request.only_reads()));
                    }
                    tokio::time::sleep(pause).await;
                }
            };
            match tokio::time::timeout_at(deadline, work).await {
                Ok(result) => result,
                Err(_) => Err(timed_out(
                    &self.dial.describe(),
                    sent.load(Ordering::Relaxed) && !idempotent && !request.only_reads(),
                )),
            }
        })
    }

    /// A pipeline that is no transaction may be refused in part (the server began to load, or was demoted,
    /// half-way). What was refused did not happen and is sent again, alone and in order.
    async fn mend(
        &self,
        request: Request<'_>,
        replies: Vec<Value>,
        deadline: Instant,
    ) -> Result<Value> {
        let Request::Many { pipeline, .. } = request else {
            return Ok(Value::Array(replies));
        };
        if pipeline.is_transaction() || retry::first_refusal(&replies).is_none() {
            return Ok(Value::Array(replies));
        }
        let mut mended = Vec::with_capacity(replies.len());
        for (cmd, reply) in pipeline.cmd_iter().zip(replies) {
            let refused = retry::first_refusal(std::slice::from_ref(&reply))
                .is_some_and(|error| retry::refused_for_now(&error));
            mended.push(if refused {
                let left = deadline.saturating_duration_since(Instant::now());
                match Box::pin(self.request(Request::One(cmd), false, left)).await {
                    Ok(value) => value,
                    Err(_) => reply,
                }
            } else {
                reply
            });
        }
        Ok(Value::Array(mended))
    }
}

/// Whether a part of the pipeline was refused and has to be sent again.
fn needs_mending(request: Request<'_>, value: &Value) -> bool {
    match (request, value) {
        (Request::Many { pipeline, .. }, Value::Array(replies)) => {
            !pipeline.is_transaction() && retry::first_refusal(replies).is_some()
        }
        _ => false,
    }
}

/// The server said that nothing happened: to a command, or to all of a transaction.
pub(crate) fn refused_whole(error: &RedisError) -> bool {
    if retry::refused_for_now(error) {
        return true;
    }
    error.kind() == ErrorKind::Server(ServerErrorKind::ExecAbort)
        && error.clone().into_server_errors().is_some_and(|errors| {
            !errors.is_empty()
                && errors
                    .iter()
                    .any(|(_, error)| retry::refused_for_now(&error.clone().into()))
        })
}

pub(crate) fn timed_out(place: &str, in_doubt: bool) -> Error {
    Error::timeout(format!("{place} did not answer in time")).doubt(in_doubt)
}

/// A request dropped at its deadline leaves a connection that may be dead: nobody uses it any more.
/// A request that the caller dropped earlier says nothing about the connection.
struct Watch<'a> {
    link: &'a Link,
    generation: u64,
    deadline: Instant,
    done: bool,
}

impl<'a> Watch<'a> {
    fn new(link: &'a Link, generation: u64, deadline: Instant) -> Self {
        Self {
            link,
            generation,
            deadline,
            done: false,
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.done && Instant::now() >= self.deadline {
            self.link.forget(self.generation);
        }
    }
}
