//! Listening: connections, their limits, and the end. HTTP/1.1 and HTTP/2, with TLS or without, on one address.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{either::Either, task::TaskTracker};

use crate::app::App;

/// How long the head of a request may take to arrive.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Bytes of the head of a request.
const HEAD_SIZE: usize = 32 * 1024;
/// How long requests may take to end when the service stops.
const GRACE: Duration = Duration::from_secs(10);
/// Requests at the same time on one connection of HTTP/2.
const STREAMS: u32 = 512;
/// Bytes that a client may send ahead: on one stream of HTTP/2, and on all of one connection.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How often a quiet connection of HTTP/2 is asked whether it lives.
const PING: Duration = Duration::from_secs(30);
/// With what a client says that it speaks HTTP/2.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves until `shutdown` ends; then long polls and event streams end, and other requests have a grace.
pub(crate) async fn run(app: Arc<App>, listener: TcpListener, shutdown: impl Future<Output = ()>) {
    let connections = Arc::new(Semaphore::new(app.config().limits.connections));
    let tracker = TaskTracker::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let permit = tokio::select! {
            permit = connections.clone().acquire_owned() => permit,
            () = &mut shutdown => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let (stream, peer): (_, SocketAddr) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or a client that went away: others may still be served.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (app, streams) = (app.clone(), tracker.clone());
        tracker.spawn(async move {
            let _permit = permit;
            serve(app, stream, peer, Tracked(streams)).await;
        });
    }
    drop(listener);
    app.stop.cancel();
    tracker.close();
    app.changing.close();
    let ended = async { tokio::join!(tracker.wait(), app.changing.wait()) };
    if tokio::time::timeout(GRACE, ended).await.is_err() {
        tracing::warn!("requests were still running at the end of the grace");
    }
}

async fn serve(app: Arc<App>, stream: TcpStream, peer: SocketAddr, tasks: Tracked) {
    let stop = app.stop.clone();
    let opened = tokio::select! {
        opened = tokio::time::timeout(HEAD_TIME, open(&app, stream)) => opened,
        () = stop.cancelled() => return,
    };
    let (stream, is_http2) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a connection was not established");
            return;
        }
        // Whoever says nothing is not worth a place.
        Err(_) => return,
    };
    let stream = TokioIo::new(stream);
    let service = hyper::service::service_fn(move |request: hyper::Request<_>| {
        let app = app.clone();
        async move {
            let response = app.handle(request.map(Body::new), peer).await;
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    // Both kinds of connection have the same methods and no trait.
    macro_rules! drive {
        ($connection:expr) => {{
            let mut connection = std::pin::pin!($connection);
            tokio::select! {
                ended = &mut connection => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }};
    }
    let ended = match is_http2 {
        true => drive!(
            hyper::server::conn::http2::Builder::new(tasks)
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(HEAD_SIZE as u32)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .keep_alive_interval(PING)
                .serve_connection(stream, service)
        ),
        false => drive!(
            hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_SIZE)
                .serve_connection(stream, service)
        ),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

/// Runs the requests of a connection of HTTP/2, which are tasks of their own, so that the end waits for them too.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        self.0.spawn(work);
    }
}

type Opened = Either<Begun, TlsStream<TcpStream>>;

/// The stream of a connection, and whether it speaks HTTP/2: by what TLS agreed on, or by its first bytes.
async fn open(app: &App, mut stream: TcpStream) -> io::Result<(Opened, bool)> {
    if let Some(tls) = app.tls() {
        let stream = TlsAcceptor::from(tls).accept(stream).await?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        return Ok((Either::Right(stream), is_http2));
    }
    let (mut first, mut filled) = ([0; PREFACE.len()], 0);
    while filled < first.len() && first[..filled] == PREFACE[..filled] {
        match stream.read(&mut first[filled..]).await? {
            0 => break,
            read => filled += read,
        }
    }
    let begun = Begun {
        first,
        filled,
        given: 0,
        stream,
    };
    Ok((
        Either::Left(begun),
        filled == first.len() && first == *PREFACE,
    ))
}

/// A stream whose first bytes were read already, and are read again.
struct Begun {
    first: [u8; PREFACE.len()],
    filled: usize,
    given: usize,
    stream: TcpStream,
}

impl AsyncRead for Begun {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.first[self.given..self.filled];
        if rest.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, into);
        }
        let count = rest.len().min(into.remaining());
        into.put_slice(&rest[..count]);
        self.given += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Begun {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
