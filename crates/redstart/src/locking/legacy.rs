//! The historic lock by SETNX and GETSET, to live beside clients that still use it.
//!
//! Before `SET … NX PX`, a lock was a key that held the time at which it ends:
//!
//! 1. `SETNX key <now + timeout + 1>`; 1 means that it is ours.
//! 2. Otherwise `GET key`. If that time has passed, `GETSET key <now + timeout + 1>`, and if what comes back is
//!    still a time that has passed, it is ours.
//! 3. `DEL key` in the end.
//!
//! # Its hazards
//!
//! - The time is each **client's own clock**. A client that is ahead takes a lock that is held.
//! - The **loser of step 2** has already overwritten the winner's time stamp with its own.
//! - There is **no owner**: a holder that overran its time deletes its successor's lock in step 3.
//! - There is **no TTL**: the key of a client that died stays until somebody does step 2.
//! - Nobody is woken, so waiters poll.
//!
//! # What this module does about them
//!
//! [`LegacyLock`] takes the same key in a form that old clients understand, and as soon as it is taken by this
//! side the promises of the [family](super) hold among clients of this side: the server's clock, an owner's
//! token, a TTL, a fence token, wake-ups. Towards old clients:
//!
//! | | |
//! |---|---|
//! | honour | a time stamp that has not passed by the server's clock is a held lock; [`skew`](LegacyLockBuilder::skew) is added for old clients' clocks, both ways. What is no time stamp at all is taken for held |
//! | take | one script reads, decides and writes, so it never moves the stamp of a lock that it does not get |
//! | keep | renewals move the stamp on. If an old client touched it — thief or loser, nobody can tell — [`Guard::lost`] fires |
//! | give back | only if the stamp is still the one that was written |
//! | wait | old clients wake nobody: asked again when the stamp passes, and every 100 ms |
//!
//! What old clients do to each other cannot be mended here.
//!
//! # Migrating
//!
//! 1. New code takes the lock by [`LegacyLock`] while old clients are about.
//! 2. When the last old client is gone, [`LegacyLock::migrate`] puts the end of a lock that is still held into
//!    its TTL and removes one that has passed.
//! 3. From then on use a [`Mutex`](super::Mutex) with a [layout](super::mutex::MutexBuilder::layout) that names
//!    the same key. It honours whatever is in it until that ends.
//!
//! Do not start 3 early: an old client takes the mutex's token for a time stamp that has passed.
//!
//! # Keys, round trips, store down
//!
//! The old key, and beside it `{<key>}:owner` (hash) and `{<key>}:fence` (string, no TTL). One round trip for
//! each operation, scripts of 3 to 7 commands. While the store is down nothing is granted.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    lease::{Guard, names},
    place::{Acquire, Kind, Line, Place, Settings},
};
use crate::{
    error::{Error, Result},
    key::Layout,
    observe,
    script::Script,
    store::Store,
};

static ACQUIRE: Script = Script::new(
    "legacy.acquire",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("legacy/acquire.lua")
    ),
);
static RENEW: Script = Script::new("legacy.renew", include_str!("legacy/renew.lua"));
static RELEASE: Script = Script::new("legacy.release", include_str!("legacy/release.lua"));
static LOOK: Script = Script::new("legacy.look", include_str!("legacy/look.lua"));

static KIND: Kind = Kind {
    pattern: "legacy",
    names: names!("legacy"),
    parts: &["owner", "fence"],
    acquire: Acquire::Script(&ACQUIRE),
    renew: &RENEW,
    release: &RELEASE,
    plain: false,
    line: Line::Turns,
    poll: Some(Duration::from_millis(100)),
};

/// The unit in which old clients write the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Unit {
    /// Seconds since the Unix epoch, as it was usual.
    #[default]
    Seconds,
    /// Milliseconds since the Unix epoch.
    Milliseconds,
}

impl Unit {
    fn micros(self) -> u64 {
        match self {
            Self::Seconds => 1_000_000,
            Self::Milliseconds => 1_000,
        }
    }
}

/// What an old lock is, by the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyState {
    /// There is no such key.
    Free,
    /// Held, for this long at most.
    Held(Duration),
    /// Its time passed this long ago; nobody has removed it.
    Expired(Duration),
    /// The key holds something that is no time stamp.
    Foreign,
}

/// A lock of the SETNX/GETSET kind. Cheap to clone. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, locking::{LegacyLock, legacy::LegacyState}};
/// let store = Store::connect("memory://").await?;
/// let lock = LegacyLock::builder(&store, "lock.foo").build()?;
///
/// // An old client has it: it ends at the second 4102444800.
/// let old = redis::cmd("SETNX").arg("lock.foo").arg(4_102_444_800u64).clone();
/// store.query::<()>(&old).await?;
/// assert!(lock.try_lock().await?.is_none());
///
/// // It gives it back, and we take it in a form that it understands.
/// store.query::<()>(redis::cmd("DEL").arg("lock.foo")).await?;
/// let guard = lock.try_lock().await?.expect("it is free");
/// assert!(matches!(lock.state().await?, LegacyState::Held(_)));
/// assert_eq!(store.query::<i64>(&old).await?, 0);
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LegacyLock {
    place: Arc<Place>,
    unit: Unit,
    skew: Duration,
}

/// The settings of a [`LegacyLock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct LegacyLockBuilder {
    settings: Settings,
    unit: Unit,
    skew: Duration,
}

impl LegacyLockBuilder {
    /// For how long the lock outlives a holder that says nothing more (default 30 s).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// The lease is not renewed by itself: it ends after its ttl, unless the holder extends it.
    pub fn fixed(mut self) -> Self {
        self.settings.renewed = false;
        self
    }

    /// The unit of the time stamps (default: seconds).
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// How far the clocks of old clients may be off, either way (default 1 s). Locks that they hold are
    /// honoured for so much longer, and ours are dated so much later.
    pub fn skew(mut self, skew: Duration) -> Self {
        self.skew = skew;
        self
    }

    /// Makes the lock. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or too long key or one with a broken hash tag, a ttl out of
    /// the [limits](super::MIN_TTL), and a skew of more than a day.
    pub fn build(self) -> Result<LegacyLock> {
        if self.skew > Duration::from_secs(86_400) {
            return Err(Error::config(
                "clocks that are off by more than a day cannot be allowed for",
            ));
        }
        let extra = vec![
            self.unit.micros().to_string(),
            self.skew.as_micros().to_string(),
        ];
        Ok(LegacyLock {
            place: self.settings.place(&KIND, extra)?,
            unit: self.unit,
            skew: self.skew,
        })
    }
}

impl LegacyLock {
    /// Starts with the key that the old clients use, as it is.
    pub fn builder(store: &Store, key: &str) -> LegacyLockBuilder {
        let mut settings = Settings::new(store, "legacy", key);
        settings.layout = Some(Layout::new(str::to_owned));
        LegacyLockBuilder {
            settings,
            unit: Unit::default(),
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
    /// Dropped before it is done, a lock that was granted is given back in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.place.try_lock().await
    }

    /// Takes the lock as soon as it is free; `None` if it was still taken after `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached it is asked again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a lock that was granted is given back in the background.
    pub async fn lock(&self, wait: Duration) -> Result<Option<Guard>> {
        self.place.lock(wait).await
    }

    /// What the lock is now. Changes nothing.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    pub async fn state(&self) -> Result<LegacyState> {
        self.look("look").await
    }

    /// Puts the end of a held lock into its TTL and removes one whose time has passed, so that a
    /// [`Mutex`](super::Mutex) can take over the key. Returns what the lock was. What is no time stamp is left
    /// alone.
    ///
    /// Only when no old client is about any more; see the [module](self#migrating).
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, it may have been done; doing it again is harmless.
    pub async fn migrate(&self) -> Result<LegacyState> {
        self.look("migrate").await
    }

    async fn look(&self, verb: &'static str) -> Result<LegacyState> {
        observe::operation("legacy.look", self.place.entity.namespace(), async {
            let (state, ms): (String, u64) = LOOK
                .on(&self.place.entity)
                .key()
                .arg(self.unit.micros())
                .arg(u64::try_from(self.skew.as_micros()).unwrap_or(u64::MAX))
                .arg(verb)
                .idempotent()
                .run(&self.place.store)
                .await?;
            let time = Duration::from_millis(ms);
            match &*state {
                "free" => Ok(LegacyState::Free),
                "held" => Ok(LegacyState::Held(time)),
                "expired" => Ok(LegacyState::Expired(time)),
                "foreign" => Ok(LegacyState::Foreign),
                _ => Err(Error::codec("the script answered with an unknown state")),
            }
        })
        .await
    }
}

impl fmt::Debug for LegacyLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LegacyLock")
            .field(self.place.entity.key())
            .finish()
    }
}
