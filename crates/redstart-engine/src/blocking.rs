//! Clients that wait: for an element, for a stream entry, for a timeout.
//!
//! As in Redis, a command that makes a key ready serves the clients that wait for it when its unit
//! (command, transaction or script) is over, in order of their arrival: the next command of
//! the client that pushed finds the element gone already. What was taken for a client is kept for it until
//! its future is polled; if that future is dropped instead, the taking is undone, so that no
//! element is lost.

use std::{collections::BTreeSet, task::Waker};

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
    pub(crate) keys: Vec<Bytes>,
    /// [`Wait::serve`] looks again when the log is on the disk up to here, and from time to time: it may look for what nothing
    /// tells of.
    pub(crate) synced: Option<u64>,
    /// Unix time in microseconds, so that no wait ends early; `None` waits forever.
    pub(crate) deadline: Option<i64>,
    /// Whether [`Wait::serve`] is called for a key that does not exist: who reads a stream through a
    /// group must hear that the stream is gone.
    pub(crate) hears_of_absence: bool,
    pub(crate) on_timeout: Reply,
    pub(crate) serve: Serve,
}

/// How the name of a key begins that stands for what is no data, such as how far replicas are.
const OWN: &[u8] = b"\0redstart.";

/// How the name of a key begins that stands for work which goes on whatever becomes of the data.
pub(crate) const GOES_ON: &[u8] = b"\0redstart.backup.";

struct Waiter {
    client: u64,
    db: usize,
    protocol: Protocol,
    wait: Wait,
    done: Option<Served>,
    /// What the log must have before the answer is told. Later changes are no part of it, and to wait for them, too, could
    /// take as long as others write.
    position: u64,
    waker: Option<Waker>,
}

/// All waiting clients, by number of arrival.
#[derive(Default)]
pub(crate) struct Blocking {
    waiters: HashMap<u64, Waiter>,
    /// The number of each client that waits and was not served.
    clients: HashMap<u64, u64>,
    /// Unix microseconds and number.
    deadlines: BTreeSet<(i64, u64)>,
    arrivals: u64,
    /// How often a waiter was tried to be served.
    pub(crate) tries: u64,
}

/// The clients that wait for one key.
#[derive(Default)]
pub(crate) struct Queue {
    /// Their numbers: the order of arrival.
    numbers: BTreeSet<u64>,
    /// How many of them hear of the key's absence.
    hear_of_absence: usize,
}

impl Blocking {
    /// How many clients wait with a timeout.
    pub(crate) fn timed(&self) -> usize {
        self.deadlines.len()
    }

    /// How many clients wait.
    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether this client waits.
    pub(crate) fn is_blocked(&self, client: u64) -> bool {
        self.clients.contains_key(&client)
    }

    /// When a waiting client is to be looked at again if nothing wakes it, in unix microseconds.
    pub(crate) fn next_look(&self, number: u64, now_micros: i64) -> Option<i64> {
        /// What nothing tells of is looked for this often.
        const EVERY: i64 = 1_000_000;
        let wait = &self.waiters.get(&number)?.wait;
        match wait.synced.is_some() {
            true => Some(wait.deadline.map_or(now_micros + EVERY, |deadline| {
                deadline.min(now_micros + EVERY)
            })),
            false => wait.deadline,
        }
    }

    /// Up to where a waiting client waits for the log to be on the disk.
    pub(crate) fn synced(&self, number: u64) -> Option<u64> {
        self.waiters.get(&number)?.wait.synced
    }

    #[inline]
    pub(crate) fn is_due(&self, now_micros: i64) -> bool {
        self.deadlines
            .first()
            .is_some_and(|&(deadline, _)| deadline <= now_micros)
    }
}

/// A timeout argument in seconds, as the deadline that it means; `None` for 0, which is forever.
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
        // Beyond the end of time is forever.
        _ => Ok(millis
            .checked_mul(1000)
            .and_then(|micros| micros.checked_add(cx.now_micros))),
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
        if queue.numbers.insert(number) {
            queue.hear_of_absence += usize::from(wait.hears_of_absence);
        }
    }
    blocking.clients.insert(client.id, number);
    let (db, protocol) = (client.db, client.protocol);
    let waiter = Waiter {
        client: client.id,
        db,
        protocol,
        wait,
        done: None,
        position: 0,
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
    let hears = waiter.wait.hears_of_absence;
    state.blocking.clients.remove(&waiter.client);
    if let Some(deadline) = waiter.wait.deadline {
        state.blocking.deadlines.remove(&(deadline, number));
    }
    waiter.done = Some(served);
    if let Some(waker) = waiter.waker.take() {
        waker.wake();
    }
    leave_queues(state, db, &keys, number, hears);
    // That nothing came is told whatever else waits for the disk.
    let data = keys.iter().filter(|key| !key.starts_with(OWN));
    let position = state.effects.position_in_vain(db, data);
    set_position(state, number, position);
}

fn set_position(state: &mut State, number: u64, position: u64) {
    if let Some(waiter) = state.blocking.waiters.get_mut(&number) {
        waiter.position = position;
    }
}

/// What the log must have before the answer of a client that was served is told.
pub(crate) fn position(state: &State, number: u64) -> u64 {
    let waiter = state.blocking.waiters.get(&number);
    waiter.map_or(0, |waiter| waiter.position)
}

fn leave_queues(state: &mut State, db: usize, keys: &[Bytes], number: u64, hears: bool) {
    for key in keys {
        let blocked = &mut state.dbs[db].blocked;
        if let Some(queue) = blocked.get_mut(key.as_ref())
            && queue.numbers.remove(&number)
        {
            queue.hear_of_absence -= usize::from(hears);
            if queue.numbers.is_empty() {
                blocked.remove(key.as_ref());
            }
        }
    }
}

/// Answers those whose time is up.
pub(crate) fn time_out(state: &mut State, now_micros: i64) {
    while let Some(&(deadline, number)) = state.blocking.deadlines.first() {
        if deadline > now_micros {
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
    let Some(&number) = state.blocking.clients.get(&client) else {
        return false;
    };
    let Some(waiter) = state.blocking.waiters.get_mut(&number) else {
        return false;
    };
    let timeout = std::mem::replace(&mut waiter.wait.on_timeout, Reply::Nil);
    settle(state, number, reply.unwrap_or(timeout).into());
    true
}

/// Answers all clients that wait for keys, the disk or replicas with an error, and keeps nothing to be
/// undone: the data becomes another server's.
pub(crate) fn give_up_data(state: &mut State, error: &str) {
    let mut numbers = Vec::new();
    for (&number, waiter) in &mut state.blocking.waiters {
        let goes_on = waiter.wait.keys.iter().any(|key| key.starts_with(GOES_ON));
        match &mut waiter.done {
            Some(served) => served.undo = None,
            None if goes_on => {}
            None => numbers.push(number),
        }
    }
    for number in numbers {
        settle(state, number, Reply::Error(error.into()).into());
    }
}

/// Whether something was taken for a client that has not got it, and would be put back if the client went away.
pub(crate) fn owes(state: &State) -> bool {
    let mut waiters = state.blocking.waiters.values();
    waiters.any(|waiter| matches!(&waiter.done, Some(served) if served.undo.is_some()))
}

/// Answers all clients that wait for this key as after a timeout.
pub(crate) fn end_waits_for(state: &mut State, key: &[u8]) {
    let queues = state.dbs.iter().filter_map(|db| db.blocked.get(key));
    let numbers: Vec<u64> = queues.flat_map(|queue| &queue.numbers).copied().collect();
    for number in numbers {
        let waiter = state.blocking.waiters.get(&number);
        if let Some(client) = waiter.map(|waiter| waiter.client) {
            unblock(state, client, None);
        }
    }
}

/// What a client that waits is answered if its time is up.
pub(crate) fn answer_at_end(state: &mut State, client: u64, reply: Reply) {
    let number = state.blocking.clients.get(&client);
    let waiter = number.and_then(|number| state.blocking.waiters.get_mut(number));
    if let Some(waiter) = waiter {
        waiter.wait.on_timeout = reply;
    }
}

/// Answers all clients that wait, before their time.
pub(crate) fn unblock_all(state: &mut State, reply: &Reply) {
    let clients: Vec<u64> = state.blocking.clients.keys().copied().collect();
    for client in clients {
        unblock(state, client, Some(reply.clone()));
    }
}

/// Serves the clients that wait for keys that became ready, until none is left.
pub(crate) fn serve_ready(state: &mut State, now_micros: i64) {
    while !state.ready.is_empty() {
        for (db, key) in std::mem::take(&mut state.ready) {
            let mut last = 0;
            while let Some(number) = next_in_line(state, db, &key, last, now_micros) {
                serve_one(state, number, &key, now_micros);
                last = number;
            }
        }
    }
}

/// The next client after `last` that may be served from a key. Most wait for something that only an
/// existing key has: they are not visited once the key is used up.
fn next_in_line(state: &State, db: usize, key: &[u8], last: u64, now_micros: i64) -> Option<u64> {
    let db = &state.dbs[db];
    let queue = db.blocked.get(key)?;
    let exists = db
        .find(key)
        .is_some_and(|at| !db.entry(at).is_expired(now_micros / 1000));
    if !exists && queue.hear_of_absence == 0 {
        return None;
    }
    queue.numbers.range(last + 1..).next().copied()
}

/// Tries to serve a client that waits for the disk.
pub(crate) fn look_again(state: &mut State, number: u64, now_micros: i64) {
    let waiter = state.blocking.waiters.get(&number);
    if waiter.is_some_and(|waiter| waiter.wait.synced.is_some()) {
        serve_one(state, number, &Bytes::new(), now_micros);
    }
}

fn serve_one(state: &mut State, number: u64, key: &Bytes, now_micros: i64) {
    let Some(waiter) = state.blocking.waiters.get_mut(&number) else {
        return;
    };
    if waiter.done.is_some() {
        return;
    }
    state.blocking.tries += 1;
    let db = waiter.db;
    let mut client = Client::internal(waiter.client, db, waiter.protocol);
    // The closure is lent out of the table while it works on the state that holds the table.
    let mut serve = std::mem::replace(&mut waiter.wait.serve, Box::new(|_, _| None));
    let served = serve(
        &mut Ctx::new(state, &mut client, now_micros, Origin::Engine),
        key,
    );
    let is_served = served.is_some();
    match served {
        Some(served) => settle(state, number, served),
        None => {
            if let Some(waiter) = state.blocking.waiters.get_mut(&number) {
                waiter.wait.serve = serve;
            }
        }
    }
    let changed = state.effects.flush_for_waiting();
    // Who waits for no key tells of none.
    let of_data = !key.is_empty() && !key.starts_with(OWN);
    if is_served && (changed > 0 || of_data) {
        let position = match changed {
            0 => state.effects.position_of(db, key),
            changed => changed,
        };
        set_position(state, number, position);
    }
}

/// Whether a waiting client has its answer.
pub(crate) fn is_served(state: &State, number: u64) -> bool {
    let waiter = state.blocking.waiters.get(&number);
    waiter.is_none_or(|waiter| waiter.done.is_some())
}

/// Keeps the waker to call when the answer is there.
pub(crate) fn wake_by(state: &mut State, number: u64, waker: &Waker) {
    if let Some(waiter) = state.blocking.waiters.get_mut(&number) {
        waiter.waker = Some(waker.clone());
    }
}

/// The answer of a client that was served, which no longer waits then.
pub(crate) fn take(state: &mut State, number: u64) -> Reply {
    let Some(waiter) = state.blocking.waiters.remove(&number) else {
        return Reply::Nil;
    };
    let reply = waiter.done.map_or(Reply::Nil, |served| served.reply);
    crate::dispatch::shape(reply, waiter.protocol)
}

/// Forgets a client that no longer waits; undoes what was taken for it and not handed over.
pub(crate) fn cancel(state: &mut State, number: u64, now_micros: i64) {
    let Some(waiter) = state.blocking.waiters.remove(&number) else {
        return;
    };
    if let Some(deadline) = waiter.wait.deadline {
        state.blocking.deadlines.remove(&(deadline, number));
    }
    if waiter.done.is_none() {
        state.blocking.clients.remove(&waiter.client);
    }
    let hears = waiter.wait.hears_of_absence;
    leave_queues(state, waiter.db, &waiter.wait.keys, number, hears);
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
