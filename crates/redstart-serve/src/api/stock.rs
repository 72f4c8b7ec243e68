//! Stock for sales: holds that end, and never more sold than there is.

use redstart::commerce::{
    Extension, Prewarm, Request, ReservationState, Reserve, Restock, Stock, Transition,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    call::{Call, Seconds},
    problem::{Kind, Problem},
    reply::Reply,
    route::{Route, Routes},
};

const FAMILY: &str = "Stock";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Open {
    units: u64,
    /// Seconds that the sale lasts.
    sale: Seconds,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Hold {
    user: String,
    /// The order's id. The same order is held once, however often it is asked for.
    order: String,
    #[serde(default = "one")]
    units: u64,
    /// Seconds until the hold ends (default 900).
    hold: Option<Seconds>,
}

fn one() -> u64 {
    1
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Order {
    user: String,
    order: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct More {
    units: u64,
    /// The delivery's id: the same one counts once.
    delivery: String,
}

#[derive(Serialize, JsonSchema)]
struct State {
    /// held, sold, cancelled, expired, returned, open or running.
    state: &'static str,
    /// Seconds that a hold still lasts.
    left: Option<Seconds>,
}

#[derive(Serialize, JsonSchema)]
struct Report {
    free: u64,
    held: u64,
    sold: u64,
    total: u64,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/stock/{name}/{item}:open", open)
            .doc(FAMILY, "Put units on sale")
            .param("name", "sale")
            .param("item", "lamp")
            .body::<Open>(json!({"units": 100, "sale": 86400}))
            .reply::<State>(200, "open, or running if the sale runs already"),
    );
    routes.add(
        Route::post("/v1/stock/{name}/{item}:hold", hold)
            .doc(FAMILY, "Hold units for an order")
            .param("name", "sale")
            .param("item", "lamp")
            .body::<Hold>(json!({"user": "ann", "order": "5001", "units": 2, "hold": 900}))
            .reply::<State>(200, "Held, or what became of this order before")
            .status(409, "Sold out, closed, or above the user's share: `reason`"),
    );
    routes.add(
        Route::post("/v1/stock/{name}/{item}:extend", extend)
            .doc(FAMILY, "Extend a hold")
            .param("name", "sale")
            .param("item", "lamp")
            .body::<Hold>(json!({"user": "ann", "order": "5001", "hold": 1800}))
            .reply::<State>(200, "Held")
            .status(409, "It is not held"),
    );
    routes.add(
        Route::post("/v1/stock/{name}/{item}:confirm", confirm)
            .doc(FAMILY, "Sell what is held")
            .param("name", "sale")
            .param("item", "lamp")
            .body::<Order>(json!({"user": "ann", "order": "5001"}))
            .reply::<State>(200, "Sold")
            .status(409, "It is not held"),
    );
    routes.add(
        Route::post("/v1/stock/{name}/{item}:return", give_back)
            .doc(FAMILY, "Take back what was sold")
            .param("name", "sale")
            .param("item", "lamp")
            .body::<Order>(json!({"user": "ann", "order": "5001"}))
            .reply::<State>(200, "Returned")
            .status(409, "It was not sold"),
    );
    routes.add(
        Route::post("/v1/stock/{name}/{item}:cancel", cancel)
            .doc(FAMILY, "Give up a hold")
            .param("name", "sale")
            .param("item", "lamp")
            .body::<Order>(json!({"user": "bob", "order": "5002"}))
            .reply::<State>(200, "Cancelled")
            .status(409, "It is not held"),
    );
    routes.add(
        Route::post("/v1/stock/{name}/{item}:restock", restock)
            .doc(FAMILY, "Add units")
            .param("name", "sale")
            .param("item", "lamp")
            .body::<More>(json!({"units": 50, "delivery": "d-17"}))
            .reply::<State>(200, "open")
            .status(409, "The item is not on sale"),
    );
    routes.add(
        Route::get("/v1/stock/{name}/{item}", report)
            .doc(FAMILY, "How much is free, held and sold")
            .param("name", "sale")
            .param("item", "lamp")
            .reply::<Report>(200, "The three make up the total")
            .status(404, "The item is not on sale"),
    );
}

fn stock(call: &Call) -> Result<Stock, Problem> {
    let namespace = call.namespace()?;
    Ok(Stock::builder(&call.app.store, &namespace, call.param("name")).build()?)
}

fn shown(state: ReservationState) -> State {
    let (state, left) = match state {
        ReservationState::Held { left } => ("held", Some(left.into())),
        ReservationState::Sold => ("sold", None),
        ReservationState::Cancelled => ("cancelled", None),
        ReservationState::Expired => ("expired", None),
        ReservationState::Returned => ("returned", None),
    };
    State { state, left }
}

fn plain(state: &'static str) -> Reply {
    Reply::ok(&State { state, left: None })
}

fn refused(reason: &'static str) -> Problem {
    Problem::new(Kind::Conflict).with("reason", reason)
}

async fn open(call: Call) -> Result<Reply, Problem> {
    let body: Open = call.json()?;
    let sale = body.sale.duration()?;
    match stock(&call)?
        .prewarm(call.param("item"), body.units, sale)
        .await?
    {
        Prewarm::Warmed => Ok(plain("open")),
        Prewarm::Running => Ok(plain("running")),
    }
}

async fn hold(call: Call) -> Result<Reply, Problem> {
    let body: Hold = call.json()?;
    let request = Request::new(call.param("item"), &body.user, &body.order);
    let time = Seconds::or(body.hold, std::time::Duration::from_secs(900))?;
    match stock(&call)?.reserve(&request, body.units, time).await? {
        Reserve::Held { left } => Ok(Reply::ok(&shown(ReservationState::Held { left }))),
        Reserve::Replayed(state) => Ok(Reply::ok(&shown(state))),
        Reserve::SoldOut { free } => Err(refused("sold-out").with("free", free)),
        Reserve::UserCap { left } => Err(refused("user-cap").with("left", left)),
        Reserve::Closed => Err(refused("closed")),
        Reserve::NotWarmed => Err(refused("not-on-sale")),
        Reserve::Conflict => Err(refused("another-order-with-this-id")),
    }
}

async fn extend(call: Call) -> Result<Reply, Problem> {
    let body: Hold = call.json()?;
    let request = Request::new(call.param("item"), &body.user, &body.order);
    let time = Seconds::or(body.hold, std::time::Duration::from_secs(900))?;
    match stock(&call)?.extend(&request, time).await? {
        Extension::Held { left } => Ok(Reply::ok(&shown(ReservationState::Held { left }))),
        Extension::Refused(state) => Err(refused(shown(state).state)),
        Extension::Unknown => Err(refused("no-such-order")),
    }
}

fn moved(transition: Transition, state: &'static str) -> Result<Reply, Problem> {
    match transition {
        Transition::Done | Transition::Repeated => Ok(plain(state)),
        Transition::Refused(state) => Err(refused(shown(state).state)),
        Transition::Unknown => Err(refused("no-such-order")),
    }
}

fn order(call: &Call) -> Result<Request, Problem> {
    let body: Order = call.json()?;
    Ok(Request::new(call.param("item"), &body.user, &body.order))
}

async fn confirm(call: Call) -> Result<Reply, Problem> {
    moved(stock(&call)?.confirm(&order(&call)?).await?, "sold")
}

async fn cancel(call: Call) -> Result<Reply, Problem> {
    moved(stock(&call)?.cancel(&order(&call)?).await?, "cancelled")
}

async fn give_back(call: Call) -> Result<Reply, Problem> {
    moved(stock(&call)?.take_back(&order(&call)?).await?, "returned")
}

async fn restock(call: Call) -> Result<Reply, Problem> {
    let body: More = call.json()?;
    let stock = stock(&call)?;
    match stock
        .restock(call.param("item"), body.units, &body.delivery)
        .await?
    {
        Restock::Added | Restock::Repeated => Ok(plain("open")),
        Restock::NotWarmed => Err(refused("not-on-sale")),
    }
}

async fn report(call: Call) -> Result<Reply, Problem> {
    let report = stock(&call)?.report(call.param("item")).await?;
    let report = report.ok_or_else(|| Problem::not_found("item on sale"))?;
    Ok(Reply::ok(&Report {
        free: report.free,
        held: report.held,
        sold: report.sold,
        total: report.total(),
    }))
}
