//! The network: byte streams that are late, come in pieces, break, and fall silent.
//!
//! A [`Connection`] has two [`Lane`]s, one for each direction. What is written into a lane flies for a while and arrives
//! in pieces. A partition stalls lanes: what was written is delivered when the partition ends, as TCP's
//! retransmissions would, unless the sender's system gives up first.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt, io,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use redstart::sim::{Network, Socket, current};
use tokio::{sync::Notify, time::Instant};

use crate::{
    agenda::Agenda,
    dice::Dice,
    trace::Trace,
    trouble::{Troubles, What},
};

/// What was sent and not acknowledged for this long ends the connection at the sender.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);
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

/// Two ends and two lanes.
pub(crate) struct Connection {
    net: Arc<Net>,
    number: u64,
    client: Peer,
    host: Arc<dyn Host>,
    server: Peer,
    /// From the client, and to it.
    lanes: [Mutex<Lane>; 2],
}

struct Lane {
    dice: Dice,
    flying: VecDeque<(Instant, Piece)>,
    /// Bytes in `flying`.
    flown: usize,
    arrived: VecDeque<u8>,
    /// What the reader finds after what arrived.
    end: Option<Piece>,
    /// The reader closed its end.
    deaf: bool,
    /// The writer is told that the connection is broken.
    broken: bool,
    /// The connection breaks when this many bytes more were written.
    cut_after: Option<usize>,
    stalled: bool,
    last: Instant,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

enum Piece {
    Data(Vec<u8>),
    /// The other side closed.
    Fin,
    /// The connection is broken.
    Reset,
}

impl Lane {
    fn new(dice: Dice) -> Mutex<Self> {
        Mutex::new(Self {
            dice,
            flying: VecDeque::new(),
            flown: 0,
            arrived: VecDeque::new(),
            end: None,
            deaf: false,
            broken: false,
            cut_after: None,
            stalled: false,
            last: Instant::now(),
            reader: None,
            writer: None,
        })
    }

    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()] {
            waker.into_iter().for_each(Waker::wake);
        }
    }
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

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "connection {} ({} to {})",
            self.number, self.client, self.server
        )
    }
}

impl Connection {
    /// Who writes into a lane, and who reads from it.
    fn ends_of(&self, lane: usize) -> (Peer, Peer) {
        match lane {
            0 => (self.client, self.server),
            _ => (self.server, self.client),
        }
    }

    /// It breaks, and no side has asked for that.
    fn is_in_trouble(&self) {
        let (from, to) = self.ends_of(0);
        let troubles = &self.net.troubles;
        troubles.between(What::Line, from, to, Duration::ZERO);
    }

    /// Puts a piece into a lane; `delay` is counted from now.
    fn fly(self: &Arc<Self>, lane: &mut Lane, side: usize, piece: Piece, delay: Duration) {
        let at = (Instant::now() + delay).max(lane.last);
        lane.last = at;
        if let Piece::Data(bytes) = &piece {
            lane.flown += bytes.len();
        }
        lane.flying.push_back((at, piece));
        let connection = self.clone();
        self.net.agenda.at(at, move || connection.arrive(side));
    }

    /// Hands out what has arrived by now.
    fn arrive(self: &Arc<Self>, side: usize) {
        let (from, to) = self.ends_of(side);
        let blocked = self.net.is_blocked(from, to);
        // Acknowledgements go the other way.
        let unheard = blocked || self.net.is_blocked(to, from);
        let now = Instant::now();
        let mut lane = self.lanes[side].lock();
        if unheard && !lane.flying.is_empty() {
            let connection = self.clone();
            let first = lane.flying[0].0;
            let patience = move || connection.give_up(side, first);
            self.net.agenda.after(UNACKNOWLEDGED, patience);
        }
        if blocked {
            if !std::mem::replace(&mut lane.stalled, true) {
                self.net.troubles.happened("silence");
            }
            return;
        }
        let (mut answer, mut heard) = (None, false);
        while lane.flying.front().is_some_and(|(at, _)| *at <= now) {
            let Some((at, piece)) = lane.flying.pop_front() else {
                break;
            };
            match piece {
                Piece::Data(bytes) if lane.deaf => {
                    lane.flown -= bytes.len();
                    let gone = side == 0 && self.host.reach() == Reach::Gone;
                    // Nobody is told that the host is gone until something is sent to it.
                    self.is_in_trouble();
                    answer = Some((gone, at));
                }
                Piece::Data(bytes) => {
                    lane.flown -= bytes.len();
                    if lane.end.is_none() {
                        self.net.trace.bytes(self.number * 2 + side as u64, &bytes);
                        lane.arrived.extend(bytes);
                        heard = side == 1;
                    }
                }
                end => {
                    let reset = matches!(end, Piece::Reset);
                    if lane.end.is_none() || reset {
                        lane.end = Some(end);
                    }
                    if reset {
                        lane.arrived.clear();
                        drop(lane);
                        self.break_lane(1 - side);
                        lane = self.lanes[side].lock();
                    }
                }
            }
        }
        lane.wake();
        drop(lane);
        if heard {
            let act = self.net.inner.lock().at_reply.remove(&to);
            act.into_iter().for_each(|act| act());
        }
        match answer {
            // Nobody there to hear it.
            Some((true, at)) => {
                let connection = self.clone();
                let patience = move || connection.give_up(side, at);
                self.net.agenda.after(UNACKNOWLEDGED, patience);
            }
            Some((false, _)) => self.reset(1 - side),
            None => {}
        }
    }

    /// The sender's system has waited long enough for an acknowledgement.
    fn give_up(self: &Arc<Self>, side: usize, since: Instant) {
        let lane = self.lanes[side].lock();
        let waits = lane.flying.front().is_some_and(|(at, _)| *at <= since);
        let unheard = lane.deaf && side == 0 && self.host.reach() == Reach::Gone;
        drop(lane);
        if waits || unheard {
            self.is_in_trouble();
            let mut back = self.lanes[1 - side].lock();
            back.arrived.clear();
            back.end = Some(Piece::Reset);
            back.wake();
            drop(back);
            self.break_lane(side);
        }
    }

    /// The writer of a lane is told that the connection is broken.
    fn break_lane(&self, side: usize) {
        let mut lane = self.lanes[side].lock();
        lane.broken = true;
        lane.wake();
    }

    /// Tells the reader of a lane, after what flies, that the connection is broken.
    fn reset(self: &Arc<Self>, side: usize) {
        let mut lane = self.lanes[side].lock();
        let (from, to) = self.ends_of(side);
        let delay = self.net.delay(&mut lane.dice, from, to);
        self.fly(&mut lane, side, Piece::Reset, delay);
    }

    /// One side closes its end: 0 is the client's.
    fn close(self: &Arc<Self>, side: usize, silently: bool) {
        let mut inward = self.lanes[1 - side].lock();
        inward.deaf = true;
        inward.arrived.clear();
        inward.wake();
        drop(inward);
        let mut outward = self.lanes[side].lock();
        if outward.broken {
            return;
        }
        outward.broken = true;
        if !silently {
            let (from, to) = self.ends_of(side);
            let delay = self.net.delay(&mut outward.dice, from, to);
            self.fly(&mut outward, side, Piece::Fin, delay);
        }
    }

    fn write(self: &Arc<Self>, side: usize, bytes: &[u8]) -> io::Result<usize> {
        let net = &self.net;
        let mut guard = self.lanes[side].lock();
        let lane = &mut *guard;
        if lane.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let room = net
            .weather
            .window
            .saturating_sub(lane.flown + lane.arrived.len());
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = &bytes[..bytes.len().min(room)];
        let (from, to) = self.ends_of(side);
        let taken = bytes.len();
        let cut = lane.cut_after.is_some_and(|after| after < taken);
        if let Some(after) = &mut lane.cut_after {
            bytes = &bytes[..taken.min(*after)];
            *after -= bytes.len();
        }
        if cut {
            lane.cut_after = None;
        }
        while !bytes.is_empty() {
            let delay = net.delay(&mut lane.dice, from, to);
            let split = bytes.len() > 1 && lane.dice.per_mille(net.weather.split);
            let count = match split {
                true => lane.dice.between(1, bytes.len() as u64 - 1) as usize,
                false => bytes.len(),
            };
            let (first, rest) = bytes.split_at(count);
            self.fly(lane, side, Piece::Data(first.to_vec()), delay);
            bytes = rest;
        }
        drop(guard);
        if cut {
            net.trace
                .aside("network", format_args!("cut inside of {self}"));
            net.troubles.happened("cut inside");
            self.is_in_trouble();
            self.reset(side);
            self.reset(1 - side);
        }
        Ok(taken)
    }

    fn read(&self, side: usize, room: &mut [u8]) -> io::Result<usize> {
        let mut lane = self.lanes[side].lock();
        if lane.arrived.is_empty() {
            return match lane.end {
                Some(Piece::Fin) => Ok(0),
                Some(_) => Err(io::ErrorKind::ConnectionReset.into()),
                None => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let count = room.len().min(lane.arrived.len());
        for (byte, place) in lane.arrived.drain(..count).zip(room) {
            *place = byte;
        }
        if let Some(writer) = lane.writer.take() {
            writer.wake();
        }
        Ok(count)
    }
}

/// One end of a connection. Dropped, it closes.
pub struct End {
    connection: Arc<Connection>,
    /// 0 is the client's.
    side: usize,
}

impl End {
    /// Who is at the other end.
    pub fn client(&self) -> Peer {
        self.connection.client
    }
}

impl Socket for End {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.connection.write(self.side, bytes)
    }

    fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        self.connection.read(1 - self.side, room)
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut lane = self.connection.lanes[1 - self.side].lock();
        if !lane.arrived.is_empty() || lane.end.is_some() {
            return Poll::Ready(Ok(()));
        }
        lane.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut lane = self.connection.lanes[self.side].lock();
        if lane.broken || lane.flown + lane.arrived.len() < self.connection.net.weather.window {
            return Poll::Ready(Ok(()));
        }
        lane.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.connection.close(self.side, false);
    }
}
