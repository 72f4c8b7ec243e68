//! Topics and event streams.

use std::time::Duration;

use http::StatusCode;
use redstart::messaging::{EventStream, Heard, StartAt, Topic};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    call::{Call, Seconds},
    problem::Problem,
    reply::{Event, Reply},
    route::{Route, Routes},
};

const FAMILY: &str = "Messages";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Publish {
    /// Any JSON.
    message: Value,
}

#[derive(Serialize, JsonSchema)]
struct Published {
    /// How many listened. On a Cluster, those that the node of the topic knows.
    receivers: u64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Append {
    /// Any JSON.
    event: Value,
}

#[derive(Serialize, JsonSchema)]
struct Appended {
    id: String,
}

#[derive(Serialize, JsonSchema)]
struct Events {
    events: Vec<Entry>,
}

#[derive(Serialize, JsonSchema)]
struct Entry {
    id: String,
    event: Value,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Read {
    consumer: String,
    /// How many at most (default 10).
    max: Option<usize>,
    /// Seconds to wait for an event (default 0).
    wait: Option<Seconds>,
    /// Also take over events that another consumer has not acknowledged for this many seconds.
    claim_after: Option<Seconds>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Ack {
    ids: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
struct Count {
    count: u64,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/topics/{name}:publish", publish)
            .doc(FAMILY, "Publish to the current subscribers")
            .param("name", "prices")
            .body::<Publish>(json!({"message": {"lamp": 1999}}))
            .reply::<Published>(200, "Published"),
    );
    routes.add(
        Route::get("/v1/topics/{name}/events", listen)
            .doc(FAMILY, "Listen: server-sent events `message`, and `gap` where messages may have been missed")
            .param("name", "prices")
            .status(200, "A stream of events"),
    );
    routes.add(
        Route::post("/v1/streams/{name}", append)
            .doc(FAMILY, "Append an event")
            .param("name", "orders")
            .body::<Append>(json!({"event": {"order": 5001, "state": "paid"}}))
            .reply::<Appended>(201, "Its id"),
    );
    routes.add(
        Route::get("/v1/streams/{name}", read)
            .doc(FAMILY, "Read events, independent of groups")
            .param("name", "orders")
            .query("after", "The id before the first one", "")
            .query("count", "How many (default 100, at most 1000)", 100)
            .reply::<Events>(200, "In order"),
    );
    routes.add(
        Route::post("/v1/streams/{name}/groups/{group}:read", group_read)
            .waits()
            .doc(FAMILY, "Read events that no consumer of the group has got")
            .param("name", "orders")
            .param("group", "billing")
            .body::<Read>(json!({"consumer": "worker-7", "max": 10, "wait": 1}))
            .reply::<Events>(200, "Acknowledge them when they are done"),
    );
    routes.add(
        Route::post("/v1/streams/{name}/groups/{group}:ack", group_ack)
            .doc(FAMILY, "Acknowledge events")
            .param("name", "orders")
            .param("group", "billing")
            .body::<Ack>(json!({"ids": ["1763251200000-0"]}))
            .reply::<Count>(200, "How many were pending"),
    );
}

async fn publish(call: Call) -> Result<Reply, Problem> {
    let body: Publish = call.json()?;
    let topic = Topic::<Value>::new(&call.app.store, &call.namespace()?, call.param("name"))?;
    let receivers = topic.publish(&body.message).await?;
    Ok(Reply::ok(&Published { receivers }))
}

async fn listen(call: Call) -> Result<Reply, Problem> {
    let topic = Topic::<Value>::new(&call.app.store, &call.namespace()?, call.param("name"))?;
    let listener = topic.listen().await?;
    let events = futures_util::stream::unfold(listener, |mut listener| async move {
        let event = match listener.next().await? {
            Heard::Message { message, .. } => Event::json("message", &message),
            Heard::Gap => Event::new("gap", "messages may have been missed"),
            Heard::Malformed { .. } => Event::new("malformed", "a message is not JSON"),
        };
        Some((event, listener))
    });
    let first = futures_util::stream::iter([Event::new("listening", "")]);
    call.app
        .stream(futures_util::StreamExt::chain(first, events))
}

fn stream(call: &Call) -> Result<EventStream<Value>, Problem> {
    Ok(EventStream::new(
        &call.app.store,
        &call.namespace()?,
        call.param("name"),
    )?)
}

async fn append(call: Call) -> Result<Reply, Problem> {
    let body: Append = call.json()?;
    let id = stream(&call)?.append(&body.event).await?;
    Ok(Reply::json(StatusCode::CREATED, &Appended { id }))
}

fn shown(entries: Vec<redstart::messaging::StreamEntry<Value>>) -> Events {
    let events = entries.into_iter().map(|entry| Entry {
        id: entry.id,
        event: entry.event,
    });
    Events {
        events: events.collect(),
    }
}

async fn read(call: Call) -> Result<Reply, Problem> {
    let count = call
        .query
        .number::<usize>("count")?
        .unwrap_or(100)
        .clamp(1, 1000);
    let events = stream(&call)?
        .read(call.query.given("after"), count)
        .await?;
    Ok(Reply::ok(&shown(events)))
}

async fn group_read(call: Call) -> Result<Reply, Problem> {
    let body: Read = call.json()?;
    let wait = call.wait(body.wait)?;
    let max = body.max.unwrap_or(10).clamp(1, 1000);
    let mut group = stream(&call)?
        .group(call.param("group"), StartAt::Beginning)
        .await?;
    if let Some(idle) = body.claim_after {
        let claimed = group
            .claim(&body.consumer, max, idle.duration()?, 10)
            .await?;
        if !claimed.is_empty() {
            return Ok(Reply::ok(&shown(claimed)));
        }
    }
    let wait = wait.max(Duration::from_millis(1));
    Ok(Reply::ok(&shown(
        group.read(&body.consumer, max, wait).await?,
    )))
}

async fn group_ack(call: Call) -> Result<Reply, Problem> {
    let body: Ack = call.json()?;
    let group = stream(&call)?
        .group(call.param("group"), StartAt::Beginning)
        .await?;
    let count = group.ack(&body.ids).await?;
    Ok(Reply::ok(&Count { count }))
}
