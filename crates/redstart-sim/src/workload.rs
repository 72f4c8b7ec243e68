//! What clients do, and what must hold meanwhile. One module per pattern, written against the public API.

use std::{fmt, future::Future, pin::Pin, str::FromStr, sync::Arc};

use crate::{client::Client, world::World};

mod limiter;
mod mutex;

/// A future of a workload.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The clients of one world and their judge.
pub trait Workload: Send + Sync {
    /// The life of one incarnation of a client.
    fn client(self: Arc<Self>, client: Client) -> Work;

    /// After all faults have ended: is everything live again, and is nothing left behind?
    fn settle(self: Arc<Self>, client: Client) -> Work;

    /// A client process was killed.
    fn killed(&self, client: usize) {
        let _ = client;
    }
}

/// A pattern that is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Pattern {
    Mutex,
    Limiter,
}

impl Pattern {
    /// All of them.
    pub const ALL: &'static [Pattern] = &[Self::Mutex, Self::Limiter];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Limiter => "limiter",
        }
    }

    /// The clients and the judge of a world.
    pub fn workload(self, world: &World) -> Arc<dyn Workload> {
        match self {
            Self::Mutex => Arc::new(mutex::Locking::new(world)),
            Self::Limiter => Arc::new(limiter::Limiting::new(world)),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|pattern| pattern.name() == text);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|pattern| pattern.name()).collect();
            format!("no pattern {text:?}; there are {}", names.join(", "))
        })
    }
}
