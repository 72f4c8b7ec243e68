//! Limiters: named in the configuration, or given with the call.

mod answer;

pub(crate) use answer::{Checked, rate_headers};

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use redstart::{
    key::Keys,
    limiting::{Decision, Limiter},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    app::App,
    call::{Call, Seconds, lost},
    config::{AlgorithmName, Config, QuotaText},
    hot::{self, Hottest},
    problem::{Kind, Problem},
    reply::Reply,
    route::{Route, Routes},
};
use answer::{check_headers, describe, shown};

const FAMILY: &str = "Limiters";

/// What a limiter is made from.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    namespace: String,
    name: String,
    algorithm: AlgorithmName,
    quota: QuotaText,
    burst: Option<u64>,
    refundable: bool,
    /// The most units that are leased at once.
    block: Option<u64>,
}

/// A limit that is given with the call.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Limit {
    #[serde(default)]
    algorithm: AlgorithmName,
    /// Units per period: `100/s`, `20/m`, `5/15m`.
    quota: String,
    /// How many may come at once; for token buckets.
    burst: Option<u64>,
    #[serde(default)]
    refundable: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Check {
    /// Whose limit it is: a user, an address, a key.
    subject: String,
    #[serde(default = "one")]
    cost: u64,
    /// Another quota of the configured limiter.
    tier: Option<String>,
    /// For a limiter that is not configured.
    limit: Option<Limit>,
}

fn one() -> u64 {
    1
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CheckMany {
    checks: Vec<One>,
    limit: Option<Limit>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct One {
    subject: String,
    #[serde(default = "one")]
    cost: u64,
    /// Another quota of the configured limiter.
    tier: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct CheckedMany {
    results: Vec<Checked>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Refund {
    grant: String,
}

#[derive(Serialize, JsonSchema)]
struct Refunded {
    /// How much was given back.
    refunded: u64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Peek {
    subject: String,
    /// Another quota of the configured limiter.
    tier: Option<String>,
    limit: Option<Limit>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Reset {
    subject: String,
    limit: Option<Limit>,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    done: bool,
}

#[derive(Serialize, JsonSchema)]
struct Configured {
    limiters: Vec<ConfiguredLimiter>,
}

#[derive(Serialize, JsonSchema)]
struct ConfiguredLimiter {
    name: String,
    algorithm: AlgorithmName,
    quota: String,
    tiers: Vec<String>,
    shadow: bool,
}

#[derive(Serialize, JsonSchema)]
struct Hot {
    /// The subjects that were checked the most in the last five to ten minutes.
    checked: Vec<Hottest>,
    /// The subjects that were refused the most.
    refused: Vec<Hottest>,
    /// Oldest first; up to ten minutes.
    history: Vec<Point>,
    /// Seconds of one point of the history.
    every: Seconds,
}

#[derive(Serialize, JsonSchema)]
struct Point {
    allowed: u64,
    refused: u64,
}

pub(super) fn add_routes(routes: &mut Routes) {
    let example =
        json!({"algorithm": "token-bucket", "quota": "100/m", "burst": 20, "refundable": true});
    routes.add(
        Route::get("/v1/limiters", list)
            .doc(FAMILY, "List the limiters of the configuration")
            .reply::<Configured>(200, "The configured limiters"),
    );
    routes.add(
        Route::post("/v1/limiters/{name}:check", check)
            .doc(FAMILY, "Check a limit and take from it")
            .param("name", "api")
            .query(
                "enforce",
                "Answer 429 with Retry-After when the limiter refuses",
                "1",
            )
            .body::<Check>(json!({"subject": "user:7", "cost": 1, "limit": example}))
            .reply::<Checked>(200, "Whether it is allowed")
            .status(429, "Refused, with ?enforce=1"),
    );
    routes.add(
        Route::post("/v1/limiters/{name}:refund", refund)
            .doc(FAMILY, "Give back what a check took")
            .param("name", "api")
            .body::<Refund>(json!({"grant": "5f2b…"}))
            .reply::<Refunded>(200, "How much was given back")
            .status(410, "The grant is too old, or another instance gave it"),
    );
    routes.add(
        Route::post("/v1/limiters/{name}:check-many", check_many)
            .doc(FAMILY, "Check many subjects in one round trip, or one for each tier")
            .param("name", "api")
            .body::<CheckMany>(json!({"checks": [{"subject": "user:7"}, {"subject": "user:8", "cost": 2}], "limit": example}))
            .reply::<CheckedMany>(200, "One result for each check, in order"),
    );
    routes.add(
        Route::post("/v1/limiters/{name}:peek", peek)
            .reads()
            .doc(FAMILY, "Look at a limit without taking from it")
            .param("name", "api")
            .body::<Peek>(json!({"subject": "user:7", "limit": example}))
            .reply::<Checked>(200, "How the subject stands"),
    );
    routes.add(
        Route::get("/v1/limiters/{name}/hot", lately)
            .doc(
                FAMILY,
                "The subjects that this instance checked and refused the most, and refusals over time",
            )
            .param("name", "api")
            .query("count", "How many subjects at most, up to 64 (default 20)", 20)
            .reply::<Hot>(200, "Counts between two bounds; checks of a shadow limiter count as it decided"),
    );
    routes.add(
        Route::post("/v1/limiters/{name}:reset", reset)
            .doc(FAMILY, "Forget what a subject took, under every tier")
            .param("name", "api")
            .body::<Reset>(json!({"subject": "user:7", "limit": example}))
            .reply::<Done>(200, "The subject has its whole limit"),
    );
}

/// A limiter, and how its answers are treated.
pub(crate) struct Chosen {
    pub(crate) limiter: Limiter,
    /// It only tries.
    pub(crate) shadow: bool,
    /// What it grants can be given back.
    refundable: bool,
}

/// A limiter of the configuration.
pub(crate) fn limiter_of(
    app: &App,
    config: &Config,
    namespace: &str,
    name: &str,
) -> Result<Chosen, Problem> {
    let configured = config.limiter.get(name).ok_or_else(|| {
        Problem::not_found("limiter in the configuration; give a `limit` with the call")
    })?;
    let key = Key {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        algorithm: configured.algorithm,
        quota: configured.quota,
        burst: configured.burst,
        refundable: configured.refundable,
        block: configured.block(),
    };
    Ok(Chosen {
        limiter: make(app, key)?,
        shadow: configured.shadow,
        refundable: configured.refundable,
    })
}

/// A limiter of a configured name with another quota, which a gateway gave.
pub(crate) fn limiter_with(
    app: &App,
    namespace: &str,
    name: &str,
    algorithm: AlgorithmName,
    units: u64,
    period: Duration,
) -> Result<Limiter, Problem> {
    let key = Key {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        algorithm,
        quota: QuotaText::new(units, period),
        burst: None,
        refundable: false,
        block: None,
    };
    make(app, key)
}

fn find(call: &Call, limit: Option<&Limit>) -> Result<Chosen, Problem> {
    let (namespace, name) = (call.namespace()?, call.param("name"));
    let Some(limit) = limit else {
        return limiter_of(&call.app, &call.config, &namespace, name);
    };
    let key = Key {
        namespace,
        name: name.to_owned(),
        algorithm: limit.algorithm,
        quota: QuotaText::parse(&limit.quota).map_err(Problem::invalid)?,
        burst: limit.burst,
        refundable: limit.refundable,
        block: None,
    };
    Ok(Chosen {
        limiter: make(&call.app, key)?,
        shadow: false,
        refundable: limit.refundable,
    })
}

fn make(app: &App, key: Key) -> Result<Limiter, Problem> {
    Ok(app.patterns.limiters.get_or(key.clone(), || {
        let quota = key.quota.quota(key.burst);
        let builder = Limiter::builder(
            &app.store,
            &key.namespace,
            &key.name,
            key.algorithm.into(),
            quota,
        );
        let builder = match key.refundable {
            true => builder.refundable(),
            false => builder,
        };
        let builder = match key.block {
            Some(units) => builder.lease_blocks(units),
            None => builder,
        };
        builder.build()
    })?)
}

/// The limiter under the quota of a tier, if one is named.
fn tiered(call: &Call, limiter: &Limiter, tier: Option<&str>) -> Result<Limiter, Problem> {
    let Some(tier) = tier else {
        return Ok(limiter.clone());
    };
    let configured = call.config.limiter.get(call.param("name"));
    let quota = configured.and_then(|limiter| limiter.tiers.get(tier));
    let quota = quota.ok_or_else(|| Problem::not_found("tier"))?;
    Ok(limiter.with_quota(quota.quota(None))?)
}

/// Forgets what a subject took of a configured limiter, under its own quota and under those of its tiers.
pub(crate) async fn forget(
    app: &App,
    config: &Config,
    namespace: &str,
    name: &str,
    subject: &str,
) -> Result<(), Problem> {
    let limiter = limiter_of(app, config, namespace, name)?.limiter;
    let configured = config.limiter.get(name);
    let tiers = configured
        .into_iter()
        .flat_map(|limiter| limiter.tiers.values());
    for tier in tiers {
        // This instance may not have used it yet. Nothing was ever taken under a quota that is refused.
        drop(limiter.with_quota(tier.quota(None)));
    }
    Ok(limiter.reset(subject).await?)
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let limiters = call
        .config
        .limiter
        .iter()
        .map(|(name, limiter)| ConfiguredLimiter {
            name: name.clone(),
            algorithm: limiter.algorithm,
            quota: limiter.quota.to_string(),
            tiers: limiter.tiers.keys().cloned().collect(),
            shadow: limiter.shadow,
        });
    Ok(Reply::ok(&Configured {
        limiters: limiters.collect(),
    }))
}

async fn check(call: Call) -> Result<Reply, Problem> {
    let body: Check = call.json()?;
    let chosen = find(&call, body.limit.as_ref())?;
    let limiter = tiered(&call, &chosen.limiter, body.tier.as_deref())?;
    let namespace = call.namespace()?;
    let decision = limiter.check(&body.subject, body.cost).await?;
    let (hot, name) = (&call.app.hot, call.param("name"));
    hot.note(&namespace, name, &body.subject, decision.is_allowed());
    let checked = describe(&call, &chosen, decision)?;
    let headers = check_headers(&limiter, &checked);
    if !checked.allowed && call.query.flag("enforce") {
        let mut problem = Problem::new(Kind::Limited).with("remaining", checked.remaining);
        if let Some(wait) = checked.retry_after {
            problem = problem
                .with("retry_after", wait.0)
                .retry_after(wait.duration()?);
        }
        for (name, value) in headers {
            problem = problem.header(name, value);
        }
        return Err(problem);
    }
    let mut reply = Reply::ok(&checked);
    for (name, value) in headers {
        reply.set(name, value);
    }
    Ok(reply)
}

async fn check_many(call: Call) -> Result<Reply, Problem> {
    let body: CheckMany = call.json()?;
    if body.checks.len() > 1000 {
        return Err(Problem::invalid("at most 1000 checks in one call"));
    }
    let chosen = find(&call, body.limit.as_ref())?;
    // All are checked before the first is sent.
    let namespace = call.namespace()?;
    let keys = Keys::new(&namespace, "limiter")?;
    for check in &body.checks {
        keys.entity(&check.subject)?;
        if check.cost == 0 {
            return Err(Problem::invalid("a cost of zero takes nothing; use peek"));
        }
    }
    let decisions = check_tiers(&call, &chosen.limiter, &body.checks).await?;
    let failed = decisions
        .iter()
        .filter_map(|decision| decision.as_ref().err());
    let in_doubt = failed.clone().any(redstart::Error::is_in_doubt);
    let failed = failed.count();
    if in_doubt || failed > 0 && failed < decisions.len() {
        return Err(Problem::new(Kind::InDoubt).detail(format!(
            "{failed} of {} checks have no answer; any of them may have been counted",
            decisions.len()
        )));
    }
    let mut results = Vec::with_capacity(decisions.len());
    for (check, decision) in body.checks.iter().zip(decisions) {
        let decision = decision?;
        let (hot, name) = (&call.app.hot, call.param("name"));
        hot.note(&namespace, name, &check.subject, decision.is_allowed());
        results.push(describe(&call, &chosen, decision)?);
    }
    Ok(Reply::ok(&CheckedMany { results }))
}

/// The decisions in order. Each tier is asked once, all at the same time.
async fn check_tiers(
    call: &Call,
    limiter: &Limiter,
    checks: &[One],
) -> Result<Vec<redstart::Result<Decision>>, Problem> {
    let mut places: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
    for (at, check) in checks.iter().enumerate() {
        places.entry(check.tier.as_deref()).or_default().push(at);
    }
    let mut tiers = Vec::with_capacity(places.len());
    for (tier, places) in places {
        tiers.push((tiered(call, limiter, tier)?, places));
    }
    let asked = tiers.iter().map(|(limiter, places)| async move {
        let requests = places.iter().map(|at| &checks[*at]);
        let requests: Vec<(&str, u64)> = requests.map(|c| (c.subject.as_str(), c.cost)).collect();
        limiter.check_many(&requests).await
    });
    let answers = join_all(asked).await;
    let places = tiers.iter().flat_map(|(_, places)| places);
    let mut decisions: Vec<_> = places.zip(answers.into_iter().flatten()).collect();
    decisions.sort_by_key(|(at, _)| **at);
    Ok(decisions
        .into_iter()
        .map(|(_, decision)| decision)
        .collect())
}

async fn peek(call: Call) -> Result<Reply, Problem> {
    let body: Peek = call.json()?;
    let limiter = find(&call, body.limit.as_ref())?.limiter;
    let limiter = tiered(&call, &limiter, body.tier.as_deref())?;
    let snapshot = limiter.peek(&body.subject).await?;
    Ok(Reply::ok(&shown(snapshot.remaining > 0, &snapshot)))
}

async fn lately(call: Call) -> Result<Reply, Problem> {
    let count = call.query.number("count")?.unwrap_or(20);
    let name = call.param("name");
    let lately = call.app.hot.lately(&call.namespace()?, name, count);
    let history = lately
        .history
        .into_iter()
        .map(|(allowed, refused)| Point { allowed, refused });
    Ok(Reply::ok(&Hot {
        checked: lately.checked,
        refused: lately.refused,
        history: history.collect(),
        every: hot::EVERY.into(),
    }))
}

async fn reset(call: Call) -> Result<Reply, Problem> {
    let body: Reset = call.json()?;
    match &body.limit {
        Some(limit) => {
            find(&call, Some(limit))?
                .limiter
                .reset(&body.subject)
                .await?
        }
        None => {
            let (namespace, name) = (call.namespace()?, call.param("name"));
            forget(&call.app, &call.config, &namespace, name, &body.subject).await?;
        }
    }
    Ok(Reply::ok(&Done { done: true }))
}

async fn refund(call: Call) -> Result<Reply, Problem> {
    let body: Refund = call.json()?;
    let held = call.app.patterns.grants.take(&call.target()?, &body.grant);
    let (limiter, grant) = held.ok_or_else(|| lost("grant"))?;
    let refunded = limiter.refund(grant).await?;
    Ok(Reply::ok(&Refunded { refunded }))
}
