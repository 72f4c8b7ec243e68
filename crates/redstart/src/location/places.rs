//! Positions of members, and who is near.
//!
//! # Promise
//!
//! - [`nearby`](Places::nearby) finds exactly the members whose distance on the sphere (haversine, radius
//!   6,372,797.56 m, as the server computes it) is within the radius, or that are in the box; across the antimeridian
//!   and at high latitudes too.
//! - With [`stale_after`](Places::stale_after) a member that was not put again in time is never returned: not by a
//!   search, not by its name. Stale members are removed by the calls that come by, a few hundred at a time; when all
//!   are stale, the keys expire.
//! - Coordinates that the server cannot hold are refused before the call: not finite, a longitude beyond ±180°, a
//!   latitude beyond ±85.05112878°.
//! - [`PrivatePlaces`] has no method that gives a position away: distances come rounded up, equal distances in
//!   the order of names, and the area of a search is rounded in the same way.
//!
//! # Not promised
//!
//! Positions are kept in 52 bits, to about half a metre. A box is measured as the server does: its width along the
//! parallel of each member. Rounded distances do not protect a member against somebody who asks from many points and
//! takes the averages; bound how often one may ask.
//!
//! # Keys and cost
//!
//! `<ns>:places:{<name>}` positions, `…:deadlines`. Every call is one round trip; a search costs O(log n + m) for the m
//! members in the area's cells. An area that holds a pole costs as much as all members of its latitudes, because Redis 7
//! misses some of them otherwise.
//!
//! While the store is down every call fails.
//!
//! Operations: `places.put`, `places.move`, `places.remove`, `places.look`, `places.nearby`.

use std::time::Duration;

use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::Script,
    store::Store,
};

static PUT: Script = Script::new("places.put", include_str!("places/put.lua"));
static REMOVE: Script = Script::new("places.remove", include_str!("places/remove.lua"));
static LOOK: Script = Script::new("places.look", include_str!("places/look.lua"));
static NEARBY: Script = Script::new("places.nearby", include_str!("places/nearby.lua"));

/// The radius of the earth that servers compute with, in metres.
pub const EARTH_RADIUS: f64 = 6_372_797.560_856;

/// A point on the earth that the store can hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    longitude: f64,
    latitude: f64,
}

impl Position {
    /// The largest latitude, north or south: where the Mercator projection is a square.
    pub const MAX_LATITUDE: f64 = 85.051_128_78;

    /// A point from degrees: longitude first, east and north positive.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a number that is not finite, a longitude beyond ±180, or a latitude
    /// beyond ±[`MAX_LATITUDE`](Self::MAX_LATITUDE).
    pub fn new(longitude: f64, latitude: f64) -> Result<Self> {
        if !(-180.0..=180.0).contains(&longitude) {
            return Err(Error::config("a longitude is between -180 and 180 degrees"));
        }
        if !(-Self::MAX_LATITUDE..=Self::MAX_LATITUDE).contains(&latitude) {
            return Err(Error::config(format!(
                "a latitude is between -{0} and {0} degrees",
                Self::MAX_LATITUDE
            )));
        }
        // The same meridian, but the server's cells end just before 180: what is stored at 180 itself falls
        // out of them, and searches miss it. The largest latitude has the same edge.
        let longitude = if longitude == 180.0 {
            -180.0
        } else {
            longitude
        };
        let latitude = latitude.min(Self::MAX_LATITUDE - 1e-9);
        Ok(Self {
            longitude,
            latitude,
        })
    }

    /// Degrees east, from -180 up to and without 180.
    pub fn longitude(self) -> f64 {
        self.longitude
    }

    /// Degrees north.
    pub fn latitude(self) -> f64 {
        self.latitude
    }

    /// The distance to another point in metres, as the server computes it.
    ///
    /// ```
    /// use redstart::location::places::Position;
    /// let (palermo, catania) = (Position::new(13.361389, 38.115556)?, Position::new(15.087269, 37.502669)?);
    /// assert!((palermo.distance(catania) - 166_274.0).abs() < 1.0);
    /// # Ok::<(), redstart::Error>(())
    /// ```
    pub fn distance(self, other: Position) -> f64 {
        let (a, b) = (self.latitude.to_radians(), other.latitude.to_radians());
        let u = ((b - a) / 2.0).sin();
        let v = ((other.longitude - self.longitude).to_radians() / 2.0).sin();
        let h = (u * u + a.cos() * b.cos() * v * v).min(1.0);
        2.0 * EARTH_RADIUS * h.sqrt().asin()
    }
}

/// Where a search begins.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Origin {
    /// At a member's position.
    Member(String),
    /// At a point.
    Point(Position),
}

impl From<&str> for Origin {
    fn from(member: &str) -> Self {
        Origin::Member(member.to_owned())
    }
}

impl From<&String> for Origin {
    fn from(member: &String) -> Self {
        Origin::Member(member.clone())
    }
}

impl From<Position> for Origin {
    fn from(point: Position) -> Self {
        Origin::Point(point)
    }
}

/// Where a search looks, around its origin; in metres.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Area {
    /// Everything within this distance.
    Radius(f64),
    /// Everything within half the width to the east and west, and half the height to the north and south.
    Box {
        /// From the west side to the east side.
        width: f64,
        /// From the south side to the north side.
        height: f64,
    },
}

impl Area {
    /// Half of the earth's circumference: nothing is farther away.
    const FARTHEST: f64 = EARTH_RADIUS * std::f64::consts::PI;

    fn check(self) -> Result<Self> {
        let fits = |length: f64| length.is_finite() && length > 0.0;
        let ok = match self {
            Area::Radius(radius) => fits(radius),
            Area::Box { width, height } => fits(width) && fits(height),
        };
        if !ok {
            return Err(Error::config(
                "the lengths of an area are positive, finite metres",
            ));
        }
        Ok(match self {
            Area::Radius(radius) => Area::Radius(radius.min(Self::FARTHEST)),
            Area::Box { width, height } => Area::Box {
                width: width.min(2.0 * Self::FARTHEST),
                height: height.min(2.0 * Self::FARTHEST),
            },
        })
    }

    fn rounded_up(self, step: f64) -> Self {
        match self {
            Area::Radius(radius) => Area::Radius(round_up(radius, step)),
            Area::Box { width, height } => Area::Box {
                width: 2.0 * round_up(width / 2.0, step),
                height: 2.0 * round_up(height / 2.0, step),
            },
        }
    }
}

fn round_up(length: f64, step: f64) -> f64 {
    (length / step).ceil().max(1.0) * step
}

/// A member that a search found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Nearby {
    /// The member.
    pub member: String,
    /// How far it is from the origin, in metres.
    pub distance: f64,
    /// Where it is.
    pub position: Position,
}

/// A member that a private search found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PrivateNearby {
    /// The member.
    pub member: String,
    /// It is at most this far away, in metres: a multiple of the step.
    pub within: f64,
}

/// Positions of members. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, location::{Places, places::{Area, Position}}};
/// let store = Store::connect("memory://").await?;
/// let couriers = Places::new(&store, "shop", "couriers")?.stale_after(Duration::from_secs(60))?;
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
#[derive(Clone, Debug)]
pub struct Places {
    store: Store,
    entity: Entity,
    life: Option<Duration>,
}

impl Places {
    /// The longest member in bytes.
    pub const MAX_MEMBER: usize = 512;
    /// The most members that one search returns.
    pub const MAX_FOUND: u32 = 10_000;

    /// The places called `name`.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            entity: Keys::new(namespace, "places")?.entity(name)?,
            life: None,
        })
    }

    /// Members leave when they were not put or moved for this long.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for less than a millisecond or more than a thousand years.
    pub fn stale_after(mut self, life: Duration) -> Result<Self> {
        const MAX: Duration = Duration::from_secs(1000 * 366 * 24 * 3600);
        if !(Duration::from_millis(1)..=MAX).contains(&life) {
            return Err(Error::config(
                "places become stale after a millisecond to a thousand years",
            ));
        }
        self.life = Some(life);
        Ok(self)
    }

    /// The same places, for callers who may learn no more than distances rounded up to `step` metres.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a step that is not between 1 and 1,000,000 metres.
    pub fn private(self, step: f64) -> Result<PrivatePlaces> {
        if !(1.0..=1_000_000.0).contains(&step) {
            return Err(Error::config(
                "distances are rounded to 1 to 1,000,000 metres",
            ));
        }
        Ok(PrivatePlaces { places: self, step })
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
    /// Dropped before it is done, the member is at its old position or the new one.
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
                .arg(self.life.map_or(0, |life| life.as_millis() as u64))
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
    /// Dropped before it is done, the member may or may not be gone.
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
            let rows: Vec<Option<(f64, f64, String)>> =
                call.arg(&members[..]).idempotent().run(&self.store).await?;
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

    /// Begins a search around a member or a point.
    pub fn nearby(&self, origin: impl Into<Origin>, area: Area) -> Search<'_> {
        Search {
            places: self,
            origin: origin.into(),
            area,
            limit: 100,
            exclude_self: false,
        }
    }
}

struct Seen {
    position: Position,
    geohash: String,
}

/// A search in the making.
#[derive(Clone, Debug)]
#[must_use = "a search does nothing until it is asked to find"]
pub struct Search<'a> {
    places: &'a Places,
    origin: Origin,
    area: Area,
    limit: u32,
    exclude_self: bool,
}

impl Search<'_> {
    /// The most members to return, 100 by default; the nearest are kept.
    pub fn limit(mut self, n: u32) -> Self {
        self.limit = n;
        self
    }

    /// Leaves the member out around whom the search is made.
    pub fn exclude_self(mut self) -> Self {
        self.exclude_self = true;
        self
    }

    /// Finds members, the nearest first. Empty also if the origin is a member without a position.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an area that is not positive and finite, a limit over
    /// [`Places::MAX_FOUND`], or an empty or long member; otherwise those of the [store](Store::query).
    pub async fn find(self) -> Result<Vec<Nearby>> {
        let area = self.area.check()?;
        if self.limit > Places::MAX_FOUND {
            return Err(Error::config(format!(
                "a search returns at most {} members",
                Places::MAX_FOUND
            )));
        }
        let mut call = NEARBY.on(&self.places.entity).key().part("deadlines");
        call = match &self.origin {
            Origin::Member(member) => {
                check_member(member)?;
                call.arg("member").arg(member).arg("")
            }
            Origin::Point(point) => call.arg("point").arg(point.longitude).arg(point.latitude),
        };
        call = match area {
            Area::Radius(radius) => call.arg("radius").arg(radius).arg(""),
            Area::Box { width, height } => call.arg("box").arg(width).arg(height),
        };
        let left_out = match (&self.origin, self.exclude_self) {
            (Origin::Member(member), true) => member,
            _ => "",
        };
        if self.limit == 0 {
            return Ok(Vec::new());
        }
        call = call.arg(self.limit).arg(left_out);
        observe::operation("places.nearby", self.places.entity.namespace(), async {
            let rows: Vec<(String, f64, f64, f64)> =
                call.idempotent().run(&self.places.store).await?;
            let found = rows
                .into_iter()
                .map(|(member, distance, longitude, latitude)| Nearby {
                    member,
                    distance,
                    position: Position {
                        longitude,
                        latitude,
                    },
                });
            Ok(found.collect())
        })
        .await
    }
}

/// Places of which only rounded distances are told. See [`Places::private`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, location::{Places, places::{Area, Position}}};
/// let store = Store::connect("memory://").await?;
/// let people = Places::new(&store, "app", "people")?.private(500.0)?;
///
/// people.put("ann", Position::new(13.361389, 38.115556)?).await?;
/// people.put("bob", Position::new(13.37, 38.12)?).await?;
/// let near = people.nearby("ann", Area::Radius(5_000.0), 10).await?;
/// assert_eq!((near[0].member.as_str(), near[0].within), ("bob", 1_000.0));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PrivatePlaces {
    places: Places,
    step: f64,
}

impl PrivatePlaces {
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
        Ok(exact.map(|distance| round_up(distance, self.step)))
    }

    /// The members nearest to a member, itself left out. The area is rounded up as distances are, because a search
    /// with a finely chosen radius would tell the exact distance.
    ///
    /// # Errors
    ///
    /// As [`Search::find`].
    pub async fn nearby(&self, member: &str, area: Area, limit: u32) -> Result<Vec<PrivateNearby>> {
        let area = area.check()?.rounded_up(self.step);
        let search = self.places.nearby(member, area).limit(limit).exclude_self();
        let mut found: Vec<PrivateNearby> = search
            .find()
            .await?
            .into_iter()
            .map(|near| PrivateNearby {
                member: near.member,
                within: round_up(near.distance, self.step),
            })
            .collect();
        // The order of equal distances would tell who is nearer.
        found.sort_by(|a, b| a.within.total_cmp(&b.within).then(a.member.cmp(&b.member)));
        Ok(found)
    }
}

fn check_member(member: &str) -> Result<()> {
    if member.is_empty() || member.len() > Places::MAX_MEMBER {
        return Err(Error::config(format!(
            "a member has 1 to {} bytes, not {}",
            Places::MAX_MEMBER,
            member.len()
        )));
    }
    Ok(())
}
