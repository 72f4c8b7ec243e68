//! The code that the guide prints, compiled with the tests so that it cannot grow stale.
//!
//! What is printed of each function stands between its two marks. Everything else is what the reader's program has.
#![allow(unused, clippy::all, missing_docs, non_local_definitions)]

use std::{num::NonZeroU32, time::Duration};

use anyhow::Result;
use jiff::{
    civil::{Date, date},
    tz::TimeZone,
};
use redstart::{
    Down, Error, Store, caching::*, commerce::*, counting::*, key::Layout, limiting::*, location::*,
    locking::*, membership::*, messaging::*, ranking::*, resilience::*, sessions::*, social::*,
    storage::*,
};
use axum::{Router, routing::post};
use redstart_tower::{CookieLayer, IdempotencyLayer, LimitLayer, Subject};
use serde::{Deserialize, Serialize};

async fn cache_aside(store: Store, id: u64, db: &'static Db) -> Result<()> {
    // <cache_aside>
    let products = Cache::<u64, Product>::builder(&store, "shop", "product")
        .ttl(Duration::from_secs(3600))
        .build()?;
    let hit = products.get_or_load(&id, move |_| async move { db.find(id).await.map(Loaded::from) }).await?;
    products.invalidate(&id).await?;   // after the row changed
    // </cache_aside>
    Ok(())
}

async fn stampede_lease(store: Store) -> Result<()> {
    // <stampede_lease>
    let cache = Cache::<u64, Page>::builder(&store, "shop", "page")
        .ttl(Duration::from_secs(60))
        .stampede(Stampede::Lease)     // one loader over all processes; the default
        .load_timeout(Duration::from_secs(2), Duration::from_secs(10))
        .build()?;
    // </stampede_lease>
    Ok(())
}

async fn early_refresh(store: Store) -> Result<()> {
    // <early_refresh>
    let cache = Cache::<u64, Page>::builder(&store, "shop", "page")
        .ttl(Duration::from_secs(60))
        .early(XFetch { beta: 1.0 })
        .build()?;
    // </early_refresh>
    Ok(())
}

async fn negative_cache(store: Store, id: u64) -> Result<()> {
    // <negative_cache>
    let users = Cache::<u64, User>::builder(&store, "shop", "user")
        .ttl(Duration::from_secs(600))
        .negative_ttl(Duration::from_secs(30))
        .build()?;
    let hit = users.get_or_load(&id, |_| async { Ok::<_, Error>(Loaded::Absent) }).await?;
    // </negative_cache>
    Ok(())
}

async fn cache_tags(store: Store, cache: Cache<u64, Product>, id: u64, row: Product) -> Result<()> {
    // <cache_tags>
    cache.get_or_load(&id, |load| async move {
        load.tag("brand:acme")?;
        Ok::<_, Error>(Loaded::Found(row))
    }).await?;
    cache.invalidate_tag("brand:acme").await?;
    // </cache_tags>
    Ok(())
}

async fn cache_invalidation(store: Store, id: u64) -> Result<()> {
    // <cache_invalidation>
    let cache = Cache::<u64, Product>::builder(&store, "shop", "product")
        .ttl(Duration::from_secs(3600))
        .l1(L1::tracking(10_000))      // or L1::pubsub(10_000)
        .build()?;
    let fresh = cache.get_remote(&id).await?;   // past the first level
    // </cache_invalidation>
    Ok(())
}

async fn write_through(store: Store, cache: Cache<u64, Price>, db: Db, id: u64, price: Price) -> Result<()> {
    // <write_through>
    let write = WriteThrough::new(&cache);
    write.put(&id, async {
        let row = db.update(id, price).await?;       // … RETURNING version
        Ok::<_, DbError>(Written::row(row.value, row.version))
    }).await?;
    // </write_through>
    Ok(())
}

async fn write_behind(store: Store) -> Result<()> {
    // <write_behind>
    let sink = SqlSink::connect("postgres://…", "views").await?.column("count", |n: &u64| (*n).into());
    let views = WriteBehind::<str, u64>::builder(&store, "shop", "views", sink).build()?;
    let worker = views.work()?;
    views.put("home", &42).await?;                    // read back at once
    views.flush(Duration::from_secs(10)).await?;      // now it is in the table
    // </write_behind>
    Ok(())
}

async fn sorted_view(store: Store) -> Result<()> {
    // <sorted_view>
    let cheapest = SortedView::builder(&store, "shop", "by-price", "products")
        .ttl(Duration::from_secs(30))
        .by("price_*")
        .get("#")
        .build()?;
    let page = cheapest.page(0..20).await?;
    // </sorted_view>
    Ok(())
}

async fn fixed_window(store: Store) -> Result<()> {
    // <fixed_window>
    let daily = Limiter::fixed_window(&store, "shop", "export", Quota::per_day(20))
        .on_store_down(Down::Refuse)
        .build()?;
    if !daily.check("user:42", 1).await?.is_allowed() { /* 429 */ }
    // </fixed_window>
    Ok(())
}

async fn sliding_window(store: Store) -> Result<()> {
    // <sliding_window>
    let logins = Limiter::sliding_window(&store, "shop", "login", Quota::per(5, Duration::from_secs(60)))
        .on_store_down(Down::Refuse)
        .build()?;
    // </sliding_window>
    Ok(())
}

async fn sliding_counter(store: Store) -> Result<()> {
    // <sliding_counter>
    let api = Limiter::sliding_counter(&store, "shop", "api", Quota::per_minute(600))
        .on_store_down(Down::Allow)
        .build()?;
    // </sliding_counter>
    Ok(())
}

async fn token_bucket(store: Store) -> Result<()> {
    // <token_bucket>
    let limiter = Limiter::token_bucket(&store, "shop", "api", Quota::per_second(10).burst(100))
        .deny_cache(10_000)
        .on_store_down(Down::Refuse)
        .build()?;
    match limiter.check("user:42", 1).await? {
        Decision::Allowed(_) => serve(),
        Decision::Limited { retry_after, .. } => too_many(retry_after),
        Decision::Never { max } => too_large(max),
    }
    // </token_bucket>
    Ok(())
}

async fn mutex(store: Store) -> Result<()> {
    // <mutex>
    let lock = Mutex::builder(&store, "shop", "order:5001").ttl(Duration::from_secs(30)).build()?;
    let run = lock.with(Duration::from_secs(5), |lease| async move {
        charge(lease.fence()).await        // dropped if the lease is lost
    }).await?;
    match run {
        LockedRun::Done(charged) => charged?,
        LockedRun::Busy => {}              // somebody else holds it; nothing was done
        LockedRun::Lost(_) => {}           // the token protects what was written
    }
    // </mutex>
    Ok(())
}

async fn fencing(store: Store, guard: Guard<FenceToken>) -> Result<()> {
    // <fencing>
    let orders = FencedValues::new(&store, "shop", "orders")?;
    match orders.set("5001", "paid", guard.fence()).await? {
        FencedWrite::Done => {}
        FencedWrite::Stale { .. } => { /* somebody else has the lock by now */ }
    }
    // </fencing>
    Ok(())
}

async fn redlock(store: Store, stores: Vec<Store>) -> Result<()> {
    // <redlock>
    let lock = Redlock::builder(stores, "shop", "order:5001").ttl(Duration::from_secs(10)).build()?;
    if let Some(guard) = lock.lock(Duration::from_secs(5)).await? {
        guard.release().await?;
    }
    // </redlock>
    Ok(())
}

async fn fair_lock(store: Store) -> Result<()> {
    // <fair_lock>
    let till = FairMutex::builder(&store, "shop", "till").build()?;
    let guard = till.lock(Duration::from_secs(30)).await?;
    // </fair_lock>
    Ok(())
}

async fn rw_lock(store: Store) -> Result<()> {
    // <rw_lock>
    let catalogue = RwLock::builder(&store, "shop", "catalogue").build()?;
    let reading = catalogue.read(Duration::from_secs(5)).await?;
    let writing = catalogue.write(Duration::from_secs(5)).await?;
    // </rw_lock>
    Ok(())
}

async fn semaphore(store: Store) -> Result<()> {
    // <semaphore>
    const PRINTERS: NonZeroU32 = NonZeroU32::new(3).unwrap();
    let printers = Semaphore::new(&store, "office", "printers", PRINTERS)?;
    if let Some(permit) = printers.acquire(Duration::from_secs(10)).await? {
        print().await;
        permit.release().await?;
    }
    // </semaphore>
    Ok(())
}

async fn leader(store: Store) -> Result<()> {
    // <leader>
    let office = Leader::builder(&store, "shop", "scheduler").id("node-1").build()?;
    if let Some(leadership) = office.campaign(Duration::from_secs(60)).await? {
        tokio::select! { () = leadership.lost() => {}, () = schedule() => {} }
    }
    // </leader>
    Ok(())
}

async fn legacy_lock(store: Store) -> Result<()> {
    // <legacy_lock>
    let lock = LegacyLock::builder(&store, "shop", "foo")
        .layout(Layout::new(|name| format!("lock.{name}")))
        .build()?;
    let guard = lock.try_lock().await?;      // honours old clients, and they honour it
    // </legacy_lock>
    Ok(())
}

async fn circuit_breaker(store: Store) -> Result<()> {
    // <circuit_breaker>
    let payments = Breaker::builder(&store, "shop", "payments")
        .failure_rate(0.5).min_calls(20).distinct_instances(2)
        .open_for(Duration::from_secs(30)).probes(3)
        .open().await?;
    match payments.call(async || pay().await).await {
        Err(CallError::Open { retry_after }) => later(retry_after),
        result => handle(result),
    }
    // </circuit_breaker>
    Ok(())
}

async fn stock(store: Store) -> Result<()> {
    // <stock>
    let stock = Stock::builder(&store, "shop", "spring").per_user(2).build()?;
    let _ = stock.prewarm("console", 1000, Duration::from_secs(3600)).await?;
    let request = Request::new("console", "ann", "req-1");
    if let Reserve::Held { .. } = stock.reserve(&request, 1, Duration::from_secs(300)).await? {
        stock.confirm(&request).await?;
    }
    // </stock>
    Ok(())
}

async fn job_queue(store: Store, to: String) -> Result<()> {
    // <job_queue>
    impl Job for SendMail { const NAME: &'static str = "send_mail"; }
    let queue = Queue::new(&store, "shop", "mail")?;
    queue.enqueue(&SendMail { to }).unique("welcome:42", UniqueUntil::Done).await?;
    let worker = queue.worker(|mail: SendMail, _: JobContext| async move { send(mail).await })
        .concurrency(64).retry(Backoff::default(), 5)
        .start().await?;
    worker.shutdown(Duration::from_secs(30)).await?;
    // </job_queue>
    Ok(())
}

async fn dead_letter(store: Store, queue: Queue) -> Result<()> {
    // <dead_letter>
    let letters = queue.inspect().dead_letters();
    for letter in letters.list(None).await? { println!("{}", letter.reason); }
    letters.replay(|letter| letter.reason.contains("timeout")).await?;
    // </dead_letter>
    Ok(())
}

async fn delayed_jobs(store: Store, queue: Queue, user: u64) -> Result<()> {
    // <delayed_jobs>
    queue.enqueue(&Reminder { user }).delay(Duration::from_secs(3600)).await?;
    queue.cron("nightly", "0 3 * * *", &Report, MissedTicks::RunOnce).time_zone("Europe/Berlin").await?;
    // </delayed_jobs>
    Ok(())
}

async fn priority_queue(store: Store, call: Call) -> Result<()> {
    // <priority_queue>
    let calls = PriorityQueue::<Call>::new(&store, "shop", "calls")?;
    calls.push(&call, 0).await?;                       // 0 is most urgent
    let mut consumer = calls.consumer(Duration::from_secs(30)).await?;
    if let Some(call) = consumer.reserve(Duration::from_secs(5)).await? { call.done().await?; }
    // </priority_queue>
    Ok(())
}

async fn reliable_list(store: Store) -> Result<()> {
    // <reliable_list>
    let list = ReliableList::builder(&store, "shop", "orders").build()?;
    let mut consumer = list.consumer().await?;
    while let Some(item) = consumer.take(Duration::from_secs(5)).await? {
        handle(item.payload());
        item.done().await?;
    }
    // </reliable_list>
    Ok(())
}

async fn ring(store: Store) -> Result<()> {
    // <ring>
    let feeds = Ring::new(&store, "crawler", "feeds")?;
    feeds.add("https://example.com/feed").await?;
    while let Some(visit) = feeds.next().await? { fetch(&visit.item, visit.lap).await; }
    // </ring>
    Ok(())
}

async fn notification(store: Store) -> Result<()> {
    // <notification>
    let changed = NotifySet::new(&store, "shop", "changed")?;
    changed.add(&["user 7"]).await?;
    let taken = changed.consumer().take(100, Duration::from_secs(5)).await?;
    // </notification>
    Ok(())
}

async fn topic(store: Store, goal: Goal) -> Result<()> {
    // <topic>
    let goals = Topic::<Goal>::new(&store, "news", "goals")?;
    let mut listener = goals.listen().await?;
    goals.publish(&goal).await?;
    match listener.next().await { Some(Heard::Gap) => reload(), other => show(other) }
    // </topic>
    Ok(())
}

async fn event_stream(store: Store, order: Order) -> Result<()> {
    // <event_stream>
    let orders = EventStream::<Order>::new(&store, "shop", "orders")?;
    let mut billing = orders.group("billing", StartAt::Beginning).await?;
    orders.append(&order).await?;
    let events = billing.read("billing-1", 100, Duration::from_secs(5)).await?;
    billing.ack(&events.iter().map(|e| &e.id).collect::<Vec<_>>()).await?;
    // </event_stream>
    Ok(())
}

async fn session(store: Store, data: serde_json::Value) -> Result<()> {
    // <session>
    let sessions = Sessions::builder(&store, "shop", "web").idle(Duration::from_secs(1800)).build()?;
    let token = sessions.create("ann", &data).await?;
    sessions.patch(&token, &serde_json::json!({ "cart": [7] })).await?;
    sessions.revoke_all("ann").await?;                 // logout everywhere
    // </session>
    Ok(())
}

async fn trail(store: Store) -> Result<()> {
    // <trail>
    let trail = Trail::new(&store, "shop", "pages")?;
    trail.visit("ann", "/tea").await?;
    let pages = trail.pages("ann").await?;
    // </trail>
    Ok(())
}

async fn leaderboard(store: Store) -> Result<()> {
    // <leaderboard>
    let board = Leaderboard::builder(&store, "game", "all-time")
        .ties(Ties::EarliestFirst { max_points: 1_000_000 })
        .build()?;
    let placed = board.submit("ann", 300.0, Policy::Best).await?;
    let near = board.around("ann", 5).await?;
    // </leaderboard>
    Ok(())
}

async fn period_leaderboard(store: Store) -> Result<()> {
    // <period_leaderboard>
    let weekly = Leaderboard::builder(&store, "game", "weekly")
        .period(Period::Week, TimeZone::get("Europe/Berlin")?, Duration::from_secs(8 * 86400))
        .build()?;
    weekly.submit("ann", 10.0, Policy::Sum).await?;
    let top = weekly.top(10).await?;
    // </period_leaderboard>
    Ok(())
}

async fn sharded_leaderboard(store: Store) -> Result<()> {
    // <sharded_leaderboard>
    let world = ShardedLeaderboard::builder(&store, "game", "world").shards(256).build()?;
    world.submit("ann", 300.0, Policy::Best).await?;
    let entry = world.rank("ann").await?;              // exact
    // </sharded_leaderboard>
    Ok(())
}

async fn weighted_choice(store: Store) -> Result<()> {
    // <weighted_choice>
    let loot = WeightedChoice::new(&store, "game", "loot")?;
    loot.set("common", 90).await?;
    loot.set("rare", 10).await?;
    let item = loot.pick().await?;
    // </weighted_choice>
    Ok(())
}

async fn counter(store: Store, db: Db) -> Result<()> {
    // <counter>
    let clicks = Counter::new(&store, "shop", "clicks", Keep::For(Duration::from_secs(86400)))?;
    clicks.add("banner", 1).await?;
    if let Some(drained) = clicks.drain("banner").await? {
        db.insert(&drained.id, drained.count).await?;  // unique by id
        clicks.ack("banner", &drained.id).await?;
    }
    // </counter>
    Ok(())
}

async fn unique_visitors(store: Store) -> Result<()> {
    // <unique_visitors>
    let visitors = Uniques::new(&store, "site", "visitors", Keep::For(Duration::from_secs(90 * 86400)))?;
    visitors.add_today("home", ["ann", "bob"]).await?;
    let week = visitors.count("home", &DaySpan::Week(visitors.today().await?)).await?;
    // </unique_visitors>
    Ok(())
}

async fn check_ins(store: Store) -> Result<()> {
    // <check_ins>
    let check_ins = CheckIns::new(&store, "app", "visits", Keep::Forever)?;
    check_ins.mark("ann", date(2026, 11, 15)).await?;
    let streaks = check_ins.streaks("ann", date(2026, 11, 15)).await?;
    println!("{}", check_ins.month("ann", date(2026, 11, 1)).await?);
    // </check_ins>
    Ok(())
}

async fn activity(store: Store, today: Date, last_week: Date) -> Result<()> {
    // <activity>
    let active = Activity::new(&store, "app", "active", 10_000_000, Keep::For(Duration::from_secs(60 * 86400)))?;
    active.mark("web", today, &[1, 2, 3]).await?;
    let monthly = active.monthly("web", today).await?;
    let retained = active.retained("web", last_week, today).await?;
    // </activity>
    Ok(())
}

async fn bloom(store: Store, url: &str, urls: Vec<String>) -> Result<()> {
    // <bloom>
    let seen = Bloom::builder(&store, "crawler", "urls").capacity(1_000_000).error_rate(0.001).create().await?;
    if seen.add(url).await? { crawl(url).await; }
    let known = seen.contains_many(&urls).await?;
    // </bloom>
    Ok(())
}

async fn places(store: Store) -> Result<()> {
    // <places>
    let couriers = Places::builder(&store, "shop", "couriers").stale_after(Duration::from_secs(60)).build()?;
    couriers.put("ann", Position::new(13.36, 38.11)?).await?;
    let near = couriers.nearby("ann", Area::Radius(5_000.0)).limit(10).exclude_self().find().await?;
    // </places>
    Ok(())
}

async fn graph(store: Store) -> Result<()> {
    // <graph>
    let graph = Graph::new(&store, "app", "people")?;
    let _ = graph.follow("ann", "bob").await?;
    let page = graph.followers("bob", None, 50).await?;
    let ideas = graph.suggestions("ann", 10).await?;
    // </graph>
    Ok(())
}

async fn array(store: Store) -> Result<()> {
    // <array>
    let seats = FixedArray::<u32>::new(&store, "theatre", "stalls", 500)?;
    seats.set(7, &4711).await?;
    let buyer = seats.get(7).await?;
    // </array>
    Ok(())
}

async fn idempotency(store: Store, body: &'static [u8]) -> Result<()> {
    // <idempotency>
    let payments = Idempotency::new(&store, "shop", "payments")?;
    match payments.run("order-5001", body, async move { Ok(charge(500).await?) }).await? {
        Run::Done(receipt) | Run::Replayed(receipt) => reply(receipt),
        Run::NotDone(refusal) => declined(refusal),
        Run::Busy { retry_after } => later(retry_after),
        Run::Mismatch => conflict(),
        Run::Unknown(_) => ask_the_bank(),
    }
    // </idempotency>
    Ok(())
}

async fn http_layers(payments: Idempotency, limiter: Limiter, sessions: Sessions) -> Result<()> {
    async fn pay() {}
    // <http_layers>
    let app = Router::new()
        .route("/pay", post(pay))
        .layer(IdempotencyLayer::new(payments, Subject::user()))
        .layer(LimitLayer::new(limiter, Subject::user()))
        .layer(CookieLayer::new(sessions));
    // </http_layers>
    let _: Router = app;
    Ok(())
}

async fn manual_clock() -> Result<()> {
    // <manual_clock>
    let store = Store::connect("memory://").await?;
    let daily = Limiter::fixed_window(&store, "shop", "export", Quota::per_day(1)).build()?;
    assert!(daily.check("ann", 1).await?.is_allowed());
    assert!(!daily.check("ann", 1).await?.is_allowed());
    store.advance(Duration::from_secs(86_400))?;      // a day passes at once
    assert!(daily.check("ann", 1).await?.is_allowed());
    // </manual_clock>
    Ok(())
}

#[derive(Clone, Serialize, Deserialize)]
struct Product;
#[derive(Clone, Serialize, Deserialize)]
struct Page;
#[derive(Clone, Serialize, Deserialize)]
struct User;
type Price = u64;
type DbError = std::io::Error;
struct Row { value: Price, version: u64 }
struct Db;
impl Db {
    async fn find(&self, id: u64) -> std::result::Result<Option<Product>, DbError> { Ok(None) }
    async fn update(&self, id: u64, price: Price) -> std::result::Result<Row, DbError> { Ok(Row { value: price, version: 1 }) }
    async fn insert(&self, id: &str, count: i64) -> std::result::Result<(), DbError> { Ok(()) }
}
#[derive(Serialize, Deserialize)]
struct SendMail { to: String }
#[derive(Serialize, Deserialize)]
struct Reminder { user: u64 }
impl Job for Reminder { const NAME: &'static str = "reminder"; }
#[derive(Serialize, Deserialize)]
struct Report;
impl Job for Report { const NAME: &'static str = "report"; }
#[derive(Serialize, Deserialize)]
struct Call;
#[derive(Serialize, Deserialize)]
struct Goal;
#[derive(Serialize, Deserialize)]
struct Order;
fn serve() {}
fn too_many(after: Duration) {}
fn too_large(max: u64) {}
async fn print() {}
async fn send(mail: SendMail) {}
async fn fetch(item: &str, lap: u64) {}
async fn crawl(url: &str) {}
async fn schedule() {}
fn later(after: Duration) {}
fn handle<T>(what: T) {}
fn reload() {}
fn show<T>(what: T) {}
async fn pay() -> std::result::Result<(), DbError> { Ok(()) }
async fn charge<T>(what: T) -> std::result::Result<(), DbError> { Ok(()) }
fn reply<T>(what: T) {}
fn declined<T>(what: T) {}
fn conflict() {}
fn ask_the_bank() {}
