//! On which line a channel is: the one that leads to the owner of its slot, now and after it has moved.

use std::sync::Arc;

use tokio::{runtime::Handle, sync::Notify};

use super::{After, Hub, LineChannelState, SharedLine, State};
use crate::store::{
    backend::Backend,
    subscription::{line::Task, topic::ChannelKind, tracking::Tracking},
    transport::Dial,
};

impl Hub {
    /// The line to a server, which is made if there is none.
    pub(super) fn line(
        self: &Arc<Self>,
        state: &mut State,
        dial: Option<Arc<Dial>>,
        after: &mut After,
    ) -> usize {
        if let Some(at) = state
            .lines
            .iter()
            .position(|line| line.leads_to(dial.as_ref()))
        {
            return at;
        }
        state.count += 1;
        let (id, wake) = (state.count, Arc::new(Notify::new()));
        after.tasks.push(Task::new(
            Arc::downgrade(self),
            id,
            dial.clone(),
            wake.clone(),
        ));
        state.lines.push(SharedLine {
            id,
            dial,
            wake,
            connected: false,
            channels: Default::default(),
            dirty: Vec::new(),
            moved_away: Vec::new(),
            refused: Vec::new(),
            retry_at: None,
            retries: 0,
            answered_early: Vec::new(),
            down: None,
            reported: false,
            credentials_refused: false,
            tracking: Tracking::default(),
            tracking_refused: None,
            tracked: false,
            tracking_dirty: true,
        });
        state.lines.len() - 1
    }

    /// How to reach the owner of a slot, or any server.
    pub(super) fn dial(&self, state: &State, slot: Option<u16>) -> Option<Arc<Dial>> {
        match (&*self.backend, slot) {
            (Backend::Cluster(cluster), Some(slot)) => {
                let owner = cluster.owner(slot).or_else(|| cluster.any());
                owner.map(|node| node.dial().clone())
            }
            (Backend::Cluster(cluster), None) => {
                // A connection that is there already is preferred.
                let masters = cluster.masters();
                let open = state.lines.iter().find(|line| {
                    line.connected && masters.iter().any(|node| line.leads_to(Some(node.dial())))
                });
                match open {
                    Some(line) => line.dial.clone(),
                    None => cluster.any().map(|node| node.dial().clone()),
                }
            }
            (backend, _) => backend.dial_any().ok(),
        }
    }

    /// How to reach every server that has keys.
    pub(super) fn masters(&self) -> Vec<Option<Arc<Dial>>> {
        match &*self.backend {
            Backend::Cluster(cluster) => {
                let masters = cluster.masters().into_iter();
                masters.map(|node| Some(node.dial().clone())).collect()
            }
            backend => vec![backend.dial_any().ok()],
        }
    }

    /// Makes the lines to all masters, and only those, parts of the subscriptions to changes of keys.
    pub(super) fn track(self: &Arc<Self>, state: &mut State, wanted: bool, after: &mut After) {
        let masters = if wanted { self.masters() } else { Vec::new() };
        for dial in &masters {
            let at = self.line(state, dial.clone(), after);
            let line = &mut state.lines[at];
            if !std::mem::replace(&mut line.tracked, true) {
                for tracker in state.trackers.values() {
                    after.add(tracker.mailbox.down());
                }
                line.tracking_dirty = true;
                line.wake.notify_one();
            }
        }
        for line in &mut state.lines {
            let is_master = masters.iter().any(|dial| line.leads_to(dial.as_ref()));
            if line.tracked && !is_master {
                for (id, tracker) in &state.trackers {
                    if line.tracking.up.remove(id) {
                        after.add(tracker.mailbox.down());
                    }
                    after.add(tracker.mailbox.up());
                }
                line.tracked = false;
                line.tracking_dirty = true;
                line.wake.notify_one();
            }
        }
    }

    /// Channels that were refused are asked for again.
    pub(in crate::store::subscription) fn retry(self: &Arc<Self>, id: u64) {
        {
            let mut state = self.state.lock();
            let Some(line) = state.line_mut(id) else {
                return;
            };
            line.retry_at = None;
            line.retries = line.retries.saturating_add(1);
            line.tracking_dirty = true;
            for (kind, name) in std::mem::take(&mut line.refused) {
                let Some(topic) = line.channels(kind).get_mut(&name) else {
                    continue;
                };
                match topic.state {
                    LineChannelState::Refused => topic.state = LineChannelState::Idle,
                    // Its end was refused.
                    LineChannelState::Active if topic.listeners.is_empty() => {}
                    _ => continue,
                }
                line.dirty.push((kind, name));
            }
        }
        self.rehome(id);
    }

    /// On a Cluster, moves channels to the line that leads to the owner of their slot.
    pub(in crate::store::subscription) fn rehome(self: &Arc<Self>, id: u64) {
        let Backend::Cluster(cluster) = &*self.backend else {
            return;
        };
        let mut after = After::default();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(from) = state.lines.iter().position(|line| line.id == id) else {
            return;
        };
        let line = &state.lines[from];
        let is_master = cluster
            .masters()
            .iter()
            .any(|node| line.leads_to(Some(node.dial())));
        let stays = line.connected && is_master;
        let mut moves = Vec::new();
        for kind in ChannelKind::ALL {
            for (name, topic) in &line.channels[kind as usize] {
                let to = match topic.slot {
                    Some(slot) => cluster.owner(slot).map(|node| node.dial().clone()),
                    None if stays => None,
                    None => self.dial(state, None),
                };
                if let Some(to) = to
                    && !line.leads_to(Some(&to))
                {
                    moves.push((kind, name.clone(), to));
                }
            }
        }
        for (kind, name, to) in moves {
            let line = &mut state.lines[from];
            let Some(mut topic) = line.channels(kind).remove(&name) else {
                continue;
            };
            if topic.state == LineChannelState::Active {
                for mailbox in topic.listeners.values() {
                    after.add(mailbox.down());
                }
            }
            if matches!(
                topic.state,
                LineChannelState::Active | LineChannelState::Asked
            ) && line.connected
            {
                line.moved_away.push((kind, name.clone(), topic.slot));
            }
            topic.state = LineChannelState::Idle;
            let at = self.line(state, Some(to), &mut after);
            let line = &mut state.lines[at];
            line.dirty.push((kind, name.clone()));
            line.channels(kind).insert(name, topic);
            line.wake.notify_one();
        }
        let wanted = !state.trackers.is_empty();
        self.track(state, wanted, &mut after);
        drop(guard);
        self.finish(after, &Handle::current());
    }
}
