//! Lists.

use crate::compare;

#[test]
fn lists_answer_alike() {
    compare(
        r#"
        LPUSH l a b c
        RPUSH l d e
        LRANGE l 0 -1
        LRANGE l -3 -2
        LRANGE l 5 10
        LRANGE l 3 1
        LRANGE l -100 100
        LRANGE l a 1
        LRANGE nothing 0 -1
        LLEN l
        LLEN nothing
        LPUSHX l x
        LPUSHX nothing x
        RPUSHX nothing x
        RPUSHX l y z
        EXISTS nothing
        LINDEX l 0
        LINDEX l -1
        LINDEX l 100
        LINDEX l abc
        LINDEX nothing abc
        LSET l 0 first
        LSET l -1 last
        LSET l 100 x
        LSET l abc x
        LSET nothing 0 x
        LRANGE l 0 -1
        LINSERT l BEFORE b before
        LINSERT l AFTER b after
        LINSERT l AFTER nope x
        LINSERT l BOGUS b x
        LINSERT nothing BEFORE a x
        LRANGE l 0 -1
        RPUSH l b a b a b
        LREM l 2 b
        LREM l -1 a
        LREM l 0 b
        LREM l abc b
        LREM nothing 0 b
        LREM l 0 nope
        LRANGE l 0 -1
        LTRIM l 1 -2
        LRANGE l 0 -1
        LTRIM l 100 200
        EXISTS l
        LTRIM nothing 0 1
        LTRIM l a b
        RPUSH l 1 2 3 4 5
        LPOP l
        RPOP l
        LPOP l 2
        RPOP l 100
        EXISTS l
        LPOP l
        LPOP l 2
        RPUSH l 1 2
        LPOP l 0
        LPOP l -1
        LPOP l abc
        LPOP l 1 2
        RPOP l 1 2
        OBJECT ENCODING l
        SET s x
        LPUSH s a
        LPUSHX s a
        LPOP s
        LPOP s 0
        LLEN s
        LINDEX s abc
        LSET s 0 a
        LRANGE s 0 1
        LTRIM s 0 1
        LREM s 0 a
        LINSERT s BEFORE a b
        LPOS s a
        LPUSH l
        RPUSH l "" "\x00\x01"
        LRANGE l 0 -1
        "#,
    );
}

#[test]
fn lpos_answers_alike() {
    compare(
        r#"
        RPUSH l a b c 1 2 3 c c
        LPOS l c
        LPOS l c RANK 2
        LPOS l c RANK -1
        LPOS l c RANK -2 COUNT 0
        LPOS l c COUNT 2
        LPOS l c COUNT 0
        LPOS l c COUNT 0 MAXLEN 3
        LPOS l c COUNT 0 RANK -1 MAXLEN 2
        LPOS l x
        LPOS l x COUNT 1
        LPOS nothing x
        LPOS nothing x COUNT 0
        LPOS l c RANK 0
        LPOS l c RANK abc
        LPOS l c RANK -9223372036854775808
        LPOS l c RANK 9223372036854775807
        LPOS l c COUNT -1
        LPOS l c COUNT abc
        LPOS l c MAXLEN -1
        LPOS l c BOGUS 1
        LPOS l c COUNT
        LPOS l
        "#,
    );
}

#[test]
fn moves_answer_alike() {
    compare(
        r#"
        RPUSH a 1 2 3 4
        LMOVE a b LEFT RIGHT
        LMOVE a b right left
        LRANGE b 0 -1
        RPOPLPUSH a b
        RPOPLPUSH a a
        RPOPLPUSH a b
        EXISTS a
        RPOPLPUSH a b
        LMOVE a b LEFT BOGUS
        LMOVE b b LEFT RIGHT
        LRANGE b 0 -1
        SET s x
        LMOVE b s LEFT LEFT
        LMOVE s b LEFT LEFT
        LMOVE nothing s LEFT LEFT
        RPOPLPUSH nothing s
        LRANGE b 0 -1
        RPUSH a x y z
        LMPOP 2 nothing a LEFT
        LMPOP 2 nothing a RIGHT COUNT 10
        LMPOP 1 nothing LEFT
        LMPOP 0 a LEFT
        LMPOP abc a LEFT
        LMPOP 5 a LEFT
        LMPOP 1 a BOGUS
        LMPOP 1 a LEFT COUNT 0
        LMPOP 1 a LEFT COUNT
        LMPOP 1 a LEFT COUNT 1 COUNT 1
        LMPOP 1 a LEFT BOGUS 1
        LMPOP 1 s LEFT
        LMPOP 9223372036854775807 a LEFT
        BLMPOP 0 2 nothing b LEFT
        BLMPOP 0.01 1 nothing LEFT
        BLMPOP -1 1 nothing LEFT
        BLMPOP abc 1 nothing LEFT
        BLPOP b 0
        BRPOP nothing b 0
        BLPOP nothing 0.01
        BLPOP s 0
        BLPOP nothing s 0
        BLPOP nothing -1
        BLPOP nothing abc
        BLPOP nothing inf
        BLPOP nothing nan
        BLPOP nothing 1e300
        BLPOP nothing 9223372036854775807
        BLPOP nothing ""
        BLMOVE nothing b LEFT LEFT 0.01
        BLMOVE s b LEFT LEFT 0.01
        BLMOVE b s LEFT LEFT 0.01
        BLMOVE b c LEFT BOGUS 0.01
        BLMOVE b c LEFT LEFT abc
        BRPOPLPUSH b c 0
        BRPOPLPUSH nothing c 0.01
        BRPOPLPUSH nothing c x
        "#,
    );
}

#[test]
fn waiting_clients_are_served_alike() {
    compare(
        r#"
        @2 & BLPOP k 0
        @3 & BLPOP k 0
        RPUSH k a
        LLEN k
        @2 ?
        @3 !
        RPUSH k b c
        @3 ?
        LRANGE k 0 -1
        DEL k
        # one push serves several
        @2 & BRPOP k 0
        @3 & BLPOP k 0
        RPUSH k a b c
        @2 ?
        @3 ?
        LRANGE k 0 -1
        DEL k
        # several keys: the one that became ready first
        @2 & BLPOP x y z 0
        MULTI
        RPUSH z 1
        RPUSH y 2
        EXEC
        @2 ?
        LRANGE y 0 -1
        LRANGE z 0 -1
        FLUSHALL
        # a chain of moves
        @2 & BLMOVE a b LEFT RIGHT 0
        @3 & BLPOP b 0
        RPUSH a 1
        @2 ?
        @3 ?
        KEYS *
        # inside MULTI nothing is served before EXEC ends
        @2 & BLPOP k 0
        MULTI
        RPUSH k a
        LLEN k
        LPOP k
        EXEC
        @2 !
        RPUSH k b
        @2 ?
        # a wrong type does not serve
        @2 & BLPOP k 0
        SET k x
        @2 !
        DEL k
        RPUSH k 1
        @2 ?
        # wrong type of the target
        SET s x
        @2 & BLMOVE k s LEFT LEFT 0
        RPUSH k 1
        @2 ?
        LRANGE k 0 -1
        DEL k
        # other ways for a list to appear
        @2 & BLPOP k 0
        RPUSH other 5
        RENAME other k
        @2 ?
        @2 & BLPOP k 0
        RPUSH other 6
        COPY other k
        @2 ?
        @2 & BLMPOP 0 2 q k RIGHT COUNT 2
        RPUSH k 1 2 3
        @2 ?
        LRANGE k 0 -1
        DEL k
        @2 & BRPOPLPUSH k k 0
        RPUSH k 1 2
        @2 ?
        LRANGE k 0 -1
        DEL k
        @2 SELECT 1
        @2 & BLPOP k 0
        RPUSH k 1
        @2 !
        SWAPDB 0 1
        @2 ?
        "#,
    );
}
