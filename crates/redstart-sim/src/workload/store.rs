//! The store itself: what was acknowledged happened, what failed for certain did not, each once, and every caller got its
//! own answer.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redstart::Store;

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    history::{Event, History, Model},
    world::World,
};

pub(super) struct Counting {
    keys: u64,
    counts: Mutex<BTreeMap<u64, Count>>,
    histories: Vec<History<Call>>,
}

/// A call to a counter.
#[derive(Clone, Debug, PartialEq)]
enum Call {
    /// With the number that came back.
    Incr(Option<u64>),
    Get(u64),
}

/// A counter; `None` after a loss.
struct Counter;

impl Model for Counter {
    type State = Option<u64>;
    type Call = Call;

    fn initial(&self) -> Option<u64> {
        Some(0)
    }

    fn unknown(&self) -> Option<u64> {
        None
    }

    fn step(&self, state: &Option<u64>, call: &Call) -> Option<Option<u64>> {
        match (state, call) {
            (Some(count), Call::Incr(None)) => Some(Some(count + 1)),
            (Some(count), Call::Incr(Some(answer))) => {
                (count + 1 == *answer).then_some(Some(*answer))
            }
            (Some(count), Call::Get(answer)) => (count == answer).then_some(*state),
            (None, Call::Incr(answer)) => Some(*answer),
            (None, Call::Get(answer)) => Some(Some(*answer)),
        }
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        match call {
            Call::Incr(_) => Some(Call::Incr(None)),
            Call::Get(_) => None,
        }
    }
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
        let keys = dice.between(1, 4);
        Self {
            keys,
            counts: Mutex::default(),
            histories: (0..keys).map(|_| History::default()).collect(),
        }
    }

    /// The calls are sent; their numbers in the histories.
    fn begin(&self, keys: &[u64], at: Duration) -> Vec<usize> {
        let mut counts = self.counts.lock();
        let begin = |key: &u64| {
            counts.entry(*key).or_default().perhaps += 1;
            self.histories[*key as usize].begin(Call::Incr(None), at)
        };
        keys.iter().map(begin).collect()
    }

    fn count(&self, key: u64, call: usize, outcome: Outcome, at: Duration, now: Duration) {
        let history = &self.histories[key as usize];
        match outcome {
            Outcome::Done(answer) => history.end(call, Call::Incr(Some(answer)), now),
            Outcome::Perhaps => {}
            Outcome::Not => history.cancel(call),
        }
        let mut counts = self.counts.lock();
        let count = counts.entry(key).or_default();
        // It was counted as perhaps when it began, since its process may be killed.
        match outcome {
            Outcome::Done(_) => {
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
    /// With the number that came back.
    Done(u64),
    Perhaps,
    Not,
}

fn outcome(result: &Option<redstart::Result<u64>>) -> Outcome {
    match result {
        Some(Ok(answer)) => Outcome::Done(*answer),
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
                    let calls = self.begin(&keys, at);
                    let mut done: Vec<Option<redstart::Result<u64>>> =
                        keys.iter().map(|_| None).collect();
                    let sent = keys.iter().zip(&mut done).map(|(key, done)| {
                        let mut cmd = redis::cmd("INCR");
                        cmd.arg(name(*key));
                        let store = &store;
                        async move { *done = Some(store.query::<u64>(&cmd).await) }
                    });
                    let call = client.perhaps_dropped(100, join_all(sent));
                    twin.timed("query", deadline, call).await;
                    for ((key, number), result) in keys.into_iter().zip(calls).zip(done) {
                        let outcome = outcome(&result);
                        client.note(format_args!("INCR {key}: {outcome:?}"));
                        if let Some(result) = &result {
                            client.heard(result, at);
                        }
                        let fine = result.map(|result| result.is_ok());
                        client.world.count(|tally| tally.answered(fine));
                        self.count(key, number, outcome, at, client.world.now());
                    }
                    continue;
                }
                let mut pipeline = redis::pipe();
                let keys: Vec<u64> = (0..3).map(|_| client.dice.below(self.keys)).collect();
                let calls = self.begin(&keys, at);
                for key in &keys {
                    pipeline.cmd("INCR").arg(name(*key));
                }
                let call = client.perhaps_dropped(100, store.pipeline::<Vec<u64>>(&pipeline));
                let result = twin.timed("pipeline", deadline, call).await;
                // Of a pipeline that a server refused, a part may have happened.
                let refused = |error: &redstart::Error| error.server_code().is_some();
                let (answers, rest) = match result {
                    Some(Ok(answers)) => (answers, Outcome::Perhaps),
                    Some(Err(error)) if !error.is_in_doubt() && !refused(&error) => {
                        (Vec::new(), Outcome::Not)
                    }
                    _ => (Vec::new(), Outcome::Perhaps),
                };
                client.note(format_args!("pipeline of {keys:?}: {answers:?} {rest:?}"));
                for (at_call, (key, number)) in keys.into_iter().zip(calls).enumerate() {
                    let answer = answers.get(at_call).copied();
                    let outcome = answer.map_or(rest, Outcome::Done);
                    self.count(key, number, outcome, at, client.world.now());
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let (store, index) = (store.clone(), client.index as u64);
        Box::pin(async move {
            // In a cluster, on several nodes.
            for key in 0..4 {
                let mut cmd = redis::cmd("SET");
                cmd.arg(format!("works{{{key}}}")).arg(index);
                store
                    .query::<()>(&cmd)
                    .await
                    .map_err(|error| error.to_string())?;
            }
            Ok(())
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let counts = self.counts.lock().clone();
            for (key, count) in counts {
                let asked = world.now();
                let mut cmd = redis::cmd("GET");
                cmd.arg(name(key));
                let found = match store.query::<Option<u64>>(&cmd).await {
                    Ok(found) => found.unwrap_or(0),
                    Err(error) => {
                        world.breach(format!("count {key} cannot be read: {error}"));
                        continue;
                    }
                };
                let history = &self.histories[key as usize];
                history.add(Event {
                    call: Call::Get(found),
                    from: asked,
                    to: Some(world.now()),
                });
                world.explain(&format!("count {key}"), &Counter, &history.events());
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
