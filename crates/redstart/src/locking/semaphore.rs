//! A number of permits, each of which one holder at a time has.
//!
//! What all locks promise is on the [family's page](super). This one adds:
//!
//! - Never more than `permits` leases run at the same time, by the server's clock.
//! - A permit is leased: that of a process that died is free again when its lease ends, and the place of one
//!   that lives is found free at that very moment by whoever waits.
//! - There is no fence token: several holders are in at once, so none of them is the newest.
//!
//! The number is the asker's: handles that are built with different numbers see their own. Lower it by
//! building new handles with the lower number; who is in stays in.
//!
//! # Keys
//!
//! | key | type | TTL |
//! |---|---|---|
//! | `<namespace>:semaphore:{<name>}` | sorted set: owner's token → end of its lease | the last lease |
//! | `…:wake` | sharded channel | |
//!
//! # Round trips and cost
//!
//! One for each acquisition, release and renewal: a script of 3 to 6 commands, O(log n) in the number of
//! permits. While the store is down nothing is granted, and leases run out.

use std::{fmt, future::Future, num::NonZero, sync::Arc, time::Duration};

use super::{
    lease::{Guard, Lease, Outcome, names},
    place::{Acquire, Kind, Line, Place, Settings, lease_settings},
};
use crate::{
    error::{Error, Result},
    script::Script,
    store::Store,
};

/// The most permits of one semaphore: they live in one sorted set on one server.
pub const MAX_PERMITS: u32 = 1_000_000;

static ACQUIRE: Script = Script::new("semaphore.acquire", include_str!("semaphore/acquire.lua"));
static RENEW: Script = Script::new("semaphore.renew", include_str!("semaphore/renew.lua"));
static RELEASE: Script = Script::new("semaphore.release", include_str!("semaphore/release.lua"));

static KIND: Kind = Kind {
    pattern: "semaphore",
    names: names!("semaphore"),
    parts: &[],
    acquire: Acquire::Script(&ACQUIRE),
    renew: &RENEW,
    release: &RELEASE,
    plain: false,
    line: Line::Turns,
    poll: None,
};

/// A counting semaphore by name. Cheap to clone. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, locking::Semaphore};
/// let store = Store::connect("memory://").await?;
/// let printers = Semaphore::builder(&store, "office", "printers", 2).build()?;
///
/// let one = printers.try_acquire().await?.expect("both are free");
/// let two = printers.try_acquire().await?.expect("one is free");
/// assert!(printers.try_acquire().await?.is_none());
/// one.release().await?;
/// assert!(printers.try_acquire().await?.is_some());
/// # drop(two); store.settle().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    place: Arc<Place>,
}

/// The settings of a [`Semaphore`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct SemaphoreBuilder {
    settings: Settings,
    permits: u32,
}

impl SemaphoreBuilder {
    lease_settings!();

    /// Makes the semaphore. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for no permits or more than [`MAX_PERMITS`], a ttl out of the
    /// [limits](super::MIN_TTL), and for a namespace or name that breaks the
    /// [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<Semaphore> {
        let permits = NonZero::new(self.permits)
            .filter(|permits| permits.get() <= MAX_PERMITS)
            .ok_or_else(|| {
                Error::config(format!(
                    "a semaphore has between 1 and {MAX_PERMITS} permits, not {}",
                    self.permits
                ))
            })?;
        Ok(Semaphore {
            place: self.settings.place(&KIND, vec![permits.to_string()])?,
        })
    }
}

impl Semaphore {
    /// Starts with the semaphore `name` in `namespace`, with leases of 30 s.
    pub fn builder(store: &Store, namespace: &str, name: &str, permits: u32) -> SemaphoreBuilder {
        SemaphoreBuilder {
            settings: Settings::new(store, namespace, name),
            permits,
        }
    }

    /// Takes a permit if one is free.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a permit that was granted is given back in the background.
    pub async fn try_acquire(&self) -> Result<Option<Guard<()>>> {
        self.place.try_lock().await
    }

    /// Takes a permit as soon as one is free; `None` if none was within `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached it is asked again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a permit that was granted is given back in the background.
    pub async fn acquire(&self, wait: Duration) -> Result<Option<Guard<()>>> {
        self.place.lock(wait).await
    }

    /// Runs `work` with a permit and gives it back. When the permit is lost the work is dropped where it is.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire): the work was not begun.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the work is dropped and the permit is given back in the background.
    pub async fn with<T, W>(
        &self,
        wait: Duration,
        work: impl FnOnce(Lease<()>) -> W,
    ) -> Result<Outcome<T>>
    where
        W: Future<Output = T>,
    {
        Ok(match self.acquire(wait).await? {
            Some(guard) => guard.run(work).await,
            None => Outcome::Busy,
        })
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Semaphore")
            .field(self.place.entity.key())
            .finish()
    }
}
