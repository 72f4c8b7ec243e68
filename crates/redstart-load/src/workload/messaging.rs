//! Queues, topics and streams: nothing lost, nothing twice, nothing early.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
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

/// Operations have numbers that begin near zero; nobody has sent one beyond these.
const HIGHEST: u64 = 1 << 36;

/// A set of numbers that begin near zero: a bit for each.
#[derive(Default)]
struct Numbers(Mutex<Vec<u64>>);

impl Numbers {
    /// Whether it was not there.
    fn insert(&self, number: u64) -> bool {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        let mut words = self.0.lock();
        if words.len() <= word {
            words.resize(word + 1, 0);
        }
        let new = words[word] & bit == 0;
        words[word] |= bit;
        new
    }

    /// Whether it was there.
    fn remove(&self, number: u64) -> bool {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        let mut words = self.0.lock();
        let Some(word) = words.get_mut(word) else {
            return false;
        };
        let had = *word & bit != 0;
        *word &= !bit;
        had
    }

    /// How many of these are in none of the others.
    fn without(&self, others: &[&Self]) -> u64 {
        let words = self.0.lock().clone();
        let others: Vec<Vec<u64>> = others.iter().map(|other| other.0.lock().clone()).collect();
        let left = words.iter().enumerate().map(|(at, word)| {
            let in_others = others.iter().filter_map(|other| other.get(at));
            word & !in_others.fold(0, |all, word| all | word)
        });
        left.map(|word| u64::from(word.count_ones())).sum()
    }

    /// The next one after the highest.
    fn next(&self) -> u64 {
        let words = self.0.lock();
        let last = words.iter().rposition(|word| *word != 0);
        last.map_or(0, |at| {
            at as u64 * 64 + u64::from(64 - words[at].leading_zeros())
        })
    }
}

/// What consumers got.
#[derive(Default)]
struct Got {
    numbers: Numbers,
    /// Those of which the consumer does not know whether it has finished them: they may come once more.
    unsure: Numbers,
    /// How many came again without a reason, and how many have a number that nobody sends.
    again: AtomicU64,
    strange: AtomicU64,
}

impl Got {
    fn add(&self, number: u64) {
        if number >= HIGHEST {
            self.strange.fetch_add(1, Ordering::Relaxed);
        } else if !self.numbers.insert(number) && !self.unsure.remove(number) {
            self.again.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Of this one it is not known whether it was finished. It may even have come again already.
    fn doubt(&self, number: u64) {
        if number >= HIGHEST {
            self.strange.fetch_add(1, Ordering::Relaxed);
        } else if self.numbers.insert(number) {
            self.unsure.insert(number);
        }
    }
}

/// What producers sent, and whether consumers got exactly that. Every acknowledged number is looked for by itself: one whose
/// outcome is unknown does not stand in for one that was lost.
#[derive(Default)]
struct Sent {
    tally: Tally,
    done: Numbers,
    unknown: Numbers,
}

impl Sent {
    fn add<T>(&self, number: u64, outcome: &Result<T>) {
        match outcome {
            Ok(_) => self.done.insert(number),
            Err(_) => self.unknown.insert(number),
        };
        self.tally.add(1, outcome);
    }

    /// A number that was not sent yet.
    fn next(&self) -> u64 {
        self.done.next().max(self.unknown.next())
    }

    /// How many were acknowledged and have not arrived.
    fn missing(&self, got: &Got) -> u64 {
        self.done.without(&[&got.numbers])
    }

    /// Waits until everything has arrived but for what consumers have `lost`, and a moment longer for what comes twice.
    /// Consumers may be slower than producers: what counts is that something arrives.
    async fn arrive(&self, got: &Got, lost: u64) -> Result<()> {
        let arrived = || self.tally.done() - self.missing(got);
        grows_to(self.tally.done().saturating_sub(lost), || async {
            Ok(arrived())
        })
        .await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(())
    }

    /// Whether consumers got what was sent: all but at most `lost` of which their replies were lost, and nothing else.
    fn compare(&self, what: &str, got: &Got, lost: u64, claims: &Claims) {
        let (sent, missing) = (self.tally.done(), self.missing(got));
        claims.hold(missing <= lost, || {
            format!("{} of {sent} {what} arrived", sent - missing)
        });
        let strange =
            got.numbers.without(&[&self.done, &self.unknown]) + got.strange.load(Ordering::Relaxed);
        claims.hold(strange == 0, || {
            format!("{strange} {what} arrived that nobody sent")
        });
    }

    /// Whether nothing came again.
    fn once(&self, what: &str, got: &Got, claims: &Claims) {
        let again = got.again.load(Ordering::Relaxed);
        claims.hold(again == 0, || {
            format!("{again} {what} arrived more than once")
        });
    }
}

/// Consumers beside the clients; they end with the workload.
#[derive(Default)]
struct Beside {
    tasks: tokio::sync::Mutex<JoinSet<Result<()>>>,
    stop: Arc<AtomicBool>,
}

/// Tells a consumer when to end, and remembers what failed.
struct Shift {
    stop: Arc<AtomicBool>,
    failure: Option<Error>,
}

impl Shift {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    /// What a call returned. A store that does not answer for a while is no reason to stop consuming, and one that refuses at once
    /// is not asked all the time.
    async fn heed<T>(&mut self, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.failure = None;
                Some(value)
            }
            Err(error) => {
                self.failure = Some(error);
                tokio::time::sleep(PAUSE).await;
                None
            }
        }
    }

    /// The end of a consumer: an error if its last call failed, since then it does not know what it missed.
    fn end(self) -> Result<()> {
        self.failure.map_or(Ok(()), Err)
    }
}

impl Beside {
    async fn spawn<F>(&self, task: impl FnOnce(Shift) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let task = task(Shift {
            stop: self.stop.clone(),
            failure: None,
        });
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
/// How long a consumer waits after a failure.
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn lost() -> Result<()> {
        let lost = (redstart::redis::ErrorKind::Io, "the reply was lost");
        Err(redstart::redis::RedisError::from(lost).into())
    }

    /// What is broken if these were acknowledged, these are in doubt, and consumers got these.
    fn broken(
        done: &[u64],
        unknown: &[u64],
        got: &[u64],
        lost_by_consumers: u64,
    ) -> Option<String> {
        let (sent, seen, claims) = (Sent::default(), Got::default(), Claims::default());
        done.iter().for_each(|number| sent.add(*number, &Ok(())));
        unknown.iter().for_each(|number| sent.add(*number, &lost()));
        got.iter().for_each(|number| seen.add(*number));
        sent.compare("jobs", &seen, lost_by_consumers, &claims);
        sent.once("jobs", &seen, &claims);
        claims.first()
    }

    #[test]
    fn what_is_in_doubt_does_not_stand_in_for_what_was_lost() {
        for got in [&[0, 1][..], &[0, 1, 2], &[3, 2, 1, 0]] {
            assert_eq!(broken(&[0, 1], &[2, 3], got, 0), None, "{got:?}");
        }
        let text = broken(&[0, 1], &[2, 3], &[1, 2, 3], 0);
        assert_eq!(text.as_deref(), Some("1 of 2 jobs arrived"));
        // What a consumer's lost reply may have taken with it.
        assert_eq!(broken(&[0, 1], &[], &[1], 1), None);
        assert!(broken(&[0, 1, 2], &[], &[1], 1).is_some());
    }

    #[test]
    fn nothing_comes_twice_or_from_nobody() {
        for got in [&[0, 1, 1][..], &[0, 1, 4], &[0, 1, u64::MAX]] {
            assert!(broken(&[0, 1], &[2], got, 0).is_some(), "{got:?}");
        }
        // A consumer that does not know whether it has finished one may get it once more.
        let got = Got::default();
        got.doubt(70);
        got.add(70);
        assert_eq!(got.again.load(Ordering::Relaxed), 0);
        got.add(70);
        assert_eq!(got.again.load(Ordering::Relaxed), 1);
        // It is put back at once, so that another consumer may be faster than the one that does not know.
        got.add(71);
        got.doubt(71);
        assert_eq!(got.again.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_next_number_follows_the_highest() {
        let sent = Sent::default();
        assert_eq!(sent.next(), 0);
        sent.add(63, &Ok(()));
        assert_eq!(sent.next(), 64);
        sent.add(200, &lost());
        assert_eq!(sent.next(), 201);
    }
}
