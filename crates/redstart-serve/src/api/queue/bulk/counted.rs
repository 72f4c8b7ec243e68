//! The jobs that were counted.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use redstart::messaging::JobId;

use super::Stage;

/// Jobs whose ids are kept from the count to the change, of all of them together: up to 40 bytes each.
pub(super) const JOBS: usize = 4_000_000;

/// Jobs that were counted, within the room that all changes of an instance share.
pub(super) struct Counted {
    pub(super) jobs: HashSet<JobId>,
    room: Arc<AtomicUsize>,
    reserved: usize,
}

impl Counted {
    pub(super) fn new(room: &Arc<AtomicUsize>) -> Self {
        Self {
            jobs: HashSet::new(),
            room: room.clone(),
            reserved: 0,
        }
    }

    /// Makes room for more jobs, or says why there is none.
    pub(super) fn reserve(&mut self, more: usize) -> Result<(), Stage> {
        let add = |taken: usize| taken.checked_add(more).filter(|sum| *sum <= JOBS);
        let update = |room: &AtomicUsize| {
            room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
                .is_ok()
        };
        let has_room = update(&self.room);
        if has_room {
            self.reserved += more;
            return Ok(());
        }
        Err(match self.reserved.saturating_add(more) > JOBS {
            true => Stage::TooMany,
            false => Stage::NoRoom,
        })
    }

    /// The jobs, which are forgotten.
    pub(super) fn take(&mut self) -> HashSet<JobId> {
        self.room.fetch_sub(self.reserved, Ordering::Relaxed);
        self.reserved = 0;
        std::mem::take(&mut self.jobs)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.take();
    }
}
