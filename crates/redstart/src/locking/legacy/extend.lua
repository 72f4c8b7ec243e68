-- Moves the time stamp forward, if nobody else has changed it since the owner wrote it.
--
-- KEYS     1  the lock (string: the time at which it ends)
--          2  its owner among clients of this library (hash: token, stamp)
--          3  unused here: the last fence token
-- ARGV     1  the owner's token
--          2  ttl in ms
--          3  the unit of the time stamp in us
--          4  the maximum clock error of old clients in us
-- Returns  1 if the lock is the owner's, else 0
--
-- A stamp that changed was written by the GETSET of an old client, which either took the lock by its own clock or lost
-- a race and moved the stamp. The two cannot be told apart, so the owner has to treat the lock as lost.
local owner = redis.call('HMGET', KEYS[2], 'token', 'stamp')
if owner[1] ~= ARGV[1] or redis.call('GET', KEYS[1]) ~= owner[2] then
  return 0
end
prolong(KEYS[1], KEYS[2], owner[2], ARGV[2], ARGV[3], ARGV[4])
return 1
