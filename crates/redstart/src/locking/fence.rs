//! Fence tokens.

use std::{fmt, num::NonZero};

use crate::error::{Error, Result};

/// The number of a grant: higher than those of all earlier grants of the same lock.
///
/// A lock in a store cannot stop a holder that still believes in it: a process that was stopped for a minute resumes
/// after its lease, in the middle of its work. What it writes then has to be refused by the resource that it writes to.
/// That is what the token is for: the resource refuses a token lower than the highest it has seen.
///
/// # Promises
///
/// The token is issued in the same script that grants the lock, as the larger of the previous token + 1 and the server's
/// time in µs. It rises from grant to grant, even if a failover loses the counter, as long as the clock of the new master
/// is not behind the last grant of the old one.
///
/// # Limits
///
/// A resource that does not check tokens is not protected. [`FencedValues`](super::FencedValues) checks them in the
/// store. In SQL the check is a column: `UPDATE orders SET state = $1, fence = $2 WHERE id = $3 AND fence <= $2`; no
/// updated row means that the write was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FenceToken(NonZero<u64>);

/// The highest number that Lua compares exactly.
const MAX_TOKEN: u64 = (1 << 53) - 1;

impl FenceToken {
    /// A token that was stored elsewhere, such as in a database column or a request header.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for zero and for numbers of 2^53 and above.
    pub fn new(token: u64) -> Result<Self> {
        match NonZero::new(token) {
            Some(token) if token.get() <= MAX_TOKEN => Ok(Self(token)),
            _ => Err(Error::config(
                "a fence token must be between 1 and 2^53 - 1",
            )),
        }
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for FenceToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

pub(super) mod sealed {
    pub trait Sealed {
        /// From the script's reply.
        fn issued(token: u64) -> Self;
        const IS_FENCED: bool;
    }
}

/// What a guard carries: a [`FenceToken`], or nothing (`()`).
pub trait Fencing: sealed::Sealed + Copy + Send + Sync + 'static {}

impl sealed::Sealed for FenceToken {
    fn issued(token: u64) -> Self {
        // The scripts issue nothing below the server's time.
        Self(NonZero::new(token).unwrap_or(NonZero::<u64>::MIN))
    }

    const IS_FENCED: bool = true;
}
impl Fencing for FenceToken {}

impl sealed::Sealed for () {
    fn issued(_: u64) {}

    const IS_FENCED: bool = false;
}
impl Fencing for () {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_lua_cannot_compare_are_refused() {
        for bad in [0, 1 << 53, u64::MAX] {
            assert!(FenceToken::new(bad).unwrap_err().is_config());
        }
        assert!(FenceToken::new(1).unwrap() < FenceToken::new(MAX_TOKEN).unwrap());
    }
}
