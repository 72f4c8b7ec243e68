//! A connection of one task, on which the server may speak first.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll},
};

use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::time::Instant;

use super::{
    input::{Input, closed},
    stream::Stream,
};

/// Sends commands and receives whatever comes, in order; what belongs to what is the caller's to know.
pub(crate) struct Duplex {
    stream: Stream,
    input: Input,
    output: Vec<u8>,
    /// How much of the output the system has taken.
    sent: usize,
    /// When bytes arrived last.
    heard: Instant,
}

impl Duplex {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            input: Input::new(),
            output: Vec::new(),
            sent: 0,
            heard: Instant::now(),
        }
    }

    /// When bytes arrived last, be it of a value that is not whole yet.
    pub(crate) fn heard(&self) -> Instant {
        self.heard
    }

    /// Adds a command to what is sent by the next call of [`next`](Self::next).
    pub(crate) fn queue(&mut self, cmd: &Cmd) {
        cmd.write_packed_command(&mut self.output);
    }

    /// The next value if it was received already.
    pub(crate) fn received(&mut self) -> RedisResult<Option<Value>> {
        self.input.next()
    }

    /// Sends what waits to be sent, and waits for the next value.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost and nothing is sent twice when the future is dropped.
    pub(crate) async fn next(&mut self) -> RedisResult<Value> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Sends a pipeline and reads its replies; pushes in between are dropped.
    pub(super) async fn ask(&mut self, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        for cmd in pipeline.cmd_iter() {
            self.queue(cmd);
        }
        let mut replies = Vec::with_capacity(pipeline.len());
        while replies.len() < pipeline.len() {
            match self.next().await? {
                Value::Push { .. } => {}
                reply => replies.push(reply),
            }
        }
        Ok(replies)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<Value>> {
        self.send(cx)?;
        loop {
            if let Some(value) = self.input.next()? {
                return Poll::Ready(Ok(value));
            }
            match self.stream.poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready?,
            }
            if self.input.receive(&self.stream)? > 0 {
                self.heard = Instant::now();
            }
        }
    }

    /// Hands to the system what it takes. If that is not all, the task is woken when it takes more.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<(), RedisError> {
        loop {
            let left = self.output.len() - self.sent;
            let taken = match left {
                // A stream may keep what it has encrypted.
                0 => self.stream.try_flush().map(|()| 0),
                _ => self.stream.try_write(&self.output[self.sent..]),
            };
            match taken {
                Ok(0) if left > 0 => return Err(closed().into()),
                Ok(0) => {
                    self.output.clear();
                    self.sent = 0;
                    return Ok(());
                }
                Ok(taken) => self.sent += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match self.stream.poll_write_ready(cx) {
                        Poll::Pending => return Ok(()),
                        Poll::Ready(ready) => ready?,
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
