//! Locks, and everything else that a limited number of processes may hold at a time.
//!
//! | type | holders | order of waiters |
//! |---|---|---|
//! | [`Mutex`] | one | none |
//! | [`FairMutex`] | one | arrival |
//! | [`RwLock`] | many readers or one writer | writers before readers |
//! | [`Semaphore`] | n | none |
//! | [`Leader`] | one, by name, visible to all | none |
//! | [`Redlock`] | one, over N independent servers | none |
//! | [`LegacyLock`] | one, beside clients of the SETNX/GETSET kind | none |
//!
//! [`FencedValues`] are values that refuse writes of a holder that lost its lock.
//!
//! # Promises
//!
//! - **One owner.** A grant is bound to 128 random bits. Renewal and release compare them and act in one step on the
//!   server, so nobody ends another owner's lock.
//! - **Always a lease.** Every grant ends after its ttl (default 30 s) by the server's clock. While the [`Guard`] lives
//!   it is renewed every ttl / 3, on the runtime that acquired it; when the guard is released or dropped the renewals
//!   stop.
//! - **The holder is told.** [`Guard::valid_until`] counts from before the request was sent, on the monotonic clock,
//!   minus an allowance of ttl / 100 + 2 ms for clocks that run at different rates. When it passes, [`Guard::lost`]
//!   returns and `with` drops the work, before the server grants the lock to anybody else. A renewal never gets more time
//!   than the lease still has.
//! - **No polling.** A release wakes the waiters by a message on a sharded channel. Messages get lost, so a waiter also
//!   asks when the holder's lease would end, and after every gap in its subscription. (A [`LegacyLock`], and a store that
//!   cannot subscribe, have to poll.)
//! - **Dropped futures leave nothing behind.** A cancelled acquisition releases what it got, in the background. If even
//!   that fails, the lease ends and nothing renews it.
//! - **One clock.** On `memory://` leases and waits move with [`Store::advance`](crate::Store::advance).
//!
//! # Limits
//!
//! A master that replicates asynchronously can fail after it granted a lock and before a replica had it; the replica that
//! takes over grants it again. A process can be stopped between checking its lease and writing; a suspended machine stops
//! its monotonic clock too. A lease ends by the clock of the server that has it: if a replica whose clock is ahead takes over, or a
//! server comes back with its clock set forward, leases end that much earlier than their holders believe. No lock in a
//! store closes these gaps. The [fence token](FenceToken) does, if the resource
//! checks it: tokens keep rising through such a failover, unless the new server both lost the last token and has a clock
//! that is behind it. If two holders at the same time would be a disaster even with
//! fencing, [`Redlock`] over independent servers narrows the first gap.
//!
//! A server that evicts keys (`maxmemory-policy` other than `noeviction`) may drop a lock that is held and grant it again; tokens keep
//! rising then too. Locks belong on a server that does not evict.
//!
//! A request whose connection broke is sent again. Its first copy may still be on the way and arrive after the lock was
//! released; then the lock is held by nobody until that lease ends. It is never held by two.
//!
//! Locks are not re-entrant: a task that asks twice waits for itself.
//!
//! # While the store is down
//!
//! Nothing is granted: `try_lock` returns the error, `lock` keeps asking until its wait has passed and then returns it. A
//! holder keeps its lease until `valid_until` and is then told of the loss.
//!
//! # Metrics
//!
//! Operations `<pattern>.acquire`, `.extend`, `.release` for the patterns `mutex`, `fair`, `semaphore`, `redlock` and
//! `legacy`; `mutex.holder`, `fair.holder`, `legacy.holder`, `semaphore.holders`, `rw.holders`, `redlock.holder`; `<pattern>.force_release` (of `rw` with `_read` or
//! `_write`); `<pattern>.hand_over`, `<pattern>.redeem` (of `rw` with `_read` or `_write`); `rw.read`, `rw.extend_read`, `rw.release_read` and the same with `write`; `leader.campaign`,
//! `leader.extend`, `leader.resign`, `leader.read`; `legacy.state`, `legacy.migrate`; `fenced.write`, `fenced.read`.
//! Events: `<pattern>.busy` (a lock was not granted), `<pattern>.lost` (a lease ended against its holder's will),
//! `<pattern>.forced` (a lock was, or may have been, released by force) and `fenced.stale`.
//!
//! # How a lock is held
//!
//! The inner types, and which makes which:
//!
//! ```text
//! Mutex, RwLock …     what the application has
//!   └─ Lock           its keys on one store, its LockKind (scripts, order of waiters), its Terms (ttl, renewed or not)
//!        └─ Acquisition<Owner>   one request under way; dropped, it releases what was granted
//!             ├─ Owner           one random token: asks, extends, releases     (QuorumOwner: on several servers)
//!             └─ Guard           the lock is held
//!                  ├─ Lease      until when; clones go to the work
//!                  └─ Scheduled  the entry of its Renewal in the store's Schedule
//! Waiter              the loop of `lock`: asks, has a Listener, sleeps, asks again
//! ```

mod acquisition;
mod fair;
mod fence;
mod fenced;
mod guard;
mod hand_over;
mod holder;
mod kind;
mod leader;
mod lease;
mod legacy;
mod lock;
mod mutex;
mod owner;
mod redlock;
mod renewal;
mod rw;
mod schedule;
mod semaphore;
mod settings;
mod ticket;
mod wake_up;

pub use fair::{FairMutex, FairMutexBuilder};
pub use fence::{FenceToken, Fencing};
pub use fenced::{FencedValues, FencedValuesBuilder, FencedWrite};
pub use guard::{Guard, LockedRun, Released};
pub use hand_over::HandOver;
pub use holder::{LockHolder, LockHolders, QuorumHolders, RwHolders, ServerHolder};
pub use leader::{Elected, Leader, LeaderBuilder, LeaderObserver, Leadership};
pub use lease::{Lease, MAX_TTL, MIN_TTL};
pub use legacy::{LegacyLock, LegacyLockBuilder, LegacyState, LegacyUnit};
pub use mutex::{Mutex, MutexBuilder};
pub use redlock::{Redlock, RedlockBuilder};
pub use rw::{RwLock, RwLockBuilder};
pub use semaphore::{Semaphore, SemaphoreBuilder};
pub use ticket::Ticket;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[
    &fair::ACQUIRE,
    &fair::EXTEND,
    &fair::FORCE_RELEASE,
    &fair::HOLDER,
    &fair::REDEEM,
    &fair::RELEASE,
    &fenced::WRITE,
    &leader::CAMPAIGN,
    &leader::EXTEND,
    &leader::FORCE_RELEASE,
    &leader::REDEEM,
    &leader::RESIGN,
    &legacy::ACQUIRE,
    &legacy::EXTEND,
    &legacy::FORCE_RELEASE,
    &legacy::HOLDER,
    &legacy::MIGRATE,
    &legacy::REDEEM,
    &legacy::RELEASE,
    &legacy::STATE,
    &mutex::ACQUIRE,
    &mutex::EXTEND,
    &mutex::FORCE_RELEASE,
    &mutex::HOLDER,
    &mutex::REDEEM,
    &mutex::RELEASE,
    &redlock::ACQUIRE,
    &redlock::EXTEND,
    &redlock::FORCE_RELEASE,
    &redlock::HOLDER,
    &redlock::RAISE_FENCE,
    &redlock::REDEEM,
    &redlock::RELEASE,
    &rw::EXTEND_READ,
    &rw::EXTEND_WRITE,
    &rw::FORCE_RELEASE_READ,
    &rw::FORCE_RELEASE_WRITE,
    &rw::HOLDERS,
    &rw::READ,
    &rw::REDEEM_READ,
    &rw::REDEEM_WRITE,
    &rw::RELEASE_READ,
    &rw::RELEASE_WRITE,
    &rw::WRITE,
    &semaphore::ACQUIRE,
    &semaphore::EXTEND,
    &semaphore::FORCE_RELEASE,
    &semaphore::HOLDERS,
    &semaphore::REDEEM,
    &semaphore::RELEASE,
];
