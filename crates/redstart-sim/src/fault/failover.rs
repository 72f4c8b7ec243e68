//! A replica that takes over, and sentinels that learn of it.

use std::{sync::Arc, time::Duration};

use super::{LISTENS_AGAIN, RESTART};
use crate::{
    plan::{Fault, FaultKind, OldMaster, Shape},
    server::{Found, Role},
    trouble::What,
    world::World,
};

impl World {
    /// The replica becomes the master; each sentinel learns of it in its time.
    pub(super) fn fail_over(
        self: &Arc<Self>,
        lag: Duration,
        old: OldMaster,
        knows_after: Duration,
        kept: Option<Vec<u8>>,
    ) -> bool {
        if self.plan.shape != Shape::Sentinel {
            return false;
        }
        let before = self.master();
        let after = 1 - before;
        if !self.servers[after].takes_data() {
            return false;
        }
        let now = self.now();
        self.servers[after].sync(kept.as_deref());
        if self.servers[after].ahead() != self.servers[before].ahead() {
            self.clock_jumps();
        }
        self.servers[after].set_role(Role::Master);
        self.set_master(after);
        let until = match old {
            OldMaster::Crashed => {
                self.servers[before].crash(true);
                now
            }
            OldMaster::Alive => now + knows_after.min(self.left_within(knows_after)),
            OldMaster::Hangs => {
                self.servers[before].hang();
                now + knows_after
            }
        };
        self.lost(now.saturating_sub(lag), until + Duration::from_millis(1));
        self.later(knows_after.max(RESTART), move |world| {
            let server = &world.servers[before];
            if world.master() == before {
                return;
            }
            server.set_role(Role::Replica);
            match old {
                OldMaster::Crashed => server.start(&Found::Nothing),
                OldMaster::Alive => server.disconnect(),
                OldMaster::Hangs => {
                    server.wake();
                    server.disconnect();
                }
            }
        });
        let known = sentinel_delay(self.servers.len() - 1, knows_after);
        let lasts = known.max(knows_after).max(RESTART);
        self.troubles.add(What::Master, None, None, lasts);
        let hosts = [before, after].map(|index| self.servers[index].host.clone());
        for sentinel in 2..self.servers.len() {
            let delay = sentinel_delay(sentinel, knows_after);
            let [from, to] = hosts.clone();
            self.later(delay, move |world| {
                let server = &world.servers[sentinel];
                if world.servers[world.master()].host != to {
                    return;
                }
                server.set_role(Role::Sentinel {
                    names: (to.clone(), 6379),
                });
                world.trace.note(server.peer(), format_args!("names {to}"));
                let message = format!("main {from} 6379 {to} 6379");
                server.publish("+switch-master", &message);
            });
        }
        true
    }

    /// How long a client may still talk to an old master: until the sentinels have said so, and the news has come.
    fn left_within(&self, knows_after: Duration) -> Duration {
        sentinel_delay(4, knows_after) + self.slowest() + LISTENS_AGAIN
    }

    /// Whether a client may lose its lines to the sentinels.
    pub(super) fn may_lose_lines(&self, client: usize) -> bool {
        let loses = |fault: &Fault| match fault.kind {
            FaultKind::Cut { client: of }
            | FaultKind::CutInside { client: of, .. }
            | FaultKind::Silence { client: of, .. } => of == client,
            FaultKind::Hang { server, .. }
            | FaultKind::Crash { server, .. }
            | FaultKind::Refuse { server, .. } => server >= self.plan.servers(),
            _ => false,
        };
        self.plan.faults.iter().any(loses)
    }
}

/// When a sentinel learns of a failover: one may be cut off for a while.
fn sentinel_delay(sentinel: usize, knows_after: Duration) -> Duration {
    Duration::from_millis(10 * sentinel as u64) + (knows_after / 16) * (sentinel as u32 - 2)
}
