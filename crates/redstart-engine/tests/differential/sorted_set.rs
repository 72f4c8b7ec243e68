//! Sorted sets.

use crate::compare;

#[test]
fn zadd_answers_alike() {
    compare(
        r#"
        ZADD z 1 a 2 b 3 c
        ZADD z 1 a
        ZADD z 5 a 6 d
        ZADD z CH 7 a 8 e
        ZADD z NX 1 a 9 f
        ZADD z XX 1 a 9 g
        ZADD z XX CH 2 a
        ZADD z GT 1 a
        ZADD z GT CH 3 a
        ZADD z LT CH 4 a
        ZADD z LT CH 1 a
        ZADD z GT 1 new
        ZADD z XX GT CH 9 a 1 b
        ZADD z INCR 5 a
        ZADD z NX INCR 5 a
        ZADD z NX INCR 5 fresh
        ZADD z XX INCR 5 nothing
        ZADD z GT INCR -5 a
        ZADD z LT INCR -5 a
        ZADD nothing XX 1 a
        ZADD nothing XX INCR 1 a
        EXISTS nothing
        ZADD z NX XX 1 a
        ZADD z GT LT 1 a
        ZADD z GT NX 1 a
        ZADD z INCR 1 a 2 b
        ZADD z abc a
        ZADD z 1 a x b
        ZADD z nan a
        ZADD z 1
        ZADD z 1 a 2
        ZADD z NX
        ZADD z NX CH
        ZADD z inf i -inf mi
        ZADD z INCR -inf i
        ZADD z +inf i2 infinity i3 -Infinity i4
        ZADD z 1e400 x
        ZADD z 1e-400 x
        ZADD z 0x10 hex
        ZADD z 1.5e3 e
        ZADD z " 1" sp
        ZADD z "" em
        ZADD z 0.1 tenth -0 negzero 1e17 large 123456789012345678 larger
        ZRANGE z 0 -1 WITHSCORES
        ZINCRBY z 0.2 tenth
        ZINCRBY z abc tenth
        ZINCRBY z inf mi
        ZINCRBY z 5 brandnew
        ZINCRBY z2 -1.5 x
        ZSCORE z tenth
        ZSCORE z nope
        ZSCORE nothing a
        ZMSCORE z a nope b
        ZMSCORE nothing a
        ZCARD z
        ZCARD nothing
        ZRANK z a
        ZRANK z nope
        ZRANK nothing a
        ZREVRANK z a
        ZREVRANK z nope
        ZRANK z a WITHSCORE
        ZREM z a nope b
        ZREM z a
        ZREM nothing a
        SET s x
        ZADD s 1 a
        ZADD s abc a
        ZADD s XX 1 a
        ZINCRBY s 1 a
        ZSCORE s a
        ZCARD s
        ZRANK s a
        ZREM s a
        ZRANGE s 0 -1
        ZPOPMIN s
        ZCOUNT s 0 1
        ZRANDMEMBER s
        ZSCAN s 0
        OBJECT ENCODING z
        ZADD long 1 {x*64}
        OBJECT ENCODING long
        ZADD long 1 {x*65}
        OBJECT ENCODING long
        "#,
    );
}

#[test]
fn ranges_answer_alike() {
    compare(
        r#"
        ZADD z 1 a 2 b 3 c 4 d 5 e 5 f
        ZRANGE z 0 -1
        ZRANGE z 1 3 WITHSCORES
        ZRANGE z -2 -1
        ZRANGE z 10 20
        ZRANGE z 3 1
        ZRANGE z 0 1 REV
        ZRANGE z 0 1 REV WITHSCORES
        ZRANGE z 2 4 BYSCORE
        ZRANGE z (2 (4 BYSCORE
        ZRANGE z 4 2 BYSCORE REV
        ZRANGE z (4 -inf BYSCORE REV WITHSCORES
        ZRANGE z -inf +inf BYSCORE LIMIT 1 2
        ZRANGE z +inf -inf BYSCORE REV LIMIT 1 2
        ZRANGE z -inf +inf BYSCORE LIMIT -1 2
        ZRANGE z -inf +inf BYSCORE LIMIT 2 -1
        ZRANGE z -inf +inf BYSCORE LIMIT 2 0
        ZRANGE z -inf +inf BYSCORE LIMIT 100 5
        ZRANGE z - + BYLEX
        ZRANGE z [a (c BYLEX
        ZRANGE z + - BYLEX REV
        ZRANGE z - + BYLEX LIMIT 1 2
        ZRANGE z - + BYLEX WITHSCORES
        ZRANGE z 0 -1 LIMIT 0 1
        ZRANGE z 0 -1 LIMIT 0 -1
        ZRANGE z 0 -1 BOGUS
        ZRANGE z 0 -1 LIMIT 1
        ZRANGE z 0 -1 LIMIT a b
        ZRANGE z a b
        ZRANGE z a b BYSCORE
        ZRANGE z a b BYLEX
        ZRANGE z 1 (b BYSCORE
        ZRANGE z nan 1 BYSCORE
        ZRANGE z "" 1 BYSCORE
        ZRANGE z ( 1 BYSCORE
        ZRANGE z " 1" 2 BYSCORE
        ZRANGE z "1 " 2 BYSCORE
        ZRANGE z 1e400 1e401 BYSCORE
        ZRANGE z 0x1 0x2 BYSCORE
        ZRANGE nothing 0 -1
        ZRANGE nothing 0 -1 WITHSCORES
        ZRANGE nothing a b
        ZREVRANGE z 0 -1
        ZREVRANGE z 0 1 WITHSCORES
        ZREVRANGE z 0 1 REV
        ZREVRANGE z 0 1 BYSCORE
        ZRANGEBYSCORE z 2 3
        ZRANGEBYSCORE z (2 +inf WITHSCORES LIMIT 0 2
        ZRANGEBYSCORE z 3 2
        ZRANGEBYSCORE z a b
        ZRANGEBYSCORE z 1 2 REV
        ZRANGEBYSCORE z (5 5
        ZREVRANGEBYSCORE z 3 2
        ZREVRANGEBYSCORE z +inf (2 WITHSCORES LIMIT 1 2
        ZREVRANGEBYSCORE z 2 3
        ZCOUNT z 2 4
        ZCOUNT z (2 (4
        ZCOUNT z -inf +inf
        ZCOUNT z 4 2
        ZCOUNT z a b
        ZCOUNT nothing 0 1
        DEL lex
        ZADD lex 0 a 0 b 0 c 0 aa 0 ab 0 ""
        ZRANGEBYLEX lex - +
        ZRANGEBYLEX lex [a [b
        ZRANGEBYLEX lex (a (b
        ZRANGEBYLEX lex [ +
        ZRANGEBYLEX lex ( +
        ZRANGEBYLEX lex + -
        ZRANGEBYLEX lex - + LIMIT 1 2
        ZRANGEBYLEX lex a b
        ZRANGEBYLEX lex - ++
        ZRANGEBYLEX lex - + WITHSCORES
        ZREVRANGEBYLEX lex + -
        ZREVRANGEBYLEX lex (b [a LIMIT 0 2
        ZLEXCOUNT lex - +
        ZLEXCOUNT lex [a (b
        ZLEXCOUNT lex b a
        ZLEXCOUNT nothing - +
        ZREMRANGEBYLEX lex [aa [ab
        ZRANGE lex 0 -1
        ZREMRANGEBYLEX lex a b
        ZREMRANGEBYLEX nothing - +
        ZREMRANGEBYRANK z 0 1
        ZREMRANGEBYRANK z 10 20
        ZREMRANGEBYRANK z a b
        ZREMRANGEBYSCORE z 3 3
        ZREMRANGEBYSCORE z (3 (3
        ZREMRANGEBYSCORE z a b
        ZREMRANGEBYSCORE z -inf +inf
        EXISTS z
        ZADD z 1 a 2 b 3 c
        ZRANGESTORE d z 0 1
        ZRANGE d 0 -1 WITHSCORES
        ZRANGESTORE d z 0 1 REV
        ZRANGE d 0 -1 WITHSCORES
        ZRANGESTORE d z 2 3 BYSCORE LIMIT 0 1
        ZRANGE d 0 -1 WITHSCORES
        ZRANGESTORE d z 10 20
        EXISTS d
        ZRANGESTORE d z 0 1 WITHSCORES
        ZRANGESTORE d nothing 0 1
        ZRANGESTORE z z 1 -1
        ZRANGE z 0 -1
        SET s x
        ZRANGESTORE s z 0 -1
        TYPE s
        SET s x
        ZRANGESTORE d s 0 -1
        "#,
    );
}

#[test]
fn pops_and_chance_answer_alike() {
    compare(
        r#"
        ZADD z 1 a 2 b 3 c 4 d 5 e
        ZPOPMIN z
        ZPOPMAX z
        ZPOPMIN z 2
        ZPOPMAX z 10
        EXISTS z
        ZPOPMIN z
        ZPOPMIN z 2
        ZADD z 1 a
        ZPOPMIN z 0
        ZPOPMIN z -1
        ZPOPMIN z abc
        ZPOPMIN z 1 2
        ZADD z 1 a 2 b 3 c 4 d 5 e
        ZMPOP 2 nothing z MIN
        ZMPOP 1 z MAX COUNT 2
        ZMPOP 1 nothing MIN
        ZMPOP 0 z MIN
        ZMPOP abc z MIN
        ZMPOP 1 z BOGUS
        ZMPOP 3 z MIN
        ZMPOP 1 z MIN COUNT 0
        ZMPOP 1 z MIN COUNT
        ZMPOP 1 z MIN COUNT 1 COUNT 1
        BZPOPMIN z 0
        BZPOPMAX nothing z 0
        BZPOPMIN nothing 0.01
        BZPOPMIN nothing abc
        BZPOPMIN nothing -1
        ZADD z 1 a
        BZMPOP 0 1 z MIN
        BZMPOP 0.01 1 z MIN
        BZMPOP abc 1 z MIN
        BZMPOP 0 1 z BOGUS
        SET s x
        BZPOPMIN s 0
        BZPOPMIN nothing s 0
        ZMPOP 1 s MIN
        ZRANDMEMBER nothing
        ZRANDMEMBER nothing 5
        ZADD one 1.5 x
        ZRANDMEMBER one
        ZRANDMEMBER one 5
        ZRANDMEMBER one -2
        ZRANDMEMBER one 5 WITHSCORES
        ZRANDMEMBER one -2 WITHSCORES
        ZRANDMEMBER one 0
        ZRANDMEMBER one abc
        ZRANDMEMBER one 1 BOGUS
        ZRANDMEMBER one 9223372036854775807 WITHSCORES
        ZRANDMEMBER one -9223372036854775808
        ZSCAN one 0
        ZSCAN nothing 0
        ZADD more 1 a 2.25 b inf c -0 d 1e20 e
        ZSCAN more 0
        ZSCAN more 0 MATCH [ab]
        ZSCAN more abc
        ZSCAN more 0 BOGUS
        "#,
    );
}

#[test]
fn algebra_of_sorted_sets_answers_alike() {
    compare(
        r#"
        ZADD a 1 x 2 y 3 z
        ZADD b 10 y 20 z 30 w
        ZADD c 100 z
        SADD s x y q
        ZUNION 2 a b
        ZUNION 2 a b WITHSCORES
        ZUNION 3 a b s WITHSCORES
        ZUNION 2 a b WEIGHTS 2 3 WITHSCORES
        ZUNION 2 a b WEIGHTS 2 3 AGGREGATE MAX WITHSCORES
        ZUNION 2 a b AGGREGATE MIN WITHSCORES
        ZUNION 2 a nothing WITHSCORES
        ZUNION 1 nothing
        ZINTER 2 a b WITHSCORES
        ZINTER 3 a b c WITHSCORES
        ZINTER 2 a s WITHSCORES
        ZINTER 2 a b WEIGHTS 0.1 0.2 WITHSCORES
        ZINTER 2 a nothing
        ZINTER 2 a a WITHSCORES
        ZDIFF 2 a b WITHSCORES
        ZDIFF 2 a s
        ZDIFF 2 nothing a
        ZDIFF 2 a nothing WITHSCORES
        ZDIFF 2 a a
        ZDIFF 2 a b WEIGHTS 1 2
        ZDIFF 2 a b AGGREGATE MIN
        ZINTERCARD 2 a b
        ZINTERCARD 2 a b LIMIT 1
        ZINTERCARD 2 a b LIMIT 0
        ZINTERCARD 2 a b LIMIT -1
        ZINTERCARD 2 a b LIMIT
        ZINTERCARD 0 a
        ZINTERCARD 5 a
        ZINTERCARD 2 a b WITHSCORES
        ZUNION 0 a
        ZUNION abc a
        ZUNION 3 a b
        ZUNION 2 a b WEIGHTS 1
        ZUNION 2 a b WEIGHTS 1 abc
        ZUNION 2 a b AGGREGATE BOGUS
        ZUNION 2 a b BOGUS
        ZINTER -1 a
        ZDIFF 0 a
        ZUNIONSTORE d 2 a b
        ZRANGE d 0 -1 WITHSCORES
        OBJECT ENCODING d
        ZUNIONSTORE d 2 a b WEIGHTS inf -inf
        ZRANGE d 0 -1 WITHSCORES
        ZUNIONSTORE d 1 a WEIGHTS nan
        ZINTERSTORE d 2 a b AGGREGATE MAX
        ZRANGE d 0 -1 WITHSCORES
        ZINTERSTORE d 2 a nothing
        EXISTS d
        ZDIFFSTORE d 2 a b
        ZRANGE d 0 -1 WITHSCORES
        ZUNIONSTORE d 0 a
        ZUNIONSTORE d 2 a b WITHSCORES
        ZINTERSTORE d 0 a
        ZDIFFSTORE d 0 a
        ZUNIONSTORE a 2 a b
        ZRANGE a 0 -1 WITHSCORES
        SET str x
        ZUNION 2 a str
        ZUNION 2 str a BOGUS
        ZUNIONSTORE str 1 a
        TYPE str
        ZADD p inf m
        ZADD q -inf m
        ZUNION 2 p q WITHSCORES
        ZINTER 2 p q WITHSCORES
        ZUNION 1 p WEIGHTS 0 WITHSCORES
        ZINTER 2 p q WEIGHTS 0 1 WITHSCORES
        "#,
    );
}

#[test]
fn large_sorted_sets_become_skiplists_alike() {
    let mut script = String::new();
    for member in 0..128 {
        script.push_str(&format!("ZADD z {} member{member}\n", (member * 37) % 50));
    }
    script.push_str(
        "OBJECT ENCODING z\nZSCAN z 0\nZADD z 0.5 more\nOBJECT ENCODING z\n\
         ZRANGE z 0 -1 WITHSCORES\n~ ZSCAN z 0 COUNT 1000\nZREM z more\nOBJECT ENCODING z\n\
         ZRANK z member77\nZREVRANK z member77\nZRANGEBYSCORE z 10 20\n~ ZRANDMEMBER z 1000\n\
         ZUNIONSTORE u 1 z\nOBJECT ENCODING u\nZRANGESTORE r z 0 -1\nOBJECT ENCODING r\n\
         ZADD z 0 more\nZUNIONSTORE u 1 z\nOBJECT ENCODING u\nZRANGESTORE r z 0 -1\n\
         OBJECT ENCODING r\nZREMRANGEBYSCORE z 10 30\nZRANGE z 0 -1\nCOPY z y\nOBJECT ENCODING y\n\
         ZRANGE y 0 -1 WITHSCORES",
    );
    compare(&script);
}

#[test]
fn clients_that_wait_for_sorted_sets_are_served_alike() {
    compare(
        r#"
        @2 & BZPOPMIN z 0
        @3 & BZPOPMAX z 0
        ZADD z 1 a 2 b 3 c
        @2 ?
        @3 ?
        ZRANGE z 0 -1
        DEL z
        @2 & BZMPOP 0 2 y z MAX COUNT 2
        ZADD z 1 a 2 b 3 c
        @2 ?
        ZRANGE z 0 -1
        DEL z
        @2 & BZPOPMIN z 0
        @3 & BLPOP z 0
        RPUSH z 1
        @3 ?
        @2 !
        ZADD z 1 a
        @2 ?
        @2 & BZPOPMIN z 0
        ZADD src 5 m
        ZUNIONSTORE z 1 src
        @2 ?
        EXISTS z
        "#,
    );
}
