//! The bytes of one entry in the store.
//!
//! ```text
//! 0   3  magic: R, C, version of this format
//! 3   1  kind: 0 = known to be absent, 1 = a value
//! 4   8  fingerprint of type, schema and codec
//! 12  8  version of the row, big-endian, 0 if it has none (scripts compare these bytes)
//! 20  8  stamp: a random number, so that two fills of one value can be told apart
//! 28  8  group: a random number that entries of several fingerprints under one key share
//! 36  8  how long the load took, in microseconds
//! 44  8  how long the value is fresh, in milliseconds
//! 52  8  how long the store keeps it (fresh and then stale), in milliseconds
//! 60  2  the number of tags, then for each: length (2), name, identity of its shard (8), count of its shard (8)
//!        then the value
//! ```
//!
//! The time of expiry is not in it: the server's TTL of the key tells it, by the server's clock.
//!
//! # Several fingerprints under one key
//!
//! The first one stores its entry under the key itself. Another version of the program, in a rolling deploy, finds
//! an entry that it cannot read and stores its own beside it, with the same group. Such an entry is good only while
//! the entry under the key itself exists and has its group. So an invalidation, which removes that one, reaches all.

use std::{sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    codec::Codec,
    duration::{micros, millis},
    error::{Error, Result},
};

const MAGIC: [u8; 3] = *b"RC\x01";
const FINGERPRINT: std::ops::Range<usize> = 4..12;
/// Equal stamps mean the same fill.
pub(crate) const STAMP: std::ops::Range<usize> = 20..28;
const GROUP: std::ops::Range<usize> = 28..36;
const FIXED: usize = 62;

/// A random number that tells one fill from another.
pub(crate) type Stamp = [u8; STAMP.end - STAMP.start];

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

/// What stored bytes are.
#[derive(Debug)]
pub(crate) enum Opened<V> {
    /// An entry of the expected fingerprint; its value is `None` if the source is known to have none.
    Entry { meta: Meta, value: Option<V> },
    /// An entry of another fingerprint. Ours may be beside it.
    Other,
    /// Not an entry, or a damaged one.
    Foreign,
}

/// The stamp of an entry; zeros if the bytes are no entry.
pub(crate) fn stamp(bytes: &[u8]) -> Stamp {
    let stamp = bytes.get(STAMP).filter(|_| bytes.starts_with(&MAGIC));
    stamp
        .and_then(|stamp| stamp.try_into().ok())
        .unwrap_or_default()
}

/// The group of an entry.
pub(crate) fn group(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(GROUP).filter(|_| bytes.starts_with(&MAGIC))
}

pub(crate) fn seal<C: Codec, V: Serialize>(
    fingerprint: u64,
    meta: &Meta,
    value: Option<&V>,
) -> Result<Vec<u8>> {
    let encoded = value.map(|value| C::encode(value)).transpose()?;
    let length = FIXED + meta.tags.len() * 40 + encoded.as_ref().map_or(0, Vec::len);
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&MAGIC);
    bytes.push(u8::from(encoded.is_some()));
    bytes.extend_from_slice(&fingerprint.to_le_bytes());
    bytes.extend_from_slice(&meta.version.to_be_bytes());
    bytes.extend_from_slice(&crate::chance::random::<[u8; 16]>());
    bytes.extend_from_slice(&micros(meta.load_time).to_le_bytes());
    bytes.extend_from_slice(&millis(meta.fresh).to_le_bytes());
    bytes.extend_from_slice(&millis(meta.keep).to_le_bytes());
    let count = u16::try_from(meta.tags.len())
        .map_err(|_| Error::config("an entry must not have more than 65535 tags"))?;
    bytes.extend_from_slice(&count.to_le_bytes());
    for tag in &meta.tags {
        let length = u16::try_from(tag.tag.len())
            .map_err(|_| Error::config("a tag must not have more than 65535 bytes"))?;
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

pub(crate) fn open<C: Codec, V: DeserializeOwned>(fingerprint: u64, bytes: &[u8]) -> Opened<V> {
    if bytes.len() < FIXED || !bytes.starts_with(&MAGIC) {
        return Opened::Foreign;
    }
    if bytes[FINGERPRINT] != fingerprint.to_le_bytes() {
        return Opened::Other;
    }
    match parse::<C, V>(bytes) {
        Some((meta, value)) => Opened::Entry { meta, value },
        None => Opened::Foreign,
    }
}

fn parse<C: Codec, V: DeserializeOwned>(bytes: &[u8]) -> Option<(Meta, Option<V>)> {
    let kind = bytes[3];
    let mut rest = Reader(bytes.get(FINGERPRINT.end..)?);
    let version = u64::from_be_bytes(rest.take()?);
    rest.take::<16>()?;
    let load_time = Duration::from_micros(rest.number()?);
    let fresh = Duration::from_millis(rest.number()?);
    let keep = Duration::from_millis(rest.number()?);
    let tags = rest.tags()?;
    let value = match kind {
        0 => None,
        1 => Some(C::decode(rest.0).ok()?),
        _ => return None,
    };
    let meta = Meta {
        version,
        load_time,
        fresh,
        keep,
        tags,
    };
    Some((meta, value))
}

/// What the start of stored bytes tells of an entry of any fingerprint.
pub(crate) enum Head {
    Tags(Vec<TagStamp>),
    /// The tags are longer than these bytes.
    Longer,
    Foreign,
}

pub(crate) fn head(bytes: &[u8]) -> Head {
    if bytes.len() < FIXED || !bytes.starts_with(&MAGIC) {
        return Head::Foreign;
    }
    match Reader(&bytes[FIXED - 2..]).tags() {
        Some(tags) => Head::Tags(tags),
        None => Head::Longer,
    }
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

    fn tags(&mut self) -> Option<Vec<TagStamp>> {
        let count = u16::from_le_bytes(self.take()?);
        let mut tags = Vec::with_capacity(usize::from(count).min(64));
        for _ in 0..count {
            let length = usize::from(u16::from_le_bytes(self.take()?));
            let name = std::str::from_utf8(self.slice(length)?).ok()?;
            tags.push(TagStamp {
                tag: name.into(),
                shard_id: self.number()?,
                count: self.number()?,
            });
        }
        Some(tags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Postcard;
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
    fn an_entry_is_read_as_it_was_written_and_only_under_its_fingerprint() {
        let tags = vec![TagStamp {
            tag: "brand:ölé".into(),
            shard_id: u64::MAX,
            count: 3,
        }];
        let bytes = seal::<Postcard, _>(3, &meta(tags.clone()), Some(&"tea")).unwrap();
        let Opened::Entry { meta: read, value } = open::<Postcard, String>(3, &bytes) else {
            panic!("an entry is not read")
        };
        assert_eq!((read, value.as_deref()), (meta(tags), Some("tea")));
        assert!(matches!(open::<Postcard, String>(4, &bytes), Opened::Other));
        assert_ne!(stamp(&bytes), Stamp::default());
        assert_eq!(group(&bytes).map(<[u8]>::len), Some(8));

        let absent = seal::<Postcard, String>(3, &meta(Vec::new()), None).unwrap();
        let Opened::Entry { value, .. } = open::<Postcard, String>(3, &absent) else {
            panic!("a negative entry is not read")
        };
        assert_eq!(value, None);
        assert_eq!(&absent[12..20], 7u64.to_be_bytes());
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..120) {
            let _ = open::<Postcard, String>(1, &bytes);
            let _ = (stamp(&bytes), group(&bytes), head(&bytes));
            let mut whole = seal::<Postcard, _>(1, &meta(vec![TagStamp { tag: "t".into(), shard_id: 1, count: 2 }]), Some(&"value")).unwrap();
            whole.truncate(cut);
            let read = matches!(open::<Postcard, String>(1, &whole), Opened::Entry { .. });
            prop_assert!(!read || cut >= FIXED);
            // One tag: its length, one letter, identity and count.
            let with_tags = FIXED + 2 + 1 + 16;
            match head(&whole) {
                Head::Tags(tags) => prop_assert!(tags.len() == 1 && cut >= with_tags),
                Head::Longer => prop_assert!((FIXED..with_tags).contains(&cut)),
                Head::Foreign => prop_assert!(cut < FIXED),
            }
        }
    }
}
