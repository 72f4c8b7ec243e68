//! Counters and unique visitors: what was acknowledged is counted, and a count that is handed over is never lost.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Error, Store,
    counting::{Counter, DaySpan, Keep, Uniques},
};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    history::{Event, History, Model},
    world::World,
};

#[derive(Clone, Debug, PartialEq)]
enum Call {
    /// How many, and the count then.
    Add(i64, Option<i64>),
    Get(i64),
    Take(Option<i64>),
    /// The outer is missing if there was no answer, the inner if there was nothing to drain.
    Drain(Option<Option<(String, i64)>>),
    Ack(String, Option<bool>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Counts {
    /// Not known after a loss, until an answer tells.
    count: Option<i64>,
    batch: Batch,
}

/// What was drained and not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Batch {
    Unknown,
    Empty,
    /// The id is not known if there was no answer.
    Drained(Option<String>, i64),
}

impl Counts {
    /// The count must be this, or is so from now on.
    fn learn(&mut self, count: i64) -> bool {
        let known = *self.count.get_or_insert(count);
        known == count
    }

    fn drain(&mut self, answer: &Option<Option<(String, i64)>>) -> bool {
        let fresh = self.batch == Batch::Empty;
        match (answer, &mut self.batch) {
            // Nothing was there: nothing was drained before, and nothing is counted.
            (Some(None), Batch::Unknown | Batch::Empty) => {
                self.batch = Batch::Empty;
                self.learn(0)
            }
            (Some(None), Batch::Drained(..)) => false,
            (Some(Some((id, count))), Batch::Drained(known, drained)) => {
                let same = known.as_ref().is_none_or(|known| known == id);
                *known = Some(id.clone());
                same && count == drained
            }
            (Some(Some((id, count))), batch) => {
                *batch = Batch::Drained(Some(id.clone()), *count);
                if fresh {
                    let fits = *count != 0 && self.learn(*count);
                    self.count = Some(0);
                    return fits;
                }
                // The count of now, or one from before the loss.
                if self.count == Some(*count) {
                    self.count = None;
                }
                true
            }
            (None, Batch::Drained(..)) => true,
            (None, batch) => {
                match (fresh, self.count) {
                    (_, Some(0)) => {}
                    (true, Some(count)) => {
                        *batch = Batch::Drained(None, count);
                        self.count = Some(0);
                    }
                    (true, None) => {
                        *batch = Batch::Unknown;
                        self.count = Some(0);
                    }
                    (false, _) => self.count = None,
                }
                true
            }
        }
    }
}

struct Tally;

impl Model for Tally {
    type State = Counts;
    type Call = Call;

    fn initial(&self) -> Counts {
        Counts {
            count: Some(0),
            batch: Batch::Empty,
        }
    }

    fn unknown(&self) -> Counts {
        Counts {
            count: None,
            batch: Batch::Unknown,
        }
    }

    fn step(&self, state: &Counts, call: &Call) -> Option<Counts> {
        let mut next = state.clone();
        let fits = match call {
            Call::Add(many, answer) => {
                next.count = next.count.map(|count| count + many);
                answer.is_none_or(|answer| next.learn(answer))
            }
            Call::Get(answer) => next.learn(*answer),
            Call::Take(answer) => {
                let fits = answer.is_none_or(|answer| next.learn(answer));
                next.count = Some(0);
                fits
            }
            Call::Drain(answer) => next.drain(answer),
            Call::Ack(id, answer) => match &next.batch {
                // Somebody's, or nobody's.
                Batch::Unknown => {
                    if *answer == Some(true) {
                        next.batch = Batch::Empty;
                    }
                    true
                }
                batch => {
                    let mine = matches!(batch, Batch::Drained(Some(known), _) if known == id);
                    if mine {
                        next.batch = Batch::Empty;
                    }
                    answer.is_none_or(|answer| answer == mine)
                }
            },
        };
        fits.then_some(next)
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        match call {
            Call::Add(many, _) => Some(Call::Add(*many, None)),
            Call::Get(_) => None,
            Call::Take(_) => Some(Call::Take(None)),
            Call::Drain(_) => Some(Call::Drain(None)),
            Call::Ack(id, _) => Some(Call::Ack(id.clone(), None)),
        }
    }
}

pub(super) struct Tallying {
    keep: Keep,
    history: History<Call>,
    visitors: Mutex<Visitors>,
}

#[derive(Default)]
struct Visitors {
    /// Those that were surely recorded, and when that was sent.
    recorded: Vec<(u64, Duration)>,
    /// Those that may have been.
    asked: BTreeSet<u64>,
}

/// Small numbers are exact, or nearly so.
const NEARLY: u64 = 2;

impl Tallying {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[32]);
        Self {
            keep: match dice.per_mille(500) {
                true => Keep::Forever,
                false => Keep::For(Duration::from_secs(3 * 24 * 3600)),
            },
            history: History::default(),
            visitors: Mutex::default(),
        }
    }

    fn counter(&self, store: &Store) -> Counter {
        match Counter::new(store, "sim", "clicks", self.keep) {
            Ok(counter) => counter,
            Err(error) => panic!("a counter cannot be made: {error}"),
        }
    }

    fn uniques(&self, store: &Store) -> Uniques {
        match Uniques::new(store, "sim", "visitors", self.keep) {
            Ok(uniques) => uniques,
            Err(error) => panic!("unique counts cannot be made: {error}"),
        }
    }

    /// A call is sent that may be repeated if its connection breaks: its first copy may arrive too, at any time.
    fn repeatable(&self, world: &World, call: &Call) -> usize {
        if !world.plan.faults.is_empty() {
            self.history.begin(call.clone(), world.now());
        }
        self.history.begin(call.clone(), world.now())
    }

    /// Notes how a call, which may be repeated or not, ended: with an answer, surely not at all, or in doubt.
    fn noted<T>(
        &self,
        world: &World,
        (call, repeatable): (usize, bool),
        ended: Option<Result<T, Error>>,
        answered: impl FnOnce(T) -> Call,
    ) {
        match ended {
            Some(Ok(answer)) => self.history.end(call, answered(answer), world.now()),
            Some(Err(error)) if world.surely_failed(&error, repeatable) => {
                self.history.cancel(call);
            }
            _ => {}
        }
    }

    async fn count(&self, client: &mut Client, counter: &Counter, ids: &mut Vec<String>) {
        let world = client.world.clone();
        let name = "banner";
        match client.dice.below(8) {
            0..=2 => {
                let many = client.dice.between(1, 9) as i64;
                let call = self.history.begin(Call::Add(many, None), world.now());
                let ended = client.call("add", 1, counter.add(name, many)).await;
                self.noted(&world, (call, false), ended, |count| {
                    Call::Add(many, Some(count))
                });
            }
            3 => {
                let call = self.history.begin(Call::Get(-1), world.now());
                match client.call("get", 1, counter.get(name)).await {
                    Some(Ok(count)) => self.history.end(call, Call::Get(count), world.now()),
                    _ => self.history.cancel(call),
                }
            }
            4 => {
                let call = self.history.begin(Call::Take(None), world.now());
                let ended = client.call("take", 1, counter.take(name)).await;
                self.noted(&world, (call, false), ended, |count| {
                    Call::Take(Some(count))
                });
            }
            5 | 6 => {
                let call = self.repeatable(&world, &Call::Drain(None));
                let ended = client.call("drain", 1, counter.drain(name)).await;
                self.noted(&world, (call, true), ended, |drained| {
                    let drained = drained.map(|drained| (drained.id, drained.count));
                    ids.extend(drained.iter().map(|(id, _)| id.clone()));
                    Call::Drain(Some(drained))
                });
            }
            _ => {
                let Some(id) = ids.pop() else { return };
                let call = self.repeatable(&world, &Call::Ack(id.clone(), None));
                let ended = client.call("ack", 1, counter.ack(name, &id)).await;
                self.noted(&world, (call, true), ended, |was| Call::Ack(id, Some(was)));
            }
        }
    }

    async fn visit(&self, client: &mut Client, uniques: &Uniques) {
        let world = client.world.clone();
        let from = client.dice.below(60);
        let ids: Vec<u64> = (from..from + client.dice.between(1, 6)).collect();
        self.visitors.lock().asked.extend(&ids);
        let at = world.now();
        let names = ids.iter().map(|id| format!("visitor{id}"));
        let names: Vec<_> = names.collect();
        let added = uniques.add_today("home", &names);
        // It asks what day it is.
        if let Some(Ok(_)) = client.call("add_today", 2, added).await {
            let mut visitors = self.visitors.lock();
            visitors.recorded.extend(ids.iter().map(|id| (*id, at)));
        }
    }

    /// The visitors are counted: those that were recorded, and nobody who was not.
    async fn judge(&self, world: &World, uniques: &Uniques) -> Result<(), Error> {
        let today = uniques.today().await?;
        let (least, before) = {
            let visitors = self.visitors.lock();
            let recorded: BTreeSet<u64> = visitors.recorded.iter().map(|(id, _)| *id).collect();
            let first = visitors.recorded.iter().map(|(_, at)| *at).min();
            (recorded.len() as u64, first)
        };
        let count = uniques.count("home", &DaySpan::Day(today)).await?.count;
        let most = self.visitors.lock().asked.len() as u64;
        // Two servers whose clocks differ may not agree what day it is.
        let lost = world.plan.clocks_differ
            || before.is_some_and(|before| world.may_have_lost(before, world.now()));
        if count + NEARLY < least && !lost {
            world.breach(format!(
                "{count} visitors are counted, and {least} were recorded"
            ));
        }
        if count > most + NEARLY {
            world.breach(format!(
                "{count} visitors are counted, and at most {most} came"
            ));
        }
        Ok(())
    }
}

impl Workload for Tallying {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let (counter, uniques) = (self.counter(&store), self.uniques(&store));
            let world = client.world.clone();
            let mut ids = Vec::new();
            while client.next_operation() {
                client.rest(0, 400).await;
                match client.dice.below(10) {
                    0..=6 => self.count(&mut client, &counter, &mut ids).await,
                    7 | 8 => self.visit(&mut client, &uniques).await,
                    _ => drop(self.judge(&world, &uniques).await),
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let counter = self.counter(store);
        let name = format!("works{}", client.index);
        Box::pin(async move {
            let added = counter.add(&name, 1).await;
            added.map_err(|error| error.to_string()).map(drop)
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let (counter, uniques) = (self.counter(&store), self.uniques(&store));
            let world = client.world.clone();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut ids = Vec::new();
            // After a loss, what follows is judged by what this finds.
            let from = world.now();
            match counter.get("banner").await {
                Ok(count) => self.history.add(Event {
                    call: Call::Get(count),
                    from,
                    to: Some(world.now()),
                }),
                Err(error) => world.breach(format!("the counter cannot be read: {error}")),
            }
            for _ in 0..8 {
                self.count(&mut client, &counter, &mut ids).await;
            }
            world.explain("the counter", &Tally, &self.history.events());
            if let Err(error) = self.judge(&world, &uniques).await {
                world.breach(format!("the visitors cannot be counted: {error}"));
            }
            for (key, ttl) in world.keys() {
                if ttl < 0 && self.keep != Keep::Forever && !key.ends_with(":batch") {
                    world.breach(format!("{key} never expires"));
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Explained, explain};

    fn calls(calls: &[Call]) -> Vec<Event<Call>> {
        let at = |number: usize| Duration::from_millis(100 + 10 * number as u64);
        let event = |(number, call): (usize, &Call)| Event {
            call: call.clone(),
            from: at(number),
            to: Some(at(number) + Duration::from_millis(5)),
        };
        calls.iter().enumerate().map(event).collect()
    }

    fn after_a_loss(all: &[Call]) -> bool {
        let lost = [(Duration::ZERO, Duration::from_millis(50))];
        explain(&Tally, &calls(all), &lost) == Explained::Yes
    }

    #[test]
    fn a_counter_is_judged_after_a_loss_by_its_first_answer() {
        assert!(after_a_loss(&[Call::Get(5), Call::Add(1, Some(6))]));
        assert!(!after_a_loss(&[Call::Get(5), Call::Add(1, Some(9))]));
        assert!(!after_a_loss(&[Call::Take(Some(5)), Call::Get(5)]));
    }

    #[test]
    fn a_batch_is_judged_after_a_loss_once_it_is_known() {
        let batch = |count| Call::Drain(Some(Some(("a".to_owned(), count))));
        assert!(after_a_loss(&[batch(3), batch(3)]));
        assert!(!after_a_loss(&[batch(3), batch(4)]));
        assert!(!after_a_loss(&[batch(3), Call::Drain(Some(None))]));
        let acknowledged = Call::Ack("a".to_owned(), Some(true));
        assert!(after_a_loss(&[
            acknowledged.clone(),
            Call::Drain(Some(None)),
            Call::Get(0)
        ]));
        assert!(!after_a_loss(&[acknowledged.clone(), acknowledged]));
        assert!(!after_a_loss(&[Call::Drain(Some(None)), Call::Get(2)]));
    }
}
