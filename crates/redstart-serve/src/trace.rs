//! Spans for OpenTelemetry: what each request did, sent to a collector by OTLP over HTTP.
//!
//! A request is a span of kind server; the operations of the patterns that it needs are spans of kind client below it.
//! What the service does on its own is not sent. A `traceparent` that comes with a request is continued.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::body::Body;
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, de::Error as _};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::{
    Metadata, Span, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{Layer, filter::FilterFn, layer::Context, registry::LookupSpan};

use crate::config::{Config, ConfigError};

mod export;
mod message;

/// Spans that wait to be sent. Above it they are dropped: a collector that is away must not cost memory.
const WAITING: usize = 4096;
/// How long the last spans may take to be sent.
const LAST: Duration = Duration::from_secs(5);
/// The target of the spans of requests. Only they begin a trace.
const REQUEST: &str = "redstart_serve::request";

/// Where spans are sent.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OtlpConfig {
    endpoint: Endpoint,
    #[serde(default = "service_name")]
    service_name: String,
    /// Of how many requests that bring no decision with them.
    #[serde(default)]
    sample: Share,
    /// For the collector, such as a key.
    #[serde(default)]
    headers: Headers,
}

impl fmt::Debug for OtlpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A header may be a secret.
        f.debug_struct("OtlpConfig")
            .field("endpoint", &self.endpoint.0)
            .finish_non_exhaustive()
    }
}

impl OtlpConfig {
    /// Sets the endpoint and keeps the rest.
    pub(crate) fn set(this: &mut Option<Self>, endpoint: &str) -> Result<(), &'static str> {
        let endpoint = Endpoint::parse(endpoint)?;
        match this {
            Some(config) => config.endpoint = endpoint,
            None => {
                *this = Some(Self {
                    endpoint,
                    service_name: service_name(),
                    sample: Share::default(),
                    headers: Headers::default(),
                });
            }
        }
        Ok(())
    }
}

fn service_name() -> String {
    "redstart-serve".to_owned()
}

/// The address of a collector; `/v1/traces` is added to its path.
#[derive(Clone)]
struct Endpoint(Uri);

impl Endpoint {
    fn parse(text: &str) -> Result<Self, &'static str> {
        const FORM: &str = "an endpoint must be http:// or https:// with a host";
        let uri: Uri = text.parse().map_err(|_| FORM)?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let host = uri.host().is_some_and(|host| !host.is_empty());
        let is_plain =
            uri.query().is_none() && !uri.authority().is_some_and(|a| a.as_str().contains('@'));
        if is_http && host && is_plain {
            Ok(Self(uri))
        } else {
            Err(FORM)
        }
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(input)?).map_err(D::Error::custom)
    }
}

/// From none to all.
#[derive(Clone, Copy)]
struct Share(f64);

impl Default for Share {
    fn default() -> Self {
        Self(1.0)
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let share = f64::deserialize(input)?;
        match (0.0..=1.0).contains(&share) {
            true => Ok(Self(share)),
            false => Err(D::Error::custom("sample must be a number from 0 to 1")),
        }
    }
}

#[derive(Clone, Default)]
struct Headers(Vec<(HeaderName, HeaderValue)>);

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let mut headers = Vec::new();
        for (name, value) in BTreeMap::<String, String>::deserialize(input)? {
            let name = HeaderName::try_from(name)
                .map_err(|_| D::Error::custom("a header's name is invalid"))?;
            let value = HeaderValue::try_from(value)
                .map_err(|_| D::Error::custom("a header's value is invalid"))?;
            headers.push((name, value));
        }
        Ok(Self(headers))
    }
}

/// The spans of this process: a [layer](Self::layer) of its subscriber collects them, and once [started](Self::start) they
/// are sent to a collector. Before that they cost nothing. Cheap to clone.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redstart_serve::{Config, Spans};
/// use tracing_subscriber::layer::SubscriberExt as _;
///
/// let spans = Spans::default();
/// tracing::subscriber::set_global_default(tracing_subscriber::registry().with(spans.layer()))?;
/// let config = Config::parse("[otlp]\nendpoint = \"http://127.0.0.1:4318\"")?;
/// spans.start(&config)?;
/// // … run the service …
/// spans.stop().await;
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - A request never waits for the collector. Up to 4096 spans wait for it; more are dropped and counted.
/// - Spans have no bodies, no queries and no tokens: the method, the path, the route and the status of a request, the
///   name and the namespace of an operation.
#[derive(Clone, Default)]
pub struct Spans(Arc<Inner>);

#[derive(Default)]
struct Inner {
    out: OnceLock<Out>,
    sending: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
}

struct Out {
    spans: mpsc::Sender<message::Span>,
    sample: f64,
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let started = self.0.out.get().is_some();
        f.debug_struct("Spans").field("started", &started).finish()
    }
}

impl Spans {
    /// The layer that collects the spans of this library, and nothing else.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let inner = self.0.clone();
        let wanted = move |span: &Metadata<'_>| {
            let is_ours = span.target() == REQUEST || span.target().starts_with("redstart::");
            inner.out.get().is_some() && span.is_span() && is_ours
        };
        let wanted = FilterFn::new(wanted).with_max_level_hint(LevelFilter::DEBUG);
        SpanLayer(self.0.clone()).with_filter(wanted)
    }

    /// Begins to send, if the configuration has `[otlp]`. It must be called within a runtime. A second call does nothing.
    ///
    /// # Errors
    ///
    /// If the collector is to be reached by TLS and there is no certificate to trust on this machine.
    pub fn start(&self, config: &Config) -> Result<(), ConfigError> {
        let Some(config) = &config.otlp else {
            return Ok(());
        };
        let target = export::Target::new(config)?;
        let (sender, receiver) = mpsc::channel(WAITING);
        let out = Out {
            spans: sender,
            sample: config.sample.0,
        };
        if self.0.out.set(out).is_err() {
            return Ok(());
        }
        let sending = tokio::spawn(export::run(receiver, target, self.0.stop.clone()));
        *self.0.sending.lock() = Some(sending);
        // Spans that were known to be of no interest are of interest now.
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    }

    /// Sends what waits, for at most 5 s, and ends. What could not be sent is counted as dropped.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        let sending = self.0.sending.lock().take();
        if let Some(mut sending) = sending
            && tokio::time::timeout(LAST, &mut sending).await.is_err()
        {
            sending.abort();
            // It counts what it had.
            let _ = sending.await;
        }
    }
}

/// What is known of a span that has not ended.
struct Open {
    trace: u128,
    id: u64,
    /// Whether it is sent.
    sampled: bool,
    span: message::Span,
}

struct SpanLayer(Arc<Inner>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let (Some(out), Some(span)) = (self.0.out.get(), context.span(id)) else {
            return;
        };
        let parent = span.parent();
        let known = parent.as_ref().and_then(|parent| {
            let extensions = parent.extensions();
            let open = extensions.get::<Open>()?;
            Some((open.trace, open.id, open.sampled))
        });
        let is_request = span.metadata().target() == REQUEST;
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let remote = fields.parent.as_deref().and_then(parse_parent);
        let (trace, above, sampled) = match known.or(remote) {
            Some(known) => known,
            // What belongs to no request is not sent.
            None => {
                let sampled = is_request && rand::random::<f64>() < out.sample;
                (rand::random(), 0, sampled)
            }
        };
        let mut open = Open {
            trace,
            id: rand::random::<u64>().max(1),
            sampled,
            span: message::Span::default(),
        };
        if sampled {
            let made = &mut open.span;
            made.trace_id = trace.to_be_bytes().to_vec();
            made.span_id = open.id.to_be_bytes().to_vec();
            if above != 0 {
                made.parent_span_id = above.to_be_bytes().to_vec();
            }
            made.name = span.metadata().name().to_owned();
            made.kind = if is_request {
                message::SERVER
            } else {
                message::CLIENT
            };
            made.start_time_unix_nano = now();
            fields.put(made);
        }
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else {
            return;
        };
        let mut extensions = span.extensions_mut();
        if let Some(open) = extensions.get_mut::<Open>()
            && open.sampled
        {
            let mut fields = Fields::default();
            values.record(&mut fields);
            fields.put(&mut open.span);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let (Some(out), Some(span)) = (self.0.out.get(), context.span(&id)) else {
            return;
        };
        let Some(mut open) = span.extensions_mut().remove::<Open>() else {
            return;
        };
        if !open.sampled {
            return;
        }
        open.span.end_time_unix_nano = now();
        if out.spans.try_send(open.span).is_err() {
            export::count("dropped", 1);
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// What a span says of itself.
#[derive(Default)]
struct Fields {
    attributes: Vec<message::KeyValue>,
    name: Option<String>,
    /// A `traceparent`.
    parent: Option<String>,
    failed: bool,
}

impl Fields {
    fn add(&mut self, field: &Field, value: message::Value) {
        use message::Value::{Bool, Text};
        match (field.name(), value) {
            ("otel.name", Text(name)) => self.name = Some(name),
            ("traceparent", Text(parent)) => self.parent = Some(parent),
            ("error", Bool(failed)) => self.failed = failed,
            // The library's own names are short.
            ("operation", Text(name)) => {
                self.name = Some(name.clone());
                self.attributes
                    .push(message::KeyValue::new("redstart.operation", Text(name)));
            }
            ("namespace", value) => {
                self.attributes
                    .push(message::KeyValue::new("redstart.namespace", value));
            }
            (name, value) => self.attributes.push(message::KeyValue::new(name, value)),
        }
    }

    fn put(self, span: &mut message::Span) {
        span.attributes.extend(self.attributes);
        if let Some(name) = self.name {
            span.name = name;
        }
        if self.failed {
            span.status = Some(message::Status {
                code: message::FAILED,
            });
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, message::Value::Text(value.to_owned()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, message::Value::Bool(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, message::Value::Int(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(
            field,
            message::Value::Int(i64::try_from(value).unwrap_or(i64::MAX)),
        );
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, message::Value::Double(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, message::Value::Text(format!("{value:?}")));
    }
}

/// `00-<trace>-<span>-<flags>`: the trace, the span above, and whether it is sent.
fn parse_parent(text: &str) -> Option<(u128, u64, bool)> {
    let hex = |text: &str, length: usize| {
        let plain = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        text.len() == length && text.bytes().all(plain)
    };
    let mut parts = text.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // Later versions may have more parts; this one has not.
    let more = parts.next().is_some();
    if !hex(version, 2) || version == "ff" || version == "00" && more {
        return None;
    }
    if !hex(trace, 32) || !hex(span, 16) || !hex(flags, 2) {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
    let span = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some((trace, span, flags & 1 == 1))
}

/// The span of one request.
pub(crate) fn request_span(request: &Request<Body>) -> Span {
    use tracing::field::Empty;
    let parent = request.headers().get("traceparent");
    tracing::info_span!(
        target: REQUEST,
        "request",
        otel.name = Empty,
        http.request.method = request.method().as_str(),
        url.path = request.uri().path(),
        http.route = Empty,
        http.response.status_code = Empty,
        rpc.grpc.status_code = Empty,
        traceparent = parent.and_then(|parent| parent.to_str().ok()),
        error = Empty,
    )
}

/// Says how a request was answered.
pub(crate) fn answered(span: &Span, method: &Method, route: &str, response: &Response<Body>) {
    if span.is_disabled() {
        return;
    }
    let status = response.status();
    span.record("otel.name", format!("{method} {route}"));
    span.record("http.route", route);
    span.record("http.response.status_code", status.as_u16());
    let code = response.headers().get("grpc-status");
    if let Some(code) = code.and_then(|code| code.to_str().ok()) {
        span.record("rpc.grpc.status_code", code);
    }
    if status.is_server_error() {
        span.record("error", true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_understood_as_the_standard_says() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let parsed = parse_parent(&format!("00-{trace}-{span}-01"));
        let expected = (
            0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
            0x00f0_67aa_0ba9_02b7,
        );
        assert_eq!(parsed, Some((expected.0, expected.1, true)));
        let parsed = parse_parent(&format!("00-{trace}-{span}-00"));
        assert_eq!(parsed, Some((expected.0, expected.1, false)));
        assert!(parse_parent(&format!("01-{trace}-{span}-03-more")).is_some());
        for bad in [
            String::new(),
            format!("00-{trace}-{span}"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{trace}-{span}-01-more"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{}-{span}-01", "+".repeat(32)),
            format!("00-{trace}-{span}-é"),
        ] {
            assert_eq!(parse_parent(&bad), None, "{bad}");
        }
    }

    #[test]
    fn an_endpoint_is_an_address_of_http() {
        for good in [
            "http://127.0.0.1:4318",
            "https://collector/otlp/",
            "http://[::1]:1",
        ] {
            assert!(Endpoint::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "collector:4318",
            "grpc://a",
            "http://",
            "/v1",
            "http://u:p@a",
            "http://a?b",
        ] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
    }
}
