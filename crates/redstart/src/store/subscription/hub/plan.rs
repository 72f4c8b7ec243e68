//! What a line has to send next.

use std::collections::VecDeque;

use redis::Cmd;
use tokio::time::Instant;

use super::{After, Hub, LineChannelState};
use crate::store::subscription::{
    line::Sent,
    topic::{ChannelKind, Name},
    tracking::Step,
};

/// What a line has to do next.
pub(in crate::store::subscription) struct Plan {
    pub(in crate::store::subscription) sends: Vec<(Sent, Cmd)>,
    pub(in crate::store::subscription) retry_at: Option<Instant>,
    /// Nobody uses the line.
    pub(in crate::store::subscription) unused: bool,
    /// The server refused new credentials since the last plan.
    pub(in crate::store::subscription) credentials_refused: bool,
}

/// How many channels one command may name.
#[derive(Clone, Copy)]
pub(in crate::store::subscription) struct Batch {
    pub(in crate::store::subscription) most: usize,
    /// They have to be of one slot.
    pub(in crate::store::subscription) by_slot: bool,
}

impl Hub {
    /// What the line has to send now; `None` if it is not wanted any more.
    pub(in crate::store::subscription) fn plan(&self, id: u64, batch: Batch) -> Option<Plan> {
        let mut after = After::default();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let line = state.lines.iter_mut().find(|line| line.id == id)?;
        line.connected = true;
        let mut sends = Vec::new();
        let (mut begin, mut end) = (Names::default(), Names::default());
        for (kind, name, slot) in std::mem::take(&mut line.moved_away) {
            end.add(kind, name, slot, false);
        }
        for (kind, name) in std::mem::take(&mut line.dirty) {
            let Some(topic) = line.channels[kind as usize].get_mut(&name) else {
                continue;
            };
            match (topic.state, topic.listeners.is_empty()) {
                (LineChannelState::Idle, false) => {
                    topic.state = LineChannelState::Asked;
                    begin.add(kind, name, topic.slot, topic.alone);
                }
                (LineChannelState::Active, true) => {
                    topic.state = LineChannelState::Ending;
                    end.add(kind, name, topic.slot, false);
                }
                (LineChannelState::Idle | LineChannelState::Refused, true) => {
                    line.channels(kind).remove(&name);
                }
                _ => {}
            }
        }
        end.into_commands(batch, |kind, names| {
            sends.push((
                Sent::Unsubscribe(kind, names.clone()),
                kind.unsubscribe(&names),
            ));
        });
        begin.into_commands(batch, |kind, names| {
            sends.push((Sent::Subscribe(kind, names.clone()), kind.subscribe(&names)));
        });
        if std::mem::take(&mut line.tracking_dirty) {
            let trackers = || state.trackers.iter().filter(|_| line.tracked);
            let prefixes =
                trackers().flat_map(|(_, tracker)| tracker.wanted.prefixes.iter().flatten());
            match line.tracking.step(prefixes) {
                Step::Nothing => {}
                Step::Served => {
                    for (id, tracker) in trackers() {
                        if line.tracking.up.insert(*id) {
                            after.add(tracker.mailbox.up());
                        }
                    }
                }
                Step::Send { commands, gap } => {
                    if gap {
                        for id in std::mem::take(&mut line.tracking.up) {
                            if let Some(tracker) = state.trackers.get(&id) {
                                after.add(tracker.mailbox.down());
                            }
                        }
                    }
                    sends.extend(commands.into_iter().map(|cmd| (Sent::Tracking, cmd)));
                }
            }
        }
        let plan = Plan {
            sends,
            retry_at: line.retry_at,
            unused: line.is_unused(),
            credentials_refused: std::mem::take(&mut line.credentials_refused),
        };
        drop(guard);
        after.tell();
        Some(plan)
    }
}

/// Names that go into commands.
#[derive(Default)]
struct Names(Vec<(ChannelKind, Option<u16>, bool, Name)>);

impl Names {
    fn add(&mut self, kind: ChannelKind, name: Name, slot: Option<u16>, alone: bool) {
        self.0.push((kind, slot, alone, name));
    }

    fn into_commands(mut self, batch: Batch, mut command: impl FnMut(ChannelKind, VecDeque<Name>)) {
        self.0.sort_unstable();
        let together = |a: &(ChannelKind, Option<u16>, bool, Name),
                        b: &(ChannelKind, Option<u16>, bool, Name)| {
            a.0 == b.0 && (!batch.by_slot || a.1 == b.1) && !a.2 && !b.2
        };
        for group in self.0.chunk_by(together) {
            for names in group.chunks(batch.most) {
                command(
                    names[0].0,
                    names.iter().map(|name| name.3.clone()).collect(),
                );
            }
        }
    }
}
