-- Adds members to the set, and the sign that there are some.
--
-- KEYS  1 the set  2 the sign
-- ARGV  members
-- Returns  how many were new
local new = redis.call('SADD', KEYS[1], unpack(ARGV))
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('LPUSH', KEYS[2], 1) end
return new
