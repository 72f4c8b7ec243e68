//! Envoy's rate-limit service: a gateway asks whether a request may pass, by gRPC or by JSON.
//!
//! # Promises
//!
//! - A descriptor is counted by a limiter of the configuration, with its algorithm. All descriptors of a request are
//!   counted, also those beside one that is over its limit, as Envoy's own service does.
//! - A request is OVER_LIMIT if one of its descriptors is, unless that is in shadow mode. One that no descriptor of the
//!   configuration matches passes, and so does one of an unknown domain.
//! - Two descriptors are never counted together, whatever characters their keys and values have.
//!
//! # Limits
//!
//! At most 100 descriptors with 32 entries each. `is_negative_hits` is refused: what was taken is given back by the grant
//! that took it, which a gateway has not. Quotas for a gateway to keep (`quota` of the reply) are not given.
//!
//! # Round trips
//!
//! One for each descriptor that is counted, all at the same time.
//!
//! # While the store is down
//!
//! The answer is UNAVAILABLE (503 for JSON), never OK: whether the gateway then lets requests pass is set there
//! (`failure_mode_deny`).
//!
//! # Metrics
//!
//! `redstart_ratelimit_descriptors_total` by `domain` and `outcome` (`ok`, `over_limit`, `shadow`, `unlimited`, `no_limit`).

use std::{fmt::Write as _, sync::Arc, time::Duration};

use futures_util::future::join_all;
use redstart::limiting::{Decision, Limiter, Quota};
use sha2::Digest as _;

use crate::{
    api::{limiter_of, limiter_with, rate_headers},
    app::App,
    auth::Identity,
    config::{AlgorithmName, Config},
    problem::Problem,
};

pub(crate) mod domain;
pub(crate) mod grpc;
pub(crate) mod json;
pub(crate) mod message;

use domain::{DomainConfig, Rule};
use message::{
    Code, CurrentLimit, Descriptor, DescriptorStatus, Entry, Header, RateLimitRequest,
    RateLimitResponse, Unit,
};

const MAX_DESCRIPTORS: usize = 100;
const MAX_ENTRIES: usize = 32;
/// A subject that is longer is replaced by its hash.
const MAX_SUBJECT: usize = 512;
/// The limiter of descriptors that bring their own limit and match nothing in the configuration.
const OVERRIDE: &str = "override";

/// How one descriptor is decided.
enum Plan {
    /// Nothing in the configuration matches it.
    NoLimit,
    Unlimited,
    /// Its own limit is zero.
    Closed {
        limit: CurrentLimit,
        shadow: bool,
    },
    Count {
        limiter: Limiter,
        /// The limiter's.
        name: String,
        subject: String,
        /// Zero looks and takes nothing.
        cost: u64,
        shadow: bool,
    },
}

/// How one descriptor was decided.
struct Decided {
    status: DescriptorStatus,
    outcome: &'static str,
    /// Its limit, what remains of it, until it is whole again, and how long to wait.
    stand: Option<Stand>,
}

struct Stand {
    name: String,
    quota: Quota,
    remaining: u64,
    reset_after: Duration,
    retry_after: Option<Duration>,
}

/// Decides about all descriptors of a request.
pub(crate) async fn decide(
    app: &Arc<App>,
    config: &Config,
    identity: &Identity,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Problem> {
    if request.domain.is_empty() {
        return Err(Problem::invalid("the domain must not be empty"));
    }
    let descriptors = &request.descriptors;
    if descriptors.is_empty() || descriptors.len() > MAX_DESCRIPTORS {
        return Err(Problem::invalid(format!(
            "a request must have 1 to {MAX_DESCRIPTORS} descriptors"
        )));
    }
    let known = config
        .domain
        .iter()
        .find(|domain| *domain.name.get_ref() == request.domain);
    let namespace = match known.and_then(|domain| domain.namespace.as_ref()) {
        Some(name) => &name.0,
        None => &config.namespace.0,
    };
    // In an unknown domain nothing is counted, so there is nothing to refuse.
    if known.is_some() {
        identity.may_use(namespace)?;
    }
    // All are read before the first is counted.
    let mut plans = Vec::with_capacity(descriptors.len());
    for descriptor in descriptors {
        let hits = u64::from(request.hits_addend.max(1));
        let cost = descriptor.hits_addend.unwrap_or(hits);
        check(descriptor)?;
        plans.push(match known {
            Some(domain) => plan(app, config, namespace, domain, descriptor, cost)?,
            None => Plan::NoLimit,
        });
    }
    let decided = join_all(plans.iter().map(carry_out)).await;
    let decided = decided.into_iter().collect::<Result<Vec<_>, _>>()?;
    // A name that is not in the configuration would be a label of the client's choice.
    let label = known.map_or("unknown", |_| request.domain.as_str());
    for (one, plan) in decided.iter().zip(&plans) {
        // One that only looks is not counted.
        if let Plan::Count {
            name,
            subject,
            cost: 1..,
            ..
        } = plan
        {
            app.hot.note(namespace, name, subject, one.outcome == "ok");
        }
        metrics::counter!("redstart_ratelimit_descriptors_total", "domain" => label.to_owned(), "outcome" => one.outcome)
            .increment(1);
    }
    Ok(reply(decided))
}

fn check(descriptor: &Descriptor) -> Result<(), Problem> {
    let entries = &descriptor.entries;
    if entries.is_empty() || entries.len() > MAX_ENTRIES {
        return Err(Problem::invalid(format!(
            "a descriptor must have 1 to {MAX_ENTRIES} entries"
        )));
    }
    if entries.iter().any(|entry| entry.key.is_empty()) {
        return Err(Problem::invalid("the key of an entry must not be empty"));
    }
    if descriptor.is_negative_hits {
        return Err(Problem::invalid(
            "negative hits are not supported: a grant is given back by the one that has it",
        ));
    }
    Ok(())
}

fn plan(
    app: &Arc<App>,
    config: &Config,
    namespace: &str,
    domain: &DomainConfig,
    descriptor: &Descriptor,
    cost: u64,
) -> Result<Plan, Problem> {
    let rule = domain.find(&descriptor.entries);
    let subject = subject(domain.name.get_ref(), &descriptor.entries);
    if let Some(limit) = &descriptor.limit {
        // It is the gateway's own limit, so the descriptor's shadow mode is not meant for it.
        let (name, algorithm) = match rule {
            Some(Rule::Limiter { name, .. }) => (name, config.limiter[name].algorithm),
            _ => (OVERRIDE, AlgorithmName::FixedWindow),
        };
        let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown);
        let period = period(unit)
            .ok_or_else(|| Problem::invalid("the unit of a descriptor's own limit is unknown"))?;
        if limit.requests_per_unit == 0 {
            return Ok(Plan::Closed {
                limit: CurrentLimit {
                    requests_per_unit: 0,
                    unit: limit.unit,
                    name: name.to_owned(),
                },
                shadow: domain.shadow,
            });
        }
        let units = u64::from(limit.requests_per_unit);
        return Ok(Plan::Count {
            limiter: limiter_with(app, namespace, name, algorithm, units, period)?,
            name: name.to_owned(),
            subject,
            cost,
            shadow: domain.shadow,
        });
    }
    Ok(match rule {
        None => Plan::NoLimit,
        Some(Rule::Unlimited) => Plan::Unlimited,
        Some(Rule::Limiter { name, shadow }) => {
            let chosen = limiter_of(app, config, namespace, name)?;
            Plan::Count {
                limiter: chosen.limiter,
                name: name.to_owned(),
                subject,
                cost,
                shadow: shadow || domain.shadow || chosen.shadow,
            }
        }
    })
}

/// Whose limit it is: the domain and all entries, with their values.
fn subject(domain: &str, entries: &[Entry]) -> String {
    let mut subject = escaped(domain);
    for entry in entries {
        // The text of a string is always written.
        let _ = write!(
            subject,
            "|{}={}",
            escaped(&entry.key),
            escaped(&entry.value)
        );
    }
    if subject.len() <= MAX_SUBJECT {
        return subject;
    }
    let hash = sha2::Sha256::digest(subject.as_bytes());
    let mut short = escaped(domain);
    short.push_str("|sha256:");
    for byte in hash {
        let _ = write!(short, "{byte:02x}");
    }
    short
}

/// Without the characters that separate, so that two lists of entries never make one subject.
fn escaped(text: &str) -> String {
    text.replace('%', "%25")
        .replace('|', "%7C")
        .replace('=', "%3D")
}

fn period(unit: Unit) -> Option<Duration> {
    const DAY: u64 = 86_400;
    let seconds = match unit {
        Unit::Unknown => return None,
        Unit::Second => 1,
        Unit::Minute => 60,
        Unit::Hour => 3600,
        Unit::Day => DAY,
        Unit::Week => 7 * DAY,
        Unit::Month => 30 * DAY,
        Unit::Year => 365 * DAY,
    };
    Some(Duration::from_secs(seconds))
}

/// The unit of a period that is one.
fn unit(of: Duration) -> Unit {
    let all = [
        Unit::Second,
        Unit::Minute,
        Unit::Hour,
        Unit::Day,
        Unit::Week,
        Unit::Month,
        Unit::Year,
    ];
    let found = all.into_iter().find(|unit| period(*unit) == Some(of));
    found.unwrap_or(Unit::Unknown)
}

async fn carry_out(plan: &Plan) -> redstart::Result<Decided> {
    let passed = |outcome, limit_remaining| Decided {
        status: DescriptorStatus {
            code: Code::Ok.into(),
            limit_remaining,
            ..DescriptorStatus::default()
        },
        outcome,
        stand: None,
    };
    let (limiter, subject, cost, shadow) = match plan {
        Plan::NoLimit => return Ok(passed("no_limit", 0)),
        Plan::Unlimited => return Ok(passed("unlimited", u32::MAX)),
        Plan::Closed { limit, shadow } => {
            let (code, outcome) = judged(false, *shadow);
            return Ok(Decided {
                status: DescriptorStatus {
                    code: code.into(),
                    current_limit: Some(limit.clone()),
                    ..DescriptorStatus::default()
                },
                outcome,
                stand: None,
            });
        }
        Plan::Count {
            limiter,
            subject,
            cost,
            shadow,
            ..
        } => (limiter, subject, *cost, *shadow),
    };
    // A limiter has at least one limit.
    let first = limiter.limits().next();
    let (name, quota) = first.map_or((String::new(), Quota::per_second(1)), |(name, quota)| {
        (name.to_owned(), quota)
    });
    let Answer {
        allowed,
        remaining,
        reset_after,
        retry_after,
    } = ask(limiter, subject, cost).await?;
    let (code, outcome) = judged(allowed, shadow);
    let status = DescriptorStatus {
        code: code.into(),
        current_limit: Some(CurrentLimit {
            requests_per_unit: narrow(quota.units()),
            unit: unit(quota.period()).into(),
            name: name.clone(),
        }),
        limit_remaining: narrow(remaining),
        duration_until_reset: Some(reset_after.into()),
    };
    Ok(Decided {
        status,
        outcome,
        stand: Some(Stand {
            name,
            quota,
            remaining,
            reset_after,
            retry_after: retry_after.filter(|_| code == Code::OverLimit),
        }),
    })
}

/// What a limiter says of a subject.
struct Answer {
    allowed: bool,
    remaining: u64,
    reset_after: Duration,
    retry_after: Option<Duration>,
}

/// Takes from the limit, or only looks if nothing is to be taken.
async fn ask(limiter: &Limiter, subject: &str, cost: u64) -> redstart::Result<Answer> {
    let (snapshot, retry_after) = match cost {
        0 => {
            let now = limiter.peek(subject).await?;
            return Ok(Answer {
                allowed: now.remaining > 0,
                remaining: now.remaining,
                reset_after: now.reset_after,
                retry_after: Some(now.retry_after),
            });
        }
        cost => match limiter.check(subject, cost).await? {
            Decision::Allowed(grant) => (grant.snapshot().clone(), None),
            Decision::Limited {
                retry_after,
                snapshot,
            } => (snapshot, Some(retry_after)),
            Decision::Never { .. } => {
                return Ok(Answer {
                    allowed: false,
                    remaining: 0,
                    reset_after: Duration::ZERO,
                    retry_after: None,
                });
            }
        },
    };
    Ok(Answer {
        allowed: retry_after.is_none(),
        remaining: snapshot.remaining,
        reset_after: snapshot.reset_after,
        retry_after,
    })
}

/// What the gateway is told, and the outcome for the metrics.
fn judged(allowed: bool, shadow: bool) -> (Code, &'static str) {
    match (allowed, shadow) {
        (true, _) => (Code::Ok, "ok"),
        (false, true) => (Code::Ok, "shadow"),
        (false, false) => (Code::OverLimit, "over_limit"),
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn reply(decided: Vec<Decided>) -> RateLimitResponse {
    let is_over = |one: &Decided| one.status.code == i32::from(Code::OverLimit);
    let over = decided.iter().any(is_over);
    let mut headers = Vec::new();
    let mut add = |key: &str, value: String| {
        headers.push(Header {
            key: key.to_owned(),
            value,
        });
    };
    // The client is told of the descriptor that it meets first.
    let stands = decided.iter().filter(|one| !over || is_over(one));
    let stands = stands.filter_map(|one| one.stand.as_ref());
    let closest = stands.min_by_key(|stand| {
        let wait = stand.retry_after.unwrap_or_default();
        (std::cmp::Reverse(wait), stand.remaining)
    });
    if let Some(stand) = closest {
        for (name, value) in
            rate_headers(&stand.name, stand.quota, stand.remaining, stand.reset_after)
        {
            add(name, value);
        }
        if let Some(wait) = stand.retry_after {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            add("retry-after", seconds.max(1).to_string());
        }
    }
    RateLimitResponse {
        overall_code: if over { Code::OverLimit } else { Code::Ok }.into(),
        response_headers_to_add: headers,
        statuses: decided.into_iter().map(|one| one.status).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry {
            key: key.to_owned(),
            value: value.to_owned(),
        }
    }

    #[test]
    fn different_descriptors_are_different_subjects() {
        let all = [
            subject("d", &[entry("a", "b"), entry("c", "d")]),
            subject("d", &[entry("a", "b|c=d")]),
            subject("d", &[entry("a", "b%7Cc%3Dd")]),
            subject("d", &[entry("a|c", "b=d")]),
            subject("d|a=b", &[entry("c", "d")]),
            subject("d", &[entry("a", &"x".repeat(600))]),
            subject("d", &[entry("a", &"x".repeat(601))]),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
        assert_eq!(all[0], "d|a=b|c=d");
        assert!(all.iter().all(|subject| subject.len() <= MAX_SUBJECT));
    }

    #[test]
    fn a_period_is_the_unit_it_was_made_of() {
        for one in [Unit::Second, Unit::Week, Unit::Month, Unit::Year] {
            assert_eq!(unit(period(one).unwrap()), one);
        }
        assert_eq!(unit(Duration::from_secs(900)), Unit::Unknown);
        assert_eq!(period(Unit::Unknown), None);
    }
}
