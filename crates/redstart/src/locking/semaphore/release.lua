-- Gives a permit back and wakes those who wait.
--
-- KEYS     1  the permits (sorted set: owner's token -> end of its lease in us)
-- ARGV     1  the owner's token
--          2  the channel on which waiters listen
-- Returns  1 if the lease still ran, else 0
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not ends then
  return 0
end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('SPUBLISH', ARGV[2], '')
return tonumber(ends) > now and 1 or 0
