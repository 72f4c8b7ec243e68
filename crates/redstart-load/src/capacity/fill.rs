//! Filling a store with entities, to weigh them.

use std::{pin::Pin, sync::Arc, time::Duration};

use jiff::civil::Date;
use redstart::{
    Error, Result, Store,
    caching::{Cache, Loaded},
    commerce::{Request, Stock},
    counting::{Activity, CheckIns, Counter, Keep, Uniques},
    key::Keys,
    limiting::{Algorithm, Limiter, Quota},
    location::{Places, Position},
    locking::{FenceToken, FencedValues, Mutex},
    membership::Bloom,
    messaging::{EventStream, Job, NotifySet, PriorityQueue, Queue, ReliableList, Ring},
    ranking::{Leaderboard, Policy, ShardedLeaderboard, WeightedChoice},
    redis,
    sessions::{Sessions, Trail},
    social::Graph,
    storage::FixedArray,
};
use serde::{Deserialize, Serialize};

type Future<T> = Pin<Box<dyn std::future::Future<Output = Result<T>> + Send>>;
/// Puts one entity, by its number.
pub(super) type Put = Arc<dyn Fn(u64) -> Future<()> + Send + Sync>;

/// A kind of entity that can be weighed.
pub struct Filling {
    kind: &'static str,
    entity: &'static str,
    parameter: Option<&'static str>,
    values: &'static [u64],
    /// How many entities are enough, for the first value; fewer of larger ones.
    count: u64,
    open: fn(Store, String, u64) -> Future<Put>,
}

impl std::fmt::Debug for Filling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filling").field("kind", &self.kind).finish()
    }
}

impl Filling {
    /// The kind: a pattern, or an alternative to one.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// What one entity is.
    pub fn entity(&self) -> &'static str {
        self.entity
    }

    /// What its parameter is.
    pub fn parameter(&self) -> Option<&'static str> {
        self.parameter
    }

    /// The values of the parameter that are measured.
    pub fn values(&self) -> &'static [u64] {
        self.values
    }

    /// How many entities are filled in to measure.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub(super) async fn open(&self, store: &Store, namespace: &str, value: u64) -> Result<Put> {
        (self.open)(store.clone(), namespace.to_owned(), value).await
    }
}

/// 1.5 × 2^14: tables of servers, whose sizes are powers of two, are then three quarters full, which is their average.
const MANY: u64 = 24_576;
const LONG: Duration = Duration::from_secs(30 * 86_400);
const PAYLOADS: &[u64] = &[100, 1000];

fn user(n: u64) -> String {
    format!("user:{n:08}")
}

fn body(bytes: u64) -> Vec<u8> {
    vec![b'x'; bytes as usize]
}

/// A payload that takes as many bytes in JSON as it has.
fn text(bytes: u64) -> String {
    "x".repeat(bytes as usize)
}

/// A filling: what is made once, then what is done for entity `n`.
macro_rules! filling {
    ($kind:literal, $entity:literal, $parameter:expr, $values:expr, $count:expr,
     |$store:ident, $namespace:ident, $value:ident| $open:expr, |$one:ident, $n:ident| $put:expr) => {
        Filling {
            kind: $kind,
            entity: $entity,
            parameter: $parameter,
            values: $values,
            count: $count,
            open: |$store, $namespace, $value| {
                Box::pin(async move {
                    let _ = $value;
                    let made = Arc::new($open);
                    let put: Put = Arc::new(move |$n: u64| {
                        let $one = made.clone();
                        Box::pin(async move {
                            $put;
                            Ok(())
                        })
                    });
                    Ok(put)
                })
            },
        }
    };
}

#[derive(Serialize, Deserialize)]
struct Task {
    body: String,
}

impl Job for Task {
    const NAME: &'static str = "task";
}

fn limiter(store: &Store, namespace: &str, algorithm: Algorithm) -> Result<Limiter> {
    let quota = Quota::per(100, Duration::from_secs(86_400));
    Limiter::builder(store, namespace, "api", algorithm, quota).build()
}

fn day(n: u64) -> Date {
    let first = jiff::civil::date(2027, 1, 1);
    first
        .checked_add(jiff::Span::new().days(n as i64))
        .unwrap_or(first)
}

/// Every kind of entity that can be weighed.
#[allow(clippy::too_many_lines, reason = "a table with one entry per kind")]
pub fn fillings() -> Vec<Filling> {
    vec![
        filling!(
            "session",
            "session",
            Some("bytes of data"),
            PAYLOADS,
            MANY,
            |store, ns, value| (
                Sessions::builder(&store, &ns, "web")
                    .idle(LONG)
                    .absolute(LONG)
                    .build()?,
                serde_json::json!({ "body": "x".repeat(value as usize) })
            ),
            |it, n| {
                it.0.create(&user(n), &it.1).await?;
            }
        ),
        filling!(
            "fixed_window",
            "subject",
            None,
            &[0],
            MANY,
            |store, ns, value| limiter(&store, &ns, Algorithm::FixedWindow)?,
            |it, n| {
                let _ = it.check(&user(n), 1).await?;
            }
        ),
        filling!(
            "sliding_window",
            "subject",
            Some("calls in the window"),
            &[1, 20],
            MANY,
            |store, ns, value| (limiter(&store, &ns, Algorithm::SlidingWindow)?, value),
            |it, n| for _ in 0..it.1 {
                let _ = it.0.check(&user(n), 1).await?;
            }
        ),
        filling!(
            "sliding_counter",
            "subject",
            None,
            &[0],
            MANY,
            |store, ns, value| limiter(&store, &ns, Algorithm::SlidingCounter)?,
            |it, n| {
                let _ = it.check(&user(n), 1).await?;
            }
        ),
        filling!(
            "token_bucket",
            "subject",
            None,
            &[0],
            MANY,
            |store, ns, value| limiter(&store, &ns, Algorithm::TokenBucket)?,
            |it, n| {
                let _ = it.check(&user(n), 1).await?;
            }
        ),
        filling!(
            "mutex",
            "held lock",
            None,
            &[0],
            MANY,
            |store, ns, value| (store, ns),
            |it, n| {
                let lock = Mutex::builder(&it.0, &it.1, &user(n))
                    .ttl(LONG)
                    .without_renewal()
                    .build()?;
                // Left held: it is the lock that is weighed.
                if let Some(guard) = lock.try_lock().await? {
                    std::mem::forget(guard);
                }
            }
        ),
        filling!(
            "fencing",
            "value",
            Some("bytes of the value"),
            PAYLOADS,
            MANY,
            |store, ns, value| (FencedValues::new(&store, &ns, "values")?, body(value)),
            |it, n| {
                let _ = it.0.set(&user(n), &it.1, FenceToken::new(1)?).await?;
            }
        ),
        filling!(
            "cache_aside",
            "row",
            Some("bytes of the row"),
            PAYLOADS,
            MANY,
            |store, ns, value| (
                Cache::<str, Vec<u8>>::builder(&store, &ns, "row")
                    .ttl(LONG)
                    .build()?,
                body(value)
            ),
            |it, n| {
                let row = it.1.clone();
                it.0.get_or_load(&*user(n), move |_| async move {
                    Ok::<_, Error>(Loaded::Found(row))
                })
                .await?;
            }
        ),
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
            512,
            |store, ns, value| (Uniques::new(&store, &ns, "visitors", Keep::Forever)?, value),
            |it, n| {
                for chunk in (0..it.1).collect::<Vec<_>>().chunks(500) {
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
                for chunk in (0..it.2).collect::<Vec<_>>().chunks(500) {
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
        filling!(
            "leaderboard",
            "member",
            None,
            &[0],
            MANY,
            |store, ns, value| Leaderboard::new(&store, &ns, "board")?,
            |it, n| {
                it.submit(&user(n), n as f64 * 7.0, Policy::Best).await?;
            }
        ),
        filling!(
            "sharded_leaderboard",
            "member",
            None,
            &[0],
            MANY,
            |store, ns, value| ShardedLeaderboard::builder(&store, &ns, "board")
                .shards(16)
                .build()?,
            |it, n| {
                it.submit(&user(n), n as f64 * 7.0, Policy::Best).await?;
            }
        ),
        filling!(
            "weighted_choice",
            "member",
            None,
            &[0],
            8192,
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
            // Each account follows twelve, as one follower list among many.
            |it, n| {
                let _ = it
                    .follow(&user(n / 12), &user((n / 12 + 1 + n % 12) % 2048))
                    .await?;
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
        filling!(
            "job_queue",
            "job",
            Some("bytes of the payload"),
            PAYLOADS,
            MANY,
            |store, ns, value| (Queue::new(&store, &ns, "tasks")?, value),
            |it, n| {
                let _ =
                    it.0.enqueue(&Task {
                        body: text(it.1 + n % 2),
                    })
                    .await?;
            }
        ),
        filling!(
            "priority_queue",
            "item",
            None,
            &[0],
            MANY,
            |store, ns, value| PriorityQueue::<String>::new(&store, &ns, "items")?,
            |it, n| {
                it.push(&user(n), (n % 10) as i32).await?;
            }
        ),
        filling!(
            "reliable_list",
            "item",
            Some("bytes of the payload"),
            PAYLOADS,
            MANY,
            |store, ns, value| (ReliableList::new(&store, &ns, "items")?, body(value)),
            |it, n| {
                let _ = n;
                it.0.push(&it.1).await?;
            }
        ),
        filling!(
            "event_stream",
            "event",
            Some("bytes of the payload"),
            PAYLOADS,
            MANY,
            |store, ns, value| (
                EventStream::<String>::new(&store, &ns, "events")?,
                text(value)
            ),
            |it, n| {
                let _ = n;
                it.0.append(&it.1).await?;
            }
        ),
        filling!(
            "ring",
            "item",
            None,
            &[0],
            MANY,
            |store, ns, value| Ring::new(&store, &ns, "items")?,
            |it, n| {
                it.add(&user(n)).await?;
            }
        ),
        filling!(
            "notification",
            "member",
            None,
            &[0],
            MANY,
            |store, ns, value| NotifySet::new(&store, &ns, "changed")?,
            |it, n| {
                it.add(&[user(n)]).await?;
            }
        ),
        filling!(
            "stock",
            "reservation",
            None,
            &[0],
            MANY,
            |store, ns, value| {
                let stock = Stock::builder(&store, &ns, "sale").build()?;
                let _ = stock.prewarm("item", 1 << 30, LONG).await?;
                stock
            },
            |it, n| {
                let _ = it
                    .reserve(&Request::new("item", &user(n), &format!("r{n}")), 1, LONG)
                    .await?;
            }
        ),
        filling!(
            "trail",
            "visitor with 5 pages",
            None,
            &[0],
            MANY,
            |store, ns, value| Trail::builder(&store, &ns, "pages")
                .pages(5)
                .gap(LONG)
                .build()?,
            |it, n| for page in 0..5 {
                it.visit(&user(n), &format!("/product/{page}")).await?;
            }
        ),
    ]
}
