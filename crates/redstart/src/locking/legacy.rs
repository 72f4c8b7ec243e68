//! The historic lock by SETNX and GETSET, to run beside clients that still use it.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    fence::FenceToken,
    guard::{Guard, with_lock},
    hand_over::redeemed_by,
    kind::{Acquire, LockKind, Waiting, operations},
    lock::Lock,
    settings::{LockSettings, lock_label, lock_settings},
};
use crate::{
    duration::micros,
    error::{Error, Result},
    observe,
    script::Script,
    store::Store,
};

pub(super) static ACQUIRE: Script = Script::new(
    "legacy.acquire",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("fence/next.lua"),
        include_str!("legacy/stamp.lua"),
        include_str!("legacy/acquire.lua")
    ),
);
pub(super) static EXTEND: Script = Script::new(
    "legacy.extend",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("legacy/stamp.lua"),
        include_str!("legacy/extend.lua")
    ),
);
pub(super) static RELEASE: Script =
    Script::new("legacy.release", include_str!("legacy/release.lua"));
pub(super) static REDEEM: Script = Script::new(
    "legacy.redeem",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("fence/next.lua"),
        include_str!("legacy/stamp.lua"),
        include_str!("legacy/redeem.lua")
    ),
);
pub(super) static HOLDER: Script = Script::new(
    "legacy.holder",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("legacy/stamp.lua"),
        include_str!("legacy/holder.lua")
    ),
);
pub(super) static FORCE_RELEASE: Script = Script::new(
    "legacy.force_release",
    include_str!("legacy/force_release.lua"),
);
pub(super) static STATE: Script = Script::new(
    "legacy.state",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("legacy/stamp.lua"),
        include_str!("legacy/state.lua")
    ),
);
pub(super) static MIGRATE: Script = Script::new(
    "legacy.migrate",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("legacy/stamp.lua"),
        include_str!("legacy/migrate.lua")
    ),
);

static LEGACY: LockKind = LockKind {
    pattern: "legacy",
    operations: operations!("legacy"),
    parts: &["owner", "fence"],
    acquire: Acquire::Script(&ACQUIRE),
    extend: &EXTEND,
    release: &RELEASE,
    redeem: &REDEEM,
    plain: false,
    waiting: Waiting::Serial,
    poll: Some(Duration::from_millis(100)),
};

/// The unit in which old clients write the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LegacyUnit {
    /// Seconds since the Unix epoch, which is the usual unit.
    #[default]
    Seconds,
    /// Milliseconds since the Unix epoch.
    Milliseconds,
}

impl LegacyUnit {
    fn micros(self) -> u64 {
        match self {
            Self::Seconds => 1_000_000,
            Self::Milliseconds => 1_000,
        }
    }
}

/// The state of an old lock, by the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyState {
    /// The key does not exist.
    Free,
    /// Held, for at most this long.
    Held(Duration),
    /// Its time passed this long ago; nobody has removed it.
    Expired(Duration),
    /// The key holds something that is not a time stamp.
    Foreign,
}

/// A lock of the SETNX/GETSET kind, to run beside clients that still use it. Cheap to clone.
///
/// Before `SET … NX PX`, a lock was a key that held the time at which it ends:
///
/// 1. `SETNX key <now + timeout + 1>`; 1 means that the lock was taken.
/// 2. Otherwise `GET key`. If that time has passed, `GETSET key <now + timeout + 1>`; if the old value is still a time
///    that has passed, the lock was taken.
/// 3. `DEL key` at the end.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, key::Layout, locking::{LegacyLock, LegacyState}};
/// let store = Store::connect("memory://").await?;
/// let lock = LegacyLock::builder(&store, "shop", "foo")
///     .layout(Layout::new(|name| format!("lock.{name}")))      // the key that old clients use
///     .build()?;
///
/// // An old client holds it until the second 4102444800.
/// let old = redis::cmd("SETNX").arg("lock.foo").arg(4_102_444_800u64).clone();
/// store.query::<()>(&old).await?;
/// assert!(lock.try_lock().await?.is_none());
///
/// // It releases the lock, which is then taken in a form that the old client understands.
/// store.query::<()>(redis::cmd("DEL").arg("lock.foo")).await?;
/// let guard = lock.try_lock().await?.expect("it is free");
/// assert!(matches!(lock.state().await?, LegacyState::Held(_)));
/// assert_eq!(store.query::<i64>(&old).await?, 0);
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// Among clients of this library the promises of the [family](super) hold: the server's clock, an owner's token, a TTL,
/// a fence token, wake-ups. Towards old clients:
///
/// | | |
/// |---|---|
/// | honour | a time stamp that has not passed by the server's clock is a held lock; [`skew`](LegacyLockBuilder::skew) is added for old clients' clocks, in both directions. Whatever is not a time stamp is treated as held |
/// | acquire | one script reads, decides and writes, so it never moves the stamp of a lock that it does not get |
/// | hold | renewals move the stamp forward. If an old client changed it, as a thief or as the loser of a race, [`Guard::lost`] returns |
/// | release | only if the stamp is still the one that was written |
/// | hand over | they see a held lock all the time; if one of them moved the stamp, nobody redeems it |
/// | wait | old clients send no wake-up: waiters ask again when the stamp passes, and every 100 ms |
///
/// # Limits
///
/// The old protocol has hazards that this lock cannot remove between old clients:
///
/// - The time is each **client's own clock**. A client that is ahead takes a lock that is held.
/// - The **loser of step 2** has already overwritten the winner's time stamp with its own.
/// - There is **no owner**: a holder that overran its time deletes its successor's lock in step 3.
/// - There is **no TTL**: the key of a client that died stays until somebody does step 2.
///
/// [`holder`](Self::holder) knows no label of an old client, and a [forced release](Self::force_release) knows its lock
/// only by the stamp: if another old client took the lock meanwhile and wrote the same stamp, in the same second with the same
/// timeout, its lock is released instead.
///
/// # Migrating
///
/// 1. New code takes the lock by [`LegacyLock`] while old clients are in use.
/// 2. When the last old client is gone, [`LegacyLock::migrate`] moves the end of a lock that is still held into its TTL
///    and removes one whose time has passed.
/// 3. From then on use a [`Mutex`](super::Mutex) with a [layout](super::MutexBuilder::layout) that gives the same key.
///    It honours the current value until it expires.
///
/// Do not start step 3 early: an old client reads the mutex's token as a time stamp that has passed.
///
/// # Keys
///
/// | key | type | TTL |
/// |---|---|---|
/// | `<namespace>:legacy:{<name>}`, or the [layout](LegacyLockBuilder::layout)'s key | string: the time at which it ends | the lease |
/// | `…:owner` | hash: `token`, `stamp` | the lease |
/// | `…:fence` | string: the last fence token | none |
/// | `…:wake` | sharded channel | |
///
/// # Round trips
///
/// One for each operation, scripts of 3 to 7 commands.
///
/// # While the store is down
///
/// Nothing is granted.
#[derive(Clone)]
pub struct LegacyLock {
    pub(super) lock: Arc<Lock>,
    unit: LegacyUnit,
    skew: Duration,
}

/// The settings of a [`LegacyLock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct LegacyLockBuilder {
    settings: LockSettings,
    unit: LegacyUnit,
    skew: Duration,
}

impl LegacyLockBuilder {
    lock_settings!();

    lock_label!();

    /// The unit of the time stamps (default: seconds).
    pub fn unit(mut self, unit: LegacyUnit) -> Self {
        self.unit = unit;
        self
    }

    /// The maximum clock error of old clients, in both directions (default 1 s). Locks that they hold are honoured for
    /// that much longer, and the stamps of this lock are that much later.
    pub fn skew(mut self, skew: Duration) -> Self {
        self.skew = skew;
        self
    }

    /// Makes the lock. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a ttl out of the [limits](super::MIN_TTL), a skew of more than a day, and a
    /// label, namespace or name that breaks the [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<LegacyLock> {
        if self.skew > Duration::from_secs(86_400) {
            return Err(Error::config("a clock skew must be at most one day"));
        }
        let arguments = vec![
            self.unit.micros().to_string(),
            micros(self.skew).to_string(),
        ];
        Ok(LegacyLock {
            lock: self.settings.lock(&LEGACY, arguments)?,
            unit: self.unit,
            skew: self.skew,
        })
    }
}

impl LegacyLock {
    /// Starts with the lock `name` in `namespace`, with a lease of 30 s. Old clients use a key of their own, which
    /// [`layout`](LegacyLockBuilder::layout) gives.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> LegacyLockBuilder {
        LegacyLockBuilder {
            settings: LockSettings::new(store, namespace, name),
            unit: LegacyUnit::default(),
            skew: Duration::from_secs(1),
        }
    }

    /// Takes the lock if it is free or its time has passed.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lock that was granted is released in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.lock.try_lock().await
    }

    /// Takes the lock as soon as it is free; `None` if it was still held after `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached, the lock is requested again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lock that was granted is released in the background.
    pub async fn lock(&self, wait: Duration) -> Result<Option<Guard>> {
        self.lock.lock(wait).await
    }

    with_lock!(with, lock, FenceToken);

    redeemed_by!(redeem, lock, FenceToken);

    /// The current state of the lock. Changes nothing.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    pub async fn state(&self) -> Result<LegacyState> {
        self.read_state("legacy.state", &STATE).await
    }

    /// Moves the end of a held lock into its TTL and removes a lock whose time has passed, so that a
    /// [`Mutex`](super::Mutex) can take over the key. Returns what the lock was. A key that is not a time stamp is left
    /// unchanged.
    ///
    /// Call it only when no old client is left; see [Migrating](Self#migrating).
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may have been done; repeating it is harmless.
    pub async fn migrate(&self) -> Result<LegacyState> {
        self.read_state("legacy.migrate", &MIGRATE).await
    }

    async fn read_state(
        &self,
        operation: &'static str,
        script: &'static Script,
    ) -> Result<LegacyState> {
        observe::operation(operation, self.lock.entity.namespace(), async {
            let (state, ms): (String, u64) = script
                .on(&self.lock.entity)
                .key()
                .arg(self.unit.micros())
                .arg(micros(self.skew))
                .idempotent()
                .run(&self.lock.store)
                .await?;
            let time = Duration::from_millis(ms);
            match &*state {
                "free" => Ok(LegacyState::Free),
                "held" => Ok(LegacyState::Held(time)),
                "expired" => Ok(LegacyState::Expired(time)),
                "foreign" => Ok(LegacyState::Foreign),
                _ => Err(Error::codec("unknown lock state in reply")),
            }
        })
        .await
    }
}

impl fmt::Debug for LegacyLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LegacyLock")
            .field(self.lock.entity.key())
            .finish()
    }
}
