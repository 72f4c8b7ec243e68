//! Places: who is near.

use redstart::location::{Area, Origin, Places, Position};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    call::Call,
    problem::Problem,
    reply::Reply,
    route::{Route, Routes},
};

const FAMILY: &str = "Places";

#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Point {
    longitude: f64,
    latitude: f64,
}

#[derive(Serialize, JsonSchema)]
struct PutReply {
    new: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nearby {
    /// Around this member, or around a point.
    member: Option<String>,
    point: Option<Point>,
    /// In metres.
    radius: f64,
    /// How many at most (default 10, at most 100).
    count: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct Found {
    places: Vec<Place>,
}

#[derive(Serialize, JsonSchema)]
struct Place {
    member: String,
    /// In metres.
    distance: f64,
    position: Point,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    done: bool,
}

pub(super) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::put("/v1/places/{name}/{member}", put)
            .doc(FAMILY, "Say where a member is")
            .param("name", "riders")
            .param("member", "ann")
            .body::<Point>(json!({"longitude": 13.4, "latitude": 52.52}))
            .reply::<PutReply>(200, "Whether the member is new"),
    );
    routes.add(
        Route::get("/v1/places/{name}/{member}", get)
            .doc(FAMILY, "Where a member is")
            .param("name", "riders")
            .param("member", "ann")
            .reply::<Point>(200, "Its position")
            .status(404, "It is not there"),
    );
    routes.add(
        Route::post("/v1/places/{name}:nearby", nearby)
            .reads()
            .doc(FAMILY, "Who is near, nearest first")
            .param("name", "riders")
            .body::<Nearby>(json!({"point": {"longitude": 13.41, "latitude": 52.52}, "radius": 5000, "count": 10}))
            .reply::<Found>(200, "The members"),
    );
    routes.add(
        Route::delete("/v1/places/{name}/{member}", remove)
            .doc(FAMILY, "Remove a member")
            .param("name", "riders")
            .param("member", "ann")
            .reply::<Done>(200, "Whether it was there"),
    );
}

fn places(call: &Call) -> Result<Places, Problem> {
    Ok(Places::new(
        &call.app.store,
        &call.namespace()?,
        call.param("name"),
    )?)
}

fn point(position: Position) -> Point {
    Point {
        longitude: position.longitude(),
        latitude: position.latitude(),
    }
}

async fn put(call: Call) -> Result<Reply, Problem> {
    let body: Point = call.json()?;
    let position = Position::new(body.longitude, body.latitude)?;
    let new = places(&call)?.put(call.param("member"), position).await?;
    Ok(Reply::ok(&PutReply { new }))
}

async fn get(call: Call) -> Result<Reply, Problem> {
    let position = places(&call)?.position(call.param("member")).await?;
    let position = position.ok_or_else(|| Problem::not_found("member"))?;
    Ok(Reply::ok(&point(position)))
}

async fn nearby(call: Call) -> Result<Reply, Problem> {
    let body: Nearby = call.json()?;
    let origin = match (body.member, body.point) {
        (Some(member), None) => Origin::Member(member),
        (None, Some(point)) => Origin::Point(Position::new(point.longitude, point.latitude)?),
        _ => return Err(Problem::invalid("give a member or a point")),
    };
    let count = body.count.unwrap_or(10).clamp(1, 100);
    let places = places(&call)?;
    let search = places
        .nearby(origin, Area::Radius(body.radius))
        .limit(count);
    let found = search.find().await?.into_iter().map(|near| Place {
        member: near.member,
        distance: near.distance,
        position: point(near.position),
    });
    Ok(Reply::ok(&Found {
        places: found.collect(),
    }))
}

async fn remove(call: Call) -> Result<Reply, Problem> {
    let done = places(&call)?.remove(call.param("member")).await?;
    Ok(Reply::ok(&Done { done }))
}
