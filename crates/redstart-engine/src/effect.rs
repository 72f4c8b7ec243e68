//! What a command changed, as commands that would change it again: the source of the log.
//!
//! A command that made the keyspace dirty is recorded as it was given, unless its handler said by
//! [`crate::context::Ctx::propagate`] what to record instead. All effects of one unit (a command
//! with the keys it found expired, a transaction, a script) reach the sink together.

use bytes::Bytes;

/// A command that repeats a change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Effect {
    pub(crate) db: usize,
    pub(crate) args: Vec<Bytes>,
}

/// Takes the effects of each unit, in order. Called with the engine's lock held.
pub(crate) trait Sink: Send {
    /// A unit of more than one effect is to be made atomic with MULTI and EXEC.
    fn append(&mut self, unit: &[Effect]);
}

#[derive(Default)]
pub(crate) struct Effects {
    sink: Option<Box<dyn Sink>>,
    pending: Vec<Effect>,
}

impl Effects {
    /// Whether anybody listens; handlers need not build effects otherwise.
    #[inline]
    pub(crate) fn enabled(&self) -> bool {
        self.sink.is_some()
    }

    pub(crate) fn set_sink(&mut self, sink: Option<Box<dyn Sink>>) {
        self.sink = sink;
    }

    pub(crate) fn record(&mut self, db: usize, args: Vec<Bytes>) {
        if self.enabled() {
            self.pending.push(Effect { db, args });
        }
    }

    /// Hands the unit that just ended to the sink.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        if let Some(sink) = &mut self.sink {
            sink.append(&self.pending);
        }
        self.pending.clear();
    }
}
