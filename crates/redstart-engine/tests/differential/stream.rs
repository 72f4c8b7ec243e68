//! Streams and consumer groups.

use std::fmt::Write as _;

use crate::compare;

#[test]
fn entries_are_added_and_read_alike() {
    compare(
        r#"
        XADD s 1-1 a 1
        XADD s 1-1 a 1
        XADD s 1-0 a 1
        XADD s 0-0 a 1
        XADD s 1-* a 2
        XADD s 1-* a 3 b 4
        XADD s 5 a 5
        XADD s 5-* a 6
        XADD s 4-* a 6
        XADD s 7-5 a 7 a 8
        XADD s * a
        XADD s * a b c
        XADD s x a b
        XADD s 1-x a b
        XADD s - a b
        XADD s + a b
        XADD s 1-2-3 a b
        XADD s -1 a b
        XADD s "" a b
        XADD s 007 a b
        XADD s 9-007 a b
        XADD s " 10" a b
        XADD s +11 a b
        XADD s 18446744073709551616-1 a b
        XLEN s
        XLEN nothing
        SET str x
        XADD str * a b
        XLEN str
        XADD new NOMKSTREAM 1-1 a b
        EXISTS new
        XADD s NOMKSTREAM 20-1 a b
        XRANGE s - +
        XRANGE s 1 5
        XRANGE s (1-1 (5-0
        XRANGE s ( +
        XRANGE s (- +
        XRANGE s - (+
        XRANGE s (18446744073709551615-18446744073709551615 +
        XRANGE s - (0-0
        XRANGE s 5 1
        XRANGE s - + COUNT 2
        XRANGE s - + COUNT 0
        XRANGE s - + COUNT -1
        XRANGE s - + COUNT x
        XRANGE s - + COUNT
        XRANGE s - + FOO 1
        XRANGE s x +
        XRANGE nothing - +
        XRANGE nothing - + COUNT 0
        XRANGE str - +
        XREVRANGE s + -
        XREVRANGE s + - COUNT 2
        XREVRANGE s (7-5 1
        XREVRANGE s - +
        XDEL s 1-2 1-2 99-99
        XDEL s 1-x
        XDEL nothing 1-1
        XDEL nothing x
        XDEL str 1-1
        XRANGE s - +
        XINFO STREAM s
        XADD max 18446744073709551615-18446744073709551615 a b
        XADD max * a b
        XADD max 18446744073709551615-* a b
        XADD max2 5-18446744073709551615 a b
        XADD max2 5-* a b
        XADD max3 99999999999999999-18446744073709551615 a b
        XADD max3 * a b
        XADD zero 0-* a b
        XADD zero 0-* a b
        TYPE s
        OBJECT ENCODING s
        "#,
    );
}

#[test]
fn trimming_cuts_alike() {
    let mut script = String::new();
    for n in 1..=250 {
        writeln!(script, "XADD s {n}-1 field value{n}").unwrap();
    }
    script.push_str(
        r#"
        XTRIM s MAXLEN 245
        XLEN s
        XTRIM s MAXLEN ~ 200
        XLEN s
        XTRIM s MAXLEN ~ 150
        XLEN s
        XTRIM s MAXLEN = 100
        XINFO STREAM s
        XTRIM s MINID 160
        XTRIM s MINID ~ 190
        XTRIM s MINID ~ 240 LIMIT 10
        XTRIM s MINID ~ 240 LIMIT 0
        XLEN s
        XTRIM s MAXLEN 10 LIMIT 5
        XTRIM s MAXLEN ~ 10 LIMIT 100
        XTRIM s LIMIT 5
        XTRIM s MAXLEN -1
        XTRIM s MAXLEN x
        XTRIM s MAXLEN ~
        XTRIM s MAXLEN
        XTRIM s MINID x
        XTRIM s MAXLEN 1 MINID 1
        XTRIM s FOO 1
        XTRIM s MAXLEN ~ 1 LIMIT -1
        XTRIM nothing MAXLEN 1
        XADD s MAXLEN 5 251 a b
        XADD s MAXLEN = 4 252 a b
        XADD s MAXLEN ~ 2 253 a b
        XADD s MINID 252 254 a b
        XADD s MINID ~ 252 LIMIT 0 255 a b
        XADD s LIMIT 10 256 a b
        XADD s MAXLEN 0 257 a b
        XLEN s
        XINFO STREAM s
        EXISTS s
        XADD s MAXLEN ~ 100 258 a b
        XINFO STREAM s
        "#,
    );
    compare(&script);
}

/// The borders of the nodes show in `radix-tree-keys` and in what an approximate trim leaves.
#[test]
fn nodes_end_where_those_of_redis_end() {
    let mut script = String::new();
    for n in 1..=120u64 {
        let value = "x".repeat((n * 37 % 900) as usize);
        match n % 5 {
            0 => writeln!(script, "XADD s {n} a \"{value}\" b {}", n * 1000).unwrap(),
            1 => writeln!(script, "XADD s {n} c {} d -{}", n * n * n * n, n * 31).unwrap(),
            _ => writeln!(script, "XADD s {n}-{} a \"{value}\"", n * 77).unwrap(),
        }
    }
    script.push_str("XINFO STREAM s\nXTRIM s MAXLEN ~ 60\nXINFO STREAM s\nXDEL s 90-6930 91\n");
    script.push_str("XTRIM s MINID ~ 100\nXINFO STREAM s\nXLEN s");
    compare(&script);
}

#[test]
fn ids_can_be_set_alike() {
    compare(
        r#"
        XADD s 5-1 a b
        XADD s 6-1 a b
        XDEL s 6-1
        XSETID s 5-0
        XSETID s 6-0
        XSETID s 9-9
        XADD s 9-9 a b
        XSETID s 10-0 ENTRIESADDED 100 MAXDELETEDID 9-0
        XINFO STREAM s
        XSETID s 11-0 ENTRIESADDED 0
        XSETID s 11-0 ENTRIESADDED -1
        XSETID s 11-0 MAXDELETEDID 12
        XSETID s 8-0
        XSETID s 11-0 FOO 1
        XSETID s 11-0 ENTRIESADDED
        XSETID s x
        XSETID nothing 1-1
        SET str x
        XSETID str 1-1
        "#,
    );
}

#[test]
fn groups_are_managed_alike() {
    compare(
        r#"
        XGROUP CREATE s g $
        XGROUP CREATE s g $ MKSTREAM
        XGROUP CREATE s g $
        XINFO STREAM s
        XADD s 1-1 a 1
        XADD s 2-1 a 2
        XADD s 3-1 a 3
        XGROUP CREATE s h 0 ENTRIESREAD 0
        XGROUP CREATE s i 2-1 ENTRIESREAD 2
        XGROUP CREATE s j 2
        XGROUP CREATE s k x
        XGROUP CREATE s k - 
        XGROUP CREATE s k 0 ENTRIESREAD -2
        XGROUP CREATE s k 0 ENTRIESREAD x
        XGROUP CREATE s k 0 FOO
        XGROUP CREATE s k
        XINFO GROUPS s
        XGROUP SETID s g 2-1
        XGROUP SETID s g $
        XGROUP SETID s g -
        XGROUP SETID s g +
        XGROUP SETID s g 0 ENTRIESREAD 1
        XGROUP SETID s g 0 MKSTREAM
        XGROUP SETID s nog 0
        XGROUP SETID nothing g 0
        XGROUP CREATECONSUMER s g c
        XGROUP CREATECONSUMER s g c
        XGROUP CREATECONSUMER s nog c
        XGROUP CREATECONSUMER nothing g c
        XGROUP DELCONSUMER s g c
        XGROUP DELCONSUMER s g c
        XGROUP DELCONSUMER s nog c
        XGROUP DESTROY s g
        XGROUP DESTROY s g
        XGROUP DESTROY nothing g
        XGROUP FOO s g
        XGROUP
        XINFO GROUPS s
        XINFO GROUPS nothing
        XINFO CONSUMERS s h
        XINFO CONSUMERS s nog
        XINFO CONSUMERS nothing g
        XINFO STREAM nothing
        XINFO STREAM s FOO
        XINFO STREAM s FULL COUNT x
        XINFO STREAM s FULL COUNT 1
        XINFO STREAM s FULL COUNT 0
        XINFO STREAM s FULL COUNT -1
        XINFO FOO s
        SET str x
        XGROUP CREATE str g 0
        XINFO STREAM str
        XINFO GROUPS str
        "#,
    );
}

#[test]
fn groups_read_alike() {
    compare(
        r#"
        XADD s 1-1 a 1
        XADD s 2-1 a 2
        XADD s 3-1 a 3
        XADD t 1-1 b 1
        XGROUP CREATE s g 0
        XGROUP CREATE t g $
        XREADGROUP GROUP g c STREAMS s 0
        XREADGROUP GROUP g c COUNT 1 STREAMS s t > >
        XREADGROUP GROUP g c COUNT 1 STREAMS s >
        XREADGROUP GROUP g d STREAMS s t > 0
        XREADGROUP GROUP g d STREAMS s >
        XREADGROUP GROUP g c STREAMS s 0
        XREADGROUP GROUP g c COUNT 1 STREAMS s 1-1
        XREADGROUP GROUP g c STREAMS s 5
        XPENDING s g
        XPENDING t g
        XINFO GROUPS s
        XACK s g 1-1 1-1 9-9
        XACK s g x
        XACK s nog 1-1
        XACK s nog x
        XACK nothing g 1-1
        XDEL s 2-1
        XREADGROUP GROUP g c STREAMS s 0
        XINFO GROUPS s
        XADD s 4-1 a 4
        XADD s 5-1 a 5
        XREADGROUP GROUP g n NOACK STREAMS s >
        XPENDING s g
        XPENDING s g - + 10 n
        XPENDING s g - + 10 nobody
        XPENDING s g - + 0
        XPENDING s g - + x
        XPENDING s g - +
        XPENDING s g x + 10
        XPENDING s g IDLE x - + 10
        XPENDING s g IDLE 100000 - + 10
        XPENDING s g IDLE 100000 - + 10 c
        XPENDING s g IDLE 1 -
        XPENDING s nog
        XPENDING nothing g - + 10
        XINFO GROUPS s
        XREADGROUP GROUP g c STREAMS s $
        XREADGROUP GROUP nog c STREAMS s >
        XREADGROUP GROUP g c STREAMS nothing >
        XREADGROUP GROUP g c STREAMS s t >
        XREADGROUP GROUP g c COUNT x STREAMS s >
        XREADGROUP COUNT 1 STREAMS s t u > > >
        XREADGROUP GROUP g c COUNT 1 NOACK s >
        XREADGROUP GROUP g c FOO STREAMS s >
        XREADGROUP GROUP g c BLOCK -1 STREAMS s >
        XREADGROUP GROUP g c BLOCK x STREAMS s >
        XREAD STREAMS s 0
        XREAD COUNT 1 STREAMS s t 1-1 0
        XREAD COUNT -5 STREAMS s t 4 0
        XREAD STREAMS s $
        XREAD STREAMS s >
        XREAD STREAMS s t 0
        XREAD STREAMS
        XREAD STREAMS s x
        XREAD GROUP g c STREAMS s >
        XREAD NOACK STREAMS s 0
        XREAD COUNT x STREAMS s 0
        XREAD STREAMS nothing 0
        XREAD STREAMS s 99
        XREAD BLOCK 5 STREAMS s 99
        XREADGROUP GROUP g c BLOCK 5 STREAMS s >
        SET str x
        XREAD STREAMS str 0
        XREADGROUP GROUP g c STREAMS str >
        XACK str g 1
        XPENDING str g
        MULTI
        XREAD BLOCK 0 STREAMS s $
        EXEC
        "#,
    );
}

#[test]
fn claims_answer_alike() {
    compare(
        r#"
        XADD s 1-1 a 1
        XADD s 2-1 a 2
        XADD s 3-1 a 3
        XADD s 4-1 a 4
        XGROUP CREATE s g 0
        XREADGROUP GROUP g a COUNT 3 STREAMS s >
        XCLAIM s g b 0 1-1
        XCLAIM s g b 0 1-1 2-1 JUSTID
        XCLAIM s g b 1000000 3-1
        XCLAIM s g b 0 4-1
        XCLAIM s g b 0 4-1 FORCE
        XCLAIM s g b 0 9-9 FORCE
        XCLAIM s g c 0 4-1 RETRYCOUNT 7 IDLE 100000 LASTID 9-1
        XCLAIM s g c 100 4-1 JUSTID
        XCLAIM s g c 0 4-1 TIME 1
        XCLAIM s g c 0 4-1 TIME 99999999999999
        XCLAIM s g c 0 4-1 IDLE -5
        XINFO GROUPS s
        XDEL s 2-1
        XCLAIM s g c 0 2-1 3-1
        XPENDING s g
        XCLAIM s g c x 1-1
        XCLAIM s g c -5 1-1
        XCLAIM s g c 0 x
        XCLAIM s g c 0 1-1 FOO
        XCLAIM s g c 0 1-1 IDLE
        XCLAIM s g c 0 1-1 IDLE x
        XCLAIM s g c 0 1-1 TIME x
        XCLAIM s g c 0 1-1 RETRYCOUNT x
        XCLAIM s g c 0 1-1 LASTID x
        XCLAIM s nog c 0 1-1
        XCLAIM nothing g c 0 1-1
        XAUTOCLAIM s g d 0 0
        XAUTOCLAIM s g d 0 0 COUNT 1
        XAUTOCLAIM s g d 0 (1-1 COUNT 1 JUSTID
        XDEL s 3-1
        XAUTOCLAIM s g e 0 - COUNT 2
        XAUTOCLAIM s g e 0 4 COUNT 2
        XAUTOCLAIM s g e 100000 0
        XAUTOCLAIM s g e 0 0 COUNT 0
        XAUTOCLAIM s g e 0 0 COUNT x
        XAUTOCLAIM s g e 0 0 FOO
        XAUTOCLAIM s g e x 0
        XAUTOCLAIM s g e 0 x
        XAUTOCLAIM s nog e 0 0
        XAUTOCLAIM nothing g e 0 0
        XPENDING s g
        XGROUP DELCONSUMER s g e
        XPENDING s g
        "#,
    );
}

#[test]
fn lag_is_counted_alike() {
    compare(
        r#"
        XADD s 1-1 a 1
        XADD s 2-1 a 2
        XADD s 3-1 a 3
        XADD s 4-1 a 4
        XADD s 5-1 a 5
        XGROUP CREATE s g 0
        XINFO GROUPS s
        XREADGROUP GROUP g c COUNT 1 STREAMS s >
        XINFO GROUPS s
        XDEL s 3-1
        XINFO GROUPS s
        XREADGROUP GROUP g c COUNT 1 STREAMS s >
        XINFO GROUPS s
        XREADGROUP GROUP g c COUNT 1 STREAMS s >
        XINFO GROUPS s
        XREADGROUP GROUP g c COUNT 1 STREAMS s >
        XINFO GROUPS s
        XADD s 6-1 a 6
        XINFO GROUPS s
        XTRIM s MAXLEN 1
        XINFO GROUPS s
        XGROUP CREATE s h 2
        XGROUP CREATE s i 6
        XGROUP CREATE s j 7
        XINFO GROUPS s
        XDEL s 6-1
        XINFO GROUPS s
        XADD s 7-1 a 7
        XINFO GROUPS s
        XREADGROUP GROUP g c COUNT 1 STREAMS s >
        XREADGROUP GROUP j c COUNT 1 STREAMS s >
        XINFO GROUPS s
        "#,
    );
}

#[test]
fn blocked_readers_are_served_alike() {
    compare(
        r#"
        &XREAD BLOCK 0 STREAMS s t $ 0
        @2 XADD s 1-1 a 1
        ?
        &XREAD BLOCK 0 COUNT 1 STREAMS s 5
        @2 XADD s 2-1 a 2
        !
        @2 MULTI
        @2 XADD s 6-1 a 6
        @2 XADD s 7-1 a 7
        @2 EXEC
        ?
        XGROUP CREATE s g $
        &XREADGROUP GROUP g a BLOCK 0 STREAMS s >
        @2 &XREADGROUP GROUP g b BLOCK 0 STREAMS s >
        @3 XADD s 8-1 a 8
        ?
        @2 !
        @3 XADD s 9-1 a 9
        @2 ?
        XPENDING s g
        &XREADGROUP GROUP g a BLOCK 0 STREAMS s >
        @2 XGROUP DESTROY s g
        ?
        XGROUP CREATE s g $
        &XREADGROUP GROUP g a BLOCK 0 STREAMS s >
        @2 &XREAD BLOCK 0 STREAMS s $
        @3 DEL s
        ?
        @3 SET s x
        @2 !
        @3 DEL s
        @3 XADD s 9-2 a 9
        @2 ?
        &XREAD BLOCK 0 STREAMS s $
        @2 CLIENT UNBLOCK 0
        @2 XADD s MAXLEN 0 10-1 a b
        ?
        XGROUP CREATE s g $
        &XREADGROUP GROUP g a BLOCK 0 STREAMS s >
        @2 FLUSHALL
        ?
        XGROUP CREATE s g $ MKSTREAM
        &XREADGROUP GROUP g a BLOCK 0 NOACK STREAMS s >
        @2 XADD s 1-1 a b
        ?
        XINFO GROUPS s
        &XREADGROUP GROUP g a BLOCK 0 NOACK STREAMS s >
        @2 SET s x
        ?
        "#,
    );
}
