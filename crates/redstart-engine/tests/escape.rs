//! Attempts to get out of the sandbox: no script may leave anything behind for the next one.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use redstart_engine::{Engine, Reply, Session};

fn eval(session: &mut Session, script: &str) -> Reply {
    let args = ["EVAL", script, "0"].map(|word| Bytes::copy_from_slice(word.as_bytes()));
    session.execute(&args).into_reply().unwrap()
}

/// All that a script can reach: each table's contents by name, fronts and the tables behind them.
const SURVEY: &str = r#"
    local seen, lines = {}, {}
    local function visit(name, value)
        if type(value) ~= 'table' or seen[value] then return end
        seen[value] = true
        for key, item in pairs(value) do
            local path = name .. '.' .. tostring(key)
            if path ~= '_G.KEYS' and path ~= '_G.ARGV' then
                lines[#lines + 1] = path .. '=' .. type(item)
                visit(path, item)
            end
        end
        lines[#lines + 1] = name .. '#' .. #value
        local i, item = 1, rawget(value, 1)
        if item ~= nil then lines[#lines + 1] = name .. '[1]' end
        visit(name .. '<meta>', getmetatable(value))
    end
    visit('_G', _G)
    visit('string', getmetatable(''))
    table.sort(lines)
    return lines
"#;

/// What works for a client of a whole engine.
const HEALTH: &str = "return {redis.call('SET', 'k', 'v').ok, redis.call('GET', 'k'), \
    ('x'):rep(2), string.format('%d', 3), table.concat({1, 2}, ','), cjson.encode({1}), \
    tostring(cjson.decode('{\"a\":2}').a), bit.tohex(255), struct.unpack('B', struct.pack('B', 7)), \
    cmsgpack.unpack(cmsgpack.pack('m')), math.floor(2.5), tostring(#KEYS), tostring(pcall(error)), \
    tostring(select('#', unpack({1, 2}))), tostring(next({})), redis.sha1hex('')}";

/// Each gets a table that it must not be able to change. `T` is replaced by its name.
const WRITES: &[&str] = &[
    "T.evil = 1",
    "T[1] = 1",
    "rawset(T, 'evil', 1)",
    "rawset(T, 1, 1)",
    "setmetatable(T, {})",
    "setmetatable(T, nil)",
    "table.insert(T, 'evil')",
    "table.insert(T, 1, 'evil')",
    "table.remove(T)",
    "table.sort(T)",
    "table.setn(T, 1)",
    "getmetatable(T).__index = function() return 'evil' end",
    "getmetatable(T).__newindex = nil",
    "getmetatable(T).__metatable = nil",
    "rawset(getmetatable(T), '__index', nil)",
    "rawset(getmetatable(T), 'evil', 1)",
    "table.insert(getmetatable(T), 'evil')",
    "setmetatable(getmetatable(T), {})",
    "setmetatable(getmetatable(T), nil)",
    "getmetatable(getmetatable(T)).evil = 1",
    "local _, t = pairs(T) t.evil = 1",
    "local _, t = pairs(T) rawset(t, 'evil', 1)",
    "local f, t = pairs(T) local k = f(t) t[k] = nil",
    "for k in pairs(T) do T[k] = nil end error('done')",
    "for k in pairs(T) do rawset(T, k, 'evil') end error('done')",
    "local f = pairs({}) for k in f, T do T[k] = 1 end error('done')",
    "local _, t = ipairs(T) t.evil = 1",
    "local _, t = ipairs(T) table.insert(t, 1)",
    "for k in next, T do T[k] = nil end error('done')",
    "coroutine.wrap(function() rawset(T, 'evil', 1) end)()",
    "local c = coroutine.create(function() T.evil = 1 end) error(select(2, coroutine.resume(c)))",
    "loadstring('T.evil = 1')()",
    "load(function() local s = _s; return nil end) T.evil = 1",
    "table.foreach(T, function(k) T[k] = nil end) error('done')",
    "table.foreachi(T, function(k) T[k] = nil end) error('done')",
];

/// Tricks that are not about one table.
const TRICKS: &[&str] = &[
    // Redis's own tests of its sandbox.
    "a = 10",
    "setmetatable(_G, {})",
    "local g = getmetatable(_G) g.__index = {a = 1}",
    "getmetatable(_G.__index)",
    "redis = function() return 1 end",
    "redis.call = function() return 1 end",
    "cjson.encode = function() return 1 end",
    "cmsgpack.pack = function() return 1 end",
    "bit.lshift = function() return 1 end",
    "struct.pack = nil",
    "getmetatable(redis.call).__index = function() return 1 end",
    "getmetatable(cmsgpack).__index = function() return 1 end",
    "print(1)",
    "dofile('/etc/passwd')",
    "loadfile('/etc/passwd')",
    "require('os')",
    "os.execute('true')",
    "io.open('/etc/passwd')",
    "package.loadlib('x', '*')",
    "debug.getinfo(1)",
    "debug.sethook()",
    "debug.getregistry()",
    "newproxy(true)",
    "setfenv(1, {})",
    "getfenv(1)",
    "module('x')",
    // Published escapes: bytecode, the string metatable, environments, error objects.
    "loadstring(string.dump(function() return 1 end))()",
    "load(string.dump(function() return 1 end))()",
    "getmetatable('').__index = _G",
    "getmetatable('').__index.rep = nil",
    "rawset(getmetatable(''), '__index', nil)",
    "string.gsub('x', '.', function() rawset(string, 'rep', nil) end)",
    "table.sort({3, 2, 1}, function(a, b) rawset(table, 'sort', nil) return a < b end)",
    "xpcall(function() error() end, function() rawset(redis, 'call', nil) end) error('done')",
    "local ok, e = pcall(redis.call, 'NOSUCH') getmetatable(e).__index = 1",
    "local ok, e = pcall(redis.call) rawset(getmetatable(e), 'x', 1)",
    "local e = select(2, pcall(cjson.decode, '{')) getmetatable(e).__index.rep = nil",
    "local c = cjson.new() c.encode = nil cjson.encode = c.encode",
    "rawset(KEYS, 1, 'x') _G.KEYS = KEYS",
    "coroutine.wrap(function() leak = coroutine.running() end)()",
    "coroutine.yield()",
    "redis.setresp(3) error('done')",
    "math.randomseed(7) math.random = nil",
    "collectgarbage('stop') error('done')",
    "collectgarbage('setpause', 1000000) error('done')",
    "cjson.encode_max_depth(1) cjson.decode_max_depth(1) error('done')",
    "cjson.encode_number_precision(1) cjson.encode_sparse_array(true, 0, 0) error('done')",
];

#[test]
fn no_script_changes_what_the_next_one_finds() {
    let engine = Engine::new();
    let mut session = engine.session();
    let (survey, health) = (eval(&mut session, SURVEY), eval(&mut session, HEALTH));
    assert!(
        !survey.is_error() && !health.is_error(),
        "{survey:?} {health:?}"
    );
    let tables = [
        "_G",
        "redis",
        "string",
        "table",
        "math",
        "coroutine",
        "os",
        "cjson",
        "cmsgpack",
        "struct",
        "bit",
        "_G.string",
        "getmetatable('')",
        "getmetatable(redis)",
    ];
    let mut attempts: Vec<String> = TRICKS.iter().map(|&trick| trick.into()).collect();
    for table in tables {
        for write in WRITES {
            attempts.push(write.replace('T', table));
            let caught = write.replace('T', table);
            attempts.push(format!("pcall(function() {caught} end) error('caught')"));
        }
    }
    for attempt in attempts {
        let reply = eval(&mut session, &attempt);
        assert!(reply.is_error(), "{attempt}: {reply:?}");
        assert_eq!(eval(&mut session, HEALTH), health, "after {attempt}");
        assert_eq!(eval(&mut session, SURVEY), survey, "after {attempt}");
    }
}

#[test]
fn writes_to_a_library_are_refused_in_the_servers_words() {
    let engine = Engine::new();
    let mut session = engine.session();
    for script in [
        "return {pcall(function() table.insert(string, 1) end)}",
        "return {pcall(function() table.remove(redis) end)}",
        "return {pcall(function() table.sort(_G) end)}",
        "return {pcall(function() redis.call = 1 end)}",
    ] {
        let text = "user_script:1: Attempt to modify a readonly table";
        assert_eq!(
            eval(&mut session, script),
            Reply::Array(vec![Reply::Nil, Reply::bulk(text)]),
            "{script}"
        );
    }
    let script = "return {pcall(function() table.insert(nil, 1) end)}";
    let text = "user_script:1: bad argument #1 to 'insert' (table expected, got nil)";
    let expected = Reply::Array(vec![Reply::Nil, Reply::bulk(text)]);
    assert_eq!(eval(&mut session, script), expected);
}

#[test]
fn libraries_can_still_be_listed() {
    let engine = Engine::new();
    let mut session = engine.session();
    let script = "local n = 0 for k, v in pairs(redis) do assert(redis[k] == v) n = n + 1 end \
                  local m = 0 local k = next(redis) while k do m = m + 1 k = next(redis, k) end \
                  assert(n == m and n > 10) for k in pairs(_G) do n = n + 1 end return 'listed'";
    assert_eq!(eval(&mut session, script), Reply::bulk("listed"));
}

/// Lua has no limit of its own for these: without one of ours, each would end the whole process.
#[test]
fn no_script_breaks_the_interpreter() {
    let engine = Engine::new();
    let mut session = engine.session();
    let many = "too many results to unpack";
    let complex = "pattern too complex";
    for (script, error) in [
        ("return {unpack({1, 2}, 0, 2147483647)}", many),
        ("return {unpack({1, 2}, -2147483648, 2147483647)}", many),
        ("return {unpack({1, 2}, -2147483647)}", many),
        ("return {unpack({1, 2}, 4294967296, 2147483647)}", many),
        ("return {unpack({1, 2}, '0', '2147483647')}", many),
        ("return {unpack({1, 2}, 0/0, 2147483647)}", many),
        ("return {unpack({1, 2}, 1, 8001)}", many),
        (
            "local x = ('a'):rep(99999):find(('a?'):rep(99999))",
            complex,
        ),
        ("local x = string.match('b', ('a-'):rep(99999))", complex),
        ("local x = string.gmatch('b', ('a*'):rep(99999))", complex),
        ("local x = string.gsub('b', ('a+'):rep(99999), '')", complex),
        ("local x = string.find('b', ('('):rep(99999))", complex),
    ] {
        let Reply::Error(text) = eval(&mut session, script) else {
            panic!("{script} is carried out");
        };
        let text = format!("{text:?}");
        assert!(
            text.contains(&format!("user_script:1: {error}")),
            "{script}: {text}"
        );
    }
    for script in [
        "return #{unpack({}, 1, 7000)}",
        "return select('#', string.find('x', ('()'):rep(32)))",
        "return select('#', unpack({}, 5, 4))",
        "local t = {} for i = 1, 5000 do t[i] = i end return select('#', unpack(t))",
        "return ('a'):rep(99999):find(('a?'):rep(200))",
        "return ('+'):rep(99999):find(('+'):rep(99999), 1, true)",
        "for i = 1, 99 do assert(loadstring('return 1', i .. 'name\\0tail')) collectgarbage() end return 1",
    ] {
        let reply = eval(&mut session, script);
        assert!(!matches!(reply, Reply::Error(_)), "{script}: {reply:?}");
    }
}

/// What stands between a script and Lua's own functions is not seen in their errors.
#[test]
fn errors_of_guarded_functions_are_luas_own() {
    let engine = Engine::new();
    let mut session = engine.session();
    for (script, error) in [
        (
            "local x = string.find(nil, 'x')",
            "user_script:1: bad argument #1 to 'find' (string expected, got nil)",
        ),
        (
            "local x = string.find('x')",
            "user_script:1: bad argument #2 to 'find' (string expected, got no value)",
        ),
        (
            "local x = string.gsub('x', 'x', true)",
            "user_script:1: bad argument #3 to 'gsub' (string/function/table expected)",
        ),
        (
            "local x = string.match('x', '%')",
            "user_script:1: malformed pattern (ends with '%')",
        ),
        (
            "local x = unpack(nil)",
            "user_script:1: bad argument #1 to 'unpack' (table expected, got nil)",
        ),
        (
            "local x = unpack({}, {})",
            "user_script:1: bad argument #2 to 'unpack' (number expected, got table)",
        ),
        (
            "local x = string.gsub('x', 'x', function() error('mine') end)",
            "user_script:1: mine",
        ),
        (
            "local x = string.gsub('x', 'x', function() error('mine', 0) end)",
            "ERR mine",
        ),
    ] {
        let Reply::Error(text) = eval(&mut session, script) else {
            panic!("{script} is carried out");
        };
        let text = format!("{text:?}");
        assert!(
            text.contains(error) && text.matches("user_script:1: ").count() <= 1,
            "{script}: {text}"
        );
    }
    let kept = "local ok, e = pcall(string.gsub, 'x', 'x', function() error({ mine = 7 }) end) return e.mine";
    assert_eq!(eval(&mut session, kept), Reply::Int(7));
}
