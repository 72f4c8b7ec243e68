//! What a pattern answers while its store is down.

use std::num::NonZeroU32;

/// What a pattern answers while its store is down: it cannot be reached, does not answer in time, or says that it
/// cannot serve.
///
/// Patterns that protect something take it by `on_store_down` on their builders. The default is [`Fail`](Self::Fail)
/// everywhere, so that no protection is dropped silently. Each pattern's page says what the other two mean for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Down {
    /// Return the error; the caller decides.
    #[default]
    Fail,
    /// Answer "no": nothing gets through unprotected.
    Refuse,
    /// Answer "yes": nothing is turned away because of the store.
    Allow,
    /// Enforce the limit locally: this process is one of `n`, and each enforces `1/n` of the quota. Only for
    /// limiters; elsewhere it is [`Fail`](Self::Fail).
    Local(NonZeroU32),
}
