//! What a script runs for: its commands reach the data here, and its reply is made here.

use bytes::Bytes;
use redstart_lua::{Arguments, Host, Outcome, Value, Values};

use super::{
    command::{Command, Refused, command},
    convert::{self, Converter, Unfit},
    shared::Shared,
};
use crate::{engine::State, reply::Reply};

/// The numbers of the native functions.
pub(super) const CALL: usize = 0;
pub(super) const PCALL: usize = 1;

/// What those raise that are called while no script runs.
pub(super) const IDLE: &str = "ERR redis.call/pcall can only be called inside a script invocation";

/// A script that runs, and what it works on.
pub(super) struct Running<'a> {
    pub(super) state: &'a mut State,
    pub(super) shared: &'a Shared,
    pub(super) command: &'a mut Command,
    pub(super) now_micros: i64,
    pub(super) read_only: bool,
    /// In cluster-strict mode: the keys that were declared.
    pub(super) declared: Option<&'a [Bytes]>,
    /// How many bytes the reply may take.
    pub(super) room: usize,
    /// Made of what the script returned.
    pub(super) reply: Result<Reply, Unfit>,
}

impl Host for Running<'_> {
    fn call(&mut self, function: usize, arguments: &Arguments<'_>, values: &mut Values) -> Outcome {
        let failed = match function {
            CALL => Outcome::Raise,
            _ => Outcome::Return,
        };
        match command(self, arguments) {
            Ok((Reply::Error(text), _)) => {
                convert::push_error(values, convert::error_text(text.as_bytes()), true);
                failed
            }
            Ok((reply, protocol)) => {
                convert::push_reply(values, reply, protocol);
                Outcome::Return
            }
            Err(Refused { text, counted }) => {
                convert::push_error(values, text, counted);
                failed
            }
        }
    }

    fn returned(&mut self, value: Value<'_>) {
        let mut converter = Converter {
            protocol: self.shared.stage.lock().client.protocol,
            left: self.room,
        };
        self.reply = converter.value(value);
    }
}
