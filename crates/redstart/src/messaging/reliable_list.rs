//! A list as a queue that loses nothing, for producers that `LPUSH`.
//!
//! A consumer moves an item to a list of its own (`BLMOVE`) and removes it there when it is done. What a consumer
//! took that died is put back when its lease is over, by whoever consumes next.
//!
//! **Promises**: at least once; an item is in the queue, in a consumer's list, or done, at any moment. A consumer
//! that was silent for longer than its lease may find that its item went to another: [`Item::done`] then says
//! [`Finished::Lost`]. **Not**: retries with a wait, attempts, dead letters; the [job queue](super::queue) has
//! those. Equal items are told apart by number only.
//!
//! **Keys**: `<namespace>:list:{<name>}` (producers `LPUSH`, consumers take from the right), `…:taken:<consumer>`,
//! `…:consumers` (sorted set by the end of the lease), `…:silent` (those whose lease ended). A [layout](ReliableListBuilder::layout) adopts a list
//! that exists. **Round trips**: one to take, one to finish. **While the store is down** calls fail; nothing
//! is lost. **Names**: operations `reliable_list.push`, `reliable_list.take`, `reliable_list.done`; events
//! `reliable_list.reaped`, `reliable_list.lost`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! # use std::time::Duration;
//! # use redstart::{Store, messaging::reliable_list::{Finished, ReliableList}};
//! let store = Store::connect("memory://").await?;
//! let list = ReliableList::builder(&store, "shop", "orders").build()?;
//! list.push("order 5001").await?;
//!
//! let mut consumer = list.consumer().await?;
//! let item = consumer.take(Duration::from_secs(1)).await?.unwrap();
//! assert_eq!(item.payload(), b"order 5001");
//! assert_eq!(item.done().await?, Finished::Done);
//! consumer.close().await?;
//! # Ok(()) }
//! ```

use std::{fmt, sync::Arc, time::Duration};

use tokio::task::JoinHandle;

use crate::{
    error::{Error, Result},
    key::{Entity, Keys, Layout},
    observe,
    script::Script,
    store::{Dedicated, Store},
};

static RENEW: Script = Script::new(
    "reliable_list.renew",
    include_str!("reliable_list/renew.lua"),
);
static REAP: Script = Script::new("reliable_list.reap", include_str!("reliable_list/reap.lua"));

/// Settings of a [`ReliableList`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct ReliableListBuilder {
    store: Store,
    namespace: String,
    name: String,
    lease: Duration,
    layout: Option<Layout>,
}

impl ReliableListBuilder {
    /// How long a consumer may be silent before others take its items (default 30 s).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The list's own key, if it exists already.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// The list. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a namespace, a name or a lease that cannot be used.
    pub fn build(self) -> Result<ReliableList> {
        if self.lease < Duration::from_millis(100) || self.lease > Duration::from_secs(86_400) {
            return Err(Error::config("a lease is from 100 ms to a day"));
        }
        let mut keys = Keys::new(&self.namespace, "list")?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(ReliableList(Arc::new(Inner {
            entity: keys.entity(&self.name)?,
            store: self.store,
            lease: self.lease,
        })))
    }
}

/// A list as a queue. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct ReliableList(Arc<Inner>);

struct Inner {
    store: Store,
    entity: Entity,
    lease: Duration,
}

impl ReliableList {
    /// Starts with the usual settings.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> ReliableListBuilder {
        ReliableListBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            lease: Duration::from_secs(30),
            layout: None,
        }
    }

    /// Adds an item; how many wait now.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the item may or may not have been added.
    pub async fn push(&self, item: impl AsRef<[u8]>) -> Result<u64> {
        let push = redis::cmd("LPUSH")
            .arg(self.0.entity.key())
            .arg(item.as_ref())
            .to_owned();
        let work = self.0.store.query(&push);
        observe::operation("reliable_list.push", self.0.entity.namespace(), work).await
    }

    /// How many items wait.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn waiting(&self) -> Result<u64> {
        let length = redis::cmd("LLEN").arg(self.0.entity.key()).to_owned();
        self.0.store.query(&length).await
    }

    /// Registers a consumer. Its lease is kept in the background until it is closed or dropped.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn consumer(&self) -> Result<Consumer> {
        let name = format!("{:032x}", rand::random::<u128>());
        // Registered before the first take: whatever it takes can be found.
        self.renew(&name).await?;
        let list = self.clone();
        let keeper = tokio::spawn({
            let (list, name) = (list.clone(), name.clone());
            async move {
                loop {
                    tokio::time::sleep(list.0.lease / 3).await;
                    if let Err(error) = list.renew(&name).await {
                        tracing::debug!(%error, "a consumer's lease could not be renewed");
                    }
                }
            }
        });
        let list_key = list.0.entity.key().clone();
        Ok(Consumer {
            own: list.0.store.dedicated(&list_key),
            taken: format!("taken:{name}"),
            list,
            name,
            keeper,
            closed: false,
        })
    }

    /// Renews a consumer's lease and puts back what silent ones took.
    async fn renew(&self, name: &str) -> Result<()> {
        let Inner {
            store,
            entity,
            lease,
        } = &*self.0;
        let silent: Vec<String> = RENEW
            .on(entity)
            .part("consumers")
            .part("silent")
            .arg(name)
            .arg(lease.as_micros() as u64)
            .idempotent()
            .run(store)
            .await?;
        for other in silent {
            let reaped = self.reap(&other, false).await?;
            if reaped > 0 {
                observe::events("reliable_list.reaped", reaped);
            }
        }
        Ok(())
    }

    async fn reap(&self, name: &str, leaves: bool) -> Result<u64> {
        REAP.on(&self.0.entity)
            .key()
            .part("consumers")
            .part(&format!("taken:{name}"))
            .part("silent")
            .arg(name)
            .arg(u8::from(leaves))
            .idempotent()
            .run(&self.0.store)
            .await
    }
}

impl fmt::Debug for ReliableList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReliableList")
            .field(self.0.entity.key())
            .finish()
    }
}

/// Takes items; made by [`ReliableList::consumer`]. Dropped, it puts back what it took and did not finish.
pub struct Consumer {
    list: ReliableList,
    name: String,
    taken: String,
    own: Dedicated,
    keeper: JoinHandle<()>,
    closed: bool,
}

impl Consumer {
    /// Waits for an item, `None` after `wait`.
    ///
    /// # Errors
    ///
    /// Those of the store. An item that was taken while the reply was lost comes back when this consumer is
    /// closed, or when its lease is over.
    ///
    /// # Cancel safety
    ///
    /// As for an error: nothing is lost.
    pub async fn take(&mut self, wait: Duration) -> Result<Option<Item>> {
        let entity = &self.list.0.entity;
        let mut take = redis::cmd("BLMOVE");
        // 0 would wait for ever.
        take.arg(entity.key())
            .arg(entity.part(&self.taken))
            .arg("RIGHT")
            .arg("LEFT")
            .arg(wait.as_secs_f64().max(0.001));
        let work = self.own.query::<Option<Vec<u8>>>(&take, wait);
        let payload = observe::operation("reliable_list.take", entity.namespace(), work).await?;
        Ok(payload.map(|payload| Item {
            list: self.list.clone(),
            taken: self.taken.clone(),
            payload,
        }))
    }

    /// Leaves, and puts back what was taken and not finished; how many.
    ///
    /// # Errors
    ///
    /// Those of the store: then the items come back when the lease is over.
    pub async fn close(mut self) -> Result<u64> {
        self.keeper.abort();
        let back = self.list.reap(&self.name, true).await?;
        self.closed = true;
        Ok(back)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.keeper.abort();
        if self.closed {
            return;
        }
        let (list, name) = (self.list.clone(), self.name.clone());
        self.list.0.store.defer(async move {
            if let Err(error) = list.reap(&name, true).await {
                tracing::debug!(%error, "a dropped consumer could not put its items back");
            }
        });
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("list", &self.list)
            .finish_non_exhaustive()
    }
}

/// What became of an item that was reported done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the item may have gone to another consumer"]
pub enum Finished {
    /// It is out of the queue.
    Done,
    /// The lease was over: it went to another consumer, or will.
    Lost,
}

/// An item that was taken and not finished yet.
#[derive(Debug)]
#[must_use = "an item comes back unless it is reported done"]
pub struct Item {
    list: ReliableList,
    taken: String,
    payload: Vec<u8>,
}

impl Item {
    /// What the producer pushed.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Removes the item for good.
    ///
    /// # Errors
    ///
    /// Those of the store: then the item is done twice, at worst.
    pub async fn done(self) -> Result<Finished> {
        let Inner { store, entity, .. } = &*self.list.0;
        let remove = redis::cmd("LREM")
            .arg(entity.part(&self.taken))
            .arg(1)
            .arg(&self.payload)
            .to_owned();
        let work = store.query::<u64>(&remove);
        match observe::operation("reliable_list.done", entity.namespace(), work).await? {
            0 => {
                observe::event("reliable_list.lost");
                Ok(Finished::Lost)
            }
            _ => Ok(Finished::Done),
        }
    }
}
