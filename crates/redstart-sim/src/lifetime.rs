//! How long keys live whose life is only ever extended: of several callers, the one with the longest time decides.

use std::{collections::BTreeMap, time::Duration};

use jiff::{ToSpan as _, civil::Date, tz::TimeZone};
use parking_lot::Mutex;
use redstart::counting::Keep;

use crate::{client::Client, dice::Dice, server::EPOCH, world::World};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// The clocks of servers are wrong by up to two seconds, and another one may have set the time.
const SLACK: u64 = 5_000;
/// A key without an end.
const NEVER: u64 = u64::MAX;

/// How long the programs of a world keep their counts.
#[derive(Clone, Copy, Debug)]
pub struct Keeps {
    usual: Keep,
    other: Keep,
}

impl Keeps {
    /// Those of a world.
    pub fn of(dice: &mut Dice) -> Self {
        let short = Keep::For(3 * DAY);
        Self {
            usual: *dice.pick(&[Keep::Forever, short, short]),
            other: *dice.pick(&[Keep::Forever, Keep::For(30 * DAY), Keep::For(30 * DAY)]),
        }
    }

    /// That of a client.
    pub fn by(&self, client: &Client) -> Keep {
        match client.has_other_settings() {
            true => self.other,
            false => self.usual,
        }
    }
}

/// When the counts of days up to `last` end, in milliseconds since the epoch.
pub fn end_of(keep: Keep, last: Date) -> u64 {
    let Keep::For(time) = keep else { return NEVER };
    let over = last.saturating_add(2.days());
    let over = over.to_zoned(TimeZone::UTC).map(|end| end.timestamp());
    over.map_or(NEVER, |end| {
        end.as_millisecond().unsigned_abs() + time.as_millis() as u64
    })
}

/// What was asked about the life of keys, by the ends of their names.
#[derive(Default)]
pub struct Lifetimes(Mutex<BTreeMap<String, Asked>>);

#[derive(Default)]
struct Asked {
    /// The longest that anybody asked for.
    most: u64,
    /// Those that were acknowledged, and when they were sent.
    sure: Vec<(u64, Duration)>,
}

impl Lifetimes {
    /// A call is sent that may extend the life of a key up to `end`.
    pub fn ask(&self, key: &str, end: u64) {
        let mut asked = self.0.lock();
        let asked = asked.entry(key.to_owned()).or_default();
        asked.most = asked.most.max(end);
    }

    /// It was carried out.
    pub fn acknowledge(&self, key: &str, end: u64, sent: Duration) {
        let mut asked = self.0.lock();
        asked
            .entry(key.to_owned())
            .or_default()
            .sure
            .push((end, sent));
    }

    /// Every key that is there lives as long as somebody asked for, and no longer.
    pub fn judge(&self, world: &World) {
        let now = EPOCH as u64 / 1000 + world.now().as_millis() as u64;
        let asked = self.0.lock();
        for (key, left) in world.keys() {
            let Some((_, asked)) = asked.iter().find(|(end, _)| key.ends_with(*end)) else {
                continue;
            };
            let ends = u64::try_from(left).map_or(NEVER, |left| now + left);
            if ends > asked.most.saturating_add(SLACK) {
                world.breach(format!("{key} lives longer than anybody asked for"));
            }
            // What was lost may have been what extended it.
            let sure = asked
                .sure
                .iter()
                .filter(|(_, sent)| !world.may_have_lost(*sent, world.now()))
                .map(|(end, _)| *end)
                .max();
            if sure.is_some_and(|sure| ends.saturating_add(SLACK) < sure) {
                world.breach(format!("{key} ends before its time"));
            }
        }
    }
}
