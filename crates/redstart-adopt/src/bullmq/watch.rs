//! Keeps the jobs of a queue that versions 5 and 6 of BullMQ pause and resume.
//!
//! A worker that runs as many jobs as it may, or waits for a job or for the end of a rate limit, would not hear of a pause. This listens to the events of the queue on a
//! connection of its own.

use std::time::Duration;

use redis::cmd;
use redstart::key::Key;
use tokio::task::JoinHandle;

use super::BullQueue;

/// While the queue is paused, it looks for jobs to be moved this long after the last look, at the earliest, however many are added.
const PAUSED: Duration = Duration::from_millis(10);

/// The same while it is not paused: its own events are many, and only a pause matters.
const BUSY: Duration = Duration::from_millis(100);

/// It looks again after this long, even without an event.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// How long it rests after a request that failed.
const REST: Duration = Duration::from_millis(200);

/// Watches a queue until it is dropped.
pub(super) struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Watch {
    pub(super) fn start(queue: BullQueue, events: Key) -> Self {
        Self(tokio::spawn(watch(queue, events)))
    }
}

async fn watch(queue: BullQueue, events: Key) {
    let mut own = queue.store.dedicated(&events);
    loop {
        let settled = match queue.settle_some().await {
            Ok(settled) if settled.left > 0 => continue,
            Ok(settled) => settled,
            Err(error) => {
                tracing::debug!(%error, "jobs of two versions could not be moved");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        tokio::time::sleep(if settled.is_paused { PAUSED } else { BUSY }).await;
        let mut block = cmd("XREAD");
        block
            .arg("BLOCK")
            .arg(super::worker::millis(LONGEST_WAIT))
            .arg("COUNT")
            .arg(1)
            .arg("STREAMS")
            .arg(&events)
            .arg(&settled.last);
        let heard: Result<redis::Value, _> = own.query(&block, LONGEST_WAIT).await;
        if let Err(error) = heard {
            tracing::debug!(%error, "the events of a queue could not be read");
            tokio::time::sleep(REST).await;
        }
    }
}
