//! How waiters hear that a lock was given back: one subscription for all waiters of a handle.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::{Mutex, broadcast};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    error::{Error, Result},
    key::Channel,
    store::{Event, Listen, Store},
};

/// The subscription of a handle, which stands while somebody waits.
#[derive(Default)]
pub(crate) struct Wake {
    hub: Mutex<Weak<Hub>>,
}

struct Hub {
    signals: broadcast::Sender<Signal>,
    standing: AtomicBool,
    pump: std::sync::OnceLock<AbortOnDropHandle<()>>,
}

#[derive(Clone)]
enum Signal {
    /// Something may have been missed.
    All,
    /// A message: empty for everybody, else for the waiter with this token.
    To(Arc<[u8]>),
}

/// One waiter's ear. When the last one goes, the subscription ends.
pub(crate) struct Ear {
    hub: Arc<Hub>,
    signals: broadcast::Receiver<Signal>,
}

impl Wake {
    /// Begins to listen.
    pub(crate) async fn listen(&self, store: &Store, channel: &Channel) -> Result<Ear> {
        let mut known = self.hub.lock().await;
        if let Some(hub) = known.upgrade() {
            let signals = hub.signals.subscribe();
            return Ok(Ear { hub, signals });
        }
        let runtime = store
            .runtime()
            .ok_or_else(|| Error::config("a lock is waited for within a tokio runtime"))?;
        let mut subscription = store.subscribe([Listen::Sharded(channel.clone())]).await?;
        let (sender, signals) = broadcast::channel(64);
        let hub = Arc::new(Hub {
            signals: sender,
            standing: AtomicBool::new(false),
            pump: std::sync::OnceLock::new(),
        });
        let weak = Arc::downgrade(&hub);
        let pump = runtime.spawn(async move {
            while let Some(event) = subscription.next().await {
                let Some(hub) = weak.upgrade() else { return };
                let signal = match event {
                    Event::Message(message) => Signal::To(message.payload.into()),
                    Event::Lost => {
                        hub.standing.store(false, Ordering::Release);
                        continue;
                    }
                    _ => {
                        hub.standing.store(true, Ordering::Release);
                        Signal::All
                    }
                };
                // Nobody listening is no failure.
                let _ = hub.signals.send(signal);
            }
        });
        let _ = hub.pump.set(AbortOnDropHandle::new(pump));
        *known = Arc::downgrade(&hub);
        Ok(Ear { hub, signals })
    }
}

impl Ear {
    /// Whether messages arrive already. If not, the first signal says so.
    pub(crate) fn stands(&self) -> bool {
        self.hub.standing.load(Ordering::Acquire)
    }

    /// Waits for a message to everybody or to the waiter with this token, or for a gap in which there may
    /// have been one.
    ///
    /// Cancel safe.
    pub(crate) async fn heard(&mut self, token: &str) {
        loop {
            match self.signals.recv().await {
                Ok(Signal::To(message)) if !message.is_empty() && *message != *token.as_bytes() => {
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
                // The subscription ended: only time can tell now.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    /// Waits for any message, or for a gap in which there may have been one.
    ///
    /// Cancel safe.
    pub(crate) async fn heard_any(&mut self) {
        if let Err(broadcast::error::RecvError::Closed) = self.signals.recv().await {
            std::future::pending().await
        }
    }
}
