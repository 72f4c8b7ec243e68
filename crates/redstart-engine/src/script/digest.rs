//! The SHA-1 of a script's text, which is its name.

/// SHA-1 of a script's text.
pub(crate) type Digest = [u8; 20];

pub(crate) fn digest(text: &[u8]) -> Digest {
    let mut sha = sha1_smol::Sha1::new();
    sha.update(text);
    sha.digest().bytes()
}

/// 40 hexadecimal digits as a digest.
pub(crate) fn parse_digest(text: &[u8]) -> Option<Digest> {
    let digits: &[u8; 40] = text.try_into().ok()?;
    let mut digest = [0; 20];
    let mut wrong = 0;
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let (high, low) = (VALUES[usize::from(pair[0])], VALUES[usize::from(pair[1])]);
        wrong |= high | low;
        *byte = high << 4 | low & 15;
    }
    (wrong < 16).then_some(digest)
}

/// What each byte stands for as a hexadecimal digit; more than 15 for one that is none.
const VALUES: [u8; 256] = {
    let mut values = [u8::MAX; 256];
    let mut digit = 0;
    while digit < 16 {
        values[b"0123456789abcdef"[digit] as usize] = digit as u8;
        values[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    values
};

pub(crate) fn hex(digest: &Digest) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(40);
    for byte in digest {
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_in_either_case() {
        let digest = digest(b"return 1");
        assert_eq!(hex(&digest), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert_eq!(
            parse_digest(hex(&digest).to_uppercase().as_bytes()),
            Some(digest)
        );
        assert_eq!(parse_digest(b"e0"), None);
        assert_eq!(parse_digest(&[b'g'; 40]), None);
    }
}
