//! Workers that lived through the faults: they must go on working.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    messaging::{Queue, QueueCounts, Worker},
    sim::Process,
};

use crate::world::World;

/// Workers of clients that have done their work, with their processes.
#[derive(Default)]
pub(super) struct Survivors(Mutex<Vec<(Arc<Process>, Worker)>>);

impl Survivors {
    pub(super) fn add(&self, process: Arc<Process>, worker: Worker) {
        self.0.lock().push((process, worker));
    }

    /// Whether none of them is left.
    pub(super) fn are_gone(&self) -> bool {
        let lives = self.0.lock();
        lives.iter().all(|(process, _)| process.is_gone())
    }

    pub(super) fn end(&self) {
        let lives = std::mem::take(&mut *self.0.lock());
        drop(lives);
    }
}

/// Waits until no job is unfinished; what the queue has at the end. The leases of those who died end meanwhile, and their jobs
/// are taken over.
pub(super) async fn until_over(world: &World, queue: &Queue) -> Option<QueueCounts> {
    let mut counts = None;
    for _ in 0..240 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        match queue.inspect().counts().await {
            Ok(now) => {
                let over = now.unfinished() == 0;
                counts = Some(now);
                if over {
                    break;
                }
            }
            Err(error) => world.breach(format!("the counts cannot be read: {error}")),
        }
    }
    counts
}
