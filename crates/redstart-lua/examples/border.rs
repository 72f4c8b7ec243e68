//! What the border between Rust and Lua costs: a function with four strings that returns one, and the entry of a script
//! with a key and three arguments, by mlua's handles and by this crate.
//!
//! ```text
//! cargo build --release -p redstart-lua --example border
//! for n in 10000 20000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/border native-call $n
//! done
//! ```
//!
//! The difference of the two counts, divided by 10000, is the number of instructions per round: the same on a busy machine
//! as on an idle one. Cases: `handle-call`, `native-call`, `handle-entry`, `native-entry`. Without valgrind the program
//! prints the time per round.

use std::time::Instant;

use bytes::Bytes;
use mlua::{Function, Lua, LuaString, MultiValue, Table, Value as Handle};
use redstart_lua::{Argument, Arguments, Entry, Host, Layout, Natives, Outcome, Value, Values};

const SCRIPT: &str = "local f, n = f, tonumber(ARGV[1])
                      for i = 1, n do f('HSET', 'some:key', 'field', 'value') end
                      return #KEYS";

/// Takes its arguments over as the engine does, and answers a string.
struct Echo(Vec<Bytes>);

impl Host for Echo {
    fn call(&mut self, _: usize, arguments: &Arguments<'_>, values: &mut Values) -> Outcome {
        self.0.clear();
        for argument in arguments.iter() {
            if let Argument::Bytes(text) = argument {
                self.0.push(Bytes::copy_from_slice(text));
            }
        }
        values.bytes(self.0[3].clone());
        Outcome::Return
    }

    fn returned(&mut self, value: Value<'_>) {
        assert!(matches!(value, Value::Number(1.0)));
    }
}

/// The same by handles.
fn echo(lua: &Lua) -> mlua::Result<Function> {
    lua.create_function(|lua, args: MultiValue| {
        let mut list = Vec::with_capacity(args.len());
        for value in &args {
            if let Handle::String(text) = value {
                list.push(Bytes::copy_from_slice(&text.as_bytes()));
            }
        }
        lua.create_string(&list[3])
    })
}

/// Enters a script by handles.
fn enter(lua: &Lua, script: &Function, keys: &[Bytes], args: &[Bytes]) -> mlua::Result<()> {
    let list = |items: &[Bytes]| lua.create_sequence_from(items.iter().map(LuaString::wrap));
    let globals = lua.globals();
    globals.raw_set("KEYS", list(keys)?)?;
    globals.raw_set("ARGV", list(args)?)?;
    assert_eq!(script.call::<i64>(())?, 1);
    Ok(())
}

fn entry(lua: &Lua, natives: &Natives, script: &Function) -> mlua::Result<Entry> {
    let functions: Table = lua.create_sequence_from([script])?;
    let handler = lua.create_function(|_, _: Handle| Ok(()))?;
    let globals = lua.globals();
    natives.entry(
        lua,
        Layout {
            functions: &functions,
            globals: Some(&globals),
            handler: &handler,
            names: &["ok", "err"],
        },
    )
}

fn main() -> mlua::Result<()> {
    let mut words = std::env::args().skip(1);
    let case = words.next().unwrap_or_else(|| "native-call".into());
    let count: u32 = words
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1_000_000);
    let lua = Lua::new();
    let natives = Natives::new(&lua, "nothing runs")?;
    let script = lua.load(SCRIPT).into_function()?;
    let f = match case.starts_with("native") {
        true => natives.function(&lua, 0)?,
        false => echo(&lua)?,
    };
    lua.globals().set("f", f)?;
    let entry = entry(&lua, &natives, &script)?;
    let (entries, calls) = match case.ends_with("call") {
        true => (1, count),
        false => (count, 0),
    };
    let keys = [Bytes::from("some:key")];
    let args = [
        calls.to_string().into(),
        Bytes::from("two"),
        Bytes::from("three"),
    ];
    let started = Instant::now();
    for _ in 0..entries {
        match case.starts_with("native") {
            true => drop(entry.run(1, &keys, &args, &mut Echo(Vec::new()))?),
            false => enter(&lua, &script, &keys, &args)?,
        }
    }
    println!("{case}: {:?} per round", started.elapsed() / count);
    Ok(())
}
