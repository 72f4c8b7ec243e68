//! Ranges by rank, score and member: read, counted, stored and removed.

use std::ops::Range;

use bytes::Bytes;

use super::{Layout, after_removal, store};
use crate::{
    commands::list::range_of,
    context::Ctx,
    error::{CommandResult, MIN_MAX_NOT_FLOAT, SYNTAX, Stop},
    number::{int_arg, parse_double_leniently},
    reply::Reply,
    types::{
        blob::Blob,
        sorted_set::{LexBound, LexRange, ScoreRange, SortedSet},
    },
};

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
    let (set, answer) = cx.read::<SortedSet>(&args[1])?;
    let Some(set) = set else {
        return Ok(Reply::empty());
    };
    let ranks = query.ranks(set);
    let mut items = answer.array(layout.items(ranks.len()));
    set.each(
        ranks.start,
        ranks.end,
        query.reverse,
        |member, score| match layout {
            Layout::Members => items.blob(member),
            Layout::Flat => {
                items.blob(member);
                items.reply(Reply::Double(score));
            }
            Layout::Pairs => items.pair(member, Reply::Double(score)),
        },
    );
    Ok(items.end())
}

pub(super) fn zrange(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, None, None)
}

pub(super) fn zrevrange(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, Some(By::Rank), Some(true))
}

pub(super) fn zrangebyscore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, Some(By::Score), Some(false))
}

pub(super) fn zrevrangebyscore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, Some(By::Score), Some(true))
}

pub(super) fn zrangebylex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, Some(By::Lex), Some(false))
}

pub(super) fn zrevrangebylex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range_reply(cx, args, Some(By::Lex), Some(true))
}

pub(super) fn zrangestore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let query = Query::parse(&args[3..], None, None, true)?;
    let stored = cx.edit_read(&args[2], |set: &mut SortedSet, config, _| {
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

pub(super) fn zcount(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let range = score_range(&args[2], &args[3])?;
    Ok(cx
        .get::<SortedSet>(&args[1])?
        .map_or(0, |set| set.score_ranks(&range).len())
        .into())
}

pub(super) fn zlexcount(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
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

pub(super) fn zremrangebyrank(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    remove_range(cx, args, By::Rank, "zremrangebyrank")
}

pub(super) fn zremrangebyscore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    remove_range(cx, args, By::Score, "zremrangebyscore")
}

pub(super) fn zremrangebylex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    remove_range(cx, args, By::Lex, "zremrangebylex")
}
