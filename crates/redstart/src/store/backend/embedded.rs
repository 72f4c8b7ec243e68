//! The embedded engine behind the seam: a call is a function call.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use redis::{Cmd, Pipeline, Value};
use redstart_engine::{Engine, Fsync, HELD_BACK, LogPosition, Outcome, Reply, Session};
use tokio::time::{Instant, timeout_at};

mod pool;

use pool::Pool;

use crate::{
    error::{Error, Result},
    store::{
        clock::{Clock, EngineClock},
        command,
        location::{FsyncPolicy, Target},
        request::{Body, BoxFuture, Failure, Request},
    },
};

pub(crate) struct Embedded {
    clock: Arc<EngineClock>,
    db: i64,
    /// For commands that neither wait nor change their session.
    shared: Pool,
    #[cfg(feature = "testing")]
    mishaps: Arc<crate::testing::Mishaps>,
}

/// Engines that are shared within the process, by the name or the folder in their URL.
static NAMED: Mutex<Option<HashMap<String, Weak<EngineClock>>>> = Mutex::new(None);

impl Embedded {
    pub(crate) fn open(target: &Target, db: i64) -> Result<Self> {
        let engine = match target {
            Target::Memory {
                name: None,
                cluster_strict,
                compat,
            } => clocked(build(builder(*cluster_strict, compat.as_deref())?)?),
            Target::Memory {
                name: Some(name),
                cluster_strict,
                compat,
            } => {
                let builder = builder(*cluster_strict, compat.as_deref())?;
                let compat = compat.as_deref().unwrap_or_default();
                named(format!("memory:{name}:{cluster_strict}:{compat}"), || {
                    build(builder)
                })?
            }
            Target::File {
                dir,
                fsync,
                cluster_strict,
                compat,
            } => {
                let builder = builder(*cluster_strict, compat.as_deref())?;
                std::fs::create_dir_all(dir).map_err(|error| {
                    Error::config(format!("the folder {} cannot be created", dir.display()))
                        .with_source(error)
                })?;
                let dir = dir.canonicalize().unwrap_or_else(|_| dir.clone());
                let fsync = match fsync {
                    FsyncPolicy::Always => Fsync::Always,
                    FsyncPolicy::EverySec => Fsync::EverySec,
                    FsyncPolicy::No => Fsync::No,
                };
                named(format!("file:{}", dir.display()), || {
                    build(builder.append_only(dir.clone(), fsync))
                })?
            }
            _ => return Err(Error::config("not an embedded store")),
        };
        Self::with_clock(engine, db)
    }

    pub(crate) fn on(engine: Engine, db: i64) -> Result<Self> {
        Self::with_clock(clocked(engine), db)
    }

    fn with_clock(clock: Arc<EngineClock>, db: i64) -> Result<Self> {
        let shared = Pool::new(|| session(clock.engine(), db))?;
        Ok(Self {
            shared,
            clock,
            db,
            #[cfg(feature = "testing")]
            mishaps: Arc::default(),
        })
    }

    #[cfg(feature = "testing")]
    pub(crate) fn mishaps(&self) -> (Arc<crate::testing::Mishaps>, Engine) {
        (self.mishaps.clone(), self.clock.engine().clone())
    }

    /// Lets go wrong what a test wants to.
    #[cfg(feature = "testing")]
    async fn request_with_mishaps(&self, request: Request<'_>) -> Result<Value> {
        use crate::testing::Next;
        let place = || "the embedded engine".to_owned();
        let harmless = request.is_harmless();
        let arrived = || self.arrived(&request);
        if !self.mishaps.answers_by(request.deadline, arrived).await {
            return Err(Failure::TimedOut.into_error(place, harmless));
        }
        let next = self.mishaps.take();
        let reply = self.carry_out(request).await;
        match next {
            Next::Lose if harmless => self.carry_out(request).await,
            Next::Lose => {
                let lost = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                Err(Failure::Lost(lost.into()).into_error(place, false))
            }
            Next::Spare => reply,
        }
    }

    /// A request as it lies in the socket of a server that hangs; `None` for one that waits for something, which a server
    /// ends when its connection closes.
    #[cfg(feature = "testing")]
    fn arrived(&self, request: &Request<'_>) -> Option<crate::testing::Arrived> {
        let commands = match request.body {
            Body::One(cmd) if needs_own_session(cmd) => return None,
            Body::One(cmd) => vec![args(cmd)],
            Body::Many { pipeline, .. } => row(pipeline),
        };
        let db = usize::try_from(self.db).ok()?;
        Some(crate::testing::Arrived { db, commands })
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock::of_engine(self.clock.clone())
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    pub(crate) fn db(&self) -> i64 {
        self.db
    }

    pub(crate) fn session(&self) -> Result<Session> {
        session(self.clock.engine(), self.db)
    }

    pub(crate) async fn request(&self, request: Request<'_>) -> Result<Value> {
        // A call is a function call and never waits, so a task that makes many has to let others run in between.
        tokio::task::coop::consume_budget().await;
        #[cfg(feature = "testing")]
        if self.mishaps.are_due() {
            let request: BoxFuture<'_, _> = Box::pin(self.request_with_mishaps(request));
            return request.await;
        }
        self.carry_out(request).await
    }

    /// Carries out a request that only reads, at once or not at all: `None` while something holds the engine for long, or if
    /// the request would wait.
    pub(crate) fn read_now(&self, request: Request<'_>) -> Option<Result<Value>> {
        match request.body {
            Body::One(cmd) => {
                let args = args(cmd);
                let outcome = match needs_own_session(cmd) {
                    true => self.session().map(|mut own| own.try_execute(&args)),
                    false => self.with_session(|session| session.try_execute(&args)),
                };
                let outcome = match outcome {
                    Ok(outcome) => outcome?,
                    Err(error) => return Some(Err(error)),
                };
                Some(answered(top(outcome.into_reply()?), &request))
            }
            Body::Many {
                pipeline,
                offset,
                count,
            } => {
                let replies = match self.session() {
                    Ok(mut session) => session.try_execute_batch(&row(pipeline))?,
                    Err(error) => return Some(Err(error)),
                };
                Some(answered(shaped(pipeline, offset, count, replies), &request))
            }
        }
    }

    async fn carry_out(&self, request: Request<'_>) -> Result<Value> {
        match request.body {
            Body::One(cmd) if needs_own_session(cmd) => {
                // It may wait, and what waits is boxed: the others' futures need no room for it.
                let waits: BoxFuture<'_, _> = Box::pin(async move {
                    let (mut session, args) = (self.session()?, args(cmd));
                    self.call(&mut session, args, request, not_answered).await
                });
                waits.await
            }
            Body::One(cmd) => {
                let args = args(cmd);
                let (outcome, position) =
                    self.with_session(|session| session.execute_ahead(&args))?;
                match outcome {
                    // It is rare that the data moves, and what waits is boxed.
                    Outcome::Reply(reply) if is_held_back(&reply) => {
                        let waits: BoxFuture<'_, _> = Box::pin(async move {
                            let mut session = self.session()?;
                            let late = held_for_too_long;
                            self.call(&mut session, args, request, late).await
                        });
                        waits.await
                    }
                    // No session is held while the log syncs, and no thread stands still.
                    Outcome::Reply(reply) => self.told(reply, position, &request).await,
                    Outcome::Blocked(_) => Err(Error::config(
                        "a command that blocks needs a dedicated connection: store.dedicated()",
                    )),
                }
            }
            Body::Many { .. } => self.pipeline(&mut self.session()?, request).await,
        }
    }

    /// Carries out a command of a dedicated connection.
    pub(crate) async fn dedicated(
        &self,
        session: &mut Session,
        cmd: &Cmd,
        request: Request<'_>,
    ) -> Result<Value> {
        self.call(session, args(cmd), request, not_answered).await
    }

    /// Carries out a command that may wait: for what it takes, or for the end of a hand-over. `late` is the error if it has
    /// not been carried out by the deadline.
    async fn call(
        &self,
        session: &mut Session,
        args: Vec<Bytes>,
        request: Request<'_>,
        late: fn() -> Error,
    ) -> Result<Value> {
        match timeout_at(request.deadline, session.call_ahead(args)).await {
            Ok((reply, position)) => self.told(reply, position, &request).await,
            Err(_) => Err(late()),
        }
    }

    /// The reply to what was carried out, once the log has kept what it depends on.
    async fn told(
        &self,
        reply: Reply,
        position: LogPosition,
        request: &Request<'_>,
    ) -> Result<Value> {
        match self.kept(position, request.deadline).await {
            Kept::Yes => answered(top(reply), request),
            Kept::No(failed) => answered(top(failed), request),
            Kept::InDoubt => Err(not_in_time(request.is_harmless())),
        }
    }

    /// Runs a pipeline in one go.
    pub(crate) async fn pipeline(
        &self,
        session: &mut Session,
        request: Request<'_>,
    ) -> Result<Value> {
        let Body::Many {
            pipeline,
            offset,
            count,
        } = request.body
        else {
            return Err(Error::config("not a pipeline"));
        };
        let (mut replies, position) = batch(session, &row(pipeline), request.deadline).await?;
        match self.kept(position, request.deadline).await {
            Kept::Yes => {}
            Kept::No(failed) => replies.fill(failed),
            Kept::InDoubt => return Err(not_in_time(request.is_harmless())),
        }
        answered(shaped(pipeline, offset, count, replies), &request)
    }

    async fn kept(&self, position: LogPosition, deadline: Instant) -> Kept {
        if position == LogPosition::default() {
            return Kept::Yes;
        }
        // Only a log on a disk has positions, and what waits is boxed. Mostly nothing does: only with `always`.
        let engine = self.clock.engine();
        if let Some(kept) = engine.kept(position).now_or_never() {
            return kept.map_or_else(Kept::No, |()| Kept::Yes);
        }
        let waits: BoxFuture<'_, _> = Box::pin(timeout_at(deadline, engine.kept(position)));
        match waits.await {
            Ok(Ok(())) => Kept::Yes,
            Ok(Err(failed)) => Kept::No(failed),
            Err(_) => Kept::InDoubt,
        }
    }

    /// Does something on a session that nobody else uses meanwhile.
    fn with_session<T>(&self, work: impl FnOnce(&mut Session) -> T) -> Result<T> {
        match self.shared.try_session() {
            Some(mut session) => Ok(work(&mut session)),
            None => Ok(work(&mut self.session()?)),
        }
    }
}

/// Whether the log has kept what replies depend on.
enum Kept {
    Yes,
    /// What is to be answered instead.
    No(Reply),
    /// The deadline passed.
    InDoubt,
}

/// Of what may be sent again there is never a doubt to report, as from a server.
fn answered(reply: Result<Value>, request: &Request<'_>) -> Result<Value> {
    reply.map_err(|error| {
        let in_doubt = error.is_in_doubt() && !request.is_harmless();
        error.doubt(in_doubt)
    })
}

/// It was carried out, and may be lost with the power.
fn not_in_time(harmless: bool) -> Error {
    Failure::TimedOut.into_error(|| "the disk of the embedded engine".to_owned(), harmless)
}

/// While the data moves, nothing is changed here.
fn is_held_back(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text == HELD_BACK)
}

fn not_answered() -> Error {
    Error::timeout("the embedded engine did not answer in time")
}

fn held_for_too_long() -> Error {
    Error::timeout("the embedded engine held writes back for too long, because its data moves")
}

/// Runs commands in one go, once nothing holds them back.
async fn batch(
    session: &mut Session,
    commands: &[Vec<Bytes>],
    deadline: Instant,
) -> Result<(Vec<Reply>, LogPosition)> {
    loop {
        let done = session.execute_batch_ahead(commands);
        if !done.0.first().is_some_and(is_held_back) {
            return Ok(done);
        }
        let waits: BoxFuture<'_, _> = Box::pin(timeout_at(deadline, session.until_let_go()));
        waits.await.map_err(|_| held_for_too_long())?;
    }
}

/// The commands of a pipeline as they are run in a row.
fn row(pipeline: &Pipeline) -> Vec<Vec<Bytes>> {
    let commands = pipeline.cmd_iter().map(args);
    if !pipeline.is_transaction() {
        return commands.collect();
    }
    let word = |word: &'static str| vec![Bytes::from_static(word.as_bytes())];
    let mut whole = Vec::with_capacity(pipeline.len() + 2);
    whole.push(word("MULTI"));
    whole.extend(commands);
    whole.push(word("EXEC"));
    whole
}

/// What a server would have answered to the pipeline.
fn shaped(
    pipeline: &Pipeline,
    offset: usize,
    count: usize,
    mut replies: Vec<Reply>,
) -> Result<Value> {
    if !pipeline.is_transaction() {
        let replies = replies.into_iter().skip(offset).take(count);
        return Ok(Value::Array(replies.map(value).collect()));
    }
    let last = replies.pop().unwrap_or(Reply::Nil);
    if let Reply::Error(text) = &last {
        // The first command that was refused says why.
        let refused = replies
            .into_iter()
            .find(|reply| matches!(reply, Reply::Error(_)));
        return top(refused.unwrap_or_else(|| Reply::Error(text.clone())));
    }
    Ok(Value::Array(vec![value(last)]))
}

/// What all embedded stores are built from.
fn builder(cluster_strict: bool, compat: Option<&str>) -> Result<redstart_engine::EngineBuilder> {
    let builder = Engine::builder().cluster_strict(cluster_strict);
    match compat.map(str::parse::<redstart_engine::Compat>) {
        None => Ok(builder),
        Some(Ok(compat)) => Ok(builder.compat(compat)),
        Some(Err(error)) => Err(Error::config(error.to_string())),
    }
}

fn build(builder: redstart_engine::EngineBuilder) -> Result<Engine> {
    builder
        .build()
        .map_err(|error| Error::config("the embedded engine cannot start").with_source(error))
}

fn clocked(engine: Engine) -> Arc<EngineClock> {
    Arc::new(EngineClock::new(Arc::new(engine)))
}

fn named(name: String, open: impl FnOnce() -> Result<Engine>) -> Result<Arc<EngineClock>> {
    let mut named = NAMED.lock();
    let named = named.get_or_insert_default();
    named.retain(|_, engine| engine.strong_count() > 0);
    if let Some(engine) = named.get(&name).and_then(Weak::upgrade) {
        return Ok(engine);
    }
    let engine = clocked(open()?);
    named.insert(name, Arc::downgrade(&engine));
    Ok(engine)
}

fn session(engine: &Engine, db: i64) -> Result<Session> {
    let mut session = engine.session();
    if db != 0 {
        let db = usize::try_from(db).unwrap_or(usize::MAX);
        session
            .select(db)
            .map_err(|_| Error::config(format!("the embedded engine has no database {db}")))?;
    }
    Ok(session)
}

/// Commands that may block wait in a session of their own.
fn needs_own_session(cmd: &Cmd) -> bool {
    const OWN: &[&[u8]] = &[
        b"BLMOVE",
        b"BLMPOP",
        b"BLPOP",
        b"BRPOP",
        b"BRPOPLPUSH",
        b"BZMPOP",
        b"BZPOPMAX",
        b"BZPOPMIN",
        b"CLIENT",
        b"XREAD",
        b"XREADGROUP",
    ];
    let Some(name) = command::name(cmd) else {
        return false;
    };
    matches!(
        name.first().map(u8::to_ascii_uppercase),
        Some(b'B' | b'C' | b'X')
    ) && OWN.iter().any(|own| own.eq_ignore_ascii_case(name))
}

pub(crate) fn args(cmd: &Cmd) -> Vec<Bytes> {
    cmd.args_iter()
        .map(|arg| match arg {
            redis::Arg::Simple(bytes) => Bytes::copy_from_slice(bytes),
            _ => Bytes::from_static(b"0"),
        })
        .collect()
}

pub(crate) fn top(reply: Reply) -> Result<Value> {
    match value(reply) {
        Value::ServerError(error) => Err(redis::RedisError::from(error).into()),
        value => Ok(value),
    }
}

pub(crate) fn value(reply: Reply) -> Value {
    let list = |items: Vec<Reply>| items.into_iter().map(value).collect();
    match reply {
        Reply::Nil | Reply::NilArray => Value::Nil,
        Reply::Status(text) if text == "OK" => Value::Okay,
        Reply::Status(text) => Value::SimpleString(text.into_owned()),
        Reply::Int(n) => Value::Int(n),
        Reply::Bulk(bytes) => Value::BulkString(bytes.into()),
        Reply::Error(text) => server_error(&text),
        Reply::Array(items) => Value::Array(list(items)),
        Reply::Set(items) => Value::Set(list(items)),
        Reply::Map(pairs) => Value::Map(
            pairs
                .into_iter()
                .map(|(key, val)| (value(key), value(val)))
                .collect(),
        ),
        Reply::Double(n) => Value::Double(n),
        Reply::Bool(b) => Value::Boolean(b),
        Reply::BigNumber(digits) => Value::SimpleString(digits),
        Reply::Verbatim { text, .. } => Value::BulkString(text.into()),
        Reply::Push(items) => Value::Array(list(items)),
    }
}

/// The client makes its error values only by parsing.
fn server_error(text: &str) -> Value {
    let line = format!("-{}\r\n", text.replace(['\r', '\n'], " "));
    redis::parse_redis_value(line.as_bytes()).unwrap_or(Value::Nil)
}
