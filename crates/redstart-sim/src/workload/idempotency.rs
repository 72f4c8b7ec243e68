//! Idempotency keys: one execution, the same answer to all that ask for the same, and doubt that is never taken for nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{
    Store,
    resilience::{Idempotency, Run, WorkError},
};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

pub(super) struct Executing {
    lease: Duration,
    keys: u64,
    executions: Mutex<BTreeMap<String, Vec<Execution>>>,
    /// By key: a result that a caller was given.
    answered: Mutex<BTreeMap<String, u64>>,
    /// Runs that may have claimed their key and not yet said how they ended.
    open: Mutex<Vec<Open>>,
    /// By key: the prints of all requests so far.
    prints: Mutex<BTreeMap<String, BTreeSet<Print>>>,
    /// Keys, each with a print: the process of a run that may have had the key was killed, so nobody frees it.
    orphaned: Mutex<BTreeSet<(String, Print)>>,
}

/// What tells one request from another.
type Print = &'static [u8];

const REQUEST: Print = b"the request";
const OTHER: Print = b"another request";

/// A run that may have its key.
struct Open {
    number: u64,
    client: usize,
    key: String,
    print: Print,
}

#[derive(Clone, Copy, Debug)]
struct Execution {
    number: u64,
    print: Print,
    /// When the run was asked for. Its claim was taken after that, and may be lost before the work begins.
    asked: Duration,
    client: usize,
    /// Its process was killed later, perhaps before the result could be written: repeats may get no answer.
    orphaned: bool,
    /// It ended, and said that nothing happened.
    undone: bool,
}

impl Executing {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[13]);
        Self {
            lease: dice.millis(1000, 4000),
            keys: dice.between(1, 6),
            executions: Mutex::default(),
            answered: Mutex::default(),
            open: Mutex::default(),
            prints: Mutex::default(),
            orphaned: Mutex::default(),
        }
    }

    /// A run is asked for.
    fn asks(&self, client: usize, key: &str, print: Print, number: u64) {
        let mut prints = self.prints.lock();
        prints.entry(key.to_owned()).or_default().insert(print);
        self.open.lock().push(Open {
            number,
            client,
            key: key.to_owned(),
            print,
        });
    }

    /// A run was told that the key is not its own.
    fn has_no_claim(&self, number: u64) {
        self.open.lock().retain(|open| open.number != number);
    }

    /// The key is said to belong to another request: there must have been one.
    fn mismatch(&self, world: &World, key: &str, print: Print) {
        let prints = self.prints.lock();
        let others = prints.get(key).into_iter().flatten();
        if !others.into_iter().any(|other| *other != print) {
            drop(prints);
            world.breach(format!(
                "{key} is said to belong to another request, and there was none"
            ));
        }
    }

    fn idempotency(&self, store: &Store) -> Idempotency {
        match Idempotency::builder(store, "sim", "pay")
            .lease(self.lease)
            .build()
        {
            Ok(idempotency) => idempotency,
            Err(error) => panic!("idempotency keys cannot be made: {error}"),
        }
    }

    /// Whether the claim of a run may have been lost before its work began. A process that stood still for longer than its
    /// lease claims again first, unless its machine was suspended and its clock stood still too.
    fn may_have_lost_its_claim(&self, world: &World, client: usize, asked: Duration) -> bool {
        let stood = world.stood_still_until_now(client);
        let is_late = stood.is_some_and(|stood| stood >= self.lease)
            && !world.is_suspended_since(client, asked);
        world.may_have_lost(asked, world.now()) && !is_late
    }

    /// The work: it is noted that it began, and how it ended.
    async fn work(
        self: Arc<Self>,
        world: Arc<World>,
        asked: Duration,
        key: String,
        (number, print): (u64, Print),
        lasts: Duration,
        fails: bool,
    ) -> Result<u64, WorkError<String>> {
        let client = redstart::sim::current().map_or(usize::MAX, |process| process.id());
        let before = {
            let mut executions = self.executions.lock();
            let of = executions.entry(key.clone()).or_default();
            let before = of.iter().rev().find(|execution| !execution.undone).copied();
            of.push(Execution {
                number,
                print,
                asked,
                client,
                orphaned: false,
                undone: false,
            });
            before
        };
        world
            .trace
            .note("work", format_args!("{key} is executed as {number}"));
        if let Some(before) = before
            && !world.may_have_lost(before.asked, world.now())
            && !self.may_have_lost_its_claim(&world, client, asked)
        {
            world.breach(format!(
                "{key} was executed again, as {number}, after {before:?}"
            ));
        }
        tokio::time::sleep(lasts).await;
        if fails {
            let mut executions = self.executions.lock();
            let of = executions.get_mut(&key).into_iter().flatten();
            of.filter(|execution| execution.number == number)
                .for_each(|execution| execution.undone = true);
            return Err(WorkError::NotDone("refused".to_owned()));
        }
        Ok(number)
    }

    /// When it was asked for what was executed with this number.
    fn asked(&self, key: &str, number: u64) -> Option<Duration> {
        let executions = self.executions.lock();
        let mut of_key = executions.get(key)?.iter();
        let execution = of_key.find(|execution| execution.number == number)?;
        Some(execution.asked)
    }

    fn answer(&self, world: &World, key: &str, print: Print, number: u64) {
        let executions = self.executions.lock();
        let mut of_key = executions.get(key).into_iter().flatten();
        let known = of_key.find(|execution| execution.number == number).copied();
        drop(executions);
        match known {
            None => world.breach(format!(
                "{key} was answered with {number}, which was never executed"
            )),
            Some(known) if known.print != print => world.breach(format!(
                "{key} was answered with {number}, the result of another request"
            )),
            Some(_) => {}
        }
        let before = self.answered.lock().insert(key.to_owned(), number);
        // Either of them may be the one that came after the loss.
        let since = before
            .into_iter()
            .chain([number])
            .filter_map(|number| self.asked(key, number))
            .min();
        if before.is_some_and(|before| before != number)
            && !world.may_have_lost(since.unwrap_or_default(), world.now())
        {
            world.breach(format!(
                "{key} was answered with {before:?} and then with {number}"
            ));
        }
    }
}

impl Workload for Executing {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let idempotency = self.idempotency(&store);
            let world = client.world.clone();
            while client.next_operation() {
                client.rest(0, 900).await;
                let key = format!("key{}", client.dice.below(self.keys));
                let number = client.dice.next() >> 12;
                let lasts = client.dice.millis(0, 3000);
                let fails = client.dice.per_mille(200);
                let print = match client.dice.per_mille(100) {
                    true => OTHER,
                    false => REQUEST,
                };
                self.asks(client.index, &key, print, number);
                let work = self.clone().work(
                    world.clone(),
                    world.now(),
                    key.clone(),
                    (number, print),
                    lasts,
                    fails,
                );
                let run = idempotency.run::<u64, String, _>(&key, print, work);
                // One request before the work and one after it. A claim that took longer than its lease is made again.
                let deadline = world.plan.deadline;
                let claims = if deadline < self.lease / 2 { 2 } else { 8 };
                let limit = deadline * (claims + 1) + lasts;
                let Some(run) = client.call_within(150, "run", limit, run).await else {
                    continue;
                };
                client.note(format_args!("{key}: {run:?}"));
                match run {
                    Ok(Run::Done(answer)) => {
                        if answer != number {
                            world.breach(format!("{key} is done with {answer}, not with {number}"));
                        }
                        self.answer(&world, &key, print, answer);
                    }
                    Ok(Run::Replayed(answer)) => {
                        world.met();
                        self.has_no_claim(number);
                        self.answer(&world, &key, print, answer);
                    }
                    Ok(Run::Mismatch) => {
                        self.has_no_claim(number);
                        self.mismatch(&world, &key, print);
                    }
                    Ok(Run::Busy { .. } | Run::Unknown(_)) => self.has_no_claim(number),
                    Err(error) if !error.is_in_doubt() => {
                        let executions = self.executions.lock();
                        let started = executions.get(&key).is_some_and(|of| {
                            of.iter().any(|execution| execution.number == number)
                        });
                        if started {
                            drop(executions);
                            world.breach(format!(
                                "{key} was executed, and the error says that it was not: {error}"
                            ));
                        }
                    }
                    _ => {}
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let idempotency = self.idempotency(store);
        // Another key each time: one whose claim is in doubt is busy for a while.
        let key = format!("works{}-{}", client.index, client.world.now().as_millis());
        Box::pin(async move {
            let run = idempotency.run::<u64, String, _>(&key, b"", async { Ok(1) });
            match run.await {
                Ok(Run::Done(1)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
    }

    fn killed(&self, client: usize) {
        let mut executions = self.executions.lock();
        let all = executions.values_mut().flatten();
        all.filter(|one| one.client == client)
            .for_each(|one| one.orphaned = true);
        let mut open = self.open.lock();
        let dead = open.extract_if(.., |open| open.client == client);
        let mut orphaned = self.orphaned.lock();
        orphaned.extend(dead.map(|open| (open.key, open.print)));
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let idempotency = self.idempotency(&store);
            let world = client.world.clone();
            // What is written in the background has been written, and every lease has ended.
            tokio::time::sleep(self.lease + Duration::from_secs(12)).await;
            for key in 0..self.keys {
                let key = format!("key{key}");
                let answered = self.answered.lock().get(&key).copied();
                let executions = self
                    .executions
                    .lock()
                    .get(&key)
                    .cloned()
                    .unwrap_or_default();
                let executed = executions.iter().any(|one| !one.undone);
                let orphans = self.orphaned.lock().clone();
                let orphaned = |print| orphans.contains(&(key.clone(), print));
                // All others have ended, and what became of them is written or called off by now.
                let unknown = orphaned(REQUEST);
                let other = executions
                    .iter()
                    .any(|one| one.print == OTHER && !one.undone);
                let work = self.clone().work(
                    world.clone(),
                    world.now(),
                    key.clone(),
                    (7, REQUEST),
                    Duration::ZERO,
                    false,
                );
                let run = idempotency.run::<u64, String, _>(&key, REQUEST, work).await;
                client.note(format_args!("{key} at the end: {run:?}"));
                // Also a claim that was called off may be back.
                if world.may_have_lost(Duration::ZERO, world.now()) {
                    continue;
                }
                match run {
                    Ok(Run::Replayed(answer)) => self.answer(&world, &key, REQUEST, answer),
                    Ok(Run::Done(_)) if !executed => {}
                    Ok(Run::Unknown(_)) if unknown => {}
                    Ok(Run::Mismatch) if other || orphaned(OTHER) => {}
                    other => world.breach(format!(
                        "{key} (executed: {executed}, answered: {answered:?}) ends with {other:?}"
                    )),
                }
            }
            for (key, ttl) in world.keys() {
                if ttl < 0 {
                    world.breach(format!("{key} never expires"));
                }
            }
        })
    }
}
