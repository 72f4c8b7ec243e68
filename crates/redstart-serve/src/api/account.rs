//! The follow graph: who follows whom.

use redstart::social::{EdgeCursor, EdgePage, Followed, Graph};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    call::Call,
    problem::{Kind, Problem},
    reply::Reply,
    route::{Route, Routes},
};

const FAMILY: &str = "Follow graph";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Other {
    account: String,
}

#[derive(Serialize, JsonSchema)]
struct Changed {
    /// Whether it was not so before.
    changed: bool,
}

#[derive(Serialize, JsonSchema)]
struct Counts {
    followers: u64,
    following: u64,
}

#[derive(Serialize, JsonSchema)]
struct Page {
    accounts: Vec<String>,
    /// For the next page.
    next: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Suggestions {
    suggestions: Vec<Suggestion>,
}

#[derive(Serialize, JsonSchema)]
struct Suggestion {
    account: String,
    /// Who among those that the account follows follows it.
    common: Vec<String>,
}

pub(super) fn add_routes(routes: &mut Routes) {
    let other = || json!({"account": "bob"});
    routes.add(
        Route::post("/v1/graphs/{name}/{account}:follow", follow)
            .doc(FAMILY, "Follow an account")
            .param("name", "people")
            .param("account", "ann")
            .body::<Other>(other())
            .reply::<Changed>(200, "Follows")
            .status(409, "Blocked"),
    );
    routes.add(
        Route::get("/v1/graphs/{name}/{account}", counts)
            .doc(
                FAMILY,
                "How many follow an account, and how many it follows",
            )
            .param("name", "people")
            .param("account", "ann")
            .reply::<Counts>(200, "The counts"),
    );
    routes.add(
        Route::get("/v1/graphs/{name}/{account}/{list}", page)
            .doc(
                FAMILY,
                "Followers, following, mutuals or blocked, newest first",
            )
            .param("name", "people")
            .param("account", "ann")
            .param("list", "following")
            .query("count", "How many (default 50, at most 100)", 50)
            .query("cursor", "From the page before", "")
            .reply::<Page>(200, "A page"),
    );
    routes.add(
        Route::get("/v1/graphs/{name}/{account}/lists/suggestions", suggestions)
            .doc(FAMILY, "Whom to follow")
            .param("name", "people")
            .param("account", "ann")
            .reply::<Suggestions>(200, "Up to 10"),
    );
    routes.add(
        Route::post("/v1/graphs/{name}/{account}:unfollow", unfollow)
            .doc(FAMILY, "Stop following")
            .param("name", "people")
            .param("account", "ann")
            .body::<Other>(other())
            .reply::<Changed>(200, "Does not follow"),
    );
    routes.add(
        Route::post("/v1/graphs/{name}/{account}:block", block)
            .doc(
                FAMILY,
                "Block an account; neither follows the other any more",
            )
            .param("name", "people")
            .param("account", "ann")
            .body::<Other>(other())
            .reply::<Changed>(200, "Blocks"),
    );
    routes.add(
        Route::post("/v1/graphs/{name}/{account}:unblock", unblock)
            .doc(FAMILY, "Stop blocking")
            .param("name", "people")
            .param("account", "ann")
            .body::<Other>(other())
            .reply::<Changed>(200, "Does not block"),
    );
}

fn graph(call: &Call) -> Result<Graph, Problem> {
    Ok(Graph::new(
        &call.app.store,
        &call.namespace()?,
        call.param("name"),
    )?)
}

async fn follow(call: Call) -> Result<Reply, Problem> {
    let body: Other = call.json()?;
    match graph(&call)?
        .follow(call.param("account"), &body.account)
        .await?
    {
        Followed::New => Ok(Reply::ok(&Changed { changed: true })),
        Followed::Already => Ok(Reply::ok(&Changed { changed: false })),
        Followed::Blocked => {
            Err(Problem::new(Kind::Conflict).detail("one of the two blocks the other"))
        }
    }
}

async fn unfollow(call: Call) -> Result<Reply, Problem> {
    let body: Other = call.json()?;
    let changed = graph(&call)?
        .unfollow(call.param("account"), &body.account)
        .await?;
    Ok(Reply::ok(&Changed { changed }))
}

async fn block(call: Call) -> Result<Reply, Problem> {
    let body: Other = call.json()?;
    let changed = graph(&call)?
        .block(call.param("account"), &body.account)
        .await?;
    Ok(Reply::ok(&Changed { changed }))
}

async fn unblock(call: Call) -> Result<Reply, Problem> {
    let body: Other = call.json()?;
    let changed = graph(&call)?
        .unblock(call.param("account"), &body.account)
        .await?;
    Ok(Reply::ok(&Changed { changed }))
}

async fn counts(call: Call) -> Result<Reply, Problem> {
    let counts = graph(&call)?.counts(call.param("account")).await?;
    Ok(Reply::ok(&Counts {
        followers: counts.followers,
        following: counts.following,
    }))
}

async fn page(call: Call) -> Result<Reply, Problem> {
    let count = call
        .query
        .number::<u32>("count")?
        .unwrap_or(50)
        .clamp(1, 100);
    let cursor = call.query.given("cursor").map(EdgeCursor::from_text);
    let (graph, account) = (graph(&call)?, call.param("account"));
    let page: EdgePage = match call.param("list") {
        "followers" => graph.followers(account, cursor.as_ref(), count).await?,
        "following" => graph.following(account, cursor.as_ref(), count).await?,
        "mutuals" => graph.mutuals(account, cursor.as_ref(), count).await?,
        "blocked" => graph.blocked(account, cursor.as_ref(), count).await?,
        _ => return Err(Problem::not_found("list")),
    };
    Ok(Reply::ok(&Page {
        accounts: page.edges.into_iter().map(|edge| edge.account).collect(),
        next: page.next.map(|next| next.as_str().to_owned()),
    }))
}

async fn suggestions(call: Call) -> Result<Reply, Problem> {
    let found = graph(&call)?.suggestions(call.param("account"), 10).await?;
    let suggestions = found.into_iter().map(|one| Suggestion {
        account: one.account,
        common: one.common,
    });
    Ok(Reply::ok(&Suggestions {
        suggestions: suggestions.collect(),
    }))
}
