//! Sorted sets.

use bytes::Bytes;

use crate::{
    commands::hash::{draw_places, random_args},
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    notify::class,
    number::{double_arg, format_double, int_bytes},
    random::Draw,
    registry::{Spec, flag::*, keys_counted_first, keys_counted_second, keys_stored_and_counted},
    reply::Reply,
    scan,
    types::{Value, blob::Blob, sorted_set::SortedSet},
};

mod algebra;
mod pop;
mod range;

use algebra::{zdiff, zdiffstore, zinter, zintercard, zinterstore, zunion, zunionstore};
use pop::{bzmpop, bzpopmax, bzpopmin, zmpop, zpopmax, zpopmin};
use range::{
    zcount, zlexcount, zrange, zrangebylex, zrangebyscore, zrangestore, zremrangebylex,
    zremrangebyrank, zremrangebyscore, zrevrange, zrevrangebylex, zrevrangebyscore,
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
    Spec::new("zrank", 3, READONLY | FAST, (1, 1, 1), zrank).newer_arity(-3),
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
    Spec::new("zrevrank", 3, READONLY | FAST, (1, 1, 1), zrevrank).newer_arity(-3),
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

    /// How many items a reply with this number of members has.
    fn items(self, members: usize) -> usize {
        match self {
            Layout::Members | Layout::Pairs => members,
            Layout::Flat => 2 * members,
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

impl AddOptions {
    /// What does not go together.
    fn check(&self, pairs: &[Bytes]) -> Result<(), Stop> {
        if self.only_new && self.only_existing {
            return Err("ERR XX and NX options at the same time are not compatible".into());
        }
        if (self.greater && self.less) || (self.only_new && (self.greater || self.less)) {
            return Err("ERR GT, LT, and/or NX options at the same time are not compatible".into());
        }
        if self.increment && pairs.len() > 2 {
            return Err("ERR INCR option supports a single increment-element pair".into());
        }
        Ok(())
    }
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
    options.check(pairs)?;
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
    rank(cx, args, false)
}

fn zrevrank(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    rank(cx, args, true)
}

fn rank(cx: &mut Ctx<'_>, args: &[Bytes], reverse: bool) -> CommandResult {
    let with_score = match &args[3..] {
        [] => false,
        [word] if word.eq_ignore_ascii_case(b"withscore") => true,
        [_] => return Err(SYNTAX.into()),
        _ => {
            let name = if reverse { "zrevrank" } else { "zrank" };
            return Err(Stop::wrong_arity(name));
        }
    };
    let set = cx.get::<SortedSet>(&args[1])?;
    let found = set.and_then(|set| {
        let rank = set.rank(&args[2])?;
        let rank = if reverse { set.len() - 1 - rank } else { rank };
        Some((rank, set.score(&args[2])?))
    });
    Ok(match found {
        None if with_score => Reply::NilArray,
        None => Reply::Nil,
        Some((rank, score)) if with_score => Reply::Array(vec![rank.into(), Reply::Double(score)]),
        Some((rank, _)) => rank.into(),
    })
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
    let drawn = cx.edit_read(&args[1], |set: &mut SortedSet, _, random| {
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

/// Puts a result under a key, or removes the key if there is none; the number of members.
pub(crate) fn store(cx: &mut Ctx<'_>, key: &Bytes, mut result: SortedSet, event: &str) -> Reply {
    let len = result.len();
    result.pack(&cx.state.config);
    if len > 0 {
        cx.put(key, Value::SortedSet(Box::new(result)));
        cx.notify(class::SORTED_SET, event, key);
        cx.dirty(1);
    } else if cx.delete(key) {
        cx.notify(class::GENERIC, "del", key);
        cx.dirty(1);
    }
    len.into()
}
