//! Random names: owner tokens, worker names, request ids.

/// 128 random bits as 32 hexadecimal digits. No two calls return the same text.
pub(crate) fn token() -> String {
    format!("{:032x}", crate::chance::random::<u128>())
}
