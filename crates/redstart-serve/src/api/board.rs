//! Leaderboards.

use redstart::ranking::{BoardEntry, Leaderboard, Order, Policy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    call::Call,
    problem::Problem,
    reply::Reply,
    route::{Route, Routes},
};

const FAMILY: &str = "Leaderboards";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Submit {
    score: f64,
    /// What becomes of the score that the member has (default best).
    #[serde(default)]
    policy: PolicyName,
}

#[derive(Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum PolicyName {
    #[default]
    Best,
    Last,
    Sum,
}

#[derive(Serialize, JsonSchema)]
struct Placed {
    score: f64,
    /// From 1.
    rank: u64,
    previous: Option<f64>,
}

#[derive(Serialize, JsonSchema)]
struct Board {
    entries: Vec<Entry>,
    /// How many members there are.
    len: u64,
}

#[derive(Serialize, JsonSchema)]
struct Entry {
    member: String,
    rank: u64,
    score: f64,
}

#[derive(Serialize, JsonSchema)]
struct Around {
    entries: Vec<Entry>,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    done: bool,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/boards/{name}/members/{member}:submit", submit)
            .doc(FAMILY, "Submit a score")
            .param("name", "weekly")
            .param("member", "ann")
            .query("order", "highest or lowest first", "highest")
            .body::<Submit>(json!({"score": 1200, "policy": "best"}))
            .reply::<Placed>(200, "The member's score and rank now"),
    );
    routes.add(
        Route::get("/v1/boards/{name}", top)
            .doc(FAMILY, "The best members")
            .param("name", "weekly")
            .query("count", "How many (default 10, at most 100)", 10)
            .query("from", "The rank before the first one", 0)
            .reply::<Board>(200, "In order"),
    );
    routes.add(
        Route::get("/v1/boards/{name}/members/{member}", around)
            .doc(FAMILY, "A member and its neighbours")
            .param("name", "weekly")
            .param("member", "ann")
            .query("around", "How many on each side (default 0)", 2)
            .reply::<Around>(200, "In order")
            .status(404, "It is not on the board"),
    );
    routes.add(
        Route::delete("/v1/boards/{name}/members/{member}", remove)
            .doc(FAMILY, "Take a member off the board")
            .param("name", "weekly")
            .param("member", "ann")
            .reply::<Done>(200, "Whether it was on the board"),
    );
}

fn board(call: &Call) -> Result<Leaderboard, Problem> {
    let order = match call.query.given("order").unwrap_or("highest") {
        "highest" => Order::HighestFirst,
        "lowest" => Order::LowestFirst,
        _ => return Err(Problem::invalid("order must be highest or lowest")),
    };
    let builder = Leaderboard::builder(&call.app.store, &call.namespace()?, call.param("name"));
    Ok(builder.order(order).build()?)
}

fn entries(entries: Vec<BoardEntry>) -> Vec<Entry> {
    let shown = entries.into_iter().map(|entry| Entry {
        member: entry.member,
        rank: entry.rank,
        score: entry.score,
    });
    shown.collect()
}

async fn submit(call: Call) -> Result<Reply, Problem> {
    let body: Submit = call.json()?;
    let policy = match body.policy {
        PolicyName::Best => Policy::Best,
        PolicyName::Last => Policy::Last,
        PolicyName::Sum => Policy::Sum,
    };
    let placed = board(&call)?
        .submit(call.param("member"), body.score, policy)
        .await?;
    Ok(Reply::ok(&Placed {
        score: placed.score,
        rank: placed.rank,
        previous: placed.previous,
    }))
}

async fn top(call: Call) -> Result<Reply, Problem> {
    let count = call
        .query
        .number::<u32>("count")?
        .unwrap_or(10)
        .clamp(1, 100);
    let from = call.query.number::<u64>("from")?.unwrap_or(0);
    let board = board(&call)?;
    Ok(Reply::ok(&Board {
        entries: entries(board.slice(from.min(1 << 40), count).await?),
        len: board.len().await?,
    }))
}

async fn around(call: Call) -> Result<Reply, Problem> {
    let count = call.query.number::<u32>("around")?.unwrap_or(0).min(50);
    let found = board(&call)?.around(call.param("member"), count).await?;
    if found.is_empty() {
        return Err(Problem::not_found("member"));
    }
    Ok(Reply::ok(&Around {
        entries: entries(found),
    }))
}

async fn remove(call: Call) -> Result<Reply, Problem> {
    let done = board(&call)?.remove(call.param("member")).await?;
    Ok(Reply::ok(&Done { done }))
}
