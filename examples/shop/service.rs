//! The service: its routes, and one purchase from the session to the leaderboard.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use redstart::{
    Down, Store,
    commerce::{Request, ReservationState, Reserve, Stock},
    limiting::{Limiter, Quota},
    messaging::{Job, JobContext, Queue, UniqueUntil, Verdict, Worker},
    ranking::{Leaderboard, Policy},
    resilience::{Admitted, Breaker, Idempotency},
    sessions::Sessions,
};
use redstart_tower::{
    CookieLayer, CookieSession, IdempotencyKey, IdempotencyLayer, LimitLayer, LoggedIn, LoginLayer,
    Problem, Subject,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How long units are held for a payment.
pub(crate) const HOLD: Duration = Duration::from_secs(600);
/// How long the circuit to the bank stays open.
pub(crate) const BANK_PAUSE: Duration = Duration::from_secs(30);

/// The bank: a service of somebody else. It is idempotent by the order's number, as payment providers are.
#[derive(Default)]
pub(crate) struct Bank {
    mood: AtomicU8,
    charged: Mutex<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Pays = 0,
    Declines = 1,
    /// It charges, and the answer is lost.
    LosesAnswers = 2,
}

#[derive(Debug)]
enum Payment {
    Declined,
    /// Nobody knows whether the customer was charged.
    NoAnswer,
}

impl Bank {
    pub(crate) fn set(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::SeqCst);
    }

    /// The orders that were charged.
    pub(crate) fn charged(&self) -> Vec<String> {
        self.charged.lock().expect("no charge panics").clone()
    }

    async fn charge(&self, order: &str) -> Result<(), Payment> {
        tokio::task::yield_now().await;
        let mood = self.mood.load(Ordering::SeqCst);
        if mood == Mood::Declines as u8 {
            return Err(Payment::Declined);
        }
        let mut charged = self.charged.lock().expect("no charge panics");
        if !charged.iter().any(|known| known == order) {
            charged.push(order.to_owned());
        }
        match mood == Mood::LosesAnswers as u8 {
            true => Err(Payment::NoAnswer),
            false => Ok(()),
        }
    }
}

/// What is left to do after a purchase, in the background.
#[derive(Serialize, Deserialize)]
struct Bought {
    order: String,
    user: String,
}

impl Job for Bought {
    const NAME: &'static str = "bought";
}

pub(crate) struct Shop {
    pub(crate) bank: Bank,
    pub(crate) stock: Stock,
    pub(crate) board: Leaderboard,
    pub(crate) orders: sqlx::SqlitePool,
    queue: Queue,
    breaker: Breaker,
}

impl Shop {
    pub(crate) async fn open(store: &Store, namespace: &str) -> Result<Arc<Self>> {
        // In memory each connection would be a database of its own.
        let options = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
        let orders = options.connect("sqlite::memory:").await?;
        sqlx::query(
            "CREATE TABLE orders (id TEXT PRIMARY KEY, user TEXT NOT NULL, sku TEXT NOT NULL)",
        )
        .execute(&orders)
        .await?;
        Ok(Arc::new(Self {
            bank: Bank::default(),
            stock: Stock::builder(store, namespace, "products").build()?,
            board: Leaderboard::new(store, namespace, "buyers")?,
            queue: Queue::new(store, namespace, "bought")?,
            breaker: Breaker::builder(store, namespace, "bank")
                .min_calls(3)
                .open_for(BANK_PAUSE)
                .open()
                .await?,
            orders,
        }))
    }

    /// The routes. A layer that is added later sees the request earlier: session, login, limit, idempotency key.
    pub(crate) fn routes(self: &Arc<Self>, store: &Store, namespace: &str) -> Result<Router> {
        let sessions = Sessions::new(store, namespace, "web")?;
        let limiter = Limiter::token_bucket(store, namespace, "buy", Quota::per_minute(5))
            .on_store_down(Down::Refuse)
            .build()?;
        let keys = Idempotency::new(store, namespace, "buy")?;
        let buying = Router::new()
            .route("/buy/{sku}", post(buy))
            .layer(
                IdempotencyLayer::builder(keys, Subject::user())
                    .required()
                    .build(),
            )
            .layer(LimitLayer::new(limiter, Subject::user()))
            .layer(LoginLayer::new());
        Ok(Router::new()
            .merge(buying)
            .route("/login", post(login))
            .route("/buyers", get(buyers))
            .layer(CookieLayer::new(sessions))
            .with_state(self.clone()))
    }

    /// Starts the worker that mails receipts and counts purchases. A job may run twice; each of its effects happens once.
    pub(crate) async fn worker(self: &Arc<Self>) -> Result<Worker> {
        let shop = self.clone();
        let handle = move |job: Bought, cx: JobContext| {
            let shop = shop.clone();
            async move {
                cx.once("board", async {
                    shop.board.submit(&job.user, 1.0, Policy::Sum).await?;
                    anyhow::Ok(())
                })
                .await?;
                cx.once("mail", async {
                    println!("  mail to {}: receipt for order {}", job.user, job.order);
                    anyhow::Ok(())
                })
                .await?;
                anyhow::Ok(Verdict::Done)
            }
        };
        Ok(self.queue.worker(handle).start().await?)
    }

    /// How many purchases wait for the worker.
    pub(crate) async fn unfinished(&self) -> Result<u64> {
        Ok(self.queue.inspect().counts().await?.unfinished())
    }
}

async fn login(session: CookieSession, user: String) -> Result<StatusCode, Problem> {
    // … after the password was checked …
    session.login(&user, &json!({})).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn buyers(State(shop): State<Arc<Shop>>) -> Result<Json<Vec<Value>>, Problem> {
    let top = shop.board.top(3).await?;
    let row = |entry: redstart::ranking::BoardEntry| json!({ "user": entry.member, "bought": entry.score });
    Ok(Json(top.into_iter().map(row).collect()))
}

/// One purchase. It runs in a task of its own, so a customer who closes the page does not stop it half-way.
async fn buy(
    State(shop): State<Arc<Shop>>,
    ann: LoggedIn<Value>,
    key: IdempotencyKey,
    Path(sku): Path<String>,
) -> Result<Response, Problem> {
    // Before the hold: while the bank is known to be down there is nothing to hold units for. 503 frees the key.
    let admission = match shop.breaker.try_admit().await {
        Admitted::Yes(admission) => admission,
        Admitted::No { retry_after } => return Err(busy().with_retry_after(retry_after)),
    };
    // The key names the order everywhere: in the hold, at the bank, in the database and in the queue.
    let order = key.as_str();
    let request = Request::new(&sku, &ann.user, order);
    match shop.stock.reserve(&request, 1, HOLD).await? {
        Reserve::Held { .. } | Reserve::Replayed(ReservationState::Held { .. }) => {}
        Reserve::SoldOut { .. } => return Ok((StatusCode::CONFLICT, "sold out").into_response()),
        other => return Ok((StatusCode::CONFLICT, format!("{other:?}")).into_response()),
    }
    match shop.bank.charge(order).await {
        Ok(()) => admission.succeeded().await,
        // Certainly not paid: the units go back at once. This answer is kept, and a repeat gets it again. The bank works.
        Err(Payment::Declined) => {
            admission.succeeded().await;
            let _ = shop.stock.cancel(&request).await?;
            return Ok((StatusCode::PAYMENT_REQUIRED, "declined").into_response());
        }
        // Nobody knows. The hold stays, so that the units are there if it turns out to be paid; it ends after ten
        // minutes. 503 frees the key, and the repeat asks the bank again, which charges an order once.
        Err(Payment::NoAnswer) => {
            admission.failed().await;
            return Err(busy());
        }
    }
    // The database has the truth, so it comes first. What follows can be repeated.
    let saved = sqlx::query("INSERT INTO orders VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
        .bind(order)
        .bind(&ann.user)
        .bind(&sku)
        .execute(&shop.orders)
        .await;
    if saved.is_err() {
        return Err(busy());
    }
    let _ = shop.stock.confirm(&request).await?;
    let bought = Bought {
        order: order.to_owned(),
        user: ann.user,
    };
    let enqueue = shop.queue.enqueue(&bought).unique(order, UniqueUntil::Done);
    enqueue.await?;
    Ok((StatusCode::CREATED, format!("order {order}")).into_response())
}

fn busy() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "urn:example:bank-unavailable",
        "The bank does not answer",
    )
    .with_detail("repeat the request with the same Idempotency-Key")
    .with_retry_after(Duration::from_secs(1))
}
