//! An interpreter: made with its sandbox, and entered to run a script or a function.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use bytes::Bytes;
use mlua::{
    Function, HookTriggers, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value, VmState,
};
use parking_lot::Mutex;

use super::{
    Call, Label, Limits, Program, bit,
    cache::Cache,
    chance, convert,
    digest::Digest,
    flags::Flags,
    host, json, library, msgpack, pack,
    shared::{Lent, Shared, Stage},
    stack::{STACK_BASE, stack_pointer},
    watchdog::Watchdog,
};
use crate::{
    client::Client,
    compat::Compat,
    context::Ctx,
    engine::State,
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
    /// `run(index, keys, argv)`, made by the sandbox.
    run: Function,
    /// Runs the code of a library; of functions only.
    pub(super) load: Function,
    /// The next place for a function of a library.
    pub(super) next_function: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) names: convert::Names,
}

/// Lifts the limit on Lua's memory while values are converted: what mlua does under a limit
/// costs several times as much, and what is converted is in memory already.
pub(super) struct Unlimited<'a> {
    pub(super) lua: &'a Lua,
    pub(super) limit: usize,
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
            .load(include_str!("sandbox.lua"))
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

    pub(super) fn array(&self, items: &[Bytes]) -> mlua::Result<Table> {
        self.lua
            .create_sequence_from(items.iter().map(LuaString::wrap))
    }
}

/// The reply for a failure that passed by the script's error handler.
pub(super) fn plain_failure(label: &Label, text: &[u8]) -> Stop {
    let text = String::from_utf8_lossy(&text[..text.len().min(100)]).replace(['\r', '\n'], " ");
    format!("ERR Error running script {}, {text}", label.text()).into()
}
