//! A small living shop, so that there is something to see: orders, mail, boards, limits.

use std::{num::NonZeroU32, time::Duration};

use jiff::{ToSpan as _, tz::TimeZone};
use rand::RngExt as _;
use redstart::{
    Result, Store,
    caching::{Cache, Loaded},
    codec::Json,
    commerce::{Request, Stock},
    counting::{Activity, CheckIns, Counter, Keep, Uniques},
    limiting::{Limiter, Quota},
    location::{Places, Position},
    locking::{Leader, Mutex, Semaphore},
    membership::Bloom,
    messaging::{
        Backoff, EventStream, Job, JobContext, MissedTicks, Queue, StartAt, Verdict, Worker,
    },
    ranking::{Leaderboard, Policy},
    resilience::Breaker,
    sessions::{Login, Sessions},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use tokio::task::JoinHandle;

const SHOP: &str = "shop";
const PEOPLE: [&str; 8] = ["ann", "bob", "cyd", "dee", "eli", "fay", "gus", "hal"];
const KEEP: Keep = Keep::For(Duration::from_secs(400 * 86_400));

#[derive(Serialize, Deserialize)]
struct SendMail {
    to: String,
    subject: String,
    order: u64,
}
impl Job for SendMail {
    const NAME: &'static str = "send_mail";
}

#[derive(Serialize, Deserialize)]
struct Charge {
    order: u64,
    cents: u64,
    card: String,
}
impl Job for Charge {
    const NAME: &'static str = "charge_card";
}

#[derive(Serialize, Deserialize)]
struct Resize {
    image: String,
    width: u32,
}
impl Job for Resize {
    const NAME: &'static str = "resize_image";
}

/// The demo: it runs in this process until it is stopped.
///
/// ```
/// # #[tokio::main] async fn main() -> redstart::Result<()> {
/// let store = redstart::Store::connect("memory://").await?;
/// let demo = redstart_serve::Demo::start(&store).await?;
/// assert!(!store.scan("shop:queue:*").await?.is_empty());
/// demo.stop().await;
/// # Ok(()) }
/// ```
pub struct Demo {
    workers: Vec<Worker>,
    life: JoinHandle<()>,
}

impl Demo {
    /// Fills the namespace `shop` and lets it live.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn start(store: &Store) -> Result<Self> {
        let shop = Shop::open(store).await?;
        shop.furnish().await?;
        let workers = shop.workers().await?;
        let life = tokio::spawn(async move {
            let mut turn = 0;
            loop {
                if let Err(error) = shop.live(turn).await {
                    tracing::warn!(%error, "the demo could not do something");
                }
                turn += 1;
                tokio::time::sleep(Duration::from_millis(400)).await;
            }
        });
        Ok(Self { workers, life })
    }

    /// Ends it. What it wrote stays.
    pub async fn stop(self) {
        self.life.abort();
        let stopping = self
            .workers
            .into_iter()
            .map(|worker| worker.shutdown(Duration::from_secs(1)));
        for stopped in futures_util::future::join_all(stopping).await {
            if let Err(error) = stopped {
                tracing::debug!(%error, "a worker of the demo did not stop in order");
            }
        }
    }
}

struct Shop {
    mail: Queue,
    payments: Queue,
    images: Queue,
    board: Leaderboard,
    stock: Stock,
    riders: Places,
    orders: EventStream<Value>,
    views: Counter,
    visitors: Uniques,
    players: Activity,
    check_ins: CheckIns,
    sessions: Sessions,
    api: Limiter,
    report: Mutex,
    inventory: Mutex,
    exports: Semaphore,
    office: Leader,
    breaker: Breaker,
    products: Cache<str, Box<RawValue>, Json>,
    sent: Bloom,
}

impl Shop {
    async fn open(store: &Store) -> Result<Self> {
        let keep = |name| crate::api::open_queue(store, SHOP, name);
        Ok(Self {
            mail: keep("mail")?,
            payments: keep("payments")?,
            images: keep("images")?,
            board: Leaderboard::new(store, SHOP, "weekly")?,
            stock: Stock::builder(store, SHOP, "sale").build()?,
            riders: Places::new(store, SHOP, "riders")?,
            orders: EventStream::new(store, SHOP, "orders")?,
            views: Counter::new(store, SHOP, "views", Keep::Forever)?,
            visitors: Uniques::new(store, SHOP, "visitors", KEEP)?,
            players: Activity::new(store, SHOP, "buyers", 1 << 20, KEEP)?,
            check_ins: CheckIns::new(store, SHOP, "daily", Keep::Forever)?,
            sessions: Sessions::new(store, SHOP, "web")?,
            api: Limiter::token_bucket(store, SHOP, "api", Quota::per_minute(60).burst(20))
                .build()?,
            report: Mutex::builder(store, SHOP, "nightly-report")
                .label("reporter-2")
                .ttl(Duration::from_secs(20))
                .build()?,
            inventory: Mutex::builder(store, SHOP, "stock-take")
                .label("warehouse-1")
                .ttl(Duration::from_secs(300))
                .build()?,
            exports: Semaphore::builder(store, SHOP, "exports", NonZeroU32::MIN.saturating_add(2))
                .build()?,
            office: Leader::builder(store, SHOP, "scheduler")
                .id("node-1")
                .build()?,
            breaker: Breaker::builder(store, SHOP, "payments").open().await?,
            products: Cache::<str, Box<RawValue>>::builder(store, SHOP, "product")
                .value_type("json")
                .codec(Json)
                .build()?,
            sent: Bloom::builder(store, SHOP, "sent")
                .capacity(10_000)
                .create()
                .await?,
        })
    }

    /// What is there from the beginning.
    async fn furnish(&self) -> Result<()> {
        for (at, person) in PEOPLE.iter().enumerate() {
            self.board
                .submit(person, 300.0 + 170.0 * at as f64, Policy::Best)
                .await?;
            let angle = at as f64 * 0.8;
            self.riders
                .put(
                    person,
                    Position::new(13.4 + 0.04 * angle.cos(), 52.52 + 0.02 * angle.sin())?,
                )
                .await?;
        }
        let _ = self
            .stock
            .prewarm("lamp", 500, Duration::from_secs(86_400))
            .await?;
        let today = self.visitors.today().await?;
        for back in 0..14_i64 {
            let Ok(day) = today.checked_sub(back.days()) else {
                continue;
            };
            let many = 60 + (back * 37 % 50) as u32;
            let ids: Vec<String> = (0..many)
                .map(|n| format!("v{}", n + back as u32 * 20))
                .collect();
            let _ = self.visitors.add("home", day, &ids).await?;
            let members: Vec<u32> = (0..many / 3).collect();
            self.players.mark("home", day, &members).await?;
            if back % 5 != 3 {
                self.check_ins.mark("ann", day).await?;
            }
        }
        for label in ["Firefox on Linux", "Safari on iPhone"] {
            self.sessions
                .login(Login::new("ann").label(label), &json!({"cart": 2}))
                .await?;
        }
        let report = SendMail {
            to: "team@example.com".into(),
            subject: "Nightly report".into(),
            order: 0,
        };
        self.mail
            .cron("nightly-report", "0 3 * * *", &report, MissedTicks::RunOnce)
            .time_zone("Europe/Berlin")
            .await?;
        for width in [320, 640, 1280] {
            let job = Resize {
                image: format!("lamp-{width}.jpg"),
                width,
            };
            self.images
                .enqueue(&job)
                .delay(Duration::from_secs(3600))
                .await?;
        }
        self.mail
            .enqueue_raw("print_label", br#"{"order": 5001, "printer": "dock-4"}"#)
            .await?;
        Ok(())
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        let busy = |low, high| {
            tokio::time::sleep(Duration::from_millis(rand::rng().random_range(low..high)))
        };
        let mail = self
            .mail
            .worker(move |_: SendMail, _: JobContext| async move {
                busy(100, 900).await;
                match rand::rng().random_range(0..40) {
                    0 => Verdict::dead("mailbox of 'ann@example.com' is full"),
                    1 => Verdict::retry("connection to 10.0.0.7:25 timed out after 3000 ms"),
                    _ => Verdict::Done,
                }
            });
        let payments = self
            .payments
            .worker(move |job: Charge, context: JobContext| async move {
                for step in 1..=4_u8 {
                    busy(60, 300).await;
                    let _ = context.progress(f64::from(step) / 4.0).await;
                }
                match job.order % 11 {
                    0 => Verdict::dead(format!(
                        "card was declined with code {} for order {}",
                        50 + job.order % 7,
                        job.order
                    )),
                    _ => Verdict::Done,
                }
            });
        let images = self
            .images
            .worker(move |_: Resize, _: JobContext| async move { busy(300, 1500).await });
        Ok(vec![
            mail.concurrency(3)
                .retry(Backoff::fixed(Duration::from_secs(5)), 4)
                .start()
                .await?,
            payments.concurrency(2).start().await?,
            images.concurrency(2).start().await?,
        ])
    }

    /// One step of the shop's life.
    async fn live(&self, turn: u64) -> Result<()> {
        let (person, cents, few) = {
            let mut random = rand::rng();
            (
                PEOPLE[random.random_range(0..PEOPLE.len())],
                random.random_range(500..20_000),
                random.random_range(1..4),
            )
        };
        // Customers come and go.
        self.views.add("home", i64::from(few)).await?;
        let _ = self
            .visitors
            .add_today("home", [format!("today-{}", turn % 180)])
            .await?;
        for _ in 0..few {
            let _ = self.api.check(person, 3).await?;
        }
        let text = format!(r#"{{"name": "Lamp {}", "cents": {cents}}}"#, turn % 20);
        let key = (turn % 20).to_string();
        self.products
            .get_or_load(&key, move |load| async move {
                load.tag("lamps")?;
                Ok::<_, redstart::Error>(Loaded::from(RawValue::from_string(text).ok()))
            })
            .await?;
        if turn.is_multiple_of(3) {
            self.sell(turn, person, cents).await?;
        }
        if turn.is_multiple_of(7) {
            self.images
                .enqueue(&Resize {
                    image: format!("photo-{turn}.jpg"),
                    width: 640,
                })
                .await?;
            let mut group = self.orders.group("billing", StartAt::Beginning).await?;
            let read = group.read("worker-1", 5, Duration::from_millis(1)).await?;
            let ids: Vec<String> = read.into_iter().skip(1).map(|entry| entry.id).collect();
            if !ids.is_empty() {
                group.ack(&ids).await?;
            }
        }
        self.hold(turn).await?;
        let spot = turn as f64 * 0.05 + person.len() as f64 + cents as f64 * 0.001;
        self.riders
            .put(
                person,
                Position::new(13.4 + 0.05 * spot.cos(), 52.52 + 0.025 * spot.sin())?,
            )
            .await?;
        let today = self.check_ins.today(&TimeZone::UTC).await?;
        self.check_ins.mark(person, today).await?;
        if let redstart::resilience::Admitted::Yes(call) = self.breaker.try_admit().await {
            match turn % 9 {
                0 => call.failed().await,
                _ => call.succeeded().await,
            }
        }
        Ok(())
    }

    /// Somebody buys a lamp.
    async fn sell(&self, turn: u64, person: &'static str, cents: u64) -> Result<()> {
        let order = 5000 + turn;
        let request = Request::new("lamp", person, &order.to_string());
        let _ = self
            .stock
            .reserve(&request, 1, Duration::from_secs(60))
            .await?;
        if turn.is_multiple_of(2) {
            let _ = self.stock.confirm(&request).await?;
        }
        self.orders
            .append(&json!({"order": order, "user": person, "cents": cents}))
            .await?;
        self.payments
            .enqueue(&Charge {
                order,
                cents,
                card: "4111 1111 1111 1111".into(),
            })
            .await?;
        let subject = format!("Your order {order}");
        self.mail
            .enqueue(&SendMail {
                to: format!("{person}@example.com"),
                subject,
                order,
            })
            .await?;
        self.sent.add(format!("{person}:{order}")).await?;
        self.board
            .submit(person, f64::from(cents as u32) / 100.0, Policy::Sum)
            .await?;
        Ok(())
    }

    /// Locks that somebody holds.
    async fn hold(&self, turn: u64) -> Result<()> {
        if turn.is_multiple_of(40) {
            for guard in [
                self.report.try_lock().await?,
                self.inventory.try_lock().await?,
            ]
            .into_iter()
            .flatten()
            {
                // Like a process that works on it: the lease of the report is short, that of the stock-take is long.
                let ticket = guard.into_ticket()?;
                drop(ticket);
            }
            if let Some(leadership) = self.office.try_campaign().await? {
                drop(leadership.into_ticket()?);
            }
            if let Some(permit) = self.exports.try_acquire().await? {
                drop(permit.into_ticket()?);
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Demo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Demo").finish_non_exhaustive()
    }
}
