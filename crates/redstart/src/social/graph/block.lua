-- Blocks and removes the follows in both directions, in one step. For accounts of one bucket.
-- KEYS[1] whom a blocks  KEYS[2] whom a follows  KEYS[3] who follows a  KEYS[4] whom b follows
-- KEYS[5] who follows b
-- ARGV[1] a  ARGV[2] b
-- Returns 1 if it is new, 0 if b was blocked
local a, b = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
local new = redis.call('ZADD', KEYS[1], 'NX', now, b)
redis.call('ZREM', KEYS[2], b)
redis.call('ZREM', KEYS[3], b)
redis.call('ZREM', KEYS[4], a)
redis.call('ZREM', KEYS[5], a)
return new
