//! The same service as JSON, at `/json`: the forms are those of protobuf's JSON mapping.

use http::{HeaderName, HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::message::{self, Code, RateLimitResponse, Unit};
use crate::{
    call::Call,
    problem::Problem,
    reply::Reply,
    route::{Route, Routes},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RateLimitRequest {
    /// A `[[domain]]` of the configuration.
    domain: String,
    descriptors: Vec<Descriptor>,
    /// How much each descriptor takes; one if it is missing.
    #[serde(default, alias = "hitsAddend")]
    hits_addend: u32,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Descriptor {
    entries: Vec<Entry>,
    /// A limit in place of the configured one.
    limit: Option<Limit>,
    /// In place of the request's; zero looks and takes nothing.
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Wide>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Limit {
    #[serde(default, alias = "requestsPerUnit")]
    requests_per_unit: u32,
    unit: UnitName,
}

/// Numbers of 64 bits are strings in protobuf's JSON; numbers are understood too.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum Wide {
    Number(u64),
    Text(String),
}

#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum UnitName {
    Unknown,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl UnitName {
    const ALL: [(Self, Unit); 8] = [
        (Self::Unknown, Unit::Unknown),
        (Self::Second, Unit::Second),
        (Self::Minute, Unit::Minute),
        (Self::Hour, Unit::Hour),
        (Self::Day, Unit::Day),
        (Self::Week, Unit::Week),
        (Self::Month, Unit::Month),
        (Self::Year, Unit::Year),
    ];

    fn unit(self) -> Unit {
        let found = Self::ALL.iter().find(|(name, _)| *name as u8 == self as u8);
        found.map_or(Unit::Unknown, |(_, unit)| *unit)
    }

    fn of(unit: i32) -> Self {
        let found = Self::ALL.iter().find(|(_, known)| *known as i32 == unit);
        found.map_or(Self::Unknown, |(name, _)| *name)
    }
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RateLimitReply {
    /// `OK` or `OVER_LIMIT`.
    overall_code: &'static str,
    /// One for each descriptor, in order.
    statuses: Vec<Status>,
    /// Headers for the gateway's reply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<Header>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Status {
    code: &'static str,
    /// Missing if the descriptor has no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current_limit: Option<Current>,
    limit_remaining: u32,
    /// Seconds, with an `s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Current {
    name: String,
    requests_per_unit: u32,
    unit: UnitName,
}

#[derive(Serialize, JsonSchema)]
struct Header {
    key: String,
    value: String,
}

pub(crate) fn add_routes(routes: &mut Routes) {
    routes.add(
        Route::post("/json", should_rate_limit)
            .doc(
                "Limiters",
                "Envoy's rate-limit service, in its form as JSON",
            )
            .body::<RateLimitRequest>(json!({
                "domain": "edge",
                "descriptors": [{"entries": [{"key": "remote_address", "value": "203.0.113.9"}]}]
            }))
            .reply::<RateLimitReply>(200, "The request may pass")
            .reply::<RateLimitReply>(429, "A descriptor is over its limit"),
    );
}

async fn should_rate_limit(call: Call) -> Result<Reply, Problem> {
    let request = read(call.json()?)?;
    let decided = super::decide(&call.app, &call.config, &call.identity, &request).await?;
    let status = match decided.overall_code == i32::from(Code::Ok) {
        true => StatusCode::OK,
        false => StatusCode::TOO_MANY_REQUESTS,
    };
    let headers = decided.response_headers_to_add.clone();
    let mut reply = Reply::json(status, &write(decided));
    for header in headers {
        let name = HeaderName::try_from(header.key);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(header.value)) {
            reply.set(name, value);
        }
    }
    Ok(reply)
}

fn read(request: RateLimitRequest) -> Result<message::RateLimitRequest, Problem> {
    let mut descriptors = Vec::with_capacity(request.descriptors.len());
    for descriptor in request.descriptors {
        let hits_addend = match descriptor.hits_addend {
            None => None,
            Some(Wide::Number(number)) => Some(number),
            Some(Wide::Text(text)) => Some(
                text.parse()
                    .map_err(|_| Problem::invalid("hits_addend must be a number"))?,
            ),
        };
        let entries = descriptor.entries.into_iter().map(|entry| message::Entry {
            key: entry.key,
            value: entry.value,
        });
        descriptors.push(message::Descriptor {
            entries: entries.collect(),
            limit: descriptor.limit.map(|limit| message::LimitOverride {
                requests_per_unit: limit.requests_per_unit,
                unit: limit.unit.unit().into(),
            }),
            hits_addend,
            is_negative_hits: false,
        });
    }
    Ok(message::RateLimitRequest {
        domain: request.domain,
        descriptors,
        hits_addend: request.hits_addend,
    })
}

fn code_name(code: i32) -> &'static str {
    match Code::try_from(code) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    }
}

fn write(reply: RateLimitResponse) -> RateLimitReply {
    let status = |status: message::DescriptorStatus| Status {
        code: code_name(status.code),
        current_limit: status.current_limit.map(|limit| Current {
            name: limit.name,
            requests_per_unit: limit.requests_per_unit,
            unit: UnitName::of(limit.unit),
        }),
        limit_remaining: status.limit_remaining,
        duration_until_reset: status.duration_until_reset.map(|time| {
            let text = format!("{}.{:09}", time.seconds, time.nanos);
            let text = text.trim_end_matches('0').trim_end_matches('.');
            format!("{text}s")
        }),
    };
    let header = |header: message::Header| Header {
        key: header.key,
        value: header.value,
    };
    RateLimitReply {
        overall_code: code_name(reply.overall_code),
        statuses: reply.statuses.into_iter().map(status).collect(),
        response_headers_to_add: reply
            .response_headers_to_add
            .into_iter()
            .map(header)
            .collect(),
    }
}
