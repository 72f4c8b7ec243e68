//! The task that counts jobs or changes them.

use std::sync::Arc;

use redstart::messaging::{JobId, Queue};
use tracing::Instrument as _;

use super::{Bulk, Reached, Stage};
use crate::{app::App, problem::Problem, scan::Scan};

/// Jobs that are changed in one turn: what other clients of the store wait for at most.
const PIECE: usize = 25;

/// The task of one stage.
pub(super) struct Work {
    pub(super) app: Arc<App>,
    pub(super) who: String,
    pub(super) bulk: Arc<Bulk>,
    pub(super) queue: Queue,
}

impl Work {
    /// What the audit log says that it is about.
    pub(super) fn on(&self, outcome: &str) -> String {
        let Bulk {
            namespace, name, ..
        } = &*self.bulk;
        format!("{namespace} {name} {}{outcome}", self.bulk.words())
    }

    pub(super) fn start(self, stage: Stage) {
        let changing = self.app.changing.clone();
        let work = async move {
            let done = tokio::select! {
                biased;
                () = self.bulk.stop.cancelled(), if stage == Stage::Counting => Ok(Stage::Stopped),
                done = self.look(stage) => done,
            };
            let end = done.unwrap_or_else(|problem| {
                tracing::warn!(problem = problem.text(), "a change of many jobs failed");
                Stage::Failed
            });
            if end != Stage::Counted {
                self.bulk.counted.lock().take();
            }
            if stage == Stage::Running {
                let outcome = match end {
                    Stage::Done => "",
                    Stage::Stopped => " (stopped)",
                    _ => " (failed)",
                };
                let Reached {
                    changed, matched, ..
                } = self.bulk.progress();
                let what = self.bulk.action.change();
                self.app
                    .note(
                        self.who.clone(),
                        what,
                        self.on(outcome),
                        changed,
                        Some(matched),
                    )
                    .await;
            }
            self.bulk.enter(end);
        };
        changing.spawn(work.in_current_span());
    }

    /// Counts the jobs, or changes those that were counted; how it ended.
    async fn look(&self, stage: Stage) -> Result<Stage, Problem> {
        let bulk = &self.bulk;
        let scan = Scan::new(&self.queue, bulk.filter.clone(), None).await?;
        let mut scan = scan.before(bulk.moment);
        if stage == Stage::Running {
            // Between the count and the confirmation, others may have come to match. Nobody has agreed to change those.
            scan = scan.only(std::mem::take(&mut bulk.counted.lock().jobs));
        }
        while !scan.is_over() {
            if bulk.stop.is_cancelled() {
                return Ok(Stage::Stopped);
            }
            let seen = scan.step(&self.app.changing_many).await?;
            let ids: Vec<JobId> = seen.iter().map(|seen| seen.id).collect();
            if stage == Stage::Running {
                for ids in ids.chunks(PIECE) {
                    if bulk.stop.is_cancelled() {
                        return Ok(Stage::Stopped);
                    }
                    let change = bulk.action.apply(&self.queue, bulk.filter.state, ids);
                    let changed = self.app.changing_many.take(change).await?;
                    bulk.update(|progress| progress.changed += changed);
                }
            } else if let Err(end) = bulk.counted.lock().reserve(ids.len()) {
                return Ok(end);
            }
            bulk.update(|progress| {
                progress.scanned = scan.scanned;
                progress.total = scan.total();
                if stage == Stage::Counting {
                    progress.matched += ids.len() as u64;
                }
            });
        }
        if stage == Stage::Running {
            return Ok(Stage::Done);
        }
        bulk.counted.lock().jobs = scan.into_found();
        Ok(Stage::Counted)
    }
}
