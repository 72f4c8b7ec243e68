-- Releases the lock, if nobody else has changed its time stamp since the owner wrote it.
--
-- KEYS     1  the lock (string: the time at which it ends)
--          2  its owner among clients of this library (hash: token, stamp)
--          3  unused here: the last fence token
-- ARGV     1  the owner's token
--          2  the channel on which waiters listen
--          3-4  unused here: the unit of the time stamp, the maximum clock error
-- Returns  1 if the lock was the owner's, else 0
local owner = redis.call('HMGET', KEYS[2], 'token', 'stamp')
if owner[1] ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[2])
if redis.call('GET', KEYS[1]) ~= owner[2] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SPUBLISH', ARGV[2], '')
return 1
