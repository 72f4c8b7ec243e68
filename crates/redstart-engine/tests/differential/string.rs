//! Strings.

use crate::compare;

#[test]
fn strings_and_unknown_commands_answer_alike() {
    compare(
        r#"
        SET a 1
        GET a
        INCR a
        INCRBY a 9223372036854775806
        SET a "\x00\xff"
        GET a
        INCR a
        GET
        get nothing
        NOSUCH a "b c"
        NOSUCH {x*300} {y*300} z
        "" a
        "#,
    );
}

#[test]
fn set_and_its_options_answer_alike() {
    compare(
        r#"
        SET k v NX
        SET k w NX
        SET k w XX
        SET nope w XX
        SET k x GET
        SET k y NX GET
        SET k2 y XX GET
        SET k3 y NX GET
        SET k v EX 100
        TTL k
        SET k v KEEPTTL
        TTL k
        SET k v
        TTL k
        SET k v PX 100000 NX
        SET k v PX 100000 XX
        TTL k
        SET k v EXAT 33177117420
        EXPIRETIME k
        PEXPIRETIME k
        SET k v PXAT 33177117420000
        PEXPIRETIME k
        SET k v EX 0
        SET k v EX -1
        SET k v EX abc
        SET k v EX 9223372036854775807
        SET k v PX 9223372036854775807
        SET k v EX
        SET k v NX XX
        SET k v EX 1 PX 1
        SET k v KEEPTTL EX 1
        SET k v EX 1 KEEPTTL
        SET k v BOGUS
        SET k v PERSIST
        SET k v EXAT 1
        EXISTS k
        RPUSH l a
        SET l v GET
        SET l v
        GET l
        SETNX n 1
        SETNX n 2
        SETEX e 100 v
        SETEX e 0 v
        SETEX e x v
        PSETEX e 100000 v
        TTL e
        PSETEX e -5 v
        GETSET e w
        TTL e
        GETSET new 1
        GETDEL e
        GETDEL e
        GETEX n
        GETEX n EX 100
        TTL n
        GETEX n PERSIST
        TTL n
        GETEX n PXAT 33177117420000
        TTL n
        GETEX n EXAT 1
        EXISTS n
        GETEX n
        GETEX nothing EX abc
        SET n 1
        GETEX n EX abc
        GETEX n EX 0
        GETEX n EX 1 PX 1
        GETEX n PERSIST EX 1
        GETEX n EX 1 PERSIST
        GETEX n KEEPTTL
        GETEX n EX
        "#,
    );
}

#[test]
fn numbers_in_strings_answer_alike() {
    compare(
        r#"
        INCR a
        INCRBY a 41
        DECR a
        DECRBY a 42
        DECRBY a -9223372036854775808
        DECRBY a 9223372036854775807
        DECRBY a 9223372036854775807
        INCRBY a abc
        INCRBY a 9223372036854775808
        SET a 9223372036854775807
        INCR a
        SET b 3.0
        INCR b
        SET b " 1"
        INCR b
        INCRBYFLOAT f 0.1
        INCRBYFLOAT f 0.2
        GET f
        OBJECT ENCODING f
        INCRBYFLOAT f 1e3
        INCRBYFLOAT f -1000.3
        INCRBYFLOAT f 3
        INCRBYFLOAT f -3
        INCRBYFLOAT f abc
        INCRBYFLOAT f inf
        INCRBYFLOAT f nan
        INCRBYFLOAT f ""
        INCRBYFLOAT f " 1"
        INCRBYFLOAT f 1e400
        STRLEN f
        INCRBYFLOAT f 1e5000
        INCRBYFLOAT f 0x1p4
        SET f 5.0e3
        INCRBYFLOAT f 2.0e2
        SET f 10.50
        INCRBYFLOAT f 0.1
        INCRBYFLOAT f 0.000000000000000001
        INCRBYFLOAT f 3.141592653589793238462643383279
        INCRBYFLOAT f 123456789123456789.123456789
        INCRBYFLOAT f -123456789123456789.123456789
        SET f 9223372036854775807
        INCRBYFLOAT f 1
        SET f 1.7976931348623157e308
        INCRBYFLOAT f 1.7976931348623157e308
        SET f inf
        INCRBYFLOAT f 1
        SET f hello
        INCRBYFLOAT f 1
        SET f -0.0
        INCRBYFLOAT f 0
        INCRBYFLOAT f -0.00000000000000000001
        RPUSH l a
        INCR l
        INCRBYFLOAT l 1
        SETEX t 100 1
        INCR t
        TTL t
        INCRBYFLOAT t 1.5
        TTL t
        "#,
    );
}

#[test]
fn ranges_and_many_keys_answer_alike() {
    compare(
        r#"
        APPEND a Hello
        OBJECT ENCODING a
        APPEND a " World"
        OBJECT ENCODING a
        APPEND a ""
        GET a
        STRLEN a
        STRLEN nothing
        GETRANGE a 0 4
        GETRANGE a -5 -1
        GETRANGE a -1 -5
        GETRANGE a 3 1
        GETRANGE a -100 100
        GETRANGE a 100 200
        GETRANGE a -100 -90
        GETRANGE a 0 x
        GETRANGE nothing 0 -1
        SUBSTR a 0 2
        SUBSTR a 0
        SETRANGE a 6 Redis
        GET a
        SETRANGE a 20 x
        GET a
        SETRANGE b 0 ""
        EXISTS b
        SETRANGE a 0 ""
        SETRANGE b -1 x
        SETRANGE b abc x
        SETRANGE b 536870912 x
        SETRANGE b 9223372036854775807 x
        SETRANGE b 5 x
        GET b
        SET i 12
        SETRANGE i 1 9
        GET i
        OBJECT ENCODING i
        INCR i
        OBJECT ENCODING i
        MSET a 1 b 2 c 3
        MSET a 1 b
        MGET a b c d
        RPUSH l x
        MGET a l
        MSETNX x 1 a 2
        MSETNX x 1 y 2
        MSETNX x
        MSETNX x 1 y
        MGET x y
        STRLEN l
        APPEND l x
        GETRANGE l 0 1
        SETRANGE l 0 x
        SETRANGE l 0 ""
        OBJECT ENCODING a
        SET e {x*44}
        OBJECT ENCODING e
        SET e {x*45}
        OBJECT ENCODING e
        SET e {x*5000}
        GET e
        OBJECT ENCODING e
        OBJECT REFCOUNT a
        SET big 10000
        OBJECT REFCOUNT big
        OBJECT REFCOUNT e
        "#,
    );
}

#[test]
fn lcs_answers_alike() {
    compare(
        r#"
        MSET a ohmytext b mynewtext
        LCS a b
        LCS a b LEN
        LCS a b IDX
        LCS a b IDX MINMATCHLEN 4
        LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN
        LCS a b IDX WITHMATCHLEN
        LCS a b LEN IDX
        LCS a b MINMATCHLEN -5 IDX
        LCS a b MINMATCHLEN x IDX
        LCS a b MINMATCHLEN
        LCS a b BOGUS
        LCS a nothing
        LCS no nothing IDX
        LCS no nothing LEN
        RPUSH l x
        LCS a l
        LCS l a BOGUS
        MSET a aabbccaabbcc b abcabcabc
        LCS a b IDX WITHMATCHLEN
        LCS a b
        MSET a xaxbxcx b abc
        LCS a b IDX WITHMATCHLEN
        LCS b a IDX WITHMATCHLEN
        LCS b b IDX WITHMATCHLEN
        LCS a
        "#,
    );
}
