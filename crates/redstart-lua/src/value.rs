//! What a script returned, read where it is.

use std::{ffi::c_int, fmt, slice};

use mlua::ffi;

use crate::entry::{NAMES, STEP};

/// There is no room for one more value: what was returned is nested too deeply, or the state has no memory left.
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

    /// Makes room for so many values, which are taken off the stack when the guard is dropped.
    fn room(&self, values: c_int) -> Result<Pushed<'_>, StackFull> {
        // SAFETY: the frame is that of the running function. The vendored Lua answers where it has no memory.
        unsafe {
            if ffi::lua_checkstack(self.state, values) == 0 {
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
        let pushed = self.frame.room(2)?;
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
            let pushed = self.frame.room(2)?;
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
    /// Those of `read`, or if there is no room on the stack, or no memory.
    pub fn pairs<E: From<StackFull>>(
        &self,
        mut read: impl FnMut(Value<'_>, Value<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let state = self.frame.state;
        let outer = self.frame.room(1)?;
        let key = outer.top + 1;
        // SAFETY: there is room for the key.
        unsafe { ffi::lua_pushnil(state) };
        loop {
            // A C function needs room of its own, which takes memory that there may not be.
            let pushed = self.frame.room(3 + ffi::LUA_MINSTACK)?;
            // SAFETY: there is room for the function, its two arguments and its two results. `lua_next` raises an error
            // where the table has lost the key meanwhile (the reader may have the Lua state, too), hence the protected
            // call, which raises none. Key and value stay on the stack until they are replaced, or `pushed` is dropped.
            unsafe {
                ffi::lua_pushvalue(state, ffi::lua_upvalueindex(STEP));
                ffi::lua_pushvalue(state, self.index);
                ffi::lua_pushvalue(state, key);
                match ffi::lua_pcall(state, 2, 2, 0) {
                    ffi::LUA_OK => {}
                    ffi::LUA_ERRRUN if is_lost_key(self.frame.value(key + 1)) => break,
                    _ => return Err(StackFull.into()),
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

/// Whether this is the error of `lua_next` for a key that the table does not have.
fn is_lost_key(error: Value<'_>) -> bool {
    matches!(error, Value::Bytes(b"invalid key to 'next'"))
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
