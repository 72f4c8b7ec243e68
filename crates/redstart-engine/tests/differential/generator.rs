//! Makes commands out of templates and small pools of keys, fields and values.

use std::collections::VecDeque;

use bytes::Bytes;
use redstart_testkit::Kind;

use super::sequence::{Action, Step};

/// A small generator of numbers: the same seed gives the same sequence everywhere.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound as u64) as usize
    }

    pub(crate) fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

pub(crate) const KEYS: &[&str] = &[
    "string1", "string2", "string3", "list1", "list2", "list3", "hash1", "hash2", "hash3", "set1",
    "set2", "set3", "zset1", "zset2", "zset3", "hll1", "hll2", "hll3", "geo1", "geo2", "geo3",
    "stream1", "stream2", "stream3", "k1", "k2", "z1", "z2", "l1", "l2",
];
/// Those that only some commands touch come last.
const SHARED: usize = KEYS.len() - 4;
const FIELDS: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"d",
    b"1",
    b"2",
    b"-5",
    b"",
    b"\x00\xff",
    b"10",
];
const VALUES: &[&[u8]] = &[
    b"a",
    b"b",
    b"",
    b"0",
    b"1",
    b"-1",
    b"12",
    b"3.5",
    b"-0",
    b"inf",
    b"-inf",
    b"nan",
    b"1e3",
    b"0x1f",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"\x00\x01\xff",
    b" 1",
    b"hello world",
    b"0.1",
    b"1e400",
    b"1e-400",
    b"99999999999999999999",
    b"007",
];
const INTS: &[&[u8]] = &[
    b"0",
    b"1",
    b"2",
    b"3",
    b"-1",
    b"-2",
    b"-3",
    b"5",
    b"100",
    b"-100",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"x",
    b"",
    b"1.5",
];
const SMALL: &[&[u8]] = &[b"0", b"1", b"2", b"3", b"5", b"-1", b"x"];
const SCORES: &[&[u8]] = &[
    b"0",
    b"1",
    b"2",
    b"-1",
    b"0.1",
    b"0.2",
    b"1.5",
    b"-0",
    b"inf",
    b"-inf",
    b"+inf",
    b"nan",
    b"x",
    b"1e3",
    b"3",
    b"4",
    b"5",
    b"1e17",
    b"123456789012345678",
    b"",
    b"4503599627370496",
    b"-1e-300",
    b"1.7976931348623157e308",
    b"0.30000000000000004",
];
const BOUNDS: &[&[u8]] = &[
    b"-inf", b"+inf", b"0", b"1", b"2", b"(1", b"(2", b"(0.1", b"3", b"-1", b"x", b"(", b"(inf",
];
const LEX: &[&[u8]] = &[
    b"-", b"+", b"[a", b"(a", b"[b", b"(c", b"[", b"(", b"x", b"[1", b"(2",
];
const DEADLINES: &[&[u8]] = &[
    b"33177117420000",
    b"33177117421234",
    b"1",
    b"0",
    b"-1",
    b"x",
];

const DEGREES: &[&[u8]] = &[
    b"0", b"13.4", b"13.5", b"52.5", b"-33.9", b"80", b"85", b"-85", b"179.9", b"-179.9", b"1e-7",
    b"x", b"200",
];
/// None of them reads ARGV[1] as a number: a float out of range there would leave C's `errno` set, at
/// which the server's next SORT fails.
/// The last three are left out where they would do harm.
const SCRIPTS: &[&[u8]] = &[
    b"return redis.call('GET', KEYS[1])",
    b"return {redis.pcall('INCR', KEYS[1]), redis.pcall('APPEND', KEYS[2], ARGV[1])}",
    b"redis.call('SET', KEYS[1], ARGV[1]) redis.call('LPUSH', KEYS[1], ARGV[1]) return 1",
    b"return redis.pcall('LRANGE', KEYS[1], 0, -1)",
    b"return redis.pcall('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')",
    b"redis.setresp(3) return redis.pcall('ZSCORE', KEYS[1], ARGV[1])",
    b"redis.setresp(3) return redis.pcall('MGET', KEYS[1], KEYS[2])",
    b"return redis.call('TYPE', KEYS[1])",
    b"return redis.pcall('HSET', KEYS[1], 'a', ARGV[1])",
    b"return redis.pcall('RPUSH', KEYS[1], ARGV[1], ARGV[2])",
    b"redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], ARGV[1]) return redis.call('RENAME', KEYS[1], KEYS[2])",
    b"local n = 0\nfor i = 1, 3 do\n n = n + redis.call('INCRBY', KEYS[1], ARGV[2])\nend\nreturn n",
    b"return cjson.encode({ARGV[1], tonumber(ARGV[2]) or false, {}})",
    b"local ok, value = pcall(cjson.decode, ARGV[2]) return {ok, tostring(value)}",
    b"return {tonumber(ARGV[2]) or 'none', tonumber(ARGV[2], 16) or 'none'}",
    b"error(ARGV[1])",
    b"return redis.error_reply(ARGV[1])",
    b"return redis.status_reply(ARGV[1])",
    b"return cmsgpack.unpack(cmsgpack.pack({ARGV[1], tonumber(ARGV[2])}))",
    b"return redis.sha1hex(ARGV[1])",
    b"redis.call('SELECT', 1) return redis.pcall('SET', KEYS[1], ARGV[1])",
    b"return nosuch",
    b"return redis.pcall('XRANGE', KEYS[1], '-', '+')",
    b"return {redis.pcall('SADD', KEYS[1], ARGV[1]), redis.pcall('SCARD', KEYS[1]), redis.pcall('SISMEMBER', KEYS[2], ARGV[1])}",
    b"return redis.pcall('ZADD', KEYS[1], 'INCR', ARGV[2], ARGV[1])",
    b"redis.setresp(3) return {redis.pcall('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES'), redis.pcall('HGET', KEYS[2], 'a')}",
    b"return {1.9, -1.9, '2.5', true, false, {nested = 1}, {ok = 'fine'}, nil, 3}",
    b"return bit.bxor(tonumber(ARGV[2]) or 0, 0xff)",
    b"return struct.pack('>I2', 258) .. ARGV[1]",
    b"return redis.pcall(ARGV[1], KEYS[1])",
    b"return redis.pcall('BLPOP', KEYS[1], KEYS[2], 0)",
    b"return redis.call('EXPIRE', KEYS[1], -1)",
    b"for i = 1, 1200 do redis.pcall('PFADD', KEYS[1], ARGV[2] .. i) end return redis.pcall('PFCOUNT', KEYS[1])",
];

const STREAM_IDS: &[&[u8]] = &[
    b"0",
    b"-",
    b"+",
    b"0-0",
    b"1-1",
    b"0-1",
    b"$",
    b">",
    b"x",
    b"",
    b"(1",
    b"(",
    b"1-x",
    b"18446744073709551615-18446744073709551615",
    b"18446744073709551615",
    b"1-18446744073709551616",
];
/// Those that are numbers stand for the start.
const CURSORS: &[&[u8]] = &[
    b"0",
    b"x",
    b"",
    b" 0",
    b"+0",
    b"-0",
    b"00",
    b"\x00\x01",
    b"1.5",
    b"99999999999999999999",
];
/// None that ends by itself.
const TIMEOUTS: &[&[u8]] = &[
    b"0",
    b"-1",
    b"x",
    b"nan",
    b"inf",
    b"",
    b"1e400",
    b"-0",
    b"99999999999999999999",
    b" 0",
];
const UNITS: &[&[u8]] = &[b"m", b"km", b"mi", b"ft", b"x"];
const RADII: &[&[u8]] = &[
    b"0", b"1", b"100", b"500", b"3000", b"9000", b"40000", b"-1", b"1e400", b"nan", b"x",
];
const CHANNELS: &[&[u8]] = &[b"ch1", b"ch2", b"", b"\x00\xff"];
const PATTERNS: &[&[u8]] = &[b"ch*", b"c?1", b"[a-c]h2", b"?*2"];
const WIDTHS: &[&[u8]] = &[
    b"u1", b"i1", b"u8", b"i8", b"u63", b"i64", b"u64", b"i65", b"u0", b"i7", b"x",
];

/// What the fourth client does.
const SUBSCRIPTIONS: &[&str] = &[
    "SUBSCRIBE $a $a",
    "UNSUBSCRIBE $a",
    "PSUBSCRIBE $A",
    "PUNSUBSCRIBE $A $A",
    "SSUBSCRIBE $a",
    "SUNSUBSCRIBE $a",
];

/// Words with a `$`: key, field, value, int, small int, score, score bound, lex bound, deadline,
/// `$g` a coordinate, `$r` a radius, `$j` a unit, `$T` a timeout, `$C` a cursor, `$e` a script, `$q` the digest of one, `$d` one that
/// fills an estimate, `$w` a string of up to 100 bytes, `$h` one of thousands, `$u` a new number, `$m`
/// and `$p` a stream's next id and any id, `$o` a group, `$c` a consumer, `$a` and `$A` a channel and a
/// pattern, `$y` a bit field's type, `$z` and `$l` keys of which only some commands know. `~` marks replies without an order.
/// Templates by family: three of four keys of a command are those that its family mostly uses.
const FAMILIES: &[(&str, &[&str])] = &[
    // strings
    (
        "string",
        &[
            "SET $k $v",
            "SET $k $v",
            "SET $k $v NX",
            "SET $k $v XX GET",
            "SET $k $v KEEPTTL",
            "SET $k $v PXAT $t",
            "SET $k $v GET",
            "SET $k $w",
            "GET $k",
            "GETSET $k $v",
            "GETDEL $k",
            "GETEX $k PXAT $t",
            "GETEX $k PERSIST",
            "MSET $k $v $k $v",
            "MSETNX $k $v $k $v",
            "MGET $k $k $k",
            "INCR $k",
            "DECR $k",
            "INCRBY $k $i",
            "DECRBY $k $i",
            "INCRBYFLOAT $k $s",
            "INCRBYFLOAT $k $v",
            "APPEND $k $v",
            "STRLEN $k",
            "GETRANGE $k $i $i",
            "SETRANGE $k $n $v",
            "SETNX $k $v",
            "LCS $k $k",
            "LCS $k $k LEN",
            "LCS $k $k IDX WITHMATCHLEN",
            "SUBSTR $k $i $i",
            "SET $k $h",
            "APPEND $k $h",
            "SETRANGE $k $i $v",
            "SETRANGE $k 5000 $v",
            "SET $k $v EXAT 33177117420",
            "SET $k $v NX GET PXAT $t",
            "GETEX $k EXAT 33177117420",
            "GETEX $k EX 0",
            "SET $k $v EX 9223372036854775807",
            "LCS $k $k IDX MINMATCHLEN $n",
        ],
    ),
    // keys
    (
        "key",
        &[
            "DEL $k",
            "UNLINK $k $k",
            "EXISTS $k $k",
            "TYPE $k",
            "RENAME $k $k",
            "RENAMENX $k $k",
            "COPY $k $k",
            "COPY $k $k REPLACE",
            "MOVE $k 1",
            "COPY $k $k DB 1",
            "PEXPIREAT $k $t",
            "PEXPIREAT $k $t NX",
            "PEXPIREAT $k $t XX",
            "PEXPIREAT $k $t GT",
            "PEXPIREAT $k $t LT",
            "EXPIRE $k -1",
            "PERSIST $k",
            "PEXPIRETIME $k",
            "EXPIRETIME $k",
            "~KEYS *",
            "~SCAN 0 COUNT 1000",
            "TOUCH $k $k",
            "OBJECT ENCODING $k",
            "SORT $k",
            "SORT $l ALPHA DESC",
            "SORT $l ALPHA LIMIT $i $i",
            "~SORT $k BY nosort GET #",
            "SORT $l ALPHA STORE $l",
            "SORT $k BY *",
            "SORT_RO $l ALPHA",
            "EXPIREAT $k $t LT",
            "PEXPIRE $k -1",
            "EXPIRE $k 9223372036854775807",
            "OBJECT NOSUCH $k",
            "~SCAN 0 MATCH *1 COUNT 1000 TYPE string",
            "SCAN x",
            "SCAN 0 COUNT 0",
            "SORT $l BY string* ALPHA GET # GET hash*->a",
            "SORT $k LIMIT 0 2 DESC",
            "WAIT 0 0",
            "ECHO $v",
            "COPY $k $k DB 1 REPLACE",
            "MOVE $k $n",
            "SELECT $i",
            "COMMAND GETKEYS MSET a b c d",
            "CLIENT GETNAME",
            "CLIENT SETNAME $f",
        ],
    ),
    // lists
    (
        "list",
        &[
            "LPUSH $k $v $v",
            "RPUSH $k $v $f",
            "RPUSH $k $f",
            "LPUSHX $k $v",
            "RPUSHX $k $v",
            "LPOP $k",
            "RPOP $k",
            "LPOP $k $n",
            "RPOP $k $n",
            "LLEN $k",
            "LINDEX $k $i",
            "LSET $k $n $v",
            "LRANGE $k $i $i",
            "LRANGE $k 0 -1",
            "LTRIM $k $i $i",
            "LREM $k $i $f",
            "LINSERT $k BEFORE $f $v",
            "LINSERT $k AFTER $f $v",
            "LPOS $k $f",
            "LPOS $k $f RANK $i COUNT $n",
            "LPOS $k $f MAXLEN $n COUNT 0",
            "LMOVE $k $k LEFT RIGHT",
            "LMOVE $k $k RIGHT RIGHT",
            "RPOPLPUSH $k $k",
            "LMPOP 2 $k $k LEFT COUNT $n",
            "LMPOP 1 $k RIGHT",
            "BLPOP $k $k 0",
            "BRPOP $k 0",
            "BLMOVE $k $k LEFT RIGHT 0",
            "BRPOPLPUSH $k $k 0",
            "BLMPOP 0 2 $k $k LEFT COUNT 2",
            "BLMOVE $k $k RIGHT LEFT 0",
            "BLPOP $k $T",
            "BLMPOP 0 1 $k RIGHT COUNT $n",
            "RPUSH $k $h",
            "LPUSH $k $v $f $v $f $v $f",
            "LSET $k $i $h",
            "LINSERT $k $f $f $v",
            "LPOS $k $v RANK $i MAXLEN $n",
            "LMPOP $n $k $k RIGHT",
            "LPOP $k $i",
        ],
    ),
    // hashes
    (
        "hash",
        &[
            "HSET $k $f $v",
            "HSET $k $f $v $f $v",
            "HMSET $k $f $v",
            "HSETNX $k $f $v",
            "HGET $k $f",
            "HMGET $k $f $f",
            "HDEL $k $f",
            "HDEL $k $f $f",
            "~HGETALL $k",
            "~HKEYS $k",
            "~HVALS $k",
            "HLEN $k",
            "HEXISTS $k $f",
            "HSTRLEN $k $f",
            "HINCRBY $k $f $i",
            "HINCRBYFLOAT $k $f $s",
            "~HSCAN $k 0 COUNT 1000",
            "HSET $k $f $w",
            "~HRANDFIELD $k 100 WITHVALUES",
            "HSET $k $f $h",
            "HSET $k $f",
            "HINCRBY $k $f $v",
            "HINCRBYFLOAT $k $f $v",
            "~HSCAN $k $C COUNT 1000",
            "~HSCAN $k 0 MATCH $f COUNT 1000",
            "HRANDFIELD $k 0",
            "HRANDFIELD $k $v $v",
        ],
    ),
    // sets
    (
        "set",
        &[
            "SADD $k $f $v",
            "SADD $k $i $n",
            "SADD $k $f",
            "SREM $k $f $v",
            "~SMEMBERS $k",
            "SCARD $k",
            "SISMEMBER $k $f",
            "SMISMEMBER $k $f $v",
            "SMOVE $k $k $f",
            "~SUNION $k $k",
            "~SINTER $k $k",
            "~SDIFF $k $k $k",
            "SUNIONSTORE $k $k $k",
            "SINTERSTORE $k $k $k",
            "SDIFFSTORE $k $k $k",
            "SINTERCARD 2 $k $k LIMIT $n",
            "~SPOP $k 1000",
            "~SRANDMEMBER $k 1000",
            "~SSCAN $k 0 COUNT 1000",
            "SADD $k $h",
            "SADD $k $w",
            "SPOP $k -1",
            "SPOP $k x",
            "~SPOP $k 9223372036854775807",
            "SINTERCARD $n $k $k",
            "SRANDMEMBER $k 0",
        ],
    ),
    // sorted sets
    (
        "zset",
        &[
            "ZADD $k $s $f",
            "ZADD $k $s $f $s $f",
            "ZADD $k NX $s $f",
            "ZADD $k XX CH $s $f",
            "ZADD $k GT CH $s $f",
            "ZADD $k LT $s $f",
            "ZADD $k INCR $s $f",
            "ZADD $k 0 $f 0 $f 0 $v",
            "ZINCRBY $k $s $f",
            "ZREM $k $f $f",
            "ZCARD $k",
            "ZSCORE $k $f",
            "ZMSCORE $k $f $f",
            "ZRANK $k $f",
            "ZREVRANK $k $f",
            "ZCOUNT $k $b $b",
            "ZLEXCOUNT $z $x $x",
            "ZRANGE $k $i $i",
            "ZRANGE $k 0 -1 WITHSCORES",
            "ZRANGE $k $b $b BYSCORE LIMIT $n $i",
            "ZRANGE $z $x $x BYLEX",
            "ZRANGE $k $b $b BYSCORE REV WITHSCORES",
            "ZRANGE $k $i $i REV WITHSCORES",
            "ZREVRANGE $k $i $i",
            "ZRANGEBYSCORE $k $b $b WITHSCORES",
            "ZREVRANGEBYSCORE $k $b $b",
            "ZRANGEBYLEX $z $x $x",
            "ZREVRANGEBYLEX $z $x $x LIMIT $n $n",
            "ZRANGESTORE $k $k $i $i",
            "ZRANGESTORE $k $k $b $b BYSCORE",
            "ZREMRANGEBYRANK $k $i $i",
            "ZREMRANGEBYSCORE $k $b $b",
            "ZREMRANGEBYLEX $z $x $x",
            "ZPOPMIN $k",
            "ZPOPMAX $k $n",
            "ZMPOP 2 $k $k MIN COUNT $n",
            "BZPOPMIN $k $k 0",
            "BZPOPMAX $k 0",
            "BZMPOP 0 1 $k MAX",
            "ZUNION 2 $k $k WITHSCORES",
            "ZUNION 2 $k $k WEIGHTS $s $s AGGREGATE MAX WITHSCORES",
            "ZINTER 2 $k $k WITHSCORES",
            "ZDIFF 2 $k $k WITHSCORES",
            "ZUNIONSTORE $k 2 $k $k",
            "ZINTERSTORE $k 2 $k $k AGGREGATE MIN",
            "ZDIFFSTORE $k 2 $k $k",
            "ZINTERCARD 2 $k $k LIMIT $n",
            "~ZSCAN $k 0 COUNT 1000",
            "~ZRANDMEMBER $k 1000 WITHSCORES",
            "ZADD $k 1 $w",
            "ZADD $k 2 $h",
            "ZADD $k NX GT $s $f",
            "ZADD $k XX INCR $s $f",
            "ZADD $k $s",
            "ZUNION 2 $k $k AGGREGATE SUM",
            "ZUNION $n $k $k",
            "ZUNIONSTORE $k 2 $k $k WEIGHTS $s $s",
            "ZINTERSTORE $k 2 $k $k WEIGHTS $s $s AGGREGATE SUM",
            "ZRANGESTORE $k $k $b $b BYSCORE REV LIMIT $n $n",
            "ZRANGESTORE $k $z $x $x BYLEX",
            "ZREVRANGEBYSCORE $k $b $b WITHSCORES LIMIT $n $i",
            "ZMPOP 1 $k MAX",
            "BZPOPMIN $k $k $k 0",
            "BZMPOP 0 2 $k $k MIN COUNT $n",
            "ZPOPMIN $k $i",
            "ZRANDMEMBER $k 0",
        ],
    ),
    // what has an order only among equals
    (
        "key",
        &[
            "ZADD $z 0 $f 0 $f",
            "ZADD $z 0 $f 0 $v",
            "ZADD $z 0 $w",
            "ZREM $z $f",
            "RPUSH $l $f $v",
            "LPUSH $l $i",
            "LPOP $l",
        ],
    ),
    // bitmaps
    (
        "string",
        &[
            "SETBIT $k $n $n",
            "SETBIT $k $i 1",
            "GETBIT $k $i",
            "BITCOUNT $k",
            "BITCOUNT $k $i $i",
            "BITCOUNT $k $i $i BIT",
            "BITPOS $k $n",
            "BITPOS $k $n $i",
            "BITPOS $k $n $i $i",
            "BITPOS $k $n $i $i BIT",
            "BITOP AND $k $k $k",
            "BITOP OR $k $k $k",
            "BITOP XOR $k $k $k $k",
            "BITOP NOT $k $k",
            "BITFIELD $k GET i8 $n SET u5 $n $i INCRBY i13 #1 $i",
            "BITFIELD $k OVERFLOW SAT INCRBY u3 $n $i OVERFLOW FAIL INCRBY i64 $n $i",
            "BITFIELD_RO $k GET u63 $n GET i64 3",
            "BITFIELD $k OVERFLOW $v SET u8 0 1",
            "BITFIELD $k SET $y $n $i GET $y #$n",
            "BITFIELD $k OVERFLOW SAT INCRBY $y $n $i",
            "BITFIELD $k OVERFLOW FAIL INCRBY $y #1 $i SET $y 0 $v",
            "BITFIELD_RO $k SET u8 0 1",
            "SETBIT $k 20000 $n",
            "BITOP NOT $k $k $k",
            "BITOP $v $k $k",
        ],
    ),
    // estimates
    (
        "hll",
        &[
            "PFADD $k $f $v",
            "PFADD $k",
            "PFADD $k $w $i",
            "PFCOUNT $k",
            "PFCOUNT $k $k",
            "PFMERGE $k $k $k",
            "PFMERGE $k",
            "PFADD $k $u $u $u $u",
            "EVAL $d 2 $k $k $v $u",
        ],
    ),
    // positions
    (
        "geo",
        &[
            "GEOADD $k $g $g $f",
            "GEOADD $k NX CH $g $g $f $g $g $f",
            "GEODIST $k $f $f km",
            "GEOPOS $k $f $f",
            "GEOHASH $k $f",
            "GEOSEARCH $k FROMLONLAT $g $g BYRADIUS 500 km WITHDIST WITHCOORD",
            "GEOSEARCH $k FROMMEMBER $f BYBOX 4000 900 mi DESC WITHHASH",
            "GEOSEARCH $k FROMLONLAT $g $g BYBOX 40000 900 km COUNT 2",
            "GEOSEARCHSTORE $k $k FROMMEMBER $f BYRADIUS 3000 km COUNT 3 ANY",
            "GEOSEARCHSTORE $k $k FROMLONLAT $g $g BYRADIUS 3000000 ft STOREDIST",
            "GEORADIUS $k $g $g 900 km ASC STORE $k",
            "GEORADIUSBYMEMBER $k $f 9000 km COUNT 2 WITHDIST",
            "GEOSEARCH $k FROMMEMBER $f BYRADIUS $r $j ASC WITHDIST WITHHASH WITHCOORD",
            "GEOSEARCH $k FROMLONLAT $g $g BYBOX $r $r $j ASC",
            "GEORADIUS_RO $k $g $g $r $j DESC COUNT $n",
            "GEORADIUSBYMEMBER_RO $k $f $r $j COUNT $n ANY",
            "GEORADIUSBYMEMBER $k $f $r $j STOREDIST $k",
            "GEOSEARCHSTORE $k $k FROMLONLAT $g $g BYBOX $r $r $j STOREDIST",
            "GEODIST $k $f $f $j",
            "GEOADD $k XX CH $g $g $f",
            "ZADD $k $s $f",
        ],
    ),
    // streams
    (
        "stream",
        &[
            "XADD $k $m $f $v",
            "XADD $k $m $f $v",
            "XADD $k $m $f $v $f $v",
            "XADD $k $m $f $h",
            "XADD $k $p $f $v",
            "XADD $k MAXLEN $n $m $f $v",
            "XADD $k MAXLEN = 5 $m $f $v",
            "XADD $k MAXLEN ~ $n $m $f $v",
            "XADD $k MAXLEN ~ 0 LIMIT $i $m $f $v",
            "XADD $k MINID $p $m $f $v",
            "XADD $k NOMKSTREAM $m $f $v",
            "XLEN $k",
            "XRANGE $k $p $p",
            "XRANGE $k - + COUNT $n",
            "XREVRANGE $k + -",
            "XREVRANGE $k $p $p COUNT $i",
            "XDEL $k $p $p",
            "XTRIM $k MAXLEN $n",
            "XTRIM $k MINID $p",
            "XTRIM $k MAXLEN ~ $n LIMIT $n",
            "XSETID $k $p",
            "XSETID $k $p ENTRIESADDED $n MAXDELETEDID $p",
            "XREAD COUNT $n STREAMS $k $k $p $p",
            "XREAD STREAMS $k $p",
            "XREAD BLOCK 0 STREAMS $k $",
            "XREAD COUNT 2 BLOCK 0 STREAMS $k $k $p $",
            "XGROUP CREATE $k $o $p",
            "XGROUP CREATE $k $o $ MKSTREAM",
            "XGROUP CREATE $k $o 0 MKSTREAM ENTRIESREAD $n",
            "XGROUP SETID $k $o $p",
            "XGROUP SETID $k $o 0 ENTRIESREAD $i",
            "XGROUP DESTROY $k $o",
            "XGROUP CREATECONSUMER $k $o $c",
            "XGROUP DELCONSUMER $k $o $c",
            "XREADGROUP GROUP $o $c COUNT $n STREAMS $k >",
            "XREADGROUP GROUP $o $c STREAMS $k $k > >",
            "XREADGROUP GROUP $o $c NOACK STREAMS $k >",
            "XREADGROUP GROUP $o $c STREAMS $k $p",
            "XREADGROUP GROUP $o $c BLOCK 0 STREAMS $k >",
            "XREADGROUP GROUP $o $c COUNT 1 BLOCK 0 NOACK STREAMS $k $k > >",
            "XACK $k $o $p $p",
            "XPENDING $k $o",
            "XPENDING $k $o - + 10",
            "XPENDING $k $o $p $p $n $c",
            "XPENDING $k $o IDLE 0 - + 3",
            "XCLAIM $k $o $c 0 $p $p",
            "XCLAIM $k $o $c 0 $p FORCE JUSTID",
            "XCLAIM $k $o $c 0 $p RETRYCOUNT $n FORCE",
            "XCLAIM $k $o $c 0 $p LASTID $p",
            "XAUTOCLAIM $k $o $c 0 $p COUNT $n",
            "XAUTOCLAIM $k $o $c 0 - JUSTID",
            "XINFO GROUPS $k",
            "~XINFO CONSUMERS $k $o",
            "XINFO STREAM $k",
            "XINFO STREAM $k FULL COUNT $n",
        ],
    ),
    // messages
    (
        "key",
        &[
            "PUBLISH $a $v",
            "SPUBLISH $a $v",
            "~PUBSUB CHANNELS",
            "~PUBSUB SHARDCHANNELS c*",
            "PUBSUB NUMSUB $a $a",
            "PUBSUB SHARDNUMSUB $a",
            "PUBSUB NUMPAT",
        ],
    ),
    // scripts
    (
        "key",
        &[
            "EVAL $e 2 $k $k $v $i",
            "EVAL $e 2 $k $k $v $i",
            "EVAL $e 2 $k $k $v $i",
            "EVAL $e 2 $k $k $f $s",
            "EVAL_RO $e 2 $k $k $v $i",
            "EVALSHA $q 2 $k $k $v $i",
            "EVALSHA_RO $q 2 $k $k $v $i",
            "SCRIPT LOAD $e",
            "SCRIPT EXISTS $q $v",
            "EVAL $e $i $k $k",
        ],
    ),
    // transactions and databases
    (
        "key",
        &[
            "MULTI",
            "EXEC",
            "EXEC",
            "DISCARD",
            "WATCH $k",
            "UNWATCH",
            "SELECT 1",
            "SELECT 0",
            "SELECT 0",
            "SWAPDB 0 1",
            "PING",
            "NOSUCH $k",
            "GET",
            "FLUSHDB",
        ],
    ),
];

/// Valkey makes a consumer that is named even if it gets nothing, Redis 7.0 does not: it is made before.
fn consumers(step: &Step) -> Vec<Step> {
    let Action::Command { args, .. } = &step.action else {
        return Vec::new();
    };
    let (keys, group) = match &args[0][..] {
        b"XCLAIM" | b"XAUTOCLAIM" => (&args[1..2], &args[2..4]),
        b"XREADGROUP" => {
            let streams = args.iter().position(|arg| arg == "STREAMS").unwrap_or(0) + 1;
            let keys = (args.len() - streams) / 2;
            (&args[streams..streams + keys], &args[2..4])
        }
        _ => return Vec::new(),
    };
    let make = |key: &Bytes| Step {
        client: step.client,
        action: Action::Command {
            args: vec![
                "XGROUP".into(),
                "CREATECONSUMER".into(),
                key.clone(),
                group[0].clone(),
                group[1].clone(),
            ],
            unordered: false,
        },
    };
    keys.iter().map(make).collect()
}

/// A key whose deadline has passed may still be there: a command that stores nothing in it then says
/// `del`, but only if the server's background cycle was not faster. It is looked at, and so removed,
/// before.
fn target(step: &Step) -> Option<Step> {
    let Action::Command { args, .. } = &step.action else {
        return None;
    };
    let key = match &args[0][..] {
        b"BITOP" => &args[2],
        b"SORT" | b"GEORADIUS" | b"GEORADIUSBYMEMBER" => {
            let store = args.iter().position(|arg| arg.starts_with(b"STORE"))?;
            args.get(store + 1)?
        }
        name if name.ends_with(b"STORE") => &args[1],
        _ => return None,
    };
    Some(Step {
        client: step.client,
        action: Action::Command {
            args: vec!["EXISTS".into(), key.clone()],
            unordered: false,
        },
    })
}

/// Makes steps; the same seed makes the same ones as long as the same clients are free.
pub(crate) struct Generator {
    kind: Kind,
    chance: Chance,
    in_multi: [bool; 4],
    /// To be done next.
    next: VecDeque<Step>,
    /// Grows: the ids of streams, and numbers that were never used before.
    counter: u64,
}

impl Generator {
    pub(crate) fn new(kind: Kind, seed: u64) -> Generator {
        Generator {
            kind,
            in_multi: [false; 4],
            next: VecDeque::new(),
            chance: Chance::new(seed),
            counter: 100,
        }
    }

    /// A step of one of the free clients; now and then one that waits gives up.
    pub(crate) fn step(&mut self, free: &[usize]) -> Step {
        if let Some(step) = self.next.pop_front()
            && free.contains(&step.client)
        {
            return step;
        }
        let chance = &mut self.chance;
        if free.len() < 3 && chance.below(10) == 0 {
            let client = chance.below(3);
            let action = Action::GiveUp;
            return Step { client, action };
        }
        if chance.below(60) == 0 {
            let template = chance.of(SUBSCRIPTIONS);
            return self.command(3, "key", template);
        }
        loop {
            let chance = &mut self.chance;
            let client = free[chance.below(free.len())];
            let (family, templates) = FAMILIES[chance.below(FAMILIES.len())];
            let template = templates[chance.below(templates.len())];
            let rare = ["SWAPDB", "FLUSHDB", "EVAL $d"];
            if rare.iter().any(|name| template.starts_with(name)) && chance.below(20) > 0 {
                continue;
            }
            let word = template.split(' ').next().unwrap_or_default();
            if self.kind == Kind::Valkey && !self.also_on_valkey(client, template) {
                continue;
            }
            match word {
                "MULTI" => self.in_multi[client] = true,
                "EXEC" | "DISCARD" => self.in_multi[client] = false,
                _ => {}
            }
            let step = self.command(client, family, template);
            match self.kind {
                Kind::Redis => self.next.extend(target(&step)),
                Kind::Valkey => self.next.extend(consumers(&step)),
            }
            self.next.push_back(step);
            return self.next.pop_front().expect("it was just put there");
        }
    }

    /// What would leave Valkey in another state than Redis 7.0 is not sent to it:
    ///
    /// - XSETID within MULTI: whether it would set the id before one that was deleted cannot be told;
    /// - MULTI and WATCH within MULTI: both refuse them, but Valkey then refuses EXEC as well;
    /// - deadlines in the past: both remove the key, but the one says `del` and the other `expired`;
    /// - cursors that are no numbers, and names of clients with zero bytes: Valkey is more strict;
    /// - the smallest integer in LPOS and LREM: to Valkey it is out of range;
    /// - a negative offset of LIMIT: Valkey takes some for 0;
    /// - huge indices of LSET: Valkey cuts them off to 32 bits in a packed list;
    /// - ENTRIESREAD, which may be more than was ever added: Valkey then counts in another way;
    /// - `+` in XREAD and blocking commands in scripts: Redis 7.0 does not have them.
    fn also_on_valkey(&self, client: usize, template: &str) -> bool {
        let nested = ["MULTI", "WATCH", "XSETID"]
            .iter()
            .any(|name| template.starts_with(name));
        let past = template.contains("EXPIRE $k") && !template.contains("TIME");
        let strict = template == "~HSCAN $k $C COUNT 1000" || template == "CLIENT SETNAME $f";
        let strict =
            strict || template.starts_with("LSET $k $i") || template.contains("ENTRIESREAD");
        !(nested && self.in_multi[client] || past || strict)
    }

    fn command(&mut self, client: usize, family: &str, template: &str) -> Step {
        let (unordered, template) = match template.strip_prefix('~') {
            Some(template) => (true, template),
            None => (false, template),
        };
        let mut args: Vec<Bytes> = template
            .split(' ')
            .map(|part| self.word(family, part))
            .collect();
        if self.kind == Kind::Valkey {
            let replaced = match &args[0][..] {
                b"XREAD" => Some(("+", "0")),
                b"LPOS" | b"LREM" => Some(("-9223372036854775808", "-100")),
                _ => None,
            };
            let limit = args.iter().position(|arg| arg == "LIMIT");
            if let Some(offset) = limit.and_then(|at| args.get_mut(at + 1))
                && offset == "-1"
            {
                *offset = "0".into();
            }
            for arg in &mut args {
                if let Some((other, same)) = replaced
                    && arg == other
                {
                    *arg = same.into();
                }
            }
        }
        let action = Action::Command { args, unordered };
        Step { client, action }
    }

    fn word(&mut self, family: &str, template: &str) -> Bytes {
        let chance = &mut self.chance;
        let pool = match template {
            "$k" if family != "key" && chance.below(4) > 0 => {
                return format!("{family}{}", 1 + chance.below(3)).into();
            }
            "$k" => return KEYS[chance.below(SHARED)].into(),
            "$z" => return chance.of(&["z1", "z2"]).into(),
            "$l" => return chance.of(&["l1", "l2"]).into(),
            "$o" => return chance.of(&["g1", "g1", "g2", ""]).into(),
            "$c" => return chance.of(&["alice", "alice", "bob", ""]).into(),
            "$d" => return SCRIPTS[SCRIPTS.len() - 1].into(),
            "$e" if self.kind == Kind::Valkey => {
                return SCRIPTS[chance.below(SCRIPTS.len() - 3)].into();
            }
            "$e" => return SCRIPTS[chance.below(SCRIPTS.len() - 1)].into(),
            "$q" => {
                let script = chance.of(&SCRIPTS[..SCRIPTS.len() - 3]);
                return sha1_smol::Sha1::from(script).digest().to_string().into();
            }
            "$w" => return vec![b'w'; chance.below(100)].into(),
            "$h" => {
                let sizes = [200, 2000, 4097, 5000, 8200, 9000, 70_000];
                // Long ones are seldom: they are copied and printed again and again.
                let size = match chance.below(4) {
                    0 => sizes[chance.below(sizes.len())],
                    _ => 65,
                };
                return vec![b'h'; size].into();
            }
            "$u" => {
                self.counter += 1;
                return self.counter.to_string().into();
            }
            "$m" => {
                self.counter += 1;
                let at = self.counter;
                return match chance.below(8) {
                    0 => format!("{at}-*"),
                    1 => format!("{at}-{}", chance.below(3)),
                    2 => format!("{}-*", at - 1),
                    _ => at.to_string(),
                }
                .into();
            }
            "$p" if chance.below(3) > 0 => {
                let at = self.counter - chance.below(60) as u64;
                return match chance.below(4) {
                    0 => format!("({at}"),
                    1 => format!("{at}-0"),
                    _ => at.to_string(),
                }
                .into();
            }
            "$p" => STREAM_IDS,
            "$f" => FIELDS,
            "$v" => VALUES,
            "$i" => INTS,
            "$n" => SMALL,
            "#$n" => return [&b"#"[..], chance.of(SMALL)].concat().into(),
            "$s" => SCORES,
            "$b" => BOUNDS,
            "$x" => LEX,
            "$t" if self.kind == Kind::Valkey => &DEADLINES[..2],
            "$t" => DEADLINES,
            "$g" => DEGREES,
            "$r" => RADII,
            "$T" => TIMEOUTS,
            "$C" => CURSORS,
            "$j" => UNITS,
            "$a" => CHANNELS,
            "$A" => PATTERNS,
            "$y" => WIDTHS,
            literal => return Bytes::copy_from_slice(literal.as_bytes()),
        };
        Bytes::copy_from_slice(chance.of(pool))
    }
}
