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
        EXEC
        WATCH a
        @2 SET a 5
        MULTI
        GET a
        EXEC
        "#,
    );
}
