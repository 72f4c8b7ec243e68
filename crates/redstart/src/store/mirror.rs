//! A copy of one server in this process, for reads that may be stale.
//!
//! The copy is an embedded engine that follows the server as a replica. How old it is cannot be seen from the replica's
//! link: a server that hangs or a network that swallows everything is as silent as a server where nothing happens. So a
//! task asks the server itself, over a connection of its own, how long its stream of changes is. Once the copy has come that
//! far, it holds all that the server had acknowledged when it was asked.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use redis::Value;
use redstart_engine::{Engine, Following, Outcome, Reply};
use tokio::{task::AbortHandle, time::Instant};

use super::{
    backend::Embedded,
    location::Address,
    pool::ReplicaRead,
    request::{Body, Request},
    transport::{Dial, Wire},
};
use crate::error::{Error, Result};

/// How many databases the copy has, at least: a server may have more than the sixteen it has by default.
const DATABASES: usize = 256;
/// How soon the copy is looked at again when it is behind.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(50);
/// The server is asked at least so often.
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// While the copy is held by something that takes long, it is not asked for this long.
const HELD: Duration = Duration::from_millis(20);
/// So many answers of the server are kept that the copy has not reached.
const ANSWERS: usize = 64;

/// What a copy in this process is like; see [`Store::mirror`](crate::Store::mirror).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorStatus {
    /// Whether the copy answers reads that may be stale; the server does otherwise.
    pub answers: bool,
    /// All that the server had acknowledged so long ago is in the copy. `None` until all data was copied.
    pub age: Option<Duration>,
    /// The bytes of the server's stream of changes that the copy lacked when the two were compared last.
    pub behind: u64,
    /// Whether changes come over.
    pub connected: bool,
    /// Why they do not, or what could not be applied the last time that this happened.
    pub error: Option<String>,
}

pub(crate) struct Mirror {
    engine: Engine,
    copy: Embedded,
    dial: Arc<Dial>,
    max_age: Duration,
    /// When this was made.
    begun: Instant,
    /// As of when the copy is complete, in microseconds since then; 0 is never.
    level: AtomicU64,
    /// How often the copy had grown apart from the server when that was found.
    divergences: AtomicU64,
    /// Until when the copy is not asked, because it is held, in microseconds since `begun`.
    held_until: AtomicU64,
    /// What the copy said of its server when it was last looked at.
    seen: Mutex<Option<Following>>,
    behind: AtomicU64,
    /// The task that compares the copy with the server lives.
    watched: AtomicBool,
    task: Mutex<Option<AbortHandle>>,
}

impl Mirror {
    pub(crate) fn new(dial: Arc<Dial>, max_age: Duration) -> Result<Arc<Self>> {
        let db = dial.db();
        let databases = usize::try_from(db).unwrap_or(0).saturating_add(1);
        let engine = Engine::builder()
            .databases(databases.max(DATABASES))
            .build()
            .map_err(|error| Error::config("the copy cannot be made").with_source(error))?;
        let mirror = Arc::new(Self {
            copy: Embedded::on(engine.clone(), db)?,
            engine,
            dial,
            max_age,
            begun: Instant::now(),
            level: AtomicU64::new(0),
            divergences: AtomicU64::new(0),
            held_until: AtomicU64::new(0),
            seen: Mutex::default(),
            behind: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            task: Mutex::default(),
        });
        mirror.watch_in_background();
        Ok(mirror)
    }

    /// Asks the copy, if it is young enough. Whatever it says but an answer leads to the server.
    pub(crate) async fn read(self: &Arc<Self>, request: Request<'_>) -> ReplicaRead {
        // The runtime that it was begun in may have ended.
        self.watch_in_background();
        // A read of the copy is a function call and never waits, so a task that makes many has to let others run in between.
        tokio::task::coop::consume_budget().await;
        if self.answers() && !self.is_held() {
            match self.copy.read_now(request) {
                // Looked at again: what was read is the server's only if the two had not grown apart by then.
                Some(Ok(value)) if !has_error(&request, &value) && self.answers() => {
                    metrics::counter!("redstart_store_replica_reads_total").increment(1);
                    return ReplicaRead::Answered(Ok(value));
                }
                // The caller sends the source then, to the copy too: it has to learn the script.
                Some(Err(error)) if error.server_code() == Some("NOSCRIPT") => {
                    return ReplicaRead::Answered(Err(error));
                }
                None => self.hold(),
                _ => {}
            }
        }
        metrics::counter!("redstart_store_replica_misses_total").increment(1);
        ReplicaRead::Missed { moved: false }
    }

    fn answers(&self) -> bool {
        self.divergences.load(Ordering::Acquire) == self.engine.divergences()
            && self.age().is_some_and(|age| age <= self.max_age)
    }

    /// A large change of the server is being applied, say. Who waited for that would stand still with the runtime's thread.
    fn hold(&self) {
        let until = self.begun.elapsed() + HELD;
        let micros = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        self.held_until.store(micros, Ordering::Relaxed);
    }

    fn is_held(&self) -> bool {
        let until = self.held_until.load(Ordering::Relaxed);
        until > 0 && self.begun.elapsed() < Duration::from_micros(until)
    }

    /// What the copy says of its server, or last said while it is held.
    fn following(&self) -> Option<Following> {
        match self.engine.try_following() {
            Some(following) => Some(following),
            None => self.seen.lock().clone(),
        }
    }

    fn age(&self) -> Option<Duration> {
        match self.level.load(Ordering::Acquire) {
            0 => None,
            level => Some(
                self.begun
                    .elapsed()
                    .saturating_sub(Duration::from_micros(level)),
            ),
        }
    }

    pub(crate) fn status(&self) -> MirrorStatus {
        let following = self.following();
        MirrorStatus {
            answers: self.answers(),
            age: self.age(),
            behind: self.behind.load(Ordering::Relaxed),
            connected: following.as_ref().is_some_and(|of| of.connected),
            error: following.and_then(|of| of.error),
        }
    }

    fn watch_in_background(self: &Arc<Self>) {
        if self.watched.load(Ordering::Acquire) || self.watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let alive = Alive(Arc::downgrade(self));
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let watch = watch(alive, self.dial.clone(), self.interval());
        let task = crate::task::spawn_on(&runtime, watch);
        *self.task.lock() = Some(task.abort_handle());
    }

    /// How often the server is asked.
    fn interval(&self) -> Duration {
        (self.max_age / 4).min(LONGEST_INTERVAL)
    }

    /// The server had all changes up to this place when it was asked, and so has the copy.
    fn is_level_as_of(&self, asked: Instant, divergences: u64) {
        // First: whoever sees the new time must not take it for one of before.
        self.divergences.store(divergences, Ordering::Release);
        let micros = asked.saturating_duration_since(self.begun).as_micros();
        let micros = u64::try_from(micros).unwrap_or(u64::MAX).max(1);
        self.level.fetch_max(micros, Ordering::AcqRel);
    }

    fn measure(&self) {
        let node = self.dial.node();
        let age = self.age().unwrap_or_else(|| self.begun.elapsed());
        metrics::gauge!("redstart_store_mirror_age_seconds", "node" => node.clone())
            .set(age.as_secs_f64());
        metrics::gauge!("redstart_store_mirror_behind_bytes", "node" => node)
            .set(self.behind.load(Ordering::Relaxed) as f64);
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().take() {
            task.abort();
        }
    }
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").finish_non_exhaustive()
    }
}

/// Whether a part of a pipeline failed here, for whatever reason: the server may know better. A script that the copy does not
/// know is sent with its source then.
fn has_error(request: &Request<'_>, value: &Value) -> bool {
    let of_pipeline = matches!(request.body, Body::Many { .. });
    of_pipeline && holds_error(value)
}

fn holds_error(value: &Value) -> bool {
    match value {
        Value::ServerError(error) => {
            redis::RedisError::from(error.clone()).code() != Some("NOSCRIPT")
        }
        Value::Array(values) => values.iter().any(holds_error),
        _ => false,
    }
}

/// Says that the task has ended, however it did.
struct Alive(Weak<Mirror>);

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some(mirror) = self.0.upgrade() {
            mirror.watched.store(false, Ordering::Release);
        }
    }
}

/// What the server said of its stream of changes.
struct Said {
    /// When it was asked.
    asked: Instant,
    id: String,
    offset: u64,
}

/// Compares the copy with the server until the store is gone, and lets it follow.
async fn watch(alive: Alive, dial: Arc<Dial>, interval: Duration) {
    let mut wire = None;
    let mut said: VecDeque<Said> = VecDeque::new();
    let mut followed = Followed::default();
    let mut switches = dial.switches();
    loop {
        if switches != dial.switches() {
            // The server is elsewhere.
            (switches, wire) = (dial.switches(), None);
        }
        if let Err(error) = followed.tend(&alive.0, &dial).await {
            tracing::warn!(%error, place = dial.place(), "the copy does not follow the server");
        }
        let asked = Instant::now();
        match ask(&mut wire, &dial, asked + interval.max(dial.patience())).await {
            Ok((id, offset)) => {
                if said.len() == ANSWERS {
                    said.pop_front();
                }
                said.push_back(Said { asked, id, offset });
            }
            Err(error) => {
                tracing::debug!(%error, place = dial.place(), "the server of a copy does not answer");
                wire = None;
            }
        }
        let ends = asked + interval;
        let mut look = FIRST_LOOK;
        loop {
            let Some(mirror) = alive.0.upgrade() else {
                return;
            };
            compare(&mirror, &mut said);
            drop(mirror);
            if said.is_empty() || Instant::now() + look >= ends {
                break;
            }
            tokio::time::sleep(look).await;
            look = (look * 2).min(LAST_LOOK);
        }
        tokio::time::sleep_until(ends).await;
    }
}

/// Takes note of how far the copy is.
fn compare(mirror: &Mirror, said: &mut VecDeque<Said>) {
    // Asked before the place: if the copy grows apart in between, it is not level.
    let divergences = mirror.engine.divergences();
    let following = mirror.engine.try_following();
    if following.is_some() {
        mirror.seen.lock().clone_from(&following);
    }
    if let Some(Following {
        position: Some((id, offset)),
        ..
    }) = following
    {
        // Places of different streams say nothing about each other.
        said.retain(|one| one.id == id || one.asked.elapsed() < mirror.max_age);
        if let Some(last) = said.iter().rev().find(|one| one.id == id) {
            let behind = last.offset.saturating_sub(offset);
            mirror.behind.store(behind, Ordering::Relaxed);
        }
        while let Some(at) = said
            .iter()
            .position(|one| one.id == id && one.offset <= offset)
        {
            if let Some(one) = said.remove(at) {
                mirror.is_level_as_of(one.asked, divergences);
            }
        }
    }
    mirror.measure();
}

/// Asks the server how long its stream of changes is.
async fn ask(wire: &mut Option<Wire>, dial: &Dial, deadline: Instant) -> Result<(String, u64)> {
    let wire = match wire {
        Some(wire) => wire,
        None => wire.insert(dial.wire().await?),
    };
    let mut questions = redis::pipe();
    questions.cmd("INFO").arg("replication");
    // A server whose data has moved refuses what reads, and says where to.
    questions.cmd("EXISTS").arg("");
    let request = Request::new(Body::all(&questions), deadline).idempotent(true);
    let answers = wire.send(request).await;
    let answers = answers.map_err(|failure| failure.into_error(|| dial.place(), true))?;
    let mut answers = answers.into_sequence().unwrap_or_default();
    if let Some(Value::ServerError(error)) = answers.pop() {
        dial.note_refusal(&error.into());
    }
    let info = answers.pop().unwrap_or(Value::Nil).extract_error()?;
    let info: String = redis::from_redis_value(info)?;
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let id = field("master_replid").filter(|id| !id.is_empty());
    let offset = field("master_repl_offset").and_then(|offset| offset.parse().ok());
    match (id, offset) {
        (Some(id), Some(offset)) => Ok((id.to_owned(), offset)),
        _ => Err(Error::codec("the server does not say how far it is")),
    }
}

/// What the copy was told about its server.
#[derive(Default)]
struct Followed {
    address: Option<Address>,
}

impl Followed {
    /// Lets the copy follow the server, also if it is elsewhere by now or wants other credentials.
    async fn tend(&mut self, mirror: &Weak<Mirror>, dial: &Dial) -> Result<()> {
        let gone = || Error::unavailable("the store is gone");
        let mirror = mirror.upgrade().ok_or_else(gone)?;
        let (engine, following) = (mirror.engine.clone(), mirror.following());
        drop(mirror);
        let address = dial.current_address();
        let moved = address.is_some() && self.address != address;
        let settings = dial.settings();
        let connected = following.is_some_and(|of| of.connected);
        if !moved && (connected || settings.provider.is_none()) {
            return Ok(());
        }
        // The engine logs in with what its settings say whenever it connects.
        let asked = tokio::time::timeout(dial.patience(), settings.credentials()).await;
        let credentials =
            asked.map_err(|_| Error::timeout("no credentials were provided in time"))??;
        let (user, password) = credentials.as_ref().map_or((None, ""), |it| it.parts());
        let set = |name: &str, value: &str| run(&engine, &["CONFIG", "SET", name, value]);
        set("masteruser", user.unwrap_or_default())?;
        set("masterauth", password)?;
        if !moved {
            return Ok(());
        }
        if settings.tls {
            set("tls-replication", "yes")?;
            let files = [
                ("tls-ca-cert-file", &settings.ca),
                ("tls-client-cert-file", &settings.client_cert),
                ("tls-client-key-file", &settings.client_key),
            ];
            for (name, file) in files {
                let file = file.as_deref().map(|file| file.to_string_lossy());
                set(name, &file.unwrap_or_default())?;
            }
        }
        let Some(Address::Tcp { host, port }) = &address else {
            return Err(Error::config("a copy follows a server over TCP"));
        };
        run(&engine, &["REPLICAOF", host, &port.to_string()])?;
        self.address = address;
        Ok(())
    }
}

/// A command of the engine that is answered at once; its arguments are not repeated.
fn run(engine: &Engine, words: &[&str]) -> Result<()> {
    let words: Vec<Bytes> = words
        .iter()
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    match engine.session().try_execute(&words) {
        None => Err(Error::unavailable("the copy is busy")),
        Some(Outcome::Reply(Reply::Error(_)) | Outcome::Blocked(_)) => {
            Err(Error::config("the copy cannot be told to follow"))
        }
        Some(Outcome::Reply(_)) => Ok(()),
    }
}
