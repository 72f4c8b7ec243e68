//! Completing what crashed callers left between two shards.

use std::time::Duration;

use super::{
    Graph,
    change::{Intent, intents},
};
use crate::{
    duration::micros,
    error::Result,
    observe,
    script::{Batch, Script},
};

pub(in crate::social) static PENDING: Script = Script::new(
    "graph.repair",
    concat!(
        include_str!("../../script/now.lua"),
        include_str!("pending.lua")
    ),
);
pub(in crate::social) static POSTPONE: Script = Script::new(
    "graph.postpone",
    concat!(
        include_str!("../../script/now.lua"),
        include_str!("postpone.lua")
    ),
);

/// What [`Graph::repair`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repaired {
    /// Intents that were completed.
    pub completed: u64,
    /// Intents that could not be completed now. They are tried again by later calls, after all others.
    pub failed: u64,
}

impl Graph {
    /// Completes what crashed callers left half done. Run it every few seconds, in one process or in several.
    ///
    /// Intents younger than `grace` by their server's clock are left to their callers. Each shard yields at most 100
    /// intents per call. An intent that fails does not stop the others and goes to the end of the queue.
    ///
    /// # Errors
    ///
    /// Those of the [store](crate::Store::query), if no intent could be completed at all. What was not completed is
    /// found by the next call.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some intents are completed and the others are found by the next call.
    pub async fn repair(&self, grace: Duration) -> Result<Repaired> {
        if self.shards.len() == 1 {
            return Ok(Repaired::default());
        }
        observe::operation("graph.repair", self.namespace(), async {
            let mut batch = Batch::new();
            for shard in &self.shards {
                let call = intents(PENDING.on(shard));
                batch.push(call.arg(micros(grace)).arg(100).idempotent());
            }
            let lists = batch
                .run::<Vec<(String, String, String, String)>>(&self.store)
                .await?;
            let (mut repaired, mut first_error) = (Repaired::default(), None);
            for (shard, list) in self.shards.iter().zip(lists) {
                let list = match list {
                    Ok(list) => list,
                    Err(error) => {
                        first_error.get_or_insert(error);
                        continue;
                    }
                };
                for (a, b, operation, number) in list {
                    match self.finish(&a, &b, &Intent { operation, number }).await {
                        Ok(_) => repaired.completed += 1,
                        Err(error) => {
                            repaired.failed += 1;
                            first_error.get_or_insert(error);
                            // If this fails too, the intent only keeps its place in the queue.
                            let call = POSTPONE.on(shard).part("pending").arg(&a).arg(&b);
                            let _ = call.idempotent().run::<u8>(&self.store).await;
                        }
                    }
                }
            }
            observe::events("graph.repaired", repaired.completed);
            match first_error {
                Some(error) if repaired.completed == 0 => Err(error),
                _ => Ok(repaired),
            }
        })
        .await
    }
}
