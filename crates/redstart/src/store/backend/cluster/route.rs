//! Which slot a command belongs to, and how the parts of one that spans several are put together.

use redis::{Arg, Cmd, Value};

use crate::{
    error::{Error, Result},
    key::slot,
};

pub(super) enum Route {
    /// The owner of one slot.
    Slot(u16),
    /// Any master: the command has no key.
    Any,
    /// Every master, because each knows only its part.
    AllMasters(Gather),
    /// One command per slot.
    Split(Vec<Part>, Gather),
    /// No node can answer it for all.
    Nowhere(Error),
}

pub(super) struct Part {
    pub(super) slot: u16,
    pub(super) cmd: Cmd,
    /// Where the part's keys stood in the whole command.
    pub(super) positions: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gather {
    /// All replies are the same word.
    First,
    Sum,
    Concat,
    /// MGET: each reply's elements go back to where their keys stood.
    Positions,
    /// SCRIPT EXISTS: something is there only as far as it is so on every node.
    Least,
}

/// The words of a command.
fn words(cmd: &Cmd) -> Vec<&[u8]> {
    cmd.args_iter()
        .map(|arg| match arg {
            Arg::Simple(bytes) => bytes,
            _ => b"0",
        })
        .collect()
}

/// Where the first key of a command stands; `None` if it has none.
fn first_key(name: &[u8], args: &[&[u8]]) -> Option<usize> {
    Some(match name {
        b"EVAL" | b"EVALSHA" | b"EVAL_RO" | b"EVALSHA_RO" | b"FCALL" | b"FCALL_RO" => {
            match args.get(2).map(|n| *n == b"0") {
                Some(false) => 3,
                _ => return None,
            }
        }
        b"XREAD" | b"XREADGROUP" => {
            let streams = |arg: &&[u8]| arg.eq_ignore_ascii_case(b"STREAMS");
            args.iter().position(streams)? + 1
        }
        b"ZUNION" | b"ZINTER" | b"ZDIFF" | b"ZINTERCARD" | b"SINTERCARD" | b"LMPOP" | b"ZMPOP"
        | b"BITOP" | b"MSETEX" | b"OBJECT" | b"XINFO" | b"XGROUP" | b"MEMORY" => 2,
        b"BLMPOP" | b"BZMPOP" => 3,
        b"PING" | b"ECHO" | b"TIME" | b"INFO" | b"COMMAND" | b"CLIENT" | b"HELLO" | b"AUTH"
        | b"SELECT" | b"CLUSTER" | b"ROLE" | b"LASTSAVE" | b"LATENCY" | b"SLOWLOG" | b"ACL"
        | b"MODULE" | b"PUBLISH" | b"PUBSUB" | b"RANDOMKEY" | b"READONLY" | b"READWRITE"
        | b"SCAN" | b"ASKING" | b"DEBUG" | b"MULTI" | b"EXEC" | b"DISCARD" | b"RESET"
        | b"FLUSHALL" | b"FLUSHDB" | b"CONFIG" | b"SCRIPT" | b"FUNCTION" | b"DBSIZE" | b"KEYS" => {
            return None;
        }
        _ => 1,
    })
}

/// What a command reads or writes.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store) enum Touched<'a> {
    Keys(Vec<&'a [u8]>),
    /// Any key.
    All,
}

/// What a command touches, as far as its words tell: the keys of every command of Redis and Valkey that has more than one, and
/// the first key of all others, which are those with one key and the modules'. A script without keys touches nothing, so it
/// keeps no order with other requests.
pub(in crate::store) fn touched(cmd: &Cmd) -> Touched<'_> {
    let args = words(cmd);
    let Some(name) = args.first().map(|name| name.to_ascii_uppercase()) else {
        return Touched::Keys(Vec::new());
    };
    let number = |at: usize| -> Option<usize> {
        let text = std::str::from_utf8(args.get(at)?).ok()?;
        text.parse().ok()
    };
    let from = |at: usize| args.iter().copied().skip(at);
    // So many, as a word of the command says, from the next word on.
    let counted = |at: usize| number(at).map(|count| from(at + 1).take(count));
    let is_option = |word: &[u8], options: &[&str]| {
        let mut options = options.iter();
        options.any(|option| word.eq_ignore_ascii_case(option.as_bytes()))
    };
    let keys: Option<Vec<&[u8]>> =
        match &name[..] {
            b"FLUSHALL" | b"FLUSHDB" | b"SWAPDB" | b"DBSIZE" | b"KEYS" | b"SCAN" | b"RANDOMKEY"
            | b"MIGRATE" => None,
            b"DEL" | b"UNLINK" | b"EXISTS" | b"TOUCH" | b"MGET" | b"SINTER" | b"SUNION"
            | b"SDIFF" | b"SINTERSTORE" | b"SUNIONSTORE" | b"SDIFFSTORE" | b"PFCOUNT"
            | b"PFMERGE" => Some(from(1).collect()),
            b"MSET" | b"MSETNX" => Some(from(1).step_by(2).collect()),
            b"RENAME" | b"RENAMENX" | b"COPY" | b"SMOVE" | b"LMOVE" | b"BLMOVE" | b"RPOPLPUSH"
            | b"BRPOPLPUSH" | b"ZRANGESTORE" | b"GEOSEARCHSTORE" | b"LCS" => {
                Some(from(1).take(2).collect())
            }
            b"BLPOP" | b"BRPOP" | b"BZPOPMIN" | b"BZPOPMAX" => {
                Some(from(1).take(args.len().saturating_sub(2)).collect())
            }
            b"MSETEX" => number(1).map(|count| from(2).step_by(2).take(count).collect()),
            b"BITOP" => Some(from(2).collect()),
            b"EVAL" | b"EVALSHA" | b"EVAL_RO" | b"EVALSHA_RO" | b"FCALL" | b"FCALL_RO" => {
                counted(2).map(Iterator::collect)
            }
            b"ZUNION" | b"ZINTER" | b"ZDIFF" | b"ZINTERCARD" | b"SINTERCARD" | b"LMPOP"
            | b"ZMPOP" => counted(1).map(Iterator::collect),
            b"BLMPOP" | b"BZMPOP" => counted(2).map(Iterator::collect),
            b"ZUNIONSTORE" | b"ZINTERSTORE" | b"ZDIFFSTORE" => {
                counted(2).map(|keys| from(1).take(1).chain(keys).collect())
            }
            b"XREAD" | b"XREADGROUP" => first_key(&name, &args)
                .map(|first| from(first).take((args.len() - first) / 2).collect()),
            // Patterns name keys that are not among the words.
            b"SORT" | b"SORT_RO" if from(2).any(|word| is_option(word, &["BY", "GET"])) => None,
            b"SORT" | b"GEORADIUS" | b"GEORADIUSBYMEMBER" => {
                let stores = |at: &usize| is_option(args[*at], &["STORE", "STOREDIST"]);
                let at = (2..args.len()).filter(stores).map(|at| at + 1);
                let to = at.filter_map(|at| args.get(at).copied());
                Some(from(1).take(1).chain(to).collect())
            }
            _ => Some(match first_key(&name, &args) {
                Some(first) => from(first).take(1).collect(),
                None => Vec::new(),
            }),
        };
    keys.map_or(Touched::All, Touched::Keys)
}

pub(super) fn route(cmd: &Cmd) -> Route {
    let args = words(cmd);
    let Some(name) = args.first() else {
        return Route::Any;
    };
    let name = name.to_ascii_uppercase();
    match &name[..] {
        b"FLUSHALL" | b"FLUSHDB" | b"CONFIG" => Route::AllMasters(Gather::First),
        b"SCRIPT" | b"FUNCTION" => {
            if args
                .get(1)
                .is_some_and(|sub| sub.eq_ignore_ascii_case(b"EXISTS"))
            {
                Route::AllMasters(Gather::Least)
            } else {
                Route::AllMasters(Gather::First)
            }
        }
        b"DBSIZE" => Route::AllMasters(Gather::Sum),
        b"SCAN" => Route::Nowhere(Error::config(
            "SCAN sees the keys of one node of a Cluster, and the others do not know its cursor: use store.scan(), \
             or store.dedicated() for one node",
        )),
        b"KEYS" => Route::AllMasters(Gather::Concat),
        b"DEL" | b"UNLINK" | b"EXISTS" | b"TOUCH" => split(&name, &args[1..], 1, Gather::Sum),
        b"MGET" => split(&name, &args[1..], 1, Gather::Positions),
        b"MSET" => split(&name, &args[1..], 2, Gather::First),
        _ => match first_key(&name, &args).and_then(|at| args.get(at)) {
            Some(key) => Route::Slot(slot(key)),
            None => Route::Any,
        },
    }
}

fn split(name: &[u8], args: &[&[u8]], step: usize, gather: Gather) -> Route {
    let mut parts: Vec<Part> = Vec::new();
    for (position, chunk) in args.chunks(step).enumerate() {
        let slot = slot(chunk[0]);
        let part = match parts.iter_mut().find(|part| part.slot == slot) {
            Some(part) => part,
            None => {
                let mut cmd = Cmd::new();
                cmd.arg(name);
                parts.push(Part {
                    slot,
                    cmd,
                    positions: Vec::new(),
                });
                match parts.last_mut() {
                    Some(part) => part,
                    None => return Route::Any,
                }
            }
        };
        for arg in chunk {
            part.cmd.arg(*arg);
        }
        part.positions.push(position);
    }
    match parts.len() {
        0 => Route::Any,
        1 => Route::Slot(parts[0].slot),
        _ => Route::Split(parts, gather),
    }
}

impl Gather {
    /// Puts together the replies of all masters.
    pub(super) fn all(self, replies: Vec<Value>) -> Result<Value> {
        let ints = || {
            replies
                .iter()
                .map(|reply| if let Value::Int(n) = reply { *n } else { 0 })
        };
        Ok(match self {
            Gather::First | Gather::Positions => replies.into_iter().next().unwrap_or(Value::Nil),
            Gather::Sum => Value::Int(ints().sum()),
            Gather::Concat => Value::Array(
                replies
                    .into_iter()
                    .flat_map(|reply| reply.into_sequence().unwrap_or_default())
                    .collect(),
            ),
            Gather::Least if matches!(replies.first(), Some(Value::Int(_))) => {
                Value::Int(ints().min().unwrap_or_default())
            }
            Gather::Least => {
                let mut least: Option<Vec<i64>> = None;
                for reply in replies {
                    let row: Vec<i64> = redis::from_redis_value(reply)?;
                    least = Some(match least {
                        None => row,
                        Some(least) => least.iter().zip(row).map(|(a, b)| (*a).min(b)).collect(),
                    });
                }
                Value::Array(
                    least
                        .unwrap_or_default()
                        .into_iter()
                        .map(Value::Int)
                        .collect(),
                )
            }
        })
    }

    /// Puts together the replies of the parts of one command.
    pub(super) fn split<'a>(
        self,
        positions: impl Iterator<Item = &'a [usize]>,
        replies: Vec<Value>,
    ) -> Result<Value> {
        if self != Gather::Positions {
            return self.all(replies);
        }
        let mut whole = Vec::new();
        for (positions, reply) in positions.zip(replies) {
            let values = reply.into_sequence().map_err(|_| {
                Error::codec("the reply to a command over several slots is not an array")
            })?;
            for (at, value) in positions.iter().zip(values) {
                if whole.len() <= *at {
                    whole.resize(at + 1, Value::Nil);
                }
                whole[*at] = value;
            }
        }
        Ok(Value::Array(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot_of(words: &str) -> Option<u16> {
        let mut cmd = Cmd::new();
        for word in words.split(' ') {
            cmd.arg(word);
        }
        match route(&cmd) {
            Route::Slot(slot) => Some(slot),
            _ => None,
        }
    }

    #[test]
    fn the_key_is_found_where_each_command_has_it() {
        for words in [
            "GET k",
            "EVALSHA sha 2 k {k}:b arg",
            "XREADGROUP GROUP g c COUNT 1 STREAMS k >",
            "ZUNION 2 k {k}:b",
            "BLMPOP 0 1 k LEFT",
            "OBJECT ENCODING k",
            "XINFO STREAM k",
            "DEL k {k}:b",
            "SPUBLISH k m",
        ] {
            assert_eq!(slot_of(words), Some(slot(b"k")), "{words}");
        }
        for words in ["PING", "EVAL return 0", "KEYS *", "DEL a b", "PUBLISH c m"] {
            assert_eq!(slot_of(words), None, "{words}");
        }
    }

    #[test]
    fn the_keys_that_order_matters_for_are_found() {
        for (text, expected) in [
            ("SET k v", "k"),
            ("MGET a b", "a b"),
            ("MSET a 1 b 2", "a b"),
            ("MSETNX a 1 b 2", "a b"),
            ("EVALSHA sha 2 a b arg", "a b"),
            ("EVAL source 0 arg", ""),
            ("PING", ""),
            ("XREAD COUNT 1 STREAMS s 0", "s"),
            ("XREADGROUP GROUP g c STREAMS s t > >", "s t"),
            ("RENAME a b", "a b"),
            ("copy a b REPLACE", "a b"),
            ("SMOVE a b member", "a b"),
            ("LMOVE a b LEFT RIGHT", "a b"),
            ("RPOPLPUSH a b", "a b"),
            ("BLPOP a b 0", "a b"),
            ("SUNIONSTORE to a b", "to a b"),
            ("PFMERGE to a b", "to a b"),
            ("BITOP AND to a b", "to a b"),
            ("MSETEX 2 a 1 b 2 EX 9", "a b"),
            ("ZUNIONSTORE to 2 a b WEIGHTS 1 2", "to a b"),
            ("ZRANGESTORE to a 0 -1", "to a"),
            ("ZMPOP 2 a b MIN", "a b"),
            ("BLMPOP 0 2 a b LEFT", "a b"),
            ("SORT a LIMIT 0 5 STORE to", "a to"),
            ("GEORADIUS a 1 2 3 km STOREDIST to", "a to"),
            ("OBJECT ENCODING a", "a"),
            ("FLUSHALL", "*"),
            ("DBSIZE", "*"),
            ("SORT a BY weight_* STORE to", "*"),
        ] {
            let mut cmd = Cmd::new();
            for word in text.split(' ') {
                cmd.arg(word);
            }
            let found = match touched(&cmd) {
                Touched::Keys(keys) => keys.join(&b' '),
                Touched::All => b"*".to_vec(),
            };
            assert_eq!(found, expected.as_bytes(), "{text}");
        }
    }

    #[test]
    fn a_split_reply_is_put_back_in_order() {
        let mut cmd = redis::cmd("MGET");
        cmd.arg(&["a", "b", "c", "a"]);
        let Route::Split(parts, gather) = route(&cmd) else {
            panic!("not split")
        };
        let replies = parts
            .iter()
            .map(|part| {
                Value::Array(
                    part.positions
                        .iter()
                        .map(|p| Value::Int(*p as i64))
                        .collect(),
                )
            })
            .collect();
        let whole = gather
            .split(parts.iter().map(|p| &p.positions[..]), replies)
            .unwrap();
        assert_eq!(whole, Value::Array((0..4).map(Value::Int).collect()));
    }
}
