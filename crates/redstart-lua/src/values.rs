//! What a native function answers: described by its host, pushed when the host is done.

use std::{borrow::Cow, ffi::c_int};

use bytes::Bytes;
use mlua::ffi;

/// Buffers with more room than this are not kept.
const KEPT: usize = 1024;
/// Lua guarantees a C function this much room beside its arguments.
const GUARANTEED: c_int = 20;

/// Values to be pushed, in order. Tables are opened, filled and closed.
///
/// ```
/// # use redstart_lua::Values;
/// # fn describe(values: &mut Values) {
/// // { "one", 2, { ok = true } }
/// values.array(3);
/// values.text("one");
/// values.number(2.0);
/// values.map(1);
/// values.text("ok");
/// values.boolean(true);
/// values.end();
/// values.end();
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Values {
    ops: Vec<Op>,
    open: Vec<Open>,
    /// The most tables that are open at once.
    depth: usize,
    /// How many values are not part of a table.
    count: usize,
}

/// One step of pushing. A list of them leaves `count` values on the stack, and never takes away what it did not push,
/// because only the methods of [`Values`] make them.
#[derive(Debug)]
enum Op {
    Nil,
    Boolean(bool),
    Number(f64),
    Bytes(Bytes),
    Text(Cow<'static, str>),
    /// An empty table with room for so many items and fields.
    Table(c_int, c_int),
    /// The value on top becomes this item of the table below it.
    SetItem(c_int),
    /// The value on top is put under the key below it, in the table below that.
    SetPair,
    /// The value on top becomes a key of the table below it, for `true`.
    SetMember,
}

/// A table that is not closed.
#[derive(Debug)]
enum Open {
    /// With so many items.
    Array(c_int),
    /// The next value belongs to a key.
    Map(bool),
    Set,
}

impl Values {
    /// Nil. In an array it leaves a hole.
    pub fn nil(&mut self) {
        self.add(Op::Nil);
    }

    /// A boolean.
    pub fn boolean(&mut self, value: bool) {
        self.add(Op::Boolean(value));
    }

    /// A number.
    pub fn number(&mut self, value: f64) {
        self.add(Op::Number(value));
    }

    /// A string.
    pub fn bytes(&mut self, value: impl Into<Bytes>) {
        self.add(Op::Bytes(value.into()));
    }

    /// A string that is text.
    pub fn text(&mut self, value: impl Into<Cow<'static, str>>) {
        self.add(Op::Text(value.into()));
    }

    /// Opens a table whose items are the values that follow; `items` is how many it makes room for.
    pub fn array(&mut self, items: usize) {
        self.ops.push(Op::Table(size(items), 0));
        self.begin(Open::Array(0));
    }

    /// Opens a table of keys and values, which follow in turn; `pairs` is how many it makes room for.
    pub fn map(&mut self, pairs: usize) {
        self.ops.push(Op::Table(0, size(pairs)));
        self.begin(Open::Map(false));
    }

    /// Opens a table whose keys are the values that follow, each for `true`; `members` is how many it makes room for.
    pub fn set(&mut self, members: usize) {
        self.ops.push(Op::Table(0, size(members)));
        self.begin(Open::Set);
    }

    /// Closes the table that was opened last; nothing if none is open. A key without a value gets nil.
    pub fn end(&mut self) {
        match self.open.pop() {
            None => return,
            Some(Open::Map(true)) => self.ops.extend([Op::Nil, Op::SetPair]),
            Some(_) => {}
        }
        self.attach();
    }

    /// How many values there are that are not part of a table.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    fn add(&mut self, op: Op) {
        self.ops.push(op);
        self.attach();
    }

    fn begin(&mut self, table: Open) {
        self.open.push(table);
        self.depth = self.depth.max(self.open.len());
    }

    /// Puts the value that is complete into the table that is open.
    #[inline]
    fn attach(&mut self) {
        match self.open.last_mut() {
            None => self.count += 1,
            Some(Open::Array(items)) => {
                *items = items.saturating_add(1);
                self.ops.push(Op::SetItem(*items));
            }
            Some(Open::Map(keyed)) => {
                *keyed = !*keyed;
                if !*keyed {
                    self.ops.push(Op::SetPair);
                }
            }
            Some(Open::Set) => self.ops.push(Op::SetMember),
        }
    }

    /// Closes all tables.
    pub(crate) fn finish(&mut self) {
        while !self.open.is_empty() {
            self.end();
        }
    }

    /// Drops everything, and keeps the room unless it is much.
    pub(crate) fn clear(&mut self) {
        if self.ops.capacity() > KEPT {
            self.ops = Vec::new();
        } else {
            self.ops.clear();
        }
        self.open.clear();
        self.depth = 0;
        self.count = 0;
    }
}

fn size(count: usize) -> c_int {
    count.try_into().unwrap_or(c_int::MAX)
}

/// Pushes finished values.
///
/// This is a raw frame: it owns nothing, and may be left by an error of Lua at any push.
///
/// # Safety
///
/// A C function must be running in `state`, with nothing on its stack beside its arguments and at most four values. The
/// values must be finished, and stay as they are until this returns or raises.
pub(crate) unsafe fn push_values(state: *mut ffi::lua_State, values: &Values) {
    // An open table takes a place for itself and one for a key; then there is the value, and what setting it needs.
    let depth: c_int = size(values.depth);
    let room = depth
        .saturating_mul(2)
        .saturating_add(size(values.count))
        .saturating_add(4);
    // SAFETY: the caller vouches for the state. What each step takes from the stack, a step before it has pushed: the
    // private methods of `Values` make no other lists. There is room for all of it: guaranteed by Lua for few values, as
    // it is for the caller's four, and checked for more. The bytes that are pushed belong to `values`, which stay.
    unsafe {
        if room > GUARANTEED - 4 && ffi::lua_checkstack(state, room) == 0 {
            raise(state, "stack overflow");
        }
        for op in &values.ops {
            match op {
                Op::Nil => ffi::lua_pushnil(state),
                Op::Boolean(value) => ffi::lua_pushboolean(state, c_int::from(*value)),
                Op::Number(value) => ffi::lua_pushnumber(state, *value),
                Op::Bytes(value) => push_bytes(state, value),
                Op::Text(value) => push_bytes(state, value.as_bytes()),
                Op::Table(items, fields) => ffi::lua_createtable(state, *items, *fields),
                Op::SetItem(at) => ffi::lua_rawseti_(state, -2, *at),
                Op::SetPair => ffi::lua_rawset(state, -3),
                Op::SetMember => {
                    ffi::lua_pushboolean(state, 1);
                    ffi::lua_rawset(state, -3);
                }
            }
        }
    }
}

/// Pushes a string; a raw frame.
///
/// # Safety
///
/// A C function must be running in `state`, with room for a value on its stack.
#[inline]
pub(crate) unsafe fn push_bytes(state: *mut ffi::lua_State, bytes: &[u8]) {
    // SAFETY: the caller vouches for the state; Lua copies the bytes.
    unsafe { ffi::lua_pushlstring_(state, bytes.as_ptr().cast(), bytes.len()) };
}

/// Raises an error; a raw frame, like all that call it.
///
/// # Safety
///
/// A C function must be running in `state`, with room for a value on its stack, and no Rust frame above Lua's that owns
/// anything.
pub(crate) unsafe fn raise(state: *mut ffi::lua_State, text: &'static str) -> ! {
    // SAFETY: as the caller vouches.
    unsafe {
        push_bytes(state, text.as_bytes());
        ffi::lua_error(state)
    }
}
