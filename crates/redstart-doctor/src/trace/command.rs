//! What a command does to which keys, as far as the rules need it.

/// A command's meaning for one of its keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Get,
    /// A plain value; its TTL in seconds, if it was given one.
    Set {
        value: u64,
        form: Form,
        ttl: Option<f64>,
    },
    /// Only if it is not there.
    Take {
        value: u64,
        ttl: Option<f64>,
    },
    Increment,
    /// Reads the counter and sets it to zero.
    Drain,
    Expire {
        seconds: f64,
    },
    Delete,
    /// Deletes it together with what it belongs to: the lease in `DEL product:7 product:7:lease`.
    Revoke,
    /// Reads a whole hash, or fields of it.
    HashGet,
    HashSet,
    Push,
    /// Takes an element away; `true` if it waits for one.
    Pop(bool),
    /// Moves an element to another list.
    Move(bool),
    ListTrim,
    Whole,
    SetAdd,
    SetRemove,
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

/// The form of a value that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Integer,
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

fn form(value: &[u8]) -> Form {
    match value {
        [b'{' | b'[', ..] => Form::Json,
        _ if std::str::from_utf8(value).is_ok_and(|text| text.parse::<i64>().is_ok()) => {
            Form::Integer
        }
        _ => Form::Other,
    }
}

fn number(word: Option<&Vec<u8>>) -> Option<f64> {
    std::str::from_utf8(word?).ok()?.parse().ok()
}

/// The options of SET that follow its value.
struct SetOptions {
    nx: bool,
    ttl: Option<f64>,
}

fn set_options(words: &[Vec<u8>], now: f64) -> SetOptions {
    let mut options = SetOptions {
        nx: false,
        ttl: None,
    };
    let mut i = 0;
    while i < words.len() {
        let value = number(words.get(i + 1));
        match words[i].to_ascii_uppercase().as_slice() {
            b"NX" => options.nx = true,
            b"EX" => options.ttl = value,
            b"PX" => options.ttl = value.map(|ms| ms / 1000.0),
            b"EXAT" => options.ttl = value.map(|at| at - now),
            b"PXAT" => options.ttl = value.map(|at| at / 1000.0 - now),
            // It keeps what the key has; a rule that asks for a TTL must not complain.
            b"KEEPTTL" => options.ttl = Some(f64::INFINITY),
            _ => {}
        }
        i += 1;
    }
    options
}

/// Keys of one command that others are compared with.
const FEW: usize = 32;

/// Whether a key's name is another's with something behind it.
fn belongs(name: &[u8], of: &[u8]) -> bool {
    let rest = name.strip_prefix(of).filter(|_| !of.is_empty());
    rest.is_some_and(|rest| matches!(rest.first(), Some(b':' | b'.' | b'/' | b'-' | b'_' | b'#')))
}

/// The keys of a command and what it does to each.
pub(crate) fn actions(name: &str, words: &[Vec<u8>], now: f64) -> Vec<(usize, Action)> {
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
    let value = |i: usize| words.get(i).map_or(0, |word| fingerprint(word));
    let all = words.len();
    match name {
        "GET" | "GETRANGE" | "GETEX" | "SUBSTR" => one(Action::Get),
        "MGET" => each(1, all, Action::Get),
        "SET" => {
            let options = set_options(words.get(3..).unwrap_or_default(), now);
            one(match options.nx {
                true => Action::Take {
                    value: value(2),
                    ttl: options.ttl,
                },
                false => Action::Set {
                    value: value(2),
                    form: words.get(2).map_or(Form::Other, |word| form(word)),
                    ttl: options.ttl,
                },
            })
        }
        "SETEX" | "PSETEX" => {
            let unit = if name == "SETEX" { 1.0 } else { 1000.0 };
            one(Action::Set {
                value: value(3),
                form: words.get(3).map_or(Form::Other, |word| form(word)),
                ttl: number(words.get(2)).map(|ttl| ttl / unit),
            })
        }
        "SETNX" => one(Action::Take {
            value: value(2),
            ttl: None,
        }),
        "MSET" => (1..all)
            .step_by(2)
            .map(|i| {
                let form = words.get(i + 1).map_or(Form::Other, |word| form(word));
                (
                    i,
                    Action::Set {
                        value: value(i + 1),
                        form,
                        ttl: None,
                    },
                )
            })
            .collect(),
        "GETSET" if words.get(2).is_some_and(|word| word == b"0") => one(Action::Drain),
        "GETSET" => one(Action::Set {
            value: value(2),
            form: words.get(2).map_or(Form::Other, |word| form(word)),
            ttl: None,
        }),
        "INCR" | "DECR" | "INCRBY" | "DECRBY" | "INCRBYFLOAT" => one(Action::Increment),
        "EXPIRE" => one(Action::Expire {
            seconds: number(words.get(2)).unwrap_or(0.0),
        }),
        "PEXPIRE" => one(Action::Expire {
            seconds: number(words.get(2)).unwrap_or(0.0) / 1000.0,
        }),
        "EXPIREAT" => one(Action::Expire {
            seconds: number(words.get(2)).unwrap_or(0.0) - now,
        }),
        "PEXPIREAT" => one(Action::Expire {
            seconds: number(words.get(2)).unwrap_or(0.0) / 1000.0 - now,
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
        "HGETALL" => one(Action::HashGet),
        "HGET" | "HMGET" => one(Action::HashGet),
        "HSET" | "HMSET" | "HSETNX" | "HDEL" | "HINCRBY" | "HINCRBYFLOAT" => one(Action::HashSet),
        "LPUSH" | "RPUSH" | "LPUSHX" | "RPUSHX" | "LINSERT" => one(Action::Push),
        "LPOP" | "RPOP" => one(Action::Pop(false)),
        "BLPOP" | "BRPOP" => each(1, all.saturating_sub(1), Action::Pop(true)),
        "LMOVE" | "RPOPLPUSH" => each(1, 2, Action::Move(false)),
        "BLMOVE" | "BRPOPLPUSH" => each(1, 2, Action::Move(true)),
        "LTRIM" | "LREM" => one(Action::ListTrim),
        "LRANGE" if is_whole(words) => one(Action::Whole),
        "SMEMBERS" => one(Action::Whole),
        "ZRANGE" | "ZREVRANGE" if is_whole(words) => one(Action::Whole),
        "SADD" => one(Action::SetAdd),
        "SREM" | "SPOP" | "SMOVE" => one(Action::SetRemove),
        "ZADD" => {
            let score = words.iter().skip(2).find_map(|word| number(Some(word)));
            one(Action::ZAdd {
                score: score.unwrap_or(0.0),
            })
        }
        "ZREMRANGEBYSCORE" | "ZREMRANGEBYRANK" | "ZPOPMIN" | "ZPOPMAX" | "BZPOPMIN"
        | "BZPOPMAX" => one(Action::ZTrim),
        "ZREM" => one(Action::ZRemove),
        "ZCARD" | "ZCOUNT" => one(Action::ZCount),
        "XADD" => {
            let trims = words.iter().skip(2).take(4).any(|word| {
                word.eq_ignore_ascii_case(b"MAXLEN") || word.eq_ignore_ascii_case(b"MINID")
            });
            one(Action::StreamAdd { trims })
        }
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
            let keys = number(words.get(2)).unwrap_or(0.0).clamp(0.0, 64.0) as usize;
            each(3, 3 + keys, Action::Script)
        }
        _ => Vec::new(),
    }
}

/// `0 -1`: from the first element to the last.
pub(crate) fn is_whole(words: &[Vec<u8>]) -> bool {
    words.get(2).is_some_and(|word| word == b"0") && words.get(3).is_some_and(|word| word == b"-1")
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
        actions(&name, &words, 1000.0).remove(0).1
    }

    #[test]
    fn set_is_read_with_its_options() {
        assert!(
            matches!(first("SET k v NX PX 500"), Action::Take { ttl: Some(ttl), .. } if ttl == 0.5)
        );
        assert!(matches!(
            first("SET k 5"),
            Action::Set {
                form: Form::Integer,
                ttl: None,
                ..
            }
        ));
        assert!(matches!(
            first("set k {} ex 9"),
            Action::Set {
                form: Form::Json,
                ttl: Some(_),
                ..
            }
        ));
        assert!(matches!(first("SETNX k v"), Action::Take { ttl: None, .. }));
        assert!(
            matches!(first("SET k v EXAT 1010"), Action::Set { ttl: Some(ttl), .. } if ttl == 10.0)
        );
    }

    #[test]
    fn keys_stand_where_each_command_has_them() {
        let words = |text: &str| -> Vec<Vec<u8>> {
            text.split(' ')
                .map(|word| word.as_bytes().to_vec())
                .collect()
        };
        assert_eq!(actions("BRPOP", &words("BRPOP a b 0"), 0.0).len(), 2);
        assert_eq!(
            actions(
                "XREADGROUP",
                &words("XREADGROUP GROUP g c STREAMS s t > >"),
                0.0
            )
            .len(),
            2
        );
        assert_eq!(
            actions("EVALSHA", &words("EVALSHA sha 2 a b c"), 0.0).len(),
            2
        );
        assert_eq!(
            actions("LRANGE", &words("LRANGE a 0 -1"), 0.0),
            [(1, Action::Whole)]
        );
        assert!(actions("LRANGE", &words("LRANGE a 0 9"), 0.0).is_empty());
    }
}
