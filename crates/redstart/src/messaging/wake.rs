//! Waking a task by messages of a subscription.
//!
//! Messages are read as they come and only remembered as one wake-up, so that a task that is busy for long does not
//! collect them.

use std::sync::Arc;

use tokio::{sync::Notify, task::JoinHandle};

use crate::{
    error::Result,
    key::Channel,
    store::{Event, Listen, Store},
};

/// A wake-up call. Dropping it ends the subscription.
pub(super) struct Wake {
    notify: Arc<Notify>,
    reader: JoinHandle<()>,
}

impl Wake {
    /// Subscribes to channels of one slot. `wakes` says for each event whether it is a reason to wake up.
    ///
    /// When this returns, the subscription is established: a message published from now on is heard.
    pub(super) async fn open(
        store: &Store,
        channels: impl IntoIterator<Item = Channel>,
        mut wakes: impl FnMut(&Event) -> bool + Send + 'static,
    ) -> Result<Self> {
        let channels: Vec<Listen> = channels.into_iter().map(Listen::Sharded).collect();
        let mut subscription = store.subscribe(channels).await?;
        let notify = Arc::new(Notify::new());
        subscription
            .established(
                store.deadline() * 5,
                "the wake-up channel did not open in time",
                |event| {
                    if wakes(&event) {
                        notify.notify_one();
                    }
                },
            )
            .await?;
        let reader = crate::task::spawn({
            let notify = notify.clone();
            async move {
                while let Some(event) = subscription.next().await {
                    if wakes(&event) {
                        notify.notify_one();
                    }
                }
            }
        });
        Ok(Self { notify, reader })
    }

    /// Waits for a reason to wake up. One that came before is remembered.
    ///
    /// # Cancel safety
    ///
    /// No wake-up is lost when the future is dropped.
    pub(super) async fn called(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.reader.abort();
    }
}
