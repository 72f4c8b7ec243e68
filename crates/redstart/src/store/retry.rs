//! What may be sent again.
//!
//! Three cases are safe: nothing was sent; the server said that it did nothing (LOADING, READONLY, MOVED …);
//! or the command only reads. Everything else, once its reply is lost, is in doubt and is reported so.

use std::time::Duration;

use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

/// Backoff between attempts, full jitter, so that a fleet that lost its server does not come back in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(5);
    const MAX: Duration = Duration::from_millis(400);

    pub(crate) fn new() -> Self {
        Self { next: Self::FIRST }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let cap = self.next;
        self.next = (self.next * 2).min(Self::MAX);
        cap.mul_f64(rand::random_range(0.5..=1.0))
    }
}

/// The server's own word that it did nothing, and that asking again later may help.
pub(crate) fn refused_for_now(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
        )
    )
}

/// The server did nothing and says where, or that later, it would be done.
pub(crate) fn elsewhere_or_later(error: &RedisError) -> bool {
    refused_for_now(error)
        || matches!(
            error.kind(),
            ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask)
        )
}

/// READONLY means that this connection leads to a replica: it must be made anew.
pub(crate) fn wrong_server(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// The error is the server's word, and the connection stands.
pub(crate) fn answered(error: &RedisError) -> bool {
    error.code().is_some()
        || matches!(error.kind(), ErrorKind::Server(_))
        || !(error.is_unrecoverable_error() || error.is_io_error())
}

/// The first reply of a pipeline that says the pipeline has to be sent elsewhere or later.
pub(crate) fn first_refusal(replies: &[Value]) -> Option<RedisError> {
    replies.iter().find_map(|reply| match reply {
        Value::ServerError(error) => {
            let error = RedisError::from(error.clone());
            elsewhere_or_later(&error).then_some(error)
        }
        _ => None,
    })
}

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

pub(crate) fn pipeline_only_reads(pipeline: &Pipeline) -> bool {
    pipeline.cmd_iter().all(only_reads)
}

pub(crate) fn name(cmd: &Cmd) -> Option<&[u8]> {
    match cmd.args_iter().next()? {
        redis::Arg::Simple(name) => Some(name),
        _ => None,
    }
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
            assert!(!only_reads(&redis::cmd(write)));
        }
    }
}
