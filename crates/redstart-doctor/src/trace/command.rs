//! What a command does to which keys, as far as the rules need it.

/// A command's meaning for one of its keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Get,
    /// Reads it together with many others.
    Together,
    /// Reads it and gives it a new TTL.
    Renew {
        seconds: f64,
    },
    /// A plain value by its fingerprint, if all of it was seen.
    Set {
        value: Option<u64>,
        form: Form,
        ttl: Ttl,
    },
    /// Only if it is not there.
    Take {
        value: Option<u64>,
        ttl: Ttl,
        /// The value says more than who took it.
        data: bool,
    },
    Increment,
    /// Reads the counter and sets it to zero.
    Drain,
    Expire {
        seconds: f64,
        /// Only if it has none.
        if_none: bool,
    },
    Delete,
    /// Deletes it together with what it belongs to: the lease in `DEL product:7 product:7:lease`.
    Revoke,
    /// Deletes it if it has a certain value.
    Release,
    /// Reads a whole hash, or fields of it.
    HashGet,
    HashSet,
    HashRemove,
    Push,
    /// Takes an element away; `true` if it waits for one.
    Pop(bool),
    /// Moves an element to another list.
    Move(bool),
    ListTrim,
    Whole,
    SetAdd,
    SetRemove,
    /// Asks how many members there are.
    SetCount,
    /// Asks which members there are.
    SetUse,
    ZAdd {
        score: f64,
    },
    ZTrim,
    ZRemove,
    ZCount,
    StreamAdd {
        trims: bool,
    },
    StreamRead,
    StreamAck,
    StreamTrim,
    Script,
}

/// The TTL that a write gives its key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ttl {
    Never,
    Seconds(f64),
    /// The end of the line, where it would stand, was cut off.
    Unknown,
}

impl Ttl {
    /// When the key ends, as far as it is known.
    pub(crate) fn end(self, now: f64) -> f64 {
        match self {
            Self::Seconds(ttl) => now + ttl,
            Self::Never | Self::Unknown => f64::INFINITY,
        }
    }
}

/// The form of a value that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Integer,
    /// A time near that of the line, in whatever unit.
    Time,
    Json,
    Other,
}

/// Hashes a value, so that two can be compared and none is kept.
pub(crate) fn fingerprint(value: &[u8]) -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    let mut hasher = foldhash::quality::FixedState::with_seed(11).build_hasher();
    hasher.write(value);
    hasher.finish()
}

fn form(value: &[u8], now: f64) -> Form {
    let text = std::str::from_utf8(value).unwrap_or_default();
    match value {
        [b'{' | b'[', ..] => Form::Json,
        _ if is_time(text, now) => Form::Time,
        _ if text.parse::<i64>().is_ok() => Form::Integer,
        _ => Form::Other,
    }
}

/// A time further from that of the line is no time stamp, in seconds.
const NEAR: f64 = 172_800.0;
/// Where the time of the line is not known, it is less than this.
const KNOWN: f64 = 1e9;

/// Whether a value is about the time of the line: in seconds or parts of them since 1970, or as a date.
fn is_time(text: &str, now: f64) -> bool {
    if now < KNOWN {
        return false;
    }
    let near = |seconds: f64| (seconds - now).abs() < NEAR;
    if let Ok(number) = text.parse::<f64>() {
        return [1.0, 1e3, 1e6, 1e9].iter().any(|unit| near(number / unit));
    }
    if text.len() > 40 || !text.starts_with(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let zoned = text.parse::<jiff::Timestamp>().ok();
    let civil = || {
        let date: jiff::civil::DateTime = text.parse().ok()?;
        Some(date.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    zoned
        .or_else(civil)
        .is_some_and(|time| near(time.as_second() as f64))
}

/// Longer values, and numbers below this, are no tokens.
const TOKEN: usize = 128;
const IDS: i64 = 1_000_000_000;

/// Whether a value that was set with NX is of use to others than its holder: an id, a record, a text.
fn is_data(value: &[u8]) -> bool {
    let text = std::str::from_utf8(value).unwrap_or_default();
    matches!(value, [b'{' | b'[', ..])
        || value.len() > TOKEN
        || value.iter().any(u8::is_ascii_whitespace)
        || text.parse::<i64>().is_ok_and(|n| (2..IDS).contains(&n))
}

fn number(word: Option<&Vec<u8>>) -> Option<f64> {
    std::str::from_utf8(word?).ok()?.parse().ok()
}

/// The options of SET that follow its value.
struct SetOptions {
    nx: bool,
    ttl: Ttl,
}

fn set_options(words: &[Vec<u8>], now: f64, cut: bool) -> SetOptions {
    // The last word of a line that was cut may be half of one.
    let whole = words.len() - usize::from(cut && !words.is_empty());
    let words = &words[..whole];
    let mut options = SetOptions {
        nx: false,
        ttl: if cut { Ttl::Unknown } else { Ttl::Never },
    };
    for (i, word) in words.iter().enumerate() {
        if word.eq_ignore_ascii_case(b"NX") {
            options.nx = true;
        } else if word.eq_ignore_ascii_case(b"KEEPTTL") {
            // It keeps what the key has; a rule that asks for a TTL must not complain.
            options.ttl = Ttl::Seconds(f64::INFINITY);
        } else if let Some(seconds) = lifetime(word, words.get(i + 1), now) {
            options.ttl = Ttl::Seconds(seconds);
        }
    }
    options
}

/// The seconds of an option such as `EX 60`.
fn lifetime(option: &[u8], value: Option<&Vec<u8>>, now: f64) -> Option<f64> {
    let value = number(value);
    match option.to_ascii_uppercase().as_slice() {
        b"EX" => value,
        b"PX" => value.map(|ms| ms / 1000.0),
        b"EXAT" => value.map(|at| at - now),
        b"PXAT" => value.map(|at| at / 1000.0 - now),
        _ => None,
    }
}

/// Whether XADD removes the oldest entries: an option before the id says so. The line's fields may have any name.
fn trims(words: &[Vec<u8>]) -> bool {
    let options = words.iter().skip(2);
    options
        .take_while(|word| *word != b"*" && !word.contains(&b'-'))
        .any(|word| word.eq_ignore_ascii_case(b"MAXLEN") || word.eq_ignore_ascii_case(b"MINID"))
}

/// A client that reads this many keys at once compares them.
const MANY: usize = 10;
/// Keys of one command that others are compared with.
const FEW: usize = 32;

/// Whether a key's name is another's with something behind it.
fn belongs(name: &[u8], of: &[u8]) -> bool {
    let rest = name.strip_prefix(of).filter(|_| !of.is_empty());
    rest.is_some_and(|rest| matches!(rest.first(), Some(b':' | b'.' | b'/' | b'-' | b'_' | b'#')))
}

/// The keys of a command and what it does to each. The end of the command may have been cut off.
pub(crate) fn actions(name: &str, words: &[Vec<u8>], now: f64, cut: bool) -> Vec<(usize, Action)> {
    let one = |action: Action| {
        if words.len() > 1 {
            vec![(1, action)]
        } else {
            Vec::new()
        }
    };
    let each = |from: usize, to: usize, action: Action| {
        (from..to.min(words.len()))
            .map(|i| (i, action.clone()))
            .collect()
    };
    let all = words.len();
    let value = |i: usize| {
        let whole = !(cut && i + 1 >= all);
        words.get(i).filter(|_| whole).map(|word| fingerprint(word))
    };
    // `numkeys key…` from a place on.
    let counted = |at: usize, action: Action| -> Vec<(usize, Action)> {
        let keys = number(words.get(at)).unwrap_or(0.0).clamp(0.0, 64.0) as usize;
        each(at + 1, at + 1 + keys, action)
    };
    let if_none = words
        .get(3)
        .is_some_and(|word| word.eq_ignore_ascii_case(b"NX"));
    match name {
        "GET" | "GETRANGE" | "SUBSTR" => one(Action::Get),
        "GETEX" => {
            let option = words.get(2).map_or(&[][..], Vec::as_slice);
            one(match lifetime(option, words.get(3), now) {
                Some(seconds) => Action::Renew { seconds },
                None => Action::Get,
            })
        }
        "MGET" if all > MANY => each(1, all, Action::Together),
        "MGET" => each(1, all, Action::Get),
        "SET" => {
            let options = set_options(words.get(3..).unwrap_or_default(), now, cut);
            one(match options.nx {
                true => Action::Take {
                    value: value(2),
                    ttl: options.ttl,
                    data: words.get(2).is_some_and(|word| is_data(word)),
                },
                false => Action::Set {
                    value: value(2),
                    form: words.get(2).map_or(Form::Other, |word| form(word, now)),
                    ttl: options.ttl,
                },
            })
        }
        "SETEX" | "PSETEX" => {
            let unit = if name == "SETEX" { 1.0 } else { 1000.0 };
            one(Action::Set {
                value: value(3),
                form: words.get(3).map_or(Form::Other, |word| form(word, now)),
                ttl: number(words.get(2)).map_or(Ttl::Unknown, |ttl| Ttl::Seconds(ttl / unit)),
            })
        }
        "SETNX" => one(Action::Take {
            value: value(2),
            ttl: Ttl::Never,
            data: words.get(2).is_some_and(|word| is_data(word)),
        }),
        "MSET" => (1..all)
            .step_by(2)
            .map(|i| {
                let form = words.get(i + 1).map_or(Form::Other, |word| form(word, now));
                (
                    i,
                    Action::Set {
                        value: value(i + 1),
                        form,
                        ttl: Ttl::Never,
                    },
                )
            })
            .collect(),
        "GETSET" if words.get(2).is_some_and(|word| word == b"0") => one(Action::Drain),
        "GETSET" => one(Action::Set {
            value: value(2),
            form: words.get(2).map_or(Form::Other, |word| form(word, now)),
            ttl: Ttl::Never,
        }),
        "INCR" | "DECR" | "INCRBY" | "DECRBY" | "INCRBYFLOAT" => one(Action::Increment),
        "EXPIRE" => one(Action::Expire {
            seconds: number(words.get(2)).unwrap_or(0.0),
            if_none,
        }),
        "PEXPIRE" => one(Action::Expire {
            seconds: number(words.get(2)).unwrap_or(0.0) / 1000.0,
            if_none,
        }),
        "EXPIREAT" => one(Action::Expire {
            seconds: number(words.get(2)).unwrap_or(0.0) - now,
            if_none,
        }),
        "PEXPIREAT" => one(Action::Expire {
            seconds: number(words.get(2)).unwrap_or(0.0) / 1000.0 - now,
            if_none,
        }),
        // Each is compared with each: of a long list only the beginning.
        "DEL" | "UNLINK" => (1..all)
            .map(|at| {
                let mut others = words[1..all.min(FEW)].iter();
                match others.any(|of| belongs(&words[at], of)) {
                    true => (at, Action::Revoke),
                    false => (at, Action::Delete),
                }
            })
            .collect(),
        "GETDEL" => one(Action::Delete),
        "DELEX" if all == 2 && !cut => one(Action::Delete),
        "DELIFEQ" | "DELEX" => one(Action::Release),
        "HGETALL" => one(Action::HashGet),
        "HGET" | "HMGET" => one(Action::HashGet),
        "HSET" | "HMSET" | "HSETNX" | "HINCRBY" | "HINCRBYFLOAT" => one(Action::HashSet),
        "HDEL" | "HGETDEL" => one(Action::HashRemove),
        "LPUSH" | "RPUSH" | "LPUSHX" | "RPUSHX" | "LINSERT" => one(Action::Push),
        "LPOP" | "RPOP" => one(Action::Pop(false)),
        "BLPOP" | "BRPOP" => each(1, all.saturating_sub(1), Action::Pop(true)),
        "LMPOP" => counted(1, Action::Pop(false)),
        "BLMPOP" => counted(2, Action::Pop(true)),
        "LMOVE" | "RPOPLPUSH" => each(1, 2, Action::Move(false)),
        "BLMOVE" | "BRPOPLPUSH" => each(1, 2, Action::Move(true)),
        "LTRIM" | "LREM" => one(Action::ListTrim),
        "LRANGE" if is_whole(words) => one(Action::Whole),
        "SMEMBERS" => one(Action::Whole),
        "ZRANGE" | "ZREVRANGE" if is_whole(words) => one(Action::Whole),
        "SADD" => one(Action::SetAdd),
        "SREM" | "SPOP" | "SMOVE" => one(Action::SetRemove),
        "SCARD" => one(Action::SetCount),
        "SISMEMBER" | "SMISMEMBER" | "SSCAN" | "SRANDMEMBER" => one(Action::SetUse),
        "SINTER" | "SUNION" | "SDIFF" => each(1, all, Action::SetUse),
        "SINTERSTORE" | "SUNIONSTORE" | "SDIFFSTORE" => each(2, all, Action::SetUse),
        "SINTERCARD" => counted(1, Action::SetUse),
        "ZADD" => {
            let score = words.iter().skip(2).find_map(|word| number(Some(word)));
            one(Action::ZAdd {
                score: score.unwrap_or(0.0),
            })
        }
        "ZREMRANGEBYSCORE" | "ZREMRANGEBYRANK" | "ZREMRANGEBYLEX" | "ZPOPMIN" | "ZPOPMAX" => {
            one(Action::ZTrim)
        }
        "BZPOPMIN" | "BZPOPMAX" => each(1, all.saturating_sub(1), Action::ZTrim),
        "ZMPOP" => counted(1, Action::ZTrim),
        "BZMPOP" => counted(2, Action::ZTrim),
        "ZREM" => one(Action::ZRemove),
        "ZCARD" | "ZCOUNT" => one(Action::ZCount),
        "XADD" => one(Action::StreamAdd {
            trims: trims(words),
        }),
        "XTRIM" | "XDEL" => one(Action::StreamTrim),
        "XACK" => one(Action::StreamAck),
        "XREADGROUP" | "XREAD" => match words
            .iter()
            .position(|word| word.eq_ignore_ascii_case(b"STREAMS"))
        {
            Some(at) => {
                let keys = (all - at - 1) / 2;
                each(at + 1, at + 1 + keys, Action::StreamRead)
            }
            None => Vec::new(),
        },
        "EVAL" | "EVALSHA" | "FCALL" | "EVAL_RO" | "EVALSHA_RO" | "FCALL_RO" => {
            counted(2, Action::Script)
        }
        _ => Vec::new(),
    }
}

/// A range of at least as many elements is as bad as all of them.
const LARGE: i64 = 5_000;

/// `0 -1`, from the first element to the last, or a range of very many: of a command that has ranks behind its key.
pub(crate) fn is_whole(words: &[Vec<u8>]) -> bool {
    let rank = |i: usize| -> Option<i64> { std::str::from_utf8(words.get(i)?).ok()?.parse().ok() };
    let by_rank = !words
        .iter()
        .skip(4)
        .any(|word| word.eq_ignore_ascii_case(b"BYSCORE") || word.eq_ignore_ascii_case(b"BYLEX"));
    match (rank(2), rank(3)) {
        (Some(0), Some(-1)) => by_rank,
        // From one end; how much there is between two ends is not known.
        (Some(first), Some(last)) if (first < 0) == (last < 0) => {
            by_rank && last.saturating_sub(first) >= LARGE - 1
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(command: &str) -> Action {
        let words: Vec<Vec<u8>> = command
            .split(' ')
            .map(|word| word.as_bytes().to_vec())
            .collect();
        let name = command
            .split(' ')
            .next()
            .expect("a name")
            .to_ascii_uppercase();
        actions(&name, &words, 1000.0, false).remove(0).1
    }

    #[test]
    fn set_is_read_with_its_options() {
        assert!(
            matches!(first("SET k v NX PX 500"), Action::Take { ttl: Ttl::Seconds(ttl), .. } if ttl == 0.5)
        );
        assert!(matches!(
            first("SET k 5"),
            Action::Set {
                form: Form::Integer,
                ttl: Ttl::Never,
                ..
            }
        ));
        assert!(matches!(
            first("set k {} ex 9"),
            Action::Set {
                form: Form::Json,
                ttl: Ttl::Seconds(_),
                ..
            }
        ));
        assert!(matches!(
            first("SETNX k v"),
            Action::Take {
                ttl: Ttl::Never,
                ..
            }
        ));
        assert!(
            matches!(first("SET k v EXAT 1010"), Action::Set { ttl: Ttl::Seconds(ttl), .. } if ttl == 10.0)
        );
    }

    #[test]
    fn a_time_is_told_from_a_number() {
        let now = 1_700_000_000.0;
        for text in [
            "1700000000",
            "1700000000.25",
            "1700003600000",
            "1700000000000000",
            "2023-11-14T22:13:20Z",
            "2023-11-14 22:13:20",
        ] {
            assert!(is_time(text, now), "{text}");
            assert!(!is_time(text, 1.0), "{text}");
        }
        for text in [
            "17",
            "1600000000",
            "-1",
            "2019-11-14T22:13:20Z",
            "7 days",
            "",
        ] {
            assert!(!is_time(text, now), "{text}");
        }
    }

    #[test]
    fn a_token_is_told_from_data() {
        for token in [
            "1",
            "t1",
            "locked",
            "550e8400-e29b-41d4-a716-446655440000",
            "1700000000",
        ] {
            assert!(!is_data(token.as_bytes()), "{token}");
        }
        for data in ["42", "{}", "[1]", "ann smith"] {
            assert!(is_data(data.as_bytes()), "{data}");
        }
    }

    #[test]
    fn keys_stand_where_each_command_has_them() {
        let words = |text: &str| -> Vec<Vec<u8>> {
            text.split(' ')
                .map(|word| word.as_bytes().to_vec())
                .collect()
        };
        assert_eq!(actions("BRPOP", &words("BRPOP a b 0"), 0.0, false).len(), 2);
        assert_eq!(
            actions(
                "XREADGROUP",
                &words("XREADGROUP GROUP g c STREAMS s t > >"),
                0.0,
                false
            )
            .len(),
            2
        );
        assert_eq!(
            actions("EVALSHA", &words("EVALSHA sha 2 a b c"), 0.0, false).len(),
            2
        );
        assert_eq!(
            actions("LRANGE", &words("LRANGE a 0 -1"), 0.0, false),
            [(1, Action::Whole)]
        );
        assert!(actions("LRANGE", &words("LRANGE a 0 9"), 0.0, false).is_empty());
        assert_eq!(
            actions("BLMPOP", &words("BLMPOP 0 2 a b LEFT COUNT 9"), 0.0, false),
            [(3, Action::Pop(true)), (4, Action::Pop(true))]
        );
    }

    #[test]
    fn a_very_long_range_is_a_whole_read() {
        let whole = |text: &str| {
            let words: Vec<Vec<u8>> = text.split(' ').map(|w| w.as_bytes().to_vec()).collect();
            is_whole(&words)
        };
        assert!(whole("LRANGE k 0 -1") && whole("ZRANGE k 0 -1 WITHSCORES"));
        assert!(whole("LRANGE k 0 9999") && whole("LRANGE k -20000 -1"));
        assert!(whole("ZREVRANGE k 100 99999"));
        for short in [
            "LRANGE k 0 99",
            "LRANGE k -100 -1",
            "LRANGE k 9 0",
            "LRANGE k 5 -1",
        ] {
            assert!(!whole(short), "{short}");
        }
        // These are scores.
        assert!(!whole("ZRANGE k 0 1700000000 BYSCORE LIMIT 0 10"));
        assert!(!whole("ZRANGE k (0 9999"));
    }

    #[test]
    fn of_a_line_that_was_cut_only_what_was_seen_is_known() {
        let parse = |text: &str| {
            let words: Vec<Vec<u8>> = text.split(' ').map(|w| w.as_bytes().to_vec()).collect();
            actions(&text[..text.find(' ').expect("a name")], &words, 0.0, true)
                .remove(0)
                .1
        };
        let ttl_of = |text: &str| match parse(text) {
            Action::Set { value, ttl, .. } | Action::Take { value, ttl, .. } => {
                (value.is_some(), ttl)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(ttl_of("SET k {val"), (false, Ttl::Unknown));
        assert_eq!(ttl_of("SET k v E"), (true, Ttl::Unknown));
        assert_eq!(ttl_of("SET k v EX 3"), (true, Ttl::Unknown));
        assert_eq!(ttl_of("SET k v EX 30 N"), (true, Ttl::Seconds(30.0)));
        assert_eq!(ttl_of("SETEX k 30 va"), (false, Ttl::Seconds(30.0)));
        assert_eq!(ttl_of("SETNX k va"), (false, Ttl::Never));
    }

    #[test]
    fn a_field_of_an_entry_is_no_option_of_xadd() {
        assert_eq!(
            first("XADD s * maxlen 5"),
            Action::StreamAdd { trims: false }
        );
        assert_eq!(
            first("XADD s NOMKSTREAM KEEPREF maxlen ~ 5 * f v"),
            Action::StreamAdd { trims: true }
        );
    }
}
