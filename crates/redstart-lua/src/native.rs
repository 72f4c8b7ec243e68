//! Functions that Lua calls and a host answers.

use std::{ffi::c_int, sync::Arc};

use mlua::{Function, Lua, ffi};

use crate::{
    Entry, Layout, Outcome, Values,
    slot::{Answer, Slot},
    values::{push_bytes, push_values},
};

/// The upvalues of a native function: the slot, its number, and the functions that it calls itself.
const SLOT: c_int = 1;
const NUMBER: c_int = 2;
const RESUME: c_int = 3;
const PUSH: c_int = 4;
const NATIVE_UPVALUES: c_int = 4;

/// Makes functions that scripts call, and the entry that runs those scripts.
pub struct Natives {
    slot: Arc<Slot>,
    /// Resumes a panic.
    resume: Function,
    /// Pushes values under a protected call.
    push: Function,
}

impl Natives {
    /// For functions of this Lua state. Called while no script runs they raise `{err = idle}`.
    ///
    /// Removes `newproxy` from the state's globals: with it a script could make a finaliser, which Lua may call when what
    /// mlua's functions refer to is gone already.
    ///
    /// # Errors
    ///
    /// If the state has no memory left.
    pub fn new(lua: &Lua, idle: &'static str) -> mlua::Result<Natives> {
        let slot = Arc::new(Slot::new(idle));
        slot.keep(lua);
        lua.globals().raw_set("newproxy", mlua::Value::Nil)?;
        let resume = slot.resume(lua)?;
        // SAFETY: the closure gets these two values, and makes them the upvalues that `push_own` expects; it owns nothing when
        // `lua_pushcclosure` raises an error. The second keeps the slot alive for as long as the function.
        let push = unsafe {
            lua.exec_raw((slot.pointer(), &resume), |state| {
                ffi::lua_pushcclosure(state, push_own, 2);
            })
        }?;
        Ok(Natives { slot, resume, push })
    }

    /// A function that calls the host of the running script with this number.
    ///
    /// # Errors
    ///
    /// If the state has no memory left.
    pub fn function(&self, lua: &Lua, number: usize) -> mlua::Result<Function> {
        let upvalues = (self.slot.pointer(), number, &self.resume, &self.push);
        // SAFETY: the closure gets these four values, and makes them the upvalues that `native` expects; it owns nothing
        // when `lua_pushcclosure` raises an error. The third keeps the slot alive for as long as the function.
        unsafe {
            lua.exec_raw(upvalues, |state| {
                ffi::lua_pushcclosure(state, native, NATIVE_UPVALUES);
            })
        }
    }

    /// What runs scripts that call these functions.
    ///
    /// # Errors
    ///
    /// If the state has no memory left.
    pub fn entry(&self, lua: &Lua, layout: Layout<'_>) -> mlua::Result<Entry> {
        Entry::new(lua, &self.slot, &self.resume, layout)
    }
}

/// A native function; a raw frame.
///
/// # Safety
///
/// For Lua to call, as a closure with the upvalues that [`Natives::function`] gives it.
unsafe extern "C-unwind" fn native(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: this runs as a C function with its arguments on the stack and room for 20 values more, of which it takes three
    // beside what it pushes for the host. The first upvalue points to the slot, which the third keeps alive. `respond` and
    // `pushed` raise no errors. Where an error passes this frame, it owns nothing: an own buffer has been freed before.
    unsafe {
        let slot = &*ffi::lua_touserdata(state, ffi::lua_upvalueindex(SLOT)).cast::<Slot>();
        let number = ffi::lua_tonumber(state, ffi::lua_upvalueindex(NUMBER)) as usize;
        let arguments = ffi::lua_gettop(state);
        let outcome = match slot.respond(state, number) {
            Answer::Slot(outcome) => {
                push_values(state, &*slot.values());
                match slot.pushed() {
                    true => outcome,
                    false => resume(state),
                }
            }
            Answer::Own(values, outcome) => {
                ffi::lua_pushvalue(state, ffi::lua_upvalueindex(PUSH));
                slot.set_own(values);
                let status = ffi::lua_pcall(state, 0, ffi::LUA_MULTRET, 0);
                // Where the call has failed before it began, they are still announced.
                slot.take_own();
                match (free(slot, values), status) {
                    (false, _) => resume(state),
                    (true, ffi::LUA_OK) => outcome,
                    (true, _) => ffi::lua_error(state),
                }
            }
            Answer::Idle => {
                ffi::lua_createtable(state, 0, 1);
                push_bytes(state, b"err");
                push_bytes(state, slot.idle.as_bytes());
                ffi::lua_rawset(state, -3);
                Outcome::Raise
            }
            Answer::Panicked => resume(state),
        };
        let pushed = ffi::lua_gettop(state) - arguments;
        match outcome {
            Outcome::Return => pushed,
            Outcome::Raise => {
                if pushed == 0 {
                    ffi::lua_pushnil(state);
                }
                ffi::lua_error(state)
            }
        }
    }
}

/// Pushes the values of a buffer that is not the slot's; a raw frame.
///
/// # Safety
///
/// For Lua to call, as a closure with a pointer to the slot and what keeps it alive. There are values only if `native` has
/// called it, which keeps them until it has returned or raised an error; otherwise it does nothing.
unsafe extern "C-unwind" fn push_own(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: this runs as a C function with room for 20 values; the values are those of `native`, and finished.
    unsafe {
        let slot = &*ffi::lua_touserdata(state, ffi::lua_upvalueindex(SLOT)).cast::<Slot>();
        let values = slot.take_own();
        if values.is_null() {
            return 0;
        }
        ffi::lua_settop(state, 0);
        push_values(state, &*values);
        ffi::lua_gettop(state)
    }
}

/// Raises the panic that is in the slot, in mlua's wrapping; a raw frame, which does not return. Where Lua has no room for
/// that it raises another error, and the panic is left for the end of the run.
///
/// # Safety
///
/// [`native`] must be running in `state`, with room for two values on its stack.
unsafe fn resume(state: *mut ffi::lua_State) -> Outcome {
    // SAFETY: as the caller vouches.
    unsafe {
        ffi::lua_settop(state, 0);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(RESUME));
        ffi::lua_call(state, 0, 1);
        ffi::lua_error(state)
    }
}

/// Frees a buffer that [`Slot::respond`] has made; false if that has panicked: the panic is in the slot then.
///
/// # Safety
///
/// Nothing else may use it.
#[inline(never)]
unsafe fn free(slot: &Slot, values: *mut Values) -> bool {
    // SAFETY: it comes from `Box::into_raw`, and the caller vouches that this is its only use.
    slot.discard(unsafe { Box::from_raw(values) })
}
