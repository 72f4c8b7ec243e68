//! Watchers of one queue share one reader of the store: a thousand pages that follow a queue cost it what one costs.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{Stream, StreamExt as _, stream};
use parking_lot::Mutex;
use redstart::messaging::{Queue, QueueEvent};
use tokio::sync::{broadcast, watch};
use tokio_util::task::AbortOnDropHandle;

/// How long one read of the store waits for an event.
const WAIT: Duration = Duration::from_secs(15);
/// How long to rest while the store is down.
const REST: Duration = Duration::from_secs(1);
/// Events that a slow watcher may be behind before it reads them from the store on its own.
const BEHIND: usize = 1024;

/// The readers that are in use, by namespace and queue.
#[derive(Default)]
pub(crate) struct Watches(Mutex<HashMap<(String, String), Weak<Reader>>>);

/// What a watcher is told.
pub(crate) enum Seen {
    /// From here on, no event is missed.
    Listening,
    Event(Arc<QueueEvent>),
}

/// Reads the events of one queue while somebody watches it.
struct Reader {
    events: broadcast::Sender<Arc<QueueEvent>>,
    /// Whether it knows from where on it reads.
    ready: watch::Receiver<bool>,
    _reading: AbortOnDropHandle<()>,
}

/// One watcher.
struct Watcher {
    queue: Queue,
    /// Ends with the last watcher.
    reader: Arc<Reader>,
    is_listening: bool,
    events: broadcast::Receiver<Arc<QueueEvent>>,
    /// The newest event that the watcher has, if it must have all since then.
    after: Option<String>,
    /// Whether events may be missing, so that they must be read from the store.
    behind: bool,
}

impl Watches {
    /// Follows the events of a queue, all of those after the given one, or from now on.
    pub(crate) fn follow(
        &self,
        namespace: &str,
        name: &str,
        queue: Queue,
        after: Option<&str>,
    ) -> impl Stream<Item = Seen> + use<> {
        let reader = self.reader(namespace, name, &queue);
        let watcher = Watcher {
            events: reader.events.subscribe(),
            reader,
            is_listening: false,
            queue,
            after: after.map(str::to_owned),
            behind: after.is_some(),
        };
        stream::unfold(watcher, |mut watcher| async move {
            if !watcher.is_listening {
                watcher.listen().await;
                return Some((stream::iter(vec![Seen::Listening]), watcher));
            }
            let found = watcher.next().await;
            let found: Vec<Seen> = found.into_iter().map(Seen::Event).collect();
            Some((stream::iter(found), watcher))
        })
        .flatten()
    }

    fn reader(&self, namespace: &str, name: &str, queue: &Queue) -> Arc<Reader> {
        let key = (namespace.to_owned(), name.to_owned());
        let mut readers = self.0.lock();
        if let Some(reader) = readers.get(&key).and_then(Weak::upgrade) {
            return reader;
        }
        readers.retain(|_, reader| reader.strong_count() > 0);
        let (events, _) = broadcast::channel(BEHIND);
        let (knows, ready) = watch::channel(false);
        let reading = tokio::spawn(read(queue.clone(), events.clone(), knows));
        let reader = Arc::new(Reader {
            events,
            ready,
            _reading: AbortOnDropHandle::new(reading),
        });
        readers.insert(key, Arc::downgrade(&reader));
        reader
    }
}

async fn read(
    queue: Queue,
    events: broadcast::Sender<Arc<QueueEvent>>,
    ready: watch::Sender<bool>,
) {
    let mut follower = queue.inspect().follow_events(None);
    loop {
        // The first read finds the place; watchers wait for it.
        let wait = if *ready.borrow() {
            WAIT
        } else {
            Duration::ZERO
        };
        match follower.next(wait).await {
            Ok(found) => {
                for event in found {
                    // That nobody listens at the moment is no reason to end: the last one ends the task.
                    let _ = events.send(Arc::new(event));
                }
                ready.send_replace(true);
            }
            // While the store is down, watchers stay and it is asked again.
            Err(_) => tokio::time::sleep(REST).await,
        }
    }
}

impl Watcher {
    async fn listen(&mut self) {
        let mut ready = self.reader.ready.clone();
        // The reader lives as long as its watchers, so it does not go away.
        let _ = ready.wait_for(|ready| *ready).await;
        self.is_listening = true;
    }

    async fn next(&mut self) -> Vec<Arc<QueueEvent>> {
        if self.behind {
            return self.catch_up().await;
        }
        match self.events.recv().await {
            Ok(event) if self.is_known(&event) => Vec::new(),
            Ok(event) => {
                self.after = Some(event.id.clone());
                vec![event]
            }
            Err(broadcast::error::RecvError::Lagged(_)) => {
                // One that has got none yet begins with the oldest that is still here.
                self.behind = self.after.is_some();
                Vec::new()
            }
            // The reader lives as long as its watchers.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }

    /// Reads what the store has after the newest event that is known. The shared reader was joined before, so nothing is
    /// missed between the two, and what both have is given once.
    async fn catch_up(&mut self) -> Vec<Arc<QueueEvent>> {
        match self.queue.inspect().events(self.after.as_deref()).await {
            Ok(found) => {
                self.behind = !found.is_empty();
                if let Some(last) = found.last() {
                    self.after = Some(last.id.clone());
                }
                found.into_iter().map(Arc::new).collect()
            }
            Err(_) => {
                tokio::time::sleep(REST).await;
                Vec::new()
            }
        }
    }

    fn is_known(&self, event: &QueueEvent) -> bool {
        let after = self.after.as_deref();
        after.is_some_and(|after| order(&event.id) <= order(after))
    }
}

/// Ids of a stream are two numbers.
fn order(id: &str) -> (u64, u64) {
    let (time, number) = id.split_once('-').unwrap_or((id, "0"));
    (time.parse().unwrap_or(0), number.parse().unwrap_or(0))
}
