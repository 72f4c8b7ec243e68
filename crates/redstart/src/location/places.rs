//! Positions of members.

use std::time::Duration;

use super::{Area, Origin, Position, PrivatePlaces, Search, check_member};
use crate::{
    duration::millis,
    error::{Error, Result},
    key::{Entity, Keys, Layout},
    observe,
    script::Script,
    store::Store,
};

pub(super) static PUT: Script = Script::new(
    "places.put",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("places/put.lua")
    ),
);
pub(super) static REMOVE: Script = Script::new(
    "places.remove",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("places/remove.lua")
    ),
);
pub(super) static LOOK: Script = Script::new(
    "places.look",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("places/look.lua")
    ),
);

/// Positions of members, and who is near.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, location::{Area, Places, Position}};
/// let store = Store::connect("memory://").await?;
/// let couriers = Places::builder(&store, "shop", "couriers").stale_after(Duration::from_secs(60)).build()?;
///
/// couriers.put("ann", Position::new(13.361389, 38.115556)?).await?;
/// couriers.put("bob", Position::new(13.37, 38.12)?).await?;
/// couriers.put("cid", Position::new(15.087269, 37.502669)?).await?;
///
/// let near = couriers.nearby("ann", Area::Radius(5_000.0)).limit(10).exclude_self().find().await?;
/// assert_eq!(near[0].member, "bob");
/// assert_eq!(near.len(), 1);
///
/// store.advance(Duration::from_secs(60))?;
/// assert_eq!(couriers.position("ann").await?, None);
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - [`nearby`](Self::nearby) finds exactly the members whose distance on the sphere (haversine, radius
///   6,372,797.56 m, as the server computes it) is within the radius, or that are in the box; also across the
///   antimeridian and at high latitudes.
/// - With [`stale_after`](PlacesBuilder::stale_after) a member that was not put again in time is never returned,
///   neither by a search nor by name. Calls remove stale members, a hundred at a time; when all members are
///   stale, the keys expire.
/// - Coordinates that the server cannot store are refused before the call: not finite, a longitude beyond ±180°, a
///   latitude beyond ±85.05112878°.
///
/// # Limits
///
/// Positions are stored in 52 bits, to about half a metre. A box is measured as the server does: its width along the
/// parallel of each member. Two keys hold the positions and their deadlines; on a server that evicts keys, use
/// `noeviction` or a `volatile-*` policy, because stale members return if only their deadlines are evicted.
///
/// # Keys
///
/// `<ns>:places:{<name>}` for the positions, `…:deadlines`.
///
/// # Round trips
///
/// One per call. A search costs O(log n + m) for the m members in the area's cells. An area that contains a pole costs
/// as much as all members of its latitudes, because Redis 7 misses some of them otherwise. That is about 0.3 µs of the
/// server's time for each of these members, whatever the limit of the search: choose areas with some thousand members.
///
/// # While the store is down
///
/// Every call fails.
///
/// # Metrics
///
/// Operations: `places.put`, `places.move`, `places.remove`, `places.look`, `places.nearby`.
#[derive(Clone, Debug)]
pub struct Places {
    pub(super) store: Store,
    pub(super) entity: Entity,
    stale_after: Option<Duration>,
}

/// Settings of [`Places`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct PlacesBuilder {
    store: Store,
    namespace: String,
    name: String,
    stale_after: Option<Duration>,
    layout: Option<Layout>,
}

impl PlacesBuilder {
    /// Members disappear when they were not put or moved for this long, at most a century. By default they stay.
    pub fn stale_after(mut self, time: Duration) -> Self {
        self.stale_after = Some(time);
        self
    }

    /// Uses a key that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Builds the places.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name, or if members become stale after zero time.
    pub fn build(self) -> Result<Places> {
        if self.stale_after == Some(Duration::ZERO) {
            return Err(Error::config("stale_after must be longer than zero"));
        }
        let mut keys = Keys::new(&self.namespace, "places")?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(Places {
            store: self.store,
            entity: keys.entity(&self.name)?,
            stale_after: self.stale_after,
        })
    }
}

impl Places {
    /// The longest member in bytes.
    pub const MAX_MEMBER: usize = 512;
    /// The most members that one search returns.
    pub const MAX_FOUND: u32 = 10_000;

    /// Builds the places `name`.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> PlacesBuilder {
        PlacesBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            stale_after: None,
            layout: None,
        }
    }

    /// The places `name` with default settings.
    ///
    /// # Errors
    ///
    /// As [`PlacesBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// The same places, for callers who may learn no more than distances rounded up to `step` metres.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a step that is not between 1 and 1,000,000 metres.
    pub fn private(self, step: f64) -> Result<PrivatePlaces> {
        PrivatePlaces::new(self, step)
    }

    /// Sets a member's position; `true` if it had none.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or long member; otherwise those of the
    /// [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the member is at its old position or at the new one.
    pub async fn put(&self, member: &str, position: Position) -> Result<bool> {
        Ok(self.set("places.put", member, position, "any").await? == 1)
    }

    /// Moves a member that has a position; `false`, and nothing is written, if it has none.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    ///
    /// # Cancel safety
    ///
    /// As [`put`](Self::put).
    pub async fn move_to(&self, member: &str, position: Position) -> Result<bool> {
        Ok(self.set("places.move", member, position, "known").await? == 0)
    }

    async fn set(
        &self,
        operation: &'static str,
        member: &str,
        position: Position,
        who: &str,
    ) -> Result<i8> {
        check_member(member)?;
        observe::operation(operation, self.entity.namespace(), async {
            PUT.on(&self.entity)
                .key()
                .part("deadlines")
                .arg(member)
                .arg(position.longitude)
                .arg(position.latitude)
                .arg(self.stale_after.map_or(0, millis))
                .arg(who)
                .run(&self.store)
                .await
        })
        .await
    }

    /// Removes a member; `false` if it had no position.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the member may or may not be removed.
    pub async fn remove(&self, member: &str) -> Result<bool> {
        check_member(member)?;
        observe::operation("places.remove", self.entity.namespace(), async {
            let call = REMOVE.on(&self.entity).key().part("deadlines");
            call.arg(member).run(&self.store).await
        })
        .await
    }

    async fn look<const N: usize>(&self, members: [&str; N]) -> Result<[Option<Seen>; N]> {
        for member in members {
            check_member(member)?;
        }
        observe::operation("places.look", self.entity.namespace(), async {
            let call = LOOK.on(&self.entity).key().part("deadlines");
            let rows: Vec<Option<(f64, f64, String)>> = call
                .arg(&members[..])
                .idempotent()
                .run(&self.store.stale_reads())
                .await?;
            let mut rows = rows.into_iter();
            Ok(std::array::from_fn(|_| {
                let (longitude, latitude, geohash) = rows.next().flatten()?;
                Some(Seen {
                    position: Position {
                        longitude,
                        latitude,
                    },
                    geohash,
                })
            }))
        })
        .await
    }

    /// A member's position, to about half a metre; `None` if it has none.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    pub async fn position(&self, member: &str) -> Result<Option<Position>> {
        let [seen] = self.look([member]).await?;
        Ok(seen.map(|seen| seen.position))
    }

    /// A member's geohash of 11 characters; `None` if it has no position.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    pub async fn geohash(&self, member: &str) -> Result<Option<String>> {
        let [seen] = self.look([member]).await?;
        Ok(seen.map(|seen| seen.geohash))
    }

    /// The distance between two members in metres; `None` if one of them has no position.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    pub async fn distance(&self, from: &str, to: &str) -> Result<Option<f64>> {
        let [from, to] = self.look([from, to]).await?;
        Ok(from
            .zip(to)
            .map(|(from, to)| from.position.distance(to.position)))
    }

    /// Starts a search around a member or a point.
    pub fn nearby(&self, origin: impl Into<Origin>, area: Area) -> Search<'_> {
        Search::new(self, origin.into(), area)
    }
}

struct Seen {
    position: Position,
    geohash: String,
}
