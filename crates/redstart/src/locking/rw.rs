//! A lock that many readers or one writer hold.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    fence::FenceToken,
    guard::{Guard, with_lock},
    hand_over::redeemed_by,
    kind::{Acquire, LockKind, Waiting, operations},
    lock::Lock,
    settings::{LockSettings, lock_label, lock_settings},
};
use crate::{error::Result, script::Script, store::Store};

const PARTS: &[&str] = &["readers", "waiting", "fence"];

pub(super) static READ: Script = Script::new(
    "rw.read",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("rw/read.lua")
    ),
);
pub(super) static EXTEND_READ: Script = Script::new(
    "rw.extend_read",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("rw/extend_read.lua")
    ),
);
pub(super) static RELEASE_READ: Script = Script::new(
    "rw.release_read",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("rw/release_read.lua")
    ),
);
pub(super) static WRITE: Script = Script::new(
    "rw.write",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("fence/next.lua"),
        include_str!("rw/write.lua")
    ),
);
pub(super) static EXTEND_WRITE: Script =
    Script::new("rw.extend_write", include_str!("mutex/extend.lua"));
pub(super) static RELEASE_WRITE: Script =
    Script::new("rw.release_write", include_str!("rw/release_write.lua"));

pub(super) static FORCE_RELEASE_READ: Script = Script::new(
    "rw.force_release_read",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("rw/release_read.lua")
    ),
);
pub(super) static FORCE_RELEASE_WRITE: Script = Script::new(
    "rw.force_release_write",
    include_str!("rw/release_write.lua"),
);
pub(super) static HOLDERS: Script = Script::new(
    "rw.holders",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("rw/holders.lua")
    ),
);
pub(super) static REDEEM_READ: Script = Script::new(
    "rw.redeem_read",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("rw/redeem_read.lua")
    ),
);
pub(super) static REDEEM_WRITE: Script = Script::new(
    "rw.redeem_write",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("mutex/redeem.lua")
    ),
);

static READER: LockKind = LockKind {
    pattern: "rw",
    operations: operations!("rw", "read", "extend_read", "release_read", "redeem_read"),
    parts: PARTS,
    acquire: Acquire::Script(&READ),
    extend: &EXTEND_READ,
    release: &RELEASE_READ,
    redeem: &REDEEM_READ,
    plain: false,
    waiting: Waiting::Parallel,
    poll: None,
};

static WRITER: LockKind = LockKind {
    pattern: "rw",
    operations: operations!(
        "rw",
        "write",
        "extend_write",
        "release_write",
        "redeem_write"
    ),
    parts: PARTS,
    acquire: Acquire::Script(&WRITE),
    extend: &EXTEND_WRITE,
    release: &RELEASE_WRITE,
    redeem: &REDEEM_WRITE,
    plain: false,
    waiting: Waiting::Queued,
    poll: None,
};

/// A lock for many readers or one writer, by name, across all processes. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, locking::RwLock};
/// let store = Store::connect("memory://").await?;
/// let catalogue = RwLock::new(&store, "shop", "catalogue")?;
///
/// let one = catalogue.try_read().await?.expect("there is no writer");
/// let two = catalogue.try_read().await?.expect("there is no writer");
/// assert!(catalogue.try_write().await?.is_none());
/// one.release().await?;
/// two.release().await?;
/// let writer = catalogue.try_write().await?.expect("the readers are gone");
/// println!("writing with token {}", writer.fence());
/// # writer.release().await?;
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// What all locks promise is on the [family's page](super). This one adds:
///
/// - Each reader has a lease of its own, so a reader that died blocks writers only until its lease ends.
/// - Writers do not starve: while one waits, no new reader is admitted. The place of a waiting writer is leased too (the
///   lock's ttl, at most 5 s), so a writer that died does not block readers for longer.
/// - Writers get a [fence token](FenceToken); readers change nothing and need none.
///
/// # Limits
///
/// Readers can starve if writers arrive without a break. A reader cannot become a writer: release the one, acquire the
/// other, and read again.
///
/// # Keys
///
/// | key | type | TTL |
/// |---|---|---|
/// | `<namespace>:rw:{<name>}` | string: the writer's token | the writer's lease |
/// | `…:readers` | sorted set: reader → end of its lease | the last reader's lease |
/// | `…:waiting` | sorted set: waiting writer → end of its lease | the last waiter's lease |
/// | `…:fence` | string: the last fence token | none |
/// | `…:wake` | sharded channel | |
///
/// # Round trips
///
/// One for each acquisition, release and renewal, each a script of 3 to 8 commands, O(log n) in the number of readers.
///
/// # While the store is down
///
/// Nobody is admitted, and leases run out.
#[derive(Clone)]
pub struct RwLock {
    pub(super) reader: Arc<Lock>,
    pub(super) writer: Arc<Lock>,
}

/// The settings of an [`RwLock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct RwLockBuilder {
    settings: LockSettings,
}

impl RwLockBuilder {
    lock_settings!();

    lock_label!();

    /// Makes the lock. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a ttl out of the [limits](super::MIN_TTL), and for a namespace or
    /// name that breaks the [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<RwLock> {
        Ok(RwLock {
            reader: self.settings.lock(&READER, Vec::new())?,
            writer: self.settings.lock(&WRITER, Vec::new())?,
        })
    }
}

impl RwLock {
    /// Starts with the lock `name` in `namespace`, with leases of 30 s.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> RwLockBuilder {
        RwLockBuilder {
            settings: LockSettings::new(store, namespace, name),
        }
    }

    /// The lock `name` in `namespace`, with all defaults.
    ///
    /// # Errors
    ///
    /// Those of [`RwLockBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Takes the lock as a reader, unless a writer holds it or waits for it.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what was granted is released in the background.
    pub async fn try_read(&self) -> Result<Option<Guard<()>>> {
        self.reader.try_lock().await
    }

    /// Takes the lock as a reader as soon as no writer holds it or waits for it; `None` if it was not granted within
    /// `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached, the lock is requested again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what was granted is released in the background.
    pub async fn read(&self, wait: Duration) -> Result<Option<Guard<()>>> {
        self.reader.lock(wait).await
    }

    /// Takes the lock as the writer if nobody holds it. It does not keep readers out otherwise.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what was granted is released in the background.
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.writer.try_lock().await
    }

    /// Takes the lock as the writer as soon as nobody holds it; new readers wait meanwhile. `None` if it was not granted
    /// within `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached, the lock is requested again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock or the place of the waiting writer is released in the background.
    pub async fn write(&self, wait: Duration) -> Result<Option<Guard>> {
        self.writer.lock(wait).await
    }

    with_lock!(with_read, read, ());
    with_lock!(with_write, write, FenceToken);

    redeemed_by!(redeem_read, reader, ());

    redeemed_by!(redeem_write, writer, FenceToken);
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RwLock")
            .field(self.reader.entity.key())
            .finish()
    }
}
