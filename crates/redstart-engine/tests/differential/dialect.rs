//! What may differ although nothing is wrong, and nothing else: each normaliser is one row here.
//!
//! | applies to | what is made equal | why |
//! |---|---|---|
//! | both | members of what has no order | sets and hashes have none; such commands are marked `~` |
//! | both | idle times and delivery times of streams | they count milliseconds of two clocks |
//! | both | messages that one PUBLISH sends to several patterns | the servers keep patterns in a hash table |
//! | Valkey | the text of an error after its code | it says "command" for "Redis command", and more; the code is what programs look at |
//! | Valkey | how a score is written | it writes the shortest text that means it: 0.1 for 0.10000000000000001 |
//! | Valkey | encodings of small lists, small sets and strings of medium length | it packs more |
//! | Valkey | GETEX, BITCOUNT, BITPOS and LPOS with bad arguments on a missing key or one of another type | it looks at the arguments first |
//! | both | SORT by number that only the server refuses | it looks at C's `errno`, which an earlier command may have set; and to Redis 7.0 a text with a zero byte first is the number 0 |
//! | Valkey | XINFO's `inactive` and `active-time` | it has them in addition |
//! | Valkey | XINFO's `entries-read` and `lag` of a group that are unknown to Valkey, or that have the same sum | where entries between two that a group reads were deleted or trimmed, Valkey counts anew or gives up; Redis 7.0 goes on from its old, by then too small, count |
//! | Valkey | a waiting XREADGROUP whose stream is gone | Redis 7.0 says UNBLOCKED; Valkey runs the command again, and says NOGROUP or WRONGTYPE |
//! | Valkey | a waiting XREAD whose stream has grown, but the new entry is gone again | Redis 7.0 answers without entries, Valkey goes on waiting: its wait is ended |
//! | Valkey | XSETID to an id before one that was deleted | it refuses that: it is not sent |
//! | Valkey | a wait for several keys | once one of them is ready Valkey runs the command again, over all of them, where Redis 7.0 answers with that one: the wait is not begun |
//! | both | a wait for several keys during SWAPDB | which of the keys comes first is up to a hash table: the wait is ended before |
//! | both | the order of `keymiss` notifications in a row | SORT looks up what BY and GET name in the order in which a hash table has the members |
//! | Valkey | `keymiss` notifications | where it looks at arguments first it may not look the key up at all: they are not asked for |
//! | both | `expired` notifications | a deadline in the past is noticed by a background cycle, at any time |

use bytes::Bytes;
use redstart_engine::Reply;
use redstart_testkit::Kind;

use crate::{same, sorted};

/// Whether both sides say the same to a command.
pub(crate) fn alike(
    kind: Kind,
    args: &[Bytes],
    unordered: bool,
    ours: &Reply,
    theirs: &Reply,
) -> bool {
    let normal = |reply: &Reply| {
        let reply = without_times(args, reply.clone());
        let reply = match kind {
            Kind::Redis => reply,
            Kind::Valkey => with_one_text(reply),
        };
        if unordered { sorted(reply) } else { reply }
    };
    let (mut ours, theirs) = (normal(ours), normal(theirs));
    if kind == Kind::Valkey {
        ours = with_their_counts(args, ours, &theirs);
    }
    same(&ours, &theirs)
        || is_stale_error(args, &ours, &theirs)
        || kind == Kind::Valkey && excused(args, &ours, &theirs)
}

/// SORT looks at C's `errno`, which an earlier command may have set.
fn is_stale_error(args: &[Bytes], ours: &Reply, theirs: &Reply) -> bool {
    is(args, 0, "sort")
        && matches!(ours, Reply::Array(_))
        && matches!(theirs, Reply::Error(error) if error.contains("can't be converted into double"))
}

/// The rows of the table that are Valkey's.
fn excused(args: &[Bytes], ours: &Reply, theirs: &Reply) -> bool {
    let name = args[0].to_ascii_uppercase();
    match (ours, theirs) {
        (Reply::Error(ours), Reply::Error(theirs)) => {
            code(ours) == code(theirs)
                || name == b"XREADGROUP"
                    && code(ours) == "UNBLOCKED"
                    && ["NOGROUP", "WRONGTYPE"].contains(&code(theirs))
                || CHECKED_FIRST.contains(&&name[..]) && code(ours) == "WRONGTYPE"
        }
        (Reply::Array(ours), Reply::Array(theirs)) if ours.len() == theirs.len() => ours
            .iter()
            .zip(theirs)
            .all(|(ours, theirs)| same(ours, theirs) || excused(args, ours, theirs)),
        (Reply::Bulk(ours), Reply::Bulk(theirs)) if name == b"OBJECT" => {
            let pair = (&ours[..], &theirs[..]);
            ENCODINGS.contains(&pair)
        }
        (ours, Reply::Error(_)) if CHECKED_FIRST.contains(&&name[..]) => {
            matches!(ours, Reply::Nil | Reply::Int(0 | -1))
                || matches!(ours, Reply::Array(items) if items.is_empty())
        }
        _ => false,
    }
}

/// The first word of an error.
fn code(error: &str) -> &str {
    error.split(' ').next().unwrap_or_default()
}

/// Scores in one way of writing, before what has no order is sorted.
fn with_one_text(reply: Reply) -> Reply {
    match reply {
        Reply::Bulk(text) => match number(&text) {
            Some(number) => Reply::Bulk(format!("{number:?}").into()),
            None => Reply::Bulk(text),
        },
        Reply::Array(items) => Reply::Array(items.into_iter().map(with_one_text).collect()),
        other => other,
    }
}

/// What only a score looks like: a fraction, or an integer beyond those of which a double has all.
fn number(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let integer = number.fract() == 0.0 && number.abs() < 1e15;
    (number.is_finite() && !integer).then_some(number)
}

/// Of the engine and of Valkey.
const ENCODINGS: &[(&[u8], &[u8])] = &[
    (b"quicklist", b"listpack"),
    (b"hashtable", b"listpack"),
    (b"raw", b"embstr"),
    (b"int", b"embstr"),
];

const CHECKED_FIRST: &[&[u8]] = &[b"GETEX", b"BITCOUNT", b"BITPOS", b"LPOS"];

/// Whether it is the answer of an XREAD that has streams, but none with an entry.
pub(crate) fn has_no_entries(reply: &Reply) -> bool {
    let empty = |entries: &Reply| matches!(entries, Reply::Array(items) if items.is_empty());
    match reply {
        Reply::Array(streams) if !streams.is_empty() => streams.iter().all(|stream| {
            matches!(stream, Reply::Array(pair) if matches!(&pair[..], [Reply::Bulk(_), entries] if empty(entries)))
        }),
        Reply::Map(streams) if !streams.is_empty() => {
            streams.iter().all(|(_, entries)| empty(entries))
        }
        _ => false,
    }
}

/// The largest id that was deleted from a stream, of what XINFO STREAM says.
pub(crate) fn max_deleted(info: &Reply) -> Option<(u64, u64)> {
    match value(info, "max-deleted-entry-id") {
        Some(Reply::Bulk(text)) => stream_id(text),
        _ => None,
    }
}

/// An entry's id; without a second part that is 0.
pub(crate) fn stream_id(text: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(text).ok()?;
    let (ms, seq) = text.split_once('-').unwrap_or((text, "0"));
    Some((ms.parse().ok()?, seq.parse().ok()?))
}

/// Whether a command that can wait does so for more than one key.
pub(crate) fn awaits_several(args: &[Bytes]) -> bool {
    match &args[0].to_ascii_uppercase()[..] {
        b"BLPOP" | b"BRPOP" | b"BZPOPMIN" | b"BZPOPMAX" => args.len() > 3,
        b"BLMPOP" | b"BZMPOP" => args[2] != "1",
        b"XREAD" | b"XREADGROUP" => {
            let streams = args.iter().position(|arg| arg == "STREAMS");
            streams.is_some_and(|at| args.len() - at > 3)
        }
        _ => false,
    }
}

/// Whether a message comes at a time that its step decides.
pub(crate) fn is_timely(message: &Reply) -> bool {
    let (Reply::Push(items) | Reply::Array(items)) = message else {
        return true;
    };
    let expired = |item: &Reply| matches!(item, Reply::Bulk(text) if text.ends_with(b"__:expired"));
    !items.iter().any(expired)
}

/// What a listener hears in one step: notifications in their order, then the other messages.
pub(crate) fn messages(heard: &[Reply]) -> (Vec<String>, Vec<String>) {
    let texts = heard.iter().map(|push| format!("{push:?}"));
    let (mut notifications, mut others): (Vec<_>, Vec<_>) =
        texts.partition(|text| text.contains("__key*"));
    let is_miss = |text: &String| text.contains("__:keymiss");
    for misses in notifications.chunk_by_mut(|a, b| is_miss(a) && is_miss(b)) {
        misses.sort();
    }
    others.sort();
    (notifications, others)
}

fn is(args: &[Bytes], at: usize, word: &str) -> bool {
    args.get(at)
        .is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
}

/// Idle and delivery times become zero.
fn without_times(args: &[Bytes], reply: Reply) -> Reply {
    if is(args, 0, "xpending") && args.len() > 3 {
        return each(reply, |entry| at(entry, 2, zero));
    }
    if is(args, 0, "xinfo") && is(args, 1, "consumers") {
        return each(reply, |consumer| {
            field(without(consumer, "inactive"), "idle", zero)
        });
    }
    if is(args, 0, "xinfo") && is(args, 1, "stream") && args.len() > 3 {
        return field(reply, "groups", |groups| {
            each(groups, |group| {
                let group = field(group, "pending", |all| {
                    each(all, |entry| at(entry, 2, zero))
                });
                let group = field(group, "pel", |all| each(all, |entry| at(entry, 2, zero)));
                field(group, "consumers", |consumers| {
                    each(consumers, |consumer| {
                        let consumer = without(consumer, "active-time");
                        let consumer = field(consumer, "seen-time", zero);
                        let times = |all| each(all, |entry| at(entry, 1, zero));
                        field(field(consumer, "pending", times), "pel", times)
                    })
                })
            })
        });
    }
    reply
}

/// Our groups with their counts, where Valkey may count in another way.
fn with_their_counts(args: &[Bytes], ours: Reply, theirs: &Reply) -> Reply {
    let each_group = |ours: Reply, theirs: &Reply| match (ours, theirs) {
        (Reply::Array(ours), Reply::Array(theirs)) if ours.len() == theirs.len() => {
            let pairs = ours.into_iter().zip(theirs);
            Reply::Array(pairs.map(|(ours, theirs)| counted(ours, theirs)).collect())
        }
        (ours, _) => ours,
    };
    if is(args, 0, "xinfo") && is(args, 1, "groups") {
        return each_group(ours, theirs);
    }
    if is(args, 0, "xinfo") && is(args, 1, "stream") && args.len() > 3 {
        let Some(theirs) = value(theirs, "groups") else {
            return ours;
        };
        return field(ours, "groups", |ours| each_group(ours, theirs));
    }
    ours
}

/// Our group with the counts of theirs, if those are unknown or have the same sum: all that was ever added.
fn counted(ours: Reply, theirs: &Reply) -> Reply {
    use Reply::{Int, Nil};
    let read_and_lag = ["entries-read", "lag"];
    let counts = |group: &Reply| read_and_lag.map(|name| value(group, name).cloned());
    let (our_counts, their_counts) = (counts(&ours), counts(theirs));
    let excused = match (&our_counts, &their_counts) {
        ([Some(Int(_)), _], [Some(Nil), _]) => true,
        ([_, Some(Int(_))], [_, Some(Nil)]) => true,
        ([Some(Int(our_read)), Some(Int(our_lag))], [Some(Int(read)), Some(Int(lag))]) => {
            our_read.wrapping_add(*our_lag) == read.wrapping_add(*lag)
        }
        _ => false,
    };
    let counts = read_and_lag.into_iter().zip(their_counts);
    match excused {
        true => counts.fold(ours, |ours, (name, count)| {
            field(ours, name, |old| count.clone().unwrap_or(old))
        }),
        false => ours,
    }
}

fn zero(_: Reply) -> Reply {
    Reply::Int(0)
}

fn each(reply: Reply, change: impl Fn(Reply) -> Reply) -> Reply {
    match reply {
        Reply::Array(items) => Reply::Array(items.into_iter().map(change).collect()),
        other => other,
    }
}

fn at(reply: Reply, index: usize, change: impl Fn(Reply) -> Reply) -> Reply {
    match reply {
        Reply::Array(mut items) if items.len() > index => {
            items[index] = change(items[index].clone());
            Reply::Array(items)
        }
        other => other,
    }
}

/// A map without a name.
fn without(reply: Reply, name: &str) -> Reply {
    let named = |item: &Reply| matches!(item, Reply::Bulk(text) if text == name.as_bytes());
    match reply {
        Reply::Map(mut pairs) => {
            pairs.retain(|(key, _)| !named(key));
            Reply::Map(pairs)
        }
        Reply::Array(mut items) => {
            if let Some(pair) = items.iter().step_by(2).position(named) {
                items.drain(pair * 2..pair * 2 + 2);
            }
            Reply::Array(items)
        }
        other => other,
    }
}

/// The value of a name, in a map or in the array that RESP2 has for one.
fn value<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let named = |item: &Reply| matches!(item, Reply::Bulk(text) if text == name.as_bytes());
    match reply {
        Reply::Map(pairs) => {
            let pair = pairs.iter().find(|(key, _)| named(key))?;
            Some(&pair.1)
        }
        Reply::Array(items) => {
            let pair = items.iter().step_by(2).position(named)?;
            items.get(pair * 2 + 1)
        }
        _ => None,
    }
}

/// As [`value`], changed.
fn field(reply: Reply, name: &str, change: impl Fn(Reply) -> Reply) -> Reply {
    let named = |item: &Reply| matches!(item, Reply::Bulk(text) if text == name.as_bytes());
    match reply {
        Reply::Map(pairs) => Reply::Map(
            pairs
                .into_iter()
                .map(|(key, value)| match named(&key) {
                    true => (key, change(value)),
                    false => (key, value),
                })
                .collect(),
        ),
        Reply::Array(items) => {
            let found = items.iter().step_by(2).position(named);
            match found {
                Some(pair) => at(Reply::Array(items), pair * 2 + 1, change),
                None => Reply::Array(items),
            }
        }
        other => other,
    }
}
