//! A store as a connection of redis-rs.

use redis::{Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike};

use super::Store;
use crate::{
    error::Error,
    store::request::{Body, Request, array},
};

/// Any command of redis-rs runs on a store beside the patterns.
impl ConnectionLike for Store {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let request = Request::one(cmd, self.ends());
            self.request(request).await.map_err(Error::into_redis)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let body = Body::Many {
                pipeline,
                offset,
                count,
            };
            let reply = self.request(Request::new(body, self.ends())).await;
            reply.and_then(array).map_err(Error::into_redis)
        })
    }

    fn get_db(&self) -> i64 {
        self.shared.backend.db()
    }
}
