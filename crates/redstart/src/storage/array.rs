//! An array of fixed-size records in one string: random access without an object per element.
//!
//! # Promise
//!
//! - A record is read and written whole; two writers of different records do not disturb each other.
//! - An index at or beyond the capacity is an error before the call: one stray index cannot make the server
//!   fill memory up to it.
//! - A gap — a record that was never written below one that was — is zeros, and `T::from_bytes` decides what
//!   that means.
//!
//! # Keys and cost
//!
//! `<ns>:array:{<name>}`, `capacity × size` bytes at most. Each call is one round trip: GETRANGE, SETRANGE or
//! STRLEN. While the store is down every call fails.
//!
//! Operations: `array.get`, `array.set`, `array.range`, `array.len`.

use std::{marker::PhantomData, ops::Range, time::Duration};

use crate::{
    error::{Error, Result},
    key::{Keys, Layout},
    observe,
    script::Script,
    store::Store,
};

static SET: Script = Script::new("array.set", include_str!("array/set.lua"));

/// A record of fixed size.
///
/// The integers and byte arrays implement it, in big-endian order so that other languages can read it.
pub trait Record: Sized + Send + Sync {
    /// Its size in bytes; not 0.
    const SIZE: usize;

    /// Writes it into a buffer of exactly [`SIZE`](Self::SIZE) bytes.
    fn to_bytes(&self, buffer: &mut [u8]);

    /// Reads it from exactly [`SIZE`](Self::SIZE) bytes. All zeros is a record that was never written.
    ///
    /// # Errors
    ///
    /// What the type finds wrong with the bytes.
    fn from_bytes(bytes: &[u8]) -> Result<Self>;
}

macro_rules! integer_records {
    ($($integer:ty),*) => { $(
        impl Record for $integer {
            const SIZE: usize = size_of::<$integer>();

            fn to_bytes(&self, buffer: &mut [u8]) {
                buffer.copy_from_slice(&self.to_be_bytes());
            }

            fn from_bytes(bytes: &[u8]) -> Result<Self> {
                bytes
                    .try_into()
                    .map(Self::from_be_bytes)
                    .map_err(|_| Error::codec("a record has another size than its type"))
            }
        }
    )* };
}

integer_records!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

impl<const N: usize> Record for [u8; N] {
    const SIZE: usize = N;

    fn to_bytes(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(self);
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        bytes
            .try_into()
            .map_err(|_| Error::codec("a record has another size than its type"))
    }
}

/// An array of `T` in one key. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, storage::FixedArray};
/// let store = Store::connect("memory://").await?;
/// let seats = FixedArray::<u32>::new(&store, "theatre", "stalls", 500)?;
///
/// seats.set(7, &4711).await?;
/// assert_eq!(seats.get(7).await?, Some(4711));
/// assert_eq!(seats.get(3).await?, Some(0)); // a gap
/// assert_eq!(seats.get(8).await?, None);    // past the end
/// assert_eq!(seats.range(6..8).await?, [0, 4711]);
/// assert!(seats.set(500, &1).await.unwrap_err().is_config());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FixedArray<T> {
    store: Store,
    keys: Keys,
    name: String,
    capacity: u32,
    ttl: Option<Duration>,
    record: PhantomData<fn() -> T>,
}

impl<T: Record> FixedArray<T> {
    /// The most bytes an array may take: what a string holds.
    pub const MAX_BYTES: u64 = 512 * 1024 * 1024;

    /// The array `name` of at most `capacity` records.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad name, a capacity of 0, records of size 0, or more than
    /// [`MAX_BYTES`](Self::MAX_BYTES) in all.
    pub fn new(store: &Store, namespace: &str, name: &str, capacity: u32) -> Result<Self> {
        let keys = Keys::new(namespace, "array")?;
        keys.entity(name)?;
        if capacity == 0 || T::SIZE == 0 {
            return Err(Error::config(
                "an array has at least one record of at least one byte",
            ));
        }
        if u64::from(capacity) * T::SIZE as u64 > Self::MAX_BYTES {
            return Err(Error::config(format!(
                "{capacity} records of {} bytes are more than the {} bytes of a string",
                T::SIZE,
                Self::MAX_BYTES
            )));
        }
        Ok(Self {
            store: store.clone(),
            keys,
            name: name.to_owned(),
            capacity,
            ttl: None,
            record: PhantomData,
        })
    }

    /// Lets the array expire this long after its last write.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for less than a millisecond.
    pub fn ttl(mut self, ttl: Duration) -> Result<Self> {
        if ttl.as_millis() == 0 {
            return Err(Error::config("a TTL is at least a millisecond"));
        }
        self.ttl = Some(ttl);
        Ok(self)
    }

    /// The same array under a key that the application already has.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.keys = self.keys.layout(layout);
        self
    }

    /// A record; `None` past the last one that was written.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an index at or beyond the capacity; otherwise those of the
    /// [store](Store::query) and of [`Record::from_bytes`].
    pub async fn get(&self, index: u32) -> Result<Option<T>> {
        let end = self.check(index)? + 1;
        Ok(self.read(index..end, "array.get").await?.pop())
    }

    /// The records of a range, as far as they were written.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get); [`is_config`](Error::is_config) too if the range ends before it begins.
    pub async fn range(&self, range: Range<u32>) -> Result<Vec<T>> {
        if range.start > range.end || range.end > self.capacity {
            return Err(Error::config(format!(
                "the range {range:?} does not fit an array of {}",
                self.capacity
            )));
        }
        if range.is_empty() {
            return Ok(Vec::new());
        }
        self.read(range, "array.range").await
    }

    async fn read(&self, range: Range<u32>, operation: &'static str) -> Result<Vec<T>> {
        let entity = self.keys.entity(&self.name)?;
        observe::operation(operation, self.keys.namespace(), async {
            let mut cmd = redis::cmd("GETRANGE");
            cmd.arg(entity.key())
                .arg(offset::<T>(range.start))
                .arg(offset::<T>(range.end) - 1);
            let bytes: Vec<u8> = self.store.query(&cmd).await?;
            if !bytes.len().is_multiple_of(T::SIZE) {
                return Err(Error::codec(
                    "the array's length is no multiple of its record's size",
                ));
            }
            bytes.chunks_exact(T::SIZE).map(T::from_bytes).collect()
        })
        .await
    }

    /// Writes a record.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an index at or beyond the capacity, and then nothing is written;
    /// otherwise those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the record is the old one or the new one.
    pub async fn set(&self, index: u32, record: &T) -> Result<()> {
        self.check(index)?;
        let entity = self.keys.entity(&self.name)?;
        let mut bytes = vec![0; T::SIZE];
        record.to_bytes(&mut bytes);
        observe::operation("array.set", self.keys.namespace(), async {
            let ttl = self.ttl.map_or(0, |ttl| {
                u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX >> 12)
            });
            let call = SET
                .on(&entity)
                .key()
                .arg(offset::<T>(index))
                .arg(bytes)
                .arg(ttl);
            call.idempotent().run(&self.store).await
        })
        .await
    }

    /// How many records there are, gaps included.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn len(&self) -> Result<u32> {
        let entity = self.keys.entity(&self.name)?;
        observe::operation("array.len", self.keys.namespace(), async {
            let bytes: u64 = self
                .store
                .query(redis::cmd("STRLEN").arg(entity.key()))
                .await?;
            Ok(u32::try_from(bytes / T::SIZE as u64).unwrap_or(u32::MAX))
        })
        .await
    }

    /// Whether nothing was written.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn is_empty(&self) -> Result<bool> {
        Ok(self.len().await? == 0)
    }

    fn check(&self, index: u32) -> Result<u32> {
        if index < self.capacity {
            Ok(index)
        } else {
            Err(Error::config(format!(
                "the index {index} is not below the capacity {}",
                self.capacity
            )))
        }
    }
}

fn offset<T: Record>(index: u32) -> u64 {
    u64::from(index) * T::SIZE as u64
}
