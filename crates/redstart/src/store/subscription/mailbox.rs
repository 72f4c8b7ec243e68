//! What one subscriber has not read yet.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use super::{Event, Message};

/// What waits for a slow reader at most.
pub(super) const MAX_EVENTS: usize = 8192;
pub(super) const MAX_BYTES: usize = 4 * 1024 * 1024;

/// The events of one subscription. When there are too many, the newest are dropped and the reader is told of the gap.
#[derive(Default)]
pub(super) struct Mailbox(Mutex<Inbox>);

#[derive(Default)]
struct Inbox {
    events: VecDeque<Held>,
    bytes: usize,
    /// Parts of the subscription that are not active.
    missing: usize,
    /// The reader is told that the subscription is active, once it has read all events.
    stands: bool,
    stood_before: bool,
    /// Events were dropped behind the last one.
    overflowed: bool,
    /// The runtime that fed this has ended.
    orphaned: bool,
    reader: Option<Waker>,
}

/// An event that waits for its reader.
enum Held {
    Event(Event),
    /// One message for all who listen to its channel. The reader makes its own copy.
    Message(Arc<Message>),
}

impl Held {
    fn into_event(self) -> Event {
        match self {
            Self::Event(event) => event,
            Self::Message(message) => Event::Message(Arc::unwrap_or_clone(message)),
        }
    }
}

/// What is to be done about a change of a mailbox once no lock is held: wakers and recorders of metrics are code of the
/// application.
#[derive(Default)]
pub(super) struct Effect {
    pub(super) reader: Option<Waker>,
    pub(super) gap: bool,
    pub(super) overflow: bool,
}

impl Effect {
    fn wake(reader: Option<Waker>) -> Self {
        Self {
            reader,
            ..Self::default()
        }
    }
}

/// What a reader finds.
pub(super) enum Mail {
    Event(Event),
    /// Nobody feeds this mailbox any more.
    Orphaned,
}

impl Mailbox {
    /// Another part of the subscription is not active.
    pub(super) fn down(&self) -> Effect {
        self.0.lock().down()
    }

    /// One part of the subscription is active, or is no longer one.
    pub(super) fn up(&self) -> Effect {
        let mut inbox = self.0.lock();
        inbox.missing = inbox.missing.saturating_sub(1);
        inbox.stand()
    }

    /// A change.
    pub(super) fn push(&self, event: Event) -> Effect {
        self.hold(Held::Event(event))
    }

    /// A message that others get too.
    pub(super) fn share(&self, message: &Arc<Message>) -> Effect {
        self.hold(Held::Message(message.clone()))
    }

    fn hold(&self, event: Held) -> Effect {
        let mut inbox = self.0.lock();
        if inbox.overflowed {
            return Effect::default();
        }
        let bytes = size(&event);
        let full = inbox.events.len() >= MAX_EVENTS || inbox.bytes + bytes > MAX_BYTES;
        if full && !inbox.events.is_empty() {
            return Effect {
                overflow: true,
                ..inbox.overflow()
            };
        }
        inbox.bytes += bytes;
        inbox.events.push_back(event);
        Effect::wake(inbox.reader.take())
    }

    /// The runtime that fed this has ended. All parts are to be attached again.
    pub(super) fn orphan(&self) -> Effect {
        let mut inbox = self.0.lock();
        let mut effect = inbox.down();
        inbox.missing = 0;
        inbox.orphaned = true;
        effect.reader = effect.reader.or_else(|| inbox.reader.take());
        effect
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Mail> {
        let mut inbox = self.0.lock();
        if let Some(event) = inbox.events.pop_front() {
            inbox.bytes -= size(&event);
            if inbox.events.is_empty() && std::mem::take(&mut inbox.overflowed) {
                // From here on, nothing is dropped.
                inbox.stand();
            }
            drop(inbox);
            return Poll::Ready(Mail::Event(event.into_event()));
        }
        if std::mem::take(&mut inbox.orphaned) {
            return Poll::Ready(Mail::Orphaned);
        }
        let replaced = inbox.reader.replace(cx.waker().clone());
        // It may hold the last handle of something that uses this mailbox.
        drop(inbox);
        drop(replaced);
        Poll::Pending
    }
}

impl Inbox {
    /// Tells the reader that the subscription is active, if it is.
    fn stand(&mut self) -> Effect {
        if self.missing > 0 || self.stands || self.overflowed {
            return Effect::default();
        }
        if self.events.len() >= MAX_EVENTS {
            // The line comes and goes, and the reader does not look.
            return self.overflow();
        }
        self.stands = true;
        let event = if std::mem::replace(&mut self.stood_before, true) {
            Event::Resubscribed
        } else {
            Event::Subscribed
        };
        self.events.push_back(Held::Event(event));
        Effect::wake(self.reader.take())
    }

    fn down(&mut self) -> Effect {
        self.missing += 1;
        self.lose()
    }

    fn lose(&mut self) -> Effect {
        if !std::mem::take(&mut self.stands) {
            return Effect::default();
        }
        self.events.push_back(Held::Event(Event::Lost));
        Effect {
            gap: true,
            ..Effect::wake(self.reader.take())
        }
    }

    fn overflow(&mut self) -> Effect {
        self.overflowed = true;
        self.lose()
    }
}

/// What an event occupies.
fn size(event: &Held) -> usize {
    let of_message = |message: &Message| {
        let pattern = message.pattern.as_ref().map_or(0, String::len);
        message.channel.len() + pattern + message.payload.len()
    };
    match event {
        Held::Message(message) => of_message(message),
        Held::Event(Event::Message(message)) => of_message(message),
        Held::Event(Event::Changed(keys)) => keys
            .iter()
            .map(|key| size_of::<Vec<u8>>() + key.len())
            .sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker;

    use super::*;

    fn message(n: usize, bytes: usize) -> Event {
        Event::Message(Message {
            channel: n.to_string(),
            pattern: None,
            payload: vec![0; bytes],
        })
    }

    fn read(mailbox: &Mailbox) -> Option<Event> {
        match mailbox.poll(&mut Context::from_waker(&noop_waker())) {
            Poll::Ready(Mail::Event(event)) => Some(event),
            _ => None,
        }
    }

    fn active() -> Mailbox {
        let mailbox = Mailbox::default();
        mailbox.down();
        mailbox.up();
        assert_eq!(read(&mailbox), Some(Event::Subscribed));
        mailbox
    }

    #[test]
    fn a_message_is_kept_once_for_all_its_listeners() {
        let (one, other) = (active(), active());
        let message = Arc::new(Message {
            channel: "news".to_owned(),
            pattern: None,
            payload: vec![0; 100],
        });
        one.share(&message);
        other.share(&message);
        assert_eq!(Arc::strong_count(&message), 3);
        assert_eq!(read(&one), Some(Event::Message((*message).clone())));
        assert_eq!(read(&other), Some(Event::Message((*message).clone())));
        assert_eq!(Arc::strong_count(&message), 1);
    }

    #[test]
    fn a_full_mailbox_is_one_gap_behind_what_it_holds() {
        let mailbox = active();
        for n in 0..MAX_EVENTS + 100 {
            mailbox.push(message(n, 1));
        }
        for n in 0..MAX_EVENTS {
            assert_eq!(read(&mailbox), Some(message(n, 1)));
        }
        assert_eq!(read(&mailbox), Some(Event::Lost));
        assert_eq!(read(&mailbox), Some(Event::Resubscribed));
        assert_eq!(read(&mailbox), None);
        mailbox.push(message(1, 1));
        assert_eq!(read(&mailbox), Some(message(1, 1)));
    }

    #[test]
    fn the_bytes_of_a_mailbox_are_bounded_but_one_large_message_passes() {
        let mailbox = active();
        mailbox.push(message(0, 2 * MAX_BYTES));
        mailbox.push(message(1, 1));
        assert_eq!(read(&mailbox), Some(message(0, 2 * MAX_BYTES)));
        assert_eq!(read(&mailbox), Some(Event::Lost));
        assert_eq!(read(&mailbox), Some(Event::Resubscribed));
        assert_eq!(mailbox.0.lock().bytes, 0);
    }

    #[test]
    fn a_line_that_comes_and_goes_unread_fills_nothing() {
        let mailbox = active();
        for _ in 0..3 * MAX_EVENTS {
            mailbox.down();
            mailbox.up();
        }
        assert!(mailbox.0.lock().events.len() <= MAX_EVENTS + 1);
        let mut last = None;
        while let Some(event) = read(&mailbox) {
            last = Some(event);
        }
        assert_eq!(last, Some(Event::Resubscribed));
    }

    #[test]
    fn a_gap_while_it_overflows_ends_with_the_subscription_active() {
        let mailbox = active();
        for n in 0..=MAX_EVENTS {
            mailbox.push(message(n, 1));
        }
        mailbox.down();
        for _ in 0..MAX_EVENTS {
            read(&mailbox);
        }
        assert_eq!(read(&mailbox), Some(Event::Lost));
        assert_eq!(read(&mailbox), None, "it is not active yet");
        mailbox.up();
        assert_eq!(read(&mailbox), Some(Event::Resubscribed));
    }
}
