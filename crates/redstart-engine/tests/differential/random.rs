//! Random sequences of commands by three interleaved clients, compared reply by reply, and then the
//! keyspaces key by key. A failure prints its seed; `REDSTART_FUZZ_SEED`,
//! `REDSTART_FUZZ_COMMANDS` and `REDSTART_FUZZ_EVERY` repeat it, extend it, and compare the keyspaces more often.

use bytes::Bytes;
use redstart_engine::{Outcome, Protocol, Reply};

use crate::{Pair, Server, nil_array_to_nil, same, sorted};

struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound as u64) as usize
    }

    fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

const KEYS: &[&str] = &[
    "string1", "string2", "string3", "list1", "list2", "list3", "hash1", "hash2", "hash3", "set1",
    "set2", "set3", "zset1", "zset2", "zset3", "hll1", "hll2", "hll3", "geo1", "geo2", "geo3",
    "k1", "k2",
];
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
const SCRIPTS: &[&[u8]] = &[
    b"return redis.call('GET', KEYS[1])",
    b"return {redis.pcall('INCR', KEYS[1]), redis.pcall('APPEND', KEYS[2], ARGV[1])}",
    b"redis.call('SET', KEYS[1], ARGV[1]) redis.call('LPUSH', KEYS[1], ARGV[1]) return 1",
    b"return redis.pcall('LRANGE', KEYS[1], 0, -1)",
    b"return redis.pcall('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')",
    b"redis.setresp(3) return redis.pcall('ZSCORE', KEYS[1], ARGV[1])",
    b"redis.setresp(3) return redis.pcall('MGET', KEYS[1], KEYS[2])",
    b"return redis.call('TYPE', KEYS[1])",
    b"return redis.pcall('BLPOP', KEYS[1], KEYS[2], 0)",
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
];

/// Words with a `$`: key, field, value, int, small int, score, score bound, lex bound, deadline,
/// `$g` a coordinate, `$e` a script, `$w` a string of up to 100 bytes. `~` marks replies without an order.
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

fn word(chance: &mut Chance, family: &str, template: &str) -> Bytes {
    let fixed = |text: &[u8]| Bytes::copy_from_slice(text);
    match template {
        "$k" if family != "key" && chance.below(4) > 0 => {
            format!("{family}{}", 1 + chance.below(3)).into()
        }
        "$k" => fixed(chance.of(KEYS).as_bytes()),
        "$z" => fixed(chance.of(&[&b"z1"[..], b"z2"])),
        "$l" => fixed(chance.of(&[&b"l1"[..], b"l2"])),
        "$f" => fixed(chance.of(FIELDS)),
        "$v" => fixed(chance.of(VALUES)),
        "$i" => fixed(chance.of(INTS)),
        "$n" => fixed(chance.of(SMALL)),
        "$s" => fixed(chance.of(SCORES)),
        "$b" => fixed(chance.of(BOUNDS)),
        "$x" => fixed(chance.of(LEX)),
        "$t" => fixed(chance.of(DEADLINES)),
        "$g" => fixed(chance.of(DEGREES)),
        "$e" => fixed(chance.of(SCRIPTS)),
        "$w" => {
            let len = chance.below(100);
            vec![b'w'; len].into()
        }
        literal => fixed(literal.as_bytes()),
    }
}

fn show(args: &[Bytes]) -> String {
    args.iter()
        .map(|arg| format!("\"{}\"", arg.escape_ascii()))
        .collect::<Vec<_>>()
        .join(" ")
}

struct Run {
    pair: Pair,
    history: Vec<String>,
    unordered: [bool; 3],
    queued_unordered: [bool; 3],
    /// The server's numbers of the clients.
    ids: Vec<i64>,
}

impl Run {
    fn check(&self, what: &str, unordered: bool, ours: Reply, theirs: Reply) {
        let ours = if self.pair.protocol == Protocol::Resp3 {
            nil_array_to_nil(ours)
        } else {
            ours
        };
        // What EXEC returns is in order; only what is in it may be without one.
        let arrange = |reply: Reply| match reply {
            Reply::Array(items) if what.contains("EXEC") => {
                Reply::Array(items.into_iter().map(sorted).collect())
            }
            other => sorted(other),
        };
        let (ours, theirs) = if unordered {
            (arrange(ours), arrange(theirs))
        } else {
            (ours, theirs)
        };
        if !same(&ours, &theirs) {
            let mentioned = |line: &&String| {
                line[..2] == what[..2]
                    || KEYS
                        .iter()
                        .any(|key| what.contains(key) && line.contains(key))
            };
            let recent: Vec<_> = self
                .history
                .iter()
                .rev()
                .filter(mentioned)
                .take(40)
                .collect();
            let recent: Vec<_> = recent.into_iter().rev().map(String::as_str).collect();
            panic!(
                "{what}\n engine: {ours:?}\n server: {theirs:?}\nafter\n{}",
                recent.join("\n")
            );
        }
    }

    fn settle(&mut self) {
        for client in 0..3 {
            let Some(blocked) = &mut self.pair.blocked[client] else {
                continue;
            };
            if let Some(ours) = blocked.try_take() {
                self.pair.blocked[client] = None;
                let theirs = self.pair.wires[client].read();
                self.check(
                    &format!("@{} ?", client + 1),
                    self.unordered[client],
                    ours,
                    theirs,
                );
            }
        }
    }

    /// Lets one client that waits give up, so that not all of them end up waiting.
    fn give_up(&mut self, chance: &mut Chance) {
        let client = chance.below(3);
        if let Some(blocked) = self.pair.blocked[client].take() {
            drop(blocked);
            let id = self.ids[client];
            let done = self
                .pair
                .monitor
                .call(&crate::split(&format!("CLIENT UNBLOCK {id}")));
            assert_eq!(
                done,
                Reply::Int(1),
                "client {client} does not wait on the server"
            );
            self.pair.wires[client].read();
            self.history.push(format!("@{} gives up", client + 1));
        }
    }

    fn step(&mut self, chance: &mut Chance) {
        if chance.below(10) == 0 {
            self.give_up(chance);
        }
        let free: Vec<usize> = (0..3)
            .filter(|&client| self.pair.blocked[client].is_none())
            .collect();
        let client = free[chance.below(free.len())];
        let (family, templates) = FAMILIES[chance.below(FAMILIES.len())];
        let template = templates[chance.below(templates.len())];
        let (unordered, template) = match template.strip_prefix('~') {
            Some(template) => (true, template),
            None => (false, template),
        };
        let args: Vec<Bytes> = template
            .split(' ')
            .map(|part| word(chance, family, part))
            .collect();
        if template.starts_with("SWAPDB") && chance.below(20) > 0
            || template.starts_with("FLUSHDB") && chance.below(20) > 0
        {
            return;
        }
        let line = format!("@{} {}", client + 1, show(&args));
        self.history.push(line.clone());
        self.queued_unordered[client] |= unordered;
        let unordered = unordered || template == "EXEC" && self.queued_unordered[client];
        if template == "EXEC" || template == "DISCARD" {
            self.queued_unordered[client] = false;
        }
        let blocking = template.starts_with('B') && !template.starts_with("BIT");
        let waiting = if blocking {
            self.pair.waiting_on_server()
        } else {
            0
        };
        match self.pair.sessions[client].execute(&args) {
            Outcome::Reply(ours) => {
                let theirs = self.pair.wires[client].call(&args);
                self.check(&line, unordered, ours, theirs);
            }
            // Nobody would be left to push.
            Outcome::Blocked(blocked) if free.len() == 1 => drop(blocked),
            Outcome::Blocked(blocked) => {
                self.pair.wires[client].send(&args);
                self.pair.blocked[client] = Some(blocked);
                self.unordered[client] = unordered;
                let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
                while self.pair.waiting_on_server() == waiting {
                    assert!(
                        std::time::Instant::now() < deadline,
                        "the server answers {line}"
                    );
                }
            }
        }
        self.settle();
    }

    /// Compares both databases key by key.
    fn compare_keyspaces(&mut self) {
        for db in ["0", "1"] {
            let both = |run: &mut Run, line: &str| {
                let args = crate::split(line);
                let mut ours = run.pair.engine.session();
                ours.select(db.parse().unwrap()).unwrap();
                let ours = ours.execute(&args).into_reply().unwrap();
                let theirs = run.pair.monitor.call(&args);
                run.check(&format!("in database {db}: {line}"), true, ours, theirs);
            };
            self.pair
                .monitor
                .call(&crate::split(&format!("SELECT {db}")));
            both(self, "KEYS *");
            for key in KEYS.iter().chain(&["z1", "z2", "l1", "l2"]) {
                both(self, &format!("TYPE {key}"));
                both(self, &format!("PEXPIRETIME {key}"));
                both(self, &format!("OBJECT ENCODING {key}"));
                both(self, &format!("GET {key}"));
                both(self, &format!("LRANGE {key} 0 -1"));
                both(self, &format!("HGETALL {key}"));
                both(self, &format!("SMEMBERS {key}"));
                both(self, &format!("ZRANGE {key} 0 -1 WITHSCORES"));
            }
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let recent = &self.history[self.history.len().saturating_sub(25)..];
            println!("the last commands:\n{}", recent.join("\n"));
        }
    }
}

fn parameter(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().expect("a number"))
}

#[test]
fn random_sequences_answer_alike() {
    let fresh = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    let commands = parameter("REDSTART_FUZZ_COMMANDS").unwrap_or(25_000);
    // 1 finds the very command after which the keyspaces differ.
    let every = parameter("REDSTART_FUZZ_EVERY").unwrap_or(500);
    let server = Server::start();
    // The ordinary run repeats one known sequence; a campaign adds a fresh one, whose seed is printed.
    let campaign = parameter("REDSTART_FUZZ_COMMANDS").is_some();
    let seeds = match parameter("REDSTART_FUZZ_SEED") {
        Some(seed) => vec![seed],
        None if campaign => vec![20_240_229, fresh],
        None => vec![20_240_229],
    };
    for seed in seeds {
        println!("REDSTART_FUZZ_SEED={seed}");
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let mut chance = Chance(seed);
            let mut pair = Pair::new(&server, protocol);
            let ids =
                pair.wires
                    .iter_mut()
                    .map(|wire| match wire.call(&crate::split("CLIENT ID")) {
                        Reply::Int(id) => id,
                        other => panic!("{other:?}"),
                    });
            let mut run = Run {
                ids: ids.collect(),
                pair,
                history: Vec::new(),
                unordered: [false; 3],
                queued_unordered: [false; 3],
            };
            for step in 1..=commands / 2 {
                run.step(&mut chance);
                if step % every == 0 {
                    run.compare_keyspaces();
                }
            }
            run.compare_keyspaces();
        }
    }
}
