//! What a server said on a line, and what that means for those who listen.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use redis::{ErrorKind, PushKind, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use super::{After, LineChannelState, MOVED_PAUSE, REFUSED_PAUSE, SharedLine, Subscriber};
use crate::{
    error::{Error, Result},
    store::{
        request::elsewhere_or_later,
        subscription::{
            Event, Message,
            line::Sent,
            topic::{ChannelKind, Name},
        },
    },
};

/// The server spoke by itself, or confirmed that a subscription begins or ends.
pub(super) fn pushed(
    line: &mut SharedLine,
    trackers: &BTreeMap<u64, Subscriber>,
    sent: &mut VecDeque<(Sent, Instant)>,
    kind: &PushKind,
    data: Vec<Value>,
    after: &mut After,
) -> Result<()> {
    match kind {
        PushKind::Message => deliver(line, ChannelKind::Channel, data, after),
        PushKind::SMessage => deliver(line, ChannelKind::Sharded, data, after),
        PushKind::PMessage => deliver(line, ChannelKind::Pattern, data, after),
        PushKind::Invalidate => invalidate(line, trackers, data, after),
        PushKind::Subscribe => return begun(line, ChannelKind::Channel, sent, data, after),
        PushKind::SSubscribe => return begun(line, ChannelKind::Sharded, sent, data, after),
        PushKind::PSubscribe => return begun(line, ChannelKind::Pattern, sent, data, after),
        PushKind::Unsubscribe => ended(line, ChannelKind::Channel, sent, data, after),
        PushKind::SUnsubscribe => ended(line, ChannelKind::Sharded, sent, data, after),
        PushKind::PUnsubscribe => ended(line, ChannelKind::Pattern, sent, data, after),
        _ => {}
    }
    Ok(())
}

fn bytes(value: Option<Value>) -> Option<Vec<u8>> {
    match value? {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

fn deliver(line: &SharedLine, kind: ChannelKind, data: Vec<Value>, after: &mut After) {
    let mut data = data.into_iter();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Some(name) = bytes(data.next()) else {
        return;
    };
    let Some(topic) = line.channels[kind as usize].get(&name[..]) else {
        // The last listener has gone.
        return;
    };
    if topic.state != LineChannelState::Active {
        // The message is of a subscription that is ending. Whoever listens now waits for the next one, and would take
        // this for its beginning.
        return;
    }
    let (channel, pattern) = match kind {
        ChannelKind::Pattern => match bytes(data.next()) {
            Some(channel) => (text(&channel), Some(text(&name))),
            None => return,
        },
        _ => (text(&name), None),
    };
    let Some(payload) = bytes(data.next()) else {
        return;
    };
    let message = Arc::new(Message {
        channel,
        pattern,
        payload,
    });
    for mailbox in topic.listeners.values() {
        after.add(mailbox.share(&message));
    }
    after.deliveries += topic.listeners.len();
}

fn invalidate(
    line: &SharedLine,
    trackers: &BTreeMap<u64, Subscriber>,
    data: Vec<Value>,
    after: &mut After,
) {
    let mine = trackers
        .iter()
        .filter(|(id, _)| line.tracking.up.contains(id));
    match data.into_iter().next() {
        None | Some(Value::Nil) => {
            for (_, tracker) in mine {
                after.add(tracker.mailbox.push(Event::Flushed));
            }
        }
        Some(keys) => {
            let Ok(keys) = redis::from_redis_value::<Vec<Vec<u8>>>(keys) else {
                return;
            };
            for (_, tracker) in mine {
                let changed: Vec<Vec<u8>> = tracker.wanted.changed(&keys).collect();
                if !changed.is_empty() {
                    after.add(tracker.mailbox.push(Event::Changed(changed)));
                }
            }
        }
    }
}

/// A subscription is confirmed.
fn begun(
    line: &mut SharedLine,
    kind: ChannelKind,
    sent: &mut VecDeque<(Sent, Instant)>,
    data: Vec<Value>,
    after: &mut After,
) -> Result<()> {
    let unexpected = || Error::codec("the server confirmed a subscription that was not asked for");
    let name = bytes(data.into_iter().next()).ok_or_else(unexpected)?;
    match sent.front_mut() {
        Some((Sent::Subscribe(asked, names), _)) if *asked == kind => {
            if names.front().is_none_or(|first| **first != name[..]) {
                return Err(unexpected());
            }
            names.pop_front();
            if names.is_empty() {
                sent.pop_front();
            }
        }
        _ => return Err(unexpected()),
    }
    line.confirmed();
    let name: Name = name.into();
    if let Some(topic) = line.channels[kind as usize].get_mut(&name)
        && topic.state == LineChannelState::Asked
    {
        topic.state = LineChannelState::Active;
        topic.alone = false;
        topic.refusal = None;
        for mailbox in topic.listeners.values() {
            after.add(mailbox.up());
        }
        if topic.listeners.is_empty() {
            line.dirty.push((kind, name));
        }
    }
    Ok(())
}

/// A subscription has ended: because that was asked for, or because the slot moved away.
fn ended(
    line: &mut SharedLine,
    kind: ChannelKind,
    sent: &mut VecDeque<(Sent, Instant)>,
    data: Vec<Value>,
    after: &mut After,
) {
    let Some(name) = bytes(data.into_iter().next()) else {
        return;
    };
    let name: Name = name.into();
    let asked_for = match sent.front_mut() {
        Some((Sent::Unsubscribe(asked, names), _))
            if *asked == kind && names.front() == Some(&name) =>
        {
            names.pop_front();
            if names.is_empty() {
                sent.pop_front();
                let slot = crate::key::slot(&name);
                if kind == ChannelKind::Sharded && !line.answered_early.contains(&slot) {
                    line.answered_early.push(slot);
                }
            }
            true
        }
        _ => false,
    };
    let Some(topic) = line.channels[kind as usize].get_mut(&name) else {
        return;
    };
    if asked_for {
        if topic.state == LineChannelState::Ending {
            topic.state = LineChannelState::Idle;
            line.dirty.push((kind, name));
        }
    } else {
        line.refuse(kind, &name, MOVED_PAUSE, after);
        after.trouble = Some((None, None));
    }
}

/// The server answered a command.
pub(super) fn answered(
    line: &mut SharedLine,
    sent: &mut VecDeque<(Sent, Instant)>,
    reply: Value,
    after: &mut After,
) -> Result<()> {
    let error = match reply {
        Value::ServerError(error) => Some(RedisError::from(error)),
        _ => None,
    };
    if is_late(line, sent.front(), error.as_ref()) {
        return Ok(());
    }
    let Some((command, _)) = sent.pop_front() else {
        return Err(Error::codec("the server sent a reply without a request"));
    };
    match (command, error) {
        (Sent::Ping, _) | (Sent::Auth, None) => {}
        (Sent::Auth, Some(error)) => {
            line.credentials_refused = true;
            after.log(move || {
                tracing::warn!(code = error.code(), "a server refused new credentials");
            });
        }
        (Sent::Tracking, None) => {
            line.confirmed();
            line.tracking_refused = None;
            line.tracking.confirmed();
            line.tracking_dirty = true;
        }
        (Sent::Tracking, Some(error)) => {
            line.tracking.refused();
            line.retry_in(REFUSED_PAUSE);
            line.tracking_refused = Some(report(line, error, after));
        }
        (Sent::Subscribe(kind, names), Some(error)) => refused(line, kind, &names, error, after),
        (Sent::Unsubscribe(kind, names), Some(error)) => kept(line, kind, &names, error, after),
        (Sent::Subscribe(..) | Sent::Unsubscribe(..), None) => {
            return Err(Error::codec(
                "a subscription got another reply than a confirmation",
            ));
        }
    }
    Ok(())
}

/// Whether this is the answer to the end of a subscription that was taken for answered: the server ends subscriptions of
/// a slot by itself when it gives the slot away, and then redirects the command that was on its way.
fn is_late(
    line: &mut SharedLine,
    next: Option<&(Sent, Instant)>,
    error: Option<&RedisError>,
) -> bool {
    let moved = error
        .filter(|error| error.kind() == ErrorKind::Server(ServerErrorKind::Moved))
        .and_then(RedisError::redirect_node)
        .map(|(_, slot)| slot);
    let Some(slot) = moved.filter(|slot| line.answered_early.contains(slot)) else {
        // Replies come in order.
        line.answered_early.clear();
        return false;
    };
    let of_slot = |names: &VecDeque<Name>| {
        let first = names.front();
        first.is_some_and(|name| crate::key::slot(name) == slot)
    };
    let answers_next = match next {
        Some((Sent::Subscribe(kind, names) | Sent::Unsubscribe(kind, names), _)) => {
            *kind == ChannelKind::Sharded && of_slot(names)
        }
        _ => false,
    };
    if !answers_next {
        line.answered_early.retain(|early| *early != slot);
    }
    !answers_next
}

/// The server refused subscriptions.
fn refused(
    line: &mut SharedLine,
    kind: ChannelKind,
    names: &VecDeque<Name>,
    error: RedisError,
    after: &mut After,
) {
    // One of several may be the reason.
    let each_alone = names.len() > 1 && !elsewhere_or_later(&error);
    let pause = match each_alone {
        true => MOVED_PAUSE,
        false => line.pause(&error),
    };
    after.trouble = Some((Some(error.clone()), line.dial.clone()));
    let error = report(line, error, after);
    for name in names {
        if let Some(topic) = line.channels(kind).get_mut(name) {
            topic.alone |= each_alone;
            topic.refusal = Some(error.clone());
        }
        line.refuse(kind, name, pause, after);
    }
}

/// The server refused to end subscriptions.
fn kept(
    line: &mut SharedLine,
    kind: ChannelKind,
    names: &VecDeque<Name>,
    error: RedisError,
    after: &mut After,
) {
    let has_moved = error.kind() == ErrorKind::Server(ServerErrorKind::Moved);
    let pause = line.pause(&error);
    for name in names {
        let Some(topic) = line.channels[kind as usize].get_mut(name) else {
            continue;
        };
        if topic.state != LineChannelState::Ending {
            continue;
        }
        if has_moved {
            // A server that gave the slot away has ended them by itself.
            topic.state = LineChannelState::Idle;
            line.dirty.push((kind, name.clone()));
            continue;
        }
        topic.state = LineChannelState::Active;
        for mailbox in topic.listeners.values() {
            after.add(mailbox.up());
        }
        if topic.listeners.is_empty() {
            line.refused.push((kind, name.clone()));
            line.retry_in(pause);
        }
    }
    after.trouble = Some((Some(error), line.dial.clone()));
}

/// Has a refusal written to the log: as a warning the first time, unless it passes by itself.
fn report(line: &mut SharedLine, error: RedisError, after: &mut After) -> Arc<Error> {
    let passes = elsewhere_or_later(&error);
    let is_first = !passes && !std::mem::replace(&mut line.reported, true);
    let place = line.dial.as_ref().map(|dial| dial.place());
    let error = Arc::new(Error::from(error));
    let refusal = error.clone();
    after.log(move || {
        if is_first {
            tracing::warn!(place, error = %refusal, "the server refused a subscription");
        } else {
            tracing::debug!(place, error = %refusal, "the server refused a subscription");
        }
    });
    error
}
