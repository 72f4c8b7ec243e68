//! Drawing members by weight, while weights change.

use super::check_member;
use crate::{
    error::{Error, Result},
    key::{Entity, Keys, Layout},
    observe,
    script::{Call, Script},
    store::Store,
    token::token,
};

pub(super) static SET: Script = Script::new("weighted.set", include_str!("weighted/set.lua"));
pub(super) static PICK: Script = Script::new("weighted.pick", include_str!("weighted/pick.lua"));

/// Whether a member may be drawn more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// Each draw is from all members.
    With,
    /// A member that was drawn is out for the rest of the call.
    Without,
}

/// Members that are drawn by weight, while weights change.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, ranking::{Replacement, WeightedChoice}};
/// let store = Store::connect("memory://").await?;
/// let loot = WeightedChoice::new(&store, "game", "loot")?;
///
/// loot.set("common", 90).await?;
/// loot.set("rare", 10).await?;
/// assert!(loot.pick().await?.is_some());
///
/// let all = loot.pick_many(5, Replacement::Without).await?;
/// assert_eq!(all.len(), 2); // there are only two
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - A member is drawn with a probability of exactly its weight over the sum of all weights.
/// - Setting a weight, removing a member and a draw touch O(log n) numbers: the weights are the leaves of a tree of
///   sums (a Fenwick tree), kept in a hash.
/// - [`pick_many`](Self::pick_many) without replacement draws each member at most once, as if it were removed before the
///   next draw, and changes nothing.
/// - Weights are whole numbers, so the sums are exact however often they change.
///
/// # Limits
///
/// A draw whose reply was lost is drawn again: draws change nothing. The randomness is not meant for secrets.
///
/// # Keys
///
/// `<ns>:weighted:{<name>}:…` with the parts `member` (place → name), `place` (name → place), `weight`, `tree` (sums),
/// `meta` and `free` (places to use again).
///
/// # Round trips
///
/// One per call. A draw takes the server about 15 µs, so the most that
/// [`pick_many`](Self::pick_many) may draw take 15 ms.
///
/// # While the store is down
///
/// Every call fails.
///
/// # Metrics
///
/// Operations: `weighted.set`, `weighted.remove`, `weighted.pick`, `weighted.total`.
#[derive(Clone, Debug)]
pub struct WeightedChoice {
    store: Store,
    entity: Entity,
}

/// Settings of [`WeightedChoice`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct WeightedChoiceBuilder {
    store: Store,
    namespace: String,
    name: String,
    layout: Option<Layout>,
}

impl WeightedChoiceBuilder {
    /// Uses a key that the application chose, as the hash tag of the parts.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Builds the choice.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name.
    pub fn build(self) -> Result<WeightedChoice> {
        let mut keys = Keys::new(&self.namespace, "weighted")?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(WeightedChoice {
            store: self.store,
            entity: keys.entity(&self.name)?,
        })
    }
}

impl WeightedChoice {
    /// The largest weight.
    pub const MAX_WEIGHT: u64 = 1 << 40;
    /// The most draws of one call.
    pub const MAX_PICKS: u32 = 1000;

    /// Builds the choice `name`.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> WeightedChoiceBuilder {
        WeightedChoiceBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            layout: None,
        }
    }

    /// The choice `name` with default settings.
    ///
    /// # Errors
    ///
    /// As [`WeightedChoiceBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Sets a member's weight; returns the one it had.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or long member, a weight of 0 or over
    /// [`MAX_WEIGHT`](Self::MAX_WEIGHT), or if the sum of all weights would pass 2⁵⁰; otherwise those of the
    /// [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the member has the old weight or the new one.
    pub async fn set(&self, member: &str, weight: u64) -> Result<Option<u64>> {
        if !(1..=Self::MAX_WEIGHT).contains(&weight) {
            return Err(Error::config(format!(
                "a weight must be between 1 and {}, not {weight}",
                Self::MAX_WEIGHT
            )));
        }
        self.change(member, weight, "weighted.set").await
    }

    /// Removes a member; returns the weight it had.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or long member; otherwise those of the
    /// [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the member may or may not be removed.
    pub async fn remove(&self, member: &str) -> Result<Option<u64>> {
        self.change(member, 0, "weighted.remove").await
    }

    async fn change(
        &self,
        member: &str,
        weight: u64,
        operation: &'static str,
    ) -> Result<Option<u64>> {
        check_member(member)?;
        observe::operation(operation, self.entity.namespace(), async {
            let call = self.parts(SET.on(&self.entity)).arg(member).arg(weight);
            match call.run::<Option<i64>>(&self.store).await? {
                Some(-1) => Err(Error::config("the sum of all weights would exceed 2^50")),
                old => Ok(old.and_then(|old| u64::try_from(old).ok())),
            }
        })
        .await
    }

    /// Draws one member; `None` if there are no members.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn pick(&self) -> Result<Option<String>> {
        Ok(self.pick_many(1, Replacement::With).await?.pop())
    }

    /// Draws `n` members in one step.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if `n` is over [`MAX_PICKS`](Self::MAX_PICKS); otherwise those of the
    /// [store](Store::query).
    pub async fn pick_many(&self, n: u32, replacement: Replacement) -> Result<Vec<String>> {
        if n > Self::MAX_PICKS {
            return Err(Error::config(format!(
                "at most {} draws per call",
                Self::MAX_PICKS
            )));
        }
        if n == 0 {
            return Ok(Vec::new());
        }
        observe::operation("weighted.pick", self.entity.namespace(), async {
            let call = self.parts(PICK.on(&self.entity)).arg(match replacement {
                Replacement::With => "with",
                Replacement::Without => "without",
            });
            call.arg(n).arg(token()).idempotent().run(&self.store).await
        })
        .await
    }

    /// How many members there are and the sum of their weights.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn total(&self) -> Result<(u64, u64)> {
        observe::operation("weighted.total", self.entity.namespace(), async {
            let mut cmd = redis::cmd("HMGET");
            cmd.arg(self.entity.part("meta")).arg("count").arg("total");
            let (count, total): (Option<u64>, Option<u64>) = self.store.query(&cmd).await?;
            Ok((count.unwrap_or(0), total.unwrap_or(0)))
        })
        .await
    }

    fn parts<'a>(&self, call: Call<'a>) -> Call<'a> {
        call.part("member")
            .part("place")
            .part("weight")
            .part("tree")
            .part("meta")
            .part("free")
    }
}
