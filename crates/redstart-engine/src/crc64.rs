//! The checksum of RDB files and of what DUMP and FUNCTION DUMP return: CRC-64 with the polynomial
//! of Jones, bits reflected, without an initial or a final inversion.

/// The reflected polynomial 0xad93d23594c935a9.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// `TABLES[n][byte]` is what a byte does to the checksum when `n` bytes follow it.
static TABLES: [[u64; 256]; 8] = tables();

const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// The checksum of what `crc` is the checksum of, followed by `data`; begin with 0.
pub(crate) fn update(mut crc: u64, data: &[u8]) -> u64 {
    let mut words = data.chunks_exact(8);
    for word in words.by_ref() {
        // Invariant of `chunks_exact`.
        let word: [u8; 8] = word.try_into().expect("eight bytes");
        let mixed = (crc ^ u64::from_le_bytes(word)).to_le_bytes();
        crc = 0;
        for (at, byte) in mixed.into_iter().enumerate() {
            crc ^= TABLES[7 - at][usize::from(byte)];
        }
    }
    for byte in words.remainder() {
        crc = (crc >> 8) ^ TABLES[0][usize::from(crc as u8 ^ byte)];
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::update;

    #[test]
    fn it_is_the_checksum_that_redis_states_for_nine_digits() {
        assert_eq!(update(0, b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn pieces_give_the_same_as_the_whole() {
        let data: Vec<u8> = (0..1000u32).map(|n| (n * 7 % 251) as u8).collect();
        let whole = update(0, &data);
        for cut in [0, 1, 7, 8, 9, 63, 500, 999, 1000] {
            assert_eq!(update(update(0, &data[..cut]), &data[cut..]), whole);
        }
    }
}
