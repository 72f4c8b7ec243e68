//! Intsets: sorted integers of one width.

use super::Fault;

const HEADER: usize = 8;

/// The integers, which must rise.
pub(super) fn read(data: &[u8]) -> Result<Vec<i64>, Fault> {
    const DAMAGED: Fault = Fault::Damaged("an intset");
    let (header, body) = data.split_at_checked(HEADER).ok_or(DAMAGED)?;
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize
    };
    let (width, count) = (word(0), word(4));
    if !matches!(width, 2 | 4 | 8) || count.checked_mul(width) != Some(body.len()) {
        return Err(DAMAGED);
    }
    let ints: Vec<i64> = body
        .chunks_exact(width)
        .map(|bytes| {
            let mut word = [0; 8];
            word[8 - width..].copy_from_slice(bytes);
            i64::from_le_bytes(word) >> (64 - 8 * width)
        })
        .collect();
    if ints.is_sorted_by(|a, b| a < b) {
        Ok(ints)
    } else {
        Err(DAMAGED)
    }
}

/// An intset as narrow as its integers allow.
pub(super) fn write(ints: &[i64]) -> Vec<u8> {
    let fits = |min: i64, max: i64| ints.iter().all(|int| (min..=max).contains(int));
    let width = if fits(i16::MIN.into(), i16::MAX.into()) {
        2
    } else if fits(i32::MIN.into(), i32::MAX.into()) {
        4
    } else {
        8
    };
    let mut data = Vec::with_capacity(HEADER + ints.len() * width);
    data.extend((width as u32).to_le_bytes());
    data.extend((ints.len() as u32).to_le_bytes());
    for int in ints {
        data.extend_from_slice(&int.to_le_bytes()[..width]);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_width_come_back() {
        for ints in [
            vec![],
            vec![-32_768, 0, 32_767],
            vec![-2_147_483_648, 32_768],
            vec![i64::MIN, -1, i64::MAX],
        ] {
            let data = write(&ints);
            assert!(matches!(read(&data), Ok(back) if back == ints));
            for at in 0..data.len() {
                assert!(read(&data[..at]).is_err());
            }
        }
        assert!(read(&write(&[2, 1])).is_err());
    }
}
