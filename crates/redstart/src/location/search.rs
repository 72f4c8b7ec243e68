//! A search around a member or a point.

use super::{Area, Origin, Places, Position, check_member};
use crate::{
    error::{Error, Result},
    observe,
    script::Script,
};

pub(super) static NEARBY: Script = Script::new(
    "places.nearby",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/smaller.lua"),
        include_str!("places/nearby.lua")
    ),
);

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

/// A search that is being built; see [`Places::nearby`].
#[derive(Clone, Debug)]
#[must_use = "a search does nothing until `find` is called"]
pub struct Search<'a> {
    places: &'a Places,
    origin: Origin,
    area: Area,
    limit: u32,
    exclude_self: bool,
    /// Distances are told apart only in multiples of this; 0 for exactly.
    step: f64,
}

impl<'a> Search<'a> {
    pub(super) fn new(places: &'a Places, origin: Origin, area: Area) -> Self {
        Self {
            places,
            origin,
            area,
            limit: 100,
            exclude_self: false,
            step: 0.0,
        }
    }

    /// The most members to return, 100 by default; the nearest are kept.
    pub fn limit(mut self, n: u32) -> Self {
        self.limit = n;
        self
    }

    /// Excludes the member around which the search is made.
    pub fn exclude_self(mut self) -> Self {
        self.exclude_self = true;
        self
    }

    /// Orders members by distance rounded up to `step`, then by name, and applies the limit in that order.
    pub(super) fn rounded(mut self, step: f64) -> Self {
        self.step = step;
        self
    }

    /// Finds members, the nearest first. Empty also if the origin is a member without a position.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an area that is not positive and finite, a limit over
    /// [`Places::MAX_FOUND`], or an empty or long member; otherwise those of the [store](crate::Store::query).
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
        let excluded = match (&self.origin, self.exclude_self) {
            (Origin::Member(member), true) => member,
            _ => "",
        };
        if self.limit == 0 {
            return Ok(Vec::new());
        }
        call = call
            .arg(self.limit)
            .arg(excluded)
            .arg(self.step)
            .arg(Places::MAX_FOUND);
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
