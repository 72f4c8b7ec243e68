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
    let stall = app.config().limits.stall.0;
    let stream = TokioIo::new(Flowing::new(stream, stall));
    let requests = Requests::new(stall);
    let counted = requests.clone();
    let service = hyper::service::service_fn(move |request: hyper::Request<_>| {
        let (app, open) = (app.clone(), counted.open());
        async move {
            let response = app.handle(request.map(Body::new), peer).await;
            // What is streamed has not ended yet.
            let response = response.map(|body| Counted::new(body, open));
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

/// The requests of one connection.
#[derive(Clone)]
struct Requests {
    seen: Arc<watch::Sender<Seen>>,
    /// How long a client may take nothing of its replies.
    stall: Duration,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    /// How many are open.
    open: usize,
    /// Of these, how many have something to send that the client has not taken.
    ready: usize,
    /// How many there were.
    all: u64,
    /// How often a client took something.
    taken: u64,
}

impl Requests {
    fn new(stall: Duration) -> Self {
        Self {
            seen: Arc::default(),
            stall,
        }
    }

    /// One more, until it is dropped.
    fn open(&self) -> OpenRequest {
        self.seen.send_modify(|seen| {
            seen.open += 1;
            seen.all += 1;
        });
        OpenRequest {
            requests: self.clone(),
            is_ready: false,
        }
    }

    /// Ends when no request was open for a while, shorter if there never was one, or when the client has not taken
    /// anything for a while of what all its requests have for it.
    async fn idle(&self) {
        let mut watched = self.seen.subscribe();
        loop {
            let seen = *watched.borrow_and_update();
            let time = match (seen.open, seen.all) {
                (0, 0) => HEAD_TIME,
                (0, _) => IDLE,
                (open, _) if open == seen.ready => self.stall,
                // One is being worked on, or waits for its next event.
                _ => Duration::MAX,
            };
            // The sender lives as long as this.
            if tokio::time::timeout(time, watched.changed()).await.is_err() {
                return;
            }
        }
    }
}

struct OpenRequest {
    requests: Requests,
    is_ready: bool,
}

impl OpenRequest {
    /// The client took what there was, and `is_ready` says whether there is more for it.
    fn progress(&mut self, is_ready: bool) {
        let was_ready = std::mem::replace(&mut self.is_ready, is_ready);
        self.requests.seen.send_modify(|seen| {
            seen.taken += 1;
            seen.ready = seen.ready + usize::from(is_ready) - usize::from(was_ready);
        });
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.requests.seen.send_modify(|seen| {
            seen.open -= 1;
            seen.ready -= usize::from(self.is_ready);
        });
    }
}

/// The body of a response, whose request is open until it was sent. It is asked for a frame when there is room for one: one
/// that is not asked waits for its client.
struct Counted {
    body: Body,
    open: OpenRequest,
}

impl Counted {
    fn new(body: Body, mut open: OpenRequest) -> Self {
        open.progress(true);
        Self { body, open }
    }
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.open.progress(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose peer must take what is written to it, again and again. Of HTTP/1.1 nothing else ends a connection whose
/// client asks and does not read.
struct Flowing<S> {
    stream: S,
    stall: Duration,
    /// Ends when the peer has taken nothing for too long; none while it takes everything.
    waiting: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl<S> Flowing<S> {
    fn new(stream: S, stall: Duration) -> Self {
        Self {
            stream,
            stall,
            waiting: None,
        }
    }

    /// What came of writing, or an error if it has come to nothing for too long.
    fn watched<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let stall = self.stall;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Flowing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Flowing<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watched(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watched(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watched(cx, shut)
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

    const STALL: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_client_takes_nothing_is_idle() {
        use http_body_util::BodyExt as _;

        let day = Duration::from_secs(86_400);
        let requests = Requests::new(STALL);
        let mut replies: Vec<Counted> = (0..2)
            .map(|_| Counted::new(Body::from("what nobody reads"), requests.open()))
            .collect();
        let began = tokio::time::Instant::now();
        requests.idle().await;
        assert_eq!(began.elapsed(), STALL);
        // Whoever takes something has as much time again.
        let waits = requests.idle();
        tokio::pin!(waits);
        assert!(
            tokio::time::timeout(STALL * 2 / 3, &mut waits)
                .await
                .is_err()
        );
        assert!(replies[0].frame().await.is_some());
        assert!(
            tokio::time::timeout(STALL * 2 / 3, &mut waits)
                .await
                .is_err()
        );
        waits.await;
        // A request that is being worked on, or a stream that has nothing to say, is no fault of its client.
        let working = requests.open();
        assert!(tokio::time::timeout(day, requests.idle()).await.is_err());
        drop(working);
        let silent = futures_util::stream::pending::<Result<Bytes, io::Error>>();
        let mut silent = Counted::new(Body::from_stream(silent), requests.open());
        assert!(tokio::time::timeout(STALL, silent.frame()).await.is_err());
        assert!(tokio::time::timeout(day, requests.idle()).await.is_err());
        drop(silent);
        requests.idle().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_ends_its_connection() {
        use tokio::io::AsyncWriteExt as _;

        let (ours, mut theirs) = tokio::io::duplex(100);
        let mut ours = Flowing::new(ours, STALL);
        ours.write_all(&[0; 100]).await.unwrap();
        let write = ours.write_all(&[0; 100]);
        tokio::pin!(write);
        assert!(
            tokio::time::timeout(STALL * 2 / 3, &mut write)
                .await
                .is_err()
        );
        // What is taken in time is no stall.
        theirs.read_exact(&mut [0; 50]).await.unwrap();
        assert!(
            tokio::time::timeout(STALL * 2 / 3, &mut write)
                .await
                .is_err()
        );
        let error = write.await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_a_while_after_its_last_request() {
        let began = tokio::time::Instant::now();
        let requests = Requests::new(STALL);
        requests.idle().await;
        assert_eq!(began.elapsed().as_secs(), HEAD_TIME.as_secs());

        let requests = Requests::new(STALL);
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
