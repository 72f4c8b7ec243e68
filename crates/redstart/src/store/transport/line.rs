//! What requests are sent over.

use redis::{RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tokio::time::timeout_at;

use super::wire::Wire;
use crate::store::request::{Body, BoxFuture, Failure, Request};

/// A connection that answers requests.
pub(crate) enum Line {
    /// A connection of our own.
    Wire(Wire),
    /// One of the `redis` crate, where only it knows how to connect.
    Client(MultiplexedConnection),
}

impl Line {
    /// Sends and waits for the reply until the deadline.
    pub(crate) async fn send(&self, request: Request<'_>) -> Result<Value, Failure> {
        match self {
            Self::Wire(wire) => wire.send(request).await,
            Self::Client(connection) => {
                if request.body.replies() == 0 {
                    return Ok(Value::Array(Vec::new()));
                }
                let sending = by_client(connection.clone(), request.body);
                match timeout_at(request.deadline, sending).await {
                    Ok(Ok(value)) => Ok(value),
                    Ok(Err(error)) if answered(&error) => Err(Failure::Answer(error)),
                    Ok(Err(error)) => Err(Failure::Lost(error)),
                    Err(_) => Err(Failure::TimedOut),
                }
            }
        }
    }
}

/// The error is the server's answer, and the connection is open.
fn answered(error: &RedisError) -> bool {
    error.code().is_some()
        || matches!(error.kind(), redis::ErrorKind::Server(_))
        || !(error.is_unrecoverable_error() || error.is_io_error())
}

/// Boxed: otherwise the futures of all patterns would need room for the client's.
fn by_client<'a>(
    mut connection: MultiplexedConnection,
    body: Body<'a>,
) -> BoxFuture<'a, RedisResult<Value>> {
    Box::pin(async move {
        match body {
            Body::One(cmd) => connection.send_packed_command(cmd).await,
            Body::Many {
                pipeline,
                offset,
                count,
            } => connection
                .send_packed_commands(pipeline, offset, count)
                .await
                .map(Value::Array),
        }
    })
}
