//! Locks, and everything else that one process at a time may have.
//!
//! | module | who may be in | waits in |
//! |---|---|---|
//! | [`mutex`] | one | no order |
//! | [`fair`] | one | order of arrival |
//! | [`rw`] | many readers or one writer | writers before readers |
//! | [`semaphore`] | n | no order |
//! | [`leader`] | one, by name, watched by all | no order |
//! | [`redlock`] | one, over N independent servers | no order |
//! | [`legacy`] | one, beside clients of the SETNX/GETSET kind | no order |
//! | [`fence`] | whoever holds the highest token may write | — |
//!
//! # What all of them promise
//!
//! - **One owner.** A grant is bound to 128 random bits. Renewal and release compare them and act in one step
//!   on the server, so nobody ends another's lock.
//! - **A lease, always.** Whatever is granted ends by itself after its ttl (default 30 s), by the server's
//!   clock. While the [`Guard`] lives it is renewed every ttl / 3; when the guard is released or dropped the
//!   renewals stop.
//! - **The holder knows.** [`Guard::valid_until`] counts from before the request was sent, on the monotonic
//!   clock, minus an allowance of ttl / 100 + 2 ms for clocks that run at different rates. When it passes,
//!   [`Guard::lost`] fires and `with` drops the work, whatever is in flight: before the server lets the next
//!   one in. A renewal never gets more time than the lease still has.
//! - **No polling.** A release wakes the waiters by a message on a sharded channel. Messages get lost, so a
//!   waiter also asks when the holder's lease would end, and whenever its own subscription had a gap.
//! - **Dropped futures leave nothing.** A cancelled acquisition gives back what it got, in the background.
//!   Should even that fail, the lease ends by itself and nothing renews it.
//!
//! # What a lock cannot promise
//!
//! A master that replicates asynchronously can fail after it granted a lock and before a replica knew of it;
//! the replica that takes over grants it again. A process can be stopped between checking its lease and
//! writing; a suspended machine stops its monotonic clock too. No lock in a store closes these gaps. The
//! [fence token](fence) does, where the resource checks it: tokens keep rising through such a failover. If
//! two holders at the same time would be a disaster even with fencing, [`redlock`] over independent servers
//! narrows the first gap.
//!
//! Locks here are not re-entrant: the same task asking twice waits for itself.
//!
//! # While the store is down
//!
//! Nothing is granted: `try_lock` returns the error, `lock` goes on asking for as long as it may wait and
//! then returns it. A holder keeps its lease until `valid_until` and then hears of the loss.
//!
//! # Observed as
//!
//! Operations `<pattern>.acquire`, `.extend`, `.release`; events `<pattern>.busy` (a taken lock was asked for
//! in vain) and `<pattern>.lost` (a lease ended against its holder's will), for the patterns `mutex`, `fair`,
//! `rw`, `semaphore`, `leader`, `redlock`, `legacy`. Also `fenced.write`, `fenced.read`, and the event
//! `fenced.stale`.

pub mod fair;
pub mod fence;
pub mod leader;
pub mod legacy;
pub mod mutex;
pub mod redlock;
pub mod rw;
pub mod semaphore;

mod keeper;
mod lease;
mod place;
mod wake;

pub use fair::FairMutex;
pub use fence::{FenceToken, FencedStore, Fencing};
pub use leader::Leader;
pub use lease::{Guard, Lease, MAX_TTL, MIN_TTL, Outcome, Released};
pub use legacy::LegacyLock;
pub use mutex::Mutex;
pub use redlock::Redlock;
pub use rw::RwLock;
pub use semaphore::Semaphore;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
