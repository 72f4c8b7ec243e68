//! The reliable list: every item that was pushed is in one place until it is done, comes back from consumers that die, give
//! up or are dropped, and never after it was done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{
    Store,
    messaging::{ListConsumer, ListItem, ReliableList, Settled},
};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    plan::Shape,
    world::{SUSPENDED, World},
};

/// The list, and what begins the names of the lists of its consumers.
const LIST: &str = "sim:list:{orders}";
const TAKEN: &str = "sim:list:{orders}:taken:";
/// How long it may take until everything has come back: a consumer that was found silent is looked at again after longer
/// and longer pauses.
const BACK_WITHIN: Duration = Duration::from_secs(120);

pub(super) struct Handling {
    lease: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    count: u64,
    /// Items that were surely pushed, and when that was sent.
    pushed: BTreeMap<u64, Duration>,
    /// Items that were surely done, and when that was sent.
    done: BTreeMap<u64, Duration>,
    /// Items that may be done.
    perhaps_done: BTreeSet<u64>,
    /// By item: which client has it, and when that had asked for it.
    held: BTreeMap<u64, (usize, Duration)>,
}

fn number_of(item: &[u8]) -> Option<u64> {
    std::str::from_utf8(item).ok()?.parse().ok()
}

impl Handling {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[43]);
        // A renewal must come through within the lease.
        let least = 3 * world.plan.deadline.as_millis() as u64;
        Self {
            lease: dice.millis(least.max(600), least.max(600) + 3000),
            state: Mutex::default(),
        }
    }

    fn list(&self, store: &Store) -> ReliableList {
        let builder = ReliableList::builder(store, "sim", "orders").lease(self.lease);
        match builder.build() {
            Ok(list) => list,
            Err(error) => panic!("a list cannot be made: {error}"),
        }
    }

    /// Whether the lease of a client that asked for an item then may have ended since.
    fn may_have_ended(&self, world: &World, client: usize, asked: Duration) -> bool {
        let now = world.now();
        world.may_have_lost(asked, now)
            || world.clock_jumped(asked, now)
            || world.was_hindered(client, asked, self.lease)
            // It wakes without knowing that its lease has ended, and may take something before it renews that.
            || world.is_suspended_since(client, asked.saturating_sub(SUSPENDED))
    }

    fn next(&self) -> u64 {
        let mut state = self.state.lock();
        state.count += 1;
        state.count
    }

    async fn push(&self, client: &mut Client, list: &ReliableList) {
        let (item, at) = (self.next(), client.world.now());
        let push = list.push(item.to_string());
        if let Some(Ok(_)) = client.call("push", 1, push).await {
            client.note(format_args!("pushed {item}"));
            self.state.lock().pushed.insert(item, at);
        }
    }

    /// An item was handed out to a client that asked then.
    fn taken(&self, client: &Client, item: u64, asked: Duration) {
        let world = &client.world;
        let now = world.now();
        client.note(format_args!("has {item}"));
        let mut breaches = Vec::new();
        let mut state = self.state.lock();
        // One that was silent since it asked may read of an item that has gone to another.
        let silent = self.may_have_ended(world, client.index, asked);
        if let Some(at) = state.done.get(&item)
            && !world.may_have_lost(*at, now)
            && !silent
        {
            breaches.push(format!("item {item} comes again after it was done"));
        }
        let before = state.held.insert(item, (client.index, asked));
        if let Some((other, since)) = before
            && !self.may_have_ended(world, other, since)
            && !silent
        {
            breaches.push(format!(
                "client {} has item {item} while client {other} has it",
                client.index
            ));
        }
        drop(state);
        breaches.into_iter().for_each(|breach| world.breach(breach));
    }

    /// Every item that was pushed is in one place, unless it is done.
    fn look(&self, world: &World) {
        let all_up = world.servers.iter().all(|server| server.is_up());
        // A node that was replaced has what it had then.
        let replaced = world.plan.shape != Shape::Single;
        if !all_up || replaced && world.may_have_lost(Duration::ZERO, world.now()) {
            return;
        }
        let lost = |since: &Duration| world.may_have_lost(*since, world.now());
        let Some(lists) = world.lists(LIST) else {
            return;
        };
        let mut places: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for (key, items) in lists {
            if key != LIST && !key.starts_with(TAKEN) {
                continue;
            }
            for item in items.iter().filter_map(|item| number_of(item)) {
                places.entry(item).or_default().push(key.clone());
            }
        }
        let state = self.state.lock();
        let mut breaches = Vec::new();
        for (item, places) in &places {
            if places.len() > 1 {
                breaches.push(format!("item {item} is in several places: {places:?}"));
            }
            if state.done.get(item).is_some_and(|sent| !lost(sent)) {
                breaches.push(format!("item {item} is in {places:?} after it was done"));
            }
        }
        for (item, sent) in &state.pushed {
            let over = places.contains_key(item) || state.perhaps_done.contains(item);
            if !over && !lost(sent) {
                breaches.push(format!("item {item} is nowhere"));
            }
        }
        drop(state);
        breaches.into_iter().for_each(|breach| world.breach(breach));
    }

    async fn consume(&self, client: &mut Client, consumer: &mut ListConsumer) -> Option<()> {
        let world = client.world.clone();
        let (wait, asked) = (client.dice.millis(0, 1500), world.now());
        // It looks for what it took without knowing, connects, and asks.
        let limit = wait + 7 * world.plan.deadline;
        let take = consumer.take(wait);
        let taken = client.call_within(150, "take", limit, take).await;
        let Some(Ok(Some(item))) = taken else {
            return None;
        };
        let Some(number) = number_of(item.payload()) else {
            world.breach("an item is not what was pushed".to_owned());
            return None;
        };
        world.met();
        self.taken(client, number, asked);
        client.rest(0, 800).await;
        self.finish(client, item, number, asked).await;
        Some(())
    }

    async fn finish(&self, client: &mut Client, item: ListItem, number: u64, asked: Duration) {
        let world = client.world.clone();
        let drops = client.dice.per_mille(250);
        // An end that nobody heard of may arrive while the item is handled again, and ends it then.
        let mut may_be_done = false;
        {
            // From here on it counts as given back, whatever becomes of the call.
            let mut state = self.state.lock();
            if state.held.get(&number) == Some(&(client.index, asked)) {
                state.held.remove(&number);
            }
            if !drops {
                may_be_done = !state.perhaps_done.insert(number);
            }
        }
        if drops {
            client.note(format_args!("drops {number}"));
            return drop(item);
        }
        let sent = world.now();
        let settled = client.call("done", 1, item.done()).await;
        client.note(format_args!("{number} is done: {settled:?}"));
        match settled {
            Some(Ok(Settled::Done)) => {
                self.state.lock().done.insert(number, sent);
            }
            Some(Ok(Settled::Lost))
                if !may_be_done && !self.may_have_ended(&world, client.index, asked) =>
            {
                world.breach(format!(
                    "item {number} was lost although its consumer could renew its lease"
                ));
            }
            _ => {}
        }
    }

    /// Closes a consumer, or drops it.
    async fn leave(&self, client: &mut Client, consumer: ListConsumer) {
        match client.dice.per_mille(500) {
            true => drop(consumer),
            false => {
                let closed = client.call("close", 1, consumer.close()).await;
                client.note(format_args!("closes its consumer: {closed:?}"));
            }
        }
    }

    /// Items that were pushed and are not over.
    fn missing(&self, world: &World, found: &BTreeSet<u64>) -> Vec<u64> {
        let state = self.state.lock();
        let open = state.pushed.iter().filter(|(item, at)| {
            let over = state.perhaps_done.contains(item) || found.contains(item);
            !over && !world.may_have_lost(**at, world.now())
        });
        open.map(|(item, _)| *item).collect()
    }
}

impl Workload for Handling {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let list = self.list(&store);
            let mut consumer = None;
            while client.next_operation() {
                client.rest(0, 400).await;
                if client.dice.per_mille(450) {
                    self.push(&mut client, &list).await;
                    self.look(&world);
                    continue;
                }
                if consumer.is_none() {
                    // It registers, and puts back what silent ones have.
                    let consume = list.consumer();
                    let made = client.call("consumer", 4, consume).await;
                    consumer = made.and_then(Result::ok);
                }
                if let Some(consumer) = &mut consumer {
                    self.consume(&mut client, consumer).await;
                }
                if client.dice.per_mille(150)
                    && let Some(consumer) = consumer.take()
                {
                    self.leave(&mut client, consumer).await;
                }
                self.look(&world);
            }
            client.rest(0, 1000).await;
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let list = self.list(store);
        let world = client.world.clone();
        // Another one each time: it may have been pushed although an error came back.
        let item = self.next();
        Box::pin(async move {
            let at = world.now();
            let pushed = list.push(item.to_string()).await;
            pushed.map_err(|error| error.to_string())?;
            self.state.lock().pushed.insert(item, at);
            Ok(())
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let list = self.list(&store);
            self.look(&world);
            let mut consumer = match list.consumer().await {
                Ok(consumer) => consumer,
                Err(error) => return world.breach(format!("no consumer: {error}")),
            };
            let until = world.now() + BACK_WITHIN;
            let mut found = BTreeSet::new();
            loop {
                let wait = Duration::from_millis(500);
                let item = match consumer.take(wait).await {
                    Ok(Some(item)) => item,
                    Ok(None) if self.missing(&world, &found).is_empty() => break,
                    Ok(None) if world.now() < until => continue,
                    Ok(None) => break,
                    Err(error) => return world.breach(format!("nothing is handed out: {error}")),
                };
                let number = number_of(item.payload()).unwrap_or_default();
                self.taken(&client, number, world.now());
                if !found.insert(number) {
                    world.breach(format!("item {number} is there twice"));
                }
                if !matches!(item.done().await, Ok(Settled::Done)) {
                    world.breach(format!("item {number} cannot be done"));
                }
            }
            for item in self.missing(&world, &found) {
                world.breach(format!("item {item} was pushed and is lost"));
            }
            if let Err(error) = consumer.close().await {
                world.breach(format!("a consumer cannot be closed: {error}"));
            }
        })
    }

    fn killed(&self, client: usize) {
        // Its items stay its own until its lease ends.
        let mut state = self.state.lock();
        state.held.retain(|_, (holder, _)| *holder != client);
    }
}
