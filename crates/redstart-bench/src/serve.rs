//! The service beside the store that it stands on: a check over HTTP/1.1 and over gRPC against the same check by the library.
//!
//! Sixty-four connections, one request at a time on each. The service, its clients and the library are in one process, and the
//! server has the rest of the machine: what a request costs both of its ends is in the ratio. Every check is one round trip to
//! the store, whichever way it came; the reference implementation of Envoy's service also needs one for each descriptor.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use redstart::{
    Store,
    limiting::{Limiter, Quota},
};
use redstart_serve::{Config, Service};
use redstart_testkit::{Kind, Server};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Mutex,
};

use crate::measure::Bench;

const CONNECTIONS: usize = 64;
/// A burst that never runs out.
const PLENTY: u64 = 1 << 30;
const CONFIG: &str = r#"
namespace = "bench"
[limiter.api]
quota = "1000/s"
burst = 1073741824
[[domain]]
name = "edge"
[[domain.descriptor]]
key = "user"
limiter = "api"
"#;

pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let _watched = bench.watch(&server);
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let service = Service::new(&store, Config::parse(CONFIG)?)?;
    let listener = service.bind("127.0.0.1:0".parse()?).await?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(async move { service.run(listener, std::future::pending()).await });
    bench.note(&format!(
        "redis-server {}, {CONNECTIONS} connections to the service, all in this process",
        server.info("redis_version").await?
    ));
    let limiter = Limiter::token_bucket(
        &store,
        "bench",
        "api",
        Quota::per_second(1000).burst(PLENTY),
    )
    .build()?;
    let bare = move |task: usize| {
        let limiter = limiter.clone();
        async move {
            let decision = limiter.check(&format!("user:{task}"), 1).await?;
            ensure!(decision.is_allowed());
            Ok(())
        }
    };

    let mut plain = Vec::new();
    let mut grpc = Vec::new();
    for task in 0..CONNECTIONS {
        plain.push(Mutex::new(Plain::connect(address, task).await?));
        grpc.push(Mutex::new(Grpc::connect(address, task).await?));
    }
    let (plain, grpc) = (Arc::new(plain), Arc::new(grpc));
    let over_http = move |task: usize| {
        let plain = plain.clone();
        async move { plain[task].lock().await.check().await }
    };
    let over_grpc = move |task: usize| {
        let grpc = grpc.clone();
        async move { grpc[task].lock().await.check().await }
    };
    let trips = round_trips(&server, &over_http).await?;
    bench.note(&format!(
        "round trips to the store per check over HTTP: {trips:.2}"
    ));
    ensure!(trips < 1.1, "a check costs {trips} round trips");
    let name = |way: &str| format!("check over {way}, {CONNECTIONS} connections");
    bench
        .rate(
            &name("HTTP/1.1"),
            "our store",
            0.1,
            CONNECTIONS,
            over_http,
            bare.clone(),
        )
        .await?;
    bench
        .rate(
            &name("gRPC"),
            "our store",
            0.1,
            CONNECTIONS,
            over_grpc,
            bare,
        )
        .await?;
    serving.abort();
    Ok(())
}

/// What the server reads for a check, when nothing else happens.
async fn round_trips<F, Fut>(server: &Server, check: &F) -> anyhow::Result<f64>
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    const CHECKS: usize = 2_000;
    check(0).await?;
    let calls = async || -> anyhow::Result<f64> {
        let stats = server.info("cmdstat_evalsha").await?;
        let calls = stats
            .split(',')
            .find_map(|part| part.strip_prefix("calls="));
        Ok(calls.context("no scripts were called")?.parse()?)
    };
    let before = calls().await?;
    for n in 0..CHECKS {
        check(n % CONNECTIONS).await?;
    }
    Ok((calls().await? - before) / CHECKS as f64)
}

/// One connection of HTTP/1.1, which is kept.
struct Plain {
    stream: TcpStream,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Plain {
    async fn connect(address: SocketAddr, task: usize) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let body = format!("{{\"subject\":\"user:{task}\"}}");
        let request = format!(
            "POST /v1/limiters/api:check HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        Ok(Self {
            stream,
            request: request.into_bytes(),
            reply: Vec::with_capacity(4096),
        })
    }

    async fn check(&mut self) -> anyhow::Result<()> {
        self.stream.write_all(&self.request).await?;
        self.reply.clear();
        let whole = loop {
            ensure!(
                self.stream.read_buf(&mut self.reply).await? > 0,
                "the service closed the connection"
            );
            if let Some(whole) = length(&self.reply)? {
                break whole;
            }
        };
        while self.reply.len() < whole {
            ensure!(self.stream.read_buf(&mut self.reply).await? > 0);
        }
        let allowed = b"\"allowed\":true";
        ensure!(
            self.reply.starts_with(b"HTTP/1.1 200")
                && self
                    .reply
                    .windows(allowed.len())
                    .any(|part| part == allowed),
            "{}",
            String::from_utf8_lossy(&self.reply)
        );
        Ok(())
    }
}

/// How long an answer is with its head, if the head is there.
fn length(reply: &[u8]) -> anyhow::Result<Option<usize>> {
    let Some(head) = reply.windows(4).position(|part| part == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&reply[..head])?;
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.context("an answer without a length")?.parse()?;
    Ok(Some(head + 4 + length))
}

/// One connection of gRPC, which is made again when the service has closed it: it rests while other rows are measured.
struct Grpc {
    address: SocketAddr,
    task: usize,
    sender: http2::SendRequest<Full<Bytes>>,
    request: http::Request<()>,
    message: Bytes,
}

impl Grpc {
    async fn connect(address: SocketAddr, task: usize) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = http::Request::post(format!(
            "http://{address}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        ))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
        Ok(Self {
            address,
            task,
            sender,
            request,
            message: message("edge", "user", &task.to_string()).into(),
        })
    }

    async fn check(&mut self) -> anyhow::Result<()> {
        if self.sender.ready().await.is_err() {
            *self = Self::connect(self.address, self.task).await?;
        }
        let request = self
            .request
            .clone()
            .map(|()| Full::new(self.message.clone()));
        let answer = self.sender.send_request(request).await?;
        ensure!(answer.status() == 200, "{}", answer.status());
        let body = answer.into_body().collect().await?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let status = trailers.get("grpc-status");
        ensure!(status.is_some_and(|status| status == "0"), "{trailers:?}");
        // The first field of the message is the overall code, and OK is 1.
        let bytes = body.to_bytes();
        ensure!(bytes.get(5..7) == Some(&[0x08, 0x01]), "{bytes:?}");
        Ok(())
    }
}

/// A `RateLimitRequest` with one descriptor of one entry, in its frame.
fn message(domain: &str, key: &str, value: &str) -> Vec<u8> {
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        // All are shorter than 128 bytes.
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }
    let entry = [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
    let descriptor = field(1, &entry);
    let message = [field(1, domain.as_bytes()), field(2, &descriptor)].concat();
    let length = (message.len() as u32).to_be_bytes();
    [&[0][..], &length, &message].concat()
}
