//! Unions, intersections and differences of sorted sets.

use bytes::Bytes;

use super::{Layout, store};
use crate::{
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop, WRONG_TYPE},
    number::{int_arg, parse_double, range_arg},
    reply::Reply,
    types::{Value, blob::Blob, dict::Dict, sorted_set::SortedSet},
};

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
        self.each_while(|member, score| {
            visit(member, score);
            true
        });
    }

    /// Visits members until told to stop.
    fn each_while(self, mut visit: impl FnMut(&Blob, f64) -> bool) {
        match self {
            Source::SortedSet(set) => {
                set.iter().all(|(member, score)| visit(member, score));
            }
            Source::Set(set) => {
                set.iter().all(|member| visit(&member, 1.0));
            }
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
            let slot = cx.find_read(key);
            match slot.map(|slot| &cx.db().entry(slot).value) {
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

pub(super) fn zunion(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine(cx, args, Operation::Union, "zunion")
}

pub(super) fn zinter(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine(cx, args, Operation::Intersection, "zinter")
}

pub(super) fn zdiff(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine(cx, args, Operation::Difference, "zdiff")
}

pub(super) fn zunionstore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine_and_store(cx, args, Operation::Union, "zunionstore")
}

pub(super) fn zinterstore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine_and_store(cx, args, Operation::Intersection, "zinterstore")
}

pub(super) fn zdiffstore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    combine_and_store(cx, args, Operation::Difference, "zdiffstore")
}

pub(super) fn zintercard(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let operation = Operation::Intersection;
    let algebra = Algebra::parse(cx, &args[1..], operation, Form::Count, "zintercard")?;
    let mut count = 0usize;
    let mut visited = 0;
    let sources = algebra.sources(cx, operation);
    if let Some(((smallest, _), others)) = sources.split_first() {
        smallest.each_while(|member, _| {
            visited += 1;
            let everywhere = |(other, _): &(Source<'_>, f64)| other.score(member).is_some();
            count += usize::from(others.iter().all(everywhere));
            // 0 stands for no limit.
            count != algebra.limit || count == 0
        });
    }
    cx.state.stats.visited += visited;
    Ok(count.into())
}
