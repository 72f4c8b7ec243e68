//! Sets.

use crate::compare;

#[test]
fn sets_answer_alike() {
    compare(
        r#"
        SADD s 3 1 2 1
        SMEMBERS s
        OBJECT ENCODING s
        SADD s a
        OBJECT ENCODING s
        SADD s a
        ~ SMEMBERS s
        SCARD s
        SCARD nothing
        SISMEMBER s a
        SISMEMBER s x
        SISMEMBER nothing x
        SMISMEMBER s a x 1
        SMISMEMBER nothing a b
        SREM s a x
        SREM s a
        SREM nothing a
        OBJECT ENCODING s
        SMEMBERS nothing
        SMOVE s t 1
        SMOVE s t 99
        SMOVE nothing t 1
        SMOVE s s 2
        SMOVE s s 99
        SMOVE t s 1
        EXISTS t
        SET str x
        SMOVE s str 1
        SMOVE str s 1
        SMOVE nothing str 1
        SADD str a
        SREM str a
        SMEMBERS str
        SISMEMBER str a
        SMISMEMBER str a
        SCARD str
        SPOP str
        SRANDMEMBER str
        SSCAN str 0
        SADD one x
        SPOP one
        EXISTS one
        SPOP one
        SPOP one 5
        SADD one x
        SPOP one 0
        SPOP one -1
        SPOP one abc
        SPOP one 1 2
        SPOP one 10
        EXISTS one
        SADD many a b c
        ~ SPOP many 5
        SRANDMEMBER nothing
        SRANDMEMBER nothing 5
        SADD one x
        SRANDMEMBER one
        SRANDMEMBER one 3
        SRANDMEMBER one -3
        SRANDMEMBER one 0
        SRANDMEMBER one abc
        SRANDMEMBER one 1 2
        SRANDMEMBER one -9223372036854775808
        SADD ints 5 3 -1 9223372036854775807 -9223372036854775808
        SMEMBERS ints
        SRANDMEMBER ints 100
        SSCAN ints 0
        SSCAN ints 0 MATCH *3*
        SSCAN nothing 0
        SSCAN nothing 0 BOGUS
        SSCAN ints abc
        SSCAN ints 0 BOGUS
        SADD ints 9223372036854775808
        OBJECT ENCODING ints
        SADD zero 00 0 -0 +1
        ~ SMEMBERS zero
        SADD s
        SREM s
        "#,
    );
}

#[test]
fn algebra_of_sets_answers_alike() {
    compare(
        r#"
        SADD a 1 2 3 4 x
        SADD b 3 4 5 x y
        SADD c 4
        ~ SINTER a b
        ~ SINTER a b c
        ~ SUNION a b c
        ~ SDIFF a b
        ~ SDIFF a b c
        ~ SDIFF b a
        SINTER a nothing
        SINTER nothing a
        SDIFF nothing a
        ~ SDIFF a nothing
        ~ SUNION nothing c
        SUNION nothing
        SINTERSTORE d a b
        ~ SMEMBERS d
        OBJECT ENCODING d
        SINTERSTORE d a c
        OBJECT ENCODING d
        SINTERSTORE d a nothing
        EXISTS d
        SUNIONSTORE d a b c
        ~ SMEMBERS d
        SDIFFSTORE d a b
        ~ SMEMBERS d
        OBJECT ENCODING d
        SDIFFSTORE d a a
        EXISTS d
        SDIFFSTORE a a c
        ~ SMEMBERS a
        SET str x
        SINTER a str
        SINTER nothing str
        SINTER str nothing
        SUNION a str
        SDIFF nothing str
        SDIFF str a
        SUNIONSTORE str a b
        TYPE str
        SET str x
        SINTERSTORE str a nothing
        EXISTS str
        SET str x
        SINTERSTORE d str a
        SINTERCARD 2 a b
        SINTERCARD 2 a b LIMIT 1
        SINTERCARD 2 a b LIMIT 0
        SINTERCARD 2 a b LIMIT 100
        SINTERCARD 1 nothing
        SINTERCARD 2 a nothing
        SINTERCARD 0 a
        SINTERCARD abc a
        SINTERCARD 3 a b
        SINTERCARD 1 a b
        SINTERCARD 2 a b LIMIT -1
        SINTERCARD 2 a b LIMIT abc
        SINTERCARD 2 a b LIMIT
        SINTERCARD 2 a b BOGUS 1
        SINTERCARD 2 a str
        SINTERCARD 2 nothing str
        "#,
    );
}

#[test]
fn large_integer_sets_become_tables_alike() {
    let members: Vec<String> = (0..512).map(|member| member.to_string()).collect();
    let script = format!(
        "SADD s {}\nOBJECT ENCODING s\nSMEMBERS s\nSADD s 1000\nOBJECT ENCODING s\n\
         ~ SMEMBERS s\nSREM s 1000\nOBJECT ENCODING s\n~ SSCAN s 0 COUNT 10000\n~ SRANDMEMBER s 1000",
        members.join(" ")
    );
    compare(&script);
}
