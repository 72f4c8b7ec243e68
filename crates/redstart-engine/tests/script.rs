//! What scripts cannot do: run without end, use up memory, reach beyond their keys or their sandbox.

#![allow(clippy::unwrap_used)]

use std::{
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use redstart_engine::{Engine, Reply, Session};

fn call(session: &mut Session, words: &[&str]) -> Reply {
    let args: Vec<Bytes> = words
        .iter()
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    session.execute(&args).into_reply().unwrap()
}

fn error(reply: &Reply) -> &str {
    match reply {
        Reply::Error(text) => text,
        other => panic!("no error but {other:?}"),
    }
}

/// An engine whose scripts count as slow at once, and end only when killed.
fn impatient() -> Engine {
    Engine::builder()
        .script_time(Duration::from_millis(20), Duration::from_secs(300))
        .build()
        .unwrap()
}

/// Runs a script on a thread of its own and waits until other clients are told of it.
fn run_until_busy(engine: &Engine, script: &str) -> (thread::JoinHandle<Reply>, Session) {
    call_until_busy(engine, &["EVAL", script, "0"])
}

/// As [`run_until_busy`], with any command.
fn call_until_busy(engine: &Engine, command: &[&str]) -> (thread::JoinHandle<Reply>, Session) {
    let mut runner = engine.session();
    let words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    let thread = thread::spawn(move || {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        call(&mut runner, &words)
    });
    let mut other = engine.session();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match call(&mut other, &["GET", "k"]) {
            Reply::Error(text) if text.starts_with("BUSY ") => return (thread, other),
            _ => assert!(Instant::now() < deadline, "never busy"),
        }
        thread::yield_now();
    }
}

#[test]
fn endless_script_makes_others_busy_and_can_be_killed() {
    let loops = [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do redis.pcall('GET', 'k') end",
        "local f f = function() pcall(f) while true do pcall(error) end end f()",
        "while true do xpcall(function() while true do end end, function(e) while true do end end) end",
        "while true do local c = coroutine.create(function() while true do end end) coroutine.resume(c) end",
        "while true do coroutine.wrap(function() pcall(function() while true do end end) end)() end",
    ];
    for script in loops {
        let engine = impatient();
        let (thread, mut other) = run_until_busy(&engine, script);
        assert_eq!(call(&mut other, &["SCRIPT", "KILL"]), Reply::OK, "{script}");
        let reply = thread.join().unwrap();
        assert!(
            error(&reply).starts_with("ERR Script killed by user with SCRIPT KILL..."),
            "{script}: {reply:?}"
        );
        assert_eq!(call(&mut other, &["GET", "k"]), Reply::Nil);
        assert_eq!(
            error(&call(&mut other, &["SCRIPT", "KILL"])),
            "NOTBUSY No scripts in execution right now."
        );
        assert_eq!(
            call(&mut other, &["EVAL", "return 7", "0"]),
            Reply::Int(7),
            "{script}"
        );
    }
}

/// Runs a command that writes and does not end, and asks for its end before the limit ends it: on a busy machine
/// that may take a longer limit.
fn kill_what_wrote(library: Option<&str>, command: &[&str], kill: &[&str]) {
    for limit in [500, 4000, 30_000] {
        let engine = Engine::builder()
            .script_time(Duration::from_millis(20), Duration::from_millis(limit))
            .build()
            .unwrap();
        let mut other = engine.session();
        if let Some(code) = library {
            call(&mut other, &["FUNCTION", "LOAD", code]);
        }
        let mut runner = engine.session();
        let words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let thread = thread::spawn(move || {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            call(&mut runner, &words)
        });
        let mut killed = Reply::Nil;
        while !thread.is_finished()
            && !matches!(&killed, Reply::Error(text) if text.starts_with("UNKILLABLE "))
        {
            killed = call(&mut other, kill);
            assert!(killed.is_error(), "{killed:?}");
            thread::yield_now();
        }
        let reply = thread.join().unwrap();
        assert!(
            error(&reply).contains("longer than is allowed"),
            "{reply:?}"
        );
        assert_eq!(call(&mut other, &["GET", "k"]), Reply::bulk("1"));
        if error(&killed).starts_with("UNKILLABLE ") {
            return;
        }
    }
    panic!("never asked in time");
}

#[test]
fn script_that_wrote_cannot_be_killed_but_ends_at_the_limit() {
    let script =
        "redis.call('SET', 'k', 1) while true do pcall(function() while true do end end) end";
    kill_what_wrote(None, &["EVAL", script, "0"], &["SCRIPT", "KILL"]);
}

#[test]
fn script_that_eats_memory_fails_and_the_engine_goes_on() {
    let engine = Engine::builder().script_memory(32 << 20).build().unwrap();
    let mut session = engine.session();
    for script in [
        "local t = {} for i = 1, 1e9 do t[i] = 'x' .. i end",
        "local s = 'x' while true do s = s .. s end",
        "return string.rep('x', 2^30)",
        "local ok, text = pcall(string.rep, 'x', 2^30) return redis.error_reply(text)",
    ] {
        let reply = call(&mut session, &["EVAL", script, "0"]);
        assert!(reply.is_error(), "{script}: {reply:?}");
        assert_eq!(
            call(&mut session, &["EVAL", "return 7", "0"]),
            Reply::Int(7),
            "{script}"
        );
    }
}

#[test]
fn replies_and_arguments_that_do_not_fit_are_errors_of_their_own() {
    let engine = Engine::builder().script_memory(4 << 20).build().unwrap();
    let mut session = engine.session();
    let big = "x".repeat(6 << 20);
    assert_eq!(call(&mut session, &["SET", "big", &big]), Reply::OK);
    for _ in 0..3 {
        let caught =
            "local ok, text = pcall(redis.call, 'GET', KEYS[1]) return {tostring(ok), text}";
        let expected = ["false", "not enough memory"].map(Reply::bulk);
        assert_eq!(
            call(&mut session, &["EVAL", caught, "1", "big"]),
            Reply::Array(expected.into())
        );
        for words in [
            &["EVAL", "return redis.call('GET', KEYS[1])", "1", "big"][..],
            &["EVAL", "return #ARGV", "0", &big],
        ] {
            let reply = call(&mut session, words);
            assert!(error(&reply).contains("not enough memory"), "{reply:?}");
        }
        assert_eq!(
            call(
                &mut session,
                &["EVAL", "return redis.call('STRLEN', KEYS[1])", "1", "big"]
            ),
            Reply::Int(6 << 20)
        );
    }
}

#[test]
fn what_is_made_of_a_table_takes_no_more_memory_than_scripts_may_use() {
    let engine = Engine::builder().script_memory(4 << 20).build().unwrap();
    let mut session = engine.session();
    for script in [
        "local t = {} t[1] = t t[2] = t return t",
        "local t = {} t[1] = t t[2] = t return {map = {a = t}}",
        "local s = string.rep('x', 1e6) local t = {} for i = 1, 100 do t[i] = s end return t",
        "local s = string.rep('x', 1e6) local t = {} for i = 1, 10 do t[i] = {err = s} end return t",
        "local t = {} for i = 1, 100 do t[i] = t end return cmsgpack.pack(t)",
        "local t = {} t.a = t t.b = t t.c = t t.d = t return cmsgpack.pack(t)",
    ] {
        let reply = call(&mut session, &["EVAL", script, "0"]);
        assert!(reply.is_error(), "{script}");
        assert_eq!(
            call(&mut session, &["EVAL", "return 7", "0"]),
            Reply::Int(7),
            "{script}"
        );
    }
    // The length that Lua tells is 2^29.
    let sparse = "local t = {} for k = 29, 0, -1 do t[2^k] = 1 end return t";
    let items = vec![Reply::Int(1), Reply::Int(1)];
    assert_eq!(
        call(&mut session, &["EVAL", sparse, "0"]),
        Reply::Array(items)
    );
}

#[test]
fn a_transaction_ends_while_a_script_is_slow() {
    let engine = impatient();
    let [mut executing, mut discarding, mut unwatching, mut resetting] =
        [(); 4].map(|()| engine.session());
    for session in [
        &mut executing,
        &mut discarding,
        &mut unwatching,
        &mut resetting,
    ] {
        assert_eq!(call(session, &["WATCH", "k"]), Reply::OK);
    }
    for session in [&mut executing, &mut discarding, &mut resetting] {
        assert_eq!(call(session, &["MULTI"]), Reply::OK);
        assert_eq!(
            call(session, &["SET", "k", "1"]),
            Reply::Status("QUEUED".into())
        );
    }
    let (thread, mut other) = run_until_busy(&engine, "while true do end");
    let reply = call(&mut executing, &["EXEC"]);
    assert!(
        error(&reply).starts_with("EXECABORT Transaction discarded because of: BUSY "),
        "{reply:?}"
    );
    assert_eq!(call(&mut discarding, &["DISCARD"]), Reply::OK);
    assert_eq!(
        error(&call(&mut discarding, &["DISCARD"])),
        "ERR DISCARD without MULTI"
    );
    assert_eq!(call(&mut unwatching, &["UNWATCH"]), Reply::OK);
    assert_eq!(
        call(&mut resetting, &["RESET"]),
        Reply::Status("RESET".into())
    );
    assert_eq!(call(&mut other, &["SCRIPT", "KILL"]), Reply::OK);
    thread.join().unwrap();
    // Nobody is in a transaction or watches by now.
    assert_eq!(call(&mut other, &["SET", "k", "2"]), Reply::OK);
    for mut session in [executing, discarding, unwatching, resetting] {
        assert_eq!(call(&mut session, &["GET", "k"]), Reply::bulk("2"));
        assert_eq!(call(&mut session, &["MULTI"]), Reply::OK);
        call(&mut session, &["GET", "k"]);
        let values = Reply::Array(vec![Reply::bulk("2")]);
        assert_eq!(call(&mut session, &["EXEC"]), values);
    }
}

#[test]
fn a_script_that_passes_more_values_than_there_is_room_for_harms_nobody() {
    let engine = Engine::new();
    let mut session = engine.session();
    let Reply::Bulk(kept) = call(&mut session, &["SCRIPT", "LOAD", "return 'kept'"]) else {
        panic!("no digest")
    };
    let kept = std::str::from_utf8(&kept).unwrap();
    let many = "redis.call('INCR', 'ran') \
                local t = {} for i = 1, tonumber(ARGV[1]) do t[i] = {} end";
    // Lua lets nearly 8000 values through; mlua has room for about as many.
    let counts = 7960..8000;
    let calls = [
        "setmetatable(setmetatable({}, {a = 1}), {}, unpack(t))",
        "setmetatable(setmetatable({}, {__metatable = {}}), {}, unpack(t))",
        "rawset({}, 1, 2, unpack(t))",
        "redis.pcall('ECHO', unpack(t))",
    ];
    for count in counts.clone() {
        for called in calls {
            // Whatever the answer is.
            let script = format!("{many} {called} return 1");
            call(&mut session, &["EVAL", &script, "0", &count.to_string()]);
            assert_eq!(
                call(&mut session, &["EVALSHA", kept, "0"]),
                Reply::bulk("kept"),
                "{called} with {count}"
            );
        }
    }
    let ran = (counts.len() * calls.len()).to_string();
    assert_eq!(
        call(&mut session, &["GET", "ran"]),
        Reply::bulk(ran.as_str())
    );
}

#[test]
fn deep_calls_do_not_use_up_the_stack_of_a_thread() {
    let script = "cjson.decode_max_depth(2000) cjson.encode_max_depth(2000) \
        local text = string.rep('[', 1990) .. string.rep(']', 1990) \
        local packed = string.rep('\\145', 990) .. '\\1' \
        local t = {} for i = 1, 1990 do t = {t} end \
        local function nest(n, f) \
            if n == 0 then return f() end \
            string.gsub('x', '.', function() nest(n - 1, f) end) \
        end \
        local failed = 0 \
        for n = 0, 200, 4 do \
            for _, f in ipairs({ \
                function() return cjson.decode(text) end, \
                function() return cjson.encode(t) end, \
                function() return cmsgpack.unpack(packed) end, \
                function() return redis.call('SORT', 'none', 'BY', '*', 'LIMIT', 0, 1) end, \
            }) do \
                if not pcall(nest, n, f) then failed = failed + 1 end \
            end \
        end \
        return failed";
    let thread = thread::Builder::new().stack_size(2 << 20);
    let reply = thread.spawn(move || {
        let engine = Engine::new();
        call(&mut engine.session(), &["EVAL", script, "0"])
    });
    match reply.unwrap().join().unwrap() {
        Reply::Int(failed) => assert!((10..150).contains(&failed), "{failed}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn strict_scripts_touch_only_the_keys_they_declared() {
    let engine = Engine::builder().cluster_strict(true).build().unwrap();
    let mut session = engine.session();
    let set = "return redis.call('SET', KEYS[1], 1)";
    assert_eq!(call(&mut session, &["EVAL", set, "1", "a"]), Reply::OK);
    let sneaky = "return redis.call('SET', 'b', 1)";
    let reply = call(&mut session, &["EVAL", sneaky, "1", "a"]);
    assert!(error(&reply).contains("not among its KEYS"), "{reply:?}");
    let reply = call(&mut session, &["EVAL", set, "2", "a", "b"]);
    assert!(error(&reply).starts_with("CROSSSLOT"), "{reply:?}");
    let tagged = "return redis.call('GET', '{a}2')";
    let reply = call(&mut session, &["EVAL", tagged, "1", "{a}1"]);
    assert!(error(&reply).contains("not among its KEYS"), "{reply:?}");
    let flagged = "#!lua flags=no-cluster\nreturn 1";
    let reply = call(&mut session, &["EVAL", flagged, "0"]);
    assert!(error(&reply).contains("no-cluster"), "{reply:?}");
}

#[test]
fn scripts_leave_nothing_behind_for_one_another() {
    let engine = Engine::new();
    let mut session = engine.session();
    for script in [
        "redis.call = function() return 'mine' end",
        "getmetatable('').__index = function() return 'mine' end",
        "getmetatable(redis).__index.call = nil",
        "getmetatable(_G).__index = nil",
        "getmetatable(_G).__newindex = nil",
        "rawset(_G, 'leak', 1)",
        "rawset(redis, 'call', 1)",
        "setmetatable(_G, nil)",
        "setmetatable(string, {})",
        "setmetatable(getmetatable(''), nil)",
        "string.format = nil",
        "leak = 1",
        "_G.leak = 1",
        "loadstring('leak = 1')()",
        "local f = load(function() return nil end) leak = f",
        "coroutine.wrap(function() leak = 1 end)()",
        "error(setmetatable({}, {__tostring = function() return 'x' end}))",
        "for k in pairs(_G) do _G[k] = nil end",
        "KEYS = nil",
        "cjson.decode = nil",
    ] {
        let reply = call(&mut session, &["EVAL", script, "0"]);
        assert!(reply.is_error(), "{script}: {reply:?}");
        let check = "return {redis.call('GET', 'k'), ('x'):rep(2), string.format('%d', 3), cjson.encode(KEYS), pcall(function() return leak end)}";
        assert_eq!(
            call(&mut session, &["EVAL", check, "0"]),
            Reply::Array(vec![
                Reply::Nil,
                Reply::bulk("xx"),
                Reply::bulk("3"),
                Reply::bulk("{}"),
                Reply::Nil,
                Reply::bulk(
                    "user_script:1: Script attempted to access nonexistent global variable 'leak'"
                ),
            ]),
            "{script}"
        );
    }
}

#[test]
fn scripts_may_write_beyond_maxmemory_only_if_they_declare_it() {
    let engine = Engine::builder()
        .maxmemory(1, redstart_engine::MemoryPolicy::NoEviction)
        .build()
        .unwrap();
    let mut session = engine.session();
    let write = "return redis.call('SET', 'k', 1)";
    let reply = call(&mut session, &["EVAL", write, "0"]);
    assert!(
        error(&reply)
            .starts_with("OOM command not allowed when used memory > 'maxmemory'. script:"),
        "{reply:?}"
    );
    let read = "return redis.call('GET', 'k')";
    assert_eq!(call(&mut session, &["EVAL", read, "0"]), Reply::Nil);
    let begun = "redis.call('DEL', 'k') return redis.call('SET', 'k', 1)";
    assert_eq!(call(&mut session, &["EVAL", begun, "0"]), Reply::OK);
    let reply = call(&mut session, &["EVAL", "#!lua\nreturn 1", "0"]);
    assert!(
        error(&reply).starts_with("OOM command not allowed"),
        "{reply:?}"
    );
    let daring = format!("#!lua flags=allow-oom\n{write}");
    assert_eq!(call(&mut session, &["EVAL", &daring, "0"]), Reply::OK);
}

#[test]
fn bytecode_is_not_loaded() {
    let engine = Engine::new();
    let mut session = engine.session();
    let script = "return loadstring(string.dump(function() return 1 end))";
    assert_eq!(call(&mut session, &["EVAL", script, "0"]), Reply::Nil);
    let script = "local d = string.dump(function() return 1 end) local n = 0 \
                  return load(function() n = n + 1 return d:sub(n, n) end)";
    assert_eq!(call(&mut session, &["EVAL", script, "0"]), Reply::Nil);
}

#[test]
fn deeply_nested_replies_are_cut_off() {
    let engine = Engine::new();
    let mut session = engine.session();
    let mut reply = call(
        &mut session,
        &["EVAL", "local t = {} t[1] = t return t", "0"],
    );
    let mut depth = 0;
    while let Reply::Array(items) = reply {
        reply = items.into_iter().next().unwrap();
        depth += 1;
    }
    assert_eq!(error(&reply), "ERR reached lua stack limit");
    assert!(depth > 100);
}

#[test]
fn any_number_of_distinct_scripts_can_be_run() {
    let engine = Engine::new();
    let mut session = engine.session();
    let kept = call(&mut session, &["SCRIPT", "LOAD", "return 'kept'"]);
    let Reply::Bulk(kept) = kept else {
        panic!("{kept:?}")
    };
    let kept = std::str::from_utf8(&kept).unwrap();
    for n in 0..10_000i64 {
        let script = format!("return {n}");
        assert_eq!(
            call(&mut session, &["EVAL", &script, "0"]),
            Reply::Int(n),
            "{n}"
        );
        // Scripts in use stay, however many others come.
        if n % 100 == 0 {
            call(&mut session, &["EVAL", "return 'used'", "0"]);
        }
    }
    let sha = call(
        &mut session,
        &["EVAL", "return redis.sha1hex(\"return 'used'\")", "0"],
    );
    let Reply::Bulk(sha) = sha else {
        panic!("{sha:?}")
    };
    let sha = std::str::from_utf8(&sha).unwrap();
    assert_eq!(
        call(&mut session, &["EVALSHA", sha, "0"]),
        Reply::bulk("used")
    );
    assert_eq!(
        call(&mut session, &["EVALSHA", kept, "0"]),
        Reply::bulk("kept")
    );
    let old = call(&mut session, &["EVALSHA", &"e".repeat(40), "0"]);
    assert!(error(&old).starts_with("NOSCRIPT"), "{old:?}");
}

#[test]
fn many_cached_scripts_take_no_room_from_arguments() {
    let engine = Engine::new();
    let mut session = engine.session();
    for n in 0..9_000 {
        let script = format!("return {n}");
        call(&mut session, &["SCRIPT", "LOAD", &script]);
    }
    let script = "local t = {} for i = 1, 7900 do t[i] = 'm' .. i end \
                  return redis.call('SADD', 'k', unpack(t))";
    assert_eq!(call(&mut session, &["EVAL", script, "0"]), Reply::Int(7900));
}

const FUNCTION_KILL: &str =
    "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.";

#[test]
fn a_slow_function_is_told_of_and_ended_by_function_kill_only() {
    let engine = impatient();
    let mut session = engine.session();
    let code = "#!lua name=slow\nredis.register_function('spin', function() while true do end end)";
    call(&mut session, &["FUNCTION", "LOAD", code]);
    let (thread, mut other) = call_until_busy(&engine, &["FCALL", "spin", "1", "key", "arg"]);
    for command in [
        &["GET", "k"][..],
        &["SCRIPT", "KILL"],
        &["FUNCTION", "LIST"],
    ] {
        assert_eq!(error(&call(&mut other, command)), FUNCTION_KILL);
    }
    let Reply::Array(stats) = call(&mut other, &["FUNCTION", "STATS"]) else {
        panic!("no statistics");
    };
    let Reply::Array(running) = &stats[1] else {
        panic!("{stats:?}");
    };
    let command = ["FCALL", "spin", "1", "key", "arg"].map(Reply::bulk);
    assert_eq!(running[..2], ["name", "spin"].map(Reply::bulk));
    assert_eq!(running[3], Reply::Array(command.to_vec()));
    assert!(matches!(running[5], Reply::Int(20..)), "{running:?}");
    assert_eq!(call(&mut other, &["FUNCTION", "KILL"]), Reply::OK);
    let reply = thread.join().unwrap();
    let killed = "ERR Script killed by user with SCRIPT KILL... script: spin, on @user_function:2.";
    assert_eq!(error(&reply), killed);
    let reply = call(&mut other, &["FUNCTION", "KILL"]);
    assert!(error(&reply).starts_with("NOTBUSY "), "{reply:?}");
    // A script is none of its business.
    let (thread, mut other) = run_until_busy(&engine, "while true do end");
    for command in [["FUNCTION", "KILL"], ["FUNCTION", "STATS"]] {
        let reply = call(&mut other, &command);
        assert!(error(&reply).contains("call SCRIPT KILL"), "{reply:?}");
    }
    assert_eq!(call(&mut other, &["SCRIPT", "KILL"]), Reply::OK);
    thread.join().unwrap();
}

#[test]
fn a_function_that_wrote_cannot_be_killed() {
    let code = "#!lua name=slow\nredis.register_function('spin', function(keys) \
                redis.call('SET', keys[1], 1) while true do end end)";
    kill_what_wrote(
        Some(code),
        &["FCALL", "spin", "1", "k"],
        &["FUNCTION", "KILL"],
    );
}

#[test]
fn all_libraries_of_a_restored_payload_share_the_time() {
    let (donor, engine) = (Engine::new(), Engine::new());
    let mut session = donor.session();
    // One takes some milliseconds at least, all of them together more than is allowed.
    for n in 0..100 {
        let code = format!(
            "#!lua name=l{n}\nfor i = 1, 5000000 do end redis.register_function('f{n}', function() end)"
        );
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let reply = call(&mut session, &["FUNCTION", "LOAD", &code]);
            if !reply.is_error() {
                break;
            }
            // On a busy machine even one may take too long.
            assert!(Instant::now() < deadline, "{reply:?}");
        }
    }
    let Reply::Bulk(payload) = call(&mut session, &["FUNCTION", "DUMP"]) else {
        panic!("no payload");
    };
    let mut other = engine.session();
    let restore = [Bytes::from("FUNCTION"), Bytes::from("RESTORE"), payload];
    let reply = other.execute(&restore).into_reply().unwrap();
    assert!(error(&reply).contains("timeout"), "{reply:?}");
    assert_eq!(
        call(&mut other, &["FUNCTION", "LIST"]),
        Reply::Array(Vec::new())
    );
}

#[test]
fn the_code_of_a_library_ends_after_its_time_and_within_its_memory() {
    let engine = Engine::builder().script_memory(32 << 20).build().unwrap();
    let mut session = engine.session();
    let kept = "#!lua name=kept\nredis.register_function('kept', function() return 7 end)";
    call(&mut session, &["FUNCTION", "LOAD", kept]);
    for code in [
        "while true do end",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} while true do t[#t + 1] = {} end",
        "redis.register_function('half', function() end) while true do end",
    ] {
        let code = format!("#!lua name=greedy\n{code}");
        let reply = call(&mut session, &["FUNCTION", "LOAD", &code]);
        assert!(reply.is_error(), "{code}: {reply:?}");
        assert_eq!(call(&mut session, &["FCALL", "kept", "0"]), Reply::Int(7));
        let reply = call(&mut session, &["FCALL", "half", "0"]);
        assert_eq!(error(&reply), "ERR Function not found");
    }
}

#[test]
fn a_script_that_may_not_write_to_a_replica_can_be_killed() {
    let engine = impatient();
    engine
        .follow(redstart_engine::Master::new("127.0.0.1", 1))
        .unwrap();
    let script = "while true do redis.pcall('set', 'k', 'v') end";
    let (thread, mut other) = run_until_busy(&engine, script);
    assert_eq!(call(&mut other, &["SCRIPT", "KILL"]), Reply::OK);
    let reply = thread.join().unwrap();
    assert!(error(&reply).contains("killed"), "{reply:?}");
    let reply = call(
        &mut other,
        &["EVAL", "return redis.call('set', 'k', 'v')", "0"],
    );
    assert!(error(&reply).starts_with("READONLY "), "{reply:?}");
}

fn payload_of(codes: &[&str]) -> Bytes {
    let mut session = Engine::new().session();
    for code in codes {
        let reply = call(&mut session, &["FUNCTION", "LOAD", code]);
        assert!(!reply.is_error(), "{reply:?}");
    }
    match call(&mut session, &["FUNCTION", "DUMP"]) {
        Reply::Bulk(payload) => payload,
        other => panic!("no payload: {other:?}"),
    }
}

fn restore_functions(session: &mut Session, payload: Bytes, policy: &'static str) -> Reply {
    let words = ["FUNCTION", "RESTORE"].map(Bytes::from);
    let args = [&words[..], &[payload, Bytes::from(policy)]].concat();
    session.execute(&args).into_reply().unwrap()
}

#[test]
fn a_function_can_move_to_another_library_of_a_restored_payload() {
    let library = |name: &str, function: &str, answer: &str| {
        format!(
            "#!lua name={name}\nredis.register_function('{function}', function() return '{answer}' end)"
        )
    };
    let mut session = Engine::new().session();
    for code in [library("a", "f", "old f"), library("b", "g", "old g")] {
        assert!(!call(&mut session, &["FUNCTION", "LOAD", &code]).is_error());
    }
    let payload = payload_of(&[&library("a", "g", "new g"), &library("b", "f", "new f")]);
    assert_eq!(
        restore_functions(&mut session, payload, "REPLACE"),
        Reply::OK
    );
    for (function, answer) in [("f", "new f"), ("g", "new g")] {
        let reply = call(&mut session, &["FCALL", function, "0"]);
        assert_eq!(reply, Reply::bulk(answer), "{function}");
    }
}

#[test]
fn libraries_that_unpack_to_more_than_a_string_may_have_are_refused() {
    // Each of them is short enough, and packed they are all together.
    let codes: Vec<String> = (0..8)
        .map(|n| {
            let padding = "x".repeat(300_000);
            format!("#!lua name=l{n}\nredis.register_function('f{n}', function() end) --{padding}")
        })
        .collect();
    let codes: Vec<&str> = codes.iter().map(String::as_str).collect();
    let payload = payload_of(&codes);
    assert!(payload.len() < 1 << 20, "{} bytes", payload.len());
    let mut session = Engine::new().session();
    call(
        &mut session,
        &["CONFIG", "SET", "proto-max-bulk-len", "1mb"],
    );
    let reply = restore_functions(&mut session, payload.clone(), "APPEND");
    assert_eq!(error(&reply), "ERR Failed loading library data");
    call(
        &mut session,
        &["CONFIG", "SET", "proto-max-bulk-len", "4mb"],
    );
    assert_eq!(
        restore_functions(&mut session, payload, "APPEND"),
        Reply::OK
    );
}
