//! The network: byte streams that are late, come in pieces, break, and fall silent.
//!
//! A [`Connection`] has two [`Lane`]s, one for each direction. What is written into a lane flies for a while and arrives
//! in pieces. A partition stalls lanes: what was written is delivered when the partition ends, as TCP's
//! retransmissions would, unless the sender's system gives up first.

mod connection;

pub use connection::End;
use connection::{Connection, Lane};

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redstart::sim::{Network, Socket, current};
use tokio::sync::Notify;

use crate::{
    agenda::Agenda,
    dice::Dice,
    trace::Trace,
    trouble::{Troubles, What},
};

/// For how many of the usual delays a new connection is slow: it is greeted, and its first script goes twice.
const COLD: u64 = 12;

/// Who is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// A client process, by its number.
    Client(usize),
    /// A server, by its number.
    Server(usize),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(number) => write!(f, "client {number}"),
            Self::Server(number) => write!(f, "server {number}"),
        }
    }
}

/// How the network behaves all the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weather {
    /// The usual delay, from and to, in milliseconds.
    pub delay: (u64, u64),
    /// How many of a thousand writes take long, and how long at most.
    pub slow: (u64, u64),
    /// How many of a thousand writes arrive in pieces.
    pub split: u64,
    /// How many bytes a direction holds.
    pub window: usize,
}

/// What a dial meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Somebody listens.
    Listening,
    /// Nobody listens, and the host says so.
    Refused,
    /// Somebody listens, and takes no more connections.
    Refusing,
    /// The host is gone: nothing answers.
    Gone,
}

/// A place that can be dialled.
pub trait Host: Send + Sync {
    /// Its number.
    fn peer(&self) -> Peer;
    /// What a dial meets now.
    fn reach(&self) -> Reach;
    /// Takes a new connection.
    fn accept(&self, end: End);
}

/// All connections, and who can reach whom.
pub struct Net {
    trace: Arc<Trace>,
    troubles: Arc<Troubles>,
    agenda: Arc<Agenda>,
    seed: u64,
    weather: Weather,
    inner: Mutex<Inner>,
    healed: Notify,
    calm: AtomicBool,
}

#[derive(Default)]
struct Inner {
    hosts: BTreeMap<(String, u16), Arc<dyn Host>>,
    connections: Vec<Weak<Connection>>,
    count: u64,
    blocked: BTreeSet<(Peer, Peer)>,
    /// What happens when a client gets the next bytes from a server.
    at_reply: BTreeMap<Peer, Box<dyn FnOnce() + Send>>,
}

impl Net {
    /// A network without hosts.
    pub fn new(
        trace: Arc<Trace>,
        troubles: Arc<Troubles>,
        agenda: Arc<Agenda>,
        seed: u64,
        weather: Weather,
    ) -> Arc<Self> {
        Arc::new(Self {
            trace,
            troubles,
            agenda,
            seed,
            weather,
            inner: Mutex::default(),
            healed: Notify::new(),
            calm: AtomicBool::new(false),
        })
    }

    /// Adds a host that can be dialled.
    pub fn add(&self, host: &str, port: u16, target: Arc<dyn Host>) {
        self.inner
            .lock()
            .hosts
            .insert((host.to_owned(), port), target);
    }

    /// Forgets all hosts.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        let left = (
            std::mem::take(&mut inner.hosts),
            std::mem::take(&mut inner.at_reply),
        );
        drop(inner);
        drop(left);
    }

    fn is_blocked(&self, from: Peer, to: Peer) -> bool {
        self.inner.lock().blocked.contains(&(from, to))
    }

    /// Nothing gets from one to the other any more.
    pub fn block(&self, from: Peer, to: Peer) {
        self.inner.lock().blocked.insert((from, to));
    }

    /// Ends a partition; what was written meanwhile arrives.
    pub fn unblock(&self, from: Peer, to: Peer) {
        self.inner.lock().blocked.remove(&(from, to));
        self.stalled_go_on();
    }

    /// From now on nothing is slow.
    pub fn calm(&self) {
        self.calm.store(true, Ordering::Relaxed);
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.inner.lock().blocked.clear();
        self.stalled_go_on();
    }

    fn stalled_go_on(&self) {
        for connection in self.open() {
            for side in [0, 1] {
                let stalled = std::mem::take(&mut connection.lanes[side].lock().stalled);
                if stalled {
                    connection.arrive(side);
                }
            }
        }
        self.healed.notify_waiters();
    }

    fn open(&self) -> Vec<Arc<Connection>> {
        let mut inner = self.inner.lock();
        inner
            .connections
            .retain(|connection| connection.strong_count() > 0);
        inner.connections.iter().filter_map(Weak::upgrade).collect()
    }

    /// Breaks all connections of a peer; both sides are told. How many there were.
    pub fn cut(&self, peer: Peer) -> usize {
        let open = self.of(peer);
        for connection in &open {
            connection.is_in_trouble();
            self.trace
                .aside("network", format_args!("cut of {connection}"));
            connection.reset(0);
            connection.reset(1);
        }
        open.len()
    }

    /// The next bytes that this client sends (or receives) go through up to a point, where the connection breaks.
    pub fn cut_inside(&self, client: Peer, to_client: bool, after: usize) {
        for connection in self.of(client) {
            connection.lanes[usize::from(to_client)].lock().cut_after = Some(after);
        }
    }

    /// This happens when the next bytes from a server have reached a client, before it reads them.
    pub fn at_next_reply(&self, client: Peer, act: impl FnOnce() + Send + 'static) {
        self.inner.lock().at_reply.insert(client, Box::new(act));
    }

    /// The peer's process is gone: its system closes its connections, or is gone too and says nothing.
    pub fn leave(&self, peer: Peer, silently: bool) {
        for connection in self.of(peer) {
            let side = usize::from(matches!(peer, Peer::Server(_)));
            connection.close(side, silently);
        }
    }

    fn of(&self, peer: Peer) -> Vec<Arc<Connection>> {
        let mut open = self.open();
        open.retain(|connection| connection.client == peer || connection.server == peer);
        open
    }

    /// How many connections a peer has.
    pub fn count(&self, peer: Peer) -> usize {
        self.of(peer)
            .iter()
            .filter(|connection| !connection.lanes[0].lock().broken)
            .count()
    }

    fn delay(&self, dice: &mut Dice, from: Peer, to: Peer) -> Duration {
        let usual = Duration::from_millis(self.weather.delay.1);
        let delay = self.drawn(dice);
        if delay > usual {
            self.troubles.between(What::Slow, from, to, delay);
        }
        delay
    }

    fn drawn(&self, dice: &mut Dice) -> Duration {
        if self.calm.load(Ordering::Relaxed) {
            return dice.millis(0, 1);
        }
        let (share, most) = self.weather.slow;
        if dice.per_mille(share) {
            return dice.millis(self.weather.delay.1, most.max(self.weather.delay.1));
        }
        dice.millis(self.weather.delay.0, self.weather.delay.1)
    }
}

/// The network as the library dials it.
pub(crate) struct Dialler(pub(crate) Arc<Net>);

impl Network for Dialler {
    fn dial(
        &self,
        host: String,
        port: u16,
    ) -> std::pin::Pin<Box<dyn Future<Output = io::Result<Box<dyn Socket>>> + Send>> {
        let net = self.0.clone();
        let client = Peer::Client(current().map_or(usize::MAX, |process| process.id()));
        Box::pin(async move {
            let number = {
                let mut inner = net.inner.lock();
                inner.count += 1;
                inner.count
            };
            let mut dice = Dice::of(net.seed, &[2, number]);
            let target = net.inner.lock().hosts.get(&(host, port)).cloned();
            let Some(target) = target else {
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            let server = target.peer();
            // Where that takes long, a deadline may end before a first request is answered.
            let cold = Duration::from_millis(net.weather.delay.1 * COLD);
            let slow = net.weather.delay.1 > 3;
            if slow {
                net.troubles.between(What::Slow, client, server, cold);
            }
            // There and back.
            tokio::time::sleep(net.delay(&mut dice, client, server)).await;
            loop {
                let healed = net.healed.notified();
                let blocked = net.is_blocked(client, server) || net.is_blocked(server, client);
                if blocked {
                    net.troubles.happened("silence");
                }
                match target.reach() {
                    _ if blocked => healed.await,
                    Reach::Gone => {
                        net.troubles
                            .between(What::Line, client, server, Duration::ZERO);
                        // The system asks again now and then.
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                    refused @ (Reach::Refused | Reach::Refusing) => {
                        if refused == Reach::Refusing {
                            net.troubles.happened("refuse");
                        }
                        net.trace.note(client, format_args!("refused by {server}"));
                        return Err(io::ErrorKind::ConnectionRefused.into());
                    }
                    Reach::Listening => break,
                }
            }
            tokio::time::sleep(net.delay(&mut dice, server, client)).await;
            if slow {
                net.troubles.between(What::Slow, client, server, cold);
            }
            let connection = Arc::new(Connection {
                net: net.clone(),
                number,
                client,
                host: target.clone(),
                server,
                lanes: [0, 1].map(|side| Lane::new(Dice::of(net.seed, &[1, number, side]))),
            });
            net.inner
                .lock()
                .connections
                .push(Arc::downgrade(&connection));
            net.trace
                .note(client, format_args!("connected to {server}"));
            target.accept(End {
                connection: connection.clone(),
                side: 1,
            });
            let end = End {
                connection,
                side: 0,
            };
            Ok(Box::new(end) as Box<dyn Socket>)
        })
    }
}
