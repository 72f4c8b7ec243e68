//! Positions on the earth as scores of a sorted set, and searches among them.
//!
//! A score is a 52-bit geohash: 26 bits each of latitude and longitude, interleaved. A search looks
//! at the cell of the right size around its centre and at that cell's neighbours, in a fixed order
//! which is also the order of unsorted results.

use crate::number;

const LONGITUDE: (f64, f64) = (-180.0, 180.0);
const LATITUDE: (f64, f64) = (-85.051_128_78, 85.051_128_78);
/// The mean radius of the earth that Redis computes with.
const EARTH: f64 = 6_372_797.560_856;
const MERCATOR_MAX: f64 = 20_037_726.37;
const STEPS: u32 = 26;

/// A place in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) longitude: f64,
    pub(crate) latitude: f64,
}

impl Point {
    pub(crate) fn is_valid(self) -> bool {
        (LONGITUDE.0..=LONGITUDE.1).contains(&self.longitude)
            && (LATITUDE.0..=LATITUDE.1).contains(&self.latitude)
    }

    pub(crate) fn score(self) -> u64 {
        Cell::of(self, STEPS, LONGITUDE, LATITUDE).bits()
    }

    pub(crate) fn from_score(score: f64) -> Point {
        let area = Cell::from_bits(number::truncate_unsigned(score), STEPS).area();
        let middle = |(min, max): (f64, f64)| (min + max) / 2.0;
        Point {
            longitude: middle(area.longitude).clamp(LONGITUDE.0, LONGITUDE.1),
            latitude: middle(area.latitude).clamp(LATITUDE.0, LATITUDE.1),
        }
    }

    /// The geohash as other systems write it: they let latitude range to the poles.
    pub(crate) fn text(self) -> String {
        const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
        let bits = Cell::of(self, STEPS, LONGITUDE, (-90.0, 90.0)).bits();
        let mut text = String::with_capacity(11);
        for at in 1..=10 {
            text.push(ALPHABET[(bits >> (52 - at * 5)) as usize & 31] as char);
        }
        // There are only 52 bits: two bits of the last letter are missing.
        text.push('0');
        text
    }

    /// In metres, along a great circle.
    pub(crate) fn distance(self, other: Point) -> f64 {
        let (lat1, lon1) = (radians(self.latitude), radians(self.longitude));
        let (lat2, lon2) = (radians(other.latitude), radians(other.longitude));
        let u = ((lat2 - lat1) / 2.0).sin();
        let v = ((lon2 - lon1) / 2.0).sin();
        2.0 * EARTH * (u * u + lat1.cos() * lat2.cos() * v * v).sqrt().asin()
    }
}

fn radians(degrees: f64) -> f64 {
    degrees * (std::f64::consts::PI / 180.0)
}

fn degrees(radians: f64) -> f64 {
    radians / (std::f64::consts::PI / 180.0)
}

/// A rectangle of the grid that halves both directions `step` times.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    step: u32,
    x: u32,
    y: u32,
}

struct Area {
    longitude: (f64, f64),
    latitude: (f64, f64),
}

impl Cell {
    fn of(point: Point, step: u32, longitude: (f64, f64), latitude: (f64, f64)) -> Cell {
        let part = |value: f64, (min, max): (f64, f64)| {
            ((value - min) / (max - min) * (1u64 << step) as f64) as u32
        };
        Cell {
            step,
            x: part(point.longitude, longitude),
            y: part(point.latitude, latitude),
        }
    }

    fn from_bits(bits: u64, step: u32) -> Cell {
        Cell {
            step,
            x: squeeze(bits >> 1),
            y: squeeze(bits),
        }
    }

    /// Longitude in the odd bits, latitude in the even ones.
    fn bits(self) -> u64 {
        spread(self.x) << 1 | spread(self.y)
    }

    fn area(self) -> Area {
        let part = |at: u32, (min, max): (f64, f64)| {
            let cells = (1u64 << self.step) as f64;
            let edge = |at: f64| min + (at / cells) * (max - min);
            (edge(f64::from(at)), edge(f64::from(at) + 1.0))
        };
        Area {
            longitude: part(self.x, LONGITUDE),
            latitude: part(self.y, LATITUDE),
        }
    }

    /// The cell that is this many cells to the east and north; the grid wraps around. A point on the last edge is in
    /// a cell beyond the grid, and only a move brings it back.
    fn moved(self, east: i32, north: i32) -> Cell {
        let mask = ((1u64 << self.step) - 1) as u32;
        let moved = |at: u32, by: i32| match by {
            0 => at,
            by => at.wrapping_add_signed(by) & mask,
        };
        Cell {
            step: self.step,
            x: moved(self.x, east),
            y: moved(self.y, north),
        }
    }

    /// The scores of the points in it: from the first one to below the second.
    fn scores(self) -> (f64, f64) {
        let shift = 52 - self.step * 2;
        let bits = self.bits();
        ((bits << shift) as f64, ((bits + 1) << shift) as f64)
    }
}

/// Puts a zero before each bit.
fn spread(value: u32) -> u64 {
    let mut bits = u64::from(value);
    bits = (bits | bits << 16) & 0x0000_FFFF_0000_FFFF;
    bits = (bits | bits << 8) & 0x00FF_00FF_00FF_00FF;
    bits = (bits | bits << 4) & 0x0F0F_0F0F_0F0F_0F0F;
    bits = (bits | bits << 2) & 0x3333_3333_3333_3333;
    (bits | bits << 1) & 0x5555_5555_5555_5555
}

/// Drops every other bit.
fn squeeze(bits: u64) -> u32 {
    let mut bits = bits & 0x5555_5555_5555_5555;
    bits = (bits | bits >> 1) & 0x3333_3333_3333_3333;
    bits = (bits | bits >> 2) & 0x0F0F_0F0F_0F0F_0F0F;
    bits = (bits | bits >> 4) & 0x00FF_00FF_00FF_00FF;
    bits = (bits | bits >> 8) & 0x0000_FFFF_0000_FFFF;
    (bits | bits >> 16) as u32
}

/// What a search covers, in the caller's unit.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Circle {
        radius: f64,
    },
    Box {
        width: f64,
        height: f64,
    },
    /// On the flat map of degrees: an edge does not follow a great circle, and none crosses the date line.
    Polygon {
        corners: Vec<Point>,
    },
}

/// The middle of these points on the globe, to which each pulls alike.
pub(crate) fn middle(corners: &[Point]) -> Point {
    let (mut x, mut y, mut z) = (0.0, 0.0, 0.0);
    for corner in corners {
        let (longitude, latitude) = (radians(corner.longitude), radians(corner.latitude));
        x += latitude.cos() * longitude.cos();
        y += latitude.cos() * longitude.sin();
        z += latitude.sin();
    }
    Point {
        longitude: degrees(y.atan2(x)),
        latitude: degrees(z.atan2((x * x + y * y).sqrt())),
    }
}

/// Whether a point is inside: a ray from it crosses the edges an odd number of times.
fn is_inside(corners: &[Point], point: Point) -> bool {
    let mut inside = false;
    let before = corners.iter().cycle().skip(corners.len().saturating_sub(1));
    for (a, b) in corners.iter().zip(before) {
        let spans = (a.latitude > point.latitude) != (b.latitude > point.latitude);
        inside ^= spans
            && point.longitude
                < (b.longitude - a.longitude) * (point.latitude - a.latitude)
                    / (b.latitude - a.latitude)
                    + a.longitude;
    }
    inside
}

/// A rectangle on the map.
struct Bounds {
    west: f64,
    south: f64,
    east: f64,
    north: f64,
}

/// A search around a point.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    pub(crate) center: Point,
    pub(crate) shape: Shape,
    /// Metres in the caller's unit.
    pub(crate) unit: f64,
}

impl Search {
    /// The distance in metres of a point that the search covers.
    pub(crate) fn covers(&self, point: Point) -> Option<f64> {
        let distance = self.center.distance(point);
        let inside = match &self.shape {
            Shape::Circle { radius } => distance <= radius * self.unit,
            Shape::Polygon { corners } => is_inside(corners, point),
            Shape::Box { width, height } => {
                let across = Point {
                    longitude: self.center.longitude,
                    ..point
                };
                let along = Point {
                    latitude: self.center.latitude,
                    ..point
                };
                point.distance(across) <= width * self.unit / 2.0
                    && point.distance(along) <= height * self.unit / 2.0
            }
        };
        inside.then_some(distance)
    }

    /// The part of the map that is covered, and how far from the centre that reaches, in metres.
    fn bounds(&self) -> (Bounds, f64) {
        let Point {
            longitude,
            latitude,
        } = self.center;
        let (width, height, radius) = match &self.shape {
            Shape::Circle { radius } => (*radius, *radius, *radius),
            Shape::Box { width, height } => {
                let (w, h) = (width / 2.0, height / 2.0);
                (w, h, (w * w + h * h).sqrt())
            }
            Shape::Polygon { corners } => return self.bounds_of(corners),
        };
        let north_south = degrees(self.unit * height / EARTH);
        // The side nearer to the pole is the wider one in degrees.
        let outer = if latitude < 0.0 {
            latitude - north_south
        } else {
            latitude + north_south
        };
        let east_west = degrees(self.unit * width / EARTH / radians(outer).cos());
        let bounds = Bounds {
            west: longitude - east_west,
            south: latitude - north_south,
            east: longitude + east_west,
            north: latitude + north_south,
        };
        (bounds, radius * self.unit)
    }

    fn bounds_of(&self, corners: &[Point]) -> (Bounds, f64) {
        let mut bounds = Bounds {
            west: LONGITUDE.1,
            south: LATITUDE.1,
            east: LONGITUDE.0,
            north: LATITUDE.0,
        };
        for corner in corners {
            bounds.west = bounds.west.min(corner.longitude);
            bounds.south = bounds.south.min(corner.latitude);
            bounds.east = bounds.east.max(corner.longitude);
            bounds.north = bounds.north.max(corner.latitude);
        }
        let mut radius: f64 = 0.0;
        for longitude in [bounds.west, bounds.east] {
            for latitude in [bounds.south, bounds.north] {
                let edge = Point {
                    longitude,
                    latitude,
                };
                radius = radius.max(self.center.distance(edge));
            }
        }
        (bounds, radius)
    }

    /// The ranges of scores to look at, in order.
    pub(crate) fn ranges(&self) -> Vec<(f64, f64)> {
        let (bounds, radius) = self.bounds();
        let Bounds {
            west,
            south,
            east,
            north,
        } = bounds;
        let mut step = steps_for(radius, self.center.latitude);
        let mut cell = Cell::of(self.center, step, LONGITUDE, LATITUDE);
        let too_small = cell.moved(0, 1).area().latitude.1 < north
            || cell.moved(0, -1).area().latitude.0 > south
            || cell.moved(1, 0).area().longitude.1 < east
            || cell.moved(-1, 0).area().longitude.0 > west;
        if step > 1 && too_small {
            step -= 1;
            cell = Cell::of(self.center, step, LONGITUDE, LATITUDE);
        }
        let area = cell.area();
        let bounded = step >= 2;
        let skip_south = bounded && area.latitude.0 < south;
        let skip_north = bounded && area.latitude.1 > north;
        let skip_west = bounded && area.longitude.0 < west;
        let skip_east = bounded && area.longitude.1 > east;
        let around = [
            (0, 0),
            (0, 1),
            (0, -1),
            (1, 0),
            (-1, 0),
            (1, 1),
            (-1, 1),
            (1, -1),
            (-1, -1),
        ];
        let mut ranges = Vec::with_capacity(9);
        // With a huge radius neighbours may be the same cell twice in a row. The first cell is
        // never compared with.
        let mut last = None;
        for (at, (east, north)) in around.into_iter().enumerate() {
            let skipped = north < 0 && skip_south
                || north > 0 && skip_north
                || east < 0 && skip_west
                || east > 0 && skip_east;
            if skipped {
                continue;
            }
            let next = cell.moved(east, north);
            if last == Some(next) {
                continue;
            }
            ranges.push(next.scores());
            last = (at > 0).then_some(next);
        }
        ranges
    }
}

/// How finely to divide the grid for cells of about this radius.
fn steps_for(mut metres: f64, latitude: f64) -> u32 {
    if metres == 0.0 {
        return STEPS;
    }
    let mut step = 1i32;
    while metres < MERCATOR_MAX {
        metres *= 2.0;
        step += 1;
    }
    step -= 2;
    // Cells get narrower towards the poles.
    if latitude.abs() > 66.0 {
        step -= 1;
        if latitude.abs() > 80.0 {
            step -= 1;
        }
    }
    step.clamp(1, STEPS as i32) as u32
}
