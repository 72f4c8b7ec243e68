//! Cluster hash slots.

/// A key's slot among Cluster's 16384: CRC-16 of the part in `{…}`, if there is one.
pub(crate) fn of(key: &[u8]) -> u16 {
    let hashed = match memchr::memchr(b'{', key) {
        Some(open) => match memchr::memchr(b'}', &key[open + 1..]) {
            Some(len) if len > 0 => &key[open + 1..open + 1 + len],
            _ => key,
        },
        None => key,
    };
    crc16(hashed) & 0x3FFF
}

/// CRC-16/XMODEM.
fn crc16(data: &[u8]) -> u16 {
    let mut crc = 0u16;
    for &byte in data {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 != 0 {
                (crc << 1) ^ 0x1021
            } else {
                crc << 1
            };
        }
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_cluster_keyslot() {
        assert_eq!(of(b"somekey"), 11058);
        assert_eq!(of(b"foo{hash_tag}"), 2515);
        assert_eq!(of(b"{user1000}.following"), of(b"{user1000}.followers"));
        assert_ne!(of(b"{}a"), of(b"{}b"));
    }
}
