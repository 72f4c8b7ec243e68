//! A number of permits, each of which one holder at a time has.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use super::{
    guard::{Guard, with_lock},
    hand_over::redeemed_by,
    kind::{Acquire, LockKind, Waiting, operations},
    lock::Lock,
    settings::{LockSettings, lock_label, lock_settings},
    ticket::held_by_ticket,
};
use crate::{
    error::{Error, Result},
    script::Script,
    store::Store,
};

pub(super) static ACQUIRE: Script = Script::new(
    "semaphore.acquire",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("semaphore/acquire.lua")
    ),
);
pub(super) static EXTEND: Script = Script::new(
    "semaphore.extend",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("semaphore/extend.lua")
    ),
);
pub(super) static RELEASE: Script = Script::new(
    "semaphore.release",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("semaphore/release.lua")
    ),
);

pub(super) static FORCE_RELEASE: Script = Script::new(
    "semaphore.force_release",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("semaphore/release.lua")
    ),
);
pub(super) static HOLDERS: Script = Script::new(
    "semaphore.holders",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("semaphore/holders.lua")
    ),
);
pub(super) static REDEEM: Script = Script::new(
    "semaphore.redeem",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("semaphore/redeem.lua")
    ),
);

static SEMAPHORE: LockKind = LockKind {
    pattern: "semaphore",
    operations: operations!("semaphore"),
    parts: &[],
    acquire: Acquire::Script(&ACQUIRE),
    extend: &EXTEND,
    release: &RELEASE,
    redeem: &REDEEM,
    plain: false,
    waiting: Waiting::Serial,
    poll: None,
};

/// A counting semaphore by name, across all processes. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::num::NonZeroU32;
/// use redstart::{Store, locking::Semaphore};
/// const PRINTERS: NonZeroU32 = NonZeroU32::new(2).unwrap();
///
/// let store = Store::connect("memory://").await?;
/// let printers = Semaphore::new(&store, "office", "printers", PRINTERS)?;
///
/// let one = printers.try_acquire().await?.expect("both are free");
/// let two = printers.try_acquire().await?.expect("one is free");
/// assert!(printers.try_acquire().await?.is_none());
/// one.release().await?;
/// assert!(printers.try_acquire().await?.is_some());
/// # drop(two); store.settle().await;
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// What all locks promise is on the [family's page](super). This one adds:
///
/// - Never more than `permits` leases run at the same time, by the server's clock.
/// - The permit of a process that died is free again when its lease ends, and waiters ask for it at that time.
///
/// # Limits
///
/// There is no fence token: several holders are admitted at once, so none of them is the newest. Each handle applies its
/// own number of permits. To lower it, build new handles with the lower number; current holders keep their permits.
///
/// # Keys
///
/// | key | type | TTL |
/// |---|---|---|
/// | `<namespace>:semaphore:{<name>}` | sorted set: owner's token → end of its lease | the last lease |
/// | `…:wake` | sharded channel | |
///
/// # Round trips
///
/// One for each acquisition, release and renewal: a script of 3 to 7 commands, O(log n) in the number of permits.
///
/// # While the store is down
///
/// Nothing is granted, and leases run out.
#[derive(Clone)]
pub struct Semaphore {
    pub(super) lock: Arc<Lock>,
}

/// The settings of a [`Semaphore`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct SemaphoreBuilder {
    settings: LockSettings,
    permits: NonZeroU32,
}

impl SemaphoreBuilder {
    lock_settings!();

    lock_label!();

    /// Makes the semaphore. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for more than [`Semaphore::MAX_PERMITS`], a ttl out of the
    /// [limits](super::MIN_TTL), and for a namespace or name that breaks the [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<Semaphore> {
        if self.permits > Semaphore::MAX_PERMITS {
            return Err(Error::config(format!(
                "a semaphore must have at most {} permits, not {}",
                Semaphore::MAX_PERMITS,
                self.permits
            )));
        }
        let arguments = vec![self.permits.to_string()];
        Ok(Semaphore {
            lock: self.settings.lock(&SEMAPHORE, arguments)?,
        })
    }
}

impl Semaphore {
    /// The most permits of one semaphore: they live in one sorted set on one server.
    pub const MAX_PERMITS: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();

    /// Starts with the semaphore `name` in `namespace` with a number of permits, with leases of 30 s.
    pub fn builder(
        store: &Store,
        namespace: &str,
        name: &str,
        permits: NonZeroU32,
    ) -> SemaphoreBuilder {
        SemaphoreBuilder {
            settings: LockSettings::new(store, namespace, name),
            permits,
        }
    }

    /// The semaphore `name` in `namespace`, with all defaults.
    ///
    /// # Errors
    ///
    /// Those of [`SemaphoreBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str, permits: NonZeroU32) -> Result<Self> {
        Self::builder(store, namespace, name, permits).build()
    }

    /// Takes a permit if one is free.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a permit that was granted is released in the background.
    pub async fn try_acquire(&self) -> Result<Option<Guard<()>>> {
        self.lock.try_lock().await
    }

    /// Takes a permit as soon as one is free; `None` if there was none within `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached, a permit is requested again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a permit that was granted is released in the background.
    pub async fn acquire(&self, wait: Duration) -> Result<Option<Guard<()>>> {
        self.lock.lock(wait).await
    }

    with_lock!(with, acquire, ());

    held_by_ticket!();

    redeemed_by!(redeem, lock, ());
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Semaphore")
            .field(self.lock.entity.key())
            .finish()
    }
}
