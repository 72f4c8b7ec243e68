//! Lua scripts: the interpreter, the cache of compiled scripts, and how a script reaches the data.
//!
//! One Lua state per engine, made for the first script. A script calls back into the engine while
//! the engine's state is borrowed by the command that runs the script, so for that time the state is
//! swapped into a [`Stage`] that the Lua functions share; nothing is made or copied per call.
//!
//! | file | what it holds |
//! |---|---|
//! | `sandbox.lua` | what scripts see, and the function that runs one |
//! | `host.rs` | the Rust functions that the sandbox is made of |
//! | `library.rs`, `command.rs` | the functions of `redis`; how `redis.call` runs a command |
//! | `function.rs` | libraries of functions; they have a Lua state of their own |
//! | `watchdog.rs` | what other threads see of a slow script, and how they end it |
//! | `convert.rs` | replies to Lua values and back |
//! | `chance.rs` | `math.random` |
//! | `json.rs`, `msgpack.rs`, `pack.rs`, `bit.rs` | `cjson`, `cmsgpack`, `struct`, `bit` |
//!
//! Errors are raised by Rust functions as [`Raise`], which `pcall` and `xpcall` turn into
//! what scripts see on Redis.

mod bit;
mod chance;
mod command;
mod convert;
pub(crate) mod function;
mod host;
mod json;
mod library;
mod memory;
mod msgpack;
mod pack;
mod watchdog;

use std::{
    borrow::Cow,
    cell::Cell,
    collections::VecDeque,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use hashbrown::HashMap;
use mlua::{
    Function, HookTriggers, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value, VmState,
};
use parking_lot::Mutex;

pub(crate) use function::Functions;
use function::Loading;
pub(crate) use watchdog::{NOT_BUSY, Watchdog};

use crate::{
    client::Client,
    compat::Compat,
    context::{Ctx, Origin},
    engine::State,
    error::{CommandResult, LOG_FAILED, OUT_OF_MEMORY, Stop},
    free, registry,
    reply::{Protocol, Reply},
    resp,
};

/// How many Lua instructions run between two looks at the clock and the kill flag.
const INSTRUCTIONS_PER_CHECK: u32 = 20_000;

/// A script that has been running for so long gives up the worker of the runtime that it runs on.
const RELEASE_AFTER: Duration = Duration::from_millis(5);

/// What the frames of `sandbox.lua` call their source.
const SANDBOX: &str = "=sandbox";

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

/// SHA-1 of a script's text.
pub(crate) type Digest = [u8; 20];

pub(crate) fn digest(text: &[u8]) -> Digest {
    let mut sha = sha1_smol::Sha1::new();
    sha.update(text);
    sha.digest().bytes()
}

/// 40 hexadecimal digits as a digest.
pub(crate) fn parse_digest(text: &[u8]) -> Option<Digest> {
    let digits: &[u8; 40] = text.try_into().ok()?;
    let mut digest = [0; 20];
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let high = (pair[0] as char).to_digit(16)?;
        let low = (pair[1] as char).to_digit(16)?;
        *byte = (high * 16 + low) as u8;
    }
    Some(digest)
}

pub(crate) fn hex(digest: &Digest) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(40);
    for byte in digest {
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
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

/// What a script declared on its `#!lua` line, or a function when it was registered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    /// There was such a line.
    pub(crate) declared: bool,
    pub(crate) no_writes: bool,
    pub(crate) allow_oom: bool,
    pub(crate) allow_stale: bool,
    pub(crate) no_cluster: bool,
    pub(crate) cross_slot: bool,
}

impl Flags {
    /// The names that are set, in Redis's order.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        [
            (self.no_writes, "no-writes"),
            (self.allow_oom, "allow-oom"),
            (self.allow_stale, "allow-stale"),
            (self.no_cluster, "no-cluster"),
            (self.cross_slot, "allow-cross-slot-keys"),
        ]
        .into_iter()
        .filter_map(|(set, name)| set.then_some(name))
    }

    /// Sets a flag; whether there is one of this name.
    fn set(&mut self, name: &[u8]) -> bool {
        let flag = match name {
            b"no-writes" => &mut self.no_writes,
            b"allow-oom" => &mut self.allow_oom,
            b"allow-stale" => &mut self.allow_stale,
            b"no-cluster" => &mut self.no_cluster,
            b"allow-cross-slot-keys" => &mut self.cross_slot,
            _ => return false,
        };
        *flag = true;
        true
    }

    /// The flags, and how long the line is.
    fn parse(text: &[u8]) -> Result<(Flags, usize), Stop> {
        let mut flags = Flags::default();
        if !text.starts_with(b"#!") {
            return Ok((flags, 0));
        }
        let Some(end) = memchr::memchr(b'\n', text) else {
            return Err("ERR Invalid script shebang".into());
        };
        let words = resp::split_line(&text[..end]).unwrap_or_default();
        let mut words = words.iter();
        match words.next() {
            Some(word) if word == "#!lua" => {}
            Some(other) => {
                let other = registry::printable(other);
                return Err(format!("ERR Unexpected engine in script shebang: {other}").into());
            }
            None => return Err("ERR Invalid engine in script shebang".into()),
        }
        flags.declared = true;
        for word in words {
            let Some(list) = word.strip_prefix(b"flags=") else {
                let word = registry::printable(word);
                return Err(format!("ERR Unknown lua shebang option: {word}").into());
            };
            if list.is_empty() {
                continue;
            }
            for flag in list.split(|&byte| byte == b',') {
                if !flags.set(flag) {
                    let flag = registry::printable(flag);
                    return Err(format!("ERR Unexpected flag in script shebang: {flag}").into());
                }
            }
        }
        Ok((flags, end))
    }
}

/// A script that was compiled.
struct Compiled {
    /// Where its function is in the Lua table of functions.
    index: usize,
    text: Bytes,
    flags: Flags,
    /// SCRIPT LOAD asked for it: it stays until SCRIPT FLUSH.
    pinned: bool,
    /// It ran at all.
    ran: bool,
    /// It ran again since the cache last looked for one to drop.
    recent: bool,
}

/// How many scripts are kept that only EVAL brought, as in Redis 7.4.
const EVAL_SCRIPTS: usize = 500;

/// The compiled scripts. Their functions are in one Lua table: a Rust handle for each would use up
/// the few thousand references that Lua 5.1 allows.
struct Cache {
    scripts: HashMap<Digest, Compiled, ahash::RandomState>,
    functions: Table,
    /// Indices of `functions` that were used and are free.
    free: Vec<usize>,
    /// Scripts that only EVAL brought, next to be dropped first; those that ran meanwhile get a
    /// second chance. Pinned ones are removed when they come up.
    evals: VecDeque<Digest>,
}

impl Cache {
    fn new(functions: Table) -> Cache {
        Cache {
            scripts: HashMap::default(),
            functions,
            free: Vec::new(),
            evals: VecDeque::new(),
        }
    }

    fn insert(
        &mut self,
        digest: Digest,
        function: Function,
        text: Bytes,
        flags: Flags,
        pinned: bool,
    ) -> mlua::Result<()> {
        if !pinned {
            while self.evals.len() >= EVAL_SCRIPTS {
                self.drop_one()?;
            }
            self.evals.push_back(digest);
        }
        let index = self.free.pop().unwrap_or(self.scripts.len() + 1);
        self.functions.raw_set(index, function)?;
        let script = Compiled {
            index,
            text,
            flags,
            pinned,
            ran: false,
            recent: false,
        };
        self.scripts.insert(digest, script);
        Ok(())
    }

    fn drop_one(&mut self) -> mlua::Result<()> {
        while let Some(digest) = self.evals.pop_front() {
            let Some(script) = self.scripts.get_mut(&digest) else {
                return Ok(());
            };
            if script.pinned {
                return Ok(());
            }
            if std::mem::take(&mut script.recent) {
                self.evals.push_back(digest);
                continue;
            }
            let index = script.index;
            self.scripts.remove(&digest);
            self.functions.raw_set(index, Value::Nil)?;
            self.free.push(index);
            return Ok(());
        }
        Ok(())
    }

    fn clear(&mut self) -> mlua::Result<()> {
        self.scripts.clear();
        self.free.clear();
        self.evals.clear();
        self.functions.clear()
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

/// What an interpreter is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Scripts,
    Functions,
}

struct Runtime {
    lua: Lua,
    cache: Cache,
    /// `run(index, keys, argv)`, made by the sandbox.
    run: Function,
    /// Runs the code of a library; of functions only.
    load: Function,
    /// The next place for a function of a library.
    next_function: usize,
    shared: Arc<Shared>,
    names: convert::Names,
}

/// What the Lua functions share with the caller of a script.
struct Shared {
    stage: Mutex<Stage>,
    watchdog: Arc<Watchdog>,
    /// Of `math.random`: drand48's 48 bits.
    chance: AtomicU64,
    /// When the running script was first seen by the hook.
    started: Mutex<Option<Instant>>,
    /// The script runs on a worker of the listener's runtime, which has other tasks, too.
    on_worker: AtomicBool,
    limits: Mutex<Limits>,
    /// Of `cjson`; as at first when a script begins.
    json: Arc<Mutex<json::Settings>>,
    /// The library whose code runs to register its functions.
    loading: Mutex<Option<Loading>>,
}

/// The engine's state and what is known of the running script. Hollow while none runs.
struct Stage {
    state: State,
    client: Client,
    now_micros: i64,
    running: bool,
    read_only: bool,
    /// In cluster-strict mode: the keys that were declared.
    declared: Option<Vec<Bytes>>,
    label: Label,
    /// The command that runs the script.
    command: Vec<Bytes>,
    /// The error that ended the script, as its handler put it together.
    failure: Option<String>,
}

/// Why a Rust function that Lua called failed; travels through Lua as an error object.
#[derive(Debug)]
pub(super) enum Raise {
    /// A string.
    Text(Vec<u8>),
    /// A table `{err = …}`; `counted` if the failure is that of a command.
    Reply { text: Vec<u8>, counted: bool },
    /// The script was killed: nothing may catch this.
    Killed(&'static str),
}

impl std::fmt::Display for Raise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Raise::Text(text) | Raise::Reply { text, .. } => {
                f.write_str(&String::from_utf8_lossy(text))
            }
            Raise::Killed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Raise {}

impl From<Raise> for mlua::Error {
    fn from(raise: Raise) -> mlua::Error {
        mlua::Error::external(raise)
    }
}

/// The position of the function `level` calls up the stack, as Lua puts it before an error's text.
pub(super) fn position(lua: &Lua, level: usize) -> String {
    lua.inspect_stack(level, |frame| match frame.current_line() {
        Some(line) if line > 0 => {
            let source = frame.source();
            let name = source.short_src.as_deref().unwrap_or("?");
            format!("{name}:{line}: ")
        }
        _ => String::new(),
    })
    .unwrap_or_default()
}

thread_local! {
    /// Where the stack of this thread was when its last script began.
    static STACK_BASE: Cell<usize> = const { Cell::new(0) };
}

/// How much of the stack a script may have taken when a Rust function goes deeper. Lua limits how
/// deeply C functions call one another, but not what they take: nested `string.gsub` come close to
/// the 2 MiB that a thread usually has.
const STACK: usize = 1536 << 10;

#[inline(never)]
fn stack_pointer() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}

/// Whether the running script has taken so much of the stack that it must not go deeper.
pub(super) fn is_stack_used_up() -> bool {
    STACK_BASE.get().abs_diff(stack_pointer()) > STACK
}

/// A string error with the caller's position, as `luaL_error` raises it.
pub(super) fn text_error(lua: &Lua, text: impl AsRef<[u8]>) -> mlua::Error {
    let mut full = position(lua, 1).into_bytes();
    full.extend_from_slice(text.as_ref());
    Raise::Text(full).into()
}

/// A complaint about an argument of the running function, as `luaL_argerror` raises it.
pub(super) fn argument_error(lua: &Lua, number: usize, text: &str) -> mlua::Error {
    let (name, method) = lua
        .inspect_stack(0, |frame| {
            let names = frame.names();
            (
                names
                    .name
                    .map_or_else(|| "?".to_owned(), |n| n.into_owned()),
                names.name_what.is_some_and(|what| what == "method"),
            )
        })
        .unwrap_or_else(|| ("?".to_owned(), false));
    if method && number == 1 {
        return text_error(lua, format!("calling '{name}' on bad self ({text})"));
    }
    let number = number - usize::from(method);
    text_error(lua, format!("bad argument #{number} to '{name}' ({text})"))
}

/// What Lua calls the type of an argument in complaints.
pub(super) fn type_name(value: Option<&Value>) -> &'static str {
    match value {
        None => "no value",
        Some(Value::Integer(_) | Value::Number(_)) => "number",
        Some(Value::LightUserData(_)) => "userdata",
        Some(Value::Error(_)) => "userdata",
        Some(other) => other.type_name(),
    }
}

pub(super) fn expected(lua: &Lua, number: usize, what: &str, value: Option<&Value>) -> mlua::Error {
    let text = format!("{what} expected, got {}", type_name(value));
    argument_error(lua, number, &text)
}

/// A number argument (counted from 1), read as `luaL_checknumber` reads it.
pub(super) fn number_argument(lua: &Lua, args: &[Value], number: usize) -> mlua::Result<f64> {
    match args.get(number - 1) {
        Some(Value::Integer(value)) => Ok(*value as f64),
        Some(Value::Number(value)) => Ok(*value),
        Some(value @ Value::String(_)) => match lua.coerce_number(value.clone())? {
            Some(value) => Ok(value),
            None => Err(expected(lua, number, "number", Some(value))),
        },
        other => Err(expected(lua, number, "number", other)),
    }
}

/// A string argument (counted from 1), read as `luaL_checklstring` reads it.
pub(super) fn string_argument(lua: &Lua, args: &[Value], number: usize) -> mlua::Result<LuaString> {
    match args.get(number - 1) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(value @ (Value::Integer(_) | Value::Number(_))) => lua
            .coerce_string(value.clone())?
            .ok_or_else(|| expected(lua, number, "string", Some(value))),
        other => Err(expected(lua, number, "string", other)),
    }
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
    if !flags.no_writes && cx.state.effects.is_failing() {
        return Err(LOG_FAILED.into());
    }
    if !flags.no_writes && call.read_only {
        return Err("ERR Can not execute a script with write flag using *_ro command.".into());
    }
    Ok(())
}

/// Lends the engine's state to the script's functions, and takes it back whatever happens.
struct Lent<'a> {
    state: &'a mut State,
    shared: &'a Shared,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut stage = self.shared.stage.lock();
        std::mem::swap(self.state, &mut stage.state);
        stage.running = false;
        stage.declared = None;
        // They are parts of a read buffer, which they would keep from being freed.
        stage.command.clear();
        drop(stage);
        *self.shared.started.lock() = None;
        let watchdog = &self.shared.watchdog;
        if watchdog.has_written() || watchdog.is_long() || watchdog.is_busy() {
            watchdog.reset();
        }
    }
}

/// Lifts the limit on Lua's memory while values are converted: what mlua does under a limit
/// costs several times as much, and what is converted is in memory already.
pub(super) struct Unlimited<'a> {
    lua: &'a Lua,
    limit: usize,
}

impl Unlimited<'_> {
    pub(super) fn new(lua: &Lua) -> mlua::Result<Unlimited<'_>> {
        let limit = lua.set_memory_limit(0)?;
        Ok(Unlimited { lua, limit })
    }
}

impl Drop for Unlimited<'_> {
    fn drop(&mut self) {
        // Fails only for a state that mlua does not own.
        let _ = self.lua.set_memory_limit(self.limit);
    }
}

impl Runtime {
    fn new(
        limits: Limits,
        watchdog: Arc<Watchdog>,
        compat: Compat,
        purpose: Purpose,
    ) -> mlua::Result<Runtime> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::OS;
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
        let names = convert::Names::new(&lua)?;
        let shared = Arc::new(Shared {
            stage: Mutex::new(Stage {
                state: State::hollow(),
                client: Client::internal(0, 0, Protocol::Resp2),
                now_micros: 0,
                running: false,
                read_only: false,
                declared: None,
                label: Label::Script([0; 20]),
                command: Vec::new(),
                failure: None,
            }),
            watchdog,
            chance: AtomicU64::new(chance::UNSEEDED),
            started: Mutex::new(None),
            on_worker: AtomicBool::new(false),
            limits: Mutex::new(limits),
            json: Arc::default(),
            loading: Mutex::new(None),
        });
        let host = host::functions(&lua, &shared, &names, compat)?;
        host.set("cjson", json::library(&lua, &shared.json)?)?;
        host.set("cmsgpack", msgpack::library(&lua, &shared)?)?;
        host.set("struct", pack::library(&lua)?)?;
        host.set("bit", bit::library(&lua)?)?;
        let functions = lua.create_table()?;
        host.set("functions", &functions)?;
        if purpose == Purpose::Functions {
            let redis = library::redis_at_load(&lua, &shared, &functions, compat)?;
            host.set("redis_at_load", redis)?;
        }
        let (globals, run, load): (Table, Function, Function) = lua
            .load(include_str!("script/sandbox.lua"))
            .set_name(SANDBOX)
            .call(host)?;
        lua.set_globals(globals)?;
        let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS_PER_CHECK);
        let watched = shared.clone();
        lua.set_global_hook(triggers, move |_, _| {
            watched.check()?;
            Ok(VmState::Continue)
        })?;
        lua.set_memory_limit(limits.memory)?;
        Ok(Runtime {
            lua,
            cache: Cache::new(functions),
            run,
            load,
            next_function: 1,
            shared,
            names,
        })
    }

    fn compile(&mut self, digest: Digest, text: &[u8], pinned: bool) -> Result<(), Stop> {
        let (flags, skip) = Flags::parse(text)?;
        let function = self
            .lua
            .load(&text[skip..])
            .set_name("@user_script")
            .set_mode(mlua::chunk::ChunkMode::Text)
            .into_function()
            .map_err(|error| {
                let text = match error {
                    mlua::Error::SyntaxError { message, .. } => message,
                    other => other.to_string(),
                };
                let text = format!("ERR Error compiling script (new function): {text}");
                Stop::from(text.replace(['\r', '\n'], " "))
            })?;
        self.cache
            .insert(
                digest,
                function,
                Bytes::copy_from_slice(text),
                flags,
                pinned,
            )
            .map_err(|error| Stop::from(format!("ERR cannot keep the script: {error}")))
    }

    fn run(
        &mut self,
        cx: &mut Ctx<'_>,
        program: &Program,
        call: &Call<'_>,
        limits: Limits,
    ) -> CommandResult {
        let label = &program.label;
        let outcome = self.enter(cx, program, call, limits);
        // Lua 5.1 does not collect garbage before it gives up on an allocation.
        if limits.memory > 0 && self.lua.used_memory() > limits.memory / 2 {
            let _ = self.lua.gc_collect();
        }
        let failure = self.shared.stage.lock().failure.take();
        match outcome {
            Ok((true, reply)) => Ok(reply),
            Ok((false, _)) if failure.is_some() => Err(failure.unwrap_or_default().into()),
            Ok((false, Reply::Bulk(text))) => Err(plain_failure(label, &text)),
            Ok((false, _)) => Err(plain_failure(label, b"execution failure")),
            Err(error) => Err(plain_failure(label, error.to_string().as_bytes())),
        }
    }

    fn enter(
        &self,
        cx: &mut Ctx<'_>,
        program: &Program,
        call: &Call<'_>,
        limits: Limits,
    ) -> mlua::Result<(bool, Reply)> {
        let strict = cx.state.config.cluster_strict;
        let unlimited = Unlimited::new(&self.lua)?;
        let keys = self.array(call.keys)?;
        let args = self.array(call.args)?;
        drop(unlimited);
        {
            let mut stage = self.shared.stage.lock();
            stage.client.id = cx.client.id;
            stage.client.db = cx.client.db;
            stage.client.account = cx.client.account.clone();
            stage.client.protocol = Protocol::Resp2;
            // What the script reads is read on the caller's behalf.
            stage.client.tracking = cx.client.tracking.clone();
            stage.now_micros = cx.now_micros;
            stage.running = true;
            stage.read_only = call.read_only || program.flags.no_writes;
            stage.declared = strict.then(|| call.keys.to_vec());
            stage.label = program.label.clone();
            stage.command.extend_from_slice(call.command);
            stage.failure = None;
            if program.flags.allow_oom {
                cx.state.out_of_memory = false;
            }
            std::mem::swap(cx.state, &mut stage.state);
        }
        *self.shared.limits.lock() = limits;
        STACK_BASE.set(stack_pointer());
        *self.shared.json.lock() = json::Settings::default();
        let on_worker = cx.client.networked;
        self.shared.on_worker.store(on_worker, Ordering::Relaxed);
        // A kill that came when the script before had just ended.
        if self.shared.watchdog.is_killed() {
            self.shared.watchdog.reset();
        }
        let lent = Lent {
            state: cx.state,
            shared: &self.shared,
        };
        let mut values: MultiValue = self.run.call((program.index, keys, args))?;
        let protocol = self.shared.stage.lock().client.protocol;
        drop(lent);
        // `run` answers true and either nil and the value, or a number and the items of an array;
        // or false and what no handler has seen.
        let ok = matches!(values.pop_front(), Some(Value::Boolean(true)));
        let shape = values.pop_front().unwrap_or(Value::Nil);
        let mut converter = convert::Converter {
            names: &self.names,
            protocol,
            left: limits.bytes(),
        };
        let reply = match shape {
            Value::Nil if ok => converter.value(values.pop_front().unwrap_or(Value::Nil))?,
            _ if ok => converter.array(values)?,
            Value::String(_) => converter.value(shape)?,
            _ => Reply::Nil,
        };
        Ok((ok, reply))
    }

    fn array(&self, items: &[Bytes]) -> mlua::Result<Table> {
        self.lua
            .create_sequence_from(items.iter().map(LuaString::wrap))
    }
}

/// The reply for a failure that passed by the script's error handler.
fn plain_failure(label: &Label, text: &[u8]) -> Stop {
    let text = String::from_utf8_lossy(&text[..text.len().min(100)]).replace(['\r', '\n'], " ");
    format!("ERR Error running script {}, {text}", label.text()).into()
}

/// Hands the other tasks of this runtime worker to another thread, and continues without them.
///
/// `block_in_place` does that for the time of its closure; if the closure takes long enough for the
/// other thread to take over, the worker stays there. So the closure waits for a task to be run.
fn release_worker() {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    // The listener's tasks never run on a runtime that cannot do it; see `server::Network`.
    if runtime.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread {
        let (ran, runs) = std::sync::mpsc::channel();
        runtime.spawn(async move { ran.send(()) });
        let _ = tokio::task::block_in_place(|| runs.recv_timeout(Duration::from_secs(1)));
    }
}

impl Shared {
    /// Ends the script if it was killed or reached the time limit.
    fn check(&self) -> Result<(), Raise> {
        if self.watchdog.is_killed() {
            return Err(Raise::Killed("Script killed by user with SCRIPT KILL..."));
        }
        let mut started = self.started.lock();
        let Some(began) = *started else {
            *started = Some(Instant::now());
            return Ok(());
        };
        let elapsed = began.elapsed();
        if elapsed >= RELEASE_AFTER && self.on_worker.swap(false, Ordering::Relaxed) {
            drop(started);
            // Before the worker is released: if all who come would wait on their threads first, the task that ends the
            // release would stand behind them.
            self.watchdog.set_long();
            release_worker();
        }
        let limits = *self.limits.lock();
        if let Some(loading) = &*self.loading.lock() {
            return loading.check(elapsed);
        }
        if elapsed >= limits.end_after {
            return Err(Raise::Killed(
                "Script ended: it ran for longer than is allowed",
            ));
        }
        if elapsed >= limits.busy_after && !self.watchdog.is_busy() {
            tracing::warn!("a script has been running for {elapsed:?}");
            let stage = self.stage.lock();
            self.watchdog
                .set_busy(stage.label.clone(), stage.command.clone(), began);
        }
        Ok(())
    }

    /// Whether the script was ended from outside, which nothing may catch.
    fn check_killed(&self) -> Result<(), Raise> {
        if self.watchdog.is_killed() {
            return self.check();
        }
        let started = *self.started.lock();
        match started {
            Some(began) if began.elapsed() >= self.limits.lock().end_after => self.check(),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn digests_are_read_in_either_case() {
        let digest = digest(b"return 1");
        assert_eq!(hex(&digest), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert_eq!(
            parse_digest(hex(&digest).to_uppercase().as_bytes()),
            Some(digest)
        );
        assert_eq!(parse_digest(b"e0"), None);
        assert_eq!(parse_digest(&[b'g'; 40]), None);
    }
}
