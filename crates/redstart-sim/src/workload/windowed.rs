//! Counts by windows of time: every count is in the window of the server's time, and stays for as many windows as
//! anybody keeps (linearizable).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redstart::{
    Error, Store,
    counting::{WindowSize, Windowed},
};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    history::{Event, History, Model},
    server::EPOCH,
    world::World,
};

/// The clocks of servers are behind by at most this.
const BEHIND: Duration = Duration::from_millis(2100);
/// The name of the counter.
const NAME: &str = "hits";

#[derive(Clone, Debug, PartialEq)]
enum Call {
    /// How many, how many windows the caller keeps, and the count then.
    Add(i64, u32, Option<i64>),
    /// The current window, and the counts of it and those before it.
    Series(i64, Vec<i64>),
    /// A window begins.
    Begin(i64),
}

/// What is known of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Count {
    /// Exactly this.
    Is(i64),
    /// This or nothing: it is older than those that must be kept.
    Was(i64),
    /// It was lost, perhaps.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Windows {
    /// The window of now; not known after a loss until the next one begins.
    now: Option<i64>,
    /// How many are kept by those who have counted.
    kept: i64,
    /// Nothing is known of windows up to this one that are not listed.
    lost: i64,
    counts: BTreeMap<i64, Count>,
}

impl Windows {
    fn count(&self, window: i64) -> Count {
        let unlisted = match window <= self.lost {
            true => Count::Unknown,
            false => Count::Is(0),
        };
        self.counts.get(&window).copied().unwrap_or(unlisted)
    }

    /// The count of a window must be this, or is so from now on.
    fn learn(&mut self, window: i64, answer: i64) -> bool {
        match self.count(window) {
            Count::Is(count) => count == answer,
            Count::Was(count) => count == answer || answer == 0,
            Count::Unknown => {
                self.counts.insert(window, Count::Is(answer));
                self.age();
                true
            }
        }
    }

    /// What is older than those that are kept may be gone.
    fn age(&mut self) {
        let Some(now) = self.now else { return };
        let kept = self.kept.max(1);
        self.counts.retain(|window, _| *window > now - MOST);
        for (window, count) in &mut self.counts {
            if let Count::Is(value) = *count
                && *window <= now - kept
            {
                *count = Count::Was(value);
            }
        }
        // When the last of them has ended, the counter ends too, and nobody has counted.
        let lives = |count: &Count| !matches!(count, Count::Was(_));
        if !self.counts.values().any(lives) && self.lost <= now - MOST {
            self.kept = 0;
        }
    }
}

/// The most windows that anybody keeps.
const MOST: i64 = 6;

/// Windows of a second, or of a day that does not end; the day, if so.
struct Clock(Option<i64>);

impl Model for Clock {
    type State = Windows;
    type Call = Call;

    fn initial(&self) -> Windows {
        Windows {
            now: Some(self.0.unwrap_or(0)),
            kept: 0,
            lost: i64::MIN,
            counts: BTreeMap::new(),
        }
    }

    fn unknown(&self) -> Windows {
        Windows {
            now: self.0,
            lost: i64::MAX,
            ..self.initial()
        }
    }

    fn step(&self, state: &Windows, call: &Call) -> Option<Windows> {
        let mut next = state.clone();
        let fits = match call {
            Call::Begin(window) if next.now.is_some_and(|now| now >= *window) => false,
            Call::Begin(window) => {
                next.now = Some(*window);
                next.lost = next.lost.min(*window - 1);
                next.age();
                true
            }
            Call::Add(many, keeps, answer) => {
                next.kept = next.kept.max(i64::from(*keeps));
                let Some(now) = next.now else {
                    return Some(next);
                };
                let before = match (next.count(now), answer) {
                    (Count::Unknown, Some(answer)) => Some(answer - many),
                    (Count::Unknown, None) => None,
                    (Count::Is(count) | Count::Was(count), _) => Some(count),
                };
                if let Some(before) = before {
                    next.counts.insert(now, Count::Is(before + many));
                }
                answer.is_none_or(|answer| before == Some(answer - many))
            }
            Call::Series(now, counts) => {
                let Some(known) = next.now else {
                    return Some(next);
                };
                let windows = (now + 1 - counts.len() as i64)..=*now;
                known == *now
                    && windows
                        .zip(counts)
                        .all(|(window, count)| next.learn(window, *count))
            }
        };
        fits.then_some(next)
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        match call {
            Call::Add(many, keeps, _) => Some(Call::Add(*many, *keeps, None)),
            Call::Series(..) => None,
            Call::Begin(_) => Some(call.clone()),
        }
    }
}

pub(super) struct Metering {
    size: WindowSize,
    /// How many windows processes keep, and those with other settings.
    keeps: [u32; 2],
    history: History<Call>,
}

impl Metering {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[48]);
        Self {
            // Nobody can tell in which second it is by a clock that differs.
            size: match world.plan.clocks_differ {
                true => WindowSize::Day,
                false => WindowSize::Second,
            },
            keeps: [
                dice.between(2, 3) as u32,
                dice.between(4, MOST as u64) as u32,
            ],
            history: History::default(),
        }
    }

    /// The length of a window in seconds.
    fn length(&self) -> i64 {
        match self.size {
            WindowSize::Second => 1,
            _ => 24 * 3600,
        }
    }

    fn keeps(&self, client: &Client) -> u32 {
        self.keeps[usize::from(client.has_other_settings())]
    }

    fn windowed(&self, client: &Client, store: &Store) -> Windowed {
        match Windowed::new(store, "sim", "page", self.size, self.keeps(client)) {
            Ok(windowed) => windowed,
            Err(error) => panic!("windowed counts cannot be made: {error}"),
        }
    }

    async fn add(&self, client: &mut Client, windowed: &Windowed) {
        let world = client.world.clone();
        let (many, keeps) = (client.dice.between(1, 9) as i64, self.keeps(client));
        let call = Call::Add(many, keeps, None);
        let call = self.history.begin(call, world.now());
        match client.call("add", 1, windowed.add(NAME, many)).await {
            Some(Ok(count)) => {
                let answered = Call::Add(many, keeps, Some(count));
                self.history.end(call, answered, world.now());
            }
            Some(Err(error)) if world.surely_failed(&error, false) => self.history.cancel(call),
            _ => {}
        }
    }

    /// Reads all windows that the caller keeps; `None` if the call was dropped.
    async fn series(&self, client: &mut Client, windowed: &Windowed) -> Option<Result<(), Error>> {
        let world = client.world.clone();
        let from = world.now();
        let series = windowed.series(NAME, self.keeps(client));
        let series = client.call("series", 1, series).await?;
        Some(series.map(|windows| {
            let last = windows.last().map_or(0, |last| last.start.as_second());
            let now = (last - EPOCH / 1_000_000).div_euclid(self.length());
            let counts = windows.iter().map(|window| window.count).collect();
            self.history.add(Event {
                call: Call::Series(now, counts),
                from,
                to: Some(world.now()),
            });
        }))
    }

    /// The calls, and the windows that began meanwhile.
    fn events(&self, world: &World) -> Vec<Event<Call>> {
        let mut events = self.history.events();
        if self.size == WindowSize::Second {
            for window in 1..=world.now().as_secs() {
                let at = Duration::from_secs(window);
                events.push(Event {
                    call: Call::Begin(window as i64),
                    from: at,
                    to: Some(at),
                });
            }
        }
        events
    }

    /// No more windows are stored than anybody keeps, and the settings.
    fn judge_size(&self, world: &World) {
        for (key, fields) in world.hashes("sim:windowed.page:") {
            if fields.len() > MOST as usize + 2 {
                world.breach(format!("{key} has {} fields", fields.len()));
            }
        }
        for (key, ttl) in world.keys() {
            if ttl < 0 {
                world.breach(format!("{key} never expires"));
            }
        }
    }
}

impl Workload for Metering {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            if client.world.plan.clocks_differ {
                // By all clocks it is the first day then.
                tokio::time::sleep(BEHIND).await;
            }
            let store = client.store().await;
            let windowed = self.windowed(&client, &store);
            while client.next_operation() {
                client.rest(0, 700).await;
                match client.dice.per_mille(600) {
                    true => self.add(&mut client, &windowed).await,
                    false => drop(self.series(&mut client, &windowed).await),
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let windowed = self.windowed(client, store);
        let name = format!("works{}", client.index);
        Box::pin(async move {
            let added = windowed.add(&name, 1).await;
            added.map_err(|error| error.to_string()).map(drop)
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let windowed = self.windowed(&client, &store);
            tokio::time::sleep(BEHIND).await;
            for _ in 0..4 {
                if let Some(Err(error)) = self.series(&mut client, &windowed).await {
                    world.breach(format!("the windows cannot be read: {error}"));
                }
                self.add(&mut client, &windowed).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            let model = Clock((self.size == WindowSize::Day).then_some(0));
            world.explain("the windows", &model, &self.events(&world));
            self.judge_size(&world);
            if self.size == WindowSize::Second {
                tokio::time::sleep(Duration::from_secs(MOST as u64 + 1)).await;
                for (key, _) in world.keys() {
                    world.breach(format!("{key} is left after all of its windows"));
                }
            }
        })
    }
}
