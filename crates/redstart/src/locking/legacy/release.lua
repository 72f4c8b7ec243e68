-- Gives the lock back, if nobody else has touched its time stamp since the owner wrote it.
--
-- KEYS     1  the old lock (string: the time at which it ends)
--          2  who of the new clients has it (hash: token, stamp)
-- ARGV     1  the owner's token
--          2  the channel on which waiters listen
-- Returns  1 if it was the owner's, else 0
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
