//! One load a key in this process: the first caller starts it, the others wait for it.
//!
//! The load runs in a task of its own, so a caller that goes away does not take it along. An invalidation
//! detaches the flight: callers that come after it start another, since this one may carry the old value.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// Where a flight is. What it brings was read, or stored, after some step of it began.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU64);

impl Progress {
    /// Begins a step in which something is read from the store or from the source, or is stored.
    pub(crate) fn step(&self) -> u64 {
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

struct Flight<T> {
    landing: watch::Receiver<Option<T>>,
    progress: Arc<Progress>,
}

pub(crate) struct Flights<T>(Mutex<HashMap<Arc<str>, Flight<T>>>);

/// A seat on a flight.
pub(crate) struct Seat<T> {
    landing: watch::Receiver<Option<T>>,
    boarded: u64,
    /// Whether this caller started it.
    pub(crate) first: bool,
}

impl<T: Clone> Seat<T> {
    /// What the flight brought, or `None` if it ended without a word.
    pub(crate) async fn landed(&mut self) -> Option<T> {
        self.landing
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|landing| landing.clone())
    }

    /// Whether what was read or stored in `step` was so after this caller came.
    pub(crate) fn came_before(&self, step: u64) -> bool {
        self.first || self.boarded < step
    }
}

/// Held by the flight's task. Dropped without landing (a panic), it still frees the key.
pub(crate) struct Pilot<T> {
    flights: Option<(Arc<Flights<T>>, Arc<str>)>,
    landing: watch::Sender<Option<T>>,
    pub(crate) progress: Arc<Progress>,
}

impl<T> Pilot<T> {
    pub(crate) fn land(mut self, what: T) {
        // Off the board first: whoever comes from now on starts anew.
        self.leave();
        self.landing.send_replace(Some(what));
    }

    fn leave(&mut self) {
        if let Some((flights, name)) = self.flights.take() {
            let mut board = flights.0.lock();
            if board
                .get(&name)
                .is_some_and(|flight| Arc::ptr_eq(&flight.progress, &self.progress))
            {
                board.remove(&name);
            }
        }
    }
}

impl<T> Drop for Pilot<T> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<T> Flights<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(HashMap::new())))
    }

    /// Joins the flight for a key, or starts one. `start` must only spawn.
    pub(crate) fn board(
        self: &Arc<Self>,
        name: &Arc<str>,
        start: impl FnOnce(Pilot<T>),
    ) -> Seat<T> {
        let mut board = self.0.lock();
        if let Some(flight) = board.get(name) {
            return Seat {
                landing: flight.landing.clone(),
                boarded: flight.progress.now(),
                first: false,
            };
        }
        let (pilot, seat) = pair(Some((self.clone(), name.clone())));
        board.insert(
            name.clone(),
            Flight {
                landing: seat.landing.clone(),
                progress: pilot.progress.clone(),
            },
        );
        drop(board);
        start(pilot);
        seat
    }

    /// A flight that nobody else can join.
    pub(crate) fn charter(start: impl FnOnce(Pilot<T>)) -> Seat<T> {
        let (pilot, seat) = pair(None);
        start(pilot);
        seat
    }

    /// Callers from now on start anew.
    pub(crate) fn detach(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// Detaches all of them.
    pub(crate) fn detach_all(&self) {
        self.0.lock().clear();
    }
}

fn pair<T>(flights: Option<(Arc<Flights<T>>, Arc<str>)>) -> (Pilot<T>, Seat<T>) {
    let (sender, landing) = watch::channel(None);
    let pilot = Pilot {
        flights,
        landing: sender,
        progress: Arc::default(),
    };
    let seat = Seat {
        landing,
        boarded: 0,
        first: true,
    };
    (pilot, seat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_share_a_flight_until_it_is_detached() {
        let flights = Flights::<u32>::new();
        let name: Arc<str> = "k".into();
        let mut pilots = Vec::new();
        let mut first = flights.board(&name, |pilot| pilots.push(pilot));
        let mut second = flights.board(&name, |pilot| pilots.push(pilot));
        assert!(first.first && !second.first);
        assert_eq!(pilots.len(), 1);
        let step = pilots[0].progress.step();
        let third = flights.board(&name, |pilot| pilots.push(pilot));
        assert!(second.came_before(step) && !third.came_before(step));

        flights.detach("k");
        let mut fourth = flights.board(&name, |pilot| pilots.push(pilot));
        assert_eq!(pilots.len(), 2, "after an invalidation a new flight starts");
        let (old, new) = (pilots.remove(0), pilots.remove(0));
        old.land(1);
        assert_eq!(
            (first.landed().await, second.landed().await),
            (Some(1), Some(1))
        );
        let mut fifth = flights.board(&name, |_| panic!("the new flight is still on the board"));
        drop(new);
        assert_eq!((fourth.landed().await, fifth.landed().await), (None, None));
        assert!(flights.0.lock().is_empty());
    }
}
