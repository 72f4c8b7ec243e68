//! A connection that may not go on: its next command is held back, or its client was killed.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{Connection, Flow, HIGH_WATER};

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Waits until the next command may run, because clients are paused or the data moves. What was
    /// answered before it leaves now, messages go on, and a client that leaves is noticed.
    pub(super) async fn wait_paused(&mut self, stop: &CancellationToken) -> Flow {
        loop {
            self.settle_message();
            if matches!(self.flush(stop).await, Flow::Close) {
                return Flow::Close;
            }
            self.hold();
            self.make_space();
            let is_unsettled = self.unsettled.is_some();
            let limit = self.allowed.buffer;
            // A client that sends more than this waits, too.
            let has_room = self.parser.len() < HIGH_WATER;
            let next = self.commands.rest().next().unwrap_or_default();
            tokio::select! {
                biased;
                () = self.profile.end.notified() => return Flow::Close,
                () = stop.cancelled() => return Flow::Close,
                () = self.session.wait_while_paused(next) => return Flow::Continue,
                Some(pushed) = self.inbox.recv(), if !is_unsettled => self.unsettled = Some(pushed),
                () = self.session.wait_for_lock(), if is_unsettled => {}
                read = self.socket.read_buf(self.parser.buffer()), if has_room => {
                    self.session.was_read(read.as_ref().map_or(0, |count| *count));
                    if !matches!(read, Ok(count) if count > 0) || self.parser.len() > limit {
                        return Flow::Close;
                    }
                }
            }
        }
    }

    /// Writes what was pushed to a client before it was killed, as far as the client takes it at once.
    pub(super) async fn deliver_rest(&mut self, stop: &CancellationToken) {
        let mut left = self.inbox.len();
        loop {
            self.settle_message();
            while left > 0
                && self.unsettled.is_none()
                && self.out.len() < HIGH_WATER
                && let Some(pushed) = self.inbox.try_recv()
            {
                left -= 1;
                self.unsettled = Some(pushed);
                self.settle_message();
            }
            if self.out.is_empty() || matches!(self.flush(stop).await, Flow::Close) {
                return;
            }
        }
    }
}
