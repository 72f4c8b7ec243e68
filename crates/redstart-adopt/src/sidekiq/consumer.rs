//! A consumer that loses no job when its process is killed.
//!
//! Free Sidekiq takes a job off its list and then runs it. This one moves it to a list of its own (BLMOVE) and removes it when it has ended. A
//! consumer has a heartbeat; when that stops, any other consumer gives its jobs back.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use redis::cmd;
use redstart::{
    key::{Key, Keys, Layout},
    store::Dedicated,
};
use serde_json::json;

use super::{
    Sidekiq,
    job::{Fields, JobFailure, SidekiqJob},
};
use crate::{
    error::{Error, Result},
    script::Lua,
};

static FINISH: Lua = Lua::new(include_str!("finish.lua"));
static PROMOTE: Lua = Lua::new(include_str!("promote.lua"));
static RECOVER: Lua = Lua::new(include_str!("recover.lua"));

/// All consumers, by the time of their last heartbeat.
const CONSUMERS: &str = "redstart:sidekiq:consumers";

/// A consumer that has not been heard of for this long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(86_400);

/// A consumer asks again after this long, so that it notices when it is to stop.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

type Backoff = Arc<dyn Fn(u32) -> Duration + Send + Sync>;

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

/// The list of the jobs that a consumer runs.
fn working(sidekiq: &Sidekiq, identity: &str, queue: &str) -> String {
    sidekiq.key(&format!("redstart:sidekiq:working:{identity}|{queue}"))
}

/// Runs jobs of one queue of Sidekiq, beside Ruby's processes. Cheap to clone; clones are the same consumer.
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
///   retry or delete them, and Ruby's processes run the retries of classes that they have.
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
/// | `redstart:sidekiq:consumers` | sorted set | all consumers, by the time of their last heartbeat |
/// | `processes`, `<identity>` | set, hash | Sidekiq's own: the heartbeat, with the lease as its TTL |
/// | `retry`, `dead`, `schedule`, `stat:*` | | Sidekiq's own |
///
/// # Round trips
///
/// Two for each job: BLMOVE on a connection of its own, and a script.
///
/// # While the store is down
///
/// It keeps trying; what it runs goes on.
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
    settings: SidekiqConsumerBuilder,
}

impl fmt::Debug for SidekiqConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SidekiqConsumer")
            .field(&self.0.identity)
            .finish()
    }
}

/// A job that is being taken, with the connection on which it is. It is never dropped half-way: the job would be in the list
/// and nobody would know.
type Taking = Pin<Box<dyn Future<Output = (Dedicated, Result<Option<Vec<u8>>>)> + Send>>;

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
    /// Only those that trying again cannot mend: an [invalid](Error::is_invalid) request.
    ///
    /// # Cancel safety
    ///
    /// Dropped, running jobs are dropped with it; other consumers run them again when its heartbeat has stopped.
    pub async fn run<H, F>(&self, handler: H, stop: impl Future<Output = ()>) -> Result<()>
    where
        H: Fn(SidekiqJob) -> F,
        F: Future<Output = Result<(), JobFailure>>,
    {
        let settings = &self.0.settings;
        let mut stop = std::pin::pin!(stop);
        let mut beat = interval(settings.lease / 3);
        let mut poll = interval(settings.poll);
        let mut own = Some(settings.sidekiq.store.dedicated(&self.0.source));
        let mut taking: Option<Taking> = None;
        let mut running = FuturesUnordered::new();
        // What is running, as it stands in the list: the same text may be there twice.
        let mut held: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut fresh: Vec<Vec<u8>> = Vec::new();
        let (mut is_registered, mut is_sure) = (false, true);
        loop {
            while let Some(text) = fresh.pop() {
                *held.entry(text.clone()).or_default() += 1;
                running.push(self.perform(text, &handler));
            }
            let free = running.len() < settings.concurrency;
            if free && taking.is_none() && !is_sure {
                // Nothing is on its way: whatever is in the list and not running was moved by a request whose reply was lost.
                match self.strays(&held).await {
                    Ok(strays) => (fresh, is_sure) = (strays, true),
                    Err(error) => {
                        tracing::warn!(%error, "the jobs of this consumer could not be read")
                    }
                }
                if !fresh.is_empty() {
                    continue;
                }
            }
            // Not before the first heartbeat: a consumer that nobody knows of must not have jobs.
            if free
                && is_registered
                && let Some(own) = own.take()
            {
                taking = Some(self.take(own));
            }
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(text) = running.next(), if !running.is_empty() => {
                    forget(&mut held, &text);
                }
                _ = beat.tick() => match self.beat(running.len()).await {
                    Ok(()) => {
                        is_registered = true;
                        // A request that was given up may have moved a job since.
                        is_sure = false;
                        if let Err(error) = settings.sidekiq.recover().await {
                            tracing::warn!(%error, "jobs of dead consumers could not be given back");
                        }
                    }
                    Err(error) if error.is_invalid() => return Err(error),
                    Err(error) => tracing::warn!(%error, "the heartbeat of a consumer failed"),
                },
                _ = poll.tick() => if let Err(error) = settings.sidekiq.promote().await {
                    tracing::warn!(%error, "jobs that are due could not be moved");
                },
                (connection, taken) = ready(&mut taking) => {
                    own = Some(connection);
                    taking = None;
                    match taken {
                        Ok(text) => fresh.extend(text),
                        Err(error) => {
                            tracing::warn!(%error, "no job could be taken");
                            is_sure = false;
                            tokio::time::sleep(Duration::from_millis(200)).await;
                        }
                    }
                }
            }
        }
        // A job that comes now is run as well: it is already ours.
        if let Some(taking) = taking
            && let (_, Ok(Some(text))) = taking.await
        {
            running.push(self.perform(text, &handler));
        }
        while !running.is_empty() {
            tokio::select! {
                _ = running.next() => {}
                _ = beat.tick() => if let Err(error) = self.beat(running.len()).await {
                    tracing::warn!(%error, "the heartbeat of a consumer failed");
                },
            }
        }
        self.leave().await;
        Ok(())
    }

    fn take(&self, mut own: Dedicated) -> Taking {
        let inner = self.0.clone();
        Box::pin(async move {
            let mut block = cmd("BLMOVE");
            block
                .arg(&inner.source)
                .arg(&inner.working)
                .arg("RIGHT")
                .arg("LEFT")
                .arg(LONGEST_WAIT.as_secs_f64());
            let taken: Result<Option<Vec<u8>>, _> = own.query(&block, LONGEST_WAIT).await;
            (own, taken.map_err(Error::from))
        })
    }

    /// The jobs in the consumer's list that it does not run.
    async fn strays(&self, held: &HashMap<Vec<u8>, usize>) -> Result<Vec<Vec<u8>>> {
        let list = cmd("LRANGE").arg(&self.0.working).arg(0).arg(-1).take();
        let listed: Vec<Vec<u8>> = self.sidekiq().store.query(&list).await?;
        let (mut held, listed) = (held.clone(), listed.into_iter());
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
                match handler(job).await {
                    Ok(()) => Ending::Done,
                    Err(failure) => Ending::Failed(fields, failure),
                }
            }
            // As Sidekiq does with what is no job.
            None => Ending::Malformed,
        };
        let mut pause = Duration::from_millis(50);
        // A job whose end cannot be written is run again by others after the lease: until then it is worth trying.
        let patience = tokio::time::Instant::now().checked_add(self.0.settings.lease);
        loop {
            match self.end(&text, &ended).await {
                Ok(true) => return text,
                Ok(false) => {
                    tracing::warn!(
                        queue = self.0.settings.queue,
                        "a job has ended that was given to another consumer"
                    );
                    return text;
                }
                Err(error) if patience.is_none_or(|until| tokio::time::Instant::now() > until) => {
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

    /// Writes the end of a job; `false` if it is not this consumer's any more.
    async fn end(&self, text: &[u8], ending: &Ending) -> Result<bool> {
        let sidekiq = self.sidekiq();
        let now = sidekiq.store.time().await?;
        let (outcome, kept, at) = match ending {
            Ending::Done => ("done", Vec::new(), 0.0),
            Ending::Malformed => ("dead", text.to_owned(), 0.0),
            Ending::Failed(fields, failure) => {
                let (outcome, kept, at) = self.failed(fields.clone(), failure, now);
                (outcome, kept.into_bytes(), at)
            }
        };
        let day = jiff::Timestamp::from_second(i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
            .map(|at| at.strftime("%Y-%m-%d").to_string())
            .unwrap_or_default();
        let keys = [
            self.0.working.clone(),
            sidekiq.key("retry"),
            sidekiq.key("dead"),
            sidekiq.key("stat:processed"),
            sidekiq.key(&format!("stat:processed:{day}")),
            sidekiq.key("stat:failed"),
            sidekiq.key(&format!("stat:failed:{day}")),
        ];
        FINISH
            .run(
                &sidekiq.store,
                &keys,
                &[&text, &outcome, &kept, &at, &now.as_secs_f64()],
            )
            .await
    }

    /// What becomes of a failed job: the outcome, the job as it is kept, and when it is retried.
    fn failed(
        &self,
        mut fields: Fields,
        failure: &JobFailure,
        now: Duration,
    ) -> (&'static str, String, f64) {
        /// As many as Sidekiq retries a job that does not say.
        const RETRIES: u32 = 25;
        let most = match fields.get::<serde_json::Value>("retry") {
            Some(serde_json::Value::Bool(false)) => return ("drop", String::new(), 0.0),
            Some(serde_json::Value::Number(most)) => most
                .as_u64()
                .and_then(|most| u32::try_from(most).ok())
                .unwrap_or(RETRIES),
            _ => RETRIES,
        };
        let stamp = self.sidekiq().stamp(now);
        // Sidekiq Web counts one back when it puts a job into its queue again, so it can be -1.
        let count = match fields.get::<i64>("retry_count") {
            Some(count) => {
                fields.set("retried_at", &stamp);
                u32::try_from(count.saturating_add(1)).unwrap_or(0)
            }
            None => {
                fields.set("failed_at", &stamp);
                0
            }
        };
        fields.set("retry_count", &count);
        let queue = fields.get::<String>("retry_queue");
        fields.set("queue", &queue.as_ref().unwrap_or(&self.0.settings.queue));
        let message: String = failure.message.chars().take(10_000).collect();
        fields.set("error_message", &message);
        fields.set("error_class", &failure.class);
        if failure.retry && count < most {
            let wait = match &self.0.settings.backoff {
                Some(backoff) => backoff(count),
                None => usual_backoff(count),
            };
            return ("retry", fields.text(), (now + wait).as_secs_f64());
        }
        match fields.get::<bool>("dead") {
            Some(false) => ("drop", String::new(), 0.0),
            _ => ("dead", fields.text(), 0.0),
        }
    }

    /// Says that it is alive, where Sidekiq's own processes do.
    async fn beat(&self, busy: usize) -> Result<()> {
        let (inner, sidekiq) = (&*self.0, self.sidekiq());
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
        Ok(sidekiq.store.pipeline(&beat).await?)
    }

    /// Takes its name off the list of processes. If it has no jobs left it is forgotten after a day.
    async fn leave(&self) {
        let sidekiq = self.sidekiq();
        let mut leave = redis::pipe();
        leave.atomic();
        leave
            .cmd("SREM")
            .arg(sidekiq.key("processes"))
            .arg(&self.0.identity)
            .ignore();
        leave.cmd("DEL").arg(&self.0.heartbeat).ignore();
        let left: Result<(), _> = sidekiq.store.pipeline(&leave).await;
        if let Err(error) = left {
            tracing::debug!(%error, "a consumer that has ended is still listed");
        }
    }
}

enum Ending {
    Done,
    Failed(Fields, JobFailure),
    Malformed,
}

/// Sidekiq's own rule.
fn usual_backoff(count: u32) -> Duration {
    let count = u64::from(count);
    let chance = rand::random_range(0..10) * (count + 1);
    Duration::from_secs(count.saturating_pow(4).saturating_add(15 + chance))
}

fn interval(every: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval
}

/// Waits for the job that is being taken; for ever if none is.
async fn ready(taking: &mut Option<Taking>) -> (Dedicated, Result<Option<Vec<u8>>>) {
    match taking {
        Some(taking) => taking.await,
        None => std::future::pending().await,
    }
}

/// Takes one off a count; whether there was one.
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

    /// Gives the jobs of dead [consumers](SidekiqConsumer) back to their queues; returns how many. Consumers do this by themselves: it is for when
    /// none is left.
    ///
    /// # Errors
    ///
    /// Those of the store. Calling it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some jobs may have been given back.
    pub async fn recover(&self) -> Result<u64> {
        let now = self.store.time().await?;
        let all = cmd("ZRANGE").arg(self.key(CONSUMERS)).arg(0).arg(-1).take();
        let members: Vec<String> = self.store.query(&all).await?;
        let mut given = 0;
        for member in members {
            let Some((identity, queue)) = member.split_once('|') else {
                continue;
            };
            let keys = [
                self.key(identity),
                working(self, identity, queue),
                self.key(&format!("queue:{queue}")),
                self.key("queues"),
                self.key(CONSUMERS),
            ];
            let before = now.saturating_sub(FORGOTTEN).as_secs();
            loop {
                let moved: u64 = RECOVER
                    .run(&self.store, &keys, &[&member, &queue, &before])
                    .await?;
                given += moved;
                if moved < 100 {
                    break;
                }
            }
        }
        Ok(given)
    }

    /// Moves retries and scheduled jobs that are due to their queues, at most a thousand of each; returns how many. Sidekiq's own processes and
    /// [consumers](SidekiqConsumer) do this by themselves.
    ///
    /// # Errors
    ///
    /// Those of the store. Calling it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some jobs may have been moved.
    pub async fn promote(&self) -> Result<u64> {
        let mut moved = 0;
        for set in ["retry", "schedule"] {
            for _ in 0..100 {
                let now = self.store.time().await?;
                let due = cmd("ZRANGEBYSCORE")
                    .arg(self.key(set))
                    .arg("-inf")
                    .arg(now.as_secs_f64())
                    .arg("LIMIT")
                    .arg(0)
                    .arg(10)
                    .take();
                let due: Vec<Vec<u8>> = self.store.query(&due).await?;
                for job in &due {
                    moved += self.promote_one(set, job, now).await?;
                }
                if due.len() < 10 {
                    break;
                }
            }
        }
        Ok(moved)
    }

    async fn promote_one(&self, set: &str, job: &[u8], now: Duration) -> Result<u64> {
        let fields = Fields::read(job);
        let queue = fields
            .as_ref()
            .and_then(|fields| fields.get::<String>("queue"));
        let (target, queue, pushed) = match (fields, queue) {
            (Some(mut fields), Some(queue)) if !queue.is_empty() => {
                fields.set("enqueued_at", &self.stamp(now));
                (format!("queue:{queue}"), queue, fields.text())
            }
            _ => (
                "dead".to_owned(),
                String::new(),
                now.as_secs_f64().to_string(),
            ),
        };
        let keys = [self.key(set), self.key("queues"), self.key(&target)];
        PROMOTE
            .run(&self.store, &keys, &[&job, &queue, &pushed])
            .await
    }
}
