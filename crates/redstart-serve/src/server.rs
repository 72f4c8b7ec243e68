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
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
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
/// How long a connection of HTTP/2 may have no request, once it had one.
const IDLE: Duration = Duration::from_secs(60);
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
    let requests = Requests::default();
    let counted = requests.clone();
    let service = hyper::service::service_fn(move |request: hyper::Request<_>| {
        let (app, open) = (app.clone(), counted.open());
        async move {
            let response = app.handle(request.map(Body::new), peer).await;
            // What is streamed has not ended yet.
            let response = response.map(|body| Counted { body, _open: open });
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    // Both kinds of connection have the same methods and no trait. Of HTTP/1.1 `header_read_timeout` ends the idle ones.
    macro_rules! drive {
        ($connection:expr) => {{
            let mut connection = std::pin::pin!($connection);
            let ended = tokio::select! {
                ended = &mut connection => Some(ended),
                () = stop.cancelled() => None,
                () = requests.idle(), if is_http2 => None,
            };
            match ended {
                Some(ended) => ended,
                None => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = &mut connection => ended,
                        // It was asked to go, and did not.
                        () = requests.idle(), if is_http2 => return,
                    }
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

/// The requests of one connection: how many are open, and how many there were.
#[derive(Clone, Default)]
struct Requests(Arc<watch::Sender<(usize, u64)>>);

impl Requests {
    /// One more, until it is dropped.
    fn open(&self) -> OpenRequest {
        self.0.send_modify(|(open, all)| {
            *open += 1;
            *all += 1;
        });
        OpenRequest(self.clone())
    }

    /// Ends when no request was open for a while: shorter if there never was one.
    async fn idle(&self) {
        let mut seen = self.0.subscribe();
        loop {
            let (open, all) = *seen.borrow_and_update();
            let time = match (open, all) {
                (1.., _) => Duration::MAX,
                (0, 0) => HEAD_TIME,
                (0, _) => IDLE,
            };
            // The sender lives as long as this.
            if tokio::time::timeout(time, seen.changed()).await.is_err() {
                return;
            }
        }
    }
}

struct OpenRequest(Requests);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.0.send_modify(|(open, _)| *open -= 1);
    }
}

/// The body of a response, whose request is open until it was sent.
struct Counted {
    body: Body,
    _open: OpenRequest,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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

type Line = Either<TcpStream, TlsStream<TcpStream>>;

/// The stream of a connection, and whether it speaks HTTP/2, by its first bytes. With TLS it has agreed on that before, but
/// only these bytes show that somebody is there.
async fn open(app: &App, stream: TcpStream) -> io::Result<(Begun<Line>, bool)> {
    let mut stream = match app.tls() {
        Some(tls) => Either::Right(TlsAcceptor::from(tls).accept(stream).await?),
        None => Either::Left(stream),
    };
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
    Ok((begun, filled == first.len() && first == *PREFACE))
}

/// A stream whose first bytes were read already, and are read again.
struct Begun<S> {
    first: [u8; PREFACE.len()],
    filled: usize,
    given: usize,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_a_while_after_its_last_request() {
        let began = tokio::time::Instant::now();
        let requests = Requests::default();
        requests.idle().await;
        assert_eq!(began.elapsed().as_secs(), HEAD_TIME.as_secs());

        let requests = Requests::default();
        let (first, second) = (requests.open(), requests.open());
        let waits = requests.idle();
        tokio::pin!(waits);
        let day = Duration::from_secs(86_400);
        assert!(tokio::time::timeout(day, &mut waits).await.is_err());
        drop(first);
        assert!(tokio::time::timeout(day, &mut waits).await.is_err());
        drop(second);
        // One that begins and ends between two looks counts as well.
        assert!(tokio::time::timeout(IDLE / 2, &mut waits).await.is_err());
        drop(requests.open());
        assert!(
            tokio::time::timeout(IDLE * 2 / 3, &mut waits)
                .await
                .is_err()
        );
        waits.await;
    }
}
