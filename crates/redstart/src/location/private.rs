//! Places that reveal rounded distances only.

use super::{Area, Places, Position};
use crate::error::{Error, Result};

/// A member that a private search found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PrivateNearby {
    /// The member.
    pub member: String,
    /// It is at most this far away, in metres: a multiple of the step.
    pub within: f64,
}

/// Places that reveal rounded distances only. See [`Places::private`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, location::{Places, Position}};
/// let store = Store::connect("memory://").await?;
/// let people = Places::new(&store, "app", "people")?.private(500.0)?;
///
/// people.put("ann", Position::new(13.361389, 38.115556)?).await?;
/// people.put("bob", Position::new(13.37, 38.12)?).await?;
/// let near = people.nearby("ann", 5_000.0, 10).await?;
/// assert_eq!((near[0].member.as_str(), near[0].within), ("bob", 1_000.0));
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// Every answer is a function of the distances rounded up to the step and of the members' names. A caller who varies
/// radius and limit learns no more than those: the radius is rounded up in the same way, members at equal rounded
/// distances are ordered by name, and the limit cuts that order. There is no search in a box, because it would reveal
/// the direction.
///
/// # Limits
///
/// Rounded distances do not protect a member against a caller that asks from many positions of its own and intersects
/// the circles; limit how often a caller may ask and move. If more than [`Places::MAX_FOUND`] members are within the
/// same step, where the limit cuts, that step is left out: choose a smaller step.
#[derive(Clone, Debug)]
pub struct PrivatePlaces {
    places: Places,
    step: f64,
}

impl PrivatePlaces {
    pub(super) fn new(places: Places, step: f64) -> Result<Self> {
        if !(1.0..=1_000_000.0).contains(&step) {
            return Err(Error::config(
                "distances must be rounded to between 1 and 1,000,000 metres",
            ));
        }
        Ok(Self { places, step })
    }

    /// Sets a member's position; `true` if it had none.
    ///
    /// # Errors
    ///
    /// As [`Places::put`].
    ///
    /// # Cancel safety
    ///
    /// As [`Places::put`].
    pub async fn put(&self, member: &str, position: Position) -> Result<bool> {
        self.places.put(member, position).await
    }

    /// Removes a member; `false` if it had no position.
    ///
    /// # Errors
    ///
    /// As [`Places::put`].
    ///
    /// # Cancel safety
    ///
    /// As [`Places::remove`].
    pub async fn remove(&self, member: &str) -> Result<bool> {
        self.places.remove(member).await
    }

    /// The distance between two members, rounded up; `None` if one of them has no position.
    ///
    /// # Errors
    ///
    /// As [`Places::put`].
    pub async fn distance(&self, from: &str, to: &str) -> Result<Option<f64>> {
        let exact = self.places.distance(from, to).await?;
        Ok(exact.map(|distance| self.round_up(distance)))
    }

    /// The members nearest to a member, itself excluded, within a radius in metres that is rounded up to the step.
    ///
    /// # Errors
    ///
    /// As [`Search::find`](super::Search::find).
    pub async fn nearby(
        &self,
        member: &str,
        radius: f64,
        limit: u32,
    ) -> Result<Vec<PrivateNearby>> {
        // Beyond the farthest point all radii are the same; rounding an infinite one would not be refused.
        Area::Radius(radius).check()?;
        let radius = self.round_up(radius.min(Area::FARTHEST));
        let search = self.places.nearby(member, Area::Radius(radius));
        let found = search
            .limit(limit)
            .exclude_self()
            .rounded(self.step)
            .find()
            .await?;
        Ok(found
            .into_iter()
            .map(|near| PrivateNearby {
                member: near.member,
                within: self.round_up(near.distance),
            })
            .collect())
    }

    fn round_up(&self, length: f64) -> f64 {
        (length / self.step).ceil().max(1.0) * self.step
    }
}
