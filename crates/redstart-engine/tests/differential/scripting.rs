//! Scripts.

use crate::compare;

#[test]
fn scripts_convert_values_alike() {
    compare(
        r##"
        EVAL "return 1" 0
        EVAL "return 3.99" 0
        EVAL "return -3.99" 0
        EVAL "return 1e300" 0
        EVAL "return 'text'" 0
        EVAL "return ''" 0
        EVAL "return nil" 0
        EVAL "return" 0
        EVAL "" 0
        EVAL "return true" 0
        EVAL "return false" 0
        EVAL "return {1,2,{3,'x'},nil,4}" 0
        EVAL "return {}" 0
        EVAL "return {true,false}" 0
        EVAL "return {ok='fine'}" 0
        EVAL "return {ok='a\nb'}" 0
        EVAL "return {err='My error'}" 0
        EVAL "return {err='single'}" 0
        EVAL "return {double=3.5}" 0
        EVAL "return {map={a=1}}" 0
        EVAL "return {set={a=true}}" 0
        EVAL "return {big_number='12345678901234567890'}" 0
        EVAL "return {verbatim_string={format='txt',string='hi'}}" 0
        EVAL "redis.setresp(3) return true" 0
        EVAL "redis.setresp(3) return false" 0
        EVAL "redis.setresp(3) return {false, true}" 0
        EVAL "return function() end" 0
        EVAL "return {KEYS, ARGV, #KEYS, #ARGV}" 2 a b c d e
        EVAL "return redis.call('SET', KEYS[1], ARGV[1])" 1 k v
        EVAL "return redis.call('GET', KEYS[1])" 1 k
        EVAL "return redis.call('GET', 'nothing')" 0
        EVAL "return redis.call('GET', 'nothing') == false" 0
        EVAL "return redis.call('SET', 'n', 3.5)" 0
        GET n
        EVAL "return redis.call('SET', 'n', 10000000000000000)" 0
        GET n
        EVAL "return redis.call('SET', 'n', 1e20)" 0
        GET n
        EVAL "return redis.call('SET', 'n', 0.1)" 0
        GET n
        EVAL "return redis.call('SET', 'n', -0.0)" 0
        GET n
        EVAL "return tostring(1/0) .. tostring(-1/0) .. tostring(2^53) .. tostring(1e15) .. tostring(0.1)" 0
        EVAL "redis.call('SET', 'i', 9007199254740993) return redis.call('INCR', 'i')" 0
        EVAL "return tostring(redis.call('SET', 'x', 1).ok)" 0
        "##,
    );
}

#[test]
fn script_errors_are_worded_alike() {
    compare(
        r##"
        EVAL "return redis.call('nosuch')" 0
        EVAL "return redis.call()" 0
        EVAL "return redis.pcall()" 0
        EVAL "return redis.call({})" 0
        EVAL "return redis.call('get', nil)" 0
        EVAL "return redis.call('get')" 0
        EVAL "return redis.pcall('get')" 0
        EVAL "\n\nreturn redis.call('get')" 0
        EVAL "local x = 1\nlocal function f()\n redis.call('get')\n end\nf()" 0
        EVAL "return redis.call('exec')" 0
        EVAL "return redis.pcall('exec')" 0
        EVAL "return redis.call('eval', 'return 1', 0)" 0
        SET s text
        EVAL "return redis.call('incr', 's')" 0
        EVAL "return redis.pcall('incr', 's')" 0
        EVAL "local r = redis.pcall('incr', 's') return r.err" 0
        EVAL "local ok, e = pcall(redis.call, 'incr', 's') return {ok, e, type(e)}" 0
        EVAL "local ok, e = pcall(redis.call, 'incr', 's') return redis.error_reply(e)" 0
        EVAL "local ok, e = pcall(error, {code=7}) return {type(e), e.code}" 0
        EVAL "local ok, e = pcall(error, {err='text'}) return {type(e), e}" 0
        EVAL "local ok, e = pcall(error) return {type(e)}" 0
        EVAL "local ok, e = xpcall(function() redis.call('incr', 's') end, function(e) return e.err .. '!' end) return {ok, e}" 0
        EVAL "local co = coroutine.create(function() redis.call('incr', 's') end) local ok, e = coroutine.resume(co) return {ok, e.err}" 0
        EVAL "return coroutine.wrap(function() return redis.call('get', 's') end)()" 0
        EVAL "x = 1" 0
        EVAL "return y" 0
        EVAL "return y.z" 0
        EVAL "y()" 0
        EVAL "KEYS = 1" 0
        EVAL "_G.KEYS = 1" 0
        EVAL "function f() end" 0
        EVAL "error('boom')" 0
        EVAL "error('boom', 0)" 0
        EVAL "error('boom', 2)" 0
        EVAL "error({err='My boom'})" 0
        EVAL "error()" 0
        EVAL "error(false)" 0
        EVAL "error(12)" 0
        EVAL "local t = nil; return t.x" 0
        EVAL "return 1 + {}" 0
        EVAL "return 'a' + 1" 0
        EVAL "return #5" 0
        EVAL "return {} < {}" 0
        EVAL "return KEYS[1] .. ARGV[1]" 1 a
        EVAL "local function f() return f() + 1 end return f()" 0
        EVAL "redis.call = 1" 0
        EVAL "redis.extra = 1" 0
        EVAL "string.rep = nil" 0
        EVAL "getmetatable('').__index = 1" 0
        EVAL "getmetatable(_G).x = 1" 0
        EVAL "return type(getmetatable(_G))" 0
        EVAL "rawset(_G, 'a', 1)" 0
        EVAL "rawset(redis, 'a', 1)" 0
        EVAL "setmetatable(_G, {})" 0
        EVAL "setmetatable(redis, {})" 0
        EVAL "if" 0
        EVAL "return 'abc" 0
        EVAL "return return" 0
        EVAL "return string.rep()" 0
        EVAL "local f = string.rep return f()" 0
        EVAL "return ('x'):rep()" 0
        EVAL "return ('x'):rep({})" 0
        EVAL "return tostring()" 0
        EVAL "return setmetatable(1, {})" 0
        EVAL "return setmetatable({}, 1)" 0
        EVAL "local t = setmetatable({}, {__metatable = 1}) setmetatable(t, nil)" 0
        EVAL "return rawset({}, 1)" 0
        EVAL "return rawset({}, 1, 5)[1]" 0
        EVAL "for k in pairs(nil) do end" 0
        EVAL "local x = next(5)" 0
        EVAL "for i in ipairs() do end" 0
        EVAL "return redis.error_reply('x y')" 0
        EVAL "return redis.error_reply('x')" 0
        EVAL "return redis.error_reply('-x y')" 0
        EVAL "return redis.error_reply()" 0
        EVAL "return redis.error_reply('a', 'b')" 0
        EVAL "return redis.error_reply(5)" 0
        EVAL "return redis.status_reply('fine')" 0
        EVAL "return redis.status_reply()" 0
        EVAL "return redis.status_reply({})" 0
        EVAL "return redis.sha1hex('')" 0
        EVAL "return redis.sha1hex('abc')" 0
        EVAL "return redis.sha1hex()" 0
        EVAL "return redis.sha1hex(1)" 0
        EVAL "redis.log()" 0
        EVAL "redis.log('a', 'b')" 0
        EVAL "redis.log(9, 'a')" 0
        EVAL "redis.log(redis.LOG_DEBUG, 'a', 1, 'b')" 0
        EVAL "redis.setresp(4)" 0
        EVAL "redis.setresp()" 0
        EVAL "redis.setresp('x')" 0
        EVAL "redis.set_repl()" 0
        EVAL "redis.set_repl(9)" 0
        EVAL "redis.set_repl(redis.REPL_ALL)" 0
        EVAL "return redis.breakpoint()" 0
        EVAL "return redis.replicate_commands()" 0
        EVAL "return {redis.REDIS_VERSION, redis.REDIS_VERSION_NUM, redis.LOG_WARNING, redis.REPL_SLAVE}" 0
        EVAL "return redis.acl_check_cmd('get', 'a')" 0
        EVAL "return redis.acl_check_cmd('nope', 'a')" 0
        EVAL "return dofile('x')" 0
        EVAL "return require('x')" 0
        EVAL "return io" 0
        EVAL "return print('x')" 0
        EVAL "return getfenv()" 0
        EVAL "return loadstring('return 1 + 1')()" 0
        EVAL "return {loadstring('return +')}" 0
        EVAL "return loadstring('return nosuch')()" 0
        EVAL "return load(function() return nil end)" 0
        EVAL "local t = {'return ', '7'} local i = 0 return load(function() i = i + 1 return t[i] end)()" 0
        "##,
    );
}

#[test]
fn script_library_functions_answer_alike() {
    compare(
        r##"
        EVAL "math.randomseed(0) return {tostring(math.random()), tostring(math.random()), math.random(100), math.random(5, 10), math.random(-10, 10)}" 0
        EVAL "return tostring(math.random())" 0
        EVAL "math.randomseed(42) return {tostring(math.random()), math.random(1000)}" 0
        EVAL "math.randomseed(-42) return {tostring(math.random()), math.random(1000)}" 0
        EVAL "return math.random(0)" 0
        EVAL "return math.random(5, 1)" 0
        EVAL "return math.random(1, 2, 3)" 0
        EVAL "return math.random({})" 0
        EVAL "local r = {} for k, v in pairs(redis) do r[#r + 1] = k .. type(v) end table.sort(r) return r" 0
        EVAL "local r = {} for k, v in pairs(string) do r[#r + 1] = k .. type(v) end table.sort(r) return r" 0
        EVAL "local r = {} for k, v in pairs(table) do r[#r + 1] = k .. type(v) end table.sort(r) return r" 0
        EVAL "local r = {} for k, v in pairs(math) do r[#r + 1] = k .. type(v) end table.sort(r) return r" 0
        EVAL "local r = {} for k, v in pairs(coroutine) do r[#r + 1] = k .. type(v) end table.sort(r) return r" 0
        EVAL "return next({a=1})" 0
        EVAL "return next({})" 0
        EVAL "return {rawget(redis, 'LOG_DEBUG'), rawget({5}, 1)}" 0
        EVAL "return _VERSION" 0
        EVAL "local t = setmetatable({}, {__index = function(t, k) return k .. '!' end}) return t.x" 0
        EVAL "local t = {3,1,2} table.sort(t, function(a, b) return a > b end) return t" 0
        EVAL "return {string.format('%d %5.2f %s %q', 3, 2.5, 'x', 'y'), ('abc'):upper(), ('a,b'):find(',')}" 0
        EVAL "return {select('#', 1, 2, 3), unpack({1, 2})}" 0
        EVAL "local s = 0 for i, v in ipairs({1,2,3}) do s = s + v end return s" 0
        "##,
    );
}

#[test]
fn scripts_are_kept_and_found_alike() {
    compare(
        r##"
        SCRIPT FLUSH
        EVALSHA a 0
        EVALSHA ffffffffffffffffffffffffffffffffffffffff 0
        EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
        SCRIPT LOAD "return 1"
        SCRIPT EXISTS e0e1f9fabfc9d4800c877a703b823ac0578ff8db x ffffffffffffffffffffffffffffffffffffffff
        EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
        EVALSHA E0E1F9FABFC9D4800C877A703B823AC0578FF8DB 0
        EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db x
        EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 1
        EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db -1
        EVALSHA_RO e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
        SCRIPT FLUSH ASYNC
        SCRIPT EXISTS e0e1f9fabfc9d4800c877a703b823ac0578ff8db
        SCRIPT FLUSH NOW
        SCRIPT FLUSH SYNC SYNC
        SCRIPT LOAD "return +"
        SCRIPT KILL
        SCRIPT NOSUCH
        SCRIPT
        SCRIPT LOAD
        SCRIPT EXISTS
        SCRIPT HELP
        SCRIPT DEBUG NO
        SCRIPT DEBUG PERHAPS
        EVAL "return 1"
        EVAL "return 1" x
        EVAL "return 1" 2 a
        EVAL "return 1" -1
        EVAL_RO "return redis.call('GET', KEYS[1])" 1 k
        EVAL_RO "return redis.call('SET', KEYS[1], 1)" 1 k
        EVAL_RO "return redis.pcall('SET', KEYS[1], 1)" 1 k
        EVAL "#!lua" 0
        EVAL "#!lua\nreturn 1" 0
        EVAL "#!lua flags=\nreturn 1" 0
        EVAL "#!lua flags=no-writes\nreturn redis.call('SET', KEYS[1], 1)" 1 k
        EVAL "#!lua flags=no-writes,allow-oom,allow-stale,no-cluster\nreturn redis.call('GET', KEYS[1])" 1 k
        EVAL "#!lua flags=nosuch\nreturn 1" 0
        EVAL "#!lua name=x\nreturn 1" 0
        EVAL "#!python\nreturn 1" 0
        EVAL_RO "#!lua\nreturn 1" 0
        EVAL_RO "#!lua flags=no-writes\nreturn 1" 0
        EVAL "#!lua flags=no-writes\n\nreturn nosuch" 0
        MULTI
        EVAL "return redis.call('SET', KEYS[1], ARGV[1])" 1 k v
        EVAL "return redis.call('GET', KEYS[1])" 1 k
        EVAL "return redis.call('GET')" 0
        EXEC
        "##,
    );
}
