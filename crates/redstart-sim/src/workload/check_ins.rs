//! Check-ins: every answer about the days of a user fits, also streaks over the end of a year (linearizable).

use std::{sync::Arc, time::Duration};

use jiff::{
    ToSpan as _,
    civil::{Date, date},
    tz::TimeZone,
};
use redstart::{
    Error, Store,
    counting::{CheckIns, Keep, Month},
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

/// The days that are marked: three at the end of a year, and three at the beginning of the next one. A state has a bit
/// for each.
const DAYS: u32 = 6;
const NEW_YEAR: u32 = 3;

fn day(number: u32) -> Date {
    date(2026, 12, 29).saturating_add(i64::from(number).days())
}

#[derive(Clone, Debug, PartialEq)]
enum Call {
    /// A day is marked or not any more, and whether it was before.
    Set(u32, bool, Option<bool>),
    Checked(u32, bool),
    /// Whether it is that of the new year, and its days.
    Month(bool, u32),
    /// By a day, the current streak and the longest one.
    Streaks(u32, u32, u32),
}

struct Days;

/// The current streak by a day, and the longest one.
fn streaks(state: u32, today: u32) -> (u32, u32) {
    let run_until = |last: Option<u32>| {
        let days = last.map_or(0, |last| last + 1);
        (0..days)
            .rev()
            .take_while(|day| state & (1 << day) != 0)
            .count() as u32
    };
    let current = match run_until(Some(today)) {
        0 => run_until(today.checked_sub(1)),
        run => run,
    };
    let longest = (0..=today).map(|last| run_until(Some(last))).max();
    (current, longest.unwrap_or(0))
}

impl Small for Days {
    type Call = Call;

    fn states(&self) -> u32 {
        1 << DAYS
    }

    fn after(&self, state: u32, call: &Call) -> Option<u32> {
        let is_set = |day: u32| state & (1 << day) != 0;
        match *call {
            Call::Set(day, to, answer) => {
                let fits = answer.is_none_or(|answer| answer == is_set(day));
                let next = match to {
                    true => state | 1 << day,
                    false => state & !(1 << day),
                };
                fits.then_some(next)
            }
            Call::Checked(day, answer) => (answer == is_set(day)).then_some(state),
            Call::Month(new_year, days) => {
                let old = (1 << NEW_YEAR) - 1;
                let mask = if new_year { !old } else { old };
                (state & mask == days).then_some(state)
            }
            Call::Streaks(today, current, longest) => {
                (streaks(state, today) == (current, longest)).then_some(state)
            }
        }
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        match *call {
            Call::Set(day, to, _) => Some(Call::Set(day, to, None)),
            _ => None,
        }
    }
}

pub(super) struct Checking {
    keeps: Keeps,
    users: Vec<(String, History<Call>)>,
    lifetimes: Lifetimes,
}

impl Checking {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[46]);
        let keeps = Keeps::of(&mut dice);
        let users = (0..dice.between(1, 2)).map(|user| (format!("user{user}"), History::default()));
        Self {
            keeps,
            users: users.collect(),
            lifetimes: Lifetimes::default(),
        }
    }

    fn check_ins(&self, client: &Client, store: &Store) -> CheckIns {
        match CheckIns::new(store, "sim", "visits", self.keeps.by(client)) {
            Ok(check_ins) => check_ins,
            Err(error) => panic!("check-ins cannot be made: {error}"),
        }
    }

    /// Marks a day or removes the mark.
    async fn set(&self, client: &mut Client, check_ins: &CheckIns, number: usize) {
        let world = client.world.clone();
        let (user, history) = &self.users[number];
        let at = client.dice.below(u64::from(DAYS)) as u32;
        let to = client.dice.per_mille(650);
        let year = day(at).year();
        let key = format!("{{{user}}}:{year}");
        let end = end_of(self.keeps.by(client), date(year, 12, 31));
        self.lifetimes.ask(&key, end);
        let sent = world.now();
        let call = history.begin(Call::Set(at, to, None), sent);
        let ended = match to {
            true => {
                let marked = client.call("mark", 1, check_ins.mark(user, day(at))).await;
                marked.map(|ended| ended.map(|new| !new))
            }
            false => {
                client
                    .call("unmark", 1, check_ins.unmark(user, day(at)))
                    .await
            }
        };
        match ended {
            Some(Ok(was)) => {
                history.end(call, Call::Set(at, to, Some(was)), world.now());
                self.lifetimes.acknowledge(&key, end, sent);
            }
            Some(Err(error)) if world.surely_failed(&error, false) => history.cancel(call),
            _ => {}
        }
    }

    /// Reads a day, a month or the streaks; `None` if the call was dropped.
    async fn read(
        &self,
        client: &mut Client,
        check_ins: &CheckIns,
        number: usize,
    ) -> Option<Result<(), Error>> {
        let world = client.world.clone();
        let (user, history) = &self.users[number];
        let at = client.dice.below(u64::from(DAYS)) as u32;
        let from = world.now();
        let read = match client.dice.below(4) {
            0 => {
                let checked = client.call("checked", 1, check_ins.checked(user, day(at)));
                checked.await?.map(|answer| Call::Checked(at, answer))
            }
            1 => {
                let month = client.call("month", 1, check_ins.month(user, day(at)));
                month
                    .await?
                    .map(|month| Call::Month(at >= NEW_YEAR, days_of(&month)))
            }
            _ => {
                let streaks = client.call("streaks", 1, check_ins.streaks(user, day(at)));
                let streaks = streaks.await?;
                streaks.map(|streaks| Call::Streaks(at, streaks.current, streaks.longest))
            }
        };
        let to = Some(world.now());
        Some(read.map(|call| history.add(Event { call, from, to })))
    }
}

/// The days of a month, by their bits.
fn days_of(month: &Month) -> u32 {
    let marked = (0..DAYS).filter(|number| {
        let day = day(*number);
        let same = day.first_of_month() == month.first();
        same && month.days()[day.day() as usize - 1]
    });
    let days = marked.fold(0_u32, |days, number| days | 1 << number);
    // Nobody marked another day.
    match days.count_ones() == month.count() {
        true => days,
        false => u32::MAX,
    }
}

impl Workload for Checking {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let check_ins = self.check_ins(&client, &store);
            while client.next_operation() {
                client.rest(0, 300).await;
                let user = client.dice.below(self.users.len() as u64) as usize;
                match client.dice.per_mille(600) {
                    true => self.set(&mut client, &check_ins, user).await,
                    false => drop(self.read(&mut client, &check_ins, user).await),
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let check_ins = self.check_ins(client, store);
        let user = format!("works{}", client.index);
        Box::pin(async move {
            let failed = |error: Error| error.to_string();
            let zone = TimeZone::UTC;
            check_ins.mark_today(&user, &zone).await.map_err(failed)?;
            let today = check_ins.today(&zone).await.map_err(failed)?;
            // It may have become another day by the clock of another server.
            let days = [today, today.saturating_sub(1.day())];
            for day in days {
                if check_ins.checked(&user, day).await.map_err(failed)? {
                    return Ok(());
                }
            }
            Err("today was marked and is not".to_owned())
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let check_ins = self.check_ins(&client, &store);
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.lifetimes.judge(&world);
            for number in 0..self.users.len() {
                for _ in 0..4 {
                    if let Some(Err(error)) = self.read(&mut client, &check_ins, number).await {
                        world.breach(format!("check-ins cannot be read: {error}"));
                    }
                    self.set(&mut client, &check_ins, number).await;
                }
                let (user, history) = &self.users[number];
                world.explain(user, &Possible(Days), &history.events());
            }
            if self.keeps.by(&client) != Keep::Forever && !world.plan.settings_differ {
                for (key, ttl) in world.keys() {
                    if ttl < 0 {
                        world.breach(format!("{key} never expires"));
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streak_ends_today_or_yesterday_and_goes_on_over_a_new_year() {
        assert_eq!(streaks(0b011110, 4), (4, 4));
        assert_eq!(streaks(0b011110, 5), (4, 4));
        assert_eq!(streaks(0b001011, 5), (0, 2));
        assert_eq!(streaks(0b100011, 5), (1, 2));
        assert_eq!(streaks(0, 0), (0, 0));
    }
}
