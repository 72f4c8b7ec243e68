//! Positions on the earth. The arguments of a search are in `geo/query`.

mod query;

use query::{Form, Query, parse};

use std::cmp::Ordering;

use bytes::Bytes;

use crate::{
    commands::sorted_set,
    context::Ctx,
    error::{CommandResult, NOT_FLOAT, SYNTAX, Stop},
    number::{int_bytes, parse_double},
    partial_sort::partial_sort,
    registry::{self, Spec, flag::*},
    reply::Reply,
    types::{
        dict::Dict,
        geo::{Point, Search},
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
