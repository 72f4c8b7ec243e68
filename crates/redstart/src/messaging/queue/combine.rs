//! Jobs of concurrent callers that leave together.
//!
//! A script costs the server several times what a job in it costs. So while some requests of this process are on their way,
//! further plain jobs wait, and the next request takes all of them. A caller that is alone never waits.
//!
//! The next request is sent by one of the callers whose jobs it takes, in that caller's runtime, which is driven at least until
//! the caller is answered. The caller that happened to end the request before may be gone by then, and its runtime with it.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use super::{Enqueued, Queue, record::Body};
use crate::{
    error::{Error, Result},
    store::Store,
};

/// Requests on their way before jobs wait for each other.
const AT_ONCE: usize = 4;
/// What one script takes.
const MAX_JOBS: usize = 500;
const MAX_BYTES: usize = 512 * 1024;

/// The plain jobs of one queue that wait in this process.
#[derive(Default)]
pub(super) struct Combined(Mutex<Line>);

#[derive(Default)]
struct Line {
    /// Requests on their way.
    sent: Vec<Sent>,
    /// How many requests there were.
    requests: u64,
    waiting: VecDeque<Waiting>,
    /// How many have left the line at its front.
    left: u64,
}

struct Sent {
    number: u64,
    /// When it was first noticed that others wait for it.
    noticed: Option<Instant>,
}

struct Waiting {
    body: Body,
    tell: oneshot::Sender<Told>,
}

/// What all callers whose jobs were in one request are told.
type Answer = Result<(), Arc<Error>>;

/// What a caller that waits is told.
enum Told {
    /// The answer to the request with its job.
    Answer(Answer),
    /// The next request has its job, and is its to send.
    Send(Turn),
}

impl Line {
    /// A request that begins now; its number.
    fn begin(&mut self) -> u64 {
        self.requests += 1;
        self.sent.push(Sent {
            number: self.requests,
            noticed: None,
        });
        self.requests
    }

    /// Ends a request; whether it was on its way.
    fn end(&mut self, number: u64) -> bool {
        let before = self.sent.len();
        self.sent.retain(|sent| sent.number != number);
        self.sent.len() < before
    }

    /// Takes requests for over that others have waited for longer than a request takes: the runtime that they are in stands
    /// still. If it goes on after all, one more is on its way at a time, which does no harm.
    fn give_up_lost(&mut self, deadline: Duration) {
        let now = Instant::now();
        self.sent.retain_mut(|sent| {
            let noticed = *sent.noticed.get_or_insert(now);
            now.saturating_duration_since(noticed) <= deadline
        });
    }

    /// What the next request takes, without those whose callers have gone.
    fn next(&mut self) -> Vec<Waiting> {
        let mut jobs = Vec::with_capacity(self.waiting.len().min(MAX_JOBS));
        let mut bytes = 0;
        while jobs.len() < MAX_JOBS
            && let Some(first) = self.waiting.pop_front()
        {
            if first.tell.is_closed() {
                self.left += 1;
                continue;
            }
            bytes += first.body.bytes.len();
            if bytes > MAX_BYTES && !jobs.is_empty() {
                self.waiting.push_front(first);
                break;
            }
            self.left += 1;
            jobs.push(first);
        }
        jobs
    }

    /// Jobs that were not sent wait again, before all others.
    fn put_back(&mut self, jobs: Vec<Waiting>) {
        self.left -= jobs.len() as u64;
        for waiting in jobs.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
    }
}

/// A request that is on its way. When it is over, also if its caller gave up, those who wait for it are sent.
struct Place {
    queue: Queue,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut line = self.queue.0.combined.0.lock();
        if line.end(self.number) {
            self.queue.send_next(line);
        }
    }
}

/// How a caller begins.
enum Entered {
    /// With a request of its own.
    Alone(Place, Body),
    /// With its number in line.
    InLine(u64, oneshot::Receiver<Told>),
}

/// The next request, in the hands of the caller that is to send it. If that has gone, the others wait for another one.
struct Turn {
    place: Option<Place>,
    /// The job of the caller; it came last.
    own: Option<Body>,
    others: Vec<Waiting>,
}

impl Turn {
    fn send(mut self) -> Option<Request> {
        let (place, own) = (self.place.take()?, self.own.take()?);
        let mut others = std::mem::take(&mut self.others);
        others.retain(|waiting| !waiting.tell.is_closed());
        Some(Request {
            store: place.queue.store().clone(),
            work: Some(Box::pin(async move {
                let answer = place.queue.send_together(&own, others).await;
                drop(place);
                answer
            })),
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Without a place, it was sent.
        if let Some(place) = &self.place {
            let others = std::mem::take(&mut self.others);
            place.queue.0.combined.0.lock().put_back(others);
        }
    }
}

/// A request for the jobs of several callers, in the hands of one of them. If that gives up, it goes on in the background:
/// the others are answered all the same.
struct Request {
    store: Store,
    /// Missing when it is done.
    work: Option<Pin<Box<dyn Future<Output = Answer> + Send>>>,
}

impl Future for Request {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        let answer = ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(answer)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            // If it never ends, the place is given back, and the others hear of it.
            self.store.defer(async move {
                let _ = work.await;
            });
        }
    }
}

impl Queue {
    /// Lets one of those who wait send the next request, if there is a place for it.
    fn send_next(&self, mut line: parking_lot::MutexGuard<'_, Line>) {
        if line.sent.len() >= AT_ONCE {
            return;
        }
        let mut others = line.next();
        // Whoever came last has the most time left.
        let Some(Waiting { body, tell }) = others.pop() else {
            return;
        };
        let number = line.begin();
        drop(line);
        let queue = self.clone();
        // A caller that has gone meanwhile drops its turn.
        let _ = tell.send(Told::Send(Turn {
            place: Some(Place { queue, number }),
            own: Some(body),
            others,
        }));
    }

    /// Adds a job that may run at once and has no options, maybe together with those of other callers.
    pub(super) async fn add_plain(&self, body: Body) -> Result<Enqueued> {
        let id = body.id;
        match self.enter(body) {
            Entered::Alone(_place, body) => {
                let call = self.plain_call().arg(&body.bytes[..]);
                let _: (i64,) = call.run(self.store()).await?;
            }
            Entered::InLine(number, told) => self.told(number, told).await?,
        }
        Ok(Enqueued::New(id))
    }

    /// Takes a place for a request, or puts the job at the end of the line.
    fn enter(&self, body: Body) -> Entered {
        let mut line = self.0.combined.0.lock();
        if line.sent.len() < AT_ONCE {
            let (queue, number) = (self.clone(), line.begin());
            return Entered::Alone(Place { queue, number }, body);
        }
        let (tell, told) = oneshot::channel();
        let number = line.left + line.waiting.len() as u64;
        line.waiting.push_back(Waiting { body, tell });
        line.give_up_lost(self.store().deadline());
        self.send_next(line);
        Entered::InLine(number, told)
    }

    /// Waits until the request with this job is answered, and no longer than a request of its own would take.
    async fn told(&self, number: u64, told: oneshot::Receiver<Told>) -> Result<()> {
        let too_late = || Error::timeout("no answer within the deadline");
        let ends = self.store().ends();
        let answer = match tokio::time::timeout_at(ends, told).await {
            Ok(Ok(Told::Answer(answer))) => answer,
            // Its runtime stood still: the job is not sent any more.
            Ok(Ok(Told::Send(_))) if Instant::now() >= ends => return Err(too_late()),
            Ok(Ok(Told::Send(turn))) => match turn.send() {
                Some(request) => tokio::time::timeout_at(ends, request)
                    .await
                    .map_err(|_| too_late().doubt(true))?,
                None => return Err(too_late()),
            },
            Ok(Err(_)) => {
                let ended = Error::unavailable("the runtime of the request has ended");
                return Err(ended.doubt(true));
            }
            Err(_) => {
                let mut line = self.0.combined.0.lock();
                let was_sent = number < line.left;
                line.give_up_lost(self.store().deadline());
                self.send_next(line);
                return Err(too_late().doubt(was_sent));
            }
        };
        answer.map_err(|error| Error::shared(&error))
    }

    /// Adds the jobs of several callers; what all of them are told.
    async fn send_together(&self, own: &Body, others: Vec<Waiting>) -> Answer {
        let mut call = self.plain_call();
        for waiting in &others {
            call = call.arg(&waiting.body.bytes[..]);
        }
        let call = call.arg(&own.bytes[..]);
        let answer = call.run::<(i64,)>(self.store()).await;
        let answer = answer.map(drop).map_err(Arc::new);
        for Waiting { tell, .. } in others {
            // Who has gone does not want to know.
            let _ = tell.send(Told::Answer(answer.clone()));
        }
        answer
    }
}
