//! A lock that is handed on in the order in which it was asked for, over all processes.
//!
//! What all locks promise is on the [family's page](super). This one adds a line on the server:
//!
//! - Who waits has a place; the lock goes to the first. A release wakes that one alone.
//! - A place is leased (the lock's ttl, 5 s at most) and kept by asking again every third of it. A waiter
//!   that died loses its place when that lease ends, so it holds the others up by that much at most.
//! - [`try_lock`](FairMutex::try_lock) does not pass those who wait: it gets the lock only if the line is
//!   empty.
//! - Order is that in which the requests reached the server.
//!
//! # Keys
//!
//! | key | type | TTL |
//! |---|---|---|
//! | `<namespace>:fair:{<name>}` | string: the owner's token | the lease |
//! | `…:queue` | sorted set: waiter → its number | the last place's lease |
//! | `…:places` | sorted set: waiter → end of its lease | the last place's lease |
//! | `…:fence` | string: the last fence token | none |
//! | `…:wake` | sharded channel; the message names the waiter | |
//!
//! # Round trips and cost
//!
//! One for each acquisition, release and renewal, each a script of 5 to 10 commands: O(log n) in the number of
//! waiters. A waiter asks again every third of its place's lease. While the store is down nothing is granted,
//! and places run out.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use super::{
    lease::{Guard, Lease, Outcome, names},
    mutex::RENEW,
    place::{Acquire, Kind, Line, Place, Settings, lease_settings},
};
use crate::{error::Result, script::Script, store::Store};

static ACQUIRE: Script = Script::new(
    "fair.acquire",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("fair/acquire.lua")
    ),
);
static RELEASE: Script = Script::new("fair.release", include_str!("fair/release.lua"));

static KIND: Kind = Kind {
    pattern: "fair",
    names: names!("fair"),
    parts: &["queue", "places", "fence"],
    acquire: Acquire::Script(&ACQUIRE),
    renew: &RENEW,
    release: &RELEASE,
    plain: false,
    line: Line::Queue,
    poll: None,
};

/// A first-come, first-served lock by name. Cheap to clone. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::FairMutex};
/// let store = Store::connect("memory://").await?;
/// let till = FairMutex::builder(&store, "shop", "till").build()?;
///
/// let first = till.lock(Duration::from_secs(1)).await?.expect("nobody else is there");
/// assert!(till.try_lock().await?.is_none());
/// first.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FairMutex {
    place: Arc<Place>,
}

/// The settings of a [`FairMutex`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct FairMutexBuilder {
    settings: Settings,
}

impl FairMutexBuilder {
    lease_settings!();

    /// Makes the lock. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a ttl out of the [limits](super::MIN_TTL), and for a
    /// namespace or name that breaks the [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<FairMutex> {
        Ok(FairMutex {
            place: self.settings.place(&KIND, Vec::new())?,
        })
    }
}

impl FairMutex {
    /// Starts with the lock `name` in `namespace`, with a lease of 30 s.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> FairMutexBuilder {
        FairMutexBuilder {
            settings: Settings::new(store, namespace, name),
        }
    }

    /// Takes the lock if it is free and nobody waits for it.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a lock that was granted is given back in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.place.try_lock().await
    }

    /// Stands in line for the lock; `None` if its turn had not come after `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached it is asked again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the place or the lock is given back in the background.
    pub async fn lock(&self, wait: Duration) -> Result<Option<Guard>> {
        self.place.lock(wait).await
    }

    /// Runs `work` under the lock and gives it back. When the lock is lost the work is dropped where it is.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock): the work was not begun.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the work is dropped and the lock is given back in the background.
    pub async fn with<T, W>(
        &self,
        wait: Duration,
        work: impl FnOnce(Lease) -> W,
    ) -> Result<Outcome<T>>
    where
        W: Future<Output = T>,
    {
        Ok(match self.lock(wait).await? {
            Some(guard) => guard.run(work).await,
            None => Outcome::Busy,
        })
    }
}

impl fmt::Debug for FairMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FairMutex")
            .field(self.place.entity.key())
            .finish()
    }
}
