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

#[test]
fn json_is_read_and_written_alike() {
    compare(
        r##"
        EVAL "return cjson.encode({1,2,3})" 0
        EVAL "return cjson.encode({})" 0
        EVAL "return cjson.encode({{}})" 0
        EVAL "return cjson.encode({a=1})" 0
        EVAL "return cjson.encode({a={b={c='d'}}})" 0
        EVAL "local t = {} for i = 1, 20 do t['k' .. i] = i end return cjson.encode(t)" 0
        EVAL "return cjson.encode({1,nil,3})" 0
        EVAL "return cjson.encode({[1]=1,[5]=5})" 0
        EVAL "return cjson.encode({[1]=1,[11]=5})" 0
        EVAL "return cjson.encode({[1]=1,[1000]=5})" 0
        EVAL "return cjson.encode({[0]=1})" 0
        EVAL "return cjson.encode({[-1]=1,[1.5]=2})" 0
        EVAL "return cjson.encode({1,2,a=3})" 0
        EVAL "return cjson.encode({[true]=1})" 0
        EVAL "return cjson.encode('a\"b\\\\c/d\x01\x7f\n\r\t\x08\x0c\xff\xc3\xa9')" 0
        EVAL "return cjson.encode(ARGV[1])" 0 "\x00\x1f \xe2\x82\xac"
        EVAL "return cjson.encode(nil)" 0
        EVAL "return cjson.encode(true)" 0
        EVAL "return cjson.encode(cjson.null)" 0
        EVAL "return cjson.encode({cjson.null, false})" 0
        EVAL "return cjson.encode(function() end)" 0
        EVAL "return cjson.encode({print=redis.call})" 0
        EVAL "return cjson.encode()" 0
        EVAL "return cjson.encode(1, 2)" 0
        EVAL "return cjson.encode(1/0)" 0
        EVAL "return cjson.encode(0/0)" 0
        EVAL "return cjson.encode({1, 1.5, 0.1, -0.0, 1e15, 1e14, 99999999999999, 123456789012345, 1e100, 1e-5, 2^53, -7, 3.14159265358979})" 0
        EVAL "local t = {} for i = 1, 1000 do t = {t} end return cjson.encode(t)" 0
        EVAL "local t = {} for i = 1, 999 do t = {t} end return #cjson.encode(t)" 0
        EVAL "local t = {} t[1] = t return cjson.encode(t)" 0
        EVAL "return cjson.encode(redis.pcall('nosuch'))" 0
        EVAL "return cjson.encode(cjson.decode(ARGV[1]))" 0 "{\"a\":[1,2,{\"b\":null}],\"c\":\"\\u00e9\\ud83d\\ude00\\n\",\"d\":true,\"e\":-1.5e3}"
        EVAL "return cjson.decode(ARGV[1])" 0 "[1,2,3]"
        EVAL "return cjson.decode(ARGV[1])" 0 "[1,null,3]"
        EVAL "return cjson.decode(ARGV[1]) == cjson.null" 0 "null"
        EVAL "return tostring(cjson.null)" 0
        EVAL "return type(cjson.null)" 0
        EVAL "return cjson.decode(ARGV[1])" 0 "\"text\""
        EVAL "return cjson.decode(ARGV[1])" 0 " 5 "
        EVAL "return tostring(cjson.decode(ARGV[1]))" 0 "0x10"
        EVAL "return tostring(cjson.decode(ARGV[1]))" 0 "Infinity"
        EVAL "return tostring(cjson.decode(ARGV[1]))" 0 "-inf"
        EVAL "return tostring(cjson.decode(ARGV[1]))" 0 "nan"
        EVAL "return tostring(cjson.decode(ARGV[1]))" 0 "+5"
        EVAL "return tostring(cjson.decode(ARGV[1]))" 0 "007"
        EVAL "return tostring(cjson.decode(ARGV[1]))" 0 "1e999"
        EVAL "return tostring(cjson.decode(ARGV[1]))" 0 "1.e3"
        EVAL "return tostring(cjson.decode(ARGV[1]))" 0 "12345678901234567890"
        EVAL "return cjson.decode(ARGV[1])" 0 ""
        EVAL "return cjson.decode(ARGV[1])" 0 "{"
        EVAL "return cjson.decode(ARGV[1])" 0 "[1,2"
        EVAL "return cjson.decode(ARGV[1])" 0 "[1 2]"
        EVAL "return cjson.decode(ARGV[1])" 0 "[1,]"
        EVAL "return cjson.decode(ARGV[1])" 0 "{\"a\" 1}"
        EVAL "return cjson.decode(ARGV[1])" 0 "{\"a\":1 \"b\"}"
        EVAL "return cjson.decode(ARGV[1])" 0 "{a:1}"
        EVAL "return cjson.decode(ARGV[1])" 0 "{\"a\":}"
        EVAL "return cjson.decode(ARGV[1])" 0 "[1] x"
        EVAL "return cjson.decode(ARGV[1])" 0 "[1] 2"
        EVAL "return cjson.decode(ARGV[1])" 0 "tru"
        EVAL "return cjson.decode(ARGV[1])" 0 "'a'"
        EVAL "return cjson.decode(ARGV[1])" 0 "\"abc"
        EVAL "return cjson.decode(ARGV[1])" 0 "\"a\\qb\""
        EVAL "return cjson.decode(ARGV[1])" 0 "\"a\\u12g4\""
        EVAL "return cjson.decode(ARGV[1])" 0 "\"\\ud800x\""
        EVAL "return cjson.decode(ARGV[1])" 0 "-"
        EVAL "return cjson.decode(ARGV[1])" 0 "\x00a"
        EVAL "return cjson.decode(ARGV[1])" 0 "\"a\x01b\""
        EVAL "return cjson.decode()" 0
        EVAL "return cjson.decode({})" 0
        EVAL "return cjson.decode(5)" 0
        EVAL "return cjson.decode(string.rep('[', 1001) .. string.rep(']', 1001))" 0
        EVAL "return #cjson.encode(cjson.decode(string.rep('[', 1000) .. string.rep(']', 1000)))" 0
        EVAL "local c = cjson.new() c.encode_sparse_array(true) return c.encode({[1]=1,[1000]=2})" 0
        EVAL "local c = cjson.new() return {c.encode_sparse_array(), c.encode_max_depth(), c.decode_max_depth(), c.encode_number_precision(), c.encode_keep_buffer(), c.encode_invalid_numbers(), c.decode_invalid_numbers()}" 0
        EVAL "local c = cjson.new() c.encode_number_precision(3) return c.encode(3.14159)" 0
        EVAL "local c = cjson.new() c.encode_number_precision(15)" 0
        EVAL "local c = cjson.new() c.encode_max_depth(2) return c.encode({{{1}}})" 0
        EVAL "local c = cjson.new() c.encode_invalid_numbers('null') return c.encode({1/0, 0/0})" 0
        EVAL "local c = cjson.new() c.encode_invalid_numbers(true) return c.encode({1/0, -1/0, 0/0})" 0
        EVAL "local c = cjson.new() c.decode_invalid_numbers(false) return c.decode('0x10')" 0
        EVAL "local c = cjson.new() c.encode_max_depth(1, 2)" 0
        EVAL "return {cjson._NAME, cjson._VERSION}" 0
        EVAL "cjson.encode = nil" 0
        EVAL "local r = {} for k, v in pairs(cjson) do r[#r + 1] = k .. type(v) end table.sort(r) return r" 0
        "##,
    );
}

#[test]
fn binary_formats_and_bits_are_alike() {
    compare(
        r##"
        EVAL "return cmsgpack.pack(1, -1, 127, 128, 255, 256, 65535, 65536, 4294967295, 4294967296, 2^53)" 0
        EVAL "return cmsgpack.pack(-32, -33, -128, -129, -32768, -32769, -2147483648, -2147483649, -2^53)" 0
        EVAL "return cmsgpack.pack(1.5, 0.1, 1e300, 1/0, -0.0)" 0
        EVAL "return cmsgpack.pack('', 'a', string.rep('x', 31), string.rep('x', 32), string.rep('x', 256))" 0
        EVAL "return #cmsgpack.pack(string.rep('x', 70000))" 0
        EVAL "return cmsgpack.pack(nil, true, false, {}, {1,2,3}, {a=1}, {1,nil,3}, {{{}}})" 0
        EVAL "local t = {} for i = 1, 20 do t[i] = i end return cmsgpack.pack(t)" 0
        EVAL "local t = {} for i = 1, 20 do t['k' .. i] = i end return cmsgpack.pack(t)" 0
        EVAL "local t = {} for i = 1, 20 do t = {t} end return cmsgpack.pack(t)" 0
        EVAL "return cmsgpack.pack(redis.call)" 0
        EVAL "return cmsgpack.pack()" 0
        EVAL "return {cmsgpack.unpack(cmsgpack.pack(1, -1, 300, -300, 70000, -70000, 'x', true, 1.5, {1,{2}}, 2^40, -2^40))}" 0
        EVAL "return cmsgpack.unpack(cmsgpack.pack({a={b='c'}})).a.b" 0
        EVAL "return {cmsgpack.unpack_one(cmsgpack.pack(1, 2, 3))}" 0
        EVAL "return {cmsgpack.unpack_one(cmsgpack.pack(1, 2, 3), 2)}" 0
        EVAL "return {cmsgpack.unpack_limit(cmsgpack.pack(1, 2, 3), 2)}" 0
        EVAL "return {cmsgpack.unpack_limit(cmsgpack.pack(1, 2, 3), 2, 1)}" 0
        EVAL "return cmsgpack.unpack_limit(cmsgpack.pack(1, 2, 3), -1)" 0
        EVAL "return cmsgpack.unpack_one(cmsgpack.pack(1, 2, 3), 9)" 0
        EVAL "return cmsgpack.unpack(ARGV[1])" 0 "\x92\x01"
        EVAL "return cmsgpack.unpack(ARGV[1])" 0 "\xc1"
        EVAL "return cmsgpack.unpack(ARGV[1])" 0 "\xd9"
        EVAL "return cmsgpack.unpack(ARGV[1])" 0 "\xd4\x01\x01"
        EVAL "return cmsgpack.unpack(ARGV[1])" 0 "\xc4\x02ab"
        EVAL "return tostring(cmsgpack.unpack(ARGV[1]))" 0 "\xcf\xff\xff\xff\xff\xff\xff\xff\xff"
        EVAL "return cmsgpack.unpack(ARGV[1])" 0 ""
        EVAL "return cmsgpack.unpack()" 0
        EVAL "return cmsgpack.unpack({})" 0
        EVAL "return struct.pack('>I2', 258)" 0
        EVAL "return struct.pack('<I2hHlLbBi', 258, -2, 65535, -3, 4, -5, 250, -1)" 0
        EVAL "return struct.pack('>bhil', 1, 2, 3, 4)" 0
        EVAL "return struct.pack('!bhil', 1, 2, 3, 4)" 0
        EVAL "return struct.pack('!4 bhil x d f', 1, 2, 3, 4, 1.5, 2.5)" 0
        EVAL "return struct.pack('>df', 1.5, 2.5)" 0
        EVAL "return struct.pack('sc0c3', 'abc', 'def', 'ghijk')" 0
        EVAL "return struct.pack('c5', 'abc')" 0
        EVAL "return struct.pack('i3i7i8', 1, -1, -2)" 0
        EVAL "return struct.pack('i33', 1)" 0
        EVAL "return struct.pack('i99999999999', 1)" 0
        EVAL "return struct.pack('y', 1)" 0
        EVAL "return struct.pack('!3i', 1)" 0
        EVAL "return struct.pack('i')" 0
        EVAL "return struct.pack('i', 'x')" 0
        EVAL "return struct.pack('s', {})" 0
        EVAL "return {struct.unpack('<I2hbB', struct.pack('<I2hbB', 65535, -2, -5, 250))}" 0
        EVAL "return {struct.unpack('>I2hi3', struct.pack('>I2hi3', 258, -2, -70000))}" 0
        EVAL "local a, b, n = struct.unpack('df', struct.pack('df', 1.5, 2.5)) return {tostring(a), tostring(b), n}" 0
        EVAL "return {struct.unpack('sBc0', struct.pack('sBc0', 'abc', 3, 'xyz'))}" 0
        EVAL "return {struct.unpack('c3', 'abcdef', 3)}" 0
        EVAL "return {struct.unpack('c3', 'abcdef', 5)}" 0
        EVAL "return {struct.unpack('c3', 'abcdef', 0)}" 0
        EVAL "return {struct.unpack('c0', 'abcdef')}" 0
        EVAL "return {struct.unpack('s', 'abcdef')}" 0
        EVAL "return {struct.unpack('i4', 'abc')}" 0
        EVAL "return {struct.unpack('!4bi', struct.pack('!4bi', 1, 2))}" 0
        EVAL "return struct.size('!4bhil')" 0
        EVAL "return struct.size('bhilc5x')" 0
        EVAL "return struct.size('s')" 0
        EVAL "return struct.size('c0')" 0
        EVAL "return struct.size('?')" 0
        EVAL "return {bit.band(255, 15), bit.bor(1, 2, 4), bit.bxor(7, 2), bit.bnot(0), bit.tobit(2^32 + 5), bit.tobit(2^31)}" 0
        EVAL "return {bit.lshift(1, 31), bit.rshift(-1, 28), bit.arshift(-16, 2), bit.rol(1, 33), bit.ror(1, 1), bit.bswap(1), bit.lshift(1, 32)}" 0
        EVAL "return {bit.tohex(255), bit.tohex(-1), bit.tohex(255, 2), bit.tohex(255, -4), bit.tohex(255, 0), bit.tohex(255, 100)}" 0
        EVAL "return bit.band()" 0
        EVAL "return bit.band('x')" 0
        EVAL "return bit.band('12', 4)" 0
        EVAL "return {bit.tobit(1.5), bit.tobit(2.5), bit.tobit(-1.5), bit.tobit(1e15)}" 0
        EVAL "local r = {} for k, v in pairs(bit) do r[#r + 1] = k end for k, v in pairs(struct) do r[#r + 1] = k end for k, v in pairs(cmsgpack) do r[#r + 1] = k .. tostring(type(v) == 'string' and v) end table.sort(r) return r" 0
        "##,
    );
}

#[test]
fn replies_of_every_type_reach_scripts_alike() {
    compare(
        r##"
        HSET h a 1 b 2
        SADD s x
        ZADD z 1.5 m 2 n
        RPUSH l a b c
        XADD x 1-1 f v
        EVAL "return redis.call('HGETALL', 'h')" 0
        EVAL "redis.setresp(3) return redis.call('HGETALL', 'h')" 0
        EVAL "redis.setresp(3) return redis.call('HGETALL', 'h').map.a" 0
        EVAL "redis.setresp(3) return redis.call('HGETALL', 'nothing')" 0
        EVAL "redis.setresp(3) return redis.call('SMEMBERS', 's')" 0
        EVAL "redis.setresp(3) return cjson.encode(redis.call('SMEMBERS', 's'))" 0
        EVAL "redis.setresp(3) return redis.call('ZSCORE', 'z', 'm')" 0
        EVAL "redis.setresp(3) return cjson.encode(redis.call('ZSCORE', 'z', 'm'))" 0
        EVAL "redis.setresp(3) return cjson.encode(redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES'))" 0
        EVAL "return cjson.encode(redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES'))" 0
        EVAL "redis.setresp(3) return redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')" 0
        EVAL "redis.setresp(3) return type(redis.call('GET', 'nothing'))" 0
        EVAL "return type(redis.call('GET', 'nothing'))" 0
        EVAL "redis.setresp(3) return redis.call('GET', 'nothing')" 0
        EVAL "redis.setresp(3) return redis.call('LPOP', 'nothing', 1)" 0
        EVAL "redis.setresp(3) return {redis.call('GET', 'nothing'), 1}" 0
        EVAL "redis.setresp(3) local v = redis.call('MGET', 'nothing', 'nothing') return {#v, type(v[1])}" 0
        EVAL "return redis.call('XRANGE', 'x', '-', '+')" 0
        EVAL "redis.setresp(3) return redis.call('XREAD', 'STREAMS', 'x', 0)" 0
        EVAL "return redis.call('LRANGE', 'l', 0, -1)" 0
        EVAL "return redis.call('BLPOP', 'nothing', 0)" 0
        EVAL "return redis.call('BLPOP', 'l', 0)" 0
        EVAL "return redis.call('BRPOPLPUSH', 'nothing', 'l', 0)" 0
        EVAL "return redis.call('XREAD', 'BLOCK', 0, 'STREAMS', 'nothing', '$')" 0
        EVAL "return redis.call('WAIT', 0, 0)" 0
        EVAL "redis.call('SELECT', 3) redis.call('SET', 'there', 1) return 1" 0
        GET there
        SELECT 3
        GET there
        SELECT 0
        EVAL "redis.call('SET', 'k', 1, 'PX', 1) local t = redis.call('TIME')[2] for i = 1, 3000000 do end return redis.call('EXISTS', 'k')" 0
        EVAL "return redis.call('MULTI')" 0
        EVAL "return redis.call('WATCH', 'a')" 0
        EVAL "return redis.call('AUTH', 'a')" 0
        EVAL "return redis.call('CLIENT', 'ID')" 0
        EVAL "return redis.call('CLIENT', 'NOSUCH')" 0
        EVAL "return redis.call('SCRIPT', 'LOAD', 'return 1')" 0
        EVAL "return redis.call('HELLO', '3')" 0
        EVAL "return redis.call('PUBLISH', 'c', 'm')" 0
        EVAL "return redis.call('SPUBLISH', 'c', 'm')" 0
        EVAL "return redis.call('PING')" 0
        EVAL "return redis.call('ECHO', 'x')" 0
        EVAL "return redis.call('OBJECT', 'ENCODING', 'h')" 0
        EVAL "return redis.call('OBJECT')" 0
        EVAL "return redis.call('OBJECT', 'ENCODING')" 0
        EVAL "return redis.call('SORT', 'l', 'ALPHA', 'DESC')" 0
        EVAL "return redis.call('LRANGE', 's', 0, 1)" 0
        EVAL "local r = {} for i = 1, 300 do r[i] = i end return r" 0
        EVAL "local r = {} for i = 1, 70 do r[#r + 1] = {i, 'x'} end return r" 0
        EVAL "return {1, 2, 3, a = 5}" 0
        EVAL "return {1, 2, ok = 'x'}" 0
        EVAL "return {1, 2, err = 'x'}" 0
        EVAL "local t = {1, 2, 3} t[2] = nil return t" 0
        EVAL "local t = {1, 2, 3} t[3] = nil return t" 0
        EVAL "return setmetatable({}, {__index = function(t, k) if k == 1 then return 5 end end})" 0
        EVAL "return {{}, {{}}, {ok = 'a'}, {err = 'E b'}}" 0
        SADD unsorted c b a 10 9
        EVAL "return redis.call('SORT', 'unsorted', 'BY', 'nosort')" 0
        EVAL "return redis.call('SORT', 'unsorted', 'BY', 'nosort', 'DESC', 'LIMIT', 1, 2)" 0
        EVAL "return redis.call('SORT_RO', 'unsorted', 'BY', 'nosort', 'GET', '#')" 0
        SCRIPT LOAD "return 1"
        SCRIPT FLUSH ASYNC
        EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
        EVAL "return 1" 0
        EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
        SCRIPT FLUSH sync
        EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
        SCRIPT FLUSH x
        SCRIPT FLUSH ASYNC x
        "##,
    );
}

#[test]
fn a_field_that_names_a_reply_counts_beside_the_items_of_a_list() {
    compare(
        r##"
        EVAL "local t = {err='boom',key=1,value=2} t[1]='a' return t" 0
        EVAL "local t = {ok='fine',key=1,msg=2} t[1]='a' return t" 0
        EVAL "local t = {map={a=1},key=1,msg=2} t[1]='a' return t" 0
        EVAL "local t = {double=1.5,key=1,msg=2} t[1]='a' return t" 0
        EVAL "local t = {1,2,3,4} t.err='boom' t[5]='a' return t" 0
        EVAL "return {'a', 'b', ok='fine'}" 0
        EVAL "return {'a', {'b', {err='inner', 'c'}}}" 0
        EVAL "return {'a', 'b', other='fine'}" 0
        "##,
    );
}

#[test]
fn of_several_fields_that_name_a_reply_the_same_one_counts() {
    compare(
        r##"
        EVAL "return {err='e',ok='o',double=1.5,map={a=1},set={a=true},big_number='12',verbatim_string={format='txt',string='v'}}" 0
        EVAL "return {ok='o',double=1.5,map={a=1},set={a=true},big_number='12',verbatim_string={format='txt',string='v'}}" 0
        EVAL "return {double=1.5,map={a=1},set={a=true},big_number='12',verbatim_string={format='txt',string='v'}}" 0
        EVAL "return {map={a=1},set={b=true},big_number='12',verbatim_string={format='txt',string='v'}}" 0
        EVAL "return {set={b=true},big_number='12',verbatim_string={format='txt',string='v'}}" 0
        EVAL "return {set={b=true},verbatim_string={format='txt',string='v'}}" 0
        EVAL "return {map={a=1},verbatim_string={format='txt',string='v'}}" 0
        EVAL "return {map={a=1},set={b=true}}" 0
        EVAL "return {big_number='12',verbatim_string={format='txt',string='v'}}" 0
        "##,
    );
}

#[test]
fn large_numbers_reach_commands_alike() {
    compare(
        r##"
        EVAL "return redis.call('ECHO', 1e17)" 0
        EVAL "return redis.call('ECHO', -1e17)" 0
        EVAL "return redis.call('ECHO', 99999999999999984)" 0
        EVAL "return redis.call('ECHO', 123456789012345678)" 0
        EVAL "return redis.call('ECHO', 2^60)" 0
        EVAL "return redis.call('ECHO', 2^62 + 2048)" 0
        EVAL "return redis.call('ECHO', 2^63)" 0
        EVAL "return redis.call('ECHO', -2^63)" 0
        EVAL "return redis.call('ECHO', 1e300)" 0
        "##,
    );
}
