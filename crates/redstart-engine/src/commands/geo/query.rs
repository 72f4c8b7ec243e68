//! What a search is asked for: center, shape, order and what is returned.

use std::cmp::Ordering;

use bytes::Bytes;

use super::{point_args, unit_arg};
use crate::{
    compat::{Compat, versions},
    error::{SYNTAX, Stop},
    number::{int_arg, parse_double, parse_int},
    types::{
        geo::{Point, Shape, middle},
        sorted_set::SortedSet,
    },
};

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    Radius,
    Member,
    Search,
    SearchStore,
}

/// What was asked for.
#[derive(Default)]
pub(super) struct Query<'a> {
    pub(super) center: Option<Point>,
    /// FROMMEMBER was given, be the member there or not.
    pub(super) from_member: bool,
    pub(super) shape: Option<Shape>,
    pub(super) unit: f64,
    pub(super) with_distance: bool,
    pub(super) with_hash: bool,
    pub(super) with_position: bool,
    pub(super) order: Option<Ordering>,
    pub(super) any: bool,
    pub(super) count: usize,
    pub(super) store: Option<&'a Bytes>,
    pub(super) store_distance: bool,
}

fn radius_args(radius: &[u8], unit: &[u8]) -> Result<(Shape, f64), Stop> {
    let radius = parse_double(radius).ok_or(Stop::from("ERR need numeric radius"))?;
    if radius < 0.0 {
        return Err("ERR radius cannot be negative".into());
    }
    Ok((Shape::Circle { radius }, unit_arg(unit)?))
}

fn box_args(width: &[u8], height: &[u8], unit: &[u8]) -> Result<(Shape, f64), Stop> {
    let width = parse_double(width).ok_or(Stop::from("ERR need numeric width"))?;
    let height = parse_double(height).ok_or(Stop::from("ERR need numeric height"))?;
    if width < 0.0 || height < 0.0 {
        return Err("ERR height or width cannot be negative".into());
    }
    Ok((Shape::Box { width, height }, unit_arg(unit)?))
}

/// The corners after BYPOLYGON, and how many arguments they take.
fn polygon_args(args: &[Bytes]) -> Result<(Shape, usize), Stop> {
    let count = parse_int(&args[0]).and_then(|count| i32::try_from(count).ok());
    let count = count.ok_or(Stop::from("ERR invalid number of vertices"))?;
    let places = args[1..].chunks_exact(2);
    let count = usize::try_from(count)
        .ok()
        .filter(|count| (3..=places.len()).contains(count))
        .ok_or(Stop::from(
            "ERR GEOSEARCH BYPOLYGON must have at least 3 vertices",
        ))?;
    let corners = places.take(count);
    let corners = corners.map(|place| point_args(&place[0], &place[1]));
    let corners = corners.collect::<Result<Vec<Point>, Stop>>()?;
    Ok((Shape::Polygon { corners }, 1 + 2 * count))
}

fn member_point(set: &SortedSet, member: &[u8]) -> Result<Point, Stop> {
    match set.score(member) {
        Some(score) => Ok(Point::from_score(score)),
        None => Err("ERR could not decode requested zset member".into()),
    }
}

/// What stands before the options, and how many arguments that is.
fn begin_query<'a>(
    args: &'a [Bytes],
    form: Form,
    set: Option<&SortedSet>,
) -> Result<(Query<'a>, usize), Stop> {
    let mut query = Query {
        unit: 1.0,
        ..Query::default()
    };
    let at = match form {
        Form::Radius => {
            query.center = Some(point_args(&args[2], &args[3])?);
            let (shape, unit) = radius_args(&args[4], &args[5])?;
            (query.shape, query.unit) = (Some(shape), unit);
            6
        }
        Form::Member => {
            if let Some(set) = set {
                query.center = Some(member_point(set, &args[2])?);
                let (shape, unit) = radius_args(&args[3], &args[4])?;
                (query.shape, query.unit) = (Some(shape), unit);
            }
            5
        }
        Form::Search => 2,
        Form::SearchStore => {
            query.store = Some(&args[1]);
            3
        }
    };
    Ok((query, at))
}

/// What the options must have together: whether there is a center, and a shape.
fn check_query(
    query: &Query<'_>,
    command: &[u8],
    compat: Compat,
    form: Form,
    (has_center, has_shape): (bool, bool),
) -> Result<(), Stop> {
    let name = String::from_utf8_lossy(command);
    let searches = matches!(form, Form::Search | Form::SearchStore);
    if query.store.is_some() && (query.with_distance || query.with_hash || query.with_position) {
        let what = if form == Form::SearchStore {
            "GEOSEARCHSTORE"
        } else {
            "STORE option in GEORADIUS"
        };
        return Err(format!(
            "ERR {what} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
        )
        .into());
    }
    if searches && !has_center {
        return Err(format!(
            "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for {name}"
        )
        .into());
    }
    if searches && !has_shape {
        let shapes = match compat.is_in(versions::VALKEY) {
            true => "BYRADIUS, BYBOX and BYPOLYGON",
            false => "BYRADIUS and BYBOX",
        };
        return Err(format!("ERR exactly one of {shapes} can be specified for {name}").into());
    }
    if query.any && query.count == 0 {
        return Err("ERR the ANY argument requires COUNT argument".into());
    }
    Ok(())
}

/// One loop, because an option is allowed or not by those before it.
pub(super) fn parse<'a>(
    args: &'a [Bytes],
    compat: Compat,
    form: Form,
    may_store: bool,
    set: Option<&SortedSet>,
) -> Result<Query<'a>, Stop> {
    let (mut query, mut at) = begin_query(args, form, set)?;
    let searches = matches!(form, Form::Search | Form::SearchStore);
    let mut from_point = false;
    let (mut by_radius, mut by_box, mut by_polygon) = (false, false, false);
    let has_polygons = compat.is_in(versions::VALKEY);
    while at < args.len() {
        let is = |word: &str| args[at].eq_ignore_ascii_case(word.as_bytes());
        let left = args.len() - at - 1;
        if is("withdist") {
            query.with_distance = true;
        } else if is("withhash") {
            query.with_hash = true;
        } else if is("withcoord") {
            query.with_position = true;
        } else if is("any") {
            query.any = true;
        } else if is("asc") {
            query.order = Some(Ordering::Less);
        } else if is("desc") {
            query.order = Some(Ordering::Greater);
        } else if is("count") && left >= 1 {
            let count = int_arg(&args[at + 1])?;
            if count <= 0 {
                return Err("ERR COUNT must be > 0".into());
            }
            query.count = count as usize;
            at += 1;
        } else if may_store && !searches && (is("store") || is("storedist")) && left >= 1 {
            query.store = Some(&args[at + 1]);
            query.store_distance = is("storedist");
            at += 1;
        } else if is("frommember") && left >= 1 && searches && !from_point && !by_polygon {
            if let Some(set) = set {
                query.center = Some(member_point(set, &args[at + 1])?);
            }
            query.from_member = true;
            at += 1;
        } else if is("fromlonlat") && left >= 2 && searches && !query.from_member && !by_polygon {
            query.center = Some(point_args(&args[at + 1], &args[at + 2])?);
            from_point = true;
            at += 2;
        } else if is("byradius") && left >= 2 && searches && !by_box && !by_polygon {
            let (shape, unit) = radius_args(&args[at + 1], &args[at + 2])?;
            (query.shape, query.unit) = (Some(shape), unit);
            by_radius = true;
            at += 2;
        } else if is("bybox") && left >= 3 && searches && !by_radius && !by_polygon {
            let (shape, unit) = box_args(&args[at + 1], &args[at + 2], &args[at + 3])?;
            (query.shape, query.unit) = (Some(shape), unit);
            by_box = true;
            at += 3;
        } else if is("bypolygon")
            && left >= 2
            && searches
            && has_polygons
            && !(by_radius || by_box || from_point || query.from_member)
        {
            let (shape, taken) = polygon_args(&args[at + 1..])?;
            if let Shape::Polygon { corners } = &shape {
                query.center = Some(middle(corners));
            }
            (query.shape, query.unit) = (Some(shape), 1.0);
            by_polygon = true;
            at += taken;
        } else if is("storedist") && form == Form::SearchStore {
            query.store_distance = true;
        } else {
            return Err(SYNTAX.into());
        }
        at += 1;
    }
    let has_shape = by_radius || by_box || by_polygon;
    let has_center = query.from_member || from_point || by_polygon;
    check_query(&query, &args[0], compat, form, (has_center, has_shape))?;
    Ok(query)
}
