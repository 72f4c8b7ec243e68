//! A Bloom filter: never a wrong "no", whatever is lost or evicted; it is an error then.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{
    Error, Store,
    membership::{Bloom, BloomBuilder, BloomMode, BloomScaling},
};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

pub(super) struct Filtering {
    capacity: u64,
    scaling: BloomScaling,
    /// By the server's own commands, or by bits and scripts.
    mode: BloomMode,
    /// The filter was made; from then on it is only opened.
    made: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// All elements, as a source of truth has them before the filter does.
    all: Vec<String>,
    /// Those whose `add` has returned, and when it was sent.
    added: BTreeMap<String, Duration>,
    /// When the filter was made for the last time: whatever was evicted before is gone by decision.
    made_until: Duration,
    /// Attempts to make it that may still arrive.
    making: usize,
}

/// Requests of a call that adds, one after the other: it adds, looks at the layers again if the server lost one that it knew, adds,
/// begins another layer, and adds to that.
const ADDS: u32 = 5;
/// How long a client waits for a loss.
const AIM: Duration = Duration::from_secs(4);

impl Filtering {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[33]);
        Self {
            // Few enough that it has to grow in some worlds.
            capacity: dice.between(6, 60),
            scaling: *dice.pick(&[BloomScaling::Fixed, BloomScaling::Grow]),
            mode: *dice.pick(&[BloomMode::Auto, BloomMode::Bitmap]),
            made: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn builder(&self, store: &Store) -> BloomBuilder {
        Bloom::builder(store, "sim", "seen")
            .scaling(self.scaling)
            .mode(self.mode)
    }

    /// Makes the filter, or opens it if that was done. `None` if it is gone for good.
    async fn filter(&self, client: &mut Client, store: &Store) -> Option<Bloom> {
        let world = client.world.clone();
        for _ in 0..600 {
            let made = self.made.load(Ordering::Relaxed);
            let opened = match made {
                true => self.builder(store).open().await,
                false => {
                    self.state.lock().making += 1;
                    let builder = self.builder(store).capacity(self.capacity);
                    let created = builder.error_rate(0.001).create().await;
                    if created.is_ok() {
                        let mut state = self.state.lock();
                        (state.making, state.made_until) = (state.making - 1, world.now());
                    }
                    created
                }
            };
            match opened {
                Ok(filter) => {
                    if !self.made.swap(true, Ordering::Relaxed) {
                        client.note(format_args!("the filter is made"));
                    }
                    return Some(filter);
                }
                Err(error) if error.is_config() && made => {
                    self.gone(&world, &error);
                    return None;
                }
                Err(_) => client.rest(50, 200).await,
            }
        }
        None
    }

    /// The filter is said to be gone: only because a server lost or evicted something.
    fn gone(&self, world: &World, error: &Error) {
        let (from, to) = (Duration::ZERO, world.now());
        if !world.may_have_lost(from, to) && !world.has_evicted(from, to) {
            world.breach(format!("the filter is gone: {error}"));
        }
    }

    async fn add(&self, client: &mut Client, filter: &Bloom) {
        let world = client.world.clone();
        let count = client.dice.between(1, 6);
        let new: Vec<_> = (0..count)
            .map(|_| format!("element{}", client.dice.next() >> 32))
            .collect();
        self.state.lock().all.extend(new.iter().cloned());
        let at = world.now();
        match client.call("add_many", ADDS, filter.add_many(&new)).await {
            Some(Ok(_)) => {
                let mut state = self.state.lock();
                state.added.extend(new.into_iter().map(|one| (one, at)));
            }
            Some(Err(error)) if error.is_config() => self.gone(&world, &error),
            _ => {}
        }
    }

    async fn look(&self, client: &mut Client, filter: &Bloom) -> Result<(), Error> {
        let world = client.world.clone();
        let added: Vec<_> = {
            let state = self.state.lock();
            let added = state.added.iter();
            added.map(|(one, at)| (one.clone(), *at)).collect()
        };
        if added.is_empty() {
            return filter.contains("nothing").await.map(drop);
        }
        let from = client.dice.below(added.len() as u64) as usize;
        let some = &added[from..(from + 8).min(added.len())];
        let names: Vec<_> = some.iter().map(|(one, _)| one).collect();
        let found = client.call("contains_many", 3, filter.contains_many(&names));
        let found = match found.await {
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                if error.is_config() {
                    self.gone(&world, &error);
                }
                return Err(error);
            }
            None => return Ok(()),
        };
        for ((one, at), found) in some.iter().zip(found) {
            world.met();
            let now = world.now();
            let made_until = match *self.state.lock() {
                State {
                    making: 0,
                    made_until,
                    ..
                } => made_until,
                _ => Duration::MAX,
            };
            let decided = world.has_evicted(Duration::ZERO, made_until);
            if !found && !world.may_have_lost(*at, now) && !decided {
                world.breach(format!(
                    "{one} was added at {at:?} and is not in the filter"
                ));
            }
        }
        Ok(())
    }

    /// A filter that holds no more than it was made for says yes to few things that were never added.
    async fn look_for_strangers(&self, client: &mut Client, filter: &Bloom) {
        let all = self.state.lock().all.len() as u64;
        if self.scaling == BloomScaling::Fixed && all > self.capacity.min(40) {
            return;
        }
        let strangers = (0..200).map(|_| format!("stranger{}", client.dice.next()));
        let strangers: Vec<_> = strangers.collect();
        if let Ok(found) = filter.contains_many(&strangers).await {
            let found = found.into_iter().filter(|found| *found).count();
            // A filter of a few elements has so few bits that chance alone finds more than its error rate.
            if found > 20 {
                client.world.breach(format!(
                    "{found} of 200 elements that were never added are in the filter"
                ));
            }
        }
    }

    /// A filter of which a part was lost is whole after a rebuild.
    async fn heal(&self, world: &World, filter: &Bloom) {
        let all = self.state.lock().all.clone();
        let healed = async {
            let rebuild = filter.rebuild(200, 0.001).await?;
            for some in all.chunks(100) {
                rebuild.add_many(some).await?;
            }
            rebuild.finish().await?;
            filter.contains_many(&all).await
        };
        match healed.await {
            Ok(found) if found.iter().all(|found| *found) => {}
            Ok(_) => world.breach("an element is not in the filter after a rebuild".to_owned()),
            // There is none to rebuild.
            Err(error) if error.to_string().contains("there is no such filter") => {}
            Err(error) => world.breach(format!("the filter cannot be rebuilt: {error}")),
        }
    }

    async fn rebuild(&self, client: &mut Client, filter: &Bloom) {
        let capacity = client.dice.between(40, 120);
        // It looks at the root, ends a rebuild that somebody left, and makes the partitions.
        let begun = client.call("rebuild", 8, filter.rebuild(capacity, 0.001));
        let Some(Ok(rebuild)) = begun.await else {
            return;
        };
        client.note(format_args!("rebuilds the filter"));
        // The source of truth is read after it has begun.
        let all = self.state.lock().all.clone();
        for some in all.chunks(8) {
            client.rest(0, 300).await;
            let added = client
                .call("rebuild.add_many", ADDS, rebuild.add_many(some))
                .await;
            if !matches!(added, Some(Ok(()))) {
                return;
            }
        }
        let loss = self.aim(client).await;
        let finished = client.call("rebuild.finish", 4, rebuild.finish()).await;
        client.note(format_args!("rebuilt: {finished:?}"));
        if let Some(at) = loss {
            // It has seen the end, which others may never have heard of.
            self.add(client, filter).await;
            tokio::time::sleep(at.saturating_sub(client.world.now())).await;
            client.rest(100, 1500).await;
            self.add(client, filter).await;
        }
    }

    /// Waits until what is done next will be lost, if that comes soon; when it is lost.
    async fn aim(&self, client: &mut Client) -> Option<Duration> {
        let world = client.world.clone();
        if !world.plan.provokes {
            return None;
        }
        let (from, at) = world.next_loss(AIM)?;
        tokio::time::sleep(from.saturating_sub(world.now())).await;
        client.rest(0, 100).await;
        Some(at)
    }
}

impl Workload for Filtering {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let Some(filter) = self.filter(&mut client, &store).await else {
                while client.next_operation() {}
                return;
            };
            // All that make it at the same time have made it by the time that the first adds something.
            client.rest(0, 100).await;
            while client.next_operation() {
                client.rest(0, 400).await;
                let kinds = if client.world.plan.provokes { 14 } else { 10 };
                match client.dice.below(kinds) {
                    0..=3 => self.add(&mut client, &filter).await,
                    4..=7 => drop(self.look(&mut client, &filter).await),
                    _ => self.rebuild(&mut client, &filter).await,
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let (builder, world) = (self.builder(store), client.world.clone());
        Box::pin(async move {
            match builder.open().await {
                Ok(filter) => match filter.contains("nothing").await {
                    Err(error) if !error.is_config() => Err(error.to_string()),
                    Err(error) => {
                        self.gone(&world, &error);
                        Ok(())
                    }
                    Ok(_) => Ok(()),
                },
                // Nobody has made it.
                Err(error) if error.is_config() => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let filter = match self.builder(&store).open().await {
                Ok(filter) => filter,
                Err(error) if error.is_config() => {
                    if self.made.load(Ordering::Relaxed) {
                        self.gone(&world, &error);
                    }
                    return;
                }
                Err(error) => {
                    return world.breach(format!("the filter cannot be opened: {error}"));
                }
            };
            for _ in 0..4 {
                match self.look(&mut client, &filter).await {
                    Err(error) if !error.is_config() => {
                        return world.breach(format!("the filter cannot be read: {error}"));
                    }
                    Err(_) => return self.heal(&world, &filter).await,
                    Ok(()) => {}
                }
            }
            self.look_for_strangers(&mut client, &filter).await;
        })
    }
}
