//! What other threads see of a slow script, and how they end it.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Instant,
};

use bytes::Bytes;
use parking_lot::Mutex;

use super::Label;
use crate::{error::CommandResult, reply::Reply};

pub(crate) const NOT_BUSY: &str = "NOTBUSY No scripts in execution right now.";
const BUSY_SCRIPT: &str =
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
const BUSY_FUNCTION: &str =
    "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.";
const UNKILLABLE: &str = "UNKILLABLE Sorry the script already executed write commands against the \
     dataset. You can either wait the script termination or kill the server in a hard way using the \
     SHUTDOWN NOSAVE command.";

/// Shared by the thread that runs a script and those that wait for it.
#[derive(Default)]
pub(crate) struct Watchdog {
    long: AtomicBool,
    busy: AtomicBool,
    kill: AtomicBool,
    wrote: AtomicBool,
    /// The script that has been running for longer than the limit.
    slow: Mutex<Option<Slow>>,
    /// How many libraries and functions there are.
    libraries: AtomicUsize,
    functions: AtomicUsize,
}

struct Slow {
    label: Label,
    command: Vec<Bytes>,
    began: Instant,
}

impl Watchdog {
    /// Whether a script has been running for so long that nobody waits for it on a thread of a runtime.
    pub(crate) fn is_long(&self) -> bool {
        self.long.load(Ordering::Acquire)
    }

    pub(super) fn set_long(&self) {
        self.long.store(true, Ordering::Release);
    }

    /// Whether a script has been running for longer than the limit.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    pub(super) fn set_busy(&self, label: Label, command: Vec<Bytes>, began: Instant) {
        *self.slow.lock() = Some(Slow {
            label,
            command,
            began,
        });
        self.busy.store(true, Ordering::Release);
    }

    pub(super) fn is_killed(&self) -> bool {
        self.kill.load(Ordering::Acquire)
    }

    pub(super) fn has_written(&self) -> bool {
        self.wrote.load(Ordering::Relaxed)
    }

    pub(super) fn set_written(&self) {
        self.wrote.store(true, Ordering::Release);
    }

    pub(super) fn reset(&self) {
        self.long.store(false, Ordering::Release);
        self.busy.store(false, Ordering::Release);
        self.kill.store(false, Ordering::Release);
        self.wrote.store(false, Ordering::Release);
        *self.slow.lock() = None;
    }

    pub(super) fn count(&self, libraries: usize, functions: usize) {
        self.libraries.store(libraries, Ordering::Relaxed);
        self.functions.store(functions, Ordering::Relaxed);
    }

    /// Whether the slow script is a function of a library.
    fn runs_function(&self) -> bool {
        let slow = self.slow.lock();
        slow.as_ref()
            .is_some_and(|slow| matches!(slow.label, Label::Function(_)))
    }

    /// What clients are told while a script runs.
    pub(crate) fn busy_text(&self) -> &'static str {
        match self.runs_function() {
            true => BUSY_FUNCTION,
            false => BUSY_SCRIPT,
        }
    }

    /// Asks for the end of the running script, as SCRIPT KILL does.
    pub(crate) fn kill_script(&self) -> CommandResult {
        self.kill(!self.runs_function())
    }

    /// Asks for the end of the running function, as FUNCTION KILL does.
    pub(crate) fn kill_function(&self) -> CommandResult {
        self.kill(self.runs_function())
    }

    fn kill(&self, is_meant: bool) -> CommandResult {
        if !self.is_busy() {
            return Err(NOT_BUSY.into());
        }
        if self.wrote.load(Ordering::Acquire) {
            return Err(UNKILLABLE.into());
        }
        if !is_meant {
            return Err(self.busy_text().into());
        }
        self.kill.store(true, Ordering::Release);
        Ok(Reply::OK)
    }

    /// The reply of FUNCTION STATS; an error while a script runs that is no function.
    pub(crate) fn stats(&self) -> CommandResult {
        let running = match &*self.slow.lock() {
            None => Reply::Nil,
            Some(Slow {
                label: Label::Function(name),
                command,
                began,
            }) => Reply::Map(vec![
                (Reply::bulk("name"), Reply::Bulk(name.clone())),
                (
                    Reply::bulk("command"),
                    Reply::Array(command.iter().cloned().map(Reply::Bulk).collect()),
                ),
                (
                    Reply::bulk("duration_ms"),
                    Reply::Int(began.elapsed().as_millis() as i64),
                ),
            ]),
            Some(_) => return Err(BUSY_SCRIPT.into()),
        };
        let count = |of: &AtomicUsize| Reply::from(of.load(Ordering::Relaxed));
        let lua = Reply::Map(vec![
            (Reply::bulk("libraries_count"), count(&self.libraries)),
            (Reply::bulk("functions_count"), count(&self.functions)),
        ]);
        Ok(Reply::Map(vec![
            (Reply::bulk("running_script"), running),
            (
                Reply::bulk("engines"),
                Reply::Map(vec![(Reply::bulk("LUA"), lua)]),
            ),
        ]))
    }
}
