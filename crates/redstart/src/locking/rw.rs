//! A lock that many readers or one writer have.
//!
//! What all locks promise is on the [family's page](super). This one adds:
//!
//! - Each reader has a lease of its own, so one that died does not keep the writers out beyond it.
//! - Writers do not starve: while one waits, no new reader comes in. A waiting writer's mark is leased too (the
//!   lock's ttl, 5 s at most), so one that died does not keep the readers out.
//! - Readers can starve where writers come without a break.
//! - Writers have a [fence token](super::fence); readers change nothing and need none.
//!
//! Nobody turns from a reader into a writer: give the one back, take the other, and look again.
//!
//! # Keys
//!
//! | key | type | TTL |
//! |---|---|---|
//! | `<namespace>:rw:{<name>}` | string: the writer's token | the writer's lease |
//! | `…:readers` | sorted set: reader → end of its lease | the last reader's lease |
//! | `…:waiting` | sorted set: waiting writer → end of its lease | the waiter's lease |
//! | `…:fence` | string: the last fence token | none |
//! | `…:wake` | sharded channel | |
//!
//! # Round trips and cost
//!
//! One for each acquisition, release and renewal, each a script of 3 to 7 commands, O(log n) in the number of
//! readers. While the store is down nobody comes in, and leases run out.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    lease::{Guard, names},
    mutex::RENEW,
    place::{Acquire, Kind, Line, Place, Settings, lease_settings},
};
use crate::{error::Result, script::Script, store::Store};

const PARTS: &[&str] = &["readers", "waiting", "fence"];

static READ: Script = Script::new("rw.read", include_str!("rw/read.lua"));
static READ_RENEW: Script = Script::new("rw.read_renew", include_str!("rw/read_renew.lua"));
static READ_RELEASE: Script = Script::new("rw.read_release", include_str!("rw/read_release.lua"));
static WRITE: Script = Script::new(
    "rw.write",
    concat!(include_str!("fence/next.lua"), include_str!("rw/write.lua")),
);
static WRITE_RELEASE: Script =
    Script::new("rw.write_release", include_str!("rw/write_release.lua"));

static READER: Kind = Kind {
    pattern: "rw",
    names: names!("rw"),
    parts: PARTS,
    acquire: Acquire::Script(&READ),
    renew: &READ_RENEW,
    release: &READ_RELEASE,
    plain: false,
    line: Line::All,
    poll: None,
};

static WRITER: Kind = Kind {
    pattern: "rw",
    names: names!("rw"),
    parts: PARTS,
    acquire: Acquire::Script(&WRITE),
    renew: &RENEW,
    release: &WRITE_RELEASE,
    plain: false,
    line: Line::Queue,
    poll: None,
};

/// A lock for many readers or one writer. Cheap to clone. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, locking::RwLock};
/// let store = Store::connect("memory://").await?;
/// let catalogue = RwLock::builder(&store, "shop", "catalogue").build()?;
///
/// let one = catalogue.try_read().await?.expect("nobody writes");
/// let two = catalogue.try_read().await?.expect("nobody writes");
/// assert!(catalogue.try_write().await?.is_none());
/// one.release().await?;
/// two.release().await?;
/// let writer = catalogue.try_write().await?.expect("nobody reads any more");
/// println!("writing with token {}", writer.fence());
/// # writer.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RwLock {
    reader: Arc<Place>,
    writer: Arc<Place>,
}

/// The settings of an [`RwLock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct RwLockBuilder {
    settings: Settings,
}

impl RwLockBuilder {
    lease_settings!();

    /// Makes the lock. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a ttl out of the [limits](super::MIN_TTL), and for a
    /// namespace or name that breaks the [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<RwLock> {
        Ok(RwLock {
            reader: self.settings.place(&READER, Vec::new())?,
            writer: self.settings.place(&WRITER, Vec::new())?,
        })
    }
}

impl RwLock {
    /// Starts with the lock `name` in `namespace`, with leases of 30 s.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> RwLockBuilder {
        RwLockBuilder {
            settings: Settings::new(store, namespace, name),
        }
    }

    /// Comes in as a reader, unless a writer writes or waits.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, what was granted is given back in the background.
    pub async fn try_read(&self) -> Result<Option<Guard<()>>> {
        self.reader.try_lock().await
    }

    /// Comes in as a reader when no writer writes or waits; `None` if that was not within `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached it is asked again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, what was granted is given back in the background.
    pub async fn read(&self, wait: Duration) -> Result<Option<Guard<()>>> {
        self.reader.lock(wait).await
    }

    /// Comes in as the writer, if nobody is in. It leaves no mark if not.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, what was granted is given back in the background.
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.writer.try_lock().await
    }

    /// Comes in as the writer when nobody is in; new readers wait meanwhile. `None` if that was not within
    /// `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached it is asked again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, what was granted and the mark of a waiting writer are given back in the
    /// background.
    pub async fn write(&self, wait: Duration) -> Result<Option<Guard>> {
        self.writer.lock(wait).await
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RwLock")
            .field(self.reader.entity.key())
            .finish()
    }
}
