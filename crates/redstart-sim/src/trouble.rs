//! What really went wrong: with whom, and from when to when. The judges ask here whether something is an excuse.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{network::Peer, trace::Trace};

/// Something that went wrong for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What it was.
    pub what: What,
    /// Only for this client.
    pub client: Option<usize>,
    /// Only with this server.
    pub server: Option<usize>,
    /// When it began.
    pub from: Duration,
    /// When it ended or will end.
    pub to: Duration,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A connection broke, or nothing came through.
    Line,
    /// A message took long, or a connection was made where that takes long.
    Slow,
    /// A process stood still or was dead.
    Process,
    /// The monotonic clock of a process jumped.
    Clock,
    /// A server was down or stood still.
    Server,
    /// Another server became the master.
    Master,
    /// Slots moved, or the nodes did not agree who has them.
    Slots,
    /// A server answered with this error.
    Answer(&'static str),
}

/// All troubles of a world.
pub struct Troubles {
    trace: Arc<Trace>,
    all: Mutex<Vec<Trouble>>,
    happened: Mutex<BTreeMap<&'static str, u64>>,
}

impl Troubles {
    /// None so far.
    pub fn new(trace: Arc<Trace>) -> Arc<Self> {
        Arc::new(Self {
            trace,
            all: Mutex::default(),
            happened: Mutex::default(),
        })
    }

    /// A fault really happened: it hit something.
    pub fn happened(&self, name: &'static str) {
        *self.happened.lock().entry(name).or_default() += 1;
    }

    /// How often each fault really happened, by name.
    pub fn take_happened(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut *self.happened.lock())
    }

    /// Something goes wrong from now on for so long.
    pub fn add(&self, what: What, client: Option<usize>, server: Option<usize>, lasts: Duration) {
        let from = self.trace.now();
        self.all.lock().push(Trouble {
            what,
            client,
            server,
            from,
            to: from + lasts,
        });
    }

    /// With a client.
    pub fn of_client(&self, what: What, client: usize, lasts: Duration) {
        self.add(what, Some(client), None, lasts);
    }

    /// With a server, for all clients.
    pub fn of_server(&self, what: What, server: usize, lasts: Duration) {
        self.add(what, None, Some(server), lasts);
    }

    /// On the way between two.
    pub fn between(&self, what: What, one: Peer, other: Peer, lasts: Duration) {
        let (client, server) = match (one, other) {
            (Peer::Client(client), Peer::Server(server))
            | (Peer::Server(server), Peer::Client(client)) => (client, server),
            _ => return,
        };
        self.add(what, Some(client), Some(server), lasts);
    }

    /// Whether anything of this kind concerned a client between these times.
    pub fn any(
        &self,
        client: usize,
        from: Duration,
        to: Duration,
        is: impl Fn(What) -> bool,
    ) -> bool {
        let all = self.all.lock();
        let mut met = all.iter().filter(|trouble| {
            let concerned = trouble.client.is_none_or(|of| of == client);
            concerned && trouble.from <= to && from <= trouble.to
        });
        met.any(|trouble| is(trouble.what))
    }

    /// For how long, all in all, a client could not do much between these times. What goes wrong has consequences for some time
    /// `after` it.
    pub fn lasted(&self, client: usize, from: Duration, to: Duration, after: Duration) -> Duration {
        let all = self.all.lock();
        let mut parts: Vec<_> = all
            .iter()
            .filter(|trouble| trouble.client.is_none_or(|of| of == client))
            .map(|trouble| (trouble.from.max(from), (trouble.to + after).min(to)))
            .filter(|(begin, end)| begin < end)
            .collect();
        drop(all);
        parts.sort();
        let (mut lasted, mut until) = (Duration::ZERO, from);
        for (begin, end) in parts {
            lasted += end.saturating_sub(begin.max(until));
            until = until.max(end);
        }
        lasted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn troubles(all: &[(Option<usize>, u32, u32)]) -> Arc<Troubles> {
        let troubles = Troubles::new(Arc::new(Trace::new(false)));
        let all = all.iter().map(|(client, from, to)| Trouble {
            what: What::Line,
            client: *client,
            server: None,
            from: SECOND * *from,
            to: SECOND * *to,
        });
        troubles.all.lock().extend(all);
        troubles
    }

    #[tokio::test]
    async fn only_what_concerns_a_client_at_that_time_counts() {
        let troubles = troubles(&[(Some(1), 2, 3)]);
        let any =
            |client, from: u32, to: u32| troubles.any(client, SECOND * from, SECOND * to, |_| true);
        assert!(any(1, 3, 9));
        assert!(any(1, 0, 2));
        assert!(!any(0, 0, 9));
        assert!(!any(1, 4, 9));
        assert!(!troubles.any(1, SECOND, SECOND * 9, |what| what == What::Clock));
    }

    #[tokio::test]
    async fn troubles_at_the_same_time_count_once() {
        let troubles = troubles(&[(Some(1), 2, 3), (None, 3, 5), (Some(0), 0, 9), (None, 7, 8)]);
        let lasted =
            |from: u32, after: u32| troubles.lasted(1, SECOND * from, SECOND * 9, SECOND * after);
        assert_eq!(lasted(0, 0), SECOND * 4);
        assert_eq!(lasted(4, 0), SECOND * 2);
        assert_eq!(lasted(4, 1), SECOND * 4);
    }
}
