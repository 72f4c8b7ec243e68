//! What this instance saw, and how it gets to the shared circuit.

use tokio::time::Instant;

use super::{
    Inner, REPORT_COUNT, REPORT_TIME,
    policy::{CallOutcome, CallWindow},
};
use crate::{duration::micros, error::Result, observe};

/// If more outcomes than this wait for a report, the oldest are dropped.
const MAX_PENDING: usize = 10_000;
/// How many outcomes one report to a window of calls has: a bound on the work of its script.
const MAX_OUTCOMES: usize = 250;

/// What was seen and not reported: the generation of the call, and how it ended.
pub(super) type Pending = Vec<(u64, CallOutcome)>;

impl Inner {
    /// Notes how a call ended, and has it reported: soon, if that may open the circuit.
    pub(super) fn record(&self, generation: u64, verdict: CallOutcome, now: Instant) {
        let view = *self.view.lock();
        if view.generation != generation {
            return;
        }
        if view.alone {
            self.local.lock().record(&self.policy, verdict, now);
            self.announce();
        } else {
            // Kept up to date for when the store goes down.
            self.local.lock().watch(&self.policy, verdict, now);
        }
        let mut pending = self.pending.lock();
        if pending.len() >= MAX_PENDING {
            pending.drain(..MAX_PENDING / 2);
        }
        pending.push((generation, verdict));
        if !verdict.is_good() {
            self.wake.notify_one();
        }
    }

    /// Reports all that is new.
    pub(super) async fn report(&self) -> Result<()> {
        let _one = self.reporting.lock().await;
        let pending = std::mem::take(&mut *self.pending.lock());
        let generation = self.view.lock().generation;
        let verdicts: Vec<CallOutcome> = pending
            .into_iter()
            .filter(|(of, _)| *of == generation)
            .map(|(_, verdict)| verdict)
            .collect();
        if verdicts.is_empty() {
            return Ok(());
        }
        match self.policy.window {
            CallWindow::Count(calls) => {
                // What would be pushed out at once is not sent.
                let skip = verdicts.len().saturating_sub(calls as usize);
                for chunk in verdicts[skip..].chunks(MAX_OUTCOMES) {
                    let letters = chunk.iter().map(|verdict| verdict.letter()).collect();
                    self.send(generation, letters).await?;
                }
                Ok(())
            }
            CallWindow::Time(_) => {
                let count =
                    |of: fn(&CallOutcome) -> bool| verdicts.iter().filter(|v| of(v)).count();
                let (failed, slow) = (count(|v| v.failed), count(|v| v.slow));
                self.send(generation, format!("{} {failed} {slow}", verdicts.len()))
                    .await
            }
        }
    }

    async fn send(&self, generation: u64, outcomes: String) -> Result<()> {
        let (script, size) = match self.policy.window {
            CallWindow::Count(calls) => (&REPORT_COUNT, u64::from(calls)),
            CallWindow::Time(span) => (&REPORT_TIME, micros(span).div_ceil(10)),
        };
        let asked = self.clock.now();
        let call = self
            .script(script)
            .arg(generation)
            .arg(&self.instance)
            .arg(outcomes)
            .arg(self.policy.min_calls)
            .arg(self.policy.failures)
            .arg(self.policy.slow)
            .arg(self.policy.distinct)
            .arg(size);
        let call = call.run::<Vec<String>>(&self.store);
        match observe::operation("breaker.report", self.entity.namespace(), call).await {
            Ok(said) => {
                self.learn(&said, asked);
                Ok(())
            }
            Err(error) => {
                self.lose(&error);
                Err(error)
            }
        }
    }
}
