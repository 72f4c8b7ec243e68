//! Hashes.

use crate::compare;

#[test]
fn hashes_answer_alike() {
    compare(
        r#"
        HSET h a 1 b 2
        HSET h a 3 c 4
        HSET h a
        HSET h a 1 b
        HMSET h d 5 e 6
        HMSET h d
        HMSET h d 1 e
        HGET h a
        HGET h x
        HGET nothing x
        HMGET h a x b
        HMGET nothing a b
        HGETALL h
        HGETALL nothing
        HKEYS h
        HVALS h
        HKEYS nothing
        HVALS nothing
        HLEN h
        HLEN nothing
        HSTRLEN h a
        HSTRLEN h x
        HSTRLEN nothing x
        HEXISTS h a
        HEXISTS h x
        HEXISTS nothing x
        HSETNX h a 9
        HSETNX h new 9
        HSETNX fresh f v
        HDEL h a x b
        HDEL h x
        HDEL nothing x
        HGETALL h
        HDEL h c d e new
        EXISTS h
        HINCRBY h n 5
        HINCRBY h n -10
        HINCRBY h n abc
        HINCRBY h n 9223372036854775807
        HINCRBY h m 9223372036854775807
        HINCRBY h m 1
        HSET h s abc f 10.5
        HINCRBY h s 1
        HINCRBY h f 1
        HINCRBYFLOAT h f 0.1
        HINCRBYFLOAT h f -5.2e1
        HINCRBYFLOAT h s 1
        HINCRBYFLOAT h f abc
        HINCRBYFLOAT h f inf
        HINCRBYFLOAT h f nan
        HINCRBYFLOAT h z 0.1
        HINCRBYFLOAT h z 0.2
        HSET h i inf
        HINCRBYFLOAT h i 1
        HSET h big 1e4932
        HINCRBYFLOAT h big 1e4932
        HGETALL h
        HRANDFIELD nothing
        HRANDFIELD nothing 5
        HRANDFIELD nothing 5 WITHVALUES
        HSET one f v
        HRANDFIELD one
        HRANDFIELD one 5
        HRANDFIELD one -3
        HRANDFIELD one 5 WITHVALUES
        HRANDFIELD one -2 WITHVALUES
        HRANDFIELD one 0
        HRANDFIELD one 0 WITHVALUES
        HRANDFIELD one abc
        HRANDFIELD one 1 BOGUS
        HRANDFIELD one 1 WITHVALUES x
        HRANDFIELD one -9223372036854775808
        HRANDFIELD one 9223372036854775807 WITHVALUES
        ~ HRANDFIELD h 100
        HSCAN one 0
        HSCAN h 0
        HSCAN h 0 MATCH *f*
        HSCAN h 0 COUNT 1
        HSCAN h 5
        HSCAN h abc
        HSCAN nothing 0
        HSCAN nothing 0 BOGUS
        HSCAN h 0 TYPE x
        HSCAN h 0 COUNT 0
        SET str x
        HSET str a 1
        HSETNX str a 1
        HGET str a
        HMGET str a
        HGETALL str
        HKEYS str
        HDEL str a
        HLEN str
        HINCRBY str a 1
        HINCRBYFLOAT str a 1
        HRANDFIELD str
        HSCAN str 0
        OBJECT ENCODING h
        HSET long f {x*64}
        OBJECT ENCODING long
        HSET long f {x*65}
        OBJECT ENCODING long
        HSETNX long2 {f*65} x
        OBJECT ENCODING long2
        HSET "" "" ""
        HGETALL ""
        "#,
    );
}

#[test]
fn large_hashes_become_tables_alike() {
    let mut script = String::new();
    for field in 0..512 {
        script.push_str(&format!("HSET h field{field} {field}\n"));
    }
    script.push_str("OBJECT ENCODING h\nHGETALL h\nHSET h more 1\nOBJECT ENCODING h\nHLEN h\n");
    script
        .push_str("~ HKEYS h\n~ HVALS h\nHDEL h more\nOBJECT ENCODING h\n~ HSCAN h 0 COUNT 1000\n");
    script.push_str("~ HGETALL h\n~ HRANDFIELD h 1000\n");
    compare(&script);
}
