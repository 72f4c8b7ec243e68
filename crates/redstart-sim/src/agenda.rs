//! What is going to happen, in order of time.

use std::{cmp::Ordering, collections::BinaryHeap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// Events with their times. Those of the same time happen in the order in which they were planned.
#[derive(Default)]
pub struct Agenda {
    inner: Mutex<Inner>,
    earlier: Notify,
}

#[derive(Default)]
struct Inner {
    events: BinaryHeap<Event>,
    count: u64,
    wakes: Option<Instant>,
}

struct Event {
    at: Instant,
    number: u64,
    act: Box<dyn FnOnce() + Send>,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The heap gives the greatest first: the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl Agenda {
    /// Plans an event.
    pub fn at(&self, at: Instant, act: impl FnOnce() + Send + 'static) {
        let mut inner = self.inner.lock();
        inner.count += 1;
        let number = inner.count;
        inner.events.push(Event {
            at,
            number,
            act: Box::new(act),
        });
        if inner.wakes.is_none_or(|wakes| at < wakes) {
            inner.wakes = Some(at);
            self.earlier.notify_one();
        }
    }

    /// Plans an event some time from now.
    pub fn after(&self, delay: Duration, act: impl FnOnce() + Send + 'static) {
        self.at(Instant::now() + delay, act);
    }

    /// Drops what has not happened.
    pub fn clear(&self) {
        let events = std::mem::take(&mut self.inner.lock().events);
        // Outside the lock: what is dropped may plan something.
        drop(events);
    }

    /// Lets everything happen in its time. Never ends.
    pub async fn run(self: Arc<Self>) {
        loop {
            let next = self.act_until(Instant::now());
            tokio::select! {
                biased;
                () = self.earlier.notified() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    fn act_until(&self, now: Instant) -> Option<Instant> {
        loop {
            let mut inner = self.inner.lock();
            match inner.events.peek() {
                Some(event) if event.at <= now => {}
                next => {
                    let next = next.map(|event| event.at);
                    inner.wakes = next;
                    return next;
                }
            }
            let event = inner.events.pop();
            drop(inner);
            if let Some(event) = event {
                (event.act)();
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
