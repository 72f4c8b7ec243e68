//! A session as the listener uses it: a client that others see, on a socket.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    Session,
    batch::{Mode, Ran},
    replies::{self, Wire},
};
use crate::{
    aof::Place,
    client::{Inbox, Profile},
    config::Config,
    dispatch,
    error::Stop,
    feed::{
        self,
        stream::{Confirmed, Stream},
    },
    reply::Reply,
    resp::Commands,
};

pub(crate) const TOO_MANY_CLIENTS: &str = "ERR max number of clients reached";

/// What the configuration allows a client.
#[derive(Clone, Copy)]
pub(crate) struct Allowed {
    /// The longest argument in bytes.
    pub(crate) bulk: usize,
    /// How many bytes may wait to be executed.
    pub(crate) buffer: usize,
    /// How many seconds it may be silent; 0 is no limit.
    idle: u64,
}

impl Allowed {
    pub(crate) fn by(config: &Config) -> Allowed {
        Allowed {
            bulk: config.proto_max_bulk_len,
            buffer: config.query_buffer_limit,
            idle: config.timeout,
        }
    }
}

/// What became of a connection's wish to be a client.
pub(crate) enum Announced {
    Welcome(Allowed),
    /// There are too many.
    Refused,
    /// The state is held: it will be announced by the first batch that finds it free.
    Later,
}

impl Session {
    /// Makes this client visible to others, as one from a socket.
    pub(crate) fn announce(
        &mut self,
        addr: &str,
        laddr: &str,
        unix: bool,
    ) -> (Arc<Profile>, Announced) {
        let now = self.inner.clock.now_micros();
        let profile = self
            .client
            .make_profile(now, addr.to_owned(), laddr.to_owned(), unix);
        self.client.networked = true;
        let announced = match self.inner.try_lock() {
            None => {
                self.client.unannounced = Some(profile.clone());
                Announced::Later
            }
            Some(mut state) => match self.client.enter(&mut state, profile.clone()) {
                true => Announced::Welcome(Allowed::by(&state.config)),
                false => Announced::Refused,
            },
        };
        (profile, announced)
    }

    /// The client is a replica and has all data.
    pub(crate) fn replica_is_online(&self, stream: &Stream) {
        stream.set_online(self.client.id, self.inner.clock.now_micros());
    }

    /// The client is a replica and said that it is alive, or how far it is.
    pub(crate) fn replica_was_heard(&self, stream: &Stream, confirmed: Confirmed) {
        let now = self.inner.clock.now_micros();
        stream.heard(self.client.id, confirmed, now);
        // If the state is held, the next tick does this.
        if confirmed.applied.is_some()
            && let Some(mut state) = self.inner.try_lock()
        {
            feed::wake_waiting(&mut state);
            dispatch::finish(&mut state, now);
        }
    }

    /// Lets commands be counted and timed as those of a listener's client.
    #[cfg(test)]
    pub(crate) fn count_as_networked(&mut self, networked: bool) {
        self.client.networked = networked;
    }

    /// Counts bytes that came over the client's connection.
    pub(crate) fn was_read(&self, bytes: usize) {
        self.inner.traffic.read(bytes);
        if let Some(profile) = &self.client.profile {
            profile.received.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Counts bytes that went over it.
    pub(crate) fn was_written(&self, bytes: usize) {
        self.inner.traffic.wrote(bytes);
        if let Some(profile) = &self.client.profile {
            profile.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn take_inbox(&mut self) -> Inbox {
        self.client.take_inbox()
    }

    /// What the configuration allows the client, unless the state is held.
    pub(crate) fn allowed(&self) -> Option<Allowed> {
        Some(Allowed::by(&self.inner.try_lock()?.config))
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.client.authenticated
    }

    /// After how long a silent connection is closed; subscribers may be silent.
    pub(crate) fn idle_limit(&self, allowed: Allowed) -> Option<Duration> {
        let limited = allowed.idle > 0 && !self.client.is_subscribed();
        limited.then(|| Duration::from_secs(allowed.idle))
    }

    /// Writes what the client is to see.
    pub(crate) fn answer(&self, reply: &Reply, out: &mut Vec<u8>) {
        replies::answer(&self.client, reply, out);
    }

    /// Runs a connection's commands, and writes their replies and what is pushed meanwhile. They
    /// may be sent once [`Session::kept`] says so.
    pub(crate) fn run_on_wire(&mut self, commands: &Commands, mut wire: Wire<'_>) -> Ran {
        if commands.is_empty() && wire.inbox.is_empty() {
            return Ran::nothing();
        }
        self.run(commands.rest(), Mode::Wait, &mut wire)
    }

    /// Waits until replies that depend on this position of the log may leave.
    pub(crate) async fn kept(&self, position: u64) -> Result<(), Reply> {
        self.inner.kept(position).await
    }

    /// Up to where the log has to be on the disk before messages of others may be seen; `None` while the state is held for
    /// long.
    pub(crate) fn told_position(&self) -> Option<u64> {
        self.inner.told_position()
    }

    /// Up to where the log has to be on the disk before replicas may have what is in their stream.
    pub(crate) fn fed_position(&self) -> u64 {
        self.inner.fed_position()
    }

    /// Makes the client a replica that had to wait for the disk.
    pub(crate) async fn attach(&self, request: feed::Request) -> Result<feed::Attachment, Reply> {
        let mut request = Some(request);
        loop {
            if let Some(mut state) = self.inner.try_lock()
                && let Some(request) = request.take()
            {
                let now = self.inner.clock.now_micros();
                return feed::attach_now(&mut state, request, now).map_err(|stop| match stop {
                    Stop::Error(text) => Reply::Error(text.into_owned()),
                    Stop::Block(_) => Reply::Nil,
                });
            }
            self.inner.wait_for_lock().await;
        }
    }

    /// Waits until this much is on the disk, if that is what is promised, however often that fails before.
    pub(crate) async fn synced(&self, position: u64) {
        let mut place = Place::default();
        std::future::poll_fn(|cx| self.inner.poll_synced(position, &mut place, cx)).await;
    }

    /// Waits a moment while the engine's state is held for long.
    pub(crate) async fn wait_for_lock(&self) {
        self.inner.wait_for_lock().await;
    }
}
