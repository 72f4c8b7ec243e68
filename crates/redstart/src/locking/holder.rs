//! Who holds a lock, and releasing it by force.

use std::{fmt, time::Duration};

use futures_util::future::join_all;

use super::{
    fair::{self, FairMutex},
    fence::Fencing,
    leader::{self, Elected, Leader},
    legacy::{self, LegacyLock},
    lock::Lock,
    mutex::{self, Mutex},
    owner,
    redlock::{self, Redlock, in_background},
    rw::{self, RwLock},
    semaphore::{self, Semaphore},
};
use crate::{
    error::{Error, Result},
    observe,
    script::Script,
};

/// A holder of a lock, as the server saw it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHolder {
    /// Not shown to anybody: who knows the token can release the lock.
    token: String,
    /// The label of the handle that took the lock, such as [`MutexBuilder::label`](super::MutexBuilder::label); `None`
    /// without one, and for other clients.
    pub label: Option<String>,
    /// How long its lease still runs without a renewal; `None` if another client set no TTL.
    pub remaining: Option<Duration>,
    /// How many wait for the lock. Of a [`FairMutex`], those in line; of an [`RwLock`], the writers; of a [`Redlock`]
    /// always 0, because its waiters leave no trace; otherwise the callers of this store and the other stores that wait,
    /// on a Cluster those that the node of the lock knows.
    pub waiting: u64,
}

impl LockHolder {
    fn new(value: &str, pttl: i64, waiting: u64) -> Self {
        let (token, label) = owner::parse_token(value);
        Self {
            token: token.to_owned(),
            label: label.map(str::to_owned),
            remaining: u64::try_from(pttl).ok().map(Duration::from_millis),
            waiting,
        }
    }

    /// A short name of this one lease: the next lease of the same owner has another. The token cannot be found from it, so
    /// it may be shown to a person who then decides whether to end it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, locking::Mutex};
    /// let store = Store::connect("memory://").await?;
    /// let report = Mutex::new(&store, "shop", "report")?;
    ///
    /// let guard = report.try_lock().await?.expect("nobody else holds it");
    /// let (first, again) = (report.holder().await?, report.holder().await?);
    /// assert_eq!(first.map(|holder| holder.id()), again.map(|holder| holder.id()));
    /// # let _ = guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn id(&self) -> String {
        let mut digest = sha1_smol::Sha1::from(&self.token).digest().to_string();
        digest.truncate(16);
        digest
    }
}

impl fmt::Debug for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockHolder")
            .field("label", &self.label)
            .field("remaining", &self.remaining)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

/// The holders of what several may hold at once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHolders {
    /// Those whose leases end first, up to [`LockHolders::MOST`].
    pub first: Vec<LockHolder>,
    /// How many there are.
    pub count: u64,
    /// How many wait; see [`LockHolder::waiting`].
    pub waiting: u64,
}

impl LockHolders {
    /// The most holders that are listed: reading them must not hold up the server.
    pub const MOST: usize = 100;

    fn new(first: &[(String, i64)], count: u64, waiting: u64) -> Self {
        let holder = |(token, ms): &(String, i64)| LockHolder::new(token, *ms, waiting);
        Self {
            first: first.iter().map(holder).collect(),
            count,
            waiting,
        }
    }
}

/// Who holds an [`RwLock`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RwHolders {
    /// The writer.
    pub writer: Option<LockHolder>,
    /// The readers.
    pub readers: LockHolders,
}

/// Who holds a [`Redlock`], by what each of its servers said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuorumHolders {
    /// The owner that has the lock on more than half of the servers. Its `remaining` is the time after which it would have
    /// it on fewer, without a renewal.
    pub holder: Option<LockHolder>,
    /// What each server said, in the order of the stores.
    pub servers: Vec<ServerHolder>,
}

/// Who holds a [`Redlock`] on one of its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerHolder {
    /// Nobody.
    Free,
    /// This owner. Owners that do not get a quorum release what they got.
    Held(LockHolder),
    /// The server did not answer within the deadline of its store.
    Unknown,
}

impl QuorumHolders {
    fn new(servers: Vec<ServerHolder>) -> Self {
        let of = |owner: &LockHolder| -> Vec<&LockHolder> {
            let all = servers.iter().filter_map(|server| match server {
                ServerHolder::Held(holder) => Some(holder),
                ServerHolder::Free | ServerHolder::Unknown => None,
            });
            all.filter(|holder| holder.token == owner.token).collect()
        };
        let holder = servers.iter().find_map(|server| {
            let ServerHolder::Held(owner) = server else {
                return None;
            };
            let mut held = of(owner);
            // A key without a TTL never ends.
            held.sort_by_key(|holder| std::cmp::Reverse(holder.remaining.unwrap_or(Duration::MAX)));
            held.get(servers.len() / 2).map(|holder| (*holder).clone())
        });
        Self { holder, servers }
    }

    /// Whether certainly nobody has the lock: even with all servers that did not answer, no owner has more than half of
    /// them.
    pub fn is_free(&self) -> bool {
        let unknown = |server: &&ServerHolder| **server == ServerHolder::Unknown;
        let unknown = self.servers.iter().filter(unknown).count();
        let half = self.servers.len() / 2;
        let may_have_quorum = |owner: &LockHolder| {
            let held = self.servers.iter().filter(
                |server| matches!(server, ServerHolder::Held(holder) if holder.token == owner.token),
            );
            held.count() + unknown > half
        };
        unknown <= half
            && !self
                .servers
                .iter()
                .any(|server| matches!(server, ServerHolder::Held(owner) if may_have_quorum(owner)))
    }
}

/// The documentation that all forced releases share.
macro_rules! force_docs {
    ($($first:literal)*) => {
        concat!($($first, "\n",)* "
The former holder is told when it renews next, within a third of its ttl; until then it may still work. What it writes is
refused only by a resource that checks its [fence token](crate::locking::FenceToken). Each use is logged as a warning and
counted as an event, such as `mutex.forced`, also if its outcome stays unknown because the reply was lost.

# Errors

Those of the [`Store`](crate::Store).

# Cancel safety

If the future is dropped, the lock may have been released.")
    };
}

impl<F: Fencing> Mutex<F> {
    /// Who holds the lock now, for people and dashboards; `None` if it is free. By the time the answer arrives it may be
    /// another owner's.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, locking::Mutex};
    /// let store = Store::connect("memory://").await?;
    /// let report = Mutex::builder(&store, "shop", "report").label("worker-7").build()?;
    ///
    /// let guard = report.try_lock().await?.expect("nobody else holds it");
    /// let holder = report.holder().await?.expect("it is held");
    /// assert_eq!(holder.label.as_deref(), Some("worker-7"));
    ///
    /// // The worker hangs, and an operator decides to end its lock.
    /// assert!(report.force_release(&holder).await?);
    /// assert!(report.holder().await?.is_none());
    /// # drop(guard); store.settle().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the [`Store`](crate::Store).
    pub async fn holder(&self) -> Result<Option<LockHolder>> {
        let lock = &self.lock;
        observe::operation(mutex::HOLDER.name(), lock.entity.namespace(), async {
            let seen: Option<(String, i64, u64)> = mutex::HOLDER
                .on(&lock.entity)
                .key()
                .arg(&lock.channel)
                .idempotent()
                .run(&lock.store)
                .await?;
            Ok(seen.map(|(value, pttl, connections)| {
                LockHolder::new(&value, pttl, lock.waiters(connections))
            }))
        })
        .await
    }

    #[doc = force_docs!(
        "Ends the lock of this holder, and wakes the waiters; `false` if it no longer held the lock. A later holder is not"
        "touched."
    )]
    pub async fn force_release(&self, holder: &LockHolder) -> Result<bool> {
        force(&self.lock, &mutex::FORCE_RELEASE, holder).await
    }
}

impl FairMutex {
    /// Who holds the lock now, and how many are in line; `None` if it is free. By the time the answer arrives it may be
    /// another owner's.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`](crate::Store).
    pub async fn holder(&self) -> Result<Option<LockHolder>> {
        let lock = &self.lock;
        observe::operation(fair::HOLDER.name(), lock.entity.namespace(), async {
            let seen: Option<(String, i64, u64)> = fair::HOLDER
                .on(&lock.entity)
                .keys(&lock.keys)
                .idempotent()
                .run(&lock.store)
                .await?;
            Ok(seen.map(|(value, pttl, waiting)| LockHolder::new(&value, pttl, waiting)))
        })
        .await
    }

    #[doc = force_docs!(
        "Ends the lock of this holder, and wakes the first in line; `false` if it no longer held the lock. A later holder"
        "is not touched."
    )]
    pub async fn force_release(&self, holder: &LockHolder) -> Result<bool> {
        force(&self.lock, &fair::FORCE_RELEASE, holder).await
    }
}

impl Semaphore {
    /// Who holds permits now. By the time the answer arrives they may be other owners'.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use std::num::NonZeroU32;
    /// use redstart::{Store, locking::Semaphore};
    /// const PRINTERS: NonZeroU32 = NonZeroU32::new(2).unwrap();
    ///
    /// let store = Store::connect("memory://").await?;
    /// let printers = Semaphore::builder(&store, "office", "printers", PRINTERS).label("worker-7").build()?;
    ///
    /// let guard = printers.try_acquire().await?.expect("both are free");
    /// let holders = printers.holders().await?;
    /// assert_eq!((holders.count, holders.first[0].label.as_deref()), (1, Some("worker-7")));
    /// assert!(printers.force_release(&holders.first[0]).await?);
    /// assert_eq!(printers.holders().await?.count, 0);
    /// # drop(guard); store.settle().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the [`Store`](crate::Store).
    pub async fn holders(&self) -> Result<LockHolders> {
        let lock = &self.lock;
        observe::operation(semaphore::HOLDERS.name(), lock.entity.namespace(), async {
            let (first, count, connections): (Vec<(String, i64)>, u64, u64) = semaphore::HOLDERS
                .on(&lock.entity)
                .keys(&lock.keys)
                .arg(&lock.channel)
                .idempotent()
                .run(&lock.store)
                .await?;
            Ok(LockHolders::new(&first, count, lock.waiters(connections)))
        })
        .await
    }

    #[doc = force_docs!(
        "Takes the permit of this holder back, and wakes the waiters; `false` if it no longer had one."
    )]
    pub async fn force_release(&self, holder: &LockHolder) -> Result<bool> {
        force(&self.lock, &semaphore::FORCE_RELEASE, holder).await
    }
}

impl RwLock {
    /// Who holds the lock now. By the time the answer arrives it may be other owners'.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`](crate::Store).
    pub async fn holders(&self) -> Result<RwHolders> {
        type Seen = (Option<String>, i64, Vec<(String, i64)>, u64, u64);
        let lock = &self.writer;
        observe::operation(rw::HOLDERS.name(), lock.entity.namespace(), async {
            let (writer, pttl, first, count, waiting): Seen = rw::HOLDERS
                .on(&lock.entity)
                .keys(&lock.keys)
                .idempotent()
                .run(&lock.store)
                .await?;
            Ok(RwHolders {
                writer: writer.map(|value| LockHolder::new(&value, pttl, waiting)),
                readers: LockHolders::new(&first, count, waiting),
            })
        })
        .await
    }

    #[doc = force_docs!(
        "Ends the lock of this reader; `false` if it no longer held the lock."
    )]
    pub async fn force_release_read(&self, holder: &LockHolder) -> Result<bool> {
        force(&self.reader, &rw::FORCE_RELEASE_READ, holder).await
    }

    #[doc = force_docs!(
        "Ends the lock of this writer, and wakes the waiters; `false` if it no longer held the lock. A later writer is not"
        "touched."
    )]
    pub async fn force_release_write(&self, holder: &LockHolder) -> Result<bool> {
        force(&self.writer, &rw::FORCE_RELEASE_WRITE, holder).await
    }
}

impl LegacyLock {
    /// Who holds the lock now; `None` if it is free or its time stamp has passed. Old clients have no label. By the time the
    /// answer arrives it may be another owner's.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, key::Layout, locking::LegacyLock};
    /// let store = Store::connect("memory://").await?;
    /// let lock = LegacyLock::builder(&store, "shop", "foo")
    ///     .layout(Layout::new(|name| format!("lock.{name}")))
    ///     .label("worker-7")
    ///     .build()?;
    ///
    /// let guard = lock.try_lock().await?.expect("it is free");
    /// let holder = lock.holder().await?.expect("it is held");
    /// assert_eq!(holder.label.as_deref(), Some("worker-7"));
    /// assert!(lock.force_release(&holder).await?);
    /// # drop(guard); store.settle().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the [`Store`](crate::Store).
    pub async fn holder(&self) -> Result<Option<LockHolder>> {
        let lock = &self.lock;
        observe::operation(legacy::HOLDER.name(), lock.entity.namespace(), async {
            let seen: Option<(String, i64, u64)> = legacy::HOLDER
                .on(&lock.entity)
                .keys(&lock.keys)
                .arg(&lock.channel)
                .arg(&lock.arguments[..])
                .idempotent()
                .run(&lock.store)
                .await?;
            Ok(seen.map(|(value, left, connections)| {
                LockHolder::new(&value, left, lock.waiters(connections))
            }))
        })
        .await
    }

    #[doc = force_docs!(
        "Ends the lock of this holder, also if it is an old client's or not a time stamp at all, and wakes the waiters;"
        "`false` if it no longer held the lock. See the [limits](Self#limits) for old clients."
    )]
    pub async fn force_release(&self, holder: &LockHolder) -> Result<bool> {
        force(&self.lock, &legacy::FORCE_RELEASE, holder).await
    }
}

impl Redlock {
    /// Who holds the lock now, on each server and as a whole. By the time the answer arrives it may be another owner's.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, locking::Redlock};
    /// let mut stores = Vec::new();
    /// for _ in 0..3 {
    ///     stores.push(Store::connect("memory://").await?);
    /// }
    /// let report = Redlock::builder(stores.clone(), "shop", "report").label("worker-7").build()?;
    /// assert!(report.holders().await?.is_free());
    ///
    /// let guard = report.try_lock().await?.expect("nobody else holds it");
    /// let holder = report.holders().await?.holder.expect("it is held");
    /// assert_eq!(holder.label.as_deref(), Some("worker-7"));
    /// assert!(report.force_release(&holder).await?);
    /// assert!(report.holders().await?.is_free());
    /// # drop(guard); for store in stores { store.settle().await }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](crate::Error::is_unavailable) if no server answered.
    pub async fn holders(&self) -> Result<QuorumHolders> {
        let servers = &self.servers;
        observe::operation(redlock::HOLDER.name(), servers.namespace(), async {
            let answers = join_all(servers.locks.iter().map(|lock| held_on(lock))).await;
            let mut failure = None;
            let seen: Vec<ServerHolder> = answers
                .into_iter()
                .map(|answer| match answer {
                    Ok(Some(holder)) => ServerHolder::Held(holder),
                    Ok(None) => ServerHolder::Free,
                    Err(error) => {
                        failure = Some(error);
                        ServerHolder::Unknown
                    }
                })
                .collect();
            match failure {
                Some(error) if seen.iter().all(|server| *server == ServerHolder::Unknown) => {
                    Err(Error::unavailable("no server answered").with_source(error))
                }
                _ => Ok(QuorumHolders::new(seen)),
            }
        })
        .await
    }

    #[doc = force_docs!(
        "Ends the lock of this holder on all servers; `false` if it had it on none. A later holder is not touched, and what"
        "an owner without a quorum left behind can be ended too. A server that does not answer within the deadline of its store"
        "may keep it until its lease ends; if fewer than a quorum answered, it is an error that is"
        "[in doubt](crate::Error::is_in_doubt), because the holder may still have the others."
    )]
    pub async fn force_release(&self, holder: &LockHolder) -> Result<bool> {
        let (servers, script) = (&self.servers, &redlock::FORCE_RELEASE);
        let audit = Audit::begin(&servers.locks[0], holder.label.as_deref());
        observe::operation(script.name(), servers.namespace(), async {
            let requests = servers.locks.iter().map(|lock| {
                let (store, lock, token) = (lock.store.clone(), lock.clone(), holder.token.clone());
                in_background(&store, async move { end(&lock, script, &token).await })
            });
            // All are sent before the first answer is awaited.
            let requests: Vec<_> = requests.collect();
            let (mut answered, mut released, mut failure) = (0, 0, None);
            for answer in join_all(requests).await {
                match answer {
                    Ok(had) => {
                        answered += 1;
                        released += had;
                    }
                    Err(error) => failure = Some(error),
                }
            }
            match failure {
                Some(error) if answered <= servers.locks.len() / 2 => {
                    let all = servers.locks.len();
                    let text = format!("only {answered} of {all} servers answered");
                    audit.end(Err(Error::unavailable(text).with_source(error).doubt(true)))
                }
                _ => audit.end(Ok(released)),
            }
        })
        .await
    }
}

/// Who holds a quorum lock on one of its servers.
async fn held_on(lock: &Lock) -> Result<Option<LockHolder>> {
    let seen: Option<(String, i64, u64)> = redlock::HOLDER
        .on(&lock.entity)
        .key()
        .arg(&lock.channel)
        .idempotent()
        .run(&lock.store)
        .await?;
    Ok(seen.map(|(value, pttl, _)| LockHolder::new(&value, pttl, 0)))
}

impl Leader {
    #[doc = force_docs!(
        "Ends the term of this leader, and tells candidates and observers; `false` if it no longer led. A later term is"
        "not touched."
    )]
    pub async fn force_release(&self, leader: &Elected) -> Result<bool> {
        let lock: &Lock = &self.lock;
        let script = &leader::FORCE_RELEASE;
        let audit = Audit::begin(lock, Some(leader.id.as_str()));
        observe::operation(script.name(), lock.entity.namespace(), async {
            audit.end(end(lock, script, &leader.term.to_string()).await)
        })
        .await
    }
}

/// Releases the lock of a holder, and leaves a trace of it.
async fn force(lock: &Lock, script: &'static Script, holder: &LockHolder) -> Result<bool> {
    let audit = Audit::begin(lock, holder.label.as_deref());
    observe::operation(script.name(), lock.entity.namespace(), async {
        audit.end(end(lock, script, &holder.token).await)
    })
    .await
}

/// Ends a lock by a script that takes the holder's token and the channel, as that of a release.
async fn end(lock: &Lock, script: &'static Script, holder: &str) -> Result<i64> {
    script
        .on(&lock.entity)
        .keys(&lock.keys)
        .arg(holder)
        .arg(&lock.channel)
        .run(&lock.store)
        .await
}

/// A forced release under way. It leaves a trace if it did something, and also if nobody will know whether it did:
/// because the reply was lost, or the caller has gone.
struct Audit<'a> {
    lock: &'a Lock,
    label: &'a str,
    open: bool,
}

impl<'a> Audit<'a> {
    fn begin(lock: &'a Lock, label: Option<&'a str>) -> Self {
        Self {
            lock,
            label: label.unwrap_or("none"),
            open: true,
        }
    }

    fn end(mut self, released: Result<i64>) -> Result<bool> {
        self.open = released.as_ref().is_err_and(Error::is_in_doubt);
        let released = released? >= 1;
        if released {
            observe::event(self.lock.kind.operations.forced);
            let (key, label) = (self.lock.entity.key(), self.label);
            tracing::warn!(%key, label, "a lock was released by force");
        }
        Ok(released)
    }
}

impl Drop for Audit<'_> {
    fn drop(&mut self) {
        if self.open {
            observe::event(self.lock.kind.operations.forced);
            let (key, label) = (self.lock.entity.key(), self.label);
            tracing::warn!(%key, label, "a lock may have been released by force; the reply was lost");
        }
    }
}
