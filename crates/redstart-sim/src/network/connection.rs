//! A connection: bytes that fly, arrive in pieces, and get lost.

use std::{
    collections::VecDeque,
    fmt, io,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use redstart::sim::Socket;
use tokio::time::Instant;

use super::{Host, Net, Peer, Reach};
use crate::{dice::Dice, trouble::What};

/// What was sent and not acknowledged for this long ends the connection at the sender.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// Two ends and two lanes.
pub(super) struct Connection {
    pub(super) net: Arc<Net>,
    pub(super) number: u64,
    pub(super) client: Peer,
    pub(super) host: Arc<dyn Host>,
    pub(super) server: Peer,
    /// From the client, and to it.
    pub(super) lanes: [Mutex<Lane>; 2],
}

pub(super) struct Lane {
    dice: Dice,
    flying: VecDeque<(Instant, Piece)>,
    /// Bytes in `flying`.
    flown: usize,
    arrived: VecDeque<u8>,
    /// What the reader finds after what arrived.
    end: Option<Piece>,
    /// The reader closed its end.
    pub(super) deaf: bool,
    /// The writer is told that the connection is broken.
    pub(super) broken: bool,
    /// The connection breaks when this many bytes more were written.
    pub(super) cut_after: Option<usize>,
    pub(super) stalled: bool,
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
    pub(super) fn new(dice: Dice) -> Mutex<Self> {
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
    pub(super) fn is_in_trouble(&self) {
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
    pub(super) fn arrive(self: &Arc<Self>, side: usize) {
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
    pub(super) fn reset(self: &Arc<Self>, side: usize) {
        let mut lane = self.lanes[side].lock();
        let (from, to) = self.ends_of(side);
        let delay = self.net.delay(&mut lane.dice, from, to);
        self.fly(&mut lane, side, Piece::Reset, delay);
    }

    /// One side closes its end: 0 is the client's.
    pub(super) fn close(self: &Arc<Self>, side: usize, silently: bool) {
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
    pub(super) connection: Arc<Connection>,
    /// 0 is the client's.
    pub(super) side: usize,
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
