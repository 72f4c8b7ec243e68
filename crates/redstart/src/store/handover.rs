//! From the embedded engine to a Redis or Valkey, while everything runs.

mod compare;
mod progress;
mod server;

use std::{collections::BTreeSet, fmt, future::Future, pin::pin, time::Duration};

use redis::RedisError;
use tokio::time::Instant;

use super::location::{Address, Location, Target};
use crate::error::{Error, Result};
use compare::{PAGE, differing};
use progress::{Progress, fits};
use server::Server;

/// The longest pause of writes, unless another is set.
const PAUSE: Duration = Duration::from_secs(10);
/// How far behind the server may be when writes are held back.
const NEAR: u64 = 256 * 1024;
/// Up to `FEW` keys, or `SHORT` of comparing, while writes are paused.
const FEW: usize = 1000;
const SHORT: Duration = Duration::from_millis(100);
/// How often changed keys are compared before writes are held back in any case.
const ROUNDS: usize = 30;
/// The same if as many keys change meanwhile as are compared.
const VAIN_ROUNDS: usize = 3;
/// Every so many pages of keys, those that changed are asked for: the engine keeps a limited number of them.
const PAGES: usize = 16;
/// How often the engine hears that this goes on; after a minute of silence, another hand-over may begin.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// How long the engine is asked whether it has moved.
const ANSWER: Duration = Duration::from_secs(10);
/// The engine's reply that it has not moved.
const NOT_MOVED: &str = "NOTMOVED";
/// How often all keys are compared, if more change than the engine notes.
const SCANS: usize = 3;
/// How many changed keys the engine notes.
const NOTED: usize = 1_000_000;
/// How many changed keys the engine is asked for at a time.
const CHANGED: usize = 10_000;
/// More suspects than this are compared again during the scan.
const MANY: usize = 200_000;
/// How often keys that differ are looked at again: one may have expired between two looks.
const LOOKS: usize = 20;
/// How long a side that cannot be reached is asked to undo what was done to it.
const UNDO: Duration = Duration::from_secs(10);

/// What a hand-over is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandoverStep {
    /// The server gets all data. `0`: bytes read so far.
    Copying(u64),
    /// The server catches up. `0`: bytes that it is behind.
    CatchingUp(u64),
    /// Keys are compared. `0`: keys compared so far; `1`: all keys.
    Comparing(u64, u64),
    /// Writes are paused.
    Paused,
    /// The server is a master.
    Promoted,
    /// The engine sends everybody to the server.
    Moved,
    /// Everything is being undone.
    BackingOut,
}

impl fmt::Display for HandoverStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copying(bytes) => write!(f, "copying: {bytes} bytes"),
            Self::CatchingUp(bytes) => write!(f, "catching up: {bytes} bytes behind"),
            Self::Comparing(keys, of) => write!(f, "comparing: {keys} of {of} keys"),
            Self::Paused => f.write_str("writes are held back"),
            Self::Promoted => f.write_str("the server is a master"),
            Self::Moved => f.write_str("the engine sends everybody to the server"),
            Self::BackingOut => f.write_str("backing out"),
        }
    }
}

/// What a hand-over did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandoverReport {
    /// Where clients are sent.
    pub place: String,
    /// How many keys were moved.
    pub keys: u64,
    /// How many of them were compared while writes were held back.
    pub keys_in_pause: u64,
    /// For how long writes were held back.
    pub pause: Duration,
    /// How far the server's clock is ahead of the engine's, in microseconds, give or take a round trip.
    pub clock_ahead_micros: i64,
}

/// Settings of a [`Handover`].
#[derive(Clone, Debug)]
#[must_use]
pub struct HandoverBuilder {
    from: String,
    to: String,
    overwrite: bool,
    announce: Option<(String, u16)>,
    longest_pause: Duration,
    noted: usize,
}

impl HandoverBuilder {
    /// How many changed keys the engine notes at a time.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn noted(mut self, keys: usize) -> Self {
        self.noted = keys;
        self
    }

    /// Lets the server's data be replaced. Without this, it must have none.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Where clients reach the server, if not under the address of the URL.
    pub fn announce(mut self, host: impl Into<String>, port: u16) -> Self {
        self.announce = Some((host.into(), port));
        self
    }

    /// How long writes may be held back (default: 10 s). If that is not enough, everything is undone.
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.longest_pause = pause;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if a URL is not one of a single server on TCP, or the pause is out of range.
    pub fn build(self) -> Result<Handover> {
        let (from, to) = (Location::parse(&self.from)?, Location::parse(&self.to)?);
        let (from_host, from_port) = tcp(&from)?;
        let (to_host, to_port) = tcp(&to)?;
        if from.settings.tls {
            return Err(Error::config(
                "a hand-over needs a listener of the engine without TLS, which the server connects to",
            ));
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&self.longest_pause) {
            return Err(Error::config(
                "the longest pause must be from 1 ms to an hour",
            ));
        }
        Ok(Handover {
            from,
            to,
            source: (from_host, from_port),
            place: self.announce.unwrap_or((to_host, to_port)),
            overwrite: self.overwrite,
            longest_pause: self.longest_pause,
            noted: self.noted,
        })
    }
}

fn tcp(location: &Location) -> Result<(String, u16)> {
    match &location.target {
        Target::Single(Address::Tcp { host, port }) if location.settings.mirror.is_none() => {
            Ok((host.clone(), *port))
        }
        _ => Err(Error::config(
            "a hand-over is from one server to one server, each by a redis:// URL",
        )),
    }
}

/// Moves all data of an engine to a server, and its clients with it.
///
/// The server is made a replica of the engine and gets all data. While both are used, they are compared key by key. Then
/// writes are held back for a moment: the server takes the last changes, the keys that changed since they were compared
/// are compared again, the server becomes a master, and the engine refuses everything with `REDIRECT <host>:<port>`.
///
/// # Promises
///
/// - No acknowledged write is lost: the engine moves only if nothing was written since writes were held back, and both
///   are equal.
/// - Up to that moment everything can be undone, and is, on any failure and when it is cancelled. If the process is
///   killed, writes go on by themselves after the longest pause. Once the engine has moved, no hand-over undoes that:
///   only an operator does, by `REDSTART HANDOVER RETURN`.
/// - One hand-over of an engine is under way at a time.
/// - Stores of this library that are connected to the engine follow to the server, with the same credentials, database
///   and TLS settings. Requests, subscriptions, dedicated connections and the copy of a mirror do so without an error, unless
///   a request had been sent and not answered, which is reported as always.
/// - Other clients keep their connections and get the error `REDIRECT <host>:<port>` for everything that reads or writes, from the
///   moment of the move on. Nothing was done then, so they connect to that place and send the same again. In redis-py it is a
///   `ResponseError` with that text, in ioredis a `ReplyError`, and redis-cli prints it. Subscribers get the message `<host>:<port>` on
///   the channel `__redstart__:moved`, and are disconnected. Clients that track keys are told to forget all of them, and are
///   disconnected.
///
/// # Limits
///
/// - Bloom filters are not replicated, and a server before Redis 7.4 or Valkey 9 knows no deadlines of fields of hashes: a hand-over
///   with some of them fails.
/// - The server must reach the engine over plain TCP, under the address of the URL.
/// - A program with the engine in its own process (`memory://`, `file://`) cannot follow; its calls fail with the place
///   in the error.
/// - The data must fit into the server's `maxmemory`, or it is not moved. What a server with a policy of eviction evicts
///   later is gone.
/// - Locks and limits go by the server's clock. How far the two clocks are apart is in the report. What has expired by one of
///   the clocks only counts as expired on both, and a server whose clock is behind takes its own time for that of a delivery which
///   is in its future: when entries of consumer groups were delivered is the same to within that difference and a second.
/// - The server must know the credentials that the clients have.
/// - The server's own persistence is not checked: whether it keeps the data through a restart is up to its settings. One that is
///   restarted before the engine moves is noticed, and everything is undone.
/// - Each value is read whole for the comparison.
/// - Keys that change while others are compared are compared again, and the last of them while writes are held back. If as many keys
///   change as can be compared, which is tens of thousands in a second, the pause is as long as it takes to compare them.
///
/// # Example
///
/// ```no_run
/// # async fn example() -> redstart::Result<()> {
/// use redstart::store::Handover;
///
/// let handover = Handover::builder("redis://127.0.0.1:6380", "redis://10.0.0.7:6379").build()?;
/// let report = handover.run(|step| println!("{step}"), std::future::pending()).await?;
/// println!("writes were held back for {:?}", report.pause);
/// # Ok(()) }
/// ```
pub struct Handover {
    from: Location,
    to: Location,
    source: (String, u16),
    place: (String, u16),
    overwrite: bool,
    longest_pause: Duration,
    noted: usize,
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover")
            .field("source", &self.source)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Handover {
    /// From the engine at one URL to the server at another.
    pub fn builder(from: &str, to: &str) -> HandoverBuilder {
        HandoverBuilder {
            from: from.to_owned(),
            to: to.to_owned(),
            overwrite: false,
            announce: None,
            longest_pause: PAUSE,
            noted: NOTED,
        }
    }

    /// Does it. `told` is called with what happens, and it ends early when `cancelled` is ready.
    ///
    /// # Errors
    ///
    /// If it was cancelled, or one of the two cannot be reached, refuses, or differs from the other. Everything was
    /// undone then, unless the error is [in doubt](Error::is_in_doubt): the engine was asked to move, the server is a
    /// master, and no answer came, or the server was restarted at that moment, which the message says. What a side that cannot be reached for 10 s keeps is in the log, as a warning.
    ///
    /// # Cancel safety
    ///
    /// Do not drop the future: use `cancelled`. Dropped, it leaves the server a replica, and writes held back for up to
    /// the longest pause.
    pub async fn run(
        &self,
        mut told: impl FnMut(&HandoverStep),
        cancelled: impl Future<Output = ()>,
    ) -> Result<HandoverReport> {
        let mut work = Work::new(self, &mut told);
        let mut cancelled = pin!(cancelled);
        let prepared = tokio::select! {
            biased;
            () = &mut cancelled => Err(cancellation()),
            prepared = work.prepare() => prepared,
        };
        // It may have been cancelled while the last step was under way.
        let prepared = match prepared {
            Ok(()) => tokio::select! {
                biased;
                () = &mut cancelled => Err(cancellation()),
                () = std::future::ready(()) => Ok(()),
            },
            Err(error) => Err(error),
        };
        let done = match prepared {
            Ok(()) => work.commit().await,
            Err(error) => Err(error),
        };
        let error = match done {
            Ok(report) => return work.confirm(report).await,
            Err(error) => error,
        };
        // Only whether the engine has moved can be in doubt, and it knows.
        match work.settle(&error).await {
            Settled::Moved(report) => work.confirm(report).await,
            // Neither side is touched then: if the engine has moved, the data is at the server.
            Settled::Unknown => {
                restore(&mut work.to, work.credentials.take()).await;
                Err(error.doubt(true))
            }
            Settled::NotMoved => {
                work.back_out().await;
                Err(error.doubt(false))
            }
        }
    }
}

fn cancellation() -> Error {
    Error::unavailable("the hand-over was cancelled")
}

/// Whether the engine has moved, after a failure.
enum Settled {
    NotMoved,
    Moved(HandoverReport),
    /// It was asked to, and does not answer.
    Unknown,
}

/// A hand-over under way.
struct Work<'a> {
    plan: &'a Handover,
    /// What the engine knows it by.
    name: String,
    /// The engine may know of it, and when it last heard of it.
    begun: Option<Instant>,
    /// The engine was asked to move, and no answer came.
    in_doubt: bool,
    told: &'a mut dyn FnMut(&HandoverStep),
    from: Server,
    to: Server,
    /// The server was made a replica.
    attached: bool,
    /// What the server presented to its masters before.
    credentials: Option<(String, String)>,
    paused: Option<Paused>,
    /// Keys changed that the engine did not note.
    missed: bool,
    clock_ahead_micros: i64,
    /// The processes that this began with: a restart may lose what they had.
    run_ids: RunIds,
    keys: u64,
    keys_in_pause: u64,
}

#[derive(Default)]
struct RunIds {
    engine: String,
    server: String,
}

struct Paused {
    since: Instant,
    token: i64,
}

impl<'a> Work<'a> {
    fn new(plan: &'a Handover, told: &'a mut dyn FnMut(&HandoverStep)) -> Self {
        Self {
            from: Server::new(&plan.from),
            to: Server::new(&plan.to),
            plan,
            name: crate::token::token(),
            begun: None,
            in_doubt: false,
            told,
            attached: false,
            credentials: None,
            paused: None,
            missed: false,
            clock_ahead_micros: 0,
            run_ids: RunIds::default(),
            keys: 0,
            keys_in_pause: 0,
        }
    }

    fn tell(&mut self, step: &HandoverStep) {
        (self.told)(step);
    }

    async fn prepare(&mut self) -> Result<()> {
        self.check().await?;
        self.begin().await?;
        self.attach().await?;
        self.wait_until_near().await?;
        self.check_room().await?;
        let suspects = self.compare_all().await?;
        self.pause().await?;
        self.compare_last(suspects).await?;
        self.compare_sizes().await?;
        self.compare_functions().await?;
        self.check_room().await
    }

    /// Asks the engine for something that belongs to this hand-over.
    async fn request(&mut self, what: &str, words: &[&str]) -> Result<redis::Value> {
        let name = self.name.clone();
        let mut all = vec!["REDSTART", "HANDOVER", what, &name];
        all.extend(words);
        self.from.ask(0, &all).await
    }

    /// Begins it, unless there is another one.
    async fn begin(&mut self) -> Result<()> {
        self.begun = Some(Instant::now());
        self.request("BEGIN", &[]).await?;
        Ok(())
    }

    /// Tells the engine from time to time that it goes on.
    async fn go_on(&mut self) -> Result<()> {
        match self.begun {
            Some(heard) if heard.elapsed() < SIGN_OF_LIFE => Ok(()),
            _ => self.begin().await,
        }
    }

    /// As a replica the server ignores its limit: what does not fit it would evict or refuse as a master.
    async fn check_room(&mut self) -> Result<()> {
        let to = self.to.info("memory").await?;
        let uncounted = to.number("mem_not_counted_for_evict");
        let used = to.number("used_memory").saturating_sub(uncounted);
        fits(used, to.number("maxmemory"))
    }

    /// Whether both are what they have to be.
    async fn check(&mut self) -> Result<()> {
        if self.from.ask(0, &["REDSTART", "HELP"]).await.is_err() {
            return Err(Error::config(
                "the source of a hand-over must be an engine of redstart",
            ));
        }
        let (from, to) = (self.from.info("all").await?, self.to.info("all").await?);
        if from.field("role") != "master" {
            return Err(Error::config("the engine is a replica itself"));
        }
        if to.field("cluster_enabled") == "1" {
            return Err(Error::config("the server is a node of a Cluster"));
        }
        if from.field("run_id") == to.field("run_id") {
            return Err(Error::config("the engine and the server are the same"));
        }
        if to.field("role") != "master" {
            return Err(Error::config(
                "the server is a replica already: tell it REPLICAOF NO ONE first",
            ));
        }
        let there: u64 = to.databases().iter().map(|(_, keys)| keys).sum();
        if there > 0 && !self.plan.overwrite {
            return Err(Error::config(format!(
                "the server has {there} keys, which would be replaced: allow that, or empty it"
            )));
        }
        fits(from.number("used_memory"), to.number("maxmemory"))?;
        self.run_ids = RunIds {
            engine: from.field("run_id").to_owned(),
            server: to.field("run_id").to_owned(),
        };
        // A command that reads is refused by an engine that has moved.
        self.from.ask(0, &["DBSIZE"]).await?;
        let (here, there) = (self.from.time().await?, self.to.time().await?);
        self.clock_ahead_micros = there - here;
        Ok(())
    }

    /// Makes the server a replica.
    async fn attach(&mut self) -> Result<()> {
        let settings = self.from.settings();
        let (user, password) = (settings.username.clone(), settings.password.clone());
        if let Some(password) = password {
            let before = (
                self.to.setting("masteruser").await?,
                self.to.setting("masterauth").await?,
            );
            self.credentials = Some(before);
            let user = user.unwrap_or_default();
            self.to.set("masteruser", &user).await?;
            self.to.set("masterauth", &password).await?;
        }
        self.attached = true;
        let (host, port) = self.plan.source.clone();
        self.to
            .ask(0, &["REPLICAOF", &host, &port.to_string()])
            .await?;
        Ok(())
    }

    async fn wait_until_near(&mut self) -> Result<()> {
        let mut progress = Progress::new(Instant::now());
        loop {
            self.go_on().await?;
            let to = self.to.info("replication").await?;
            if to.field("master_link_status") == "up" {
                let behind = self.behind(to.number("slave_repl_offset")).await?;
                self.tell(&HandoverStep::CatchingUp(behind));
                if behind <= NEAR {
                    return Ok(());
                }
                progress.is_behind(behind, Instant::now())?;
            } else {
                let bytes = to.number("master_sync_read_bytes");
                self.tell(&HandoverStep::Copying(bytes));
                progress.has_read(bytes, Instant::now())?;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many bytes of the stream the server lacks.
    async fn behind(&mut self, offset: u64) -> Result<u64> {
        let from = self.from.info("replication").await?;
        Ok(from.number("master_repl_offset").saturating_sub(offset))
    }

    /// Compares all keys while they are used. Those that may differ are left.
    async fn compare_all(&mut self) -> Result<BTreeSet<Vec<u8>>> {
        let mut suspects = BTreeSet::new();
        for _ in 0..SCANS {
            let noted = self.plan.noted.to_string();
            self.request("WATCH", &[&noted]).await?;
            self.compare_each(&mut suspects).await?;
            suspects = self.compare_changed(suspects).await?;
            if !std::mem::take(&mut self.missed) {
                return Ok(suspects);
            }
            tracing::info!("more keys changed than the engine notes: all are compared again");
        }
        Err(Error::unavailable(
            "more keys change at a time than the engine notes: try again when less is written",
        ))
    }

    /// Compares the keys that changed, until few are left, or as many change meanwhile.
    async fn compare_changed(
        &mut self,
        mut suspects: BTreeSet<Vec<u8>>,
    ) -> Result<BTreeSet<Vec<u8>>> {
        let (mut last, mut vain, mut short) = (usize::MAX, 0, FEW);
        for _ in 0..ROUNDS {
            self.take_changed(&mut suspects).await?;
            let count = suspects.len();
            vain = if count < last / 10 * 9 { 0 } else { vain + 1 };
            if self.missed || count <= short || vain == VAIN_ROUNDS {
                break;
            }
            let begun = Instant::now();
            suspects = self.still_differing(suspects).await?;
            // How many keys are compared in a short time.
            let part = SHORT.as_secs_f64() / begun.elapsed().as_secs_f64().max(1e-6);
            short = FEW.max((count as f64 * part) as usize);
            last = count;
        }
        Ok(suspects)
    }

    /// Compares each key once.
    async fn compare_each(&mut self, suspects: &mut BTreeSet<Vec<u8>>) -> Result<()> {
        let databases = self.from.info("keyspace").await?.databases();
        let all: u64 = databases.iter().map(|(_, keys)| keys).sum();
        let mut done = 0;
        for (db, _) in databases {
            let mut cursor = "0".to_owned();
            for number in 1_usize.. {
                let count = PAGE.to_string();
                let page = self
                    .from
                    .ask(db, &["SCAN", &cursor, "COUNT", &count])
                    .await?;
                let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(page)?;
                let ahead = self.clock_ahead_micros;
                suspects.extend(differing(&mut self.from, &mut self.to, ahead, db, &keys).await?);
                done += keys.len() as u64;
                self.tell(&HandoverStep::Comparing(done.min(all), all));
                self.go_on().await?;
                if number.is_multiple_of(PAGES) {
                    self.take_changed(suspects).await?;
                    if suspects.len() > MANY {
                        *suspects = self.still_differing(std::mem::take(suspects)).await?;
                    }
                }
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
        }
        self.keys = done;
        Ok(())
    }

    /// Adds the keys that changed since they were last asked for.
    async fn take_changed(&mut self, suspects: &mut BTreeSet<Vec<u8>>) -> Result<()> {
        // As many as the engine can have noted: while writes are held back, these are all. Before that, keys that change all
        // the time would have no end.
        for _ in 0..=self.plan.noted / CHANGED {
            let reply = self.request("CHANGED", &[&CHANGED.to_string()]).await?;
            let mut items = reply.into_sequence().unwrap_or_default().into_iter();
            match items.next() {
                Some(redis::Value::Int(1)) => {
                    return Err(Error::unavailable(
                        "databases were emptied or swapped during the comparison: try again",
                    ));
                }
                Some(redis::Value::Int(2)) => self.missed = true,
                _ => {}
            }
            let mut count = 0;
            for item in items {
                suspects.insert(redis::from_redis_value(item)?);
                count += 1;
            }
            if count < CHANGED {
                break;
            }
        }
        Ok(())
    }

    /// Those of the keys that differ, in any database: a change names its key only.
    async fn still_differing(&mut self, keys: BTreeSet<Vec<u8>>) -> Result<BTreeSet<Vec<u8>>> {
        let keys: Vec<Vec<u8>> = keys.into_iter().collect();
        let (from, to) = (
            self.from.info("keyspace").await?,
            self.to.info("keyspace").await?,
        );
        let databases: BTreeSet<i64> = from
            .databases()
            .into_iter()
            .chain(to.databases())
            .map(|(db, _)| db)
            .collect();
        let mut different = BTreeSet::new();
        for db in databases {
            for keys in keys.chunks(PAGE * PAGES) {
                self.go_on().await?;
                let ahead = self.clock_ahead_micros;
                different.extend(differing(&mut self.from, &mut self.to, ahead, db, keys).await?);
            }
        }
        Ok(different)
    }

    /// Holds writes back, and waits until the server has all of them.
    async fn pause(&mut self) -> Result<()> {
        let millis = self.plan.longest_pause.as_millis().to_string();
        let since = Instant::now();
        let reply = self.request("PAUSE", &[&millis]).await?;
        let (token, offset): (i64, u64) = redis::from_redis_value(reply)?;
        self.paused = Some(Paused { since, token });
        self.tell(&HandoverStep::Paused);
        loop {
            let to = self.to.info("replication").await?;
            if to.field("master_link_status") == "up" && to.number("slave_repl_offset") >= offset {
                return Ok(());
            }
            self.check_pause()?;
            self.go_on().await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn check_pause(&self) -> Result<()> {
        let spent = self.paused.as_ref().map(|paused| paused.since.elapsed());
        match spent {
            Some(spent) if spent >= self.plan.longest_pause => Err(Error::timeout(
                "the server did not become level within the longest pause of writes",
            )),
            _ => Ok(()),
        }
    }

    /// Compares what changed since it was compared. What still differs now is different.
    async fn compare_last(&mut self, mut suspects: BTreeSet<Vec<u8>>) -> Result<()> {
        self.take_changed(&mut suspects).await?;
        if self.missed {
            return Err(Error::unavailable(
                "more keys changed before the pause than the engine notes: try again when less is written",
            ));
        }
        self.keys_in_pause = suspects.len() as u64;
        for _ in 0..LOOKS {
            suspects = self.still_differing(suspects).await?;
            if suspects.is_empty() {
                return Ok(());
            }
            self.check_pause()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let few = suspects.iter().take(3);
        let names: Vec<String> = few
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect();
        Err(Error::codec(format!(
            "{} keys differ between the engine and the server, such as {}",
            suspects.len(),
            names.join(", ")
        )))
    }

    /// Compares the number of keys. Keys may expire, but none is added.
    async fn compare_sizes(&mut self) -> Result<()> {
        for _ in 0..LOOKS {
            let before = self.from.info("keyspace").await?.databases();
            let there = self.to.info("keyspace").await?.databases();
            let after = self.from.info("keyspace").await?.databases();
            let size = |of: &[(i64, u64)], db: i64| {
                of.iter()
                    .find(|(other, _)| *other == db)
                    .map_or(0, |(_, keys)| *keys)
            };
            let all = before.iter().chain(&there).map(|(db, _)| *db);
            let fits = |db: i64| (size(&after, db)..=size(&before, db)).contains(&size(&there, db));
            if all.clone().all(fits) {
                return Ok(());
            }
            self.check_pause()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Err(Error::codec(
            "the engine and the server have different numbers of keys",
        ))
    }

    async fn compare_functions(&mut self) -> Result<()> {
        let list = ["FUNCTION", "LIST", "WITHCODE"];
        let (here, there) = (self.from.ask(0, &list).await?, self.to.ask(0, &list).await?);
        match compare::sorted(here) == compare::sorted(there) {
            true => Ok(()),
            false => Err(Error::codec(
                "the engine and the server have different functions",
            )),
        }
    }

    /// Makes the server a master and sends everybody there. Not to be cancelled.
    async fn commit(&mut self) -> Result<HandoverReport> {
        let Some(Paused { since, token }) = self.paused else {
            return Err(Error::config("hand-over: writes are not paused"));
        };
        self.check_pause()?;
        self.to.ask(0, &["REPLICAOF", "NO", "ONE"]).await?;
        self.attached = false;
        self.tell(&HandoverStep::Promoted);
        self.move_engine(token).await?;
        Ok(self.moved(since.elapsed()).await)
    }

    /// Asks the engine to move, until it says whether it did: asking again does no harm.
    async fn move_engine(&mut self, token: i64) -> Result<()> {
        let (host, port) = self.plan.place.clone();
        let (token, port) = (token.to_string(), port.to_string());
        let until = Instant::now() + ANSWER;
        loop {
            self.check_server().await?;
            let name = self.name.clone();
            let commit = [
                "REDSTART", "HANDOVER", "COMMIT", &name, &token, &host, &port,
            ];
            let Err(error) = self.from.ask_or_doubt(&commit).await else {
                return Ok(());
            };
            // A request before this one may have arrived, whatever became of this one.
            self.in_doubt |= error.is_in_doubt();
            if error.server_code() == Some(NOT_MOVED) {
                // An engine that was restarted without its folder does not know what it did before.
                self.in_doubt = self.in_doubt && !self.is_same_engine().await;
                return Err(error);
            }
            if Instant::now() >= until {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether the server is the one that was compared, and a master.
    async fn check_server(&mut self) -> Result<()> {
        let to = self.to.info("all").await?;
        match to.field("run_id") == self.run_ids.server && to.field("role") == "master" {
            true => Ok(()),
            false => Err(Error::unavailable(
                "the server was restarted, or is not a master any more, since it was compared",
            )),
        }
    }

    async fn is_same_engine(&mut self) -> bool {
        let from = self.from.info("server").await;
        from.is_ok_and(|from| from.field("run_id") == self.run_ids.engine)
    }

    /// The engine has moved. A server that was restarted since it was compared may have lost what it had.
    async fn confirm(&mut self, report: HandoverReport) -> Result<HandoverReport> {
        let until = Instant::now() + UNDO;
        let to = loop {
            match self.to.info("server").await {
                Err(error) if error.server_code().is_none() && Instant::now() < until => {
                    tracing::debug!(%error, "asking again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                told => break told,
            }
        };
        match to {
            Ok(to) if to.field("run_id") != self.run_ids.server => Err(Error::unavailable(
                "the data has moved, but the server was restarted meanwhile and may have lost it: the engine has it as \
                 it was, and serves it again after REDSTART HANDOVER RETURN",
            )
            .doubt(true)),
            Ok(_) => Ok(report),
            Err(error) => {
                tracing::warn!(%error, "the data has moved, and the server does not answer");
                Ok(report)
            }
        }
    }

    async fn moved(&mut self, pause: Duration) -> HandoverReport {
        self.tell(&HandoverStep::Moved);
        restore(&mut self.to, self.credentials.take()).await;
        HandoverReport {
            place: self.place(),
            keys: self.keys,
            keys_in_pause: self.keys_in_pause,
            pause,
            clock_ahead_micros: self.clock_ahead_micros,
        }
    }

    fn place(&self) -> String {
        let (host, port) = &self.plan.place;
        format!("{host}:{port}")
    }

    /// What became of the engine after a failure. If it was asked to move and no answer came, it is asked to end the
    /// hand-over, which one that has moved refuses.
    async fn settle(&mut self, error: &Error) -> Settled {
        if !self.in_doubt {
            return Settled::NotMoved;
        }
        self.from.begin_anew();
        match self.request("ABORT", &[]).await {
            Ok(_) if self.is_same_engine().await => Settled::NotMoved,
            Ok(_) => {
                tracing::warn!(%error, "the engine was restarted, and does not know whether it has moved");
                Settled::Unknown
            }
            Err(told) if self.has_moved(&told) => {
                let since = self.paused.as_ref().map(|paused| paused.since);
                let pause = since.map_or(Duration::ZERO, |since| since.elapsed());
                Settled::Moved(self.moved(pause).await)
            }
            Err(told) => {
                tracing::warn!(%error, %told, "the engine does not say whether it has moved");
                Settled::Unknown
            }
        }
    }

    /// Writes go on, and the server is on its own again, with the data that it got. An engine that has moved stays
    /// so.
    async fn back_out(&mut self) {
        self.tell(&HandoverStep::BackingOut);
        self.from.begin_anew();
        self.to.begin_anew();
        let attached = std::mem::take(&mut self.attached);
        let begun = self.begun.take().is_some();
        let credentials = self.credentials.take();
        let name = self.name.clone();
        let (from, to) = (&mut self.from, &mut self.to);
        // A side that is away must not keep the other one waiting.
        let engine = async {
            if begun {
                let aborted = insist(from, &["REDSTART", "HANDOVER", "ABORT", &name]).await;
                if let Err(error) = aborted {
                    tracing::warn!(%error, "writes go on after the longest pause");
                }
            }
        };
        let server = async {
            if attached && let Err(error) = insist(to, &["REPLICAOF", "NO", "ONE"]).await {
                tracing::warn!(%error, "the server is still a replica");
            }
            restore(to, credentials).await;
        };
        tokio::join!(engine, server);
    }

    /// Whether the engine says that its data is where this was to bring it.
    fn has_moved(&self, error: &Error) -> bool {
        let there = error.redis().and_then(RedisError::detail);
        error.server_code() == Some("REDIRECT")
            && there.map(str::trim) == Some(self.place().as_str())
    }
}

/// Gives the server back what it presented to its masters before.
async fn restore(to: &mut Server, credentials: Option<(String, String)>) {
    let Some((user, password)) = credentials else {
        return;
    };
    let restored = async {
        insist(to, &["CONFIG", "SET", "masteruser", &user]).await?;
        insist(to, &["CONFIG", "SET", "masterauth", &password]).await
    };
    if let Err(error) = restored.await {
        tracing::warn!(%error, "masteruser and masterauth of the server were not restored");
    }
}

/// Sends what may be sent twice, until it is answered.
async fn insist(server: &mut Server, words: &[&str]) -> Result<()> {
    let until = Instant::now() + UNDO;
    loop {
        match server.ask(0, words).await {
            Err(error)
                if matches!(error.server_code(), None | Some("LOADING" | "BUSY"))
                    && Instant::now() < until =>
            {
                tracing::debug!(%error, "asking again");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            done => return done.map(drop),
        }
    }
}
