//! What this instance knows of the shared circuit.

use std::time::Duration;

use tokio::time::Instant;

use super::{CircuitState, Inner, LOOK, RETURN, local};
use crate::{error::Error, observe};

#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) phase: Phase,
    pub(super) generation: u64,
    /// All places of probes are taken, at least until then.
    pub(super) full_until: Option<Instant>,
    /// The store is down.
    pub(super) alone: bool,
    /// When this was learned.
    learned: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Closed,
    Open { until: Instant },
    HalfOpen,
}

impl View {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            phase: Phase::Closed,
            generation: 0,
            full_until: None,
            alone: false,
            learned: now,
        }
    }
}

/// A time of the store's, on this process's clock.
pub(super) fn after(start: Instant, micros: u64) -> Instant {
    let far = Duration::from_secs(30 * 365 * 86_400);
    start + Duration::from_micros(micros).min(far)
}

impl Inner {
    pub(super) fn state(&self) -> CircuitState {
        let view = *self.view.lock();
        if view.alone {
            return self.local.lock().state();
        }
        match view.phase {
            Phase::Closed => CircuitState::Closed,
            Phase::Open { .. } => CircuitState::Open,
            Phase::HalfOpen => CircuitState::HalfOpen,
        }
    }

    /// Notifies the listeners, if there is a change.
    pub(super) fn announce(&self) {
        let state = self.state();
        self.changes.send_if_modified(|known| {
            let changed = *known != state;
            *known = state;
            changed
        });
    }

    /// Takes over what the store says. `asked` is from before the question was sent, so that open ends here
    /// no later than there.
    pub(super) fn learn(&self, said: &[String], asked: Instant) {
        let number = |at: usize| said.get(at).and_then(|word| word.parse::<u64>().ok());
        let (Some(state), Some(generation), Some(left)) = (said.first(), number(1), number(2))
        else {
            return;
        };
        let phase = match state.as_str() {
            "o" => Phase::Open {
                until: after(asked, left),
            },
            "h" => Phase::HalfOpen,
            _ => Phase::Closed,
        };
        {
            let mut view = self.view.lock();
            // An answer may be overtaken by a message of a later change. Only an answer to a question that was
            // asked after that can mean that the store lost its generations.
            if generation < view.generation && asked < view.learned {
                return;
            }
            if view.generation != generation {
                match phase {
                    Phase::Open { .. } => observe::event("breaker.opened"),
                    Phase::HalfOpen => observe::event("breaker.half_open"),
                    Phase::Closed => observe::event("breaker.closed"),
                }
                view.full_until = None;
            }
            if view.generation != generation || view.alone {
                self.local.lock().change_to(local::Phase::Closed);
            }
            view.phase = phase;
            view.generation = generation;
            view.alone = false;
            view.learned = self.clock.now();
        }
        self.announce();
    }

    /// The store cannot be asked: from here on this instance decides alone, starting from the last known state.
    pub(super) fn lose(&self, error: &Error) {
        {
            let mut view = self.view.lock();
            if view.alone {
                return;
            }
            tracing::debug!(%error, "a breaker continues without its store");
            observe::event("breaker.store_down");
            view.alone = true;
            let mut local = self.local.lock();
            match view.phase {
                // What it saw since it heard of the store.
                Phase::Closed => {
                    local.judge(&self.policy, self.clock.now());
                }
                Phase::Open { until } => local.change_to(local::Phase::Open { until }),
                Phase::HalfOpen => local.change_to(local::Phase::HalfOpen { out: 0, ok: 0 }),
            }
        }
        self.announce();
    }

    /// Asks for the state. While alone, only an answer of a store that takes writes counts: one that refuses reports
    /// would have the instance forget what it saw alone, again and again.
    pub(super) async fn look(&self) {
        let asked = self.clock.now();
        let alone = self.view.lock().alone;
        let script = if alone { &RETURN } else { &LOOK };
        let said = self
            .script(script)
            .idempotent()
            .run::<Vec<String>>(&self.store)
            .await;
        match said {
            // A report was refused meanwhile.
            Ok(_) if !alone && self.view.lock().alone => {}
            Ok(said) => self.learn(&said, asked),
            Err(error) => self.lose(&error),
        }
    }
}
