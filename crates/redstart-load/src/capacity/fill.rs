//! Filling a store with entities, to weigh them.

use std::{num::NonZeroU32, pin::Pin, sync::Arc, time::Duration};

use jiff::{civil::Date, tz::TimeZone};
use redstart::{
    Error, Result, Store,
    caching::{
        Cache, Changes, Load, Loaded, Put as Write, Sink, SinkClaim, SinkError, SortedView,
        WriteBehind,
    },
    commerce::{Request, Stock},
    counting::{Activity, CheckIns, Counter, Keep, Uniques},
    key::Keys,
    limiting::{Algorithm, Limiter, Quota},
    location::{Places, Position},
    locking::{FairMutex, FenceToken, FencedValues, Leader, LegacyLock, Mutex, RwLock, Semaphore},
    membership::Bloom,
    messaging::{
        EventStream, Job, JobContext, NotifySet, PriorityQueue, Queue, ReliableList, Ring, Verdict,
        Worker,
    },
    ranking::{Leaderboard, Period, Policy, ShardedLeaderboard, WeightedChoice},
    redis,
    resilience::{Breaker, CallWindow},
    sessions::{Sessions, Trail},
    social::Graph,
    storage::FixedArray,
};
use serde::{Deserialize, Serialize};

type Future<T> = Pin<Box<dyn std::future::Future<Output = Result<T>> + Send>>;

/// How a store is filled with entities of one kind.
#[derive(Clone)]
pub(super) struct Fill {
    /// Puts one entity, by its number.
    pub(super) put: Arc<dyn Fn(u64) -> Future<()> + Send + Sync>,
    /// Waits until so many entities are as they will stay.
    pub(super) end: Arc<dyn Fn(u64) -> Future<()> + Send + Sync>,
}

/// A kind of entity that can be weighed.
pub struct Filling {
    kind: &'static str,
    entity: &'static str,
    parameter: Option<&'static str>,
    values: &'static [u64],
    /// How many entities are enough, for the first value; fewer of larger ones.
    count: u64,
    open: fn(Store, String, u64) -> Future<Fill>,
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

    /// How many entities are filled in to measure them at a value of the parameter. Larger entities need fewer of them, but
    /// not so few that the server's own buffers weigh.
    pub fn count(&self, value: u64) -> u64 {
        let first = self.values.first().copied().unwrap_or(0).max(1);
        let larger = (value / first).clamp(1, 4);
        (self.count / larger).max(self.count.min(8))
    }

    pub(super) async fn open(&self, store: &Store, namespace: &str, value: u64) -> Result<Fill> {
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

/// A filling: what is made once, then what is done for entity `n`, and what is waited for at the end.
macro_rules! filling {
    ($kind:literal, $entity:literal, $parameter:expr, $values:expr, $count:expr,
     |$store:ident, $namespace:ident, $value:ident| $open:expr, |$one:ident, $n:ident| $put:expr) => {
        filling!(
            $kind,
            $entity,
            $parameter,
            $values,
            $count,
            |$store, $namespace, $value| $open,
            |$one, $n| $put,
            |_made, _all| {}
        )
    };
    ($kind:literal, $entity:literal, $parameter:expr, $values:expr, $count:expr,
     |$store:ident, $namespace:ident, $value:ident| $open:expr, |$one:ident, $n:ident| $put:expr,
     |$made:ident, $all:ident| $end:expr) => {
        {
            // A function of its own: the compiler looks at a function with all of its closures at once, and takes many
            // times as long for one that has those of all kinds.
            fn filling() -> Filling {
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
                            let ended = made.clone();
                            Ok(Fill {
                                put: Arc::new(move |$n: u64| {
                                    let $one = made.clone();
                                    Box::pin(async move {
                                        $put;
                                        Ok(())
                                    })
                                }),
                                end: Arc::new(move |$all: u64| {
                                    let $made = ended.clone();
                                    Box::pin(async move {
                                        $end;
                                        Ok(())
                                    })
                                }),
                            })
                        })
                    },
                }
            }
            filling()
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

/// A database that never answers: what is written behind stays in the log.
#[derive(Clone)]
struct NoSink;

impl Sink<Vec<u8>> for NoSink {
    async fn claim(&self, _: &str, _: u32) -> Result<SinkClaim, SinkError> {
        Err(SinkError::Fenced)
    }

    async fn apply(&self, _: &Changes<Vec<u8>>) -> Result<(), SinkError> {
        Err(SinkError::Fenced)
    }

    async fn load(&self, _: &str) -> Result<Option<Vec<u8>>, SinkError> {
        Ok(None)
    }
}

/// A queue whose jobs all die at their first attempt.
struct Dying {
    queue: Queue,
    /// It ends with the filling.
    _worker: Worker,
    payload: u64,
}

impl Dying {
    async fn open(store: &Store, namespace: &str, payload: u64) -> Result<Self> {
        let queue = Queue::new(store, namespace, "tasks")?;
        let worker = queue
            .worker(|_: Task, _: JobContext| async { Verdict::dead("refused") })
            .concurrency(64)
            .start()
            .await?;
        Ok(Self {
            queue,
            _worker: worker,
            payload,
        })
    }

    /// Waits until all jobs are dead letters.
    async fn all(&self, jobs: u64) -> Result<()> {
        let inspect = self.queue.inspect();
        while inspect.counts().await?.dead < jobs {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

const ONE: NonZeroU32 = NonZeroU32::MIN;

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
            "fair_lock",
            "held lock",
            None,
            &[0],
            MANY,
            |store, ns, value| (store, ns),
            |it, n| {
                let lock = FairMutex::builder(&it.0, &it.1, &user(n))
                    .ttl(LONG)
                    .without_renewal()
                    .build()?;
                if let Some(guard) = lock.try_lock().await? {
                    std::mem::forget(guard);
                }
            }
        ),
        filling!(
            "rw_lock",
            "lock that a writer holds",
            None,
            &[0],
            MANY,
            |store, ns, value| (store, ns),
            |it, n| {
                let lock = RwLock::builder(&it.0, &it.1, &user(n))
                    .ttl(LONG)
                    .without_renewal()
                    .build()?;
                if let Some(guard) = lock.try_write().await? {
                    std::mem::forget(guard);
                }
            }
        ),
        filling!(
            "legacy_lock",
            "held lock",
            None,
            &[0],
            MANY,
            |store, ns, value| (store, ns),
            |it, n| {
                let lock = LegacyLock::builder(&it.0, &it.1, &user(n))
                    .ttl(LONG)
                    .without_renewal()
                    .build()?;
                if let Some(guard) = lock.try_lock().await? {
                    std::mem::forget(guard);
                }
            }
        ),
        filling!(
            "leader",
            "election with a leader",
            None,
            &[0],
            1536,
            |store, ns, value| (store, ns),
            |it, n| {
                let election = Leader::builder(&it.0, &it.1, &user(n)).ttl(LONG).build()?;
                if let Some(leadership) = election.try_campaign().await? {
                    std::mem::forget(leadership);
                }
            }
        ),
        filling!(
            "circuit_breaker",
            "circuit with its last 100 calls",
            None,
            &[0],
            1536,
            |store, ns, value| (store, ns),
            |it, n| {
                let breaker = Breaker::builder(&it.0, &it.1, &user(n))
                    .window(CallWindow::Count(100))
                    .failure_rate(0.9)
                    .open_for(Duration::from_secs(86_400))
                    .open()
                    .await?;
                for call in 0..100 {
                    let outcome = if call % 4 == 0 { Err("down") } else { Ok(()) };
                    let _ = breaker.call(async || outcome).await;
                }
                breaker.flush().await?;
            }
        ),
        filling!(
            "semaphore",
            "semaphore with one holder",
            None,
            &[0],
            MANY,
            |store, ns, value| (store, ns),
            |it, n| {
                let semaphore = Semaphore::builder(&it.0, &it.1, &user(n), ONE)
                    .ttl(LONG)
                    .without_renewal()
                    .build()?;
                if let Some(permit) = semaphore.try_acquire().await? {
                    std::mem::forget(permit);
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
            "cache_tags",
            "row with a tag",
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
                it.0.get_or_load(&*user(n), move |load: Load| async move {
                    load.tag(format!("tag-{}", n % 16))?;
                    Ok::<_, Error>(Loaded::Found(row))
                })
                .await?;
            }
        ),
        filling!(
            "negative_cache",
            "missing row",
            None,
            &[0],
            MANY,
            |store, ns, value| Cache::<str, Vec<u8>>::builder(&store, &ns, "row")
                .ttl(LONG)
                .negative_ttl(LONG)
                .build()?,
            |it, n| {
                it.get_or_load(&*user(n), |_| async { Ok::<_, Error>(Loaded::Absent) })
                    .await?;
            }
        ),
        filling!(
            "write_behind",
            "row whose write waits",
            Some("bytes of the row"),
            PAYLOADS,
            MANY,
            |store, ns, value| (
                WriteBehind::<str, Vec<u8>>::builder(&store, &ns, "row", NoSink)
                    .max_lag(1 << 40)
                    .build()?,
                body(value)
            ),
            |it, n| {
                let _: Write = it.0.put(&user(n), &it.1).await?;
            }
        ),
        filling!(
            "sorted_view",
            "view",
            Some("rows"),
            &[100, 1000],
            512,
            |store, ns, value| (store, ns, value),
            // The members that are sorted belong to the application: they are removed again.
            |it, n| {
                let view = SortedView::builder(
                    &it.0,
                    &it.1,
                    &format!("view-{n:08}"),
                    &format!("source-{n}"),
                )
                .ttl(LONG)
                .build()?;
                let mut add = redis::cmd("SADD");
                add.arg(view.source());
                for member in 0..it.2 {
                    add.arg(1_000_000 + member);
                }
                it.0.query::<()>(&add).await?;
                let _ = view.page(0..1).await?;
                let mut remove = redis::cmd("UNLINK");
                it.0.query::<()>(remove.arg(view.source())).await?;
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
            "period_leaderboard",
            "member",
            None,
            &[0],
            MANY,
            |store, ns, value| Leaderboard::builder(&store, &ns, "board")
                .period(Period::Month, TimeZone::UTC, LONG)
                .build()?,
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
            "delayed_jobs",
            "job",
            Some("bytes of the payload"),
            PAYLOADS,
            MANY,
            |store, ns, value| (Queue::new(&store, &ns, "tasks")?, value),
            |it, n| {
                let task = Task {
                    body: text(it.1 + n % 2),
                };
                let _ = it.0.enqueue(&task).delay(LONG).await?;
            }
        ),
        filling!(
            "dead_letter",
            "dead letter",
            Some("bytes of the payload"),
            PAYLOADS,
            MANY,
            |store, ns, value| Dying::open(&store, &ns, value).await?,
            |it, n| {
                let task = Task {
                    body: text(it.payload + n % 2),
                };
                let _ = it.queue.enqueue(&task).await?;
            },
            |it, all| it.all(all).await?
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

/// Patterns of which no entity is weighed, and why.
pub(super) const NOT_WEIGHED: &[(&str, &str)] = &[
    (
        "stampede_lease",
        "the rows are those of `cache_aside`; a lease exists only during a load",
    ),
    ("early_refresh", "the rows are those of `cache_aside`"),
    (
        "cache_invalidation",
        "the rows are those of `cache_aside`; messages are not kept",
    ),
    (
        "write_through",
        "the rows are those of `cache_aside`; a fence exists only during a write",
    ),
    ("redlock", "the key is that of `mutex`, on every server"),
    ("topic", "messages are not kept"),
];

/// Patterns whose entities are those of another kind.
pub(super) const SAME: &[(&str, &str)] = &[
    ("stampede_lease", "cache_aside"),
    ("early_refresh", "cache_aside"),
    ("cache_invalidation", "cache_aside"),
    ("write_through", "cache_aside"),
    ("redlock", "mutex"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_weighed_or_has_a_reason() {
        for pattern in crate::all() {
            let weighed = fillings().iter().any(|of| of.kind() == pattern.name());
            let reason = NOT_WEIGHED.iter().any(|(name, _)| *name == pattern.name());
            assert!(weighed != reason, "{}", pattern.name());
        }
    }
}
