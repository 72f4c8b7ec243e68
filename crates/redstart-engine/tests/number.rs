//! Numbers at the ends of their range: refused or carried out, never a panic.

#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use redstart_engine::{Compat, Engine, Session};

/// What each `N` is replaced by, one at a time; the others are 1.
const EDGES: &[&str] = &[
    "-9223372036854775808",
    "-9223372036854775807",
    "-4611686018427387905",
    "-1",
    "0",
    "2147483648",
    "4294967296",
    "9223372036854775",
    "9223372036854775806",
    "9223372036854775807",
    "18446744073709551615",
];

/// What is there before each command.
const DATA: &[&str] = &[
    "FLUSHALL",
    "SET s 12345",
    "RPUSH l a b c a",
    "HSET h a 1 b 2 c 3",
    "SADD e a b c",
    "ZADD z 1 a 2 b 3 c",
    "GEOADD g 13 38 a 15 37 b",
    "XADD x 1-1 f v",
    "XADD x 2-1 f v",
    "XGROUP CREATE x g 0",
    "XREADGROUP GROUP g c STREAMS x >",
    "BF.ADD f a",
    "PFADD p a b",
];

const LINES: &[&str] = &[
    "BF.SCANDUMP f N",
    "BF.LOADCHUNK f N data",
    "BF.RESERVE new 0.1 N EXPANSION N",
    "BF.INSERT new CAPACITY N EXPANSION N ITEMS a",
    "SET new v EX N",
    "SET new v PX N",
    "SET new v EXAT N",
    "SET new v PXAT N",
    "SETEX new N v",
    "PSETEX new N v",
    "GETEX s EX N",
    "GETEX s PXAT N",
    "GETRANGE s N N",
    "SETRANGE s N v",
    "INCRBY s N",
    "DECRBY s N",
    "HINCRBY h a N",
    "INCRBYFLOAT s N",
    "SETBIT s N 1",
    "GETBIT s N",
    "BITCOUNT s N N",
    "BITCOUNT s N N BIT",
    "BITPOS s 1 N N",
    "BITPOS s 0 N N BIT",
    "BITFIELD s GET u8 N",
    "BITFIELD s GET u8 #N",
    "BITFIELD s SET i64 #N N",
    "BITFIELD s OVERFLOW SAT INCRBY i64 0 N",
    "BITFIELD s OVERFLOW FAIL INCRBY i64 0 N INCRBY i64 0 N",
    "BITFIELD s OVERFLOW WRAP INCRBY i63 N N",
    "EXPIRE s N",
    "PEXPIRE s N GT",
    "EXPIREAT s N LT",
    "PEXPIREAT s N",
    "HEXPIRE h N FIELDS 1 a",
    "HPEXPIRE h N FIELDS N a",
    "HEXPIREAT h N FIELDS 1 a",
    "HPEXPIREAT h N FIELDS 1 a",
    "LRANGE l N N",
    "LTRIM l N N",
    "LINDEX l N",
    "LSET l N v",
    "LREM l N a",
    "LPOP l N",
    "RPOP l N",
    "LPOS l a RANK N COUNT N MAXLEN N",
    "LMPOP N l LEFT COUNT N",
    "BLMPOP N 1 l LEFT COUNT N",
    "BLPOP nothing N",
    "SPOP e N",
    "SRANDMEMBER e N",
    "SINTERCARD N e LIMIT N",
    "SSCAN e N COUNT N",
    "SCAN N COUNT N",
    "HSCAN h N COUNT N",
    "ZSCAN z N COUNT N",
    "HRANDFIELD h N WITHVALUES",
    "HRANDFIELD h N",
    "ZRANDMEMBER z N WITHSCORES",
    "ZRANDMEMBER z N",
    "ZADD z INCR N a",
    "ZINCRBY z N a",
    "ZRANGE z N N REV",
    "ZRANGE z (N N BYSCORE LIMIT N N",
    "ZRANGE z N N BYSCORE REV LIMIT N N",
    "ZRANGEBYSCORE z -inf +inf LIMIT N N",
    "ZREVRANGE z N N",
    "ZREMRANGEBYRANK z N N",
    "ZREMRANGEBYSCORE z N N",
    "ZPOPMIN z N",
    "ZMPOP N z MIN COUNT N",
    "ZUNIONSTORE new N z WEIGHTS N",
    "ZINTERCARD N z LIMIT N",
    "ZCOUNT z N N",
    "GEOADD g N N a",
    "GEORADIUS g N N N m COUNT N",
    "GEOSEARCH g FROMLONLAT 13 38 BYRADIUS N m COUNT N",
    "GEOSEARCH g FROMLONLAT 13 38 BYBOX N N km",
    "SORT l ALPHA LIMIT N N",
    "XADD x N-N f v",
    "XADD x MAXLEN ~ N LIMIT N * f v",
    "XADD x MINID N-N * f v",
    "XTRIM x MAXLEN = N",
    "XTRIM x MAXLEN ~ N LIMIT N",
    "XTRIM x MINID N",
    "XRANGE x N N COUNT N",
    "XREVRANGE x (N-N (N-N COUNT N",
    "XREAD COUNT N STREAMS x N-N",
    "XREAD BLOCK N STREAMS x N-N",
    "XREADGROUP GROUP g c COUNT N BLOCK N STREAMS x N",
    "XPENDING x g IDLE N N N N",
    "XPENDING x g - + N",
    "XCLAIM x g d N 1-1 IDLE N TIME N RETRYCOUNT N LASTID N-N",
    "XCLAIM x g d 0 N-N TIME N FORCE",
    "XAUTOCLAIM x g d N N-N COUNT N",
    "XSETID x N-N ENTRIESADDED N MAXDELETEDID N-N",
    "XGROUP CREATE x h N-N ENTRIESREAD N",
    "XGROUP SETID x g N-N ENTRIESREAD N",
    "XINFO STREAM x FULL COUNT N",
    "XACK x g N-N",
    "XDEL x N-N",
    "OBJECT FREQ s",
    "RESTORE new N garbage IDLETIME N FREQ N",
    "COPY s new DB N",
    "MOVE s N",
    "SELECT N",
    "SWAPDB N N",
    "EVAL return#KEYS N a b",
    "FCALL f N a b",
    "WAIT N N",
    "WAITAOF N N N",
    "CLIENT PAUSE N",
    "CLIENT UNBLOCK N",
    "CLIENT KILL ID N",
    "CLIENT TRACKING ON REDIRECT N",
    "CLIENT LIST ID N",
    "SLOWLOG GET N",
    "COMMANDLOG GET N slow",
    "LATENCY HISTOGRAM N",
    "ACL GENPASS N",
    "ACL LOG N",
    "HELLO N",
    "CLUSTER COUNTKEYSINSLOT N",
    "CLUSTER GETKEYSINSLOT N N",
    "CLUSTER ADDSLOTS N",
    "CLUSTER SLOT-STATS SLOTSRANGE N N",
    "CLUSTER SLOT-STATS ORDERBY key-count LIMIT N",
    "MEMORY USAGE s SAMPLES N",
    "PUBSUB NUMSUB N",
    "LCS s s MINMATCHLEN N IDX",
    "LOLWUT VERSION N",
    "REPLCONF ACK N",
    "FAILOVER TIMEOUT N",
    "CONFIG SET maxmemory N",
    "CONFIG SET hash-max-listpack-entries N",
    "CONFIG SET slowlog-log-slower-than N",
    "CONFIG SET timeout N",
];

fn run(session: &mut Session, line: &str) {
    let args: Vec<Bytes> = line
        .split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    // Whether it is refused, carried out or waits.
    drop(session.execute(&args));
}

/// A line with one of its numbers at an end; `None` if it has no such number.
fn with_edge(line: &str, which: usize, edge: &str) -> Option<String> {
    let parts: Vec<&str> = line.split('N').collect();
    // Only an N that stands alone is a number.
    let is_number = |at: usize| {
        let (before, after) = (parts[at], parts[at + 1]);
        let apart = |c: char| matches!(c, ' ' | '-' | '#' | '(');
        before.ends_with(apart) && (after.is_empty() || after.starts_with(apart))
    };
    let numbers: Vec<usize> = (0..parts.len() - 1).filter(|&at| is_number(at)).collect();
    let wanted = *numbers.get(which)?;
    let mut text = parts[0].to_owned();
    for at in 0..parts.len() - 1 {
        text += match at {
            at if at == wanted => edge,
            at if numbers.contains(&at) => "1",
            _ => "N",
        };
        text += parts[at + 1];
    }
    Some(text)
}

#[test]
fn numbers_at_the_ends_of_their_range_panic_no_command() {
    let mut panicked = Vec::new();
    for compat in [Compat::Redis82, Compat::Valkey9] {
        for line in LINES {
            for which in 0.. {
                let Some(_) = with_edge(line, which, "1") else {
                    break;
                };
                for edge in EDGES {
                    let text = with_edge(line, which, edge).unwrap();
                    let ran = catch_unwind(AssertUnwindSafe(|| {
                        let engine = Engine::builder().compat(compat).build().unwrap();
                        let mut session = engine.session();
                        DATA.iter().for_each(|line| run(&mut session, line));
                        run(&mut session, &text);
                        // What it left can be read.
                        for line in ["XPENDING x g - + 9", "XINFO STREAM x FULL", "DBSIZE"] {
                            run(&mut session, line);
                        }
                    }));
                    if ran.is_err() {
                        panicked.push(text);
                    }
                }
            }
        }
    }
    assert!(panicked.is_empty(), "{panicked:#?}");
}
