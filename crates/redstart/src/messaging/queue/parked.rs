//! Parked jobs: those that a worker took and could not run, because it does not know their kind or cannot decode them.

use super::{Queue, script::EXPIRE_PARKED};
use crate::{error::Result, observe};

/// Jobs that one script buries.
const BATCH: usize = 20;

/// The part that has the parked jobs of a kind.
pub(super) fn part(kind: &str) -> String {
    format!("parked:{kind}")
}

impl Queue {
    /// Buries parked jobs of a kind whose limit has passed.
    pub(super) async fn expire_parked(&self, kind: &str) -> Result<()> {
        loop {
            let buried: usize = self
                .call(&EXPIRE_PARKED, &[&part(kind), "parked"])
                .arg(kind)
                .arg(BATCH)
                .idempotent()
                .run(self.store())
                .await?;
            observe::events("queue.dead", buried as u64);
            if buried < BATCH {
                return Ok(());
            }
        }
    }
}
