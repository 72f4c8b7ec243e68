//! Who listens to what, and on which line.
//!
//! Invariants, all under one lock: a channel is on one line; a part of a subscription that is not active is counted in
//! its mailbox; what a line has to send is marked in its `dirty` list. Readers are woken, tasks are spawned, and logs and
//! metrics are written after the lock is released, because all of them may run code that takes it.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Weak},
    task::Waker,
    time::Duration,
};

use parking_lot::Mutex;
use redis::{RedisError, Value};
use tokio::{
    runtime::{self, Handle},
    sync::Notify,
    time::Instant,
};

use super::{
    line::{Sent, Task},
    mailbox::{Effect, Mailbox},
    topic::{ChannelKind, Name, Wanted},
    tracking::Tracking,
};
use crate::{
    error::{Error, Result},
    store::{backend::Backend, request::elsewhere_or_later, transport::Dial},
    watch,
};

mod heard;
mod plan;
mod route;
#[cfg(test)]
mod tests;

pub(super) use plan::Batch;

/// When a channel that was refused because its slot moved, or for now, is asked for again at first.
const MOVED_PAUSE: Duration = Duration::from_millis(25);
/// When a channel that was refused for another reason is asked for again; the longest pause for all.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// After this many deliveries the lock is given back for a moment.
const DELIVERIES: usize = 1024;

/// The subscriptions of a store.
pub(crate) struct Hubs {
    backend: Arc<Backend>,
    patience: Duration,
    hubs: Mutex<HashMap<runtime::Id, Arc<Hub>>>,
}

impl Hubs {
    pub(crate) fn new(backend: Arc<Backend>, patience: Duration) -> Self {
        Self {
            backend,
            patience,
            hubs: Mutex::default(),
        }
    }

    pub(super) fn can_subscribe(&self) -> Result<()> {
        self.backend.can_dial()
    }

    /// How many subscriptions listen to a sharded channel.
    #[cfg(feature = "locking")]
    pub(crate) fn listeners(&self, channel: &[u8]) -> usize {
        let hubs = self.hubs.lock();
        hubs.values()
            .map(|hub| {
                let state = hub.state.lock();
                let mut topics = state
                    .lines
                    .iter()
                    .filter_map(|line| line.channels[ChannelKind::Sharded as usize].get(channel));
                topics.next().map_or(0, |topic| topic.listeners.len())
            })
            .sum()
    }

    /// The hub of a runtime.
    pub(super) fn hub(&self, runtime: &Handle) -> Arc<Hub> {
        let mut hubs = self.hubs.lock();
        let here = runtime.id();
        // Nobody can attach to a hub that only this map holds, except through this map. One whose runtime ended after its
        // last line had been closed is not told so.
        hubs.retain(|id, hub| {
            let state = hub.state.lock();
            let is_empty = state.lines.is_empty() && state.subscribers.is_empty();
            !state.ended && (*id == here || !is_empty || Arc::strong_count(hub) > 1)
        });
        let made = || {
            Arc::new(Hub {
                backend: self.backend.clone(),
                patience: self.patience,
                state: Mutex::default(),
            })
        };
        hubs.entry(here).or_insert_with(made).clone()
    }
}

/// The subscriptions in one runtime.
pub(super) struct Hub {
    backend: Arc<Backend>,
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lines: Vec<SharedLine>,
    subscribers: BTreeMap<u64, Subscriber>,
    /// Those of the subscribers that listen to changes of keys.
    trackers: BTreeMap<u64, Subscriber>,
    count: u64,
    /// The runtime has ended.
    ended: bool,
}

#[derive(Clone)]
struct Subscriber {
    wanted: Arc<Wanted>,
    mailbox: Arc<Mailbox>,
}

/// One connection as its subscribers see it; [`Task`] is the other side.
struct SharedLine {
    id: u64,
    /// `None` for the embedded engine.
    dial: Option<Arc<Dial>>,
    /// Tells the task that there is something to do.
    wake: Arc<Notify>,
    connected: bool,
    channels: [BTreeMap<Name, LineChannel>; 3],
    /// Channels whose subscription may have to begin or end.
    dirty: Vec<(ChannelKind, Name)>,
    /// Channels that now belong to another line.
    moved_away: Vec<(ChannelKind, Name, Option<u16>)>,
    /// Channels that were refused, and when they are asked for again.
    refused: Vec<(ChannelKind, Name)>,
    retry_at: Option<Instant>,
    /// How often that was in vain, since the last confirmation.
    retries: u32,
    /// Slots whose loss may have been taken for the answer to the end of a subscription, which is then still to come.
    answered_early: Vec<u16>,
    /// Why the connection was lost or not made, until a server confirms something.
    down: Option<Arc<Error>>,
    /// A refusal was reported in the log since the connection was made.
    reported: bool,
    credentials_refused: bool,
    tracking: Tracking,
    tracking_refused: Option<Arc<Error>>,
    /// Whether this line is a part of the subscriptions to changes of keys.
    tracked: bool,
    tracking_dirty: bool,
}

struct LineChannel {
    listeners: BTreeMap<u64, Arc<Mailbox>>,
    slot: Option<u16>,
    state: LineChannelState,
    /// Refused together with others, so the next command has no others.
    alone: bool,
    /// The last refusal, until the subscription is confirmed.
    refusal: Option<Arc<Error>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LineChannelState {
    Idle,
    /// The subscription was sent and is not confirmed.
    Asked,
    Active,
    /// The end of the subscription was sent and is not confirmed.
    Ending,
    Refused,
}

/// What is done after the lock is released.
#[derive(Default)]
struct After {
    readers: Vec<Waker>,
    gaps: u64,
    overflows: u64,
    deliveries: usize,
    logs: Vec<Box<dyn FnOnce() + Send>>,
    tasks: Vec<Task>,
    /// The topology may have changed; the redirection says more, if there is one.
    trouble: Option<(Option<RedisError>, Option<Arc<Dial>>)>,
}

impl After {
    fn add(&mut self, effect: Effect) {
        self.readers.extend(effect.reader);
        self.gaps += u64::from(effect.gap);
        self.overflows += u64::from(effect.overflow);
    }

    fn log(&mut self, log: impl FnOnce() + Send + 'static) {
        self.logs.push(Box::new(log));
    }

    /// Wakes the readers, and writes logs and metrics.
    fn tell(&mut self) {
        for reader in self.readers.drain(..) {
            reader.wake();
        }
        for log in self.logs.drain(..) {
            log();
        }
        if self.gaps > 0 {
            metrics::counter!("redstart_store_gaps_total").increment(self.gaps);
        }
        if self.overflows > 0 {
            metrics::counter!("redstart_store_overflows_total").increment(self.overflows);
        }
    }
}

impl SharedLine {
    fn channels(&mut self, kind: ChannelKind) -> &mut BTreeMap<Name, LineChannel> {
        &mut self.channels[kind as usize]
    }

    fn is_unused(&self) -> bool {
        self.channels.iter().all(BTreeMap::is_empty)
            && self.moved_away.is_empty()
            && !self.tracked
            && !self.tracking.is_on()
    }

    fn leads_to(&self, dial: Option<&Arc<Dial>>) -> bool {
        match (&self.dial, dial) {
            (Some(mine), Some(other)) => Arc::ptr_eq(mine, other),
            (None, None) => true,
            _ => false,
        }
    }

    /// Its channel is refused, and asked for again after a pause.
    fn refuse(&mut self, kind: ChannelKind, name: &Name, pause: Duration, after: &mut After) {
        let Some(topic) = self.channels[kind as usize].get_mut(name) else {
            return;
        };
        if topic.state == LineChannelState::Active {
            for mailbox in topic.listeners.values() {
                after.add(mailbox.down());
            }
        }
        topic.state = LineChannelState::Refused;
        self.refused.push((kind, name.clone()));
        self.retry_in(pause);
    }

    fn retry_in(&mut self, pause: Duration) {
        let at = Instant::now() + pause;
        self.retry_at = Some(self.retry_at.map_or(at, |known| known.min(at)));
    }

    /// How long to wait after this refusal. It grows, because what a server refuses for now it may refuse for long.
    fn pause(&self, error: &RedisError) -> Duration {
        if elsewhere_or_later(error) {
            (MOVED_PAUSE * (1 << self.retries.min(6))).min(REFUSED_PAUSE)
        } else {
            REFUSED_PAUSE
        }
    }

    /// The server did something that was asked for.
    fn confirmed(&mut self) {
        self.retries = 0;
        self.down = None;
        self.answered_early.clear();
    }
}

impl State {
    fn line_mut(&mut self, id: u64) -> Option<&mut SharedLine> {
        self.lines.iter_mut().find(|line| line.id == id)
    }
}

impl Hub {
    fn finish(&self, mut after: After, runtime: &Handle) {
        after.tell();
        for task in after.tasks {
            crate::task::spawn_on(runtime, task.run());
        }
        match after.trouble {
            Some((Some(error), dial)) => {
                self.backend.redirected(&error, dial.as_deref());
            }
            Some((None, _)) => self.backend.troubled(),
            None => {}
        }
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    pub(super) fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// Changes when another node owns a slot.
    pub(super) fn topology(&self) -> Option<watch::Receiver<u64>> {
        match &*self.backend {
            Backend::Cluster(cluster) => Some(cluster.watch()),
            _ => None,
        }
    }

    /// Begins to feed a mailbox; returns the subscriber's number.
    pub(super) fn attach(
        self: &Arc<Self>,
        runtime: &Handle,
        wanted: &Arc<Wanted>,
        mailbox: &Arc<Mailbox>,
    ) -> u64 {
        let mut after = After::default();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.count += 1;
        let id = state.count;
        if state.ended {
            after.add(mailbox.orphan());
            drop(guard);
            self.finish(after, runtime);
            return id;
        }
        // Held until all parts are known.
        after.add(mailbox.down());
        let mut active = 1;
        for (kind, name, slot) in &wanted.channels {
            after.add(mailbox.down());
            let known = state
                .lines
                .iter()
                .position(|line| line.channels[*kind as usize].contains_key(name));
            let at = match known {
                Some(at) => at,
                None => {
                    let dial = self.dial(state, *slot);
                    self.line(state, dial, &mut after)
                }
            };
            let line = &mut state.lines[at];
            let made = || LineChannel {
                listeners: BTreeMap::new(),
                slot: *slot,
                state: LineChannelState::Idle,
                alone: false,
                refusal: None,
            };
            let topic = line
                .channels(*kind)
                .entry(name.clone())
                .or_insert_with(made);
            topic.listeners.insert(id, mailbox.clone());
            match topic.state {
                LineChannelState::Active => active += 1,
                LineChannelState::Idle => {
                    line.dirty.push((*kind, name.clone()));
                    line.wake.notify_one();
                }
                _ => {}
            }
        }
        let subscriber = Subscriber {
            wanted: wanted.clone(),
            mailbox: mailbox.clone(),
        };
        if wanted.prefixes.is_some() {
            self.track(state, true, &mut after);
            for line in state.lines.iter_mut().filter(|line| line.tracked) {
                after.add(mailbox.down());
                line.tracking_dirty = true;
                line.wake.notify_one();
            }
            state.trackers.insert(id, subscriber.clone());
        }
        state.subscribers.insert(id, subscriber);
        for _ in 0..active {
            after.add(mailbox.up());
        }
        drop(guard);
        self.finish(after, runtime);
        id
    }

    /// Ends a subscription.
    pub(super) fn detach(&self, id: u64) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(subscriber) = state.subscribers.remove(&id) else {
            return;
        };
        for (kind, name, _) in &subscriber.wanted.channels {
            for line in &mut state.lines {
                if let Some(topic) = line.channels(*kind).get_mut(name)
                    && topic.listeners.remove(&id).is_some()
                    && topic.listeners.is_empty()
                {
                    line.dirty.push((*kind, name.clone()));
                    line.wake.notify_one();
                }
            }
        }
        let tracker = state.trackers.remove(&id);
        if tracker.is_some() {
            let none_left = state.trackers.is_empty();
            for line in &mut state.lines {
                line.tracking.up.remove(&id);
                line.tracked &= !none_left;
                line.tracking_dirty = true;
                line.wake.notify_one();
            }
        }
        drop(guard);
        // They may own a task, which may own a subscription.
        drop((subscriber, tracker));
    }

    /// Takes what the server said. `sent` are the commands that it has not answered yet.
    ///
    /// # Errors
    ///
    /// The server said what nothing was asked for.
    pub(super) fn hear(
        &self,
        id: u64,
        sent: &mut VecDeque<(Sent, Instant)>,
        mut values: impl Iterator<Item = Value>,
    ) -> Result<()> {
        loop {
            let mut after = After::default();
            let mut guard = self.state.lock();
            let state = &mut *guard;
            let Some(line) = state.lines.iter_mut().find(|line| line.id == id) else {
                return Ok(());
            };
            let outcome = loop {
                if after.deliveries >= DELIVERIES {
                    break Ok(true);
                }
                let heard = match values.next() {
                    None => break Ok(false),
                    Some(Value::Push { kind, data }) => {
                        heard::pushed(line, &state.trackers, sent, &kind, data, &mut after)
                    }
                    Some(reply) => heard::answered(line, sent, reply, &mut after),
                };
                if let Err(error) = heard {
                    break Err(error);
                }
            };
            drop(guard);
            self.finish(after, &Handle::current());
            if !outcome? {
                return Ok(());
            }
        }
    }

    /// Why a subscription is not active, as far as servers have said so.
    pub(super) fn why(&self, wanted: &Wanted) -> Option<Arc<Error>> {
        let state = self.state.lock();
        state.lines.iter().find_map(|line| {
            let channels = wanted.channels.iter();
            let mut topics = channels
                .filter_map(|(kind, name, _)| line.channels[*kind as usize].get(name))
                .filter(|topic| topic.state != LineChannelState::Active)
                .peekable();
            let tracks = wanted.prefixes.is_some() && line.tracked;
            let is_part = topics.peek().is_some() || tracks;
            topics
                .find_map(|topic| topic.refusal.clone())
                .or_else(|| line.tracking_refused.clone().filter(|_| tracks))
                .or_else(|| line.down.clone().filter(|_| is_part))
        })
    }

    /// The connection of the line is gone, or could not be made.
    pub(super) fn lost(&self, id: u64, why: Option<Arc<Error>>) {
        let mut after = After::default();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(line) = state.lines.iter_mut().find(|line| line.id == id) else {
            return;
        };
        line.connected = false;
        line.down = why.or(line.down.take());
        line.moved_away.clear();
        line.refused.clear();
        line.retry_at = None;
        line.retries = 0;
        line.answered_early.clear();
        line.reported = false;
        line.credentials_refused = false;
        line.tracking_refused = None;
        line.dirty.clear();
        for kind in ChannelKind::ALL {
            let channels = &mut line.channels[kind as usize];
            channels.retain(|_, topic| !topic.listeners.is_empty());
            for (name, topic) in channels {
                if topic.state == LineChannelState::Active {
                    for mailbox in topic.listeners.values() {
                        after.add(mailbox.down());
                    }
                }
                topic.state = LineChannelState::Idle;
                line.dirty.push((kind, name.clone()));
            }
        }
        line.tracking.reset();
        line.tracking_dirty = true;
        for id in std::mem::take(&mut line.tracking.up) {
            if let Some(tracker) = state.trackers.get(&id) {
                after.add(tracker.mailbox.down());
            }
        }
        after.trouble = Some((None, None));
        drop(guard);
        self.finish(after, &Handle::current());
    }

    /// Removes a line that nobody uses; `false` if somebody does.
    pub(super) fn retire(&self, id: u64) -> bool {
        let mut state = self.state.lock();
        match state.lines.iter().position(|line| line.id == id) {
            None => true,
            Some(at) if state.lines[at].is_unused() => {
                state.lines.swap_remove(at);
                true
            }
            Some(_) => false,
        }
    }

    /// Whether anybody uses the line; `None` if it is gone.
    pub(super) fn is_used(&self, id: u64) -> Option<bool> {
        let mut state = self.state.lock();
        state.line_mut(id).map(|line| !line.is_unused())
    }

    /// The runtime has ended, and the lines with it. Subscribers that live on attach themselves elsewhere.
    pub(super) fn orphan(&self) {
        let (lines, subscribers) = {
            let mut state = self.state.lock();
            state.ended = true;
            let trackers = std::mem::take(&mut state.trackers);
            (
                std::mem::take(&mut state.lines),
                (std::mem::take(&mut state.subscribers), trackers),
            )
        };
        for line in lines {
            line.wake.notify_one();
        }
        let mut after = After::default();
        for subscriber in subscribers.0.values() {
            after.add(subscriber.mailbox.orphan());
        }
        after.tell();
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        for line in &self.state.get_mut().lines {
            line.wake.notify_one();
        }
    }
}

/// For [`Task`], which must not keep the hub alive.
pub(super) type WeakHub = Weak<Hub>;
