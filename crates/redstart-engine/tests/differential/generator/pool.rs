//! The small pools that keys, fields and values come from.

pub(crate) const KEYS: &[&str] = &[
    "string1", "string2", "string3", "list1", "list2", "list3", "hash1", "hash2", "hash3", "set1",
    "set2", "set3", "zset1", "zset2", "zset3", "hll1", "hll2", "hll3", "geo1", "geo2", "geo3",
    "stream1", "stream2", "stream3", "k1", "k2", "z1", "z2", "l1", "l2",
];
/// Those that only some commands touch come last.
pub(super) const SHARED: usize = KEYS.len() - 4;
pub(super) const FIELDS: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"d",
    b"1",
    b"2",
    b"-5",
    b"",
    b"\x00\xff",
    b"10",
];
pub(super) const VALUES: &[&[u8]] = &[
    b"a",
    b"b",
    b"",
    b"0",
    b"1",
    b"-1",
    b"12",
    b"3.5",
    b"-0",
    b"inf",
    b"-inf",
    b"nan",
    b"1e3",
    b"0x1f",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"\x00\x01\xff",
    b" 1",
    b"hello world",
    b"0.1",
    b"1e400",
    b"1e-400",
    b"99999999999999999999",
    b"007",
];
pub(super) const INTS: &[&[u8]] = &[
    b"0",
    b"1",
    b"2",
    b"3",
    b"-1",
    b"-2",
    b"-3",
    b"5",
    b"100",
    b"-100",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"x",
    b"",
    b"1.5",
];
pub(super) const SMALL: &[&[u8]] = &[b"0", b"1", b"2", b"3", b"5", b"-1", b"x"];
pub(super) const SCORES: &[&[u8]] = &[
    b"0",
    b"1",
    b"2",
    b"-1",
    b"0.1",
    b"0.2",
    b"1.5",
    b"-0",
    b"inf",
    b"-inf",
    b"+inf",
    b"nan",
    b"x",
    b"1e3",
    b"3",
    b"4",
    b"5",
    b"1e17",
    b"123456789012345678",
    b"",
    b"4503599627370496",
    b"-1e-300",
    b"1.7976931348623157e308",
    b"0.30000000000000004",
];
pub(super) const BOUNDS: &[&[u8]] = &[
    b"-inf", b"+inf", b"0", b"1", b"2", b"(1", b"(2", b"(0.1", b"3", b"-1", b"x", b"(", b"(inf",
];
pub(super) const LEX: &[&[u8]] = &[
    b"-", b"+", b"[a", b"(a", b"[b", b"(c", b"[", b"(", b"x", b"[1", b"(2",
];
pub(super) const DEADLINES: &[&[u8]] = &[
    b"33177117420000",
    b"33177117421234",
    b"1",
    b"0",
    b"-1",
    b"x",
];

pub(super) const DEGREES: &[&[u8]] = &[
    b"0", b"13.4", b"13.5", b"52.5", b"-33.9", b"80", b"85", b"-85", b"179.9", b"-179.9", b"1e-7",
    b"x", b"200",
];
/// None of them reads ARGV[1] as a number: a float out of range there would leave C's `errno` set, at
/// which the server's next SORT fails.
/// The last three are left out where they would do harm.
pub(super) const SCRIPTS: &[&[u8]] = &[
    b"return redis.call('GET', KEYS[1])",
    b"return {redis.pcall('INCR', KEYS[1]), redis.pcall('APPEND', KEYS[2], ARGV[1])}",
    b"redis.call('SET', KEYS[1], ARGV[1]) redis.call('LPUSH', KEYS[1], ARGV[1]) return 1",
    b"return redis.pcall('LRANGE', KEYS[1], 0, -1)",
    b"return redis.pcall('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')",
    b"redis.setresp(3) return redis.pcall('ZSCORE', KEYS[1], ARGV[1])",
    b"redis.setresp(3) return redis.pcall('MGET', KEYS[1], KEYS[2])",
    b"return redis.call('TYPE', KEYS[1])",
    b"return redis.pcall('HSET', KEYS[1], 'a', ARGV[1])",
    b"return redis.pcall('RPUSH', KEYS[1], ARGV[1], ARGV[2])",
    b"redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], ARGV[1]) return redis.call('RENAME', KEYS[1], KEYS[2])",
    b"local n = 0\nfor i = 1, 3 do\n n = n + redis.call('INCRBY', KEYS[1], ARGV[2])\nend\nreturn n",
    b"return cjson.encode({ARGV[1], tonumber(ARGV[2]) or false, {}})",
    b"local ok, value = pcall(cjson.decode, ARGV[2]) return {ok, tostring(value)}",
    b"return {tonumber(ARGV[2]) or 'none', tonumber(ARGV[2], 16) or 'none'}",
    b"error(ARGV[1])",
    b"return redis.error_reply(ARGV[1])",
    b"return redis.status_reply(ARGV[1])",
    b"return cmsgpack.unpack(cmsgpack.pack({ARGV[1], tonumber(ARGV[2])}))",
    b"return redis.sha1hex(ARGV[1])",
    b"redis.call('SELECT', 1) return redis.pcall('SET', KEYS[1], ARGV[1])",
    b"return nosuch",
    b"return redis.pcall('XRANGE', KEYS[1], '-', '+')",
    b"return {redis.pcall('SADD', KEYS[1], ARGV[1]), redis.pcall('SCARD', KEYS[1]), redis.pcall('SISMEMBER', KEYS[2], ARGV[1])}",
    b"return redis.pcall('ZADD', KEYS[1], 'INCR', ARGV[2], ARGV[1])",
    b"redis.setresp(3) return {redis.pcall('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES'), redis.pcall('HGET', KEYS[2], 'a')}",
    b"return {1.9, -1.9, '2.5', true, false, {nested = 1}, {ok = 'fine'}, nil, 3}",
    b"return bit.bxor(tonumber(ARGV[2]) or 0, 0xff)",
    b"return struct.pack('>I2', 258) .. ARGV[1]",
    b"return redis.pcall(ARGV[1], KEYS[1])",
    b"return redis.pcall('BLPOP', KEYS[1], KEYS[2], 0)",
    b"return redis.call('EXPIRE', KEYS[1], -1)",
    b"for i = 1, 1200 do redis.pcall('PFADD', KEYS[1], ARGV[2] .. i) end return redis.pcall('PFCOUNT', KEYS[1])",
];

pub(super) const STREAM_IDS: &[&[u8]] = &[
    b"0",
    b"-",
    b"+",
    b"0-0",
    b"1-1",
    b"0-1",
    b"$",
    b">",
    b"x",
    b"",
    b"(1",
    b"(",
    b"1-x",
    b"18446744073709551615-18446744073709551615",
    b"18446744073709551615",
    b"1-18446744073709551616",
];
/// Those that are numbers stand for the start.
pub(super) const CURSORS: &[&[u8]] = &[
    b"0",
    b"x",
    b"",
    b" 0",
    b"+0",
    b"-0",
    b"00",
    b"\x00\x01",
    b"1.5",
    b"99999999999999999999",
];
/// None that ends by itself.
pub(super) const TIMEOUTS: &[&[u8]] = &[
    b"0",
    b"-1",
    b"x",
    b"nan",
    b"inf",
    b"",
    b"1e400",
    b"-0",
    b"99999999999999999999",
    b" 0",
];
pub(super) const UNITS: &[&[u8]] = &[b"m", b"km", b"mi", b"ft", b"x"];
pub(super) const RADII: &[&[u8]] = &[
    b"0", b"1", b"100", b"500", b"3000", b"9000", b"40000", b"-1", b"1e400", b"nan", b"x",
];
pub(super) const CHANNELS: &[&[u8]] = &[b"ch1", b"ch2", b"", b"\x00\xff"];
pub(super) const PATTERNS: &[&[u8]] = &[b"ch*", b"c?1", b"[a-c]h2", b"?*2"];
pub(super) const WIDTHS: &[&[u8]] = &[
    b"u1", b"i1", b"u8", b"i8", b"u63", b"i64", b"u64", b"i65", b"u0", b"i7", b"x",
];

/// Libraries that get in each other's way.
pub(super) const LIBRARIES: &[&[u8]] = &[
    b"#!lua name=l1\nredis.register_function('get', function(k) return redis.call('GET', k[1]) end)\nredis.register_function{function_name='read', flags={'no-writes'}, callback=function(k) return redis.pcall('TYPE', k[1]) end}",
    b"#!lua name=l1\nlocal n = 0\nredis.register_function('count', function() n = n + 1 return n end)\nredis.register_function('set', function(k, a) return redis.call('SET', k[1], a[1]) end)",
    b"#!lua name=l2\nredis.register_function('set', function(k, a) redis.call('SET', k[1], a[1]) redis.call('LPUSH', k[1], a[1]) end)",
    b"#!lua name=l2\nredis.register_function{function_name='read', description='text', flags={'no-writes', 'allow-oom'}, callback=function(k, a) return {k, a, redis.pcall('HMGET', k[1], 'a', 'b')} end}\nredis.register_function('fail', function(k, a) error(a[1]) end)",
    b"#!lua name=l3\nredis.register_function('del', function(k) return redis.call('DEL', k[1]) end)",
    b"#!lua name=l3\nreturn 1",
    b"#!lua name=l3\nredis.call('SET', 'x', 1)",
    b"#!lua name=l3\nredis.register_function('x', 1)",
    b"#!lua\nreturn 1",
    b"x",
];
pub(super) const FUNCTIONS: &[&[u8]] = &[
    b"get", b"read", b"READ", b"count", b"set", b"fail", b"del", b"nosuch", b"",
];
