//! Processes that stand still, die or crash.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{LISTENS_AGAIN, RESTART};
use crate::{
    network::Peer,
    plan::{Fault, FaultKind, Lost, Shape},
    server::Found,
    trouble::What,
    workload::Workload,
    world::World,
};

/// A process that runs on has read within this time what came while it was stopped.
const READS: Duration = Duration::from_millis(20);

impl World {
    pub(super) fn stop_client(self: &Arc<Self>, client: usize, lasts: Duration) -> bool {
        let life = &self.lives[client];
        let process = life.process.lock().clone();
        if !process.is_running() {
            return false;
        }
        process.stop();
        self.troubles.of_client(What::Process, client, lasts);
        life.stopped.lock().0 = Some(Instant::now());
        self.later(lasts, move |world| {
            // It was killed meanwhile: what its successor does is not its concern.
            if process.is_gone() {
                return;
            }
            let mut stopped = world.lives[client].stopped.lock();
            if let Some(since) = stopped.0.take() {
                stopped.1 += since.elapsed();
                *world.lives[client].woke.lock() = Some((world.now(), since.elapsed()));
            }
            drop(stopped);
            world
                .trace
                .note(Peer::Client(client), format_args!("runs on"));
            let fails_over = |fault: &Fault| matches!(fault.kind, FaultKind::Failover { .. });
            if world.plan.faults.iter().any(fails_over) {
                // What it sends before it has read that the master was replaced goes to the old one.
                let reads = match world.may_lose_lines(client) {
                    true => LISTENS_AGAIN + world.slowest(),
                    false => READS,
                };
                world.lost(world.now(), world.now() + reads);
            }
            process.go_on();
        });
        true
    }

    pub(super) fn kill_client(
        self: &Arc<Self>,
        client: usize,
        silently: bool,
        lasts: Duration,
        workload: &Arc<dyn Workload>,
    ) -> bool {
        let process = self.lives[client].process.lock().clone();
        if process.is_gone() {
            return false;
        }
        process.kill();
        self.troubles
            .of_client(What::Process, client, lasts.max(RESTART));
        self.net.leave(Peer::Client(client), silently);
        workload.killed(client);
        let workload = workload.clone();
        self.later(lasts.max(RESTART), move |world| {
            world
                .trace
                .note(Peer::Client(client), format_args!("starts again"));
            world.spawn_client(client, &workload);
        });
        true
    }

    pub(super) fn crash(
        self: &Arc<Self>,
        server: usize,
        lost: Lost,
        silently: bool,
        lasts: Duration,
        kept: Option<Vec<u8>>,
    ) -> bool {
        if !self.servers[server].is_up() {
            return false;
        }
        let now = self.now();
        // A sentinel has nothing to lose.
        let lost = match server < self.plan.servers() {
            true => lost,
            false => Lost::Nothing,
        };
        let found = match lost {
            Lost::Nothing if self.servers[server].keeps_log() => Found::Disk,
            Lost::Nothing => Found::Data(self.servers[server].snapshot()),
            Lost::Tail(tail) => {
                // Keys that moved here lately may be on neither node then, and a replica that took over lately had
                // nothing before.
                let moves = |fault: &Fault| {
                    let kind = &fault.kind;
                    matches!(
                        kind,
                        FaultKind::MoveSlots { .. }
                            | FaultKind::Failover { .. }
                            | FaultKind::Promote { .. }
                    )
                };
                let from = match self.plan.faults.iter().any(moves) {
                    true => Duration::ZERO,
                    false => now.saturating_sub(tail),
                };
                self.lost(from, now);
                kept.map_or(Found::Nothing, Found::Data)
            }
            Lost::All => {
                self.lost(Duration::ZERO, now);
                Found::Nothing
            }
        };
        let crash = self.servers[server].crash(silently);
        self.troubles
            .of_server(What::Server, server, lasts.max(RESTART));
        self.later(lasts.max(RESTART), move |world| {
            // It crashed once more, in a failover, and is down until that says otherwise.
            if world.servers[server].crashes() != crash {
                return;
            }
            // A failover may have replaced it meanwhile.
            let data_server = server < world.plan.servers();
            let replaced =
                world.plan.shape == Shape::Sentinel && data_server && world.master() != server;
            let before = world.servers[server].ahead();
            match replaced {
                true => world.servers[server].start(&Found::Nothing),
                false => world.servers[server].start(&found),
            }
            if world.servers[server].ahead() != before {
                world.clock_jumps();
            }
        });
        true
    }
}
