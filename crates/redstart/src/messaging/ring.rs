//! A ring: many workers visit all items again and again.
//!
//! For what must be looked at for ever: feeds to poll, hosts to check. Each [`next`](Ring::next) gives the item
//! whose turn it is and moves on, in one step: workers never get the same item of one lap, and none is skipped.
//! A mark in the ring counts the laps. An item that is added is visited in the next lap.
//!
//! An item stays in the ring whatever happens to the worker that visits it: nothing is lost, and a visit that
//! failed is made up for in the next lap. **Not**: a pace; combine it with a limiter.
//!
//! **Keys**: `<namespace>:ring:{<name>}` (list) and `…:laps` (number). **Round trips**: one each; `next` is O(1),
//! `remove` O(n). **While the store is down** calls fail. **Names**: operations `ring.add`, `ring.next`,
//! `ring.remove`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! # use redstart::{Store, messaging::ring::Ring};
//! let store = Store::connect("memory://").await?;
//! let ring = Ring::new(&store, "shop", "feeds")?;
//! ring.add("a").await?;
//! ring.add("b").await?;
//! let mut visits = Vec::new();
//! for _ in 0..4 {
//!     let visit = ring.next().await?.unwrap();
//!     visits.push((visit.item, visit.lap));
//! }
//! let expected = [("a", 1), ("b", 1), ("a", 2), ("b", 2)];
//! assert_eq!(visits, expected.map(|(item, lap)| (item.to_owned(), lap)));
//! # Ok(()) }
//! ```

use redis::Value;

use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::Script,
    store::Store,
};

static ADD: Script = Script::new("ring.add", include_str!("ring/add.lua"));
static NEXT: Script = Script::new("ring.next", include_str!("ring/next.lua"));
static REMOVE: Script = Script::new("ring.remove", include_str!("ring/remove.lua"));

/// Tells items from the mark, whatever they are.
const PREFIX: &str = "i:";
const MAX_ITEM: usize = 64 * 1024;

/// A ring of texts. Cheap to clone. See the [module](self).
#[derive(Clone, Debug)]
pub struct Ring {
    store: Store,
    entity: Entity,
}

/// An item whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Visit {
    /// The item.
    pub item: String,
    /// The lap it is visited in; the first is 1.
    pub lap: u64,
}

impl Ring {
    /// The ring of this name.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a namespace or a name that cannot be used.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            entity: Keys::new(namespace, "ring")?.entity(name)?,
        })
    }

    /// Adds an item; how many the ring has now. The same text twice is visited twice a lap.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for more than 64 KiB; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the item may or may not have been added.
    pub async fn add(&self, item: &str) -> Result<u64> {
        observe::operation("ring.add", self.entity.namespace(), async {
            if item.len() > MAX_ITEM {
                return Err(Error::config(format!(
                    "an item has at most {MAX_ITEM} bytes"
                )));
            }
            ADD.on(&self.entity)
                .key()
                .arg(format!("{PREFIX}{item}"))
                .run(&self.store)
                .await
        })
        .await
    }

    /// Removes an item, each time it is in the ring; how many times it was.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn remove(&self, item: &str) -> Result<u64> {
        let call = REMOVE
            .on(&self.entity)
            .key()
            .part("laps")
            .arg(format!("{PREFIX}{item}"))
            .run(&self.store);
        observe::operation("ring.remove", self.entity.namespace(), call).await
    }

    /// The next item; `None` if the ring is empty.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the item's turn may have passed; it comes again in the next lap.
    pub async fn next(&self) -> Result<Option<Visit>> {
        let call = NEXT
            .on(&self.entity)
            .key()
            .part("laps")
            .run::<Vec<Value>>(&self.store);
        let reply = observe::operation("ring.next", self.entity.namespace(), call).await?;
        match reply.as_slice() {
            [] => Ok(None),
            [Value::BulkString(item), Value::Int(lap)] => {
                let text = String::from_utf8_lossy(item);
                Ok(Some(Visit {
                    item: text.strip_prefix(PREFIX).unwrap_or(&text).to_owned(),
                    lap: u64::try_from(*lap).unwrap_or(0),
                }))
            }
            _ => Err(Error::codec("the reply has an unexpected shape")),
        }
    }

    /// How many items the ring has.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn len(&self) -> Result<u64> {
        let length = redis::cmd("LLEN").arg(self.entity.key()).to_owned();
        let length: u64 = self.store.query(&length).await?;
        // One of them is the mark.
        Ok(length.saturating_sub(1))
    }
}
