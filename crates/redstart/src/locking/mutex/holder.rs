//! Who holds a mutex, and releasing it by force.

use std::{fmt, time::Duration};

use super::Mutex;
use crate::{
    error::Result,
    locking::{fence::Fencing, lock::Lock, owner},
    observe,
    script::Script,
};

pub(in crate::locking) static HOLDER: Script =
    Script::new("mutex.holder", include_str!("holder.lua"));
pub(in crate::locking) static FORCE_RELEASE: Script =
    Script::new("mutex.force_release", include_str!("force_release.lua"));

/// The holder of a [`Mutex`], as the server saw it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MutexHolder {
    /// Not shown to anybody: who knows the token can release the lock.
    token: String,
    /// The [label](super::MutexBuilder::label) of the handle that took it; `None` without one, and for other clients.
    pub label: Option<String>,
    /// How long its lease still runs without a renewal; `None` if another client set no TTL.
    pub remaining: Option<Duration>,
    /// How many callers of this store, and how many other stores, wait for the lock. On a Cluster, those that the node
    /// of the lock knows.
    pub waiting: u64,
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
    pub async fn holder(&self) -> Result<Option<MutexHolder>> {
        let lock = &self.lock;
        observe::operation(HOLDER.name(), lock.entity.namespace(), async {
            let seen: Option<(String, i64, u64)> = HOLDER
                .on(&lock.entity)
                .key()
                .arg(&lock.channel)
                .idempotent()
                .run(&lock.store)
                .await?;
            Ok(seen.map(|(value, pttl, connections)| {
                let (token, label) = owner::parse_token(&value);
                MutexHolder {
                    token: token.to_owned(),
                    label: label.map(str::to_owned),
                    remaining: u64::try_from(pttl).ok().map(Duration::from_millis),
                    waiting: lock.waiters(connections),
                }
            }))
        })
        .await
    }

    /// Ends the lock of this holder, and wakes the waiters; `false` if it no longer held the lock. A later holder is not
    /// touched.
    ///
    /// The former holder is told when it renews next, within a third of its ttl; until then it may still work. What it
    /// writes is refused only by a resource that checks its [fence token](crate::locking::FenceToken). Each use is
    /// logged as a warning and counted as the event `mutex.forced`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`](crate::Store).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may have been released.
    pub async fn force_release(&self, holder: &MutexHolder) -> Result<bool> {
        let lock: &Lock = &self.lock;
        observe::operation(FORCE_RELEASE.name(), lock.entity.namespace(), async {
            let released: i64 = FORCE_RELEASE
                .on(&lock.entity)
                .key()
                .arg(&holder.token)
                .arg(&lock.channel)
                .run(&lock.store)
                .await?;
            if released == 1 {
                observe::event("mutex.forced");
                let label = holder.label.as_deref().unwrap_or("none");
                tracing::warn!(key = %lock.entity.key(), label, "a lock was released by force");
            }
            Ok(released == 1)
        })
        .await
    }
}

impl fmt::Debug for MutexHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutexHolder")
            .field("label", &self.label)
            .field("remaining", &self.remaining)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}
