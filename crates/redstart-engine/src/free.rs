//! Freeing of large values, off the thread that holds the engine's lock.

use std::{
    any::Any,
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Sender},
    },
};

/// What has fewer elements is freed at once, as in Redis.
const FEW: usize = 64;

/// How many values wait to be freed.
static PENDING: AtomicUsize = AtomicUsize::new(0);

static SENT: AtomicUsize = AtomicUsize::new(0);

/// One thread per process, started with the first large value; it ends with the process.
static THREAD: LazyLock<Option<Sender<Box<dyn Any + Send>>>> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel::<Box<dyn Any + Send>>();
    let thread = std::thread::Builder::new().name("redstart-free".into());
    let spawned = thread.spawn(move || {
        for value in receiver {
            drop(value);
            PENDING.fetch_sub(1, Ordering::Relaxed);
        }
    });
    spawned.is_ok().then_some(sender)
});

/// Frees a value, in the background if it has many elements.
pub(crate) fn later<T: Send + 'static>(elements: usize, value: T) {
    if elements > FEW
        && let Some(sender) = &*THREAD
    {
        PENDING.fetch_add(1, Ordering::Relaxed);
        SENT.fetch_add(1, Ordering::Relaxed);
        // If the thread is gone, the value comes back and is freed here.
        if sender.send(Box::new(value)).is_err() {
            PENDING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Calls a function once all that was handed over before is freed.
pub(crate) fn then(call: fn()) {
    struct Then(fn());

    impl Drop for Then {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    later(usize::MAX, Then(call));
}

/// How many values were handed over so far.
pub(crate) fn sent() -> usize {
    SENT.load(Ordering::Relaxed)
}

/// How many values wait to be freed.
pub(crate) fn pending() -> usize {
    PENDING.load(Ordering::Relaxed)
}
