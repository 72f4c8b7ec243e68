//! What an array is made of.

use crate::error::{Error, Result};

/// A record of fixed size.
///
/// The integers and byte arrays implement it, in big-endian order so that other languages can read them.
pub trait Record: Sized + Send + Sync {
    /// The name of the format, part of the array's key. Change it when the meaning of the bytes changes: arrays
    /// of different formats never share a key.
    const NAME: &'static str;

    /// The size in bytes; not 0.
    const SIZE: usize;

    /// Writes the record into a buffer of exactly [`SIZE`](Self::SIZE) bytes.
    fn to_bytes(&self, buffer: &mut [u8]);

    /// Reads a record from exactly [`SIZE`](Self::SIZE) bytes. All zeros is a record that was never written.
    ///
    /// # Errors
    ///
    /// Whatever the type finds wrong with the bytes.
    fn from_bytes(bytes: &[u8]) -> Result<Self>;
}

macro_rules! integer_records {
    ($($integer:ty),*) => { $(
        impl Record for $integer {
            const NAME: &'static str = stringify!($integer);
            const SIZE: usize = size_of::<$integer>();

            fn to_bytes(&self, buffer: &mut [u8]) {
                buffer.copy_from_slice(&self.to_be_bytes());
            }

            fn from_bytes(bytes: &[u8]) -> Result<Self> {
                bytes
                    .try_into()
                    .map(Self::from_be_bytes)
                    .map_err(|_| wrong_size())
            }
        }
    )* };
}

integer_records!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

impl<const N: usize> Record for [u8; N] {
    const NAME: &'static str = "bytes";
    const SIZE: usize = N;

    fn to_bytes(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(self);
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        bytes.try_into().map_err(|_| wrong_size())
    }
}

fn wrong_size() -> Error {
    Error::codec("the stored record does not have the size of its type")
}
