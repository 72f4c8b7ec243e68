//! A set of what has to be looked at: many notices of the same thing become one.
//!
//! For "user 7 changed, rebuild the page": notices that come faster than they are handled merge. Members are
//! taken until the set is empty, then consumers wait without polling, and no wake-up is ever lost: beside the
//! set lies a sign (a list of one element) that waiters look at without taking it (`BLMOVE` onto itself); it is
//! removed only by the script that sees the empty set.
//!
//! **Promises**: a member that was added after it was taken is taken again. **Not**: a member is lost with the
//! consumer that took it and died; add it again, or use the [job queue](super::queue).
//! **Keys**: `<namespace>:notify:{<name>}` (set) and `…:sign` (list). **Round trips**: one to add, one to take,
//! one more to wait. **While the store is down** calls fail. **Names**: operations `notify.add`, `notify.take`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! # use std::time::Duration;
//! # use redstart::{Store, messaging::notify::NotifySet};
//! let store = Store::connect("memory://").await?;
//! let changed = NotifySet::new(&store, "shop", "changed")?;
//! changed.add(&["user 7", "user 8"]).await?;
//! changed.add(&["user 7"]).await?;
//!
//! let mut consumer = changed.consumer();
//! let mut taken = consumer.take(10, Duration::from_secs(1)).await?;
//! taken.sort();
//! assert_eq!(taken, ["user 7", "user 8"]);
//! assert!(consumer.take(10, Duration::from_millis(1)).await?.is_empty());
//! # Ok(()) }
//! ```

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::Script,
    store::{Dedicated, Store},
};

static ADD: Script = Script::new("notify.add", include_str!("notify/add.lua"));
static TAKE: Script = Script::new("notify.take", include_str!("notify/take.lua"));

const MAX_MEMBERS: usize = 4000;

/// A notification set. Cheap to clone. See the [module](self).
#[derive(Clone, Debug)]
pub struct NotifySet {
    store: Store,
    entity: Entity,
}

impl NotifySet {
    /// The set of this name.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a namespace or a name that cannot be used.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            entity: Keys::new(namespace, "notify")?.entity(name)?,
        })
    }

    /// Adds members and wakes those who wait; how many were new.
    ///
    /// # Errors
    ///
    /// Those of the store. Adding twice is harmless, so it is repeated by itself where the reply was lost.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some members may have been added.
    pub async fn add(&self, members: &[impl AsRef<str>]) -> Result<u64> {
        observe::operation("notify.add", self.entity.namespace(), async {
            let mut new = 0;
            for piece in members.chunks(MAX_MEMBERS) {
                let mut call = ADD.on(&self.entity).key().part("sign");
                for member in piece {
                    call = call.arg(member.as_ref());
                }
                new += call.idempotent().run::<u64>(&self.store).await?;
            }
            Ok(new)
        })
        .await
    }

    /// A consumer, with a connection of its own to wait on.
    pub fn consumer(&self) -> Consumer {
        Consumer {
            own: self.store.dedicated(self.entity.key()),
            set: self.clone(),
        }
    }
}

/// Takes members; made by [`NotifySet::consumer`].
#[derive(Debug)]
pub struct Consumer {
    set: NotifySet,
    own: Dedicated,
}

impl Consumer {
    /// Takes up to `most` members, waiting for the first up to `wait`; none when the time is over.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if `most` is 0 or over 4000; otherwise those of the store. If it is
    /// [in doubt](Error::is_in_doubt), members may be lost.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, nothing is lost; dropped while it takes, members may be.
    pub async fn take(&mut self, most: usize, wait: Duration) -> Result<Vec<String>> {
        if !(1..=MAX_MEMBERS).contains(&most) {
            return Err(Error::config(format!(
                "take 1 to {MAX_MEMBERS} members at a time"
            )));
        }
        let until = Instant::now() + wait;
        let (store, entity) = (&self.set.store, &self.set.entity);
        let sign = entity.part("sign");
        loop {
            let call = TAKE
                .on(entity)
                .key()
                .part("sign")
                .arg(most)
                .run::<Vec<String>>(store);
            let taken = observe::operation("notify.take", entity.namespace(), call).await?;
            let left = until.saturating_duration_since(Instant::now());
            if !taken.is_empty() || left.is_zero() {
                return Ok(taken);
            }
            let mut look = redis::cmd("BLMOVE");
            look.arg(&sign)
                .arg(&sign)
                .arg("LEFT")
                .arg("LEFT")
                .arg(left.as_secs_f64().max(0.001));
            let _: Option<String> = self.own.query(&look, left).await?;
        }
    }
}
