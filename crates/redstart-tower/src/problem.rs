use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
const ABNORMAL_USAGE: &str =
    "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";

/// A refusal as RFC 9457 describes it: `application/problem+json`.
///
/// ```
/// use redstart_tower::Problem;
/// let problem = Problem::new(http::StatusCode::CONFLICT, "urn:shop:sold-out", "Sold out");
/// assert_eq!(problem.to_json(), r#"{"status":409,"title":"Sold out","type":"urn:shop:sold-out"}"#);
/// ```
#[derive(Clone, Debug)]
pub struct Problem {
    status: StatusCode,
    kind: Cow<'static, str>,
    title: Cow<'static, str>,
    detail: Option<Cow<'static, str>>,
    retry_after: Option<Duration>,
    violated_policies: Vec<String>,
}

impl Problem {
    /// A problem with its type, a URI that names this kind of problem, and a title that does not vary.
    pub fn new(
        status: StatusCode,
        kind: impl Into<Cow<'static, str>>,
        title: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            kind: kind.into(),
            title: title.into(),
            detail: None,
            retry_after: None,
            violated_policies: Vec::new(),
        }
    }

    /// 429 of draft-ietf-httpapi-ratelimit-headers: the client exceeded these limits.
    ///
    /// ```
    /// use redstart_tower::Problem;
    /// let problem = Problem::quota_exceeded(["daily".to_owned()]);
    /// assert_eq!((problem.status().as_u16(), problem.violated_policies()), (429, &["daily".to_owned()][..]));
    /// assert!(problem.to_json().contains(r#""violated-policies":["daily"]"#));
    /// ```
    pub fn quota_exceeded(policies: impl IntoIterator<Item = String>) -> Self {
        let title = "Request cannot be satisfied as assigned quota has been exceeded";
        Self::new(StatusCode::TOO_MANY_REQUESTS, QUOTA_EXCEEDED, title).violating(policies)
    }

    /// 503 of draft-ietf-httpapi-ratelimit-headers: the server can do less than usual for now. With `Retry-After: 1`.
    pub fn reduced_capacity(policies: impl IntoIterator<Item = String>) -> Self {
        let title = "Request cannot be satisfied due to temporary server capacity constraints";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, REDUCED_CAPACITY, title)
            .violating(policies)
            .with_retry_after(Duration::ZERO)
    }

    /// 429 of draft-ietf-httpapi-ratelimit-headers: for handlers that detect requests that look like an error of the
    /// client, or like an attack. No layer answers with it.
    pub fn abnormal_usage(policies: impl IntoIterator<Item = String>) -> Self {
        let title = "Request not satisfied due to detection of abnormal request pattern";
        Self::new(StatusCode::TOO_MANY_REQUESTS, ABNORMAL_USAGE, title).violating(policies)
    }

    /// Adds what this case is about.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds a `Retry-After` header, in whole seconds, rounded up and at least 1.
    #[must_use]
    pub fn with_retry_after(mut self, time: Duration) -> Self {
        self.retry_after = Some(time);
        self
    }

    fn violating(mut self, policies: impl IntoIterator<Item = String>) -> Self {
        self.violated_policies = policies.into_iter().collect();
        self
    }

    /// A status without more to say.
    pub(crate) fn plain(status: StatusCode) -> Self {
        Self::new(
            status,
            "about:blank",
            status.canonical_reason().unwrap_or_default(),
        )
    }

    /// The store is down, or failed.
    pub(crate) fn unavailable() -> Self {
        Self::plain(StatusCode::SERVICE_UNAVAILABLE).with_retry_after(Duration::ZERO)
    }

    /// A layer that needs the session is not inside the cookie layer.
    pub(crate) fn no_cookie_layer() -> Self {
        tracing::error!("a request has no session: the cookie layer must be added after this one");
        Self::plain(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The `type`: a URI that names this kind of problem.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The detail, if there is one.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// How long the client should wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The limits that refused the request.
    pub fn violated_policies(&self) -> &[String] {
        &self.violated_policies
    }

    /// The body as RFC 9457 describes it.
    pub fn to_json(&self) -> String {
        let mut json = serde_json::json!({
            "type": self.kind,
            "title": self.title,
            "status": self.status.as_u16(),
        });
        if let Some(detail) = &self.detail {
            json["detail"] = detail.as_ref().into();
        }
        if !self.violated_policies.is_empty() {
            json["violated-policies"] = self.violated_policies.clone().into();
        }
        json.to_string()
    }

    /// The response, with the body that `render` writes, or the JSON.
    pub(crate) fn respond<R: From<Bytes>>(&self, render: Option<&Render>) -> Response<R> {
        let (kind, body) = match render {
            Some(render) => (render.0)(self),
            None => (
                HeaderValue::from_static("application/problem+json"),
                Bytes::from(self.to_json()),
            ),
        };
        let mut response = Response::new(R::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, kind);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds(wait).max(1).into());
        }
        response
    }
}

/// A content type and a body for a problem.
type RenderBody = dyn Fn(&Problem) -> (HeaderValue, Bytes) + Send + Sync;

/// Writes the body of a refusal.
#[derive(Clone)]
pub(crate) struct Render(Arc<RenderBody>);

impl Render {
    pub(crate) fn new(
        render: impl Fn(&Problem) -> (HeaderValue, Bytes) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(render))
    }
}

impl fmt::Debug for Render {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Render")
    }
}

/// Whole seconds, rounded up: earlier would be too early.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// 503 if the store is down, otherwise 500. The error itself is logged, not sent.
impl From<redstart::Error> for Problem {
    fn from(error: redstart::Error) -> Self {
        tracing::warn!(%error, "a request failed");
        match error.is_unavailable() || error.is_timeout() {
            true => Self::unavailable(),
            false => Self::plain(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        self.respond(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(seconds(Duration::ZERO), 0);
        assert_eq!(seconds(Duration::from_micros(1)), 1);
        assert_eq!(seconds(Duration::from_millis(2001)), 3);
    }
}
