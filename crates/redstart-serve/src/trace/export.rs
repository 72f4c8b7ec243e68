//! Sends spans to a collector, in batches.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{net::TcpStream, sync::mpsc};
use tokio_rustls::TlsConnector;
use tokio_util::{either::Either, sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    OtlpConfig,
    message::{Export, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span, Value},
};
use crate::config::ConfigError;

/// Spans of one request to the collector.
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// How long a collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often a batch is sent, and the first wait between; each is twice the one before.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(250);
/// The most that is read of a collector's answer.
const ANSWER: usize = 64 * 1024;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Where spans go.
pub(super) struct Target {
    host: String,
    port: u16,
    authority: HeaderValue,
    path: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    resource: Resource,
}

impl Target {
    pub(super) fn new(config: &OtlpConfig) -> Result<Self, ConfigError> {
        let uri = &config.endpoint.0;
        let is_tls = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default();
        let authority = uri.authority().map_or(host, |authority| authority.as_str());
        let invalid = |_| ConfigError::new("the host of the collector is invalid");
        // An IPv6 address is in brackets in a URI, and nowhere else.
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let tls = match is_tls {
            true => {
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| ConfigError::new("the host of the collector is invalid"))?;
                Some((connector()?, name))
            }
            false => None,
        };
        let text = |key, value: &str| KeyValue::new(key, Value::Text(value.to_owned()));
        Ok(Self {
            port: uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            authority: HeaderValue::try_from(authority).map_err(invalid)?,
            path: format!("{}/v1/traces", uri.path().trim_end_matches('/')),
            tls,
            headers: config.headers.0.clone(),
            resource: Resource {
                attributes: vec![
                    text("service.name", &config.service_name),
                    text("service.version", env!("CARGO_PKG_VERSION")),
                ],
            },
            host,
        })
    }

    async fn post(&self, body: Bytes) -> Result<StatusCode, BoxError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let stream = match &self.tls {
            Some((tls, name)) => Either::Left(tls.connect(name.clone(), stream).await?),
            None => Either::Right(stream),
        };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let mut request = Request::post(&self.path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .header(header::CONNECTION, "close");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let response = sender.send_request(request.body(Full::new(body))?).await?;
        let status = response.status();
        // What it says is of no use, but a collector whose answer is not read sees a broken connection.
        let _ = Limited::new(response.into_body(), ANSWER).collect().await;
        Ok(status)
    }
}

fn connector() -> Result<TlsConnector, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // A system may have some that are not understood.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(ConfigError::new(
            "the collector is to be reached by https, and this machine has no certificates to trust",
        ));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ConfigError::new(&error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

pub(super) fn count(outcome: &'static str, spans: usize) {
    metrics::counter!("redstart_otlp_spans_total", "outcome" => outcome).increment(spans as u64);
}

/// Spans that nobody has taken yet: dropped, they are counted, also if the task that sends them is ended.
struct Unsent(usize);

impl Unsent {
    fn are(&mut self, outcome: &'static str) {
        count(outcome, std::mem::take(&mut self.0));
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if self.0 > 0 {
            tracing::warn!(
                spans = self.0,
                "spans were dropped: the collector cannot be reached"
            );
            count("dropped", self.0);
        }
    }
}

/// Those that wait in the channel.
struct Waiting(mpsc::Receiver<Span>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.close();
        let mut left = Unsent(0);
        while self.0.try_recv().is_ok() {
            left.0 += 1;
        }
    }
}

/// Sends spans until `stop`, and then those that wait, each once.
pub(super) async fn run(spans: mpsc::Receiver<Span>, target: Target, stop: CancellationToken) {
    let mut spans = Waiting(spans);
    loop {
        let mut batch = Vec::new();
        let found = tokio::select! {
            found = spans.0.recv_many(&mut batch, BATCH) => found,
            () = stop.cancelled(), if !spans.0.is_closed() => {
                spans.0.close();
                continue;
            }
        };
        if found == 0 {
            return;
        }
        // Nothing is awaited between the channel and the count.
        let mut unsent = Unsent(batch.len());
        let gather = async {
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                if spans.0.recv_many(&mut batch, room).await == 0 {
                    return;
                }
                unsent.0 = batch.len();
            }
        };
        tokio::select! {
            () = gather => {}
            () = tokio::time::sleep(GATHER) => {}
            () = stop.cancelled() => {}
        }
        deliver(&target, batch, unsent, &stop).await;
    }
}

async fn deliver(target: &Target, spans: Vec<Span>, mut unsent: Unsent, stop: &CancellationToken) {
    let message = Export {
        resource_spans: vec![ResourceSpans {
            resource: Some(target.resource.clone()),
            scope_spans: vec![ScopeSpans {
                scope: Some(Scope {
                    name: "redstart".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                spans,
            }],
        }],
    };
    let body = Bytes::from(message.encode_to_vec());
    let mut pause = PAUSE;
    for attempt in 1..=TRIES {
        let posted = tokio::time::timeout(TIMEOUT, target.post(body.clone())).await;
        let problem = match posted {
            Ok(Ok(status)) if status.is_success() => return unsent.are("sent"),
            // Only these may be sent again, as the protocol says.
            Ok(Ok(status)) if !matches!(status.as_u16(), 429 | 502 | 503 | 504) => {
                tracing::warn!(%status, spans = unsent.0, "the collector refused spans");
                return unsent.are("refused");
            }
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        tracing::debug!(problem, attempt, "spans could not be sent");
        if attempt == TRIES || stop.is_cancelled() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // These have one more try.
            () = stop.cancelled() => {}
        }
        pause *= 2;
    }
}
