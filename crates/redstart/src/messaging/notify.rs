//! A set of notices that merge.

use std::time::Duration;

use tokio::time::Instant;

use super::{block_seconds, deadline};
use crate::{
    error::{Error, Result},
    key::{Entity, Layout},
    observe,
    script::Script,
    store::{Dedicated, Store},
};

pub(super) static ADD: Script = Script::new("notify.add", include_str!("notify/add.lua"));
pub(super) static TAKE: Script = Script::new("notify.take", include_str!("notify/take.lua"));

const MAX_MEMBERS: usize = 4000;

/// A set of what has to be looked at: several notices of the same thing become one. Cheap to clone.
///
/// For "user 7 changed, rebuild the page": notices that come faster than they are handled merge. Members are taken until
/// the set is empty, then consumers wait without polling.
///
/// # Promises
///
/// A member that is added after it was taken is taken again. No wake-up is lost: beside the set is a sign (a list of one
/// element) that waiters read without taking it (`BLMOVE` onto itself). Only the script that finds the set empty removes
/// it.
///
/// # Limits
///
/// A member is lost if the consumer that took it dies. Add it again, or use the [`Queue`](super::Queue).
///
/// # Keys
///
/// `<namespace>:notify:{<name>}` (set) and `…:sign` (list).
///
/// # Round trips
///
/// One to add, one to take, one more to wait.
///
/// # While the store is down
///
/// Calls fail.
///
/// # Metrics
///
/// Operations `notify.add`, `notify.take`.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use std::time::Duration;
/// # use redstart::{Store, messaging::NotifySet};
/// let store = Store::connect("memory://").await?;
/// let changed = NotifySet::new(&store, "shop", "changed")?;
/// changed.add(&["user 7", "user 8"]).await?;
/// changed.add(&["user 7"]).await?;
///
/// let mut consumer = changed.consumer();
/// let mut taken = consumer.take(10, Duration::from_secs(1)).await?;
/// taken.sort();
/// assert_eq!(taken, ["user 7", "user 8"]);
/// assert!(consumer.take(10, Duration::from_millis(1)).await?.is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct NotifySet {
    store: Store,
    entity: Entity,
}

/// Settings of a [`NotifySet`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct NotifySetBuilder {
    store: Store,
    namespace: String,
    name: String,
    layout: Option<Layout>,
}

impl NotifySetBuilder {
    /// Uses the application's own keys instead of the [usual ones](crate::key).
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// The set. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name.
    pub fn build(self) -> Result<NotifySet> {
        Ok(NotifySet {
            entity: super::entity("notify", &self.namespace, &self.name, self.layout)?,
            store: self.store,
        })
    }
}

impl NotifySet {
    /// A set with default settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Starts a set's settings, from the defaults.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> NotifySetBuilder {
        NotifySetBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            layout: None,
        }
    }

    /// Adds members and wakes waiting consumers; returns how many were new.
    ///
    /// # Errors
    ///
    /// Those of the store. Adding twice is harmless, so it is repeated automatically if the reply was lost.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, some members may have been added.
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
    pub fn consumer(&self) -> NotifyConsumer {
        NotifyConsumer {
            own: self.store.dedicated(self.entity.key()),
            set: self.clone(),
        }
    }
}

/// Takes members; made by [`NotifySet::consumer`].
#[derive(Debug)]
pub struct NotifyConsumer {
    set: NotifySet,
    own: Dedicated,
}

impl NotifyConsumer {
    /// Takes up to `most` members, waiting for the first up to `wait`; an empty list after that.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if `most` is 0 or over 4000; otherwise those of the store. If the error is
    /// [in doubt](Error::is_in_doubt), members may be lost.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while it waits, nothing is lost. If it is dropped while it takes, members may be lost.
    pub async fn take(&mut self, most: usize, wait: Duration) -> Result<Vec<String>> {
        if !(1..=MAX_MEMBERS).contains(&most) {
            return Err(Error::config(format!(
                "take 1 to {MAX_MEMBERS} members at a time"
            )));
        }
        let until = deadline(wait);
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
                .arg(block_seconds(left));
            let _: Option<String> = self.own.query(&look, left).await?;
        }
    }
}
