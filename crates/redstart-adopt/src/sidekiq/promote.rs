//! Retries and scheduled jobs that are due.

use std::time::Duration;

use redis::cmd;

use super::{Sidekiq, job::Fields};
use crate::{error::Result, script::Lua};

static PROMOTE: Lua = Lua::new(include_str!("promote.lua"));

/// The jobs that are moved in one step, and how many steps there are for each set.
const PAGE: usize = 100;
const PAGES: usize = 10;

impl Sidekiq {
    /// Moves retries and scheduled jobs that are due to their queues, at most a thousand of each; returns how many. Sidekiq's own processes and
    /// [consumers](super::SidekiqConsumer) do this on their own.
    ///
    /// # Errors
    ///
    /// Those of the store. Calling it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some jobs may have been moved.
    pub async fn promote(&self) -> Result<u64> {
        let now = self.store.time().await?;
        let mut moved = 0;
        for set in ["retry", "schedule"] {
            for _ in 0..PAGES {
                let due = cmd("ZRANGEBYSCORE")
                    .arg(self.key(set))
                    .arg("-inf")
                    .arg(now.as_secs_f64())
                    .arg("LIMIT")
                    .arg(0)
                    .arg(PAGE)
                    .take();
                let due: Vec<Vec<u8>> = self.store.query(&due).await?;
                if !due.is_empty() {
                    moved += self.promote_page(set, &due, now).await?;
                }
                if due.len() < PAGE {
                    break;
                }
            }
        }
        Ok(moved)
    }

    async fn promote_page(&self, set: &str, due: &[Vec<u8>], now: Duration) -> Result<u64> {
        let mut keys = vec![self.key(set), self.key("queues"), self.key("dead")];
        let mut jobs: Vec<Vec<u8>> = Vec::with_capacity(3 * due.len());
        for job in due {
            let fields = Fields::read(job);
            let queue = fields
                .as_ref()
                .and_then(|fields| fields.get::<String>("queue"))
                .unwrap_or_default();
            jobs.push(job.clone());
            match fields {
                Some(mut fields) if !queue.is_empty() => {
                    let created = fields.get::<f64>("created_at");
                    fields.set("enqueued_at", &self.stamp(now, created));
                    keys.push(self.key(&format!("queue:{queue}")));
                    jobs.extend([queue.into_bytes(), fields.text().into_bytes()]);
                }
                _ => {
                    // Not used: it goes to the dead jobs.
                    keys.push(self.key("dead"));
                    jobs.extend([Vec::new(), Vec::new()]);
                }
            }
        }
        PROMOTE
            .run(&self.store, &keys, &[&now.as_secs_f64(), &jobs])
            .await
    }
}
