-- Gives the lock to a new owner, once, with a new fence token, if nobody else has changed its time stamp since the old
-- owner wrote it. The stamp is at least `ttl` from now, so old clients see a held lock all the time.
--
-- KEYS     1  the lock (string: the time at which it ends)
--          2  its owner among clients of this library (hash: token, stamp)
--          3  the last fence token
-- ARGV     1  the token of the owner that handed it over
--          2  the new owner's token
--          3  ttl in ms
--          4  unused here: the channel
--          5  the unit of the time stamp in us
--          6  the maximum clock error of old clients in us
-- Returns  the new owner's fence token as text, or nil if the lock is not to be had
local owner = redis.call('HMGET', KEYS[2], 'token', 'stamp')
local again = owner[1] == ARGV[2]
if not again and owner[1] ~= ARGV[1] or redis.call('GET', KEYS[1]) ~= owner[2] then
  return false
end
redis.call('HSET', KEYS[2], 'token', ARGV[2])
prolong(KEYS[1], KEYS[2], owner[2], ARGV[3], ARGV[5], ARGV[6])
-- The same request again, because its first reply was lost, gets the same token.
return again and redis.call('GET', KEYS[3]) or next_fence(KEYS[3])
