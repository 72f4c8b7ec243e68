//! One multiplexed connection that is re-established automatically.
//!
//! A request that finds no connection starts a background task that connects, or waits for the one that runs already.
//! That task lives by its own patience and not by the request's: a request with a short deadline fails, and the
//! next one finds the connection. The task ends when it has connected, when the store is gone, and when no request has
//! asked for a while. So an idle store does nothing.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::{RedisError, Value};
use tokio::time::{Instant, timeout_at};

use tokio_util::task::AbortOnDropHandle;

use super::{
    meter::{Measured, Meter, Waiting},
    trouble::Trouble,
};
use crate::{
    error::{Error, Result},
    store::{
        credentials::Rotations,
        request::{BoxFuture, Failure, Request, wrong_server},
        retry::{Alone, Backoff, Destination, persist},
        transport::{Dial, Wire},
    },
    watch,
};

/// How long the background task keeps trying to connect without requests.
const IDLE: Duration = Duration::from_secs(30);
/// After a request was not answered, the next ones wait at least this long for a new connection before the server counts
/// as down.
const SUSPICION: Duration = Duration::from_millis(200);
/// Pause between two times that a connection is made for later requests.
const PREPARE_PAUSE: Duration = Duration::from_millis(500);
/// Pause before credentials that a server refused are presented again.
const CREDENTIALS_PAUSE: Duration = Duration::from_millis(500);

struct Live {
    wire: Wire,
    generation: u64,
    /// The dial's count when the line was made.
    switches: u64,
    meter: Meter,
    /// Presents new credentials.
    _renewal: Option<AbortOnDropHandle<()>>,
}

pub(crate) struct Link {
    dial: Arc<Dial>,
    trouble: Arc<Trouble>,
    live: ArcSwapOption<Live>,
    generation: AtomicU64,
    connecting: Mutex<Connecting>,
    /// How long it took to make the last connection, in microseconds.
    took: AtomicU64,
    /// The last attempt to connect: its number, and why it failed.
    attempts: watch::Sender<(u64, Option<Arc<Error>>)>,
}

/// The background task, as the requests see it.
#[derive(Default)]
struct Connecting {
    /// The number of the task that connects, if one does.
    task: Option<u64>,
    count: u64,
    /// When that task began.
    since: Option<Instant>,
    /// A task that has not reported by then is in a runtime that does not run.
    reports_by: Option<Instant>,
    /// When a request last asked for the connection.
    asked: Option<Instant>,
    /// When a connection was last begun for nobody in particular.
    prepared: Option<Instant>,
}

impl Link {
    pub(super) fn new(dial: Arc<Dial>, trouble: Arc<Trouble>) -> Self {
        Self {
            dial,
            trouble,
            live: ArcSwapOption::empty(),
            generation: AtomicU64::new(0),
            connecting: Mutex::default(),
            took: AtomicU64::new(0),
            attempts: watch::Sender::new((0, None)),
        }
    }

    pub(crate) fn place(&self) -> String {
        self.dial.place()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The open connection, if it leads to a server that is still the one to ask.
    fn open(&self) -> Option<Arc<Live>> {
        let live = self.live.load_full()?;
        if live.switches == self.dial.switches() {
            return Some(live);
        }
        self.forget(live.generation);
        None
    }

    /// The open connection, or the next one that the background task makes.
    async fn connection(self: &Arc<Self>, deadline: Instant) -> Result<Arc<Live>, Failure> {
        if let Some(live) = self.open() {
            return Ok(live);
        }
        let mut attempts = self.attempts.subscribe();
        self.connect_in_background();
        let _waiting = Waiting::begin();
        let until = self
            .trouble
            .wait_until(deadline, || self.place())
            .map_err(Failure::Down)?;
        loop {
            let seen = self.trouble.seen();
            if let Some(live) = self.open() {
                return Ok(live);
            }
            match timeout_at(until, attempts.changed()).await {
                Ok(Ok(())) => {
                    if let Some(live) = self.open() {
                        return Ok(live);
                    }
                    if let (_, Some(error)) = &*attempts.borrow_and_update() {
                        return Err(Failure::NotSent(Error::shared(error)));
                    }
                }
                // The sender lives as long as this link.
                Ok(Err(_)) | Err(_) => {
                    self.trouble.begin(seen, self.wanted_until(), None);
                    return Err(Failure::Down(self.trouble.cause().unwrap_or_else(|| {
                        Error::timeout(format!("{} did not answer while connecting", self.place()))
                    })));
                }
            }
        }
    }

    /// Connects if there is no connection; one attempt.
    pub(crate) async fn ensure(self: &Arc<Self>, deadline: Instant) -> Result<(), Error> {
        match self.connection(deadline).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.into_error(|| self.place(), true)),
        }
    }

    /// Has a connection made, unless there is one. What fails for good is not tried at the rate of the requests.
    pub(super) fn prepare(self: &Arc<Self>) {
        if self.open().is_some() {
            return;
        }
        let now = Instant::now();
        let before = self.connecting.lock().prepared;
        if before.is_none_or(|before| now >= before + PREPARE_PAUSE) {
            self.connecting.lock().prepared = Some(now);
            self.connect_in_background();
        }
    }

    /// Sees to it that a task connects.
    fn connect_in_background(self: &Arc<Self>) {
        let now = Instant::now();
        let mut connecting = self.connecting.lock();
        connecting.asked = Some(now);
        let runs = connecting.task.is_some() && connecting.reports_by.is_some_and(|by| now < by);
        if runs || self.live.load().is_some() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        connecting.count += 1;
        let number = connecting.count;
        connecting.task = Some(number);
        connecting.since = Some(now);
        connecting.reports_by = Some(now + self.report_within());
        drop(connecting);
        let task = Connector {
            link: Arc::downgrade(self),
            number,
        };
        crate::task::spawn_on(&runtime, task.run());
    }

    /// One deadline of the store after the background task began.
    fn wanted_until(&self) -> Instant {
        let since = self.connecting.lock().since;
        since.unwrap_or_else(Instant::now) + self.dial.settings().deadline
    }

    /// How long the next requests wait for a new connection after one was not answered: longer where connecting takes long.
    fn suspicion(&self) -> Duration {
        let took = Duration::from_micros(self.took.load(Ordering::Relaxed));
        let most = self.dial.settings().deadline.max(SUSPICION);
        took.saturating_mul(2).clamp(SUSPICION, most)
    }

    fn report_within(&self) -> Duration {
        self.dial.patience() + Duration::from_secs(1)
    }

    /// Drops the connection if it still has that generation. Requests under way keep it.
    fn forget(&self, generation: u64) {
        let current = self.live.load();
        if current
            .as_ref()
            .is_some_and(|live| live.generation == generation)
        {
            self.live.compare_and_swap(&current, None);
        }
    }

    /// Sends once, over a new connection if need be.
    pub(crate) async fn attempt(self: &Arc<Self>, request: Request<'_>) -> Result<Value, Failure> {
        let began = Instant::now();
        let live = self.connection(request.deadline).await?;
        self.over(&live, request.delayed(began.elapsed())).await
    }

    /// Sends once over the open connection; `None` if there is none.
    pub(crate) async fn once(
        self: &Arc<Self>,
        request: Request<'_>,
    ) -> Option<Result<Value, Failure>> {
        let live = self.open()?;
        Some(self.over(&live, request).await)
    }

    /// Sends, and sends again where that is safe, until the deadline. `first` is how an attempt failed already.
    pub(crate) fn persist<'a>(
        self: &'a Arc<Self>,
        request: Request<'a>,
        first: Option<Failure>,
    ) -> BoxFuture<'a, Result<Value>> {
        Box::pin(async move { persist(&mut OneLink(self), request, first).await })
    }

    async fn over(self: &Arc<Self>, live: &Live, request: Request<'_>) -> Result<Value, Failure> {
        let generation = live.generation;
        let mut unanswered = Unanswered {
            link: self,
            generation,
            deadline: request.deadline,
            grace: request.store_deadline(),
            armed: true,
            _measured: live.meter.begin(),
        };
        let outcome = live.wire.send(request).await;
        unanswered.armed = false;
        match outcome {
            Ok(Value::ServerError(error)) => Err(self.refused(error.into(), generation)),
            Ok(value) => Ok(value),
            Err(Failure::Answer(error)) => Err(self.refused(error, generation)),
            Err(Failure::TimedOut) => {
                // A caller in a hurry fails alone: others share the connection.
                if Instant::now() >= unanswered.grace || live.wire.is_overdue() {
                    self.unanswered(generation, unanswered.grace);
                }
                Err(Failure::TimedOut)
            }
            Err(failure) => {
                self.forget(generation);
                Err(failure)
            }
        }
    }

    fn refused(&self, error: RedisError, generation: u64) -> Failure {
        self.dial.note_refusal(&error);
        if wrong_server(&error) {
            self.forget(generation);
        }
        Failure::Answer(error)
    }

    /// The connection may be dead. It is not used any more, and a new one is made right away, which shows whether
    /// the server answers. The others wait for that until `grace`, or a little.
    fn unanswered(self: &Arc<Self>, generation: u64, grace: Instant) {
        self.forget(generation);
        let seen = self.trouble.seen();
        if self.live.load().is_none() {
            let grace = grace.max(Instant::now() + self.suspicion());
            self.trouble.begin(seen, grace, None);
            self.connect_in_background();
        }
    }
}

impl Link {
    async fn authenticate(&self, live: &Live) -> Result<()> {
        let Some(auth) = self.dial.auth().await? else {
            return Ok(());
        };
        let until = Instant::now() + self.dial.patience();
        match live.wire.send(Request::one(&auth, until)).await {
            Ok(Value::ServerError(error)) => Err(RedisError::from(error).into()),
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.into_error(|| self.place(), true)),
        }
    }
}

/// All attempts go over the same link.
struct OneLink<'a>(&'a Arc<Link>);

impl Destination for OneLink<'_> {
    async fn attempt<'a>(&'a mut self, request: Request<'a>) -> Result<Value, Failure> {
        self.0.attempt(request).await
    }

    fn place(&self) -> String {
        self.0.place()
    }
}

impl Alone for Arc<Link> {
    fn send<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<Value>> {
        self.persist(request, None)
    }
}

/// A request that is dropped at its deadline leaves a connection that may be dead. One that the caller dropped earlier
/// says nothing about the connection yet; the wire looks at its deadline.
struct Unanswered<'a> {
    link: &'a Arc<Link>,
    generation: u64,
    deadline: Instant,
    /// When a request of the store's own deadline would end that began with this one.
    grace: Instant,
    armed: bool,
    _measured: Measured<'a>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let now = Instant::now();
        if now >= self.grace {
            self.link.unanswered(self.generation, self.grace);
        } else if now < self.deadline {
            metrics::counter!("redstart_store_cancelled_total").increment(1);
        }
    }
}

/// Connects until it succeeds.
struct Connector {
    link: Weak<Link>,
    number: u64,
}

impl Connector {
    async fn run(self) {
        let mut backoff = Backoff::new();
        let again = self
            .link
            .upgrade()
            .is_some_and(|link| link.generation() > 0);
        if again && crate::mend::is_missing("a lost connection is made again at once") {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        while self.attempt().await {
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// One attempt; `false` if there is nothing more to do. The link is held only by its dial meanwhile.
    async fn attempt(&self) -> bool {
        let Some(link) = self.link.upgrade() else {
            return false;
        };
        let (dial, seen) = (link.dial.clone(), link.trouble.seen());
        drop(link);
        // Counted before the line is made: a switch meanwhile means another try.
        let (switches, rotations) = (dial.switches(), dial.rotations());
        let began = Instant::now();
        let made = tokio::select! {
            biased;
            made = dial.wire() => made,
            () = dial.switched(switches) => return self.link.strong_count() > 0,
        };
        let Some(link) = self.link.upgrade() else {
            return false;
        };
        match made {
            Ok(wire) => {
                let generation = link.generation.fetch_add(1, Ordering::AcqRel) + 1;
                link.live.store(Some(Arc::new(Live {
                    wire,
                    generation,
                    switches,
                    meter: Meter::new(&link.dial.node()),
                    _renewal: rotations.map(|rotations| {
                        let renewal = present(Arc::downgrade(&link), generation, rotations);
                        AbortOnDropHandle::new(crate::task::spawn(renewal))
                    }),
                })));
                let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                link.took.store(took, Ordering::Relaxed);
                link.trouble.end();
                if generation > 1 {
                    metrics::counter!("redstart_store_reconnects_total").increment(1);
                    tracing::debug!(server = %link.place(), "reconnected");
                }
                self.report(&link, None, false)
            }
            Err(error) => {
                tracing::debug!(server = %link.place(), %error, "cannot connect");
                // What is configured wrongly does not mend while we wait.
                let lasting = error.is_config();
                let error = Arc::new(error);
                if !lasting {
                    let grace = link.wanted_until();
                    link.trouble.begin(seen, grace, Some(&error));
                }
                let again = !lasting && self.is_wanted(&link);
                if !again && self.is_the_task(&link) {
                    // The next request tries again, and is not refused because of what was long ago.
                    link.trouble.end();
                }
                self.report(&link, Some(error), again)
            }
        }
    }

    fn is_the_task(&self, link: &Link) -> bool {
        link.connecting.lock().task == Some(self.number)
    }

    /// Whether a request recently asked for the connection, and no other task took over.
    fn is_wanted(&self, link: &Link) -> bool {
        let connecting = link.connecting.lock();
        connecting.task == Some(self.number)
            && connecting.asked.is_some_and(|asked| asked.elapsed() < IDLE)
    }

    /// Wakes the waiters, after the state is such that a new request starts another task if this one ends.
    fn report(&self, link: &Link, error: Option<Arc<Error>>, again: bool) -> bool {
        {
            let mut connecting = link.connecting.lock();
            if connecting.task == Some(self.number) {
                connecting.reports_by = Some(Instant::now() + link.report_within());
                if !again {
                    connecting.task = None;
                }
            }
        }
        link.attempts.send_modify(|(number, failure)| {
            *number += 1;
            *failure = error;
        });
        again
    }
}

/// Presents new credentials on the connection of this generation. Until the server accepts them, the connection goes on
/// with those that it has.
async fn present(link: Weak<Link>, generation: u64, mut rotations: Rotations) {
    while rotations.changed().await.is_ok() {
        loop {
            let Some(link) = link.upgrade() else {
                return;
            };
            let live = link.live.load_full();
            let Some(live) = live.filter(|live| live.generation == generation) else {
                return;
            };
            let Err(error) = link.authenticate(&live).await else {
                break;
            };
            tracing::warn!(server = %link.place(), %error, "new credentials are not accepted");
            drop((live, link));
            tokio::time::sleep(CREDENTIALS_PAUSE).await;
        }
    }
}

impl Drop for Connector {
    /// The runtime may end before the task does; a request in another one then starts the next.
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            let mut connecting = link.connecting.lock();
            if connecting.task == Some(self.number) {
                connecting.task = None;
                drop(connecting);
                link.attempts.send_modify(|(number, failure)| {
                    *number += 1;
                    *failure = Some(Arc::new(Error::unavailable(
                        "the runtime that was connecting has ended",
                    )));
                });
            }
        }
    }
}
