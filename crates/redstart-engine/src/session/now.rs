//! Commands that are run at once or not at all, for callers that may not stand still.

use bytes::Bytes;

use super::{End, HELD_BACK, Mode, One, Outcome, Session};
use crate::reply::Reply;

impl Session {
    /// As [`Session::execute`], but `None` if a command, a script or a change of the followed server holds the
    /// data for longer than a few milliseconds: nothing was done then.
    pub fn try_execute(&mut self, args: &[Bytes]) -> Option<Outcome> {
        let mut reply = One::default();
        let ran = self.run(std::iter::once(args), Mode::Try, &mut reply);
        let reply = match ran.end {
            End::Held => return None,
            End::Blocked(blocked) => return Some(Outcome::Blocked(blocked)),
            End::Paused => Reply::Error(HELD_BACK.into()),
            End::Done | End::Closing | End::Attached(_) => match self.inner.commit(ran.position) {
                Ok(()) => reply.0.unwrap_or(Reply::Nil),
                Err(failed) => failed,
            },
        };
        Some(Outcome::Reply(reply))
    }

    /// As [`Session::execute_batch`], but `None` where [`Session::try_execute`] is.
    pub fn try_execute_batch(&mut self, commands: &[Vec<Bytes>]) -> Option<Vec<Reply>> {
        let mut replies = Vec::with_capacity(commands.len());
        let all = commands.iter().map(Vec::as_slice);
        let ran = self.run(all, Mode::TimeOut, &mut replies);
        match ran.end {
            End::Held => return None,
            End::Paused => return Some(vec![Reply::Error(HELD_BACK.into()); commands.len()]),
            _ => {}
        }
        if let Err(failed) = self.inner.commit(ran.position) {
            replies.fill(failed);
        }
        Some(replies)
    }
}
