//! SORT and SORT_RO.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::{
    acl,
    context::{Ctx, Origin},
    error::{CommandResult, SYNTAX, Stop, WRONG_TYPE},
    notify::class,
    number::{int_arg, parse_double_leniently},
    registry::{self, Spec, flag::*},
    reply::Reply,
    types::{Value, blob::Blob, hash::Hash, list::List, sorted_set::SortedSet, string::Str},
};

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("sort", -2, WRITE | DENYOOM | MOVABLEKEYS, (1, 1, 1), sort).movable(sort_keys),
    Spec::new("sort_ro", -2, READONLY | MOVABLEKEYS, (1, 1, 1), sort_ro).movable(sort_ro_keys),
];

/// The sorted key, and the one that STORE names last.
fn sort_keys(args: &[Bytes]) -> Option<Vec<usize>> {
    let mut keys = vec![1];
    let mut at = 2;
    let mut store = None;
    while at < args.len() {
        let takes = if args[at].eq_ignore_ascii_case(b"limit") {
            2
        } else if args[at].eq_ignore_ascii_case(b"get") || args[at].eq_ignore_ascii_case(b"by") {
            1
        } else if args[at].eq_ignore_ascii_case(b"store") && at + 1 < args.len() {
            store = Some(at + 1);
            1
        } else {
            0
        };
        at += 1 + takes;
    }
    keys.extend(store);
    Some(keys)
}

fn sort_ro_keys(_: &[Bytes]) -> Option<Vec<usize>> {
    Some(vec![1])
}

fn sort(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let options = Options::parse(cx, args, true)?;
    run(cx, args, options)
}

fn sort_ro(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let options = Options::parse(cx, args, false)?;
    run(cx, args, options)
}

#[derive(Default)]
struct Options {
    descending: bool,
    alpha: bool,
    offset: i64,
    count: Option<i64>,
    by: Option<Bytes>,
    /// BY without a star: the order stays as it is.
    unsorted: bool,
    get: Vec<Bytes>,
    store: Option<Bytes>,
}

impl Options {
    fn parse(cx: &Ctx<'_>, args: &[Bytes], may_store: bool) -> Result<Options, Stop> {
        let strict = cx.state.config.checks_slots();
        let denied =
            registry::lookup(args).is_some_and(|spec| !acl::reads_all_keys(cx, spec, args));
        let mut options = Options::default();
        let mut rest = &args[2..];
        while let Some((arg, tail)) = rest.split_first() {
            rest = tail;
            if arg.eq_ignore_ascii_case(b"asc") {
                options.descending = false;
            } else if arg.eq_ignore_ascii_case(b"desc") {
                options.descending = true;
            } else if arg.eq_ignore_ascii_case(b"alpha") {
                options.alpha = true;
            } else if arg.eq_ignore_ascii_case(b"limit") && rest.len() >= 2 {
                options.offset = int_arg(&rest[0])?;
                options.count = Some(int_arg(&rest[1])?);
                rest = &rest[2..];
            } else if may_store && arg.eq_ignore_ascii_case(b"store") && !rest.is_empty() {
                options.store = Some(rest[0].clone());
                rest = &rest[1..];
            } else if arg.eq_ignore_ascii_case(b"by") && !rest.is_empty() {
                let pattern = rest[0].clone();
                if !pattern.contains(&b'*') {
                    options.unsorted = true;
                } else if strict {
                    return Err("ERR BY option of SORT denied in Cluster mode.".into());
                } else if denied {
                    return Err(
                        "ERR BY option of SORT denied due to insufficient ACL permissions.".into(),
                    );
                }
                options.by = Some(pattern);
                rest = &rest[1..];
            } else if arg.eq_ignore_ascii_case(b"get") && !rest.is_empty() {
                if strict {
                    return Err("ERR GET option of SORT denied in Cluster mode.".into());
                }
                if denied {
                    return Err(
                        "ERR GET option of SORT denied due to insufficient ACL permissions.".into(),
                    );
                }
                options.get.push(rest[0].clone());
                rest = &rest[1..];
            } else {
                return Err(SYNTAX.into());
            }
        }
        Ok(options)
    }
}

/// What an item is sorted by.
enum Weight {
    Number(f64),
    Text(Option<Bytes>),
}

fn run(cx: &mut Ctx<'_>, args: &[Bytes], mut options: Options) -> CommandResult {
    if let Ok(Some(set)) = cx.get_mut_read::<SortedSet>(&args[1]) {
        // Redis sorts the skiplist form only, and does not change it back.
        set.unpack();
    }
    let in_script = cx.origin == Origin::Script;
    let mut items: Vec<Blob> = match cx.value(&args[1]) {
        None => Vec::new(),
        Some(Value::List(list)) if options.unsorted && options.descending => {
            list.iter().rev().cloned().collect()
        }
        Some(Value::List(list)) => list.iter().cloned().collect(),
        Some(Value::Set(set)) => {
            // A set has no order of its own to leave as it is: what is stored, and what scripts see,
            // must not be random.
            if options.unsorted && (options.store.is_some() || in_script) {
                options.unsorted = false;
                options.alpha = true;
                options.by = None;
            }
            set.iter().collect()
        }
        Some(Value::SortedSet(set)) => {
            let mut items = Vec::with_capacity(set.len());
            let reverse = options.unsorted && options.descending;
            set.each(0, set.len(), reverse, |member, _| {
                items.push(member.clone())
            });
            items
        }
        Some(_) => return Err(WRONG_TYPE.into()),
    };
    if !options.unsorted {
        items = ordered(cx, items, &options)?;
    }
    let start = options.offset.max(0).min(items.len() as i64) as usize;
    let count = match options.count {
        Some(count) if count >= 0 => count.min((items.len() - start) as i64) as usize,
        _ => items.len() - start,
    };
    let mut output: Vec<Option<Bytes>> = Vec::new();
    for item in &items[start..start + count] {
        if options.get.is_empty() {
            output.push(Some(item.to_bytes()));
        }
        for pattern in &options.get {
            output.push(look_up(cx, pattern, item));
        }
    }
    let Some(target) = options.store else {
        return Ok(Reply::Array(output.into_iter().map(Reply::from).collect()));
    };
    let len = output.len();
    if len > 0 {
        let list: List = output
            .into_iter()
            .map(|item| Blob::new(&item.unwrap_or_default()))
            .collect();
        cx.put(&target, Value::List(Box::new(list)));
        cx.notify(class::LIST, "sortstore", &target);
        cx.dirty(len);
    } else if cx.delete(&target) {
        cx.notify(class::GENERIC, "del", &target);
        cx.dirty(1);
    }
    Ok(len.into())
}

fn ordered(cx: &mut Ctx<'_>, items: Vec<Blob>, options: &Options) -> Result<Vec<Blob>, Stop> {
    let mut weighed = Vec::with_capacity(items.len());
    for item in items {
        let by = match &options.by {
            Some(pattern) => look_up(cx, pattern, &item),
            None => Some(item.to_bytes()),
        };
        let weight = if options.alpha {
            Weight::Text(by)
        } else {
            let number = match by {
                Some(text) => parse_double_leniently(&text, true).ok_or(Stop::from(
                    "ERR One or more scores can't be converted into double",
                ))?,
                None => 0.0,
            };
            Weight::Number(number)
        };
        weighed.push((weight, item));
    }
    weighed.sort_by(|(a, a_item), (b, b_item)| {
        let order = match (a, b) {
            (Weight::Number(a), Weight::Number(b)) => {
                // Equal numbers fall back to the items, so that the result is always the same.
                a.partial_cmp(b)
                    .unwrap_or(Ordering::Equal)
                    .then_with(|| a_item.cmp(b_item))
            }
            (Weight::Text(a), Weight::Text(b)) if options.store.is_some() => a.cmp(b),
            // Redis collates as C does, for which a NUL ends the text.
            (Weight::Text(a), Weight::Text(b)) => {
                let text = |bytes: &Bytes| {
                    let len = memchr::memchr(0, bytes).unwrap_or(bytes.len());
                    bytes.slice(..len)
                };
                a.as_ref().map(text).cmp(&b.as_ref().map(text))
            }
            _ => Ordering::Equal,
        };
        if options.descending {
            order.reverse()
        } else {
            order
        }
    });
    Ok(weighed.into_iter().map(|(_, item)| item).collect())
}

/// The value that a pattern means for an item: `#` is the item itself, `key*` the string at a key,
/// `key*->field` a field of the hash there.
fn look_up(cx: &mut Ctx<'_>, pattern: &[u8], item: &[u8]) -> Option<Bytes> {
    if pattern == b"#" {
        return Some(Bytes::copy_from_slice(item));
    }
    let star = memchr::memchr(b'*', pattern)?;
    let (key_pattern, field) = match memchr::memmem::find(&pattern[star..], b"->") {
        Some(at) if star + at + 2 < pattern.len() => {
            (&pattern[..star + at], Some(&pattern[star + at + 2..]))
        }
        _ => (pattern, None),
    };
    let key = [&key_pattern[..star], item, &key_pattern[star + 1..]].concat();
    match field {
        None => cx.get::<Str>(&key).ok()?.map(Str::to_bytes),
        Some(field) => cx.get::<Hash>(&key).ok()??.get(field).map(Blob::to_bytes),
    }
}
