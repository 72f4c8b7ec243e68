//! An array of fixed-size records in one string.

use std::{marker::PhantomData, ops::Range, time::Duration};

use super::Record;
use crate::{
    duration::millis,
    error::{Error, Result},
    key::{Entity, Key, Keys, Layout},
    observe,
    script::{Call, Script},
    store::Store,
};

pub(super) static SET: Script = Script::new("array.set", include_str!("array/set.lua"));

/// An array of fixed-size records in one string.
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
///
/// # Promises
///
/// - A record is read and written as a whole; writers of different records do not interfere.
/// - An index at or beyond the capacity is an error before the call: a single stray index cannot make the server
///   allocate memory up to it.
/// - A gap (a record that was never written before one that was) is all zeros; [`Record::from_bytes`] decides what
///   that means.
/// - The key contains the name and the size of the record, so arrays of different records never share bytes.
///
/// # Limits
///
/// With a [layout](FixedArrayBuilder::layout) of the application's own, the key is the application's, and only a
/// length that is not a multiple of the record's size reveals another kind of record.
///
/// # Keys
///
/// `<ns>:array:{<name>}:<record>.<size>`, at most `capacity × size` bytes.
///
/// # Round trips
///
/// One per call: GETRANGE, SETRANGE or STRLEN.
///
/// # While the store is down
///
/// Every call fails.
///
/// # Metrics
///
/// Operations: `array.get`, `array.set`, `array.range`, `array.len`.
#[derive(Debug)]
pub struct FixedArray<T> {
    store: Store,
    entity: Entity,
    /// The part that the array is; `None` if the application chose the key.
    part: Option<String>,
    capacity: u32,
    ttl: Option<Duration>,
    record: PhantomData<fn() -> T>,
}

impl<T> Clone for FixedArray<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            entity: self.entity.clone(),
            part: self.part.clone(),
            capacity: self.capacity,
            ttl: self.ttl,
            record: PhantomData,
        }
    }
}

/// Settings of [`FixedArray`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct FixedArrayBuilder<T> {
    store: Store,
    namespace: String,
    name: String,
    capacity: u32,
    ttl: Option<Duration>,
    layout: Option<Layout>,
    record: PhantomData<fn() -> T>,
}

impl<T: Record> FixedArrayBuilder<T> {
    /// Lets the array expire this long after its last write. By default it does not expire.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Uses a key that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Builds the array.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name, a capacity of 0, records of size 0, more than
    /// [`FixedArray::MAX_BYTES`] in total, or a TTL of zero.
    pub fn build(self) -> Result<FixedArray<T>> {
        if self.capacity == 0 || T::SIZE == 0 {
            return Err(Error::config(
                "an array needs at least one record of at least one byte",
            ));
        }
        if u64::from(self.capacity) * T::SIZE as u64 > FixedArray::<T>::MAX_BYTES {
            return Err(Error::config(format!(
                "{} records of {} bytes exceed the {} bytes of a string",
                self.capacity,
                T::SIZE,
                FixedArray::<T>::MAX_BYTES
            )));
        }
        if self.ttl == Some(Duration::ZERO) {
            return Err(Error::config("a TTL must be longer than zero"));
        }
        let mut keys = Keys::new(&self.namespace, "array")?;
        let part = match self.layout {
            Some(layout) => {
                keys = keys.layout(layout);
                None
            }
            None => Some(format!("{}.{}", T::NAME, T::SIZE)),
        };
        Ok(FixedArray {
            store: self.store,
            entity: keys.entity(&self.name)?,
            part,
            capacity: self.capacity,
            ttl: self.ttl,
            record: PhantomData,
        })
    }
}

impl<T: Record> FixedArray<T> {
    /// The most bytes of an array: what a string holds.
    pub const MAX_BYTES: u64 = 512 * 1024 * 1024;

    /// Builds the array `name` of at most `capacity` records.
    pub fn builder(
        store: &Store,
        namespace: &str,
        name: &str,
        capacity: u32,
    ) -> FixedArrayBuilder<T> {
        FixedArrayBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            capacity,
            ttl: None,
            layout: None,
            record: PhantomData,
        }
    }

    /// The array `name` with default settings.
    ///
    /// # Errors
    ///
    /// As [`FixedArrayBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str, capacity: u32) -> Result<Self> {
        Self::builder(store, namespace, name, capacity).build()
    }

    fn key(&self) -> Key {
        match &self.part {
            Some(part) => self.entity.part(part),
            None => self.entity.key().clone(),
        }
    }

    fn on_key<'a>(&self, call: Call<'a>) -> Call<'a> {
        match &self.part {
            Some(part) => call.part(part),
            None => call.key(),
        }
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
        observe::operation(operation, self.entity.namespace(), async {
            let mut cmd = redis::cmd("GETRANGE");
            cmd.arg(self.key())
                .arg(offset::<T>(range.start))
                .arg(offset::<T>(range.end) - 1);
            let bytes: Vec<u8> = self.store.query(&cmd).await?;
            if !bytes.len().is_multiple_of(T::SIZE) {
                return Err(Error::codec(
                    "the length of the array is not a multiple of the size of its records",
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
    /// If the future is dropped, the record is the old one or the new one.
    pub async fn set(&self, index: u32, record: &T) -> Result<()> {
        self.check(index)?;
        let mut bytes = vec![0; T::SIZE];
        record.to_bytes(&mut bytes);
        observe::operation("array.set", self.entity.namespace(), async {
            let call = self
                .on_key(SET.on(&self.entity))
                .arg(offset::<T>(index))
                .arg(bytes)
                .arg(self.ttl.map_or(0, millis));
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
        observe::operation("array.len", self.entity.namespace(), async {
            let bytes: u64 = self
                .store
                .query(redis::cmd("STRLEN").arg(self.key()))
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
                "index {index} is not below the capacity {}",
                self.capacity
            )))
        }
    }
}

fn offset<T: Record>(index: u32) -> u64 {
    u64::from(index) * T::SIZE as u64
}
