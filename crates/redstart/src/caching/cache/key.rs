//! Keys of a cache.

use std::{borrow::Cow, sync::Arc};

/// A key of a cache. Two keys with the same name are the same key.
///
/// Strings and integers are keys already. Your own types implement this trait.
///
/// ```
/// use std::borrow::Cow;
/// use redstart::caching::CacheKey;
///
/// struct Page { shop: u32, number: u32 }
///
/// impl CacheKey for Page {
///     fn name(&self) -> Cow<'_, str> {
///         Cow::Owned(format!("{}/{}", self.shop, self.number))
///     }
/// }
/// assert_eq!(Page { shop: 3, number: 14 }.name(), "3/14");
/// ```
pub trait CacheKey {
    /// The key's name: 1 to 1024 bytes.
    fn name(&self) -> Cow<'_, str>;
}

impl CacheKey for str {
    fn name(&self) -> Cow<'_, str> {
        Cow::Borrowed(self)
    }
}

impl CacheKey for String {
    fn name(&self) -> Cow<'_, str> {
        Cow::Borrowed(self)
    }
}

impl CacheKey for Arc<str> {
    fn name(&self) -> Cow<'_, str> {
        Cow::Borrowed(self)
    }
}

impl<T: CacheKey + ?Sized> CacheKey for &T {
    fn name(&self) -> Cow<'_, str> {
        (**self).name()
    }
}

macro_rules! by_number {
    ($($number:ty)*) => { $(
        impl CacheKey for $number {
            fn name(&self) -> Cow<'_, str> {
                Cow::Owned(self.to_string())
            }
        }
    )* };
}

by_number!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);
