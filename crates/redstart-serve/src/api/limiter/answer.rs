//! What a check answers, as JSON and as fields of the header.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use redstart::limiting::{Decision, Limiter, Quota, Snapshot};
use schemars::JsonSchema;
use serde::Serialize;

use super::Chosen;
use crate::{
    call::{Call, Seconds},
    problem::Problem,
};

/// How long a grant can be refunded.
const REFUND_TIME: Duration = Duration::from_secs(120);

#[derive(Serialize, JsonSchema)]
pub(crate) struct Checked {
    pub(super) allowed: bool,
    /// The most that can be taken at once.
    limit: u64,
    pub(super) remaining: u64,
    /// Seconds until a request of this cost is allowed; null if it never will be.
    pub(super) retry_after: Option<Seconds>,
    /// Seconds until all of the limit is available again.
    reset_after: Seconds,
    /// To refund, if the limiter is refundable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grant: Option<String>,
    /// Whether the limiter only tries: it decides, and lets everything pass.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shadow: bool,
}

pub(super) fn describe(
    call: &Call,
    chosen: &Chosen,
    decision: Decision,
) -> Result<Checked, Problem> {
    let mut checked = answer(call, chosen, decision)?;
    checked.allowed |= chosen.shadow;
    checked.shadow = chosen.shadow;
    Ok(checked)
}

fn answer(call: &Call, chosen: &Chosen, decision: Decision) -> Result<Checked, Problem> {
    Ok(match decision {
        Decision::Allowed(grant) => {
            let mut checked = shown(true, grant.snapshot());
            checked.retry_after = Some(Seconds(0.0));
            if chosen.refundable {
                let thing = (chosen.limiter.clone(), grant);
                let grants = &call.app.patterns.grants;
                checked.grant = grants.put(&call.target()?, thing, REFUND_TIME);
            }
            checked
        }
        Decision::Limited {
            retry_after,
            snapshot,
        } => Checked {
            retry_after: Some(retry_after.into()),
            ..shown(false, &snapshot)
        },
        Decision::Never { max } => Checked {
            allowed: false,
            limit: max,
            remaining: 0,
            retry_after: None,
            reset_after: Seconds(0.0),
            grant: None,
            shadow: false,
        },
    })
}

pub(super) fn shown(allowed: bool, snapshot: &Snapshot) -> Checked {
    Checked {
        allowed,
        limit: snapshot.limit,
        remaining: snapshot.remaining,
        retry_after: Some(snapshot.retry_after.into()),
        reset_after: snapshot.reset_after.into(),
        grant: None,
        shadow: false,
    }
}

pub(super) fn check_headers(
    limiter: &Limiter,
    checked: &Checked,
) -> Vec<(HeaderName, HeaderValue)> {
    let Some((name, quota)) = limiter.limits().next() else {
        return Vec::new();
    };
    // It was a duration before.
    let reset = Duration::try_from_secs_f64(checked.reset_after.0).unwrap_or_default();
    let fields = rate_headers(name, quota, checked.remaining, reset).into_iter();
    fields
        .filter_map(|(name, value)| {
            let value = HeaderValue::try_from(value).ok()?;
            Some((HeaderName::from_static(name), value))
        })
        .collect()
}

/// The fields of draft-ietf-httpapi-ratelimit-headers.
pub(crate) fn rate_headers(
    name: &str,
    quota: Quota,
    remaining: u64,
    reset_after: Duration,
) -> [(&'static str, String); 2] {
    // A structured field's string has no quotes and is ASCII.
    let name: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-_.:/".contains(*c))
        .collect();
    let window = quota.period().as_secs_f64() * quota.capacity() as f64 / quota.units() as f64;
    let policy = format!(
        "\"{name}\";q={};w={}",
        quota.capacity(),
        (window.ceil() as u64).max(1)
    );
    let reset = reset_after.as_secs_f64().ceil() as u64;
    let limit = format!("\"{name}\";r={remaining};t={reset}");
    [("ratelimit-policy", policy), ("ratelimit", limit)]
}
