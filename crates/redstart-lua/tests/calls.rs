//! What may go wrong between Rust and Lua, and what must hold then.

#![allow(clippy::unwrap_used)]

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table as LuaTable, UserData};
use redstart_lua::{
    Argument, Arguments, Ended, Entry, Host, Layout, Natives, Outcome, StackFull, Value, Values,
};

/// A Lua state with one native function, `native`, and an entry whose handler notes the error as text.
struct World {
    lua: Lua,
    functions: LuaTable,
    entry: Entry,
    failure: Arc<Mutex<Option<String>>>,
}

impl World {
    fn new() -> World {
        let lua =
            Lua::new_with(StdLib::ALL_SAFE, LuaOptions::new().catch_rust_panics(false)).unwrap();
        let natives = Natives::new(&lua, "nothing runs").unwrap();
        let native = natives.function(&lua, 7).unwrap();
        lua.globals().set("native", native).unwrap();
        let functions = lua.create_table().unwrap();
        let failure = Arc::new(Mutex::new(None));
        let noted = failure.clone();
        let handler = lua
            .create_function(move |_, value: mlua::Value| {
                let text = match &value {
                    mlua::Value::Table(table) => table.get::<String>("err").unwrap_or_default(),
                    other => other.to_string()?,
                };
                *noted.lock().unwrap() = Some(text);
                Ok(())
            })
            .unwrap();
        let globals = lua.globals();
        let layout = Layout {
            functions: &functions,
            globals: Some(&globals),
            handler: &handler,
            names: &["one", "two"],
        };
        let entry = natives.entry(&lua, layout).unwrap();
        World {
            lua,
            functions,
            entry,
            failure,
        }
    }

    fn failure(&self) -> String {
        self.failure.lock().unwrap().take().unwrap()
    }

    fn compile(&self, script: &str) {
        let function = self.lua.load(script).set_name("=script").into_function();
        self.functions.raw_set(1, function.unwrap()).unwrap();
    }

    fn run(&self, script: &str, host: &mut dyn Host) -> Ended {
        self.compile(script);
        self.entry.run(1, &[], &[], host).unwrap()
    }
}

/// What a script returned, copied.
#[derive(Clone, Debug, Default, PartialEq)]
enum Copy {
    #[default]
    Nil,
    Boolean(bool),
    Number(f64),
    Text(Vec<u8>),
    List(Vec<Copy>),
    Other,
}

impl Copy {
    fn of(value: Value<'_>) -> Copy {
        match value {
            Value::Nil => Copy::Nil,
            Value::Boolean(value) => Copy::Boolean(value),
            Value::Number(value) => Copy::Number(value),
            Value::Bytes(text) => Copy::Text(text.to_vec()),
            Value::Other => Copy::Other,
            Value::Table(table) => {
                let mut items = Vec::new();
                let read = table.items(|item| -> Result<(), StackFull> {
                    items.push(Copy::of(item));
                    Ok(())
                });
                read.unwrap();
                Copy::List(items)
            }
        }
    }
}

fn text(text: &str) -> Copy {
    Copy::Text(text.into())
}

/// A host whose answers are a closure.
struct Answers<F> {
    answer: F,
    returned: Copy,
}

impl<F: FnMut(&Arguments<'_>, &mut Values) -> Outcome> Host for Answers<F> {
    fn call(&mut self, number: usize, arguments: &Arguments<'_>, values: &mut Values) -> Outcome {
        assert_eq!(number, 7);
        (self.answer)(arguments, values)
    }

    fn returned(&mut self, value: Value<'_>) {
        self.returned = Copy::of(value);
    }
}

fn answers<F: FnMut(&Arguments<'_>, &mut Values) -> Outcome>(answer: F) -> Answers<F> {
    Answers {
        answer,
        returned: Copy::Nil,
    }
}

/// Bytes that are counted while they live.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Counted {
    fn bytes(text: String, alive: &Arc<AtomicUsize>) -> Bytes {
        alive.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Counted(text.into_bytes(), alive.clone()))
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A list, a map and a set, in each other, of strings that Lua has not seen yet.
fn push_much(values: &mut Values, round: usize, alive: &Arc<AtomicUsize>) {
    let bytes = |name: &str, at: usize| {
        Counted::bytes(format!("{name} {round} {at} {}", "x".repeat(100)), alive)
    };
    values.array(3);
    values.bytes(bytes("first", 0));
    values.map(4);
    for at in 0..4 {
        values.bytes(bytes("key", at));
        values.array(0);
        for item in 0..20 {
            values.bytes(bytes("item", at * 100 + item));
        }
        values.end();
    }
    values.end();
    values.set(2);
    values.bytes(bytes("one", 0));
    values.bytes(bytes("two", 0));
    values.end();
    values.end();
}

#[test]
fn an_error_at_any_push_leaks_nothing_and_leaves_the_state_usable() {
    let world = World::new();
    let alive = Arc::new(AtomicUsize::new(0));
    let (mut failed, mut succeeded) = (0, 0);
    // Four calls: after the first that fails, the others have buffers of their own.
    world.compile(
        "local good = 0
         for i = 1, 4 do
             local ok, value = pcall(native)
             if ok then
                 assert(#value == 3 and #value[1] > 100)
                 local pairs_of = 0
                 for _, items in pairs(value[2]) do pairs_of = pairs_of + #items end
                 assert(pairs_of == 80)
                 good = good + 1
             else
                 assert(value == 'not enough memory', value)
             end
         end
         return good",
    );
    for room in (0..60_000).step_by(97) {
        world.lua.gc_collect().unwrap();
        let mut round = room;
        let mut host = answers(|_, values| {
            round += 1;
            push_much(values, round, &alive);
            Outcome::Return
        });
        let limit = world.lua.used_memory() + room;
        world.lua.set_memory_limit(limit).unwrap();
        let ended = world.entry.run(1, &[], &[], &mut host);
        let returned = host.returned.clone();
        world.lua.set_memory_limit(0).unwrap();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "at {room}");
        match (ended, returned) {
            (Ok(Ended::Returned), Copy::Number(good)) => {
                failed += usize::from(good < 4.0);
                succeeded += usize::from(good == 4.0);
            }
            // Lua's own share of the work may fail as well.
            (Ok(Ended::Unhandled(text)), _) => assert_eq!(text, b"not enough memory"),
            (Ok(Ended::Handled), _) | (Err(mlua::Error::MemoryError(_)), _) => {}
            other => panic!("at {room}: {other:?}"),
        }
        assert_eq!(
            world.entry.run(1, &[], &[], &mut host).unwrap(),
            Ended::Returned
        );
        assert_eq!(host.returned, Copy::Number(4.0));
        assert_eq!(alive.load(Ordering::Relaxed), 0, "at {room}");
    }
    assert!(failed > 10, "calls failed in {failed} rounds");
    assert!(succeeded > 10, "nothing failed in {succeeded} rounds");
}

#[test]
fn keys_and_arguments_that_do_not_fit_are_an_error() {
    let world = World::new();
    world.compile("return #KEYS + #ARGV");
    let mut refused = 0;
    for room in (0..30_000).step_by(61) {
        let list = |name: &str| -> Vec<Bytes> {
            (0..100)
                .map(|at| format!("{name} {room} {at} {}", "x".repeat(50)).into())
                .collect()
        };
        let (keys, args) = (list("key"), list("argument"));
        let mut host = answers(|_, _| Outcome::Return);
        world.lua.gc_collect().unwrap();
        let limit = world.lua.used_memory() + room;
        world.lua.set_memory_limit(limit).unwrap();
        let ended = world.entry.run(1, &keys, &args, &mut host);
        world.lua.set_memory_limit(0).unwrap();
        match ended {
            Ok(Ended::Returned) => assert_eq!(host.returned, Copy::Number(200.0)),
            Ok(Ended::Unhandled(text)) => assert_eq!(text, b"not enough memory"),
            Err(mlua::Error::MemoryError(_)) => refused += 1,
            other => panic!("at {room}: {other:?}"),
        }
        let again = world.entry.run(1, &keys, &args, &mut host).unwrap();
        assert_eq!(again, Ended::Returned);
    }
    assert!(refused > 10, "refused {refused} times");
}

#[test]
fn deep_answers_are_pushed_until_the_stack_has_no_room() {
    let world = World::new();
    for (depth, fits) in [(1, true), (9, true), (1000, true), (5000, false)] {
        let mut host = answers(|_, values| {
            for _ in 0..depth {
                values.array(1);
            }
            values.text("inside");
            Outcome::Return
        });
        let script = "local ok, value = pcall(native)
                      if not ok then return value end
                      local depth = 0
                      while type(value) == 'table' do depth, value = depth + 1, value[1] end
                      return depth";
        assert_eq!(world.run(script, &mut host), Ended::Returned);
        let expected = match fits {
            true => Copy::Number(f64::from(depth)),
            false => text("stack overflow"),
        };
        assert_eq!(host.returned, expected, "{depth} deep");
    }
}

#[test]
fn a_result_of_any_depth_is_read_or_refused() {
    struct Deepest(usize, bool);
    impl Deepest {
        fn read(&mut self, value: Value<'_>, depth: usize) -> Result<(), StackFull> {
            self.0 = self.0.max(depth);
            match value {
                Value::Table(table) => table.items(|item| self.read(item, depth + 1)),
                _ => Ok(()),
            }
        }
    }
    impl Host for Deepest {
        fn call(&mut self, _: usize, _: &Arguments<'_>, _: &mut Values) -> Outcome {
            Outcome::Return
        }
        fn returned(&mut self, value: Value<'_>) {
            self.1 = self.read(value, 0).is_err();
        }
    }
    // The reader is recursive, and needs more of Rust's stack than a test has.
    let reader = std::thread::Builder::new().stack_size(256 << 20);
    reader.spawn(read_all).unwrap().join().unwrap();

    fn read_all() {
        let world = World::new();
        for (depth, refused) in [(1000, false), (20_000, true)] {
            read(&world, depth, refused);
        }
    }

    fn read(world: &World, depth: usize, refused: bool) {
        let mut host = Deepest(0, false);
        let script = format!("local t = 1 for i = 1, {depth} do t = {{ t }} end return t");
        assert_eq!(world.run(&script, &mut host), Ended::Returned);
        assert_eq!(host.1, refused, "{depth} deep");
        assert!(refused || host.0 == depth);
        // The stack is as before.
        let mut host = answers(|_, _| Outcome::Return);
        assert_eq!(world.run("return 5", &mut host), Ended::Returned);
        assert_eq!(host.returned, Copy::Number(5.0));
    }
}

#[test]
fn thousands_of_arguments_and_values_pass() {
    let world = World::new();
    let mut host = answers(|arguments, values| {
        let sum = arguments.iter().map(|argument| match argument {
            Argument::Number(number) => number,
            _ => panic!("not a number"),
        });
        values.number(sum.sum());
        assert_eq!(arguments.get(arguments.len()), None);
        for at in 0..arguments.len() {
            values.number(at as f64);
        }
        Outcome::Return
    });
    let script = "local t = {} for i = 1, 3500 do t[i] = i end
                  local values = { native(unpack(t)) }
                  return { #values, values[1], values[3501] }";
    assert_eq!(world.run(script, &mut host), Ended::Returned);
    let expected = [3501.0, 3500.0 * 3501.0 / 2.0, 3499.0].map(Copy::Number);
    assert_eq!(host.returned, Copy::List(expected.into()));
}

#[test]
fn arguments_are_seen_as_they_are() {
    let world = World::new();
    let mut host = answers(|arguments, values| {
        assert_eq!(arguments.len(), 6);
        let seen: Vec<Argument<'_>> = arguments.iter().collect();
        assert_eq!(seen[0], Argument::Bytes(b"a\0b"));
        assert_eq!(seen[1], Argument::Bytes(b""));
        assert_eq!(seen[2], Argument::Number(-0.5));
        assert_eq!(seen[3..], [Argument::Other; 3]);
        values.boolean(true);
        Outcome::Return
    });
    let script = "return native('a\\0b', '', -0.5, nil, {}, true)";
    assert_eq!(world.run(script, &mut host), Ended::Returned);
    assert_eq!(host.returned, Copy::Boolean(true));
}

#[test]
fn errors_are_caught_by_pcall_and_in_coroutines() {
    let world = World::new();
    let mut host = answers(|arguments, values| {
        values.map(1);
        values.text("err");
        values.bytes(match arguments.get(0) {
            Some(Argument::Bytes(text)) => Bytes::copy_from_slice(text),
            _ => Bytes::new(),
        });
        values.end();
        Outcome::Raise
    });
    let script = "local seen = {}
                  local ok, e = pcall(function()
                      local ok, e = pcall(native, 'inner')
                      seen[1] = e.err
                      local co = coroutine.create(function() coroutine.yield(1) native('coroutine') end)
                      coroutine.resume(co)
                      local ok, e = coroutine.resume(co)
                      seen[2] = e.err
                      native('outer')
                  end)
                  seen[3] = e.err
                  return seen";
    assert_eq!(world.run(script, &mut host), Ended::Returned);
    let expected = ["inner", "coroutine", "outer"].map(text);
    assert_eq!(host.returned, Copy::List(expected.into()));
    assert_eq!(world.run("native('last')", &mut host), Ended::Handled);
    assert_eq!(world.failure(), "last");
    assert_eq!(world.run("error('own')", &mut host), Ended::Handled);
    assert_eq!(world.failure(), "script:1: own");
}

#[test]
fn an_error_without_a_value_is_nil() {
    let world = World::new();
    let mut host = answers(|_, _| Outcome::Raise);
    let script = "local ok, e = pcall(native) return { not ok, e == nil }";
    assert_eq!(world.run(script, &mut host), Ended::Returned);
    let expected = [true, true].map(Copy::Boolean);
    assert_eq!(host.returned, Copy::List(expected.into()));
}

#[test]
fn runaway_recursion_ends_with_an_error() {
    let world = World::new();
    let mut host = answers(|_, values| {
        values.number(1.0);
        Outcome::Return
    });
    for script in [
        "local function f() return native() + f() end return f()",
        "local function f() return (string.gsub('x', 'x', f)) .. native() end return f()",
    ] {
        let ended = world.run(script, &mut host);
        assert!(
            matches!(ended, Ended::Handled | Ended::Unhandled(_)),
            "{ended:?}"
        );
        assert_eq!(world.run("return native()", &mut host), Ended::Returned);
        assert_eq!(host.returned, Copy::Number(1.0));
    }
}

#[test]
fn a_panic_of_the_host_reaches_the_caller_and_no_pcall() {
    struct Panics(bool);
    impl Host for Panics {
        fn call(&mut self, _: usize, _: &Arguments<'_>, values: &mut Values) -> Outcome {
            values.array(1);
            panic::resume_unwind(Box::new("in a call"))
        }
        fn returned(&mut self, _: Value<'_>) {
            if self.0 {
                panic::resume_unwind(Box::new("in the end"))
            }
        }
    }
    let world = World::new();
    for (script, expected) in [
        ("native()", "in a call"),
        ("pcall(native) return 1", "in a call"),
        (
            "return coroutine.resume(coroutine.create(function() pcall(native) end))",
            "in a call",
        ),
        ("return 1", "in the end"),
    ] {
        let run = AssertUnwindSafe(|| world.run(script, &mut Panics(true)));
        let caught = panic::catch_unwind(run);
        // A coroutine ends with the panic as its error, which mlua resumes when it is looked at.
        if script.contains("coroutine") {
            assert!(caught.is_err());
        } else {
            let payload = caught.unwrap_err();
            assert_eq!(*payload.downcast::<&str>().unwrap(), expected, "{script}");
        }
        assert_eq!(world.run("return 1", &mut Panics(false)), Ended::Returned);
    }
}

#[test]
fn nothing_runs_inside_of_a_call() {
    struct Nests<'a>(&'a World, Vec<Ended>, Vec<String>);
    impl Host for Nests<'_> {
        fn call(&mut self, _: usize, _: &Arguments<'_>, _: &mut Values) -> Outcome {
            let mut inner = answers(|_, _| Outcome::Return);
            let nested = self.0.entry.run(1, &[], &[], &mut inner).unwrap();
            self.1.push(nested);
            let script = "local ok, e = pcall(native) return e.err";
            self.2.push(self.0.lua.load(script).eval().unwrap());
            Outcome::Return
        }
        fn returned(&mut self, _: Value<'_>) {}
    }
    let world = World::new();
    let mut host = Nests(&world, Vec::new(), Vec::new());
    assert_eq!(world.run("native() native()", &mut host), Ended::Returned);
    assert_eq!(host.1, [Ended::Nested, Ended::Nested]);
    assert_eq!(host.2, ["nothing runs", "nothing runs"]);
}

#[test]
fn a_function_outlives_what_made_it() {
    let World { lua, .. } = World::new();
    lua.gc_collect().unwrap();
    let script = "local ok, e = pcall(native, 1) return e.err";
    assert_eq!(lua.load(script).eval::<String>().unwrap(), "nothing runs");
}

#[test]
fn values_that_are_not_closed_or_have_no_key() {
    let world = World::new();
    let mut case = 0;
    let mut host = answers(move |_, values| {
        case += 1;
        match case {
            // Ends that end nothing.
            1 => {
                values.end();
                values.number(1.0);
                values.end();
            }
            // A key without its value, in a table that is not closed.
            2 => {
                values.array(1);
                values.map(1);
                values.text("key");
            }
            // Keys that Lua refuses.
            3 => {
                values.map(1);
                values.nil();
                values.number(1.0);
                values.end();
            }
            _ => {
                values.set(1);
                values.number(f64::NAN);
                values.end();
            }
        }
        Outcome::Return
    });
    let script = "local a = native()
                  local b = native()
                  local ok1, e1 = pcall(native)
                  local ok2, e2 = pcall(native)
                  return { a, #b, type(b[1]), next(b[1]) == nil, ok1, e1, ok2, e2 }";
    assert_eq!(world.run(script, &mut host), Ended::Returned);
    let expected = [
        Copy::Number(1.0),
        Copy::Number(1.0),
        text("table"),
        Copy::Boolean(true),
        Copy::Boolean(false),
        text("table index is nil"),
        Copy::Boolean(false),
        text("table index is NaN"),
    ];
    assert_eq!(host.returned, Copy::List(expected.into()));
}

#[test]
fn a_collection_that_calls_lua_does_not_disturb_what_is_being_pushed() {
    /// Calls a function when Lua collects it.
    struct Calls(Function, Arc<AtomicUsize>);
    impl UserData for Calls {}
    impl Drop for Calls {
        fn drop(&mut self) {
            if self.0.call::<usize>("inner").is_ok() {
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let world = World::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let native: Function = world.lua.globals().get("native").unwrap();
    let called = calls.clone();
    let make = world
        .lua
        .create_function(move |_, ()| Ok(Calls(native.clone(), called.clone())));
    world.lua.globals().set("make", make.unwrap()).unwrap();
    let mut round = 0;
    let mut host = answers(|arguments, values| {
        if arguments.len() == 1 {
            values.number(1.0);
            return Outcome::Return;
        }
        round += 1;
        values.array(200);
        for at in 0..200 {
            values.bytes(format!("{round} {at} {}", "x".repeat(60)));
        }
        values.end();
        Outcome::Return
    });
    let script = "for i = 1, 2000 do
                      make()
                      local t = native()
                      assert(#t == 200)
                      local round = t[1]:match('^%d+')
                      for at = 1, 200, 33 do
                          assert(t[at]:match('^(%d+) (%d+)') == round, t[at])
                          assert(select(2, t[at]:match('^(%d+) (%d+)')) + 1 == at, t[at])
                      end
                  end
                  return 1";
    assert_eq!(
        world.run(script, &mut host),
        Ended::Returned,
        "{:?}",
        world.failure.lock().unwrap()
    );
    assert!(calls.load(Ordering::Relaxed) > 0, "nothing was collected");
}

#[test]
fn fields_and_pairs_are_read_even_if_the_table_changes_meanwhile() {
    struct Reads<'a>(&'a Lua, Vec<Copy>, usize);
    impl Host for Reads<'_> {
        fn call(&mut self, _: usize, _: &Arguments<'_>, _: &mut Values) -> Outcome {
            Outcome::Return
        }
        fn returned(&mut self, value: Value<'_>) {
            let Value::Table(table) = value else {
                panic!("no table");
            };
            for name in 0..3 {
                self.1.push(table.field(name, Copy::of).unwrap());
            }
            let read = table.pairs(|_, _| -> Result<(), StackFull> {
                self.2 += 1;
                let script = "for k in pairs(t) do t[k] = nil end
                              for i = 1, 100 do t['k' .. i .. math.random()] = i end
                              collectgarbage()";
                self.0.load(script).exec().unwrap();
                Ok(())
            });
            read.unwrap();
        }
    }
    let world = World::new();
    let mut host = Reads(&world.lua, Vec::new(), 0);
    let script = "t = { one = 1, two = 'x', three = 3, [1] = 1 } return t";
    assert_eq!(world.run(script, &mut host), Ended::Returned);
    assert_eq!(host.1, [Copy::Number(1.0), text("x"), Copy::Nil]);
    assert!(host.2 >= 1);
}

#[test]
fn keys_and_arguments_are_globals_or_parameters() {
    let world = World::new();
    let list = |words: &[&str]| -> Vec<Bytes> {
        words
            .iter()
            .map(|word| Bytes::copy_from_slice(word.as_bytes()))
            .collect()
    };
    let (keys, args) = (list(&["a", "b"]), list(&["c"]));
    let mut host = answers(|_, _| Outcome::Return);
    world.compile("return { KEYS[1], KEYS[2], ARGV[1], #KEYS, #ARGV }");
    let ended = world.entry.run(1, &keys, &args, &mut host).unwrap();
    assert_eq!(ended, Ended::Returned);
    let expected = Copy::List(vec![
        text("a"),
        text("b"),
        text("c"),
        Copy::Number(2.0),
        Copy::Number(1.0),
    ]);
    assert_eq!(host.returned, expected);

    let natives = Natives::new(&world.lua, "nothing runs").unwrap();
    let handler = world.lua.create_function(|_, ()| Ok(())).unwrap();
    let layout = Layout {
        functions: &world.functions,
        globals: None,
        handler: &handler,
        names: &[],
    };
    let entry = natives.entry(&world.lua, layout).unwrap();
    world.compile("local k, a = ... return { k[1], k[2], a[1], #k, #a }");
    assert_eq!(
        entry.run(1, &keys, &args, &mut host).unwrap(),
        Ended::Returned
    );
    assert_eq!(host.returned, expected);
    // There is no such function.
    let ended = entry.run(9, &keys, &args, &mut host).unwrap();
    assert_eq!(ended, Ended::Handled);
}

#[test]
fn internal_functions_do_nothing_when_others_call_them() {
    struct Steals<'a>(&'a Lua, Vec<Function>);
    impl Host for Steals<'_> {
        fn call(&mut self, _: usize, _: &Arguments<'_>, _: &mut Values) -> Outcome {
            for level in 0..8 {
                let function = self.0.inspect_stack(level, |frame| frame.function());
                self.1.extend(function);
            }
            Outcome::Return
        }
        fn returned(&mut self, _: Value<'_>) {}
    }
    let world = World::new();
    let mut host = Steals(&world.lua, Vec::new());
    assert_eq!(world.run("native()", &mut host), Ended::Returned);
    assert!(host.1.len() >= 3, "{} functions", host.1.len());
    let pointer = mlua::LightUserData(std::ptr::without_provenance_mut(64));
    for function in host.1 {
        // Those that are not internal answer what they like.
        let _ = function.call::<MultiValue>((pointer, 1));
        let _ = function.call::<MultiValue>(());
    }
    let mut host = answers(|_, _| Outcome::Return);
    assert_eq!(world.run("native() return 5", &mut host), Ended::Returned);
    assert_eq!(host.returned, Copy::Number(5.0));
}

#[test]
fn pairs_that_do_not_fit_into_the_memory_are_an_error() {
    struct Reads<'a>(&'a Lua, usize, Option<Result<usize, StackFull>>);
    fn depth(value: Value<'_>) -> Result<usize, StackFull> {
        let Value::Table(table) = value else {
            return Ok(0);
        };
        let mut deepest = 0;
        table.pairs(|_, value| -> Result<(), StackFull> {
            deepest = depth(value)? + 1;
            Ok(())
        })?;
        Ok(deepest)
    }
    impl Host for Reads<'_> {
        fn call(&mut self, _: usize, _: &Arguments<'_>, _: &mut Values) -> Outcome {
            Outcome::Return
        }
        fn returned(&mut self, value: Value<'_>) {
            let limit = self.0.used_memory() + self.1;
            self.0.set_memory_limit(limit).unwrap();
            self.2 = Some(depth(value));
            self.0.set_memory_limit(0).unwrap();
        }
    }
    let (mut refused, mut read) = (0, 0);
    for room in (0..100_000).step_by(1499) {
        // A new state: the stack of one that was used has grown.
        let world = World::new();
        let mut host = Reads(&world.lua, room, None);
        let script = "local t = 1 for i = 1, 300 do t = { a = t } end return t";
        assert_eq!(world.run(script, &mut host), Ended::Returned);
        match host.2 {
            Some(Ok(300)) => read += 1,
            Some(Err(StackFull)) => refused += 1,
            other => panic!("at {room}: {other:?}"),
        }
    }
    assert!(refused > 1 && read > 1, "{refused} refused, {read} read");
}

#[test]
fn keys_and_arguments_do_not_outlive_the_run() {
    let world = World::new();
    world.compile("return #KEYS + #ARGV");
    let mut host = answers(|_, _| Outcome::Return);
    let large = |byte: u8| [Bytes::from(vec![byte; 600_000])];
    world.lua.gc_collect().unwrap();
    let limit = world.lua.used_memory() + 1_000_000;
    world.lua.set_memory_limit(limit).unwrap();
    for byte in b'a'..b'e' {
        for (keys, args) in [
            (&large(byte)[..], &[][..]),
            (&[][..], &large(byte.to_ascii_uppercase())[..]),
        ] {
            let ended = world.entry.run(1, keys, args, &mut host).unwrap();
            assert_eq!(ended, Ended::Returned);
            assert_eq!(host.returned, Copy::Number(1.0));
            world.lua.gc_collect().unwrap();
        }
        // Lists that do not fit leave nothing behind, either.
        let both = world.entry.run(1, &large(byte), &large(b'x'), &mut host);
        assert!(matches!(both, Err(mlua::Error::MemoryError(_))), "{both:?}");
        world.lua.gc_collect().unwrap();
    }
    let script = "return { KEYS == nil, ARGV == nil }";
    let gone: Vec<bool> = world.lua.load(script).eval().unwrap();
    assert_eq!(gone, [true, true]);
}

#[test]
fn a_panic_while_an_answer_is_dropped_reaches_the_caller() {
    /// Bytes whose destructor panics.
    struct Panics;
    impl AsRef<[u8]> for Panics {
        fn as_ref(&self) -> &[u8] {
            b"bytes"
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            panic::resume_unwind(Box::new("in a destructor"))
        }
    }
    let world = World::new();
    for (name, script) in [
        ("after it was pushed", "pcall(native, 'good') return 1"),
        (
            "after pushing it has failed",
            "pcall(native, 'bad') return 1",
        ),
        (
            "in a buffer of its own",
            "pcall(native) pcall(native, 'good') return 1",
        ),
    ] {
        let mut host = answers(|arguments, values| {
            match arguments.get(0) {
                Some(Argument::Bytes(b"good")) => values.bytes(Bytes::from_owner(Panics)),
                argument => {
                    // A key that Lua refuses.
                    values.map(1);
                    values.nil();
                    match argument {
                        Some(_) => values.bytes(Bytes::from_owner(Panics)),
                        None => values.number(1.0),
                    }
                    values.end();
                }
            }
            Outcome::Return
        });
        let run = AssertUnwindSafe(|| world.run(script, &mut host));
        let payload = panic::catch_unwind(run).unwrap_err();
        let payload = payload.downcast::<&str>().unwrap();
        assert_eq!(*payload, "in a destructor", "{name}");
        let mut host = answers(|_, _| Outcome::Return);
        assert_eq!(
            world.run("native() return 5", &mut host),
            Ended::Returned,
            "{name}"
        );
        assert_eq!(host.returned, Copy::Number(5.0));
    }
}

#[test]
fn a_panic_where_lua_has_no_room_for_it_reaches_the_caller() {
    let world = World::new();
    let calls = AtomicUsize::new(0);
    let mut host = answers(|_, _| {
        calls.fetch_add(1, Ordering::Relaxed);
        panic::resume_unwind(Box::new("at the limit"))
    });
    // The function that is called where pcall fails has no level of the C stack left.
    let script = "local failed
                  local function f()
                      if not pcall(f) and not failed then
                          failed = true
                          native()
                      end
                  end
                  f()
                  assert(failed)
                  local ok, e = pcall(native)
                  return 1";
    let run = AssertUnwindSafe(|| world.run(script, &mut host));
    let payload = panic::catch_unwind(run).unwrap_err();
    assert_eq!(*payload.downcast::<&str>().unwrap(), "at the limit");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let mut host = answers(|_, _| Outcome::Return);
    assert_eq!(world.run("native() return 5", &mut host), Ended::Returned);
}

#[test]
fn scripts_cannot_make_finalisers() {
    let world = World::new();
    assert!(!world.lua.globals().contains_key("newproxy").unwrap());
}
