//! Keys and expiry.

use crate::compare;

#[test]
fn keys_answer_alike() {
    compare(
        r#"
        MSET a 1 b 2 c 3
        DEL a x
        DEL a
        UNLINK b x b
        EXISTS c c x
        TOUCH c x
        TYPE c
        TYPE x
        RENAME x y
        RENAME c d
        RENAME d d
        RENAMENX d d
        RENAMENX d e
        SET f 1
        RENAMENX e f
        RENAME e f
        GET f
        EXPIRE f 100
        RENAME f g
        TTL g
        SET h 1
        RENAME h g
        TTL g
        COPY g h
        COPY g h
        COPY g h REPLACE
        COPY g g
        COPY g g DB 1
        COPY x y
        COPY g h BOGUS
        COPY g h DB
        COPY g h DB 99
        COPY g h DB abc
        COPY g h DB 99999999999
        COPY g h DB -1
        MOVE g 1
        MOVE g 0
        MOVE h 1
        MOVE h 99
        MOVE h abc
        MOVE nothing 1
        SELECT 1
        ~ KEYS *
        DBSIZE
        GET h
        SELECT 0
        DBSIZE
        KEYS *
        ~ KEYS [gh]
        SELECT 16
        SELECT abc
        SELECT -1
        SELECT 99999999999
        SWAPDB 0 1
        DBSIZE
        ~ KEYS *
        SWAPDB 0 99
        SWAPDB a 1
        SWAPDB 1 b
        SWAPDB 1 1
        FLUSHDB
        FLUSHDB ASYNC
        FLUSHDB SYNC
        FLUSHDB BOGUS
        FLUSHALL a b
        DBSIZE
        FLUSHALL
        RANDOMKEY
        SET only 1
        RANDOMKEY
        PING
        PING hello
        PING a b
        ECHO hi
        ECHO
        TIME x
        OBJECT HELP
        OBJECT ENCODING nothing
        OBJECT FREQ nothing
        OBJECT FREQ only
        OBJECT IDLETIME only
        OBJECT IDLETIME nothing
        OBJECT BOGUS only
        OBJECT
        OBJECT ENCODING
        WAIT 0 0
        WAIT 0 -1
        WAIT x 0
        WAIT 0 x
        WAIT 1 10
        MULTI
        WAIT 1 0
        EXEC
        "#,
    );
}

#[test]
fn expiry_answers_alike() {
    compare(
        r#"
        EXPIRE x 1
        SET a 1
        TTL a
        PTTL a
        TTL x
        EXPIRETIME a
        PEXPIRETIME x
        PERSIST a
        EXPIRE a 100
        TTL a
        EXPIRE a 200 NX
        EXPIRE a 200 XX
        TTL a
        EXPIRE a 100 GT
        EXPIRE a 300 GT
        EXPIRE a 400 LT
        EXPIRE a 50 LT
        TTL a
        EXPIRE a 40 XX GT
        EXPIRE a 70 XX GT
        EXPIRE a 10 NX GT
        EXPIRE a 10 GT LT
        EXPIRE a 10 BOGUS
        EXPIRE a 10 NX XX
        EXPIRE a abc
        EXPIRE a abc BOGUS
        EXPIRE a 9223372036854775807
        EXPIRE a -9223372036854775808
        PEXPIRE a 9223372036854775807
        PEXPIREAT a 9223372036854775807
        PERSIST a
        PERSIST a
        PERSIST x
        EXPIRE a 100 GT
        EXPIRE a 100 LT
        TTL a
        EXPIREAT a 33177117420
        EXPIRETIME a
        PEXPIREAT a 33177117420555
        PEXPIRETIME a
        EXPIRETIME a
        EXPIREAT a 1
        EXISTS a
        SET a 1
        PEXPIRE a -1
        EXISTS a
        SET a 1
        EXPIRE a 0
        GET a
        SET b 1 EX 100
        SET b 2
        TTL b
        EXPIRE
        EXPIRE a
        "#,
    );
}

#[test]
fn scan_answers_alike_on_few_keys() {
    compare(
        r#"
        SCAN 0
        MSET key:1 a key:2 b other c
        RPUSH list a
        ~ SCAN 0
        ~ SCAN 0 MATCH key:*
        ~ SCAN 0 TYPE list
        ~ SCAN 0 TYPE LIST COUNT 100
        ~ SCAN 0 TYPE bogus
        ~ SCAN 0 MATCH * COUNT 100
        SCAN abc
        SCAN 0 COUNT 0
        SCAN 0 COUNT abc
        SCAN 0 COUNT
        SCAN 0 BOGUS 1
        SCAN
        "#,
    );
}

#[test]
fn sort_answers_alike() {
    compare(
        r#"
        RPUSH l 3 1 2 10 -5 2.5
        SORT l
        SORT l DESC
        SORT l ALPHA
        SORT l ALPHA DESC
        SORT l LIMIT 1 2
        SORT l LIMIT -1 2
        SORT l LIMIT 1 -1
        SORT l LIMIT 100 1
        SORT l LIMIT a b
        SORT l LIMIT 1
        SORT l BOGUS
        SORT nothing
        SORT nothing ALPHA DESC STORE d
        RPUSH w b a c
        SORT w
        SORT w ALPHA
        MSET weight_a 3 weight_b 1 weight_c 2 obj_a A obj_b B
        SORT w BY weight_*
        SORT w BY weight_* DESC
        SORT w BY weight_* GET obj_*
        SORT w BY weight_* GET # GET obj_* GET weight_*
        SORT w BY nosort
        SORT w BY nosort DESC
        SORT w BY nosort DESC LIMIT 0 2
        SORT w BY nosort GET #
        SORT w BY obj_*
        SORT w BY obj_* ALPHA
        SORT w BY missing_* ALPHA
        SORT w BY missing_*
        HSET h_a f 9 name Anna
        HSET h_b f 8 name Bert
        HSET h_c f 7
        SORT w BY h_*->f
        SORT w BY h_*->f GET h_*->name
        SORT w BY h_*->f GET h_*->
        SORT w BY h_*->nothing ALPHA GET #
        SORT w GET weight
        SORT w ALPHA GET weight
        SORT w ALPHA GET *
        SORT w BY weight_* STORE d
        LRANGE d 0 -1
        SORT w BY weight_* GET obj_* STORE d
        LRANGE d 0 -1
        SORT nothing STORE d
        EXISTS d
        SADD s 3 1 2
        SORT s
        SORT s DESC
        SORT s BY nosort STORE d
        LRANGE d 0 -1
        ZADD z 1 c 2 b 3 a
        SORT z ALPHA
        SORT z BY nosort
        SORT z BY nosort DESC
        SORT z BY nosort DESC LIMIT 1 1
        SORT z BY nosort LIMIT 1 1
        SORT z
        SORT_RO z ALPHA
        SORT_RO z ALPHA STORE d
        SORT_RO l DESC LIMIT 0 2
        SET str x
        SORT str
        SORT w ALPHA STORE str
        TYPE str
        RPUSH num 1 01 1.0 "" x
        SORT num
        RPUSH same 5 5.0 05 4
        SORT same
        SORT same DESC
        "#,
    );
}
