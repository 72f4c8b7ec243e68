//! Who listens to which channel.

use crate::engine::State;

#[derive(Default)]
pub(crate) struct PubSub;

/// Delivers a message to the subscribers of a channel; how many there were.
pub(crate) fn publish(state: &mut State, channel: &[u8], message: &[u8]) -> usize {
    let _ = (&mut state.pubsub, channel, message);
    0
}
