//! Lets things go wrong at their time.

mod cluster;
mod failover;
mod process;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    network::Peer,
    plan::FaultKind,
    server::{Injection, Role},
    trouble::What,
    workload::{Pattern, Workload},
    world::World,
};

/// How often a server tries again to write its log.
const LOG_ROUND: Duration = Duration::from_millis(100);
/// How long a process is away at least before it starts again.
const RESTART: Duration = Duration::from_millis(20);
/// A process has a new line to a sentinel within this time after it lost one.
const LISTENS_AGAIN: Duration = Duration::from_secs(1);

impl World {
    /// Puts all faults on the agenda.
    pub(crate) fn plan_faults(self: &Arc<Self>, workload: &Arc<dyn Workload>) {
        let start = Instant::now();
        for fault in self.plan.faults.clone() {
            let world = self.clone();
            let workload = workload.clone();
            let kept: Arc<Mutex<Option<Vec<u8>>>> = Arc::default();
            if let Some(lag) = fault.kind.lag() {
                let (world, kept) = (self.clone(), kept.clone());
                let kind = fault.kind.clone();
                self.agenda
                    .at(start + fault.at.saturating_sub(lag), move || {
                        let from = match kind {
                            FaultKind::Crash { server, .. } | FaultKind::Promote { server, .. } => {
                                server
                            }
                            _ => world.master(),
                        };
                        *kept.lock() = Some(world.servers[from].snapshot());
                    });
            }
            self.agenda.at(start + fault.at, move || {
                let kept = kept.lock().take();
                world.happen(&fault.kind, kept, &workload);
            });
        }
    }

    fn later(self: &Arc<Self>, after: Duration, act: impl FnOnce(&Arc<World>) + Send + 'static) {
        self.busy_until(self.now() + after + Duration::from_millis(1));
        let world = self.clone();
        self.agenda.after(after, move || act(&world));
    }

    fn happen(
        self: &Arc<Self>,
        kind: &FaultKind,
        kept: Option<Vec<u8>>,
        workload: &Arc<dyn Workload>,
    ) {
        if self.is_over() {
            return;
        }
        self.trace.note("world", format_args!("{kind:?}"));
        let happened = self.begin(kind, kept, workload);
        // These are counted when somebody notices.
        let later = matches!(
            kind,
            FaultKind::StopAtReply { .. }
                | FaultKind::DiskFails { .. }
                | FaultKind::CutInside { .. }
                | FaultKind::Silence { .. }
                | FaultKind::Answer { .. }
                | FaultKind::Evict { .. }
                | FaultKind::Refuse { .. }
                | FaultKind::Forget { .. }
                | FaultKind::NoMemory { .. }
        );
        if happened && !later {
            self.happened(kind.name());
        } else if !happened {
            self.trace
                .aside("world", format_args!("that was not possible"));
        }
    }

    /// Lets a fault begin; false if it is not possible now. A table with one entry per kind.
    fn begin(
        self: &Arc<Self>,
        kind: &FaultKind,
        kept: Option<Vec<u8>>,
        workload: &Arc<dyn Workload>,
    ) -> bool {
        match *kind {
            FaultKind::Cut { client } => return self.net.cut(Peer::Client(client)) > 0,
            FaultKind::CutInside {
                client,
                reply,
                after,
            } => self.net.cut_inside(Peer::Client(client), reply, after),
            FaultKind::Silence {
                client,
                server,
                up,
                down,
                lasts,
            } => {
                self.troubles
                    .add(What::Line, Some(client), Some(server), lasts);
                let (client, server) = (Peer::Client(client), Peer::Server(server));
                for (blocked, from, to) in [(up, client, server), (down, server, client)] {
                    if blocked {
                        self.net.block(from, to);
                        self.later(lasts, move |world| world.net.unblock(from, to));
                    }
                }
            }
            FaultKind::Stop { client, lasts } => return self.stop_client(client, lasts),
            FaultKind::Kill {
                client,
                silently,
                lasts,
            } => return self.kill_client(client, silently, lasts, workload),
            FaultKind::Hang { server, lasts } => {
                self.servers[server].hang();
                self.troubles.of_server(What::Server, server, lasts);
                self.later(lasts, move |world| world.servers[server].wake());
            }
            FaultKind::Crash {
                server,
                lost,
                silently,
                lasts,
            } => return self.crash(server, lost, silently, lasts, kept),
            FaultKind::Refuse { server, lasts } => {
                self.servers[server].refuse(true);
                self.troubles.of_server(What::Server, server, lasts);
                self.later(lasts, move |world| world.servers[server].refuse(false));
            }
            FaultKind::Answer {
                server,
                error,
                writes,
                share,
                lasts,
            } => {
                self.servers[server].inject(Some(Injection {
                    error,
                    share,
                    writes,
                }));
                self.later(lasts, move |world| world.servers[server].inject(None));
            }
            FaultKind::Forget { server } => {
                self.servers[server].forget();
            }
            FaultKind::Failover {
                old,
                knows_after,
                lag,
                ..
            } => return self.fail_over(lag, old, knows_after, kept),
            FaultKind::Promote {
                server,
                lag,
                known_after,
            } => return self.promote(server, lag, known_after, kept),
            FaultKind::MoveSlots {
                part,
                to,
                lasts,
                known_after,
            } => return self.move_slots(part, to, lasts, known_after),
            FaultKind::Evict {
                server,
                volatile,
                share,
                times,
                lasts,
            } => {
                for time in 0..times {
                    self.later(lasts * time / times, move |world| {
                        world.evict(server, volatile, share);
                    });
                }
            }
            FaultKind::ClockJump { client, ahead } => {
                self.lives[client].process.lock().clock_jumps(ahead);
                self.troubles.of_client(What::Clock, client, Duration::ZERO);
            }
            FaultKind::Suspend { client, lasts } => {
                let process = self.lives[client].process.lock().clone();
                if !self.stop_client(client, lasts) {
                    return false;
                }
                self.suspends(client, lasts);
                process.clock_stands(true);
                // Planned after that it runs on, so it happens after that; nothing runs in between.
                self.later(lasts, move |_| process.clock_stands(false));
            }
            FaultKind::DiskFails {
                server,
                room,
                syncs_fail,
                lasts,
            } => {
                if !self.servers[server].disk_fails(room, syncs_fail) {
                    return false;
                }
                let what = What::Answer("MISCONF");
                self.troubles.of_server(what, server, lasts + LOG_ROUND);
                self.later(lasts, move |world| world.servers[server].disk_works());
                self.try_log(server, self.now() + lasts, false);
            }
            FaultKind::NoMemory { server, lasts } => {
                if !self.servers[server].is_up() {
                    return false;
                }
                self.servers[server].starve(true);
                self.troubles.of_server(What::Answer("OOM"), server, lasts);
                self.later(lasts, move |world| world.servers[server].starve(false));
            }
            FaultKind::StopAtReply { client, lasts } => {
                let world = self.clone();
                let stop = move || {
                    if !world.is_over() && world.stop_client(client, lasts) {
                        world.happened("stop at reply");
                        world.trace.note(
                            Peer::Client(client),
                            format_args!("stands still before it reads"),
                        );
                    }
                };
                self.net.at_next_reply(Peer::Client(client), stop);
            }
        }
        true
    }

    /// The thread of a server's log tries again now and then, until the disk works and the log takes writes.
    fn try_log(self: &Arc<Self>, server: usize, until: Duration, noticed: bool) {
        self.later(LOG_ROUND, move |world| {
            let fine = world.servers[server].log_round();
            if !fine && !noticed {
                world.happened("disk fails");
            }
            if !fine {
                let what = What::Answer("MISCONF");
                world.troubles.of_server(what, server, 2 * LOG_ROUND);
            }
            if world.now() <= until || !fine {
                world.try_log(server, until, noticed || !fine);
            }
        });
    }

    /// A server drops keys. For most patterns that is as if it had lost them in a crash.
    fn evict(&self, server: usize, volatile: bool, share: u64) {
        let master = self.servers[server].role() == Role::Master;
        if !master || !self.servers[server].takes_data() {
            return;
        }
        let gone = self.servers[server].evict(volatile, share);
        if gone.is_empty() {
            return;
        }
        let peer = self.servers[server].peer();
        self.trace
            .note(peer, format_args!("evicts {}", gone.join(" ")));
        self.evicted();
        self.happened("evict");
        if !matches!(self.plan.pattern, Pattern::Bloom | Pattern::CacheTags) {
            self.lost(self.now(), self.now());
        }
    }
}
