//! Queues of other libraries on the same server: which there are, as recognised a while ago.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redstart::Store;
use redstart_adopt::{Budget, Found, Inspector, recognise};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// How long a recognition is good for: it reads a sample of the keys.
const FRESH: Duration = Duration::from_secs(60);
/// Below it, another program could have written the keys.
const SURE: f64 = 0.7;

/// The newest recognition, shared by all pages. It is made in the background when a page asks for it, so that no page of
/// Redstart's own waits for it.
#[derive(Default)]
pub(crate) struct Foreign {
    last: Arc<watch::Sender<Option<Looked>>>,
    looking: Mutex<Option<AbortOnDropHandle<()>>>,
}

/// When the last recognition ended, and what the last good one found.
#[derive(Clone)]
struct Looked {
    at: Instant,
    queues: Option<Arc<Vec<Found>>>,
}

impl Foreign {
    /// The queues that can be looked into, as far as they are known by now.
    pub(crate) fn known(&self, store: &Store) -> Option<Arc<Vec<Found>>> {
        let last = self.last.borrow().clone();
        // One that failed is not repeated at once: the server may be sick.
        if last.as_ref().is_none_or(|last| last.at.elapsed() >= FRESH) {
            self.look(store);
        }
        last?.queues
    }

    /// The same; waits for the first recognition. None if there was no good one yet.
    pub(crate) async fn queues(&self, store: &Store) -> Option<Arc<Vec<Found>>> {
        let mut last = self.last.subscribe();
        if let Some(known) = self.known(store) {
            return Some(known);
        }
        let looked = last.wait_for(Option::is_some).await.ok()?.clone();
        looked?.queues
    }

    /// Begins a recognition, unless one is under way.
    fn look(&self, store: &Store) {
        let mut looking = self.looking.lock();
        if looking.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let (store, last) = (store.clone(), self.last.clone());
        *looking = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let found = recognise(&store, &Budget::default()).await;
            let queues = match found {
                Ok(recognition) => {
                    let is_queue = |found: &Found| {
                        let inspector = Inspector::new(&store, found.library, &found.subject);
                        found.confidence >= SURE && inspector.is_ok()
                    };
                    let queues = recognition.found.into_iter().filter(is_queue);
                    Some(Arc::new(queues.collect()))
                }
                Err(error) => {
                    tracing::debug!(%error, "queues of other libraries could not be recognised");
                    let before = last.borrow().clone();
                    before.and_then(|before| before.queues)
                }
            };
            last.send_replace(Some(Looked {
                at: Instant::now(),
                queues,
            }));
        })));
    }
}
