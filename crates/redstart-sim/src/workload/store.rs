//! The store itself: what was acknowledged happened, what failed for certain did not, and each once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::{Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

pub(super) struct Counting {
    keys: u64,
    counts: Mutex<BTreeMap<u64, Count>>,
}

#[derive(Clone, Debug, Default)]
struct Count {
    /// Increments that were acknowledged, and when each was sent.
    sure: Vec<Duration>,
    /// Increments that may have happened.
    perhaps: u64,
}

impl Counting {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[17]);
        Self {
            keys: dice.between(1, 4),
            counts: Mutex::default(),
        }
    }

    fn begin(&self, keys: &[u64]) {
        let mut counts = self.counts.lock();
        for key in keys {
            counts.entry(*key).or_default().perhaps += 1;
        }
    }

    fn count(&self, key: u64, outcome: Outcome, at: Duration) {
        let mut counts = self.counts.lock();
        let count = counts.entry(key).or_default();
        // It was counted as perhaps when it began, since its process may be killed.
        match outcome {
            Outcome::Done => {
                count.perhaps -= 1;
                count.sure.push(at);
            }
            Outcome::Perhaps => {}
            Outcome::Not => count.perhaps -= 1,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Done,
    Perhaps,
    Not,
}

fn outcome<T>(result: &Option<redstart::Result<T>>) -> Outcome {
    match result {
        Some(Ok(_)) => Outcome::Done,
        Some(Err(error)) if !error.is_in_doubt() => Outcome::Not,
        _ => Outcome::Perhaps,
    }
}

fn name(key: u64) -> String {
    format!("count{{{key}}}")
}

impl Workload for Counting {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let deadline = client.world.plan.deadline;
            while client.next_operation() {
                client.rest(0, 500).await;
                let at = client.world.now();
                let twin = client.twin();
                if client.dice.per_mille(700) {
                    // Some at once, so that they share a connection.
                    let keys: Vec<u64> = (0..client.dice.between(1, 4))
                        .map(|_| client.dice.below(self.keys))
                        .collect();
                    self.begin(&keys);
                    let mut done: Vec<Option<redstart::Result<u64>>> =
                        keys.iter().map(|_| None).collect();
                    let calls = keys.iter().zip(&mut done).map(|(key, done)| {
                        let mut cmd = redis::cmd("INCR");
                        cmd.arg(name(*key));
                        let store = &store;
                        async move { *done = Some(store.query::<u64>(&cmd).await) }
                    });
                    let call = client.perhaps_dropped(100, join_all(calls));
                    twin.timed("query", deadline, call).await;
                    for (key, result) in keys.into_iter().zip(done) {
                        let outcome = outcome(&result);
                        client.note(format_args!("INCR {key}: {outcome:?}"));
                        self.count(key, outcome, at);
                    }
                    continue;
                }
                let mut pipeline = redis::pipe();
                let keys: Vec<u64> = (0..3).map(|_| client.dice.below(self.keys)).collect();
                self.begin(&keys);
                for key in &keys {
                    pipeline.cmd("INCR").arg(name(*key));
                }
                let call = client.perhaps_dropped(100, store.pipeline::<Vec<u64>>(&pipeline));
                let result = twin.timed("pipeline", deadline, call).await;
                // Of a pipeline that a server refused, a part may have happened.
                let refused = |error: &redstart::Error| error.server_code().is_some();
                let partly = matches!(&result, Some(Err(error)) if refused(error));
                let outcome = match outcome(&result) {
                    Outcome::Not if partly => Outcome::Perhaps,
                    outcome => outcome,
                };
                client.note(format_args!("pipeline of {keys:?}: {outcome:?}"));
                for key in keys {
                    self.count(key, outcome, at);
                }
            }
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let counts = self.counts.lock().clone();
            for (key, count) in counts {
                let mut cmd = redis::cmd("GET");
                cmd.arg(name(key));
                let found = match store.query::<Option<u64>>(&cmd).await {
                    Ok(found) => found.unwrap_or(0),
                    Err(error) => {
                        world.breach(format!("count {key} cannot be read: {error}"));
                        continue;
                    }
                };
                let lost = count
                    .sure
                    .iter()
                    .filter(|at| world.may_have_lost(**at, **at + world.plan.deadline));
                let least = count.sure.len() - lost.count();
                let most = count.sure.len() as u64 + count.perhaps;
                if found < least as u64 || found > most {
                    world.breach(format!(
                        "count {key} is {found}, and must be from {least} to {most}"
                    ));
                }
            }
        })
    }
}
