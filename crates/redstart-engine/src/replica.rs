//! Data of another server: copied once, or followed.

mod follow;
mod link;
#[cfg(feature = "tls")]
mod tls;

pub(crate) use follow::{Replica, Status, end, follow, follow_configured};
pub use link::{Master, MasterTls};

use std::sync::atomic::Ordering;

use link::{Answer, Link};

use crate::{
    Engine,
    engine::State,
    error::EngineError,
    rdb::{self, Expired, Summary},
};

/// What a client is told that would write to data of another server.
pub(crate) const READ_ONLY: &str = "READONLY You can't write against a read only replica.";

/// How an engine and the server that it follows stand to each other; see [`Engine::following`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Following {
    /// The server's host.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// Whether the server's changes come over.
    pub connected: bool,
    /// Up to where the data is the server's: the id of its stream of changes, and the place in it. `None` until
    /// all data was copied.
    pub position: Option<(String, u64)>,
    /// Why there is no connection, or what could not be applied the last time that this happened.
    pub error: Option<String>,
}

impl Following {
    fn of(state: &State) -> Option<Following> {
        let replica = state.replica.as_ref()?;
        let position = replica.position.as_ref();
        Some(Following {
            host: replica.master.host.clone(),
            port: replica.master.port,
            connected: replica.status == Status::Connected,
            position: position.map(|place| (place.id.clone(), place.offset)),
            error: replica.error().map(str::to_owned),
        })
    }
}

impl Engine {
    /// How the following of a server goes; `None` if there is none.
    pub fn following(&self) -> Option<Following> {
        Following::of(&self.inner.lock())
    }

    /// As [`Engine::following`], but `None` also while a command, a script or a change of the server holds the data for
    /// longer than a few milliseconds.
    pub fn try_following(&self) -> Option<Following> {
        Following::of(&*self.inner.try_lock()?)
    }

    /// How often a change of the followed server could not be applied: the data is not the server's then, until all
    /// of it was copied again. Looks at nothing that a command holds.
    ///
    /// A read that began and ended with the same number saw nothing of that.
    pub fn divergences(&self) -> u64 {
        self.inner.divergences.load(Ordering::Acquire)
    }

    /// Follows a Redis or Valkey: its data takes the place of all data here, and every change of it
    /// comes over. Clients can only read until [`Engine::promote`]; REPLICAOF does the same.
    ///
    /// The connection is re-established automatically, and goes on where it was cut if the server still
    /// has what was missed.
    ///
    /// If a change cannot be applied, the data may hold a part of a transaction until all of it was copied again;
    /// [`Engine::divergences`] tells.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn follow(&self, master: Master) -> Result<(), EngineError> {
        let mut state = self.inner.lock();
        let now = self.now_micros();
        follow(&mut state, master, now).map_err(|error| EngineError::Copy(error.to_string()))
    }

    /// Ends the following: the data stays as it is, and clients can write again.
    pub fn promote(&self) {
        end(&mut self.inner.lock());
    }

    /// Puts a copy of all data of a running Redis or Valkey in the place of all data here.
    ///
    /// The server sends it as it would to a replica, as of one moment. Blocks the thread; nothing
    /// changes here if the copy does not arrive whole.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached or refuses, the data folder cannot be written, or a server is
    /// followed.
    pub fn copy_from(
        &self,
        master: &Master,
        mut progress: impl FnMut(&Summary),
    ) -> Result<Summary, EngineError> {
        let failed = |error: std::io::Error| EngineError::Copy(error.to_string());
        let config = self.inner.lock().config.clone();
        let mut link = Link::connect(master).map_err(failed)?;
        let Answer::Full { .. } = link.synchronize(None).map_err(failed)? else {
            return Err(EngineError::Copy("the server sends no copy".into()));
        };
        let contents = link
            .receive(
                self.inner.databases,
                &config,
                self.now_micros() / 1000,
                Expired::LeftOut,
                &mut progress,
            )
            .map_err(failed)?;
        rdb::replace_and_keep(self, contents)
    }
}
