//! What the engine knows of one client between its commands.

use std::sync::{Arc, atomic::AtomicBool};

use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{
    engine::State,
    registry::Spec,
    reply::{Protocol, Reply},
    types::blob::Blob,
};

/// A client's state; lives in its session and is lent to each command.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) db: usize,
    pub(crate) protocol: Protocol,
    pub(crate) authenticated: bool,
    /// Since MULTI.
    pub(crate) multi: Option<Box<Multi>>,
    /// Since WATCH.
    pub(crate) watch: Option<Box<Watch>>,
    outbox: Option<Box<Outbox>>,
}

/// A transaction that is being queued.
#[derive(Default)]
pub(crate) struct Multi {
    pub(crate) queue: Vec<(&'static Spec, Vec<Bytes>)>,
    /// A command was refused while queueing: EXEC aborts.
    pub(crate) broken: bool,
}

/// The keys a client watches.
pub(crate) struct Watch {
    pub(crate) keys: Vec<(usize, Blob)>,
    pub(crate) touched: Arc<AtomicBool>,
}

struct Outbox {
    sender: UnboundedSender<Reply>,
    /// Until the session's owner asks for it.
    receiver: Option<UnboundedReceiver<Reply>>,
}

impl Client {
    pub(crate) fn new(id: u64, authenticated: bool) -> Client {
        Client {
            id,
            db: 0,
            protocol: Protocol::Resp2,
            authenticated,
            multi: None,
            watch: None,
            outbox: None,
        }
    }

    /// A client for what the engine runs on its own or on behalf of a client that waits.
    pub(crate) fn internal(id: u64, db: usize, protocol: Protocol) -> Client {
        Client {
            db,
            protocol,
            ..Client::new(id, true)
        }
    }

    /// Where out-of-band replies for this client go.
    pub(crate) fn outbox(&mut self) -> UnboundedSender<Reply> {
        self.open_outbox().sender.clone()
    }

    pub(crate) fn take_receiver(&mut self) -> UnboundedReceiver<Reply> {
        match self.open_outbox().receiver.take() {
            Some(receiver) => receiver,
            // Asked for a second time: the first receiver stays the one that gets the pushes.
            None => unbounded_channel().1,
        }
    }

    fn open_outbox(&mut self) -> &mut Outbox {
        self.outbox.get_or_insert_with(|| {
            let (sender, receiver) = unbounded_channel();
            Box::new(Outbox {
                sender,
                receiver: Some(receiver),
            })
        })
    }

    /// Whether the engine's state refers to this client, so that it must be told of its end.
    pub(crate) fn is_registered(&self) -> bool {
        self.watch.is_some() || self.outbox.is_some()
    }

    /// Removes all that refers to this client.
    pub(crate) fn disconnect(&mut self, state: &mut State) {
        crate::commands::transaction::unwatch_all(state, self);
    }
}
