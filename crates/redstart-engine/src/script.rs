//! Lua scripts: the interpreter, the cache of compiled scripts, and how a script reaches the data.
//!
//! One Lua state per engine, made for the first script. A script calls back into the engine while
//! the engine's state is borrowed by the command that runs the script: that borrow is lent to the functions that
//! need it for as long as the script runs ([`Running`](running::Running)). The ways in and back, `redis.call` and the entry
//! of scripts, are those of the crate `redstart-lua`; everything else is a function of mlua's.
//!
//! | file | what it holds |
//! |---|---|
//! | `runtime.rs` | an interpreter: made with its sandbox, and entered to run a script or a function |
//! | `cache.rs`, `digest.rs`, `flags.rs` | compiled scripts, their names, and what they declare |
//! | `sandbox.lua` | what scripts see, and the function that runs one |
//! | `host.rs` | the Rust functions that the sandbox is made of |
//! | `running.rs`, `command.rs` | a script that runs: how `redis.call` runs a command, and what becomes of the result |
//! | `library.rs` | the functions of `redis` |
//! | `function.rs` | libraries of functions; they have a Lua state of their own |
//! | `shared.rs` | what the Lua functions share with the caller: who the script runs for, its limits |
//! | `watchdog.rs` | what other threads see of a slow script, and how they end it |
//! | `memory.rs`, `stack.rs` | how much memory scripts hold; how much of the thread's stack one has taken |
//! | `raise.rs`, `argument.rs` | errors that Rust functions raise in Lua; their arguments |
//! | `convert.rs` | replies to Lua values and back |
//! | `chance.rs` | `math.random` |
//! | `json.rs`, `msgpack.rs`, `pack.rs`, `bit.rs` | `cjson`, `cmsgpack`, `struct`, `bit` |
//!
//! Errors are raised by Rust functions as [`Raise`](raise::Raise), which `pcall` and `xpcall` turn into
//! what scripts see on Redis.

mod argument;
mod bit;
mod cache;
mod chance;
mod command;
mod convert;
mod digest;
mod flags;
pub(crate) mod function;
mod host;
mod json;
mod library;
mod memory;
mod msgpack;
mod pack;
mod raise;
mod running;
mod runtime;
mod shared;
mod stack;
mod watchdog;

use std::{
    borrow::Cow,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use crate::{
    compat::Compat,
    context::{Ctx, Origin},
    dispatch,
    error::{CommandResult, OUT_OF_MEMORY, Stop},
    free,
};

pub(crate) use digest::{Digest, digest, hex, parse_digest};
pub(crate) use flags::Flags;
pub(crate) use function::Functions;
use runtime::{Purpose, Runtime, plain_failure};
pub(crate) use watchdog::{NOT_BUSY, Watchdog};

/// Bounds on what one script may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// After this the engine answers others with BUSY, and SCRIPT KILL works. Taken from the
    /// setting `busy-reply-threshold` for each script.
    busy_after: Duration,
    /// After this the script is ended whatever it did.
    pub(crate) end_after: Duration,
    /// Of the whole Lua state, in bytes.
    pub(crate) memory: usize,
}

impl Limits {
    /// How many bytes may be made of a script's values beside the Lua state.
    fn bytes(&self) -> usize {
        match self.memory {
            0 => usize::MAX,
            bytes => bytes,
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            busy_after: Duration::from_secs(5),
            end_after: Duration::from_secs(60),
            memory: 1 << 30,
        }
    }
}

/// What errors call a script: its digest, or the name of a function.
#[derive(Clone, Debug)]
pub(crate) enum Label {
    Script(Digest),
    Function(Bytes),
}

impl Label {
    fn text(&self) -> Cow<'_, str> {
        match self {
            Label::Script(digest) => hex(digest).into(),
            Label::Function(name) => String::from_utf8_lossy(name),
        }
    }
}

/// The scripts of an engine; lives in its state.
#[derive(Default)]
pub(crate) struct Scripts {
    runtime: Option<Box<Runtime>>,
    pub(crate) functions: Functions,
    pub(crate) limits: Limits,
    pub(crate) watchdog: Arc<Watchdog>,
    /// Whose version scripts see.
    pub(crate) compat: Compat,
    counted: memory::Counted,
}

/// How to run a script.
pub(crate) struct Call<'a> {
    /// The command with all of its arguments.
    pub(crate) command: &'a [Bytes],
    pub(crate) keys: &'a [Bytes],
    pub(crate) args: &'a [Bytes],
    pub(crate) read_only: bool,
}

impl Scripts {
    pub(crate) fn new(limits: Limits, watchdog: Arc<Watchdog>, compat: Compat) -> Scripts {
        Scripts {
            runtime: None,
            functions: Functions::default(),
            limits,
            watchdog,
            compat,
            counted: memory::Counted::default(),
        }
    }

    fn runtime(&mut self) -> Result<&mut Runtime, Stop> {
        if self.runtime.is_none() {
            let watchdog = self.watchdog.clone();
            let runtime = Runtime::new(self.limits, watchdog, self.compat, Purpose::Scripts)
                .map_err(|error| Stop::from(format!("ERR cannot start Lua: {error}")))?;
            self.runtime = Some(Box::new(runtime));
        }
        match &mut self.runtime {
            Some(runtime) => Ok(runtime),
            None => unreachable!("made just above"),
        }
    }

    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.runtime
            .as_ref()
            .is_some_and(|runtime| runtime.cache.scripts.contains_key(digest))
    }

    /// Compiles a script unless that was done before. A `pinned` one stays until [`Scripts::flush`].
    pub(crate) fn load(&mut self, text: &[u8], pinned: bool) -> Result<Digest, Stop> {
        let digest = digest(text);
        let runtime = self.runtime()?;
        match runtime.cache.scripts.get_mut(&digest) {
            Some(script) => script.pinned |= pinned,
            None => runtime.compile(digest, text, pinned)?,
        }
        Ok(digest)
    }

    /// The text of a script in the cache.
    pub(crate) fn text(&self, digest: &Digest) -> Option<Bytes> {
        let script = self.runtime.as_ref()?.cache.scripts.get(digest)?;
        Some(script.text.clone())
    }

    /// How many scripts are in the cache.
    pub(crate) fn cached(&self) -> usize {
        self.runtime
            .as_ref()
            .map_or(0, |runtime| runtime.cache.scripts.len())
    }

    /// Bytes of the Lua states of scripts and of functions.
    pub(crate) fn memory(&self) -> (usize, usize) {
        let bytes = |runtime: &Option<Box<Runtime>>| {
            let runtime = runtime.as_ref();
            runtime.map_or(0, |runtime| runtime.lua.used_memory())
        };
        (bytes(&self.runtime), bytes(&self.functions.runtime))
    }

    fn place(&mut self, purpose: Purpose) -> &mut Option<Box<Runtime>> {
        match purpose {
            Purpose::Scripts => &mut self.runtime,
            Purpose::Functions => &mut self.functions.runtime,
        }
    }

    /// Forgets all scripts; in the background with the whole interpreter, of which the next script
    /// gets another.
    pub(crate) fn flush(&mut self, in_background: bool) {
        if in_background {
            if let Some(runtime) = self.runtime.take() {
                free::later(usize::MAX, runtime);
            }
            return;
        }
        if let Some(runtime) = &mut self.runtime
            && runtime
                .cache
                .clear()
                .and_then(|()| runtime.lua.gc_collect())
                .is_err()
        {
            // Lua is beyond use: the next script gets another state.
            self.runtime = None;
        }
    }
}

const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

/// What is to be run: a function in the Lua state's table of functions.
struct Program {
    purpose: Purpose,
    index: usize,
    flags: Flags,
    label: Label,
}

/// Runs a script that is in the cache.
pub(crate) fn run(cx: &mut Ctx<'_>, digest: &Digest, call: &Call<'_>) -> CommandResult {
    let runtime = cx.state.scripts.runtime.as_mut();
    let script = runtime.and_then(|runtime| runtime.cache.scripts.get_mut(digest));
    let Some(script) = script else {
        return Err(NO_SCRIPT.into());
    };
    script.recent |= std::mem::replace(&mut script.ran, true);
    let program = Program {
        purpose: Purpose::Scripts,
        index: script.index,
        flags: script.flags,
        label: Label::Script(*digest),
    };
    perform(cx, &program, call)
}

/// Runs a function of a library.
pub(crate) fn run_function(cx: &mut Ctx<'_>, name: &[u8], call: &Call<'_>) -> CommandResult {
    let Some(function) = cx.state.scripts.functions.find(name) else {
        return Err(function::NOT_FOUND.into());
    };
    let program = Program {
        purpose: Purpose::Functions,
        index: function.index,
        flags: function.flags,
        label: Label::Function(function.name.clone()),
    };
    perform(cx, &program, call)
}

fn perform(cx: &mut Ctx<'_>, program: &Program, call: &Call<'_>) -> CommandResult {
    check(cx, program.flags, call)?;
    // The interpreter is taken out of the state that the script will work on.
    let Some(mut runtime) = cx.state.scripts.place(program.purpose).take() else {
        return Err(NO_SCRIPT.into());
    };
    let mut limits = cx.state.scripts.limits;
    limits.busy_after = match cx.state.config.script_time_limit {
        0 => Duration::MAX,
        millis => Duration::from_millis(millis),
    };
    // mlua panics where it has no room for one more value. The engine has its state back by then.
    let run = AssertUnwindSafe(|| runtime.run(cx, program, call, limits));
    let result = panic::catch_unwind(run).unwrap_or_else(|_| {
        tracing::error!(
            script = %program.label.text(),
            "a function that a script called panicked"
        );
        Err(plain_failure(
            &program.label,
            b"a function that it called has failed",
        ))
    });
    *cx.state.scripts.place(program.purpose) = Some(runtime);
    result
}

/// What can be said against running what was declared with these flags.
fn check(cx: &Ctx<'_>, flags: Flags, call: &Call<'_>) -> Result<(), Stop> {
    if !flags.declared {
        return Ok(());
    }
    if cx.state.out_of_memory && !flags.no_writes && !flags.allow_oom {
        // The server looks at this where it looks at the flags of commands, unless a transaction runs.
        let text = match cx.origin {
            Origin::Client => OUT_OF_MEMORY,
            _ => {
                "OOM allow-oom flag is not set on the script, can not run it when used memory > \
                 'maxmemory'"
            }
        };
        return Err(text.into());
    }
    if flags.no_cluster && cx.state.config.checks_slots() {
        return Err("ERR Can not run script on cluster, 'no-cluster' flag is set.".into());
    }
    if !flags.no_writes
        && let Some(why) = dispatch::refusal_to_write(cx.state)
    {
        return Err(why.into());
    }
    if !flags.no_writes && call.read_only {
        return Err("ERR Can not execute a script with write flag using *_ro command.".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        Engine,
        effect::{Effect, Sink},
    };

    struct Recorder(Arc<Mutex<Vec<Vec<String>>>>);

    impl Sink for Recorder {
        fn append(&mut self, unit: &[Effect]) -> u64 {
            let words = |effect: &Effect| {
                let words: Vec<_> = effect
                    .args
                    .iter()
                    .map(|w| String::from_utf8_lossy(w))
                    .collect();
                words.join(" ")
            };
            self.0.lock().push(unit.iter().map(words).collect());
            0
        }
    }

    #[test]
    fn writes_of_a_script_are_recorded_as_one_unit() {
        let engine = Engine::new();
        let units = Arc::new(Mutex::new(Vec::new()));
        let sink = Box::new(Recorder(units.clone()));
        engine.inner.state.lock().effects.set_sink(Some(sink));
        let mut session = engine.session();
        let script = "redis.call('SET', KEYS[1], 1) redis.call('GET', KEYS[1]) \
                      redis.pcall('SET', KEYS[1]) redis.call('INCR', KEYS[1]) error('late')";
        let args = ["EVAL", script, "1", "k"].map(Bytes::from);
        assert!(
            session
                .execute(&args)
                .into_reply()
                .is_some_and(|r| r.is_error())
        );
        assert_eq!(*units.lock(), [["SET k 1", "INCR k"]]);
    }
}
