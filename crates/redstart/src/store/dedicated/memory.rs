//! What a connection stands for: the transaction that it is in, and the writes that it has carried.

use redis::Cmd;

use crate::store::{command, request::Body};

/// What the server keeps for the connection and would forget with it.
#[derive(Default)]
pub(super) struct Transaction {
    watching: bool,
    pub(super) multi: bool,
    /// A command that writes was queued.
    pub(super) writes: bool,
}

/// What a question for earlier writes would be about.
#[derive(Default)]
pub(super) struct Writes {
    /// The connection has carried one.
    carried: bool,
    /// One was carried since a question was last answered as it was asked: by as many servers.
    unasked: bool,
    /// One was carried by a connection that is gone, and nobody has asked for it yet.
    lost: bool,
}

impl Writes {
    /// There is a new connection.
    pub(super) fn begin(&mut self) {
        *self = Self {
            lost: self.lost || self.unasked,
            ..Self::default()
        };
    }

    pub(super) fn note(&mut self) {
        self.carried = true;
        self.unasked = true;
    }

    /// As many servers as were asked for have all that was written.
    pub(super) fn confirm(&mut self) {
        self.unasked = false;
    }

    /// Whether a question would be answered about less than the caller wrote. The caller hears of it, and writes again: until then,
    /// there is nothing to ask for.
    pub(super) fn refuse(&mut self, body: &Body<'_>) -> bool {
        let asks = match body {
            Body::One(cmd) => command::asks_for_writes(cmd).then_some(false),
            Body::Many { pipeline, .. } => {
                let mut commands = pipeline.cmd_iter();
                let asked = commands.position(command::asks_for_writes);
                let mut before = pipeline.cmd_iter().take(asked.unwrap_or_default());
                asked.map(|_| before.any(command::may_write))
            }
        };
        let Some(written_before) = asks else {
            return false;
        };
        if !self.lost && (self.carried || written_before) {
            return false;
        }
        *self = Self::default();
        true
    }
}

impl Transaction {
    pub(super) fn is_open(&self) -> bool {
        self.watching || self.multi
    }

    pub(super) fn is_end(cmd: &Cmd) -> bool {
        command::name(cmd).is_some_and(|name| {
            name.eq_ignore_ascii_case(b"EXEC") || name.eq_ignore_ascii_case(b"DISCARD")
        })
    }

    /// The server answered with an error. An EXEC or DISCARD ends the transaction and the watch all the same, unless there
    /// was no transaction. Who may not do something perhaps may not even begin one.
    pub(super) fn note_error(&mut self, body: &Body<'_>, code: Option<&str>) {
        let ended = match body {
            Body::One(cmd) => self.multi && Self::is_end(cmd),
            Body::Many { pipeline, .. } => {
                pipeline.is_transaction() && !matches!(code, Some("NOPERM" | "NOAUTH"))
            }
        };
        if ended {
            *self = Self::default();
        }
    }

    /// The server carried this command out.
    pub(super) fn note(&mut self, cmd: &Cmd) {
        match command::name(cmd) {
            Some(name) if name.eq_ignore_ascii_case(b"WATCH") => self.watching = true,
            Some(name) if name.eq_ignore_ascii_case(b"MULTI") => self.multi = true,
            Some(_) if Self::is_end(cmd) && self.multi => *self = Self::default(),
            Some(name) if name.eq_ignore_ascii_case(b"UNWATCH") && !self.multi => {
                self.watching = false;
            }
            _ => self.writes |= self.multi && command::may_write(cmd),
        }
    }
}
