//! What is known of commands in front of the engine.

use bytes::Bytes;

/// Scripts that sort by other keys, which servers before Redis 8 and Valkey 8 do not do in a cluster.
pub(super) fn sorts_by_keys(name: &[u8], args: &[Bytes]) -> bool {
    let view = |word: &Bytes| word.ends_with(b":built");
    name.starts_with(b"EVAL") && args.iter().any(view) && args.iter().any(|word| word == "BY")
}

/// Commands that are answered in any state.
pub(super) fn is_control(name: &[u8]) -> bool {
    matches!(
        name,
        b"HELLO"
            | b"AUTH"
            | b"CLIENT"
            | b"INFO"
            | b"COMMAND"
            | b"SELECT"
            | b"ROLE"
            | b"CLUSTER"
            | b"MULTI"
            | b"EXEC"
            | b"DISCARD"
            | b"ASKING"
            | b"QUIT"
            | b"SENTINEL"
            | b"RESET"
    )
}

/// Commands that change nothing.
pub(super) fn is_read(name: &[u8]) -> bool {
    matches!(
        name,
        b"PING"
            | b"TIME"
            | b"GET"
            | b"MGET"
            | b"PTTL"
            | b"TTL"
            | b"EXISTS"
            | b"HGETALL"
            | b"HGET"
            | b"ZRANGE"
            | b"XLEN"
            | b"XRANGE"
            | b"XREAD"
            | b"SUBSCRIBE"
            | b"SSUBSCRIBE"
            | b"PSUBSCRIBE"
            | b"UNSUBSCRIBE"
            | b"SUNSUBSCRIBE"
            | b"PUNSUBSCRIBE"
            | b"PUBLISH"
            | b"SPUBLISH"
            | b"PUBSUB"
            | b"SCRIPT"
            | b"WATCH"
            | b"UNWATCH"
            | b"LLEN"
            | b"LRANGE"
            | b"ZSCORE"
            | b"ZCARD"
            | b"ZCOUNT"
            | b"SISMEMBER"
            | b"SMEMBERS"
            | b"TYPE"
            | b"SCAN"
            | b"STRLEN"
            | b"GETRANGE"
            | b"XPENDING"
            | b"XINFO"
            | b"DBSIZE"
    )
}
