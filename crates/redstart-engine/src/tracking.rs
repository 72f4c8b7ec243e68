//! Client-side caching: which clients hear that a key has changed.
//!
//! A tracking client is remembered for each key it reads, and told once when that key changes. In
//! broadcast mode it names prefixes instead, and is told of every change below them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use hashbrown::HashMap;

use crate::{
    client::{Client, Profile},
    engine::State,
    pubsub::Kind,
    reply::Reply,
    types::blob::Blob,
};

/// Where a RESP2 client hears of invalidations that were redirected to it.
const REDIRECT_CHANNEL: &[u8] = b"__redis__:invalidate";

/// A client's choices in CLIENT TRACKING.
#[derive(Clone, Default)]
pub(crate) struct Tracking {
    pub(crate) bcast: bool,
    pub(crate) optin: bool,
    pub(crate) optout: bool,
    pub(crate) noloop: bool,
    /// The client that gets the invalidations; 0 is this one.
    pub(crate) redirect: u64,
    pub(crate) prefixes: Vec<Bytes>,
    /// CLIENT CACHING was called: yes or no for the next command.
    pub(crate) caching: Option<bool>,
}

struct Tracker {
    profile: Arc<Profile>,
    noloop: bool,
    bcast: bool,
    redirect: u64,
    broken: AtomicBool,
}

#[derive(Default)]
struct Prefix {
    clients: BTreeSet<u64>,
    /// Keys that changed in the running unit, and who changed them.
    changed: BTreeMap<Blob, u64>,
}

/// Everything the engine knows about caching clients.
#[derive(Default)]
pub(crate) struct Table {
    trackers: HashMap<u64, Tracker>,
    keys: HashMap<Blob, BTreeSet<u64>>,
    prefixes: HashMap<Blob, Prefix>,
    /// How many prefixes there are of each length, so that a key is looked up once per length.
    lengths: BTreeMap<usize, usize>,
    /// Prefixes with changes to broadcast.
    changed: BTreeSet<Blob>,
}

impl Table {
    /// Whether any client tracks anything.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        !self.trackers.is_empty()
    }

    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        !self.changed.is_empty()
    }

    pub(crate) fn clients(&self) -> usize {
        self.trackers.len()
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn items(&self) -> usize {
        self.keys.values().map(BTreeSet::len).sum()
    }

    pub(crate) fn prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// Whether the client that gets this client's invalidations is gone.
    pub(crate) fn is_broken(&self, id: u64) -> bool {
        self.trackers
            .get(&id)
            .is_some_and(|tracker| tracker.broken.load(Ordering::Relaxed))
    }
}

/// Starts tracking for a client, or changes its choices. The prefixes are added to those it has.
pub(crate) fn enable(
    state: &mut State,
    client: &mut Client,
    profile: Arc<Profile>,
    mut choice: Tracking,
) {
    let before = client.tracking.take();
    if let Some(before) = before {
        let mut prefixes = before.prefixes;
        prefixes.append(&mut choice.prefixes);
        choice.prefixes = prefixes;
    }
    if choice.bcast && choice.prefixes.is_empty() {
        choice.prefixes.push(Bytes::new());
    }
    for prefix in &choice.prefixes {
        let table = &mut state.tracking;
        let entry = table.prefixes.entry(Blob::new(prefix)).or_default();
        if entry.clients.is_empty() {
            *table.lengths.entry(prefix.len()).or_default() += 1;
        }
        entry.clients.insert(client.id);
    }
    let tracker = Tracker {
        profile,
        noloop: choice.noloop,
        bcast: choice.bcast,
        redirect: choice.redirect,
        broken: AtomicBool::new(false),
    };
    state.tracking.trackers.insert(client.id, tracker);
    client.tracking = Some(Box::new(choice));
}

/// Ends tracking for a client.
pub(crate) fn disable(state: &mut State, client: &mut Client) {
    let Some(tracking) = client.tracking.take() else {
        return;
    };
    let table = &mut state.tracking;
    table.trackers.remove(&client.id);
    for name in &tracking.prefixes {
        if let Some(prefix) = table.prefixes.get_mut(name.as_ref()) {
            prefix.clients.remove(&client.id);
            if prefix.clients.is_empty() {
                table.prefixes.remove(name.as_ref());
                table.changed.remove(name.as_ref());
                if let Some(count) = table.lengths.get_mut(&name.len()) {
                    *count -= 1;
                    if *count == 0 {
                        table.lengths.remove(&name.len());
                    }
                }
            }
        }
    }
    if table.trackers.is_empty() {
        *table = Table::default();
    }
}

/// Remembers that a client has read a key.
pub(crate) fn remember(state: &mut State, client: &Client, key: &[u8]) {
    let Some(tracking) = &client.tracking else {
        return;
    };
    let wanted = match tracking.caching {
        Some(yes) => yes,
        None => !tracking.optin,
    };
    if tracking.bcast || !wanted {
        return;
    }
    let readers = match state.tracking.keys.get_mut(key) {
        Some(readers) => readers,
        None => {
            trim(state, 1);
            state.tracking.keys.entry(Blob::new(key)).or_default()
        }
    };
    readers.insert(client.id);
}

/// Invalidates keys early until there is room for this many more.
pub(crate) fn trim(state: &mut State, room: usize) {
    let most = state.config.tracking_max_keys;
    while most > 0 && state.tracking.keys.len() + room > most {
        let Some(victim) = state.tracking.keys.keys().next().cloned() else {
            return;
        };
        invalidate_readers(state, 0, &victim);
    }
}

/// A key has changed: tells its readers now and the broadcast listeners when the unit is over.
pub(crate) fn invalidate(state: &mut State, by: u64, key: &[u8]) {
    invalidate_readers(state, by, key);
    let table = &mut state.tracking;
    for (&length, _) in table.lengths.range(..=key.len()) {
        if let Some(prefix) = table.prefixes.get_mut(&key[..length]) {
            prefix.changed.insert(Blob::new(key), by);
            table.changed.insert(Blob::new(&key[..length]));
        }
    }
}

fn invalidate_readers(state: &mut State, by: u64, key: &[u8]) {
    let Some(readers) = state.tracking.keys.remove(key) else {
        return;
    };
    let mut keys = None;
    for id in readers {
        let Some(tracker) = state.tracking.trackers.get(&id) else {
            continue;
        };
        if tracker.bcast || (tracker.noloop && id == by) {
            continue;
        }
        let keys = keys.get_or_insert_with(|| Reply::Array(vec![Reply::bulk(key)]));
        send(state, tracker, keys.clone());
    }
}

/// Broadcasts what has changed below the prefixes.
pub(crate) fn broadcast(state: &mut State) {
    let names = std::mem::take(&mut state.tracking.changed);
    let changes: Vec<_> = names
        .iter()
        .filter_map(|name| {
            let prefix = state.tracking.prefixes.get_mut(name)?;
            Some((prefix.clients.clone(), std::mem::take(&mut prefix.changed)))
        })
        .collect();
    for (clients, changed) in changes {
        for id in clients {
            let Some(tracker) = state.tracking.trackers.get(&id) else {
                continue;
            };
            let keys: Vec<Reply> = changed
                .iter()
                .filter(|(_, by)| !(tracker.noloop && **by == id))
                .map(|(key, _)| Reply::Bulk(key.to_bytes()))
                .collect();
            if !keys.is_empty() {
                send(state, tracker, Reply::Array(keys));
            }
        }
    }
}

/// All keys are gone: tells every tracking client to forget all it has.
pub(crate) fn flushed(state: &mut State) {
    if !state.tracking.is_active() {
        return;
    }
    state.tracking.keys.clear();
    for tracker in state.tracking.trackers.values() {
        send(state, tracker, Reply::Nil);
    }
}

/// The data is elsewhere: tracking clients are told to forget all they have, and are disconnected. Nobody
/// would tell them of changes any more.
pub(crate) fn end(state: &mut State) {
    flushed(state);
    for tracker in state.tracking.trackers.values() {
        tracker.profile.kill();
    }
}

fn send(state: &State, tracker: &Tracker, keys: Reply) {
    let target = if tracker.redirect == 0 {
        &tracker.profile
    } else {
        match state.clients.get(&tracker.redirect) {
            Some(target) => target,
            None => {
                if !tracker.broken.swap(true, Ordering::Relaxed) && tracker.profile.is_resp3() {
                    tracker.profile.outbox.push_late(Reply::Push(vec![
                        Reply::bulk("tracking-redir-broken"),
                        Reply::Int(tracker.redirect as i64),
                    ]));
                }
                return;
            }
        }
    };
    if target.is_resp3() {
        target
            .outbox
            .push_late(Reply::Push(vec![Reply::bulk("invalidate"), keys]));
        return;
    }
    let listens = state
        .pubsub
        .table(Kind::Channel)
        .get(REDIRECT_CHANNEL)
        .is_some_and(|subscribers| subscribers.contains_key(&target.id));
    if tracker.redirect != 0 && listens {
        target.outbox.push_late(Reply::Push(vec![
            Reply::bulk("message"),
            Reply::bulk(REDIRECT_CHANNEL),
            // An array instead of a message's text, as in Redis.
            if keys == Reply::Nil {
                Reply::NilArray
            } else {
                keys
            },
        ]));
    }
}
