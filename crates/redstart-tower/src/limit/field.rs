//! The fields `RateLimit-Policy` and `RateLimit`, as draft-ietf-httpapi-ratelimit-headers-11 has them: lists of
//! structured fields (RFC 9651).

use std::{fmt::Write as _, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue};
use redstart::limiting::Quota;

use crate::problem::seconds;

pub(super) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer of a structured field: 15 digits.
const MAX_INTEGER: u128 = 999_999_999_999_999;

/// What a quota counts, by the registry of the draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaUnit {
    /// Requests. Heavier ones may cost more than one.
    #[default]
    Requests,
    /// Bytes of content: the [cost](crate::LimitLayerBuilder::cost) of a request is a number of bytes.
    ContentBytes,
}

impl QuotaUnit {
    fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::ContentBytes => "content-bytes",
        }
    }
}

/// The name of a limit as the fields and the problem have it: a String has printable ASCII only, so that other characters
/// are percent-encoded.
pub(super) fn policy_name(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'%' | 0..0x20 | 0x7f.. => {
                let _ = write!(text, "%{byte:02X}");
            }
            _ => text.push(char::from(byte)),
        }
    }
    text
}

fn string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn integer(number: impl Into<u128>) -> u128 {
    number.into().min(MAX_INTEGER)
}

/// The partition key as a parameter, or nothing.
pub(super) fn partition_key(bytes: &[u8]) -> String {
    format!(";pk=:{}:", BASE64_STANDARD.encode(bytes))
}

/// An item of `RateLimit-Policy`.
pub(super) fn policy_item(name: &str, quota: Quota, unit: QuotaUnit, partition: &str) -> String {
    // How long it takes to regain everything, in whole seconds: a window must not be 0.
    let fill = quota.period().as_nanos() * u128::from(quota.capacity());
    let window = fill.div_ceil(u128::from(quota.units()) * 1_000_000_000);
    format!(
        "{};q={};qu={};w={}{partition}",
        string(&policy_name(name)),
        integer(quota.capacity()),
        string(unit.name()),
        integer(window.max(1)),
    )
}

/// An item of `RateLimit`.
pub(super) fn limit_item(name: &str, available: u64, window: Duration, partition: &str) -> String {
    format!(
        "{};r={};t={}{partition}",
        string(&policy_name(name)),
        integer(available),
        integer(seconds(window)),
    )
}

/// Adds the items to those that the header has.
pub(super) fn append(headers: &mut HeaderMap, name: HeaderName, items: &[String]) {
    // A list of a structured field that is empty is not sent.
    if items.is_empty() {
        return;
    }
    if let Ok(value) = HeaderValue::try_from(items.join(", ")) {
        headers.append(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_structured_fields() {
        let quota = Quota::per_second(10).burst(20);
        let pk = partition_key(b"\xde\xad");
        assert_eq!(
            policy_item("burst", quota, QuotaUnit::Requests, &pk),
            "\"burst\";q=20;qu=\"requests\";w=2;pk=:3q0=:"
        );
        assert_eq!(
            policy_item("bytes", quota, QuotaUnit::ContentBytes, ""),
            "\"bytes\";q=20;qu=\"content-bytes\";w=2"
        );
        assert_eq!(
            limit_item("burst", 3, Duration::from_millis(1001), &pk),
            "\"burst\";r=3;t=2;pk=:3q0=:"
        );
    }

    #[test]
    fn a_window_is_never_zero_and_no_integer_is_too_long() {
        let quick = Quota::per(1000, Duration::from_millis(1));
        let item = policy_item("q", quick, QuotaUnit::Requests, "");
        assert!(item.ends_with(";w=1"), "{item}");
        let item = limit_item("q", u64::MAX, Duration::from_secs(u64::MAX), "");
        assert_eq!(item, "\"q\";r=999999999999999;t=999999999999999");
    }

    #[test]
    fn names_are_printable_ascii_and_stay_apart() {
        assert_eq!(policy_name("per-day.v2/a_b"), "per-day.v2/a_b");
        assert_eq!(policy_name("täglich"), "t%C3%A4glich");
        assert_ne!(policy_name("t%C3%A4glich"), policy_name("täglich"));
        assert_eq!(string("a\"b\\c"), r#""a\"b\\c""#);
    }
}
