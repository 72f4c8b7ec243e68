//! Clients that wait: for an element, for a stream entry, for a timeout.
//!
//! As in Redis, a command that makes a key ready serves the clients that wait for it when its unit
//! (command, transaction or script) is over, in order of their arrival: the next command of
//! whoever pushed finds the element gone already. What was taken for a client is kept for it until
//! its future is polled; if that future is dropped instead, the taking is undone, so that no
//! element is lost.

use std::{
    collections::BTreeSet,
    task::{Poll, Waker},
};

use bytes::Bytes;
use hashbrown::HashMap;

use crate::{
    client::Client,
    context::{Ctx, Origin},
    engine::State,
    error::Stop,
    long_double::LongDouble,
    number::parse_int,
    reply::{Protocol, Reply},
    types::blob::Blob,
};

/// Tries to serve a waiting client from a key that may be ready. Looks at the key's type itself;
/// `None` if there is still nothing for this client. What it changes it must record as effects
/// itself by [`Ctx::record`].
pub(crate) type Serve = Box<dyn FnMut(&mut Ctx<'_>, &Bytes) -> Option<Served> + Send>;

/// Puts back what was taken for a client that went away before it had its reply.
pub(crate) type Undo = Box<dyn FnOnce(&mut Ctx<'_>) + Send>;

/// A client's answer after it had to wait.
pub(crate) struct Served {
    pub(crate) reply: Reply,
    pub(crate) undo: Option<Undo>,
}

/// What a command waits for; handed to [`Ctx::block`].
pub(crate) struct Wait {
    /// Empty if only time is waited for.
    pub(crate) keys: Vec<Bytes>,
    /// Unix time in milliseconds; `None` waits for ever.
    pub(crate) deadline: Option<i64>,
    pub(crate) on_timeout: Reply,
    pub(crate) serve: Serve,
}

struct Waiter {
    client: u64,
    db: usize,
    protocol: Protocol,
    wait: Wait,
    done: Option<Served>,
    waker: Option<Waker>,
}

/// All waiting clients, by number of arrival.
#[derive(Default)]
pub(crate) struct Blocking {
    waiters: HashMap<u64, Waiter>,
    deadlines: BTreeSet<(i64, u64)>,
    arrivals: u64,
}

impl Blocking {
    /// How many clients wait.
    pub(crate) fn len(&self) -> usize {
        self.waiters
            .values()
            .filter(|waiter| waiter.done.is_none())
            .count()
    }

    /// Whether this client waits.
    pub(crate) fn is_blocked(&self, client: u64) -> bool {
        self.waiters
            .values()
            .any(|waiter| waiter.client == client && waiter.done.is_none())
    }

    /// The deadline of a waiting client.
    pub(crate) fn deadline(&self, number: u64) -> Option<i64> {
        self.waiters.get(&number)?.wait.deadline
    }

    #[inline]
    pub(crate) fn is_due(&self, now_ms: i64) -> bool {
        self.deadlines
            .first()
            .is_some_and(|&(deadline, _)| deadline <= now_ms)
    }
}

/// A timeout argument in seconds, as the deadline that it means; `None` for 0, which is for ever.
pub(crate) fn timeout_arg(cx: &Ctx<'_>, text: &[u8]) -> Result<Option<i64>, Stop> {
    let seconds =
        LongDouble::parse(text).ok_or(Stop::from("ERR timeout is not a float or out of range"))?;
    // Redis converts without a check.
    let millis = seconds.thousands();
    deadline(cx, millis)
}

/// A timeout argument in milliseconds, as the deadline that it means.
pub(crate) fn timeout_ms_arg(cx: &Ctx<'_>, text: &[u8]) -> Result<Option<i64>, Stop> {
    let millis =
        parse_int(text).ok_or(Stop::from("ERR timeout is not an integer or out of range"))?;
    deadline(cx, millis)
}

fn deadline(cx: &Ctx<'_>, millis: i64) -> Result<Option<i64>, Stop> {
    match millis {
        ..0 => Err("ERR timeout is negative".into()),
        0 => Ok(None),
        // Beyond the end of time is for ever.
        _ => Ok(millis.checked_add(cx.now_ms())),
    }
}

/// Registers a client that waits, and hands out its number.
pub(crate) fn add(state: &mut State, client: &Client, wait: Wait) -> u64 {
    let blocking = &mut state.blocking;
    blocking.arrivals += 1;
    let number = blocking.arrivals;
    if let Some(deadline) = wait.deadline {
        blocking.deadlines.insert((deadline, number));
    }
    for key in &wait.keys {
        let queue = state.dbs[client.db]
            .blocked
            .entry(Blob::new(key))
            .or_default();
        if queue.back() != Some(&number) {
            queue.push_back(number);
        }
    }
    let (db, protocol) = (client.db, client.protocol);
    let waiter = Waiter {
        client: client.id,
        db,
        protocol,
        wait,
        done: None,
        waker: None,
    };
    blocking.waiters.insert(number, waiter);
    number
}

/// Takes a waiter out of all queues; it stays in the table with its answer.
fn settle(state: &mut State, number: u64, served: Served) {
    let Some(waiter) = state.blocking.waiters.get_mut(&number) else {
        return;
    };
    let (db, keys) = (waiter.db, std::mem::take(&mut waiter.wait.keys));
    if let Some(deadline) = waiter.wait.deadline {
        state.blocking.deadlines.remove(&(deadline, number));
    }
    waiter.done = Some(served);
    if let Some(waker) = waiter.waker.take() {
        waker.wake();
    }
    leave_queues(state, db, &keys, number);
}

fn leave_queues(state: &mut State, db: usize, keys: &[Bytes], number: u64) {
    for key in keys {
        let blocked = &mut state.dbs[db].blocked;
        if let Some(queue) = blocked.get_mut(key.as_ref()) {
            queue.retain(|&other| other != number);
            if queue.is_empty() {
                blocked.remove(key.as_ref());
            }
        }
    }
}

/// Answers those whose time is up.
pub(crate) fn time_out(state: &mut State, now_ms: i64) {
    while let Some(&(deadline, number)) = state.blocking.deadlines.first() {
        if deadline > now_ms {
            return;
        }
        let reply = match state.blocking.waiters.get_mut(&number) {
            Some(waiter) => std::mem::replace(&mut waiter.wait.on_timeout, Reply::Nil),
            None => Reply::Nil,
        };
        state.blocking.deadlines.remove(&(deadline, number));
        settle(state, number, reply.into());
    }
}

/// Answers a client that waits before its time (CLIENT UNBLOCK): as after a timeout if `reply` is
/// `None`. Whether it was waiting.
pub(crate) fn unblock(state: &mut State, client: u64, reply: Option<Reply>) -> bool {
    let found = state
        .blocking
        .waiters
        .iter_mut()
        .find(|(_, w)| w.client == client && w.done.is_none());
    let Some((&number, waiter)) = found else {
        return false;
    };
    let timeout = std::mem::replace(&mut waiter.wait.on_timeout, Reply::Nil);
    settle(state, number, reply.unwrap_or(timeout).into());
    true
}

/// Serves whoever waits for the keys that became ready, until no more do.
pub(crate) fn serve_ready(state: &mut State, now_micros: i64) {
    while !state.ready.is_empty() {
        for (db, key) in std::mem::take(&mut state.ready) {
            let Some(queue) = state.dbs[db].blocked.get(key.as_ref()) else {
                continue;
            };
            for number in queue.clone() {
                serve_one(state, number, &key, now_micros);
            }
        }
    }
}

fn serve_one(state: &mut State, number: u64, key: &Bytes, now_micros: i64) {
    let Some(waiter) = state.blocking.waiters.get_mut(&number) else {
        return;
    };
    if waiter.done.is_some() {
        return;
    }
    let mut client = Client::internal(waiter.client, waiter.db, waiter.protocol);
    // The closure is lent out of the table while it works on the state that holds the table.
    let mut serve = std::mem::replace(&mut waiter.wait.serve, Box::new(|_, _| None));
    let served = serve(
        &mut Ctx::new(state, &mut client, now_micros, Origin::Engine),
        key,
    );
    match served {
        Some(served) => settle(state, number, served),
        None => {
            if let Some(waiter) = state.blocking.waiters.get_mut(&number) {
                waiter.wait.serve = serve;
            }
        }
    }
    state.effects.flush();
}

/// The answer, if there is one by now; else the waker is kept.
pub(crate) fn poll(state: &mut State, number: u64, waker: Option<&Waker>) -> Poll<Reply> {
    let Some(waiter) = state.blocking.waiters.get_mut(&number) else {
        return Poll::Ready(Reply::Nil);
    };
    match waiter.done.take() {
        Some(served) => {
            let protocol = waiter.protocol;
            state.blocking.waiters.remove(&number);
            Poll::Ready(crate::dispatch::shape(served.reply, protocol))
        }
        None => {
            if let Some(waker) = waker {
                waiter.waker = Some(waker.clone());
            }
            Poll::Pending
        }
    }
}

/// Forgets a client that no longer waits; undoes what was taken for it and not handed over.
pub(crate) fn cancel(state: &mut State, number: u64, now_micros: i64) {
    let Some(waiter) = state.blocking.waiters.remove(&number) else {
        return;
    };
    if let Some(deadline) = waiter.wait.deadline {
        state.blocking.deadlines.remove(&(deadline, number));
    }
    leave_queues(state, waiter.db, &waiter.wait.keys, number);
    if let Some(Served {
        undo: Some(undo), ..
    }) = waiter.done
    {
        let mut client = Client::internal(waiter.client, waiter.db, waiter.protocol);
        undo(&mut Ctx::new(
            state,
            &mut client,
            now_micros,
            Origin::Engine,
        ));
        crate::dispatch::finish(state, now_micros);
    }
}
