//! Points on the earth.

use crate::error::{Error, Result};

/// The radius of the earth that servers compute with, in metres.
pub(super) const EARTH_RADIUS: f64 = 6_372_797.560_856;

/// A point on the earth that the store can hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    pub(super) longitude: f64,
    pub(super) latitude: f64,
}

impl Position {
    /// The largest latitude, north or south: where the Mercator map becomes a square.
    pub const MAX_LATITUDE: f64 = 85.051_128_78;

    /// A point from degrees: longitude first, east and north positive.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a number that is not finite, a longitude beyond ±180, or a latitude
    /// beyond ±[`MAX_LATITUDE`](Self::MAX_LATITUDE).
    pub fn new(longitude: f64, latitude: f64) -> Result<Self> {
        if !(-180.0..=180.0).contains(&longitude) {
            return Err(Error::config(
                "a longitude must be between -180 and 180 degrees",
            ));
        }
        if !(-Self::MAX_LATITUDE..=Self::MAX_LATITUDE).contains(&latitude) {
            return Err(Error::config(format!(
                "a latitude must be between -{0} and {0} degrees",
                Self::MAX_LATITUDE
            )));
        }
        // 180 and -180 are the same meridian, but the server's cells end just before 180: searches miss what is
        // stored at exactly 180. The largest latitude has the same edge.
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

    /// Degrees east, from -180 up to but excluding 180.
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
    /// use redstart::location::Position;
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
