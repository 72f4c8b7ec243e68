//! Listening: connections, their limits, and the end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::body::Body;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::task::TaskTracker;

use crate::app::App;

/// How long the head of a request may take to arrive.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Bytes of the head of a request.
const HEAD_SIZE: usize = 32 * 1024;
/// How long requests may take to end when the service stops.
const GRACE: Duration = Duration::from_secs(10);

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
        let app = app.clone();
        tracker.spawn(async move {
            let _permit = permit;
            let stop = app.stop.clone();
            let service = hyper::service::service_fn(move |request: hyper::Request<_>| {
                let app = app.clone();
                async move {
                    let response = app.handle(request.map(Body::new), peer).await;
                    Ok::<_, std::convert::Infallible>(response)
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_SIZE)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = &mut connection => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended with an error");
            }
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
