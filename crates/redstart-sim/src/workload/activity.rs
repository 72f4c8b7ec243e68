//! Active users: counts of days, of several days together and of those who came back are exact (linearizable).

use std::{sync::Arc, time::Duration};

use jiff::{
    ToSpan as _,
    civil::{Date, date},
};
use redstart::{
    Error, Store,
    counting::{Activity, Keep},
};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    history::{Event, History},
    lifetime::{Keeps, Lifetimes, end_of},
    possible::{Possible, Small},
    world::World,
};

/// A state has a bit for each user and day.
const DAYS: u32 = 2;
const USERS: u32 = 3;
/// Ids are far from each other, so that bitmaps have different lengths.
const IDS: [u32; USERS as usize] = [0, 77, 999];
const CAPACITY: u32 = 1000;

fn day(number: u32) -> Date {
    date(2026, 2, 28).saturating_add(i64::from(number).days())
}

/// The users of a day, by their bits.
fn users(state: u32, day: u32) -> u32 {
    (state >> (day * USERS)) & ((1 << USERS) - 1)
}

#[derive(Clone, Debug, PartialEq)]
enum Call {
    /// Users are marked on a day, and how many were not yet.
    Mark(u32, u32, Option<u32>),
    Daily(u32, u32),
    /// How many on any of the days.
    Over(u32),
    /// How many on both days.
    Retained(u32),
}

struct Users;

impl Small for Users {
    type Call = Call;

    fn states(&self) -> u32 {
        1 << (DAYS * USERS)
    }

    fn after(&self, state: u32, call: &Call) -> Option<u32> {
        let fits = |known: u32, answer: u32| (known.count_ones() == answer).then_some(state);
        match *call {
            Call::Mark(day, marked, answer) => {
                let fresh = (marked & !users(state, day)).count_ones();
                let fits = answer.is_none_or(|answer| answer == fresh);
                fits.then_some(state | marked << (day * USERS))
            }
            Call::Daily(day, answer) => fits(users(state, day), answer),
            Call::Over(answer) => fits(users(state, 0) | users(state, 1), answer),
            Call::Retained(answer) => fits(users(state, 0) & users(state, 1), answer),
        }
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        match *call {
            Call::Mark(day, marked, _) => Some(Call::Mark(day, marked, None)),
            _ => None,
        }
    }
}

pub(super) struct Attending {
    keeps: Keeps,
    metrics: Vec<(String, History<Call>)>,
    lifetimes: Lifetimes,
}

impl Attending {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[47]);
        let keeps = Keeps::of(&mut dice);
        let metrics = (0..dice.between(1, 2)).map(|number| {
            let name = format!("site{number}");
            (name, History::default())
        });
        Self {
            keeps,
            metrics: metrics.collect(),
            lifetimes: Lifetimes::default(),
        }
    }

    fn activity(&self, client: &Client, store: &Store) -> Activity {
        match Activity::new(store, "sim", "active", CAPACITY, self.keeps.by(client)) {
            Ok(activity) => activity,
            Err(error) => panic!("activity cannot be made: {error}"),
        }
    }

    async fn mark(&self, client: &mut Client, activity: &Activity, number: usize) {
        let world = client.world.clone();
        let (metric, history) = &self.metrics[number];
        let at = client.dice.below(u64::from(DAYS)) as u32;
        let marked = client.dice.between(1, (1 << USERS) - 1) as u32;
        let ids = IDS.iter().enumerate();
        let ids = ids.filter(|(user, _)| marked & (1 << user) != 0);
        let ids: Vec<u32> = ids.map(|(_, id)| *id).collect();
        let key = format!("{{{metric}}}:{}", day(at));
        let end = end_of(self.keeps.by(client), day(at));
        self.lifetimes.ask(&key, end);
        let sent = world.now();
        let call = history.begin(Call::Mark(at, marked, None), sent);
        match client
            .call("mark", 1, activity.mark(metric, day(at), &ids))
            .await
        {
            Some(Ok(fresh)) => {
                let answered = Call::Mark(at, marked, Some(fresh as u32));
                history.end(call, answered, world.now());
                self.lifetimes.acknowledge(&key, end, sent);
            }
            Some(Err(error)) if world.surely_failed(&error, false) => history.cancel(call),
            _ => {}
        }
    }

    /// Counts the users of one day, of some days or of both; `None` if the call was dropped.
    async fn count(
        &self,
        client: &mut Client,
        activity: &Activity,
        number: usize,
    ) -> Option<Result<(), Error>> {
        let world = client.world.clone();
        let (metric, history) = &self.metrics[number];
        let at = client.dice.below(u64::from(DAYS)) as u32;
        let (first, last) = (day(0), day(DAYS - 1));
        let from = world.now();
        let counted = match client.dice.below(5) {
            0 => {
                let daily = client.call("daily", 1, activity.daily(metric, day(at)));
                daily.await?.map(|count| Call::Daily(at, count as u32))
            }
            1 => {
                let over = client.call("over", 1, activity.over(metric, first..=last));
                over.await?.map(|count| Call::Over(count as u32))
            }
            2 => {
                let weekly = client.call("weekly", 1, activity.weekly(metric, last));
                weekly.await?.map(|count| Call::Over(count as u32))
            }
            _ => {
                let retained = client.call("retained", 1, activity.retained(metric, first, last));
                retained.await?.map(|count| Call::Retained(count as u32))
            }
        };
        let to = Some(world.now());
        Some(counted.map(|call| history.add(Event { call, from, to })))
    }
}

impl Workload for Attending {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let activity = self.activity(&client, &store);
            while client.next_operation() {
                client.rest(0, 300).await;
                let metric = client.dice.below(self.metrics.len() as u64) as usize;
                match client.dice.per_mille(500) {
                    true => self.mark(&mut client, &activity, metric).await,
                    false => drop(self.count(&mut client, &activity, metric).await),
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let activity = self.activity(client, store);
        let metric = format!("works{}", client.index);
        Box::pin(async move {
            let failed = |error: Error| error.to_string();
            activity.mark_today(&metric, &[7]).await.map_err(failed)?;
            let today = activity.today().await.map_err(failed)?;
            match activity.weekly(&metric, today).await.map_err(failed)? {
                1 => Ok(()),
                count => Err(format!("{count} users are active instead of one")),
            }
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let activity = self.activity(&client, &store);
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.lifetimes.judge(&world);
            for number in 0..self.metrics.len() {
                for _ in 0..4 {
                    if let Some(Err(error)) = self.count(&mut client, &activity, number).await {
                        world.breach(format!("active users cannot be counted: {error}"));
                    }
                    self.mark(&mut client, &activity, number).await;
                }
                let (metric, history) = &self.metrics[number];
                world.explain(metric, &Possible(Users), &history.events());
            }
            for (key, ttl) in world.keys() {
                let kept = self.keeps.by(&client) == Keep::Forever || world.plan.settings_differ;
                if ttl < 0 && !kept {
                    world.breach(format!("{key} never expires"));
                }
                if key.ends_with(":tmp") {
                    world.breach(format!("{key} is left behind"));
                }
            }
        })
    }
}
