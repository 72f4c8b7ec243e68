//! An interpreter: made with its sandbox, and entered to run a script or a function.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use bytes::Bytes;
use mlua::{Function, HookTriggers, Lua, LuaOptions, StdLib, Table, VmState};
use parking_lot::Mutex;
use redstart_lua::{Ended, Entry, Layout, Natives};

use super::{
    Call, Label, Limits, Program, bit,
    cache::Cache,
    chance,
    command::Command,
    convert,
    digest::Digest,
    flags::Flags,
    host, json, library, msgpack, pack,
    running::{IDLE, Running},
    shared::{Ending, Shared, Stage},
    stack::{STACK_BASE, stack_pointer},
    watchdog::Watchdog,
};
use crate::{
    client::Client,
    compat::Compat,
    context::Ctx,
    error::{CommandResult, Stop},
    reply::{Protocol, Reply},
};

/// How many Lua instructions run between two looks at the clock and the kill flag.
const INSTRUCTIONS_PER_CHECK: u32 = 20_000;

/// What the frames of `sandbox.lua` call their source.
pub(super) const SANDBOX: &str = "=sandbox";

/// What an interpreter is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Scripts,
    Functions,
}

pub(super) struct Runtime {
    pub(super) lua: Lua,
    pub(super) cache: Cache,
    /// Runs what is in the cache.
    entry: Entry,
    /// Of the command that a script calls.
    command: Command,
    /// Runs the code of a library; of functions only.
    pub(super) load: Option<Function>,
    /// The next place for a function of a library.
    pub(super) next_function: usize,
    pub(super) shared: Arc<Shared>,
}

impl Runtime {
    pub(super) fn new(
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
                client: Client::internal(0, 0, Protocol::Resp2),
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
        let natives = Natives::new(&lua, IDLE)?;
        let host = host::functions(&lua, &natives, &shared, &names, compat)?;
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
        let (visible, globals, load): (Table, Table, Option<Function>) = lua
            .load(include_str!("sandbox.lua"))
            .set_name(SANDBOX)
            .call(&host)?;
        lua.set_globals(visible)?;
        let layout = Layout {
            functions: &functions,
            // Functions get their keys and arguments as parameters.
            globals: (purpose == Purpose::Scripts).then_some(&globals),
            handler: &host.get("handler")?,
            names: &convert::FIELDS,
        };
        let entry = natives.entry(&lua, layout)?;
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
            entry,
            command: Command::default(),
            load,
            next_function: 1,
            shared,
        })
    }

    pub(super) fn compile(
        &mut self,
        digest: Digest,
        text: &[u8],
        pinned: bool,
    ) -> Result<(), Stop> {
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

    pub(super) fn run(
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
        let (ended, reply) = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return Err(plain_failure(label, error.to_string().as_bytes())),
        };
        match (ended, reply) {
            (Ended::Returned, Ok(reply)) => Ok(reply),
            (Ended::Returned, Err(unfit)) => Err(plain_failure(label, unfit.text().as_bytes())),
            _ if failure.is_some() => Err(failure.unwrap_or_default().into()),
            (Ended::Unhandled(text), _) if !text.is_empty() => Err(plain_failure(label, &text)),
            _ => Err(plain_failure(label, b"execution failure")),
        }
    }

    fn enter(
        &mut self,
        cx: &mut Ctx<'_>,
        program: &Program,
        call: &Call<'_>,
        limits: Limits,
    ) -> mlua::Result<(Ended, Result<Reply, convert::Unfit>)> {
        {
            let mut stage = self.shared.stage.lock();
            stage.client.id = cx.client.id;
            stage.client.db = cx.client.db;
            stage.client.account = cx.client.account.clone();
            stage.client.protocol = Protocol::Resp2;
            // What the script reads is read on the caller's behalf.
            stage.client.tracking = cx.client.tracking.clone();
            stage.label = program.label.clone();
            if matches!(program.label, Label::Function(_)) {
                stage.command.extend_from_slice(call.command);
            }
            stage.failure = None;
        }
        if program.flags.allow_oom {
            cx.state.out_of_memory = false;
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
        let _ending = Ending(&self.shared);
        let mut running = Running {
            declared: cx.state.config.cluster_strict.then_some(call.keys),
            state: cx.state,
            shared: &self.shared,
            command: &mut self.command,
            now_micros: cx.now_micros,
            read_only: call.read_only || program.flags.no_writes,
            room: limits.bytes(),
            reply: Ok(Reply::Nil),
        };
        let ended = self
            .entry
            .run(program.index, call.keys, call.args, &mut running)?;
        Ok((ended, running.reply))
    }
}

/// The reply for a failure that passed by the script's error handler.
pub(super) fn plain_failure(label: &Label, text: &[u8]) -> Stop {
    let text = String::from_utf8_lossy(&text[..text.len().min(100)]).replace(['\r', '\n'], " ");
    format!("ERR Error running script {}, {text}", label.text()).into()
}
