//! Where a search starts, and where it looks.

use super::position::{EARTH_RADIUS, Position};
use crate::error::{Error, Result};

/// Where a search starts.
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

/// Where a search looks, around its origin; lengths are in metres.
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
    /// Half of the earth's circumference: the largest possible distance.
    pub(super) const FARTHEST: f64 = EARTH_RADIUS * std::f64::consts::PI;

    pub(super) fn check(self) -> Result<Self> {
        let fits = |length: f64| length.is_finite() && length > 0.0;
        let ok = match self {
            Area::Radius(radius) => fits(radius),
            Area::Box { width, height } => fits(width) && fits(height),
        };
        if !ok {
            return Err(Error::config(
                "the lengths of an area must be positive and finite",
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
}
