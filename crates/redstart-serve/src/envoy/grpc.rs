//! The service by gRPC, on the same listener as everything else: the rules of tokens, roles and limits are the same. A gateway may
//! call it by any name; a browser may not call it.

use std::{net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use axum::body::Body;
use http::{HeaderMap, Request, Response, header, request::Parts};
use tonic::{Code as GrpcCode, Status, server::UnaryService};
use tonic_prost::ProstCodec;

use super::message::{Health, HealthRequest, HealthResponse, RateLimitRequest, RateLimitResponse};
use crate::{
    app::{App, OPEN_BODY},
    auth::{self, Identity, Role},
    config::Config,
    problem::{Kind, Problem},
};

const LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
/// The deadline that a client sends with a call.
const TIMEOUT: &str = "grpc-timeout";

pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The code of an answer whose call ended before its first message; zero otherwise.
pub(crate) fn code(response: &Response<Body>) -> &str {
    let code = response.headers().get("grpc-status");
    code.and_then(|code| code.to_str().ok()).unwrap_or("0")
}

/// Answers one call. The first part is its route, for the metrics.
pub(crate) async fn answer(
    app: Arc<App>,
    request: Request<Body>,
    config: Arc<Config>,
    peer: SocketAddr,
) -> (&'static str, Response<Body>) {
    let route = match request.uri().path() {
        LIMIT => LIMIT,
        HEALTH => HEALTH,
        _ => {
            let unknown = Status::unimplemented("there is no such method");
            return ("none", unknown.into_http());
        }
    };
    let (parts, body) = request.into_parts();
    let work = async {
        let time = match timeout(&parts.headers)? {
            Some(time) => time.min(config.limits.request_time.0),
            None => config.limits.request_time.0,
        };
        let answered = carry_out(app, route, parts, body, config, peer);
        match tokio::time::timeout(time, answered).await {
            Ok(answered) => answered,
            Err(_) => Err(Problem::new(Kind::Deadline)),
        }
    };
    let response = work
        .await
        .unwrap_or_else(|problem| status(&problem).into_http());
    (route, response)
}

async fn carry_out(
    app: Arc<App>,
    route: &'static str,
    parts: Parts,
    body: Body,
    config: Arc<Config>,
    peer: SocketAddr,
) -> Result<Response<Body>, Problem> {
    let headers = &parts.headers;
    let identity = match route {
        // As `/readyz`: whoever balances the load has no token.
        HEALTH => Identity::nobody(),
        _ => {
            auth::no_browser(parts.version, headers)?;
            let identity = auth::identify(&config, headers, Some(peer.ip()))?;
            identity.require(Role::Operate)?;
            if config.read_only {
                return Err(Problem::new(Kind::ReadOnly));
            }
            identity
        }
    };
    let most = match route {
        HEALTH => OPEN_BODY.min(config.limits.body),
        _ => config.limits.body,
    };
    let body = app.body(&config, headers, body, most, false).await?;
    let request = Request::from_parts(parts, Body::from(body));
    let response = match route {
        HEALTH => {
            let codec = ProstCodec::<HealthResponse, HealthRequest>::default();
            let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(most);
            grpc.unary(CheckHealth(app), request).await
        }
        _ => {
            let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
            let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(most);
            let service = ShouldRateLimit {
                app,
                config,
                identity: Arc::new(identity),
            };
            grpc.unary(service, request).await
        }
    };
    Ok(response.map(Body::new))
}

type Answered<T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, Status>> + Send>>;

struct ShouldRateLimit {
    app: Arc<App>,
    config: Arc<Config>,
    identity: Arc<Identity>,
}

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = Answered<RateLimitResponse>;

    fn call(&mut self, request: tonic::Request<RateLimitRequest>) -> Self::Future {
        let (app, config) = (self.app.clone(), self.config.clone());
        let identity = self.identity.clone();
        Box::pin(async move {
            let decided = super::decide(&app, &config, &identity, request.get_ref()).await;
            decided
                .map(tonic::Response::new)
                .map_err(|problem| status(&problem))
        })
    }
}

struct CheckHealth(Arc<App>);

impl UnaryService<HealthRequest> for CheckHealth {
    type Response = HealthResponse;
    type Future = Answered<HealthResponse>;

    fn call(&mut self, request: tonic::Request<HealthRequest>) -> Self::Future {
        let app = self.0.clone();
        Box::pin(async move {
            let service = &request.get_ref().service;
            if !service.is_empty() && !LIMIT[1..].starts_with(&format!("{service}/")) {
                return Err(Status::not_found("there is no such service"));
            }
            let status = match app.store.health().await {
                Ok(_) if !app.stop.is_cancelled() => Health::Serving,
                _ => Health::NotServing,
            };
            Ok(tonic::Response::new(HealthResponse {
                status: status.into(),
            }))
        })
    }
}

fn status(problem: &Problem) -> Status {
    let code = match problem.status.as_u16() {
        400 => GrpcCode::InvalidArgument,
        401 => GrpcCode::Unauthenticated,
        403 => GrpcCode::PermissionDenied,
        404 => GrpcCode::NotFound,
        408 | 504 => GrpcCode::DeadlineExceeded,
        409 => GrpcCode::FailedPrecondition,
        413 | 429 => GrpcCode::ResourceExhausted,
        503 => GrpcCode::Unavailable,
        _ => GrpcCode::Internal,
    };
    Status::new(code, problem.text())
}

/// At most eight digits, and a unit.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    let Some(value) = headers.get(TIMEOUT) else {
        return Ok(None);
    };
    let time = value.to_str().ok().and_then(parse_timeout);
    let invalid = || Problem::invalid("grpc-timeout must have one to eight digits and a unit");
    time.map(Some).ok_or_else(invalid)
}

fn parse_timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.is_empty() || number.len() > 8 || !number.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_have_digits_and_a_unit() {
        assert_eq!(parse_timeout("5S"), Some(Duration::from_secs(5)));
        assert_eq!(
            parse_timeout("99999999H"),
            Some(Duration::from_secs(359_999_996_400))
        );
        assert_eq!(parse_timeout("250m"), Some(Duration::from_millis(250)));
        for bad in ["", "S", "5", "5s", "-5S", "123456789S", "5é", "é", "1.5S"] {
            assert_eq!(parse_timeout(bad), None, "{bad}");
        }
    }
}
