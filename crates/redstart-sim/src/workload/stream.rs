//! Streams of events: every group gets every event at least once, in order, none twice after it was acknowledged, none more
//! often than it may; what is not acknowledged in the end is a dead letter, and nothing is trimmed before it was read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{
    Store,
    messaging::{ConsumerGroup, EventStream, StartAt, StreamEntry},
};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

const GROUPS: [&str; 2] = ["billing", "mail"];

pub(super) struct Consuming {
    idle: Duration,
    /// How often an event is delivered to a group at most.
    deliveries: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Events that were surely appended, and when that was sent.
    appended: BTreeMap<u64, Duration>,
    /// By group: what its consumers got.
    delivered: [BTreeSet<u64>; 2],
    /// By group and event: when it was surely acknowledged: when that was sent, and answered.
    acknowledged: BTreeMap<(usize, u64), (Duration, Duration)>,
    /// By group and event: it may be acknowledged.
    perhaps: BTreeSet<(usize, u64)>,
    /// By group and event: how often it came.
    times: BTreeMap<(usize, u64), Vec<Duration>>,
    /// By group: the last events of reads, with when each read was asked for and answered.
    reads: [Vec<Read>; 2],
    /// By group: when a call was sent whose answer shows that it exists. A group that a server lost must be made again
    /// before something may be trimmed.
    exists: [Option<Duration>; 2],
    trims: Vec<Trim>,
}

/// New events came to a group.
struct Read {
    last: (u64, u64),
    asked: Duration,
    heard: Duration,
}

/// Something may have been trimmed.
struct Trim {
    /// Since when all groups existed.
    since: Duration,
    /// When its answer came; without one it may still be on its way.
    to: Option<Duration>,
}

impl Consuming {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[34]);
        Self {
            idle: dice.millis(100, 2000),
            deliveries: *dice.pick(&[2, 10_000, 10_000]),
            state: Mutex::default(),
        }
    }

    fn stream(&self, store: &Store) -> EventStream<u64> {
        match EventStream::new(store, "sim", "orders") {
            Ok(stream) => stream,
            Err(error) => panic!("a stream cannot be made: {error}"),
        }
    }

    async fn group(
        &self,
        world: &World,
        stream: &EventStream<u64>,
        number: usize,
    ) -> Option<ConsumerGroup<u64>> {
        let asked = world.now();
        let group = stream.group(GROUPS[number], StartAt::Beginning).await.ok();
        if group.is_some() {
            self.exists(number, asked);
        }
        group
    }

    fn exists(&self, number: usize, asked: Duration) {
        let exists = &mut self.state.lock().exists[number];
        *exists = (*exists).max(Some(asked));
    }

    async fn trim(&self, client: &mut Client, stream: &EventStream<u64>) {
        let world = client.world.clone();
        let [Some(one), Some(other)] = self.state.lock().exists else {
            return;
        };
        let since = one.min(other);
        if world.may_have_lost(since, world.now()) {
            return;
        }
        let number = {
            let trims = &mut self.state.lock().trims;
            trims.push(Trim { since, to: None });
            trims.len() - 1
        };
        let trimmed = stream.trim(Duration::ZERO);
        if let Some(Ok(_)) = client.call("trim", 2, trimmed).await {
            self.state.lock().trims[number].to = Some(world.now());
        }
    }

    async fn append(&self, client: &mut Client, stream: &EventStream<u64>) {
        let world = client.world.clone();
        let (event, at) = (client.dice.next() >> 16, world.now());
        if let Some(Ok(id)) = client.call("append", 1, stream.append(&event)).await {
            client.note(format_args!("appended {event} as {id}"));
            self.state.lock().appended.insert(event, at);
        }
    }

    /// Events came to a consumer by a call that was sent at `asked`.
    fn delivered(
        &self,
        world: &World,
        group: usize,
        entries: &[StreamEntry<u64>],
        asked: Duration,
    ) {
        let mut breaches = Vec::new();
        let mut state = self.state.lock();
        for entry in entries {
            world.met();
            state.delivered[group].insert(entry.event);
            let times = state.times.entry((group, entry.event)).or_default();
            times.push(asked);
            let most = self.deliveries;
            // What a server lost it does not count.
            let counts = |at: &&Duration| !world.may_have_lost(**at, world.now());
            if times.len() as u64 > u64::from(most)
                && times.iter().filter(counts).count() as u64 > u64::from(most)
            {
                breaches.push(format!(
                    "event {} comes to {} more often than {most} times",
                    entry.event, GROUPS[group]
                ));
            }
            let over = state.acknowledged.get(&(group, entry.event));
            if let Some((sent, over)) = over
                && *over <= asked
                && !world.may_have_lost(*sent, world.now())
            {
                breaches.push(format!(
                    "event {} comes to {} again after it was acknowledged",
                    entry.event, GROUPS[group]
                ));
            }
        }
        drop(state);
        let in_order = entries.is_sorted_by_key(|entry| place(&entry.id));
        if !in_order {
            breaches.push(format!("{entries:?} is not in order"));
        }
        breaches.into_iter().for_each(|breach| world.breach(breach));
    }

    /// New events came: all of them are after those that came before.
    fn read(&self, world: &World, group: usize, entries: &[StreamEntry<u64>], asked: Duration) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return;
        };
        let now = world.now();
        let reads = &mut self.state.lock().reads[group];
        let late = reads.iter().find(|read| {
            // In one millisecond, nobody knows.
            let before = read.heard < asked && !world.may_have_lost(read.asked, now);
            before && place(&first.id) <= read.last
        });
        if let Some(late) = late {
            let (name, id) = (GROUPS[group], &first.id);
            world.breach(format!(
                "{name} gets {id} as new after it had got {:?} at {:?}",
                late.last, late.heard
            ));
        }
        reads.push(Read {
            last: place(&last.id),
            asked,
            heard: now,
        });
    }

    async fn acknowledge(
        &self,
        client: &mut Client,
        group: &ConsumerGroup<u64>,
        number: usize,
        entries: &[StreamEntry<u64>],
    ) {
        let world = client.world.clone();
        let ids: Vec<_> = entries.iter().map(|entry| &entry.id).collect();
        let all = entries.iter().map(|entry| (number, entry.event));
        self.state.lock().perhaps.extend(all);
        let sent = world.now();
        let acknowledged = client.call("ack", 1, group.ack(&ids)).await;
        let now = world.now();
        // Those of which the group knows nothing after a loss were not pending, and come again.
        let lost = world.may_have_lost(Duration::ZERO, now);
        if let Some(Ok(known)) = acknowledged
            && (known == ids.len() as u64 || !lost)
        {
            let mut state = self.state.lock();
            for entry in entries {
                state
                    .acknowledged
                    .insert((number, entry.event), (sent, now));
            }
        }
    }

    async fn consume(
        &self,
        client: &mut Client,
        group: &mut ConsumerGroup<u64>,
        number: usize,
    ) -> bool {
        let world = client.world.clone();
        let consumer = format!("consumer{}", client.index);
        let asked = world.now();
        let claims = client.dice.per_mille(300);
        let count = client.dice.between(1, 4) as usize;
        let got = match claims {
            true => {
                let call = group.claim(&consumer, count, self.idle, self.deliveries);
                client.call("claim", 1, call).await
            }
            false => {
                let wait = client.dice.millis(0, 600);
                let limit = client.longest(wait) + world.plan.deadline;
                let call = group.read(&consumer, count, wait);
                client.call_within(100, "read", limit, call).await
            }
        };
        let entries = match got {
            Some(Ok(entries)) => entries,
            // It may have been lost with its server, and is made again.
            Some(Err(_)) => return false,
            None => return true,
        };
        self.exists(number, asked);
        self.delivered(&world, number, &entries, asked);
        if !claims {
            self.read(&world, number, &entries, asked);
        }
        client.rest(0, 300).await;
        if !entries.is_empty() && client.dice.per_mille(800) {
            self.acknowledge(client, group, number, &entries).await;
        }
        true
    }

    async fn drain(&self, client: &mut Client, group: &mut ConsumerGroup<u64>, number: usize) {
        let world = client.world.clone();
        for round in 0..400 {
            let asked = world.now();
            let got = match round % 2 {
                0 => group.read("last", 50, Duration::ZERO).await,
                _ => {
                    let most = self.deliveries;
                    group.claim("last", 50, Duration::ZERO, most).await
                }
            };
            let entries = match got {
                Ok(entries) => entries,
                Err(error) => return world.breach(format!("nothing can be read: {error}")),
            };
            self.delivered(&world, number, &entries, asked);
            if round % 2 == 0 {
                self.read(&world, number, &entries, asked);
            }
            if entries.is_empty() && round % 2 == 1 {
                return;
            }
            self.acknowledge(client, group, number, &entries).await;
        }
        world.breach(format!("{} never comes to an end", GROUPS[number]));
    }
}

/// The two numbers of an id.
fn place(id: &str) -> (u64, u64) {
    let (time, sequence) = id.split_once('-').unwrap_or((id, "0"));
    (
        time.parse().unwrap_or_default(),
        sequence.parse().unwrap_or_default(),
    )
}

impl Workload for Consuming {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let stream = self.stream(&store);
            let number = client.index % GROUPS.len();
            let mut group = None;
            while client.next_operation() {
                client.rest(0, 400).await;
                match client.dice.below(10) {
                    0..=3 => self.append(&mut client, &stream).await,
                    4 if self.state.lock().exists.iter().all(Option::is_some) => {
                        self.trim(&mut client, &stream).await;
                    }
                    _ => {
                        if group.is_none() {
                            group = self.group(&client.world, &stream, number).await;
                        }
                        if let Some(of) = &mut group
                            && !self.consume(&mut client, of, number).await
                        {
                            group = None;
                        }
                    }
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let (stream, world) = (self.stream(store), client.world.clone());
        // Another one each time: it may have been appended although an error came back.
        let event = world.now().as_micros() as u64 * 8 + client.index as u64;
        Box::pin(async move {
            let at = world.now();
            let appended = stream.append(&event).await;
            appended.map_err(|error| error.to_string())?;
            self.state.lock().appended.insert(event, at);
            Ok(())
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let stream = self.stream(&store);
            for (number, name) in GROUPS.iter().enumerate() {
                let mut group = match stream.group(name, StartAt::Beginning).await {
                    Ok(group) => group,
                    Err(error) => return world.breach(format!("no group: {error}")),
                };
                self.drain(&mut client, &mut group, number).await;
            }
            let dead = match stream.dead_letters(None).await {
                Ok(dead) => dead,
                Err(error) => return world.breach(format!("no dead letters: {error}")),
            };
            let dead: BTreeSet<(String, u64)> = dead
                .into_iter()
                .filter_map(|letter| {
                    let event = serde_json::from_slice(&letter.event).ok()?;
                    Some((letter.group, event))
                })
                .collect();
            client.note(format_args!("{} dead letters", dead.len()));
            let state = self.state.lock();
            // A group that was lost while something was trimmed did not count.
            let forgotten = |at: Duration| {
                state.trims.iter().any(|trim| {
                    let to = trim.to.unwrap_or_else(|| world.now());
                    at <= to && world.may_have_lost(trim.since, to)
                })
            };
            for (number, name) in GROUPS.iter().enumerate() {
                for (event, at) in &state.appended {
                    let lost = world.may_have_lost(*at, world.now()) || forgotten(*at);
                    let dead = dead.contains(&((*name).to_owned(), *event));
                    let came = state.delivered[number].contains(event);
                    if !came && !dead && !lost {
                        world.breach(format!(
                            "event {event} was appended at {at:?} and never came to {name}"
                        ));
                    }
                    // The last consumer got whatever was left.
                    if came && !dead && !lost && !state.perhaps.contains(&(number, *event)) {
                        world.breach(format!(
                            "event {event} was not acknowledged by {name}, and is no dead letter"
                        ));
                    }
                }
            }
        })
    }

    /// A group waits on a connection of its own, and an old one may still be open.
    fn own_connections(&self) -> usize {
        2
    }
}
