//! The worlds that a plain server can show; `topology.rs` has those of a Cluster and of replicas, `library.rs` those of
//! Redstart's own patterns.

use std::time::Duration;

use redstart_doctor::DoctorBuilder;

use crate::world::{Case, Guest, Side};

const NOTHING: Side = Side {
    guests: &[],
    seed: &[],
    traffic: &[],
    between: &[],
    config: &[],
    undo: &[],
};

/// Seeds only.
const fn seeds(seed: &'static [&'static str]) -> Side {
    Side { seed, ..NOTHING }
}

/// Traffic only.
const fn traffic(traffic: &'static [&'static str]) -> Side {
    Side { traffic, ..NOTHING }
}

const fn sampled(
    rule: &'static str,
    subject: &'static str,
    faulty: Side,
    healthy: Side,
    also: &'static [&'static str],
) -> Case {
    Case {
        rule,
        subject,
        faulty,
        healthy,
        also,
        observe: 0,
        with: |builder| builder,
    }
}

const fn observed(
    rule: &'static str,
    subject: &'static str,
    faulty: Side,
    healthy: Side,
    also: &'static [&'static str],
) -> Case {
    Case {
        rule,
        subject,
        faulty,
        healthy,
        also,
        observe: 700,
        with: |builder| builder,
    }
}

/// A server of a few seconds whose settings are those of a server in use.
fn settled(builder: DoctorBuilder) -> DoctorBuilder {
    builder.settled(Duration::ZERO)
}

/// A second without a command is long.
fn hasty(builder: DoctorBuilder) -> DoctorBuilder {
    builder.idle(Duration::from_secs(1))
}

/// What happens between the looks has time to happen.
fn unhurried(builder: DoctorBuilder) -> DoctorBuilder {
    builder.gap(Duration::from_secs(3))
}

/// A container of 64 MB.
fn small(builder: DoctorBuilder) -> DoctorBuilder {
    builder.memory(64 << 20)
}

const BULL: &[&str] = &[
    "HSET bull:mail:meta version bullmq:5.81.5",
    "SET bull:mail:id 4",
    "*3 HSET bull:mail:# data {} timestamp 1 name x opts {}",
    "RPUSH bull:mail:wait 0 1 2",
];

pub(crate) const CASES: &[Case] = &[
    sampled(
        "cache-without-ttl",
        "cache:product:*",
        seeds(&[r#"*30 SET cache:product:# {"id":#,"name":"chair"}"#]),
        seeds(&[
            r#"*30 SET cache:product:# {"id":#,"name":"chair"} EX 300"#,
            // Links of which some end.
            "*20 SET url:# https://example.org/# EX 86400",
            "*9 SET url:9# https://example.org/#",
            // The application's own records are not a cache.
            r#"*30 SET user:#:profile {"id":#,"name":"ann"}"#,
            "*5 SET page:#:hits 7",
        ]),
        &[],
    ),
    Case {
        observe: 2500,
        ..observed(
            "cache-updated-in-place",
            "cache:price:*",
            traffic(&[
                "r GET cache:price:7",
                "# sleep 560",
                "w SET cache:price:7 {a#} EX 60",
                "w SET cache:price:7 {b#} EX 60",
            ]),
            traffic(&[
                "r GET cache:price:7",
                "r SET cache:price:7 {a#} EX 60",
                "# sleep 200",
                "w DEL cache:price:7",
            ]),
            &[],
        )
    },
    // No name says that it is a cache; a reader fills it.
    Case {
        observe: 5000,
        ..observed(
            "cache-updated-in-place",
            "offer:*",
            traffic(&[
                "r GET offer:7",
                "r SET offer:7 {f#} PX 800",
                "# sleep 560",
                "w SET offer:7 {a#} PX 800",
                "w SET offer:7 {b#} PX 800",
                "r GET offer:7",
                // It expires, and the next reader fills it.
                "# sleep 850",
            ]),
            // A state that a gateway writes and a dashboard reads.
            traffic(&[
                "r GET device:7",
                "# sleep 560",
                "w SET device:7 {a#} EX 60",
                "w SET device:7 {b#} EX 60",
            ]),
            &[],
        )
    },
    observed(
        "cache-fill-race",
        "product:*",
        traffic(&[
            "a GET product:7",
            "b DEL product:7",
            "a SET product:7 {old#} EX 60",
        ]),
        traffic(&[
            "a GET product:7",
            "a SET product:7 {new#} EX 60",
            "b DEL product:7",
        ]),
        &[],
    ),
    observed(
        "cache-stampede",
        "front",
        traffic(&[
            "d DEL front",
            "a GET front",
            "b GET front",
            "c GET front",
            "a SET front {row#} EX 60",
            "b SET front {row#} EX 60",
            "c SET front {row#} EX 60",
        ]),
        traffic(&[
            "d DEL front",
            "a GET front",
            "a SET front {row#} EX 60",
            "b GET front",
            "c GET front",
            // The heart beat of two processes that show it too.
            "a GET svc:mail",
            "b GET svc:mail",
            "b SET svc:mail up EX 30",
            "a SET svc:mail up EX 30",
        ]),
        &[],
    ),
    observed(
        "write-behind-without-queue",
        "dirty:users",
        traffic(&["a SADD dirty:users #", "w SPOP dirty:users"]),
        Side {
            seed: &["XGROUP CREATE changes g $ MKSTREAM"],
            traffic: &[
                "a XADD changes MAXLEN ~ 1000 #1-1 user 7",
                "w XREADGROUP GROUP g w COUNT 10 STREAMS changes >",
                "w XACK changes g #1-1",
            ],
            ..NOTHING
        },
        &[],
    ),
    observed(
        "check-then-increment",
        "api:calls:*",
        Side {
            seed: &["SET api:calls:7 1 EX 600"],
            traffic: &[
                "a GET api:calls:7",
                "b GET api:calls:7",
                "a INCR api:calls:7",
                "b INCR api:calls:7",
            ],
            ..NOTHING
        },
        Side {
            seed: &["SET api:calls:7 1 EX 600"],
            traffic: &[
                "a INCR api:calls:7",
                "b INCR api:calls:7",
                "c GET api:calls:7",
            ],
            ..NOTHING
        },
        &[],
    ),
    observed(
        "lost-update",
        "balance:*",
        traffic(&[
            "a GET balance:7",
            "b GET balance:7",
            "a SET balance:7 1#",
            "b SET balance:7 2#",
        ]),
        traffic(&[
            "a INCRBY balance:7 5",
            "b INCRBY balance:7 -3",
            "c GET balance:7",
            // A count that two processes cache, times of requests, and a state that is put whole and shown.
            "a GET users:count",
            "b GET users:count",
            "b SETEX users:count 60 5120",
            "a SETEX users:count 60 5120",
            "a GET visit:7:last",
            "b SET visit:7:last @now",
            "a SET visit:7:last @now",
            "a GET device:7:state",
            "b SET device:7:state {a#}",
            "a SET device:7:state {b#}",
        ]),
        &[],
    ),
    sampled(
        "counter-without-ttl",
        "ratelimit:user:*",
        seeds(&["*12 SET ratelimit:user:# 7"]),
        seeds(&[
            "*12 SET ratelimit:user:# 7 EX 60",
            "SET config:limit 100",
            "*9 SET stats:orders:# 41",
            "*9 SET tenant:#:quota 100",
            "*9 SET card:#:limit 500",
        ]),
        &[],
    ),
    observed(
        "incr-then-expire",
        "login:*",
        traffic(&["a INCR login:#", "a EXPIRE login:# 60", "a INCR login:#"]),
        traffic(&[
            // Each hit brings the TTL along.
            "a INCRBY rack:#:attack 1",
            "a EXPIRE rack:#:attack 61 NX",
            "b INCR hits:7",
            "b EXPIRE hits:7 60",
            "a EVAL `local n=redis.call('incr',KEYS[1]) if n==1 then redis.call('expire',KEYS[1],60) end return n` 1 login:#",
        ]),
        &[],
    ),
    sampled(
        "sliding-window-untrimmed",
        "ratelimit:window:*",
        seeds(&[
            "EVAL `for i=1,300 do redis.call('zadd',KEYS[1],1700000000+i*100,'r'..i) end` 1 ratelimit:window:1",
        ]),
        seeds(&[
            "*9 ZADD ratelimit:window:1 170000000# r#",
            "EXPIRE ratelimit:window:1 60",
            "*50 ZADD board # player#",
        ]),
        &[],
    ),
    observed(
        "sliding-window-charges-refusals",
        "win:*",
        traffic(&[
            "a ZREMRANGEBYSCORE win:7 0 1600000000",
            "a ZADD win:7 1700000000 r#",
            "a ZCARD win:7",
            "a EXPIRE win:7 60",
        ]),
        traffic(&[
            "a EVAL `redis.call('zremrangebyscore',KEYS[1],0,1600000000) if redis.call('zcard',KEYS[1])<10 then redis.call('zadd',KEYS[1],1700000000,ARGV[1]) redis.call('expire',KEYS[1],60) end` 1 win:7 r#",
        ]),
        &[],
    ),
    sampled(
        "lock-without-ttl",
        "lock:report",
        seeds(&["SET lock:report 0f8fad5b-d9cb-469f-a165-70867728950e"]),
        seeds(&[
            "SET lock:report 0f8fad5b-d9cb-469f-a165-70867728950e PX 60000",
            "SET clock:skew 3",
            "*6 SET user:#:locked 0",
            "SET user:77:locked 1",
        ]),
        &[],
    ),
    sampled(
        "lock-without-owner",
        "lock:report",
        seeds(&["SET lock:report 1 PX 60000"]),
        seeds(&["SET lock:report 0f8fad5b-d9cb-469f-a165-70867728950e PX 60000"]),
        &[],
    ),
    observed(
        "lock-released-by-del",
        "lock:order",
        traffic(&[
            "a SET lock:order t#a NX PX 5000",
            "a DEL lock:order",
            "b SET lock:order t#b NX PX 5000",
            "b DEL lock:order",
        ]),
        traffic(&[
            "a SET lock:order t#a NX PX 5000",
            "a EVAL `if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0` 1 lock:order t#a",
            "b SET lock:order t#b NX PX 5000",
            "b EVAL `if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0` 1 lock:order t#b",
        ]),
        &[],
    ),
    // No name says that it is a lock; others want it while it is held.
    observed(
        "lock-released-by-del",
        "import:*",
        traffic(&[
            "a SET import:7 t#a NX PX 5000",
            "b SET import:7 t#b NX PX 5000",
            "a DEL import:7",
        ]),
        traffic(&[
            // A unique index.
            "a SETNX username:ann 42",
            "b SETNX username:ann 77",
            "a DEL username:ann",
            // A cache that is filled with NX and invalidated.
            "a GET article:#",
            "b GET article:#",
            "a SET article:# {a} NX EX 60",
            "b SET article:# {a} NX EX 60",
            "a DEL article:#",
        ]),
        &[],
    ),
    observed(
        "lock-get-then-del",
        "lock:order",
        traffic(&[
            "a SET lock:order t#a NX PX 5000",
            "a GET lock:order",
            "a DEL lock:order",
        ]),
        traffic(&[
            "a SET lock:order t#a NX PX 5000",
            "a EVAL `if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0` 1 lock:order t#a",
        ]),
        &[],
    ),
    observed(
        "lock-outlived",
        "lock:slow",
        traffic(&[
            "a SET lock:slow t#a NX PX 20",
            "# sleep 40",
            "b SET lock:slow t#b NX PX 5000",
            "a EVAL `if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0` 1 lock:slow t#a",
            "b EVAL `if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0` 1 lock:slow t#b",
        ]),
        traffic(&[
            "a SET lock:slow t#a NX PX 5000",
            "# sleep 20",
            "b SET lock:slow t#b NX PX 5000",
            "a EVAL `if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0` 1 lock:slow t#a",
        ]),
        &[],
    ),
    observed(
        "setnx-then-expire",
        "lock:*",
        traffic(&["a SETNX lock:# t#", "a EXPIRE lock:# 30"]),
        traffic(&["a SET lock:# 9b2d5b4e-d9cb-469f-a165-70867728950# NX EX 30"]),
        // SETNX t# is a short token, and many locks stay until they expire: that is all right here.
        &[],
    ),
    sampled(
        "session-without-ttl",
        "sess:*",
        seeds(&[r#"*15 SET sess:9f86d08188#4c7d65 {"user":#}"#]),
        seeds(&[
            r#"*15 SET sess:9f86d08188#4c7d65 {"user":#} EX 1800"#,
            "*9 SET sessions:count:2026-11-1# 51#",
        ]),
        &[],
    ),
    observed(
        "session-rewritten-whole",
        "session:*",
        traffic(&[
            r#"a GET session:7"#,
            "b GET session:7",
            r#"a SET session:7 {"cart":["a#"]} EX 1800"#,
            r#"b SET session:7 {"cart":["b#"]} EX 1800"#,
        ]),
        traffic(&[
            "a HGETALL session:7",
            "a HSET session:7 cart #",
            "a EXPIRE session:7 1800",
            "b HGETALL session:7",
            "b HSET session:7 seen #",
            "b EXPIRE session:7 1800",
        ]),
        &[],
    ),
    observed(
        "session-without-sliding-expiry",
        "session:*",
        Side {
            seed: &[r#"*3 SET session:# {"user":#} EX 1800"#],
            traffic: &["a GET session:0", "b GET session:1", "c GET session:2"],
            ..NOTHING
        },
        Side {
            seed: &[r#"*3 SET session:# {"user":#} EX 1800"#],
            traffic: &[
                "a GET session:0",
                "a EXPIRE session:0 1800",
                "b GETEX session:1 EX 1800",
            ],
            ..NOTHING
        },
        &[],
    ),
    observed(
        "queue-loses-jobs",
        "mail:outgoing",
        traffic(&["a LPUSH mail:outgoing j#", "w BRPOP mail:outgoing 1"]),
        traffic(&[
            "a LPUSH mail:outgoing j#",
            "w BLMOVE mail:outgoing mail:processing RIGHT LEFT 1",
            "w LREM mail:processing 1 j#",
            // A list for one answer.
            "s RPUSH reply:550e8400-e29b-41d4-a716-44665544000# {}",
            "s EXPIRE reply:550e8400-e29b-41d4-a716-44665544000# 60",
            "c BLPOP reply:550e8400-e29b-41d4-a716-44665544000# 1",
        ]),
        &[],
    ),
    sampled(
        "stream-without-acks",
        "orders group g",
        seeds(&[
            "XGROUP CREATE orders g 0 MKSTREAM",
            "*150 XADD orders * id #",
            "XREADGROUP GROUP g c COUNT 500 STREAMS orders >",
        ]),
        seeds(&[
            "XGROUP CREATE orders g 0 MKSTREAM",
            "*40 XADD orders 1-# id #",
            "XREADGROUP GROUP g c COUNT 500 STREAMS orders >",
            "*38 XACK orders g 1-#",
        ]),
        &[],
    ),
    sampled(
        "stream-dead-consumer",
        "orders group g",
        seeds(&[
            "XGROUP CREATE orders g 0 MKSTREAM",
            "*40 XADD orders 1-# id #",
            "XREADGROUP GROUP g c COUNT 500 STREAMS orders >",
            "*35 XACK orders g 1-#",
            "XCLAIM orders g dead 0 1-36 1-37 1-38 IDLE 7200000",
        ]),
        seeds(&[
            "XGROUP CREATE orders g 0 MKSTREAM",
            "*40 XADD orders 1-# id #",
            "XREADGROUP GROUP g c COUNT 500 STREAMS orders >",
            "*38 XACK orders g 1-#",
        ]),
        &[],
    ),
    sampled(
        "stream-trimmed-past-group",
        "events group billing",
        seeds(&[
            "XGROUP CREATE events billing 0 MKSTREAM",
            "*50 XADD events 1-# id #",
            "XREADGROUP GROUP billing c COUNT 5 STREAMS events >",
            "*6 XACK events billing 1-#",
            "XTRIM events MAXLEN 10",
        ]),
        seeds(&[
            "XGROUP CREATE events billing 0 MKSTREAM",
            "*50 XADD events 1-# id #",
            "XREADGROUP GROUP billing c COUNT 50 STREAMS events >",
            "*51 XACK events billing 1-#",
            "XTRIM events MAXLEN 10",
        ]),
        &[],
    ),
    sampled(
        "stream-no-dead-letters",
        "orders group g",
        seeds(&[
            "XGROUP CREATE orders g 0 MKSTREAM",
            "*10 XADD orders 1-# id #",
            "XREADGROUP GROUP g c COUNT 50 STREAMS orders >",
            "*9 XACK orders g 1-#",
            "XCLAIM orders g c 0 1-9 RETRYCOUNT 30",
        ]),
        seeds(&[
            "XGROUP CREATE orders g 0 MKSTREAM",
            "*10 XADD orders 1-# id #",
            "XREADGROUP GROUP g c COUNT 50 STREAMS orders >",
            "*9 XACK orders g 1-#",
            "XCLAIM orders g c 0 1-9 RETRYCOUNT 2",
        ]),
        &[],
    ),
    sampled(
        "scores-in-strings",
        "game:score:*",
        seeds(&["*60 SET game:score:# 12#"]),
        seeds(&[
            "*60 ZADD game:scores 12# player#",
            // Balances.
            "*60 SET customer:#:points 12#",
        ]),
        &[],
    ),
    sampled(
        "coordinates-in-strings",
        "driver:*:pos",
        seeds(&["*30 SET driver:#:pos 48.2#,16.37"]),
        seeds(&["*30 GEOADD drivers 16.37 48.2# driver#"]),
        &[],
    ),
    sampled(
        "set-for-counting",
        "visitors:today",
        seeds(&[
            "EVAL `for i=1,120000,100 do local t={} for j=0,99 do t[j+1]='visitor-'..(i+j) end redis.call('sadd',KEYS[1],unpack(t)) end` 1 visitors:today",
            "EXPIRE visitors:today 86400",
        ]),
        seeds(&[
            "*300 SADD visitors:today visitor-#",
            "EXPIRE visitors:today 86400",
            "EVAL `for i=1,110000,100 do local t={} for j=0,99 do t[j+1]='user-'..(i+j) end redis.call('sadd',KEYS[1],unpack(t)) end` 1 followers:star",
            // What it took to make it is not part of the world.
            "SLOWLOG RESET",
            "CONFIG RESETSTAT",
        ]),
        &["slow-script", "whole-reads"],
    ),
    observed(
        "publish-to-nobody",
        "mail:send",
        traffic(&["a PUBLISH mail:send #"]),
        traffic(&[
            "s SUBSCRIBE mail:send",
            "a PUBLISH mail:send #",
            // Users and rooms that nobody is in.
            "a PUBLISH user:7:notices #",
            "a PUBLISH room:4#:events #",
        ]),
        &[],
    ),
    observed(
        "unbounded-growth",
        "audit",
        Side {
            seed: &["EVAL `for i=1,12000 do redis.call('rpush',KEYS[1],'line '..i) end` 1 audit"],
            traffic: &["a RPUSH audit line#", "b RPUSH audit line#"],
            ..NOTHING
        },
        Side {
            seed: &[
                "*100 RPUSH audit line#",
                "EVAL `for i=1,12000 do redis.call('hset',KEYS[1],'u'..i,1) end` 1 users",
                "SLOWLOG RESET",
                "CONFIG RESETSTAT",
            ],
            traffic: &[
                "a RPUSH audit line#",
                "a LTRIM audit -100 -1",
                // Records become more.
                "b HSET users v# 1",
            ],
            ..NOTHING
        },
        &["slow-script"],
    ),
    observed(
        "counter-drained",
        "clicks",
        traffic(&["a INCR clicks", "b INCR clicks", "w GETSET clicks 0"]),
        traffic(&["a INCR clicks", "b INCR clicks", "w GET clicks"]),
        &[],
    ),
    observed(
        "keys-command",
        "KEYS",
        traffic(&["a KEYS user:*"]),
        traffic(&["a SCAN 0 MATCH user:* COUNT 100"]),
        &[],
    ),
    observed(
        "flush-command",
        "FLUSHALL",
        traffic(&["a SET k v EX 5", "b FLUSHDB"]),
        traffic(&["a SET k v EX 5", "b UNLINK k"]),
        &["cache-fill-race"],
    ),
    sampled(
        "sort-command",
        "SORT",
        seeds(&[
            "EVAL `for i=1,30000 do redis.call('rpush',KEYS[1],(i*7919)%30011) end` 1 numbers",
            "*8 SORT numbers LIMIT 0 1",
        ]),
        seeds(&["*20 RPUSH numbers #", "*8 SORT numbers LIMIT 0 1"]),
        &["slow-script"],
    ),
    observed(
        "whole-reads",
        "followers:*",
        Side {
            seed: &[
                "EVAL `for i=1,8000 do redis.call('sadd',KEYS[1],'user-'..i) end` 1 followers:7",
            ],
            traffic: &["a SMEMBERS followers:7", "# sleep 50"],
            ..NOTHING
        },
        Side {
            seed: &["*50 SADD followers:7 user-#"],
            traffic: &["a SMEMBERS followers:7", "# sleep 50"],
            ..NOTHING
        },
        &["slow-script"],
    ),
    sampled(
        "big-key",
        "report:blob",
        seeds(&["SETRANGE report:blob 20000000 x", "EXPIRE report:blob 900"]),
        seeds(&["SETRANGE report:blob 20000 x", "EXPIRE report:blob 900"]),
        &[],
    ),
    sampled(
        "eviction-with-durable-data",
        "maxmemory-policy",
        Side {
            seed: &["SET lock:report 0f8fad5b-d9cb-469f-a165-70867728950e PX 60000"],
            config: &[("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")],
            ..NOTHING
        },
        Side {
            seed: &[r#"*20 SET cache:# {"id":#} EX 60"#],
            config: &[("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")],
            ..NOTHING
        },
        &[],
    ),
    sampled(
        "eviction-with-durable-data",
        "maxmemory-policy",
        Side {
            seed: &[
                "SET lock:report 0f8fad5b-d9cb-469f-a165-70867728950e PX 60000",
                r#"*9 SET sess:9f86d08188#4c7d65 {"user":#} EX 3600"#,
            ],
            config: &[("maxmemory", "200mb"), ("maxmemory-policy", "volatile-ttl")],
            ..NOTHING
        },
        Side {
            seed: &[r#"*20 SET cache:# {"id":#} EX 60"#, "*5 RPUSH jobs:mail j#"],
            config: &[("maxmemory", "200mb"), ("maxmemory-policy", "volatile-lru")],
            ..NOTHING
        },
        &[],
    ),
    sampled(
        "out-of-memory-errors",
        "maxmemory",
        Side {
            seed: &["!SET some value"],
            config: &[("maxmemory", "1")],
            ..NOTHING
        },
        Side {
            seed: &["SET some value"],
            config: &[("maxmemory", "100mb")],
            ..NOTHING
        },
        &[],
    ),
    sampled(
        "slow-script",
        "EVAL",
        seeds(&["*4 EVAL `local t=0 for i=1,2000000 do t=t+i end return t` 0"]),
        seeds(&["*4 EVAL `return 1` 0"]),
        &[],
    ),
    observed(
        "script-interpolation",
        "EVAL",
        traffic(&["a EVAL `return redis.call('get','user:#')` 0"]),
        traffic(&["a EVAL `return redis.call('get',KEYS[1])` 1 user:#"]),
        &[],
    ),
    sampled(
        "rate-limiter-flexible-without-ttl",
        "rlflx:login:*",
        seeds(&["*10 SET rlflx:login:# 3 EX 60", "SET rlflx:login:77 3"]),
        seeds(&[
            "*10 SET rlflx:login:# 3 EX 60",
            // A limiter with `duration: 0`, or keys that are blocked for ever.
            "*10 SET rlflx:banned:# 3",
        ]),
        &[],
    ),
    sampled(
        "redis-py-lock-without-ttl",
        "mutex:report",
        seeds(&["SET mutex:report 6fa459eaee8a11ef8a3c0242ac120002"]),
        seeds(&[
            "SET mutex:report 6fa459eaee8a11ef8a3c0242ac120002 EX 60",
            // An id of that form, which is no lock.
            "SET invoice:id 6fa459eaee8a11ef8a3c0242ac120002",
            // Digests; one of 64 has the version and the variant of such a token.
            "*23 SET etag:# 9e107d9d372bb6826bd81d3542a419d6",
            "SET etag:99 d41d8cd98f001ffeb9800998ecf8427e",
        ]),
        &["lock-without-ttl"],
    ),
    sampled(
        "sidekiq-dead-process",
        "Sidekiq",
        seeds(&[
            "SADD queues default",
            r#"LPUSH queue:default {"class":"A","args":[],"jid":"0123456789abcdef01234567"}"#,
            "SADD processes host:1:ab",
            "HSET host:1:ab info {} busy 1 beat 1700000000.1",
            "EXPIRE host:1:ab 30",
            "HSET host:1:ab:work t1 {}",
            "EXPIRE host:1:ab:work 30",
        ]),
        seeds(&[
            "SADD queues default",
            r#"LPUSH queue:default {"class":"A","args":[],"jid":"0123456789abcdef01234567"}"#,
            "SADD processes host:1:ab",
            // Its clock is slow, and it beats.
            "HSET host:1:ab info {} busy 1 beat 1700000000.1",
            "EXPIRE host:1:ab 600",
            "HSET host:1:ab:work t1 {}",
            "EXPIRE host:1:ab:work 600",
        ]),
        &[],
    ),
    sampled(
        "sidekiq-dead-process",
        "Sidekiq",
        // With redis-namespace.
        seeds(&[
            "SADD app:queues default",
            r#"LPUSH app:queue:default {"class":"A","args":[],"jid":"0123456789abcdef01234567"}"#,
            "SADD app:processes host:1:ab",
            "HSET app:host:1:ab info {} busy 1 beat 1700000000.1",
            "EXPIRE app:host:1:ab 30",
            "HSET app:host:1:ab:work t1 {}",
            "EXPIRE app:host:1:ab:work 30",
        ]),
        seeds(&[
            "SADD app:queues default",
            r#"LPUSH app:queue:default {"class":"A","args":[],"jid":"0123456789abcdef01234567"}"#,
            "SADD app:processes host:1:ab",
            "HSET app:host:1:ab info {} busy 1 beat 1700000000.1",
            "EXPIRE app:host:1:ab 600",
            "HSET app:host:1:ab:work t1 {}",
            "EXPIRE app:host:1:ab:work 600",
        ]),
        &[],
    ),
    sampled(
        "bullmq-paused-and-waiting",
        "BullMQ queue bull:mail",
        seeds(&[
            "HSET bull:mail:meta opts.maxLenEvents 10000 version bullmq:5.81.5",
            "SET bull:mail:id 4",
            "*2 HSET bull:mail:# data {} timestamp 1 name x opts {}",
            "RPUSH bull:mail:wait 0",
            "RPUSH bull:mail:paused 1",
        ]),
        seeds(&[
            "HSET bull:mail:meta opts.maxLenEvents 10000 version bullmq:5.81.5",
            "SET bull:mail:id 4",
            "*2 HSET bull:mail:# data {} timestamp 1 name x opts {}",
            "RPUSH bull:mail:wait 0 1",
        ]),
        &[],
    ),
    sampled(
        "bullmq-missing-jobs",
        "BullMQ queue bull:mail",
        seeds(&[
            "HSET bull:mail:meta version bullmq:5.81.5",
            "SET bull:mail:id 4",
            "HSET bull:mail:1 data {} timestamp 1 name x opts {}",
            "RPUSH bull:mail:wait 1 2 3",
        ]),
        seeds(&[
            "HSET bull:mail:meta version bullmq:5.81.5",
            "SET bull:mail:id 4",
            "*3 HSET bull:mail:# data {} timestamp 1 name x opts {}",
            "RPUSH bull:mail:wait 0 1 2",
        ]),
        &[],
    ),
    sampled(
        "bullmq-orphan-jobs",
        "BullMQ queue bull:mail",
        seeds(&[
            "HSET bull:mail:meta version bullmq:5.81.5",
            "SET bull:mail:id 4",
            "*4 HSET bull:mail:# data {} timestamp 1 name x opts {}",
            "RPUSH bull:mail:wait 1",
        ]),
        seeds(&[
            "HSET bull:mail:meta version bullmq:5.81.5",
            "SET bull:mail:id 4",
            "*4 HSET bull:mail:# data {} timestamp 1 name x opts {}",
            "RPUSH bull:mail:wait 0 1",
            "ZADD bull:mail:completed 5 2 6 3",
        ]),
        &[],
    ),
    sampled(
        "bullmq-active-without-lock",
        "BullMQ queue bull:mail",
        seeds(&[
            "HSET bull:mail:meta version bullmq:5.81.5",
            "SET bull:mail:id 4",
            "HSET bull:mail:1 data {} timestamp 1 name x opts {}",
            "RPUSH bull:mail:active 1",
        ]),
        seeds(&[
            "HSET bull:mail:meta version bullmq:5.81.5",
            "SET bull:mail:id 4",
            "HSET bull:mail:1 data {} timestamp 1 name x opts {}",
            "RPUSH bull:mail:active 1",
            // Longer than an examination of many keys takes.
            "SET bull:mail:1:lock token PX 600000",
        ]),
        &[],
    ),
    // The stuck job is the oldest, behind more jobs than are looked at.
    sampled(
        "bullmq-active-without-lock",
        "BullMQ queue bull:mail",
        seeds(&[
            "HSET bull:mail:meta version bullmq:5.81.5",
            "SET bull:mail:id 99",
            "HSET bull:mail:77 data {} timestamp 1 name x opts {}",
            "LPUSH bull:mail:active 77",
            "*30 HSET bull:mail:# data {} timestamp 1 name x opts {}",
            "*30 LPUSH bull:mail:active #",
            "*30 SET bull:mail:#:lock token PX 600000",
        ]),
        seeds(&[
            "HSET bull:mail:meta version bullmq:5.81.5",
            "SET bull:mail:id 99",
            "*30 HSET bull:mail:# data {} timestamp 1 name x opts {}",
            "*30 LPUSH bull:mail:active #",
            "*30 SET bull:mail:#:lock token PX 600000",
        ]),
        &[],
    ),
    sampled(
        "bullmq-eviction",
        "maxmemory-policy",
        Side {
            seed: BULL,
            config: &[("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")],
            ..NOTHING
        },
        Side {
            seed: BULL,
            config: &[("maxmemory", "100mb"), ("maxmemory-policy", "noeviction")],
            ..NOTHING
        },
        &["eviction-with-durable-data"],
    ),
    Case {
        with: unhurried,
        ..sampled(
            "bullmq-mixed-versions",
            "BullMQ queue bull:mail",
            Side {
                seed: BULL,
                between: &["HSET bull:mail:meta version bullmq:6.0.1"],
                ..NOTHING
            },
            Side {
                seed: BULL,
                between: &["HSET bull:mail:meta version bullmq:5.82.0"],
                ..NOTHING
            },
            &[],
        )
    },
    sampled(
        "bullmq-completed-unbounded",
        "BullMQ queue bull:mail",
        seeds(&[
            "HSET bull:mail:meta version bullmq:5.81.5",
            "SET bull:mail:id 6000",
            "EVAL `for i=1,6000 do redis.call('hset','bull:mail:'..i,'data','{}','timestamp','1','name','x','opts','{}') redis.call('zadd','bull:mail:completed',i,i) end` 0",
        ]),
        seeds(&[
            "HSET bull:mail:meta version bullmq:5.81.5",
            "SET bull:mail:id 200",
            "EVAL `for i=1,200 do redis.call('hset','bull:mail:'..i,'data','{}','timestamp','1','name','x','opts','{}') redis.call('zadd','bull:mail:completed',i,i) end` 0",
        ]),
        &["slow-script"],
    ),
    sampled(
        "session-store-without-ttl",
        "sess:*",
        seeds(&[
            r#"*15 SET sess:9f86d08188#4c7d65 {"cookie":{"originalMaxAge":86400000,"path":"/"},"user":#}"#,
        ]),
        seeds(&[
            r#"*15 SET sess:9f86d08188#4c7d65 {"cookie":{"originalMaxAge":86400000,"path":"/"},"user":#} EX 86400"#,
        ]),
        &[],
    ),
    sampled(
        "celery-unacked",
        "Celery",
        seeds(&[
            "SADD _kombu.binding.celery `celery\u{6}\u{16}\u{6}\u{16}celery`",
            r#"HSET unacked tag-1 `[{"body": "W10=", "headers": {"task": "shop.report", "eta": null}}, "", "celery"]`"#,
            "EVAL `redis.call('zadd','unacked_index',redis.call('time')[1]-7200,'tag-1')` 0",
        ]),
        seeds(&[
            "SADD _kombu.binding.celery `celery\u{6}\u{16}\u{6}\u{16}celery`",
            r#"HSET unacked tag-1 `[{"body": "W10=", "headers": {"task": "shop.report", "eta": null}}, "", "celery"]`"#,
            "EVAL `redis.call('zadd','unacked_index',redis.call('time')[1]-60,'tag-1')` 0",
        ]),
        &[],
    ),
    sampled(
        "celery-eta-beyond-visibility",
        "Celery",
        seeds(&[
            "SADD _kombu.binding.celery `celery\u{6}\u{16}\u{6}\u{16}celery`",
            r#"HSET unacked tag-1 `[{"body": "W10=", "headers": {"task": "shop.report", "eta": "2999-01-01T12:00:00+00:00"}}, "", "celery"]`"#,
            "EVAL `redis.call('zadd','unacked_index',redis.call('time')[1]-60,'tag-1')` 0",
        ]),
        seeds(&[
            "SADD _kombu.binding.celery `celery\u{6}\u{16}\u{6}\u{16}celery`",
            // It was due before it was delivered.
            r#"HSET unacked tag-1 `[{"body": "W10=", "headers": {"task": "shop.report", "eta": "2020-01-01T12:00:00+00:00"}}, "", "celery"]`"#,
            "EVAL `redis.call('zadd','unacked_index',redis.call('time')[1]-60,'tag-1')` 0",
        ]),
        &[],
    ),
    Case {
        with: small,
        ..sampled(
            "maxmemory-unset",
            "maxmemory",
            seeds(&["*300 SETRANGE page:# 100000 x", "*300 EXPIRE page:# 600"]),
            Side {
                seed: &["*300 SETRANGE page:# 100000 x", "*300 EXPIRE page:# 600"],
                config: &[("maxmemory", "100mb"), ("maxmemory-policy", "volatile-ttl")],
                ..NOTHING
            },
            &[],
        )
    },
    Case {
        with: hasty,
        ..sampled(
            "connection-leak",
            "client 127.0.0.1",
            Side {
                guests: &[Guest::Idle(120, "web")],
                ..NOTHING
            },
            Side {
                // Subscribers have nothing to ask.
                guests: &[Guest::Idle(20, "web"), Guest::Listens(120, "news")],
                ..NOTHING
            },
            &[],
        )
    },
    sampled(
        "connection-leak",
        "maxclients",
        Side {
            guests: &[Guest::Idle(80, "web")],
            config: &[("maxclients", "90")],
            ..NOTHING
        },
        Side {
            guests: &[Guest::Idle(30, "web")],
            config: &[("maxclients", "90")],
            ..NOTHING
        },
        &[],
    ),
    sampled(
        "clients-without-names",
        "CLIENT SETNAME",
        Side {
            guests: &[Guest::Idle(210, "")],
            ..NOTHING
        },
        Side {
            guests: &[Guest::Idle(210, "web")],
            ..NOTHING
        },
        &[],
    ),
    sampled(
        "open-server",
        "default user",
        Side {
            // An address for documentation that no host has; the minus lets the server start without it.
            config: &[("bind", "127.0.0.1 -192.0.2.1"), ("protected-mode", "no")],
            ..NOTHING
        },
        Side {
            config: &[("bind", "127.0.0.1"), ("protected-mode", "no")],
            ..NOTHING
        },
        &[],
    ),
    Case {
        with: settled,
        ..sampled(
            "dangerous-commands-open",
            "default user",
            Side {
                guests: &[Guest::Hosts(6)],
                ..NOTHING
            },
            Side {
                guests: &[Guest::Hosts(6)],
                seed: &["ACL SETUSER default -flushdb -keys -debug"],
                undo: &["ACL SETUSER default +@all"],
                ..NOTHING
            },
            &[],
        )
    },
    Case {
        with: settled,
        ..sampled(
            "queue-without-persistence",
            "jobs:mail",
            Side {
                seed: &["*5 RPUSH jobs:mail j#"],
                config: &[("appendonly", "no"), ("save", "")],
                ..NOTHING
            },
            Side {
                seed: &["*5 RPUSH jobs:mail j#"],
                config: &[("appendonly", "no"), ("save", "3600 1")],
                ..NOTHING
            },
            &[],
        )
    },
    sampled(
        "slow-subscriber",
        "client-output-buffer-limit pubsub",
        Side {
            guests: &[Guest::Deaf("news")],
            seed: &["*3000 PUBLISH news @8000"],
            ..NOTHING
        },
        Side {
            guests: &[Guest::Listens(1, "news")],
            seed: &["*3000 PUBLISH news @8000"],
            ..NOTHING
        },
        &[],
    ),
    Case {
        with: unhurried,
        ..sampled(
            "stream-pending-grows",
            "orders group g",
            Side {
                seed: &[
                    "XGROUP CREATE orders g 0 MKSTREAM",
                    "*80 XADD orders 1-# id #",
                    "XREADGROUP GROUP g c COUNT 500 STREAMS orders >",
                    "*10 XCLAIM orders g c 0 1-# IDLE 90000",
                ],
                between: &[
                    "*20 XADD orders * id #",
                    "XREADGROUP GROUP g c COUNT 500 STREAMS orders >",
                ],
                ..NOTHING
            },
            Side {
                seed: &[
                    "XGROUP CREATE orders g 0 MKSTREAM",
                    "*80 XADD orders 1-# id #",
                    "XREADGROUP GROUP g c COUNT 500 STREAMS orders >",
                    "*76 XACK orders g 1-#",
                ],
                between: &[
                    "*20 XADD orders 9-#1 id #",
                    "XREADGROUP GROUP g c COUNT 500 STREAMS orders >",
                    "*20 XACK orders g 9-#1",
                ],
                ..NOTHING
            },
            // Nothing was ever acknowledged there.
            &["stream-without-acks"],
        )
    },
    sampled(
        "latency-spikes",
        "latency event command",
        Side {
            seed: &["DEBUG SLEEP 0.4"],
            config: &[("latency-monitor-threshold", "100")],
            ..NOTHING
        },
        Side {
            seed: &["DEBUG SLEEP 0"],
            config: &[("latency-monitor-threshold", "100")],
            ..NOTHING
        },
        &[],
    ),
];

/// Worlds of servers that count the clients that they disconnect: Valkey, and Redis from 7.2 on.
pub(crate) const COUNTING: &[Case] = &[
    // A subscriber that was closed leaves the counter behind.
    sampled(
        "slow-subscriber",
        "client-output-buffer-limit pubsub",
        Side {
            guests: &[Guest::Deaf("news")],
            seed: &["*3000 PUBLISH news @8000"],
            config: &[("client-output-buffer-limit", "pubsub 65536 0 0")],
            ..NOTHING
        },
        Side {
            guests: &[Guest::Deaf("news")],
            seed: &["*20 PUBLISH news @800"],
            config: &[("client-output-buffer-limit", "pubsub 65536 0 0")],
            ..NOTHING
        },
        &[],
    ),
];
