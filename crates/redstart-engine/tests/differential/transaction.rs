//! Transactions.

use crate::compare;

#[test]
fn transactions_answer_alike() {
    compare(
        r#"
        MULTI
        SET a 1
        INCR a
        GET
        EXEC
        EXEC
        DISCARD
        MULTI
        MULTI
        SET a 1
        INCR a
        LPOP a
        EXEC
        WATCH a
        @2 SET a 5
        MULTI
        GET a
        EXEC
        WATCH a
        @2 GET a
        MULTI
        WATCH b
        UNWATCH
        GET a
        EXEC
        WATCH a
        MULTI
        SET a 1
        DISCARD
        @2 SET a 6
        MULTI
        GET a
        EXEC
        WATCH a b
        UNWATCH
        @2 SET a 7
        MULTI
        GET a
        EXEC
        WATCH nothing
        @2 SET nothing 1
        @2 DEL nothing
        MULTI
        PING
        EXEC
        WATCH nothing
        @2 DEL nothing
        MULTI
        PING
        EXEC
        WATCH a
        @2 FLUSHALL
        MULTI
        PING
        EXEC
        WATCH a
        @2 FLUSHALL
        MULTI
        PING
        EXEC
        SET a 1
        WATCH a
        @2 SWAPDB 0 1
        MULTI
        PING
        EXEC
        WATCH a
        SET a 2
        MULTI
        PING
        EXEC
        MULTI
        SELECT 3
        SET x 1
        EXEC
        GET x
        SELECT 0
        MULTI
        NOSUCH
        GET a
        EXEC
        MULTI
        EXEC
        WATCH
        MULTI
        BLPOP nothing 0
        BRPOPLPUSH nothing n2 0
        EXEC
        WATCH a
        @2 EXPIRE a 100
        MULTI
        PING
        EXEC
        "#,
    );
}
