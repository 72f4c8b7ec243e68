//! A client of the engine, in process.
//!
//! Every way to run commands comes down to `Session::run` (`batch.rs`): take the lock, run commands in order,
//! note what their replies depend on, release the lock. The caller then waits until that much is
//! kept by the log, blocking ([`Session::execute`], [`Session::execute_batch`]) or not
//! ([`Session::call`], [`Session::pipeline`], the listener).

mod ahead;
mod batch;
mod blocked;
mod busy;
mod listener;
mod lock;
mod now;
mod push;
mod replies;

pub use ahead::LogPosition;
pub(crate) use batch::End;
pub use blocked::Blocked;
pub(crate) use listener::{Allowed, Announced, TOO_MANY_CLIENTS};
pub(crate) use lock::Ended;
pub use push::PushReceiver;
pub(crate) use replies::Wire;

use batch::Mode;
use replies::One;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    client::Client,
    dispatch,
    engine::Inner,
    reply::{Protocol, Reply},
};

/// What [`Session::execute`] and [`Session::execute_batch`] answer to what would change data while a hand-over
/// to another server holds writes back; nothing was done then. The others wait.
pub const HELD_BACK: &str = "TRYAGAIN writes are held back while the data moves";

/// A client: its database, its transaction, its subscriptions. Made by [`crate::Engine::session`].
pub struct Session {
    inner: Arc<Inner>,
    client: Client,
}

/// What became of a command that was executed without waiting.
#[derive(Debug)]
pub enum Outcome {
    /// The answer.
    Reply(Reply),
    /// Nothing is there yet: await the answer.
    Blocked(Blocked),
}

impl Outcome {
    /// The answer if there is one.
    pub fn into_reply(self) -> Option<Reply> {
        match self {
            Outcome::Reply(reply) => Some(reply),
            Outcome::Blocked(_) => None,
        }
    }
}

impl Session {
    pub(crate) fn new(inner: Arc<Inner>, client: Client) -> Session {
        Session { inner, client }
    }

    /// The client's number, as CLIENT ID says.
    pub fn id(&self) -> u64 {
        self.client.id
    }

    /// The protocol that shapes the replies.
    pub fn protocol(&self) -> Protocol {
        self.client.protocol
    }

    /// Chooses the protocol, as HELLO would.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.client.set_protocol(protocol);
    }

    /// The number of the selected database.
    pub fn db(&self) -> usize {
        self.client.db
    }

    /// Selects a database, as SELECT would.
    ///
    /// # Errors
    ///
    /// Redis's error reply if there is no such database.
    pub fn select(&mut self, db: usize) -> Result<(), Reply> {
        if db >= self.inner.databases {
            return Err(Reply::Error("ERR DB index is out of range".into()));
        }
        self.client.db = db;
        Ok(())
    }
    /// Executes a command without waiting for what it may block on. With [`crate::Fsync::Always`] a
    /// write blocks the thread until it is on the disk; [`Session::call`] does not.
    pub fn execute(&mut self, args: &[Bytes]) -> Outcome {
        match self.execute_ahead(args) {
            (Outcome::Reply(reply), position) => {
                let kept = self.inner.commit(position.at());
                Outcome::Reply(kept.err().unwrap_or(reply))
            }
            (blocked, _) => blocked,
        }
    }

    /// Executes commands under one hold of the lock. Nothing waits: a command that would block
    /// answers as after its timeout. [`Session::pipeline`] waits.
    pub fn execute_batch(&mut self, commands: &[Vec<Bytes>]) -> Vec<Reply> {
        let (mut replies, position) = self.execute_batch_ahead(commands);
        if let Err(failed) = self.inner.commit(position.at()) {
            replies.fill(failed);
        }
        replies
    }

    /// Executes a command, and waits if it blocks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future unblocks the client. What had been taken for it is put back. A command
    /// that does not block is executed by the first poll; after that, dropping the future only
    /// gives up waiting for the log.
    pub async fn call(&mut self, args: Vec<Bytes>) -> Reply {
        let (reply, position) = self.call_ahead(args).await;
        let kept = self.inner.kept(position.at()).await;
        kept.err().unwrap_or(reply)
    }

    /// Executes commands in order, waiting where one blocks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the commands before the one that blocks executed, and the others
    /// not. What had been taken for the blocked one is put back.
    pub async fn pipeline(&mut self, commands: &[Vec<Bytes>]) -> Vec<Reply> {
        let mut replies = Vec::with_capacity(commands.len());
        while replies.len() < commands.len() {
            let first = replies.len();
            let rest = commands[first..].iter().map(Vec::as_slice);
            let ran = self.run(rest, Mode::Wait, &mut replies);
            if let Err(failed) = self.inner.kept(ran.position).await {
                replies[first..].fill(failed);
            }
            match ran.end {
                End::Blocked(blocked) => replies.push(blocked.await),
                End::Paused => self.wait_while_paused(&commands[replies.len()]).await,
                End::Held => self.inner.wait_for_lock().await,
                End::Done | End::Closing | End::Attached(_) => {}
            }
        }
        replies
    }

    /// Waits while a hand-over holds writes back: until something that was answered with [`HELD_BACK`] may be
    /// tried again.
    pub async fn until_let_go(&self) {
        // Something that changes data.
        self.wait_while_paused(&[Bytes::from_static(b"FLUSHALL")])
            .await;
    }

    /// Waits for the end of a CLIENT PAUSE that concerns this command.
    pub(crate) async fn wait_while_paused(&self, args: &[Bytes]) {
        loop {
            let ended = self.inner.pause_ended.notified();
            let now = self.inner.clock.now_micros();
            let looked = self
                .inner
                .try_lock()
                .map(|mut state| dispatch::paused(&mut state, &self.client, args, now / 1000));
            let Some(until) = looked else {
                self.inner.wait_for_lock().await;
                continue;
            };
            let Some(until) = until else { return };
            let left = Duration::from_micros((until * 1000 - now).max(0) as u64);
            tokio::select! {
                () = ended => {}
                () = tokio::time::sleep(left), if self.inner.clock.is_live() => {}
            }
        }
    }

    /// Where this client's messages and invalidations arrive, as [`Reply::Push`] in either protocol.
    /// The first receiver gets them all.
    ///
    /// SUBSCRIBE and its like confirm each channel: the last confirmation is the command's reply,
    /// the others arrive here.
    pub fn pushes(&mut self) -> PushReceiver {
        PushReceiver::new(self.client.take_inbox(), &self.inner)
    }

    /// Whether QUIT was called.
    pub fn is_closing(&self) -> bool {
        self.client.closing
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.client.is_registered() {
            let client =
                std::mem::replace(&mut self.client, Client::internal(0, 0, Protocol::Resp2));
            self.inner.end(Ended::Client(Box::new(client)));
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.client.id)
            .finish_non_exhaustive()
    }
}
