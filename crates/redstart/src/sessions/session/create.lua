-- Makes a session.
--
-- KEYS  1 the session  2 the index of its user
-- ARGV  1 idle timeout  2 absolute timeout (both in microseconds)  3 the session's name in the index
--       4 user ('' = nobody)  5... fields and values
-- Returns  1
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local absolute = now + ARGV[2]
local ends = math.min(now + ARGV[1], absolute)
local fields = { 'user', ARGV[4], 'created', string.format('%.0f', now), 'until', string.format('%.0f', absolute),
  'ends', string.format('%.0f', ends) }
for i = 5, #ARGV do fields[#fields + 1] = ARGV[i] end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.floor(ends / 1000)))
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
redis.call('ZADD', KEYS[2], string.format('%.0f', ends), ARGV[3])
redis.call('PEXPIRE', KEYS[2], string.format('%.0f', math.ceil(ARGV[2] / 1000) + 1000))
return 1
