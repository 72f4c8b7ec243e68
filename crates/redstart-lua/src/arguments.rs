//! The arguments of a native function, read where they are.

use std::{ffi::c_int, marker::PhantomData, slice};

use mlua::ffi;

/// One argument of a native function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument<'a> {
    /// A string.
    Bytes(&'a [u8]),
    /// A number; Lua 5.1 has doubles only.
    Number(f64),
    /// Anything else.
    Other,
}

/// The arguments that a native function was called with.
pub struct Arguments<'a> {
    state: *mut ffi::lua_State,
    count: c_int,
    /// The frame of the function.
    frame: PhantomData<&'a ()>,
}

impl Arguments<'_> {
    /// # Safety
    ///
    /// A C function must be running in `state` with its arguments, and nothing else, on its stack. They must stay there for
    /// as long as the value that is returned lives.
    pub(crate) unsafe fn new<'a>(state: *mut ffi::lua_State) -> Arguments<'a> {
        Arguments {
            state,
            // SAFETY: the state is valid; this only reads.
            count: unsafe { ffi::lua_gettop(state) },
            frame: PhantomData,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The argument of this number, counted from 0.
    pub fn get(&self, at: usize) -> Option<Argument<'_>> {
        // Never more than c_int holds, by the comparison.
        (at < self.len()).then(|| self.at(at as c_int + 1))
    }

    /// All of them in order.
    pub fn iter(&self) -> impl Iterator<Item = Argument<'_>> {
        (1..=self.count).map(|index| self.at(index))
    }

    fn at(&self, index: c_int) -> Argument<'_> {
        // SAFETY: by the contract of `new`, `index` is one of the arguments, which stay where they are. None of these
        // functions raises an error: `lua_tolstring` changes and allocates only for numbers, and here it is a string. Its
        // bytes stay valid for as long as the string is on the stack.
        unsafe {
            match ffi::lua_type(self.state, index) {
                ffi::LUA_TSTRING => {
                    let mut length = 0;
                    let text = ffi::lua_tolstring(self.state, index, &mut length);
                    Argument::Bytes(slice::from_raw_parts(text.cast(), length))
                }
                ffi::LUA_TNUMBER => Argument::Number(ffi::lua_tonumber(self.state, index)),
                _ => Argument::Other,
            }
        }
    }
}
