//! How waiters learn that a lock was released: one subscription for all waiters of a handle.

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::{Mutex, broadcast};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    error::{Error, Result},
    key::Channel,
    store::{Event, Listen, Store},
};

/// The subscription of a handle, which is open while somebody waits.
#[derive(Default)]
pub(crate) struct WakeUps {
    subscription: Mutex<Weak<Shared>>,
}

/// The open subscription, kept by its listeners.
struct Shared {
    signals: broadcast::Sender<Signal>,
    stands: AtomicBool,
    forwarder: OnceLock<AbortOnDropHandle<()>>,
}

#[derive(Clone)]
enum Signal {
    /// A message may have been missed.
    Gap,
    /// A message: empty for all waiters, or the token of one waiter.
    Message(Arc<[u8]>),
}

/// One waiter's end of the subscription. When the last one is dropped, the subscription ends.
pub(crate) struct Listener {
    shared: Arc<Shared>,
    signals: broadcast::Receiver<Signal>,
}

impl WakeUps {
    /// Starts to listen.
    pub(crate) async fn listen(&self, store: &Store, channel: &Channel) -> Result<Listener> {
        let mut known = self.subscription.lock().await;
        if let Some(shared) = known.upgrade() {
            let signals = shared.signals.subscribe();
            return Ok(Listener { shared, signals });
        }
        let runtime = store
            .runtime()
            .ok_or_else(|| Error::config("waiting for a lock needs a tokio runtime"))?;
        let mut subscription = store.subscribe([Listen::Sharded(channel.clone())]).await?;
        let (sender, signals) = broadcast::channel(64);
        let shared = Arc::new(Shared {
            signals: sender,
            stands: AtomicBool::new(false),
            forwarder: OnceLock::new(),
        });
        let weak = Arc::downgrade(&shared);
        let forwarder = runtime.spawn(async move {
            while let Some(event) = subscription.next().await {
                let Some(shared) = weak.upgrade() else { return };
                let signal = match event {
                    Event::Message(message) => Signal::Message(message.payload.into()),
                    Event::Lost => {
                        shared.stands.store(false, Ordering::Release);
                        continue;
                    }
                    _ => {
                        shared.stands.store(true, Ordering::Release);
                        Signal::Gap
                    }
                };
                // Fails only if nobody listens.
                let _ = shared.signals.send(signal);
            }
        });
        let _ = shared.forwarder.set(AbortOnDropHandle::new(forwarder));
        *known = Arc::downgrade(&shared);
        Ok(Listener { shared, signals })
    }
}

impl Listener {
    /// Whether messages arrive already. If not, the first signal says that they do.
    pub(crate) fn stands(&self) -> bool {
        self.shared.stands.load(Ordering::Acquire)
    }

    /// Waits for a message to all waiters or to the one with this token, or for a gap in which one may have been missed.
    ///
    /// Cancel safe.
    pub(crate) async fn woken(&mut self, token: &str) {
        loop {
            match self.signals.recv().await {
                Ok(Signal::Message(to)) if !to.is_empty() && *to != *token.as_bytes() => {}
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
                // The subscription ended: only timeouts are left.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    /// Waits for any message, or for a gap in which one may have been missed.
    ///
    /// Cancel safe.
    pub(crate) async fn any(&mut self) {
        if let Err(broadcast::error::RecvError::Closed) = self.signals.recv().await {
            std::future::pending().await
        }
    }
}
