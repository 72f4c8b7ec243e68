//! Runs a script: its keys and arguments in, what it returned out.

use std::{
    cell::Cell,
    ffi::c_int,
    panic::{self, AssertUnwindSafe},
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use bytes::Bytes;
use mlua::{Function, Lua, LuaString, MultiValue, ffi};

use crate::{
    Host,
    slot::{Panic, Slot},
    value::{Frame, step},
    values::push_bytes,
};

/// The upvalues of the entry.
const SLOT: c_int = 1;
const FUNCTIONS: c_int = 2;
const HANDLER: c_int = 3;
const GLOBALS: c_int = 4;
// The fifth is the function that keeps the slot alive.
const KEYS: c_int = 6;
const ARGV: c_int = 7;
pub(crate) const STEP: c_int = 8;
/// The first of the names.
pub(crate) const NAMES: c_int = 9;
/// Lua allows a C function no more upvalues than 255.
const MOST_NAMES: usize = 64;

/// Where the error handler is on the stack of the entry.
const HANDLER_PLACE: c_int = 1;

thread_local! {
    /// The job that the entry is about to take. It is not an argument of the entry: whoever gets hold of that function, as
    /// from a stack trace, can call it with anything.
    static NEXT: Cell<*mut Job> = const { Cell::new(ptr::null_mut()) };
}

/// Withdraws a job that was not taken.
struct Announced(*mut Job);

impl Drop for Announced {
    fn drop(&mut self) {
        NEXT.set(self.0);
    }
}

/// What an [`Entry`] is made of.
pub struct Layout<'a> {
    /// The functions that can be run, by their index.
    pub functions: &'a mlua::Table,
    /// Where the lists of strings are put as `KEYS` and `ARGV`; without it they are the function's arguments.
    pub globals: Option<&'a mlua::Table>,
    /// Called with the value of an error, on the stack of the error. What it returns is not used.
    pub handler: &'a Function,
    /// Names of fields that [`crate::Table::field`] can read.
    pub names: &'a [&'a str],
}

/// Runs functions of a Lua table of functions, each for a [`Host`].
pub struct Entry {
    enter: Function,
    /// How many names are among its upvalues.
    names: usize,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The function returned: [`Host::returned`] was called.
    Returned,
    /// An error ended it, which the handler was called with.
    Handled,
    /// An error ended it that no handler has seen, such as a lack of memory.
    Unhandled(Vec<u8>),
    /// Another run has not ended: nothing was run.
    Nested,
}

/// What the entry is to do, on the stack of the caller of [`Entry::run`].
struct Job {
    index: c_int,
    keys: *const [Bytes],
    args: *const [Bytes],
    host: NonNull<dyn Host>,
    /// How many names the entry has.
    names: usize,
    ended: Ended,
    /// What the host has panicked with.
    panic: Option<Panic>,
}

impl Entry {
    pub(crate) fn new(
        lua: &Lua,
        slot: &Arc<Slot>,
        resume: &Function,
        layout: Layout<'_>,
    ) -> mlua::Result<Entry> {
        if layout.names.len() > MOST_NAMES {
            return Err(mlua::Error::runtime("too many names"));
        }
        // SAFETY: the closure gets the handler and makes it the upvalue that `message_handler` expects; it owns nothing.
        let handler: Function = unsafe {
            lua.exec_raw(layout.handler, |state| {
                ffi::lua_pushcclosure(state, message_handler, 1);
            })
        }?;
        // SAFETY: `step` keeps the rules for C functions, and is called only by `Table::pairs`, with what it expects.
        let step = unsafe { lua.create_c_function(step) }?;
        let names: mlua::Result<Vec<LuaString>> = layout
            .names
            .iter()
            .map(|name| lua.create_string(name))
            .collect();
        let mut upvalues = MultiValue::new();
        let fixed = (
            (slot.pointer(), layout.functions, handler, layout.globals),
            (resume, "KEYS", "ARGV", step),
        );
        upvalues.extend(mlua::IntoLuaMulti::into_lua_multi(fixed.0, lua)?);
        upvalues.extend(mlua::IntoLuaMulti::into_lua_multi(fixed.1, lua)?);
        upvalues.extend(names?.into_iter().map(mlua::Value::String));
        let count = upvalues.len() as c_int;
        // SAFETY: the closure gets these values in this order, which is that of the constants above, and makes them the
        // upvalues of `enter`; it owns nothing. `resume` keeps the slot alive for as long as the function.
        let enter = unsafe {
            lua.exec_raw(upvalues, |state| {
                ffi::lua_pushcclosure(state, enter, count);
            })
        }?;
        Ok(Entry {
            enter,
            names: layout.names.len(),
        })
    }

    /// Runs the function at `index`.
    ///
    /// # Errors
    ///
    /// If there is no memory for the keys and arguments, or the error handler failed.
    ///
    /// # Panics
    ///
    /// If the host panicked, or a function of mlua's that the script called.
    pub fn run(
        &self,
        index: usize,
        keys: &[Bytes],
        args: &[Bytes],
        host: &mut dyn Host,
    ) -> mlua::Result<Ended> {
        let Ok(index) = c_int::try_from(index) else {
            return Err(mlua::Error::runtime("no such function"));
        };
        let host: *mut (dyn Host + '_) = host;
        // SAFETY: this changes the lifetime only. The host is followed by `enter` and by native functions that run inside of
        // it, and `enter` takes it out of the slot before it returns or raises an error: before this function ends.
        let host =
            unsafe { std::mem::transmute::<*mut (dyn Host + '_), *mut (dyn Host + 'static)>(host) };
        let Some(host) = NonNull::new(host) else {
            unreachable!("it comes from a reference");
        };
        let mut job = Job {
            index,
            keys,
            args,
            host,
            names: self.names,
            ended: Ended::Nested,
            panic: None,
        };
        let announced = Announced(NEXT.replace(&raw mut job));
        let entered = self.enter.call::<()>(());
        drop(announced);
        if let Some(panic) = job.panic {
            panic::resume_unwind(panic);
        }
        entered.map(|()| job.ended)
    }
}

/// Runs a job; a raw frame.
///
/// # Safety
///
/// For Lua to call, as a closure with the upvalues that [`Entry::new`] gives it. There is a job only if [`Entry::run`] has
/// called it; otherwise it does nothing.
unsafe extern "C-unwind" fn enter(state: *mut ffi::lua_State) -> c_int {
    let job = NEXT.replace(ptr::null_mut());
    // SAFETY: this runs as a C function with room for 20 values, of which it takes seven. The first upvalue points to the slot,
    // which the fifth keeps alive; the job waits in `Entry::run`, below this frame on this thread's stack. What may raise an
    // error happens before the host is lent, or after it was taken back; this frame owns nothing.
    unsafe {
        let slot = &*ffi::lua_touserdata(state, ffi::lua_upvalueindex(SLOT)).cast::<Slot>();
        if job.is_null() || slot.is_running() {
            return 0;
        }
        ffi::lua_settop(state, 0);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(HANDLER));
        let arguments = if ffi::lua_type(state, ffi::lua_upvalueindex(GLOBALS)) == ffi::LUA_TNIL {
            ffi::lua_rawgeti_(state, ffi::lua_upvalueindex(FUNCTIONS), (*job).index);
            push_list(state, (*job).keys);
            push_list(state, (*job).args);
            2
        } else {
            // Neither is put in its place before both are there: an error leaves no list behind.
            ffi::lua_pushvalue(state, ffi::lua_upvalueindex(KEYS));
            push_list(state, (*job).keys);
            ffi::lua_pushvalue(state, ffi::lua_upvalueindex(ARGV));
            push_list(state, (*job).args);
            ffi::lua_rawset(state, ffi::lua_upvalueindex(GLOBALS));
            ffi::lua_rawset(state, ffi::lua_upvalueindex(GLOBALS));
            ffi::lua_rawgeti_(state, ffi::lua_upvalueindex(FUNCTIONS), (*job).index);
            0
        };
        // A collection of garbage may have run something that runs a script: it is over, or it has not ended and never will.
        if !slot.begin((*job).host) {
            return 0;
        }
        let status = ffi::lua_pcall(state, arguments, 1, HANDLER_PLACE);
        // They would take the room of the next run's.
        clear_global(state, KEYS);
        clear_global(state, ARGV);
        match settle(slot, job, state, status) {
            Settled::Done => 0,
            Settled::Raise => ffi::lua_error(state),
        }
    }
}

/// How the entry goes on after the function has ended.
#[derive(Clone, Copy)]
enum Settled {
    Done,
    /// What is on top is an error of mlua's, or a panic of a function of mlua's.
    Raise,
}

/// Ends the run, and lets the host read what was returned. Neither raises an error nor panics.
///
/// # Safety
///
/// `enter` must be running in `state`, with the job and with the result of `lua_pcall` on top of the stack, which is not
/// active any more.
unsafe fn settle(slot: &Slot, job: *mut Job, state: *mut ffi::lua_State, status: c_int) -> Settled {
    slot.end();
    // SAFETY: `Entry::run` waits for the job to be done, and lends it.
    let job = unsafe { &mut *job };
    let settled = panic::catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `enter` is running in `state`, with as many names as the job says.
        let frame = unsafe { Frame::new(state, job.names) };
        // SAFETY: the result is on top, and stays there.
        let value = unsafe { frame.value(ffi::lua_gettop(state)) };
        if status == ffi::LUA_OK {
            job.ended = Ended::Returned;
            // SAFETY: `Entry::run` has lent the host exclusively, and the slot does not have it any more.
            unsafe { (*job.host.as_ptr()).returned(value) };
            return Settled::Done;
        }
        job.ended = match value {
            crate::Value::Bytes(text) => Ended::Unhandled(text.to_vec()),
            crate::Value::Nil => Ended::Handled,
            crate::Value::Other => return Settled::Raise,
            _ => Ended::Unhandled(Vec::new()),
        };
        Settled::Done
    }));
    let settled = settled.unwrap_or_else(|panic| {
        slot.keep_panic(panic);
        Settled::Done
    });
    // Also what Lua had no room to raise, and what a destructor has raised just now.
    job.panic = slot.take_panic();
    match job.panic {
        Some(_) => Settled::Done,
        None => settled,
    }
}

/// Sets a global to nil; raises no error.
///
/// # Safety
///
/// [`enter`] must be running in `state`, with room for two values on its stack.
unsafe fn clear_global(state: *mut ffi::lua_State, name: c_int) {
    // SAFETY: as the caller vouches. Setting what the table has changes it in place. It is not there if the script has
    // removed it, or if there are no globals.
    unsafe {
        if ffi::lua_type(state, ffi::lua_upvalueindex(GLOBALS)) == ffi::LUA_TNIL {
            return;
        }
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(name));
        ffi::lua_rawget(state, ffi::lua_upvalueindex(GLOBALS));
        let is_set = ffi::lua_type(state, -1) != ffi::LUA_TNIL;
        ffi::lua_settop(state, -2);
        if is_set {
            ffi::lua_pushvalue(state, ffi::lua_upvalueindex(name));
            ffi::lua_pushnil(state);
            ffi::lua_rawset(state, ffi::lua_upvalueindex(GLOBALS));
        }
    }
}

/// Calls the handler with an error, on its stack; a raw frame. The value of the error becomes nil; what fails in the handler
/// takes its place.
///
/// # Safety
///
/// For Lua to call, as a closure with the handler as its upvalue and the error as its argument.
unsafe extern "C-unwind" fn message_handler(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: this runs as a C function with room for 20 values beside its arguments. `lua_pcall` raises no error; where it
    // fails, it leaves one value.
    unsafe {
        ffi::lua_settop(state, 1);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_pushvalue(state, 1);
        if ffi::lua_pcall(state, 1, 0, 0) == ffi::LUA_OK {
            ffi::lua_pushnil(state);
        }
        1
    }
}

/// Pushes a table of strings; a raw frame.
///
/// # Safety
///
/// A C function must be running in `state`, with room for two values on its stack. The items must stay as they are until
/// this returns or raises an error.
unsafe fn push_list(state: *mut ffi::lua_State, items: *const [Bytes]) {
    // SAFETY: as the caller vouches.
    unsafe {
        let items = slice::from_raw_parts(items.cast::<Bytes>(), items.len());
        ffi::lua_createtable(state, items.len().try_into().unwrap_or(c_int::MAX), 0);
        for (at, item) in items.iter().enumerate() {
            push_bytes(state, item);
            ffi::lua_rawseti_(state, -2, at as c_int + 1);
        }
    }
}
