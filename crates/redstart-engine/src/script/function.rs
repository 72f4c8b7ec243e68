//! Libraries of functions: what FUNCTION LOAD brings and FCALL runs.
//!
//! A library's code runs once, when it is loaded, and registers functions; nothing else is within its
//! reach then. Functions live in a Lua state of their own, so that SCRIPT FLUSH does not touch them. A
//! library is compiled and checked as a whole before anything that exists is replaced.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use mlua::{MultiValue, Table, Value};

use super::{
    Flags, Limits, Watchdog, convert,
    raise::Raise,
    runtime::{Purpose, Runtime},
    stack::{STACK_BASE, stack_pointer},
};
use crate::{compat::Compat, error::Stop, free, registry, resp};

pub(crate) const NOT_FOUND: &str = "ERR Function not found";
const BAD_NAME: &str = "Library names can only contain letters, numbers, or underscores(_) and must \
     be at least one character long";
/// How long the code of a library may take that a client loads.
const LOAD_TIMEOUT: Duration = Duration::from_millis(500);

/// A function that a library registered.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: Bytes,
    pub(crate) description: Option<Bytes>,
    pub(crate) flags: Flags,
    /// Where its callback is in the Lua table of functions.
    pub(super) index: usize,
}

/// The functions of one piece of code.
pub(crate) struct Library {
    pub(crate) name: Bytes,
    pub(crate) code: Bytes,
    pub(crate) functions: Vec<Function>,
}

/// What FUNCTION RESTORE does with libraries that exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// They are removed.
    Flush,
    /// A library of the same name is an error.
    Append,
    /// A library of the same name is replaced.
    Replace,
}

/// All libraries of an engine.
#[derive(Default)]
pub(crate) struct Functions {
    /// Made for the first library; taken out while a function runs.
    pub(super) runtime: Option<Box<Runtime>>,
    libraries: BTreeMap<Bytes, Library>,
    /// By their names in lower case: where each function is.
    names: HashMap<Vec<u8>, (Bytes, usize)>,
}

/// What the code that is being loaded has registered.
pub(super) struct Loading {
    functions: Vec<Function>,
    /// Their names in lower case.
    names: HashSet<Vec<u8>>,
    /// The next free place in the Lua table of functions.
    next: usize,
    timeout: Option<Duration>,
}

impl Loading {
    pub(super) fn check(&self, elapsed: Duration) -> Result<(), Raise> {
        match self.timeout {
            Some(timeout) if elapsed >= timeout => Err(Raise::Killed("FUNCTION LOAD timeout")),
            _ => Ok(()),
        }
    }
}

/// With what a library is loaded.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(crate) limits: Limits,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) compat: Compat,
    /// Code from a log was loaded before and takes the time that it takes.
    pub(crate) from_log: bool,
    /// When the command began: all of its libraries share the time.
    pub(crate) began: Instant,
}

impl Loader {
    /// How much time is left; `None` if it does not matter.
    fn left(&self) -> Option<Duration> {
        let left = LOAD_TIMEOUT.saturating_sub(self.began.elapsed());
        (!self.from_log).then_some(left)
    }
}

/// The first line of a library.
struct Header<'a> {
    name: Bytes,
    /// From the end of the line on, so that the numbers of lines are right.
    code: &'a [u8],
}

impl Header<'_> {
    fn parse(text: &[u8]) -> Result<Header<'_>, Stop> {
        const INVALID: &str = "ERR Invalid library metadata";
        if !text.starts_with(b"#!") {
            return Err("ERR Missing library metadata".into());
        }
        let end = memchr::memchr(b'\n', text).ok_or(INVALID)?;
        let words = resp::split_line(&text[..end]).ok_or(INVALID)?;
        let (engine, words) = words.split_first().ok_or(INVALID)?;
        let mut name: Option<Bytes> = None;
        for word in words {
            let is_name = word.len() >= 5 && word[..5].eq_ignore_ascii_case(b"name=");
            if !is_name {
                let word = registry::printable(word);
                return Err(format!("ERR Invalid metadata value given: {word}").into());
            }
            if name.replace(word.slice(5..)).is_some() {
                return Err(
                    "ERR Invalid metadata value, name argument was given multiple times".into(),
                );
            }
        }
        let name = name.ok_or("ERR Library name was not given")?;
        if !is_name(&name) {
            return Err(format!("ERR {BAD_NAME}").into());
        }
        if !engine[2..].eq_ignore_ascii_case(b"lua") {
            let engine = registry::printable(&engine[2..]);
            return Err(format!("ERR Engine '{engine}' not found").into());
        }
        Ok(Header {
            name,
            code: &text[end..],
        })
    }
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

impl Functions {
    pub(crate) fn libraries(&self) -> impl Iterator<Item = &Library> {
        self.libraries.values()
    }

    /// The function of a name, in any case.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&Function> {
        let (library, at) = self.names.get(&name.to_ascii_lowercase())?;
        self.libraries.get(library)?.functions.get(*at)
    }

    /// Loads a library; its name.
    pub(crate) fn load(
        &mut self,
        code: &Bytes,
        replace: bool,
        loader: &Loader,
    ) -> Result<Bytes, Stop> {
        let header = Header::parse(code)?;
        if !replace && self.libraries.contains_key(&header.name) {
            let name = registry::printable(&header.name);
            return Err(format!("ERR Library '{name}' already exists").into());
        }
        let library = self.compile(header, code, loader)?;
        let name = library.name.clone();
        let settled = self.check_names(&library, |owner| *owner == name);
        self.settle(vec![library], settled, loader)?;
        Ok(name)
    }

    /// Loads several libraries, all or none.
    pub(crate) fn restore(
        &mut self,
        codes: &[Bytes],
        policy: Policy,
        loader: &Loader,
    ) -> Result<(), Stop> {
        let mut libraries: Vec<Library> = Vec::new();
        let mut taken: (HashSet<Bytes>, HashSet<Vec<u8>>) = Default::default();
        let mut settled = Ok(());
        for code in codes {
            settled = self.compile_another(&mut libraries, &mut taken, code, loader);
            if settled.is_err() {
                break;
            }
        }
        let (names, _) = taken;
        if policy == Policy::Append
            && settled.is_ok()
            && let Some(name) = names.iter().find(|name| self.libraries.contains_key(*name))
        {
            let name = registry::printable(name);
            settled = Err(format!("ERR Library {name} already exists").into());
        }
        for library in &libraries {
            settled = settled.and_then(|()| {
                self.check_names(library, |owner| {
                    policy == Policy::Flush || names.contains(owner)
                })
            });
        }
        let removed: Vec<Bytes> = match (policy, &settled) {
            (Policy::Flush, Ok(())) => self.libraries.keys().cloned().collect(),
            _ => Vec::new(),
        };
        for name in &removed {
            self.unlink(name);
        }
        self.settle(libraries, settled, loader)
    }

    /// Compiles one more library of a payload, whose names of libraries and functions must not repeat.
    fn compile_another(
        &mut self,
        libraries: &mut Vec<Library>,
        (names, functions): &mut (HashSet<Bytes>, HashSet<Vec<u8>>),
        code: &Bytes,
        loader: &Loader,
    ) -> Result<(), Stop> {
        if loader.left().is_some_and(|left| left.is_zero()) {
            return Err("ERR FUNCTION LOAD timeout".into());
        }
        let header = Header::parse(code)?;
        if !names.insert(header.name.clone()) {
            let name = registry::printable(&header.name);
            return Err(format!("ERR Library '{name}' already exists").into());
        }
        let library = self.compile(header, code, loader)?;
        let mut new = library.functions.iter();
        let repeated = new.find(|new| !functions.insert(new.name.to_ascii_lowercase()));
        let result = match repeated {
            None => Ok(()),
            Some(function) => Err(taken(&function.name)),
        };
        libraries.push(library);
        result
    }

    /// An error if a function of the library is one of another library that stays.
    fn check_names(&self, library: &Library, goes: impl Fn(&Bytes) -> bool) -> Result<(), Stop> {
        for function in &library.functions {
            if let Some((owner, _)) = self.names.get(&function.name.to_ascii_lowercase())
                && !goes(owner)
            {
                return Err(taken(&function.name));
            }
        }
        Ok(())
    }

    /// Puts compiled libraries in their places, or drops them if something was said against them.
    fn settle(
        &mut self,
        libraries: Vec<Library>,
        settled: Result<(), Stop>,
        loader: &Loader,
    ) -> Result<(), Stop> {
        if let Err(stop) = settled {
            for library in &libraries {
                self.drop_callbacks(library);
            }
            return Err(stop);
        }
        // All of them first: a function may have moved from one to another.
        for library in &libraries {
            self.unlink(&library.name);
        }
        for library in libraries {
            for (at, function) in library.functions.iter().enumerate() {
                let place = (library.name.clone(), at);
                self.names.insert(function.name.to_ascii_lowercase(), place);
            }
            self.libraries.insert(library.name.clone(), library);
        }
        loader
            .watchdog
            .count(self.libraries.len(), self.names.len());
        Ok(())
    }

    fn unlink(&mut self, name: &[u8]) -> bool {
        let Some(library) = self.libraries.remove(name) else {
            return false;
        };
        for function in &library.functions {
            self.names.remove(&function.name.to_ascii_lowercase());
        }
        self.drop_callbacks(&library);
        true
    }

    fn drop_callbacks(&mut self, library: &Library) {
        if let Some(runtime) = &self.runtime {
            for function in &library.functions {
                // Needs no memory.
                let _ = runtime.cache.functions.raw_set(function.index, Value::Nil);
            }
        }
    }

    /// Removes a library; whether it was there.
    pub(crate) fn delete(&mut self, name: &[u8], watchdog: &Watchdog) -> bool {
        let was_there = self.unlink(name);
        watchdog.count(self.libraries.len(), self.names.len());
        was_there
    }

    /// Removes all libraries, with the Lua state that they lived in.
    pub(crate) fn flush(&mut self, watchdog: &Watchdog, in_background: bool) {
        let old = std::mem::take(self);
        watchdog.count(0, 0);
        if in_background {
            free::later(usize::MAX, old);
        }
    }

    /// Runs the code of a library and takes what it registers.
    fn compile(
        &mut self,
        header: Header<'_>,
        code: &Bytes,
        loader: &Loader,
    ) -> Result<Library, Stop> {
        if self.runtime.is_none() {
            let watchdog = loader.watchdog.clone();
            let runtime = Runtime::new(loader.limits, watchdog, loader.compat, Purpose::Functions)
                .map_err(|error| Stop::from(format!("ERR cannot start Lua: {error}")))?;
            self.runtime = Some(Box::new(runtime));
        }
        let Some(runtime) = &mut self.runtime else {
            unreachable!("made just above");
        };
        let (functions, result) = runtime.load(header.code, loader);
        let mut library = Library {
            name: header.name,
            code: Bytes::copy_from_slice(code),
            functions,
        };
        let result = match result {
            Ok(()) if library.functions.is_empty() => Err("ERR No functions registered".into()),
            result => result,
        };
        if let Err(stop) = result {
            self.drop_callbacks(&library);
            // Lua 5.1 does not collect garbage before it gives up on an allocation: what the code left would fail the next call.
            if let Some(runtime) = &self.runtime {
                let _ = runtime.lua.gc_collect();
            }
            return Err(stop);
        }
        library.functions.shrink_to_fit();
        Ok(library)
    }
}

/// The error for a function that another library has.
fn taken(name: &[u8]) -> Stop {
    let name = registry::printable(name);
    format!("ERR Function {name} already exists").into()
}

impl Runtime {
    /// Runs a library's code; what it registered, also if it failed.
    fn load(&mut self, code: &[u8], loader: &Loader) -> (Vec<Function>, Result<(), Stop>) {
        let chunk = self
            .lua
            .load(code)
            .set_name("@user_function")
            .set_mode(mlua::chunk::ChunkMode::Text)
            .into_function();
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(error) => {
                let text = match error {
                    mlua::Error::SyntaxError { message, .. } => message,
                    other => other.to_string(),
                };
                let text = format!("ERR Error compiling function: {text}");
                return (Vec::new(), Err(text.replace(['\r', '\n'], " ").into()));
            }
        };
        let next = self.next_function;
        *self.shared.loading.lock() = Some(Loading {
            functions: Vec::new(),
            next,
            timeout: loader.left(),
            names: HashSet::new(),
        });
        STACK_BASE.set(stack_pointer());
        *self.shared.started.lock() = Some(Instant::now());
        let outcome: mlua::Result<(bool, Value)> = match &self.load {
            Some(load) => load.call(chunk),
            None => Err(mlua::Error::runtime("not an interpreter for functions")),
        };
        *self.shared.started.lock() = None;
        let loading = self.shared.loading.lock().take();
        let functions = loading.map_or_else(Vec::new, |loading| {
            self.next_function = loading.next;
            loading.functions
        });
        let result = match outcome {
            Ok((true, _)) => Ok(()),
            Ok((false, value)) => Err(self.failure(&value)),
            Err(error) => Err(error.to_string().into_bytes()),
        };
        let result = result.map_err(|text| {
            let text = registry::printable(&text);
            Stop::from(format!("ERR Error registering functions: {text}"))
        });
        (functions, result)
    }

    /// An error that ended a library's code, with its code before it.
    fn failure(&self, value: &Value) -> Vec<u8> {
        let coded = |text: &[u8]| [b"ERR ", text].concat();
        match value {
            Value::Error(error) => match error.downcast_ref::<Raise>() {
                Some(Raise::Reply { text, .. }) => text.clone(),
                Some(Raise::Text(text)) => coded(text),
                Some(Raise::Killed(text)) => coded(text.as_bytes()),
                None => coded(error.to_string().as_bytes()),
            },
            Value::String(text) => coded(&text.as_bytes()),
            _ => coded(b"unknown error"),
        }
    }
}

/// What `redis.register_function` was given.
struct Registration {
    name: Vec<u8>,
    description: Option<Vec<u8>>,
    callback: mlua::Function,
    flags: Flags,
}

/// `redis.register_function`: notes a function of the library that is being loaded.
pub(super) fn register(
    loading: &mut Option<Loading>,
    callbacks: &Table,
    args: &MultiValue,
) -> Result<(), String> {
    let Some(loading) = loading else {
        return Err("redis.register_function can only be called on FUNCTION LOAD command".into());
    };
    let args: Vec<&Value> = args.iter().collect();
    let registration = match args[..] {
        [Value::Table(named)] => Registration::named(named)?,
        [_] => {
            return Err(
                "calling redis.register_function with a single argument is only applicable to Lua \
                 table (representing named arguments)."
                    .into(),
            );
        }
        [name, callback] => Registration::plain(name, callback)?,
        _ => return Err("wrong number of arguments to redis.register_function".into()),
    };
    if !is_name(&registration.name) {
        return Err(BAD_NAME.into());
    }
    // The server takes two that differ in case only, and ends with the library's deletion.
    if !loading.names.insert(registration.name.to_ascii_lowercase()) {
        return Err("Function already exists in the library".into());
    }
    let index = loading.next;
    callbacks
        .raw_set(index, registration.callback)
        .map_err(|error| error.to_string())?;
    loading.next += 1;
    loading.functions.push(Function {
        name: registration.name.into(),
        description: registration.description.map(Bytes::from),
        flags: registration.flags,
        index,
    });
    Ok(())
}

const DECLARED: Flags = Flags {
    declared: true,
    no_writes: false,
    allow_oom: false,
    allow_stale: false,
    no_cluster: false,
    cross_slot: false,
};

impl Registration {
    fn plain(name: &Value, callback: &Value) -> Result<Registration, String> {
        let name = convert::text_of_value(name)
            .ok_or("first argument to redis.register_function must be a string")?;
        let Value::Function(callback) = callback else {
            return Err("second argument to redis.register_function must be a function".into());
        };
        Ok(Registration {
            name,
            description: None,
            callback: callback.clone(),
            flags: DECLARED,
        })
    }

    fn named(named: &Table) -> Result<Registration, String> {
        let (mut name, mut description, mut callback) = (None, None, None);
        let mut flags = DECLARED;
        for pair in named.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(|error| error.to_string())?;
            let key = convert::text_of_value(&key)
                .ok_or("named argument key given to redis.register_function is not a string")?;
            match &key.to_ascii_lowercase()[..] {
                b"function_name" => {
                    let text = convert::text_of_value(&value).ok_or(
                        "function_name argument given to redis.register_function must be a string",
                    )?;
                    name = Some(text);
                }
                b"description" => {
                    let text = convert::text_of_value(&value).ok_or(
                        "description argument given to redis.register_function must be a string",
                    )?;
                    description = Some(text);
                }
                b"callback" => match value {
                    Value::Function(function) => callback = Some(function),
                    _ => {
                        return Err(
                            "callback argument given to redis.register_function must be a \
                                    function"
                                .into(),
                        );
                    }
                },
                b"flags" => match value {
                    Value::Table(list) => read_flags(&list, &mut flags)?,
                    _ => {
                        return Err("flags argument to redis.register_function must be a table \
                                    representing function flags"
                            .into());
                    }
                },
                _ => return Err("unknown argument given to redis.register_function".into()),
            }
        }
        Ok(Registration {
            name: name.ok_or("redis.register_function must get a function name argument")?,
            description,
            callback: callback.ok_or("redis.register_function must get a callback argument")?,
            flags,
        })
    }
}

fn read_flags(list: &Table, flags: &mut Flags) -> Result<(), String> {
    for at in 1.. {
        let flag: Value = list.raw_get(at).map_err(|error| error.to_string())?;
        if flag.is_nil() {
            break;
        }
        let known =
            convert::text_of_value(&flag).is_some_and(|flag| flags.set(&flag.to_ascii_lowercase()));
        if !known {
            return Err("unknown flag given".into());
        }
    }
    Ok(())
}
