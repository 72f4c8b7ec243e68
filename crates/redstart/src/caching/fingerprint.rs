//! What tells the values of one type and schema from those of another.

use crate::codec::Codec;

/// 64 bits of the codec, the schema and the value type's name. Stored with every value: bytes under another
/// fingerprint are never decoded.
pub(crate) fn fingerprint<C: Codec>(schema: u32, value_type: &str) -> u64 {
    let text = format!("{} {schema} {value_type}", C::ID);
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Json, Postcard};

    #[test]
    fn codec_schema_and_type_each_change_the_fingerprint() {
        let one = fingerprint::<Postcard>(1, "u64");
        assert_eq!(one, fingerprint::<Postcard>(1, "u64"));
        assert_ne!(one, fingerprint::<Json>(1, "u64"));
        assert_ne!(one, fingerprint::<Postcard>(2, "u64"));
        assert_ne!(one, fingerprint::<Postcard>(1, "u32"));
    }
}
