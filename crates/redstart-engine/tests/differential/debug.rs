//! DEBUG: digests of all data, and what else test suites ask of a server.

use crate::compare;

/// Values of all types and encodings, with and without a deadline, in two databases.
const FILL: &str = r#"
    SET text hello
    SET number 12345
    SET volatile x EX 1000
    SET empty ""
    APPEND text " world"
    SETBIT bits 100 1
    PFADD hll a b c d e
    RPUSH list a b c 1 2 3
    RPUSH long {x*100} {y*3000} z
    SADD ints 1 2 3 -5
    SADD words a b c 17
    HSET hash a 1 b 2 c 3
    HSET large field {v*200}
    ZADD z 1 a 2 b 3.25 c -inf d inf e 0.1 f 1e20 g 3e-7 h
    ZADD big 17 {m*100}
    GEOADD geo 13.361389 38.115556 Palermo 15.087269 37.502669 Catania
    XADD stream 1-1 a 1 b 2
    XADD stream 1-2 a 3
    XADD stream 5-0 c 4
    XDEL stream 1-2
    XGROUP CREATE stream g 0
    EXPIRE list 1000
    SELECT 3
    SET other x
    SADD volatile x
    EXPIRE volatile 1000
    SELECT 0
"#;

#[test]
fn digests_are_those_of_the_server() {
    compare(&format!(
        "DEBUG DIGEST\n{FILL}\nDEBUG DIGEST\n{}\n{}",
        "DEBUG DIGEST-VALUE text number volatile empty bits hll list long ints words hash large z big geo stream none",
        "DEL z\nDEBUG DIGEST\nFLUSHDB\nDEBUG DIGEST\nFLUSHALL\nDEBUG DIGEST",
    ));
}

#[test]
fn data_is_the_same_after_it_was_loaded_again() {
    compare(&format!(
        "{FILL}\n{}",
        r#"
        WATCH text
        DEBUG RELOAD
        DEBUG DIGEST
        MULTI
        PING
        EXEC
        DBSIZE
        XINFO STREAM stream
        XINFO GROUPS stream
        OBJECT ENCODING ints
        OBJECT ENCODING list
        "#
    ));
}

#[test]
fn debug_commands_answer_alike() {
    compare(
        r#"
        DEBUG
        DEBUG NOSUCH
        DEBUG OBJECT none
        DEBUG OBJECT
        DEBUG SLEEP 0
        DEBUG SLEEP 0.001
        DEBUG SLEEP x
        DEBUG DIGEST x
        DEBUG DIGEST-VALUE
        DEBUG CHANGE-REPL-ID
        DEBUG QUICKLIST-PACKED-THRESHOLD 100b
        DEBUG QUICKLIST-PACKED-THRESHOLD x
        DEBUG SET-ACTIVE-EXPIRE 0
        SET short x PX 1
        DEBUG SLEEP 0.3
        DBSIZE
        GET short
        DBSIZE
        DEBUG SET-ACTIVE-EXPIRE 1
        EVAL "return redis.call('DEBUG', 'DIGEST')" 0
        MULTI
        DEBUG DIGEST
        EXEC
        "#,
    );
}

#[test]
fn uses_of_keys_are_counted_as_the_server_counts_them() {
    let policies = [
        "noeviction",
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "volatile-ttl",
    ];
    let mut script = String::from("SET old x\nCONFIG SET maxmemory-policy nosuch\n");
    for policy in policies {
        script += &format!(
            "CONFIG SET maxmemory-policy {policy}\n\
             CONFIG GET maxmemory-policy\n\
             DEL fresh\nSET fresh x\n\
             OBJECT FREQ fresh\nOBJECT IDLETIME fresh\n\
             OBJECT FREQ none\nOBJECT IDLETIME none\n"
        );
    }
    // With this factor every use counts.
    script += r#"
        CONFIG SET maxmemory-policy allkeys-lfu
        CONFIG SET lfu-log-factor 0 lfu-decay-time 0
        CONFIG SET maxmemory 500mb
        SET k x
        GET k
        GET k
        OBJECT FREQ k
        STRLEN k
        SET k y
        OBJECT FREQ k
        APPEND k z
        OBJECT FREQ k
        EXISTS k
        TYPE k
        TTL k
        OBJECT FREQ k
        TOUCH k
        OBJECT FREQ k
        RPUSH l a b c
        LRANGE l 0 -1
        LPOP l
        OBJECT FREQ l
        HSET h a 1
        HGET h a
        HGETALL h
        OBJECT FREQ h
        SADD s a b
        ~SMEMBERS s
        SISMEMBER s a
        OBJECT FREQ s
        ZADD z 1 a
        ZSCORE z a
        ZRANGE z 0 -1
        OBJECT FREQ z
        INCR n
        INCR n
        OBJECT FREQ n
        SET n 5 XX
        INCRBYFLOAT n 1
        OBJECT FREQ n
        GETSET n 7
        SET n 8 GET
        OBJECT FREQ n
        EXPIRE n 1000
        PERSIST n
        OBJECT FREQ n
        RPUSH l d
        LINSERT l BEFORE d e
        RPOP l
        OBJECT FREQ l
        ZADD z 2 a
        ZINCRBY z 1 a
        OBJECT FREQ z
        HINCRBY h a 1
        OBJECT FREQ h
        SADD s c
        SREM s c
        OBJECT FREQ s
        SETRANGE k 0 w
        GETRANGE k 0 -1
        OBJECT FREQ k
        SETBIT k 1 1
        BITCOUNT k
        OBJECT FREQ k
        XADD x 1-1 a b
        XLEN x
        XRANGE x - +
        OBJECT FREQ x
        CONFIG SET lfu-log-factor 10 lfu-decay-time 1
        CONFIG SET maxmemory 0 maxmemory-policy noeviction
    "#;
    compare(&script);
}

#[test]
fn shutdown_refuses_what_the_server_refuses() {
    compare(
        r#"
        SHUTDOWN ABORT
        SHUTDOWN NOSUCH
        SHUTDOWN SAVE NOSAVE
        SHUTDOWN ABORT NOW
        SHUTDOWN NOSAVE ABORT
        MULTI
        SHUTDOWN
        DISCARD
        "#,
    );
}
