//! Queues of other libraries on the same server: which there are, as recognised a while ago.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redstart::Store;
use redstart_adopt::{Budget, Found, Inspector, recognise};

/// How long a recognition is good for: it reads a sample of the keys.
const FRESH: Duration = Duration::from_secs(60);
/// Below it, another program could have written the keys.
const SURE: f64 = 0.7;

/// The newest recognition, shared by all pages.
#[derive(Default)]
pub(crate) struct Foreign {
    last: Mutex<Option<(Instant, Arc<Vec<Found>>)>>,
    looking: tokio::sync::Mutex<()>,
}

impl Foreign {
    /// The queues that can be looked into.
    pub(crate) async fn queues(&self, store: &Store) -> redstart_adopt::Result<Arc<Vec<Found>>> {
        if let Some(fresh) = self.fresh() {
            return Ok(fresh);
        }
        // One look serves all that wait for it.
        let _looking = self.looking.lock().await;
        if let Some(fresh) = self.fresh() {
            return Ok(fresh);
        }
        let recognition = recognise(store, &Budget::default()).await?;
        let is_queue = |found: &Found| {
            found.confidence >= SURE && Inspector::new(store, found.library, &found.subject).is_ok()
        };
        let queues: Vec<Found> = recognition.found.into_iter().filter(is_queue).collect();
        let queues = Arc::new(queues);
        *self.last.lock() = Some((Instant::now(), queues.clone()));
        Ok(queues)
    }

    fn fresh(&self) -> Option<Arc<Vec<Found>>> {
        let last = self.last.lock();
        let (at, queues) = last.as_ref()?;
        (at.elapsed() < FRESH).then(|| queues.clone())
    }
}
