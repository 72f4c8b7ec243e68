//! Keyspace notifications: which events are published, and as what.

use crate::{engine::State, pubsub};

/// The classes of events; a configuration is a union of them.
pub(crate) mod class {
    /// `K`: publish on `__keyspace@<db>__:<key>`.
    pub(crate) const KEYSPACE: u32 = 1;
    /// `E`: publish on `__keyevent@<db>__:<event>`.
    pub(crate) const KEYEVENT: u32 = 1 << 1;
    /// `g`
    pub(crate) const GENERIC: u32 = 1 << 2;
    /// `$`
    pub(crate) const STRING: u32 = 1 << 3;
    /// `l`
    pub(crate) const LIST: u32 = 1 << 4;
    /// `s`
    pub(crate) const SET: u32 = 1 << 5;
    /// `h`
    pub(crate) const HASH: u32 = 1 << 6;
    /// `z`
    pub(crate) const SORTED_SET: u32 = 1 << 7;
    /// `x`
    pub(crate) const EXPIRED: u32 = 1 << 8;
    /// `e`
    pub(crate) const EVICTED: u32 = 1 << 9;
    /// `t`
    pub(crate) const STREAM: u32 = 1 << 10;
    /// `m`
    pub(crate) const KEY_MISS: u32 = 1 << 11;
    /// `d`
    pub(crate) const MODULE: u32 = 1 << 13;
    /// `n`
    pub(crate) const NEW: u32 = 1 << 14;
}

/// Publishes an event if the configuration asks for its class.
pub(crate) fn publish(state: &mut State, class: u32, event: &str, key: &[u8], db: usize) {
    let wanted = state.config.notify;
    if wanted & class == 0 {
        return;
    }
    if wanted & self::class::KEYSPACE != 0 {
        let mut channel = format!("__keyspace@{db}__:").into_bytes();
        channel.extend_from_slice(key);
        pubsub::publish(state, &channel, event.as_bytes());
    }
    if wanted & self::class::KEYEVENT != 0 {
        let channel = format!("__keyevent@{db}__:{event}");
        pubsub::publish(state, channel.as_bytes(), key);
    }
}
