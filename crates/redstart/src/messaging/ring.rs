//! Items that many workers visit in rounds.

use redis::Value;

use crate::{
    error::{Error, Result},
    key::{Entity, Layout},
    observe,
    script::Script,
    store::Store,
};

pub(super) static ADD: Script = Script::new("ring.add", include_str!("ring/add.lua"));
pub(super) static NEXT: Script = Script::new("ring.next", include_str!("ring/next.lua"));
pub(super) static REMOVE: Script = Script::new("ring.remove", include_str!("ring/remove.lua"));

/// Distinguishes items from the mark.
const PREFIX: &str = "i:";
const MAX_ITEM: usize = 64 * 1024;

/// A ring of texts that many workers visit in rounds. Cheap to clone.
///
/// For what must be looked at again and again: feeds to poll, hosts to check. Each [`next`](Self::next) returns the
/// next item and moves on, in one step: no two workers get the same item of one lap, and no item is skipped. A mark in
/// the ring counts the laps. An item that is added is visited from the next lap on.
///
/// # Promises
///
/// An item stays in the ring whatever happens to the worker that visits it: nothing is lost, and a visit that failed is
/// repeated in the next lap.
///
/// # Limits
///
/// There is no pace; combine it with a limiter. Removing an item goes over the whole ring, about 10 µs of the server's time for
/// each 1,000 items: a ring of 100,000 takes a millisecond.
///
/// # Keys
///
/// `<namespace>:ring:{<name>}` (list) and `…:laps` (number).
///
/// # Round trips
///
/// One each; `next` is O(1), `remove` O(n).
///
/// # While the store is down
///
/// Calls fail.
///
/// # Metrics
///
/// Operations `ring.add`, `ring.next`, `ring.remove`.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use redstart::{Store, messaging::Ring};
/// let store = Store::connect("memory://").await?;
/// let ring = Ring::new(&store, "shop", "feeds")?;
/// ring.add("a").await?;
/// ring.add("b").await?;
/// let mut visits = Vec::new();
/// for _ in 0..4 {
///     let visit = ring.next().await?.unwrap();
///     visits.push((visit.item, visit.lap));
/// }
/// let expected = [("a", 1), ("b", 1), ("a", 2), ("b", 2)];
/// assert_eq!(visits, expected.map(|(item, lap)| (item.to_owned(), lap)));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Ring {
    store: Store,
    entity: Entity,
}

/// Settings of a [`Ring`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct RingBuilder {
    store: Store,
    namespace: String,
    name: String,
    layout: Option<Layout>,
}

impl RingBuilder {
    /// Uses the application's own keys instead of the [usual ones](crate::key).
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// The ring. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name.
    pub fn build(self) -> Result<Ring> {
        Ok(Ring {
            entity: super::entity("ring", &self.namespace, &self.name, self.layout)?,
            store: self.store,
        })
    }
}

/// The next item of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Visit {
    /// The item.
    pub item: String,
    /// The lap it is visited in; the first is 1.
    pub lap: u64,
}

impl Ring {
    /// A ring with default settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Starts a ring's settings, from the defaults.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> RingBuilder {
        RingBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            layout: None,
        }
    }

    /// Adds an item; how many the ring has now. A text that was added twice is visited twice per lap.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for more than 64 KiB; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, the item may or may not have been added.
    pub async fn add(&self, item: &str) -> Result<u64> {
        observe::operation("ring.add", self.entity.namespace(), async {
            if item.len() > MAX_ITEM {
                return Err(Error::config(format!(
                    "an item must have at most {MAX_ITEM} bytes"
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

    /// Removes an item, every time that it is in the ring; how many times it was.
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
    /// If the future is dropped early, the item's turn may have passed; it comes again in the next lap.
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
            _ => Err(Error::codec("unexpected shape of the reply")),
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
