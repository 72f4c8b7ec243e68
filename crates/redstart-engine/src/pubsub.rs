//! Who listens to which channel.

use std::collections::BTreeMap;

use bytes::Bytes;
use hashbrown::HashMap;

use crate::{
    client::{Client, Outbox, Subscriptions},
    engine::State,
    glob,
    reply::Reply,
    types::blob::Blob,
};

/// Subscribers by client id, so that one leaves in O(log n) however many listen.
type Subscribers = BTreeMap<u64, Outbox>;

/// The three kinds of subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Channel,
    Pattern,
    Shard,
}

impl Kind {
    /// What the confirmation of a subscription is called.
    pub(crate) fn subscribe(self) -> &'static str {
        match self {
            Kind::Channel => "subscribe",
            Kind::Pattern => "psubscribe",
            Kind::Shard => "ssubscribe",
        }
    }

    /// What the confirmation of its end is called.
    pub(crate) fn unsubscribe(self) -> &'static str {
        match self {
            Kind::Channel => "unsubscribe",
            Kind::Pattern => "punsubscribe",
            Kind::Shard => "sunsubscribe",
        }
    }

    fn of(self, subscriptions: &mut Subscriptions) -> &mut std::collections::BTreeSet<Blob> {
        match self {
            Kind::Channel => &mut subscriptions.channels,
            Kind::Pattern => &mut subscriptions.patterns,
            Kind::Shard => &mut subscriptions.shards,
        }
    }
}

/// All subscriptions of the engine.
#[derive(Default)]
pub(crate) struct PubSub {
    channels: HashMap<Blob, Subscribers>,
    patterns: HashMap<Blob, Subscribers>,
    shards: HashMap<Blob, Subscribers>,
}

impl PubSub {
    pub(crate) fn table(&self, kind: Kind) -> &HashMap<Blob, Subscribers> {
        match kind {
            Kind::Channel => &self.channels,
            Kind::Pattern => &self.patterns,
            Kind::Shard => &self.shards,
        }
    }

    fn table_mut(&mut self, kind: Kind) -> &mut HashMap<Blob, Subscribers> {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
            Kind::Shard => &mut self.shards,
        }
    }

    /// How many clients listen to a channel by its name.
    pub(crate) fn listeners(&self, kind: Kind, name: &[u8]) -> usize {
        self.table(kind).get(name).map_or(0, BTreeMap::len)
    }
}

/// Subscribes a client; whether it was not subscribed before.
pub(crate) fn subscribe(state: &mut State, client: &mut Client, kind: Kind, name: &[u8]) -> bool {
    let name = Blob::new(name);
    let subscriptions = client.subscriptions.get_or_insert_default();
    if !kind.of(subscriptions).insert(name.clone()) {
        return false;
    }
    let (id, outbox) = (client.id, client.outbox().clone());
    let subscribers = state.pubsub.table_mut(kind).entry(name).or_default();
    subscribers.insert(id, outbox);
    true
}

/// Ends one subscription; whether there was one.
pub(crate) fn unsubscribe(state: &mut State, client: &mut Client, kind: Kind, name: &[u8]) -> bool {
    let Some(subscriptions) = &mut client.subscriptions else {
        return false;
    };
    let was = kind.of(subscriptions).remove(name);
    if was {
        leave(state, kind, name, client.id);
    }
    let empty = subscriptions.channels.is_empty()
        && subscriptions.patterns.is_empty()
        && subscriptions.shards.is_empty();
    if empty {
        client.subscriptions = None;
    }
    was
}

fn leave(state: &mut State, kind: Kind, name: &[u8], id: u64) {
    let table = state.pubsub.table_mut(kind);
    if let Some(subscribers) = table.get_mut(name) {
        subscribers.remove(&id);
        if subscribers.is_empty() {
            table.remove(name);
        }
    }
}

/// The names a client is subscribed to.
pub(crate) fn names(client: &mut Client, kind: Kind) -> Vec<Blob> {
    match &mut client.subscriptions {
        Some(subscriptions) => kind.of(subscriptions).iter().cloned().collect(),
        None => Vec::new(),
    }
}

/// Ends all subscriptions of a client without a word to it.
pub(crate) fn forget(state: &mut State, client: &mut Client) {
    for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
        for name in names(client, kind) {
            unsubscribe(state, client, kind, &name);
        }
    }
}

/// Calls `visit` with each channel and pattern that somebody listens to, and the ids of those.
pub(crate) fn each_subscription<'s>(
    state: &'s State,
    mut visit: impl FnMut(Kind, &[u8], std::collections::btree_map::Keys<'s, u64, Outbox>),
) {
    for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
        for (name, subscribers) in state.pubsub.table(kind) {
            visit(kind, name, subscribers.keys());
        }
    }
}

/// Delivers nothing more to a client that will be told of its end.
pub(crate) fn cut_off(state: &mut State, id: u64) {
    for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
        state.pubsub.table_mut(kind).retain(|_, subscribers| {
            subscribers.remove(&id);
            !subscribers.is_empty()
        });
    }
}

/// Delivers a message to the subscribers of a channel; how many there were.
pub(crate) fn publish(state: &mut State, channel: &[u8], message: &[u8]) -> usize {
    publish_by(state, channel, message, Outbox::push)
}

/// As [`publish`], for what tells nothing of the data: it waits for no disk.
pub(crate) fn publish_free(state: &mut State, channel: &[u8], message: &[u8]) -> usize {
    publish_by(state, channel, message, Outbox::push_free)
}

fn publish_by(
    state: &mut State,
    channel: &[u8],
    message: &[u8],
    push: impl Fn(&Outbox, Reply),
) -> usize {
    let pubsub = &state.pubsub;
    if pubsub.channels.is_empty() && pubsub.patterns.is_empty() {
        return 0;
    }
    let mut count = 0;
    let mut shared: Option<(Bytes, Bytes)> = None;
    let mut share = || {
        shared
            .get_or_insert_with(|| {
                (
                    Bytes::copy_from_slice(channel),
                    Bytes::copy_from_slice(message),
                )
            })
            .clone()
    };
    if let Some(subscribers) = pubsub.channels.get(channel) {
        let (channel, message) = share();
        for outbox in subscribers.values() {
            push(
                outbox,
                Reply::Push(vec![
                    Reply::Bulk(Bytes::from_static(b"message")),
                    Reply::Bulk(channel.clone()),
                    Reply::Bulk(message.clone()),
                ]),
            );
            count += 1;
        }
    }
    for (pattern, subscribers) in &pubsub.patterns {
        if !glob::matches(pattern, channel) {
            continue;
        }
        let (channel, message) = share();
        let pattern = pattern.to_bytes();
        for outbox in subscribers.values() {
            push(
                outbox,
                Reply::Push(vec![
                    Reply::Bulk(Bytes::from_static(b"pmessage")),
                    Reply::Bulk(pattern.clone()),
                    Reply::Bulk(channel.clone()),
                    Reply::Bulk(message.clone()),
                ]),
            );
            count += 1;
        }
    }
    count
}

/// Delivers a message to the subscribers of a sharded channel; how many there were.
pub(crate) fn publish_sharded(state: &mut State, channel: &[u8], message: &[u8]) -> usize {
    let Some(subscribers) = state.pubsub.shards.get(channel) else {
        return 0;
    };
    // Copies: an argument is a part of a read buffer, which a subscriber that does not read would keep.
    let both = Bytes::from([channel, message].concat());
    let (channel, message) = (both.slice(..channel.len()), both.slice(channel.len()..));
    for outbox in subscribers.values() {
        outbox.push(Reply::Push(vec![
            Reply::Bulk(Bytes::from_static(b"smessage")),
            Reply::Bulk(channel.clone()),
            Reply::Bulk(message.clone()),
        ]));
    }
    subscribers.len()
}
