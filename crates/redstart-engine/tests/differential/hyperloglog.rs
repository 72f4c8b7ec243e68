//! HyperLogLog: replies, and the bytes of the value.

use redstart_engine::Protocol;

use crate::{Pair, Server, compare};

#[test]
fn estimates_answer_alike() {
    compare(
        r#"
        PFADD h
        GET h
        PFADD h
        PFCOUNT h
        GET h
        PFADD h a b c
        GET h
        PFADD h a b c
        PFCOUNT h
        PFCOUNT h
        GET h
        PFADD h d
        GET h
        PFCOUNT nothing
        PFCOUNT nothing h nothing2
        PFADD h2 c d e f
        PFCOUNT h h2
        PFMERGE h3 h h2
        GET h3
        PFCOUNT h3
        PFMERGE h4
        GET h4
        PFMERGE h4 nothing
        PFCOUNT h4
        PFMERGE h h2
        GET h
        OBJECT ENCODING h
        SET s text
        PFADD s a
        PFCOUNT s
        PFCOUNT h s
        PFMERGE s h
        PFMERGE new s
        EXISTS new
        SET short HYLL
        PFADD short a
        SET bad "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x00"
        PFCOUNT bad
        PFADD bad a
        PFMERGE bad h
        SET bad2 "HYLL\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x7f\xff"
        PFCOUNT bad2
        SET bad3 "HYLL\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x7f\xff"
        PFCOUNT bad3
        SET long "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x7f\xff\x00"
        PFCOUNT long
        PFMERGE x long
        LPUSH l a
        PFADD l a
        PFCOUNT l
        PFMERGE l h
        PFADD "" ""
        PFCOUNT ""
        SET n 5
        PFADD n 1
        "#,
    );
}

#[test]
fn registers_grow_alike_from_sparse_to_dense() {
    let server = Server::start();
    let mut pair = Pair::new(&server, Protocol::Resp2);
    let mut next = 0u64;
    let mut add = |pair: &mut Pair, key: &str, count: usize| {
        let mut line = format!("PFADD {key}");
        for _ in 0..count {
            next = next
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            line.push_str(&format!(" e{}", next >> 40));
        }
        pair.line(&line);
    };
    for round in 0..400 {
        add(&mut pair, "a", 1 + round % 7);
        pair.line("GET a");
        if round % 5 == 0 {
            pair.line("PFCOUNT a");
            add(&mut pair, "b", 3);
            pair.line("PFCOUNT a b");
            pair.line("PFMERGE c a b");
            pair.line("GET c");
        }
    }
    for _ in 0..20 {
        add(&mut pair, "d", 2000);
        pair.line("PFCOUNT d");
        pair.line("PFMERGE b d");
        pair.line("PFCOUNT b");
    }
    pair.line("GET b");
    pair.line("GET d");
}
