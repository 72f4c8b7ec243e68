//! Queues, topics and streams: nothing lost, nothing twice, nothing early.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{Error, Result};
use tokio::task::JoinSet;

use super::{Claims, Tally, grows_to};

mod events;
mod items;
mod jobs;
mod notices;
mod ring;
mod topic;

use events::Events;
use items::{List, Priorities};
use jobs::{DeadJobs, DelayedJobs, Jobs};
use notices::Notices;
use ring::Laps;
use topic::Goals;

super::patterns! { "messaging":
    "job_queue", "job", 1.0,
    "every job that was accepted is run, once", Jobs::open;
    "dead_letter", "dead letter", 1.0,
    "every job that always fails becomes a dead letter after exactly two attempts", DeadJobs::open;
    "delayed_jobs", "job", 1.0,
    "every delayed job is run, and none before it is due", DelayedJobs::open;
    "priority_queue", "item", 0.5,
    "every item that was pushed is popped once, those with lower numbers first", Priorities::open;
    "reliable_list", "item", 1.0,
    "every item that was pushed is finished once, also if a consumer drops it", List::open;
    "ring", "item", 0.0,
    "no item is visited twice in a lap, and no lap skips one", Laps::open;
    "notification", "member", 1.0,
    "every new notice is taken once", Notices::open;
    "topic", "message", 1.0,
    "listeners hear every message in its publisher's order, or are told of a gap", Goals::open;
    "event_stream", "event", 1.0,
    "the group reads every event once, in the order of the stream", Events::open;
}

/// What consumers got: how many, and the sum of their numbers.
#[derive(Default)]
struct Got {
    count: AtomicU64,
    sum: AtomicU64,
}

impl Got {
    fn add(&self, number: u64) {
        self.sum.fetch_add(number, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }
}

/// What producers sent, and whether consumers got exactly that.
#[derive(Default)]
struct Sent {
    tally: Tally,
    sum: AtomicU64,
}

impl Sent {
    fn add<T>(&self, number: u64, outcome: &Result<T>) {
        if outcome.is_ok() {
            self.sum.fetch_add(number, Ordering::Relaxed);
        }
        self.tally.add(1, outcome);
    }

    /// Waits until everything has arrived, and a moment longer for what comes twice. Consumers may be slower than producers:
    /// what counts is that something arrives.
    async fn arrived(&self, what: &str, got: &Got, claims: &Claims) -> Result<()> {
        grows_to(self.tally.done(), || async { Ok(got.count()) }).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let count = got.count();
        claims.hold(self.tally.explains(count), || {
            format!("{count} of {} {what} arrived", self.tally.text())
        });
        let sums = (
            got.sum.load(Ordering::Relaxed),
            self.sum.load(Ordering::Relaxed),
        );
        claims.hold(count != self.tally.done() || sums.0 == sums.1, || {
            format!("as many {what} arrived as were sent, but not the same ones")
        });
        Ok(())
    }
}

/// Consumers beside the clients; they end with the workload.
#[derive(Default)]
struct Beside {
    tasks: tokio::sync::Mutex<JoinSet<Result<()>>>,
    stop: Arc<AtomicBool>,
}

impl Beside {
    async fn spawn<F>(&self, task: impl FnOnce(Arc<AtomicBool>) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let task = task(self.stop.clone());
        self.tasks.lock().await.spawn(task);
    }

    /// Stops them; an error of a consumer is one of the run.
    async fn stop(&self) -> Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        let mut tasks = self.tasks.lock().await;
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok(result) => result?,
                Err(error) if error.is_cancelled() => {}
                Err(error) => return Err(panicked(&error)),
            }
        }
        Ok(())
    }
}

fn panicked(error: &tokio::task::JoinError) -> Error {
    redstart::redis::RedisError::from((
        redstart::redis::ErrorKind::Client,
        "a consumer panicked",
        error.to_string(),
    ))
    .into()
}

/// Consumers beside the clients.
const CONSUMERS: usize = 4;
/// How long a consumer waits before it looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);
