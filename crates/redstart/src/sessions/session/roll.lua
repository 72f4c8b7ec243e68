-- Lists the names of a user's live sessions. Before a logout everywhere it also notes its time, so that a
-- session which is being rotated does not slip through.
--
-- KEYS  1 the index of the user  2 logout everywhere
-- ARGV  1 how long to note it in milliseconds (0 = do not)
-- Returns  names and the ends of their sessions in microseconds
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if tonumber(ARGV[1]) > 0 then redis.call('SET', KEYS[2], now, 'PX', ARGV[1]) end
return redis.call('ZRANGE', KEYS[1], 0, -1)
