//! Sorted sets.

use std::ops::Range;

use bytes::Bytes;

use crate::{
    blocking::{Served, Wait, timeout_arg},
    commands::{
        hash::{draw_places, random_args},
        list::{mpop_count, range_of},
    },
    context::Ctx,
    error::{CommandResult, MIN_MAX_NOT_FLOAT, SYNTAX, Stop, WRONG_TYPE},
    notify::class,
    number::{
        double_arg, format_double, int_arg, int_bytes, parse_double, parse_double_leniently,
        positive_arg, range_arg,
    },
    random::Draw,
    registry::{Spec, flag::*, keys_counted_first, keys_counted_second, keys_stored_and_counted},
    reply::Reply,
    scan,
    types::{
        Value,
        blob::Blob,
        dict::Dict,
        sorted_set::{LexBound, LexRange, ScoreRange, SortedSet},
    },
};

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new(
        "bzmpop",
        -5,
        WRITE | BLOCKING | MOVABLEKEYS,
        (0, 0, 0),
        bzmpop,
    )
    .movable(keys_counted_second),
    Spec::new(
        "bzpopmax",
        -3,
        WRITE | NOSCRIPT | BLOCKING | FAST,
        (1, -2, 1),
        bzpopmax,
    ),
    Spec::new(
        "bzpopmin",
        -3,
        WRITE | NOSCRIPT | BLOCKING | FAST,
        (1, -2, 1),
        bzpopmin,
    ),
    Spec::new("zadd", -4, WRITE | DENYOOM | FAST, (1, 1, 1), zadd),
    Spec::new("zcard", 2, READONLY | FAST, (1, 1, 1), zcard),
    Spec::new("zcount", 4, READONLY | FAST, (1, 1, 1), zcount),
    Spec::new("zdiff", -3, READONLY | MOVABLEKEYS, (0, 0, 0), zdiff).movable(keys_counted_first),
    Spec::new(
        "zdiffstore",
        -4,
        WRITE | DENYOOM | MOVABLEKEYS,
        (1, 1, 1),
        zdiffstore,
    )
    .movable(keys_stored_and_counted),
    Spec::new("zincrby", 4, WRITE | DENYOOM | FAST, (1, 1, 1), zincrby),
    Spec::new("zinter", -3, READONLY | MOVABLEKEYS, (0, 0, 0), zinter).movable(keys_counted_first),
    Spec::new(
        "zintercard",
        -3,
        READONLY | MOVABLEKEYS,
        (0, 0, 0),
        zintercard,
    )
    .movable(keys_counted_first),
    Spec::new(
        "zinterstore",
        -4,
        WRITE | DENYOOM | MOVABLEKEYS,
        (1, 1, 1),
        zinterstore,
    )
    .movable(keys_stored_and_counted),
    Spec::new("zlexcount", 4, READONLY | FAST, (1, 1, 1), zlexcount),
    Spec::new("zmpop", -4, WRITE | MOVABLEKEYS, (0, 0, 0), zmpop).movable(keys_counted_first),
    Spec::new("zmscore", -3, READONLY | FAST, (1, 1, 1), zmscore),
    Spec::new("zpopmax", -2, WRITE | FAST, (1, 1, 1), zpopmax),
    Spec::new("zpopmin", -2, WRITE | FAST, (1, 1, 1), zpopmin),
    Spec::new("zrandmember", -2, READONLY, (1, 1, 1), zrandmember),
    Spec::new("zrange", -4, READONLY, (1, 1, 1), zrange),
    Spec::new("zrangebylex", -4, READONLY, (1, 1, 1), zrangebylex),
    Spec::new("zrangebyscore", -4, READONLY, (1, 1, 1), zrangebyscore),
    Spec::new("zrangestore", -5, WRITE | DENYOOM, (1, 2, 1), zrangestore),
    Spec::new("zrank", 3, READONLY | FAST, (1, 1, 1), zrank),
    Spec::new("zrem", -3, WRITE | FAST, (1, 1, 1), zrem),
    Spec::new("zremrangebylex", 4, WRITE, (1, 1, 1), zremrangebylex),
    Spec::new("zremrangebyrank", 4, WRITE, (1, 1, 1), zremrangebyrank),
    Spec::new("zremrangebyscore", 4, WRITE, (1, 1, 1), zremrangebyscore),
    Spec::new("zrevrange", -4, READONLY, (1, 1, 1), zrevrange),
    Spec::new("zrevrangebylex", -4, READONLY, (1, 1, 1), zrevrangebylex),
    Spec::new(
        "zrevrangebyscore",
        -4,
        READONLY,
        (1, 1, 1),
        zrevrangebyscore,
    ),
    Spec::new("zrevrank", 3, READONLY | FAST, (1, 1, 1), zrevrank),
    Spec::new("zscan", -3, READONLY, (1, 1, 1), zscan),
    Spec::new("zscore", 3, READONLY | FAST, (1, 1, 1), zscore),
    Spec::new("zunion", -3, READONLY | MOVABLEKEYS, (0, 0, 0), zunion).movable(keys_counted_first),
    Spec::new(
        "zunionstore",
        -4,
        WRITE | DENYOOM | MOVABLEKEYS,
        (1, 1, 1),
        zunionstore,
    )
    .movable(keys_stored_and_counted),
];

fn bulk(member: &Blob) -> Reply {
    Reply::Bulk(member.to_bytes())
}

/// How members and scores are laid out in a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Members,
    /// Member, score, member, score …
    Flat,
    /// A pair each.
    Pairs,
}

impl Layout {
    /// The layout of WITHSCORES: pairs in RESP3 only.
    fn of(cx: &Ctx<'_>, with_scores: bool) -> Layout {
        match (with_scores, cx.is_resp3()) {
            (false, _) => Layout::Members,
            (true, false) => Layout::Flat,
            (true, true) => Layout::Pairs,
        }
    }

    fn push(self, items: &mut Vec<Reply>, member: &Blob, score: f64) {
        match self {
            Layout::Members => items.push(bulk(member)),
            Layout::Flat => items.extend([bulk(member), Reply::Double(score)]),
            Layout::Pairs => items.push(Reply::Array(vec![bulk(member), Reply::Double(score)])),
        }
    }
}

// ---- adding and removing ----

/// The options of ZADD.
#[derive(Clone, Copy, Default)]
pub(crate) struct AddOptions {
    pub(crate) only_new: bool,
    pub(crate) only_existing: bool,
    pub(crate) greater: bool,
    pub(crate) less: bool,
    pub(crate) changed: bool,
    pub(crate) increment: bool,
}

fn zadd(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let mut options = AddOptions::default();
    let mut at = 2;
    while let Some(arg) = args.get(at) {
        if arg.eq_ignore_ascii_case(b"nx") {
            options.only_new = true;
        } else if arg.eq_ignore_ascii_case(b"xx") {
            options.only_existing = true;
        } else if arg.eq_ignore_ascii_case(b"gt") {
            options.greater = true;
        } else if arg.eq_ignore_ascii_case(b"lt") {
            options.less = true;
        } else if arg.eq_ignore_ascii_case(b"ch") {
            options.changed = true;
        } else if arg.eq_ignore_ascii_case(b"incr") {
            options.increment = true;
        } else {
            break;
        }
        at += 1;
    }
    add(cx, &args[1], &args[at..], options)
}

fn zincrby(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let options = AddOptions {
        increment: true,
        ..AddOptions::default()
    };
    add(cx, &args[1], &args[2..], options)
}

/// ZADD from the first score on; GEOADD ends here, too.
pub(crate) fn add(
    cx: &mut Ctx<'_>,
    key: &Bytes,
    pairs: &[Bytes],
    options: AddOptions,
) -> CommandResult {
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(SYNTAX.into());
    }
    if options.only_new && options.only_existing {
        return Err("ERR XX and NX options at the same time are not compatible".into());
    }
    if (options.greater && options.less) || (options.only_new && (options.greater || options.less))
    {
        return Err("ERR GT, LT, and/or NX options at the same time are not compatible".into());
    }
    if options.increment && pairs.len() > 2 {
        return Err("ERR INCR option supports a single increment-element pair".into());
    }
    let scores = pairs
        .iter()
        .step_by(2)
        .map(|text| double_arg(text))
        .collect::<Result<Vec<f64>, Stop>>()?;
    if cx.get_mut::<SortedSet>(key)?.is_none() && options.only_existing {
        return Ok(if options.increment {
            Reply::Nil
        } else {
            Reply::ZERO
        });
    }
    let (mut added, mut updated, mut last, mut not_a_number) = (0, 0, None, false);
    let emptied = cx.edit_or_create(key, |set: &mut SortedSet, config, _| {
        for (score, member) in scores.iter().zip(pairs.iter().skip(1).step_by(2)) {
            let mut score = *score;
            last = None;
            match set.score(member) {
                Some(_) if options.only_new => continue,
                Some(old) => {
                    if options.increment {
                        score += old;
                        if score.is_nan() {
                            not_a_number = true;
                            break;
                        }
                    }
                    if (options.less && score >= old) || (options.greater && score <= old) {
                        continue;
                    }
                    if score != old {
                        set.insert(member, score, config);
                        updated += 1;
                    }
                }
                None if options.only_existing => continue,
                None => {
                    set.insert(member, score, config);
                    added += 1;
                }
            }
            last = Some(score);
        }
        set.is_empty()
    })?;
    if emptied {
        cx.delete(key);
    }
    if not_a_number {
        return Err("ERR resulting score is not a number (NaN)".into());
    }
    if added + updated > 0 {
        let event = if options.increment { "zincr" } else { "zadd" };
        cx.changed(key, class::SORTED_SET, event);
        cx.dirty(added + updated - 1);
    }
    if options.increment {
        return Ok(last.map_or(Reply::Nil, Reply::Double));
    }
    Ok(if options.changed {
        added + updated
    } else {
        added
    }
    .into())
}

fn zrem(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let Some(set) = cx.get_mut::<SortedSet>(key)? else {
        return Ok(Reply::ZERO);
    };
    let removed = args[2..]
        .iter()
        .filter(|member| set.remove(member).is_some())
        .count();
    let emptied = set.is_empty();
    after_removal(cx, key, removed, emptied, "zrem");
    Ok(removed.into())
}

fn after_removal(cx: &mut Ctx<'_>, key: &[u8], removed: usize, emptied: bool, event: &str) {
    if removed > 0 {
        cx.changed(key, class::SORTED_SET, event);
        cx.dirty(removed - 1);
        if emptied {
            cx.delete_emptied(key);
        }
    }
}

// ---- reading ----

fn zcard(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(cx
        .get::<SortedSet>(&args[1])?
        .map_or(0, SortedSet::len)
        .into())
}

fn zscore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let score = cx
        .get::<SortedSet>(&args[1])?
        .and_then(|set| set.score(&args[2]));
    Ok(score.map_or(Reply::Nil, Reply::Double))
}

fn zmscore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let set = cx.get::<SortedSet>(&args[1])?;
    let score = |member: &Bytes| {
        set.and_then(|set| set.score(member))
            .map_or(Reply::Nil, Reply::Double)
    };
    Ok(Reply::Array(args[2..].iter().map(score).collect()))
}

fn zrank(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let rank = cx
        .get::<SortedSet>(&args[1])?
        .and_then(|set| set.rank(&args[2]));
    Ok(rank.map_or(Reply::Nil, Reply::from))
}

fn zrevrank(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let set = cx.get::<SortedSet>(&args[1])?;
    let rank = set.and_then(|set| Some(set.len() - 1 - set.rank(&args[2])?));
    Ok(rank.map_or(Reply::Nil, Reply::from))
}

fn zscan(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let cursor = scan::cursor_arg(&args[2])?;
    let Some(set) = cx.get::<SortedSet>(&args[1])? else {
        return Ok(scan::reply(0, Vec::new()));
    };
    let options = scan::Options::parse(&args[3..], false)?;
    let packed = set.is_packed();
    let mut items = Vec::new();
    let next = set.scan(cursor, options.count, |member, score| {
        if options.admits(member) {
            items.extend([bulk(member), Reply::Bulk(scanned_score(score, packed))]);
        }
    });
    Ok(scan::reply(next, items))
}

/// A score as ZSCAN shows it: a listpack holds whole numbers as integers, and shows them so.
fn scanned_score(score: f64, packed: bool) -> Bytes {
    const LARGEST: f64 = (i64::MAX / 2) as f64;
    if packed && score == score.trunc() && score.abs() <= LARGEST {
        int_bytes(score as i64)
    } else {
        format_double(score)
    }
}

fn zrandmember(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (count, with_scores) = match args.len() {
        2 => (None, false),
        _ => {
            let (count, with_scores) = random_args(args, b"withscores")?;
            (Some(count), with_scores)
        }
    };
    let layout = Layout::of(cx, with_scores);
    let drawn = cx.edit(&args[1], |set: &mut SortedSet, _, random| {
        let Some(count) = count else {
            let place = set.draw(random);
            return place
                .and_then(|at| set.by_slot(at))
                .map_or(Reply::Nil, |(m, _)| bulk(m));
        };
        let mut items = Vec::new();
        for place in draw_places(set, random, count) {
            if let Some((member, score)) = set.by_slot(place) {
                layout.push(&mut items, member, score);
            }
        }
        Reply::Array(items)
    })?;
    let none = if count.is_some() {
        Reply::empty()
    } else {
        Reply::Nil
    };
    Ok(drawn.unwrap_or(none))
}

// ---- ranges ----

/// A bound of a score range, perhaps exclusive.
fn score_bound(text: &[u8]) -> Result<(f64, bool), Stop> {
    let (text, exclusive) = match text {
        [b'(', rest @ ..] => (rest, true),
        rest => (rest, false),
    };
    match parse_double_leniently(text, false) {
        Some(value) => Ok((value, exclusive)),
        None => Err(MIN_MAX_NOT_FLOAT.into()),
    }
}

fn score_range(min: &[u8], max: &[u8]) -> Result<ScoreRange, Stop> {
    let (min, min_exclusive) = score_bound(min)?;
    let (max, max_exclusive) = score_bound(max)?;
    Ok(ScoreRange {
        min,
        min_exclusive,
        max,
        max_exclusive,
    })
}

fn lex_range(min: &[u8], max: &[u8]) -> Result<LexRange, Stop> {
    let bound = |text: &[u8]| match text {
        b"-" => Ok(LexBound::Lowest),
        b"+" => Ok(LexBound::Highest),
        [b'[', rest @ ..] => Ok(LexBound::Inclusive(Blob::new(rest))),
        [b'(', rest @ ..] => Ok(LexBound::Exclusive(Blob::new(rest))),
        _ => Err(Stop::from("ERR min or max not valid string range item")),
    };
    Ok(LexRange {
        min: bound(min)?,
        max: bound(max)?,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

enum Bounds {
    Rank(i64, i64),
    Score(ScoreRange),
    Lex(LexRange),
}

/// A range as ZRANGE and its older relatives are given it.
struct Query {
    bounds: Bounds,
    reverse: bool,
    offset: i64,
    limit: i64,
    with_scores: bool,
}

impl Query {
    /// Parses `min max [options]`. What is `None` may be chosen by an option.
    fn parse(
        args: &[Bytes],
        by: Option<By>,
        reverse: Option<bool>,
        storing: bool,
    ) -> Result<Query, Stop> {
        let (mut chosen_by, mut chosen_reverse) = (by, reverse);
        let (mut offset, mut limit, mut with_scores) = (0, -1, false);
        let mut rest = &args[2..];
        while let Some((arg, tail)) = rest.split_first() {
            rest = tail;
            if !storing && arg.eq_ignore_ascii_case(b"withscores") {
                with_scores = true;
            } else if arg.eq_ignore_ascii_case(b"limit") && rest.len() >= 2 {
                offset = int_arg(&rest[0])?;
                limit = int_arg(&rest[1])?;
                rest = &rest[2..];
            } else if reverse.is_none() && arg.eq_ignore_ascii_case(b"rev") {
                chosen_reverse = Some(true);
            } else if by.is_none() && arg.eq_ignore_ascii_case(b"bylex") {
                chosen_by = Some(By::Lex);
            } else if by.is_none() && arg.eq_ignore_ascii_case(b"byscore") {
                chosen_by = Some(By::Score);
            } else {
                return Err(SYNTAX.into());
            }
        }
        let by = chosen_by.unwrap_or(By::Rank);
        let reverse = chosen_reverse.unwrap_or(false);
        if limit != -1 && by == By::Rank {
            return Err(
                "ERR syntax error, LIMIT is only supported in combination with either \
                        BYSCORE or BYLEX"
                    .into(),
            );
        }
        if with_scores && by == By::Lex {
            return Err(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX".into(),
            );
        }
        let (min, max) = if reverse && by != By::Rank {
            (&args[1], &args[0])
        } else {
            (&args[0], &args[1])
        };
        let bounds = match by {
            By::Rank => Bounds::Rank(int_arg(min)?, int_arg(max)?),
            By::Score => Bounds::Score(score_range(min, max)?),
            By::Lex => Bounds::Lex(lex_range(min, max)?),
        };
        Ok(Query {
            bounds,
            reverse,
            offset,
            limit,
            with_scores,
        })
    }

    /// The ranks, counted upwards, that the query covers.
    fn ranks(&self, set: &SortedSet) -> Range<usize> {
        let len = set.len();
        let ranks = match &self.bounds {
            Bounds::Rank(start, end) => {
                let (from, to) = range_of(*start, *end, len).unwrap_or((0, 0));
                return if self.reverse {
                    len - to..len - from
                } else {
                    from..to
                };
            }
            Bounds::Score(range) => set.score_ranks(range),
            Bounds::Lex(range) => set.lex_ranks(range, self.reverse),
        };
        let Ok(offset) = usize::try_from(self.offset) else {
            return 0..0;
        };
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        if offset >= ranks.len() {
            return 0..0;
        }
        let count = limit.min(ranks.len() - offset);
        if self.reverse {
            ranks.end - offset - count..ranks.end - offset
        } else {
            ranks.start + offset..ranks.start + offset + count
        }
    }
}

fn range_reply(
    cx: &mut Ctx<'_>,
    args: &[Bytes],
    by: Option<By>,
    reverse: Option<bool>,
) -> CommandResult {
    let query = Query::parse(&args[2..], by, reverse, false)?;
    let layout = Layout::of(cx, query.with_scores);
    let Some(set) = cx.get::<SortedSet>(&args[1])? else {
        return Ok(Reply::empty());
    };
    let ranks = query.ranks(set);
    let mut items = Vec::with_capacity(ranks.len());
    set.each(ranks.start, ranks.end, query.reverse, |member, score| {
        layout.push(&mut items, member, score);
    });
    Ok(Reply::Array(items))
}

fn zrange(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, None, None)
}

fn zrevrange(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, Some(By::Rank), Some(true))
}

fn zrangebyscore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, Some(By::Score), Some(false))
}

fn zrevrangebyscore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, Some(By::Score), Some(true))
}

fn zrangebylex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, Some(By::Lex), Some(false))
}

fn zrevrangebylex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, Some(By::Lex), Some(true))
}

fn zrangestore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let query = Query::parse(&args[3..], None, None, true)?;
    let stored = cx.edit(&args[2], |set: &mut SortedSet, config, _| {
        let mut result = SortedSet::default();
        let ranks = query.ranks(set);
        set.each(ranks.start, ranks.end, false, |member, score| {
            result.insert(member, score, config);
        });
        result
    })?;
    Ok(store(
        cx,
        &args[1],
        stored.unwrap_or_default(),
        "zrangestore",
    ))
}

/// Puts a result under a key, or removes the key if there is none; the number of members.
pub(crate) fn store(cx: &mut Ctx<'_>, key: &Bytes, mut result: SortedSet, event: &str) -> Reply {
    let len = result.len();
    result.pack(&cx.state.config);
    if len > 0 {
        cx.put(key, Value::SortedSet(Box::new(result)));
        cx.notify(class::SORTED_SET, event, key);
        cx.dirty(1);
    } else if cx.delete(key).is_some() {
        cx.notify(class::GENERIC, "del", key);
        cx.dirty(1);
    }
    len.into()
}

fn zcount(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let range = score_range(&args[2], &args[3])?;
    Ok(cx
        .get::<SortedSet>(&args[1])?
        .map_or(0, |set| set.score_ranks(&range).len())
        .into())
}

fn zlexcount(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let range = lex_range(&args[2], &args[3])?;
    Ok(cx
        .get::<SortedSet>(&args[1])?
        .map_or(0, |set| set.lex_ranks(&range, false).len())
        .into())
}

fn remove_range(cx: &mut Ctx<'_>, args: &[Bytes], by: By, event: &str) -> CommandResult {
    let key = &args[1];
    let query = Query::parse(&args[2..], Some(by), Some(false), false)?;
    let Some(set) = cx.get_mut::<SortedSet>(key)? else {
        return Ok(Reply::ZERO);
    };
    let ranks = query.ranks(set);
    let removed = set.remove_ranks(ranks);
    let emptied = set.is_empty();
    after_removal(cx, key, removed, emptied, event);
    Ok(removed.into())
}

fn zremrangebyrank(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    remove_range(cx, args, By::Rank, "zremrangebyrank")
}

fn zremrangebyscore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    remove_range(cx, args, By::Score, "zremrangebyscore")
}

fn zremrangebylex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    remove_range(cx, args, By::Lex, "zremrangebylex")
}

// ---- popping ----

/// From which end members are popped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extreme {
    Min,
    Max,
}

impl Extreme {
    fn event(self) -> &'static str {
        match self {
            Extreme::Min => "zpopmin",
            Extreme::Max => "zpopmax",
        }
    }

    fn arg(text: &[u8]) -> Result<Extreme, Stop> {
        if text.eq_ignore_ascii_case(b"min") {
            Ok(Extreme::Min)
        } else if text.eq_ignore_ascii_case(b"max") {
            Ok(Extreme::Max)
        } else {
            Err(SYNTAX.into())
        }
    }
}

/// Takes up to `count` members off a set; events and the key's removal included.
fn take(
    cx: &mut Ctx<'_>,
    key: &[u8],
    extreme: Extreme,
    count: usize,
) -> Result<Vec<(Blob, f64)>, Stop> {
    let Some(set) = cx.get_mut::<SortedSet>(key)? else {
        return Ok(Vec::new());
    };
    let count = count.min(set.len());
    let mut taken = Vec::with_capacity(count);
    let (from, to) = match extreme {
        Extreme::Min => (0, count),
        Extreme::Max => (set.len() - count, set.len()),
    };
    set.each(from, to, extreme == Extreme::Max, |member, score| {
        taken.push((member.clone(), score))
    });
    for (member, _) in &taken {
        set.remove(member);
    }
    let emptied = set.is_empty();
    after_removal(cx, key, taken.len(), emptied, extreme.event());
    Ok(taken)
}

fn zpopmin(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    pop(cx, args, Extreme::Min)
}

fn zpopmax(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    pop(cx, args, Extreme::Max)
}

fn pop(cx: &mut Ctx<'_>, args: &[Bytes], extreme: Extreme) -> CommandResult {
    let count = match args {
        [_, _] => None,
        [_, _, count] => Some(positive_arg(count)? as usize),
        _ => return Err(SYNTAX.into()),
    };
    let layout = if cx.is_resp3() && count.is_some() {
        Layout::Pairs
    } else {
        Layout::Flat
    };
    let taken = take(cx, &args[1], extreme, count.unwrap_or(1))?;
    Ok(members_reply(&taken, layout))
}

fn members_reply(members: &[(Blob, f64)], layout: Layout) -> Reply {
    let mut items = Vec::new();
    for (member, score) in members {
        layout.push(&mut items, member, *score);
    }
    Reply::Array(items)
}

fn removal_effect(key: &Bytes, members: &[(Blob, f64)]) -> Vec<Bytes> {
    let words = [Bytes::from_static(b"ZREM"), key.clone()];
    words
        .into_iter()
        .chain(members.iter().map(|(member, _)| member.to_bytes()))
        .collect()
}

/// The keys, the end and the count of ZMPOP, from the position of `numkeys` on.
fn zmpop_args(args: &[Bytes]) -> Result<(&[Bytes], Extreme, usize), Stop> {
    let count = range_arg(
        &args[0],
        1,
        i64::MAX,
        "ERR numkeys should be greater than 0",
    )?;
    let rest = &args[1..];
    if count as u64 >= rest.len() as u64 {
        return Err(SYNTAX.into());
    }
    let (keys, rest) = rest.split_at(count as usize);
    let extreme = Extreme::arg(&rest[0])?;
    Ok((keys, extreme, mpop_count(&rest[1..])?))
}

fn mpop_reply(key: &Bytes, members: &[(Blob, f64)]) -> Reply {
    Reply::Array(vec![
        Reply::Bulk(key.clone()),
        members_reply(members, Layout::Pairs),
    ])
}

fn mpop(
    cx: &mut Ctx<'_>,
    keys: &[Bytes],
    extreme: Extreme,
    limit: usize,
) -> Result<Option<Reply>, Stop> {
    for key in keys {
        if cx.get_mut::<SortedSet>(key)?.is_some() {
            let taken = take(cx, key, extreme, limit)?;
            cx.propagate(removal_effect(key, &taken));
            return Ok(Some(mpop_reply(key, &taken)));
        }
    }
    Ok(None)
}

fn zmpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (keys, extreme, limit) = zmpop_args(&args[1..])?;
    Ok(mpop(cx, keys, extreme, limit)?.unwrap_or(Reply::NilArray))
}

fn bzmpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let deadline = timeout_arg(cx, &args[1])?;
    let (keys, extreme, limit) = zmpop_args(&args[2..])?;
    if let Some(reply) = mpop(cx, keys, extreme, limit)? {
        return Ok(reply);
    }
    cx.block(Wait {
        keys: keys.to_vec(),
        deadline,
        on_timeout: Reply::NilArray,
        serve: Box::new(move |cx, key| {
            let taken = serve_take(cx, key, extreme, limit)?;
            let reply = mpop_reply(key, &taken);
            Some(put_back(key, taken, reply))
        }),
    })
}

/// [`take`] for a client that waits: nothing if there is no sorted set.
fn serve_take(
    cx: &mut Ctx<'_>,
    key: &Bytes,
    extreme: Extreme,
    count: usize,
) -> Option<Vec<(Blob, f64)>> {
    if !matches!(cx.get_mut::<SortedSet>(key), Ok(Some(_))) {
        return None;
    }
    let taken = take(cx, key, extreme, count).ok()?;
    cx.record(removal_effect(key, &taken));
    Some(taken)
}

/// A reply that, if nobody takes it, puts the members back.
fn put_back(key: &Bytes, members: Vec<(Blob, f64)>, reply: Reply) -> Served {
    let key = key.clone();
    let undo = move |cx: &mut Ctx<'_>| {
        let mut effect = vec![
            Bytes::from_static(b"ZADD"),
            key.clone(),
            Bytes::from_static(b"NX"),
        ];
        let done = cx.edit_or_create(&key, |set: &mut SortedSet, config, _| {
            for (member, score) in members {
                // Whoever added the member anew in the meantime has decided on its score.
                if !set.contains(&member) {
                    set.insert(&member, score, config);
                }
                effect.extend([format_double(score), member.into_bytes()]);
            }
        });
        if done.is_ok() {
            cx.changed(&key, class::SORTED_SET, "zadd");
            cx.record(effect);
        }
    };
    Served {
        reply,
        undo: Some(Box::new(undo)),
    }
}

fn bzpopmin(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    block_pop(cx, args, Extreme::Min)
}

fn bzpopmax(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    block_pop(cx, args, Extreme::Max)
}

fn block_pop(cx: &mut Ctx<'_>, args: &[Bytes], extreme: Extreme) -> CommandResult {
    fn reply(key: &Bytes, taken: &[(Blob, f64)]) -> Reply {
        let mut items = vec![Reply::Bulk(key.clone())];
        for (member, score) in taken {
            Layout::Flat.push(&mut items, member, *score);
        }
        Reply::Array(items)
    }
    let (keys, timeout) = (&args[1..args.len() - 1], &args[args.len() - 1]);
    let deadline = timeout_arg(cx, timeout)?;
    for key in keys {
        if cx.get_mut::<SortedSet>(key)?.is_some() {
            let taken = take(cx, key, extreme, 1)?;
            cx.propagate(removal_effect(key, &taken));
            return Ok(reply(key, &taken));
        }
    }
    cx.block(Wait {
        keys: keys.to_vec(),
        deadline,
        on_timeout: Reply::NilArray,
        serve: Box::new(move |cx, key| {
            let taken = serve_take(cx, key, extreme, 1)?;
            let answer = reply(key, &taken);
            Some(put_back(key, taken, answer))
        }),
    })
}

// ---- algebra ----

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            // The sum of opposite infinities is 0 here.
            Aggregate::Sum => not_nan(a + b),
            Aggregate::Min => {
                if b < a {
                    b
                } else {
                    a
                }
            }
            Aggregate::Max => {
                if b > a {
                    b
                } else {
                    a
                }
            }
        }
    }
}

fn not_nan(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value }
}

/// An input of ZUNION and its relatives: a sorted set, or a set whose members all score 1.
#[derive(Clone, Copy)]
enum Source<'a> {
    SortedSet(&'a SortedSet),
    Set(&'a crate::types::set::Set),
    Absent,
}

impl Source<'_> {
    fn len(self) -> usize {
        match self {
            Source::SortedSet(set) => set.len(),
            Source::Set(set) => set.len(),
            Source::Absent => 0,
        }
    }

    fn score(self, member: &[u8]) -> Option<f64> {
        match self {
            Source::SortedSet(set) => set.score(member),
            Source::Set(set) => set.contains(member).then_some(1.0),
            Source::Absent => None,
        }
    }

    fn each(self, mut visit: impl FnMut(&Blob, f64)) {
        match self {
            Source::SortedSet(set) => set.iter().for_each(|(member, score)| visit(member, score)),
            Source::Set(set) => set.iter().for_each(|member| visit(&member, 1.0)),
            Source::Absent => {}
        }
    }
}

/// The arguments of ZUNION and its relatives, from `numkeys` on.
struct Algebra<'a> {
    keys: &'a [Bytes],
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
    limit: usize,
}

/// What the options of one of the relatives are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Reply,
    Store,
    Count,
}

impl<'a> Algebra<'a> {
    fn parse(
        cx: &mut Ctx<'_>,
        args: &'a [Bytes],
        operation: Operation,
        form: Form,
        command: &str,
    ) -> Result<Algebra<'a>, Stop> {
        let count = int_arg(&args[0])?;
        if count < 1 {
            return Err(
                format!("ERR at least 1 input key is needed for '{command}' command").into(),
            );
        }
        if count as u64 > args.len() as u64 - 1 {
            return Err(SYNTAX.into());
        }
        let (keys, mut rest) = args[1..].split_at(count as usize);
        for key in keys {
            match cx.value(key) {
                None | Some(Value::SortedSet(_) | Value::Set(_)) => {}
                Some(_) => return Err(WRONG_TYPE.into()),
            }
        }
        let mut algebra = Algebra {
            keys,
            weights: vec![1.0; keys.len()],
            aggregate: Aggregate::Sum,
            with_scores: false,
            limit: 0,
        };
        let combines = operation != Operation::Difference && form != Form::Count;
        while let Some((arg, tail)) = rest.split_first() {
            rest = tail;
            if combines && arg.eq_ignore_ascii_case(b"weights") && rest.len() >= keys.len() {
                let (weights, tail) = rest.split_at(keys.len());
                for (weight, text) in algebra.weights.iter_mut().zip(weights) {
                    *weight =
                        parse_double(text).ok_or(Stop::from("ERR weight value is not a float"))?;
                }
                rest = tail;
            } else if combines && arg.eq_ignore_ascii_case(b"aggregate") && !rest.is_empty() {
                algebra.aggregate = if rest[0].eq_ignore_ascii_case(b"sum") {
                    Aggregate::Sum
                } else if rest[0].eq_ignore_ascii_case(b"min") {
                    Aggregate::Min
                } else if rest[0].eq_ignore_ascii_case(b"max") {
                    Aggregate::Max
                } else {
                    return Err(SYNTAX.into());
                };
                rest = &rest[1..];
            } else if form == Form::Reply && arg.eq_ignore_ascii_case(b"withscores") {
                algebra.with_scores = true;
            } else if form == Form::Count && arg.eq_ignore_ascii_case(b"limit") && !rest.is_empty()
            {
                let error = "ERR LIMIT can't be negative";
                algebra.limit = range_arg(&rest[0], 0, i64::MAX, error)? as usize;
                rest = &rest[1..];
            } else {
                return Err(SYNTAX.into());
            }
        }
        Ok(algebra)
    }

    /// The inputs with their weights, the smallest first unless the order matters: Redis adds
    /// scores up in that order.
    fn sources<'b>(&self, cx: &'b mut Ctx<'_>, operation: Operation) -> Vec<(Source<'b>, f64)> {
        let places: Vec<_> = self.keys.iter().map(|key| cx.find(key)).collect();
        let db = &cx.state.dbs[cx.client.db];
        let mut sources: Vec<_> = places
            .into_iter()
            .map(|place| match place.map(|slot| &db.entry(slot).value) {
                Some(Value::SortedSet(set)) => Source::SortedSet(set),
                Some(Value::Set(set)) => Source::Set(set),
                _ => Source::Absent,
            })
            .zip(self.weights.iter().copied())
            .collect();
        if operation != Operation::Difference {
            sources.sort_by_key(|(source, _)| source.len());
        }
        sources
    }

    fn run(&self, cx: &mut Ctx<'_>, operation: Operation) -> SortedSet {
        let mut scores: Dict<f64> = Dict::new();
        let sources = self.sources(cx, operation);
        match operation {
            Operation::Union => {
                for (source, weight) in &sources {
                    source.each(|member, score| {
                        let score = not_nan(score * weight);
                        match scores.get_mut(member) {
                            Some(held) => *held = self.aggregate.apply(*held, score),
                            None => {
                                scores.insert_new(member, score);
                            }
                        }
                    });
                }
            }
            Operation::Intersection => {
                if let Some(((smallest, weight), others)) = sources.split_first() {
                    smallest.each(|member, score| {
                        let mut total = not_nan(score * weight);
                        for (other, weight) in others {
                            let Some(score) = other.score(member) else {
                                return;
                            };
                            total = self.aggregate.apply(total, score * weight);
                        }
                        scores.insert_new(member, total);
                    });
                }
            }
            Operation::Difference => {
                if let Some(((first, _), others)) = sources.split_first() {
                    first.each(|member, score| {
                        if others
                            .iter()
                            .all(|(other, _)| other.score(member).is_none())
                        {
                            scores.insert_new(member, score);
                        }
                    });
                }
            }
        }
        SortedSet::from_scores(scores)
    }
}

fn combine(cx: &mut Ctx<'_>, args: &[Bytes], operation: Operation, command: &str) -> CommandResult {
    let algebra = Algebra::parse(cx, &args[1..], operation, Form::Reply, command)?;
    let layout = Layout::of(cx, algebra.with_scores);
    let result = algebra.run(cx, operation);
    let mut items = Vec::with_capacity(result.len());
    result
        .iter()
        .for_each(|(member, score)| layout.push(&mut items, member, score));
    Ok(Reply::Array(items))
}

fn combine_and_store(
    cx: &mut Ctx<'_>,
    args: &[Bytes],
    operation: Operation,
    command: &str,
) -> CommandResult {
    let algebra = Algebra::parse(cx, &args[2..], operation, Form::Store, command)?;
    let result = algebra.run(cx, operation);
    Ok(store(cx, &args[1], result, command))
}

fn zunion(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine(cx, args, Operation::Union, "zunion")
}

fn zinter(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine(cx, args, Operation::Intersection, "zinter")
}

fn zdiff(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine(cx, args, Operation::Difference, "zdiff")
}

fn zunionstore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine_and_store(cx, args, Operation::Union, "zunionstore")
}

fn zinterstore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine_and_store(cx, args, Operation::Intersection, "zinterstore")
}

fn zdiffstore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine_and_store(cx, args, Operation::Difference, "zdiffstore")
}

fn zintercard(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let operation = Operation::Intersection;
    let algebra = Algebra::parse(cx, &args[1..], operation, Form::Count, "zintercard")?;
    let limit = if algebra.limit == 0 {
        usize::MAX
    } else {
        algebra.limit
    };
    Ok(algebra.run(cx, operation).len().min(limit).into())
}
