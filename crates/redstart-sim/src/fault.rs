//! Lets things go wrong at their time.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    network::Peer,
    plan::{Fault, FaultKind, Lost, OldMaster, Shape},
    server::{Found, Injection, Role, load},
    slots::Moving,
    trouble::What,
    workload::{Pattern, Workload},
    world::World,
};

/// How often a server tries again to write its log.
const LOG_ROUND: Duration = Duration::from_millis(100);
/// How long a process is away at least before it starts again.
const RESTART: Duration = Duration::from_millis(20);
/// A process that runs on has read within this time what came while it was stopped.
const READS: Duration = Duration::from_millis(20);
/// A process has a new line to a sentinel within this time after it lost one.
const LISTENS_AGAIN: Duration = Duration::from_secs(1);
/// How often a move of slots goes on again when a node was down at its end, and after which time.
const MOVE_TRIES: u32 = 1000;
const MOVE_AGAIN: Duration = Duration::from_millis(10);

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

    /// Lets a fault begin; false if it is not possible now.
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

    fn stop_client(self: &Arc<Self>, client: usize, lasts: Duration) -> bool {
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

    fn kill_client(
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

    fn crash(
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

    /// The replica becomes the master; each sentinel learns of it in its time.
    fn fail_over(
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

    /// A node is gone for good; the next one has its slots as soon as the others agree.
    fn promote(
        self: &Arc<Self>,
        server: usize,
        lag: Duration,
        known_after: Duration,
        kept: Option<Vec<u8>>,
    ) -> bool {
        let Some(map) = self.map.clone() else {
            return false;
        };
        let to = (server + 1) % self.plan.servers();
        let agree = (0..self.plan.servers()).all(|node| map.view(node) == map.view(0));
        let all_up = (0..self.plan.servers()).all(|node| self.servers[node].takes_data());
        if !agree || !all_up || map.is_moving() {
            return false;
        }
        let moves = |fault: &Fault| matches!(fault.kind, FaultKind::MoveSlots { .. });
        let now = self.now();
        let from = match self.plan.faults.iter().any(moves) {
            true => Duration::ZERO,
            false => now.saturating_sub(lag),
        };
        self.lost(from, now);
        self.servers[server].crash(true);
        self.troubles.add(What::Slots, None, None, known_after);
        self.later(known_after, move |world| {
            // Both are gone: a machine of its own takes the node's place, under its old name.
            if !world.servers[to].takes_data() {
                let found = kept.map_or(Found::Nothing, Found::Data);
                world.servers[server].start(&found);
                world.clock_jumps();
                return;
            }
            let Some(map) = &world.map else { return };
            load(&world.servers[to].engine(), &kept.unwrap_or_default());
            if world.servers[to].ahead() != world.servers[server].ahead() {
                world.clock_jumps();
            }
            let view = map.view(to);
            for part in (0..view.len()).filter(|part| view[*part] == server) {
                for node in 0..world.plan.servers() {
                    map.learn(node, part, to);
                }
            }
            world.trace.note(
                world.servers[to].peer(),
                format_args!("has the slots of server {server}"),
            );
        });
        true
    }

    /// How long a client may still talk to an old master: until the sentinels have said so, and the news has come.
    fn left_within(&self, knows_after: Duration) -> Duration {
        sentinel_delay(4, knows_after) + self.slowest() + LISTENS_AGAIN
    }

    /// Whether a client may lose its lines to the sentinels.
    fn may_lose_lines(&self, client: usize) -> bool {
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

    /// A part of the slots moves, key by key, and the nodes learn of it one after the other.
    fn move_slots(
        self: &Arc<Self>,
        part: usize,
        to: usize,
        lasts: Duration,
        known_after: Duration,
    ) -> bool {
        let Some(map) = self.map.clone() else {
            return false;
        };
        let from = map.view(to)[part];
        let unsure = map.view(from)[part] != from;
        if from == to || unsure || map.is_moving() {
            return false;
        }
        if !(self.servers[from].takes_data() && self.servers[to].takes_data()) {
            return false;
        }
        let moving = Moving { part, from, to };
        map.set_moving(Some(moving));
        self.troubles
            .add(What::Slots, None, None, lasts + known_after);
        const STEPS: u32 = 4;
        for step in 1..=STEPS {
            self.later(lasts * step / STEPS, move |world| {
                if world.servers[from].takes_data() && world.servers[to].takes_data() {
                    world.move_keys(part, from, to, step == STEPS);
                }
            });
        }
        self.later(lasts + Duration::from_millis(1), move |world| {
            world.end_move(moving, known_after, MOVE_TRIES);
        });
        true
    }

    /// A part has moved. If a node is down, the move goes on when it is up again: until then the keys are where they are.
    fn end_move(self: &Arc<Self>, moving: Moving, known_after: Duration, tries: u32) {
        let Moving { part, from, to } = moving;
        let Some(map) = &self.map else { return };
        if !(self.servers[from].takes_data() && self.servers[to].takes_data()) {
            let replaced = self.plan.faults.iter().any(|fault| match fault.kind {
                FaultKind::Promote { server, .. } => server == from || server == to,
                _ => false,
            });
            if !replaced && tries > 0 {
                self.troubles.add(What::Slots, None, None, MOVE_AGAIN);
                return self.later(MOVE_AGAIN, move |world| {
                    world.end_move(moving, known_after, tries - 1);
                });
            }
            // It is given up half-way, and what has moved is not found any more.
            map.set_moving(None);
            return self.lost(Duration::ZERO, self.now());
        }
        map.set_moving(None);
        self.move_keys(part, from, to, true);
        for node in [from, to] {
            map.learn(node, part, to);
        }
        // Subscribers of the part are put out; their connections are closed here, which is harsher.
        self.servers[from].disconnect();
        self.troubles.add(What::Slots, None, None, known_after);
        self.later(known_after + Duration::from_millis(1), move |world| {
            let Some(map) = &world.map else { return };
            // Unless the node was replaced meanwhile.
            if map.view(to)[part] != to {
                return;
            }
            for node in 0..world.plan.servers() {
                map.learn(node, part, to);
            }
        });
    }

    /// Moves some keys of a part, or all that are left.
    fn move_keys(&self, part: usize, from: usize, to: usize, all: bool) {
        let Some(map) = &self.map else { return };
        let (source, target) = (self.servers[from].engine(), self.servers[to].engine());
        if self.servers[from].ahead() != self.servers[to].ahead() {
            self.clock_jumps();
        }
        let mut keys: Vec<Bytes> = Vec::new();
        let mut parser = crate::resp::Parser::default();
        parser.feed(&self.servers[from].snapshot());
        let mut commands: Vec<(Bytes, Vec<Bytes>)> = Vec::new();
        while let Ok(Some(command)) = parser.next() {
            let at = if command[0] == b"XGROUP"[..] { 2 } else { 1 };
            if command[0] == b"SELECT"[..] {
                continue;
            }
            let key = command[at].clone();
            if map.part_of(&key) == part {
                if !keys.contains(&key) {
                    keys.push(key.clone());
                }
                commands.push((key, command));
            }
        }
        keys.sort();
        if !all {
            keys.truncate(keys.len().div_ceil(3));
        }
        commands.retain(|(key, _)| keys.contains(key));
        let mut bytes = Vec::new();
        for (_, command) in &commands {
            bytes.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for word in command {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        let mut session = target.session();
        for key in &keys {
            drop(session.execute(&[Bytes::from_static(b"DEL"), key.clone()]));
        }
        load(&target, &bytes);
        let mut session = source.session();
        for key in keys {
            drop(session.execute(&[Bytes::from_static(b"DEL"), key]));
        }
    }
}

/// When a sentinel learns of a failover: one may be cut off for a while.
fn sentinel_delay(sentinel: usize, knows_after: Duration) -> Duration {
    Duration::from_millis(10 * sentinel as u64) + (knows_after / 16) * (sentinel as u32 - 2)
}
