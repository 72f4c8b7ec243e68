//! Who holds a lock, and releasing it by force.

use std::{fmt, time::Duration};

use super::{
    fair::{self, FairMutex},
    fence::Fencing,
    leader::{self, Elected, Leader},
    lock::Lock,
    mutex::{self, Mutex},
    owner,
    rw::{self, RwLock},
    semaphore::{self, Semaphore},
};
use crate::{error::Result, observe, script::Script};

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
    /// How many wait for the lock. Of a [`FairMutex`], those in line; of an [`RwLock`], the writers; otherwise the
    /// callers of this store and the other stores that wait, on a Cluster those that the node of the lock knows.
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

/// The documentation that all forced releases share.
macro_rules! force_docs {
    ($($first:literal)*) => {
        concat!($($first, "\n",)* "
The former holder is told when it renews next, within a third of its ttl; until then it may still work. What it writes is
refused only by a resource that checks its [fence token](crate::locking::FenceToken). Each use is logged as a warning and
counted as an event, such as `mutex.forced`.

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

impl Leader {
    #[doc = force_docs!(
        "Ends the term of this leader, and tells candidates and observers; `false` if it no longer led. A later term is"
        "not touched."
    )]
    pub async fn force_release(&self, leader: &Elected) -> Result<bool> {
        let lock: &Lock = &self.lock;
        let script = &leader::FORCE_RELEASE;
        observe::operation(script.name(), lock.entity.namespace(), async {
            let released: i64 = script
                .on(&lock.entity)
                .keys(&lock.keys)
                .arg(leader.term.get())
                .arg(&lock.channel)
                .run(&lock.store)
                .await?;
            Ok(forced(lock, Some(&leader.id), released))
        })
        .await
    }
}

/// Releases the lock of a holder by a script that takes the holder's token and the channel, as that of a release.
async fn force(lock: &Lock, script: &'static Script, holder: &LockHolder) -> Result<bool> {
    observe::operation(script.name(), lock.entity.namespace(), async {
        let released: i64 = script
            .on(&lock.entity)
            .keys(&lock.keys)
            .arg(&holder.token)
            .arg(&lock.channel)
            .run(&lock.store)
            .await?;
        Ok(forced(lock, holder.label.as_deref(), released))
    })
    .await
}

/// Leaves a trace of what was done by force.
fn forced(lock: &Lock, label: Option<&str>, released: i64) -> bool {
    if released >= 1 {
        observe::event(lock.kind.operations.forced);
        let label = label.unwrap_or("none");
        tracing::warn!(key = %lock.entity.key(), label, "a lock was released by force");
    }
    released >= 1
}
