//! What the examination itself cost.

use std::time::Duration;

use serde::Serialize;

/// Commands, bytes and time that were spent.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Cost {
    /// Commands sent.
    pub commands: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// The longest round trip of one batch; the server's own time is less.
    pub slowest: Duration,
    /// The command of the longest round trip.
    pub slowest_command: String,
    /// MONITOR lines read.
    pub lines: u64,
}

impl Cost {
    pub(crate) fn note(&mut self, command: &str, commands: u64, took: Duration) {
        self.commands += commands;
        if took > self.slowest {
            self.slowest = took;
            self.slowest_command = command.to_ascii_uppercase();
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.commands += other.commands;
        self.bytes_sent += other.bytes_sent;
        self.bytes_read += other.bytes_read;
        self.lines += other.lines;
        if other.slowest > self.slowest {
            self.slowest = other.slowest;
            self.slowest_command.clone_from(&other.slowest_command);
        }
    }
}
