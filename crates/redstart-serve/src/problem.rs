//! What went wrong, as RFC 9457 describes it. Every `type` is stable: programs may match on it.

use std::{borrow::Cow, time::Duration};

use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Map, Value};

use crate::reply::Reply;

/// A refusal or a failure: `application/problem+json`.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) kind: Kind,
    detail: Option<Cow<'static, str>>,
    more: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

macro_rules! kinds {
    ($($kind:ident $status:ident $name:literal $title:literal $meaning:literal,)*) => {
        /// The kinds of problem, each with its status, its `type` and its title.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kind { $(#[doc = $meaning] $kind,)* }

        impl Kind {
            pub(crate) const ALL: &[Self] = &[$(Self::$kind,)*];

            pub(crate) fn status(self) -> StatusCode {
                match self { $(Self::$kind => StatusCode::$status,)* }
            }

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            pub(crate) fn title(self) -> &'static str {
                match self { $(Self::$kind => $title,)* }
            }

            pub(crate) fn meaning(self) -> &'static str {
                match self { $(Self::$kind => $meaning,)* }
            }
        }
    };
}

kinds! {
    Invalid BAD_REQUEST "invalid-request" "Invalid request" "The request is malformed or a value is out of its limits. Repeating it does not help.",
    Unauthorized UNAUTHORIZED "unauthorized" "Authentication required" "A token is missing or not known.",
    Forbidden FORBIDDEN "forbidden" "Not allowed" "The token's role or its namespaces do not allow this.",
    CrossSite FORBIDDEN "cross-site" "Cross-site request refused" "A browser sent a change from another site.",
    ReadOnly FORBIDDEN "read-only" "This service is read-only" "Changes are switched off.",
    NotFound NOT_FOUND "not-found" "Not found" "There is no such resource.",
    MethodNotAllowed METHOD_NOT_ALLOWED "method-not-allowed" "Method not allowed" "The resource exists, but not for this method.",
    SlowRequest REQUEST_TIMEOUT "slow-request" "The request took too long to arrive" "The body did not arrive in time.",
    Held CONFLICT "held" "Held by another" "Another holder has the lock, and still had it at the end of the wait.",
    StaleFence CONFLICT "stale-fence" "The fence is stale" "The job is no longer this worker's: its lease ended, or the job was settled before.",
    Conflict CONFLICT "conflict" "Conflict" "The state of the resource does not allow this.",
    WrongType CONFLICT "wrong-type" "The name is in use for other data" "The stored data is not of the kind that this request works on.",
    Repeating CONFLICT "request-in-progress" "A request with this key is in progress" "The first request with this Idempotency-Key has not ended.",
    Unknown CONFLICT "outcome-unknown" "The outcome of the first request is unknown" "A request with this Idempotency-Key began and its end was not recorded. Find out what happened.",
    Lost GONE "lost" "The lease was lost" "The lease ended, was released before, or was never granted.",
    TooLarge PAYLOAD_TOO_LARGE "body-too-large" "The body is too large" "The body is above the limit of this service.",
    MediaType UNSUPPORTED_MEDIA_TYPE "unsupported-media-type" "The body must be JSON" "The content type is not application/json.",
    KeyReused UNPROCESSABLE_ENTITY "key-reused" "The Idempotency-Key was used for another request" "Method, path, query or body differ from the first request with this key.",
    Limited TOO_MANY_REQUESTS "limited" "Limited" "The limiter refused. Retry-After says when to ask again.",
    TooManyWaiting TOO_MANY_REQUESTS "too-many-waiting" "Too many requests are waiting" "The service holds as many long polls or event streams as it may.",
    InDoubt SERVICE_UNAVAILABLE "in-doubt" "It is not known whether this was done" "The reply of the store was lost. The change may have been made. Ask again with the same Idempotency-Key, or read the state.",
    Unavailable SERVICE_UNAVAILABLE "store-unavailable" "The store cannot be reached" "Nothing was done.",
    Deadline GATEWAY_TIMEOUT "deadline" "The deadline of the request passed" "The request had a deadline and was only reading.",
    Stopping SERVICE_UNAVAILABLE "stopping" "The service is stopping" "Ask again; another instance may answer.",
    Failed INTERNAL_SERVER_ERROR "failed" "The store refused the operation" "The service's log has the cause.",
}

impl Problem {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            status: kind.status(),
            kind,
            detail: None,
            more: Map::new(),
            headers: Vec::new(),
        }
    }

    pub(crate) fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Invalid).detail(detail)
    }

    pub(crate) fn not_found(what: &'static str) -> Self {
        Self::new(Kind::NotFound).detail(format!("there is no such {what}"))
    }

    pub(crate) fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds a member of its own.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn retry_after(mut self, time: Duration) -> Self {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        self.headers
            .push((header::RETRY_AFTER, seconds.max(1).into()));
        self
    }

    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(crate) fn text(&self) -> String {
        let detail = self.detail.as_deref().unwrap_or(self.kind.meaning());
        format!("{}: {detail}", self.kind.title())
    }

    pub(crate) fn into_reply(self) -> Reply {
        let mut body = Map::new();
        body.insert(
            "type".into(),
            format!("urn:redstart:{}", self.kind.name()).into(),
        );
        body.insert("title".into(), self.kind.title().into());
        body.insert("status".into(), self.status.as_u16().into());
        if let Some(detail) = self.detail {
            body.insert("detail".into(), detail.into());
        }
        body.extend(self.more);
        let mut reply = Reply::json(self.status, &Value::Object(body));
        reply.set(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        for (name, value) in self.headers {
            reply.set(name, value);
        }
        reply
    }
}

impl From<redstart::Error> for Problem {
    fn from(error: redstart::Error) -> Self {
        // The library's messages name the operation and the namespace, never a value.
        let detail = error.to_string();
        if error.is_config() {
            return Self::invalid(detail);
        }
        if error.is_in_doubt() {
            return Self::new(Kind::InDoubt).detail(detail);
        }
        if error.is_timeout() || error.is_unavailable() {
            return Self::new(Kind::Unavailable)
                .detail(detail)
                .retry_after(Duration::from_secs(1));
        }
        if error.is_codec() || error.server_code() == Some("WRONGTYPE") {
            return Self::new(Kind::WrongType).detail(detail);
        }
        tracing::error!(%error, "the store refused an operation");
        Self::new(Kind::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_kinds_share_a_type() {
        let names: std::collections::HashSet<_> =
            Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }
}
