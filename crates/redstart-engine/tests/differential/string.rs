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
        "#,
    );
}
