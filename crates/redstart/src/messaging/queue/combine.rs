//! Jobs of concurrent callers that leave together.
//!
//! A script costs the server several times what a job in it costs. So while some requests of this process are on their way,
//! further plain jobs wait, and the next request takes all of them. A caller that is alone never waits.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Enqueued, JobId, Queue, record::Body};
use crate::error::{Error, Result};

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
    sent: usize,
    waiting: Vec<Waiting>,
}

struct Waiting {
    body: Body,
    tell: oneshot::Sender<Result<(), Arc<Error>>>,
}

impl Line {
    /// What the next request takes, without those whose callers have gone.
    fn next(&mut self) -> Vec<Waiting> {
        self.waiting.retain(|waiting| !waiting.tell.is_closed());
        let mut bytes = 0;
        let fits = self.waiting.iter().take(MAX_JOBS).take_while(|waiting| {
            bytes += waiting.body.bytes.len();
            bytes <= MAX_BYTES
        });
        let count = fits.count().max(1).min(self.waiting.len());
        let rest = self.waiting.split_off(count);
        std::mem::replace(&mut self.waiting, rest)
    }
}

/// A request that is on its way. When it is over, also if its caller gave up, those who wait for it are sent.
struct Sent(Queue);

impl Drop for Sent {
    fn drop(&mut self) {
        let Self(queue) = self;
        let next = {
            let mut line = queue.0.combined.0.lock();
            let next = line.next();
            if next.is_empty() {
                line.sent -= 1;
                return;
            }
            next
        };
        // If it never runs, the guard is dropped, and the callers hear of it.
        let sent = Self(queue.clone());
        queue.store().defer(async move {
            sent.0.send_together(next).await;
        });
    }
}

impl Queue {
    /// Adds a job that may run at once and has no options, maybe together with those of other callers.
    pub(super) async fn add_plain(&self, body: Body) -> Result<Enqueued> {
        let id = body.id;
        let (tell, told) = oneshot::channel();
        let alone = {
            let mut line = self.0.combined.0.lock();
            match line.sent {
                AT_ONCE.. => {
                    line.waiting.push(Waiting { body, tell });
                    None
                }
                _ => {
                    line.sent += 1;
                    Some((body, Sent(self.clone())))
                }
            }
        };
        match alone {
            Some((body, _sent)) => {
                let call = self.plain_call().arg(&body.bytes[..]);
                let _: (i64,) = call.run(self.store()).await?;
            }
            None => self.told(id, told).await?,
        }
        Ok(Enqueued::New(id))
    }

    /// Waits until the request with this job is answered, and no longer than a request of its own would take.
    async fn told(&self, id: JobId, told: oneshot::Receiver<Result<(), Arc<Error>>>) -> Result<()> {
        match tokio::time::timeout_at(self.store().ends(), told).await {
            Ok(Ok(answer)) => answer.map_err(|error| Error::shared(&error)),
            Ok(Err(_)) => {
                Err(Error::unavailable("the runtime of the request has ended").doubt(true))
            }
            Err(_) => {
                let mut line = self.0.combined.0.lock();
                let before = line.waiting.len();
                line.waiting.retain(|waiting| waiting.body.id != id);
                let was_sent = line.waiting.len() == before;
                Err(Error::timeout("no answer within the deadline").doubt(was_sent))
            }
        }
    }

    async fn send_together(&self, jobs: Vec<Waiting>) {
        let mut call = self.plain_call();
        for waiting in &jobs {
            call = call.arg(&waiting.body.bytes[..]);
        }
        let answer = call.run::<(i64,)>(self.store()).await;
        let answer = answer.map(drop).map_err(Arc::new);
        for Waiting { tell, .. } in jobs {
            // Who has gone does not want to know.
            let _ = tell.send(answer.clone());
        }
    }
}
