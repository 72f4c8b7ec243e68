-- Gives the lock back if it is the owner's, and wakes those who wait.
--
-- KEYS     1  the lock (string: the owner's token)
-- ARGV     1  the owner's token
--          2  the channel on which waiters listen
-- Returns  1 if it was the owner's, else 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SPUBLISH', ARGV[2], '')
return 1
