//! Positions on the earth.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::{
    commands::sorted_set,
    compat::{Compat, versions},
    context::Ctx,
    error::{CommandResult, NOT_FLOAT, SYNTAX, Stop},
    number::{int_arg, int_bytes, parse_double, parse_int},
    partial_sort::partial_sort,
    registry::{self, Spec, flag::*},
    reply::Reply,
    types::{
        dict::Dict,
        geo::{Point, Search, Shape, middle},
        sorted_set::{ScoreRange, SortedSet},
    },
};

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("geoadd", -5, WRITE | DENYOOM, (1, 1, 1), geoadd),
    Spec::new("geodist", -4, READONLY, (1, 1, 1), geodist),
    Spec::new("geohash", -2, READONLY, (1, 1, 1), geohash),
    Spec::new("geopos", -2, READONLY, (1, 1, 1), geopos),
    Spec::new(
        "georadius",
        -6,
        WRITE | DENYOOM | MOVABLEKEYS,
        (1, 1, 1),
        georadius,
    )
    .movable(radius_keys),
    Spec::new(
        "georadiusbymember",
        -5,
        WRITE | DENYOOM | MOVABLEKEYS,
        (1, 1, 1),
        georadiusbymember,
    )
    .movable(member_keys),
    Spec::new(
        "georadiusbymember_ro",
        -5,
        READONLY,
        (1, 1, 1),
        georadiusbymember_ro,
    ),
    Spec::new("georadius_ro", -6, READONLY, (1, 1, 1), georadius_ro),
    Spec::new("geosearch", -7, READONLY, (1, 1, 1), geosearch),
    Spec::new(
        "geosearchstore",
        -8,
        WRITE | DENYOOM,
        (1, 2, 1),
        geosearchstore,
    ),
];

fn radius_keys(args: &[Bytes]) -> Option<Vec<usize>> {
    Some(store_keys(args, 5))
}

fn member_keys(args: &[Bytes]) -> Option<Vec<usize>> {
    Some(store_keys(args, 4))
}

/// The key that is searched, and the one that the last STORE or STOREDIST names.
fn store_keys(args: &[Bytes], options: usize) -> Vec<usize> {
    let mut keys = vec![1];
    let mut at = options;
    let mut store = None;
    while at + 1 < args.len() {
        if args[at].eq_ignore_ascii_case(b"store") || args[at].eq_ignore_ascii_case(b"storedist") {
            at += 1;
            store = Some(at);
        }
        at += 1;
    }
    keys.extend(store);
    keys
}

fn coordinate(text: &[u8]) -> Result<f64, Stop> {
    parse_double(text).ok_or(NOT_FLOAT.into())
}

fn point_args(longitude: &[u8], latitude: &[u8]) -> Result<Point, Stop> {
    let point = Point {
        longitude: coordinate(longitude)?,
        latitude: coordinate(latitude)?,
    };
    if point.is_valid() {
        return Ok(point);
    }
    let c_float = |value: f64| {
        if value.is_infinite() {
            if value > 0.0 { "inf" } else { "-inf" }.to_owned()
        } else {
            format!("{value:.6}")
        }
    };
    Err(format!(
        "ERR invalid longitude,latitude pair {},{}",
        c_float(point.longitude),
        c_float(point.latitude)
    )
    .into())
}

/// Metres in a unit.
fn unit_arg(text: &[u8]) -> Result<f64, Stop> {
    let is = |name: &str| text.eq_ignore_ascii_case(name.as_bytes());
    if is("m") {
        Ok(1.0)
    } else if is("km") {
        Ok(1000.0)
    } else if is("ft") {
        Ok(0.3048)
    } else if is("mi") {
        Ok(1609.34)
    } else {
        Err("ERR unsupported unit provided. please use M, KM, FT, MI".into())
    }
}

fn distance_reply(distance: f64) -> Reply {
    Reply::Bulk(format!("{distance:.4}").into())
}

fn coordinate_reply(cx: &Ctx<'_>, value: f64) -> Reply {
    // Cut off after 17 decimals, in either protocol.
    let text = format!("{value:.17}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let text = if text == "-0" { "0" } else { text };
    match text.parse() {
        Ok(value) if cx.is_resp3() => Reply::Double(value),
        _ => Reply::bulk(text),
    }
}

fn point_reply(cx: &Ctx<'_>, point: Point) -> Reply {
    Reply::Array(vec![
        coordinate_reply(cx, point.longitude),
        coordinate_reply(cx, point.latitude),
    ])
}

fn geoadd(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let mut first = 2;
    let (mut nx, mut xx) = (false, false);
    while let Some(word) = args.get(first) {
        if word.eq_ignore_ascii_case(b"nx") {
            nx = true;
        } else if word.eq_ignore_ascii_case(b"xx") {
            xx = true;
        } else if !word.eq_ignore_ascii_case(b"ch") {
            break;
        }
        first += 1;
    }
    let places = &args[first..];
    if !places.len().is_multiple_of(3) || (nx && xx) {
        return Err(SYNTAX.into());
    }
    // A position is a score: what ZADD does with it is what is wanted here.
    let mut zadd = vec![Bytes::from_static(b"ZADD")];
    zadd.extend_from_slice(&args[1..first]);
    for place in places.chunks_exact(3) {
        let point = point_args(&place[0], &place[1])?;
        zadd.push(int_bytes(point.score() as i64));
        zadd.push(place[2].clone());
    }
    match registry::command(b"zadd") {
        Some(spec) => (spec.handler)(cx, &zadd),
        None => Err("ERR sorted sets are not available".into()),
    }
}

fn geodist(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let unit = match args.len() {
        4 => 1.0,
        5 => unit_arg(&args[4])?,
        _ => return Err(SYNTAX.into()),
    };
    let Some(set) = cx.get::<SortedSet>(&args[1])? else {
        return Ok(Reply::Nil);
    };
    let (Some(from), Some(to)) = (set.score(&args[2]), set.score(&args[3])) else {
        return Ok(Reply::Nil);
    };
    let distance = Point::from_score(from).distance(Point::from_score(to));
    Ok(distance_reply(distance / unit))
}

/// What is known of each of the members named in the arguments.
fn each_member(
    cx: &mut Ctx<'_>,
    args: &[Bytes],
    missing: Reply,
    reply: impl Fn(&Ctx<'_>, Point) -> Reply,
) -> CommandResult {
    let scores: Vec<Option<f64>> = match cx.get::<SortedSet>(&args[1])? {
        Some(set) => args[2..].iter().map(|member| set.score(member)).collect(),
        None => vec![None; args.len() - 2],
    };
    let replies = scores.into_iter().map(|score| match score {
        Some(score) => reply(cx, Point::from_score(score)),
        None => missing.clone(),
    });
    Ok(Reply::Array(replies.collect()))
}

fn geohash(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    each_member(cx, args, Reply::Nil, |_, point| {
        Reply::Bulk(point.text().into())
    })
}

fn geopos(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    each_member(cx, args, Reply::NilArray, point_reply)
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Radius,
    Member,
    Search,
    SearchStore,
}

fn georadius(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    search(cx, args, Form::Radius, true)
}

fn georadius_ro(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    search(cx, args, Form::Radius, false)
}

fn georadiusbymember(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    search(cx, args, Form::Member, true)
}

fn georadiusbymember_ro(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    search(cx, args, Form::Member, false)
}

fn geosearch(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    search(cx, args, Form::Search, false)
}

fn geosearchstore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    search(cx, args, Form::SearchStore, true)
}

/// What was asked for.
#[derive(Default)]
struct Query<'a> {
    center: Option<Point>,
    /// FROMMEMBER was given, be the member there or not.
    from_member: bool,
    shape: Option<Shape>,
    unit: f64,
    with_distance: bool,
    with_hash: bool,
    with_position: bool,
    order: Option<Ordering>,
    any: bool,
    count: usize,
    store: Option<&'a Bytes>,
    store_distance: bool,
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

fn parse<'a>(
    args: &'a [Bytes],
    compat: Compat,
    form: Form,
    may_store: bool,
    set: Option<&SortedSet>,
) -> Result<Query<'a>, Stop> {
    let mut query = Query {
        unit: 1.0,
        ..Query::default()
    };
    let mut at = match form {
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
    let name = String::from_utf8_lossy(&args[0]);
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
    if searches && !(query.from_member || from_point || by_polygon) {
        return Err(format!(
            "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for {name}"
        )
        .into());
    }
    if searches && !(by_radius || by_box || by_polygon) {
        let shapes = match has_polygons {
            true => "BYRADIUS, BYBOX and BYPOLYGON",
            false => "BYRADIUS and BYBOX",
        };
        return Err(format!("ERR exactly one of {shapes} can be specified for {name}").into());
    }
    if query.any && query.count == 0 {
        return Err("ERR the ANY argument requires COUNT argument".into());
    }
    Ok(query)
}

struct Found {
    member: Bytes,
    score: f64,
    point: Point,
    distance: f64,
}

/// All that the search covers, or the first `limit` of them.
fn matches(set: &SortedSet, search: &Search, limit: usize) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for (min, max) in search.ranges() {
        if limit > 0 && found.len() >= limit {
            break;
        }
        let ranks = set.score_ranks(&ScoreRange {
            min,
            min_exclusive: false,
            max,
            max_exclusive: true,
        });
        set.each(ranks.start, ranks.end, false, |member, score| {
            if limit > 0 && found.len() >= limit {
                return;
            }
            let point = Point::from_score(score);
            if let Some(distance) = search.covers(point) {
                found.push(Found {
                    member: member.to_bytes(),
                    score,
                    point,
                    distance,
                });
            }
        });
    }
    found
}

fn search(cx: &mut Ctx<'_>, args: &[Bytes], form: Form, may_store: bool) -> CommandResult {
    let source = &args[if form == Form::SearchStore { 2 } else { 1 }];
    let compat = cx.state.config.compat;
    let set = cx.get::<SortedSet>(source)?;
    let query = parse(args, compat, form, may_store, set)?;
    let found = match (set, query.center, &query.shape) {
        (Some(set), Some(center), Some(shape)) => {
            let search = Search {
                center,
                shape: shape.clone(),
                unit: query.unit,
            };
            let limit = if query.any { query.count } else { 0 };
            matches(set, &search, limit)
        }
        _ => Vec::new(),
    };
    let found = pick(found, &query);
    match query.store {
        Some(target) => store(cx, target, found, &query, form),
        None => Ok(Reply::Array(
            found
                .into_iter()
                .map(|item| item_reply(cx, item, &query))
                .collect(),
        )),
    }
}

/// Sorts and cuts off as asked for.
fn pick(mut found: Vec<Found>, query: &Query<'_>) -> Vec<Found> {
    let total = found.len();
    let wanted = match query.count {
        0 => total,
        count => count.min(total),
    };
    // The nearest come first if only some are wanted.
    let order = match query.order {
        None if query.count > 0 && !query.any => Some(Ordering::Less),
        order => order,
    };
    if let Some(order) = order {
        let mut compare = |a: &Found, b: &Found| {
            let by_distance = a.distance.partial_cmp(&b.distance);
            let by_distance = by_distance.unwrap_or(Ordering::Equal);
            if order == Ordering::Less {
                by_distance
            } else {
                by_distance.reverse()
            }
        };
        if wanted == total {
            found.sort_by(compare);
        } else {
            partial_sort(&mut found, 0..wanted, &mut compare);
        }
    }
    found.truncate(wanted);
    found
}

fn item_reply(cx: &Ctx<'_>, item: Found, query: &Query<'_>) -> Reply {
    let member = Reply::Bulk(item.member);
    if !(query.with_distance || query.with_hash || query.with_position) {
        return member;
    }
    let mut parts = vec![member];
    if query.with_distance {
        parts.push(distance_reply(item.distance / query.unit));
    }
    if query.with_hash {
        parts.push(Reply::Int(item.score as i64));
    }
    if query.with_position {
        parts.push(point_reply(cx, item.point));
    }
    Reply::Array(parts)
}

fn store(
    cx: &mut Ctx<'_>,
    target: &Bytes,
    found: Vec<Found>,
    query: &Query<'_>,
    form: Form,
) -> CommandResult {
    let mut scores = Dict::with_capacity(found.len());
    for item in found {
        let score = if query.store_distance {
            item.distance / query.unit
        } else {
            item.score
        };
        scores.insert_new(&item.member, score);
    }
    let event = if form == Form::SearchStore {
        "geosearchstore"
    } else {
        "georadiusstore"
    };
    let result = SortedSet::from_scores(scores);
    Ok(sorted_set::store(cx, target, result, event))
}
