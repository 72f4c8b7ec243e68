//! What stands in the store for one key.
//!
//! ```text
//! 0   8  the common envelope: magic, codec, schema
//! 8   1  kind: 0 = known to be absent, 1 = a value
//! 9   8  the row's version, big-endian, 0 if it has none (scripts compare these bytes)
//! 17  8  a random number, so that two fills of one value can be told apart
//! 25  8  how long the load took, in microseconds
//! 33  8  how long the value is fresh, in milliseconds
//! 41  8  how long the store keeps it (fresh and then stale), in milliseconds
//! 49  2  the number of tags, then for each: length (2), name, shard's identity (8), shard's count (8)
//!        then the value
//! ```
//!
//! The moment of expiry is not in it: the server's own TTL of the key says it, by the server's own clock.

use std::{sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    codec::{Codec, Envelope},
    error::{Error, Result},
};

/// Bytes 8 to 24: kind, version and random number. Equal stamps mean the same fill.
pub(crate) const STAMP: std::ops::Range<usize> = 8..25;
const FIXED: usize = 51;

/// What an entry's tag looked like before the value was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TagStamp {
    pub(crate) tag: Arc<str>,
    pub(crate) shard_id: u64,
    pub(crate) count: u64,
}

/// An entry without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) version: u64,
    pub(crate) load_time: Duration,
    pub(crate) fresh: Duration,
    pub(crate) keep: Duration,
    pub(crate) tags: Vec<TagStamp>,
}

/// An entry as it was read: its value is `None` if the source is known to have none.
#[derive(Debug)]
pub(crate) struct Entry<V> {
    pub(crate) meta: Meta,
    pub(crate) value: Option<V>,
}

/// The stamp of some stored bytes, whatever they are; empty if there are too few.
pub(crate) fn stamp(bytes: &[u8]) -> &[u8] {
    bytes
        .get(STAMP.start..bytes.len().min(STAMP.end))
        .unwrap_or_default()
}

pub(crate) fn seal<C: Codec, V: Serialize>(
    schema: u32,
    meta: &Meta,
    value: Option<&V>,
) -> Result<Vec<u8>> {
    let encoded = value.map(|value| C::encode(value)).transpose()?;
    let mut bytes =
        Vec::with_capacity(FIXED + meta.tags.len() * 40 + encoded.as_ref().map_or(0, Vec::len));
    bytes.extend_from_slice(
        &Envelope {
            codec: C::ID,
            schema,
        }
        .header(),
    );
    bytes.push(u8::from(encoded.is_some()));
    bytes.extend_from_slice(&meta.version.to_be_bytes());
    bytes.extend_from_slice(&rand::random::<u64>().to_le_bytes());
    let micros = u64::try_from(meta.load_time.as_micros()).unwrap_or(u64::MAX);
    bytes.extend_from_slice(&micros.to_le_bytes());
    bytes.extend_from_slice(&millis(meta.fresh).to_le_bytes());
    bytes.extend_from_slice(&millis(meta.keep).to_le_bytes());
    let count = u16::try_from(meta.tags.len())
        .map_err(|_| Error::config("an entry has at most 65535 tags"))?;
    bytes.extend_from_slice(&count.to_le_bytes());
    for tag in &meta.tags {
        let length = u16::try_from(tag.tag.len())
            .map_err(|_| Error::config("a tag has at most 65535 bytes"))?;
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(tag.tag.as_bytes());
        bytes.extend_from_slice(&tag.shard_id.to_le_bytes());
        bytes.extend_from_slice(&tag.count.to_le_bytes());
    }
    if let Some(encoded) = encoded {
        bytes.extend_from_slice(&encoded);
    }
    Ok(bytes)
}

/// Reads an entry. `None` for bytes of another schema or codec, for anything that is no entry, and for
/// damaged ones: to a cache all of them are a miss.
pub(crate) fn open<C: Codec, V: DeserializeOwned>(schema: u32, bytes: &[u8]) -> Option<Entry<V>> {
    let (envelope, rest) = Envelope::split(bytes)?;
    if envelope.codec != C::ID || envelope.schema != schema {
        return None;
    }
    let mut rest = Reader(rest);
    let [kind] = rest.take::<1>()?;
    let version = u64::from_be_bytes(rest.take()?);
    rest.take::<8>()?;
    let load_time = Duration::from_micros(rest.number()?);
    let fresh = Duration::from_millis(rest.number()?);
    let keep = Duration::from_millis(rest.number()?);
    let count = u16::from_le_bytes(rest.take()?);
    let mut tags = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let length = usize::from(u16::from_le_bytes(rest.take()?));
        let name = std::str::from_utf8(rest.slice(length)?).ok()?;
        tags.push(TagStamp {
            tag: name.into(),
            shard_id: rest.number()?,
            count: rest.number()?,
        });
    }
    let value = match kind {
        0 => None,
        1 => Some(C::decode(rest.0).ok()?),
        _ => return None,
    };
    Some(Entry {
        meta: Meta {
            version,
            load_time,
            fresh,
            keep,
            tags,
        },
        value,
    })
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.slice(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Json, Postcard};
    use proptest::prelude::*;

    fn meta(tags: Vec<TagStamp>) -> Meta {
        Meta {
            version: 7,
            load_time: Duration::from_micros(1500),
            fresh: Duration::from_secs(60),
            keep: Duration::from_secs(90),
            tags,
        }
    }

    #[test]
    fn an_entry_comes_back_as_it_was_and_another_schema_or_codec_is_a_miss() {
        let tags = vec![TagStamp {
            tag: "brand:ölé".into(),
            shard_id: u64::MAX,
            count: 3,
        }];
        let bytes = seal::<Postcard, _>(3, &meta(tags.clone()), Some(&"tea")).unwrap();
        let entry = open::<Postcard, String>(3, &bytes).unwrap();
        assert_eq!(entry.meta, meta(tags));
        assert_eq!(entry.value.as_deref(), Some("tea"));
        assert!(open::<Postcard, String>(4, &bytes).is_none());
        assert!(open::<Json, String>(3, &bytes).is_none());

        let absent = seal::<Postcard, String>(3, &meta(Vec::new()), None).unwrap();
        assert_eq!(
            open::<Postcard, String>(3, &absent).unwrap().value,
            None,
            "a negative entry is no value"
        );
        assert_eq!(&absent[STAMP][1..9], 7u64.to_be_bytes());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..120) {
            let _ = open::<Postcard, String>(1, &bytes);
            let _ = stamp(&bytes);
            let mut whole = seal::<Postcard, _>(1, &meta(vec![TagStamp { tag: "t".into(), shard_id: 1, count: 2 }]), Some(&"value")).unwrap();
            whole.truncate(cut);
            prop_assert!(open::<Postcard, String>(1, &whole).is_none() || cut >= FIXED);
        }
    }
}
