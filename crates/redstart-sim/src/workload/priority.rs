//! Priority queues: an item is with one consumer at a time, comes back when its lease ends, and is over when it is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{
    Store,
    messaging::{PriorityConsumer, PriorityQueue, Reservation, Settled},
};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

/// Its number, and its priority.
type Item = (u64, i32);

pub(super) struct Ranking {
    lease: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Items that were surely pushed, and when that was sent.
    pushed: BTreeMap<u64, Duration>,
    /// When an item was surely done.
    done: BTreeMap<u64, Duration>,
    /// Items that may be done.
    perhaps_done: BTreeSet<u64>,
    /// By item: who holds it, since when it was asked for.
    held: BTreeMap<u64, Hold>,
}

#[derive(Clone, Copy)]
struct Hold {
    client: usize,
    asked: Duration,
}

impl Ranking {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[18]);
        Self {
            lease: dice.millis(400, 3000),
            state: Mutex::default(),
        }
    }

    fn queue(&self, store: &Store) -> PriorityQueue<Item> {
        match PriorityQueue::new(store, "sim", "calls") {
            Ok(queue) => queue,
            Err(error) => panic!("a priority queue cannot be made: {error}"),
        }
    }

    async fn push(&self, client: &mut Client, queue: &PriorityQueue<Item>) {
        let world = client.world.clone();
        let item = (client.dice.next() >> 16, client.dice.below(5) as i32);
        let at = world.now();
        let pushed = client.call("push", 1, queue.push(&item, item.1)).await;
        if let Some(Ok(_)) = pushed {
            client.note(format_args!("pushed {}", item.0));
            self.state.lock().pushed.insert(item.0, at);
        }
    }

    /// An item was handed out: is it over, or does anybody else still have it?
    fn reserved(&self, client: &Client, item: u64, asked: Duration) {
        let world = &client.world;
        let now = world.now();
        world.met();
        client.note(format_args!("has {item}"));
        let mut breaches = Vec::new();
        let mut state = self.state.lock();
        // If it asked before that, it may have been handed out before that: see below.
        if let Some(at) = state.done.get(&item)
            && *at < asked
            && !world.may_have_lost(*at, now)
        {
            breaches.push(format!("item {item} comes again after it was done"));
        }
        if let Some(other) = state.held.get(&item) {
            // A server rounds to microseconds, a timer to milliseconds.
            let valid = now + Duration::from_millis(2) < other.asked + self.lease;
            // A reservation that was lost with its server may settle the one that followed.
            let pushed = state.pushed.get(&item).copied().unwrap_or_default();
            let excused = world.may_have_lost(pushed, now) || world.clock_jumped(other.asked, now);
            if valid && !excused {
                breaches.push(format!(
                    "client {} has item {item} while client {} has it",
                    client.index, other.client
                ));
            }
        }
        // The clock of a suspended machine stands still: it cannot know that the lease has ended.
        let unaware = now >= asked + self.lease && world.is_suspended_since(client.index, asked);
        if unaware && !breaches.is_empty() {
            return client.note(format_args!("had {item} while it was suspended"));
        }
        let hold = Hold {
            client: client.index,
            asked,
        };
        state.held.insert(item, hold);
        drop(state);
        breaches.into_iter().for_each(|breach| world.breach(breach));
    }

    async fn consume(&self, client: &mut Client, consumer: &mut PriorityConsumer<Item>) {
        let world = client.world.clone();
        let wait = client.dice.millis(0, 1500);
        let asked = world.now();
        let limit = client.longest(wait) + world.plan.deadline;
        let reserve = consumer.reserve(wait);
        let reserved = client.call_within(100, "reserve", limit, reserve).await;
        let Some(Ok(Some(reservation))) = reserved else {
            return;
        };
        let item = reservation.item().0;
        self.reserved(client, item, asked);
        // Sometimes longer than the lease.
        let longest = (self.lease.as_millis() as u64) * 3 / 2;
        client.rest(0, longest).await;
        self.settle_one(client, reservation, item, asked).await;
    }

    async fn settle_one(
        &self,
        client: &mut Client,
        reservation: Reservation<Item>,
        item: u64,
        asked: Duration,
    ) {
        let world = client.world.clone();
        let back = client.dice.per_mille(400);
        let begun = world.now();
        {
            // From here on it counts as given back, whatever becomes of the call.
            let mut state = self.state.lock();
            let mine = |hold: &Hold| (hold.client, hold.asked) == (client.index, asked);
            if state.held.get(&item).is_some_and(mine) {
                state.held.remove(&item);
            }
            if !back {
                state.perhaps_done.insert(item);
            }
        }
        let settled = match back {
            true => {
                let call = reservation.give_back();
                client.call("give_back", 1, call).await
            }
            false => client.call("done", 1, reservation.done()).await,
        };
        if let Some(Ok(settled)) = settled {
            client.note(format_args!("{item} back {back}: {settled:?}"));
            if settled == Settled::Done && !back {
                self.state.lock().done.insert(item, begun);
            }
        }
    }
}

impl Workload for Ranking {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let queue = self.queue(&store);
            let mut consumer = None;
            while client.next_operation() {
                client.rest(0, 400).await;
                if client.dice.per_mille(400) {
                    self.push(&mut client, &queue).await;
                    continue;
                }
                if consumer.is_none() {
                    let consume = queue.consumer(self.lease);
                    // Its channel opens within five deadlines.
                    let made = client.call("consumer", 6, consume).await;
                    consumer = made.and_then(Result::ok);
                }
                if let Some(consumer) = &mut consumer {
                    self.consume(&mut client, consumer).await;
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let queue = self.queue(store);
        let world = client.world.clone();
        // Another one each time: it may have been pushed although an error came back.
        let number = world.now().as_micros() as u64 * 8 + client.index as u64;
        Box::pin(async move {
            let at = world.now();
            let pushed = queue.push(&(number, 9), 9).await;
            pushed.map_err(|error| error.to_string())?;
            self.state.lock().pushed.insert(number, at);
            Ok(())
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let queue = self.queue(&store);
            // Every lease has ended by then.
            let behind = match world.plan.clocks_differ {
                true => Duration::from_secs(4),
                false => Duration::ZERO,
            };
            // A request of a dropped call may be on the way until now, and reserve an item for a whole lease.
            let late = world.slowest() + Duration::from_secs(1);
            tokio::time::sleep(late + self.lease + behind).await;
            let mut consumer = match queue.consumer(Duration::from_secs(600)).await {
                Ok(consumer) => consumer,
                Err(error) => return world.breach(format!("no consumer: {error}")),
            };
            let mut left = BTreeSet::new();
            let mut highest = i32::MIN;
            loop {
                let reservation = match consumer.reserve(Duration::ZERO).await {
                    Ok(Some(reservation)) => reservation,
                    Ok(None) => break,
                    Err(error) => return world.breach(format!("nothing is handed out: {error}")),
                };
                let &(item, priority) = reservation.item();
                if !left.insert(item) {
                    world.breach(format!("item {item} is there twice"));
                }
                if priority < highest {
                    world.breach(format!(
                        "priority {priority} of item {item} comes after {highest}"
                    ));
                }
                highest = priority;
                if !matches!(reservation.done().await, Ok(Settled::Done)) {
                    world.breach(format!("item {item} cannot be done"));
                }
            }
            let state = self.state.lock();
            for (item, at) in &state.pushed {
                let over = state.perhaps_done.contains(item) || left.contains(item);
                if !over && !world.may_have_lost(*at, world.now()) {
                    world.breach(format!("item {item} was pushed at {at:?} and is lost"));
                }
            }
            for (item, at) in &state.done {
                if left.contains(item) && !world.may_have_lost(*at, world.now()) {
                    world.breach(format!("item {item} is there although it was done"));
                }
            }
        })
    }

    fn killed(&self, client: usize) {
        // Its items stay reserved until their leases end.
        self.state
            .lock()
            .held
            .retain(|_, hold| hold.client != client);
    }
}
