//! What a command does with each of its keys, as the key specifications of Redis 7.0 say.

use bytes::Bytes;

use super::{Spec, flag};

/// The kind of use, and whether user data is read, added, changed or removed.
pub(crate) mod kind {
    pub(crate) const RO: u16 = 1;
    pub(crate) const RW: u16 = 1 << 1;
    pub(crate) const OW: u16 = 1 << 2;
    pub(crate) const RM: u16 = 1 << 3;
    /// The value is returned, copied or used.
    pub(crate) const ACCESS: u16 = 1 << 4;
    pub(crate) const UPDATE: u16 = 1 << 5;
    pub(crate) const INSERT: u16 = 1 << 6;
    pub(crate) const DELETE: u16 = 1 << 7;
    /// A channel, not a key.
    pub(crate) const NOT_KEY: u16 = 1 << 8;
    /// It depends on the arguments.
    pub(crate) const VARIABLE: u16 = 1 << 9;
}

use kind::*;

/// What happens to the first key of a command, and what to the others.
pub(crate) fn of(spec: &Spec) -> (u16, u16) {
    let same = |flags: u16| (flags, flags);
    if spec.is(flag::NOT_KEYS) {
        return same(NOT_KEY);
    }
    match spec.full_name {
        "append"
        | "hsetnx"
        | "linsert"
        | "lpush"
        | "lpushx"
        | "pfadd"
        | "rpush"
        | "rpushx"
        | "sadd"
        | "xgroup|create"
        | "xgroup|createconsumer" => same(RW | INSERT),
        "expire" | "expireat" | "geoadd" | "hmset" | "hset" | "lset" | "persist" | "pexpire"
        | "pexpireat" | "setrange" | "xack" | "xadd" | "xclaim" | "xsetid" | "zadd"
        | "xgroup|setid" => same(RW | UPDATE),
        "hdel" | "lrem" | "ltrim" | "srem" | "xautoclaim" | "xdel" | "xtrim" | "zrem"
        | "zremrangebylex" | "zremrangebyrank" | "zremrangebyscore" | "xgroup|destroy"
        | "xgroup|delconsumer" => same(RW | DELETE),
        "getdel" | "lpop" | "rpop" | "spop" | "zpopmax" | "zpopmin" | "blpop" | "brpop"
        | "bzpopmax" | "bzpopmin" | "lmpop" | "blmpop" | "zmpop" | "bzmpop" | "migrate" => {
            same(RW | ACCESS | DELETE)
        }
        "hexists" | "hlen" | "hstrlen" | "llen" | "scard" | "sismember" | "strlen" | "type"
        | "xlen" | "zcard" | "exists" | "touch" | "watch" | "memory|usage" | "object|encoding"
        | "object|freq" | "object|idletime" | "object|refcount" => same(RO),
        "setnx" | "msetnx" => same(OW | INSERT),
        "psetex" | "setex" | "restore" | "restore-asking" | "mset" => same(OW | UPDATE),
        "del" | "unlink" => same(RM | DELETE),
        "pfcount" | "pfdebug" => same(RW | ACCESS),
        "xread" | "xreadgroup" => same(RO | ACCESS),
        "set" | "bitfield" => same(RW | ACCESS | UPDATE | VARIABLE),
        "bitop" | "geosearchstore" | "sdiffstore" | "sunionstore" | "zdiffstore"
        | "zinterstore" | "zunionstore" | "zrangestore" => (OW | UPDATE, RO | ACCESS),
        "sinterstore" => (RW | UPDATE, RO | ACCESS),
        "copy" | "georadius" | "georadiusbymember" | "sort" => (RO | ACCESS, OW | UPDATE),
        "rename" => (RW | ACCESS | DELETE, OW | UPDATE),
        "renamenx" => (RW | ACCESS | DELETE, OW | INSERT),
        "lmove" | "blmove" | "rpoplpush" | "brpoplpush" | "smove" => {
            (RW | ACCESS | DELETE, RW | INSERT)
        }
        "pfmerge" => (RW | ACCESS | INSERT, RO | ACCESS),
        _ if spec.is(flag::READONLY) => same(RO | ACCESS),
        _ => same(RW | ACCESS | UPDATE),
    }
}

/// Calls `visit` with the place of each key among the arguments and what this call does with it.
pub(crate) fn each(spec: &Spec, args: &[Bytes], mut visit: impl FnMut(usize, u16)) {
    let (mut flags, others) = of(spec);
    if flags & VARIABLE != 0 {
        flags = by_arguments(spec, args);
    }
    // redis.acl_check_cmd may be asked about a call with too few arguments.
    spec.each_key(args, |at| {
        if at < args.len() {
            visit(at, flags);
        }
        if others & VARIABLE == 0 {
            flags = others;
        }
    });
}

/// SET without GET only writes; BITFIELD with nothing but GET only reads.
fn by_arguments(spec: &Spec, args: &[Bytes]) -> u16 {
    let is = |arg: &Bytes, word: &str| arg.eq_ignore_ascii_case(word.as_bytes());
    match spec.full_name {
        // IFEQ tells what a key holds, one guess at a time. Valkey counts it as writing only.
        "set"
            if args
                .iter()
                .skip(3)
                .any(|arg| is(arg, "get") || is(arg, "ifeq")) =>
        {
            RW | ACCESS | UPDATE
        }
        "set" => OW | UPDATE,
        "bitfield" => {
            let mut at = 2;
            while at < args.len() {
                let left = args.len() - at - 1;
                if is(&args[at], "get") && left >= 2 {
                    at += 3;
                } else if is(&args[at], "overflow") && left >= 1 {
                    at += 2;
                } else {
                    return RW | ACCESS | UPDATE;
                }
            }
            RO | ACCESS
        }
        _ => RW | ACCESS | UPDATE,
    }
}
