//! What is known of a command by its name.

use redis::{Arg, Cmd};

use crate::error::{Error, Result};

/// Who uses the connection that a command is sent over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// Everybody who has the store.
    Shared,
    /// One caller, who may watch keys and open transactions.
    Own,
}

pub(crate) fn name(cmd: &Cmd) -> Option<&[u8]> {
    match cmd.args_iter().next()? {
        Arg::Simple(name) => Some(name),
        _ => None,
    }
}

fn second(cmd: &Cmd) -> Option<&[u8]> {
    match cmd.args_iter().nth(1)? {
        Arg::Simple(word) => Some(word),
        _ => None,
    }
}

fn is_any(name: &[u8], of: &[&str]) -> bool {
    of.iter()
        .any(|other| other.as_bytes().eq_ignore_ascii_case(name))
}

/// Refuses an empty command, which is not answered, and commands that change the connection they are sent over:
/// the connection is shared, is re-established on its own, and its replies go to the callers in order.
///
/// # Errors
///
/// [`is_config`](Error::is_config), with the call to use instead.
pub(crate) fn check(cmd: &Cmd, connection: Connection) -> Result<()> {
    let Some(name) = name(cmd) else {
        return Err(Error::config("an empty command cannot be sent"));
    };
    // By length first: nearly all commands leave here.
    let instead = match name.len() {
        4 if is_any(name, &["EXEC"]) => Instead::Dedicated,
        4 if is_any(name, &["WAIT"]) => Instead::Writer,
        4 if is_any(name, &["AUTH"]) => Instead::Url,
        4 if is_any(name, &["QUIT", "SYNC"]) => Instead::Nothing,
        5 if is_any(name, &["WATCH", "MULTI"]) => Instead::Dedicated,
        5 if is_any(name, &["HELLO", "RESET", "PSYNC"]) => Instead::Nothing,
        6 if is_any(name, &["SELECT"]) => Instead::Url,
        6 if is_any(name, &["ASKING"]) => Instead::Nothing,
        6 if is_any(name, &["SCRIPT"])
            && second(cmd).is_some_and(|word| is_any(word, &["DEBUG"])) =>
        {
            Instead::Nothing
        }
        6 if is_any(name, &["CLIENT"]) => match second(cmd) {
            Some(word) if is_any(word, &["TRACKING", "CACHING"]) => Instead::Subscribe,
            Some(word) if is_any(word, &["REPLY"]) => Instead::Nothing,
            _ => return Ok(()),
        },
        7 if is_any(name, &["DISCARD", "UNWATCH"]) => Instead::Dedicated,
        7 if is_any(name, &["WAITAOF"]) => Instead::Writer,
        7 if is_any(name, &["MONITOR"]) => Instead::Nothing,
        8 if is_any(name, &["READONLY", "REPLCONF"]) => Instead::Nothing,
        9 if is_any(name, &["SUBSCRIBE"]) => Instead::Subscribe,
        9 if is_any(name, &["READWRITE"]) => Instead::Nothing,
        10 if is_any(name, &["PSUBSCRIBE", "SSUBSCRIBE"]) => Instead::Subscribe,
        11 if is_any(name, &["UNSUBSCRIBE"]) => Instead::Subscribe,
        12 if is_any(name, &["PUNSUBSCRIBE", "SUNSUBSCRIBE"]) => Instead::Subscribe,
        _ => return Ok(()),
    };
    let of_its_own = matches!(instead, Instead::Dedicated | Instead::Writer);
    if of_its_own && connection == Connection::Own {
        return Ok(());
    }
    let name = String::from_utf8_lossy(name).to_ascii_uppercase();
    let how = match instead {
        Instead::Writer => {
            return Err(Error::config(format!(
                "{name} speaks of what was written over the same connection: use store.dedicated() for the write and for it"
            )));
        }
        Instead::Dedicated => {
            "use store.dedicated(), or an atomic pipeline where nothing is watched"
        }
        Instead::Subscribe => "use store.subscribe()",
        Instead::Url => "set it in the URL or on the builder of the store",
        Instead::Nothing => "a store does not support it",
    };
    Err(Error::config(format!(
        "{name} would change a connection that the store manages: {how}"
    )))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Instead {
    Dedicated,
    /// The connection that carried the writes.
    Writer,
    Subscribe,
    Url,
    Nothing,
}

/// Whether the command asks what became of earlier writes of its connection.
pub(crate) fn asks_for_writes(cmd: &Cmd) -> bool {
    name(cmd).is_some_and(|name| is_any(name, &["WAIT", "WAITAOF"]))
}

/// Whether `WAIT` or `WAITAOF` was told of as many servers as it asked for.
pub(crate) fn is_confirmed(cmd: &Cmd, reply: &redis::Value) -> bool {
    let asked = cmd.args_iter().skip(1).map(|arg| match arg {
        redis::Arg::Simple(number) => std::str::from_utf8(number).ok()?.parse::<i64>().ok(),
        _ => None,
    });
    let told: &[redis::Value] = match reply {
        redis::Value::Array(told) => told,
        one => std::slice::from_ref(one),
    };
    told.iter().zip(asked).all(|pair| match pair {
        (redis::Value::Int(told), Some(asked)) => *told >= asked,
        _ => false,
    })
}

/// Whether a transaction was carried out, by the command that ended it and its reply.
pub(crate) fn was_executed(end: &Cmd, reply: &redis::Value) -> bool {
    name(end).is_some_and(|name| is_any(name, &["EXEC"])) && *reply != redis::Value::Nil
}

/// Whether the command may write, in a way that replicas and the log get to see. What only changes its connection does not.
pub(crate) fn may_write(cmd: &Cmd) -> bool {
    const OTHERS: &[&str] = &[
        "WAIT", "WAITAOF", "WATCH", "UNWATCH", "MULTI", "DISCARD", "EXEC", "CLIENT", "CONFIG",
        "ACL",
    ];
    !only_reads(cmd) && !name(cmd).is_some_and(|name| is_any(name, OTHERS))
}

/// Whether the command changes nothing, so that sending it twice does no harm.
pub(crate) fn only_reads(cmd: &Cmd) -> bool {
    name(cmd).is_some_and(|name| {
        let mut upper = [0u8; 24];
        let Some(upper) = upper.get_mut(..name.len()) else {
            return false;
        };
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        READS.binary_search(&&*upper).is_ok()
    })
}

/// Whether the command goes on where another one ended, by a cursor that only the server that gave it understands.
pub(crate) fn has_cursor(cmd: &Cmd) -> bool {
    name(cmd).is_some_and(|name| is_any(name, &["SCAN", "HSCAN", "SSCAN", "ZSCAN"]))
}

/// Commands that change nothing, sorted for the binary search.
const READS: &[&[u8]] = &[
    b"BF.CARD",
    b"BF.EXISTS",
    b"BF.INFO",
    b"BF.MEXISTS",
    b"BITCOUNT",
    b"BITFIELD_RO",
    b"BITPOS",
    b"COMMAND",
    b"DBSIZE",
    b"DUMP",
    b"ECHO",
    b"EVALSHA_RO",
    b"EVAL_RO",
    b"EXISTS",
    b"EXPIRETIME",
    b"GEODIST",
    b"GEOHASH",
    b"GEOPOS",
    b"GEORADIUSBYMEMBER_RO",
    b"GEORADIUS_RO",
    b"GEOSEARCH",
    b"GET",
    b"GETBIT",
    b"GETRANGE",
    b"HEXISTS",
    b"HGET",
    b"HGETALL",
    b"HKEYS",
    b"HLEN",
    b"HMGET",
    b"HRANDFIELD",
    b"HSCAN",
    b"HSTRLEN",
    b"HVALS",
    b"INFO",
    b"KEYS",
    b"LCS",
    b"LINDEX",
    b"LLEN",
    b"LPOS",
    b"LRANGE",
    b"MGET",
    b"OBJECT",
    b"PEXPIRETIME",
    b"PFCOUNT",
    b"PING",
    b"PTTL",
    b"RANDOMKEY",
    b"ROLE",
    b"SCAN",
    b"SCARD",
    b"SDIFF",
    b"SINTER",
    b"SINTERCARD",
    b"SISMEMBER",
    b"SMEMBERS",
    b"SMISMEMBER",
    b"SORT_RO",
    b"SRANDMEMBER",
    b"SSCAN",
    b"STRLEN",
    b"SUBSTR",
    b"SUNION",
    b"TIME",
    b"TTL",
    b"TYPE",
    b"XINFO",
    b"XLEN",
    b"XPENDING",
    b"XRANGE",
    b"XREAD",
    b"XREVRANGE",
    b"ZCARD",
    b"ZCOUNT",
    b"ZDIFF",
    b"ZINTER",
    b"ZINTERCARD",
    b"ZLEXCOUNT",
    b"ZMSCORE",
    b"ZRANDMEMBER",
    b"ZRANGE",
    b"ZRANGEBYLEX",
    b"ZRANGEBYSCORE",
    b"ZRANK",
    b"ZREVRANGE",
    b"ZREVRANGEBYLEX",
    b"ZREVRANGEBYSCORE",
    b"ZREVRANK",
    b"ZSCAN",
    b"ZSCORE",
    b"ZUNION",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Cmd {
        let mut cmd = Cmd::new();
        for word in text.split(' ') {
            cmd.arg(word);
        }
        cmd
    }

    #[test]
    fn the_table_of_reads_is_sorted() {
        assert!(READS.is_sorted());
    }

    #[test]
    fn writes_and_scripts_are_not_reads() {
        for read in ["get", "ZSCORE", "xRange"] {
            assert!(only_reads(&redis::cmd(read)));
        }
        for write in [
            "SET",
            "EVALSHA",
            "INCR",
            "GETDEL",
            "XREADGROUP",
            "nosuchcommandofthisverylongname",
        ] {
            assert!(!only_reads(&redis::cmd(write)) && may_write(&redis::cmd(write)));
        }
        for neither in ["watch", "MULTI", "WAIT", "CLIENT"] {
            assert!(!only_reads(&redis::cmd(neither)) && !may_write(&redis::cmd(neither)));
        }
    }

    #[test]
    fn what_changes_a_connection_is_refused_with_the_call_to_use() {
        for (text, how) in [
            ("watch k", "dedicated()"),
            ("MULTI", "dedicated()"),
            ("EXEC", "dedicated()"),
            ("SUBSCRIBE a b", "subscribe()"),
            ("ssubscribe a", "subscribe()"),
            ("CLIENT TRACKING ON", "subscribe()"),
            ("SELECT 3", "URL"),
            ("AUTH secret", "URL"),
            ("CLIENT REPLY OFF", "not support"),
            ("MONITOR", "not support"),
            ("HELLO 3", "not support"),
        ] {
            let error = check(&words(text), Connection::Shared).unwrap_err();
            assert!(
                error.is_config() && error.to_string().contains(how),
                "{text}: {error}"
            );
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(
            check(&Cmd::new(), Connection::Shared)
                .unwrap_err()
                .is_config()
        );
        for text in [
            "GET k",
            "CLIENT ID",
            "SCRIPT LOAD x",
            "PUBLISH c m",
            "SET k v",
        ] {
            assert!(check(&words(text), Connection::Shared).is_ok(), "{text}");
        }
        for text in ["WATCH k", "MULTI", "EXEC", "DISCARD", "UNWATCH"] {
            assert!(check(&words(text), Connection::Own).is_ok(), "{text}");
        }
        assert!(check(&words("SUBSCRIBE a"), Connection::Own).is_err());
    }
}
