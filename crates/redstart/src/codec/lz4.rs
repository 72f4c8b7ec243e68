//! Compression above a size.

use std::marker::PhantomData;

use serde::{Serialize, de::DeserializeOwned};

use super::{Codec, Postcard};
use crate::error::{Error, Result};

/// Set in the [`ID`](Codec::ID) of a codec that compresses.
const COMPRESSED: u8 = 0x80;

/// The first byte: what follows is what the inner codec wrote.
const PLAIN: u8 = 0;
/// The first byte: what follows is the length of that, in 4 bytes, little-endian, and then an LZ4 block.
const BLOCK: u8 = 1;

/// An LZ4 block is at least this fraction of what it stands for: each byte of a length adds 255.
const MAX_RATIO: usize = 255;

/// Another codec, whose output is compressed by LZ4 if it is longer than `ABOVE` bytes and becomes shorter by it.
///
/// ```
/// use redstart::codec::{Codec, Json, Lz4, Postcard};
///
/// type Texts = Lz4<Postcard, 256>;
/// let text = "anvils, rockets and more anvils; ".repeat(100);
/// let bytes = Texts::encode(&text)?;
/// assert!(bytes.len() < text.len() / 10);
/// assert_eq!(Texts::decode::<String>(&bytes)?, text);
/// // One byte more for what is short.
/// assert_eq!(Lz4::<Json>::encode(&7)?.len(), 2);
/// # Ok::<(), redstart::Error>(())
/// ```
///
/// A cache takes it as its codec: `Cache::builder(…).codec(Lz4::<Postcard>::new())`.
///
/// # Promises
///
/// - The bytes of a codec with and without compression are told apart, as those of two codecs are. During a deploy in
///   which some processes compress and others do not, a cache has the entries of both side by side.
/// - Bytes that are not what this codec wrote are an error. However they are made, decompression allocates at most `MAX`
///   bytes, and at most 255 times the length of the stored bytes.
///
/// # Limits
///
/// What is longer than `MAX` bytes is stored as it is. `ABOVE` and `MAX` are not part of the stored bytes: both can be
/// changed at any time, but with a smaller `MAX` compressed values that are longer cannot be read any more, and a cache
/// loads them again.
#[derive(Clone, Copy, Debug)]
pub struct Lz4<C = Postcard, const ABOVE: usize = 1024, const MAX: usize = { 64 << 20 }>(
    PhantomData<C>,
);

impl<C, const ABOVE: usize, const MAX: usize> Lz4<C, ABOVE, MAX> {
    /// The codec, for a builder.
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<C, const ABOVE: usize, const MAX: usize> Default for Lz4<C, ABOVE, MAX> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Codec, const ABOVE: usize, const MAX: usize> Codec for Lz4<C, ABOVE, MAX> {
    const ID: u8 = {
        assert!(
            C::ID & COMPRESSED == 0,
            "a codec that compresses cannot be compressed again"
        );
        assert!(MAX as u64 <= u32::MAX as u64, "MAX must be below 4 GiB");
        C::ID | COMPRESSED
    };

    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
        let plain = C::encode(value)?;
        if plain.len() > ABOVE
            && plain.len() <= MAX
            && let Ok(length) = u32::try_from(plain.len())
        {
            let block = lz4_flex::block::compress(&plain);
            if block.len() + 4 < plain.len() {
                let mut bytes = Vec::with_capacity(5 + block.len());
                bytes.push(BLOCK);
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes.extend_from_slice(&block);
                return Ok(bytes);
            }
        }
        let mut bytes = Vec::with_capacity(1 + plain.len());
        bytes.push(PLAIN);
        bytes.extend_from_slice(&plain);
        Ok(bytes)
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
        match bytes.split_first() {
            Some((&PLAIN, plain)) => C::decode(plain),
            Some((&BLOCK, rest)) => C::decode(&decompress(rest, MAX)?),
            _ => Err(damaged()),
        }
    }
}

/// What a length and a block stand for, if that is at most `max` bytes.
fn decompress(rest: &[u8], max: usize) -> Result<Vec<u8>> {
    let (length, block) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
    // The length is only a claim: nothing is allocated that the block cannot fill.
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| damaged())?;
    if length > max || length > block.len().saturating_mul(MAX_RATIO) {
        return Err(damaged());
    }
    let mut plain = vec![0; length];
    match lz4_flex::block::decompress_into(block, &mut plain) {
        Ok(written) if written == length => Ok(plain),
        _ => Err(damaged()),
    }
}

fn damaged() -> Error {
    Error::codec("the stored bytes cannot be decompressed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Json;
    use proptest::prelude::*;

    type Small = Lz4<Postcard, 64, 4096>;

    #[test]
    fn what_is_short_or_does_not_shrink_is_stored_as_it_is() {
        let short = "x".repeat(60);
        assert_eq!(Small::encode(&short).unwrap()[0], PLAIN);
        let long = "x".repeat(600);
        let bytes = Small::encode(&long).unwrap();
        assert_eq!(bytes[0], BLOCK);
        assert!(bytes.len() < 40);
        let noise: Vec<u8> = (0..1000).map(|_| crate::chance::random()).collect();
        let bytes = Small::encode(&noise).unwrap();
        assert_eq!(bytes[0], PLAIN);
        assert_eq!(bytes.len(), 1 + Postcard::encode(&noise).unwrap().len());
        // Beyond what may be read back it is not compressed.
        let huge = "x".repeat(5000);
        assert_eq!(Small::encode(&huge).unwrap()[0], PLAIN);
        for text in [short, long, huge] {
            assert_eq!(
                Small::decode::<String>(&Small::encode(&text).unwrap()).unwrap(),
                text
            );
        }
    }

    #[test]
    fn codecs_with_and_without_compression_have_different_ids() {
        let ids = [Postcard::ID, Json::ID, Lz4::<Postcard>::ID, Lz4::<Json>::ID];
        let distinct: std::collections::HashSet<u8> = ids.into_iter().collect();
        assert_eq!(distinct.len(), ids.len());
        // The limits are not part of the format.
        assert_eq!(Lz4::<Postcard, 1>::ID, Lz4::<Postcard, 9000>::ID);
    }

    #[test]
    fn a_claimed_length_allocates_nothing_that_the_bytes_cannot_fill() {
        let claim = |length: u32, block: &[u8]| {
            let mut bytes = vec![BLOCK];
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(block);
            Lz4::<Postcard, 64, { 1 << 30 }>::decode::<Vec<u8>>(&bytes)
        };
        // 4 GiB, a gibibyte and a mebibyte out of a few bytes.
        for length in [u32::MAX, 1 << 30, 1 << 20] {
            assert!(claim(length, &[0xff; 20]).unwrap_err().is_codec());
        }
        // An honest bomb: it is as long as it says, and longer than is allowed.
        let bomb = lz4_flex::block::compress(&vec![0; 1 << 20]);
        let mut bytes = vec![BLOCK];
        bytes.extend_from_slice(&(1u32 << 20).to_le_bytes());
        bytes.extend_from_slice(&bomb);
        assert!(Small::decode::<Vec<u8>>(&bytes).unwrap_err().is_codec());
        assert_eq!(decompress(&bytes[1..], 1 << 20).unwrap().len(), 1 << 20);
        assert!(decompress(&bytes[1..], (1 << 20) - 1).is_err());
        // It is neither shorter nor longer than it says.
        for wrong in [(1u32 << 20) - 1, (1 << 20) + 1] {
            bytes[1..5].copy_from_slice(&wrong.to_le_bytes());
            assert!(decompress(&bytes[1..], 1 << 21).is_err());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_value_comes_back(words in proptest::collection::vec("[a-d]{0,12}", 0..200)) {
            let bytes = Small::encode(&words).unwrap();
            prop_assert_eq!(Small::decode::<Vec<String>>(&bytes).unwrap(), words);
        }

        #[test]
        fn no_bytes_cause_a_panic_or_a_large_allocation(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..200, flip in 0usize..200) {
            let _ = Small::decode::<Vec<String>>(&bytes);
            let mut block = vec![BLOCK];
            block.extend_from_slice(&bytes);
            let _ = Small::decode::<Vec<String>>(&block);
            let mut whole = Small::encode(&vec!["anvil"; 100]).unwrap();
            let at = flip % whole.len();
            whole[at] ^= 1 << (flip % 8);
            whole.truncate(cut);
            if let Ok(plain) = decompress(whole.get(1..).unwrap_or_default(), 4096) {
                prop_assert!(plain.len() <= 4096);
            }
            let _ = Small::decode::<Vec<String>>(&whole);
        }
    }
}
