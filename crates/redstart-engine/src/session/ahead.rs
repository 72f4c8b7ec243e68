//! Commands whose replies are there ahead of the log, for callers that wait for it on their own.

use bytes::Bytes;

use super::{End, HELD_BACK, Mode, One, Outcome, Session};
use crate::{Engine, reply::Reply};

/// Up to where the log has to be kept before a reply may be told; see [`Engine::kept`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[must_use = "the reply may be told once `Engine::kept` says so"]
pub struct LogPosition {
    at: u64,
}

impl LogPosition {
    pub(crate) fn at(self) -> u64 {
        self.at
    }
}

impl Session {
    /// As [`Session::execute`], without waiting for the log: what is answered may be told, and acted on, once
    /// [`Engine::kept`] says so. The session is free meanwhile.
    pub fn execute_ahead(&mut self, args: &[Bytes]) -> (Outcome, LogPosition) {
        let mut reply = One::default();
        let ran = self.run_blocking(std::iter::once(args), Mode::Try, &mut reply);
        match (ran.end, reply.0) {
            (End::Blocked(blocked), _) => (Outcome::Blocked(blocked), LogPosition::default()),
            (End::Paused, _) => {
                let held = Reply::Error(HELD_BACK.into());
                (Outcome::Reply(held), LogPosition::default())
            }
            (_, reply) => {
                let reply = reply.unwrap_or(Reply::Nil);
                (Outcome::Reply(reply), LogPosition { at: ran.position })
            }
        }
    }

    /// As [`Session::call`], without waiting for the log once the command was executed; see [`Session::execute_ahead`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready, the command was not executed, and what had been taken for a client that
    /// blocks is put back.
    pub async fn call_ahead(&mut self, args: Vec<Bytes>) -> (Reply, LogPosition) {
        loop {
            let mut reply = One::default();
            let ran = self.run(std::iter::once(args.as_slice()), Mode::Wait, &mut reply);
            match ran.end {
                // It has waited for the log before anything was handed over.
                End::Blocked(blocked) => return (blocked.await, LogPosition::default()),
                End::Paused => self.wait_while_paused(&args).await,
                End::Held => self.inner.wait_for_lock().await,
                End::Done | End::Closing | End::Attached(_) => {
                    let reply = reply.0.unwrap_or(Reply::Nil);
                    return (reply, LogPosition { at: ran.position });
                }
            }
        }
    }

    /// As [`Session::execute_batch`], without waiting for the log; see [`Session::execute_ahead`].
    pub fn execute_batch_ahead(&mut self, commands: &[Vec<Bytes>]) -> (Vec<Reply>, LogPosition) {
        let mut replies = Vec::with_capacity(commands.len());
        let all = commands.iter().map(Vec::as_slice);
        let ran = self.run_blocking(all, Mode::TimeOut, &mut replies);
        match ran.end {
            End::Paused => {
                let held = Reply::Error(HELD_BACK.into());
                (vec![held; commands.len()], LogPosition::default())
            }
            _ => (replies, LogPosition { at: ran.position }),
        }
    }
}

impl Engine {
    /// Waits until the log has kept what a reply depends on, without blocking the thread for a sync. All that wait at
    /// one moment share one.
    ///
    /// # Errors
    ///
    /// The error reply to give instead: the log could not be written.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only gives up waiting.
    pub async fn kept(&self, position: LogPosition) -> Result<(), Reply> {
        self.inner.kept(position.at).await
    }
}
