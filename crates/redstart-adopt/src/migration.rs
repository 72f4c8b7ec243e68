//! The steps of a plan, carried out one by one and taken back.
//!
//! What was done is remembered in the store, so that `back` knows what to undo, no matter who calls it, even if the keys are gone by then. Every step
//! can be looked at first, and none takes anything away from the programs that use the keys today.
//!
//! | what | shadow | share | drain | switch |
//! |---|---|---|---|---|
//! | a queue of BullMQ | counts | moves what two versions left in different lists | waits until no Node worker is connected; not with job schedulers | checks that nothing is left, no scheduler either |
//! | a queue of Sidekiq | counts | says which consumers share it | | |
//! | locks | who holds them | the same | | checks that nobody else holds one |
//! | a limiter, sessions | checks that every value can be read | the same | | |
//! | a cache | counts entries without a TTL | gives them one, and remembers which ends when; only if a person said that it is a cache | | |
//!
//! # Limits
//!
//! A check looks at all keys of the subject that exist while it runs. What is written after it, such as a lock that an old client takes a moment later, it
//! cannot know.
//!
//! A cache's entries are strings whose names have the pattern, in which `*` stands for one part of a name and does not reach beyond the next colon (all that is
//! below the prefix of a cache of Django), whose values have the same form as most of them, and that no other library owns. What was left out is counted in the report:
//! numbers, which may be counters, are never given a TTL.
//!
//! `back` takes the TTL away from entries that still have the one they were given. An entry that was stored again since has the TTL that its program
//! wants, and keeps it.
//!
//! A step whose process or node stood still for longer than its lock stops before its next page of entries, and is not remembered as done if another
//! step or `back` was faster. What was on its way at that moment may still arrive: those entries are noted, and the next `step` and `back` take them back.
//!
//! The record is that of this version: entries that a build before 0.1 noted in a set are not taken back.
//!
//! # Keys
//!
//! | key | type | |
//! |---|---|---|
//! | `redstart:adopt:{<subject>}` | hash | what the subject is, whether a person said so, its steps, and those that were done |
//! | `redstart:adopt:{<subject>}:touched` | hash | the entries of a cache that were given a TTL, and the time in ms at which each ends |
//!
//! Neither has a TTL: a migration may take months. Taking the first step back removes them.

use std::time::Duration;

use redis::cmd;
use redstart::{
    Store,
    key::{Entity, Keys},
    locking::{Guard, Mutex},
};

use crate::{
    error::{Error, Result},
    library::{Library, Purpose},
    plan::PlanItem,
    script::{Arg, Lua},
    text::printable,
};

mod cache;
mod check;

static REMEMBER: Lua = Lua::new(include_str!("migration/remember.lua"));

/// What a subject is, for one that no library was recognised in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Declared {
    /// Entries of a cache: strings under a pattern.
    Cache,
    /// Locks: strings under a pattern, each held while it exists.
    Locks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    BullMq,
    Sidekiq,
    Locks,
    Limiter,
    Sessions,
    Cache,
}

impl Kind {
    fn of(library: Library) -> Option<Self> {
        match library {
            Library::BullMq => Some(Self::BullMq),
            Library::Sidekiq => Some(Self::Sidekiq),
            Library::RateLimiterFlexible => Some(Self::Limiter),
            Library::ConnectRedis => Some(Self::Sessions),
            Library::DjangoCache => Some(Self::Cache),
            Library::RedisPyLock | Library::Redlock => Some(Self::Locks),
            _ => None,
        }
    }

    const ALL: [Self; 6] = [
        Self::BullMq,
        Self::Sidekiq,
        Self::Locks,
        Self::Limiter,
        Self::Sessions,
        Self::Cache,
    ];

    /// As it stands in the record.
    fn name(self) -> &'static str {
        match self {
            Self::BullMq => "bullmq",
            Self::Sidekiq => "sidekiq",
            Self::Locks => "locks",
            Self::Limiter => "limiter",
            Self::Sessions => "sessions",
            Self::Cache => "cache",
        }
    }

    fn steps(self) -> &'static [&'static str] {
        match self {
            Self::BullMq => &["shadow", "share", "drain", "switch"],
            Self::Locks => &["shadow", "share", "switch"],
            Self::Sidekiq | Self::Limiter | Self::Sessions | Self::Cache => &["shadow", "share"],
        }
    }
}

/// One subject of a plan, on its way.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use std::time::Duration;
/// use redstart::Store;
/// use redstart_adopt::{Declared, Migration, Outcome};
///
/// let store = Store::connect("memory://").await?;
/// store.query::<()>(redis::cmd("SET").arg("product:7").arg("{}")).await?;
///
/// let products = Migration::declared(&store, "product:*", Declared::Cache)?.ttl(Duration::from_secs(3600));
/// assert_eq!(products.next().await?.expect("nothing was done").step, "shadow");
/// for _ in ["shadow", "share"] {
///     let Outcome::Done(_) = products.step(&mut |_| ()).await? else { panic!("it is blocked") };
/// }
/// assert!(store.query::<i64>(redis::cmd("TTL").arg("product:7")).await? > 0);
/// products.back(&mut |_| ()).await?;
/// assert_eq!(store.query::<i64>(redis::cmd("TTL").arg("product:7")).await?, -1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Migration {
    store: Store,
    subject: String,
    kind: Kind,
    steps: Vec<&'static str>,
    record: Entity,
    ttl: Duration,
    wait: Duration,
    expected: Option<String>,
    /// Whether a person said what the subject is.
    is_declared: bool,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// What is being done.
    pub what: &'static str,
    /// How much of it.
    pub done: u64,
    /// Of how much.
    pub total: u64,
}

/// What a step found, and what it changed or would change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepReport {
    /// The step: `shadow`, `share`, `drain` or `switch`.
    pub step: &'static str,
    /// What was seen, for a person.
    pub found: Vec<String>,
    /// What it changes, for a person; empty if it only looks.
    pub changes: Vec<String>,
    /// Why it cannot be done now.
    pub blocked: Option<String>,
}

impl StepReport {
    fn new(step: &'static str) -> Self {
        Self {
            step,
            found: Vec::new(),
            changes: Vec::new(),
            blocked: None,
        }
    }
}

fn record(subject: &str) -> Result<Entity> {
    Ok(Keys::new("redstart", "adopt")?.entity(subject)?)
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a step may be blocked, or there may be none left"]
pub enum Outcome {
    /// It was done.
    Done(StepReport),
    /// Its check failed, and it counts as not done, or as not taken back. Nothing was changed, but that jobs of dead consumers of Sidekiq were given back.
    Blocked(StepReport),
    /// There is no further step, or none to take back.
    Nothing,
}

/// The lock of the step that is under way.
struct Alone(Guard<()>);

impl Alone {
    /// How long the lock is held from one page to the next.
    const LEASE: Duration = Duration::from_secs(30);

    fn lost() -> Error {
        Error::invalid("this step lost its lock to another one: look at what is done by now")
    }

    /// The work, as far as it comes while the lock is held.
    async fn unless_lost<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.0.lost() => Err(Self::lost()),
            done = work => done,
        }
    }

    /// Asks the server whether the lock is held: this process may have stood still, and its clock with it.
    async fn check(&self) -> Result<()> {
        match self.0.extend(Self::LEASE).await? {
            Some(_) => Ok(()),
            None => Err(Self::lost()),
        }
    }
}

/// Where progress is told.
pub type Tell<'a> = &'a mut (dyn FnMut(Progress) + Send);

impl Migration {
    /// For what was recognised.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the advice is to stay, since there are no steps, and for what was only guessed or is not sure to be a
    /// cache: a person says what it is by [`declared`](Self::declared).
    pub fn of(store: &Store, item: &PlanItem) -> Result<Self> {
        let Some(library) = item.library else {
            return Err(Error::invalid(format!(
                "no library was recognised in {}: say what it is",
                item.subject
            )));
        };
        if let Some(what) = item.declare {
            return Err(Error::invalid(format!(
                "it is not sure that {} is a {what} of {library}: say what it is",
                item.subject
            )));
        }
        let kind = Kind::of(library).filter(|_| !item.steps.is_empty());
        let kind = kind.ok_or_else(|| {
            Error::invalid(format!("there are no steps for {library}: stay with it"))
        })?;
        let steps = item.steps.iter().map(|step| step.step).collect();
        Self::new(store, &item.subject, kind, steps)
    }

    /// For keys of which a person says what they are.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a pattern without a letter or a digit, such as `*` or `*:*`.
    pub fn declared(store: &Store, pattern: &str, what: Declared) -> Result<Self> {
        if !pattern.contains(char::is_alphanumeric) {
            return Err(Error::invalid(
                "the pattern must name some keys, not all of them",
            ));
        }
        let kind = match what {
            Declared::Cache => Kind::Cache,
            Declared::Locks => Kind::Locks,
        };
        let migration = Self::new(store, pattern, kind, kind.steps().to_vec())?;
        Ok(Self {
            is_declared: true,
            ..migration
        })
    }

    /// For a subject of which a step was done before, as it was then; `None` if no step was done. Its keys need not be there: locks that are free and queues
    /// that are empty cannot be recognised.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a subject that cannot be part of a key; otherwise those of the store.
    pub async fn begun(store: &Store, subject: &str) -> Result<Option<Self>> {
        let record = record(subject)?;
        let get = cmd("HMGET")
            .arg(record.key())
            .arg(&["kind", "plan", "declared"])
            .take();
        let (kind, plan, declared): (Option<String>, Option<String>, Option<String>) =
            store.query(&get).await?;
        let kind = Kind::ALL
            .into_iter()
            .find(|known| kind.as_deref() == Some(known.name()));
        let Some(kind) = kind else { return Ok(None) };
        let plan = plan.unwrap_or_default();
        let steps = kind.steps().iter().copied();
        let steps = steps.filter(|step| plan.split(',').any(|planned| planned == *step));
        let migration = Self::new(store, subject, kind, steps.collect())?;
        Ok(Some(Self {
            is_declared: declared.is_some(),
            ..migration
        }))
    }

    fn new(store: &Store, subject: &str, kind: Kind, steps: Vec<&'static str>) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            subject: subject.to_owned(),
            kind,
            steps,
            record: record(subject)?,
            ttl: Duration::from_secs(3600),
            wait: Duration::from_secs(60),
            expected: None,
            is_declared: false,
        })
    }

    /// The TTL that entries of a cache without one are given (default an hour, less up to a tenth).
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long a step waits for others, such as workers that are to be stopped (default a minute).
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Refuses to do or to take back any other step than this one, to which somebody agreed: another process may have been faster (default: whatever is
    /// next).
    #[must_use]
    pub fn expecting(mut self, step: &str) -> Self {
        self.expected = Some(step.to_owned());
        self
    }

    fn check_expected(&self, step: &str) -> Result<()> {
        match &self.expected {
            Some(expected) if expected != step => Err(Error::invalid(format!(
                "the step is {step} by now, not {expected}: look again"
            ))),
            _ => Ok(()),
        }
    }

    /// The steps that were done, in order.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if they were done for something else, such as locks; otherwise those of the store.
    pub async fn done(&self) -> Result<Vec<&'static str>> {
        Ok(self.steps_of(&self.remembered().await?))
    }

    /// The steps that were done, as they stand in the record.
    async fn remembered(&self) -> Result<String> {
        let get = cmd("HMGET")
            .arg(self.record.key())
            .arg("steps")
            .arg("kind")
            .take();
        let (names, kind): (Option<String>, Option<String>) = self.store.query(&get).await?;
        match kind {
            // Only what began it knows what to take back.
            Some(kind) if kind != self.kind.name() => Err(Error::invalid(format!(
                "this subject was begun as {}, not as {}: take that back first",
                printable(&kind),
                self.kind.name()
            ))),
            _ => Ok(names.unwrap_or_default()),
        }
    }

    fn steps_of(&self, names: &str) -> Vec<&'static str> {
        let done = |step: &&&'static str| names.split(',').any(|name| name == **step);
        self.steps.iter().take_while(done).copied().collect()
    }

    /// Looks at the next step without doing it; `None` if all are done. Only reads.
    ///
    /// # Errors
    ///
    /// As [`done`](Self::done), and [`is_invalid`](Error::is_invalid) if the step would give a TTL to entries of which nobody has
    /// [said](Self::declared) that they are a cache.
    pub async fn next(&self) -> Result<Option<StepReport>> {
        let done = self.done().await?.len();
        match self.steps.get(done) {
            Some(step) => Ok(Some(self.check(step).await?)),
            None => Ok(None),
        }
    }

    /// The steps that others of its kind have and that it has not: a queue of BullMQ is not drained while it has job schedulers.
    pub fn left_out(&self) -> Vec<&'static str> {
        let all = self.kind.steps().iter().copied();
        all.filter(|step| !self.steps.contains(step)).collect()
    }

    /// Does the next step: checks it, changes what it changes, and remembers that it was done.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if another step is under way, if this one stood still for so long that another one or `back` was begun, if
    /// another one is next than [expected](Self::expecting), or if the subject was begun as something else; otherwise those of the store. Calling it
    /// again goes on where it was interrupted.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a part of it may have been done. Calling it again does the rest; `back` then takes it back.
    pub async fn step(&self, tell: Tell<'_>) -> Result<Outcome> {
        let alone = self.alone().await?;
        let outcome = alone.unless_lost(self.step_alone(&alone, tell)).await;
        if let Err(error) = alone.0.release().await {
            tracing::debug!(%error, "the lock of a step ends by itself");
        }
        outcome
    }

    async fn step_alone(&self, alone: &Alone, tell: Tell<'_>) -> Result<Outcome> {
        let before = self.remembered().await?;
        let mut done = self.steps_of(&before);
        let Some(step) = self.steps.get(done.len()).copied() else {
            return Ok(Outcome::Nothing);
        };
        self.check_expected(step)?;
        if (self.kind, step) == (Kind::BullMq, "drain") {
            self.wait_for_node(tell).await?;
        }
        let mut report = self.check(step).await?;
        if report.blocked.is_some() {
            return Ok(Outcome::Blocked(report));
        }
        match (self.kind, step) {
            (Kind::Cache, "share") => {
                let changed = self.give_ttls(alone, tell).await?;
                report.changes = vec![format!("{changed} entries were given a TTL")];
            }
            (Kind::BullMq, "share") if !report.changes.is_empty() => {
                self.bull_queue()?.settle().await?;
            }
            _ => {}
        }
        done.push(step);
        self.remember(&before, &done).await?;
        Ok(Outcome::Done(report))
    }

    /// Takes the last step back.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a part of it may have been taken back. Calling it again does the rest.
    pub async fn back(&self, tell: Tell<'_>) -> Result<Outcome> {
        let alone = self.alone().await?;
        let outcome = alone.unless_lost(self.back_alone(&alone, tell)).await;
        if let Err(error) = alone.0.release().await {
            tracing::debug!(%error, "the lock of a step ends by itself");
        }
        outcome
    }

    async fn back_alone(&self, alone: &Alone, tell: Tell<'_>) -> Result<Outcome> {
        let before = self.remembered().await?;
        let mut done = self.steps_of(&before);
        if let Some(step) = done.last() {
            self.check_expected(step)?;
        }
        // What an interrupted step has done counts, though the step does not.
        let touched = self.take_ttls_back(alone, tell).await?;
        let Some(step) = done.pop() else {
            return Ok(Outcome::Nothing);
        };
        let mut report = StepReport::new(step);
        match (self.kind, step) {
            (Kind::Cache, "share") => report
                .changes
                .push(format!("{touched} entries have no TTL again")),
            (Kind::Sidekiq, "share") => {
                let (sidekiq, queue) = self.sidekiq()?;
                let given = sidekiq.recover().await?;
                report.changes.push(format!(
                    "{given} jobs of dead consumers were given back to their queues"
                ));
                // A consumer that was killed lives until its lease ends, and has its jobs until then.
                let left = sidekiq.consumers_of(queue).await?;
                if left > 0 {
                    report.blocked = Some(format!(
                        "{left} Rust consumers of this queue are alive, or were until a moment ago: stop them, and try again when their leases have ended"
                    ));
                    return Ok(Outcome::Blocked(report));
                }
            }
            (Kind::BullMq, "share") => report.found.push(
                "stop the Rust workers; jobs they leave unfinished are given back by the next stalled check of Node"
                    .to_owned(),
            ),
            _ => {}
        }
        self.remember(&before, &done).await?;
        Ok(Outcome::Done(report))
    }

    /// Remembers what is done now, if nobody else has since `before`.
    async fn remember(&self, before: &str, done: &[&str]) -> Result<()> {
        let (key, done, plan) = (self.record.key(), done.join(","), self.steps.join(","));
        let declared = u8::from(self.is_declared);
        let args: [&(dyn Arg + Sync); 5] = [&before, &done, &self.kind.name(), &plan, &declared];
        let is_remembered: bool = REMEMBER.run(&self.store, &[key.to_string()], &args).await?;
        match is_remembered {
            true => Ok(()),
            false => Err(Alone::lost()),
        }
    }

    /// Only one step of a subject is under way at a time.
    async fn alone(&self) -> Result<Alone> {
        let mutex = Mutex::builder(&self.store, "redstart.adopt", &self.subject)
            .unfenced()
            .build()?;
        let guard = mutex.try_lock().await?;
        let guard =
            guard.ok_or_else(|| Error::invalid("another step of this subject is under way"));
        Ok(Alone(guard?))
    }

    /// What the purpose of a subject is called.
    pub fn purpose(&self) -> Purpose {
        match self.kind {
            Kind::BullMq | Kind::Sidekiq => Purpose::Queue,
            Kind::Locks => Purpose::Lock,
            Kind::Limiter => Purpose::Limiter,
            Kind::Sessions => Purpose::Sessions,
            Kind::Cache => Purpose::Cache,
        }
    }
}
