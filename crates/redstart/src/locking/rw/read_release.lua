-- Lets a reader out; the last one wakes those who wait.
--
-- KEYS     1  unused here: the writer
--          2  the readers (sorted set: token -> end of its lease in us)
-- ARGV     1  the reader's token
--          2  the channel on which waiters listen
-- Returns  1 if the lease still ran, else 0
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ends = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not ends then
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
if redis.call('ZCARD', KEYS[2]) == 0 then
  redis.call('SPUBLISH', ARGV[2], '')
end
return tonumber(ends) > now and 1 or 0
