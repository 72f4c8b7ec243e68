//! What distinguishes one kind of lock from another.

use std::time::Duration;

use crate::script::Script;

/// The keys, scripts and waiting rule of one kind of lock.
///
/// All scripts take the entity's key and its `parts` as KEYS. ARGV begins with the owner's token. Then acquire has
/// the ttl in ms, 1 to queue, the waiter's lease in ms and the channel; extend has the ttl in ms; release has the
/// channel. The arguments of the lock itself come last. Acquire returns the fence token as text, or as a number the
/// ms until it is worth asking again; or both as `{1, fence}` and `{0, ms}`.
#[derive(Debug)]
pub(crate) struct LockKind {
    pub(crate) pattern: &'static str,
    pub(crate) operations: Operations,
    pub(crate) parts: &'static [&'static str],
    pub(crate) acquire: Acquire,
    pub(crate) extend: &'static Script,
    pub(crate) release: &'static Script,
    /// Replaces the owner of a held lock by another one. ARGV: the two tokens, the ttl in ms, the channel. Returns the new
    /// fence token as text ('0' without one), or nil.
    pub(crate) redeem: &'static Script,
    /// The key holds the owner's token and nothing else: native commands can release it, and acquire needs only the
    /// token, the ttl and whether to wait.
    pub(crate) plain: bool,
    pub(crate) waiting: Waiting,
    /// How often to ask while waiting, where holders may release without a wake-up.
    pub(crate) poll: Option<Duration>,
}

/// The names of a lock's operations and events, in spans, metrics and errors.
#[derive(Debug)]
pub(crate) struct Operations {
    pub(crate) acquire: &'static str,
    pub(crate) extend: &'static str,
    pub(crate) release: &'static str,
    pub(crate) busy: &'static str,
    pub(crate) lost: &'static str,
    pub(crate) forced: &'static str,
    pub(crate) hand_over: &'static str,
    pub(crate) redeem: &'static str,
}

/// `operations!("mutex")` is `mutex.acquire`, `mutex.extend` and so on; the four verbs can be given.
macro_rules! operations {
    ($pattern:literal) => {
        $crate::locking::kind::operations!($pattern, "acquire", "extend", "release", "redeem")
    };
    ($pattern:literal, $acquire:literal, $extend:literal, $release:literal, $redeem:literal) => {
        $crate::locking::kind::Operations {
            acquire: concat!($pattern, ".", $acquire),
            extend: concat!($pattern, ".", $extend),
            release: concat!($pattern, ".", $release),
            busy: concat!($pattern, ".busy"),
            lost: concat!($pattern, ".lost"),
            forced: concat!($pattern, ".forced"),
            hand_over: concat!($pattern, ".hand_over"),
            redeem: concat!($pattern, ".", $redeem),
        }
    };
}
pub(crate) use operations;

#[derive(Debug)]
pub(crate) enum Acquire {
    Script(&'static Script),
    /// `SET key token NX PX ttl` for a lock without fence tokens; the script for callers that wait.
    SetNx(&'static Script),
}

/// Which of several waiters in one process ask the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// One per handle, in order of arrival: a release wakes one waiter of a process, not all.
    Serial,
    /// All: several may be admitted at once.
    Parallel,
    /// All, and each has a leased place in a line on the server.
    Queued,
}
