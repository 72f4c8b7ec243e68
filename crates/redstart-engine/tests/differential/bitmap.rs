//! Bitmaps.

use crate::compare;

#[test]
fn bits_answer_alike() {
    compare(
        r#"
        SETBIT b 7 1
        SETBIT b 7 1
        GET b
        SETBIT b 100 0
        STRLEN b
        OBJECT ENCODING b
        SETBIT b 0 1
        GETBIT b 0
        GETBIT b 1
        GETBIT b 100000
        GETBIT nothing 5
        SETBIT b -1 1
        SETBIT b 4294967296 1
        SETBIT b x 1
        SETBIT b 1 2
        SETBIT b 1 x
        SETBIT b x x
        GETBIT b -1
        GETBIT b x
        SET n 12345
        GETBIT n 3
        SETBIT n 3 0
        GET n
        RPUSH l a
        SETBIT l 1 1
        GETBIT l 1
        BITCOUNT l
        BITPOS l 1
        BITFIELD l GET u8 0
        SET s "foobar\xff\x00\xf0"
        BITCOUNT s
        BITCOUNT s 0 0
        BITCOUNT s 1 1
        BITCOUNT s 0 -1
        BITCOUNT s -2 -1
        BITCOUNT s 5 3
        BITCOUNT s -1 -3
        BITCOUNT s 100 200
        BITCOUNT s -100 200
        BITCOUNT s -9223372036854775808 9223372036854775807
        BITCOUNT s 5 30 BIT
        BITCOUNT s 5 30 byte
        BITCOUNT s 0 0 BIT
        BITCOUNT s 1 1 BIT
        BITCOUNT s -8 -1 BIT
        BITCOUNT s -3 -1 BIT
        BITCOUNT s 7 8 BIT
        BITCOUNT s 5 30 NIBBLE
        BITCOUNT s 1
        BITCOUNT s 1 x
        BITCOUNT s x 1
        BITCOUNT nothing 1
        BITCOUNT nothing
        BITCOUNT nothing 0 x
        BITCOUNT s 0 1 BIT 5
        SET e ""
        BITCOUNT e
        BITCOUNT e 0 -1
        BITPOS e 0
        BITPOS e 1
        BITPOS e 0 0
        BITPOS e 0 0 -1
        SET p "\xff\xf0\x00"
        BITPOS p 0
        BITPOS p 1
        BITPOS p 1 2
        BITPOS p 0 0 0
        BITPOS p 0 0 1
        BITPOS p 1 0 -1 BIT
        BITPOS p 0 5 -1 BIT
        BITPOS p 0 0 7 BIT
        BITPOS p 0 0 12 BIT
        BITPOS p 0 -1
        BITPOS p 1 -1
        BITPOS p 1 -2 -1
        BITPOS p 0 5 1
        BITPOS p 1 13 20 BIT
        BITPOS p 0 13 20 BIT
        BITPOS p 2
        BITPOS p x
        BITPOS p 1 x
        BITPOS p 1 0 x
        BITPOS p 1 0 1 X
        BITPOS nothing 0
        BITPOS nothing 1
        BITPOS nothing 0 x
        SET f "\xff\xff\xff"
        BITPOS f 0
        BITPOS f 0 0
        BITPOS f 0 0 -1
        BITPOS f 0 2
        BITPOS f 0 1 1
        BITPOS f 0 3
        BITPOS f 0 0 -1 BIT
        BITOP AND d s p
        GET d
        BITOP OR d s p nothing
        GET d
        BITOP XOR d s p f
        GET d
        BITOP NOT d s
        GET d
        BITOP NOT d s p
        BITOP NAND d s
        BITOP AND d nothing nothing2
        EXISTS d
        BITOP AND d nothing s
        GET d
        BITOP AND d l s
        BITOP OR d n s
        GET d
        OBJECT ENCODING d
        BITOP AND d
        "#,
    );
}

#[test]
fn bitfields_answer_alike() {
    compare(
        r#"
        BITFIELD f SET u8 0 255 GET u8 0 GET i8 0 GET u4 4
        GET f
        BITFIELD f INCRBY u8 0 1
        BITFIELD f OVERFLOW SAT INCRBY u8 0 300 OVERFLOW FAIL INCRBY u8 0 1 OVERFLOW WRAP INCRBY u8 0 1
        BITFIELD f OVERFLOW SAT INCRBY i8 8 -200 INCRBY i8 8 -1 OVERFLOW FAIL INCRBY i8 8 -1 OVERFLOW WRAP INCRBY i8 8 -1
        BITFIELD f SET i5 100 -5 GET i5 100 GET u5 100
        GET f
        BITFIELD f SET u8 #1 200 GET u8 #1 GET u8 8
        BITFIELD f SET i64 0 -1 GET i64 0 INCRBY i64 0 1
        BITFIELD f SET i64 0 9223372036854775807 INCRBY i64 0 1
        BITFIELD f SET i64 0 9223372036854775807
        BITFIELD f OVERFLOW SAT INCRBY i64 0 1
        BITFIELD f OVERFLOW FAIL INCRBY i64 0 1
        BITFIELD f SET i64 0 -9223372036854775808
        BITFIELD f OVERFLOW SAT INCRBY i64 0 -1
        BITFIELD f OVERFLOW FAIL INCRBY i64 0 -9223372036854775808
        BITFIELD f OVERFLOW WRAP INCRBY i64 0 -9223372036854775808
        BITFIELD f SET u63 1 9223372036854775807 INCRBY u63 1 1
        BITFIELD f SET u63 1 -1 GET u63 1
        BITFIELD f OVERFLOW SAT SET u63 1 -1 GET u63 1
        BITFIELD f OVERFLOW FAIL SET u8 1 256 GET u8 1
        BITFIELD f OVERFLOW SAT SET u8 1 256 GET u8 1
        BITFIELD f OVERFLOW SAT SET u8 1 -1 GET u8 1
        BITFIELD f OVERFLOW SAT SET i8 1 -300 GET i8 1
        BITFIELD f OVERFLOW SAT INCRBY u8 1 -9223372036854775808
        BITFIELD f SET i1 0 1 GET i1 0 INCRBY i1 0 1 INCRBY i1 0 1
        BITFIELD f SET u1 0 5 GET u1 0
        BITFIELD f GET u64 0
        BITFIELD f GET i65 0
        BITFIELD f GET u0 0
        BITFIELD f GET x8 0
        BITFIELD f GET u 0
        BITFIELD f GET u08 0
        BITFIELD f GET u8
        BITFIELD f GET u8 -1
        BITFIELD f GET u8 x
        BITFIELD f GET u8 #x
        BITFIELD f GET u8 #9999999999
        BITFIELD f GET u8 99999999999
        BITFIELD f SET u8 0 x
        BITFIELD f SET u8 0
        BITFIELD f OVERFLOW
        BITFIELD f OVERFLOW NO
        BITFIELD f OVERFLOW WRAP
        BITFIELD f NOPE
        BITFIELD f
        BITFIELD nothing GET u8 0 GET i8 100
        EXISTS nothing
        BITFIELD grown GET u8 0 OVERFLOW FAIL INCRBY u2 30 9
        GET grown
        BITFIELD_RO f GET u8 0 GET i16 4
        BITFIELD_RO f SET u8 0 1
        BITFIELD_RO f OVERFLOW WRAP GET u8 0
        BITFIELD_RO nothing GET u8 0
        GET f
        SET n 123
        BITFIELD n GET u8 0 INCRBY u8 0 1
        GET n
        "#,
    );
}
