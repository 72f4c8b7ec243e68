//! Nodes of a cluster that are replaced, and slots that move.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    plan::{Fault, FaultKind},
    server::{Found, load},
    slots::Moving,
    trouble::What,
    world::World,
};

/// How often a move of slots goes on again when a node was down at its end, and after which time.
const MOVE_TRIES: u32 = 1000;
const MOVE_AGAIN: Duration = Duration::from_millis(10);

impl World {
    /// A node is gone for good; the next one has its slots as soon as the others agree.
    pub(super) fn promote(
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

    /// A part of the slots moves, key by key, and the nodes learn of it one after the other.
    pub(super) fn move_slots(
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
