//! How values become bytes: a codec, and a small envelope that says which one and which schema.
//!
//! Bytes of another schema or codec are not an error: during a rolling deploy both versions of a program
//! share one store. [`Envelope::open`] tells them apart, and the pattern decides (a cache calls it a miss).

mod field;
#[cfg(feature = "lz4")]
mod lz4;

use serde::{Serialize, de::DeserializeOwned};

#[cfg(feature = "lz4")]
pub use lz4::Lz4;

use crate::error::{Error, Result};

/// Turns values into bytes and back.
pub trait Codec: Send + Sync + 'static {
    /// Is part of the envelope, so that bytes of another codec are recognised. 16 to 127 are free for applications; the
    /// others are taken by this crate, from 128 on for compressed forms.
    const ID: u8;

    /// Encodes a value.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the value cannot be represented.
    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>>;

    /// Decodes a value.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the bytes are not a `T`.
    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T>;
}

/// [postcard]: small and fast, not self-describing. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Postcard;

impl Codec for Postcard {
    const ID: u8 = 1;

    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
        postcard::to_stdvec(value)
            .map_err(|e| Error::codec("the value cannot be encoded").with_source(e))
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
        postcard::from_bytes(bytes)
            .map_err(|e| Error::codec("the stored bytes cannot be decoded").with_source(e))
    }
}

/// JSON: readable by people and by every other language.
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl Codec for Json {
    const ID: u8 = 2;

    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
        serde_json::to_vec(value)
            .map_err(|e| Error::codec("the value cannot be encoded").with_source(e))
    }

    // serde_json's error message may quote the input, so it is not kept as a source.
    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
        serde_json::from_slice(bytes).map_err(|e| {
            Error::codec(format!(
                "the stored bytes cannot be decoded ({}{:?} at line {} column {})",
                field::field::<T>(bytes, &e),
                e.classify(),
                e.line(),
                e.column()
            ))
        })
    }
}

/// The header in front of every stored value: `R S`, the format's version, the codec, the schema.
///
/// ```
/// use redstart::codec::{Envelope, Json, Opened, Postcard};
///
/// let bytes = Envelope::seal::<Postcard, _>(3, &("tea", 7u32))?;
/// assert!(matches!(Envelope::open::<Postcard, (String, u32)>(3, &bytes)?, Opened::Value((_, 7))));
/// // Another schema, another codec or foreign bytes are told apart, not misread.
/// assert!(matches!(Envelope::open::<Postcard, (String, u32)>(4, &bytes)?, Opened::Foreign));
/// assert!(matches!(Envelope::open::<Json, (String, u32)>(3, &bytes)?, Opened::Foreign));
/// assert!(matches!(Envelope::open::<Json, (String, u32)>(3, b"{}")?, Opened::Foreign));
/// # Ok::<(), redstart::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The codec's [`ID`](Codec::ID).
    pub codec: u8,
    /// The application's version of the type.
    pub schema: u32,
}

/// What [`Envelope::open`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened<T> {
    /// A value of the expected schema and codec.
    Value(T),
    /// Bytes of another schema or codec, or no envelope at all.
    Foreign,
}

impl Envelope {
    /// The length of the header.
    const LEN: usize = 8;
    const MAGIC: [u8; 3] = [b'R', b'S', 1];

    /// The header's bytes.
    pub(crate) fn header(self) -> [u8; Self::LEN] {
        let [m, a, v] = Self::MAGIC;
        let [s0, s1, s2, s3] = self.schema.to_le_bytes();
        [m, a, v, self.codec, s0, s1, s2, s3]
    }

    /// Reads a header and returns it with the rest of the bytes; `None` if there is none.
    pub(crate) fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = bytes.split_at_checked(Self::LEN)?;
        if header[..3] != Self::MAGIC {
            return None;
        }
        let schema = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        Some((
            Self {
                codec: header[3],
                schema,
            },
            rest,
        ))
    }

    /// Encodes a value behind its header.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the value cannot be encoded.
    pub fn seal<C: Codec, T: Serialize + ?Sized>(schema: u32, value: &T) -> Result<Vec<u8>> {
        let mut bytes = Self {
            codec: C::ID,
            schema,
        }
        .header()
        .to_vec();
        bytes.extend_from_slice(&C::encode(value)?);
        Ok(bytes)
    }

    /// Decodes a value if its header is the expected one.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the header is the expected one and the rest is damaged.
    pub fn open<C: Codec, T: DeserializeOwned>(schema: u32, bytes: &[u8]) -> Result<Opened<T>> {
        match Self::split(bytes) {
            Some((envelope, rest))
                if envelope
                    == (Self {
                        codec: C::ID,
                        schema,
                    }) =>
            {
                C::decode(rest).map(Opened::Value)
            }
            _ => Ok(Opened::Foreign),
        }
    }
}
