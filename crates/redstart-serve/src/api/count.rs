//! Counters, unique visitors, check-ins and activity.

use std::time::Duration;

use jiff::{civil::Date, tz::TimeZone};
use redstart::counting::{Activity, CheckIns, Counter, DaySpan, Keep, Recorded, Uniques};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    call::Call,
    problem::{Kind, Problem},
    reply::Reply,
    route::{Route, Routes},
};

const FAMILY: &str = "Counting";
/// How long days are kept.
const KEEP: Keep = Keep::For(Duration::from_secs(400 * 86_400));
/// Members of an activity are small numbers.
const CAPACITY: u32 = 1 << 20;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Add {
    #[serde(default = "one")]
    by: i64,
}

fn one() -> i64 {
    1
}

#[derive(Serialize, JsonSchema)]
struct Value {
    value: i64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AddIds {
    ids: Vec<String>,
    /// A day as 2026-11-15; today, if it is missing.
    date: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct RecordedReply {
    /// new, known or too-late.
    recorded: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct Estimate {
    count: u64,
    /// The true number is within these with a probability of 95 %.
    low: u64,
    high: u64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Mark {
    date: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Marked {
    /// Whether the day was not marked before.
    new: bool,
}

#[derive(Serialize, JsonSchema)]
struct Month {
    /// One entry for each day of the month.
    days: Vec<bool>,
    count: u32,
    current_streak: u32,
    longest_streak: u32,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MarkMembers {
    /// Small numbers, below 1048576.
    members: Vec<u32>,
    date: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Count {
    count: u64,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/counters/{name}/{entity}:add", add)
            .doc(FAMILY, "Add to a counter")
            .param("name", "views")
            .param("entity", "product:42")
            .body::<Add>(json!({"by": 1}))
            .reply::<Value>(200, "The value now"),
    );
    routes.add(
        Route::get("/v1/counters/{name}/{entity}", get)
            .doc(FAMILY, "Read a counter")
            .param("name", "views")
            .param("entity", "product:42")
            .reply::<Value>(200, "The value"),
    );
    routes.add(
        Route::post("/v1/uniques/{name}/{entity}:add", add_unique)
            .doc(FAMILY, "Count visitors, each once a day")
            .param("name", "visitors")
            .param("entity", "home")
            .body::<AddIds>(json!({"ids": ["ann", "bob"]}))
            .reply::<RecordedReply>(200, "Whether one of them was new today"),
    );
    routes.add(
        Route::get("/v1/uniques/{name}/{entity}", count_unique)
            .doc(FAMILY, "How many different visitors there were")
            .param("name", "visitors")
            .param("entity", "home")
            .query("from", "The first day (default today)", "2026-11-01")
            .query("to", "The last day (default the first)", "2026-11-30")
            .reply::<Estimate>(200, "An estimate, off by 0.81 %"),
    );
    routes.add(
        Route::post("/v1/check-ins/{name}/{user}:mark", mark)
            .doc(FAMILY, "Check a user in")
            .param("name", "daily")
            .param("user", "ann")
            .body::<Mark>(json!({"date": "2026-11-15"}))
            .reply::<Marked>(200, "Whether the day is new"),
    );
    routes.add(
        Route::get("/v1/check-ins/{name}/{user}", month)
            .doc(FAMILY, "A month of check-ins, and the streaks")
            .param("name", "daily")
            .param("user", "ann")
            .query("date", "A day of the month (default today)", "2026-11-15")
            .reply::<Month>(200, "The month"),
    );
    routes.add(
        Route::post("/v1/activity/{name}/{entity}:mark", mark_active)
            .doc(FAMILY, "Mark members as active")
            .param("name", "players")
            .param("entity", "game")
            .body::<MarkMembers>(json!({"members": [7, 8], "date": "2026-11-15"}))
            .reply::<Count>(200, "How many were not marked that day"),
    );
    routes.add(
        Route::get("/v1/activity/{name}/{entity}", active)
            .doc(FAMILY, "How many members were active")
            .param("name", "players")
            .param("entity", "game")
            .query("from", "The first day (default today)", "2026-11-01")
            .query("to", "The last day (default the first)", "2026-11-30")
            .reply::<Count>(200, "Each counts once"),
    );
}

fn parse_date(text: &str) -> Result<Date, Problem> {
    text.parse()
        .map_err(|_| Problem::invalid("a date must be like 2026-11-15"))
}

fn span(call: &Call, today: Date) -> Result<(Date, Date), Problem> {
    let from = match call.query.given("from") {
        Some(text) => parse_date(text)?,
        None => today,
    };
    let to = match call.query.given("to") {
        Some(text) => parse_date(text)?,
        None => from,
    };
    if to < from || (to - from).get_days() > 400 {
        return Err(Problem::invalid("a span must be from 1 to 400 days"));
    }
    Ok((from, to))
}

fn counter(call: &Call) -> Result<Counter, Problem> {
    let namespace = call.namespace()?;
    Ok(Counter::new(
        &call.app.store,
        &namespace,
        call.param("name"),
        Keep::Forever,
    )?)
}

async fn add(call: Call) -> Result<Reply, Problem> {
    let body: Add = call.json()?;
    let counter = counter(&call)?;
    let value = counter.add(call.param("entity"), body.by).await;
    match value {
        Ok(value) => Ok(Reply::ok(&Value { value })),
        // The server's own words for a sum beyond 64 bits.
        Err(error) if error.server_code() == Some("ERR") => {
            Err(Problem::new(Kind::Conflict).detail("the counter would leave its range"))
        }
        Err(error) => Err(error.into()),
    }
}

async fn get(call: Call) -> Result<Reply, Problem> {
    let value = counter(&call)?.get(call.param("entity")).await?;
    Ok(Reply::ok(&Value { value }))
}

fn uniques(call: &Call) -> Result<Uniques, Problem> {
    let namespace = call.namespace()?;
    Ok(Uniques::new(
        &call.app.store,
        &namespace,
        call.param("name"),
        KEEP,
    )?)
}

async fn add_unique(call: Call) -> Result<Reply, Problem> {
    let body: AddIds = call.json()?;
    let uniques = uniques(&call)?;
    let entity = call.param("entity");
    let recorded = match &body.date {
        Some(date) => uniques.add(entity, parse_date(date)?, &body.ids).await?,
        None => uniques.add_today(entity, &body.ids).await?,
    };
    let recorded = match recorded {
        Recorded::New => "new",
        Recorded::Known => "known",
        Recorded::TooLate => "too-late",
    };
    Ok(Reply::ok(&RecordedReply { recorded }))
}

async fn count_unique(call: Call) -> Result<Reply, Problem> {
    let uniques = uniques(&call)?;
    let (from, to) = span(&call, uniques.today().await?)?;
    let estimate = uniques
        .count(call.param("entity"), &DaySpan::Range(from..=to))
        .await?;
    let (low, high) = estimate.bounds();
    Ok(Reply::ok(&Estimate {
        count: estimate.count,
        low,
        high,
    }))
}

fn check_ins(call: &Call) -> Result<CheckIns, Problem> {
    let namespace = call.namespace()?;
    Ok(CheckIns::new(
        &call.app.store,
        &namespace,
        call.param("name"),
        Keep::Forever,
    )?)
}

async fn mark(call: Call) -> Result<Reply, Problem> {
    let body: Mark = call.json()?;
    let check_ins = check_ins(&call)?;
    let new = match &body.date {
        Some(date) => {
            check_ins
                .mark(call.param("user"), parse_date(date)?)
                .await?
        }
        None => {
            check_ins
                .mark_today(call.param("user"), &TimeZone::UTC)
                .await?
        }
    };
    Ok(Reply::ok(&Marked { new }))
}

async fn month(call: Call) -> Result<Reply, Problem> {
    let check_ins = check_ins(&call)?;
    let date = match call.query.given("date") {
        Some(text) => parse_date(text)?,
        None => check_ins.today(&TimeZone::UTC).await?,
    };
    let month = check_ins.month(call.param("user"), date).await?;
    let streaks = check_ins.streaks(call.param("user"), date).await?;
    Ok(Reply::ok(&Month {
        days: month.days().to_vec(),
        count: month.count(),
        current_streak: streaks.current,
        longest_streak: streaks.longest,
    }))
}

fn activity(call: &Call) -> Result<Activity, Problem> {
    let namespace = call.namespace()?;
    Ok(Activity::new(
        &call.app.store,
        &namespace,
        call.param("name"),
        CAPACITY,
        KEEP,
    )?)
}

async fn mark_active(call: Call) -> Result<Reply, Problem> {
    let body: MarkMembers = call.json()?;
    let activity = activity(&call)?;
    let count = match &body.date {
        Some(date) => {
            activity
                .mark(call.param("entity"), parse_date(date)?, &body.members)
                .await?
        }
        None => {
            activity
                .mark_today(call.param("entity"), &body.members)
                .await?
        }
    };
    Ok(Reply::ok(&Count { count }))
}

async fn active(call: Call) -> Result<Reply, Problem> {
    let activity = activity(&call)?;
    let (from, to) = span(&call, activity.today().await?)?;
    let count = activity.over(call.param("entity"), from..=to).await?;
    Ok(Reply::ok(&Count { count }))
}
