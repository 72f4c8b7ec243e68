//! Calls between Rust and Lua 5.1 without a handle per value.
//!
//! [`mlua`] makes a handle for each value that crosses the border between the languages: a place on the stack of a thread
//! of its own, a counted reference to the state, an entry in a list when it is dropped. That costs about 150 ns per string.
//! Scripts of Redis are mostly such calls: some strings in, one reply out. This crate makes them through the raw C API,
//! beside an ordinary [`mlua::Lua`] that is used for everything else.
//!
//! | type | what it is |
//! |---|---|
//! | [`Natives`] | makes functions that Lua calls; each call goes to the running script's [`Host`] |
//! | [`Entry`] | runs a function of a Lua table of functions with two lists of strings, for a [`Host`] |
//! | [`Host`] | what a script runs for: answers its calls and reads what it returned |
//! | [`Arguments`], [`Value`], [`Table`] | Lua's values, read in place |
//! | [`Values`] | what a call answers, pushed after the host has returned |
//!
//! ```
//! use bytes::Bytes;
//! use redstart_lua::{Argument, Arguments, Ended, Entry, Host, Layout, Natives, Outcome, Value, Values};
//!
//! /// Adds the numbers it is called with.
//! struct Adder(f64);
//!
//! impl Host for Adder {
//!     fn call(&mut self, _: usize, arguments: &Arguments<'_>, values: &mut Values) -> Outcome {
//!         let mut sum = 0.0;
//!         for argument in arguments.iter() {
//!             match argument {
//!                 Argument::Number(number) => sum += number,
//!                 _ => {
//!                     values.text("numbers only");
//!                     return Outcome::Raise;
//!                 }
//!             }
//!         }
//!         values.number(sum);
//!         Outcome::Return
//!     }
//!
//!     fn returned(&mut self, value: Value<'_>) {
//!         if let Value::Number(number) = value {
//!             self.0 = number;
//!         }
//!     }
//! }
//!
//! # fn main() -> mlua::Result<()> {
//! let lua = mlua::Lua::new();
//! let natives = Natives::new(&lua, "nothing runs")?;
//! lua.globals().set("add", natives.function(&lua, 0)?)?;
//! let functions = lua.create_table()?;
//! functions.set(1, lua.load("return add(1, 2, #KEYS)").into_function()?)?;
//! let handler = lua.create_function(|_, _: mlua::Value| Ok(()))?;
//! let entry = natives.entry(&lua, Layout {
//!     functions: &functions,
//!     globals: Some(&lua.globals()),
//!     handler: &handler,
//!     names: &[],
//! })?;
//! let mut adder = Adder(0.0);
//! let ended = entry.run(1, &[Bytes::from("key")], &[], &mut adder)?;
//! assert_eq!((ended, adder.0), (Ended::Returned, 4.0));
//! # Ok(())
//! # }
//! ```
//!
//! # Why this is sound
//!
//! The C API has rules that Rust does not check. These are the rules, and how this crate keeps each of them.
//!
//! **An error of Lua is a `longjmp`; it must not pass over a Rust frame that owns anything.** Almost any function of the API
//! that allocates can raise one, because the state may have a limit on its memory. So the code is divided in two:
//!
//! - *Raw frames* (`native`, `push_values`, `enter`, `message_handler` …) call functions that may raise. They hold numbers,
//!   raw pointers and shared references only, have no destructors, and are declared `extern "C-unwind"` where Lua calls them.
//!   What they push belongs to somebody else: to the [`Natives`]' slot, or to the caller of [`Entry::run`].
//! - *Rust frames* (`respond`, `settle`, and the host that they call) own what they like and call only functions of the API
//!   that cannot raise: `lua_type`, `lua_tolstring` of what is a string, `lua_tonumber`, `lua_rawget` with a key that is on
//!   the stack, `lua_rawgeti`, `lua_settop`, `lua_checkstack` (of the vendored Lua, which answers instead of raising).
//!
//! A host describes its answer as [`Values`], which is Rust data. When the host and everything that it borrowed is gone, the
//! raw frame pushes it. If an error is raised half-way, the data stays in the slot and is dropped with the next call or at
//! the end of the run: nothing leaks.
//!
//! **A panic must not unwind through Lua.** Both Rust frames catch it, and keep it; so does what drops the data of a host, whose
//! destructors may panic. A native function then calls a function made by mlua, which resumes it; mlua carries it through Lua
//! in a way that `pcall` cannot swallow where [`mlua::LuaOptions::catch_rust_panics`] is off. Where Lua has no room for that,
//! the panic is kept until the run has ended, and nothing calls the host meanwhile. [`Entry::run`] resumes it in its caller.
//!
//! **The stack has to have room.** Lua guarantees 20 places beside the arguments of a C function. Whatever needs more asks
//! `lua_checkstack` first, and fails with an error.
//!
//! **What is borrowed has to stay where it is.** Lua's strings do not move, and are not collected while they are on a stack.
//! [`Arguments`] borrows from the frame of the running function; [`Value`] is given to a closure for whose time the value
//! stays on the stack. Neither can be kept, or sent to another thread.
//!
//! **A state is for one thread at a time.** mlua has a lock for that. All code here that touches the state or the slot runs
//! inside a call of a [`mlua::Function`], which holds the lock for its whole time.
//!
//! **A host is borrowed exclusively.** [`Entry::run`] takes `&mut dyn Host` and lends it to the slot for the time in which the
//! function runs. A call takes it out of the slot and puts it back when it returns, so a call inside a call (for which the host
//! would have to use the Lua state itself) finds none and gets an error. A run inside a run is refused.
//!
//! **Buffers are not changed while they are read.** Pushing may collect garbage; a collection may drop Rust values that Lua
//! owns; dropping those may call Lua, and a native function again. A slot that is being pushed from is marked, and such a call
//! gets a buffer of its own, pushed under `lua_pcall`. The mark also stays after an error raised while pushing, until the run
//! ends: calls are a little slower then, and the buffer stays bounded.
//!
//! **Anybody may call a C function.** mlua can hand out the functions of a stack trace. So the internal ones take no pointers
//! as arguments: the entry and the pushing of an own buffer find their data in a cell that the caller has just filled and that
//! they empty, and do nothing if there is none.
//!
//! **A function must not outlive what it points to.** Each C function has, as an upvalue, a function of mlua that owns a
//! counted reference to the slot. The state has one, too: a finaliser may call a function whose upvalues were finalised
//! before. Scripts cannot make finalisers, since [`Natives::new`] removes `newproxy`.

#![deny(unsafe_op_in_unsafe_fn)]
#![deny(clippy::undocumented_unsafe_blocks)]

mod arguments;
mod entry;
mod native;
mod slot;
mod value;
mod values;

pub use arguments::{Argument, Arguments};
pub use entry::{Ended, Entry, Layout};
pub use native::Natives;
pub use value::{StackFull, Table, Value};
pub use values::Values;

/// What a script runs for.
pub trait Host {
    /// A native function was called, by the number that it was made with. What it returns or raises is put into `values`.
    ///
    /// The host cannot run anything in the same Lua state meanwhile: native functions called then find no host.
    fn call(&mut self, function: usize, arguments: &Arguments<'_>, values: &mut Values) -> Outcome;

    /// The script has ended and returned this; only the first value of several, nil if there was none.
    fn returned(&mut self, value: Value<'_>);
}

/// What a native function does with the values it was given by its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Returns them.
    Return,
    /// Raises the last of them as an error; nil if there is none.
    Raise,
}
