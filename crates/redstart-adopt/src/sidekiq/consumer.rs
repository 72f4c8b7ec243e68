//! A consumer that loses no job when its process is killed.
//!
//! Free Sidekiq takes a job off its list and then runs it. This one moves it to a list of its own (BLMOVE) and removes it when it has ended. A
//! consumer has a heartbeat; when that stops, any other consumer gives its jobs back.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use redis::cmd;
use redstart::{
    key::{Key, Keys, Layout},
    store::Dedicated,
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    Sidekiq,
    ending::{Backoff, Ending, finish},
    job::{JobFailure, SidekiqJob},
    recover::{CONSUMERS, working},
};
use crate::{
    error::{Error, Result},
    script::Lua,
};

static LEAVE: Lua = Lua::new(include_str!("leave.lua"));

/// A consumer asks again after this long, so that it notices when it is to stop.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How long it rests after a request that failed.
const REST: Duration = Duration::from_millis(200);

/// The settings of a [`SidekiqConsumer`].
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct SidekiqConsumerBuilder {
    sidekiq: Sidekiq,
    queue: String,
    concurrency: usize,
    lease: Duration,
    poll: Duration,
    backoff: Option<Backoff>,
}

impl SidekiqConsumerBuilder {
    /// How many jobs it runs at a time (default 10).
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How long after its last heartbeat a consumer counts as dead (default 60 s). A process that is stopped for longer loses its jobs to
    /// others, which run them again.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How often it looks for retries and scheduled jobs that are due, as Sidekiq's own processes do (default 5 s).
    pub fn poll(mut self, every: Duration) -> Self {
        self.poll = every;
        self
    }

    /// How long a job waits before its retry of this number, from 0 (default Sidekiq's: the fourth power of the number and 15 s, and
    /// some more by chance).
    pub fn backoff(mut self, backoff: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        self.backoff = Some(Arc::new(backoff));
        self
    }

    /// Makes the consumer. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a queue without a name or with `queue:` before it, no concurrency, a lease under a second or an interval
    /// under 10 ms.
    pub fn build(self) -> Result<SidekiqConsumer> {
        super::check_queue(&self.queue)?;
        if self.concurrency == 0
            || self.lease < Duration::from_secs(1)
            || self.poll < Duration::from_millis(10)
        {
            return Err(Error::invalid(
                "a consumer needs a concurrency of at least 1, a lease of at least 1 s and looks for due jobs at most every 10 ms",
            ));
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host: String = host.trim().chars().filter(|c| *c != '|').collect();
        let identity = format!(
            "{}:{}:{:012x}",
            if host.is_empty() { "rust" } else { &host },
            std::process::id(),
            rand::random::<u64>() >> 16
        );
        let list = self.sidekiq.key(&format!("queue:{}", self.queue));
        let source = Keys::new("sidekiq", "queue")?
            .layout(Layout::new(move |_| list.clone()))
            .entity("queue")?;
        Ok(SidekiqConsumer(Arc::new(Inner {
            heartbeat: self.sidekiq.key(&identity),
            working: working(&self.sidekiq, &identity, &self.queue),
            member: format!("{identity}|{}", self.queue),
            source: source.key().clone(),
            identity,
            started: OnceLock::new(),
            is_running: AtomicBool::new(false),
            settings: self,
        })))
    }
}

impl fmt::Debug for SidekiqConsumerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SidekiqConsumerBuilder")
            .field("queue", &self.queue)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

/// Runs jobs of one queue of Sidekiq, beside Ruby's processes. Cheap to clone; clones are the same consumer, which [runs](Self::run) once at a
/// time: build another one to run more.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use redstart::Store;
/// use redstart_adopt::sidekiq::{JobFailure, Sidekiq, SidekiqJob, Times};
///
/// let store = Store::connect("memory://").await?;
/// let sidekiq = Sidekiq::new(&store, Times::Seconds);
/// sidekiq.push("default", "Charge", &(17, "eur")).await?;
///
/// let (done, stop) = tokio::sync::oneshot::channel::<()>();
/// let done = std::sync::Mutex::new(Some(done));
/// let handler = |job: SidekiqJob| {
///     let done = done.lock().unwrap().take();
///     async move {
///         let (order, currency): (u64, String) = job.args()?;
///         assert_eq!((job.class(), order, currency.as_str()), ("Charge", 17, "eur"));
///         drop(done); // the example ends here
///         Ok::<(), JobFailure>(())
///     }
/// };
/// sidekiq.consumer("default").build()?.run(handler, async { drop(stop.await) }).await?;
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - **A job is lost by no death of a process.** It is always in exactly one place: the queue, the list of a consumer, the retries or
///   the dead jobs; each move is one step on the server.
/// - **Failures look as Ruby's do**: retries, dead jobs and counters are in Sidekiq's own keys and formats, so Sidekiq Web shows them and can
///   retry or delete them, and Ruby's processes run the retries of classes that they have. A handler that panics fails its job, and no other.
/// - **A job that kills its processes does not kill them one after the other.** When three consumers had it as they died, it goes to the retries, with
///   their waiting times, and in the end to the dead jobs. Jobs that died with it are told from it there: each has a time of its own.
/// - Retries and scheduled jobs that are due are moved to their queues, so that Ruby need not run for that.
///
/// # Limits
///
/// - **At least once**: a job whose consumer was killed, or stopped for longer than its [lease](SidekiqConsumerBuilder::lease), runs again.
/// - It takes jobs of every class from its queue: give Rust a queue of its own, or handle all classes. One consumer has one queue; run several for
///   several.
/// - While no consumer of this kind runs anywhere, jobs of a dead one stay where they are: [`Sidekiq::recover`] gives them back.
/// - Not a Cluster, as with Sidekiq. Middleware, batches, unique jobs and other features of Ruby do not apply.
///
/// # Keys
///
/// | key | type | |
/// |---|---|---|
/// | `redstart:sidekiq:working:<identity>\|<queue>` | list | the jobs that it runs |
/// | `redstart:sidekiq:consumers` | sorted set | all consumers, by the time of their last heartbeat; those without jobs are forgotten when they stop, or after an hour |
/// | `redstart:sidekiq:recovered` | hash | how often jobs were given back, by their SHA-1; ends three days after the last one |
/// | `redstart:sidekiq:recovering` | string | says that a consumer has looked for dead ones, for a quarter of its lease |
/// | `processes`, `<identity>` | set, hash | Sidekiq's own: the heartbeat, with the lease as its TTL |
/// | `retry`, `dead`, `schedule`, `stat:*` | | Sidekiq's own |
///
/// # Round trips
///
/// Three for each job: BLMOVE on a connection of its own, the time, and a script. Four for each heartbeat, every third of the lease. One consumer of all
/// looks for dead ones in each quarter of a lease: three, one more for every 500 consumers of the last hour, and one for each that has died with jobs. A
/// look for due jobs: three, and two for each hundred of them.
///
/// # While the store is down
///
/// It keeps trying; what it runs goes on, and so it does while the store is slow. After a lease without a heartbeat it takes no further job.
#[derive(Clone)]
pub struct SidekiqConsumer(Arc<Inner>);

struct Inner {
    /// The key of its heartbeat.
    heartbeat: String,
    /// The same without a namespace.
    identity: String,
    /// The list of what it runs.
    working: String,
    /// How it stands among all consumers.
    member: String,
    source: Key,
    /// The time of the first heartbeat in s.
    started: OnceLock<f64>,
    is_running: AtomicBool,
    settings: SidekiqConsumerBuilder,
}

impl fmt::Debug for SidekiqConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SidekiqConsumer")
            .field(&self.0.identity)
            .finish()
    }
}

/// The connection on which jobs are taken, and the job. Taking is never dropped half-way: the job would be in the list and nobody would know.
type Taken = (Dedicated, Result<Option<Vec<u8>>>);

/// Something that goes on beside the handlers, so that none of them waits for the store; at most one of its kind.
struct Aside<'a, T>(Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>);

impl<'a, T> Aside<'a, T> {
    fn idle() -> Self {
        Self(None)
    }

    fn is_idle(&self) -> bool {
        self.0.is_none()
    }

    fn start(&mut self, what: impl Future<Output = T> + Send + 'a) {
        self.0 = Some(Box::pin(what));
    }

    /// Waits for what is under way; forever if nothing is. Dropped before it is done, that goes on the next time.
    async fn done(&mut self) -> T {
        match &mut self.0 {
            Some(what) => {
                let done = what.await;
                self.0 = None;
                done
            }
            None => std::future::pending().await,
        }
    }
}

/// The one run of a consumer.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl SidekiqConsumer {
    /// How it is called among Sidekiq's processes.
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    fn sidekiq(&self) -> &Sidekiq {
        &self.0.settings.sidekiq
    }

    /// Runs jobs until `stop` is done, then waits for those that are running.
    ///
    /// # Errors
    ///
    /// Only those that trying again cannot mend: an [invalid](Error::is_invalid) request, such as a second run of the consumer or of a clone while one is
    /// under way: they could not tell each other's jobs from those that a lost reply has left behind.
    ///
    /// # Cancel safety
    ///
    /// Dropped, running jobs are dropped with it; other consumers run them again when its heartbeat has stopped.
    pub async fn run<H, F>(&self, handler: H, stop: impl Future<Output = ()>) -> Result<()>
    where
        H: Fn(SidekiqJob) -> F,
        F: Future<Output = Result<(), JobFailure>>,
    {
        if self.0.is_running.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid(
                "this consumer runs already: build another one for another run",
            ));
        }
        let _running = Running(&self.0.is_running);
        let settings = &self.0.settings;
        let (mut stop, mut is_stopping) = (std::pin::pin!(stop), false);
        let (mut beat, mut poll) = (interval(settings.lease / 3), interval(settings.poll));
        let mut own = Some(settings.sidekiq.store.dedicated(&self.0.source));
        let (mut beating, mut recovering) = (
            Aside::<Result<Instant>>::idle(),
            Aside::<Result<u64>>::idle(),
        );
        let (mut promoting, mut listing, mut taking) = (
            Aside::<Result<u64>>::idle(),
            Aside::<Result<Vec<Vec<u8>>>>::idle(),
            Aside::<Taken>::idle(),
        );
        let mut running = FuturesUnordered::new();
        // What is running, as it stands in the list: the same text may be there twice.
        let mut held: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut fresh: Vec<Vec<u8>> = Vec::new();
        let (mut is_sure, mut was_lost, mut rest) = (true, false, Duration::ZERO);
        // Not before the first heartbeat: a consumer that nobody knows of must not have jobs.
        let mut lives_until = None;
        // One loop, because each of its events decides what the others may do next.
        loop {
            while let Some(text) = fresh.pop() {
                *held.entry(text.clone()).or_default() += 1;
                running.push(self.perform(text, &handler));
            }
            if is_stopping && running.is_empty() && taking.is_idle() {
                break;
            }
            if !is_stopping
                && running.len() < settings.concurrency
                && taking.is_idle()
                && listing.is_idle()
            {
                if !is_sure {
                    // Nothing is on its way: whatever is in the list and not running was moved by a request whose reply was lost. What
                    // ends meanwhile is known as well, since `held` is as it was when the list was asked for.
                    listing.start(self.strays(held.clone(), rest));
                } else if lives_until.is_some_and(|until| Instant::now() < until)
                    && let Some(own) = own.take()
                {
                    taking.start(self.take(own, rest));
                }
            }
            tokio::select! {
                biased;
                () = &mut stop, if !is_stopping => is_stopping = true,
                beaten = beating.done() => match beaten {
                    Ok(until) => {
                        lives_until = Some(until);
                        // A request that was given up may have moved a job since.
                        is_sure = false;
                        if !is_stopping && recovering.is_idle() {
                            recovering.start(settings.sidekiq.recover_in_turn(settings.lease / 4));
                        }
                    }
                    Err(error) if error.is_invalid() => return Err(error),
                    Err(error) => tracing::warn!(%error, "the heartbeat of a consumer failed"),
                },
                _ = beat.tick(), if beating.is_idle() => beating.start(self.beat(running.len())),
                recovered = recovering.done() => if let Err(error) = recovered {
                    tracing::warn!(%error, "jobs of dead consumers could not be given back");
                },
                promoted = promoting.done() => if let Err(error) = promoted {
                    tracing::warn!(%error, "jobs that are due could not be moved");
                },
                _ = poll.tick(), if !is_stopping && promoting.is_idle() => {
                    promoting.start(settings.sidekiq.promote());
                }
                listed = listing.done() => match listed {
                    Ok(strays) => (fresh, is_sure, rest) = (strays, true, Duration::ZERO),
                    Err(error) => {
                        tracing::warn!(%error, "the jobs of this consumer could not be read");
                        rest = REST;
                    }
                },
                Some(text) = running.next(), if !running.is_empty() => {
                    forget(&mut held, &text);
                }
                (connection, taken) = taking.done() => {
                    own = Some(connection);
                    match taken {
                        // A job that comes while it stops is run as well: it is already ours.
                        Ok(text) => fresh.extend(text),
                        Err(error) => {
                            tracing::warn!(%error, "no job could be taken");
                            (is_sure, was_lost, rest) = (false, true, REST);
                        }
                    }
                }
            }
        }
        // Not after it has left: it would be there again.
        if !beating.is_idle() {
            let _ = beating.done().await;
        }
        self.leave(!was_lost).await;
        Ok(())
    }

    async fn take(&self, mut own: Dedicated, rest: Duration) -> Taken {
        tokio::time::sleep(rest).await;
        let mut block = cmd("BLMOVE");
        block
            .arg(&self.0.source)
            .arg(&self.0.working)
            .arg("RIGHT")
            .arg("LEFT")
            .arg(LONGEST_WAIT.as_secs_f64());
        let taken: Result<Option<Vec<u8>>, _> = own.query(&block, LONGEST_WAIT).await;
        (own, taken.map_err(Error::from))
    }

    /// The jobs in the consumer's list that it does not run.
    async fn strays(
        &self,
        mut held: HashMap<Vec<u8>, usize>,
        rest: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        tokio::time::sleep(rest).await;
        let list = cmd("LRANGE").arg(&self.0.working).arg(0).arg(-1).take();
        let listed: Vec<Vec<u8>> = self.sidekiq().store.query(&list).await?;
        let listed = listed.into_iter();
        Ok(listed.filter(|text| !forget(&mut held, text)).collect())
    }

    /// Runs a job and ends it; returns it as it stood in the list.
    async fn perform<H, F>(&self, text: Vec<u8>, handler: &H) -> Vec<u8>
    where
        H: Fn(SidekiqJob) -> F,
        F: Future<Output = Result<(), JobFailure>>,
    {
        let ended = match SidekiqJob::read(&text) {
            Some(job) => {
                let fields = job.fields.clone();
                // Unwinding further would drop the other jobs half-way, and leave this one to kill the next consumer.
                match AssertUnwindSafe(async { handler(job).await })
                    .catch_unwind()
                    .await
                {
                    Ok(Ok(())) => Ending::Done,
                    Ok(Err(failure)) => Ending::Failed(fields, failure),
                    Err(panic) => Ending::Failed(fields, JobFailure::panic(&*panic)),
                }
            }
            None => Ending::Malformed,
        };
        let mut pause = Duration::from_millis(50);
        // A job whose end cannot be written is run again by others after the lease: until then it is worth trying.
        let patience = Instant::now().checked_add(self.0.settings.lease);
        loop {
            let settings = &self.0.settings;
            let (queue, backoff) = (&settings.queue, settings.backoff.as_ref());
            let working = &self.0.working;
            match finish(&settings.sidekiq, queue, backoff, working, &text, &ended).await {
                Ok(true) => return text,
                Ok(false) => {
                    tracing::warn!(
                        queue = self.0.settings.queue,
                        "a job has ended that was given to another consumer"
                    );
                    return text;
                }
                Err(error) if patience.is_none_or(|until| Instant::now() > until) => {
                    tracing::warn!(%error, "the end of a job could not be written");
                    return text;
                }
                Err(_) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    /// Says that it is alive, where Sidekiq's own processes do; returns until when at least.
    async fn beat(&self, busy: usize) -> Result<Instant> {
        /// Long enough, and no overflow.
        const YEAR: Duration = Duration::from_secs(366 * 86_400);
        let (inner, sidekiq) = (&*self.0, self.sidekiq());
        let until = Instant::now() + inner.settings.lease.min(YEAR);
        let now = sidekiq.store.time().await?;
        let (host, pid) = inner.identity.split_once(':').unwrap_or_default();
        let info = json!({
            "hostname": host, "started_at": inner.started.get_or_init(|| now.as_secs_f64()), "tag": "redstart",
            "pid": pid.split(':').next().and_then(|pid| pid.parse::<u32>().ok()),
            "concurrency": inner.settings.concurrency, "queues": [inner.settings.queue], "labels": ["rust"],
            "identity": inner.identity,
        });
        let lease = u64::try_from(inner.settings.lease.as_millis()).unwrap_or(u64::MAX);
        let mut beat = redis::pipe();
        beat.atomic();
        beat.cmd("SADD")
            .arg(sidekiq.key("processes"))
            .arg(&inner.identity)
            .ignore();
        beat.cmd("HSET").arg(&inner.heartbeat);
        for (field, value) in [
            ("info", info.to_string()),
            ("busy", busy.to_string()),
            ("beat", now.as_secs_f64().to_string()),
            ("rtt_us", "0".to_owned()),
            ("quiet", "false".to_owned()),
            ("rss", "0".to_owned()),
        ] {
            beat.arg(field).arg(value);
        }
        beat.ignore();
        beat.cmd("PEXPIRE")
            .arg(&inner.heartbeat)
            .arg(lease)
            .ignore();
        beat.cmd("ZADD")
            .arg(sidekiq.key(CONSUMERS))
            .arg(now.as_secs())
            .arg(&inner.member)
            .ignore();
        let () = sidekiq.store.pipeline(&beat).await?;
        Ok(until)
    }

    /// Takes its name off the lists. One with jobs is still known, so that these are given back, and so is one whose last request may yet move a job.
    async fn leave(&self, is_sure: bool) {
        let (inner, sidekiq) = (&*self.0, self.sidekiq());
        let keys = [
            sidekiq.key("processes"),
            inner.heartbeat.clone(),
            inner.working.clone(),
            sidekiq.key(CONSUMERS),
        ];
        let args: [&(dyn crate::script::Arg + Sync); 3] =
            [&inner.identity, &inner.member, &u8::from(is_sure)];
        let left: Result<u64> = LEAVE.run(&sidekiq.store, &keys, &args).await;
        if let Err(error) = left {
            tracing::debug!(%error, "a consumer that has ended is still listed");
        }
    }
}

fn interval(every: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval
}

/// Decrements a count; returns whether it was above zero.
fn forget(held: &mut HashMap<Vec<u8>, usize>, text: &[u8]) -> bool {
    match held.get_mut(text) {
        Some(1) => held.remove(text).is_some(),
        Some(count) => {
            *count -= 1;
            true
        }
        None => false,
    }
}

impl Sidekiq {
    /// Starts to set up a consumer of a queue.
    pub fn consumer(&self, queue: &str) -> SidekiqConsumerBuilder {
        SidekiqConsumerBuilder {
            sidekiq: self.clone(),
            queue: queue.to_owned(),
            concurrency: 10,
            lease: Duration::from_secs(60),
            poll: Duration::from_secs(5),
            backoff: None,
        }
    }
}
