//! What a script returned, read where it is.

use std::{ffi::c_int, fmt, slice};

use mlua::ffi;

use crate::entry::{NAMES, STEP};

/// Lua's stack has no room for one more value: what was returned is nested too deeply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackFull;

impl fmt::Display for StackFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no room on Lua's stack")
    }
}

impl std::error::Error for StackFull {}

/// A value of Lua's, for as long as it is on the stack.
pub enum Value<'a> {
    /// Nil.
    Nil,
    /// A boolean.
    Boolean(bool),
    /// A number.
    Number(f64),
    /// A string.
    Bytes(&'a [u8]),
    /// A table.
    Table(Table<'a>),
    /// A function, a thread or userdata.
    Other,
}

/// A table of Lua's, for as long as it is on the stack. It is read without its metatable.
pub struct Table<'a> {
    frame: &'a Frame,
    index: c_int,
}

/// The frame of the entry, whose upvalues the names are.
pub(crate) struct Frame {
    state: *mut ffi::lua_State,
    names: usize,
}

/// Takes what was pushed off the stack again.
struct Pushed<'a> {
    frame: &'a Frame,
    top: c_int,
}

impl Drop for Pushed<'_> {
    fn drop(&mut self) {
        // SAFETY: the frame is that of the running function, and there were `top` values when this was made. This raises
        // no error.
        unsafe { ffi::lua_settop(self.frame.state, self.top) };
    }
}

impl Frame {
    /// # Safety
    ///
    /// The entry must be running in `state`, with so many names, for as long as the frame lives.
    pub(crate) unsafe fn new(state: *mut ffi::lua_State, names: usize) -> Frame {
        Frame { state, names }
    }

    /// Makes room for a few values, which are taken off the stack when the guard is dropped.
    fn room(&self) -> Result<Pushed<'_>, StackFull> {
        // SAFETY: the frame is that of the running function. The vendored Lua answers where it has no memory.
        unsafe {
            if ffi::lua_checkstack(self.state, 4) == 0 {
                return Err(StackFull);
            }
            Ok(Pushed {
                frame: self,
                top: ffi::lua_gettop(self.state),
            })
        }
    }

    /// # Safety
    ///
    /// There must be a value at `index` (counted from the bottom), and it must stay there while what is returned lives.
    pub(crate) unsafe fn value(&self, index: c_int) -> Value<'_> {
        let state = self.state;
        // SAFETY: the caller vouches for the value. None of these functions raises an error: `lua_tolstring` changes and
        // allocates only for numbers. The bytes are valid for as long as the string is on the stack.
        unsafe {
            match ffi::lua_type(state, index) {
                ffi::LUA_TNIL => Value::Nil,
                ffi::LUA_TBOOLEAN => Value::Boolean(ffi::lua_toboolean(state, index) != 0),
                ffi::LUA_TNUMBER => Value::Number(ffi::lua_tonumber(state, index)),
                ffi::LUA_TSTRING => {
                    let mut length = 0;
                    let text = ffi::lua_tolstring(state, index, &mut length);
                    Value::Bytes(slice::from_raw_parts(text.cast(), length))
                }
                ffi::LUA_TTABLE => Value::Table(Table { frame: self, index }),
                _ => Value::Other,
            }
        }
    }
}

impl Table<'_> {
    /// Reads the field of a name, by its place among the names that the entry was made with; nil for one that is not there.
    ///
    /// # Errors
    ///
    /// If there is no room on the stack.
    pub fn field<R>(&self, name: usize, read: impl FnOnce(Value<'_>) -> R) -> Result<R, StackFull> {
        if name >= self.frame.names {
            return Ok(read(Value::Nil));
        }
        let pushed = self.frame.room()?;
        // SAFETY: there is room. The name is an upvalue of the running function, and the table is where it was. Reading it
        // without its metatable raises no error. The value stays on the stack until `pushed` is dropped.
        unsafe {
            ffi::lua_pushvalue(
                self.frame.state,
                ffi::lua_upvalueindex(NAMES + name as c_int),
            );
            ffi::lua_rawget(self.frame.state, self.index);
            Ok(read(self.frame.value(pushed.top + 1)))
        }
    }

    /// Whether it is a list without holes that has items, and nothing else.
    ///
    /// # Errors
    ///
    /// If there is no room on the stack.
    pub fn is_list(&self) -> Result<bool, StackFull> {
        let state = self.frame.state;
        let pushed = self.frame.room()?;
        // SAFETY: there is room, and the table is where it was. `lua_next` raises an error only for a key that the table
        // does not have; this one it has, since the length of a table is the place of an item that is followed by none.
        // Nothing of Lua's runs in between.
        unsafe {
            let length = ffi::lua_objlen(state, self.index);
            if length == 0 || length > c_int::MAX as usize {
                return Ok(false);
            }
            ffi::lua_pushnumber(state, length as f64);
            let more = ffi::lua_next(state, self.index) != 0;
            drop(pushed);
            Ok(!more)
        }
    }

    /// How many items Lua says that it has; there may be fewer, and holes.
    pub fn length(&self) -> usize {
        // SAFETY: the table is where it was; this only reads.
        unsafe { ffi::lua_objlen(self.frame.state, self.index) }
    }

    /// Reads the items from the first one to the one before the first nil, until one is refused.
    ///
    /// # Errors
    ///
    /// Those of `read`, or if there is no room on the stack.
    pub fn items<E: From<StackFull>>(
        &self,
        mut read: impl FnMut(Value<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for at in 1..c_int::MAX {
            let pushed = self.frame.room()?;
            // SAFETY: there is room, and the table is where it was; reading it without its metatable raises no error. The
            // value stays on the stack until `pushed` is dropped.
            let value = unsafe {
                ffi::lua_rawgeti_(self.frame.state, self.index, at);
                self.frame.value(pushed.top + 1)
            };
            if matches!(value, Value::Nil) {
                break;
            }
            read(value)?;
        }
        Ok(())
    }

    /// Reads all keys with their values, in Lua's order, until one is refused.
    ///
    /// # Errors
    ///
    /// Those of `read`, or if there is no room on the stack.
    pub fn pairs<E: From<StackFull>>(
        &self,
        mut read: impl FnMut(Value<'_>, Value<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let state = self.frame.state;
        let outer = self.frame.room()?;
        let key = outer.top + 1;
        // SAFETY: there is room for the key.
        unsafe { ffi::lua_pushnil(state) };
        loop {
            let pushed = self.frame.room()?;
            // SAFETY: there is room for the function, its two arguments and its two results. `lua_next` raises an error
            // where the table has lost the key meanwhile (the reader may have the Lua state, too), hence the protected
            // call, which raises none. Key and value stay on the stack until they are replaced, or `pushed` is dropped.
            unsafe {
                ffi::lua_pushvalue(state, ffi::lua_upvalueindex(STEP));
                ffi::lua_pushvalue(state, self.index);
                ffi::lua_pushvalue(state, key);
                if ffi::lua_pcall(state, 2, 2, 0) != ffi::LUA_OK {
                    break;
                }
                if ffi::lua_type(state, key + 1) == ffi::LUA_TNIL {
                    break;
                }
                read(self.frame.value(key + 1), self.frame.value(key + 2))?;
                ffi::lua_settop(state, key + 1);
                ffi::lua_replace(state, key);
            }
            drop(pushed);
        }
        Ok(())
    }
}

/// `next`, as a function to be called under protection; a raw frame.
///
/// # Safety
///
/// For Lua to call; meant for a table and a key.
pub(crate) unsafe extern "C-unwind" fn step(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: this runs as a C function. What it is called with is checked: others may get hold of it.
    unsafe {
        ffi::lua_settop(state, 2);
        if ffi::lua_type(state, 1) != ffi::LUA_TTABLE || ffi::lua_next(state, 1) == 0 {
            return 0;
        }
        2
    }
}
