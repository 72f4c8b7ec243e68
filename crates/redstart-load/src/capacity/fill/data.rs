//! Counts, sets, boards, places, edges and arrays.

use jiff::{civil::Date, tz::TimeZone};
use redstart::{
    counting::{Activity, CheckIns, Counter, Keep, Uniques},
    key::Keys,
    location::{Places, Position},
    membership::Bloom,
    ranking::{Leaderboard, Period, Policy, ShardedLeaderboard, WeightedChoice},
    redis,
    social::Graph,
    storage::FixedArray,
};

use super::{Fill, Filling, LONG, MANY, user};

fn day(n: u64) -> Date {
    let first = jiff::civil::date(2027, 1, 1);
    first
        .checked_add(jiff::Span::new().days(n as i64))
        .unwrap_or(first)
}

/// A board with a score for each member.
macro_rules! board {
    ($kind:literal, |$store:ident, $namespace:ident| $open:expr) => {
        filling!(
            $kind,
            "member",
            None,
            &[0],
            MANY,
            |$store, $namespace, value| $open,
            |it, n| {
                it.submit(&user(n), n as f64 * 7.0, Policy::Best).await?;
            }
        )
    };
}

/// A table with one entry per kind.
pub(super) fn fillings() -> Vec<Filling> {
    vec![
        filling!(
            "check_ins",
            "user",
            Some("days that are kept"),
            &[31, 365],
            MANY,
            |store, ns, value| (CheckIns::new(&store, &ns, "visits", Keep::Forever)?, value),
            // The last day of each month makes its bitmap as long as it gets.
            |it, n| for month in 0..it.1.div_ceil(31) {
                let first = Date::new(2027, month as i8 % 12 + 1, 1).unwrap_or(day(0));
                it.0.mark(&user(n), first.last_of_month()).await?;
            }
        ),
        filling!(
            "unique_visitors",
            "page and day",
            Some("visitors"),
            &[100, 1000, 10_000, 20_000],
            // At a thousand visitors a few sketches are dense already, which only many of them show.
            2048,
            |store, ns, value| (Uniques::new(&store, &ns, "visitors", Keep::Forever)?, value),
            // Small requests, so that the buffers of connections weigh little.
            |it, n| {
                for chunk in (0..it.1).collect::<Vec<_>>().chunks(50) {
                    let ids: Vec<String> =
                        chunk.iter().map(|id| user(id + n * 1_000_000)).collect();
                    let _ = it.0.add(&user(n), day(0), &ids).await?;
                }
            }
        ),
        filling!(
            "visitor_set",
            "page and day",
            Some("visitors"),
            &[100, 1000, 10_000, 20_000],
            64,
            |store, ns, value| (Keys::new(&ns, "set")?, store, value),
            |it, n| {
                let entity = it.0.entity(&user(n))?;
                for chunk in (0..it.2).collect::<Vec<_>>().chunks(50) {
                    let mut add = redis::cmd("SADD");
                    add.arg(entity.key());
                    for id in chunk {
                        add.arg(user(id + n * 1_000_000));
                    }
                    it.1.query::<()>(&add).await?;
                }
            }
        ),
        filling!(
            "activity",
            "day",
            Some("users"),
            &[100_000, 1_000_000],
            64,
            |store, ns, value| (
                Activity::new(&store, &ns, "active", value as u32, Keep::Forever)?,
                value
            ),
            |it, n| {
                it.0.mark("app", day(n), &[it.1 as u32 - 1]).await?;
            }
        ),
        filling!(
            "bloom",
            "filter at 1 %",
            Some("elements"),
            &[100_000, 1_000_000],
            8,
            |store, ns, value| (store, ns, value),
            |it, n| {
                let filter = Bloom::builder(&it.0, &it.1, &user(n))
                    .capacity(it.2)
                    .error_rate(0.01)
                    .create()
                    .await?;
                // A filter of bits is as long as its last bit that is set.
                let elements: Vec<String> = (0..500).map(user).collect();
                filter.add_many(&elements).await?;
            }
        ),
        board!("leaderboard", |store, ns| Leaderboard::new(
            &store, &ns, "board"
        )?),
        board!("period_leaderboard", |store, ns| Leaderboard::builder(
            &store, &ns, "board"
        )
        .period(Period::Month, TimeZone::UTC, LONG)
        .build()?),
        board!("sharded_leaderboard", |store, ns| {
            ShardedLeaderboard::builder(&store, &ns, "board")
                .shards(16)
                .build()?
        }),
        filling!(
            "weighted_choice",
            "member",
            None,
            &[0],
            6144,
            |store, ns, value| WeightedChoice::new(&store, &ns, "loot")?,
            |it, n| {
                it.set(&user(n), n + 1).await?;
            }
        ),
        filling!(
            "places",
            "member",
            None,
            &[0],
            MANY,
            |store, ns, value| Places::new(&store, &ns, "people")?,
            |it, n| {
                let position = Position::new(
                    (n % 3600) as f64 / 10.0 - 179.9,
                    (n % 1600) as f64 / 10.0 - 79.9,
                )?;
                it.put(&user(n), position).await?;
            }
        ),
        filling!(
            "graph",
            "edge",
            None,
            &[0],
            MANY,
            |store, ns, value| Graph::new(&store, &ns, "people")?,
            // Each account follows twelve others and is followed by twelve.
            |it, n| {
                let _ = it.follow(&user(n / 12), &user(n / 12 + 1 + n % 12)).await?;
            }
        ),
        filling!(
            "counter",
            "counter",
            None,
            &[0],
            MANY,
            |store, ns, value| Counter::new(&store, &ns, "clicks", Keep::For(LONG))?,
            |it, n| {
                it.add(&user(n), 1).await?;
            }
        ),
        filling!(
            "array",
            "array of 1,000 records of 16 bytes",
            None,
            &[0],
            256,
            |store, ns, value| (store, ns),
            |it, n| FixedArray::<u128>::new(&it.0, &it.1, &user(n), 1000)?
                .set(999, &1)
                .await?
        ),
    ]
}
